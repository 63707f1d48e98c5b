/* test_softmetal_dispatch.c - softmetal's libdispatch: queues, workers, timers

   Serial queues are serial and in order, work keeps its queue, the workers are few enough to be used up, and
   under the manual clock timers fire when the test says so. What it refuses is in test_softmetal.c, with the
   other rules. */
#include "softmetal_words.h"
#include <dlfcn.h>

#define NOW UINT64_C(0)
#define FOREVER UINT64_MAX

static void *serial_queue_new(void)
{
    return dispatch_queue_create("test", NULL);
}

static void after_ms(int64_t ms, void *queue, void *context, void (*function)(void *))
{
    dispatch_after_f(dispatch_time(NOW, ms * (int64_t)MS), queue, context, function);
}

static void begin(softmetal_clock clock)
{
    softmetal_reset();
    softmetal_set_clock(clock);
}

static void end(void)
{
    assert_true(softmetal_settle(10 * SECOND));
    softmetal_reset();
    assert_int_equal(softmetal_live("dispatch_queue"), 0);
    assert_int_equal(softmetal_timers(), 0);
}

/* What functions did, in order; the plain members need the order that dispatch promises. */
typedef struct list {
    int numbers[16];
    unsigned count;
} list;

typedef struct item {
    list *list;
    int number;
} item;

static void add(void *context)
{
    item *i = (item *)context;
    i->list->numbers[i->list->count++ % 16] = i->number;
}

/* Functions that stay inside until the gate opens. */
typedef struct gate {
    int inside, most, passed, open; /* atomic */
} gate;

static int get(const int *value)
{
    return __atomic_load_n(value, __ATOMIC_SEQ_CST);
}

static void pass(void *context)
{
    gate *g = (gate *)context;
    int inside = __atomic_add_fetch(&g->inside, 1, __ATOMIC_SEQ_CST), most = get(&g->most);
    while (inside > most &&
           !__atomic_compare_exchange_n(&g->most, &most, inside, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        ;
    while (!get(&g->open)) sleep_ms(1);
    __atomic_sub_fetch(&g->inside, 1, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&g->passed, 1, __ATOMIC_SEQ_CST);
}

static void open_gate(gate *g)
{
    __atomic_store_n(&g->open, 1, __ATOMIC_SEQ_CST);
}

static bool comes_to(const int *value, int wanted)
{
    for (int i = 0; i < 10000 && get(value) != wanted; i++) sleep_ms(1);
    return get(value) == wanted;
}

/* ----------------------------------------------------------------------------- queues -- */

enum { GIVERS = 4, GIVEN = 500 };

typedef struct giver giver;
typedef struct given {
    giver *from;
    int number;
} given;
struct giver {
    void *queue;
    int *total; /* of the queue; plain: one function at a time touches it */
    int next;   /* expected from this giver */
    bool wrong;
    given work[GIVEN];
};

static void take(void *context)
{
    given *w = (given *)context;
    if (w->number != w->from->next++) w->from->wrong = true;
    ++*w->from->total;
}

static void *give(void *argument)
{
    giver *g = (giver *)argument;
    for (int i = 0; i < GIVEN; i++) {
        g->work[i] = (given){g, i};
        dispatch_async_f(g->queue, &g->work[i], take);
    }
    return NULL;
}

static void a_serial_queue_keeps_the_order_of_each_giver(void **state)
{
    static giver givers[GIVERS];
    pthread_t threads[GIVERS];
    int total = 0;
    void *queue;
    (void)state;
    begin(SOFTMETAL_REAL);
    queue = serial_queue_new();
    memset(givers, 0, sizeof givers);
    for (int i = 0; i < GIVERS; i++) {
        givers[i].queue = queue;
        givers[i].total = &total;
        assert_int_equal(pthread_create(&threads[i], NULL, give, &givers[i]), 0);
    }
    for (int i = 0; i < GIVERS; i++) pthread_join(threads[i], NULL);
    assert_true(softmetal_settle(10 * SECOND));
    assert_int_equal(total, GIVERS * GIVEN);
    for (int i = 0; i < GIVERS; i++) assert_false(givers[i].wrong);
    assert_int_equal(softmetal_dispatches(), GIVERS * GIVEN);
    dispatch_release(queue);
    end();
}

static void one_function_at_a_time_runs_on_a_serial_queue(void **state)
{
    gate g = {0, 0, 0, 0};
    void *queue;
    (void)state;
    begin(SOFTMETAL_REAL);
    queue = serial_queue_new();
    for (int i = 0; i < 3; i++) dispatch_async_f(queue, &g, pass);
    assert_true(comes_to(&g.inside, 1));
    sleep_ms(20);
    assert_int_equal(get(&g.inside), 1);
    open_gate(&g);
    assert_true(softmetal_settle(10 * SECOND));
    assert_int_equal(g.passed, 3);
    assert_int_equal(g.most, 1);
    dispatch_release(queue);
    end();
}

static void queues_and_the_global_queue_run_at_once(void **state)
{
    gate g = {0, 0, 0, 0};
    void *queues[2], *global;
    (void)state;
    begin(SOFTMETAL_REAL);
    queues[0] = serial_queue_new();
    queues[1] = serial_queue_new();
    global = dispatch_get_global_queue(0, 0);
    for (int i = 0; i < 2; i++) dispatch_async_f(queues[i], &g, pass);
    for (int i = 0; i < 2; i++) dispatch_async_f(global, &g, pass);
    assert_true(comes_to(&g.inside, 4)); /* or they would wait for each other for ever */
    open_gate(&g);
    assert_true(softmetal_settle(10 * SECOND));
    for (int i = 0; i < 2; i++) dispatch_release(queues[i]);
    end();
}

static void the_global_queue_does_not_count_references(void **state)
{
    static const intptr_t known[] = {0x21, 0x19, 0x15, 0x11, 0x09, 2, 0, -2, INT16_MIN};
    list l = {{0}, 0};
    item one = {&l, 1};
    void *global;
    (void)state;
    begin(SOFTMETAL_REAL);
    for (unsigned i = 0; i < sizeof known / sizeof known[0]; i++) {
        global = dispatch_get_global_queue(known[i], 0);
        assert_non_null(global);
        for (int k = 0; k < 3; k++) dispatch_release(global);
        dispatch_retain(global);
    }
    assert_null(dispatch_get_global_queue(7, 0));
    assert_null(dispatch_get_global_queue(0, 1));
    assert_int_equal(softmetal_live("dispatch_queue"), 0);
    dispatch_async_f(global, &one, add);
    assert_true(softmetal_settle(10 * SECOND));
    assert_int_equal(l.count, 1);
    end();
}

/* As <sys/qos.h> numbers them. */
enum { UTILITY = 0x11, USER_INITIATED = 0x19 };

static void note_class(void *context)
{
    unsigned *seen = (unsigned *)context;
    *seen = softmetal_dispatch_qos(NULL);
}

static void a_queue_has_the_class_of_service_that_it_was_made_with(void **state)
{
    void *attribute, *queue, *plain, *global = dispatch_get_global_queue(USER_INITIATED, 0);
    unsigned seen[3] = {99, 99, 99};
    (void)state;
    begin(SOFTMETAL_REAL);
    attribute = dispatch_queue_attr_make_with_qos_class(NULL, USER_INITIATED, 0);
    assert_non_null(attribute);
    assert_ptr_equal(attribute, dispatch_queue_attr_make_with_qos_class(NULL, USER_INITIATED, -15));
    dispatch_retain(attribute); /* it lives as long as the process */
    dispatch_release(attribute);
    dispatch_release(attribute);
    dispatch_release(attribute);
    queue = dispatch_queue_create("with a class", attribute);
    plain = serial_queue_new();
    assert_int_equal(softmetal_dispatch_qos(queue), USER_INITIATED);
    assert_int_equal(softmetal_dispatch_qos(plain), 0);
    assert_int_equal(softmetal_dispatch_qos(global), 0);
    assert_int_equal(softmetal_dispatch_qos(NULL), 0);
    dispatch_async_f(queue, &seen[0], note_class);
    dispatch_async_f(plain, &seen[1], note_class);
    dispatch_async_f(global, &seen[2], note_class);
    assert_true(softmetal_settle(10 * SECOND));
    assert_int_equal(seen[0], USER_INITIATED);
    assert_int_equal(seen[1], 0);
    assert_int_equal(seen[2], 0);
    dispatch_release(queue);
    dispatch_release(plain);
    end();
}

/* As Apple's source has it. Its comment says NULL. */
static void a_class_that_does_not_exist_changes_no_attribute(void **state)
{
    void *utility;
    (void)state;
    utility = dispatch_queue_attr_make_with_qos_class(NULL, UTILITY, 0);
    assert_null(dispatch_queue_attr_make_with_qos_class(NULL, 0x20, 0));
    assert_null(dispatch_queue_attr_make_with_qos_class(NULL, UTILITY, 1));
    assert_null(dispatch_queue_attr_make_with_qos_class(NULL, UTILITY, -16));
    assert_ptr_equal(dispatch_queue_attr_make_with_qos_class(utility, 0x20, 0), utility);
    assert_ptr_not_equal(dispatch_queue_attr_make_with_qos_class(utility, USER_INITIATED, 0), utility);
}

static void what_is_pending_keeps_its_queue(void **state)
{
    list l = {{0}, 0};
    item one = {&l, 1}, two = {&l, 2}, three = {&l, 3};
    void *queue;
    (void)state;
    begin(SOFTMETAL_MANUAL);
    softmetal_set_dispatch_threads(0);
    queue = serial_queue_new();
    dispatch_retain(queue);
    dispatch_async_f(queue, &one, add);
    dispatch_async_f(queue, &two, add);
    after_ms(1, queue, &three, add);
    dispatch_release(queue);
    assert_int_equal(softmetal_live("dispatch_queue"), 1);
    dispatch_release(queue);
    assert_int_equal(softmetal_live("dispatch_queue"), 0); /* of the program's; what is pending runs on it all the same */
    softmetal_set_dispatch_threads(1);
    assert_true(softmetal_settle(10 * SECOND));
    assert_int_equal(l.count, 2);
    softmetal_fire_timer();
    assert_true(softmetal_settle(10 * SECOND));
    assert_int_equal(l.count, 3);
    assert_int_equal(softmetal_live("dispatch_queue"), 0);
    for (int i = 0; i < 3; i++) assert_int_equal(l.numbers[i], i + 1);

    queue = serial_queue_new(); /* with nothing pending it goes at once */
    assert_int_equal(softmetal_live("dispatch_queue"), 1);
    dispatch_release(queue);
    assert_int_equal(softmetal_live("dispatch_queue"), 0);
    end();
}

static void release_own_queue(void *queue)
{
    dispatch_release(queue);
}

static void a_function_may_release_its_own_queue(void **state)
{
    void *queue;
    (void)state;
    begin(SOFTMETAL_REAL);
    queue = serial_queue_new();
    dispatch_async_f(queue, queue, release_own_queue);
    assert_true(softmetal_settle(10 * SECOND));
    end();
}

/* ---------------------------------------------------------------------------- workers -- */

static void the_workers_can_be_used_up(void **state)
{
    gate g = {0, 0, 0, 0};
    list l = {{0}, 0};
    item one = {&l, 1};
    void *queue, *global;
    (void)state;
    begin(SOFTMETAL_REAL);
    queue = serial_queue_new();
    global = dispatch_get_global_queue(0, 0);
    softmetal_set_dispatch_threads(2);
    for (int i = 0; i < 5; i++) dispatch_async_f(global, &g, pass);
    dispatch_async_f(queue, &one, add);
    assert_true(comes_to(&g.inside, 2));
    assert_false(softmetal_settle(20 * MS));
    assert_int_equal(get(&g.inside), 2);
    softmetal_set_dispatch_threads(4);
    assert_true(comes_to(&g.inside, 4));
    softmetal_set_dispatch_threads(0);
    open_gate(&g);
    assert_true(comes_to(&g.passed, 4)); /* what is inside comes out, nothing goes in */
    assert_false(softmetal_settle(20 * MS));
    assert_int_equal(get(&g.passed), 4);
    assert_int_equal(get(&g.most), 4);
    softmetal_set_dispatch_threads(1);
    assert_true(softmetal_settle(10 * SECOND));
    assert_int_equal(g.passed, 5);
    assert_int_equal(l.count, 1);
    dispatch_release(queue);
    end();
}

static void there_are_at_most_64_workers(void **state)
{
    gate g = {0, 0, 0, 0};
    void *global;
    (void)state;
    begin(SOFTMETAL_REAL);
    global = dispatch_get_global_queue(0, 0);
    for (int i = 0; i < SOFTMETAL_DISPATCH_THREADS + 6; i++) dispatch_async_f(global, &g, pass);
    assert_true(comes_to(&g.inside, SOFTMETAL_DISPATCH_THREADS));
    sleep_ms(20);
    open_gate(&g);
    assert_true(softmetal_settle(10 * SECOND));
    assert_int_equal(g.most, SOFTMETAL_DISPATCH_THREADS);
    assert_int_equal(g.passed, SOFTMETAL_DISPATCH_THREADS + 6);
    end();
}

/* A function that gives more work, many times over: settle must not look at the wrong moment. */
typedef struct chain {
    void *queue, *other;
    int left;
} chain;

static void go_on(void *context)
{
    chain *c = (chain *)context;
    void *queue = c->queue;
    if (c->left-- == 0) return;
    c->queue = c->other;
    c->other = queue;
    dispatch_async_f(c->queue, c, go_on);
}

static void settle_waits_for_what_begins_meanwhile(void **state)
{
    chain c = {NULL, NULL, 2000};
    (void)state;
    begin(SOFTMETAL_REAL);
    c.queue = serial_queue_new();
    c.other = serial_queue_new();
    dispatch_async_f(c.queue, &c, go_on);
    assert_true(softmetal_settle(10 * SECOND));
    assert_int_equal(c.left, -1);
    dispatch_release(c.queue);
    dispatch_release(c.other);
    end();
}

/* ----------------------------------------------------------------------------- timers -- */

static void times_are_sums(void **state)
{
    (void)state;
    begin(SOFTMETAL_REAL);
    uint64_t before = now_ns(), time = dispatch_time(NOW, 5);
    assert_true(time >= before + 5 && time <= now_ns() + 5);
    assert_int_equal(dispatch_time(time, 7), time + 7);
    assert_int_equal(dispatch_time(time, -7), time - 7);
    assert_int_equal(dispatch_time(time, INT64_MIN), 1);
    assert_true(dispatch_time(time, INT64_MAX) == FOREVER);
    assert_true(dispatch_time(FOREVER, -7) == FOREVER);
    end();
}

typedef struct moment {
    uint64_t at;
    int come; /* atomic */
} moment;

static void note_moment(void *context)
{
    moment *m = (moment *)context;
    m->at = now_ns();
    __atomic_store_n(&m->come, 1, __ATOMIC_SEQ_CST);
}

static void timers_of_the_real_clock_come_by_themselves(void **state)
{
    moment soon = {0, 0}, later = {0, 0}, never = {0, 0};
    uint64_t before;
    void *queue;
    (void)state;
    begin(SOFTMETAL_REAL);
    queue = serial_queue_new();
    before = now_ns();
    after_ms(3600000, queue, &never, note_moment);
    after_ms(30, queue, &later, note_moment);
    after_ms(10, queue, &soon, note_moment);
    assert_int_equal(softmetal_timers_armed(), 3);
    assert_true(softmetal_next_timer() == UINT64_MAX); /* of the manual clock: none */
    softmetal_set_clock(SOFTMETAL_MANUAL);             /* they were armed before */
    assert_true(comes_to(&later.come, 1));
    assert_true(soon.at >= before + 11 * MS && later.at >= before + 33 * MS && soon.at <= later.at);
    assert_true(softmetal_settle(10 * SECOND)); /* the far one does not count */
    assert_int_equal(softmetal_timers(), 1);
    assert_int_equal(softmetal_dispatches(), 0);
    dispatch_release(queue);
    softmetal_reset(); /* makes it due */
    assert_int_equal(never.come, 1);
    assert_int_equal(softmetal_timers_armed(), 0);
    end();
}

/* A tenth of a long time is more than what a short one takes. */
static void a_timer_may_come_before_one_with_an_earlier_moment(void **state)
{
    moment earlier = {0, 0}, later = {0, 0};
    uint64_t start;
    void *queue;
    (void)state;
    begin(SOFTMETAL_REAL);
    queue = serial_queue_new();
    start = dispatch_time(NOW, 0);
    dispatch_after_f(start + 400 * MS, queue, &earlier, note_moment);
    sleep_ms(380);
    dispatch_after_f(start + 410 * MS, queue, &later, note_moment);
    assert_true(comes_to(&earlier.come, 1));
    assert_true(comes_to(&later.come, 1));
    if (later.at < start + 430 * MS) assert_true(later.at < earlier.at); /* else the machine was busy */
    assert_true(earlier.at >= start + 440 * MS);
    dispatch_release(queue);
    end();
}

static void a_timer_that_is_due_counts_for_settle(void **state)
{
    list l = {{0}, 0};
    item one = {&l, 1};
    void *queue;
    (void)state;
    begin(SOFTMETAL_REAL);
    queue = serial_queue_new();
    dispatch_after_f(1, queue, &one, add); /* long ago */
    assert_true(softmetal_settle(10 * SECOND));
    assert_int_equal(l.count, 1);
    dispatch_release(queue);
    end();
}

static void timers_of_the_manual_clock_are_fired(void **state)
{
    list l = {{0}, 0};
    item items[] = {{&l, 0}, {&l, 1}, {&l, 2}, {&l, 3}};
    void *queue;
    (void)state;
    begin(SOFTMETAL_MANUAL);
    queue = serial_queue_new();
    after_ms(3, queue, &items[3], add);
    after_ms(1, queue, &items[0], add);
    after_ms(1, queue, &items[1], add); /* the same moment: as they were armed */
    after_ms(0, queue, &items[2], add);
    assert_int_equal(softmetal_timers(), 4);
    assert_int_equal(softmetal_timers_armed(), 4);
    sleep_ms(10);
    assert_true(softmetal_settle(10 * SECOND));
    assert_int_equal(l.count, 0);
    assert_int_equal(softmetal_next_timer(), 0);
    softmetal_fire_timer();
    assert_int_equal(l.count, 1); /* it has run */
    assert_int_equal(softmetal_next_timer(), MS);
    softmetal_fire_timer();
    softmetal_fire_timer();
    assert_int_equal(softmetal_timers(), 1);
    assert_int_equal(softmetal_next_timer(), 3 * MS);
    dispatch_after_f(dispatch_time(NOW, 5 * (int64_t)MS / 2), queue, &items[2], add); /* one of the three has passed */
    assert_int_equal(softmetal_next_timer(), 3 * MS);
    softmetal_fire_timer();
    assert_int_equal(softmetal_next_timer(), 5 * MS / 2);
    softmetal_fire_timer();
    assert_true(softmetal_next_timer() == UINT64_MAX);
    assert_int_equal(l.count, 5);
    const int wanted[] = {2, 0, 1, 3, 2};
    for (int i = 0; i < 5; i++) assert_int_equal(l.numbers[i], wanted[i]);
    dispatch_release(queue);
    end();
}

typedef struct beat {
    void *queue;
    int64_t ms;
    unsigned count, last;
} beat;

static void beat_on(void *context)
{
    beat *b = (beat *)context;
    if (++b->count == b->last) return;
    b->ms *= 2;
    after_ms(b->ms, b->queue, b, beat_on);
}

static void a_timer_may_arm_the_next(void **state)
{
    beat b = {NULL, 50, 0, 0};
    (void)state;
    begin(SOFTMETAL_MANUAL);
    b.queue = serial_queue_new();
    after_ms(b.ms, b.queue, &b, beat_on);
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(softmetal_next_timer(), (50u << i) * MS);
        softmetal_fire_timer();
        assert_int_equal(b.count, i + 1);
        assert_int_equal(softmetal_timers(), 1);
    }
    b.last = 30; /* reset goes on with it until there is none */
    softmetal_reset();
    assert_int_equal(b.count, 30);
    assert_int_equal(softmetal_timers(), 0);
    assert_int_equal(softmetal_timers_armed(), 0);
    assert_int_equal(softmetal_dispatches(), 0);
    dispatch_release(b.queue);
    end();
}

static void a_timer_waits_for_a_worker(void **state)
{
    gate g = {0, 0, 0, 0};
    list l = {{0}, 0};
    item one = {&l, 1}, two = {&l, 2};
    void *queue;
    (void)state;
    begin(SOFTMETAL_MANUAL);
    queue = serial_queue_new();
    after_ms(1, queue, &one, add);
    after_ms(2, queue, &two, add);
    softmetal_set_dispatch_threads(0);
    softmetal_fire_timer(); /* returns: no worker can take it up */
    assert_int_equal(softmetal_timers(), 1);
    softmetal_set_dispatch_threads(1);
    assert_true(softmetal_settle(10 * SECOND));
    assert_int_equal(l.count, 1);
    dispatch_async_f(dispatch_get_global_queue(0, 0), &g, pass);
    assert_true(comes_to(&g.inside, 1));
    softmetal_fire_timer(); /* the one worker is in the gate */
    assert_false(softmetal_settle(20 * MS));
    open_gate(&g);
    assert_true(softmetal_settle(10 * SECOND));
    assert_int_equal(l.count, 2);
    dispatch_release(queue);
    end();
}

static void *fire_on_thread(void *fired)
{
    softmetal_fire_timer();
    __atomic_store_n((int *)fired, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

static void firing_waits_for_what_stands_in_front(void **state)
{
    gate g = {0, 0, 0, 0};
    list l = {{0}, 0};
    item one = {&l, 1};
    pthread_t thread;
    int fired = 0;
    void *queue;
    (void)state;
    begin(SOFTMETAL_MANUAL);
    queue = serial_queue_new();
    dispatch_async_f(queue, &g, pass);
    after_ms(1, queue, &one, add);
    assert_int_equal(pthread_create(&thread, NULL, fire_on_thread, &fired), 0);
    assert_true(comes_to(&g.inside, 1));
    sleep_ms(20);
    assert_int_equal(get(&fired), 0);
    open_gate(&g);
    pthread_join(thread, NULL);
    assert_int_equal(l.count, 1);
    dispatch_release(queue);
    end();
}

static void reset_runs_what_waits_for_workers(void **state)
{
    list l = {{0}, 0};
    item one = {&l, 1}, two = {&l, 2};
    void *queue;
    (void)state;
    begin(SOFTMETAL_MANUAL);
    queue = serial_queue_new();
    softmetal_set_dispatch_threads(0);
    after_ms(1, queue, &two, add);
    dispatch_async_f(queue, &one, add);
    dispatch_release(queue);
    softmetal_reset();
    assert_int_equal(l.count, 2);
    assert_int_equal(l.numbers[0], 1);
    assert_int_equal(softmetal_live("dispatch_queue"), 0);
    queue = serial_queue_new(); /* and there are workers again */
    dispatch_async_f(queue, &one, add);
    assert_true(softmetal_settle(10 * SECOND));
    assert_int_equal(l.count, 3);
    dispatch_release(queue);
    end();
}

/* ----------------------------------------------------------------- the system's libdispatch -- */

static void count(void *number)
{
    __atomic_add_fetch((int *)number, 1, __ATOMIC_SEQ_CST);
}

/* A listener's block runs on the queue as well. softmetal's workers do nothing meanwhile. */
static void what_the_system_made_is_left_to_the_system(void **state)
{
    void *(*global_queue)(intptr_t, uintptr_t);
    int calls = 0;
    (void)state;
    *(void **)&global_queue = dlsym(RTLD_NEXT, "dispatch_get_global_queue");
    if (!global_queue) {
        print_message("skip: there is no libdispatch behind softmetal's\n");
        skip();
    }
    begin(SOFTMETAL_REAL);
    softmetal_set_dispatch_threads(0);
    void *queue = global_queue(0, 0), *device = device_new(), *event = GET(device, "newSharedEvent");
    assert_ptr_not_equal(queue, dispatch_get_global_queue(0, 0));
    dispatch_retain(queue);
    dispatch_async_f(queue, &calls, count);
    assert_true(comes_to(&calls, 1));
    uint64_t before = now_ns();
    after_ms(5, queue, &calls, count);
    assert_true(comes_to(&calls, 2));
    assert_true(now_ns() - before >= 5 * MS);
    log_ log = {.lock = PTHREAD_MUTEX_INITIALIZER};
    void *listener = GET1(GET(objc_getClass("MTLSharedEventListener"), "alloc"), "initWithDispatchQueue:", queue);
    assert_ptr_equal(GET(listener, "dispatchQueue"), queue);
    on_event(event, listener, 1, &log, 7);
    set_event(event, 1);
    assert_true(softmetal_settle(10 * SECOND));
    assert_int_equal(log.count, 1);
    assert_int_equal(softmetal_live("dispatch_queue"), 0);
    objc_release(listener);
    objc_release(event);
    objc_release(device);
    dispatch_release(queue);
    end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_serial_queue_keeps_the_order_of_each_giver),
        cmocka_unit_test(one_function_at_a_time_runs_on_a_serial_queue),
        cmocka_unit_test(queues_and_the_global_queue_run_at_once),
        cmocka_unit_test(the_global_queue_does_not_count_references),
        cmocka_unit_test(a_queue_has_the_class_of_service_that_it_was_made_with),
        cmocka_unit_test(a_class_that_does_not_exist_changes_no_attribute),
        cmocka_unit_test(what_is_pending_keeps_its_queue),
        cmocka_unit_test(a_function_may_release_its_own_queue),
        cmocka_unit_test(the_workers_can_be_used_up),
        cmocka_unit_test(there_are_at_most_64_workers),
        cmocka_unit_test(settle_waits_for_what_begins_meanwhile),
        cmocka_unit_test(times_are_sums),
        cmocka_unit_test(timers_of_the_real_clock_come_by_themselves),
        cmocka_unit_test(a_timer_may_come_before_one_with_an_earlier_moment),
        cmocka_unit_test(a_timer_that_is_due_counts_for_settle),
        cmocka_unit_test(timers_of_the_manual_clock_are_fired),
        cmocka_unit_test(a_timer_may_arm_the_next),
        cmocka_unit_test(a_timer_waits_for_a_worker),
        cmocka_unit_test(firing_waits_for_what_stands_in_front),
        cmocka_unit_test(reset_runs_what_waits_for_workers),
        cmocka_unit_test(what_the_system_made_is_left_to_the_system),
    };
    return cmocka_run_group_tests_name("softmetal_dispatch", tests, NULL, NULL);
}
