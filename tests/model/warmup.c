/* warmup.c - a warm-up has no lock: its marks are looked at in the right order */

#include "rig.h"

static struct {
    struct gpusync_warmup warmup;
    gpusync__compilation compilations[2]; /* a pipeline, and its library */
} memory;
#define W (&memory.warmup)
static int freed;
static void overwrite(void *user, void *freed_memory, size_t size)
{
    if (freed_memory != W) return;
    *(volatile uint64_t *)&W->done = 99;
    *(volatile uint32_t *)&W->closing = 99;
    *(volatile uint32_t *)&W->inside = 99;
    *(volatile uint32_t *)&W->pending = 99;
    *(volatile uint32_t *)&memory.compilations[0].done = 99;
    freed = 1;
}
static void have_warmup(bool disabled)
{
    gpusync__compilation *pipeline = &memory.compilations[0], *library = &memory.compilations[1];
    D.allocator.release = overwrite;
    W->device = &D;
    W->progress = &T;
    W->compilations = memory.compilations;
    W->count = W->library_count = 1;
    W->total = disabled ? 0 : 1;
    pipeline->warmup = library->warmup = W;
    pipeline->library = library;
    library->text = pipeline->text = &metal_object;
}

/* Of one that is disabled the pipeline is asked for, while Metal brings the library: one of the two threads has the
   pipeline compiled, once. */
static int begun;
static void *asks(void *unused)
{
    void *pipeline;
    gpusync_result result = gpusync_warmup_pipeline(W, 0, 0, &pipeline, NULL);
    assert(result == GPUSYNC_TIMEOUT);
    return unused;
}
static void *library_comes(void *unused)
{
    gpusync__context_block block = {{0}, &memory.compilations[1]};
    gpusync__came(&block, &metal_object, NULL);
    return unused;
}
static void asked(void)
{
    have_warmup(true);
    memory.compilations[1].started = 1; /* by an earlier call for another pipeline of this library */
    W->pending = 1;
    pthread_t one = start(asks, 0), other = start(library_comes, 0);
    join(one);
    join(other);
    assert(compiling == &memory.compilations[0] && W->pending == 1 && W->inside == 0);
}

/* It is destroyed, while a wait for all of it sleeps inside, and while Metal brings the only pipeline. */
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
static void *pipeline_comes(void *unused)
{
    gpusync__context_block block = {{0}, &memory.compilations[0]};
    gpusync__came(&block, &metal_object, NULL);
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
    W->pending = 1;
    pthread_t one = start(pipeline_comes, 0), other = start(destroys, 0);
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
