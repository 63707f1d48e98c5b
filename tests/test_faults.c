/* test_faults.c - one scenario that uses every chapter, with something wrong in it each time: an allocation, a creation
   of Metal's, the device, the handlers, the listeners, the process

   Every answer is a documented one, nothing is lost, and afterwards the same objects work.

   SEED    of the faults that come together, and of those that come in pairs; default 29. Each round tells its own
   STRESS  factor for the number of rounds, and of pairs; default 1
   FAULTS  SEED:NUMBER of a pair: it runs alone. A pair that goes wrong tells its own

   The implementation is compiled in this program: the thread that lets objects go sleeps by no clock of the scenario's,
   and shows when it can only wait.

   It also runs on queues of Metal 4. */
#include <errno.h>
#include <pthread.h>
#include <time.h>

static long looks; /* relaxed: they order nothing */

/* The hooks of the scenario's waits sleep elsewhere. */
static int sleep_a_moment(pthread_cond_t *wake, pthread_mutex_t *mutex, const struct timespec *at)
{
    const struct timespec moment = {0, 20000};
    (void)wake;
    (void)at;
    __atomic_fetch_add(&looks, 1, __ATOMIC_RELAXED);
    pthread_mutex_unlock(mutex);
    nanosleep(&moment, NULL);
    pthread_mutex_lock(mutex);
    return ETIMEDOUT;
}

#define GPUSYNC_IMPLEMENTATION
#define pthread_cond_timedwait sleep_a_moment
#define pthread_cond_timedwait_relative_np sleep_a_moment
#include "clock.h"
#include "probe.h"
#include "stage.h"
#undef pthread_cond_timedwait
#undef pthread_cond_timedwait_relative_np
#undef clock_gettime
#undef clock_gettime_nsec_np
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>

void *dispatch_queue_create(const char *label, void *attribute);
void dispatch_release(void *object);

/* -- the scenario -----------------------------------------------------------------------------------

   It runs on one thread and on the manual clock, for any time takes none: the park hook is where the device works and
   where time passes. Each call may be refused as its documentation says. Then what needs it is left out; or, where
   what fails fails once, the call is made again and must be OK. */

enum {
    MADE,
    GIVEN,
    STICKY,  /* failures stick */
    LETS_GO, /* a callback of its own destroys it */
    FIRST_EXTRA,
    EXTRA = 15,
    QUEUES = FIRST_EXTRA + EXTRA
};                        /* a wait for over 16 queues needs memory */
#define FEW 12            /* command buffers */
#define MANY 270          /* so that the ring grows */
#define MORE 17           /* command buffers, open at once or in a submission: their tables need memory */
#define MOST_STEPS 400    /* calls */
#define LATE MS(300)      /* so late that gpusync takes a handler for a lost one */
#define LIMIT SECONDS(30) /* of the scenario's own time */
static const uint64_t a_moment = MS(1), the_limit = LIMIT;
static const gpusync_spin near_spin = {4, 4, 1000, true};

enum { METAL, ALLOCATOR, C_LIBRARY, NOTHING, SEVERAL }; /* whose creation fails */
enum { ONCE_AND_AGAIN, ONCE, FOR_GOOD, HOW_OFTEN };
/* What begins before a call. */
enum {
    LOSE_DEVICE,
    LOSE_HANDLERS,  /* of all that is committed from then on; with Metal 4 such a ticket never ends */
    GO_DEAF,        /* listeners are not told */
    DELAY_HANDLERS, /* they run a while after the device has had nothing else to do, the newest first */
    STATUS_LAST,    /* the status turns when the handlers have run; Metal 4 has none */
    FAIL_WORK,      /* the next command buffer to which the device comes fails */
    HANG_WORK,      /* it does not end, and the driver ends it late */
    MISHAPS
};

/* The second of one kind is for the faults that come in pairs. */
typedef struct fault {
    long number; /* which one, counted from 1; 0: none */
    bool lasts;  /* all later ones fail, too */
} fault;

/* What is promised to come once: a callback, or the release of an object. */
typedef struct due {
    bool promised, is_release;
    long calls;
} due;

typedef struct scenario {
    memory_log memory;
    gpusync_allocator allocator;
    gpusync_hooks hooks;
    gpusync_device *device;
    gpusync_queue *q[QUEUES];
    void *metal[QUEUES]; /* +1, also when the queue is gone */
    void *metal_device;  /* +1 */
    void *event;         /* +1, under `foreign` */
    gpusync_timeline *a, *b, *c, *foreign;
    gpusync_timeline *doomed; /* of others, too: the one that fails */
    pthread_t thread;
    void *stuck;      /* a command buffer with which the device does not end */
    void *strange;    /* a command buffer of a queue that a warm-up has made */
    bool elsewhere;   /* another thread has work for the device as well */
    unsigned in_vain; /* parks since anything moved */

    int source, often;
    long fault;               /* which one, unless there are several */
    fault faults[NOTHING][2]; /* with SEVERAL: of each kind */
    fault armed[2];           /* of the allocator, counted from `armed_at` */
    long allocations, armed_at;
    long asked[NOTHING], asked_late[NOTHING]; /* how many of each kind were asked for, up to the tear-down and in it */
    bool wide;                                /* with all that takes memory for its number alone */
    long (*log)[NOTHING];                     /* of each call: how many of each kind were asked for before; or NULL */
    bool forgets;                             /* spare memory of the C library, which would hide that more is needed */
    gpusync_result last;                      /* of the last call */
    long refusals;
    bool manual_callbacks, own_queue; /* where callbacks run; else on gpusync's queue */
    bool grows;
    bool later;       /* objects are destroyed later, and the device before them */
    long steps;       /* calls */
    long asked_at;    /* ... before all is asked for the end */
    long at[MISHAPS]; /* the call before which it begins; 0: never */
    bool too_late[MISHAPS];
    unsigned reason;  /* of FAIL_WORK */
    bool lost, removed, handlers_lost, handlers_late;
    bool fails_next, hangs_next, upset; /* upset: other work has failed than that of the scenario, or may have */
    bool has_hung;                      /* ... and has ended in an order of its own */
    uint64_t late_until;                /* ... for the handlers that are late */
    void *hung;                         /* a command buffer, or run; borrowed */

    struct sent {
        gpusync_queue **queue;
        gpusync_ticket ticket;
    } sent[2 * MANY];
    unsigned sent_count;
    due dues[140], *due; /* the next one */
    due *owner, *goes;   /* of the queue LETS_GO: the callback that destroys it, and that it is gone */
    uint64_t failed;     /* that shall have failed */
    long traced, logged, notified;
    uint64_t strangers; /* that were committed behind the scenario's back, or by what is gone */
} scenario;

static void *count_and_allocate(void *user, size_t size, size_t alignment)
{
    scenario *s = (scenario *)user;
    long number = COUNT(&s->allocations) + 1 - GET(&s->armed_at), at;
    int i;
    for (i = 0; i < 2; i++) {
        at = GET(&s->armed[i].number);
        if (at && (number == at || (number > at && GET(&s->armed[i].lasts)))) return NULL;
    }
    return memory_allocate(&s->memory, size, alignment);
}

static void release_counted(void *user, void *memory, size_t size)
{
    memory_release(&((scenario *)user)->memory, memory, size);
}

/* Counted from now on. */
static void arm(scenario *s, fault faults[NOTHING][2])
{
    int i;
    softmetal_fail_creation((unsigned)faults[METAL][0].number, faults[METAL][0].lasts);
    softmetal_fail_creation_too((unsigned)faults[METAL][1].number, faults[METAL][1].lasts);
    for (i = 0; i < 2; i++) {
        PUT(&s->armed[i].number, 0);
        PUT(&s->armed[i].lasts, faults[ALLOCATOR][i].lasts);
    }
    PUT(&s->armed_at, GET(&s->allocations));
    for (i = 0; i < 2; i++) PUT(&s->armed[i].number, faults[ALLOCATOR][i].number);
    probe_memory.fail_after = faults[C_LIBRARY][0].lasts;
    PUT(&probe_memory.fail_at, faults[C_LIBRARY][0].number);
}

/* The k-th; 0: none. */
static void set_fault(scenario *s, long k)
{
    fault faults[NOTHING][2];
    memset(faults, 0, sizeof faults);
    if (s->source < NOTHING) faults[s->source][0] = (fault){k, s->often == FOR_GOOD};
    arm(s, faults);
}

/* -- the device ------------------------------------------------------------------------------------- */

/* A command buffer is over for the GPU. */
static void end_work(scenario *s, void *buffer)
{
    if (s->handlers_late) softmetal_complete(buffer);
    else softmetal_finish(buffer);
    s->late_until = GET(&clock_now) + LATE;
}

/* The newest handlers that are late. */
static bool deliver(scenario *s)
{
    softmetal_due next = SOFTMETAL_NOTHING_DUE;
    unsigned k;
    int i;
    for (i = 0; i < QUEUES; i++) {
        void *buffer;
        for (k = 0; s->metal[i] && (buffer = softmetal_due_at(s->metal[i], k, &next)) != NULL; k++) {
            if (next != SOFTMETAL_HANDLERS_DUE) continue;
            softmetal_finish(buffer);
            return true;
        }
    }
    return false;
}

/* All that it can end now. */
static bool work(scenario *s)
{
    void *strange = __atomic_exchange_n(&s->strange, NULL, __ATOMIC_SEQ_CST);
    bool any = strange != NULL, again = true;
    int i;
    if (strange) softmetal_finish(strange);
    while (again) {
        again = false;
        for (i = 0; i < QUEUES; i++) {
            void *buffer = s->metal[i] ? softmetal_first_in_line(s->metal[i]) : NULL;
            softmetal_due next;
            if (!buffer || buffer == s->hung || buffer == s->stuck ||
                (s->stuck && metal4_run() && buffer == softmetal_run_of(s->stuck)))
                continue;
            next = softmetal_what_is_due(buffer);
            if (next != SOFTMETAL_COMPLETE_DUE && next != SOFTMETAL_FAULT_DUE) continue;
            if (s->hangs_next) {
                s->hangs_next = false;
                s->hung = buffer;
                continue;
            }
            if (s->fails_next && next != SOFTMETAL_FAULT_DUE) {
                s->fails_next = false;
                softmetal_fail_as(buffer, s->reason, NULL);
                s->lost = s->lost || s->reason == SOFTMETAL_SUBMISSIONS_IGNORED;
            }
            end_work(s, buffer);
            any = again = true;
        }
    }
    return any || (s->handlers_late && GET(&clock_now) >= s->late_until && deliver(s));
}

static void find_strange(void *user, softmetal_phase phase, void *object, const char *selector)
{
    scenario *s = (scenario *)user;
    void *queue;
    int i;
    if (phase != SOFTMETAL_AFTER || !GET(&s->elsewhere) || strcmp(selector, "commit") != 0) return;
    queue = metal_get(object, "commandQueue");
    for (i = 0; i < QUEUES; i++)
        if (s->metal[i] == queue) return;
    COUNT(&s->strangers);
    PUT(&s->strange, object);
}

static void pass_time(void)
{
    PUT(&clock_now, GET(&clock_now) + softmetal_next_timer());
    softmetal_fire_timer();
}

/* Listeners and what was dispatched. The thread that lets objects go may have to wait, for work or for a callback: then
   it looks in vain, while all else has time enough. */
static void come_to_rest(void)
{
    long before = __atomic_load_n(&looks, __ATOMIC_RELAXED);
    struct timespec now;
    time_t limit;
    clock_gettime(CLOCK_MONOTONIC, &now);
    for (limit = now.tv_sec + 20; !softmetal_settle_listeners(0); clock_gettime(CLOCK_MONOTONIC, &now)) {
        if (__atomic_load_n(&looks, __ATOMIC_RELAXED) > before + 5) return;
        must(now.tv_sec < limit, "what was dispatched does not run");
        sched_yield();
    }
}

/* ... and what comes of that, with the callbacks. Where no handler or listener tells, timers look: a few times are
   enough. */
static void settle_all(scenario *s)
{
    unsigned times = 0;
    size_t n = 0;
    bool more;
    do {
        come_to_rest();
        if (s->manual_callbacks && s->device) assert_ok(gpusync_dispatch(s->device, SIZE_MAX, &n));
        more = work(s) || n;
        if (!more && softmetal_timers() && times++ < 10) {
            pass_time();
            more = true;
        }
        more = more || (s->handlers_late && deliver(s));
    } while (more);
}

/* The driver ends what hangs, and no more work hangs. */
static void end_hang(scenario *s)
{
    s->hangs_next = false;
    s->too_late[HANG_WORK] = true;
    if (!s->hung) return;
    softmetal_fail_as(s->hung, SOFTMETAL_HANG, NULL);
    s->hung = NULL;
    settle_all(s);
}

static void yield_here(void *user)
{
    (void)user;
    sched_yield();
}

/* Time passes here alone, on the thread of the scenario: until the next timer, or until the deadline. */
static void rest(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    scenario *s = (scenario *)user;
    uint64_t now, timer;
    (void)waiter;
    sched_yield();
    if (!pthread_equal(pthread_self(), s->thread)) return;
    if (work(s) || s->elsewhere) {
        if (!s->elsewhere) s->in_vain = 0;
        return;
    }
    come_to_rest();
    if (work(s)) return;
    must(++s->in_vain < 1000, "a wait does not end");
    now = GET(&clock_now);
    if (deadline_ns <= now) return;
    timer = softmetal_timers() ? softmetal_next_timer() : UINT64_MAX;
    if (timer == UINT64_MAX && s->handlers_late && deliver(s)) return;
    must(timer != UINT64_MAX || deadline_ns != GPUSYNC_FOREVER, "a wait sleeps for good");
    if (timer < deadline_ns - now) {
        pass_time();
    } else {
        PUT(&clock_now, deadline_ns);
        if (s->upset || s->handlers_lost) s->in_vain = 0; /* the wait has had its time */
    }
}

static void wake(void *user, gpusync_waiter *waiter)
{
    (void)user;
    (void)waiter;
}

/* -- calls ------------------------------------------------------------------------------------------ */

#define NO_MEMORY GPUSYNC_ERROR_OUT_OF_MEMORY
#define NIL GPUSYNC_ERROR_METAL_NIL
#define NO_LISTENER GPUSYNC_ERROR_UNSUPPORTED
#define FAILED GPUSYNC_ERROR_EXECUTION
#define ANSWERS(...) ((const gpusync_result[]){__VA_ARGS__, GPUSYNC_OK})

static void begin(scenario *s, int mishap)
{
    softmetal_quirks quirks;
    softmetal_get_quirks(&quirks);
    switch (mishap) {
    case LOSE_DEVICE:
        if (metal4_run() && s->lost) { /* it was locked out, and nothing would tell that signals do not come any more */
            s->too_late[LOSE_DEVICE] = true;
            break;
        }
        softmetal_remove_device(s->metal_device);
        s->lost = s->removed = true;
        s->hung = NULL; /* it ends as all does */
        s->hangs_next = false;
        s->too_late[HANG_WORK] = true;
        break;
    case LOSE_HANDLERS: s->handlers_lost = quirks.lost_handlers = true; break;
    case GO_DEAF: quirks.deaf_listeners = true; break;
    case DELAY_HANDLERS: s->handlers_late = true; break;
    case STATUS_LAST: quirks.status_after_handlers = true; break;
    case FAIL_WORK: s->fails_next = s->upset = true; break;
    default: s->hangs_next = s->upset = s->has_hung = true; break;
    }
    softmetal_set_quirks(&quirks);
}

static void count_asked(const scenario *s, long asked[NOTHING])
{
    asked[METAL] = (long)softmetal_creations();
    asked[ALLOCATOR] = GET(&s->allocations);
    asked[C_LIBRARY] = GET(&probe_memory.taken);
}

/* Every call is a step. */
static void step(scenario *s)
{
    int i;
    s->steps++;
    if (s->log) {
        must(s->steps < MOST_STEPS - 1, "too many calls");
        count_asked(s, s->log[s->steps]);
        for (i = 0; i < NOTHING; i++) s->log[s->steps][i] += s->asked[i]; /* in the tear-down, which counts anew */
    }
    for (i = 0; i < MISHAPS; i++)
        if (s->at[i] == s->steps && !s->too_late[i]) begin(s, i);
}

static bool is_refusal(gpusync_result result)
{
    return result == NO_MEMORY || result == NIL || result == NO_LISTENER || result == GPUSYNC_ERROR_NO_DEVICE;
}

static bool is_any_of(const char *call, const char *const *names)
{
    for (; *names; names++)
        if (strstr(call, *names)) return true;
    return false;
}

/* What may be answered besides when other work fails or hangs: the header documents it for these calls. */
static bool is_of_upset(const scenario *s, gpusync_result got, const char *call)
{
    static const char *const of_work[] = {"_poll",          "_wait",         "_timeline_query",  "_timeline_signal",
                                          "_timeline_fail", "_encode_signal", "_warmup_pipeline", "either_submit",
                                          "either_commit",  NULL},
                             *const limited[] = {"_wait", "either_buffer", "either_submit", "_warmup_pipeline", NULL},
                             *const polls[] = {"_poll", NULL};
    if (!s->upset) return false;
    if (got == GPUSYNC_TIMEOUT) return s->has_hung && is_any_of(call, limited);
    if (got == GPUSYNC_NOT_READY) return s->has_hung && is_any_of(call, polls);
    if (got == GPUSYNC_ERROR_CANCELLED || got == GPUSYNC_ERROR_COMPILE) /* as what it waited for */
        return s->has_hung && is_any_of(call, of_work);
    return got == FAILED && is_any_of(call, of_work);
}

/* Is it OK? If not, it must be one of the documented results; when the call is made again, and no refusal. Once the
   device is lost, work has failed besides. */
static bool one_of(scenario *s, gpusync_result got, bool again, const gpusync_result *documented, const char *call,
                   int line)
{
    s->last = got;
    if (got == GPUSYNC_OK) return true;
    for (; *documented != GPUSYNC_OK; documented++) {
        if (got != *documented || (again && is_refusal(got) && s->source != SEVERAL)) continue;
        if (is_refusal(got)) s->refusals++;
        return false;
    }
    if (s->lost && (got == GPUSYNC_ERROR_DEVICE_LOST || got == FAILED)) return false;
    if (is_of_upset(s, got, call)) return false;
    /* how it failed takes memory to keep */
    if ((s->lost || s->upset) && s->source == SEVERAL && got == GPUSYNC_ERROR_RESULT_UNKNOWN) return false;
    print_error("%s: %d (%s) is not documented\n", call, got, gpusync_result_string(got));
    _fail(__FILE__, line);
    return false;
}

/* After a refusal nothing has changed. So where it came from a fault that is over, the same call is OK. */
static bool once_more(scenario *s) { return s->often == ONCE_AND_AGAIN && !s->lost && is_refusal(s->last); }

#define WELL(call, ...)                                                          \
    (step(s), one_of(s, (call), false, ANSWERS(__VA_ARGS__), #call, __LINE__) || \
                  (once_more(s) && one_of(s, (call), true, ANSWERS(__VA_ARGS__), #call " once more", __LINE__)))
/* For answers that the scenario expects and that are no refusal. */
#define SAYS(expected, call, ...)                                               \
    (step(s),                                                                   \
     says(s, expected, (call), false, ANSWERS(__VA_ARGS__), #call, __LINE__) || \
         (once_more(s) && says(s, expected, (call), true, ANSWERS(__VA_ARGS__), #call " once more", __LINE__)))
static bool says(scenario *s, gpusync_result expected, gpusync_result got, bool again, const gpusync_result *documented,
                 const char *call, int line)
{
    s->last = got;
    if (got == expected) return true;
    if (got == GPUSYNC_OK && !s->lost) assert_result_at(got, expected, call, __FILE__, line);
    one_of(s, got, again, documented, call, line);
    return false;
}

static due *next_due(scenario *s)
{
    must(s->due < s->dues + LENGTH(s->dues), "too many callbacks");
    return s->due++;
}

static void tell(void *user, gpusync_result result, const gpusync_error *error)
{
    due *d = (due *)user;
    must((error != NULL) == (result != GPUSYNC_OK), "an error belongs to a failure");
    must(!error || error->result == result, "the error is another one");
    COUNT(&d->calls);
}

static void let_go(void *user) { COUNT(&((due *)user)->calls); }

/* Documented for a timeline that others signal. */
static gpusync_result of_others(const scenario *s, gpusync_point point, gpusync_result result)
{
    bool others = point.timeline && (point.timeline == s->foreign || point.timeline == s->doomed);
    return others ? result : NO_MEMORY;
}

/* A callback, or an object to be released. */
static void on(scenario *s, gpusync_point point)
{
    due *d = next_due(s);
    if (point.timeline || point.queue)
        d->promised = WELL(gpusync_on_done(point, tell, d), NO_MEMORY, of_others(s, point, NO_LISTENER));
}

static void release_with(scenario *s, gpusync_point point)
{
    due *d = next_due(s);
    void *object = softmetal_new_witness(let_go, d);
    d->is_release = d->promised = true; /* by either of us */
    if (point.timeline || point.queue)
        (void)WELL(gpusync_release_after(point, object), NO_MEMORY, of_others(s, point, NO_LISTENER));
    metal_release(object);
}

static void sent(scenario *s, gpusync_queue **queue, gpusync_ticket ticket)
{
    must(s->sent_count < LENGTH(s->sent), "too many tickets");
    s->sent[s->sent_count++] = (struct sent){queue, ticket};
}

/* A command buffer to be recorded, or NULL. */
static void *fresh_with(scenario *s, gpusync_queue *queue, const gpusync_command_buffer_desc *desc)
{
    void *buffer = NULL;
    if (queue && !WELL(either_buffer(queue, desc, &buffer), NIL, NO_MEMORY)) assert_null(buffer);
    return buffer;
}

static void *fresh(scenario *s, gpusync_queue *queue, const char *label)
{
    return fresh_with(s, queue, &(gpusync_command_buffer_desc){.label = label});
}

/* Commit it, or give it up. */
static gpusync_ticket give(scenario *s, gpusync_queue **queue, void *buffer)
{
    gpusync_ticket ticket = 99;
    if (!buffer) return GPUSYNC_NO_TICKET;
    if (WELL(either_commit(*queue, buffer, &ticket), NO_MEMORY, metal4_run() ? NIL : NO_MEMORY)) {
        sent(s, queue, ticket);
        return ticket;
    }
    assert_int_equal(ticket, GPUSYNC_NO_TICKET);
    assert_ok(either_discard(*queue, buffer));
    return GPUSYNC_NO_TICKET;
}

static bool is_there(const gpusync_point *points, size_t count)
{
    size_t i;
    for (i = 0; i < count; i++)
        if (!points[i].timeline && (!points[i].queue || !points[i].ticket)) return false;
    return true;
}

/* Submit so many command buffers with it. Where that cannot be, the host signals what it was to signal: others wait. */
static gpusync_ticket send(scenario *s, gpusync_queue **queue, gpusync_submission submission, size_t count)
{
    gpusync_ticket ticket = GPUSYNC_NO_TICKET;
    void *buffers[MORE];
    due *d = next_due(s);
    size_t made = 0, i;
    if (metal4_run() && count == 0) count = 1;
    if (*queue && is_there(submission.waits, submission.wait_count) &&
        is_there(submission.signals, submission.signal_count)) {
        while (made < count && (buffers[made] = fresh(s, *queue, "work")) != NULL) made++;
        submission.command_buffers = buffers;
        submission.command_buffer_count = count;
        submission.on_complete = tell;
        submission.user = d;
        ticket = 99;
        if (made == count && WELL(either_submit(*queue, &submission, &ticket), NO_MEMORY, NIL,
                                  submission.flags & GPUSYNC_STRICT ? NO_LISTENER : NIL)) {
            d->promised = true;
            sent(s, queue, ticket);
            return ticket;
        }
        if (made == count) assert_int_equal(ticket, GPUSYNC_NO_TICKET);
        while (made > 0) assert_ok(either_discard(*queue, buffers[--made]));
    }
    for (i = 0; i < submission.signal_count; i++)
        if (submission.signals[i].timeline)
            (void)WELL(gpusync_timeline_signal(submission.signals[i].timeline, submission.signals[i].value),
                       GPUSYNC_ERROR_NOT_RISING);
    return GPUSYNC_NO_TICKET;
}
#define SEND(i, count, ...) send(s, &s->q[i], (gpusync_submission){__VA_ARGS__}, count)

/* -- its chapters ----------------------------------------------------------------------------------- */

static void trace(void *user, const gpusync_trace_event *event)
{
    (void)event;
    COUNT(&((scenario *)user)->traced);
}

static void notify(void *user) { COUNT(&((scenario *)user)->notified); }

/* Of a wait that timed out the program wants to know what it waited for. */
static void note_log(void *user, gpusync_log_level level, const char *text)
{
    scenario *s = (scenario *)user;
    char report[256];
    must(text[0] != 0, "a line without text");
    if (level == GPUSYNC_LOG_ERROR) COUNT(&s->logged);
    else if (strstr(text, "timed out")) must(gpusync_report(s->device, report, sizeof report) > 0, "an empty report");
}

static void make_queue(scenario *s, int i, const gpusync_queue_desc *desc)
{
    long live = s->memory.live;
    if (desc->metal_queue ? WELL(gpusync_queue_create(s->device, desc, &s->q[i]), NO_MEMORY)
                          : WELL(gpusync_queue_create(s->device, desc, &s->q[i]), NIL, NO_MEMORY)) {
        s->metal[i] = metal_retain(gpusync_queue_metal(s->q[i]));
        return;
    }
    assert_null(s->q[i]);
    assert_int_equal(s->memory.live, live);
}

/* Over a queue of Metal's that the program has made. */
static void make_queue_over(scenario *s, int i, gpusync_queue_desc desc)
{
    desc.metal_queue = metal4_run() ? metal4_queue_new(s->metal_device) : metal_queue_new(s->metal_device, 64);
    if (desc.metal_queue) make_queue(s, i, &desc);
    metal_release(desc.metal_queue);
}

static void make_timeline(scenario *s, gpusync_timeline **timeline, gpusync_timeline_desc desc)
{
    if (!WELL(gpusync_timeline_create(s->device, &desc, timeline), NIL, NO_MEMORY)) assert_null(*timeline);
}
#define MAKE_TIMELINE(timeline, ...) make_timeline(s, timeline, (gpusync_timeline_desc){__VA_ARGS__})

static void destroy_timeline(scenario *s, gpusync_timeline *timeline)
{
    due *gone;
    if (!s->later || !timeline) {
        assert_ok(gpusync_timeline_destroy(timeline));
        return;
    }
    gone = next_due(s);
    gone->promised = true;
    assert_ok(gpusync_timeline_destroy_later(timeline, let_go, gone));
}

static bool set_up(scenario *s)
{
    gpusync_device_desc device_desc;
    gpusync_queue_desc desc;
    void *own = NULL;
    bool made;
    int i;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&desc, 0, sizeof desc);
    s->allocator = (gpusync_allocator){count_and_allocate, release_counted, s};
    s->hooks = (gpusync_hooks){yield_here, rest, wake, s};
    device_desc.allocator = &s->allocator;
    device_desc.hooks = &s->hooks;
    device_desc.spin = &no_spin;
    device_desc.log = note_log;
    device_desc.log_user = s;
    device_desc.callback_mode = s->manual_callbacks ? GPUSYNC_CALLBACKS_MANUAL : GPUSYNC_CALLBACKS_QUEUED;
    device_desc.notify = notify;
    device_desc.notify_user = s;
    if (s->own_queue) device_desc.callback_queue = own = dispatch_queue_create("the program's", NULL);
    made = WELL(gpusync_device_create(&device_desc, &s->device), GPUSYNC_ERROR_NO_DEVICE, NO_MEMORY);
    if (own) dispatch_release(own);
    if (!made) {
        assert_null(s->device);
        assert_int_equal(s->memory.live, 0);
        return false;
    }
    s->metal_device = metal_retain(gpusync_device_metal(s->device));
    assert_ok(gpusync_set_trace(s->device, trace, s));
    desc.metal4 = metal4_run();
    desc.max_command_buffer_count = 1024;
    desc.label = "made";
    make_queue(s, MADE, &desc);
    memset(&desc, 0, sizeof desc);
    make_queue_over(s, GIVEN, desc);
    desc.metal4 = metal4_run();
    make_queue(s, LETS_GO, &desc);
    desc.sticky_failure = true;
    desc.error_log_count = 4;
    desc.spin = &near_spin;
    make_queue(s, STICKY, &desc);
    memset(&desc, 0, sizeof desc);
    desc.max_command_buffer_count = 2; /* Metal has room for more, as gpusync gives back that of a late handler */
    make_queue_over(s, FIRST_EXTRA, desc);
    desc.metal4 = metal4_run();
    for (i = FIRST_EXTRA + 1; s->wide && i < QUEUES; i++) make_queue(s, i, &desc);
    MAKE_TIMELINE(&s->a, .label = "a");
    MAKE_TIMELINE(&s->b, .label = "b");
    MAKE_TIMELINE(&s->c, .label = "c");
    s->event = metal_shared_event_new(s->metal_device);
    if (s->event) MAKE_TIMELINE(&s->foreign, .label = "foreign", .shared_event = s->event);
    return true;
}

/* Command buffers, behind one with which the device does not end; what can be asked and awaited meanwhile. */
static void commit_and_wait(scenario *s)
{
    gpusync_error error;
    gpusync_wait_options options = {.spin = &no_spin};
    gpusync_wait_options handlers = {.spin = &near_spin, .error = &error, .handlers = true};
    gpusync_command_buffer_desc desc;
    gpusync_queue *queue = s->q[MADE];
    gpusync_ticket ticket, first = 0, last = 0;
    gpusync_point points[20];
    void *buffer, *descriptor;
    size_t which;
    int i, count = s->grows ? MANY : FEW;
    if (!queue) return;
    descriptor = metal_get(metal_get(metal__class("MTLCommandBufferDescriptor"), "alloc"), "init");
    for (i = 0; i < count; i++) {
        if (i == FEW && s->source == ALLOCATOR) set_fault(s, 1); /* what is next is the larger ring */
        desc = (gpusync_command_buffer_desc){.label = i % 2 ? "labelled" : NULL,
                                             .timeout_ns = i == 1 ? &a_moment : NULL,
                                             .unretained_references = i == 2,
                                             .descriptor = i == 3 ? descriptor : NULL};
        buffer = fresh_with(s, queue, &desc);
        if (buffer && !first) s->stuck = metal_retain(buffer);
        if (buffer && i == 10) softmetal_fail(buffer, NULL, 2, "on purpose");
        ticket = give(s, &s->q[MADE], buffer);
        if (ticket && i == 10) s->failed++;
        if (buffer && !first && !ticket) {
            metal_release(s->stuck);
            s->stuck = NULL;
        }
        if (!first) first = ticket;
        if (ticket) last = ticket;
    }
    metal_release(descriptor);
    if (!first) return;
    for (i = 0; i < 20; i++) points[i] = after(queue, first + (unsigned)i < last ? first + (unsigned)i : last);
    for (i = 0; i < 12; i++) on(s, points[i]); /* more than have memory from the start */
    for (i = 0; i < 3; i++) release_with(s, points[i]);
    (void)SAYS(GPUSYNC_TIMEOUT, gpusync_wait_ex(queue, first, MS(1), &options), NO_MEMORY);
    (void)SAYS(GPUSYNC_TIMEOUT, gpusync_wait_many(points, 20, GPUSYNC_WAIT_ANY, MS(1), NULL, &which), NO_MEMORY);
    (void)SAYS(GPUSYNC_TIMEOUT, gpusync_device_wait(s->device, MS(1), NULL), NO_MEMORY);
    (void)SAYS(GPUSYNC_NOT_READY, gpusync_poll(queue, first), GPUSYNC_OK);
    if (!s->lost) assert_false(gpusync_is_done(queue, first));
    if (!s->lost) assert_true(gpusync_in_flight(queue) > 0);
    metal_release(s->stuck);
    s->stuck = NULL;
    (void)WELL(gpusync_wait_ex(queue, first, LIMIT, &options), NO_MEMORY);
    (void)WELL(gpusync_wait_ex(queue, last, LIMIT, NULL), NO_MEMORY, FAILED);
    (void)WELL(gpusync_wait_ex(queue, last, LIMIT, &handlers), NO_MEMORY, FAILED,
               s->handlers_lost ? GPUSYNC_TIMEOUT : FAILED);
    (void)WELL(gpusync_wait_many(points, 20, GPUSYNC_WAIT_ALL, LIMIT, NULL, &which), NO_MEMORY, FAILED);
    (void)WELL(gpusync_queue_wait(queue, LIMIT), NO_MEMORY, FAILED);
    (void)WELL(gpusync_device_wait(s->device, LIMIT, NULL), NO_MEMORY, FAILED);
}

/* A failure sticks: what ends behind it takes its error, and new work is refused, until it is cleared. A command buffer that
   was open before keeps its signal. */
static void stick(scenario *s)
{
    gpusync_queue **queue = &s->q[STICKY];
    gpusync_timeline *d = NULL;
    gpusync_ticket first, behind, ticket = 99;
    bool sticks, promised = false;
    uint64_t value;
    void *buffer, *vain, *refused = s;
    if (!*queue) return;
    MAKE_TIMELINE(&d, .label = "d", .initial_value = 1);
    vain = fresh(s, *queue, "in vain");
    if (vain && d && !metal4_run()) promised = WELL(gpusync_encode_signal(*queue, vain, at(d, 2)), NO_MEMORY);
    buffer = fresh(s, *queue, "fails");
    if (buffer) softmetal_fail(buffer, NULL, 2, "it sticks");
    first = give(s, queue, buffer);
    behind = give(s, queue, fresh(s, *queue, "behind the failure"));
    settle_all(s);
    s->failed += first != 0;
    if (first) (void)SAYS(FAILED, gpusync_wait(*queue, first, LIMIT), NO_MEMORY);
    if (first && behind && !s->handlers_late) (void)SAYS(FAILED, gpusync_poll(*queue, behind), FAILED);
    if (first && behind) s->failed += gpusync_poll(*queue, behind) != GPUSYNC_OK; /* whose handler may have come first */
    sticks = first && !s->lost && !s->hung;
    if (vain && sticks) {
        (void)SAYS(FAILED, either_commit(*queue, vain, &ticket), FAILED);
        assert_int_equal(ticket, GPUSYNC_NO_TICKET);
        if (promised && WELL(gpusync_timeline_query(d, &value), GPUSYNC_OK)) assert_int_equal(value, 1);
    }
    if (vain) assert_ok(either_discard(*queue, vain)); /* what it was to signal has failed */
    if (vain && sticks && promised) (void)SAYS(FAILED, gpusync_timeline_query(d, &value), FAILED);
    if (sticks) {
        if (!metal4_run()) {
            (void)SAYS(FAILED, gpusync_command_buffer(*queue, NULL, &refused), FAILED);
            assert_null(refused);
        }
        (void)WELL(gpusync_queue_clear_failure(*queue), GPUSYNC_OK);
        (void)SEND(STICKY, 1, .label = "behind the clear");
        settle_all(s);
        (void)SAYS(FAILED, gpusync_poll(*queue, first), FAILED);
    }
    destroy_timeline(s, d);
}

/* The last owner of a queue is a callback of its own. */
static void destroy_in_callback(void *user, gpusync_result result, const gpusync_error *error)
{
    scenario *s = (scenario *)user;
    gpusync_queue *queue = s->q[LETS_GO];
    tell(s->owner, result, error);
    s->q[LETS_GO] = NULL;
    s->goes->promised = true;
    must(gpusync_queue_destroy_later(queue, let_go, s->goes) == GPUSYNC_OK, "a queue does not go");
}

static void let_queue_go(scenario *s)
{
    gpusync_ticket ticket = GPUSYNC_NO_TICKET, more;
    void *buffer = fresh(s, s->q[LETS_GO], "the last owner's");
    s->owner = next_due(s);
    s->goes = next_due(s);
    if (!buffer) return;
    if (!WELL(either_commit(s->q[LETS_GO], buffer, &ticket), NO_MEMORY, metal4_run() ? NIL : NO_MEMORY)) {
        assert_ok(either_discard(s->q[LETS_GO], buffer));
        return;
    }
    buffer = fresh(s, s->q[LETS_GO], "in flight when it goes");
    if (buffer && !WELL(either_commit(s->q[LETS_GO], buffer, &more), NO_MEMORY, metal4_run() ? NIL : NO_MEMORY))
        assert_ok(either_discard(s->q[LETS_GO], buffer));
    else if (buffer) s->strangers++;
    s->strangers++;
    if (WELL(gpusync_on_done(after(s->q[LETS_GO], ticket), destroy_in_callback, s), NO_MEMORY)) s->owner->promised = true;
    settle_all(s);
}

/* A command buffer that gpusync has not made, +1. */
static void *theirs(scenario *s, int i) { return s->q[i] ? metal_queue_command_buffer(s->metal[i]) : NULL; }

/* The queue has room for two command buffers. The third waits until the first has left. */
static void keep_pace(scenario *s)
{
    gpusync_command_buffer_desc desc = {.timeout_ns = &a_moment};
    gpusync_command_buffer_desc third = {.label = "the third", .timeout_ns = &the_limit};
    gpusync_queue **queue = &s->q[FIRST_EXTRA];
    gpusync_ticket first;
    void *open[2], *buffer = NULL;
    open[0] = fresh(s, *queue, "the first of two");
    open[1] = fresh(s, *queue, "the second of two");
    if (open[0] && open[1] && !metal4_run()) {
        (void)SAYS(GPUSYNC_TIMEOUT, gpusync_command_buffer(*queue, &desc, &buffer), NO_MEMORY);
        assert_null(buffer);
    }
    first = give(s, queue, open[0]);
    (void)give(s, queue, open[1]);
    if (!*queue) return;
    if (!first || WELL(gpusync_wait(*queue, first, LIMIT), NO_MEMORY))
        (void)give(s, queue, fresh_with(s, *queue, &third));
    settle_all(s);
}

static void track(scenario *s)
{
    gpusync_queue *queue = s->q[GIVEN];
    gpusync_ticket ticket;
    void *buffer = theirs(s, GIVEN);
    if (buffer && !WELL(gpusync_commit(queue, buffer, &ticket), NO_MEMORY)) metal_commit(buffer); /* still ours */
    metal_release(buffer);
    buffer = theirs(s, GIVEN);
    if (buffer) {
        if (WELL(gpusync_track(queue, buffer, &ticket), NO_MEMORY)) sent(s, &s->q[GIVEN], ticket);
        metal_commit(buffer);
        metal_release(buffer);
    }
    buffer = theirs(s, GIVEN);
    if (buffer) {
        if (WELL(gpusync_track(queue, buffer, &ticket), NO_MEMORY)) {
            on(s, after(queue, ticket));
            (void)WELL(gpusync_untrack(queue, ticket), GPUSYNC_ERROR_INVALID_TICKET);
            sent(s, &s->q[GIVEN], ticket);
        }
        metal_release(buffer);
    }
    buffer = theirs(s, GIVEN);
    if (buffer) {
        metal_commit(buffer);
        ticket = give(s, &s->q[GIVEN], fresh(s, queue, "behind what others have committed"));
        if (ticket) (void)WELL(gpusync_wait(queue, ticket, LIMIT), NO_MEMORY);
        metal_release(buffer);
    }
}

/* Waits and signals in command buffers; and promises that are taken back. */
static void encode(scenario *s)
{
    gpusync_queue *queue = s->q[GIVEN];
    void *buffer = fresh(s, queue, "signals"), *open[MORE];
    gpusync_ticket ticket;
    uint64_t value;
    bool seen;
    int i, count = s->wide ? MORE : 2;
    if (!s->a || !s->b) {
        if (buffer) assert_ok(gpusync_command_buffer_discard(queue, buffer));
        return;
    }
    if (buffer && !WELL(gpusync_encode_signal(queue, buffer, at(s->b, 1)), NO_MEMORY)) {
        assert_ok(gpusync_command_buffer_discard(queue, buffer));
        buffer = NULL;
    }
    ticket = give(s, &s->q[GIVEN], buffer);
    if (!ticket) (void)WELL(gpusync_timeline_signal(s->b, 1), GPUSYNC_ERROR_NOT_RISING);
    buffer = theirs(s, MADE);
    if (buffer) {
        if (WELL(gpusync_encode_wait(s->q[MADE], buffer, at(s->b, 1)), NO_MEMORY, NIL)) {
            if (ticket) (void)WELL(gpusync_encode_wait(s->q[MADE], buffer, after(queue, ticket)), NO_MEMORY, NIL);
            if (give(s, &s->q[MADE], buffer) == GPUSYNC_NO_TICKET) assert_int_equal(status_of(buffer), 0);
        }
        metal_release(buffer);
    }
    for (i = 0; i < count; i++) {
        open[i] = theirs(s, MADE);
        if (open[i] && !WELL(gpusync_encode_wait(s->q[MADE], open[i], at(s->b, 1)), NO_MEMORY, NIL)) {
            metal_release(open[i]);
            open[i] = NULL;
        }
    }
    for (i = 0; i < count; i++) {
        if (open[i]) assert_ok(gpusync_command_buffer_discard(s->q[MADE], open[i]));
        metal_release(open[i]);
    }
    buffer = fresh(s, queue, "takes its promise back");
    if (buffer) {
        (void)WELL(gpusync_encode_signal(queue, buffer, at(s->b, 2)), NO_MEMORY);
        assert_ok(gpusync_command_buffer_discard(queue, buffer));
    }
    settle_all(s);
    seen = WELL(gpusync_timeline_wait(s->b, 1, LIMIT, NULL), NO_MEMORY);
    if (WELL(gpusync_timeline_query(s->b, &value), GPUSYNC_OK) && seen && !s->lost) assert_int_equal(value, 1);
    (void)WELL(gpusync_timeline_signal(s->b, 2), GPUSYNC_ERROR_NOT_RISING);
}

static void submit(scenario *s)
{
    gpusync_ticket ticket, held;
    gpusync_point waits[20];
    uint64_t value;
    int i;
    if (!s->a || !s->b || !s->c) return;
    /* from queue to queue, by a value and by a ticket */
    ticket = SEND(MADE, 1, SIGNALS(at(s->a, 1)), .label = "makes");
    (void)SEND(GIVEN, 2, WAITS(at(s->a, 1)), SIGNALS(at(s->b, 3)), .label = "takes");
    if (ticket) (void)SEND(GIVEN, 1, WAITS(after(s->q[MADE], ticket)));
    /* many of each */
    for (i = 0; i < 20; i++) waits[i] = i % 2 || !ticket ? at(s->b, 3) : after(s->q[MADE], ticket);
    (void)SEND(MADE, s->wide ? MORE : 2, .waits = waits, .wait_count = 20,
               SIGNALS(at(s->a, 2), at(s->b, 4), at(s->c, 1)), .timeout_ns = &the_limit);
    (void)SEND(FIRST_EXTRA, 0, WAITS(at(s->a, 2), at(s->c, 1)), SIGNALS(at(s->c, 2)), .timeout_ns = &the_limit);
    /* for others' signals */
    if (s->foreign) {
        (void)SEND(GIVEN, 1, WAITS(at(s->foreign, 1)), .flags = GPUSYNC_STRICT);
        (void)SEND(GIVEN, 1, WAITS(at(s->foreign, 2)), SIGNALS(at(s->a, 3)), .flags = GPUSYNC_UNORDERED);
        on(s, at(s->foreign, 2));
        metal_event_signal(s->event, 2);
        (void)WELL(gpusync_timeline_wait(s->foreign, 2, LIMIT, NULL), NO_MEMORY);
    } else {
        (void)WELL(gpusync_timeline_signal(s->a, 3), GPUSYNC_ERROR_NOT_RISING);
    }
    settle_all(s);
    if (s->q[GIVEN]) (void)WELL(gpusync_queue_wait(s->q[GIVEN], LIMIT), NO_MEMORY, FAILED);
    /* held until the host signals; a commit lines up behind */
    held = SEND(GIVEN, 1, WAITS(at(s->a, 4)), SIGNALS(at(s->b, 5)), .label = "held");
    (void)give(s, &s->q[GIVEN], fresh(s, s->q[GIVEN], "behind"));
    if (held) (void)SAYS(GPUSYNC_NOT_READY, gpusync_poll(s->q[GIVEN], held), GPUSYNC_ERROR_CANCELLED);
    (void)WELL(gpusync_timeline_signal(s->a, 4), GPUSYNC_ERROR_NOT_RISING);
    if (held) (void)WELL(gpusync_wait(s->q[GIVEN], held, LIMIT), NO_MEMORY);
    /* given up: what it was to signal fails */
    held = SEND(GIVEN, 1, WAITS(at(s->a, 5)), SIGNALS(at(s->c, 3)), .label = "given up");
    on(s, at(s->c, 3));
    if (s->q[GIVEN]) assert_ok(gpusync_cancel_held(s->q[GIVEN]));
    if (held) {
        (void)SAYS(GPUSYNC_ERROR_CANCELLED, gpusync_poll(s->q[GIVEN], held), GPUSYNC_ERROR_RESULT_UNKNOWN);
        (void)SAYS(GPUSYNC_ERROR_CANCELLED, gpusync_timeline_query(s->c, &value), GPUSYNC_ERROR_CANCELLED);
    }
}

/* The second signal does not rise. So the first is not promised either, and may come from elsewhere. */
static void submit_in_vain(scenario *s)
{
    gpusync_point signals[2] = {at(s->a, 6), at(s->b, 1)};
    gpusync_submission submission = {.signals = signals, .signal_count = 2, .command_buffer_count = 1};
    void *buffer = fresh(s, s->q[MADE], "in vain");
    gpusync_ticket ticket;
    uint64_t value = 0;
    if (!buffer) return;
    if (gpusync_timeline_query(s->b, &value) != GPUSYNC_OK || value < 1) { /* what was to signal it is not there */
        assert_ok(either_discard(s->q[MADE], buffer));
        return;
    }
    submission.command_buffers = &buffer;
    if (SAYS(GPUSYNC_ERROR_NOT_RISING, either_submit(s->q[MADE], &submission, &ticket), NO_MEMORY, NIL) ||
        s->last != GPUSYNC_OK)
        assert_ok(either_discard(s->q[MADE], buffer));
}

static void use_timelines(scenario *s)
{
    gpusync_wait_options options = {.spin = &no_spin};
    gpusync_point points[3];
    gpusync_error error;
    gpusync_ticket ticket;
    size_t which = 99;
    uint64_t value;
    bool seen;
    if (!s->a || !s->b) return;
    settle_all(s);
    submit_in_vain(s);
    on(s, at(s->a, 6));
    release_with(s, at(s->a, 6));
    (void)SAYS(GPUSYNC_TIMEOUT, gpusync_timeline_wait(s->a, 6, MS(1), &options), NO_MEMORY);
    ticket = SEND(MADE, 1, SIGNALS(at(s->a, 6)));
    seen = WELL(gpusync_timeline_wait(s->a, 6, LIMIT, &options), NO_MEMORY);
    points[0] = at(s->b, 100);
    points[1] = at(s->a, 6);
    points[2] = ticket ? after(s->q[MADE], ticket) : at(s->a, 1);
    if (WELL(gpusync_wait_many(points, 3, GPUSYNC_WAIT_ANY, LIMIT, &options, &which), NO_MEMORY))
        assert_in_range(which, 1, 2);
    (void)WELL(gpusync_wait_many(points + 1, 2, GPUSYNC_WAIT_ALL_OR_FAILURE, LIMIT, &options, &which), NO_MEMORY);
    if (WELL(gpusync_timeline_query(s->a, &value), GPUSYNC_OK) && seen && !s->lost) assert_int_equal(value, 6);
    on(s, at(s->b, 100));
    memset(&error, 0, sizeof error);
    error.result = GPUSYNC_ERROR_COMPILE;
    (void)WELL(gpusync_timeline_fail(s->b, &error), GPUSYNC_OK);
    (void)SAYS(GPUSYNC_ERROR_COMPILE, gpusync_timeline_wait(s->b, 1, 0, NULL), GPUSYNC_ERROR_COMPILE);
}

/* The failure does not touch an event of others. */
static void fail_for_others(scenario *s)
{
    gpusync_timeline *timeline = NULL;
    void *event = metal_shared_event_new(s->metal_device);
    uint64_t base = 99, value;
    if (event) MAKE_TIMELINE(&timeline, .shared_event = event);
    if (timeline) {
        assert_ptr_equal(gpusync_timeline_metal(timeline, &base), event);
        assert_int_equal(base, 0);
        s->doomed = timeline;
        on(s, at(timeline, 1));
        (void)WELL(gpusync_timeline_fail(timeline, NULL), GPUSYNC_OK);
        (void)SAYS(FAILED, gpusync_timeline_query(timeline, &value), FAILED);
        assert_int_equal(metal_event_value(event), 0);
    }
    s->doomed = NULL;
    destroy_timeline(s, timeline);
    metal_release(event);
}

static void job(void *user) { COUNT((long *)user); }

/* A warm-up that does nothing by itself. */
static void warm_up_on_request(scenario *s, const gpusync_pipeline_desc *pipelines)
{
    gpusync_warmup_desc desc = {.pipelines = pipelines, .pipeline_count = 1, .disabled = true};
    gpusync_warmup *warmup = NULL;
    gpusync_error error;
    void *pipeline;
    size_t done, total = 99;
    if (!WELL(gpusync_warmup_start(s->device, &desc, &warmup), NO_MEMORY, NIL)) {
        assert_null(warmup);
        return;
    }
    if (WELL(gpusync_warmup_poll(warmup, &done, &total), GPUSYNC_OK)) assert_int_equal(total, 0);
    step(s);
    one_of(s, gpusync_warmup_pipeline(warmup, 0, GPUSYNC_FOREVER, &pipeline, &error), false,
           ANSWERS(GPUSYNC_ERROR_COMPILE, NIL, NO_MEMORY), "gpusync_warmup_pipeline", __LINE__);
    assert_int_equal(pipeline != NULL, s->last == GPUSYNC_OK);
    assert_ok(gpusync_warmup_destroy(warmup));
}

/* One that is over when its start returns, unless the device is lost meanwhile. */
static void warm_up_at_once(scenario *s)
{
    long jobs = 0;
    gpusync_warmup_job one = {job, &jobs};
    gpusync_warmup_desc desc = {.jobs = &one, .job_count = 1, .blocking = true};
    gpusync_warmup *warmup = NULL;
    if (!metal4_run()) desc.queue = s->q[GIVEN];
    if (WELL(gpusync_warmup_start(s->device, &desc, &warmup), NO_MEMORY, NIL)) {
        assert_int_equal(GET(&jobs), 1);
        assert_ok(gpusync_warmup_poll(warmup, NULL, NULL));
    } else if (!s->lost) assert_null(warmup);
    if (warmup) assert_ok(gpusync_warmup_destroy(warmup));
}

static void warm_up(scenario *s)
{
    static const char source[] = "kernel void add() {} kernel void scale() {}";
    gpusync_pipeline_desc pipelines[3] = {{.source = source, .function = "add"},
                                          {.source = source, .function = "scale"}};
    gpusync_warmup_desc desc = {.pipelines = pipelines, .pipeline_count = 2, .job_count = 1};
    long jobs = 0;
    gpusync_warmup_job one = {job, &jobs};
    void *text = metal_string_new(source), *message = NULL, *pool = metal_pool_push(), *pipeline;
    void *library = METAL__AS(void *, void *, void *, void **)(
        s->metal_device, metal__sel("newLibraryWithSource:options:error:"), text, NULL, &message);
    gpusync_warmup *warmup = NULL;
    gpusync_error error;
    size_t done, total, i;
    metal_pool_pop(pool);
    metal_release(text);
    end_hang(s); /* these waits have no limit */
    if (library) pipelines[desc.pipeline_count++] = (gpusync_pipeline_desc){.library = library, .function = "add"};
    desc.jobs = &one;
    if (!metal4_run()) desc.queue = s->q[GIVEN]; /* NULL: one of its own */
    softmetal_set_message_hook(find_strange, s);
    PUT(&s->elsewhere, true);
    if (WELL(gpusync_warmup_start(s->device, &desc, &warmup), NO_MEMORY, NIL)) {
        step(s);
        one_of(s, gpusync_warmup_wait(warmup, GPUSYNC_FOREVER), false, ANSWERS(GPUSYNC_ERROR_COMPILE, NIL, NO_MEMORY),
               "gpusync_warmup_wait", __LINE__);
        if (s->last == NO_MEMORY) { /* of the wait, or of the warm-up */
            while (gpusync_warmup_poll(warmup, NULL, NULL) == GPUSYNC_NOT_READY && !s->lost)
                rest(s, NULL, GPUSYNC_FOREVER);
        }
        step(s);
        if (one_of(s, gpusync_warmup_poll(warmup, &done, &total), false, ANSWERS(GPUSYNC_NOT_READY),
                   "gpusync_warmup_poll", __LINE__)) {
            assert_int_equal(done, total);
            assert_int_equal(GET(&jobs), 1);
        } else assert_true(s->lost);
        for (i = 0; i < desc.pipeline_count; i++) {
            step(s);
            one_of(s, gpusync_warmup_pipeline(warmup, i, GPUSYNC_FOREVER, &pipeline, &error), false,
                   ANSWERS(GPUSYNC_ERROR_COMPILE, NIL, NO_MEMORY), "gpusync_warmup_pipeline", __LINE__);
            assert_int_equal(pipeline != NULL, s->last == GPUSYNC_OK);
        }
        assert_ok(gpusync_warmup_destroy(warmup));
    } else assert_null(warmup);
    warm_up_on_request(s, pipelines);
    warm_up_at_once(s);
    PUT(&s->elsewhere, false);
    softmetal_set_message_hook(NULL, NULL);
    metal_release(library);
}

static void expect_end(scenario *s, struct sent *sent)
{
    gpusync_ticket_info info;
    gpusync_result result = gpusync_poll(*sent->queue, sent->ticket),
                   told = gpusync_get_info(*sent->queue, sent->ticket, &info);
    /* RESULT_UNKNOWN: the log got no memory */
    one_of(s, result, false, ANSWERS(FAILED, GPUSYNC_ERROR_CANCELLED, GPUSYNC_ERROR_RESULT_UNKNOWN), "gpusync_poll",
           __LINE__);
    one_of(s, told, false, ANSWERS(GPUSYNC_ERROR_RESULT_UNKNOWN), "gpusync_get_info", __LINE__);
    if (told == GPUSYNC_OK) assert_result(info.result, result);
}

/* Nothing is in flight: everything has ended and is counted, and the room is there again. */
static void ask(scenario *s)
{
    gpusync_stats stats, all;
    gpusync_error error;
    gpusync_wait_options handlers = {.handlers = true};
    uint64_t commits = 0, failures = 0, base = 0;
    char text[256];
    size_t sizes[2];
    unsigned k;
    due *d;
    int i;
    s->asked_at = s->steps;
    s->fails_next = false;
    s->too_late[FAIL_WORK] = true;
    settle_all(s);
    (void)WELL(gpusync_device_wait(s->device, LIMIT, NULL), NO_MEMORY, FAILED);
    assert_true(gpusync_struct_sizes(sizes, 2) > 2 && sizes[1] == sizeof(gpusync_spin));
    assert_int_equal(gpusync_version(), GPUSYNC_VERSION);
    assert_true(gpusync_now_ns() > 0);
    assert_string_not_equal(gpusync_result_string(FAILED), gpusync_result_string(NIL));
    assert_string_not_equal(gpusync_failure_string(GPUSYNC_FAILURE_TIMEOUT),
                            gpusync_failure_string(GPUSYNC_FAILURE_NONE));
    assert_true(gpusync_failure_is_transient(GPUSYNC_FAILURE_INNOCENT_VICTIM));
    if (s->c) assert_non_null(gpusync_timeline_metal(s->c, &base));
    for (k = 0; k < s->sent_count; k++) expect_end(s, &s->sent[k]);
    for (d = s->dues; d < s->due; d++) /* none is left to destroy, but what a lost device may still use */
        if (!(s->lost && d->is_release)) assert_int_equal(GET(&d->calls), d->promised);
    for (i = 0; i < QUEUES; i++) {
        uint64_t cursor = 0, read = 0;
        if (!s->q[i]) continue;
        if (s->handlers_lost) /* the counters wait for a look, as documented; and a wait may have had no memory */
            (void)WELL(gpusync_poll(s->q[i], GPUSYNC_EVERYTHING), FAILED, GPUSYNC_ERROR_RESULT_UNKNOWN);
        if (!s->lost) assert_int_equal(gpusync_in_flight(s->q[i]), 0);
        assert_true(gpusync_queue_report(s->q[i], text, sizeof text) > 0);
        /* All the room is there. (The room of a lost handler comes while a wait looks, and that needs memory.) */
        if (!s->lost && s->handlers_lost)
            (void)WELL(gpusync_wait_ex(s->q[i], GPUSYNC_EVERYTHING, LIMIT, &handlers), NO_MEMORY, GPUSYNC_TIMEOUT,
                       FAILED, GPUSYNC_ERROR_RESULT_UNKNOWN);
        if (!s->lost && !(s->handlers_lost && s->last == NO_MEMORY)) assert_int_equal(rooms_taken(s->q[i]), 0);
        if (!s->lost) assert_true(gpusync_is_idle(s->q[i]));
        assert_ok(gpusync_get_stats(s->q[i], &stats));
        while (gpusync_next_error(s->q[i], &cursor, &error) == GPUSYNC_OK)
            if (error.result != GPUSYNC_ERROR_CANCELLED) read++;
        cursor = GPUSYNC_FROM_NOW;
        for (k = 0; k < 2; k++) assert_result(gpusync_next_error(s->q[i], &cursor, &error), GPUSYNC_NOT_READY);
        if (!((s->lost || s->upset) && i == STICKY) && !s->has_hung)
            assert_in_range(stats.failures, read, read + stats.failures_dropped);
        if (!s->lost) assert_int_equal(stats.commits, stats.completions);
        if (i == LETS_GO) s->strangers -= stats.commits; /* it is there yet */
        commits += stats.commits;
        failures += stats.failures;
    }
    assert_ok(gpusync_device_get_stats(s->device, &all));
    assert_int_equal(all.commits, commits + s->strangers);
    if (!s->lost && !s->upset) assert_int_equal(failures, s->failed);
    assert_true(gpusync_report(s->device, text, sizeof text) > 0);
    if (!s->lost) assert_false(gpusync_device_is_lost(s->device));
    if (commits) assert_true(GET(&s->traced) > 0);
    if (!s->lost && !s->upset) assert_int_equal(GET(&s->logged), (long)s->failed);
}

/* With the fault over, the same objects do what they are for. */
static void use_again(scenario *s)
{
    gpusync_timeline *timeline = NULL;
    gpusync_ticket ticket;
    due *d;
    int i;
    if (!s->removed) s->lost = gpusync_device_is_lost(s->device); /* what is locked out may be no ticket's */
    if (s->lost) {
        bool any = false;
        for (i = 0; i <= FIRST_EXTRA; i++) {
            ticket = give(s, &s->q[i], fresh(s, s->q[i], "too late"));
            if (ticket) (void)SAYS(FAILED, gpusync_wait(s->q[i], ticket, LIMIT), FAILED);
            any = any || s->q[i];
        }
        if (!any) return;
        assert_true(gpusync_device_is_lost(s->device));
        assert_result(gpusync_timeline_create(s->device, NULL, &timeline), GPUSYNC_ERROR_DEVICE_LOST);
        return;
    }
    assert_ok(gpusync_timeline_create(s->device, NULL, &timeline));
    if (s->upset && s->q[STICKY]) assert_ok(gpusync_queue_clear_failure(s->q[STICKY]));
    for (i = 0; i <= FIRST_EXTRA; i++) {
        if (!s->q[i]) continue;
        d = next_due(s);
        d->promised = true;
        ticket =
            SUBMIT(s->q[i], NO_WORK(s->q[i]), SIGNALS(at(timeline, (uint64_t)i + 1)), .on_complete = tell, .user = d);
        assert_ok(gpusync_wait(s->q[i], ticket, LIMIT));
        ticket = commit_empty_to(s->q[i], NULL);
        assert_ok(gpusync_wait(s->q[i], ticket, LIMIT));
        assert_ok(gpusync_timeline_wait(timeline, (uint64_t)i + 1, LIMIT, NULL));
    }
    assert_ok(gpusync_timeline_destroy(timeline));
}

static void let_memory_go(void *user)
{
    scenario *s = (scenario *)user;
    must(GET(&s->memory.live) == 0, "a device is gone, and has memory");
    COUNT(&s->due->calls);
}

static due *next_gone(scenario *s)
{
    due *d = next_due(s);
    d->promised = true;
    return d;
}

/* All goes later, the device before what it has: as the device works, as timers fire, and as callbacks are dispatched. */
static void go_later(scenario *s)
{
    gpusync_timeline *timelines[] = {s->a, s->b, s->c, s->foreign};
    unsigned rounds = 0, i;
    for (i = 0; i < QUEUES; i++) {
        if (s->q[i]) assert_ok(gpusync_queue_destroy_later(s->q[i], let_go, next_gone(s)));
        s->q[i] = NULL;
    }
    for (i = 0; i < LENGTH(timelines); i++)
        if (timelines[i]) assert_ok(gpusync_timeline_destroy_later(timelines[i], let_go, next_gone(s)));
    assert_ok(gpusync_device_destroy_later(s->device, let_memory_go, s)); /* of none it is not told */
    s->due->promised = s->device != NULL;
    while (s->device && GET(&s->due->calls) == 0) {
        must(++rounds < 1000, "what was destroyed later does not go");
        come_to_rest();
        if (s->manual_callbacks) assert_ok(gpusync_dispatch(s->device, SIZE_MAX, NULL));
        if (work(s)) continue;
        if (softmetal_timers()) pass_time();
        else if (s->handlers_late) (void)deliver(s);
    }
    s->due++;
    s->device = NULL;
    settle_all(s);
    for (i = 0; i < QUEUES; i++) {
        if (s->metal[i] && !s->lost) assert_int_equal(softmetal_outstanding(s->metal[i]), 0);
        metal_release(s->metal[i]);
    }
    metal_release(s->event);
    metal_release(s->metal_device);
}

/* With work in flight, held work and a command buffer that is never committed. */
static void tear_down(scenario *s)
{
    int i;
    if (s->q[GIVEN] && s->a && !s->lost) {
        (void)SEND(GIVEN, 1, .label = "in flight");
        (void)SEND(GIVEN, 1, WAITS(at(s->a, 1000)), .label = "held");
        if (!metal4_run()) (void)fresh(s, s->q[GIVEN], "open");
        on(s, at(s->a, 1000));
        release_with(s, at(s->a, 1000));
    }
    if (s->q[MADE] && !s->lost) (void)SEND(MADE, 1, .label = "in flight");
    if (s->lost && metal4_run()) { /* what is in flight then, or to be signalled, is kept for good, as documented */
        if (!gpusync_device_is_lost(s->device)) set_fault(s, 0);
        for (i = 0; i < QUEUES && !gpusync_device_is_lost(s->device); i++) {
            (void)give(s, &s->q[i], fresh(s, s->q[i], "tells of the loss"));
            settle_all(s);
        }
        settle_all(s);
    }
    s->sent_count = 0;
    assert_ok(gpusync_queue_destroy_now(s->q[GIVEN]));
    s->q[GIVEN] = NULL;
    if (s->later) {
        go_later(s);
        return;
    }
    for (i = 0; i < QUEUES; i++) {
        assert_ok(gpusync_queue_destroy(s->q[i]));
        if (s->q[i] && !s->handlers_late) assert_int_equal(softmetal_outstanding(s->metal[i]), 0); /* it has waited */
        s->q[i] = NULL;
    }
    assert_ok(gpusync_timeline_destroy(s->a));
    assert_ok(gpusync_timeline_destroy(s->b));
    assert_ok(gpusync_timeline_destroy(s->c));
    assert_ok(gpusync_timeline_destroy(s->foreign));
    assert_ok(gpusync_device_destroy(s->device));
    s->device = NULL;
    settle_all(s); /* what the one that goes now has left */
    for (i = 0; i < QUEUES; i++) metal_release(s->metal[i]);
    metal_release(s->event);
    metal_release(s->metal_device);
}

/* What is left of the faults for the tear-down. */
static void arm_what_is_left(scenario *s)
{
    fault faults[NOTHING][2];
    int i, k;
    memcpy(faults, s->faults, sizeof faults);
    if (s->source < NOTHING) faults[s->source][0] = (fault){s->fault, s->often == FOR_GOOD};
    for (i = 0; i < NOTHING; i++)
        for (k = 0; k < 2; k++) {
            long left = faults[i][k].number - s->asked[i];
            faults[i][k].number = left > 0 ? left : faults[i][k].number && faults[i][k].lasts;
        }
    arm(s, faults);
}

/* One run; s says what is wrong in it. False: fault number `fault` was never met. */
static bool run(scenario *s)
{
    long objects;
    due *d;
    PUT(&clock_is_real, false);
    softmetal_reset();
    softmetal_set_clock(SOFTMETAL_MANUAL);
    objects = softmetal_live(NULL);
    s->thread = pthread_self();
    s->due = s->dues;
    s->wide = s->wide || s->source == ALLOCATOR;
    if (s->forgets || s->source == C_LIBRARY || s->faults[C_LIBRARY][0].number) probe_forget_spare_memory(NULL);
    probe_memory.taken = 0;
    if (s->source == SEVERAL) arm(s, s->faults);
    else set_fault(s, s->fault);
    if (set_up(s)) {
        commit_and_wait(s);
        stick(s);
        let_queue_go(s);
        keep_pace(s);
        if (!metal4_run()) {
            track(s);
            encode(s);
        }
        submit(s);
        use_timelines(s);
        fail_for_others(s);
        warm_up(s);
        ask(s);
        count_asked(s, s->asked);
        set_fault(s, 0);
        use_again(s);
    } else {
        count_asked(s, s->asked);
    }
    s->allocations = probe_memory.taken = 0;
    arm_what_is_left(s);
    tear_down(s);
    count_asked(s, s->asked_late);
    set_fault(s, 0);
    assert_true(softmetal_settle_listeners(SECONDS(20)));
    drop_recordings();
    assert_int_equal(s->memory.live, 0);
    for (d = s->dues; d < s->due; d++) assert_int_equal(GET(&d->calls), d->promised);
    assert_int_equal(softmetal_live(NULL), objects);
    return s->source >= NOTHING || s->fault <= s->asked[s->source] + s->asked_late[s->source];
}

/* Where a run takes long, under ThreadSanitizer and under qemu, each fault comes in one of the three ways, not in all. Nor
   in the second run, on queues of Metal 4. */
#define STRIDE (SLOW > 1 || metal4_run() ? 3 : 1)

/* How often something could fail. */
static long run_each(int source, int often)
{
    static scenario s;
    long k;
    for (k = STRIDE > 1 ? often + 1 : 1;; k += STRIDE) {
        memset(&s, 0, sizeof s);
        s.source = source;
        s.often = often;
        s.manual_callbacks = k / STRIDE % 2 == 0;
        s.own_queue = k / STRIDE % 4 == 1;
        s.later = (k / STRIDE / 2 + often) % 2 == 0;
        s.fault = k;
        if (!run(&s)) return k - STRIDE;
    }
}

static void fail_each(int source, const char *what, long least)
{
    int often;
    long count = 0, most = 0;
    for (often = 0; often < HOW_OFTEN; often++)
        if ((count = run_each(source, often)) > most) most = count;
    print_message("%s: %ld\n", what, most);
    assert_true(most >= least); /* else the scenario has lost a part */
}

static void test_without_a_fault_nothing_is_refused(void **state)
{
    static scenario s;
    int k;
    (void)state;
    for (k = 0; k < 6; k++) {
        memset(&s, 0, sizeof s);
        s.source = NOTHING;
        s.later = k % 2;
        s.manual_callbacks = k / 2 == 1;
        s.own_queue = k / 2 == 2;
        (void)run(&s);
        assert_int_equal(s.notified > 0, s.manual_callbacks);
        assert_int_equal(s.refusals, 0);
        assert_int_equal(s.logged, s.failed);
        assert_int_equal(s.goes->calls, 1);
    }
}

static void test_an_allocation_that_fails_loses_nothing(void **state)
{
    static scenario s;
    int often;
    (void)state;
    fail_each(ALLOCATOR, "allocations", 50);
    for (often = 0; often < HOW_OFTEN; often++) { /* one more, for which it takes many command buffers */
        memset(&s, 0, sizeof s);
        s.source = ALLOCATOR;
        s.often = often;
        s.grows = true;
        (void)run(&s);
        assert_true(s.refusals > 0);
    }
}

static void test_a_creation_that_fails_loses_nothing(void **state)
{
    (void)state;
    fail_each(METAL, "creations", 60);
}

static void test_memory_of_the_c_library_that_fails_loses_nothing(void **state)
{
    (void)state;
    fail_each(C_LIBRARY, "from the C library", 2);
}

static void test_a_device_that_is_lost_at_any_step_loses_nothing_else(void **state)
{
    static scenario s;
    long k = 2; /* there is a device behind the first */
    (void)state;
    do {
        memset(&s, 0, sizeof s);
        s.source = NOTHING;
        s.at[LOSE_DEVICE] = k;
        s.manual_callbacks = k % 2 == 0;
        s.own_queue = k % 4 == 1;
        s.later = k / 2 % 2 == 0;
        k += STRIDE;
        (void)run(&s);
    } while (s.lost);
    print_message("steps: %ld\n", s.steps);
    assert_true(s.steps > 100);
}

/* What no handler or listener tells of is found all the same. */
static void test_lost_handlers_and_deaf_listeners_lose_nothing(void **state)
{
    static scenario s;
    int k;
    (void)state;
    for (k = 0; k < 16; k++) {
        memset(&s, 0, sizeof s);
        s.source = NOTHING;
        s.later = (k & 8) != 0;
        s.at[LOSE_HANDLERS] = (k & 1) && !metal4_run(); /* from the first call on */
        s.at[GO_DEAF] = (k & 2) != 0;
        s.manual_callbacks = (k & 4) != 0;
        (void)run(&s);
        assert_int_equal(s.refusals, 0);
    }
}

static uint64_t seed = 29, pair_seed = 29;
static const char *program;

static uint64_t draw_below(uint64_t *state, uint64_t limit)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (*state >> 33) % limit;
}

static long draw_fault(uint64_t *state, uint64_t limit)
{
    return draw_below(state, 2) ? 0 : 1 + (long)draw_below(state, limit);
}

static unsigned long rounds_of(unsigned long usual)
{
    const char *stress = getenv("STRESS");
    return usual / STRIDE * (!stress ? 1 : strcmp(stress, "full") == 0 ? 20 : strtoul(stress, NULL, 10));
}

static void test_faults_that_come_together_lose_nothing(void **state)
{
    static scenario s;
    unsigned long rounds = rounds_of(24), round;
    (void)state;
    for (round = 0; round < rounds; round++, seed++) {
        uint64_t random = seed * 0x9E3779B97F4A7C15u + 1;
        int i;
        print_message("SEED=%llu\n", (unsigned long long)seed);
        memset(&s, 0, sizeof s);
        s.source = SEVERAL;
        s.often = ONCE;
        for (i = 0; i < NOTHING; i++) {
            s.faults[i][0].number = draw_fault(&random, i == C_LIBRARY ? 5 : 120);
            s.faults[i][0].lasts = draw_below(&random, 2);
        }
        s.at[LOSE_DEVICE] = draw_fault(&random, 240);
        if (s.at[LOSE_DEVICE] == 1) s.at[LOSE_DEVICE] = 0; /* there is no device yet */
        s.at[LOSE_HANDLERS] = draw_below(&random, 2) && !metal4_run();
        s.at[GO_DEAF] = draw_below(&random, 2) != 0;
        s.manual_callbacks = draw_below(&random, 2);
        s.own_queue = !s.manual_callbacks && draw_below(&random, 2);
        s.later = draw_below(&random, 2);
        s.grows = draw_below(&random, 4) == 0;
        (void)run(&s);
    }
}

/* -- two faults -------------------------------------------------------------------------------------

   Two of them, drawn with the kind of queue. A scenario that goes wrong ends the program with a line that runs it
   alone. */

static const char *alone;       /* FAULTS, as SEED:NUMBER: this one is run, and no other test */
static uint64_t alone_number;

static struct {
    char text[400];
    volatile bool runs;
} pair;

/* Whatever ends the program meanwhile. */
static void tell_of_pair(void)
{
    if (!pair.runs) return;
    pair.runs = false;
    if (write(2, pair.text, strlen(pair.text)) < 0) return;
}

static void tell_and_die(int number)
{
    tell_of_pair();
    signal(number, SIG_DFL);
    raise(number);
}

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
void __sanitizer_set_death_callback(void (*callback)(void));
#define AT_DEATH(callback) __sanitizer_set_death_callback(callback)
#endif
#endif
#ifdef AT_DEATH
#define PAIRS 250u
#else
#define PAIRS 500u
#define AT_DEATH(callback) (void)(callback)
#endif

static const int deadly[] = {SIGABRT, SIGALRM, SIGTERM};
static int watch_pairs(void **state)
{
    size_t i;
    (void)state;
    for (i = 0; i < LENGTH(deadly); i++) signal(deadly[i], tell_and_die);
    AT_DEATH(tell_of_pair);
    return 0;
}

static int leave_pairs(void **state)
{
    size_t i;
    (void)state;
    tell_of_pair(); /* where an assertion fails */
    has_returned();
    for (i = 0; i < LENGTH(deadly); i++) signal(deadly[i], SIG_DFL);
    return 0;
}

/* A run in which nothing goes wrong: what each call asks for. */
static const scenario *counted(bool wide)
{
    static scenario s[2];
    static long logs[2][MOST_STEPS][NOTHING];
    scenario *of = &s[wide];
    int i;
    if (of->steps) return of;
    of->source = SEVERAL;
    of->wide = wide;
    of->forgets = true;
    of->log = logs[wide];
    (void)run(of);
    for (i = 0; i < NOTHING; i++) of->log[of->steps + 1][i] = of->asked[i] + of->asked_late[i];
    return of;
}

static const char *const mishap_names[] = {
    "the device is lost", "handlers are lost", "listeners are deaf", "handlers are late",
    "the status turns last", "work fails", "work hangs"};

/* A fault that comes in the call, or as soon behind it as there is one. Tells of it in words. */
static void draw_at(scenario *s, int kind, long call, int which, uint64_t *random, char *text, size_t size)
{
    static const char *const names[] = {"creation", "allocation", "memory of the C library"};
    static const unsigned reasons[] = {SOFTMETAL_TIMEOUT,
                                       SOFTMETAL_HANG,
                                       SOFTMETAL_SUBMISSIONS_IGNORED,
                                       SOFTMETAL_INNOCENT_VICTIM,
                                       SOFTMETAL_BACKGROUND,
                                       SOFTMETAL_OUT_OF_MEMORY,
                                       SOFTMETAL_INVALID_RESOURCE,
                                       SOFTMETAL_PAGE_FAULT,
                                       SOFTMETAL_IMPACTING_INTERACTIVITY,
                                       SOFTMETAL_INTERNAL};
    const scenario *known = counted(s->wide);
    int mishap = kind - NOTHING;
    if (kind < NOTHING) {
        fault *f = &s->faults[kind][which];
        long before = known->log[call][kind], in_it = known->log[call + 1][kind] - before;
        f->number = before + 1 + (in_it > 1 ? (long)draw_below(random, (uint64_t)in_it) : 0);
        f->lasts = draw_below(random, 3) == 0;
        snprintf(text, size, "%s %ld%s", names[kind], f->number, f->lasts ? " and all later ones" : "");
        return;
    }
    s->at[mishap] = call > 1 ? call : 2; /* with the first call a device comes */
    if (mishap == FAIL_WORK) s->reason = reasons[draw_below(random, LENGTH(reasons))];
    snprintf(text, size, "%s from call %ld%s", mishap_names[mishap], s->at[mishap],
             mishap == FAIL_WORK && s->reason == SOFTMETAL_SUBMISSIONS_IGNORED ? ", which is locked out" : "");
}

/* Handlers that come long after the status, and before it. */
static bool contradict(int mishap, int other)
{
    return (mishap == DELAY_HANDLERS && other == STATUS_LAST) || (mishap == STATUS_LAST && other == DELAY_HANDLERS);
}

/* Two kinds; each second pair comes within three calls. The words are for who reads a failure. */
static void draw_two(scenario *s, uint64_t *random, char *text, size_t size)
{
    static const int kinds[] = {METAL,
                                METAL,
                                ALLOCATOR,
                                ALLOCATOR,
                                ALLOCATOR,
                                C_LIBRARY,
                                NOTHING + LOSE_DEVICE,
                                NOTHING + LOSE_HANDLERS,
                                NOTHING + GO_DEAF,
                                NOTHING + DELAY_HANDLERS,
                                NOTHING + STATUS_LAST,
                                NOTHING + FAIL_WORK,
                                NOTHING + HANG_WORK};
    const scenario *known = counted(s->wide);
    uint64_t calls = (uint64_t)known->steps;
    long call = 1 + (long)draw_below(random, calls);
    bool close = draw_below(random, 2);
    int drawn = 0, before = -1;
    char words[2][120];
    while (drawn < 2) {
        int kind = kinds[draw_below(random, LENGTH(kinds))];
        if (metal4_run() && (kind == NOTHING + LOSE_HANDLERS || kind == NOTHING + STATUS_LAST)) continue;
        if (kind == before && kind != METAL && kind != ALLOCATOR) continue; /* those may come twice */
        if (contradict(kind - NOTHING, before - NOTHING)) continue;
        draw_at(s, kind, call, kind == before, random, words[drawn++], sizeof words[0]);
        call = close ? call + (long)draw_below(random, 3) : 1 + (long)draw_below(random, calls);
        if (call > known->steps) call = known->steps;
        before = kind;
    }
    snprintf(text, size, "%s; %s", words[0], words[1]);
}

static bool draw_metal4(uint64_t of_seed, uint64_t number, uint64_t *random)
{
    *random = (of_seed * 1000003 + number) * 0x9E3779B97F4A7C15u + 1;
    (void)draw_below(random, 2);
    return draw_below(random, 2);
}

/* How many of its faults have come. */
static unsigned met(const scenario *s)
{
    unsigned count = 0;
    int i, k;
    for (i = 0; i < NOTHING; i++)
        for (k = 0; k < 2; k++)
            count += s->faults[i][k].number && s->faults[i][k].number <= s->asked[i] + s->asked_late[i];
    for (i = 0; i < MISHAPS; i++) count += s->at[i] && s->at[i] <= (s->too_late[i] ? s->asked_at : s->steps);
    return count;
}

static unsigned long pairs_met;

static void run_pair(uint64_t of_seed, uint64_t number)
{
    static scenario s;
    uint64_t random;
    char what[300];
    memset(&s, 0, sizeof s);
    if (draw_metal4(of_seed, number, &random) != metal4_run()) return; /* for the other run */
    s.source = SEVERAL;
    s.often = draw_below(&random, 2) ? ONCE : ONCE_AND_AGAIN;
    s.manual_callbacks = draw_below(&random, 2);
    s.own_queue = !s.manual_callbacks && draw_below(&random, 2);
    s.later = draw_below(&random, 2);
    s.wide = draw_below(&random, 6) == 0;
    draw_two(&s, &random, what, sizeof what);
    snprintf(pair.text, sizeof pair.text, "Two faults: %s.\nFAULTS='%llu:%llu' %s\n", what, (unsigned long long)of_seed,
             (unsigned long long)number, program);
    if (alone) print_message("%s", pair.text);
    pair.runs = true;
    must_return_within(60);
    (void)run(&s);
    has_returned();
    pair.runs = false;
    pairs_met += met(&s) == 2;
}

static void test_faults_that_come_in_pairs_lose_nothing(void **state)
{
    unsigned long rounds = rounds_of(PAIRS), k;
    (void)state;
    if (alone) {
        run_pair(pair_seed, alone_number);
        return;
    }
    print_message("SEED=%llu: %lu pairs\n", (unsigned long long)pair_seed, rounds);
    for (k = 0; k < rounds; k++) run_pair(pair_seed, k);
    print_message("both came: %lu\n", pairs_met);
}

/* -- the process ------------------------------------------------------------------------------------

   On the real clock. Results are asserted; of times only that no wait gave up before its limit. */

/* A command buffer with which the device does not end; +1. */
static void *hang_on(gpusync_queue *queue, gpusync_ticket *ticket)
{
    void *buffer = kept_buffer_of(queue);
    softmetal_hang(buffer);
    *ticket = commit_to(queue, buffer);
    return buffer;
}

/* Opens command buffers until the queue has room for none. Returns how many. */
static size_t take_all_room(gpusync_queue *queue, void *open[64])
{
    static const uint64_t at_once = 0;
    const gpusync_command_buffer_desc desc = {.timeout_ns = &at_once};
    size_t count = 0;
    while (count < 64 && gpusync_command_buffer(queue, &desc, &open[count]) == GPUSYNC_OK) count++;
    return count;
}

/* On Metal 4 no call waits for room: the wait is for the queue. */
static gpusync_result wait_for_room(gpusync_queue *queue, uint64_t limit)
{
    const gpusync_command_buffer_desc desc = {.timeout_ns = &limit};
    gpusync_result result;
    void *buffer;
    if (metal4_run()) return gpusync_queue_wait(queue, limit);
    result = gpusync_command_buffer(queue, &desc, &buffer);
    must(result == GPUSYNC_TIMEOUT || gpusync_command_buffer_discard(queue, buffer) == GPUSYNC_OK, "not discarded");
    return result;
}

/* Every wait with a limit, of work that does not end. */
enum { FOR_TICKET, FOR_MANY, FOR_VALUE, FOR_ROOM, FOR_DEVICE, LIMITED_WAITS };
static gpusync_result wait_a_little(stage *s, int which, gpusync_ticket ticket, uint64_t limit)
{
    gpusync_wait_options options = {.spin = &no_spin};
    gpusync_point points[2] = {after(s->q[0], ticket), at(s->b, 1000)};
    void *open[64];
    size_t filled = which == FOR_ROOM ? take_all_room(s->q[0], open) : 0;
    uint64_t begun = gpusync_now_ns();
    gpusync_result result = which == FOR_TICKET  ? gpusync_wait_ex(s->q[0], ticket, limit, &options)
                            : which == FOR_MANY  ? gpusync_wait_many(points, 2, GPUSYNC_WAIT_ANY, limit, &options, NULL)
                            : which == FOR_VALUE ? gpusync_timeline_wait(s->b, 1000, limit, &options)
                            : which == FOR_ROOM  ? wait_for_room(s->q[0], limit)
                                                 : gpusync_device_wait(s->device, limit, &options);
    must(result != GPUSYNC_TIMEOUT || gpusync_now_ns() - begun >= limit, "a wait gave up before its limit");
    while (filled > 0) must(gpusync_command_buffer_discard(s->q[0], open[--filled]) == GPUSYNC_OK, "not discarded");
    return result;
}

static long alarms; /* that came to the thread which waits */
static pthread_t alarmed;
static void note_alarm(int number)
{
    int before = errno;
    (void)number;
    if (pthread_equal(pthread_self(), GET(&alarmed))) COUNT(&alarms);
    errno = before;
}

static void send_alarms(int us)
{
    struct itimerval each;
    memset(&each, 0, sizeof each);
    each.it_value.tv_usec = each.it_interval.tv_usec = us;
    assert_int_equal(setitimer(ITIMER_REAL, &each, NULL), 0);
}

static void test_signals_change_nothing_of_a_wait(void **state)
{
    static const gpusync_wait_options ways[] = {{.spin = &no_spin}, {.spin = NULL}, {.blocking = true}};
    struct sigaction action;
    unsigned round;
    stage s;
    (void)state;
    PUT(&clock_is_real, true);
    memset(&action, 0, sizeof action);
    action.sa_handler = note_alarm; /* and no SA_RESTART */
    assert_int_equal(sigaction(SIGALRM, &action, NULL), 0);
    PUT(&alarmed, pthread_self());
    PUT(&alarms, 0);
    open_stage(&s, SOFTMETAL_REAL, 2);
    send_alarms(1000);
    for (round = 0; round < 6 || GET(&alarms) < 10; round++) {
        const gpusync_wait_options *options = &ways[round % (metal4_run() ? 2 : 3)];
        gpusync_ticket ticket;
        void *buffer = open_on(&s, 0);
        softmetal_set_duration(buffer, MS(3));
        ticket = SUBMIT(s.q[0], BUFFERS(buffer), SIGNALS(at(s.a, round + 1)));
        (void)SUBMIT(s.q[1], WAITS(at(s.a, round + 1)), BUFFERS(open_on(&s, 1)));
        assert_ok(gpusync_wait_ex(s.q[0], ticket, GPUSYNC_FOREVER, options));
        assert_ok(gpusync_timeline_wait(s.a, round + 1, GPUSYNC_FOREVER, NULL));
        assert_ok(gpusync_queue_wait(s.q[1], GPUSYNC_FOREVER));
        while (rooms_taken(s.q[0])) sched_yield(); /* or a late handler makes the room that is waited for */
        buffer = hang_on(s.q[0], &ticket);
        assert_result(wait_a_little(&s, (int)round % LIMITED_WAITS, ticket, MS(3)), GPUSYNC_TIMEOUT);
        softmetal_unhang(buffer);
        metal_release(buffer);
        assert_ok(gpusync_wait_ex(s.q[0], ticket, GPUSYNC_FOREVER, options));
    }
    send_alarms(0);
    signal(SIGALRM, SIG_DFL);
    close_stage(&s);
}

/* The child that waits: it writes a byte as it goes to sleep, or when it did not. It reads one before it does more. */
static struct {
    int says, hears;
    bool tells;
    gpusync_hooks usual;
} stopped;

static void say_so(void)
{
    if (__atomic_exchange_n(&stopped.tells, false, __ATOMIC_SEQ_CST))
        must(write(stopped.says, "w", 1) == 1, "the parent does not hear the child");
}

static void tell_and_park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    say_so();
    stopped.usual.park(user, waiter, deadline_ns);
}

static void go_on(void)
{
    char byte;
    say_so(); /* where it did not come to sleep in time */
    must(read(stopped.hears, &byte, 1) == 1, "not told to go on");
}

static void wait_and_be_stopped(void)
{
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    gpusync_hooks hooks;
    gpusync_ticket ticket;
    softmetal_timing timing;
    void *buffer;
    int i;
    stage s;
    alarm(100);
    PUT(&clock_is_real, true);
    stopped.usual = hooks = probe_default_hooks();
    hooks.park = tell_and_park;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    device_desc.hooks = &hooks;
    device_desc.spin = &no_spin;
    open_stage_on(&s, SOFTMETAL_REAL, QUEUE_OF_GPUSYNC, 1, device_desc, queue_desc);
    softmetal_get_timing(&timing);
    timing.handler.min_ns = timing.handler.max_ns = MS(5);
    softmetal_set_timing(&timing);
    for (i = 0; i < LIMITED_WAITS; i++) { /* the limit passes while it is stopped */
        while (rooms_taken(s.q[0])) sched_yield(); /* or a late handler makes the room that is waited for */
        buffer = hang_on(s.q[0], &ticket);
        PUT(&stopped.tells, true);
        must(wait_a_little(&s, i, ticket, MS(10)) == GPUSYNC_TIMEOUT, "no TIMEOUT");
        go_on();
        softmetal_unhang(buffer);
        metal_release(buffer);
        must(gpusync_wait(s.q[0], ticket, GPUSYNC_FOREVER) == GPUSYNC_OK, "the work did not end");
    }
    for (i = 0; i < 2; i++) { /* the limit is far; the work ends when the process goes on */
        buffer = kept_buffer_of(s.q[0]);
        softmetal_set_duration(buffer, MS(10));
        ticket = commit_to(s.q[0], buffer);
        metal_release(buffer);
        PUT(&stopped.tells, true);
        must(gpusync_wait(s.q[0], ticket, i ? GPUSYNC_FOREVER : SECONDS(90)) == GPUSYNC_OK, "the wait was no good");
        go_on();
    }
    close_stage(&s);
    _exit(42);
}

/* Before this process has a thread of softmetal's: those do not come along through a fork. */
static void test_a_process_that_is_stopped_goes_on_waiting(void **state)
{
    const struct timespec a_while = {0, 20000000};
    int says[2], hears[2], status, i;
    pid_t child;
    char byte;
    (void)state;
    assert_int_equal(pipe(says), 0);
    assert_int_equal(pipe(hears), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        close(says[0]);
        close(hears[1]);
        stopped.says = says[1];
        stopped.hears = hears[0];
        wait_and_be_stopped();
    }
    close(says[1]);
    close(hears[0]);
    for (i = 0; i < LIMITED_WAITS + 2; i++) {
        assert_int_equal(read(says[0], &byte, 1), 1);
        assert_int_equal(kill(child, SIGSTOP), 0);
        assert_int_equal(waitpid(child, &status, WUNTRACED), child);
        assert_true(WIFSTOPPED(status));
        nanosleep(&a_while, NULL);
        assert_int_equal(kill(child, SIGCONT), 0);
        assert_int_equal(write(hears[1], "g", 1), 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 42);
    close(says[0]);
    close(hears[1]);
}

/* The child may do nothing with gpusync, which the header says. It ends, or becomes another program. */
static void spawn(bool other_program)
{
    int status;
    pid_t child = fork();
    must(child >= 0, "no fork");
    if (child == 0) {
        if (other_program) execl(program, program, "--end-with-7", (char *)NULL);
        _exit(other_program ? 99 : 7);
    }
    must(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7, "the child went wrong");
}

static void spawn_both(outcome *o)
{
    (void)o;
    spawn(false);
    spawn(true);
}

static void test_a_fork_changes_nothing_of_the_parent(void **state)
{
    outcome told[2];
    gpusync_ticket ticket;
    wait_job job;
    void *buffer;
    stage s;
    (void)state;
    PUT(&clock_is_real, true);
    memset(told, 0, sizeof told);
    open_stage(&s, SOFTMETAL_REAL, 2);
    told[0].then = spawn_both; /* in a callback */
    buffer = hang_on(s.q[0], &ticket);
    on_done(s.q[0], ticket, &told[0]);
    (void)hold_on(s.q[1], s.a, 1, &told[1]);
    wait_job_start(&job, s.q[0], ticket, GPUSYNC_FOREVER);
    await_sleepers(s.device, 1);
    spawn_both(NULL); /* while another thread sleeps, and work is held and in flight */
    assert_result(gpusync_poll(s.q[0], ticket), GPUSYNC_NOT_READY);
    softmetal_unhang(buffer);
    metal_release(buffer);
    assert_ok(wait_job_join(&job));
    assert_ended(&told[0], GPUSYNC_OK);
    assert_ok(gpusync_timeline_signal(s.a, 1));
    assert_ok(gpusync_queue_wait(s.q[1], GPUSYNC_FOREVER));
    assert_ended(&told[1], GPUSYNC_OK);
    close_stage(&s);
}

/* -- single faults ---------------------------------------------------------------------------------- */

static void rig_open_wide(rig *r, softmetal_clock clock)
{
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    PUT(&clock_is_real, true);
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    queue_desc.max_command_buffer_count = 1024;
    rig_open_with(r, clock, device_desc, queue_desc);
}

/* The places that the queue counts as taken, of the report's "buffers N of M". */
static unsigned places_taken(gpusync_device *device)
{
    unsigned taken = 0;
    size_t size = gpusync_report(device, NULL, 0) + 1000;
    char *text = (char *)malloc(size), *at;
    assert_non_null(text);
    gpusync_report(device, text, size);
    at = strstr(text, "buffers ");
    assert_non_null(at);
    assert_int_equal(sscanf(at, "buffers %u of ", &taken), 1);
    free(text);
    return taken;
}

static void test_a_buffer_refused_for_want_of_memory_is_still_the_callers(void **state)
{
    unsigned long owners;
    unsigned taken;
    gpusync_stats before, after;
    gpusync_ticket ticket = 99;
    void *ours, *own, *other;
    int i;
    rig r;
    (void)state;
    rig_open_wide(&r, SOFTMETAL_MANUAL);
    for (i = 0; i < 256; i++) commit_empty(&r, NULL);
    ours = open_buffer(&r);
    other = open_buffer(&r);
    own = metal4_run() ? metal_retain(open_buffer(&r)) : metal_queue_command_buffer(r.metal_queue);
    owners = softmetal_retain_count(own);
    before = stats_of(r.queue);
    taken = places_taken(r.device);
    r.memory.fail_at = 1;
    r.memory.fail_after = true;
    assert_result(either_commit(r.queue, ours, &ticket), NO_MEMORY);
    assert_int_equal(ticket, GPUSYNC_NO_TICKET);
    assert_result(either_commit(r.queue, own, &ticket), NO_MEMORY);
    if (!metal4_run()) {
        assert_result(gpusync_track(r.queue, own, &ticket), NO_MEMORY);
        assert_result(gpusync_track(r.queue, other, &ticket), NO_MEMORY);
    }
    after = stats_of(r.queue);
    assert_memory_equal(&before, &after, sizeof before);
    assert_int_equal(places_taken(r.device), taken);
    assert_int_equal(softmetal_retain_count(own), owners);
    assert_int_equal(softmetal_retain_count(ours), 1);
    assert_int_equal(status_of(ours), 0);
    assert_int_equal(status_of(own), 0);
    assert_int_equal(softmetal_handler_count(own), 0);
    r.memory.fail_at = 0;
    assert_ok(either_discard(r.queue, other));
    assert_ok(either_commit(r.queue, ours, &ticket));
    assert_int_equal(ticket, 257);
    assert_ok(either_commit(r.queue, own, &ticket));
    assert_int_equal(ticket, 258);
    softmetal_finish_queue(r.metal_queue);
    assert_ok(gpusync_queue_wait(r.queue, 0));
    assert_int_equal(softmetal_retain_count(own), owners);
    metal_release(own);
    rig_close(&r);
}

static void test_without_a_slot_nothing_is_made_or_taken(void **state)
{
    void *buffer = &state, *own;
    unsigned long owners;
    gpusync_ticket ticket = 99;
    int i;
    rig r;
    (void)state;
    rig_open_wide(&r, SOFTMETAL_MANUAL);
    own = metal4_run() ? metal_retain(open_buffer(&r)) : metal_queue_command_buffer(r.metal_queue);
    owners = softmetal_retain_count(own);
    probe_forget_spare_memory(NULL);
    probe_memory.fail_at = 1;
    probe_memory.fail_after = true;
    for (i = 0; i < 3; i++) {
        assert_result(either_commit(r.queue, own, &ticket), NO_MEMORY);
        assert_int_equal(ticket, GPUSYNC_NO_TICKET);
        if (metal4_run()) continue;
        assert_result(gpusync_command_buffer(r.queue, NULL, &buffer), NO_MEMORY);
        assert_null(buffer);
        assert_result(gpusync_track(r.queue, own, &ticket), NO_MEMORY);
        assert_int_equal(ticket, GPUSYNC_NO_TICKET);
    }
    assert_int_equal(softmetal_live("command_buffer"), metal4_run() ? 0 : 1);
    assert_int_equal(softmetal_retain_count(own), owners);
    assert_true(gpusync_is_idle(r.queue));
    probe_memory.fail_at = 0;
    assert_ok(either_commit(r.queue, own, &ticket));
    softmetal_finish_queue(r.metal_queue);
    metal_release(own);
    rig_close(&r);
}

static void test_a_device_is_found_in_the_list_when_there_is_no_default_one(void **state)
{
    gpusync_device *device = NULL;
    long devices;
    (void)state;
    softmetal_reset();
    devices = softmetal_live("device");
    softmetal_fail_creation(1, false);
    assert_ok(gpusync_device_create(NULL, &device));
    assert_non_null(gpusync_device_metal(device));
    assert_ok(gpusync_device_destroy(device));
    softmetal_fail_creation(1, true);
    assert_result(gpusync_device_create(NULL, &device), GPUSYNC_ERROR_NO_DEVICE);
    assert_null(device);
    softmetal_fail_creation(0, false);
    assert_int_equal(softmetal_live("device"), devices);
}

/* A device without an allocator has its memory from the C library. */
static void test_without_an_allocator_the_c_library_may_have_no_memory_either(void **state)
{
    gpusync_timeline *timeline = NULL;
    gpusync_device *device;
    (void)state;
    softmetal_reset();
    assert_ok(gpusync_device_create(NULL, &device));
    probe_memory.fail_after = false;
    probe_memory.fail_at = 1;
    assert_result(gpusync_timeline_create(device, NULL, &timeline), GPUSYNC_ERROR_OUT_OF_MEMORY);
    assert_null(timeline);
    assert_int_equal(probe_memory.fail_at, 0);
    assert_ok(gpusync_timeline_create(device, NULL, &timeline));
    assert_ok(gpusync_timeline_destroy(timeline));
    assert_ok(gpusync_device_destroy(device));
}

/* What a device shares with dispatch queues outlives it, and the next device gets it. Where there is none to be had no
   device is made, and nothing stays of it. */
static void test_what_outlives_a_device_may_not_be_had(void **state)
{
    gpusync_device_desc desc;
    gpusync_allocator allocator;
    gpusync_device *devices[64];
    memory_log memory;
    gpusync_result result = GPUSYNC_OK;
    long alive, live;
    size_t count = 0;
    (void)state;
    softmetal_reset();
    memset(&desc, 0, sizeof desc);
    memset(&memory, 0, sizeof memory);
    allocator.allocate = memory_allocate;
    allocator.release = memory_release;
    allocator.user = &memory;
    desc.allocator = &allocator;
    while (true) {
        alive = memory.live;
        live = softmetal_live(NULL);
        probe_memory.fail_after = false;
        probe_memory.fail_at = 1; /* of the C library: the allocator gives */
        result = gpusync_device_create(&desc, &devices[count]);
        if (result != GPUSYNC_OK) break;
        assert_true(++count < LENGTH(devices));
    }
    assert_result(result, GPUSYNC_ERROR_OUT_OF_MEMORY);
    assert_int_equal(probe_memory.fail_at, 0);
    assert_null(devices[count]);
    assert_int_equal(memory.live, alive);
    assert_int_equal(softmetal_live(NULL), live);
    assert_ok(gpusync_device_create(&desc, &devices[count]));
    count++;
    while (count--) assert_ok(gpusync_device_destroy(devices[count]));
    assert_int_equal(memory.live, 0);
}

/* The empty command buffer of a warm-up has no slot: that is the warm-up's result, not a reason to wait on. */
static void test_a_blocking_warm_up_without_memory_for_its_command_buffer_returns(void **state)
{
    gpusync_warmup_desc desc;
    gpusync_warmup *warmup;
    rig r;
    (void)state;
    NOT_ON_METAL4("warm-ups have no queue");
    rig_open_wide(&r, SOFTMETAL_REAL);
    memset(&desc, 0, sizeof desc);
    desc.queue = r.queue;
    desc.blocking = true;
    probe_forget_spare_memory(r.queue);
    probe_memory.fail_after = 0;
    probe_memory.fail_at = 1;
    assert_ok(gpusync_warmup_start(r.device, &desc, &warmup));
    assert_int_equal(probe_memory.fail_at, 0);
    assert_result(gpusync_warmup_wait(warmup, 0), GPUSYNC_ERROR_OUT_OF_MEMORY);
    assert_ok(gpusync_warmup_destroy(warmup));
    rig_close(&r);
}

/* Metal promises one call. A second one, of a slot that is free, finds nothing to do. */
static void test_a_handler_that_is_called_twice_changes_nothing(void **state)
{
    void *buffer, *handler;
    unsigned i;
    rig r;
    (void)state;
    rig_open(&r, SOFTMETAL_MANUAL);
    commit_empty(&r, &buffer);
    handler = probe_handler(r.queue);
    softmetal_finish(buffer);
    assert_true(probe_calls_again(handler, buffer));
    for (i = 0; i < 3; i++) {
        assert_ok(gpusync_wait(r.queue, GPUSYNC_EVERYTHING, 0));
        commit_empty(&r, &buffer);
        softmetal_finish(buffer);
    }
    rig_close(&r);
}

/* An argument is a pattern of the names of the tests to run: test_a_*. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_process_that_is_stopped_goes_on_waiting), /* forks: first */
        cmocka_unit_test(test_without_a_fault_nothing_is_refused),
        cmocka_unit_test(test_an_allocation_that_fails_loses_nothing),
        cmocka_unit_test(test_a_creation_that_fails_loses_nothing),
        cmocka_unit_test(test_memory_of_the_c_library_that_fails_loses_nothing),
        cmocka_unit_test(test_a_device_that_is_lost_at_any_step_loses_nothing_else),
        cmocka_unit_test(test_lost_handlers_and_deaf_listeners_lose_nothing),
        cmocka_unit_test(test_faults_that_come_together_lose_nothing),
        cmocka_unit_test_setup_teardown(test_faults_that_come_in_pairs_lose_nothing, watch_pairs, leave_pairs),
        cmocka_unit_test(test_signals_change_nothing_of_a_wait),
        cmocka_unit_test(test_a_fork_changes_nothing_of_the_parent),
        cmocka_unit_test(test_a_buffer_refused_for_want_of_memory_is_still_the_callers),
        cmocka_unit_test(test_without_a_slot_nothing_is_made_or_taken),
        cmocka_unit_test(test_a_device_is_found_in_the_list_when_there_is_no_default_one),
        cmocka_unit_test(test_without_an_allocator_the_c_library_may_have_no_memory_either),
        cmocka_unit_test(test_what_outlives_a_device_may_not_be_had),
        cmocka_unit_test(test_a_blocking_warm_up_without_memory_for_its_command_buffer_returns),
        cmocka_unit_test(test_a_handler_that_is_called_twice_changes_nothing),
    };
    clock_is_real = false;
    program = argv[0];
    if (getenv("SEED")) seed = pair_seed = strtoull(getenv("SEED"), NULL, 10);
    alone = getenv("FAULTS");
    if (alone) {
        uint64_t random;
        char *end;
        pair_seed = strtoull(alone, &end, 10);
        alone_number = *end == ':' ? strtoull(end + 1, NULL, 10) : 0;
        setenv("QUEUES", draw_metal4(pair_seed, alone_number, &random) ? "metal4" : "metal", 1);
        cmocka_set_test_filter("test_faults_that_come_in_pairs*");
    }
    if (argc > 1 && strcmp(argv[1], "--end-with-7") == 0) return 7;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
