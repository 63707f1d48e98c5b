/* gpusync.hpp - gpusync for C++11: objects that are moved and not copied, exceptions, std::future; with C++20 co_await

     #define GPUSYNC_IMPLEMENTATION                     // in ONE file
     #include "gpusync.hpp"

     gpu::device device;
     gpu::queue queue(device);                          // declare it behind its device: it goes first
     gpu::command_buffer buffer(queue);                 // encode into buffer.get(), an id<MTLCommandBuffer>
     gpusync_ticket ticket = buffer.commit();
     queue.wait(ticket, std::chrono::seconds(1));       // or: queue.done(ticket).get();
                                                        // or: co_await queue.ended(ticket);

   Errors      A call that fails throws gpu::error, a std::system_error. error.code() == GPUSYNC_TIMEOUT tells what
               happened; error.failure() tells why work failed. For a call without exceptions take .get():
               gpusync_wait(queue.get(), ticket, 0) returns a gpusync_result, which converts to a std::error_code.
   Threads     Any call on any thread, but the destructors: as gpusync.h says.
   Destroying  The destructor of a queue waits for what is in flight, without limit: see queue::destroy_now. In a
               callback nothing may wait: there the destructor leaves the object to gpusync, which destroys it when its
               work has ended.
   Callbacks   They run on a dispatch queue of gpusync's, or with GPUSYNC_CALLBACKS_MANUAL in gpusync_dispatch. So do
               coroutines that go on. An exception that leaves a callback ends the program, as does one that leaves a
               coroutine whose promise lets it out. Futures: never wait for one in a callback. */
#ifndef GPUSYNC_HPP
#define GPUSYNC_HPP

#include "gpusync.h"
#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>
#if defined(__cpp_impl_coroutine) && defined(__has_include)
#if __has_include(<coroutine>)
#include <atomic>
#include <coroutine>
#define GPUSYNC_COROUTINES
#endif
#endif

namespace gpu
{
/* -- errors ------------------------------------------------------------------------------------------------------- */

class result_category : public std::error_category
{
public:
    const char *name() const noexcept override { return "gpusync"; }
    std::string message(int result) const override
    {
        return gpusync_result_string(static_cast<gpusync_result>(result));
    }
    std::error_condition default_error_condition(int result) const noexcept override
    {
        switch (result) {
        case GPUSYNC_TIMEOUT: return std::errc::timed_out;
        case GPUSYNC_NOT_READY: return std::errc::resource_unavailable_try_again;
        case GPUSYNC_ERROR_INVALID_ARGUMENT: return std::errc::invalid_argument;
        case GPUSYNC_ERROR_UNSUPPORTED: return std::errc::not_supported;
        case GPUSYNC_ERROR_OUT_OF_MEMORY: return std::errc::not_enough_memory;
        case GPUSYNC_ERROR_NO_DEVICE: return std::errc::no_such_device;
        case GPUSYNC_ERROR_CANCELLED: return std::errc::operation_canceled;
        case GPUSYNC_ERROR_WOULD_DEADLOCK: return std::errc::resource_deadlock_would_occur;
        default: return std::error_condition(result, *this);
        }
    }
};

inline const std::error_category &category()
{
    static const result_category one;
    return one;
}
} // namespace gpu

namespace std
{
template <> struct is_error_code_enum<gpusync_result> : true_type {
};
} // namespace std
inline std::error_code make_error_code(gpusync_result result)
{
    return std::error_code(result, gpu::category());
}

namespace gpu
{
/* A call of gpusync returned no success. */
class error : public std::system_error
{
public:
    error(const char *call, gpusync_result result, const gpusync_error *why = nullptr)
        : std::system_error(make_error_code(result), text(call, why)), failure_(why ? *why : gpusync_error())
    {
    }
    gpusync_result result() const noexcept { return static_cast<gpusync_result>(code().value()); }
    /* How the work failed; its failure is GPUSYNC_FAILURE_NONE where the call itself failed. */
    const gpusync_error &failure() const noexcept { return failure_; }

private:
    static std::string text(const char *call, const gpusync_error *why)
    {
        if (!why || !why->result) return call;
        return std::string(call) + ": " + gpusync_failure_string(why->failure) + ": " + why->message;
    }
    gpusync_error failure_;
};

inline void check(const char *call, gpusync_result result, const gpusync_error *why = nullptr)
{
    if (result) throw error(call, result, why);
}

/* The library may be compiled elsewhere, with another header: it would read or write fields that we do not have. */
inline void check_library()
{
#define GPUSYNC_SIZE(name) sizeof(name),
    const size_t ours[] = {GPUSYNC_STRUCTS(GPUSYNC_SIZE)};
#undef GPUSYNC_SIZE
    size_t theirs[sizeof ours / sizeof ours[0]] = {};
    gpusync_struct_sizes(theirs, sizeof ours / sizeof ours[0]);
    if (gpusync_version() / 100 != GPUSYNC_VERSION / 100 || std::memcmp(ours, theirs, sizeof ours))
        throw std::logic_error("the library is of another gpusync.h than this program");
}

/* Nanoseconds for gpusync. A limit of 292 years and more is none: hours::max() is too much for nanoseconds. */
template <class Rep, class Period> uint64_t nanoseconds(std::chrono::duration<Rep, Period> limit)
{
    const double seconds = std::chrono::duration<double>(limit).count();
    if (!(seconds > 0)) return 0;
    if (seconds >= 9.2e9) return GPUSYNC_FOREVER;
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(limit).count());
}

/* -- destroying --------------------------------------------------------------------------------------------------- */

/* WOULD_DEADLOCK: this is a callback. */
struct destroy {
    bool manual = false; /* of a device: its callbacks run in gpusync_dispatch */

    void operator()(gpusync_queue *queue) const
    {
        if (gpusync_queue_destroy(queue)) gpusync_queue_destroy_later(queue, nullptr, nullptr);
    }
    void operator()(gpusync_timeline *timeline) const
    {
        if (gpusync_timeline_destroy(timeline)) gpusync_timeline_destroy_later(timeline, nullptr, nullptr);
    }
    /* It is in use still where a queue was let go in a callback: MANUAL ones need dispatching until that is gone. */
    void operator()(gpusync_device *device) const
    {
        gpusync_result result = gpusync_device_destroy(device);
        while (manual && result == GPUSYNC_ERROR_IN_USE) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
            gpusync_dispatch(device, SIZE_MAX, nullptr);
            result = gpusync_device_destroy(device);
        }
        if (result) gpusync_device_destroy_later(device, nullptr, nullptr);
    }
};

/* -- waiting without a thread ------------------------------------------------------------------------------------- */

/* Has done(gpusync_result, const gpusync_error *) called once when the point has ended. */
template <class Done> void when_done(gpusync_point point, Done done)
{
    struct callback {
        static void run(void *user, gpusync_result result, const gpusync_error *why) noexcept
        {
            std::unique_ptr<Done>(static_cast<Done *>(user))->operator()(result, why);
        }
    };
    std::unique_ptr<Done> kept(new Done(std::move(done)));
    check("gpusync_on_done", gpusync_on_done(point, callback::run, kept.get()));
    kept.release(); /* it may be gone already */
}

/* Ready when the point has ended; throws how, where it did not end well. */
inline std::future<void> done(gpusync_point point)
{
    struct keep {
        std::promise<void> promise;
        void operator()(gpusync_result result, const gpusync_error *why)
        {
            if (result) promise.set_exception(std::make_exception_ptr(error("gpusync_on_done", result, why)));
            else promise.set_value();
        }
    };
    keep promised;
    std::future<void> future = promised.promise.get_future();
    when_done(point, std::move(promised));
    return future;
}

#ifdef GPUSYNC_COROUTINES
/* co_await ended(point): the coroutine goes on in the callback. It may be destroyed while it waits, where callbacks run
   (MANUAL: on the thread that dispatches) or when its queue is gone: elsewhere it might just be going on. */
class ended
{
public:
    explicit ended(gpusync_point point) : point_(point) {}
    ended(const ended &) = delete;
    ended &operator=(const ended &) = delete;
    ~ended()
    {
        if (state_ && state_->over.exchange(true)) delete state_;
    }
    bool await_ready() const noexcept
    {
        return !point_.timeline && gpusync_poll(point_.queue, point_.ticket) == GPUSYNC_OK;
    }
    bool await_suspend(std::coroutine_handle<> waiting)
    {
        std::unique_ptr<state> made(new state);
        made->waiting = waiting;
        state_ = made.get(); /* before the call: behind it the coroutine may have gone on, and this object with it */
        gpusync_result result = gpusync_on_done(point_, told, made.get());
        if (!result) return made.release(), true;
        state_ = nullptr;
        refused_ = result;
        return false;
    }
    void await_resume()
    {
        check("gpusync_on_done", refused_);
        if (state_) check("gpusync_on_done", state_->result, &state_->why);
    }

private:
    struct state {
        std::atomic<bool> over{false}; /* set by the callback and by ~ended: the second of them deletes */
        std::coroutine_handle<> waiting;
        gpusync_result result = GPUSYNC_OK;
        gpusync_error why = {};
    };
    static void told(void *user, gpusync_result result, const gpusync_error *why) noexcept
    {
        state *self = static_cast<state *>(user);
        self->result = result;
        if (why) self->why = *why;
        if (self->over.exchange(true)) delete self; /* the coroutine is gone */
        else self->waiting.resume();
    }
    gpusync_point point_;
    gpusync_result refused_ = GPUSYNC_OK;
    state *state_ = nullptr;
};
#endif

/* -- objects ------------------------------------------------------------------------------------------------------ */

class device
{
public:
    explicit device(const gpusync_device_desc *desc = nullptr)
    {
        gpusync_device *made = nullptr;
        check_library();
        check("gpusync_device_create", gpusync_device_create(desc, &made));
        destroy how;
        how.manual = desc && desc->callback_mode == GPUSYNC_CALLBACKS_MANUAL;
        device_ = std::unique_ptr<gpusync_device, destroy>(made, how);
    }
    gpusync_device *get() const noexcept { return device_.get(); }
    void *metal() const noexcept { return gpusync_device_metal(get()); }
    bool is_lost() const noexcept { return gpusync_device_is_lost(get()); }
    /* MANUAL: runs the callbacks that are due. */
    void dispatch() { check("gpusync_dispatch", gpusync_dispatch(get(), SIZE_MAX, nullptr)); }

private:
    std::unique_ptr<gpusync_device, destroy> device_;
};

class timeline
{
public:
    explicit timeline(const device &on, const gpusync_timeline_desc *desc = nullptr)
    {
        gpusync_timeline *made = nullptr;
        check("gpusync_timeline_create", gpusync_timeline_create(on.get(), desc, &made));
        timeline_.reset(made);
    }
    gpusync_timeline *get() const noexcept { return timeline_.get(); }
    gpusync_point at(uint64_t value) const { return gpusync_at_value(get(), value); }
    uint64_t value() const
    {
        uint64_t value = 0;
        check("gpusync_timeline_query", gpusync_timeline_query(get(), &value));
        return value;
    }
    void signal(uint64_t value) { check("gpusync_timeline_signal", gpusync_timeline_signal(get(), value)); }
    void fail(const gpusync_error *why = nullptr) { check("gpusync_timeline_fail", gpusync_timeline_fail(get(), why)); }
    template <class Rep, class Period> void wait(uint64_t value, std::chrono::duration<Rep, Period> limit)
    {
        gpusync_error why = {};
        gpusync_wait_options options = {};
        options.error = &why;
        check("gpusync_timeline_wait", gpusync_timeline_wait(get(), value, nanoseconds(limit), &options), &why);
    }
    std::future<void> done(uint64_t value) const { return gpu::done(at(value)); }
#ifdef GPUSYNC_COROUTINES
    gpu::ended ended(uint64_t value) const { return gpu::ended(at(value)); }
#endif

private:
    std::unique_ptr<gpusync_timeline, destroy> timeline_;
};

class queue
{
public:
    explicit queue(const device &on, const gpusync_queue_desc *desc = nullptr)
    {
        gpusync_queue *made = nullptr;
        check("gpusync_queue_create", gpusync_queue_create(on.get(), desc, &made));
        queue_.reset(made);
    }
    gpusync_queue *get() const noexcept { return queue_.get(); }
    void *metal() const noexcept { return gpusync_queue_metal(get()); }
    gpusync_point at(gpusync_ticket ticket) const { return gpusync_at_ticket(get(), ticket); }

    /* A buffer that was made elsewhere, on the same MTLCommandQueue. */
    gpusync_ticket commit(void *buffer)
    {
        gpusync_ticket ticket = GPUSYNC_NO_TICKET;
        check("gpusync_commit", gpusync_commit(get(), buffer, &ticket));
        return ticket;
    }
    template <class Rep, class Period> void wait(gpusync_ticket ticket, std::chrono::duration<Rep, Period> limit)
    {
        wait_ns(ticket, nanoseconds(limit));
    }
    void wait(gpusync_ticket ticket = GPUSYNC_EVERYTHING) { wait_ns(ticket, GPUSYNC_FOREVER); }
    /* Has the ticket ended, by Metal's own status? */
    bool poll(gpusync_ticket ticket)
    {
        const gpusync_result result = gpusync_poll(get(), ticket);
        if (result != GPUSYNC_NOT_READY) check("gpusync_poll", result);
        return result == GPUSYNC_OK;
    }
    bool is_done(gpusync_ticket ticket) const noexcept { return gpusync_is_done(get(), ticket); }
    bool is_idle() const noexcept { return gpusync_is_idle(get()); }
    std::future<void> done(gpusync_ticket ticket) const { return gpu::done(at(ticket)); }
#ifdef GPUSYNC_COROUTINES
    gpu::ended ended(gpusync_ticket ticket) const { return gpu::ended(at(ticket)); }
#endif
    /* What failed and the cursor has not seen: 0 at first; GPUSYNC_FROM_NOW: what fails after this call. */
    std::vector<gpusync_error> failures(uint64_t &cursor) const
    {
        std::vector<gpusync_error> all;
        gpusync_error one = {};
        while (gpusync_next_error(get(), &cursor, &one) == GPUSYNC_OK) all.push_back(one);
        return all;
    }
    /* With sticky_failure: takes new work again. Failures of earlier work are recorded, and stick no more. */
    void clear_failure() { check("gpusync_queue_clear_failure", gpusync_queue_clear_failure(get())); }
    /* For a GPU that hangs. The GPU goes on with the work in flight, and gpusync does not tell its end:
       see gpusync_queue_destroy_now before you use the memory of that work again. */
    void destroy_now()
    {
        check("gpusync_queue_destroy_now", gpusync_queue_destroy_now(get()));
        queue_.release();
    }

private:
    void wait_ns(gpusync_ticket ticket, uint64_t limit)
    {
        gpusync_error why = {};
        gpusync_wait_options options = {};
        options.error = &why;
        check("gpusync_wait", gpusync_wait_ex(get(), ticket, limit, &options), &why);
    }
    std::unique_ptr<gpusync_queue, destroy> queue_;
};

/* Not committed yet. It is given back where it goes without a commit, which has to be before its queue goes. */
class command_buffer
{
public:
    explicit command_buffer(const queue &on, const char *label = nullptr) : queue_(on.get())
    {
        make(label, nullptr);
    }
    template <class Rep, class Period>
    command_buffer(const queue &on, std::chrono::duration<Rep, Period> limit, const char *label = nullptr)
        : queue_(on.get())
    {
        const uint64_t ns = nanoseconds(limit);
        make(label, &ns);
    }
    command_buffer(command_buffer &&other) noexcept : queue_(other.queue_), buffer_(other.buffer_)
    {
        other.buffer_ = nullptr;
    }
    command_buffer &operator=(command_buffer &&other) noexcept
    {
        std::swap(queue_, other.queue_);
        std::swap(buffer_, other.buffer_);
        return *this;
    }
    ~command_buffer()
    {
        if (buffer_) gpusync_command_buffer_discard(queue_, buffer_);
    }
    void *get() const noexcept { return buffer_; }
    /* Instead of [buffer commit]. After an error the buffer is as before. */
    gpusync_ticket commit()
    {
        gpusync_ticket ticket = GPUSYNC_NO_TICKET;
        check("gpusync_commit", gpusync_commit(queue_, buffer_, &ticket));
        buffer_ = nullptr;
        return ticket;
    }
    /* For a value the GPU waits. For a ticket the host does: the buffer is held until the ticket has ended. */
    void encode_wait(gpusync_point point) { check("gpusync_encode_wait", gpusync_encode_wait(queue_, buffer_, point)); }
    void encode_signal(gpusync_point point)
    {
        check("gpusync_encode_signal", gpusync_encode_signal(queue_, buffer_, point));
    }

private:
    void make(const char *label, const uint64_t *limit)
    {
        gpusync_command_buffer_desc desc = {};
        desc.label = label;
        desc.timeout_ns = limit;
        check("gpusync_command_buffer", gpusync_command_buffer(queue_, &desc, &buffer_));
    }
    gpusync_queue *queue_;
    void *buffer_ = nullptr;
};
} // namespace gpu

#endif
