/* test_states.c - the tables of states in gpusync.h, cell by cell

   gpusync.h has three tables of states and events: of what a submission waits for, of what it signals, and of itself. They
   are read from there. For each cell with a state there is a step here, which brings the thing into the state of the row,
   has the event of the column happen, and finds the state of the cell; for each cell that says `-` there is none.

   This also runs on queues of Metal 4. */
#include "probe.h"
#include "stage.h"

/* One step: what was found before the event, and after it. */
typedef struct step {
    stage s; /* a, b, c and d are its timelines; two queues */
    const char *before, *after;
    gpusync_timeline *seen; /* what a look in the middle of a call is at */
    uint64_t value;
} step;

typedef struct cell {
    const char *row, *column;
    void (*play)(step *t);
} cell;

/* -- words ------------------------------------------------------------------------------------------------ */

/* On the first queue: held, because nothing is to signal `b`; waits for `a` too. */
static gpusync_ticket hold_on_both(step *t)
{
    return SUBMIT(t->s.q[0], BUFFERS(open_on(&t->s, 0)), WAITS(at(t->s.a, 1), at(t->s.b, 1)));
}

static void signal_from_the_other_queue(step *t, uint64_t value)
{
    (void)SUBMIT(t->s.q[1], BUFFERS(open_on(&t->s, 1)), SIGNALS(at(t->s.a, value)));
}

/* A queue whose command buffers take signals, which those of Metal 4 do not. */
static gpusync_queue *signalling_queue(step *t)
{
    if (metal4_run() && !t->s.q[2]) {
        t->s.q[2] = queue_of_kind(QUEUE_OF_THE_PROGRAM, t->s.device, NULL);
        t->s.metal[2] = gpusync_queue_metal(t->s.q[2]);
    }
    return metal4_run() ? t->s.q[2] : t->s.q[1];
}

/* The value of `a` becomes pending in an open command buffer. */
static void *cover(step *t, uint64_t value)
{
    void *buffer = buffer_of(signalling_queue(t));
    assert_ok(gpusync_encode_signal(signalling_queue(t), buffer, at(t->s.a, value)));
    return buffer;
}

static void uncover(step *t, void *buffer)
{
    assert_ok(gpusync_command_buffer_discard(signalling_queue(t), buffer));
}

static void fail_timeline(gpusync_timeline *timeline)
{
    gpusync_error reason;
    memset(&reason, 0, sizeof reason);
    reason.result = GPUSYNC_ERROR_EXECUTION;
    assert_ok(gpusync_timeline_fail(timeline, &reason));
}

static void look_at_signaller(void *argument)
{
    step *t = (step *)argument;
    t->before = probe_state_of_signaller(t->seen);
}

/* -- what a submission waits for -------------------------------------------------------------------------------- */

static probe_pin *wait_of(step *t, gpusync_ticket ticket)
{
    probe_pin *pin = probe_pin_ticket(t->s.q[0], ticket);
    assert_non_null(pin);
    t->before = probe_stage_of_wait(pin);
    return pin;
}

static void then_wait(step *t, probe_pin *pin)
{
    t->after = probe_stage_of_wait(pin);
    probe_unpin(pin);
}

static probe_pin *awaited(step *t)
{
    return wait_of(t, hold_on_both(t));
}

static void awaited_issued(step *t)
{
    probe_pin *pin = awaited(t);
    signal_from_the_other_queue(t, 1);
    then_wait(t, pin);
}

static void awaited_uncovered(step *t)
{
    probe_pin *pin;
    void *signals;
    share_timeline(&t->s, 0);
    signals = cover(t, 1);
    pin = awaited(t);
    uncover(t, signals);
    then_wait(t, pin);
}

static void awaited_reached(step *t)
{
    probe_pin *pin = awaited(t);
    assert_ok(gpusync_timeline_signal(t->s.a, 1));
    then_wait(t, pin);
}

static void awaited_failed(step *t)
{
    probe_pin *pin = awaited(t);
    fail_timeline(t->s.a);
    then_wait(t, pin);
}

static probe_pin *coming(step *t)
{
    gpusync_ticket ticket = hold_on_both(t);
    signal_from_the_other_queue(t, 2);
    return wait_of(t, ticket);
}

/* A lower value, which decides about the wait from there on; the wait does not go back. */
static void coming_issued(step *t)
{
    probe_pin *pin = coming(t);
    signal_from_the_other_queue(t, 1);
    then_wait(t, pin);
}

static void coming_reached(step *t)
{
    probe_pin *pin = coming(t);
    finish(&t->s, 1);
    then_wait(t, pin);
}

static void coming_failed(step *t)
{
    probe_pin *pin = coming(t);
    fail_timeline(t->s.a);
    then_wait(t, pin);
}

/* The event is raised behind gpusync's back: the work ends, and the producer has not ended. */
static void coming_over(step *t)
{
    probe_pin *pin = coming(t);
    assert_ok(gpusync_timeline_signal(t->s.b, 1));
    raise_behind_its_back(t->s.a, 2);
    finish(&t->s, 0);
    assert_string_equal(probe_state_of(pin), "over");
    then_wait(t, pin);
}

static probe_pin *abroad(step *t)
{
    share_timeline(&t->s, 0);
    return wait_of(t, SUBMIT(t->s.q[0], BUFFERS(open_on(&t->s, 0)), WAITS(at(t->s.a, 2))));
}

static void abroad_issued(step *t)
{
    probe_pin *pin = abroad(t);
    signal_from_the_other_queue(t, 3);
    then_wait(t, pin);
}

static void abroad_uncovered(step *t)
{
    probe_pin *pin = abroad(t);
    uncover(t, cover(t, 3));
    then_wait(t, pin);
}

static void abroad_reached(step *t)
{
    probe_pin *pin = abroad(t);
    raise_behind_its_back(t->s.a, 2);
    assert_ok(gpusync_timeline_wait(t->s.a, 2, GPUSYNC_FOREVER, NULL));
    then_wait(t, pin);
}

static void abroad_failed(step *t)
{
    probe_pin *pin = abroad(t);
    fail_timeline(t->s.a);
    then_wait(t, pin);
}

/* The watchdog ends the wait on the GPU. */
static void abroad_over(step *t)
{
    probe_pin *pin = abroad(t);
    softmetal_time_out(softmetal_first_in_line(t->s.metal[0]));
    finish(&t->s, 0);
    then_wait(t, pin);
}

static const cell waits[] = {
    {"AWAITED", "signal issued", awaited_issued}, {"AWAITED", "uncovered", awaited_uncovered},
    {"AWAITED", "reached", awaited_reached},      {"AWAITED", "failed", awaited_failed},
    {"COMING", "signal issued", coming_issued},   {"COMING", "reached", coming_reached},
    {"COMING", "failed", coming_failed},          {"COMING", "own work over", coming_over},
    {"ABROAD", "signal issued", abroad_issued},   {"ABROAD", "uncovered", abroad_uncovered},
    {"ABROAD", "reached", abroad_reached},        {"ABROAD", "failed", abroad_failed},
    {"ABROAD", "own work over", abroad_over},
};

/* -- what it signals ------------------------------------------------------------------------------------------ */

static void then_signal(step *t)
{
    t->after = probe_stage_of_signal(t->seen, t->value);
}

/* Held for `b`; it signals `c` and then `d`. */
static void pending(step *t)
{
    (void)SUBMIT(t->s.q[0], BUFFERS(open_on(&t->s, 0)), WAITS(at(t->s.b, 1)), SIGNALS(at(t->s.c, 5), at(t->s.d, 5)));
    t->seen = t->s.c;
    t->value = 5;
    t->before = probe_stage_of_signal(t->seen, t->value);
}

static void pending_issued(step *t)
{
    pending(t);
    assert_ok(gpusync_timeline_signal(t->s.b, 1));
    assert_string_equal(probe_stage_of_signal(t->s.d, 5), "ISSUED"); /* as all signals of its submission */
    then_signal(t);
}

/* It is not itself what must stay: the other signal is. */
static void pending_behind(step *t)
{
    pending(t);
    (void)SUBMIT(t->s.q[1], BUFFERS(open_on(&t->s, 1)), SIGNALS(at(t->s.d, 1)));
    assert_ok(gpusync_timeline_signal(t->s.b, 1));
    assert_string_equal(probe_stage_of_signal(t->s.d, 5), "PENDING");
    then_signal(t);
    finish(&t->s, 1);
    assert_string_equal(probe_stage_of_signal(t->seen, t->value), "ISSUED");
}

static void pending_taken_back(step *t)
{
    pending(t);
    assert_ok(gpusync_cancel_held(t->s.q[0]));
    then_signal(t);
}

static void issued(step *t, void *buffer)
{
    (void)SUBMIT(t->s.q[0], BUFFERS(buffer), SIGNALS(at(t->s.c, 5)));
    t->seen = t->s.c;
    t->value = 5;
    t->before = probe_stage_of_signal(t->seen, t->value);
}

static void issued_ended_well(step *t)
{
    issued(t, open_on(&t->s, 0));
    finish(&t->s, 0);
    then_signal(t);
    assert_true(value_of(t->s.c) == 5);
}

static void issued_taken_back(step *t)
{
    void *buffer = open_on(&t->s, 0);
    softmetal_fail(buffer, NULL, 3, NULL);
    issued(t, buffer);
    finish(&t->s, 0);
    then_signal(t);
    assert_result(gpusync_timeline_wait(t->s.c, 5, 0, NULL), GPUSYNC_ERROR_EXECUTION);
}

static const cell signals[] = {
    {"PENDING", "issued", pending_issued},         {"PENDING", "behind another", pending_behind},
    {"PENDING", "taken back", pending_taken_back}, {"ISSUED", "ended well", issued_ended_well},
    {"ISSUED", "taken back", issued_taken_back},
};

/* -- a submission --------------------------------------------------------------------------------------------- */

static probe_pin *pinned(step *t, gpusync_ticket ticket)
{
    probe_pin *pin = probe_pin_ticket(t->s.q[0], ticket);
    assert_non_null(pin);
    t->before = probe_state_of(pin);
    return pin;
}

static void then_state(step *t, probe_pin *pin)
{
    t->after = probe_state_of(pin);
    probe_unpin(pin);
}

/* It is looked at on its way in, between its two signals. Returns its ticket. */
static gpusync_ticket enter(step *t, gpusync_point second, gpusync_result expected)
{
    gpusync_submission submission;
    gpusync_point list[2], wait = at(t->s.a, 1);
    void *buffer = open_on(&t->s, 0);
    gpusync_ticket ticket;
    list[0] = at(t->s.c, 1);
    list[1] = second;
    memset(&submission, 0, sizeof submission);
    submission.command_buffers = &buffer;
    submission.command_buffer_count = 1;
    submission.waits = &wait;
    submission.wait_count = 1;
    submission.signals = list;
    submission.signal_count = 2;
    t->seen = t->s.c;
    probe_at(PROBE_SIGNAL_LISTS, t->s.d, 1, look_at_signaller, t);
    assert_result(submit_as_told(t->s.q[0], &submission, &ticket), expected);
    assert_true(probe_has_acted());
    if (expected != GPUSYNC_OK)
        (void)commit_to(t->s.q[0], buffer);
    return ticket;
}

static void entering_goes(step *t)
{
    probe_pin *pin;
    assert_ok(gpusync_timeline_signal(t->s.a, 1));
    pin = probe_pin_ticket(t->s.q[0], enter(t, at(t->s.d, 1), GPUSYNC_OK));
    then_state(t, pin);
}

static void entering_kept_back(step *t)
{
    then_state(t, probe_pin_ticket(t->s.q[0], enter(t, at(t->s.d, 1), GPUSYNC_OK)));
}

static void entering_failed(step *t)
{
    gpusync_ticket ticket;
    fail_timeline(t->s.a);
    ticket = enter(t, at(t->s.d, 1), GPUSYNC_OK);
    assert_null(probe_pin_ticket(t->s.q[0], ticket));
    if (probe_has_ended(t->s.q[0], ticket))
        t->after = "ended";
}

static void entering_refused(step *t)
{
    uint32_t references;
    unsigned spare;
    assert_ok(gpusync_timeline_signal(t->s.d, 1));
    (void)SUBMIT(t->s.q[0], BUFFERS(open_on(&t->s, 0)));
    finish(&t->s, 0);
    spare = probe_spare_submissions(t->s.q[0], &references);
    assert_int_equal(enter(t, at(t->s.d, 1), GPUSYNC_ERROR_NOT_RISING), GPUSYNC_NO_TICKET);
    if (probe_spare_submissions(t->s.q[0], &references) == spare)
        t->after = "free";
}

static void held_changes(step *t)
{
    probe_pin *pin = pinned(t, SUBMIT(t->s.q[0], BUFFERS(open_on(&t->s, 0)), WAITS(at(t->s.a, 1))));
    signal_from_the_other_queue(t, 1);
    then_state(t, pin);
}

static void held_input_fails(step *t)
{
    probe_pin *pin = pinned(t, SUBMIT(t->s.q[0], BUFFERS(open_on(&t->s, 0)), WAITS(at(t->s.a, 1))));
    fail_timeline(t->s.a);
    then_state(t, pin);
}

static void held_given_up(step *t)
{
    probe_pin *pin = pinned(t, hold_on_both(t));
    assert_ok(gpusync_cancel_held(t->s.q[0]));
    then_state(t, pin);
}

static probe_pin *issued_abroad(step *t)
{
    share_timeline(&t->s, 0);
    return pinned(t, SUBMIT(t->s.q[0], BUFFERS(open_on(&t->s, 0)), WAITS(at(t->s.a, 1))));
}

static void issued_input_fails(step *t)
{
    probe_pin *pin = issued_abroad(t);
    fail_timeline(t->s.a);
    then_state(t, pin);
}

static void issued_work_over(step *t)
{
    probe_pin *pin = pinned(t, SUBMIT(t->s.q[0], BUFFERS(open_on(&t->s, 0)), SIGNALS(at(t->s.c, 1))));
    finish(&t->s, 0);
    then_state(t, pin);
}

static void issued_inputs_over(step *t)
{
    probe_pin *pin = issued_abroad(t);
    raise_behind_its_back(t->s.a, 1);
    assert_ok(gpusync_timeline_wait(t->s.a, 1, GPUSYNC_FOREVER, NULL));
    then_state(t, pin);
}

/* A pin would keep the queue: what the callback is told stands for it. With the timelines that the work names (NULL: only
   one). */
static void destroy_with(step *t, outcome *told, gpusync_timeline *one, gpusync_timeline *other)
{
    void *metal = metal_retain(t->s.metal[0]);
    assert_ok(gpusync_queue_destroy_now(t->s.q[0]));
    t->s.q[0] = NULL;
    if (calls_of(told) == 1 && told->result == GPUSYNC_ERROR_DESTROYED)
        t->after = "ended";
    softmetal_finish_queue(metal); /* with the work that was left to itself */
    drop_what_stays(gpusync_timeline_metal(one, NULL));
    if (other)
        drop_what_stays(gpusync_timeline_metal(other, NULL));
    drop_queue_that_stays(metal);
    metal_release(metal);
}

static void issued_given_up(step *t)
{
    gpusync_queue *queue = t->s.q[0];
    probe_pin *pin;
    outcome told;
    memset(&told, 0, sizeof told);
    pin = pinned(t, SUBMIT(queue, BUFFERS(open_on(&t->s, 0)), SIGNALS(at(t->s.c, 1)), TELL(&told)));
    probe_unpin(pin);
    destroy_with(t, &told, t->s.c, NULL);
}

/* The event is raised behind gpusync's back: the work ends before the work that it waited for. */
static probe_pin *over(step *t, gpusync_ticket *ticket, outcome *told)
{
    probe_pin *pin;
    memset(told, 0, sizeof *told);
    *ticket = SUBMIT(t->s.q[0], BUFFERS(open_on(&t->s, 0)), WAITS(at(t->s.a, 1), at(t->s.b, 1)), TELL(told));
    signal_from_the_other_queue(t, 1);
    assert_ok(gpusync_timeline_signal(t->s.b, 1));
    raise_behind_its_back(t->s.a, 1);
    finish(&t->s, 0);
    pin = pinned(t, *ticket);
    return pin;
}

static void over_input_fails(step *t)
{
    gpusync_ticket ticket;
    outcome told;
    probe_pin *pin = over(t, &ticket, &told);
    fail_timeline(t->s.a);
    then_state(t, pin);
    assert_int_equal(calls_of(&told), 1);
}

static void over_inputs_over(step *t)
{
    gpusync_ticket ticket;
    outcome told;
    probe_pin *pin = over(t, &ticket, &told);
    finish(&t->s, 1);
    then_state(t, pin);
    assert_int_equal(calls_of(&told), 1);
}

static void over_given_up(step *t)
{
    gpusync_ticket ticket;
    outcome told;
    probe_unpin(over(t, &ticket, &told));
    destroy_with(t, &told, t->s.a, t->s.b);
}

static const cell submissions[] = {
    {"entering", "free to go", entering_goes},     {"entering", "kept back", entering_kept_back},
    {"entering", "input failed", entering_failed}, {"entering", "refused", entering_refused},
    {"held", "last change", held_changes},         {"held", "input failed", held_input_fails},
    {"held", "given up", held_given_up},           {"issued", "input failed", issued_input_fails},
    {"issued", "work over", issued_work_over},     {"issued", "inputs over", issued_inputs_over},
    {"issued", "given up", issued_given_up},       {"over", "input failed", over_input_fails},
    {"over", "inputs over", over_inputs_over},     {"over", "given up", over_given_up},
};

/* -- the tables ----------------------------------------------------------------------------------------------- */

static const cell *find_cell(const cell *cells, size_t count, const char *row, const char *column)
{
    size_t i;
    for (i = 0; i < count; i++)
        if (strcmp(cells[i].row, row) == 0 && strcmp(cells[i].column, column) == 0)
            return &cells[i];
    return NULL;
}

/* What the step has left: held work is cancelled, and what waits on the GPU is let go. */
static void let_go(step *t)
{
    unsigned i;
    for (i = 0; i < 2; i++)
        if (t->s.q[i])
            assert_ok(gpusync_cancel_held(t->s.q[i]));
    raise_behind_its_back(t->s.a, 100);
    for (i = 2; i--;)
        if (t->s.q[i])
            finish(&t->s, i);
}

/* Every cell is played, and no other. */
static void walk(const char *first, const cell *cells, size_t count)
{
    size_t played = 0;
    unsigned i, k;
    table t;
    read_table(NULL, first, &t);
    for (i = 0; i < t.row_count; i++)
        for (k = 0; k < t.columns; k++) {
            const cell *c = find_cell(cells, count, t.rows[i], t.names[k]);
            bool possible = strcmp(t.cells[i][k], "-") != 0;
            step s;
            if (possible != (c != NULL))
                fail_msg("%s, %s: gpusync.h says '%s', and there is %s step", t.rows[i], t.names[k], t.cells[i][k],
                         c ? "a" : "no");
            if (!c)
                continue;
            memset(&s, 0, sizeof s);
            s.before = s.after = "nothing";
            open_stage(&s.s, SOFTMETAL_MANUAL, 2);
            c->play(&s);
            if (strcmp(s.before, t.rows[i]) != 0 || strcmp(s.after, t.cells[i][k]) != 0)
                fail_msg("%s, %s: gpusync.h says '%s'; found '%s', and then '%s'", t.rows[i], t.names[k], t.cells[i][k],
                         s.before, s.after);
            let_go(&s);
            close_stage(&s.s);
            played++;
        }
    assert_int_equal(played, count); /* each step stands at a cell */
}

#define WALK(first, cells) walk(first, cells, sizeof(cells) / sizeof(cells)[0])

static void test_what_a_submission_waits_for_goes_through_its_table(void **state)
{
    (void)state;
    WALK("signal issued", waits);
}

static void test_what_a_submission_signals_goes_through_its_table(void **state)
{
    (void)state;
    WALK("issued", signals);
}

static void test_a_submission_goes_through_its_table(void **state)
{
    (void)state;
    WALK("free to go", submissions);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_a_submission_waits_for_goes_through_its_table),
        cmocka_unit_test(test_what_a_submission_signals_goes_through_its_table),
        cmocka_unit_test(test_a_submission_goes_through_its_table),
    };
    return cmocka_run_group_tests_name("states", tests, NULL, NULL);
}
