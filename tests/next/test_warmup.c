/* test_warmup.c - pipelines that are compiled in advance */
#include "kit.h"

static const char text[] = "kernel void one() {} kernel void two() {}";

static void test_pipelines_are_compiled_in_advance(void **state)
{
    stage *s = stage_of(state);
    const gpusync_pipeline_desc pipelines[] = {{text, NULL, "one"}, {text, NULL, "none"}, {text, NULL, "two"}};
    const gpusync_warmup_desc desc = {pipelines, LENGTH(pipelines), false};
    gpusync_warmup *warmup = NULL;
    gpusync_error error;
    void *first = NULL, *again = NULL, *last = NULL;
    size_t done = 9, total = 9;
    assert_ok(gpusync_warmup_start(s->device, &desc, &warmup));
    assert_ok(gpusync_warmup_pipeline(warmup, 2, SECONDS(60), &last, NULL));
    assert_result(gpusync_warmup_wait(warmup, SECONDS(60), &done, &total), GPUSYNC_ERROR_COMPILE);
    assert_int_equal(done, 3);
    assert_int_equal(total, 3);
    assert_ok(gpusync_warmup_pipeline(warmup, 0, 0, &first, NULL));
    assert_ok(gpusync_warmup_pipeline(warmup, 0, SECONDS(60), &again, NULL));
    assert_non_null(first);
    assert_ptr_equal(first, again);
    assert_non_null(last);
    assert_result(gpusync_warmup_pipeline(warmup, 1, 0, &again, &error), GPUSYNC_ERROR_COMPILE);
    assert_null(again);
    assert_string_equal(error.label, "none");
    assert_ok(gpusync_warmup_destroy(warmup));
}

static void test_a_disabled_warm_up_compiles_in_the_call(void **state)
{
    stage *s = stage_of(state);
    const gpusync_pipeline_desc pipelines[] = {{text, NULL, "one"}};
    const gpusync_warmup_desc desc = {pipelines, LENGTH(pipelines), true};
    gpusync_warmup *warmup = NULL;
    void *made = NULL;
    size_t done = 9, total = 9;
    assert_ok(gpusync_warmup_start(s->device, &desc, &warmup));
    assert_ok(gpusync_warmup_wait(warmup, 0, &done, &total));
    assert_int_equal(done + total, 0);
    assert_result(gpusync_warmup_pipeline(warmup, 0, 0, &made, NULL), GPUSYNC_TIMEOUT);
    assert_ok(gpusync_warmup_pipeline(warmup, 0, 1, &made, NULL));
    assert_non_null(made);
    assert_ok(gpusync_warmup_wait(warmup, 0, &done, &total));
    assert_int_equal(done + total, 0);
    assert_result(gpusync_device_destroy(s->device), GPUSYNC_ERROR_IN_USE);
    assert_ok(gpusync_warmup_destroy(warmup));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        on_stage(test_pipelines_are_compiled_in_advance),
        on_stage(test_a_disabled_warm_up_compiles_in_the_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
