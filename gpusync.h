/* gpusync.h - v0.1 - wait for Apple GPUs from plain C - MIT licence (at the end of this file)

   Knows what was committed, answers "is it done?" from one atomic load, spins briefly when the
   answer is near, sleeps until the completion handler wakes it, and reports every command buffer
   that failed. Metal is reached through objc_msgSend: no Objective-C compiler, no blocks.

   In ONE source file (C or C++; for Objective-C too, with or without ARC):

       #define GPUSYNC_IMPLEMENTATION
       #include "gpusync.h"

   and link:  -framework Metal -framework CoreGraphics -framework Foundation -lobjc
   (a command-line program without CoreGraphics may get no default device).

   A whole program:

       #include "gpusync.h"
       #include <stdio.h>

       int main(void)
       {
           gpusync_device *device;
           gpusync_queue *queue;
           gpusync_ticket ticket;
           void *buffer;                                           // an id<MTLCommandBuffer>

           if (gpusync_device_create(NULL, &device)) return 1;
           if (gpusync_queue_create(device, NULL, &queue)) return 1;
           if (gpusync_command_buffer(queue, NULL, &buffer)) return 1;
           // ... encode work into it with Metal ...
           if (gpusync_commit(queue, buffer, &ticket)) return 1;   // instead of [buffer commit]
           gpusync_result result = gpusync_wait(queue, ticket, 1000000000);
           printf("%s\n", gpusync_result_string(result));
           gpusync_queue_destroy(queue);
           gpusync_device_destroy(device);
           return result;
       }

   Contents: search for the tag.
     >>options    macros that change how this file compiles
     >>model      tickets, waiting, failing: the few ideas that the calls share
     >>threads    what may be called from where
     >>ownership  who retains what
     >>results    gpusync_result
     >>types      objects, descriptions, hooks
     >>api        the calls: set-up, command buffers, commit and ask, wait, timelines, failures, insight
     >>impl       the implementation
         >>objc  >>platform  >>pool  >>queue  >>ring  >>failure  >>wake  >>finish  >>look
         >>foreign  >>wait  >>timeline  >>commit  >>create  >>destroy  >>public  >>stubs
     >>history    changes, licence

   >>options ------------------------------------------------------------------------------------

     macro                    who defines it      meaning
     GPUSYNC_IMPLEMENTATION   one file            the bodies are compiled here
     GPUSYNC_STATIC           that file           every function is static: private to this file
     GPUSYNC_API              all files           attributes of every function (dllexport, visibility, ...)
     GPUSYNC_ASSERT(x)        implementing file   internal invariants; default assert() of <assert.h>
     GPUSYNC_OBJC             all files           1: there is an Objective-C runtime with Metal
                                                  classes. Default: 1 on Apple systems, else 0, and
                                                  then every call returns ERROR_UNSUPPORTED.

   The implementing file needs POSIX threads and clocks: in a strict mode such as -std=c99 define _POSIX_C_SOURCE as
   200809L before the first include; on Apple systems define nothing, or _DARWIN_C_SOURCE as well.

   >>model --------------------------------------------------------------------------------------

   A gpusync_queue stands for one MTLCommandQueue. Each commit through it gets a ticket, the number of
   that commit: 1, 2, 3, ... Ticket 0 (GPUSYNC_NO_TICKET) is work that never was: always done.

   The end of a command buffer is Metal's status Completed or Error, seen in the completion handler
   or by reading the status, whichever comes first. A command buffer that the system killed ends
   like any other: no wait here can outlive it.

   The result of a wait and the result of the work are two things. TIMEOUT and NOT_READY are
   about the wait: nothing is cancelled, the work goes on, wait again when you like. ERROR_EXECUTION
   is about the work: it ended, badly. See gpusync_next_error for what happened.

   A wait looks at a counter, then reads Metal's status, then spins for a budget (32 pauses and 224
   yields, the figures of CUDA.jl and Metal.jl), then sleeps until the completion handler wakes it.
   While asleep it reads the status again every 50 ms, so that a lost handler costs time, not a hang.

   A wait means that the GPU is finished. It makes no command buffer of its own, except for work that
   was committed behind gpusync's back (gpusync_track_committed). What was committed without gpusync
   and never named to it, gpusync does not know: is_idle and the waits speak of the rest.

   A handler that is lost (nobody has seen that yet) keeps its command buffer until the queue goes, and
   is_idle and is_done say false until somebody polls or waits.

   >>threads ------------------------------------------------------------------------------------

     object            calls                                       from
     gpusync_device    everything but destroy                      any thread, at the same time
     gpusync_queue     everything but destroy                      any thread, at the same time
     both              destroy                                     one thread, once
     command buffer    encoding and commit                         one thread at a time (Metal's rule)
     from the log hook everything but destroy                      waits return ERROR_WOULD_DEADLOCK where
                                                                   they would have to wait

   Destroy ends the calls that wait inside the queue at that time, spinning or asleep, with ERROR_DESTROYED. No
   other call may be running, and none may begin: the program sees to that, as with free().

   One gpusync_queue for each MTLCommandQueue: of two, each knows and counts only what went through it.

   Hooks run on the thread that found the reason: the caller's, or Metal's completion thread (unpark,
   log). No lock, autorelease pool or thread-local value of gpusync's is held while a hook runs, so a
   fiber may park on one thread and go on on another.

   >>ownership ----------------------------------------------------------------------------------

   Metal objects are `void *`: an `id`, a (__bridge void *), a metal-cpp pointer. What you pass in
   is retained for as long as gpusync uses it; what you get back is borrowed unless the call says +1.
   gpusync_command_buffer hands out a buffer that gpusync keeps alive until gpusync_commit or
   gpusync_command_buffer_discard; after either of them retain it yourself to go on using it. (Under ARC
   use plain __bridge casts, never __bridge_transfer.) A committed buffer is retained until its
   handler ran, and so is what Metal retains for it.

   Calls that may get autoreleased objects from Metal have an autorelease pool of their own. */

#ifndef GPUSYNC_H
#define GPUSYNC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GPUSYNC_VERSION_MAJOR 0
#define GPUSYNC_VERSION_MINOR 1
#define GPUSYNC_VERSION_PATCH 0

#ifndef GPUSYNC_OBJC
#ifdef __APPLE__
#define GPUSYNC_OBJC 1
#else
#define GPUSYNC_OBJC 0
#endif
#endif

#if defined(__GNUC__)
#define GPUSYNC_NODISCARD __attribute__((warn_unused_result))
#define GPUSYNC__UNUSED __attribute__((unused))
#else
#define GPUSYNC_NODISCARD
#define GPUSYNC__UNUSED
#endif

#ifndef GPUSYNC_API
#ifdef GPUSYNC_STATIC
#define GPUSYNC_API static GPUSYNC__UNUSED
#else
#define GPUSYNC_API
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------ >>results -- */

/* Zero: the call did what it says. Positive: not an error, the answer is "not yet". Negative: an error.
   ERROR_EXECUTION, ERROR_CANCELLED and ERROR_RESULT_UNKNOWN tell how work ended; after any other error nothing
   was changed or lost. Each call names the ones that it returns; besides those any call may
   return ERROR_INVALID_ARGUMENT (NULL where an object is needed) and ERROR_UNSUPPORTED. */
#define GPUSYNC_RESULTS(X)                                                                           \
    X(OK, 0, "done")                                                                                 \
    X(TIMEOUT, 1, "the time limit passed first; the work goes on")                                   \
    X(NOT_READY, 2, "not yet, or no more of them")                                                   \
    X(ERROR_INVALID_ARGUMENT, -1, "an argument is NULL or makes no sense")                           \
    X(ERROR_UNSUPPORTED, -2, "there is no Metal here, or it lacks what is asked for")                \
    X(ERROR_OUT_OF_MEMORY, -3, "the allocator returned NULL")                                        \
    X(ERROR_NO_DEVICE, -4, "Metal has no device")                                                    \
    X(ERROR_METAL_NIL, -5, "Metal returned nil where it should have made an object")                 \
    X(ERROR_INVALID_TICKET, -6, "not a ticket of this queue, or not one that this call is for")      \
    X(ERROR_WRONG_QUEUE, -7, "the command buffer belongs to another command queue")                  \
    X(ERROR_ALREADY_COMMITTED, -8, "the command buffer is committed already")                        \
    X(ERROR_NOT_COMMITTED, -9, "the command buffer is not committed yet")                            \
    X(ERROR_ALREADY_TRACKED, -10, "the command buffer has a ticket already")                         \
    X(ERROR_UNKNOWN_BUFFER, -11, "not a command buffer that gpusync_command_buffer made and still has") \
    X(ERROR_EXECUTION, -12, "the work ended with an error; gpusync_next_error tells which")          \
    X(ERROR_RESULT_UNKNOWN, -13, "it ended, but how is no longer on record")                         \
    X(ERROR_CANCELLED, -14, "it was given up before it was committed")                               \
    X(ERROR_DEVICE_LOST, -15, "the device is gone or has locked this program out")                   \
    X(ERROR_DESTROYED, -16, "the queue is being destroyed")                                          \
    X(ERROR_WOULD_DEADLOCK, -17, "called inside a callback, on the thread that would have to finish it") \
    X(ERROR_IN_USE, -18, "the device still has queues or timelines")                                 \
    X(ERROR_NOT_RISING, -19, "a timeline only rises: the value is not above the present one, or out of range")

typedef enum gpusync_result {
#define GPUSYNC__ENUM(name, value, text) GPUSYNC_##name = value,
    GPUSYNC_RESULTS(GPUSYNC__ENUM)
#undef GPUSYNC__ENUM
} gpusync_result;

/* -------------------------------------------------------------------------------- >>types -- */

typedef struct gpusync_device gpusync_device;
typedef struct gpusync_queue gpusync_queue;
typedef struct gpusync_timeline gpusync_timeline;

/* The number of a commit on its queue: 1, 2, 3, ... in the order of the queue. Tickets of
   gpusync_track_committed have the top bit set and count on their own. */
typedef uint64_t gpusync_ticket;

#define GPUSYNC_NO_TICKET ((gpusync_ticket)0)        /* no work: always done */
#define GPUSYNC_EVERYTHING (~(gpusync_ticket)0)      /* all that was committed up to this call */
#define GPUSYNC_FOREVER (~(uint64_t)0)               /* a timeout without a limit */
#define GPUSYNC_MAX_VALUE (~(uint64_t)0 >> 1)        /* largest value of a timeline that gpusync signals or waits for */

/* How long a wait looks again and again before it sleeps: for the iterations or for max_spin_ns, whichever ends first.
   max_spin_ns 0: no limit in time. No iterations, but a time: yields for that time. All zero: sleep at once. */
typedef struct gpusync_spin {
    uint32_t pause_iterations; /* with the CPU's pause instruction in between; default 32 */
    uint32_t yield_iterations; /* then with the yield hook in between; default 224 */
    uint64_t max_spin_ns;
} gpusync_spin;

typedef enum gpusync_wait_mode {
    GPUSYNC_WAIT_DEFAULT = 0,       /* of the queue, else of the device, else SPIN_THEN_HANDLER */
    GPUSYNC_WAIT_SPIN_THEN_HANDLER, /* spin for the budget, then sleep until the handler */
    GPUSYNC_WAIT_HANDLER,           /* sleep at once */
    GPUSYNC_WAIT_BLOCKING           /* Metal's waitUntilCompleted: parks the thread inside Metal, without a
                                       time limit, past device loss and destroy. Only for waits without limit
                                       on committed buffers; every other wait uses HANDLER. */
} gpusync_wait_mode;

/* A sleeping wait, as the scheduler hooks see it. A waiter is used by one wait after another and stays valid
   until gpusync_device_destroy. scheduler_data is zero when the waiter is made and never touched by gpusync. */
typedef struct gpusync_waiter {
    void *scheduler_data[2];
} gpusync_waiter;

/* What a wait does with its thread. A fiber scheduler or a language runtime supplies its own, so that no
   thread is blocked. NULL members mean the default; park and unpark come together or not at all.
   A hook must not let a C++ exception or a longjmp out, and must not call gpusync_*_destroy.

   yield(user)            Let others run, briefly. Default: sched_yield.
   park(user, waiter,     Sleep until unpark(waiter) or until gpusync_now_ns() reaches deadline_ns
        deadline_ns)      (GPUSYNC_FOREVER: no deadline). May return early for no reason. When unpark came first,
                          return at once: an unpark leaves a permit, one at most. Default: condition variable.
   unpark(user, waiter)   Called on any thread, Metal's included; must not block. May come late, when the wait
                          that it was meant for is over: the next park then returns early. */
typedef struct gpusync_hooks {
    void (*yield)(void *user);
    void (*park)(void *user, gpusync_waiter *waiter, uint64_t deadline_ns);
    void (*unpark)(void *user, gpusync_waiter *waiter);
    void *user;
} gpusync_hooks;

/* Memory of devices and queues. allocate returns NULL or size bytes at the alignment (a power of two, at most
   128); release gets the size that was asked for. Called when objects are made, grow or go (and by a
   wait for more than 16 queues or points), never for a commit or a wait in the steady state, and not after the
   destroy call of the device. Any thread; must not call gpusync. */
typedef struct gpusync_allocator {
    void *(*allocate)(void *user, size_t size, size_t alignment);
    void (*release)(void *user, void *memory, size_t size);
    void *user;
} gpusync_allocator;

typedef enum gpusync_log_level { GPUSYNC_LOG_INFO, GPUSYNC_LOG_WARNING, GPUSYNC_LOG_ERROR } gpusync_log_level;

/* One line of text without a newline, valid during the call: a failed command buffer, a lost device, handlers
   that never came. Called on any thread, Metal's included: keep it short. See >>threads. */
typedef void (*gpusync_log_fn)(void *user, gpusync_log_level level, const char *text);

/* Zero-initialise, then set what should differ from the default. */
typedef struct gpusync_device_desc {
    void *metal_device;                 /* id<MTLDevice>; NULL: the system's default, else the first of the list */
    const gpusync_hooks *hooks;         /* copied; NULL: threads */
    const gpusync_allocator *allocator; /* copied; NULL: malloc */
    const gpusync_spin *spin;           /* copied; NULL: 32 pauses, 224 yields */
    gpusync_wait_mode wait_mode;
    gpusync_log_fn log; /* NULL: silent */
    void *log_user;
} gpusync_device_desc;

typedef struct gpusync_queue_desc {
    void *metal_queue;                  /* id<MTLCommandQueue> of this device; NULL: make one */
    const char *label;                  /* of a queue that is made; copied; NULL: none */
    uint32_t max_command_buffer_count;  /* uncompleted buffers that the Metal queue allows; 0: Metal's own 64. For
                                           a metal_queue of yours: what you made it with. */
    uint32_t error_log_count;           /* failures kept for gpusync_next_error; 0: 64 */
    const gpusync_spin *spin;           /* copied; NULL: the device's */
    gpusync_wait_mode wait_mode;
} gpusync_queue_desc;

typedef struct gpusync_command_buffer_desc {
    const uint64_t *timeout_ns;  /* how long to wait for room in the queue; NULL: no limit */
    const char *label;           /* copied; shows in failures and reports; NULL: none */
    bool unretained_references;  /* Metal does not retain what is encoded: you keep it alive */
} gpusync_command_buffer_desc;

/* Why a command buffer failed, and what usually helps. Derived from Metal's error code (MTLCommandBufferError),
   INNOCENT_VICTIM from the driver's name in the text: unverified, see README. */
typedef enum gpusync_failure {
    GPUSYNC_FAILURE_NONE = 0,
    GPUSYNC_FAILURE_OUT_OF_MEMORY,    /* free memory or split the work, then retry */
    GPUSYNC_FAILURE_TIMEOUT,          /* ran or waited too long: split the work */
    GPUSYNC_FAILURE_PAGE_FAULT,       /* bad access in a shader: a bug, do not retry */
    GPUSYNC_FAILURE_INVALID_RESOURCE, /* a resource was gone: a bug, do not retry */
    GPUSYNC_FAILURE_NOT_PERMITTED,    /* iOS in the background: retry in the foreground */
    GPUSYNC_FAILURE_INNOCENT_VICTIM,  /* somebody else's fault reset the GPU: retry */
    GPUSYNC_FAILURE_ACCESS_REVOKED,   /* too many faults: the device is lost to this program */
    GPUSYNC_FAILURE_DEVICE_REMOVED,   /* unplugged: the device is lost */
    GPUSYNC_FAILURE_CANCELLED,        /* never ran: gpusync_untrack */
    GPUSYNC_FAILURE_OTHER             /* see domain, code and message */
} gpusync_failure;

/* One failure. Text is UTF-8, cut to fit, always terminated; empty where there is none. */
typedef struct gpusync_error {
    gpusync_result result;   /* what a wait for the ticket returns: ERROR_EXECUTION, ERROR_CANCELLED */
    gpusync_failure failure;
    gpusync_ticket ticket;
    int64_t code;            /* NSError code: look at the domain first */
    uint64_t dropped;        /* gpusync_next_error: records that were dropped since the cursor, before this one */
    char domain[64];
    char message[256];
    char label[64];          /* of the command buffer */
    char queue_label[64];
} gpusync_error;

typedef struct gpusync_wait_options {
    const gpusync_spin *spin;    /* NULL: the queue's */
    gpusync_wait_mode mode;
    gpusync_error *error;        /* when the work failed: filled with the (first) failure; may be NULL */
} gpusync_wait_options;

typedef struct gpusync_timeline_desc {
    uint64_t initial_value; /* of a timeline that is created */
    const char *label;      /* copied; shows in reports; NULL: none */
    bool fail_writes_event; /* of an imported one: gpusync_timeline_fail ends device waits of others too, by writing
                               UINT64_MAX to the event, which no later value can lower */
} gpusync_timeline_desc;

/* Something to wait for: a ticket of a queue, or, where timeline is not NULL, a value of that timeline. */
typedef struct gpusync_point {
    gpusync_queue *queue;
    gpusync_ticket ticket; /* GPUSYNC_EVERYTHING too */
    gpusync_timeline *timeline;
    uint64_t value;
} gpusync_point;

typedef enum gpusync_wait_for { GPUSYNC_WAIT_ALL, GPUSYNC_WAIT_ANY } gpusync_wait_for;

typedef struct gpusync_ticket_info {
    gpusync_result result; /* as gpusync_poll */
    double gpu_start_s;    /* Metal's GPUStartTime and GPUEndTime: seconds, host clock, 0 when Metal */
    double gpu_end_s;      /* does not tell */
} gpusync_ticket_info;

/* Counts since the queue (or device) was made. */
typedef struct gpusync_stats {
    uint64_t commits;        /* tickets issued, those of the track calls included */
    uint64_t completions;    /* tickets that ended, well or badly */
    uint64_t failures;       /* of those, with an error */
    uint64_t failures_dropped; /* records pushed out of the log */
    uint64_t waits_inline;   /* waits that ended by looking at the counter, */
    uint64_t waits_status;   /* ... by reading the status, */
    uint64_t waits_spin;     /* ... within the spin budget, */
    uint64_t waits_sleep;    /* ... after sleeping, */
    uint64_t waits_unmet;    /* ... without the work being done: timeout, lost, destroyed, deadlock */
    uint64_t spurious_wakes; /* park returned early with nothing to show for it */
    uint64_t sentinels;      /* empty command buffers made for gpusync_track_committed */
} gpusync_stats;

/* ---------------------------------------------------------------------------------- >>api -- */

/* -- set-up -------------------------------------------------------------------------------- */

/* Make a device object. desc may be NULL.
   Returns  OK; ERROR_NO_DEVICE; ERROR_OUT_OF_MEMORY; ERROR_INVALID_ARGUMENT (park without unpark).
            *out is NULL unless OK.
   Owns     retains the Metal device. Threads: any. */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_device_create(const gpusync_device_desc *desc,
                                                                   gpusync_device **out);

/* Destroy a device whose queues and timelines are all destroyed. After OK no hook, allocator or log function is called.
   Returns  OK (also for NULL); ERROR_IN_USE: it still has some, nothing was done; ERROR_WOULD_DEADLOCK.
   Threads  one, with no other call on the device in progress. */
GPUSYNC_API gpusync_result gpusync_device_destroy(gpusync_device *device);

/* Make a queue object over a command queue of the device. desc may be NULL.
   Returns  OK; ERROR_METAL_NIL; ERROR_OUT_OF_MEMORY; ERROR_DEVICE_LOST; ERROR_UNSUPPORTED: metal_queue is a
            Metal 4 queue; ERROR_INVALID_ARGUMENT: it is a queue of another device. *out is NULL unless OK.
   Owns     retains the Metal queue; the device must outlive the queue. Threads: any. */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_queue_create(gpusync_device *device,
                                                                  const gpusync_queue_desc *desc,
                                                                  gpusync_queue **out);

/* Wait until everything committed has ended, then destroy the queue. Buffers that were made or tracked, but not
   committed, are given up. Waits in progress on other threads return ERROR_DESTROYED.
   Returns  OK (also for NULL); ERROR_WOULD_DEADLOCK: inside a callback, nothing was done.
   Blocks   until the GPU is finished, without limit; not at all once the device is lost. */
GPUSYNC_API gpusync_result gpusync_queue_destroy(gpusync_queue *queue);

/* As gpusync_queue_destroy, but leaves alone what is in flight: it goes on, nobody is told of its end. For a
   GPU that hangs, or an exit that must not wait for it. (It waits for handlers and waits that are on their way out, and
   for waits in mode BLOCKING, which nothing can end.) */
GPUSYNC_API gpusync_result gpusync_queue_destroy_now(gpusync_queue *queue);

/* The Metal object behind it, borrowed. NULL for NULL. */
GPUSYNC_API void *gpusync_device_metal(const gpusync_device *device);
GPUSYNC_API void *gpusync_queue_metal(const gpusync_queue *queue);

/* -- command buffers ----------------------------------------------------------------------- */

/* Make a command buffer of this queue, without blocking inside Metal: where the queue is full (see
   max_command_buffer_count; uncommitted buffers count) this waits for room up to desc->timeout_ns. gpusync counts
   what went through its own calls; buffers made elsewhere and not yet committed or tracked are unknown to it.
   desc may be NULL.
   Returns  OK: *out is the buffer, see >>ownership. TIMEOUT; ERROR_METAL_NIL; ERROR_OUT_OF_MEMORY; ERROR_DEVICE_LOST;
            ERROR_DESTROYED; ERROR_WOULD_DEADLOCK. *out is NULL unless OK.
   Threads  any. */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_command_buffer(gpusync_queue *queue,
                                                                    const gpusync_command_buffer_desc *desc,
                                                                    void **out);

/* Give back a buffer of gpusync_command_buffer that will not be committed.
   Returns  OK; ERROR_UNKNOWN_BUFFER: committed or discarded already, or never ours; ERROR_DESTROYED. */
GPUSYNC_API gpusync_result gpusync_command_buffer_discard(gpusync_queue *queue, void *command_buffer);

/* -- commit and ask ------------------------------------------------------------------------ */

/* Commit a command buffer: call this instead of [buffer commit]. The buffer may come from gpusync_command_buffer or
   from anywhere else, as long as it belongs to this command queue. The order of tickets is the order of the queue.
   ticket may be NULL.
   Returns  OK. On any error the buffer is untouched and still yours: ERROR_WRONG_QUEUE; ERROR_ALREADY_COMMITTED;
            ERROR_ALREADY_TRACKED: its owner commits it, see gpusync_track; ERROR_OUT_OF_MEMORY; ERROR_DEVICE_LOST;
            ERROR_DESTROYED; ERROR_UNSUPPORTED: a Metal 4 buffer.
   Threads  any. Cost: besides addCompletedHandler: and commit one message, status, which is how a second commit is
            found; for buffers that gpusync did not make also commandQueue and a retain. */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_commit(gpusync_queue *queue, void *command_buffer,
                                                            gpusync_ticket *ticket);

/* Give a ticket to a command buffer that its owner commits later, without gpusync. The ticket counts as committed
   from here on: the queue is not idle, and waits wait, until the buffer ends. Tickets behind it may end before it, but
   is_done says so only after it: a tracked buffer that is forgotten makes the queue remember every ticket since.
   Returns  as gpusync_commit. When the owner drops the buffer instead, call gpusync_untrack. */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_track(gpusync_queue *queue, void *command_buffer,
                                                           gpusync_ticket *ticket);

/* Take back gpusync_track for a buffer that will never be committed. Waits for the ticket return ERROR_CANCELLED.
   Returns  OK; ERROR_INVALID_TICKET: not one of gpusync_track, or over already; ERROR_ALREADY_COMMITTED;
            ERROR_DESTROYED. */
GPUSYNC_API gpusync_result gpusync_untrack(gpusync_queue *queue, gpusync_ticket ticket);

/* Give a ticket to a command buffer that is committed already. Metal takes no handler any more, so one empty command
   buffer with a handler (a sentinel) is committed behind it, where the queue has room, and the status is read when
   that ends, and at every later commit, poll and handler of the queue.
   Returns  as gpusync_commit, but ERROR_NOT_COMMITTED for ERROR_ALREADY_COMMITTED.
   The ticket has the top bit set: it is no part of the row 1, 2, 3, ... but waits and is_idle count it. */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_track_committed(gpusync_queue *queue, void *command_buffer,
                                                                     gpusync_ticket *ticket);

/* What a wait would say at this moment, from Metal's own status: also sees an end whose handler did not run yet, or
   that an earlier ticket still hides from gpusync_is_done. ticket may be GPUSYNC_EVERYTHING.
   Returns  NOT_READY: not finished. Else it is finished: OK; ERROR_EXECUTION; ERROR_CANCELLED; ERROR_RESULT_UNKNOWN:
            finished so long ago that failures since have pushed its record out. ERROR_INVALID_TICKET;
            ERROR_DEVICE_LOST: unfinished, and never will be; ERROR_DESTROYED.
   Threads  any; never blocks. */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_poll(gpusync_queue *queue, gpusync_ticket ticket);

#if GPUSYNC_OBJC
/* What the two inline calls below read: the start of every gpusync_queue. Not for other use. The pad puts the
   counters on cache lines of their own (128 bytes on Apple silicon). */
typedef struct gpusync__head {
    uint64_t completed; /* every ticket up to this one has ended */
    unsigned char pad[120];
    uint64_t committed; /* last ticket issued; top bit: gpusync_track_committed work is unfinished */
} gpusync__head;
#endif
#define GPUSYNC__FOREIGN ((uint64_t)1 << 63)
GPUSYNC_API bool gpusync__foreign_is_done(const gpusync_queue *queue, gpusync_ticket ticket);

/* Is everything committed to the queue finished? Two loads, no Metal call, wait-free. May say false for a moment
   after the GPU is finished, never true too early. false for NULL. */
GPUSYNC_API inline bool gpusync_is_idle(const gpusync_queue *queue)
{
#if GPUSYNC_OBJC
    const gpusync__head *head = (const gpusync__head *)(const void *)queue;
    uint64_t completed;
    if (!head) return false;
    /* completed first: read the other way round, a commit and its completion in between would make a queue look
       idle that never was. */
    completed = __atomic_load_n(&head->completed, __ATOMIC_ACQUIRE);
    /* acquire as well: the end of gpusync_track_committed work shows in its top bit alone */
    return completed == __atomic_load_n(&head->committed, __ATOMIC_ACQUIRE);
#else
    (void)queue;
    return false;
#endif
}

/* Is this ticket finished, well or badly? One load, no Metal call, wait-free. May say false for a moment after the
   GPU is finished, and while an earlier ticket is not; never true too early. false for NULL and for tickets not
   issued. (For tickets of gpusync_track_committed: a call and a short lock.) */
GPUSYNC_API inline bool gpusync_is_done(const gpusync_queue *queue, gpusync_ticket ticket)
{
#if GPUSYNC_OBJC
    const gpusync__head *head = (const gpusync__head *)(const void *)queue;
    if (!head) return false;
    if (ticket & GPUSYNC__FOREIGN) return gpusync__foreign_is_done(queue, ticket);
    return ticket <= __atomic_load_n(&head->completed, __ATOMIC_ACQUIRE);
#else
    (void)queue;
    (void)ticket;
    return false;
#endif
}

/* -- wait ---------------------------------------------------------------------------------- */

/* Wait until one ticket has ended. timeout_ns counts from the call; 0 asks once, GPUSYNC_FOREVER has no limit. When
   the work is done at the deadline, done wins. A wait that timed out leaves nothing behind and can be repeated.
   Returns  OK: it ended well. TIMEOUT. ERROR_EXECUTION, ERROR_CANCELLED, ERROR_RESULT_UNKNOWN: it ended, see
            gpusync_poll. ERROR_INVALID_TICKET. ERROR_DEVICE_LOST, ERROR_DESTROYED: it did not end, and this wait is
            over. ERROR_WOULD_DEADLOCK: inside a callback, not finished (whatever the timeout).
            ERROR_OUT_OF_MEMORY: no memory to sleep with.
   Threads  any, any number at once.
   Blocks   up to timeout_ns, in the park hook; nothing is held meanwhile. */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_wait(gpusync_queue *queue, gpusync_ticket ticket,
                                                          uint64_t timeout_ns);

/* As gpusync_wait, with a spin budget, a mode and a place for the failure. ticket may be GPUSYNC_EVERYTHING: then as
   gpusync_queue_wait. options may be NULL. */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_wait_ex(gpusync_queue *queue, gpusync_ticket ticket,
                                                             uint64_t timeout_ns, const gpusync_wait_options *options);

/* Wait until everything that was committed to the queue before this call has ended. Work committed later is not
   waited for.
   Returns  as gpusync_wait. ERROR_EXECUTION: all of it ended, and some of it failed that no earlier
            gpusync_queue_wait or gpusync_device_wait has covered: such a failure is told once, to each of the waits
            that were going on at the time, whether it happened before or during them. To see all of them use
            tickets or gpusync_next_error. ERROR_DEVICE_LOST: always, once the device is lost. */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_queue_wait(gpusync_queue *queue, uint64_t timeout_ns);

/* gpusync_queue_wait for every queue that the device has at the time of the call, up to what each has committed by
   then.
   Returns  as gpusync_queue_wait, but not ERROR_DESTROYED: a queue that is destroyed meanwhile is no longer one of
            the device's, whatever gpusync_queue_destroy_now left running on it. TIMEOUT where anything did not end:
            what failed elsewhere is then told by the next wait. ERROR_EXECUTION tells the failures of all queues. */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_device_wait(gpusync_device *device, uint64_t timeout_ns);

/* Wait for several points of one device: until ALL of them are reached, or ANY of them. A point that failed counts as
   ended; one that can no longer be reached (its queue or timeline is destroyed, the device is lost) ends the wait. The
   same point may be given several times. Failures of GPUSYNC_EVERYTHING points are told by this wait, as by
   gpusync_device_wait, though it returns one result.
   which    may be NULL. ANY: gets the first point that ended. ALL: the first that failed. Else count.
   Returns  what a wait for that point returns; OK: (ALL) every one was reached; also for a count of 0.
            TIMEOUT: not yet, and nothing that ended has failed. ERROR_INVALID_ARGUMENT: points of two devices, a NULL
            in one, or ANY of none. ERROR_INVALID_TICKET. ERROR_OUT_OF_MEMORY.
   Threads  any. Looks at each point when it begins, when it ends, and every 50 ms; more than 16 points allocate. */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_wait_many(const gpusync_point *points, size_t count,
                                                               gpusync_wait_for how, uint64_t timeout_ns,
                                                               size_t *which);

/* -- timelines -----------------------------------------------------------------------------
   A 64-bit number that only rises, over an MTLSharedEvent: the host raises it with gpusync_timeline_signal, the GPU
   with encodeSignalEvent. Whoever waits for a value goes on once the number is that or more. A timeline that has failed
   stays so: every question and every wait gets the first failure. */

/* Make a timeline with an event of its own. desc may be NULL.
   Returns  OK; ERROR_METAL_NIL: Metal has no event to give (it happens in sandboxes); ERROR_OUT_OF_MEMORY;
            ERROR_DEVICE_LOST; ERROR_NOT_RISING: initial_value above GPUSYNC_MAX_VALUE. *out is NULL unless OK. */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_timeline_create(gpusync_device *device,
                                                                     const gpusync_timeline_desc *desc,
                                                                     gpusync_timeline **out);

/* Make a timeline over an MTLSharedEvent that others signal too, behind gpusync's back. desc may be NULL.
   Returns  as gpusync_timeline_create; ERROR_UNSUPPORTED: not a shared event.    Owns  retains the event. */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_timeline_import(gpusync_device *device, void *shared_event,
                                                                     const gpusync_timeline_desc *desc,
                                                                     gpusync_timeline **out);

/* Waits that sleep or spin in it return ERROR_DESTROYED; no other call may be running or begin.
   Returns  OK (also for NULL); ERROR_WOULD_DEADLOCK: inside a callback, nothing was done. */
GPUSYNC_API gpusync_result gpusync_timeline_destroy(gpusync_timeline *timeline);

/* The MTLSharedEvent, borrowed; NULL for NULL. The event of a created timeline may have lived before: value v of the
   timeline is v + *base on the event (call this before the expression that uses base). base may be NULL, and is 0 for
   an imported event. For the GPU to signal it,
   without gpusync, name the value with gpusync_timeline_expect. */
GPUSYNC_API void *gpusync_timeline_metal(gpusync_timeline *timeline, uint64_t *base);

/* The present value. Reads the event where others may signal it.
   Returns  OK; the result of the failure, when the timeline has failed: *value is what it had reached. */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_timeline_query(gpusync_timeline *timeline, uint64_t *value);

/* Raise the timeline from the host and wake who waits for it, on the host and on the device.
   Returns  OK; ERROR_NOT_RISING: the value is unchanged; the result of the failure; ERROR_DEVICE_LOST;
            ERROR_DESTROYED.    Threads  any; of two at a time the larger value counts. */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_timeline_signal(gpusync_timeline *timeline, uint64_t value);

/* Say that this value will come from somebody that gpusync does not see: work encoded on the event, another process.
   From here on the event itself is looked at, as it is for an imported timeline.
   Returns  OK; ERROR_NOT_RISING: above GPUSYNC_MAX_VALUE; the result of the failure; ERROR_DESTROYED. */
GPUSYNC_API gpusync_result gpusync_timeline_expect(gpusync_timeline *timeline, uint64_t value);

/* End the timeline in failure: every wait and every later call returns reason->result (ERROR_EXECUTION when reason is
   NULL or its result is not an error), waits on the device go on (of an imported event only with fail_writes_event).
   Returns  OK; the result of the first failure, when there was one: it stands; ERROR_DESTROYED. */
GPUSYNC_API gpusync_result gpusync_timeline_fail(gpusync_timeline *timeline, const gpusync_error *reason);

/* Wait for a value. One load and no message when it is reached; else as gpusync_wait_ex, whose options are for this one
   too (options may be NULL; the mode BLOCKING works as HANDLER does).
   Returns  OK; TIMEOUT; the result of the failure; ERROR_DEVICE_LOST; ERROR_DESTROYED; ERROR_WOULD_DEADLOCK;
            ERROR_NOT_RISING: above GPUSYNC_MAX_VALUE; ERROR_OUT_OF_MEMORY. */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_timeline_wait(gpusync_timeline *timeline, uint64_t value,
                                                                   uint64_t timeout_ns,
                                                                   const gpusync_wait_options *options);

/* -- failures ------------------------------------------------------------------------------ */

/* The next failure of this queue that the cursor has not seen. Start with a cursor of 0 to see all that are on
   record. Every reader has its own cursor and sees every failure once, in the order in which they were found.
   Returns  OK: *error is filled, the cursor moved on. NOT_READY: no more for now. */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_next_error(gpusync_queue *queue, uint64_t *cursor,
                                                                gpusync_error *error);

/* A short text in English for a result or a failure class; never NULL. */
GPUSYNC_API const char *gpusync_result_string(gpusync_result result);
GPUSYNC_API const char *gpusync_failure_string(gpusync_failure failure);

/* Is the device lost? Set by Metal's errors AccessRevoked and DeviceRemoved; for good. false for NULL. */
GPUSYNC_API bool gpusync_device_is_lost(const gpusync_device *device);

/* -- insight ------------------------------------------------------------------------------- */

/* How a ticket ended and when the GPU ran it. Kept for at least the last 256 tickets of gpusync_commit and
   gpusync_track.
   Returns  OK: *info is filled. NOT_READY; ERROR_INVALID_TICKET; ERROR_DEVICE_LOST: unfinished, and never will be;
            ERROR_DESTROYED; ERROR_RESULT_UNKNOWN: too old, ticket 0, or of gpusync_track_committed. */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_get_info(gpusync_queue *queue, gpusync_ticket ticket,
                                                              gpusync_ticket_info *info);

/* Counts of one queue; of the device: the sum over its queues, destroyed ones included, and the waits for timelines and
   for many points. Each number is exact, but
   they are not read at one instant. */
GPUSYNC_API gpusync_result gpusync_get_stats(const gpusync_queue *queue, gpusync_stats *stats);
GPUSYNC_API gpusync_result gpusync_device_get_stats(gpusync_device *device, gpusync_stats *stats);

/* Write a text about every queue, every unfinished command buffer (ticket, label, status, age) and every wait in
   progress: what to print when a program hangs. buffer may be NULL when size is 0. Returns the length of the whole
   text without its terminator, as snprintf does; the text is cut to size - 1 bytes. Threads: any. Does not wait,
   but takes locks and asks Metal for labels and states. */
GPUSYNC_API size_t gpusync_report(gpusync_device *device, char *buffer, size_t size);

/* The clock of deadline_ns: monotonic nanoseconds that stop while the machine sleeps on Apple systems. */
GPUSYNC_API uint64_t gpusync_now_ns(void);

#ifdef __cplusplus
}
#endif

#endif /* GPUSYNC_H */

/* ========================================================================================== */
/* ----------------------------------------------------------------------------- >>impl -- */

#if defined(GPUSYNC_IMPLEMENTATION) && !defined(GPUSYNC__IMPLEMENTED)
#define GPUSYNC__IMPLEMENTED

GPUSYNC_API const char *gpusync_result_string(gpusync_result result)
{
    switch (result) {
#define GPUSYNC__CASE(name, value, text)                                                             \
    case GPUSYNC_##name:                                                                             \
        return text;
        GPUSYNC_RESULTS(GPUSYNC__CASE)
#undef GPUSYNC__CASE
    }
    return "unknown result";
}

GPUSYNC_API const char *gpusync_failure_string(gpusync_failure failure)
{
    switch (failure) {
    case GPUSYNC_FAILURE_NONE: return "no failure";
    case GPUSYNC_FAILURE_OUT_OF_MEMORY: return "out of memory";
    case GPUSYNC_FAILURE_TIMEOUT: return "timeout";
    case GPUSYNC_FAILURE_PAGE_FAULT: return "page fault";
    case GPUSYNC_FAILURE_INVALID_RESOURCE: return "invalid resource";
    case GPUSYNC_FAILURE_NOT_PERMITTED: return "not permitted";
    case GPUSYNC_FAILURE_INNOCENT_VICTIM: return "innocent victim";
    case GPUSYNC_FAILURE_ACCESS_REVOKED: return "access revoked";
    case GPUSYNC_FAILURE_DEVICE_REMOVED: return "device removed";
    case GPUSYNC_FAILURE_CANCELLED: return "cancelled";
    case GPUSYNC_FAILURE_OTHER: return "other";
    }
    return "unknown failure";
}

#if GPUSYNC_OBJC

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifndef GPUSYNC_ASSERT
#include <assert.h>
#define GPUSYNC_ASSERT(condition) assert(condition)
#endif

#if defined(__has_feature)
#if __has_feature(ptrauth_calls)
#error "gpusync: arm64e needs signed block pointers, which nobody has tried yet; build for arm64"
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* -------------------------------------------------------------------------------- >>objc --
   Everything of the Objective-C runtime and of Metal that is used, declared here under private names (the
   asm label is the real symbol), so that no SDK header is needed and none can clash. */

#define GPUSYNC__TEXT2(x) #x
#define GPUSYNC__TEXT(x) GPUSYNC__TEXT2(x)
#define GPUSYNC__SYMBOL(name) __asm__(GPUSYNC__TEXT(__USER_LABEL_PREFIX__) name)

extern void gpusync__objc_msg_send(void) GPUSYNC__SYMBOL("objc_msgSend");
extern void *gpusync__sel_register(const char *name) GPUSYNC__SYMBOL("sel_registerName");
extern void *gpusync__class_named(const char *name) GPUSYNC__SYMBOL("objc_getClass");
extern void *gpusync__class_of(void *object) GPUSYNC__SYMBOL("object_getClass");
/* BOOL is a signed char or a bool: one byte either way. */
extern signed char gpusync__class_responds(void *cls, void *sel) GPUSYNC__SYMBOL("class_respondsToSelector");
extern void *gpusync__retain(void *object) GPUSYNC__SYMBOL("objc_retain");
extern void gpusync__release(void *object) GPUSYNC__SYMBOL("objc_release");
extern void *gpusync__pool_push(void) GPUSYNC__SYMBOL("objc_autoreleasePoolPush");
extern void gpusync__pool_pop(void *pool) GPUSYNC__SYMBOL("objc_autoreleasePoolPop");
extern void *gpusync__default_device(void) GPUSYNC__SYMBOL("MTLCreateSystemDefaultDevice");
/* Weak: iOS has it from 18 on. */
extern void *gpusync__all_devices(void) GPUSYNC__SYMBOL("MTLCopyAllDevices") __attribute__((weak));
extern void *gpusync__global_block[32] GPUSYNC__SYMBOL("_NSConcreteGlobalBlock");
extern void *gpusync__stack_block[32] GPUSYNC__SYMBOL("_NSConcreteStackBlock");

/* Through a variable, because gcc traps on a call of a declared function by another type. */
static void (*gpusync__send)(void) = gpusync__objc_msg_send;

/* objc_msgSend as a function of this result and, after object and selector, these arguments: they must be the
   method's own types, and never variadic. No selector here returns a struct, so objc_msgSend serves for all, double
   included, on arm64 and x86-64. */
#define GPUSYNC__AS(result) ((result (*)(void *, void *))gpusync__send)
#define GPUSYNC__AS1(result, argument) ((result (*)(void *, void *, argument))gpusync__send)

static void *gpusync__send_id(void *self, void *sel) { return GPUSYNC__AS(void *)(self, sel); }
static unsigned long gpusync__send_ulong(void *self, void *sel) { return GPUSYNC__AS(unsigned long)(self, sel); }
static void gpusync__send_void(void *self, void *sel) { GPUSYNC__AS(void)(self, sel); }
static void gpusync__send_void_id(void *self, void *sel, void *argument)
{
    GPUSYNC__AS1(void, void *)(self, sel, argument);
}

#define GPUSYNC__SELECTORS(X)                                                                        \
    X(addCompletedHandler, "addCompletedHandler:")                                                   \
    X(alloc, "alloc")                                                                                \
    X(code, "code")                                                                                  \
    X(commandBuffer, "commandBuffer")                                                                \
    X(commandBufferUnretained, "commandBufferWithUnretainedReferences")                              \
    X(commandQueue, "commandQueue")                                                                  \
    X(commit, "commit")                                                                              \
    X(count, "count")                                                                                \
    X(device, "device")                                                                              \
    X(domain, "domain")                                                                              \
    X(error, "error")                                                                                \
    X(gpuEndTime, "GPUEndTime")                                                                      \
    X(gpuStartTime, "GPUStartTime")                                                                  \
    X(init, "init")                                                                                  \
    X(label, "label")                                                                                \
    X(localizedDescription, "localizedDescription")                                                  \
    X(newCommandQueueWithMax, "newCommandQueueWithMaxCommandBufferCount:")                           \
    X(newSharedEvent, "newSharedEvent")                                                              \
    X(notifyListener, "notifyListener:atValue:block:")                                               \
    X(objectAtIndex, "objectAtIndex:")                                                               \
    X(registryID, "registryID")                                                                      \
    X(setLabel, "setLabel:")                                                                         \
    X(setSignaledValue, "setSignaledValue:")                                                         \
    X(signaledValue, "signaledValue")                                                                \
    X(status, "status")                                                                              \
    X(stringWithUTF8String, "stringWithUTF8String:")                                                 \
    X(utf8String, "UTF8String")                                                                      \
    X(waitUntilCompleted, "waitUntilCompleted")

static struct gpusync__selectors {
#define GPUSYNC__FIELD(name, text) void *name;
    GPUSYNC__SELECTORS(GPUSYNC__FIELD)
#undef GPUSYNC__FIELD
} gpusync__sel;

/* MTLCommandBufferStatus */
#define GPUSYNC__STATUS_COMMITTED 2ul
#define GPUSYNC__STATUS_COMPLETED 4ul
#define GPUSYNC__STATUS_ERROR 5ul

/* +0, for the caller's pool. */
static void *gpusync__string(const char *text)
{
    void *cls = gpusync__class_named("NSString");
    return GPUSYNC__AS1(void *, const char *)(cls, gpusync__sel.stringWithUTF8String, text);
}

/* Copy UTF-8, cut to fit at the start of a character. text may be NULL. */
static void gpusync__copy_text(char *to, size_t size, const char *text)
{
    size_t length = text ? strlen(text) : 0;
    if (length >= size)
        for (length = size - 1; length > 0 && ((unsigned char)text[length] & 0xC0) == 0x80;) length--;
    if (length) memcpy(to, text, length);
    to[length] = '\0';
}

/* Copy an NSString; string may be nil. Needs a pool. */
static void gpusync__copy_string(char *to, size_t size, void *string)
{
    gpusync__copy_text(to, size, string ? GPUSYNC__AS(const char *)(string, gpusync__sel.utf8String) : NULL);
}

/* Without a pool, as the one message that waits send again and again: it returns a number. That nothing is autoreleased
   on the way is unverified for Metal's debugging layers. */
static unsigned long gpusync__status(void *buffer)
{
    unsigned long status = gpusync__send_ulong(buffer, gpusync__sel.status);
    /* What the GPU wrote must be read after its end was seen. Metal does not say that reading the status orders
       anything, so this does. */
    if (status >= GPUSYNC__STATUS_COMPLETED) __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return status;
}

static void gpusync__release_pooled(void *object)
{
    void *pool = gpusync__pool_push();
    gpusync__release(object);
    gpusync__pool_pop(pool);
}

/* ---------------------------------------------------------------------------- >>platform --
   Atomics, clock, the default hooks. Sequential consistency everywhere but in statistics: the rules of the ring and of
   the waiters ("mark, then look"; "register, then look") need it, and the rest is not worth a second thought. */

#define GPUSYNC__GET(p) __atomic_load_n(p, __ATOMIC_SEQ_CST)
#define GPUSYNC__PUT(p, value) __atomic_store_n(p, value, __ATOMIC_SEQ_CST)
#define GPUSYNC__SET(p, value) __atomic_store_n(p, value, __ATOMIC_RELAXED) /* published by a later PUT */
#define GPUSYNC__ADD(p, n) __atomic_fetch_add(p, n, __ATOMIC_SEQ_CST)
#define GPUSYNC__SUB(p, n) __atomic_fetch_sub(p, n, __ATOMIC_SEQ_CST)
#define GPUSYNC__COUNT(p) ((void)__atomic_fetch_add(p, 1, __ATOMIC_RELAXED))
/* Compare and swap; on failure *expected is what was there. */
#define GPUSYNC__SWAP(p, expected, value)                                                            \
    __atomic_compare_exchange_n(p, expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)

static bool gpusync__swap32(uint32_t *p, uint32_t from, uint32_t to) { return GPUSYNC__SWAP(p, &from, to); }

#if defined(__x86_64__) || defined(__i386__)
#define GPUSYNC__PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__) || defined(__arm__)
#define GPUSYNC__PAUSE() __asm__ __volatile__("yield")
#else
#define GPUSYNC__PAUSE() ((void)0)
#endif

GPUSYNC_API uint64_t gpusync_now_ns(void)
{
#ifdef __APPLE__
    return clock_gettime_nsec_np(CLOCK_UPTIME_RAW);
#else
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
#endif
}

static uint64_t gpusync__deadline(uint64_t timeout_ns)
{
    uint64_t now;
    if (timeout_ns == GPUSYNC_FOREVER) return GPUSYNC_FOREVER;
    now = gpusync_now_ns();
    return timeout_ns < GPUSYNC_FOREVER - 1 - now ? now + timeout_ns : GPUSYNC_FOREVER - 1;
}

static uint64_t gpusync__time_left(uint64_t deadline)
{
    uint64_t now;
    if (deadline == GPUSYNC_FOREVER) return GPUSYNC_FOREVER;
    now = gpusync_now_ns();
    return now < deadline ? deadline - now : 0;
}

enum { GPUSYNC__ONE, GPUSYNC__ALL, GPUSYNC__ROOM, GPUSYNC__VALUE };

/* One thing to wait for. */
typedef struct gpusync__goal {
    gpusync_queue *queue;       /* of the first three, */
    gpusync_timeline *timeline; /* of VALUE */
    uint32_t kind;
    bool draining;    /* destroy's own wait: goes on though the queue is closing */
    uint64_t ticket;  /* ONE: this one. VALUE: the value. ALL: every ticket up to this one, */
    uint64_t foreign; /* ... and every foreign one up to this */
    uint64_t covered, foreign_covered; /* ALL: what earlier queue-wide waits have told of */
} gpusync__goal;

typedef struct gpusync__waiter {
    gpusync_waiter open; /* first: what the hooks get */
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    bool permit;
    bool any;        /* wake it for any of its watches, not only for the last */
    uint32_t linked; /* how many of its watches are on a board */
    struct gpusync__waiter *next; /* free */
} gpusync__waiter;

/* A waiter's goal, on the board of what can meet it. */
typedef struct gpusync__watch {
    gpusync__goal goal;
    gpusync__waiter *waiter;
    bool linked;
    bool left; /* of many: it is over, this is the result, and what it was about may be gone */
    gpusync_result result;
    uint64_t since_ns;
    struct gpusync__watch *next, *previous;
} gpusync__watch;

/* Who sleeps for something. The lock is the wait lock: a leaf; no message, hook or user code under it. */
typedef struct gpusync__board {
    pthread_mutex_t lock;
    gpusync__watch *first, *last;
    uint32_t count;
} gpusync__board;

static void gpusync__cond_init(pthread_cond_t *cond)
{
#ifdef __APPLE__
    pthread_cond_init(cond, NULL);
#else
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attributes);
    pthread_condattr_destroy(&attributes);
#endif
}

/* 0, or ETIMEDOUT once the deadline has passed. */
static int gpusync__cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex, uint64_t deadline_ns)
{
    struct timespec at;
    uint64_t ns = deadline_ns;
    if (deadline_ns == GPUSYNC_FOREVER) return pthread_cond_wait(cond, mutex);
#ifdef __APPLE__
    ns = gpusync_now_ns();
    if (ns >= deadline_ns) return ETIMEDOUT;
    ns = deadline_ns - ns;
#endif
    at.tv_sec = (time_t)(ns / 1000000000u);
    at.tv_nsec = (long)(ns % 1000000000u);
#ifdef __APPLE__
    return pthread_cond_timedwait_relative_np(cond, mutex, &at);
#else
    return pthread_cond_timedwait(cond, mutex, &at);
#endif
}

static void gpusync__default_yield(void *user)
{
    (void)user;
    sched_yield();
}

static void gpusync__default_park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    gpusync__waiter *w = (gpusync__waiter *)(void *)waiter;
    (void)user;
    pthread_mutex_lock(&w->mutex);
    while (!w->permit && gpusync__cond_wait(&w->wake, &w->mutex, deadline_ns) != ETIMEDOUT) {}
    w->permit = false;
    pthread_mutex_unlock(&w->mutex);
}

static void gpusync__default_unpark(void *user, gpusync_waiter *waiter)
{
    gpusync__waiter *w = (gpusync__waiter *)(void *)waiter;
    (void)user;
    pthread_mutex_lock(&w->mutex);
    w->permit = true;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->mutex);
}

static void *gpusync__default_allocate(void *user, size_t size, size_t alignment)
{
    void *memory;
    (void)user;
    return posix_memalign(&memory, alignment, size) ? NULL : memory;
}

static void gpusync__default_release(void *user, void *memory, size_t size)
{
    (void)user;
    (void)size;
    free(memory);
}

/* -------------------------------------------------------------------------------- >>pool --
   Slots: one per command buffer that gpusync has a hand in. A slot *is* the completion handler: it begins with a block
   literal that claims to be a global one, so Metal's Block_copy returns the same pointer and no commit allocates. Metal
   still reads the block's flags when it drops it, at a time that nobody can see: so slots live in slabs that are
   never freed, and the block header is written once. (Layout and flags: the Clang Block ABI.) */

typedef struct gpusync__block_descriptor {
    uintptr_t reserved, size;
    const char *signature, *layout;
} gpusync__block_descriptor;

typedef struct gpusync__block {
    void *isa;
    int32_t flags, reserved;
    void (*invoke)(void *block, void *buffer);
    const gpusync__block_descriptor *descriptor;
} gpusync__block;

#define GPUSYNC__BLOCK_IS_GLOBAL (1 << 28)
#define GPUSYNC__BLOCK_HAS_SIGNATURE (1 << 30)

/* What a slot is doing, in the low bits of its state word; the rest is the command buffer that it does it for. The two
   are compared and swapped as one, so nobody can mistake a slot for what it was before.

       FREE -> OPEN -> ARMED -> RUNNING -> FREE      OPEN: made, not committed. ARMED: Metal holds the handler.
                  \        \
                   FREE     ORPHANED -> FREE         the queue went first: the handler touches the slot alone */
enum { GPUSYNC__FREE, GPUSYNC__OPEN, GPUSYNC__ARMED, GPUSYNC__RUNNING, GPUSYNC__ORPHANED, GPUSYNC__STATE_MASK = 7 };
enum { GPUSYNC__WORK, GPUSYNC__TRACKED, GPUSYNC__FOREIGN_WORK, GPUSYNC__SENTINEL };

typedef struct gpusync__slot {
    gpusync__block block; /* first: the handler gets a pointer to it */
    uintptr_t state;      /* see above; objects are aligned to 16 bytes */
    void *buffer;
    gpusync_queue *queue;
    uint64_t ticket;
    uint32_t holders; /* the handler (or the list of open or foreign buffers) and everybody who looks at the buffer */
    uint32_t claimed; /* by whoever saw the end first */
    uint32_t kind;
    uint32_t roomless; /* its room in the queue is given back */
    uint64_t since_ns; /* committed; from the claim on: ended */
    struct gpusync__slot *next; /* in the pool, or in the queue's list of open or foreign buffers */
    unsigned char pad[32];
} gpusync__slot;
typedef char gpusync__slot_fills_one_cache_line[sizeof(gpusync__slot) == 128 ? 1 : -1]; /* of Apple silicon */

#define GPUSYNC__SLAB_SLOTS 63
typedef struct gpusync__slab {
    struct gpusync__slab *next;
    unsigned char pad[120];
    gpusync__slot slots[GPUSYNC__SLAB_SLOTS];
} gpusync__slab;

/* A callback in progress: known by its thread, not by a flag that a fiber could carry to another one. */
typedef struct gpusync__call {
    pthread_t thread;
    struct gpusync__call *next;
} gpusync__call;

/* All the global state there is, besides the selectors. */
static struct gpusync__global {
    pthread_mutex_t lock;
    bool selectors_ready;
    gpusync__slab *slabs;
    gpusync__slot *free;     /* under the lock */
    gpusync__slot *returned; /* pushed without the lock, by handlers */
    gpusync__call *calls;    /* under the lock */
    uint32_t call_count;
} gpusync__global = {PTHREAD_MUTEX_INITIALIZER, false, NULL, NULL, NULL, NULL, 0};

static void gpusync__completed(void *block, void *buffer);

static const gpusync__block_descriptor gpusync__descriptor = {0, sizeof(gpusync__block), "v16@?0@8", NULL};

/* Under the global lock. From malloc, not the program's allocator: slabs outlive every device. */
static void gpusync__slab_new(void)
{
    void *memory = NULL;
    gpusync__slab *slab;
    size_t i;
    if (posix_memalign(&memory, 128, sizeof(gpusync__slab))) return;
    memset(memory, 0, sizeof(gpusync__slab));
    slab = (gpusync__slab *)memory;
    for (i = 0; i < GPUSYNC__SLAB_SLOTS; i++) {
        gpusync__slot *slot = &slab->slots[i];
        slot->block.isa = gpusync__global_block;
        slot->block.flags = GPUSYNC__BLOCK_IS_GLOBAL | GPUSYNC__BLOCK_HAS_SIGNATURE;
        slot->block.invoke = gpusync__completed;
        slot->block.descriptor = &gpusync__descriptor;
        slot->next = gpusync__global.free;
        gpusync__global.free = slot;
    }
    slab->next = gpusync__global.slabs;
    gpusync__global.slabs = slab;
}

#define GPUSYNC__SPARE_SLOTS 8

/* A few free slots in a list, so that not every commit takes the lock that all queues share. NULL: no memory. */
static gpusync__slot *gpusync__slots_take(void)
{
    gpusync__slot *first, *last;
    int count = 1;
    pthread_mutex_lock(&gpusync__global.lock);
    if (!gpusync__global.free)
        gpusync__global.free = __atomic_exchange_n(&gpusync__global.returned, (gpusync__slot *)NULL, __ATOMIC_SEQ_CST);
    if (!gpusync__global.free) gpusync__slab_new();
    first = last = gpusync__global.free;
    while (last && last->next && count++ < GPUSYNC__SPARE_SLOTS) last = last->next;
    if (last) {
        gpusync__global.free = last->next;
        last->next = NULL;
    }
    pthread_mutex_unlock(&gpusync__global.lock);
    return first;
}

static uintptr_t gpusync__state(void *buffer, unsigned state) { return (uintptr_t)buffer | state; }

static unsigned gpusync__state_of(gpusync__slot *slot)
{
    return (unsigned)(GPUSYNC__GET(&slot->state) & GPUSYNC__STATE_MASK);
}

/* From one state to another, for this buffer. False: the slot is doing something else, perhaps for another buffer. */
static bool gpusync__turn(gpusync__slot *slot, void *buffer, unsigned from, unsigned to)
{
    uintptr_t expected = gpusync__state(buffer, from);
    return GPUSYNC__SWAP(&slot->state, &expected, gpusync__state(buffer, to));
}

static void gpusync__slot_free(gpusync__slot *slot)
{
    gpusync__slot *head = GPUSYNC__GET(&gpusync__global.returned);
    GPUSYNC__SET(&slot->buffer, NULL);
    GPUSYNC__SET(&slot->ticket, 0);
    GPUSYNC__SET(&slot->claimed, 0);
    GPUSYNC__SET(&slot->roomless, 0);
    GPUSYNC__PUT(&slot->state, (uintptr_t)GPUSYNC__FREE);
    GPUSYNC__PUT(&slot->queue, NULL); /* destroy waits for this: the queue is not touched any more */
    do slot->next = head;
    while (!GPUSYNC__SWAP(&gpusync__global.returned, &head, slot));
}

/* The last holder releases the command buffer. Of an orphan destroy has released it. */
static void gpusync__drop(gpusync__slot *slot)
{
    uint32_t holders = GPUSYNC__SUB(&slot->holders, 1);
    GPUSYNC_ASSERT(holders > 0);
    if (holders != 1) return;
    if (gpusync__state_of(slot) != GPUSYNC__ORPHANED) gpusync__release_pooled(slot->buffer);
    gpusync__slot_free(slot);
}

/* Hold a slot that may have moved on to other work since the pointer was read: slots are never freed, so counting
   is safe, and what it holds now is checked after. */
static bool gpusync__hold(gpusync__slot *slot, const gpusync_queue *q, uint64_t ticket)
{
    uint32_t holders = GPUSYNC__GET(&slot->holders);
    do
        if (holders == 0) return false;
    while (!GPUSYNC__SWAP(&slot->holders, &holders, holders + 1));
    if (GPUSYNC__GET(&slot->queue) == q && GPUSYNC__GET(&slot->ticket) == ticket) return true;
    gpusync__drop(slot);
    return false;
}

/* These two are not inlined: the C library declares pthread_self constant, and a compiler may carry its answer
   across a hook in which a fiber changed threads. */
static __attribute__((noinline)) void gpusync__call_begin(gpusync__call *call)
{
    call->thread = pthread_self();
    pthread_mutex_lock(&gpusync__global.lock);
    call->next = gpusync__global.calls;
    gpusync__global.calls = call;
    GPUSYNC__ADD(&gpusync__global.call_count, 1);
    pthread_mutex_unlock(&gpusync__global.lock);
}

static void gpusync__call_end(gpusync__call *call)
{
    gpusync__call **link = &gpusync__global.calls;
    pthread_mutex_lock(&gpusync__global.lock);
    while (*link != call) link = &(*link)->next;
    *link = call->next;
    GPUSYNC__SUB(&gpusync__global.call_count, 1);
    pthread_mutex_unlock(&gpusync__global.lock);
}

static __attribute__((noinline)) bool gpusync__in_callback(void)
{
    const gpusync__call *call;
    if (GPUSYNC__GET(&gpusync__global.call_count) == 0) return false;
    pthread_mutex_lock(&gpusync__global.lock);
    for (call = gpusync__global.calls; call && !pthread_equal(call->thread, pthread_self());) call = call->next;
    pthread_mutex_unlock(&gpusync__global.lock);
    return call != NULL;
}

/* ------------------------------------------------------------------------------- >>queue -- */

#define GPUSYNC__EVENT_POOL 32

struct gpusync_device {
    void *metal;
    gpusync_hooks hooks;
    gpusync_allocator allocator;
    gpusync_spin spin;
    gpusync_wait_mode wait_mode;
    gpusync_log_fn log;
    void *log_user;
    uint32_t lost;
    pthread_mutex_t lock; /* list of queues, sum of the destroyed ones. Before any queue's lock. */
    gpusync_queue *queues;
    uint64_t queue_count; /* ever made: numbers them */
    gpusync_timeline *timelines;
    uint64_t timeline_count;
    gpusync_stats gone;
    gpusync_stats stats; /* of waits for timelines, and for many points */
    void *listener;      /* MTLSharedEventListener, made when first needed, under the lock */
    void *events[GPUSYNC__EVENT_POOL]; /* that nobody refers to any more */
    uint32_t event_count;
    pthread_mutex_t waiter_lock; /* a leaf */
    gpusync__waiter *free_waiters;
    struct gpusync__waiter_slab *waiter_slabs;
};

/* Where a ticket is found while it is in flight and for a while after. done says which ticket has ended here: a
   number instead of a flag, so an entry that went on to a later ticket cannot be mistaken. */
typedef struct gpusync__entry {
    gpusync__slot *slot;
    uint64_t done; /* ticket * 2, + 1 when it failed */
    uint64_t gpu_start, gpu_end; /* bits of a double */
} gpusync__entry;

/* How a ticket ended, as its entry has it. */
typedef struct gpusync__outcome {
    uint64_t gpu_start, gpu_end;
    uint64_t failed; /* 0 or 1 */
} gpusync__outcome;

/* Entry of ticket t: entries[t & (size - 1)]. A ring that became too small keeps the tickets that it has; later ones go
   to the next, so the place of a ticket never changes. */
typedef struct gpusync__ring {
    struct gpusync__ring *older;
    uint64_t first; /* ticket */
    uint64_t size;
    gpusync__entry *entries;
} gpusync__ring;

#define GPUSYNC__RING_SIZE 256

/* flags of queues and timelines */
enum { GPUSYNC__LOST = 1, GPUSYNC__CLOSING = 2, GPUSYNC__FAILED = 4, GPUSYNC__OUTSIDE = 8 };

struct gpusync_queue {
    gpusync__head head; /* first: read by the inline calls */
    unsigned char pad[120];
    /* hardly ever written */
    gpusync_device *device;
    void *metal;
    uint32_t flags;
    uint32_t limit; /* uncompleted buffers that Metal allows */
    gpusync__ring *ring;
    void *buffer_class; /* of the command buffers seen here: known to answer what is sent */
    gpusync_spin spin;
    gpusync_wait_mode wait_mode;
    uint32_t log_size;
    uint64_t number;
    gpusync_queue *next; /* of the device */
    char label[64];
    /* counters */
    unsigned char pad2[128];
    uint32_t outstanding; /* buffers made or in flight, against limit */
    uint32_t inside;      /* calls that destroy must let out first */
    uint32_t tracked;     /* unfinished TRACKED slots */
    uint32_t sentinels;   /* unfinished */
    uint64_t tended_ns;   /* when gpusync__tend last went round */
    gpusync_stats stats; /* but for the commits: they are counted by their tickets */
    /* order lock: ticket order is queue order. Nothing that can block runs under it, no callback takes it. */
    pthread_mutex_t order;
    gpusync__slot *spare; /* free slots */
    gpusync__slot *open;  /* made, not committed */
    gpusync__board board; /* its lock is over all that follows */
    gpusync__slot *foreign; /* gpusync_track_committed, oldest first */
    uint64_t foreign_issued;
    uint64_t covered, foreign_covered;
    gpusync_error *log; /* failure number n at n % log_size */
    uint64_t log_count;
    uint64_t logged;     /* how many of them the log hook has seen; of the thread that has set `logging` */
    uint32_t logging;
    uint64_t dropped[2], dropped_failed[2]; /* largest ticket whose record was dropped (that ran); [1]: foreign ones */
};

#define GPUSYNC__LISTENINGS 64

/* `value` when the timeline has failed: above every other, so that one load tells. */
#define GPUSYNC__FAILED_VALUE (~(uint64_t)0)

struct gpusync_timeline {
    uint64_t value; /* reached, as far as is known, or GPUSYNC__FAILED_VALUE */
    gpusync_device *device;
    void *event;
    uint64_t base; /* event value = value + base */
    uint32_t flags;
    uint32_t inside;
    bool imported, fail_writes_event, handed_out;
    uint64_t number;
    gpusync_timeline *next; /* of the device */
    gpusync__board board;   /* its lock is over all that follows */
    struct gpusync__listening *listenings[GPUSYNC__LISTENINGS]; /* by value */
    uint64_t last; /* reached before it failed */
    gpusync_error error;
    char label[64];
};

static uint64_t gpusync__committed(const gpusync_queue *q)
{
    return GPUSYNC__GET(&q->head.committed) & ~GPUSYNC__FOREIGN;
}

static bool gpusync__has_foreign(const gpusync_queue *q)
{
    return (GPUSYNC__GET(&q->head.committed) & GPUSYNC__FOREIGN) != 0;
}

static void *gpusync__allocate(gpusync_device *dev, size_t size, size_t alignment)
{
    void *memory = dev->allocator.allocate(dev->allocator.user, size, alignment);
    if (memory) memset(memory, 0, size);
    return memory;
}

static void gpusync__free(gpusync_device *dev, void *memory, size_t size)
{
    if (memory) dev->allocator.release(dev->allocator.user, memory, size);
}

/* Returns the flags from before. */
static uint32_t gpusync__set_flag(uint32_t *flags, uint32_t flag)
{
    return __atomic_fetch_or(flags, flag, __ATOMIC_SEQ_CST);
}

/* Calls that may still be running when destroy begins come in here and go out again; destroy waits for them. */
static bool gpusync__enter(gpusync_queue *q)
{
    GPUSYNC__ADD(&q->inside, 1);
    if (!(GPUSYNC__GET(&q->flags) & GPUSYNC__CLOSING)) return true;
    GPUSYNC__SUB(&q->inside, 1);
    return false;
}

static void gpusync__leave(gpusync_queue *q) { GPUSYNC__SUB(&q->inside, 1); }

/* For calls that need a working queue. OK: inside. */
static gpusync_result gpusync__enter_working(gpusync_queue *q)
{
    uint32_t flags;
    GPUSYNC__ADD(&q->inside, 1);
    flags = GPUSYNC__GET(&q->flags) & (GPUSYNC__CLOSING | GPUSYNC__LOST);
    if (!flags) return GPUSYNC_OK;
    GPUSYNC__SUB(&q->inside, 1);
    return flags & GPUSYNC__CLOSING ? GPUSYNC_ERROR_DESTROYED : GPUSYNC_ERROR_DEVICE_LOST;
}

/* A slot that holds the buffer (which the caller has retained for it), with one holder. Under the order lock. NULL: no
   memory. */
static gpusync__slot *gpusync__slot_new(gpusync_queue *q, void *buffer, uint32_t kind, unsigned state)
{
    gpusync__slot *slot = q->spare ? q->spare : gpusync__slots_take();
    if (!slot) return NULL;
    q->spare = slot->next;
    GPUSYNC__SET(&slot->buffer, buffer);
    GPUSYNC__SET(&slot->queue, q);
    GPUSYNC__SET(&slot->kind, kind);
    GPUSYNC__SET(&slot->state, gpusync__state(buffer, state));
    /* last: a reader with an old pointer to this slot can hold it from here on */
    GPUSYNC__PUT(&slot->holders, 1);
    return slot;
}

/* Walks the slots of a queue. Start with {NULL, 0}. */
typedef struct gpusync__cursor {
    gpusync__slab *slab;
    size_t next;
} gpusync__cursor;

/* The next slot that seems to be the queue's. Slabs are never freed, so only the head of their list needs the lock. */
static gpusync__slot *gpusync__next_slot_unheld(const gpusync_queue *q, gpusync__cursor *at)
{
    if (!at->slab) {
        pthread_mutex_lock(&gpusync__global.lock);
        at->slab = gpusync__global.slabs;
        pthread_mutex_unlock(&gpusync__global.lock);
    }
    while (at->slab) {
        while (at->next < GPUSYNC__SLAB_SLOTS) {
            gpusync__slot *slot = &at->slab->slots[at->next++];
            if (GPUSYNC__GET(&slot->queue) == q) return slot;
        }
        if (!at->slab->next) return NULL;
        at->slab = at->slab->next;
        at->next = 0;
    }
    return NULL;
}

/* The next slot of the queue, held: it stays what it is until the caller drops it. */
static gpusync__slot *gpusync__next_slot(const gpusync_queue *q, gpusync__cursor *at)
{
    gpusync__slot *slot;
    while ((slot = gpusync__next_slot_unheld(q, at)) != NULL)
        if (gpusync__hold(slot, q, GPUSYNC__GET(&slot->ticket))) return slot;
    return NULL;
}

/* -------------------------------------------------------------------------------- >>ring -- */

static gpusync__ring *gpusync__ring_new(gpusync_device *dev, uint64_t size)
{
    size_t bytes = sizeof(gpusync__ring) + (size_t)size * sizeof(gpusync__entry);
    gpusync__ring *ring = (gpusync__ring *)gpusync__allocate(dev, bytes, 128);
    if (!ring) return NULL;
    ring->size = size;
    ring->entries = (gpusync__entry *)(void *)(ring + 1);
    return ring;
}

static void gpusync__rings_free(gpusync_device *dev, gpusync__ring *ring)
{
    while (ring) {
        gpusync__ring *older = ring->older;
        gpusync__free(dev, ring, sizeof(gpusync__ring) + (size_t)ring->size * sizeof(gpusync__entry));
        ring = older;
    }
}

static gpusync__entry *gpusync__entry_in(const gpusync__ring *ring, uint64_t ticket)
{
    return &ring->entries[ticket & (ring->size - 1)];
}

static gpusync__entry *gpusync__entry_of(const gpusync_queue *q, uint64_t ticket)
{
    const gpusync__ring *ring = GPUSYNC__GET(&q->ring);
    while (ticket < ring->first) ring = ring->older; /* the oldest begins at 0 */
    return gpusync__entry_in(ring, ticket);
}

/* Has this ticket (not a foreign one) ended, and is its outcome on record? */
static bool gpusync__marked(const gpusync_queue *q, uint64_t ticket)
{
    if (ticket <= GPUSYNC__GET(&q->head.completed)) return true;
    return GPUSYNC__GET(&gpusync__entry_of(q, ticket)->done) >> 1 == ticket;
}

/* Move `completed` over every ticket that is marked. Whoever marks calls this after: of two handlers that mark
   neighbours, the later one sees both marks. */
static void gpusync__advance(gpusync_queue *q)
{
    for (;;) {
        uint64_t done = GPUSYNC__GET(&q->head.completed);
        if (GPUSYNC__GET(&gpusync__entry_of(q, done + 1)->done) >> 1 != done + 1) return;
        GPUSYNC_ASSERT(done < gpusync__committed(q));
        (void)GPUSYNC__SWAP(&q->head.completed, &done, done + 1);
    }
}

/* The ticket has ended, well or badly, and what there is to tell of it is on record. */
static void gpusync__mark(gpusync_queue *q, uint64_t ticket, const gpusync__outcome *outcome)
{
    gpusync__entry *entry = gpusync__entry_of(q, ticket);
    GPUSYNC__PUT(&entry->gpu_start, outcome->gpu_start);
    GPUSYNC__PUT(&entry->gpu_end, outcome->gpu_end);
    GPUSYNC__PUT(&entry->done, ticket << 1 | outcome->failed);
    gpusync__advance(q);
}

/* Twice the size, for the tickets from `first` on. Under the order lock. */
static bool gpusync__ring_grow(gpusync_queue *q, uint64_t first)
{
    gpusync__ring *ring = gpusync__ring_new(q->device, q->ring->size * 2);
    if (!ring) return false;
    ring->older = q->ring;
    ring->first = first;
    GPUSYNC__PUT(&q->ring, ring);
    return true;
}

/* Is the entry of the ticket still that of one in flight? Under the order lock. */
static bool gpusync__ring_full(const gpusync_queue *q, uint64_t ticket)
{
    uint64_t done = GPUSYNC__GET(&q->head.completed);
    return ticket - done > q->ring->size && ticket - q->ring->first >= q->ring->size;
}

/* The slot's ticket: the next of its queue. Under the order lock. 0: no memory. */
static uint64_t gpusync__issue(gpusync_queue *q, gpusync__slot *slot)
{
    uint64_t ticket = gpusync__committed(q) + 1;
    gpusync__entry *entry;
    if (gpusync__ring_full(q, ticket) && !gpusync__ring_grow(q, ticket)) return 0;
    GPUSYNC__SET(&slot->since_ns, gpusync_now_ns());
    GPUSYNC__SET(&slot->ticket, ticket);
    GPUSYNC__SET(&slot->state, gpusync__state(slot->buffer, GPUSYNC__ARMED));
    entry = gpusync__entry_in(q->ring, ticket);
    GPUSYNC__PUT(&entry->done, 0);
    GPUSYNC__PUT(&entry->slot, slot);
    /* before [commit]: `completed` must never be seen to run ahead */
    GPUSYNC__ADD(&q->head.committed, 1);
    return ticket;
}

/* Hold the slot of a ticket; NULL when it has ended and its slot went on. */
static gpusync__slot *gpusync__hold_ticket(const gpusync_queue *q, uint64_t ticket)
{
    gpusync__slot *slot = GPUSYNC__GET(&gpusync__entry_of(q, ticket)->slot);
    return slot && gpusync__hold(slot, q, ticket) ? slot : NULL;
}

/* ----------------------------------------------------------------------------- >>failure -- */

static void gpusync__log(gpusync_device *dev, gpusync_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void gpusync__log(gpusync_device *dev, gpusync_log_level level, const char *format, ...)
{
    char text[768], *at;
    gpusync__call call;
    va_list arguments;
    if (!dev->log) return;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    for (at = text; *at; at++)
        if ((unsigned char)*at < ' ') *at = ' '; /* Metal's texts may have line ends */
    gpusync__call_begin(&call);
    dev->log(dev->log_user, level, text);
    gpusync__call_end(&call);
}

/* MTLCommandBufferError, by number: the names changed over time. In other domains the numbers mean other things. */
static gpusync_failure gpusync__classify(const char *domain, int64_t code, const char *message)
{
    if (strcmp(domain, "MTLCommandBufferErrorDomain") != 0) return GPUSYNC_FAILURE_OTHER;
    /* A driver's name, seen in whisper.cpp issue 2470; there is no public code for it. */
    if (strstr(message, "InnocentVictim")) return GPUSYNC_FAILURE_INNOCENT_VICTIM;
    switch (code) {
    case 2: return GPUSYNC_FAILURE_TIMEOUT;
    case 3: return GPUSYNC_FAILURE_PAGE_FAULT;
    case 4: return GPUSYNC_FAILURE_ACCESS_REVOKED;
    case 7: return GPUSYNC_FAILURE_NOT_PERMITTED;
    case 8: return GPUSYNC_FAILURE_OUT_OF_MEMORY;
    case 9: return GPUSYNC_FAILURE_INVALID_RESOURCE;
    case 11: return GPUSYNC_FAILURE_DEVICE_REMOVED;
    default: return GPUSYNC_FAILURE_OTHER;
    }
}

/* Read the failure off a command buffer in state Error. Needs a pool. */
static void gpusync__read_failure(gpusync_queue *q, gpusync__slot *slot, gpusync_error *error)
{
    void *ns_error = gpusync__send_id(slot->buffer, gpusync__sel.error);
    memset(error, 0, sizeof *error);
    error->result = GPUSYNC_ERROR_EXECUTION;
    error->ticket = slot->ticket;
    if (ns_error) {
        error->code = GPUSYNC__AS(long)(ns_error, gpusync__sel.code);
        gpusync__copy_string(error->domain, sizeof error->domain, gpusync__send_id(ns_error, gpusync__sel.domain));
        gpusync__copy_string(error->message, sizeof error->message,
                             gpusync__send_id(ns_error, gpusync__sel.localizedDescription));
    }
    gpusync__copy_string(error->label, sizeof error->label, gpusync__send_id(slot->buffer, gpusync__sel.label));
    gpusync__copy_text(error->queue_label, sizeof error->queue_label, q->label);
    error->failure = gpusync__classify(error->domain, error->code, error->message);
}

/* Under the wait lock. */
static void gpusync__drop_record(gpusync_queue *q, const gpusync_error *record)
{
    uint64_t foreign = record->ticket >> 63;
    if (record->ticket > q->dropped[foreign]) q->dropped[foreign] = record->ticket;
    if (record->result == GPUSYNC_ERROR_EXECUTION && record->ticket > q->dropped_failed[foreign])
        q->dropped_failed[foreign] = record->ticket;
    GPUSYNC__COUNT(&q->stats.failures_dropped);
}

static void gpusync__record(gpusync_queue *q, const gpusync_error *error)
{
    gpusync_error *record;
    pthread_mutex_lock(&q->board.lock);
    record = &q->log[q->log_count % q->log_size];
    if (q->log_count >= q->log_size) gpusync__drop_record(q, record);
    *record = *error;
    GPUSYNC__ADD(&q->log_count, 1);
    gpusync__set_flag(&q->flags, GPUSYNC__FAILED);
    pthread_mutex_unlock(&q->board.lock);
    if (error->result == GPUSYNC_ERROR_EXECUTION) GPUSYNC__COUNT(&q->stats.failures);
}

/* The first record that is still kept. Under the wait lock, as the two below. */
static uint64_t gpusync__log_first(const gpusync_queue *q)
{
    return q->log_count > q->log_size ? q->log_count - q->log_size : 0;
}

/* Does the entry of the ticket still say that it ended well? */
static bool gpusync__ended_well(const gpusync_queue *q, uint64_t ticket)
{
    return !(ticket & GPUSYNC__FOREIGN) && GPUSYNC__GET(&gpusync__entry_of(q, ticket)->done) == ticket << 1;
}

/* The next record for this cursor. */
static bool gpusync__read_record(gpusync_queue *q, uint64_t *cursor, gpusync_error *error)
{
    uint64_t first, at = *cursor;
    bool found;
    pthread_mutex_lock(&q->board.lock);
    first = gpusync__log_first(q);
    found = at < q->log_count;
    if (found) {
        if (at < first) at = first;
        *error = q->log[at % q->log_size];
        error->dropped = at - *cursor;
        GPUSYNC__PUT(cursor, at + 1);
    }
    pthread_mutex_unlock(&q->board.lock);
    return found;
}

static gpusync_result gpusync__result_of_one(gpusync_queue *q, uint64_t ticket, gpusync_error *error)
{
    uint64_t n;
    if (ticket == GPUSYNC_NO_TICKET || gpusync__ended_well(q, ticket)) return GPUSYNC_OK;
    for (n = gpusync__log_first(q); n < q->log_count; n++) {
        const gpusync_error *record = &q->log[n % q->log_size];
        if (record->ticket != ticket) continue;
        if (error) *error = *record;
        return record->result;
    }
    return ticket <= q->dropped[ticket >> 63] ? GPUSYNC_ERROR_RESULT_UNKNOWN : GPUSYNC_OK;
}

/* Did anything fail among the tickets after `low` up to `high`? */
static gpusync_result gpusync__result_of_range(gpusync_queue *q, uint64_t low, uint64_t high, gpusync_error *error)
{
    uint64_t n, dropped = q->dropped_failed[high >> 63];
    for (n = gpusync__log_first(q); n < q->log_count; n++) {
        const gpusync_error *record = &q->log[n % q->log_size];
        if (record->ticket <= low || record->ticket > high || record->result != GPUSYNC_ERROR_EXECUTION) continue;
        if (error) *error = *record;
        return GPUSYNC_ERROR_EXECUTION;
    }
    /* Of the failures whose records were dropped only the last is known: something up to there failed. */
    return dropped <= low ? GPUSYNC_OK : dropped <= high ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_ERROR_RESULT_UNKNOWN;
}

/* How the work of a met goal ended. `tell`: this was a wait, so failures that it covers are told. */
static gpusync_result gpusync__result_of(gpusync_queue *q, const gpusync__goal *goal, bool tell, gpusync_error *error)
{
    uint32_t flags = GPUSYNC__GET(&q->flags);
    gpusync_result result, foreign;
    if (goal->kind == GPUSYNC__ALL && (flags & GPUSYNC__LOST)) return GPUSYNC_ERROR_DEVICE_LOST;
    if (!(flags & GPUSYNC__FAILED)) return GPUSYNC_OK;
    if (error) memset(error, 0, sizeof *error);
    pthread_mutex_lock(&q->board.lock);
    if (goal->kind == GPUSYNC__ONE) {
        result = gpusync__result_of_one(q, goal->ticket, error);
    } else {
        result = gpusync__result_of_range(q, goal->covered, goal->ticket, error);
        foreign = gpusync__result_of_range(q, goal->foreign_covered, goal->foreign, result ? NULL : error);
        if (result == GPUSYNC_OK) result = foreign;
        if (tell && goal->ticket > q->covered) q->covered = goal->ticket;
        if (tell && goal->foreign > q->foreign_covered) q->foreign_covered = goal->foreign;
    }
    pthread_mutex_unlock(&q->board.lock);
    return result;
}

/* -------------------------------------------------------------------------------- >>wake -- */

/* Is foreign work with a number up to `ticket` unfinished? Under the wait lock. */
static bool gpusync__foreign_pending(const gpusync_queue *q, uint64_t ticket)
{
    return q->foreign && q->foreign->ticket <= ticket;
}

static bool gpusync__foreign_listed(const gpusync_queue *q, uint64_t ticket)
{
    const gpusync__slot *slot = q->foreign;
    while (slot && slot->ticket != ticket) slot = slot->next;
    return slot != NULL;
}

/* Is the goal met, as far as foreign work has no part in it? */
static bool gpusync__met_apart(const gpusync__goal *goal)
{
    const gpusync_queue *q = goal->queue;
    if (goal->kind == GPUSYNC__VALUE) return GPUSYNC__GET(&goal->timeline->value) >= goal->ticket;
    if (goal->kind == GPUSYNC__ROOM) return GPUSYNC__GET(&q->outstanding) < q->limit;
    if (goal->kind == GPUSYNC__ALL) return GPUSYNC__GET(&q->head.completed) >= goal->ticket;
    return (goal->ticket & GPUSYNC__FOREIGN) || gpusync__marked(q, goal->ticket);
}

/* Under the wait lock. */
static bool gpusync__met_locked(const gpusync__goal *goal)
{
    if (!gpusync__met_apart(goal)) return false;
    if (goal->kind == GPUSYNC__ALL) return !gpusync__foreign_pending(goal->queue, goal->foreign);
    return goal->kind != GPUSYNC__ONE || !gpusync__foreign_listed(goal->queue, goal->ticket);
}

/* The lock is needed only where there is foreign work to ask about. */
static bool gpusync__met(const gpusync__goal *goal)
{
    gpusync_queue *q = goal->queue;
    bool met = gpusync__met_apart(goal);
    if (!met || !q || !gpusync__has_foreign(q)) return met;
    pthread_mutex_lock(&q->board.lock);
    met = gpusync__met_locked(goal);
    pthread_mutex_unlock(&q->board.lock);
    return met;
}

static const uint32_t *gpusync__flags_of(const gpusync__goal *goal)
{
    return goal->queue ? &goal->queue->flags : &goal->timeline->flags;
}

/* Is there nothing left to wait for, whatever becomes of the work? */
static bool gpusync__stopped(const gpusync__goal *goal)
{
    uint32_t stop = goal->draining ? GPUSYNC__LOST : GPUSYNC__LOST | GPUSYNC__CLOSING;
    return (GPUSYNC__GET(gpusync__flags_of(goal)) & stop) != 0;
}

static bool gpusync__over(const gpusync__goal *goal) { return gpusync__met(goal) || gpusync__stopped(goal); }

static gpusync__board *gpusync__board_of(const gpusync__goal *goal)
{
    return goal->queue ? &goal->queue->board : &goal->timeline->board;
}

/* Under the board's lock, as the next two. */
static void gpusync__link_locked(gpusync__board *board, gpusync__watch *watch)
{
    watch->linked = true;
    watch->next = NULL;
    watch->previous = board->last;
    if (watch->previous) watch->previous->next = watch;
    else board->first = watch;
    board->last = watch;
    GPUSYNC__ADD(&watch->waiter->linked, 1);
    GPUSYNC__ADD(&board->count, 1);
}

/* True: it was the last of its waiter's watches that was on a board. */
static bool gpusync__unlink_locked(gpusync__board *board, gpusync__watch *watch)
{
    if (watch->next) watch->next->previous = watch->previous;
    else board->last = watch->previous;
    if (watch->previous) watch->previous->next = watch->next;
    else board->first = watch->next;
    watch->linked = false;
    GPUSYNC__SUB(&board->count, 1);
    return GPUSYNC__SUB(&watch->waiter->linked, 1) == 1;
}

#define GPUSYNC__WAKE_BATCH 16
typedef struct gpusync__batch {
    gpusync__waiter *waiters[GPUSYNC__WAKE_BATCH];
    unsigned count;
} gpusync__batch;

/* Take watches off the board, those that are over, or every one, until a batch of waiters is to be woken for it.
   Waiters are copied out because one that was taken off may be in another wait by the time it is unparked. That wake-up
   is then one too many. */
static void gpusync__collect(gpusync__board *board, gpusync__batch *batch, bool everyone)
{
    gpusync__watch *watch, *next;
    pthread_mutex_lock(&board->lock);
    for (watch = board->first; watch && batch->count < GPUSYNC__WAKE_BATCH; watch = next) {
        bool last, stopped = gpusync__stopped(&watch->goal);
        next = watch->next;
        if (!everyone && !stopped && !gpusync__met_locked(&watch->goal)) continue;
        last = gpusync__unlink_locked(board, watch);
        if (last || everyone || stopped || watch->waiter->any) batch->waiters[batch->count++] = watch->waiter;
    }
    pthread_mutex_unlock(&board->lock);
}

static void gpusync__unpark(gpusync_device *dev, const gpusync__batch *batch)
{
    unsigned i;
    for (i = 0; i < batch->count; i++) dev->hooks.unpark(dev->hooks.user, &batch->waiters[i]->open);
}

/* Wake who has nothing left to wait for. Call it after the change: a waiter registers first and looks after, so one
   of the two sees the other. */
static void gpusync__wake_board(gpusync_device *dev, gpusync__board *board)
{
    gpusync__batch batch;
    if (GPUSYNC__GET(&board->count) == 0) return;
    do {
        batch.count = 0;
        gpusync__collect(board, &batch, false);
        gpusync__unpark(dev, &batch);
    } while (batch.count == GPUSYNC__WAKE_BATCH);
}

static void gpusync__wake(gpusync_queue *q) { gpusync__wake_board(q->device, &q->board); }

/* Make every waiter look again, without a promise that it will find anything. Who goes on waiting lists itself again,
   at the end: so this counts them first. */
static void gpusync__hint(gpusync_device *dev, gpusync__board *board)
{
    uint32_t waiting = GPUSYNC__GET(&board->count), woken;
    gpusync__batch batch;
    for (woken = 0; woken < waiting; woken += GPUSYNC__WAKE_BATCH) {
        batch.count = 0;
        gpusync__collect(board, &batch, true);
        gpusync__unpark(dev, &batch);
    }
}

/* The device is gone: every queue of it ends every wait. */
static void gpusync__lose(gpusync_device *dev)
{
    gpusync__batch batch;
    gpusync_queue *q;
    gpusync_timeline *t;
    if (!gpusync__swap32(&dev->lost, 0, 1)) return;
    pthread_mutex_lock(&dev->lock);
    for (q = dev->queues; q; q = q->next) gpusync__set_flag(&q->flags, GPUSYNC__LOST);
    for (t = dev->timelines; t; t = t->next) gpusync__set_flag(&t->flags, GPUSYNC__LOST);
    pthread_mutex_unlock(&dev->lock);
    do {
        batch.count = 0;
        pthread_mutex_lock(&dev->lock);
        for (q = dev->queues; q && batch.count < GPUSYNC__WAKE_BATCH; q = q->next)
            gpusync__collect(&q->board, &batch, false);
        for (t = dev->timelines; t && batch.count < GPUSYNC__WAKE_BATCH; t = t->next)
            gpusync__collect(&t->board, &batch, false);
        pthread_mutex_unlock(&dev->lock);
        gpusync__unpark(dev, &batch);
    } while (batch.count == GPUSYNC__WAKE_BATCH);
    gpusync__log(dev, GPUSYNC_LOG_ERROR, "device lost: every wait ends, later calls fail; make a new device");
}

/* Room for one more command buffer, against Metal's limit. It is given back by the handler, not by who read the status:
   nothing says that Metal counts a buffer as gone before its handlers ran. Where none comes, gpusync__tend does. */
static bool gpusync__take_room(gpusync_queue *q)
{
    uint32_t taken = GPUSYNC__GET(&q->outstanding);
    do
        if (taken >= q->limit) return false;
    while (!GPUSYNC__SWAP(&q->outstanding, &taken, taken + 1));
    return true;
}

static void gpusync__give_room(gpusync_queue *q)
{
    GPUSYNC__SUB(&q->outstanding, 1);
    gpusync__wake(q);
}

/* Once for each slot. */
static void gpusync__give_room_of(gpusync_queue *q, gpusync__slot *slot)
{
    if (gpusync__swap32(&slot->roomless, 0, 1)) gpusync__give_room(q);
}

/* ------------------------------------------------------------------------------ >>finish --
   The end of a command buffer, found by its handler or by somebody who read the status. Who claims the slot does it
   all: outcome, mark, wake. Everybody else takes the mark, not the status, for the end, so nobody sees a failed ticket
   as done before its failure is on record. */

/* The ticket has ended and its outcome is on record: make it known. The caller holds the slot. */
static void gpusync__settle(gpusync_queue *q, gpusync__slot *slot, const gpusync__outcome *outcome);

static void gpusync__read_times(void *buffer, gpusync__outcome *outcome)
{
    double start = GPUSYNC__AS(double)(buffer, gpusync__sel.gpuStartTime);
    double end = GPUSYNC__AS(double)(buffer, gpusync__sel.gpuEndTime);
    memcpy(&outcome->gpu_start, &start, sizeof start);
    memcpy(&outcome->gpu_end, &end, sizeof end);
}

static bool gpusync__means_loss(const gpusync_error *error)
{
    return error->failure == GPUSYNC_FAILURE_ACCESS_REVOKED || error->failure == GPUSYNC_FAILURE_DEVICE_REMOVED;
}

static void gpusync__log_failure(gpusync_queue *q, const gpusync_error *error)
{
    if (error->result != GPUSYNC_ERROR_EXECUTION) return;
    gpusync__log(q->device, GPUSYNC_LOG_ERROR, "command buffer '%s' of queue '%s', ticket %llu: %s (%s %lld: %s)",
                 error->label, error->queue_label, (unsigned long long)(error->ticket & ~GPUSYNC__FOREIGN),
                 gpusync_failure_string(error->failure), error->domain, (long long)error->code, error->message);
}

/* Hand the records that were not logged yet to the log hook. One thread at a time: a hook that finds more failures, by
   asking for something, would else be called from within itself, again and again. */
static void gpusync__log_failures(gpusync_queue *q)
{
    gpusync_error error;
    while (q->device->log && GPUSYNC__GET(&q->log_count) != GPUSYNC__GET(&q->logged)) {
        if (!gpusync__swap32(&q->logging, 0, 1)) return; /* who is at it looks again before it leaves */
        while (gpusync__read_record(q, &q->logged, &error)) gpusync__log_failure(q, &error);
        GPUSYNC__PUT(&q->logging, 0);
    }
}

/* The slot's buffer is terminal (or its handler runs, which means the same). The caller holds the slot. */
static void gpusync__finish(gpusync_queue *q, gpusync__slot *slot, unsigned long status)
{
    gpusync__outcome outcome;
    gpusync_error error;
    bool failed;
    void *pool;
    if (!gpusync__swap32(&slot->claimed, 0, 1)) return;
    pool = gpusync__pool_push();
    /* A handler that runs before the status is terminal is against the rules; then the error decides. */
    failed = status == GPUSYNC__STATUS_ERROR ||
             (status < GPUSYNC__STATUS_COMPLETED && gpusync__send_id(slot->buffer, gpusync__sel.error));
    if (failed) gpusync__read_failure(q, slot, &error);
    gpusync__read_times(slot->buffer, &outcome);
    gpusync__pool_pop(pool);
    outcome.failed = failed;
    if (failed && slot->kind != GPUSYNC__SENTINEL) gpusync__record(q, &error);
    gpusync__settle(q, slot, &outcome);
    if (!failed) return;
    gpusync__log_failures(q);
    if (gpusync__means_loss(&error)) gpusync__lose(q->device);
}

/* The buffer will never run. The caller holds the slot. False: it has ended otherwise. */
static bool gpusync__cancel(gpusync_queue *q, gpusync__slot *slot)
{
    static const gpusync__outcome outcome = {0, 0, 1};
    gpusync_error error;
    if (!gpusync__swap32(&slot->claimed, 0, 1)) return false;
    memset(&error, 0, sizeof error);
    error.result = GPUSYNC_ERROR_CANCELLED;
    error.failure = GPUSYNC_FAILURE_CANCELLED;
    error.ticket = slot->ticket;
    gpusync__copy_text(error.message, sizeof error.message, "given up before it was committed");
    gpusync__copy_text(error.queue_label, sizeof error.queue_label, q->label);
    gpusync__record(q, &error);
    gpusync__settle(q, slot, &outcome);
    return true;
}

static void gpusync__sweep_foreign(gpusync_queue *q);

/* Metal's completion thread comes in here. `block` is the slot. Until the state is RUNNING nothing but the slot may
   be touched: the queue may be gone. Metal gives the thread no promise of a pool. */
static void gpusync__completed(void *block, void *buffer)
{
    gpusync__slot *slot = (gpusync__slot *)block;
    if (gpusync__turn(slot, buffer, GPUSYNC__ARMED, GPUSYNC__RUNNING)) {
        gpusync_queue *q = slot->queue;
        gpusync__finish(q, slot, gpusync__status(buffer));
        if (gpusync__has_foreign(q)) gpusync__sweep_foreign(q);
        gpusync__give_room_of(q, slot);
    } else if (GPUSYNC__GET(&slot->state) != gpusync__state(buffer, GPUSYNC__ORPHANED)) {
        return; /* untracked, but committed after all: the slot has nothing to do with this buffer any more */
    }
    gpusync__drop(slot);
}

/* -------------------------------------------------------------------------------- >>look -- */

/* Read the status of a ticket and finish it when it has ended. True: it has ended (and is marked, or is being
   marked). */
static bool gpusync__look_ticket(gpusync_queue *q, uint64_t ticket)
{
    gpusync__slot *slot;
    unsigned long status;
    if (gpusync__marked(q, ticket)) return true;
    slot = gpusync__hold_ticket(q, ticket);
    if (!slot) return true;
    status = gpusync__status(slot->buffer);
    if (status >= GPUSYNC__STATUS_COMPLETED) gpusync__finish(q, slot, status);
    gpusync__drop(slot);
    return status >= GPUSYNC__STATUS_COMPLETED;
}

/* A handler that has not come this long after the end is taken for lost. */
#define GPUSYNC__LOST_HANDLER_NS 50000000u

/* Look after handlers that may never come: they hold the room of their buffers. Once in a while is enough, however many
   threads wait for room. */
static void gpusync__tend(gpusync_queue *q)
{
    uint64_t now = gpusync_now_ns(), last = GPUSYNC__GET(&q->tended_ns);
    gpusync__cursor at = {NULL, 0};
    gpusync__slot *slot;
    if (now - last < GPUSYNC__LOST_HANDLER_NS || !GPUSYNC__SWAP(&q->tended_ns, &last, now)) return;
    while ((slot = gpusync__next_slot(q, &at)) != NULL) {
        if (gpusync__state_of(slot) == GPUSYNC__ARMED) {
            unsigned long status = gpusync__status(slot->buffer);
            if (status >= GPUSYNC__STATUS_COMPLETED) gpusync__finish(q, slot, status);
            if (GPUSYNC__GET(&slot->claimed) &&
                gpusync_now_ns() - GPUSYNC__GET(&slot->since_ns) > GPUSYNC__LOST_HANDLER_NS)
                gpusync__give_room_of(q, slot);
        }
        gpusync__drop(slot);
    }
}

static void gpusync__look_timeline(gpusync_timeline *t);

/* Read whatever status stands between the goal and its being met. */
static void gpusync__look(const gpusync__goal *goal)
{
    gpusync_queue *q = goal->queue;
    uint64_t ticket;
    if (goal->kind == GPUSYNC__VALUE) {
        gpusync__look_timeline(goal->timeline);
        return;
    }
    if (gpusync__has_foreign(q)) gpusync__sweep_foreign(q);
    if (goal->kind == GPUSYNC__ALL) {
        for (ticket = GPUSYNC__GET(&q->head.completed) + 1; ticket <= goal->ticket; ticket++)
            if (!gpusync__look_ticket(q, ticket)) return;
    } else if (goal->kind == GPUSYNC__ROOM) {
        gpusync__tend(q);
    } else if (!(goal->ticket & GPUSYNC__FOREIGN)) {
        gpusync__look_ticket(q, goal->ticket);
    }
}

/* ----------------------------------------------------------------------------- >>foreign --
   Work that was committed behind our back: no handler, so its status is read whenever something happens on the queue. A
   sentinel behind it makes something happen. */

/* Hold the first foreign slot after `ticket`. */
static gpusync__slot *gpusync__next_foreign(gpusync_queue *q, uint64_t ticket)
{
    gpusync__slot *slot;
    pthread_mutex_lock(&q->board.lock);
    for (slot = q->foreign; slot && slot->ticket <= ticket;) slot = slot->next;
    if (slot) GPUSYNC__ADD(&slot->holders, 1); /* not zero: the list holds it */
    pthread_mutex_unlock(&q->board.lock);
    return slot;
}

static void gpusync__sweep_foreign(gpusync_queue *q)
{
    uint64_t ticket = 0;
    gpusync__slot *slot;
    while ((slot = gpusync__next_foreign(q, ticket)) != NULL) {
        unsigned long status = gpusync__status(slot->buffer);
        ticket = slot->ticket;
        if (status >= GPUSYNC__STATUS_COMPLETED) gpusync__finish(q, slot, status);
        gpusync__drop(slot);
    }
}

/* Returns the ticket: the slot may be gone by the time that this returns. */
static uint64_t gpusync__add_foreign(gpusync_queue *q, gpusync__slot *slot)
{
    gpusync__slot **link = &q->foreign;
    uint64_t ticket;
    pthread_mutex_lock(&q->board.lock);
    ticket = GPUSYNC__FOREIGN | (GPUSYNC__ADD(&q->foreign_issued, 1) + 1);
    GPUSYNC__PUT(&slot->ticket, ticket);
    while (*link) link = &(*link)->next;
    *link = slot;
    slot->next = NULL;
    __atomic_fetch_or(&q->head.committed, GPUSYNC__FOREIGN, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&q->board.lock);
    return ticket;
}

static void gpusync__remove_foreign(gpusync_queue *q, gpusync__slot *slot)
{
    gpusync__slot **link = &q->foreign;
    pthread_mutex_lock(&q->board.lock);
    while (*link != slot) link = &(*link)->next;
    *link = slot->next;
    if (!q->foreign) __atomic_fetch_and(&q->head.committed, ~GPUSYNC__FOREIGN, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&q->board.lock);
    gpusync__drop(slot); /* the list's hold */
}

static void gpusync__settle(gpusync_queue *q, gpusync__slot *slot, const gpusync__outcome *outcome)
{
    uint32_t kind = slot->kind;
    if (kind == GPUSYNC__TRACKED) GPUSYNC__SUB(&q->tracked, 1);
    if (kind == GPUSYNC__SENTINEL) GPUSYNC__SUB(&q->sentinels, 1);
    else GPUSYNC__COUNT(&q->stats.completions);
    GPUSYNC__SET(&slot->since_ns, gpusync_now_ns());
    if (kind == GPUSYNC__FOREIGN_WORK) {
        gpusync__give_room_of(q, slot);
        gpusync__remove_foreign(q, slot);
    }
    if (kind == GPUSYNC__WORK || kind == GPUSYNC__TRACKED) gpusync__mark(q, slot->ticket, outcome);
    gpusync__wake(q);
    if (kind == GPUSYNC__SENTINEL) gpusync__hint(q->device, &q->board);
}

/* -------------------------------------------------------------------------------- >>wait -- */

typedef struct gpusync__waiter_slab {
    struct gpusync__waiter_slab *next;
    gpusync__waiter waiters[16];
} gpusync__waiter_slab;

/* Under the waiter lock. */
static bool gpusync__waiter_slab_new(gpusync_device *dev)
{
    gpusync__waiter_slab *slab = (gpusync__waiter_slab *)gpusync__allocate(dev, sizeof *slab, 128);
    size_t i;
    if (!slab) return false;
    for (i = 0; i < sizeof slab->waiters / sizeof slab->waiters[0]; i++) {
        gpusync__waiter *w = &slab->waiters[i];
        pthread_mutex_init(&w->mutex, NULL);
        gpusync__cond_init(&w->wake);
        w->next = dev->free_waiters;
        dev->free_waiters = w;
    }
    slab->next = dev->waiter_slabs;
    dev->waiter_slabs = slab;
    return true;
}

static void gpusync__waiter_slabs_free(gpusync_device *dev)
{
    gpusync__waiter_slab *slab = dev->waiter_slabs;
    while (slab) {
        gpusync__waiter_slab *next = slab->next;
        size_t i;
        for (i = 0; i < sizeof slab->waiters / sizeof slab->waiters[0]; i++) {
            pthread_mutex_destroy(&slab->waiters[i].mutex);
            pthread_cond_destroy(&slab->waiters[i].wake);
        }
        gpusync__free(dev, slab, sizeof *slab);
        slab = next;
    }
}

static gpusync__waiter *gpusync__waiter_take(gpusync_device *dev)
{
    gpusync__waiter *w = NULL;
    pthread_mutex_lock(&dev->waiter_lock);
    if (dev->free_waiters || gpusync__waiter_slab_new(dev)) {
        w = dev->free_waiters;
        dev->free_waiters = w->next;
    }
    pthread_mutex_unlock(&dev->waiter_lock);
    return w;
}

static void gpusync__waiter_give(gpusync_device *dev, gpusync__waiter *w)
{
    pthread_mutex_lock(&dev->waiter_lock);
    w->next = dev->free_waiters;
    dev->free_waiters = w;
    pthread_mutex_unlock(&dev->waiter_lock);
}

/* What a wait is for. ERROR_INVALID_TICKET when there is no such thing. */
static gpusync_result gpusync__goal_of(gpusync_queue *q, gpusync_ticket ticket, gpusync__goal *goal)
{
    memset(goal, 0, sizeof *goal);
    goal->queue = q;
    goal->kind = ticket == GPUSYNC_EVERYTHING ? GPUSYNC__ALL : GPUSYNC__ONE;
    goal->ticket = ticket;
    if (goal->kind == GPUSYNC__ALL) {
        pthread_mutex_lock(&q->board.lock);
        goal->ticket = gpusync__committed(q);
        goal->foreign = q->foreign_issued | GPUSYNC__FOREIGN;
        goal->covered = q->covered;
        goal->foreign_covered = q->foreign_covered | GPUSYNC__FOREIGN;
        pthread_mutex_unlock(&q->board.lock);
        return GPUSYNC_OK;
    }
    if (ticket & GPUSYNC__FOREIGN) {
        uint64_t issued;
        pthread_mutex_lock(&q->board.lock);
        issued = q->foreign_issued | GPUSYNC__FOREIGN;
        pthread_mutex_unlock(&q->board.lock);
        return ticket > issued || ticket == GPUSYNC__FOREIGN ? GPUSYNC_ERROR_INVALID_TICKET : GPUSYNC_OK;
    }
    return ticket > gpusync__committed(q) ? GPUSYNC_ERROR_INVALID_TICKET : GPUSYNC_OK;
}

static void gpusync__listen(const gpusync__goal *goal);

static bool gpusync__is_outside(const gpusync_timeline *t)
{
    return (GPUSYNC__GET(&t->flags) & GPUSYNC__OUTSIDE) != 0;
}

/* A wait for one goal or more. */
typedef struct gpusync__wait {
    gpusync_device *device;
    gpusync_stats *stats;
    gpusync__watch *watches;
    size_t count;
    size_t over;  /* all: every watch before this one is over */
    size_t which; /* any: the first that is */
    bool any;
    bool many;    /* gpusync_wait_many: each goal has been entered by itself */
    bool broken;  /* a goal of many cannot be met any more */
    size_t inside; /* of many: how many it has not left */
} gpusync__wait;

static gpusync_result gpusync__stop_reason(const gpusync__goal *goal);
static gpusync_result gpusync__goal_result(const gpusync__goal *goal, gpusync_error *error);
static void gpusync__goal_leave(const gpusync__goal *goal);

static void gpusync__delist_one(gpusync__watch *watch)
{
    gpusync__board *board = gpusync__board_of(&watch->goal);
    pthread_mutex_lock(&board->lock);
    if (watch->linked) (void)gpusync__unlink_locked(board, watch);
    pthread_mutex_unlock(&board->lock);
}

/* Keep the results of the goals that are over, and leave what they were about: a wait for many must not keep that from
   being destroyed while it goes on waiting for the rest. The last one keeps the device alive. */
static void gpusync__leave_those_over(gpusync__wait *wait)
{
    size_t i;
    for (i = wait->over; i < wait->count; i++) {
        gpusync__watch *watch = &wait->watches[i];
        bool met;
        if (wait->inside == 1) return;
        if (watch->left || !gpusync__over(&watch->goal)) continue;
        met = gpusync__met(&watch->goal); /* asked once: what breaks the wait must also be what it returns */
        if (!met) wait->broken = true;
        gpusync__delist_one(watch);
        watch->result = met ? gpusync__goal_result(&watch->goal, NULL) : gpusync__stop_reason(&watch->goal);
        watch->left = true;
        wait->inside--;
        gpusync__goal_leave(&watch->goal);
    }
}

/* Has this one been seen to be over? Of many, when it has been left; but the last is never left before the end. */
static bool gpusync__watch_over(const gpusync__wait *wait, const gpusync__watch *watch)
{
    return watch->left || ((!wait->many || wait->inside == 1) && gpusync__over(&watch->goal));
}

/* Is the wait over, with its goals met or given up? */
static bool gpusync__wait_over(gpusync__wait *wait)
{
    if (wait->any) {
        for (wait->which = 0; wait->which < wait->count; wait->which++)
            if (gpusync__over(&wait->watches[wait->which].goal)) return true;
        return false;
    }
    if (wait->many) gpusync__leave_those_over(wait);
    while (wait->over < wait->count && gpusync__watch_over(wait, &wait->watches[wait->over])) wait->over++;
    return wait->over == wait->count || wait->broken;
}

static void gpusync__wait_look(const gpusync__wait *wait)
{
    size_t i;
    for (i = wait->over; i < wait->count; i++)
        if (!wait->watches[i].left && !gpusync__over(&wait->watches[i].goal)) gpusync__look(&wait->watches[i].goal);
}

/* True: over within the budget. */
static bool gpusync__spin(gpusync__wait *wait, const gpusync_spin *spin, uint64_t deadline)
{
    const gpusync_hooks *hooks = &wait->device->hooks;
    bool looks = wait->watches->goal.kind != GPUSYNC__ROOM; /* room comes with the handler */
    uint64_t limit = deadline, budget_end, i, n = (uint64_t)spin->pause_iterations + spin->yield_iterations;
    if (spin->max_spin_ns) {
        if (n == 0) n = UINT64_MAX; /* by time alone */
        budget_end = gpusync__deadline(spin->max_spin_ns);
        if (budget_end < limit) limit = budget_end;
    }
    for (i = 0; i < n; i++) {
        if (i < spin->pause_iterations) GPUSYNC__PAUSE();
        else hooks->yield(hooks->user);
        if (looks) gpusync__wait_look(wait);
        if (gpusync__wait_over(wait)) return true;
        if (limit != GPUSYNC_FOREVER && gpusync_now_ns() >= limit) return false;
    }
    return false;
}

/* Metal's own wait, for what is committed. Whatever it leaves undone, the caller sleeps for. */
static void gpusync__block_ticket(gpusync_queue *q, uint64_t ticket)
{
    gpusync__slot *slot = gpusync__marked(q, ticket) ? NULL : gpusync__hold_ticket(q, ticket);
    if (!slot) return;
    if (gpusync__status(slot->buffer) >= GPUSYNC__STATUS_COMMITTED) {
        void *pool = gpusync__pool_push();
        gpusync__send_void(slot->buffer, gpusync__sel.waitUntilCompleted);
        gpusync__pool_pop(pool);
    }
    gpusync__drop(slot);
    gpusync__look_ticket(q, ticket);
}

static void gpusync__block_goal(const gpusync__goal *goal)
{
    gpusync_queue *q = goal->queue;
    uint64_t ticket;
    if (goal->kind == GPUSYNC__ALL)
        for (ticket = GPUSYNC__GET(&q->head.completed) + 1; ticket <= goal->ticket; ticket++)
            gpusync__block_ticket(q, ticket);
    else if (goal->kind == GPUSYNC__ONE && !(goal->ticket & GPUSYNC__FOREIGN))
        gpusync__block_ticket(q, goal->ticket);
}

/* A sleeper looks at the status by itself now and then: a handler that never comes costs this much. */
#define GPUSYNC__SLICE_NS 50000000u
/* ... and foreign work that no sentinel announces is looked at at this pace at first, then more and more slowly. */
#define GPUSYNC__FIRST_SLICE_NS 1000000u

static bool gpusync__unannounced(const gpusync__wait *wait)
{
    size_t i;
    for (i = wait->over; i < wait->count; i++) {
        const gpusync__goal *goal = &wait->watches[i].goal;
        if (wait->watches[i].left) continue;
        if (goal->kind == GPUSYNC__VALUE ? gpusync__is_outside(goal->timeline) && !GPUSYNC__GET(&wait->device->listener)
                                         : gpusync__has_foreign(goal->queue) && !GPUSYNC__GET(&goal->queue->sentinels))
            return true;
    }
    return false;
}

/* Have every watch that is not over on its board; also again, after a hint, or when the room that this waiter was woken
   for went to another thread. True: one was not there. */
static bool gpusync__enlist(gpusync__wait *wait)
{
    bool was_off = false;
    size_t i;
    for (i = wait->over; i < wait->count; i++) {
        gpusync__watch *watch = &wait->watches[i];
        gpusync__board *board;
        bool linked = false;
        if (watch->left) continue;
        board = gpusync__board_of(&watch->goal);
        pthread_mutex_lock(&board->lock);
        if (!watch->linked && !gpusync__met_locked(&watch->goal)) {
            gpusync__link_locked(board, watch);
            linked = was_off = true;
        }
        pthread_mutex_unlock(&board->lock);
        if (linked && watch->goal.kind == GPUSYNC__VALUE) gpusync__listen(&watch->goal);
    }
    return was_off;
}

static void gpusync__delist(gpusync__wait *wait)
{
    size_t i;
    for (i = 0; i < wait->count; i++)
        if (!wait->watches[i].left) gpusync__delist_one(&wait->watches[i]);
}

/* The end of the next slice. */
static uint64_t gpusync__slice_end(const gpusync__wait *wait, uint64_t now, uint64_t deadline, uint64_t *slice)
{
    uint64_t length = gpusync__unannounced(wait) ? *slice : GPUSYNC__SLICE_NS;
    if (*slice < GPUSYNC__SLICE_NS) *slice *= 2;
    return deadline - now > length ? now + length : deadline;
}

/* Park until the wait is over, or the deadline. */
static void gpusync__park(gpusync__wait *wait, gpusync__waiter *w, uint64_t deadline)
{
    const gpusync_hooks *hooks = &wait->device->hooks;
    uint64_t slice = GPUSYNC__FIRST_SLICE_NS, until = 0;
    while (!gpusync__wait_over(wait)) {
        uint64_t now = gpusync_now_ns();
        if (now >= deadline) return;
        if (now >= until) {
            if (until) gpusync__wait_look(wait); /* a whole slice, however often the hook returned meanwhile */
            until = gpusync__slice_end(wait, now, deadline, &slice);
            if (gpusync__wait_over(wait)) return;
        }
        hooks->park(hooks->user, &w->open, until);
        if (gpusync__wait_over(wait)) return;
        if (gpusync__enlist(wait)) {
            gpusync__wait_look(wait); /* however often it is called for nothing */
            slice = GPUSYNC__FIRST_SLICE_NS;
            until = 0;
        } else if (gpusync_now_ns() < until) {
            GPUSYNC__COUNT(&wait->stats->spurious_wakes);
        }
    }
}

/* OK: over. TIMEOUT: done at the deadline is done, this is not. */
static gpusync_result gpusync__sleep(gpusync__wait *wait, uint64_t deadline)
{
    gpusync__waiter *w = gpusync__waiter_take(wait->device);
    uint64_t now = gpusync_now_ns();
    size_t i;
    if (!w) return GPUSYNC_ERROR_OUT_OF_MEMORY;
    w->any = wait->any;
    for (i = 0; i < wait->count; i++) {
        wait->watches[i].waiter = w;
        wait->watches[i].since_ns = now;
    }
    (void)gpusync__enlist(wait);
    gpusync__park(wait, w, deadline);
    gpusync__delist(wait);
    gpusync__waiter_give(wait->device, w);
    if (!gpusync__wait_over(wait)) gpusync__wait_look(wait);
    return gpusync__wait_over(wait) ? GPUSYNC_OK : GPUSYNC_TIMEOUT;
}

/* Why a goal that is not met will not be. */
static gpusync_result gpusync__stop_reason(const gpusync__goal *goal)
{
    return GPUSYNC__GET(gpusync__flags_of(goal)) & GPUSYNC__LOST ? GPUSYNC_ERROR_DEVICE_LOST : GPUSYNC_ERROR_DESTROYED;
}

/* The order of every wait: look, spin, sleep. OK: it is over. *how gets the counter of how that came about. */
static gpusync_result gpusync__await(gpusync__wait *wait, uint64_t timeout_ns, const gpusync_spin *spin,
                                     gpusync_wait_mode mode, uint64_t **how)
{
    uint64_t deadline;
    *how = &wait->stats->waits_inline;
    if (gpusync__wait_over(wait)) return GPUSYNC_OK;
    *how = &wait->stats->waits_status;
    gpusync__wait_look(wait);
    if (gpusync__wait_over(wait)) return GPUSYNC_OK;
    *how = &wait->stats->waits_unmet;
    if (gpusync__in_callback()) return GPUSYNC_ERROR_WOULD_DEADLOCK;
    if (timeout_ns == 0) return GPUSYNC_TIMEOUT;
    deadline = gpusync__deadline(timeout_ns);
    *how = &wait->stats->waits_spin;
    if (mode == GPUSYNC_WAIT_BLOCKING && timeout_ns == GPUSYNC_FOREVER) gpusync__block_goal(&wait->watches->goal);
    if (mode == GPUSYNC_WAIT_SPIN_THEN_HANDLER && gpusync__spin(wait, spin, deadline)) return GPUSYNC_OK;
    *how = &wait->stats->waits_sleep;
    return gpusync__wait_over(wait) ? GPUSYNC_OK : gpusync__sleep(wait, deadline);
}

/* Wait for one goal. OK: it is met. The caller is inside the queue. */
static gpusync_result gpusync__await_goal(const gpusync__goal *goal, uint64_t timeout_ns,
                                          const gpusync_wait_options *options, uint64_t **how)
{
    gpusync_queue *q = goal->queue;
    gpusync__watch watch;
    gpusync__wait wait;
    gpusync_result result;
    memset(&watch, 0, sizeof watch);
    memset(&wait, 0, sizeof wait);
    watch.goal = *goal;
    wait.device = q->device;
    wait.stats = &q->stats;
    wait.watches = &watch;
    wait.count = 1;
    result = gpusync__await(&wait, timeout_ns, options && options->spin ? options->spin : &q->spin,
                            options && options->mode ? options->mode : q->wait_mode, how);
    if (gpusync__met(goal)) return GPUSYNC_OK;
    *how = &q->stats.waits_unmet;
    return gpusync__stopped(goal) ? gpusync__stop_reason(goal) : result;
}

/* ... and count how that went. */
static gpusync_result gpusync__wait_met(const gpusync__goal *goal, uint64_t timeout_ns,
                                        const gpusync_wait_options *options)
{
    uint64_t *how;
    gpusync_result result = gpusync__await_goal(goal, timeout_ns, options, &how);
    GPUSYNC__COUNT(how);
    return result;
}

/* Nothing in flight, nothing ever failed: the answer of most waits, from three loads. */
static bool gpusync__quiet(const gpusync_queue *q) { return gpusync_is_idle(q) && GPUSYNC__GET(&q->flags) == 0; }

GPUSYNC_API gpusync_result gpusync_wait_ex(gpusync_queue *queue, gpusync_ticket ticket, uint64_t timeout_ns,
                                           const gpusync_wait_options *options)
{
    gpusync__goal goal;
    gpusync_result result;
    if (!queue) return GPUSYNC_ERROR_INVALID_ARGUMENT;
    if (options && (unsigned)options->mode > GPUSYNC_WAIT_BLOCKING) return GPUSYNC_ERROR_INVALID_ARGUMENT;
    if (!gpusync__enter(queue)) return GPUSYNC_ERROR_DESTROYED;
    result = gpusync__goal_of(queue, ticket, &goal);
    if (result == GPUSYNC_OK) result = gpusync__wait_met(&goal, timeout_ns, options);
    if (result == GPUSYNC_OK) result = gpusync__result_of(queue, &goal, true, options ? options->error : NULL);
    gpusync__leave(queue);
    return result;
}

GPUSYNC_API gpusync_result gpusync_wait(gpusync_queue *queue, gpusync_ticket ticket, uint64_t timeout_ns)
{
    if (!queue || !gpusync_is_done(queue, ticket) || GPUSYNC__GET(&queue->flags))
        return gpusync_wait_ex(queue, ticket, timeout_ns, NULL);
    GPUSYNC__COUNT(&queue->stats.waits_inline);
    return GPUSYNC_OK;
}

GPUSYNC_API gpusync_result gpusync_queue_wait(gpusync_queue *queue, uint64_t timeout_ns)
{
    if (!queue || !gpusync__quiet(queue)) return gpusync_wait_ex(queue, GPUSYNC_EVERYTHING, timeout_ns, NULL);
    GPUSYNC__COUNT(&queue->stats.waits_inline);
    return GPUSYNC_OK;
}

GPUSYNC_API gpusync_result gpusync_poll(gpusync_queue *queue, gpusync_ticket ticket)
{
    gpusync__goal goal;
    gpusync_result result;
    if (!queue) return GPUSYNC_ERROR_INVALID_ARGUMENT;
    if (!gpusync__enter(queue)) return GPUSYNC_ERROR_DESTROYED;
    result = gpusync__goal_of(queue, ticket, &goal);
    if (result == GPUSYNC_OK) {
        if (!gpusync__met(&goal)) gpusync__look(&goal);
        if (gpusync__met(&goal)) result = gpusync__result_of(queue, &goal, false, NULL);
        else result = gpusync__stopped(&goal) ? gpusync__stop_reason(&goal) : GPUSYNC_NOT_READY;
    }
    gpusync__leave(queue);
    return result;
}

GPUSYNC_API bool gpusync__foreign_is_done(const gpusync_queue *queue, gpusync_ticket ticket)
{
    gpusync_queue *q = (gpusync_queue *)(uintptr_t)queue; /* its lock is not const */
    bool done;
    pthread_mutex_lock(&q->board.lock);
    done = ticket > GPUSYNC__FOREIGN && ticket <= (q->foreign_issued | GPUSYNC__FOREIGN) &&
           !gpusync__foreign_listed(q, ticket);
    pthread_mutex_unlock(&q->board.lock);
    return done;
}

/* What gpusync_device_wait waits for on one queue, which it knows by its number: a queue that is not waited for at the
   moment may be destroyed. */
typedef struct gpusync__target {
    uint64_t number;
    gpusync__goal goal;
} gpusync__target;

/* Note what every queue has committed. At most `room` are noted; returns how many there are. */
static size_t gpusync__note_targets(gpusync_device *dev, gpusync__target *targets, size_t room)
{
    gpusync_queue *q;
    size_t count = 0;
    pthread_mutex_lock(&dev->lock);
    for (q = dev->queues; q; q = q->next, count++) {
        if (count >= room) continue;
        targets[count].number = q->number;
        (void)gpusync__goal_of(q, GPUSYNC_EVERYTHING, &targets[count].goal);
    }
    pthread_mutex_unlock(&dev->lock);
    return count;
}

/* The first queue with at least this number, entered, so that it stays while no lock is held. */
static gpusync_queue *gpusync__queue_from(gpusync_device *dev, uint64_t number)
{
    gpusync_queue *q;
    pthread_mutex_lock(&dev->lock);
    for (q = dev->queues; q && (q->number < number || !gpusync__enter(q));) q = q->next;
    pthread_mutex_unlock(&dev->lock);
    return q;
}

/* Wait for one target, or, when all have ended, tell how its work did. */
static gpusync_result gpusync__wait_target(gpusync_device *dev, const gpusync__target *target, uint64_t deadline,
                                           bool ended)
{
    gpusync_queue *q = gpusync__queue_from(dev, target->number);
    gpusync_result result = GPUSYNC_OK;
    if (!q) return GPUSYNC_OK; /* destroyed: no longer a queue of the device */
    if (q->number == target->number) {
        if (ended) result = gpusync__result_of(q, &target->goal, true, NULL);
        else result = gpusync__wait_met(&target->goal, gpusync__time_left(deadline), NULL);
    }
    gpusync__leave(q);
    return result == GPUSYNC_ERROR_DESTROYED ? GPUSYNC_OK : result;
}

/* First every wait, then every result: work that did not end hides how other work ended, and is told first. */
static gpusync_result gpusync__wait_targets(gpusync_device *dev, const gpusync__target *targets, size_t count,
                                            uint64_t deadline)
{
    gpusync_result result = GPUSYNC_OK;
    size_t i;
    for (i = 0; i < count; i++) {
        gpusync_result one = gpusync__wait_target(dev, &targets[i], deadline, false);
        if (result == GPUSYNC_OK) result = one;
    }
    if (result != GPUSYNC_OK) return result;
    for (i = 0; i < count; i++) {
        gpusync_result one = gpusync__wait_target(dev, &targets[i], deadline, true);
        if (result == GPUSYNC_OK) result = one;
    }
    return result;
}

GPUSYNC_API gpusync_result gpusync_device_wait(gpusync_device *device, uint64_t timeout_ns)
{
    gpusync__target few[16], *targets = few;
    size_t room = sizeof few / sizeof few[0], count;
    gpusync_result result;
    uint64_t deadline;
    if (!device) return GPUSYNC_ERROR_INVALID_ARGUMENT;
    deadline = gpusync__deadline(timeout_ns);
    while ((count = gpusync__note_targets(device, targets, room)) > room) {
        if (targets != few) gpusync__free(device, targets, room * sizeof *targets);
        room = count + 8;
        targets = (gpusync__target *)gpusync__allocate(device, room * sizeof *targets, 16);
        if (!targets) return GPUSYNC_ERROR_OUT_OF_MEMORY;
    }
    result = gpusync__wait_targets(device, targets, count, deadline);
    if (targets != few) gpusync__free(device, targets, room * sizeof *targets);
    return gpusync_device_is_lost(device) ? GPUSYNC_ERROR_DEVICE_LOST : result;
}

/* Wait a little for another thread that is on its way out: yield at first, then sleep for a millisecond at a time. */
static void gpusync__linger(gpusync_device *dev, unsigned *rounds)
{
    gpusync__waiter *w = ++*rounds > 256 ? gpusync__waiter_take(dev) : NULL;
    if (!w) {
        dev->hooks.yield(dev->hooks.user);
        return;
    }
    dev->hooks.park(dev->hooks.user, &w->open, gpusync_now_ns() + GPUSYNC__FIRST_SLICE_NS);
    gpusync__waiter_give(dev, w);
}

/* ---------------------------------------------------------------------------- >>timeline -- */

static gpusync_result gpusync__timeline_enter(gpusync_timeline *t)
{
    GPUSYNC__ADD(&t->inside, 1);
    if (!(GPUSYNC__GET(&t->flags) & GPUSYNC__CLOSING)) return GPUSYNC_OK;
    GPUSYNC__SUB(&t->inside, 1);
    return GPUSYNC_ERROR_DESTROYED;
}

static void gpusync__timeline_leave(gpusync_timeline *t) { GPUSYNC__SUB(&t->inside, 1); }

/* What the failure of a timeline says; OK when it has not failed. */
static gpusync_result gpusync__timeline_result(gpusync_timeline *t, gpusync_error *error)
{
    gpusync_result result;
    if (GPUSYNC__GET(&t->value) != GPUSYNC__FAILED_VALUE) return GPUSYNC_OK;
    pthread_mutex_lock(&t->board.lock);
    result = t->error.result;
    if (error) *error = t->error;
    pthread_mutex_unlock(&t->board.lock);
    return result;
}

/* The value is reached: make it known. False: it was already, or the timeline has failed. */
static bool gpusync__raise(gpusync_timeline *t, uint64_t value)
{
    uint64_t present = GPUSYNC__GET(&t->value);
    do
        if (present >= value) return false;
    while (!GPUSYNC__SWAP(&t->value, &present, value));
    gpusync__wake_board(t->device, &t->board);
    return true;
}

static bool gpusync__timeline_set_error(gpusync_timeline *t, const gpusync_error *reason);

/* The other side has failed: it has written what gpusync_timeline_fail would. */
static void gpusync__fail_from_event(gpusync_timeline *t)
{
    gpusync_error error;
    memset(&error, 0, sizeof error);
    gpusync__copy_text(error.message, sizeof error.message, "the event stands at the value that means failure");
    if (gpusync__timeline_set_error(t, &error)) gpusync__wake_board(t->device, &t->board);
}

/* Where others signal the event, it knows better. */
static void gpusync__look_timeline(gpusync_timeline *t)
{
    uint64_t raw;
    if (!gpusync__is_outside(t)) return;
    raw = GPUSYNC__AS(uint64_t)(t->event, gpusync__sel.signaledValue);
    /* as after reading a status: what was done before the signal must be read after it */
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    if (raw == GPUSYNC__FAILED_VALUE) gpusync__fail_from_event(t);
    else if (raw > t->base) (void)gpusync__raise(t, raw - t->base);
}

static void gpusync__write_event(gpusync_timeline *t, uint64_t raw)
{
    void *pool = gpusync__pool_push();
    GPUSYNC__AS1(void, uint64_t)(t->event, gpusync__sel.setSignaledValue, raw);
    gpusync__pool_pop(pool);
}

/* A registration with the event, for one value and all who wait for it. It belongs to the timeline's list and to the
   block that Metal holds: nobody can take a registration back, and a block whose value never comes lives as long as the
   event. So what the block refers to is counted, and an ORPHANED one touches nothing else. */
typedef struct gpusync__listening {
    uint32_t holders;
    uint32_t state; /* ARMED -> RUNNING -> FREE, or ORPHANED */
    gpusync_timeline *timeline;
    uint64_t value;
    struct gpusync__listening *next;
} gpusync__listening;

typedef struct gpusync__listener_block {
    gpusync__block head;
    gpusync__listening *listening;
} gpusync__listener_block;

static void gpusync__listening_drop(gpusync__listening *listening)
{
    if (GPUSYNC__SUB(&listening->holders, 1) == 1) free(listening);
}

static void gpusync__listener_copy(void *to, const void *from)
{
    (void)to; /* the bytes are there already */
    GPUSYNC__ADD(&((const gpusync__listener_block *)from)->listening->holders, 1);
}

static void gpusync__listener_dispose(const void *block)
{
    gpusync__listening_drop(((const gpusync__listener_block *)block)->listening);
}

/* On the listener's thread. */
static void gpusync__listener_invoke(void *block, void *event, uint64_t raw)
{
    gpusync__listening *listening = ((gpusync__listener_block *)block)->listening;
    (void)event;
    (void)raw; /* may be above the value that was asked for; the event is read again */
    if (!gpusync__swap32(&listening->state, GPUSYNC__ARMED, GPUSYNC__RUNNING)) return;
    gpusync__look_timeline(listening->timeline);
    GPUSYNC__PUT(&listening->state, GPUSYNC__FREE); /* destroy waits for this */
}

static const struct gpusync__listener_descriptor {
    uintptr_t reserved, size;
    void (*copy)(void *to, const void *from);
    void (*dispose)(const void *block);
    const char *signature, *layout;
} gpusync__listener_descriptor = {
    0, sizeof(gpusync__listener_block), gpusync__listener_copy, gpusync__listener_dispose, "v24@?0@8Q16", NULL,
};

#define GPUSYNC__BLOCK_HAS_COPY_DISPOSE (1 << 25)

/* Hand Metal a block on this stack, which it copies. */
static void gpusync__notify(gpusync_timeline *t, gpusync__listening *listening)
{
    gpusync__listener_block block;
    void *pool = gpusync__pool_push();
    memset(&block, 0, sizeof block);
    block.head.isa = gpusync__stack_block;
    block.head.flags = GPUSYNC__BLOCK_HAS_COPY_DISPOSE | GPUSYNC__BLOCK_HAS_SIGNATURE;
    block.head.invoke = (void (*)(void *, void *))(void (*)(void))gpusync__listener_invoke;
    block.head.descriptor = (const gpusync__block_descriptor *)(const void *)&gpusync__listener_descriptor;
    block.listening = listening;
    ((void (*)(void *, void *, void *, uint64_t, void *))gpusync__send)(
        t->event, gpusync__sel.notifyListener, t->device->listener, listening->value + t->base, &block);
    gpusync__pool_pop(pool);
}

/* The device's listener, made when it is first needed; NULL where Metal has none. */
static void *gpusync__listener(gpusync_device *dev)
{
    void *cls, *listener = GPUSYNC__GET(&dev->listener);
    if (listener) return listener;
    pthread_mutex_lock(&dev->lock);
    cls = dev->listener ? NULL : gpusync__class_named("MTLSharedEventListener");
    if (cls)
        GPUSYNC__PUT(&dev->listener,
                     gpusync__send_id(gpusync__send_id(cls, gpusync__sel.alloc), gpusync__sel.init));
    listener = dev->listener;
    pthread_mutex_unlock(&dev->lock);
    return listener;
}

/* A new registration for the value, on the list; NULL when there is one, or no memory: then sleepers look by
   themselves. Those that are over leave the list here. Under the board's lock. */
static gpusync__listening *gpusync__listening_new(gpusync_timeline *t, uint64_t value)
{
    gpusync__listening **first = &t->listenings[value % GPUSYNC__LISTENINGS], **link = first, *listening;
    while ((listening = *link) != NULL) {
        if (GPUSYNC__GET(&listening->state) == GPUSYNC__FREE) {
            *link = listening->next;
            gpusync__listening_drop(listening);
            continue;
        }
        if (listening->value == value) return NULL;
        link = &listening->next;
    }
    listening = (gpusync__listening *)calloc(1, sizeof *listening); /* not the program's: Metal may keep it for ever */
    if (!listening) return NULL;
    listening->holders = 1;
    listening->state = GPUSYNC__ARMED;
    listening->timeline = t;
    listening->value = value;
    listening->next = *first;
    *first = listening;
    return listening;
}

/* Be told when the event reaches the goal. */
static void gpusync__listen(const gpusync__goal *goal)
{
    gpusync_timeline *t = goal->timeline;
    gpusync__listening *listening;
    if (!gpusync__is_outside(t) || gpusync__over(goal) || !gpusync__listener(t->device)) return;
    pthread_mutex_lock(&t->board.lock);
    listening = gpusync__met_locked(goal) ? NULL : gpusync__listening_new(t, goal->ticket);
    pthread_mutex_unlock(&t->board.lock);
    if (listening) gpusync__notify(t, listening);
}

static void gpusync__settle_listenings(gpusync_timeline *t, gpusync__listening *listening)
{
    while (listening) {
        gpusync__listening *next = listening->next;
        unsigned rounds = 0;
        if (!gpusync__swap32(&listening->state, GPUSYNC__ARMED, GPUSYNC__ORPHANED))
            while (GPUSYNC__GET(&listening->state) == GPUSYNC__RUNNING) gpusync__linger(t->device, &rounds);
        gpusync__listening_drop(listening);
        listening = next;
    }
}

/* A used event, and what it stands at, or a new one; +1. */
static void *gpusync__event_take(gpusync_device *dev, uint64_t *raw)
{
    void *event = NULL;
    *raw = 0;
    pthread_mutex_lock(&dev->lock);
    if (dev->event_count) event = dev->events[--dev->event_count];
    pthread_mutex_unlock(&dev->lock);
    if (!event) return gpusync__send_id(dev->metal, gpusync__sel.newSharedEvent);
    *raw = GPUSYNC__AS(uint64_t)(event, gpusync__sel.signaledValue);
    return event;
}

/* Keep an event for the next timeline (making one takes Metal 80 to 180 us: MoltenVK issue 1472), unless somebody else
   may still use it, or it is used up. */
static void gpusync__event_give(gpusync_timeline *t)
{
    gpusync_device *dev = t->device;
    bool kept = false;
    if (!t->imported && !t->handed_out && GPUSYNC__GET(&t->value) != GPUSYNC__FAILED_VALUE) {
        pthread_mutex_lock(&dev->lock);
        kept = dev->event_count < GPUSYNC__EVENT_POOL && t->value + t->base < GPUSYNC_MAX_VALUE;
        if (kept) dev->events[dev->event_count++] = t->event;
        pthread_mutex_unlock(&dev->lock);
    }
    if (!kept) gpusync__release_pooled(t->event);
}

/* Over the event, which the timeline takes over, and which stands at raw. */
static gpusync_result gpusync__timeline_new(gpusync_device *dev, void *event, uint64_t raw, bool imported,
                                            const gpusync_timeline_desc *desc, gpusync_timeline **out)
{
    gpusync_timeline *t = (gpusync_timeline *)gpusync__allocate(dev, sizeof *t, 128), **link;
    gpusync_result result = t ? GPUSYNC_OK : GPUSYNC_ERROR_OUT_OF_MEMORY;
    if (t) {
        t->device = dev;
        t->event = event;
        t->imported = imported;
        if (imported) t->value = raw == GPUSYNC__FAILED_VALUE ? 0 : raw; /* the caller looks again */
        else t->value = desc ? desc->initial_value : 0;
        t->base = raw > t->value && !imported ? raw - t->value : 0;
        t->flags = imported ? GPUSYNC__OUTSIDE : 0;
        t->fail_writes_event = !imported || desc->fail_writes_event;
        gpusync__copy_text(t->label, sizeof t->label, desc ? desc->label : NULL);
        pthread_mutex_init(&t->board.lock, NULL);
        pthread_mutex_lock(&dev->lock);
        if (GPUSYNC__GET(&dev->lost)) result = GPUSYNC_ERROR_DEVICE_LOST;
        for (link = &dev->timelines; *link;) link = &(*link)->next;
        if (result == GPUSYNC_OK) *link = t;
        t->number = ++dev->timeline_count;
        pthread_mutex_unlock(&dev->lock);
    }
    if (result == GPUSYNC_OK) {
        *out = t;
        return GPUSYNC_OK;
    }
    gpusync__release_pooled(event);
    if (t) pthread_mutex_destroy(&t->board.lock);
    gpusync__free(dev, t, sizeof *t);
    return result;
}

GPUSYNC_API gpusync_result gpusync_timeline_create(gpusync_device *device, const gpusync_timeline_desc *desc,
                                                   gpusync_timeline **out)
{
    uint64_t raw, initial = desc ? desc->initial_value : 0;
    gpusync_result result;
    void *event, *pool;
    if (out) *out = NULL;
    if (!device || !out) return GPUSYNC_ERROR_INVALID_ARGUMENT;
    if (initial > GPUSYNC_MAX_VALUE) return GPUSYNC_ERROR_NOT_RISING;
    pool = gpusync__pool_push();
    event = gpusync__event_take(device, &raw);
    if (event)
        gpusync__send_void_id(event, gpusync__sel.setLabel, desc && desc->label ? gpusync__string(desc->label) : NULL);
    gpusync__pool_pop(pool);
    if (!event) return GPUSYNC_ERROR_METAL_NIL;
    result = gpusync__timeline_new(device, event, raw, false, desc, out);
    if (result == GPUSYNC_OK && initial > raw) gpusync__write_event(*out, initial);
    return result;
}

GPUSYNC_API gpusync_result gpusync_timeline_import(gpusync_device *device, void *shared_event,
                                                   const gpusync_timeline_desc *desc, gpusync_timeline **out)
{
    static const gpusync_timeline_desc plain = {0, NULL, false};
    gpusync_result result;
    void *cls;
    if (out) *out = NULL;
    if (!device || !out || !shared_event) return GPUSYNC_ERROR_INVALID_ARGUMENT;
    cls = gpusync__class_of(shared_event);
    if (!gpusync__class_responds(cls, gpusync__sel.signaledValue) ||
        !gpusync__class_responds(cls, gpusync__sel.notifyListener))
        return GPUSYNC_ERROR_UNSUPPORTED;
    result = gpusync__timeline_new(device, gpusync__retain(shared_event),
                                   GPUSYNC__AS(uint64_t)(shared_event, gpusync__sel.signaledValue), true,
                                   desc ? desc : &plain, out);
    if (result == GPUSYNC_OK) gpusync__look_timeline(*out);
    return result;
}

GPUSYNC_API gpusync_result gpusync_timeline_destroy(gpusync_timeline *timeline)
{
    gpusync_timeline *t = timeline, **link;
    unsigned rounds = 0, i;
    if (!t) return GPUSYNC_OK;
    if (gpusync__in_callback()) return GPUSYNC_ERROR_WOULD_DEADLOCK;
    gpusync__set_flag(&t->flags, GPUSYNC__CLOSING);
    gpusync__wake_board(t->device, &t->board);
    while (GPUSYNC__GET(&t->inside)) gpusync__linger(t->device, &rounds);
    pthread_mutex_lock(&t->device->lock);
    for (link = &t->device->timelines; *link != t;) link = &(*link)->next;
    *link = t->next;
    pthread_mutex_unlock(&t->device->lock);
    for (i = 0; i < GPUSYNC__LISTENINGS; i++) gpusync__settle_listenings(t, t->listenings[i]);
    gpusync__event_give(t);
    pthread_mutex_destroy(&t->board.lock);
    gpusync__free(t->device, t, sizeof *t);
    return GPUSYNC_OK;
}

GPUSYNC_API void *gpusync_timeline_metal(gpusync_timeline *timeline, uint64_t *base)
{
    if (base) *base = timeline ? timeline->base : 0;
    if (!timeline) return NULL;
    __atomic_store_n(&timeline->handed_out, true, __ATOMIC_SEQ_CST);
    return timeline->event;
}

GPUSYNC_API gpusync_result gpusync_timeline_query(gpusync_timeline *timeline, uint64_t *value)
{
    gpusync_result result;
    if (value) *value = 0;
    if (!timeline || !value) return GPUSYNC_ERROR_INVALID_ARGUMENT;
    gpusync__look_timeline(timeline);
    *value = GPUSYNC__GET(&timeline->value);
    if (*value != GPUSYNC__FAILED_VALUE) return GPUSYNC_OK;
    result = gpusync__timeline_result(timeline, NULL); /* takes the lock under which `last` was written */
    *value = timeline->last;
    return result;
}

GPUSYNC_API gpusync_result gpusync_timeline_signal(gpusync_timeline *timeline, uint64_t value)
{
    gpusync_result result;
    if (!timeline) return GPUSYNC_ERROR_INVALID_ARGUMENT;
    if (value > GPUSYNC_MAX_VALUE) return GPUSYNC_ERROR_NOT_RISING;
    result = gpusync__timeline_enter(timeline);
    if (result != GPUSYNC_OK) return result;
    gpusync__look_timeline(timeline);
    if (GPUSYNC__GET(&timeline->flags) & GPUSYNC__LOST) result = GPUSYNC_ERROR_DEVICE_LOST;
    else result = gpusync__timeline_result(timeline, NULL);
    if (result == GPUSYNC_OK && gpusync__raise(timeline, value)) {
        gpusync__write_event(timeline, value + timeline->base);
    } else if (result == GPUSYNC_OK) {
        result = gpusync__timeline_result(timeline, NULL); /* failed meanwhile? */
        if (result == GPUSYNC_OK) result = GPUSYNC_ERROR_NOT_RISING;
    }
    gpusync__timeline_leave(timeline);
    return result;
}

GPUSYNC_API gpusync_result gpusync_timeline_expect(gpusync_timeline *timeline, uint64_t value)
{
    gpusync_result result;
    if (!timeline) return GPUSYNC_ERROR_INVALID_ARGUMENT;
    if (value > GPUSYNC_MAX_VALUE) return GPUSYNC_ERROR_NOT_RISING;
    result = gpusync__timeline_enter(timeline);
    if (result != GPUSYNC_OK) return result;
    __atomic_store_n(&timeline->handed_out, true, __ATOMIC_SEQ_CST);
    if (!(gpusync__set_flag(&timeline->flags, GPUSYNC__OUTSIDE) & GPUSYNC__OUTSIDE))
        gpusync__hint(timeline->device, &timeline->board); /* who sleeps did not listen */
    gpusync__look_timeline(timeline);
    result = gpusync__timeline_result(timeline, NULL);
    gpusync__timeline_leave(timeline);
    return result;
}

/* Keep the first failure. False: there was one. */
static bool gpusync__timeline_set_error(gpusync_timeline *t, const gpusync_error *reason)
{
    bool first;
    pthread_mutex_lock(&t->board.lock);
    first = GPUSYNC__GET(&t->value) != GPUSYNC__FAILED_VALUE;
    if (first) {
        if (reason) t->error = *reason;
        if (t->error.result >= 0) t->error.result = GPUSYNC_ERROR_EXECUTION;
        if (t->error.failure == GPUSYNC_FAILURE_NONE) t->error.failure = GPUSYNC_FAILURE_OTHER;
        t->last = __atomic_exchange_n(&t->value, GPUSYNC__FAILED_VALUE, __ATOMIC_SEQ_CST);
    }
    pthread_mutex_unlock(&t->board.lock);
    return first;
}

GPUSYNC_API gpusync_result gpusync_timeline_fail(gpusync_timeline *timeline, const gpusync_error *reason)
{
    gpusync_result result;
    if (!timeline) return GPUSYNC_ERROR_INVALID_ARGUMENT;
    result = gpusync__timeline_enter(timeline);
    if (result != GPUSYNC_OK) return result;
    if (gpusync__timeline_set_error(timeline, reason)) {
        gpusync__wake_board(timeline->device, &timeline->board);
        if (timeline->fail_writes_event) gpusync__write_event(timeline, GPUSYNC__FAILED_VALUE);
    } else {
        result = gpusync__timeline_result(timeline, NULL);
    }
    gpusync__timeline_leave(timeline);
    return result;
}

static void gpusync__goal_leave(const gpusync__goal *goal)
{
    if (goal->queue) gpusync__leave(goal->queue);
    else gpusync__timeline_leave(goal->timeline);
}

/* How an ended goal ended. */
static gpusync_result gpusync__goal_result(const gpusync__goal *goal, gpusync_error *error)
{
    if (!gpusync__met(goal)) return gpusync__stop_reason(goal);
    if (goal->kind == GPUSYNC__VALUE) return gpusync__timeline_result(goal->timeline, error);
    return gpusync__result_of(goal->queue, goal, true, error);
}

GPUSYNC_API gpusync_result gpusync_timeline_wait(gpusync_timeline *timeline, uint64_t value, uint64_t timeout_ns,
                                                 const gpusync_wait_options *options)
{
    gpusync_device *dev;
    gpusync__watch watch;
    gpusync__wait wait;
    gpusync_result result;
    uint64_t *how, present;
    if (!timeline) return GPUSYNC_ERROR_INVALID_ARGUMENT;
    if (value > GPUSYNC_MAX_VALUE) return GPUSYNC_ERROR_NOT_RISING;
    if (options && (unsigned)options->mode > GPUSYNC_WAIT_BLOCKING) return GPUSYNC_ERROR_INVALID_ARGUMENT;
    present = GPUSYNC__GET(&timeline->value);
    if (present >= value && present != GPUSYNC__FAILED_VALUE) {
        GPUSYNC__COUNT(&timeline->device->stats.waits_inline);
        return GPUSYNC_OK;
    }
    result = gpusync__timeline_enter(timeline);
    if (result != GPUSYNC_OK) return result;
    dev = timeline->device;
    memset(&watch, 0, sizeof watch);
    memset(&wait, 0, sizeof wait);
    watch.goal.kind = GPUSYNC__VALUE;
    watch.goal.timeline = timeline;
    watch.goal.ticket = value;
    wait.device = dev;
    wait.stats = &dev->stats;
    wait.watches = &watch;
    wait.count = 1;
    result = gpusync__await(&wait, timeout_ns, options && options->spin ? options->spin : &dev->spin,
                            options && options->mode ? options->mode : dev->wait_mode, &how);
    if (gpusync__over(&watch.goal)) result = gpusync__goal_result(&watch.goal, options ? options->error : NULL);
    else how = &dev->stats.waits_unmet;
    GPUSYNC__COUNT(how);
    gpusync__timeline_leave(timeline);
    return result;
}

/* The goal of a point, with its queue or timeline entered. */
static gpusync_result gpusync__point_enter(const gpusync_point *point, gpusync__goal *goal)
{
    gpusync_result result;
    if (point->timeline) {
        memset(goal, 0, sizeof *goal);
        goal->kind = GPUSYNC__VALUE;
        goal->timeline = point->timeline;
        goal->ticket = point->value;
        if (point->value > GPUSYNC_MAX_VALUE) return GPUSYNC_ERROR_NOT_RISING;
        return gpusync__timeline_enter(point->timeline);
    }
    if (!point->queue) return GPUSYNC_ERROR_INVALID_ARGUMENT;
    if (!gpusync__enter(point->queue)) return GPUSYNC_ERROR_DESTROYED;
    result = gpusync__goal_of(point->queue, point->ticket, goal);
    if (result != GPUSYNC_OK) gpusync__leave(point->queue);
    return result;
}

static gpusync_device *gpusync__point_device(const gpusync_point *point)
{
    return point->timeline ? point->timeline->device : point->queue ? point->queue->device : NULL;
}

/* Enter every point. On an error none is entered, and *which tells the point. */
static gpusync_result gpusync__points_enter(const gpusync_point *points, size_t count, gpusync__watch *watches,
                                            size_t *which)
{
    gpusync_result result = GPUSYNC_OK;
    size_t i;
    for (i = 0; i < count && result == GPUSYNC_OK; i++) {
        *which = i;
        result = gpusync__point_enter(&points[i], &watches[i].goal);
    }
    if (result == GPUSYNC_OK) return GPUSYNC_OK;
    for (i = 0; i < *which; i++) gpusync__goal_leave(&watches[i].goal);
    return result;
}

/* What a wait for many points returns, and the point that says so. */
static gpusync_result gpusync__many_result(gpusync__wait *wait, gpusync_result result, size_t *which)
{
    size_t i;
    *which = wait->count;
    if (wait->any && gpusync__wait_over(wait)) {
        *which = wait->which;
        return gpusync__goal_result(&wait->watches[wait->which].goal, NULL);
    }
    for (i = 0; i < wait->count && *which == wait->count; i++) {
        const gpusync__watch *watch = &wait->watches[i];
        gpusync_result one = GPUSYNC_OK;
        if (watch->left) one = watch->result;
        else if (gpusync__over(&watch->goal)) one = gpusync__goal_result(&watch->goal, NULL);
        if (one == GPUSYNC_OK) continue;
        *which = i;
        result = one;
    }
    return result;
}

/* Leave every point but one that is not left yet: that one keeps the device alive for a while. */
static void gpusync__leave_all_but(const gpusync__wait *wait, gpusync__goal *last)
{
    size_t i, inside = wait->inside;
    for (i = 0; i < wait->count; i++) {
        if (wait->watches[i].left) continue;
        if (--inside == 0) *last = wait->watches[i].goal;
        else gpusync__goal_leave(&wait->watches[i].goal);
    }
}

/* OK or not, *last is entered when its queue or timeline is set. */
static gpusync_result gpusync__wait_points(gpusync_device *dev, const gpusync_point *points, size_t count, bool any,
                                           uint64_t timeout_ns, gpusync__watch *watches, size_t *which,
                                           gpusync__goal *last)
{
    static const gpusync_spin none = {0, 0, 0};
    gpusync__wait wait;
    gpusync_result result = gpusync__points_enter(points, count, watches, which);
    uint64_t *how;
    if (result != GPUSYNC_OK) return result;
    memset(&wait, 0, sizeof wait);
    wait.device = dev;
    wait.stats = &dev->stats;
    wait.watches = watches;
    wait.count = wait.inside = count;
    wait.any = any;
    wait.many = true;
    /* Looking at many points again and again costs more than it gains. */
    result = gpusync__await(&wait, timeout_ns, count > 16 ? &none : &dev->spin,
                            dev->wait_mode == GPUSYNC_WAIT_BLOCKING ? GPUSYNC_WAIT_HANDLER : dev->wait_mode, &how);
    GPUSYNC__COUNT(result == GPUSYNC_OK ? how : &dev->stats.waits_unmet);
    result = gpusync__many_result(&wait, result, which);
    gpusync__leave_all_but(&wait, last);
    return result;
}

GPUSYNC_API gpusync_result gpusync_wait_many(const gpusync_point *points, size_t count, gpusync_wait_for how,
                                             uint64_t timeout_ns, size_t *which)
{
    gpusync__watch few[16], *watches = few;
    gpusync_device *dev = NULL;
    gpusync__goal last;
    gpusync_result result;
    size_t i, found = count;
    if (which) *which = count;
    if ((count && !points) || (unsigned)how > GPUSYNC_WAIT_ANY) return GPUSYNC_ERROR_INVALID_ARGUMENT;
    if (count == 0) return how == GPUSYNC_WAIT_ANY ? GPUSYNC_ERROR_INVALID_ARGUMENT : GPUSYNC_OK;
    for (i = 0; i < count; i++) {
        gpusync_device *one = gpusync__point_device(&points[i]);
        if (!one || (dev && one != dev)) return GPUSYNC_ERROR_INVALID_ARGUMENT;
        dev = one;
    }
    if (count > sizeof few / sizeof few[0])
        watches = (gpusync__watch *)gpusync__allocate(dev, count * sizeof *watches, 16);
    if (!watches) return GPUSYNC_ERROR_OUT_OF_MEMORY;
    memset(watches, 0, count * sizeof *watches);
    memset(&last, 0, sizeof last);
    result = gpusync__wait_points(dev, points, count, how == GPUSYNC_WAIT_ANY, timeout_ns, watches, &found, &last);
    if (watches != few) gpusync__free(dev, watches, count * sizeof *watches);
    if (last.queue || last.timeline) gpusync__goal_leave(&last);
    if (which) *which = found;
    return result;
}

/* ------------------------------------------------------------------------------ >>commit -- */

static gpusync_result gpusync__wait_for_room(gpusync_queue *q, uint64_t timeout_ns)
{
    uint64_t deadline = gpusync__deadline(timeout_ns), *how;
    gpusync__goal goal;
    memset(&goal, 0, sizeof goal);
    goal.queue = q;
    goal.kind = GPUSYNC__ROOM;
    while (!gpusync__take_room(q)) {
        uint64_t left = gpusync__time_left(deadline);
        gpusync_result result = gpusync__await_goal(&goal, left, NULL, &how);
        /* Room is not like a ticket: another thread may have taken what ended this sleep. */
        if (result == GPUSYNC_TIMEOUT && left && gpusync_now_ns() < deadline) continue;
        if (result != GPUSYNC_OK) return result;
    }
    return GPUSYNC_OK;
}

/* Metal 4 objects and other strangers lack the methods that are used here; sending them would end the program. */
static bool gpusync__knows_class(gpusync_queue *q, void *buffer)
{
    void *cls = gpusync__class_of(buffer);
    if (cls == GPUSYNC__GET(&q->buffer_class)) return true;
    if (!gpusync__class_responds(cls, gpusync__sel.addCompletedHandler) ||
        !gpusync__class_responds(cls, gpusync__sel.commandQueue) ||
        !gpusync__class_responds(cls, gpusync__sel.status) || !gpusync__class_responds(cls, gpusync__sel.gpuStartTime))
        return false;
    GPUSYNC__PUT(&q->buffer_class, cls);
    return true;
}

/* +1, or NULL. The caller has taken room for it. */
static void *gpusync__make_buffer(gpusync_queue *q, const gpusync_command_buffer_desc *desc)
{
    void *pool = gpusync__pool_push();
    void *buffer = gpusync__send_id(q->metal, desc && desc->unretained_references ? gpusync__sel.commandBufferUnretained
                                                                                  : gpusync__sel.commandBuffer);
    if (buffer) gpusync__retain(buffer);
    if (buffer && desc && desc->label)
        gpusync__send_void_id(buffer, gpusync__sel.setLabel, gpusync__string(desc->label));
    gpusync__pool_pop(pool);
    return buffer;
}

/* With room taken. */
static gpusync_result gpusync__open_buffer(gpusync_queue *q, const gpusync_command_buffer_desc *desc, void **out)
{
    void *buffer = gpusync__make_buffer(q, desc);
    gpusync__slot *slot;
    if (!buffer) return GPUSYNC_ERROR_METAL_NIL;
    pthread_mutex_lock(&q->order);
    slot = gpusync__slot_new(q, buffer, GPUSYNC__WORK, GPUSYNC__OPEN);
    if (slot) {
        slot->next = q->open;
        q->open = slot;
    }
    pthread_mutex_unlock(&q->order);
    if (!slot) {
        gpusync__release_pooled(buffer);
        return GPUSYNC_ERROR_OUT_OF_MEMORY;
    }
    *out = buffer;
    return GPUSYNC_OK;
}

GPUSYNC_API gpusync_result gpusync_command_buffer(gpusync_queue *queue, const gpusync_command_buffer_desc *desc,
                                                  void **out)
{
    gpusync_result result;
    if (out) *out = NULL;
    if (!queue || !out) return GPUSYNC_ERROR_INVALID_ARGUMENT;
    result = gpusync__enter_working(queue);
    if (result != GPUSYNC_OK) return result;
    result = gpusync__wait_for_room(queue, desc && desc->timeout_ns ? *desc->timeout_ns : GPUSYNC_FOREVER);
    if (result == GPUSYNC_OK) {
        result = gpusync__open_buffer(queue, desc, out);
        if (result != GPUSYNC_OK) gpusync__give_room(queue);
    }
    gpusync__leave(queue);
    return result;
}

/* The place in the list of open buffers where this one is; the list's end when it is not. Under the order lock. */
static gpusync__slot **gpusync__find_open(gpusync_queue *q, const void *buffer)
{
    gpusync__slot **link = &q->open;
    while (*link && (*link)->buffer != buffer) link = &(*link)->next;
    return link;
}

static gpusync__slot *gpusync__take_open(gpusync__slot **link)
{
    gpusync__slot *slot = *link;
    if (slot) *link = slot->next;
    return slot;
}

GPUSYNC_API gpusync_result gpusync_command_buffer_discard(gpusync_queue *queue, void *command_buffer)
{
    gpusync__slot *slot;
    if (!queue || !command_buffer) return GPUSYNC_ERROR_INVALID_ARGUMENT;
    if (!gpusync__enter(queue)) return GPUSYNC_ERROR_DESTROYED;
    pthread_mutex_lock(&queue->order);
    slot = gpusync__take_open(gpusync__find_open(queue, command_buffer));
    pthread_mutex_unlock(&queue->order);
    if (slot) {
        gpusync__drop(slot);
        gpusync__give_room(queue);
    }
    gpusync__leave(queue);
    return slot ? GPUSYNC_OK : GPUSYNC_ERROR_UNKNOWN_BUFFER;
}

/* Has the buffer a ticket already? Only compares, and so holds nothing that it would have to release under a lock. */
static bool gpusync__has_ticket(gpusync_queue *q, const void *buffer)
{
    gpusync__cursor at = {NULL, 0};
    gpusync__slot *slot;
    while ((slot = gpusync__next_slot_unheld(q, &at)) != NULL)
        if (GPUSYNC__GET(&slot->buffer) == buffer) return true;
    return false;
}

/* May a buffer that somebody else made come in here? Under the order lock, with a pool. */
static gpusync_result gpusync__check_stranger(gpusync_queue *q, void *buffer, uint32_t kind)
{
    if (!gpusync__knows_class(q, buffer)) return GPUSYNC_ERROR_UNSUPPORTED;
    if (gpusync__send_id(buffer, gpusync__sel.commandQueue) != q->metal) return GPUSYNC_ERROR_WRONG_QUEUE;
    /* A plain commit searches only where there are tracked buffers to mistake it for: of the rest the status tells. */
    if ((kind != GPUSYNC__WORK || GPUSYNC__GET(&q->tracked)) && gpusync__has_ticket(q, buffer))
        return GPUSYNC_ERROR_ALREADY_TRACKED;
    return GPUSYNC_OK;
}

/* Metal ends the program when a handler is added to, or a commit sent to, a buffer that is committed. */
static gpusync_result gpusync__check_status(void *buffer, uint32_t kind)
{
    bool committed = gpusync__send_ulong(buffer, gpusync__sel.status) >= GPUSYNC__STATUS_COMMITTED;
    if (kind == GPUSYNC__FOREIGN_WORK) return committed ? GPUSYNC_OK : GPUSYNC_ERROR_NOT_COMMITTED;
    return committed ? GPUSYNC_ERROR_ALREADY_COMMITTED : GPUSYNC_OK;
}

/* The slot for a buffer that becomes work: the one that it has had since we made it, else a new one. `ours` tells
   which. Under the order lock, with a pool. */
static gpusync_result gpusync__adopt(gpusync_queue *q, void *buffer, uint32_t kind, gpusync__slot **out, bool *ours)
{
    gpusync__slot **open = gpusync__find_open(q, buffer), *slot = *open;
    gpusync_result result = slot ? GPUSYNC_OK : gpusync__check_stranger(q, buffer, kind);
    *ours = slot != NULL;
    if (result == GPUSYNC_OK) result = gpusync__check_status(buffer, kind);
    if (result != GPUSYNC_OK) return result;
    if (!slot) {
        slot = gpusync__slot_new(q, buffer, kind, GPUSYNC__OPEN);
        if (!slot) return GPUSYNC_ERROR_OUT_OF_MEMORY;
        gpusync__retain(buffer);
        GPUSYNC__ADD(&q->outstanding, 1);
    } else {
        (void)gpusync__take_open(open);
        GPUSYNC__PUT(&slot->kind, kind);
    }
    *out = slot;
    return GPUSYNC_OK;
}

/* Undo gpusync__adopt. Under the order lock. */
static void gpusync__unadopt(gpusync_queue *q, gpusync__slot *slot, bool ours)
{
    if (ours) {
        slot->next = q->open;
        q->open = slot;
        return;
    }
    GPUSYNC__SUB(&q->outstanding, 1);
    gpusync__drop(slot);
}

/* Ticket, handler, commit, as one step in the order of the queue. */
static gpusync_result gpusync__commit_ordered(gpusync_queue *q, void *buffer, uint32_t kind, gpusync_ticket *ticket)
{
    gpusync__slot *slot = NULL;
    bool ours;
    gpusync_result result = gpusync__adopt(q, buffer, kind, &slot, &ours);
    if (result != GPUSYNC_OK) return result;
    if (kind == GPUSYNC__TRACKED) GPUSYNC__ADD(&q->tracked, 1);
    *ticket = gpusync__issue(q, slot);
    if (*ticket == 0) {
        if (kind == GPUSYNC__TRACKED) GPUSYNC__SUB(&q->tracked, 1);
        gpusync__unadopt(q, slot, ours);
        return GPUSYNC_ERROR_OUT_OF_MEMORY;
    }
    gpusync__send_void_id(buffer, gpusync__sel.addCompletedHandler, slot);
    if (kind == GPUSYNC__WORK) gpusync__send_void(buffer, gpusync__sel.commit);
    return GPUSYNC_OK;
}

static gpusync_result gpusync__commit(gpusync_queue *q, void *buffer, uint32_t kind, gpusync_ticket *ticket)
{
    gpusync_ticket issued = GPUSYNC_NO_TICKET;
    gpusync_result result = GPUSYNC_ERROR_INVALID_ARGUMENT;
    if (q && buffer) result = gpusync__enter_working(q);
    if (result == GPUSYNC_OK) {
        void *pool = gpusync__pool_push();
        pthread_mutex_lock(&q->order);
        result = gpusync__commit_ordered(q, buffer, kind, &issued);
        pthread_mutex_unlock(&q->order);
        gpusync__pool_pop(pool);
        if (gpusync__has_foreign(q)) gpusync__sweep_foreign(q);
        gpusync__leave(q);
    }
    if (ticket) *ticket = issued;
    return result;
}

GPUSYNC_API gpusync_result gpusync_commit(gpusync_queue *queue, void *command_buffer, gpusync_ticket *ticket)
{
    return gpusync__commit(queue, command_buffer, GPUSYNC__WORK, ticket);
}

GPUSYNC_API gpusync_result gpusync_track(gpusync_queue *queue, void *command_buffer, gpusync_ticket *ticket)
{
    return gpusync__commit(queue, command_buffer, GPUSYNC__TRACKED, ticket);
}

/* Give up a tracked buffer. The caller holds the slot. */
static gpusync_result gpusync__untrack_slot(gpusync_queue *q, gpusync__slot *slot)
{
    if (slot->kind != GPUSYNC__TRACKED) return GPUSYNC_ERROR_INVALID_TICKET;
    if (gpusync__status(slot->buffer) >= GPUSYNC__STATUS_COMMITTED) return GPUSYNC_ERROR_ALREADY_COMMITTED;
    if (!gpusync__cancel(q, slot)) return GPUSYNC_ERROR_INVALID_TICKET;
    /* The handler will never run: drop its hold. Metal's last look at the block finds an unchanged header. */
    if (gpusync__turn(slot, slot->buffer, GPUSYNC__ARMED, GPUSYNC__RUNNING)) {
        gpusync__give_room_of(q, slot);
        gpusync__drop(slot);
    }
    return GPUSYNC_OK;
}

GPUSYNC_API gpusync_result gpusync_untrack(gpusync_queue *queue, gpusync_ticket ticket)
{
    gpusync__slot *slot;
    gpusync_result result = GPUSYNC_ERROR_INVALID_TICKET;
    if (!queue) return GPUSYNC_ERROR_INVALID_ARGUMENT;
    if (!gpusync__enter(queue)) return GPUSYNC_ERROR_DESTROYED;
    slot = ticket == 0 || ticket > gpusync__committed(queue) ? NULL : gpusync__hold_ticket(queue, ticket);
    if (slot) {
        result = gpusync__untrack_slot(queue, slot);
        gpusync__drop(slot);
    }
    gpusync__leave(queue);
    return result;
}

/* An empty command buffer behind foreign work, to be told when it ends. Where that is not to be had, waits look at
   the status at intervals. It may overlap the work before it, so its end proves nothing. */
static void gpusync__send_sentinel(gpusync_queue *q)
{
    gpusync__slot *slot = NULL;
    void *buffer = NULL;
    if (!gpusync__take_room(q)) return;
    buffer = gpusync__make_buffer(q, NULL); /* may block when the program has filled the queue behind our back */
    if (buffer) {
        pthread_mutex_lock(&q->order);
        slot = gpusync__slot_new(q, buffer, GPUSYNC__SENTINEL, GPUSYNC__ARMED);
        pthread_mutex_unlock(&q->order);
    }
    if (slot) {
        void *pool = gpusync__pool_push();
        GPUSYNC__ADD(&q->sentinels, 1);
        GPUSYNC__COUNT(&q->stats.sentinels);
        gpusync__send_void_id(buffer, gpusync__sel.addCompletedHandler, slot);
        gpusync__send_void(buffer, gpusync__sel.commit);
        gpusync__pool_pop(pool);
        return;
    }
    if (buffer) gpusync__release_pooled(buffer);
    gpusync__give_room(q);
}

static gpusync_result gpusync__track_foreign(gpusync_queue *q, void *buffer, gpusync_ticket *ticket)
{
    gpusync__slot *slot = NULL;
    gpusync_result result;
    bool ours;
    void *pool = gpusync__pool_push();
    pthread_mutex_lock(&q->order);
    result = gpusync__adopt(q, buffer, GPUSYNC__FOREIGN_WORK, &slot, &ours);
    if (result == GPUSYNC_OK) {
        GPUSYNC__SET(&slot->since_ns, gpusync_now_ns());
        *ticket = gpusync__add_foreign(q, slot);
    }
    pthread_mutex_unlock(&q->order);
    gpusync__pool_pop(pool);
    return result;
}

GPUSYNC_API gpusync_result gpusync_track_committed(gpusync_queue *queue, void *command_buffer, gpusync_ticket *ticket)
{
    gpusync_ticket issued = GPUSYNC_NO_TICKET;
    gpusync_result result = GPUSYNC_ERROR_INVALID_ARGUMENT;
    if (queue && command_buffer) result = gpusync__enter_working(queue);
    if (result == GPUSYNC_OK) {
        result = gpusync__track_foreign(queue, command_buffer, &issued);
        if (gpusync__has_foreign(queue)) gpusync__sweep_foreign(queue);
        if (result == GPUSYNC_OK && gpusync__has_foreign(queue)) gpusync__send_sentinel(queue);
        gpusync__leave(queue);
    }
    if (ticket) *ticket = issued;
    return result;
}

/* ------------------------------------------------------------------------------ >>create -- */

static void gpusync__init_selectors(void)
{
    pthread_mutex_lock(&gpusync__global.lock);
    if (!gpusync__global.selectors_ready) {
#define GPUSYNC__REGISTER(name, text) gpusync__sel.name = gpusync__sel_register(text);
        GPUSYNC__SELECTORS(GPUSYNC__REGISTER)
#undef GPUSYNC__REGISTER
        gpusync__global.selectors_ready = true;
    }
    pthread_mutex_unlock(&gpusync__global.lock);
}

/* +1, or NULL. Either way of asking fails on some machines where the other works. */
static void *gpusync__find_device(void)
{
    void *pool = gpusync__pool_push();
    void *device = gpusync__default_device();
    if (!device && gpusync__all_devices) {
        void *list = gpusync__all_devices();
        if (list && gpusync__send_ulong(list, gpusync__sel.count) > 0)
            device = gpusync__retain(GPUSYNC__AS1(void *, unsigned long)(list, gpusync__sel.objectAtIndex, 0));
        if (list) gpusync__release(list);
    }
    gpusync__pool_pop(pool);
    return device;
}

static void gpusync__fill_hooks(gpusync_hooks *hooks, const gpusync_hooks *wish)
{
    if (wish) *hooks = *wish;
    if (!hooks->yield) hooks->yield = gpusync__default_yield;
    if (!hooks->park) {
        hooks->park = gpusync__default_park;
        hooks->unpark = gpusync__default_unpark;
    }
}

static bool gpusync__valid_device_desc(const gpusync_device_desc *desc)
{
    if (!desc) return true;
    if (desc->hooks && !desc->hooks->park != !desc->hooks->unpark) return false;
    if (desc->allocator && (!desc->allocator->allocate || !desc->allocator->release)) return false;
    return (unsigned)desc->wait_mode <= GPUSYNC_WAIT_BLOCKING;
}

GPUSYNC_API gpusync_result gpusync_device_create(const gpusync_device_desc *desc, gpusync_device **out)
{
    static const gpusync_allocator plain = {gpusync__default_allocate, gpusync__default_release, NULL};
    static const gpusync_spin usual = {32, 224, 0}; /* CUDA.jl and Metal.jl: 32 pauses, then yields up to 256 rounds */
    const gpusync_allocator *allocator = desc && desc->allocator ? desc->allocator : &plain;
    gpusync_device *dev;
    void *metal;
    if (out) *out = NULL;
    if (!out || !gpusync__valid_device_desc(desc)) return GPUSYNC_ERROR_INVALID_ARGUMENT;
    gpusync__init_selectors();
    metal = desc && desc->metal_device ? gpusync__retain(desc->metal_device) : gpusync__find_device();
    if (!metal) return GPUSYNC_ERROR_NO_DEVICE;
    dev = (gpusync_device *)allocator->allocate(allocator->user, sizeof *dev, 128);
    if (!dev) {
        gpusync__release_pooled(metal);
        return GPUSYNC_ERROR_OUT_OF_MEMORY;
    }
    memset(dev, 0, sizeof *dev);
    dev->metal = metal;
    dev->allocator = *allocator;
    gpusync__fill_hooks(&dev->hooks, desc ? desc->hooks : NULL);
    dev->spin = desc && desc->spin ? *desc->spin : usual;
    dev->wait_mode = desc && desc->wait_mode ? desc->wait_mode : GPUSYNC_WAIT_SPIN_THEN_HANDLER;
    dev->log = desc ? desc->log : NULL;
    dev->log_user = desc ? desc->log_user : NULL;
    pthread_mutex_init(&dev->lock, NULL);
    pthread_mutex_init(&dev->waiter_lock, NULL);
    *out = dev;
    return GPUSYNC_OK;
}

static uint64_t gpusync__registry_id(void *device)
{
    return GPUSYNC__AS(uint64_t)(device, gpusync__sel.registryID);
}

/* Is the queue one of this device? Wrappers of validation layers may differ by pointer: the registry decides. With
   a pool. */
static bool gpusync__same_device(gpusync_device *dev, void *metal_queue)
{
    void *other = gpusync__send_id(metal_queue, gpusync__sel.device);
    return other == dev->metal || (other && gpusync__registry_id(other) == gpusync__registry_id(dev->metal));
}

/* The Metal queue, +1, and its label. With a pool. */
static gpusync_result gpusync__metal_queue(gpusync_queue *q, const gpusync_queue_desc *desc)
{
    void *given = desc ? desc->metal_queue : NULL;
    if (given) {
        if (!gpusync__class_responds(gpusync__class_of(given), gpusync__sel.commandBuffer))
            return GPUSYNC_ERROR_UNSUPPORTED;
        if (!gpusync__same_device(q->device, given)) return GPUSYNC_ERROR_INVALID_ARGUMENT;
        q->metal = gpusync__retain(given);
        gpusync__copy_string(q->label, sizeof q->label, gpusync__send_id(given, gpusync__sel.label));
        return GPUSYNC_OK;
    }
    q->metal = GPUSYNC__AS1(void *, unsigned long)(q->device->metal, gpusync__sel.newCommandQueueWithMax, q->limit);
    if (!q->metal) return GPUSYNC_ERROR_METAL_NIL;
    if (desc && desc->label) {
        gpusync__copy_text(q->label, sizeof q->label, desc->label);
        gpusync__send_void_id(q->metal, gpusync__sel.setLabel, gpusync__string(desc->label));
    }
    return GPUSYNC_OK;
}

/* Give back what gpusync__queue_build made, however far it came. */
static void gpusync__queue_free(gpusync_queue *q)
{
    gpusync_device *dev = q->device;
    if (q->metal) gpusync__release_pooled(q->metal);
    gpusync__free(dev, q->log, q->log_size * sizeof *q->log);
    gpusync__rings_free(dev, q->ring);
    pthread_mutex_destroy(&q->order);
    pthread_mutex_destroy(&q->board.lock);
    gpusync__free(dev, q, sizeof *q);
}

static gpusync_result gpusync__queue_build(gpusync_queue *q, const gpusync_queue_desc *desc)
{
    gpusync_result result;
    void *pool;
    q->limit = desc && desc->max_command_buffer_count ? desc->max_command_buffer_count : 64;
    q->log_size = desc && desc->error_log_count ? desc->error_log_count : 64;
    q->spin = desc && desc->spin ? *desc->spin : q->device->spin;
    q->wait_mode = desc && desc->wait_mode ? desc->wait_mode : q->device->wait_mode;
    q->ring = gpusync__ring_new(q->device, GPUSYNC__RING_SIZE);
    q->log = (gpusync_error *)gpusync__allocate(q->device, q->log_size * sizeof *q->log, 16);
    if (!q->ring || !q->log) return GPUSYNC_ERROR_OUT_OF_MEMORY;
    pool = gpusync__pool_push();
    result = gpusync__metal_queue(q, desc);
    gpusync__pool_pop(pool);
    return result;
}

GPUSYNC_API gpusync_result gpusync_queue_create(gpusync_device *device, const gpusync_queue_desc *desc,
                                                gpusync_queue **out)
{
    gpusync_result result;
    gpusync_queue *q, **link;
    if (out) *out = NULL;
    if (!device || !out) return GPUSYNC_ERROR_INVALID_ARGUMENT;
    if (desc && (unsigned)desc->wait_mode > GPUSYNC_WAIT_BLOCKING) return GPUSYNC_ERROR_INVALID_ARGUMENT;
    q = (gpusync_queue *)gpusync__allocate(device, sizeof *q, 128);
    if (!q) return GPUSYNC_ERROR_OUT_OF_MEMORY;
    q->device = device;
    pthread_mutex_init(&q->order, NULL);
    pthread_mutex_init(&q->board.lock, NULL);
    result = gpusync__queue_build(q, desc);
    pthread_mutex_lock(&device->lock);
    if (GPUSYNC__GET(&device->lost)) result = GPUSYNC_ERROR_DEVICE_LOST;
    if (result == GPUSYNC_OK) {
        for (link = &device->queues; *link;) link = &(*link)->next;
        *link = q;
        q->number = ++device->queue_count;
    }
    pthread_mutex_unlock(&device->lock);
    if (result != GPUSYNC_OK) gpusync__queue_free(q);
    else *out = q;
    return result;
}

/* ----------------------------------------------------------------------------- >>destroy -- */

/* Tracked, but never committed: nothing to wait for. */
static void gpusync__give_up_tracked(gpusync_queue *q)
{
    gpusync__cursor at = {NULL, 0};
    gpusync__slot *slot;
    while ((slot = gpusync__next_slot(q, &at)) != NULL) {
        if (gpusync__state_of(slot) == GPUSYNC__ARMED) (void)gpusync__untrack_slot(q, slot);
        gpusync__drop(slot);
    }
}

/* Cut the tie to handlers that did not come yet, and let those that run finish. */
static void gpusync__settle_slots(gpusync_queue *q)
{
    gpusync__cursor at = {NULL, 0};
    gpusync__slot *slot;
    while ((slot = gpusync__next_slot(q, &at)) != NULL) {
        unsigned rounds = 0;
        void *buffer = slot->buffer;
        bool orphan = gpusync__turn(slot, buffer, GPUSYNC__ARMED, GPUSYNC__ORPHANED);
        if (orphan) {
            GPUSYNC__PUT(&slot->queue, NULL);
            gpusync__release_pooled(buffer);
        }
        gpusync__drop(slot);
        while (!orphan && gpusync__state_of(slot) == GPUSYNC__RUNNING && GPUSYNC__GET(&slot->queue) == q)
            gpusync__linger(q->device, &rounds);
    }
}

static void gpusync__drop_list(gpusync__slot *slot)
{
    while (slot) {
        gpusync__slot *next = slot->next;
        gpusync__drop(slot);
        slot = next;
    }
}

static void gpusync__free_list(gpusync__slot *slot)
{
    while (slot) {
        gpusync__slot *next = slot->next;
        gpusync__slot_free(slot);
        slot = next;
    }
}

/* Wait for what is in flight, without a limit, unless the device is lost. */
static void gpusync__drain(gpusync_queue *q)
{
    gpusync__goal goal;
    uint64_t *how;
    unsigned rounds = 0;
    (void)gpusync__goal_of(q, GPUSYNC_EVERYTHING, &goal);
    goal.draining = true;
    while (!gpusync__over(&goal))
        if (gpusync__await_goal(&goal, GPUSYNC_FOREVER, NULL, &how) == GPUSYNC_ERROR_OUT_OF_MEMORY)
            gpusync__linger(q->device, &rounds); /* no memory to sleep with */
}

static void gpusync__add_counts(gpusync_stats *sum, const gpusync_stats *more)
{
    uint64_t *to = &sum->commits;
    const uint64_t *from = &more->commits;
    size_t i;
    for (i = 0; i < sizeof *sum / sizeof *to; i++) to[i] += __atomic_load_n(&from[i], __ATOMIC_RELAXED);
}

static void gpusync__add_stats(gpusync_stats *sum, const gpusync_queue *q)
{
    gpusync__add_counts(sum, &q->stats);
    sum->commits += gpusync__committed(q) + GPUSYNC__GET(&q->foreign_issued);
}

static void gpusync__remove_queue(gpusync_queue *q)
{
    gpusync_queue **link = &q->device->queues;
    pthread_mutex_lock(&q->device->lock);
    while (*link != q) link = &(*link)->next;
    *link = q->next;
    pthread_mutex_unlock(&q->device->lock);
}

static void gpusync__keep_stats(gpusync_queue *q)
{
    pthread_mutex_lock(&q->device->lock);
    gpusync__add_stats(&q->device->gone, q);
    pthread_mutex_unlock(&q->device->lock);
}

static gpusync_result gpusync__destroy(gpusync_queue *q, bool drain)
{
    unsigned rounds = 0;
    if (!q) return GPUSYNC_OK;
    if (gpusync__in_callback()) return GPUSYNC_ERROR_WOULD_DEADLOCK;
    if (gpusync__set_flag(&q->flags, GPUSYNC__CLOSING) & GPUSYNC__CLOSING) return GPUSYNC_ERROR_DESTROYED;
    gpusync__wake(q);
    while (GPUSYNC__GET(&q->inside)) gpusync__linger(q->device, &rounds);
    gpusync__give_up_tracked(q);
    if (drain) gpusync__drain(q);
    gpusync__remove_queue(q);
    gpusync__settle_slots(q);
    gpusync__keep_stats(q);
    gpusync__drop_list(q->open); /* after the handlers, which walk these lists */
    gpusync__drop_list(q->foreign);
    gpusync__free_list(q->spare);
    gpusync__queue_free(q);
    return GPUSYNC_OK;
}

GPUSYNC_API gpusync_result gpusync_queue_destroy(gpusync_queue *queue) { return gpusync__destroy(queue, true); }

GPUSYNC_API gpusync_result gpusync_queue_destroy_now(gpusync_queue *queue)
{
    return gpusync__destroy(queue, false);
}

GPUSYNC_API gpusync_result gpusync_device_destroy(gpusync_device *device)
{
    gpusync_allocator allocator;
    bool in_use;
    if (!device) return GPUSYNC_OK;
    if (gpusync__in_callback()) return GPUSYNC_ERROR_WOULD_DEADLOCK;
    pthread_mutex_lock(&device->lock);
    in_use = device->queues != NULL || device->timelines != NULL;
    pthread_mutex_unlock(&device->lock);
    if (in_use) return GPUSYNC_ERROR_IN_USE;
    while (device->event_count) gpusync__release_pooled(device->events[--device->event_count]);
    if (device->listener) gpusync__release_pooled(device->listener);
    gpusync__release_pooled(device->metal);
    gpusync__waiter_slabs_free(device);
    pthread_mutex_destroy(&device->lock);
    pthread_mutex_destroy(&device->waiter_lock);
    allocator = device->allocator;
    allocator.release(allocator.user, device, sizeof *device);
    return GPUSYNC_OK;
}

/* ------------------------------------------------------------------------------ >>public --
   What is left: simple questions and the report. */

GPUSYNC_API void *gpusync_device_metal(const gpusync_device *device) { return device ? device->metal : NULL; }

GPUSYNC_API void *gpusync_queue_metal(const gpusync_queue *queue) { return queue ? queue->metal : NULL; }

GPUSYNC_API bool gpusync_device_is_lost(const gpusync_device *device)
{
    return device && GPUSYNC__GET(&device->lost) != 0;
}

GPUSYNC_API gpusync_result gpusync_next_error(gpusync_queue *queue, uint64_t *cursor, gpusync_error *error)
{
    if (!queue || !cursor || !error) return GPUSYNC_ERROR_INVALID_ARGUMENT;
    return gpusync__read_record(queue, cursor, error) ? GPUSYNC_OK : GPUSYNC_NOT_READY;
}

/* The GPU's times of a ticket that has ended. False: its entry went on to a later ticket. */
static bool gpusync__times_of(gpusync_queue *q, uint64_t ticket, double *start, double *end)
{
    gpusync__entry *entry = gpusync__entry_of(q, ticket);
    uint64_t start_bits = GPUSYNC__GET(&entry->gpu_start), end_bits = GPUSYNC__GET(&entry->gpu_end);
    memcpy(start, &start_bits, sizeof *start);
    memcpy(end, &end_bits, sizeof *end);
    /* after the times: an entry loses its mark before its times change */
    return GPUSYNC__GET(&entry->done) >> 1 == ticket;
}

GPUSYNC_API gpusync_result gpusync_get_info(gpusync_queue *queue, gpusync_ticket ticket, gpusync_ticket_info *info)
{
    gpusync_ticket_info found;
    if (info) memset(info, 0, sizeof *info);
    if (!queue || !info) return GPUSYNC_ERROR_INVALID_ARGUMENT;
    found.result = gpusync_poll(queue, ticket);
    if (found.result == GPUSYNC_ERROR_INVALID_TICKET || found.result == GPUSYNC_ERROR_DESTROYED ||
        found.result == GPUSYNC_NOT_READY)
        return found.result;
    if (ticket == GPUSYNC_NO_TICKET || ticket & GPUSYNC__FOREIGN) return GPUSYNC_ERROR_RESULT_UNKNOWN;
    if (!gpusync__marked(queue, ticket)) return found.result; /* of a lost device */
    if (!gpusync__times_of(queue, ticket, &found.gpu_start_s, &found.gpu_end_s)) return GPUSYNC_ERROR_RESULT_UNKNOWN;
    *info = found;
    return GPUSYNC_OK;
}

GPUSYNC_API gpusync_result gpusync_get_stats(const gpusync_queue *queue, gpusync_stats *stats)
{
    if (!queue || !stats) return GPUSYNC_ERROR_INVALID_ARGUMENT;
    memset(stats, 0, sizeof *stats);
    gpusync__add_stats(stats, queue);
    return GPUSYNC_OK;
}

GPUSYNC_API gpusync_result gpusync_device_get_stats(gpusync_device *device, gpusync_stats *stats)
{
    const gpusync_queue *q;
    if (!device || !stats) return GPUSYNC_ERROR_INVALID_ARGUMENT;
    pthread_mutex_lock(&device->lock);
    *stats = device->gone;
    gpusync__add_counts(stats, &device->stats);
    for (q = device->queues; q; q = q->next) gpusync__add_stats(stats, q);
    pthread_mutex_unlock(&device->lock);
    return GPUSYNC_OK;
}

typedef struct gpusync__writer {
    char *text;
    size_t size, length;
} gpusync__writer;

static void gpusync__write(gpusync__writer *writer, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void gpusync__write(gpusync__writer *writer, const char *format, ...)
{
    size_t room = writer->length < writer->size ? writer->size - writer->length : 0;
    va_list arguments;
    int length;
    va_start(arguments, format);
    length = vsnprintf(room ? writer->text + writer->length : NULL, room, format, arguments);
    va_end(arguments);
    if (length > 0) writer->length += (size_t)length;
}

static double gpusync__ms_since(uint64_t since_ns) { return (double)(gpusync_now_ns() - since_ns) / 1e6; }

static void gpusync__write_slot(gpusync__writer *out, const gpusync__slot *slot)
{
    static const char *const states[] = {"not enqueued", "enqueued", "committed", "scheduled", "completed", "error"};
    unsigned long status = gpusync__status(slot->buffer);
    void *pool = gpusync__pool_push();
    char label[64];
    gpusync__copy_string(label, sizeof label, gpusync__send_id(slot->buffer, gpusync__sel.label));
    gpusync__pool_pop(pool);
    gpusync__write(out, "    %sticket %llu '%s': %s for %.1f ms\n", slot->ticket & GPUSYNC__FOREIGN ? "foreign " : "",
                   (unsigned long long)(slot->ticket & ~GPUSYNC__FOREIGN), label, status <= 5 ? states[status] : "?",
                   gpusync__ms_since(GPUSYNC__GET(&slot->since_ns)));
}

static void gpusync__write_buffers(gpusync__writer *out, gpusync_queue *q)
{
    uint64_t ticket, last = gpusync__committed(q);
    gpusync__slot *slot;
    for (ticket = GPUSYNC__GET(&q->head.completed) + 1; ticket <= last; ticket++) {
        slot = gpusync__marked(q, ticket) ? NULL : gpusync__hold_ticket(q, ticket);
        if (!slot) continue;
        gpusync__write_slot(out, slot);
        gpusync__drop(slot);
    }
    for (ticket = 0; (slot = gpusync__next_foreign(q, ticket)) != NULL; gpusync__drop(slot)) {
        ticket = slot->ticket;
        gpusync__write_slot(out, slot);
    }
}

static void gpusync__write_watches(gpusync__writer *out, gpusync__board *board)
{
    const gpusync__watch *watch;
    pthread_mutex_lock(&board->lock);
    for (watch = board->first; watch; watch = watch->next) {
        static const char *const what[] = {"ticket", "everything up to ticket", "room for a command buffer", "value"};
        gpusync__write(out, "    a wait for %s", what[watch->goal.kind]);
        if (watch->goal.kind != GPUSYNC__ROOM)
            gpusync__write(out, " %llu", (unsigned long long)(watch->goal.ticket & ~GPUSYNC__FOREIGN));
        gpusync__write(out, ", asleep for %.1f ms\n", gpusync__ms_since(watch->since_ns));
    }
    pthread_mutex_unlock(&board->lock);
}

static void gpusync__write_queue(gpusync__writer *out, gpusync_queue *q)
{
    gpusync__write(out, "  queue %llu '%s': committed %llu, completed %llu, failed %llu, buffers %u of %u%s%s\n",
                   (unsigned long long)q->number, q->label, (unsigned long long)gpusync__committed(q),
                   (unsigned long long)GPUSYNC__GET(&q->head.completed),
                   (unsigned long long)__atomic_load_n(&q->stats.failures, __ATOMIC_RELAXED),
                   GPUSYNC__GET(&q->outstanding), q->limit, gpusync_is_idle(q) ? ", idle" : "",
                   GPUSYNC__GET(&q->flags) & GPUSYNC__LOST ? ", lost" : "");
    gpusync__write_buffers(out, q);
    gpusync__write_watches(out, &q->board);
}

/* The device's lock is held meanwhile: no message goes to Metal here. */
static void gpusync__write_timelines(gpusync__writer *out, gpusync_device *dev)
{
    gpusync_timeline *t;
    pthread_mutex_lock(&dev->lock);
    for (t = dev->timelines; t; t = t->next) {
        uint64_t value = GPUSYNC__GET(&t->value);
        gpusync__write(out, "  timeline %llu '%s': ", (unsigned long long)t->number, t->label);
        if (value == GPUSYNC__FAILED_VALUE) gpusync__write(out, "failed");
        else gpusync__write(out, "value %llu", (unsigned long long)value);
        gpusync__write(out, "%s\n", gpusync__is_outside(t) ? ", signalled by others too" : "");
        gpusync__write_watches(out, &t->board);
    }
    pthread_mutex_unlock(&dev->lock);
}

GPUSYNC_API size_t gpusync_report(gpusync_device *device, char *buffer, size_t size)
{
    gpusync__writer out;
    gpusync_queue *q;
    uint64_t number = 0;
    out.text = buffer;
    out.size = buffer ? size : 0;
    out.length = 0;
    if (out.size) buffer[0] = '\0';
    if (!device) return 0;
    gpusync__write(&out, "gpusync %d.%d.%d device%s\n", GPUSYNC_VERSION_MAJOR, GPUSYNC_VERSION_MINOR,
                   GPUSYNC_VERSION_PATCH, gpusync_device_is_lost(device) ? ", lost" : "");
    while ((q = gpusync__queue_from(device, number + 1)) != NULL) {
        number = q->number;
        gpusync__write_queue(&out, q);
        gpusync__leave(q);
    }
    gpusync__write_timelines(&out, device);
    return out.length;
}

#ifdef __cplusplus
}
#endif

#else /* GPUSYNC_OBJC */

/* ------------------------------------------------------------------------------- >>stubs --
   No Metal here: every call says so. */

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#elif defined(_MSC_VER)
#pragma warning(push)
#pragma warning(disable : 4100)
#endif

#define GPUSYNC__STUB(declaration)                                                                   \
    GPUSYNC_API gpusync_result declaration                                                           \
    {                                                                                                \
        return GPUSYNC_ERROR_UNSUPPORTED;                                                            \
    }
#define GPUSYNC__STUB_OUT(declaration)                                                               \
    GPUSYNC_API gpusync_result declaration                                                           \
    {                                                                                                \
        if (out) *out = 0;                                                                           \
        return GPUSYNC_ERROR_UNSUPPORTED;                                                            \
    }
GPUSYNC__STUB_OUT(gpusync_device_create(const gpusync_device_desc *desc, gpusync_device **out))
GPUSYNC__STUB(gpusync_device_destroy(gpusync_device *device))
GPUSYNC__STUB_OUT(gpusync_queue_create(gpusync_device *device, const gpusync_queue_desc *desc, gpusync_queue **out))
GPUSYNC__STUB(gpusync_queue_destroy(gpusync_queue *queue))
GPUSYNC__STUB(gpusync_queue_destroy_now(gpusync_queue *queue))
GPUSYNC__STUB_OUT(gpusync_command_buffer(gpusync_queue *queue, const gpusync_command_buffer_desc *desc, void **out))
GPUSYNC__STUB(gpusync_command_buffer_discard(gpusync_queue *queue, void *command_buffer))
GPUSYNC__STUB_OUT(gpusync_commit(gpusync_queue *queue, void *command_buffer, gpusync_ticket *out))
GPUSYNC__STUB_OUT(gpusync_track(gpusync_queue *queue, void *command_buffer, gpusync_ticket *out))
GPUSYNC__STUB(gpusync_untrack(gpusync_queue *queue, gpusync_ticket ticket))
GPUSYNC__STUB_OUT(gpusync_track_committed(gpusync_queue *queue, void *command_buffer, gpusync_ticket *out))
GPUSYNC__STUB(gpusync_poll(gpusync_queue *queue, gpusync_ticket ticket))
GPUSYNC__STUB(gpusync_wait(gpusync_queue *queue, gpusync_ticket ticket, uint64_t timeout_ns))
GPUSYNC__STUB(gpusync_wait_ex(gpusync_queue *queue, gpusync_ticket ticket, uint64_t timeout_ns,
                              const gpusync_wait_options *options))
GPUSYNC__STUB(gpusync_queue_wait(gpusync_queue *queue, uint64_t timeout_ns))
GPUSYNC__STUB(gpusync_device_wait(gpusync_device *device, uint64_t timeout_ns))
GPUSYNC__STUB(gpusync_wait_many(const gpusync_point *points, size_t count, gpusync_wait_for how, uint64_t timeout_ns,
                                size_t *which))
GPUSYNC__STUB_OUT(gpusync_timeline_create(gpusync_device *device, const gpusync_timeline_desc *desc,
                                          gpusync_timeline **out))
GPUSYNC__STUB_OUT(gpusync_timeline_import(gpusync_device *device, void *shared_event, const gpusync_timeline_desc *desc,
                                          gpusync_timeline **out))
GPUSYNC__STUB(gpusync_timeline_destroy(gpusync_timeline *timeline))
GPUSYNC__STUB_OUT(gpusync_timeline_query(gpusync_timeline *timeline, uint64_t *out))
GPUSYNC__STUB(gpusync_timeline_signal(gpusync_timeline *timeline, uint64_t value))
GPUSYNC__STUB(gpusync_timeline_expect(gpusync_timeline *timeline, uint64_t value))
GPUSYNC__STUB(gpusync_timeline_fail(gpusync_timeline *timeline, const gpusync_error *reason))
GPUSYNC__STUB(gpusync_timeline_wait(gpusync_timeline *timeline, uint64_t value, uint64_t timeout_ns,
                                    const gpusync_wait_options *options))
GPUSYNC__STUB(gpusync_next_error(gpusync_queue *queue, uint64_t *cursor, gpusync_error *error))
GPUSYNC__STUB(gpusync_get_info(gpusync_queue *queue, gpusync_ticket ticket, gpusync_ticket_info *info))
GPUSYNC__STUB(gpusync_get_stats(const gpusync_queue *queue, gpusync_stats *stats))
GPUSYNC__STUB(gpusync_device_get_stats(gpusync_device *device, gpusync_stats *stats))
#undef GPUSYNC__STUB
#undef GPUSYNC__STUB_OUT

GPUSYNC_API bool gpusync__foreign_is_done(const gpusync_queue *queue, gpusync_ticket ticket) { return false; }
GPUSYNC_API bool gpusync_device_is_lost(const gpusync_device *device) { return false; }
GPUSYNC_API void *gpusync_device_metal(const gpusync_device *device) { return 0; }
GPUSYNC_API void *gpusync_queue_metal(const gpusync_queue *queue) { return 0; }
GPUSYNC_API void *gpusync_timeline_metal(gpusync_timeline *timeline, uint64_t *base) { return 0; }
GPUSYNC_API size_t gpusync_report(gpusync_device *device, char *buffer, size_t size)
{
    if (buffer && size) buffer[0] = '\0';
    return 0;
}
GPUSYNC_API uint64_t gpusync_now_ns(void) { return 0; }

#if defined(__GNUC__)
#pragma GCC diagnostic pop
#elif defined(_MSC_VER)
#pragma warning(pop)
#endif

#ifdef __cplusplus
}
#endif

#endif /* GPUSYNC_OBJC */

/* The inline calls as symbols, for languages that cannot read this header. */
#ifndef GPUSYNC_STATIC
#ifdef __cplusplus
extern "C" {
extern bool (*const gpusync__inline_is_idle)(const gpusync_queue *);
extern bool (*const gpusync__inline_is_done)(const gpusync_queue *, gpusync_ticket);
bool (*const gpusync__inline_is_idle)(const gpusync_queue *) = gpusync_is_idle;
bool (*const gpusync__inline_is_done)(const gpusync_queue *, gpusync_ticket) = gpusync_is_done;
}
#else
extern inline bool gpusync_is_idle(const gpusync_queue *queue);
extern inline bool gpusync_is_done(const gpusync_queue *queue, gpusync_ticket ticket);
#endif
#endif

#endif /* GPUSYNC_IMPLEMENTATION */

/* -------------------------------------------------------------------------- >>history --

   Changes
     0.1   devices, queues, command buffers; commit, track, poll, wait; failures; statistics and report;
           timelines as the host sees them, waits for many points

   Versions: while the major number is 0, a minor number may change the API, and says so here.

   MIT licence

   Copyright (c) 2026 the gpusync authors

   Permission is hereby granted, free of charge, to any person obtaining a copy of this software and
   associated documentation files (the "Software"), to deal in the Software without restriction,
   including without limitation the rights to use, copy, modify, merge, publish, distribute,
   sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is
   furnished to do so, subject to the following conditions:

   The above copyright notice and this permission notice shall be included in all copies or substantial
   portions of the Software.

   THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT
   NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND
   NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES
   OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN
   CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE. */
