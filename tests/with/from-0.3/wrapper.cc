// A wrapper for gpusync 0.3, in C++20: examples/from-0.3.sh changes a part, and tells the rest. by_hand.diff does that.
#define GPUSYNC_IMPLEMENTATION
#include "gpusync.h"
#include <cstdio>
#include <cstdlib>
#include <string>

namespace wrapper
{
struct options {
    unsigned frames = 3;
    bool sleeps = false;
};

class queue
{
public:
    explicit queue(const options &chosen, const char *label = "wrapped") : frames_(chosen.frames)
    {
        const gpusync_device_desc device{nullptr, nullptr, nullptr, nullptr, GPUSYNC_WAIT_DEFAULT, log, this,
                                         GPUSYNC_CALLBACKS_QUEUED, nullptr, nullptr, nullptr, nullptr};
        const gpusync_queue_desc desc = {nullptr, label, 0, 0, 0, nullptr, GPUSYNC_WAIT_DEFAULT, false, false};
        const gpusync_queue_desc asleep = {.label = label, .max_in_flight = chosen.frames, .wait_mode = GPUSYNC_WAIT_HANDLER,
                                           .sticky_failure = true};
        const gpusync_timeline_desc steps{1, label, nullptr, true};
        check(gpusync_device_create(&device, &device_));
        check(gpusync_queue_create(device_, chosen.sleeps ? &asleep : &desc, &queue_));
        check(gpusync_timeline_create(device_, &steps, &steps_));
    }
    queue(const queue &) = delete;
    queue &operator=(const queue &) = delete;
    ~queue()
    {
        check(gpusync_timeline_destroy(steps_));
        if (give_up_) gpusync_queue_destroy_now(queue_);
        else check(gpusync_queue_destroy(queue_));
        check(gpusync_device_destroy(device_));
    }

    gpusync_ticket run(const std::string &label)
    {
        uint64_t limit = 1000000000;
        gpusync_command_buffer_desc desc{&limit, label.c_str(), false, 0, nullptr};
        gpusync_ticket ticket;
        void *buffer;
        check(gpusync_throttle(queue_, frames_, limit));
        check(gpusync_command_buffer(queue_, &desc, &buffer));
        check(gpusync_commit(queue_, buffer, &ticket));
        return ticket;
    }
    gpusync_result wait(gpusync_ticket ticket, uint64_t limit = GPUSYNC_FOREVER)
    {
        const auto options = gpusync_wait_options{nullptr, GPUSYNC_WAIT_DEFAULT, &error_, true, false};
        return gpusync_wait_ex(queue_, ticket, limit, &options);
    }
    gpusync_result wait_blocked(gpusync_ticket ticket)
    {
        const gpusync_wait_options options = {.spin = nullptr, .mode = GPUSYNC_WAIT_BLOCKING, .error = &error_};
        return gpusync_wait_ex(queue_, ticket, GPUSYNC_FOREVER, &options);
    }
    gpusync_result wait_asleep(gpusync_ticket ticket)
    {
        const gpusync_wait_options options{nullptr, GPUSYNC_WAIT_HANDLER, &error_, true, false};
        return gpusync_wait_ex(queue_, ticket, GPUSYNC_FOREVER, &options);
    }
    bool idle(uint64_t limit = 0)
    {
        gpusync_wait_options options = gpusync_wait_options();
        options.mode = GPUSYNC_WAIT_BLOCKING;
        return gpusync_device_wait(device_, limit) == GPUSYNC_OK &&
               gpusync_device_wait_ex(device_, limit, &options) == GPUSYNC_OK;
    }
    void give_up() { give_up_ = true; }

private:
    static void log(void *, gpusync_log_level, const char *text) { std::fprintf(stderr, "%s\n", text); }
    static void check(gpusync_result result)
    {
        if (result != GPUSYNC_OK) std::printf("%s\n", gpusync_result_string(result)), std::exit(1);
    }
    unsigned frames_;
    bool give_up_ = false;
    gpusync_error error_ = {};
    gpusync_device *device_ = nullptr;
    gpusync_queue *queue_ = nullptr;
    gpusync_timeline *steps_ = nullptr;
};
} // namespace wrapper

int main(int argc, char **)
{
    unsigned ended = 0;
    for (bool sleeps : {false, true}) {
        wrapper::queue queue({.frames = 2, .sleeps = sleeps});
        gpusync_ticket last = 0;
        for (int i = 0; i < 10; i++) last = queue.run("work");
        ended += queue.wait(last) == GPUSYNC_OK && queue.wait_blocked(last) == GPUSYNC_OK;
        ended += queue.wait_asleep(last) == GPUSYNC_OK && queue.idle();
        if (argc > 1) queue.give_up();
    }
    std::printf("%u of 4\n", ended);
    return ended != 4;
}
