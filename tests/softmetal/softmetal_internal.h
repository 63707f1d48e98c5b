/* softmetal_internal.h - what softmetal's own files share

   Objective-C without ARC (-fno-objc-arc): every reference here is counted by hand.

   What guards what
     sm_engine.lock         the state of a queue and of its command buffers: order, counters, handlers
     SoftMetalEvent.lock    an event's value and its listeners
     SoftMetalLayer.lock    how many drawables are in use; a drawable's handlers
     sm_postbox.lock        the blocks a shared event listener has yet to run
     registry lock          the list of engines (softmetal_panel.m)
     pool.lock              dispatch queues and their workers (softmetal_dispatch.m)
   No lock is held while a block, a hook, a kernel or a dealloc runs: all of them may come back.
   Counters, settings and reference counts are relaxed atomics wherever they can be, so that softmetal
   orders a program's threads no more than Metal would and ThreadSanitizer still sees its races.

   Contents
     >>symbols  >>rules  >>time  >>random  >>object  >>block  >>engine  >>command buffer  >>event
     >>layer  >>other objects  >>metal4  >>dispatch  >>panel  >>message */
#ifndef SOFTMETAL_INTERNAL_H
#define SOFTMETAL_INTERNAL_H

#import <Foundation/Foundation.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "rules.h"
#include "softmetal.h"

/* -------------------------------------------------------------------------- >>symbols -- */

/* The name in the object file of a function that stands in front of the system's, or in its place. In the source it has
   another: the system's headers declare some with other types, and dispatch_release is a macro in Objective-C. */
#define SM_SYMBOL(name) __asm__(SM_TEXT(__USER_LABEL_PREFIX__) name)
#define SM_TEXT(x) SM_TEXT_OF(x)
#define SM_TEXT_OF(x) #x

#ifdef __APPLE__
/* A program's objc_msgSend is softmetal's (softmetal_msgsend.S). softmetal's own messages are none of the program's: each
   object file of softmetal has a local symbol of that name, to which the compiler's calls are bound. Unverified with
   Apple's linker; Zig's and LLVM's do it. */
#ifdef __x86_64__
__asm__(".text\n_objc_msgSend:\n\tjmp _softmetal_own_send\n");
#else
__asm__(".text\n.p2align 2\n_objc_msgSend:\n\tb _softmetal_own_send\n");
#endif
#endif

/* ---------------------------------------------------------------------------- >>rules -- */

typedef enum sm_rule {
#define SM_RULE_ENUM(identifier, name, text) SM_RULE_##identifier,
    SM_RULES(SM_RULE_ENUM) SM_RULES_OF_METAL4(SM_RULE_ENUM)
#undef SM_RULE_ENUM
} sm_rule;

__attribute__((noreturn, format(printf, 2, 3))) void sm_abort(sm_rule rule, const char *format, ...);

/* Aborts with the rule unless `condition` holds. */
#define SM_REQUIRE(condition, rule, ...)                         \
    do {                                                         \
        if (!(condition)) sm_abort(SM_RULE_##rule, __VA_ARGS__); \
    } while (0)

/* ----------------------------------------------------------------------------- >>time -- */

#define SM_FOREVER UINT64_MAX
#define SM_MILLISECOND UINT64_C(1000000)

uint64_t sm_now(void);                           /* nanoseconds, monotonic; on a Mac the clock of mach_absolute_time */
uint64_t sm_after(uint64_t now, uint64_t delay); /* now + delay, at most SM_FOREVER */

void sm_cond_init(pthread_cond_t *cond);
/* Sleeps until signalled, until `deadline` or for no reason at all. */
void sm_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t deadline);
/* Returns at `deadline` (true) or as soon as `*interrupted` is not `expected` (false). Called with
   the lock, returns with it. Precise: sleeps only while there is time to, spins the rest unlocked. */
bool sm_wait_precisely(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t deadline, const unsigned *interrupted,
                       unsigned expected);
/* One step towards `due`: sleeps until signalled or shortly before it, or spins the rest unlocked. */
void sm_doze(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t due);
void sm_sleep_precisely(uint64_t duration);

void sm_thread_start(void *(*body)(void *), void *argument);
void sm_thread_run(void *(*body)(void *), void *argument); /* returns after it */

/* --------------------------------------------------------------------------- >>random -- */

uint64_t sm_draw(softmetal_range range);
bool sm_chance(unsigned per_mille);

/* --------------------------------------------------------------------------- >>object -- */

typedef enum sm_kind {
    SM_DEVICE, SM_QUEUE, SM_COMMAND_BUFFER, SM_ENCODER, SM_BUFFER, SM_EVENT, SM_SHARED_EVENT, SM_LISTENER, SM_LIBRARY,
    SM_FUNCTION, SM_PIPELINE, SM_ERROR, SM_BLOCK, SM_DESCRIPTOR, SM_DISPATCH_QUEUE,
    SM_QUEUE4, SM_COMMAND_BUFFER4, SM_ALLOCATOR, SM_ARGUMENT_TABLE, SM_COMMIT_OPTIONS, SM_FEEDBACK, SM_RUN,
    SM_QUEUE_OPERATION,
    SM_LAYER, SM_DRAWABLE, SM_TEXTURE, SM_ENCODER_INFO,
    SM_KINDS
} sm_kind;

void sm_count(sm_kind kind, long change);

/* Root of every softmetal class: a reference counter that ThreadSanitizer sees, strict about
   over-release and about messages to what was freed. */
@interface SoftMetalObject : NSObject {
@public
    long refs;
    long uses; /* committed buffers with unretained references, runs and queue operations that still need it */
}
+ (sm_kind)softmetalKind;
+ (const char *)metalName; /* the protocol or class by which programs know it */
@end

/* What a freed object turns into. */
@interface SoftMetalZombie : NSObject
@end

bool sm_descends(Class cls, Class from); /* or is it */
Class sm_zombie_class(void); /* Nil as long as nothing was freed */
/* Aborts when `object` is nil or freed or not of `cls`; `what` names the argument. */
void sm_check_argument(id object, Class cls, const char *what);

/* Whether the thread has an autorelease pool; on a Mac true, for it may have one that softmetal does not see. */
bool sm_has_pool(void);
/* The pool around what softmetal calls of the program's. The program's own are counted above it. */
void *sm_pool_push(void) SM_SYMBOL("objc_autoreleasePoolPush");
bool sm_is_innermost_pool(void *token);
void sm_pool_close(void *token);
/* [[object retain] autorelease] for what a method hands to the program, NSString included. */
id sm_handed_out(id object);
NSString *sm_new_string(const char *text); /* +1 */
/* The methods of a label that any thread may use. */
NSString *sm_label_under(pthread_mutex_t *lock, NSString **label);
void sm_set_label_under(pthread_mutex_t *lock, NSString **label, NSString *text);
/* The methods of a label that one thread at a time uses. The class has `label`, and releases it in dealloc. */
#define SM_HAS_LABEL                      \
    -(NSString *)label                    \
    {                                     \
        return sm_handed_out(label);      \
    }                                     \
    -(void)setLabel : (NSString *)text    \
    {                                     \
        NSString *copy = [text copy];     \
        [label release];                  \
        label = copy;                     \
    }

/* ---------------------------------------------------------------------------- >>block -- */

typedef enum sm_block_state { SM_BLOCK_WAITING, SM_BLOCK_RUNNING, SM_BLOCK_RAN, SM_BLOCK_RELEASED } sm_block_state;

/* A block that Metal holds, and what its header said when Metal took it. */
typedef struct sm_block {
    void *block;
    void *isa, *invoke;
    uint32_t flags;
    sm_block_state state;
} sm_block;

typedef struct sm_blocks { sm_block *items; unsigned count, capacity; } sm_blocks;

sm_block sm_block_take(void *block); /* checks and copies it */
sm_block sm_block_take_again(void *block); /* one more of a block that was taken */
void sm_block_check(const sm_block *held);
void sm_block_drop(sm_block *held); /* checks and releases it */
void sm_block_call(const sm_block *held, id given); /* checks and calls it, in a pool */
void sm_blocks_add(sm_blocks *blocks, sm_block held);
void sm_blocks_end(sm_blocks *blocks, id given); /* calls each, unless `given` is nil, and drops it; none is left */

/* --------------------------------------------------------------------------- >>engine -- */

@class SoftMetalDevice, SoftMetalAnyQueue, SoftMetalCommandBuffer, SoftMetalEncoder, SoftMetalEvent, SoftMetalBuffer;

typedef struct sm_engine sm_engine;
typedef struct sm_job sm_job;

typedef enum sm_job_kind {
    SM_JOB_SCHEDULE, SM_JOB_SCHEDULED, SM_JOB_COMPLETED, SM_JOB_HANDLER, SM_JOB_HANDLER_AGAIN
} sm_job_kind;

/* Something for a completion thread to do. */
struct sm_job {
    sm_job *next;
    SoftMetalCommandBuffer *buffer;
    sm_job_kind kind;
    unsigned handler; /* SM_JOB_HANDLER, SM_JOB_HANDLER_AGAIN: which one */
    uint64_t due;
    bool published; /* SM_JOB_COMPLETED: times and status are stored, the handlers have yet to run */
    bool late;      /* lets other buffers pass */
};

/* The part of a queue that its threads keep alive. */
struct sm_engine {
    sm_engine *next, *previous; /* registry */
    pthread_mutex_t lock;
    pthread_cond_t work;         /* for workers: a buffer may be able to start */
    pthread_cond_t jobs_changed; /* for completion threads */
    pthread_cond_t room;         /* for commandBuffer: an outstanding buffer ended */
    pthread_cond_t more_blocked; /* for softmetal_await_blocked */
    long refs;
    softmetal_clock clock;
    SoftMetalDevice *device; /* not retained: the queue does, and outlives its buffers */
    bool dying;              /* the queue object is gone */
    unsigned limit, outstanding;
    unsigned blocked;          /* threads in commandBuffer that wait for a place */
    unsigned stepped_handlers; /* running, on the manual clock */
    unsigned unsettled; /* committed buffers that Metal has not let go, less the parked ones */
    unsigned idle_workers, completers, idle_completers, waiting_jobs;
    sm_job *first_job, *last_job;
    SoftMetalCommandBuffer *newest;                 /* living buffers, by age */
    SoftMetalCommandBuffer *line_first, *line_last; /* enqueued and not finished, in order */
    SoftMetalCommandBuffer *newest_run;             /* Metal 4: as long as the GPU has not ended with it */
    bool newest_run_failed;
};

sm_engine *sm_engine_new(SoftMetalDevice *device, unsigned limit);
void sm_engine_retain(sm_engine *engine);
void sm_engine_release(sm_engine *engine);
/* A handler begins (1) or ends (-1) on this thread, on the manual clock. */
void sm_stepped_handler(sm_engine *engine, int change);
void sm_engine_post(sm_engine *engine, sm_job *job); /* with the lock */
void sm_engine_pump(sm_engine *engine);              /* with the lock: starts what can start */
/* The engine whose handler the calling thread is running, or NULL. */
sm_engine *sm_engine_of_running_handler(void);

/* ------------------------------------------------------------------- >>command buffer -- */

enum { SM_NOT_ENQUEUED, SM_ENQUEUED, SM_COMMITTED, SM_SCHEDULED, SM_COMPLETED, SM_ERRONEOUS };

typedef struct sm_size { unsigned long width, height, depth; } sm_size; /* MTLSize */
typedef struct sm_origin { unsigned long x, y, z; } sm_origin;          /* MTLOrigin */
typedef struct sm_region { sm_origin origin; sm_size size; } sm_region; /* MTLRegion */
typedef struct sm_extent { double width, height; } sm_extent;           /* CGSize */
typedef struct sm_range { unsigned long location, length; } sm_range;   /* NSRange */

typedef enum sm_command_kind { SM_FILL, SM_COPY, SM_DISPATCH, SM_SIGNAL, SM_WAIT } sm_command_kind;

#define SM_BINDINGS 31

typedef struct sm_binding {
    id buffer;   /* nil: `bytes`, or nothing */
    void *bytes; /* owned by the command */
    size_t offset, length;
} sm_binding;

typedef struct sm_command {
    sm_command_kind kind;
    id object;      /* buffer, event or pipeline */
    id destination; /* SM_COPY */
    size_t offset, destination_offset, length;
    uint64_t value; /* byte to fill with, event value */
    sm_binding *bindings;
    unsigned long grid[3];
} sm_command;

/* What a command buffer or run is to end with. */
typedef struct sm_fault {
    bool set;
    bool by_number;          /* `number` is the driver's; else `code` is one of `domain` */
    unsigned number;
    long code;
    NSString *domain, *text; /* +1; nil: the domain of the queue's kind, a text that goes with the number or code */
} sm_fault;

/* What the program encoded. */
typedef struct sm_recording {
    sm_command *commands;
    unsigned command_count, command_capacity;
    id *references; /* every object named by a command */
    unsigned reference_count, reference_capacity;
    bool retains; /* retained references */
} sm_recording;

#define SM_ENCODER_EXECUTION_STATUS 1ul /* MTLCommandBufferErrorOptionEncoderExecutionStatus */

/* One encoder of a buffer with that option: what an error says about it. */
typedef struct sm_pass {
    NSString *label;           /* +1; nil: it has none, or is open */
    unsigned begins, ends;     /* how many commands of the buffer come before its first, and up to its last */
} sm_pass;

/* What stands in the line of a queue. The last three are Metal 4's, and not seen by the program. */
typedef enum sm_entry { SM_ENTRY_BUFFER, SM_ENTRY_RUN, SM_ENTRY_SIGNAL, SM_ENTRY_WAIT } sm_entry;

@interface SoftMetalCommandBuffer : SoftMetalObject {
@public
    SoftMetalAnyQueue *queue;
    sm_engine *engine;
    sm_entry entry;
    unsigned long error_options;
    NSString *label;

    /* Until commit: the program's thread only. Then read by one worker. */
    sm_recording recorded;
    SoftMetalEncoder *encoder; /* the active one, not retained */
    sm_pass *passes;           /* one for each encoder, where error_options ask for them */
    unsigned pass_count, pass_capacity;
    NSMutableArray *presents; /* +1, from the first presentDrawable: to the end; drawables */

    /* What the program reads without a lock; atomic. The only order that readers of a terminal status get is
       that of `worked`: the GPU's work comes before it. The times come with no order at all. */
    unsigned long status;
    unsigned worked;
    double gpu_start, gpu_end;

    /* Guarded by the engine's lock. */
    unsigned long final_status;
    id error;
    sm_blocks scheduled_blocks, completed_blocks;
    SoftMetalCommandBuffer *older, *newer; /* by age */
    SoftMetalCommandBuffer *line_next, *line_previous;
    pthread_cond_t changed;
    bool committed; /* also read without the lock */
    bool follows_failure; /* SM_ENTRY_SIGNAL: of the run before it */
    bool in_line, started, executed, finished; /* finished: the GPU's part is over */
    bool handlers_done;  /* waitUntilCompleted may return */
    int dispatched_waits; /* waitUntilCompleted in dispatched functions */
    bool counted;        /* among the outstanding */
    bool let_go;         /* Metal keeps nothing of it any more */
    id outcome;          /* an error met while executing */
    unsigned stopped;    /* how many commands the GPU was through with when it ended */
    double began, ended; /* by the GPU's own clock, until they are published */
    unsigned handlers_ran;
    uint64_t schedule_due;

    /* Faults and chaos. */
    sm_fault fault;
    unsigned signals_before_fault, signals_made; /* how many the fault waits for, and how many the GPU has made */
    long *encoder_states;                        /* of the first encoders, in place of what softmetal finds */
    unsigned encoder_state_count;
    bool has_duration, hold, parked, lose, status_after, late, overlap, timing_out;
    uint64_t duration;
    unsigned hang; /* also a flag to interrupt waits */
}
- (double)GPUStartTime;
- (double)GPUEndTime;
@end

/* Metal 4: what one commit made, with the handlers of its options as completed handlers. */
@interface SoftMetalRun : SoftMetalCommandBuffer
@end

/* Metal 4: a signal or a wait of a queue. Its one command says which, and has no effect as a command. */
@interface SoftMetalQueueOperation : SoftMetalCommandBuffer
@end

SoftMetalCommandBuffer *sm_command_buffer_new(sm_entry entry, SoftMetalAnyQueue *queue); /* +1; retains nothing */
bool sm_is_operation(SoftMetalCommandBuffer *buffer);
void sm_commit(SoftMetalCommandBuffer *buffer);
sm_command *sm_record(sm_recording *recording, sm_command_kind kind);
void sm_refer(sm_recording *recording, id object);
void sm_recording_append(sm_recording *to, sm_recording *from); /* empties `from` */
void sm_recording_clear(sm_recording *recording);               /* drops the references, frees the commands */
void sm_check_encodable(SoftMetalCommandBuffer *buffer, const char *what);
/* How many commands come before the buffer's fault: all, where it has none or one that waits for more signals. */
unsigned sm_commands_before_fault(SoftMetalCommandBuffer *buffer);

/* Transitions. All take the engine's lock themselves unless they say otherwise. */
void sm_mark_scheduled(SoftMetalCommandBuffer *buffer); /* once; posts SM_JOB_SCHEDULED where there are handlers */
void sm_run_scheduled_handlers(SoftMetalCommandBuffer *buffer);
void sm_mark_started(SoftMetalCommandBuffer *buffer);   /* the GPU begins with it */
id sm_execute(SoftMetalCommandBuffer *buffer);          /* does the work; the error (+1) or nil */
void sm_finish(SoftMetalCommandBuffer *buffer);         /* the GPU's end; real clock: posts SM_JOB_COMPLETED */
void sm_publish(SoftMetalCommandBuffer *buffer);        /* with the lock: times, then status */
void sm_run_handlers(SoftMetalCommandBuffer *buffer, bool lose);   /* real clock: all of them, then the end */
void sm_run_handler(SoftMetalCommandBuffer *buffer, unsigned k);   /* manual clock */
void sm_run_handler_again(SoftMetalCommandBuffer *buffer, unsigned k);
void sm_end_handlers(SoftMetalCommandBuffer *buffer);     /* references and place are given back, waiters may return */
void sm_release_handlers(SoftMetalCommandBuffer *buffer); /* drops the blocks not dropped yet */
void sm_let_go(SoftMetalCommandBuffer *buffer);           /* Metal's own reference goes */
void sm_leave_line(SoftMetalCommandBuffer *buffer);       /* with the lock */
void sm_end_uses(SoftMetalCommandBuffer *buffer);         /* what it named may be destroyed */
void sm_set_fault(SoftMetalCommandBuffer *buffer, sm_fault fault); /* with the lock; takes over the references */
/* Whether the two may run at the same time: no tracked buffer in common, and no operation. */
bool sm_independent(SoftMetalCommandBuffer *a, SoftMetalCommandBuffer *b);

/* ---------------------------------------------------------------------------- >>event -- */

typedef struct sm_notification sm_notification;

@interface SoftMetalEvent : SoftMetalObject {
@public
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t value;          /* written under the lock, also read without it */
    SoftMetalDevice *device; /* +1; nil for a shared event */
    NSString *label;
    sm_notification *notifications; /* not due yet */
}
@end

@interface SoftMetalSharedEvent : SoftMetalEvent
- (uint64_t)signaledValue;
- (void)setSignaledValue:(uint64_t)wanted;
@end

@interface MTLSharedEventListener : SoftMetalObject {
@public
    struct sm_postbox *postbox;
    id dispatch_queue; /* +1 by sm_dispatch_retain; nil: the blocks run on a thread of the listener's own */
}
@end

uint64_t sm_event_value(SoftMetalEvent *event);
void sm_event_raise(SoftMetalEvent *event, uint64_t value); /* by the GPU */

typedef enum sm_wait_result { SM_WAIT_REACHED, SM_WAIT_TIMEOUT, SM_WAIT_REMOVED } sm_wait_result;
sm_wait_result sm_event_device_wait(SoftMetalEvent *event, uint64_t value, const unsigned *removed);
bool sm_notifications_settled(void);

/* -------------------------------------------------------------------------- >>layer -- */

@interface SoftMetalLayer : SoftMetalObject {
@public
    SoftMetalDevice *device; /* +1; nil: nextDrawable is nil */
    sm_extent size;
    BOOL framebuffer_only;
    unsigned most; /* drawables in use */
    pthread_mutex_t lock; /* of what follows, and of the drawables' handlers */
    pthread_cond_t room;
    unsigned out;          /* drawables in use */
}
@end

@interface SoftMetalTexture : SoftMetalObject {
@public
    SoftMetalBuffer *memory; /* +1; rows without a gap */
    unsigned long width, height;
    BOOL framebuffer_only;
}
@end

@interface SoftMetalDrawable : SoftMetalObject {
@public
    SoftMetalLayer *layer;     /* +1 */
    SoftMetalTexture *texture; /* +1 */
    softmetal_clock clock;
    sm_blocks handlers;    /* guarded by the layer's lock */
    double presented_time; /* atomic */
    bool over; /* atomic: shown, or dropped */
    bool lost; /* then: its handlers are not called */
}
- (void)present;
@end

bool sm_drawables_settled(void); /* none is being shown */
void sm_present(SoftMetalCommandBuffer *buffer, id drawable, const char *what);
void sm_encode_copy_to_texture(SoftMetalEncoder *encoder, id source, unsigned long from, unsigned long pitch,
                               sm_size size, id target, sm_origin to, const char *what);

/* -------------------------------------------------------------------- >>other objects -- */

@interface SoftMetalDevice : SoftMetalObject {
@public
    unsigned removed; /* atomic */
    uint64_t registry_id;
}
- (id)newCommandQueueWithMaxCommandBufferCount:(unsigned long)count;
@end

Class sm_device_class(void); /* of the devices that programs find: SoftMetalDevice or one of its kind */

/* What a queue is, whichever messages it answers. */
@interface SoftMetalAnyQueue : SoftMetalObject {
@public
    SoftMetalDevice *device;
    sm_engine *engine;
    NSString *label; /* guarded by the engine's lock */
}
@end

@interface SoftMetalQueue : SoftMetalAnyQueue
@end

@interface MTLCommandBufferDescriptor : SoftMetalObject {
@public
    BOOL retains;
    unsigned long error_options;
}
@end

@class SoftMetalPipeline;

@interface SoftMetalBuffer : SoftMetalObject {
@public
    SoftMetalDevice *device;
    SoftMetalBuffer *next_addressed;
    bool addressed; /* its gpuAddress was asked for */
    unsigned char *bytes;
    size_t length;
    unsigned long options;
    NSString *label;
}
@end

@interface SoftMetalEncoder : SoftMetalObject {
@public
    SoftMetalCommandBuffer *buffer; /* +1; nil in Metal 4 */
    SoftMetalDevice *device;        /* not retained: the owner does */
    sm_recording *recording;        /* the owner's, as long as the encoder is open */
    SoftMetalEncoder **active;      /* where the owner notes the open encoder */
    unsigned pass;                  /* its place in the buffer's passes, from 1 on; 0: none is kept */
    bool ended;
    NSString *label;
}
- (id)initWithBuffer:(SoftMetalCommandBuffer *)owner;
@end

/* What both generations encode; `what` is the message. They check their arguments. */
void sm_encode_fill(SoftMetalEncoder *encoder, id memory, sm_range range, unsigned char value, const char *what);
void sm_encode_copy(SoftMetalEncoder *encoder, id source, unsigned long from, id target, unsigned long to,
                    unsigned long size, const char *what);
/* Takes `bindings` over: SM_BINDINGS of them. */
void sm_encode_dispatch(SoftMetalEncoder *encoder, SoftMetalPipeline *pipeline, sm_binding *bindings, sm_size threads,
                        const char *what);
void sm_check_open(SoftMetalEncoder *encoder, const char *what);
void sm_check_pipeline(SoftMetalEncoder *encoder, id state, const char *what);
/* The living buffer, of those whose gpuAddress was asked for, that has the address; nil. */
SoftMetalBuffer *sm_buffer_at_address(uint64_t address);

@interface SoftMetalBlitEncoder : SoftMetalEncoder
@end

@interface SoftMetalComputeEncoder : SoftMetalEncoder {
@public
    SoftMetalPipeline *pipeline;
    sm_binding bindings[SM_BINDINGS];
}
@end

@interface SoftMetalLibrary : SoftMetalObject {
@public
    SoftMetalDevice *device;
    NSArray *names;
    NSString *label;
}
@end

@interface SoftMetalFunction : SoftMetalObject {
@public
    SoftMetalDevice *device;
    NSString *name;
}
@end

@interface SoftMetalPipeline : SoftMetalObject {
@public
    SoftMetalDevice *device;
    char *name;
}
@end

@interface SoftMetalRenderPipeline : SoftMetalObject {
@public
    SoftMetalDevice *device;
    NSString *label;
}
@end

@interface SoftMetalColorAttachment : SoftMetalObject {
    unsigned long format;
}
@end

#define SM_COLORS 8
@interface SoftMetalColorAttachments : SoftMetalObject {
    SoftMetalColorAttachment *colors[SM_COLORS]; /* +1; nil: not asked for */
}
@end

@interface MTLRenderPipelineDescriptor : SoftMetalObject {
@public
    NSString *label;
    SoftMetalFunction *vertex, *fragment; /* +1, or nil */
    SoftMetalColorAttachments *colors;    /* +1 */
}
@end

/* An NSError in what it answers; its own class so that it is counted like the rest. */
@interface SoftMetalError : SoftMetalObject {
@public
    SoftMetalError *underlying; /* +1 */
    NSString *domain, *text;    /* text nil: a general one, which is not in the user info */
    NSArray *encoders;          /* +1; nil: the buffer had not the option */
    long code;
    bool wraps; /* Metal 4's outermost one */
}
@end

/* Apple's MTLCommandBufferEncoderInfo: an encoder of a buffer that failed. */
@interface SoftMetalEncoderInfo : SoftMetalObject {
@public
    NSString *label; /* +1 */
    long error_state;
}
@end

SoftMetalError *sm_new_error(NSString *domain, long code, NSString *text); /* +1 */
/* The buffer's error gets an object for each of its encoders, where the program asked for them. `here` is the state of
   the one at which the buffer ended. */
void sm_tell_encoders(SoftMetalError *error, SoftMetalCommandBuffer *buffer, softmetal_encoder_state here);
SoftMetalError *sm_new_failure(const sm_fault *fault, bool metal4);        /* +1 */
SoftMetalError *sm_new_error_of_timeout(void);                             /* +1; of a wait in a command buffer */
SoftMetalError *sm_new_error_of_removal(bool metal4);                      /* +1 */
void sm_check_reason(unsigned number, const char *what);                   /* aborts where Metal's code is not known */
id sm_new_library(SoftMetalDevice *device, NSString *source, id *error);   /* +1; error +1 */
id sm_new_pipeline(SoftMetalDevice *device, SoftMetalFunction *function);  /* +1 */
id sm_new_render_pipeline(SoftMetalDevice *device, MTLRenderPipelineDescriptor *wanted); /* +1 */

extern NSString *const MTLCommandBufferErrorDomain, *const MTL4CommandQueueErrorDomain;
extern NSString *const MTLCommandBufferEncoderInfoErrorKey;

/* --------------------------------------------------------------------------- >>metal4 -- */

@class SoftMetalCommandBuffer4;

@interface SoftMetalQueue4 : SoftMetalAnyQueue {
@public
    id feedback_queue; /* a dispatch queue, not retained; nil: the completion thread */
    void *last_signalled; /* an event, not retained */
}
@end

@interface SoftMetalAllocator : SoftMetalObject {
@public
    SoftMetalDevice *device; /* +1 */
    SoftMetalCommandBuffer4 *recorder; /* not retained; nil: no buffer records into it */
    unsigned long generation;          /* resets so far */
}
@end

typedef enum sm_state4 { SM_STATE4_NEW, SM_STATE4_RECORDING, SM_STATE4_ENDED, SM_STATE4_COMMITTED } sm_state4;

@interface SoftMetalCommandBuffer4 : SoftMetalObject {
@public
    SoftMetalDevice *device; /* +1 */
    NSString *label;
    sm_state4 state;
    SoftMetalAllocator *allocator; /* of the recording, not retained */
    unsigned long generation;      /* the allocator's, as the recording began */
    sm_recording recorded;         /* from begin to commit, which takes it */
    SoftMetalEncoder *encoder;     /* the active one, not retained */
    SoftMetalCommandBuffer *run;   /* +1; nil, or what the panel takes it for: softmetal_prepare_run */
}
@end

/* What a call of the panel is about: a command buffer, a run, or the run that was prepared for a Metal 4 buffer. */
SoftMetalCommandBuffer *sm_panel_argument(void *command_buffer, const char *what);

@interface SoftMetalArgumentTable : SoftMetalObject {
@public
    SoftMetalDevice *device; /* +1 */
    NSString *label;
    unsigned long count;
    uint64_t addresses[SM_BINDINGS]; /* 0: nothing is bound */
}
@end

@interface SoftMetalComputeEncoder4 : SoftMetalEncoder {
@public
    SoftMetalCommandBuffer4 *owner; /* not retained */
    SoftMetalPipeline *pipeline;    /* neither are these */
    SoftMetalArgumentTable *table;
}
@end

@interface MTL4CommandQueueDescriptor : SoftMetalObject {
@public
    NSString *label;
    id feedback_queue; /* not retained */
}
@end

@interface MTL4ArgumentTableDescriptor : SoftMetalObject {
@public
    NSString *label;
    unsigned long count;
}
@end

@interface MTL4CommitOptions : SoftMetalObject {
@public
    sm_blocks blocks;
    bool busy; /* atomic: a thread is in one of its methods, or in a commit with it */
}
@end

@interface SoftMetalFeedback : SoftMetalObject {
@public
    id error; /* +1 */
    double gpu_start, gpu_end;
}
@end

id sm_new_feedback(SoftMetalCommandBuffer *run);                /* +1 */
void sm_perform_operation(SoftMetalCommandBuffer *operation);   /* real clock: waits, where it is a wait */
/* Manual clock: ends every operation that stands first in its line and waits for nothing. Without any lock. */
void sm_advance_operations(void);
bool sm_wait_is_over(SoftMetalCommandBuffer *operation);        /* with the lock */
/* Real clock: hands the handlers to the feedback queue of the run. false: it has none. */
bool sm_dispatch_handlers(SoftMetalCommandBuffer *buffer);

/* ------------------------------------------------------------------------- >>dispatch -- */

@interface SoftMetalDispatchQueue : SoftMetalObject {
@public
    struct sm_work *first, *last; /* waiting, behind the one that runs or is about to */
    unsigned qos_class; /* as <sys/qos.h> numbers them; 0: none */
    bool global;
    bool busy;        /* one of its functions runs, or is about to */
    bool rests;       /* ... and has waited for a command buffer */
    bool released;    /* the last reference is gone */
    unsigned pending; /* functions that have yet to run: they keep the queue alive */
}
@end

/* Queues are softmetal's, or the system's where there is a libdispatch behind softmetal's. `what` names the caller. */
void sm_dispatch(id queue, void *context, void (*function)(void *), const char *what); /* not counted as the program's */
id sm_dispatch_retain(id object, const char *what);
void sm_dispatch_release(id object);
bool sm_may_be_concurrent(id queue, const char *what);

/* What the program calls, see softmetal_libdispatch.m */
void *sm_dispatch_attribute_of(void *attribute, unsigned qos_class, int relative_priority);
id sm_dispatch_queue_new(void *attribute);
id sm_dispatch_global_queue(intptr_t identifier, uintptr_t flags);
void sm_dispatch_async(id queue, void *context, void (*function)(void *));
void sm_dispatch_after(uint64_t when, id queue, void *context, void (*function)(void *));
uint64_t sm_dispatch_time(uint64_t when, int64_t delta);

bool sm_dispatch_settled(void);  /* nothing dispatched is left to run */
bool sm_in_dispatched(void);     /* is the thread in a dispatched function? */
void sm_dispatch_rest(int more); /* so many functions do nothing but wait for a command buffer, or no longer */
bool sm_drop_timers(void);       /* were there any? */
void sm_dispatch_reset(void);

/* ---------------------------------------------------------------------------- >>panel -- */

/* Counts what begins anywhere: a look at many things is good when it has not changed meanwhile. */
void sm_note_activity(void);
softmetal_quirks sm_quirks(void);
bool sm_quirk_at(size_t offset); /* one of them, for places that are passed often */
#define SM_QUIRK(name) sm_quirk_at(offsetof(softmetal_quirks, name))
void sm_timing(softmetal_timing *out);
softmetal_chaos sm_chaos(void);
softmetal_clock sm_clock(void);
/* Whether this creation call must answer nil; counts it. */
bool sm_creation_fails(void);
bool sm_dispatch_queue_fails(void);
bool sm_take_failure(sm_fault *fault); /* softmetal_fail_next_as */

void sm_registry_add(sm_engine *engine);
void sm_registry_remove(sm_engine *engine);
/* Calls `visit` with every engine and its lock; stops when it answers false. */
bool sm_for_each_engine(bool (*visit)(sm_engine *engine, void *user), void *user);

typedef struct sm_kernel_entry { softmetal_kernel fn; void *user; uint64_t duration; } sm_kernel_entry;
sm_kernel_entry sm_find_kernel(const char *name);
void sm_library_reset(void);

/* -------------------------------------------------------------------------- >>message -- */

bool sm_hidden(SEL selector);
/* The classes that have Metal's names are softmetal's: aborts where another library has brought one in. */
void sm_require_own_classes(void);
/* Whether the running method was entered through objc_msgSend; asked once, first thing in it. */
bool sm_arrived(id object, SEL selector);
/* First thing in what a program calls. */
#define SM_BEFORE(name)                                                                                 \
    do {                                                                                                \
        void (*before)(const char *) = __atomic_load_n(&softmetal_before, __ATOMIC_RELAXED);            \
        if (before) before(name);                                                                       \
    } while (0)
void sm_hook_after(id object, const char *selector);
void sm_message_reset(void);

#endif
