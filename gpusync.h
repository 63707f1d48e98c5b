/* gpusync.h - v0.4.0 - synchronise CPU and GPU on Apple Metal from plain C - MIT licence (at the end of this file)

   gpusync counts commits and ends: one atomic load answers "is the work done?". A wait spins briefly when the end is
   near, then sleeps until the completed handler wakes it. gpusync reports every command buffer that failed. It calls
   Metal through objc_msgSend: no Objective-C compiler, no blocks. A complete program follows. Link it with -framework
   Metal -framework CoreGraphics -framework Foundation -lobjc; without CoreGraphics it may get no device.

       #define GPUSYNC_IMPLEMENTATION                                        // in ONE file: C99, C++11, Objective-C
       #include "gpusync.h"
       #include <stdio.h>

       int main(void)
       {
           gpusync_device *device;
           gpusync_queue *queue;
           gpusync_ticket ticket;
           gpusync_error error;
           gpusync_result result;
           uint64_t cursor = 0;
           void *buffer;                                                     // an MTLCommandBuffer

           if (gpusync_device_create(NULL, &device)) return 1;
           if (gpusync_queue_create(device, NULL, &queue)) return 1;
           if (gpusync_command_buffer(queue, NULL, &buffer)) return 1;
           // ... encode work into buffer with Metal ...
           if (gpusync_commit(queue, buffer, &ticket)) return 1;             // instead of [buffer commit]
           result = gpusync_wait(queue, ticket, 1000000000);                 // one second at most
           printf("%s\n", gpusync_result_string(result));
           while (gpusync_next_error(queue, &cursor, &error) == GPUSYNC_OK)  // what failed, and why
               printf("%s: %s\n", gpusync_failure_string(error.failure), error.message);
           if (result == GPUSYNC_TIMEOUT) gpusync_queue_destroy_now(queue);  // the GPU hangs: destroy would wait for it
           else gpusync_queue_destroy(queue);
           gpusync_device_destroy(device);
           return result != GPUSYNC_OK;
       }

   Contents: search for the tag.
     >>options          macros that change how this file compiles
     >>model            tickets, waiting, failing: the ideas that the calls share
     >>threads          what may be called from where
     >>ownership        who retains what
     >>caveats          what surprises programmers
     >>api-start        1   set up, commit, query, wait, failures: a reader may stop after this chapter
     >>api-options      1b  more of chapter 1: descs, spin budgets, options of a wait, hooks, allocator, log
     >>api-callbacks    2   callbacks, frames in flight
     >>api-external     3   command buffers that other code commits
     >>api-timelines    4   timelines, waits for several things
     >>api-submissions  5   waits and signals of work
     >>api-warmup       6   compile pipelines and create objects before they are needed
     >>api-insight      7   times, counts, traces, the report
     >>api-metal4       8   queues of Metal 4
     >>impl             the implementation, on one page. The ground floor commits, waits, calls back and destroys:
         >>objc  >>platform  >>objects  >>slots  >>ring  >>failure  >>wait-lists  >>callbacks
         >>end  >>sweep  >>wait  >>on-done  >>commit  >>create  >>destroy  >>ask
     >>second           the second floor: timelines, submissions, Metal 4, the warm-up, the trace and the report
         >>timeline  >>submissions  >>metal4  >>ended  >>held  >>submit  >>encode  >>upper  >>warmup  >>insight  >>stubs
     >>history          changes, licence

   >>options ----------------------------------------------------------------------------------------------------------

     macro                    defined in          meaning
     GPUSYNC_IMPLEMENTATION   one file            the bodies are compiled here (Objective-C: with or without ARC)
     GPUSYNC_STATIC           that file           every function is static: other files may have their own copies
     GPUSYNC_API              all files           attributes of every function (dllexport, visibility, ...)
     GPUSYNC_ASSERT(x)        implementing file   internal invariants; default assert() of <assert.h>
     GPUSYNC_OBJC             all files           1 (default on Apple systems): Objective-C and Metal are available.
                                                  0 (default elsewhere): calls return ERROR_UNSUPPORTED, false or 0.

   The implementing file needs POSIX threads and clocks. In a strict mode such as -std=c99 define _POSIX_C_SOURCE as
   200809L before the first include. On Apple systems define nothing, or _DARWIN_C_SOURCE as well.

   >>model ------------------------------------------------------------------------------------------------------------

   Ticket      A gpusync_queue stands for one MTLCommandQueue (or MTL4CommandQueue). Each commit through it gets a
               ticket (a fence value): its number, 1, 2, 3, ... GPUSYNC_NO_TICKET, 0, stands for no work: always done.
   End         A command buffer has ended when Metal's status is Completed or Error, even if the system killed it.
   Result      TIMEOUT and NOT_READY describe the wait: nothing is cancelled, the work continues, and the caller may
               wait again. ERROR_EXECUTION describes the work, which ended with an error: see gpusync_next_error.
   Wait        Looks at a counter, reads Metal's status, spins, then sleeps: examples/waits.md. Sends nothing to the
               GPU. Once it has found the end, the GPU is finished.
   Timeline    A number that only rises (a timeline semaphore), raised by the host or by the GPU.
   Pending     A signal that encoded, submitted or committed work will make, until that work has ended or is discarded.
   Held        Has a ticket, but is not committed to Metal yet (wait-before-signal): >>api-submissions.
   Abandoned   Work for whose end gpusync no longer waits: cancelled, destroyed with its queue, or in flight on a device
               that was lost.
   External    Committed by other code: unknown to queries and waits until the program tracks it, see >>api-external.

   >>threads ----------------------------------------------------------------------------------------------------------

   Devices, queues, timelines, warm-ups: any call except destroy on any thread, at the same time; destroy on one, once.
   Command buffers: encoding and commit on one thread at a time (Metal's rule).
   Destroy (the calls that block) ends the waits that spin or sleep in the object: they return ERROR_DESTROYED. No other
   call may run in the object, and no call may start, not even a wait: the program ensures this, as with free(), for
   gpusync_*_destroy_later, too. Destroy waits for a running callback and for gpusync's own completed handlers (not for
   the program's), which call the program's log, trace, notify and unpark functions: while you call destroy, never hold
   a lock that one of these functions or a callback acquires. Never cancel a thread in a call (pthread_cancel): its wait
   stays listed, on a stack that no longer exists.

   Callbacks, the log function and the hooks yield, park and unpark may call everything except a destroy that blocks;
   unpark must not call a wait either; gpusync cannot detect one. notify, trace and allocator functions may call nothing
   of gpusync. The type of each says on which thread it runs. In a callback and in the log function a wait that cannot
   return at once returns ERROR_WOULD_DEADLOCK. gpusync holds no lock while it calls these functions, except the
   allocator's. It has no autorelease pool or thread-local value in use while yield, park or unpark runs: a fiber may
   resume on another thread. gpusync has no threads of its own.

   >>ownership --------------------------------------------------------------------------------------------------------

   Metal objects are `void *`: an id, a (__bridge void *), a metal-cpp pointer. (Under ARC use plain __bridge casts,
   never __bridge_transfer.) gpusync retains the objects that the program passes in for as long as gpusync uses them.
   Objects that gpusync returns are borrowed. Descs, arrays and texts are read only during the call. Calls that may get
   autoreleased objects from Metal open their own autorelease pool.
   gpusync keeps an uncommitted command buffer, which occupies room in the queue, until gpusync_commit, gpusync_track or
   gpusync_command_buffer_discard: its own from gpusync_command_buffer on, one made elsewhere from gpusync_encode_wait
   or gpusync_encode_signal on. It retains a committed buffer until its handler has run; the program may, too.

   >>caveats ----------------------------------------------------------------------------------------------------------

   * Never wait in one of the program's completed handlers: gpusync cannot detect it, and until the handler returns,
     Metal changes no status of later command buffers of the queue (assumed). Such a wait hangs or ends at its limit. A
     slow handler delays waits for later work, too. gpusync's callbacks run elsewhere.
   * If Metal never calls a completed handler or a listener (never observed), waits and callbacks are up to half a
     second late, by a timer (examples/waits.md), which runs only while something waits or is held. gpusync_is_done and
     gpusync_is_idle stay false until it, a poll or a wait has looked. A wait for the handler itself ends at its limit.
     A handler that is 50 ms to a second late counts as lost: if it is slow, gpusync_command_buffer may block in Metal.
   * Do not unload code that contains gpusync: Metal and libdispatch may still call into the code.
   * Not provided: waiting for "scheduled", priorities of parked threads, use in a forked child (except exec and _exit),
     MTLIO queues. For the limits of Metal 4 see >>api-metal4. To end one wait from outside, use gpusync_wait_many for
     ANY of its point and a value that the host signals. */

/* In force to the end of the file. Only the declarations are marked for NULL. Old-style casts are deliberate. */
#ifdef __clang__
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wunknown-warning-option"
#pragma clang diagnostic ignored "-Wnullability-extension"
#pragma clang diagnostic ignored "-Wnullability-completeness"
#pragma clang diagnostic ignored "-Wnullable-to-nonnull-conversion"
#pragma clang diagnostic ignored "-Wreserved-identifier"
#pragma clang diagnostic ignored "-Wreserved-macro-identifier"
#pragma clang diagnostic ignored "-Wold-style-cast"
#pragma clang diagnostic ignored "-Wdeclaration-after-statement"
#pragma clang diagnostic ignored "-Wzero-as-null-pointer-constant"
#endif

#ifndef GPUSYNC_H
#define GPUSYNC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GPUSYNC_VERSION_MAJOR 0
#define GPUSYNC_VERSION_MINOR 4
#define GPUSYNC_VERSION_PATCH 0
/** The version of this header as one number: major * 10000 + minor * 100 + patch. See gpusync_version. */
#define GPUSYNC_VERSION (GPUSYNC_VERSION_MAJOR * 10000 + GPUSYNC_VERSION_MINOR * 100 + GPUSYNC_VERSION_PATCH)

#if !defined(GPUSYNC_OBJC) && defined(__APPLE__)
#define GPUSYNC_OBJC 1
#elif !defined(GPUSYNC_OBJC)
#define GPUSYNC_OBJC 0
#endif

#if defined(__GNUC__)
#define GPUSYNC_NODISCARD __attribute__((warn_unused_result))
#define GPUSYNC__UNUSED __attribute__((unused))
#else
#define GPUSYNC_NODISCARD
#define GPUSYNC__UNUSED
#endif

#if !defined(GPUSYNC_API) && defined(GPUSYNC_STATIC)
#define GPUSYNC_API static GPUSYNC__UNUSED
#elif !defined(GPUSYNC_API)
#define GPUSYNC_API
#endif

/* The symbols of three calls that every program needs contain the version: files compiled with different versions of
   this header do not link. For other languages each has a plain symbol, too: compare gpusync_version at the start. */
#define GPUSYNC__TEXT2(x) #x
#define GPUSYNC__TEXT(x) GPUSYNC__TEXT2(x)
#define GPUSYNC__SYMBOL(name) __asm__(GPUSYNC__TEXT(__USER_LABEL_PREFIX__) name)
#if defined(__GNUC__) && !defined(GPUSYNC_STATIC)
#define GPUSYNC__VERSIONED(name) \
    GPUSYNC__SYMBOL(name "_" GPUSYNC__TEXT(GPUSYNC_VERSION_MAJOR) "_" GPUSYNC__TEXT(GPUSYNC_VERSION_MINOR))
#else
#define GPUSYNC__VERSIONED(name)
#endif

/* Marks for Clang's warnings and for Swift. GPUSYNC_OPT marks a pointer that may be NULL, no other may: the
   declarations are an assume_nonnull region, which infers every pointer except the outer one of two (GPUSYNC_REQ).
   Later versions may add values to an open enum (results, reasons, events, flags): a switch needs a default. */
#ifdef __clang__
#if __has_feature(nullability) && __has_attribute(enum_extensibility)
#define GPUSYNC__MARKS
#endif
#endif
#ifdef GPUSYNC__MARKS
#define GPUSYNC_OPT _Nullable
#define GPUSYNC_REQ _Nonnull
#define GPUSYNC__CLOSED_ENUM __attribute__((enum_extensibility(closed)))
#define GPUSYNC__OPEN_ENUM __attribute__((enum_extensibility(open)))
#define GPUSYNC__FLAG_ENUM __attribute__((flag_enum, enum_extensibility(open)))
#else
#define GPUSYNC_OPT
#define GPUSYNC_REQ
#define GPUSYNC__CLOSED_ENUM
#define GPUSYNC__OPEN_ENUM
#define GPUSYNC__FLAG_ENUM
#endif

#ifdef __cplusplus
extern "C" {
#endif

#ifdef GPUSYNC__MARKS
#pragma clang assume_nonnull begin
#endif

/* --------------------------------------------------------------------------------------------------- >>api-start --
   1: set up, commit, query, wait, failures. In every call:

     GPUSYNC_OPT     may be NULL. A NULL desc or NULL options mean defaults, as does zero in their fields.
     out             gets the object; NULL after an error.
     ticket          may be NULL. Gets the ticket; GPUSYNC_NO_TICKET after an error, which overwrites an older one.
     timeout_ns      the longest wait in nanoseconds, by gpusync_now_ns. 0 looks once; GPUSYNC_FOREVER: no limit.
     destroy         NULL: OK, nothing to do.
     Returns         results without GPUSYNC_. "also": in addition to what gpusync_result says of the result.
     Threads any     any thread, several at once.    Blocks no   waits for locks alone. */

/* clang-format off */
/** Every result, as X(NAME, value, text): GPUSYNC_NAME below, and what gpusync_result_string returns. */
#define GPUSYNC_RESULTS(X)                                                                                         \
    X(OK, 0, "done") /* of a wait or poll: the work succeeded */                                                   \
    X(TIMEOUT, 1, "the time limit passed first; the work goes on")                                                 \
    X(NOT_READY, 2, "not yet, or no more of them")                                                                 \
    X(ERROR_INVALID_ARGUMENT, -1, "an argument is NULL or invalid")                                                \
    X(ERROR_UNSUPPORTED, -2, "Metal is unavailable or lacks this feature (no Mac? see softmetal in README)")       \
    X(ERROR_OUT_OF_MEMORY, -3, "the allocator returned NULL")                                                      \
    X(ERROR_NO_DEVICE, -4, "Metal has no device")                                                                  \
    X(ERROR_METAL_NIL, -5, "Metal returned nil where it should have made an object")                               \
    X(ERROR_INVALID_TICKET, -6, "not a ticket of this queue, or not one that this call accepts")                   \
    X(ERROR_WRONG_QUEUE, -7, "the command buffer belongs to another command queue")                                \
    X(ERROR_ALREADY_COMMITTED, -8, "the command buffer is committed already")                                      \
    X(ERROR_ALREADY_TRACKED, -10, "the command buffer has a ticket already") /* tracked, held, or in flight */     \
    X(ERROR_UNKNOWN_BUFFER, -11, "the queue keeps no such uncommitted command buffer")                             \
    X(ERROR_EXECUTION, -12, "the work ended with an error; gpusync_next_error tells which")                        \
    X(ERROR_RESULT_UNKNOWN, -13, "the work ended, but how is no longer on record") /* dropped from the log */      \
    X(ERROR_CANCELLED, -14, "the work was cancelled") /* gpusync_untrack, gpusync_cancel_held, destroy */          \
    X(ERROR_DEVICE_LOST, -15, "the device was removed or ignores this program") /* permanently */                  \
    X(ERROR_DESTROYED, -16, "the object is being destroyed or already was")                                        \
    X(ERROR_WOULD_DEADLOCK, -17, "inside a callback, where no call may wait") /* or log function, warm-up job */   \
    X(ERROR_IN_USE, -18, "the device still has queues, timelines or warm-ups")                                     \
    X(ERROR_NOT_RISING, -19, "a timeline only rises: the value is signalled or pending already, or out of range")  \
    X(ERROR_QUEUE_FULL, -20, "the queue allows no more held or uncommitted command buffers")                       \
    X(ERROR_ENQUEUED, -21, "the command buffer is enqueued already and cannot be held")                            \
    X(ERROR_COMPILE, -22, "a shader does not compile")
/* clang-format on */

/** What a call returns. Zero: success. Positive: not an error, the answer is "not yet". Negative: an error.
    ERROR_EXECUTION, ERROR_CANCELLED and ERROR_RESULT_UNKNOWN say how work ended; ERROR_DESTROYED and ERROR_DEVICE_LOST
    of a wait may, too. After ERROR_EXECUTION of a commit (earlier work failed) and every other error, nothing has
    changed. Every call may also return ERROR_INVALID_ARGUMENT (NULL where an object is required), ERROR_UNSUPPORTED (no
    Metal), and ERROR_DESTROYED on an object that is being destroyed. Open: Metal gets new reasons. */
typedef enum GPUSYNC__OPEN_ENUM gpusync_result {
#define GPUSYNC__RESULT(name, value, text) GPUSYNC_##name = value,
    GPUSYNC_RESULTS(GPUSYNC__RESULT)
} gpusync_result;

/** The text of a result.
    Returns  static English, also for unknown values.   Threads any   Blocks no   Owns nothing */
GPUSYNC_API const char *gpusync_result_string(gpusync_result result);

typedef struct gpusync_device gpusync_device;     /**< Stands for an MTLDevice: hooks, callbacks. */
typedef struct gpusync_queue gpusync_queue;       /**< Stands for an MTLCommandQueue: tickets, failures. */
typedef struct gpusync_timeline gpusync_timeline; /**< A number that only rises, in an MTLSharedEvent: chapter 4. */
typedef struct gpusync_warmup gpusync_warmup;     /**< A warm-up, running or done: chapter 6. */
typedef struct gpusync_device_desc gpusync_device_desc;                 /**< Options of a device: >>api-options. */
typedef struct gpusync_queue_desc gpusync_queue_desc;                   /**< Options of a queue: >>api-options. */
typedef struct gpusync_command_buffer_desc gpusync_command_buffer_desc; /**< Options of a command buffer. */
typedef struct gpusync_wait_options gpusync_wait_options;               /**< Options of one wait: >>api-options. */

/** The number of a commit on its queue: 1, 2, 3, ... by the commit calls; enqueued buffers keep their places. */
typedef uint64_t gpusync_ticket;
#define GPUSYNC_NO_TICKET UINT64_C(0) /**< No work: always done. */
#define GPUSYNC_EVERYTHING UINT64_MAX /**< All work committed to the queue up to the call. */
#define GPUSYNC_FOREVER UINT64_MAX    /**< A timeout without a limit. */

/** Make the gpusync_device of an MTLDevice, one for each: two of one MTLDevice cannot wait for each other's points.
    Returns  OK; ERROR_NO_DEVICE; ERROR_OUT_OF_MEMORY. ERROR_INVALID_ARGUMENT also: park without unpark, half an
             allocator, a metal_device that is not one.   Threads any   Blocks no   Owns retains the Metal device */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_device_create(const gpusync_device_desc *GPUSYNC_OPT desc,
                                                                   gpusync_device *GPUSYNC_OPT *GPUSYNC_REQ out)
    GPUSYNC__VERSIONED("gpusync_device_create");

/** Destroy a device that has no queue, timeline or warm-up. After OK gpusync calls no function of the program.
    Returns  OK; ERROR_IN_USE: the device still has one, perhaps one that a gpusync_*_destroy_later call is destroying;
             ERROR_WOULD_DEADLOCK: in a callback. After an error nothing has changed.
    Threads one, with no other call on the device in progress   Owns releases the Metal device
    Blocks until what gpusync runs on dispatch queues has left the device */
GPUSYNC_API gpusync_result gpusync_device_destroy(gpusync_device *GPUSYNC_OPT device);

/** Make the gpusync_queue of a command queue of the device, one for each: two would each know only their own commits.
    Returns  OK; ERROR_METAL_NIL; ERROR_OUT_OF_MEMORY; ERROR_DEVICE_LOST. ERROR_UNSUPPORTED also: desc->metal_queue is
             not a command queue, or metal4 is set without Metal 4. ERROR_INVALID_ARGUMENT also: one of another device.
    Threads any   Blocks no   Owns retains the Metal queue; the device must outlive the queue */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_queue_create(gpusync_device *device,
                                                                  const gpusync_queue_desc *GPUSYNC_OPT desc,
                                                                  gpusync_queue *GPUSYNC_OPT *GPUSYNC_REQ out)
    GPUSYNC__VERSIONED("gpusync_queue_create");

/** Wait until all work that the queue has committed to Metal has ended, then destroy the queue.
    Held work, plain commits behind it and tracked uncommitted buffers end with ERROR_CANCELLED. Other uncommitted
    buffers are released, and the timelines that they were to signal fail with that error. Waits on other threads return
    ERROR_DESTROYED; a wait for several points continues if this queue's point had ended. The remaining callbacks run in
    this call, on its thread. While it waits, it runs callbacks of no other queue: if this queue's work cannot end
    before one of them has run, destroy never returns. With GPUSYNC_CALLBACKS_MANUAL call gpusync_dispatch first.
    Returns  OK; ERROR_WOULD_DEADLOCK: in a callback; ERROR_DESTROYED: a second destroy, if detected.
    Threads one, see >>threads   Owns releases what the queue kept; for a queue of Metal 4 see >>api-metal4, Lifetimes
    Blocks until the GPU is finished, also with the work of other queues for which submissions in flight wait; without
           limit, in the yield and park hooks. For a GPU that may hang: gpusync_queue_destroy_now. A lost device's work
           is abandoned after about a second. A wait with gpusync_wait_options.blocking always delays the call. */
GPUSYNC_API gpusync_result gpusync_queue_destroy(gpusync_queue *GPUSYNC_OPT queue);

/** Make a command buffer of this queue.
    While the queue is full (max_command_buffer_count of its desc) the call waits for room. gpusync counts only its own
    calls, uncommitted buffers included. Metal also counts buffers made elsewhere that gpusync did not commit or track,
    and discarded or abandoned ones that are still referenced: release yours, and drain the pool. If these fill the
    queue, or a completed handler runs for more than 50 ms (>>caveats), the call blocks in Metal, whatever its limit.
    Returns  OK; TIMEOUT; ERROR_METAL_NIL; ERROR_OUT_OF_MEMORY; ERROR_DEVICE_LOST; ERROR_DESTROYED; ERROR_EXECUTION: a
             failure sticks, see gpusync_queue_clear_failure; ERROR_WOULD_DEADLOCK: in a callback, without room, also
             with a limit of 0; ERROR_QUEUE_FULL: no time limit, and for a second every buffer allowed was held or
             uncommitted, so that nothing made room. ERROR_UNSUPPORTED also: this Metal accepts no descriptor.
             ERROR_INVALID_ARGUMENT also: desc->descriptor is not one, or unretained_references is set beside it.
    Threads any   Blocks up to *desc->timeout_ns, in the park hook; without limit by default: set one against hangs
    Owns gpusync keeps *out until its commit or discard: >>ownership */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_command_buffer(gpusync_queue *queue,
                                                                    const gpusync_command_buffer_desc *GPUSYNC_OPT desc,
                                                                    void *GPUSYNC_OPT *GPUSYNC_REQ out)
    GPUSYNC__VERSIONED("gpusync_command_buffer");

/** Discard an uncommitted buffer of gpusync_command_buffer, or one kept by an encode call: >>ownership.
    The signals of the buffer are no longer pending. Work held for one of them stays held until another signal reaches
    the value, or the work is cancelled; with signalled_by_others it goes to the GPU. If the buffer's commit or
    submission was refused because a failure sticks, the timelines that the buffer was to signal fail.
    Returns  OK; ERROR_DESTROYED; ERROR_UNKNOWN_BUFFER: this queue does not, or no longer, keep the buffer.
    Threads any   Blocks no   Owns releases the buffer */
GPUSYNC_API gpusync_result gpusync_command_buffer_discard(gpusync_queue *queue, void *command_buffer);

/** Commit a command buffer. Call this instead of [buffer commit]. After an error gpusync keeps what it kept before.
    command_buffer  Of the same MTLCommandQueue, from gpusync_command_buffer or from anywhere else; not a wrapper that
                    replaces its command buffer (MPSCommandBuffer after commitAndContinue).
    Returns  OK: committed; or held, behind held work or for a wait in the buffer: then never call waitUntilCompleted.
             ERROR_ENQUEUED, ERROR_QUEUE_FULL: the buffer would have to be held (for a wait, behind held work, or for
             the order of its signals), but is enqueued, or too many are held (see max_command_buffer_count). Try again
             when the queue holds no work, after gpusync_queue_wait for example, and what the buffer waits for is
             committed or has ended. Never discard an enqueued buffer: its Metal queue would wait for the buffer.
             ERROR_ALREADY_TRACKED: the buffer has a ticket; its owner commits it, or it is held.
             ERROR_ALREADY_COMMITTED: Metal has the buffer. If other code committed it, see >>api-external.
             ERROR_EXECUTION: a failure sticks, see gpusync_queue_clear_failure. ERROR_WRONG_QUEUE: a buffer that
             gpusync made must go to the queue that made it, or be discarded there. ERROR_OUT_OF_MEMORY: try again.
             ERROR_DEVICE_LOST; ERROR_DESTROYED. ERROR_UNSUPPORTED also: a Metal 4 buffer (gpusync_commit4).
    Threads any, one at a time for a command buffer   Owns retains the buffer until its handler ran
    Blocks no. A buffer made elsewhere waits for no room: Metal has counted it already. */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_commit(gpusync_queue *queue, void *command_buffer,
                                                            gpusync_ticket *GPUSYNC_OPT ticket);

#if GPUSYNC_OBJC
/* The start of every gpusync_queue, for the inline calls below alone. The pad is for cache lines of 128 bytes. */
typedef struct gpusync__head {
    uint64_t completed; /* every ticket up to this one has ended */
    unsigned char pad[120];
    uint64_t committed; /* last ticket issued */
} gpusync__head;
#endif

/** True if everything committed to the queue is finished. Two loads, no message to Metal.
    Returns  true or false; false for NULL. May be false for a moment after the GPU is finished, never true too early.
    Threads any   Blocks no, wait-free   Owns nothing */
GPUSYNC_API inline bool gpusync_is_idle(const gpusync_queue *GPUSYNC_OPT queue)
{
#if GPUSYNC_OBJC
    const gpusync__head *head = (const gpusync__head *)(const void *)queue;
    uint64_t completed;
    if (!head)
        return false;
    /* Interleaving 7: completed is read first. In the other order a commit and its completion between the two loads
       would make a busy queue look idle. */
    completed = __atomic_load_n(&head->completed, __ATOMIC_ACQUIRE);
    return completed == __atomic_load_n(&head->committed, __ATOMIC_RELAXED);
#else
    (void)queue;
    return false;
#endif
}

/** True if the ticket is finished, whether it succeeded or failed. One load, no message to Metal.
    ticket   GPUSYNC_EVERYTHING: as gpusync_is_idle.
    Returns  false for NULL, a ticket not issued, or one after an unfinished one. As gpusync_is_idle never too early.
    Threads any   Blocks no, wait-free   Owns nothing */
GPUSYNC_API inline bool gpusync_is_done(const gpusync_queue *GPUSYNC_OPT queue, gpusync_ticket ticket)
{
#if GPUSYNC_OBJC
    const gpusync__head *head = (const gpusync__head *)(const void *)queue;
    if (!head)
        return false;
    if (ticket == GPUSYNC_EVERYTHING)
        return gpusync_is_idle(queue);
    return ticket <= __atomic_load_n(&head->completed, __ATOMIC_ACQUIRE);
#else
    (void)queue;
    (void)ticket;
    return false;
#endif
}

/** The number of tickets that have not ended, or a little more. Two loads, no message to Metal.
    Returns  committed tickets minus those that gpusync_is_done reports, never too few: a ticket that has ended after an
             unfinished one still counts. 0 for NULL.   Threads any   Blocks no, wait-free   Owns nothing   Since 0.3 */
GPUSYNC_API inline uint64_t gpusync_in_flight(const gpusync_queue *GPUSYNC_OPT queue)
{
#if GPUSYNC_OBJC
    const gpusync__head *head = (const gpusync__head *)(const void *)queue;
    uint64_t completed;
    if (!head)
        return 0;
    /* completed is read first: in the other order tickets that end in between would make the number too small. */
    completed = __atomic_load_n(&head->completed, __ATOMIC_ACQUIRE);
    return __atomic_load_n(&head->committed, __ATOMIC_RELAXED) - completed;
#else
    (void)queue;
    return 0;
#endif
}

/** Read from Metal's own status whether a ticket has ended, and how: even before its handler has run, and even if an
    earlier unfinished ticket hides the end from gpusync_is_done.
    ticket   GPUSYNC_EVERYTHING: all tickets. Each poll repeats a failure until gpusync_queue_wait has reported it; with
             sticky_failure until gpusync_queue_clear_failure.
    Returns  NOT_READY: not yet, or another thread is just recording the failure. Ended: OK; ERROR_EXECUTION;
             ERROR_CANCELLED; ERROR_RESULT_UNKNOWN: the log has dropped failures, perhaps that of this ticket, which may
             also have succeeded. If work that it waited for failed: the result of that failure, also ERROR_DESTROYED
             (this work has ended, then) and the program's own result of gpusync_timeline_fail. ERROR_DEVICE_LOST: the
             work was abandoned, see gpusync_device_is_lost; or it was held when the device was lost, and never ran.
             ERROR_INVALID_TICKET; ERROR_DESTROYED: the queue is being destroyed.
    Threads any, also in callbacks   Blocks no   Owns nothing */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_poll(gpusync_queue *queue, gpusync_ticket ticket);

/** Wait until one ticket has ended.
    ticket   GPUSYNC_EVERYTHING: as gpusync_queue_wait.
    Work that has ended by the deadline counts as ended. A wait that timed out leaves nothing behind and can be
    repeated. Completed handlers of the program may run after the wait: see gpusync_wait_options.handlers.
    Returns  OK: the work succeeded. TIMEOUT. ERROR_INVALID_TICKET. ERROR_EXECUTION, ERROR_CANCELLED,
             ERROR_RESULT_UNKNOWN, ERROR_DEVICE_LOST: as gpusync_poll. ERROR_DESTROYED: the wait ended before the work;
             or the work ended with this result of what it waited for, which gpusync_poll then returns too.
             ERROR_WOULD_DEADLOCK: in a callback where the call would have to wait, even if the timeout is 0: use
             gpusync_poll. ERROR_OUT_OF_MEMORY: no memory to sleep with.
    Threads any   Blocks up to timeout_ns, in the park hook, with no lock held   Owns nothing */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_wait(gpusync_queue *queue, gpusync_ticket ticket,
                                                          uint64_t timeout_ns);

/** Wait until everything that was committed to the queue before this call has ended, held and tracked work included.
    A wait for everything is this one, gpusync_device_wait, and every wait for GPUSYNC_EVERYTHING. A failure before or
    during such a wait is reported by one of them; waits that overlap in time each report it. Abandoned work of this
    queue is no failure here. Work that waited for abandoned work, of this queue or another, is one: this call returns
    ERROR_EXECUTION, and a wait for its ticket ERROR_CANCELLED, or ERROR_DESTROYED where destroy abandoned the work. To
    see every failure use tickets or gpusync_next_error.
    Returns  as gpusync_wait. ERROR_EXECUTION: all the work ended, with a failure that was not reported yet.
             ERROR_DEVICE_LOST: always, once the device is lost and all work has ended or was abandoned.
    Threads any   Blocks as gpusync_wait   Owns nothing */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_queue_wait(gpusync_queue *queue, uint64_t timeout_ns);

/** Wait for every queue that the device has at the call, up to the last commit of each. One limit covers all queues.
    options  As gpusync_wait_ex, without blocking. error: the failure of the first queue with one, which nothing names.
    A queue that is destroyed, before or during the wait, is skipped: the call does not wait for what
    gpusync_queue_destroy_now left on the GPU, nor for the work of gpusync_queue_destroy_later.
    Returns  as gpusync_queue_wait, except ERROR_DESTROYED. TIMEOUT: some work did not end; the next wait reports what
             failed on the other queues. ERROR_EXECUTION reports the failures of all queues.
    Threads any   Blocks as gpusync_wait   Owns nothing; more than 16 queues allocate during the call */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_device_wait(gpusync_device *device, uint64_t timeout_ns,
                                                                 const gpusync_wait_options *GPUSYNC_OPT options);

/** Why a command buffer failed, and what helps: from the driver's error number if gpusync knows it, else from Metal's
    code (examples/metal-behaves.md). An error of another domain is OTHER. Open: Metal gets new failures. */
typedef enum GPUSYNC__OPEN_ENUM gpusync_failure {
    GPUSYNC_FAILURE_NONE = 0,         /**< No failure. */
    GPUSYNC_FAILURE_OUT_OF_MEMORY,    /**< Free memory or split the work, then retry. */
    GPUSYNC_FAILURE_TIMEOUT,          /**< The work ran or waited too long, or held up the display: split the work. */
    GPUSYNC_FAILURE_PAGE_FAULT,       /**< Bad access in a shader: a bug, do not retry. */
    GPUSYNC_FAILURE_INVALID_RESOURCE, /**< A resource was gone: a bug, do not retry. */
    GPUSYNC_FAILURE_NOT_PERMITTED,    /**< iOS in the background: retry in the foreground. */
    GPUSYNC_FAILURE_INNOCENT_VICTIM,  /**< A fault of other work reset the GPU: retry at once. */
    GPUSYNC_FAILURE_ACCESS_REVOKED,   /**< Too many faults: the device is lost to this program. */
    GPUSYNC_FAILURE_DEVICE_REMOVED,   /**< Unplugged: the device is lost. */
    GPUSYNC_FAILURE_CANCELLED,        /**< Abandoned: gpusync_untrack, gpusync_cancel_held, destroy of a queue. */
    GPUSYNC_FAILURE_OTHER             /**< See domain, code and message. */
} gpusync_failure;

/** True if the same work, encoded again, may succeed later: INNOCENT_VICTIM, NOT_PERMITTED, OUT_OF_MEMORY (see each).
    Returns  false for every other class, unknown ones too.   Threads any   Blocks no   Owns nothing   Since 0.4 */
GPUSYNC_API bool gpusync_failure_is_transient(gpusync_failure failure);

/** One failure. Text is valid UTF-8 (invalid bytes become U+FFFD), cut to fit, always terminated; empty where unknown.
    When work failed because of what it waited for, every field except the ticket describes the first failure. */
typedef struct gpusync_error {
    gpusync_result result;   /**< What a wait for the ticket returns. */
    gpusync_failure failure; /**< The class: what helps. */
    gpusync_ticket ticket;   /**< Of the queue that was asked, which may differ from queue_label. */
    int64_t code;            /**< NSError code: look at the domain first. */
    uint64_t dropped;        /**< Of gpusync_next_error: records dropped since the cursor, before this failure. */
    char domain[64];         /**< NSError domain. */
    char message[256];       /**< NSError localizedDescription, or a text of gpusync. */
    char label[64];          /**< Of the command buffer; of a submission, where its buffer has none. */
    char queue_label[64];    /**< Of its queue. */
} gpusync_error;

#define GPUSYNC_FROM_NOW UINT64_MAX /**< A cursor of gpusync_next_error that skips what is on record. Since 0.4 */

/** Read the next failure of this queue that the cursor has not seen.
    cursor   The reader's own number. 0 starts at the oldest failure on record. With GPUSYNC_FROM_NOW the call sets the
             cursor after the newest one and returns NOT_READY. Otherwise only OK changes the cursor.
    error    Gets the failure when OK, else is unchanged.
    A cursor passes every failure on record once, in order of discovery, abandoned work (FAILURE_CANCELLED) included. A
    failure is on record before a poll or a wait returns it. Work that was abandoned because its device was lost has no
    record: polls and waits return ERROR_DEVICE_LOST for it.
    Returns  OK; NOT_READY: no more for now.   Threads any, each cursor on one at a time   Blocks no   Owns nothing */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_next_error(gpusync_queue *queue, uint64_t *cursor,
                                                                gpusync_error *error);

/** The text of a class.   Returns  static English, also for unknown values.   Threads any   Blocks no   Owns nothing */
GPUSYNC_API const char *gpusync_failure_string(gpusync_failure failure);

/** True if the device is lost: a failure of class ACCESS_REVOKED or DEVICE_REMOVED has marked it, permanently. A
    program that gpusync has notified of such a failure gets true.
    Soon after, new work is refused with ERROR_DEVICE_LOST, and held work ends with it. Work that the GPU has continues
    and is reported as it ends. After a second, and two looks half a second apart, gpusync abandons what has not ended,
    tracked command buffers too: waits, polls and callbacks for it get ERROR_DEVICE_LOST, then every timeline fails,
    gpusync_is_done and gpusync_is_idle stay false, and gpusync_release_after retains its object until destroy. Nothing
    that comes later changes this. The GPU may still use the memory of abandoned work: gpusync_get_info returns
    ERROR_DEVICE_LOST for it, OK for what ended or never ran, or ERROR_RESULT_UNKNOWN if that was long ago.
    Returns  false for NULL.   Threads any   Blocks no   Owns nothing */
GPUSYNC_API bool gpusync_device_is_lost(const gpusync_device *GPUSYNC_OPT device);

/* You can stop reading here. The rest serves further needs. */

/* ------------------------------------------------------------------------------------------------- >>api-options --
   1b: more of chapter 1. */

/** How long a wait spins before it sleeps: for the iterations or for max_spin_ns, whichever ends first. A time without
    iterations: yields for the time. All zero: sleeps at once. Without a budget (NULL) the wait decides by the history
    of its queue (examples/waits.md): it spins for 20 us where nothing is known, else for 500 us at most. */
typedef struct gpusync_spin {
    uint32_t pause_iterations; /**< First, with the CPU's pause instruction in between. */
    uint32_t yield_iterations; /**< Then, with the yield hook in between. */
    uint64_t max_spin_ns;      /**< Nanoseconds; 0: no limit in time. */
    /** For one point whose end is expected later than in 100 us: sleeps until 50 us before it, then spins. Pays off if
        timed sleeps are punctual, which no Mac has shown yet. Since 0.3 */
    bool until_near;
} gpusync_spin;

/** A sleeping wait, as the hooks see it. Later waits reuse it, until gpusync_device_destroy. No hook reports its end:
    free what you put into it after that call, from a list of your own. */
typedef struct gpusync_waiter {
    void *GPUSYNC_OPT scheduler_data[2]; /**< The hooks' own: NULL at first, never touched by gpusync. */
} gpusync_waiter;

/** What a wait does with its thread: a fiber scheduler or a language runtime supplies its own hooks and blocks no
    thread. yield and park run on the waiting thread. No hook may exit through a C++ exception or longjmp. */
typedef struct gpusync_hooks {
    void (*GPUSYNC_OPT yield)(void *GPUSYNC_OPT user); /**< Lets others run, briefly. NULL: sched_yield, or
                                                            in a spin not set by the program, the CPU's pause. */
    /** Sleeps until unpark(waiter), or until gpusync_now_ns reaches deadline_ns (GPUSYNC_FOREVER: no deadline). May
        return early for no reason. An earlier unpark leaves a permit, one at most: park then returns at once. NULL, and
        then unpark too: a condition variable. */
    void (*GPUSYNC_OPT park)(void *GPUSYNC_OPT user, gpusync_waiter *waiter, uint64_t deadline_ns);
    /** Wakes the waiter, on any thread; must not block, nor run the waiter inside the call, because Metal's handler may
        be the caller. May come after the wait: the next park then returns early. */
    void (*GPUSYNC_OPT unpark)(void *GPUSYNC_OPT user, gpusync_waiter *waiter);
    void *GPUSYNC_OPT user; /**< Passed to all three. */
} gpusync_hooks;

/** The clock of deadline_ns and of timeouts.
    Returns  monotonic nanoseconds, which stop while an Apple system sleeps.   Threads any   Blocks no   Owns nothing */
GPUSYNC_API uint64_t gpusync_now_ns(void);

/** Memory of devices and their objects. gpusync calls the functions when objects are made, grow or are destroyed, at
    the first failure of a queue, and in a wait for over 16 queues or points; not in the steady state, nor after the
    device's destroy call. They run on any thread, Metal's too, even with locks held, and must not call gpusync. What
    Metal may use late comes from malloc and is never freed: see the manual. */
typedef struct gpusync_allocator {
    /** Returns size bytes at the alignment (a power of two, at most 128), or NULL. */
    void *GPUSYNC_OPT (*GPUSYNC_REQ allocate)(void *GPUSYNC_OPT user, size_t size, size_t alignment);
    void (*release)(void *GPUSYNC_OPT user, void *memory, size_t size); /**< size as passed to allocate. */
    void *GPUSYNC_OPT user;                                             /**< Passed to both. */
} gpusync_allocator;

/** The severity of a log line. */
typedef enum GPUSYNC__OPEN_ENUM gpusync_log_level {
    GPUSYNC_LOG_WARNING = 1, /**< A wait with a limit above 0 timed out; Metal has not called a completed handler. */
    GPUSYNC_LOG_ERROR = 2    /**< A command buffer failed (abandoned work is not logged); the device is lost. */
} gpusync_log_level;

/** Gets one line of text without a newline, valid during the call. Any thread, Metal's too: keep the function short. A
    wait may return a failure before gpusync logs it. */
typedef void (*gpusync_log_fn)(void *GPUSYNC_OPT user, gpusync_log_level level, const char *text);

/** Where callbacks run: >>api-callbacks. */
typedef enum GPUSYNC__CLOSED_ENUM gpusync_callback_mode {
    GPUSYNC_CALLBACKS_QUEUED = 0, /**< Soon, on a serial dispatch queue: gpusync's own is "user initiated". */
    GPUSYNC_CALLBACKS_MANUAL      /**< In gpusync_dispatch. */
} gpusync_callback_mode;

/** Callbacks are due: arrange a gpusync_dispatch. Any thread, Metal's too; must not block or call gpusync. */
typedef void (*gpusync_notify_fn)(void *GPUSYNC_OPT user);

/** Options of a device. */
struct gpusync_device_desc {
    void *GPUSYNC_OPT metal_device; /**< An MTLDevice; NULL: the system's default, else the first of the list. */
    const gpusync_hooks *GPUSYNC_OPT hooks;         /**< NULL: threads. */
    const gpusync_allocator *GPUSYNC_OPT allocator; /**< NULL: malloc. */
    const gpusync_spin *GPUSYNC_OPT spin;           /**< NULL: each wait decides by what it waits for. */
    gpusync_log_fn GPUSYNC_OPT log;                 /**< NULL: silent. */
    void *GPUSYNC_OPT log_user;                     /**< Passed to log. */
    gpusync_callback_mode callback_mode;            /**< Where callbacks run. */
    /** QUEUED: a serial dispatch_queue_t, retained. Give it a quality of service: without one libdispatch uses that of
        the thread that asks first. NULL: gpusync's. Since 0.2 */
    void *GPUSYNC_OPT callback_queue;
    gpusync_notify_fn GPUSYNC_OPT notify; /**< MANUAL; NULL: the program calls gpusync_dispatch now and then. */
    void *GPUSYNC_OPT notify_user;        /**< Passed to notify. */
};

/** Options of a queue. */
struct gpusync_queue_desc {
    void *GPUSYNC_OPT metal_queue; /**< An MTLCommandQueue or MTL4CommandQueue of this device; NULL: make one. */
    const char *GPUSYNC_OPT label; /**< Of a queue that gpusync makes; NULL: none. */
    /** Command buffers that may be uncompleted: made, committed, held or tracked, until their completed handlers have
        run; gpusync's own, too: a submission may need one for its waits and one for its signals. At that number
        gpusync_command_buffer waits, and gpusync_submit for its own. All but an eighth (rounded down, at least one) may
        be held: with 1 none can be. 0: 63, or with Metal 4 no limit. An MTLCommandQueue has one more, for the buffer
        whose handler runs: pass at most one less than the count of yours, which Metal does not report (64). */
    uint32_t max_command_buffer_count;
    /** Failures on record for gpusync_next_error; 0: 64. Allocated at the first failure; without memory: one. */
    uint32_t error_log_count;
    const gpusync_spin *GPUSYNC_OPT spin; /**< NULL: the device's. */
    bool metal4;                          /**< Make an MTL4CommandQueue: >>api-metal4. Since 0.2 */
    bool sticky_failure;                  /**< A failure sticks: see gpusync_queue_clear_failure. Since 0.3 */
};

/** Options of a command buffer. */
struct gpusync_command_buffer_desc {
    const uint64_t *GPUSYNC_OPT timeout_ns; /**< How long to wait for room in the queue; NULL: no limit. */
    const char *GPUSYNC_OPT label;          /**< Shows in failures and reports; NULL: none. */
    bool unretained_references; /**< Metal does not retain encoded resources: the program keeps them alive. */
    /** An MTLCommandBufferDescriptor, for everything that Metal can do for one command buffer; NULL: none. Its
        retainedReferences counts: unretained_references must be false. macOS 11, iOS 14. Since 0.4 */
    void *GPUSYNC_OPT descriptor;
};

/** Options of one wait. */
struct gpusync_wait_options {
    const gpusync_spin *GPUSYNC_OPT spin; /**< NULL: the queue's; for a timeline or many points the device's. */
    gpusync_error *GPUSYNC_OPT error;     /**< Filled where the wait returns an error; else unchanged. */
    bool handlers; /**< For tickets: also waits for completed handlers, see gpusync_wait_ex. Since 0.2 */
    /** Only for gpusync_wait_ex: does not spin. Without a time limit a wait for buffers without encoded points parks
        in Metal's waitUntilCompleted: neither loss nor destroy ends it, and destroy waits for it. Since 0.4 */
    bool blocking;
};

/** gpusync_wait with a spin budget, a place for the failure, and handlers. EVERYTHING: as gpusync_queue_wait.
    With options->handlers the wait returns when the program's completed handlers have run: those added before
    gpusync_track for tracked work, all since the queue was made for GPUSYNC_EVERYTHING, none for work that was never
    committed. Callbacks of gpusync_on_done are not handlers. gpusync_commit and gpusync_submit add gpusync's own
    handler last, and the wait ends when that has begun. (Assumed: Metal runs handlers in the order of their addition.)
    Never make such a wait in a completed handler: it would wait for itself. If a handler is never called, the wait
    returns TIMEOUT at its limit. Destroying the queue, or abandoning the work of a lost device, also ends it: it
    returns the work's failure or, after success, ERROR_DESTROYED or ERROR_DEVICE_LOST, because handlers may still run.
    Returns  as gpusync_wait. ERROR_UNSUPPORTED also: blocking on a queue of Metal 4.
    Threads any   Blocks as gpusync_wait   Owns nothing */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_wait_ex(gpusync_queue *queue, gpusync_ticket ticket,
                                                             uint64_t timeout_ns,
                                                             const gpusync_wait_options *GPUSYNC_OPT options);

/** Let a queue with gpusync_queue_desc.sticky_failure accept new work after a failure. A failure of the queue's work
    (ERROR_EXECUTION or ERROR_RESULT_UNKNOWN, its own or inherited from what it waited for; not ERROR_CANCELLED, for
    one) sticks from when gpusync finds it until this call:
      New work     gpusync_command_buffer, gpusync_commit, gpusync_commit4 and gpusync_submit return ERROR_EXECUTION and
                   change nothing. The signals of a refused open command buffer stay pending: commit it after this call,
                   or discard it at any time, which fails the timelines with the error that sticks, or stuck last. After
                   a refused submission submit again, or call gpusync_timeline_fail.
      Held work    ends with the error, and never runs.
      Later work   on the GPU, of a ticket above the lowest that failed and from before this call: if it succeeds after
                   gpusync found the failure, it gets the error on its own record, even after this call; so do the
                   timelines that it was to signal. If it fails, it keeps its own error.
      Waits        for everything that include the failed ticket return the error; if none has, the first later one.
    A failure of a ticket from before this call that is found after it is recorded, and returned for its ticket, but
    does not stick or affect other work. Timelines that failed stay failed.
    Returns  OK, also when nothing has failed; ERROR_DESTROYED. ERROR_INVALID_ARGUMENT also: a queue that is not sticky.
    Threads any   Blocks no   Owns nothing   Since 0.3 */
GPUSYNC_API gpusync_result gpusync_queue_clear_failure(gpusync_queue *queue);

/** Destroy the queue without waiting for the GPU: for a GPU that hangs, or an exit that must not wait for the GPU.
    Danger: the GPU continues with the work in flight, whose real end is not reported. Objects of gpusync_release_after
    are released at once, while the GPU may use them. Callbacks, and work of other queues that waits for a ticket, are
    notified at once: ended work keeps its result; all other work, and what it was to signal, ends with ERROR_DESTROYED.
    Returns  as gpusync_queue_destroy   Threads one, see >>threads
    Blocks until handlers and waits that are about to return have returned, in the yield and park hooks; with Metal 4
           at most 100 ms for signals; as gpusync_queue_destroy for a wait with gpusync_wait_options.blocking
    Owns releases what the queue kept; Metal keeps command buffers in flight, gpusync those of Metal 4 */
GPUSYNC_API gpusync_result gpusync_queue_destroy_now(gpusync_queue *GPUSYNC_OPT queue);

/** Called when one of the calls below has destroyed an object. Runs as a callback does. */
typedef void (*gpusync_destroyed_fn)(void *GPUSYNC_OPT user);

/** Destroy a queue as gpusync_queue_destroy does, without blocking: for an owner that releases it in a callback.
    destroyed  Called with user, where callbacks run, when the work of the queue has ended, its callbacks have run, and
               nothing of it remains. NULL: none. Not called after an error, nor for a NULL queue.
    The call closes the queue, wakes its waits, ends its held work and discards its open command buffers; do not use the
    pointer any more. A thread of a dispatch queue of the device does the rest, one object after the other. It blocks
    without the program's hooks and runs no callbacks: with GPUSYNC_CALLBACKS_MANUAL dispatch until `destroyed` runs.
    Danger: if the GPU hangs, the queue, its memory, its device and objects destroyed after it remain until the device
    is lost. To avoid that, call gpusync_queue_destroy_now, outside callbacks.
    Returns  OK; ERROR_DESTROYED: another call destroys the queue.
    Threads one, see >>threads; in callbacks and in the log function, too   Blocks no   Owns nothing   Since 0.3 */
GPUSYNC_API gpusync_result gpusync_queue_destroy_later(gpusync_queue *GPUSYNC_OPT queue,
                                                       gpusync_destroyed_fn GPUSYNC_OPT destroyed,
                                                       void *GPUSYNC_OPT user);

/** Destroy a device when its queues, timelines and warm-ups are destroyed, without blocking.
    destroyed  As in gpusync_queue_destroy_later. When it is called the device is gone, all memory of the allocator has
               been returned, and none of the program's functions is called any more.
    Until they are destroyed, the device's objects stay usable. No call may use the device any more, except, with
    GPUSYNC_CALLBACKS_MANUAL, gpusync_dispatch: call it, on one thread at a time, until `destroyed` runs.
    Returns  OK; ERROR_DESTROYED: this was called before.
    Threads one, also in callbacks and in the log function   Blocks no   Owns nothing   Since 0.3 */
GPUSYNC_API gpusync_result gpusync_device_destroy_later(gpusync_device *GPUSYNC_OPT device,
                                                        gpusync_destroyed_fn GPUSYNC_OPT destroyed,
                                                        void *GPUSYNC_OPT user);

/** The MTLDevice.   Returns  the object, borrowed; NULL for NULL.   Threads any   Blocks no   Owns nothing */
GPUSYNC_API void *GPUSYNC_OPT gpusync_device_metal(const gpusync_device *GPUSYNC_OPT device);

/** The MTLCommandQueue, or MTL4CommandQueue.
    Returns  the object, borrowed; NULL for NULL.   Threads any   Blocks no   Owns nothing */
GPUSYNC_API void *GPUSYNC_OPT gpusync_queue_metal(const gpusync_queue *GPUSYNC_OPT queue);

/** The version of the linked implementation, as GPUSYNC_VERSION: compare it with the header's.
    Returns  the number.   Threads any   Blocks no   Owns nothing   Since 0.2 */
GPUSYNC_API uint32_t gpusync_version(void);

/* ----------------------------------------------------------------------------------------------- >>api-callbacks --
   2: callbacks and releases run soon after the end: on a serial dispatch queue, or in gpusync_dispatch (MANUAL), never
   on a Metal thread, where they would delay the end of later work. Those of a device run one at a time, in the order in
   which they became due; those of one point in the order in which they were registered. A slow callback delays the
   others and nothing else. A wait may return before the callback of its ticket has run. Frames in flight need no
   callback: keep a ticket for each set of resources, and wait for it before the next use. */

/** A point to wait for or to signal: a value of a timeline; if timeline is NULL, a ticket of a queue. The calls that
    get a point check it, and retain what it names. */
typedef struct gpusync_point {
    gpusync_queue *GPUSYNC_OPT queue;       /**< Of the ticket. */
    gpusync_ticket ticket;                  /**< GPUSYNC_EVERYTHING: only in waits on the host. */
    gpusync_timeline *GPUSYNC_OPT timeline; /**< Of the value; NULL: the point is a ticket. */
    uint64_t value;                         /**< Up to GPUSYNC_MAX_VALUE. */
} gpusync_point;

/** The point of a ticket, unchecked.   Returns  the point.   Threads any   Blocks no   Owns nothing   Since 0.2 */
GPUSYNC_API inline gpusync_point gpusync_at_ticket(gpusync_queue *queue, gpusync_ticket ticket)
{
    gpusync_point point = {queue, ticket, NULL, 0};
    return point;
}

/** The point of a value, unchecked.   Returns  the point.   Threads any   Blocks no   Owns nothing   Since 0.2 */
GPUSYNC_API inline gpusync_point gpusync_at_value(gpusync_timeline *timeline, uint64_t value)
{
    gpusync_point point = {NULL, 0, timeline, value};
    return point;
}

/** Called when work has ended. error is NULL when the result is OK, else valid during the call. Runs with an
    autorelease pool and no lock, and may call what >>threads says. It must return: not exit through a C++ exception or
    longjmp, nor end its thread (on a dispatch queue pthread_exit ends the process). */
typedef void (*gpusync_done_fn)(void *GPUSYNC_OPT user, gpusync_result result, const gpusync_error *GPUSYNC_OPT error);

/** Have gpusync call fn once when the point has ended, even if that was before this call.
    point  A ticket (not GPUSYNC_EVERYTHING), or a value of a timeline.
    user   Passed to fn. Must stay valid until fn has been called. After an error fn is not called.
    When the queue or timeline is destroyed, the remaining callbacks run in the destroy call, on its thread: with
    ERROR_CANCELLED for work that was never committed, and ERROR_DESTROYED for a value that was not reached and, by
    gpusync_queue_destroy_now, for all unfinished work. ERROR_DEVICE_LOST: a lost device did not end the point.
    Returns  OK; ERROR_INVALID_TICKET; ERROR_NOT_RISING: a value above GPUSYNC_MAX_VALUE; ERROR_OUT_OF_MEMORY;
             ERROR_DESTROYED. ERROR_UNSUPPORTED also: other code signals the timeline, and Metal has no listener.
    Threads any   Blocks no   Owns nothing; allocates if no free callback remains: a device keeps 256 */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_on_done(gpusync_point point, gpusync_done_fn fn,
                                                             void *GPUSYNC_OPT user);

/** Retain an Objective-C object now, and release it when and where a callback of the point would run; its dealloc may
    do what a callback may. Destroy releases the remaining objects, gpusync_queue_destroy_now too. On a lost device the
    object of an unfinished point is retained until destroy. Danger: the GPU may still use what these two release.
    Returns  as gpusync_on_done   Threads any   Blocks no   Owns retains the object until the end; not after an error */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_release_after(gpusync_point point, void *object);

/** Run the callbacks and releases that are due at the call, with GPUSYNC_CALLBACKS_MANUAL.
    max    Runs at most this many callbacks and releases, the oldest first. 0: none.
    count  Gets the number that has run. May be NULL.
    What becomes due during the call does not run in it. If the call has run some and others remain, it calls notify.
    Returns  OK, also when nothing is due, with GPUSYNC_CALLBACKS_QUEUED, or at once when another thread runs a
             callback: if others remain, notify is called when that has ended. ERROR_WOULD_DEADLOCK: in a callback.
    Threads any   Blocks while the callbacks run   Owns nothing */
GPUSYNC_API gpusync_result gpusync_dispatch(gpusync_device *device, size_t max, size_t *GPUSYNC_OPT count);

/* ------------------------------------------------------------------------------------------------ >>api-external --
   3: command buffers that other code commits. Their tickets count as committed from the call on: until the buffer ends,
   the queue counts as busy and waits block. A buffer that was already committed gets no ticket, because Metal accepts
   no handler for it. Commit an empty one through gpusync after it: the manual, "Commit and wait". */

/** Give a ticket to a command buffer that its owner commits later, without gpusync. Call this before the owner commits.
    gpusync_is_done reports tickets in order: later ones show as done only after this one (gpusync_poll sees them at
    once). If the buffer will never be committed, call gpusync_untrack; otherwise memory grows with every later commit.
    The buffer does not queue up behind held work.
    Returns  OK; ERROR_WRONG_QUEUE; ERROR_ALREADY_COMMITTED; ERROR_ALREADY_TRACKED; ERROR_OUT_OF_MEMORY;
             ERROR_DEVICE_LOST; ERROR_DESTROYED. ERROR_UNSUPPORTED also: a Metal 4 buffer. ERROR_INVALID_ARGUMENT also:
             the buffer has waits or signals of gpusync: commit it with gpusync.
    Threads any, not while another thread uses the buffer   Blocks no   Owns retains the buffer until its handler ran */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_track(gpusync_queue *queue, void *command_buffer,
                                                           gpusync_ticket *GPUSYNC_OPT ticket);

/** Undo gpusync_track for a buffer that will never be committed. Waits for the ticket return ERROR_CANCELLED. The owner
    must not commit the buffer during the call, nor during destroy: its status is read once.
    Returns  OK; ERROR_ALREADY_COMMITTED; ERROR_DESTROYED; ERROR_INVALID_TICKET: not of gpusync_track, or already ended.
    Threads any   Blocks no   Owns a record of 128 bytes stays until the buffer ends or is deallocated */
GPUSYNC_API gpusync_result gpusync_untrack(gpusync_queue *queue, gpusync_ticket ticket);

/* ----------------------------------------------------------------------------------------------- >>api-timelines --
   4: a timeline is a 64-bit number that only rises, in an MTLSharedEvent. The host or the GPU raises it. A wait for a
   value ends once the number is that value or more. A failed timeline stays failed: every query and wait returns the
   first failure, also for a value reached before. Exempt are committed work whose value was reached before the failure,
   and work whose wait was encoded between the two. Give work that fails independently its own timeline. */

#define GPUSYNC_MAX_VALUE (UINT64_MAX >> 1) /**< Largest value of a timeline that gpusync signals or waits for. */

/** Options of a timeline. */
typedef struct gpusync_timeline_desc {
    uint64_t initial_value;        /**< Of a timeline with its own event, else ignored. Up to GPUSYNC_MAX_VALUE. */
    const char *GPUSYNC_OPT label; /**< Shows in reports; NULL: none. */
    /** An MTLSharedEvent that other code signals, too; retained. UINT64_MAX: failed. NULL: makes one. Since 0.2 */
    void *GPUSYNC_OPT shared_event;
    /** Other code signals the event, as work encoded without gpusync or another process does; shared_event implies it.
        A value that no pending signal covers may then come from there: work that waits for it goes to the GPU, and
        gpusync reads the event and asks Metal for a notification. Danger: if other code signals the value only after
        work that gpusync holds, the GPU's watchdog may end the wait. A value below the lowest pending signal is reached
        when the event shows it or a higher one, even before the command buffer with that signal has ended. Since 0.4 */
    bool signalled_by_others;
} gpusync_timeline_desc;

/** Make a timeline, with an event of its own or with desc->shared_event.
    Returns  OK; ERROR_METAL_NIL: Metal has no event to give (as happens in sandboxes); ERROR_OUT_OF_MEMORY;
             ERROR_DEVICE_LOST; ERROR_NOT_RISING: initial_value out of range. ERROR_UNSUPPORTED also: no shared event.
    Threads any   Blocks no   Owns retains the event; the device must outlive the timeline */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_timeline_create(gpusync_device *device,
                                                                     const gpusync_timeline_desc *GPUSYNC_OPT desc,
                                                                     gpusync_timeline *GPUSYNC_OPT *GPUSYNC_REQ out);

/** Destroy a timeline. Waits that sleep or spin for its values return ERROR_DESTROYED. Work that names the timeline
    continues with its event, committed or not. Work that is held, now or later, for an unsignalled value that no other
    work is to signal ends with ERROR_DESTROYED. If such work is on the GPU, call gpusync_timeline_fail first: otherwise
    gpusync_queue_destroy does not return while it waits.
    Returns  OK; ERROR_WOULD_DEADLOCK: in a callback, nothing was done; ERROR_DESTROYED: another call destroys it.
    Threads one, see >>threads   Blocks until its waits and callbacks have returned   Owns releases the event */
GPUSYNC_API gpusync_result gpusync_timeline_destroy(gpusync_timeline *GPUSYNC_OPT timeline);

/** Destroy a timeline as gpusync_timeline_destroy does, without blocking: as gpusync_queue_destroy_later.
    Returns  OK; ERROR_DESTROYED: another call destroys the timeline.
    Threads one, see >>threads; in callbacks and in the log function, too   Blocks no   Owns nothing   Since 0.3 */
GPUSYNC_API gpusync_result gpusync_timeline_destroy_later(gpusync_timeline *GPUSYNC_OPT timeline,
                                                          gpusync_destroyed_fn GPUSYNC_OPT destroyed,
                                                          void *GPUSYNC_OPT user);

/** The MTLSharedEvent. Other code may wait for its values; where other code signals it, set signalled_by_others.
    base     Gets the offset: value v of the timeline is v + *base on the event, which may have been used before. 0 for
             an imported event. Call this before the expression that uses base.
    Returns  the object, borrowed; NULL for NULL.   Threads any   Blocks no   Owns nothing */
GPUSYNC_API void *GPUSYNC_OPT gpusync_timeline_metal(gpusync_timeline *GPUSYNC_OPT timeline,
                                                     uint64_t *GPUSYNC_OPT base);

/** Read the present value: every value up to it is reached. It stays below the lowest pending signal, even if higher
    values were signalled, and may be less than that of the event. With signalled_by_others this call reads the event.
    Returns  OK; the result of the failure, when the timeline has failed: *value is what it had reached.
    Threads any   Blocks no   Owns nothing */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_timeline_query(gpusync_timeline *timeline, uint64_t *value);

/** Raise the timeline from the host. Ends waits for the value, on host and GPU, and commits work held for it. While the
    signal of a lower value is pending, the timeline rises to just below that value, on the host and on the GPU, and
    further when that work has succeeded or was discarded. If the work fails, the timeline fails.
    Returns  OK; ERROR_NOT_RISING: nothing has changed, because the value is reached already (another thread may have
             been first), is pending, is the highest that was signalled, or is above GPUSYNC_MAX_VALUE; the result of
             the failure; ERROR_DEVICE_LOST; ERROR_DESTROYED.   Threads any   Blocks no   Owns nothing */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_timeline_signal(gpusync_timeline *timeline, uint64_t value);

/** Fail the timeline. Every wait for one of its values, also for a value that was reached, returns its result. Waits on
    the GPU end, because the timeline's own event gets the value UINT64_MAX. An imported event is not written: waits for
    it on the GPU continue until other code signals it.
    reason   Copied. Its result counts if it is from -1 to ERROR_COMPILE, named or not. Else, or NULL: ERROR_EXECUTION.
    Returns  OK; ERROR_DESTROYED. The result of an earlier failure, if the timeline had failed already.
    Threads any   Blocks no   Owns nothing */
GPUSYNC_API gpusync_result gpusync_timeline_fail(gpusync_timeline *timeline, const gpusync_error *GPUSYNC_OPT reason);

/** Wait for a value. Costs one load and no message if the value is reached. The ticket of the submission that signals
    the value may still be NOT_READY for a moment.
    options  As gpusync_wait_ex, without blocking.
    Returns  OK; TIMEOUT; the result of the failure; ERROR_DEVICE_LOST; ERROR_DESTROYED; ERROR_NOT_RISING: above
             GPUSYNC_MAX_VALUE; ERROR_WOULD_DEADLOCK: in a callback; ERROR_OUT_OF_MEMORY.
    Threads any   Blocks as gpusync_wait   Owns nothing */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_timeline_wait(gpusync_timeline *timeline, uint64_t value,
                                                                   uint64_t timeout_ns,
                                                                   const gpusync_wait_options *GPUSYNC_OPT options);

/** When a wait for several points ends. */
typedef enum GPUSYNC__CLOSED_ENUM gpusync_wait_for {
    GPUSYNC_WAIT_ALL,           /**< When every point has ended (or at the limit: see gpusync_wait_many). */
    GPUSYNC_WAIT_ANY,           /**< When one point has. */
    GPUSYNC_WAIT_ALL_OR_FAILURE /**< When every point has ended, or one has failed. Since 0.2 */
} gpusync_wait_for;

/** Wait for several points of one device.
    points   May be NULL when count is 0. The same point may occur several times.
    options  As gpusync_wait_ex, without blocking. error: of the point that `which` gets; where that is count, as
             gpusync_wait_ex says of the wait. More than 16 points do not spin, unless spin says so.
    which    Gets an index into points, or count. ANY: of the point that ended, the lowest if several have. Else: the
             lowest that failed; count: none has.
    A point that failed has ended, also abandoned work of a lost device; with handlers a ticket has ended when its
    handlers have run, too. A point whose queue or timeline is destroyed ends the wait. By its one result a wait for ALL
    or ALL_OR_FAILURE reports the failures of every GPUSYNC_EVERYTHING point, one for ANY those of the point of `which`.
    Danger: at the time limit, and where a point's queue or timeline is destroyed, a wait for ALL returns the failure of
    a point that has ended, although others may not have. Query each before you reuse its memory.
    Returns  what a wait for the point of `which` returns. OK: every one succeeded; also for a count of 0, but not with
             ANY. TIMEOUT: not yet, and nothing that ended has failed. ERROR_INVALID_ARGUMENT also: points of two
             devices, a NULL in one, ANY of none. ERROR_INVALID_TICKET; ERROR_NOT_RISING; ERROR_OUT_OF_MEMORY;
             ERROR_WOULD_DEADLOCK; ERROR_DEVICE_LOST; ERROR_DESTROYED.
    Threads any   Blocks as gpusync_wait   Owns nothing; more than 16 points allocate during the call */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_wait_many(const gpusync_point *GPUSYNC_OPT points, size_t count,
                                                               gpusync_wait_for how, uint64_t timeout_ns,
                                                               const gpusync_wait_options *GPUSYNC_OPT options,
                                                               size_t *GPUSYNC_OPT which);

/* --------------------------------------------------------------------------------------------- >>api-submissions --
   5: waits, work, signals. A command buffer with encoded waits and signals is committed like any other. gpusync_submit
   makes one ticket of several command buffers, even ones encoded elsewhere. Its waits are in a command buffer before
   them, its signals in one after them: the work may overlap those where Metal tracks no resource between the two,
   unless GPUSYNC_STRICT is set. Between queues use a timeline: work that waits for a ticket is held until its end.

   Pending signals. The value of a pending signal is reached when its work has succeeded and no lower signal is pending.
   If the work fails, the timeline fails with its error, and so do the tickets of all work that waits for the timeline,
   and the timelines that this work was to signal. Danger: work that is already on the GPU stops waiting (not for an
   imported event, see gpusync_timeline_fail), and runs on whatever its input contains; only held work never runs. Work
   that was to signal a failed timeline succeeds.

   Held. gpusync holds work on the host, where the GPU's watchdog does not end it, until each value that the work waits
   for is reached, or is to be signalled by committed work (or by others: signalled_by_others), each ticket that it
   waits for has ended, no held work is ahead of it, and "Order" allows it. The thread that ends or commits what the
   work waits for commits it, often Metal's completion thread; or one of gpusync's dispatch queues does. Later work of
   the queue waits behind held work (not GPUSYNC_UNORDERED, not gpusync_track). So a signal behind its own wait on one
   queue never comes: gpusync_report shows such work, gpusync_cancel_held ends it. Held work that is cancelled or fails
   is never committed: Metal may run the program's handlers when it deallocates the buffer.

   Order. Signal the values of a timeline in rising order. The GPU compares numbers: a wait for 3 also ends when the
   event shows 5. So work that signals 5 is held while another queue has committed work whose lower signal is still to
   come, unless the work waits for that value or a higher one before its first signal of that timeline. (Ping-pong, wait
   for n - 1 and signal n, goes to the GPU at once.) examples/waits.md explains the rest, and cycles. What becomes of
   work that signals b while another queue's work has a signal of a on the same timeline:

     the signal of a is              b is higher   b is the same   b is lower
       open                          goes          NOT_RISING      goes
       held                          goes          NOT_RISING      goes
       committed                     held          NOT_RISING      goes
       signalled, not reached        goes          NOT_RISING      goes
       reached                       goes          NOT_RISING      NOT_RISING
       discarded                     goes          goes            goes
       failed                        failed        failed          failed

   open: not committed. The cell "held" is "goes" for the exception above, and for two signals of one queue. signalled,
   not reached: its work has succeeded, and a lower signal is pending; of several such values only the highest is
   NOT_RISING. failed: the timeline; the call returns the failure. Accepted work is never refused for its order. */

/** Encode a wait: what comes later in the command buffer waits for the point, on the GPU.
    command_buffer  Any uncommitted one of the Metal queue. gpusync keeps one that it did not make from here on.
    point           A value, or a ticket of any queue of the device, for which the host waits.
    Call it between encoders, or before the first one to make everything wait, and before any signal. Commit the buffer
    with gpusync_commit or gpusync_submit, which hold the whole buffer until the work for every value is committed and
    every ticket has ended; never with [buffer commit]. Or discard it. Nothing is encoded for a reached value. If the
    point fails, the buffer's ticket fails with the same error, even if the record of how the point ended is gone
    (ERROR_RESULT_UNKNOWN). A buffer that is held at that time never runs; one that the GPU has keeps running. If the
    queue of a ticket is destroyed before the buffer is committed, the buffer's ticket fails with ERROR_DESTROYED, even
    if the other ticket succeeded after this call.
    Returns  OK, also for a timeline that has failed. After an error nothing is encoded. ERROR_INVALID_ARGUMENT also:
             after a signal of this buffer; a point of another device. ERROR_NOT_RISING: above GPUSYNC_MAX_VALUE.
             ERROR_UNSUPPORTED also: a Metal 4 buffer. ERROR_INVALID_TICKET; ERROR_WRONG_QUEUE; ERROR_ALREADY_COMMITTED;
             ERROR_ALREADY_TRACKED; ERROR_METAL_NIL; ERROR_OUT_OF_MEMORY; ERROR_DEVICE_LOST; ERROR_DESTROYED.
    Threads the one that encodes the buffer   Blocks no   Owns retains buffer and event: >>ownership   Since 0.2 */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_encode_wait(gpusync_queue *queue, void *command_buffer,
                                                                 gpusync_point point);

/** Encode a signal: the GPU signals the value, of a timeline, at this place of the command buffer. The signal is
    pending from now on. For the host the value is reached when the whole buffer has succeeded. If gpusync_commit fails,
    the signal stays pending: commit again, or discard, which withdraws it. If the queue is destroyed before the commit,
    the timeline fails with ERROR_CANCELLED, by gpusync_queue_destroy_now with ERROR_DESTROYED.
    command_buffer  As gpusync_encode_wait.
    Returns  as gpusync_encode_wait. The result of the failure if the timeline has failed through other work: nothing
             was encoded, discard the buffer; gpusync_timeline_wait with options->error reports why. ERROR_NOT_RISING:
             the value is reached, pending, or the highest that was signalled, is below another value that the buffer
             signals, or the buffer waits for this value or a higher one. ERROR_INVALID_ARGUMENT also: a ticket.
    Threads the one that encodes the buffer   Blocks no   Owns as gpusync_encode_wait   Since 0.2 */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_encode_signal(gpusync_queue *queue, void *command_buffer,
                                                                   gpusync_point point);

/** Flags of a submission. Open: later versions may have more. */
typedef enum GPUSYNC__FLAG_ENUM gpusync_submit_flags {
    GPUSYNC_STRICT = 2,   /**< Waits and signals on the host, for command buffers that were encoded elsewhere. */
    GPUSYNC_UNORDERED = 4 /**< Does not queue up behind held work; while it is held, no work queues up behind it. */
} gpusync_submit_flags;

/** Work between waits and signals. */
typedef struct gpusync_submission {
    const gpusync_point *GPUSYNC_OPT waits; /**< Values of timelines; tickets of any queue of the device. */
    size_t wait_count;                      /**< 0: waits may be NULL. */
    void *GPUSYNC_REQ const *GPUSYNC_OPT command_buffers; /**< MTLCommandBuffers, each once, in this order. */
    size_t command_buffer_count;                          /**< 0: a ticket that ends when its waits have. */
    const gpusync_point *GPUSYNC_OPT signals;             /**< Values of timelines. */
    size_t signal_count;                                  /**< 0: signals may be NULL. */
    gpusync_done_fn GPUSYNC_OPT on_complete;              /**< Called once at the end, as if by gpusync_on_done. */
    void *GPUSYNC_OPT user;                               /**< Passed to on_complete. */
    const char *GPUSYNC_OPT label;                        /**< Shows in failures and reports; NULL: none. */
    uint32_t flags;                                       /**< gpusync_submit_flags. */
    const uint64_t *GPUSYNC_OPT timeout_ns;               /**< For room for gpusync's own buffers; NULL: no limit. */
} gpusync_submission;

/** Submit work to the queue, as one ticket, which ends when all command buffers and all points that they wait for have
    ended. Held work ends with the first failure, although other points that it waits for may not have ended.
    A wait for the ticket returns the first error that was found, of the waits or of the work. Waits and signals that
    were encoded into the command buffers count, too, ahead of its own. OK does not mean that the work ran: if a point
    had failed, the submission ends at once and releases its command buffers.
    Returns  OK: committed, or held, or ended. After an error the command buffers are as before, and on_complete is not
             called. Every error of gpusync_commit, about any of the command buffers. ERROR_INVALID_TICKET.
             ERROR_NOT_RISING: a signal is reached, pending, or the highest that was signalled; a wait comes after a
             signal of the same value or a lower one, of the submission or encoded into one of its buffers; the signals
             of one timeline do not rise. The result of the failure of a timeline that is to be signalled.
             ERROR_QUEUE_FULL: the submission would have to be held, and too many are, whatever timeout_ns says. Or,
             without a time limit, gpusync's own buffers got no room for a second, as in gpusync_command_buffer.
             TIMEOUT; ERROR_WOULD_DEADLOCK in a callback; ERROR_METAL_NIL: gpusync's own buffers got no room, or nil.
             ERROR_UNSUPPORTED also: STRICT, and Metal has no listener for a timeline that other code signals.
    Threads any   Blocks for room for command buffers of gpusync's own, up to *timeout_ns
    Owns retains command buffers until their handlers ran, timelines and events until the submission has ended */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_submit(gpusync_queue *queue, const gpusync_submission *submission,
                                                            gpusync_ticket *GPUSYNC_OPT ticket);

/** End all held work of the queue with ERROR_CANCELLED, also plain commits that are held behind other work. The
    timelines that this work was to signal fail. Work that failed before keeps its failure.
    Returns  OK; ERROR_DESTROYED.   Threads any   Blocks no   Owns releases the command buffers */
GPUSYNC_API gpusync_result gpusync_cancel_held(gpusync_queue *queue);

/* -------------------------------------------------------------------------------------------------- >>api-warmup --
   6: the first use of a GPU is slow: Metal makes objects and compiles shaders when they are first needed. A warm-up
   does so in advance, on four serial dispatch queues of the quality of service "user initiated": three compile
   pipelines, one sends an empty command buffer and runs the jobs. Report and trace show it as a timeline. */

/** A compute pipeline to compile in advance: a function of a source text or of a library, one of which is NULL. */
typedef struct gpusync_pipeline_desc {
    const char *GPUSYNC_OPT source; /**< Metal's shading language, UTF-8. */
    void *GPUSYNC_OPT library;      /**< An MTLLibrary. */
    const char *function;           /**< Its name. */
} gpusync_pipeline_desc;

/** Work of the program, run once: on a dispatch queue of the warm-up, on one thread, in the order of the list. */
typedef struct gpusync_warmup_job {
    void (*run)(void *GPUSYNC_OPT user); /**< What to do. */
    void *GPUSYNC_OPT user;              /**< Passed to run. */
} gpusync_warmup_job;

/** What to warm up. */
typedef struct gpusync_warmup_desc {
    const gpusync_pipeline_desc *GPUSYNC_OPT pipelines; /**< To compile. One listed twice is compiled once. */
    size_t pipeline_count;                              /**< 0: pipelines may be NULL. */
    const gpusync_warmup_job *GPUSYNC_OPT jobs;         /**< To run. */
    size_t job_count;                                   /**< 0: jobs may be NULL. */
    gpusync_queue *GPUSYNC_OPT queue; /**< Gets an empty command buffer; must outlive the warm-up. NULL: its own. */
    bool blocking;                    /**< gpusync_warmup_start returns when all is done. */
    bool disabled;                    /**< Nothing is done, successfully: pipelines are compiled on request. */
} gpusync_warmup_desc;

/** Begin a warm-up.
    desc     NULL: only an empty command buffer. The contents of the desc are copied or retained.
    out      Gets the warm-up; NULL after an error, except the two errors of desc->blocking.
    Returns  OK; ERROR_OUT_OF_MEMORY; ERROR_METAL_NIL; ERROR_DEVICE_LOST. gpusync_warmup_wait reports later failures.
             With desc->blocking: OK: all is done, even if something failed. ERROR_WOULD_DEADLOCK, in a callback, and
             ERROR_DEVICE_LOST, if the device is lost during the call: *out is a warm-up that is not done.
    Threads any   Blocks no; with desc->blocking until all is done   Owns the device must outlive the warm-up */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_warmup_start(gpusync_device *device,
                                                                  const gpusync_warmup_desc *GPUSYNC_OPT desc,
                                                                  gpusync_warmup *GPUSYNC_OPT *GPUSYNC_REQ out);

/** Read the progress of a warm-up.
    done, total  Get the numbers. Both 0 when the warm-up is disabled.
    Returns  OK: all is done, even if something failed; NOT_READY.   Threads any   Blocks no   Owns nothing */
GPUSYNC_API gpusync_result gpusync_warmup_poll(gpusync_warmup *warmup, size_t *GPUSYNC_OPT done,
                                               size_t *GPUSYNC_OPT total);

/** Wait until all is done. A failure does not stop the rest.
    Returns  OK; TIMEOUT. All is done: ERROR_METAL_NIL, or the result of making, committing or waiting for the empty
             command buffer, if the device could not be warmed up; else ERROR_COMPILE: a pipeline does not compile, see
             gpusync_warmup_pipeline. Not all is done: ERROR_DEVICE_LOST; ERROR_DESTROYED; ERROR_WOULD_DEADLOCK: in a
             callback, or in one of the jobs; ERROR_OUT_OF_MEMORY.
    Threads any   Blocks as gpusync_wait   Owns nothing */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_warmup_wait(gpusync_warmup *warmup, uint64_t timeout_ns);

/** Get a pipeline: waits for this one alone. Joins its compilation, or begins it, once, if the warm-up is disabled.
    i        The pipeline's number in the desc, from 0.
    error    With ERROR_COMPILE: gets Metal's text, and the function's name as its label.
    Returns  OK; ERROR_COMPILE; else as gpusync_warmup_wait.
    Threads any   Blocks as gpusync_wait   Owns *out is borrowed for as long as the warm-up lives */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_warmup_pipeline(gpusync_warmup *warmup, size_t i,
                                                                     uint64_t timeout_ns,
                                                                     void *GPUSYNC_OPT *GPUSYNC_REQ out,
                                                                     gpusync_error *GPUSYNC_OPT error);

/** Destroy a warm-up. Jobs that did not begin are skipped. Waits in progress return ERROR_DESTROYED.
    Returns  OK; ERROR_WOULD_DEADLOCK: in a callback, or in one of its jobs; nothing was done.
    Threads one, see >>threads   Owns releases its pipelines
    Blocks until the compilations and the job that have begun are done. Danger: Metal may compile for seconds. */
GPUSYNC_API gpusync_result gpusync_warmup_destroy(gpusync_warmup *GPUSYNC_OPT warmup);

/* ------------------------------------------------------------------------------------------------- >>api-insight --
   7: what happened, in numbers, events and a text. */

/** How a ticket ended and when the GPU ran it. */
typedef struct gpusync_ticket_info {
    gpusync_result result; /**< As gpusync_poll. */
    double gpu_start_s;    /**< Metal's GPUStartTime: seconds, host clock. 0: not reported, or not yet. */
    double gpu_end_s;      /**< Metal's GPUEndTime, likewise. */
} gpusync_ticket_info;

/** Read how a ticket ended. The record is kept for at least the last 256 tickets of a queue.
    Returns  OK: *info is filled; else it is zero. NOT_READY; ERROR_INVALID_TICKET; ERROR_DEVICE_LOST: unfinished,
             perhaps permanently; ERROR_DESTROYED, also in a callback that the queue's destroy runs;
             ERROR_RESULT_UNKNOWN: no record, the work ended long ago; or ticket 0.
    Threads any   Blocks no   Owns nothing */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_get_info(gpusync_queue *queue, gpusync_ticket ticket,
                                                              gpusync_ticket_info *info);

/** Counts since the queue (or device) was made. A wait for work that has succeeded may go uncounted: if one look at the
    counter answers, the wait writes to no memory. */
typedef struct gpusync_stats {
    uint64_t commits;          /**< Tickets issued, those of gpusync_track included. */
    uint64_t completions;      /**< Tickets that ended, except those in flight or tracked at a loss or destroy_now. */
    uint64_t failures;         /**< Tickets that ended with an error, except abandoned ones. */
    uint64_t failures_dropped; /**< Records that newer ones pushed out of the log. */
    uint64_t waits_inline;     /**< Waits that ended by looking at the counter, except those that go uncounted. */
    uint64_t waits_status;     /**< Waits that ended by reading the status. */
    uint64_t waits_spin;       /**< Waits that ended in the spin. */
    uint64_t waits_sleep;      /**< Waits that ended after sleeping. */
    uint64_t waits_unmet;      /**< Waits that ended before the work was done: timeout, lost, destroyed, deadlock. */
    uint64_t spins_in_vain;    /**< Waits whose spin, set or not, ended first: they then slept, or timed out. */
    uint64_t spin_ns;          /**< Nanoseconds that waits have spun, the yield hook included. */
    uint64_t held;             /**< Commits and submissions that were held on the host. */
    uint64_t wakes;   /**< Waits that slept for one ticket or one queue, where the GPU's end is known. Since 0.4 */
    uint64_t wake_ns; /**< Nanoseconds from the GPU's end until the waiter ran, the sum over `wakes`. Since 0.4 */
} gpusync_stats;

/** Read the counts of one queue. Each number is exact, and read by itself while threads keep counting; commits and
    completions are read together: their difference is the number of tickets that have not ended.
    Returns  OK.   Threads any   Blocks no   Owns nothing */
GPUSYNC_API gpusync_result gpusync_get_stats(const gpusync_queue *queue, gpusync_stats *stats);

/** Read the sum over the device's queues, destroyed ones too, and the waits for timelines, many points or the device.
    Returns  OK. Not read at one instant, as gpusync_get_stats.   Threads any   Blocks no   Owns nothing */
GPUSYNC_API gpusync_result gpusync_device_get_stats(gpusync_device *device, gpusync_stats *stats);

/** The kinds of events. Each event has its own time: events of one object may arrive in another order. Open. */
typedef enum GPUSYNC__OPEN_ENUM gpusync_trace_kind {
    GPUSYNC_TRACE_COMMIT,     /**< queue, ticket: of gpusync_commit, gpusync_commit4 and gpusync_track. */
    GPUSYNC_TRACE_SUBMIT,     /**< queue, ticket: gpusync_submit has accepted the work. */
    GPUSYNC_TRACE_HOLD,       /**< queue, ticket: the work is held. */
    GPUSYNC_TRACE_ISSUE,      /**< queue, ticket: a submission, or a buffer with points to come, went to Metal. */
    GPUSYNC_TRACE_COMPLETED,  /**< queue, ticket, result, gpu_start_s, gpu_end_s: it has ended, or was abandoned. */
    GPUSYNC_TRACE_WAIT_BEGIN, /**< queue, ticket (EVERYTHING: the last); timeline, value; many points: neither. */
    GPUSYNC_TRACE_WAIT_END,   /**< As WAIT_BEGIN, with result and how. */
    GPUSYNC_TRACE_SIGNAL,     /**< timeline, value: signalled on the host, or by work that has ended. */
    GPUSYNC_TRACE_CALLBACK    /**< queue and ticket, or timeline and value, result: the callback is about to run. */
} gpusync_trace_kind;

/** How a wait ended, as counted by gpusync_stats. */
typedef enum GPUSYNC__CLOSED_ENUM gpusync_wait_end {
    GPUSYNC_ENDED_INLINE, /**< By looking at the counter. */
    GPUSYNC_ENDED_STATUS, /**< By reading the status. */
    GPUSYNC_ENDED_SPIN,   /**< In the spin. */
    GPUSYNC_ENDED_SLEEP,  /**< After sleeping. */
    GPUSYNC_ENDED_UNMET   /**< Before the awaited work or value. */
} gpusync_wait_end;

/** One event. Fields that its kind does not name are zero. */
typedef struct gpusync_trace_event {
    gpusync_trace_kind kind;                      /**< What happened. */
    uint64_t time_ns;                             /**< When, by gpusync_now_ns. */
    const gpusync_queue *GPUSYNC_OPT queue;       /**< Of the ticket. */
    gpusync_ticket ticket;                        /**< Of commit, submission or wait. */
    const gpusync_timeline *GPUSYNC_OPT timeline; /**< Of the value. */
    uint64_t value;                               /**< Signalled or waited for. */
    gpusync_result result;                        /**< Of the work or the wait. */
    gpusync_wait_end how;                         /**< Of WAIT_END. */
    uint64_t expected_ns;          /**< Of WAIT_BEGIN for one point: average ns to the GPU's end. 0: unknown, past. */
    double gpu_start_s, gpu_end_s; /**< As gpusync_ticket_info. */
    const char *label;             /**< Of submission, queue or timeline; valid during the call. */
} gpusync_trace_event;

/** Called for an event, on the event's thread, Metal's too, with no lock held. Must be quick, and not call gpusync. */
typedef void (*gpusync_trace_fn)(void *GPUSYNC_OPT user, const gpusync_trace_event *event);

/** Report every event of the device to fn, from now on. While no function is set, an event costs one branch.
    fn       NULL: ends the trace.
    Returns  OK.   Blocks until gpusync's handlers that have begun have returned   Owns nothing
    Threads one, while no other call, callback or warm-up runs on the device, and nothing is in flight: wait with
            gpusync_wait_options.handlers first */
GPUSYNC_API gpusync_result gpusync_set_trace(gpusync_device *device, gpusync_trace_fn GPUSYNC_OPT fn,
                                             void *GPUSYNC_OPT user);

/** Write a text to print when a program hangs: every queue, and how long its tickets take; every unfinished command
    buffer (ticket, label, status, age); work held or in flight, what it waits for, and what is to signal that; every
    wait, one for several points with a line for each.
    buffer   Gets the text, cut to size - 1 bytes, terminated. NULL: nothing is written. Empty for a NULL device.
    Returns  the length of the whole text without its terminator, as snprintf does.
    Threads any   Blocks no, but acquires locks and asks Metal for labels and states   Owns nothing */
GPUSYNC_API size_t gpusync_report(gpusync_device *GPUSYNC_OPT device, char *GPUSYNC_OPT buffer, size_t size);

/** Write the lines of gpusync_report about one queue. Empty for NULL, and for a queue that is being destroyed.
    buffer   As in gpusync_report.
    Returns  as gpusync_report   Threads any   Blocks as gpusync_report   Owns nothing   Since 0.3 */
GPUSYNC_API size_t gpusync_queue_report(gpusync_queue *GPUSYNC_OPT queue, char *GPUSYNC_OPT buffer, size_t size);

/* ------------------------------------------------------------------------------------------------- >>api-metal4 --
   8: queues of Metal 4 (macOS 26, iOS 26). Set gpusync_queue_desc.metal4, or pass an MTL4CommandQueue as metal_queue.
   Commit with gpusync_commit4 or gpusync_submit. The rest works as with any queue, and work on either kind may wait for
   the other. The differences:

   Buffers. The program makes the buffers ([device newCommandBuffer]), begins them with an allocator, and ends them.
   Several committed together have one ticket, and count as one in max_command_buffer_count, which here limits what may
   be held. Metal accepts a recording once: begin the buffer again before each commit. gpusync cannot check that, nor
   that another queue holds the buffer. Beginning a held buffer discards its recording: use another one.

   Lifetimes. Metal retains nothing. gpusync retains the command buffers until the feedback, and an event that the queue
   is to signal until that signal has come; if it has not when the gpusync_queue is destroyed, see
   examples/metal-behaves.md. The program owns the rest, also residency and barriers; gpusync_release_after retains an
   object until a ticket is done. An allocator may be reset when a wait or poll for each ticket recorded with it has
   returned OK, ERROR_EXECUTION, ERROR_CANCELLED or ERROR_RESULT_UNKNOWN. After ERROR_DEVICE_LOST, ERROR_DESTROYED or
   gpusync_queue_destroy_now the GPU may still work.

   End. Metal reports the end only in a feedback: gpusync_poll and a spinning wait do not see it earlier. Without one
   the ticket never ends, and gpusync_queue_destroy never returns: use gpusync_queue_destroy_now, after which nothing
   that the commit uses is released. Never wait on the feedbackQueue of the MTL4CommandQueueDescriptor, which the
   program keeps, nor on the main thread if it is the main queue. MTL4CommitOptions are gpusync's own: instead of a
   feedback handler use gpusync_on_done and gpusync_get_info. gpusync_error.label is read when the failure is found.

   Waits and signals of a submission are operations of the queue, before its commit and after it: no work overlaps them,
   and a wait delays all later commits, GPUSYNC_UNORDERED too. When a wait takes too long, Metal abandons it and runs
   the work. If the value is still not reached at the feedback, the submission has failed with GPUSYNC_FAILURE_TIMEOUT;
   its ticket ends when the work that signals the value has (for a value that other code signals, at the feedback).
   Danger: a value reached meanwhile hides the failure. With GPUSYNC_STRICT the host waits.

   ERROR_UNSUPPORTED: gpusync_command_buffer, gpusync_commit, gpusync_encode_wait, gpusync_encode_signal, gpusync_track,
   gpusync_wait_options.blocking in gpusync_wait_ex, submissions without command buffers, a warm-up's queue. */

/** Commit command buffers of Metal 4 together. Call this instead of [queue commit:count:options:].
    command_buffers  count buffers, at least one, each once, ended, of the queue's device. Read during the call.
    Returns  OK: the buffers are committed; or held, behind held work. After an error nothing was committed.
             ERROR_OUT_OF_MEMORY: try again. ERROR_METAL_NIL. ERROR_ALREADY_TRACKED: this queue holds one of them.
             ERROR_QUEUE_FULL; ERROR_EXECUTION; ERROR_DEVICE_LOST; ERROR_DESTROYED; as gpusync_commit. ERROR_UNSUPPORTED
             also: the queue, or a buffer, is not of Metal 4.   Threads any, one at a time for a command buffer
    Blocks no   Owns retains the buffers until the feedback   Since 0.2 */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_commit4(gpusync_queue *queue,
                                                             void *GPUSYNC_REQ const *GPUSYNC_REQ command_buffers,
                                                             size_t count, gpusync_ticket *GPUSYNC_OPT ticket);

/* clang-format off */
/** Every public struct, as X(name): what gpusync_struct_sizes reports. Later versions add to the end. */
#define GPUSYNC_STRUCTS(X)                                                                                            \
    X(gpusync_error) X(gpusync_spin) X(gpusync_waiter) X(gpusync_hooks) X(gpusync_allocator) X(gpusync_device_desc)   \
    X(gpusync_queue_desc) X(gpusync_command_buffer_desc) X(gpusync_wait_options) X(gpusync_point)                     \
    X(gpusync_timeline_desc) X(gpusync_submission) X(gpusync_pipeline_desc) X(gpusync_warmup_job)                     \
    X(gpusync_warmup_desc) X(gpusync_ticket_info) X(gpusync_stats) X(gpusync_trace_event)
/* clang-format on */

/** Read the sizes of all public structs: a binding that redeclares them compares them with its own, once.
    sizes  Gets the sizes in bytes, in the order of GPUSYNC_STRUCTS. NULL: none.
    count  The capacity of sizes: no more are written.
    Returns  the number of structs.   Threads any   Blocks no   Owns nothing   Since 0.3 */
GPUSYNC_API size_t gpusync_struct_sizes(size_t *GPUSYNC_OPT sizes, size_t count);

#ifdef GPUSYNC__MARKS
#pragma clang assume_nonnull end
#endif
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
#define GPUSYNC__CASE(name, value, text) \
    case GPUSYNC_##name: return text;
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

GPUSYNC_API bool gpusync_failure_is_transient(gpusync_failure failure)
{
    return failure == GPUSYNC_FAILURE_INNOCENT_VICTIM || failure == GPUSYNC_FAILURE_NOT_PERMITTED ||
           failure == GPUSYNC_FAILURE_OUT_OF_MEMORY;
}

GPUSYNC_API size_t gpusync_struct_sizes(size_t *sizes, size_t count)
{
#define GPUSYNC__SIZE(name) sizeof(name),
    static const size_t all[] = {GPUSYNC_STRUCTS(GPUSYNC__SIZE)};
#undef GPUSYNC__SIZE
    for (size_t i = 0; sizes && i < count && i < sizeof all / sizeof all[0]; i++)
        sizes[i] = all[i];
    return sizeof all / sizeof all[0];
}

#if GPUSYNC_OBJC

/* How it works, on one page. Names of functions in brackets. `Interleaving N:` in a comment further down names an
   order of events between threads, and what answers it; tests/test_interleavings*.c force each,
   under its number.

   TWO FLOORS
     The ground floor commits, looks, waits, calls back, keeps failures and destroys. You can stop reading at >>second:
     a program that calls nothing of what follows links nothing of it. The second floor has timelines, submissions,
     Metal 4, the warm-up, the trace and the report. The ground floor calls it through `told` of a node, `done` of a
     callback, `close` and `end` of what goes later, and four tables: gpusync__upper of a device, from its first
     submission on; gpusync__metal4 of a queue, from its first commit on; gpusync__tracing of a device, while it traces;
     gpusync__valued of a timeline.

   WHERE TO LOOK: each of these sections opens with the whole answer.
     what holds a submission back, what lets it go, on which thread     >>held
     what becomes of everything when a queue is destroyed               >>destroy
     where the error of a failed command buffer goes    >>failure       what is different with Metal 4    >>metal4

   OBJECTS, AND WHO OWNS WHAT
     device     the pools (waiters, submissions, callbacks, events), the lists of queues and timelines, and what is
                due. Its memory stays until the last function that it has dispatched has come.
     queue      a ring of entries, one for each ticket in flight; open command buffers; its line of held submissions.
     slot       one for each command buffer that gpusync uses; with Metal 4 for each commit. The slot is the completion
                handler: it is in flight from the commit until the handler has come. Slabs of slots are never freed.
                Rules of the lock over slots and tickets: >>slots.
     submission what it waits for and signals (links), its command buffers. The ring's entry leads to a slot inside the
                submission. A link owns a reference to its timeline.
     graph      all submissions and links, the lines of held work, and what timelines know of their signals: under one
                lock of the device. Its invariants: >>second.
     wait list  of a queue or timeline. Wait entries (sleeping waits), callbacks, and links to tickets are listed by
                ticket or value. The thread that lists a node owns the node; the thread that takes it off tells its
                owner.
     listening  what Metal's blocks of a timeline lead to, which other code signals. Each block has a reference.
     deferred   work that a change leaves to do without a lock: it stands on the stack of the outermost call or handler.

   THE LIFE OF A TICKET
     1. gpusync_command_buffer takes room and a slot: OPEN.
     2. gpusync_commit takes the order lock. In one hold of the queue's lock the slot gets its ticket and turns ARMED.
        Then Metal gets the slot as the completed handler, and commits the buffer [gpusync__commit].
     3. The handler finds the end [gpusync__completed], or a look does: a poll, a wait or a sweep reads the status
        [gpusync__look_at]. Metal 4 has no status.
     4. The first of them to lock the queue after that ends the ticket, in one hold [gpusync__settle; of a handler
        without a failure gpusync__leave_slot]: it records a failure, writes into the ring's entry how the ticket ended,
        moves `completed` past every ticket that has ended in a row [gpusync__end_ticket], and takes what waits for
        that off the wait list [gpusync__take_ended].
     5. Without the lock it unparks waiters, and ends links of submissions [gpusync__tell]. Callbacks run
        on the dispatch queue, in gpusync_dispatch, or in destroy [gpusync__run_one_due].
     6. The handler gives back the room, and frees the slot [gpusync__leave_slot].
     What a lost device or gpusync_queue_destroy_now gives up, and a tracked buffer that is untracked, ends by steps 4
     and 5, too, without a handler or a look [gpusync__abandon]. What waits for a ticket asks only whether it has ended.

   THE LIFE OF A SUBMISSION (its steps in full: gpusync__submission)
     1. gpusync_submit makes one; so does gpusync_commit behind held work. gpusync_encode_wait and _signal make one for
        an open buffer, and its signals are pending at once: a commit goes on with it, a submission joins it to its own.
     2. It enters its queue under the order lock and the graph's [gpusync__enter_submission], and gets its ticket. It is
        held in the queue's line [gpusync__hold], or issued: its command buffers are committed, each as a part
        [gpusync__issue]. The thread that ends what holds it back issues it later [gpusync__issue_line].
     3. When its parts and its waits are over it ends: first its signals do, then its ticket [gpusync__publish].

   LOCKS, in the order in which they are taken. A thread that has one takes none before it, and no
   second one of a kind.
     library  of a warm-up: one task compiles it. A thread that has it takes no other.
     order    of a queue: ticket order is queue order. Commits wait for it; gpusync__issue_held tries it.
     device   its lists
     graph    of a device: submissions, links, lines of held work, what timelines have reached and are to signal
     list     of a queue: all that is known of its tickets, slots in flight, room, failures, and what waits for them.
              Of a timeline: what waits for it on the host.
     submission   of a device: its pools, and callbacks that are due
     global   slabs, selectors, calls in progress, which timelines Metal's blocks lead to
     No message, hook, callback, log or trace function, release, allocation or dispatch call comes under a lock, with
     four exceptions: objc_retain comes under the queue's lock and the graph's, messages and releases of a commit, an
     encoded wait or signal come under the order lock, the listener is made under the device's, and a library is
     compiled under its own. malloc is called under the global one.

   WHAT ALWAYS HOLDS on this floor, at each unlock of the lock that is over it.
     1.  Tickets are in the order in which Metal gets the work: ticket, handler and commit come in one hold of the
         order lock.
     2.  A ticket ends once, in one hold of its queue's lock: first the record of its failure, then its entry in the
         ring, then `completed`.
     3.  `completed` only rises. All tickets up to it have ended, and the work of none of them was LEFT to itself.
     4.  From its commit to its end a ticket leads to its slot, which is in flight with its command buffer.
     5.  A listed node is still open, except: one that a thread is on its way to take off (it took a few, and comes
         again for more); one on TOLD; the release of an object that is kept until destroy [gpusync__is_kept]; a wait
         for a handler that has begun, or that a flag has stopped, until the thread that set it has the lock.
     6.  The thread that takes a node off tells it, before it does anything that may wait.
     7.  A thread sets CLOSING or GIVEN_UP first, and then takes the lock of the wait list. A wait reads the flag under
         that lock before it lists itself. A wait that sleeps inside a queue or timeline stands on one of its lists
         until it leaves.
     8.  The slot of a command buffer leaves ARMED once: to RUNNING by its handler, to ORPHANED by the thread that gives
         it up.
     9.  `outstanding` counts the slots with HAS_ROOM, and a slot loses that once.
     10. A callback is listed, due, running or free. `owed` counts it until it has run.

   READ WITHOUT THE QUEUE'S LOCK, each written under it, except a slot's state; `completed` and
   `committed` with sequential consistency.
     completed       is_done, the waits                every record of a failure up to there was written before
     committed       which tickets there are           the entry leads to the slot before
     an entry's done has one ticket ended              its failure was on record before
     ring            finds an entry                    older rings stay as long as the queue
     outstanding     is there room?                    a guess: the lock decides
     tracked         does a commit have to search?     under the order lock, which track takes
     log             was memory for it made?           it changes once
     last_failed, covered   has a wait to tell of a failure?   before `completed`
     a slot's state  the handler, or a thread that gives it up one compare and swap from ARMED decides

   EACH SIDE WRITES, THEN READS WHAT THE OTHER WROTE. Both sides are sequentially consistent: one of
   the two sees the other.
     a device is lost     set LOST, then read `upper`, look at its lines    set `upper`, line up, then read LOST
                          [gpusync__lose]                                   [gpusync__hold]
     an object goes       set CLOSING, then read `inside`                   count into `inside`, then read CLOSING
                          [gpusync__destroy, gpusync_timeline_destroy]      [gpusync__enter]
     a device goes        swap `inside` from 1 to 0                         raise `inside`, unless it is 0
                          [gpusync__device_close]                           [gpusync__device_enter]
     a sweep begins       clear `sweep_ns`, then look for reasons           list the reason, then read `sweep_ns`
                          [gpusync__sweep]                                  [gpusync__arm_sweep]
     callbacks are due    clear `asked`, then look at them                  append, then set `asked`
                          [gpusync__answer]                                 [gpusync__ask_for_calls] */

#include <errno.h>
#include <inttypes.h>
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
#error "gpusync: arm64e needs signed block pointers, which are untried; build for arm64"
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* --------------------------------------------------------------------------------- >>objc --
   Everything of the Objective-C runtime and of Metal that is used, declared here under private
   names. The asm label is the real symbol: so no SDK header is needed, and none can clash. */

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
extern void *gpusync__find_symbol(void *image, const char *name) GPUSYNC__SYMBOL("dlsym");
extern void *gpusync__global_block[32] GPUSYNC__SYMBOL("_NSConcreteGlobalBlock");
extern void *gpusync__stack_block[32] GPUSYNC__SYMBOL("_NSConcreteStackBlock");

/* Through a variable, because gcc traps on a call of a declared function by another type. */
static void (*gpusync__send)(void) = gpusync__objc_msg_send;

/* objc_msgSend as a function of this result and, after object and selector, these arguments: they
   must be the method's own types, and never variadic. No selector here returns a struct, so
   objc_msgSend serves for all, double included, on arm64 and x86-64. */
#define GPUSYNC__AS(result) ((result(*)(void *, void *))gpusync__send)
#define GPUSYNC__AS1(result, argument) ((result(*)(void *, void *, argument))gpusync__send)

static void *gpusync__send_id(void *self, void *sel)
{
    return GPUSYNC__AS(void *)(self, sel);
}
static unsigned long gpusync__send_ulong(void *self, void *sel)
{
    return GPUSYNC__AS(unsigned long)(self, sel);
}
static void gpusync__send_void(void *self, void *sel)
{
    GPUSYNC__AS(void)(self, sel);
}
static void gpusync__send_void_id(void *self, void *sel, void *other)
{
    GPUSYNC__AS1(void, void *)(self, sel, other);
}

/* Every selector that is sent: its field in gpusync__sel, and its name in Metal or Foundation. By
   the alphabet. */
/* clang-format off */
#define GPUSYNC__SELECTORS(X)                                                                                         \
    X(addCompletedHandler, "addCompletedHandler:") X(addFeedbackHandler, "addFeedbackHandler:")                       \
    X(addObject, "addObject:") X(arrayWithObjects, "arrayWithObjects:count:") X(code, "code")                         \
    X(commandBuffer, "commandBuffer") X(commandBufferUnretained, "commandBufferWithUnretainedReferences")             \
    X(commandBufferWithDescriptor, "commandBufferWithDescriptor:") X(commandQueue, "commandQueue")                    \
    X(commit, "commit") X(commit4, "commit:count:options:") X(count, "count") X(device, "device") X(domain, "domain") \
    X(encodeSignalEvent, "encodeSignalEvent:value:") X(encodeWaitForEvent, "encodeWaitForEvent:value:")               \
    X(endCommandBuffer, "endCommandBuffer") X(error, "error") X(gpuEndTime, "GPUEndTime")                             \
    X(gpuStartTime, "GPUStartTime") X(label, "label") X(localizedDescription, "localizedDescription")                 \
    X(newCommandQueueWithMax, "newCommandQueueWithMaxCommandBufferCount:")                                            \
    X(newFunctionWithName, "newFunctionWithName:") X(newLibrary, "newLibraryWithSource:options:error:")               \
    X(newObject, "new") X(newPipeline, "newComputePipelineStateWithFunction:error:")                                  \
    X(newQueue4, "newMTL4CommandQueue") X(newQueue4WithDescriptor, "newMTL4CommandQueueWithDescriptor:error:")        \
    X(newSharedEvent, "newSharedEvent") X(notifyListener, "notifyListener:atValue:block:")                            \
    X(objectAtIndex, "objectAtIndex:") X(objectForKey, "objectForKey:") X(registryID, "registryID")                   \
    X(setErrorOptions, "setErrorOptions:") X(setLabel, "setLabel:") X(setSignaledValue, "setSignaledValue:")          \
    X(signaledValue, "signaledValue") X(signalEvent, "signalEvent:value:") X(status, "status")                        \
    X(stringWithUTF8String, "stringWithUTF8String:") X(supportsFamily, "supportsFamily:") X(userInfo, "userInfo")     \
    X(utf8String, "UTF8String") X(waitForEvent, "waitForEvent:value:") X(waitUntilCompleted, "waitUntilCompleted")
/* clang-format on */

/* Registered when the first device is made, under the global lock; never written again. */
static struct gpusync__selectors {
#define GPUSYNC__FIELD(name, text) void *name;
    GPUSYNC__SELECTORS(GPUSYNC__FIELD)
#undef GPUSYNC__FIELD
} gpusync__sel;

/* MTLCommandBufferStatus, as far as it is asked for. Every number from COMPLETED on is terminal. */
#define GPUSYNC__STATUS_NOT_ENQUEUED 0ul
#define GPUSYNC__STATUS_COMMITTED 2ul
#define GPUSYNC__STATUS_COMPLETED 4ul
#define GPUSYNC__STATUS_ERROR 5ul

#define GPUSYNC__FAMILY_METAL4 5002 /* MTLGPUFamilyMetal4 */

/* RTLD_DEFAULT of <dlfcn.h>, which glibc declares for _GNU_SOURCE alone: every image that is
   loaded. */
#ifdef __APPLE__
#define GPUSYNC__EVERY_IMAGE ((void *)(intptr_t)-2)
#else
#define GPUSYNC__EVERY_IMAGE NULL
#endif

/* +1, or NULL where there is no such class: a message to nil returns nil. */
static void *gpusync__new_object(const char *name)
{
    return gpusync__send_id(gpusync__class_named(name), gpusync__sel.newObject);
}

/* +0, for the caller's pool. */
static void *gpusync__string(const char *text)
{
    void *cls = gpusync__class_named("NSString");
    return GPUSYNC__AS1(void *, const char *)(cls, gpusync__sel.stringWithUTF8String, text);
}

/* Returns the bytes of the UTF-8 character at the start of the text, or 0 if it is none: broken
   off, too long for its number, half of a pair of UTF-16, or above U+10FFFF (RFC 3629). The text
   has an end. */
static size_t gpusync__character(const char *text)
{
    const unsigned char *c = (const unsigned char *)text;
    size_t bytes = c[0] < 0x80 ? 1 : c[0] < 0xC2 ? 0 : c[0] < 0xE0 ? 2 : c[0] < 0xF0 ? 3 : c[0] < 0xF5 ? 4 : 0;

    for (size_t i = 1; i < bytes; i++)
        if ((c[i] & 0xC0) != 0x80)
            return 0;
    if ((c[0] == 0xE0 && c[1] < 0xA0) || (c[0] == 0xED && c[1] > 0x9F) || (c[0] == 0xF0 && c[1] < 0x90) ||
        (c[0] == 0xF4 && c[1] > 0x8F))
        return 0;
    return bytes;
}

/* Copies a text that is valid UTF-8, or NULL: cut to fit at the start of a character. */
static void gpusync__copy_text(char *to, size_t size, const char *text)
{
    size_t length = text ? strlen(text) : 0;
    if (length >= size)
        for (length = size - 1; ((unsigned char)text[length] & 0xC0) == 0x80;)
            length--;
    if (text)
        memcpy(to, text, length);
    to[length] = '\0';
}

/* The same of a text of the program's, with U+FFFD for each byte of what is not valid. */
static void gpusync__copy_label(char *to, size_t size, const char *text)
{
    size_t length = 0;
    while (text && *text) {
        size_t bytes = gpusync__character(text);
        size_t copied = bytes ? bytes : 3;
        if (length + copied >= size)
            break;
        memcpy(to + length, bytes ? text : "\xEF\xBF\xBD", copied);
        length += copied;
        text += bytes ? bytes : 1;
    }
    to[length] = '\0';
}

/* A label of the program's for Metal, +0, for the caller's pool: valid, like that of an error,
   where the program's is not, of which Metal would make none. */
static void *gpusync__label(const char *text)
{
    void *label = gpusync__string(text);
    char valid[64];
    if (label)
        return label;
    gpusync__copy_label(valid, sizeof valid, text);
    return gpusync__string(valid);
}

/* Copy an NSString; string may be nil. Needs a pool. */
static void gpusync__copy_string(char *to, size_t size, void *string)
{
    gpusync__copy_text(to, size, GPUSYNC__AS(const char *)(string, gpusync__sel.utf8String));
}

/* Without a pool, as the one message that waits send again and again: it returns a number. Assumed:
   nothing is autoreleased on the way. If something is, it stays until the thread's own pool ends. */
static unsigned long gpusync__status(void *buffer)
{
    unsigned long status = gpusync__send_ulong(buffer, gpusync__sel.status);
    /* The program reads what the GPU wrote after it sees the end of the work. Metal does not say
       that reading the status orders these reads, so the fence does. */
    if (status >= GPUSYNC__STATUS_COMPLETED)
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return status;
}

/* Release what the program may have made, or nil, in a pool: its dealloc may autorelease. No lock is
   held. */
static void gpusync__release_pooled(void *object)
{
    void *pool = gpusync__pool_push();
    gpusync__release(object);
    gpusync__pool_pop(pool);
}

/* ----------------------------------------------------------------------------- >>platform --
   Atomics, clock, the default hooks. The names say the order. SEQ is sequentially consistent: the
   pairs of >>impl ("each side writes, then reads what the other wrote") need it. RELAXED counts
   statistics, and writes what other threads read as a guess, or read only after a later operation
   of this thread has published it. Each relaxed store says which. */

#define GPUSYNC__LOAD_SEQ(p) __atomic_load_n(p, __ATOMIC_SEQ_CST)
#define GPUSYNC__STORE_SEQ(p, value) __atomic_store_n(p, value, __ATOMIC_SEQ_CST)
#define GPUSYNC__STORE_RELAXED(p, value) __atomic_store_n(p, value, __ATOMIC_RELAXED)
#define GPUSYNC__ADD_SEQ(p, n) __atomic_fetch_add(p, n, __ATOMIC_SEQ_CST)
#define GPUSYNC__SUB_SEQ(p, n) __atomic_fetch_sub(p, n, __ATOMIC_SEQ_CST)
#define GPUSYNC__COUNT_RELAXED(p) ((void)__atomic_fetch_add(p, 1, __ATOMIC_RELAXED))
/* Compare and swap; on failure *expected is what was there. */
#define GPUSYNC__SWAP_SEQ(p, expected, value) \
    __atomic_compare_exchange_n(p, expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)

/* For functions that few calls need: kept out of the code of the others. */
#define GPUSYNC__RARE static __attribute__((noinline, cold))
/* For the steps of a commit, which share one function's code. */
#define GPUSYNC__INLINE static inline __attribute__((always_inline))

/* Compares and swaps; false if another value was there. */
static bool gpusync__swap32(uint32_t *p, uint32_t from, uint32_t to)
{
    return GPUSYNC__SWAP_SEQ(p, &from, to);
}

/* Sets the flag, and returns the flags from before. */
static uint32_t gpusync__set_flag(uint32_t *p, uint32_t flag)
{
    return __atomic_fetch_or(p, flag, __ATOMIC_SEQ_CST);
}

#if defined(__x86_64__) || defined(__i386__)
#define GPUSYNC__PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__) /* `yield` takes next to no time on Apple's cores; Rust's std and WebKit use isb, too */
#define GPUSYNC__PAUSE() __asm__ __volatile__("isb")
#elif defined(__arm__)
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

/* Returns a timeout as a deadline: 0 for no wait at all. A timeout beyond the clock ends just
   before FOREVER, which has no end. */
static uint64_t gpusync__deadline(uint64_t timeout_ns)
{
    if (timeout_ns == 0 || timeout_ns == GPUSYNC_FOREVER)
        return timeout_ns;
    uint64_t now = gpusync_now_ns();
    return timeout_ns < GPUSYNC_FOREVER - 1 - now ? now + timeout_ns : GPUSYNC_FOREVER - 1;
}

/* Returns a deadline as a timeout: 1 if it has passed, so that a wait which had a limit warns. */
static uint64_t gpusync__time_left(uint64_t deadline)
{
    if (deadline == 0 || deadline == GPUSYNC_FOREVER)
        return deadline;
    uint64_t now = gpusync_now_ns();
    return now < deadline ? deadline - now : 1;
}

/* Apple's os_unfair_lock. A waiting thread lends the owner its priority, which is why Rust's
   standard library prefers this lock to pthread's. Calls are in brackets, so that a macro can
   replace them. */
typedef struct gpusync__mutex {
    uint32_t word; /* 0 while no thread has it */
} gpusync__mutex;
extern void(gpusync__lock)(gpusync__mutex *mutex) GPUSYNC__SYMBOL("os_unfair_lock_lock");
extern bool(gpusync__try_lock)(gpusync__mutex *mutex) GPUSYNC__SYMBOL("os_unfair_lock_trylock");
extern void(gpusync__unlock)(gpusync__mutex *mutex) GPUSYNC__SYMBOL("os_unfair_lock_unlock");
/* A queue's own lock, over all that is known of its tickets. */
#define GPUSYNC__LOCK(queue) gpusync__lock(&(queue)->waits.lock)
#define GPUSYNC__UNLOCK(queue) gpusync__unlock(&(queue)->waits.lock)
/* A timeline's: what waits for it on the host. */
#define GPUSYNC__LOCK_TIMELINE(timeline) gpusync__lock(&(timeline)->waits.lock)
#define GPUSYNC__UNLOCK_TIMELINE(timeline) gpusync__unlock(&(timeline)->waits.lock)
/* The process's. */
#define GPUSYNC__LOCK_GLOBAL() gpusync__lock(&gpusync__global.lock)
#define GPUSYNC__UNLOCK_GLOBAL() gpusync__unlock(&gpusync__global.lock)

/* Apple's libdispatch, as far as it is used here: serial queues of functions. */
extern void *gpusync__dispatch_queue_create(const char *label, void *attr) GPUSYNC__SYMBOL("dispatch_queue_create");
extern void *gpusync__dispatch_attr_with_qos(void *attr, unsigned qos, int relative_priority)
    GPUSYNC__SYMBOL("dispatch_queue_attr_make_with_qos_class");
#define GPUSYNC__QOS_USER_INITIATED 0x19u /* QOS_CLASS_USER_INITIATED */
extern void gpusync__dispatch_async(void *queue, void *context, void (*fn)(void *)) GPUSYNC__SYMBOL("dispatch_async_f");
extern uint64_t gpusync__dispatch_time(uint64_t when, int64_t delta_ns) GPUSYNC__SYMBOL("dispatch_time");
extern void gpusync__dispatch_after(uint64_t when, void *queue, void *context, void (*fn)(void *))
    GPUSYNC__SYMBOL("dispatch_after_f");
extern void gpusync__dispatch_retain(void *queue) GPUSYNC__SYMBOL("dispatch_retain");
extern void gpusync__dispatch_release(void *queue) GPUSYNC__SYMBOL("dispatch_release");

/* A thread that sleeps in a wait. The device keeps waiters on a free list until it goes. */
typedef struct gpusync__waiter {
    gpusync_waiter open;   /* first: what the hooks get */
    pthread_mutex_t mutex; /* of the default hooks: over `permit` */
    pthread_cond_t wake;   /* of the default hooks: there is a permit */
    bool permit;           /* it was unparked, and has not woken up for that yet */
    bool any, failures;    /* wake it for any of its entries, not only for the last; for one that has failed, too */
    uint32_t entries;      /* how many of its wait entries are listed. Counted down last, when one is taken off */
    uint64_t since_ns;     /* when the sleep began; for a report */
    struct gpusync__waiter *next; /* on the free list */
} gpusync__waiter;

/* A deadline is one of gpusync_now_ns, so the condition variable needs its clock. */
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

/* Waits for the condition. Returns 0, or ETIMEDOUT once the deadline has passed. */
static int gpusync__cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex, uint64_t deadline_ns)
{
    struct timespec at;
    uint64_t ns = deadline_ns;
    if (deadline_ns == GPUSYNC_FOREVER)
        return pthread_cond_wait(cond, mutex);
#ifdef __APPLE__
    ns = gpusync_now_ns();
    if (ns >= deadline_ns)
        return ETIMEDOUT;
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

/* Parks until there is a permit, and takes it: an unpark that came first ends the park at once. */
static void gpusync__default_park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    gpusync__waiter *w = (gpusync__waiter *)(void *)waiter;
    (void)user;

    pthread_mutex_lock(&w->mutex);
    while (!w->permit && gpusync__cond_wait(&w->wake, &w->mutex, deadline_ns) != ETIMEDOUT) {}
    w->permit = false;
    pthread_mutex_unlock(&w->mutex);
}

/* Interleaving 8: unpark comes before park. The permit stays. */
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

/* ------------------------------------------------------------------------------ >>objects --
   The structures. Slots are never freed, because Metal may still touch them when their work is
   over. A late touch finds a state that leaves nothing to do. */

/* What Metal reads of a block, by the Clang Block ABI. */
typedef struct gpusync__block_descriptor {
    uintptr_t reserved, size;       /* 0; bytes of the block */
    const char *signature, *layout; /* the arguments, in Objective-C's encoding of types; NULL */
} gpusync__block_descriptor;

typedef struct gpusync__block {
    void *isa;                                   /* where it lives: _NSConcreteGlobalBlock, or ...StackBlock */
    int32_t flags, reserved;                     /* GPUSYNC__BLOCK_...; 0 */
    void (*invoke)(void *block, void *buffer);   /* the handler */
    const gpusync__block_descriptor *descriptor; /* the same for all blocks of a kind */
} gpusync__block;

#define GPUSYNC__BLOCK_IS_GLOBAL (1 << 28)
#define GPUSYNC__BLOCK_HAS_SIGNATURE (1 << 30)

/* The life of a slot, which serves one command buffer at a time. The queue's lock is over all fields,
   except `state`, and those that are written before Metal gets the slot, which the handler reads.

     1. FREE     on a free list, of a queue or of all.
     2. OPEN     its command buffer is not committed. The slot is in the list of open buffers, or,
                 once a commit or a submission has taken it from there, in flight.
     3. ARMED    the slot has its ticket (a part has that of its submission). After that Metal gets
                 the slot as the completion handler, and gpusync or the program commits the buffer.
     4. RUNNING  the handler has come (gpusync__completed). It uses the queue, and destroy waits.
     5. ORPHANED in place of 4: the buffer was given up, or the queue was destroyed before the
                 handler came (gpusync__give_up). The slot leaves its queue. Its handler touches
                 nothing but the slot, under the global lock.
     6. FREE     the handler has left (gpusync__leave_slot, gpusync__orphan_leave).

   From step 3 on only the handler swaps ARMED for RUNNING, and only a thread that gives the slot up
   swaps ARMED for ORPHANED. One of the two finds the other's value, and leaves the queue, or the
   slot, to the other.

   A submission has a slot of its own, without a buffer, and the ring leads to it: OPEN while the
   submission enters or is held, ARMED from its issue on. That slot is not in flight. The handler
   ignores the object that Metal passes: the slot knows its buffer. */
enum { GPUSYNC__FREE, GPUSYNC__OPEN, GPUSYNC__ARMED, GPUSYNC__RUNNING, GPUSYNC__ORPHANED };
/* The kind of a slot. WORK: a commit by gpusync, or an open buffer. TRACKED: gpusync_track.
   PART: a command buffer of a submission. SUBMISSION: the submission's own slot. All except PART
   have a ticket of their own. */
enum { GPUSYNC__WORK, GPUSYNC__TRACKED, GPUSYNC__PART, GPUSYNC__SUBMISSION };
/* The traits of a slot. HAS_ROOM: its command buffer counts in `outstanding`. ENDED: a thread has
   found the end, and ends the ticket. IS_METAL4: a commit to a Metal 4 queue, whose handler gets the
   feedback, which alone knows how the work ended, and of which Metal retains nothing. IS_DELAYED: a
   submission with a wait that the GPU does. WAS_REFUSED: an open buffer whose commit was refused
   because of a failure that sticks. KEEPS_EVENTS: the submission may be gone before the handler
   comes, and the slot has its events. */
/* clang-format off */
enum { GPUSYNC__HAS_ROOM = 1, GPUSYNC__ENDED = 4, GPUSYNC__IS_METAL4 = 16,
       GPUSYNC__IS_DELAYED = 32, GPUSYNC__WAS_REFUSED = 64, GPUSYNC__KEEPS_EVENTS = 2 };
/* clang-format on */

typedef struct gpusync__slot {
    gpusync__block block;            /* first: the handler gets a pointer to it */
    uint8_t kind, traits, state;     /* GPUSYNC__WORK and the others; GPUSYNC__HAS_ROOM and the others; see above */
    void *buffer;                    /* the command buffer, +1; of a Metal 4 commit of several an NSArray of them */
    gpusync_queue *queue;            /* of a slot that is not FREE or ORPHANED */
    uint64_t ticket, since_ns;       /* none while OPEN; when it got that, or was issued; of PART: the first alone */
    struct gpusync__slot *next;      /* on a free list, or among the open buffers */
    struct gpusync__slot *flight[2]; /* in flight: [0]: the one before, [1]: the one behind */
    /* Of PART and SUBMISSION; of an OPEN slot: what is encoded into the buffer, or NULL. */
    struct gpusync__submission *submission;
    struct gpusync__slot **back; /* the ring's entry that led here, or the submission's part; NULL: there is none */
    union {
        uint64_t ended_ns; /* in flight: when a sweep saw the end, and no handler; or 0 */
        void *events;      /* with KEEPS_EVENTS: an NSArray, +1, of what the device may still use */
    } late;
    /* On a queue with sticky_failure: the ticket of a failure that was cleared while this was in
       flight behind it, or 0. Set by gpusync_queue_clear_failure, cleared with the slot. Missing:
       work that ran on what failed ends well. */
    uint64_t behind;
} gpusync__slot;
typedef char gpusync__slot_fills_one_cache_line[sizeof(gpusync__slot) == 128 ? 1 : -1]; /* of Apple silicon */

/* The memory of slots: from malloc, on one list, never freed. */
#define GPUSYNC__SLAB_SLOTS 63
typedef struct gpusync__slab {
    struct gpusync__slab *next; /* the one that was made before */
    unsigned char pad[120];     /* the slots begin cache lines */
    gpusync__slot slots[GPUSYNC__SLAB_SLOTS];
} gpusync__slab;

/* What a thread looks at: the work of a slot, by the place that leads to it while it serves that
   work. The buffer stays meanwhile, and the slot may serve other work when the look has ended. */
typedef struct gpusync__view {
    gpusync__slot *slot, **at;     /* the place is `slot->back`, or of a submission NULL */
    void *buffer;                  /* +1; of a submission NULL */
    struct gpusync__submission *s; /* with a reference, of the ticket of one; else NULL */
    uint64_t ticket, since_ns;
    uint8_t kind;
} gpusync__view;

struct gpusync__catch;
struct gpusync__deferred;

/* A node of a list that is sorted by a number. Of several nodes with one number the first that was
   added comes first. What a program lists and takes has rising numbers as a rule, at the ends of
   the list; a search elsewhere costs time in proportion to the list. */
typedef struct gpusync__node {
    uint64_t number;                 /* what the list is sorted by */
    struct gpusync__node *beside[2]; /* [0]: the one before, [1]: the one behind */
    bool linked;                     /* it is on a list */
    /* Called under the wait list's lock when the number has been reached, after the node was taken
       off its list: gpusync__callback_told for a callback, gpusync__link_told for a link, NULL for
       a sleeping wait. error: how the ticket or the timeline failed, or that it was destroyed or
       lost; NULL: it ended well, was reached, or its end does not matter. */
    void (*told)(struct gpusync__node *node, const gpusync_error *error, struct gpusync__catch *caught,
                 struct gpusync__deferred *deferred);
} gpusync__node;

typedef struct gpusync__list {
    gpusync__node *end[2]; /* the first and the last; NULL: it is empty */
} gpusync__list;

/* The kind of a goal. ONE: a ticket ends. ALL: every ticket up to one ends. ROOM: fewer command
   buffers take room. VALUE: a timeline reaches a value. */
enum { GPUSYNC__ONE, GPUSYNC__ALL, GPUSYNC__ROOM, GPUSYNC__VALUE };

/* What a wait is for: one ticket, value or room. */
typedef struct gpusync__goal {
    gpusync_queue *queue;       /* of the first three, else NULL */
    gpusync_timeline *timeline; /* of VALUE, else NULL */
    uint32_t kind;              /* GPUSYNC__ONE and the others */
    uint32_t stops;             /* which of the flags of the queue or timeline give the goal up */
    bool handlers;              /* ONE, ALL: its handlers have to begin, too */
    uint64_t ticket;            /* ONE: this. ALL: up to this. VALUE: the value. ROOM: fewer buffers than this */
    uint64_t covered;           /* ALL: what earlier queue-wide waits have told of */
} gpusync__goal;

/* A waiter's goal, on the wait list of its queue or timeline. */
typedef struct gpusync__wait_entry {
    gpusync__node node;      /* first; its place on the wait list */
    gpusync__goal goal;      /* what is waited for */
    gpusync__waiter *waiter; /* that sleeps; it may have other wait entries */
    int list;                /* the list of the wait list on which it stands */
    bool over;               /* its goal is; of many: what it was about may be gone */
    uint64_t queue_number;   /* of gpusync_device_wait: tells whether its queue is gone */
} gpusync__wait_entry;

/* The lists of a wait list. WAITS: by the ticket or value whose end, or handler, they wait for.
   ROOMS: waits for room, by ~ the number of command buffers, so that the one that needs the least
   room comes first. TOLD: of waits for many what is over, while the waiter sleeps for the rest: the
   waiter is inside the queue or timeline still, and a destroy finds it here. */
enum { GPUSYNC__WAITS, GPUSYNC__ROOMS, GPUSYNC__TOLD, GPUSYNC__LISTS };

/* The waits and callbacks of a queue or timeline, of a queue also links to its tickets; and the
   lock of that queue or timeline. No message, hook, release or allocation comes under the lock. */
typedef struct gpusync__wait_list {
    gpusync__mutex lock;                 /* over the lists, what is on them, and what they are about */
    gpusync__list lists[GPUSYNC__LISTS]; /* each sorted by its numbers */
} gpusync__wait_list;

/* A callback in progress, known by its thread: a fiber could carry a thread-local flag to another
   thread. */
typedef struct gpusync__call {
    pthread_t thread;           /* that runs it */
    struct gpusync__call *next; /* of all calls in progress */
} gpusync__call;

struct gpusync__due;

/* What a queue or timeline owes: it does not go before that is done. */
typedef struct gpusync__owed {
    uint32_t count;                      /* submissions and callbacks that are not over */
    struct gpusync__due *due, *last_due; /* those that are due, by `along`. Under the device's submission lock */
} gpusync__owed;

/* A callback, or a release, that is due. */
typedef struct gpusync__due {
    struct gpusync__due *previous, *next; /* among those of the device */
    struct gpusync__due *along;           /* the next of `owed` */
    gpusync__owed *owed;                  /* of its queue or timeline, or NULL */
    gpusync_done_fn fn;                   /* the program's; NULL: an object is to be released */
    void *user;                           /* for that, or the object */
    const gpusync_error *error;           /* what the callback gets; NULL: all went well */
    /* Called after the callback of a submission (gpusync__submission_called), or of an object that
       was destroyed (gpusync__going_called). NULL: a registered one. */
    void (*done)(struct gpusync__due *due);
} gpusync__due;

enum { GPUSYNC__POOL_CALLBACKS, GPUSYNC__POOL_SUBMISSIONS, GPUSYNC__POOL_LINKS, GPUSYNC__POOLS };

/* Submissions, links or callbacks that nothing uses. Under the submission lock. */
typedef struct gpusync__pool {
    void *free;     /* a list: the memory of each begins with a pointer to the next */
    uint32_t count; /* how many */
    size_t size;    /* of each, in bytes */
} gpusync__pool;

/* An object that is let go by gpusync_queue_destroy_later and the like. */
typedef struct gpusync__going {
    gpusync__due due;              /* of gpusync__call_destroyed */
    gpusync_device *device;        /* whose dispatch queue takes the steps; NULL: a call that blocks takes them */
    void (*destroyed)(void *user); /* the program's; or NULL */
    void *user;                    /* what that gets */
    void (*close)(struct gpusync__going *going); /* takes all steps but the last, which frees the object: `end` */
    void (*end)(struct gpusync__going *going);
} gpusync__going;

/* A callback, or a release, for a ticket or a value: gpusync_on_done, gpusync_release_after. */
typedef struct gpusync__callback {
    gpusync__due due;    /* first; its place among what is due, later, or in the pool */
    gpusync__node node;  /* its place on the wait list, by the ticket or the value */
    gpusync__goal goal;  /* that ticket, or that value */
    gpusync_error error; /* for `due` */
} gpusync__callback;

/* Of the second floor: a submission, and its links to what it waits for and signals. */
typedef struct gpusync__submission gpusync__submission;
typedef struct gpusync__link gpusync__link;

/* Links in the order in which they were added, by `next`. */
typedef struct gpusync__links {
    gpusync__link *first, **end;
} gpusync__links;

/* The lines of a queue. ORDERED: only the first one may be issued. LOOSE: UNORDERED ones. READY: of
   those the ones that nothing holds. */
enum { GPUSYNC__ORDERED, GPUSYNC__LOOSE, GPUSYNC__READY, GPUSYNC__LINES };

/* Work that a thread does after its locks, because of something that it found or changed. */
typedef struct gpusync__deferred {
    gpusync__submission *ended, *last_ended; /* to be published, in this order */
    gpusync__submission *issued;             /* to be announced */
    gpusync_queue *to_issue;                 /* queues with held work that can be issued; the thread has entered each */
    bool busy, calls, sweep;                 /* there is something on it; a callback is due; sweeps have a new reason */
    uint64_t held_ns;                        /* when this call held its submission back */
} gpusync__deferred;

/* clang-format off */
#define GPUSYNC__NOTHING {NULL, NULL, NULL, NULL, false, false, false, 0}
/* clang-format on */

/* history: a bit for each of the last 16 spins, the last in bit 0: it met the end. Kept as the
   difference from GPUSYNC__FRESH, so that 0 is the history before the first. pause: how many spins
   were left out after the last one in vain. skips: how many of them are still to be left out.
   Threads write all without a lock: a lost update costs only time. */
typedef struct gpusync__backoff {
    uint32_t history, pause, skips;
} gpusync__backoff;

#define GPUSYNC__EVENT_POOL 32
#define GPUSYNC__TAKEN 16 /* tickets whose times a queue remembers */

/* Bytes between fields of different threads, so that no two of them share a cache line of Apple
   silicon. */
#define GPUSYNC__APART 128

struct gpusync_device {
    /* -- read by every call, hardly ever written */
    void *metal;                         /* the MTLDevice, +1 */
    gpusync_hooks hooks;                 /* the program's, or the default ones */
    gpusync_allocator allocator;         /* for all that does not outlive the device */
    gpusync_spin own_spin, *spin;        /* the program's; that, or NULL. Of its queues, where they have no other */
    uint32_t lost;                       /* for good: GPUSYNC__KNOWN and the other */
    uint64_t lost_ns;                    /* 0; the time of gpusync__lose; then that of the sweep's first look */
    gpusync_log_fn log;                  /* or NULL */
    void *callback_queue, *sweep_queue;  /* serial dispatch queues. callback_queue: not of MANUAL */
    void *destroy_queue;                 /* one on which objects go (gpusync__go) */
    void *issue_queue;                   /* one for held work (gpusync__issue_held); NULL: no submission was made yet */
    gpusync_callback_mode callback_mode; /* runs callbacks */
    gpusync_notify_fn notify;            /* of MANUAL: something is due. Or NULL */
    const struct gpusync__upper *upper;  /* NULL: no submission was made yet */
    const struct gpusync__tracing *trace;      /* NULL: the program does not trace */
    gpusync_trace_fn trace_fn;                 /* where it does */
    void *log_user, *notify_user, *trace_user; /* what those three get */
    unsigned char pad[GPUSYNC__APART];         /* waits for many points write the fields behind */
    /* -- of waits, without a lock */
    uint32_t inside;          /* 1, and calls that destroy must let out first; 0: it is gone */
    gpusync__backoff backoff; /* of waits for many points */
    gpusync_stats stats;      /* of waits for timelines, and for many points */
    /* refs: the device, and functions that were dispatched and have not ended. asked: gpusync__answer is on
       its way, and has not looked at what is due. timers: sweeps that are on their way. */
    uint32_t refs, asked, timers;
    uint64_t sweep_ns, pace_ns; /* when the next sweep comes, at the latest, or 0; from one sweep to the next */
    uint32_t looked; /* how often the sweep has looked on a lost device; at 2 it has given up what had not ended */
    gpusync__waiter lingers; /* what the thread of destroy_queue waits with */
    unsigned char pad2[GPUSYNC__APART];
    /* -- under the device's lock */
    gpusync__mutex lock;
    gpusync__list queues, timelines;      /* by their numbers */
    uint32_t objects;                     /* queues and timelines that are not freed, also those that are going */
    uint64_t queue_count, timeline_count; /* ever made: the last number */
    gpusync_stats gone;                   /* of destroyed queues */
    void *listener;                       /* MTLSharedEventListener, made when first needed */
    void *events[GPUSYNC__EVENT_POOL];    /* that nothing refers to any more */
    uint32_t event_count;                 /* how many of them there are */
    bool goes;                            /* gpusync_device_destroy_later was called */
    gpusync__going going;                 /* what that call was given */
    unsigned char pad3[GPUSYNC__APART];
    /* -- over submissions, links, lines, and what timelines know of their signals: see >>second */
    gpusync__mutex graph;
    uint64_t asks; /* submissions that asked to enter */
    unsigned char pad4[GPUSYNC__APART];
    /* -- under the submission lock */
    gpusync__mutex submission_lock;
    gpusync__waiter *free_waiters; /* a list */
    gpusync__pool pools[GPUSYNC__POOLS];
    gpusync__due *due, *last_due; /* in the order in which they became due */
    uint32_t due_count;           /* of that list. Also read without the lock, to see whether one is due */
    bool calling, turned_away;    /* a callback runs, the only one; a thread that was to run more has gone since */
};

/* The entry of a ticket in the ring, while the ticket is in flight and for a while after. `done`
   says which ticket has ended here: a number, so that an entry which serves a later ticket cannot
   be mistaken. The entry is written under the queue's lock; only `done` is read without it. */
typedef struct gpusync__entry {
    gpusync__slot *slot;       /* NULL: it is free, or was given up */
    uint64_t done;             /* ticket * 4, + GPUSYNC__WELL or the others; of an earlier ticket until then */
    double gpu_start, gpu_end; /* of the ticket in `done`, in seconds; 0: unknown */
} gpusync__entry;

/* How a ticket ended. LEFT: the device was lost, or gpusync_queue_destroy_now came, and what became
   of the work is not known; `completed` does not pass such a ticket. */
enum { GPUSYNC__WELL, GPUSYNC__BADLY, GPUSYNC__LEFT };

/* How a ticket, or a part of a submission, ended. */
typedef struct gpusync__outcome {
    double gpu_start, gpu_end;  /* in seconds; 0: unknown */
    const gpusync_error *error; /* how it failed; NULL: it ended well */
    bool left;                  /* it is left to itself: LEFT */
} gpusync__outcome;

/* Ticket t has the entry entries[t & mask]. A ring that became too small keeps its tickets, and
   later tickets get their place in the next ring, so that the place of a ticket never changes. */
typedef struct gpusync__ring {
    struct gpusync__ring *older; /* the one before; NULL: it was the first */
    uint64_t first, mask;        /* its first ticket; the number of its entries, a power of two, less one */
    gpusync__entry *entries;     /* behind this structure */
} gpusync__ring;

#define GPUSYNC__RING_SIZE 256

/* A record of the failure log. */
typedef struct gpusync__failed {
    gpusync__node node; /* first; its place in `failures`, by the error's ticket */
    gpusync_error error;
    bool given_up; /* its own queue gave the work up, because the program asked for that */
} gpusync__failed;

/* The second floor's functions for a Metal 4 queue, from its first commit on. status: reads a
   feedback (gpusync__feedback_status). leave: a step of destroy (gpusync__leave_behind). */
typedef struct gpusync__metal4 {
    unsigned long (*status)(void *feedback);
    void (*leave)(gpusync_queue *q);
} gpusync__metal4;

/* Flags of a device that is lost. KNOWN: a failure said so. REMOVED: the failure was that there is
   no GPU any more. */
enum { GPUSYNC__KNOWN = 1, GPUSYNC__REMOVED = 2 };
/* Flags of queues and timelines. LOST: the device is lost, and the queue takes no new work.
   GIVEN_UP: what had not ended by then never will (gpusync__give_up_queue). CLOSING: destroy has
   begun. FAILED: a failure is on record. TRACED: the trace gets every wait, even for an idle queue.
   STUCK: a failure sticks, and commits are refused. */
/* clang-format off */
enum { GPUSYNC__LOST = 1, GPUSYNC__CLOSING = 2, GPUSYNC__FAILED = 4, GPUSYNC__TRACED = 8, GPUSYNC__STUCK = 16,
       GPUSYNC__GIVEN_UP = 32 };
/* clang-format on */

struct gpusync_queue {
    gpusync__head head;     /* first: read by the inline calls */
    unsigned char pad[120]; /* the commits write to the line before, every call reads the next */
    /* -- hardly ever written */
    gpusync_device *device; /* which outlives it */
    void *metal;            /* the MTLCommandQueue, or MTL4CommandQueue, +1 */
    /* flags: GPUSYNC__LOST and the others. log_most: records in the log, when it is made.
       limit: uncompleted command buffers that Metal allows. */
    uint32_t flags, limit, log_most;
    bool sticky, traced;          /* failures stick; commits and ends are told */
    bool metal4;                  /* it is a Metal 4 queue */
    void *options_class;          /* of that: MTL4CommitOptions */
    const gpusync__metal4 *four;  /* of that, once it has committed; else NULL */
    gpusync__ring *ring;          /* of the next ticket; the older ones behind it */
    void *buffer_class;           /* of the command buffers seen here: known to be what this queue takes */
    gpusync_spin own_spin, *spin; /* the program's; that, the device's, or NULL. Of waits that ask for no other */
    gpusync__node place;          /* on the device's list; has the number */
    char label[64];               /* the program's, or that of the Metal queue; or empty */
    unsigned char pad2[GPUSYNC__APART];
    /* -- changed without a lock */
    uint32_t inside;          /* calls that destroy must let out first */
    gpusync_stats stats;      /* but for commits and completions: they are counted by their tickets */
    gpusync__backoff backoff; /* of waits for its tickets, or for room */
    gpusync__owed owed;       /* its submissions and callbacks */
    gpusync__going going;     /* its destroy. The thread that destroys alone uses this and the next one */
    bool drains;              /* destroy waits for the work in flight */
    /* -- under the graph's lock */
    gpusync__list lines[GPUSYNC__LINES]; /* held work, in the order in which it came */
    /* These three are also read without the lock. */
    uint32_t lined;         /* submissions in the lines */
    uint32_t lined_ordered; /* of these hold up what comes later */
    uint32_t held_buffers;  /* parts of all */
    /* A thread, or a dispatched function, will look at the lines: see G8. Set by
       gpusync__want_issue, cleared by gpusync__next_to_go when no more may go. Wrong: that work is
       held for good. */
    bool issuing;
    gpusync_queue *next_to_issue; /* among a thread's deferred work */
    /* -- of Metal 4 */
    gpusync__list kept;                 /* see gpusync__keep_links */
    uint64_t sent;                      /* submissions that the queue got. Under the order lock */
    unsigned char pad3[GPUSYNC__APART]; /* handlers write the fields before, commits those behind */
    /* -- under the order lock: ticket order is queue order. order: that lock. Open buffers are
       those made, or encoded into, and not committed. */
    gpusync__mutex order;
    gpusync__slot *open; /* a list, by `next`: the newest first */
    unsigned char pad4[GPUSYNC__APART];
    /* -- under the queue's lock, which is that of `waits`. ends: a slot before the first in flight, and
       behind the last. outstanding: command buffers that are made or in flight, against the limit;
       read without the lock. tracked: TRACKED slots that have not ended. refused: a call got no room,
       and the program may ask again. */
    gpusync__wait_list waits;
    gpusync__slot ends, *free_slots; /* free_slots: a list, by `next` */
    uint32_t outstanding, tracked;
    /* Handlers that are through with the lock, and not with the queue. Changed without the lock,
       beside it because the handler has the line then. */
    uint32_t leaving;
    bool refused;
    /* For the spin. took_ns: of ticket t at t % GPUSYNC__TAKEN; 0: unknown. ended_ns: the last end.
       lag_ns: from the GPU's end to the waiter, of the last one that slept. */
    uint64_t took_ns[GPUSYNC__TAKEN], ended_ns, lag_ns;
    /* last_failure: the log's one record while there is no other.
       log: failure number n at n % log_size. Made at the first failure; until then &last_failure.
       log_begin: number of the first failure that the log had a place for. log_count: failures so
       far.
       logged: how many of them the log hook has seen. logging: a thread is calling it.
       covered: waits for everything have told of what failed up to this ticket.
       dropped, dropped_failed: largest ticket whose record was dropped; of those that ran.
       last_failed: largest ticket that has a record. Read without the lock, as `covered`, by
       gpusync__went_well. */
    gpusync__failed *log, last_failure;
    gpusync__list failures; /* what the log has, by ticket */
    uint64_t log_begin, log_count, logged, covered, dropped, dropped_failed, last_failed;
    uint32_t log_size;
    bool logging;
    /* Where failures stick: the flag STUCK says that one does. stuck: that one, of the lowest ticket, or
       the one that stuck last. Its ticket 0: none yet. cleared: the failures of tickets up to this one
       stick no more. */
    gpusync_error stuck;
    uint64_t cleared;
};

/* `value` when the timeline has failed: above every other, so that one load tells. */
#define GPUSYNC__FAILED_VALUE (~(uint64_t)0)

struct gpusync_timeline {
    /* -- what waits and callbacks use, on either floor */
    const struct gpusync__valued *calls; /* what they ask of the second floor */
    uint64_t value;         /* reached, as far as is known, or GPUSYNC__FAILED_VALUE. Read without the lock */
    gpusync_device *device; /* which outlives it */
    uint32_t flags;         /* GPUSYNC__CLOSING and the others */
    char label[64];         /* the program's, or empty */
    unsigned char pad[GPUSYNC__APART]; /* slow waits write the fields behind, and not those before */
    uint32_t inside;                   /* calls that destroy must let out first */
    gpusync__backoff backoff;          /* of waits for its values */
    gpusync__owed owed;                /* its callbacks */
    gpusync__going going;              /* its destroy */
    gpusync__node place;               /* on the device's list; has the number */
    unsigned char pad2[GPUSYNC__APART];
    gpusync__wait_list waits; /* with its lock */
    /* -- the second floor's */
    uint32_t refs; /* the program, and every link */
    void *event;   /* the MTLSharedEvent, +1 */
    uint64_t base; /* event value = value + base */
    bool imported; /* the program gave the event, and a failure is not written to it */
    /* Other code may know the event, or the GPU still signal it. Set where the event is imported, by
       gpusync_timeline_metal, gpusync__disown and gpusync__leave_behind, never cleared. Missing: the
       event serves another timeline, and gets values that were meant for this one. */
    bool handed_out;
    struct gpusync__listening *listening; /* what Metal's blocks lead to; NULL: no other code signals it */
    /* -- under the graph's lock. See G6 to G10 */
    gpusync__list waiting;       /* waits of submissions, by value */
    gpusync__list signals;       /* pending signals of work that is not issued, by value */
    gpusync__list issued;        /* those of work that is */
    gpusync__link *stays;        /* signals that stay behind lower ones, by `also` */
    const gpusync_queue *issuer; /* the one whose GPU makes all issued signals; NULL: there are several, or the host */
    uint32_t signal_count;       /* pending signals; read without the lock */
    uint32_t passed;             /* of these were issued behind a higher value */
    bool failed;                 /* for good, with `error` */
    bool hides;                  /* for good: work has failed that waits for a value, see gpusync__end_hidden */
    uint64_t reached;            /* up to here every value is */
    uint64_t kept;               /* the highest value that was signalled, though a lower signal may be pending */
    uint64_t hosted;             /* of these the highest of work whose signal the host makes: see gpusync__level */
    uint64_t on_event;           /* a value that the event is known to have reached */
    uint64_t largest;            /* of the signals that were issued */
    /* What the submission that asks to enter has shown of itself: see gpusync__check_rise. Read by
       that function and by gpusync__check_signal alone. */
    uint64_t asks;       /* the number of its question; another one: the rest is of no meaning */
    uint64_t seen;       /* the highest value of its waits and signals */
    uint64_t seen_first; /* the value of its first signal, or 0 */
    uint64_t seen_needs; /* the highest value that it waits for before that */
    gpusync_error error; /* how it failed; does not change after */
};

/* When a goal is expected to be met (0: not known), and until when to spin for it (0: no spin pays). */
typedef struct gpusync__forecast {
    uint64_t end, until;
} gpusync__forecast;

/* The second floor hooks in by gpusync__metal4 above, by the three tables below, by `told` of a
   node, by `done` of a due callback, and by `close` and `end` of what goes later. The ground floor
   does not call the second floor in any other way, so that a program that commits and waits links
   none of it. */

/* The second floor's functions for submissions. A device has this table from its first submission
   on for good (gpusync__hook_in), so that every submission finds it. Names of the functions in
   brackets. */
typedef struct gpusync__upper {
    /* work: does deferred work [gpusync__run]. over: ends links of a ticket; error NULL: well
       [gpusync__links_over]. keep: takes a reference to the submission that the ring leads to,
       under the queue's lock. unkeep: drops it, without a lock. want: has held work looked at,
       because a flag of the queue was set [gpusync__want]. commit: commits behind held work, or a
       buffer with waits or signals [gpusync__submit_plain]. discard: drops the submission of an
       open buffer; error NULL: at the program's call [gpusync__discard_submission]. ended: ends a
       part [gpusync__part_ended]. look: looks at a submission's parts; true if the sweep has to
       come again for it [gpusync__look_submission]. */
    void (*work)(gpusync_device *dev, gpusync__deferred *deferred);
    void (*over)(gpusync__link *links, const gpusync_error *error, gpusync__deferred *deferred);
    void (*keep)(struct gpusync__submission *s);
    void (*unkeep)(struct gpusync__submission *s);
    void (*want)(gpusync_queue *q, gpusync__deferred *deferred);
    gpusync_result (*commit)(gpusync_queue *q, void *const *buffers, size_t count, gpusync_ticket *ticket,
                             uint64_t *held_ns);
    void (*discard)(struct gpusync__submission *s, const gpusync_error *error, gpusync__deferred *deferred);
    void (*ended)(gpusync_queue *q, gpusync__slot *slot, const gpusync__view *view, const gpusync__outcome *outcome,
                  gpusync__deferred *deferred);
    bool (*look)(struct gpusync__submission *s);
    /* Steps of destroy, in this order. give_up: drops held work [gpusync__drop_all_held]. events:
       returns what the GPU may still use of an orphan, as an array (+1)
       [gpusync__events_of]. disown: ends a submission in flight, also of a lost device
       [gpusync__disown]. */
    void (*give_up)(gpusync_queue *q, gpusync_result result, const char *message, gpusync__deferred *deferred);
    void *(*events)(struct gpusync__submission *s);
    void (*disown)(struct gpusync__submission *s, const gpusync_error *reason, gpusync__deferred *deferred);
} gpusync__upper;

/* What a wait, a callback or a sweep asks of a timeline, which the caller is inside of. */
typedef struct gpusync__valued {
    void (*look)(gpusync_timeline *t);                   /* ask Metal whether values have come, and do what follows */
    void (*listen)(gpusync_timeline *t, uint64_t value); /* have Metal tell, where others signal it */
    gpusync_result (*ready)(gpusync_timeline *t); /* before a callback is listed. UNSUPPORTED: Metal could not tell */
    gpusync__forecast (*forecast)(const gpusync__goal *goal); /* when will it come? */
    void (*lose)(gpusync_timeline *t); /* fail it: what a lost device has not ended is given up */
} gpusync__valued;

/* Where a trace is set, each event calls one of these, once. */
typedef struct gpusync__tracing {
    void (*ticket)(const gpusync_queue *q, gpusync_trace_kind kind, uint64_t ticket, const char *label, uint64_t ns);
    void (*end)(const gpusync_queue *q, uint64_t ticket, const char *label, const gpusync__outcome *outcome);
    void (*signal)(const gpusync_timeline *t, uint64_t value);
    void (*callback)(gpusync_device *dev, const gpusync__due *due);
    void (*wait)(gpusync_device *dev, const gpusync__goal *goal, const gpusync_stats *stats, const uint64_t *how,
                 gpusync_result result);
} gpusync__tracing;

/* All the global state there is, besides the selectors. Under its lock, but for what is said to do
   without. */
static struct gpusync__global {
    gpusync__mutex lock;  /* the last in the order of locks */
    bool selectors_ready; /* the first device has been made */
    gpusync__slab *slabs; /* all of them, for checkers of leaks */
    gpusync__slot *free;  /* slots that no queue has */
    gpusync__call *calls; /* callbacks in progress */
    uint32_t call_count;  /* how many; read without the lock */
} gpusync__global = {{0}, false, NULL, NULL, NULL, 0};

/* Whose place on a device's list it is. */
static gpusync_queue *gpusync__queue_at(gpusync__node *place)
{
    return place ? (gpusync_queue *)(void *)((char *)place - offsetof(gpusync_queue, place)) : NULL;
}

static gpusync_timeline *gpusync__timeline_at(gpusync__node *place)
{
    return place ? (gpusync_timeline *)(void *)((char *)place - offsetof(gpusync_timeline, place)) : NULL;
}

/* Under the device's lock. */
#define GPUSYNC__EACH_QUEUE(q, device) \
    for (q = gpusync__queue_at((device)->queues.end[0]); q; q = gpusync__queue_at(q->place.beside[1]))
#define GPUSYNC__EACH_TIMELINE(t, device) \
    for (t = gpusync__timeline_at((device)->timelines.end[0]); t; t = gpusync__timeline_at(t->place.beside[1]))

/* A call that entered before the loss asks once more, under the order lock: work that entered after
   gpusync__give_up_queue would never end. */
static inline bool gpusync__is_lost(const gpusync_queue *q)
{
    return GPUSYNC__LOAD_SEQ(&q->flags) & GPUSYNC__LOST;
}

/* Has the lost device given up what had not ended? */
static inline bool gpusync__is_given_up(const gpusync_queue *q)
{
    return GPUSYNC__LOAD_SEQ(&q->flags) & GPUSYNC__GIVEN_UP;
}

/* The last ticket that was given. */
static uint64_t gpusync__committed(const gpusync_queue *q)
{
    return GPUSYNC__LOAD_SEQ(&q->head.committed);
}

/* Every ticket up to this one has ended, and what failed of them is on record. */
static uint64_t gpusync__ended_to(const gpusync_queue *q)
{
    return GPUSYNC__LOAD_SEQ(&q->head.completed);
}

/* The tickets up to `last` that may not have ended: others may end meanwhile, in any order. */
#define GPUSYNC__EACH_OPEN(ticket, q, last) for (uint64_t ticket = gpusync__ended_to(q) + 1; ticket <= last; ticket++)

/* How many command buffers take room. Without the queue's lock it is a guess. */
static uint32_t gpusync__outstanding(const gpusync_queue *q)
{
    return GPUSYNC__LOAD_SEQ(&q->outstanding);
}

/* So many more, or fewer. These two are under the queue's lock. */
GPUSYNC__INLINE void gpusync__count_room(gpusync_queue *q, uint32_t more)
{
    /* A guess without the lock; published by its unlock. */
    GPUSYNC__STORE_RELAXED(&q->outstanding, q->outstanding + more);
}

GPUSYNC__INLINE void gpusync__count_tracked(gpusync_queue *q, bool more)
{
    /* It is published by the unlock. A commit reads it before that lock, but behind the order lock,
       which gpusync_track held. */
    GPUSYNC__STORE_RELAXED(&q->tracked, more ? q->tracked + 1 : q->tracked - 1);
}

/* What the timeline has reached, as far as is known, or GPUSYNC__FAILED_VALUE. */
static uint64_t gpusync__value_of(const gpusync_timeline *t)
{
    return GPUSYNC__LOAD_SEQ(&t->value);
}

/* GPUSYNC__ARMED and the others. */
static uint8_t gpusync__state_of(const gpusync__slot *slot)
{
    return GPUSYNC__LOAD_SEQ(&slot->state);
}

static bool gpusync__is_manual(const gpusync_device *dev)
{
    return dev->callback_mode == GPUSYNC_CALLBACKS_MANUAL;
}

/* Do others signal it, too? */
static bool gpusync__is_outside(const gpusync_timeline *t)
{
    return t->listening != NULL;
}

/* Zeroed memory of the program's allocator; NULL: it has none. */
static void *gpusync__allocate(gpusync_device *dev, size_t size, size_t alignment)
{
    void *memory = dev->allocator.allocate(dev->allocator.user, size, alignment);
    if (memory)
        memset(memory, 0, size);
    return memory;
}

static void gpusync__free(gpusync_device *dev, void *memory, size_t size)
{
    if (memory)
        dev->allocator.release(dev->allocator.user, memory, size);
}

/* Counts a call into `inside`. Between here and gpusync__leave the object and its device live,
   because destroy waits until nothing is inside; after it the call touches neither. Every wait
   counts, and every call that may still run when destroy begins; a call that only reads counters
   does not. destroy sets CLOSING, then reads `inside`; this function counts, then reads CLOSING:
   one of the two sees the other. Returns those of the flags `stop` that are set: then the call is
   not inside. */
GPUSYNC__INLINE uint32_t gpusync__come_in(uint32_t *inside, const uint32_t *flags, uint32_t stop)
{
    GPUSYNC__ADD_SEQ(inside, 1);
    stop &= GPUSYNC__LOAD_SEQ(flags);
    if (stop)
        GPUSYNC__SUB_SEQ(inside, 1);
    return stop;
}

/* False: the queue is being destroyed. */
static bool gpusync__enter(gpusync_queue *q)
{
    return !gpusync__come_in(&q->inside, &q->flags, GPUSYNC__CLOSING);
}

static void gpusync__leave(gpusync_queue *q)
{
    GPUSYNC__SUB_SEQ(&q->inside, 1);
}

/* For calls that need a working queue. stuck: GPUSYNC__STUCK for those that bring work, else 0. OK:
   inside. EXECUTION: a failure sticks. */
GPUSYNC__INLINE gpusync_result gpusync__enter_working(gpusync_queue *q, uint32_t stuck)
{
    uint32_t stop = gpusync__come_in(&q->inside, &q->flags, GPUSYNC__CLOSING | GPUSYNC__LOST | stuck);
    if (!stop)
        return GPUSYNC_OK;
    if (stop & GPUSYNC__CLOSING)
        return GPUSYNC_ERROR_DESTROYED;
    return stop & GPUSYNC__LOST ? GPUSYNC_ERROR_DEVICE_LOST : GPUSYNC_ERROR_EXECUTION;
}

/* OK: inside. */
static gpusync_result gpusync__timeline_enter(gpusync_timeline *t)
{
    return gpusync__come_in(&t->inside, &t->flags, GPUSYNC__CLOSING) ? GPUSYNC_ERROR_DESTROYED : GPUSYNC_OK;
}

static void gpusync__timeline_leave(gpusync_timeline *t)
{
    GPUSYNC__SUB_SEQ(&t->inside, 1);
}

static void gpusync__goal_leave(const gpusync__goal *goal)
{
    if (goal->queue)
        gpusync__leave(goal->queue);
    else
        gpusync__timeline_leave(goal->timeline);
}

/* User code begins on this thread; gpusync__user_end ends it. Neither this nor gpusync__in_callback
   is inlined: the C library declares pthread_self constant, and a compiler may carry its answer
   across a hook in which a fiber changed threads. */
static __attribute__((noinline)) void gpusync__user_begin(gpusync__call *call)
{
    call->thread = pthread_self();
    GPUSYNC__LOCK_GLOBAL();
    call->next = gpusync__global.calls;
    gpusync__global.calls = call;
    GPUSYNC__ADD_SEQ(&gpusync__global.call_count, 1);
    GPUSYNC__UNLOCK_GLOBAL();
}

static void gpusync__user_end(gpusync__call *call)
{
    gpusync__call **link = &gpusync__global.calls;
    GPUSYNC__LOCK_GLOBAL();
    while (*link != call)
        link = &(*link)->next;
    *link = call->next;
    GPUSYNC__SUB_SEQ(&gpusync__global.call_count, 1);
    GPUSYNC__UNLOCK_GLOBAL();
}

/* Is this thread in a callback? Then a wait could be for that very callback. Where no thread is in
   one, this takes no lock.
   Interleaving 9: a fiber parks on one thread and resumes on another: no lock, pool or thread-local
   value is kept in a park. */
static __attribute__((noinline)) bool gpusync__in_callback(void)
{
    if (GPUSYNC__LOAD_SEQ(&gpusync__global.call_count) == 0)
        return false;
    GPUSYNC__LOCK_GLOBAL();
    gpusync__call *call = gpusync__global.calls;
    while (call && !pthread_equal(call->thread, pthread_self()))
        call = call->next;
    GPUSYNC__UNLOCK_GLOBAL();
    return call != NULL;
}

/* NULL: no submission was made yet for a queue of this device. */
static const gpusync__upper *gpusync__upper_of(const gpusync_queue *q)
{
    return GPUSYNC__LOAD_SEQ(&q->device->upper);
}

/* -- lists that are sorted by a number: see gpusync__node */

/* Returns the first node whose number is not below this one, or NULL. Begins at the end whose
   number is nearer. */
GPUSYNC__INLINE gpusync__node *gpusync__list_from(const gpusync__list *list, uint64_t number)
{
    gpusync__node *first = list->end[0], *last = list->end[1];
    if (!first || last->number < number)
        return NULL;
    if (first->number >= number)
        return first;
    if (number - first->number < last->number - number) {
        while (first->number < number)
            first = first->beside[1];
        return first;
    }
    while (last->beside[0]->number >= number)
        last = last->beside[0];
    return last;
}

/* Adds the node behind all nodes of its number. */
static void gpusync__list_add(gpusync__list *list, gpusync__node *node)
{
    gpusync__node *next = gpusync__list_from(list, node->number + 1);
    gpusync__node *before = next ? next->beside[0] : list->end[1];
    gpusync__node **to = before ? &before->beside[1] : &list->end[0];
    gpusync__node **back = next ? &next->beside[0] : &list->end[1];
    node->beside[0] = before;
    node->beside[1] = next;
    node->linked = true;
    *to = *back = node;
}

static void gpusync__list_remove(gpusync__list *list, gpusync__node *node)
{
    for (int side = 0; side < 2; side++) {
        gpusync__node **from = node->beside[side] ? &node->beside[side]->beside[!side] : &list->end[side];
        *from = node->beside[!side];
    }
    node->linked = false;
}

/* What stands further down and is called from above it: these places, and no others. */
static void gpusync__completed(void *block, void *object); /* >>end: a slot's handler */
static void gpusync__ask_for_calls(gpusync_device *dev, gpusync__deferred *deferred);
static void gpusync__start_sweep(gpusync_device *dev, uint64_t delay, uint64_t pace); /* >>callbacks */
static void gpusync__sweep(void *context);
static void gpusync__device_end(void *context); /* >>destroy */

/* -------------------------------------------------------------------------------- >>slots --
   Slots: one per command buffer that gpusync handles. A slot *is* the completion handler: it begins
   with a block literal that claims to be a global one, so that Metal's Block_copy returns the same
   pointer and no commit allocates. Metal still reads the block's flags when it releases the block,
   at a time that nothing shows. Therefore slots live in slabs that are never freed, and the block
   header is written once.

   No message but a retain is sent under the queue's lock. A thread looks at a command buffer in
   three steps:
     1. Under the lock it finds the slot, by the ticket or by the submission, and retains the buffer
        (gpusync__view_slot). From here on the buffer stays.
     2. Without the lock it sends its messages.
     3. If the work has ended, it ends the ticket under the lock, provided that the place where it
        found the slot still leads there, for the same ticket (gpusync__end_slot). Else another
        thread has ended the ticket, or it was given up.

   Rules of the locks over slots and tickets. A queue's is over its tickets, slots in flight, room,
   failures and wait list.

     1. A thread locks a queue only while something keeps the queue: the thread is inside it (`inside`,
        `owed`), runs a slot of it, has the device's lock or a listed link, or is destroy. For
        gpusync_next_error the program keeps it. A handler counts in `leaving` before it unlocks for
        the last time, and counts down as its last touch of anything.
     2. A thread that frees a slot, or gives it up, clears in the same hold everything that leads to
        the slot: the ring's entry or the submission's part, the waits for its handler.
        Until then the entry of an ended ticket leads to the slot, unless it serves a later ticket.
     3. A slot is in flight from the hold in which its buffer enters to the hold of rule 2. No walk
        over the list goes on after an unlock.
     4. A thread that gives a slot up takes the global lock inside the queue's, and the buffer. From
        then on the slot is under the global lock, and its handler frees it, to all queues
        [gpusync__orphan_leave].
     5. A part of a submission leads to its submission while that has not ended, and the submission
        to the part while that is in flight. The end of either cuts both [gpusync__end_submission,
        gpusync__flight_remove].
     6. A submission gets its ticket OPEN, with its parts in flight [gpusync__take_parts], and turns
        ARMED after them when it is issued [gpusync__issue]. A thread that finds a submission by its
        ticket takes a reference to it before it unlocks [gpusync__view_open].
     7. For a lost handler the sweep gives the room back, once. The slot stays ARMED
        [gpusync__sweep_slots].
     8. Under the graph's lock nothing of a queue is read but its number, label, flags and limit, and
        what stands there for that lock; a queue's lock may be taken inside. The forecast of a value takes a
        reference to the submission, and unlocks [gpusync__forecast_value].
     9. A wait for many that is inside a queue, and sleeps, stands on a list of the queue's wait list:
        it leaves when the queue is being destroyed [gpusync__take_entry].
    10. One hold takes off only a few nodes that wait for a ticket, so that other threads get the
        lock in between [gpusync__take_ended]. A callback for an ended ticket with earlier ones
        still listed is listed behind them [gpusync__list_callback]. */

static const gpusync__block_descriptor gpusync__descriptor = {0, sizeof(gpusync__block), "v16@?0@8", NULL};

/* Returns a list of the slots of a new slab, or NULL if there is no memory. A slab comes from malloc,
   not from the program's allocator, because it outlives every device. Under the global lock. */
GPUSYNC__RARE gpusync__slot *gpusync__slab_make(void)
{
    gpusync__slot *first = NULL;
    void *memory;

    if (posix_memalign(&memory, 128, sizeof(gpusync__slab)) != 0)
        return NULL;
    gpusync__slab *slab = (gpusync__slab *)memset(memory, 0, sizeof *slab);
    for (gpusync__slot *slot = slab->slots; slot < slab->slots + GPUSYNC__SLAB_SLOTS; slot++) {
        slot->block.isa = gpusync__global_block;
        slot->block.flags = GPUSYNC__BLOCK_IS_GLOBAL | GPUSYNC__BLOCK_HAS_SIGNATURE;
        slot->block.invoke = gpusync__completed;
        slot->block.descriptor = &gpusync__descriptor;
        slot->next = first;
        first = slot;
    }
    slab->next = gpusync__global.slabs;
    gpusync__global.slabs = slab;
    return first;
}

#define GPUSYNC__MORE_SLOTS 15 /* at most, so that other queues find some, too */

/* Adds so many free slots, and a few more where there are: of queues that are gone, or of a new slab.
   False if there is no memory. No lock is held. */
GPUSYNC__RARE bool gpusync__add_slots(gpusync_queue *q, uint32_t slots)
{
    uint32_t taken = 0;
    GPUSYNC__LOCK_GLOBAL();
    gpusync__slot *first = gpusync__global.free, **end = &first;
    for (; taken < slots + GPUSYNC__MORE_SLOTS; taken++) {
        if (!*end && taken < slots)
            *end = gpusync__slab_make();
        if (!*end)
            break;
        end = &(*end)->next;
    }
    gpusync__global.free = *end;
    GPUSYNC__UNLOCK_GLOBAL();
    GPUSYNC__LOCK(q);
    *end = q->free_slots;
    q->free_slots = first;
    GPUSYNC__UNLOCK(q);
    return taken >= slots;
}

/* Puts a slot that nothing leads to on a free list. The fields that neither
   gpusync__slot_open nor a commit writes are zero in a free slot. Under the lock of the list. */
static inline void gpusync__slot_free(gpusync__slot **list, gpusync__slot *slot)
{
    slot->submission = NULL;
    slot->back = NULL;
    slot->late.ended_ns = slot->behind = 0;
    GPUSYNC__STORE_RELAXED(&slot->state, (uint8_t)GPUSYNC__FREE); /* published by the unlock */
    slot->next = *list;
    *list = slot;
}

/* Takes a free slot, or returns NULL if there is none; gpusync__make_ready makes more. Under the
   queue's lock. */
GPUSYNC__INLINE gpusync__slot *gpusync__slot_take(gpusync_queue *q)
{
    gpusync__slot *slot = q->free_slots;
    if (slot)
        q->free_slots = slot->next;
    return slot;
}

/* Opens a slot, which the caller has just taken, for the buffer, which the caller retains. No other
   thread finds the slot before it is in the list of open buffers, or in flight. */
GPUSYNC__INLINE void gpusync__slot_open(gpusync_queue *q, gpusync__slot *slot, void *buffer, uint8_t kind,
                                        uint8_t traits)
{
    slot->buffer = buffer;
    slot->queue = q;
    slot->kind = kind;
    slot->traits = traits;
    GPUSYNC__STORE_RELAXED(&slot->state, (uint8_t)GPUSYNC__OPEN); /* published by the unlock of what lists it */
}

/* -- in flight. Under the queue's lock */

/* Returns the slot that entered behind this one, or behind `ends` the first of all. NULL if there
   is none. */
static gpusync__slot *gpusync__flight_next(const gpusync_queue *q, const gpusync__slot *slot)
{
    return slot->flight[1] == &q->ends ? NULL : slot->flight[1];
}

#define GPUSYNC__EACH_IN_FLIGHT(slot, q) \
    for (slot = gpusync__flight_next(q, &(q)->ends); slot; slot = gpusync__flight_next(q, slot))

/* Puts the slot at the end of the list of slots in flight, which is in the order of tickets except
   for UNORDERED submissions. The parts of a submission stand side by side. Destroy waits for this
   list, the sweep walks it, and waits for handlers search it. */
GPUSYNC__INLINE void gpusync__flight_add(gpusync_queue *q, gpusync__slot *slot)
{
    gpusync__slot *last = q->ends.flight[0];
    slot->flight[0] = last;
    slot->flight[1] = &q->ends;
    last->flight[1] = q->ends.flight[0] = slot;
}

/* Takes the slot out of flight, and clears everything that leads to it, so that no other thread
   finds the slot after the unlock. The caller frees the slot, gives it up, opens it again, or keeps
   it for its submission. The entry of a ticket that has ended may lead to a later slot by now. */
GPUSYNC__INLINE void gpusync__flight_remove(gpusync__slot *slot)
{
    slot->flight[0]->flight[1] = slot->flight[1];
    slot->flight[1]->flight[0] = slot->flight[0];
    if (slot->back && *slot->back == slot)
        *slot->back = NULL;
}

/* -- orphans */

/* Returns the events that the slot keeps, which the caller releases with the buffer, or NULL. */
static inline void *gpusync__slot_events(const gpusync__slot *slot)
{
    return slot->traits & GPUSYNC__KEEPS_EVENTS ? slot->late.events : NULL;
}

/* Leaves an orphan, as its handler. A buffer of Metal 4, which the GPU may still use and nothing
   else retains, is released here. No lock is held. */
GPUSYNC__RARE void gpusync__orphan_leave(gpusync__slot *slot)
{
    GPUSYNC__LOCK_GLOBAL();
    void *buffer = slot->buffer;
    void *events = gpusync__slot_events(slot);
    gpusync__slot_free(&gpusync__global.free, slot);
    GPUSYNC__UNLOCK_GLOBAL();
    gpusync__release_pooled(buffer);
    gpusync__release_pooled(events);
}

/* --------------------------------------------------------------------------------- >>ring --
   The life of a ticket, under the queue's lock:

     1. gpusync__make_ready has made a place for the ticket, before the order lock was taken.
     2. gpusync__enter_ring lets the ticket's entry lead to the slot, and raises `committed`: from
        here on the program can ask for the ticket.
     3. gpusync__end_ticket writes how the ticket ended, and moves `completed` over all tickets that
        have ended up to there.
     4. The entry serves the ticket that is `size` further on. If `completed` has not come to this
        one by then, the ring grows: a new ring of twice the size serves that ticket and all behind
        it. The older rings stay as long as the queue, so that no ticket changes its place.

   An entry serves two tickets at once. `slot` belongs to the ticket that entered last, until the
   slot is free. `done` and the times belong to the ticket that ended last: the program can ask for
   the earlier ticket until the later one ends. */

/* Returns a new ring, or NULL if there is no memory. */
static gpusync__ring *gpusync__ring_new(gpusync_device *dev, uint64_t size)
{
    size_t bytes = sizeof(gpusync__ring) + (size_t)size * sizeof(gpusync__entry);
    gpusync__ring *ring = (gpusync__ring *)gpusync__allocate(dev, bytes, 128);

    if (!ring)
        return NULL;
    ring->mask = size - 1;
    ring->entries = (gpusync__entry *)(void *)(ring + 1);
    return ring;
}

static void gpusync__ring_free(gpusync_device *dev, gpusync__ring *ring)
{
    if (ring)
        gpusync__free(dev, ring, sizeof *ring + (size_t)(ring->mask + 1) * sizeof(gpusync__entry));
}

/* Returns the ticket's entry, of the ring or of an older one. */
static inline gpusync__entry *gpusync__entry_in(const gpusync__ring *ring, uint64_t ticket)
{
    while (ticket < ring->first)
        ring = ring->older; /* the oldest begins at 0 */
    return &ring->entries[ticket & ring->mask];
}

/* Returns the ticket's entry. Needs no lock: older rings stay as long as the queue. */
static gpusync__entry *gpusync__entry_of(const gpusync_queue *q, uint64_t ticket)
{
    return gpusync__entry_in(GPUSYNC__LOAD_SEQ(&q->ring), ticket);
}

/* Returns the last ticket that ended in this one's entry, with how it ended. With or without the
   lock. */
static uint64_t gpusync__last_end(const gpusync_queue *q, uint64_t ticket)
{
    return GPUSYNC__LOAD_SEQ(&gpusync__entry_of(q, ticket)->done);
}

/* Returns whether the ticket has ended in this way. False also if its entry serves a later ticket by
   now. With or without the lock. */
static bool gpusync__ended_as(const gpusync_queue *q, uint64_t ticket, uint64_t how)
{
    return gpusync__last_end(q, ticket) == (ticket << 2 | how);
}

/* Returns whether the ticket has ended, with its outcome on record. With or without the lock. */
static bool gpusync__has_ended(const gpusync_queue *q, uint64_t ticket)
{
    if (ticket <= gpusync__ended_to(q))
        return true;
    if (gpusync__last_end(q, ticket) >> 2 == ticket)
        return true;
    return ticket <= gpusync__ended_to(q); /* its entry may just have gone on to a later one */
}

/* Returns whether the ring has a place for the next ticket. In the first lap it has; after that the
   entry serves the ticket one lap earlier until `completed` has passed that ticket. Under the
   queue's lock. */
static inline bool gpusync__ring_is_ready(const gpusync_queue *q)
{
    const gpusync__ring *ring = q->ring;
    uint64_t ticket = q->head.committed + 1;
    return ticket - ring->first <= ring->mask || ticket - q->head.completed <= ring->mask + 1;
}

/* Makes so many slots and a place for one ticket ready. False if a slot or the ring could not be
   made; what was made stays. A call that
   needs memory of the queue checks under the locks whether enough is there. If not, it changes
   nothing, unlocks, calls this, and begins again. Therefore nothing is allocated under the order
   lock, nor under a lock that a poll, a wait or a handler takes. If another thread takes what this
   call has made, that thread goes on, and this one comes again. */
static __attribute__((noinline)) bool gpusync__make_ready(gpusync_queue *q, uint32_t slots)
{
    gpusync__ring *ring = NULL;

    GPUSYNC__LOCK(q);
    for (gpusync__slot *slot = q->free_slots; slot && slots; slot = slot->next)
        slots--;
    uint64_t size = gpusync__ring_is_ready(q) ? 0 : 2 * (q->ring->mask + 1);
    GPUSYNC__UNLOCK(q);

    bool ready = !slots || gpusync__add_slots(q, slots);
    if (size)
        ring = gpusync__ring_new(q->device, size);
    if (size && !ring)
        return false;
    GPUSYNC__LOCK(q);
    if (ring && !gpusync__ring_is_ready(q)) { /* else another thread has made one */
        ring->older = q->ring;
        ring->first = q->head.committed + 1;
        GPUSYNC__STORE_SEQ(&q->ring, ring);
        ring = NULL;
    }
    GPUSYNC__UNLOCK(q);
    gpusync__ring_free(q->device, ring);
    return ready;
}

/* Gives the slot the next ticket, for which the ring has a place. The caller commits the command
   buffer after this, because no thread may see `completed` ahead of `committed`. A slot whose
   ticket has ended, and whose handler is late, loses its entry to this one. Under the order lock
   and the queue's. */
GPUSYNC__INLINE uint64_t gpusync__enter_ring(gpusync_queue *q, gpusync__slot *slot, uint8_t state, uint64_t now)
{
    uint64_t ticket = q->head.committed + 1;
    gpusync__slot **place = &q->ring->entries[ticket & q->ring->mask].slot;

    *place = slot;
    slot->back = place;
    slot->since_ns = now;
    GPUSYNC__STORE_RELAXED(&slot->ticket, ticket);           /* published by the next store */
    __atomic_store_n(&slot->state, state, __ATOMIC_RELEASE); /* of a submission: with all that its issue has written */
    GPUSYNC__STORE_SEQ(&q->head.committed, ticket);
    return ticket;
}

/* Returns the ticket's slot, or NULL if the ticket has ended and its slot is free or given up.
   Under the queue's lock. */
static gpusync__slot *gpusync__slot_of(const gpusync_queue *q, uint64_t ticket)
{
    gpusync__slot *slot = gpusync__entry_of(q, ticket)->slot;
    return slot && slot->ticket == ticket ? slot : NULL;
}

/* Begins a look at the slot to which the place leads; gpusync__view_end ends the look. Under the
   queue's lock.
   Interleaving 2: a poller is about to read the status while the handler leaves the slot. The
   poller has retained the buffer. */
static void gpusync__view_slot(gpusync__slot **at, gpusync__view *view)
{
    gpusync__slot *slot = *at;
    view->slot = slot;
    view->at = at;
    view->buffer = gpusync__retain(slot->buffer);
    view->s = NULL;
    view->ticket = slot->ticket;
    view->since_ns = slot->since_ns;
    view->kind = slot->kind;
}

/* Begins a look at a ticket. False: it has ended, or was given up. No lock is held. */
GPUSYNC__INLINE bool gpusync__view_open(gpusync_queue *q, uint64_t ticket, gpusync__view *view)
{
    GPUSYNC__LOCK(q);
    gpusync__slot *slot = gpusync__slot_of(q, ticket);
    bool work = slot && slot->kind != GPUSYNC__SUBMISSION; /* else the graph's lock is over its slot */
    if (!slot || (work && slot->traits & GPUSYNC__ENDED)) {
        GPUSYNC__UNLOCK(q);
        return false;
    }
    if (work) {
        gpusync__view_slot(slot->back, view);
    } else {
        view->buffer = NULL;
        gpusync__upper_of(q)->keep(view->s = slot->submission);
    }
    GPUSYNC__UNLOCK(q);
    return true;
}

/* The same, outside of a poll, which has the function above in its own code. */
static bool gpusync__view_ticket(gpusync_queue *q, uint64_t ticket, gpusync__view *view)
{
    return gpusync__view_open(q, ticket, view);
}

static void gpusync__view_end(const gpusync_queue *q, const gpusync__view *view)
{
    if (view->s)
        gpusync__upper_of(q)->unkeep(view->s);
    else
        gpusync__release_pooled(view->buffer);
}

/* ------------------------------------------------------------------------------ >>failure --
   Where the error of a failed command buffer goes:

     1. The thread that finds the end, the handler or a look, reads the NSError of the buffer, or of
        the feedback of Metal 4, and finds its class (gpusync__read_failure).
     2. A commit: gpusync__settle puts the error into the failure log of the queue
        (gpusync__record), in the hold in which the ticket ends, so that no thread sees the end
        without the record.
     3. A part of a submission: the submission keeps the first error of its work (gpusync__fail).
        When all its parts and waits are over, gpusync__publish first fails the timelines that the
        submission was to signal (gpusync__end_signals), and then records the error and ends the
        ticket in one hold (gpusync__end_submission).
     4. What waits for the ticket, or for a timeline that failed, gets the error. A callback keeps a
        copy (gpusync__callback_told). A wait of a submission, of any queue of the device, is over
        with it (gpusync__link_over). If the submission is held, it takes the error, and is never
        issued (gpusync__drop_held). If the GPU has it, the work runs on whatever its input holds,
        and takes the error of the first such wait if it ends well itself (gpusync__take_broken).
        Either way the submission goes through step 3. One that the program has cancelled, or whose
        queue is destroyed, takes no error from its waits.
     5. A wait finds the record by its ticket, a wait for everything by a range of tickets
        (gpusync__result_of). gpusync_next_error reads the failure log, with the program's cursor;
        the program's log function is told of each record (gpusync__log_failures).
     6. If the class means a lost device, gpusync__lose has its queues refuse new work.
     7. With sticky_failure the error sticks, and tickets above take it (gpusync__takes_failure).
     8. The failure that is log_size further on takes the record's place. Of the records that were
        dropped only the highest ticket is known. */

/* Turns control characters in labels and in Metal's texts into blanks. */
static void gpusync__make_plain(char *text, size_t length)
{
    for (; length--; text++)
        if ((unsigned char)*text < ' ' || *text == 0x7F)
            *text = ' ';
}

/* Calls the program's log function. No lock is held. The function counts as a callback: a wait in
   it does not sleep. */
static __attribute__((format(printf, 3, 4))) void gpusync__log(gpusync_device *dev, gpusync_log_level level,
                                                               const char *format, ...)
{
    char text[768]; /* no line is as long */
    gpusync__call call;
    va_list arguments;

    if (!dev->log)
        return;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    gpusync__make_plain(text, strlen(text));
    gpusync__user_begin(&call);
    dev->log(dev->log_user, level, text);
    gpusync__user_end(&call);
}

/* Sets what a trace changes in a queue: no wait takes the short path, and commits and ends are told. */
static void gpusync__flag_trace(gpusync_queue *q)
{
    q->traced = q->device->trace != NULL;
    if (q->traced)
        gpusync__set_flag(&q->flags, GPUSYNC__TRACED);
    else
        __atomic_fetch_and(&q->flags, ~(uint32_t)GPUSYNC__TRACED, __ATOMIC_SEQ_CST);
}

static const char gpusync__domain4[] = "MTL4CommandQueueErrorDomain";

/* Returns the driver's number in the text of an error, or -1. Metal makes its errors from that
   number, and merges several numbers in one code of its own. The number stands in the text as eight
   hexadecimal digits, "(0000000e:...)", or on older systems as "(IOAF code 5)" (seen in
   public logs: examples/metal-behaves.md). */
static int64_t gpusync__driver_number(const char *message)
{
    char *end;
    const char *at = strstr(message, "(IOAF code ");

    if (at)
        return (uint32_t)strtol(at + strlen("(IOAF code "), NULL, 10); /* an IOReturn may be negative */
    for (at = strchr(message, '('); at; at = strchr(at + 1, '(')) {
        unsigned long number = strtoul(at + 1, &end, 16);
        if (end == at + 9 && *end == ':')
            return (int64_t)number;
    }
    return -1;
}

/* What a number says of the class of an error: one of the driver, whose meanings were seen with their
   texts in logs; of MTLCommandBufferError; of MTL4CommandQueueError, by number, because the names
   changed over time. NONE: nothing, as all numbers that are not here. */
enum { GPUSYNC__OF_DRIVER, GPUSYNC__OF_CODE, GPUSYNC__OF_CODE4, GPUSYNC__NUMBERINGS };
#define GPUSYNC__NUMBERS 16 /* so many, from 0 on; those that are not shown are NONE */
/* clang-format off */
static const uint8_t gpusync__classes[GPUSYNC__NUMBERINGS][GPUSYNC__NUMBERS] = {
    {
        /*  0 */ GPUSYNC_FAILURE_NONE,
        /*  1 */ GPUSYNC_FAILURE_NONE,
        /*  2 */ GPUSYNC_FAILURE_TIMEOUT,           /* it ran too long */
        /*  3 */ GPUSYNC_FAILURE_TIMEOUT,           /* it hung */
        /*  4 */ GPUSYNC_FAILURE_ACCESS_REVOKED,    /* ignored, because of earlier errors */
        /*  5 */ GPUSYNC_FAILURE_INNOCENT_VICTIM,   /* discarded, because of other work's error */
        /*  6 */ GPUSYNC_FAILURE_NOT_PERMITTED,     /* in the background */
        /*  7 */ GPUSYNC_FAILURE_NONE,
        /*  8 */ GPUSYNC_FAILURE_OUT_OF_MEMORY,     /* no memory for what it uses */
        /*  9 */ GPUSYNC_FAILURE_INVALID_RESOURCE,  /* a resource is gone */
        /* 10 */ GPUSYNC_FAILURE_NONE,
        /* 11 */ GPUSYNC_FAILURE_PAGE_FAULT,        /* a shader reached past its memory */
        /* 12 */ GPUSYNC_FAILURE_NONE,
        /* 13 */ GPUSYNC_FAILURE_NONE,
        /* 14 */ GPUSYNC_FAILURE_TIMEOUT,           /* it kept the display from being drawn */
    },
    {
        /*  0 */ GPUSYNC_FAILURE_NONE,
        /*  1 */ GPUSYNC_FAILURE_NONE,
        /*  2 */ GPUSYNC_FAILURE_TIMEOUT,
        /*  3 */ GPUSYNC_FAILURE_PAGE_FAULT,
        /*  4 */ GPUSYNC_FAILURE_ACCESS_REVOKED,
        /*  5 */ GPUSYNC_FAILURE_NONE,
        /*  6 */ GPUSYNC_FAILURE_NONE,
        /*  7 */ GPUSYNC_FAILURE_NOT_PERMITTED,
        /*  8 */ GPUSYNC_FAILURE_OUT_OF_MEMORY,
        /*  9 */ GPUSYNC_FAILURE_INVALID_RESOURCE,
        /* 10 */ GPUSYNC_FAILURE_NONE,
        /* 11 */ GPUSYNC_FAILURE_DEVICE_REMOVED,
    },
    {
        /*  0 */ GPUSYNC_FAILURE_NONE,
        /*  1 */ GPUSYNC_FAILURE_TIMEOUT,
        /*  2 */ GPUSYNC_FAILURE_NOT_PERMITTED,
        /*  3 */ GPUSYNC_FAILURE_OUT_OF_MEMORY,
        /*  4 */ GPUSYNC_FAILURE_DEVICE_REMOVED,
        /*  5 */ GPUSYNC_FAILURE_ACCESS_REVOKED,
    },
};
/* clang-format on */

/* Returns the class for a number, or NONE. */
static gpusync_failure gpusync__look_up(int numbering, int64_t number)
{
    bool known = number >= 0 && number < GPUSYNC__NUMBERS;
    return known ? (gpusync_failure)gpusync__classes[numbering][number] : GPUSYNC_FAILURE_NONE;
}

/* Returns the class of an error. The driver's number (-1: unknown) says more than the code, which
   merges several numbers, and comes first. The domain selects the table, because the same code
   means different things in the two domains. */
static gpusync_failure gpusync__classify(const gpusync_error *error, int64_t number)
{
    bool metal4 = strcmp(error->domain, gpusync__domain4) == 0;
    if (!metal4 && strcmp(error->domain, "MTLCommandBufferErrorDomain") != 0)
        return GPUSYNC_FAILURE_OTHER;
    if (strstr(error->message, "victim of GPU"))
        return GPUSYNC_FAILURE_INNOCENT_VICTIM;
    gpusync_failure failure = gpusync__look_up(GPUSYNC__OF_DRIVER, number);
    if (failure == GPUSYNC_FAILURE_NONE)
        failure = gpusync__look_up(metal4 ? GPUSYNC__OF_CODE4 : GPUSYNC__OF_CODE, error->code);
    return failure == GPUSYNC_FAILURE_NONE ? GPUSYNC_FAILURE_OTHER : failure;
}

/* Fills in an error of gpusync's own. message may be NULL. */
static void gpusync__own_error(gpusync_error *error, gpusync_result result, const char *message)
{
    memset(error, 0, sizeof *error);
    error->result = result;
    error->failure = GPUSYNC_FAILURE_OTHER;
    gpusync__copy_text(error->message, sizeof error->message, message);
}

/* Returns where a wait writes its error, or NULL. */
static gpusync_error *gpusync__error_of(const gpusync_wait_options *options)
{
    return options ? options->error : NULL;
}

/* Fills in the error of a result that is about the wait and not about work, and returns the result.
   TIMEOUT is no error, and leaves *error as it is. ticket: of the wait, or 0. error may be NULL. */
GPUSYNC__RARE gpusync_result gpusync__explain(gpusync_error *error, uint64_t ticket, gpusync_result result)
{
    if (error && result < GPUSYNC_OK) {
        gpusync__own_error(error, result, gpusync_result_string(result));
        error->ticket = ticket;
    }
    return result;
}

/* Copies code, domain and message of an NSError. Needs a pool. */
static void gpusync__read_ns_error(gpusync_error *error, void *ns_error)
{
    error->code = GPUSYNC__AS(long)(ns_error, gpusync__sel.code);
    gpusync__copy_string(error->domain, sizeof error->domain, gpusync__send_id(ns_error, gpusync__sel.domain));
    gpusync__copy_string(error->message, sizeof error->message,
                         gpusync__send_id(ns_error, gpusync__sel.localizedDescription));
}

/* Copies the label of the slot's command buffer, or of the first of several. The caller is the
   handler, or looks at it. */
static void gpusync__read_label(void *buffer, char *label, size_t size)
{
    void *pool = gpusync__pool_push();
    if (!gpusync__class_responds(gpusync__class_of(buffer), gpusync__sel.label)) /* an array, of Metal 4 */
        buffer = GPUSYNC__AS1(void *, unsigned long)(buffer, gpusync__sel.objectAtIndex, 0);
    gpusync__copy_string(label, size, gpusync__send_id(buffer, gpusync__sel.label));
    gpusync__pool_pop(pool);
}

/* Returns whether work failed whose status is not Completed, with the error. report: the command
   buffer, or the feedback of Metal 4. If a handler runs before the status is terminal, which Metal's
   rules exclude, Metal's error decides. Metal nests errors: its own error has the driver's inside,
   and Metal 4 puts its own into one more, which has the same domain (mokume-metal/mokume,
   CommandFaultLog.swift). The innermost of Metal's own has the code and the text. */
GPUSYNC__RARE bool gpusync__read_failure(gpusync_queue *q, void *buffer, void *report, unsigned long status,
                                         gpusync_error *error)
{
    void *pool = gpusync__pool_push();
    void *ns_error = gpusync__send_id(report, gpusync__sel.error);
    void *key = gpusync__string("NSUnderlyingError");
    bool failed = status == GPUSYNC__STATUS_ERROR || ns_error;
    int64_t number = -1;
    char domain[sizeof error->domain];

    memset(error, 0, sizeof *error);
    for (int depth = 0; ns_error && depth < 4; depth++) {
        gpusync__copy_string(domain, sizeof domain, gpusync__send_id(ns_error, gpusync__sel.domain));
        if (depth == 0 || strcmp(domain, error->domain) == 0)
            gpusync__read_ns_error(error, ns_error);
        if (strcmp(domain, "IOGPUCommandQueueErrorDomain") == 0)
            number = (uint32_t)GPUSYNC__AS(long)(ns_error, gpusync__sel.code);
        void *info = gpusync__send_id(ns_error, gpusync__sel.userInfo);
        ns_error = GPUSYNC__AS1(void *, void *)(info, gpusync__sel.objectForKey, key);
    }

    if (number < 0)
        number = gpusync__driver_number(error->message);
    error->result = GPUSYNC_ERROR_EXECUTION;
    gpusync__read_label(buffer, error->label, sizeof error->label);
    gpusync__copy_text(error->queue_label, sizeof error->queue_label, q->label);
    error->failure = gpusync__classify(error, number);
    /* Before the end is published, because a thread that sees the end may ask at once whether the
       device is lost. */
    if (error->failure == GPUSYNC_FAILURE_DEVICE_REMOVED)
        gpusync__set_flag(&q->device->lost, GPUSYNC__KNOWN | GPUSYNC__REMOVED);
    else if (error->failure == GPUSYNC_FAILURE_ACCESS_REVOKED)
        gpusync__set_flag(&q->device->lost, GPUSYNC__KNOWN);
    gpusync__pool_pop(pool);
    return failed;
}

/* Makes the memory of the log before the first failure is recorded. Without memory the next failure
   tries again, and records without a place count as dropped. No lock is held. */
GPUSYNC__RARE void gpusync__make_log(gpusync_queue *q)
{
    size_t size = q->log_most * sizeof *q->log;
    if (GPUSYNC__LOAD_SEQ(&q->log) != &q->last_failure)
        return;
    gpusync__failed *made = (gpusync__failed *)gpusync__allocate(q->device, size, 16);
    if (!made)
        return;
    GPUSYNC__LOCK(q);
    if (q->log == &q->last_failure) {
        if (q->log_count) {
            q->log_begin = q->log_count - 1;
            gpusync__list_remove(&q->failures, &q->last_failure.node);
            gpusync__failed *record = &made[q->log_begin % q->log_most];
            *record = q->last_failure;
            gpusync__list_add(&q->failures, &record->node);
        }
        q->log_size = q->log_most;
        GPUSYNC__STORE_SEQ(&q->log, made);
        made = NULL;
    }
    GPUSYNC__UNLOCK(q);
    gpusync__free(q->device, made, size);
}

/* Makes room for a record in a log that is full, whose oldest record goes. Under the queue's lock. */
GPUSYNC__RARE void gpusync__drop_record(gpusync_queue *q, gpusync__failed *record)
{
    uint64_t ticket = record->error.ticket;
    if (ticket > q->dropped)
        q->dropped = ticket;
    if (!record->given_up && ticket > q->dropped_failed)
        q->dropped_failed = ticket;
    GPUSYNC__COUNT_RELAXED(&q->stats.failures_dropped);
    gpusync__list_remove(&q->failures, &record->node);
}

/* Records a failure. given_up: its own queue gave the work up, because the program asked for that.
   The caller ends the ticket after this, in the same hold of the queue's lock. */
GPUSYNC__RARE void gpusync__record(gpusync_queue *q, const gpusync_error *error, bool given_up)
{
    gpusync__failed *record = &q->log[q->log_count % q->log_size];
    if (error->ticket > q->last_failed)
        GPUSYNC__STORE_SEQ(&q->last_failed, error->ticket);
    gpusync__set_flag(&q->flags, GPUSYNC__FAILED);
    if (!given_up)
        GPUSYNC__COUNT_RELAXED(&q->stats.failures);
    if (q->log_count - q->log_begin >= q->log_size)
        gpusync__drop_record(q, record);
    record->node.number = error->ticket;
    gpusync__list_add(&q->failures, &record->node);
    record->error = *error;
    record->given_up = given_up;
    q->log_count++;
    bool ran = error->result == GPUSYNC_ERROR_EXECUTION || error->result == GPUSYNC_ERROR_RESULT_UNKNOWN;
    if (!q->sticky || !ran || error->ticket <= q->cleared)
        return;
    bool first = !(gpusync__set_flag(&q->flags, GPUSYNC__STUCK) & GPUSYNC__STUCK);
    if (first || error->ticket < q->stuck.ticket)
        q->stuck = *error;
}

/* Reads the next record for this cursor, with the number of records that the cursor has missed.
   False if there is none. Under the queue's lock. */
static bool gpusync__read_record(const gpusync_queue *q, uint64_t *cursor, gpusync_error *error)
{
    bool full = q->log_count - q->log_begin > q->log_size;
    uint64_t first = full ? q->log_count - q->log_size : q->log_begin; /* that is still kept */
    uint64_t at = *cursor;
    if (at == GPUSYNC_FROM_NOW)
        *cursor = q->log_count;
    if (at >= q->log_count)
        return false;
    if (at < first)
        at = first;
    *error = q->log[at % q->log_size].error;
    error->dropped = at - *cursor;
    *cursor = at + 1;
    return true;
}

/* Passes the records that were not logged yet to the log function, one thread at a time: otherwise
   a function that finds more failures, by a poll, would be called from inside itself again and
   again. No lock is held. */
GPUSYNC__RARE void gpusync__log_failures(gpusync_queue *q)
{
    gpusync_error e;
    if (!q->device->log)
        return;
    GPUSYNC__LOCK(q);
    while (!q->logging && gpusync__read_record(q, &q->logged, &e)) {
        q->logging = true;
        GPUSYNC__UNLOCK(q);
        if (e.failure != GPUSYNC_FAILURE_CANCELLED)
            gpusync__log(q->device, GPUSYNC_LOG_ERROR,
                         "queue '%s', ticket %llu: %s in command buffer '%s' of queue '%s' (%s %lld: %s)", q->label,
                         (unsigned long long)e.ticket, gpusync_failure_string(e.failure), e.label, e.queue_label,
                         e.domain, (long long)e.code, e.message);
        GPUSYNC__LOCK(q);
        q->logging = false;
    }
    GPUSYNC__UNLOCK(q);
}

/* Returns the first record of the tickets from `low` to `high`, or NULL; not counting work that its
   own queue gave up, if `ran`. Under the queue's lock. */
static const gpusync_error *gpusync__find_record(const gpusync_queue *q, uint64_t low, uint64_t high, bool ran)
{
    const gpusync__node *node = gpusync__list_from(&q->failures, low);
    for (; node && node->number <= high; node = node->beside[1]) {
        const gpusync__failed *record = (const gpusync__failed *)(const void *)node;
        if (!ran || !record->given_up)
            return &record->error;
    }
    return NULL;
}

/* Returns the record of a ticket that failed, or NULL. The failure that sticks may have left the
   log. Under the queue's lock. */
static const gpusync_error *gpusync__record_of(const gpusync_queue *q, uint64_t ticket)
{
    return ticket == q->stuck.ticket ? &q->stuck : gpusync__find_record(q, ticket, ticket, false);
}

/* Fills in the error of work of the queue that was given up. result: CANCELLED by the program, with
   gpusync_untrack, gpusync_cancel_held or a destroy, DESTROYED by gpusync_queue_destroy_now, or
   DEVICE_LOST. */
GPUSYNC__RARE void gpusync__given_up_error(const gpusync_queue *q, gpusync_error *error, gpusync_result result,
                                           const char *message)
{
    gpusync__own_error(error, result, message);
    if (result != GPUSYNC_ERROR_DEVICE_LOST)
        error->failure = GPUSYNC_FAILURE_CANCELLED;
    gpusync__copy_text(error->queue_label, sizeof error->queue_label, q->label);
}

static const char gpusync__off_record[] = "the work ended, but how is no longer on record";
static const char gpusync__lost_amid[] = "the device was lost before it ended";

/* On a queue with sticky_failure: returns whether a ticket that ends well takes the error of an
   earlier failure, with that error. It is the failure that sticks, or one that was cleared while
   this was in flight. Under the queue's lock. */
GPUSYNC__RARE bool gpusync__takes_failure(const gpusync_queue *q, const gpusync__slot *slot, gpusync_error *error)
{
    uint64_t failed = slot->behind;
    if (!failed && GPUSYNC__LOAD_SEQ(&q->flags) & GPUSYNC__STUCK && slot->ticket > q->stuck.ticket)
        failed = q->stuck.ticket;
    if (!failed)
        return false;
    const gpusync_error *record = gpusync__record_of(q, failed);
    if (record)
        *error = *record;
    else
        gpusync__own_error(error, GPUSYNC_ERROR_EXECUTION, gpusync__off_record);
    error->ticket = slot->ticket;
    return true;
}

/* Copies the failure that sticks, or that stuck last. */
GPUSYNC__RARE void gpusync__read_stuck(gpusync_queue *q, gpusync_error *error)
{
    GPUSYNC__LOCK(q);
    *error = q->stuck;
    GPUSYNC__UNLOCK(q);
}

/* Returns how a ticket that has ended did so, with the error unless that is OK. RESULT_UNKNOWN if
   its record may have been dropped. Under the queue's lock. */
static gpusync_result gpusync__ticket_result(gpusync_queue *q, uint64_t ticket, gpusync_error *error)
{
    if (ticket == GPUSYNC_NO_TICKET || gpusync__ended_as(q, ticket, GPUSYNC__WELL))
        return GPUSYNC_OK;
    bool left = gpusync__ended_as(q, ticket, GPUSYNC__LEFT);
    const gpusync_error *record = gpusync__record_of(q, ticket);
    if (!record && !left && ticket > q->dropped)
        return GPUSYNC_OK;
    gpusync_result unknown = left ? GPUSYNC_ERROR_DEVICE_LOST : GPUSYNC_ERROR_RESULT_UNKNOWN;
    gpusync_result result = record ? record->result : unknown;
    if (!error)
        return result;
    if (record)
        *error = *record;
    else if (left)
        gpusync__given_up_error(q, error, result, gpusync__lost_amid);
    else
        gpusync__own_error(error, result, gpusync__off_record);
    error->ticket = ticket;
    return result;
}

/* Returns how everything up to the goal's ticket ended, with the error unless that is OK. A failure
   that sticks is told each time. Of the failures whose records were dropped only the last ticket is
   known: some work up to there failed. Under the queue's lock. */
static gpusync_result gpusync__everything_result(gpusync_queue *q, const gpusync__goal *goal, gpusync_error *error)
{
    bool stuck = GPUSYNC__LOAD_SEQ(&q->flags) & GPUSYNC__STUCK && q->stuck.ticket <= goal->ticket;
    const gpusync_error *record = stuck ? &q->stuck : gpusync__find_record(q, goal->covered + 1, goal->ticket, true);
    if (!record && q->dropped_failed <= goal->covered)
        return GPUSYNC_OK;
    bool failed = record || q->dropped_failed <= goal->ticket;
    gpusync_result result = failed ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_ERROR_RESULT_UNKNOWN;
    if (error && record)
        *error = *record;
    else if (error)
        gpusync__own_error(error, result, gpusync__off_record);
    return result;
}

/* Returns the ticket of the goal, or 0. goal may be NULL. */
static uint64_t gpusync__ticket_of(const gpusync__goal *goal)
{
    return goal && goal->kind == GPUSYNC__ONE ? goal->ticket : GPUSYNC_NO_TICKET;
}

/* Returns how the work of a goal that is met ended, with the error, which may be NULL, unless that is
   OK. tell: the caller is a wait, which returns the failures that it covers. */
static gpusync_result gpusync__result_of(gpusync_queue *q, const gpusync__goal *goal, bool tell, gpusync_error *error)
{
    uint32_t flags = GPUSYNC__LOAD_SEQ(&q->flags);
    bool everything = goal->kind == GPUSYNC__ALL;
    if (!(flags & (GPUSYNC__FAILED | GPUSYNC__LOST)))
        return GPUSYNC_OK;
    if (everything && gpusync_device_is_lost(q->device))
        return gpusync__explain(error, GPUSYNC_NO_TICKET, GPUSYNC_ERROR_DEVICE_LOST);
    GPUSYNC__LOCK(q);
    gpusync_result result =
        everything ? gpusync__everything_result(q, goal, error) : gpusync__ticket_result(q, goal->ticket, error);
    if (everything && tell && goal->ticket > q->covered)
        GPUSYNC__STORE_SEQ(&q->covered, goal->ticket);
    GPUSYNC__UNLOCK(q);
    return result;
}

/* Work in flight behind the failure is marked, because a later failure may take the place of its
   error. */
GPUSYNC_API gpusync_result gpusync_queue_clear_failure(gpusync_queue *queue)
{
    if (!queue || !queue->sticky)
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    if (!gpusync__enter(queue))
        return GPUSYNC_ERROR_DESTROYED;
    GPUSYNC__LOCK(queue);
    uint64_t failed = queue->stuck.ticket;
    bool stuck = __atomic_fetch_and(&queue->flags, ~(uint32_t)GPUSYNC__STUCK, __ATOMIC_SEQ_CST) & GPUSYNC__STUCK;
    queue->cleared = queue->head.committed;
    for (uint64_t ticket = failed + 1; stuck && ticket <= queue->cleared; ticket++) {
        gpusync__slot *slot = gpusync__slot_of(queue, ticket);
        if (slot && !slot->behind)
            slot->behind = failed;
    }
    GPUSYNC__UNLOCK(queue);
    gpusync__leave(queue);
    return GPUSYNC_OK;
}

/* --------------------------------------------------------------------------- >>wait-lists --
   The wait list of a queue or timeline has the waits and callbacks for its tickets, values, room
   and handlers, and the links of submissions to its tickets.

   A sleeping wait has a wait entry on a wait list:
     1. gpusync__enlist checks the goal, and lists the entry, in one hold of the lock.
     2. The thread that ends a ticket, or raises a value, takes the entry off in the same hold, and
        puts the waiter into a catch, so that no waiter misses the change. A waiter for many sleeps on
        until its last entry; those that are over stand on the list TOLD meanwhile.
     3. After the unlock gpusync__unpark wakes the waiters of the catch.
     4. The waiter looks. It lists the entries again that are not over (step 1), or takes off those
        that are left and returns.

   A callback, or a link of the second floor to a ticket, stands on a wait list in the same way:
     1. The caller lists it, unless it sees under the same lock that the point has been reached.
     2. The thread that ends the ticket or raises the value takes it off (gpusync__take_now), and
        calls `told`, under the lock.
     3. A callback is due at once. A link goes into the catch, and the thread tells its submission
        after the unlock. */

/* Returns the number by which a wait for a queue's goal stands on its list, or 0 if the goal is met. A
   wait for everything stands at its last ticket, which ends last as a rule; where that has ended, at
   the first that has not. Handlers do not matter here. With or without the wait list's lock. */
static uint64_t gpusync__open_at(const gpusync__goal *goal)
{
    const gpusync_queue *q = goal->queue;
    if (goal->kind == GPUSYNC__ROOM)
        return gpusync__outstanding(q) < goal->ticket ? 0 : ~goal->ticket;
    if (!gpusync__has_ended(q, goal->ticket))
        return goal->ticket;
    if (goal->kind == GPUSYNC__ALL)
        for (uint64_t ticket = gpusync__ended_to(q) + 1; ticket < goal->ticket; ticket++)
            if (!gpusync__has_ended(q, ticket))
                return ticket;
    return 0;
}

/* Returns whether the goal is met, whether or not the handlers have begun. With or without the wait
   list's lock. */
static bool gpusync__met(const gpusync__goal *goal)
{
    if (goal->kind == GPUSYNC__VALUE)
        return gpusync__value_of(goal->timeline) >= goal->ticket;
    return !gpusync__open_at(goal);
}

/* The same, of any goal, and with its handlers: where all tickets have ended, a wait with `handlers`
   stands at a ticket whose handler has not begun. Under the wait list's lock. */
static uint64_t gpusync__blocker(const gpusync__goal *goal)
{
    const gpusync_queue *q = goal->queue;
    if (goal->kind == GPUSYNC__VALUE)
        return gpusync__met(goal) ? 0 : goal->ticket;
    uint64_t open = gpusync__open_at(goal);
    if (open || !goal->handlers)
        return open;
    uint64_t first = goal->kind == GPUSYNC__ONE ? goal->ticket : 1;
    const gpusync__slot *slot = gpusync__flight_next(q, &q->ends);
    for (; slot; slot = gpusync__flight_next(q, slot))
        if (slot->ticket >= first && slot->ticket <= goal->ticket && gpusync__state_of(slot) == GPUSYNC__ARMED)
            return slot->ticket;
    return 0;
}

/* Returns the flags of the goal's queue or timeline. */
static uint32_t gpusync__flags_of(const gpusync__goal *goal)
{
    return GPUSYNC__LOAD_SEQ(goal->queue ? &goal->queue->flags : &goal->timeline->flags);
}

/* Returns whether the goal is given up, because its queue or timeline is lost or closing. */
static bool gpusync__stopped(const gpusync__goal *goal)
{
    return (gpusync__flags_of(goal) & goal->stops) != 0;
}

/* Returns the device of the goal's queue or timeline. */
static gpusync_device *gpusync__device_of(const gpusync__goal *goal)
{
    return goal->queue ? goal->queue->device : goal->timeline->device;
}

/* Returns the wait list of the goal's queue or timeline. */
static gpusync__wait_list *gpusync__waits_of(const gpusync__goal *goal)
{
    return goal->queue ? &goal->queue->waits : &goal->timeline->waits;
}

/* Returns the list on which the wait entry stands. */
static gpusync__list *gpusync__list_of(const gpusync__wait_entry *entry)
{
    return &gpusync__waits_of(&entry->goal)->lists[entry->list];
}

/* Lists an entry of this waiter by the number. Under the wait list's lock. */
static void gpusync__link_entry(gpusync__wait_entry *entry, gpusync__waiter *w, uint64_t number)
{
    entry->waiter = w;
    entry->node.told = NULL;
    entry->node.number = number;
    entry->list = entry->goal.kind == GPUSYNC__ROOM ? GPUSYNC__ROOMS : GPUSYNC__WAITS;
    gpusync__list_add(gpusync__list_of(entry), &entry->node);
    GPUSYNC__ADD_SEQ(&w->entries, 1);
}

/* Takes a wait entry off. True if its waiter has no other entry that is not over. Under the wait
   list's lock. */
static bool gpusync__unlink_entry(gpusync__wait_entry *entry)
{
    gpusync__list_remove(gpusync__list_of(entry), &entry->node);
    return entry->list != GPUSYNC__TOLD && GPUSYNC__SUB_SEQ(&entry->waiter->entries, 1) == 1;
}

/* Returns whether the wait list has a node. Under its lock. */
static bool gpusync__has_listed(const gpusync__wait_list *waits)
{
    return waits->lists[GPUSYNC__WAITS].end[0] || waits->lists[GPUSYNC__ROOMS].end[0];
}

/* Makes a callback due. The caller may hold a wait list's lock. */
GPUSYNC__RARE void gpusync__push_due(gpusync_device *dev, gpusync__due *due, gpusync__deferred *deferred)
{
    gpusync__lock(&dev->submission_lock);
    due->next = due->along = NULL;
    due->previous = dev->last_due;
    *(dev->due ? &dev->last_due->next : &dev->due) = due;
    dev->last_due = due;
    gpusync__owed *owed = due->owed;
    if (owed) {
        *(owed->due ? &owed->last_due->along : &owed->due) = due;
        owed->last_due = due;
    }
    GPUSYNC__STORE_SEQ(&dev->due_count, dev->due_count + 1);
    gpusync__unlock(&dev->submission_lock);
    deferred->calls = true;
}

/* What a thread has taken off a wait list, for the time after the unlock. Waiters are copied out,
   because a waiter may be in another wait by the time it is unparked; the wake-up is one too many
   then. */
#define GPUSYNC__WAKE_BATCH 16
typedef struct gpusync__catch {
    gpusync__waiter *waiters[GPUSYNC__WAKE_BATCH]; /* to be unparked */
    unsigned count;                                /* how many of them */
    bool more;                                     /* some were left where they are, for another hold of the lock */
    bool tells;                                    /* the caller has ended the ticket, or has come to tell of a value */
    const gpusync_error *error;                    /* of that, which failed; NULL: it went well. With `tells` */
    gpusync__link *links, *last_link;              /* of submissions, in their order, by `also` */
} gpusync__catch;

/* Empties the catch, before the lock is taken for the first time. The fields that depend on `count`
   and `tells` need no value. */
static void gpusync__catch_nothing(gpusync__catch *caught)
{
    caught->count = 0;
    caught->more = false;
    caught->tells = false;
    caught->links = NULL;
}

/* Wakes the waiters of the catch. No lock is held, because this calls hooks. True if there are
   more, and the caller has to take the lock for another round. */
static bool gpusync__unpark(gpusync_device *dev, gpusync__catch *caught)
{
    for (unsigned i = 0; i < caught->count; i++)
        dev->hooks.unpark(dev->hooks.user, &caught->waiters[i]->open);
    bool more = caught->more;
    caught->count = 0;
    caught->more = false;
    return more;
}

/* Returns whether the goal may have failed, from the flags alone: a wrong yes costs one wake-up. */
static inline bool gpusync__may_have_failed(const gpusync__goal *goal)
{
    if (goal->kind == GPUSYNC__VALUE)
        return gpusync__value_of(goal->timeline) == GPUSYNC__FAILED_VALUE;
    return gpusync__flags_of(goal) & (GPUSYNC__FAILED | GPUSYNC__LOST) &&
           (goal->kind == GPUSYNC__ALL || !gpusync__ended_as(goal->queue, goal->ticket, GPUSYNC__WELL));
}

/* Takes a wait entry off that is over or stopped, and its waiter into the catch. A waiter for several
   points sleeps on until its last entry is taken, unless it waits for any of them, or one has failed
   or stopped; meanwhile the entry is TOLD. The entry stays listed if the catch is full (`more`). Once
   it is taken off, it belongs to its waiter, and may be gone: the caller reads the next node before.
   A waiter for any may serve another wait by then: `any` is read before, and where it is set nothing
   of either is read after. Under the wait list's lock.
   Interleaving 19: a wait returns before its unpark, and its waiter serves another wait. The unpark
   is one too many, and that wait looks again. */
static void gpusync__take_entry(gpusync__wait_entry *entry, gpusync__catch *caught)
{
    gpusync__waiter *w = entry->waiter;
    bool any = w->any;
    if (caught->count == GPUSYNC__WAKE_BATCH) {
        caught->more = true;
    } else if (gpusync__unlink_entry(entry) || any || gpusync__stopped(&entry->goal) ||
               (w->failures && gpusync__may_have_failed(&entry->goal))) {
        caught->waiters[caught->count++] = w;
    } else { /* its waiter leaves it under this lock */
        entry->list = GPUSYNC__TOLD;
        entry->node.number = 0; /* as all there */
        gpusync__list_add(gpusync__list_of(entry), &entry->node);
    }
}

/* Returns the callback whose place on the wait list this is. */
static gpusync__callback *gpusync__callback_of(gpusync__node *node)
{
    return (gpusync__callback *)(void *)((char *)node - offsetof(gpusync__callback, node));
}

/* `told` of a callback: keeps a copy of the error, and makes the callback due at once. A thread
   that sees the end has to take the wait list's lock to register another callback, which therefore
   becomes due later. Under the wait list's lock; takes the submission lock. */
static void gpusync__callback_told(gpusync__node *node, const gpusync_error *error, gpusync__catch *caught,
                                   gpusync__deferred *deferred)
{
    gpusync__callback *callback = gpusync__callback_of(node);
    (void)caught;

    if (error)
        callback->error = *error;
    callback->due.error = error ? &callback->error : NULL;
    gpusync__push_due(gpusync__device_of(&callback->goal), &callback->due, deferred);
}

/* Returns whether a node stays listed until its queue or timeline is destroyed: the release of an
   object for work of a lost device that was given up. Under the wait list's lock. */
static bool gpusync__is_kept(gpusync__node *node)
{
    if (node->told != gpusync__callback_told)
        return false;
    const gpusync__callback *callback = gpusync__callback_of(node);
    const gpusync__goal *goal = &callback->goal;
    uint32_t flags = gpusync__flags_of(goal);
    if (callback->due.fn || flags & GPUSYNC__CLOSING)
        return false;
    if (goal->queue)
        return gpusync__ended_as(goal->queue, goal->ticket, GPUSYNC__LEFT);
    return flags & GPUSYNC__GIVEN_UP && gpusync__value_of(goal->timeline) == GPUSYNC__FAILED_VALUE;
}

#define GPUSYNC__HOLD_MOST 64 /* nodes that one hold of the lock takes off, or moves; those that stay do not count */

/* Takes off what stands at these numbers and is over, and moves on a wait that is for more: its next
   place is where gpusync__blocker says. In this hold or before, the ticket has ended, a handler of it
   has begun, or the value was reached. With `tells` the caller tells the callbacks and links, because
   no other thread knows how the ticket ended. One hold takes a few, and leaves the rest to another
   hold of the same caller (`more`). Under the wait list's lock. */
static __attribute__((noinline)) void gpusync__take_now(gpusync__wait_list *waits, uint64_t low, uint64_t high,
                                                        gpusync__catch *caught, gpusync__deferred *deferred)
{
    gpusync__list *list = &waits->lists[GPUSYNC__WAITS];
    gpusync__node *node = gpusync__list_from(list, low), *next;

    for (unsigned left = GPUSYNC__HOLD_MOST; node && node->number <= high && !caught->more; node = next) {
        gpusync__wait_entry *entry = (gpusync__wait_entry *)(void *)node;
        uint64_t number = node->told ? 0 : gpusync__blocker(&entry->goal);
        bool stays = node->told ? !caught->tells || gpusync__is_kept(node) : number == node->number;
        next = node->beside[1];
        if (stays)
            continue; /* it does not count: the rest would never end */
        if (left-- == 0) {
            caught->more = true;
        } else if (node->told) {
            gpusync__list_remove(list, node);
            node->told(node, caught->error, caught, deferred);
        } else if (!number) {
            gpusync__take_entry(entry, caught);
        } else {
            gpusync__list_remove(list, node);
            node->number = number;
            gpusync__list_add(list, node);
        }
    }
}

/* Takes off the waits that a flag has stopped. If the catch is full, the rest stays listed (`more`).
   Takes the wait list's lock. */
GPUSYNC__RARE void gpusync__take_stopped(gpusync__wait_list *waits, gpusync__catch *caught)
{
    gpusync__lock(&waits->lock);
    for (int i = 0; i < GPUSYNC__LISTS; i++) {
        for (gpusync__node *node = waits->lists[i].end[0], *next; node && !caught->more; node = next) {
            gpusync__wait_entry *entry = (gpusync__wait_entry *)(void *)node;
            next = node->beside[1];
            if (!node->told && gpusync__stopped(&entry->goal))
                gpusync__take_entry(entry, caught);
        }
    }
    gpusync__unlock(&waits->lock);
}

/* Wakes the waits that a flag has stopped, after the caller has set it. No lock is held. */
GPUSYNC__RARE void gpusync__wake_stopped(gpusync_device *dev, gpusync__wait_list *waits)
{
    gpusync__catch caught;
    gpusync__catch_nothing(&caught);
    do
        gpusync__take_stopped(waits, &caught);
    while (gpusync__unpark(dev, &caught));
}

#define GPUSYNC__SWEEP_NS 50000000u       /* from a new reason to the first sweep */
#define GPUSYNC__SWEEP_MOST_NS 500000000u /* from one sweep to the next, where they find nothing */
#define GPUSYNC__LOSS_NS 500000000u       /* from a loss to the first look, and from that to the second */

/* Enters and returns the device's next queue that is not closing: behind `before`, which it leaves,
   or the first with at least this number if `before` is NULL. `before` keeps its place until it is
   left, because destroy lets the calls inside out before it takes a queue off the list. */
static gpusync_queue *gpusync__next_queue(gpusync_device *dev, gpusync_queue *before, uint64_t number)
{
    gpusync__lock(&dev->lock);
    gpusync_queue *q = gpusync__queue_at(before ? before->place.beside[1] : gpusync__list_from(&dev->queues, number));
    while (q && !gpusync__enter(q))
        q = gpusync__queue_at(q->place.beside[1]);
    gpusync__unlock(&dev->lock);
    if (before)
        gpusync__leave(before);
    return q;
}

/* Enters and returns the device's next timeline that is not closing, and leaves the one before. */
static gpusync_timeline *gpusync__next_timeline(gpusync_device *dev, gpusync_timeline *before)
{
    gpusync__lock(&dev->lock);
    gpusync_timeline *t = gpusync__timeline_at(before ? before->place.beside[1] : dev->timelines.end[0]);
    while (t && gpusync__timeline_enter(t) != GPUSYNC_OK)
        t = gpusync__timeline_at(t->place.beside[1]);
    gpusync__unlock(&dev->lock);
    if (before)
        gpusync__timeline_leave(before);
    return t;
}

/* Tells a device's queues of its loss, once (gpusync__read_failure): they take no new work, waits
   for room end, and held work, which will never be issued, ends with gpusync__next_to_go. What the
   GPU has goes on, and is given up when the sweep has looked twice (gpusync__next_look). */
GPUSYNC__RARE void gpusync__lose(gpusync_device *dev, gpusync__deferred *deferred)
{
    gpusync_queue *q;
    uint64_t none = 0;

    if (!GPUSYNC__SWAP_SEQ(&dev->lost_ns, &none, gpusync_now_ns()))
        return;
    gpusync__lock(&dev->lock);
    GPUSYNC__EACH_QUEUE(q, dev) {
        gpusync__set_flag(&q->flags, GPUSYNC__LOST);
        if (gpusync__upper_of(q))
            gpusync__upper_of(q)->want(q, deferred); /* after the flag: gpusync__hold */
    }
    gpusync__unlock(&dev->lock);
    gpusync__start_sweep(dev, GPUSYNC__LOSS_NS, GPUSYNC__SWEEP_MOST_NS); /* a sleeper has its own sweep sooner */
    while ((q = gpusync__next_queue(dev, q, 0)) != NULL)
        gpusync__wake_stopped(dev, &q->waits);
    gpusync__log(dev, GPUSYNC_LOG_ERROR, "device lost: what has not ended in a second is given up; make a new device");
}

static inline void gpusync__take(gpusync__wait_list *waits, uint64_t low, uint64_t high, gpusync__catch *caught,
                                 gpusync__deferred *deferred)
{
    const gpusync__node *first = waits->lists[GPUSYNC__WAITS].end[0];
    if (first && first->number <= high)
        gpusync__take_now(waits, low, high, caught, deferred);
}

static inline void gpusync__take_at(gpusync_queue *q, uint64_t ticket, gpusync__catch *caught,
                                    gpusync__deferred *deferred)
{
    gpusync__take(&q->waits, ticket, ticket, caught, deferred);
}

/* The same, of a ticket that the caller has just ended, with this error or well (NULL). */
static inline void gpusync__take_ended(gpusync_queue *q, uint64_t ticket, const gpusync_error *error,
                                       gpusync__catch *caught, gpusync__deferred *deferred)
{
    caught->tells = true;
    caught->error = error;
    gpusync__take_at(q, ticket, caught, deferred);
}

/* Takes off as many waits for room as there is room for. A waiter that does not take its room wakes
   the next one (gpusync__give_room). Waiters that an earlier hold took off are not counted here: as
   long as such a waiter has not taken its room, and so raised `outstanding`, another waiter may
   wake for the same room, in vain. Under the queue's lock. */
GPUSYNC__RARE void gpusync__take_room_waits(gpusync_queue *q, gpusync__catch *caught)
{
    gpusync__node *next;
    gpusync__node *node = q->waits.lists[GPUSYNC__ROOMS].end[0];

    for (uint32_t told = 0; node && !caught->more; node = next) {
        gpusync__wait_entry *entry = (gpusync__wait_entry *)(void *)node;
        next = node->beside[1];
        if (q->outstanding + told >= entry->goal.ticket)
            return;
        gpusync__take_entry(entry, caught);
        told += !caught->more; /* else the entry is listed still */
    }
}

/* Unparks the waits that the caller has taken off, takes off those that were left, and tells the
   links. Only the call that has ended a ticket takes its callbacks and links
   (`tells`), because no other one knows how it ended. ticket: one whose handler may have begun, or
   0. No lock is held. */
GPUSYNC__RARE void gpusync__tell_now(gpusync_queue *q, uint64_t ticket, gpusync__catch *caught,
                                     gpusync__deferred *deferred)
{
    while (gpusync__unpark(q->device, caught)) {
        GPUSYNC__LOCK(q);
        if (ticket)
            gpusync__take_at(q, ticket, caught, deferred);
        if (!caught->more)
            gpusync__take_room_waits(q, caught);
        GPUSYNC__UNLOCK(q);
    }
    if (caught->links)
        gpusync__upper_of(q)->over(caught->links, caught->error, deferred);
    caught->links = NULL;
}

static inline void gpusync__tell(gpusync_queue *q, uint64_t ticket, gpusync__catch *caught, gpusync__deferred *deferred)
{
    if (caught->count || caught->links || caught->more)
        gpusync__tell_now(q, ticket, caught, deferred);
}

/* Under the queue's lock. */
static inline void gpusync__give_rooms(gpusync_queue *q, uint32_t count, gpusync__catch *caught)
{
    gpusync__count_room(q, 0 - count);
    if (q->waits.lists[GPUSYNC__ROOMS].end[0])
        gpusync__take_room_waits(q, caught);
}

/* Gives room for so many buffers back, and frees the slot that had it, which nothing leads to, or
   NULL. Its buffer is released before, because a waiter may have the room at once. count 0: for a
   waiter that was woken for room, and does not take it. No lock is held. */
GPUSYNC__RARE void gpusync__give_room(gpusync_queue *q, uint32_t count, gpusync__slot *slot)
{
    gpusync__catch caught;
    gpusync__catch_nothing(&caught);
    GPUSYNC__LOCK(q);
    if (slot)
        gpusync__slot_free(&q->free_slots, slot);
    gpusync__give_rooms(q, count, &caught);
    GPUSYNC__UNLOCK(q);
    gpusync__tell(q, 0, &caught, NULL); /* waits for room alone, which defer no work */
}

static void gpusync__waiter_init(gpusync__waiter *w)
{
    pthread_mutex_init(&w->mutex, NULL);
    gpusync__cond_init(&w->wake);
}

static void gpusync__waiter_end(gpusync__waiter *w)
{
    pthread_mutex_destroy(&w->mutex);
    pthread_cond_destroy(&w->wake);
}

/* Returns a free waiter, or NULL if there is no memory. A waiter stays as long as the device, so
   that a late unpark always finds it. No waiter shares a cache line with another. */
static gpusync__waiter *gpusync__waiter_take(gpusync_device *dev)
{
    gpusync__lock(&dev->submission_lock);
    gpusync__waiter *w = dev->free_waiters;
    if (w)
        dev->free_waiters = w->next;
    gpusync__unlock(&dev->submission_lock);
    if (w || (w = (gpusync__waiter *)gpusync__allocate(dev, sizeof *w, GPUSYNC__APART)) == NULL)
        return w;
    gpusync__waiter_init(w);
    return w;
}

/* Gives back a waiter with no wait entry listed. A permit that is left over ends the next sleep
   early, once. */
static void gpusync__waiter_give(gpusync_device *dev, gpusync__waiter *w)
{
    gpusync__lock(&dev->submission_lock);
    w->next = dev->free_waiters;
    dev->free_waiters = w;
    gpusync__unlock(&dev->submission_lock);
}

#define GPUSYNC__LINGER_NS 1000000u /* a sleep of gpusync__linger */

/* Waits a little for another thread that is on its way out: yields at first, then sleeps for a
   millisecond at a time. going: on the thread of `destroy_queue`, which calls no hook, and sleeps
   longer each time. No lock is held. */
static void gpusync__linger(gpusync_device *dev, const gpusync__going *going, unsigned *rounds)
{
    unsigned round = ++*rounds;
    if (going && going->device) {
        uint64_t ns = (uint64_t)(round < 50 ? round : 50) * GPUSYNC__LINGER_NS;
        gpusync__default_park(NULL, &dev->lingers.open, gpusync_now_ns() + ns);
        return;
    }
    gpusync__waiter *w = round > 256 ? gpusync__waiter_take(dev) : NULL;
    if (!w)
        dev->hooks.yield(dev->hooks.user);
    else
        dev->hooks.park(dev->hooks.user, &w->open, gpusync_now_ns() + GPUSYNC__LINGER_NS);
    if (w)
        gpusync__waiter_give(dev, w);
}

/* ---------------------------------------------------------------------------- >>callbacks --
   Callbacks that are due. Those of a device run one at a time, in the order in which they became
   due: on its dispatch queue, in gpusync_dispatch, or in the destroy of their queue or timeline.

     1. gpusync__push_due puts a callback on the device's list, and sets `calls` among the
        deferred work of the thread that found the end.
     2. At the end of its call that thread has the dispatch queue run gpusync__answer, or tells the
        program (gpusync__ask_for_calls). The callback also stands on a list of its queue or timeline
        (gpusync__owed), whose destroy takes it from there, without a search among those of others.
     3. gpusync__pop_due takes the first callback, and sets `calling`: no thread gets another one
        until `calling` is cleared.
     4. gpusync__run_one_due calls the program. If a thread was turned away meanwhile
        (`turned_away`), it asks for calls again.
     5. It counts `owed` of the queue or timeline down, for which destroy waits in gpusync__pay. */

/* -- the pools of callbacks, submissions and links. A callback comes here when it has run, a
   submission and its links when the last reference goes (gpusync__submission_free). While one is
   here, a call that needs one calls no allocator. The next two are under the submission lock. */

/* What a pool keeps. The rest of a burst is freed at once. */
static const uint32_t gpusync__pool_keeps[GPUSYNC__POOLS] = {256, 64, 256};

/* Takes one out of the pool, whose things have this size. NULL: it is empty. */
static void *gpusync__pool_take(gpusync_device *dev, int which, size_t size)
{
    gpusync__pool *pool = &dev->pools[which];
    void *spare = pool->free;
    if (!pool->size)
        pool->size = size;
    if (spare) {
        pool->free = *(void **)spare;
        pool->count--;
    }
    return spare;
}

/* Puts one back, or into the list `over`, which the caller passes to gpusync__pool_drop. */
static void gpusync__pool_give(gpusync_device *dev, int which, void *memory, void **over)
{
    gpusync__pool *pool = &dev->pools[which];
    bool keeps = pool->count < gpusync__pool_keeps[which];
    void **list = keeps ? &pool->free : over;
    pool->count += keeps;
    *(void **)memory = *list;
    *list = memory;
}

/* Frees a list of things of this pool. No lock is held: the allocator is the program's. */
static void gpusync__pool_drop(gpusync_device *dev, int which, void *list)
{
    for (void *next; list; list = next) {
        next = *(void **)list;
        gpusync__free(dev, list, dev->pools[which].size);
    }
}

/* -- functions that dispatch queues run. A dispatched function cannot be taken back, and may come
   when its device is gone: then it finds only the device's memory, which has a reference for each. */

/* Drops a reference. */
static void gpusync__device_unref(gpusync_device *dev)
{
    if (GPUSYNC__SUB_SEQ(&dev->refs, 1) == 1)
        gpusync__default_release(NULL, dev, sizeof *dev);
}

/* Enters a device for a dispatched function. False: it is gone. Partner of gpusync__device_close,
   which swaps `inside` from 1 to 0. */
static bool gpusync__device_enter(gpusync_device *dev)
{
    uint32_t inside = GPUSYNC__LOAD_SEQ(&dev->inside);
    while (inside && !GPUSYNC__SWAP_SEQ(&dev->inside, &inside, inside + 1)) {}
    return inside != 0;
}

static void gpusync__device_leave(gpusync_device *dev)
{
    GPUSYNC__SUB_SEQ(&dev->inside, 1);
}

/* -- timers of the sweep, which is in >>sweep */

/* Starts a timer, unless one that comes no later is on its way. pace: the delay from that sweep to
   the next, which is set in both cases. */
static void gpusync__start_sweep(gpusync_device *dev, uint64_t delay, uint64_t pace)
{
    GPUSYNC__STORE_SEQ(&dev->pace_ns, pace);
    uint64_t at = gpusync_now_ns() + delay;
    uint64_t next = GPUSYNC__LOAD_SEQ(&dev->sweep_ns);
    do
        if (next && next <= at)
            return;
    while (!GPUSYNC__SWAP_SEQ(&dev->sweep_ns, &next, at));
    GPUSYNC__ADD_SEQ(&dev->refs, 1);
    GPUSYNC__ADD_SEQ(&dev->timers, 1);
    gpusync__dispatch_after(gpusync__dispatch_time(0, (int64_t)delay), dev->sweep_queue, dev, gpusync__sweep);
}

/* Starts a timer for a reason that the caller has listed, unless a sweep comes soon. Partner of
   gpusync__sweep, which clears `sweep_ns` and then looks for reasons: the sweep sees the reason, or
   this call sees 0 and starts a timer. No lock is held. */
static inline void gpusync__arm_sweep(gpusync_device *dev)
{
    if (GPUSYNC__LOAD_SEQ(&dev->pace_ns) != GPUSYNC__SWEEP_NS || !GPUSYNC__LOAD_SEQ(&dev->sweep_ns))
        gpusync__start_sweep(dev, GPUSYNC__SWEEP_NS, GPUSYNC__SWEEP_NS);
}

/* -- the calls */

/* Takes the first callback that is due, of any queue or timeline, or of the one that owes these;
   the caller calls it. NULL if there is none, or while another callback runs. */
GPUSYNC__RARE gpusync__due *gpusync__pop_due(gpusync_device *dev, const gpusync__owed *owed)
{
    gpusync__lock(&dev->submission_lock);
    gpusync__due *due = owed ? owed->due : dev->due;
    if (dev->calling) {
        dev->turned_away = true;
        due = NULL;
    }
    if (due) {
        *(due->previous ? &due->previous->next : &dev->due) = due->next;
        *(due->next ? &due->next->previous : &dev->last_due) = due->previous;
        if (due->owed)
            due->owed->due = due->along; /* it was the first of these, too */
        GPUSYNC__STORE_SEQ(&dev->due_count, dev->due_count - 1);
        dev->calling = true;
    }
    gpusync__unlock(&dev->submission_lock);
    return due;
}

/* Calls the callback that gpusync__pop_due gave: of a submission, or a registered one. A callback
   without a function releases its object, whose dealloc is the program's code, as a callback is. No
   lock is held. The last step counts `owed` down, or drops the submission's reference; destroy may
   free the queue or the timeline after that. */
static void gpusync__run_one_due(gpusync_device *dev, gpusync__due *due)
{
    void (*done)(gpusync__due * due) = due->done;
    gpusync__owed *owed = due->owed;
    gpusync__deferred deferred = GPUSYNC__NOTHING;
    gpusync__call call;
    void *over = NULL;

    gpusync__user_begin(&call);
    void *pool = gpusync__pool_push();
    if (due->fn && owed && dev->trace)
        dev->trace->callback(dev, due);
    if (due->fn)
        due->fn(due->user, due->error ? due->error->result : GPUSYNC_OK, due->error);
    else
        gpusync__release(due->user);
    gpusync__pool_pop(pool);
    gpusync__user_end(&call);

    gpusync__lock(&dev->submission_lock);
    dev->calling = false;
    deferred.calls = dev->turned_away && dev->due;
    dev->turned_away = false;
    if (!done)
        gpusync__pool_give(dev, GPUSYNC__POOL_CALLBACKS, due, &over);
    gpusync__unlock(&dev->submission_lock);
    gpusync__pool_drop(dev, GPUSYNC__POOL_CALLBACKS, over);
    gpusync__ask_for_calls(dev, &deferred);
    if (done)
        done(due);
    else
        GPUSYNC__SUB_SEQ(&owed->count, 1);
}

/* Runs the callbacks that are due now, and asks for calls for those that become due meanwhile, so
   that a callback that registers the next one leaves the thread to others in between. Returns how
   many have run. */
static size_t gpusync__run_due(gpusync_device *dev, size_t max)
{
    gpusync__deferred deferred = GPUSYNC__NOTHING;
    gpusync__due *due;
    size_t n = 0;

    gpusync__lock(&dev->submission_lock);
    if (max > dev->due_count)
        max = dev->due_count;
    gpusync__unlock(&dev->submission_lock);
    for (; n < max && (due = gpusync__pop_due(dev, NULL)) != NULL; n++)
        gpusync__run_one_due(dev, due);
    deferred.calls = n && GPUSYNC__LOAD_SEQ(&dev->due_count);
    gpusync__ask_for_calls(dev, &deferred);
    return n;
}

/* Runs the callbacks that are due, on the dispatch queue. Partner of gpusync__ask_for_calls: this
   call clears `asked` before it takes callbacks, so that a thread that asks later has another call
   come. */
static void gpusync__answer(void *context)
{
    gpusync_device *dev = (gpusync_device *)context;
    GPUSYNC__STORE_SEQ(&dev->asked, 0);
    if (gpusync__device_enter(dev)) {
        gpusync__run_due(dev, SIZE_MAX);
        gpusync__device_leave(dev);
    }
    gpusync__device_unref(dev);
}

/* Has the dispatch queue, or the program, run the callbacks that are due, if the deferred work
   found one. One call on its way (`asked`) is enough for all of them. No lock is held.
   Interleaving 18: a callback runs for seconds. Handlers go on, because callbacks run on a dispatch
   queue, or in gpusync_dispatch, and never in a handler. */
static void gpusync__ask_for_calls(gpusync_device *dev, gpusync__deferred *deferred)
{
    if (!deferred->calls)
        return;
    deferred->calls = false;
    if (gpusync__is_manual(dev)) {
        if (dev->notify)
            dev->notify(dev->notify_user);
    } else if (gpusync__swap32(&dev->asked, 0, 1)) {
        GPUSYNC__ADD_SEQ(&dev->refs, 1);
        gpusync__dispatch_async(dev->callback_queue, dev, gpusync__answer);
    }
}

/* Runs the callbacks of a queue or timeline that is being destroyed, until it owes none. While
   another thread runs a callback, which may be the last, this one lingers. The thread of
   `destroy_queue` runs none, and waits for those that do.
   Interleaving 23: a timeline is destroyed while a handler has taken a callback off its list.
   Destroy waits until the timeline owes no callback. */
static void gpusync__pay(gpusync_device *dev, const gpusync__owed *owed, const gpusync__going *going)
{
    unsigned rounds = 0;
    while (GPUSYNC__LOAD_SEQ(&owed->count)) {
        gpusync__due *due = going->device ? NULL : gpusync__pop_due(dev, owed);
        if (due)
            gpusync__run_one_due(dev, due);
        else
            gpusync__linger(dev, going, &rounds);
    }
}

/* Runs callbacks of a MANUAL device only. For any other device the call is OK, and runs none. */
GPUSYNC_API gpusync_result gpusync_dispatch(gpusync_device *device, size_t max, size_t *count)
{
    if (count)
        *count = 0;
    if (!device)
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    if (gpusync__in_callback())
        return GPUSYNC_ERROR_WOULD_DEADLOCK;
    if (!gpusync__is_manual(device))
        return GPUSYNC_OK;
    GPUSYNC__ADD_SEQ(&device->inside, 1);
    size_t n = gpusync__run_due(device, max);
    if (count)
        *count = n;
    gpusync__lock(&device->lock);
    bool ends = n < max && device->goes && device->objects == 0;
    if (ends)
        device->goes = false; /* for one call alone */
    gpusync__unlock(&device->lock);
    gpusync__device_leave(device);
    if (ends)
        gpusync__device_end(device);
    return GPUSYNC_OK;
}

/* Does the deferred work before the callbacks, because that work may make more of them due. */
GPUSYNC__RARE void gpusync__do_deferred_now(gpusync_device *dev, gpusync__deferred *deferred)
{
    if (deferred->busy)
        GPUSYNC__LOAD_SEQ(&dev->upper)->work(dev, deferred);
    gpusync__ask_for_calls(dev, deferred);
}

/* Does the deferred work of a call, as its last step. No lock is held. */
static void gpusync__do_deferred(gpusync_device *dev, gpusync__deferred *deferred)
{
    if (deferred->busy || deferred->calls)
        gpusync__do_deferred_now(dev, deferred);
}

/* ---------------------------------------------------------------------------------- >>end --
   The end of a command buffer, found by its handler or by a look: a thread that reads the status.
   The first to lock the queue after that ends the ticket; the other finds GPUSYNC__ENDED.

     1. The handler begins (ARMED -> RUNNING), or a wait, a poll or a sweep reads a terminal status.
     2. The thread reads the times, and the error of failed work, without a lock.
     3. In one hold of the queue's lock it records a failure, ends the ticket, moves `completed`,
        and takes the waits for the ticket off the wait list. For a part of a submission it only
        sets ENDED, and tells the submission after the unlock.
     4. The handler gives back the room, and leaves the slot. For a plain commit that went well one
        hold does steps 3 and 4, unless the device has a trace or the queue is sticky.
     5. After the unlock the thread unparks waiters, calls trace and log, and releases the buffer.
        The queue stays meanwhile: a look is inside the queue, and a handler counts in `leaving`. */

/* Reads the GPU's times of a command buffer or a feedback. */
static void gpusync__read_times(void *report, gpusync__outcome *outcome)
{
    outcome->gpu_start = GPUSYNC__AS(double)(report, gpusync__sel.gpuStartTime);
    outcome->gpu_end = GPUSYNC__AS(double)(report, gpusync__sel.gpuEndTime);
}

/* Remembers how long a ticket took: from its issue, or from the end of the work before it, to its
   own end. If that end is before the issue, or lies ahead, Metal has given none, or one of another
   clock: then the work has ended now. Work that ended out of order took 1 ns. If the time says
   nothing of later tickets, because the work failed, waited on the GPU, or was committed by the
   program, the caller sets it to 0 again. Under the queue's lock. */
GPUSYNC__INLINE void gpusync__learn(gpusync_queue *q, uint64_t ticket, uint64_t issued, const gpusync__outcome *outcome)
{
    double seconds = outcome->gpu_end;
    uint64_t end = seconds > 0 && seconds < 8e9 ? (uint64_t)(int64_t)(seconds * 1e9) : 0;
    uint64_t ended = q->ended_ns;
    uint64_t begin = issued > ended ? issued : ended;

    if (end <= begin) { /* the clock is read for such an end alone */
        uint64_t now = gpusync_now_ns();
        if (begin > now)
            begin = issued;
        if (end <= issued || end > now)
            end = now;
        if (end <= begin)
            end = begin + 1; /* 0: not known */
    }
    q->took_ns[ticket % GPUSYNC__TAKEN] = end - begin;
    q->ended_ns = end;
}

/* Writes into the ring how the ticket ended, and moves `completed` over every ticket that has
   ended, and was not left to itself. A failure is on record before. Under the queue's lock. */
static inline void gpusync__write_end(gpusync_queue *q, uint64_t ticket, const gpusync__outcome *outcome)
{
    const gpusync__ring *ring = q->ring;
    gpusync__entry *entry = gpusync__entry_in(ring, ticket);
    uint64_t how = outcome->error ? GPUSYNC__BADLY : GPUSYNC__WELL;

    if (outcome->left) {
        how = GPUSYNC__LEFT;
        gpusync__set_flag(&q->flags, GPUSYNC__FAILED);
    }
    entry->gpu_start = outcome->gpu_start;
    entry->gpu_end = outcome->gpu_end;
    GPUSYNC__STORE_SEQ(&entry->done, ticket << 2 | how);
    if (outcome->left || ticket != q->head.completed + 1)
        return;
    while (gpusync__entry_in(ring, ticket + 1)->done - ((ticket + 1) << 2) <= GPUSYNC__BADLY)
        ticket++; /* that has ended, well or badly */
    GPUSYNC_ASSERT(ticket <= q->head.committed);
    GPUSYNC__STORE_SEQ(&q->head.completed, ticket);
}

/* Ends the ticket, and takes what waits for it off the wait list. The entry and `completed` are
   written first, because waits and callbacks read them. gpusync__end_submission puts a submission's
   own callback between the two steps, before those that were registered for its ticket.
   Interleaving 6: two handlers end neighbours. Each ends its ticket in one hold, and `completed`
   moves over both. */
static inline void gpusync__end_ticket(gpusync_queue *q, uint64_t ticket, const gpusync__outcome *outcome,
                                       gpusync__catch *caught, gpusync__deferred *deferred)
{
    gpusync__write_end(q, ticket, outcome);
    gpusync__take_ended(q, ticket, outcome->error, caught, deferred);
}

/* Gives back the room of a slot whose handler has begun, or is not waited for any more, and tells
   the waits for that handler. Under the queue's lock. */
static inline void gpusync__handler_begun(gpusync_queue *q, gpusync__slot *slot, gpusync__catch *caught)
{
    gpusync__take_at(q, slot->ticket, caught, NULL); /* not what is deferred: that goes with the end of the ticket */
    if (slot->traits & GPUSYNC__HAS_ROOM)
        gpusync__give_rooms(q, 1, caught);
    slot->traits &= (uint8_t)~GPUSYNC__HAS_ROOM; /* else the sweep would give it back again */
}

/* Ends the ticket of a commit or of a buffer that the program commits. *error is the outcome's, if
   the work takes the error of an earlier failure. Under the queue's lock. */
static void gpusync__settle_ticket(gpusync_queue *q, const gpusync__slot *slot, gpusync__outcome *outcome,
                                   gpusync_error *error, gpusync__catch *caught, gpusync__deferred *deferred)
{
    if (!outcome->error && q->sticky && gpusync__takes_failure(q, slot, error))
        outcome->error = error;
    gpusync__learn(q, slot->ticket, slot->since_ns, outcome);
    if (outcome->error || slot->kind != GPUSYNC__WORK)
        q->took_ns[slot->ticket % GPUSYNC__TAKEN] = 0;
    if (slot->kind == GPUSYNC__TRACKED)
        gpusync__count_tracked(q, false);
    if (outcome->error)
        gpusync__record(q, outcome->error, false);
    gpusync__end_ticket(q, slot->ticket, outcome, caught, deferred);
}

/* Marks the slot's work as ended. view: how the caller found it; NULL: the caller is the handler,
   which has the slot. False: another thread has ended the work, or it was given up. Under the
   queue's lock. */
static bool gpusync__end_slot(gpusync__slot *slot, const gpusync__view *view)
{
    if (view && (*view->at != slot || slot->ticket != view->ticket))
        return false;
    bool first = !(slot->traits & GPUSYNC__ENDED);
    slot->traits |= GPUSYNC__ENDED;
    return first;
}

/* Ends the slot's work: its buffer is terminal, or its handler runs, which means the same. report:
   the buffer or the feedback, which has the error and the times. view: how a look found the slot;
   NULL: the caller is the handler. The caller does the deferred work. No lock is held.
   Interleaving 1: a poll sees the end, tickets go on, then the late handler comes. The slot is the
   handler's until it has run, and ENDED tells the handler that the ticket has ended.
   Interleaving 3: handler and poller both see Error. The first to lock the queue records the
   failure.
   Interleaving 21: an entry serves a later ticket while the handler of the earlier one is about to
   end its ticket. ENDED tells the handler, and wait lists know tickets, not entries. */
static void gpusync__settle(gpusync_queue *q, gpusync__slot *slot, const gpusync__view *view, void *report,
                            unsigned long status, gpusync__deferred *deferred)
{
    uint64_t ticket = view ? view->ticket : slot->ticket;
    bool is_part = (view ? view->kind : slot->kind) == GPUSYNC__PART;
    bool failed = false;
    gpusync__outcome outcome;
    gpusync__catch caught;
    gpusync_error error;

    if (status != GPUSYNC__STATUS_COMPLETED) {
        failed = gpusync__read_failure(q, view ? view->buffer : slot->buffer, report, status, &error);
        error.ticket = ticket;
        if (failed && !is_part)
            gpusync__make_log(q);
    }
    gpusync__read_times(report, &outcome);
    outcome.error = failed ? &error : NULL;
    outcome.left = false;

    if (is_part) {
        gpusync__upper_of(q)->ended(q, slot, view, &outcome, deferred);
    } else {
        gpusync__catch_nothing(&caught);
        GPUSYNC__LOCK(q);
        bool first = gpusync__end_slot(slot, view);
        if (first)
            gpusync__settle_ticket(q, slot, &outcome, &error, &caught, deferred);
        GPUSYNC__UNLOCK(q);
        if (first && q->device->trace)
            q->device->trace->end(q, ticket, NULL, &outcome);
        gpusync__tell(q, ticket, &caught, deferred);
    }
    if (!outcome.error)
        return;
    if (q->sticky && gpusync__upper_of(q))
        gpusync__upper_of(q)->want(q, deferred); /* held work is given up */
    if (gpusync_device_is_lost(q->device))
        gpusync__lose(q->device, deferred); /* no waiter waits for the log hook */
    gpusync__log_failures(q);
}

/* Gives the slot up to its handler, which may never come. The slot keeps its events, and of Metal 4
   the buffer. *buffer gets what the caller is to release. False if the handler has begun. Under the
   queue's lock. The global lock is taken for the handler, which finds ORPHANED, and then a slot
   that no queue has.
   Interleaving 5: a handler comes after gpusync_queue_destroy_now. Its slot is an orphan, and the
   handler touches nothing else. */
GPUSYNC__RARE bool gpusync__give_up(gpusync_queue *q, gpusync__slot *slot, void **buffer, gpusync__catch *caught)
{
    uint8_t armed = GPUSYNC__ARMED;
    GPUSYNC__LOCK_GLOBAL();
    bool orphan = GPUSYNC__SWAP_SEQ(&slot->state, &armed, (uint8_t)GPUSYNC__ORPHANED);
    if (orphan) {
        gpusync__handler_begun(q, slot, caught);
        gpusync__flight_remove(slot);
        if (!(slot->traits & GPUSYNC__IS_METAL4)) {
            *buffer = slot->buffer;
            slot->buffer = NULL;
        }
    }
    GPUSYNC__UNLOCK_GLOBAL();
    return orphan;
}

/* Returns how a queue that is being destroyed ends what it gives up. */
static gpusync_result gpusync__end_by_destroy(const gpusync_queue *q)
{
    if (!q->drains)
        return GPUSYNC_ERROR_DESTROYED;
    return gpusync__is_given_up(q) ? GPUSYNC_ERROR_DEVICE_LOST : GPUSYNC_ERROR_CANCELLED;
}

/* Ends a ticket, which is not a submission's, with this error, though Metal has not reported its work.
   CANCELLED: the buffer will never run, and the end goes on record; else the work is left to itself.
   The slot of a tracked buffer becomes an orphan, whose handler runs when the buffer is committed
   after all, and perhaps when it is deallocated. The caller does the deferred work. False if the ticket has ended. */
GPUSYNC__RARE bool gpusync__abandon(gpusync_queue *q, const gpusync__view *view, gpusync_error *error,
                                    gpusync__deferred *deferred)
{
    const gpusync__outcome outcome = {0, 0, error, error->result != GPUSYNC_ERROR_CANCELLED};
    gpusync__catch caught;
    void *buffer = NULL;

    error->ticket = view->ticket;
    gpusync__read_label(view->buffer, error->label, sizeof error->label);
    if (!outcome.left)
        gpusync__make_log(q);
    gpusync__catch_nothing(&caught);
    GPUSYNC__LOCK(q);
    bool first = gpusync__end_slot(view->slot, view);
    if (first && view->kind == GPUSYNC__TRACKED) {
        gpusync__count_tracked(q, false);
        gpusync__give_up(q, view->slot, &buffer, &caught); /* before `tells`: it takes waits alone */
    }
    if (first && !outcome.left)
        gpusync__record(q, error, true);
    if (first)
        gpusync__end_ticket(q, view->ticket, &outcome, &caught, deferred);
    GPUSYNC__UNLOCK(q);
    if (first && q->device->trace)
        q->device->trace->end(q, view->ticket, NULL, &outcome);
    gpusync__tell(q, view->ticket, &caught, deferred);
    gpusync__release_pooled(buffer);
    return first;
}

/* Has each part in flight keep the events of its submission, which is about to end without it; with
   Metal 4 the queue keeps them. No lock is held. */
GPUSYNC__RARE void gpusync__keep_events(gpusync_queue *q, gpusync__submission *s)
{
    gpusync__slot *slot;
    if (q->metal4)
        return;
    void *events = gpusync__upper_of(q)->events(s);
    GPUSYNC__LOCK(q);
    GPUSYNC__EACH_IN_FLIGHT(slot, q) {
        bool armed = slot->submission == s && gpusync__state_of(slot) == GPUSYNC__ARMED;
        if (!armed || slot->traits & GPUSYNC__KEEPS_EVENTS)
            continue;
        slot->traits |= GPUSYNC__KEEPS_EVENTS;
        slot->late.events = gpusync__retain(events);
    }
    GPUSYNC__UNLOCK(q);
    gpusync__release_pooled(events);
}

/* Ends every ticket of the queue that has not ended, with this result, and does the deferred work. False:
   another thread is about to end one of them. */
GPUSYNC__RARE bool gpusync__abandon_all(gpusync_queue *q, gpusync_result result, const char *message)
{
    gpusync__deferred deferred = GPUSYNC__NOTHING;
    uint64_t last = gpusync__committed(q);
    GPUSYNC__EACH_OPEN(ticket, q, last) {
        gpusync__view view;
        gpusync_error error;
        if (!gpusync__view_ticket(q, ticket, &view))
            continue;
        gpusync__given_up_error(q, &error, result, message);
        if (view.s) {
            gpusync__keep_events(q, view.s);
            gpusync__upper_of(q)->disown(view.s, &error, &deferred);
        } else {
            gpusync__abandon(q, &view, &error, &deferred);
        }
        gpusync__view_end(q, &view);
    }
    gpusync__do_deferred(q->device, &deferred);
    const gpusync__goal goal = {q, NULL, GPUSYNC__ALL, 0, false, last, 0};
    return gpusync__met(&goal);
}

/* Does the last hold of a handler, and the steps after the unlock. Work that has not ended went
   well, and ends in the same hold, with this outcome. The handler touches `leaving` last: destroy
   waits until no slot is in flight, and then for `leaving`. */
GPUSYNC__INLINE void gpusync__leave_slot(gpusync_queue *q, gpusync__slot *slot, const gpusync__outcome *outcome,
                                         gpusync__deferred *deferred)
{
    uint64_t ticket = slot->ticket;
    gpusync__catch caught;

    gpusync__catch_nothing(&caught);
    GPUSYNC__LOCK(q);
    if (!(slot->traits & GPUSYNC__ENDED)) {
        gpusync__learn(q, ticket, slot->since_ns, outcome);
        gpusync__end_ticket(q, ticket, outcome, &caught, deferred);
    }
    gpusync__handler_begun(q, slot, &caught);
    GPUSYNC__ADD_SEQ(&q->leaving, 1);
    void *buffer = slot->buffer;
    void *events = gpusync__slot_events(slot);
    gpusync__flight_remove(slot);
    gpusync__slot_free(&q->free_slots, slot);
    GPUSYNC__UNLOCK(q);
    gpusync__tell(q, ticket, &caught, deferred);
    gpusync__do_deferred(q->device, deferred);
    gpusync__release_pooled(buffer);
    if (events)
        gpusync__release_pooled(events);
    GPUSYNC__SUB_SEQ(&q->leaving, 1);
}

/* The completed handler, and the feedback handler: Metal's completion thread calls it. `block` is
   the slot. Before the state is RUNNING the handler touches nothing but the slot, because the queue
   may be gone. `object` is the feedback of a Metal 4 commit, valid during the call. Otherwise the
   handler does not read `object`, because tools that validate or capture wrap Metal's objects.
   Metal promises the thread no pool. The handler calls the log function and publishes submissions
   before it gives the room back: Metal may count the buffer until the handler returns, and a hook
   that makes a command buffer would wait for the handler.
   Interleaving 10: a wait returns by the status, and handler and callback come later. The slot is
   the handler's until it has run, and `owed` counts the callback. */
static void gpusync__completed(void *block, void *object)
{
    gpusync__slot *slot = (gpusync__slot *)block;
    uint8_t armed = GPUSYNC__ARMED;

    if (!GPUSYNC__SWAP_SEQ(&slot->state, &armed, (uint8_t)GPUSYNC__RUNNING)) {
        if (armed == GPUSYNC__ORPHANED) /* else it was called before: nothing is left to do */
            gpusync__orphan_leave(slot);
        return;
    }
    gpusync_queue *q = slot->queue;
    void *report = q->metal4 ? object : slot->buffer;
    unsigned long status = q->metal4 ? q->four->status(report) : gpusync__status(report);
    gpusync__deferred deferred = GPUSYNC__NOTHING;
    gpusync__outcome outcome = {0, 0, NULL, false};
    bool slow = q->sticky || q->traced; /* it may take an error; its end is told */
    if (status != GPUSYNC__STATUS_COMPLETED || slot->kind != GPUSYNC__WORK || slow) {
        gpusync__settle(q, slot, NULL, report, status, &deferred);
        if (deferred.busy)
            gpusync__upper_of(q)->work(q->device, &deferred);
    } else {
        gpusync__read_times(report, &outcome);
    }
    gpusync__leave_slot(q, slot, &outcome, &deferred);
}

/* -------------------------------------------------------------------------------- >>sweep --
   A look reads the status of work whose end no handler has told yet. The sweep looks for threads
   that sleep, so that a lost handler, or a listener that stays silent, costs time and does not hang
   them.

     1. A wait sleeps, or a callback or held work is listed, and gpusync__arm_sweep starts a timer.
     2. gpusync__sweep takes its timer back (`sweep_ns` is 0), and then looks at everything in
        flight.
     3. The sweep ends work that it finds to have ended, as the handler would have.
     4. While there is a reason, the sweep starts the next timer: 50 ms ahead if it found an end,
        else later each time.
     5. Without a reason the next wait that sleeps begins with step 1. */

/* Ends a look that has found a terminal status, and with it the work. */
GPUSYNC__RARE void gpusync__end_look(gpusync_queue *q, const gpusync__view *view, unsigned long status)
{
    gpusync__deferred deferred = GPUSYNC__NOTHING;
    gpusync__settle(q, view->slot, view, view->buffer, status, &deferred);
    gpusync__do_deferred(q->device, &deferred);
    gpusync__release_pooled(view->buffer);
}

/* Reads the status of a command buffer, ends its work if the status is terminal, and ends the look.
   True if the work has ended. A Metal 4 commit has no status: only its feedback tells. Where the
   work runs, the slot has a reference, too, as a rule, and so there is no pool: if this one is the
   last after all, what its dealloc autoreleases stays until the thread's own pool ends.
   Interleaving 20: a poller that has seen the end is descheduled. It has changed nothing before it
   locks the queue, and the handler goes on. */
GPUSYNC__INLINE bool gpusync__look_at(gpusync_queue *q, const gpusync__view *view)
{
    unsigned long status = q->metal4 ? GPUSYNC__STATUS_COMMITTED : gpusync__status(view->buffer);
    bool ended = status >= GPUSYNC__STATUS_COMPLETED;
    if (ended)
        gpusync__end_look(q, view, status);
    else
        gpusync__release(view->buffer);
    return ended;
}

/* Looks at the tickets from this one to `last`, up to the first that has not ended, and ends those
   whose work has. True if all have ended. Sets *reason, which may be NULL, if the sweep has to come
   again for one. */
static bool gpusync__look_tickets(gpusync_queue *q, uint64_t ticket, uint64_t last, bool *reason)
{
    bool ended = true;
    for (; ended && ticket <= last; ticket++) {
        gpusync__view view;
        if (!gpusync__view_open(q, ticket, &view))
            continue;
        if (view.s) {
            if (gpusync__upper_of(q)->look(view.s) && reason)
                *reason = true;
            ended = gpusync__has_ended(q, ticket);
            gpusync__view_end(q, &view);
        } else {
            ended = gpusync__look_at(q, &view);
        }
    }
    return ended;
}

/* Looks at every ticket. Sets *reason as gpusync__look_tickets. True if one had ended. */
static bool gpusync__look_all(gpusync_queue *q, bool *reason)
{
    uint64_t last = gpusync__committed(q);
    bool found = false;
    GPUSYNC__EACH_OPEN(ticket, q, last)
        if (!gpusync__has_ended(q, ticket) && gpusync__look_tickets(q, ticket, ticket, reason))
            found = true;
    return found;
}

/* Returns the first ticket of the goal that may not have ended; above the goal's: there is none. */
static inline uint64_t gpusync__first_of(const gpusync__goal *goal)
{
    uint64_t first = gpusync__ended_to(goal->queue) + 1;
    return goal->kind == GPUSYNC__ONE && first < goal->ticket ? goal->ticket : first;
}

/* Looks at what the goal waits for; gpusync__met finds the answer. Room comes with the handlers, not by
   a look. */
static void gpusync__look(const gpusync__goal *goal)
{
    gpusync_timeline *t = goal->timeline;
    if (t && (gpusync__is_outside(t) || GPUSYNC__LOAD_SEQ(&t->signal_count)))
        t->calls->look(t); /* else the host alone signals it */
    else if (!t && goal->kind != GPUSYNC__ROOM)
        (void)gpusync__look_tickets(goal->queue, gpusync__first_of(goal), goal->ticket, NULL);
}

/* A handler that has not come this long after the end counts as lost. */
#define GPUSYNC__LOST_HANDLER_NS 50000000u

/* Gives back the room of buffers whose handlers may never come, and tells the log. The first sweep
   that sees the end of such a buffer notes the time. Returns whether the sweep has to come again for
   another one. */
static bool gpusync__sweep_slots(gpusync_queue *q)
{
    for (;;) {
        gpusync__slot *slot;
        uint64_t now = gpusync_now_ns();
        uint64_t since = 0;
        uint64_t lost = 0; /* a ticket */
        bool again = false;
        GPUSYNC__LOCK(q);
        GPUSYNC__EACH_IN_FLIGHT(slot, q) {
            uint8_t traits = slot->traits & (GPUSYNC__HAS_ROOM | GPUSYNC__ENDED | GPUSYNC__KEEPS_EVENTS);
            if (gpusync__state_of(slot) != GPUSYNC__ARMED || traits != (GPUSYNC__HAS_ROOM | GPUSYNC__ENDED))
                continue;
            if (!slot->late.ended_ns)
                slot->late.ended_ns = now;
            since = slot->late.ended_ns;
            if (now > since + GPUSYNC__LOST_HANDLER_NS) {
                slot->traits &= (uint8_t)~GPUSYNC__HAS_ROOM;
                lost = slot->ticket;
                break;
            }
            again = true;
        }
        GPUSYNC__UNLOCK(q);
        if (!lost)
            return again;
        gpusync__give_room(q, 1, NULL);
        gpusync__log(q->device, GPUSYNC_LOG_WARNING,
                     "queue '%s', ticket %llu: Metal has not called the completed handler for %.0f ms after the end",
                     q->label, (unsigned long long)lost, (double)(now - since) / 1e6);
    }
}

/* Looks at everything in flight. Sets *found if some work had ended. True if the sweep has a reason
   to come again: a node on the wait list, held work, a call that got no room, a submission with a
   callback, or a handler that is late, whatever has found the end. */
static bool gpusync__sweep_queue(gpusync_queue *q, bool *found)
{
    if (gpusync__is_given_up(q))
        return false;
    GPUSYNC__LOCK(q);
    bool reason = q->refused || gpusync__has_listed(&q->waits);
    if (q->outstanding < q->limit)
        q->refused = false; /* the sweep comes once more: the call may need room for two */
    GPUSYNC__UNLOCK(q);
    if (GPUSYNC__LOAD_SEQ(&q->lined))
        reason = true;
    if (gpusync__look_all(q, &reason))
        *found = true;
    return gpusync__sweep_slots(q) || reason;
}

/* Looks at everything that the device has. Timelines come first, because a value that is reached
   may let held work be issued. Sets *found if the look ended some work, or a value was reached. True
   if the sweep has a reason to come again. */
static bool gpusync__sweep_device(gpusync_device *dev, bool *found)
{
    gpusync_timeline *t = NULL;
    gpusync_queue *q = NULL;
    bool reason = false;
    while ((t = gpusync__next_timeline(dev, t)) != NULL) {
        uint64_t value = gpusync__value_of(t);
        GPUSYNC__LOCK_TIMELINE(t);
        if (gpusync__has_listed(&t->waits) && dev->looked < 2) /* else it is a release, kept until destroy */
            reason = true;
        GPUSYNC__UNLOCK_TIMELINE(t);
        t->calls->look(t);
        if (gpusync__value_of(t) != value)
            *found = true;
    }
    while ((q = gpusync__next_queue(dev, q, 0)) != NULL)
        if (gpusync__sweep_queue(q, found))
            reason = true;
    return reason;
}

/* Gives up what has not ended on a queue of a lost device. A handler, or a feedback, that comes later
   changes nothing that was told. No work enters the queue once LOST is set under the order lock.
   False: a thread has that lock, and may be issuing work, or a thread is ending a submission; the
   caller comes again. */
GPUSYNC__RARE bool gpusync__give_up_queue(gpusync_queue *q)
{
    if (!gpusync__try_lock(&q->order))
        return false;
    gpusync__set_flag(&q->flags, GPUSYNC__LOST); /* gpusync__lose may not have come to it */
    gpusync__unlock(&q->order);
    if (!gpusync__abandon_all(q, GPUSYNC_ERROR_DEVICE_LOST, gpusync__lost_amid))
        return false;
    gpusync__set_flag(&q->flags, GPUSYNC__GIVEN_UP);
    gpusync__wake_stopped(q->device, &q->waits); /* waits for handlers */
    return true;
}

/* Gives up what a lost device has not ended: first its queues, and those that are being destroyed
   go on with that; then timelines fail. False: a queue could not be given up yet. */
GPUSYNC__RARE bool gpusync__give_up_device(gpusync_device *dev)
{
    gpusync_timeline *t = NULL;
    gpusync_queue *q = NULL;
    bool all = true;
    gpusync__lock(&dev->lock);
    GPUSYNC__EACH_TIMELINE(t, dev) /* before work that is given up fails them: releases of objects stay */
        gpusync__set_flag(&t->flags, GPUSYNC__GIVEN_UP);
    gpusync__unlock(&dev->lock);
    t = NULL;
    while ((q = gpusync__next_queue(dev, q, 0)) != NULL)
        if (!gpusync__is_given_up(q) && !gpusync__give_up_queue(q))
            all = false;
    if (!all)
        return false;
    gpusync__lock(&dev->lock);
    GPUSYNC__EACH_QUEUE(q, dev)
        gpusync__set_flag(&q->flags, GPUSYNC__GIVEN_UP);
    gpusync__unlock(&dev->lock);
    while ((t = gpusync__next_timeline(dev, t)) != NULL)
        t->calls->lose(t);
    return true;
}

/* On a lost device, after the sweep has looked at everything: gives up what has not ended, at the
   second look, which comes so long after the first that Metal could report the ends after the
   system was suspended. Returns the time to the next look; 0: there is none. */
static uint64_t gpusync__next_look(gpusync_device *dev)
{
    uint64_t since = GPUSYNC__LOAD_SEQ(&dev->lost_ns);
    if (!since || dev->looked == 2)
        return 0;
    uint64_t now = gpusync_now_ns();
    if (now < since + GPUSYNC__LOSS_NS)
        return since + GPUSYNC__LOSS_NS - now;
    if (dev->looked == 0)
        GPUSYNC__STORE_SEQ(&dev->lost_ns, now); /* the second look goes by the first one */
    if (dev->looked == 0 || gpusync__give_up_device(dev))
        dev->looked++;
    return dev->looked == 2 ? 0 : GPUSYNC__LOSS_NS;
}

/* The sweep, on the dispatch queue. Of several timers the last to come goes on, and each that has to
   look on a lost device. */
static void gpusync__sweep(void *context)
{
    gpusync_device *dev = (gpusync_device *)context;
    bool found = false;
    GPUSYNC__STORE_SEQ(&dev->sweep_ns, 0);
    bool last = GPUSYNC__SUB_SEQ(&dev->timers, 1) == 1;
    if (gpusync__device_enter(dev)) {
        bool reason = gpusync__sweep_device(dev, &found);
        uint64_t look = gpusync__next_look(dev);
        uint64_t pace = found ? GPUSYNC__SWEEP_NS : GPUSYNC__LOAD_SEQ(&dev->pace_ns);
        if (look && (look < pace || !reason))
            pace = look;
        if (look || (reason && last))
            gpusync__start_sweep(dev, pace, pace < GPUSYNC__SWEEP_MOST_NS / 2 ? pace * 2 : GPUSYNC__SWEEP_MOST_NS);
        gpusync__device_leave(dev);
    }
    gpusync__device_unref(dev);
}

/* --------------------------------------------------------------------------------- >>wait --
   Each wait looks at what is known, reads the status, spins if a spin pays, and sleeps, in this
   order.

     1. The caller enters the queue or timeline, and makes a goal of the ticket or value.
     2. gpusync__await looks: a goal that is met needs one load (waits_inline), or one status
        (waits_status). gpusync_wait, _timeline_wait and _wait_many do not come here for what has
        ended well.
     3. The waiter spins, and looks again and again (waits_spin), for as long as the program has
        set, or if the end is near by the queue's history (gpusync__worth). With `blocking` it calls
        Metal's own wait instead.
     4. gpusync__sleep lists a wait entry for each goal, arms the sweep and parks (waits_sleep).
     5. The waiter reads how a goal ended (gpusync__goal_result), or why it did not.
     6. The caller leaves the queue or timeline. A wait that timed out leaves nothing behind.

   With `handlers` the wait for a goal that is met goes on until every handler of its tickets has
   begun (gpusync__blocker).

   A wake-up promises nothing: a waiter that wakes calls gpusync__wait_over, and sleeps again if its
   wait is not over, so that a wake-up too many costs only time. A callback never sleeps, because
   the work that it would wait for may need its thread. */

/* Makes the goal of a wait for a ticket. GPUSYNC_EVERYTHING becomes the tickets committed by now;
   `covered` tells which of their failures earlier waits have returned. ERROR_INVALID_TICKET if no
   such ticket has been given yet. */
static gpusync_result gpusync__goal_of(gpusync_queue *q, gpusync_ticket ticket, gpusync__goal *goal)
{
    uint64_t committed = gpusync__committed(q);
    memset(goal, 0, sizeof *goal);
    goal->queue = q;
    goal->stops = GPUSYNC__CLOSING;
    goal->kind = ticket == GPUSYNC_EVERYTHING ? GPUSYNC__ALL : GPUSYNC__ONE;
    goal->ticket = ticket == GPUSYNC_EVERYTHING ? committed : ticket;
    if (goal->kind == GPUSYNC__ALL)
        goal->covered = GPUSYNC__LOAD_SEQ(&q->covered);
    return goal->ticket > committed ? GPUSYNC_ERROR_INVALID_TICKET : GPUSYNC_OK;
}

/* A wait for one goal, or for many (gpusync_wait_many). A wait for many has entered the queue or
   timeline of each goal, and leaves it as soon as that goal is over, so that the program can
   destroy what the wait does not wait for any more. */
typedef struct gpusync__wait {
    gpusync_device *device;       /* of all goals */
    gpusync_stats *stats;         /* where it is counted: of the queue, or of the device */
    gpusync__backoff *backoff;    /* of its spins: of the queue or timeline; for many of the device */
    gpusync__wait_entry *entries; /* one for each goal */
    size_t count;                 /* how many */
    size_t which;          /* any: the one that is over; else the lowest whose goal is over and failed; count: none */
    gpusync_result result; /* how that one ended */
    bool leaves;           /* each goal, as soon as it is over: a wait for many */
    /* Returns how all ended, when all are over: gpusync__tell_failures. NULL: the wait returns how each did. */
    gpusync_result (*tell)(const struct gpusync__wait *wait);
    bool any;             /* the first goal that is over ends it */
    bool failures;        /* a goal that failed ends it */
    bool broken;          /* such a goal has come, or one that cannot be met any more: it ends before all are over */
    gpusync_error *error; /* gets the error of `which`, where that failed; may be NULL */
} gpusync__wait;

/* Of this many points a wait keeps the entries on its stack. */
#define GPUSYNC__FEW_POINTS 16

/* Sets the fields of a wait entry that need a value before it is listed, and what the options, which
   may be NULL, change in its goal. */
static inline void gpusync__begin_entry(gpusync__wait_entry *entry, const gpusync_wait_options *options)
{
    entry->waiter = NULL;
    entry->node.linked = entry->over = false;
    if (!options || !options->handlers || !entry->goal.queue)
        return;
    entry->goal.handlers = true;
    entry->goal.stops |= GPUSYNC__GIVEN_UP;
}

/* Returns whether the program tracks the buffer, and has not committed it. */
static bool gpusync__is_uncommitted(const gpusync__view *view)
{
    return view->kind == GPUSYNC__TRACKED && gpusync__status(view->buffer) < GPUSYNC__STATUS_COMMITTED;
}

/* Returns whether the goal is met, with its handlers if the wait asks for them. */
static inline bool gpusync__reached(const gpusync__goal *goal)
{
    bool reached = gpusync__met(goal);
    if (!reached || !goal->handlers)
        return reached;
    GPUSYNC__LOCK(goal->queue);
    reached = !gpusync__blocker(goal);
    GPUSYNC__UNLOCK(goal->queue);
    return reached;
}

/* Returns how a goal that is met ended. tell: as for gpusync__result_of. A value that is met ended
   well, unless its timeline has failed, whose error changes no more then. */
GPUSYNC__RARE gpusync_result gpusync__goal_result(const gpusync__goal *goal, bool tell, gpusync_error *error)
{
    const gpusync_timeline *t = goal->timeline;
    if (goal->kind != GPUSYNC__VALUE)
        return gpusync__result_of(goal->queue, goal, tell, error);
    if (gpusync__value_of(t) != GPUSYNC__FAILED_VALUE)
        return GPUSYNC_OK;
    if (error)
        *error = t->error;
    return t->error.result;
}

/* Returns how a goal that is over ended. If the wait for its handlers was cut short, work that
   failed still returns its failure, and work that went well returns why the wait was cut short.
   Fills the error, which may be NULL, unless the result is OK. */
GPUSYNC__RARE gpusync_result gpusync__end_of(const gpusync__goal *goal, bool reached, gpusync_error *error)
{
    bool ended = (reached || (goal->handlers && gpusync__met(goal))) && goal->kind != GPUSYNC__ROOM;
    gpusync_result result = ended ? gpusync__goal_result(goal, true, error) : GPUSYNC_OK;
    if (reached || result != GPUSYNC_OK)
        return result;
    uint32_t lost = gpusync__flags_of(goal) & goal->stops & (GPUSYNC__LOST | GPUSYNC__GIVEN_UP);
    return gpusync__explain(error, gpusync__ticket_of(goal),
                            lost ? GPUSYNC_ERROR_DEVICE_LOST : GPUSYNC_ERROR_DESTROYED);
}

/* Takes the wait entry off its list, unless the thread that wakes the waiter has taken it off. After
   that no other thread refers to the entry. No entry of a waiter for any is ever TOLD. So if it has
   none listed, no lock is needed: the thread that took the entry off counted `entries` down last
   (gpusync__take_entry). */
GPUSYNC__RARE void gpusync__delist(gpusync__wait_entry *entry)
{
    gpusync__wait_list *waits = gpusync__waits_of(&entry->goal);
    if (!entry->waiter->any || GPUSYNC__LOAD_SEQ(&entry->waiter->entries)) {
        gpusync__lock(&waits->lock);
        if (entry->node.linked)
            gpusync__unlink_entry(entry);
        gpusync__unlock(&waits->lock);
    }
    entry->waiter = NULL;
}

/* Ends goal `i` of a wait, which is over. The wait keeps how it ended; a wait for many leaves its queue
   or timeline. */
GPUSYNC__INLINE void gpusync__end_goal(gpusync__wait *wait, size_t i, bool met)
{
    gpusync__wait_entry *entry = &wait->entries[i];
    gpusync_result result = GPUSYNC_OK;

    entry->over = true;
    if (wait->leaves && entry->waiter)
        gpusync__delist(entry);
    if (!wait->tell && (!met || gpusync__may_have_failed(&entry->goal)))
        result = gpusync__end_of(&entry->goal, met, i < wait->which ? wait->error : NULL);
    if ((!wait->tell && !met) || (wait->failures && result != GPUSYNC_OK))
        wait->broken = true;
    if (i < wait->which && (wait->any || result != GPUSYNC_OK)) {
        wait->which = i;
        wait->result = result;
    }
    if (wait->leaves)
        gpusync__goal_leave(&entry->goal);
}

/* Looks for goals that are over now, met or given up. True if the wait is over: it is not asked again
   then. Each goal is asked only once whether it is reached, so that the goal that ends the wait is
   also the one that the wait returns, and one that is over counts as over from then on, although
   another thread may take the room of a goal of room. In a wait for any, one goal is enough: the
   wait does not leave the others here, and does not return their failures. */
static bool gpusync__wait_over(gpusync__wait *wait)
{
    bool over = true;
    for (size_t i = 0; i < wait->count; i++) {
        const gpusync__goal *goal = &wait->entries[i].goal;
        if (wait->entries[i].over)
            continue;
        bool met = gpusync__reached(goal);
        if (!met && !gpusync__stopped(goal)) {
            over = false;
            continue;
        }
        if (!met)
            gpusync__look(goal); /* it stopped: what ended before says so, though no call has read it */
        gpusync__end_goal(wait, i, met || gpusync__reached(goal));
        if (wait->any)
            return true;
    }
    return over || wait->broken;
}

/* Looks at the goals that are not over. True if the wait is over. */
static bool gpusync__look_again(gpusync__wait *wait)
{
    for (size_t i = 0; i < wait->count; i++)
        if (!wait->entries[i].over)
            gpusync__look(&wait->entries[i].goal);
    return gpusync__wait_over(wait);
}

/* -- the spin that the program has not set: it goes by what is known of the queue's work */

#define GPUSYNC__SPIN_NS 250000  /* a sleep is as dear as this, and what is to end later is not spun for */
#define GPUSYNC__MARGIN_NS 50000 /* goes on so long after the end that pays: a status shows some time after the end */
#define GPUSYNC__BLIND_NS 20000  /* where nothing is known */
#define GPUSYNC__LOOK_NS 200     /* at least, from one look to the next */

/* Returns how long a ticket takes: the mean of those that are remembered. Without the longest, because
   one that stands alone would hide the others. 0 if nothing is known. Under the queue's lock. */
GPUSYNC__RARE uint64_t gpusync__usual(const gpusync_queue *q)
{
    uint64_t count = 0, sum = 0, most = 0;
    for (int i = 0; i < GPUSYNC__TAKEN; i++) {
        uint64_t took = q->took_ns[i];
        sum += took;
        count += took != 0;
        most = took > most ? took : most;
    }
    if (count > 2) {
        sum -= most;
        count--;
    }
    return count ? sum / count : 0;
}

/* Returns when the GPU got the ticket's work. 0 if it has not got the work, or if the time says
   nothing, because the work waits on the GPU or the program commits it. Under the queue's lock. */
static uint64_t gpusync__issued_at(const gpusync_queue *q, uint64_t ticket)
{
    const gpusync__slot *slot = gpusync__slot_of(q, ticket);
    if (!slot || gpusync__state_of(slot) != GPUSYNC__ARMED)
        return 0;
    bool says = slot->kind == GPUSYNC__SUBMISSION ? !(slot->traits & GPUSYNC__IS_DELAYED) : slot->kind == GPUSYNC__WORK;
    return says ? slot->since_ns : 0;
}

/* Returns until when to spin for a ticket whose work began, or is to begin, at `begin`: the margin
   behind the end that pays; 0: no spin does. The ticket may take as long as any of those that are
   remembered, but for those that would have ended by now. A spin to one of these ends costs its
   time, and where the ticket takes longer also the margin and a sleep. The end that costs least in
   all is taken, or none, where sleeping at once costs less. Under the queue's lock. */
GPUSYNC__RARE uint64_t gpusync__spin_pays(const gpusync_queue *q, uint64_t begin, uint64_t now)
{
    uint64_t margin = q->lag_ns + GPUSYNC__MARGIN_NS;
    uint64_t left[GPUSYNC__TAKEN]; /* to each of these ends; 0 where there is none, which costs no spin anything */
    uint64_t least = 0, until = 0;

    for (int i = 0; i < GPUSYNC__TAKEN; i++) {
        uint64_t end = begin + q->took_ns[i];
        bool counts = q->took_ns[i] && end + margin > now;
        left[i] = counts && end > now ? end - now : 0;
        least += counts ? GPUSYNC__SPIN_NS : 0;
    }
    for (int i = 0; i < GPUSYNC__TAKEN; i++) {
        uint64_t cost = 0;
        for (int k = 0; k < GPUSYNC__TAKEN; k++)
            cost += left[k] <= left[i] ? left[k] : left[i] + margin + GPUSYNC__SPIN_NS;
        if (left[i] <= GPUSYNC__SPIN_NS && cost < least) {
            least = cost;
            until = now + left[i] + margin;
        }
    }
    return until;
}

/* Forecasts the end of a ticket: each ticket up to it that has not ended takes the usual time, from
   the issue of the first, or from the last end. A last end in the future is of another clock. */
GPUSYNC__RARE gpusync__forecast gpusync__forecast_of(gpusync_queue *q, uint64_t ticket)
{
    uint64_t now = gpusync_now_ns();
    gpusync__forecast f = {0, 0};

    GPUSYNC__LOCK(q);
    uint64_t mean = gpusync__usual(q);
    uint64_t first = q->head.completed + 1;
    uint64_t begin = first <= ticket && gpusync__issued_at(q, ticket) ? gpusync__issued_at(q, first) : 0;
    if (begin && mean) {
        if (q->ended_ns > begin && q->ended_ns <= now)
            begin = q->ended_ns;
        for (; first < ticket; first++)
            begin += gpusync__has_ended(q, first) ? 0 : mean;
        f.end = begin + mean;
        f.until = gpusync__spin_pays(q, begin, now);
    }
    GPUSYNC__UNLOCK(q);
    return f;
}

/* Forecasts the end of a goal; of a value by the work that is to signal it. */
GPUSYNC__RARE gpusync__forecast gpusync__forecast_goal(const gpusync__goal *goal)
{
    gpusync_queue *q = goal->queue;
    uint64_t ticket = goal->ticket;
    if (goal->kind == GPUSYNC__ROOM)
        ticket = gpusync__ended_to(q) + gpusync__outstanding(q) + 1 - ticket;
    return q ? gpusync__forecast_of(q, ticket) : goal->timeline->calls->forecast(goal);
}

/* Returns the spin of a wait if the program has set none; all zero: it sleeps at once. A wait for any
   point spins for the first end that pays. A wait for all points spins for the last, and not at all
   if one of them does not pay, or is unknown. Where nothing is known of a point, the spin is short,
   but not for all of several points. A wait whose deadline comes before the end does not spin. The
   spin pauses the CPU, and yields only by the program's hook, because sched_yield may cost a thread
   its priority. */
GPUSYNC__RARE gpusync_spin gpusync__worth(const gpusync__wait *wait, uint64_t deadline)
{
    gpusync_spin spin = {0, 0, 0, false};
    uint64_t now = gpusync_now_ns();
    uint64_t until = 0;
    uint32_t skips = GPUSYNC__LOAD_SEQ(&wait->backoff->skips);
    bool blind = false;

    for (size_t i = 0; i < wait->count; i++) {
        if (wait->entries[i].over)
            continue;
        gpusync__forecast f = gpusync__forecast_goal(&wait->entries[i].goal);
        if (!wait->any && !f.until)
            return spin;
        if (!f.end)
            blind = true;
        if (f.until && (!until || (f.until < until) == wait->any))
            until = f.until;
    }
    if (!until && blind)
        until = now + GPUSYNC__BLIND_NS;
    if (until <= now || until - GPUSYNC__MARGIN_NS > deadline)
        return spin;
    if (skips) {
        GPUSYNC__STORE_RELAXED(&wait->backoff->skips, skips - 1); /* a guess: see gpusync__back_off */
        return spin;
    }
    spin.max_spin_ns = until - now;
    if (wait->device->hooks.yield == gpusync__default_yield)
        spin.pause_iterations = UINT32_MAX; /* by time alone */
    return spin;
}

#define GPUSYNC__FRESH 0x4444u /* the history before the first spin: 4 of 16 met the end, none of the last two */
#define GPUSYNC__FEW_HITS 4    /* of 16: with fewer, each spin in vain leaves the next ones out */

/* Records whether a spin was in vain. While few of the last spins met the end, each spin in vain
   leaves the next ones out, twice as many each time. So work that is late whenever a wait spins for
   it costs little, and where one of three waits takes long the other two still spin. All fields are
   a guess: threads that wait at once may write over each other. */
static void gpusync__back_off(gpusync__backoff *backoff, bool in_vain)
{
    uint32_t history = (GPUSYNC__LOAD_SEQ(&backoff->history) ^ GPUSYNC__FRESH) << 1 | !in_vain;
    uint32_t pause = GPUSYNC__LOAD_SEQ(&backoff->pause);
    if (!in_vain || __builtin_popcount(history & 0xFFFF) >= GPUSYNC__FEW_HITS)
        pause = 0;
    else
        pause = !pause ? 4 : pause < 1024 ? pause * 2 : 1024;
    GPUSYNC__STORE_RELAXED(&backoff->history, history ^ GPUSYNC__FRESH); /* a guess */
    GPUSYNC__STORE_RELAXED(&backoff->pause, pause);                      /* a guess */
    GPUSYNC__STORE_RELAXED(&backoff->skips, pause);                      /* a guess */
}

/* Spins: looks again and again, with a pause or a yield in between. True if the wait is over. set:
   the program's spin; NULL: the wait decides, and looks less often. */
GPUSYNC__RARE bool gpusync__spin(gpusync__wait *wait, const gpusync_spin *set, uint64_t deadline)
{
    const gpusync_hooks *hooks = &wait->device->hooks;
    gpusync_spin spin = set ? *set : gpusync__worth(wait, deadline);
    uint64_t rounds = (uint64_t)spin.pause_iterations + spin.yield_iterations;
    bool over = false;

    if (!rounds && !spin.max_spin_ns)
        return false;
    uint64_t began = gpusync_now_ns();
    uint64_t now = began;
    uint64_t until = spin.max_spin_ns ? gpusync__deadline(spin.max_spin_ns) : GPUSYNC_FOREVER;
    if (until > deadline)
        until = deadline;
    if (!rounds)
        rounds = UINT64_MAX; /* by time alone */

    for (uint64_t i = 0; i < rounds && !over && now < until; i++) {
        uint64_t next = set ? 0 : now + GPUSYNC__LOOK_NS;
        do {
            if (i < spin.pause_iterations)
                GPUSYNC__PAUSE();
            else
                hooks->yield(hooks->user);
            now = gpusync_now_ns();
        } while (now < next);
        over = gpusync__look_again(wait);
    }

    __atomic_fetch_add(&wait->stats->spin_ns, gpusync_now_ns() - began, __ATOMIC_RELAXED);
    if (!over)
        GPUSYNC__COUNT_RELAXED(&wait->stats->spins_in_vain);
    if (!set)
        gpusync__back_off(wait->backoff, !over);
    return over;
}

/* Calls Metal's own wait for the committed command buffers of the goal, of a queue that is not of
   Metal 4. The caller looks, and sleeps for the rest: held work, a submission. */
GPUSYNC__RARE void gpusync__block_goal(const gpusync__goal *goal)
{
    gpusync_queue *q = goal->queue;
    for (uint64_t ticket = gpusync__first_of(goal); ticket <= goal->ticket; ticket++) {
        gpusync__view view;
        if (!gpusync__view_ticket(q, ticket, &view))
            continue;
        if (view.buffer && gpusync__status(view.buffer) >= GPUSYNC__STATUS_COMMITTED) {
            void *pool = gpusync__pool_push();
            gpusync__send_void(view.buffer, gpusync__sel.waitUntilCompleted);
            gpusync__pool_pop(pool);
        }
        gpusync__view_end(q, &view);
    }
}

/* Lists every wait entry that is not over and not listed. False if a goal may be over already, so
   that the waiter asks before it parks (gpusync__wait_over). A goal is asked under the lock: what
   ends it later takes the lock, and finds the entry. A waiter calls this again after each wake-up:
   the room that woke it may have gone to another thread.
   Interleaving 11: the last waiter lists itself while the handler looks for waiters. Both do so
   under the lock. */
static bool gpusync__enlist(gpusync__wait *wait, gpusync__waiter *w)
{
    bool all = true, new_ones = false;
    for (size_t i = 0; i < wait->count; i++) {
        gpusync__wait_entry *entry = &wait->entries[i];
        const gpusync__goal *goal = &entry->goal;
        if (entry->over)
            continue;
        gpusync__wait_list *waits = gpusync__waits_of(goal);
        gpusync__lock(&waits->lock);
        bool linked = entry->node.linked;
        uint64_t number = linked ? 0 : gpusync__blocker(goal);
        bool link = number && !gpusync__stopped(goal);
        if (link)
            gpusync__link_entry(entry, w, number);
        gpusync__unlock(&waits->lock);
        if (!link) {
            all = all && linked;
            continue;
        }
        new_ones = true;
        if (goal->timeline && gpusync__is_outside(goal->timeline))
            goal->timeline->calls->listen(goal->timeline, goal->ticket);
    }
    if (new_ones)
        gpusync__arm_sweep(wait->device); /* one that came meanwhile has found no reason to come again */
    return all;
}

/* Sleeps until the wait is over, or until the deadline. A sleeping thread does not look at command
   buffers; the sweep does that for all of them. OK if the wait is over, even only at the deadline,
   else TIMEOUT. OUT_OF_MEMORY if there is no waiter to sleep with. On return no wait entry is
   listed, and no thread will list one. */
static gpusync_result gpusync__sleep(gpusync__wait *wait, uint64_t deadline)
{
    const gpusync_hooks *hooks = &wait->device->hooks;
    gpusync__waiter *w = gpusync__waiter_take(wait->device);
    bool over;

    if (!w)
        return GPUSYNC_ERROR_OUT_OF_MEMORY;
    w->any = wait->any;
    w->failures = wait->failures;
    w->since_ns = gpusync_now_ns();
    do {
        over = !gpusync__enlist(wait, w) && gpusync__wait_over(wait);
        if (over || gpusync_now_ns() >= deadline)
            break;
        /* The thread that takes the waiter's last entry off a list unparks the waiter. If this
           thread took the last one off (gpusync__end_goal), no thread unparks it. But then other
           threads have taken off every entry whose goal gpusync__wait_over saw open: those goals
           have to be looked at again, and this thread must not park. */
        if (GPUSYNC__LOAD_SEQ(&w->entries))
            hooks->park(hooks->user, &w->open, deadline);
        over = gpusync__wait_over(wait);
    } while (!over);
    for (size_t i = 0; i < wait->count; i++)
        if (wait->entries[i].waiter)
            gpusync__delist(&wait->entries[i]);
    gpusync__waiter_give(wait->device, w);
    return over || gpusync__look_again(wait) ? GPUSYNC_OK : GPUSYNC_TIMEOUT;
}

/* A wait for one point sleeps until shortly before the expected end, if that is known and not near
   already. True if the wait is over. */
GPUSYNC__RARE bool gpusync__sleep_until_near(gpusync__wait *wait, uint64_t deadline)
{
    uint64_t end = wait->count > 1 ? 0 : gpusync__forecast_goal(&wait->entries->goal).end;
    uint64_t near = end - GPUSYNC__MARGIN_NS;
    bool is_far = end > gpusync_now_ns() + 2 * GPUSYNC__MARGIN_NS && near < deadline;
    return is_far && gpusync__sleep(wait, near) == GPUSYNC_OK;
}

/* Waits: looks, spins and sleeps, in this order. OK if the wait is over; *how gets the counter of
   what ended it. A timeout of 0, and a call in a callback, return after the looks, so that a wait
   that need not sleep succeeds everywhere. Metal's own wait has no deadline, and serves only waits
   without one. set: options with a spin, or NULL where the wait decides. */
static gpusync_result gpusync__await(gpusync__wait *wait, uint64_t timeout_ns, const gpusync_wait_options *set,
                                     uint64_t **how)
{
    *how = &wait->stats->waits_inline;
    if (gpusync__wait_over(wait))
        return GPUSYNC_OK;
    *how = &wait->stats->waits_status;
    if (gpusync__look_again(wait))
        return GPUSYNC_OK;
    *how = &wait->stats->waits_unmet;
    if (gpusync__in_callback())
        return GPUSYNC_ERROR_WOULD_DEADLOCK;
    if (timeout_ns == 0)
        return GPUSYNC_TIMEOUT;
    uint64_t deadline = gpusync__deadline(timeout_ns);
    *how = &wait->stats->waits_sleep;
    if (set->blocking && timeout_ns == GPUSYNC_FOREVER) {
        gpusync__block_goal(&wait->entries->goal);
        if (gpusync__look_again(wait))
            return GPUSYNC_OK;
    }
    if (!set->blocking) {
        if (set->spin && set->spin->until_near && gpusync__sleep_until_near(wait, deadline))
            return GPUSYNC_OK;
        *how = &wait->stats->waits_spin;
        if (gpusync__spin(wait, set->spin, deadline))
            return GPUSYNC_OK;
        *how = &wait->stats->waits_sleep;
    }
    return gpusync__sleep(wait, deadline);
}

/* Returns the options of a wait, with the spin of its queue or device where the program leaves it
   open. options may be NULL. */
static gpusync_wait_options gpusync__fill_options(const gpusync_wait_options *options, const gpusync_spin *spin)
{
    gpusync_wait_options set = {spin, NULL, false, false};
    if (!options)
        return set;
    set = *options;
    if (!set.spin)
        set.spin = spin;
    return set;
}

/* Returns the entry of a ticket that has ended, with the GPU's times, or NULL if the entry serves a
   later ticket. Under the queue's lock. */
static const gpusync__entry *gpusync__times_of(const gpusync_queue *q, uint64_t ticket)
{
    const gpusync__entry *entry = gpusync__entry_of(q, ticket);
    return entry->done >> 2 == ticket ? entry : NULL;
}

/* Counts how long after the GPU's end the waiter for a ticket runs, if Metal has given a time.
   GPUEndTime is of the clock of gpusync_now_ns: the host's time, in seconds (documented). */
static void gpusync__count_wake(const gpusync__goal *goal)
{
    double now = (double)gpusync_now_ns() / 1e9;
    gpusync_queue *q = goal->queue;

    if (!q)
        return;
    GPUSYNC__LOCK(q);
    const gpusync__entry *entry = gpusync__times_of(q, goal->ticket);
    double ns = entry && entry->gpu_end > 0 ? (now - entry->gpu_end) * 1e9 : -1;
    if (ns >= 0 && ns <= 1e10) {
        q->lag_ns = ns < 200000 ? (uint64_t)ns : 200000;
        GPUSYNC__COUNT_RELAXED(&q->stats.wakes);
        __atomic_fetch_add(&q->stats.wake_ns, (uint64_t)ns, __ATOMIC_RELAXED);
    }
    GPUSYNC__UNLOCK(q);
}

/* What a wait is for, by the kind of its goal. */
static const char *const gpusync__what[] = {"ticket", "everything up to ticket", "room for a command buffer", "value"};

/* Tells the log function that a wait timed out. The caller is inside the queue or timeline. */
GPUSYNC__RARE void gpusync__warn_of_timeout(gpusync_device *dev, const gpusync__goal *goal)
{
    const gpusync_queue *q = goal->queue;

    gpusync__log(dev, GPUSYNC_LOG_WARNING, "%s '%s': a wait for %s %llu timed out", q ? "queue" : "timeline",
                 q ? q->label : goal->timeline->label, gpusync__what[goal->kind], (unsigned long long)goal->ticket);
}

/* Tells the log function that a wait of the program timed out, in one line. The first of several points
   that has not ended stands for the others. */
GPUSYNC__RARE void gpusync__warn_of_wait(const gpusync__wait *wait)
{
    const gpusync__goal *goal = NULL;
    size_t open = 0;

    for (size_t i = wait->count; i-- > 0;) {
        if (!wait->entries[i].over) {
            goal = &wait->entries[i].goal;
            open++;
        }
    }
    if (!wait->leaves) {
        gpusync__warn_of_timeout(wait->device, goal);
        return;
    }
    const gpusync_queue *q = goal->queue;
    gpusync__log(wait->device, GPUSYNC_LOG_WARNING,
                 "a wait for points timed out: %zu of %zu have not ended, the first is %s %llu of %s '%s'", open,
                 wait->count, gpusync__what[goal->kind], (unsigned long long)goal->ticket, q ? "queue" : "timeline",
                 q ? q->label : goal->timeline->label);
}

/* For gpusync_device_wait, when all has ended: returns the first failure that the wait covers, and marks
   all as returned. */
GPUSYNC__RARE gpusync_result gpusync__tell_failures(const gpusync__wait *wait)
{
    const gpusync__wait_entry *entries = wait->entries;
    gpusync_result result = GPUSYNC_OK;
    for (size_t i = 0; i < wait->count; i++) {
        gpusync_queue *q = gpusync__next_queue(wait->device, NULL, entries[i].queue_number);
        gpusync_result one = GPUSYNC_OK;
        if (!q)
            break;
        if (q->place.number == entries[i].queue_number)
            one = gpusync__result_of(q, &entries[i].goal, true, result == GPUSYNC_OK ? wait->error : NULL);
        gpusync__leave(q);
        if (result == GPUSYNC_OK)
            result = one;
    }
    if (result == GPUSYNC_OK && gpusync_device_is_lost(wait->device))
        return gpusync__explain(wait->error, GPUSYNC_NO_TICKET, GPUSYNC_ERROR_DEVICE_LOST);
    return result;
}

/* Waits, with trace and counts, and returns how that ended. The caller is inside of all that the wait
   is for. */
static gpusync_result gpusync__wait_counted(gpusync__wait *wait, uint64_t timeout_ns, const gpusync_wait_options *set)
{
    gpusync_device *dev = wait->device;
    const gpusync__goal *one = wait->leaves ? NULL : &wait->entries->goal;
    uint64_t *how;

    if (dev->trace)
        dev->trace->wait(dev, one, NULL, NULL, GPUSYNC_OK);
    gpusync_result result = gpusync__await(wait, timeout_ns, set, &how);
    if (result == GPUSYNC_TIMEOUT && timeout_ns)
        gpusync__warn_of_wait(wait);
    if (result != GPUSYNC_OK || (one && wait->broken))
        how = &wait->stats->waits_unmet;
    GPUSYNC__COUNT_RELAXED(how);
    if (one && how == &wait->stats->waits_sleep)
        gpusync__count_wake(one);
    if (wait->which < wait->count)
        result = wait->result; /* and its error */
    else if (result == GPUSYNC_OK && wait->tell)
        result = wait->tell(wait);
    else
        gpusync__explain(wait->error, gpusync__ticket_of(one), result);
    if (dev->trace)
        dev->trace->wait(dev, one, wait->stats, how, result);
    return result;
}

/* Waits for one goal, and returns how that ended; the caller is inside its queue or timeline. options
   may be NULL; the queue's, or for a value the device's, fill what they leave open. counted: a wait
   of the program; else one for room, or a slice of destroy, without trace and counts. */
static gpusync_result gpusync__wait_goal(const gpusync__goal *goal, uint64_t timeout_ns,
                                         const gpusync_wait_options *options, bool counted)
{
    gpusync_device *dev = gpusync__device_of(goal);
    gpusync_queue *q = goal->queue;
    gpusync_wait_options set = gpusync__fill_options(options, q ? q->spin : dev->spin);
    gpusync__backoff *backoff = q ? &q->backoff : &goal->timeline->backoff;
    gpusync__wait_entry entry;
    gpusync__wait wait = {
        dev,      q ? &q->stats : &dev->stats, backoff, &entry, 1, 1, GPUSYNC_OK, false, NULL, true, false, false,
        set.error};
    uint64_t *how;

    set.blocking = set.blocking && q; /* a value has no command buffer */
    entry.goal = *goal;
    gpusync__begin_entry(&entry, options);
    if (counted)
        return gpusync__wait_counted(&wait, timeout_ns, &set);
    gpusync_result result = gpusync__await(&wait, timeout_ns, &set, &how);
    return result == GPUSYNC_OK ? wait.result : result;
}

/* Makes the goal of a point, and enters its queue or timeline. After an error nothing is entered.
   */
static gpusync_result gpusync__point_enter(const gpusync_point *point, gpusync__goal *goal)
{
    if (point->timeline) {
        const gpusync__goal value = {NULL, point->timeline, GPUSYNC__VALUE, GPUSYNC__CLOSING, false, point->value, 0};
        *goal = value;
        return point->value > GPUSYNC_MAX_VALUE ? GPUSYNC_ERROR_NOT_RISING : gpusync__timeline_enter(point->timeline);
    }
    if (!point->queue)
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    if (!gpusync__enter(point->queue))
        return GPUSYNC_ERROR_DESTROYED;
    gpusync_result result = gpusync__goal_of(point->queue, point->ticket, goal);
    if (result != GPUSYNC_OK)
        gpusync__leave(point->queue);
    return result;
}

/* Waits for a ticket or for everything, or if the queue is NULL for a value. */
static __attribute__((noinline)) gpusync_result gpusync__wait_point(gpusync_queue *q, gpusync_timeline *t,
                                                                    uint64_t number, uint64_t timeout_ns,
                                                                    const gpusync_wait_options *options)
{
    gpusync_point point = {q, number, t, number};
    gpusync__goal goal;
    gpusync_result result = gpusync__point_enter(&point, &goal);
    if (result != GPUSYNC_OK) {
        bool none = result != GPUSYNC_ERROR_INVALID_TICKET;
        return gpusync__explain(gpusync__error_of(options), none ? GPUSYNC_NO_TICKET : number, result);
    }
    result = gpusync__wait_goal(&goal, timeout_ns, options, true);
    gpusync__goal_leave(&goal);
    return result;
}

GPUSYNC_API gpusync_result gpusync_wait_ex(gpusync_queue *queue, gpusync_ticket ticket, uint64_t timeout_ns,
                                           const gpusync_wait_options *options)
{
    if (queue && queue->metal4 && options && options->blocking)
        return gpusync__explain(options->error, GPUSYNC_NO_TICKET, GPUSYNC_ERROR_UNSUPPORTED);
    return gpusync__wait_point(queue, NULL, ticket, timeout_ns, options);
}

/* Returns whether there is no failure to return: the queue is neither lost nor closing, and the
   last failure is of an earlier ticket; for everything, of one that an earlier wait has returned.
   The caller has seen the end, and therefore sees its failure, too (gpusync__record). */
static inline bool gpusync__went_well(const gpusync_queue *q, gpusync_ticket ticket)
{
    uint32_t flags = GPUSYNC__LOAD_SEQ(&q->flags);
    if (!flags)
        return true;
    if (flags != GPUSYNC__FAILED)
        return false;
    uint64_t last = GPUSYNC__LOAD_SEQ(&q->last_failed);
    return ticket > last && (ticket != GPUSYNC_EVERYTHING || last <= GPUSYNC__LOAD_SEQ(&q->covered));
}

/* Returns whether a wait for the ticket has nothing to do and nothing to report. */
static inline bool gpusync__is_done_well(const gpusync_queue *q, gpusync_ticket ticket)
{
    return gpusync_is_done(q, ticket) && gpusync__went_well(q, ticket);
}

/* Most waits are answered here from two loads, or three for everything; one or two more after a
   failure. They write nothing, so that threads that ask at once do not take the line from each
   other: no such wait is counted. */
GPUSYNC_API gpusync_result gpusync_wait(gpusync_queue *queue, gpusync_ticket ticket, uint64_t timeout_ns)
{
    if (queue && gpusync__is_done_well(queue, ticket))
        return GPUSYNC_OK;
    return gpusync_wait_ex(queue, ticket, timeout_ns, NULL);
}

GPUSYNC_API gpusync_result gpusync_queue_wait(gpusync_queue *queue, uint64_t timeout_ns)
{
    return gpusync_wait(queue, GPUSYNC_EVERYTHING, timeout_ns);
}

/* Failures of everything are left to a later wait: `covered` stays. */
GPUSYNC_API gpusync_result gpusync_poll(gpusync_queue *queue, gpusync_ticket ticket)
{
    gpusync__goal goal;
    if (!queue)
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    if (!gpusync__enter(queue))
        return GPUSYNC_ERROR_DESTROYED;
    gpusync_result result = gpusync__goal_of(queue, ticket, &goal);
    if (result == GPUSYNC_OK) {
        bool ended = gpusync__look_tickets(queue, gpusync__first_of(&goal), goal.ticket, NULL);
        result = ended ? gpusync__result_of(queue, &goal, false, NULL) : GPUSYNC_NOT_READY;
    }
    gpusync__leave(queue);
    return result;
}

/* Enters the queue or timeline of each point. After an error the points before `which`, which is the
   one that was refused, are entered. */
GPUSYNC__INLINE gpusync_result gpusync__enter_points(gpusync__wait *wait, const gpusync_point *points, size_t count,
                                                     const gpusync_wait_options *set)
{
    for (size_t i = 0; i < count; i++) {
        gpusync__wait_entry *entry = &wait->entries[i];
        gpusync_result result = gpusync__point_enter(&points[i], &entry->goal);
        if (result != GPUSYNC_OK) {
            wait->which = i;
            return gpusync__explain(set->error, points[i].timeline ? 0 : points[i].ticket, result);
        }
        gpusync__begin_entry(entry, set);
        wait->count = i + 1;
    }
    return GPUSYNC_OK;
}

/* Enters every queue that has something to wait for, under the device's lock, so that later work is not
   waited for; a queue that is destroyed meanwhile does not count any more. There are entries for so
   many: queues that came while memory was made stand behind the others, and may be left out. */
GPUSYNC__RARE gpusync_result gpusync__enter_queues(gpusync__wait *wait, size_t room, const gpusync_wait_options *set)
{
    gpusync_queue *q;
    gpusync__lock(&wait->device->lock);
    GPUSYNC__EACH_QUEUE(q, wait->device) {
        bool idle = !set->handlers && gpusync__is_done_well(q, GPUSYNC_EVERYTHING);
        if (idle || wait->count == room || !gpusync__enter(q))
            continue;
        gpusync__wait_entry *entry = &wait->entries[wait->count++];
        gpusync__goal_of(q, GPUSYNC_EVERYTHING, &entry->goal);
        entry->queue_number = q->place.number;
        gpusync__begin_entry(entry, set);
    }
    gpusync__unlock(&wait->device->lock);
    return GPUSYNC_OK;
}

/* Waits for points of a device, or for everything on it (NULL), with entries on the stack where there
   are few. The wait does not spin for more than a few, because looking at them again and again costs
   more than it gains. For everything, failures are told when all has ended, because a wait that did not end
   comes before failures of other work. The device lives until the end of the call, because it counts
   in `inside`: a hook that this calls may let the device go. which may be NULL. */
static gpusync_result gpusync__wait_together(gpusync_device *dev, const gpusync_point *points, size_t count,
                                             gpusync_wait_for how, uint64_t timeout_ns,
                                             const gpusync_wait_options *options, size_t *which)
{
    static const gpusync_spin none = {0, 0, 0, false};
    gpusync_wait_options set = gpusync__fill_options(options, dev->spin);
    gpusync__wait_entry few[GPUSYNC__FEW_POINTS], *entries = few;
    gpusync_queue *q;
    gpusync_result result;

    set.blocking = false;
    GPUSYNC__ADD_SEQ(&dev->inside, 1);
    if (!points) {
        gpusync__lock(&dev->lock);
        GPUSYNC__EACH_QUEUE(q, dev)
            count++;
        gpusync__unlock(&dev->lock);
    }
    if (count > GPUSYNC__FEW_POINTS)
        entries = (gpusync__wait_entry *)dev->allocator.allocate(dev->allocator.user, count * sizeof *entries, 16);
    bool any = how == GPUSYNC_WAIT_ANY, failures = how == GPUSYNC_WAIT_ALL_OR_FAILURE;
    gpusync__wait wait = {
        dev, &dev->stats, &dev->backoff, entries,  0, count, GPUSYNC_OK, true, points ? NULL : gpusync__tell_failures,
        any, failures,    false,         set.error};
    if (!entries)
        result = gpusync__explain(set.error, GPUSYNC_NO_TICKET, GPUSYNC_ERROR_OUT_OF_MEMORY);
    else if (points)
        result = gpusync__enter_points(&wait, points, count, &set);
    else
        result = gpusync__enter_queues(&wait, count, &set);
    if (wait.count > GPUSYNC__FEW_POINTS && set.spin == dev->spin)
        set.spin = &none;
    if (result == GPUSYNC_OK)
        result = gpusync__wait_counted(&wait, timeout_ns, &set);
    for (size_t i = 0; i < wait.count; i++)
        if (!entries[i].over)
            gpusync__goal_leave(&entries[i].goal);
    if (which)
        *which = wait.which;
    if (entries != few)
        gpusync__free(dev, entries, count * sizeof *entries);
    GPUSYNC__SUB_SEQ(&dev->inside, 1);
    return result;
}

GPUSYNC_API gpusync_result gpusync_device_wait(gpusync_device *device, uint64_t timeout_ns,
                                               const gpusync_wait_options *options)
{
    if (!device)
        return gpusync__explain(gpusync__error_of(options), GPUSYNC_NO_TICKET, GPUSYNC_ERROR_INVALID_ARGUMENT);
    return gpusync__wait_together(device, NULL, 0, GPUSYNC_WAIT_ALL, timeout_ns, options, NULL);
}

/* gpusync__is_done_well for a point. */
static inline bool gpusync__is_point_done_well(const gpusync_point *point)
{
    if (!point->timeline)
        return gpusync__is_done_well(point->queue, point->ticket);
    uint64_t present = gpusync__value_of(point->timeline);
    return present >= point->value && present != GPUSYNC__FAILED_VALUE;
}

/* Returns the device of the points, NULL if they are of none or of several. *done turns false if a
   point is not done well. */
static gpusync_device *gpusync__device_of_points(const gpusync_point *points, size_t count, bool *done)
{
    gpusync_device *dev = NULL;
    for (size_t i = 0; i < count; i++) {
        const gpusync_point *point = &points[i];
        gpusync_device *one = point->timeline ? point->timeline->device : point->queue ? point->queue->device : NULL;
        if (!one || (dev && one != dev))
            return NULL;
        dev = one;
        *done = *done && gpusync__is_point_done_well(point);
    }
    return dev;
}

/* All points are of one device. The program may destroy queues and timelines while the call still waits
   for others. */
GPUSYNC_API gpusync_result gpusync_wait_many(const gpusync_point *points, size_t count, gpusync_wait_for how,
                                             uint64_t timeout_ns, const gpusync_wait_options *options, size_t *which)
{
    bool done = how != GPUSYNC_WAIT_ANY && !(options && options->handlers);

    if (which)
        *which = count;
    bool valid = (points || !count) && (count || how != GPUSYNC_WAIT_ANY) && count <= UINT32_MAX / 2 &&
                 (unsigned)how <= GPUSYNC_WAIT_ALL_OR_FAILURE;
    if (valid && count == 0)
        return GPUSYNC_OK;
    gpusync_device *dev = valid ? gpusync__device_of_points(points, count, &done) : NULL;
    if (!dev)
        return gpusync__explain(gpusync__error_of(options), GPUSYNC_NO_TICKET, GPUSYNC_ERROR_INVALID_ARGUMENT);
    if (done && !dev->trace)
        return GPUSYNC_OK;
    return gpusync__wait_together(dev, points, count, how, timeout_ns, options, which);
}

/* -------------------------------------------------------------------------------- >>on-done --
   gpusync_on_done and gpusync_release_after. The life of a callback:

     1. new       The call takes a callback out of the device's pool, or makes one, and counts it in
                  `owed`, so that the queue or timeline outlives the callback.
     2. listed    The callback stands on the wait list, as sleeping waits do. A point that has been
                  reached skips this step.
     3. taken     The thread that finds the end takes the callback off the wait list, and writes how
                  the point ended (gpusync__callback_told).
     4. due       The callback stands on the device's list of callbacks to run.
     5. free      The callback has run, or its object was released, without a lock. It is back in
                  the pool, or frees it if the pool is full. */

/* Returns a callback for the goal, counted in `owed`, or NULL if there is no memory. */
static gpusync__callback *gpusync__callback_new(gpusync_device *dev, const gpusync__goal *goal, gpusync_done_fn fn,
                                                void *user)
{
    gpusync__lock(&dev->submission_lock);
    gpusync__callback *callback =
        (gpusync__callback *)gpusync__pool_take(dev, GPUSYNC__POOL_CALLBACKS, sizeof *callback);
    gpusync__unlock(&dev->submission_lock);
    if (!callback)
        callback = (gpusync__callback *)gpusync__allocate(dev, sizeof *callback, 16);
    if (!callback)
        return NULL;
    callback->goal = *goal;
    callback->node.number = goal->ticket;
    callback->node.told = gpusync__callback_told;
    callback->due.owed = goal->timeline ? &goal->timeline->owed : &goal->queue->owed;
    callback->due.fn = fn;
    callback->due.user = user;
    if (!fn)
        gpusync__retain(user);
    GPUSYNC__ADD_SEQ(&callback->due.owed->count, 1);
    return callback;
}

/* Lists the callback, unless its point has been reached. True if the point has been reached, and
   the callback is not listed. All earlier callbacks for the same point are due by then: if the
   ticket has ended and some are still listed, the callback is listed behind them, for the thread
   that takes them off (gpusync__tell_now). */
static bool gpusync__list_callback(gpusync__callback *callback)
{
    gpusync__node *node = &callback->node;
    gpusync__wait_list *waits = gpusync__waits_of(&callback->goal);
    uint64_t number = node->number;

    gpusync__lock(&waits->lock);
    bool ended = gpusync__met(&callback->goal);
    gpusync__node *before = ended ? gpusync__list_from(&waits->lists[GPUSYNC__WAITS], number) : NULL;
    while (before && before->number == number && (!before->told || gpusync__is_kept(before)))
        before = before->beside[1];
    bool over = ended && !gpusync__is_kept(node) && !(before && before->number == number);
    if (!over)
        gpusync__list_add(&waits->lists[GPUSYNC__WAITS], node);
    gpusync__unlock(&waits->lock);
    return over;
}

/* Lists a callback for the point, or makes it due at once if the point has been reached. fn NULL:
   `user` is an object to release. GPUSYNC_EVERYTHING is refused, because everything has no end. */
static gpusync_result gpusync__callback_at(const gpusync_point *point, gpusync_done_fn fn, void *user)
{
    gpusync__goal goal;
    gpusync_result result = gpusync__point_enter(point, &goal);
    gpusync_error error;

    if (result != GPUSYNC_OK)
        return result;
    gpusync_timeline *t = goal.timeline;
    gpusync_device *dev = gpusync__device_of(&goal);
    gpusync__deferred deferred = GPUSYNC__NOTHING;
    gpusync__callback *callback = NULL;
    if (goal.kind == GPUSYNC__ALL)
        result = GPUSYNC_ERROR_INVALID_TICKET;
    else if (t)
        result = t->calls->ready(t);
    if (result == GPUSYNC_OK && (callback = gpusync__callback_new(dev, &goal, fn, user)) == NULL)
        result = GPUSYNC_ERROR_OUT_OF_MEMORY;
    if (callback && gpusync__list_callback(callback)) {
        bool well = gpusync__goal_result(&goal, false, &error) == GPUSYNC_OK;
        gpusync__callback_told(&callback->node, well ? NULL : &error, NULL, &deferred);
    } else if (callback) {
        if (t)
            t->calls->listen(t, goal.ticket);
        gpusync__arm_sweep(dev);
    }
    gpusync__do_deferred(dev, &deferred);
    gpusync__goal_leave(&goal);
    return result;
}

GPUSYNC_API gpusync_result gpusync_on_done(gpusync_point point, gpusync_done_fn fn, void *user)
{
    return fn ? gpusync__callback_at(&point, fn, user) : GPUSYNC_ERROR_INVALID_ARGUMENT;
}

GPUSYNC_API gpusync_result gpusync_release_after(gpusync_point point, void *object)
{
    return object ? gpusync__callback_at(&point, NULL, object) : GPUSYNC_ERROR_INVALID_ARGUMENT;
}

/* ------------------------------------------------------------------------------- >>commit --
   How a command buffer comes into its queue:

     1. room       gpusync_command_buffer counts the buffer in `outstanding`, against Metal's limit,
                   and takes a slot in the same hold.
     2. open       gpusync has made the buffer, or encoded into it. Its slot is in the list `open`.
     3. taken in   A commit, a submission or a track takes the slot out of the list, and the slot is
                   in flight. A stranger (a buffer that gpusync did not make) gets its slot here, and
                   counts in `outstanding`.
     4. armed      The slot has a ticket. Metal gets the slot as the completion handler.
     5. committed  gpusync commits the buffer. The program commits a tracked buffer later.

   A commit does steps 3 to 5 without unlocking the order lock, and steps 3 and 4 in one hold of the
   queue's lock, so that tickets are in the order in which Metal gets the work. Before step 3 the
   call checks everything that may fail; if memory is missing it makes memory without a lock, and
   begins again (gpusync__make_ready). From step 4 on nothing fails, and the handler gives the room
   back. */

/* Unlocks the order lock, and ends the caller's pool. */
GPUSYNC__INLINE void gpusync__order_end_pool(gpusync_queue *q, void *pool)
{
    gpusync__unlock(&q->order);
    gpusync__pool_pop(pool);
}

/* -- open buffers: a list of slots. Metal allows few, so that a search is short. Under the order
   lock. */

/* Returns the link that leads to the buffer's slot; for a buffer that is not open the last link,
   which is NULL. */
static gpusync__slot **gpusync__find_open(gpusync_queue *q, const void *buffer)
{
    gpusync__slot **link = &q->open;
    while (*link && (*link)->buffer != buffer)
        link = &(*link)->next;
    return link;
}

/* Adds a slot to the list. Its buffer is not there: every caller has looked, or has just made it. */
static void gpusync__add_open(gpusync_queue *q, gpusync__slot *slot)
{
    slot->kind = GPUSYNC__WORK;
    slot->next = q->open;
    q->open = slot;
}

/* Takes a slot out of the list; it is the caller's from here on. */
static gpusync__slot *gpusync__take_open(gpusync__slot **link)
{
    gpusync__slot *slot = *link;
    *link = slot->next;
    return slot;
}

/* -- room */

/* Returns whether every command buffer that takes room is held or uncommitted, so that only the
   program can make room. The program may commit one meanwhile, and therefore the caller asks twice.
   No lock is held. */
static bool gpusync__is_full_for_good(gpusync_queue *q)
{
    uint64_t last = gpusync__committed(q);
    gpusync__lock(&q->order);
    uint32_t idle = GPUSYNC__LOAD_SEQ(&q->held_buffers);
    for (const gpusync__slot *slot = q->open; slot; slot = slot->next)
        idle++;
    gpusync__unlock(&q->order);
    if (GPUSYNC__LOAD_SEQ(&q->tracked))
        GPUSYNC__EACH_OPEN(ticket, q, last) {
            gpusync__view view;
            if (!gpusync__view_ticket(q, ticket, &view))
                continue;
            if (!view.s && gpusync__is_uncommitted(&view))
                idle++;
            gpusync__view_end(q, &view);
        }
    return idle >= gpusync__outstanding(q);
}

/* A queue that only the program can empty, for so long, counts as full: a wait without a deadline
   would never end. */
#define GPUSYNC__FULL_NS 1000000000u

/* Waits until fewer than `limit` command buffers take room, and takes no room itself. QUEUE_FULL if
   only the program can make room. The caller may have been woken for room that it does not take: it
   wakes another waiter then. After every result but OK this function has passed the room on.
   Interleaving 22: room is given to a waiter that has timed out. A waiter that does not take the
   room passes it on. */
GPUSYNC__RARE gpusync_result gpusync__wait_below(gpusync_queue *q, uint32_t limit, uint64_t deadline)
{
    gpusync__goal goal = {q, NULL, GPUSYNC__ROOM, GPUSYNC__LOST | GPUSYNC__CLOSING, false, limit, 0};
    bool forever = deadline == GPUSYNC_FOREVER;
    uint64_t left = gpusync__time_left(deadline);
    gpusync_result result;

    do {
        uint64_t committed = gpusync__committed(q);
        bool full = forever && gpusync__is_full_for_good(q);
        result = gpusync__wait_goal(&goal, forever ? GPUSYNC__FULL_NS : left, NULL, false);
        if (result == GPUSYNC_OK)
            return GPUSYNC_OK;
        gpusync__give_room(q, 0, NULL);
        if (result == GPUSYNC_TIMEOUT && full && committed == gpusync__committed(q) && gpusync__is_full_for_good(q))
            return GPUSYNC_ERROR_QUEUE_FULL;
    } while (forever && result == GPUSYNC_TIMEOUT); /* else the time is over, or nothing may wait here */
    if (result == GPUSYNC_TIMEOUT && left)
        gpusync__warn_of_timeout(q->device, &goal);
    /* The program may ask again. While the mark is set, the sweep looks for room that a lost
       handler keeps. gpusync__sweep_queue clears the mark when there is room. */
    GPUSYNC__LOCK(q);
    q->refused = true;
    GPUSYNC__UNLOCK(q);
    gpusync__arm_sweep(q->device);
    return result;
}

/* Takes room for one buffer, and a slot for it. Waits if there is none. Another thread may take the
   room for which this one was woken, so this repeats the wait. */
static gpusync_result gpusync__wait_for_room(gpusync_queue *q, uint64_t deadline, gpusync__slot **slot)
{
    for (;;) {
        gpusync_result result = GPUSYNC_OK;
        GPUSYNC__LOCK(q);
        bool room = q->outstanding < q->limit;
        bool ready = q->free_slots != NULL;
        if (room && ready) {
            gpusync__count_room(q, 1);
            *slot = gpusync__slot_take(q);
        }
        GPUSYNC__UNLOCK(q);
        if (room && ready)
            return GPUSYNC_OK;
        if (!room)
            result = gpusync__wait_below(q, q->limit, deadline);
        else if (!gpusync__make_ready(q, 1))
            result = GPUSYNC_ERROR_OUT_OF_MEMORY;
        if (room && result != GPUSYNC_OK)
            gpusync__give_room(q, 0, NULL); /* this thread may have been told of it */
        if (result != GPUSYNC_OK)
            return result;
    }
}

/* -- making command buffers */

/* Labels what Metal has made, or the description of it. Needs a pool. */
GPUSYNC__RARE void gpusync__set_label(void *object, const char *label)
{
    gpusync__send_void_id(object, gpusync__sel.setLabel, gpusync__label(label));
}

/* Retains and labels a command buffer that Metal has just made, or returns NULL for NULL. The
   caller has taken room for it, and has a pool. */
GPUSYNC__INLINE void *gpusync__keep_buffer(void *buffer, const char *label)
{
    if (!buffer)
        return NULL;
    gpusync__retain(buffer);
    if (label)
        gpusync__set_label(buffer, label);
    return buffer;
}

/* Checks the options of a command buffer: a Metal descriptor stands alone, and Metal has to take
   it. */
static gpusync_result gpusync__check_desc(const gpusync_queue *q, const gpusync_command_buffer_desc *desc)
{
    if (!desc || !desc->descriptor)
        return GPUSYNC_OK;
    if (desc->unretained_references ||
        !gpusync__class_responds(gpusync__class_of(desc->descriptor), gpusync__sel.setErrorOptions))
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    bool takes = gpusync__class_responds(gpusync__class_of(q->metal), gpusync__sel.commandBufferWithDescriptor);
    return takes ? GPUSYNC_OK : GPUSYNC_ERROR_UNSUPPORTED;
}

/* Has Metal make a command buffer by the desc, +0, or returns NULL. */
static void *gpusync__make_buffer(const gpusync_queue *q, const gpusync_command_buffer_desc *desc)
{
    if (desc && desc->descriptor)
        return GPUSYNC__AS1(void *, void *)(q->metal, gpusync__sel.commandBufferWithDescriptor, desc->descriptor);
    bool unretained = desc && desc->unretained_references;
    return gpusync__send_id(q->metal, unretained ? gpusync__sel.commandBufferUnretained : gpusync__sel.commandBuffer);
}

/* Makes a command buffer by the desc, and opens it. The caller has taken room and the slot, and
   gives both back after an error. */
static gpusync_result gpusync__open_buffer(gpusync_queue *q, const gpusync_command_buffer_desc *desc,
                                           gpusync__slot *slot, void **out)
{
    void *pool = gpusync__pool_push();
    void *buffer = gpusync__keep_buffer(gpusync__make_buffer(q, desc), desc ? desc->label : NULL);

    gpusync__pool_pop(pool);
    if (!buffer)
        return GPUSYNC_ERROR_METAL_NIL;
    gpusync__slot_open(q, slot, buffer, GPUSYNC__WORK, GPUSYNC__HAS_ROOM);
    gpusync__lock(&q->order);
    bool closing = GPUSYNC__LOAD_SEQ(&q->flags) & GPUSYNC__CLOSING; /* and may have released what is open */
    if (!closing)
        gpusync__add_open(q, slot);
    gpusync__unlock(&q->order);
    if (closing) {
        gpusync__release_pooled(buffer);
        return GPUSYNC_ERROR_DESTROYED;
    }
    *out = buffer;
    return GPUSYNC_OK;
}

GPUSYNC_API gpusync_result gpusync_command_buffer(gpusync_queue *queue, const gpusync_command_buffer_desc *desc,
                                                  void **out)
{
    if (out)
        *out = NULL;
    if (!queue || !out)
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    if (queue->metal4)
        return GPUSYNC_ERROR_UNSUPPORTED;
    gpusync_result result = gpusync__enter_working(queue, GPUSYNC__STUCK);
    if (result != GPUSYNC_OK)
        return result;
    uint64_t deadline = desc && desc->timeout_ns ? gpusync__deadline(*desc->timeout_ns) : GPUSYNC_FOREVER;
    gpusync__slot *slot = NULL;
    result = gpusync__check_desc(queue, desc);
    if (result == GPUSYNC_OK)
        result = gpusync__wait_for_room(queue, deadline, &slot);
    if (result == GPUSYNC_OK) {
        result = gpusync__open_buffer(queue, desc, slot, out);
        if (result != GPUSYNC_OK)
            gpusync__give_room(queue, 1, slot);
    }
    gpusync__leave(queue);
    return result;
}

GPUSYNC_API gpusync_result gpusync_command_buffer_discard(gpusync_queue *queue, void *command_buffer)
{
    if (!queue || !command_buffer)
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    if (!gpusync__enter(queue))
        return GPUSYNC_ERROR_DESTROYED;
    gpusync__lock(&queue->order);
    gpusync__slot **open = gpusync__find_open(queue, command_buffer);
    gpusync__slot *slot = *open ? gpusync__take_open(open) : NULL;
    gpusync__unlock(&queue->order);
    if (slot) {
        gpusync__deferred deferred = GPUSYNC__NOTHING;
        bool refused = slot->traits & GPUSYNC__WAS_REFUSED;
        gpusync_error error;
        if (slot->submission && refused)
            gpusync__read_stuck(queue, &error);
        if (slot->submission)
            gpusync__upper_of(queue)->discard(slot->submission, refused ? &error : NULL, &deferred);
        gpusync__release_pooled(slot->buffer);
        gpusync__give_room(queue, 1, slot);
        gpusync__do_deferred(queue->device, &deferred);
    }
    gpusync__leave(queue);
    return slot ? GPUSYNC_OK : GPUSYNC_ERROR_UNKNOWN_BUFFER;
}

/* -- taking in. All of this runs under the order lock, and needs a pool. */

/* Searches for the buffer. ALREADY_TRACKED if it is in flight on this queue, or held. */
GPUSYNC__RARE gpusync_result gpusync__search(gpusync_queue *q, const void *buffer)
{
    gpusync_result result = GPUSYNC_OK;
    const gpusync__slot *slot;
    GPUSYNC__LOCK(q);
    GPUSYNC__EACH_IN_FLIGHT(slot, q)
        if (slot->buffer == buffer)
            result = GPUSYNC_ERROR_ALREADY_TRACKED;
    GPUSYNC__UNLOCK(q);
    return result;
}

/* Checks whether the queue can take a stranger. The class is checked first, because Metal 4 objects
   and others lack the methods that are used here, and a message to them would end the program. */
GPUSYNC__RARE gpusync_result gpusync__check_stranger(gpusync_queue *q, void *buffer, uint8_t kind)
{
    /* It may be one of ours that the destroy of the queue has just released: no message goes to it. */
    if (GPUSYNC__LOAD_SEQ(&q->flags) & GPUSYNC__CLOSING)
        return GPUSYNC_ERROR_DESTROYED;
    void *cls = gpusync__class_of(buffer);
    if (q->metal4)
        return GPUSYNC_ERROR_UNSUPPORTED; /* it commits otherwise: gpusync_commit4 */
    if (cls != GPUSYNC__LOAD_SEQ(&q->buffer_class)) {
        if (!gpusync__class_responds(cls, gpusync__sel.addCompletedHandler) ||
            !gpusync__class_responds(cls, gpusync__sel.commandQueue) ||
            !gpusync__class_responds(cls, gpusync__sel.status) ||
            !gpusync__class_responds(cls, gpusync__sel.gpuStartTime))
            return GPUSYNC_ERROR_UNSUPPORTED;
        GPUSYNC__STORE_SEQ(&q->buffer_class, cls);
    }
    if (gpusync__send_id(buffer, gpusync__sel.commandQueue) != q->metal)
        return GPUSYNC_ERROR_WRONG_QUEUE;
    if (kind == GPUSYNC__TRACKED || GPUSYNC__LOAD_SEQ(&q->tracked) || GPUSYNC__LOAD_SEQ(&q->lined))
        return gpusync__search(q, buffer);
    return GPUSYNC_OK; /* without tracked or held work its status tells */
}

/* Checks everything about the buffer that gpusync may refuse it for, except encoded waits and
   signals: the status, and of a stranger also the class, the queue, and whether it is in flight.
   Metal ends the program if it is sent a commit of, or a handler for, a buffer that is committed
   already. slot: of an open buffer; NULL for a stranger. */
GPUSYNC__INLINE gpusync_result gpusync__check_buffer(gpusync_queue *q, void *buffer, uint8_t kind,
                                                     const gpusync__slot *slot, unsigned long *status)
{
    gpusync_result result = slot ? GPUSYNC_OK : gpusync__check_stranger(q, buffer, kind);
    if (result != GPUSYNC_OK)
        return result;
    *status = gpusync__send_ulong(buffer, gpusync__sel.status);
    return *status >= GPUSYNC__STATUS_COMMITTED ? GPUSYNC_ERROR_ALREADY_COMMITTED : GPUSYNC_OK;
}

/* Takes in a buffer that was checked: its slot is in flight, with the next ticket. *open: the slot
   of an open buffer, which leaves the list and keeps its traits. For a stranger *open or `open` is
   NULL: the stranger gets a new slot, and room without a wait, because the buffer exists already;
   it is retained. OUT_OF_MEMORY, with nothing changed, if no slot or no place for the ticket is
   ready. Takes the queue's lock. */
GPUSYNC__INLINE gpusync_result gpusync__take_in(gpusync_queue *q, void *buffer, uint8_t kind, uint8_t traits,
                                                gpusync__slot **open, gpusync__slot **out)
{
    uint64_t now = gpusync_now_ns();
    gpusync__slot *slot = open ? *open : NULL;
    bool stranger = !slot;

    if (stranger)
        gpusync__retain(buffer); /* first: once it has a ticket a look may release it */
    GPUSYNC__LOCK(q);
    bool ready = gpusync__ring_is_ready(q) && (slot || q->free_slots);
    if (ready) {
        if (stranger) {
            slot = gpusync__slot_take(q);
            gpusync__slot_open(q, slot, buffer, kind, traits);
            gpusync__count_room(q, 1);
        } else {
            gpusync__take_open(open);
            slot->kind = kind;
        }
        if (kind == GPUSYNC__TRACKED)
            gpusync__count_tracked(q, true);
        gpusync__flight_add(q, slot);
        gpusync__enter_ring(q, slot, GPUSYNC__ARMED, now);
    }
    GPUSYNC__UNLOCK(q);
    *out = slot;
    if (!ready && stranger)
        gpusync__release(buffer); /* not its last: the program has it */
    return ready ? GPUSYNC_OK : GPUSYNC_ERROR_OUT_OF_MEMORY;
}

/* Gives Metal the slot as a completion handler. */
GPUSYNC__INLINE void gpusync__add_handler(gpusync__slot *slot, void *buffer)
{
    gpusync__send_void_id(buffer, gpusync__sel.addCompletedHandler, slot);
}

/* -- the commit */

/* Ends a commit that is traced, or that could not simply be done: it becomes a submission, or is
   refused. *began: when a commit that is traced began; of others it is not set, so that they keep no
   register for it. No lock is held. */
GPUSYNC__RARE gpusync_result gpusync__end_commit(gpusync_queue *q, void *const *buffers, size_t count,
                                                 gpusync_result result, const uint64_t *began, gpusync_ticket *ticket)
{
    uint64_t held = 0; /* since when its submission is held; 0: it is not */
    if (result == GPUSYNC_NOT_READY)
        result = gpusync__upper_of(q)->commit(q, buffers, count, ticket, &held);
    if (result != GPUSYNC_OK || !q->traced)
        return result;
    q->device->trace->ticket(q, GPUSYNC_TRACE_COMMIT, *ticket, NULL, *began);
    if (held)
        q->device->trace->ticket(q, GPUSYNC_TRACE_HOLD, *ticket, NULL, held);
    return GPUSYNC_OK;
}

/* Commits, or tracks: ticket, handler and commit are one step in the order of the queue. NOT_READY if
   earlier work is held, or waits or signals are encoded into the buffer: the commit becomes a
   submission, and may be held. Such a buffer is not tracked, because gpusync has to commit it. Under
   the order lock. Needs a pool. The result is a variable of this function's own, because the compiler
   would keep the caller's in memory. */
GPUSYNC__INLINE gpusync_result gpusync__commit_ordered(gpusync_queue *q, void *buffer, uint8_t kind,
                                                       gpusync_ticket *ticket)
{
    if (gpusync__is_lost(q))
        return GPUSYNC_ERROR_DEVICE_LOST;
    gpusync__slot **open = gpusync__find_open(q, buffer);
    gpusync__slot *slot = *open;
    bool tracks = kind == GPUSYNC__TRACKED;
    unsigned long status;

    if (tracks && slot && slot->submission)
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    if ((slot && slot->submission) || (!tracks && GPUSYNC__LOAD_SEQ(&q->lined_ordered)))
        return q->metal4 ? GPUSYNC_ERROR_UNSUPPORTED : GPUSYNC_NOT_READY;
    gpusync_result result = gpusync__check_buffer(q, buffer, kind, slot, &status);
    if (result == GPUSYNC_OK)
        result = gpusync__take_in(q, buffer, kind, GPUSYNC__HAS_ROOM, open, &slot);
    if (result != GPUSYNC_OK)
        return result;
    gpusync__add_handler(slot, buffer);
    *ticket = slot->ticket; /* before the commit: from there on the slot is the handler's */
    if (!tracks)
        gpusync__send_void(buffer, gpusync__sel.commit);
    return GPUSYNC_OK;
}

/* Commits or tracks a command buffer. The caller is inside the queue, and has *began: C++ would unwind
   for a variable of a function that is always inlined. */
GPUSYNC__INLINE gpusync_result gpusync__commit_as(gpusync_queue *q, void *buffer, uint8_t kind, uint64_t *began,
                                                  gpusync_ticket *ticket)
{
    gpusync_result result;
    if (q->traced)
        *began = gpusync_now_ns();
    do {
        void *pool = gpusync__pool_push();
        gpusync__lock(&q->order);
        result = gpusync__commit_ordered(q, buffer, kind, ticket);
        gpusync__order_end_pool(q, pool);
    } while (result == GPUSYNC_ERROR_OUT_OF_MEMORY && gpusync__make_ready(q, 1));
    if (result != GPUSYNC_OK || q->traced)
        result = gpusync__end_commit(q, &buffer, 1, result, began, ticket);
    return result;
}

/* A function of its own, because the compiler then needs one instruction less. */
static gpusync_result gpusync__commit(gpusync_queue *q, void *buffer, gpusync_ticket *ticket)
{
    uint64_t began;
    return gpusync__commit_as(q, buffer, GPUSYNC__WORK, &began, ticket);
}

/* Marks a command buffer that was refused because a failure sticks, if it is open: when it is
   discarded, the timelines that it was to signal fail. */
GPUSYNC__RARE void gpusync__note_refused(gpusync_queue *q, const void *buffer)
{
    if (!gpusync__enter(q))
        return;
    gpusync__lock(&q->order);
    gpusync__slot *slot = *gpusync__find_open(q, buffer);
    if (slot)
        slot->traits |= GPUSYNC__WAS_REFUSED;
    gpusync__unlock(&q->order);
    gpusync__leave(q);
}

/* Ends a commit that has not entered the queue. Returns the result. */
GPUSYNC__RARE gpusync_result gpusync__refuse_commit(gpusync_queue *q, const void *buffer, gpusync_result result,
                                                    gpusync_ticket *ticket)
{
    if (result == GPUSYNC_ERROR_EXECUTION)
        gpusync__note_refused(q, buffer);
    if (ticket)
        *ticket = GPUSYNC_NO_TICKET;
    return result;
}

GPUSYNC_API gpusync_result gpusync_commit(gpusync_queue *queue, void *command_buffer, gpusync_ticket *ticket)
{
    gpusync_ticket issued = GPUSYNC_NO_TICKET;
    gpusync_result result = GPUSYNC_ERROR_INVALID_ARGUMENT;

    if (queue && command_buffer)
        result = gpusync__enter_working(queue, GPUSYNC__STUCK);
    if (result != GPUSYNC_OK)
        return gpusync__refuse_commit(queue, command_buffer, result, ticket);
    result = gpusync__commit(queue, command_buffer, &issued);
    gpusync__leave(queue);
    if (ticket)
        *ticket = issued;
    return result;
}

/* -- command buffers that the program commits */

GPUSYNC_API gpusync_result gpusync_track(gpusync_queue *queue, void *command_buffer, gpusync_ticket *ticket)
{
    uint64_t began;
    gpusync_ticket issued = GPUSYNC_NO_TICKET;
    gpusync_result result = GPUSYNC_ERROR_INVALID_ARGUMENT;

    if (queue && command_buffer)
        result = gpusync__enter_working(queue, 0);
    if (result == GPUSYNC_OK) {
        result = gpusync__commit_as(queue, command_buffer, GPUSYNC__TRACKED, &began, &issued);
        gpusync__leave(queue);
    }
    if (ticket)
        *ticket = issued;
    return result;
}

/* Gives up a tracked buffer that is not committed: its ticket ends with `end`. The hold in
   gpusync__abandon decides between this call and a handler that comes at the same time. */
static gpusync_result gpusync__untrack(gpusync_queue *q, uint64_t ticket, gpusync_result end)
{
    gpusync_result result = GPUSYNC_ERROR_INVALID_TICKET;
    gpusync__deferred deferred = GPUSYNC__NOTHING;
    gpusync_error error;
    gpusync__view view;
    if (!gpusync__view_ticket(q, ticket, &view))
        return result;
    if (!view.s && view.kind == GPUSYNC__TRACKED) {
        gpusync__given_up_error(q, &error, end, "given up before it was committed");
        if (!gpusync__is_uncommitted(&view))
            result = GPUSYNC_ERROR_ALREADY_COMMITTED;
        else if (gpusync__abandon(q, &view, &error, &deferred))
            result = GPUSYNC_OK;
        gpusync__do_deferred(q->device, &deferred);
    }
    gpusync__view_end(q, &view);
    return result;
}

GPUSYNC_API gpusync_result gpusync_untrack(gpusync_queue *queue, gpusync_ticket ticket)
{
    gpusync_result result = GPUSYNC_ERROR_INVALID_TICKET;
    if (!queue)
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    if (!gpusync__enter(queue))
        return GPUSYNC_ERROR_DESTROYED;
    bool known = ticket != 0 && ticket <= gpusync__committed(queue);
    if (known)
        result = gpusync__untrack(queue, ticket, GPUSYNC_ERROR_CANCELLED);
    gpusync__leave(queue);
    return result;
}

/* ------------------------------------------------------------------------------- >>create --
   A device is made in this order:
     1. The selectors are registered: every step after this one sends messages.
     2. The Metal device is found or given, with a reference of gpusync's own (+1).
     3. Its memory is allocated, all zero: that is where every field begins that is not set here. It
        comes from malloc, not from the program's allocator, which it may outlive.
     4. The fields are set, and the dispatch queues made. No other thread knows the device before the
        call returns, so they need no lock.

   A queue is made in this order:
     1. Its memory is allocated, all zero, and the fields are set that begin otherwise.
     2. The ring is made, which finds its tickets.
     3. The Metal queue is made or given.
     4. Under the device's lock it gets its number and its place on the list. From here on the
        sweep, the report and the loss of the device find it.
   What fails on the way is given back by gpusync__queue_free, which takes a queue of any step. */

/* Registers the selectors, once for the process. It holds the lock, so that a second thread sends
   nothing before all selectors are registered. */
static void gpusync__init_selectors(void)
{
    GPUSYNC__LOCK_GLOBAL();
    if (!gpusync__global.selectors_ready) {
#define GPUSYNC__REGISTER(name, text) gpusync__sel.name = gpusync__sel_register(text);
        GPUSYNC__SELECTORS(GPUSYNC__REGISTER)
#undef GPUSYNC__REGISTER
        gpusync__global.selectors_ready = true;
    }
    GPUSYNC__UNLOCK_GLOBAL();
}

/* Returns the first of MTLCopyAllDevices, +1, or NULL, for machines that have devices and no
   default one. The function is looked up by name, because iOS has it from 18 on, and a weak
   reference to it does not link with earlier SDKs. Needs a pool. */
static void *gpusync__first_device(void)
{
    void *symbol = gpusync__find_symbol(GPUSYNC__EVERY_IMAGE, "MTLCopyAllDevices");
    void *list, *first = NULL;
    void *(*copy_all)(void);

    if (!symbol)
        return NULL;
    memcpy(&copy_all, &symbol, sizeof symbol); /* C has no cast from an object to a function */
    list = copy_all();
    if (!list)
        return NULL;
    if (gpusync__send_ulong(list, gpusync__sel.count) > 0)
        first = gpusync__retain(GPUSYNC__AS1(void *, unsigned long)(list, gpusync__sel.objectAtIndex, 0));
    gpusync__release(list);
    return first;
}

/* Park and unpark are given together, and so are the functions of an allocator. */
static bool gpusync__desc_is_valid(const gpusync_device_desc *desc)
{
    const gpusync_hooks *hooks = desc->hooks;
    const gpusync_allocator *allocator = desc->allocator;
    return (!hooks || !hooks->park == !hooks->unpark) && (!allocator || (allocator->allocate && allocator->release)) &&
           (unsigned)desc->callback_mode <= GPUSYNC_CALLBACKS_MANUAL;
}

/* Returns the given MTLDevice, or the system's, +1, or NULL if there is none. */
static void *gpusync__find_device(void *given)
{
    void *pool = gpusync__pool_push();
    void *metal = gpusync__retain(given);

    if (!metal)
        metal = gpusync__default_device();
    if (!metal)
        metal = gpusync__first_device();
    gpusync__pool_pop(pool);
    return metal;
}

/* Sets the hooks; the C library's stand in for those that the program leaves out. */
static void gpusync__set_hooks(gpusync_hooks *hooks, const gpusync_hooks *given)
{
    if (given)
        *hooks = *given;
    if (!hooks->yield)
        hooks->yield = gpusync__default_yield;
    if (!hooks->park)
        hooks->park = gpusync__default_park;
    if (!hooks->unpark)
        hooks->unpark = gpusync__default_unpark;
}

/* Makes the device's dispatch queues; the program may give the one for callbacks. */
static void gpusync__make_dispatch_queues(gpusync_device *dev, void *callback_queue)
{
    dev->sweep_queue = gpusync__dispatch_queue_create("gpusync sweeps", NULL);
    dev->destroy_queue = gpusync__dispatch_queue_create("gpusync destroys", NULL);
    if (gpusync__is_manual(dev))
        return;
    if (callback_queue)
        gpusync__dispatch_retain(callback_queue);
    else /* without a quality of service it would run with that of whatever thread asked first (`asked`) */
        callback_queue = gpusync__dispatch_queue_create(
            "gpusync callbacks", gpusync__dispatch_attr_with_qos(NULL, GPUSYNC__QOS_USER_INITIATED, 0));
    dev->callback_queue = callback_queue;
}

GPUSYNC_API gpusync_result gpusync_device_create(const gpusync_device_desc *desc, gpusync_device **out)
{
    static const gpusync_allocator plain = {gpusync__default_allocate, gpusync__default_release, NULL};
    static const gpusync_device_desc none = {NULL, NULL, NULL, NULL, NULL, NULL, GPUSYNC_CALLBACKS_QUEUED,
                                             NULL, NULL, NULL};

    if (out)
        *out = NULL;
    if (!desc)
        desc = &none;
    if (!out || !gpusync__desc_is_valid(desc))
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    gpusync__init_selectors();
    if (desc->metal_device &&
        !gpusync__class_responds(gpusync__class_of(desc->metal_device), gpusync__sel.newCommandQueueWithMax))
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    void *metal = gpusync__find_device(desc->metal_device);
    if (!metal)
        return GPUSYNC_ERROR_NO_DEVICE;
    gpusync_device *dev = (gpusync_device *)gpusync__default_allocate(NULL, sizeof *dev, 128);
    if (!dev) {
        gpusync__release_pooled(metal);
        return GPUSYNC_ERROR_OUT_OF_MEMORY;
    }

    memset(dev, 0, sizeof *dev);
    dev->metal = metal;
    dev->inside = dev->refs = 1;
    dev->pace_ns = GPUSYNC__SWEEP_NS;
    dev->allocator = desc->allocator ? *desc->allocator : plain;
    gpusync__waiter_init(&dev->lingers);
    gpusync__set_hooks(&dev->hooks, desc->hooks);
    if (desc->spin)
        *(dev->spin = &dev->own_spin) = *desc->spin;
    dev->log = desc->log;
    dev->log_user = desc->log_user;
    dev->notify = desc->notify;
    dev->notify_user = desc->notify_user;
    dev->callback_mode = desc->callback_mode;
    gpusync__make_dispatch_queues(dev, desc->callback_queue);
    *out = dev;
    return GPUSYNC_OK;
}

/* Returns a new Metal 4 queue, +1, or NULL. Its label comes from a descriptor. */
static void *gpusync__new_queue4(void *metal, const char *label)
{
    void *cls = gpusync__class_of(metal);
    void *desc = NULL, *queue;

    if (label && gpusync__class_responds(cls, gpusync__sel.newQueue4WithDescriptor))
        desc = gpusync__new_object("MTL4CommandQueueDescriptor");
    if (!desc)
        return gpusync__send_id(metal, gpusync__sel.newQueue4);
    gpusync__set_label(desc, label);
    queue = ((void *(*)(void *, void *, void *, void **))gpusync__send)(metal, gpusync__sel.newQueue4WithDescriptor,
                                                                        desc, NULL);
    gpusync__release(desc);
    return queue;
}

/* Returns whether the device makes Metal 4 queues. The family is checked, too, because the class of
   a device that lacks Metal 4 may have the method all the same (unverified, of Apple's paravirtual
   device: README, "Status"). */
static bool gpusync__has_metal4(void *metal)
{
    void *cls = gpusync__class_of(metal);
    return gpusync__class_responds(cls, gpusync__sel.newQueue4) &&
           gpusync__class_responds(cls, gpusync__sel.supportsFamily) &&
           GPUSYNC__AS1(signed char, long)(metal, gpusync__sel.supportsFamily, GPUSYNC__FAMILY_METAL4);
}

/* Returns whether the queue is of this device, by the registry: wrappers of validation layers may
   differ by pointer. */
static bool gpusync__is_of_device(void *queue, void *metal)
{
    void *device = gpusync__send_id(queue, gpusync__sel.device);
    return device == metal || (device && GPUSYNC__AS(uint64_t)(device, gpusync__sel.registryID) ==
                                             GPUSYNC__AS(uint64_t)(metal, gpusync__sel.registryID));
}

/* Makes or retains the Metal queue, and copies its label. A given one must be of this device. One that
   is made here has a place more than the limit: Metal counts a buffer until its handler has returned,
   and unpark and notify, which the handler calls, may need a thread that makes a command buffer.
   Classes, never versions, tell what the system has. Needs a pool. */
static gpusync_result gpusync__metal_queue(gpusync_queue *q, const gpusync_queue_desc *desc)
{
    void *given = desc->metal_queue;
    void *metal = q->device->metal;
    void *cls = gpusync__class_of(given ? given : metal);

    q->metal4 = given ? gpusync__class_responds(cls, gpusync__sel.commit4) &&
                            gpusync__class_responds(cls, gpusync__sel.signalEvent) &&
                            gpusync__class_responds(cls, gpusync__sel.waitForEvent)
                      : desc->metal4;
    bool there = !desc->metal4 && (!given || gpusync__class_responds(cls, gpusync__sel.commandBuffer));
    if (q->metal4) {
        there = given || gpusync__has_metal4(metal);
        q->options_class = gpusync__class_named("MTL4CommitOptions");
    }
    if (!there || (q->metal4 && !q->options_class))
        return GPUSYNC_ERROR_UNSUPPORTED;
    if (given) {
        if (!gpusync__is_of_device(given, metal))
            return GPUSYNC_ERROR_INVALID_ARGUMENT;
        q->metal = gpusync__retain(given);
        gpusync__copy_string(q->label, sizeof q->label, gpusync__send_id(given, gpusync__sel.label));
        return GPUSYNC_OK;
    }
    q->metal = q->metal4 ? gpusync__new_queue4(metal, desc->label)
                         : GPUSYNC__AS1(void *, unsigned long)(metal, gpusync__sel.newCommandQueueWithMax,
                                                               (unsigned long)q->limit + 1);
    if (!q->metal)
        return GPUSYNC_ERROR_METAL_NIL;
    gpusync__copy_label(q->label, sizeof q->label, desc->label);
    if (desc->label && !q->metal4)
        gpusync__set_label(q->metal, desc->label);
    return GPUSYNC_OK;
}

/* Frees what gpusync_queue_create made, however far it came. The log and the ring may have grown
   since; the log begins as a field of the queue, which is not freed by itself. */
GPUSYNC__RARE void gpusync__queue_free(gpusync_queue *q)
{
    gpusync_device *dev = q->device;
    gpusync__release_pooled(q->metal);
    if (q->log != &q->last_failure)
        gpusync__free(dev, q->log, q->log_size * sizeof *q->log);
    for (gpusync__ring *ring = q->ring, *older; ring; ring = older) {
        older = ring->older;
        gpusync__ring_free(dev, ring);
    }
    gpusync__free(dev, q, sizeof *q);
}

/* Sets the fields that do not begin with 0. No other thread knows the queue yet. False if there is
   no memory. */
static bool gpusync__queue_fill(gpusync_queue *q, gpusync_device *dev, const gpusync_queue_desc *desc)
{
    q->device = dev;
    q->limit = desc->max_command_buffer_count ? desc->max_command_buffer_count : 63;
    q->log_most = desc->error_log_count ? desc->error_log_count : 64;
    q->log = &q->last_failure;
    q->log_size = 1;
    q->ends.flight[0] = q->ends.flight[1] = &q->ends;
    q->spin = dev->spin;
    if (desc->spin)
        *(q->spin = &q->own_spin) = *desc->spin;
    q->ring = gpusync__ring_new(dev, GPUSYNC__RING_SIZE);
    q->sticky = desc->sticky_failure;
    return q->ring != NULL;
}

GPUSYNC_API gpusync_result gpusync_queue_create(gpusync_device *dev, const gpusync_queue_desc *desc,
                                                gpusync_queue **out)
{
    static const gpusync_queue_desc none = {NULL, NULL, 0, 0, NULL, false, false};
    if (out)
        *out = NULL;
    if (!desc)
        desc = &none;
    if (!dev || !out)
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    gpusync_queue *q = (gpusync_queue *)gpusync__allocate(dev, sizeof *q, 128);
    if (!q)
        return GPUSYNC_ERROR_OUT_OF_MEMORY;
    bool made = gpusync__queue_fill(q, dev, desc);
    void *pool = gpusync__pool_push();
    gpusync_result result = made ? gpusync__metal_queue(q, desc) : GPUSYNC_ERROR_OUT_OF_MEMORY;
    gpusync__pool_pop(pool);
    if (q->metal4 && !desc->max_command_buffer_count)
        q->limit = UINT32_MAX; /* Metal 4 has no limit */
    gpusync__lock(&dev->lock);
    /* gpusync__read_failure sets `lost` before gpusync__lose takes the lock: that finds the queue on the list, or this
       thread finds the loss. */
    if (gpusync_device_is_lost(dev))
        result = GPUSYNC_ERROR_DEVICE_LOST;
    if (result == GPUSYNC_OK) {
        q->place.number = ++dev->queue_count;
        gpusync__list_add(&dev->queues, &q->place);
        dev->objects++;
        gpusync__flag_trace(q);
    }
    gpusync__unlock(&dev->lock);
    if (result == GPUSYNC_OK)
        *out = q;
    else
        gpusync__queue_free(q);
    return result;
}

/* ------------------------------------------------------------------------------ >>destroy --
   A queue is destroyed in this order. Each step needs those before it:
     1. CLOSING is set: a later call returns ERROR_DESTROYED, and so does a second destroy.
     2. Sleeping waits are woken, and calls that are inside leave. From here on no call of the
        program is inside.
     3. Uncommitted work is given up: held work, open and tracked command buffers.
     4. The work in flight ends, or a lost device gives it up; not in gpusync_queue_destroy_now. Every
        ticket that has not ended ends here (gpusync__abandon_all), and what waits for it is told.
     5. Slots whose handlers have not come become orphans. This thread waits for handlers that run:
        until no slot is in flight, and then until `leaving` is 0.
     6. What still waits for a ticket of the queue is told, or another thread tells it
        (gpusync__end_listed).
     7. Callbacks and releases that the queue owes run on this thread. For Metal 4 the events are kept
        that the GPU may still use (gpusync__leave_behind, at >>metal4).
     8. The queue leaves the device's list, and the device keeps the counts. The memory is freed.

   What becomes of everything, by step. The right column is gpusync_queue_destroy_now, where GIVEN
   UP is ERROR_DESTROYED, and every other destroy on a lost device after its work was given up, where
   it is ERROR_DEVICE_LOST (gpusync__end_by_destroy). An orphan is a slot that its queue has left to the handler
   (gpusync__give_up).

     waits that sleep or spin       [2]  return ERROR_DESTROYED         the same
     held work, commits behind it   [3]  ends with ERROR_CANCELLED      ends with GIVEN UP
     open command buffers           [3]  are released; timelines that   the same, with GIVEN UP
                                         they were to signal fail with
                                         ERROR_CANCELLED
     tracked ones, not committed    [3]  end with ERROR_CANCELLED,      the same, with GIVEN UP
                                         their slots become orphans
     plain commits in flight        [4]  are waited for                 end with GIVEN UP; their slots become orphans
     submissions in flight          [4]  are waited for                 end with GIVEN UP, and so do the timelines
                                                                        they signal; their command buffers stay
                                                                        until the handlers have come, with the
                                                                        events that the GPU may still use
     work of other queues that      [4]  gets how the ticket ended      gets that end of the ticket, in this call, and
     waits for a ticket of this one                                     is never committed
     callbacks and releases         [7]  run in the call                the same; a released object may still be
                                                                        in use by the GPU
     Metal 4: queue and events      [7]  stay for good, if a signal has not come (>>metal4)

   The calls that block take the steps on their own thread. For gpusync_queue_destroy_later the call
   takes steps 1 and 3 and wakes the waits of step 2. The thread of `destroy_queue` takes steps 2 to 7,
   step 3 once more, with no hook and no callback (gpusync__go), and a callback takes step 8.

   A device is destroyed when it has no queue, timeline or warm-up left: gpusync_device_destroy
   checks that first, and otherwise changes nothing. */

/* Waits until every call has left a closing queue or timeline, whose count is `inside`. A wait that
   sleeps was woken, also one for many points of which this one is over (gpusync__take_entry). */
static void gpusync__let_out(gpusync_device *dev, const uint32_t *inside, const gpusync__going *going)
{
    unsigned rounds = 0;
    while (GPUSYNC__LOAD_SEQ(inside))
        gpusync__linger(dev, going, &rounds);
}

/* Step 3. Ends held work, whose signals fail, and then discards the open command buffers: their
   submissions have no ticket that could tell of the failure, so that their timelines fail here. The
   slots of tracked buffers become orphans, because the program may still commit them. Waits are
   woken without a lock. */
static void gpusync__give_up_uncommitted(gpusync_queue *q)
{
    const gpusync__upper *upper = gpusync__upper_of(q);
    gpusync__deferred deferred = GPUSYNC__NOTHING;
    gpusync__slot *slot;
    gpusync_error error;

    if (GPUSYNC__LOAD_SEQ(&q->lined))
        upper->give_up(q, gpusync__end_by_destroy(q), "its queue was destroyed while it was held", &deferred);
    gpusync__do_deferred(q->device, &deferred);
    gpusync__given_up_error(q, &error, gpusync__end_by_destroy(q),
                            "its queue was destroyed before its command buffer was committed");
    for (;;) {
        gpusync__lock(&q->order);
        slot = q->open ? gpusync__take_open(&q->open) : NULL;
        gpusync__unlock(&q->order);
        if (!slot)
            break;
        if (slot->submission)
            upper->discard(slot->submission, &error, &deferred);
        gpusync__release_pooled(slot->buffer);
        gpusync__give_room(q, 1, slot);
    }
    gpusync__do_deferred(q->device, &deferred);
    uint64_t last = GPUSYNC__LOAD_SEQ(&q->tracked) ? gpusync__committed(q) : 0;
    GPUSYNC__EACH_OPEN(ticket, q, last)
        (void)gpusync__untrack(q, ticket, gpusync__end_by_destroy(q));
}

/* Step 4. Waits for the work in flight without a limit, or until a lost device gives it up.
   Callbacks of this queue run here, because one of them may end what this thread waits for, and
   because no other thread may run them: the program may have stopped dispatching, or this may be
   the thread of its callback queue. Therefore the wait sleeps in slices. The sweep does not enter a
   closing queue, so this thread looks by itself. */
static void gpusync__drain(gpusync_queue *q)
{
    gpusync_device *dev = q->device;
    uint64_t slice = gpusync__is_manual(dev) ? GPUSYNC__LINGER_NS : GPUSYNC__SWEEP_NS;
    unsigned rounds = 0;
    gpusync__goal goal;
    bool found;
    gpusync__goal_of(q, GPUSYNC_EVERYTHING, &goal);

    goal.stops = 0; /* this thread goes on though the queue closes */
    for (; !gpusync__met(&goal) && !gpusync__is_given_up(q); gpusync__sweep_queue(q, &found)) {
        bool calls = !q->going.device && GPUSYNC__LOAD_SEQ(&dev->due_count);
        gpusync__due *due = calls ? gpusync__pop_due(dev, &q->owed) : NULL;
        if (due)
            gpusync__run_one_due(dev, due);
        else if (q->going.device || gpusync__wait_goal(&goal, slice, NULL, false) == GPUSYNC_ERROR_OUT_OF_MEMORY)
            gpusync__linger(dev, &q->going, &rounds); /* no hook may be called, or there is no memory to sleep with */
    }
}

/* Step 5. Gives every slot in flight up to its handler, which touches nothing else then, and may
   come long after the queue is freed. A handler that has begun uses the queue, and this thread
   waits for it.
   Interleaving 4: a handler ends the last ticket, and destroy sees an idle queue. Destroy waits
   until no slot is in flight, and then until no handler is on its way out. */
GPUSYNC__RARE void gpusync__orphan_slots(gpusync_queue *q)
{
    unsigned rounds = 0;
    for (;;) {
        gpusync__catch caught; /* catches nothing: no wait is left */
        void *buffer = NULL;
        bool orphan = false, runs = false;
        gpusync__slot *slot;
        gpusync__catch_nothing(&caught);
        GPUSYNC__LOCK(q);
        GPUSYNC__EACH_IN_FLIGHT(slot, q) {
            orphan = gpusync__give_up(q, slot, &buffer, &caught);
            if (orphan)
                break;
            runs = runs || gpusync__state_of(slot) != GPUSYNC__OPEN; /* that goes with its submission */
        }
        GPUSYNC__UNLOCK(q);
        gpusync__release_pooled(buffer);
        if (orphan)
            continue;
        if (!runs && !GPUSYNC__LOAD_SEQ(&q->leaving))
            return;
        gpusync__linger(q->device, &q->going, &rounds);
    }
}

/* Step 6. No call lists itself any more. What stands here still waits for a submission that another
   thread has among its deferred work, and that thread ends it; or it is a release that was kept for
   work that was given up, or what a thread is about to tell of a ticket that has ended. */
GPUSYNC__RARE void gpusync__end_listed(gpusync_queue *q, gpusync__deferred *deferred)
{
    unsigned rounds = 0;
    for (;;) {
        gpusync__catch caught;
        gpusync_error error;
        gpusync__catch_nothing(&caught);
        GPUSYNC__LOCK(q);
        const gpusync__node *node = q->waits.lists[GPUSYNC__WAITS].end[0]; /* no wait is left */
        uint64_t ticket = node ? node->number : GPUSYNC_NO_TICKET;
        bool ended = gpusync__has_ended(q, ticket);
        if (ended) {
            bool well = gpusync__ticket_result(q, ticket, &error) == GPUSYNC_OK;
            gpusync__take_ended(q, ticket, well ? NULL : &error, &caught, deferred);
        }
        GPUSYNC__UNLOCK(q);
        if (!node)
            return;
        gpusync__tell(q, ticket, &caught, deferred);
        gpusync__do_deferred(q->device, deferred);
        if (!ended)
            gpusync__linger(q->device, &q->going, &rounds);
    }
}

/* Puts a list of slots on the free list of all queues. Takes the global lock. */
static void gpusync__return_slots(gpusync__slot *slot)
{
    GPUSYNC__LOCK_GLOBAL();
    for (gpusync__slot *next; slot; slot = next) {
        next = slot->next;
        slot->next = gpusync__global.free;
        gpusync__global.free = slot;
    }
    GPUSYNC__UNLOCK_GLOBAL();
}

/* Adds all counts, field by field: gpusync_stats has nothing but counts of 64 bits. They are added
   to without a lock, so each is read for itself, relaxed. */
static void gpusync__add_counts(gpusync_stats *sum, const gpusync_stats *more)
{
    uint64_t *to = &sum->commits;
    const uint64_t *from = &more->commits;
    for (size_t i = 0; i < sizeof *sum / sizeof *to; i++)
        to[i] += __atomic_load_n(&from[i], __ATOMIC_RELAXED);
}

/* Adds the counts of a queue. No call counts commits and completions: the tickets tell both, read
   together, so that commits - completions is the number of tickets that have not ended. A ticket
   above `completed` has ended if its entry says so. */
GPUSYNC__RARE void gpusync__add_stats(gpusync_stats *sum, const gpusync_queue *q)
{
    uint64_t ended = gpusync__ended_to(q);
    uint64_t last = gpusync__committed(q);
    gpusync__add_counts(sum, &q->stats);

    sum->commits += last;
    for (uint64_t ticket = ended + 1; ticket <= last; ticket++)
        ended += gpusync__has_ended(q, ticket) && !gpusync__ended_as(q, ticket, GPUSYNC__LEFT);
    sum->completions += ended;
}

static gpusync_queue *gpusync__queue_of(gpusync__going *going)
{
    return (gpusync_queue *)(void *)((char *)going - offsetof(gpusync_queue, going));
}

/* Takes the steps 2 to 7 of >>destroy. */
static void gpusync__close_queue(gpusync__going *going)
{
    gpusync_queue *q = gpusync__queue_of(going);
    gpusync__deferred deferred = GPUSYNC__NOTHING;
    gpusync__let_out(q->device, &q->inside, going);
    gpusync__give_up_uncommitted(q);
    if (q->drains)
        gpusync__drain(q);
    (void)gpusync__look_all(q, NULL); /* no thread is told of an orphan's end */
    (void)gpusync__abandon_all(q, gpusync__end_by_destroy(q), "its queue was destroyed while it was in flight");
    gpusync__orphan_slots(q);
    gpusync__end_listed(q, &deferred);
    gpusync__do_deferred(q->device, &deferred);
    gpusync__pay(q->device, &q->owed, going);
    if (q->four)
        q->four->leave(q);
}

/* Has a device go that is to go and has no object left. The caller is inside. */
static void gpusync__device_goes(gpusync_device *dev)
{
    if (!gpusync__is_manual(dev))
        gpusync__dispatch_async(dev->callback_queue, dev, gpusync__device_end);
    else if (dev->notify)
        dev->notify(dev->notify_user); /* the program's next gpusync_dispatch ends it */
}

/* Notes that an object is gone. `inside` keeps the device meanwhile. No lock is held. */
static void gpusync__object_gone(gpusync_device *dev)
{
    GPUSYNC__ADD_SEQ(&dev->inside, 1);
    gpusync__lock(&dev->lock);
    bool last = --dev->objects == 0 && dev->goes;
    gpusync__unlock(&dev->lock);
    if (last)
        gpusync__device_goes(dev);
    gpusync__device_leave(dev);
}

/* Step 8 of >>destroy. */
static void gpusync__end_queue(gpusync__going *going)
{
    gpusync_queue *q = gpusync__queue_of(going);
    gpusync_device *dev = q->device;

    gpusync__lock(&dev->lock);
    gpusync__list_remove(&dev->queues, &q->place);
    gpusync__add_stats(&dev->gone, q);
    gpusync__unlock(&dev->lock);
    gpusync__return_slots(q->free_slots);
    gpusync__queue_free(q);
    gpusync__object_gone(dev);
}

/* Step 1 of >>destroy, and the first half of step 2. False: the queue is being destroyed already. */
static bool gpusync__begin_destroy(gpusync_queue *q, bool drain)
{
    if (gpusync__set_flag(&q->flags, GPUSYNC__CLOSING) & GPUSYNC__CLOSING)
        return false;
    q->drains = drain;
    gpusync__wake_stopped(q->device, &q->waits);
    return true;
}

/* A callback must not destroy a queue, because step 7 would wait for that callback. */
static gpusync_result gpusync__destroy(gpusync_queue *q, bool drain)
{
    if (!q)
        return GPUSYNC_OK;
    if (gpusync__in_callback())
        return GPUSYNC_ERROR_WOULD_DEADLOCK;
    if (!gpusync__begin_destroy(q, drain))
        return GPUSYNC_ERROR_DESTROYED;
    gpusync__close_queue(&q->going);
    gpusync__end_queue(&q->going);
    return GPUSYNC_OK;
}

GPUSYNC_API gpusync_result gpusync_queue_destroy(gpusync_queue *queue)
{
    return gpusync__destroy(queue, true);
}

GPUSYNC_API gpusync_result gpusync_queue_destroy_now(gpusync_queue *queue)
{
    return gpusync__destroy(queue, false);
}

/* Lets out what is inside, and frees all that the device has. Its own memory stays while a
   dispatched function is on its way. Partner of gpusync__device_enter. */
static void gpusync__device_close(gpusync_device *dev, const gpusync__going *going)
{
    unsigned rounds = 0;
    while (!gpusync__swap32(&dev->inside, 1, 0))
        gpusync__linger(dev, going, &rounds);
    while (dev->event_count)
        gpusync__release_pooled(dev->events[--dev->event_count]);
    gpusync__release_pooled(dev->listener);
    if (dev->issue_queue)
        gpusync__dispatch_release(dev->issue_queue);
    if (dev->callback_queue)
        gpusync__dispatch_release(dev->callback_queue);
    gpusync__dispatch_release(dev->sweep_queue);
    gpusync__dispatch_release(dev->destroy_queue);
    gpusync__release_pooled(dev->metal);
    for (gpusync__waiter *w = dev->free_waiters, *next; w; w = next) {
        next = w->next;
        gpusync__waiter_end(w);
        gpusync__free(dev, w, sizeof *w);
    }
    for (int i = 0; i < GPUSYNC__POOLS; i++)
        gpusync__pool_drop(dev, i, dev->pools[i].free);
    gpusync__waiter_end(&dev->lingers);
    gpusync__device_unref(dev);
}

/* Calls that no queue and no timeline counts leave first. */
GPUSYNC_API gpusync_result gpusync_device_destroy(gpusync_device *device)
{
    if (!device)
        return GPUSYNC_OK;
    if (gpusync__in_callback())
        return GPUSYNC_ERROR_WOULD_DEADLOCK;
    gpusync__lock(&device->lock);
    bool in_use = device->objects != 0; /* a warm-up has a timeline */
    gpusync__unlock(&device->lock);
    if (in_use)
        return GPUSYNC_ERROR_IN_USE;
    gpusync__device_close(device, NULL);
    return GPUSYNC_OK;
}

/* -- later
     1. gpusync_queue_destroy_later sets CLOSING, gives up what is not committed, and dispatches.
     2. The thread of `destroy_queue` takes the steps, one object after the other (gpusync__go).
     3. Behind the last step a callback is due, which frees the object and calls the program
        (gpusync__call_destroyed).
     4. The last object, or gpusync_device_destroy_later, has the device go where callbacks run
        (gpusync__device_end): with MANUAL in the program's next gpusync_dispatch. */

/* `done` of that callback, when the object is gone. */
static void gpusync__going_called(gpusync__due *due)
{
    (void)due;
}

/* Frees the object, and then tells the program. */
static void gpusync__call_destroyed(void *user, gpusync_result result, const gpusync_error *error)
{
    gpusync__going *going = (gpusync__going *)user;
    gpusync_destroyed_fn destroyed = going->destroyed;
    void *theirs = going->user;
    (void)result;
    (void)error;
    going->end(going);
    if (destroyed)
        destroyed(theirs);
}

/* Takes the steps of an object, on `destroy_queue`. The object and, after that, `inside` keep the
   device. */
static void gpusync__go(void *context)
{
    gpusync__going *going = (gpusync__going *)context;
    gpusync_device *dev = going->device;
    gpusync__deferred deferred = GPUSYNC__NOTHING;
    GPUSYNC__ADD_SEQ(&dev->inside, 1);
    going->close(going);
    gpusync__push_due(dev, &going->due, &deferred);
    gpusync__ask_for_calls(dev, &deferred);
    gpusync__device_leave(dev);
}

/* Hands an object that is closing to the dispatch queue. */
static void gpusync__go_later(gpusync_device *dev, gpusync__going *going, gpusync_destroyed_fn destroyed, void *user)
{
    going->due.fn = gpusync__call_destroyed;
    going->due.user = going;
    going->due.done = gpusync__going_called;
    going->destroyed = destroyed;
    going->user = user;
    going->device = dev;
    gpusync__dispatch_async(dev->destroy_queue, going, gpusync__go);
}

/* Frees a device that is to go and has no object left, and then tells the program. */
static void gpusync__device_end(void *context)
{
    gpusync_device *dev = (gpusync_device *)context;
    gpusync__going going = dev->going;
    gpusync__call call;
    going.device = dev; /* it calls no hook */
    gpusync__device_close(dev, &going);
    gpusync__user_begin(&call);
    void *pool = gpusync__pool_push();
    if (going.destroyed)
        going.destroyed(going.user);
    gpusync__pool_pop(pool);
    gpusync__user_end(&call);
}

GPUSYNC_API gpusync_result gpusync_queue_destroy_later(gpusync_queue *queue, gpusync_destroyed_fn destroyed, void *user)
{
    if (!queue)
        return GPUSYNC_OK;
    if (!gpusync__begin_destroy(queue, true))
        return GPUSYNC_ERROR_DESTROYED;
    queue->going.close = gpusync__close_queue;
    queue->going.end = gpusync__end_queue;
    gpusync__give_up_uncommitted(queue);
    gpusync__go_later(queue->device, &queue->going, destroyed, user);
    return GPUSYNC_OK;
}

GPUSYNC_API gpusync_result gpusync_device_destroy_later(gpusync_device *device, gpusync_destroyed_fn destroyed,
                                                        void *user)
{
    if (!device)
        return GPUSYNC_OK;
    GPUSYNC__ADD_SEQ(&device->inside, 1);
    gpusync__lock(&device->lock);
    bool first = !device->goes;
    if (first) {
        device->going.destroyed = destroyed;
        device->going.user = user;
    }
    device->goes = true;
    bool goes = first && device->objects == 0;
    gpusync__unlock(&device->lock);
    if (goes)
        gpusync__device_goes(device);
    gpusync__device_leave(device);
    return first ? GPUSYNC_OK : GPUSYNC_ERROR_DESTROYED;
}

/* ---------------------------------------------------------------------------------- >>ask --
   Simple questions. */

GPUSYNC_API uint32_t gpusync_version(void)
{
    return GPUSYNC_VERSION;
}

GPUSYNC_API void *gpusync_device_metal(const gpusync_device *device)
{
    return device ? device->metal : NULL;
}

GPUSYNC_API void *gpusync_queue_metal(const gpusync_queue *queue)
{
    return queue ? queue->metal : NULL;
}

GPUSYNC_API bool gpusync_device_is_lost(const gpusync_device *device)
{
    return device && GPUSYNC__LOAD_SEQ(&device->lost);
}

/* The program has the cursor: the queue does not remember what was read. */
GPUSYNC_API gpusync_result gpusync_next_error(gpusync_queue *queue, uint64_t *cursor, gpusync_error *error)
{
    if (!queue || !cursor || !error)
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    GPUSYNC__LOCK(queue);
    bool found = gpusync__read_record(queue, cursor, error);
    GPUSYNC__UNLOCK(queue);
    return found ? GPUSYNC_OK : GPUSYNC_NOT_READY;
}

/* The poll comes first, because it may find the end. *info stays zero unless all of it is known. */
GPUSYNC_API gpusync_result gpusync_get_info(gpusync_queue *queue, gpusync_ticket ticket, gpusync_ticket_info *info)
{
    const gpusync__entry *times = NULL;
    gpusync_result result = GPUSYNC_OK;
    gpusync_error error;

    if (info)
        memset(info, 0, sizeof *info);
    if (!queue || !info)
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    if (!gpusync__enter(queue))
        return GPUSYNC_ERROR_DESTROYED;
    gpusync_result now = gpusync_poll(queue, ticket); /* which marks what has ended; the mark alone counts after that */
    if (ticket > gpusync__committed(queue))
        result = GPUSYNC_ERROR_INVALID_TICKET;
    else if (ticket == GPUSYNC_NO_TICKET)
        result = GPUSYNC_ERROR_RESULT_UNKNOWN;
    else if (!gpusync__has_ended(queue, ticket) || gpusync__ended_as(queue, ticket, GPUSYNC__LEFT))
        result = now;
    GPUSYNC__LOCK(queue);
    if (result == GPUSYNC_OK && (times = gpusync__times_of(queue, ticket)) == NULL)
        result = GPUSYNC_ERROR_RESULT_UNKNOWN;
    if (times) {
        info->result = gpusync__ticket_result(queue, ticket, &error);
        info->gpu_start_s = times->gpu_start;
        info->gpu_end_s = times->gpu_end;
    }
    GPUSYNC__UNLOCK(queue);
    gpusync__leave(queue);
    return result;
}

/* Takes no lock: each count is read for itself, while other threads go on counting. */
GPUSYNC_API gpusync_result gpusync_get_stats(const gpusync_queue *queue, gpusync_stats *stats)
{
    if (!queue || !stats)
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    memset(stats, 0, sizeof *stats);
    gpusync__add_stats(stats, queue);
    return GPUSYNC_OK;
}

/* No queue leaves the list under the device's lock, so that each queue counts here, or among those
   that are gone. A queue that is just being destroyed counts in neither until its destroy has
   ended. */
GPUSYNC_API gpusync_result gpusync_device_get_stats(gpusync_device *device, gpusync_stats *stats)
{
    gpusync_queue *q;
    if (!device || !stats)
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    gpusync__lock(&device->lock);
    *stats = device->gone;
    gpusync__add_counts(stats, &device->stats);
    GPUSYNC__EACH_QUEUE(q, device)
        gpusync__add_stats(stats, q);
    gpusync__unlock(&device->lock);
    return GPUSYNC_OK;
}

/* ------------------------------------------------------------------------------- >>second --
   The ground floor ends here: commits, looks, waits, callbacks, failures, destroy. A reader of the
   ground floor can stop here, and a program that calls no function of the second floor links none
   of it.

   The second floor has timelines, submissions, Metal 4, the warm-up, the trace and the report. It
   calls the ground floor freely. The ground floor calls it through gpusync__upper, gpusync__valued,
   gpusync__metal4, gpusync__tracing, `told` of a node, `done` of a due callback, and `close`
   and `end` of what goes later, and through nothing else.

   THE GRAPH. Submissions wait for values and tickets, and signal values: each wait and each signal
   is a link between a submission and a timeline or queue. One lock of the device, the graph's, is
   over all links, submissions, lines of held work, and over what timelines know of their signals.
   While a thread has it no other thread changes any of these. No message, hook, allocation, release
   or dispatch call comes under it (a retain may); a queue's or a timeline's lock may. A change leaves what follows
   (the end of a submission, an issue) to the deferred work of its thread, so that no function calls
   itself, however long a chain is.

   Between two holds of the graph's lock, for every submission `s`, link `l` and timeline `t`:
     G1  A wait that is `listed` stands on `waiting` of its timeline, or on its queue's wait list, from
         which one thread may just have taken it to tell of its end. A signal that is `listed` is
         pending, and stands on `signals` of its timeline, or on `issued` once it is `issued`.
     G2  s->open counts the listed waits of s, and 1 until its work is over. The thread that counts it to 0
         publishes s, and no other thread does.
     G3  s->holds counts the links of s with `holds`. A link holds only submissions that are HELD.
     G4  A submission that is HELD stands in one line of its queue, and every other one in none.
     G5  The signals of s are `issued` all at once, when s turns ISSUED. All are, or none.
     G6  t->reached is below every pending signal, and not above t->kept. No wait for a value up to it is
         listed; none at all where t has failed.
     G7  No wait holds a HELD submission whose value the GPU can wait for (gpusync__find_value), unless the
         submission is STRICT. One that has let go holds no more, whatever comes.
     G8  A queue with held work that may go is `issuing`, unless it is closing: one thread, or a
         dispatched function, will look at its lines, under the order lock.
     G9  s->error is that of the first failure that counts: of its own work or queue, or of a wait that
         fails while it is held; else, at its end, of its first broken wait. It is written once, but by
         gpusync__disown (gpusync_queue_destroy_now, a lost device), which gives all that it leaves one
         error. t->error is written once.
     G10 A signal that stands on t->stays must stay behind a lower one, and holds its submission. It gets
         there when its submission was about to be issued (gpusync__stays), one signal at a time.

   THREE STORIES. A is to signal value 1 of timeline t. B waits for that value, on another queue.

   B comes first.
     1. B enters. No pending signal covers the value [gpusync__find_value], so B is held: it gets its
        ticket and the last place in its queue's line, and its link stands on t->waiting, with `holds`.
     2. A enters, and is issued in the same hold: its signal stands on t->issued. gpusync__turn meets
        the link of B, finds that the GPU can wait now, and lets B go. The queue of B turns `issuing`,
        among the deferred work of A's thread.
     3. A's thread has no lock any more, and issues B [gpusync__issue_held]. A command buffer of our
        own, in front of B's, waits on the GPU.
     4. The handler of A publishes A: value 1 is kept, and reached, because no lower signal is pending.
        The link of B is over. The handler of B counts its work down. The later of the two publishes B.

   A fails.
     1. gpusync__publish of A fails t with A's error, before it takes A's signal back. Each link on
        t->waiting ends with that error, and what waits on the host is told of it.
     2. If B is held, B fails, too: it leaves its line and never runs. What stands behind it may go.
     3. If the GPU has B, B runs, on what A did not write. It ends when its work does: with the error
        of its own work, if that failed, else with that of the first wait that ended badly.
     4. The timelines that B was to signal fail with B's error, and so on. Each end stands among the
        deferred work of the thread, so a chain of any length needs no more stack than one.

   The queue of A is destroyed.
     1. What A's queue holds is dropped, and fails its timelines. So does what is encoded into command
        buffers that are open: their timelines fail without a ticket [gpusync__discard_submission].
     2. gpusync_queue_destroy waits for the GPU, and A ends as always. gpusync_queue_destroy_now does
        not: A is disowned, and ends with DESTROYED; the events of its timelines serve no other
        timeline, because the GPU may still signal them [gpusync__disown].
     3. A wait for a ticket of that queue ends with DESTROYED, if the ticket has not ended before. */

/* -- the structures of the second floor */

/* How a wait stands, or a signal, the worst last. OVER: the value is reached, or the ticket has ended
   well; the signal may go. COMES, ABROAD: a wait on the GPU is right: the GPU, or other code, will
   bring its event there. HOLDS: it is not; the signal must stay behind a lower one. FAILED: so has the
   timeline or the ticket, or nothing will bring the value. */
typedef enum gpusync__found {
    GPUSYNC__FOUND_OVER,
    GPUSYNC__FOUND_COMES,
    GPUSYNC__FOUND_ABROAD,
    GPUSYNC__FOUND_HOLDS,
    GPUSYNC__FOUND_FAILED
} gpusync__found;

/* What a submission waits for, or what it signals. Under the graph's lock, except the node of a
   ticket's link, which is under the lock of that queue's wait list. */
struct gpusync__link {
    gpusync__node node;         /* first; the number is the value, or the ticket */
    struct gpusync__link *next; /* the submission's next, in the order of execution; on a list of free ones */
    struct gpusync__link *also; /* taken off a wait list with it; on t->stays */
    struct gpusync__submission *submission; /* that waits, or signals */
    uint64_t queue_number;                  /* of a ticket: tells whether that queue is gone */
    /* -- zero in a new one: all from here on */
    gpusync_timeline *timeline; /* of a value, with a reference; else NULL */
    gpusync_queue *queue;       /* of a ticket, else NULL; it is there as long as the link is listed */
    /* Of a signal: what its submission waits for before its first signal of the timeline; on
       q->kept the value of the event. */
    uint64_t needs;
    /* It is a signal, else a wait. */
    bool signal;
    /* See G1. Set where the submission enters, or where the signal is encoded; cleared where the
       link ends, or where a failed submission forgets its waits. */
    bool listed;
    /* See G3. Set where the submission is held, cleared by the change that lets it go
       (gpusync__unhold). Wrong: the submission is held for good, or goes too early. */
    bool holds;
    /* Its submission is: the GPU has the signal, or gets it at once, unless the host makes it
       (gpusync__is_hosts); of a wait: the GPU waits. Set by gpusync__set_out for good. */
    bool issued;
    /* Into a command buffer of the program, by gpusync_encode_wait or gpusync_encode_signal, for
       good. */
    bool encoded;
    /* A signal that was issued behind a higher value: the host alone sees its value. Set where it
       is issued, for good. Missing: work on the GPU waits for an event that is above the value. */
    bool passed;
    /* A wait that the GPU does for a value which no pending signal covers: other code signals it.
       Set where the wait is listed or let go. Wrong: the submission waits for a value that the host
       never hears of, or ends before it. */
    bool abroad;
    /* A wait that ended badly. Set by gpusync__link_over, read when the submission is published. */
    bool broken;
    gpusync__found found; /* how it stood when its submission asked to enter */
};

#define GPUSYNC__FEW 4

/* Where a submission stands.
     ENTERING  it is being made, or belongs to an open command buffer
     HELD      it has its ticket, and stands in a line of its queue
     ISSUED    the GPU has it, or gets it at once
     OVER      nothing of it is issued any more, or its end is published

                   free to go   kept back   last hold ends   a wait fails   work and waits over   given up   refused
        ENTERING   ISSUED       HELD        -                OVER           -                     OVER       ENTERING
        HELD       -            -           ISSUED           OVER           -                     OVER       -
        ISSUED     -            -           -                ISSUED         OVER                  OVER       -
        OVER       -            -           -                OVER           OVER                  OVER       -

   A row is the stage before, a column what happens; `-` cannot happen. free to go, kept back: what
   gpusync__may_enter finds. last hold ends: and the submission is the first of its line, or
   UNORDERED. given up: gpusync_cancel_held, a lost device, a failure that sticks, the destroy of its queue, of
   ISSUED ones gpusync_queue_destroy_now and the giving up of a lost device alone, and of ENTERING
   ones the discard of the open buffer.
   refused: the call fails, and nothing has changed. test_states.c reads this table, and goes
   through it. */
enum { GPUSYNC__ENTERING, GPUSYNC__HELD, GPUSYNC__ISSUED, GPUSYNC__OVER };

/* The life of a submission:
     1. gpusync__submission_new takes it out of the pool, with one reference, which is that of its end. Its waits
        and signals become links. gpusync_encode_wait and gpusync_encode_signal make one for an open command buffer.
     2. gpusync__enter_submission asks everything that may refuse it, and then changes: the links of its open
        command buffers become its own, the command buffers become parts, the links are listed.
     3. It is issued, or held in its queue's line until gpusync__issue_line issues it.
     4. Each part that ends counts `running` down. With the last one its work is over (gpusync__work_over).
     5. When its waits are over, too, it is published (gpusync__publish): its signals end, then its ticket.
     6. The last reference puts it back (gpusync__submission_free).
   One that fails before it is issued leaves the line, and goes on with step 5. */
struct gpusync__submission {
    gpusync__due due;       /* first; its place among what is due, from its end on */
    gpusync__slot work;     /* where it is found by its ticket */
    uint32_t refs;          /* of its end, of its callback, and of each thread that looks at it */
    gpusync_device *device; /* for good */
    /* -- of the thread that makes it, until it enters. That of an open command buffer is under the
       order lock and the graph's from its first link on. */
    gpusync__link *spare;   /* links that are not used */
    gpusync__links signals; /* its own, which come behind those of its command buffers */
    /* -- under the graph's lock, but for what is said */
    gpusync__links links;  /* what it waits for and signals, in the order of execution */
    gpusync__slot **parts; /* in the order of their commits. The places are under the queue's lock; NULL: free */
    void **buffers;        /* of Metal 4: what it commits */
    gpusync__node place;   /* in its line. Its number is 0, so that the last one to be added comes last */
    /* Among a thread's deferred work: those to be published, and those to be announced. next_ended: also of those that
       are joined. */
    struct gpusync__submission *next_ended;
    struct gpusync__submission *next_issued;
    uint32_t open;       /* see G2 */
    size_t buffer_count; /* of `buffers` */
    size_t memory_size;  /* of `memory`, in bytes */
    uint64_t sent;       /* of Metal 4: its place among those that the queue got */
    /* -- zero in a new one: these, up to the first character of `label` */
    uint32_t holds;       /* see G3 */
    uint32_t flags;       /* the program's, as GPUSYNC_STRICT */
    uint32_t running;     /* command buffers that have not ended; + 1 where it is announced, until then. Set by
                            gpusync__set_out; 0 before, after its work, and where it was disowned */
    uint32_t part_count;  /* of parts */
    uint32_t first_part;  /* 1 if the first one, `front`, is left out, else 0 */
    void *front;          /* the command buffer of our own for its waits, or NULL */
    void *back;           /* that for its signals, or NULL */
    uint32_t own_buffers; /* how many of these two take room */
    void *open_buffer;    /* of an open command buffer: that, for a report */
    uint64_t asks;        /* of an open command buffer: the number of its question to its timelines */
    void *options;        /* of Metal 4: what its commit is made with, +1 */
    void *memory;         /* parts and buffers, where they are many */
    double gpu_start;     /* of all parts: the first start, or 0: unknown */
    double gpu_end;       /* the last end, or 0 */
    bool tickets;         /* a wait is for a ticket */
    bool values;          /* a wait is for a value */
    /* Of an open command buffer: a signal is encoded, and no wait may come. */
    bool signals_encoded;
    /* It has an error: see G9. Set by gpusync__fail, or where it is published; for good, but for
       gpusync__disown. */
    bool failed;
    /* With an error, set with it: its own work or its queue failed it, nothing that it waited for.
       Wrong: its error has the labels of other work, or the log counts a cancelled submission as
       failed. */
    bool own;
    /* It was left in flight (gpusync__disown). Wrong: Metal 4 frees an event that the GPU still
       uses. */
    bool left;
    uint8_t stage;                              /* GPUSYNC__HELD and the others */
    uint8_t line;                               /* GPUSYNC__ORDERED and the others */
    char label[64];                             /* the submission's, or empty */
    gpusync__slot *few_parts[GPUSYNC__FEW + 2]; /* parts, in most submissions; with two of our own */
    void *few_buffers[GPUSYNC__FEW];            /* buffers, in most submissions */
    gpusync_error error;                        /* see G9 */
};

/* What Metal's blocks lead to: the registrations of a timeline with its event. A registration
   cannot be taken back, and Metal keeps the block as long as it likes: each copy has a reference,
   and so has the timeline. */
typedef struct gpusync__listening {
    uint32_t refs;
    /* -- under the global lock */
    gpusync_timeline *timeline;          /* NULL: it is being destroyed */
    struct gpusync__listener_block *out; /* the blocks that Metal has not called, the lowest value first, by `next` */
} gpusync__listening;

/* Loops over the waits, and over the signals, of a submission, in the order of execution. Both
   declare the loop's variable. */
#define GPUSYNC__EACH_WAIT(link, s)                                               \
    for (gpusync__link *link = (s)->links.first; link != NULL; link = link->next) \
        if (!link->signal)
#define GPUSYNC__EACH_SIGNAL(link, s)                                             \
    for (gpusync__link *link = (s)->links.first; link != NULL; link = link->next) \
        if (link->signal)

#define GPUSYNC__LOCK_GRAPH(device) gpusync__lock(&(device)->graph)
#define GPUSYNC__UNLOCK_GRAPH(device) gpusync__unlock(&(device)->graph)

/* Returns the link of the node, which is its first field; of NULL, NULL. */
static gpusync__link *gpusync__link_at(gpusync__node *node)
{
    return (gpusync__link *)(void *)node;
}

/* Makes the list empty: `end` is the place where the next link goes. */
static void gpusync__links_clear(gpusync__links *list)
{
    list->first = NULL;
    list->end = &list->first;
}

/* Adds the link behind all others. */
static void gpusync__links_add(gpusync__links *list, gpusync__link *link)
{
    link->next = NULL;
    *list->end = link;
    list->end = &link->next;
}

/* Moves all links of one list to the end of the other. */
static void gpusync__links_move(gpusync__links *to, gpusync__links *from)
{
    if (!from->first)
        return;
    *to->end = from->first;
    to->end = from->end;
    gpusync__links_clear(from);
}

/* Has Metal got it, or does it get it at once? With or without a lock. */
static bool gpusync__is_issued(const gpusync__submission *s)
{
    return GPUSYNC__LOAD_SEQ(&s->work.state) == GPUSYNC__ARMED;
}

/* Returns whether the host waits for its values and makes its signals, except those that the
   program has encoded. */
static bool gpusync__is_strict(const gpusync__submission *s)
{
    return s->flags & GPUSYNC_STRICT;
}

/* Returns whether it may pass held work of its queue, and be passed by what comes later. */
static bool gpusync__is_loose(const gpusync__submission *s)
{
    return s->flags & GPUSYNC_UNORDERED;
}

/* Returns the value of the timeline's event that the GPU waits for, or signals. */
static uint64_t gpusync__raw_of(const gpusync__link *link)
{
    return link->node.number + link->timeline->base;
}

/* What stands further down: */
static void gpusync__submission_free(gpusync__submission *s); /* >>submissions: the last reference went */
GPUSYNC__RARE void gpusync__keep_links(gpusync_queue *q, gpusync__submission *s); /* >>metal4: what the GPU may use */
static bool gpusync__look_submission(gpusync__submission *s); /* >>held: asks Metal about its parts */
static void gpusync__hook_in(gpusync_device *dev);            /* >>upper: the first submission comes */

/* Takes a reference. The caller has one, or holds a lock that keeps the submission. */
static void gpusync__submission_keep(gpusync__submission *s)
{
    GPUSYNC__ADD_SEQ(&s->refs, 1);
}

/* Drops a reference; the last one frees the submission. No lock is held. */
static void gpusync__submission_unref(gpusync__submission *s)
{
    if (GPUSYNC__SUB_SEQ(&s->refs, 1) == 1)
        gpusync__submission_free(s);
}

/* Sends encodeWaitForEvent:value: or encodeSignalEvent:value: to a command buffer, or
   waitForEvent:value: or signalEvent:value: to a Metal 4 queue. */
static void gpusync__encode(void *object, void *sel, const gpusync__link *link)
{
    ((void (*)(void *, void *, void *, uint64_t))gpusync__send)(object, sel, link->timeline->event,
                                                                gpusync__raw_of(link));
}

/* Returns where a shared event stands. */
static uint64_t gpusync__event_value(void *event)
{
    return GPUSYNC__AS(uint64_t)(event, gpusync__sel.signaledValue);
}

/* -- lines: the held submissions of a queue. ORDERED is in the order of their tickets, READY in
   that in which they got free. Under the graph's lock */

/* Has a thread look at the held work of the queue at the end of its call (gpusync__run), because
   some of it may go, or must end. A queue that is closing ends its held work by itself. Under the
   graph's lock. */
static void gpusync__want_issue(gpusync_queue *q, gpusync__deferred *deferred)
{
    if (q->issuing || !gpusync__enter(q))
        return;
    q->issuing = true;
    q->next_to_issue = deferred->to_issue;
    deferred->to_issue = q;
    deferred->busy = true;
}

/* The same, because a flag of the queue was set. No lock is held, or the device's. */
static void gpusync__want(gpusync_queue *q, gpusync__deferred *deferred)
{
    GPUSYNC__LOCK_GRAPH(q->device);
    if (q->lined)
        gpusync__want_issue(q, deferred);
    GPUSYNC__UNLOCK_GRAPH(q->device);
}

/* Returns the submission whose place in a line this is; of NULL, NULL. */
static gpusync__submission *gpusync__submission_at(gpusync__node *place)
{
    return place ? (gpusync__submission *)(void *)((char *)place - offsetof(gpusync__submission, place)) : NULL;
}

/* Puts the submission at the end of the line. */
static void gpusync__line_add(gpusync__submission *s, uint8_t which)
{
    s->line = which;
    gpusync__list_add(&s->work.queue->lines[which], &s->place);
}

/* Takes the submission out of the line that it stands in, wherever it stands there. */
static void gpusync__line_remove(gpusync__submission *s)
{
    gpusync__list_remove(&s->work.queue->lines[s->line], &s->place);
}

/* Moves the submission from its line to the end of the other one. */
static void gpusync__line_move(gpusync__submission *s, uint8_t which)
{
    gpusync__line_remove(s);
    gpusync__line_add(s, which);
}

/* Counts a submission with its parts into the lines of its queue, or out of them. A commit reads
   `lined_ordered` under the order lock alone: it rises under that lock only, so that 0 is never too
   few. */
static void gpusync__count_held(const gpusync__submission *s, bool more)
{
    gpusync_queue *q = s->work.queue;
    uint32_t one = more ? 1u : 0u - 1u;
    GPUSYNC__STORE_SEQ(&q->lined, q->lined + one);
    GPUSYNC__STORE_SEQ(&q->held_buffers, q->held_buffers + one * s->part_count);
    if (!gpusync__is_loose(s))
        GPUSYNC__STORE_SEQ(&q->lined_ordered, q->lined_ordered + one);
}

/* Returns the submission of the queue that may be issued next, unless its signals say otherwise, or
   NULL. */
static gpusync__submission *gpusync__line_first(const gpusync_queue *q)
{
    gpusync__node *ready = q->lines[GPUSYNC__READY].end[0];
    gpusync__submission *s = gpusync__submission_at(ready ? ready : q->lines[GPUSYNC__ORDERED].end[0]);
    return s && !s->holds ? s : NULL;
}

/* Goes on with a submission that nothing holds any more. */
static void gpusync__let_go(gpusync__submission *s, gpusync__deferred *deferred)
{
    if (s->stage != GPUSYNC__HELD || s->holds)
        return;
    if (s->line == GPUSYNC__LOOSE)
        gpusync__line_move(s, GPUSYNC__READY);
    if (gpusync__line_first(s->work.queue))
        gpusync__want_issue(s->work.queue, deferred);
}

/* -- the end of a link. Under the graph's lock */

/* Keeps the first error that is found. own: of its own work, or its queue gives it up. */
static void gpusync__fail(gpusync__submission *s, bool own, const gpusync_error *error)
{
    if (s->failed || s->stage == GPUSYNC__OVER)
        return;
    s->failed = true;
    s->own = own;
    s->error = *error;
}

/* Counts one of what the submission waits for down, or its work. With the last one it is OVER, and
   stands among the deferred work, which publishes submissions in this order. */
static void gpusync__close_one(gpusync__submission *s, gpusync__deferred *deferred)
{
    if (--s->open)
        return;
    s->stage = GPUSYNC__OVER;
    s->next_ended = NULL;
    if (deferred->ended)
        deferred->last_ended->next_ended = s;
    else
        deferred->ended = s;
    deferred->last_ended = s;
    deferred->busy = true;
}

/* Lets the link hold its submission no more (G3). The caller asks afterwards whether the
   submission may go (gpusync__let_go), unless it is over. */
static void gpusync__unhold(gpusync__link *link)
{
    if (!link->holds)
        return;
    link->holds = false;
    link->submission->holds--;
}

/* Takes a wait off its list. False if another thread has taken it off its queue's wait list, and
   tells of it. */
static bool gpusync__unlist_wait(gpusync__link *link)
{
    bool taken = true;
    if (link->timeline) {
        gpusync__list_remove(&link->timeline->waiting, &link->node);
    } else {
        GPUSYNC__LOCK(link->queue);
        taken = link->node.linked;
        if (taken)
            gpusync__list_remove(&link->queue->waits.lists[GPUSYNC__WAITS], &link->node);
        GPUSYNC__UNLOCK(link->queue);
    }
    link->listed = !taken;
    return taken;
}

/* Takes all waits of the submission off their lists: how they end matters no more. One that another
   thread is about to tell stays counted. Where its work has not ended, that counts in
   `open`. A signal that stays behind another one is left in t->stays, which the end of the signal
   empties. */
static void gpusync__forget(gpusync__submission *s)
{
    for (gpusync__link *link = s->links.first; link; link = link->next) {
        gpusync__unhold(link);
        if (!link->signal && link->listed && gpusync__unlist_wait(link))
            s->open--;
    }
}

/* Ends a submission that was not issued, and never will be. */
static void gpusync__end_unissued(gpusync__submission *s, gpusync__deferred *deferred)
{
    s->stage = GPUSYNC__OVER;
    gpusync__forget(s);
    gpusync__close_one(s, deferred);
}

/* Ends a submission that is held and has failed. What stands behind it may go. */
static void gpusync__drop_held(gpusync__submission *s, gpusync__deferred *deferred)
{
    gpusync__line_remove(s);
    gpusync__count_held(s, false);
    gpusync__end_unissued(s, deferred);
    if (gpusync__line_first(s->work.queue))
        gpusync__want_issue(s->work.queue, deferred);
}

/* Ends a wait that the caller has taken off its list: with the error, or well if that is NULL. */
static void gpusync__link_over(gpusync__link *link, const gpusync_error *error, gpusync__deferred *deferred)
{
    gpusync__submission *s = link->submission;
    link->listed = false;
    gpusync__unhold(link);
    link->broken = error != NULL;
    if (error && s->stage == GPUSYNC__HELD) {
        gpusync__fail(s, false, error);
        gpusync__drop_held(s, deferred);
    }
    gpusync__let_go(s, deferred);
    gpusync__close_one(s, deferred);
}

/* `told` of a ticket's link, under the wait list's lock: the caller tells the graph after the
   unlock. The submission stays meanwhile, because the link is counted in `open`. */
static void gpusync__link_told(gpusync__node *node, const gpusync_error *error, gpusync__catch *caught,
                               gpusync__deferred *deferred)
{
    gpusync__link *link = gpusync__link_at(node);
    (void)error;
    (void)deferred;
    link->also = NULL;
    *(caught->links ? &caught->last_link->also : &caught->links) = link;
    caught->last_link = link;
}

/* Ends the links of a ticket that has ended. No lock is held. */
static void gpusync__links_over(gpusync__link *link, const gpusync_error *error, gpusync__deferred *deferred)
{
    gpusync_device *dev = link->submission->device;
    GPUSYNC__LOCK_GRAPH(dev);
    for (gpusync__link *next; link; link = next) {
        next = link->also;
        gpusync__link_over(link, error, deferred);
    }
    GPUSYNC__UNLOCK_GRAPH(dev);
}

/* ----------------------------------------------------------------------------- >>timeline --
   A timeline is a shared event of Metal, with a value of gpusync's own in front. The life of a
   value:

     1. pending    A submission that will signal the value lists the signal (gpusync__list_signal).
     2. issued     The submission goes to the GPU (gpusync__set_out): work that waits for the value can go, too, unless
                   the GPU signals a higher value first (`passed`).
     3. kept       The submission has ended well (gpusync__end_signal). A value that the host signals begins here.
     4. reached    No lower signal is pending (gpusync__raise): what waits for the value in the graph is over.
     5. shown      Waits and callbacks are told, and the host writes the event (gpusync__show). The thread that has made
                   the change does so, after the unlock of the graph.

   A submission that fails fails the timelines that it was to signal: `value` is
   GPUSYNC__FAILED_VALUE from then on. The signal of an open command buffer
   that is discarded is taken back, and another submission may signal the value.

   The graph's lock is over what stands behind it in the structure; host waits and callbacks are under
   the timeline's. `value` is `reached`, or GPUSYNC__FAILED_VALUE, for threads that read it without a
   lock, as `signal_count`.

   The numbers, where A signals 1 and B signals 2, on one queue:

     what has happened                         signals  issued  kept  reached  the event shows
     A and B are held, or encoded              1 2      -       0     0        0
     they are issued                           -        1 2     0     0        0
     the GPU is through with both              -        1 2     0     0        2
     the handler of B has come, A's has not    -        1       2     0        2
     the handler of A has come                 -        -       2     2        2

   Had A failed: the timeline fails with A's error, `reached` stays 0, and 2 is never reached,
   though B ended well, because a program that waits for 2 wants A's work, too. `hosted` is the
   highest value of STRICT work that has ended: the host writes it to the event, where the GPU
   writes the others. */

/* -- the graph's part. Under its lock */

/* Returns the pending signal that decides about the value: the lowest one at or above it. NULL:
   there is none. */
static gpusync__link *gpusync__cover(const gpusync_timeline *t, uint64_t value)
{
    if (!t->signal_count)
        return NULL;
    gpusync__node *node = gpusync__list_from(&t->signals, value);
    gpusync__node *issued = gpusync__list_from(&t->issued, value);
    return gpusync__link_at(!node || (issued && issued->number < node->number) ? issued : node);
}

/* Returns the last node below the number, or NULL. */
static gpusync__node *gpusync__list_below(const gpusync__list *list, uint64_t number)
{
    const gpusync__node *from = gpusync__list_from(list, number);
    return from ? from->beside[0] : list->end[1];
}

/* Returns the highest pending value below this one, or 0. */
static uint64_t gpusync__pending_below(const gpusync_timeline *t, uint64_t value)
{
    const gpusync__node *below = gpusync__list_below(&t->signals, value);
    const gpusync__node *issued = gpusync__list_below(&t->issued, value);
    if (!below || (issued && issued->number > below->number))
        below = issued;
    return below ? below->number : 0;
}

/* Returns whether the work of the signal is issued, and no higher value comes before the signal. */
static bool gpusync__comes(const gpusync__link *signal)
{
    return signal->issued && !signal->passed;
}

/* Returns whether the host makes the signal, when its STRICT work has ended. The GPU makes those
   that are encoded in the command buffers of such work. */
static bool gpusync__is_hosts(const gpusync__link *signal)
{
    return gpusync__is_strict(signal->submission) && !signal->encoded;
}

/* Returns how the wait for a value stands. strict: the host waits. A timeline that is being destroyed
   fails what only the submission itself is to signal.
   Interleaving 17: a timeline of other code goes before held work registers with its event, or
   while that registers. The flag is set before destroy looks for what is listed, and this is asked
   in the hold that lists: one of them finds the other. */
GPUSYNC__INLINE gpusync__found gpusync__find_value(const gpusync__link *wait, bool strict)
{
    const gpusync_timeline *t = wait->timeline;
    uint64_t value = wait->node.number;
    if (t->failed)
        return GPUSYNC__FOUND_FAILED;
    if (t->reached >= value)
        return GPUSYNC__FOUND_OVER;
    const gpusync__link *cover = gpusync__cover(t, value);
    bool waits = !strict && value > t->on_event; /* else a lower signal is pending, which the GPU would not wait for */
    if (waits && cover && gpusync__comes(cover))
        return GPUSYNC__FOUND_COMES;
    if (waits && !cover && gpusync__is_outside(t))
        return GPUSYNC__FOUND_ABROAD;
    bool closing = GPUSYNC__LOAD_SEQ(&t->flags) & GPUSYNC__CLOSING;
    bool expected = value <= t->kept || (cover && cover->submission != wait->submission);
    return closing && !expected ? GPUSYNC__FOUND_FAILED : GPUSYNC__FOUND_HOLDS;
}

/* Returns OK if a submission, or the host, may signal the value: it is not reached, not pending,
   and not the highest that was signalled. */
static gpusync_result gpusync__may_rise(const gpusync_timeline *t, uint64_t value)
{
    const gpusync__link *cover = gpusync__cover(t, value);
    if (t->failed)
        return t->error.result;
    bool known = value <= t->reached || value == t->kept || (cover && cover->node.number == value);
    return known ? GPUSYNC_ERROR_NOT_RISING : GPUSYNC_OK;
}

/* Lists the signal as pending: among those of work that is issued, or among the others. Its value
   is not reached, and no other signal of that value is pending (gpusync__may_rise). */
static void gpusync__list_signal(gpusync__link *link)
{
    gpusync_timeline *t = link->timeline;
    gpusync__list_add(link->issued ? &t->issued : &t->signals, &link->node);
    link->listed = true;
    GPUSYNC__STORE_SEQ(&t->signal_count, t->signal_count + 1);
}

/* Takes a pending signal off its list. */
static void gpusync__unlist_signal(gpusync__link *link)
{
    gpusync_timeline *t = link->timeline;
    gpusync__list_remove(link->issued ? &t->issued : &t->signals, &link->node);
    link->listed = false;
    GPUSYNC__STORE_SEQ(&t->signal_count, t->signal_count - 1);
}

/* Ends all waits up to the value. One change ends as many as wait for it: in two holds, a
   submission could be listed in between that finds the value not reached, and that no thread would
   tell (G6). */
static void gpusync__end_waits(gpusync_timeline *t, uint64_t value, const gpusync_error *error,
                               gpusync__deferred *deferred)
{
    gpusync__node *node;
    while ((node = t->waiting.end[0]) != NULL && node->number <= value) {
        gpusync__list_remove(&t->waiting, node);
        gpusync__link_over(gpusync__link_at(node), error, deferred);
    }
}

/* Ends the waits of failed work for values that are kept, and that lower signals hide: see
   gpusync__work_over. */
GPUSYNC__RARE void gpusync__end_hidden(gpusync_timeline *t, gpusync__deferred *deferred)
{
    for (gpusync__node *node = t->waiting.end[0], *next; node && node->number <= t->kept; node = next) {
        const gpusync__submission *s = gpusync__link_at(node)->submission;
        next = node->beside[1];
        if (!s->failed || s->stage != GPUSYNC__ISSUED || s->running)
            continue;
        gpusync__list_remove(&t->waiting, node);
        gpusync__link_over(gpusync__link_at(node), NULL, deferred);
    }
}

/* Raises `reached` to `kept`, or to just below the lowest pending signal. */
static void gpusync__raise(gpusync_timeline *t, gpusync__deferred *deferred)
{
    const gpusync__link *first = gpusync__cover(t, 0);
    uint64_t value = first && first->node.number <= t->kept ? first->node.number - 1 : t->kept;
    if (t->failed)
        return;
    if (t->hides)
        gpusync__end_hidden(t, deferred);
    if (value <= t->reached)
        return;
    t->reached = value;
    GPUSYNC__STORE_SEQ(&t->value, value);
    gpusync__end_waits(t, value, NULL, deferred);
}

static const gpusync_error gpusync__timeline_gone = {
    GPUSYNC_ERROR_DESTROYED,
    GPUSYNC_FAILURE_OTHER,
    0,
    0,
    0,
    "",
    "the timeline was destroyed before it reached the value",
    "",
    "",
};

/* Lets the GPU wait for the values that the signal of this value decides about, or did, where it
   can do so now. A timeline that is being destroyed fails the work that is held for what nothing will
   bring: no call can list another signal. As in gpusync__end_waits one hold has them all: else G7
   would not be true. */
static void gpusync__turn(gpusync_timeline *t, uint64_t value, gpusync__deferred *deferred)
{
    gpusync__node *node = t->waiting.end[0];
    if (!(GPUSYNC__LOAD_SEQ(&t->flags) & GPUSYNC__CLOSING))
        node = gpusync__list_from(&t->waiting, gpusync__pending_below(t, value) + 1);
    while (node && node->number <= value) {
        gpusync__link *link = gpusync__link_at(node);
        node = node->beside[1];
        gpusync__found found =
            link->holds ? gpusync__find_value(link, gpusync__is_strict(link->submission)) : GPUSYNC__FOUND_HOLDS;
        if (found == GPUSYNC__FOUND_FAILED) {
            gpusync__list_remove(&t->waiting, &link->node);
            gpusync__link_over(link, &gpusync__timeline_gone, deferred);
            node = gpusync__list_from(&t->waiting, link->node.number); /* its other waits are taken off, too */
        } else if (found != GPUSYNC__FOUND_HOLDS) {
            link->abroad = found == GPUSYNC__FOUND_ABROAD;
            gpusync__unhold(link);
            gpusync__let_go(link->submission, deferred);
        }
    }
}

/* Lets submissions try again that a signal of theirs has held behind a lower one. */
static void gpusync__try_again(gpusync_timeline *t, gpusync__deferred *deferred)
{
    gpusync__link *link;
    while ((link = t->stays) != NULL) {
        t->stays = link->also;
        gpusync__unhold(link);
        gpusync__let_go(link->submission, deferred);
    }
}

/* Fails the timeline, and with it everything that waits for it. False: it had failed before. */
static bool gpusync__fail_timeline(gpusync_timeline *t, const gpusync_error *reason, gpusync__deferred *deferred)
{
    if (t->failed)
        return false;
    t->error = *reason;
    if (t->error.result >= 0 || t->error.result < GPUSYNC_ERROR_COMPILE)
        t->error.result = GPUSYNC_ERROR_EXECUTION;
    if (t->error.failure == GPUSYNC_FAILURE_NONE)
        t->error.failure = GPUSYNC_FAILURE_OTHER;
    t->failed = true;
    GPUSYNC__STORE_SEQ(&t->value, GPUSYNC__FAILED_VALUE); /* after the error, which is not written any more */
    gpusync__end_waits(t, GPUSYNC__FAILED_VALUE, &t->error, deferred);
    gpusync__try_again(t, deferred);
    return true;
}

/* Ends a pending signal. made: its work has ended well, and the value is reached once no lower
   signal is pending; else it is taken back. */
static void gpusync__end_signal(gpusync__link *link, bool made, gpusync__deferred *deferred)
{
    gpusync_timeline *t = link->timeline;
    uint64_t value = link->node.number;
    if (!link->listed)
        return;
    gpusync__unlist_signal(link);
    t->passed -= link->passed;
    if (made && value > t->kept)
        t->kept = value;
    uint64_t *highest = gpusync__is_hosts(link) ? &t->hosted : &t->on_event;
    if (made && value > *highest)
        *highest = value;
    gpusync__raise(t, deferred);
    if (t->waiting.end[0])
        gpusync__turn(t, value, deferred);
    gpusync__try_again(t, deferred);
}

/* Returns the value that the host may write to the event, where `hosted` is above `reached`. The
   signal of work that the host makes passes lower ones as if the GPU made it, because work on the
   GPU may wait for it: those that are not issued, which may wait for that work, and those that are
   issued behind it. It comes after all that the GPU is about to signal in order. What the GPU has
   signalled holds nothing back (`running` is 0), though its submission may still wait for a value:
   the work that signals that one may stand on the GPU behind a wait for the host's. */
static uint64_t gpusync__level(const gpusync_timeline *t)
{
    for (gpusync__node *node = t->issued.end[0]; node && node->number < t->hosted; node = node->beside[1]) {
        const gpusync__link *lower = gpusync__link_at(node);
        if (gpusync__comes(lower) && lower->submission->running)
            return t->reached;
    }
    return t->hosted;
}

/* -- the order of signals that Metal does not order. Under the graph's lock */

/* Returns whether the higher signal comes after the lower one, which is issued. The GPU signals in
   the order of one queue (unverified: README, "Status"), in no order of several queues, and in none
   with the host. The host does not pass what the GPU is to signal (gpusync__level). */
static bool gpusync__keeps_order(const gpusync__link *lower, const gpusync__link *higher)
{
    return lower->submission->work.queue == higher->submission->work.queue &&
           gpusync__is_hosts(lower) <= gpusync__is_hosts(higher);
}

/* Returns the value of the lower signal that this one must stay behind, or 0: a higher value would
   end a wait on the GPU for a lower one. A signal that is not issued is passed, because its
   submission may wait for this one. What the submission waits for before comes before it anyway. A
   signal of its own queue that is issued, and needed nothing, tells of all below, which it came
   after, unless one was issued behind a higher value (`passed`). */
static uint64_t gpusync__behind(const gpusync__link *signal)
{
    const gpusync_timeline *t = signal->timeline;
    const gpusync_queue *q = signal->submission->work.queue;
    if (!t->issued.end[0] || (q == t->issuer && !gpusync__is_hosts(signal)))
        return 0;
    gpusync__node *below = gpusync__list_below(&t->issued, signal->node.number);
    for (; below && below->number > signal->needs && !t->failed; below = below->beside[0]) {
        const gpusync__link *lower = gpusync__link_at(below);
        if (!gpusync__keeps_order(lower, signal))
            return below->number;
        if (!t->passed && !lower->needs)
            break;
    }
    return 0;
}

/* Lists the signal as `issued`, because its submission goes to the GPU at once. */
static void gpusync__issue_signal(gpusync__link *link, gpusync__deferred *deferred)
{
    gpusync_timeline *t = link->timeline;
    const gpusync_queue *q = link->submission->work.queue;
    if (link->listed)
        gpusync__unlist_signal(link);
    if (!t->issued.end[0])
        t->issuer = q;
    if (t->issuer != q || gpusync__is_hosts(link))
        t->issuer = NULL;
    link->issued = true;
    gpusync__list_signal(link);
    link->passed = t->largest > link->node.number;
    t->passed += link->passed;
    if (link->passed)
        return;
    t->largest = link->node.number;
    if (t->waiting.end[0])
        gpusync__turn(t, link->node.number, deferred);
}

/* -- what threads see */

/* Raises the event. */
static void gpusync__write_event(gpusync_timeline *t, uint64_t raw)
{
    void *pool = gpusync__pool_push();
    GPUSYNC__AS1(void, uint64_t)(t->event, gpusync__sel.setSignaledValue, raw);
    gpusync__pool_pop(pool);
}

/* Tells waits and callbacks for values up to this one of the error, or that they are reached
   (NULL). Of two threads that come here at once the first tells for both, and the later one finds
   nothing left to do. A wait that lists itself later sees the value, because it reads it under the
   timeline's lock. No lock is held. */
GPUSYNC__INLINE void gpusync__tell_waits(gpusync_timeline *t, uint64_t value, const gpusync_error *error,
                                         gpusync__deferred *deferred)
{
    gpusync__catch caught;
    gpusync__catch_nothing(&caught);
    caught.tells = true;
    caught.error = error;
    do {
        GPUSYNC__LOCK_TIMELINE(t);
        gpusync__take(&t->waits, 0, value, &caught, deferred);
        GPUSYNC__UNLOCK_TIMELINE(t);
    } while (gpusync__unpark(t->device, &caught));
}

/* Unlocks the graph, under which the caller has changed the timeline, or has found that it has
   failed. Then writes the event, unless the value stands there or another thread writes it, and tells
   of what has been reached. Two threads may write the event in the other order; Metal ignores the
   lower value (documented: an event only rises). */
static void gpusync__show(gpusync_timeline *t, gpusync__deferred *deferred)
{
    uint64_t level = t->hosted > t->reached ? gpusync__level(t) : t->reached;
    if (t->failed)
        level = t->imported ? 0 : GPUSYNC__FAILED_VALUE;
    bool writes = level > t->on_event;
    if (writes)
        t->on_event = level;
    GPUSYNC__UNLOCK_GRAPH(t->device);
    uint64_t value = gpusync__value_of(t);
    const gpusync_error *error = value == GPUSYNC__FAILED_VALUE ? &t->error : NULL;
    if (writes)
        gpusync__write_event(t, level == GPUSYNC__FAILED_VALUE ? level : level + t->base);
    gpusync__tell_waits(t, value, error, deferred);
}

/* Reads the event, if other code signals it. Other code may also have written the value that means
   failure. */
static void gpusync__read_event(gpusync_timeline *t, gpusync__deferred *deferred)
{
    if (!gpusync__is_outside(t))
        return;
    uint64_t raw = gpusync__event_value(t->event);
    /* What was done before the signal must be read after it: gpusync__status has the same fence. */
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    bool failed = raw == GPUSYNC__FAILED_VALUE;
    uint64_t value = raw > t->base ? raw - t->base : 0;
    if (gpusync__value_of(t) >= (failed ? raw : value))
        return;
    gpusync_error error;
    if (failed)
        gpusync__own_error(&error, GPUSYNC_ERROR_EXECUTION, "the event stands at the value that means failure");
    GPUSYNC__LOCK_GRAPH(t->device);
    if (failed) {
        gpusync__fail_timeline(t, &error, deferred);
    } else {
        t->kept = value > t->kept ? value : t->kept;
        t->on_event = value > t->on_event ? value : t->on_event;
        gpusync__raise(t, deferred);
    }
    gpusync__show(t, deferred);
}

/* Reads the event for a caller that has no deferred work, and does the work that follows. */
GPUSYNC__RARE void gpusync__look_timeline(gpusync_timeline *t)
{
    gpusync__deferred deferred = GPUSYNC__NOTHING;
    gpusync__read_event(t, &deferred);
    gpusync__do_deferred(t->device, &deferred);
}

/* -- the listener: a timeline registers for the lowest value that is awaited, again when a lower
   one comes. `out` is under the global lock */

/* A block for Metal to copy: a registration. Metal's copy stands on `out`; as long as Metal makes
   that, another one stands there in its place, because Metal reads the block without a lock. */
typedef struct gpusync__listener_block {
    gpusync__block head; /* first: what every block begins with */
    gpusync__listening *listening;
    uint64_t raw;                         /* what the event is to show */
    struct gpusync__listener_block *next; /* on `out`; of the block on the stack: what stands there for it */
} gpusync__listener_block;

/* Puts `to` (NULL: nothing) in the place of the block on its list, if it stands there. Under the
   global lock. */
static void gpusync__listening_replace(const gpusync__listener_block *block, gpusync__listener_block *to)
{
    gpusync__listener_block **place = &block->listening->out;
    while (*place && *place != block && (*place)->raw < block->raw)
        place = &(*place)->next;
    if (*place != block)
        return;
    if (to)
        to->next = block->next;
    *place = to ? to : block->next;
}

/* Drops a reference: the timeline's, or that of a copy of Metal's. It may come after the device has
   gone, so the memory is malloc's. */
static void gpusync__listening_unref(gpusync__listening *listening)
{
    if (GPUSYNC__SUB_SEQ(&listening->refs, 1) == 1)
        free(listening);
}

/* Metal copies the block, inside notifyListener:atValue:block: the copy stands on `out` from here
   on. */
static void gpusync__listener_copy(void *to, const void *from)
{
    gpusync__listener_block *copy = (gpusync__listener_block *)to;
    (void)from; /* the bytes are there already */
    GPUSYNC__ADD_SEQ(&copy->listening->refs, 1);
    GPUSYNC__LOCK_GLOBAL();
    gpusync__listening_replace(copy->next, copy);
    GPUSYNC__UNLOCK_GLOBAL();
}

/* Metal frees a copy. One that was never called stands on `out` until then. */
static void gpusync__listener_dispose(const void *block)
{
    GPUSYNC__LOCK_GLOBAL();
    gpusync__listening_replace((const gpusync__listener_block *)block, NULL);
    GPUSYNC__UNLOCK_GLOBAL();
    gpusync__listening_unref(((const gpusync__listener_block *)block)->listening);
}

/* The descriptor of a block with copy and dispose helpers, by the Clang Block ABI. */
static const struct gpusync__listener_descriptor {
    uintptr_t reserved, size;                 /* 0, and the bytes of the block */
    void (*copy)(void *to, const void *from); /* called when the bytes are copied */
    void (*dispose)(const void *block);       /* called before a copy is freed */
    const char *signature, *layout;           /* the types of the call; no layout */
} gpusync__listener_descriptor = {
    0, sizeof(gpusync__listener_block), gpusync__listener_copy, gpusync__listener_dispose, "v24@?0@8Q16", NULL,
};

#define GPUSYNC__BLOCK_HAS_COPY_DISPOSE (1 << 25)

/* Returns the device's listener, which the first call creates, or NULL if Metal has none. Under the
   device's lock only one is created; a load without the lock sees NULL or a finished listener. */
static void *gpusync__listener(gpusync_device *dev)
{
    void *listener = GPUSYNC__LOAD_SEQ(&dev->listener);
    if (listener)
        return listener;
    void *pool = gpusync__pool_push();
    gpusync__lock(&dev->lock);
    if (!dev->listener)
        GPUSYNC__STORE_SEQ(&dev->listener, gpusync__new_object("MTLSharedEventListener"));
    listener = dev->listener;
    gpusync__unlock(&dev->lock);
    gpusync__pool_pop(pool);
    return listener;
}

/* Registers for the next value in its turn. */
static void gpusync__listener_invoke(void *block, void *event, uint64_t raw);

/* Registers with the timeline's event for the value, if other code may signal the timeline, unless
   it is registered for that or a lower one. The caller is inside the timeline, or has a reference.
   Where the timeline is being destroyed, the block finds none. */
static void gpusync__listen(gpusync_timeline *t, uint64_t value)
{
    void *listener = gpusync__is_outside(t) ? gpusync__listener(t->device) : NULL;
    if (!listener || gpusync__value_of(t) >= value)
        return;
    typedef void (*notify)(void *, void *, void *, uint64_t, void *);
    gpusync__listener_block block = {
        {gpusync__stack_block, GPUSYNC__BLOCK_HAS_COPY_DISPOSE | GPUSYNC__BLOCK_HAS_SIGNATURE, 0,
         (void (*)(void *, void *))(void (*)(void))gpusync__listener_invoke,
         (const gpusync__block_descriptor *)(const void *)&gpusync__listener_descriptor},
        t->listening,
        value + t->base,
        NULL,
    };
    gpusync__listener_block place = block;
    block.next = &place;
    GPUSYNC__LOCK_GLOBAL();
    place.next = t->listening->out;
    bool needed = !place.next || place.raw < place.next->raw;
    if (needed)
        t->listening->out = &place;
    GPUSYNC__UNLOCK_GLOBAL();
    if (!needed)
        return;
    void *pool = gpusync__pool_push();
    ((notify)gpusync__send)(t->event, gpusync__sel.notifyListener, listener, block.raw, &block);
    gpusync__pool_pop(pool);
    GPUSYNC__LOCK_GLOBAL();
    gpusync__listening_replace(&place, NULL); /* if Metal has made no copy */
    GPUSYNC__UNLOCK_GLOBAL();
}

/* Returns the lowest value above this one for which a wait, a callback or held work listens, or 0. */
static uint64_t gpusync__next_awaited(gpusync_timeline *t, uint64_t above)
{
    GPUSYNC__LOCK_GRAPH(t->device);
    const gpusync__node *held = gpusync__list_from(&t->waiting, above + 1);
    while (held && !((const gpusync__link *)(const void *)held)->holds)
        held = held->beside[1];
    uint64_t value = held ? held->number : 0;
    GPUSYNC__UNLOCK_GRAPH(t->device);
    GPUSYNC__LOCK_TIMELINE(t);
    const gpusync__node *wait = gpusync__list_from(&t->waits.lists[GPUSYNC__WAITS], above + 1);
    if (wait && (!value || wait->number < value))
        value = wait->number;
    GPUSYNC__UNLOCK_TIMELINE(t);
    return value;
}

/* Metal calls this on the listener's thread. It enters the timeline first, which may be gone. The
   event is read again, because it may have passed `raw`. What waits for less than the event shows
   is kept back by a pending signal, whose end tells: the next registration is for more.
   Interleaving 14: a wait times out, and the signal comes late. The listener finds no wait listed. */
static void gpusync__listener_invoke(void *block, void *event, uint64_t raw)
{
    const gpusync__listener_block *own = (const gpusync__listener_block *)block;
    (void)event;
    GPUSYNC__LOCK_GLOBAL();
    gpusync__listening_replace(own, NULL);
    gpusync_timeline *t = own->listening->timeline;
    if (t)
        GPUSYNC__ADD_SEQ(&t->inside, 1);
    GPUSYNC__UNLOCK_GLOBAL();
    if (!t)
        return;
    gpusync__look_timeline(t);
    uint64_t next = gpusync__next_awaited(t, raw - t->base);
    if (next)
        gpusync__listen(t, next);
    gpusync__timeline_leave(t);
}

/* -- events */

/* Returns a used event of the pool, or a new one, +1, with its value in *raw. NULL if Metal has
   none. */
static void *gpusync__event_take(gpusync_device *dev, uint64_t *raw)
{
    void *event = NULL;
    *raw = 0;
    gpusync__lock(&dev->lock);
    if (dev->event_count)
        event = dev->events[--dev->event_count];
    gpusync__unlock(&dev->lock);
    void *pool = gpusync__pool_push();
    if (event)
        *raw = gpusync__event_value(event);
    else
        event = gpusync__send_id(dev->metal, gpusync__sel.newSharedEvent);
    gpusync__pool_pop(pool);
    return event;
}

/* Puts the event into the device's pool, because a new one costs Metal 80 to 180 us (MoltenVK issue
   1472), or releases it if the pool is full. reusable: nothing else uses the event, and it has
   values left. */
static void gpusync__event_keep(gpusync_device *dev, void *event, bool reusable)
{
    gpusync__lock(&dev->lock);
    reusable = reusable && dev->event_count < GPUSYNC__EVENT_POOL;
    if (reusable)
        dev->events[dev->event_count++] = event;
    gpusync__unlock(&dev->lock);
    if (!reusable)
        gpusync__release_pooled(event);
}

/* Drops a reference. The last one frees the timeline, and gives its event back. An event that
   stands too high, that failed, or that other code may know is not used again. No lock is held. */
static void gpusync__timeline_unref(gpusync_timeline *t)
{
    if (GPUSYNC__SUB_SEQ(&t->refs, 1) != 1)
        return;
    bool whole = !t->failed && t->reached + t->base < GPUSYNC_MAX_VALUE;
    gpusync__event_keep(t->device, t->event, whole && !t->handed_out);
    if (t->listening)
        gpusync__listening_unref(t->listening);
    gpusync__free(t->device, t, sizeof *t);
}

/* -- what waits, callbacks and the sweep ask */

/* Returns the submission of the lowest pending signal of at least this value, with a reference, or NULL
   if there is none. The submission keeps its queue, which may be closing. */
static gpusync__submission *gpusync__signaller(gpusync_timeline *t, uint64_t value)
{
    GPUSYNC__LOCK_GRAPH(t->device);
    const gpusync__link *cover = gpusync__cover(t, value);
    gpusync__submission *s = cover ? cover->submission : NULL;
    if (s)
        gpusync__submission_keep(s); /* its signal is pending, so it is not published */
    GPUSYNC__UNLOCK_GRAPH(t->device);
    return s;
}

/* Looks at the submission of the lowest pending signal, because values are reached in order. If
   that look ends the submission, it looks at that of the next signal, and so on. The caller is
   inside the timeline. */
static void gpusync__look_value(gpusync_timeline *t)
{
    gpusync__submission *s, *last = NULL;
    gpusync__look_timeline(t);

    while (GPUSYNC__LOAD_SEQ(&t->signal_count) && (s = gpusync__signaller(t, 0)) != NULL) {
        bool again = s != last;
        last = s;
        if (again && gpusync__enter(s->work.queue)) {
            gpusync__look_submission(s);
            gpusync__leave(s->work.queue);
        }
        gpusync__submission_unref(s);
        if (!again)
            return;
    }
}

/* Returns the forecast of the ticket of the submission that is to signal the value; zeros if there
   is none. */
GPUSYNC__RARE gpusync__forecast gpusync__forecast_value(const gpusync__goal *goal)
{
    gpusync__submission *s = gpusync__signaller(goal->timeline, goal->ticket);
    gpusync__forecast f = {0, 0};
    if (!s)
        return f;
    if (gpusync__enter(s->work.queue)) {
        f = gpusync__forecast_of(s->work.queue, GPUSYNC__LOAD_SEQ(&s->work.ticket));
        gpusync__leave(s->work.queue);
    }
    gpusync__submission_unref(s);
    return f;
}

/* Reads the event of a timeline that other code signals, before a callback is listed. */
GPUSYNC__RARE gpusync_result gpusync__value_ready(gpusync_timeline *t)
{
    if (!gpusync__is_outside(t))
        return GPUSYNC_OK;
    if (!gpusync__listener(t->device))
        return GPUSYNC_ERROR_UNSUPPORTED;
    gpusync__look_timeline(t);
    return GPUSYNC_OK;
}

/* Fails the timeline, because what its device has not ended is given up. */
GPUSYNC__RARE void gpusync__lose_timeline(gpusync_timeline *t)
{
    gpusync_error error;
    gpusync__own_error(&error, GPUSYNC_ERROR_DEVICE_LOST, "the device was lost before the value was reached");
    (void)gpusync_timeline_fail(t, &error);
}

static const gpusync__valued gpusync__values = {gpusync__look_value, gpusync__listen, gpusync__value_ready,
                                                gpusync__forecast_value, gpusync__lose_timeline};

/* -- the calls */

/* A new timeline over the event, which stands at raw; 0 for that of other code, which is read later.
   The timeline takes the caller's reference to the event; on an error that is released. `base` lets a
   used event, which stands somewhere, begin at the value that the program wants. */
static gpusync_result gpusync__timeline_new(gpusync_device *dev, void *event, uint64_t raw,
                                            const gpusync_timeline_desc *desc, gpusync_timeline **out)
{
    bool outside = desc->shared_event || desc->signalled_by_others;
    gpusync_timeline *t = (gpusync_timeline *)gpusync__allocate(dev, sizeof *t, 128);
    gpusync__listening *listening = outside ? (gpusync__listening *)malloc(sizeof *listening) : NULL;
    gpusync_result result = GPUSYNC_ERROR_OUT_OF_MEMORY;

    if (t && (listening || !outside)) {
        t->calls = &gpusync__values;
        t->device = dev;
        t->event = event;
        t->imported = desc->shared_event != NULL;
        t->handed_out = t->imported;
        t->value = t->imported ? 0 : desc->initial_value; /* 0: the caller reads the event */
        t->base = raw > t->value ? raw - t->value : 0;
        t->reached = t->kept = t->on_event = t->value;
        t->refs = 1;
        t->listening = listening;
        if (outside) {
            listening->refs = 1;
            listening->timeline = t;
            listening->out = NULL;
        }
        gpusync__copy_label(t->label, sizeof t->label, desc->label);
        gpusync__lock(&dev->lock);
        /* gpusync__give_up_device fails what is listed long after `lost` was set: no timeline slips
           through. */
        result = GPUSYNC__LOAD_SEQ(&dev->lost) ? GPUSYNC_ERROR_DEVICE_LOST : GPUSYNC_OK;
        if (result == GPUSYNC_OK) {
            t->place.number = ++dev->timeline_count;
            gpusync__list_add(&dev->timelines, &t->place);
            dev->objects++;
        }
        gpusync__unlock(&dev->lock);
    }
    if (result == GPUSYNC_OK) {
        *out = t;
        return GPUSYNC_OK;
    }
    gpusync__release_pooled(event);
    free(listening);
    gpusync__free(dev, t, sizeof *t);
    return result;
}

/* The event of other code is retained. One of ours comes from the pool, where a used one stands at
   some value: `base` hides that, unless the program wants a higher one. */
GPUSYNC_API gpusync_result gpusync_timeline_create(gpusync_device *device, const gpusync_timeline_desc *desc,
                                                   gpusync_timeline **out)
{
    static const gpusync_timeline_desc plain = {0, NULL, NULL, false};
    if (out)
        *out = NULL;
    if (!device || !out)
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    if (!desc)
        desc = &plain;
    void *event = desc->shared_event;
    uint64_t raw = 0;
    if (event) {
        void *cls = gpusync__class_of(event);
        if (!gpusync__class_responds(cls, gpusync__sel.signaledValue) ||
            !gpusync__class_responds(cls, gpusync__sel.notifyListener))
            return GPUSYNC_ERROR_UNSUPPORTED;
        gpusync__retain(event);
    } else {
        if (desc->initial_value > GPUSYNC_MAX_VALUE)
            return GPUSYNC_ERROR_NOT_RISING;
        void *pool = gpusync__pool_push();
        event = gpusync__event_take(device, &raw);
        void *label = event && desc->label ? gpusync__label(desc->label) : NULL;
        if (event)
            gpusync__send_void_id(event, gpusync__sel.setLabel, label); /* NULL: a used one loses its label */
        gpusync__pool_pop(pool);
        if (!event)
            return GPUSYNC_ERROR_METAL_NIL;
    }
    gpusync_result result = gpusync__timeline_new(device, event, raw, desc, out);
    if (result != GPUSYNC_OK)
        return result;
    if (desc->shared_event)
        gpusync__look_timeline(*out);
    else if (desc->initial_value > raw)
        gpusync__write_event(*out, desc->initial_value);
    return GPUSYNC_OK;
}

/* A timeline is destroyed in this order:
     1. CLOSING is set, and sleeping waits are woken. The listener finds no timeline any more
        (gpusync__begin_timeline_destroy).
     2. Every call that is inside leaves, and the listener's.
     3. The timeline leaves the device's list: no sweep comes any more.
     4. What is held for the timeline fails, and callbacks are due.
     5. The callbacks are called.
     6. The program's reference goes. Submissions may have references still: the last reference frees the memory. */

static gpusync_timeline *gpusync__timeline_of(gpusync__going *going)
{
    return (gpusync_timeline *)(void *)((char *)going - offsetof(gpusync_timeline, going));
}

/* Steps 2 to 5. */
static void gpusync__close_timeline(gpusync__going *going)
{
    gpusync_timeline *t = gpusync__timeline_of(going);
    gpusync_device *dev = t->device;
    gpusync__deferred deferred = GPUSYNC__NOTHING;

    gpusync__let_out(dev, &t->inside, going);
    gpusync__lock(&dev->lock);
    gpusync__list_remove(&dev->timelines, &t->place);
    gpusync__unlock(&dev->lock);
    GPUSYNC__LOCK_GRAPH(dev);
    gpusync__turn(t, UINT64_MAX, &deferred);
    gpusync__show(t, &deferred); /* what another thread has reached counts before the end */
    gpusync__tell_waits(t, GPUSYNC__FAILED_VALUE, &gpusync__timeline_gone, &deferred);
    gpusync__do_deferred(dev, &deferred);
    gpusync__pay(dev, &t->owed, going);
}

/* Step 6. */
static void gpusync__end_timeline(gpusync__going *going)
{
    gpusync_timeline *t = gpusync__timeline_of(going);
    gpusync_device *dev = t->device;
    gpusync__timeline_unref(t);
    gpusync__object_gone(dev);
}

/* Step 1. False: the timeline is being destroyed already. Work that enters later is not told by the
   listener, and finds what will not come (gpusync__find_value). */
static bool gpusync__begin_timeline_destroy(gpusync_timeline *t)
{
    if (gpusync__set_flag(&t->flags, GPUSYNC__CLOSING) & GPUSYNC__CLOSING)
        return false;
    gpusync__wake_stopped(t->device, &t->waits);
    GPUSYNC__LOCK_GLOBAL();
    if (t->listening)
        t->listening->timeline = NULL;
    GPUSYNC__UNLOCK_GLOBAL();
    return true;
}

GPUSYNC_API gpusync_result gpusync_timeline_destroy(gpusync_timeline *timeline)
{
    if (!timeline)
        return GPUSYNC_OK;
    if (gpusync__in_callback())
        return GPUSYNC_ERROR_WOULD_DEADLOCK;
    if (!gpusync__begin_timeline_destroy(timeline))
        return GPUSYNC_ERROR_DESTROYED;
    gpusync__close_timeline(&timeline->going);
    gpusync__end_timeline(&timeline->going);
    return GPUSYNC_OK;
}

GPUSYNC_API gpusync_result gpusync_timeline_destroy_later(gpusync_timeline *timeline, gpusync_destroyed_fn destroyed,
                                                          void *user)
{
    if (!timeline)
        return GPUSYNC_OK;
    if (!gpusync__begin_timeline_destroy(timeline))
        return GPUSYNC_ERROR_DESTROYED;
    timeline->going.close = gpusync__close_timeline;
    timeline->going.end = gpusync__end_timeline;
    gpusync__go_later(timeline->device, &timeline->going, destroyed, user);
    return GPUSYNC_OK;
}

/* From here on others may know the event: it is not used again. */
GPUSYNC_API void *gpusync_timeline_metal(gpusync_timeline *timeline, uint64_t *base)
{
    if (base)
        *base = timeline ? timeline->base : 0;
    if (!timeline)
        return NULL;
    GPUSYNC__STORE_SEQ(&timeline->handed_out, true); /* read by gpusync__timeline_unref */
    return timeline->event;
}

/* `reached` changes no more once a failure is shown. */
GPUSYNC_API gpusync_result gpusync_timeline_query(gpusync_timeline *timeline, uint64_t *value)
{
    if (value)
        *value = 0;
    if (!timeline || !value)
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    if (gpusync__is_outside(timeline))
        gpusync__look_timeline(timeline);
    *value = gpusync__value_of(timeline);
    if (*value != GPUSYNC__FAILED_VALUE)
        return GPUSYNC_OK;
    *value = timeline->reached;
    return timeline->error.result;
}

/* Others may have signalled more: so the event is read first. Under the lock a pending signal of
   the same value, or a failure, cannot come in between. */
GPUSYNC_API gpusync_result gpusync_timeline_signal(gpusync_timeline *timeline, uint64_t value)
{
    gpusync_timeline *t = timeline;
    gpusync__deferred deferred = GPUSYNC__NOTHING;
    if (!t)
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    if (value > GPUSYNC_MAX_VALUE)
        return GPUSYNC_ERROR_NOT_RISING;
    gpusync_result result = gpusync__timeline_enter(t);
    if (result != GPUSYNC_OK)
        return result;
    gpusync__read_event(t, &deferred);
    GPUSYNC__LOCK_GRAPH(t->device);
    result = gpusync__may_rise(t, value);
    if (result == GPUSYNC_OK && value > t->kept)
        t->kept = value;
    gpusync__raise(t, &deferred);
    gpusync__show(t, &deferred);
    if (result == GPUSYNC_OK && t->device->trace)
        t->device->trace->signal(t, value);
    gpusync__do_deferred(t->device, &deferred);
    gpusync__timeline_leave(t);
    return result;
}

/* Copies a text of the program's, which may have no end, and may be no UTF-8. size: of both, at
   most that of a message. */
static void gpusync__read_text(char *to, size_t size, const char *from)
{
    char ended[sizeof((gpusync_error *)NULL)->message];
    memcpy(ended, from, size);
    ended[size - 1] = '\0';
    gpusync__copy_label(to, size, ended);
}

/* Copies the program's own error. */
static void gpusync__read_reason(gpusync_error *to, const gpusync_error *from)
{
    *to = *from;
    gpusync__read_text(to->domain, sizeof to->domain, from->domain);
    gpusync__read_text(to->message, sizeof to->message, from->message);
    gpusync__read_text(to->label, sizeof to->label, from->label);
    gpusync__read_text(to->queue_label, sizeof to->queue_label, from->queue_label);
    to->dropped = 0;
}

/* A timeline that has failed keeps its first error, and the call returns that. Work that is to
   signal it goes on, and ends as it does: only what waits for the timeline fails with it. */
GPUSYNC_API gpusync_result gpusync_timeline_fail(gpusync_timeline *timeline, const gpusync_error *reason)
{
    gpusync__deferred deferred = GPUSYNC__NOTHING;
    gpusync_error error;
    if (!timeline)
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    gpusync_result result = gpusync__timeline_enter(timeline);
    if (result != GPUSYNC_OK)
        return result;
    if (reason)
        gpusync__read_reason(&error, reason);
    else
        gpusync__own_error(&error, GPUSYNC_ERROR_EXECUTION, "the program failed the timeline");
    GPUSYNC__LOCK_GRAPH(timeline->device);
    if (!gpusync__fail_timeline(timeline, &error, &deferred))
        result = timeline->error.result;
    gpusync__show(timeline, &deferred);
    gpusync__do_deferred(timeline->device, &deferred);
    gpusync__timeline_leave(timeline);
    return result;
}

/* The fast path takes no lock: a value that is reached is so for good, unless the timeline fails,
   and then one load tells. */
GPUSYNC_API gpusync_result gpusync_timeline_wait(gpusync_timeline *timeline, uint64_t value, uint64_t timeout_ns,
                                                 const gpusync_wait_options *options)
{
    uint64_t present = timeline ? gpusync__value_of(timeline) : GPUSYNC__FAILED_VALUE;
    if (present >= value && present != GPUSYNC__FAILED_VALUE && !timeline->device->trace)
        return GPUSYNC_OK;
    return gpusync__wait_point(NULL, timeline, value, timeout_ns, options);
}

/* -------------------------------------------------------------------------- >>submissions --
   The memory of submissions, and what becomes of one that ends.

   Submissions and links come from pools of the device, under the submission lock, and go back there
   with their last reference. Joining one submission to another moves links, and no memory. */

/* Puts a link with this memory in front of the others, by `next`. */
static void gpusync__push_link(gpusync__link **links, void *memory)
{
    gpusync__link *link = (gpusync__link *)memory;
    link->next = *links;
    *links = link;
}

/* Takes so many links, by `next`, and a submission if `s` is not NULL, out of the pools, and makes
   what is missing. False if there is no memory: *links has fewer, or *s is NULL. No lock is held. */
GPUSYNC__INLINE bool gpusync__take_memory(gpusync_device *dev, gpusync__submission **s, size_t count,
                                          gpusync__link **links)
{
    void *taken;

    gpusync__hook_in(dev);
    gpusync__lock(&dev->submission_lock);
    if (s)
        *s = (gpusync__submission *)gpusync__pool_take(dev, GPUSYNC__POOL_SUBMISSIONS, sizeof **s);
    for (; count && (taken = gpusync__pool_take(dev, GPUSYNC__POOL_LINKS, sizeof **links)) != NULL; count--)
        gpusync__push_link(links, taken);
    gpusync__unlock(&dev->submission_lock);
    if (s && !*s)
        *s = (gpusync__submission *)gpusync__allocate(dev, sizeof **s, GPUSYNC__APART);
    for (; count && (taken = gpusync__allocate(dev, sizeof **links, 16)) != NULL; count--)
        gpusync__push_link(links, taken);
    return !count && (!s || *s);
}

/* Puts links, by `next`, and the submission, or NULL, back into the pools. A link gives up its
   reference to a timeline here: one in the pool leads to none. No lock is held. */
static void gpusync__give_memory(gpusync_device *dev, gpusync__submission *s, gpusync__link *links)
{
    void *over = NULL;
    void *links_over = NULL;

    for (gpusync__link *link = links; link; link = link->next) {
        if (link->timeline)
            gpusync__timeline_unref(link->timeline);
        link->timeline = NULL;
    }
    gpusync__lock(&dev->submission_lock);
    for (gpusync__link *next; links; links = next) {
        next = links->next;
        gpusync__pool_give(dev, GPUSYNC__POOL_LINKS, links, &links_over);
    }
    if (s)
        gpusync__pool_give(dev, GPUSYNC__POOL_SUBMISSIONS, s, &over);
    gpusync__unlock(&dev->submission_lock);
    gpusync__pool_drop(dev, GPUSYNC__POOL_LINKS, links_over);
    gpusync__pool_drop(dev, GPUSYNC__POOL_SUBMISSIONS, over);
}

/* `done` of a submission's callback, which has run: drops the callback's reference. */
static void gpusync__submission_called(gpusync__due *due)
{
    gpusync__submission_unref((gpusync__submission *)(void *)due);
}

/* Gives the submission memory for the command buffers of the program and two of our own, where they
   are many: at most UINT32_MAX / 2 (gpusync__submission_is_valid, gpusync_commit4). */
static bool gpusync__submission_room(gpusync__submission *s, size_t buffers)
{
    size_t size = (buffers + 2) * sizeof *s->parts;
    s->parts = s->few_parts;
    s->buffers = s->few_buffers;
    if (buffers <= GPUSYNC__FEW)
        return true;
    s->memory_size = 2 * size;
    s->memory = gpusync__allocate(s->device, s->memory_size, 16);
    if (!s->memory)
        return false;
    s->parts = (gpusync__slot **)s->memory;
    s->buffers = (void **)s->memory + buffers + 2;
    return true;
}

/* Returns a submission with so many spare links, and memory for so many command buffers. NULL if
   there is no memory. The caller is inside the queue. No lock is held. */
GPUSYNC__INLINE gpusync__submission *gpusync__submission_new(gpusync_queue *q, size_t links, size_t buffers)
{
    gpusync_device *dev = q->device;
    gpusync__link *spare = NULL;
    gpusync__submission *s;
    bool taken = gpusync__take_memory(dev, &s, links, &spare);

    if (!s) {
        gpusync__give_memory(dev, NULL, spare);
        return NULL;
    }

    memset(&s->holds, 0, offsetof(gpusync__submission, label) + 1 - offsetof(gpusync__submission, holds));
    s->work.kind = GPUSYNC__SUBMISSION;
    s->work.submission = s;
    s->work.queue = q;
    s->work.back = NULL;
    s->work.ticket = s->work.since_ns = s->work.behind = 0;
    s->work.traits = 0;
    s->work.state = GPUSYNC__OPEN;
    s->due.done = gpusync__submission_called;
    s->due.owed = &q->owed;
    s->device = dev;
    s->refs = s->open = 1;
    s->due.fn = NULL;
    s->spare = spare;
    gpusync__links_clear(&s->links);
    gpusync__links_clear(&s->signals);
    GPUSYNC__ADD_SEQ(&q->owed.count, 1); /* gpusync__submission_free takes it back */

    if (taken && gpusync__submission_room(s, buffers))
        return s;
    gpusync__submission_unref(s);
    return NULL;
}

/* Puts the submission back, with its links. The last reference is gone. No lock is held. */
static void gpusync__submission_free(gpusync__submission *s)
{
    gpusync_device *dev = s->device;
    gpusync_queue *q = s->work.queue;

    if (q->metal4 && gpusync__is_issued(s))
        gpusync__keep_links(q, s);
    gpusync__links_move(&s->links, &s->signals);
    *s->links.end = s->spare;
    gpusync__free(dev, s->memory, s->memory_size);
    if (s->options)
        gpusync__release_pooled(s->options);
    gpusync__give_memory(dev, s, s->links.first);
    GPUSYNC__SUB_SEQ(&q->owed.count, 1); /* gpusync__pay of destroy waits for this: the queue is not touched any more */
}

/* ------------------------------------------------------------------------------- >>metal4 --
   A command buffer of Metal 4 has no status, no handler and no queue, and Metal retains nothing.
   What is committed in one go is one slot, and that is the feedback handler. Metal takes the
   handlers out of the options at the commit (assumed): so each commit has options of its own. A
   signal of the queue may come after the feedback of the work in front of it. Therefore the queue
   keeps the links of its submissions, and with them their timelines' events, until each event shows
   the value that the queue was to signal (gpusync__keep_links).

   What follows from that, in short.
     ask     A wait cannot look at work on the GPU: it sleeps for the feedback, and the sweep cannot
             find an end whose feedback was lost.
     fail    The error comes with the feedback, one for all command buffers of the commit.
     wait    The queue itself waits and signals, so all that is committed later waits, too. A wait
             that Metal cuts short is found when the work behind it ends (gpusync__wait_was_cut).
     hold    What is held is not known to Metal yet: its command buffers may not be recorded
             again, nor committed (gpusync__holds), and count as one against the limit.
     keep    The queue stays, with the events that it was to signal, until the last signal has come,
             or for good where none does (gpusync__leave_behind).

   In this section stand the checks of command buffers, the commit (gpusync__commit4), the ends
   (gpusync__feedback_status), what is kept (gpusync__keep_links; in destroy gpusync__leave_behind,
   which the ground floor calls as `leave` of gpusync__metal4), and waits and signals of submissions
   (gpusync__send_parts4, gpusync__wait_was_cut).

   What else knows of Metal 4, and why. `make check` compares this list with the code.

     gpusync__give_up           Metal 4 retains nothing: the handler releases the buffer
     gpusync__classify          its errors have a domain and codes of their own
     gpusync__completed         the status is read from the feedback
     gpusync__look_at           there is no status to look at: only the feedback tells
     gpusync_wait_ex            refuses `blocking`: there is no waitUntilCompleted
     gpusync_command_buffer     such buffers come from the device, not from a queue
     gpusync__check_stranger    gpusync_commit, gpusync_track, gpusync_encode_wait and _signal refuse such queues
     gpusync__commit_ordered    gpusync_commit refuses such queues, also where the commit would be held
     gpusync__new_queue4        makes the queue
     gpusync__has_metal4        does the device have such queues?
     gpusync__metal_queue       takes or makes the queue
     gpusync_queue_create       its limit, where the program sets none, is the largest number
     gpusync__keep_events       no part keeps events: the queue keeps the links of its submission
     gpusync__close_queue       calls `leave`: what the GPU still uses is kept
     gpusync__part_ended        work behind a wait that Metal cut short has failed
     gpusync_submit             calls gpusync__check_work, which refuses command buffers that are not of Metal 4
     gpusync__submission_free   the events that the submission signals stay until they show the values; releases
                                the options of a commit that was never made
     gpusync__set_out           announces each commit: Metal has the options, not the submission
     gpusync__issue             waits and signals are operations of the queue
     gpusync__own_buffers       makes options: no command buffers of this library's own carry waits and signals
     gpusync__enter_now         all command buffers are one part, as are those of gpusync__commit4
     gpusync__check_parts       calls gpusync__check_parts4
     gpusync__check_parts4      refuses buffers that held work has
     gpusync__add_new_part      the slot of that part is one of Metal 4
     gpusync_warmup_start       refuses such queues: the touching buffer comes from [queue commandBuffer]
     gpusync__write_buffer      the report knows no status
     gpusync__write_queue       the report says which kind the queue is */

/* Refuses NULL and a command buffer that stands twice. Each is compared with those in front of it:
   64 command buffers, as many as Metal has of a queue by default, are 2,016 comparisons. */
GPUSYNC__RARE gpusync_result gpusync__check_buffers(void *const *buffers, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        size_t first = 0;
        while (buffers[first] != buffers[i])
            first++;
        if (!buffers[i] || first < i)
            return GPUSYNC_ERROR_INVALID_ARGUMENT;
    }
    return GPUSYNC_OK;
}

/* Refuses command buffers that are not of Metal 4, and a commit of none, which Metal 4 lacks. */
GPUSYNC__INLINE gpusync_result gpusync__check_classes4(gpusync_queue *q, void *const *buffers, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        void *cls = gpusync__class_of(buffers[i]);
        if (cls == GPUSYNC__LOAD_SEQ(&q->buffer_class))
            continue;
        if (!gpusync__class_responds(cls, gpusync__sel.endCommandBuffer))
            return GPUSYNC_ERROR_UNSUPPORTED;
        GPUSYNC__STORE_SEQ(&q->buffer_class, cls);
    }
    return count ? GPUSYNC_OK : GPUSYNC_ERROR_UNSUPPORTED;
}

/* Checks what one call is to commit, unless it is one command buffer for another queue. */
GPUSYNC__INLINE gpusync_result gpusync__check_work(gpusync_queue *q, void *const *buffers, size_t count)
{
    gpusync_result result = count > 1 ? gpusync__check_buffers(buffers, count) : GPUSYNC_OK;
    return q->metal4 && result == GPUSYNC_OK ? gpusync__check_classes4(q, buffers, count) : result;
}

/* Returns whether the submission has one of the command buffers. */
GPUSYNC__INLINE bool gpusync__has_buffer(const gpusync__submission *s, void *const *buffers, size_t count)
{
    for (size_t i = 0; i < s->buffer_count * count; i++)
        if (s->buffers[i / count] == buffers[i % count])
            return true;
    return false;
}

/* Returns whether held work has one of the command buffers. Its recording has still to be
   committed. Under the order lock. */
static bool gpusync__holds(const gpusync_queue *q, void *const *buffers, size_t count)
{
    bool holds = false;
    GPUSYNC__LOCK_GRAPH(q->device);
    for (int line = 0; line < GPUSYNC__LINES; line++)
        for (gpusync__node *place = q->lines[line].end[0]; place; place = place->beside[1])
            holds = holds || gpusync__has_buffer(gpusync__submission_at(place), buffers, count);
    GPUSYNC__UNLOCK_GRAPH(q->device);
    return holds;
}

/* Returns how the commit ended, by its feedback, as a status of a command buffer. */
GPUSYNC__RARE unsigned long gpusync__feedback_status(void *feedback)
{
    void *pool = gpusync__pool_push();
    bool failed = gpusync__send_id(feedback, gpusync__sel.error) != NULL;
    gpusync__pool_pop(pool);
    __atomic_thread_fence(__ATOMIC_ACQUIRE); /* as in gpusync__status */
    return failed ? GPUSYNC__STATUS_ERROR : GPUSYNC__STATUS_COMPLETED;
}

/* What the event of a kept link shows. A GPU that was removed signals nothing any more, once its work
   was given up. UNKNOWN: the timeline has failed, so that the host has written its event, or the
   signal may never come; or it is a wait, which ends some time after its value has come. */
enum { GPUSYNC__NOT_COME, GPUSYNC__UNKNOWN, GPUSYNC__CAME };

/* Asks the event of a kept link. No lock is held. */
static int gpusync__shows(const gpusync_queue *q, const gpusync__link *link)
{
    const gpusync_timeline *t = link->timeline;
    uint64_t raw = gpusync__event_value(t->event);
    if (GPUSYNC__LOAD_SEQ(&q->device->lost) & GPUSYNC__REMOVED && gpusync__is_given_up(q))
        return GPUSYNC__CAME;
    if (!link->signal || raw == GPUSYNC__FAILED_VALUE)
        return GPUSYNC__UNKNOWN;
    if (raw >= link->needs)
        return GPUSYNC__CAME;
    return gpusync__value_of(t) == GPUSYNC__FAILED_VALUE ? GPUSYNC__UNKNOWN : GPUSYNC__NOT_COME;
}

/* Takes the first kept link off the list. NULL: there is none. No lock is held. */
static gpusync__link *gpusync__take_kept(gpusync_queue *q)
{
    GPUSYNC__LOCK_GRAPH(q->device);
    gpusync__node *node = q->kept.end[0];
    if (node)
        gpusync__list_remove(&q->kept, node);
    GPUSYNC__UNLOCK_GRAPH(q->device);
    return gpusync__link_at(node);
}

/* Drops the kept links that the GPU is through with. `kept` is in the order in which the queue got
   them, and Metal makes the signals of a queue in that order (assumed: README, "Status"): one that
   has come tells of all in front. The events are asked without a lock, so each link leaves the list
   meanwhile. No lock is held. */
GPUSYNC__RARE void gpusync__drop_come(gpusync_queue *q)
{
    gpusync__link *taken = NULL, *link, *next;
    int shows = GPUSYNC__UNKNOWN;
    while (shows != GPUSYNC__NOT_COME && (link = gpusync__take_kept(q)) != NULL) {
        link->next = taken;
        taken = link;
        shows = gpusync__shows(q, link);
        if (shows != GPUSYNC__CAME)
            continue;
        gpusync__give_memory(q->device, NULL, taken);
        taken = NULL;
    }
    GPUSYNC__LOCK_GRAPH(q->device);
    for (; taken; taken = next) {
        next = taken->next;
        gpusync__list_add(&q->kept, &taken->node);
    }
    GPUSYNC__UNLOCK_GRAPH(q->device);
}

/* Keeps the links of a submission that the GPU may still use, when its last reference has gone:
   Metal 4 retains no event, and a signal may come after the feedback of the work in front of it.
   Waits are kept where the submission was left in flight. A kept link is listed by the submission's
   place among those that the queue got, and has the value of the event in `needs`. The queue stays:
   the submission is counted there. No lock is held. */
GPUSYNC__RARE void gpusync__keep_links(gpusync_queue *q, gpusync__submission *s)
{
    gpusync__link **at = &s->links.first, *link;
    GPUSYNC__LOCK_GRAPH(q->device);
    while ((link = *at) != NULL) {
        if (!link->issued || (link->signal ? gpusync__is_strict(s) : !s->left)) {
            at = &link->next;
            continue;
        }
        *at = link->next;
        link->needs = gpusync__raw_of(link);
        link->node.number = s->sent;
        gpusync__list_add(&q->kept, &link->node);
    }
    s->links.end = at;
    GPUSYNC__UNLOCK_GRAPH(q->device);
    gpusync__drop_come(q);
}

#define GPUSYNC__LAST_SIGNAL_NS 100000000u /* a queue that is idle signals within this, or counts as hanging */
#define GPUSYNC__LAST_SIGNAL_ROUNDS 356u   /* and within so many of gpusync__linger, of which 100 sleep */

/* Has the queue signal an event behind all others, and waits a while for that. Returns whether it
   has come; else the event is kept for good, too. */
GPUSYNC__RARE bool gpusync__ask_last(gpusync_queue *q)
{
    typedef void (*signal)(void *, void *, void *, uint64_t);
    unsigned rounds = 0;
    uint64_t raw;
    void *event = gpusync__event_take(q->device, &raw);
    uint64_t began = gpusync_now_ns();
    if (!event)
        return false;
    void *pool = gpusync__pool_push();
    ((signal)gpusync__send)(q->metal, gpusync__sel.signalEvent, event, ++raw);
    gpusync__pool_pop(pool);
    while (gpusync__event_value(event) < raw) {
        if (gpusync_now_ns() - began > GPUSYNC__LAST_SIGNAL_NS || rounds > GPUSYNC__LAST_SIGNAL_ROUNDS)
            return false;
        gpusync__linger(q->device, &q->going, &rounds);
    }
    gpusync__event_keep(q->device, event, true);
    return true;
}

/* Step 7 of >>destroy, when no thread publishes any more. Drops what has come, and asks for the
   rest. Where that has not come, the queue and the events are kept for good: the GPU may still use
   them. */
GPUSYNC__RARE void gpusync__leave_behind(gpusync_queue *q)
{
    gpusync__link *link;
    gpusync__drop_come(q);
    bool came = !q->kept.end[0] || gpusync__ask_last(q);
    if (!came)
        gpusync__retain(q->metal);
    while ((link = gpusync__take_kept(q)) != NULL) {
        if (!came) {
            gpusync__retain(link->timeline->event);
            GPUSYNC__STORE_SEQ(&link->timeline->handed_out, true);
        }
        link->next = NULL;
        gpusync__give_memory(q->device, NULL, link);
    }
}

/* Gives the queue its table before its first commit: the handler reads `four`. Under the order
   lock. */
GPUSYNC__INLINE void gpusync__hook_in4(gpusync_queue *q)
{
    static const gpusync__metal4 fours = {gpusync__feedback_status, gpusync__leave_behind};
    if (!q->four)
        q->four = &fours;
}

/* Returns the object of a slot for these command buffers: the one command buffer, or an array (+0),
   which the caller retains. NULL if there is no memory. A command buffer in flight may be recorded
   again with another allocator and committed again, so one that is there twice is no error. Needs
   a pool. */
static void *gpusync__all_of(void *const *buffers, size_t count)
{
    typedef void *(*array_of)(void *, void *, void *const *, unsigned long);
    if (count == 1)
        return buffers[0];
    return ((array_of)gpusync__send)(gpusync__class_named("NSArray"), gpusync__sel.arrayWithObjects, buffers, count);
}

/* Gives Metal the slot as the feedback handler, and commits. Under the order lock. Needs a pool. */
GPUSYNC__INLINE void gpusync__send4(gpusync_queue *q, gpusync__slot *slot, void *options, void *const *buffers,
                                    size_t count)
{
    typedef void (*commit4)(void *, void *, void *const *, unsigned long, void *);
    gpusync__send_void_id(options, gpusync__sel.addFeedbackHandler, slot);
    ((commit4)gpusync__send)(q->metal, gpusync__sel.commit4, buffers, count, options);
}

/* gpusync__commit for Metal 4. */
static gpusync_result gpusync__commit4(gpusync_queue *q, void *const *buffers, size_t count, gpusync_ticket *ticket)
{
    uint64_t began;
    gpusync__slot *slot = NULL;

    if (q->traced)
        began = gpusync_now_ns();
    gpusync_result result = buffers[0] ? gpusync__check_work(q, buffers, count) : GPUSYNC_ERROR_INVALID_ARGUMENT;
    if (result != GPUSYNC_OK)
        return result;
    do {
        void *pool = gpusync__pool_push();
        void *options = gpusync__send_id(q->options_class, gpusync__sel.newObject);
        void *all = gpusync__all_of(buffers, count);
        gpusync__lock(&q->order);
        gpusync__hook_in4(q);
        if (!options || !all)
            result = GPUSYNC_ERROR_METAL_NIL;
        else if (gpusync__is_lost(q))
            result = GPUSYNC_ERROR_DEVICE_LOST;
        else if (GPUSYNC__LOAD_SEQ(&q->lined_ordered))
            result = GPUSYNC_NOT_READY;
        else if (GPUSYNC__LOAD_SEQ(&q->lined) && gpusync__holds(q, buffers, count))
            result = GPUSYNC_ERROR_ALREADY_TRACKED;
        else
            result = gpusync__take_in(q, all, GPUSYNC__WORK, GPUSYNC__HAS_ROOM | GPUSYNC__IS_METAL4, NULL, &slot);
        if (result == GPUSYNC_OK) {
            *ticket = slot->ticket;
            gpusync__send4(q, slot, options, buffers, count);
        }
        gpusync__release(options);
        gpusync__order_end_pool(q, pool);
    } while (result == GPUSYNC_ERROR_OUT_OF_MEMORY && gpusync__make_ready(q, 1));
    if (result != GPUSYNC_OK || q->traced)
        result = gpusync__end_commit(q, buffers, count, result, &began, ticket);
    return result;
}

/* A count that the parts of a submission could not hold is refused first: a commit behind held work
   becomes one. */
GPUSYNC_API gpusync_result gpusync_commit4(gpusync_queue *queue, void *const *command_buffers, size_t count,
                                           gpusync_ticket *ticket)
{
    gpusync_ticket issued = GPUSYNC_NO_TICKET;
    gpusync_result result = GPUSYNC_ERROR_INVALID_ARGUMENT;

    if (queue && command_buffers && count && count <= UINT32_MAX / 2)
        result = gpusync__enter_working(queue, GPUSYNC__STUCK);
    if (result == GPUSYNC_OK) {
        result = queue->metal4 ? gpusync__commit4(queue, command_buffers, count, &issued) : GPUSYNC_ERROR_UNSUPPORTED;
        gpusync__leave(queue);
    }
    if (ticket)
        *ticket = issued;
    return result;
}

/* -- submissions of Metal 4
   Waits and signals are operations of the queue, before and behind the commit: all that is
   committed later waits, too. */

/* Makes the options of the submission's commit, and notes its command buffers. No lock is held. */
GPUSYNC__RARE gpusync_result gpusync__make_options4(gpusync_queue *q, gpusync__submission *s,
                                                    const gpusync_submission *desc)
{
    s->buffer_count = desc->command_buffer_count;
    memcpy(s->buffers, desc->command_buffers, s->buffer_count * sizeof *s->buffers);
    void *pool = gpusync__pool_push();
    s->options = gpusync__send_id(q->options_class, gpusync__sel.newObject);
    gpusync__pool_pop(pool);
    return s->options ? GPUSYNC_OK : GPUSYNC_ERROR_METAL_NIL;
}

/* Encodes the waits that the GPU does, the commit, and the signals into the queue. Under the order
   lock, with a pool. The submission stays until it is announced. */
GPUSYNC__RARE void gpusync__send_parts4(gpusync__submission *s)
{
    gpusync_queue *q = s->work.queue;
    s->sent = ++q->sent;
    GPUSYNC__EACH_WAIT(link, s)
        if (link->issued)
            gpusync__encode(q->metal, gpusync__sel.waitForEvent, link);
    gpusync__send4(q, s->parts[0], s->options, s->buffers, s->buffer_count);
    gpusync__release(s->options);
    s->options = NULL;
    GPUSYNC__EACH_SIGNAL(link, s)
        if (!gpusync__is_strict(s))
            gpusync__encode(q->metal, gpusync__sel.signalEvent, link);
}

/* Returns whether a wait of the queue ended before its value came, with an error for that. After a
   timeout the queue runs later work and reports nothing (documented). A value that has come since
   hides the timeout. The submission keeps the events. */
GPUSYNC__RARE bool gpusync__wait_was_cut(const gpusync__submission *s, const gpusync__slot *slot, gpusync_error *error)
{
    bool cut = false;
    GPUSYNC__EACH_WAIT(link, s)
        cut = cut || (link->issued && gpusync__event_value(link->timeline->event) < gpusync__raw_of(link));
    if (!cut)
        return false;
    gpusync__given_up_error(s->work.queue, error, GPUSYNC_ERROR_EXECUTION,
                            "the queue gave up waiting for a value, and ran the work");
    error->failure = GPUSYNC_FAILURE_TIMEOUT;
    gpusync__read_label(slot->buffer, error->label, sizeof error->label);
    return true;
}

/* -------------------------------------------------------------------------------- >>ended --
   How a submission ends. First `running` falls to 0, then `open`. The thread that counts to 0 does
   the next step, and no other thread does.

     lock         function                          what it does
     none         gpusync__part_ended               a part has ended, as a handler or a look has found
     graph        gpusync__count_down               keeps its error and times; one part fewer
     same hold    gpusync__work_over                the last part: from here on the waits decide
     none         gpusync__publish                  nothing is open any more: the submission ends
     queue        gpusync__takes_failure            with the failure that sticks on its queue, if one does
     graph        gpusync__end_signals              its timelines fail, or its values are kept
     timeline     gpusync__show                     what waits for each on the host is told
     queue        gpusync__end_submission           its ticket ends, with a record of its failure
     none         gpusync__tell                     what waits for the ticket is told
     none         gpusync__submission_unref         it is free, once its callback has run, too */

/* Ends the work of a submission: its command buffers have ended, or there are none. From here on
   its waits decide. For one that is abroad the event, which was read, tells whether the value was
   reached; if only lower pending signals hide the value, the wait goes on, else it is over. Work
   that failed does not wait for a hidden value, because the work that hides it may wait for this
   submission, or stand on the GPU behind what does; nor for one that is hidden later
   (gpusync__end_hidden). Under the graph's lock.
   Interleaving 13: a consumer ends before its killed producer's handler. The consumer's submission
   does not end before its waits. */
static void gpusync__work_over(gpusync__submission *s, gpusync__deferred *deferred)
{
    GPUSYNC__EACH_WAIT(link, s) {
        gpusync_timeline *t = link->timeline;
        if (!link->listed || !t)
            continue;
        bool hidden = link->node.number <= t->kept;
        t->hides = t->hides || s->failed;
        if ((s->failed ? hidden || link->abroad : !hidden && link->abroad) && gpusync__unlist_wait(link))
            s->open--;
    }
    if (s->open > 1)
        deferred->busy = deferred->sweep = true; /* the sweep looks at what it still waits for */
    gpusync__close_one(s, deferred);
}

/* Writes what the host signals above the values of a submission whose work is over, and that still
   waits (gpusync__level). Under the graph's lock, which is open in between. */
GPUSYNC__RARE void gpusync__show_signals(gpusync__submission *s, gpusync__deferred *deferred)
{
    GPUSYNC__EACH_SIGNAL(link, s) {
        gpusync__show(link->timeline, deferred);
        GPUSYNC__LOCK_GRAPH(s->device);
    }
}

/* Counts `running` down, for a part with this outcome or for the announcement (NULL). The events of
   waits that are abroad are read first, after the work that waited has ended. No lock is held. */
static void gpusync__count_down(gpusync__submission *s, const gpusync__outcome *outcome, const gpusync_error *error,
                                gpusync__deferred *deferred)
{
    GPUSYNC__EACH_WAIT(link, s)
        if (link->abroad)
            gpusync__read_event(link->timeline, deferred);
    GPUSYNC__LOCK_GRAPH(s->device);
    if (error)
        gpusync__fail(s, true, error);
    if (outcome && s->running) { /* 0: it was disowned */
        if (outcome->gpu_start > 0 && (outcome->gpu_start < s->gpu_start || s->gpu_start <= 0))
            s->gpu_start = outcome->gpu_start;
        if (outcome->gpu_end > s->gpu_end)
            s->gpu_end = outcome->gpu_end;
    }
    if (s->running && --s->running == 0) {
        gpusync__work_over(s, deferred);
        if (s->open)
            gpusync__show_signals(s, deferred);
    }
    GPUSYNC__UNLOCK_GRAPH(s->device);
}

/* Ends a part. */
static void gpusync__part_ended(gpusync_queue *q, gpusync__slot *slot, const gpusync__view *view,
                                const gpusync__outcome *outcome, gpusync__deferred *deferred)
{
    const gpusync_error *error = outcome->error;
    gpusync_error own;
    GPUSYNC__LOCK(q);
    gpusync__submission *s = gpusync__end_slot(slot, view) ? slot->submission : NULL;
    if (s)
        gpusync__submission_keep(s); /* a lost device may give it up meanwhile */
    GPUSYNC__UNLOCK(q);
    if (!s)
        return;
    if (!error && q->metal4 && gpusync__wait_was_cut(s, slot, &own))
        error = &own;
    gpusync__count_down(s, outcome, error, deferred);
    gpusync__submission_unref(s);
}

/* Drops the first `count` parts, which were not committed. Each buffer is released before its slot is
   free, and may serve another buffer, and before its room comes back: Metal counts the buffer until
   then. No lock is held. */
static void gpusync__drop_parts(gpusync__submission *s, uint32_t count)
{
    gpusync_queue *q = s->work.queue;
    for (uint32_t i = 0; i < count; i++) {
        GPUSYNC__LOCK(q);
        gpusync__slot *slot = s->parts[i];
        gpusync__flight_remove(slot);
        GPUSYNC__UNLOCK(q);
        gpusync__release_pooled(slot->buffer);
        gpusync__give_room(q, 1, slot);
    }
}

/* Ends the submission's ticket in one hold. The error (NULL: none) goes on record, and the callback is
   due before those that are registered after the end. After this no thread finds the submission by its
   ticket, and the submission does not lead to its parts, whose handlers may come when its memory serves
   other work. Under the queue's lock. */
static void gpusync__end_submission(gpusync__submission *s, gpusync_error *error, const gpusync__outcome *outcome,
                                    gpusync__catch *caught, gpusync__deferred *deferred)
{
    gpusync_queue *q = s->work.queue;
    uint64_t ticket = s->work.ticket;

    if (error && !s->left)
        gpusync__record(q, error, s->own && error->failure == GPUSYNC_FAILURE_CANCELLED);
    if (gpusync__is_issued(s))
        gpusync__learn(q, ticket, s->work.since_ns, outcome);
    if (error || s->work.traits & GPUSYNC__IS_DELAYED)
        q->took_ns[ticket % GPUSYNC__TAKEN] = 0;
    for (uint32_t i = 0; i < s->part_count; i++) {
        if (s->parts[i]) {
            s->parts[i]->back = NULL;
            s->parts[i]->submission = NULL;
        }
        s->parts[i] = NULL;
    }
    if (s->work.back)
        *s->work.back = NULL;
    gpusync__write_end(q, ticket, outcome);
    if (s->due.fn)
        gpusync__push_due(s->device, &s->due, deferred);
    gpusync__take_ended(q, ticket, error, caught, deferred);
}

/* Begins a look at a part. False: the submission does not lead to the part's slot any more, because
   it has left flight, or the submission has ended. No lock is held. */
static bool gpusync__view_part(gpusync_queue *q, const gpusync__submission *s, uint32_t part, gpusync__view *view)
{
    GPUSYNC__LOCK(q);
    bool there = s->parts[part] != NULL;
    if (there)
        gpusync__view_slot(&s->parts[part], view);
    GPUSYNC__UNLOCK(q);
    return there;
}

/* Writes the submission's ticket into its error, and its labels into an error of its own that has
   none. Any other error keeps the labels of the work that failed first, also where that had none. */
GPUSYNC__RARE void gpusync__name_failure(gpusync__submission *s)
{
    gpusync_error *error = &s->error;
    error->ticket = s->work.ticket;
    if (error->label[0] || !s->own)
        return;
    gpusync__view part;
    uint32_t first = s->front != NULL; /* of the program's command buffers */
    if (s->part_count > first && gpusync__view_part(s->work.queue, s, first, &part)) {
        gpusync__read_label(part.buffer, error->label, sizeof error->label);
        gpusync__view_end(s->work.queue, &part);
    }
    if (!error->label[0])
        gpusync__copy_text(error->label, sizeof error->label, s->label);
    gpusync__copy_text(error->queue_label, sizeof error->queue_label, s->work.queue->label);
}

/* Ends the pending signals of a submission. error: how its work failed, or NULL. No lock is held.
   Interleaving 12: the work of a lower signal fails, and that of a higher one ends well. The
   timeline fails before the lower signal is taken back, so that the higher value is not reached. */
static void gpusync__end_signals(gpusync__submission *s, bool made, const gpusync_error *error,
                                 gpusync__deferred *deferred)
{
    GPUSYNC__EACH_SIGNAL(link, s) {
        GPUSYNC__LOCK_GRAPH(s->device);
        s->stage = GPUSYNC__OVER; /* where its command buffer is discarded; else it is */
        if (error)
            gpusync__fail_timeline(link->timeline, error, deferred);
        gpusync__end_signal(link, made, deferred);
        gpusync__show(link->timeline, deferred);
        if (made && s->device->trace)
            s->device->trace->signal(link->timeline, link->node.number);
        if (made)
            gpusync__read_event(link->timeline, deferred); /* others may have signalled more, which this one hid */
    }
}

/* Gives a submission that the GPU had, and that did not fail itself, the error of the first wait
   that ended badly. */
GPUSYNC__RARE void gpusync__take_broken(gpusync__submission *s)
{
    GPUSYNC__EACH_WAIT(link, s) {
        if (!link->broken)
            continue;
        s->failed = true;
        s->error = link->timeline->error;
        return;
    }
}

/* Publishes how a submission ended that has nothing left open. The pending signals end before the
   ticket, so that a thread which sees the ticket ended sees the values reached. No lock is held. */
static void gpusync__publish(gpusync__submission *s, gpusync__deferred *deferred)
{
    gpusync_queue *q = s->work.queue;
    if (!s->failed)
        gpusync__take_broken(s);
    if (q->sticky && !s->failed) { /* an earlier failure may count, before its signals end */
        GPUSYNC__LOCK(q);
        s->failed = gpusync__takes_failure(q, &s->work, &s->error);
        GPUSYNC__UNLOCK(q);
    }
    gpusync_error *error = s->failed ? &s->error : NULL; /* it changes no more */
    uint64_t ticket = s->work.ticket;
    const gpusync__outcome outcome = {s->gpu_start, s->gpu_end, error, s->left};
    gpusync__catch caught;

    if (error) {
        gpusync__name_failure(s);
        gpusync__make_log(q);
    }
    gpusync__end_signals(s, !error, error, deferred);
    gpusync__drop_parts(s, gpusync__is_issued(s) ? s->first_part : s->part_count);

    if (q->device->trace)
        q->device->trace->end(q, ticket, s->label, &outcome);
    s->due.error = error;
    if (s->due.fn)
        gpusync__submission_keep(s); /* gpusync__submission_called takes it back */

    gpusync__catch_nothing(&caught);
    GPUSYNC__LOCK(q);
    gpusync__end_submission(s, error, &outcome, &caught, deferred);
    GPUSYNC__UNLOCK(q);
    gpusync__tell(q, ticket, &caught, deferred);
    if (error && q->sticky)
        gpusync__want(q, deferred); /* held work is given up */
    if (error)
        gpusync__log_failures(q);
    gpusync__submission_unref(s); /* last: with its last submission the queue may go */
}

/* Announces a submission that was issued: a trace is told of the issue before it is told of the
   end. No lock is held. */
static void gpusync__announce(gpusync__submission *s, gpusync__deferred *deferred)
{
    if (s->device->trace)
        s->device->trace->ticket(s->work.queue, GPUSYNC_TRACE_ISSUE, s->work.ticket, s->label, s->work.since_ns);
    gpusync__count_down(s, NULL, NULL, deferred);
    gpusync__submission_unref(s);
}

/* --------------------------------------------------------------------------------- >>held --
   A held submission stands in a line of its queue: ORDERED, of which only the first may be issued,
   or LOOSE if it is UNORDERED, and READY once nothing holds it.

     what holds it back [gpusync__enter_submission]       what lets it go
     the GPU cannot wait for a value yet                  the work that signals it is issued (gpusync__issue_signal), or
     [gpusync__find_value]                                ended or taken back (gpusync__end_signal), or the value is
                                                          reached (gpusync__raise)
     a ticket has not ended; STRICT: a value is not       it has (gpusync__links_over), it is (gpusync__raise)
     reached
     one of its signals must stay behind a lower one      a signal of that timeline ends (gpusync__try_again)
     [gpusync__behind]
     an earlier submission of the line is held            that one is issued or dropped

   The first two count in `holds`, the third where the submission is the next to be issued. The
   thread whose change lets it go puts the queue among its deferred work (gpusync__let_go). At the
   end of its call or handler, when it holds no lock, it tries the order lock, and issues what may
   go (gpusync__issue_held). If another thread has the order lock, a function on a dispatch queue
   for nothing else waits for the lock and issues: a handler never waits for it, and a thread that
   unlocks it looks for nothing. So the issuing thread is the one whose call or handler made the
   change: most often Metal's completion thread, also one that signals, submits, discards or
   destroys, the listener's or the sweep's; or it is that dispatch queue's.

   A held submission also ends without being issued (gpusync__drop_held): when a wait fails, by
   gpusync_cancel_held, when the device is lost, when a failure sticks, and when its queue is
   destroyed. */

/* Turns a submission ISSUED, with its signals, because the caller, which has the order lock, issues
   it next. The GPU waits for the values that are not reached. If the command buffer of our own in
   front would wait for nothing it is left out, unless it is the only one and carries the signals.
   Under the graph's lock. */
GPUSYNC__INLINE void gpusync__set_out(gpusync__submission *s, gpusync__deferred *deferred)
{
    bool strict = gpusync__is_strict(s), fills = false, signals = false;
    s->stage = GPUSYNC__ISSUED;
    for (gpusync__link *link = s->links.first; link; link = link->next) {
        if (link->signal) {
            gpusync__issue_signal(link, deferred);
            signals = true;
            continue;
        }
        link->issued = link->listed && (!strict || link->encoded);
        if (!link->issued)
            continue;
        s->work.traits = GPUSYNC__IS_DELAYED;
        fills = fills || !link->encoded;
    }
    s->first_part = s->front && !fills && (s->part_count > 1 || !signals);
    s->running = s->part_count - s->first_part;
    if (!s->running || s->device->trace || s->options) { /* else it may be gone once Metal has it */
        s->running++;
        gpusync__submission_keep(s); /* gpusync__announce drops it: destroy may have ended the submission by then */
        s->next_issued = deferred->issued;
        deferred->issued = s;
        deferred->busy = true;
    }
}

/* Commits a submission that is set out. Handlers may run from the first commit on, and the
   submission may be gone after the last, unless it is to be announced. Under the order lock, with a
   pool. */
GPUSYNC__INLINE void gpusync__issue(gpusync__submission *s)
{
    uint32_t count = s->part_count;
    gpusync__slot **parts = s->parts;
    void *back = count ? parts[count - 1]->buffer : NULL;
    void *options = s->options;

    for (gpusync__link *link = options ? NULL : s->links.first; link; link = link->next) {
        if (link->encoded || !link->issued)
            continue;
        if (!link->signal)
            gpusync__encode(s->front, gpusync__sel.encodeWaitForEvent, link);
        else if (!gpusync__is_strict(s))
            gpusync__encode(back, gpusync__sel.encodeSignalEvent, link);
    }
    for (uint32_t i = s->first_part; i < count; i++) /* published by the next store; Metal hands it to the handler */
        GPUSYNC__STORE_RELAXED(&parts[i]->state, (uint8_t)GPUSYNC__ARMED);
    __atomic_store_n(&s->work.state, (uint8_t)GPUSYNC__ARMED,
                     __ATOMIC_RELEASE); /* with all that the issue has written */
    if (options) {
        gpusync__send_parts4(s);
        return;
    }
    for (uint32_t i = s->first_part; i < count; i++) {
        gpusync__slot *slot = parts[i];
        void *buffer = slot->buffer;
        gpusync__add_handler(slot, buffer);
        gpusync__send_void(buffer, gpusync__sel.commit);
    }
}

/* Returns whether one of its signals keeps the submission back, and holds it then (G10). Under the
   graph's lock. */
static bool gpusync__stays(gpusync__submission *s)
{
    GPUSYNC__EACH_SIGNAL(link, s) {
        if (!gpusync__behind(link))
            continue;
        link->holds = true;
        link->also = link->timeline->stays;
        link->timeline->stays = link;
        s->holds++;
        return true;
    }
    return false;
}

/* Drops all held work of the queue. Under the graph's lock. */
static void gpusync__give_up_all(gpusync_queue *q, const gpusync_error *error, bool own, gpusync__deferred *deferred)
{
    gpusync__submission *s;
    for (int line = 0; line < GPUSYNC__LINES; line++)
        while ((s = gpusync__submission_at(q->lines[line].end[0])) != NULL) {
            gpusync__fail(s, own, error);
            gpusync__drop_held(s, deferred);
        }
}

/* The same, for gpusync_cancel_held and for the destroy of the queue (`give_up` of gpusync__upper):
   the work fails with this result, as a failure of its own. One hold takes all out of the lines, so
   that nothing of it is issued in between. No lock is held. */
static void gpusync__drop_all_held(gpusync_queue *q, gpusync_result result, const char *message,
                                   gpusync__deferred *deferred)
{
    gpusync_error error;
    gpusync__given_up_error(q, &error, result, message);
    GPUSYNC__LOCK_GRAPH(q->device);
    gpusync__give_up_all(q, &error, true, deferred);
    GPUSYNC__UNLOCK_GRAPH(q->device);
}

/* Drops the held work of a queue whose device is lost, or on which a failure sticks. Under the
   graph's lock. */
GPUSYNC__RARE void gpusync__give_up_failed(gpusync_queue *q, uint32_t flags, gpusync__deferred *deferred)
{
    gpusync_error error;
    if (flags & GPUSYNC__LOST)
        gpusync__own_error(&error, GPUSYNC_ERROR_DEVICE_LOST, "the device was lost while this was held");
    else
        gpusync__read_stuck(q, &error);
    gpusync__give_up_all(q, &error, flags & GPUSYNC__LOST, deferred);
}

/* Takes the submission that is to be issued next out of its line, and turns it ISSUED. NULL: none
   may go, and the next change that lets one go has a thread look again. Under the order lock. */
static gpusync__submission *gpusync__next_to_go(gpusync_queue *q, gpusync__deferred *deferred)
{
    gpusync__submission *s;
    GPUSYNC__LOCK_GRAPH(q->device);
    uint32_t flags = GPUSYNC__LOAD_SEQ(&q->flags) & (GPUSYNC__LOST | GPUSYNC__STUCK);
    if (flags)
        gpusync__give_up_failed(q, flags, deferred);
    while ((s = gpusync__line_first(q)) != NULL && gpusync__stays(s))
        if (s->line == GPUSYNC__READY)
            gpusync__line_move(s, GPUSYNC__LOOSE);
    q->issuing = s != NULL;
    if (s) {
        gpusync__line_remove(s);
        gpusync__count_held(s, false);
        gpusync__set_out(s, deferred);
    }
    GPUSYNC__UNLOCK_GRAPH(q->device);
    return s;
}

/* Issues the queue's held work that may go, and unlocks the order lock, which the caller has. */
static void gpusync__issue_line(gpusync_queue *q, gpusync__deferred *deferred)
{
    void *pool = gpusync__pool_push();
    gpusync__submission *s;
    while ((s = gpusync__next_to_go(q, deferred)) != NULL) {
        GPUSYNC__STORE_RELAXED(&s->work.since_ns, gpusync_now_ns()); /* published by the issue */
        gpusync__issue(s);
    }
    gpusync__unlock(&q->order);
    gpusync__pool_pop(pool);
}

/* The same, on the dispatch queue for issuing. The queue is entered. */
static void gpusync__issue_later(void *context)
{
    gpusync_queue *q = (gpusync_queue *)context;
    gpusync__deferred deferred = GPUSYNC__NOTHING;
    gpusync__lock(&q->order);
    gpusync__issue_line(q, &deferred);
    gpusync__do_deferred(q->device, &deferred);
    gpusync__leave(q);
}

/* Issues held work at the end of a call. gpusync__want_issue entered the queue.
   Interleaving 15: a commit has the order lock, and a handler lets held work go. The handler does
   not wait: the dispatch queue does, and issues the work behind the commit. */
static void gpusync__issue_held(gpusync_queue *q, gpusync__deferred *deferred)
{
    if (!gpusync__try_lock(&q->order)) {
        gpusync__dispatch_async(q->device->issue_queue, q, gpusync__issue_later);
        return;
    }
    gpusync__issue_line(q, deferred);
    gpusync__leave(q);
}

/* Does deferred work, except the callbacks: first submissions that have ended, then issued ones,
   then queues with work to issue. Each step may add more. No lock is held. Of the program's code
   only hooks run.
   Interleaving 24: held work waits for a ticket whose handler is lost, and no thread sleeps. The
   listed link arms the sweep. */
static void gpusync__run(gpusync_device *dev, gpusync__deferred *deferred)
{
    while (deferred->busy) {
        gpusync__submission *s;
        gpusync_queue *q;
        if ((s = deferred->ended) != NULL) {
            deferred->ended = s->next_ended;
            gpusync__publish(s, deferred);
        } else if ((s = deferred->issued) != NULL) {
            deferred->issued = s->next_issued;
            gpusync__announce(s, deferred);
        } else if ((q = deferred->to_issue) != NULL) {
            deferred->to_issue = q->next_to_issue;
            gpusync__issue_held(q, deferred);
        } else {
            if (deferred->sweep)
                gpusync__arm_sweep(dev);
            deferred->busy = deferred->sweep = false;
        }
    }
}

/* Looks at a submission: does what a lost handler would have done. The caller has a reference. True
   if the submission has a callback, for which the sweep has to come again. */
static bool gpusync__look_submission(gpusync__submission *s)
{
    gpusync_queue *q = s->work.queue;
    bool issued = gpusync__is_issued(s); /* first: it publishes what the issue has written */
    for (uint32_t i = issued ? s->first_part : 0; issued && i < s->part_count; i++) {
        gpusync__view view;
        if (gpusync__view_part(q, s, i, &view))
            gpusync__look_at(q, &view);
    }
    return s->due.fn != NULL;
}

/* ------------------------------------------------------------------------------- >>submit --
   What may fail without a look at others comes first: memory, room, command buffers of our own.
   Then the submission enters its queue, under the order lock and the graph's: it asks everything
   that may refuse it, changes, and is issued. A refused one has changed nothing.

     lock         function                          what it does
     none         gpusync__submission_new           takes a submission and its links out of the pools
     none         gpusync__link_points              makes links; what is reached already needs none
     none         gpusync__own_buffers              takes room for command buffers of our own, and makes them
     order        gpusync__check_parts              checks the program's; finds what is encoded into them
     + graph      gpusync__may_enter                asks all that may refuse it, and whether it is held
     + queue      gpusync__take_parts               gives it its ticket; its parts are in flight
     + graph      gpusync__join, _list_waits        its links are its own, and its waits are listed
     + graph      gpusync__hold, or _set_out        it stands in its line, or is ISSUED, with its signals
     order        gpusync__issue                    encodes its waits and signals, and commits its parts
     none         gpusync__do_deferred              what that has let go, or ended, on any queue */

/* Makes the link a wait for a ticket. NOT_READY: the ticket has ended well. One that has failed
   makes a link like any other, and the submission takes the error over. */
GPUSYNC__RARE gpusync_result gpusync__link_ticket(gpusync_device *dev, const gpusync_point *point, gpusync__link *link)
{
    gpusync_queue *q = point->queue;
    gpusync__goal goal;

    if (!q || q->device != dev)
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    if (point->ticket == GPUSYNC_EVERYTHING)
        return GPUSYNC_ERROR_INVALID_TICKET;
    if (!gpusync__enter(q))
        return GPUSYNC_ERROR_DESTROYED;
    gpusync_result result = gpusync__goal_of(q, point->ticket, &goal);
    if (result == GPUSYNC_OK)
        gpusync__look(&goal);
    if (result == GPUSYNC_OK && gpusync__met(&goal)) {
        if (gpusync__result_of(q, &goal, false, NULL) == GPUSYNC_OK)
            result = GPUSYNC_NOT_READY;
        else if (gpusync_device_is_lost(dev))
            result = GPUSYNC_ERROR_DEVICE_LOST;
    }
    link->queue = q;
    link->queue_number = q->place.number;
    link->node.number = point->ticket;
    link->node.told = gpusync__link_told;
    gpusync__leave(q);
    return result;
}

/* Makes the link a wait for the value, or its signal, with a reference to the timeline, so that the
   memory outlives gpusync_timeline_destroy. NOT_READY: the value is reached. strict: the host waits,
   so that a timeline of other code needs the device's listener. The reference is taken before
   CLOSING is read: destroy sets the flag first, and the last reference frees the memory. */
GPUSYNC__INLINE gpusync_result gpusync__link_value(const gpusync_point *point, bool strict, gpusync__link *link)
{
    gpusync_timeline *t = point->timeline;
    uint64_t present = gpusync__value_of(t);

    if (point->value > GPUSYNC_MAX_VALUE)
        return GPUSYNC_ERROR_NOT_RISING;
    if (!link->signal && present >= point->value && present != GPUSYNC__FAILED_VALUE)
        return GPUSYNC_NOT_READY;
    if (!link->signal && strict && gpusync__is_outside(t) && !gpusync__listener(t->device))
        return GPUSYNC_ERROR_UNSUPPORTED;
    GPUSYNC__ADD_SEQ(&t->refs, 1);
    if (GPUSYNC__LOAD_SEQ(&t->flags) & GPUSYNC__CLOSING) {
        gpusync__timeline_unref(t);
        return GPUSYNC_ERROR_DESTROYED;
    }
    link->timeline = t;
    link->node.number = point->value;
    if (link->signal && gpusync__is_outside(t))
        gpusync__look_timeline(t);
    return GPUSYNC_OK;
}

/* Makes the link a wait for the point, or its signal. NOT_READY: the wait is for what has been
   reached, and needs no link. After an error it has no reference. */
GPUSYNC__INLINE gpusync_result gpusync__link_point(gpusync_device *dev, const gpusync_point *point, bool signal,
                                                   bool strict, gpusync__link *link)
{
    memset(&link->timeline, 0, sizeof *link - offsetof(gpusync__link, timeline));
    link->node.linked = false; /* the rest of `node` is set where it is listed */
    link->signal = signal;
    if (!point->timeline && !signal)
        return gpusync__link_ticket(dev, point, link);
    if (!point->timeline || point->timeline->device != dev)
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    return gpusync__link_value(point, strict, link);
}

/* Returns whether so many more command buffers may be held. An eighth of the limit, at least one,
   stays free for the work that held work waits for. Under the graph's lock. */
static bool gpusync__may_hold_more(const gpusync_queue *q, size_t count)
{
    return q->held_buffers + count + (q->limit / 8 ? q->limit / 8 : 1) <= q->limit;
}

/* Takes room for so many command buffers of our own, against Metal's limit. False, and nothing is
   taken, if there is less. The handler gives the room back, not a look that found the end, because
   Metal may count a buffer until its handlers have run. If no handler comes, the sweep gives the
   room back. No lock is held. */
static bool gpusync__take_rooms(gpusync_queue *q, uint32_t count)
{
    GPUSYNC__LOCK(q);
    bool taken = q->outstanding + count <= q->limit;
    if (taken)
        gpusync__count_room(q, count);
    GPUSYNC__UNLOCK(q);
    return taken;
}

/* Waits for room for command buffers of our own, and takes the room for all of them or for none, so
   that two submissions do not wait for each other's. QUEUE_FULL without a wait if no more work may
   be held, and the submission's own waits, or the line, say that it would be. */
GPUSYNC__RARE gpusync_result gpusync__room_for_own(gpusync_queue *q, const gpusync__submission *s,
                                                   const gpusync_submission *desc, uint32_t count)
{
    uint64_t deadline = gpusync__deadline(desc->timeout_ns ? *desc->timeout_ns : GPUSYNC_FOREVER);
    GPUSYNC__LOCK_GRAPH(q->device);
    bool full = !gpusync__may_hold_more(q, desc->command_buffer_count + count);
    bool held = q->lined_ordered && !gpusync__is_loose(s);
    GPUSYNC__EACH_WAIT(link, s) {
        held = held || !link->timeline || gpusync__find_value(link, false) == GPUSYNC__FOUND_HOLDS;
    }
    GPUSYNC__UNLOCK_GRAPH(q->device);
    if ((full && held) || count > q->limit)
        return GPUSYNC_ERROR_QUEUE_FULL;
    do {
        gpusync_result result = gpusync__wait_below(q, q->limit - count + 1, deadline);
        if (result != GPUSYNC_OK)
            return result;
    } while (!gpusync__take_rooms(q, count)); /* others may have been faster */
    return GPUSYNC_OK;
}

/* Makes command buffers of our own, and takes room for them. In the one in front of the work the
   GPU waits, in the one behind the work it signals; without work one buffer does both. Metal 4
   needs the options of its commit instead. After an error gpusync__refuse releases what was made. */
static gpusync_result gpusync__own_buffers(gpusync_queue *q, gpusync__submission *s, const gpusync_submission *desc)
{
    bool front = s->values;
    if (q->metal4)
        return gpusync__make_options4(q, s, desc);
    bool back = desc->signal_count && (!front || desc->command_buffer_count);
    uint32_t count = (uint32_t)front + back;
    if (!count || gpusync__is_strict(s))
        return GPUSYNC_OK;
    gpusync_result result = GPUSYNC_OK;
    if (!gpusync__take_rooms(q, count))
        result = gpusync__room_for_own(q, s, desc, count);
    if (result != GPUSYNC_OK)
        return result;
    s->own_buffers = count;
    void *pool = gpusync__pool_push();
    if (front)
        s->front = gpusync__keep_buffer(gpusync__send_id(q->metal, gpusync__sel.commandBuffer), desc->label);
    if (back)
        s->back = gpusync__keep_buffer(gpusync__send_id(q->metal, gpusync__sel.commandBuffer), desc->label);
    gpusync__pool_pop(pool);
    bool made = (s->front || !front) && (s->back || !back);
    return made ? GPUSYNC_OK : GPUSYNC_ERROR_METAL_NIL;
}

/* Makes links of the submission's waits, or of its signals. No lock is held. */
GPUSYNC__INLINE gpusync_result gpusync__link_points(gpusync__submission *s, const gpusync_point *points, size_t count,
                                                    bool signal)
{
    gpusync__links *list = signal ? &s->signals : &s->links;
    for (size_t i = 0; i < count; i++) {
        gpusync__link *link = s->spare;
        gpusync_result result = gpusync__link_point(s->device, &points[i], signal, gpusync__is_strict(s), link);
        if (result == GPUSYNC_NOT_READY)
            continue;
        if (result != GPUSYNC_OK)
            return result;

        s->spare = link->next;
        link->submission = s;
        gpusync__links_add(list, link);
        s->tickets |= link->queue != NULL;
        s->values |= !signal && link->timeline;
    }
    return GPUSYNC_OK;
}

/* -- entering. Under the order lock */

/* What a submission knows of what it enters with. */
typedef struct gpusync__entrance {
    void *const *buffers;        /* the program's command buffers; of Metal 4 `all` alone */
    size_t count;                /* of these */
    void *all;                   /* of Metal 4: the object of the one slot; NULL: Metal made none */
    gpusync__submission *joined; /* those of its open command buffers, in their order, by `next_ended` */
    size_t needed;               /* slots of these: open buffers have theirs */
    bool enqueued;               /* a command buffer is, and cannot be held */

    gpusync__found worst; /* HOLDS or FAILED: it is not issued at once */
    bool lacks_memory;    /* slots, or a place for the ticket: gpusync__make_ready makes them */
} gpusync__entrance;

/* Checks a Metal 4 commit. */
GPUSYNC__RARE gpusync_result gpusync__check_parts4(gpusync_queue *q, const gpusync__submission *s, const void *all)
{
    gpusync__hook_in4(q);
    if (!all)
        return GPUSYNC_ERROR_METAL_NIL;
    return gpusync__holds(q, s->buffers, s->buffer_count) ? GPUSYNC_ERROR_ALREADY_TRACKED : GPUSYNC_OK;
}

/* Checks all that the command buffers can be refused for, and collects the submissions of open
   ones. */
static gpusync_result gpusync__check_parts(gpusync_queue *q, gpusync__submission *s, gpusync__entrance *in)
{
    gpusync__submission **last = &in->joined;
    gpusync_result result = GPUSYNC_OK;
    in->needed = s->options ? 1 : s->own_buffers;
    if (s->options)
        return gpusync__check_parts4(q, s, in->all);
    for (size_t i = 0; i < in->count && result == GPUSYNC_OK; i++) {
        void *buffer = in->buffers[i];
        gpusync__slot *slot = *gpusync__find_open(q, buffer);
        gpusync__submission *open = slot ? slot->submission : NULL;
        unsigned long status = GPUSYNC__STATUS_NOT_ENQUEUED;
        result = gpusync__check_buffer(q, buffer, GPUSYNC__PART, slot, &status);
        in->enqueued = in->enqueued || status != GPUSYNC__STATUS_NOT_ENQUEUED;
        in->needed += !slot;
        if (!open || open == s)
            continue;
        s->tickets |= open->tickets;
        *last = open;
        last = &open->next_ended;
    }
    *last = NULL;
    return result;
}

/* Returns NOT_RISING for a wait or signal that can never come after those that were looked at
   before: a signal that is not above them all, and a wait for what the submission itself signals.
   The timeline keeps what this question, the number `asks` of the device, has seen of it. Under the
   graph's lock. */
GPUSYNC__INLINE gpusync_result gpusync__check_rise(gpusync__link *link, uint64_t asks)
{
    gpusync_timeline *t = link->timeline;
    uint64_t number = link->node.number;
    if (t->asks != asks) {
        t->asks = asks;
        t->seen = t->seen_first = 0;
    }
    if (link->signal ? number <= t->seen : t->seen_first && number >= t->seen_first)
        return GPUSYNC_ERROR_NOT_RISING;
    if (link->signal && !t->seen_first) {
        t->seen_first = number;
        t->seen_needs = t->seen;
    }
    link->needs = t->seen_needs;
    if (number > t->seen)
        t->seen = number;
    return GPUSYNC_OK;
}

/* Finds how the wait for a ticket stands. lists: lists it if the ticket has not ended, in the same
   hold. A link does not keep the queue of its ticket. CLOSING is read in the hold: a destroy that
   sets it later finds what is listed. Where it has failed, and would be listed, the submission gets
   the error. The caller has the device's lock, which keeps the queue on the list, and the graph's. */
GPUSYNC__RARE gpusync__found gpusync__find_ticket(gpusync__link *link, gpusync__submission *s, bool lists)
{
    gpusync_queue *q = gpusync__queue_at(gpusync__list_from(&s->device->queues, link->queue_number));
    gpusync__found found = GPUSYNC__FOUND_FAILED;
    gpusync_error error;
    bool gone = !q || q->place.number != link->queue_number;
    if (!gone) {
        GPUSYNC__LOCK(q);
        gone = GPUSYNC__LOAD_SEQ(&q->flags) & GPUSYNC__CLOSING;
        if (!gone && !gpusync__has_ended(q, link->node.number))
            found = GPUSYNC__FOUND_HOLDS;
        else if (!gone && gpusync__ticket_result(q, link->node.number, &error) == GPUSYNC_OK)
            found = GPUSYNC__FOUND_OVER;
        if (lists && found == GPUSYNC__FOUND_HOLDS)
            gpusync__list_add(&q->waits.lists[GPUSYNC__WAITS], &link->node);
        GPUSYNC__UNLOCK(q);
    }
    if (gone) {
        gpusync__own_error(&error, GPUSYNC_ERROR_DESTROYED, "the queue of the ticket was destroyed");
        error.failure = GPUSYNC_FAILURE_CANCELLED; /* as gpusync__end_listed */
    }
    if (lists && found == GPUSYNC__FOUND_FAILED)
        gpusync__fail(s, false, &error);
    return found;
}

/* Asks about links of a submission that would enter, one after the other in the order of execution.
   Under the graph's lock. */
GPUSYNC__INLINE gpusync_result gpusync__ask(gpusync__submission *s, gpusync__link *link, gpusync__entrance *in)
{
    for (; link; link = link->next) {
        gpusync_timeline *t = link->timeline;
        gpusync_result result = t ? gpusync__check_rise(link, s->device->asks) : GPUSYNC_OK;
        if (result == GPUSYNC_OK && link->signal && !link->listed)
            result = gpusync__may_rise(t, link->node.number);
        if (result != GPUSYNC_OK)
            return result;

        if (link->signal)
            link->found = gpusync__behind(link) ? GPUSYNC__FOUND_HOLDS : GPUSYNC__FOUND_OVER;
        else
            link->found = t ? gpusync__find_value(link, gpusync__is_strict(s)) : gpusync__find_ticket(link, s, false);
        if (link->found > in->worst)
            in->worst = link->found;
    }
    return GPUSYNC_OK;
}

/* Asks everything of the graph that may refuse the submission, and whether it is held: first its
   waits, then what is encoded into its command buffers, then its signals. Nothing is changed but
   what links and timelines keep for this question. Under the graph's lock.
   Interleaving 16: the host raises a timeline beyond the second signal of a submission that enters.
   The submission is refused, and no thread has met its first signal. */
static gpusync_result gpusync__may_enter(gpusync__submission *s, gpusync__entrance *in)
{
    gpusync_queue *q = s->work.queue;
    s->device->asks++;
    if (q->lined_ordered && !gpusync__is_loose(s))
        in->worst = GPUSYNC__FOUND_HOLDS;
    gpusync_result result = gpusync__ask(s, s->links.first, in);
    for (gpusync__submission *open = in->joined; open && result == GPUSYNC_OK; open = open->next_ended)
        result = gpusync__ask(s, open->links.first, in);
    if (result == GPUSYNC_OK)
        result = gpusync__ask(s, s->signals.first, in);
    if (result != GPUSYNC_OK || in->worst != GPUSYNC__FOUND_HOLDS)
        return result; /* one that fails ends at once, and is not held */

    if (!gpusync__may_hold_more(q, in->count + s->own_buffers))
        return GPUSYNC_ERROR_QUEUE_FULL;
    return in->enqueued ? GPUSYNC_ERROR_ENQUEUED : GPUSYNC_OK;
}

/* Adds the slot to the submission as its next part, in flight. Under the queue's lock. */
GPUSYNC__INLINE void gpusync__add_part(gpusync_queue *q, gpusync__submission *s, gpusync__slot *slot)
{
    slot->kind = GPUSYNC__PART;
    slot->submission = s;
    slot->back = &s->parts[s->part_count];
    slot->ticket = s->work.ticket;
    s->parts[s->part_count++] = slot;
    gpusync__flight_add(q, slot);
}

/* Adds a command buffer without a slot as the next part. It is retained, and has room. Under the
   queue's lock. */
GPUSYNC__INLINE void gpusync__add_new_part(gpusync_queue *q, gpusync__submission *s, void *buffer)
{
    gpusync__slot *slot = gpusync__slot_take(q);
    uint8_t traits = s->options ? GPUSYNC__HAS_ROOM | GPUSYNC__IS_METAL4 : GPUSYNC__HAS_ROOM;
    gpusync__slot_open(q, slot, buffer, GPUSYNC__PART, traits);
    gpusync__add_part(q, s, slot);
}

/* Adds all command buffers as parts, in the order of their commits; those of the program leave the
   table of open ones. A stranger takes room, and is retained. Under the queue's lock. */
static void gpusync__add_parts(gpusync_queue *q, gpusync__submission *s, const gpusync__entrance *in)
{
    if (s->front)
        gpusync__add_new_part(q, s, s->front);
    for (size_t i = 0; i < in->count; i++) {
        gpusync__slot **open = gpusync__find_open(q, in->buffers[i]);
        if (*open) {
            gpusync__add_part(q, s, gpusync__take_open(open));
        } else {
            gpusync__count_room(q, 1);
            gpusync__add_new_part(q, s, gpusync__retain(in->buffers[i]));
        }
    }
    if (s->back)
        gpusync__add_new_part(q, s, s->back);
}

/* Gives the submission its ticket, and takes all command buffers in. OUT_OF_MEMORY, with nothing
   changed, if no slot, or no place for the ticket, is ready. Under the graph's lock. */
static gpusync_result gpusync__take_parts(gpusync_queue *q, gpusync__submission *s, gpusync__entrance *in,
                                          gpusync_ticket *ticket)
{
    size_t needed = in->needed;
    uint64_t now = gpusync_now_ns();
    GPUSYNC__LOCK(q);
    for (const gpusync__slot *slot = q->free_slots; needed && slot; slot = slot->next)
        needed--;
    in->lacks_memory = needed || !gpusync__ring_is_ready(q);
    if (!in->lacks_memory) {
        *ticket = gpusync__enter_ring(q, &s->work, GPUSYNC__OPEN, now);
        gpusync__add_parts(q, s, in);
    }
    GPUSYNC__UNLOCK(q);
    return in->lacks_memory ? GPUSYNC_ERROR_OUT_OF_MEMORY : GPUSYNC_OK;
}

/* Makes the links of open command buffers the submission's own, in the order of execution. Under
   the graph's lock. */
static void gpusync__join(gpusync__submission *s, gpusync__submission *joined)
{
    for (; joined; joined = joined->next_ended) {
        for (gpusync__link *link = joined->links.first; link; link = link->next)
            link->submission = s;
        gpusync__links_move(&s->links, &joined->links);
    }
    gpusync__links_move(&s->links, &s->signals);
}

/* Lists what the submission waits for as it was found, but for what is over, has failed, or is what
   nothing will bring. What was not found to be over or to come is looked at once more: a ticket may have
   ended, and what is to signal a value may be the submission's own by now. Under the graph's lock, and
   the device's where a link is about a ticket. */
static void gpusync__list_waits(gpusync__submission *s)
{
    GPUSYNC__EACH_WAIT(link, s) {
        gpusync_timeline *t = link->timeline;
        gpusync__found found = link->found;
        if (found >= GPUSYNC__FOUND_HOLDS)
            found = t ? gpusync__find_value(link, gpusync__is_strict(s)) : gpusync__find_ticket(link, s, true);
        if (t && found == GPUSYNC__FOUND_FAILED)
            gpusync__fail(s, false, t->failed ? &t->error : &gpusync__timeline_gone);
        else if (t && found != GPUSYNC__FOUND_OVER)
            gpusync__list_add(&t->waiting, &link->node);
        link->listed = found != GPUSYNC__FOUND_OVER && found != GPUSYNC__FOUND_FAILED;
        link->holds = found == GPUSYNC__FOUND_HOLDS;
        link->abroad = found == GPUSYNC__FOUND_ABROAD;
        s->open += link->listed;
        s->holds += link->holds;
    }
}

/* Holds a submission that has its links: puts it at the end of its line; or ends it, if a wait has
   failed. Under the graph's lock. */
GPUSYNC__RARE void gpusync__hold(gpusync__submission *s, gpusync__deferred *deferred)
{
    gpusync_queue *q = s->work.queue;
    deferred->busy = deferred->sweep = true;
    if (s->failed) {
        gpusync__end_unissued(s, deferred);
        return;
    }
    GPUSYNC__EACH_SIGNAL(link, s)
        if (!link->listed)
            gpusync__list_signal(link);
    s->stage = GPUSYNC__HELD;
    gpusync__line_add(s, gpusync__is_loose(s) ? GPUSYNC__LOOSE : GPUSYNC__ORDERED);
    gpusync__count_held(s, true);
    GPUSYNC__COUNT_RELAXED(&q->stats.held);
    gpusync__submission_keep(s); /* the caller's, for gpusync__listen_for */
    deferred->held_ns = s->work.since_ns;
    gpusync__let_go(s, deferred);
    if (GPUSYNC__LOAD_SEQ(&q->flags) & (GPUSYNC__LOST | GPUSYNC__STUCK))
        gpusync__want_issue(q, deferred); /* the flag came first */
}

/* Registers with the listener for the values of other code that a held submission waits for. Where the
   GPU waits for one of them, its registration is not needed, and does no harm. The caller has a
   reference (gpusync__hold). No lock is held. */
GPUSYNC__RARE void gpusync__listen_for(gpusync__submission *s)
{
    GPUSYNC__EACH_WAIT(link, s)
        if (link->timeline)
            gpusync__listen(link->timeline, link->node.number);
}

/* Drops the submissions of open command buffers, whose links another one has. */
GPUSYNC__RARE void gpusync__drop_joined(gpusync__submission *joined)
{
    for (gpusync__submission *next; joined; joined = next) {
        next = joined->next_ended;
        gpusync__submission_unref(joined);
    }
}

/* Enters a submission as one step of the queue's order. OK: it has its ticket, and is issued, held,
   or over. After an error nothing has changed. Under the order lock, with a pool. */
static gpusync_result gpusync__enter_submission(gpusync__submission *s, gpusync__entrance *in, gpusync_ticket *ticket,
                                                gpusync__deferred *deferred)
{
    gpusync_queue *q = s->work.queue;
    gpusync_device *dev = q->device;
    gpusync_result result = gpusync__is_lost(q) ? GPUSYNC_ERROR_DEVICE_LOST : gpusync__check_parts(q, s, in);
    if (result != GPUSYNC_OK)
        return result;

    if (s->tickets)
        gpusync__lock(&dev->lock); /* a queue does not leave the list */
    GPUSYNC__LOCK_GRAPH(dev);
    result = gpusync__may_enter(s, in);
    if (result == GPUSYNC_OK)
        result = gpusync__take_parts(q, s, in, ticket);
    if (result == GPUSYNC_OK) {
        s->open_buffer = NULL;
        gpusync__join(s, in->joined);
        gpusync__list_waits(s);
        if (in->worst >= GPUSYNC__FOUND_HOLDS)
            gpusync__hold(s, deferred);
        else
            gpusync__set_out(s, deferred);
    }
    GPUSYNC__UNLOCK_GRAPH(dev);
    if (s->tickets)
        gpusync__unlock(&dev->lock);

    if (result == GPUSYNC_OK && in->worst < GPUSYNC__FOUND_HOLDS)
        gpusync__issue(s);
    return result;
}

/* -- the calls */

/* Drops a submission that was refused, with what was made for it. No lock is held. */
GPUSYNC__RARE void gpusync__refuse(gpusync__submission *s)
{
    gpusync__release_pooled(s->front);
    gpusync__release_pooled(s->back);
    if (s->own_buffers)
        gpusync__give_room(s->work.queue, s->own_buffers, NULL);
    gpusync__submission_unref(s);
}

/* Enters the submission, or that of the first command buffer (NULL). NOT_READY: it has none. The
   caller is inside the queue. */
static gpusync_result gpusync__enter_now(gpusync_queue *q, gpusync__submission *made, void *const *buffers,
                                         size_t count, gpusync_ticket *ticket, gpusync__deferred *deferred)
{
    gpusync_result result;
    gpusync__submission *s;
    gpusync__entrance in;
    do {
        memset(&in, 0, sizeof in);
        void *pool = gpusync__pool_push();
        in.buffers = buffers;
        in.count = count;
        if (q->metal4) {
            in.all = gpusync__all_of(buffers, count);
            in.buffers = &in.all;
            in.count = 1;
        }
        gpusync__lock(&q->order);
        const gpusync__slot *open = made ? NULL : *gpusync__find_open(q, buffers[0]);
        s = open ? open->submission : made;
        result = s ? gpusync__enter_submission(s, &in, ticket, deferred) : GPUSYNC_NOT_READY;
        gpusync__order_end_pool(q, pool);
        if (result == GPUSYNC_OK && in.joined)
            gpusync__drop_joined(in.joined);
    } while (in.lacks_memory && gpusync__make_ready(q, (uint32_t)in.needed));
    if (deferred->held_ns) {
        gpusync__listen_for(s);
        gpusync__submission_unref(s);
    }
    return result;
}

/* Makes a submission of the program's description, and enters it. The caller is inside the queue,
   and does the deferred work. */
static gpusync_result gpusync__submit_new(gpusync_queue *q, const gpusync_submission *desc, gpusync_ticket *ticket,
                                          gpusync__deferred *deferred)
{
    gpusync__submission *s =
        gpusync__submission_new(q, desc->wait_count + desc->signal_count, desc->command_buffer_count);

    if (!s)
        return GPUSYNC_ERROR_OUT_OF_MEMORY;
    s->flags = desc->flags;
    s->due.fn = desc->on_complete;
    s->due.user = desc->user;
    if (desc->label)
        gpusync__copy_label(s->label, sizeof s->label, desc->label);
    if (desc->on_complete)
        deferred->busy = deferred->sweep = true; /* a sweep finds an end that no handler tells of */
    gpusync_result result = gpusync__link_points(s, desc->waits, desc->wait_count, false);
    if (result == GPUSYNC_OK)
        result = gpusync__link_points(s, desc->signals, desc->signal_count, true);
    if (result == GPUSYNC_OK)
        result = gpusync__own_buffers(q, s, desc);
    if (result == GPUSYNC_OK)
        result = gpusync__enter_now(q, s, desc->command_buffers, desc->command_buffer_count, ticket, deferred);
    if (result != GPUSYNC_OK)
        gpusync__refuse(s);
    return result;
}

/* Commits command buffers as a submission: because waits or signals were encoded into one, or
   because it must stay behind held submissions. *held_ns: when the submission was held, or 0. */
static gpusync_result gpusync__submit_plain(gpusync_queue *q, void *const *buffers, size_t count,
                                            gpusync_ticket *ticket, uint64_t *held_ns)
{
    gpusync__deferred deferred = GPUSYNC__NOTHING;
    gpusync_submission desc;
    gpusync_result result = gpusync__enter_now(q, NULL, buffers, count, ticket, &deferred);
    if (result == GPUSYNC_NOT_READY) {
        memset(&desc, 0, sizeof desc);
        desc.command_buffers = buffers;
        desc.command_buffer_count = count;
        result = gpusync__submit_new(q, &desc, ticket, &deferred);
    }
    *held_ns = deferred.held_ns;
    gpusync__do_deferred(q->device, &deferred);
    return result;
}

/* Returns whether the description is well formed, without a look at its points. The counts have to
   fit those of gpusync__submission. */
GPUSYNC__INLINE bool gpusync__submission_is_valid(const gpusync_submission *desc)
{
    size_t buffers = desc->command_buffer_count;
    return (desc->waits || !desc->wait_count) && (desc->signals || !desc->signal_count) &&
           (desc->command_buffers || !buffers) && (buffers != 1 || desc->command_buffers[0]) &&
           !(desc->flags & ~(uint32_t)(GPUSYNC_STRICT | GPUSYNC_UNORDERED)) &&
           (desc->wait_count | desc->signal_count | buffers) <= UINT32_MAX / 2;
}

/* Returns the result of a submission that is refused before it is made. Because of a failure that
   sticks: its open command buffers are marked. */
GPUSYNC__RARE gpusync_result gpusync__refuse_submission(gpusync_queue *q, const gpusync_submission *desc,
                                                        gpusync_result result)
{
    for (size_t i = 0; result == GPUSYNC_ERROR_EXECUTION && i < desc->command_buffer_count; i++)
        gpusync__note_refused(q, desc->command_buffers[i]);
    return result;
}

/* What is told of this call, and what it lets go on other queues, comes after it has entered: the
   trace first, then the deferred work. */
GPUSYNC_API gpusync_result gpusync_submit(gpusync_queue *queue, const gpusync_submission *submission,
                                          gpusync_ticket *ticket)
{
    const gpusync_submission *desc = submission;
    gpusync__deferred deferred = GPUSYNC__NOTHING;
    gpusync_ticket unasked;

    if (!ticket)
        ticket = &unasked;
    *ticket = GPUSYNC_NO_TICKET;
    if (!queue || !desc || !gpusync__submission_is_valid(desc))
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    gpusync_result result = gpusync__enter_working(queue, GPUSYNC__STUCK);
    if (result != GPUSYNC_OK)
        return gpusync__refuse_submission(queue, desc, result);
    result = gpusync__check_work(queue, desc->command_buffers, desc->command_buffer_count);
    if (result == GPUSYNC_OK) {
        uint64_t began = queue->device->trace ? gpusync_now_ns() : 0;
        result = gpusync__submit_new(queue, desc, ticket, &deferred);
        if (began && result == GPUSYNC_OK) {
            queue->device->trace->ticket(queue, GPUSYNC_TRACE_SUBMIT, *ticket, desc->label, began);
            if (deferred.held_ns)
                queue->device->trace->ticket(queue, GPUSYNC_TRACE_HOLD, *ticket, desc->label, deferred.held_ns);
        }
        gpusync__do_deferred(queue->device, &deferred);
    }
    gpusync__leave(queue);
    return result;
}

/* ------------------------------------------------------------------------------- >>encode --
   What is encoded into open command buffers. The first link makes a submission for the buffer,
   which enters the queue at its
   commit (gpusync__enter_now), or whose links another submission takes (gpusync__join).
   Signals are pending at once; waits are listed at the commit, because the program may discard the
   buffer.

   What becomes of a link that is encoded:
     commit      The submission of the buffer enters the queue, as that of gpusync_submit does: it is
                 issued or held, with the waits and signals that are in the buffer already.
     submit      Its links go to the submission that has the buffer, in the order of execution: those
                 of its own waits, of each command buffer, of its own signals.
     discard     The signal is taken back, and another submission may signal the value. The event is
                 not touched, because the command buffer never runs.
     refused     Nothing changes: the buffer is open, its signals are pending, and the program tries
                 again, or discards it.
     destroyed   The timelines that it was to signal fail, because no ticket could tell of the end. */

/* Returns NOT_RISING if the buffer waits for the value or a higher one, or signals one that is not
   below it; else whether the timeline lets it rise. The timeline knows what it has seen of the
   buffer, unless it has answered a later question since, and then the links do. Under the graph's
   lock. */
static gpusync_result gpusync__check_signal(const gpusync__submission *s, const gpusync__link *link)
{
    const gpusync_timeline *t = link->timeline;
    uint64_t number = link->node.number;
    bool rises = t->asks != s->asks || number > t->seen;
    for (const gpusync__link *other = t->asks > s->asks ? s->links.first : NULL; other; other = other->next)
        rises = rises && (other->timeline != t || other->node.number < number);
    return rises ? gpusync__may_rise(t, number) : GPUSYNC_ERROR_NOT_RISING;
}

/* Takes a slot and room for a command buffer that the program made itself, retains the buffer, and
   lists the slot as open. NULL if no slot is free. Under the order lock. */
GPUSYNC__RARE gpusync__slot *gpusync__open_stranger(gpusync_queue *q, void *buffer)
{
    GPUSYNC__LOCK(q);
    gpusync__slot *slot = gpusync__slot_take(q);
    if (slot) {
        gpusync__count_room(q, 1);
        gpusync__slot_open(q, slot, gpusync__retain(buffer), GPUSYNC__WORK, GPUSYNC__HAS_ROOM);
        gpusync__add_open(q, slot);
    }
    GPUSYNC__UNLOCK(q);
    return slot;
}

/* Gives the link to the submission of the buffer, and lists it if it is a signal. Under the order lock
   and the graph's. */
GPUSYNC__INLINE void gpusync__add_encoded(gpusync__submission *s, gpusync__link *link, void *buffer)
{
    if (!s->asks)
        s->asks = ++s->device->asks;
    link->submission = s;
    link->encoded = link->timeline != NULL; /* for a ticket the host waits */
    s->tickets |= link->queue != NULL;
    s->signals_encoded = link->signal;
    s->open_buffer = buffer;
    gpusync__links_add(&s->links, link);
    if (link->timeline && link->timeline->asks <= s->asks)
        (void)gpusync__check_rise(link, s->asks); /* for the next check */
    if (link->signal)
        gpusync__list_signal(link);
}

/* Encodes the link (NULL: what the wait is for has been reached), and opens a command buffer that the
   program made itself. *made: a submission for a buffer that has none; NULL afterwards if it is in use.
   NOT_READY: the caller has to make that, or a slot, and call again. After this, and after an error,
   nothing has changed. Under the order lock, with a pool. */
static gpusync_result gpusync__encode_ordered(gpusync_queue *q, void *buffer, gpusync__link *link, bool signal,
                                              gpusync__submission **made)
{
    gpusync__slot *slot = *gpusync__find_open(q, buffer);
    gpusync__submission *s = slot && slot->submission ? slot->submission : *made;
    unsigned long status;
    gpusync_result result = slot ? GPUSYNC_OK : gpusync__check_buffer(q, buffer, GPUSYNC__WORK, NULL, &status);

    if (result != GPUSYNC_OK)
        return result;
    if (!signal && s && s->signals_encoded)
        return GPUSYNC_ERROR_INVALID_ARGUMENT; /* waits come before signals */
    if (link && !s)
        return GPUSYNC_NOT_READY;

    GPUSYNC__LOCK_GRAPH(q->device);
    if (signal)
        result = gpusync__check_signal(s, link);
    if (result == GPUSYNC_OK && !slot) {
        slot = gpusync__open_stranger(q, buffer);
        result = slot ? GPUSYNC_OK : GPUSYNC_NOT_READY;
    }
    if (result == GPUSYNC_OK && link)
        gpusync__add_encoded(s, link, buffer);
    GPUSYNC__UNLOCK_GRAPH(q->device);
    if (result != GPUSYNC_OK || !link)
        return result;
    if (link->encoded)
        gpusync__encode(buffer, signal ? gpusync__sel.encodeSignalEvent : gpusync__sel.encodeWaitForEvent, link);
    if (s == *made) {
        slot->submission = s;
        *made = NULL;
    }
    return GPUSYNC_OK;
}

/* Encodes the link, and makes what is missing for that: a submission first, and then slots. No lock is
   held. */
static gpusync_result gpusync__encode_link(gpusync_queue *q, void *buffer, gpusync__link *link, bool signal)
{
    gpusync__submission *made = NULL;
    gpusync_result result;

    do {
        void *pool = gpusync__pool_push();
        gpusync__lock(&q->order);
        result = gpusync__encode_ordered(q, buffer, link, signal, &made);
        gpusync__order_end_pool(q, pool);
    } while (result == GPUSYNC_NOT_READY &&
             (made ? gpusync__make_ready(q, 1) : (made = gpusync__submission_new(q, 0, 1)) != NULL));
    if (made)
        gpusync__submission_unref(made);
    return result == GPUSYNC_NOT_READY ? GPUSYNC_ERROR_OUT_OF_MEMORY : result;
}

/* Encodes a wait for the point, or its signal, into a command buffer. A buffer that the program
   made itself becomes an open one; after an error it is as before. */
static gpusync_result gpusync__encode_point(gpusync_queue *q, void *buffer, const gpusync_point *point, bool signal)
{
    gpusync__link *link = NULL;

    if (!q || !buffer)
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    gpusync_result result = gpusync__enter_working(q, 0);
    if (result != GPUSYNC_OK)
        return result;
    bool taken = gpusync__take_memory(q->device, NULL, 1, &link);
    result = taken ? gpusync__link_point(q->device, point, signal, false, link) : GPUSYNC_ERROR_OUT_OF_MEMORY;
    bool reached = result == GPUSYNC_NOT_READY;
    if (reached || result == GPUSYNC_OK)
        result = gpusync__encode_link(q, buffer, reached ? NULL : link, signal);
    if (reached || result != GPUSYNC_OK)
        gpusync__give_memory(q->device, NULL, link);
    gpusync__leave(q);
    return result;
}

GPUSYNC_API gpusync_result gpusync_encode_wait(gpusync_queue *queue, void *command_buffer, gpusync_point point)
{
    return gpusync__encode_point(queue, command_buffer, &point, false);
}

GPUSYNC_API gpusync_result gpusync_encode_signal(gpusync_queue *queue, void *command_buffer, gpusync_point point)
{
    return gpusync__encode_point(queue, command_buffer, &point, true);
}

/* What a thread is issuing already is not held any more. */
GPUSYNC_API gpusync_result gpusync_cancel_held(gpusync_queue *queue)
{
    gpusync__deferred deferred = GPUSYNC__NOTHING;
    if (!queue)
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    if (!gpusync__enter(queue))
        return GPUSYNC_ERROR_DESTROYED;
    gpusync__drop_all_held(queue, GPUSYNC_ERROR_CANCELLED, "cancelled while it was held", &deferred);
    gpusync__do_deferred(queue->device, &deferred);
    gpusync__leave(queue);
    return GPUSYNC_OK;
}

/* -------------------------------------------------------------------------------- >>upper -- */

/* How submissions hook in: see gpusync__upper. */

/* Drops the submission of an open command buffer that will not be committed: takes its signals
   back. error: not NULL if the queue is being destroyed, or the commit was refused because of a
   failure; then the timelines fail with it, because the submission has no ticket that could tell of
   the failure. */
static void gpusync__discard_submission(gpusync__submission *s, const gpusync_error *error, gpusync__deferred *deferred)
{
    gpusync__end_signals(s, false, error, deferred);
    gpusync__submission_unref(s);
}

/* Returns the events that a part in flight may still use, in an array (+1). The orphaned slot keeps
   the array until its handler has come, because the submission may be freed before. The caller has
   a reference. */
GPUSYNC__RARE void *gpusync__events_of(gpusync__submission *s)
{
    void *pool = gpusync__pool_push();
    void *events = gpusync__new_object("NSMutableArray");
    for (const gpusync__link *link = s->links.first; link; link = link->next)
        if (link->timeline)
            gpusync__send_void_id(events, gpusync__sel.addObject, link->timeline->event);
    gpusync__pool_pop(pool);
    return events;
}

/* gpusync__abandon for a submission, whose command buffers are left to themselves: it ends here, with
   the deferred work, unless it has ended already. Its timelines' events are not used again: the device may still
   signal them. */
GPUSYNC__RARE void gpusync__disown(gpusync__submission *s, const gpusync_error *reason, gpusync__deferred *deferred)
{
    GPUSYNC__LOCK_GRAPH(s->device);
    if (s->stage == GPUSYNC__ISSUED) {
        s->failed = false; /* the loss and gpusync_queue_destroy_now tell all the same */
        gpusync__fail(s, true, reason);
        for (gpusync__link *link = s->links.first; link; link = link->next)
            if (link->timeline)
                GPUSYNC__STORE_SEQ(&link->timeline->handed_out, true);
        s->left = true;
        s->gpu_start = s->gpu_end = 0;
        s->running = 0;
        gpusync__forget(s);
        s->open = 1;
        gpusync__close_one(s, deferred);
    }
    GPUSYNC__UNLOCK_GRAPH(s->device);
}

/* Gives the device the table, and the dispatch queue for issuing, before its first
   submission. Of two threads that come here at once, the first one's dispatch queue counts. No lock
   is held. */
GPUSYNC__RARE void gpusync__hook_in_now(gpusync_device *dev)
{
    static const gpusync__upper submissions = {
        gpusync__run,
        gpusync__links_over,
        gpusync__submission_keep,
        gpusync__submission_unref,
        gpusync__want,
        gpusync__submit_plain,
        gpusync__discard_submission,
        gpusync__part_ended,
        gpusync__look_submission,
        gpusync__drop_all_held,
        gpusync__events_of,
        gpusync__disown,
    };
    void *made = gpusync__dispatch_queue_create("gpusync issues", NULL);
    gpusync__lock(&dev->lock);
    if (!dev->issue_queue) {
        dev->issue_queue = made;
        made = NULL;
        GPUSYNC__STORE_SEQ(&dev->upper, &submissions);
    }
    gpusync__unlock(&dev->lock);
    if (made)
        gpusync__dispatch_release(made);
}

/* Asked before a submission or a link is made. A load without the lock sees NULL, or a device that
   has both. */
static void gpusync__hook_in(gpusync_device *dev)
{
    if (!GPUSYNC__LOAD_SEQ(&dev->upper))
        gpusync__hook_in_now(dev);
}

/* ------------------------------------------------------------------------------- >>warmup --
   Tasks on four serial dispatch queues, so that at most four run at once. A timeline counts what is
   done: a thread that waits for anything here waits for the timeline's next value, and looks.

   A warm-up:
     1. gpusync_warmup_start lists the pipelines and their libraries: a library for each text and
        each library object.
     2. Each pipeline is a task on one of the last three dispatch queues (gpusync__compile). The first
        task that needs a library compiles it. In a disabled warm-up a pipeline becomes a task when a
        call asks for it.
     3. One more task makes the device ready, and then runs the jobs (gpusync__warm_up). It has the
        first dispatch queue to itself, so that a job may wait for a pipeline.
     4. A pipeline, the device and a job count when they are done, well or badly. At `total` the
        warm-up is done.
     5. gpusync_warmup_destroy sets `closing`, after which nothing new begins, and fails the
        timeline, which ends the waits. When no call and no task is `inside`, it frees the memory. */

/* A compilation: of a library, once for all its functions, or of a pipeline, of one of these
   functions. */
typedef struct gpusync__compilation {
    gpusync_warmup *warmup;               /* of a pipeline: whose it is */
    struct gpusync__compilation *library; /* of a pipeline: has the function */
    size_t same_as;                       /* of a pipeline: its number, or that of an earlier one, which serves both */
    void *text;                           /* the source or the function's name, +1; nil: none given, or no UTF-8 */
    void *made;                           /* the library or the pipeline, +1; NULL: it is not done, or it failed */
    gpusync__mutex mutex;                 /* of a library: one task compiles it, and the others wait */
    uint32_t started;                     /* of a pipeline: 1: it is a task. Swapped in gpusync__begin_pipeline */
    uint32_t done;                        /* of a pipeline: 1: `made` or the error is written */
    gpusync_error error;                  /* why nothing was made; result OK: none */
} gpusync__compilation;

#define GPUSYNC__WARMUP_QUEUES 4

/* The lists lie behind this structure, in the same memory. */
struct gpusync_warmup {
    gpusync_device *device;     /* outlives it */
    gpusync_timeline *progress; /* is at `done`, or on its way there */
    size_t done;                /* pipelines and jobs that are over, + 1 for the device itself */
    size_t total;               /* what `done` comes to; 0: the warm-up is disabled */
    uint32_t closing;           /* GPUSYNC__CLOSING: it is being destroyed. See gpusync__come_in */
    uint32_t inside;            /* calls, and tasks that have not returned; destroy waits for 0 */
    uint32_t working;           /* 1: gpusync__warm_up runs. Partner: gpusync__in_job */
    pthread_t thread;           /* its thread; written before `working` becomes 1 */
    /* The pipelines, as in the description; behind them as many libraries: that of the first
       pipeline which needs it, and of others nothing. */
    gpusync__compilation *compilations;
    gpusync_warmup_job *jobs;                      /* copied */
    size_t count;                                  /* of the pipelines */
    size_t job_count;                              /* of the jobs */
    size_t size;                                   /* of all this memory */
    void *dispatch_queues[GPUSYNC__WARMUP_QUEUES]; /* +1 */
    gpusync_queue *queue;         /* gets an empty command buffer; NULL: it is not made yet, or could not be */
    bool own_queue;               /* the program named none: the warm-up makes it, and destroys it */
    gpusync_result device_result; /* how that went; read when all is done */
};

/* Counts a pipeline, a job or the device as done, and signals the next value. Errors are ignored:
   NOT_RISING means that another thread has signalled a higher value, and a timeline that has
   failed, or whose device is lost, has ended its waits. */
static void gpusync__count_done(gpusync_warmup *w)
{
    gpusync_result result = gpusync_timeline_signal(w->progress, GPUSYNC__ADD_SEQ(&w->done, 1) + 1);
    (void)result;
}

/* Ends a compilation with what Metal made (+1), or with its error, or with the text if there is
   neither. Needs a pool. */
static void gpusync__made(gpusync__compilation *c, void *made, void *ns_error, const char *text)
{
    c->made = made;
    if (made)
        return;
    gpusync__own_error(&c->error, GPUSYNC_ERROR_COMPILE, text);
    if (ns_error)
        gpusync__read_ns_error(&c->error, ns_error);
}

/* Compiles the library, unless it is done or the program has given it. Needs a pool. */
static void gpusync__compile_library(const gpusync_warmup *w, gpusync__compilation *l)
{
    typedef void *(*new_library)(void *, void *, void *, void *, void **);
    void *ns_error = NULL, *made = NULL;

    gpusync__lock(&l->mutex);
    if (!l->made && l->error.result == GPUSYNC_OK) {
        if (l->text)
            made = ((new_library)gpusync__send)(w->device->metal, gpusync__sel.newLibrary, l->text, NULL, &ns_error);
        gpusync__made(l, made, ns_error, l->text ? "Metal made no library of the source" : "the source is no UTF-8");
    }
    gpusync__unlock(&l->mutex);
}

/* A task: compiles a pipeline, and its library before. `done` is stored before it counts, so that a
   thread that wakes finds it. `inside` is counted down last, because destroy frees the warm-up
   after that. */
GPUSYNC__RARE void gpusync__compile(void *context)
{
    typedef void *(*new_pipeline)(void *, void *, void *, void **);
    gpusync__compilation *c = (gpusync__compilation *)context;
    gpusync__compilation *l = c->library;
    gpusync_warmup *w = c->warmup;
    void *ns_error = NULL, *function = NULL, *made = NULL;

    if (!GPUSYNC__LOAD_SEQ(&w->closing)) {
        void *pool = gpusync__pool_push();
        gpusync__compile_library(w, l);
        if (l->made && c->text)
            function = GPUSYNC__AS1(void *, void *)(l->made, gpusync__sel.newFunctionWithName, c->text);
        if (function)
            made = ((new_pipeline)gpusync__send)(w->device->metal, gpusync__sel.newPipeline, function, &ns_error);
        gpusync__made(c, made, ns_error,
                      function ? "Metal made no pipeline of it" : "the library has no function of this name");
        if (!l->made)
            c->error = l->error;
        if (!made)
            gpusync__copy_string(c->error.label, sizeof c->error.label, c->text);
        gpusync__release(function);
        gpusync__pool_pop(pool);
        GPUSYNC__STORE_SEQ(&c->done, 1);
        gpusync__count_done(w);
    }
    GPUSYNC__SUB_SEQ(&w->inside, 1);
}

/* Makes a task of pipeline i, or of the earlier one that serves it, once. Returns that one. The
   caller is inside, or is the start: destroy has not found `inside` at 0 yet. */
static gpusync__compilation *gpusync__begin_pipeline(gpusync_warmup *w, size_t i)
{
    gpusync__compilation *c = &w->compilations[w->compilations[i].same_as];
    if (gpusync__swap32(&c->started, 0, 1)) {
        GPUSYNC__ADD_SEQ(&w->inside, 1);
        gpusync__dispatch_async(w->dispatch_queues[1 + i % (GPUSYNC__WARMUP_QUEUES - 1)], c, gpusync__compile);
    }
    return c;
}

/* Makes the device ready:
     1. makes an event for the first timeline,
     2. sends an empty command buffer through the queue.
   The program's hooks may not know this thread, so that this polls, and sleeps for a millisecond
   without hooks, until destroy begins. An error of the second step counts before one of the first.
   */
static gpusync_result gpusync__warm_device(gpusync_warmup *w)
{
    static const struct timespec ms = {0, 1000000};
    static const uint64_t at_once = 0;
    static const gpusync_command_buffer_desc desc = {&at_once, NULL, false, NULL};
    gpusync_ticket ticket = GPUSYNC_NO_TICKET;
    uint64_t raw;
    void *buffer;
    void *event = gpusync__event_take(w->device, &raw);
    if (event)
        gpusync__event_keep(w->device, event, true);
    gpusync_result result = w->own_queue ? gpusync_queue_create(w->device, NULL, &w->queue) : GPUSYNC_OK;
    if (result != GPUSYNC_OK)
        return result;
    while ((result = gpusync_command_buffer(w->queue, &desc, &buffer)) == GPUSYNC_TIMEOUT &&
           !GPUSYNC__LOAD_SEQ(&w->closing))
        nanosleep(&ms, NULL);
    if (result == GPUSYNC_OK && (result = gpusync_commit(w->queue, buffer, &ticket)) != GPUSYNC_OK)
        (void)gpusync_command_buffer_discard(w->queue, buffer);
    if (result == GPUSYNC_OK)
        while ((result = gpusync_poll(w->queue, ticket)) == GPUSYNC_NOT_READY && !GPUSYNC__LOAD_SEQ(&w->closing))
            nanosleep(&ms, NULL);
    if (result > 0)
        return GPUSYNC_ERROR_DESTROYED; /* it came while there was no room, or no end */
    return result == GPUSYNC_OK && !event ? GPUSYNC_ERROR_METAL_NIL : result;
}

/* A task: makes the device ready, and then runs the jobs. When the warm-up is
   destroyed, jobs that have not begun are left out, and count as done. */
GPUSYNC__RARE void gpusync__warm_up(void *warmup)
{
    gpusync_warmup *w = (gpusync_warmup *)warmup;
    w->thread = pthread_self();
    GPUSYNC__STORE_SEQ(&w->working, 1); /* partner: gpusync__in_job */
    w->device_result = gpusync__warm_device(w);
    gpusync__count_done(w);
    for (size_t i = 0; i < w->job_count; i++) {
        if (!GPUSYNC__LOAD_SEQ(&w->closing))
            w->jobs[i].run(w->jobs[i].user);
        gpusync__count_done(w);
    }
    GPUSYNC__STORE_SEQ(&w->working, 0);
    GPUSYNC__SUB_SEQ(&w->inside, 1); /* last: destroy frees the warm-up then */
}

/* Returns whether the calling thread is in a job of the warm-up, which must not wait for the
   warm-up. Not inlined: the C library declares pthread_self constant, and a compiler may reuse its
   result after a hook in which the fiber moved to another thread. */
static __attribute__((noinline)) bool gpusync__in_job(const gpusync_warmup *w)
{
    return GPUSYNC__LOAD_SEQ(&w->working) && pthread_equal(w->thread, pthread_self());
}

/* Returns whether two pipelines are of one library: of the same library object, or of the same
   text. */
static bool gpusync__same_library(const gpusync_pipeline_desc *one, const gpusync_pipeline_desc *other)
{
    return one->library == other->library && (one->source == other->source || strcmp(one->source, other->source) == 0);
}

/* Fills pipeline i, and its library, unless an earlier pipeline has the same. Both searches end at
   the pipeline itself, if not before. Sources are long, and compared only until the library is
   found: then its address tells which pipelines share it. Needs a pool. */
static void gpusync__list_pipeline(gpusync_warmup *w, const gpusync_pipeline_desc *descs, size_t i)
{
    const gpusync_pipeline_desc *desc = &descs[i];
    gpusync__compilation *c = &w->compilations[i];
    size_t same = 0;

    while (!gpusync__same_library(desc, &descs[same]))
        same++;
    gpusync__compilation *l = &w->compilations[w->count + same];
    if (same == i) {
        l->made = gpusync__retain(desc->library);
        l->text = desc->library ? NULL : gpusync__retain(gpusync__string(desc->source));
    }
    c->warmup = w;
    c->library = l;
    c->text = gpusync__retain(gpusync__label(desc->function));
    while (w->compilations[same].library != l || strcmp(descs[same].function, desc->function) != 0)
        same++;
    c->same_as = same;
    w->total += same == i;
}

/* Makes the warm-up with its lists, and begins nothing. A disabled one has no jobs. */
static gpusync_result gpusync__warmup_new(gpusync_device *dev, const gpusync_warmup_desc *desc, gpusync_warmup **out)
{
    static const gpusync_timeline_desc progress = {0, "warm-up", NULL, false};
    size_t jobs = desc->disabled ? 0 : desc->job_count;
    size_t count = desc->pipeline_count;
    size_t size = sizeof(gpusync_warmup) + 2 * count * sizeof(gpusync__compilation) + jobs * sizeof(gpusync_warmup_job);
    gpusync_warmup *w = (gpusync_warmup *)gpusync__allocate(dev, size, 128);

    if (!w)
        return GPUSYNC_ERROR_OUT_OF_MEMORY;
    gpusync_result result = gpusync_timeline_create(dev, &progress, &w->progress);
    if (result != GPUSYNC_OK) {
        gpusync__free(dev, w, size);
        return result;
    }
    w->device = dev;
    w->queue = desc->queue;
    w->own_queue = !desc->queue;
    w->size = size;
    w->count = count;
    w->job_count = jobs;
    w->compilations = (gpusync__compilation *)(void *)(w + 1);
    w->jobs = (gpusync_warmup_job *)(void *)(w->compilations + 2 * count);
    if (jobs)
        memcpy(w->jobs, desc->jobs, jobs * sizeof *w->jobs);
    void *pool = gpusync__pool_push();
    for (size_t i = 0; i < count; i++)
        gpusync__list_pipeline(w, desc->pipelines, i);
    gpusync__pool_pop(pool);
    w->total = desc->disabled ? 0 : w->total + jobs + 1;
    for (size_t n = 0; n < GPUSYNC__WARMUP_QUEUES; n++)
        w->dispatch_queues[n] = gpusync__dispatch_queue_create(
            "gpusync warm-up", gpusync__dispatch_attr_with_qos(NULL, GPUSYNC__QOS_USER_INITIATED, 0));
    *out = w;
    return GPUSYNC_OK;
}

/* Returns whether each pipeline has a text or a library, not both, and the counts are so small that
   gpusync__warmup_new can multiply them. */
static bool gpusync__warmup_is_valid(const gpusync_device *device, const gpusync_warmup_desc *desc)
{
    bool valid = (desc->pipelines || !desc->pipeline_count) && (desc->jobs || !desc->job_count) &&
                 (!desc->queue || desc->queue->device == device) &&
                 (desc->pipeline_count | desc->job_count) <= SIZE_MAX / 4096;

    for (size_t i = 0; valid && i < desc->pipeline_count; i++)
        valid = desc->pipelines[i].function && !desc->pipelines[i].source != !desc->pipelines[i].library;
    for (size_t i = 0; valid && i < desc->job_count; i++)
        valid = desc->jobs[i].run != NULL;
    return valid;
}

/* Waits for the pipeline (NULL: everything). OK if it is done, well or badly. The caller is inside,
   or is the start. The count is read before the look: an end after the look raises the timeline
   above that, so that the wait does not sleep through an end. */
static gpusync_result gpusync__await_warm(gpusync_warmup *w, const gpusync__compilation *c, uint64_t timeout_ns)
{
    uint64_t deadline = gpusync__deadline(timeout_ns);
    gpusync_result result = GPUSYNC_OK;

    for (;;) {
        size_t done = GPUSYNC__LOAD_SEQ(&w->done);
        if (c ? GPUSYNC__LOAD_SEQ(&c->done) != 0 : done >= w->total)
            return GPUSYNC_OK;
        if (result != GPUSYNC_OK)
            return result;
        result = gpusync_timeline_wait(w->progress, done + 1, gpusync__time_left(deadline), NULL);
    }
}

/* *out is set before anything begins, because a job may use the warm-up. With `blocking` this
   returns only whether everything is done; later waits return how it went. */
GPUSYNC_API gpusync_result gpusync_warmup_start(gpusync_device *device, const gpusync_warmup_desc *desc,
                                                gpusync_warmup **out)
{
    static const gpusync_warmup_desc none = {NULL, 0, NULL, 0, NULL, false, false};
    gpusync_warmup *w;

    if (out)
        *out = NULL;
    if (!desc)
        desc = &none;
    if (!device || !out || !gpusync__warmup_is_valid(device, desc))
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    if (desc->queue && desc->queue->metal4)
        return GPUSYNC_ERROR_UNSUPPORTED;
    gpusync_result result = gpusync__warmup_new(device, desc, &w);
    if (result != GPUSYNC_OK)
        return result;
    *out = w;
    if (desc->disabled)
        return GPUSYNC_OK;
    GPUSYNC__ADD_SEQ(&w->inside, 1);
    gpusync__dispatch_async(w->dispatch_queues[0], w, gpusync__warm_up);
    for (size_t i = 0; i < w->count; i++)
        gpusync__begin_pipeline(w, i);
    if (!desc->blocking)
        return GPUSYNC_OK;
    unsigned rounds = 0;
    while ((result = gpusync__await_warm(w, NULL, GPUSYNC_FOREVER)) == GPUSYNC_ERROR_OUT_OF_MEMORY)
        gpusync__linger(device, NULL, &rounds); /* no memory to sleep with */
    return result;
}

/* Both counts are of one moment: `done` is read once. It passes the total of a disabled warm-up, whose
   pipelines count only for the waits. */
GPUSYNC_API gpusync_result gpusync_warmup_poll(gpusync_warmup *warmup, size_t *done, size_t *total)
{
    size_t all = warmup ? warmup->total : 0;
    size_t present = warmup ? GPUSYNC__LOAD_SEQ(&warmup->done) : 0;
    bool over = present >= all;
    if (done)
        *done = over ? all : present;
    if (total)
        *total = all;
    if (!warmup)
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    return over ? GPUSYNC_OK : GPUSYNC_NOT_READY;
}

/* The first error counts: the device's, then those of the pipelines in the order of the list. One
   that an earlier pipeline serves has none. A disabled warm-up looks at none: a task may write it. */
GPUSYNC_API gpusync_result gpusync_warmup_wait(gpusync_warmup *warmup, uint64_t timeout_ns)
{
    if (!warmup)
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    if (gpusync__come_in(&warmup->inside, &warmup->closing, GPUSYNC__CLOSING))
        return GPUSYNC_ERROR_DESTROYED;
    gpusync_result result =
        gpusync__in_job(warmup) ? GPUSYNC_ERROR_WOULD_DEADLOCK : gpusync__await_warm(warmup, NULL, timeout_ns);
    if (result == GPUSYNC_OK)
        result = warmup->device_result;
    for (size_t i = 0; i < warmup->count && result == GPUSYNC_OK && warmup->total; i++)
        result = warmup->compilations[i].error.result;
    GPUSYNC__SUB_SEQ(&warmup->inside, 1);
    return result;
}

/* For a disabled warm-up this makes a task of the pipeline. */
GPUSYNC_API gpusync_result gpusync_warmup_pipeline(gpusync_warmup *warmup, size_t i, uint64_t timeout_ns, void **out,
                                                   gpusync_error *error)
{
    if (out)
        *out = NULL;
    if (!warmup || !out || i >= warmup->count)
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    if (gpusync__come_in(&warmup->inside, &warmup->closing, GPUSYNC__CLOSING))
        return GPUSYNC_ERROR_DESTROYED;
    const gpusync__compilation *c = gpusync__begin_pipeline(warmup, i);
    gpusync_result result = gpusync__await_warm(warmup, c, timeout_ns);
    if (result == GPUSYNC_OK) {
        *out = c->made;
        result = c->error.result;
        if (error && result != GPUSYNC_OK)
            *error = c->error;
    }
    GPUSYNC__SUB_SEQ(&warmup->inside, 1);
    return result;
}

/* The timeline fails first, which ends the waits inside. It is destroyed last: every end is counted
   there, and it may be the last object of a device that is to go. The warm-up's own queue is
   destroyed when nothing is inside, because gpusync__warm_device uses it until then. */
GPUSYNC_API gpusync_result gpusync_warmup_destroy(gpusync_warmup *warmup)
{
    gpusync_warmup *w = warmup;
    gpusync_error gone;
    unsigned rounds = 0;

    if (!w)
        return GPUSYNC_OK;
    if (gpusync__in_callback() || gpusync__in_job(w))
        return GPUSYNC_ERROR_WOULD_DEADLOCK;
    GPUSYNC__STORE_SEQ(&w->closing, GPUSYNC__CLOSING);
    gpusync__own_error(&gone, GPUSYNC_ERROR_DESTROYED, "the warm-up was destroyed");
    (void)gpusync_timeline_fail(w->progress, &gone);
    while (GPUSYNC__LOAD_SEQ(&w->inside))
        gpusync__linger(w->device, NULL, &rounds);
    if (w->own_queue)
        (void)gpusync_queue_destroy(w->queue);
    for (size_t n = 0; n < GPUSYNC__WARMUP_QUEUES; n++)
        gpusync__dispatch_release(w->dispatch_queues[n]);
    void *pool = gpusync__pool_push();
    for (size_t i = 0; i < 2 * w->count; i++) {
        gpusync__release(w->compilations[i].text);
        gpusync__release(w->compilations[i].made);
    }
    gpusync__pool_pop(pool);
    gpusync_timeline *progress = w->progress;
    gpusync__free(w->device, w, w->size);
    return gpusync_timeline_destroy(progress);
}

/* ------------------------------------------------------------------------------ >>insight --
   The trace and the report. */

/* Returns an event of the trace with the present time. number: a ticket of the queue, or a value of
   the timeline if the queue is NULL. label: NULL or empty for that of the queue or timeline. */
GPUSYNC__RARE gpusync_trace_event gpusync__trace_event(gpusync_trace_kind kind, const gpusync_queue *q,
                                                       const gpusync_timeline *t, uint64_t number, const char *label)
{
    gpusync_trace_event event;
    memset(&event, 0, sizeof event);
    event.kind = kind;
    event.time_ns = gpusync_now_ns();
    event.queue = q;
    event.timeline = t;
    if (q)
        event.ticket = number;
    else
        event.value = number;
    event.label = label && label[0] ? label : q ? q->label : t ? t->label : "";
    return event;
}

/* Traces an event of a ticket. */
GPUSYNC__RARE void gpusync__trace_ticket(const gpusync_queue *q, gpusync_trace_kind kind, uint64_t ticket,
                                         const char *label, uint64_t time_ns)
{
    gpusync_trace_event event = gpusync__trace_event(kind, q, NULL, ticket, label);
    event.time_ns = time_ns;
    q->device->trace_fn(q->device->trace_user, &event);
}

GPUSYNC__RARE void gpusync__trace_end(const gpusync_queue *q, uint64_t ticket, const char *label,
                                      const gpusync__outcome *outcome)
{
    gpusync_trace_event event = gpusync__trace_event(GPUSYNC_TRACE_COMPLETED, q, NULL, ticket, label);
    event.result = outcome->error ? outcome->error->result : GPUSYNC_OK;
    event.gpu_start_s = outcome->gpu_start;
    event.gpu_end_s = outcome->gpu_end;
    q->device->trace_fn(q->device->trace_user, &event);
}

GPUSYNC__RARE void gpusync__trace_signal(const gpusync_timeline *t, uint64_t value)
{
    gpusync_trace_event event = gpusync__trace_event(GPUSYNC_TRACE_SIGNAL, NULL, t, value, NULL);
    t->device->trace_fn(t->device->trace_user, &event);
}

/* Traces a callback that is about to run: of a submission, or a registered one. */
GPUSYNC__RARE void gpusync__trace_callback(gpusync_device *dev, const gpusync__due *due)
{
    const gpusync__submission *s = (const gpusync__submission *)(const void *)due;
    const gpusync__callback *callback = (const gpusync__callback *)(const void *)due;
    gpusync_trace_event event =
        due->done ? gpusync__trace_event(GPUSYNC_TRACE_CALLBACK, s->work.queue, NULL, s->work.ticket, s->label)
                  : gpusync__trace_event(GPUSYNC_TRACE_CALLBACK, callback->goal.queue, callback->goal.timeline,
                                         callback->goal.ticket, NULL);
    event.result = due->error ? due->error->result : GPUSYNC_OK;
    dev->trace_fn(dev->trace_user, &event);
}

/* Traces a wait for this goal, or for several points if it is NULL. how: the counter of what ended
   the wait; NULL: the wait begins. */
GPUSYNC__RARE void gpusync__trace_wait(gpusync_device *dev, const gpusync__goal *goal, const gpusync_stats *stats,
                                       const uint64_t *how, gpusync_result result)
{
    gpusync_trace_kind kind = how ? GPUSYNC_TRACE_WAIT_END : GPUSYNC_TRACE_WAIT_BEGIN;
    gpusync_trace_event event = goal ? gpusync__trace_event(kind, goal->queue, goal->timeline, goal->ticket, NULL)
                                     : gpusync__trace_event(kind, NULL, NULL, 0, NULL);
    uint64_t end = goal && !how ? gpusync__forecast_goal(goal).end : 0;

    if (end > event.time_ns)
        event.expected_ns = end - event.time_ns;
    event.result = result;
    if (how)
        event.how = (gpusync_wait_end)(how - &stats->waits_inline);
    dev->trace_fn(dev->trace_user, &event);
}

/* Returns whether a handler of the queue has begun, and may still call the trace function. */
GPUSYNC__RARE bool gpusync__is_handling(gpusync_queue *q)
{
    gpusync__slot *slot;
    GPUSYNC__LOCK(q);
    bool handling = GPUSYNC__LOAD_SEQ(&q->leaving) != 0;
    GPUSYNC__EACH_IN_FLIGHT(slot, q)
        handling = handling || gpusync__state_of(slot) == GPUSYNC__RUNNING;
    GPUSYNC__UNLOCK(q);
    return handling;
}

/* A wait for handlers ends when they have begun. So this call waits until they have left. Queues that
   are made later read the device's trace. */
GPUSYNC_API gpusync_result gpusync_set_trace(gpusync_device *device, gpusync_trace_fn fn, void *user)
{
    static const gpusync__tracing tracing = {gpusync__trace_ticket, gpusync__trace_end, gpusync__trace_signal,
                                             gpusync__trace_callback, gpusync__trace_wait};
    unsigned rounds = 0;
    gpusync_queue *q;
    bool handling;

    if (!device)
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    for (;;) {
        handling = false;
        gpusync__lock(&device->lock);
        GPUSYNC__EACH_QUEUE(q, device)
            handling = handling || gpusync__is_handling(q);
        if (!handling)
            break;
        gpusync__unlock(&device->lock);
        gpusync__linger(device, NULL, &rounds);
    }
    device->trace_fn = fn;
    device->trace_user = user;
    device->trace = fn ? &tracing : NULL;
    GPUSYNC__EACH_QUEUE(q, device)
        gpusync__flag_trace(q);
    gpusync__unlock(&device->lock);
    return GPUSYNC_OK;
}

/* The report, from the outside in:

       gpusync 0.4.0 device
         queue 1 'label': ...                 every queue that does not close, one after the other,
                                              entered
           ticket 7 'label': ...              what has not ended, counted in its slot
             waits for value 3 of ...         of a submission; its command buffers come before that
           a wait for ...                     that sleeps, under the wait list's lock
         timeline 1 'label': ...              every timeline, under the device's lock
           a wait for ...

   The program goes on meanwhile: each line is true when it is written, and no two are of one
   moment. Metal gives labels and states of command buffers; no message is sent under a lock. */

/* Where gpusync_report writes, in pieces. Each ends with a text of the library's, and with its only
   line end, if it has any. The longest has 400 bytes: numbers, and the message of an error or the
   label of a queue. */
typedef struct gpusync__writer {
    char *text;    /* the program's; may be NULL where `size` is 0 */
    size_t size;   /* of it, with the terminator */
    size_t length; /* of all that was written, also of what had no room */
} gpusync__writer;

/* Writes a piece. Control characters, which labels may have, become blanks, except the line end. */
static __attribute__((format(printf, 2, 3))) void gpusync__write(gpusync__writer *writer, const char *format, ...)
{
    char piece[512];
    va_list arguments;

    va_start(arguments, format);
    size_t length = (size_t)vsnprintf(piece, sizeof piece, format, arguments);
    va_end(arguments);
    gpusync__make_plain(piece, length - (piece[length - 1] == '\n'));
    if (writer->length < writer->size)
        gpusync__copy_text(writer->text + writer->length, writer->size - writer->length, piece);
    writer->length += length;
}

/* Returns the milliseconds since a time of gpusync_now_ns. */
static double gpusync__ms_since(uint64_t since_ns)
{
    return (double)(gpusync_now_ns() - since_ns) / 1e6;
}

/* Writes a command buffer with a ticket of its own, or, indented once more, a part of a submission,
   since the time. The names are those of MTLCommandBufferStatus. */
GPUSYNC__RARE void gpusync__write_buffer(gpusync__writer *out, const gpusync_queue *q, const gpusync__view *view,
                                         uint64_t since_ns)
{
    static const char *const states[] = {"not enqueued", "enqueued", "committed", "scheduled", "completed", "error"};

    /* of Metal 4 nothing more is known */
    unsigned long status = q->metal4 ? GPUSYNC__STATUS_COMMITTED : gpusync__status(view->buffer);
    char label[64];
    gpusync__read_label(view->buffer, label, sizeof label);
    gpusync__write(out, "    %sticket %" PRIu64 " '%s': %s for %.1f ms\n", view->kind == GPUSYNC__PART ? "  " : "",
                   view->ticket, label, status <= 5 ? states[status] : "?", gpusync__ms_since(since_ns));
}

/* Writes what is to signal the value. waits: the submission that waits for the value, which may
   have pending signals of its own on the same timeline. Under the graph's lock. */
GPUSYNC__RARE void gpusync__write_signal(gpusync__writer *out, const gpusync_timeline *t, uint64_t value,
                                         const gpusync__submission *waits)
{
    const gpusync__link *cover = gpusync__cover(t, value);
    bool kept = value <= t->kept && t->signal_count && !(cover && cover->node.number == value);
    if (kept) { /* the value is signalled, and the lowest pending signal keeps it back */
        cover = gpusync__cover(t, 0);
        gpusync__write(out, "signalled, but kept back by value %" PRIu64 ", ", cover->node.number);
    }
    const gpusync__submission *s = cover ? cover->submission : NULL;

    if (s && s->open_buffer)
        gpusync__write(out, "pending in a command buffer of queue %" PRIu64 " (%p) that is not committed\n",
                       s->work.queue->place.number, s->open_buffer);
    else if (s && (kept || s != waits))
        gpusync__write(out, "pending in ticket %" PRIu64 " of queue %" PRIu64 "%s\n",
                       GPUSYNC__LOAD_SEQ(&s->work.ticket), s->work.queue->place.number,
                       cover->issued ? "" : ", which is held");
    else
        gpusync__write(out, gpusync__is_outside(t) ? "others signal it\n" : "no other work is to signal it\n");
}

/* Writes a link if it is a wait that is not over, or a signal that stays behind another one. The
   caller has a reference to the submission, which keeps the link and its timeline. */
GPUSYNC__RARE void gpusync__write_link(gpusync__writer *out, gpusync__submission *s, const gpusync__link *link)
{
    const gpusync_timeline *t = link->timeline;
    GPUSYNC__LOCK_GRAPH(s->device);
    bool waits = !link->signal && link->listed;
    bool stays = link->signal && link->holds;
    uint64_t number = stays ? gpusync__behind(link) : link->node.number;
    if (stays || (waits && t)) {
        gpusync__write(out, "      waits for value %" PRIu64 " of timeline %" PRIu64 " '%s': ", number, t->place.number,
                       t->label);
        gpusync__write_signal(out, t, number, s);
    } else if (waits) {
        gpusync__write(out, "      waits for ticket %" PRIu64 " of queue %" PRIu64 "\n", number, link->queue_number);
    }
    GPUSYNC__UNLOCK_GRAPH(s->device);
}

/* Writes a submission: held, or submitted with those of its command buffers that have not ended. A
   held one without a label is written with that of its first command buffer. The caller has a
   reference. */
GPUSYNC__RARE void gpusync__write_submission(gpusync__writer *out, gpusync__submission *s)
{
    const gpusync__slot *work = &s->work;
    bool issued = gpusync__is_issued(s);
    uint64_t since = GPUSYNC__LOAD_SEQ(&work->since_ns);
    char label[64];
    gpusync__copy_text(label, sizeof label, s->label);
    gpusync__view part;

    if (!issued && !label[0] && s->part_count && gpusync__view_part(work->queue, s, 0, &part)) {
        gpusync__read_label(part.buffer, label, sizeof label);
        gpusync__view_end(work->queue, &part);
    }
    GPUSYNC__LOCK_GRAPH(s->device); /* also for the links below: it has them once this is taken */
    const char *stands = s->stage == GPUSYNC__HELD ? "held" : "submitted";
    if (s->stage == GPUSYNC__OVER && !issued)
        stands = "given up";
    GPUSYNC__UNLOCK_GRAPH(s->device);
    gpusync__write(out, "    ticket %" PRIu64 " '%s': %s for %.1f ms\n", work->ticket, label, stands,
                   gpusync__ms_since(since));
    for (uint32_t i = issued ? s->first_part : s->part_count; i < s->part_count; i++) {
        if (!gpusync__view_part(work->queue, s, i, &part))
            continue;
        gpusync__write_buffer(out, work->queue, &part, since);
        gpusync__view_end(work->queue, &part);
    }
    for (const gpusync__link *link = s->links.first; link; link = link->next)
        gpusync__write_link(out, s, link);
}

/* Writes a wait that sleeps. Under the graph's lock, and that of the wait list. */
GPUSYNC__RARE void gpusync__write_wait(gpusync__writer *out, const gpusync__wait_entry *entry)
{
    const gpusync__goal *goal = &entry->goal;
    gpusync_timeline *t = goal->timeline;
    gpusync__write(out, "    a wait for %s%s", goal->handlers && gpusync__met(goal) ? "the handler of " : "",
                   gpusync__what[goal->kind]);
    if (goal->kind != GPUSYNC__ROOM)
        gpusync__write(out, " %" PRIu64, goal->ticket);
    gpusync__write(out, t ? ", asleep for %.1f ms: " : ", asleep for %.1f ms\n",
                   gpusync__ms_since(entry->waiter->since_ns));
    if (t)
        gpusync__write_signal(out, t, goal->ticket, NULL);
}

/* Writes the waits that sleep on a wait list. Links and callbacks stand there, too, and are left
   out: a submission's links are written with it. What ends those waits has to wait for the lock
   meanwhile: for less than a millisecond, unless a thousand sleep. */
static void gpusync__write_waits(gpusync__writer *out, gpusync_device *dev, gpusync__wait_list *waits)
{
    GPUSYNC__LOCK_GRAPH(dev); /* over what is to signal a value */
    gpusync__lock(&waits->lock);
    for (int list = 0; list < GPUSYNC__TOLD; list++) /* what is TOLD is over */
        for (const gpusync__node *node = waits->lists[list].end[0]; node; node = node->beside[1])
            if (!node->told)
                gpusync__write_wait(out, (const gpusync__wait_entry *)(const void *)node);
    gpusync__unlock(&waits->lock);
    GPUSYNC__UNLOCK_GRAPH(dev);
}

/* Writes a queue, which the caller has entered, with its tickets that have not ended. A ticket
   without a slot has ended meanwhile. */
static void gpusync__write_queue(gpusync__writer *out, gpusync_queue *q)
{
    uint64_t done = gpusync__ended_to(q);
    uint64_t last = gpusync__committed(q);
    char most[16] = "";

    if (q->limit != UINT32_MAX)
        snprintf(most, sizeof most, " of %u", q->limit);
    gpusync__write(out,
                   "  queue %" PRIu64 " '%s': %scommitted %" PRIu64 ", completed %" PRIu64 ", failed %" PRIu64
                   ", buffers %u%s%s%s\n",
                   q->place.number, q->label, q->metal4 ? "Metal 4, " : "", last, done,
                   __atomic_load_n(&q->stats.failures, __ATOMIC_RELAXED), gpusync__outstanding(q), most,
                   gpusync_is_idle(q) ? ", idle" : "", GPUSYNC__LOAD_SEQ(&q->flags) & GPUSYNC__LOST ? ", lost" : "");
    GPUSYNC__LOCK(q);
    uint64_t mean = gpusync__usual(q);
    GPUSYNC__UNLOCK(q);
    if (mean)
        gpusync__write(out, "    a ticket takes %.1f us\n", (double)mean / 1e3);
    GPUSYNC__EACH_OPEN(ticket, q, last) {
        gpusync__view view;
        if (!gpusync__view_ticket(q, ticket, &view))
            continue;
        if (view.s)
            gpusync__write_submission(out, view.s);
        else
            gpusync__write_buffer(out, q, &view, view.since_ns);
        gpusync__view_end(q, &view);
    }
    gpusync__write_waits(out, q->device, &q->waits);
}

/* Queues are entered one after the other, so no lock is held while Metal is asked.
   The timelines are written under the device's lock, so that none goes meanwhile: no message goes
   to Metal there. The error of one that has failed changes no more. */
GPUSYNC_API size_t gpusync_report(gpusync_device *device, char *buffer, size_t size)
{
    gpusync__writer out = {buffer, buffer ? size : 0, 0};
    gpusync_queue *q = NULL;
    gpusync_timeline *t;

    if (out.size)
        buffer[0] = '\0';
    if (!device)
        return 0;

    gpusync__write(&out, "gpusync %d.%d.%d device%s\n", GPUSYNC_VERSION_MAJOR, GPUSYNC_VERSION_MINOR,
                   GPUSYNC_VERSION_PATCH, gpusync_device_is_lost(device) ? ", lost" : "");
    while ((q = gpusync__next_queue(device, q, 0)) != NULL)
        gpusync__write_queue(&out, q);
    gpusync__lock(&device->lock);
    GPUSYNC__EACH_QUEUE(q, device)
        if (GPUSYNC__LOAD_SEQ(&q->flags) & GPUSYNC__CLOSING)
            gpusync__write(
                &out, "  queue %" PRIu64 " '%s': is being destroyed, committed %" PRIu64 ", completed %" PRIu64 "\n",
                q->place.number, q->label, gpusync__committed(q), gpusync__ended_to(q));
    GPUSYNC__EACH_TIMELINE(t, device) {
        gpusync__write(&out, "  timeline %" PRIu64 " '%s': ", t->place.number, t->label);
        uint64_t value = gpusync__value_of(t);
        if (value != GPUSYNC__FAILED_VALUE)
            gpusync__write(&out, "value %" PRIu64, value);
        else
            gpusync__write(&out, "failed: %s (%s)", gpusync_result_string(t->error.result), t->error.message);
        gpusync__write(&out, "%s\n", gpusync__is_outside(t) ? ", signalled by others too" : "");
        gpusync__write_waits(&out, device, &t->waits);
    }
    gpusync__unlock(&device->lock);
    return out.length;
}

GPUSYNC_API size_t gpusync_queue_report(gpusync_queue *queue, char *buffer, size_t size)
{
    gpusync__writer out = {buffer, buffer ? size : 0, 0};
    if (out.size)
        buffer[0] = '\0';
    if (!queue || !gpusync__enter(queue))
        return 0;
    gpusync__write_queue(&out, queue);
    gpusync__leave(queue);
    return out.length;
}

#ifdef __cplusplus
}
#endif

#else /* GPUSYNC_OBJC */

/* ------------------------------------------------------------------------------- >>stubs --
   No Metal here: every call says so. Where a call has an `out`, *out becomes 0 or NULL. The public
   declarations have given all of these the linkage of C. They use none of their parameters, and no
   compiler is to complain of that. */

#include <string.h>

#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#elif defined(_MSC_VER)
#pragma warning(push)
#pragma warning(disable : 4100)
#endif

/* clang-format off */
#define GPUSYNC__STUB(declaration)                                                                   \
    GPUSYNC_API gpusync_result declaration                                                           \
    {                                                                                                \
        return GPUSYNC_ERROR_UNSUPPORTED;                                                            \
    }
#define GPUSYNC__STUB_DESTROY(declaration, object)                                                   \
    GPUSYNC_API gpusync_result declaration                                                           \
    {                                                                                                \
        return object ? GPUSYNC_ERROR_UNSUPPORTED : GPUSYNC_OK;                                      \
    }
#define GPUSYNC__STUB_OUT(declaration)                                                               \
    GPUSYNC_API gpusync_result declaration                                                           \
    {                                                                                                \
        if (out)                                                                                     \
            memset(out, 0, sizeof *out);                                                             \
        return GPUSYNC_ERROR_UNSUPPORTED;                                                            \
    }
/* clang-format on */
GPUSYNC__STUB_OUT(gpusync_device_create(const gpusync_device_desc *desc, gpusync_device **out))
GPUSYNC__STUB_DESTROY(gpusync_device_destroy(gpusync_device *device), device)
GPUSYNC__STUB_OUT(gpusync_queue_create(gpusync_device *device, const gpusync_queue_desc *desc, gpusync_queue **out))
GPUSYNC__STUB_DESTROY(gpusync_queue_destroy(gpusync_queue *queue), queue)
GPUSYNC__STUB_DESTROY(gpusync_queue_destroy_now(gpusync_queue *queue), queue)
GPUSYNC__STUB(gpusync_queue_clear_failure(gpusync_queue *queue))
GPUSYNC__STUB_DESTROY(gpusync_queue_destroy_later(gpusync_queue *queue, gpusync_destroyed_fn destroyed, void *user),
                      queue)
GPUSYNC__STUB_DESTROY(gpusync_device_destroy_later(gpusync_device *device, gpusync_destroyed_fn destroyed, void *user),
                      device)
GPUSYNC__STUB_DESTROY(gpusync_timeline_destroy_later(gpusync_timeline *timeline, gpusync_destroyed_fn destroyed,
                                                     void *user),
                      timeline)
GPUSYNC__STUB_OUT(gpusync_command_buffer(gpusync_queue *queue, const gpusync_command_buffer_desc *desc, void **out))
GPUSYNC__STUB(gpusync_command_buffer_discard(gpusync_queue *queue, void *command_buffer))
GPUSYNC__STUB_OUT(gpusync_commit(gpusync_queue *queue, void *command_buffer, gpusync_ticket *out))
GPUSYNC__STUB_OUT(gpusync_commit4(gpusync_queue *queue, void *const *command_buffers, size_t count,
                                  gpusync_ticket *out))
GPUSYNC__STUB_OUT(gpusync_track(gpusync_queue *queue, void *command_buffer, gpusync_ticket *out))
GPUSYNC__STUB(gpusync_untrack(gpusync_queue *queue, gpusync_ticket ticket))
GPUSYNC__STUB(gpusync_poll(gpusync_queue *queue, gpusync_ticket ticket))
GPUSYNC__STUB(gpusync_wait(gpusync_queue *queue, gpusync_ticket ticket, uint64_t timeout_ns))
GPUSYNC__STUB(gpusync_wait_ex(gpusync_queue *queue, gpusync_ticket ticket, uint64_t timeout_ns,
                              const gpusync_wait_options *options))
GPUSYNC__STUB(gpusync_queue_wait(gpusync_queue *queue, uint64_t timeout_ns))
GPUSYNC__STUB(gpusync_device_wait(gpusync_device *device, uint64_t timeout_ns, const gpusync_wait_options *options))
GPUSYNC__STUB_OUT(gpusync_wait_many(const gpusync_point *points, size_t count, gpusync_wait_for how,
                                    uint64_t timeout_ns, const gpusync_wait_options *options, size_t *out))
GPUSYNC__STUB_OUT(gpusync_timeline_create(gpusync_device *device, const gpusync_timeline_desc *desc,
                                          gpusync_timeline **out))
GPUSYNC__STUB_DESTROY(gpusync_timeline_destroy(gpusync_timeline *timeline), timeline)
GPUSYNC__STUB_OUT(gpusync_timeline_query(gpusync_timeline *timeline, uint64_t *out))
GPUSYNC__STUB(gpusync_timeline_signal(gpusync_timeline *timeline, uint64_t value))
GPUSYNC__STUB(gpusync_timeline_fail(gpusync_timeline *timeline, const gpusync_error *reason))
GPUSYNC__STUB(gpusync_timeline_wait(gpusync_timeline *timeline, uint64_t value, uint64_t timeout_ns,
                                    const gpusync_wait_options *options))
GPUSYNC__STUB(gpusync_encode_wait(gpusync_queue *queue, void *command_buffer, gpusync_point point))
GPUSYNC__STUB(gpusync_encode_signal(gpusync_queue *queue, void *command_buffer, gpusync_point point))
GPUSYNC__STUB_OUT(gpusync_submit(gpusync_queue *queue, const gpusync_submission *submission, gpusync_ticket *out))
GPUSYNC__STUB(gpusync_cancel_held(gpusync_queue *queue))
GPUSYNC__STUB(gpusync_release_after(gpusync_point point, void *object))
GPUSYNC__STUB(gpusync_on_done(gpusync_point point, gpusync_done_fn fn, void *user))
GPUSYNC__STUB_OUT(gpusync_dispatch(gpusync_device *device, size_t max, size_t *out))
GPUSYNC__STUB_OUT(gpusync_warmup_start(gpusync_device *device, const gpusync_warmup_desc *desc, gpusync_warmup **out))
GPUSYNC__STUB(gpusync_warmup_poll(gpusync_warmup *warmup, size_t *done, size_t *total))
GPUSYNC__STUB(gpusync_warmup_wait(gpusync_warmup *warmup, uint64_t timeout_ns))
GPUSYNC__STUB_OUT(gpusync_warmup_pipeline(gpusync_warmup *warmup, size_t i, uint64_t timeout_ns, void **out,
                                          gpusync_error *error))
GPUSYNC__STUB_DESTROY(gpusync_warmup_destroy(gpusync_warmup *warmup), warmup)
GPUSYNC__STUB(gpusync_next_error(gpusync_queue *queue, uint64_t *cursor, gpusync_error *error))
GPUSYNC__STUB_OUT(gpusync_get_info(gpusync_queue *queue, gpusync_ticket ticket, gpusync_ticket_info *out))
GPUSYNC__STUB(gpusync_set_trace(gpusync_device *device, gpusync_trace_fn fn, void *user))
GPUSYNC__STUB(gpusync_get_stats(const gpusync_queue *queue, gpusync_stats *stats))
GPUSYNC__STUB(gpusync_device_get_stats(gpusync_device *device, gpusync_stats *stats))
#undef GPUSYNC__STUB
#undef GPUSYNC__STUB_DESTROY
#undef GPUSYNC__STUB_OUT

GPUSYNC_API bool gpusync_device_is_lost(const gpusync_device *device)
{
    return false;
}
GPUSYNC_API void *gpusync_device_metal(const gpusync_device *device)
{
    return 0;
}
GPUSYNC_API void *gpusync_queue_metal(const gpusync_queue *queue)
{
    return 0;
}
GPUSYNC_API void *gpusync_timeline_metal(gpusync_timeline *timeline, uint64_t *base)
{
    if (base)
        *base = 0;
    return 0;
}
GPUSYNC_API uint64_t gpusync_now_ns(void)
{
    return 0;
}
GPUSYNC_API uint32_t gpusync_version(void)
{
    return GPUSYNC_VERSION;
}
GPUSYNC_API size_t gpusync_report(gpusync_device *device, char *buffer, size_t size)
{
    if (buffer && size)
        buffer[0] = '\0';
    return 0;
}
GPUSYNC_API size_t gpusync_queue_report(gpusync_queue *queue, char *buffer, size_t size)
{
    return gpusync_report(0, buffer, size);
}

#if defined(__GNUC__)
#pragma GCC diagnostic pop
#elif defined(_MSC_VER)
#pragma warning(pop)
#endif

#endif /* GPUSYNC_OBJC */

/* The inline calls as symbols, for languages that cannot read this header. C++ makes one only where
   a program takes the address. */
#ifndef GPUSYNC_STATIC
#ifdef __cplusplus
extern "C" bool (*const gpusync__inline_is_idle)(const gpusync_queue *);
extern "C" bool (*const gpusync__inline_is_done)(const gpusync_queue *, gpusync_ticket);
extern "C" uint64_t (*const gpusync__inline_in_flight)(const gpusync_queue *);
extern "C" gpusync_point (*const gpusync__inline_at_ticket)(gpusync_queue *, gpusync_ticket);
extern "C" gpusync_point (*const gpusync__inline_at_value)(gpusync_timeline *, uint64_t);
bool (*const gpusync__inline_is_idle)(const gpusync_queue *) = gpusync_is_idle;
bool (*const gpusync__inline_is_done)(const gpusync_queue *, gpusync_ticket) = gpusync_is_done;
uint64_t (*const gpusync__inline_in_flight)(const gpusync_queue *) = gpusync_in_flight;
gpusync_point (*const gpusync__inline_at_ticket)(gpusync_queue *, gpusync_ticket) = gpusync_at_ticket;
gpusync_point (*const gpusync__inline_at_value)(gpusync_timeline *, uint64_t) = gpusync_at_value;
#else
extern inline bool gpusync_is_idle(const gpusync_queue *queue);
extern inline bool gpusync_is_done(const gpusync_queue *queue, gpusync_ticket ticket);
extern inline uint64_t gpusync_in_flight(const gpusync_queue *queue);
extern inline gpusync_point gpusync_at_ticket(gpusync_queue *queue, gpusync_ticket ticket);
extern inline gpusync_point gpusync_at_value(gpusync_timeline *timeline, uint64_t value);
#endif

/* Plain symbols of the calls whose symbols contain the version. */
#ifdef __cplusplus
extern "C" {
#endif
#ifdef __GNUC__
gpusync_result gpusync__plain_device_create(const gpusync_device_desc *desc, gpusync_device **out)
    GPUSYNC__SYMBOL("gpusync_device_create");
gpusync_result gpusync__plain_queue_create(gpusync_device *device, const gpusync_queue_desc *desc, gpusync_queue **out)
    GPUSYNC__SYMBOL("gpusync_queue_create");
gpusync_result gpusync__plain_command_buffer(gpusync_queue *queue, const gpusync_command_buffer_desc *desc, void **out)
    GPUSYNC__SYMBOL("gpusync_command_buffer");

GPUSYNC_API gpusync_result gpusync__plain_device_create(const gpusync_device_desc *desc, gpusync_device **out)
{
    return gpusync_device_create(desc, out);
}

GPUSYNC_API gpusync_result gpusync__plain_queue_create(gpusync_device *device, const gpusync_queue_desc *desc,
                                                       gpusync_queue **out)
{
    return gpusync_queue_create(device, desc, out);
}

GPUSYNC_API gpusync_result gpusync__plain_command_buffer(gpusync_queue *queue, const gpusync_command_buffer_desc *desc,
                                                         void **out)
{
    return gpusync_command_buffer(queue, desc, out);
}
#endif
#ifdef __cplusplus
}
#endif
#endif

#endif /* GPUSYNC_IMPLEMENTATION */

#ifdef __clang__
#pragma clang diagnostic pop
#endif

/* -------------------------------------------------------------------------- >>history --

   Changes
     0.4   1. What a 0.3 program has to change. examples/from-0.3.sh prints the lines, and changes some:
             gpusync_track_committed                     gone, with ERROR_NOT_COMMITTED: call gpusync_track before the
                                                         commit, or submit an empty command buffer of the queue behind
                                                         the buffer, GPUSYNC_UNORDERED, so that no held work delays it.
                                                         That tells the end. The failure is in the buffer's own status,
                                                         and does not stick
             gpusync_throttle(queue, n, limit),          gone. After the commit: if (ticket >= n) gpusync_wait(queue,
               max_in_flight                             ticket - n + 1, ...), which also returns how that ticket
                                                         ended. gpusync_commit waits for no room
             gpusync_wait_mode and its three fields      gone. HANDLER: a gpusync_spin of zeros, for the device only if
                                                         no queue of it is to spin: NULL means the device's spin.
                                                         BLOCKING, which works in gpusync_wait_ex alone:
                                                         gpusync_wait_options.blocking
             gpusync_wait_options.through_loss           gone: every wait goes on when the device is lost. Whether
                                                         memory may be freed tells gpusync_get_info for a ticket,
                                                         gpusync_is_idle for a queue. A wait for everything returns
                                                         ERROR_DEVICE_LOST then, and gpusync_next_error has the failures
             gpusync_device_desc.log_report              gone: call gpusync_report in the log function, for a warning.
                                                         `log_user` leads to the device
             gpusync_device_wait_ex                      gpusync_device_wait, which takes the options; NULL: none
             gpusync_command_buffer_desc.error_options,  an MTLCommandBufferDescriptor in `descriptor`, not beside
               .log_state                                unretained_references
             gpusync_stats.spurious_wakes,               gone; the waits that slept: `wakes`, and the sum of their
               .waits_skipped, .buffers_saved,           latencies: `wake_ns`
               .wake_latencies
             GPUSYNC_TRACE_SCHEDULED                     gone: gpusync_trace_event.gpu_start_s of
                                                         GPUSYNC_TRACE_COMPLETED
             positional initialisers of descs            by name
             gpusync_timeline_expect                     gone: gpusync_timeline_desc.signalled_by_others
             gpusync_timeline_desc.fail_writes_event     gone: failing writes UINT64_MAX to a timeline's own event, and
                                                         never to an imported one, which the program writes itself,
                                                         after gpusync_timeline_fail
             gpusync_device_create_0_3 by its symbol     gpusync_device_create, or _0_4; so for gpusync_queue_create
                                                         and gpusync_command_buffer
           2. What means something else, and compiles as before:
             A warm-up compiles by Metal's ordinary calls, at most three pipelines at once, and gpusync_warmup_destroy
             waits for a compilation that has begun.
             Metal 4: where the events do not show that all signals have come, destroying the queue waits for that, at
             most 100 ms, and then keeps the queue and the events for good.
             sticky_failure: tickets end in any order, gpusync_track and GPUSYNC_UNORDERED are allowed, and
             gpusync_command_buffer is refused while a failure sticks. A ticket that ended well before the failure was
             found stays well. Each ticket that takes the error has a record, and a failure of work from before
             gpusync_queue_clear_failure sticks no more.
             gpusync_queue_destroy_now: all that had not ended ends with ERROR_DESTROYED, of class CANCELLED.
             Work that waits for a ticket is held until the ticket has ended, and counts as held (ERROR_QUEUE_FULL,
             ERROR_ENQUEUED): from queue to queue use a timeline.
             Work that fails for several reasons has the error that was found first.
             Values of one timeline from several queues: see "Order" at >>api-submissions. A value is refused only if
             it is reached, pending, or the highest that was signalled; work is held behind each lower committed signal
             of another queue, or of STRICT work of its own, also behind those that the GPU gets after a higher one.
             Where other code signals a timeline, a wait for a value whose signal was discarded goes to the GPU.
             A wait for several points, or for a device, that times out writes one line to the log. gpusync_device_wait
             spins, counts and traces as gpusync_wait_many does: the device's spin, gpusync_device_get_stats alone, and
             one GPUSYNC_TRACE_WAIT_BEGIN and _END without a queue.
             A trace has GPUSYNC_TRACE_COMPLETED for every ticket, also for work that a lost device or
             gpusync_queue_destroy_now has given up.
             A lost device: waits and polls do not end with the loss. Work that the GPU has gets the end that Metal
             reports. What has not ended a second after the loss is given up: waits, polls and callbacks get
             ERROR_DEVICE_LOST then, and all timelines fail, which other threads may signal until then. A wait whose
             limit comes first returns TIMEOUT. gpusync_queue_destroy waits for that second, too. Tracked command
             buffers are given up with the rest.
             gpusync_queue_destroy_later and the like: no timer looks. A dispatch queue of the device takes one object
             after the other, and a thread of it blocks. Held work ends, and open command buffers are discarded, in the
             call. With GPUSYNC_CALLBACKS_MANUAL an object goes only while the program calls gpusync_dispatch.
             Of the memory for callbacks and submissions at most 256 free callbacks and 64 free submissions are kept,
             for each device. The rest is freed at once, not some seconds later. The memory of a gpusync_device comes
             from malloc, and may outlive gpusync_device_destroy by half a second: nothing of the allocator does.
             gpusync_queue_desc.max_command_buffer_count: 0 means 63, and the Metal queue that gpusync makes has one
             place more. For a queue of your own pass one less than its count: Metal counts a command buffer until
             gpusync's handler, which calls unpark and notify, has returned (assumed). Where these needed a lock that
             a thread had in gpusync_command_buffer, that call waited in Metal for the handler, whatever its limit.
             gpusync_set_trace waits for gpusync's handlers that have begun. A badly formed description is
             ERROR_INVALID_ARGUMENT of gpusync_submit on a lost queue, too. A wait for everything gives the failure of
             the lowest ticket. gpusync_report gives no deviation, and leaves out points of a wait that are over.
             The texts of gpusync_result_string and of the log have other words.
             Held work may be committed on a dispatch queue of gpusync's own. gpusync_cancel_held does not wait for
             held work that is being committed, and cancels what stands behind it.
           3. New: GPUSYNC_FROM_NOW, gpusync_failure_is_transient, gpusync_timeline_desc.signalled_by_others,
             gpusync_command_buffer_desc.descriptor, gpusync_wait_options.blocking, gpusync_stats.wakes, .wake_ns.
     0.3   1. What a 0.2 program has to change:
             GPUSYNC_LOG_INFO                            gone: the levels are GPUSYNC_LOG_WARNING and _ERROR. The enum
                                                         is open: in Swift a switch needs a default (untried)
             a log function                              gets warnings, too, one for each wait that reaches its limit,
                                                         on the thread of the wait: look at the level
             positional initialisers of descs            by name: gpusync_device_desc.log_report,
                                                         gpusync_queue_desc.sticky_failure, gpusync_spin.until_near
                                                         and gpusync_wait_options.through_loss are at the end
             these structs, declared in another language get the same fields. gpusync_queue_desc and
                                                         gpusync_wait_options keep their size: compare
                                                         gpusync_version, too
             gpusync_device_create_0_2 by its symbol     gpusync_device_create, or _0_3; so for the two others
             the symbols that a library exports          these six, gpusync_at_ticket and gpusync_at_value: a program
                                                         that is compiled without optimisation calls the last two
           2. New: gpusync_queue_desc.sticky_failure, gpusync_queue_clear_failure: a failure fails all later work.
             gpusync_wait_options.through_loss: a wait that goes on when the device is lost, until memory may be freed.
             gpusync_queue_destroy_later, gpusync_timeline_destroy_later, gpusync_device_destroy_later: the last owner
             may let go in a callback. gpusync_in_flight. gpusync_queue_report; with gpusync_device_desc.log_report the
             log gets it when a wait timed out. The log is told of lost handlers. For bindings:
             gpusync_struct_sizes, GPUSYNC_STRUCTS, plain symbols, gpusync_at_ticket and gpusync_at_value as symbols.
             gpusync_spin.until_near: sleeps until the end is near, and spins then.
           3. What means something else, and compiles as before: gpusync_timeline_destroy may return ERROR_DESTROYED.
             gpusync_stats.waits_inline leaves out most waits for what has ended well: they write to no memory now.
             A wait that decides for how long to spin goes by all of the last 16 tickets, not by their mean, and by the
             last 16 spins, not by those in a row: work that is short, short, long is spun for while it is short. It
             looks five times a microsecond at most, not twice.
           What timelines, submissions, Metal 4, the warm-up, the trace and the report need is linked where they are
           called: a program that commits and waits links 33 KB of code, not 52.
           The report says of a submission that was held for how long the device has had it, not since its call.
           gpusync_ticket_info has the GPU's times as soon as the ticket has ended, and the trace tells of the end then:
           also where a poll or a wait has found it, and the completed handler has not come yet.
           A promise is called a pending signal now. The report says "pending in" for "promised by", and "no
           other work is to signal it" for "nobody has promised it". The text of ERROR_NOT_RISING says "pending".
           What a burst of callbacks or submissions needed is given back some seconds later, see gpusync_allocator.
           Mended: an allocator that waits for a thread in gpusync_commit hung. A limited commit of a command buffer
           that other code made was counted twice for a moment. A thread that was stopped in the middle of telling an
           end let gpusync_is_done say no after a wait had returned.
     0.2.1 A failure is classed by the driver's number: what held up the display is a TIMEOUT, for one, and with Metal 4
           an invalid resource is INVALID_RESOURCE, no NOT_PERMITTED.
           gpusync_wait_options.error is filled for every error that a wait returns, and for nothing else. A failure of
           unlabelled work has the label of its submission. The log names the queue of the ticket.
           gpusync's dispatch queue for callbacks has the quality of service "user initiated".
           Metal 4: a queue is made only where supportsFamily: knows Metal 4. A timeline's event is kept until its
           signals have come.
           gpusync_wait_many takes as many points as gpusync_submit does. The header links with SDKs of iOS before 18.
           Mended: a report beside gpusync_submit could crash. A refused submission and gpusync_queue_destroy_now could
           wait for each other. A warm-up could call the yield hook on a thread of its own. Objects of Metal's could
           stay for lack of a pool. A wait for what is done took longer once the queue had failed. So did a destroy
           while a wait for several points slept on in what had ended.
     0.2   1. What a 0.1 program has to change; the compiler points at most of it:
             gpusync_on_done(q, t, fn, u)                gpusync_on_done(gpusync_at_ticket(q, t), fn, u)
             gpusync_timeline_on_done(tl, v, fn, u)      gpusync_on_done(gpusync_at_value(tl, v), fn, u)
             gpusync_release_after(q, t, object)         gpusync_release_after(gpusync_at_ticket(q, t), object)
             gpusync_wait_many(.., timeout_ns, which)    gpusync_wait_many(.., timeout_ns, NULL, which)
             gpusync_timeline_import(d, event, desc, o)  gpusync_timeline_create(d, desc, o), with desc.shared_event
             gpusync_command_buffer_desc.waits           gpusync_encode_wait, before the work is encoded
             GPUSYNC_OPEN_FOR_SIGNALS                    gpusync_encode_signal behind the work, then commit or submit
             gpusync_queue_desc.commit_timeout_ns        gpusync_throttle before the commit, which has no TIMEOUT now
             GPUSYNC_CALLBACKS_AT_ONCE                   GPUSYNC_CALLBACKS_QUEUED; see below
             gpusync_stats.sentinels                     gone: no empty command buffer is sent
             positional initialisers of descs            by name: callback_queue, shared_event are in the middle
           2. What means something else, and compiles as before:
             Callbacks and releases run on a serial dispatch queue: never in a call of the program but destroy, never on
             a thread of Metal. A program that relied on that waits for the callback.
             gpusync_dispatch runs what was due when it began, one at a time for a device. OK while another thread does.
             Tickets of gpusync_track_committed are of the row 1, 2, 3, ...: is_done is false while an earlier one goes
             on (gpusync_poll is exact), gpusync_get_info knows them.
             gpusync_is_done(q, GPUSYNC_EVERYTHING) is gpusync_is_idle(q).
             gpusync_queue_destroy_now: tickets of plain commits that were never held end with ERROR_DESTROYED.
             Work that signals more on a timeline than another queue has on the device is held until that has ended.
             A wait without a spin of its own decides how long to look, and calls no sched_yield: see gpusync_spin.
             Waits and polls look at their own work alone; a timer of the device looks for lost handlers. The park hook
             gets the wait's own deadline, which may be GPUSYNC_FOREVER (not slices of 50 ms).
             The allocator may be called at the first failure of a queue, on Metal's thread.
             A queue that gpusync makes has just max_command_buffer_count command buffers.
             gpusync_ticket_info has the GPU's times once the completed handler has run, not by a poll.
             A warm-up has no thread: jobs run on a dispatch queue, also with `blocking`. Its progress is a timeline.
             gpusync_warmup_start may return ERROR_METAL_NIL.
             Clang warns of NULL where none may be. Swift is told of enums and optional pointers (untried).
           3. New: gpusync_version, GPUSYNC_VERSION; gpusync_encode_wait, gpusync_encode_signal; gpusync_at_ticket,
             gpusync_at_value; gpusync_device_wait_ex; gpusync_wait_options.handlers; GPUSYNC_WAIT_ALL_OR_FAILURE;
             gpusync_device_desc.callback_queue; gpusync_command_buffer_desc.error_options, .log_state;
             gpusync_stats.spins_in_vain, .spin_ns; gpusync_trace_event.expected_ns; queues of Metal 4:
             gpusync_queue_desc.metal4, gpusync_commit4
     0.1   devices, queues, command buffers; commit, track, poll, wait; failures; statistics, report; timelines, waits
           for many points; submissions, held until they can go; callbacks; flow control; warm-up; traces

   Versions are semantic. While the major number is 0, a minor number may change the API, and says so here.

   SPDX-License-Identifier: MIT

   Copyright (c) 2026 the gpusync authors

   Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
   documentation files (the "Software"), to deal in the Software without restriction, including without limitation
   the rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and
   to permit persons to whom the Software is furnished to do so, subject to the following conditions:

   The above copyright notice and this permission notice shall be included in all copies or substantial portions of
   the Software.

   THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO
   THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
   AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF
   CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS
   IN THE SOFTWARE. */
