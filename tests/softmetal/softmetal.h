/* softmetal.h - a software Metal device: the control panel

   softmetal answers the Metal selectors with real Objective-C objects, so that a program which talks to Metal runs
   unchanged on a machine without a GPU. This header is for the *test*: it makes softmetal slow, late, strict, nasty or
   stepwise. The program under test never includes it; it sees only `MTLCreateSystemDefaultDevice`, `MTLCopyAllDevices`
   and messages.

   Objects are passed as `void *` (an `id`). Every function may be called from any thread unless it says otherwise. Misuse
   of Metal by the program, and of this panel by the test, prints one line "softmetal: <rule>: <detail>" on stderr and
   aborts: the rule names are in rules.h.

   Contents
     >>end        how a command buffer ends, and the ways in which devices may differ
     >>clock      real and manual time, latencies, seeds
     >>step       the manual clock: each transition of a command buffer by hand
     >>faults     errors, nil, lost and late handlers, hangs, device removal
     >>dispatch   libdispatch: its queues and workers
     >>message    what was sent, and code to run at a message
     >>layer      CAMetalLayer, its drawables, and what is shown
     >>kernel     what a compute "kernel" does and how long it takes
     >>metal4     Metal 4: each commit is a run, and a run is stepped and failed as a command buffer is
     >>count      live objects, buffers in flight */
#ifndef SOFTMETAL_H
#define SOFTMETAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------ >>end --
   Each command queue has one completion thread. It takes the buffers that the GPU has ended with, one after
   the other, and for each of them it

     1. stores the GPU times
     2. sets the status
     3. runs the completed handlers in the order in which they were added, and releases each block when it has run
     4. releases what the buffer refers to
     5. gives the queue's place back and lets waitUntilCompleted return.

   So a slow handler delays all of this for the later buffers of its queue. It delays no other queue. Events go past
   it: they rise while the GPU works. Scheduled handlers run on the same thread, when the status is Scheduled. Those of
   one buffer run in the order in which they were added, each block is released when it has run, and the completed
   handlers come behind them. That they share the thread is assumed.

   A thread that reads a terminal status sees what the GPU wrote. No other order is promised: not with handlers of
   earlier buffers, and not with the times, which the reader may still see as 0. Handlers see the times.

   A buffer that was never committed runs its completed handlers when it is deallocated: on the thread that
   releases it, with status NotEnqueued. The handler cannot retain the buffer any more. Its scheduled handlers do not run
   (assumed).

   Around each handler, each block of a listener and each dispatched function there is an autorelease pool, which is
   drained as soon as it returns. The system drains its pools no earlier, and does not say when. */

/* What keeps the order of a queue. Its command buffers begin in their order: Apple documents that at commit(). Two of them
   may overlap unless they share a tracked buffer. Events keep none apart. A wait holds back what is encoded behind it in
   its own command buffer, and no other buffer (gfx-rs/wgpu#9483 says so, ahrefs/ocannl#909 measured it). A signal comes
   behind what is before it in its own. So of two buffers that signal one event the second may signal first: the event
   then has the higher value, and keeps it. Assumed: that the order of such signals is free, that nothing else keeps
   buffers in order, and that buffers which have ended may complete in any order. */

/* Ways in which devices are known or feared to differ. All false: as described above. Each takes effect at once. */
typedef struct softmetal_quirks {
    bool status_early;          /* real clock: the GPU sets the status as it ends; no handler delays it            */
    bool late_times;            /* the GPU times are stored after the status, before the first handler             */
    bool status_after_handlers; /* softmetal_status_after_handlers for every buffer that is committed from now on  */
    bool lost_handlers;         /* softmetal_lose_handlers for every buffer that is committed from now on          */
    bool lost_drawables;        /* a drawable that is presented is dropped, and its handlers are not called        */
    bool deaf_listeners;        /* setSignaledValue: makes no listener's block run (reported of some systems). It
                                   runs when the GPU signals its value or a higher one. A block that is registered
                                   for a value already reached runs                                                */
    bool deaf_to_everything;    /* no listener's block runs, neither at a signal nor for a value already reached. It
                                   runs at softmetal_tell_listeners or, when this is false again, as the event rises */
    bool deaf_to_the_past;      /* a listener's block that is registered for a value already reached does not run
                                   before the event rises again                                                    */
    bool doubled_listeners;     /* a listener's block runs twice                                                   */
    bool refused_listeners;     /* a listener's block beyond 100 that wait on one event ends the process, as an
                                   exception would                                                                 */
    bool falling_events;        /* an event takes a value that is lower than its own, too. (Apple documents that it
                                   does not; nothing is said of a write of the CPU beside one of the GPU, nor of
                                   Metal 4.)                                                                       */
    bool overtaking_signals;    /* a command buffer of one signal fires it at its commit                           */
    bool handlers_backwards;    /* completed handlers run in the opposite order (not those that are stepped)       */
    bool status_autoreleases;   /* status autoreleases the buffer                                                  */
    bool uncommitted_are_free;  /* a command buffer counts against its queue's limit from commit on                */
    bool full_queue_aborts;     /* commandBuffer, and its kin, on a queue without a free place end the process, with
                                   the rule queue-full-block, where they would block                               */
    bool bare_errors;           /* an error has no number of the driver's: not in its text, and no error below it  */
    bool ioaccel_errors;        /* as of Intel's and AMD's drivers: "(00000005:kIOAccel...)", and no error below   */
    bool ioaf_errors;           /* as of older systems: "(IOAF code 5)", in decimal, and no error below            */
    bool alien_error_below;     /* an NSNull stands where the error below would be                                 */
    bool no_encoder_info;       /* a buffer's error has no MTLCommandBufferEncoderInfoErrorKey, though the program
                                   asked for it: softmetal_set_encoder_states                                      */
    bool null_encoder_info;     /* an NSNull is under that key, in place of the array                              */
    bool empty_encoder_info;    /* the array is empty                                                              */
    bool alien_encoder_info;    /* the array has an NSNull for each encoder: it answers neither message         */
    bool bare_encoder_info;     /* the label of an encoder's object is nil                                         */
    /* Of Metal 4; see there. */
    bool no_metal4_family;         /* supportsFamily: denies Metal 4, though the classes have its methods             */
    bool bare_feedback_errors;     /* a feedback has the error itself, with its code, and no wrapper               */
    bool options_keep_handlers;    /* a commit leaves the handlers in its options: they run after the next one too */
    bool signals_die_with_failure; /* signals of a queue between a failed run and the next commit do not fire      */
    bool overtaken_signals;        /* real clock: of two signals of a queue with nothing in between the second fires
                                      first, by a millisecond                                                      */
    bool signals_held;             /* manual clock: no signal of a queue fires until this is false, and what is
                                      behind it in the queue does not begin                                        */
    bool signals_late;             /* the same, but what is behind it in the queue begins, and may end             */
} softmetal_quirks;

void softmetal_get_quirks(softmetal_quirks *out);
void softmetal_set_quirks(const softmetal_quirks *quirks);

/* ---------------------------------------------------------------------------- >>clock -- */

typedef enum softmetal_clock {
    SOFTMETAL_REAL,   /* worker threads, durations in real nanoseconds */
    SOFTMETAL_MANUAL  /* nothing moves until the test steps it */
} softmetal_clock;

/* Back to a known start: real clock, default settings, no faults, quirks, hooks, kernels, timers; counters zero.
   Aborts when a command buffer is committed and the GPU has not ended with it. Handlers that are due run first, and
   dispatched functions; handlers that the test holds, or did not step to, are lost. Waits for softmetal's threads to
   come to rest. Call it between tests, and never inside a handler or a dispatched function. */
void softmetal_reset(void);

/* Applies to queues and drawables made after the call. */
void softmetal_set_clock(softmetal_clock clock);
/* Where the GPU times of a command buffer come from: a function that returns seconds, 0 for a device that tells none. It
   must be quick; any thread of softmetal's calls it. NULL, as after softmetal_reset: the machine's clock. */
void softmetal_set_gpu_clock(double (*seconds)(void));

/* A latency is drawn uniformly from [min_ns, max_ns] with the seeded generator. */
typedef struct softmetal_range { uint64_t min_ns, max_ns; } softmetal_range;

typedef struct softmetal_timing { /* by default 0, but for the last one */
    softmetal_range schedule;       /* commit -> Scheduled */
    softmetal_range execute;        /* added to the work's own duration */
    softmetal_range notify;         /* the GPU's end -> the completion thread begins with the buffer: times, status */
    softmetal_range handler;        /* status -> first completed handler; the thread passes this time, so it delays the
                                       buffers behind */
    softmetal_range event_listener; /* value reached -> listener block */
    uint64_t watchdog_ns;           /* a device wait longer than this ends its buffer with Timeout (code 2). Default 5 s */
} softmetal_timing;

void softmetal_get_timing(softmetal_timing *out);
void softmetal_set_timing(const softmetal_timing *timing); /* takes effect at once */
void softmetal_set_seed(uint64_t seed);                    /* of every random choice below */

/* Chances per thousand, drawn for each committed buffer. */
typedef struct softmetal_chaos {
    unsigned fail_per_mille;    /* ends in Error, as SOFTMETAL_INTERNAL */
    /* When the GPU has ended with it, its times, its status and what comes after them wait: until another buffer of the
       queue has come to its end, or 2 ms if none does. Then the chance is drawn again. Of those that wait any may be the
       next: with 1000 all that have ended complete in any order. With the quirk status_early it is the handlers, and
       what comes after them, that wait. */
    unsigned complete_out_of_order_per_mille;
    unsigned overlap_per_mille; /* starts while those before it in its queue still run, where it shares no tracked
                                   buffer with them: see >>end */
} softmetal_chaos;
void softmetal_set_chaos(const softmetal_chaos *chaos);

/* --------------------------------------------------------------------------- >>step --
   Manual clock only. Each call makes exactly one transition of one command buffer and aborts when that transition is not
   due. Handlers run on the queue's own completion thread; those begun while another one runs get a thread each, so that
   they overlap.

   When the last completed handler has returned, what the buffer refers to is released, its place is given back and
   waitUntilCompleted returns. Metal's own reference goes when every block is released as well; in a buffer without
   completed handlers all of this is part of softmetal_complete. Buffers that share no tracked memory may be stepped in
   any order, each to its end, and so may the handlers of all: the manual clock has as many completion threads as it
   takes. */

void softmetal_schedule(void *command_buffer); /* Committed -> Scheduled; returns after the scheduled handlers */
void softmetal_execute(void *command_buffer);  /* does the work; status does not change yet */
void softmetal_complete(void *command_buffer); /* Scheduled -> Completed, or Error where a fault was set; schedules and
                                                  executes first where needed. No completed handler runs. */
/* The watchdog: as softmetal_complete, for a buffer that waits for a value which its event has not reached. It does
   what is encoded before this wait, and ends in Error with Timeout (code 2). For a run see >>metal4. */
void softmetal_time_out(void *command_buffer);
unsigned softmetal_handler_count(void *command_buffer);           /* completed handlers added so far */
void softmetal_run_handler(void *command_buffer, unsigned k);     /* runs handler k, returns after it */
void softmetal_begin_handler(void *command_buffer, unsigned k);   /* starts handler k on its thread   */
void softmetal_join_handler(void *command_buffer, unsigned k);    /* ... and waits for its end        */
/* All that is left of the buffer: complete, run every handler not yet run, release the blocks, let waitUntilCompleted
   return. */
void softmetal_finish(void *command_buffer);
/* As softmetal_finish for every committed, unfinished buffer of the queue, in order. */
void softmetal_finish_queue(void *command_queue);

/* What can be stepped next, for a test that does not know what its program has made. */
typedef enum softmetal_due {
    SOFTMETAL_NOTHING_DUE,  /* not committed, not its turn, or all is over */
    SOFTMETAL_WAIT_DUE,     /* its turn, but a value that it waits for is not reached: softmetal_time_out */
    SOFTMETAL_FAULT_DUE,    /* the same of one with a fault, which waits for nothing: softmetal_complete, if the test likes */
    SOFTMETAL_COMPLETE_DUE, /* softmetal_complete */
    SOFTMETAL_HANDLERS_DUE  /* terminal, and not at its end: softmetal_finish */
} softmetal_due;
softmetal_due softmetal_what_is_due(void *command_buffer);
/* The same of the k-th newest command buffer of the queue, which may be released at any time once nothing is due. NULL, and
   *due is as before: there is none. */
void *softmetal_due_at(void *command_queue, unsigned k, softmetal_due *due);
/* The first of the queue with which the GPU has not ended, in the order of the queue; NULL: there is none. */
void *softmetal_first_in_line(void *command_queue);
/* The event of the last signal that a Metal 4 queue was given, not retained; NULL: none, or a queue of the older kind. */
void *softmetal_last_signalled(void *command_queue);

/* The newest command buffer made by the queue, and the k-th newest (0 is the newest) that is still alive; NULL when none.
   Not retained: for buffers that the program made out of the test's sight. */
void *softmetal_last_buffer(void *command_queue);
void *softmetal_buffer_at(void *command_queue, unsigned k);

/* -------------------------------------------------------------------------- >>faults -- */

/* Why the driver ends a command buffer: its number, and the codes of the error, one for either kind of queue. Public logs
   show the numbers and MTLCommandBufferError's codes: examples/metal-behaves.md, "Errors". The code for InnocentVictim,
   and all of MTL4CommandQueueError, are assumed. The star is for softmetal_fail.

                                             MTLCommandBufferError   MTL4CommandQueueError */
typedef enum softmetal_reason {
    SOFTMETAL_TIMEOUT = 2,                  /* 2 Timeout *             1 Timeout *       */
    SOFTMETAL_HANG = 3,                     /* 2 Timeout               1 Timeout         */
    SOFTMETAL_SUBMISSIONS_IGNORED = 4,      /* 4 AccessRevoked *       5 AccessRevoked * */
    SOFTMETAL_INNOCENT_VICTIM = 5,          /* 1 Internal              6 Internal        */
    SOFTMETAL_BACKGROUND = 6,               /* 7 NotPermitted *        2 NotPermitted *  */
    SOFTMETAL_OUT_OF_MEMORY = 8,            /* 8 OutOfMemory *         3 OutOfMemory *   */
    SOFTMETAL_INVALID_RESOURCE = 9,         /* 9 InvalidResource *     6 Internal        */
    SOFTMETAL_PAGE_FAULT = 11,              /* 3 PageFault *           6 Internal        */
    SOFTMETAL_IMPACTING_INTERACTIVITY = 14, /* 1 Internal              6 Internal        */
    SOFTMETAL_FIRST_INTERNAL = 0x100,       /* 1 Internal              6 Internal: softmetal's own limit, from here on */
    SOFTMETAL_INTERNAL = 2067               /* 1 Internal *            6 Internal *: as in gfx-rs/wgpu-rs#392   */
} softmetal_reason;

/* The buffer ends in Error; its encoded signals never run (but see softmetal_fail_after_signals); what it encoded
   before is not undone and not done.

   The error has Metal's code for the reason. Its text ends in the number: "Caused GPU Hang Error
   (00000003:kIOGPUCommandBufferCallbackErrorHang)". The number is also the code of the error below it
   (NSUnderlyingErrorKey), whose domain is IOGPUCommandQueueErrorDomain. Three quirks change that.

   reason: one of the above, or any number from SOFTMETAL_FIRST_INTERNAL on. All other numbers are an abort. text: in
   place of Metal's; NULL: Metal's. */
void softmetal_fail_as(void *command_buffer, unsigned reason, const char *text);
/* The same for a test that knows Metal's code alone. domain NULL: the code is of the queue's kind, and the reason is the
   one with this code and a star; an error with a code that has no star has nothing below it. With a domain: an error of
   this domain, with this code and text, and nothing below it. */
void softmetal_fail(void *command_buffer, const char *domain, long code, const char *text);
/* The next n buffers, or runs, that are committed on any queue. A program that calls nothing of this header has the
   environment variable SOFTMETAL_KILL: a MTLCommandBuffer with that label, at its commit, fails with
   SOFTMETAL_PAGE_FAULT. */
void softmetal_fail_next_as(unsigned n, unsigned reason);
/* The fault waits: the buffer does its work up to its n-th encoded signal, which fires, and then fails at once. A
   buffer with fewer signals does all of its work. The fault is that of a call above, made before or after this one;
   SOFTMETAL_INTERNAL where there is none. n 0: the fault does not wait. Either clock: a wait for an event in that work
   is one of a buffer without a fault. */
void softmetal_fail_after_signals(void *command_buffer, unsigned n);
/* A command buffer whose descriptor had MTLCommandBufferErrorOptionEncoderExecutionStatus has, in the user info of an
   error of MTLCommandBufferErrorDomain, an array under MTLCommandBufferEncoderInfoErrorKey: one object for each
   encoder, in the order in which they were made. It answers label and errorState. Apple's MTLCommandBuffer.h has both,
   and the numbers below. Without the option the key is not there.

   By itself softmetal says this. The encoders with which the GPU was through as the buffer failed are Completed, the
   next one is Faulted, and all behind it are Pending. Where the GPU was through with all of them, the last one is
   Faulted. Where a wait timed out, the next one is Pending, and where the device was removed, Affected. An encoder
   without a label has an empty one. All of this is assumed.

   The call gives the first `count` encoders other states, which may be numbers that Metal does not have. Five quirks
   spoil the array. With softmetal_hide_selector("errorState") the objects do not answer errorState. */
typedef enum softmetal_encoder_state {
    SOFTMETAL_ENCODER_UNKNOWN, SOFTMETAL_ENCODER_COMPLETED, SOFTMETAL_ENCODER_AFFECTED, SOFTMETAL_ENCODER_PENDING,
    SOFTMETAL_ENCODER_FAULTED
} softmetal_encoder_state;
void softmetal_set_encoder_states(void *command_buffer, const long *states, unsigned count);
/* Total running time of the buffer's work (real clock). softmetal_timing.execute is added to the times of its kernels;
   this one replaces both. */
void softmetal_set_duration(void *command_buffer, uint64_t ns);
/* Completed handlers: held back until softmetal_deliver (real clock; times and status are stored, the thread goes
   on with the next buffer), or never run at all; the buffer then ends as if it had none: the blocks are released
   and waitUntilCompleted returns. */
void softmetal_hold_handlers(void *command_buffer);
void softmetal_deliver(void *command_buffer);
void softmetal_lose_handlers(void *command_buffer);
/* Handlers run while status still says Scheduled; it turns terminal after they returned. The error is there
   already. Metal promises the opposite order; a program must survive at least without a crash or a hang. */
void softmetal_status_after_handlers(void *command_buffer);
/* Calls completed handler k once more, which has run and whose block Metal still holds (manual clock), and returns
   after it. Metal is not known to do that. */
void softmetal_call_handler_again(void *command_buffer, unsigned k);
/* The blocks of listeners that wait on the event and whose value it has reached are due now, whatever a quirk made them
   miss. softmetal_settle_listeners waits for them. */
void softmetal_tell_listeners(void *shared_event);
/* Never completes by itself (real clock): until softmetal_unhang, or the device is removed. */
void softmetal_hang(void *command_buffer);
void softmetal_unhang(void *command_buffer);
/* Every unfinished buffer of the device ends in Error code 11, later ones fail at once with 11. A run's code is 4. */
void softmetal_remove_device(void *device);
/* A second device (+1), for objects of another device. No Metal function finds it. */
void *softmetal_new_device(void);
/* Another object for the same GPU (+1), with the same registryID: a wrapper, as of a validation layer. */
void *softmetal_new_twin(void *device);

/* Nil: creation calls that may return nil (default device, device list, queue, command buffer, drawable,
   shared event, event, listener, buffer, encoder, library, function, pipeline, those of >>metal4) are counted from 1
   after this call; number n returns nil; with `persistent` every later one as well. n 0 switches it off. */
void softmetal_fail_creation(unsigned n, bool persistent);
unsigned softmetal_creations(void); /* how many were counted since softmetal_fail_creation */
/* The same for dispatch_queue_create alone, which the call above does not count. It is NULL where there is no memory. */
void softmetal_fail_dispatch_queue(unsigned n, bool persistent);
/* respondsToSelector: and class_respondsToSelector say no for this selector, and sending it aborts. Back with
   softmetal_reset. */
void softmetal_hide_selector(const char *selector);
/* objc_getClass knows no class of this name, which is kept, not copied; one at a time. NULL: it knows them all again,
   as after softmetal_reset. */
void softmetal_hide_class(const char *name);

/* ------------------------------------------------------------------------- >>dispatch --
   softmetal has dispatch_queue_create (serial), dispatch_queue_attr_make_with_qos_class, dispatch_get_global_queue,
   dispatch_async_f, dispatch_after_f, dispatch_time, dispatch_retain and dispatch_release.

   A timer, which dispatch_after_f arms, puts its function on its queue once its time has come; where it was armed under
   the manual clock, when the test calls softmetal_fire_timers. Until then it keeps the queue, and is nothing that
   softmetal_settle and its kin wait for. softmetal_reset drops it: its function never runs. Its time is one that
   dispatch_time made of DISPATCH_TIME_NOW; DISPATCH_TIME_FOREVER never comes.

   Functions run on a pool of at most SOFTMETAL_DISPATCH_THREADS workers. A function must leave no autorelease pool
   of its own open. It returns: pthread_exit in one is an error. What was given to a queue runs also after its last
   release; giving it more then is an error. softmetal_live counts a queue until that release.

   ThreadSanitizer is told that dispatch_async_f comes before the function, and each function of a serial queue
   before the next one. It sees no other order, but for functions that one worker happens to run.

   On a Mac they stand in front of the system's, for the program and for it alone. What is given to a queue that the
   system made goes to the system. The system's other functions know nothing of softmetal's queues and times: a program that
   calls those is linked with the archive of `make softmetal`, which leaves the eight above to the system. It is not
   controlled by the calls below then, nor counted. */

#define SOFTMETAL_DISPATCH_THREADS 64

/* How many functions may run at once, at most and by default SOFTMETAL_DISPATCH_THREADS. With 0 nothing begins until
   it is raised again. */
void softmetal_set_dispatch_threads(unsigned most);
uint64_t softmetal_dispatches(void);     /* dispatch_async_f calls of the program since reset */
uint64_t softmetal_timers_armed(void);   /* dispatch_after_f calls since reset                */
unsigned softmetal_timers_pending(void); /* ... of which the functions are on no queue yet    */
/* All pending timers are due now, whatever the clock: their functions are on their queues, in the order of their times.
   Returns how many. */
unsigned softmetal_fire_timers(void);
/* The class of service that the queue was made with, as <sys/qos.h> numbers them; 0: with none, or a global queue. NULL:
   the queue whose function runs on the calling thread. All classes run alike here. */
unsigned softmetal_dispatch_qos(void *queue);

/* ------------------------------------------------------------------------- >>message --
   Messages that arrive through objc_msgSend, that is those of the program under test; softmetal's
   own are not seen, nor those of other libraries.

   softmetal has not all of Metal. A message for which it has no method, whoever sends it, aborts with the rule
   unknown-message, which names the receiver as programs know it: "MTLCommandBuffer has no waitUntilScheduled". */

uint64_t softmetal_messages(void);                          /* by every thread since reset       */
uint64_t softmetal_message_count(const char *selector);     /* since reset, every thread         */

typedef enum softmetal_phase {
    SOFTMETAL_BEFORE, /* the message was sent, its method has not begun                             */
    SOFTMETAL_AFTER   /* the result is fixed, not yet returned. Only: status, commit, commandBuffer,
                         addCompletedHandler:, addScheduledHandler:, addPresentedHandler:, signaledValue,
                         setSignaledValue:, commit:count:, commit:count:options:, signalEvent:value:,
                         waitForEvent:value:                                                        */
} softmetal_phase;
/* Called on the sending thread; may step buffers, send messages (not seen by the hook again on that
   thread) and call the program under test. NULL removes it. */
typedef void (*softmetal_message_hook)(void *user, softmetal_phase phase, void *object,
                                       const char *selector);
void softmetal_set_message_hook(softmetal_message_hook hook, void *user);

/* Called before each call of the program that Metal, the runtime or libdispatch could make long: objc_msgSend,
   objc_release, objc_autoreleasePoolPop, dispatch_async_f, dispatch_after_f, dispatch_retain, dispatch_release. Gets the
   name. For assertions: it must call none of them. NULL: nothing is called. */
extern void (*softmetal_before)(const char *name);

/* --------------------------------------------------------------------------- >>layer --
   objc_getClass finds CAMetalLayer; a program in Objective-C that names the class itself does not. A layer has
   drawables of MTLPixelFormatBGRA8Unorm, each with memory of its own, in use from nextDrawable until the last reference
   goes. nextDrawable is nil without a device or a size, and after a second in which none came back. A drawable's
   texture is written by a copy from a buffer, and read by getBytes: nothing is rendered.

   A command buffer has its drawables until its completed handlers have run. Apple documents that it presents them once it
   is scheduled, and that they are shown when the work is done. softmetal does both when the GPU has ended with the buffer,
   also where it failed (assumed).

   A drawable is shown once. Then a thread of its own calls its presented handlers, in the order in which they were added,
   and releases each block when it has run. Under the real clock the message present shows a drawable at once, whatever is
   yet to be written to it. Under the manual clock softmetal_present alone does, and the test keeps the drawable until
   then. A handler that is added later, or to a drawable that is never shown, is released with the drawable, without a
   call (assumed). */

/* A drawable (+1) of a layer of its own, of one pixel. */
void *softmetal_new_drawable(void *device);
/* The drawable is shown now, whether the program has presented it or not. Returns after the handlers. Here and below a
   drawable that was shown or dropped is an abort. */
void softmetal_present(void *drawable);
/* The frame is dropped: presentedTime is 0. `calls`: the handlers are called all the same. Else their blocks are released
   without a call, on the thread of the handlers. Apple's documentation does not say which. */
void softmetal_drop_drawable(void *drawable, bool calls);

/* -------------------------------------------------------------------------- >>kernel --
   A library made from source contains a function for each `kernel TYPE NAME(`, `vertex TYPE NAME(` and
   `fragment TYPE NAME(` in the text; a source with the word `#error` does not compile. Dispatching NAME calls the C function
   registered under that name with the bound buffers' memory, once for the whole grid.

   Render pipelines are made, and nothing renders with them. Of MTLRenderPipelineDescriptor there are label, vertexFunction,
   which has to be set, fragmentFunction, and the pixelFormat of colorAttachments; any function, and any format, will do. */

typedef struct softmetal_kernel_args {
    void *buffers[31];      /* contents + offset, or NULL */
    size_t lengths[31];     /* bytes from there to the end */
    unsigned long grid[3];  /* threads */
} softmetal_kernel_args;
typedef void (*softmetal_kernel)(void *user, const softmetal_kernel_args *args);
void softmetal_set_kernel(const char *name, softmetal_kernel fn, void *user, uint64_t duration_ns);
uint64_t softmetal_compiles(void); /* pipelines of both kinds compiled since reset */

/* -------------------------------------------------------------------------- >>metal4 --
   The device answers newMTL4CommandQueue and its kin; softmetal_hide_selector and softmetal_hide_class take them
   away. Command queues, command buffers, allocators, compute encoders, argument tables, commit options and feedback
   are there. Creation calls count for softmetal_fail_creation: queue, command buffer, allocator, argument table,
   encoder, and init of MTL4CommitOptions.

   Each commit:count: or commit:count:options: makes a run. Everywhere above, a run is what a command buffer is:
   softmetal_last_buffer and softmetal_buffer_at give the runs of a Metal 4 queue, the newest first, and steps and
   faults take them. It answers status. Not retained: Metal lets a run go at its end, and then it is gone.

     - The commands are those of all buffers of the array, in its order. The recording belongs to the run from commit
       on: its command buffer may begin again, with another allocator, while the run is in flight.
     - Feedback handlers take the place of completed handlers. Each gets a feedback object of its own, which
       goes when the handler returns, unless it was retained. They run on the queue's completion thread; under the
       real clock, where the descriptor had a feedbackQueue, on that. The feedback queue is not retained.
     - Nothing retains anything: Apple's documentation promises no more. A run needs its command buffers, allocators,
       pipelines and memory until the GPU has ended with it; a signal or wait needs its event until it is over. To destroy
       one earlier, or to reset an allocator, is an abort. A queue itself lives until its work is over.
     - A commit takes the handlers out of its options (assumed), which may be used again, by one thread at a time.
     - An argument table counts at the dispatch: its content is copied there. It knows the addresses of buffers whose
       gpuAddress was asked for.

   The error of a feedback wraps the one that >>faults describes: it has MTL4CommandQueueErrorDomain, code 1, no text,
   and that one under NSUnderlyingErrorKey. What softmetal_fail was given a domain for is not wrapped. A removed device
   gives code 4. That a wrapper is there: mokume-metal/mokume, CommandFaultLog.swift. All else of it is assumed.

   signalEvent:value: and waitForEvent:value: stand in the order of the queue, and a wait holds everything behind it.
   They take no step: under the manual clock they are over as soon as nothing is before them in the queue, and, of
   a wait, the value is reached. A run behind a wait that holds it is SOFTMETAL_WAIT_DUE; softmetal_time_out of this
   run ends the first such wait, and does not complete the run. Under the real clock the watchdog does that. So the
   run is executed, and its feedback has no error. A signal fires though the run before it failed (but see the quirk
   signals_die_with_failure), and not on a removed device. */

/* For a test that knows a command buffer, and nothing of runs: makes the run of its next commit, which must be to this
   queue and have it in front. Every call above that takes a command buffer or a run takes this buffer from now on, and
   means that run, also when the commit is over; until the next call of this, or the buffer's end. */
void softmetal_prepare_run(void *command_buffer4, void *command_queue);
void *softmetal_run_of(void *command_buffer4); /* that run, not retained; NULL: none was prepared */

/* --------------------------------------------------------------------------- >>count -- */

/* Living softmetal objects: of one class by its plain name ("device", "queue", "command_buffer", "encoder", "buffer",
   "event", "shared_event", "listener", "library", "function", "pipeline", "error", "block", "descriptor",
   "dispatch_queue", "queue4", "command_buffer4", "allocator", "argument_table", "commit_options", "feedback", "run",
   "queue_operation", "layer", "drawable", "texture", "encoder_info"), or all of them for NULL. "block" counts handler
   blocks that Metal still holds, "queue_operation" the signals and waits of Metal 4 queues that are not over. */
long softmetal_live(const char *kind);
/* An object (+1) that does nothing but call `gone` when its last reference goes. */
void *softmetal_new_witness(void (*gone)(void *user), void *user);
/* Buffers of the queue that count against its limit. */
unsigned softmetal_outstanding(void *command_queue);
/* Threads that are blocked in commandBuffer, or its kin, for want of a place in the queue. */
unsigned softmetal_blocked(void *command_queue);
/* Waits until there are `count` of them at least; false after timeout_ns. */
bool softmetal_await_blocked(void *command_queue, unsigned count, uint64_t timeout_ns);
unsigned long softmetal_retain_count(void *object);
/* Waits (real clock) until no committed buffer is unfinished, every due handler has run and its block
   was released, and what was dispatched has run, or waits for a command buffer. false after timeout_ns. */
bool softmetal_settle(uint64_t timeout_ns);
/* The same without the committed buffers: every listener block that is due, and what was dispatched, has run. For the
   manual clock, which holds nothing of this back. */
bool softmetal_settle_listeners(uint64_t timeout_ns);
/* ... until what was dispatched has run, or waits for a command buffer, whatever the clock. In a dispatched function:
   does not wait. */
bool softmetal_dispatched(uint64_t timeout_ns);

#ifdef __cplusplus
}
#endif
#endif
