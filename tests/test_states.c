/* test_states.c - the table of a submission's stages in gpusync.h, cell by cell

   gpusync.h has a table of where a submission stands, and of what happens to it. It is read from there. For each cell
   with a stage there are steps here, each of which brings a submission into the stage of the row, has the event of the
   column happen, and finds the stage of the cell; for a cell that says `-` there is none. While a step is played the
   submission is looked at with each message to Metal: what it passes through are ways of the table, too.

   This also runs on queues of Metal 4. */
#include "probe.h"
#include "stage.h"

/* One step: what was found before the event, and after it. */
typedef struct step {
    stage s; /* a, b, c and d are its timelines; two queues */
    const char *before, *after;
    probe_pin *pin;         /* what is looked at: this one; NULL: */
    gpusync_timeline *seen; /* the one that is to signal this timeline; NULL: none yet */
    gpusync_ticket ticket;  /* its ticket on the first queue, where the step needs that */
    outcome told;           /* by its callback, where it has one */
    int point;              /* of a step that is looked at in the middle: at this point of the call, */
    bool gone;              /* ... where nothing is to be seen any more */
} step;

typedef struct cell {
    const char *row, *column;
    void (*play)(step *t);
    bool amid; /* the stage is seen in the middle of a call only: the step is played once for each point of it */
} cell;

/* -- looking ---------------------------------------------------------------------------------------------------- */

static table stages;

static struct {
    pthread_mutex_t lock;
    step *step;
    const char *last; /* what was seen last */
    char wrong[80];   /* the first way that is not in the table; empty: there was none */
} watch = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Does anything lead from one stage to the other? */
static bool leads(const char *from, const char *to)
{
    unsigned i, k;
    for (i = 0; i < stages.row_count; i++)
        for (k = 0; k < stages.columns; k++)
            if (strcmp(stages.rows[i], from) == 0 && strcmp(stages.cells[i][k], to) == 0) return true;
    return false;
}

/* With the watch's lock. "none": the step has named nothing yet, or its signal is over. */
static const char *look_at(const step *t)
{
    const char *found = t->pin ? probe_state_of(t->pin) : t->seen ? probe_state_of_signaller(t->seen) : "none";
    if (strcmp(found, "none") == 0) return found;
    if (watch.last && strcmp(watch.last, found) != 0 && !leads(watch.last, found) && !watch.wrong[0])
        snprintf(watch.wrong, sizeof watch.wrong, "%s, and then %s", watch.last, found);
    watch.last = found;
    return found;
}

static const char *look(const step *t)
{
    const char *found;
    pthread_mutex_lock(&watch.lock);
    found = look_at(t);
    pthread_mutex_unlock(&watch.lock);
    return found;
}

static void look_with_each_message(void *user, softmetal_phase phase, void *object, const char *selector)
{
    (void)user, (void)phase, (void)object, (void)selector;
    pthread_mutex_lock(&watch.lock);
    if (watch.step) (void)look_at(watch.step);
    pthread_mutex_unlock(&watch.lock);
}

static void watch_step(step *t)
{
    pthread_mutex_lock(&watch.lock);
    watch.step = t;
    watch.last = NULL;
    pthread_mutex_unlock(&watch.lock);
}

/* From here on the step is about this submission, or about the one that is to signal the timeline. */
static void name(step *t, probe_pin *pin, gpusync_timeline *seen)
{
    pthread_mutex_lock(&watch.lock);
    t->pin = pin;
    t->seen = seen;
    t->before = look_at(t);
    pthread_mutex_unlock(&watch.lock);
}

static void name_ticket(step *t, gpusync_ticket ticket)
{
    probe_pin *pin = probe_pin_ticket(t->s.q[0], ticket);
    assert_non_null(pin);
    t->ticket = ticket;
    name(t, pin, NULL);
}

static void look_amid(void *argument)
{
    step *t = (step *)argument;
    const char *found = look(t);
    t->gone = strcmp(found, "none") == 0;
    if (!t->gone && strcmp(found, t->before) != 0) t->after = found;
}

/* Looks at the step's point of what comes next, and not with messages: each such look would have points, too. */
static void look_in_the_middle(step *t)
{
    softmetal_set_message_hook(NULL, NULL);
    probe_at_each(t->point, look_amid, t);
}

static void then(step *t) { t->after = look(t); }

/* -- words ------------------------------------------------------------------------------------------------------ */

static void signal_from_the_other_queue(step *t, uint64_t value)
{
    (void)SUBMIT(t->s.q[1], BUFFERS(open_on(&t->s, 1)), SIGNALS(at(t->s.a, value)));
}

static void fail_timeline(gpusync_timeline *timeline)
{
    gpusync_error reason;
    memset(&reason, 0, sizeof reason);
    reason.result = GPUSYNC_ERROR_EXECUTION;
    assert_ok(gpusync_timeline_fail(timeline, &reason));
}

static void assert_told(step *t, gpusync_result result)
{
    assert_int_equal(calls_of(&t->told), 1);
    assert_result(t->told.result, result);
}

/* -- entering: an open command buffer, which is to signal `c` ----------------------------------------------------- */

/* Command buffers of Metal 4 take no signals: there it is a queue of the older kind. */
static gpusync_queue *encodes(step *t)
{
    if (!metal4_run()) return t->s.q[0];
    if (!t->s.q[2]) {
        t->s.q[2] = queue_of_kind(QUEUE_OF_THE_PROGRAM, t->s.device, NULL);
        t->s.metal[2] = gpusync_queue_metal(t->s.q[2]);
    }
    return t->s.q[2];
}

static void *open_to_signal(step *t)
{
    void *buffer = buffer_of(encodes(t));
    assert_ok(gpusync_encode_signal(encodes(t), buffer, at(t->s.c, 1)));
    name(t, NULL, t->s.c);
    return buffer;
}

static void entering_goes(step *t)
{
    void *buffer = open_to_signal(t);
    assert_ok(gpusync_timeline_signal(t->s.b, 1));
    (void)SUBMIT(encodes(t), BUFFERS(buffer), WAITS(at(t->s.b, 1)));
    then(t);
}

static void entering_goes_by_a_commit(step *t)
{
    (void)commit_to(encodes(t), open_to_signal(t));
    then(t);
}

static void entering_lacks_a_value(step *t)
{
    (void)SUBMIT(encodes(t), BUFFERS(open_to_signal(t)), WAITS(at(t->s.b, 1)));
    then(t);
}

static void entering_stands_in_line(step *t)
{
    void *buffer = open_to_signal(t);
    (void)SUBMIT(encodes(t), NO_WORK(encodes(t)), WAITS(at(t->s.b, 1)));
    (void)commit_to(encodes(t), buffer);
    then(t);
}

static void entering_stays_behind_a_signal(step *t)
{
    void *buffer = open_to_signal(t);
    (void)SUBMIT(t->s.q[1], BUFFERS(open_on(&t->s, 1)), SIGNALS(at(t->s.d, 1)));
    (void)SUBMIT(encodes(t), BUFFERS(buffer), SIGNALS(at(t->s.d, 5)));
    then(t);
}

/* It is published within the call, and its signal ends. */
static void entering_value_failed(step *t)
{
    void *buffer = open_to_signal(t);
    fail_timeline(t->s.b);
    look_in_the_middle(t);
    (void)SUBMIT(encodes(t), BUFFERS(buffer), WAITS(at(t->s.b, 1)), TELL(&t->told));
}

static void entering_ticket_failed(step *t)
{
    void *buffer = open_to_signal(t);
    gpusync_ticket failed = ticket_of(&t->s, 1, PLAIN_COMMIT, true);
    finish(&t->s, 1);
    look_in_the_middle(t);
    (void)SUBMIT(encodes(t), BUFFERS(buffer), WAITS(after(t->s.q[1], failed)), TELL(&t->told));
}

/* Nothing has changed: the buffer can be committed as it is. */
static void entering_refused(step *t)
{
    void *buffer = open_to_signal(t);
    uint32_t references;
    unsigned spare;
    assert_ok(gpusync_timeline_signal(t->s.d, 1));
    (void)SUBMIT(encodes(t), NO_WORK(encodes(t)));
    if (metal4_run()) finish(&t->s, 2);
    else finish(&t->s, 0);
    spare = probe_spare_submissions(encodes(t), &references);
    REFUSED(GPUSYNC_ERROR_NOT_RISING, encodes(t), BUFFERS(buffer), SIGNALS(at(t->s.d, 1)));
    then(t);
    assert_int_equal(probe_spare_submissions(encodes(t), &references), spare);
    (void)commit_to(encodes(t), buffer);
    assert_string_equal(look(t), "ISSUED");
}

static void entering_refused_once_more(step *t)
{
    void *buffer = open_to_signal(t);
    assert_result(gpusync_encode_signal(encodes(t), buffer, at(t->s.c, 1)), GPUSYNC_ERROR_NOT_RISING);
    then(t);
    (void)commit_to(encodes(t), buffer);
    assert_string_equal(look(t), "ISSUED");
}

static void entering_discarded(step *t)
{
    void *buffer = open_to_signal(t);
    name(t, probe_pin_signaller(t->s.c), NULL);
    assert_non_null(t->pin);
    assert_ok(gpusync_command_buffer_discard(encodes(t), buffer));
    then(t);
}

/* -- held ------------------------------------------------------------------------------------------------------- */

/* For `a`. */
static void hold(step *t, uint32_t flags)
{
    name_ticket(t, SUBMIT(t->s.q[0], BUFFERS(open_on(&t->s, 0)), WAITS(at(t->s.a, 1)), TELL(&t->told), .flags = flags));
}

/* For work on the other queue. */
static void hold_for_a_ticket(step *t, bool fails)
{
    gpusync_ticket ticket = ticket_of(&t->s, 1, PLAIN_COMMIT, fails);
    name_ticket(t, SUBMIT(t->s.q[0], BUFFERS(open_on(&t->s, 0)), WAITS(after(t->s.q[1], ticket)), TELL(&t->told)));
}

static void held_value_is_to_come(step *t)
{
    hold(t, 0);
    signal_from_the_other_queue(t, 1);
    then(t);
}

static void held_value_is_reached(step *t)
{
    hold(t, GPUSYNC_STRICT);
    signal_from_the_other_queue(t, 1);
    assert_string_equal(look(t), "HELD");
    finish(&t->s, 1);
    then(t);
}

static void held_ticket_ends(step *t)
{
    hold_for_a_ticket(t, false);
    finish(&t->s, 1);
    then(t);
}

static void held_comes_to_the_head_of_its_line(step *t)
{
    (void)SUBMIT(t->s.q[0], BUFFERS(open_on(&t->s, 0)), WAITS(at(t->s.b, 1)));
    hold(t, 0);
    signal_from_the_other_queue(t, 1);
    assert_string_equal(look(t), "HELD");
    assert_ok(gpusync_timeline_signal(t->s.b, 1));
    then(t);
}

static void held_passes_its_line(step *t)
{
    (void)SUBMIT(t->s.q[0], BUFFERS(open_on(&t->s, 0)), WAITS(at(t->s.b, 1)));
    hold(t, GPUSYNC_UNORDERED);
    signal_from_the_other_queue(t, 1);
    then(t);
}

static void held_lower_signal_ends(step *t)
{
    (void)SUBMIT(t->s.q[1], BUFFERS(open_on(&t->s, 1)), SIGNALS(at(t->s.d, 1)));
    name_ticket(t, SUBMIT(t->s.q[0], BUFFERS(open_on(&t->s, 0)), SIGNALS(at(t->s.d, 5))));
    finish(&t->s, 1);
    then(t);
}

static void held_value_fails(step *t)
{
    hold(t, 0);
    fail_timeline(t->s.a);
    then(t);
    assert_told(t, GPUSYNC_ERROR_EXECUTION);
}

static void held_ticket_fails(step *t)
{
    hold_for_a_ticket(t, true);
    finish(&t->s, 1);
    then(t);
    assert_told(t, GPUSYNC_ERROR_EXECUTION);
}

static void held_cancelled(step *t)
{
    hold(t, 0);
    assert_ok(gpusync_cancel_held(t->s.q[0]));
    then(t);
    assert_told(t, GPUSYNC_ERROR_CANCELLED);
}

static void held_device_lost(step *t)
{
    hold(t, 0);
    (void)ticket_of(&t->s, 1, PLAIN_COMMIT, false);
    softmetal_remove_device(t->s.rig.metal_device);
    finish(&t->s, 1);
    then(t);
    assert_told(t, GPUSYNC_ERROR_DEVICE_LOST);
}

/* -- issued ----------------------------------------------------------------------------------------------------- */

/* The GPU waits for a value of `a`, which other code is to signal. */
static void issue_abroad(step *t)
{
    share_timeline(&t->s, 0);
    hold(t, 0);
}

/* ... which the other queue is to signal. */
static void issue_behind(step *t)
{
    signal_from_the_other_queue(t, 1);
    hold(t, 0);
}

static void issued_value_of_others_fails(step *t)
{
    issue_abroad(t);
    fail_timeline(t->s.a);
    then(t);
    assert_int_equal(calls_of(&t->told), 0);
    finish(&t->s, 0);
    assert_string_equal(look(t), "OVER");
    assert_told(t, GPUSYNC_ERROR_EXECUTION);
}

static void issued_value_fails(step *t)
{
    issue_behind(t);
    fail_timeline(t->s.a);
    then(t);
    assert_int_equal(calls_of(&t->told), 0);
    finish(&t->s, 1);
    finish(&t->s, 0);
    assert_string_equal(look(t), "OVER");
    assert_told(t, GPUSYNC_ERROR_EXECUTION);
}

static void issued_work_over(step *t)
{
    name_ticket(t, SUBMIT(t->s.q[0], BUFFERS(open_on(&t->s, 0)), SIGNALS(at(t->s.c, 1)), TELL(&t->told)));
    finish(&t->s, 0);
    then(t);
    assert_told(t, GPUSYNC_OK);
}

static void issued_work_failed(step *t)
{
    void *buffer = open_on(&t->s, 0);
    softmetal_fail(buffer, NULL, 3, NULL);
    name_ticket(t, SUBMIT(t->s.q[0], BUFFERS(buffer), SIGNALS(at(t->s.c, 1)), TELL(&t->told)));
    finish(&t->s, 0);
    then(t);
    assert_told(t, GPUSYNC_ERROR_EXECUTION);
}

/* The event is raised behind gpusync's back: the work ends before the work that it waited for. */
static void issued_waits_over_last(step *t)
{
    issue_behind(t);
    raise_behind_its_back(t->s.a, 1);
    finish(&t->s, 0);
    assert_string_equal(look(t), "ISSUED");
    assert_int_equal(calls_of(&t->told), 0);
    finish(&t->s, 1);
    then(t);
    assert_told(t, GPUSYNC_OK);
}

static void issued_work_over_last(step *t)
{
    issue_behind(t);
    finish(&t->s, 1);
    assert_string_equal(look(t), "ISSUED");
    finish(&t->s, 0);
    then(t);
    assert_told(t, GPUSYNC_OK);
}

/* A pin would keep the queue. Metal 4: the queue and the event may be kept for good, see drop_queue_that_stays. */
static void issued_destroyed(step *t)
{
    void *metal = metal_retain(t->s.metal[0]), *event = gpusync_timeline_metal(t->s.c, NULL);
    (void)SUBMIT(t->s.q[0], BUFFERS(open_on(&t->s, 0)), SIGNALS(at(t->s.c, 1)), TELL(&t->told));
    name(t, NULL, t->s.c);
    look_in_the_middle(t);
    assert_ok(gpusync_queue_destroy_now(t->s.q[0]));
    t->s.q[0] = NULL;
    assert_told(t, GPUSYNC_ERROR_DESTROYED);
    softmetal_finish_queue(metal); /* with the work that was left to itself */
    assert_true(softmetal_settle_listeners(SECONDS(20)));
    if (softmetal_retain_count(event) > 1) drop_what_stays(event);
    if (softmetal_retain_count(metal) > 1) drop_queue_that_stays(metal);
    metal_release(metal);
}

/* -- over: given up, while another thread is about to tell it of the ticket that it waited for -------------------- */

static void give_up(void *argument)
{
    step *t = (step *)argument;
    must(gpusync_cancel_held(t->s.q[0]) == GPUSYNC_OK, "gpusync_cancel_held");
    t->before = look(t);
    must(!probe_has_ended(t->s.q[0], t->ticket), "what is not told yet has ended");
}

static void give_up_twice(void *argument)
{
    step *t = (step *)argument;
    give_up(t);
    must(gpusync_cancel_held(t->s.q[0]) == GPUSYNC_OK, "gpusync_cancel_held, once more");
    then(t);
    must(!probe_has_ended(t->s.q[0], t->ticket), "what is not told yet has ended");
}

/* The first error stays. */
static void meet(step *t, bool fails, void (*act)(void *))
{
    hold_for_a_ticket(t, fails);
    probe_at(PROBE_TELLS, NULL, 1, act, t);
    finish(&t->s, 1);
    assert_true(probe_has_acted());
    assert_true(probe_has_ended(t->s.q[0], t->ticket));
    assert_told(t, GPUSYNC_ERROR_CANCELLED);
}

static void over_ticket_fails(step *t)
{
    meet(t, true, give_up);
    then(t);
}

static void over_ticket_ends(step *t)
{
    meet(t, false, give_up);
    then(t);
}

static void over_given_up(step *t) { meet(t, false, give_up_twice); }

/* What a lost device has not ended in a second, also where the work is over and a wait is not. */
static void give_up_issued(step *t, bool over)
{
    void *killed;
    t->s.q[2] = queue_new(t->s.device);
    t->s.metal[2] = gpusync_queue_metal(t->s.q[2]);
    killed = open_on(&t->s, 2);
    fail_with_the_device(killed);
    issue_behind(t);
    if (over) raise_behind_its_back(t->s.a, 1);
    if (over) finish(&t->s, 0);
    (void)commit_to(t->s.q[2], killed);
    softmetal_finish(killed);
    assert_string_equal(look(t), "ISSUED");
    assert_int_equal(calls_of(&t->told), 0);
    probe_give_up_lost(t->s.device);
    then(t);
    assert_told(t, GPUSYNC_ERROR_DEVICE_LOST);
}

static void issued_device_lost(step *t) { give_up_issued(t, false); }
static void issued_and_over_device_lost(step *t) { give_up_issued(t, true); }

static const cell cells[] = {
    {"ENTERING", "free to go", entering_goes, false},
    {"ENTERING", "free to go", entering_goes_by_a_commit, false},
    {"ENTERING", "kept back", entering_lacks_a_value, false},
    {"ENTERING", "kept back", entering_stands_in_line, false},
    {"ENTERING", "kept back", entering_stays_behind_a_signal, false},
    {"ENTERING", "a wait fails", entering_value_failed, true},
    {"ENTERING", "a wait fails", entering_ticket_failed, true},
    {"ENTERING", "given up", entering_discarded, false},
    {"ENTERING", "refused", entering_refused, false},
    {"ENTERING", "refused", entering_refused_once_more, false},
    {"HELD", "last hold ends", held_value_is_to_come, false},
    {"HELD", "last hold ends", held_value_is_reached, false},
    {"HELD", "last hold ends", held_ticket_ends, false},
    {"HELD", "last hold ends", held_comes_to_the_head_of_its_line, false},
    {"HELD", "last hold ends", held_passes_its_line, false},
    {"HELD", "last hold ends", held_lower_signal_ends, false},
    {"HELD", "a wait fails", held_value_fails, false},
    {"HELD", "a wait fails", held_ticket_fails, false},
    {"HELD", "given up", held_cancelled, false},
    {"HELD", "given up", held_device_lost, false},
    {"ISSUED", "a wait fails", issued_value_of_others_fails, false},
    {"ISSUED", "a wait fails", issued_value_fails, false},
    {"ISSUED", "work and waits over", issued_work_over, false},
    {"ISSUED", "work and waits over", issued_work_failed, false},
    {"ISSUED", "work and waits over", issued_waits_over_last, false},
    {"ISSUED", "work and waits over", issued_work_over_last, false},
    {"ISSUED", "given up", issued_destroyed, true},
    {"ISSUED", "given up", issued_device_lost, false},
    {"ISSUED", "given up", issued_and_over_device_lost, false},
    {"OVER", "a wait fails", over_ticket_fails, false},
    {"OVER", "work and waits over", over_ticket_ends, false},
    {"OVER", "given up", over_given_up, false},
};

/* -- the table -------------------------------------------------------------------------------------------------- */

/* What the step has left: held work is cancelled, and what waits on the GPU is let go. */
static void let_go(step *t)
{
    unsigned i;
    watch_step(NULL);
    if (t->pin) probe_unpin(t->pin);
    for (i = 0; i < 3; i++)
        if (t->s.q[i]) assert_ok(gpusync_cancel_held(t->s.q[i]));
    raise_behind_its_back(t->s.a, 100);
    for (i = 3; i--;)
        if (t->s.q[i]) finish(&t->s, i);
}

/* Plays it, at this point. What it finds has to be what the table says; `amid`: or nothing, before or after it. True:
   it has found that. *more: the call has more points to look at. */
static bool play(const cell *c, const char *said, int point, bool *more)
{
    step t;
    bool found;
    memset(&t, 0, sizeof t);
    t.before = t.after = "nothing";
    t.point = point;
    open_stage(&t.s, SOFTMETAL_MANUAL, 2);
    watch_step(&t);
    softmetal_set_message_hook(look_with_each_message, NULL);
    c->play(&t);
    *more = c->amid && probe_has_acted() && !t.gone;
    found = strcmp(t.after, said) == 0;
    if (strcmp(t.before, c->row) != 0 || !(found || (c->amid && strcmp(t.after, "nothing") == 0)))
        fail_msg("%s, %s: gpusync.h says '%s'; found '%s', and then '%s'", c->row, c->column, said, t.before, t.after);
    let_go(&t);
    close_stage(&t.s);
    if (watch.wrong[0])
        fail_msg("%s, %s: it went a way that gpusync.h does not have: %s", c->row, c->column, watch.wrong);
    return found;
}

/* How many steps there are for the cell. */
static unsigned play_cell(const char *row, const char *column, const char *said)
{
    unsigned steps = 0;
    size_t i;
    for (i = 0; i < LENGTH(cells); i++) {
        const cell *c = &cells[i];
        bool found = false, more = true;
        int point;
        if (strcmp(c->row, row) != 0 || strcmp(c->column, column) != 0) continue;
        if (strcmp(said, "-") == 0) fail_msg("%s, %s: gpusync.h says '-', and there is a step", row, column);
        for (point = 1; more; point++) found = play(c, said, point, &more) || found;
        if (!found) fail_msg("%s, %s: gpusync.h says '%s', and no point of the call shows it", row, column, said);
        steps++;
    }
    return steps;
}

/* Every cell with a stage is played, and no other. */
static void test_a_submission_goes_through_its_table(void **state)
{
    unsigned i, k, played = 0;
    (void)state;
    read_table(NULL, "free to go", &stages);
    watch.wrong[0] = '\0';
    for (i = 0; i < stages.row_count; i++)
        for (k = 0; k < stages.columns; k++) {
            const char *said = stages.cells[i][k];
            unsigned steps = play_cell(stages.rows[i], stages.names[k], said);
            if (!steps && strcmp(said, "-") != 0)
                fail_msg("%s, %s: gpusync.h says '%s', and there is no step", stages.rows[i], stages.names[k], said);
            played += steps;
        }
    assert_int_equal(played, LENGTH(cells)); /* each step stands at a cell */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_submission_goes_through_its_table),
    };
    return cmocka_run_group_tests_name("states", tests, NULL, NULL);
}
