/* gpusync.h - v0.6.0 - synchronise CPU and GPU on Apple Metal from plain C - MIT licence (at the end of this file)

   gpusync tells a program when its work on an Apple GPU has ended, and whether it succeeded. It counts what the program
   commits to a Metal queue, and what has ended: one atomic load answers "is the work done?". A wait reads Metal's
   status, spins briefly when the end is near, then sleeps until the completed handler wakes the thread. Every failed
   command buffer is on record. gpusync needs no Objective-C compiler and no blocks: it calls objc_msgSend.

   All calls; * marks the core. A program with one queue can stop reading at line 650.

   Set up      * gpusync_device_create, gpusync_device_destroy       make and destroy the device of an MTLDevice
               * gpusync_queue_create, gpusync_queue_destroy         make and destroy the queue of an MTLCommandQueue
   Commit      * gpusync_command_buffer_create                       make a command buffer; wait while the queue is full
               * gpusync_command_buffer_discard                      give one back that will not be committed
               * gpusync_commit                                      commit a command buffer, get its ticket
   Ask         * gpusync_is_done, gpusync_in_flight                  may memory be used again? how much is not done?
               * gpusync_poll                                        has a ticket ended, how, and when did it run?
   Wait        * gpusync_wait, gpusync_device_wait                   for a ticket or all of a queue; for all queues
               * gpusync_wait_many                                   for all or any of several tickets and values
               * gpusync_at_ticket, gpusync_at_value                 the points that gpusync_wait_many takes
   Failures    * gpusync_queue_next_error                            read the failures on record, one by one
               * gpusync_device_is_lost                              is the device lost to this process?
               * gpusync_result_string, gpusync_failure_string       the texts of results and of classes of failures
   Callbacks     gpusync_on_done, gpusync_cancel_on_done             call a function when a point has ended; withdraw it
                 gpusync_release_after                               release an object when a ticket has ended
                 gpusync_device_on_lost                              call a function when the device is lost
                 gpusync_device_run_callbacks                        run what is due, in an event loop
   Timelines     gpusync_timeline_create, gpusync_timeline_destroy   make and destroy a number that only rises
                 gpusync_timeline_query, gpusync_timeline_wait       read the value; wait for one
                 gpusync_timeline_signal, gpusync_timeline_fail      raise the value from the host; end all waits
                 gpusync_timeline_signal_from                        have a handler of Metal's raise it: "presented"
                 gpusync_timeline_metal                              the MTLSharedEvent, for other code
   Order         gpusync_encode_wait, gpusync_encode_signal          have a command buffer wait for or signal a value
                 gpusync_submit                                      commit buffers with waits and signals as one ticket
                 gpusync_commit_marker                               get a ticket for what other code has committed
                 gpusync_queue_cancel_held                           end work that still waits on the host
   Endings       gpusync_queue_abandon                               destroy a queue without waiting for the GPU
                 gpusync_queue_destroy_later, gpusync_timeline_destroy_later, gpusync_device_destroy_later: do not block
   What sticks   gpusync_queue_failure, gpusync_queue_clear_failure  read what refuses new work; accept new work again
   Insight       gpusync_device_report                               write a text that says why nothing moves
                 gpusync_device_get_stats, gpusync_device_set_trace  counts of work and waits; events as they happen
   Warm-up       gpusync_warmup_start, gpusync_warmup_destroy        make pipelines and other items in advance
                 gpusync_warmup_get, gpusync_warmup_wait             get an item, or make it now; wait for all
   Others        gpusync_metal4_queue_create                         make the queue of an MTL4CommandQueue
                 gpusync_device_metal, gpusync_queue_metal           the MTLDevice; the MTLCommandQueue
                 gpusync_now_ns, gpusync_version                     the clock of timeouts; the compiled version

   A program. Link it with -framework Metal -framework Foundation -lobjc -framework CoreGraphics (else maybe no device).

       #define GPUSYNC_IMPLEMENTATION // in ONE file: C99, C++11, Objective-C
       #include "gpusync.h"
       #include <stdio.h>

       static int failed(const char *call, gpusync_result result)
       {
           if (result != GPUSYNC_OK) fprintf(stderr, "%s: %s\n", call, gpusync_result_string(result));
           return result != GPUSYNC_OK;
       }
       #define FAILED(call) failed(#call, call)

       int main(void)
       {
           gpusync_device *device;
           gpusync_queue *queue;
           gpusync_ticket ticket;
           gpusync_error why;
           gpusync_wait_options options = {0};
           gpusync_result result;
           void *buffer; // an id<MTLCommandBuffer>

           options.error = &why;
           if (FAILED(gpusync_device_create(NULL, &device))) return 1;
           if (FAILED(gpusync_queue_create(device, NULL, &queue))) return 1;
           if (FAILED(gpusync_command_buffer_create(queue, NULL, GPUSYNC_FOREVER, &buffer))) return 1;
           // ... encode work into the command buffer ...
           if (FAILED(gpusync_commit(queue, buffer, &ticket))) return 1; // instead of [buffer commit]
           result = gpusync_wait(queue, ticket, 1000000000, &options);   // one second at most
           puts(result < GPUSYNC_OK ? why.message : gpusync_result_string(result));
           if (result == GPUSYNC_TIMEOUT)
               gpusync_queue_abandon(queue); // the GPU hangs: destroy would wait for it
           else
               gpusync_queue_destroy(queue);
           gpusync_device_destroy(device);
           return result != GPUSYNC_OK;
       }

   Contents: search for the tag. What holds for all calls: >>words >>contract >>calls >>threads >>ownership >>options
   >>caveats. Declarations: >>core >>more >>rare. How it works, then the code: >>impl. Changes, licence: >>history.

   >>words -------------------------------------------------------------------------------------------------------------
   Work        What ends as one: a command buffer that the program commits, a submission, a marker.
   Open        A command buffer that gpusync keeps, not committed yet: from gpusync_command_buffer_create on, or, made
               elsewhere, from its first gpusync_encode_wait or gpusync_encode_signal on.
   Held        Committed, but Metal does not have it yet (wait-before-signal). It waits on the host for a point, for
               held work before it, or for a lower value of a timeline that it signals.
   Sent        Metal has the work.
   Ended       The result of the work is known, and on record if it is a failure.
   UNORDERED   Submissions with GPUSYNC_SUBMIT_UNORDERED, which have no ticket. Ordered: all other work but markers.
   Done        A ticket is done when it and all tickets before it have ended, and the GPU has finished with all of them.
               In flight: committed, and not done.
   Given up    Ended while Metal had the work (abandon, destroy on a lost device): never done, as the GPU goes on.
   Point       A ticket of a queue, or a value of a timeline, a number that only rises. A point ends when the ticket
               does; when the value is reached, or the timeline fails.
   Look        gpusync reads the status of what Metal has, and the events that other code signals. Polls and waits look
               at their own points. A wait that sleeps looks at the whole device after 50, 100, 200, then every 400 ms.
               Calls that find no end do so once in 50 ms, a timer once a second while callbacks or a later destroy are
               owed. So a handler that Metal loses costs a pause and the GPU times (on Metal 4 the ticket's end).

   >>contract: ten sentences, to which each call keeps, and by which the tests are ordered -----------------------------
     1. A ticket is the number of a piece of work on its queue, from 1 on; 0 and below stand for no work, which is done.
     2. gpusync_is_done is true only when the GPU no longer uses anything that this work, and the work with tickets
        before it, uses. True stays true. Whatever another call returned, gpusync_is_done decides about memory. Of
        UNORDERED work, which has no ticket, gpusync_error.in_use decides.
     3. The work of a queue goes to Metal, ends and calls back in the order of its tickets. Markers and enqueued buffers
        go to Metal at once, and end in their turn. UNORDERED submissions have no ticket: each goes when its waits and
        the order of values allow it, and ends alone. Metal begins a queue's buffers in order, and may overlap them.
     4. A ticket ends once, with one result. OK means that the work succeeded, and so did each point that it was given
        to wait for; earlier tickets of its queue do not count. Every other result is on record
        (gpusync_queue_next_error) before a call returns it, except where it describes the call alone: TIMEOUT,
        NOT_READY, errors of arguments and memory, ERROR_WOULD_DEADLOCK, and, while the ticket has not ended,
        ERROR_DESTROYED and ERROR_DEVICE_LOST. ERROR_RESULT_UNKNOWN: other failures have pushed the result off the
        record, or, of an old ticket, may have.
     5. Only calls with a timeout_ns, destroy and abandon wait; abandon does not wait for the GPU. (Metal
        itself may block in a call, where other code fills its queue.) A call that refuses has changed nothing.
     6. The GPU never waits for the host, except to learn that a value will not come. gpusync holds work until each
        ticket and value that it waits for has come. Where the GPU waits (encoded, ON_GPU) it holds work until Metal has
        the work whose signal the GPU makes. Values from other code, where the timeline says so, are the exception.
     7. A timeline only rises. Its signals go to Metal in rising order. A signal that is not above what has been sent is
        refused; held work whose signal the host overtakes fails, and that timeline does not. A value is reached when
        its work has succeeded, and stays reached.
     8. Work that fails fails the timelines that it was to signal. What waits for them, or for its ticket, fails, and
        never runs if it is still held. An order_only timeline rises however its work ends, unless Metal had the work
        and its end is unknown (abandoned, or on a lost device).
     9. Whatever does not move is in the report (gpusync_device_report), with its reason: every open command buffer and
        what it is to signal, all work that has not ended and what it waits for, every call that sleeps.
    10. gpusync calls the program (hooks, callbacks, log, notify, trace) with no lock of its own, and never again after
        gpusync_device_destroy has returned OK, unless Metal still has a block of gpusync then (the log says so).

   >>calls -------------------------------------------------------------------------------------------------------------
   Unless the comment of a call says otherwise:
     pointers      NULL only with GPUSYNC_OPT. A NULL desc or NULL options, or zero in a field, mean defaults.
     out, ticket   `out` gets the object, else NULL. `ticket` changes only with OK: a wait for 0 or an old one returns.
     error         Gets the error that the call returns, else is unchanged.
     timeout_ns    The longest wait in nanoseconds, by gpusync_now_ns. 0 looks once; GPUSYNC_FOREVER: no limit.
     Threads       Any, several at once. They block up to timeout_ns, in yield and park; without it for locks alone.
     Returns       Results, without GPUSYNC_. Comments do not repeat what these mean everywhere:
       ERROR_INVALID_ARGUMENT   From every call: NULL without GPUSYNC_OPT, an object of a wrong kind or another device.
       ERROR_UNSUPPORTED        From every call: there is no Metal.
       ERROR_OUT_OF_MEMORY      From calls that make an object, encode, take work or register a function.
       ERROR_METAL_NIL          From calls for which Metal makes an object: Metal made none.
       ERROR_DEVICE_LOST        From calls that make an object, encode or take work. Of waits: gpusync_device_is_lost.
       ERROR_INVALID_TICKET     Above what was committed; or GPUSYNC_EVERYTHING, where the comment does not name it.
       ERROR_NOT_RISING         A value above GPUSYNC_MAX_VALUE. Of signals see "Order of values".
       ERROR_DESTROYED          The object is being destroyed. From all calls on it but questions and discards; from a
                                wait, if its point had not ended: do not touch the object any more.
       ERROR_WOULD_DEADLOCK     In a callback, from destroy, abandon, run_callbacks, and from waits that cannot return
                                at once, even with a timeout of 0: poll there, or use a _destroy_later call.
       ERROR_EXECUTION          From calls that take new work: a failure sticks, see "What sticks".

   >>threads -----------------------------------------------------------------------------------------------------------
   Command buffers. One thread at a time encodes and commits a command buffer (Metal's rule): where two commit one
   buffer Metal aborts.
   Destroying. One thread destroys or abandons an object, once; NULL: OK, anywhere. Waits for the object end with
   ERROR_DESTROYED. No other call on it may be in progress or begin: the program ensures this, as with free(), for
   _later calls, too. (A second one may return ERROR_DESTROYED: do not rely on it.) A thread that has waited for what a
   commit, submission or signal brings may destroy before that call returns. The destroy blocks in yield and park. It
   runs the object's callbacks that have not run, and waits for one that runs: hold no lock that a callback acquires. In
   them (not in `destroyed`) the object may be used: questions (calls that only read) are answered, changes return
   ERROR_DESTROYED, open buffers may still be encoded into. A _destroy_later call does not block, and needs
   no memory: use it in callbacks and finalizers. When all is over, `destroyed` is called with `user`, where callbacks
   run; not after an error, nor for NULL.
   Callbacks (`destroyed` is one) may call all but destroy, abandon and gpusync_device_run_callbacks. In a callback
   never wait for objects of another device, destroy them, or run their callbacks: gpusync does not detect that. A
   callback may not change fibers: gpusync knows it by its thread. It runs with an autorelease pool.
   Hooks and log. yield, park, unpark, log and notify may call nothing that waits or runs callbacks, and no destroy but
   a _later. (In log these return ERROR_WOULD_DEADLOCK, also in destructors that exit() runs there.) Every call that is
   not inline may call unpark, log, notify and trace: hold no lock that they acquire. Nor one that a completed handler
   acquires: Metal may run handlers as it releases a buffer that never ran (assumed). log and notify may run on several
   threads at once, must return soon, and may come after the destroy of what they tell of. gpusync uses no autorelease
   pool and no thread-local value across yield and park: a fiber may resume on another thread.
   Everywhere. gpusync has no threads of its own. No C++ exception, longjmp or end of a thread (pthread_cancel) may
   leave a call, or a function that it calls. No call is async-signal-safe. A forked child may call exec and _exit,
   nothing of gpusync. A thread that is stopped in a call may hold a lock: then only inline calls surely return.

   >>ownership ---------------------------------------------------------------------------------------------------------
   A `void *` is a Metal object: an id, a (__bridge void *), never a __bridge_transfer, or a metal-cpp pointer. gpusync
   checks the kind of those in a desc alone. It retains what it gets for as long as it uses it; what it returns is
   borrowed. Descs, arrays, texts, and what these point to, are not read after the call. Calls open autorelease pools of
   their own. A command buffer is retained while open. After its commit it goes when its ticket and those before it have
   ended, its handlers have run, and none of its values is to come.

   >>options -----------------------------------------------------------------------------------------------------------
     macro                    defined in          meaning
     GPUSYNC_IMPLEMENTATION   one file            the bodies are compiled here (Objective-C: with or without ARC)
     GPUSYNC_STATIC           that file           every function is static: other files may have their own copies. Only
                                                  the copy that made an object may be called for it.
     GPUSYNC_API              all files           attributes of every function (dllexport, visibility, ...)
     GPUSYNC_MALLOC(size)     implementing file   memory, aligned as by malloc, or NULL; default malloc. Called on any
     GPUSYNC_FREE(memory)     both or neither     thread, with no lock; may call what `log` may. FREE of NULL: nothing
     GPUSYNC_OBJC             all files           1: Objective-C and Metal are there (default on Apple). 0: calls
                                                  return ERROR_UNSUPPORTED, false, 0, NULL; texts and NULL destroys work
   The implementing file needs POSIX threads and clocks. With -std=c99 and the like define _POSIX_C_SOURCE as 200809L
   before the first include; on Apple systems nothing, or _DARWIN_C_SOURCE as well.

   >>caveats -----------------------------------------------------------------------------------------------------------
   * Never wait in one of the program's completed handlers: gpusync cannot detect it. Until the handler returns, Metal
     changes no status of later command buffers of the queue (assumed), so a slow one delays waits for later work.
   * At exit with work in flight destroy nothing, or abandon the queues first: destroy waits for the GPU.
   * Code that contains gpusync may be unloaded 2 s after gpusync_device_destroy has returned OK, for a thread of
     Metal's or a timer may be in it. Never unload it if a queue was abandoned, the device was lost or destroyed later,
     or the log has said that Metal still has blocks of gpusync.
   * In a GPU capture call gpusync_device_wait before stopCapture: held work is not committed yet.
   * Not provided: priorities of parked threads, MTLIO queues. To end one wait from outside, wait with gpusync_wait_many
     for ANY of its point and a value that the host signals. */

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
#define GPUSYNC_VERSION_MINOR 6
#define GPUSYNC_VERSION_PATCH 0
/** The version of this header as one number: major * 10000 + minor * 100 + patch. See gpusync_version. */
#define GPUSYNC_VERSION (GPUSYNC_VERSION_MAJOR * 10000 + GPUSYNC_VERSION_MINOR * 100 + GPUSYNC_VERSION_PATCH)
#if !defined(GPUSYNC_OBJC) && defined(__APPLE__)
#define GPUSYNC_OBJC 1
#elif !defined(GPUSYNC_OBJC)
#define GPUSYNC_OBJC 0
#endif
#if defined(__GNUC__)
#define GPUSYNC_NODISCARD __attribute__((__warn_unused_result__))
#define GPUSYNC__UNUSED __attribute__((__unused__))
#else
#define GPUSYNC_NODISCARD
#define GPUSYNC__UNUSED
#endif
#ifdef GPUSYNC_STATIC
#define GPUSYNC__PRIVATE
#undef GPUSYNC_API
#define GPUSYNC_API static GPUSYNC__UNUSED
#elif !defined(GPUSYNC_API)
#define GPUSYNC_API
#endif

/* Three symbols contain the version: files with different minor versions do not link (a plug-in with GPUSYNC_STATIC may
   have its own). Other languages use plain symbols, after they have compared gpusync_version. */
#define GPUSYNC__TEXT2(x) #x
#define GPUSYNC__TEXT(x) GPUSYNC__TEXT2(x)
#define GPUSYNC__SYMBOL(name) __asm__(GPUSYNC__TEXT(__USER_LABEL_PREFIX__) name)
#if defined(__GNUC__) && !defined(GPUSYNC_STATIC)
#define GPUSYNC__VERSIONED(name) \
    GPUSYNC__SYMBOL(name "_" GPUSYNC__TEXT(GPUSYNC_VERSION_MAJOR) "_" GPUSYNC__TEXT(GPUSYNC_VERSION_MINOR))
#else
#define GPUSYNC__VERSIONED(name)
#endif

/* For Clang's warnings and for Swift: only a GPUSYNC_OPT pointer may be NULL (GPUSYNC_REQ marks the outer one of two).
   Later versions may add values to an open enum: a switch needs a default. */
#ifdef __clang__
#if __has_feature(nullability) && __has_attribute(enum_extensibility)
#define GPUSYNC__MARKS
#define GPUSYNC_OPT _Nullable
#define GPUSYNC_REQ _Nonnull
#define GPUSYNC__CLOSED_ENUM __attribute__((__enum_extensibility__(closed)))
#define GPUSYNC__OPEN_ENUM __attribute__((__enum_extensibility__(open)))
#define GPUSYNC__FLAG_ENUM __attribute__((__flag_enum__, __enum_extensibility__(open)))
#endif
#endif
#ifndef GPUSYNC__MARKS
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

/* ------------------------------------------------------------------------------------------------------- >>core -- */

/* clang-format off */
/** Every result, as X(NAME, value, text): GPUSYNC_NAME below, and what gpusync_result_string returns. */
#define GPUSYNC_RESULTS(X) \
  X(OK, 0, "success") /* of a wait or poll: the work succeeded */ \
  X(TIMEOUT, 1, "the time limit passed first; nothing was cancelled") \
  X(NOT_READY, 2, "not yet, or none left") \
  X(ERROR_INVALID_ARGUMENT, -1, "an argument is NULL, invalid, or not allowed here: see the call in gpusync.h") \
  X(ERROR_UNSUPPORTED, -2, \
    "this queue or this Metal cannot do it, or Metal is unavailable (no Mac? see softmetal in README)") \
  X(ERROR_OUT_OF_MEMORY, -3, "there is no memory") \
  X(ERROR_NO_DEVICE, -4, "Metal has no device") \
  X(ERROR_METAL_NIL, -5, "Metal returned nil where it should have made an object") \
  X(ERROR_INVALID_TICKET, -6, "not a ticket of this queue, or not one that this call accepts") \
  X(ERROR_WRONG_QUEUE, -7, "the command buffer belongs to another command queue") \
  X(ERROR_ALREADY_COMMITTED, -8, \
    "the command buffer is committed or held already; after commits of other code use gpusync_commit_marker") \
  X(ERROR_NOT_COMMITTED, -10, "the command buffer is not committed yet") /* of gpusync_commit_marker */ \
  X(ERROR_UNKNOWN_BUFFER, -11, "the queue keeps no such open command buffer") \
  X(ERROR_EXECUTION, -12, \
    "the work, or what it needs, has failed; the gpusync_error of a wait, or gpusync_queue_next_error, says why") \
  X(ERROR_RESULT_UNKNOWN, -13, "the work ended, but how is no longer on record: ask sooner, or raise error_log_count") \
  X(ERROR_CANCELLED, -14, "the work was cancelled, and never ran") \
  X(ERROR_DEVICE_LOST, -15, "the device was removed or ignores this program") /* permanently */ \
  X(ERROR_DESTROYED, -16, "the object is being destroyed, or has been") \
  X(ERROR_WOULD_DEADLOCK, -17, \
    "inside a callback, where no call may wait or destroy: poll, or use a _destroy_later call") \
  X(ERROR_IN_USE, -18, \
    "the device still has queues, timelines or warm-ups (see gpusync_device_report), or a call or handler runs") \
  X(ERROR_NOT_RISING, -19, \
    "a timeline only rises: the value is reached, sent, to come already, out of range, or not above another one") \
  X(ERROR_QUEUE_FULL, -20, "the queue has no room: wait for earlier work, or commit or discard open command buffers") \
  X(ERROR_ENQUEUED, -21, "the command buffer is enqueued already: it cannot be held, nor have waits and signals") \
  X(ERROR_COMPILE, -22, "an item of a warm-up cannot be made; gpusync_warmup_get tells why")
/* clang-format on */

/** What a call returns. Zero: success. Positive: "not yet", no error. Negative: an error. An open enum. Work ends with
    OK, EXECUTION (Metal reports a failure), CANCELLED, NOT_RISING (its signal was overtaken), DESTROYED (abandoned;
    what it needs is destroyed), DEVICE_LOST, RESULT_UNKNOWN, or what gpusync_timeline_fail got. What waited for it ends
    likewise. All other results are about the call. gpusync_is_done alone decides about memory. */
typedef enum GPUSYNC__OPEN_ENUM gpusync_result {
#define GPUSYNC__RESULT(name, value, text) GPUSYNC_##name = value,
    GPUSYNC_RESULTS(GPUSYNC__RESULT)
} gpusync_result;
/** The text of a result: static English, also for unknown values. */
GPUSYNC_API const char *gpusync_result_string(gpusync_result result);
typedef struct gpusync_device gpusync_device;     /**< Stands for an MTLDevice: hooks, callbacks. */
typedef struct gpusync_queue gpusync_queue;       /**< Stands for an MTLCommandQueue: tickets, failures. */
typedef struct gpusync_timeline gpusync_timeline; /**< A number that only rises, in an MTLSharedEvent: >>more. */
typedef struct gpusync_warmup gpusync_warmup;     /**< What is made in advance, as pipelines: >>rare. */
typedef struct gpusync_hooks gpusync_hooks;       /**< How a wait sleeps: >>rare. */
typedef struct gpusync_spin gpusync_spin;         /**< How long a wait spins: >>rare. */
typedef struct gpusync_error gpusync_error;       /**< One failure: below. */
/** The number of a piece of work on its queue: 1, 2, 3, ... Each queue has its own: for several keep gpusync_points. */
typedef int64_t gpusync_ticket;
#define GPUSYNC_NO_TICKET INT64_C(0) /**< No work: done, as every ticket below is, such as `ticket - 2` of ticket 1. */
#define GPUSYNC_EVERYTHING INT64_MAX /**< All work committed to the queue up to the call. */
#define GPUSYNC_FOREVER UINT64_MAX   /**< A timeout without a limit. */

typedef enum GPUSYNC__OPEN_ENUM gpusync_log_level {
    GPUSYNC_LOG_WARNING = 1, /**< A wait ended at its limit; Metal still has blocks of gpusync at the device's end. */
    GPUSYNC_LOG_ERROR = 2    /**< A command buffer failed on the GPU; the device is lost. */
} gpusync_log_level;
/** Gets one line of text without a newline, valid during the call, on any thread: see "Hooks and log". May call
    gpusync_device_report. A wait may return before its failure is logged. Objects without a label have numbers. */
typedef void (*gpusync_log_fn)(void *GPUSYNC_OPT user, gpusync_log_level level, const char *text);

typedef enum GPUSYNC__CLOSED_ENUM gpusync_callback_mode {
    GPUSYNC_CALLBACKS_QUEUED = 0, /**< Soon, on a serial dispatch queue: gpusync's own is "user initiated". */
    GPUSYNC_CALLBACKS_MANUAL      /**< In gpusync_device_run_callbacks. */
} gpusync_callback_mode;
/** Callbacks have become due: arrange a gpusync_device_run_callbacks. Any thread: see "Hooks and log". */
typedef void (*gpusync_notify_fn)(void *GPUSYNC_OPT user);

typedef struct gpusync_device_desc {
    void *GPUSYNC_OPT metal_device; /**< An MTLDevice; NULL: the system's default, else the first of the list. */
    const gpusync_hooks *GPUSYNC_OPT hooks; /**< NULL: a wait blocks its thread. */
    const gpusync_spin *GPUSYNC_OPT spin;   /**< NULL: each wait decides by what its queue has done. */
    gpusync_log_fn GPUSYNC_OPT log;         /**< NULL: silent. */
    void *GPUSYNC_OPT log_user;             /**< Passed to log. */
    gpusync_callback_mode callback_mode;    /**< Where callbacks run: see >>more. */
    /** QUEUED: a serial dispatch_queue_t (not checked), best with a quality of service of its own; NULL: gpusync's. */
    void *GPUSYNC_OPT callback_queue;
    gpusync_notify_fn GPUSYNC_OPT notify; /**< MANUAL; NULL: the program runs callbacks now and then. */
    void *GPUSYNC_OPT notify_user;        /**< Passed to notify. */
} gpusync_device_desc;

/** Make the gpusync_device of an MTLDevice, one for each (not checked): two of one cannot share points.
    Returns  OK; ERROR_NO_DEVICE. ERROR_INVALID_ARGUMENT: also park or unpark alone, or an unknown callback_mode. */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_device_create(const gpusync_device_desc *GPUSYNC_OPT desc,
                                                                   gpusync_device *GPUSYNC_OPT *GPUSYNC_REQ out)
    GPUSYNC__VERSIONED("gpusync_device_create");
/** Destroy a device that has no queue, timeline or warm-up any more. After OK gpusync calls the program no more.
    Returns  OK. ERROR_IN_USE: an object is left, perhaps of a _destroy_later call: then until `destroyed` is called.
    Blocks   Until a running callback has returned. Then a second at most, until other calls and Metal's handlers have
             left gpusync, and what it put on the callback queue has run: never call this on that queue. Then 100 ms at
             most for listeners. If one remains, the log says so. It may use hooks, log, notify: never unload it. */
GPUSYNC_API gpusync_result gpusync_device_destroy(gpusync_device *GPUSYNC_OPT device);

typedef struct gpusync_queue_desc {
    void *GPUSYNC_OPT metal_queue; /**< An MTLCommandQueue of this device; NULL: make one. */
    const char *GPUSYNC_OPT label; /**< Shows in failures and log, on a new queue in Metal, too; NULL: metal_queue's. */
    /** Room: command buffers that may be open, held or sent at a time, gpusync's own, too (a marker, the one with the
        waits of a submission ON_GPU). Work without any counts as one. 0: 63; Metal 4: no limit. Metal does not report
        the count of a queue that the program made (64 by default): pass one less than yours. */
    uint32_t max_command_buffer_count;
    /** Failures on record; 0: 64. With sticky_failure at least the limit above, if any: so the first is not lost. */
    uint32_t error_log_count;
    const gpusync_spin *GPUSYNC_OPT spin; /**< NULL: the device's. */
    bool sticky_failure;                  /**< A failure sticks: see "What sticks". */
    /** Metal tells which encoder failed, of buffers made here (others: errorOptions); slow. macOS 11, iOS 14. */
    bool encoder_status;
    void *GPUSYNC_OPT user; /**< Comes back as gpusync_error.queue_user; never read. */
} gpusync_queue_desc;

/** Make the gpusync_queue of a command queue, one for each (not checked): two would each know only their own commits.
    Returns  OK. ERROR_UNSUPPORTED: also metal_queue is no MTLCommandQueue. */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_queue_create(gpusync_device *device,
                                                                  const gpusync_queue_desc *GPUSYNC_OPT desc,
                                                                  gpusync_queue *GPUSYNC_OPT *GPUSYNC_REQ out)
    GPUSYNC__VERSIONED("gpusync_queue_create");
/** Wait until the GPU has finished what the queue has sent, without a limit, then destroy the queue ("Destroying"). If
    the GPU may hang, wait with a limit first, then call gpusync_queue_abandon. Held work ends with ERROR_CANCELLED;
    open buffers are discarded. If the queue's work needs a callback of another object, the call does not return: with
    CALLBACKS_MANUAL call gpusync_device_run_callbacks first.
    Returns  OK. ERROR_DEVICE_LOST: the queue is gone; work that had not ended a second after the loss was given up. */
GPUSYNC_API gpusync_result gpusync_queue_destroy(gpusync_queue *GPUSYNC_OPT queue);

typedef struct gpusync_command_buffer_desc {
    const char *GPUSYNC_OPT label; /**< Shows in failures; NULL: none. */
    bool unretained_references;    /**< Metal does not retain encoded resources: the program keeps them alive. */
    /** An MTLCommandBufferDescriptor; NULL: none. unretained_references must be false then. macOS 11, iOS 14. */
    void *GPUSYNC_OPT descriptor;
} gpusync_command_buffer_desc;

/** Make a command buffer of this queue. It is open until its commit or discard. While the queue is full
    (max_command_buffer_count) the call waits, in the order of the calls. Room comes back with a discard, with the end
    of work that Metal had, and with the release of a buffer whose work never ran. The call blocks in Metal if buffers
    that gpusync does not count fill its queue: those of other code, those whose handlers run, those that are kept.
    Returns  OK; TIMEOUT: no room; in a callback NOT_READY with timeout_ns 0, else ERROR_WOULD_DEADLOCK.
             ERROR_QUEUE_FULL: FOREVER, and all places have been open buffers for a second: only the program makes room.
             ERROR_UNSUPPORTED: also Metal takes no descriptor. ERROR_INVALID_ARGUMENT: also unretained with one. */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_command_buffer_create(
    gpusync_queue *queue, const gpusync_command_buffer_desc *GPUSYNC_OPT desc, uint64_t timeout_ns,
    void *GPUSYNC_OPT *GPUSYNC_REQ out) GPUSYNC__VERSIONED("gpusync_command_buffer_create");
/** Give an open command buffer back that will not be committed, as when a frame is dropped. It signals nothing, and
    fails no timeline: other work may signal its values; what waits for them waits on, until gpusync_timeline_fail.
    Commit an enqueued one first: its Metal queue would wait.   Returns  OK; ERROR_UNKNOWN_BUFFER. */
GPUSYNC_API gpusync_result gpusync_command_buffer_discard(gpusync_queue *queue, void *command_buffer);

/** Commit a command buffer of the same MTLCommandQueue and get its ticket, in place of [buffer commit]. End its
    encoders before, and add nothing afterwards. With OK the buffer is sent, held, or ended unsent, since what it waits
    for has failed: never call waitUntilCompleted if it may be held. After an error the buffer is as before: commit it
    later, or discard it. A buffer made elsewhere needs no room, but counts. For MPSCommandBuffer see markers.
    Returns  OK; ERROR_ALREADY_COMMITTED: Metal has it, or it is held; ERROR_ENQUEUED: see "Enqueued"; ERROR_NOT_RISING,
             or the failure of a timeline: of its signals; ERROR_WRONG_QUEUE. */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_commit(gpusync_queue *queue, void *command_buffer,
                                                            gpusync_ticket *GPUSYNC_OPT ticket);

#if GPUSYNC_OBJC
/* The start of every gpusync_queue, for the inline calls below alone. The pad is for cache lines of 128 bytes. */
typedef struct gpusync__head {
    uint64_t completed; /* every ticket up to this one is done, */
    uint64_t ended;     /* all UNORDERED work up to this number */
    unsigned char pad[112];
    uint64_t committed, submitted; /* the last of each */
} gpusync__head;
#endif

/** True if the GPU no longer uses anything that this work, and all work with tickets before it, uses, whether it
    succeeded or failed. Ask this before memory is used again. One load, wait-free, never true too early. Does not look:
    in a loop poll now and then, for a handler that Metal has lost. False for NULL, or if not issued.
    ticket  0 and below: true. GPUSYNC_EVERYTHING: true if all that was committed is done, UNORDERED work, too. */
GPUSYNC_API inline bool gpusync_is_done(const gpusync_queue *GPUSYNC_OPT queue, gpusync_ticket ticket)
{
#if GPUSYNC_OBJC
    const gpusync__head *head = (const gpusync__head *)(const void *)queue;
    uint64_t completed, ended;
    if (!head)
        return false;
    /* First what has completed: else a commit and its end between two loads would make a busy queue look finished. */
    completed = __atomic_load_n(&head->completed, __ATOMIC_ACQUIRE);
    if (ticket != GPUSYNC_EVERYTHING)
        return ticket <= (gpusync_ticket)completed;
    ended = __atomic_load_n(&head->ended, __ATOMIC_ACQUIRE);
    return completed == __atomic_load_n(&head->committed, __ATOMIC_RELAXED) &&
           ended == __atomic_load_n(&head->submitted, __ATOMIC_RELAXED);
#else
    (void)queue;
    (void)ticket;
    return false;
#endif
}
/** How much work is not done; 0 for NULL. Never too few: UNORDERED work counts until earlier such work has ended. */
GPUSYNC_API inline uint64_t gpusync_in_flight(const gpusync_queue *GPUSYNC_OPT queue)
{
#if GPUSYNC_OBJC
    const gpusync__head *head = (const gpusync__head *)(const void *)queue;
    uint64_t completed;
    if (!head)
        return 0;
    /* First what has completed: else work that ends in between would make the sum too small. */
    completed = __atomic_load_n(&head->completed, __ATOMIC_ACQUIRE);
    completed += __atomic_load_n(&head->ended, __ATOMIC_ACQUIRE);
    return __atomic_load_n(&head->committed, __ATOMIC_RELAXED) + __atomic_load_n(&head->submitted, __ATOMIC_RELAXED) -
           completed;
#else
    (void)queue;
    return 0;
#endif
}

/** When the GPU ran a ticket (GPUStartTime, GPUEndTime), in seconds of the host's clock; a marker: its own buffer. */
typedef struct gpusync_times {
    double gpu_start_s; /**< The first start of its command buffers; 0: none ran, or a handler has not run. */
    double gpu_end_s;   /**< The last end, likewise. */
} gpusync_times;

/** Look now whether a ticket has ended, and how, by Metal's status, even before the handler has run. The GPU is then
    finished with its work, unless that was given up.
    times    Zeros if no end is told, for EVERYTHING, and for a ticket that 256 newer ones followed: find those in the
             trace, or poll after a wait with gpusync_wait_options.handlers.
    Returns  How the ticket ended; 0 and below: OK. NOT_READY: not yet. EVERYTHING (all that was committed before the
             call): OK, or the failure that gpusync_wait would return, which stays to be returned. */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_poll(gpusync_queue *queue, gpusync_ticket ticket,
                                                          gpusync_times *GPUSYNC_OPT times);

/* Everything. A wait for GPUSYNC_EVERYTHING covers all that its queue has committed. It returns the oldest failure on
   record that had not been told when it began, ERROR_CANCELLED too. All up to the newest of the tickets that it covers
   then count as told. So waits that overlap each return it, and one that begins later does not: threads that share a
   queue wait for their tickets. A failure of UNORDERED work counts once it is on record. If the oldest was pushed off
   the record, the oldest that is left stands for it, with gpusync_error.dropped. If none is left to tell, the one that
   sticks is returned. A TIMEOUT tells none. gpusync_queue_next_error has all. */

typedef struct gpusync_wait_options {
    const gpusync_spin *GPUSYNC_OPT spin; /**< NULL: the queue's; for a timeline or several points the device's. */
    gpusync_error *GPUSYNC_OPT error;     /**< Filled with an error (several points: see there); else unchanged. */
    /** For tickets: waits until completed handlers that the program added have run, too, of the ticket and those before
        it (not of work that never ran, or before a marker). If Metal never calls one: TIMEOUT. Never in a completed
        handler. GPU times are there then: gpusync adds its handler last, and Metal keeps the order (assumed). */
    bool handlers;
} gpusync_wait_options;

/** Wait until a ticket has ended: all tickets before it have, too. For what is done two loads. Work that has ended by
    the deadline counts as ended. A wait that timed out can be repeated. EVERYTHING: all committed before the call.
    Returns  How the ticket ended; TIMEOUT. With handlers ERROR_DESTROYED, ERROR_DEVICE_LOST also if one has not run. */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_wait(gpusync_queue *queue, gpusync_ticket ticket,
                                                          uint64_t timeout_ns,
                                                          const gpusync_wait_options *GPUSYNC_OPT options);
/** Wait for everything on each queue of the device, with one limit. A queue that is being destroyed is skipped. The
    failures of the queue that it returns one of (error.queue_label) are told, of no other; TIMEOUT fills error, too.
    With more than 16 objects the call allocates.   Returns  as gpusync_wait; ERROR_OUT_OF_MEMORY. */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_device_wait(gpusync_device *device, uint64_t timeout_ns,
                                                                 const gpusync_wait_options *GPUSYNC_OPT options);

/** A point to wait for or to signal. Calls that get a point check it, and retain what it names. */
typedef struct gpusync_point {
    gpusync_queue *GPUSYNC_OPT queue;       /**< Of the ticket. */
    gpusync_ticket ticket;                  /**< GPUSYNC_EVERYTHING: only in gpusync_wait_many. */
    gpusync_timeline *GPUSYNC_OPT timeline; /**< Of the value; NULL: the point is a ticket. */
    uint64_t value;                         /**< Up to GPUSYNC_MAX_VALUE. */
} gpusync_point;

/** The point of a ticket, unchecked. */
GPUSYNC_API inline gpusync_point gpusync_at_ticket(gpusync_queue *queue, gpusync_ticket ticket)
{
    gpusync_point point = {queue, ticket, NULL, 0};
    return point;
}
/** The point of a value, unchecked. */
GPUSYNC_API inline gpusync_point gpusync_at_value(gpusync_timeline *timeline, uint64_t value)
{
    gpusync_point point = {NULL, 0, timeline, value};
    return point;
}

typedef enum GPUSYNC__CLOSED_ENUM gpusync_wait_for {
    GPUSYNC_WAIT_ALL,           /**< When every point has ended. */
    GPUSYNC_WAIT_ANY,           /**< When one point has ended, well or badly. */
    GPUSYNC_WAIT_ALL_OR_FAILURE /**< When every point has ended, or one has failed. */
} gpusync_wait_for;

/** Wait for several points of one device; one may occur several times. A point fails when its object is destroyed, or a
    second after the loss of the device, if it has not ended when the wait looks again. More than 16 points allocate.
    which    Gets an index into points, or count, whatever the call returns. ANY: of the point that ended, the lowest if
             several have. Else: the lowest that failed; count: none has, or the call was refused.
    options  error: that of the point of `which`, also with TIMEOUT. EVERYTHING: its failures are told, of no other.
    Returns  As a wait for the point of `which`; if that is count, OK: every point succeeded, or there is none. TIMEOUT:
             with ALL a point may have failed. ERROR_INVALID_ARGUMENT: also ANY of none. ERROR_OUT_OF_MEMORY. */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_wait_many(const gpusync_point *GPUSYNC_OPT points, size_t count,
                                                               gpusync_wait_for how, uint64_t timeout_ns,
                                                               const gpusync_wait_options *GPUSYNC_OPT options,
                                                               size_t *GPUSYNC_OPT which);

/** Why a command buffer failed, by the driver's error number, else by Metal's code (examples/metal-behaves.md). A
    failure of gpusync's own is CANCELLED, GPU_TIMEOUT (Metal 4 gave a wait up) or OTHER. An open enum. */
typedef enum GPUSYNC__OPEN_ENUM gpusync_failure {
    GPUSYNC_FAILURE_NONE = 0,         /**< No failure. */
    GPUSYNC_FAILURE_OUT_OF_MEMORY,    /**< Free memory or split the work, then encode it again. */
    GPUSYNC_FAILURE_GPU_TIMEOUT,      /**< The work ran or waited too long, or held up the display: split the work. */
    GPUSYNC_FAILURE_PAGE_FAULT,       /**< Bad access in a shader: a bug, do not retry. */
    GPUSYNC_FAILURE_INVALID_RESOURCE, /**< A resource was gone: a bug, do not retry. */
    GPUSYNC_FAILURE_NOT_PERMITTED,    /**< iOS in the background: encode it again in the foreground. */
    GPUSYNC_FAILURE_INNOCENT_VICTIM,  /**< A fault of other work reset the GPU: encode it again at once. */
    GPUSYNC_FAILURE_ACCESS_REVOKED,   /**< Too many faults: the device is lost to this process. */
    GPUSYNC_FAILURE_DEVICE_REMOVED,   /**< Unplugged: the device is lost. */
    GPUSYNC_FAILURE_CANCELLED,        /**< gpusync_queue_cancel_held; what the work needs was destroyed. */
    GPUSYNC_FAILURE_OTHER             /**< See domain, code and message. */
} gpusync_failure;

/** One failure. Texts are UTF-8 (labels that are not: Latin-1), terminated, cut at a character; empty: unknown. */
struct gpusync_error {
    gpusync_result result;   /**< What a wait for the ticket returns. */
    gpusync_failure failure; /**< The class: what helps. */
    /** Of the queue that was asked; of a timeline: of the work that failed it. 0: UNORDERED work (see label); the call,
        or the timeline, failed, not work; or its record was dropped. */
    gpusync_ticket ticket;
    /** As ticket; inherited: the ticket that failed first (ERROR_RESULT_UNKNOWN: the one that is off the record), on
        the queue of queue_label. 0: UNORDERED work, or none, failed first. */
    gpusync_ticket origin;
    int64_t code;     /**< NSError code: look at the domain first. */
    uint64_t dropped; /**< Of next_error, EVERYTHING: failures before this one that newer ones pushed off the record. */
    bool inherited;   /**< The failure of what the work waited for, or one that stuck: its texts, too. */
    bool ran;         /**< Metal had this work: memory may have been written. */
    bool in_use;      /**< This work was given up: the GPU may use its memory. Of earlier work gpusync_is_done tells. */
    bool transient;   /**< The same work, encoded into a new command buffer, may succeed. */
    void *GPUSYNC_OPT queue_user; /**< gpusync_queue_desc.user of the queue of queue_label; NULL: no queue failed. */
    char domain[64];              /**< NSError domain; empty: a failure of gpusync's own. */
    char message[256];            /**< NSError localizedDescription, or a text of gpusync. */
    char label[64];       /**< Of the command buffer (not made by gpusync: as Metal tells), else of the submission. */
    char queue_label[64]; /**< Of its queue; inherited: of the queue that failed first, as label. */
    char encoder[64];     /**< One that Metal names as faulted, else as affected: needs encoder_status. */
};

#define GPUSYNC_FROM_NOW UINT64_MAX /**< A cursor of gpusync_queue_next_error that skips what is on record. */
/** Read the next failure of this queue that the cursor has not seen, for logs and recovery. A cursor passes every
    failure on record once, in the order in which tickets ended. Each is on record before a call or callback tells it.
    cursor  The reader's own, on one thread at a time. 0: from the oldest on record. GPUSYNC_FROM_NOW: the call sets it
            after the newest, and returns NOT_READY. Else only OK changes it.   Returns  OK; NOT_READY: no more now. */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_queue_next_error(gpusync_queue *queue, uint64_t *cursor,
                                                                      gpusync_error *error);

/** The text of a class: static English, also for unknown values. */
GPUSYNC_API const char *gpusync_failure_string(gpusync_failure failure);
/** True if the device is lost, for good: a failure of class ACCESS_REVOKED or DEVICE_REMOVED has said so. New objects
    and new work are refused, and held work ends, with ERROR_DEVICE_LOST. Work that Metal has may run, and ends as
    before. From a second after the loss on, waits and polls return ERROR_DEVICE_LOST for what has not ended; destroy
    gives such work up, and runs its callbacks. These errors have the class, code and text of the loss. gpusync_is_done
    stays the truth. Only a new process has been seen to work after ACCESS_REVOKED. Does not look. False for NULL. */
GPUSYNC_API bool gpusync_device_is_lost(const gpusync_device *GPUSYNC_OPT device);

/* You can stop reading here. The rest serves further needs. */

/* ------------------------------------------------------------------------------------------------------- >>more --
   Callbacks run soon after the end, on a serial dispatch queue or in gpusync_device_run_callbacks, never on Metal's
   threads. Those of a device run one at a time, as they became due, those of one point as they were registered,
   on_complete of a submission first. A destroy runs its own beside them. A slow one delays the others, but no wait. A
   wait may return before the callback of its ticket has run. */

/** Called when a point has ended. error: NULL with OK, else valid in the call; see in_use before you free memory. */
typedef void (*gpusync_done_fn)(void *GPUSYNC_OPT user, gpusync_result result, const gpusync_error *GPUSYNC_OPT error);
/** Have gpusync call fn once when the point has ended, even if it has. `user` stays valid until then. fn gets what a
    wait for the point would return, or ERROR_DESTROYED: its timeline was destroyed without the value. On a lost device
    fn may come only in the destroy. gpusync_poll may have no GPU times yet. After an error fn is not called. */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_on_done(gpusync_point point, gpusync_done_fn fn,
                                                             void *GPUSYNC_OPT user);
/** Withdraw a callback of gpusync_on_done: of those with this point, fn and user the newest. A search of its object.
    Returns  OK: fn will not be called for it; `user` may be freed. NOT_READY: fn runs or has run, or there is none. */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_cancel_on_done(gpusync_point point, gpusync_done_fn fn,
                                                                    void *GPUSYNC_OPT user);

/** Retain an object that the GPU uses and Metal does not. Release it when and where a callback of the ticket would run,
    never if this or earlier work was given up. What frees memory in a callback has to ask gpusync_is_done, too. */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_release_after(gpusync_queue *queue, gpusync_ticket ticket,
                                                                   void *object);

/** Called once when the device is lost, as callbacks are. error, valid during the call: the failure that told of it. */
typedef void (*gpusync_lost_fn)(void *GPUSYNC_OPT user, const gpusync_error *error);
/** Have gpusync call fn when the device is lost, soon if it is. Needs no memory. gpusync_device_destroy drops a call
    that is due.   Returns  OK; ERROR_IN_USE: there is one for this device. */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_device_on_lost(gpusync_device *device, gpusync_lost_fn fn,
                                                                    void *GPUSYNC_OPT user);

/** With CALLBACKS_MANUAL: run the callbacks and releases that are due at the call, the oldest first, at most max; in
    each turn of an event loop, or after notify. Looks at the whole device first (QUEUED: that alone). If some have run
    and others are due, it notifies. count gets how many have run. Returns at once if another thread runs one. */
GPUSYNC_API gpusync_result gpusync_device_run_callbacks(gpusync_device *device, size_t max, size_t *GPUSYNC_OPT count);

/* Timelines. Each is a 64-bit number in an MTLSharedEvent. A wait for a value ends once the number is that or more. A
   failed one stays failed. Give work that fails independently, and each queue that signals, a timeline of its own. */

#define GPUSYNC_MAX_VALUE (UINT64_MAX >> 1) /**< Largest value of a timeline that gpusync signals or waits for. */
typedef struct gpusync_timeline_desc {
    uint64_t initial_value;        /**< Of a timeline with its own event, else ignored. Up to GPUSYNC_MAX_VALUE. */
    const char *GPUSYNC_OPT label; /**< Shows in failures; NULL: none. */
    /** An MTLSharedEvent that other code signals, too; for one timeline of each device (not checked). NULL: makes one.
        Its value UINT64_MAX fails the timeline with ERROR_EXECUTION; others above GPUSYNC_MAX_VALUE count as that. */
    void *GPUSYNC_OPT shared_event;
    /** Other code signals the event; shared_event implies it. Work that waits for a value is then sent without a known
        signal: if that comes only after work that gpusync holds, the GPU's watchdog may end the wait. The value is the
        event's, but stays below the lowest signal of sent work until that has ended. */
    bool signalled_by_others;
    /** Its values come, in order, though work fails or never runs (also if imported): frames outlive failed ones. */
    bool order_only;
} gpusync_timeline_desc;

/** Make a timeline.   Returns  OK. ERROR_METAL_NIL: as in sandboxes. ERROR_UNSUPPORTED: Metal has no shared event. */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_timeline_create(gpusync_device *device,
                                                                     const gpusync_timeline_desc *GPUSYNC_OPT desc,
                                                                     gpusync_timeline *GPUSYNC_OPT *GPUSYNC_REQ out);
/** Destroy a timeline ("Destroying"). Waits and callbacks for values that are not reached end with ERROR_DESTROYED.
    Signals of committed work still reach waits of work, also of buffers that are open. Held work that waits for a
    higher value ends with ERROR_DESTROYED, unless other code signals: destroy it behind the commits of its signals. */
GPUSYNC_API gpusync_result gpusync_timeline_destroy(gpusync_timeline *GPUSYNC_OPT timeline);
/** Called when a _destroy_later call has destroyed its object. Runs as a callback does. */
typedef void (*gpusync_destroyed_fn)(void *GPUSYNC_OPT user);
/** Destroy a timeline as gpusync_timeline_destroy does, without blocking: see "Destroying". */
GPUSYNC_API gpusync_result gpusync_timeline_destroy_later(gpusync_timeline *GPUSYNC_OPT timeline,
                                                          gpusync_destroyed_fn GPUSYNC_OPT destroyed,
                                                          void *GPUSYNC_OPT user);

/** The MTLSharedEvent, borrowed, NULL for NULL. Its values are the timeline's plus *base (modulo 2^64), which is 0 if
    others signal. Other code may wait for them. Call this before the expression that uses base. */
GPUSYNC_API void *GPUSYNC_OPT gpusync_timeline_metal(gpusync_timeline *GPUSYNC_OPT timeline,
                                                     uint64_t *GPUSYNC_OPT base);

/** Read the present value: every value up to it is reached. The event's may be higher, until the work has succeeded, or
    lower, for a moment after the host's signal. Does not look at work, but at the event with signalled_by_others.
    Returns  OK; the result of the failure: *value is what was reached. */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_timeline_query(gpusync_timeline *timeline, uint64_t *value,
                                                                    gpusync_error *GPUSYNC_OPT error);
/** Raise the timeline from the host: ends waits, on host and GPU, and sends held work. Signals of held and open work up
    to the value are NOT_RISING then; cancelled work fails no timeline then.
    Returns  OK; the result of the failure. ERROR_NOT_RISING: not above what is reached (perhaps by another thread), or
             not below the lowest signal of sent work that is not reached (Vulkan's rule). */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_timeline_signal(gpusync_timeline *timeline, uint64_t value);

/** Have a block raise the timeline: sends [object selector:block], to wait for *presented*, *scheduled*, or the end of
    a command buffer of other code. The value counts as sent. It is reached when the block has been called, whatever its
    arguments, and each lower value is reached; what needs it waits on the host. A block that is dropped uncalled fails
    the timeline (ERROR_CANCELLED; order_only: the value is reached). A second call does nothing. After
    gpusync_timeline_destroy it still raises the event; gpusync_device_destroy waits for it.
    object    Not retained; copies the block. Where it calls or drops that, callbacks may run: "Hooks and log".
    selector  "addPresentedHandler:" of a drawable; "addScheduledHandler:", "addCompletedHandler:" of a command buffer
              that is not committed; any that takes one block, which returns nothing.
    Returns  OK; the result of the failure. ERROR_NOT_RISING: not above all that is reached or committed, or held work
             is to signal the timeline. ERROR_UNSUPPORTED: the object does not respond. ERROR_DEVICE_LOST. */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_timeline_signal_from(gpusync_timeline *timeline, uint64_t value,
                                                                          void *object, const char *selector);

/** Fail the timeline, order_only ones too: values that are not reached fail, now and later. Waits on the GPU end, for
    its own event gets UINT64_MAX; an imported one is not written. Work in flight that was to signal it is not affected.
    What waits gets the result of reason (from ERROR_INVALID_ARGUMENT to ERROR_COMPILE, else ERROR_EXECUTION), its class
    (NONE: OTHER), code, texts, labels and queue_user.   Returns  OK; the result of an earlier failure. */
GPUSYNC_API gpusync_result gpusync_timeline_fail(gpusync_timeline *timeline, const gpusync_error *GPUSYNC_OPT reason);
/** Wait for a value. It may be reached a moment before its ticket ends.   Returns  OK; TIMEOUT; the failure. */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_timeline_wait(gpusync_timeline *timeline, uint64_t value,
                                                                   uint64_t timeout_ns,
                                                                   const gpusync_wait_options *GPUSYNC_OPT options);

/* Waits and signals of work are encoded into a command buffer, which is committed like any other. Or they are those of
   a submission, which makes one ticket of several command buffers. Never both.
   Held. Work is held as sentence 6 says, while held work is in front of it, and while the order of values demands it. A
   signal behind the wait for it on one queue never comes: gpusync_queue_cancel_held ends such work. If other code may
   signal it, both may be sent, and never end: gpusync_timeline_fail ends them.
   Order of values. On the GPU a wait for 3 also ends at 5. So the signals of a timeline go to Metal in rising order,
   the lowest of committed work first, held or not. Number values at the commit; open buffers do not count. A signal is
   refused (ERROR_NOT_RISING) if its value is not above all that was sent or reached; if committed work is to signal
   that value; or if earlier ordered work of its queue is to signal a higher one. Work with a higher signal is held:
     - while work that is to signal a lower value is not sent. Cancelled work counts until it has ended in its turn
       (order_only: until its value is raised).
     - while a lower value is sent and not reached. Two kinds of work go all the same: work that waits for the lower
       value, or for a higher one; and ordered work behind that of the lower signal in one queue, if the host makes the
       higher signal, or the GPU makes both.
   So only the host and other code can fail held work. If on two timelines each of two works has the lower value,
   neither goes: the report shows it, gpusync_queue_cancel_held ends it. A failed timeline gets no signals any more.
   Overlap. Metal may run command buffers of a queue that share no tracked resource at the same time, and complete them
   in any order (gfx-rs/wgpu#9483). So a value that the GPU signals stands for what its own command buffer has done
   before; a signal in an empty buffer behind other work stands for nothing. If a lower value of the queue is in flight,
   the GPU waits for that first; for an imported event that is not order_only the host holds the work instead.
   Enqueued. A command buffer that the program has enqueued cannot be held: while ordered work is held its commit is
   ERROR_ENQUEUED. With encoded waits or signals that is always so: call [buffer commit], then discard the buffer; the
   GPU makes its waits, and no signals. Enqueue only where no work waits: until its commit Metal runs nothing behind it.
   Several may be committed in any order, which is that of the tickets.
   Failure. What waits for a failed timeline fails; its own event gets UINT64_MAX. So work that waits on the GPU runs on
   whatever its input contains, and its ticket fails. Work that only signals the timeline does not fail with it. */

/** Encode a wait: what comes later in the command buffer waits for the point, on the GPU; for a ticket the host waits.
    Call it between encoders, or before the first to make everything wait. The buffer is open from here on, and is held
    as a whole: gpusync_commit it, never [buffer commit], or discard it. Nothing is encoded for what is reached. If the
    point fails, the ticket fails with the same error, or, if that is off the record, with ERROR_RESULT_UNKNOWN.
    Returns  OK, also if the timeline has failed; ERROR_WRONG_QUEUE; ERROR_ENQUEUED; ERROR_ALREADY_COMMITTED.
             ERROR_INVALID_ARGUMENT: also behind a signal of this buffer, which the point may need: commit first. */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_encode_wait(gpusync_queue *queue, void *command_buffer,
                                                                 gpusync_point point);
/** Have the command buffer, open from here on, signal a value on the GPU, at its end ("Overlap"). An encoder may be
    open, and must be ended at the commit. Until the commit other work may signal the value first. For a value in the
    middle of a buffer signal an imported event by hand.
    Returns  As gpusync_encode_wait; the failure of the timeline. ERROR_NOT_RISING: also not above what this buffer
             signals or waits for. ERROR_INVALID_ARGUMENT: also a ticket. */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_encode_signal(gpusync_queue *queue, void *command_buffer,
                                                                   gpusync_point point);

/** Flags of a submission; 1 and 2, of older versions, are refused. Without ON_GPU it is strict: held until each value
    is reached, and the host signals in its turn, so a value stands for all work with tickets before it, too. Of values
    of other code it learns by Metal's listener, or a look (50 to 400 ms): prefer ON_GPU or an encoded wait. */
typedef enum GPUSYNC__FLAG_ENUM gpusync_submit_flags {
    /** No ticket: `ticket` must be NULL. Passes held work, and delays none but by the order of values. */
    GPUSYNC_SUBMIT_UNORDERED = 4,
    /** The GPU waits, in a command buffer of gpusync's own in front, and signals at the end of the last one. The order
        of the queue alone keeps that: where Metal overlaps, work may run before a wait ends, unless it is encoded. */
    GPUSYNC_SUBMIT_ON_GPU = 8
} gpusync_submit_flags;
typedef struct gpusync_submission {
    const gpusync_point *GPUSYNC_OPT wait_points; /**< Values of timelines; tickets of any queue of the device. */
    size_t wait_count;                            /**< 0: wait_points may be NULL. */
    void *GPUSYNC_REQ const *GPUSYNC_OPT command_buffers; /**< MTLCommandBuffers, each once, in this order. */
    size_t command_buffer_count;                          /**< 0: a ticket that ends when its waits have. */
    const gpusync_point *GPUSYNC_OPT signal_points;       /**< Values of timelines. */
    size_t signal_count;                                  /**< 0: signal_points may be NULL. */
    gpusync_done_fn GPUSYNC_OPT on_complete;              /**< Called once at the end, as if by gpusync_on_done. */
    void *GPUSYNC_OPT user;                               /**< Passed to on_complete. */
    const char *GPUSYNC_OPT label;                        /**< Shows in failures; NULL: none. */
    uint32_t flags; /**< gpusync_submit_flags; ON_GPU counts with command buffers. */
} gpusync_submission;

/** Submit command buffers between waits and signals as one ticket, which ends when all of them, and all points that
    they wait for, have ended. Never waits for room. Add nothing afterwards: gpusync does, as it sends them. *ticket is
    written before on_complete may run. After an error the buffers are as before, and on_complete is not called.
    UNORDERED: signals and on_complete tell of the end; a failure has ticket 0 and the label.
    Returns  As gpusync_commit; ERROR_ENQUEUED: any is enqueued. ERROR_NOT_RISING: also own points. ERROR_QUEUE_FULL: no
             room for gpusync's own buffer, or for a submission without any. ERROR_INVALID_ARGUMENT: also a buffer with
             encoded points (commit it) or twice, `ticket` with UNORDERED, a signal of a ticket, unknown flags. */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_submit(gpusync_queue *queue, const gpusync_submission *submission,
                                                            gpusync_ticket *GPUSYNC_OPT ticket);

/** Get a ticket for what other code (MPSGraph, sokol_gfx, commitAndContinue) has committed to this Metal queue: gpusync
    commits an empty command buffer behind it at once. The ticket ends in its turn, behind held work, too: never make
    what held work waits for depend on a marker behind it. For one buffer of other code use gpusync_timeline_signal_from
    with addCompletedHandler:. Metal runs the marker after what the other code has enqueued. Other code must not commit
    a buffer that gpusync keeps. If it did, discard the buffer; if that was held, Metal aborts.
    behind  A committed buffer of this queue, after which the ticket ends, and with which it fails: pass the last one.
            NULL: the ticket fails with nothing, and ends after all that was committed (assumed: Metal may overlap an
            empty buffer; safe are `behind`, or a handler for each).
    Returns  OK. ERROR_NOT_COMMITTED: Metal does not have `behind`. ERROR_WRONG_QUEUE. ERROR_QUEUE_FULL. */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_commit_marker(gpusync_queue *queue, void *GPUSYNC_OPT behind,
                                                                   gpusync_ticket *GPUSYNC_OPT ticket);

/** End one held ticket, or (EVERYTHING) all held work of the queue, with ERROR_CANCELLED: it never runs, ends in its
    turn, and its timelines fail then (order_only ones rise). Encode it anew: what old buffers wait for is forgotten.
    Returns  OK. NOT_READY: Metal has the work, or it has ended or is cancelled. ERROR_INVALID_TICKET: also up to 0. */
GPUSYNC_API gpusync_result gpusync_queue_cancel_held(gpusync_queue *queue, gpusync_ticket ticket);

/** Destroy the queue without waiting for the GPU: for one that hangs, or at exit. Danger: the GPU goes on with what
    Metal has, no call can tell when that is finished, and in callbacks gpusync_is_done is false: never free its memory.
    Sent work ends with ERROR_DESTROYED and in_use, held work with ERROR_CANCELLED (on a lost device both with
    ERROR_DEVICE_LOST). Timelines that sent work was to signal fail, order_only ones too. */
GPUSYNC_API gpusync_result gpusync_queue_abandon(gpusync_queue *GPUSYNC_OPT queue);
/** Destroy a queue as gpusync_queue_destroy does, without blocking: see "Destroying". If the GPU hangs, the queue, its
    memory and its device remain until the device is lost; a look at the whole device a second later gives it up. */
GPUSYNC_API gpusync_result gpusync_queue_destroy_later(gpusync_queue *GPUSYNC_OPT queue,
                                                       gpusync_destroyed_fn GPUSYNC_OPT destroyed,
                                                       void *GPUSYNC_OPT user);

/* What sticks. With sticky_failure a failure of ordered work or of a marker, its own or inherited, but ERROR_CANCELLED,
   sticks from its end until gpusync_queue_clear_failure; a second one does not replace it. While it sticks
   gpusync_command_buffer_create, gpusync_commit and gpusync_submit return ERROR_EXECUTION, held ordered work never
   runs, and waits and polls for EVERYTHING return it. Ordered work that was committed before the clear ends with this
   failure, or one of its own. Markers are accepted; they and UNORDERED work keep their own results. */

/** Read the failure that sticks. Looks first.   Returns  OK; NOT_READY: none. ERROR_INVALID_ARGUMENT: not sticky. */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_queue_failure(gpusync_queue *queue, gpusync_error *error);
/** Accept new work again: the program has handled the failure of `ticket` (EVERYTHING: any). Looks first. Work that was
    committed before sticks no more. Failed timelines stay failed. Waits for everything still tell what was not told.
    Returns  OK: cleared; or nothing stuck, and nothing has changed: work in flight may still stick. NOT_READY: the
             failure of a later ticket sticks. ERROR_INVALID_ARGUMENT: also not sticky. */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_queue_clear_failure(gpusync_queue *queue, gpusync_ticket ticket);

/** Write a text that says why nothing moves. It has every object, every open buffer, all work that has not ended or has
    a handler left, every call that sleeps, every callback and log call that runs. "Over": none of it will run any more.
    "No committed work" is to signal: an open buffer or the host may. "Committed" and "scheduled" are Metal's. Ages
    count from the opening, hold, send or end on the GPU. Each line was true when written. buffer (NULL: none) gets size
    - 1 bytes at most, terminated.   Returns  the whole length, as snprintf; 0 for NULL. */
GPUSYNC_API size_t gpusync_device_report(gpusync_device *GPUSYNC_OPT device, char *GPUSYNC_OPT buffer, size_t size);

/* Queues of Metal 4 (macOS 26, iOS 26) take commits and submissions, and wait for others as others for them. But:
   Buffers    The program makes, begins and ends them. Several in one submission have one ticket. Begin each again
              before each commit, for Metal accepts a recording once, and never while it is held: gpusync cannot check.
   Room       Counts tickets. No limit by default; with max_command_buffer_count a commit may return ERROR_QUEUE_FULL.
   Lifetimes  gpusync retains command buffers until the feedback; the queue, and the events of signals, until these are
              made (on a lost device perhaps for ever). The program owns the rest, residency and barriers, too. Reset an
              allocator when its work is done.
   End        Comes in a feedback alone: neither polls nor looks see it earlier. If Metal loses one, the ticket never
              ends, and only gpusync_queue_abandon returns. Never wait on the feedbackQueue.
   Points     Those ON_GPU are operations of the queue, in order: a wait delays all its later work. Metal gives up a
              wait that takes too long and runs the work; if the value is not reached then, the ticket fails.
   ERROR_UNSUPPORTED: gpusync_command_buffer_create, gpusync_encode_wait and _signal, gpusync_commit_marker. */

/** As gpusync_queue_create, with an MTL4CommandQueue. ERROR_UNSUPPORTED: no Metal 4, or metal_queue is none. */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_metal4_queue_create(gpusync_device *device,
                                                                         const gpusync_queue_desc *GPUSYNC_OPT desc,
                                                                         gpusync_queue *GPUSYNC_OPT *GPUSYNC_REQ out);

/* ------------------------------------------------------------------------------------------------------- >>rare -- */

/** How long a wait spins before it sleeps: until one of these is used up. A time alone pauses; zeros sleep at once.
    NULL in its place: to the end, if that is expected within 250 us, else 20 us; less often after spins in vain. */
struct gpusync_spin {
    uint32_t pause_iterations; /**< First, with the CPU's pause instruction in between. */
    uint32_t yield_iterations; /**< Then, with the yield hook in between. */
    uint64_t max_spin_ns;      /**< Nanoseconds; 0: no limit in time. */
};

/** A sleeping thread or fiber, as the hooks see it. It lives for one wait, which may park several times. */
typedef struct gpusync_waiter {
    void *GPUSYNC_OPT scheduler_data[2]; /**< The hooks' own: NULL at first, never touched by gpusync. */
} gpusync_waiter;
/** How a wait waits, for fiber schedulers and runtimes. yield and park run on its thread. See "Hooks and log". */
struct gpusync_hooks {
    void (*GPUSYNC_OPT yield)(void *GPUSYNC_OPT user); /**< Lets others run, briefly. NULL: sched_yield. */
    /** Sleeps until unpark(waiter), or until gpusync_now_ns reaches deadline_ns (never GPUSYNC_FOREVER). May return
        early. An earlier unpark leaves a permit, one at most: park then returns at once. On a thread without a task of
        the scheduler it may just sleep. NULL (unpark, too): a condition variable. */
    void (*GPUSYNC_OPT park)(void *GPUSYNC_OPT user, gpusync_waiter *waiter, uint64_t deadline_ns);
    /** Wakes the waiter, on any thread, Metal's too. May acquire a short lock; must not block, nor run the waiter
        inside the call. The waiter lives until unpark has returned. */
    void (*GPUSYNC_OPT unpark)(void *GPUSYNC_OPT user, gpusync_waiter *waiter);
    void *GPUSYNC_OPT user; /**< Passed to all three. */
};

/** Counts since the queue, or the device, was made. A wait that loads answer may go uncounted. */
typedef struct gpusync_stats {
    uint64_t commits;          /**< Works that were committed: tickets, and UNORDERED work. */
    uint64_t completions;      /**< Works that have ended. */
    uint64_t failures;         /**< Works that failed, cancelled ones too. */
    uint64_t failures_dropped; /**< Failures that newer ones pushed off the record. */
    uint64_t held;             /**< Works that were held. */
    uint64_t waits_inline;     /**< Waits that ended at once. */
    uint64_t waits_status;     /**< Waits that ended by a look. */
    uint64_t waits_spin;       /**< Waits that ended in the spin. */
    uint64_t waits_sleep;      /**< Waits that ended after sleeping. */
    uint64_t waits_unmet;      /**< Waits that ended at their limit, or refused in a callback. */
    uint64_t spins_in_vain;    /**< Waits that slept, or ended at their limit, after a spin. */
    uint64_t spin_ns;          /**< Nanoseconds in spins. */
    uint64_t wakes;            /**< Waits for one queue that slept, if the GPU's end is known. */
    uint64_t wake_ns;          /**< Nanoseconds from that end until the thread woke, the sum. */
} gpusync_stats;
/** Read the counts of a queue of the device. NULL: the sum over its queues, destroyed ones too, and waits for
    timelines, for several points, for warm-ups, and for room. */
GPUSYNC_API gpusync_result gpusync_device_get_stats(gpusync_device *device, gpusync_queue *GPUSYNC_OPT queue,
                                                    gpusync_stats *stats);

/** The kinds of events of a trace, which may come out of order. A wait that loads answer has none. An open enum. */
typedef enum GPUSYNC__OPEN_ENUM gpusync_trace_kind {
    GPUSYNC_TRACE_COMMIT, /**< queue, ticket or number: work was accepted. */
    GPUSYNC_TRACE_SENT,   /**< The same: Metal has it. For all work that Metal gets, held before or not. */
    GPUSYNC_TRACE_ENDED, /**< The same, result, gpu_start_s, gpu_end_s (0: not known); times in the order of tickets. */
    GPUSYNC_TRACE_SIGNAL, /**< timeline, value: is reached, whatever brought it; of several at once the highest. */
    GPUSYNC_TRACE_WAIT    /**< Its point (EVERYTHING: the last ticket; several: none), begin_ns, result, how. */
} gpusync_trace_kind;
/** How a wait ended, as gpusync_stats counts it. */
typedef enum GPUSYNC__CLOSED_ENUM gpusync_wait_end {
    GPUSYNC_ENDED_INLINE, /**< At once. */
    GPUSYNC_ENDED_STATUS, /**< By a look. */
    GPUSYNC_ENDED_SPIN,   /**< In the spin. */
    GPUSYNC_ENDED_SLEEP,  /**< After sleeping. */
    GPUSYNC_ENDED_UNMET   /**< At its limit, or refused in a callback. */
} gpusync_wait_end;
/** One event. Fields that its kind does not name are zero. */
typedef struct gpusync_trace_event {
    gpusync_trace_kind kind;                      /**< What happened. */
    uint64_t time_ns;                             /**< When, by gpusync_now_ns. */
    uint64_t begin_ns;                            /**< Of WAIT: when it began. */
    const gpusync_queue *GPUSYNC_OPT queue;       /**< Of the ticket. */
    gpusync_ticket ticket;                        /**< Of commit, submission or wait. */
    uint64_t number;                              /**< Of UNORDERED work, whose ticket is 0: 1, 2, ... of the queue. */
    const gpusync_timeline *GPUSYNC_OPT timeline; /**< Of the value. */
    uint64_t value;                               /**< Signalled or waited for. */
    gpusync_result result;                        /**< Of the work, the wait or the point. */
    gpusync_wait_end how;                         /**< Of WAIT. */
    double gpu_start_s, gpu_end_s;                /**< As gpusync_times. */
    const char *label; /**< Of the work, else its queue, or the timeline; empty: none. Valid during the call. */
} gpusync_trace_event;

/** Called for an event, on the event's thread, Metal's too, with no lock held. Must be quick, and not call gpusync. */
typedef void (*gpusync_trace_fn)(void *GPUSYNC_OPT user, const gpusync_trace_event *event);
/** Gets the events of a device. Lives as long as the device. */
typedef struct gpusync_trace {
    gpusync_trace_fn fn;
    void *GPUSYNC_OPT user; /**< Passed to fn. */
} gpusync_trace;
/** Pass the device's events to trace from now on; NULL: to none. A call in progress may still use the one before. */
GPUSYNC_API gpusync_result gpusync_device_set_trace(gpusync_device *device, const gpusync_trace *GPUSYNC_OPT trace);

/** Makes item i: with OK sets *made to an Objective-C object whose reference becomes gpusync's (ARC:
    __bridge_retained), or leaves it. error is zeroed: fill in class, code, texts. Runs with a pool, on a dispatch queue
    or in _get. May wait for work, not for warm-ups. All calls for it get the result; above 0: ERROR_COMPILE. */
typedef gpusync_result (*gpusync_warmup_fn)(void *GPUSYNC_OPT user, size_t i, void *GPUSYNC_OPT *GPUSYNC_REQ made,
                                            gpusync_error *error);
/** What to make in advance: pipelines of any kind, first kernels, compiled code. */
typedef struct gpusync_warmup_desc {
    gpusync_warmup_fn GPUSYNC_OPT fn; /**< Required, unless count is 0. */
    void *GPUSYNC_OPT user;           /**< Passed to fn; valid until the destroy has returned. */
    size_t count;                     /**< Items: 0 to count - 1. */
    bool disabled;                    /**< Nothing is made in advance: gpusync_warmup_get makes what is asked for. */
} gpusync_warmup_desc;

/** Make items in advance, in order, each once, on a serial dispatch queue of gpusync's own of "user initiated". */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_warmup_start(gpusync_device *device,
                                                                  const gpusync_warmup_desc *desc,
                                                                  gpusync_warmup *GPUSYNC_OPT *GPUSYNC_REQ out);
/** Wait until all items are made. A failure does not stop the others. done and total get how many were tried, and how
    many there are; both are 0, and the call does not wait, if the warm-up is disabled.
    Returns  OK; the result of the lowest item that failed, when all were tried; TIMEOUT: done is less than total. */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_warmup_wait(gpusync_warmup *warmup, uint64_t timeout_ns,
                                                                 size_t *GPUSYNC_OPT done, size_t *GPUSYNC_OPT total);

/** Get item i: runs fn in this call if it has not begun, else waits for it. timeout_ns bounds the wait, not fn; 0:
    neither runs fn nor waits. *made is borrowed while the warm-up lives. An error without a label gets "item 3".
    Returns  OK; the result of fn; TIMEOUT. ERROR_DEVICE_LOST: not made a second after the loss. ERROR_WOULD_DEADLOCK:
             also in fn, if the item is not made yet. ERROR_INVALID_ARGUMENT: also no such item. */
GPUSYNC_API GPUSYNC_NODISCARD gpusync_result gpusync_warmup_get(gpusync_warmup *warmup, size_t i, uint64_t timeout_ns,
                                                                void *GPUSYNC_OPT *GPUSYNC_REQ made,
                                                                gpusync_error *GPUSYNC_OPT error);
/** Destroy a warm-up ("Destroying") and what it made. Items that have not begun are skipped. In fn:
    ERROR_WOULD_DEADLOCK. Blocks until a running fn has returned, which may take seconds. */
GPUSYNC_API gpusync_result gpusync_warmup_destroy(gpusync_warmup *GPUSYNC_OPT warmup);

/** The clock of deadline_ns and timeouts: monotonic nanoseconds, which stop while an Apple system sleeps. */
GPUSYNC_API uint64_t gpusync_now_ns(void);

/** Destroy a device when its objects are destroyed, without blocking ("Destroying"). They stay usable until then, the
    device not, but for gpusync_device_run_callbacks with CALLBACKS_MANUAL, on one thread, until it calls `destroyed`.
    After that a thread may still be in a hook, log or notify: keep these, answer no notify, never unload. */
GPUSYNC_API gpusync_result gpusync_device_destroy_later(gpusync_device *GPUSYNC_OPT device,
                                                        gpusync_destroyed_fn GPUSYNC_OPT destroyed,
                                                        void *GPUSYNC_OPT user);

/** The MTLDevice, borrowed; NULL for NULL. */
GPUSYNC_API void *GPUSYNC_OPT gpusync_device_metal(const gpusync_device *GPUSYNC_OPT device);
/** The MTLCommandQueue or MTL4CommandQueue, borrowed; NULL for NULL. */
GPUSYNC_API void *GPUSYNC_OPT gpusync_queue_metal(const gpusync_queue *GPUSYNC_OPT queue);
/** The version of the linked implementation, as GPUSYNC_VERSION: compare it with the header's. */
GPUSYNC_API uint32_t gpusync_version(void);

#ifdef GPUSYNC__MARKS
#pragma clang assume_nonnull end
#endif
#ifdef __cplusplus
}
#endif

#endif /* GPUSYNC_H */

/* ========================================================================================== */
/* ----------------------------------------------------------------------------- >>impl -- */

/* How it works, on one page. Names of functions in brackets.

   LAYERS. Each calls functions of its own and of those in front of it. Where a lower one has to reach a higher one
   there is a pointer that the higher one has set. tests/layers.sh cuts this file behind each, and compiles it.
     0  >>objc >>platform >>failure   Objective-C, atomics and locks, the texts of failures
     1  >>numbers >>objects           nodes, jobs; objects, whose numbers rise; the device and its lock
     2  >>wait                        goals, spin, sleep; what follows a change. Knows objects
     3  >>queue to >>create           work, tickets, failures on record, room, handler, look, commit, waits for points
     ------------- the core, whole by itself: a program that commits and waits needs no more
     4  >>callbacks                   callbacks, and later destroys
     5  >>timelines >>events          values; MTLSharedEvent; values of other code
     6  >>held >>encode >>submit      work with waits and signals, and what is held behind it
     7  >>metal4 >>trace >>warmup >>report

   UPWARDS
     node.fire        what goes on when its number has come: a sleeper [gpusync__rouse], a callback [gpusync__due], a
                      wait of work [gpusync__link_came], the end of a later destroy [gpusync__tell_gone], a queue that
                      is to settle [gpusync__settle_all], signals of Metal 4 [gpusync__signalled]
     job.run          what a thread does after its unlock
     object.kind      how a number stands, how one looks, what a destroy and the last reference do
     goal.aim         how what a wait waits for stands
     work.accept      whether its timelines take the signals. NULL, as the next: a plain commit asks nothing
     work.gate        judge, sent, encode, outcome, failed, settled, free
     queue.port       what Metal 4 does in its own way
     device.tracer, device.run_due    the trace; callbacks

   A CHANGE. A commit, a handler, a look, a signal, a destroy takes the device's lock, changes its object, and fires the
   nodes whose numbers have come [gpusync__rise]: sleepers go to `after`, callbacks become due, work is stirred
   [gpusync__stir]. Before the unlock all ended work settles that may, and what that lets settle, too [gpusync__go_on].
   After the unlock the thread unparks, then runs the jobs [gpusync__finish]: it writes and reads events, sends held
   work, asks for callbacks. A change costs what it changes, not what there is; but a ring is searched from one end: for
   an open or held buffer [gpusync__find_open, gpusync__is_held], for a number that does not rise [gpusync__insert].

   LIVES. The front's "ended" is SETTLED here, its "reached" is `completed`.
     number    of a ticket: committed [gpusync__line_up] -> its work settles, and all before it: `completed` passes it
               [gpusync__publish]. Of a value: promised [gpusync__accept_links] -> sent [gpusync__send_signal] -> its
               work settles: reached as soon as no lower signal is left [gpusync__reach], or the timeline fails
               [gpusync__fail].
     node      listed by number -> fired, off its ring; or withdrawn.
     job       listed [gpusync__later] -> cleared, then run, once for all that was asked meanwhile [gpusync__work_off].
     work      OPEN: made, or encoded into.
               -> enters its queue, and gets a ticket or, UNORDERED, a number [gpusync__admit]. It may go: SENT. It may
                  not yet: HELD, its waits are listed. It never may: ENDED, unsent.
               HELD -> a wait fires: stirred; judged, and set out under the order lock [gpusync__issue] -> SENT.
               SENT -> ENDED by its last handler, or a look [gpusync__end]; its room goes back.
               ENDED -> SETTLED when its waits are over, that with a ticket in turn [gpusync__settle]: its result is on
                  record, its signals pass, `completed` passes it, what waits for its ticket goes on.
               SETTLED -> off its queue when its handlers have come and no signal of it is listed [gpusync__forget].
     sleeper   checks, looks, spins; checks under the lock, lists its goals [gpusync__prepare], parks. The waker takes
               the goals off, sets `woken`, adds to `wakers` [gpusync__rouse]; unlocked, it clears `woken`, unparks, and
               subtracts from `wakers`: its last access [gpusync__unpark_one].
     callback  its memory comes before the ticket -> listed -> due, in the order in which tickets settle -> run by one
               thread at a time [gpusync__run_due] -> freed.

   TWO LOCKS
     order lock of a queue   from the ticket to [commit]: the order of tickets is Metal's order (but for buffers that
                             the program has enqueued). Commit, submit, marker and abandon block on it; what sends held
                             work tries it, and sets `missed` first.
     device's lock           everything but what a field calls atomic. Order: order lock, then device's lock.
   Beside them the lock for selectors and listeners, and the mutex of the default hooks: each is taken last.

   TABLES  what wakes a wait: >>wait; what holds work, and lets it go: >>held; the way of an error: >>queue, "failures
   on record"; when an event is written: >>events; who looks: >>look.

   WHO HOLDS WHAT, for each pointer that outlives a hold of the lock
     a call's device, queue, timeline     the program; a call that blocks takes a reference
     goal.object, link.object             a reference of the wait, of the work
     work in a ring of its queue          a reference of the ring, until it settles; a listed signal has one
     work in a handler's block            a reference of the block, taken once [gpusync__claim_work]
     work that a thread sends, traces     a reference of the thread
     work.queue, object.device            a reference
     callback.object                      a reference, until it was called
     job                                  of its object; `write`, `arm` and `issue` hold a reference to it while listed
     sleeper in `after`                   `wakers`
     a listener's block                   no timeline: `listening`, which forgets it [gpusync__timeline_free]
     the dispatch queue                   a reference to the device; a timer has none, and asks [gpusync__watch]

   NOT TO BE SWAPPED
     gpusync__unpark_one   next off the list; `woken` cleared; unpark; `wakers`   else another waker lists it; the frame
                                                                                  is gone
     gpusync__issue        `missed` set, try the lock; cleared, search            else ready work is held for ever
     gpusync__enter        unlock the order lock, read `missed`                   likewise
     gpusync__work_off     `listed` cleared, run                                  else a change is not seen
     gpusync__prepare      check, list, in one hold                               else a wake-up is lost
     gpusync__settle       info, record, SETTLED, `completed`                     else an end has no failure yet
     gpusync__fail         `error`, FAILED                                        else a failure without text is read
     gpusync__set_out      SENT, signals                                          else higher ones are judged too early
     gpusync__give_up      `unsent`, gpusync__end                                 else room is free that Metal counts
     gpusync__try_enter    accept, judge                                          else the order of values is not judged
     gpusync__completed    where a thread waits: end, unpark, times; in any       else a wait is late, or misses the
                           case: times, count `unheard` down                      times
     gpusync__reach        event to be written, waits fired                       else work is sent before its event
     gpusync__withdraw     event to be read, held work stirred                    else held work goes that other
                                                                                  code has overtaken
     gpusync__arm          list, ask Metal, read the event                        else a value comes in between
     gpusync__answer       `asked` cleared, callbacks                             else what becomes due is not asked for
     gpusync__await        `waits` counted, look                                  else an end comes late
     gpusync__lose         `loss`, `lost`                                         else a loss without text is read
     gpusync__abandon      CLOSED, the order lock once, give up                   else work is committed behind it

   WHAT ALWAYS HOLDS, at each unlock of the device
     1.  Under the device's lock comes no message, allocation, release, hook, callback or log line; under an order lock
         only what accepts, judges and sets out work, and the messages that send.
     2.  The holder of an order lock looks at `missed` after its unlock: else work that another thread has found ready
         is held for ever. (Not in an abandon: all held work has ended then. gpusync__bring takes the lock again.)
     3.  Nothing settles and nothing is unparked under an order lock. Ended work that may settle has settled at each
         unlock, but under an order lock: then the thread goes on behind it.
     4.  A node is on one ring at most; one that has been fired is on none. A wait of work that is not over is listed
         where that may change: of UNORDERED work that is held or has ended, of the first with a ticket that is held,
         and of the one that is to settle next. Held work is judged under its order lock alone.
     5.  A sleeper with `woken` set is on no ring, and will be unparked. Its frame goes at `wakers` 0.
     6.  `promised` is sorted, with a value once at most: those of sent work up to `sent`, above that those of held
         work, and of work that never runs. A value is reached only when no lower signal is left. `coming` <= `sent`;
         a GPU wait goes only up to `coming`, or for a value of other code.
     7.  Work is sent in an order in which no work waits, on the GPU, for work that is sent later, but for a value that
         other code may bring. Work with tickets settles in their order.
     8.  Work that never ran, or failed, waits for no value and no ticket, and needs no memory to fail.
     9.  The record, what sticks, how the ticket ended and the timelines' failure are there before `completed` rises, in
         one hold.
     10. A reference comes from a reference, or under the lock while the count is above 0 [gpusync__revive].
     11. Values of other code: what waits is listed, then Metal is asked, then the event is read [gpusync__arm]. The
         event is not believed from the lowest signal on of our own work that the GPU has not ended well.
     12. After CLOSED, and the order lock once, no thread stands between the ticket and [commit] [gpusync__abandon].
         Closing a timeline ends the host's waits and callbacks, and held work for values that never come, and nothing
         else.
     13. `owed` is above 0 while a callback of the object is not over. A destroy runs the callbacks of its own object,
         no others. Each call into the program comes from a thread that has a reference to the device.
     14. Room is the sum over reserved, open, held and sent work, given back once: at the end, or, of work that never
         ran, with its memory. An event outlives every signal that was sent for it. */

#if defined(GPUSYNC_IMPLEMENTATION) && !defined(GPUSYNC__IMPLEMENTED)
#define GPUSYNC__IMPLEMENTED
#if defined(GPUSYNC_STATIC) && !defined(GPUSYNC__PRIVATE)
#error "gpusync: define GPUSYNC_STATIC before the first include"
#endif

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
    case GPUSYNC_FAILURE_GPU_TIMEOUT: return "GPU timeout";
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

GPUSYNC_API uint32_t gpusync_version(void)
{
    return GPUSYNC_VERSION;
}

#if GPUSYNC_OBJC

#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#if !defined(__APPLE__) && (!defined(CLOCK_MONOTONIC) || (defined(_POSIX_C_SOURCE) && _POSIX_C_SOURCE < 200112L))
#error "gpusync.h needs POSIX: define _POSIX_C_SOURCE as 200809L before the first include, or use -std=gnu99"
#endif

#if defined(__has_feature)
#if __has_feature(ptrauth_calls)
#error "gpusync: arm64e needs signed block pointers, which are untried; build for arm64"
#endif
#endif

#ifndef GPUSYNC_MALLOC
#define GPUSYNC_MALLOC(size) malloc(size)
#define GPUSYNC_FREE(memory) free(memory)
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* --------------------------------------------------------------------------------- >>objc --
   Layer 0. Everything of the Objective-C runtime and of Metal that is used, declared here under private names. The asm
   label is the real symbol: so no SDK header is needed, and none can clash. */

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
extern void *gpusync__stack_block[32] GPUSYNC__SYMBOL("_NSConcreteStackBlock");

/* Through a variable, because gcc traps on a call of a declared function by another type. */
static void (*gpusync__send)(void) = gpusync__objc_msg_send;

/* objc_msgSend as a function of this result and, after object and selector, these arguments: they
   must be the method's own types, and never variadic. No selector here returns a struct, so
   objc_msgSend serves for all, double included, on arm64 and x86-64. */
#define GPUSYNC__AS(result) ((result(*)(void *, void *))gpusync__send)
#define GPUSYNC__WITH(result, ...) ((result(*)(void *, void *, __VA_ARGS__))gpusync__send)

static void *gpusync__send_id(void *self, void *sel)
{
    return GPUSYNC__AS(void *)(self, sel);
}
static unsigned long gpusync__send_ulong(void *self, void *sel)
{
    return GPUSYNC__AS(unsigned long)(self, sel);
}
static void gpusync__send_void_id(void *self, void *sel, void *other)
{
    GPUSYNC__WITH(void, void *)(self, sel, other);
}

/* Every selector that is sent: its field in gpusync__sel, and its name in Metal or Foundation. By
   the alphabet. */
/* clang-format off */
#define GPUSYNC__SELECTORS(X) \
    X(addCompletedHandler, "addCompletedHandler:") X(addFeedbackHandler, "addFeedbackHandler:") \
    X(beginCommandBuffer, "beginCommandBufferWithAllocator:") X(code, "code") X(commandBuffer, "commandBuffer") \
    X(commandBufferUnretained, "commandBufferWithUnretainedReferences") \
    X(commandBufferWithDescriptor, "commandBufferWithDescriptor:") X(commandQueue, "commandQueue") \
    X(commit, "commit") X(commit4, "commit:count:options:") X(count, "count") X(device, "device") \
    X(domain, "domain") X(encodeSignalEvent, "encodeSignalEvent:value:") \
    X(encodeWaitForEvent, "encodeWaitForEvent:value:") X(error, "error") X(errorState, "errorState") \
    X(gpuEndTime, "GPUEndTime") X(gpuStartTime, "GPUStartTime") X(label, "label") \
    X(localizedDescription, "localizedDescription") \
    X(newCommandQueueWithMax, "newCommandQueueWithMaxCommandBufferCount:") X(newObject, "new") \
    X(newQueue4, "newMTL4CommandQueue") \
    X(newQueue4With, "newMTL4CommandQueueWithDescriptor:error:") X(newSharedEvent, "newSharedEvent") \
    X(notifyListener, "notifyListener:atValue:block:") X(objectAtIndex, "objectAtIndex:") \
    X(objectForKey, "objectForKey:") X(registryID, "registryID") X(setErrorOptions, "setErrorOptions:") \
    X(setLabel, "setLabel:") X(setRetainedReferences, "setRetainedReferences:") \
    X(setSignaledValue, "setSignaledValue:") X(signaledValue, "signaledValue") X(signalEvent, "signalEvent:value:") \
    X(status, "status") X(stringWithCString, "stringWithCString:encoding:") \
    X(stringWithUTF8String, "stringWithUTF8String:") X(supportsFamily, "supportsFamily:") X(userInfo, "userInfo") \
    X(utf8String, "UTF8String") X(waitForEvent, "waitForEvent:value:")
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
    void *pool = gpusync__pool_push();
    void *object = gpusync__send_id(gpusync__class_named(name), gpusync__sel.newObject);
    gpusync__pool_pop(pool);
    return object;
}

/* +0, for the caller's pool. */
static void *gpusync__string(const char *text)
{
    void *cls = gpusync__class_named("NSString");
    return GPUSYNC__WITH(void *, const char *)(cls, gpusync__sel.stringWithUTF8String, text);
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

/* Copy an NSString; string may be nil. Needs a pool. */
static void gpusync__copy_string(char *to, size_t size, void *string)
{
    gpusync__copy_text(to, size, GPUSYNC__AS(const char *)(string, gpusync__sel.utf8String));
}

/* A text of the program's as an NSString, +0, for the caller's pool: UTF-8 or, if it is not valid, Latin-1. */
static void *gpusync__label(const char *text)
{
    void *label = gpusync__string(text);
    if (label)
        return label;
    void *cls = gpusync__class_named("NSString");
    return GPUSYNC__WITH(void *, const char *, unsigned long)(cls, gpusync__sel.stringWithCString, text, 5ul);
}

/* Copies a text of the program's, or NULL: nothing. */
static void gpusync__copy_label(char *to, size_t size, const char *text)
{
    if (!text)
        return;
    void *pool = gpusync__pool_push();
    gpusync__copy_string(to, size, gpusync__label(text));
    gpusync__pool_pop(pool);
}

/* Without a pool, as gpusync__read_event's: the two messages that waits send again and again return numbers. Assumed:
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
   Atomics, clock, locks, dispatch queues. Names say the order of memory. SEQ is sequentially consistent: for a thread
   that writes one thing and then reads another (`missed` and the order lock), and where it costs nothing that counts.
   Others are acquire and release, which pass on what was written before the store. */

#define GPUSYNC__LOAD(p) __atomic_load_n(p, __ATOMIC_ACQUIRE)
#define GPUSYNC__STORE(p, value) __atomic_store_n(p, value, __ATOMIC_RELEASE)
#define GPUSYNC__LOAD_SEQ(p) __atomic_load_n(p, __ATOMIC_SEQ_CST)
#define GPUSYNC__STORE_SEQ(p, value) __atomic_store_n(p, value, __ATOMIC_SEQ_CST)
#define GPUSYNC__ADD(p, n) __atomic_fetch_add(p, n, __ATOMIC_SEQ_CST)
#define GPUSYNC__SUB(p, n) __atomic_fetch_sub(p, n, __ATOMIC_SEQ_CST)

/* For functions that few calls need: kept out of the code, and out of the stack frames, of the others. */
#define GPUSYNC__APART static __attribute__((__noinline__, __cold__))

/* For the definition of calls that no program makes for each frame: compilers make small code of them. */
#define GPUSYNC__SELDOM GPUSYNC_API __attribute__((__cold__))

#if defined(__x86_64__)
#define GPUSYNC__PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__) /* `yield` takes next to no time on Apple's cores; Rust's std and WebKit use isb, too */
#define GPUSYNC__PAUSE() __asm__ __volatile__("isb")
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

/* Apple's os_unfair_lock. A waiting thread lends the owner its priority, which is why Rust's standard library prefers
   this lock to pthread's. */
typedef struct gpusync__mutex {
    uint32_t word; /* 0 while no thread has it */
} gpusync__mutex;
extern void gpusync__mutex_lock(gpusync__mutex *mutex) GPUSYNC__SYMBOL("os_unfair_lock_lock");
extern bool gpusync__mutex_try_lock(gpusync__mutex *mutex) GPUSYNC__SYMBOL("os_unfair_lock_trylock");
extern void gpusync__mutex_unlock(gpusync__mutex *mutex) GPUSYNC__SYMBOL("os_unfair_lock_unlock");

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

/* Memory that is zero, or NULL. */
static void *gpusync__zeroed(size_t size)
{
    void *memory = GPUSYNC_MALLOC(size);
    return memory ? memset(memory, 0, size) : NULL;
}

/* ------------------------------------------------------------------------------ >>failure --
   How Metal's error, or one of gpusync's own, becomes a gpusync_error. Knows neither work nor a device. */

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

/* What a number says of the class of an error: one of the driver, whose meanings were seen with their texts in logs; of
   MTLCommandBufferError; of MTL4CommandQueueError. NONE: nothing, as all numbers that are not here. */
enum { GPUSYNC__OF_DRIVER, GPUSYNC__OF_CODE, GPUSYNC__OF_CODE4, GPUSYNC__NUMBERINGS };
#define GPUSYNC__NUMBERS 16 /* so many, from 0 on; those that are not shown are NONE */
/* clang-format off */
static const uint8_t gpusync__classes[GPUSYNC__NUMBERINGS][GPUSYNC__NUMBERS] = {
    {
        /*  0 */ GPUSYNC_FAILURE_NONE,
        /*  1 */ GPUSYNC_FAILURE_NONE,
        /*  2 */ GPUSYNC_FAILURE_GPU_TIMEOUT,           /* it ran too long */
        /*  3 */ GPUSYNC_FAILURE_GPU_TIMEOUT,           /* it hung */
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
        /* 14 */ GPUSYNC_FAILURE_GPU_TIMEOUT,           /* it kept the display from being drawn */
    },
    {
        /*  0 */ GPUSYNC_FAILURE_NONE,
        /*  1 */ GPUSYNC_FAILURE_NONE,
        /*  2 */ GPUSYNC_FAILURE_GPU_TIMEOUT,
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
        /*  1 */ GPUSYNC_FAILURE_GPU_TIMEOUT,
        /*  2 */ GPUSYNC_FAILURE_NOT_PERMITTED,
        /*  3 */ GPUSYNC_FAILURE_OUT_OF_MEMORY,
        /*  4 */ GPUSYNC_FAILURE_DEVICE_REMOVED,
        /*  5 */ GPUSYNC_FAILURE_ACCESS_REVOKED,
    },
};
/* clang-format on */

/* Returns the class of an error. The driver's number (-1: unknown) says more than the code, which merges several
   numbers, and comes first. */
static gpusync_failure gpusync__classify(const gpusync_error *error, int64_t number)
{
    bool metal4 = strcmp(error->domain, "MTL4CommandQueueErrorDomain") == 0;
    if (!metal4 && strcmp(error->domain, "MTLCommandBufferErrorDomain") != 0)
        return GPUSYNC_FAILURE_OTHER;
    if (strstr(error->message, "victim of GPU"))
        return GPUSYNC_FAILURE_INNOCENT_VICTIM;
    bool known = number >= 0 && number < GPUSYNC__NUMBERS, coded = error->code >= 0 && error->code < GPUSYNC__NUMBERS;
    uint8_t failure = known ? gpusync__classes[GPUSYNC__OF_DRIVER][number] : 0;
    if (!failure && coded)
        failure = gpusync__classes[metal4 ? GPUSYNC__OF_CODE4 : GPUSYNC__OF_CODE][error->code];
    return failure ? (gpusync_failure)failure : GPUSYNC_FAILURE_OTHER;
}

/* Copies code, domain and message of an NSError. Needs a pool. */
static void gpusync__read_ns_error(gpusync_error *error, void *ns_error)
{
    error->code = GPUSYNC__AS(long)(ns_error, gpusync__sel.code);
    gpusync__copy_string(error->domain, sizeof error->domain, gpusync__send_id(ns_error, gpusync__sel.domain));
    gpusync__copy_string(error->message, sizeof error->message,
                         gpusync__send_id(ns_error, gpusync__sel.localizedDescription));
}

/* Fills in an error of gpusync's own. */
static void gpusync__own_error(gpusync_error *error, gpusync_result result, const char *message)
{
    memset(error, 0, sizeof *error);
    error->result = result;
    error->failure = GPUSYNC_FAILURE_OTHER;
    gpusync__copy_text(error->message, sizeof error->message, message);
}

/* The same for an optional error of a call. Returns the result. */
GPUSYNC__APART gpusync_result gpusync__explain(gpusync_error *error, gpusync_result result)
{
    if (error && result < GPUSYNC_OK)
        gpusync__own_error(error, result, gpusync_result_string(result));
    return result;
}

/* Reads which encoder Metal names. What is missing or malformed is skipped (athei/mtld3d#571). */
static void gpusync__read_encoder(gpusync_error *error, void *encoders)
{
    enum { AFFECTED = 2, FAULTED = 4 }; /* MTLCommandEncoderErrorState */
    bool listed = gpusync__class_responds(gpusync__class_of(encoders), gpusync__sel.objectAtIndex);
    unsigned long count = listed ? gpusync__send_ulong(encoders, gpusync__sel.count) : 0;
    long worst = 0;
    for (unsigned long i = 0; i < count; i++) {
        void *info = GPUSYNC__WITH(void *, unsigned long)(encoders, gpusync__sel.objectAtIndex, i);
        void *cls = gpusync__class_of(info);
        bool tells =
            gpusync__class_responds(cls, gpusync__sel.errorState) && gpusync__class_responds(cls, gpusync__sel.label);
        long state = tells ? GPUSYNC__AS(long)(info, gpusync__sel.errorState) : 0;
        if ((state != AFFECTED && state != FAULTED) || state <= worst)
            continue;
        worst = state;
        gpusync__copy_string(error->encoder, sizeof error->encoder, gpusync__send_id(info, gpusync__sel.label));
    }
}

/* Reads how a command buffer failed, from it, or from the feedback of Metal 4. Metal nests errors: its own error has
   the driver's inside, and Metal 4 puts its own into one more, which has the same domain (mokume-metal/mokume,
   CommandFaultLog.swift). The innermost of Metal's own has the code and the text. No lock is held. */
GPUSYNC__APART void gpusync__read_failure(void *source, void *buffer, gpusync_error *error)
{
    void *pool = gpusync__pool_push();
    void *ns_error = gpusync__send_id(source, gpusync__sel.error);
    void *key = gpusync__string("NSUnderlyingError");
    void *encoders_key = gpusync__string("MTLCommandBufferEncoderInfoErrorKey"); /* its text: assumed */
    int64_t number = -1;
    char domain[sizeof error->domain];

    memset(error, 0, sizeof *error);
    for (int depth = 0; ns_error && depth < 4; depth++) {
        gpusync__copy_string(domain, sizeof domain, gpusync__send_id(ns_error, gpusync__sel.domain));
        if (depth == 0 || strcmp(domain, error->domain) == 0)
            gpusync__read_ns_error(error, ns_error);
        if (strcmp(domain, "IOGPUCommandQueueErrorDomain") == 0)
            number = GPUSYNC__AS(long)(ns_error, gpusync__sel.code);
        void *info = gpusync__send_id(ns_error, gpusync__sel.userInfo);
        if (!error->encoder[0])
            gpusync__read_encoder(error, GPUSYNC__WITH(void *, void *)(info, gpusync__sel.objectForKey, encoders_key));
        ns_error = GPUSYNC__WITH(void *, void *)(info, gpusync__sel.objectForKey, key);
        if (!gpusync__class_responds(gpusync__class_of(ns_error), gpusync__sel.domain)) /* of nil there is no class */
            ns_error = NULL;
    }
    if (number < 0)
        number = gpusync__driver_number(error->message);
    error->result = GPUSYNC_ERROR_EXECUTION;
    error->failure = gpusync__classify(error, number);
    if (!source) {
        error->failure = GPUSYNC_FAILURE_GPU_TIMEOUT;
        gpusync__copy_text(error->message, sizeof error->message, "Metal gave up a wait in front of the work");
    }
    gpusync__copy_string(error->label, sizeof error->label, gpusync__send_id(buffer, gpusync__sel.label));
    gpusync__pool_pop(pool);
}

/* Labels and Metal's texts may have more than one line. Blanks take the place of control characters, U+0080 to U+009F
   among them, and of U+2028 and U+2029. */
static void gpusync__make_plain(char *text)
{
    for (unsigned char *c = (unsigned char *)text; *c; c++) {
        bool control = c[0] == 0xC2 && (c[1] & 0xE0) == 0x80;
        bool line = c[0] == 0xE2 && c[1] == 0x80 && (c[2] | 1) == 0xA9;
        memset(c, ' ', line ? 3 : control ? 2 : c[0] < ' ' || c[0] == 127);
    }
}

/* ------------------------------------------------------------------------------ >>numbers --
   Layer 1. Numbers that rise, and nodes that wait for them: a node stands on a ring, by its number. Nothing here knows
   Metal or a queue. From here on the caller of a function holds the device's lock, unless the function takes it, or a
   line says otherwise. */

typedef struct gpusync__after gpusync__after;
struct gpusync__goal;
struct gpusync__sleeper;
struct gpusync__object;
struct gpusync__wait;
struct gpusync__work;

/* What waits for a number, or has its place by one. `fire` lets it go on when the number has come: it is off its ring
   then. */
typedef struct gpusync__node {
    struct gpusync__node *next, *prev; /* a ring with its head; next NULL: on no ring */
    uint64_t number;
    void (*fire)(struct gpusync__node *node, gpusync__after *after);
} gpusync__node;

/* What a thread does after its unlock: a part of the object that it is about. */
typedef struct gpusync__job gpusync__job;
typedef void (*gpusync__run)(gpusync__job *job, gpusync__after *after);
struct gpusync__job {
    gpusync__job *next;
    bool listed; /* cleared before `run` is called: a change from then on lists the job once more. Atomic */
    gpusync__run run;
};

/* What a thread does when it has unlocked the device. */
struct gpusync__after {
    struct gpusync__sleeper *woken; /* to unpark: first */
    gpusync__job *jobs, **end;      /* in their order */
    gpusync__job *last;             /* of memory that goes: when all else is done */
    bool failed;                    /* the failure of the work is to be logged */
};
#define GPUSYNC__NOTHING              \
    {                                 \
        NULL, NULL, NULL, NULL, false \
    }

/* The object of which this is a part. */
#define GPUSYNC__OF(type, field, part) ((type *)(void *)((char *)(part)-offsetof(type, field)))

static void gpusync__ring_init(gpusync__node *ring)
{
    ring->next = ring->prev = ring;
}

/* Lists a node behind another one, or behind the head of a ring. */
static void gpusync__put(gpusync__node *prev, gpusync__node *n)
{
    n->prev = prev;
    n->next = prev->next;
    n->next->prev = n;
    prev->next = n;
}

/* Lists the node by its number, behind equal ones. Numbers mostly rise, so the search begins at the end. */
static void gpusync__insert(gpusync__node *ring, gpusync__node *n)
{
    gpusync__node *prev = ring->prev;
    while (prev != ring && prev->number > n->number)
        prev = prev->prev;
    gpusync__put(prev, n);
}

/* Takes the node off its ring, if it is on one. */
static void gpusync__unlist(gpusync__node *n)
{
    if (!n->next)
        return;
    n->prev->next = n->next;
    n->next->prev = n->prev;
    n->next = NULL;
}

/* Fires the nodes of a ring whose numbers are not above this one. A node may list itself anew, above this number. */
static inline void gpusync__rise(gpusync__node *ring, uint64_t number, gpusync__after *after)
{
    for (gpusync__node *n; (n = ring->next) != ring && n->number <= number;) {
        gpusync__unlist(n);
        n->fire(n, after);
    }
}

/* Lists a job, which the thread runs when it has unlocked. False: a thread has listed it already. */
static bool gpusync__later(gpusync__after *after, gpusync__job *job, gpusync__run run)
{
    if (GPUSYNC__LOAD_SEQ(&job->listed))
        return false;
    job->listed = true; /* only the clear is made without the lock */
    job->run = run;
    job->next = NULL;
    *(after->jobs ? after->end : &after->jobs) = job;
    after->end = &job->next;
    return true;
}

/* ------------------------------------------------------------------------------ >>objects --
   What has a number: queues, timelines, warm-ups. What differs between them is in a table; and the device, which has
   the lock. */

enum { GPUSYNC__NOT_YET, GPUSYNC__WELL, GPUSYNC__BADLY };

/* Called, or released, when its object has the number: >>callbacks. */
typedef struct gpusync__callback {
    gpusync__node node;             /* first: on its object, then among those that are due */
    struct gpusync__object *object; /* with a reference. NULL: the end of the device */
    gpusync_done_fn fn;             /* NULL: `user` is an object to release, or see `destroyed` */
    gpusync_destroyed_fn destroyed; /* of an object that is destroyed later */
    void *user;
    gpusync_lost_fn lost; /* of the loss */
    uint64_t turn;        /* due: its number among all that became due */
    bool built_in;        /* the callback of a destroy_later, with the program's reference, or of the loss: a field of
                            the object */
    gpusync_error error;  /* how its point has failed; result OK: it has not */
} gpusync__callback;

/* Reasons for a wait to look under the lock, in object.alert: read without it. From STUCK on a queue takes no new
   work. */
enum {
    GPUSYNC__FAILED = 1, /* a timeline, for good */
    GPUSYNC__STUCK = 2,  /* a failure sticks to a queue */
    GPUSYNC__LOST = 4,   /* the device is lost */
    GPUSYNC__CLOSED = 8  /* a destroy has begun */
};

/* What differs between the kinds of objects. */
typedef struct gpusync__kind {
    const char *name, *counts; /* in texts: a queue counts tickets */
    bool makes;                /* what it runs makes items, and may wait for work */
    /* Whether it has the number. BADLY: it never will, and `error`, if there is one, gets the failure. */
    int (*stands)(const struct gpusync__object *t, uint64_t number, gpusync_error *error);
    void (*look)(struct gpusync__object *t, uint64_t last); /* asks Metal, without the lock. NULL: nothing to ask */
    /* Where a goal waits, and its number there. NULL: with all others. */
    gpusync__node *(*ring)(struct gpusync__goal *goal);
    void (*tend)(struct gpusync__object *t, gpusync__after *after); /* something waits for it now. NULL: nothing */
    void (*shut)(struct gpusync__object *t, gpusync__after *after); /* a destroy begins */
    void (*leave)(struct gpusync__object *t); /* the last reference is gone; under the lock. NULL: nothing to do */
    void (*free)(struct gpusync__object *t);  /* frees all but its own memory, without the lock */
} gpusync__kind;

/* What rises: the tickets of a queue, the values of a timeline, the number of items that a warm-up has made.
   The first field of each. */
typedef struct gpusync__object {
    gpusync__head head; /* completed: what is reached; committed: the last ticket. Read without the lock */
    uint32_t alert;     /* likewise */
    const gpusync__kind *kind;
    const gpusync_spin *spin;           /* of the program's, for waits for this alone, or NULL */
    gpusync_device *device;             /* with a reference */
    struct gpusync__object *next, **at; /* of the device; the pointer to this one */
    gpusync__node waiting;              /* the ring of all that waits for a number, by number */
    uint32_t refs;                      /* the program; each work, link, callback and wait; jobs. Atomic */
    uint32_t owed;                      /* callbacks that have not run */
    uint32_t number;                    /* of the device's objects, for texts */
    gpusync__callback gone;             /* of the destroy_later. On a ring: not told yet */
    uint64_t quiet_ns;                  /* until when no wait at its limit is logged */
    char label[64];
} gpusync__object;

/* A thread that runs a callback, or the program's log. */
typedef struct gpusync__caller {
    struct gpusync__caller *next;
    pthread_t thread;
    const gpusync__object *object; /* of the callback */
    uint64_t number, since_ns;     /* of its point; 0: `destroyed`, or an item */
    bool in_turn;                  /* one at a time for a device; a destroy runs those of its object beside it */
} gpusync__caller;

/* Makes the events of a trace: >>trace. */
typedef struct gpusync__tracer {
    void (*work)(gpusync_trace_kind kind, const struct gpusync__work *w, uint64_t at_ns);
    void (*value)(const gpusync__object *t, uint64_t value);
    void (*wait)(const struct gpusync__wait *wait, uint64_t begun, gpusync_result result);
} gpusync__tracer;

/* The event of a timeline that is gone, for the next one. */
typedef struct gpusync__spare {
    void *event;
    uint64_t value;
} gpusync__spare;
#define GPUSYNC__SPARES 32

struct gpusync_device {
    gpusync_device *next; /* of all devices; under the global lock */
    void *metal;
    gpusync_hooks hooks;
    bool default_hooks;
    gpusync_spin own_spin;
    const gpusync_spin *spin;
    gpusync_log_fn log;
    void *log_user;
    gpusync_callback_mode callback_mode;
    void *callback_queue;
    gpusync_notify_fn notify;
    void *notify_user;
    const gpusync_trace *trace;    /* NULL: none. Atomic */
    const gpusync__tracer *tracer; /* what makes its events; NULL: there is no trace. Atomic */
    uint32_t refs;      /* the program; objects; handlers' blocks; threads in `after`, in callbacks; dispatch. Atomic */
    uint32_t asked;     /* the dispatch queue was asked to run callbacks. Atomic */
    uint32_t lost;      /* by which failure; 0: not. Read without the lock */
    uint64_t lost_ns;   /* when; written before `lost`, as the next */
    gpusync_error loss; /* the failure that told of it */
    uint64_t looked_ns; /* a poll's last look at the whole device. Atomic */
    uint32_t waits;     /* threads in a wait that was not over at once. Atomic */
    unsigned char pad[128];                  /* what is read without the lock stands apart from it */
    gpusync__mutex lock;                     /* over all that follows, and over queues, timelines and work */
    gpusync__node moved;                     /* the ring of queues whose work is to settle before the unlock */
    gpusync__object *objects, **objects_end; /* the oldest first */
    uint32_t alive;                          /* queues, timelines and warm-ups that are not destroyed */
    uint32_t made;                           /* objects, ever */
    uint32_t spare_count;
    gpusync__spare spares[GPUSYNC__SPARES];
    gpusync_queue *blocks; /* of no program: UNORDERED work stands for each block that is to signal a value */
    gpusync_stats stats;   /* of queues that are gone, and of waits for what is no queue */
    gpusync__node due;     /* the ring of callbacks that are to run, in their order */
    uint64_t due_last;     /* the `turn` of the last */
    gpusync__caller *callers;
    uint32_t calling;                /* how many. Read without the lock */
    bool ending;                     /* a destroy or a destroy_later of the device has begun */
    bool watched;                    /* the dispatch queue looks in a second: gpusync__watch */
    gpusync__job call, watch;        /* has callbacks run; has the dispatch queue look while callbacks are to come */
    gpusync__job loses;              /* logs the loss */
    gpusync__callback on_lost, gone; /* of the loss; of a destroy_later. node.fire NULL: none */
    /* Runs callbacks of an object that are due, and returns how many. NULL: none was ever owed. */
    size_t (*run_due)(gpusync_device *dev, const gpusync__object *t, size_t max);
};

/* Over the selectors, the devices, and what blocks of listeners lead to. */
static gpusync__mutex gpusync__global = {0};
static gpusync_device *gpusync__devices;
static uint32_t gpusync__orphans; /* timelines that are gone, and of which Metal has listeners' blocks. Atomic */

/* The device's lock. */
static void gpusync__lock(gpusync_device *dev)
{
    gpusync__mutex_lock(&dev->lock);
}

static void gpusync__unlock(gpusync_device *dev)
{
    gpusync__mutex_unlock(&dev->lock);
}

/* What makes the events of the program's trace, or NULL. */
static inline const gpusync__tracer *gpusync__tracer_of(const gpusync_device *dev)
{
    return GPUSYNC__LOAD(&dev->tracer);
}

/* -- lives: a reference comes from a reference, or, by gpusync__revive, under a lock that keeps the memory. The last
   reference frees, on whatever thread, without a lock. */

/* The last reference of the device is gone. */
GPUSYNC__APART void gpusync__device_free(gpusync_device *dev)
{
    void *pool = gpusync__pool_push();
    gpusync__mutex_lock(&gpusync__global);
    gpusync_device **at = &gpusync__devices;
    while (*at != dev)
        at = &(*at)->next;
    *at = dev->next;
    gpusync__mutex_unlock(&gpusync__global);
    while (dev->spare_count)
        gpusync__release(dev->spares[--dev->spare_count].event);
    gpusync__release(dev->metal);
    gpusync__pool_pop(pool);
    gpusync__dispatch_release(dev->callback_queue);
    GPUSYNC_FREE(dev->blocks);
    GPUSYNC_FREE(dev);
}

static void gpusync__device_unref(gpusync_device *dev)
{
    if (GPUSYNC__SUB(&dev->refs, 1) == 1)
        gpusync__device_free(dev);
}

static void gpusync__keep(gpusync__object *t)
{
    GPUSYNC__ADD(&t->refs, 1);
}

/* Takes a reference of what may be about to go. False: it is. */
static bool gpusync__revive(uint32_t *refs)
{
    uint32_t n = GPUSYNC__LOAD_SEQ(refs);
    while (n && !__atomic_compare_exchange_n(refs, &n, n + 1, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {}
    return n != 0;
}

/* The last reference of an object is gone. */
GPUSYNC__APART void gpusync__object_free(gpusync__object *t)
{
    gpusync_device *dev = t->device;
    gpusync__lock(dev);
    *t->at = t->next;
    *(t->next ? &t->next->at : &dev->objects_end) = t->at;
    if (t->kind->leave)
        t->kind->leave(t);
    gpusync__unlock(dev);
    t->kind->free(t);
    GPUSYNC_FREE(t);
    gpusync__device_unref(dev);
}

static void gpusync__unref(gpusync__object *t)
{
    if (GPUSYNC__SUB(&t->refs, 1) == 1)
        gpusync__object_free(t);
}

/* Fills in and adds a new object. DEVICE_LOST: not added. */
static gpusync_result gpusync__object_begin(gpusync__object *t, gpusync_device *dev, const gpusync__kind *kind)
{
    t->device = dev;
    t->refs = 1;
    t->kind = kind;
    t->spin = t->spin ? t->spin : dev->spin;
    gpusync__ring_init(&t->waiting);
    if (GPUSYNC__LOAD(&dev->lost))
        return GPUSYNC_ERROR_DEVICE_LOST;
    GPUSYNC__ADD(&dev->refs, 1);
    gpusync__lock(dev);
    t->at = dev->objects_end;
    *t->at = t;
    dev->objects_end = &t->next;
    dev->alive++;
    t->number = ++dev->made;
    t->alert = dev->lost ? GPUSYNC__LOST : 0; /* since the load */
    gpusync__unlock(dev);
    return GPUSYNC_OK;
}

/* The device's next object, with a reference in place of that to the last one; NULL: the first, there are no more. */
static gpusync__object *gpusync__next_object(gpusync_device *dev, gpusync__object *last)
{
    gpusync__lock(dev);
    gpusync__object *t = last ? last->next : dev->objects;
    while (t && !gpusync__revive(&t->refs))
        t = t->next;
    gpusync__unlock(dev);
    if (last)
        gpusync__unref(last);
    return t;
}

/* An object of the device is gone. Under the lock. */
static void gpusync__object_gone(gpusync_device *dev, gpusync__after *after)
{
    dev->alive--;
    if (!dev->alive && dev->gone.node.fire)
        dev->gone.node.fire(&dev->gone.node, after);
}

/* -- numbers of objects */

/* Sets a reason for waits to look under the lock. */
static void gpusync__alarm(gpusync__object *t, uint32_t reason)
{
    GPUSYNC__STORE(&t->alert, t->alert | reason);
}

/* How a number of the object stands. BADLY: `error`, if there is one, gets the failure. */
static inline int gpusync__stands(const gpusync__object *t, uint64_t number, gpusync_error *error)
{
    return t->kind->stands(t, number, error);
}

/* Lists what waits for its number of the object on one of its rings, if it is not listed. */
static void gpusync__list(gpusync__object *t, gpusync__node *ring, gpusync__node *n, gpusync__after *after)
{
    if (n->next)
        return;
    gpusync__insert(ring, n);
    if (t->kind->tend)
        t->kind->tend(t, after);
}

/* Looks at the whole device: Metal may have lost a handler, or a listener may not have heard. */
static void gpusync__look_everywhere(gpusync_device *dev)
{
    for (gpusync__object *t = gpusync__next_object(dev, NULL); t; t = gpusync__next_object(dev, t))
        if (t->kind->look)
            t->kind->look(t, UINT64_MAX);
}

#define GPUSYNC__SLICE_NS 50000000u /* from one look at the whole device to the next, at first */

/* Looks at the whole device for a thread that asks again and again: once in the time of a slice. False: a look was made
   within that time. */
GPUSYNC__APART bool gpusync__look_around(gpusync_device *dev)
{
    uint64_t now = gpusync_now_ns(), last = __atomic_load_n(&dev->looked_ns, __ATOMIC_RELAXED);
    if (now - last < GPUSYNC__SLICE_NS)
        return false;
    __atomic_store_n(&dev->looked_ns, now, __ATOMIC_RELAXED);
    gpusync__look_everywhere(dev);
    return true;
}

#define GPUSYNC__LOST_NS 1000000000u

/* Whether the device has been lost for so long that it will end no more work. */
static bool gpusync__lost_long(const gpusync_device *dev)
{
    return GPUSYNC__LOAD(&dev->lost) && gpusync_now_ns() - dev->lost_ns >= GPUSYNC__LOST_NS;
}

/* -- threads in calls of the program's, and its log */

/* The thread is about to run a callback or an item for an object, whose destroy waits for that; or (NULL) the log. */
static void gpusync__caller_add(gpusync_device *dev, const gpusync__object *t, uint64_t number, gpusync__caller *self,
                                bool in_turn, uint64_t now)
{
    self->since_ns = now;
    self->number = number;
    self->thread = pthread_self();
    self->object = t;
    self->in_turn = in_turn;
    self->next = dev->callers;
    dev->callers = self;
    GPUSYNC__STORE(&dev->calling, dev->calling + 1);
}

/* Whether another thread runs a callback of the object. */
static bool gpusync__runs(const gpusync__object *t)
{
    const gpusync__caller *c = t->device->callers;
    while (c && c->object != t)
        c = c->next;
    return c != NULL;
}

/* The thread has run what it was about to run. */
static void gpusync__caller_remove(gpusync_device *dev, gpusync__object *t, const gpusync__caller *self,
                                   gpusync__after *after)
{
    gpusync__caller **at = &dev->callers;
    while (*at != self)
        at = &(*at)->next;
    *at = self->next;
    GPUSYNC__STORE(&dev->calling, dev->calling - 1);
    if (t)
        gpusync__rise(&t->waiting, 0, after); /* a destroy */
}

/* Whether this thread is in a callback of the device. In the function of a warm-up it is, for calls on warm-ups and on
   the device (t NULL); but such a function may wait for work. */
static __attribute__((__noinline__)) bool gpusync__in_callback(gpusync_device *dev, const gpusync__object *t)
{
    if (!GPUSYNC__LOAD(&dev->calling)) /* this thread would have counted itself */
        return false;
    gpusync__lock(dev);
    const gpusync__caller *c = dev->callers;
    while (c &&
           (!pthread_equal(c->thread, pthread_self()) || (c->object && c->object->kind->makes && t && !t->kind->makes)))
        c = c->next;
    gpusync__unlock(dev);
    return c != NULL;
}

/* Calls the program's log. The thread counts as one that runs a callback meanwhile: a wait in it returns
   WOULD_DEADLOCK, also in a destructor, if the log calls exit(). */
static __attribute__((__format__(__printf__, 3, 4))) void gpusync__log(gpusync_device *dev, gpusync_log_level level,
                                                                       const char *format, ...)
{
    char text[768];
    gpusync__caller self;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    gpusync__make_plain(text);
    uint64_t now = gpusync_now_ns();
    gpusync__lock(dev);
    gpusync__caller_add(dev, NULL, 0, &self, false, now);
    gpusync__unlock(dev);
    (dev->log)(dev->log_user, level, text); /* log is a macro in <tgmath.h> */
    gpusync__lock(dev);
    gpusync__caller_remove(dev, NULL, &self, NULL);
    gpusync__unlock(dev);
}

/* The name of an object, in the texts for people. */
static const char *gpusync__name(const gpusync__object *t, char name[96])
{
    if (t->label[0])
        snprintf(name, 96, "%s '%s'", t->kind->name, t->label);
    else
        snprintf(name, 96, "%s %u", t->kind->name, (unsigned)t->number);
    return name;
}

/* --------------------------------------------------------------------------------- >>wait --
   Layer 2. A wait checks by loads whether it may be over, then under the lock whether it is; it looks, spins, and
   sleeps. What wakes a sleeping wait, always by gpusync__rouse:
     its number is reached, or fails     gpusync__rise, of publish, reach and fail
     a handler comes late                gpusync__count_handler
     its object closes                   gpusync__shut
     a place for a command buffer        gpusync__give_room; it will have none, as a failure sticks: gpusync__stick
     a callback of its object has run    gpusync__caller_remove
     the device is lost                  gpusync__lose: waits for room. All but those of a destroy for callbacks end
                                         with a slice, a second later
   Without a waker the sleep ends with a slice, or at the deadline, and the sleeper looks: gpusync__sleep. */

/* A thread that waits, on its stack. */
typedef struct gpusync__sleeper {
    gpusync_waiter waiter; /* first: what the hooks get */
    pthread_mutex_t mutex; /* of the default hooks, with the next two */
    pthread_cond_t wake;
    bool permit;
    bool woken;                    /* on a list `woken`: set by the waker under the lock, cleared before its unpark. The
                                      sleeper lists no goal meanwhile */
    uint32_t wakers;               /* those that still touch the sleeper: the frame stays until this is 0 */
    struct gpusync__sleeper *next; /* of a list `woken` */
    struct gpusync__goal *goals;   /* with a node each */
    size_t count;
    uint64_t since_ns, deadline_ns; /* for the report */
} gpusync__sleeper;

/* How one of the last tickets ended. */
typedef struct gpusync__info {
    uint64_t ticket;
    double gpu_start, gpu_end;
    bool failed;
} gpusync__info;
#define GPUSYNC__INFOS 256

/* When the tickets of a queue are expected to end, and have ended. */
typedef struct gpusync__pace {
    uint64_t took_ns, ended_ns; /* a mean of what tickets take; the last end */
    uint32_t misses, skips;     /* spins in vain in a row; waits that are not to spin */
    gpusync_spin own_spin;      /* of the program's */
    gpusync_stats stats;        /* of the queue, but for what the tickets and the record tell */
    gpusync__info infos[GPUSYNC__INFOS];
} gpusync__pace;

/* The kinds of goals. */
typedef struct gpusync__aim {
    /* Whether it has come. BADLY: `error` gets the failure. error NULL: the wait has told of the failure. */
    int (*stands)(const struct gpusync__wait *wait, struct gpusync__goal *goal, gpusync_error *error);
    const char *what; /* in texts, in front of the number */
} gpusync__aim;

/* What a thread waits for. */
typedef struct gpusync__goal {
    gpusync__node node;
    gpusync__sleeper *sleeper; /* while it is listed */
    gpusync__object *object;   /* with a reference */
    const gpusync__aim *aim;
    gpusync__pace *pace; /* of tickets: when they are expected to end. NULL: not known */
    uint64_t number;     /* a ticket, a value, so many items; of everything: the last ticket; 0: no number */
    uint64_t unordered;  /* of everything: up to which number of UNORDERED work */
    uint64_t from;       /* of everything: the first record that had not been told, from 1 on */
    uint64_t reported;   /* of everything that has failed: the record behind the newest that counts as told now */
    bool fresh;          /* of everything: `from` is to be noted. Loads do not tell that */
    bool handlers;       /* those up to the ticket, too */
    bool granted;        /* of room: a place is this wait's, which a thread has given back */
    bool over;
} gpusync__goal;

typedef struct gpusync__wait {
    gpusync_device *device;
    gpusync__goal *goals;
    size_t count, which; /* which: the goal that ended the wait, or the lowest that failed; count: none */
    gpusync_wait_for how;
    gpusync_result result; /* of `which` */
    gpusync_error *error;  /* the program's, or NULL */
    bool drains;           /* of a destroy: goes on though its queue is closed */
    bool skips;            /* of the device: a queue that closes is none of its queues */
    bool patient;          /* without a limit */
    gpusync_wait_end by;   /* what ended it */
    uint64_t spun_ns;
    uint64_t woken_ns; /* when its last park returned; 0: it has not parked */
} gpusync__wait;

#define GPUSYNC__LAST_SLICE_NS 400000000u
#define GPUSYNC__IDLE_NS 1000000000u /* so long without a change: nothing makes room but the program */

static void gpusync__default_yield(void *user)
{
    (void)user;
    sched_yield();
}

/* Parks until there is a permit, and takes it: an unpark that came first ends the park at once. */
static void gpusync__default_park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    gpusync__sleeper *s = (gpusync__sleeper *)(void *)waiter;
    struct timespec at;
    uint64_t ns = deadline_ns, now = 0;
    (void)user;
    pthread_mutex_lock(&s->mutex);
    while (!s->permit && (now = gpusync_now_ns()) < deadline_ns) {
#ifdef __APPLE__
        ns = deadline_ns - now;
#endif
        at.tv_sec = (time_t)(ns / 1000000000u);
        at.tv_nsec = (long)(ns % 1000000000u);
#ifdef __APPLE__
        pthread_cond_timedwait_relative_np(&s->wake, &s->mutex, &at);
#else
        pthread_cond_timedwait(&s->wake, &s->mutex, &at); /* of the clock of gpusync_now_ns */
#endif
    }
    s->permit = false;
    pthread_mutex_unlock(&s->mutex);
}

static void gpusync__default_unpark(void *user, gpusync_waiter *waiter)
{
    gpusync__sleeper *s = (gpusync__sleeper *)(void *)waiter;
    (void)user;

    pthread_mutex_lock(&s->mutex);
    s->permit = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->mutex);
}

/* -- waking, and what else follows a change */

/* Takes a sleeper off all its rings, and has it unparked. */
static void gpusync__rouse(gpusync__node *node, gpusync__after *after)
{
    gpusync__sleeper *s = ((gpusync__goal *)(void *)node)->sleeper;
    for (size_t i = 0; i < s->count; i++)
        gpusync__unlist(&s->goals[i].node);
    GPUSYNC__STORE(&s->woken, true);
    GPUSYNC__ADD(&s->wakers, 1);
    s->next = after->woken;
    after->woken = s;
}

/* The same for the sleepers of a ring; all: for whatever waits there. */
static void gpusync__rouse_all(gpusync__node *ring, bool all, gpusync__after *after)
{
    for (gpusync__node *n = ring->next, *next; n != ring; n = next) {
        next = n->next;
        if (!all && n->fire != gpusync__rouse)
            continue;
        gpusync__unlist(n);
        n->fire(n, after);
        if (!next->next) /* another one of the sleeper's: off its ring, too */
            next = ring->next;
    }
}

/* Unparks one sleeper. `woken` is cleared first: from then on the sleeper may list itself, and be taken again. The last
   access is to `wakers`: the sleeper's frame may go then. */
static void gpusync__unpark_one(const gpusync_device *dev, gpusync__after *after)
{
    gpusync__sleeper *s = after->woken;
    after->woken = s->next; /* before `woken` is cleared: then another waker may list it */
    GPUSYNC__STORE_SEQ(&s->woken, false);
    dev->hooks.unpark(dev->hooks.user, &s->waiter);
    GPUSYNC__SUB(&s->wakers, 1);
}

/* Runs the jobs, and what these add. Unparks come first, before anything that may take time. */
static __attribute__((__noinline__)) void gpusync__work_off(gpusync_device *dev, gpusync__after *after)
{
    for (bool more = true; more;) {
        gpusync__job *job = after->jobs;
        if (after->woken) {
            gpusync__unpark_one(dev, after);
        } else if (job) {
            gpusync__run run = job->run;
            after->jobs = job->next;
            GPUSYNC__STORE_SEQ(&job->listed, false); /* the last access before it runs: another thread may list it */
            run(job, after);
        } else {
            more = false;
        }
    }
}

/* Settles, before the unlock, all that a change has let settle. */
static void gpusync__go_on(gpusync_device *dev, gpusync__after *after)
{
    gpusync__rise(&dev->moved, UINT64_MAX, after);
}

/* Ends a change: settles what it has let settle, unlocks the device, and does what is left to do then. What the change
   has ended may be the last that another thread waited for, so that the device goes meanwhile. */
static void gpusync__finish(gpusync_device *dev, gpusync__after *after)
{
    gpusync__go_on(dev, after);
    bool more = after->woken || after->jobs || after->last;
    if (more)
        GPUSYNC__ADD(&dev->refs, 1);
    gpusync__unlock(dev);
    if (!more)
        return;
    gpusync__work_off(dev, after);
    gpusync__device_unref(dev);
    for (gpusync__job *job; (job = after->last) != NULL;) {
        after->last = job->next;
        job->run(job, after);
    }
}

/* -- checking */

/* A goal of an object, of everything or of no number. */
static inline void gpusync__goal_init(gpusync__goal *goal, gpusync__object *t, const gpusync__aim *aim)
{
    goal->node.next = NULL;
    goal->node.fire = gpusync__rouse;
    goal->node.number = goal->number = goal->unordered = goal->reported = 0;
    goal->object = t;
    goal->aim = aim;
    goal->pace = NULL;
    goal->fresh = goal->handlers = goal->over = goal->granted = false;
}

/* Whether the numbers of a goal have come: loads alone. */
static inline bool gpusync__has_come(const gpusync__goal *goal)
{
    const gpusync__head *head = &goal->object->head;
    return GPUSYNC__LOAD(&head->completed) >= goal->number && GPUSYNC__LOAD(&head->ended) >= goal->unordered;
}

/* Whether a check of the goal may tell more than that it is open: loads alone. What has no number: always. */
static inline bool gpusync__may_end(const gpusync__goal *goal)
{
    return gpusync__has_come(goal) || GPUSYNC__LOAD(&goal->object->alert) || goal->fresh;
}

/* A wait until no other thread runs a callback of the object. */
static int gpusync__calls_stand(const gpusync__wait *wait, gpusync__goal *goal, gpusync_error *error)
{
    (void)wait;
    (void)error;
    return gpusync__runs(goal->object) ? GPUSYNC__NOT_YET : GPUSYNC__WELL;
}

static const gpusync__aim gpusync__for_calls = {gpusync__calls_stand, " the return of callbacks of"};

/* A wait for a value, or for items. */
static int gpusync__number_stands(const gpusync__wait *wait, gpusync__goal *goal, gpusync_error *error)
{
    (void)wait;
    return gpusync__stands(goal->object, goal->number, error);
}

static const gpusync__aim gpusync__for_number = {gpusync__number_stands, ""};

/* Checks one goal that was open. Returns whether it ends the wait. */
static __attribute__((__noinline__)) bool gpusync__check_goal(gpusync__wait *wait, size_t i)
{
    gpusync__goal *goal = &wait->goals[i];
    gpusync_error error;
    int stands = goal->aim->stands(wait, goal, &error);
    if (stands == GPUSYNC__NOT_YET) { /* a reason to end all the same? */
        bool closed = goal->object->alert & GPUSYNC__CLOSED && !wait->drains;
        bool lost = (goal->number || goal->unordered) && gpusync__lost_long(wait->device);
        if (!closed && !lost)
            return false;
        gpusync__explain(&error, GPUSYNC_ERROR_DESTROYED);
        if (!closed)
            error = wait->device->loss;
        goal->reported = 0; /* everything that has not ended tells of no failure */
        stands = closed && wait->skips ? GPUSYNC__WELL : GPUSYNC__BADLY;
    }
    goal->over = true;
    if (stands == GPUSYNC__WELL && wait->how != GPUSYNC_WAIT_ANY)
        return false;
    if (i < wait->which) {
        wait->which = i;
        wait->result = stands == GPUSYNC__WELL ? GPUSYNC_OK : error.result;
        if (wait->error && stands == GPUSYNC__BADLY)
            *wait->error = error;
    }
    return wait->how != GPUSYNC_WAIT_ALL;
}

/* Whether the wait is over. Under the lock. */
static bool gpusync__check(gpusync__wait *wait)
{
    bool ends = wait->how != GPUSYNC_WAIT_ALL && wait->which < wait->count, all = true;
    for (size_t i = 0; i < wait->count && !ends; i++) {
        const gpusync__goal *goal = &wait->goals[i];
        ends = !goal->over && gpusync__may_end(goal) && gpusync__check_goal(wait, i);
        all = all && goal->over;
    }
    bool over = ends || (all && wait->how != GPUSYNC_WAIT_ANY);
    gpusync__goal *told = over && wait->which < wait->count ? &wait->goals[wait->which] : NULL;
    if (told && told->reported && !wait->drains)
        told->aim->stands(wait, told, NULL);
    return over;
}

/* Checks the wait, unless loads say that it goes on. WAIT_ALL goes on while one goal is sure to; but its first check is
   made if any goal may tell something: `which`, or when its wait begins. */
static bool gpusync__check_now(gpusync__wait *wait, bool first)
{
    size_t may = 0;
    for (size_t i = 0; i < wait->count; i++)
        may += wait->goals[i].over || gpusync__may_end(&wait->goals[i]);
    if (may < (wait->how == GPUSYNC_WAIT_ALL && !first ? wait->count : 1))
        return false;
    gpusync__lock(wait->device);
    bool over = gpusync__check(wait);
    gpusync__unlock(wait->device);
    return over;
}

/* Looks at what a goal waits for, if that is not reached. */
static void gpusync__look_at(const gpusync__goal *goal)
{
    gpusync__object *t = goal->object;
    uint64_t last = goal->number && !goal->unordered ? goal->number : UINT64_MAX;
    if (t->kind->look && !goal->over && GPUSYNC__LOAD(&t->head.completed) < last)
        t->kind->look(t, last);
}

/* Looks at every open goal, and checks the wait. */
static bool gpusync__look_now(gpusync__wait *wait)
{
    for (size_t i = 0; i < wait->count; i++)
        gpusync__look_at(&wait->goals[i]);
    return gpusync__check_now(wait, false);
}

/* -- the spin */

#define GPUSYNC__LOOK_NS 500u /* from one look to the next */
#define GPUSYNC__SPIN_NS 250000u
#define GPUSYNC__MARGIN_NS 50000u
#define GPUSYNC__BLIND_NS 20000u
#define GPUSYNC__MANY 16 /* more goals are not spun for */

/* How long to spin, where the program has set nothing: to the expected end if that is near, else briefly. */
static uint64_t gpusync__worth(const gpusync__wait *wait, gpusync__pace *pace, uint64_t now)
{
    if (!pace)
        return wait->count > GPUSYNC__MANY ? 0 : GPUSYNC__BLIND_NS;
    gpusync__lock(wait->device);
    uint64_t ahead = wait->goals->number - wait->goals->object->head.completed;
    uint64_t took = pace->took_ns, end = pace->ended_ns + ahead * took;
    bool skips = pace->skips != 0;
    pace->skips -= skips;
    gpusync__unlock(wait->device);
    if (end < now)
        end = now + took;
    bool near = took && end - now <= GPUSYNC__SPIN_NS;
    return skips ? 0 : near ? end - now + GPUSYNC__MARGIN_NS : GPUSYNC__BLIND_NS;
}

/* Spins, at most to the deadline. pace: of the queue that the wait is for, or NULL. */
static bool gpusync__spin(gpusync__wait *wait, gpusync__pace *pace, const gpusync_spin *set, uint64_t now,
                          uint64_t deadline)
{
    const gpusync_hooks *hooks = &wait->device->hooks;
    uint64_t rounds = set ? (uint64_t)set->pause_iterations + set->yield_iterations : 0, next = now;
    uint64_t longest = set ? set->max_spin_ns : gpusync__worth(wait, pace, now);
    uint64_t until = longest && now < deadline && longest < deadline - now ? now + longest : deadline;
    const uint64_t begun = now;
    bool over = false;
    if (!rounds && !longest)
        return false;
    for (uint64_t i = 0; !over && (!rounds || i < rounds) && now < until; i++) {
        if (!set || !rounds || i < set->pause_iterations)
            GPUSYNC__PAUSE();
        else
            hooks->yield(hooks->user);
        over = gpusync__check_now(wait, false);
        now = gpusync_now_ns();
        if (over || now < next)
            continue;
        over = gpusync__look_now(wait);
        next = now + GPUSYNC__LOOK_NS;
    }
    wait->spun_ns = now - begun;
    if (set || !pace)
        return over;
    gpusync__lock(wait->device); /* after five spins in vain in a row more and more waits do not spin */
    pace->misses = over ? 0 : pace->misses < 12 ? pace->misses + 1 : 12;
    pace->skips = over || pace->misses < 5 ? 0 : 1u << (pace->misses - 5);
    gpusync__unlock(wait->device);
    return over;
}

/* -- the sleep */

/* Lists what the sleeper waits for: for WAIT_ALL the first goal that is open is enough. */
static void gpusync__enlist(const gpusync__wait *wait, gpusync__sleeper *s, gpusync__after *after)
{
    bool enough = false;
    for (size_t i = 0; i < wait->count && !enough; i++) {
        gpusync__goal *goal = &wait->goals[i];
        gpusync__object *t = goal->object;
        if (goal->over)
            continue;
        goal->sleeper = s;
        goal->node.number = goal->number;
        gpusync__list(t, t->kind->ring ? t->kind->ring(goal) : &t->waiting, &goal->node, after);
        enough = wait->how == GPUSYNC_WAIT_ALL;
    }
}

/* Checks whether the wait is over, and lists the sleeper if not, in one hold: else a waker could come in between. A
   sleeper that a waker is about to unpark is not listed: it comes here again. A single goal keeps its place in the
   ring. */
static bool gpusync__prepare(gpusync__wait *wait, gpusync__sleeper *s, bool last)
{
    gpusync__after after = GPUSYNC__NOTHING;
    gpusync__lock(wait->device);
    bool over = gpusync__check(wait);
    bool stays = s->count == 1 && s->goals->node.next && !over && !last;
    for (size_t i = 0; i < s->count && !stays; i++)
        gpusync__unlist(&s->goals[i].node);
    if (!over && !last && !stays && !GPUSYNC__LOAD_SEQ(&s->woken))
        gpusync__enlist(wait, s, &after);
    gpusync__finish(wait->device, &after);
    return over;
}

static void gpusync__sleeper_init(gpusync__sleeper *s, const gpusync_device *dev, gpusync__goal *goals, size_t count)
{
    memset(&s->waiter, 0, sizeof s->waiter);
    if (dev->default_hooks) {
        pthread_mutex_init(&s->mutex, NULL);
#ifdef __APPLE__
        pthread_cond_init(&s->wake, NULL);
#else
        pthread_condattr_t attributes;
        pthread_condattr_init(&attributes);
        pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
        pthread_cond_init(&s->wake, &attributes);
        pthread_condattr_destroy(&attributes);
#endif
    }
    s->permit = s->woken = false;
    s->wakers = 0;
    s->goals = goals;
    s->count = count;
    s->deadline_ns = GPUSYNC_FOREVER;
}

#define GPUSYNC__YIELDS 64u            /* for what another thread is about to do */
#define GPUSYNC__BRIEF_NS 50000u       /* the first park for it; */
#define GPUSYNC__LAST_BRIEF_NS 800000u /* the longest */

/* Yields, then parks, until a count that no wake-up follows is down, or the deadline has passed. */
static void gpusync__outlast(const gpusync_device *dev, gpusync__sleeper *s, const uint32_t *count, uint32_t down,
                             uint64_t deadline)
{
    uint64_t brief = GPUSYNC__BRIEF_NS, now = 0;
    for (uint32_t i = 0; GPUSYNC__LOAD_SEQ(count) > down && now < deadline; i++) {
        if (i < GPUSYNC__YIELDS) {
            dev->hooks.yield(dev->hooks.user);
            continue;
        }
        now = gpusync_now_ns();
        dev->hooks.park(dev->hooks.user, &s->waiter, now + brief);
        brief = brief < GPUSYNC__LAST_BRIEF_NS ? 2 * brief : brief;
    }
}

/* Ends a sleeper: wakers may still touch it. */
static void gpusync__sleeper_end(gpusync__sleeper *s, const gpusync_device *dev)
{
    if (GPUSYNC__LOAD_SEQ(&s->wakers))
        gpusync__outlast(dev, s, &s->wakers, 0, GPUSYNC_FOREVER);
    if (dev->default_hooks) {
        pthread_cond_destroy(&s->wake);
        pthread_mutex_destroy(&s->mutex);
    }
}

/* Sleeps until the wait is over. Looks at the whole device now and then, and at the deadline at what it waits for: what
   has ended by then has ended. */
static bool gpusync__sleep(gpusync__wait *wait, uint64_t now, uint64_t deadline)
{
    const gpusync_hooks *hooks = &wait->device->hooks;
    gpusync__sleeper s;
    uint64_t slice = GPUSYNC__SLICE_NS, until = now + slice;
    gpusync__sleeper_init(&s, wait->device, wait->goals, wait->count);
    s.since_ns = now - wait->spun_ns;
    s.deadline_ns = deadline;
    bool over = false;
    if (deadline <= until) /* it may have passed meanwhile */
        now = gpusync_now_ns();
    for (;;) {
        bool last = now >= deadline;
        if (now >= until) {
            if (!gpusync__look_around(wait->device)) /* another thread has looked */
                gpusync__look_now(wait);
            slice = slice < GPUSYNC__LAST_SLICE_NS ? 2 * slice : slice;
            until = now + slice;
        }
        if (last)
            gpusync__look_now(wait);
        over = gpusync__prepare(wait, &s, last);
        if (over || last)
            break;
        hooks->park(hooks->user, &s.waiter, until < deadline ? until : deadline);
        now = wait->woken_ns = gpusync_now_ns();
    }
    gpusync__sleeper_end(&s, wait->device);
    return over;
}

/* -- one wait */

/* Tells of a wait that its limit has ended. */
GPUSYNC__APART void gpusync__log_timeout(const gpusync__wait *wait, uint64_t timeout_ns)
{
    const gpusync__goal *goal = wait->goals;
    while (goal->over)
        goal++;
    gpusync__object *t = goal->object;
    uint64_t now = gpusync_now_ns();
    gpusync__lock(wait->device);
    bool quiet = now < t->quiet_ns;
    if (!quiet)
        t->quiet_ns = now + GPUSYNC__IDLE_NS;
    gpusync__unlock(wait->device);
    if (quiet)
        return;
    char name[96], what[80];
    snprintf(what, sizeof what, goal->number ? "%s %s %" PRIu64 "%s" : "%s", goal->aim->what, t->kind->counts,
             goal->number, wait->count > 1 ? " and other points" : "");
    gpusync__log(wait->device, GPUSYNC_LOG_WARNING,
                 "%s: a wait for%s ended at its limit of %.3f ms; gpusync_device_report tells why",
                 gpusync__name(t, name), what, (double)timeout_ns / 1e6);
}

/* Counts a wait. pace: of the queue of whose tickets it was, or NULL. */
static void gpusync__count_wait(const gpusync__wait *wait, gpusync__pace *pace)
{
    bool slept = wait->by == GPUSYNC_ENDED_SLEEP;
    double now = (double)wait->woken_ns;
    uint64_t number = wait->goals->number;
    gpusync__lock(wait->device);
    gpusync_stats *stats = pace ? &pace->stats : &wait->device->stats;
    const gpusync__info *info = pace && slept ? &pace->infos[number % GPUSYNC__INFOS] : NULL;
    double end = info && info->ticket == number ? info->gpu_end * 1e9 : 0;
    uint64_t *counts = &stats->waits_inline; /* the next five are in the order of gpusync_wait_end */
    counts[wait->by]++;
    stats->spins_in_vain += wait->spun_ns && wait->by > GPUSYNC_ENDED_SPIN;
    stats->spin_ns += wait->spun_ns;
    if (end > 0 && end < now) {
        stats->wakes++;
        stats->wake_ns += (uint64_t)(now - end);
    }
    gpusync__unlock(wait->device);
}

/* Waits. set: the spin that the program has set for this wait, or NULL. */
static gpusync_result gpusync__await(gpusync__wait *wait, uint64_t timeout_ns, const gpusync_spin *set)
{
    gpusync_device *dev = wait->device;
    gpusync__object *t = wait->goals->object;
    gpusync__pace *pace = wait->count == 1 ? wait->goals->pace : NULL;
    const gpusync__tracer *tracer = gpusync__tracer_of(dev);
    uint64_t begun = tracer ? gpusync_now_ns() : 0;
    bool over = gpusync__check_now(wait, true);
    bool counts = !over;
    if (counts) {
        GPUSYNC__ADD(&dev->waits, 1); /* first: a handler that has read 0 leaves the end to this look */
        wait->by = GPUSYNC_ENDED_STATUS;
        over = gpusync__look_now(wait);
    }
    bool refused = !over && gpusync__in_callback(dev, t);
    if (!over && !refused && timeout_ns) {
        uint64_t now = gpusync_now_ns(),
                 deadline = timeout_ns < GPUSYNC_FOREVER - now ? now + timeout_ns : GPUSYNC_FOREVER;
        const gpusync_spin *spin = set ? set : wait->count == 1 ? t->spin : dev->spin;
        wait->by = GPUSYNC_ENDED_SPIN;
        over = gpusync__spin(wait, pace, spin, now, deadline);
        if (!over) {
            wait->by = GPUSYNC_ENDED_SLEEP;
            over = gpusync__sleep(wait, now + wait->spun_ns, deadline);
        }
    }
    if (!over && !refused && gpusync__look_around(dev)) /* a short wait ends before its first slice */
        over = gpusync__look_now(wait);
    gpusync_result result = refused ? GPUSYNC_ERROR_WOULD_DEADLOCK : over ? wait->result : GPUSYNC_TIMEOUT;
    if (!over)
        wait->by = GPUSYNC_ENDED_UNMET;
    if (counts)
        GPUSYNC__SUB(&dev->waits, 1);
    gpusync__count_wait(wait, pace);
    if (tracer)
        tracer->wait(wait, begun, result);
    if (refused) {
        wait->which = wait->count;
        gpusync__explain(wait->error, result);
    } else if (!over && timeout_ns && dev->log)
        gpusync__log_timeout(wait, timeout_ns);
    return result;
}

/* A wait of the library's own for one thing of an object, to which the caller has a reference. */
static gpusync_result gpusync__await_goal(gpusync__goal *goal, uint64_t timeout_ns)
{
    bool patient = timeout_ns == GPUSYNC_FOREVER;
    gpusync__wait wait = {goal->object->device, goal, 1, 1, GPUSYNC_WAIT_ALL, GPUSYNC_OK, NULL, false, false, patient,
                          GPUSYNC_ENDED_INLINE, 0,    0};
    return gpusync__await(&wait, timeout_ns, NULL);
}

/* The same of a destroy: it goes on though the object is closed. */
static void gpusync__drain(gpusync__goal *goal)
{
    gpusync__wait wait = {goal->object->device, goal, 1, 1, GPUSYNC_WAIT_ALL, GPUSYNC_OK, NULL, true, false, true,
                          GPUSYNC_ENDED_INLINE, 0,    0};
    gpusync__sleep(&wait, gpusync_now_ns(), GPUSYNC_FOREVER);
}

/* -- a destroy */

/* Closes the object. False: it was closed already. Under the lock. */
static bool gpusync__shut(gpusync__object *t, gpusync__after *after)
{
    if (t->alert & GPUSYNC__CLOSED)
        return false;
    gpusync__alarm(t, GPUSYNC__CLOSED);
    t->kind->shut(t, after);
    return true;
}

/* Destroys an object. ends: ends what Metal has, by a wait or by giving it up. It returns true if the device is lost,
   so that the wait was given up. NULL: Metal has nothing. */
static gpusync_result gpusync__close(gpusync__object *t, bool (*ends)(gpusync__object *))
{
    gpusync__after after = GPUSYNC__NOTHING;
    gpusync__goal calls;
    if (!t)
        return GPUSYNC_OK;
    gpusync_device *dev = t->device;
    if (gpusync__in_callback(dev, t))
        return GPUSYNC_ERROR_WOULD_DEADLOCK;
    gpusync__lock(dev);
    bool first = gpusync__shut(t, &after);
    gpusync__finish(dev, &after);
    if (!first)
        return GPUSYNC_ERROR_DESTROYED;
    bool gave_up = ends && ends(t);
    for (bool owes = true; owes;) { /* its callbacks, and one that another thread runs */
        gpusync__lock(dev);
        owes = t->owed != 0;
        size_t (*run)(gpusync_device *, const gpusync__object *, size_t) = dev->run_due;
        gpusync__unlock(dev);
        gpusync__goal_init(&calls, t, &gpusync__for_calls);
        if (owes && (!run || !run(dev, t, SIZE_MAX)))
            gpusync__drain(&calls);
    }
    gpusync__lock(dev);
    gpusync__object_gone(dev, &after);
    gpusync__finish(dev, &after);
    gpusync__unref(t);
    return gave_up ? GPUSYNC_ERROR_DEVICE_LOST : GPUSYNC_OK;
}

/* -------------------------------------------------------------------------------- >>queue --
   Layer 3. Work: its life, its failures on record, its room, its handler; and the queues on which it is. Knows objects,
   waits and Metal; of waits and signals of work it knows the gate alone. */

/* A wait or a signal of work. */
typedef struct gpusync__link {
    gpusync__node node; /* first: of a wait that is not over, on its object; of a signal, on its timeline, with a
                           reference to the work */
    struct gpusync__work *work;
    struct gpusync__link *next; /* of the work */
    gpusync__object *object;    /* with a reference */
    uint64_t behind;            /* the lower value of its timeline that the GPU waits for before it signals; 0: none */
    bool signal;
    bool encoded;   /* the GPU waits or signals, not the host */
    bool crossed;   /* the host has written the event while the GPU was to signal this: it writes this value, too */
    bool allocated; /* memory of its own */
} gpusync__link;

/* What work with waits and signals does beside a plain commit: >>held. `encode` and `free` run without the device's
   lock, the others under it. */
typedef struct gpusync__gate {
    int (*judge)(struct gpusync__work *w, gpusync__after *after); /* may it go to Metal? */
    void (*sent)(struct gpusync__work *w, gpusync__after *after); /* it turns SENT */
    void (*encode)(struct gpusync__work *w);                      /* it is about to be committed */
    /* It has ended: how does it stand with what it waits for? error: gets the first failure, if there is one. */
    int (*outcome)(struct gpusync__work *w, gpusync_error *error, gpusync__after *after);
    void (*failed)(struct gpusync__work *w, const gpusync_error *error, gpusync__after *after); /* it is to settle */
    void (*settled)(struct gpusync__work *w, gpusync__after *after);
    void (*free)(struct gpusync__work *w);
} gpusync__gate;

/* The states of work. OPEN: not committed. HELD: committed, and not sent. SENT: Metal has it, or the thread that has
   set it out is about to commit it, under the order lock. ENDED: its command buffers are over, or it never ran.
   SETTLED: its result is on record, its signals have passed. */
enum { GPUSYNC__OPEN, GPUSYNC__HELD, GPUSYNC__SENT, GPUSYNC__ENDED, GPUSYNC__SETTLED };

#define GPUSYNC__FEW 4 /* command buffers and links of work that need no memory of their own */

/* The waits and signals of work, and what was open, of a submission. */
typedef struct gpusync__links {
    gpusync__link *first;        /* in the order in which they were added */
    struct gpusync__work *parts; /* of a submission: what was open, to free with it; by node.next */
    uint32_t count, listed;      /* listed: signals on their timelines */
    bool by_host;                /* the host makes the points that are added, in place of the GPU */
    bool encodes;                /* a wait of its own is for the GPU */
    bool pointed;                /* by gpusync_encode_wait or _signal, which may have found nothing to encode */
    gpusync__link **end;
    gpusync__node turn; /* of work with signals that Metal 4 has, with a reference: on the queue's timeline `passed` */
    gpusync__link few[GPUSYNC__FEW];
} gpusync__links;

/* What ends as one: what has a ticket, or an UNORDERED submission. The fields from `gate` to `gpu_end`, and of `links`
   those up to `end`, are zero at first. */
typedef struct gpusync__work {
    gpusync__node node;   /* first: in a ring of its queue, by its number: gpusync__home. next: of free memory */
    gpusync_queue *queue; /* with a reference */
    /* +1 each: of a marker the other code's, then ours; else ours, for waits (if there is no other, for all points),
       then the program's. With Metal 4 MTL4CommitOptions come before these. */
    void **buffers;
    uint32_t refs;          /* its ring, until it settles; blocks; listed signals; threads that look at it, enter, send,
                               trace, report it. Atomic */
    gpusync__job tell;      /* that it has settled, to the trace, with a reference; frees it */
    gpusync__node stirring; /* of UNORDERED work: in a ring of its queue, held.stirred or loose.stirred */
    void *few_buffers[GPUSYNC__FEW];
    gpusync__links links;
    const gpusync__gate *gate; /* NULL: a plain commit */
    /* Asked under both locks as the work is to enter its queue. NULL: nothing to ask. */
    gpusync_result (*accept)(struct gpusync__work *w, gpusync__after *after);
    gpusync__callback *on_complete; /* of a submission, until it settles */
    gpusync_error *error;           /* the text of Metal's failure, or NULL: there was no memory for it */
    const char *why;                /* of a failure of gpusync's own */
    gpusync_result result;          /* how the work itself has ended; from SETTLED on with what it waited for, too */
    gpusync_failure failure;
    uint32_t count, first, submitted_count; /* command buffers; the first of a submission's own; how many those are */
    uint32_t others;                        /* the first of them, which other code has committed, of a marker: 0 or 1 */
    uint32_t unheard;                       /* completed handlers to come */
    uint32_t room;                          /* what it takes of the queue's room */
    uint8_t state;
    bool unordered, submitted, marker;
    bool unsent;       /* ended, and never was Metal's */
    bool unknown;      /* given up while Metal had it: nothing tells of its end */
    bool by_look;      /* a handler was lost, or came before the buffer in front of a marker was over: a look decides */
    uint64_t since_ns; /* when it was opened, got its ticket, was sent, ended on the GPU; if traced, settled */
    double gpu_start, gpu_end;
    char label[64];
} gpusync__work;

#define GPUSYNC__FREE_WORK 64

/* What a queue of Metal 4 does in its own way: >>metal4. */
typedef struct gpusync__port {
    gpusync_result (*make)(gpusync_queue *q, gpusync_device *dev, const gpusync_queue_desc *desc);
    gpusync_result (*commit)(gpusync_queue *q, void *buffer, gpusync_ticket *ticket);
    void (*sent)(gpusync_queue *q, gpusync__work *w); /* the signals of work are sent. Under the lock */
    void (*send)(gpusync_device *dev, gpusync__work *w);
    void (*read_end)(gpusync__work *w, void *source, gpusync__after *after);
} gpusync__port;

/* Failures. Record n, from 0 on, is at n % size. */
typedef struct gpusync__record {
    gpusync_error *errors;
    uint64_t count;
    uint32_t size;
    uint64_t bad;        /* the highest ticket that failed. Read without the lock */
    uint64_t reported;   /* records below this one count as told by waits for everything */
    uint64_t dropped_to; /* the highest ticket whose record newer ones pushed out */
    bool unreported;     /* a failure sticks, or no wait for everything has told of one. Read without the lock */
    bool sticky;
    gpusync_error stuck; /* the failure that sticks, or stuck last: work behind it up to `stuck_to` inherits it */
    uint64_t stuck_to;   /* UINT64_MAX: it sticks, refuses new work and ends held work; 0: none has stuck yet */
    void *user;          /* of the program's, for its errors */
} gpusync__record;

struct gpusync_queue {
    gpusync__object object; /* first */
    void *metal;
    const gpusync__port *port; /* NULL: not Metal 4 */
    gpusync__object *passed;   /* of Metal 4: how much work with signals, in the order of sending, has made them */
    void *known;               /* the class of a command buffer that fits the queue. Atomic */
    bool encoder_status;
    gpusync__mutex order; /* ticket order is Metal's order: held from the ticket to [commit] */
    /* Under the device's lock, but for what is read without it. Rings of work are by number. */
    gpusync__node line; /* committed work with a ticket that has not settled, */
    gpusync__node late; /* and settled work of which a handler or a value is to come */
    struct {
        gpusync__node works;   /* UNORDERED work that has not settled, */
        gpusync__node stirred; /* and what of it has ended, and is to be judged */
        gpusync__node waiting; /* the ring of sleepers that wait for UNORDERED work, by its number */
    } loose;
    struct {
        gpusync__node works;
        uint64_t last; /* the last number of open work */
    } open;
    struct {
        gpusync__work *first;  /* of those with a ticket */
        uint32_t count;        /* UNORDERED work, too */
        gpusync__node stirred; /* the ring of UNORDERED work that is to be judged */
        gpusync__job issue;    /* judges held work, and sends what may go */
        gpusync__run send;     /* the function of that job; NULL: no work was ever held */
        bool missed; /* a thread had work to send, and found the order lock taken: its holder looks once more after its
                        unlock. Atomic */
    } held;
    struct {
        uint32_t taken, limit; /* by open, held and sent command buffers, at least one a ticket */
        gpusync__node waiting; /* the ring of sleepers that wait for room, the first come first */
    } room;
    gpusync__node moved; /* in the device's ring `moved`: ended work is to settle, as far as that may be now */
    uint32_t sent_count; /* work that Metal has */
    bool abandoned;      /* nothing that waits for the queue is released any more */
    bool frozen;         /* Metal had work when the queue was given up: `completed` stands still */
    struct {
        gpusync__work *first;
        uint32_t count;
    } memory; /* of work that is gone: a queue has its own, for the caches of its threads */
    gpusync__record record;
    gpusync__pace pace;
};

static int gpusync__ticket_stands(const gpusync__object *t, uint64_t number, gpusync_error *error);
static void gpusync__look_at_queue(gpusync__object *t, uint64_t last);
static gpusync__node *gpusync__ring_of(gpusync__goal *goal);
static void gpusync__shut_queue(gpusync__object *t, gpusync__after *after);
static void gpusync__queue_leave(gpusync__object *t);
static void gpusync__queue_free(gpusync__object *t);

static const gpusync__kind gpusync__queues = {
    "queue",
    "ticket",
    false,
    gpusync__ticket_stands,
    gpusync__look_at_queue,
    gpusync__ring_of,
    NULL,
    gpusync__shut_queue,
    gpusync__queue_leave,
    gpusync__queue_free,
};

static gpusync_queue *gpusync__queue_of(const gpusync__object *t)
{
    return (gpusync_queue *)(uintptr_t)t;
}

/* The queue that an object is; NULL: it is no queue. */
static gpusync_queue *gpusync__as_queue(const gpusync__object *t)
{
    return t->kind == &gpusync__queues ? gpusync__queue_of(t) : NULL;
}

/* The work of a node; NULL: the node is the head of its ring. */
static gpusync__work *gpusync__work_at(const gpusync__node *ring, const gpusync__node *n)
{
    return n == ring ? NULL : (gpusync__work *)(uintptr_t)n;
}

/* The next work that is kept behind this one (NULL: the first), or NULL: late work, that with a ticket, UNORDERED work.
   Each by number. */
static gpusync__work *gpusync__next(const gpusync_queue *q, const gpusync__work *w)
{
    const gpusync__node *n = w ? w->node.next : q->late.next;
    if (n == &q->late)
        n = q->line.next;
    if (n == &q->line)
        n = q->loose.works.next;
    return gpusync__work_at(&q->loose.works, n);
}

/* The first work with a ticket that has not settled, or NULL. */
static gpusync__work *gpusync__first(const gpusync_queue *q)
{
    return gpusync__work_at(&q->line, q->line.next);
}

/* The next held work behind this one; NULL: the first, there is no more. */
static gpusync__work *gpusync__next_held(const gpusync_queue *q, const gpusync__work *last)
{
    gpusync__work *w = q->held.count ? gpusync__next(q, last) : NULL;
    while (w && w->state != GPUSYNC__HELD)
        w = gpusync__next(q, w);
    return w;
}

/* How much committed work of the queue has not settled. */
static uint64_t gpusync__unsettled(const gpusync_queue *q)
{
    return q->object.head.committed + q->object.head.submitted - q->pace.stats.completions;
}

/* The ticket of work; of UNORDERED work there is none. */
static gpusync_ticket gpusync__ticket_of(const gpusync__work *w)
{
    return w->unordered ? GPUSYNC_NO_TICKET : (gpusync_ticket)w->node.number;
}

/* Whether each handler of the work has noted its times. */
static inline bool gpusync__has_times(const gpusync__work *w)
{
    return !w->unheard && !w->by_look;
}

/* -- the life of work */

/* Memory of work that is gone, or NULL. Under the lock. */
static inline gpusync__work *gpusync__reuse(gpusync_queue *q)
{
    gpusync__work *w = q->memory.first;
    if (w) {
        q->memory.first = (gpusync__work *)(void *)w->node.next;
        q->memory.count--;
    }
    return w;
}

/* New work with one reference, and room for so many buffers, in this memory if it is not NULL. NULL: no memory. */
static gpusync__work *gpusync__work_new(gpusync_queue *q, gpusync__work *w, size_t buffers)
{
    void **many = NULL;
    if (!w) {
        gpusync__lock(q->object.device);
        w = gpusync__reuse(q);
        gpusync__unlock(q->object.device);
    }
    if (!w && (w = (gpusync__work *)GPUSYNC_MALLOC(sizeof *w)) == NULL)
        return NULL;
    if (buffers > GPUSYNC__FEW && (many = (void **)GPUSYNC_MALLOC(buffers * sizeof(void *))) == NULL) {
        GPUSYNC_FREE(w);
        return NULL;
    }
    /* In parts: gcc 12 makes a loop of more than 80 bytes on x86-64 (rep stos), and single stores of fewer. */
    memset(&w->links, 0, offsetof(gpusync__links, end));
    memset(&w->gate, 0, offsetof(gpusync__work, count) - offsetof(gpusync__work, gate));
    memset(&w->count, 0, offsetof(gpusync__work, label) - offsetof(gpusync__work, count));
    w->links.turn.next = w->node.next = w->stirring.next = NULL;
    w->tell.listed = false;
    w->label[0] = '\0';
    w->buffers = many ? many : w->few_buffers;
    w->links.end = &w->links.first;
    w->refs = 1;
    w->queue = q;
    gpusync__keep(&q->object);
    return w;
}

static void gpusync__return_room(const gpusync__work *w);

/* The last reference of work is gone. */
static __attribute__((__noinline__)) void gpusync__work_free(gpusync__work *w)
{
    gpusync_queue *q = w->queue;
    gpusync_device *dev = q->object.device;
    void *pool = gpusync__pool_push(); /* for what the end of objects of the program's autoreleases */
    for (uint32_t i = 0; i < w->count; i++)
        gpusync__release(w->buffers[i]);
    gpusync__pool_pop(pool);
    if (w->gate)
        w->gate->free(w);
    for (gpusync__work *part; (part = w->links.parts) != NULL;) {
        w->links.parts = (gpusync__work *)(void *)part->node.next;
        if (GPUSYNC__SUB(&part->refs, 1) == 1)
            gpusync__work_free(part);
    }
    if (w->buffers != w->few_buffers)
        GPUSYNC_FREE(w->buffers);
    if (w->error)
        GPUSYNC_FREE(w->error);
    if (w->unsent)
        gpusync__return_room(w); /* Metal has let its command buffers go, and counts them no more */
    gpusync__lock(dev);
    bool keeps = q->memory.count < GPUSYNC__FREE_WORK;
    if (keeps) {
        w->node.next = (gpusync__node *)(void *)q->memory.first;
        q->memory.first = w;
        q->memory.count++;
    }
    gpusync__unlock(dev);
    if (!keeps)
        GPUSYNC_FREE(w);
    gpusync__unref(&q->object);
}

static void gpusync__work_unref(gpusync__work *w)
{
    if (GPUSYNC__SUB(&w->refs, 1) == 1)
        gpusync__work_free(w);
}

/* Frees work, without the lock. */
static void gpusync__free_job(gpusync__job *job, gpusync__after *after)
{
    (void)after;
    gpusync__work_free(GPUSYNC__OF(gpusync__work, tell, job));
}

/* Drops a reference to work. The last one has it freed, without the lock. */
static void gpusync__bury(gpusync__work *w, gpusync__after *after)
{
    if (GPUSYNC__SUB(&w->refs, 1) != 1)
        return;
    w->tell.run = gpusync__free_job;
    w->tell.next = after->last;
    after->last = &w->tell;
}

/* Takes settled work off its queue of which nothing is to come. */
static void gpusync__forget(gpusync__work *w)
{
    if (w->state == GPUSYNC__SETTLED && !w->unheard && !w->links.listed)
        gpusync__unlist(&w->node);
}

/* Tells the trace that work has settled. */
static void gpusync__tell(gpusync__job *job, gpusync__after *after)
{
    gpusync__work *w = GPUSYNC__OF(gpusync__work, tell, job);
    (void)after;
    const gpusync__tracer *tracer = gpusync__tracer_of(w->queue->object.device);
    if (tracer)
        tracer->work(GPUSYNC_TRACE_ENDED, w, w->since_ns);
    gpusync__work_unref(w);
}

/* -- failures on record. From Metal's error to the program: a handler or a look reads Metal's error into work->error
   (gpusync__failed). When the work settles, gpusync__settle_badly puts the error on its queue's record, on a sticky
   queue into `stuck`, and on the timelines that the work was to signal (not order_only ones). What asks reads it there:
   polls and waits, callbacks as they become due, and work that waits for the ticket or the value, which fails with a
   copy. The thread that has read it logs it, and notes the loss of the device (gpusync__lose). While it sticks
   gpusync__refuses tells new work, but for markers: EXECUTION.
     fails with its result: what waits for the ticket or value     gpusync__judge_wait (unsent), gpusync__list_waits
     and a new signal of the failed timeline (refused)             gpusync__accept_signal
     if it sticks: ordered work, but no markers, that was          gpusync__inherits, gpusync__judge
     committed before the clear
   The rest goes on, also later work of the queue, and work with a ticket that only signals the timeline. */

/* The work's own failure: what Metal told, or why gpusync gave it up. */
GPUSYNC__APART void gpusync__describe(const gpusync__work *w, gpusync_error *error)
{
    const char *why = w->why ? w->why : "the command buffer failed; there was no memory for Metal's text";
    if (w->error) {
        *error = *w->error;
    } else {
        gpusync__own_error(error, w->result, why);
        error->failure = w->failure;
        if (w->result == GPUSYNC_ERROR_DEVICE_LOST)
            *error = w->queue->object.device->loss;
        gpusync__copy_text(error->label, sizeof error->label, w->label);
    }
    error->transient = w->failure == GPUSYNC_FAILURE_INNOCENT_VICTIM || w->failure == GPUSYNC_FAILURE_NOT_PERMITTED ||
                       w->failure == GPUSYNC_FAILURE_OUT_OF_MEMORY;
    error->ticket = error->origin = gpusync__ticket_of(w);
    error->queue_user = w->queue->record.user;
    gpusync__copy_text(error->queue_label, sizeof error->queue_label, w->queue->object.label);
}

/* Notes why gpusync gives work up. What Metal told of it comes first. */
static void gpusync__doom(gpusync__work *w, gpusync_result result, const char *why)
{
    bool cancelled = result == GPUSYNC_ERROR_CANCELLED || result == GPUSYNC_ERROR_DESTROYED;
    if (w->result != GPUSYNC_OK)
        return;
    w->result = result;
    w->failure = cancelled ? GPUSYNC_FAILURE_CANCELLED : GPUSYNC_FAILURE_OTHER;
    w->why = why;
}

/* Tells of a command buffer that failed. */
GPUSYNC__APART void gpusync__log_failure(const gpusync__work *w)
{
    gpusync_device *dev = w->queue->object.device;
    gpusync_error error;
    char name[96];
    gpusync__describe(w, &error);
    gpusync__name(&w->queue->object, name);
    char code[96] = "", encoder[80] = "";
    if (error.domain[0])
        snprintf(code, sizeof code, " (%s %" PRId64 ")", error.domain, error.code);
    if (error.encoder[0])
        snprintf(encoder, sizeof encoder, ", encoder '%s'", error.encoder);
    gpusync__log(dev, GPUSYNC_LOG_ERROR, "%s, %s %" PRIu64 ", command buffer '%s'%s: %s%s: %s", name,
                 w->unordered ? "UNORDERED work" : "ticket", w->node.number, error.label, encoder,
                 gpusync_failure_string(error.failure), code, error.message);
}

/* Puts a failure on record. */
static void gpusync__record_failure(gpusync_queue *q, const gpusync_error *error)
{
    gpusync_error *record = &q->record.errors[q->record.count % q->record.size];
    if (q->record.count++ >= q->record.size && record->ticket)
        q->record.dropped_to = (uint64_t)record->ticket;
    *record = *error;
    GPUSYNC__STORE(&q->record.unreported, true);
    if (error->ticket)
        GPUSYNC__STORE(&q->record.bad, (uint64_t)error->ticket);
}

/* How a ticket that has settled ended: by its info, or its record, or as RESULT_UNKNOWN, if newer ones pushed that
   out. */
static int gpusync__ticket_end(const gpusync_queue *q, uint64_t ticket, gpusync_error *error)
{
    const gpusync__info *info = &q->pace.infos[ticket % GPUSYNC__INFOS];
    uint64_t n = q->record.count, first = n > q->record.size ? n - q->record.size : 0;
    if (!ticket || ticket > q->record.bad || (info->ticket == ticket && !info->failed))
        return GPUSYNC__WELL;
    while (n > first && q->record.errors[(n - 1) % q->record.size].ticket != (gpusync_ticket)ticket)
        n--;
    if (n == first && ticket > q->record.dropped_to)
        return GPUSYNC__WELL;
    if (error && n > first)
        *error = q->record.errors[(n - 1) % q->record.size];
    if (error && n == first) {
        gpusync__own_error(error, GPUSYNC_ERROR_RESULT_UNKNOWN, "the work ended, but how is no longer on record");
        gpusync__copy_text(error->queue_label, sizeof error->queue_label, q->object.label);
        error->queue_user = q->record.user;
        error->ticket = error->origin = (gpusync_ticket)ticket;
    }
    return GPUSYNC__BADLY;
}

/* Whether a failure sticks. */
static bool gpusync__sticks(const gpusync_queue *q)
{
    return q->record.stuck_to == UINT64_MAX;
}

/* Whether the failure that sticks, or stuck, is that of this work, too, which was committed before the clear. It is a
   later ticket: they settle in their order. */
static bool gpusync__inherits(const gpusync_queue *q, const gpusync__work *w)
{
    return !w->unordered && !w->marker && w->node.number <= q->record.stuck_to;
}

/* -- what goes on when a number of the queue has come */

/* Whether the ticket, and all before it, have settled. `completed` says so, unless it is frozen. */
static bool gpusync__has_settled(const gpusync_queue *q, uint64_t ticket)
{
    const gpusync__node *first = q->line.next;
    return ticket <= q->object.head.completed || (q->frozen && (first == &q->line || ticket < first->number));
}

static int gpusync__ticket_stands(const gpusync__object *t, uint64_t number, gpusync_error *error)
{
    const gpusync_queue *q = gpusync__queue_of(t);
    return gpusync__has_settled(q, number) ? gpusync__ticket_end(q, number, error) : GPUSYNC__NOT_YET;
}

/* Lists the job that sends held work. */
static void gpusync__issue_later(gpusync_queue *q, gpusync__after *after)
{
    if (gpusync__later(after, &q->held.issue, q->held.send))
        gpusync__keep(&q->object);
}

/* Has work judged that is HELD or has ended: something that it waits for has changed. With a ticket only the first of
   its queue is. */
static void gpusync__stir(gpusync__work *w, gpusync__after *after)
{
    gpusync_queue *q = w->queue;
    bool held = w->state == GPUSYNC__HELD;
    if (w->unordered && !w->stirring.next)
        gpusync__put((held ? &q->held.stirred : &q->loose.stirred)->prev, &w->stirring);
    if (!held && !q->moved.next)
        gpusync__put(q->object.device->moved.prev, &q->moved);
    if (held)
        gpusync__issue_later(q, after);
}

/* Stirs all held work of a queue. */
static void gpusync__stir_held(gpusync_queue *q, gpusync__after *after)
{
    for (gpusync__work *w = NULL; (w = gpusync__next_held(q, w)) != NULL;)
        gpusync__stir(w, after);
}

/* `completed` and `ended` follow the work that has settled, unless they are frozen. */
static void gpusync__publish(gpusync_queue *q, bool unordered, gpusync__after *after)
{
    gpusync__head *head = &q->object.head;
    const gpusync__node *ring = unordered ? &q->loose.works : &q->line;
    uint64_t last = unordered ? head->submitted : head->committed;
    uint64_t settled = ring->next == ring ? last : ring->next->number - 1;
    if (!q->frozen)
        GPUSYNC__STORE(unordered ? &head->ended : &head->completed, settled);
    gpusync__rise(unordered ? &q->loose.waiting : &q->object.waiting, settled, after);
}

/* Has a failure stick to its queue: see gpusync_queue_clear_failure. */
static void gpusync__stick(gpusync_queue *q, const gpusync__work *w, const gpusync_error *error, gpusync__after *after)
{
    if (!q->record.sticky || w->unordered || error->result == GPUSYNC_ERROR_CANCELLED ||
        w->node.number <= q->record.stuck_to)
        return;
    q->record.stuck = *error;
    q->record.stuck_to = UINT64_MAX;
    gpusync__rouse_all(&q->room.waiting, true, after);
    gpusync__alarm(&q->object, GPUSYNC__STUCK);
    gpusync__stir_held(q, after);
}

/* -- settling: work settles when its own waits are over, that with a ticket in the order of tickets: the result is on
   record, its signals have passed, what waits for its ticket goes on. */

/* Settles failed work. Its failure is its own; else that of the first thing it waited for that failed; else `stuck`,
   which a clear leaves there. */
GPUSYNC__APART void gpusync__settle_badly(gpusync_queue *q, gpusync__work *w, gpusync__after *after)
{
    gpusync_error error;
    if (w->result != GPUSYNC_OK) {
        gpusync__describe(w, &error);
    } else {
        if (!w->gate || w->gate->outcome(w, &error, after) != GPUSYNC__BADLY)
            error = q->record.stuck;
        if (!error.inherited)
            error.origin = error.ticket;
        error.inherited = true;
        error.ticket = gpusync__ticket_of(w);
        w->result = error.result;
        if (w->unordered && w->label[0]) /* nothing else names it */
            memcpy(error.label, w->label, sizeof w->label);
    }
    error.ran = !w->unsent && w->count;
    error.in_use = w->unknown;
    if (w->on_complete)
        w->on_complete->error = error;
    gpusync__record_failure(q, &error);
    gpusync__stick(q, w, &error, after);
    if (w->gate)
        w->gate->failed(w, &error, after);
}

/* How ended work stands with what it waits for; NOT_YET: its waits are listed. Work that failed, or never ran, waits
   for nothing any more. */
static int gpusync__outcome(gpusync_queue *q, gpusync__work *w, gpusync__after *after)
{
    if (w->result != GPUSYNC_OK || w->unsent)
        return GPUSYNC__BADLY;
    int outcome = w->gate ? w->gate->outcome(w, NULL, after) : GPUSYNC__WELL;
    return outcome == GPUSYNC__WELL && gpusync__inherits(q, w) ? GPUSYNC__BADLY : outcome;
}

/* Tells of the times. All are noted. */
static inline void gpusync__set_times(const gpusync__work *w, gpusync__info *info)
{
    info->gpu_start = w->gpu_start;
    info->gpu_end = w->gpu_end;
}

/* Settles ended work if all that it waited for is over. The record comes before the state and `completed`, in one hold:
   a thread that sees the end finds the failure. */
static bool gpusync__settle(gpusync_queue *q, gpusync__work *w, gpusync__after *after)
{
    gpusync__info *info = &q->pace.infos[w->node.number % GPUSYNC__INFOS];
    int outcome = gpusync__outcome(q, w, after);
    if (outcome == GPUSYNC__NOT_YET)
        return false;
    if (!w->unordered) {
        info->ticket = w->node.number;
        info->gpu_start = info->gpu_end = 0;
        info->failed = outcome == GPUSYNC__BADLY;
        if (gpusync__has_times(w))
            gpusync__set_times(w, info);
    }
    if (outcome == GPUSYNC__BADLY)
        gpusync__settle_badly(q, w, after);
    w->state = GPUSYNC__SETTLED;
    q->pace.stats.completions++;
    if (w->gate)
        w->gate->settled(w, after);
    if (gpusync__tracer_of(q->object.device) && q != q->object.device->blocks) {
        GPUSYNC__ADD(&w->refs, 1);
        w->since_ns = gpusync_now_ns();
        gpusync__later(after, &w->tell, gpusync__tell);
    }
    if (w->on_complete) {
        w->on_complete->node.number = (uint64_t)gpusync__ticket_of(w);
        w->on_complete->node.fire(&w->on_complete->node, after);
        w->on_complete = NULL;
    }
    gpusync__unlist(&w->stirring); /* the timelines that it failed may be those that it waited for */
    gpusync__unlist(&w->node);
    if (w->unheard || w->links.listed)
        gpusync__insert(&q->late, &w->node);
    gpusync__publish(q, w->unordered, after);
    if (w->links.turn.next) /* Metal has not made the signals yet */
        q->passed->kind->tend(q->passed, after);
    gpusync__bury(w, after);
    return true;
}

/* Settles what has ended, as far as that may be now. */
static void gpusync__settle_all(gpusync__node *moved, gpusync__after *after)
{
    gpusync_queue *q = GPUSYNC__OF(gpusync_queue, moved, moved);
    gpusync__work *w;
    while ((w = gpusync__first(q)) != NULL && w->state == GPUSYNC__ENDED && gpusync__settle(q, w, after)) {}
    while (q->loose.stirred.next != &q->loose.stirred) {
        w = GPUSYNC__OF(gpusync__work, stirring, q->loose.stirred.next);
        gpusync__unlist(&w->stirring);
        gpusync__settle(q, w, after);
    }
}

/* -- room: places for command buffers. A thread that waits for one is on room.waiting, the first come first */

/* How a queue with such an alert answers new work. While a failure sticks it takes markers alone. */
GPUSYNC__APART gpusync_result gpusync__refusal(uint32_t alert, bool marker)
{
    if (alert & GPUSYNC__CLOSED)
        return GPUSYNC_ERROR_DESTROYED;
    if (alert & GPUSYNC__LOST)
        return GPUSYNC_ERROR_DEVICE_LOST;
    return marker ? GPUSYNC_OK : GPUSYNC_ERROR_EXECUTION;
}

/* Why the queue takes no new work. OK: it does. */
static inline gpusync_result gpusync__refuses(const gpusync_queue *q, bool marker)
{
    uint32_t alert = GPUSYNC__LOAD(&q->object.alert);
    return alert < GPUSYNC__STUCK ? GPUSYNC_OK : gpusync__refusal(alert, marker);
}

/* Whether there is a place for one more command buffer. A Metal queue that gpusync made holds twice as many, and one:
   Metal counts a buffer until its handler returns, gpusync until it begins. */
static bool gpusync__has_room(const gpusync_queue *q)
{
    return q->room.taken < q->room.limit;
}

/* Gives room back. A place that a thread waits for is granted to the thread: it is never free in between, so no other
   thread gets in first, and each place wakes one thread. */
static inline void gpusync__give_room(const gpusync__work *w, gpusync__after *after)
{
    gpusync_queue *q = w->queue;
    q->room.taken -= w->room;
    for (gpusync__node *e; (e = q->room.waiting.next) != &q->room.waiting && gpusync__has_room(q);) {
        q->room.taken++;
        ((gpusync__goal *)(void *)e)->granted = true;
        e->fire(e, after);
    }
}

/* Gives the room back of work that never ran. No lock is held. */
GPUSYNC__APART void gpusync__return_room(const gpusync__work *w)
{
    gpusync__after after = GPUSYNC__NOTHING;
    gpusync__lock(w->queue->object.device);
    gpusync__give_room(w, &after);
    gpusync__finish(w->queue->object.device, &after);
}

/* Takes a place for a command buffer. While threads wait for one there is none: a free place becomes theirs. */
static gpusync_result gpusync__reserve(gpusync__work *w)
{
    gpusync_queue *q = w->queue;
    gpusync__lock(q->object.device);
    w->room = gpusync__has_room(q);
    q->room.taken += w->room;
    gpusync__unlock(q->object.device);
    return w->room ? GPUSYNC_OK : GPUSYNC_ERROR_QUEUE_FULL;
}

/* Whether a wait for room has its place. Committed work makes room by itself. Where all places are open command
   buffers, and the last was opened a second ago, a wait without a limit is in vain. */
static int gpusync__room_stands(const gpusync__wait *wait, gpusync__goal *goal, gpusync_error *error)
{
    gpusync_queue *q = gpusync__queue_of(goal->object);
    bool free = !goal->node.next && !goal->granted && q->room.waiting.next == &q->room.waiting && gpusync__has_room(q);
    q->room.taken += free;
    if (free || goal->granted) {
        goal->granted = false; /* the wait has taken it */
        return GPUSYNC__WELL;
    }
    gpusync_result refused = gpusync__refuses(q, false);
    const gpusync__work *last = gpusync__work_at(&q->open.works, q->open.works.prev);
    uint32_t open = 0;
    for (const gpusync__node *o = q->open.works.next; wait->patient && o != &q->open.works; o = o->next)
        open++;
    if (refused == GPUSYNC_OK && open == q->room.taken && last && gpusync_now_ns() >= last->since_ns + GPUSYNC__IDLE_NS)
        refused = GPUSYNC_ERROR_QUEUE_FULL;
    gpusync__explain(error, refused);
    return refused == GPUSYNC_OK ? GPUSYNC__NOT_YET : GPUSYNC__BADLY;
}

static const gpusync__aim gpusync__for_room = {gpusync__room_stands, " room on"};

/* Takes a place for a command buffer, and waits for one. */
static gpusync_result gpusync__take_place(gpusync__work *w, uint64_t timeout_ns)
{
    gpusync_queue *q = w->queue;
    gpusync_result result = gpusync__refuses(q, false);
    if (result != GPUSYNC_OK || gpusync__reserve(w) == GPUSYNC_OK)
        return result;
    gpusync__goal goal;
    gpusync__goal_init(&goal, &q->object, &gpusync__for_room);
    result = gpusync__await_goal(&goal, timeout_ns);
    w->room = result == GPUSYNC_OK || goal.granted; /* a place that was granted too late goes back with the work */
    return result == GPUSYNC_ERROR_WOULD_DEADLOCK && !timeout_ns ? GPUSYNC_NOT_READY : result;
}

/* -- the end of work */

/* Work is over that was HELD or SENT: the caller settles or stirs it next. now: the time, if the GPU has ended it, or
   0. */
static inline void gpusync__end(gpusync__work *w, uint64_t now, gpusync__after *after)
{
    gpusync_queue *q = w->queue;
    q->sent_count -= w->state == GPUSYNC__SENT;
    if (now) { /* how long tickets take, for the default spin */
        uint64_t begun = w->since_ns > q->pace.ended_ns ? w->since_ns : q->pace.ended_ns;
        uint64_t took = now > begun ? now - begun : 0;
        q->pace.took_ns = q->pace.took_ns ? (7 * q->pace.took_ns + took) / 8 : took;
        q->pace.ended_ns = now;
        w->since_ns = now;
    }
    w->state = GPUSYNC__ENDED;
    if (!w->unsent) /* else with its memory */
        gpusync__give_room(w, after);
}

/* Work is HELD no more: the ordered work that is held behind it is judged. */
static void gpusync__unhold(gpusync_queue *q, gpusync__work *w, gpusync__after *after)
{
    q->held.count--;
    gpusync__unlist(&w->stirring);
    if (q->held.first != w)
        return;
    do
        q->held.first = gpusync__work_at(&q->line, q->held.first->node.next);
    while (q->held.first && q->held.first->state != GPUSYNC__HELD); /* a marker is not held */
    if (q->held.first)
        gpusync__stir(q->held.first, after);
}

/* Ends work that will never run, or whose end nothing tells. */
static void gpusync__give_up(gpusync__work *w, gpusync__after *after)
{
    if (w->state == GPUSYNC__HELD) {
        gpusync__unhold(w->queue, w, after);
        w->unsent = true; /* before gpusync__end, which leaves its room to its memory then */
    }
    w->unknown = w->state == GPUSYNC__SENT;
    gpusync__end(w, 0, after);
    gpusync__stir(w, after);
}

/* Whether work may go to Metal. NOT_YET: it is listed where that may change. BADLY: it never will. */
static int gpusync__judge(gpusync_queue *q, gpusync__work *w, gpusync__after *after)
{
    if (q->object.alert & GPUSYNC__CLOSED)
        gpusync__doom(w, GPUSYNC_ERROR_CANCELLED, "its queue was destroyed while the work was held");
    else if (q->object.alert & GPUSYNC__LOST)
        gpusync__doom(w, GPUSYNC_ERROR_DEVICE_LOST, NULL);
    if (w->result != GPUSYNC_OK || gpusync__inherits(q, w))
        return GPUSYNC__BADLY;
    return w->gate ? w->gate->judge(w, after) : GPUSYNC__WELL;
}

/* -- the completed handler */

/* Tells of the loss of the device, once. */
GPUSYNC__APART void gpusync__log_loss(gpusync__job *job, gpusync__after *after)
{
    gpusync_device *dev = GPUSYNC__OF(gpusync_device, loses, job);
    (void)after;
    bool revoked = dev->lost == GPUSYNC_FAILURE_ACCESS_REVOKED;
    gpusync__log(dev, GPUSYNC_LOG_ERROR, "the device is lost: %s. New work is refused; %s",
                 gpusync_failure_string((gpusync_failure)dev->lost),
                 revoked ? "only a new process has been seen to work again" : "go on with another MTLDevice");
}

/* The device is lost: held work, everywhere, is judged, and ends; waits for room end. */
static void gpusync__lose(gpusync_device *dev, const gpusync_error *error, uint64_t now, gpusync__after *after)
{
    if (dev->lost)
        return;
    dev->lost_ns = now;
    dev->loss = *error;
    dev->loss.result = GPUSYNC_ERROR_DEVICE_LOST;
    dev->loss.encoder[0] = '\0';
    GPUSYNC__STORE(&dev->lost, (uint32_t)error->failure);
    if (dev->log)
        gpusync__later(after, &dev->loses, gpusync__log_loss);
    if (dev->on_lost.node.fire && (dev->alive || !dev->ending))
        dev->on_lost.node.fire(&dev->on_lost.node, after);
    for (gpusync__object *t = dev->objects; t; t = t->next) {
        gpusync__alarm(t, GPUSYNC__LOST);
        if (!gpusync__as_queue(t))
            continue;
        gpusync__stir_held(gpusync__queue_of(t), after);
        gpusync__rouse_all(&gpusync__queue_of(t)->room.waiting, true, after);
    }
}

/* For a status that is neither Completed nor Error, and for a feedback of Metal 4. */
GPUSYNC__APART bool gpusync__has_error(void *source)
{
    void *pool = gpusync__pool_push();
    bool has = gpusync__send_id(source, gpusync__sel.error) != NULL;
    gpusync__pool_pop(pool);
    return has;
}

/* A command buffer of the work has failed. source: the buffer; the feedback of Metal 4; NULL: Metal 4 has given up a
   wait of the work. Its text is read without a lock; without memory for it the failure is known all the same. */
GPUSYNC__APART void gpusync__failed(gpusync__work *w, void *source, gpusync__after *after)
{
    gpusync_device *dev = w->queue->object.device;
    gpusync_error told, *error = (gpusync_error *)GPUSYNC_MALLOC(sizeof *error);
    gpusync__read_failure(source, w->queue->port ? w->buffers[w->first] : source, &told); /* a feedback has no label */
    if (!told.label[0])
        gpusync__copy_text(told.label, sizeof told.label, w->label);
    if (error)
        *error = told;
    uint64_t now = gpusync_now_ns();
    gpusync__lock(dev);
    bool noted = w->state == GPUSYNC__SENT && w->result == GPUSYNC_OK;
    if (noted) {
        w->result = GPUSYNC_ERROR_EXECUTION;
        w->failure = told.failure;
        w->error = error;
        after->failed = dev->log != NULL;
    }
    if (told.failure == GPUSYNC_FAILURE_ACCESS_REVOKED || told.failure == GPUSYNC_FAILURE_DEVICE_REMOVED)
        gpusync__lose(dev, &told, now, after);
    gpusync__unlock(dev);
    if (!noted)
        GPUSYNC_FREE(error);
}

/* Reads how a command buffer has ended, from it. The status is terminal by then; should it not be, Metal's error
   decides. */
static inline void gpusync__read_end(gpusync__work *w, void *source, gpusync__after *after)
{
    if (w->queue->port) {
        w->queue->port->read_end(w, source, after);
        return;
    }
    unsigned long status = gpusync__send_ulong(source, gpusync__sel.status); /* Metal has ordered the GPU's writes */
    if (status != GPUSYNC__STATUS_COMPLETED && (status == GPUSYNC__STATUS_ERROR || gpusync__has_error(source)))
        gpusync__failed(w, source, after);
    else if (w->others && gpusync__status(w->buffers[0]) == GPUSYNC__STATUS_ERROR)
        gpusync__failed(w, w->buffers[0], after);
}

/* Notes when the GPU ran a command buffer of the work. */
static inline void gpusync__note_times(gpusync__work *w, double start, double end)
{
    if (start > 0 && (w->gpu_start <= 0 || start < w->gpu_start))
        w->gpu_start = start;
    if (end > w->gpu_end)
        w->gpu_end = end;
}

/* The command buffers of the work are over: it settles, if it is its turn, and what is behind it. */
static inline void gpusync__end_work(gpusync__work *w, uint64_t now, gpusync__after *after)
{
    gpusync_queue *q = w->queue;
    gpusync__end(w, now, after);
    if (!w->unordered && gpusync__first(q) != w)
        return;
    if (!gpusync__settle(q, w, after))
        return;
    w = gpusync__first(q);
    if (w && w->state == GPUSYNC__ENDED)
        gpusync__settle_all(&q->moved, after);
}

/* Ends the work if it runs no more, and no handler was lost. */
static inline void gpusync__end_if_last(gpusync__work *w, uint32_t running, uint64_t now, gpusync__after *after)
{
    if (w->state == GPUSYNC__SENT && !running && !w->by_look)
        gpusync__end_work(w, now, after);
}

/* Ends the work before its last handler reads when the GPU ran, which may take long: other threads wait for the end. */
GPUSYNC__APART void gpusync__end_early(gpusync__work *w, uint64_t now)
{
    gpusync_device *dev = w->queue->object.device;
    gpusync__after after = GPUSYNC__NOTHING;
    gpusync__lock(dev);
    gpusync__end_if_last(w, w->unheard - 1, now, &after); /* waits for handlers go on later, with the times */
    gpusync__finish(dev, &after);
}

/* The handler has noted the times, and is over. */
static inline void gpusync__count_handler(gpusync__work *w, uint64_t now, gpusync__after *after)
{
    gpusync_queue *q = w->queue;
    bool settled = w->state == GPUSYNC__SETTLED; /* before this: else gpusync__settle tells the times */
    gpusync__end_if_last(w, --w->unheard, now, after);
    if (w->unheard || !settled)
        return;
    gpusync__info *info = &q->pace.infos[w->node.number % GPUSYNC__INFOS];
    if (!w->unordered && !w->by_look && info->ticket == w->node.number)
        gpusync__set_times(w, info);
    gpusync__forget(w);
    if (w->unordered) /* waits for handlers; work in front of it may not have settled */
        gpusync__rouse_all(&q->loose.waiting, false, after);
    else
        gpusync__rise(&q->object.waiting, w->node.number, after);
}

/* What Metal reads of a block, by the Clang Block ABI. */
typedef struct gpusync__block_descriptor {
    uintptr_t reserved, size; /* 0; bytes of the block */
    void (*copy)(void *to, const void *from);
    void (*dispose)(const void *block);
    const char *signature, *layout; /* the arguments, in Objective-C's encoding of types; NULL */
} gpusync__block_descriptor;

typedef struct gpusync__block {
    void *isa;
    int32_t flags, reserved;
    void (*invoke)(void *block, void *argument);
    const gpusync__block_descriptor *descriptor; /* the same for all blocks of a kind */
} gpusync__block;

#define GPUSYNC__BLOCK_HAS_COPY_DISPOSE (1 << 25)
#define GPUSYNC__BLOCK_HAS_SIGNATURE (1 << 30)

/* The beginning of a block on the stack, which Metal copies. */
#define GPUSYNC__BLOCK(invoke, descriptor)                                                                           \
    {                                                                                                                \
        gpusync__stack_block, GPUSYNC__BLOCK_HAS_COPY_DISPOSE | GPUSYNC__BLOCK_HAS_SIGNATURE, 0, invoke, &descriptor \
    }

/* The completed handler of one command buffer. */
typedef struct gpusync__handler {
    gpusync__block block;   /* first */
    gpusync__work *work;    /* with a reference of a copy; taken once. Atomic */
    gpusync_device *device; /* with a reference of a copy: its destroy waits for the block */
    uint32_t index;         /* of the command buffer */
} gpusync__handler;

/* Takes the reference of a block to its work. NULL: it was taken. */
static gpusync__work *gpusync__claim_work(const void *block)
{
    gpusync__handler *h = (gpusync__handler *)(uintptr_t)block;
    return __atomic_exchange_n(&h->work, (gpusync__work *)NULL, __ATOMIC_SEQ_CST);
}

static void gpusync__handler_copy(void *to, const void *from)
{
    (void)from;
    GPUSYNC__ADD(&((gpusync__handler *)to)->work->refs, 1);
    GPUSYNC__ADD(&((gpusync__handler *)to)->device->refs, 1);
}

/* Metal's handler. argument NULL: Metal drops the block. If the handler has not run, it never will: a look has to find
   the end. A look also finds the end of a marker that Metal has run beside the command buffer in front of it. */
static void gpusync__completed(void *block, void *argument)
{
    gpusync__after after = GPUSYNC__NOTHING;
    double start = 0, end = 0;
    gpusync__work *w = gpusync__claim_work(block);
    if (!w)
        return;
    gpusync_device *dev = w->queue->object.device;
    /* The argument is perhaps a wrapper of the command buffer. */
    void *source = w->queue->port ? argument : w->buffers[((gpusync__handler *)block)->index];
    if (argument)
        gpusync__read_end(w, source, &after);
    bool looks = !argument || (w->others && gpusync__status(w->buffers[0]) < GPUSYNC__STATUS_COMPLETED);
    uint64_t now = gpusync_now_ns();
    if (!looks && GPUSYNC__LOAD_SEQ(&dev->waits) && !gpusync__tracer_of(dev)) /* the trace tells the times of an end */
        gpusync__end_early(w, now);
    if (argument) {
        start = GPUSYNC__AS(double)(source, gpusync__sel.gpuStartTime);
        end = GPUSYNC__AS(double)(source, gpusync__sel.gpuEndTime);
    }
    gpusync__lock(dev);
    gpusync__note_times(w, start, end);
    w->by_look |= looks;
    gpusync__count_handler(w, now, &after);
    gpusync__finish(dev, &after);
    if (after.failed)
        gpusync__log_failure(w);
    gpusync__work_unref(w);
}

static void gpusync__handler_dispose(const void *block)
{
    gpusync__handler *h = (gpusync__handler *)(uintptr_t)block;
    if (GPUSYNC__LOAD(&h->work))
        gpusync__completed(h, NULL);
    gpusync__device_unref(h->device);
}

static const gpusync__block_descriptor gpusync__handler_descriptor = {
    0, sizeof(gpusync__handler), gpusync__handler_copy, gpusync__handler_dispose, "v16@?0@8", NULL,
};

/* A handler that is to be filled in. */
static const gpusync__handler gpusync__empty_handler = {GPUSYNC__BLOCK(gpusync__completed, gpusync__handler_descriptor),
                                                        NULL, NULL, 0};

/* --------------------------------------------------------------------------------- >>look --
   A look reads the status of what Metal has, in the order of tickets, and ends what has ended.
     gpusync__look             at a queue, to a ticket  polls and waits at their points, destroy, abandon, clear_failure
     gpusync__look_everywhere  at the whole device      run_callbacks; the destroy of the device; the watch of callbacks
     gpusync__look_around      the same                 polls, waits at their limit, and a sleeping wait at each slice,
                                                        once in 50 ms all together
   TIMEOUT though the GPU has ended: a handler was lost of a queue that the wait does not name, and none looked around
   since; or a feedback of Metal 4, which no look finds; or the work does not settle yet. */

/* The first work that Metal has behind this one (NULL, or ended meanwhile: any), with a reference. NULL: there is none.
   most: the last ticket; UINT64_MAX: UNORDERED work, too. Under the lock. */
static gpusync__work *gpusync__next_sent(const gpusync_queue *q, const gpusync__work *last, uint64_t most,
                                         bool unordered)
{
    if (!q->sent_count)
        return NULL;
    gpusync__work *w = gpusync__next(q, last && last->state == GPUSYNC__SENT ? last : NULL);
    while (w && (w->state != GPUSYNC__SENT || (w->unordered ? most < UINT64_MAX : unordered || w->node.number > most)))
        w = gpusync__next(q, w);
    if (w)
        GPUSYNC__ADD(&w->refs, 1);
    return w;
}

/* Whether all command buffers of the work are over. *failed: one of them has failed. */
static bool gpusync__is_over(const gpusync__work *w, bool *failed)
{
    *failed = false;
    if (w->queue->port)
        return false;                       /* it has no status: the feedback alone tells */
    for (uint32_t i = w->count; i-- > 0;) { /* the last is the last to end */
        unsigned long status = gpusync__status(w->buffers[i]);
        if (status < GPUSYNC__STATUS_COMPLETED)
            return false;
        *failed |= status == GPUSYNC__STATUS_ERROR;
    }
    return true;
}

/* Ends work that a look has found over. The first failure is the work's; a later one may tell of the loss. */
static void gpusync__found_ended(gpusync__work *w, bool failed)
{
    gpusync_device *dev = w->queue->object.device;
    gpusync__after after = GPUSYNC__NOTHING;
    uint64_t now = gpusync_now_ns();
    for (uint32_t i = 0; failed && i < w->count; i++)
        if (gpusync__status(w->buffers[i]) == GPUSYNC__STATUS_ERROR)
            gpusync__failed(w, w->buffers[i], &after);
    gpusync__lock(dev);
    if (w->state == GPUSYNC__SENT)
        gpusync__end_work(w, now, &after);
    gpusync__finish(dev, &after);
    if (after.failed)
        gpusync__log_failure(w);
    gpusync__work_unref(w);
}

/* Looks at a queue, up to a ticket, or (UINT64_MAX) at all of it. Tickets settle in their order: behind one that is not
   over UNORDERED work alone has something to tell. */
static void gpusync__look(gpusync_queue *q, uint64_t most)
{
    bool ordered = true, unordered = true, failed;
    gpusync__work *last = NULL; /* that is not over, with a reference */
    while (ordered || unordered) {
        gpusync__lock(q->object.device);
        gpusync__work *w = gpusync__next_sent(q, last, most, !ordered);
        unordered = w && most == UINT64_MAX && q->loose.works.next != &q->loose.works;
        gpusync__unlock(q->object.device);
        if (w && gpusync__is_over(w, &failed)) {
            gpusync__found_ended(w, failed);
            continue;
        }
        if (last)
            gpusync__work_unref(last);
        ordered = w && ordered && w->unordered;
        last = w;
    }
    if (last)
        gpusync__work_unref(last);
}

/* Gives up what a closed queue has not ended. The order lock is taken once: a thread that had set work out has
   committed it then, and no other can. */
static void gpusync__abandon(gpusync_queue *q)
{
    gpusync__after after = GPUSYNC__NOTHING;
    gpusync_device *dev = q->object.device;
    gpusync__mutex_lock(&q->order);
    gpusync__mutex_unlock(&q->order);
    gpusync__look(q, UINT64_MAX);
    gpusync__lock(dev);
    q->abandoned = true;
    q->frozen |= q->sent_count != 0;
    for (gpusync__work *w = gpusync__next(q, NULL); w; w = gpusync__next(q, w)) {
        gpusync_result result = dev->lost ? GPUSYNC_ERROR_DEVICE_LOST : GPUSYNC_ERROR_DESTROYED;
        if (w->state == GPUSYNC__HELD) /* it is cancelled */
            gpusync__judge(q, w, &after);
        if (w->state == GPUSYNC__SETTLED || w->unsent)
            continue;
        bool ended = w->state == GPUSYNC__ENDED;
        gpusync__doom(w, result,
                      ended ? "the queue was given up: the work has run, but not all that it waits for has come"
                            : "the queue was given up while Metal had the work: the GPU may still use its memory");
        if (ended)
            gpusync__stir(w, &after);
        else
            gpusync__give_up(w, &after);
    }
    gpusync__finish(dev, &after);
}

/* The `look` of a queue. If the queue is destroyed later, and the device has been lost for a second, the queue is given
   up. */
static void gpusync__look_at_queue(gpusync__object *t, uint64_t last)
{
    gpusync_queue *q = gpusync__queue_of(t);
    gpusync__look(q, last);
    if (!gpusync__lost_long(t->device))
        return;
    gpusync__lock(t->device);
    bool gives_up = t->gone.node.next && gpusync__unsettled(q) && !q->abandoned;
    gpusync__unlock(t->device);
    if (gives_up)
        gpusync__abandon(q);
}

/* -------------------------------------------------------------------------------- >>commit --
   A command buffer that gpusync makes, or that a program encodes a wait or signal into, is open work. Work enters its
   queue under the order lock: it is accepted or refused, gets its ticket, and is sent or held (gpusync__enter). The
   messages that send come under the order lock alone, so that ticket order is Metal's order. */

/* -- command buffers */

/* The open work of this buffer, or NULL. Under the lock. */
static gpusync__work *gpusync__find_open(const gpusync_queue *q, const void *buffer)
{
    gpusync__work *w = gpusync__work_at(&q->open.works, q->open.works.next);
    while (w && w->buffers[0] != buffer)
        w = gpusync__work_at(&q->open.works, w->node.next);
    return w;
}

/* Lists work as open. */
static void gpusync__open(gpusync_queue *q, gpusync__work *w)
{
    w->node.number = ++q->open.last;
    gpusync__put(q->open.works.prev, &w->node);
}

/* Drops open work. Under the lock. */
static void gpusync__drop_open(gpusync__work *w, gpusync__after *after)
{
    gpusync__unlist(&w->node);
    w->unsent = true;
    gpusync__bury(w, after);
}

/* Drops the open work of a closed queue, but not while it owes callbacks: they may encode. */
static void gpusync__drop_all_open(gpusync_queue *q, gpusync__after *after)
{
    bool drops = q->object.alert & GPUSYNC__CLOSED && !q->object.owed;
    while (drops && q->open.works.next != &q->open.works)
        gpusync__drop_open(gpusync__work_at(&q->open.works, q->open.works.next), after);
}

/* Drops work that was refused. Its room comes back with its memory. */
static void gpusync__drop(gpusync__work *w)
{
    w->unsent = true;
    gpusync__work_unref(w);
}

/* A descriptor that has Metal tell which encoder failed, +1, or NULL. */
static void *gpusync__own_descriptor(const gpusync_queue *q, const gpusync_command_buffer_desc *desc)
{
    const unsigned long encoder_status = 1; /* MTLCommandBufferErrorOptionEncoderExecutionStatus */
    bool takes = gpusync__class_responds(gpusync__class_of(q->metal), gpusync__sel.commandBufferWithDescriptor);
    void *descriptor = takes ? gpusync__new_object("MTLCommandBufferDescriptor") : NULL;
    GPUSYNC__WITH(void, unsigned long)(descriptor, gpusync__sel.setErrorOptions, encoder_status);
    GPUSYNC__WITH(void, signed char)(descriptor, gpusync__sel.setRetainedReferences, !desc->unretained_references);
    return descriptor;
}

/* Makes Metal's command buffer, +0, for the caller's pool. */
static void *gpusync__make_buffer(const gpusync_queue *q, const gpusync_command_buffer_desc *desc)
{
    void *sel = desc->unretained_references ? gpusync__sel.commandBufferUnretained : gpusync__sel.commandBuffer;
    void *own = q->encoder_status && !desc->descriptor ? gpusync__own_descriptor(q, desc) : NULL;
    void *descriptor = own ? own : desc->descriptor;
    void *made = descriptor
                     ? GPUSYNC__WITH(void *, void *)(q->metal, gpusync__sel.commandBufferWithDescriptor, descriptor)
                     : gpusync__send_id(q->metal, sel);
    gpusync__release(own);
    if (desc->label)
        gpusync__send_void_id(made, gpusync__sel.setLabel, gpusync__label(desc->label));
    return made;
}

/* Whether Metal can make a command buffer of the descriptor. */
GPUSYNC__APART gpusync_result gpusync__check_descriptor(const gpusync_queue *q, const gpusync_command_buffer_desc *desc)
{
    if (desc->unretained_references ||
        !gpusync__class_responds(gpusync__class_of(desc->descriptor), gpusync__sel.setErrorOptions))
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    bool takes = gpusync__class_responds(gpusync__class_of(q->metal), gpusync__sel.commandBufferWithDescriptor);
    return takes ? GPUSYNC_OK : GPUSYNC_ERROR_UNSUPPORTED;
}

/* Makes a command buffer, and opens work for it. The caller has a reference to the queue, which a destroy may close. */
static gpusync_result gpusync__create_buffer(gpusync_queue *q, const gpusync_command_buffer_desc *desc,
                                             uint64_t timeout_ns, void **out)
{
    gpusync__work *w = gpusync__work_new(q, NULL, 1);
    if (!w)
        return GPUSYNC_ERROR_OUT_OF_MEMORY;
    gpusync_result result = gpusync__take_place(w, timeout_ns);
    w->since_ns = gpusync_now_ns();
    void *pool = gpusync__pool_push();
    void *made = result == GPUSYNC_OK ? gpusync__make_buffer(q, desc) : NULL;
    if (made) {
        w->buffers[w->count++] = gpusync__retain(made);
        gpusync__copy_label(w->label, sizeof w->label, desc->label);
    } else if (result == GPUSYNC_OK) {
        result = GPUSYNC_ERROR_METAL_NIL;
    }
    gpusync__pool_pop(pool);
    gpusync__lock(q->object.device);
    if (result == GPUSYNC_OK)
        result = gpusync__refuses(q, false);
    if (result == GPUSYNC_OK)
        gpusync__open(q, w);
    gpusync__unlock(q->object.device);
    if (result == GPUSYNC_OK)
        *out = made;
    else
        gpusync__drop(w);
    return result;
}

GPUSYNC_API gpusync_result gpusync_command_buffer_create(gpusync_queue *queue, const gpusync_command_buffer_desc *desc,
                                                         uint64_t timeout_ns, void **out)
{
    static const gpusync_command_buffer_desc none = {NULL, false, NULL};
    if (out)
        *out = NULL;
    if (!queue || !out)
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    if (queue->port)
        return GPUSYNC_ERROR_UNSUPPORTED;
    if (!desc)
        desc = &none;
    gpusync__keep(&queue->object); /* a destroy may begin */
    gpusync_result result = desc->descriptor ? gpusync__check_descriptor(queue, desc) : GPUSYNC_OK;
    if (result == GPUSYNC_OK)
        result = gpusync__create_buffer(queue, desc, timeout_ns, out);
    gpusync__unref(&queue->object);
    return result;
}

GPUSYNC__SELDOM gpusync_result gpusync_command_buffer_discard(gpusync_queue *queue, void *command_buffer)
{
    gpusync__after after = GPUSYNC__NOTHING;
    if (!queue || !command_buffer)
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    gpusync_device *dev = queue->object.device;
    gpusync__lock(dev);
    gpusync__work *w = gpusync__find_open(queue, command_buffer);
    if (w)
        gpusync__drop_open(w, &after);
    gpusync__finish(dev, &after);
    return w ? GPUSYNC_OK : GPUSYNC_ERROR_UNKNOWN_BUFFER;
}

/* Whether a command buffer may be committed, or be held: ALREADY_COMMITTED, ENQUEUED, or OK. */
static inline gpusync_result gpusync__check_status(void *buffer)
{
    unsigned long status = gpusync__status(buffer);
    if (status >= GPUSYNC__STATUS_COMMITTED)
        return GPUSYNC_ERROR_ALREADY_COMMITTED;
    return status == GPUSYNC__STATUS_NOT_ENQUEUED ? GPUSYNC_OK : GPUSYNC_ERROR_ENQUEUED;
}

/* Whether this is the class of a command buffer of the queue's kind. One of the other kind answers other messages. */
GPUSYNC__APART bool gpusync__learn(gpusync_queue *q, void *cls)
{
    bool metal4 = gpusync__class_responds(cls, gpusync__sel.beginCommandBuffer);
    if (metal4 == (q->port != NULL))
        __atomic_store_n(&q->known, cls, __ATOMIC_RELAXED);
    return metal4 == (q->port != NULL);
}

/* Whether this is a command buffer of the queue's kind. */
static inline bool gpusync__fits(gpusync_queue *q, void *buffer)
{
    void *cls = gpusync__class_of(buffer);
    return cls == __atomic_load_n(&q->known, __ATOMIC_RELAXED) || gpusync__learn(q, cls);
}

/* Whether a command buffer that was made elsewhere is of this queue. */
static inline gpusync_result gpusync__check_foreign(gpusync_queue *q, void *buffer)
{
    if (!gpusync__fits(q, buffer))
        return GPUSYNC_ERROR_UNSUPPORTED;
    if (q->port)
        return GPUSYNC_OK; /* one of Metal 4 is of no queue */
    void *pool = gpusync__pool_push();
    bool ours = gpusync__send_id(buffer, gpusync__sel.commandQueue) == q->metal;
    gpusync__pool_pop(pool);
    return ours ? GPUSYNC_OK : GPUSYNC_ERROR_WRONG_QUEUE;
}

/* New work for a command buffer that was made elsewhere, in this memory if it is not NULL. NULL: *result tells why not.
   The caller counts its room: Metal has counted the buffer already. */
static gpusync__work *gpusync__foreign(gpusync_queue *q, void *buffer, gpusync__work *memory, gpusync_result *result)
{
    gpusync__work *w = gpusync__work_new(q, memory, 1);
    *result = w ? gpusync__check_foreign(q, buffer) : GPUSYNC_ERROR_OUT_OF_MEMORY;
    if (*result != GPUSYNC_OK) {
        if (w)
            gpusync__work_unref(w);
        return NULL;
    }
    w->buffers[0] = gpusync__retain(buffer);
    w->count = w->room = 1;
    return w;
}

/* -- entering a queue */

/* Whether held work has this command buffer. */
static bool gpusync__is_held(const gpusync_queue *q, const void *buffer)
{
    for (const gpusync__work *w = NULL; (w = gpusync__next_held(q, w)) != NULL;)
        for (uint32_t i = 0; i < w->count; i++)
            if (w->buffers[i] == buffer)
                return true;
    return false;
}

/* Puts work behind all that the queue has, and gives it the next ticket, or number. */
static inline void gpusync__line_up(gpusync_queue *q, gpusync__work *w)
{
    gpusync__head *head = &q->object.head;
    uint64_t *last = w->unordered ? &head->submitted : &head->committed, number = *last + 1;
    w->node.number = number;
    GPUSYNC__STORE(last, number);
    gpusync__put((w->unordered ? &q->loose.works : &q->line)->prev, &w->node);
}

/* Turns work SENT: the caller sends it next, under the order lock. */
static inline void gpusync__set_out(gpusync_queue *q, gpusync__work *w, gpusync__after *after)
{
    if (w->state == GPUSYNC__HELD)
        gpusync__unhold(q, w, after);
    w->state = GPUSYNC__SENT; /* before its signals are: they overtake what is not sent */
    w->unheard = q->port ? w->submitted_count != 0 : w->count - w->others;
    q->sent_count++;
    if (w->gate)
        w->gate->sent(w, after);
    if (w->unheard)
        return;
    gpusync__end(w, 0, after);
    gpusync__stir(w, after); /* nothing settles under an order lock */
}

/* Commits command buffer i of work. The caller has a reference: the work may end meanwhile. */
static __attribute__((__noinline__)) void gpusync__send_one(gpusync_device *dev, gpusync__work *w, uint32_t i)
{
    gpusync__handler h = gpusync__empty_handler;
    void *buffer = w->buffers[i];
    h.work = w;
    h.device = dev;
    h.index = i;
    gpusync__send_void_id(buffer, gpusync__sel.addCompletedHandler, &h);
    GPUSYNC__AS(void)(buffer, gpusync__sel.commit);
}

/* Commits work that was set out. Under the order lock. */
static inline void gpusync__send_work(gpusync_device *dev, gpusync__work *w)
{
    if (w->queue->port) {
        w->queue->port->send(dev, w);
        return;
    }
    if (w->gate)
        w->gate->encode(w);
    for (uint32_t i = w->others, count = w->count; i < count; i++)
        gpusync__send_one(dev, w, i);
}

/* Gives work its ticket, and sets it out or holds it. Under both locks. now: the time, or 0. */
static void gpusync__admit(gpusync_queue *q, gpusync__work *w, uint64_t now, gpusync__after *after)
{
    gpusync__line_up(q, w);
    bool front = !q->held.first || w->unordered || w->marker;
    int may = !front ? GPUSYNC__NOT_YET : w->gate ? gpusync__judge(q, w, after) : GPUSYNC__WELL;
    if (now)
        w->since_ns = now;
    if (may == GPUSYNC__WELL) {
        gpusync__set_out(q, w, after);
        return;
    }
    w->state = GPUSYNC__HELD;
    q->held.count++;
    if (!q->held.first && !w->unordered)
        q->held.first = w;
    q->pace.stats.held += may == GPUSYNC__NOT_YET;
    if (may == GPUSYNC__BADLY) /* it never runs */
        gpusync__give_up(w, after);
}

/* Enters work, if its queue takes it. enqueued: it has a place in Metal's queue, so it cannot be held. Under both
   locks. */
static gpusync_result gpusync__try_enter(gpusync_queue *q, gpusync__work *w, bool enqueued, uint64_t now,
                                         gpusync__after *after)
{
    gpusync_result result = gpusync__refuses(q, w->marker);
    if (result == GPUSYNC_OK && enqueued && (w->links.pointed || q->held.first))
        result = GPUSYNC_ERROR_ENQUEUED;
    if (result == GPUSYNC_OK && w->accept)
        result = w->accept(w, after);
    if (result != GPUSYNC_OK)
        return result;
    gpusync__unlist(&w->node);
    gpusync__admit(q, w, now, after);
    return result;
}

/* New work for a buffer that nothing here knows. Under both locks, which it gives up to allocate and to ask Metal.
   NULL: *result tells why not. */
static gpusync__work *gpusync__bring(gpusync_queue *q, void *buffer, uint64_t now, gpusync_result *result)
{
    gpusync_device *dev = q->object.device;
    gpusync__work *memory = gpusync__reuse(q);
    gpusync__unlock(dev);
    gpusync__mutex_unlock(&q->order);
    gpusync__work *w = gpusync__foreign(q, buffer, memory, result);
    if (w)
        w->since_ns = now ? now : gpusync_now_ns();
    gpusync__mutex_lock(&q->order);
    gpusync__lock(dev);
    q->room.taken += w != NULL; /* it is never refused for want of room */
    return w;
}

/* Has work enter its queue: it gets a ticket, and Metal gets the work, if nothing holds it back. w NULL: the open work
   of the buffer, or new work for it. After OK the queue has the caller's reference. */
static gpusync_result gpusync__enter(gpusync_queue *q, gpusync__work *w, void *buffer, bool enqueued,
                                     gpusync_ticket *ticket)
{
    gpusync_device *dev = q->object.device;
    gpusync__after after = GPUSYNC__NOTHING;
    gpusync__work *foreign = NULL;
    gpusync_result result = GPUSYNC_OK;
    uint64_t last = GPUSYNC__LOAD(&q->object.head.committed);
    const gpusync__tracer *tracer = gpusync__tracer_of(dev);
    bool timed = w || tracer || GPUSYNC__LOAD(&q->object.head.completed) >= last;
    uint64_t now = timed ? gpusync_now_ns() : 0; /* else earlier work ends later: that counts for what tickets take */
    gpusync__mutex_lock(&q->order);
    gpusync__lock(dev);
    w = w ? w : gpusync__find_open(q, buffer);
    if (!w && gpusync__is_held(q, buffer))
        result = GPUSYNC_ERROR_ALREADY_COMMITTED;
    else if (!w)
        w = foreign = gpusync__bring(q, buffer, now, &result);
    if (w)
        result = gpusync__try_enter(q, w, enqueued, now, &after);
    bool enters = result == GPUSYNC_OK;
    uint8_t state = enters ? w->state : (uint8_t)GPUSYNC__OPEN;
    bool plain = state == GPUSYNC__SENT && !w->accept; /* nothing follows but its end */
    bool moves = !plain && (after.jobs || after.woken || dev->moved.next != &dev->moved);
    if (enters)
        GPUSYNC__ADD(&w->refs, 1); /* and so the queue: the work may end before this call does, and the queue go */
    if (ticket && enters)          /* before a callback of it may run */
        *ticket = (gpusync_ticket)w->node.number; /* UNORDERED work has none */
    gpusync__unlock(dev);
    if (state == GPUSYNC__SENT)
        gpusync__send_work(dev, w);
    gpusync__mutex_unlock(&q->order);
    bool missed = GPUSYNC__LOAD_SEQ(&q->held.missed);
    if (enters && tracer) {
        tracer->work(GPUSYNC_TRACE_COMMIT, w, now);
        if (state == GPUSYNC__SENT)
            tracer->work(GPUSYNC_TRACE_SENT, w, now);
    }
    if (missed || moves) {
        gpusync__lock(dev);
        if (missed) /* a thread has found the order lock taken */
            gpusync__issue_later(q, &after);
        gpusync__finish(dev, &after);
    }
    if (enters)
        gpusync__work_unref(w);
    else if (foreign)
        gpusync__drop(foreign);
    return result;
}

GPUSYNC_API gpusync_result gpusync_commit(gpusync_queue *queue, void *command_buffer, gpusync_ticket *ticket)
{
    if (!queue || !command_buffer)
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    if (queue->port)
        return queue->port->commit(queue, command_buffer, ticket);
    if (!gpusync__fits(queue, command_buffer))
        return GPUSYNC_ERROR_UNSUPPORTED;
    gpusync_result status = gpusync__check_status(command_buffer);
    if (status == GPUSYNC_ERROR_ALREADY_COMMITTED)
        return status;
    return gpusync__enter(queue, NULL, command_buffer, status == GPUSYNC_ERROR_ENQUEUED, ticket);
}

/* ------------------------------------------------------------------------------- >>points --
   Waits and polls for tickets, and for points of all kinds. */

/* The object of a point: the first field of a timeline, too. */
static inline gpusync__object *gpusync__object_of(const gpusync_point *point)
{
    return point->timeline ? (gpusync__object *)(void *)point->timeline : &point->queue->object;
}

/* The number of a point that is not EVERYTHING. */
static inline gpusync_result gpusync__number_of(const gpusync_point *point, uint64_t *number)
{
    *number = point->timeline ? point->value : point->ticket > 0 ? (uint64_t)point->ticket : 0;
    if (point->timeline)
        return *number > GPUSYNC_MAX_VALUE ? GPUSYNC_ERROR_NOT_RISING : GPUSYNC_OK;
    return *number > GPUSYNC__LOAD(&point->queue->object.head.committed) ? GPUSYNC_ERROR_INVALID_TICKET : GPUSYNC_OK;
}

/* The device of a point. NULL: it names nothing. */
static gpusync_device *gpusync__device_of(const gpusync_point *point)
{
    return point->timeline || point->queue ? gpusync__object_of(point)->device : NULL;
}

/* The first work that a goal covers of which a handler is to come. NULL: there is none. */
static const gpusync__work *gpusync__unheard(const gpusync_queue *q, const gpusync__goal *goal)
{
    const gpusync__work *w = gpusync__next(q, NULL);
    while (w && (!w->unheard || w->node.number > (w->unordered ? goal->unordered : goal->number)))
        w = gpusync__next(q, w);
    return w;
}

/* How a goal of a queue stands, which wants its handlers, too. */
static int gpusync__heard(const gpusync__goal *goal, int stands)
{
    bool waits =
        goal->handlers && stands != GPUSYNC__NOT_YET && gpusync__unheard(gpusync__queue_of(goal->object), goal);
    return waits ? GPUSYNC__NOT_YET : stands;
}

/* Where a goal waits: for a late handler, for UNORDERED work, for a place behind those that came first, or for a
   ticket. */
static gpusync__node *gpusync__ring_of(gpusync__goal *goal)
{
    gpusync_queue *q = gpusync__queue_of(goal->object);
    const gpusync__work *w = goal->handlers ? gpusync__unheard(q, goal) : NULL;
    bool rest = w ? w->unordered : goal->unordered && q->object.head.completed >= goal->number;
    if (w)
        goal->node.number = w->node.number;
    else if (rest)
        goal->node.number = goal->unordered;
    if (goal->aim == &gpusync__for_room)
        return &q->room.waiting;
    return rest ? &q->loose.waiting : &q->object.waiting;
}

/* A wait for a ticket. */
static int gpusync__one_stands(const gpusync__wait *wait, gpusync__goal *goal, gpusync_error *error)
{
    (void)wait;
    return gpusync__heard(goal, gpusync__stands(goal->object, goal->number, error));
}

/* How everything up to the goal stands: its failure is the oldest on record that had not been told when the wait began,
   else the one that sticks. If the oldest was pushed off the record, the oldest that is left stands for it. A record of
   UNORDERED work has the ticket 0, and counts as soon as it is there. */
static int gpusync__all_stand(const gpusync__wait *wait, gpusync__goal *goal, gpusync_error *error)
{
    gpusync_queue *q = gpusync__queue_of(goal->object);
    (void)wait;
    if (!error) {
        q->record.reported = goal->reported > q->record.reported ? goal->reported : q->record.reported;
        GPUSYNC__STORE(&q->record.unreported, q->record.reported < q->record.count || gpusync__sticks(q));
        return GPUSYNC__BADLY;
    }
    uint64_t first = q->record.count > q->record.size ? q->record.count - q->record.size : 0;
    if (goal->fresh)
        goal->from = q->record.reported + 1;
    goal->fresh = false;
    if (!gpusync__has_come(goal))
        return GPUSYNC__NOT_YET;
    uint64_t n = goal->from - 1, lost = first > n ? first - n : 0;
    const gpusync_error *oldest = NULL;
    bool later = false; /* a record of a later ticket, which is not told yet, stands in between */
    goal->reported = 0;
    for (n += lost; n < q->record.count; n++) {
        const gpusync_error *record = &q->record.errors[n % q->record.size];
        bool covered = (uint64_t)record->ticket <= goal->number || (lost && !oldest);
        later |= !covered;
        if (!later)
            goal->reported = n + 1;
        if (covered && !oldest)
            oldest = record;
    }
    if (!oldest && !gpusync__sticks(q))
        return gpusync__heard(goal, GPUSYNC__WELL);
    *error = oldest ? *oldest : q->record.stuck;
    error->dropped = lost;
    return gpusync__heard(goal, GPUSYNC__BADLY);
}

static const gpusync__aim gpusync__for_ticket = {gpusync__one_stands, ""};
static const gpusync__aim gpusync__for_handlers = {gpusync__one_stands, " handlers up to"};
static const gpusync__aim gpusync__for_everything = {gpusync__all_stand, " everything up to"};

/* Makes a goal of everything that the queue has committed. */
static void gpusync__goal_all(gpusync_queue *q, bool handlers, gpusync__goal *goal)
{
    gpusync__goal_init(goal, &q->object, &gpusync__for_everything);
    goal->pace = &q->pace;
    goal->fresh = true;
    goal->handlers = handlers;
    goal->number = GPUSYNC__LOAD(&q->object.head.committed);
    goal->unordered = GPUSYNC__LOAD(&q->object.head.submitted);
}

/* Makes the goal of a point. */
static inline gpusync_result gpusync__goal_of(const gpusync_point *point, bool handlers, gpusync__goal *goal)
{
    const gpusync__aim *aim = handlers ? &gpusync__for_handlers : &gpusync__for_ticket;
    if (!point->timeline && point->ticket == GPUSYNC_EVERYTHING) {
        gpusync__goal_all(point->queue, handlers, goal);
        return GPUSYNC_OK;
    }
    gpusync__goal_init(goal, gpusync__object_of(point), point->timeline ? &gpusync__for_number : aim);
    if (!point->timeline) {
        goal->pace = &point->queue->pace;
        goal->handlers = handlers;
    }
    return gpusync__number_of(point, &goal->number);
}

/* Makes goals of the queues of the device, for everything. Returns how many: `most`, or fewer. */
static size_t gpusync__goals_of_device(gpusync_device *dev, bool handlers, gpusync__goal *goals, size_t most)
{
    size_t made = 0;
    gpusync__lock(dev);
    for (gpusync__object *t = dev->objects; t && made < most; t = t->next) {
        if (!gpusync__as_queue(t) || t->alert & GPUSYNC__CLOSED)
            continue;
        gpusync__goal_all(gpusync__queue_of(t), handlers, &goals[made++]);
        gpusync__keep(t);
    }
    gpusync__unlock(dev);
    return made;
}

/* Waits for goals, and drops the references to their objects. skips: a queue that closes is none of them. */
static gpusync_result gpusync__wait_goals(gpusync_device *dev, gpusync__goal *goals, size_t count, gpusync_wait_for how,
                                          bool skips, uint64_t timeout_ns, const gpusync_wait_options *options,
                                          size_t *which)
{
    gpusync__wait wait = {dev,
                          goals,
                          count,
                          count,
                          how,
                          GPUSYNC_OK,
                          options ? options->error : NULL,
                          false,
                          skips,
                          false,
                          GPUSYNC_ENDED_INLINE,
                          0,
                          0};
    gpusync_result result = count ? gpusync__await(&wait, timeout_ns, options ? options->spin : NULL) : GPUSYNC_OK;
    if (which)
        *which = wait.which;
    while (count)
        gpusync__unref(goals[--count].object);
    return result;
}

/* Waits for one point, which may name nothing. Apart, so that a wait for what has ended saves no registers. */
GPUSYNC__APART gpusync_result gpusync__wait_point(const gpusync_point *point, uint64_t timeout_ns,
                                                  const gpusync_wait_options *options)
{
    gpusync__goal goal;
    gpusync_device *dev = gpusync__device_of(point);
    gpusync_result result =
        dev ? gpusync__goal_of(point, options && options->handlers, &goal) : GPUSYNC_ERROR_INVALID_ARGUMENT;
    if (result != GPUSYNC_OK)
        return gpusync__explain(options ? options->error : NULL, result);
    gpusync__keep(goal.object);
    return gpusync__wait_goals(dev, &goal, 1, GPUSYNC_WAIT_ALL, false, timeout_ns, options, NULL);
}

/* Whether the ticket has ended well, and nothing is to be told: loads alone. */
static inline bool gpusync__is_well(const gpusync_queue *q, gpusync_ticket ticket)
{
    if (!gpusync_is_done(q, ticket)) /* first: the record comes before `completed` */
        return false;
    if (ticket == GPUSYNC_EVERYTHING)
        return !GPUSYNC__LOAD(&q->record.unreported);
    return (uint64_t)ticket - 1 >= GPUSYNC__LOAD(&q->record.bad); /* 0 and below, too */
}

/* The same of a point, which names something: a value that is reached is well. */
static inline bool gpusync__point_is_well(const gpusync_point *p)
{
    return p->timeline ? GPUSYNC__LOAD(&gpusync__object_of(p)->head.completed) >= p->value
                       : gpusync__is_well(p->queue, p->ticket);
}

/* The slow part of gpusync_wait, with the same parameters: so the fast part moves no register. */
GPUSYNC__APART gpusync_result gpusync__wait_ticket(gpusync_queue *queue, gpusync_ticket ticket, uint64_t timeout_ns,
                                                   const gpusync_wait_options *options)
{
    const gpusync_point point = gpusync_at_ticket(queue, ticket);
    return gpusync__wait_point(&point, timeout_ns, options);
}

GPUSYNC_API gpusync_result gpusync_wait(gpusync_queue *queue, gpusync_ticket ticket, uint64_t timeout_ns,
                                        const gpusync_wait_options *options)
{
    if (queue && gpusync__is_well(queue, ticket) && !(options && options->handlers))
        return GPUSYNC_OK;
    return gpusync__wait_ticket(queue, ticket, timeout_ns, options);
}

/* How a ticket of a queue, or everything up to one, stands. */
static __attribute__((__noinline__)) gpusync_result gpusync__ask(gpusync_queue *q, gpusync__goal *goal,
                                                                 gpusync_times *times)
{
    gpusync_error error;
    const gpusync__info *info = &q->pace.infos[goal->number % GPUSYNC__INFOS];
    gpusync__lock(q->object.device);
    int stands = goal->aim->stands(NULL, goal, &error);
    bool ended = stands != GPUSYNC__NOT_YET && goal->aim == &gpusync__for_ticket;
    if (times && ended && info->ticket == goal->number) {
        times->gpu_start_s = info->gpu_start;
        times->gpu_end_s = info->gpu_end;
    }
    gpusync__unlock(q->object.device);
    if (stands == GPUSYNC__BADLY)
        return error.result;
    return stands == GPUSYNC__WELL ? GPUSYNC_OK : GPUSYNC_NOT_READY;
}

GPUSYNC_API gpusync_result gpusync_poll(gpusync_queue *queue, gpusync_ticket ticket, gpusync_times *times)
{
    if (times)
        memset(times, 0, sizeof *times);
    if (!queue)
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    if (!times && gpusync__is_well(queue, ticket))
        return GPUSYNC_OK;
    gpusync__object *t = &queue->object;
    gpusync__goal goal;
    const gpusync_point point = gpusync_at_ticket(queue, ticket);
    gpusync_result result = gpusync__goal_of(&point, false, &goal);
    if (result != GPUSYNC_OK)
        return result;
    if (!gpusync__has_come(&goal))
        gpusync__look(queue, goal.unordered ? UINT64_MAX : goal.number);
    if (!gpusync__has_come(&goal)) /* it may wait, on the GPU too, for work or values of others */
        gpusync__look_around(t->device);
    if (!gpusync__may_end(&goal))
        return GPUSYNC_NOT_READY;
    result = gpusync__ask(queue, &goal, times);
    return result == GPUSYNC_NOT_READY && gpusync__lost_long(t->device) ? GPUSYNC_ERROR_DEVICE_LOST : result;
}

/* Memory for goals: these few, or more; NULL: there is none. */
static gpusync__goal *gpusync__many_goals(gpusync__goal few[GPUSYNC__MANY], size_t count)
{
    if (count <= GPUSYNC__MANY)
        return few;
    return count < SIZE_MAX / sizeof *few ? (gpusync__goal *)GPUSYNC_MALLOC(count * sizeof *few) : NULL;
}

GPUSYNC_API gpusync_result gpusync_wait_many(const gpusync_point *points, size_t count, gpusync_wait_for how,
                                             uint64_t timeout_ns, const gpusync_wait_options *options, size_t *which)
{
    if (which)
        *which = count;
    bool valid = (unsigned)how <= GPUSYNC_WAIT_ALL_OR_FAILURE && (count ? points != NULL : how != GPUSYNC_WAIT_ANY);
    gpusync_device *dev = valid && count ? gpusync__device_of(points) : NULL;
    bool well = how != GPUSYNC_WAIT_ANY && !(options && options->handlers);
    for (size_t i = 0; i < count && valid; i++) {
        valid = dev && gpusync__device_of(&points[i]) == dev;
        well = well && valid && gpusync__point_is_well(&points[i]);
    }
    if (!valid)
        return gpusync__explain(options ? options->error : NULL, GPUSYNC_ERROR_INVALID_ARGUMENT);
    if (!count || well)
        return GPUSYNC_OK;
    gpusync__goal few[GPUSYNC__MANY], *goals = gpusync__many_goals(few, count);
    gpusync_result result = goals ? GPUSYNC_OK : GPUSYNC_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < count && result == GPUSYNC_OK; i++)
        result = gpusync__goal_of(&points[i], options && options->handlers, &goals[i]);
    for (size_t i = 0; i < count && result == GPUSYNC_OK; i++)
        gpusync__keep(goals[i].object);
    if (result == GPUSYNC_OK)
        result = gpusync__wait_goals(dev, goals, count, how, false, timeout_ns, options, which);
    else
        gpusync__explain(options ? options->error : NULL, result);
    if (goals != few)
        GPUSYNC_FREE(goals);
    return result;
}

GPUSYNC_API gpusync_result gpusync_device_wait(gpusync_device *dev, uint64_t timeout_ns,
                                               const gpusync_wait_options *options)
{
    gpusync_error *error = options ? options->error : NULL;
    if (!dev)
        return gpusync__explain(error, GPUSYNC_ERROR_INVALID_ARGUMENT);
    gpusync__lock(dev);
    size_t count = dev->alive;
    gpusync__unlock(dev);
    gpusync__goal few[GPUSYNC__MANY], *goals = gpusync__many_goals(few, count);
    if (!goals)
        return gpusync__explain(error, GPUSYNC_ERROR_OUT_OF_MEMORY);
    count = gpusync__goals_of_device(dev, options && options->handlers, goals, count);
    gpusync_result result = gpusync__wait_goals(dev, goals, count, GPUSYNC_WAIT_ALL, true, timeout_ns, options, NULL);
    if (goals != few)
        GPUSYNC_FREE(goals);
    return result;
}

/* ------------------------------------------------------------------------------- >>create --
   Queues and devices: made, asked, destroyed. Knows all of the core. */

/* Adds the counts of a queue. gpusync_stats has nothing but counts. */
static void gpusync__add_stats(gpusync_stats *sum, const gpusync_queue *q)
{
    gpusync_stats stats = q->pace.stats;
    stats.commits = q->object.head.committed + q->object.head.submitted;
    stats.failures = q->record.count;
    stats.failures_dropped = q->record.count > q->record.size ? q->record.count - q->record.size : 0;
    for (size_t i = 0; i < sizeof stats / sizeof(uint64_t); i++)
        ((uint64_t *)(void *)sum)[i] += ((const uint64_t *)(const void *)&stats)[i];
}

/* A queue that is gone has its counts with the device. */
static void gpusync__queue_leave(gpusync__object *t)
{
    gpusync__add_stats(&t->device->stats, gpusync__queue_of(t));
}

/* Frees what a queue has but its own memory, however far its creation came. */
static void gpusync__queue_free(gpusync__object *t)
{
    gpusync_queue *q = gpusync__queue_of(t);
    gpusync__release_pooled(q->metal);
    for (gpusync__work *w; (w = q->memory.first) != NULL;) {
        q->memory.first = (gpusync__work *)(void *)w->node.next;
        GPUSYNC_FREE(w);
    }
    GPUSYNC_FREE(q->record.errors);
    if (q->passed)
        gpusync__unref(q->passed);
}

static void gpusync__shut_queue(gpusync__object *t, gpusync__after *after)
{
    gpusync_queue *q = gpusync__queue_of(t);
    gpusync__drop_all_open(q, after);
    gpusync__rouse_all(&t->waiting, false, after);
    gpusync__rouse_all(&q->loose.waiting, true, after);
    gpusync__rouse_all(&q->room.waiting, true, after);
    gpusync__stir_held(q, after);
}

/* What a destroy of a queue waits for. True: it has given work up that Metal has. */
static bool gpusync__drain_queue(gpusync__object *t)
{
    gpusync_queue *q = gpusync__queue_of(t);
    gpusync__goal all;
    gpusync__goal_all(q, false, &all);
    gpusync__look(q, UINT64_MAX);
    if (gpusync_in_flight(q))
        gpusync__drain(&all);
    if (!gpusync_in_flight(q))
        return false;
    gpusync__abandon(q);
    return true;
}

/* The end of an abandon: all is given up at once. */
static bool gpusync__give_up_queue(gpusync__object *t)
{
    gpusync__abandon(gpusync__queue_of(t));
    return false;
}

GPUSYNC__SELDOM gpusync_result gpusync_queue_destroy(gpusync_queue *queue)
{
    return gpusync__close((gpusync__object *)queue, gpusync__drain_queue);
}

GPUSYNC__SELDOM gpusync_result gpusync_queue_abandon(gpusync_queue *queue)
{
    return gpusync__close((gpusync__object *)queue, gpusync__give_up_queue);
}

/* A new Metal queue, +1, or NULL. It holds more than the limit: see gpusync__has_room. */
static void *gpusync__new_queue(const gpusync_device *dev, uint32_t limit, const char *label)
{
    unsigned long most = 2 * (unsigned long)limit + 1;
    void *queue = GPUSYNC__WITH(void *, unsigned long)(dev->metal, gpusync__sel.newCommandQueueWithMax, most);
    if (label)
        gpusync__send_void_id(queue, gpusync__sel.setLabel, gpusync__label(label));
    return queue;
}

/* Retains a Metal queue of the program's, of the kind that answers the selector. Needs a pool. */
static gpusync_result gpusync__use_queue(gpusync_queue *q, const gpusync_device *dev, void *given, void *sel)
{
    if (!gpusync__class_responds(gpusync__class_of(given), sel))
        return GPUSYNC_ERROR_UNSUPPORTED;
    void *device = gpusync__send_id(given, gpusync__sel.device); /* wrappers of validation layers differ by pointer */
    if (!device || GPUSYNC__AS(uint64_t)(device, gpusync__sel.registryID) !=
                       GPUSYNC__AS(uint64_t)(dev->metal, gpusync__sel.registryID))
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    q->metal = gpusync__retain(given);
    gpusync__copy_string(q->object.label, sizeof q->object.label, gpusync__send_id(given, gpusync__sel.label));
    return GPUSYNC_OK;
}

/* Makes or retains the Metal queue. Needs a pool. */
static gpusync_result gpusync__metal_queue(gpusync_queue *q, gpusync_device *dev, const gpusync_queue_desc *desc)
{
    if (desc->metal_queue)
        return gpusync__use_queue(q, dev, desc->metal_queue, gpusync__sel.commandBuffer);
    q->metal = gpusync__new_queue(dev, q->room.limit, desc->label);
    return q->metal ? GPUSYNC_OK : GPUSYNC_ERROR_METAL_NIL;
}

/* Makes the rings and jobs of a queue. */
static void gpusync__queue_rings(gpusync_queue *q)
{
    gpusync__ring_init(&q->open.works);
    gpusync__ring_init(&q->line);
    gpusync__ring_init(&q->loose.works);
    gpusync__ring_init(&q->late);
    gpusync__ring_init(&q->held.stirred);
    gpusync__ring_init(&q->loose.stirred);
    gpusync__ring_init(&q->loose.waiting);
    gpusync__ring_init(&q->room.waiting);
    q->moved.fire = gpusync__settle_all;
}

/* Fills in a new queue. */
static void gpusync__queue_init(gpusync_queue *q, const gpusync_queue_desc *desc, const gpusync__port *port)
{
    const uint32_t most = UINT32_MAX / 8;
    q->port = port;
    q->room.limit = desc->max_command_buffer_count ? desc->max_command_buffer_count : port ? most : 63;
    q->room.limit = q->room.limit < most ? q->room.limit : most;
    q->record.size = desc->error_log_count ? desc->error_log_count : 64;
    gpusync__queue_rings(q);
    q->record.sticky = desc->sticky_failure;
    if (q->record.sticky && q->room.limit < most && q->record.size < q->room.limit)
        q->record.size = q->room.limit; /* the first failure stays on record beside those that inherit it */
    q->record.user = desc->user;
    q->encoder_status = desc->encoder_status;
    if (desc->spin) {
        q->pace.own_spin = *desc->spin;
        q->object.spin = &q->pace.own_spin;
    }
}

static gpusync_result gpusync__queue_make(gpusync_device *dev, const gpusync_queue_desc *desc,
                                          const gpusync__port *port, gpusync_queue **out)
{
    static const gpusync_queue_desc none = {NULL, NULL, 0, 0, NULL, false, false, NULL};
    gpusync_result result = GPUSYNC_ERROR_OUT_OF_MEMORY;
    if (out)
        *out = NULL;
    if (!desc)
        desc = &none;
    if (!dev || !out)
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    gpusync_queue *q = (gpusync_queue *)gpusync__zeroed(sizeof *q);
    if (!q)
        return result;
    gpusync__queue_init(q, desc, port);
    q->record.errors = (gpusync_error *)GPUSYNC_MALLOC((size_t)q->record.size * sizeof *q->record.errors);
    if (q->record.errors) {
        void *pool = gpusync__pool_push();
        result = port ? port->make(q, dev, desc) : gpusync__metal_queue(q, dev, desc);
        gpusync__copy_label(q->object.label, sizeof q->object.label, desc->label);
        gpusync__pool_pop(pool);
    }
    if (result == GPUSYNC_OK)
        result = gpusync__object_begin(&q->object, dev, &gpusync__queues);
    if (result == GPUSYNC_OK) {
        *out = q;
        return result;
    }
    gpusync__queue_free(&q->object);
    GPUSYNC_FREE(q);
    return result;
}

GPUSYNC__SELDOM gpusync_result gpusync_queue_create(gpusync_device *device, const gpusync_queue_desc *desc,
                                                    gpusync_queue **out)
{
    return gpusync__queue_make(device, desc, NULL, out);
}

GPUSYNC__SELDOM gpusync_result gpusync_queue_failure(gpusync_queue *queue, gpusync_error *error)
{
    if (!queue || !queue->record.sticky || !error)
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    gpusync__look(queue, UINT64_MAX);
    gpusync__lock(queue->object.device);
    bool found = gpusync__sticks(queue);
    if (found)
        *error = queue->record.stuck;
    gpusync__unlock(queue->object.device);
    return found ? GPUSYNC_OK : GPUSYNC_NOT_READY;
}

GPUSYNC__SELDOM gpusync_result gpusync_queue_clear_failure(gpusync_queue *queue, gpusync_ticket ticket)
{
    gpusync_result result = GPUSYNC_OK;
    if (!queue || !queue->record.sticky)
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    gpusync__look(queue, UINT64_MAX);
    gpusync__lock(queue->object.device);
    const uint64_t committed = queue->object.head.committed;
    if (queue->object.alert & GPUSYNC__CLOSED)
        result = GPUSYNC_ERROR_DESTROYED;
    else if (ticket != GPUSYNC_EVERYTHING && ticket > (gpusync_ticket)committed)
        result = GPUSYNC_ERROR_INVALID_TICKET;
    else if (gpusync__sticks(queue) && queue->record.stuck.ticket > ticket)
        result = GPUSYNC_NOT_READY;
    if (result == GPUSYNC_OK && gpusync__sticks(queue)) {
        queue->record.stuck_to = committed;
        GPUSYNC__STORE(&queue->record.unreported, queue->record.reported < queue->record.count);
        GPUSYNC__STORE(&queue->object.alert, queue->object.alert & ~(uint32_t)GPUSYNC__STUCK);
    }
    gpusync__unlock(queue->object.device);
    return result;
}

GPUSYNC__SELDOM gpusync_result gpusync_queue_next_error(gpusync_queue *queue, uint64_t *cursor, gpusync_error *error)
{
    if (!queue || !cursor || !error)
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    gpusync__lock(queue->object.device);
    uint64_t first = queue->record.count > queue->record.size ? queue->record.count - queue->record.size : 0;
    uint64_t at = *cursor == GPUSYNC_FROM_NOW ? queue->record.count : *cursor > first ? *cursor : first;
    bool found = at < queue->record.count;
    if (found) {
        *error = queue->record.errors[at % queue->record.size];
        error->dropped = at - *cursor;
    }
    if (found || *cursor == GPUSYNC_FROM_NOW)
        *cursor = at + found;
    gpusync__unlock(queue->object.device);
    return found ? GPUSYNC_OK : GPUSYNC_NOT_READY;
}

GPUSYNC_API void *gpusync_queue_metal(const gpusync_queue *queue)
{
    return queue ? queue->metal : NULL;
}

/* The given MTLDevice, or the system's, or the first of all, +1, or NULL. MTLCopyAllDevices is looked up by name,
   because iOS has it from 18 on, and a weak reference to it does not link with earlier SDKs. Needs a pool. */
static void *gpusync__find_device(void *given)
{
    void *metal = given ? gpusync__retain(given) : gpusync__default_device();
    void *symbol = metal ? NULL : gpusync__find_symbol(GPUSYNC__EVERY_IMAGE, "MTLCopyAllDevices");
    void *(*copy_all)(void);
    if (!symbol)
        return metal;
    memcpy(&copy_all, &symbol, sizeof symbol); /* C has no cast from an object to a function */
    void *list = copy_all();
    if (gpusync__send_ulong(list, gpusync__sel.count) > 0)
        metal = gpusync__retain(GPUSYNC__WITH(void *, unsigned long)(list, gpusync__sel.objectAtIndex, 0));
    gpusync__release(list);
    return metal;
}

/* Fills in a new device. */
static void gpusync__device_init(gpusync_device *dev, const gpusync_device_desc *desc, void *metal)
{
    dev->metal = metal;
    dev->refs = 1;
    gpusync__ring_init(&dev->moved);
    gpusync__ring_init(&dev->due);
    dev->objects_end = &dev->objects;
    if (desc->hooks)
        dev->hooks = *desc->hooks;
    if (!dev->hooks.yield)
        dev->hooks.yield = gpusync__default_yield;
    dev->default_hooks = !dev->hooks.park;
    if (dev->default_hooks) {
        dev->hooks.park = gpusync__default_park;
        dev->hooks.unpark = gpusync__default_unpark;
    }
    if (desc->spin) {
        dev->own_spin = *desc->spin;
        dev->spin = &dev->own_spin;
    }
    dev->log = desc->log;
    dev->log_user = desc->log_user;
    dev->notify = desc->notify;
    dev->notify_user = desc->notify_user;
    dev->callback_mode = desc->callback_mode;
    dev->callback_queue = desc->callback_queue;
    if (desc->callback_queue)
        gpusync__dispatch_retain(desc->callback_queue);
    else
        dev->callback_queue = gpusync__dispatch_queue_create(
            "gpusync callbacks", gpusync__dispatch_attr_with_qos(NULL, GPUSYNC__QOS_USER_INITIATED, 0));
}

GPUSYNC__SELDOM gpusync_result gpusync_device_create(const gpusync_device_desc *desc, gpusync_device **out)
{
    static const gpusync_device_desc none = {NULL, NULL, NULL, NULL, NULL, GPUSYNC_CALLBACKS_QUEUED, NULL, NULL, NULL};
    if (out)
        *out = NULL;
    if (!desc)
        desc = &none;
    if (!out || (desc->hooks && !desc->hooks->park != !desc->hooks->unpark) ||
        (unsigned)desc->callback_mode > GPUSYNC_CALLBACKS_MANUAL)
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    gpusync__mutex_lock(&gpusync__global);
#define GPUSYNC__NAME(name, text) text,
    static const char *const texts[] = {GPUSYNC__SELECTORS(GPUSYNC__NAME)};
#undef GPUSYNC__NAME
    for (size_t i = 0; i < sizeof texts / sizeof *texts && !gpusync__sel.waitForEvent; i++) /* the last of them */
        ((void **)(void *)&gpusync__sel)[i] = gpusync__sel_register(texts[i]);
    gpusync__mutex_unlock(&gpusync__global);
    if (desc->metal_device &&
        !gpusync__class_responds(gpusync__class_of(desc->metal_device), gpusync__sel.newCommandQueueWithMax))
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    void *pool = gpusync__pool_push();
    void *metal = gpusync__find_device(desc->metal_device);
    gpusync__pool_pop(pool);
    if (!metal)
        return GPUSYNC_ERROR_NO_DEVICE;
    gpusync_device *dev = (gpusync_device *)gpusync__zeroed(sizeof *dev);
    if (dev)
        gpusync__device_init(dev, desc, metal);
    if (!dev || !dev->callback_queue) {
        gpusync__release_pooled(metal);
        GPUSYNC_FREE(dev);
        return GPUSYNC_ERROR_OUT_OF_MEMORY;
    }
    gpusync__mutex_lock(&gpusync__global);
    dev->next = gpusync__devices;
    gpusync__devices = dev;
    gpusync__mutex_unlock(&gpusync__global);
    *out = dev;
    return GPUSYNC_OK;
}

GPUSYNC__SELDOM gpusync_result gpusync_device_destroy(gpusync_device *dev)
{
    gpusync__sleeper s;
    if (!dev)
        return GPUSYNC_OK;
    if (gpusync__in_callback(dev, NULL))
        return GPUSYNC_ERROR_WOULD_DEADLOCK;
    gpusync__look_everywhere(dev); /* for signals of Metal 4, and for queues of a lost device that are to be given up */
    gpusync__lock(dev);
    bool in_use = dev->alive != 0;
    if (!in_use) {
        gpusync__unlist(&dev->on_lost.node);
        dev->ending = true;
    }
    gpusync__unlock(dev);
    if (in_use)
        return GPUSYNC_ERROR_IN_USE;
    gpusync__sleeper_init(&s, dev, NULL, 0);
    gpusync__outlast(dev, &s, &dev->calling, 0, GPUSYNC_FOREVER); /* a `destroyed` */
    gpusync__outlast(dev, &s, &dev->refs, 1, gpusync_now_ns() + GPUSYNC__IDLE_NS);
    gpusync__outlast(dev, &s, &gpusync__orphans, 0, gpusync_now_ns() + GPUSYNC__IDLE_NS / 10);
    gpusync__sleeper_end(&s, dev);
    if ((GPUSYNC__LOAD_SEQ(&dev->refs) > 1 || GPUSYNC__LOAD_SEQ(&gpusync__orphans)) && dev->log)
        gpusync__log(dev, GPUSYNC_LOG_WARNING,
                     "the device is destroyed, but Metal still has blocks of gpusync, or a call or the callback queue "
                     "is still in gpusync: never unload gpusync");
    gpusync__device_unref(dev);
    return GPUSYNC_OK;
}

GPUSYNC_API void *gpusync_device_metal(const gpusync_device *device)
{
    return device ? device->metal : NULL;
}

GPUSYNC_API bool gpusync_device_is_lost(const gpusync_device *device)
{
    return device && GPUSYNC__LOAD(&device->lost);
}

/* =========================================================================================
   You can stop reading here: this was the core, which commits and waits. What follows adds to it by the tables and
   pointers above, and no function above names one below.
   ========================================================================================= */

/* ----------------------------------------------------------------------------- >>callbacks --
   Layer 4. A callback is listed on its object, becomes due when that has the number, and is run by one thread at a
   time, outside of every lock. A destroy runs those of its object itself. */

/* Takes the first callback that is due, up to turn `last`, of one object or of any (NULL), for this thread to run.
   NULL: there is none, or another thread runs one that comes first: one of the same object, or, except for a destroy,
   any in turn. */
static gpusync__callback *gpusync__next_due(gpusync_device *dev, const gpusync__object *t, uint64_t last,
                                            gpusync__caller *self)
{
    gpusync__after after = GPUSYNC__NOTHING; /* what the end of an object makes due is found by this thread */
    uint64_t now = gpusync_now_ns();
    gpusync__lock(dev);
    gpusync__node *n = dev->due.next;
    const gpusync__caller *busy = t ? NULL : dev->callers;
    while (t && n != &dev->due && ((gpusync__callback *)(void *)n)->object != t)
        n = n->next;
    while (busy && !busy->in_turn)
        busy = busy->next;
    gpusync__callback *c = n == &dev->due ? NULL : (gpusync__callback *)(void *)n;
    if (c && (busy || c->turn > last || (c->object && gpusync__runs(c->object))))
        c = NULL;
    if (c) {
        gpusync__unlist(n);
        gpusync__caller_add(dev, c->object, n->number, self, !t, now);
        if (c->built_in && c->object)
            gpusync__object_gone(dev, &after);
    }
    gpusync__unlock(dev);
    return c;
}

/* A callback has returned: a destroy may wait for that. */
static void gpusync__called(gpusync_device *dev, gpusync__callback *c, const gpusync__caller *self)
{
    gpusync__object *t = c->object;
    gpusync__after after = GPUSYNC__NOTHING;
    gpusync__lock(dev);
    if (t && !c->built_in)
        t->owed--;
    if (t && gpusync__as_queue(t))
        gpusync__drop_all_open(gpusync__queue_of(t), &after);
    gpusync__caller_remove(dev, c->built_in ? NULL : t, self, &after);
    gpusync__finish(dev, &after);
    if (!c->built_in) /* else it is a field of the object, which may go next */
        GPUSYNC_FREE(c);
    if (t)
        gpusync__unref(t);
    else if (!c->lost)
        gpusync__device_unref(dev);
}

static void gpusync__ask_for_calls(gpusync_device *dev);

/* Runs at most `max` of the callbacks of an object, or of any (NULL), that are due now. Returns how many ran. */
static size_t gpusync__run_due(gpusync_device *dev, const gpusync__object *t, size_t max)
{
    gpusync__caller self;
    size_t n = 0;
    GPUSYNC__ADD(&dev->refs, 1); /* a callback may end it */
    gpusync__lock(dev);
    uint64_t last = dev->due_last;
    gpusync__unlock(dev);
    for (gpusync__callback *c; n < max && (c = gpusync__next_due(dev, t, last, &self)) != NULL; n++) {
        void *pool = gpusync__pool_push();
        if (c->destroyed)
            c->destroyed(c->user);
        else if (c->lost)
            c->lost(c->user, &dev->loss);
        else if (c->fn)
            c->fn(c->user, c->error.result, c->error.result == GPUSYNC_OK ? NULL : &c->error);
        else if (c->user)
            gpusync__release(c->user);
        gpusync__pool_pop(pool);
        gpusync__called(dev, c, &self);
    }
    gpusync__lock(dev);
    bool more = n && dev->due.next != &dev->due;
    gpusync__unlock(dev);
    if (more)
        gpusync__ask_for_calls(dev);
    gpusync__device_unref(dev);
    return n;
}

/* On the dispatch queue, with a reference to the device. */
static void gpusync__answer(void *context)
{
    gpusync_device *dev = (gpusync_device *)context;
    GPUSYNC__STORE_SEQ(&dev->asked, 0); /* first: what becomes due from here on asks again */
    gpusync__run_due(dev, NULL, SIZE_MAX);
    gpusync__device_unref(dev);
}

/* Has the callbacks run that are due. No lock is held. */
static void gpusync__ask_for_calls(gpusync_device *dev)
{
    if (dev->callback_mode == GPUSYNC_CALLBACKS_MANUAL) {
        if (dev->notify)
            dev->notify(dev->notify_user);
    } else if (!__atomic_exchange_n(&dev->asked, 1, __ATOMIC_SEQ_CST)) {
        GPUSYNC__ADD(&dev->refs, 1);
        gpusync__dispatch_async(dev->callback_queue, dev, gpusync__answer);
    }
}

static void gpusync__call(gpusync__job *job, gpusync__after *after)
{
    (void)after;
    gpusync__ask_for_calls(GPUSYNC__OF(gpusync_device, call, job));
}

/* Makes a callback the last of those that are due. */
static void gpusync__append(gpusync_device *dev, gpusync__callback *c, gpusync__after *after)
{
    gpusync__put(dev->due.prev, &c->node);
    c->turn = ++dev->due_last;
    gpusync__later(after, &dev->call, gpusync__call);
}

static void gpusync__watch(void *context);

static void gpusync__watch_soon(gpusync__job *job, gpusync__after *after)
{
    gpusync_device *dev = GPUSYNC__OF(gpusync_device, watch, job);
    (void)after;
    gpusync__dispatch_after(gpusync__dispatch_time(0, GPUSYNC__IDLE_NS), dev->callback_queue, dev, gpusync__watch);
}

/* On the dispatch queue, a second later: looks while callbacks are owed, or an object is destroyed later, since the
   program may make no call that looks. The timer has no reference, so that a destroy need not wait for it. */
static void gpusync__watch(void *context)
{
    bool owes = false;
    gpusync__mutex_lock(&gpusync__global);
    gpusync_device *dev = gpusync__devices;
    while (dev && dev != context)
        dev = dev->next;
    if (dev && !gpusync__revive(&dev->refs))
        dev = NULL;
    gpusync__mutex_unlock(&gpusync__global);
    if (!dev)
        return;
    gpusync__look_everywhere(dev);
    gpusync__lock(dev);
    for (const gpusync__object *t = dev->objects; t; t = t->next)
        owes |= t->owed || t->gone.node.next;
    dev->watched = owes;
    gpusync__unlock(dev);
    if (owes)
        gpusync__watch_soon(&dev->watch, NULL);
    gpusync__device_unref(dev);
}

/* Has the dispatch queue look at the device, as long as callbacks are to come: gpusync__watch. */
static void gpusync__watch_later(gpusync_device *dev, gpusync__after *after)
{
    if (dev->watched || dev->callback_mode == GPUSYNC_CALLBACKS_MANUAL)
        return;
    dev->watched = true;
    gpusync__later(after, &dev->watch, gpusync__watch_soon);
}

/* A callback of the object is to run, or to be withdrawn, before a destroy returns. */
static void gpusync__owe(gpusync__object *t)
{
    t->owed++;
    t->device->run_due = gpusync__run_due;
}

/* Has a callback run: its object has the number, has failed, or is destroyed. */
static void gpusync__due(gpusync__node *node, gpusync__after *after)
{
    gpusync__callback *c = (gpusync__callback *)(void *)node;
    const gpusync__object *t = c->object;
    int stands = gpusync__stands(t, node->number, &c->error);
    if (stands == GPUSYNC__NOT_YET)
        gpusync__own_error(&c->error, GPUSYNC_ERROR_DESTROYED, "the timeline was destroyed before it had the value");
    if (!c->fn && gpusync__as_queue(t) && gpusync__queue_of(t)->abandoned)
        c->user = NULL; /* the GPU may use the object: it is never released */
    gpusync__append(t->device, c, after);
}

GPUSYNC_API gpusync_result gpusync_device_run_callbacks(gpusync_device *dev, size_t max, size_t *count)
{
    size_t n = 0;
    if (count)
        *count = 0;
    if (!dev)
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    if (gpusync__in_callback(dev, NULL))
        return GPUSYNC_ERROR_WOULD_DEADLOCK;
    gpusync__look_everywhere(dev);
    if (dev->callback_mode == GPUSYNC_CALLBACKS_MANUAL)
        n = gpusync__run_due(dev, NULL, max);
    if (count)
        *count = n;
    return GPUSYNC_OK;
}

/* Lists a new callback for a number of its object, or makes it due. Takes over a reference to the object. Under the
   lock. */
static void gpusync__post(gpusync__callback *c, gpusync__object *t, uint64_t number, gpusync__after *after)
{
    c->object = t;
    c->node.number = number;
    c->node.fire = gpusync__due;
    gpusync__owe(t);
    if (gpusync__stands(t, number, NULL) != GPUSYNC__NOT_YET) {
        gpusync__due(&c->node, after);
        return;
    }
    gpusync__list(t, &t->waiting, &c->node, after);
    gpusync__watch_later(t->device, after);
}

/* fn NULL: `user` is an object to release. */
static gpusync_result gpusync__callback_at(const gpusync_point *point, gpusync_done_fn fn, void *user)
{
    uint64_t number;
    gpusync__after after = GPUSYNC__NOTHING;
    gpusync_device *dev = gpusync__device_of(point);
    if (!dev)
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    gpusync__object *t = gpusync__object_of(point);
    gpusync_result result = gpusync__number_of(point, &number);
    if (result != GPUSYNC_OK)
        return result;
    gpusync__keep(t);
    gpusync__callback *c = (gpusync__callback *)gpusync__zeroed(sizeof *c);
    if (c) {
        c->fn = fn;
        c->user = fn ? user : gpusync__retain(user);
    }
    gpusync__lock(dev);
    if (!c)
        result = GPUSYNC_ERROR_OUT_OF_MEMORY;
    else if (t->alert & GPUSYNC__CLOSED)
        result = GPUSYNC_ERROR_DESTROYED;
    else
        gpusync__post(c, t, number, &after);
    gpusync__finish(dev, &after);
    if (result == GPUSYNC_OK)
        return result;
    if (c && !fn)
        gpusync__release(user);
    GPUSYNC_FREE(c);
    gpusync__unref(t);
    return result;
}

GPUSYNC_API gpusync_result gpusync_on_done(gpusync_point point, gpusync_done_fn fn, void *user)
{
    return fn ? gpusync__callback_at(&point, fn, user) : GPUSYNC_ERROR_INVALID_ARGUMENT;
}

GPUSYNC__SELDOM gpusync_result gpusync_cancel_on_done(gpusync_point point, gpusync_done_fn fn, void *user)
{
    uint64_t number;
    gpusync__callback *found = NULL;
    gpusync_device *dev = gpusync__device_of(&point);
    if (!dev || !fn)
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    gpusync__object *t = gpusync__object_of(&point);
    gpusync_result result = gpusync__number_of(&point, &number);
    if (result != GPUSYNC_OK)
        return result;
    gpusync__node *const rings[] = {&t->waiting, &dev->due}; /* the newest is last */
    gpusync__lock(dev);
    for (int i = 0; i < 2; i++)
        for (gpusync__node *n = rings[i]->prev; n != rings[i] && !found; n = n->prev) {
            gpusync__callback *c = (gpusync__callback *)(void *)n;
            if (n->fire == gpusync__due && n->number == number && c->object == t && c->fn == fn && c->user == user)
                found = c;
        }
    if (t->alert & GPUSYNC__CLOSED)
        result = GPUSYNC_ERROR_DESTROYED;
    else if (!found)
        result = GPUSYNC_NOT_READY;
    if (result == GPUSYNC_OK) {
        gpusync__unlist(&found->node);
        t->owed--;
    }
    gpusync__unlock(dev);
    if (result != GPUSYNC_OK)
        return result;
    GPUSYNC_FREE(found);
    gpusync__unref(t);
    return GPUSYNC_OK;
}

GPUSYNC_API gpusync_result gpusync_release_after(gpusync_queue *queue, gpusync_ticket ticket, void *object)
{
    const gpusync_point point = gpusync_at_ticket(queue, ticket);
    return queue && object ? gpusync__callback_at(&point, NULL, object) : GPUSYNC_ERROR_INVALID_ARGUMENT;
}

/* -- ends: the end of an object that is destroyed later, and of the device */

/* An object that is destroyed later has ended, when the work of a queue has settled: its own callbacks are due by then,
   and run before. */
static void gpusync__tell_gone(gpusync__node *node, gpusync__after *after)
{
    gpusync__object *t = ((gpusync__callback *)(void *)node)->object;
    gpusync_queue *q = gpusync__as_queue(t);
    node->number = t->head.committed;
    if (q && q->line.next != &q->line) {
        gpusync__insert(&t->waiting, node);
    } else if (q && q->loose.works.next != &q->loose.works) {
        node->number = t->head.submitted;
        gpusync__insert(&q->loose.waiting, node);
    } else {
        gpusync__append(t->device, &t->gone, after);
    }
}

/* Fills in what tells of the end of an object: a field of the object, so that it needs no memory then. */
static void gpusync__gone_init(gpusync__callback *c, gpusync__object *t, gpusync_destroyed_fn destroyed, void *user)
{
    memset(c, 0, sizeof *c);
    c->object = t;
    c->destroyed = destroyed;
    c->user = destroyed ? user : NULL;
    c->built_in = true;
}

/* Destroys an object without waiting. */
static gpusync_result gpusync__close_later(gpusync__object *t, gpusync_destroyed_fn destroyed, void *user)
{
    gpusync__after after = GPUSYNC__NOTHING;
    if (!t)
        return GPUSYNC_OK;
    gpusync__lock(t->device);
    bool first = gpusync__shut(t, &after);
    if (first) {
        gpusync__gone_init(&t->gone, t, destroyed, user);
        t->gone.node.fire = gpusync__tell_gone;
        gpusync__tell_gone(&t->gone.node, &after);
        gpusync__watch_later(t->device, &after);
    }
    gpusync__finish(t->device, &after);
    return first ? GPUSYNC_OK : GPUSYNC_ERROR_DESTROYED;
}

GPUSYNC__SELDOM gpusync_result gpusync_queue_destroy_later(gpusync_queue *queue, gpusync_destroyed_fn destroyed,
                                                           void *user)
{
    return gpusync__close_later((gpusync__object *)queue, destroyed, user);
}

/* The last object of a device is gone that is destroyed later. */
static void gpusync__device_gone(gpusync__node *node, gpusync__after *after)
{
    gpusync_device *dev = GPUSYNC__OF(gpusync_device, gone.node, node);
    gpusync__append(dev, &dev->gone, after);
}

GPUSYNC__SELDOM gpusync_result gpusync_device_destroy_later(gpusync_device *dev, gpusync_destroyed_fn destroyed,
                                                            void *user)
{
    gpusync__after after = GPUSYNC__NOTHING;
    if (!dev)
        return GPUSYNC_OK;
    gpusync__lock(dev);
    bool first = !dev->ending;
    if (first) {
        gpusync__gone_init(&dev->gone, NULL, destroyed, user);
        dev->gone.node.fire = gpusync__device_gone;
        dev->ending = true;
    }
    if (first && !dev->alive)
        gpusync__device_gone(&dev->gone.node, &after);
    gpusync__finish(dev, &after);
    return first ? GPUSYNC_OK : GPUSYNC_ERROR_DESTROYED;
}

/* The device is lost. */
static void gpusync__loss_due(gpusync__node *node, gpusync__after *after)
{
    gpusync_device *dev = GPUSYNC__OF(gpusync_device, on_lost.node, node);
    gpusync__append(dev, &dev->on_lost, after);
}

GPUSYNC__SELDOM gpusync_result gpusync_device_on_lost(gpusync_device *device, gpusync_lost_fn fn, void *user)
{
    gpusync__after after = GPUSYNC__NOTHING;
    if (!device || !fn)
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    gpusync__lock(device);
    bool first = !device->on_lost.node.fire;
    if (first) {
        device->on_lost.lost = fn;
        device->on_lost.user = user;
        device->on_lost.built_in = true;
        device->on_lost.node.fire = gpusync__loss_due;
    }
    if (first && device->lost)
        gpusync__loss_due(&device->on_lost.node, &after);
    gpusync__finish(device, &after);
    return first ? GPUSYNC_OK : GPUSYNC_ERROR_IN_USE;
}

/* ----------------------------------------------------------------------------- >>timelines --
   Layer 5. What becomes of the signals of a timeline, and its event. */

/* What a block that Metal calls when an event rises leads to. */
typedef struct gpusync__listening {
    uint32_t refs;              /* the timeline; each block. Atomic */
    gpusync_timeline *timeline; /* NULL: it is gone. Under the global lock */
} gpusync__listening;

#define GPUSYNC__FAILED_VALUE UINT64_MAX /* of an event whose timeline has failed */

struct gpusync_timeline {
    gpusync__object object; /* first */
    void *event;
    uint64_t base;           /* event value = value + base */
    gpusync__node promised;  /* the ring of signals of committed work, by value: invariant 6 */
    uint64_t sent;           /* the highest signal that was sent, by Metal or the host: new ones are above */
    uint64_t coming;         /* the highest that the GPU itself brings: waits on the GPU go up to it */
    gpusync__node expecting; /* the ring of waits of held work for `coming` */
    gpusync__job write, arm; /* writes the event; reads it, and asks Metal for the next value: >>events */
    bool outside, imported;  /* others signal the event; it is theirs */
    bool shared;             /* others may signal the event later: it is not used for another timeline */
    bool hidden;             /* of a queue of Metal 4: no object of the program's */
    bool order_only;
    bool dirty;                    /* the event is to be written, or is being written */
    bool again;                    /* the GPU may have written it since: it is to be written once more */
    void *listener;                /* an MTLSharedEventListener. NULL: looks alone find the values of others */
    uint64_t armed;                /* the value that Metal was asked for; 0: none */
    gpusync__listening *listening; /* of one that others signal */
    bool rises;                    /* to trace */
    gpusync_error error;           /* of the failure */
};

static int gpusync__value_stands(const gpusync__object *t, uint64_t number, gpusync_error *error);
static void gpusync__look_at_timeline(gpusync__object *t, uint64_t last);
static void gpusync__arm_later(gpusync__object *t, gpusync__after *after);
static void gpusync__shut_timeline(gpusync__object *t, gpusync__after *after);
static void gpusync__spare_event(gpusync__object *t);
static void gpusync__timeline_free(gpusync__object *t);
static void gpusync__write_event(gpusync__job *job, gpusync__after *after);
static void gpusync__arm(gpusync__job *job, gpusync__after *after);

static const gpusync__kind gpusync__timelines = {
    "timeline",
    "value",
    false,
    gpusync__value_stands,
    gpusync__look_at_timeline,
    NULL,
    gpusync__arm_later,
    gpusync__shut_timeline,
    gpusync__spare_event,
    gpusync__timeline_free,
};

static gpusync_timeline *gpusync__timeline_of(const gpusync__object *t)
{
    return (gpusync_timeline *)(uintptr_t)t;
}

static gpusync_timeline *gpusync__as_timeline(const gpusync__object *t)
{
    return t->kind == &gpusync__timelines ? gpusync__timeline_of(t) : NULL;
}

/* The link of a node; NULL: the node is the head of its ring. */
static gpusync__link *gpusync__link_at(const gpusync__node *ring, const gpusync__node *n)
{
    return n == ring ? NULL : (gpusync__link *)(uintptr_t)n;
}

static int gpusync__value_stands(const gpusync__object *t, uint64_t number, gpusync_error *error)
{
    if (number <= t->head.completed)
        return GPUSYNC__WELL; /* what was reached before a failure stays reached */
    if (!(t->alert & GPUSYNC__FAILED))
        return GPUSYNC__NOT_YET;
    if (error)
        *error = gpusync__timeline_of(t)->error;
    return GPUSYNC__BADLY;
}

/* Whether Metal does not have the work, and never had it. */
static bool gpusync__is_unsent(const gpusync__work *w)
{
    return w->state <= GPUSYNC__HELD || w->unsent;
}

/* The lowest signal of sent work that is not reached, or NULL. */
static gpusync__link *gpusync__lowest_sent(const gpusync_timeline *t)
{
    gpusync__link *link = gpusync__link_at(&t->promised, t->promised.next);
    return link && !gpusync__is_unsent(link->work) ? link : NULL;
}

/* Has held work judged whose signal stands right above this one, which it may have waited for. */
static void gpusync__stir_above(const gpusync__link *link, gpusync__after *after)
{
    const gpusync_timeline *t = gpusync__timeline_of(link->object);
    const gpusync__link *above = gpusync__link_at(&t->promised, link->node.next);
    if (above && above->work->state == GPUSYNC__HELD)
        gpusync__stir(above->work, after);
}

/* Has the event read, and Metal asked for the next value, where other code signals the timeline. */
static void gpusync__arm_later(gpusync__object *t, gpusync__after *after)
{
    if (gpusync__timeline_of(t)->outside && gpusync__later(after, &gpusync__timeline_of(t)->arm, gpusync__arm))
        gpusync__keep(t);
}

/* Takes a signal off its timeline. */
static void gpusync__withdraw(gpusync__link *link, gpusync__after *after)
{
    if (!link->node.next)
        return;
    gpusync__arm_later(link->object, after); /* other code may have signalled more: before held work goes */
    gpusync__stir_above(link, after);
    gpusync__unlist(&link->node);
    link->work->links.listed--;
    gpusync__forget(link->work);
    gpusync__bury(link->work, after);
}

/* Has the event written when the thread has unlocked: >>events. */
static void gpusync__write_later(gpusync_timeline *t, gpusync__after *after)
{
    if (t->dirty)
        return;
    t->dirty = true;
    gpusync__keep(&t->object);
    gpusync__later(after, &t->write, gpusync__write_event);
}

/* The GPU may have written a lower value to the event than it is to have: the host writes that once more. */
static void gpusync__write_again(gpusync_timeline *t, gpusync__after *after)
{
    t->again = true;
    gpusync__write_later(t, after);
}

/* The timeline has this value, or (0) perhaps the next: the values of settled work are reached that no lower signal
   stands before. The caller knows that no lower signal of sent work is left: those that the value overtakes are of work
   that Metal does not have. Held work ends when it is judged. */
static void gpusync__reach(gpusync_timeline *t, uint64_t value, gpusync__after *after)
{
    gpusync__object *object = &t->object;
    bool by_host = false;
    if (object->alert & GPUSYNC__FAILED)
        return;
    for (gpusync__link *link; (link = gpusync__link_at(&t->promised, t->promised.next)) != NULL;) {
        gpusync__work *w = link->work;
        if (link->node.number > value) {
            if (w->state != GPUSYNC__SETTLED)
                break;
            value = link->node.number;
            by_host |= !link->encoded || link->crossed || w->unsent || w->result != GPUSYNC_OK;
        }
        if (w->state == GPUSYNC__HELD) {
            gpusync__doom(w, GPUSYNC_ERROR_NOT_RISING,
                          "the host, or other code, signalled its value, or a higher one, while the work was held");
            gpusync__stir(w, after);
        }
        gpusync__withdraw(link, after);
    }
    if (value <= object->head.completed)
        return;
    if (t->sent < value)
        t->sent = value;
    GPUSYNC__STORE(&object->head.completed, value);
    t->rises |= gpusync__tracer_of(object->device) && !t->hidden;
    if (by_host || t->rises) /* the write traces it */
        gpusync__write_later(t, after);
    gpusync__rise(&t->expecting, value, after);
    gpusync__rise(&object->waiting, value, after);
}

/* The values that are not reached fail, now and later. */
static void gpusync__fail(gpusync_timeline *t, const gpusync_error *error, gpusync__after *after)
{
    if (t->object.alert & GPUSYNC__FAILED)
        return;
    t->error = *error;
    gpusync__alarm(&t->object, GPUSYNC__FAILED); /* `error` comes first: it is read without the lock */
    gpusync__write_later(t, after);
    /* Signals that Metal does not have, and of settled work: there is nothing to raise any more. */
    for (gpusync__node *n = t->promised.next, *next; n != &t->promised; n = next) {
        gpusync__link *link = gpusync__link_at(&t->promised, n);
        next = n->next;
        if (link->work->state == GPUSYNC__HELD) /* for the order of values, perhaps */
            gpusync__stir(link->work, after);
        if (gpusync__is_unsent(link->work) || link->work->state == GPUSYNC__SETTLED)
            gpusync__withdraw(link, after);
    }
    gpusync__rise(&t->expecting, UINT64_MAX, after);
    gpusync__rise(&t->object.waiting, UINT64_MAX, after);
}

/* ------------------------------------------------------------------------------- >>events --
   The host writes an event after the unlock, one thread at a time, and only upwards (gpusync__write_event):
     a value that the host signals is reached, or one that     gpusync__reach
     the GPU was to signal in work that did not end well
     the timeline has failed: UINT64_MAX                       gpusync__fail
     the GPU's next signal is reached: a write of the host's   gpusync__reach: `crossed`
     may have crossed it
     the GPU has signalled late, behind a higher signal or a   gpusync__write_again: `again`
     failure
   That an event only rises is documented for each side (signaledValue, encodeSignalEvent:value:), and assumed where
   both write at once, and for a queue of Metal 4: the last two make up for an event that falls.
   Values of other code are read from the event: at each look, and when Metal's listener tells (gpusync__arm). A
   listener may not hear (said of some systems), and a block may come late. */

/* What the event of a timeline is to have. An imported one is not failed. */
static uint64_t gpusync__event_value(const gpusync_timeline *t)
{
    bool fails = t->object.alert & GPUSYNC__FAILED && !t->imported;
    return fails ? GPUSYNC__FAILED_VALUE : t->object.head.completed + t->base;
}

/* Writes the value of a timeline to its event, if it is higher, until it has not changed meanwhile. */
static void gpusync__write_event(gpusync__job *job, gpusync__after *after)
{
    gpusync_timeline *t = GPUSYNC__OF(gpusync_timeline, write, job);
    gpusync_device *dev = t->object.device;
    (void)after;
    void *pool = gpusync__pool_push();
    gpusync__lock(dev);
    for (uint64_t value = 0; t->again || value != gpusync__event_value(t);) {
        gpusync__link *lowest = gpusync__lowest_sent(t);
        t->again = false;
        value = gpusync__event_value(t);
        if (lowest)
            lowest->crossed = true;
        gpusync__unlock(dev);
        if (GPUSYNC__AS(uint64_t)(t->event, gpusync__sel.signaledValue) < value)
            GPUSYNC__WITH(void, uint64_t)(t->event, gpusync__sel.setSignaledValue, value);
        gpusync__lock(dev);
    }
    t->dirty = false;
    uint64_t value = t->object.head.completed;
    bool rises = t->rises;
    t->rises = false;
    gpusync__unlock(dev);
    gpusync__pool_pop(pool);
    const gpusync__tracer *tracer = gpusync__tracer_of(dev);
    if (rises && tracer)
        tracer->value(&t->object, value);
    gpusync__unref(&t->object);
}

/* Reads the event where other code signals it, and returns what it shows. What our own work signals is reached when
   that has settled: from the lowest such value on the event is not believed. */
static uint64_t gpusync__read_event(gpusync_timeline *t, gpusync__after *after)
{
    gpusync_device *dev = t->object.device;
    gpusync_error error;
    if (!t->outside || GPUSYNC__LOAD(&t->object.alert) & GPUSYNC__FAILED)
        return 0;
    uint64_t raw = GPUSYNC__AS(uint64_t)(t->event, gpusync__sel.signaledValue);
    __atomic_thread_fence(__ATOMIC_ACQUIRE); /* the program reads what the GPU wrote before it signalled */
    uint64_t value = raw;                    /* such a timeline has no base */
    if (value <= GPUSYNC__LOAD(&t->object.head.completed))
        return raw;
    gpusync__lock(dev);
    const gpusync__link *own = gpusync__lowest_sent(t);
    if (raw == GPUSYNC__FAILED_VALUE) {
        gpusync__own_error(&error, GPUSYNC_ERROR_EXECUTION,
                           "other code has set the event to UINT64_MAX, which means failure");
        gpusync__fail(t, &error, after);
    } else {
        value = own && value >= own->node.number ? own->node.number - 1 : value;
        gpusync__reach(t, value < GPUSYNC_MAX_VALUE ? value : GPUSYNC_MAX_VALUE, after);
    }
    gpusync__go_on(dev, after);
    gpusync__unlock(dev);
    return raw;
}

/* Reads the event of a timeline, and what that brings about. */
static void gpusync__look_at_event(gpusync_timeline *t)
{
    gpusync__after after = GPUSYNC__NOTHING;
    gpusync__read_event(t, &after);
    gpusync__lock(t->object.device);
    gpusync__finish(t->object.device, &after);
}

/* The `look` of a timeline: at its event, and at the queue that is to signal it next. */
static void gpusync__look_at_timeline(gpusync__object *t, uint64_t last)
{
    gpusync__look_at_event(gpusync__timeline_of(t));
    if (last == UINT64_MAX) /* the whole device is looked at */
        return;
    gpusync__lock(t->device);
    const gpusync__link *lowest = gpusync__lowest_sent(gpusync__timeline_of(t));
    gpusync_queue *sender = lowest ? lowest->work->queue : NULL;
    if (sender)
        gpusync__keep(&sender->object);
    gpusync__unlock(t->device);
    if (!sender)
        return;
    gpusync__look(sender, UINT64_MAX);
    gpusync__unref(&sender->object);
}

typedef struct gpusync__listener_block {
    gpusync__block block; /* first */
    gpusync__listening *listening;
    uint64_t value; /* that Metal was asked for */
} gpusync__listener_block;

static void gpusync__listening_unref(gpusync__listening *l)
{
    if (GPUSYNC__SUB(&l->refs, 1) != 1)
        return;
    GPUSYNC_FREE(l);
    GPUSYNC__SUB(&gpusync__orphans, 1);
}

static void gpusync__listener_copy(void *to, const void *from)
{
    (void)from;
    GPUSYNC__ADD(&((gpusync__listener_block *)to)->listening->refs, 1);
}

static void gpusync__listener_dispose(const void *block)
{
    gpusync__listening_unref(((const gpusync__listener_block *)block)->listening);
}

static const gpusync__block_descriptor gpusync__listener_descriptor = {
    0, sizeof(gpusync__listener_block), gpusync__listener_copy, gpusync__listener_dispose, "v24@?0@8Q16", NULL,
};

/* Metal calls this on the listener's thread. The block holds no timeline: one whose value never comes would keep it. */
static void gpusync__event_rose(void *block, void *event)
{
    const gpusync__listener_block *b = (const gpusync__listener_block *)block;
    gpusync__after after = GPUSYNC__NOTHING;
    (void)event;
    gpusync__mutex_lock(&gpusync__global);
    gpusync_timeline *t = b->listening->timeline;
    if (t && !gpusync__revive(&t->object.refs))
        t = NULL;
    gpusync__mutex_unlock(&gpusync__global);
    if (!t)
        return;
    gpusync__lock(t->object.device);
    if (t->armed <= b->value) /* else a block for a higher value is with Metal */
        t->armed = 0;
    gpusync__arm_later(&t->object, &after);
    gpusync__finish(t->object.device, &after);
    gpusync__unref(&t->object);
}

#define GPUSYNC__BLOCKS 64 /* of listeners, for an event: Metal may end a process that has too many (assumed) */

/* Reads the event, and has Metal tell of the first value that something waits for, unless it was asked for that or a
   lower one, or the event shows the value and is not believed yet: gpusync__withdraw has it read then. What waits was
   listed before. The event is read once more after Metal was asked: it may have risen in between. */
static void gpusync__arm(gpusync__job *job, gpusync__after *after)
{
    gpusync_timeline *t = GPUSYNC__OF(gpusync_timeline, arm, job);
    gpusync_device *dev = t->object.device;
    uint64_t seen = gpusync__read_event(t, after);
    gpusync__lock(dev);
    const gpusync__node *e = t->object.waiting.next;
    while (e != &t->object.waiting && !e->number)
        e = e->next;
    uint64_t value = e->number;
    bool waits = e != &t->object.waiting && seen < value;
    bool needed = waits && t->listener && (!t->armed || value < t->armed) &&
                  GPUSYNC__LOAD_SEQ(&t->listening->refs) < GPUSYNC__BLOCKS;
    if (needed)
        t->armed = value;
    gpusync__unlock(dev);
    if (needed) {
        void *pool = gpusync__pool_push();
        gpusync__listener_block block = {GPUSYNC__BLOCK(gpusync__event_rose, gpusync__listener_descriptor),
                                         t->listening, value};
        GPUSYNC__WITH(void, void *, uint64_t, void *)
        (t->event, gpusync__sel.notifyListener, t->listener, value, &block);
        gpusync__pool_pop(pool);
        gpusync__read_event(t, after);
    }
    gpusync__unref(&t->object);
}

/* -- the life of a timeline */

/* Keeps the event of a timeline for the next one, if no other code knows the event. All that was sent is reached, for
   its work has a reference, unless the timeline has failed. */
static void gpusync__spare_event(gpusync__object *object)
{
    gpusync_timeline *t = gpusync__timeline_of(object);
    gpusync_device *dev = object->device;
    gpusync__spare spare = {t->event, t->sent + t->base};
    if (t->shared || t->outside || object->alert & GPUSYNC__FAILED || spare.value > GPUSYNC_MAX_VALUE / 2 ||
        dev->spare_count == GPUSYNC__SPARES)
        return;
    dev->spares[dev->spare_count++] = spare;
    t->event = NULL;
}

/* Frees what a timeline has but its own memory, however far its creation came. */
static void gpusync__timeline_free(gpusync__object *object)
{
    gpusync_timeline *t = gpusync__timeline_of(object);
    if (t->listening) {
        gpusync__mutex_lock(&gpusync__global);
        t->listening->timeline = NULL;
        gpusync__mutex_unlock(&gpusync__global);
        GPUSYNC__ADD(&gpusync__orphans, 1); /* until the last block goes, which may be now */
        gpusync__listening_unref(t->listening);
    }
    gpusync__release_pooled(t->listener);
    gpusync__release_pooled(t->event);
}

static void gpusync__shut_timeline(gpusync__object *t, gpusync__after *after)
{
    gpusync__rouse_all(&gpusync__timeline_of(t)->expecting, true, after);
    gpusync__rouse_all(&t->waiting, true, after);
}

/* Gives a new timeline its event: the program's, one of a timeline that is gone, or a new one. */
static gpusync_result gpusync__event_for(gpusync_timeline *t, gpusync_device *dev, const gpusync_timeline_desc *desc)
{
    uint64_t first = t->imported ? 0 : desc->initial_value;
    gpusync__spare spare = {NULL, 0};
    t->object.head.completed = t->sent = first;
    if (t->imported) {
        bool is_event = gpusync__class_responds(gpusync__class_of(desc->shared_event), gpusync__sel.signaledValue);
        t->event = is_event ? gpusync__retain(desc->shared_event) : NULL;
        return is_event ? GPUSYNC_OK : GPUSYNC_ERROR_INVALID_ARGUMENT;
    }
    gpusync__lock(dev);
    if (!t->outside && dev->spare_count)
        spare = dev->spares[--dev->spare_count];
    gpusync__unlock(dev);
    t->event = spare.event;
    t->base = spare.event ? spare.value - first : 0; /* perhaps below 0: sums wrap around */
    if (t->event)
        return GPUSYNC_OK;
    if (!gpusync__class_responds(gpusync__class_of(dev->metal), gpusync__sel.newSharedEvent))
        return GPUSYNC_ERROR_UNSUPPORTED;
    void *pool = gpusync__pool_push();
    t->event = gpusync__send_id(dev->metal, gpusync__sel.newSharedEvent);
    if (t->event && first)
        GPUSYNC__WITH(void, uint64_t)(t->event, gpusync__sel.setSignaledValue, first);
    gpusync__pool_pop(pool);
    return t->event ? GPUSYNC_OK : GPUSYNC_ERROR_METAL_NIL;
}

/* hidden: it is a queue's own, and no object of the program's. */
static gpusync_result gpusync__timeline_make(gpusync_device *device, const gpusync_timeline_desc *desc, bool hidden,
                                             gpusync_timeline **out)
{
    gpusync_timeline *t = (gpusync_timeline *)gpusync__zeroed(sizeof *t);
    if (!t)
        return GPUSYNC_ERROR_OUT_OF_MEMORY;
    t->imported = desc->shared_event != NULL;
    t->outside = t->imported || desc->signalled_by_others;
    t->order_only = desc->order_only;
    t->hidden = hidden;
    gpusync__ring_init(&t->promised);
    gpusync__ring_init(&t->expecting);
    gpusync__copy_label(t->object.label, sizeof t->object.label, desc->label);
    t->listening = t->outside ? (gpusync__listening *)GPUSYNC_MALLOC(sizeof *t->listening) : NULL;
    if (t->listening) {
        t->listening->refs = 1;
        t->listening->timeline = t;
        t->listener = gpusync__new_object("MTLSharedEventListener");
    }
    gpusync_result result =
        t->listening || !t->outside ? gpusync__event_for(t, device, desc) : GPUSYNC_ERROR_OUT_OF_MEMORY;
    if (result == GPUSYNC_OK)
        result = gpusync__object_begin(&t->object, device, &gpusync__timelines);
    if (result != GPUSYNC_OK) {
        gpusync__timeline_free(&t->object);
        GPUSYNC_FREE(t);
        return result;
    }
    if (hidden) {
        gpusync__lock(device);
        device->alive--;
        gpusync__unlock(device);
    }
    gpusync__look_at_event(t);
    *out = t;
    return GPUSYNC_OK;
}

GPUSYNC__SELDOM gpusync_result gpusync_timeline_create(gpusync_device *device, const gpusync_timeline_desc *desc,
                                                       gpusync_timeline **out)
{
    static const gpusync_timeline_desc plain = {0, NULL, NULL, false, false};
    if (out)
        *out = NULL;
    if (!device || !out)
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    if (!desc)
        desc = &plain;
    if (!desc->shared_event && desc->initial_value > GPUSYNC_MAX_VALUE)
        return GPUSYNC_ERROR_NOT_RISING;
    return gpusync__timeline_make(device, desc, false, out);
}

GPUSYNC__SELDOM gpusync_result gpusync_timeline_destroy(gpusync_timeline *timeline)
{
    return gpusync__close((gpusync__object *)timeline, NULL);
}

GPUSYNC__SELDOM gpusync_result gpusync_timeline_destroy_later(gpusync_timeline *timeline,
                                                              gpusync_destroyed_fn destroyed, void *user)
{
    return gpusync__close_later((gpusync__object *)timeline, destroyed, user);
}

/* -- its calls */

GPUSYNC_API void *gpusync_timeline_metal(gpusync_timeline *timeline, uint64_t *base)
{
    if (base)
        *base = timeline ? timeline->base : 0;
    if (!timeline)
        return NULL;
    gpusync__lock(timeline->object.device);
    timeline->shared = true;
    gpusync__unlock(timeline->object.device);
    return timeline->event;
}

GPUSYNC_API gpusync_result gpusync_timeline_query(gpusync_timeline *timeline, uint64_t *value, gpusync_error *error)
{
    if (!timeline || !value)
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    if (timeline->outside)
        gpusync__look_at_event(timeline);
    bool failed =
        GPUSYNC__LOAD(&timeline->object.alert) & GPUSYNC__FAILED; /* read first: nothing is reached after it */
    *value = GPUSYNC__LOAD(&timeline->object.head.completed);
    if (failed && error)
        *error = timeline->error;
    return failed ? timeline->error.result : GPUSYNC_OK;
}

GPUSYNC_API gpusync_result gpusync_timeline_signal(gpusync_timeline *timeline, uint64_t value)
{
    gpusync_timeline *t = timeline;
    gpusync__after after = GPUSYNC__NOTHING;
    gpusync_result result = GPUSYNC_OK;
    if (!t)
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    gpusync_device *dev = t->object.device;
    gpusync__read_event(t, &after);
    gpusync__lock(dev);
    const gpusync__link *lowest = gpusync__lowest_sent(t);
    if (t->object.alert & GPUSYNC__CLOSED)
        result = GPUSYNC_ERROR_DESTROYED;
    else if (t->object.alert & GPUSYNC__FAILED)
        result = t->error.result;
    else if (value > GPUSYNC_MAX_VALUE || value <= t->object.head.completed || (lowest && value >= lowest->node.number))
        result = GPUSYNC_ERROR_NOT_RISING;
    if (result == GPUSYNC_OK) {
        gpusync__write_later(t, &after); /* before work goes that waits for it */
        gpusync__reach(t, value, &after);
    }
    gpusync__finish(dev, &after);
    return result;
}

/* Makes a text of the program's valid UTF-8 that ends. */
static void gpusync__clean(char *text, size_t size)
{
    char raw[sizeof((gpusync_error *)NULL)->message];
    memcpy(raw, text, size);
    raw[size - 1] = '\0';
    gpusync__copy_label(text, size, raw);
}

/* Makes an error of the program's one of gpusync's: its texts, and that no work has failed. */
static void gpusync__adopt_error(gpusync_error *error, const char *why)
{
    error->ticket = error->origin = 0;
    error->dropped = 0;
    error->inherited = error->ran = error->in_use = false;
    gpusync__clean(error->domain, sizeof error->domain);
    gpusync__clean(error->message, sizeof error->message);
    gpusync__clean(error->label, sizeof error->label);
    gpusync__clean(error->queue_label, sizeof error->queue_label);
    gpusync__clean(error->encoder, sizeof error->encoder);
    if (!error->message[0])
        gpusync__copy_text(error->message, sizeof error->message, why);
    if (error->failure == GPUSYNC_FAILURE_NONE)
        error->failure = GPUSYNC_FAILURE_OTHER;
}

GPUSYNC__SELDOM gpusync_result gpusync_timeline_fail(gpusync_timeline *timeline, const gpusync_error *reason)
{
    gpusync__after after = GPUSYNC__NOTHING;
    gpusync_error error;
    if (!timeline)
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    memset(&error, 0, sizeof error);
    if (reason)
        error = *reason;
    gpusync__adopt_error(&error, "the program failed the timeline");
    if (error.result >= GPUSYNC_OK || error.result < GPUSYNC_ERROR_COMPILE)
        error.result = GPUSYNC_ERROR_EXECUTION;
    gpusync__lock(timeline->object.device);
    gpusync_result result = GPUSYNC_OK;
    if (timeline->object.alert & GPUSYNC__CLOSED)
        result = GPUSYNC_ERROR_DESTROYED;
    else if (timeline->object.alert & GPUSYNC__FAILED)
        result = timeline->error.result;
    if (result == GPUSYNC_OK)
        gpusync__fail(timeline, &error, &after);
    gpusync__finish(timeline->object.device, &after);
    return result;
}

GPUSYNC_API gpusync_result gpusync_timeline_wait(gpusync_timeline *timeline, uint64_t value, uint64_t timeout_ns,
                                                 const gpusync_wait_options *options)
{
    if (timeline && GPUSYNC__LOAD(&timeline->object.head.completed) >= value)
        return GPUSYNC_OK;
    const gpusync_point point = gpusync_at_value(timeline, value);
    return gpusync__wait_point(&point, timeout_ns, options);
}

/* --------------------------------------------------------------------------------- >>held --
   Layer 6. Work with waits and signals, and what is held behind it.
     what holds work back             where that is judged                      what lets the work go
     ordered held work before it      gpusync__admit, gpusync__next_ready       gpusync__unhold
     a ticket, or a value that Metal  gpusync__judge_wait                       gpusync__link_came, by rise: of publish,
     is not about to bring                                                      reach, fail, send_signal
     a lower signal of its timelines  gpusync__may_signal                       gpusync__stir_above
     it never goes                    gpusync__judge: BADLY                     gpusync__give_up
   That a queue closes, a failure sticks, or the device is lost, has all held work judged: gpusync__stir_held. Each of
   these stirs the work (gpusync__stir): the job `issue` of its queue judges it, under the order lock, and sends it. */

/* What work waits for has come, or has failed. */
static void gpusync__link_came(gpusync__node *node, gpusync__after *after)
{
    gpusync__stir(((gpusync__link *)(void *)node)->work, after);
}

/* How work stands with what it waits for. NOT_YET: the waits that are not over are listed, and the work is judged again
   when one of them is, or has failed. error: gets the first failure, and nothing is listed. */
static int gpusync__list_waits(gpusync__work *w, gpusync_error *error, gpusync__after *after)
{
    int outcome = GPUSYNC__WELL;
    for (gpusync__link *link = w->links.first; link; link = link->next) {
        int stands = link->signal ? GPUSYNC__WELL : gpusync__stands(link->object, link->node.number, error);
        if (error && stands == GPUSYNC__BADLY)
            return stands;
        if (!error && stands == GPUSYNC__NOT_YET)
            gpusync__list(link->object,
                          w->state <= GPUSYNC__HELD && link->encoded ? &gpusync__timeline_of(link->object)->expecting
                                                                     : &link->object->waiting,
                          &link->node, after);
        if (stands != GPUSYNC__WELL && outcome != GPUSYNC__NOT_YET)
            outcome = stands;
    }
    return outcome;
}

/* Passes the signals of settled work on to their timelines, and takes its waits off. */
static void gpusync__pass_links(gpusync__work *w, gpusync__after *after)
{
    for (gpusync__link *link = w->links.first; link; link = link->next) {
        gpusync_timeline *t = gpusync__timeline_of(link->object);
        if (!link->signal) {
            gpusync__unlist(&link->node);
        } else if (t->object.alert & GPUSYNC__FAILED) {
            gpusync__withdraw(link, after);
            gpusync__write_again(t, after);
        } else if (link->node.next) {
            gpusync__reach(t, 0, after);
        }
    }
}

/* Fails the timelines that failed work was to signal. One that is order_only gets the value all the same, unless the
   end of the work is unknown. */
static void gpusync__fail_signals(gpusync__work *w, const gpusync_error *error, gpusync__after *after)
{
    for (gpusync__link *link = w->links.first; link; link = link->next) {
        if (!link->signal || !link->node.next)
            continue; /* an overtaken signal fails its work, and not the timeline that overtook it */
        gpusync_timeline *t = gpusync__timeline_of(link->object);
        if (!t->order_only || w->unknown)
            gpusync__fail(t, error, after);
    }
}

/* Frees the links of work. */
static void gpusync__free_links(gpusync__work *w)
{
    for (gpusync__link *link = w->links.first, *next; link; link = next) {
        next = link->next;
        gpusync__unref(link->object);
        if (link->allocated)
            GPUSYNC_FREE(link);
    }
}

/* The next lower signal of other work, or NULL. The link is on the ring of its timeline. */
static const gpusync__link *gpusync__lower(const gpusync__work *w, const gpusync__link *link)
{
    const gpusync__node *ring = &gpusync__timeline_of(link->object)->promised;
    const gpusync__link *lower = gpusync__link_at(ring, link->node.prev);
    while (lower && lower->work == w)
        lower = gpusync__link_at(ring, lower->node.prev);
    return lower;
}

/* Whether the signal may go to Metal, as far as lower ones of its timeline are concerned. A look at the next lower one
   is enough: below a signal of sent work are those of sent work alone. */
static bool gpusync__may_signal(const gpusync__work *w, gpusync__link *link)
{
    const gpusync_timeline *t = gpusync__timeline_of(link->object);
    link->behind = 0;
    if (!link->node.next) /* the timeline has failed */
        return true;
    const gpusync__link *lower = gpusync__lower(w, link);
    if (!lower)
        return true;
    const gpusync__work *other = lower->work;
    if (gpusync__is_unsent(other))
        return false;
    for (const gpusync__link *wait = w->links.first; wait != link; wait = wait->next)
        if (!wait->signal && wait->object == link->object && wait->node.number >= lower->node.number) {
            link->behind = w->submitted && link->encoded ? lower->node.number : 0; /* its wait is in another buffer */
            return true;
        }
    bool in_turn = !w->unordered && !other->unordered && other->queue == w->queue;
    if (!link->encoded || !in_turn) /* the host makes it in the work's turn */
        return in_turn;
    if (!w->queue->port) /* whose operations are in order */
        link->behind = lower->node.number;
    /* The GPU waits for the lower value first, if the host ends this wait though the other work fails. */
    return lower->encoded && (!link->behind || !t->imported || t->order_only);
}

/* Whether the host need not hold the work for this wait. */
static int gpusync__judge_wait(gpusync__work *w, const gpusync__link *link)
{
    const gpusync_timeline *t = gpusync__timeline_of(link->object);
    int stands = gpusync__stands(link->object, link->node.number, NULL);
    if (stands != GPUSYNC__NOT_YET || gpusync__as_queue(link->object))
        return stands;
    if (link->encoded && (t->outside || t->coming >= link->node.number))
        return GPUSYNC__WELL;
    const gpusync__node *top = t->promised.prev;                                  /* the head has the number 0 */
    while (top != &t->promised && gpusync__link_at(&t->promised, top)->work == w) /* its own come behind its waits */
        top = top->prev;
    bool comes = t->outside || link->node.number <= t->sent || link->node.number <= top->number;
    if (comes || !(t->object.alert & GPUSYNC__CLOSED))
        return GPUSYNC__NOT_YET;
    gpusync__doom(w, GPUSYNC_ERROR_DESTROYED, "the timeline was destroyed, and nothing is to signal the value");
    return GPUSYNC__BADLY;
}

/* The first held work that may go to Metal now, or NULL; what never may ends. One with a ticket goes only as the first.
   Under the order lock, too. */
static gpusync__work *gpusync__next_ready(gpusync_queue *q, gpusync__after *after)
{
    for (bool ordered = true;;) {
        gpusync__work *w = ordered && q->held.first ? q->held.first
                           : q->held.stirred.next != &q->held.stirred
                               ? GPUSYNC__OF(gpusync__work, stirring, q->held.stirred.next)
                               : NULL;
        if (!w)
            return NULL;
        gpusync__unlist(&w->stirring);
        int may = gpusync__judge(q, w, after);
        if (may == GPUSYNC__WELL)
            return w;
        if (may == GPUSYNC__BADLY)
            gpusync__give_up(w, after);
        ordered &= w->unordered; /* what has ended settles first: its failure may stick */
    }
}

/* Sends held work that may go. A thread that finds the order lock taken leaves the work to its holder, which looks at
   `missed` after its unlock: both write first, and then read what the other wrote. That the look does not come before
   the unlock is more than a release promises in C. os_unfair_lock unlocks with an exchange (Apple's libplatform,
   src/os/lock.c): a barrier on x86, and on Arm a release, behind which a load with SEQ stays. */
static void gpusync__issue(gpusync_queue *q, gpusync__after *after)
{
    gpusync_device *dev = q->object.device;
    void *pool = gpusync__pool_push();
    GPUSYNC__STORE_SEQ(&q->held.missed, true);
    while (GPUSYNC__LOAD_SEQ(&q->held.missed) && gpusync__mutex_try_lock(&q->order)) {
        GPUSYNC__STORE_SEQ(&q->held.missed, false); /* before the search: what is ready behind it sets `missed` again */
        uint64_t now = gpusync_now_ns();
        gpusync__lock(dev);
        gpusync__work *w = gpusync__next_ready(q, after);
        if (w) {
            GPUSYNC__ADD(&w->refs, 1); /* its command buffers live until [commit] has returned */
            w->since_ns = now;
            gpusync__set_out(q, w, after);
        }
        bool sends = w && w->state == GPUSYNC__SENT; /* work without command buffers has ended already */
        bool moves = dev->moved.next != &dev->moved;
        gpusync__unlock(dev);
        if (sends)
            gpusync__send_work(dev, w);
        gpusync__mutex_unlock(&q->order);
        if (moves) { /* nothing settles under an order lock */
            gpusync__lock(dev);
            gpusync__go_on(dev, after);
            gpusync__unlock(dev);
        }
        if (!w)
            continue;
        const gpusync__tracer *tracer = gpusync__tracer_of(dev);
        if (tracer && sends)
            tracer->work(GPUSYNC_TRACE_SENT, w, now);
        GPUSYNC__STORE_SEQ(&q->held.missed, true); /* there may be more */
        gpusync__work_unref(w);
    }
    gpusync__pool_pop(pool);
}

static void gpusync__issue_job(gpusync__job *job, gpusync__after *after)
{
    gpusync_queue *q = GPUSYNC__OF(gpusync_queue, held.issue, job);
    gpusync__issue(q, after);
    gpusync__unref(&q->object);
}

/* Whether work may go, by its waits and signals. */
static int gpusync__judge_links(gpusync__work *w, gpusync__after *after)
{
    int result = GPUSYNC__WELL;
    for (const gpusync__link *link = w->links.first; link; link = link->next) {
        int may = link->signal ? GPUSYNC__WELL : gpusync__judge_wait(w, link);
        if (may == GPUSYNC__BADLY)
            return may;
        if (may == GPUSYNC__NOT_YET)
            result = may;
    }
    for (gpusync__link *link = w->links.first; link && result != GPUSYNC__NOT_YET; link = link->next)
        if (link->signal && !gpusync__may_signal(w, link))
            result = GPUSYNC__NOT_YET;
    if (result == GPUSYNC__NOT_YET) {
        gpusync__list_waits(w, NULL, after);
        w->queue->held.send = gpusync__issue_job;
    }
    return result;
}

/* -- handing links to Metal */

/* Has the GPU wait for a value of the link's timeline, at this place of the command buffer. */
static void gpusync__encode_wait(void *buffer, const gpusync__link *link, uint64_t value)
{
    const gpusync_timeline *t = gpusync__timeline_of(link->object);
    GPUSYNC__WITH(void, void *, uint64_t)(buffer, gpusync__sel.encodeWaitForEvent, t->event, value + t->base);
}

/* Has the GPU signal at the end of the command buffer. Where Metal overlaps the buffers of a queue, the lower value of
   one before it might come later: the GPU waits for that first. */
static void gpusync__encode_signal(void *buffer, const gpusync__link *link)
{
    const gpusync_timeline *t = gpusync__timeline_of(link->object);
    if (link->behind)
        gpusync__encode_wait(buffer, link, link->behind);
    GPUSYNC__WITH(void, void *, uint64_t)
    (buffer, gpusync__sel.encodeSignalEvent, t->event, link->node.number + t->base);
}

/* Encodes the signals of work that is about to be committed. */
static void gpusync__encode_signals(gpusync__work *w)
{
    for (const gpusync__link *link = w->links.first; link; link = link->next)
        if (link->signal && link->encoded)
            gpusync__encode_signal(w->buffers[w->count - 1], link);
}

/* Metal is about to have the signal: waits on the GPU, and higher signals, may go. */
static void gpusync__send_signal(gpusync__link *link, gpusync__after *after)
{
    gpusync_timeline *t = gpusync__timeline_of(link->object);
    uint64_t number = link->node.number;
    t->sent = number;
    gpusync__stir_above(link, after);
    if (!link->encoded)
        return;
    link->crossed = t->dirty; /* a thread may be about to write a lower value */
    t->coming = number;
    gpusync__rise(&t->expecting, number, after);
}

/* The waits of work that turns SENT are over for the host, and its signals are sent. */
static void gpusync__send_links(gpusync__work *w, gpusync__after *after)
{
    for (gpusync__link *link = w->links.first; link; link = link->next) {
        if (!link->signal)
            gpusync__unlist(&link->node);
        else if (link->node.next)
            gpusync__send_signal(link, after);
        else
            link->encoded = false; /* its timeline has failed */
        if (gpusync__as_queue(link->object))
            link->node.number = 0; /* the ticket has ended well, and newer ones may push its record out */
    }
    if (w->queue->port)
        w->queue->port->sent(w->queue, w);
}

/* -- accepting */

/* Whether work that has no ticket yet may have the signal: it is above what was sent, the work's signals before it, and
   what the work waits for; no committed work is to signal the value; and no ordered work before this in its queue a
   higher one. */
static gpusync_result gpusync__accept_signal(const gpusync__work *w, const gpusync__link *link)
{
    const gpusync_timeline *t = gpusync__timeline_of(link->object);
    const uint64_t value = link->node.number;
    bool rises = value > t->sent, before = true;
    if (t->object.alert & GPUSYNC__FAILED)
        return t->error.result;
    for (const gpusync__node *n = t->promised.prev; rises && n->number >= value; n = n->prev) {
        const gpusync__work *sender = gpusync__link_at(&t->promised, n)->work;
        rises = n->number > value && (w->unordered || sender->unordered || sender->queue != w->queue);
    }
    for (const gpusync__link *other = w->links.first; other && rises; other = other->next) {
        if (other == link)
            before = false;
        else if (other->object == link->object && (before || !other->signal))
            rises = other->node.number < value;
    }
    return rises ? GPUSYNC_OK : GPUSYNC_ERROR_NOT_RISING;
}

/* Whether the command buffers of a submission may be part of it. */
static gpusync_result gpusync__check_parts(const gpusync__work *w)
{
    const gpusync_queue *q = w->queue;
    for (uint32_t i = w->first; i < w->count && (q->held.count || q->open.works.next != &q->open.works); i++) {
        const gpusync__work *part = gpusync__find_open(q, w->buffers[i]);
        if (part && part->links.pointed)
            return GPUSYNC_ERROR_INVALID_ARGUMENT;
        if (!part && gpusync__is_held(q, w->buffers[i]))
            return GPUSYNC_ERROR_ALREADY_COMMITTED;
    }
    return q->port && w->submitted_count && !gpusync__has_room(q) ? GPUSYNC_ERROR_QUEUE_FULL : GPUSYNC_OK;
}

/* Counts the room of a submission's command buffers, and takes the place of their open work. Its callback is owed. */
static void gpusync__join(gpusync__work *w, gpusync__after *after)
{
    gpusync_queue *q = w->queue;
    if (w->on_complete) {
        gpusync__keep(&q->object);
        gpusync__owe(&q->object);
        gpusync__watch_later(q->object.device, after);
    }
    uint32_t places =
        q->port && w->submitted_count ? 1 : w->submitted_count; /* of Metal 4 the ticket has one place for all */
    w->room += places;
    q->room.taken += places;
    for (uint32_t i = w->first; i < w->count && q->open.works.next != &q->open.works; i++) {
        gpusync__work *part = gpusync__find_open(q, w->buffers[i]);
        if (!part)
            continue;
        if (!w->label[0])
            memcpy(w->label, part->label, sizeof w->label);
        q->room.taken -= part->room;
        gpusync__unlist(&part->node);
        part->node.next = (gpusync__node *)(void *)w->links.parts;
        w->links.parts = part;
    }
}

/* Enters the links of work, if its timelines take the signals. */
static gpusync_result gpusync__accept_links(gpusync__work *w, gpusync__after *after)
{
    (void)after;
    for (const gpusync__link *link = w->links.first; link; link = link->next) {
        gpusync_result result = link->signal ? gpusync__accept_signal(w, link) : GPUSYNC_OK;
        if (result != GPUSYNC_OK)
            return result;
    }
    for (gpusync__link *link = w->links.first; link; link = link->next)
        if (link->signal) {
            gpusync__insert(&gpusync__timeline_of(link->object)->promised, &link->node);
            GPUSYNC__ADD(&w->refs, 1);
            w->links.listed++;
        }
    return GPUSYNC_OK;
}

/* Enters the links and the command buffers of a submission, if its timelines and its queue take them. */
static gpusync_result gpusync__accept_submission(gpusync__work *w, gpusync__after *after)
{
    gpusync_result result = gpusync__check_parts(w);
    if (result == GPUSYNC_OK)
        result = gpusync__accept_links(w, after);
    if (result == GPUSYNC_OK)
        gpusync__join(w, after);
    return result;
}

static const gpusync__gate gpusync__linked = {
    gpusync__judge_links,  gpusync__send_links, gpusync__encode_signals, gpusync__list_waits,
    gpusync__fail_signals, gpusync__pass_links, gpusync__free_links,
};

GPUSYNC__SELDOM gpusync_result gpusync_queue_cancel_held(gpusync_queue *queue, gpusync_ticket ticket)
{
    gpusync__after after = GPUSYNC__NOTHING;
    bool all = ticket == GPUSYNC_EVERYTHING;
    gpusync_result result = all ? GPUSYNC_OK : GPUSYNC_NOT_READY;
    if (!queue)
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    gpusync_device *dev = queue->object.device;
    gpusync__lock(dev);
    if (queue->object.alert & GPUSYNC__CLOSED)
        result = GPUSYNC_ERROR_DESTROYED;
    else if (ticket <= 0 || (!all && ticket > (gpusync_ticket)queue->object.head.committed))
        result = GPUSYNC_ERROR_INVALID_TICKET;
    for (gpusync__work *w = NULL; result >= GPUSYNC_OK && (w = gpusync__next_held(queue, w)) != NULL;) {
        if (!all && gpusync__ticket_of(w) != ticket)
            continue;
        gpusync__doom(w, GPUSYNC_ERROR_CANCELLED, "the work was cancelled while it was held, and never ran");
        gpusync__give_up(w, &after);
        result = GPUSYNC_OK;
    }
    gpusync__finish(dev, &after);
    return result;
}

/* -------------------------------------------------------------------------------- >>encode --
   Waits and signals of one command buffer. */

/* Adds a link to open work, or to a submission, whose signals are accepted as it enters. */
static gpusync_result gpusync__join_link(gpusync__work *w, gpusync__link *link)
{
    gpusync_device *dev = link->object->device;
    if (!w->submitted)
        gpusync__lock(dev); /* the report reads the links of open work */
    gpusync_result result = link->signal && !w->submitted ? gpusync__accept_signal(w, link) : GPUSYNC_OK;
    if (result == GPUSYNC_OK) {
        w->gate = &gpusync__linked;
        *w->links.end = link;
        w->links.end = &link->next;
        w->links.count++;
    }
    if (!w->submitted)
        gpusync__unlock(dev);
    return result;
}

/* Whether the GPU waits for the timeline in front of the work. On a queue of Metal 4 the host signals it then: else the
   event of a wait that was cut would show more than its value at the feedback, gpusync__was_cut. */
static bool gpusync__waits_on_gpu(const gpusync__work *w, const gpusync_timeline *t)
{
    for (const gpusync__link *link = w->links.first; link; link = link->next)
        if (link->encoded && !link->signal && gpusync__timeline_of(link->object) == t)
            return true;
    return false;
}

/* Adds a wait or a signal to work that has no ticket yet. OK, and none added: there is nothing to wait for. */
static gpusync_result gpusync__add_link(gpusync__work *w, const gpusync_point *point, bool signal)
{
    uint64_t number;
    if (gpusync__device_of(point) != w->queue->object.device || (signal && !point->timeline))
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    gpusync__object *t = gpusync__object_of(point);
    gpusync_result result = gpusync__number_of(point, &number);
    if (result != GPUSYNC_OK)
        return result;
    if (point->timeline && GPUSYNC__LOAD(&t->alert) & GPUSYNC__CLOSED)
        return GPUSYNC_ERROR_DESTROYED;
    if (point->timeline && point->timeline->outside)
        gpusync__look_at_event(point->timeline);
    if (!signal && gpusync__point_is_well(point))
        return GPUSYNC_OK;
    bool allocated = w->links.count >= GPUSYNC__FEW;
    gpusync__link *link = allocated ? (gpusync__link *)GPUSYNC_MALLOC(sizeof *link) : &w->links.few[w->links.count];
    if (!link)
        return GPUSYNC_ERROR_OUT_OF_MEMORY;
    link->allocated = allocated;
    link->node.next = NULL;
    link->node.number = number;
    link->node.fire = gpusync__link_came;
    link->work = w;
    link->next = NULL;
    link->object = t;
    gpusync__keep(t);
    link->signal = signal;
    link->encoded = point->timeline && !w->links.by_host;
    if (signal && w->queue->port && gpusync__waits_on_gpu(w, point->timeline))
        link->encoded = false;
    link->crossed = false;
    w->links.encodes |= link->encoded && !signal;
    if ((result = gpusync__join_link(w, link)) == GPUSYNC_OK)
        return result;
    gpusync__unref(t);
    if (allocated)
        GPUSYNC_FREE(link);
    return result;
}

/* Opens work for a command buffer that was made elsewhere. NULL: *result tells why not. */
static gpusync__work *gpusync__open_foreign(gpusync_queue *q, void *buffer, gpusync_result *result)
{
    gpusync__work *w = gpusync__foreign(q, buffer, NULL, result);
    if (!w)
        return NULL;
    void *pool = gpusync__pool_push();
    gpusync__copy_string(w->label, sizeof w->label, gpusync__send_id(buffer, gpusync__sel.label));
    gpusync__pool_pop(pool);
    w->since_ns = gpusync_now_ns();
    gpusync__lock(q->object.device);
    q->room.taken++;
    *result = gpusync__refuses(q, true);
    if (*result == GPUSYNC_OK && gpusync__is_held(q, buffer))
        *result = GPUSYNC_ERROR_ALREADY_COMMITTED;
    if (*result == GPUSYNC_OK)
        gpusync__open(q, w);
    gpusync__unlock(q->object.device);
    if (*result == GPUSYNC_OK)
        return w;
    gpusync__drop(w);
    return NULL;
}

/* The open work of a command buffer that is to be encoded into. *opened: by this call. NULL: *result tells why there is
   none. */
static gpusync__work *gpusync__open_of(gpusync_queue *q, void *buffer, bool *opened, gpusync_result *result)
{
    if ((*result = gpusync__check_status(buffer)) != GPUSYNC_OK)
        return NULL;
    gpusync__lock(q->object.device);
    gpusync__work *w = gpusync__find_open(q, buffer);
    gpusync__unlock(q->object.device);
    *opened = !w;
    return w ? w : gpusync__open_foreign(q, buffer, result);
}

/* Opens the buffer, if it is not open, adds the wait or signal to its work, and encodes it. */
static gpusync_result gpusync__encode_point(gpusync_queue *q, void *buffer, const gpusync_point *point, bool signal)
{
    bool opened = false;
    if (!q || !buffer)
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    if (q->port || !gpusync__fits(q, buffer))
        return GPUSYNC_ERROR_UNSUPPORTED;
    gpusync_result result = gpusync__refuses(q, true);
    gpusync__work *w = result == GPUSYNC_OK ? gpusync__open_of(q, buffer, &opened, &result) : NULL;
    if (!w)
        return result;
    for (const gpusync__link *link = w->links.first; link && !signal; link = link->next)
        if (link->signal)
            return GPUSYNC_ERROR_INVALID_ARGUMENT; /* nothing waits behind a signal */
    gpusync__link **added = w->links.end;
    w->accept = gpusync__accept_links;
    result = gpusync__add_link(w, point, signal);
    if (result == GPUSYNC_OK && !signal && *added && (*added)->encoded)
        gpusync__encode_wait(buffer, *added, (*added)->node.number);
    if (result == GPUSYNC_OK)
        w->links.pointed = true;
    else if (opened)
        gpusync_command_buffer_discard(q, buffer);
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

/* -------------------------------------------------------------------------------- >>submit --
   A submission is work like any other. The host waits and signals for it, or, ON_GPU, a command buffer in front of the
   program's has the waits. It takes the place of the open work of the program's buffers. */

/* Adds waits or signals. */
static gpusync_result gpusync__add_links(gpusync__work *w, const gpusync_point *points, size_t count, bool signal)
{
    gpusync_result result = points ? GPUSYNC_OK : GPUSYNC_ERROR_INVALID_ARGUMENT;
    for (size_t i = 0; i < count && result == GPUSYNC_OK; i++)
        result = gpusync__add_link(w, &points[i], signal);
    return result;
}

/* Adds one of the program's command buffers. */
static gpusync_result gpusync__add_buffer(gpusync__work *w, void *buffer)
{
    gpusync_queue *q = w->queue;
    if (!buffer)
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    for (uint32_t i = w->first; i < w->count; i++)
        if (w->buffers[i] == buffer)
            return GPUSYNC_ERROR_INVALID_ARGUMENT;
    gpusync_result result = gpusync__check_foreign(q, buffer);
    if (result != GPUSYNC_OK)
        return result;
    if (!q->port && (result = gpusync__check_status(buffer)) != GPUSYNC_OK)
        return result;
    w->buffers[w->count++] = gpusync__retain(buffer);
    return GPUSYNC_OK;
}

/* Makes a command buffer of gpusync's own, +1, or NULL. */
static void *gpusync__make_own(const gpusync_queue *q)
{
    void *pool = gpusync__pool_push();
    void *made = gpusync__retain(gpusync__send_id(q->metal, gpusync__sel.commandBuffer));
    gpusync__pool_pop(pool);
    return made;
}

/* Makes gpusync's own command buffer, with the waits; or Metal 4's commit options. */
static gpusync_result gpusync__add_own(gpusync__work *w)
{
    bool metal4 = w->queue->port != NULL;
    void *made = w->buffers[0] = metal4 ? gpusync__new_object("MTL4CommitOptions") : gpusync__make_own(w->queue);
    for (const gpusync__link *link = w->links.first; link && made && !metal4; link = link->next)
        if (link->encoded && !link->signal)
            gpusync__encode_wait(made, link, link->node.number);
    return made ? GPUSYNC_OK : GPUSYNC_ERROR_METAL_NIL;
}

/* Puts a submission together. */
static gpusync_result gpusync__assemble(gpusync__work *w, const gpusync_submission *s)
{
    w->submitted = true;
    w->accept = gpusync__accept_submission;
    w->unordered = (s->flags & GPUSYNC_SUBMIT_UNORDERED) != 0;
    w->submitted_count = (uint32_t)s->command_buffer_count;
    bool metal4 = w->queue->port != NULL;
    w->links.by_host = !(s->flags & GPUSYNC_SUBMIT_ON_GPU) || !w->submitted_count;
    gpusync__copy_label(w->label, sizeof w->label, s->label);
    gpusync_result result = s->wait_count ? gpusync__add_links(w, s->wait_points, s->wait_count, false) : GPUSYNC_OK;
    bool own = metal4 ? w->submitted_count != 0
                      : w->links.encodes; /* Metal 4's commit options; a command buffer for the waits */
    w->buffers[0] = NULL;
    w->first = w->count = own;
    for (size_t i = 0; i < s->command_buffer_count && result == GPUSYNC_OK; i++)
        result = gpusync__add_buffer(w, s->command_buffers[i]);
    if (result == GPUSYNC_OK && s->signal_count)
        result = gpusync__add_links(w, s->signal_points, s->signal_count, true);
    if (result == GPUSYNC_OK && (!w->submitted_count || (own && !metal4)))
        result = gpusync__reserve(w);
    if (result == GPUSYNC_OK && own)
        result = gpusync__add_own(w);
    return result;
}

/* The submission has settled. */
static void gpusync__complete(gpusync__node *node, gpusync__after *after)
{
    gpusync__callback *c = (gpusync__callback *)(void *)node;
    gpusync__append(c->object->device, c, after);
}

GPUSYNC_API gpusync_result gpusync_submit(gpusync_queue *queue, const gpusync_submission *s, gpusync_ticket *ticket)
{
    const uint32_t flags = GPUSYNC_SUBMIT_ON_GPU | GPUSYNC_SUBMIT_UNORDERED;
    if (!queue || !s || s->command_buffer_count > UINT32_MAX / 2 || (s->command_buffer_count && !s->command_buffers) ||
        s->flags & ~flags || (s->flags & GPUSYNC_SUBMIT_UNORDERED && ticket))
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    gpusync__callback *c = s->on_complete ? (gpusync__callback *)gpusync__zeroed(sizeof *c) : NULL;
    gpusync__work *w = gpusync__work_new(queue, NULL, s->command_buffer_count + 1);
    gpusync_result result = w && (c || !s->on_complete) ? GPUSYNC_OK : GPUSYNC_ERROR_OUT_OF_MEMORY;
    if (result == GPUSYNC_OK && c) {
        c->fn = s->on_complete;
        c->user = s->user;
        c->object = &queue->object;
        c->node.fire = gpusync__complete;
        w->on_complete = c;
    }
    if (result == GPUSYNC_OK)
        result = gpusync__refuses(queue, false);
    if (result == GPUSYNC_OK)
        result = gpusync__assemble(w, s);
    if (result == GPUSYNC_OK)
        result = gpusync__enter(queue, w, NULL, false, ticket);
    if (result == GPUSYNC_OK)
        return result;
    GPUSYNC_FREE(c);
    if (w)
        gpusync__drop(w);
    return result;
}

GPUSYNC__SELDOM gpusync_result gpusync_commit_marker(gpusync_queue *queue, void *behind, gpusync_ticket *ticket)
{
    if (!queue)
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    if (queue->port)
        return GPUSYNC_ERROR_UNSUPPORTED;
    gpusync_result result = gpusync__refuses(queue, true);
    if (result == GPUSYNC_OK && behind)
        result = gpusync__check_foreign(queue, behind);
    if (result == GPUSYNC_OK && behind && gpusync__status(behind) < GPUSYNC__STATUS_COMMITTED)
        result = GPUSYNC_ERROR_NOT_COMMITTED;
    gpusync__work *w = result == GPUSYNC_OK ? gpusync__work_new(queue, NULL, 2) : NULL;
    if (!w)
        return result == GPUSYNC_OK ? GPUSYNC_ERROR_OUT_OF_MEMORY : result;
    w->marker = true;
    result = gpusync__reserve(w);
    if (result == GPUSYNC_OK) {
        if (behind)
            w->buffers[w->count++] = gpusync__retain(behind);
        w->others = w->count;
        w->buffers[w->count] = gpusync__make_own(queue);
        result = w->buffers[w->count++] ? gpusync__enter(queue, w, NULL, false, ticket) : GPUSYNC_ERROR_METAL_NIL;
    }
    if (result != GPUSYNC_OK)
        gpusync__drop(w);
    return result;
}

/* -- blocks of other code that signal a value */

/* The queue of the work that stands for blocks, made once. NULL: no memory. */
static gpusync_queue *gpusync__blocks_of(gpusync_device *dev)
{
    gpusync__lock(dev);
    gpusync_queue *q = dev->blocks;
    gpusync__unlock(dev);
    if (q)
        return q;
    q = (gpusync_queue *)gpusync__zeroed(sizeof *q);
    if (q) {
        q->object.device = dev;
        q->object.kind = &gpusync__queues;
        q->object.refs = 1;
        q->memory.count = GPUSYNC__FREE_WORK; /* it keeps no memory */
        gpusync__copy_label(q->object.label, sizeof q->object.label, "blocks of other code");
        gpusync__ring_init(&q->object.waiting);
        gpusync__queue_rings(q);
    }
    gpusync__lock(dev);
    gpusync_queue *spare = dev->blocks ? q : NULL; /* another thread has made it meanwhile */
    if (!dev->blocks)
        dev->blocks = q;
    q = dev->blocks;
    gpusync__unlock(dev);
    GPUSYNC_FREE(spare);
    return q;
}

/* Other code has called the block that stands for a signal, or has dropped it. */
static void gpusync__raise(const void *block, bool dropped)
{
    gpusync__after after = GPUSYNC__NOTHING;
    gpusync_error error;
    gpusync__work *w = gpusync__claim_work(block);
    if (!w)
        return;
    gpusync_timeline *t = gpusync__timeline_of(w->links.first->object);
    gpusync_device *dev = t->object.device;
    gpusync__own_error(&error, GPUSYNC_ERROR_CANCELLED, "the block that was to signal it was dropped without a call");
    error.failure = GPUSYNC_FAILURE_CANCELLED;
    gpusync__lock(dev);
    if (dropped && !t->order_only)
        gpusync__fail(t, &error, &after);
    w->unheard = 0;
    gpusync__end_work(w, 0, &after);
    gpusync__finish(dev, &after);
    gpusync__work_unref(w);
}

static void gpusync__raised(void *block, void *argument)
{
    (void)argument;
    gpusync__raise(block, false);
}

static void gpusync__raiser_dispose(const void *block)
{
    gpusync__raise(block, true);
    gpusync__device_unref(((const gpusync__handler *)block)->device);
}

static const gpusync__block_descriptor gpusync__raiser_descriptor = {
    0, sizeof(gpusync__handler), gpusync__handler_copy, gpusync__raiser_dispose, "v16@?0@8", NULL,
};

/* Enters work that stands for a block, if its timeline takes the signal. Under the lock. */
static gpusync_result gpusync__enter_block(gpusync__work *w, gpusync__after *after)
{
    gpusync_timeline *t = gpusync__timeline_of(w->links.first->object);
    const gpusync__link *top = gpusync__link_at(&t->promised, t->promised.prev);
    gpusync_result result =
        top && gpusync__is_unsent(top->work) ? GPUSYNC_ERROR_NOT_RISING : gpusync__accept_signal(w, w->links.first);
    if (t->object.device->lost)
        result = GPUSYNC_ERROR_DEVICE_LOST;
    if (result != GPUSYNC_OK)
        return result;
    gpusync__insert(&t->promised, &w->links.first->node);
    w->links.listed++;
    GPUSYNC__ADD(&w->refs, 2); /* of the signal; the block on the stack has one, too */
    gpusync__line_up(w->queue, w);
    gpusync__set_out(w->queue, w, after);
    return result;
}

GPUSYNC__SELDOM gpusync_result gpusync_timeline_signal_from(gpusync_timeline *timeline, uint64_t value, void *object,
                                                            const char *selector)
{
    gpusync__after after = GPUSYNC__NOTHING;
    const gpusync_point point = gpusync_at_value(timeline, value);
    if (!timeline || !object || !selector)
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    gpusync_device *dev = timeline->object.device;
    void *sel = gpusync__sel_register(selector);
    if (!GPUSYNC__WITH(signed char, void *)(object, gpusync__sel_register("respondsToSelector:"), sel))
        return GPUSYNC_ERROR_UNSUPPORTED;
    gpusync_queue *blocks = gpusync__blocks_of(dev);
    gpusync__work *w = blocks ? gpusync__work_new(blocks, NULL, 1) : NULL;
    if (!w)
        return GPUSYNC_ERROR_OUT_OF_MEMORY;
    w->submitted = w->unordered = w->links.by_host = true;
    w->count = 1;
    w->buffers[0] = NULL;
    w->since_ns = gpusync_now_ns();
    gpusync__copy_label(w->label, sizeof w->label, selector);
    gpusync_result result = gpusync__add_link(w, &point, true);
    gpusync__handler h = {GPUSYNC__BLOCK(gpusync__raised, gpusync__raiser_descriptor), w, dev, 0};
    gpusync__lock(dev);
    if (result == GPUSYNC_OK)
        result = gpusync__enter_block(w, &after);
    gpusync__finish(dev, &after);
    if (result == GPUSYNC_OK)
        GPUSYNC__WITH(void, const void *)(object, sel, &h);
    if ((w = gpusync__claim_work(&h)) != NULL) /* it was called as a copy, or not yet */
        gpusync__work_unref(w);
    return result;
}

/* ------------------------------------------------------------------------------- >>metal4 --
   Layer 7. A queue of Metal 4: its waits and signals are operations of the queue, its end is a feedback. */

/* Whether the device makes queues of Metal 4. The family is asked for, too: the class of a device that lacks Metal 4
   may have the method all the same (assumed, of Apple's paravirtual device). */
static bool gpusync__has_metal4(void *metal)
{
    void *cls = gpusync__class_of(metal);
    return gpusync__class_responds(cls, gpusync__sel.newQueue4) &&
           gpusync__class_responds(cls, gpusync__sel.supportsFamily) &&
           GPUSYNC__WITH(signed char, long)(metal, gpusync__sel.supportsFamily, GPUSYNC__FAMILY_METAL4);
}

/* A new queue of Metal 4, +1, or NULL. Its label comes from a descriptor. */
static void *gpusync__new_queue4(const gpusync_device *dev, const char *label)
{
    void *desc = label ? gpusync__new_object("MTL4CommandQueueDescriptor") : NULL;
    if (!desc)
        return gpusync__send_id(dev->metal, gpusync__sel.newQueue4);
    gpusync__send_void_id(desc, gpusync__sel.setLabel, gpusync__label(label));
    void *queue = GPUSYNC__WITH(void *, void *, void **)(dev->metal, gpusync__sel.newQueue4With, desc, NULL);
    gpusync__release(desc);
    return queue;
}

/* Makes or retains a queue of Metal 4, and makes the timeline of its signals. Needs a pool. */
static gpusync_result gpusync__metal4_queue(gpusync_queue *q, gpusync_device *dev, const gpusync_queue_desc *desc)
{
    static const gpusync_timeline_desc own = {0, NULL, NULL, true, false};
    gpusync_timeline *passed = NULL;
    gpusync_result result = GPUSYNC_OK;
    if (desc->metal_queue)
        result = gpusync__use_queue(q, dev, desc->metal_queue, gpusync__sel.commit4);
    else if (!gpusync__has_metal4(dev->metal))
        result = GPUSYNC_ERROR_UNSUPPORTED;
    else if ((q->metal = gpusync__new_queue4(dev, desc->label)) == NULL)
        result = GPUSYNC_ERROR_METAL_NIL;
    if (result == GPUSYNC_OK)
        result = gpusync__timeline_make(dev, &own, true, &passed);
    if (result == GPUSYNC_OK)
        q->passed = &passed->object;
    return result;
}

/* The commit to a queue of Metal 4: a submission without waits and signals. */
GPUSYNC__APART gpusync_result gpusync__commit4(gpusync_queue *queue, void *command_buffer, gpusync_ticket *ticket)
{
    gpusync_submission s;
    memset(&s, 0, sizeof s);
    s.command_buffers = &command_buffer;
    s.command_buffer_count = 1;
    return gpusync_submit(queue, &s, ticket);
}

/* A queue of Metal 4 has made the signals of work. They may have come late: behind a failure, a higher value, or
   another queue's signal that is not reached yet, which is `crossed` then. */
static void gpusync__signalled(gpusync__node *node, gpusync__after *after)
{
    gpusync__work *w = GPUSYNC__OF(gpusync__work, links.turn, node);
    for (const gpusync__link *link = w->links.first; link; link = link->next) {
        gpusync_timeline *t = gpusync__timeline_of(link->object);
        if (!link->signal || !link->encoded)
            continue;
        const gpusync__link *lowest = gpusync__lowest_sent(t);
        if (t->object.alert & GPUSYNC__FAILED || t->object.head.completed > link->node.number ||
            (lowest && lowest->work->queue != w->queue))
            gpusync__write_again(t, after);
    }
    gpusync__bury(w, after);
}

/* Has work with signals stay until a queue of Metal 4 has made them: it uses their events, and the queue. */
GPUSYNC__APART void gpusync__keep_until_signalled(gpusync_queue *q, gpusync__work *w)
{
    const gpusync__link *link = w->links.first;
    while (link && !(link->signal && link->encoded))
        link = link->next;
    if (!link)
        return;
    w->links.turn.number =
        ++gpusync__timeline_of(q->passed)->sent; /* UNORDERED work is not sent in the order of tickets */
    w->links.turn.fire = gpusync__signalled;
    GPUSYNC__ADD(&w->refs, 1);
    gpusync__insert(&q->passed->waiting, &w->links.turn);
}

/* Has a queue of Metal 4 wait for, or signal, a value of an event, behind what it has. */
static void gpusync__operate(const gpusync_queue *q, void *sel, const gpusync_timeline *t, uint64_t value)
{
    GPUSYNC__WITH(void, void *, uint64_t)(q->metal, sel, t->event, value + t->base);
}

/* Commits work to a queue of Metal 4, whose waits and signals are operations of the queue. Behind its signals comes one
   of the queue's own, and keeps the work until then. The caller has a reference: the work may end meanwhile. */
GPUSYNC__APART void gpusync__send_work4(gpusync_device *dev, gpusync__work *w)
{
    gpusync__handler h = gpusync__empty_handler;
    const gpusync_queue *q = w->queue;
    h.work = w;
    h.device = dev;
    h.index = w->first;
    uint64_t turn = w->links.turn.next ? w->links.turn.number : 0; /* 0: no signals */
    for (const gpusync__link *link = w->links.first; link; link = link->next)
        if (link->encoded && !link->signal)
            gpusync__operate(q, gpusync__sel.waitForEvent, gpusync__timeline_of(link->object), link->node.number);
    gpusync__send_void_id(w->buffers[0], gpusync__sel.addFeedbackHandler, &h);
    GPUSYNC__WITH(void, void *const *, unsigned long, void *)
    (q->metal, gpusync__sel.commit4, w->buffers + w->first, w->submitted_count, w->buffers[0]);
    for (const gpusync__link *link = turn ? w->links.first : NULL; link; link = link->next)
        if (link->encoded && link->signal)
            gpusync__operate(q, gpusync__sel.signalEvent, gpusync__timeline_of(link->object), link->node.number);
    if (turn)
        gpusync__operate(q, gpusync__sel.signalEvent, gpusync__timeline_of(q->passed), turn);
}

/* Whether Metal 4 has given up a wait in front of the work: it ran, and a value is not reached. */
static bool gpusync__was_cut(const gpusync__work *w)
{
    for (const gpusync__link *link = w->links.first; link; link = link->next) {
        const gpusync_timeline *t = gpusync__timeline_of(link->object);
        if (link->encoded && !link->signal &&
            GPUSYNC__AS(uint64_t)(t->event, gpusync__sel.signaledValue) < link->node.number + t->base)
            return true;
    }
    return false;
}

/* Reads how work has ended, from its feedback, which has no status. */
static void gpusync__read_end4(gpusync__work *w, void *feedback, gpusync__after *after)
{
    if (gpusync__has_error(feedback))
        gpusync__failed(w, feedback, after);
    else if (gpusync__was_cut(w))
        gpusync__failed(w, NULL, after);
}

static const gpusync__port gpusync__metal4 = {
    gpusync__metal4_queue, gpusync__commit4, gpusync__keep_until_signalled, gpusync__send_work4, gpusync__read_end4,
};

GPUSYNC__SELDOM gpusync_result gpusync_metal4_queue_create(gpusync_device *device, const gpusync_queue_desc *desc,
                                                           gpusync_queue **out)
{
    return gpusync__queue_make(device, desc, &gpusync__metal4, out);
}

/* -------------------------------------------------------------------------------- >>trace --
   Events for the program's trace, and its counts. No lock is held. */

/* An event of a ticket, a value, or of neither (NULL). */
static gpusync_trace_event gpusync__event(gpusync_trace_kind kind, const gpusync__object *t, uint64_t number)
{
    gpusync_trace_event event;
    memset(&event, 0, sizeof event);
    event.kind = kind;
    event.time_ns = gpusync_now_ns();
    event.label = t ? t->label : "";
    if (t && gpusync__as_queue(t)) {
        event.queue = gpusync__queue_of(t);
        event.ticket = (gpusync_ticket)number;
    } else if (t && gpusync__as_timeline(t)) {
        event.timeline = gpusync__timeline_of(t);
        event.value = number;
    }
    return event;
}

/* Gives an event to the program. Its trace may be another one, or none, by now. */
static void gpusync__emit(const gpusync_device *dev, const gpusync_trace_event *event)
{
    const gpusync_trace *trace = GPUSYNC__LOAD(&dev->trace);
    if (trace)
        trace->fn(trace->user, event);
}

/* Traces that work was committed, sent, or has ended. */
GPUSYNC__APART void gpusync__trace_work(gpusync_trace_kind kind, const gpusync__work *w, uint64_t at_ns)
{
    gpusync_device *dev = w->queue->object.device;
    gpusync_trace_event event = gpusync__event(kind, &w->queue->object, (uint64_t)gpusync__ticket_of(w));
    event.time_ns = at_ns;
    event.number = w->unordered ? w->node.number : 0;
    event.label = w->label[0] ? w->label : event.label;
    gpusync__lock(dev);
    bool timed = kind == GPUSYNC_TRACE_ENDED && gpusync__has_times(w);
    event.result = kind == GPUSYNC_TRACE_ENDED ? w->result : GPUSYNC_OK;
    event.gpu_start_s = timed ? w->gpu_start : 0;
    event.gpu_end_s = timed ? w->gpu_end : 0;
    gpusync__unlock(dev);
    gpusync__emit(dev, &event);
}

/* Traces that a value is reached. */
static void gpusync__trace_value(const gpusync__object *t, uint64_t value)
{
    gpusync_trace_event event = gpusync__event(GPUSYNC_TRACE_SIGNAL, t, value);
    gpusync__emit(t->device, &event);
}

/* Traces a wait. */
GPUSYNC__APART void gpusync__trace_wait(const gpusync__wait *wait, uint64_t begun, gpusync_result result)
{
    const gpusync__goal *goal = wait->count == 1 ? wait->goals : NULL;
    gpusync_trace_event event = gpusync__event(GPUSYNC_TRACE_WAIT, goal ? goal->object : NULL, goal ? goal->number : 0);
    event.begin_ns = begun;
    event.result = result;
    event.how = wait->by;
    gpusync__emit(wait->device, &event);
}

static const gpusync__tracer gpusync__events = {gpusync__trace_work, gpusync__trace_value, gpusync__trace_wait};

GPUSYNC__SELDOM gpusync_result gpusync_device_set_trace(gpusync_device *device, const gpusync_trace *trace)
{
    const gpusync__tracer *tracer = trace ? &gpusync__events : NULL;
    if (!device)
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    GPUSYNC__STORE(&device->trace, trace);
    GPUSYNC__STORE(&device->tracer, tracer);
    return GPUSYNC_OK;
}

GPUSYNC__SELDOM gpusync_result gpusync_device_get_stats(gpusync_device *device, gpusync_queue *queue,
                                                        gpusync_stats *stats)
{
    if (!device || !stats || (queue && queue->object.device != device))
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    memset(stats, 0, sizeof *stats);
    gpusync__lock(device);
    if (!queue)
        *stats = device->stats;
    for (const gpusync__object *t = device->objects; t; t = t->next)
        if (gpusync__as_queue(t) && (!queue || t == &queue->object))
            gpusync__add_stats(stats, gpusync__queue_of(t));
    gpusync__unlock(device);
    return GPUSYNC_OK;
}

/* -------------------------------------------------------------------------------- >>warmup --
   Items, made in their order by one function on a dispatch queue, or in the call that needs one first. A warm-up is a
   object whose number is how many are made. A thread that makes one counts as one that runs a callback. */

enum { GPUSYNC__IDLE, GPUSYNC__RUNNING, GPUSYNC__DONE };

/* An item of a warm-up. */
typedef struct gpusync__item {
    void *made;          /* +1, or NULL. Read without the lock once it is DONE, as `error` */
    gpusync_error error; /* of a failure */
    uint8_t state;
} gpusync__item;

struct gpusync_warmup {
    gpusync__object object; /* first. committed: how many are to be made in advance */
    gpusync__item *items;
    size_t count;
    gpusync_warmup_fn fn;
    void *user;
    void *runner; /* the dispatch queue, or NULL */
};

static int gpusync__items_stand(const gpusync__object *t, uint64_t number, gpusync_error *error)
{
    (void)error;
    return number <= t->head.completed ? GPUSYNC__WELL : GPUSYNC__NOT_YET;
}

static void gpusync__shut_warmup(gpusync__object *t, gpusync__after *after)
{
    gpusync__rouse_all(&t->waiting, true, after);
}

/* Frees what a warm-up has but its own memory, however far its creation came. */
static void gpusync__warmup_free(gpusync__object *t)
{
    gpusync_warmup *w = (gpusync_warmup *)(void *)t;
    void *pool = gpusync__pool_push();
    for (size_t i = 0; i < w->count; i++)
        gpusync__release(w->items[i].made);
    gpusync__pool_pop(pool);
    if (w->runner)
        gpusync__dispatch_release(w->runner);
    GPUSYNC_FREE(w->items);
}

static const gpusync__kind gpusync__warmups = {
    "warm-up", "item count",         true, gpusync__items_stand, NULL, NULL,
    NULL,      gpusync__shut_warmup, NULL, gpusync__warmup_free,
};

/* Has the program make an item. No lock is held. */
static void gpusync__make(const gpusync_warmup *w, size_t i)
{
    gpusync__item *item = &w->items[i];
    void *pool = gpusync__pool_push();
    gpusync_result result = w->fn(w->user, i, &item->made, &item->error);
    gpusync__pool_pop(pool);
    item->error.result = result > GPUSYNC_OK ? GPUSYNC_ERROR_COMPILE : result;
    if (result == GPUSYNC_OK)
        return;
    item->made = NULL;
    gpusync__adopt_error(&item->error, gpusync_result_string(item->error.result));
    if (!item->error.label[0])
        snprintf(item->error.label, sizeof item->error.label, "item %zu", i);
}

/* Makes an item that has not begun. */
static void gpusync__make_once(gpusync_warmup *w, size_t i)
{
    gpusync__object *t = &w->object;
    gpusync_device *dev = t->device;
    gpusync__item *item = &w->items[i];
    gpusync__caller self;
    gpusync__after after = GPUSYNC__NOTHING;
    uint64_t now = gpusync_now_ns();
    gpusync__lock(dev);
    bool begins = item->state == GPUSYNC__IDLE && !(t->alert & (GPUSYNC__CLOSED | GPUSYNC__LOST));
    if (begins) {
        GPUSYNC__STORE(&item->state, GPUSYNC__RUNNING);
        t->owed++;
        gpusync__caller_add(dev, t, 0, &self, false, now);
    }
    gpusync__unlock(dev);
    if (!begins)
        return;
    gpusync__make(w, i);
    gpusync__lock(dev);
    GPUSYNC__STORE(&item->state, GPUSYNC__DONE);
    GPUSYNC__STORE(&t->head.completed, t->head.completed + 1);
    gpusync__rise(&t->waiting, t->head.completed, &after);
    t->owed--;
    gpusync__caller_remove(dev, t, &self, &after);
    gpusync__finish(dev, &after);
}

/* On the dispatch queue, with a reference. */
static void gpusync__warm(void *context)
{
    gpusync_warmup *w = (gpusync_warmup *)context;
    for (size_t i = 0; i < w->count; i++)
        gpusync__make_once(w, i);
    gpusync__unref(&w->object);
}

GPUSYNC__SELDOM gpusync_result gpusync_warmup_start(gpusync_device *device, const gpusync_warmup_desc *desc,
                                                    gpusync_warmup **out)
{
    if (out)
        *out = NULL;
    if (!device || !out || !desc || (desc->count && !desc->fn))
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    bool fits = desc->count < SIZE_MAX / 2 / sizeof(gpusync__item);
    gpusync_warmup *w = fits ? (gpusync_warmup *)gpusync__zeroed(sizeof *w) : NULL;
    if (!w)
        return GPUSYNC_ERROR_OUT_OF_MEMORY;
    w->fn = desc->fn;
    w->user = desc->user;
    w->object.head.committed = desc->disabled ? 0 : desc->count;
    w->items = (gpusync__item *)gpusync__zeroed((desc->count + 1) * sizeof *w->items);
    w->count = w->items ? desc->count : 0;
    if (!desc->disabled)
        w->runner = gpusync__dispatch_queue_create(
            "gpusync warm-up", gpusync__dispatch_attr_with_qos(NULL, GPUSYNC__QOS_USER_INITIATED, 0));
    bool made = w->items && (w->runner || desc->disabled);
    gpusync_result result =
        made ? gpusync__object_begin(&w->object, device, &gpusync__warmups) : GPUSYNC_ERROR_OUT_OF_MEMORY;
    if (result != GPUSYNC_OK) {
        gpusync__warmup_free(&w->object);
        GPUSYNC_FREE(w);
        return result;
    }
    *out = w;
    if (w->runner) {
        gpusync__keep(&w->object);
        gpusync__dispatch_async(w->runner, w, gpusync__warm);
    }
    return GPUSYNC_OK;
}

/* Waits until so many items are made. */
static gpusync_result gpusync__await_items(gpusync__object *t, uint64_t count, uint64_t timeout_ns)
{
    gpusync__goal goal;
    gpusync__goal_init(&goal, t, &gpusync__for_number);
    goal.number = count;
    return gpusync__await_goal(&goal, timeout_ns);
}

GPUSYNC__SELDOM gpusync_result gpusync_warmup_wait(gpusync_warmup *warmup, uint64_t timeout_ns, size_t *done,
                                                   size_t *total)
{
    if (!warmup)
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    gpusync__object *t = &warmup->object;
    uint64_t all = t->head.committed;
    gpusync__keep(t);
    gpusync_result result = gpusync__await_items(t, all, timeout_ns);
    uint64_t now = GPUSYNC__LOAD(&t->head.completed);
    if (result == GPUSYNC_TIMEOUT && now >= all) /* compiled since the wait ended */
        result = GPUSYNC_OK;
    for (size_t i = 0; i < all && result == GPUSYNC_OK; i++)
        result = warmup->items[i].error.result;
    if (done)
        *done = (size_t)(now < all ? now : all);
    if (total)
        *total = (size_t)all;
    gpusync__unref(t);
    return result;
}

GPUSYNC__SELDOM gpusync_result gpusync_warmup_get(gpusync_warmup *warmup, size_t i, uint64_t timeout_ns, void **made,
                                                  gpusync_error *error)
{
    if (made)
        *made = NULL;
    if (!warmup || !made || i >= warmup->count)
        return GPUSYNC_ERROR_INVALID_ARGUMENT;
    gpusync__object *t = &warmup->object;
    gpusync__keep(t);
    gpusync__item *item = &warmup->items[i];
    uint64_t now = gpusync_now_ns(), deadline = timeout_ns < GPUSYNC_FOREVER - now ? now + timeout_ns : GPUSYNC_FOREVER;
    gpusync_result result = GPUSYNC_OK;
    if (timeout_ns && !gpusync__in_callback(t->device, t))
        gpusync__make_once(warmup, i);
    for (;;) {
        uint64_t next =
            GPUSYNC__LOAD(&t->head.completed) + 1; /* before the state: an end between the two is not missed */
        if (GPUSYNC__LOAD(&item->state) == GPUSYNC__DONE || result != GPUSYNC_OK)
            break;
        now = gpusync_now_ns();
        uint64_t left = deadline == GPUSYNC_FOREVER ? deadline : now < deadline ? deadline - now : 0;
        result = gpusync__await_items(t, next, left);
    }
    if (GPUSYNC__LOAD(&item->state) == GPUSYNC__DONE) {
        *made = item->made;
        result = item->error.result;
        if (error && result != GPUSYNC_OK)
            *error = item->error;
    }
    gpusync__unref(t);
    return result;
}

GPUSYNC__SELDOM gpusync_result gpusync_warmup_destroy(gpusync_warmup *warmup)
{
    return gpusync__close((gpusync__object *)warmup, NULL);
}

/* -------------------------------------------------------------------------------- >>report --
   The report, from the outside in. Each line is of one moment. Metal is asked for labels, states and events without the
   lock, and the line is written under it, into the program's memory. */

typedef struct gpusync__report {
    char *text; /* the program's, or NULL */
    size_t size, length;
    uint64_t now;
    char name[96]; /* of an object */
} gpusync__report;

/* Writes a piece. A format that begins with a newline begins a line. Newlines of labels become blanks. */
static __attribute__((__format__(__printf__, 2, 3))) void gpusync__write(gpusync__report *out, const char *format, ...)
{
    char piece[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(piece, sizeof piece, format, arguments);
    va_end(arguments);
    gpusync__make_plain(piece);
    if (format[0] == '\n')
        piece[0] = '\n';
    if (out->length < out->size)
        gpusync__copy_text(out->text + out->length, out->size - out->length, piece);
    out->length += strlen(piece);
}

static double gpusync__ms(uint64_t from, uint64_t to)
{
    return from < to ? (double)(to - from) / 1e6 : 0.0;
}

/* A ticket, a value, or a number of items. 0: the object alone. */
static void gpusync__write_point(gpusync__report *out, const char *before, const gpusync__object *t, uint64_t number)
{
    gpusync__name(t, out->name);
    if (number)
        gpusync__write(out, "%s %s %" PRIu64 " of %s", before, t->kind->counts, number, out->name);
    else
        gpusync__write(out, "%s %s", before, out->name);
}

/* What the number of work counts. */
static const char *gpusync__work_name(const gpusync__work *w)
{
    return w->state == GPUSYNC__OPEN ? "open command buffer" : w->unordered ? "UNORDERED work" : "ticket";
}

/* What is to bring a value of the timeline: this work. NULL: none does. */
static void gpusync__write_source(gpusync__report *out, const gpusync__object *t, const gpusync__work *w)
{
    if (w)
        gpusync__write(out, ", which %s %" PRIu64 " of %s is to signal", gpusync__work_name(w), w->node.number,
                       gpusync__name(&w->queue->object, out->name));
    else
        gpusync__write(out, ", which %s is to signal",
                       gpusync__timeline_of(t)->outside ? "other code" : "no committed work");
}

/* What a call, or work, waits for. Signals of the work itself do not count. */
static void gpusync__write_need(gpusync__report *out, const char *before, const gpusync__object *t, uint64_t number,
                                const gpusync__work *w)
{
    gpusync__write_point(out, before, t, number);
    if (!gpusync__as_timeline(t) || !number)
        return;
    const gpusync__node *ring = &gpusync__timeline_of(t)->promised;
    const gpusync__link *link = gpusync__link_at(ring, ring->next);
    while (link && (link->node.number < number || link->work == w))
        link = gpusync__link_at(ring, link->node.next);
    gpusync__write_source(out, t, link ? link->work : NULL);
}

/* A signal of open or committed work, and the lower one that it goes behind. */
static void gpusync__write_signal(gpusync__report *out, const gpusync__work *w, gpusync__link *link)
{
    bool late = w->state == GPUSYNC__OPEN && gpusync__accept_signal(w, link) != GPUSYNC_OK;
    const gpusync__link *lower = link->node.next ? gpusync__lower(w, link) : NULL; /* off its ring there is none */
    bool behind = lower && (w->state == GPUSYNC__HELD ? !gpusync__may_signal(w, link)
                                                      : w->unsent || link->behind == lower->node.number);
    gpusync__write_point(out, late ? "; can no longer signal" : "; is to signal", link->object, link->node.number);
    if (!behind)
        return;
    gpusync__write(out, " behind value %" PRIu64, lower->node.number);
    gpusync__write_source(out, link->object, lower->work);
}

/* Why work does not end. */
static void gpusync__write_reasons(gpusync__report *out, const gpusync__work *w, unsigned long status)
{
    const gpusync_queue *q = w->queue;
    const gpusync__work *fronts[] = {NULL, q->held.first, NULL, gpusync__first(q), NULL}; /* by state */
    const gpusync__work *front = w->unordered ? NULL : fronts[w->state];
    bool waits = !w->unsent && w->result == GPUSYNC_OK;
    bool silent = w->state >= GPUSYNC__ENDED ? w->unheard && !w->unknown
                                             : w->state == GPUSYNC__SENT && status >= GPUSYNC__STATUS_COMPLETED;
    const gpusync__work *early = gpusync__next(q, NULL); /* it stays until its handlers have come */
    if (silent)
        gpusync__write(out, "; gpusync's handler has not returned, or not begun: one of the program's, or its log, "
                            "notify or unpark, may still run");
    else if (w->state == GPUSYNC__SENT && early && early->state >= GPUSYNC__ENDED && early->unheard)
        gpusync__write(out, "; its status may wait for the handlers of %s %" PRIu64, gpusync__work_name(early),
                       early->node.number);
    if (front && front != w)
        gpusync__write(out, "; behind ticket %" PRIu64, front->node.number);
    if (w->state == GPUSYNC__HELD && (GPUSYNC__LOAD(&q->held.issue.listed) || w->stirring.next))
        gpusync__write(out, "; may go: the call or handler that sends it has not returned");
    for (gpusync__link *link = w->links.first; link; link = link->next)
        if (link->signal && (link->node.next || w->state == GPUSYNC__OPEN))
            gpusync__write_signal(out, w, link);
        else if (waits && !link->signal && gpusync__stands(link->object, link->node.number, NULL) == GPUSYNC__NOT_YET)
            gpusync__write_need(out, link->encoded ? "; waits for" : "; waits on the host for", link->object,
                                link->node.number, w);
}

/* Where work is. status: what Metal says. */
static const char *gpusync__state(const gpusync__work *w, unsigned long status)
{
    if (w->state == GPUSYNC__OPEN)
        return status >= GPUSYNC__STATUS_COMMITTED ? "committed, but not by gpusync_commit: open"
               : status                            ? "enqueued, which holds up what was committed behind it,"
                                                   : "not committed";
    if (w->state == GPUSYNC__SENT)
        return status >= GPUSYNC__STATUS_COMPLETED   ? "with Metal (over)"
               : status <= GPUSYNC__STATUS_COMMITTED ? "with Metal (committed)"
                                                     : "with Metal (scheduled)";
    if (w->state == GPUSYNC__HELD)
        return status >= GPUSYNC__STATUS_COMMITTED ? "held, though other code has committed it," : "held";
    if (w->unknown)
        return "given up, with Metal";
    return w->state == GPUSYNC__ENDED ? "over" : "ended";
}

/* A line for work. */
static void gpusync__write_work(gpusync__report *out, const gpusync__work *w, const char *label, unsigned long status)
{
    const char *name = label[0] ? label : w->label;
    gpusync__write(out, "\n    %s %" PRIu64 "%s%s%s%s: %s for %.1f ms", gpusync__work_name(w), w->node.number,
                   name[0] ? " '" : "", name, name[0] ? "'" : "", w->marker ? ", a marker" : "",
                   gpusync__state(w, status), gpusync__ms(w->since_ns, out->now));
    gpusync__write_reasons(out, w, status);
}

/* Asks Metal for the label, and for the status of the first command buffer that is not over. No lock is held. */
static unsigned long gpusync__ask_metal(const gpusync__work *w, char label[64])
{
    uint32_t first = w->submitted_count ? w->first : 0;
    void *buffer = w->count > first ? w->buffers[first] : NULL, *pool = gpusync__pool_push();
    /* of Metal 4 nothing is known */
    unsigned long status = buffer && !w->queue->port ? GPUSYNC__STATUS_COMPLETED : GPUSYNC__STATUS_NOT_ENQUEUED;
    for (uint32_t i = first; i < w->count && status >= GPUSYNC__STATUS_COMPLETED; i++)
        status = gpusync__status(w->buffers[i]);
    gpusync__copy_string(label, 64, gpusync__send_id(buffer, gpusync__sel.label));
    gpusync__pool_pop(pool);
    return status;
}

/* The ring of a queue on which work is. */
static const gpusync__node *gpusync__home(const gpusync__work *w)
{
    const gpusync_queue *q = w->queue;
    return w->state == GPUSYNC__OPEN      ? &q->open.works
           : w->state == GPUSYNC__SETTLED ? &q->late
           : w->unordered                 ? &q->loose.works
                                          : &q->line;
}

/* Lines for the work of one ring. What is no more there, when it is to be written, has its line elsewhere, or none. */
static void gpusync__write_works(gpusync__report *out, gpusync_queue *q, const gpusync__node *ring)
{
    gpusync_device *dev = q->object.device;
    gpusync__work *last = NULL;
    char label[64];
    uint64_t seen[2] = {0, 0}; /* the last that was written, and the last UNORDERED */
    for (;;) {
        gpusync__lock(dev);
        /* The search goes on from the last one, if that is listed yet. */
        bool listed = last && last->node.next && gpusync__home(last) == ring;
        gpusync__work *w = gpusync__work_at(ring, listed ? last->node.next : ring->next);
        while (w && w->node.number <= seen[w->unordered])
            w = gpusync__work_at(ring, w->node.next);
        if (w) {
            seen[w->unordered] = w->node.number;
            GPUSYNC__ADD(&w->refs, 1);
        }
        gpusync__unlock(dev);
        if (last)
            gpusync__work_unref(last);
        if (!w)
            return;
        unsigned long status = gpusync__ask_metal(w, label);
        gpusync__lock(dev);
        if (w->node.next || w->state == GPUSYNC__SETTLED)
            gpusync__write_work(out, w, label, status);
        gpusync__unlock(dev);
        last = w;
    }
}

/* The calls that sleep. */
static void gpusync__write_waits(gpusync__report *out, const gpusync__node *ring)
{
    for (const gpusync__node *n = ring->next; n != ring; n = n->next) {
        const gpusync__goal *goal = (const gpusync__goal *)(const void *)n;
        if (n->fire != gpusync__rouse)
            continue;
        const gpusync__sleeper *s = goal->sleeper;
        gpusync__write(out, "\n    a wait for");
        gpusync__write_need(out, goal->aim->what, goal->object, goal->number, NULL);
        if (s->count > 1)
            gpusync__write(out, "; one of %zu points", s->count);
        gpusync__write(out, "; begun %.1f ms ago", gpusync__ms(s->since_ns, out->now));
        if (s->deadline_ns == GPUSYNC_FOREVER)
            gpusync__write(out, ", without a limit");
        else
            gpusync__write(out, ", with %.1f ms left", gpusync__ms(out->now, s->deadline_ns));
    }
}

/* shows: the value of the event. */
static void gpusync__write_timeline(gpusync__report *out, const gpusync_timeline *t, uint64_t shows)
{
    uint64_t value = t->object.head.completed;
    gpusync__write(out, ": value %" PRIu64, value);
    if (t->object.alert & GPUSYNC__FAILED)
        gpusync__write(out, ", has failed: %s", t->error.message);
    else if (shows > value + t->base) {
        const gpusync__link *own = gpusync__lowest_sent(t);
        shows -= t->base;
        gpusync__write(out, ", its event shows %" PRIu64, shows);
        if (own && own->node.number <= shows)
            gpusync__write(out, ", which counts when the work that signals value %" PRIu64 " has ended",
                           own->node.number);
        else
            gpusync__write(out, t->outside ? ", but Metal has not told gpusync so"
                                           : ", signalled without gpusync: see signalled_by_others");
    }
}

/* A queue, timeline or warm-up, the calls that wait for it, and its work. */
static void gpusync__write_object(gpusync__report *out, gpusync__object *t)
{
    gpusync_queue *q = gpusync__as_queue(t);
    gpusync_timeline *timeline = gpusync__as_timeline(t);
    if (timeline && timeline->hidden)
        return;
    uint64_t shows = timeline ? GPUSYNC__AS(uint64_t)(timeline->event, gpusync__sel.signaledValue) : 0;
    gpusync__lock(t->device);
    gpusync__write(out, "\n  %s%s", gpusync__name(t, out->name), t->alert & GPUSYNC__CLOSED ? ", being destroyed" : "");
    if (timeline)
        gpusync__write_timeline(out, timeline, shows);
    else
        gpusync__write(out, ": %" PRIu64 " of %" PRIu64 " %s", t->head.completed,
                       q ? t->head.committed : ((gpusync_warmup *)(void *)t)->count,
                       q ? "tickets are done" : "items are made");
    if (t->head.submitted)
        gpusync__write(out, ", %" PRIu64 " of %" PRIu64 " UNORDERED", t->head.ended, t->head.submitted);
    if (q && !gpusync__has_room(q))
        gpusync__write(out, ", no room: its limit of %u is reached", (unsigned)q->room.limit);
    if (q && gpusync__sticks(q))
        gpusync__write(out, ", refuses new work, as the failure of ticket %" PRId64 " sticks: %s",
                       q->record.stuck.ticket, q->record.stuck.message);
    if (t->owed)
        gpusync__write(out, ", callbacks, releases or items not over: %u", (unsigned)t->owed);
    gpusync__write_waits(out, &t->waiting);
    if (q) {
        gpusync__write_waits(out, &q->loose.waiting);
        gpusync__write_waits(out, &q->room.waiting);
    }
    gpusync__unlock(t->device);
    if (!q)
        return;
    gpusync__write_works(out, q, &q->open.works);
    gpusync__write_works(out, q, &q->late);
    gpusync__write_works(out, q, &q->line);
    gpusync__write_works(out, q, &q->loose.works);
}

GPUSYNC__SELDOM size_t gpusync_device_report(gpusync_device *dev, char *buffer, size_t size)
{
    gpusync__report out = {buffer, buffer ? size : 0, 0, gpusync_now_ns(), ""};
    size_t due = 0;
    if (out.size)
        buffer[0] = '\0';
    if (!dev)
        return 0;
    gpusync__lock(dev);
    gpusync__write(&out, "gpusync %d.%d.%d device", GPUSYNC_VERSION_MAJOR, GPUSYNC_VERSION_MINOR,
                   GPUSYNC_VERSION_PATCH);
    for (const gpusync__node *n = dev->due.next; n != &dev->due; n = n->next)
        due++;
    if (due)
        gpusync__write(&out, ": %zu callbacks are due, to be run %s", due,
                       dev->callback_mode == GPUSYNC_CALLBACKS_MANUAL ? "by gpusync_device_run_callbacks"
                                                                      : "on the dispatch queue");
    if (dev->lost)
        gpusync__write(&out, ", lost for %.1f ms: %s", gpusync__ms(dev->lost_ns, out.now),
                       gpusync_failure_string((gpusync_failure)dev->lost));
    for (const gpusync__caller *c = dev->callers; c; c = c->next) {
        bool compiles = c->object && c->object->kind->makes;
        const char *kind = compiles    ? "call for an item"
                           : c->number ? "callback or release"
                           : c->object ? "callback or `destroyed`"
                                       : "call of `destroyed` or of the log";
        gpusync__write(&out, "\n  a %s", kind);
        if (c->object)
            gpusync__write_point(&out, " of", c->object, c->number);
        gpusync__write(&out, " has been running for %.1f ms", gpusync__ms(c->since_ns, out.now));
    }
    gpusync__unlock(dev);
    for (gpusync__object *t = gpusync__next_object(dev, NULL); t; t = gpusync__next_object(dev, t))
        gpusync__write_object(&out, t);
    gpusync__write(&out, "\n");
    return out.length;
}

#ifdef __cplusplus
}
#endif

#else /* GPUSYNC_OBJC */

/* -------------------------------------------------------------------------------- >>stubs --
   No Metal here: every call says so. Where a call has an `out`, *out becomes NULL. The public declarations have given
   all of these the linkage of C. They use none of their parameters, and no compiler is to complain of that. */

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
            *out = 0;                                                                                \
        return GPUSYNC_ERROR_UNSUPPORTED;                                                            \
    }
/* clang-format on */
GPUSYNC__STUB_OUT(gpusync_device_create(const gpusync_device_desc *desc, gpusync_device **out))
GPUSYNC__STUB_DESTROY(gpusync_device_destroy(gpusync_device *device), device)
GPUSYNC__STUB_DESTROY(gpusync_device_destroy_later(gpusync_device *device, gpusync_destroyed_fn destroyed, void *user),
                      device)
GPUSYNC__STUB_OUT(gpusync_queue_create(gpusync_device *device, const gpusync_queue_desc *desc, gpusync_queue **out))
GPUSYNC__STUB_OUT(gpusync_metal4_queue_create(gpusync_device *device, const gpusync_queue_desc *desc,
                                              gpusync_queue **out))
GPUSYNC__STUB_DESTROY(gpusync_queue_destroy(gpusync_queue *queue), queue)
GPUSYNC__STUB_DESTROY(gpusync_queue_abandon(gpusync_queue *queue), queue)
GPUSYNC__STUB_DESTROY(gpusync_queue_destroy_later(gpusync_queue *queue, gpusync_destroyed_fn destroyed, void *user),
                      queue)
GPUSYNC__STUB(gpusync_queue_failure(gpusync_queue *queue, gpusync_error *error))
GPUSYNC__STUB(gpusync_queue_clear_failure(gpusync_queue *queue, gpusync_ticket ticket))
GPUSYNC__STUB(gpusync_queue_cancel_held(gpusync_queue *queue, gpusync_ticket ticket))
GPUSYNC__STUB(gpusync_queue_next_error(gpusync_queue *queue, uint64_t *cursor, gpusync_error *error))
GPUSYNC__STUB_OUT(gpusync_command_buffer_create(gpusync_queue *queue, const gpusync_command_buffer_desc *desc,
                                                uint64_t timeout_ns, void **out))
GPUSYNC__STUB(gpusync_command_buffer_discard(gpusync_queue *queue, void *command_buffer))
GPUSYNC__STUB(gpusync_commit(gpusync_queue *queue, void *command_buffer, gpusync_ticket *ticket))
GPUSYNC__STUB(gpusync_commit_marker(gpusync_queue *queue, void *behind, gpusync_ticket *ticket))
GPUSYNC__STUB(gpusync_poll(gpusync_queue *queue, gpusync_ticket ticket, gpusync_times *times))
GPUSYNC__STUB(gpusync_wait(gpusync_queue *queue, gpusync_ticket ticket, uint64_t timeout_ns,
                           const gpusync_wait_options *options))
GPUSYNC__STUB(gpusync_device_wait(gpusync_device *device, uint64_t timeout_ns, const gpusync_wait_options *options))
GPUSYNC__STUB_OUT(gpusync_timeline_create(gpusync_device *device, const gpusync_timeline_desc *desc,
                                          gpusync_timeline **out))
GPUSYNC__STUB_DESTROY(gpusync_timeline_destroy(gpusync_timeline *timeline), timeline)
GPUSYNC__STUB_DESTROY(gpusync_timeline_destroy_later(gpusync_timeline *timeline, gpusync_destroyed_fn destroyed,
                                                     void *user),
                      timeline)
GPUSYNC__STUB(gpusync_timeline_query(gpusync_timeline *timeline, uint64_t *value, gpusync_error *error))
GPUSYNC__STUB(gpusync_timeline_signal_from(gpusync_timeline *timeline, uint64_t value, void *object,
                                           const char *selector))
GPUSYNC__STUB(gpusync_timeline_signal(gpusync_timeline *timeline, uint64_t value))
GPUSYNC__STUB(gpusync_timeline_fail(gpusync_timeline *timeline, const gpusync_error *reason))
GPUSYNC__STUB(gpusync_timeline_wait(gpusync_timeline *timeline, uint64_t value, uint64_t timeout_ns,
                                    const gpusync_wait_options *options))
GPUSYNC__STUB(gpusync_encode_wait(gpusync_queue *queue, void *command_buffer, gpusync_point point))
GPUSYNC__STUB(gpusync_encode_signal(gpusync_queue *queue, void *command_buffer, gpusync_point point))
GPUSYNC__STUB(gpusync_submit(gpusync_queue *queue, const gpusync_submission *submission, gpusync_ticket *ticket))
GPUSYNC__STUB(gpusync_on_done(gpusync_point point, gpusync_done_fn fn, void *user))
GPUSYNC__STUB(gpusync_cancel_on_done(gpusync_point point, gpusync_done_fn fn, void *user))
GPUSYNC__STUB(gpusync_release_after(gpusync_queue *queue, gpusync_ticket ticket, void *object))
GPUSYNC__STUB(gpusync_device_on_lost(gpusync_device *device, gpusync_lost_fn fn, void *user))
GPUSYNC__STUB_OUT(gpusync_device_run_callbacks(gpusync_device *device, size_t max, size_t *out))
GPUSYNC__STUB_OUT(gpusync_warmup_start(gpusync_device *device, const gpusync_warmup_desc *desc, gpusync_warmup **out))
GPUSYNC__STUB_OUT(gpusync_warmup_get(gpusync_warmup *warmup, size_t i, uint64_t timeout_ns, void **out,
                                     gpusync_error *error))
GPUSYNC__STUB(gpusync_device_get_stats(gpusync_device *device, gpusync_queue *queue, gpusync_stats *stats))
GPUSYNC__STUB(gpusync_device_set_trace(gpusync_device *device, const gpusync_trace *trace))
GPUSYNC__STUB(gpusync_warmup_wait(gpusync_warmup *warmup, uint64_t timeout_ns, size_t *done, size_t *total))
GPUSYNC__STUB_DESTROY(gpusync_warmup_destroy(gpusync_warmup *warmup), warmup)
#undef GPUSYNC__STUB
#undef GPUSYNC__STUB_DESTROY
#undef GPUSYNC__STUB_OUT

GPUSYNC_API gpusync_result gpusync_wait_many(const gpusync_point *points, size_t count, gpusync_wait_for how,
                                             uint64_t timeout_ns, const gpusync_wait_options *options, size_t *which)
{
    if (which)
        *which = count;
    return GPUSYNC_ERROR_UNSUPPORTED;
}
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
GPUSYNC_API size_t gpusync_device_report(gpusync_device *device, char *buffer, size_t size)
{
    if (buffer && size)
        buffer[0] = '\0';
    return 0;
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
extern "C" bool (*const gpusync__inline_is_done)(const gpusync_queue *, gpusync_ticket);
extern "C" uint64_t (*const gpusync__inline_in_flight)(const gpusync_queue *);
extern "C" gpusync_point (*const gpusync__inline_at_ticket)(gpusync_queue *, gpusync_ticket);
extern "C" gpusync_point (*const gpusync__inline_at_value)(gpusync_timeline *, uint64_t);
bool (*const gpusync__inline_is_done)(const gpusync_queue *, gpusync_ticket) = gpusync_is_done;
uint64_t (*const gpusync__inline_in_flight)(const gpusync_queue *) = gpusync_in_flight;
gpusync_point (*const gpusync__inline_at_ticket)(gpusync_queue *, gpusync_ticket) = gpusync_at_ticket;
gpusync_point (*const gpusync__inline_at_value)(gpusync_timeline *, uint64_t) = gpusync_at_value;
#else
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
#define GPUSYNC__PLAIN(name, parameters, arguments)                                    \
    gpusync_result gpusync__plain_##name parameters GPUSYNC__SYMBOL("gpusync_" #name); \
    GPUSYNC_API gpusync_result gpusync__plain_##name parameters                        \
    {                                                                                  \
        return gpusync_##name arguments;                                               \
    }
GPUSYNC__PLAIN(device_create, (const gpusync_device_desc *desc, gpusync_device **out), (desc, out))
GPUSYNC__PLAIN(queue_create, (gpusync_device * device, const gpusync_queue_desc *desc, gpusync_queue **out),
               (device, desc, out))
GPUSYNC__PLAIN(command_buffer_create,
               (gpusync_queue * queue, const gpusync_command_buffer_desc *desc, uint64_t timeout_ns, void **out),
               (queue, desc, timeout_ns, out))
#undef GPUSYNC__PLAIN
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
     0.6.0, not released: fewer corners. What was, and what a program of 0.5 does instead:

       gpusync_submit waits on the GPU is strict: the host waits and signals; GPUSYNC_SUBMIT_ON_GPU does as 0.5 did
       GPUSYNC_SUBMIT_HOST_SYNC        gone: the default
       tickets of UNORDERED work       gone: on_complete and signals tell; gpusync_error.in_use; `ticket` is NULL
       a marker ends alone             in its turn
       encoded points in a submission  refused: commit such a buffer by itself
       enqueued buffers with points    refused
       encode_signal at its place      at the end of its buffer
       a signal waits for open buffers they do not count; a value that committed work is to signal is refused
       failures told by overlap        by the record: see gpusync_wait; gpusync_error.dropped
       gpusync_queue_clear_failure(q)  names the ticket; new: gpusync_queue_failure
       a discard fails timelines       never
       gpusync_timeline_query(t, v)    has a third argument, error
       QUEUE_FULL of an idle device    of this queue alone, see gpusync_command_buffer_create
       new                             gpusync_queue_desc.user, gpusync_error.queue_user

     0.5.0, 2026-11-30: rebuilt on the contract at the head of this file. What was, and what a program of 0.4 does
     instead:

       gpusync_ticket uint64_t         int64_t; GPUSYNC_EVERYTHING is INT64_MAX, tickets below 1 are done
       tickets end in any order        in order, but for UNORDERED ones and markers: a wait for a ticket is one for all
                                       ordered work before it
       gpusync_command_buffer          gpusync_command_buffer_create, with the limit as an argument
       gpusync_commit4                 gpusync_commit, gpusync_submit
       gpusync_track, _untrack         gpusync_commit_marker, behind what the other code has committed
       gpusync_wait_ex, _queue_wait    gpusync_wait with options; with GPUSYNC_EVERYTHING
       wait_options.blocking           gone: waitUntilCompleted of a sent buffer does it
       gpusync_get_info                the third argument of gpusync_poll
       gpusync_is_idle                 gpusync_in_flight(queue) == 0
       gpusync_dispatch                gpusync_device_run_callbacks
       gpusync_queue_destroy_now       gpusync_queue_abandon
       gpusync_next_error              gpusync_queue_next_error
       gpusync_cancel_held             gpusync_queue_cancel_held
       gpusync_release_after(point)    gpusync_release_after(queue, ticket)
       GPUSYNC_STRICT, _UNORDERED      GPUSYNC_SUBMIT_HOST_SYNC, GPUSYNC_SUBMIT_UNORDERED
       GPUSYNC_FAILURE_TIMEOUT         GPUSYNC_FAILURE_GPU_TIMEOUT
       gpusync_failure_is_transient    gpusync_error.transient; also new: inherited, ran, origin, encoder
       submission.timeout_ns           gone: gpusync_submit never waits, ERROR_QUEUE_FULL comes at once
       submission.waits, .signals      wait_points, signal_points: `signals` is a keyword of Qt
       a refused call sets *ticket 0   *ticket stays as it was
       values in any order             timelines only rise, and signals go to Metal in rising order: sentence 7
       EVERYTHING ignores cancelled    ERROR_CANCELLED is a failure like others
       gpusync_report, _queue_report   gpusync_device_report
       gpusync_get_stats (both)        gpusync_device_get_stats(device, queue or NULL)
       gpusync_set_trace               gpusync_device_set_trace
       gpusync_warmup_poll             gpusync_warmup_wait with a limit of 0
       warm-up: jobs, queue, blocking  gone: a warm-up compiles pipelines
       gpusync_allocator               the macros GPUSYNC_MALLOC and GPUSYNC_FREE
       gpusync_spin.until_near         what a wait does without a budget (NULL)
       gpusync_struct_sizes            gone: a binding is made for one version, see gpusync_version
       a device's timers               gone: polls, waits and gpusync_device_run_callbacks look
       new                             gpusync_timeline_desc.order_only, gpusync_queue_desc.encoder_status

   Versions are semantic, and their tags are v0.5.0 and so on. While the major number is 0, a minor number may change
   the API, and says so here. From 1.0 on the calls of >>core do not change before 2.0, those of >>more get additions
   alone, and a minor number may change those of >>rare.

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
