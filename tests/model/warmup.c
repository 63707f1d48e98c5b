/* warmup.c - a warm-up has no lock but a library's: its marks are looked at in the right order */

#include "rig.h"

static struct {
    struct gpusync_warmup warmup;
    gpusync__compilation compilations[4]; /* two pipelines, their library, and the place of another */
} memory;
#define W (&memory.warmup)
static int freed;
static void overwrite(void *user, void *freed_memory, size_t size)
{
    if (freed_memory != W) return;
    *(volatile uint64_t *)&W->done = 99;
    *(volatile uint32_t *)&W->closing = 99;
    *(volatile uint32_t *)&W->inside = 99;
    *(volatile uint32_t *)&memory.compilations[0].done = 99;
    freed = 1;
}
static void have_warmup(bool disabled)
{
    gpusync__compilation *library = &memory.compilations[2];
    D.allocator.release = overwrite;
    W->device = &D;
    W->progress = &T;
    W->compilations = memory.compilations;
    W->count = 2;
    W->total = disabled ? 0 : 2;
    library->text = &metal_object;
    for (int i = 0; i < 2; i++) {
        gpusync__compilation *pipeline = &memory.compilations[i];
        pipeline->warmup = W;
        pipeline->library = library;
        pipeline->text = &metal_object;
        pipeline->same_as = (size_t)i;
        pipeline->started = !disabled;
    }
}
static void *compiles(void *i)
{
    gpusync__compile(&memory.compilations[(long)i]);
    return NULL;
}

/* Of one that is disabled two threads ask for a pipeline: it becomes a task once. */
static void *asks(void *unused)
{
    void *pipeline;
    gpusync_result result = gpusync_warmup_pipeline(W, 0, 0, &pipeline, NULL);
    assert(result == GPUSYNC_TIMEOUT);
    return unused;
}
static void asked(void)
{
    have_warmup(true);
    pthread_t one = start(asks, 0), other = start(asks, 0);
    join(one);
    join(other);
    assert(tasks_begun == 1 && W->inside == 1); /* the task has not run */
}

/* Two tasks need one library: one of them compiles it, and both have it. */
static void one_library(void)
{
    have_warmup(false);
    W->inside = 2;
    pthread_t one = start(compiles, 0), other = start(compiles, 1);
    join(one);
    join(other);
    assert(libraries_made == 1 && memory.compilations[0].made && memory.compilations[1].made);
    assert(W->done == 2 && W->inside == 0 && T.value == 2);
}

/* A thread waits for a pipeline while its task ends. */
static void *waits_for_one(void *unused)
{
    void *pipeline;
    gpusync_result result = gpusync_warmup_pipeline(W, 0, GPUSYNC_FOREVER, &pipeline, NULL);
    assert(result == GPUSYNC_OK && pipeline == &metal_object);
    return unused;
}
static void waited_for(void)
{
    have_warmup(false);
    W->inside = 1;
    start(waits_for_one, 0);
    join(start(compiles, 0));
    assert(!lost(0));
}

/* It is destroyed, while a call is inside (WITH), or while a pipeline is compiled. */
static void *waits(void *unused)
{
    gpusync_result result = gpusync_warmup_wait(W, GPUSYNC_FOREVER);
    assert(result == GPUSYNC_OK || result == GPUSYNC_ERROR_DESTROYED);
    return unused;
}
static void *polls(void *unused)
{
    void *pipeline;
    gpusync_result result = gpusync_warmup_pipeline(W, 0, 0, &pipeline, NULL);
    assert(result == GPUSYNC_OK || result == GPUSYNC_TIMEOUT || result == GPUSYNC_ERROR_DESTROYED);
    return unused;
}
static void *destroys(void *with)
{
    if (with) __VERIFIER_assume(LOAD(&W->inside) != 0);
    gpusync_result result = gpusync_warmup_destroy(W);
    assert(result == GPUSYNC_OK);
    return NULL;
}
static void destroyed(void)
{
    have_warmup(false);
    W->inside = 1;
    pthread_t one = start(compiles, 0), other = start(destroys, 0);
    join(one);
    join(other);
    assert(freed);
}
#ifndef WITH
#define WITH waits
#endif
static void destroyed_with(void)
{
    have_warmup(false);
    only_waker_lingers = true;
    pthread_t one = start(WITH, 0), other = start(destroys, 1);
    join(one);
    join(other);
    assert(freed);
}

int main(void)
{
    begin();
    CASE();
    return 0;
}
