/* test_report.c - why nothing moves, in words */
#include "kit.h"

static void test_S9_a_report_of_much(void **state)
{
    stage *s = stage_of(state);
    static char text[8192];
    size_t length;
    void *buffer = named_buffer(s->q[0], "signals");
    job j = {0};
    encode_signal(s->q[0], buffer, at(s->t[0], 3));
    SUBMIT(s->q[1], WAITS(at(s->t[0], 3)), BUFFERS(named_buffer(s->q[1], "waits")), .label = "submitted");
    commit(s->q[1], named_buffer(s->q[1], "behind"));
    commit(s->q[2], named_buffer(s->q[2], "runs"));
    job_wait(&j, s->q[2], 1, SECONDS(600));
    await_parked(1);
    length = gpusync_device_report(s->device, text, sizeof text);
    assert_int_equal(length, strlen(text));
    printf("%s", text);
    commit(s->q[0], buffer);
    finish_all(s);
    assert_ok(job_end(&j));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        on_stage_with(test_S9_a_report_of_much, .queues = 3, .timelines = 2),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
