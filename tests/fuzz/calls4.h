/* calls4.h - what calls.h does with queues of Metal 4, in inputs whose first byte says so: other inputs stay what they are

   A recording has an allocator of its own, which is reset as soon as its ticket says that the work has ended. Command
   buffers begin again while their last commit is in flight, and are committed together. What is refused has one answer,
   and changes nothing. Included in calls.h. */
#ifndef FUZZ_CALLS4_H
#define FUZZ_CALLS4_H

/* Its last commit is held: not to be begun or committed. (The poll may let it go.) */
static bool is_held4(const four *f)
{
    bool over;
    if (!f->run || metal_status(f->run) >= 2 || f->lane < 0) return false;
    over = gpusync_poll(world.lanes[f->lane].queue, f->ticket) != GPUSYNC_NOT_READY;
    return !over && metal_status(f->run) < 2;
}

/* Recorded, and not committed: perhaps as what it was committed with has never run. */
static bool can_commit4(const four *f)
{
    if (world.machines[f->device].losable && f->run && metal_status(f->run) < 2) return false;
    return f->ended || (f->run && !is_held4(f) && metal_status(f->run) < 2);
}

static void record4(four *f)
{
    void *metal = gpusync_device_metal(world.machines[f->device].device), *encoder;
    if (world.allocator_count == ALLOCATORS) return;
    f->recording = world.allocator_count++;
    world.allocators[f->recording] = metal4_allocator_new(metal);
    metal4_begin(f->buffer, world.allocators[f->recording]);
    if (one_in(2)) {
        encoder = metal_compute_begin(f->buffer);
        metal_end(encoder);
    }
    metal4_end(f->buffer);
    f->ended = true;
    metal_release(f->run);
    f->run = NULL;
}

static void make_four(void)
{
    four *f = &world.fours[below_of(FOURS)];
    int device = (int)below_of(DEVICES);
    if (f->buffer || !world.machines[device].device || world.machines[device].goes) return;
    memset(f, 0, sizeof *f);
    f->lane = -1;
    f->device = device;
    f->buffer = metal4_buffer_new(gpusync_device_metal(world.machines[device].device));
    if (one_in(2)) metal_set_label(f->buffer, "a buffer of Metal 4");
    record4(f);
}

/* While the GPU may have its last recording; but not while gpusync has that still to be committed. */
static void record_again(void)
{
    four *f = &world.fours[below_of(FOURS)];
    if (!f->buffer || is_held4(f)) return;
    if (f->run && metal_status(f->run) < 2 && world.machines[f->device].losable) return;
    record4(f);
}

/* gpusync keeps it for as long as it needs it. */
static void drop_four(four *f)
{
    metal_release(f->run);
    metal_release(f->buffer);
    memset(f, 0, sizeof *f);
    f->lane = -1;
}

static void drop_fours_of(int device)
{
    int i;
    for (i = 0; i < FOURS; i++)
        if (world.fours[i].buffer && world.fours[i].device == device) drop_four(&world.fours[i]);
}

static void tell_fours(four *const *fours, size_t count)
{
    size_t i;
    for (i = 0; i < count && fuzz_tells; i++) fprintf(stderr, "    buffer %d of Metal 4\n", (int)(fours[i] - world.fours));
}

/* Up to so many that can be committed on the device, each once. */
static size_t some_fours(int device, four **fours, void **buffers, size_t most)
{
    unsigned first = byte(), i;
    size_t count = 0;
    for (i = 0; i < FOURS && count < most; i++) {
        four *f = &world.fours[(first + i) % FOURS];
        if (!f->buffer || f->device != device || !can_commit4(f)) continue;
        fours[count] = f;
        buffers[count++] = f->buffer;
    }
    tell_fours(fours, count);
    return count;
}

/* The run of what is committed next, +1; it may be one that fails. */
static void *prepare_run4(const lane *l, void *front)
{
    void *run;
    softmetal_prepare_run(front, l->metal);
    run = metal_retain(softmetal_run_of(front));
    if (one_in(6)) fail_for_a_reason(run, l);
    return run;
}

/* They have a ticket: or nothing has happened. Takes the run. */
static work *committed4(lane *l, gpusync_result result, gpusync_ticket ticket, four **fours, size_t count, void *run)
{
    work *w = NULL;
    size_t i;
    must((result == GPUSYNC_OK) == (ticket != 0), "a ticket and %d", result);
    if (result == GPUSYNC_OK) {
        meet_if(count > 1, commit4_of_several);
        w = remember_work(l, ticket, run, NULL, true, false);
        if (!w->buffers[0]) w->buffers[0] = metal_retain(run);
        w->unseen = false;
        for (i = 0; i < count; i++) {
            metal_release(fours[i]->run);
            fours[i]->run = metal_retain(run);
            fours[i]->ended = false;
            fours[i]->lane = index_of(l);
            fours[i]->ticket = ticket;
            w->recordings[i] = 1 + fours[i]->recording;
        }
    } else {
        must(metal_status(run) == 0, "a commit that failed has done something");
    }
    metal_release(run);
    return w;
}

/* One that is held, again: on its queue, by itself or behind others. */
static void commit_held_again(const four *f)
{
    lane *l = &world.lanes[f->lane];
    gpusync_submission submission;
    four *fours[1];
    void *buffers[2];
    size_t count = one_in(2) ? some_fours(f->device, fours, buffers, 1) : 0;
    gpusync_ticket ticket = 7;
    buffers[count++] = f->buffer;
    if (world.machines[l->device].losable || !is_held4(f)) return;
    if (l->sticky) return; /* it may have been given up */
    if (fuzz_tells) fprintf(stderr, "    buffer %d of Metal 4, which is held\n", (int)(f - world.fours));
    if (one_in(2)) {
        may(l->device, gpusync_commit4(l->queue, buffers, count, &ticket), GPUSYNC_ERROR_ALREADY_TRACKED);
    } else {
        memset(&submission, 0, sizeof submission);
        submission.command_buffers = buffers;
        submission.command_buffer_count = count;
        may(l->device, gpusync_submit(l->queue, &submission, &ticket), GPUSYNC_ERROR_ALREADY_TRACKED);
    }
    must(ticket == 0, "a ticket for what is held");
}

static void commit4_some(void)
{
    lane *l = some_lane();
    four *fours[PARTS4];
    void *buffers[PARTS4], *run;
    gpusync_ticket ticket = 7;
    gpusync_result result;
    size_t count;
    if (!l || !l->metal4) return;
    count = some_fours(l->device, fours, buffers, 1 + below_of(PARTS4));
    if (!count) return;
    run = prepare_run4(l, buffers[0]);
    if (one_in(8)) some_fault();
    result = may(l->device, gpusync_commit4(l->queue, buffers, count, &ticket), GPUSYNC_OK, GPUSYNC_ERROR_QUEUE_FULL,
                 l->sticky ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_OK);
    check_admission(l, result, false);
    (void)committed4(l, result, ticket, fours, count, run);
    if (result == GPUSYNC_OK) commit_held_again(fours[0]);
    if (result == GPUSYNC_OK && one_in(4)) drop_four(fours[below_of((unsigned)count)]);
}

static void submit4_some(lane *l)
{
    gpusync_submission submission;
    gpusync_point waits[3], signals[MOST_PENDING];
    four *fours[PARTS4];
    void *buffers[PARTS4], *run;
    uint64_t time = some_time();
    gpusync_ticket ticket = 7;
    gpusync_result result;
    tally *over = NULL;
    work *w;
    size_t i;
    memset(&submission, 0, sizeof submission);
    memset(signals, 0, sizeof signals);
    submission.command_buffers = buffers;
    submission.command_buffer_count = some_fours(l->device, fours, buffers, 1 + below_of(PARTS4));
    submission.waits = waits;
    submission.wait_count = one_in(2) ? some_points(l->device, waits, 3) : 0;
    submission.signals = signals;
    for (i = below_of(4); i-- > 0;) {
        tide *t = some_tide(l->device);
        if (!t) break;
        signals[submission.signal_count].timeline = t->timeline;
        signals[submission.signal_count++].value = t->value + 1 + below_of(4);
    }
    submission.flags = byte() & (one_in(16) ? 14 : 6);
    submission.timeout_ns = &time;
    submission.label = one_in(2) ? "some work" : NULL;
    if (fuzz_tells)
        fprintf(stderr, "  to queue %d of Metal 4: %zu buffers, flags %x\n", index_of(l),
                submission.command_buffer_count, submission.flags);
    tell_points("waits for", waits, submission.wait_count);
    tell_points("signals", signals, submission.signal_count);
    if (submission.flags & 8) {
        may(l->device, gpusync_submit(l->queue, &submission, &ticket), INVALID);
        must(ticket == 0, "a ticket with flags %x", submission.flags);
        return;
    }
    if (submission.command_buffer_count == 0) {
        may(l->device, gpusync_submit(l->queue, &submission, &ticket), GPUSYNC_ERROR_UNSUPPORTED,
            l->sticky ? GPUSYNC_ERROR_EXECUTION : GPUSYNC_ERROR_UNSUPPORTED);
        must(ticket == 0, "a ticket without command buffers");
        return;
    }
    over = one_in(2) ? tally_new() : NULL;
    submission.on_complete = over ? on_tally : NULL;
    submission.user = over;
    run = prepare_run4(l, buffers[0]);
    if (one_in(6)) some_fault();
    result = may(l->device, gpusync_submit(l->queue, &submission, &ticket), ENDS, GPUSYNC_ERROR_QUEUE_FULL, MISFITS,
                 GPUSYNC_ERROR_UNSUPPORTED);
    check_admission(l, result, submission.signal_count > 0);
    note_what_may_stay(l->queue, &submission, result == GPUSYNC_OK);
    w = committed4(l, result, ticket, fours, submission.command_buffer_count, run);
    if (!w) {
        must(!over || over->calls == 0, "a submission that failed is over");
        return;
    }
    meet(submission_of_metal4);
    if (over) {
        over->expected = true;
        over->where = (uint64_t)(uintptr_t)l->queue;
        over->ticket = ticket;
    }
    w->inherits = submission.wait_count > 0;
    memcpy(w->pending, signals, sizeof signals);
    for (i = 0; i < submission.signal_count; i++) {
        int k;
        for (k = 0; k < TIMELINES; k++)
            if (world.tides[k].timeline == signals[i].timeline) world.tides[k].value = signals[i].value;
    }
    commit_held_again(fours[0]);
}

/* -- what is refused, whatever the state of things ------------------------------------------------------ */

#define UNSUPPORTED GPUSYNC_ERROR_UNSUPPORTED

/* Calls of the old kind on a queue of Metal 4. The buffer is of either kind. */
static void ask_metal4_for_more(const lane *l, void *buffer)
{
    const uint64_t none = 0;
    gpusync_command_buffer_desc desc;
    gpusync_wait_options options;
    gpusync_submission submission;
    gpusync_ticket ticket = 7;
    void *made = buffer;
    const tide *t;
    memset(&desc, 0, sizeof desc);
    memset(&options, 0, sizeof options);
    memset(&submission, 0, sizeof submission);
    desc.timeout_ns = &none;
    switch (below_of(8)) {
    case 0:
        may(l->device, gpusync_command_buffer(l->queue, &desc, &made), UNSUPPORTED);
        must(!made, "a command buffer of a queue of Metal 4");
        ticket = 0;
        break;
    case 1:
        may(l->device, gpusync_commit(l->queue, buffer, &ticket), UNSUPPORTED,
            l->sticky ? GPUSYNC_ERROR_EXECUTION : UNSUPPORTED);
        break;
    case 2: may(l->device, gpusync_track(l->queue, buffer, &ticket), UNSUPPORTED); break;
    case 3:
    case 4:
        may(l->device, gpusync_encode_wait(l->queue, buffer, gpusync_at_ticket(l->queue, 0)), UNSUPPORTED);
        may(l->device, gpusync_encode_signal(l->queue, buffer, gpusync_at_ticket(l->queue, 0)), INVALID);
        t = some_tide(l->device);
        if (t) may(l->device, gpusync_encode_signal(l->queue, buffer, gpusync_at_value(t->timeline, 1)), UNSUPPORTED);
        ticket = 0;
        break;
    case 5:
        answer(gpusync_command_buffer_discard(l->queue, buffer), GPUSYNC_ERROR_UNKNOWN_BUFFER);
        ticket = 0;
        break;
    case 6:
        options.blocking = true;
        may(l->device, gpusync_wait_ex(l->queue, some_ticket(l), some_time(), &options), UNSUPPORTED);
        ticket = 0;
        break;
    default:
        may(l->device, gpusync_submit(l->queue, &submission, &ticket), UNSUPPORTED,
            l->sticky ? GPUSYNC_ERROR_EXECUTION : UNSUPPORTED);
        break;
    }
    must(ticket == 0, "a ticket for what is not there");
}

/* A command buffer at a queue of the other kind. */
static void mix_up(const lane *l, void *buffer)
{
    gpusync_submission submission;
    gpusync_ticket ticket = 7;
    memset(&submission, 0, sizeof submission);
    submission.command_buffers = &buffer;
    submission.command_buffer_count = 1;
    if (one_in(2))
        may(l->device, gpusync_commit4(l->queue, &buffer, 1, &ticket), UNSUPPORTED,
            l->sticky ? GPUSYNC_ERROR_EXECUTION : UNSUPPORTED);
    else
        may(l->device, gpusync_submit(l->queue, &submission, &ticket), UNSUPPORTED,
            l->sticky ? GPUSYNC_ERROR_EXECUTION : UNSUPPORTED);
    must(ticket == 0, "a ticket for a buffer of the other kind");
}

/* Arrays that make no sense. */
static void commit4_nonsense(const lane *l, void *buffer)
{
    void *buffers[3] = {buffer, NULL, NULL};
    gpusync_ticket ticket = 7;
    size_t count = 2;
    switch (below_of(5)) {
    case 0: answer(gpusync_commit4(NULL, buffers, 1, &ticket), INVALID); break;
    case 1: answer(gpusync_commit4(l->queue, NULL, 1, &ticket), INVALID); break;
    case 2: answer(gpusync_commit4(l->queue, buffers, 0, &ticket), INVALID); break;
    case 3: count = 3; /* fall through */
    default:
        buffers[1] = one_in(2) ? buffer : NULL;
        if (one_in(4)) buffers[0] = NULL;
        may(l->device, gpusync_commit4(l->queue, buffers, count, &ticket), l->metal4 ? INVALID : UNSUPPORTED,
            l->sticky ? GPUSYNC_ERROR_EXECUTION : INVALID);
        break;
    }
    must(ticket == 0, "a ticket for nonsense");
}

static void refuse4(void)
{
    lane *l = some_lane();
    const four *f = &world.fours[below_of(FOURS)];
    const opened *o = some_open(-1);
    void *buffer = f->buffer && !one_in(3) ? f->buffer : o ? o->buffer : NULL;
    if (!l || !buffer) return;
    if (one_in(3)) {
        if (f->buffer) commit4_nonsense(l, f->buffer);
    } else if (l->metal4 && one_in(2)) {
        ask_metal4_for_more(l, buffer);
    } else if (is_metal4_buffer(buffer) != l->metal4) {
        mix_up(l, buffer);
    }
}

#endif
