/* The test of gpusync.hpp, with faults that softmetal plants: work that fails, hangs, or ends with the device; no Metal
   object; no memory. In C++11, and in C++20 with coroutines. */
#define GPUSYNC_IMPLEMENTATION
#include "gpusync.hpp"
#include "softmetal.h"
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <type_traits>
#include <unistd.h>

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

static unsigned checks;
#define CHECK(good)                                                    \
    do {                                                               \
        checks++;                                                      \
        if (!(good)) {                                                 \
            std::fprintf(stderr, "line %d: not %s\n", __LINE__, #good); \
            std::exit(1);                                              \
        }                                                              \
    } while (0)

/* The result that the call throws, and in `caught` the rest; OK if it throws nothing. */
static gpusync_error caught;
static std::string text;
template <class Call> static gpusync_result thrown(Call call)
{
    caught = gpusync_error();
    text.clear();
    try {
        call();
    } catch (const gpu::error &error) {
        caught = error.failure();
        text = error.what();
        CHECK(error.code() == error.result());
        return error.result();
    }
    return GPUSYNC_OK;
}

static gpusync_ticket work(gpu::queue &queue, void **pointer = nullptr, uint64_t duration_ms = 0)
{
    gpu::command_buffer buffer(queue, seconds(5), "shadow");
    if (duration_ms) softmetal_set_duration(buffer.get(), duration_ms * 1000000);
    if (pointer) *pointer = buffer.get();
    return buffer.commit();
}

static gpusync_ticket failing_work(gpu::queue &queue)
{
    gpu::command_buffer buffer(queue, seconds(5), "shadow");
    softmetal_fail_as(buffer.get(), SOFTMETAL_PAGE_FAULT, "page fault on purpose");
    return buffer.commit();
}

static gpusync_ticket hanging_work(gpu::queue &queue, void **pointer)
{
    gpu::command_buffer buffer(queue, seconds(5));
    softmetal_hang(*pointer = buffer.get());
    return buffer.commit();
}

static void begin()
{
    CHECK(softmetal_settle(5000000000));
    softmetal_reset();
}

static void nothing_is_left() /* what was let go in a callback goes a moment later */
{
    for (const char *kind : {"device", "queue", "command_buffer", "shared_event"}) {
        CHECK(softmetal_settle(5000000000));
        for (int i = 0; i < 5000 && softmetal_live(kind); i++) std::this_thread::sleep_for(milliseconds(1));
        CHECK(!softmetal_live(kind));
    }
}

/* -- without a device --------------------------------------------------------------------------------------------- */

static void test_results_are_error_codes()
{
    for (int i = 1; i >= -22; i--) {
        const std::error_code code = static_cast<gpusync_result>(i);
        CHECK(!code == (i == 0) && code.category() == gpu::category());
        CHECK((code.message() == "unknown result") == (i == -9)); /* of 0.3 */
    }
    CHECK(make_error_code(GPUSYNC_TIMEOUT) == std::errc::timed_out);
    CHECK(make_error_code(GPUSYNC_ERROR_OUT_OF_MEMORY) == std::errc::not_enough_memory);
    CHECK(make_error_code(GPUSYNC_ERROR_EXECUTION) != std::errc::timed_out);
    const gpu::error error("gpusync_wait", GPUSYNC_ERROR_DEVICE_LOST);
    CHECK(error.what() == std::string("gpusync_wait: ") + gpusync_result_string(GPUSYNC_ERROR_DEVICE_LOST));
    CHECK(error.failure().failure == GPUSYNC_FAILURE_NONE);
}

static void test_durations()
{
    CHECK(gpu::nanoseconds(milliseconds(7)) == 7000000 && gpu::nanoseconds(seconds(0)) == 0);
    CHECK(gpu::nanoseconds(seconds(-1)) == 0 && gpu::nanoseconds(hours::max()) == GPUSYNC_FOREVER);
    CHECK(gpu::nanoseconds(std::chrono::duration<double>(0.5)) == 500000000);
}

static_assert(!std::is_copy_constructible<gpu::device>::value && !std::is_copy_assignable<gpu::device>::value, "copy");
static_assert(!std::is_copy_constructible<gpu::queue>::value && !std::is_copy_assignable<gpu::queue>::value, "copy");
static_assert(!std::is_copy_constructible<gpu::command_buffer>::value, "copy");
static_assert(!std::is_copy_assignable<gpu::command_buffer>::value, "copy");
static_assert(std::is_nothrow_move_constructible<gpu::queue>::value, "move");
static_assert(std::is_nothrow_move_constructible<gpu::command_buffer>::value, "move");

/* -- blocking ----------------------------------------------------------------------------------------------------- */

static void test_work_that_fails_throws()
{
    begin();
    gpu::device device;
    gpusync_queue_desc desc = {};
    desc.label = "frames";
    gpu::queue queue(device, &desc);
    uint64_t cursor = 0, later = GPUSYNC_FROM_NOW;
    queue.wait(work(queue), seconds(5));
    CHECK(queue.poll(1) && queue.is_done(1) && queue.is_idle() && queue.failures(cursor).empty());
    CHECK(thrown([&] { queue.wait(failing_work(queue)); }) == GPUSYNC_ERROR_EXECUTION);
    CHECK(caught.ticket == 2 && caught.failure == GPUSYNC_FAILURE_PAGE_FAULT);
    CHECK(caught.label == std::string("shadow") && caught.queue_label == std::string("frames"));
    CHECK(text.find("gpusync_wait: page fault: page fault on purpose") == 0);
    CHECK(queue.failures(later).empty() && queue.failures(later).empty());
    CHECK(queue.failures(cursor).size() == 1 && queue.failures(cursor).empty());
    CHECK(thrown([&] { queue.wait(failing_work(queue)); }) == GPUSYNC_ERROR_EXECUTION);
    CHECK(queue.failures(later).size() == 1 && queue.failures(later).empty() && queue.failures(cursor).size() == 1);
    CHECK(thrown([&] { queue.poll(2); }) == GPUSYNC_ERROR_EXECUTION);
    CHECK(thrown([&] { queue.wait(9, seconds(5)); }) == GPUSYNC_ERROR_INVALID_TICKET);
}

static void test_a_limit_that_passes()
{
    begin();
    gpu::device device;
    gpu::queue queue(device);
    void *buffer;
    const gpusync_ticket ticket = hanging_work(queue, &buffer);
    CHECK(thrown([&] { queue.wait(ticket, milliseconds(20)); }) == GPUSYNC_TIMEOUT);
    CHECK(caught.result == GPUSYNC_OK && !queue.poll(ticket));
    CHECK(queue.done(ticket).wait_for(milliseconds(20)) == std::future_status::timeout); /* and is dropped */
    softmetal_unhang(buffer);
    queue.wait(ticket, hours::max());
}

static void test_a_gpu_that_hangs_keeps_no_queue()
{
    begin();
    gpu::device device;
    gpu::queue queue(device);
    void *buffer;
    gpu::timeline steps(device);
    const gpusync_ticket ticket = hanging_work(queue, &buffer);
    gpu::command_buffer waiting(queue);
    waiting.encode_wait(steps.at(1));
    std::future<void> done = queue.done(ticket), held = queue.done(waiting.commit());
    queue.destroy_now();
    CHECK(!queue.get());
    for (std::future<void> *each : {&done, &held}) {
        CHECK(thrown([&] { each->get(); }) == GPUSYNC_ERROR_DESTROYED);
        CHECK(caught.failure == GPUSYNC_FAILURE_CANCELLED);
    }
    softmetal_unhang(buffer);
}

static void test_the_device_goes()
{
    begin();
    gpu::device device;
    gpu::queue queue(device);
    const gpusync_ticket ticket = work(queue, nullptr, 60000);
    std::future<void> done = queue.done(ticket);
    softmetal_remove_device(device.metal());
    const gpusync_result result = thrown([&] { done.get(); });
    CHECK(result == GPUSYNC_ERROR_EXECUTION || result == GPUSYNC_ERROR_DEVICE_LOST);
    CHECK(device.is_lost());
    CHECK(thrown([&] { /* a moment later than is_lost */
        for (int i = 0; i < 1000; i++) {
            gpu::command_buffer buffer(queue, seconds(5));
            std::this_thread::sleep_for(milliseconds(1));
        }
    }) == GPUSYNC_ERROR_DEVICE_LOST);
}

static void everything(const gpusync_device_desc *desc)
{
    gpu::device device(desc);
    gpu::timeline steps(device);
    gpu::queue queue(device);
    gpu::command_buffer buffer(queue);
    buffer.encode_signal(steps.at(1));
    queue.done(buffer.commit()).get();
    steps.done(1).get();
}

static void test_every_object_that_metal_does_not_make()
{
    unsigned number;
    begin();
    for (number = 1; number < 100; number++) {
        softmetal_fail_creation(number, false);
        const gpusync_result result = thrown([] { everything(nullptr); });
        CHECK(result == GPUSYNC_OK || result == GPUSYNC_ERROR_METAL_NIL || result == GPUSYNC_ERROR_NO_DEVICE);
        if (softmetal_creations() < number) break;
    }
    softmetal_fail_creation(0, false);
    CHECK(number > 4 && number < 100);
}

static std::atomic<long> left, held;

static void *allocate(void *, size_t size, size_t alignment)
{
    void *memory = nullptr;
    if (--left == 0 || posix_memalign(&memory, alignment < 16 ? 16 : alignment, size)) return nullptr;
    held++;
    return memory;
}
static void release(void *, void *memory, size_t)
{
    held--;
    std::free(memory);
}

static void test_every_allocation_that_fails()
{
    const gpusync_allocator allocator = {allocate, release, nullptr};
    gpusync_device_desc desc = {};
    long failed = 0;
    begin();
    desc.allocator = &allocator;
    for (long number = 1; number < 100; number++, failed++) {
        left = number;
        const gpusync_result result = thrown([&] { everything(&desc); });
        CHECK(held == 0);
        CHECK(result == GPUSYNC_OK || result == GPUSYNC_ERROR_OUT_OF_MEMORY);
        if (left > 0) break;
    }
    CHECK(failed > 2);
}

static void test_buffers_are_given_back_and_moved()
{
    begin();
    gpu::device made, device = std::move(made);
    gpusync_queue_desc desc = {};
    desc.max_command_buffer_count = 1;
    gpu::queue first(device, &desc), queue = std::move(first);
    CHECK(!made.get() && !first.get());
    gpusync_ticket ticket;
    {
        gpu::command_buffer buffer(queue);
        gpu::command_buffer moved = std::move(buffer);
        CHECK(!buffer.get() && moved.get());
        CHECK(thrown([&] { gpu::command_buffer more(queue, milliseconds(20)); }) == GPUSYNC_TIMEOUT);
    }
    {
        gpu::command_buffer buffer(queue, seconds(0));
        ticket = buffer.commit();
        CHECK(thrown([&] { buffer.commit(); }) == GPUSYNC_ERROR_INVALID_ARGUMENT);
    }
    queue.wait(ticket, seconds(5));
    gpu::command_buffer buffer(queue, seconds(5));
    gpu::command_buffer other(std::move(buffer));
    buffer = std::move(other);
    ticket = buffer.commit();
    queue.wait(ticket, seconds(5));
}

static void test_timelines()
{
    begin();
    gpu::device device;
    gpu::timeline steps(device), given_up(device);
    gpu::queue queue(device), other(device);
    gpu::command_buffer waits(other), signals(queue), fails(queue);
    waits.encode_wait(steps.at(1));
    const gpusync_ticket later = waits.commit(); /* before the signal: held */
    CHECK(thrown([&] { steps.wait(1, milliseconds(10)); }) == GPUSYNC_TIMEOUT);
    signals.encode_signal(steps.at(1));
    signals.commit();
    other.wait(later, seconds(5));
    steps.wait(1, seconds(5));
    steps.signal(2);
    CHECK(steps.value() == 2);
    CHECK(thrown([&] { steps.signal(2); }) == GPUSYNC_ERROR_NOT_RISING);
    fails.encode_signal(steps.at(3));
    softmetal_fail_as(fails.get(), SOFTMETAL_PAGE_FAULT, "on purpose");
    fails.commit();
    CHECK(thrown([&] { steps.done(3).get(); }) == GPUSYNC_ERROR_EXECUTION);
    CHECK(caught.failure == GPUSYNC_FAILURE_PAGE_FAULT);
    CHECK(thrown([&] { steps.fail(); }) == GPUSYNC_ERROR_EXECUTION); /* it has failed before */
    given_up.fail();
    CHECK(thrown([&] { given_up.wait(0, seconds(5)); }) == GPUSYNC_ERROR_EXECUTION);
}

/* -- callbacks ---------------------------------------------------------------------------------------------------- */

static void test_futures_end_as_their_work_does()
{
    begin();
    gpu::device device;
    gpu::queue queue(device);
    std::vector<std::future<void>> futures;
    for (int i = 0; i < 6; i++) futures.push_back(queue.done(i == 3 ? failing_work(queue) : work(queue, nullptr, 2)));
    for (std::future<void> &one : futures)
        CHECK(thrown([&] { one.get(); }) == (&one == &futures[3] ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK));
    CHECK(thrown([&] { queue.done(99); }) == GPUSYNC_ERROR_INVALID_TICKET);
}

/* The callback owns the queue, and lets it go. */
struct owner {
    std::shared_ptr<gpu::queue> owned;
    std::promise<void> *told;
    void operator()(gpusync_result, const gpusync_error *)
    {
        owned.reset();
        told->set_value();
    }
};

static void test_a_callback_may_let_its_queue_go()
{
    for (int manual = 0; manual < 2; manual++) {
        begin();
        gpusync_device_desc desc = {};
        desc.callback_mode = manual ? GPUSYNC_CALLBACKS_MANUAL : GPUSYNC_CALLBACKS_QUEUED;
        gpu::device device(&desc);
        std::promise<void> promise;
        std::future<void> told = promise.get_future();
        {
            std::shared_ptr<gpu::queue> queue = std::make_shared<gpu::queue>(device);
            const gpusync_point point = queue->at(work(*queue, nullptr, 5));
            work(*queue, nullptr, 30);
            gpu::when_done(point, owner{std::move(queue), &promise});
        }
        for (int i = 0; i < 5000 && told.wait_for(milliseconds(1)) != std::future_status::ready; i++) device.dispatch();
        told.get();
    } /* the device goes while its queue has work */
    nothing_is_left();
}

#ifdef GPUSYNC_COROUTINES
struct task {
    struct promise_type {
        task get_return_object() { return {std::coroutine_handle<promise_type>::from_promise(*this)}; }
        std::suspend_never initial_suspend() { return {}; }
        std::suspend_never final_suspend() noexcept { return {}; }
        void return_void() {}
        void unhandled_exception() { std::terminate(); }
    };
    std::coroutine_handle<promise_type> handle;
};

static std::atomic<int> steps_done, steps_failed, ended;

static task pipeline(gpu::queue &queue, int number)
{
    for (int step = 0; step < 3; step++) {
        try {
            co_await queue.ended(number == 2 && step == 1 ? failing_work(queue) : work(queue, nullptr, 1));
            steps_done++;
        } catch (const gpu::error &error) {
            if (error.code() == GPUSYNC_ERROR_EXECUTION && error.failure().failure == GPUSYNC_FAILURE_PAGE_FAULT)
                steps_failed++;
        }
    }
    ended++;
}

static void test_coroutines_go_on_when_their_work_has_ended()
{
    begin();
    gpu::device device;
    gpu::queue queue(device);
    steps_done = steps_failed = ended = 0;
    for (int i = 0; i < 4; i++) pipeline(queue, i);
    for (int i = 0; i < 5000 && ended < 4; i++) std::this_thread::sleep_for(milliseconds(1));
    CHECK(ended == 4 && steps_done == 11 && steps_failed == 1);
}

static task ended_already(gpu::queue &queue, gpu::timeline &steps)
{
    co_await queue.ended(GPUSYNC_NO_TICKET); /* does not suspend */
    ended++;
    try {
        co_await queue.ended(99);
    } catch (const gpu::error &error) {
        if (error.code() == GPUSYNC_ERROR_INVALID_TICKET) ended++;
    }
    co_await steps.ended(1);
    ended++;
}

static void test_coroutines_on_the_thread_that_dispatches()
{
    begin();
    gpusync_device_desc desc = {};
    desc.callback_mode = GPUSYNC_CALLBACKS_MANUAL;
    gpu::device device(&desc);
    gpu::timeline steps(device);
    gpu::queue queue(device);
    ended = 0;
    ended_already(queue, steps);
    CHECK(ended == 2);
    steps.signal(1);
    CHECK(ended == 2);
    device.dispatch();
    CHECK(ended == 3);
}

struct counted {
    int *alive;
    explicit counted(int *count) : alive(count) { ++*alive; }
    ~counted() { --*alive; }
};

static task forgotten(gpu::queue &queue, gpusync_ticket ticket, int *alive)
{
    counted local(alive);
    co_await queue.ended(ticket);
    ended++;
}

static void test_a_coroutine_may_be_destroyed_while_it_waits()
{
    begin();
    gpusync_device_desc desc = {};
    desc.callback_mode = GPUSYNC_CALLBACKS_MANUAL;
    gpu::device device(&desc);
    gpu::queue queue(device);
    void *buffer;
    int alive = 0;
    ended = 0;
    const gpusync_ticket ticket = hanging_work(queue, &buffer);
    task waiting = forgotten(queue, ticket, &alive);
    CHECK(alive == 1);
    waiting.handle.destroy();
    CHECK(alive == 0);
    softmetal_unhang(buffer);
    queue.wait(ticket, seconds(5));
    device.dispatch(); /* finds no coroutine */
    CHECK(ended == 0);
}
#endif

int main()
{
    alarm(120);
    test_results_are_error_codes();
    test_durations();
    test_work_that_fails_throws();
    test_a_limit_that_passes();
    test_a_gpu_that_hangs_keeps_no_queue();
    test_the_device_goes();
    test_every_object_that_metal_does_not_make();
    test_every_allocation_that_fails();
    test_buffers_are_given_back_and_moved();
    test_timelines();
    test_futures_end_as_their_work_does();
    test_a_callback_may_let_its_queue_go();
#ifdef GPUSYNC_COROUTINES
    test_coroutines_go_on_when_their_work_has_ended();
    test_coroutines_on_the_thread_that_dispatches();
    test_a_coroutine_may_be_destroyed_while_it_waits();
#endif
    nothing_is_left();
    std::printf("all %u checks passed%s\n", checks,
#ifdef GPUSYNC_COROUTINES
                ", coroutines included"
#else
                ", no coroutines"
#endif
    );
    return 0;
}
