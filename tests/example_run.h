/* example_run.h - a program of examples/ within a test program: its main is called, and what it prints is kept

       #include "example_run.h"
       ... macros that put a function of the test in front of one that the example calls ...
       #define main example_main
       #include "../examples/NAME.c"
       #undef main
       #include "example_end.h"

   The program is as it is copied: it knows nothing of softmetal. The test decides at its commits how the work ends. */
#ifndef EXAMPLE_RUN_H
#define EXAMPLE_RUN_H

#define GPUSYNC__IMPLEMENTED /* for the example, which has the bodies in it: those of the tests are linked instead */
#include "support.h"

/* -- what it prints --------------------------------------------------------------------------------------------- */

typedef struct spoken {
    char text[16384];
    size_t length;
} spoken;

static spoken said, complained; /* on stdout, on stderr: of the last run */
static pthread_mutex_t speaking = PTHREAD_MUTEX_INITIALIZER;

static MAYBE_UNUSED __attribute__((format(printf, 2, 0))) int speak_list(spoken *s, const char *format, va_list list)
{
    int length;
    pthread_mutex_lock(&speaking);
    length = vsnprintf(s->text + s->length, sizeof s->text - s->length, format, list);
    s->length += (size_t)length;
    must(s->length < sizeof s->text, "the example prints more than the test has room for");
    pthread_mutex_unlock(&speaking);
    return length;
}

static MAYBE_UNUSED __attribute__((format(printf, 1, 2))) int speak(const char *format, ...)
{
    va_list list;
    int length;
    va_start(list, format);
    length = speak_list(&said, format, list);
    va_end(list);
    return length;
}

static MAYBE_UNUSED __attribute__((format(printf, 2, 3))) int speak_to(FILE *file, const char *format, ...)
{
    va_list list;
    int length;
    va_start(list, format);
    length = speak_list(file == stderr ? &complained : &said, format, list);
    va_end(list);
    return length;
}

static MAYBE_UNUSED void assert_said(const char *lines)
{
    if (strcmp(said.text, lines)) print_error("on stderr:\n%s", complained.text);
    assert_string_equal(said.text, lines);
}

static MAYBE_UNUSED bool has(const spoken *s, const char *text) { return strstr(s->text, text) != NULL; }
static MAYBE_UNUSED void assert_has(const spoken *s, const char *text)
{
    if (has(s, text)) return;
    print_error("not there: %s\non stdout:\n%s\non stderr:\n%s", text, said.text, complained.text);
    fail();
}

/* -- what becomes of its command buffers ------------------------------------------------------------------------- */

enum { MOST_COMMITS = 256 };

static struct {
    unsigned commits; /* so far */
    unsigned reasons[MOST_COMMITS + 1]; /* of commit n, from 1 on: why it fails; 0: it does not */
    bool hangs[MOST_COMMITS + 1];
    void *buffers[MOST_COMMITS + 1]; /* of those that hang: retained */
    void (*at_commit)(unsigned n, void *buffer); /* before commit n; may be NULL */
} world;

/* Before commit n: it does not end before let_go_on. */
static MAYBE_UNUSED void hang(unsigned n, void *buffer)
{
    softmetal_hang(buffer);
    PUT(&world.buffers[n], metal_retain(buffer));
}

static MAYBE_UNUSED void at_message(void *user, softmetal_phase phase, void *object, const char *selector)
{
    unsigned n;
    (void)user;
    if (phase != SOFTMETAL_BEFORE || strcmp(selector, "commit") != 0) return;
    n = __atomic_add_fetch(&world.commits, 1, __ATOMIC_SEQ_CST);
    must(n <= MOST_COMMITS, "more commits than the test has room for");
    if (world.reasons[n]) softmetal_fail_as(object, world.reasons[n], NULL);
    if (world.hangs[n]) hang(n, object);
    if (world.at_commit) world.at_commit(n, object);
}

/* Commit n may go on. */
static MAYBE_UNUSED void let_go_on(unsigned n)
{
    void *buffer = GET(&world.buffers[n]);
    must(buffer != NULL, "this commit has not come, or does not hang");
    PUT(&world.buffers[n], NULL);
    softmetal_unhang(buffer);
    metal_release(buffer);
}

static MAYBE_UNUSED int set_up_world(void **state)
{
    (void)state;
    softmetal_reset();
    memset(&world, 0, sizeof world);
    memset(&said, 0, sizeof said);
    memset(&complained, 0, sizeof complained);
    softmetal_set_message_hook(at_message, NULL);
    return 0;
}

/* Nothing of Metal's is left, whatever happened. */
static MAYBE_UNUSED int tear_down_world(void **state)
{
    (void)state;
    for (unsigned n = 1; n <= MOST_COMMITS; n++)
        if (GET(&world.buffers[n])) let_go_on(n);
    assert_true(softmetal_settle(SECONDS(20)));
    softmetal_set_message_hook(NULL, NULL);
    assert_int_equal(softmetal_live("command_buffer"), 0);
    assert_int_equal(softmetal_live("queue"), 0);
    assert_int_equal(softmetal_live("buffer"), 0);
    assert_int_equal(softmetal_live("shared_event"), 0);
    assert_int_equal(softmetal_live("block"), 0);
    return 0;
}

/* Behind the headers, which declare them. */
#define printf speak
#define fprintf speak_to
#endif
