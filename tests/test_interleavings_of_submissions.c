/* test_interleavings_of_submissions.c - races of submissions, replayed one step at a time

   On softmetal's manual clock nothing moves but what a test moves. Code that runs at a message
   (softmetal_set_message_hook), in a hook of gpusync, or at a place in the middle of a call (probe.h), stands for the
   other thread; some races are replayed at every point of a call, by number, until there is no further one. Each test
   names the rule of the header that it goes red without. At the end every order of the steps of four submissions is tried. Numbers are those of the list that test_interleavings.c begins: 12 to 17, and 24.

   It also runs on queues of Metal 4. */
#include "probe.h"
#include "stage.h"

#define QUEUES 3 /* of a stage, and as many of its timelines */

/* -- queues, timelines, submissions ----------------------------------------------------------------------- */

/* hooks and log may be NULL. Waits sleep at once. */
static void open_sleepy_stage(stage *s, const gpusync_hooks *hooks, gpusync_log_fn log)
{
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    device_desc.hooks = hooks;
    device_desc.spin = &no_spin;
    device_desc.log = log;
    open_stage_on(s, SOFTMETAL_MANUAL, QUEUE_OF_GPUSYNC, QUEUES, device_desc, queue_desc);
}

/* A submission of one command buffer, which carries the wait at its head and the signal at its end: so that each of its
   steps is one step of one buffer. (STRICT ones wait and signal on the host; with Metal 4 the queue does, which is no
   step.) What its callback was told is noted here as well. */
typedef struct job {
    gpusync_queue *queue;
    gpusync_point wait, signal; /* all zero: none */
    uint32_t flags;
    void *buffer; /* retained until job_over */
    gpusync_ticket ticket;
    unsigned calls;
    gpusync_result result;
    gpusync_error error;
    pthread_t thread; /* that called back */
    bool marked;      /* the ticket was over when it did */
} job;

static void job_called_back(void *user, gpusync_result result, const gpusync_error *error)
{
    job *j = (job *)user;
    j->result = result;
    assert_int_equal(error != NULL, result != GPUSYNC_OK);
    if (error) j->error = *error;
    j->thread = pthread_self();
    j->marked = j->ticket == 0 || probe_has_ended(j->queue, j->ticket);
    __atomic_fetch_add(&j->calls, 1, __ATOMIC_SEQ_CST);
}

static size_t job_waits(const job *j) { return j->wait.timeline || j->wait.queue; }
static bool waits_outside(const job *j) { return j->flags & GPUSYNC_STRICT || is_metal4(j->queue); }

static gpusync_result job_try(job *j)
{
    gpusync_submission s;
    memset(&s, 0, sizeof s);
    s.waits = &j->wait;
    s.wait_count = waits_outside(j) ? job_waits(j) : 0;
    s.signals = &j->signal;
    s.signal_count = j->signal.timeline != NULL;
    s.command_buffers = &j->buffer;
    s.command_buffer_count = 1;
    s.on_complete = job_called_back;
    s.user = j;
    s.flags = j->flags | SIGNALS_INSIDE;
    return submit_as_told(j->queue, &s, &j->ticket);
}

static void job_open(job *j)
{
    assert_ok(make_behind(j->queue, NULL, &j->wait, waits_outside(j) ? 0 : job_waits(j), &j->buffer));
    metal_retain(j->buffer);
}

static void job_submit(job *j)
{
    job_open(j);
    assert_ok(job_try(j));
}

static void job_over(job *j)
{
    metal_release(j->buffer);
    j->buffer = NULL;
}

#define JOB(...) ((job){__VA_ARGS__})

static bool is_committed(const job *j) { return status_of(j->buffer) >= 2; }

static gpusync_result poll_job(const job *j) { return gpusync_poll(j->queue, j->ticket); }

static unsigned calls_of_job(job *j) { return (unsigned)CALLED(j->calls); }

static void run_handler(job *j)
{
    softmetal_run_handler(j->buffer, 0);
    softmetal_release_block(j->buffer, 0);
}

/* The work ends, and a call that asks sees it. With Metal 4 that is when its handler has run. */
static void end_job(job *j)
{
    softmetal_complete(j->buffer);
    if (metal4_run()) run_handler(j);
}

static void run_late_handler(job *j)
{
    if (!metal4_run()) run_handler(j);
}

static void wait_for_call(job *j)
{
    uint64_t end = gpusync_now_ns() + SECONDS(20);
    while (calls_of_job(j) == 0 && gpusync_now_ns() < end) sched_yield();
}

static void assert_called_once(job *j)
{
    wait_for_call(j);
    assert_int_equal(calls_of_job(j), 1);
}

/* Called back, once, with this result, and on a thread of Metal's, perhaps of the listener's, which comes by itself. */
static void assert_called(job *j, gpusync_result result)
{
    assert_called_once(j);
    assert_result(j->result, result);
    assert_false(pthread_equal(j->thread, pthread_self()));
    assert_true(j->marked);
}

/* What the library believes, without having it look. */
#define FAILED (~(uint64_t)0)
static uint64_t believed(gpusync_timeline *timeline)
{
    uint64_t value;
    return gpusync_timeline_query(timeline, &value) == GPUSYNC_OK ? value : FAILED; /* looks at imported ones only */
}
static bool is_marked(const job *j) { return probe_has_ended(j->queue, j->ticket); }

static gpusync_result value_result(gpusync_timeline *timeline, uint64_t number)
{
    return gpusync_timeline_wait(timeline, number, 0, NULL);
}

/* Every way to go through the steps 0 .. count - 1 that keeps the order of the pairs (0, 1), (2, 3), ... */
typedef struct permutation {
    unsigned steps[8], count;
} permutation;

static bool permutation_is_valid(const permutation *p)
{
    unsigned i, k;
    for (i = 0; i < p->count; i++)
        for (k = i + 1; k < p->count; k++)
            if (p->steps[i] % 2 == 1 && p->steps[k] == p->steps[i] - 1) return false;
    return true;
}

/* The next one in the order of a dictionary; false after the last. */
static bool permutation_next(permutation *p)
{
    for (;;) {
        unsigned i = p->count - 1, k = p->count - 1, low, high;
        while (i > 0 && p->steps[i - 1] > p->steps[i]) i--;
        if (i == 0) return false;
        while (p->steps[k] < p->steps[i - 1]) k--;
        low = p->steps[i - 1];
        p->steps[i - 1] = p->steps[k];
        p->steps[k] = low;
        for (low = i, high = p->count - 1; low < high; low++, high--) {
            unsigned swapped = p->steps[low];
            p->steps[low] = p->steps[high];
            p->steps[high] = swapped;
        }
        if (permutation_is_valid(p)) return true;
    }
}

static void permutation_first(permutation *p, unsigned count)
{
    unsigned i;
    p->count = count;
    for (i = 0; i < count; i++) p->steps[i] = i;
}

/* -- 12 ----------------------------------------------------------------------------------------- */

/* Rule: a pending value is reached when the work that was to signal it has ended well, whatever the event stands at, and
   only after every smaller pending signal. S2 is to signal 6, then S1 on another queue 5. Steps: S1 completes, its handler; S2
   completes, its handler; then, in the fifth place of the order, the test asks (5: it does not). */
enum { S1_COMPLETES, S1_HANDLER, S2_COMPLETES, S2_HANDLER };

static void check_two_signals(const permutation *p, bool killed, bool ask)
{
    gpusync_result expected = killed ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK;
    const unsigned s1_ends = metal4_run() ? S1_HANDLER : S1_COMPLETES, s2_ends = metal4_run() ? S2_HANDLER : S2_COMPLETES;
    bool s1_over = false, s2_over = false; /* for a call that asks */
    job s1, s2;
    unsigned i;
    stage s;
    open_sleepy_stage(&s, NULL, NULL);
    s1 = JOB(.queue = s.q[0], .signal = at(s.t[0], 5));
    s2 = JOB(.queue = s.q[1], .signal = at(s.t[0], 6));
    job_submit(&s2); /* the other way round it would go after S1 */
    job_submit(&s1);
    if (killed) softmetal_fail(s1.buffer, NULL, 3, "killed");
    for (i = 0; i < p->count; i++) {
        if (p->steps[i] == S1_COMPLETES) softmetal_complete(s1.buffer);
        if (p->steps[i] == S1_HANDLER) run_handler(&s1);
        if (p->steps[i] == S2_COMPLETES) softmetal_complete(s2.buffer);
        if (p->steps[i] == S2_HANDLER) run_handler(&s2);
        s1_over |= p->steps[i] == s1_ends;
        s2_over |= p->steps[i] == s2_ends;
        if (!s1_over) assert_true(believed(s.t[0]) < 5);
        if (killed) assert_true(believed(s.t[0]) < 5 || believed(s.t[0]) == FAILED);
        if (!ask) continue;
        if (i % 2) (void)poll_job(&s2); /* by the ticket first: it may not hide anything from a query of the value */
        assert_result(value_result(s.t[0], 5), s1_over ? expected : GPUSYNC_TIMEOUT);
        assert_result(value_result(s.t[0], 6), s1_over && (killed || s2_over) ? expected : GPUSYNC_TIMEOUT);
        assert_result(poll_job(&s1), s1_over ? expected : GPUSYNC_NOT_READY);
        assert_result(poll_job(&s2), s2_over ? GPUSYNC_OK : GPUSYNC_NOT_READY); /* waits for nothing */
    }
    assert_int_equal(believed(s.t[0]), killed ? FAILED : 6);
    assert_result(value_result(s.t[0], 5), expected);
    assert_result(value_result(s.t[0], 6), expected);
    assert_called(&s1, expected);
    assert_called(&s2, GPUSYNC_OK);
    job_over(&s1);
    job_over(&s2);
    close_stage(&s);
}

static void check_two_signals_in_every_order(bool killed)
{
    permutation p;
    permutation_first(&p, 4);
    do {
        check_two_signals(&p, killed, false);
        check_two_signals(&p, killed, true);
    } while (permutation_next(&p));
}

static void test_interleaving_12_a_larger_signal_does_not_hide_that_the_work_was_killed(void **state)
{
    (void)state;
    check_two_signals_in_every_order(true);
}

static void test_interleaving_12_the_value_follows_the_pending_signals_in_their_order(void **state)
{
    (void)state;
    check_two_signals_in_every_order(false);
}

/* Nor does a signal of the host's. */
static void test_interleaving_12_a_larger_signal_of_the_host_waits_for_the_pending_signal_below_it(void **state)
{
    bool killed = false;
    (void)state;
    do {
        job s1;
        stage s;
        open_sleepy_stage(&s, NULL, NULL);
        s1 = JOB(.queue = s.q[0], .signal = at(s.t[0], 5));
        job_submit(&s1);
        if (killed) softmetal_fail(s1.buffer, NULL, 3, NULL);
        assert_ok(gpusync_timeline_signal(s.t[0], 9));
        assert_int_equal(believed(s.t[0]), 4);
        assert_result(value_result(s.t[0], 9), GPUSYNC_TIMEOUT);
        end_job(&s1);
        assert_result(value_result(s.t[0], 9), killed ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK);
        assert_result(value_result(s.t[0], 5), killed ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK);
        run_late_handler(&s1);
        job_over(&s1);
        close_stage(&s);
        killed = !killed;
    } while (killed);
}

/* -- 13 ----------------------------------------------------------------------------------------- */

/* Rule: a result is published only after the producers of its waits are over. The consumer's wait for 5 passes on the
   device, because other code has raised the event to 6; its producer was killed, or is about to be. */
typedef struct late_producer {
    stage s;
    job producer, consumer;
} late_producer;

static void late_producer_open(late_producer *l, bool killed)
{
    open_sleepy_stage(&l->s, NULL, NULL);
    l->producer = JOB(.queue = l->s.q[0], .signal = at(l->s.t[0], 5));
    l->consumer = JOB(.queue = l->s.q[2], .wait = at(l->s.t[0], 5), .signal = at(l->s.t[1], 1));
    job_submit(&l->producer);
    job_submit(&l->consumer);
    if (killed) softmetal_fail(l->producer.buffer, NULL, 3, "killed");
    raise_behind_its_back(l->s.t[0], 6);
    softmetal_finish(l->consumer.buffer); /* with its handler */
}

static void assert_consumer_unknown(late_producer *l)
{
    assert_false(gpusync_is_done(l->consumer.queue, l->consumer.ticket));
    assert_false(gpusync_is_idle(l->consumer.queue));
    assert_false(is_marked(&l->consumer));
    assert_int_equal(calls_of_job(&l->consumer), 0);
    assert_int_equal(believed(l->s.t[1]), 0);
}

static void late_producer_close(late_producer *l, gpusync_result expected)
{
    assert_result(poll_job(&l->consumer), expected);
    assert_result(value_result(l->s.t[1], 1), expected);
    assert_called(&l->consumer, expected);
    if (expected != GPUSYNC_OK) {
        assert_int_equal(l->consumer.error.code, 3);
        assert_string_equal(l->consumer.error.message, "killed");
        assert_int_equal(l->consumer.error.ticket, l->consumer.ticket);
    }
    job_over(&l->producer);
    job_over(&l->consumer);
    close_stage(&l->s);
}

static void check_13_producer_tells_by_its_handler(bool killed)
{
    late_producer l;
    late_producer_open(&l, killed);
    assert_consumer_unknown(&l);
    softmetal_complete(l.producer.buffer);
    assert_consumer_unknown(&l);
    run_handler(&l.producer);
    assert_true(is_marked(&l.consumer));
    late_producer_close(&l, killed ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK);
}

/* A poll of the producer sees the end whose handler has not come, and the consumer's with it. */
static void check_13_producer_is_seen_by_its_status(bool killed, bool wait)
{
    gpusync_result expected = killed ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK;
    late_producer l;
    late_producer_open(&l, killed);
    assert_result(poll_job(&l.consumer), GPUSYNC_NOT_READY);
    assert_result(gpusync_wait(l.consumer.queue, l.consumer.ticket, MS(1)), GPUSYNC_TIMEOUT);
    assert_consumer_unknown(&l);
    softmetal_complete(l.producer.buffer);
    assert_consumer_unknown(&l);
    softmetal_set_dispatch_threads(0);
    assert_result(poll_job(&l.producer), expected);
    if (wait) assert_result(gpusync_wait(l.consumer.queue, l.consumer.ticket, GPUSYNC_FOREVER), expected);
    else assert_result(poll_job(&l.consumer), expected);
    assert_int_equal(__atomic_load_n(&l.consumer.calls, __ATOMIC_SEQ_CST), 0); /* not in a call that is or may be a wait */
    softmetal_set_dispatch_threads(SOFTMETAL_DISPATCH_THREADS);
    run_handler(&l.producer);
    late_producer_close(&l, expected);
}

static void test_interleaving_13_a_consumer_that_ends_first_is_published_after_its_producer(void **state)
{
    unsigned i;
    (void)state;
    for (i = 0; i < 2; i++) {
        check_13_producer_tells_by_its_handler(i == 1);
        if (metal4_run()) continue; /* no call can see it by that */
        check_13_producer_is_seen_by_its_status(i == 1, false);
        check_13_producer_is_seen_by_its_status(i == 1, true);
    }
}

/* The same where the wait is for a ticket, of a submission or of a plain commit: the consumer is held until that has ended,
   and ends with its failure, at once and without having been on the device. */
static void test_interleaving_13_a_consumer_of_a_ticket_gets_the_failure_of_the_ticket(void **state)
{
    unsigned plain;
    (void)state;
    for (plain = 0; plain < 2; plain++) {
        job producer, consumer;
        stage s;
        open_sleepy_stage(&s, NULL, NULL);
        producer = JOB(.queue = s.q[0]);
        job_open(&producer);
        softmetal_fail(producer.buffer, NULL, 3, "killed");
        if (plain) producer.ticket = commit_to(s.q[0], producer.buffer);
        else assert_ok(job_try(&producer));
        consumer = JOB(.queue = s.q[1]);
        consumer.wait.queue = s.q[0];
        consumer.wait.ticket = producer.ticket;
        job_submit(&consumer);
        assert_false(is_committed(&consumer));
        softmetal_complete(producer.buffer);
        assert_int_equal(calls_of_job(&consumer), 0); /* no call has seen the end yet */
        if (metal4_run()) run_handler(&producer);
        assert_result(poll_job(&producer), GPUSYNC_ERROR_EXECUTION);
        assert_result(poll_job(&consumer), GPUSYNC_ERROR_EXECUTION);
        assert_true(is_marked(&producer));
        assert_false(is_committed(&consumer));
        assert_called(&consumer, GPUSYNC_ERROR_EXECUTION);
        assert_int_equal(consumer.error.code, 3);
        run_late_handler(&producer);
        job_over(&producer);
        job_over(&consumer);
        close_stage(&s);
    }
}

/* -- 14 ----------------------------------------------------------------------------------------- */

static unsigned unparks;

static void counting_unpark(void *user, gpusync_waiter *waiter)
{
    (void)user;
    __atomic_fetch_add(&unparks, 1, __ATOMIC_SEQ_CST);
    thread_unpark(waiter);
}

static void plain_park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    (void)user;
    thread_park(waiter, deadline_ns);
}

/* Rule: a wait takes its registration back before it returns. The signal that comes late, from a handler or from the
   host, finds no waiter, and the wait can be repeated. */
static void test_interleaving_14_a_signal_after_the_wait_has_timed_out(void **state)
{
    gpusync_hooks hooks = {NULL, plain_park, counting_unpark, NULL};
    job producer, consumer;
    stage s;
    (void)state;
    open_sleepy_stage(&s, &hooks, NULL);
    producer = JOB(.queue = s.q[0], .signal = at(s.t[0], 1));
    consumer = JOB(.queue = s.q[1], .wait = at(s.t[0], 2));
    job_submit(&producer);
    job_submit(&consumer);
    assert_result(gpusync_timeline_wait(s.t[0], 1, MS(1), NULL), GPUSYNC_TIMEOUT);
    assert_result(gpusync_timeline_wait(s.t[0], 2, MS(1), NULL), GPUSYNC_TIMEOUT);
    assert_result(gpusync_wait(s.q[1], consumer.ticket, MS(1)), GPUSYNC_TIMEOUT);
    assert_int_equal(sleepers_of(s.device), 0);
    __atomic_store_n(&unparks, 0, __ATOMIC_SEQ_CST);
    softmetal_finish(producer.buffer);
    assert_ok(gpusync_timeline_wait(s.t[0], 1, MS(1), NULL));
    assert_result(gpusync_timeline_wait(s.t[0], 2, 0, NULL), GPUSYNC_TIMEOUT);
    assert_ok(gpusync_timeline_signal(s.t[0], 2));
    assert_true(is_committed(&consumer));
    softmetal_finish(consumer.buffer);
    assert_int_equal(__atomic_load_n(&unparks, __ATOMIC_SEQ_CST), 0);
    assert_ok(gpusync_timeline_wait(s.t[0], 2, MS(1), NULL));
    assert_called(&consumer, GPUSYNC_OK);
    job_over(&producer);
    job_over(&consumer);
    close_stage(&s);
}

/* -- 15 ----------------------------------------------------------------------------------------- */

/* A thread that is stopped at a message to this object. */
typedef struct stop {
    void *object;
    const char *selector;
    softmetal_phase phase;
    unsigned countdown; /* at the n-th; counts on */
    gate entered, leave;
} stop;

static void stop_hook(void *user, softmetal_phase phase, void *object, const char *selector)
{
    stop *p = (stop *)user;
    if (phase != p->phase) return;
    if (strcmp(p->selector, "commit") == 0 ? !commits(object, selector, p->object)
                                           : object != p->object || strcmp(selector, p->selector) != 0)
        return;
    if (__atomic_sub_fetch(&p->countdown, 1, __ATOMIC_SEQ_CST) != 0) return;
    gate_wait(&p->entered);
    gate_wait(&p->leave);
}

static void stop_at(stop *p, void *object, const char *selector, softmetal_phase phase)
{
    memset(p, 0, sizeof *p);
    p->object = object;
    p->selector = selector;
    p->phase = phase;
    p->countdown = 1;
    gate_init(&p->entered, 2);
    gate_init(&p->leave, 2);
    softmetal_set_message_hook(stop_hook, p);
}

static void stop_over(stop *p)
{
    softmetal_set_message_hook(NULL, NULL);
    gate_destroy(&p->entered);
    gate_destroy(&p->leave);
}

static void *submit_body(void *argument)
{
    assert_ok(job_try((job *)argument));
    return NULL;
}

/* Rule: no handler waits for the order lock. A function on a dispatch queue of its own does, and issues the work. */
static void test_interleaving_15_a_handler_has_held_work_to_issue_while_another_thread_has_the_order_lock(void **state)
{
    job producer, consumer, passing;
    pthread_t thread;
    stop at_commit;
    stage s;
    (void)state;
    open_sleepy_stage(&s, NULL, NULL);
    producer = JOB(.queue = s.q[1], .signal = at(s.t[0], 1));
    consumer = JOB(.queue = s.q[0], .wait = at(s.t[0], 1), .flags = GPUSYNC_UNORDERED | GPUSYNC_STRICT);
    passing = JOB(.queue = s.q[0], .flags = GPUSYNC_UNORDERED);
    job_submit(&producer);
    job_submit(&consumer);
    job_open(&passing);
    stop_at(&at_commit, passing.buffer, "commit", SOFTMETAL_AFTER);
    thread = start(submit_body, &passing);
    gate_wait(&at_commit.entered);
    softmetal_finish(producer.buffer); /* returns when the handler has */
    assert_int_equal(believed(s.t[0]), 1);
    assert_false(is_committed(&consumer));
    gate_wait(&at_commit.leave);
    join(thread);
    stop_over(&at_commit);
    assert_called(&producer, GPUSYNC_OK); /* the function has run, too */
    assert_true(is_committed(&consumer));
    softmetal_finish(passing.buffer);
    softmetal_finish(consumer.buffer);
    assert_called(&consumer, GPUSYNC_OK);
    assert_called(&passing, GPUSYNC_OK);
    job_over(&producer);
    job_over(&consumer);
    job_over(&passing);
    close_stage(&s);
}

/* ... nor does a callback, whatever it does: here it fails a timeline, and so ends a submission, whose own callback is
   due. No other handler needs to be found for that, for it is the turn of this thread. */
static struct {
    gpusync_timeline *timeline;
    uint32_t returned;
} failing;

static void fail_in_callback(void *user, gpusync_result result, const gpusync_error *error)
{
    (void)user;
    (void)result;
    (void)error;
    assert_ok(gpusync_timeline_fail(failing.timeline, NULL));
    __atomic_store_n(&failing.returned, 1, __ATOMIC_SEQ_CST);
}

static void test_interleaving_15_a_callback_that_ends_other_work_does_not_wait_for_the_order_lock(void **state)
{
    job producer, consumer, passing;
    gpusync_submission submission;
    pthread_t thread;
    stop at_commit;
    void *calling;
    uint64_t limit;
    bool returned;
    stage s;
    (void)state;
    open_sleepy_stage(&s, NULL, NULL);
    producer = JOB(.queue = s.q[1], .signal = at(s.t[0], 1));
    consumer = JOB(.queue = s.q[2], .wait = at(s.t[0], 1));
    passing = JOB(.queue = s.q[0]); /* the first queue of the device */
    job_submit(&producer);
    job_submit(&consumer);
    raise_behind_its_back(s.t[0], 2); /* lets the consumer pass on the device */
    softmetal_finish(consumer.buffer);
    assert_int_equal(calls_of_job(&consumer), 0);
    calling = kept_buffer_of(s.q[1]);
    memset(&submission, 0, sizeof submission);
    submission.command_buffers = &calling;
    submission.command_buffer_count = 1;
    submission.on_complete = fail_in_callback;
    failing.timeline = s.t[0];
    failing.returned = 0;
    assert_ok(either_submit(s.q[1], &submission, NULL));
    job_open(&passing);
    stop_at(&at_commit, passing.buffer, "commit", SOFTMETAL_AFTER);
    thread = start(submit_body, &passing);
    gate_wait(&at_commit.entered);
    softmetal_complete(calling);
    softmetal_begin_handler(calling, 0);
    limit = gpusync_now_ns() + SECONDS(2); /* so that a handler that does wait makes a red test and not a hang */
    do {
        sched_yield();
        returned = __atomic_load_n(&failing.returned, __ATOMIC_SEQ_CST) != 0;
    } while (!returned && gpusync_now_ns() < limit);
    gate_wait(&at_commit.leave);
    join(thread);
    stop_over(&at_commit);
    softmetal_join_handler(calling, 0);
    softmetal_release_block(calling, 0);
    metal_release(calling);
    assert_called(&consumer, GPUSYNC_ERROR_EXECUTION);
    softmetal_finish(producer.buffer);
    finish_queue(s.q[0]);
    job_over(&producer);
    job_over(&consumer);
    job_over(&passing);
    close_stage(&s);
    assert_true(returned);
}

static bool signalled_in_callback;

static void signal_in_callback(void *user, gpusync_result result, const gpusync_error *error)
{
    assert_ok(result);
    assert_null(error);
    assert_ok(gpusync_timeline_signal((gpusync_timeline *)user, 1));
    PUT(&signalled_in_callback, true);
}

/* A commit that is stopped inside Metal, with the order lock. */
typedef struct stopped_commit {
    void *buffer;
    gate entered, leave;
    gpusync_queue *queue;
    bool stopped;
} stopped_commit;

static void stop_in_commit(void *user, softmetal_phase phase, void *object, const char *selector)
{
    stopped_commit *in = (stopped_commit *)user;
    if (phase != SOFTMETAL_AFTER || GET(&in->stopped) || !commits(object, selector, in->buffer)) return;
    PUT(&in->stopped, true);
    gate_wait(&in->entered);
    gate_wait(&in->leave);
}

static void *commit_body(void *argument)
{
    stopped_commit *in = (stopped_commit *)argument;
    assert_ok(either_commit(in->queue, in->buffer, NULL));
    return NULL;
}

/* The callback does not wait for the lock, and the work goes once the lock is free. */
static void test_interleaving_15_a_signal_in_a_callback_lets_work_go_while_another_thread_has_the_order_lock(void **state)
{
    gpusync_submission submission;
    stopped_commit in;
    gpusync_ticket held;
    pthread_t thread;
    void *buffer, *waiting;
    stage s;
    (void)state;
    open_stage(&s, SOFTMETAL_MANUAL, 2);
    waiting = metal_retain(buffer_of(s.q[0]));
    buffer = buffer_of(s.q[1]);
    memset(&submission, 0, sizeof submission);
    submission.command_buffers = &buffer;
    submission.command_buffer_count = 1;
    submission.on_complete = signal_in_callback;
    submission.user = s.t[0];
    assert_ok(either_submit(s.q[1], &submission, NULL));
    memset(&in, 0, sizeof in);
    gate_init(&in.entered, 2);
    gate_init(&in.leave, 2);
    in.queue = s.q[0];
    in.buffer = buffer_of(s.q[0]);
    held = SUBMIT(s.q[0], WAITS(at(s.t[0], 1)), BUFFERS(waiting), .flags = GPUSYNC_UNORDERED);
    softmetal_set_message_hook(stop_in_commit, &in);
    thread = start(commit_body, &in);
    gate_wait(&in.entered);
    signalled_in_callback = false;
    softmetal_finish(buffer);
    while (!GET(&signalled_in_callback)) sched_yield();
    assert_int_equal(value_of(s.t[0]), 1);
    assert_int_equal(status_of(waiting), 0); /* it could go, and cannot yet */
    gate_wait(&in.leave);
    join(thread);
    softmetal_set_message_hook(NULL, NULL);
    assert_true(softmetal_dispatched(SECONDS(20)));
    assert_int_equal(status_of(waiting), 2);
    metal_release(waiting);
    assert_int_equal(held_on(s.device, s.q[0]), 0);
    softmetal_finish_queue(gpusync_queue_metal(s.q[0]));
    assert_ok(gpusync_wait(s.q[0], held, 0));
    gate_destroy(&in.entered);
    gate_destroy(&in.leave);
    close_idle_stage(&s);
}

/* -- 16 ----------------------------------------------------------------------------------------- */

static unsigned unparks_under_locks;

static void watching_unpark(void *user, gpusync_waiter *waiter)
{
    (void)user;
    unparks++;
    if (!probe_holds_no_lock()) unparks_under_locks++;
    probe_default_hooks().unpark(NULL, waiter);
}

static bool hidden; /* the value, by a pending signal */

static void signal_ten(void *timeline)
{
    assert_ok(gpusync_timeline_signal((gpusync_timeline *)timeline, 10));
    hidden = value_of((gpusync_timeline *)timeline) < 10;
}

static gpusync_result waited;

static void *wait_for_seven(void *timeline)
{
    waited = gpusync_timeline_wait((gpusync_timeline *)timeline, 7, SECONDS(5), NULL);
    return NULL;
}

/* The host signals 10 at the n-th point of a submission that is refused, and that would signal 5: no thread ever sees a
   pending signal of it. Returns whether there was such a point. */
static bool is_raised_at(int n)
{
    gpusync_hooks hooks = probe_default_hooks();
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    gpusync_submission submission;
    gpusync_timeline *first, *second;
    gpusync_point signals[2];
    gpusync_ticket ticket;
    pthread_t waiter;
    void *buffer;
    bool raised;
    rig r;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    memset(&submission, 0, sizeof submission);
    hooks.unpark = watching_unpark;
    device_desc.hooks = &hooks;
    rig_open_with(&r, SOFTMETAL_MANUAL, device_desc, queue_desc);
    assert_ok(gpusync_timeline_create(r.device, NULL, &first));
    assert_ok(gpusync_timeline_create(r.device, NULL, &second));
    assert_ok(gpusync_timeline_signal(second, 10));
    waiter = start(wait_for_seven, first);
    await_sleepers(r.device, 1);
    unparks = unparks_under_locks = 0;
    signals[0] = at(first, 5);
    signals[1] = at(second, 3); /* does not rise: the call fails */
    submission.signals = signals;
    submission.signal_count = 2;
    buffer = metal4_run() ? buffer_of(r.queue) : NULL; /* where none at all would be the reason */
    submission.command_buffers = &buffer;
    submission.command_buffer_count = buffer != NULL;
    hidden = false;
    probe_at_each(n, signal_ten, first);
    assert_result(either_submit(r.queue, &submission, &ticket), GPUSYNC_ERROR_NOT_RISING);
    raised = probe_has_acted();
    if (!raised) signal_ten(first);
    join(waiter);
    assert_ok(waited);
    assert_true(unparks > 0);
    assert_int_equal(unparks_under_locks, 0);
    assert_ok(gpusync_timeline_destroy(first));
    assert_ok(gpusync_timeline_destroy(second));
    rig_close(&r);
    return raised;
}

static void test_interleaving_16_a_refused_submission_has_listed_no_signal(void **state)
{
    int n = 1;
    (void)state;
    for (; is_raised_at(n); n++) assert_false(hidden);
    assert_true(n > 1);
}

/* -- 17 ----------------------------------------------------------------------------------------- */

typedef struct doomed {
    rig r;
    gpusync_timeline *timeline;
    void *event;
    uint64_t base;
    pthread_t destroyer;
    unsigned destroys, arrived;
    int n;
} doomed;

static void *destroy_doomed(void *argument)
{
    doomed *d = (doomed *)argument;
    assert_ok(gpusync_timeline_destroy(d->timeline));
    return NULL;
}

static void begin_to_destroy(doomed *d)
{
    d->destroys = 1;
    d->destroyer = start(destroy_doomed, d);
}

static void destroy_it_now(void *argument)
{
    begin_to_destroy((doomed *)argument);
    join(((doomed *)argument)->destroyer);
}

static void arrives(void *argument) { __atomic_store_n(&((doomed *)argument)->arrived, 1, __ATOMIC_SEQ_CST); }

/* ... as far as the timeline itself, which the commit may keep to itself meanwhile. */
static void destroy_it_up_to_the_timeline(void *argument)
{
    doomed *d = (doomed *)argument;
    probe_at(PROBE_TIMELINE, d->timeline, 1, arrives, d);
    begin_to_destroy(d);
    while (!__atomic_load_n(&d->arrived, __ATOMIC_SEQ_CST)) sched_yield();
}

/* A submission that names the timeline has a reference by now: before, the program may not destroy it. */
static void destroy_it_after_this(void *argument)
{
    probe_amid_each(((doomed *)argument)->n, destroy_it_up_to_the_timeline, argument);
}

/* Strict work is held for a value of other code, and registers with the timeline's event. The timeline goes when the
   submission comes to the place of that timeline for the n-th time; NOWHERE: at its n-th point, also in the middle
   of a step. Returns whether there was such a time. */
static bool goes_at(probe_place place, int n)
{
    const gpusync_timeline_desc desc = {.signalled_by_others = true};
    gpusync_point wait;
    gpusync_ticket ticket;
    void *buffer;
    doomed d;
    memset(&d, 0, sizeof d);
    d.n = n;
    rig_open(&d.r, SOFTMETAL_MANUAL);
    assert_ok(gpusync_timeline_create(d.r.device, &desc, &d.timeline));
    d.event = metal_retain(gpusync_timeline_metal(d.timeline, &d.base));
    wait = at(d.timeline, 7);
    assert_ok(make_behind(d.r.queue, NULL, &wait, !metal4_run(), &buffer));
    if (place) probe_at(place, NULL, n, destroy_it_now, &d);
    else if (metal4_run()) probe_at(PROBE_ENTERS, NULL, 1, destroy_it_after_this, &d);
    else probe_amid_each(n, destroy_it_up_to_the_timeline, &d);
    if (metal4_run()) ticket = SUBMIT(d.r.queue, WAITS(wait), BUFFERS(buffer), .flags = GPUSYNC_STRICT);
    else ticket = SUBMIT(d.r.queue, BUFFERS(buffer), .flags = GPUSYNC_STRICT);
    (void)probe_has_acted();
    if (!d.destroys) assert_ok(gpusync_timeline_destroy(d.timeline));
    else if (!place) join(d.destroyer);
    metal_event_signal(d.event, d.base + 7); /* a registration that was left behind would call what was the timeline */
    assert_true(softmetal_settle(SECONDS(5)));
    assert_result(gpusync_wait(d.r.queue, ticket, SECONDS(5)), GPUSYNC_ERROR_DESTROYED);
    metal_release(d.event);
    rig_close(&d.r);
    return d.destroys;
}

static void test_interleaving_17_a_timeline_goes_before_held_work_registers_with_its_event(void **state)
{
    (void)state;
    assert_true(goes_at(PROBE_ENTERS, 1));
    assert_true(goes_at(PROBE_LISTENS, 1));
}

static void test_interleaving_17_a_timeline_goes_while_held_work_registers_with_its_event(void **state)
{
    int n = 1;
    (void)state;
    while (goes_at(PROBE_NOWHERE, n)) n++;
    assert_true(n > 1);
}

/* The work waits for a value that only the higher signal of its own second command buffer would cover: nothing else brings
   it. The timeline goes before the command buffers are joined to one submission. */
static void test_interleaving_17_a_timeline_goes_before_work_that_waits_for_its_own_signal_enters(void **state)
{
    void *buffers[2];
    gpusync_ticket ticket;
    gpusync_point point;
    unsigned i;
    doomed d;
    (void)state;
    NOT_ON_METAL4("nothing is encoded");
    memset(&d, 0, sizeof d);
    rig_open(&d.r, SOFTMETAL_MANUAL);
    assert_ok(gpusync_timeline_create(d.r.device, NULL, &d.timeline));
    point = at(d.timeline, 7);
    for (i = 0; i < 2; i++) assert_ok(gpusync_command_buffer(d.r.queue, NULL, &buffers[i]));
    assert_ok(gpusync_encode_wait(d.r.queue, buffers[0], point));
    assert_ok(gpusync_encode_signal(d.r.queue, buffers[1], at(d.timeline, 8)));
    probe_at(PROBE_ENTERS, NULL, 1, destroy_it_now, &d);
    ticket = SUBMIT(d.r.queue, BUFFERS(buffers[0], buffers[1]));
    assert_true(probe_has_acted());
    assert_result(gpusync_wait(d.r.queue, ticket, 0), GPUSYNC_ERROR_DESTROYED);
    rig_close(&d.r);
}

/* -- 24 ----------------------------------------------------------------------------------------- */

/* Rule: the sweep looks after work that waits for a ticket, though the handler is lost and no thread sleeps: it finds the
   end of the ticket, and commits what is held for it. Across queues, and within one. */
static void test_interleaving_24_a_wait_for_a_ticket_whose_handler_is_lost_ends(void **state)
{
    unsigned same;
    (void)state;
    NOT_ON_METAL4("a lost handler is lost for good");
    for (same = 0; same < 2; same++) {
        gpusync_queue *other;
        gpusync_ticket ticket, after;
        void *lost, *waiting;
        rig r;
        rig_open(&r, SOFTMETAL_REAL);
        other = queue_new(r.device);
        lost = kept_buffer_of(r.queue);
        softmetal_lose_handlers(lost);
        softmetal_hang(lost);
        ticket = commit_to(r.queue, lost);
        waiting = kept_buffer_after(same ? r.queue : other, gpusync_at_ticket(r.queue, ticket));
        after = commit_to(same ? r.queue : other, waiting);
        assert_int_equal(metal_status(waiting), 0); /* the host waits */
        softmetal_unhang(lost);
        await_status(waiting, COMPLETED); /* which asks gpusync nothing */
        assert_ok(gpusync_wait(same ? r.queue : other, after, SECONDS(2)));
        metal_release(lost);
        metal_release(waiting);
        assert_ok(gpusync_queue_destroy(other));
        rig_close(&r);
    }
}

/* -- registering, and failing to ---------------------------------------------------------------- */

/* A thread that yields, or parks, says so: it is waiting for another one. */
static uint32_t yields;

static void counting_yield(void *user)
{
    (void)user;
    __atomic_fetch_add(&yields, 1, __ATOMIC_SEQ_CST);
    sched_yield();
}

static void yielding_park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    (void)user;
    __atomic_fetch_add(&yields, 1, __ATOMIC_SEQ_CST);
    thread_park(waiter, deadline_ns);
}

static void plain_unpark(void *user, gpusync_waiter *waiter)
{
    (void)user;
    thread_unpark(waiter);
}

typedef struct destroying {
    gpusync_queue *queue;
    bool now;
    uint32_t done;
} destroying;

static void *destroy_body(void *argument)
{
    destroying *d = (destroying *)argument;
    assert_ok(d->now ? gpusync_queue_destroy_now(d->queue) : gpusync_queue_destroy(d->queue));
    __atomic_store_n(&d->done, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

static void *signal_one(void *timeline)
{
    assert_ok(gpusync_timeline_signal((gpusync_timeline *)timeline, 1));
    return NULL;
}

static void signal_one_there(void *timeline) { join(start(signal_one, timeline)); }

/* Rule: a wait of a submission that is refused is on no list. Another thread ends what the wait is for at the n-th point of
   the call; it tells no other submission, which may have the memory. Returns whether there was such a point. */
static bool is_signalled_at(int n, uint32_t flags)
{
    gpusync_result result;
    job refused, next;
    bool acted;
    stage s;
    open_sleepy_stage(&s, NULL, NULL);
    refused = JOB(.queue = s.q[0], .wait = at(s.t[0], 1), .flags = flags);
    next = JOB(.queue = s.q[0], .wait = at(s.t[1], 1), .flags = flags); /* waits for another timeline */
    job_open(&refused);
    job_open(&next);
    metal_enqueue(refused.buffer); /* cannot be held */
    probe_at_each(n, signal_one_there, s.t[0]);
    result = job_try(&refused);
    acted = probe_has_acted();
    if (result != GPUSYNC_OK) {
        assert_result(result, GPUSYNC_ERROR_ENQUEUED);
        assert_int_equal(calls_of_job(&refused), 0);
    }
    assert_ok(job_try(&next));
    assert_false(is_committed(&next));
    assert_result(poll_job(&next), GPUSYNC_NOT_READY);
    assert_int_equal(calls_of_job(&next), 0);
    assert_ok(gpusync_timeline_signal(s.t[1], 1));
    assert_true(is_committed(&next));
    if (!acted) assert_ok(gpusync_timeline_signal(s.t[0], 1));
    if (result != GPUSYNC_OK) assert_ok(job_try(&refused)); /* still the program's, and with the wait at its head */
    finish_queue(s.q[0]);
    assert_called(&next, GPUSYNC_OK);
    assert_called(&refused, GPUSYNC_OK);
    job_over(&refused);
    job_over(&next);
    close_stage(&s);
    return acted;
}

static void test_a_wait_that_ends_while_its_submission_is_refused_touches_no_other_submission(void **state)
{
    int n;
    (void)state;
    NOT_ON_METAL4("a command buffer cannot be enqueued");
    for (n = 1; is_signalled_at(n, GPUSYNC_STRICT); n++) {}
    assert_true(n > 1);
    for (n = 1; is_signalled_at(n, 0); n++) {}
    assert_true(n > 1);
}

/* Rule: a refused submission waits for no other thread. Work of a second queue has ended on the device, and others have
   signalled what it waited for. The submission, which would signal less, waits for its ticket. That queue goes, and is stopped at its
   place-th point until the submission waits, or has been refused. encoded: the ticket is named by a command buffer alone.
   Returns whether there was such a point. */
static struct {
    stage *s;
    void *event;
    uint64_t base;
    int place;
    destroying d;
    pthread_t submitter, destroyer;
    uint32_t submitter_waits, destroyer_waits, refused, stopped;
} crossing;

static void crossing_yield(void *user)
{
    (void)user;
    if (pthread_equal(pthread_self(), crossing.submitter)) PUT(&crossing.submitter_waits, 1);
    else PUT(&crossing.destroyer_waits, 1);
    sched_yield();
}

static void crossing_park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    crossing_yield(user);
    thread_park(waiter, deadline_ns);
}

static void stop_the_destroyer(void *unused)
{
    (void)unused;
    if (pthread_equal(pthread_self(), crossing.submitter)) return;
    PUT(&crossing.stopped, 1);
    while (!GET(&crossing.submitter_waits) && !GET(&crossing.refused)) sched_yield();
}

/* The submission is about to be refused. */
static void the_other_queue_goes(void *unused)
{
    (void)unused;
    metal_event_signal(crossing.event, crossing.base + 7);
    softmetal_finish_queue(crossing.s->metal[1]);
    crossing.d = (destroying){crossing.s->q[1], true, 0};
    probe_at_each(crossing.place, stop_the_destroyer, NULL);
    crossing.destroyer = start(destroy_body, &crossing.d);
    while (!GET(&crossing.stopped) && !GET(&crossing.destroyer_waits) && !GET(&crossing.d.done)) sched_yield();
    (void)probe_has_acted();
}

static bool the_queue_of_its_ticket_goes_at(int place, bool encoded)
{
    gpusync_hooks hooks = {crossing_yield, crossing_park, plain_unpark, NULL};
    job other, higher;
    void *buffer = NULL;
    stage s;
    memset(&crossing, 0, sizeof crossing);
    crossing.s = &s;
    crossing.place = place;
    crossing.submitter = pthread_self();
    open_sleepy_stage(&s, &hooks, NULL);
    share_timeline(&s, 0);
    crossing.event = gpusync_timeline_metal(s.a, &crossing.base);
    other = JOB(.queue = s.q[1], .wait = at(s.a, 7));
    higher = JOB(.queue = s.q[2], .wait = at(s.c, 1), .signal = at(s.b, 1));
    job_submit(&other);
    job_submit(&higher);
    assert_true(is_committed(&other));
    if (encoded || metal4_run()) buffer = kept_buffer_of(s.q[0]);
    if (encoded) assert_ok(gpusync_encode_wait(s.q[0], buffer, after(s.q[1], other.ticket)));
    probe_at(PROBE_ENTERS, NULL, 1, the_other_queue_goes, NULL);
    must_return_within(20); /* else the two wait for each other */
    REFUSED(GPUSYNC_ERROR_NOT_RISING, s.q[0], .waits = LIST(gpusync_point, after(s.q[1], other.ticket)),
            .wait_count = !encoded, .command_buffers = &buffer, .command_buffer_count = buffer != NULL,
            SIGNALS(at(s.a, 5), at(s.b, 1)));
    PUT(&crossing.refused, 1);
    if (!crossing.d.queue) { /* nothing was listed before the second pending signal was refused */
        (void)probe_has_acted();
        the_other_queue_goes(NULL);
    }
    join(crossing.destroyer);
    has_returned();
    s.q[1] = NULL;
    assert_called_once(&other);
    assert_true(other.result == GPUSYNC_OK || other.result == GPUSYNC_ERROR_DESTROYED);
    if (other.result != GPUSYNC_OK) {
        drop_queue_that_stays(s.metal[1]);
        drop_what_stays(crossing.event);
    }
    assert_int_equal(value_of(s.a), 7);
    assert_ok(gpusync_timeline_signal(s.c, 1));
    finish_queue(s.q[2]);
    assert_called(&higher, GPUSYNC_OK);
    if (buffer) assert_ok(either_discard(s.q[0], buffer));
    if (buffer) metal_release(buffer);
    job_over(&other);
    job_over(&higher);
    close_stage(&s);
    return crossing.stopped;
}

static void test_a_refused_submission_and_the_queue_of_its_ticket_do_not_wait_for_each_other(void **state)
{
    int encoded;
    (void)state;
    for (encoded = 0; encoded < (metal4_run() ? 1 : 2); encoded++) {
        unsigned paused = 0; /* the submission, for what the other thread was about to do */
        int place = 1;
        for (; the_queue_of_its_ticket_goes_at(place, encoded); place++) paused += crossing.submitter_waits;
        assert_true(place > 1);
        assert_int_equal(paused, 0);
    }
}

/* -- the announcement --------------------------------------------------------------------------- */

static job *at_once;

static void finish_at_commit(void *user, softmetal_phase phase, void *object, const char *selector)
{
    (void)user;
    if (phase != SOFTMETAL_AFTER || !at_once || !commits(object, selector, at_once->buffer)) return;
    softmetal_finish(at_once->buffer);
    at_once = NULL;
}

/* Rule: a submission is not over before it was announced. This one ends inside its own commit, under the order lock of
   its queue, and other work is held for its signal. */
static void check_end_inside_commit(bool held, bool killed)
{
    gpusync_result expected = killed ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK;
    job producer, consumer, same_queue;
    stage s;
    open_sleepy_stage(&s, NULL, NULL);
    producer = JOB(.queue = s.q[0], .signal = at(s.t[0], 1));
    if (held) producer.wait = at(s.t[1], 1);
    consumer = JOB(.queue = s.q[1], .wait = at(s.t[0], 1), .signal = at(s.t[2], 1));
    same_queue = JOB(.queue = s.q[0], .wait = at(s.t[2], 1));
    job_submit(&consumer);
    job_open(&producer);
    if (killed) softmetal_fail(producer.buffer, NULL, 3, NULL);
    at_once = &producer;
    softmetal_set_message_hook(finish_at_commit, NULL);
    assert_ok(job_try(&producer));
    job_submit(&same_queue);
    if (held) assert_ok(gpusync_timeline_signal(s.t[1], 1));
    softmetal_set_message_hook(NULL, NULL);
    assert_true(is_marked(&producer));
    finish_queue(s.q[1]);
    finish_queue(s.q[0]);
    assert_called(&producer, expected);
    assert_called_once(&consumer);
    assert_result(consumer.result, expected);
    assert_called_once(&same_queue);
    assert_result(same_queue.result, expected);
    assert_true(gpusync_is_idle(s.q[0]));
    assert_true(gpusync_is_idle(s.q[1]));
    job_over(&producer);
    job_over(&consumer);
    job_over(&same_queue);
    close_stage(&s);
}

static void test_a_submission_that_ends_inside_its_commit_is_announced_before_it_is_over(void **state)
{
    unsigned i;
    (void)state;
    for (i = 0; i < 4; i++) check_end_inside_commit(i & 1, i & 2);
}

/* -- callbacks ---------------------------------------------------------------------------------- */

/* Rule: the end may be seen in a call that is a wait; the callback comes then, and not in that call. */
static void test_a_callback_comes_though_only_a_poller_saw_the_end(void **state)
{
    job one;
    stage s;
    (void)state;
    NOT_ON_METAL4("no look sees an end before the handler");
    open_sleepy_stage(&s, NULL, NULL);
    one = JOB(.queue = s.q[0]);
    job_submit(&one);
    softmetal_complete(one.buffer);
    assert_ok(poll_job(&one));
    assert_ok(gpusync_queue_wait(s.q[0], GPUSYNC_FOREVER));
    assert_ok(gpusync_wait(s.q[0], one.ticket, GPUSYNC_FOREVER));
    assert_true(gpusync_is_idle(s.q[0]));
    assert_called(&one, GPUSYNC_OK);
    run_handler(&one);
    assert_called(&one, GPUSYNC_OK);
    job_over(&one);
    close_stage(&s);
}

/* Rule: a callback needs no handler. */
static void test_a_callback_whose_handlers_have_come_or_are_lost_comes(void **state)
{
    late_producer l;
    (void)state;
    NOT_ON_METAL4("a lost handler is lost for good");
    late_producer_open(&l, false);
    softmetal_complete(l.producer.buffer);
    softmetal_lose_handlers(l.producer.buffer);
    softmetal_fire_timer();
    assert_result(poll_job(&l.consumer), GPUSYNC_OK);
    assert_called(&l.consumer, GPUSYNC_OK);
    softmetal_finish(l.producer.buffer);
    late_producer_close(&l, GPUSYNC_OK);
}

/* Callbacks that the host's own failing of a timeline makes due: of what Metal has seen, on its thread. */
static void test_a_callback_of_work_that_was_on_the_device_never_runs_in_the_callers_thread(void **state)
{
    late_producer l;
    gpusync_error reason;
    (void)state;
    late_producer_open(&l, false);
    memset(&reason, 0, sizeof reason);
    reason.result = GPUSYNC_ERROR_EXECUTION;
    reason.code = 3;
    strcpy(reason.message, "killed");
    assert_ok(gpusync_timeline_fail(l.s.t[0], &reason));
    assert_true(is_marked(&l.consumer));
    finish_queue(l.s.q[0]);
    finish_queue(l.s.q[1]);
    late_producer_close(&l, GPUSYNC_ERROR_EXECUTION);
}

/* The same from inside a callback. */
static void test_a_callback_that_fails_a_timeline_has_others_called(void **state)
{
    gpusync_submission submission;
    late_producer l;
    void *buffer;
    (void)state;
    late_producer_open(&l, true);
    failing.timeline = l.s.t[0];
    failing.returned = 0;
    memset(&submission, 0, sizeof submission);
    submission.on_complete = fail_in_callback;
    submission.command_buffers = &buffer;
    buffer = metal4_run() ? buffer_of(l.s.q[1]) : NULL; /* it takes no submission without */
    submission.command_buffer_count = buffer != NULL;
    assert_ok(either_submit(l.s.q[1], &submission, NULL)); /* over within the call */
    if (buffer) softmetal_finish(buffer);
    assert_true(softmetal_dispatched(SECONDS(20)));
    assert_int_equal(failing.returned, 1);
    assert_true(is_marked(&l.consumer));
    finish_queue(l.s.q[1]);
    softmetal_complete(l.producer.buffer); /* not its handler */
    assert_called(&l.consumer, GPUSYNC_ERROR_EXECUTION);
    run_handler(&l.producer);
    job_over(&l.producer);
    job_over(&l.consumer);
    close_stage(&l.s);
}

/* -- publishing --------------------------------------------------------------------------------- */

/* Rule: only what is on record is told. Another poll comes while the handler is reading the error. With Metal 4 that poll
   finds nothing. Else it reads the error, too, and is the first to put it on record. */
static struct {
    job *failed, *dependent;
    gpusync_timeline *timeline;
    gpusync_result failed_result, dependent_result, value_result;
    unsigned calls;
    bool peeks;
    gpusync_error record;
} peek;

static void peek_now(void)
{
    uint64_t cursor = 0;
    if (peek.peeks) return;
    peek.peeks = true;
    peek.failed_result = poll_job(peek.failed);
    peek.dependent_result = poll_job(peek.dependent);
    peek.value_result = value_result(peek.timeline, 1);
    if (peek.failed_result != GPUSYNC_NOT_READY) assert_ok(gpusync_next_error(peek.failed->queue, &cursor, &peek.record));
    peek.calls++;
    peek.peeks = false;
}

static void peek_at_error(void *user, softmetal_phase phase, void *object, const char *selector)
{
    (void)user;
    if (phase != SOFTMETAL_BEFORE || strcmp(selector, "error") != 0) return;
    if (is_asked_by_handlers(object, peek.failed->buffer)) peek_now();
}

static void test_nothing_is_told_between_the_claim_and_the_record(void **state)
{
    job failed, dependent;
    stage s;
    (void)state;
    open_sleepy_stage(&s, NULL, NULL);
    failed = JOB(.queue = s.q[0], .signal = at(s.t[0], 1));
    dependent = JOB(.queue = s.q[1], .wait = at(s.t[0], 1));
    job_submit(&failed);
    job_submit(&dependent);
    softmetal_fail(failed.buffer, NULL, 3, NULL);
    memset(&peek, 0, sizeof peek);
    peek.failed = &failed;
    peek.dependent = &dependent;
    peek.timeline = s.t[0];
    softmetal_complete(failed.buffer);
    softmetal_set_message_hook(peek_at_error, NULL);
    run_handler(&failed);
    softmetal_set_message_hook(NULL, NULL);
    assert_int_equal(peek.calls, metal4_run() ? 2 : 1); /* what a status says on others is asked of a feedback first */
    assert_result(peek.failed_result, metal4_run() ? GPUSYNC_NOT_READY : GPUSYNC_ERROR_EXECUTION);
    assert_result(peek.dependent_result, GPUSYNC_NOT_READY);
    assert_result(peek.value_result, metal4_run() ? GPUSYNC_TIMEOUT : GPUSYNC_ERROR_EXECUTION);
    if (!metal4_run()) assert_int_equal(peek.record.ticket, failed.ticket);
    assert_called(&failed, GPUSYNC_ERROR_EXECUTION);
    softmetal_finish(dependent.buffer); /* the failed event lets it pass */
    assert_called(&dependent, GPUSYNC_ERROR_EXECUTION);
    job_over(&failed);
    job_over(&dependent);
    close_stage(&s);
}

/* Rule: first its signals, then the ticket: a thread that knows that the ticket is over finds the value reached. */
static struct {
    gpusync_timeline *timeline;
    job *job;
    unsigned calls, too_early;
} waking;

static void look_at_unpark(void *user, gpusync_waiter *waiter)
{
    (void)user;
    if (waking.job) {
        waking.calls++;
        if (is_marked(waking.job) && believed(waking.timeline) < 1) waking.too_early++;
    }
    thread_unpark(waiter);
}

static void test_the_value_is_reached_when_the_ticket_is_over(void **state)
{
    gpusync_hooks hooks = {NULL, plain_park, look_at_unpark, NULL};
    wait_job on_ticket;
    job one;
    stage s;
    (void)state;
    open_sleepy_stage(&s, &hooks, NULL);
    one = JOB(.queue = s.q[0], .signal = at(s.t[0], 1));
    memset(&waking, 0, sizeof waking);
    job_submit(&one);
    wait_job_start(&on_ticket, s.q[0], one.ticket, GPUSYNC_FOREVER);
    await_sleepers(s.device, 1);
    waking.timeline = s.t[0];
    waking.job = &one;
    softmetal_finish(one.buffer);
    assert_ok(wait_job_join(&on_ticket));
    assert_true(waking.calls >= 1);
    assert_int_equal(waking.too_early, 0);
    waking.job = NULL;
    job_over(&one);
    close_stage(&s);
}

/* -- cancelling --------------------------------------------------------------------------------- */

/* Rule: a held submission is either issued or given up, and a cancel waits for no issue. The first is being issued when it
   comes: that one has gone, and the second, which could go as well, has not. */
static void test_cancel_comes_while_the_line_is_being_issued(void **state)
{
    pthread_t issuing;
    job first, second, third;
    stop at_commit;
    stage s;
    (void)state;
    open_sleepy_stage(&s, NULL, NULL);
    first = JOB(.queue = s.q[0], .wait = at(s.t[0], 1));
    second = JOB(.queue = s.q[0]);
    third = JOB(.queue = s.q[0], .wait = at(s.t[1], 1));
    job_submit(&first);
    job_submit(&second);
    job_submit(&third);
    stop_at(&at_commit, first.buffer, "commit", SOFTMETAL_AFTER);
    issuing = start(signal_one, s.t[0]);
    gate_wait(&at_commit.entered);
    assert_ok(gpusync_cancel_held(s.q[0]));
    gate_wait(&at_commit.leave);
    join(issuing);
    stop_over(&at_commit);
    assert_true(is_committed(&first));
    assert_false(is_committed(&second));
    assert_false(is_committed(&third));
    assert_called_once(&second);
    assert_result(second.result, GPUSYNC_ERROR_CANCELLED);
    assert_called_once(&third);
    assert_result(third.result, GPUSYNC_ERROR_CANCELLED);
    finish_queue(s.q[0]);
    assert_called(&first, GPUSYNC_OK);
    job_over(&first);
    job_over(&second);
    job_over(&third);
    close_stage(&s);
}

/* The signal has taken the wait off its list, and not told the submission yet, when that is cancelled. */
static struct {
    gpusync_queue *queue;
    void *event;
    unsigned calls;
} meanwhile;

static void cancel_at_signal(void *user, softmetal_phase phase, void *object, const char *selector)
{
    (void)user;
    if (phase != SOFTMETAL_AFTER || object != meanwhile.event || strcmp(selector, "setSignaledValue:") != 0) return;
    meanwhile.calls++;
    assert_ok(gpusync_cancel_held(meanwhile.queue));
}

static void test_cancel_comes_while_a_signal_is_about_to_tell(void **state)
{
    job held, later;
    stage s;
    (void)state;
    open_sleepy_stage(&s, NULL, NULL);
    held = JOB(.queue = s.q[0], .wait = at(s.t[0], 1), .signal = at(s.t[1], 1));
    later = JOB(.queue = s.q[1], .wait = at(s.t[1], 1));
    job_submit(&held);
    job_submit(&later);
    meanwhile.queue = s.q[0];
    meanwhile.event = gpusync_timeline_metal(s.t[0], NULL);
    meanwhile.calls = 0;
    softmetal_set_message_hook(cancel_at_signal, NULL);
    assert_ok(gpusync_timeline_signal(s.t[0], 1));
    softmetal_set_message_hook(NULL, NULL);
    assert_int_equal(meanwhile.calls, 1);
    assert_false(is_committed(&held));
    assert_called_once(&held);
    assert_called_once(&later);
    assert_result(held.result, GPUSYNC_ERROR_CANCELLED);
    assert_result(later.result, GPUSYNC_ERROR_CANCELLED);
    assert_true(gpusync_is_idle(s.q[0]));
    job_over(&held);
    job_over(&later);
    if (!metal4_run()) assert_int_equal(softmetal_live("command_buffer"), 0);
    close_stage(&s);
}

/* -- destroying --------------------------------------------------------------------------------- */

/* Rule: destroy waits for each thread that has let one of its submissions go, and is about to issue it. */
static void check_destroy_against_a_signal(bool now)
{
    gpusync_hooks hooks = {counting_yield, yielding_park, plain_unpark, NULL};
    pthread_t signalling, thread;
    destroying d;
    stop at_signal;
    job held;
    uint32_t before;
    stage s;
    open_sleepy_stage(&s, &hooks, NULL);
    held = JOB(.queue = s.q[1], .wait = at(s.t[0], 1));
    job_submit(&held);
    stop_at(&at_signal, gpusync_timeline_metal(s.t[0], NULL), "setSignaledValue:", SOFTMETAL_AFTER);
    signalling = start(signal_one, s.t[0]);
    gate_wait(&at_signal.entered);
    d = (destroying){s.q[1], now, 0};
    before = __atomic_load_n(&yields, __ATOMIC_SEQ_CST);
    thread = start(destroy_body, &d);
    while (__atomic_load_n(&yields, __ATOMIC_SEQ_CST) == before && !__atomic_load_n(&d.done, __ATOMIC_SEQ_CST))
        sched_yield();
    assert_false(__atomic_load_n(&d.done, __ATOMIC_SEQ_CST));
    gate_wait(&at_signal.leave);
    join(signalling);
    assert_true(is_committed(&held));
    if (!now) softmetal_finish(held.buffer);
    join(thread);
    if (now) softmetal_finish(held.buffer);
    stop_over(&at_signal);
    s.q[1] = NULL;
    assert_called_once(&held);
    assert_result(held.result, now ? GPUSYNC_ERROR_DESTROYED : GPUSYNC_OK);
    job_over(&held);
    close_stage(&s);
}

static void test_destroy_waits_for_a_signal_that_is_about_to_tell(void **state)
{
    (void)state;
    check_destroy_against_a_signal(true);
    check_destroy_against_a_signal(false);
}

/* The producer's handler comes after its queue, or the consumer's, was destroyed: it finds nothing to tell. */
static void check_destroy_before_the_handler(bool of_producer)
{
    job producer, consumer;
    stage s;
    open_sleepy_stage(&s, NULL, NULL);
    producer = JOB(.queue = s.q[0], .signal = at(s.t[0], 1));
    consumer = JOB(.queue = s.q[1], .wait = at(s.t[0], 1));
    job_submit(&producer);
    job_submit(&consumer);
    assert_ok(gpusync_queue_destroy_now(s.q[!of_producer]));
    s.q[!of_producer] = NULL;
    softmetal_complete(producer.buffer);
    softmetal_complete(consumer.buffer);
    run_handler(&producer);
    run_handler(&consumer);
    assert_called_once(&producer);
    assert_called_once(&consumer);
    assert_result(producer.result, of_producer ? GPUSYNC_ERROR_DESTROYED : GPUSYNC_OK);
    assert_result(consumer.result, GPUSYNC_ERROR_DESTROYED);
    drop_queue_that_stays(s.metal[!of_producer]);
    drop_what_stays(gpusync_timeline_metal(s.t[0], NULL));
    job_over(&producer);
    job_over(&consumer);
    close_stage(&s);
}

static void test_handlers_that_come_after_destroy_now_tell_nothing(void **state)
{
    (void)state;
    check_destroy_before_the_handler(true);
    check_destroy_before_the_handler(false);
}

/* Rule: what is in a line is issued or given up, once. A signal lets three submissions go, and their queue goes at the
   place-th point of the signalling thread. *issued: how many had been. Returns whether there was such a point. */
static struct {
    destroying d;
    pthread_t thread;
} going;

static void queue_goes(void *queue)
{
    uint32_t before = GET(&yields);
    going.d = (destroying){(gpusync_queue *)queue, true, 0};
    going.thread = start(destroy_body, &going.d);
    while (GET(&yields) == before && !GET(&going.d.done)) sched_yield();
}

static bool goes_while_its_line_is_issued(int place, int *issued)
{
    gpusync_hooks hooks = {counting_yield, yielding_park, plain_unpark, NULL};
    job held[3];
    void *metal;
    bool acted;
    int i;
    stage s;
    open_sleepy_stage(&s, &hooks, NULL);
    metal = metal_retain(s.metal[0]);
    for (i = 0; i < 3; i++) {
        held[i] = JOB(.queue = s.q[0], .wait = at(s.t[0], 1));
        job_submit(&held[i]);
    }
    probe_at_each(place, queue_goes, s.q[0]);
    assert_ok(gpusync_timeline_signal(s.t[0], 1));
    acted = probe_has_acted();
    if (!acted) queue_goes(s.q[0]);
    join(going.thread);
    s.q[0] = NULL;
    *issued = 0;
    for (i = 0; i < 3; i++) {
        *issued += is_committed(&held[i]);
        assert_called_once(&held[i]);
        assert_result(held[i].result, GPUSYNC_ERROR_DESTROYED);
        if (i && is_committed(&held[i])) assert_true(is_committed(&held[i - 1]));
    }
    softmetal_finish_queue(metal);
    metal_release(metal); /* the GPU waits for nothing: also a Metal 4 queue goes */
    for (i = 0; i < 3; i++) job_over(&held[i]);
    close_stage(&s);
    return acted;
}

static void test_a_queue_goes_while_a_signal_has_its_line_issued(void **state)
{
    unsigned none = 0, all = 0;
    int place, issued;
    (void)state;
    for (place = 1; goes_while_its_line_is_issued(place, &issued); place++) {
        none += issued == 0;
        all += issued == 3;
    }
    assert_true(none > 0 && all > 0);
}

/* The handler of the last command buffer is running, in the log hook, when destroy_now comes: it is let out. */
static stop *in_log;

static void stop_in_log(void *user, gpusync_log_level level, const char *text)
{
    (void)user;
    (void)level;
    (void)text;
    if (!in_log || __atomic_sub_fetch(&in_log->countdown, 1, __ATOMIC_SEQ_CST) != 0) return;
    gate_wait(&in_log->entered);
    gate_wait(&in_log->leave);
}

/* Where a handler is stopped: the header's assertions are places, the last of them when it has let go of what it held
   and is about to give that back. */
static struct {
    void *buffer;
    bool stopped, goes, done;
} halfway;

static void stop_the_handler(void *unused)
{
    (void)unused;
    __atomic_store_n(&halfway.stopped, true, __ATOMIC_SEQ_CST);
    while (!__atomic_load_n(&halfway.goes, __ATOMIC_SEQ_CST)) sched_yield();
}

static void *handler_body(void *argument)
{
    softmetal_run_handler(halfway.buffer, 0);
    __atomic_store_n(&halfway.done, true, __ATOMIC_SEQ_CST);
    return argument;
}

/* A handler is stopped at its n-th point when destroy comes, before or after it has ended its ticket. False: it has no so
   many. */
static bool check_destroy_against_a_handler(int n, bool now, bool fails)
{
    gpusync_hooks hooks = {counting_yield, yielding_park, plain_unpark, NULL};
    pthread_t thread, handler;
    destroying d;
    void *buffer;
    uint32_t before;
    bool stopped, by_destroy;
    gpusync_ticket ticket;
    outcome o = {0};
    stage s;
    open_sleepy_stage(&s, &hooks, NULL);
    buffer = kept_buffer_of(s.q[1]);
    if (fails) softmetal_fail(buffer, NULL, 3, "bad");
    ticket = commit_to(s.q[1], buffer);
    assert_ok(gpusync_on_done(gpusync_at_ticket(s.q[1], ticket), remember, &o));
    softmetal_complete(buffer);
    softmetal_set_dispatch_threads(0); /* no other thread comes to points */
    memset(&halfway, 0, sizeof halfway);
    halfway.buffer = buffer;
    probe_at_each(n, stop_the_handler, NULL);
    handler = start(handler_body, NULL);
    while (!__atomic_load_n(&halfway.stopped, __ATOMIC_SEQ_CST) && !__atomic_load_n(&halfway.done, __ATOMIC_SEQ_CST))
        sched_yield();
    stopped = probe_has_acted();
    if (stopped) {
        d = (destroying){s.q[1], now, 0};
        before = __atomic_load_n(&yields, __ATOMIC_SEQ_CST);
        thread = start(destroy_body, &d);
        while (__atomic_load_n(&yields, __ATOMIC_SEQ_CST) == before && !__atomic_load_n(&d.done, __ATOMIC_SEQ_CST))
            sched_yield();
        assert_false(__atomic_load_n(&d.done, __ATOMIC_SEQ_CST));
        __atomic_store_n(&halfway.goes, true, __ATOMIC_SEQ_CST);
        join(thread);
        s.q[1] = NULL;
    }
    join(handler);
    softmetal_set_dispatch_threads(SOFTMETAL_DISPATCH_THREADS);
    await_call(&o);
    by_destroy = metal4_run() && now && o.result == GPUSYNC_ERROR_DESTROYED; /* no status tells destroy_now how it ended */
    assert_ended(&o, by_destroy ? GPUSYNC_ERROR_DESTROYED : fails ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK);
    softmetal_release_block(buffer, 0);
    metal_release(buffer);
    close_stage(&s);
    return stopped;
}

/* Rule: destroy waits for a handler that has freed its slot, too: it touches the queue once more. */
static void test_destroy_waits_for_a_handler_that_is_on_its_way_out(void **state)
{
    int n, how;
    (void)state;
    must_return_within(60);
    for (how = 0; how < 4; how++) {
        for (n = 1; check_destroy_against_a_handler(n, how & 1, how & 2); n++) {}
        assert_true(n > 2); /* before the handler's step, and after it */
    }
    has_returned();
}

static void test_destroy_now_lets_a_handler_out_that_has_ended_a_submission(void **state)
{
    gpusync_hooks hooks = {counting_yield, NULL, NULL, NULL};
    pthread_t thread;
    destroying d;
    stop at_log;
    job failed;
    uint32_t before;
    stage s;
    (void)state;
    open_sleepy_stage(&s, &hooks, stop_in_log);
    failed = JOB(.queue = s.q[1], .signal = at(s.t[0], 1));
    job_submit(&failed);
    softmetal_fail(failed.buffer, NULL, 3, NULL);
    softmetal_complete(failed.buffer);
    stop_at(&at_log, NULL, "", SOFTMETAL_BEFORE);
    softmetal_set_message_hook(NULL, NULL);
    in_log = &at_log;
    softmetal_begin_handler(failed.buffer, 0);
    gate_wait(&at_log.entered);
    d = (destroying){s.q[1], true, 0};
    before = __atomic_load_n(&yields, __ATOMIC_SEQ_CST);
    thread = start(destroy_body, &d);
    while (__atomic_load_n(&yields, __ATOMIC_SEQ_CST) == before && !__atomic_load_n(&d.done, __ATOMIC_SEQ_CST))
        sched_yield();
    assert_false(__atomic_load_n(&d.done, __ATOMIC_SEQ_CST));
    gate_wait(&at_log.leave);
    join(thread);
    in_log = NULL;
    stop_over(&at_log);
    softmetal_join_handler(failed.buffer, 0);
    softmetal_release_block(failed.buffer, 0);
    s.q[1] = NULL;
    assert_called_once(&failed);
    assert_result(failed.result, GPUSYNC_ERROR_EXECUTION);
    job_over(&failed);
    close_stage(&s);
}

static void finish_work(void *buffer) { softmetal_finish(buffer); }

/* -- the work of a lost device is given up meanwhile -------------------------------------------- */

/* By work of the third queue. */
static void lose_the_device(stage *s)
{
    void *killed = open_on(s, 2);
    fail_with_the_device(killed);
    (void)commit_to(s->q[2], killed);
    softmetal_finish(killed);
    assert_true(gpusync_device_is_lost(s->device));
}

static void *give_up_body(void *device)
{
    probe_give_up_lost((gpusync_device *)device);
    return NULL;
}

/* The point may be one of a dispatched function, in which no timer fires. */
static void give_up_elsewhere(void *device) { join(start(give_up_body, device)); }

/* All that can be told of a ticket, of work that signals the value 1 of the first timeline. */
typedef struct hearer {
    stage *s;
    gpusync_ticket ticket;
    outcome complete, done, value;
    bool submits;
    void *object;
} hearer;

enum { A_COMMIT, ONE_PART, TWO_PARTS, LOST_KINDS };

/* On the first queue. buffers: two, retained. */
static void open_hearer(hearer *h, stage *s, int kind, void **buffers)
{
    gpusync_submission submission;
    gpusync_point signal = at(s->t[0], 1);
    memset(h, 0, sizeof *h);
    memset(&submission, 0, sizeof submission);
    h->s = s;
    h->submits = kind != A_COMMIT;
    buffers[1] = kind == TWO_PARTS ? kept_buffer_of(s->q[0]) : NULL;
    submission.command_buffers = buffers;
    submission.command_buffer_count = kind == TWO_PARTS ? 2 : 1;
    submission.signals = &signal;
    submission.signal_count = 1;
    submission.on_complete = remember;
    submission.user = &h->complete;
    submission.flags = SIGNALS_INSIDE;
    if (h->submits) assert_ok(submit_as_told(s->q[0], &submission, &h->ticket));
    else h->ticket = commit_to(s->q[0], buffers[0]);
    on_done(s->q[0], h->ticket, &h->done);
    on_value(s->t[0], 1, &h->value);
    h->object = metal_buffer_new(s->rig.metal_device, 1);
    assert_ok(gpusync_release_after(after(s->q[0], h->ticket), h->object));
}

/* Everything says the same, whoever was first; and goes on to say it. */
static gpusync_result heard(hearer *h)
{
    gpusync_ticket_info info;
    gpusync_queue *queue = h->s->q[0];
    gpusync_result result = gpusync_poll(queue, h->ticket);
    bool given_up = result == GPUSYNC_ERROR_DEVICE_LOST;
    assert_true(softmetal_dispatched(SECONDS(20)));
    if (h->submits) assert_ended(&h->complete, result);
    assert_ended(&h->done, result);
    assert_true(h->complete.order < h->done.order); /* it counts as registered first */
    assert_int_equal(calls_of(&h->value), 1);
    if (h->submits && result == GPUSYNC_OK) assert_ok(h->value.result);
    if (result != GPUSYNC_OK && !given_up)
        assert_result(h->value.result, h->submits ? result : GPUSYNC_ERROR_DEVICE_LOST);
    assert_result(gpusync_wait(queue, h->ticket, 0), result);
    assert_int_equal(gpusync_is_done(queue, h->ticket), !given_up);
    assert_int_equal(gpusync_is_idle(queue), !given_up);
    assert_result(gpusync_get_info(queue, h->ticket, &info), given_up ? result : GPUSYNC_OK);
    if (!given_up) assert_result(info.result, result);
    assert_int_equal(owners_of(h->object), given_up ? 2 : 1);
    assert_result(gpusync_queue_wait(queue, 0), GPUSYNC_ERROR_DEVICE_LOST);
    return result;
}

static void close_hearer(hearer *h)
{
    long calls = calls_of(&h->complete) + calls_of(&h->done) + calls_of(&h->value);
    must_return_within(20);
    close_queue(h->s, 0);
    has_returned();
    assert_int_equal(calls_of(&h->complete) + calls_of(&h->done) + calls_of(&h->value), calls);
    assert_int_equal(owners_of(h->object), 1);
    metal_release(h->object);
    if (metal4_run()) assert_true(softmetal_settle(SECONDS(10)));
    close_stage(h->s);
}

/* Rule: the handler, or the sweep, ends a ticket, and the other one changes nothing. The work is given up at this point
   of the handler of its last part; of two parts the second does not end. True: there was such a point. */
static bool check_giving_up_amid_a_handler(int kind, bool fails, int n)
{
    gpusync_result result;
    void *buffers[2];
    hearer h;
    bool acted;
    stage s;
    open_sleepy_stage(&s, NULL, NULL);
    buffers[0] = kept_buffer_of(s.q[0]);
    if (fails) softmetal_fail(buffers[0], NULL, metal4_run() ? 8 : 3, NULL);
    open_hearer(&h, &s, kind, buffers);
    lose_the_device(&s);
    softmetal_complete(buffers[0]);
    must_return_within(20);
    probe_at_each(n, give_up_elsewhere, s.device);
    softmetal_run_handler(buffers[0], 0);
    assert_true(softmetal_dispatched(SECONDS(20)));
    acted = probe_has_acted();
    has_returned();
    softmetal_release_block(buffers[0], 0);
    if (!acted) probe_give_up_lost(s.device);
    result = heard(&h);
    if (kind == TWO_PARTS && !metal4_run()) assert_result(result, GPUSYNC_ERROR_DEVICE_LOST);
    else if (result != GPUSYNC_ERROR_DEVICE_LOST) assert_result(result, fails ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK);
    if (buffers[1] && !metal4_run()) softmetal_finish(buffers[1]);
    assert_result(heard(&h), result);
    metal_release(buffers[0]);
    metal_release(buffers[1]);
    close_hearer(&h);
    return acted;
}

static void test_work_is_given_up_while_its_handler_ends_it(void **state)
{
    int kind, fails, n;
    (void)state;
    for (kind = 0; kind < LOST_KINDS; kind++)
        for (fails = 0; fails < 2; fails++) {
            for (n = 1; check_giving_up_amid_a_handler(kind, fails, n); n++) {}
            assert_true(n > 1);
        }
}

/* A commit behind a submission is given up, while the handler ends the submission: the end does not carry `completed` over
   the commit. True: there was such a point. */
static bool check_a_commit_behind_an_end(int n)
{
    void *buffers[2], *behind;
    gpusync_ticket ticket;
    hearer h;
    bool acted;
    stage s;
    open_sleepy_stage(&s, NULL, NULL);
    buffers[0] = kept_buffer_of(s.q[0]);
    open_hearer(&h, &s, ONE_PART, buffers);
    behind = kept_buffer_of(s.q[0]);
    ticket = commit_to(s.q[0], behind);
    lose_the_device(&s);
    softmetal_complete(buffers[0]);
    must_return_within(20);
    probe_at_each(n, give_up_elsewhere, s.device);
    softmetal_run_handler(buffers[0], 0);
    assert_true(softmetal_dispatched(SECONDS(20)));
    acted = probe_has_acted();
    has_returned();
    softmetal_release_block(buffers[0], 0);
    if (!acted) probe_give_up_lost(s.device);
    assert_result(gpusync_poll(s.q[0], ticket), GPUSYNC_ERROR_DEVICE_LOST);
    assert_false(gpusync_is_done(s.q[0], ticket));
    softmetal_finish(behind);
    metal_release(behind);
    metal_release(buffers[0]);
    close_hearer(&h);
    return acted;
}

static void test_a_commit_that_is_given_up_stays_so_though_what_is_before_it_ends_meanwhile(void **state)
{
    int n;
    (void)state;
    for (n = 1; check_a_commit_behind_an_end(n); n++) {}
    assert_true(n > 1);
}

/* The work is given up at this point of a look of another thread, which has seen the end. */
static bool check_giving_up_amid_a_look(int kind, bool fails, int n)
{
    void *buffers[2];
    gpusync_result seen, result;
    hearer h;
    bool acted;
    stage s;
    open_sleepy_stage(&s, NULL, NULL);
    buffers[0] = kept_buffer_of(s.q[0]);
    if (fails) softmetal_fail(buffers[0], NULL, 3, NULL);
    open_hearer(&h, &s, kind, buffers);
    lose_the_device(&s);
    softmetal_complete(buffers[0]);
    must_return_within(20);
    probe_at_each(n, give_up_elsewhere, s.device);
    seen = gpusync_poll(s.q[0], h.ticket);
    acted = probe_has_acted();
    has_returned();
    if (!acted) probe_give_up_lost(s.device);
    result = heard(&h);
    if (kind != TWO_PARTS) assert_result(seen, result);
    else assert_true(seen == GPUSYNC_NOT_READY || seen == GPUSYNC_ERROR_DEVICE_LOST);
    softmetal_run_handler(buffers[0], 0);
    softmetal_release_block(buffers[0], 0);
    if (buffers[1]) softmetal_finish(buffers[1]);
    assert_result(heard(&h), result);
    metal_release(buffers[0]);
    metal_release(buffers[1]);
    close_hearer(&h);
    return acted;
}

static void test_work_is_given_up_while_a_look_ends_it(void **state)
{
    int kind, fails, n;
    (void)state;
    NOT_ON_METAL4("no look sees an end before the handler");
    for (kind = 0; kind < LOST_KINDS; kind++)
        for (fails = 0; fails < 2; fails++) {
            for (n = 1; check_giving_up_amid_a_look(kind, fails, n); n++) {}
            assert_true(n > 1);
        }
}

/* Rule: what is given up is over for every thread at the same moment. At this point of the giving up the work ends. */
static bool check_an_end_amid_the_giving_up(int kind, bool fails, int n)
{
    void *buffers[2];
    gpusync_result result;
    hearer h;
    bool acted;
    stage s;
    open_sleepy_stage(&s, NULL, NULL);
    buffers[0] = kept_buffer_of(s.q[0]);
    if (fails) softmetal_fail(buffers[0], NULL, metal4_run() ? 8 : 3, NULL);
    open_hearer(&h, &s, kind, buffers);
    lose_the_device(&s);
    must_return_within(20);
    probe_at_each(n, finish_work, buffers[0]);
    probe_give_up_lost(s.device);
    assert_true(softmetal_dispatched(SECONDS(20)));
    acted = probe_has_acted();
    has_returned();
    result = heard(&h);
    if (!acted) softmetal_finish(buffers[0]);
    if (buffers[1] && !metal4_run()) softmetal_finish(buffers[1]);
    assert_result(heard(&h), result);
    if (!acted) assert_result(result, GPUSYNC_ERROR_DEVICE_LOST);
    metal_release(buffers[0]);
    metal_release(buffers[1]);
    close_hearer(&h);
    return acted;
}

static void test_work_ends_while_it_is_given_up(void **state)
{
    int kind, fails, n;
    (void)state;
    for (kind = 0; kind < LOST_KINDS; kind++)
        for (fails = 0; fails < 2; fails++) {
            for (n = 1; check_an_end_amid_the_giving_up(kind, fails, n); n++) {}
            assert_true(n > 1);
        }
}

static gate both_go;

static void *give_up_with_others(void *device)
{
    gate_wait(&both_go);
    probe_give_up_lost((gpusync_device *)device);
    return NULL;
}

/* The same, with nothing that has one thread wait for the other. */
static void test_work_ends_and_is_given_up_at_once(void **state)
{
    unsigned round, ended = 0;
    (void)state;
    for (round = 0; round < 400 / SLOW; round++) {
        gpusync_result result;
        pthread_t thread;
        void *buffers[2];
        hearer h;
        stage s;
        open_sleepy_stage(&s, NULL, NULL);
        buffers[0] = kept_buffer_of(s.q[0]);
        if (round % 4 == 0) softmetal_fail(buffers[0], NULL, metal4_run() ? 8 : 3, NULL);
        open_hearer(&h, &s, (int)(round % LOST_KINDS), buffers);
        lose_the_device(&s);
        gate_init(&both_go, 2);
        thread = start(give_up_with_others, s.device);
        gate_wait(&both_go);
        softmetal_finish(buffers[0]);
        join(thread);
        gate_destroy(&both_go);
        result = heard(&h);
        ended += result != GPUSYNC_ERROR_DEVICE_LOST;
        if (buffers[1] && !metal4_run()) softmetal_finish(buffers[1]);
        assert_result(heard(&h), result);
        metal_release(buffers[0]);
        metal_release(buffers[1]);
        close_hearer(&h);
    }
    print_message("%u of %u ended before\n", ended, 400 / SLOW);
}

/* Rule: the giving up does not wait for the order lock, and comes again. Another thread issues a submission, and stands in
   Metal's commit, when the device is lost and both looks come. */
static void test_what_is_just_being_issued_is_given_up_at_the_next_look(void **state)
{
    stop at_commit;
    job issued, other;
    void *killed;
    pthread_t thread;
    stage s;
    (void)state;
    open_sleepy_stage(&s, NULL, NULL);
    issued = JOB(.queue = s.q[0], .signal = at(s.t[0], 1));
    other = JOB(.queue = s.q[1], .signal = at(s.t[1], 1));
    job_submit(&other);
    job_open(&issued);
    killed = open_on(&s, 2);
    fail_with_the_device(killed);
    (void)commit_to(s.q[2], killed);
    stop_at(&at_commit, issued.buffer, "commit", SOFTMETAL_AFTER);
    thread = start(submit_body, &issued);
    gate_wait(&at_commit.entered);
    softmetal_finish(killed);
    assert_true(gpusync_device_is_lost(s.device));
    must_return_within(20);
    probe_give_up_amid_a_commit(s.device);
    has_returned();
    assert_int_equal(value_of(s.t[0]) + value_of(s.t[2]), 0); /* timelines fail when all is given up */
    assert_false(gpusync_is_idle(s.q[0]));
    gate_wait(&at_commit.leave);
    join(thread);
    stop_over(&at_commit);
    assert_int_equal(calls_of_job(&issued), 0);
    assert_result(poll_job(&issued), GPUSYNC_NOT_READY);
    assert_true(softmetal_timers() > 0);
    probe_give_up_lost(s.device);
    assert_called_once(&issued);
    assert_called_once(&other);
    assert_result(issued.result, GPUSYNC_ERROR_DEVICE_LOST);
    assert_result(other.result, GPUSYNC_ERROR_DEVICE_LOST);
    assert_result(poll_job(&issued), GPUSYNC_ERROR_DEVICE_LOST);
    assert_result(poll_job(&other), GPUSYNC_ERROR_DEVICE_LOST);
    assert_result(value_result(s.t[0], 1), GPUSYNC_ERROR_DEVICE_LOST);
    assert_result(value_result(s.t[1], 1), GPUSYNC_ERROR_DEVICE_LOST);
    finish_queue(s.q[0]);
    finish_queue(s.q[1]);
    job_over(&issued);
    job_over(&other);
    close_stage(&s);
}

/* The device is lost, and the work given up, by another thread. */
static void *lose_and_give_up_body(void *argument)
{
    void **killed = (void **)argument; /* and the device */
    softmetal_finish(killed[0]);
    probe_give_up_lost((gpusync_device *)killed[1]);
    return NULL;
}

static void lose_and_give_up(void *killed) { join(start(lose_and_give_up_body, killed)); }

/* Rule: after the giving up the GPU gets no work, or the work counts as given up from the first moment. Both happens at this
   point of the call, which was let in before. */
static bool check_giving_up_amid_a_call(int kind, int n)
{
    gpusync_result result, ended;
    outcome told = {0}, done = {0};
    gpusync_ticket ticket = 0;
    void *buffer, *killed[2];
    bool acted;
    stage s;
    open_sleepy_stage(&s, NULL, NULL);
    buffer = kept_buffer_of(s.q[0]);
    killed[0] = open_on(&s, 2);
    killed[1] = s.device;
    fail_with_the_device(killed[0]);
    (void)commit_to(s.q[2], killed[0]);
    must_return_within(20);
    probe_at_each(n, lose_and_give_up, killed);
    if (kind == A_COMMIT) result = either_commit(s.q[0], buffer, &ticket);
    else result = TRY_SUBMIT(s.q[0], &ticket, BUFFERS(buffer), TELL(&told));
    acted = probe_has_acted();
    has_returned();
    if (!acted) lose_and_give_up(killed);
    if (result == GPUSYNC_OK) {
        ended = gpusync_poll(s.q[0], ticket);
        assert_result(ended, GPUSYNC_ERROR_DEVICE_LOST);
        on_done(s.q[0], ticket, &done);
        assert_ended(&done, GPUSYNC_ERROR_DEVICE_LOST);
        if (kind != A_COMMIT) assert_ended(&told, GPUSYNC_ERROR_DEVICE_LOST);
        softmetal_finish(buffer);
        assert_result(gpusync_poll(s.q[0], ticket), GPUSYNC_ERROR_DEVICE_LOST);
        assert_false(gpusync_is_done(s.q[0], ticket));
        if (kind != A_COMMIT) assert_int_equal(calls_of(&told), 1);
    } else {
        assert_result(result, GPUSYNC_ERROR_DEVICE_LOST);
        assert_ok(either_discard(s.q[0], buffer));
    }
    metal_release(buffer);
    close_stage(&s);
    return acted;
}

static void test_work_is_given_up_while_a_call_brings_more(void **state)
{
    int kind, n;
    (void)state;
    for (kind = A_COMMIT; kind <= ONE_PART; kind++) {
        for (n = 1; check_giving_up_amid_a_call(kind, n); n++) {}
        assert_true(n > 1);
    }
}

/* Rule: destroy waits until the work is given up, and no longer. Its callbacks hear of the loss, as those of other queues
   do, and the objects go with the queue, though the GPU goes on. */
static void check_destroy_until_the_giving_up(int kind)
{
    gpusync_queue *queue;
    void *metal, *buffers[2];
    pthread_t thread;
    destroying d;
    hearer h;
    stage s;
    open_sleepy_stage(&s, NULL, NULL);
    buffers[0] = kept_buffer_of(s.q[0]);
    open_hearer(&h, &s, kind, buffers);
    metal = metal_retain(s.metal[0]);
    queue = s.q[0];
    lose_the_device(&s);
    must_return_within(20);
    d = (destroying){queue, false, 0};
    thread = start(destroy_body, &d);
    while (gpusync_poll(queue, h.ticket) != GPUSYNC_ERROR_DESTROYED) sched_yield();
    assert_int_equal(calls_so_far(&h.complete) + calls_so_far(&h.done) + calls_so_far(&h.value), 0);
    assert_false(GET(&d.done));
    probe_give_up_lost(s.device);
    join(thread);
    has_returned();
    s.q[0] = NULL;
    if (h.submits) assert_ended(&h.complete, GPUSYNC_ERROR_DEVICE_LOST);
    assert_ended(&h.done, GPUSYNC_ERROR_DEVICE_LOST);
    assert_ended(&h.value, GPUSYNC_ERROR_DEVICE_LOST);
    assert_int_equal(owners_of(h.object), 1);
    metal_release(h.object);
    softmetal_finish_queue(metal);
    metal_release(metal);
    metal_release(buffers[0]);
    metal_release(buffers[1]);
    close_stage(&s);
}

static void test_destroy_waits_for_the_giving_up_and_tells_of_the_loss(void **state)
{
    int kind;
    (void)state;
    for (kind = 0; kind < LOST_KINDS; kind++) check_destroy_until_the_giving_up(kind);
}

/* The report looks at a part, and asks Metal for its status; the submission ends meanwhile. */
static void finish_at_status(void *user, softmetal_phase phase, void *object, const char *selector)
{
    if (phase != SOFTMETAL_BEFORE || object != user || strcmp(selector, metal4_run() ? "label" : "status") != 0) return;
    softmetal_set_message_hook(NULL, NULL);
    softmetal_finish(object);
}

/* Rule: a slot does not lead to its submission any more when that has ended, and a report does not go that way. */
static void test_a_submission_ends_while_a_report_writes_one_of_its_parts(void **state)
{
    job one;
    stage s;
    (void)state;
    open_sleepy_stage(&s, NULL, NULL);
    one = JOB(.queue = s.q[0]);
    job_submit(&one);
    softmetal_set_message_hook(finish_at_status, one.buffer);
    assert_true(reports(s.device, "ticket 1"));
    softmetal_set_message_hook(NULL, NULL);
    assert_called(&one, GPUSYNC_OK);
    job_over(&one);
    close_stage(&s);
}

/* -- every order of four submissions ------------------------------------------------------------ */

/* Two on each of two queues. Which waits for what, which signals what, which is killed: a random choice, the shape. The
   steps of one run: submit each of a queue, in order (or all at first, in a random order of the queues); complete, run
   the handler, poll each. */
#define JOBS 4

typedef struct shape {
    unsigned wait_timeline[JOBS], wait_value[JOBS];     /* value 0: none */
    unsigned signal_timeline[JOBS], signal_value[JOBS]; /* value 0: none */
    bool killed[JOBS], unordered[JOBS];
    unsigned submit_order; /* bit k: the k-th to come in is of the second queue, as long as it has any */
    bool submit_is_a_step, poll_is_a_step;
} shape;

static uint64_t random_state;

static unsigned random_below(unsigned limit)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (unsigned)((random_state >> 20) % limit);
}

static void shape_make(shape *sh)
{
    unsigned i, next[2] = {0, 0};
    memset(sh, 0, sizeof *sh);
    for (i = 0; i < JOBS; i++) {
        sh->wait_timeline[i] = random_below(2);
        sh->wait_value[i] = random_below(3) ? random_below(4) : 0;
        sh->signal_timeline[i] = random_below(2);
        sh->killed[i] = random_below(4) == 0;
        sh->unordered[i] = random_below(4) == 0;
        if (random_below(4)) sh->signal_value[i] = ++next[sh->signal_timeline[i]];
        if (sh->signal_value[i] && sh->wait_timeline[i] == sh->signal_timeline[i] &&
            sh->wait_value[i] >= sh->signal_value[i])
            sh->wait_value[i] = 0; /* no job waits for itself */
    }
    sh->submit_order = random_below(16);
}

static void shape_print(const shape *sh)
{
    unsigned i;
    for (i = 0; i < JOBS; i++)
        print_error("  job %u on queue %u: waits %u/%u signals %u/%u%s%s\n", i, i / 2, sh->wait_timeline[i],
                    sh->wait_value[i], sh->signal_timeline[i], sh->signal_value[i], sh->killed[i] ? " killed" : "",
                    sh->unordered[i] ? " unordered" : "");
    print_error("  order of submission %u%s%s\n", sh->submit_order, sh->submit_is_a_step ? ", in steps" : "",
                sh->poll_is_a_step ? ", with polls" : "");
}

/* Chooses the way: digit k is which of the possible steps is taken k-th. */
typedef struct path {
    unsigned char digits[40], choices[40];
    unsigned length;
    bool random;
} path;

static unsigned path_choose(path *p, unsigned at, unsigned choices)
{
    assert_true(at < sizeof p->digits);
    if (at >= p->length || p->random) p->digits[at] = (unsigned char)(p->random ? random_below(choices) : 0);
    p->choices[at] = (unsigned char)choices;
    if (at >= p->length) p->length = at + 1;
    assert_true(p->digits[at] < choices);
    return p->digits[at];
}

/* On to the next way that was not gone yet. */
static bool path_next(path *p)
{
    while (p->length && p->digits[p->length - 1] + 1u == p->choices[p->length - 1]) p->length--;
    if (p->length == 0) return false;
    p->digits[p->length - 1]++;
    return true;
}

enum { SUBMIT, COMPLETE, HANDLER, POLL, KINDS };

typedef struct run {
    const shape *sh;
    stage *s;
    job jobs[JOBS];
    bool stuck;
    bool submitted[JOBS], refused[JOBS], complete[JOBS], handled[JOBS], polled[JOBS], given_up[JOBS];
    unsigned commits, commit_number[JOBS]; /* 0: not yet */
    char log[256];                         /* what was done, for the reader of a failure */
} run;

static void run_check(const run *r, bool holds, unsigned i, const char *rule)
{
    if (holds) return;
    print_error("job or timeline %u: %s\n  steps:%s\n", i, rule, r->log);
    shape_print(r->sh);
    fail();
}

static void run_log_step(run *r, unsigned kind, unsigned i)
{
    static const char names[] = "schp";
    size_t length = strlen(r->log);
    snprintf(r->log + length, sizeof r->log - length, " %c%u", names[kind], i);
}

static void run_note_commit(void *user, softmetal_phase phase, void *object, const char *selector)
{
    run *r = (run *)user;
    unsigned i;
    if (phase != SOFTMETAL_AFTER || strncmp(selector, "commit", 6) != 0) return; /* a sweep asks for states meanwhile */
    for (i = 0; i < JOBS; i++)
        if (r->jobs[i].buffer && !r->commit_number[i] && commits(object, selector, r->jobs[i].buffer))
            r->commit_number[i] = ++r->commits;
}

/* On each queue the device goes in order, and no further than what has been signalled. (Killed work does not wait, but
   a queue of Metal 4 does.) */
static bool run_can_complete(const run *r, unsigned i)
{
    gpusync_timeline *t = r->s->t[r->sh->wait_timeline[i]];
    unsigned other = i ^ 1u;
    uint64_t base;
    void *event = probe_event_of(t, &base);
    if (!r->commit_number[i] || r->complete[i]) return false;
    if (r->commit_number[other] && r->commit_number[other] < r->commit_number[i] && !r->complete[other]) return false;
    return r->jobs[i].wait.timeline == NULL || (r->sh->killed[i] && !metal4_run()) ||
           metal_event_value(event) >= r->sh->wait_value[i] + base;
}

static bool run_can(const run *r, unsigned kind, unsigned i)
{
    switch (kind) {
    case SUBMIT: return !r->submitted[i] && (i % 2 == 0 || r->submitted[i - 1]);
    case COMPLETE: return run_can_complete(r, i);
    case HANDLER: return r->complete[i] && !r->handled[i];
    default: return r->sh->poll_is_a_step && r->submitted[i] && !r->refused[i] && !r->polled[i];
    }
}

static void run_submit(run *r, unsigned i)
{
    const shape *sh = r->sh;
    job *j = &r->jobs[i];
    gpusync_result result;
    if (sh->wait_value[i]) j->wait = at(r->s->t[sh->wait_timeline[i]], sh->wait_value[i]);
    if (sh->signal_value[i]) j->signal = at(r->s->t[sh->signal_timeline[i]], sh->signal_value[i]);
    j->queue = r->s->q[i / 2];
    j->flags = sh->unordered[i] ? (uint32_t)GPUSYNC_UNORDERED : 0;
    job_open(j);
    if (sh->killed[i]) softmetal_fail(j->buffer, NULL, 100 + (long)i, "killed");
    result = job_try(j);
    r->submitted[i] = true;
    r->refused[i] = result != GPUSYNC_OK;
    if (!r->refused[i]) return;
    /* its signal is too late, or the timeline has failed */
    run_check(r, sh->signal_value[i] && (result == GPUSYNC_ERROR_NOT_RISING || result == GPUSYNC_ERROR_EXECUTION), i,
              "is refused for no reason");
    assert_ok(either_discard(j->queue, j->buffer));
}

/* Is this job to signal a value of the timeline up to this one? */
static bool run_signals(const run *r, unsigned i, unsigned t, uint64_t limit)
{
    return r->submitted[i] && !r->refused[i] && r->sh->signal_value[i] && r->sh->signal_timeline[i] == t &&
           r->sh->signal_value[i] <= limit;
}

/* Could a look find, now, that it has ended well? With Metal 4 its handler must have run. */
static bool run_is_knowable(const run *r, unsigned i, unsigned depth)
{
    unsigned k, t = r->sh->wait_timeline[i];
    bool covered = false;
    if (depth > JOBS || r->refused[i] || !r->complete[i] || r->sh->killed[i]) return false;
    if (metal4_run() && !r->handled[i]) return false;
    if (r->sh->wait_value[i] == 0) return true;
    if (believed(r->s->t[t]) == FAILED) return false;
    for (k = 0; k < JOBS; k++) {
        bool known = k != i && run_signals(r, k, t, ~(uint64_t)0) && run_is_knowable(r, k, depth + 1);
        covered |= known && r->sh->signal_value[k] >= r->sh->wait_value[i];
        if (!known && run_signals(r, k, t, r->sh->wait_value[i])) return false;
    }
    return covered && believed(r->s->t[t]) != FAILED;
}

/* All of these are rules of what may be believed at any time. */
static void run_check_timeline(const run *r, unsigned t)
{
    uint64_t reached = believed(r->s->t[t]);
    bool one_failed = false;
    unsigned k;
    for (k = 0; k < JOBS; k++) {
        if (!run_signals(r, k, t, ~(uint64_t)0) || !is_marked(&r->jobs[k])) continue;
        one_failed |= poll_job(&r->jobs[k]) != GPUSYNC_OK;
    }
    if (reached == FAILED) {
        run_check(r, one_failed, t, "failed, and no work that was to signal it has");
        return;
    }
    run_check(r, !one_failed, t, "has not failed, though work that was to signal it has");
    for (k = 0; k < JOBS; k++)
        if (run_signals(r, k, t, reached))
            run_check(r, is_marked(&r->jobs[k]), t, "has reached a value before the work that was to signal it has ended");
}

static void run_check_good(const run *r, unsigned i)
{
    unsigned k, t = r->sh->wait_timeline[i];
    run_check(r, r->complete[i] && !r->sh->killed[i], i, "ended well, but its work has not");
    if (r->sh->wait_value[i] == 0) return;
    for (k = 0; k < JOBS; k++)
        if (run_signals(r, k, t, r->sh->wait_value[i]))
            run_check(r, is_marked(&r->jobs[k]) && poll_job(&r->jobs[k]) == GPUSYNC_OK, i,
                      "ended well, though what it waited for has not");
}

static void run_check_bad(const run *r, unsigned i, const gpusync_error *error)
{
    int64_t culprit = error->code - 100;
    if (error->result == GPUSYNC_ERROR_CANCELLED) {
        run_check(r, r->given_up[i], i, "is cancelled, but was not held then");
        return;
    }
    run_check(r, error->result == GPUSYNC_ERROR_EXECUTION && culprit >= 0 && culprit < JOBS, i, "has a strange error");
    run_check(r, r->sh->killed[culprit] && r->complete[culprit], i, "has an error that did not happen");
    run_check(r, culprit == i || believed(r->s->t[r->sh->wait_timeline[i]]) == FAILED, i,
              "has the error of a job it does not depend on");
    if (!r->commit_number[i]) return;
    run_check(r, r->complete[i], i, "is told to have failed while it is on the device");
}

static void run_check_job(run *r, unsigned i)
{
    job *j = &r->jobs[i];
    gpusync_error error;
    gpusync_wait_options options;
    gpusync_result result;
    unsigned calls = calls_of_job(j);
    run_check(r, calls <= 1, i, "is called back twice");
    run_check(r, calls == 0 || j->marked, i, "is called back before it is over");
    run_check(r, calls == 0 || !r->commit_number[i] || !pthread_equal(j->thread, pthread_self()), i,
              "was on the device, and is called back in a call of the program's");
    if (!is_marked(j)) {
        run_check(r, !gpusync_is_done(j->queue, j->ticket) && calls == 0, i, "is done and is not over");
        return;
    }
    memset(&options, 0, sizeof options);
    options.error = &error;
    result = gpusync_wait_ex(j->queue, j->ticket, 0, &options);
    run_check(r, calls == 0 || j->result == result, i, "is called back with another result");
    if (result == GPUSYNC_OK) run_check_good(r, i);
    else run_check_bad(r, i, &error);
}

static void run_check_all(run *r)
{
    unsigned i;
    for (i = 0; i < JOBS; i++)
        if (r->submitted[i] && !r->refused[i]) run_check_job(r, i);
    for (i = 0; i < 2; i++) run_check_timeline(r, i);
}

static void run_poll(run *r, unsigned i)
{
    bool good = run_is_knowable(r, i, 0);
    gpusync_result result = poll_job(&r->jobs[i]);
    r->polled[i] = true;
    if (good && result == GPUSYNC_NOT_READY) { /* of what it waited for only a poll of that, or a sweep, knows */
        softmetal_fire_timer();
        result = poll_job(&r->jobs[i]);
    }
    if (good) run_check(r, result == GPUSYNC_OK, i, "has ended well, but a poll does not see it");
}

static void run_step(run *r, unsigned kind, unsigned i)
{
    run_log_step(r, kind, i);
    if (kind == SUBMIT) run_submit(r, i);
    if (kind == COMPLETE) softmetal_complete(r->jobs[i].buffer);
    if (kind == HANDLER) run_handler(&r->jobs[i]);
    if (kind == POLL) run_poll(r, i);
    r->complete[i] |= kind == COMPLETE;
    r->handled[i] |= kind == HANDLER;
    run_check_all(r);
}

static bool run_any_step(run *r, path *p, unsigned at)
{
    unsigned possible[JOBS * KINDS], count = 0, kind, i;
    for (kind = 0; kind < KINDS; kind++)
        for (i = 0; i < JOBS; i++)
            if (run_can(r, kind, i)) possible[count++] = kind * JOBS + i;
    if (count == 0) return false;
    count = possible[path_choose(p, at, count)];
    run_step(r, count / JOBS, count % JOBS);
    return true;
}

static void run_submit_all(run *r)
{
    unsigned next[2] = {0, 2}, k;
    for (k = 0; k < JOBS; k++) {
        unsigned queue = r->sh->submit_order >> k & 1u;
        if (next[queue] == queue * 2 + 2) queue = !queue;
        run_step(r, SUBMIT, next[queue]++);
    }
}

/* In flight at the end may be only a job that waits for a value below which held work is to signal another ... */
static bool run_waits_for_held(const run *r, unsigned i, unsigned depth)
{
    unsigned k;
    for (k = 0; k < JOBS && depth <= JOBS; k++)
        if (run_signals(r, k, r->sh->wait_timeline[i], r->sh->wait_value[i]) && !is_marked(&r->jobs[k]) &&
            (!r->commit_number[k] || run_waits_for_held(r, k, depth + 1)))
            return true;
    return false;
}

/* ... or where such a pending signal waits for a job that waits for the value above it, or is behind one on its queue:
   the program's mistake. Does i need k to end? */
static bool run_needs(const run *r, unsigned i, unsigned k)
{
    bool in_front = k == (i ^ 1u) && r->commit_number[k] && r->commit_number[k] < r->commit_number[i];
    bool pending = r->sh->wait_value[i] && run_signals(r, k, r->sh->wait_timeline[i], ~(uint64_t)0);
    if (k == i || !r->submitted[k] || r->refused[k] || is_marked(&r->jobs[k])) return false;
    return (in_front && !r->complete[k] && !r->complete[i]) || pending;
}

static bool run_waits_in_a_circle(const run *r, unsigned i, unsigned depth)
{
    unsigned k;
    if (depth > JOBS) return true;
    for (k = 0; k < JOBS; k++)
        if (run_needs(r, i, k) && run_waits_in_a_circle(r, k, depth + 1)) return true;
    return false;
}

/* What waits for a value that never comes is given up; then everything must be over. */
static void run_end(run *r)
{
    unsigned i;
    for (i = 0; i < JOBS; i++) r->given_up[i] = r->submitted[i] && !r->refused[i] && !is_marked(&r->jobs[i]);
    for (i = 0; i < JOBS; i++) {
        if (!r->given_up[i] || !r->commit_number[i] || run_waits_for_held(r, i, 0)) continue;
        run_check(r, run_waits_in_a_circle(r, i, 0), i, "does not end");
        r->stuck = true;
    }
    for (i = 0; r->stuck && i < 2; i++) (void)gpusync_timeline_fail(r->s->t[i], NULL);
    for (i = 0; i < 2; i++) assert_ok(gpusync_cancel_held(r->s->q[i]));
    for (i = 0; i < QUEUES; i++) finish_queue(r->s->q[i]); /* what was behind it, and what brings handlers */
    for (i = 0; i < JOBS; i++) r->complete[i] = r->commit_number[i] != 0;
    if (!r->stuck) run_check_all(r);
    for (i = 0; i < JOBS; i++) {
        job *j = &r->jobs[i];
        gpusync_timeline *t = r->s->t[r->sh->wait_timeline[i]];
        if (r->refused[i]) continue;
        run_check(r, is_marked(j), i, "is not over");
        wait_for_call(j); /* which the listener's thread may have to make */
        run_check(r, calls_of_job(j) == 1, i, "was not called back");
        if (r->sh->killed[i] || !r->commit_number[i])
            run_check(r, j->result != GPUSYNC_OK, i, "has no error");
        else if (!r->stuck && (j->wait.timeline == NULL || believed(t) != FAILED))
            run_check(r, j->result == GPUSYNC_OK, i, "has an error");
    }
    for (i = 0; i < 2; i++) run_check(r, gpusync_is_idle(r->s->q[i]), i, "(a queue) is not idle");
}

/* One way through. */
static void run_path(stage *s, const shape *sh, path *p)
{
    unsigned at, i;
    run r;
    memset(&r, 0, sizeof r);
    r.s = s;
    r.sh = sh;
    softmetal_set_message_hook(run_note_commit, &r);
    if (!sh->submit_is_a_step) run_submit_all(&r);
    for (at = 0; run_any_step(&r, p, at); at++) {}
    p->length = at;
    run_end(&r);
    softmetal_set_message_hook(NULL, NULL);
    for (i = 0; i < JOBS; i++) job_over(&r.jobs[i]);
    assert_int_equal(softmetal_live("command_buffer"), 0);
    for (i = 0; i < STAGE_TIMELINES; i++) assert_ok(gpusync_timeline_destroy(s->t[i]));
    for (i = 0; i < STAGE_TIMELINES; i++) s->t[i] = timeline_new(s->device);
    drop_recordings(); /* else softmetal's lists grow with every way */
}

static unsigned stressed(unsigned usual)
{
    const char *stress = getenv("STRESS");
    return stress && strcmp(stress, "full") == 0 ? usual * 50 : usual;
}

/* Every order of completions and handlers of a few shapes. */
static void test_every_order_of_four_submissions(void **state)
{
    unsigned ways = 0, most = stressed(3000);
    path p;
    shape sh;
    stage s;
    (void)state;
    random_state = 0x9E3779B97F4A7C15u;
    open_sleepy_stage(&s, NULL, NULL);
    while (ways < most) {
        shape_make(&sh);
        memset(&p, 0, sizeof p);
        do {
            run_path(&s, &sh, &p);
            ways++;
        } while (path_next(&p) && ways < 2 * most);
    }
    close_stage(&s);
}

/* More shapes, with the calls of the program in between. */
static void test_many_orders_of_four_submissions_and_calls_in_between(void **state)
{
    unsigned k, most = stressed(3000);
    path p;
    shape sh;
    stage s;
    (void)state;
    random_state = 0xD1B54A32D192ED03u;
    open_sleepy_stage(&s, NULL, NULL);
    for (k = 0; k < most; k++) {
        shape_make(&sh);
        sh.submit_is_a_step = random_below(2);
        sh.poll_is_a_step = random_below(4) != 0;
        memset(&p, 0, sizeof p);
        p.random = true;
        run_path(&s, &sh, &p);
    }
    close_stage(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_interleaving_12_a_larger_signal_does_not_hide_that_the_work_was_killed),
        cmocka_unit_test(test_interleaving_12_the_value_follows_the_pending_signals_in_their_order),
        cmocka_unit_test(test_interleaving_12_a_larger_signal_of_the_host_waits_for_the_pending_signal_below_it),
        cmocka_unit_test(test_interleaving_13_a_consumer_that_ends_first_is_published_after_its_producer),
        cmocka_unit_test(test_interleaving_13_a_consumer_of_a_ticket_gets_the_failure_of_the_ticket),
        cmocka_unit_test(test_interleaving_14_a_signal_after_the_wait_has_timed_out),
        cmocka_unit_test(test_interleaving_15_a_handler_has_held_work_to_issue_while_another_thread_has_the_order_lock),
        cmocka_unit_test(test_interleaving_15_a_callback_that_ends_other_work_does_not_wait_for_the_order_lock),
        cmocka_unit_test(test_interleaving_15_a_signal_in_a_callback_lets_work_go_while_another_thread_has_the_order_lock),
        cmocka_unit_test(test_interleaving_16_a_refused_submission_has_listed_no_signal),
        cmocka_unit_test(test_interleaving_17_a_timeline_goes_before_held_work_registers_with_its_event),
        cmocka_unit_test(test_interleaving_17_a_timeline_goes_while_held_work_registers_with_its_event),
        cmocka_unit_test(test_interleaving_17_a_timeline_goes_before_work_that_waits_for_its_own_signal_enters),
        cmocka_unit_test(test_interleaving_24_a_wait_for_a_ticket_whose_handler_is_lost_ends),
        cmocka_unit_test(test_a_wait_that_ends_while_its_submission_is_refused_touches_no_other_submission),
        cmocka_unit_test(test_a_refused_submission_and_the_queue_of_its_ticket_do_not_wait_for_each_other),
        cmocka_unit_test(test_a_submission_that_ends_inside_its_commit_is_announced_before_it_is_over),
        cmocka_unit_test(test_a_callback_comes_though_only_a_poller_saw_the_end),
        cmocka_unit_test(test_a_callback_whose_handlers_have_come_or_are_lost_comes),
        cmocka_unit_test(test_a_callback_of_work_that_was_on_the_device_never_runs_in_the_callers_thread),
        cmocka_unit_test(test_a_callback_that_fails_a_timeline_has_others_called),
        cmocka_unit_test(test_nothing_is_told_between_the_claim_and_the_record),
        cmocka_unit_test(test_the_value_is_reached_when_the_ticket_is_over),
        cmocka_unit_test(test_cancel_comes_while_the_line_is_being_issued),
        cmocka_unit_test(test_cancel_comes_while_a_signal_is_about_to_tell),
        cmocka_unit_test(test_destroy_waits_for_a_signal_that_is_about_to_tell),
        cmocka_unit_test(test_handlers_that_come_after_destroy_now_tell_nothing),
        cmocka_unit_test(test_a_queue_goes_while_a_signal_has_its_line_issued),
        cmocka_unit_test(test_destroy_waits_for_a_handler_that_is_on_its_way_out),
        cmocka_unit_test(test_destroy_now_lets_a_handler_out_that_has_ended_a_submission),
        cmocka_unit_test(test_work_is_given_up_while_its_handler_ends_it),
        cmocka_unit_test(test_a_commit_that_is_given_up_stays_so_though_what_is_before_it_ends_meanwhile),
        cmocka_unit_test(test_work_is_given_up_while_a_look_ends_it),
        cmocka_unit_test(test_work_ends_while_it_is_given_up),
        cmocka_unit_test(test_work_ends_and_is_given_up_at_once),
        cmocka_unit_test(test_what_is_just_being_issued_is_given_up_at_the_next_look),
        cmocka_unit_test(test_work_is_given_up_while_a_call_brings_more),
        cmocka_unit_test(test_destroy_waits_for_the_giving_up_and_tells_of_the_loss),
        cmocka_unit_test(test_a_submission_ends_while_a_report_writes_one_of_its_parts),
        cmocka_unit_test(test_every_order_of_four_submissions),
        cmocka_unit_test(test_many_orders_of_four_submissions_and_calls_in_between),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
