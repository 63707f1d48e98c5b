"""mutants.py - faults in the order of memory, or of steps: header.py plants one, and a harness must see it

Each name has texts of gpusync.h, and what stands there instead. A text has to be in the header once, or as often as
the third value says. model.sh says which property has to be red with it. Comments name rows of the table "EACH
SIDE WRITES, THEN READS WHAT THE OTHER WROTE" in gpusync.h, or what the queue's lock leaves open: what is read without it, and
which threads touch what is about to go.
"""


MUTANTS = {
    # -- all at once: acquire and release, and no sequential consistency
    "weak-everywhere": [
        ("#define GPUSYNC__LOAD_SEQ(p) __atomic_load_n(p, __ATOMIC_SEQ_CST)",
         "#define GPUSYNC__LOAD_SEQ(p) __atomic_load_n(p, __ATOMIC_ACQUIRE)"),
        ("#define GPUSYNC__STORE_SEQ(p, value) __atomic_store_n(p, value, __ATOMIC_SEQ_CST)",
         "#define GPUSYNC__STORE_SEQ(p, value) __atomic_store_n(p, value, __ATOMIC_RELEASE)"),
        ("__atomic_fetch_add(p, n, __ATOMIC_SEQ_CST)", "__atomic_fetch_add(p, n, __ATOMIC_ACQ_REL)"),
        ("__atomic_fetch_sub(p, n, __ATOMIC_SEQ_CST)", "__atomic_fetch_sub(p, n, __ATOMIC_ACQ_REL)"),
        ("(p, expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)",
         "(p, expected, value, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)"),
        ("__atomic_fetch_or(p, flag, __ATOMIC_SEQ_CST)", "__atomic_fetch_or(p, flag, __ATOMIC_ACQ_REL)"),
    ],
    # -- a ticket ends
    "looked-before-the-lock": [
        ("        gpusync__lock(&waits->lock);\n        bool linked = entry->node.linked;\n"
         "        uint64_t number = linked ? 0 : gpusync__blocker(goal);\n",
         "        bool linked = entry->node.linked;\n        uint64_t number = linked ? 0 : gpusync__blocker(goal);\n"
         "        gpusync__lock(&waits->lock);\n"),
    ],
    "advance-by-one": [
        ("    while (gpusync__entry_in(ring, ticket + 1)->done - ((ticket + 1) << 2) <= GPUSYNC__BADLY)\n"
         "        ticket++;", ""),
    ],
    "callback-not-looked-at": [
        ("    bool ended = gpusync__met(&callback->goal);", "    bool ended = callback->goal.timeline && gpusync__met(&callback->goal);"),
    ],
    # -- room comes, a handler begins
    "room-is-not-passed-on": [
        ("        if (room && result != GPUSYNC_OK)\n"
         "            gpusync__give_room(q, 0, NULL); /* this thread may have been told of it */\n", ""),
    ],
    "sleeper-not-told-of-the-handler": [
        ("    gpusync__take_at(q, slot->ticket, caught, NULL); /* not what", "    /* not what"),
    ],
    "handler-of-an-ended-ticket-not-blocked-for": [
        ("    if (open || !goal->handlers)\n        return open;\n", "    return open;\n"),
    ],
    "handler-begins-relaxed": [
        ("    if (!GPUSYNC__SWAP_SEQ(&slot->state, &armed, (uint8_t)GPUSYNC__RUNNING)) {",
         "    if (!__atomic_compare_exchange_n(&slot->state, &armed, (uint8_t)GPUSYNC__RUNNING, false, "
         "__ATOMIC_RELAXED, __ATOMIC_RELAXED)) {"),
    ],
    "entries-counted-relaxed": [
        ("    return entry->list != GPUSYNC__TOLD && GPUSYNC__SUB_SEQ(&entry->waiter->entries, 1) == 1;",
         "    return entry->list != GPUSYNC__TOLD && "
         "__atomic_fetch_sub(&entry->waiter->entries, 1, __ATOMIC_RELAXED) == 1;"),
    ],
    "waiter-read-after-the-count": [
        ("gpusync__unlink_entry(entry) || any || ", "gpusync__unlink_entry(entry) || w->any || "),
    ],
    "taken-off-and-not-told": [
        ("    gpusync__tell(q, 0, &caught, NULL); /* waits for room alone", "    /* waits for room alone"),
    ],
    "room-given-back-twice": [
        ("    if (slot->traits & GPUSYNC__HAS_ROOM)\n        gpusync__give_rooms(q, 1, caught);\n",
         "    gpusync__give_rooms(q, 1, caught);\n"),
    ],
    # -- read without the queue's lock
    "completed-stored-relaxed": [
        ("    GPUSYNC__STORE_SEQ(&q->head.completed, ticket);", "    GPUSYNC__STORE_RELAXED(&q->head.completed, ticket);"),
    ],
    "done-stored-relaxed": [
        ("    GPUSYNC__STORE_SEQ(&entry->done, ticket << 2 | how);",
         "    GPUSYNC__STORE_RELAXED(&entry->done, ticket << 2 | how);"),
    ],
    "ring-stored-relaxed": [
        ("        GPUSYNC__STORE_SEQ(&q->ring, ring);", "        GPUSYNC__STORE_RELAXED(&q->ring, ring);"),
    ],
    "completed-not-looked-at": [
        ("    if (ticket <= gpusync__ended_to(q))\n"
         "        return true;\n"
         "    if (gpusync__last_end(", "    if (gpusync__last_end("),
        ("    return ticket <= gpusync__ended_to(q); /* its entry may", "    return false; /* its entry may"),
    ],
    "completed-looked-at-once": [
        ("    return ticket <= gpusync__ended_to(q); /* its entry may", "    return false; /* its entry may"),
    ],
    "looked-at-without-a-reference": [
        ("    view->buffer = gpusync__retain(slot->buffer);\n", "    view->buffer = slot->buffer;\n"),
        ("    else\n        gpusync__release(view->buffer);\n    return ended;\n", "    return ended;\n"),
        ("    gpusync__do_deferred(q->device, &deferred);\n    gpusync__release_pooled(view->buffer);\n",
         "    gpusync__do_deferred(q->device, &deferred);\n"),
    ],
    "retained-after-the-unlock": [
        ("    view->buffer = gpusync__retain(slot->buffer);\n", "    view->buffer = slot->buffer;\n"),
        ("    GPUSYNC__UNLOCK(q);\n    return true;\n",
         "    GPUSYNC__UNLOCK(q);\n    if (view->buffer) gpusync__retain(view->buffer);\n    return true;\n"),
    ],
    "look-ends-another-ticket": [
        ("    if (view && (*view->at != slot || slot->ticket != view->ticket))\n",
         "    if (view && *view->at != slot)\n"),
    ],
    # -- a buffer is given up: ARMED to RUNNING, or to ORPHANED
    "begun-without-a-swap": [
        ("    if (!GPUSYNC__SWAP_SEQ(&slot->state, &armed, (uint8_t)GPUSYNC__RUNNING)) {",
         "    bool begins = gpusync__state_of(slot) == armed;\n"
         "    if (begins) GPUSYNC__STORE_SEQ(&slot->state, (uint8_t)GPUSYNC__RUNNING);\n    if (!begins) {"),
    ],
    "given-up-without-a-swap": [
        ("    bool orphan = GPUSYNC__SWAP_SEQ(&slot->state, &armed, (uint8_t)GPUSYNC__ORPHANED);",
         "    bool orphan = gpusync__state_of(slot) == armed;\n"
         "    if (orphan) GPUSYNC__STORE_SEQ(&slot->state, (uint8_t)GPUSYNC__ORPHANED);"),
    ],
    "queue-touched-before-the-swap": [
        ("    if (!GPUSYNC__SWAP_SEQ(&slot->state, &armed, (uint8_t)GPUSYNC__RUNNING)) {",
         "    if (gpusync__state_of(slot) == GPUSYNC__ARMED) (void)GPUSYNC__LOAD_SEQ(&slot->queue->flags);\n"
         "    if (!GPUSYNC__SWAP_SEQ(&slot->state, &armed, (uint8_t)GPUSYNC__RUNNING)) {"),
    ],
    "orphan-not-taken-out": [
        ("        gpusync__handler_begun(q, slot, caught);\n        gpusync__flight_remove(slot);\n",
         "        gpusync__handler_begun(q, slot, caught);\n"),
    ],
    "orphan-given-up-without-the-global-lock": [
        ("    uint8_t armed = GPUSYNC__ARMED;\n    GPUSYNC__LOCK_GLOBAL();\n    bool orphan", "    uint8_t armed = GPUSYNC__ARMED;\n    bool orphan"),
        ("            slot->buffer = NULL;\n        }\n    }\n    GPUSYNC__UNLOCK_GLOBAL();\n    return orphan;",
         "            slot->buffer = NULL;\n        }\n    }\n    return orphan;"),
    ],
    "tracked-not-looked-at": [
        ("    if (kind == GPUSYNC__TRACKED || GPUSYNC__LOAD_SEQ(&q->tracked) || GPUSYNC__LOAD_SEQ(&q->lined))",
         "    if (kind == GPUSYNC__TRACKED || GPUSYNC__LOAD_SEQ(&q->lined))"),
    ],
    # -- held work may go
    "issuing-not-cleared": [
        ("    q->issuing = s != NULL;\n", "    q->issuing = true;\n"),
    ],
    "issuing-cleared-late": [
        ("    q->issuing = s != NULL;\n", ""),
        ("        gpusync__issue(s);\n    }\n    gpusync__unlock(&q->order);\n",
         "        gpusync__issue(s);\n    }\n    GPUSYNC__LOCK_GRAPH(q->device);\n    q->issuing = false;\n"
         "    GPUSYNC__UNLOCK_GRAPH(q->device);\n    gpusync__unlock(&q->order);\n"),
    ],
    "issuing-not-looked-at": [
        ("    if (q->issuing || !gpusync__enter(q))\n", "    if (!gpusync__enter(q))\n"),
    ],
    "issue-not-dispatched": [
        ("        gpusync__dispatch_async(q->device->issue_queue, q, gpusync__issue_later);\n",
         "        gpusync__leave(q);\n"),
    ],
    "issued-without-the-order-lock": [
        ("        gpusync__issue(s);\n    }\n    gpusync__unlock(&q->order);\n",
         "        gpusync__unlock(&q->order);\n        gpusync__issue(s);\n"
         "        gpusync__lock(&q->order);\n    }\n    gpusync__unlock(&q->order);\n"),
    ],
    "let-go-without-a-look": [
        ("    if (gpusync__line_first(s->work.queue))\n"
         "        gpusync__want_issue(s->work.queue, deferred);\n"
         "}\n\n/* -- the end of a link", "}\n\n/* -- the end of a link"),
    ],
    "announced-without-a-reference": [
        ("        gpusync__submission_keep(s); /* gpusync__announce drops it", "        /* gpusync__announce drops it"),
        ("    gpusync__count_down(s, NULL, NULL, deferred);\n    gpusync__submission_unref(s);\n",
         "    gpusync__count_down(s, NULL, NULL, deferred);\n"),
    ],
    "links-kept-before-the-last-reference": [
        ("    if (q->metal4 && gpusync__is_issued(s))\n        gpusync__keep_links(q, s);\n", ""),
        ("    gpusync__submission_unref(s); /* last: with its last submission the queue may go */\n",
         "    if (q->metal4 && gpusync__is_issued(s)) gpusync__keep_links(q, s);\n    gpusync__submission_unref(s);\n"),
    ],
    "listens-without-a-reference": [
        ("    gpusync__submission_keep(s); /* the caller's, for gpusync__listen_for */\n", ""),
        ("        gpusync__listen_for(s);\n        gpusync__submission_unref(s);\n", "        gpusync__listen_for(s);\n"),
    ],
    "failed-in-two-holds": [
        ("    t->failed = true;\n    GPUSYNC__STORE_SEQ(&t->value, GPUSYNC__FAILED_VALUE);",
         "    gpusync__end_waits(t, GPUSYNC__FAILED_VALUE, &t->error, deferred);\n"
         "    GPUSYNC__UNLOCK_GRAPH(t->device);\n    GPUSYNC__LOCK_GRAPH(t->device);\n"
         "    t->failed = true;\n    GPUSYNC__STORE_SEQ(&t->value, GPUSYNC__FAILED_VALUE);"),
        ("    gpusync__end_waits(t, GPUSYNC__FAILED_VALUE, &t->error, deferred);\n    gpusync__try_again(t, deferred);\n",
         "    gpusync__try_again(t, deferred);\n"),
    ],
    "raised-in-two-holds": [
        ("    t->reached = value;\n    GPUSYNC__STORE_SEQ(&t->value, value);\n    gpusync__end_waits(t, value, NULL, deferred);\n",
         "    gpusync__end_waits(t, value, NULL, deferred);\n    GPUSYNC__UNLOCK_GRAPH(t->device);\n"
         "    GPUSYNC__LOCK_GRAPH(t->device);\n    t->reached = value;\n    GPUSYNC__STORE_SEQ(&t->value, value);\n"),
    ],
    "failure-after-the-signal": [
        ("        if (error)\n            gpusync__fail_timeline(link->timeline, error, deferred);\n"
         "        gpusync__end_signal(link, made, deferred);\n",
         "        gpusync__end_signal(link, made, deferred);\n        GPUSYNC__UNLOCK_GRAPH(s->device);\n"
         "        GPUSYNC__LOCK_GRAPH(s->device);\n"
         "        if (error)\n            gpusync__fail_timeline(link->timeline, error, deferred);\n"),
    ],
    "counted-without-the-graph": [
        ("    GPUSYNC__LOCK_GRAPH(s->device);\n    if (error)\n        gpusync__fail(s, true, error);\n    if (outcome &&",
         "    if (error)\n        gpusync__fail(s, true, error);\n    if (outcome &&"),
        ("            gpusync__show_signals(s, deferred);\n    }\n    GPUSYNC__UNLOCK_GRAPH(s->device);\n}",
         "            gpusync__show_signals(s, deferred);\n    }\n}"),
    ],
    "broken-wait-not-looked-at": [
        ("    if (!s->failed)\n        gpusync__take_broken(s);\n", ""),
    ],
    "open-counted-without-the-order-lock": [
        ("    gpusync__lock(&q->order);\n    uint32_t idle = GPUSYNC__LOAD_SEQ(&q->held_buffers);\n",
         "    uint32_t idle = GPUSYNC__LOAD_SEQ(&q->held_buffers);\n"),
        ("        idle++;\n    gpusync__unlock(&q->order);\n", "        idle++;\n"),
    ],
    # -- a ticket ends, and a submission waits for it
    "ticket-looked-at-before-the-lock": [
        ("        GPUSYNC__LOCK(q);\n        gone = GPUSYNC__LOAD_SEQ(&q->flags) & GPUSYNC__CLOSING;\n"
         "        if (!gone && !gpusync__has_ended(q, link->node.number))\n",
         "        bool ended = gpusync__has_ended(q, link->node.number);\n        GPUSYNC__LOCK(q);\n"
         "        gone = GPUSYNC__LOAD_SEQ(&q->flags) & GPUSYNC__CLOSING;\n        if (!gone && !ended)\n"),
    ],
    "forgotten-though-told": [
        ("    link->listed = !taken;\n    return taken;\n", "    link->listed = false;\n    return true;\n"),
    ],
    "told-without-the-graph": [
        ("    gpusync_device *dev = link->submission->device;\n    GPUSYNC__LOCK_GRAPH(dev);\n"
         "    for (gpusync__link *next; link; link = next) {\n        next = link->also;\n"
         "        gpusync__link_over(link, error, deferred);\n    }\n    GPUSYNC__UNLOCK_GRAPH(dev);\n",
         "    for (gpusync__link *next; link; link = next) {\n        next = link->also;\n"
         "        gpusync__link_over(link, error, deferred);\n    }\n"),
    ],
    # -- a device is lost, a failure sticks
    "wanted-before-the-flag": [
        ("        gpusync__set_flag(&q->flags, GPUSYNC__LOST);\n        if (gpusync__upper_of(q))\n"
         "            gpusync__upper_of(q)->want(q, deferred); /* after the flag: gpusync__hold */\n",
         "        if (gpusync__upper_of(q))\n            gpusync__upper_of(q)->want(q, deferred);\n"
         "        gpusync__set_flag(&q->flags, GPUSYNC__LOST);\n"),
    ],
    "given-up-though-it-has-ended": [
        ("    bool first = gpusync__end_slot(view->slot, view);\n    if (first && view->kind",
         "    gpusync__end_slot(view->slot, view);\n    bool first = true;\n    if (first && view->kind"),
    ],
    "given-up-and-ends-all-the-same": [
        ("    bool first = gpusync__end_slot(view->slot, view);\n    if (first && view->kind",
         "    bool first = *view->at == view->slot && !(view->slot->traits & GPUSYNC__ENDED);\n    if (first && view->kind"),
    ],
    "given-up-callback-not-looked-at": [
        ("    bool ended = gpusync__met(&callback->goal);",
         "    bool ended = gpusync__met(&callback->goal) && "
         "!(callback->goal.queue && gpusync__ended_as(callback->goal.queue, number, GPUSYNC__LEFT));"),
    ],
    "completed-passes-what-was-left": [
        ("    if (outcome->left || ticket != q->head.completed + 1)\n", "    if (ticket != q->head.completed + 1)\n"),
    ],
    "timelines-fail-at-once": [
        ("    gpusync__start_sweep(dev, GPUSYNC__LOSS_NS, GPUSYNC__SWEEP_MOST_NS); /* a sleeper",
         "    for (gpusync_timeline *t = NULL; (t = gpusync__next_timeline(dev, t)) != NULL;) t->calls->lose(t);\n"
         "    gpusync__start_sweep(dev, GPUSYNC__LOSS_NS, GPUSYNC__SWEEP_MOST_NS); /* a sleeper"),
    ],
    "given-up-callback-not-told": [
        ("    if (first)\n        gpusync__end_ticket(q, view->ticket, &outcome, &caught, deferred);\n",
         "    if (first)\n        gpusync__write_end(q, view->ticket, &outcome);\n"),
    ],
    "woken-before-given-up": [
        ("    gpusync__set_flag(&q->flags, GPUSYNC__GIVEN_UP);\n"
         "    gpusync__wake_stopped(q->device, &q->waits); /* waits for handlers */\n",
         "    gpusync__wake_stopped(q->device, &q->waits);\n    gpusync__set_flag(&q->flags, GPUSYNC__GIVEN_UP);\n"),
    ],
    "given-up-sleeper-not-stopped": [
        ("        bool link = number && !gpusync__stopped(goal);\n",
         "        bool link = number;\n"),
    ],
    "given-up-submission-ends-all-the-same": [
        ("        s->left = true;\n", ""),
    ],
    "loss-not-looked-at": [
        ("    if (GPUSYNC__LOAD_SEQ(&q->flags) & (GPUSYNC__LOST | GPUSYNC__STUCK))\n        gpusync__want_issue(",
         "    if (GPUSYNC__LOAD_SEQ(&q->flags) & GPUSYNC__STUCK)\n        gpusync__want_issue("),
    ],
    "stuck-not-looked-at": [
        ("    if (GPUSYNC__LOAD_SEQ(&q->flags) & (GPUSYNC__LOST | GPUSYNC__STUCK))\n        gpusync__want_issue(",
         "    if (GPUSYNC__LOAD_SEQ(&q->flags) & GPUSYNC__LOST)\n        gpusync__want_issue("),
    ],
    # -- a timeline: what is stored under the graph's lock, and told under the timeline's
    "value-stored-after-telling": [
        ("    GPUSYNC__STORE_SEQ(&t->value, value);\n    gpusync__end_waits(", "    gpusync__end_waits("),
        ("    uint64_t value = gpusync__value_of(t);\n    const gpusync_error *error =",
         "    GPUSYNC__LOCK_GRAPH(t->device);\n"
         "    uint64_t value = t->failed ? GPUSYNC__FAILED_VALUE : t->reached;\n"
         "    GPUSYNC__UNLOCK_GRAPH(t->device);\n    const gpusync_error *error ="),
        ("    gpusync__tell_waits(t, value, error, deferred);\n",
         "    gpusync__tell_waits(t, value, error, deferred);\n    GPUSYNC__STORE_SEQ(&t->value, value);\n"),
    ],
    "told-only-where-written": [
        ("    gpusync__tell_waits(t, value, error, deferred);\n",
         "    if (writes)\n        gpusync__tell_waits(t, value, error, deferred);\n"),
    ],
    "raised-without-showing": [
        ("    gpusync__show(t, &deferred);\n    if (result == GPUSYNC_OK && t->device->trace)",
         "    GPUSYNC__UNLOCK_GRAPH(t->device);\n    if (result == GPUSYNC_OK && t->device->trace)"),
    ],
    "value-before-the-error": [
        ("    t->error = *reason;\n",
         "    GPUSYNC__STORE_SEQ(&t->value, GPUSYNC__FAILED_VALUE);\n    t->error = *reason;\n"),
    ],
    "end-told-before-what-was-reached": [
        ("    gpusync__show(t, &deferred); /* what another thread has reached counts before the end */\n",
         "    GPUSYNC__UNLOCK_GRAPH(dev);\n"),
    ],
    "timeline-left-relaxed": [
        ("    GPUSYNC__SUB_SEQ(&t->inside, 1);", "    __atomic_fetch_sub(&t->inside, 1, __ATOMIC_RELAXED);"),
    ],
    # -- a timeline's listener
    "listener-made-twice": [
        ("    if (!dev->listener)\n        GPUSYNC__STORE_SEQ(", "    GPUSYNC__STORE_SEQ("),
    ],
    "block-taken-off-late": [
        ("    gpusync__listening_replace(own, NULL);\n    gpusync_timeline *t = own", "    gpusync_timeline *t = own"),
    ],
    "block-of-the-stack-listed": [
        ("    block.next = &place;\n    GPUSYNC__LOCK_GLOBAL();\n    place.next = t->listening->out;\n",
         "    GPUSYNC__LOCK_GLOBAL();\n    place.next = block.next = t->listening->out;\n"),
        ("        t->listening->out = &place;\n", "        t->listening->out = &block;\n"),
        ("    gpusync__listening_replace(copy->next, copy);\n",
         "    gpusync__listening_replace((const gpusync__listener_block *)from, copy);\n"),
        ("    gpusync__listening_replace(&place, NULL);", "    gpusync__listening_replace(&block, NULL);"),
    ],
    "timeline-left-to-the-listener": [
        ("    if (t->listening)\n        t->listening->timeline = NULL;\n", ""),
    ],
    "listener-inside-after-the-lock": [
        ("    if (t)\n        GPUSYNC__ADD_SEQ(&t->inside, 1);\n    GPUSYNC__UNLOCK_GLOBAL();\n",
         "    GPUSYNC__UNLOCK_GLOBAL();\n    if (t)\n        GPUSYNC__ADD_SEQ(&t->inside, 1);\n"),
    ],
    "listening-let-go-relaxed": [
        ("    if (GPUSYNC__SUB_SEQ(&listening->refs, 1) == 1)\n",
         "    if (__atomic_fetch_sub(&listening->refs, 1, __ATOMIC_RELAXED) == 1)\n"),
    ],
    # -- an object goes
    "inside-counted-relaxed": [
        ("    GPUSYNC__ADD_SEQ(inside, 1);\n    stop &= GPUSYNC__LOAD_SEQ(flags);",
         "    __atomic_fetch_add(inside, 1, __ATOMIC_RELAXED);\n    stop &= __atomic_load_n(flags, "
         "__ATOMIC_RELAXED);"),
    ],
    "closing-read-first": [
        ("    GPUSYNC__ADD_SEQ(inside, 1);\n    stop &= GPUSYNC__LOAD_SEQ(flags);",
         "    stop &= GPUSYNC__LOAD_SEQ(flags);\n    GPUSYNC__ADD_SEQ(inside, 1);"),
    ],
    "left-relaxed": [
        ("static void gpusync__leave(gpusync_queue *q)\n"
         "{\n"
         "    GPUSYNC__SUB_SEQ(&q->inside, 1);\n"
         "}",
         "static void gpusync__leave(gpusync_queue *q) { __atomic_fetch_sub(&q->inside, 1, __ATOMIC_RELAXED); }"),
    ],
    "running-handler-not-waited-for": [
        ("            runs = runs || gpusync__state_of(slot) != GPUSYNC__OPEN;", "            runs = false;"),
        ("        if (!runs && !GPUSYNC__LOAD_SEQ(&q->leaving))\n", "        if (!runs)\n"),
    ],
    "leaving-not-waited-for": [
        ("        if (!runs && !GPUSYNC__LOAD_SEQ(&q->leaving))\n", "        if (!runs)\n"),
    ],
    "leaving-counted-after-the-lock": [
        ("    GPUSYNC__ADD_SEQ(&q->leaving, 1);\n    void *buffer = slot->buffer;\n", "    void *buffer = slot->buffer;\n"),
        ("    gpusync__slot_free(&q->free_slots, slot);\n    GPUSYNC__UNLOCK(q);\n    gpusync__tell(q, ticket, &caught, deferred);\n",
         "    gpusync__slot_free(&q->free_slots, slot);\n    GPUSYNC__UNLOCK(q);\n    GPUSYNC__ADD_SEQ(&q->leaving, 1);\n"
         "    gpusync__tell(q, ticket, &caught, deferred);\n"),
    ],
    "leaving-let-go-relaxed": [
        ("    GPUSYNC__SUB_SEQ(&q->leaving, 1);", "    __atomic_fetch_sub(&q->leaving, 1, __ATOMIC_RELAXED);"),
    ],
    "leaving-let-go-first": [
        ("    gpusync__tell(q, ticket, &caught, deferred);\n    gpusync__do_deferred(q->device, deferred);\n"
         "    gpusync__release_pooled(buffer);\n    if (events)\n        gpusync__release_pooled(events);\n"
         "    GPUSYNC__SUB_SEQ(&q->leaving, 1);",
         "    GPUSYNC__SUB_SEQ(&q->leaving, 1);\n    gpusync__tell(q, ticket, &caught, deferred);\n"
         "    gpusync__do_deferred(q->device, deferred);\n    gpusync__release_pooled(buffer);\n"
         "    if (events) gpusync__release_pooled(events);"),
    ],
    "slots-lost": [
        ("    gpusync__return_slots(q->free_slots);\n", ""),
    ],
    "woken-before-the-flag": [
        ("    if (gpusync__set_flag(&q->flags, GPUSYNC__CLOSING) & GPUSYNC__CLOSING)\n        return false;\n"
         "    q->drains = drain;\n    gpusync__wake_stopped(q->device, &q->waits);\n",
         "    gpusync__wake_stopped(q->device, &q->waits);\n"
         "    if (gpusync__set_flag(&q->flags, GPUSYNC__CLOSING) & GPUSYNC__CLOSING)\n        return false;\n"
         "    q->drains = drain;\n"),
    ],
    "sleepers-not-woken": [
        ("    gpusync__wake_stopped(q->device, &q->waits);\n    return true;\n", "    return true;\n"),
    ],
    "sleepers-of-values-not-woken": [
        ("    gpusync__wake_stopped(t->device, &t->waits);\n    GPUSYNC__LOCK_GLOBAL();\n", "    GPUSYNC__LOCK_GLOBAL();\n"),
    ],
    # -- a device goes
    "device-entered-without-a-swap": [
        ("    while (inside && !GPUSYNC__SWAP_SEQ(&dev->inside, &inside, inside + 1)) {}\n",
         "    if (inside) GPUSYNC__ADD_SEQ(&dev->inside, 1);\n"),
    ],
    "device-closed-without-a-swap": [
        ("    while (!gpusync__swap32(&dev->inside, 1, 0))\n        gpusync__linger(dev, going, &rounds);\n",
         "    while (GPUSYNC__LOAD_SEQ(&dev->inside) != 1) gpusync__linger(dev, going, &rounds);\n"
         "    GPUSYNC__STORE_SEQ(&dev->inside, 0);\n"),
    ],
    "device-closed-though-one-is-inside": [
        ("    while (!gpusync__swap32(&dev->inside, 1, 0))\n        gpusync__linger(dev, going, &rounds);\n",
         "    (void)rounds;\n    GPUSYNC__SUB_SEQ(&dev->inside, 1);\n"),
    ],
    "device-left-relaxed": [
        ("static void gpusync__device_leave(gpusync_device *dev)\n{\n    GPUSYNC__SUB_SEQ(&dev->inside, 1);\n",
         "static void gpusync__device_leave(gpusync_device *dev)\n{\n"
         "    __atomic_fetch_sub(&dev->inside, 1, __ATOMIC_RELAXED);\n"),
    ],
    "device-freed-with-functions-on-their-way": [
        ("    gpusync__waiter_end(&dev->lingers);\n    gpusync__device_unref(dev);\n",
         "    gpusync__waiter_end(&dev->lingers);\n    gpusync__default_release(NULL, dev, sizeof *dev);\n"),
    ],
    "device-let-go-relaxed": [
        ("    if (GPUSYNC__SUB_SEQ(&dev->refs, 1) == 1)\n",
         "    if (__atomic_fetch_sub(&dev->refs, 1, __ATOMIC_RELAXED) == 1)\n"),
    ],
    "device-let-go-in-two-steps": [
        ("    if (GPUSYNC__SUB_SEQ(&dev->refs, 1) == 1)\n        gpusync__default_release",
         "    bool last = GPUSYNC__LOAD_SEQ(&dev->refs) == 1;\n    GPUSYNC__SUB_SEQ(&dev->refs, 1);\n    if (last)\n        gpusync__default_release"),
    ],
    # -- a sweep begins
    "timer-taken-back-late": [
        ("    GPUSYNC__STORE_SEQ(&dev->sweep_ns, 0);\n    bool last = ", "    bool last = "),
        ("        if (look || (reason && last))\n", "        GPUSYNC__STORE_SEQ(&dev->sweep_ns, 0);\n        if (look || (reason && last))\n"),
    ],
    "refused-after-the-timer": [
        ("    GPUSYNC__LOCK(q);\n    q->refused = true;\n    GPUSYNC__UNLOCK(q);\n"
         "    gpusync__arm_sweep(q->device);\n",
         "    gpusync__arm_sweep(q->device);\n    GPUSYNC__LOCK(q);\n    q->refused = true;\n"
         "    GPUSYNC__UNLOCK(q);\n"),
    ],
    # -- callbacks are due
    "asked-cleared-after-the-look": [
        ("    GPUSYNC__STORE_SEQ(&dev->asked, 0);\n    if (gpusync__device_enter(dev)) {\n        gpusync__run_due(dev, SIZE_MAX);\n",
         "    if (gpusync__device_enter(dev)) {\n        gpusync__run_due(dev, SIZE_MAX);\n        GPUSYNC__STORE_SEQ(&dev->asked, 0);\n"),
    ],
    "due-not-asked-for": [
        ("    gpusync__unlock(&dev->submission_lock);\n    deferred->calls = true;\n}",
         "    deferred->calls = dev->due == due && !dev->calling;\n"
         "    gpusync__unlock(&dev->submission_lock);\n    if (dev->asked) deferred->calls = false;\n}"),
    ],
    "two-callbacks-at-once": [
        ("    if (dev->calling) {\n        dev->turned_away = true;\n        due = NULL;\n    }\n", ""),
        ("        *(due->previous ? &due->previous->next : &dev->due) = due->next;\n", "        if (dev->due_count == 9) dev->due = NULL;\n"),
    ],
    # -- the two loads of gpusync_is_idle, the fence behind a status
    "committed-read-first": [
        ("    completed = __atomic_load_n(&head->completed, __ATOMIC_ACQUIRE);\n"
         "    return completed == __atomic_load_n(&head->committed, __ATOMIC_RELAXED);",
         "    completed = __atomic_load_n(&head->committed, __ATOMIC_ACQUIRE);\n"
         "    return completed == __atomic_load_n(&head->completed, __ATOMIC_ACQUIRE);"),
    ],
    "idle-read-relaxed": [
        ("    completed = __atomic_load_n(&head->completed, __ATOMIC_ACQUIRE);\n    return completed ==",
         "    completed = __atomic_load_n(&head->completed, __ATOMIC_RELAXED);\n    return completed =="),
    ],
    "no-fence-behind-a-status": [
        ("    if (status >= GPUSYNC__STATUS_COMPLETED)\n"
         "        __atomic_thread_fence(__ATOMIC_ACQUIRE);\n", ""),
    ],
    # -- a failure comes before the end
    "recorded-after-the-end": [
        ("    if (outcome->error)\n"
         "        gpusync__record(q, outcome->error, false);\n"
         "    gpusync__end_ticket(q, slot->ticket, outcome, caught, deferred);\n",
         "    gpusync__end_ticket(q, slot->ticket, outcome, caught, deferred);\n"
         "    if (outcome->error) gpusync__record(q, outcome->error, false);\n"),
    ],
    "failed-flag-left-out": [
        ("    gpusync__set_flag(&q->flags, GPUSYNC__FAILED);\n    if (!given_up)", "    if (!given_up)"),
    ],
    "covered-not-looked-at": [
        ("    return ticket > last && (ticket != GPUSYNC_EVERYTHING || last <= GPUSYNC__LOAD_SEQ(&q->covered));",
         "    return ticket > last;"),
    ],
    "last-failed-stored-late": [
        ("    if (error->ticket > q->last_failed)\n        GPUSYNC__STORE_SEQ(&q->last_failed, error->ticket);\n", ""),
        ("    if (outcome->error)\n"
         "        gpusync__record(q, outcome->error, false);\n"
         "    gpusync__end_ticket(q, slot->ticket, outcome, caught, deferred);\n",
         "    if (outcome->error)\n"
         "        gpusync__record(q, outcome->error, false);\n"
         "    gpusync__end_ticket(q, slot->ticket, outcome, caught, deferred);\n"
         "    if (outcome->error && slot->ticket > q->last_failed) GPUSYNC__STORE_SEQ(&q->last_failed, slot->ticket);\n"),
    ],
    "log-made-twice": [
        ("    if (q->log == &q->last_failure) {\n", "    {\n"),
    ],
    # -- a warm-up
    "pipeline-begun-twice": [
        ("    if (gpusync__swap32(&c->started, 0, 1)) {\n",
         "    bool begins = !GPUSYNC__LOAD_SEQ(&c->started);\n"
         "    (void)__atomic_exchange_n(&c->started, 1, __ATOMIC_SEQ_CST);\n    if (begins) {\n"),
    ],
    "library-without-its-mutex": [
        ("    gpusync__lock(&l->mutex);\n", ""),
        ("    gpusync__unlock(&l->mutex);\n", ""),
    ],
    "counted-before-it-is-done": [
        ("        GPUSYNC__STORE_SEQ(&c->done, 1);\n        gpusync__count_done(w);\n",
         "        gpusync__count_done(w);\n        GPUSYNC__STORE_SEQ(&c->done, 1);\n"),
    ],
    "value-read-after-the-look": [
        ("        size_t done = GPUSYNC__LOAD_SEQ(&w->done);\n"
         "        if (c ? GPUSYNC__LOAD_SEQ(&c->done) != 0 : done >= w->total)\n            return GPUSYNC_OK;\n",
         "        if (c && GPUSYNC__LOAD_SEQ(&c->done)) return GPUSYNC_OK;\n"
         "        size_t done = GPUSYNC__LOAD_SEQ(&w->done);\n        if (!c && done >= w->total) return GPUSYNC_OK;\n"),
    ],
    "warm-up-inside-not-looked-at": [
        ("    while (GPUSYNC__LOAD_SEQ(&w->inside))\n"
         "        gpusync__linger(w->device, NULL, &rounds);", ""),
    ],
    "warm-up-does-not-fail": [
        ("    (void)gpusync_timeline_fail(w->progress, &gone);\n", ""),
    ],
    "task-leaves-before-it-counts": [
        ("        GPUSYNC__STORE_SEQ(&c->done, 1);\n        gpusync__count_done(w);\n    }\n"
         "    GPUSYNC__SUB_SEQ(&w->inside, 1);\n",
         "        GPUSYNC__SUB_SEQ(&w->inside, 1);\n        GPUSYNC__STORE_SEQ(&c->done, 1);\n"
         "        gpusync__count_done(w);\n    } else {\n        GPUSYNC__SUB_SEQ(&w->inside, 1);\n    }\n"),
    ],
}
