/* softmetal_event.m - events, shared events, listeners */
#import "softmetal_internal.h"
#include <stdlib.h>

typedef struct sm_postbox sm_postbox;

/* A block to run when an event reaches a value. */
struct sm_notification {
    sm_notification *next;
    SoftMetalEvent *event;            /* +1 from the moment it is due */
    MTLSharedEventListener *listener; /* +1 */
    sm_block block;
    uint64_t value, due;
};

/* What a listener shares with its thread; outlives the listener for as long as the thread runs. */
struct sm_postbox {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    sm_notification *first, *last;
    bool started, dying;
    long refs;
};

static long due_notifications;

bool sm_notifications_settled(void) { return __atomic_load_n(&due_notifications, __ATOMIC_ACQUIRE) == 0; }

/* -------------------------------------------------------------------------- listeners -- */

static void postbox_release(sm_postbox *box)
{
    if (__atomic_fetch_sub(&box->refs, 1, __ATOMIC_ACQ_REL) != 1) return;
    pthread_cond_destroy(&box->changed);
    pthread_mutex_destroy(&box->lock);
    free(box);
}

typedef void (^event_block)(id event, uint64_t value);

static void free_notification(sm_notification *note)
{
    sm_block_drop(&note->block);
    [note->event release];
    [note->listener release];
    free(note);
}

static void deliver(void *argument)
{
    sm_notification *note = argument;
    for (int times = SM_QUIRK(doubled_listeners) ? 2 : 1; times > 0; times--) {
        sm_block_check(&note->block);
        void *pool = sm_pool_push();
        ((event_block)note->block.block)(note->event, sm_event_value(note->event));
        sm_pool_close(pool);
    }
    free_notification(note);
    __atomic_fetch_sub(&due_notifications, 1, __ATOMIC_RELEASE);
}

/* Where the block runs: on the listener's dispatch queue if it has one. */
static void hand_over(sm_notification *note)
{
    if (note->listener->dispatch_queue)
        sm_dispatch(note->listener->dispatch_queue, note, deliver, "the dispatch queue of a listener");
    else
        deliver(note);
}

static sm_notification *take_first(sm_postbox *box)
{
    sm_notification *note = box->first;
    box->first = note->next;
    if (!box->first) box->last = NULL;
    return note;
}

static void *listener_main(void *argument)
{
    sm_postbox *box = argument;
    pthread_mutex_lock(&box->lock);
    for (;;) {
        sm_notification *note = box->first;
        if (note && note->due > sm_now()) {
            sm_doze(&box->changed, &box->lock, note->due);
        } else if (note) {
            take_first(box);
            pthread_mutex_unlock(&box->lock);
            hand_over(note); /* may drop the last reference to the listener */
            pthread_mutex_lock(&box->lock);
        } else if (box->dying) {
            break;
        } else {
            pthread_cond_wait(&box->changed, &box->lock);
        }
    }
    pthread_mutex_unlock(&box->lock);
    postbox_release(box);
    return NULL;
}

static void post(sm_postbox *box, sm_notification *note)
{
    pthread_mutex_lock(&box->lock);
    note->next = NULL;
    if (box->last)
        box->last->next = note;
    else
        box->first = note;
    box->last = note;
    if (!box->started) {
        box->started = true;
        __atomic_fetch_add(&box->refs, 1, __ATOMIC_RELAXED);
        sm_thread_start(listener_main, box);
    }
    pthread_cond_signal(&box->changed);
    pthread_mutex_unlock(&box->lock);
}

@implementation MTLSharedEventListener

+ (sm_kind)softmetalKind { return SM_LISTENER; }

- (id)init
{
    if (!(self = [super init])) return nil;
    postbox = calloc(1, sizeof *postbox);
    SM_REQUIRE(postbox, INTERNAL, "out of memory");
    pthread_mutex_init(&postbox->lock, NULL);
    sm_cond_init(&postbox->changed);
    postbox->refs = 1;
    if (!sm_creation_fails()) return self;
    [self release];
    return nil;
}

- (id)initWithDispatchQueue:(id)queue
{
    if (!(self = [self init])) return nil;
    dispatch_queue = sm_dispatch_retain(queue, "initWithDispatchQueue:");
    return self;
}

- (void)dealloc
{
    pthread_mutex_lock(&postbox->lock);
    postbox->dying = true;
    pthread_cond_signal(&postbox->changed);
    pthread_mutex_unlock(&postbox->lock);
    postbox_release(postbox);
    if (dispatch_queue) sm_dispatch_release(dispatch_queue);
    [super dealloc];
}

@end

/* ----------------------------------------------------------------------------- events -- */

uint64_t sm_event_value(SoftMetalEvent *event) { return __atomic_load_n(&event->value, __ATOMIC_ACQUIRE); }

/* Unlinks what `value` makes due. With the event's lock. */
static sm_notification *take_due(SoftMetalEvent *event, uint64_t value)
{
    sm_notification *due = NULL, **due_end = &due;
    sm_notification **link = &event->notifications;
    while (*link) {
        sm_notification *note = *link;
        if (note->value > value) {
            link = &note->next;
            continue;
        }
        *link = note->next;
        note->next = NULL;
        *due_end = note;
        due_end = &note->next;
    }
    return due;
}

static void post_all(SoftMetalEvent *event, sm_notification *due)
{
    softmetal_timing timing;
    sm_timing(&timing);
    while (due) {
        sm_notification *next = due->next;
        due->event = [event retain];
        due->due = sm_after(sm_now(), sm_draw(timing.event_listener));
        __atomic_fetch_add(&due_notifications, 1, __ATOMIC_RELAXED);
        sm_note_activity();
        if (timing.event_listener.max_ns == 0 && due->listener->dispatch_queue)
            hand_over(due);
        else
            post(due->listener->postbox, due);
        due = next;
    }
}

static void raise_event(SoftMetalEvent *event, uint64_t value, bool by_device)
{
    softmetal_quirks quirks = sm_quirks();
    bool heard = !quirks.deaf_to_everything && (by_device || !quirks.deaf_listeners);
    pthread_mutex_lock(&event->lock);
    sm_notification *due = NULL;
    if (value > event->value || (quirks.falling_events && value < event->value)) {
        __atomic_store_n(&event->value, value, __ATOMIC_RELEASE);
        if (heard) due = take_due(event, value);
        pthread_cond_broadcast(&event->changed);
    }
    pthread_mutex_unlock(&event->lock);
    post_all(event, due);
    sm_advance_operations();
}

void sm_event_raise(SoftMetalEvent *event, uint64_t value) { raise_event(event, value, true); }

void softmetal_tell_listeners(void *shared_event)
{
    sm_check_argument((id)shared_event, [SoftMetalEvent class], "softmetal_tell_listeners");
    SoftMetalEvent *event = shared_event;
    pthread_mutex_lock(&event->lock);
    sm_notification *due = take_due(event, event->value);
    pthread_mutex_unlock(&event->lock);
    post_all(event, due);
}

/* Device waits look at the removal of the device, and at the watchdog, this often. */
#define DEVICE_WAIT_SLICE SM_MILLISECOND

sm_wait_result sm_event_device_wait(SoftMetalEvent *event, uint64_t value, const unsigned *removed)
{
    uint64_t start = sm_now();
    sm_wait_result result = SM_WAIT_REACHED;
    pthread_mutex_lock(&event->lock);
    while (event->value < value) {
        softmetal_timing timing;
        sm_timing(&timing);
        uint64_t now = sm_now(), end = sm_after(start, timing.watchdog_ns);
        if (__atomic_load_n(removed, __ATOMIC_ACQUIRE))
            result = SM_WAIT_REMOVED;
        else if (now >= end)
            result = SM_WAIT_TIMEOUT;
        if (result != SM_WAIT_REACHED) break;
        uint64_t slice = now + DEVICE_WAIT_SLICE;
        sm_cond_wait_until(&event->changed, &event->lock, slice < end ? slice : end);
    }
    pthread_mutex_unlock(&event->lock);
    return result;
}

@implementation SoftMetalEvent

+ (sm_kind)softmetalKind { return SM_EVENT; }

- (id)init
{
    if (!(self = [super init])) return nil;
    pthread_mutex_init(&lock, NULL);
    sm_cond_init(&changed);
    return self;
}

- (id)device { return device; }

- (NSString *)label { return sm_label_under(&lock, &label); }
- (void)setLabel:(NSString *)text { sm_set_label_under(&lock, &label, text); }

/* Listeners of an event that goes away never run; their blocks are dropped. */
- (void)dealloc
{
    while (notifications) {
        sm_notification *note = notifications;
        notifications = note->next;
        free_notification(note);
    }
    pthread_cond_destroy(&changed);
    pthread_mutex_destroy(&lock);
    [label release];
    [device release];
    [super dealloc];
}

@end

@implementation SoftMetalSharedEvent

+ (sm_kind)softmetalKind { return SM_SHARED_EVENT; }

- (uint64_t)signaledValue
{
    bool sent = sm_arrived(self, _cmd);
    uint64_t now = sm_event_value(self);
    if (sent) sm_hook_after(self, "signaledValue");
    return now;
}

- (void)setSignaledValue:(uint64_t)wanted
{
    bool sent = sm_arrived(self, _cmd);
    if (sent) [self retain]; /* the hook still names it */
    raise_event(self, wanted, false);
    if (sent) {
        sm_hook_after(self, "setSignaledValue:");
        [self release];
    }
}

- (void)notifyListener:(id)listener atValue:(uint64_t)wanted block:(id)block
{
    sm_check_argument(listener, [MTLSharedEventListener class], "listener");
    SM_REQUIRE(block, NIL_ARGUMENT, "notifyListener:atValue:block:");
    sm_notification *note = calloc(1, sizeof *note);
    SM_REQUIRE(note, INTERNAL, "out of memory");
    note->listener = [listener retain];
    note->value = wanted;
    note->block = sm_block_take(block);
    pthread_mutex_lock(&lock);
    bool due = value >= wanted && !SM_QUIRK(deaf_to_the_past) && !SM_QUIRK(deaf_to_everything);
    if (!due) {
        sm_notification **end = &notifications; /* at the end: equal values run in order */
        unsigned waiting = 0;
        for (; *end; waiting++) end = &(*end)->next;
        if (waiting >= 100 && SM_QUIRK(refused_listeners)) abort(); /* in place of an NSException without a handler */
        *end = note;
    }
    pthread_mutex_unlock(&lock);
    if (due) post_all(self, note);
}

- (BOOL)waitUntilSignaledValue:(uint64_t)wanted timeoutMS:(uint64_t)milliseconds
{
    uint64_t span = milliseconds > SM_FOREVER / SM_MILLISECOND ? SM_FOREVER : milliseconds * SM_MILLISECOND;
    uint64_t deadline = sm_after(sm_now(), span);
    pthread_mutex_lock(&lock);
    while (value < wanted && sm_now() < deadline) sm_cond_wait_until(&changed, &lock, deadline);
    BOOL reached = value >= wanted;
    pthread_mutex_unlock(&lock);
    return reached;
}

@end
