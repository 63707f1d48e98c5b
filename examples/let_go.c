// cc -std=c99 let_go.c -framework Metal -framework CoreGraphics -framework Foundation -lobjc -o let_go
//
// Objects that are owned by reference counts, as in C++, Rust or Swift. The last owner may let go anywhere: here in a
// callback, where gpusync_queue_destroy is refused, because it would wait for that very callback. The calls that
// destroy later never wait. They call the program back when the object is gone.

#define GPUSYNC_IMPLEMENTATION /* in exactly one file of a program */
#include "../gpusync.h"
#include <time.h>

#include "example.h" /* check, name_of; softmetal_... where a software device stands in for the GPU */

enum { ENGINES = 3, COMMITS = 20 };

/* An engine has a device and a queue of its own. The program and each command buffer in flight own it. */
typedef struct engine {
    gpusync_device *device;
    gpusync_queue *queue;
    int owners;
    int id;
} engine;

static int engines_left = ENGINES, ended;

static void queue_gone(void *user)
{
    printf("  the queue of engine %d is gone\n", ((engine *)user)->id);
}

/* The last function that gpusync calls for this engine. */
static void device_gone(void *user)
{
    printf("  the device of engine %d is gone\n", ((engine *)user)->id);
    free(user);
    __atomic_fetch_sub(&engines_left, 1, __ATOMIC_SEQ_CST);
}

/* The device goes after its queue, whichever call is first. */
static void let_go(engine *e)
{
    if (__atomic_fetch_sub(&e->owners, 1, __ATOMIC_SEQ_CST) != 1) return;
    check(!gpusync_queue_destroy_later(e->queue, queue_gone, e), "gpusync_queue_destroy_later");
    check(!gpusync_device_destroy_later(e->device, device_gone, e), "gpusync_device_destroy_later");
}

static void work_ended(void *user, gpusync_result result, const gpusync_error *error)
{
    (void)result, (void)error;
    __atomic_fetch_add(&ended, 1, __ATOMIC_SEQ_CST);
    let_go((engine *)user);
}

static void launch(engine *e)
{
    void *buffer;
    gpusync_ticket ticket;
    check(!gpusync_command_buffer(e->queue, NULL, &buffer), "gpusync_command_buffer");
    softmetal_set_duration(buffer, MS);
    check(!gpusync_commit(e->queue, buffer, &ticket), "gpusync_commit");
    __atomic_fetch_add(&e->owners, 1, __ATOMIC_SEQ_CST);
    check(!gpusync_on_done(gpusync_at_ticket(e->queue, ticket), work_ended, e), "gpusync_on_done");
}

static void open_engine(int id)
{
    engine *e = (engine *)calloc(1, sizeof *e);
    check(e != NULL, "memory");
    e->id = id;
    e->owners = 1;
    check_device(gpusync_device_create(NULL, &e->device));
    check(!gpusync_queue_create(e->device, NULL, &e->queue), "gpusync_queue_create");
    for (int i = 0; i < COMMITS; i++) launch(e);
    let_go(e); /* the program does not need it any more; the work in flight does */
}

int main(void)
{
    static const struct timespec ms = {0, 1000000};
    for (int id = 1; id <= ENGINES; id++) open_engine(id);
    printf("all engines run, and the program has let go of them\n");
    while (__atomic_load_n(&engines_left, __ATOMIC_SEQ_CST)) nanosleep(&ms, NULL); /* a program has other work here */
    printf("callbacks: %d of %d\n", ended, ENGINES * COMMITS);
    check(ended == ENGINES * COMMITS, "each was called before its engine went");
    printf("let_go: all %d checks passed\n", checks);
    return 0;
}
