"""mutants.py - faults in the order of memory, or of steps: header.py plants one, and a harness must see it

Each name has texts of gpusync.h, and what stands there instead. A text has to be in the header once, or as often as
the third value says. model.sh says which property has to be red with it. Comments name rows of the table "WHO WRITES,
THEN READS WHAT THE OTHER WROTE" in gpusync.h, or what the queue's lock leaves open: what is read without it, and
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
    ],
    # -- a ticket ends
    "looked-before-the-lock": [
        ("        gpusync__lock(&waits->lock);\n        bool is_over = gpusync__over(goal);\n",
         "        bool is_over = gpusync__over(goal);\n        gpusync__lock(&waits->lock);\n"),
    ],
    "advance-by-one": [
        ("    while (gpusync__entry_in(ring, ticket + 1)->done >> 1 == ticket + 1)\n"
         "        ticket++;", ""),
    ],
    "callback-not-looked-at": [
        ("    bool ended = callback->queue ? gpusync__has_ended(callback->queue, number) : callback->timeline->value >= number;",
         "    bool ended = !callback->queue && callback->timeline->value >= number;"),
    ],
    # -- room comes, a handler begins
    "room-is-not-passed-on": [
        ("        if (room && result != GPUSYNC_OK)\n"
         "            gpusync__give_room(q, 0, NULL); /* this thread may have been told of it */\n", ""),
    ],
    "sleeper-not-told-of-the-handler": [
        ("    if (q->waits.lists[GPUSYNC__OTHERS].root)\n"
         "        gpusync__take_handled(q, slot->ticket, slot, caught);\n", ""),
    ],
    "handler-begins-relaxed": [
        ("    if (!GPUSYNC__SWAP_SEQ(&slot->state, &armed, (uint8_t)GPUSYNC__RUNNING)) {",
         "    if (!__atomic_compare_exchange_n(&slot->state, &armed, (uint8_t)GPUSYNC__RUNNING, false, "
         "__ATOMIC_RELAXED, __ATOMIC_RELAXED)) {"),
    ],
    # -- read without the queue's lock
    "completed-stored-relaxed": [
        ("    GPUSYNC__STORE_SEQ(&q->head.completed, ticket);", "    GPUSYNC__STORE_RELAXED(&q->head.completed, ticket);"),
    ],
    "done-stored-relaxed": [
        ("    GPUSYNC__STORE_SEQ(&entry->done, ticket << 1 | (outcome->error != NULL));",
         "    GPUSYNC__STORE_RELAXED(&entry->done, ticket << 1 | (outcome->error != NULL));"),
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
    "submissions-taken-one-by-one": [
        ("    gpusync__submission *s = __atomic_exchange_n(&q->free_submissions, (gpusync__submission *)NULL, __ATOMIC_SEQ_CST);\n"
         "    gpusync__submission *rest = NULL;",
         "    gpusync__submission *s = GPUSYNC__LOAD_SEQ(&q->free_submissions), *rest = NULL;\n"
         "    while (s && !GPUSYNC__SWAP_SEQ(&q->free_submissions, &s, s->next)) {}\n    if (s) return s;"),
    ],
    "submissions-lost": [
        ("    if (rest) /* others freed these meanwhile */\n"
         "        GPUSYNC__SUB_SEQ(&q->free_count, gpusync__submissions_return(q->device, rest));", "    "
         "(void)rest;"),
    ],
    "handler-frees-under-a-look": [
        ("    if (slot->looks || !(slot->traits & GPUSYNC__HANDLED))\n"
         "        return NULL;",
         "    if (!(slot->traits & GPUSYNC__HANDLED)) return NULL;"),
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
    "orphan-seen-before-the-lock": [
        ("    GPUSYNC__LOCK(q);\n    bool orphan = gpusync__is_orphan(slot);\n",
         "    bool orphan = gpusync__is_orphan(slot);\n    GPUSYNC__LOCK(q);\n"),
    ],
    # -- held work may go
    "wanted-is-only-read": [
        ("return GPUSYNC__ADD_SEQ(&q->wanted, 0) != 0;\n"
         "}", "return GPUSYNC__LOAD_SEQ(&q->wanted) != 0; }"),
    ],
    "wanted-not-looked-at": [
        ("    if (gpusync__is_wanted(q))\n"
         "        gpusync__upper_of(q)->issue(q);", "    (void)q;"),
    ],
    "doomed-read-before-missing": [
        ("    if (gpusync__has_fate(s, GPUSYNC__DOOMED))\n"
         "        return GPUSYNC_NOT_READY;\n"
         "    if (goes)\n"
         "        return GPUSYNC_OK;\n",
         "    if (gpusync__has_fate(s, GPUSYNC__DOOMED)) return GPUSYNC_NOT_READY;\n"
         "    goes = !stays && GPUSYNC__LOAD_SEQ(&s->missing) == 1;\n    if (goes) return GPUSYNC_OK;\n"),
    ],
    "counted-before-doomed": [
        ("        if (fails)\n"
         "            gpusync__doom(s, false, error);\n"
         "        if ((dep->blocks && GPUSYNC__SUB_SEQ(&s->missing, 1) == 1) ||",
         "        bool last = dep->blocks && GPUSYNC__SUB_SEQ(&s->missing, 1) == 1;\n"
         "        if (fails)\n"
         "            gpusync__doom(s, false, error);\n"
         "        if (last ||"),
    ],
    "lined-up-without-a-look": [
        ("    if (GPUSYNC__LOAD_SEQ(&s->missing) == 0 || gpusync__has_fate(s, GPUSYNC__DOOMED)) {\n        "
         "gpusync__list_ready(s);",
         "    if (gpusync__has_fate(s, GPUSYNC__DOOMED)) {\n        gpusync__list_ready(s);"),
    ],
    # -- a queue on an deferred
    "deferred-cleared-after-the-issue": [
        ("            GPUSYNC__STORE_SEQ(&q->is_deferred, 0); /* first: gpusync__want lists it again */\n"
         "            gpusync__issue_ready(q, deferred);\n",
         "            gpusync__issue_ready(q, deferred);\n            GPUSYNC__STORE_SEQ(&q->is_deferred, 0);\n"),
    ],
    # -- a device is lost
    "loss-not-looked-at": [
        ("    if (GPUSYNC__LOAD_SEQ(&q->flags) & (GPUSYNC__LOST | GPUSYNC__STUCK))\n"
         "        gpusync__want(",
         "    if (GPUSYNC__LOAD_SEQ(&q->flags) & GPUSYNC__STUCK)\n        gpusync__want("),
    ],
    # -- a failure sticks
    "stuck-not-looked-at": [
        ("    if (GPUSYNC__LOAD_SEQ(&q->flags) & (GPUSYNC__LOST | GPUSYNC__STUCK))\n"
         "        gpusync__want(",
         "    if (GPUSYNC__LOAD_SEQ(&q->flags) & GPUSYNC__LOST)\n        gpusync__want("),
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
        ("        if (!slot && !GPUSYNC__LOAD_SEQ(&q->leaving))\n"
         "            return true;\n",
         "        if (!armed && !GPUSYNC__LOAD_SEQ(&q->leaving)) return true;\n"),
    ],
    "leaving-not-waited-for": [
        ("        if (!slot && !GPUSYNC__LOAD_SEQ(&q->leaving))\n"
         "            return true;\n",
         "        if (!slot) return true;\n"),
    ],
    "leaving-counted-after-the-lock": [
        ("    GPUSYNC__ADD_SEQ(&q->leaving, 1);\n    void *buffer = gpusync__slot_leave(q, slot);\n"
         "    GPUSYNC__UNLOCK(q);\n",
         "    void *buffer = gpusync__slot_leave(q, slot);\n    GPUSYNC__UNLOCK(q);\n"
         "    GPUSYNC__ADD_SEQ(&q->leaving, 1);\n"),
    ],
    "leaving-let-go-relaxed": [
        ("    GPUSYNC__SUB_SEQ(&q->leaving, 1);", "    __atomic_fetch_sub(&q->leaving, 1, __ATOMIC_RELAXED);"),
    ],
    "leaving-let-go-first": [
        ("    gpusync__tell(q, ticket, &caught, deferred);\n"
         "    gpusync__do_deferred(q->device, deferred);\n"
         "    if (buffer)\n"
         "        gpusync__release_pooled(buffer);\n"
         "    GPUSYNC__SUB_SEQ(&q->leaving, 1);",
         "    GPUSYNC__SUB_SEQ(&q->leaving, 1);\n    gpusync__tell(q, ticket, &caught, deferred);\n"
         "    gpusync__do_deferred(q->device, deferred);\n    if (buffer) gpusync__release_pooled(buffer);"),
    ],
    "slots-lost": [
        ("    gpusync__return_slots(q->free_slots);\n", ""),
    ],
    "sleepers-not-woken": [
        ("    gpusync__wake_waits(q->device, &q->waits, false);\n", ""),
    ],
    "sleepers-of-values-not-woken": [
        ("    gpusync__wake_waits(t->device, &t->waits, false);\n", ""),
    ],
    "listening-not-orphaned": [
        ("    gpusync__swap32(&listening->state, GPUSYNC__ARMED, GPUSYNC__ORPHANED);\n", ""),
    ],
    "listening-not-waited-for": [
        ("    if (GPUSYNC__LOAD_SEQ(&listening->state) == GPUSYNC__RUNNING)\n"
         "        return false;\n", ""),
    ],
    "listening-let-go-relaxed": [
        ("    if (GPUSYNC__SUB_SEQ(&listening->refs, 1) != 1)\n"
         "        return;",
         "    if (__atomic_fetch_sub(&listening->refs, 1, __ATOMIC_RELAXED) != 1) return;"),
    ],
    # -- a device goes
    "device-read-before-inside": [
        ("    GPUSYNC__ADD_SEQ(&post->inside, 1);\n    return GPUSYNC__LOAD_SEQ(&post->device);\n",
         "    gpusync_device *dev = GPUSYNC__LOAD_SEQ(&post->device);\n    GPUSYNC__ADD_SEQ(&post->inside, 1);\n    return dev;\n"),
    ],
    "post-closed-with-release": [
        ("    GPUSYNC__STORE_SEQ(&dev->post->device, NULL);\n"
         "    while (GPUSYNC__LOAD_SEQ(&dev->post->inside))\n"
         "        gpusync__linger(dev, &rounds);",
         "    __atomic_store_n(&dev->post->device, NULL, __ATOMIC_RELEASE);\n"
         "    while (__atomic_load_n(&dev->post->inside, __ATOMIC_ACQUIRE)) gpusync__linger(dev, &rounds);"),
    ],
    # -- a sweep begins
    "timer-taken-back-late": [
        ("    GPUSYNC__STORE_SEQ(&post->sweep_ns, 0);\n    bool last = ", "    bool last = "),
        ("    if (!gone && (going || (reason && last))) {\n",
         "    GPUSYNC__STORE_SEQ(&post->sweep_ns, 0);\n    if (!gone && (going || (reason && last))) {\n"),
    ],
    "refused-after-the-timer": [
        ("    GPUSYNC__LOCK(q);\n    q->refused = true;\n    GPUSYNC__UNLOCK(q);\n"
         "    gpusync__arm_sweep(q->device);\n",
         "    gpusync__arm_sweep(q->device);\n    GPUSYNC__LOCK(q);\n    q->refused = true;\n"
         "    GPUSYNC__UNLOCK(q);\n"),
    ],
    # -- callbacks are due
    "asked-cleared-after-the-look": [
        ("    GPUSYNC__STORE_SEQ(&post->asked, 0);\n    gpusync_device *dev = gpusync__post_enter(post);\n",
         "    gpusync_device *dev = gpusync__post_enter(post);\n"),
        ("    if (dev)\n"
         "        gpusync__run_due(dev, SIZE_MAX);\n",
         "    if (dev) gpusync__run_due(dev, SIZE_MAX);\n    GPUSYNC__STORE_SEQ(&post->asked, 0);\n"),
    ],
    "due-not-asked-for": [
        ("    gpusync__append_due(dev, due, deferred);\n    gpusync__unlock(&dev->submission_lock);\n}",
         "    gpusync__append_due(dev, due, deferred);\n    deferred->calls = dev->due == due && !dev->calling;\n"
         "    gpusync__unlock(&dev->submission_lock);\n    if (dev->post->asked) deferred->calls = false;\n}"),
    ],
    "two-callbacks-at-once": [
        ("    if (dev->calling) {\n        dev->turned_away = true;\n        due = NULL;\n    }\n", ""),
        ("        else\n"
         "            GPUSYNC__STORE_SEQ(&dev->due, due->next);\n", "        else if (dev->due_count == 9) "
         "GPUSYNC__STORE_SEQ(&dev->due, NULL);\n"),
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
        ("    gpusync__set_flag(&q->flags, GPUSYNC__FAILED);\n", ""),
    ],
    "value-before-the-error": [
        ("        if (reason)\n"
         "            gpusync__copy_error(&t->error, reason);\n", ""),
        ("        GPUSYNC__STORE_SEQ(&t->value, GPUSYNC__FAILED_VALUE); /* after the error, which is not "
         "written any more */\n",
         "        GPUSYNC__STORE_SEQ(&t->value, GPUSYNC__FAILED_VALUE);\n        GPUSYNC__UNLOCK_TIMELINE(t);\n"
         "        GPUSYNC__LOCK_TIMELINE(t);\n        if (reason) gpusync__copy_error(&t->error, reason);\n"),
    ],
    "raised-without-telling": [
        ("        gpusync__take_numbers(&t->waits, 0, value, SIZE_MAX, NULL, &caught, deferred);\n    }\n    uint64_t level",
         "    }\n    uint64_t level"),
    ],
    # -- a warm-up
    "pipeline-begun-twice": [
        ("    if (gpusync__swap32(&w->compilations[i].started, 0, 1))\n",
         "    bool begins = !GPUSYNC__LOAD_SEQ(&w->compilations[i].started);\n"
         "    GPUSYNC__STORE_SEQ(&w->compilations[i].started, 1);\n    if (begins)\n"),
    ],
    "library-without-its-mutex": [
        ("    pthread_mutex_lock(&l->mutex);\n", ""),
        ("    pthread_mutex_unlock(&l->mutex);\n", ""),
    ],
    "counted-before-it-is-done": [
        ("        GPUSYNC__STORE_SEQ(&c->done, 1);\n        gpusync__count_done(w);\n",
         "        gpusync__count_done(w);\n        GPUSYNC__STORE_SEQ(&c->done, 1);\n"),
    ],
    "value-read-after-the-look": [
        ("        result = gpusync_timeline_query(w->progress, &value);\n        if (gpusync__is_warm(w, c))\n"
         "            return GPUSYNC_OK;\n",
         "        if (gpusync__is_warm(w, c)) return GPUSYNC_OK;\n"
         "        result = gpusync_timeline_query(w->progress, &value);\n"),
    ],
    "warm-up-inside-not-looked-at": [
        ("    while (GPUSYNC__LOAD_SEQ(&w->inside) || GPUSYNC__LOAD_SEQ(&w->pending))\n"
         "        gpusync__linger(w->device, &rounds);",
         "    while (GPUSYNC__LOAD_SEQ(&w->pending)) gpusync__linger(w->device, &rounds);"),
    ],
    "warm-up-does-not-fail": [
        ("    (void)gpusync_timeline_fail(w->progress, &gone);\n", ""),
    ],
    "kept-counted-before-the-walk": [
        ("    uint32_t more = 1;\n", "    uint32_t more = 0;\n    GPUSYNC__ADD_SEQ(&q->kept_count, 1);\n"),
    ],
    "kept-read-first": [
        ("        uint32_t left = GPUSYNC__LOAD_SEQ(&owed->count);",
         "        uint32_t settled = kept ? GPUSYNC__LOAD_SEQ(kept) : 0, left = GPUSYNC__LOAD_SEQ(&owed->count);"),
        ("        if (left <= (kept ? GPUSYNC__LOAD_SEQ(kept) : 0))\n"
         "            break;", "        if (left <= settled) break;"),
    ],
    "pending-falls-first": [
        ("        GPUSYNC__STORE_SEQ(&c->done, 1);\n        gpusync__count_done(w);\n    }\n"
         "    GPUSYNC__SUB_SEQ(&w->pending, 1);\n",
         "        GPUSYNC__SUB_SEQ(&w->pending, 1);\n        GPUSYNC__STORE_SEQ(&c->done, 1);\n"
         "        gpusync__count_done(w);\n    } else {\n        GPUSYNC__SUB_SEQ(&w->pending, 1);\n    }\n"),
    ],
}
