/* test_bindings.c - what a binding in another language builds on: the sizes of the public structs, the version, and a symbol
   for each call, also for those that are inline in C and for the three whose other symbol has the version in it

   A binding finds a call by its name in the library, at run time: so do these tests. tests/compile.sh looks for the same
   symbols where the implementation is C++, and where there is no Metal. */
#include <dlfcn.h>

#include "stage.h"

/* What dlsym finds is not a function to ISO C. */
#define FIND(function, name)                           \
    do {                                               \
        void *found = dlsym(RTLD_DEFAULT, name);       \
        if (!found) print_error("no symbol " name "\n"); \
        assert_non_null(found);                        \
        memcpy(&(function), &found, sizeof found);     \
    } while (0)

/* -- version and structs ------------------------------------------------------------------------------------------- */

static void test_the_version_is_0_4_0(void **state)
{
    uint32_t (*version)(void);
    (void)state;
    FIND(version, "gpusync_version");
    assert_int_equal(GPUSYNC_VERSION, 400);
    assert_int_equal(version(), 400);
}

/* A binding counts on the order: a struct of a later version comes behind these. */
static const struct {
    const char *name;
    size_t size;
} structs[] = {
    {"gpusync_error", sizeof(gpusync_error)},
    {"gpusync_spin", sizeof(gpusync_spin)},
    {"gpusync_waiter", sizeof(gpusync_waiter)},
    {"gpusync_hooks", sizeof(gpusync_hooks)},
    {"gpusync_allocator", sizeof(gpusync_allocator)},
    {"gpusync_device_desc", sizeof(gpusync_device_desc)},
    {"gpusync_queue_desc", sizeof(gpusync_queue_desc)},
    {"gpusync_command_buffer_desc", sizeof(gpusync_command_buffer_desc)},
    {"gpusync_wait_options", sizeof(gpusync_wait_options)},
    {"gpusync_point", sizeof(gpusync_point)},
    {"gpusync_timeline_desc", sizeof(gpusync_timeline_desc)},
    {"gpusync_submission", sizeof(gpusync_submission)},
    {"gpusync_pipeline_desc", sizeof(gpusync_pipeline_desc)},
    {"gpusync_warmup_job", sizeof(gpusync_warmup_job)},
    {"gpusync_warmup_desc", sizeof(gpusync_warmup_desc)},
    {"gpusync_ticket_info", sizeof(gpusync_ticket_info)},
    {"gpusync_stats", sizeof(gpusync_stats)},
    {"gpusync_trace_event", sizeof(gpusync_trace_event)},
};
#define STRUCTS LENGTH(structs)
#define UNTOUCHED (SIZE_MAX / 255 * 0xAB) /* bytes of 0xAB */

static void test_the_list_of_structs_names_them_in_their_order(void **state)
{
#define NAME_OF(name) #name,
    static const char *const names[] = {GPUSYNC_STRUCTS(NAME_OF)};
#undef NAME_OF
    size_t i;
    (void)state;
    assert_int_equal(LENGTH(names), STRUCTS);
    for (i = 0; i < STRUCTS; i++) assert_string_equal(names[i], structs[i].name);
}

static void test_the_sizes_come_in_the_order_of_the_list(void **state)
{
    size_t (*struct_sizes)(size_t *, size_t);
    size_t sizes[STRUCTS], i;
    (void)state;
    FIND(struct_sizes, "gpusync_struct_sizes");
    memset(sizes, 0xAB, sizeof sizes);
    assert_int_equal(struct_sizes(sizes, STRUCTS), STRUCTS);
    for (i = 0; i < STRUCTS; i++) {
        if (sizes[i] != structs[i].size) print_error("%s\n", structs[i].name);
        assert_int_equal(sizes[i], structs[i].size);
    }
}

static void test_no_more_sizes_are_written_than_there_are_places(void **state)
{
    size_t sizes[STRUCTS], count, i;
    (void)state;
    for (count = 0; count <= STRUCTS; count++) {
        memset(sizes, 0xAB, sizeof sizes);
        assert_int_equal(gpusync_struct_sizes(sizes, count), STRUCTS);
        for (i = 0; i < STRUCTS; i++) assert_int_equal(sizes[i], i < count ? structs[i].size : UNTOUCHED);
    }
}

static void test_places_behind_the_last_struct_are_left_alone(void **state)
{
    size_t sizes[STRUCTS + 5], i;
    (void)state;
    memset(sizes, 0xAB, sizeof sizes);
    assert_int_equal(gpusync_struct_sizes(sizes, LENGTH(sizes)), STRUCTS);
    for (i = 0; i < LENGTH(sizes); i++) assert_int_equal(sizes[i], i < STRUCTS ? structs[i].size : UNTOUCHED);
}

static void test_without_places_the_number_of_structs_is_told(void **state)
{
    (void)state;
    assert_int_equal(gpusync_struct_sizes(NULL, 0), STRUCTS);
    assert_int_equal(gpusync_struct_sizes(NULL, 1000), STRUCTS);
}

/* -- symbols with the version, and without ------------------------------------------------------------------------- */

typedef struct calls {
    gpusync_result (*device_create)(const gpusync_device_desc *desc, gpusync_device **out);
    gpusync_result (*queue_create)(gpusync_device *device, const gpusync_queue_desc *desc, gpusync_queue **out);
    gpusync_result (*command_buffer)(gpusync_queue *queue, const gpusync_command_buffer_desc *desc, void **out);
} calls;

static void find_calls(calls *plain, calls *versioned)
{
    FIND(plain->device_create, "gpusync_device_create");
    FIND(plain->queue_create, "gpusync_queue_create");
    FIND(plain->command_buffer, "gpusync_command_buffer");
    FIND(versioned->device_create, "gpusync_device_create_0_4");
    FIND(versioned->queue_create, "gpusync_queue_create_0_4");
    FIND(versioned->command_buffer, "gpusync_command_buffer_0_4");
}

static void count_line(void *user, gpusync_log_level level, const char *text)
{
    (void)level, (void)text;
    COUNT((long *)user);
}

/* A queue with room for one command buffer, a call that gets none, and a failure for the log: each desc has arrived. */
static void check_calls(const calls *device_by, const calls *queue_by, const calls *buffer_by)
{
    const uint64_t none = 0;
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    gpusync_command_buffer_desc desc;
    gpusync_device *device = NULL;
    gpusync_queue *queue = NULL;
    gpusync_ticket ticket;
    void *buffer = NULL, *more = &ticket;
    long lines = 0;
    char label[32];
    softmetal_reset();
    softmetal_set_clock(SOFTMETAL_MANUAL);
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    memset(&desc, 0, sizeof desc);
    device_desc.log = count_line;
    device_desc.log_user = &lines;
    assert_ok(device_by->device_create(&device_desc, &device));
    queue_desc.label = "bound";
    queue_desc.max_command_buffer_count = 1;
    assert_ok(queue_by->queue_create(device, &queue_desc, &queue));
    metal_string_copy(metal_get(gpusync_queue_metal(queue), "label"), label, sizeof label);
    assert_string_equal(label, "bound");
    desc.label = "work";
    desc.timeout_ns = &none;
    assert_ok(buffer_by->command_buffer(queue, &desc, &buffer));
    metal_string_copy(metal_get(buffer, "label"), label, sizeof label);
    assert_string_equal(label, "work");
    softmetal_fail(buffer, NULL, 1, NULL);
    assert_ok(gpusync_commit(queue, buffer, &ticket));
    assert_result(buffer_by->command_buffer(queue, &desc, &more), GPUSYNC_TIMEOUT);
    assert_null(more);
    softmetal_finish_queue(gpusync_queue_metal(queue));
    assert_result(gpusync_wait(queue, ticket, 0), GPUSYNC_ERROR_EXECUTION);
    assert_int_equal(GET(&lines), 1);
    assert_ok(gpusync_queue_destroy(queue));
    assert_ok(gpusync_device_destroy(device));
}

static void test_a_call_by_its_plain_symbol_is_the_call_by_its_versioned_symbol(void **state)
{
    calls plain, versioned;
    unsigned which;
    void *pool = metal_pool_push();
    (void)state;
    find_calls(&plain, &versioned);
    for (which = 0; which < 8; which++)
        check_calls(which & 1 ? &plain : &versioned, which & 2 ? &plain : &versioned, which & 4 ? &plain : &versioned);
    metal_pool_pop(pool);
}

static void check_refusals(const calls *by)
{
    gpusync_device *device = (gpusync_device *)(void *)&device;
    gpusync_queue *queue = (gpusync_queue *)(void *)&queue;
    void *buffer = &buffer;
    softmetal_reset();
    softmetal_fail_creation(1, true);
    assert_result(by->device_create(NULL, &device), GPUSYNC_ERROR_NO_DEVICE);
    assert_null(device);
    softmetal_fail_creation(0, false);
    assert_result(by->device_create(NULL, NULL), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_result(by->queue_create(NULL, NULL, &queue), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_null(queue);
    assert_result(by->command_buffer(NULL, NULL, &buffer), GPUSYNC_ERROR_INVALID_ARGUMENT);
    assert_null(buffer);
}

static void test_what_is_refused_is_refused_by_either_symbol(void **state)
{
    calls plain, versioned;
    (void)state;
    find_calls(&plain, &versioned);
    check_refusals(&plain);
    check_refusals(&versioned);
}

/* -- calls that are inline in C ------------------------------------------------------------------------------------ */

static void test_the_inline_questions_are_symbols_and_give_the_same_answers(void **state)
{
    bool (*is_done)(const gpusync_queue *, gpusync_ticket);
    bool (*is_idle)(const gpusync_queue *);
    uint64_t (*in_flight)(const gpusync_queue *);
    gpusync_ticket ticket;
    rig r;
    (void)state;
    FIND(is_done, "gpusync_is_done");
    FIND(is_idle, "gpusync_is_idle");
    FIND(in_flight, "gpusync_in_flight");
    assert_false(is_done(NULL, 0));
    assert_false(is_idle(NULL));
    assert_int_equal(in_flight(NULL), 0);
    rig_open(&r, SOFTMETAL_MANUAL);
    assert_true(is_idle(r.queue));
    assert_true(is_done(r.queue, GPUSYNC_NO_TICKET));
    assert_int_equal(in_flight(r.queue), 0);
    ticket = commit_empty(&r, NULL);
    (void)commit_empty(&r, NULL);
    assert_false(is_idle(r.queue));
    assert_false(is_done(r.queue, ticket));
    assert_int_equal(in_flight(r.queue), 2);
    softmetal_finish(softmetal_first_in_line(r.metal_queue));
    assert_true(is_done(r.queue, ticket));
    assert_false(is_done(r.queue, GPUSYNC_EVERYTHING));
    assert_int_equal(in_flight(r.queue), 1);
    finish_queue(r.queue);
    assert_true(is_done(r.queue, GPUSYNC_EVERYTHING));
    assert_true(is_idle(r.queue));
    assert_int_equal(in_flight(r.queue), 0);
    rig_close(&r);
}

static void assert_point(gpusync_point got, gpusync_point expected)
{
    assert_ptr_equal(got.queue, expected.queue);
    assert_int_equal(got.ticket, expected.ticket);
    assert_ptr_equal(got.timeline, expected.timeline);
    assert_int_equal(got.value, expected.value);
}

static void test_points_are_made_by_symbols(void **state)
{
    gpusync_point (*at_ticket)(gpusync_queue *, gpusync_ticket);
    gpusync_point (*at_value)(gpusync_timeline *, uint64_t);
    gpusync_point points[2];
    gpusync_timeline *timeline;
    gpusync_ticket ticket;
    size_t which;
    rig r;
    (void)state;
    FIND(at_ticket, "gpusync_at_ticket");
    FIND(at_value, "gpusync_at_value");
    rig_open(&r, SOFTMETAL_MANUAL);
    timeline = timeline_new(r.device);
    ticket = commit_empty(&r, NULL);
    points[0] = at_ticket(r.queue, ticket);
    points[1] = at_value(timeline, 7);
    assert_point(points[0], (gpusync_point){.queue = r.queue, .ticket = ticket});
    assert_point(points[1], (gpusync_point){.timeline = timeline, .value = 7});
    assert_point(at_ticket(NULL, 0), (gpusync_point){.queue = NULL}); /* nothing is checked */
    assert_point(at_value(NULL, UINT64_MAX), (gpusync_point){.value = UINT64_MAX});
    assert_result(gpusync_wait_many(points, 2, GPUSYNC_WAIT_ANY, 0, NULL, &which), GPUSYNC_TIMEOUT);
    assert_ok(gpusync_timeline_signal(timeline, 7));
    assert_ok(gpusync_wait_many(points, 2, GPUSYNC_WAIT_ANY, 0, NULL, &which));
    assert_int_equal(which, 1);
    finish_queue(r.queue);
    assert_ok(gpusync_wait_many(points, 2, GPUSYNC_WAIT_ALL, 0, NULL, NULL));
    assert_ok(gpusync_timeline_destroy(timeline));
    rig_close(&r);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_version_is_0_4_0),
        cmocka_unit_test(test_the_list_of_structs_names_them_in_their_order),
        cmocka_unit_test(test_the_sizes_come_in_the_order_of_the_list),
        cmocka_unit_test(test_no_more_sizes_are_written_than_there_are_places),
        cmocka_unit_test(test_places_behind_the_last_struct_are_left_alone),
        cmocka_unit_test(test_without_places_the_number_of_structs_is_told),
        cmocka_unit_test(test_a_call_by_its_plain_symbol_is_the_call_by_its_versioned_symbol),
        cmocka_unit_test(test_what_is_refused_is_refused_by_either_symbol),
        cmocka_unit_test(test_the_inline_questions_are_symbols_and_give_the_same_answers),
        cmocka_unit_test(test_points_are_made_by_symbols),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
