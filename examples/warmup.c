// cc -std=c99 warmup.c -framework Metal -framework CoreGraphics -framework Foundation -lobjc -o warmup
//
// A game compiles its pipelines while it loads: one for compute, one for rendering. gpusync calls `make` for one item
// after the other, on a dispatch queue; what the game needs before its turn is made in the call that asks for it. The
// last item of this list cannot be made: the reason is kept for each call that asks.

#define GPUSYNC_IMPLEMENTATION /* in exactly one file of a program */
#include "../gpusync.h"
#include "metal.h"

static const char source[] = "#include <metal_stdlib>\n"
                             "using namespace metal;\n"
                             "kernel void simulate() {}\n"
                             "vertex float4 corner(uint i [[vertex_id]]) { return float4(i & 1, i >> 1, 0, 1); }\n"
                             "fragment half4 paint() { return half4(1); }\n";

enum { SIMULATE, PAINT, MISSING, ITEMS };
static const struct {
    const char *function, *fragment; /* a kernel; or a vertex function, and this one */
} items[ITEMS] = {{"simulate", NULL}, {"corner", "paint"}, {"fly", NULL}};

static void *library_new(void *device)
{
    void *text = metal_string_new(source), *error = NULL, *selector = metal__sel("newLibraryWithSource:options:error:");
    void *library = METAL__AS(void *, void *, void *, void **)(device, selector, text, NULL, &error);
    metal_release(text);
    return library;
}

/* NULL: the library has none of this name, or name is NULL. */
static void *function_new(void *library, const char *name)
{
    void *string = name ? metal_string_new(name) : NULL, *selector = metal__sel("newFunctionWithName:");
    void *function = string ? METAL__AS(void *, void *)(library, selector, string) : NULL;
    metal_release(string);
    return function;
}

static void *descriptor_new(void *vertex, void *fragment, const char *label)
{
    void *descriptor = metal_get(metal__class("MTLRenderPipelineDescriptor"), "new");
    void *colors = metal_get(descriptor, "colorAttachments");
    void *first = METAL__AS(void *, unsigned long)(colors, metal__sel("objectAtIndexedSubscript:"), 0ul);
    metal_set_label(descriptor, label);
    metal_set(descriptor, "setVertexFunction:", vertex);
    metal_set(descriptor, "setFragmentFunction:", fragment);
    METAL__AS(void, unsigned long)(first, metal__sel("setPixelFormat:"), 80ul); /* MTLPixelFormatBGRA8Unorm */
    return descriptor;
}

/* Makes item i. It may run on several threads at once: gpusync's, and each that asks. */
static gpusync_result make(void *library, size_t i, void **made, gpusync_error *error)
{
    void *render = metal__sel("newRenderPipelineStateWithDescriptor:error:");
    void *compute = metal__sel("newComputePipelineStateWithFunction:error:");
    void *device = metal_get(library, "device"), *reason = NULL, *descriptor = NULL;
    void *function = function_new(library, items[i].function), *fragment = function_new(library, items[i].fragment);
    if (function && fragment) {
        descriptor = descriptor_new(function, fragment, items[i].fragment);
        *made = METAL__AS(void *, void *, void **)(device, render, descriptor, &reason);
    } else if (function && !items[i].fragment) {
        *made = METAL__AS(void *, void *, void **)(device, compute, function, &reason);
    } else {
        snprintf(error->message, sizeof error->message, "the library lacks a function of this item");
    }
    if (reason && !*made)
        metal_error_copy(reason, error->message, sizeof error->message);
    metal_release(descriptor);
    metal_release(function);
    metal_release(fragment);
    return *made ? GPUSYNC_OK : GPUSYNC_ERROR_COMPILE;
}

int main(void)
{
    gpusync_device *device;
    gpusync_queue *queue;
    gpusync_warmup *warmup;
    gpusync_warmup_desc desc = {.fn = make, .count = ITEMS};
    gpusync_error error;
    gpusync_result result;
    size_t done, total;
    void *pool = metal_pool_push(), *made, *buffer, *compute;
    const metal_size one = {1, 1, 1};
    char label[32];
    MUST(gpusync_device_create(NULL, &device));
    desc.user = MUST_GET(library_new(gpusync_device_metal(device)));
    MUST(gpusync_warmup_start(device, &desc, &warmup));

    /* The first frame draws: what it needs is made now, if its turn has not come. */
    MUST(gpusync_warmup_get(warmup, PAINT, GPUSYNC_FOREVER, &made, NULL));
    metal_string_copy(metal_get(made, "label"), label, sizeof label);
    printf("a render pipeline: %s\n", label);

    /* The loading screen. */
    while ((result = gpusync_warmup_wait(warmup, 10000000, &done, &total)) == GPUSYNC_TIMEOUT)
        fprintf(stderr, "%zu of %zu\n", done, total);
    printf("%zu of %zu: %s\n", done, total, gpusync_result_string(result));
    if (gpusync_warmup_get(warmup, MISSING, GPUSYNC_FOREVER, &made, &error) == GPUSYNC_ERROR_COMPILE)
        printf("%s: %s\n", error.label, error.message);

    /* What was made is borrowed; the command buffer keeps it alive. */
    MUST(gpusync_warmup_get(warmup, SIMULATE, GPUSYNC_FOREVER, &made, NULL));
    MUST(gpusync_queue_create(device, NULL, &queue));
    MUST(gpusync_command_buffer_create(queue, NULL, 1000000000, &buffer));
    compute = MUST_GET(metal_compute_begin(buffer));
    metal_set_pipeline(compute, made);
    metal_dispatch(compute, one, one);
    metal_end(compute);
    MUST(gpusync_commit(queue, buffer, NULL));
    MUST(gpusync_warmup_destroy(warmup));
    result = gpusync_wait(queue, GPUSYNC_EVERYTHING, 5000000000, NULL);
    printf("a compute pipeline: %s\n", gpusync_result_string(result));
    MUST(gpusync_queue_destroy(queue));
    MUST(gpusync_device_destroy(device));
    metal_release(desc.user);
    metal_pool_pop(pool);
    return result != GPUSYNC_OK;
}
