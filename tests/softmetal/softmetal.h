/* softmetal.h - a software Metal device: the control panel

   softmetal answers the Metal selectors with real Objective-C objects, so that a program which
   talks to Metal runs unchanged on a machine without a GPU. This header is for the *test*: it
   makes softmetal slow, late, strict, nasty or stepwise. The program under test never includes
   it; it sees only `MTLCreateSystemDefaultDevice`, `MTLCopyAllDevices` and messages.

   Objects are passed as `void *` (an `id`). Every function may be called from any thread unless
   it says otherwise. Misuse of Metal by the program, and of this panel by the test, prints one
   line "softmetal: <rule>: <detail>" on stderr and aborts: the rule names are in rules.h.

   Contents
     >>clock      real and manual time, latencies, seeds
     >>step       the manual clock: each transition of a command buffer by hand
     >>faults     errors, nil, lost and late handlers, hangs, device removal
     >>message    what was sent, and code to run at a message
     >>kernel     what a compute "kernel" does and how long it takes
     >>count      live objects, buffers in flight */
#ifndef SOFTMETAL_H
#define SOFTMETAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------- >>clock -- */

typedef enum softmetal_clock {
    SOFTMETAL_REAL,   /* worker threads, durations in real nanoseconds */
    SOFTMETAL_MANUAL  /* nothing moves until the test steps it */
} softmetal_clock;

/* Back to a known start: real clock, default settings, no faults, hooks, kernels; counters zero.
   Aborts when a command buffer is still committed and not terminal. Handlers that are due run first;
   those that the test holds, or did not step to, are lost. Waits for softmetal's threads to come to
   rest. Call it between tests, and never inside a handler. */
void softmetal_reset(void);

/* Applies to queues made after the call. */
void softmetal_set_clock(softmetal_clock clock);

/* A latency is drawn uniformly from [min_ns, max_ns] with the seeded generator. */
typedef struct softmetal_range {
    uint64_t min_ns, max_ns;
} softmetal_range;

typedef struct softmetal_timing {
    softmetal_range schedule;       /* commit -> Scheduled                              default 0  */
    softmetal_range execute;        /* added to the work's own duration                 default 0  */
    softmetal_range notify;         /* status Completed -> first completed handler      default 0  */
    softmetal_range event_listener; /* value reached -> listener block                  default 0  */
    softmetal_range event_create;   /* cost of newSharedEvent                           default 0  */
    softmetal_range wait_return;    /* handlers done -> waitUntilCompleted returns      default 0  */
    uint64_t watchdog_ns;           /* a device wait longer than this ends its buffer with
                                       Timeout (code 2)                                 default 5 s */
} softmetal_timing;

void softmetal_get_timing(softmetal_timing *out);
void softmetal_set_timing(const softmetal_timing *timing); /* takes effect at once */
void softmetal_set_seed(uint64_t seed);                    /* of every random choice below */

/* Chances per thousand, drawn for each committed buffer. */
typedef struct softmetal_chaos {
    unsigned fail_per_mille;         /* ends in Error, code 1 Internal                            */
    unsigned late_handler_per_mille; /* its handlers run after those of the next buffer or, when
                                        none follows, 2 ms late: out of order                     */
    unsigned overlap_per_mille;      /* starts while its predecessor still runs, where the two
                                        share no tracked buffer and no event orders them          */
} softmetal_chaos;
void softmetal_set_chaos(const softmetal_chaos *chaos);

/* --------------------------------------------------------------------------- >>step --
   Manual clock only. Each call makes exactly one transition of one command buffer and aborts
   when that transition is not due. Handlers run on the queue's own completion thread; those begun while
   another one runs get a thread each, so that they overlap.

   waitUntilCompleted returns when the last completed handler has returned. Metal's own reference goes
   when every block is released as well; in a buffer without completed handlers both are part of
   softmetal_complete. Buffers that share no tracked memory and no event may be stepped out of order. */

void softmetal_schedule(void *command_buffer);  /* Committed -> Scheduled; runs scheduled handlers */
void softmetal_execute(void *command_buffer);   /* does the work; status does not change yet       */
void softmetal_complete(void *command_buffer);  /* Scheduled -> Completed, or Error where a fault was
                                                   set; schedules and executes first where needed.
                                                   No handler runs.                                */
unsigned softmetal_handler_count(void *command_buffer);           /* completed handlers added so far */
void softmetal_run_handler(void *command_buffer, unsigned k);     /* runs handler k, returns after it */
void softmetal_begin_handler(void *command_buffer, unsigned k);   /* starts handler k on its thread   */
void softmetal_join_handler(void *command_buffer, unsigned k);    /* ... and waits for its end        */
void softmetal_release_block(void *command_buffer, unsigned k);   /* Metal drops its copy of block k  */
/* All that is left of the buffer: complete, run every handler not yet run, release the blocks,
   let waitUntilCompleted return. */
void softmetal_finish(void *command_buffer);
/* As softmetal_finish for every committed, unfinished buffer of the queue, in order. */
void softmetal_finish_queue(void *command_queue);

/* The newest command buffer made by the queue, and the k-th newest (0 is the newest) that is still
   alive; NULL when none. Not retained: for buffers that the program made out of the test's sight. */
void *softmetal_last_buffer(void *command_queue);
void *softmetal_buffer_at(void *command_queue, unsigned k);

/* -------------------------------------------------------------------------- >>faults -- */

/* The buffer ends in Error; its encoded signals never run; what it encoded before is not undone
   and not done. domain NULL is MTLCommandBufferErrorDomain; text NULL a default text. */
void softmetal_fail(void *command_buffer, const char *domain, long code, const char *text);
/* The same for the next n buffers committed on any queue. */
void softmetal_fail_next(unsigned n, long code);
/* Total running time of the buffer's work (real clock). */
void softmetal_set_duration(void *command_buffer, uint64_t ns);
/* Completed handlers: held back until softmetal_deliver (real clock), or never run at all; the buffer
   then ends as if it had none: the blocks are released and waitUntilCompleted returns. */
void softmetal_hold_handlers(void *command_buffer);
void softmetal_deliver(void *command_buffer);
void softmetal_lose_handlers(void *command_buffer);
/* Handlers run while status still says Scheduled; it turns terminal after they returned. Metal
   promises the opposite order; a program must survive at least without a crash or a hang. */
void softmetal_status_after_handlers(void *command_buffer);
/* Never completes by itself (real clock): until softmetal_unhang, or the device is removed. */
void softmetal_hang(void *command_buffer);
void softmetal_unhang(void *command_buffer);
/* Every unfinished buffer of the device ends in Error code 11, later ones fail at once with 11. */
void softmetal_remove_device(void *device);
/* A second device (+1), for objects of another device. No Metal function finds it. */
void *softmetal_new_device(void);

/* Nil: creation calls that may return nil (default device, device list, queue, command buffer,
   shared event, event, buffer, encoder, library, function, pipeline) are counted from 1 after this call;
   number n returns nil; with `persistent` every later one as well. n 0 switches it off. */
void softmetal_fail_creation(unsigned n, bool persistent);
unsigned softmetal_creations(void); /* how many were counted since softmetal_fail_creation */
/* respondsToSelector: says no for this selector (class_respondsToSelector too, where the runtime is not
   Apple's), and sending it aborts. Back with softmetal_reset. */
void softmetal_hide_selector(const char *selector);

/* ------------------------------------------------------------------------- >>message --
   Messages that arrive through objc_msgSend, that is those of the program under test; softmetal's
   own are not seen. Under Apple's runtime objc_msgSend is Apple's: softmetal_sees_messages() is
   false there, counts are 0 and only the AFTER hooks run. */

bool softmetal_sees_messages(void);
uint64_t softmetal_messages(void);                          /* by every thread since reset       */
uint64_t softmetal_thread_messages(void);                   /* by the calling thread, ever       */
uint64_t softmetal_message_count(const char *selector);     /* since reset, every thread         */
uint64_t softmetal_retain_count_calls(void);                /* objc_retain + objc_release calls since reset */

typedef enum softmetal_phase {
    SOFTMETAL_BEFORE, /* the message was sent, its method has not begun                             */
    SOFTMETAL_AFTER   /* the result is fixed, not yet returned. Only: status, commit, commandBuffer,
                         addCompletedHandler:, signaledValue, setSignaledValue:                     */
} softmetal_phase;
/* Called on the sending thread; may step buffers, send messages (not seen by the hook again on that
   thread) and call the program under test. NULL removes it. */
typedef void (*softmetal_message_hook)(void *user, softmetal_phase phase, void *object,
                                       const char *selector);
void softmetal_set_message_hook(softmetal_message_hook hook, void *user);

/* -------------------------------------------------------------------------- >>kernel --
   A library made from source contains a function for each `kernel void NAME(` in the text; a source
   with the word `#error` does not compile. Dispatching NAME calls the C function registered under
   that name with the bound buffers' memory, once for the whole grid. */

typedef struct softmetal_kernel_args {
    void *buffers[31];      /* contents + offset, or NULL */
    size_t lengths[31];     /* bytes from there to the end */
    unsigned long grid[3];  /* threads */
} softmetal_kernel_args;
typedef void (*softmetal_kernel)(void *user, const softmetal_kernel_args *args);
void softmetal_set_kernel(const char *name, softmetal_kernel fn, void *user, uint64_t duration_ns);
void softmetal_set_compile_time(uint64_t first_ns, uint64_t later_ns);
uint64_t softmetal_compiles(void); /* pipelines compiled since reset */

/* --------------------------------------------------------------------------- >>count -- */

/* Living softmetal objects: of one class by its plain name ("device", "queue", "command_buffer",
   "encoder", "buffer", "event", "shared_event", "listener", "library", "function", "pipeline",
   "error", "block"), or all of them for NULL. "block" counts handler blocks that Metal still holds. */
long softmetal_live(const char *kind);
/* Buffers of the queue that count against its limit. */
unsigned softmetal_outstanding(void *command_queue);
unsigned long softmetal_retain_count(void *object);
/* Waits (real clock) until no committed buffer is unfinished, every due handler has run and its block
   was released. false after timeout_ns. */
bool softmetal_settle(uint64_t timeout_ns);

#ifdef __cplusplus
}
#endif
#endif
