// cc -std=c99 compute_graph.c -framework Metal -framework CoreGraphics -framework Foundation -lobjc -o compute_graph
//
// A backend that computes graphs, as ggml has it: the nodes of a graph go to the GPU in several command buffers, a
// callback may stop the graph between two of them, and a command buffer may fail. iOS refuses one while the app is in
// the background, and that must not end all later graphs (ggml-org/ggml#1545). The queue has sticky_failure, so no part
// behind a failed one counts as computed. The class of the failure says whether to compute the graph again, and when.

#define GPUSYNC_IMPLEMENTATION /* in exactly one file of a program */
#include "../gpusync.h"
#include "metal.h"
#include <limits.h>
#include <stdio.h>

enum { GRAPHS = 3, NODES = 12, PARTS = 4, TRIES = 3, SLICE = 4096 };
#define LIMIT UINT64_C(10000000000) /* nanoseconds: no graph of this program takes ten seconds */

typedef bool abort_callback(void *user); /* true: commit no more of this graph */

typedef enum again { AT_ONCE, LATER, NEVER } again; /* when to compute a graph that has failed */

typedef struct backend {
    gpusync_device *device;
    gpusync_queue *queue;
    uint64_t cursor;       /* of this reader of the failures */
    void *data;            /* an id<MTLBuffer>: node n makes slice n + 1 of slice n */
    abort_callback *abort; /* asked before each part */
    void *abort_user;
    unsigned tries, committed; /* committed: parts of this try */
    bool aborted;
    again when; /* of the last try, if it failed */
} backend;

static gpusync_result failed(const char *call, gpusync_result result)
{
    if (result != GPUSYNC_OK) fprintf(stderr, "%s: %s\n", call, gpusync_result_string(result));
    return result;
}
#define FAILED(call) failed(#call, call)

static gpusync_result commit_part(backend *b, unsigned graph, unsigned part)
{
    static const uint64_t limit = LIMIT;
    gpusync_command_buffer_desc desc = {0};
    gpusync_result result;
    void *buffer, *pool;
    char label[32];
    snprintf(label, sizeof label, "graph %u, part %u", graph, part + 1);
    desc.label = label;
    desc.timeout_ns = &limit; /* for room in the queue */
    result = FAILED(gpusync_command_buffer(b->queue, &desc, &buffer));
    if (result != GPUSYNC_OK) return result;
    pool = metal_pool_push(); /* for what Metal autoreleases */
    for (size_t node = part * NODES / PARTS; node < (part + 1) * NODES / PARTS; node++) { /* kernels, in a real graph */
        void *blit = metal_blit_begin(buffer);
        metal_copy(blit, b->data, node * SLICE, b->data, (node + 1) * SLICE, SLICE);
        metal_end(blit);
    }
    metal_pool_pop(pool);
    result = FAILED(gpusync_commit(b->queue, buffer, NULL));
    if (result != GPUSYNC_OK) gpusync_command_buffer_discard(b->queue, buffer);
    return result;
}

/* Whatever ends the loop, the parts in flight still use the memory of the graph: the wait covers them. It waits for the
   whole queue, because a part may end well before gpusync finds the failure of an earlier one. */
static gpusync_result compute_once(backend *b, unsigned graph)
{
    gpusync_result result = GPUSYNC_OK, ended;
    b->aborted = false;
    for (b->committed = 0; b->committed < PARTS; b->committed++) {
        b->aborted = b->abort(b->abort_user);
        if (b->aborted) break;
        result = commit_part(b, graph, b->committed); /* GPUSYNC_ERROR_EXECUTION: an earlier part has failed already */
        if (result != GPUSYNC_OK) break;
    }
    ended = FAILED(gpusync_queue_wait(b->queue, LIMIT));
    return ended == GPUSYNC_OK ? result : ended;
}

/* Reads every failure since the last call. Prints the first: parts behind it took its error. */
static again when_again(backend *b, unsigned graph)
{
    gpusync_error error;
    again when = AT_ONCE;
    for (unsigned n = 0; gpusync_next_error(b->queue, &b->cursor, &error) == GPUSYNC_OK; n++) {
        again its = error.failure == GPUSYNC_FAILURE_INNOCENT_VICTIM   ? AT_ONCE
                    : gpusync_failure_is_transient(error.failure) ? LATER
                                                                   : NEVER;
        if (n == 0) printf("graph %u: %s: %s\n", graph, error.label, gpusync_failure_string(error.failure));
        if (its > when) when = its;
    }
    return when;
}

/* GPUSYNC_ERROR_EXECUTION: this graph has failed, and the queue takes the next one. Where b->when is LATER the program
   computes the graph again when the app is in the foreground, or has freed memory. */
static gpusync_result compute(backend *b, unsigned graph)
{
    for (b->tries = 1;; b->tries++) {
        gpusync_result result;
        memset(metal_contents(b->data), 0, (NODES + 1) * SLICE); /* no part is in flight */
        memset(metal_contents(b->data), (int)graph, SLICE);      /* the input */
        result = compute_once(b, graph);
        if (result != GPUSYNC_ERROR_EXECUTION) return result;
        b->when = when_again(b, graph);
        result = FAILED(gpusync_queue_clear_failure(b->queue)); /* of a stopped graph, too: the next needs the queue */
        if (result != GPUSYNC_OK) return result;
        if (b->aborted || b->when != AT_ONCE || b->tries == TRIES) return GPUSYNC_ERROR_EXECUTION;
    }
}

static bool stop_is_set(void *user) /* in a real program a flag that a button or a signal sets */
{
    int *parts_left = (int *)user;
    return (*parts_left)-- == 0;
}

/* Returns false when no graph can be computed any more. */
static bool show(backend *b, unsigned graph, gpusync_result result, bool *good)
{
    const char *output = (const char *)metal_contents(b->data) + NODES * SLICE;
    if (result != GPUSYNC_OK) *good = false;
    if (result != GPUSYNC_OK && result != GPUSYNC_ERROR_EXECUTION) return false;
    if (b->aborted) printf("graph %u: stopped after %u of %d parts\n", graph, b->committed, PARTS);
    else if (result != GPUSYNC_OK)
        printf("graph %u: %s, try %u\n", graph, b->when == LATER ? "put off" : "given up", b->tries);
    else if (output[0] == (char)graph && output[SLICE - 1] == (char)graph)
        printf("graph %u: computed, try %u\n", graph, b->tries);
    else *good = !fprintf(stderr, "graph %u: a wrong result\n", graph);
    return true;
}

int main(void)
{
    backend b = {0};
    gpusync_queue_desc desc = {0};
    gpusync_result result;
    bool good;
    int stop_after[GRAPHS] = {INT_MAX, 2, INT_MAX};
    result = gpusync_device_create(NULL, &b.device);
    if (result == GPUSYNC_ERROR_NO_DEVICE) {
        fprintf(stderr, "skipped: %s\n", gpusync_result_string(result));
        return 77;
    }
    desc.sticky_failure = true;
    desc.label = "graphs";
    good = !failed("gpusync_device_create", result) && !FAILED(gpusync_queue_create(b.device, &desc, &b.queue));
    if (good) b.data = metal_buffer_new(gpusync_device_metal(b.device), (NODES + 1) * SLICE);
    if (good && !b.data) good = !failed("newBufferWithLength", GPUSYNC_ERROR_METAL_NIL);
    b.abort = stop_is_set;
    for (unsigned graph = 1; b.data && graph <= GRAPHS; graph++) {
        b.abort_user = &stop_after[graph - 1];
        result = compute(&b, graph);
        if (!show(&b, graph, result, &good)) break;
    }
    /* A GPU that hangs goes on using the memory. Metal keeps that alive: the program only drops its reference. */
    if (result == GPUSYNC_TIMEOUT) gpusync_queue_destroy_now(b.queue);
    else if (FAILED(gpusync_queue_destroy(b.queue))) good = false;
    metal_release(b.data);
    if (FAILED(gpusync_device_destroy(b.device))) good = false;
    return !good;
}
