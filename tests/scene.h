/* scene.h - queues, timelines and submissions in few words, on top of support.h */
#ifndef SCENE_H
#define SCENE_H

#include "support.h"

static MAYBE_UNUSED gpusync_queue *queue_new(rig *r)
{
    gpusync_queue *queue;
    assert_ok(gpusync_queue_create(r->device, NULL, &queue));
    return queue;
}

static MAYBE_UNUSED gpusync_timeline *timeline_new(rig *r)
{
    gpusync_timeline *timeline;
    assert_ok(gpusync_timeline_create(r->device, NULL, &timeline));
    return timeline;
}

/* Over an event of the test's, which others signal too. */
static MAYBE_UNUSED gpusync_timeline *timeline_over(rig *r, void **event)
{
    gpusync_timeline *timeline;
    *event = metal_shared_event_new(r->metal_device);
    assert_ok(timeline_import(r->device, *event, NULL, &timeline));
    return timeline;
}

static MAYBE_UNUSED void *buffer_of(gpusync_queue *queue) { return buffer_behind(queue, NULL); }

/* ... with the wait at its head. */
static MAYBE_UNUSED void *buffer_after(gpusync_queue *queue, gpusync_point wait)
{
    return buffer_behind(queue, &wait);
}

/* With one of each at most: no timeline and no queue, no buffer, means none. */
typedef struct work {
    gpusync_point wait, signal;
    void *buffer;
    uint32_t flags;
    const uint64_t *timeout_ns;
} work;

static MAYBE_UNUSED gpusync_result try_submit(gpusync_queue *queue, work w, gpusync_ticket *ticket)
{
    gpusync_submission s;
    memset(&s, 0, sizeof s);
    s.waits = &w.wait;
    s.wait_count = w.wait.timeline || w.wait.queue;
    s.signals = &w.signal;
    s.signal_count = w.signal.timeline != NULL;
    s.command_buffers = &w.buffer;
    s.command_buffer_count = w.buffer != NULL;
    s.flags = w.flags;
    s.timeout_ns = w.timeout_ns;
    return submit_as_told(queue, &s, ticket);
}

static MAYBE_UNUSED gpusync_ticket submit_work(gpusync_queue *queue, work w)
{
    gpusync_ticket ticket = 0;
    assert_ok(try_submit(queue, w, &ticket));
    return ticket;
}

#define SUBMIT(queue, ...) submit_work(queue, (work){__VA_ARGS__})

static MAYBE_UNUSED gpusync_ticket commit_to(gpusync_queue *queue, void *buffer)
{
    gpusync_ticket ticket = 0;
    assert_ok(gpusync_commit(queue, buffer, &ticket));
    return ticket;
}

static MAYBE_UNUSED void finish(gpusync_queue *queue) { softmetal_finish_queue(gpusync_queue_metal(queue)); }

static MAYBE_UNUSED void rig_open_hooked(rig *r, softmetal_clock clock, const gpusync_hooks *hooks, uint32_t size)
{
    gpusync_device_desc device_desc;
    gpusync_queue_desc queue_desc;
    memset(&device_desc, 0, sizeof device_desc);
    memset(&queue_desc, 0, sizeof queue_desc);
    device_desc.hooks = hooks;
    device_desc.wait_mode = GPUSYNC_WAIT_HANDLER;
    queue_desc.max_command_buffer_count = size;
    rig_open_with(r, clock, device_desc, queue_desc);
}

#endif
