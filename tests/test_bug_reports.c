/* test_bug_reports.c - bug reports of other projects that synchronise with Metal, Vulkan or CUDA, as tests of gpusync

   A line for each: what went wrong there, and the test that holds what gpusync does about it: program and name, without
   test_ and cut short. "here": the test of this file whose comment names the report.

   graphics:
     vkd3d-proton#90              two queues on one, and a wait before its signal held: S3_a_wait_before_its_signal
     vkd3d-proton#90              what shares no memory ran before its wait       submit: R36_strict_work_waits
     vkd3d-proton#3286            a fence is set to a lower number                none: a timeline only rises (S7)
     dxvk#5844                    two APIs signal a fence with the same number    held: R33_a_signal_that_does_not
     o3de#18286                   a fence's number was read after the reset       here
     Vulkan-Samples#1525          the same                                        here
     filament#2380                a fence's status: unsubmitted; in a callback    here; callbacks: R20_a_callback_may_do
     ValidationLayers#5306        a waiter destroys under the signaller's call    destroy: R20_a_timeline_goes_before
     MoltenVK#809                 the same, of a queue                            destroy: R20_a_queue_goes_before
     RendererEngine#738           memory was stamped with a guessed number        callbacks: T15_a_refused_release
     wgpu#9511                    the device is lost, a callback never comes      loss: T6_destroy_gives_up_after
     rox#118                      the same, a wait loops                          loss: T6_waits_that_sleep_end
     WebKit#24162, gpuweb#3937    onSubmittedWorkDone: too early, or never        here
     gpuweb                       a wait for all, while others submit without end here
     WebKit#72229                 the loop has quit: what drops references?       callbacks: T15_an_object_is_released
     bgfx#3707, bgfx#2154         frames that only flush used up all slots        room: R37_behind_open_buffers
     electron#49608               recordings were inserted in another order       held: R33_a_signal_that_does_not
     WebKit#32642                 wrappers keep command buffers                   commit: R10_foreign_buffers
     slang-rhi#640                an event was up before its copy was over        timelines: S7_a_value_is_reached_when
     mtld3d#490                   the last flush failed, "idle" was told          here
     LichtFeld-Studio#1733        a semaphore was waited for twice                here
     MoltenVK#803, bgfx#3734      the window is gone, and its handler never runs  destroy: R19_held_work
     mtld3d#388                   one registry of numbers for two queues          here
     MoltenVK#2213                the main thread waits for its own callback      callbacks: R25_a_destroy_on_the_disp
     sokol#762, sokol#504         a drawable is kept too long                     ports: godot_a_frame
     hrx-system#559               a value waited for the work of the next one     here
     InstantReplay#102            the engine commits what a plug-in encodes into  here; report: S9_a_buffer_that_the
     vello#1246, RBDOOM-3#1091    a frame of more buffers than the queue has room  room: R37_behind_open_buffers
     wgpu#9414                    a resolve, made before the samples were there   callbacks: R20_a_callback_may_do
     obs-studio#13664, mtld3d#626 a read-back waited for the presentation         none: each has its ticket
   compute:
     compute-runtime#869          host functions in the order of a stream         here
     chipStar#1090, HIP#1205      the same                                        here
     pocl#1430                    a callback failed an event, nobody was told     here
     pocl#1431, rocm-systems#1345 an event is released in its own callback        destroy: R22_a_callback_may_let
     numba-cuda#317, LMCache#2952 a lock is held in a wait, a callback needs it   here
     xla#6318                     the same, in a wait for room                    here
     tt-xla#4236                  the same, in a call that notifies               none: >>threads forbids it
     cub#156                      a block was free before its event was recorded  here
     rmm#649                      a destroyed stream's handle came back           destroy: R22_a_queue_whose_gpu_hangs
     rmm#2490                     a block went through three streams              here
     iree#17073                   the work had ended, its value was not there     here
     tinygrad#8242                a late thread was wrongly told of a timeout     wait: S5_what_has_ended_by
     AMDGPU.jl#299                a task was woken that slept for something else  fibers: R23_a_waiter_lives_until
     pytorch#97066                the watchdog's own clean-up hung                destroy: R21_abandon_ends_all
     rust-birdnet-onnx#28         the same                                        destroy: R20_abandon_ends_waits
     llama.cpp#18945              an upload was never submitted                   wait: F16_an_open_buffer
     OpenCL-CTS#2087              a queue was released that others depended on    here
     chipStar#191                 a callback waits for another, destroy for both  callbacks: R25_a_destroy_runs_them
     mlx#4506                     a thread's streams went with it                 here
     mlx                          events are signalled in completed handlers      here
     genesis-world#2760           two libraries share a queue                     commit: T2_a_marker_tells
     genesis-world#2760           ... and one fills it with open buffers          commit: R10_in_a_handler
     Metal.jl#412                 a completed handler needs what the waiter has   wait: R28_F15_with_handlers
     cutorch#222                  one event for streams, and the last one counts  held: R33_which_higher_signal_goes
     LMCache#3236                 an exported event was used again                timelines: S7_an_event_that_other_code
     LMCache#4516                 the peer that signals has died                  timelines: R13_the_own_event
     LMCache#4516                 ... or comes back when all is gone              found: R22_a_listener_whose_value_co
     AMDGPU.jl#606                a wait for the device kept others out           here
     rmm#2367, torchcodec#1441    exit with work in flight                        processes: a_process_leaves_with_work
     CUDA.jl#2216                 finalizers in any order                         here
     iree#17213, xla#283          a wait for several missed a signal              turns: R23_a_sleeper_with_two */
#include "kit.h"

/* -- fences and values -------------------------------------------------------------------------------------------- */

/* o3de#18286, Vulkan-Samples#1525: a thread read a fence's number after another one had reset the fence, and waited for
   a use that never came. Here a wait for an older use ends with a later one. One for a use that is not submitted, as in
   filament#2380, has a limit. */
on_both_kinds_with(test_S7_a_fence_that_is_reset_ends_the_waits_for_its_older_uses, .timelines = 1,
                   .timeline = {.order_only = true})
{
    job older = {0};
    job_value(&older, s->t[0], 1, GPUSYNC_FOREVER);
    await_parked(1);
    commit(s->q[0], signalling(s->q[0], at(s->t[0], 2)));
    finish_all(s);
    assert_ok(job_end(&older));
    assert_result(gpusync_timeline_wait(s->t[0], 3, 0, NULL), GPUSYNC_TIMEOUT);
    signal_value(s->t[0], 3);
    assert_ok(gpusync_timeline_wait(s->t[0], 3, 0, NULL));
}

/* LichtFeld-Studio#1733: a frame waited once more for a semaphore that the frame before had consumed. Here a value is
   waited for as often as one likes, also by a frame that is dropped, before it comes and after that. */
on_stage_with(test_S7_any_number_of_frames_wait_for_one_value, .queues = 2, .timelines = 1)
{
    for (unsigned i = 0; i < 4; i++) {
        void *frame = waiting(s->q[0], at(s->t[0], 5));
        encode_wait(s->q[0], frame, at(s->t[0], 5));
        encode_wait(s->q[0], frame, at(s->t[0], 3));
        if (i == 1) assert_ok(gpusync_command_buffer_discard(s->q[0], frame));
        else commit(s->q[0], frame);
        if (i == 2) commit(s->q[1], signalling(s->q[1], at(s->t[0], 5)));
        if (i == 2) finish_all(s);
    }
    finish_all(s);
    for (gpusync_ticket ticket = 1; ticket <= 3; ticket++) assert_ok(gpusync_poll(s->q[0], ticket, NULL));
}

/* hrx-system#559: a wait for a value did not end, for the work of the next value waited for the host. Here held work
   keeps no lower value back, whatever kind of timeline it is. */
on_all_kinds_with(test_S7_a_value_is_reached_while_the_next_one_waits_for_the_host, .queues = 2, .timelines = 1)
{
    for (unsigned kind = 0; kind < 3; kind++) {
        const gpusync_timeline_desc desc = {.signalled_by_others = kind == 1, .order_only = kind == 2};
        gpusync_timeline *t = timeline_from(s->device, &desc);
        for (unsigned i = 0; i < 2; i++) {
            void *buffer = waiting(s->q[i], at(s->t[0], 2 * kind + i + 1));
            encode_signal(s->q[i], buffer, at(t, i + 1));
            commit(s->q[i], buffer);
        }
        for (unsigned i = 1; i <= 2; i++) {
            signal_value(s->t[0], 2 * kind + i);
            finish_all(s);
            assert_ok(gpusync_timeline_wait(t, i, 0, NULL));
            assert_int_equal(value_of(t), i);
        }
        assert_ok(gpusync_timeline_destroy(t));
    }
}

/* iree#17073: the wait for the work returned, and the semaphore did not have the value yet. Here the value is there
   when any call tells the end, also when the handler has not run. */
on_stage_with(test_S7_the_value_is_there_when_the_end_of_its_work_is_told, .timelines = 1)
{
    const gpusync_timeline_desc desc = {.order_only = true};
    assert_ok(gpusync_timeline_create(s->device, &desc, &s->t[1]));
    for (unsigned i = 1; i <= 3; i++) {
        void *buffer = signalling(s->q[0], at(s->t[0], i));
        encode_signal(s->q[0], buffer, at(s->t[1], i));
        gpusync_point point = ticket_at(s->q[0], commit(s->q[0], buffer));
        softmetal_complete(buffer);
        if (i == 1) assert_ok(gpusync_poll(point.queue, point.ticket, NULL));
        if (i == 2) assert_ok(gpusync_wait(point.queue, point.ticket, 0, NULL));
        if (i == 3) assert_ok(gpusync_wait_many(&point, 1, GPUSYNC_WAIT_ANY, 0, NULL, NULL));
        assert_int_equal(value_of(s->t[0]), i);
        assert_int_equal(value_of(s->t[1]), i);
        softmetal_finish(buffer);
    }
}

/* cub#156: a block was in the free list before the event that guarded it was recorded. Here an open buffer has no
   ticket, and the queue is idle; the value that the buffer is to signal is a stamp from its encoding on. */
on_both_kinds_with(test_S2_memory_of_an_open_buffer_is_guarded_by_the_value_that_it_is_to_signal, .timelines = 1)
{
    void *open = signalling(s->q[0], at(s->t[0], 1));
    assert_true(gpusync_is_done(s->q[0], GPUSYNC_EVERYTHING));
    assert_false(gpusync_is_done(s->q[0], 1));
    assert_result(gpusync_timeline_wait(s->t[0], 1, 0, NULL), GPUSYNC_TIMEOUT);
    commit(s->q[0], open);
    assert_result(gpusync_timeline_wait(s->t[0], 1, 0, NULL), GPUSYNC_TIMEOUT);
    finish_all(s);
    assert_ok(gpusync_timeline_wait(s->t[0], 1, 0, NULL));
}

/* -- several queues ----------------------------------------------------------------------------------------------- */

/* mtld3d#388: one registry kept the number of the last use of each page, for two queues, and asked the wrong one. Here
   each queue counts for itself, and a point names its queue. */
on_all_kinds_with(test_S1_a_ticket_means_what_its_queue_says, .queues = 2)
{
    const gpusync_point points[] = {ticket_at(s->q[0], commit_new(s->q[0])), ticket_at(s->q[1], commit_new(s->q[1]))};
    size_t which = 2;
    assert_int_equal(points[0].ticket, points[1].ticket);
    assert_true(finish_next(s->q[1]));
    assert_true(gpusync_is_done(s->q[1], points[0].ticket));
    assert_false(gpusync_is_done(s->q[0], points[0].ticket));
    assert_ok(gpusync_wait_many(points, 2, GPUSYNC_WAIT_ANY, 0, NULL, &which));
    assert_int_equal(which, 1);
    assert_result(gpusync_wait_many(points, 2, GPUSYNC_WAIT_ALL, 0, NULL, &which), GPUSYNC_TIMEOUT);
    assert_true(finish_next(s->q[0]));
    assert_ok(gpusync_wait_many(points, 2, GPUSYNC_WAIT_ALL, 0, NULL, &which));
}

/* rmm#2490: a block went from stream to stream; the third waited for the second alone, which had only waited. Here the
   last ticket of the second covers its waits. */
on_all_kinds_with(test_S3_who_waits_for_a_stream_that_waits_waits_for_both, .queues = 3)
{
    enum { A_BUFFER, NOTHING, THE_HOST, BARRIERS };
    for (unsigned barrier = 0; barrier < BARRIERS; barrier++) {
        gpusync_point first = ticket_at(s->q[0], commit_new(s->q[0]));
        void *last = new_buffer(s->q[2]);
        if (barrier == A_BUFFER) commit(s->q[1], waiting(s->q[1], first));
        else SUBMIT(s->q[1], WAITS(first));
        gpusync_ticket second = commit_new(s->q[1]);
        encode_wait(s->q[2], last, ticket_at(s->q[1], second));
        gpusync_ticket third = commit(s->q[2], last);
        while (finish_next(s->q[1]) || finish_next(s->q[2])) {}
        assert_false(is_sent(last));
        assert_false(gpusync_is_done(s->q[1], second));
        assert_result(gpusync_poll(s->q[1], second, NULL), GPUSYNC_NOT_READY);
        finish_all(s);
        assert_ok(gpusync_poll(s->q[2], third, NULL));
    }
}

/* AMDGPU.jl#606: a device-wide wait held the lock of the list of streams, and no thread could launch. gpuweb asks
   whether such a wait ends while others submit. Here queues come and go beside it, and later work is not its. */
on_both_kinds(test_S5_beside_a_wait_for_the_device_queues_come_and_go)
{
    job all = {0};
    commit_new(s->q[0]);
    job_device(&all, s->device, GPUSYNC_FOREVER);
    await_parked(1);
    for (unsigned i = 0; i < 3; i++) {
        gpusync_timeline *t = new_timeline(s->device);
        gpusync_queue *q = queue_from(s->device, NULL);
        commit(q, signalling(q, at(t, 1)));
        assert_true(finish_next(q));
        assert_ok(gpusync_timeline_wait(t, 1, 0, NULL));
        assert_result(gpusync_device_wait(s->device, 0, NULL), GPUSYNC_TIMEOUT);
        assert_ok(gpusync_queue_destroy(q));
        assert_ok(gpusync_timeline_destroy(t));
    }
    gpusync_ticket later = commit_new(s->q[0]);
    assert_false(job_is_over(&all));
    assert_true(finish_next(s->q[0]));
    assert_ok(job_end(&all));
    assert_false(gpusync_is_done(s->q[0], later));
}

/* -- callbacks ---------------------------------------------------------------------------------------------------- */

typedef struct host_function {
    gpusync_timeline *timeline;
    uint64_t value;
    note n;
} host_function;

static void run_host_function(void *user, gpusync_result result, const gpusync_error *error)
{
    host_function *f = (host_function *)user;
    must(gpusync_timeline_signal(f->timeline, f->value) == GPUSYNC_OK, "a host function's signal");
    remember(&f->n, result, error);
}

/* compute-runtime#869, chipStar#1090, HIP#1205: host functions in a stream, each between two kernels, were skipped, or
   blocked the stream. Here a callback signals what the next kernel waits for. */
static void play_host_functions(stage *s)
{
    host_function f[8];
    memset(f, 0, sizeof f);
    for (unsigned i = 0; i < LENGTH(f); i++) {
        void *kernel = i ? waiting(s->q[0], at(s->t[0], i)) : new_buffer(s->q[0]);
        f[i].timeline = s->t[0];
        f[i].value = i + 1;
        assert_ok(gpusync_on_done(ticket_at(s->q[0], commit(s->q[0], kernel)), run_host_function, &f[i]));
    }
    settle(s);
    for (unsigned i = 0; i < LENGTH(f); i++) {
        assert_noted(&f[i].n, GPUSYNC_OK);
        assert_int_equal(f[i].n.order, i + 1);
    }
    assert_int_equal(value_of(s->t[0]), LENGTH(f));
    assert_true(gpusync_is_done(s->q[0], GPUSYNC_EVERYTHING));
}

on_both_kinds_with(test_S10_host_functions_run_between_the_kernels_of_a_stream, .timelines = 1)
{
    play_host_functions(s);
}

on_both_kinds_with(test_S10_host_functions_by_hand_run_between_the_kernels_of_a_stream, .timelines = 1,
                   .device = {.callback_mode = GPUSYNC_CALLBACKS_MANUAL})
{
    play_host_functions(s);
}

static void fail_the_event(void *user, gpusync_result result, const gpusync_error *error)
{
    const gpusync_error reason = {.result = GPUSYNC_ERROR_OUT_OF_MEMORY, .message = "out of resources"};
    must(gpusync_timeline_fail((gpusync_timeline *)user, &reason) == GPUSYNC_OK, "a failure in a callback");
}

/* pocl#1430: a callback gave its user event an error, and what waited for that event was never told. Here it reaches
   a sleeper, a callback, and work that is held, with its reason. */
on_both_kinds_with(test_S8_an_event_that_a_callback_fails_fails_all_that_wait_for_it, .timelines = 2)
{
    note notes[2];
    job sleeper = {0};
    memset(notes, 0, sizeof notes);
    assert_ok(gpusync_on_done(at(s->t[0], 1), fail_the_event, s->t[1]));
    on_done(at(s->t[1], 1), &notes[0]);
    on_done(ticket_at(s->q[0], commit(s->q[0], waiting(s->q[0], at(s->t[1], 1)))), &notes[1]);
    job_value(&sleeper, s->t[1], 1, GPUSYNC_FOREVER);
    await_parked(1);
    signal_value(s->t[0], 1);
    assert_result(job_end(&sleeper), GPUSYNC_ERROR_OUT_OF_MEMORY);
    for (unsigned i = 0; i < 2; i++) {
        assert_noted(&notes[i], GPUSYNC_ERROR_OUT_OF_MEMORY);
        assert_string_equal(notes[i].error.message, "out of resources");
    }
    assert_false(notes[1].error.ran);
}

static pthread_mutex_t interpreter = PTHREAD_MUTEX_INITIALIZER;

static void callback_in_python(void *user, gpusync_result result, const gpusync_error *error)
{
    pthread_mutex_lock(&interpreter);
    remember(user, result, error);
    pthread_mutex_unlock(&interpreter);
}

/* numba-cuda#317, LMCache#2952, xla#6318: a thread that waited for the GPU had the lock (the interpreter's, a pool's)
   that a callback of the same GPU needed. Here no wait needs a callback to run. */
on_stage_with(test_S10_a_wait_may_hold_the_lock_that_callbacks_need, .timelines = 1,
              .queue = {.max_command_buffer_count = 1})
{
    const gpusync_point value = at(s->t[0], 1);
    note called = {0};
    job room = {0};
    pthread_mutex_lock(&interpreter);
    gpusync_point first = ticket_at(s->q[0], commit(s->q[0], signalling(s->q[0], value)));
    assert_ok(gpusync_on_done(first, callback_in_python, &called));
    job_buffer(&room, s->q[0], GPUSYNC_FOREVER);
    await_parked(1);
    finish_all(s);
    assert_ok(job_end(&room));
    gpusync_ticket second = commit(s->q[0], room.buffer);
    finish_all(s);
    assert_ok(gpusync_wait(s->q[0], second, GPUSYNC_FOREVER, NULL));
    assert_ok(gpusync_wait_many(&value, 1, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER, NULL, NULL));
    assert_ok(gpusync_device_wait(s->device, GPUSYNC_FOREVER, NULL));
    assert_int_equal(GET(&called.calls), 0);
    pthread_mutex_unlock(&interpreter);
    assert_noted(&called, GPUSYNC_OK);
}

/* WebKit#24162, gpuweb#3937: onSubmittedWorkDone was called before the work was done, or never where nothing had been
   submitted. Here the last ticket is that of all ordered work, and no work is done. */
on_both_kinds_with(test_S3_the_callback_of_the_last_ticket_tells_that_all_so_far_is_done, .timelines = 1)
{
    gpusync_stats stats;
    note none = {0}, all = {0};
    on_done(ticket_at(s->q[0], GPUSYNC_NO_TICKET), &none);
    assert_noted(&none, GPUSYNC_OK);
    commit(s->q[0], waiting(s->q[0], at(s->t[0], 1)));
    gpusync_ticket last = commit_new(s->q[0]);
    assert_ok(gpusync_device_get_stats(s->device, s->q[0], &stats));
    assert_int_equal(stats.commits, last);
    on_done(ticket_at(s->q[0], (gpusync_ticket)stats.commits), &all);
    gpusync_ticket later = commit_new(s->q[0]);
    finish_all(s);
    assert_int_equal(calls_of(&all), 0);
    signal_value(s->t[0], 1);
    assert_true(finish_next(s->q[0]));
    assert_int_equal(calls_of(&all), 0);
    assert_true(finish_next(s->q[0]));
    assert_noted(&all, GPUSYNC_OK);
    assert_false(gpusync_is_done(s->q[0], later));
}

/* A completed handler of the program's: a block. */
extern void *_NSConcreteGlobalBlock[];
static const struct {
    unsigned long reserved, size;
    const char *signature;
} handler_descriptor = {0, 5 * sizeof(void *), "v16@?0@8"};
typedef struct handler_block {
    void *isa;
    int flags, reserved;
    void (*invoke)(struct handler_block *self, void *command_buffer);
    const void *descriptor;
    stage *s;
} handler_block;

static unsigned handler_calls;
static note handler_note;
static void *open_buffer;

static void call_gpusync(handler_block *self, void *command_buffer)
{
    stage *s = self->s;
    must(!gpusync_timeline_signal(s->t[0], 1), "a signal in a handler"); /* sends held work of this queue */
    must(!gpusync_on_done(at(s->t[1], 1), remember, &handler_note), "a callback in a handler");
    must(!gpusync_command_buffer_discard(s->q[0], open_buffer), "a discard in a handler");
    must(!gpusync_queue_cancel_held(s->q[1], GPUSYNC_EVERYTHING), "a cancel in a handler");
    must(!gpusync_timeline_fail(s->t[1], NULL), "a failure in a handler");
    handler_calls++;
}

/* mlx signals its events by hand, in the completed handlers of its command buffers. Here a handler of the program's may
   call all that does not wait or destroy. */
on_stage_with(test_S10_a_handler_of_the_programs_may_signal_fail_cancel_and_discard, .queues = 2, .timelines = 3)
{
    static handler_block block;
    block = (handler_block){_NSConcreteGlobalBlock, 1 << 28 | 1 << 30, 0, call_gpusync, &handler_descriptor, s};
    void *buffer = new_buffer(s->q[0]);
    handler_calls = 0;
    memset(&handler_note, 0, sizeof handler_note);
    metal_add_completed_handler(buffer, &block);
    open_buffer = new_buffer(s->q[0]);
    commit(s->q[0], buffer);
    gpusync_ticket held = commit(s->q[0], waiting(s->q[0], at(s->t[0], 1)));
    gpusync_ticket cancelled = commit(s->q[1], waiting(s->q[1], at(s->t[2], 1)));
    finish_all(s);
    assert_int_equal(handler_calls, 1);
    assert_ok(gpusync_poll(s->q[0], held, NULL));
    assert_result(gpusync_poll(s->q[1], cancelled, NULL), GPUSYNC_ERROR_CANCELLED);
    assert_noted(&handler_note, GPUSYNC_ERROR_EXECUTION);
}

/* -- what Metal refuses, and what other code does ------------------------------------------------------------------ */

/* mtld3d#490: the last flush got no command buffer, "idle" was told from the flushes that there were, and pages were
   freed. Here a refused call leaves the ticket that it was to replace, and no answer changes. */
on_stage_with(test_S5_a_flush_that_gets_no_buffer_makes_nothing_look_done, .timelines = 1)
{
    gpusync_ticket last = commit_new(s->q[0]);
    void *frame = new_buffer(s->q[0]), *none = NULL;
    for (unsigned call = 0; call < 3; call++) {
        gpusync_result result = GPUSYNC_OK;
        softmetal_fail_creation(1, true);
        if (call == 0) result = gpusync_command_buffer_create(s->q[0], NULL, GPUSYNC_FOREVER, &none);
        if (call == 1)
            result = TRY_SUBMIT(s->q[0], &last, WAITS(at(s->t[0], 1)), BUFFERS(frame), .flags = GPUSYNC_SUBMIT_ON_GPU);
        if (call == 2) result = gpusync_commit_marker(s->q[0], NULL, &last);
        softmetal_fail_creation(0, false);
        assert_result(result, GPUSYNC_ERROR_METAL_NIL);
        assert_int_equal(last, 1);
        assert_false(gpusync_is_done(s->q[0], last));
        assert_false(gpusync_is_done(s->q[0], GPUSYNC_EVERYTHING));
        assert_result(gpusync_wait(s->q[0], last, 0, NULL), GPUSYNC_TIMEOUT);
        assert_result(gpusync_wait(s->q[0], GPUSYNC_EVERYTHING, 0, NULL), GPUSYNC_TIMEOUT);
    }
    last = SUBMIT(s->q[0], BUFFERS(frame), SIGNALS(at(s->t[0], 1)));
    finish_all(s);
    assert_ok(gpusync_poll(s->q[0], last, NULL));
    assert_int_equal(value_of(s->t[0]), 1);
}

/* InstantReplay#102: a plug-in encoded into the engine's command buffer, which the engine commits itself. Here the
   value does not come, which the marker's end does not hide, and a discard lets it go on. */
on_stage_with(test_S7_what_was_encoded_into_a_buffer_that_the_engine_commits_is_given_back, .timelines = 1,
              .queue = {.max_command_buffer_count = 2})
{
    void *engines = foreign_buffer(s->q[0]);
    gpusync_ticket marker = 0;
    encode_signal(s->q[0], engines, at(s->t[0], 1));
    metal_commit(engines);
    assert_result(gpusync_commit(s->q[0], engines, NULL), GPUSYNC_ERROR_ALREADY_COMMITTED);
    assert_ok(gpusync_commit_marker(s->q[0], engines, &marker));
    finish_all(s);
    assert_ok(gpusync_poll(s->q[0], marker, NULL));
    assert_int_equal(value_of(s->t[0]), 0);
    assert_ok(gpusync_command_buffer_discard(s->q[0], engines));
    metal_release(engines);
    signal_value(s->t[0], 1);
    for (unsigned i = 2; i <= 3; i++) commit(s->q[0], signalling(s->q[0], at(s->t[0], i))); /* its room is back */
    finish_all(s);
    assert_int_equal(value_of(s->t[0]), 3);
}

/* -- ends --------------------------------------------------------------------------------------------------------- */

/* OpenCL-CTS#2087: a queue was released while another one depended on its work. Here sent work of such a queue ends as
   if the queue were there; held work is cancelled, and so is what waits for it. */
on_all_kinds_with(test_S8_the_work_of_a_queue_that_goes_lets_go_or_cancels_what_waits_for_it, .timelines = 2)
{
    for (unsigned i = 0; i < 4; i++) {
        bool held = i & 1;
        note gone = {0};
        gpusync_timeline *t = new_timeline(s->device);
        gpusync_queue *q = queue_of_kind(is_metal4(s->q[0]), s->device, NULL);
        void *metal = metal_retain(gpusync_queue_metal(q));
        void *producer = held ? waiting(q, at(s->t[0], 1)) : new_buffer(q);
        encode_signal(q, producer, at(t, 1));
        gpusync_point point = ticket_at(q, commit(q, producer));
        gpusync_ticket consumer = commit(s->q[0], waiting(s->q[0], i & 2 ? at(t, 1) : point));
        assert_ok(gpusync_queue_destroy_later(q, remember_destroyed, &gone));
        assert_ok(gpusync_timeline_destroy_later(t, NULL, NULL));
        while (finish_next_of(metal)) {}
        finish_all(s);
        assert_result(gpusync_poll(s->q[0], consumer, NULL), held ? GPUSYNC_ERROR_CANCELLED : GPUSYNC_OK);
        assert_noted(&gone, GPUSYNC_OK);
        metal_release(metal);
    }
}

typedef struct thread_stream {
    stage *s;
    gpusync_queue *queue;
    void *metal;
    note gone;
} thread_stream;

static pthread_key_t stream_key;

static void drop_stream(void *user)
{
    thread_stream *stream = (thread_stream *)user;
    must(!gpusync_queue_destroy_later(stream->queue, remember_destroyed, &stream->gone), "a stream goes later");
}

static void *use_stream(void *user)
{
    thread_stream *stream = (thread_stream *)user;
    must(!gpusync_queue_create(stream->s->device, NULL, &stream->queue), "a stream");
    stream->metal = metal_retain(gpusync_queue_metal(stream->queue));
    pthread_setspecific(stream_key, stream);
    for (unsigned i = 0; i < 3; i++) commit_new(stream->queue);
    return NULL;
}

/* mlx#4506: the streams of a thread went with the thread, while the GPU was at their work. Here the thread's end lets
   the queue go later: it stays until its work has ended, and the device until the last one has gone. */
on_stage_with(test_R22_streams_go_with_their_threads_and_the_device_with_the_last, .no_queue = true)
{
    thread_stream streams[4];
    note device_gone = {0};
    memset(streams, 0, sizeof streams);
    pthread_key_create(&stream_key, drop_stream);
    for (unsigned i = 0; i < LENGTH(streams); i++) {
        streams[i].s = s;
        join(start(use_stream, &streams[i]));
    }
    assert_result(gpusync_device_destroy(s->device), GPUSYNC_ERROR_IN_USE);
    assert_ok(gpusync_device_destroy_later(s->device, remember_destroyed, &device_gone));
    s->device = NULL;
    for (unsigned i = 0; i < LENGTH(streams); i++) {
        assert_int_equal(calls_of(&device_gone) + calls_of(&streams[i].gone), 0);
        while (finish_next_of(streams[i].metal)) {}
        assert_noted(&streams[i].gone, GPUSYNC_OK);
        metal_release(streams[i].metal);
    }
    assert_noted(&device_gone, GPUSYNC_OK);
    pthread_key_delete(stream_key);
}

/* CUDA.jl#2216 and its kin: finalizers come in any order, the context's before those of its streams. Here the
   destroy_later calls do, too, with work in flight that waits for other work. */
without_stage_on_both_kinds(test_R22_finalizers_may_come_in_any_order)
{
    for (unsigned order = 0; order < 12; order++) {
        const stage_desc desc = {.queues = 3, .timelines = 3};
        note gone[7];
        stage s;
        stage_open(&s, &desc);
        memset(gone, 0, sizeof gone);
        for (unsigned i = 0; i < 3; i++) {
            void *buffer = i ? waiting(s.q[i], at(s.t[i - 1], 1)) : new_buffer(s.q[i]);
            encode_signal(s.q[i], buffer, at(s.t[i], 1));
            commit(s.q[i], buffer);
        }
        assert_ok(gpusync_device_destroy_later(s.device, remember_destroyed, &gone[6]));
        s.device = NULL;
        for (unsigned i = 0; i < 6; i++) {
            unsigned k = (i * (order & 1 ? 5 : 1) + order / 2) % 6;
            if (k < 3) assert_ok(gpusync_queue_destroy_later(s.q[k], remember_destroyed, &gone[k]));
            else assert_ok(gpusync_timeline_destroy_later(s.t[k - 3], remember_destroyed, &gone[k]));
        }
        memset(s.q, 0, sizeof s.q);
        memset(s.t, 0, sizeof s.t);
        assert_int_equal(calls_of(&gone[6]), 0);
        finish_all(&s);
        for (unsigned i = 0; i < 7; i++) assert_noted(&gone[i], GPUSYNC_OK);
        stage_close(&s);
    }
}
