"""mutants.py - faults in the order of memory, or of steps: header.py plants one, and a harness must see it

Each name has texts of gpusync.h, and what stands there instead. A text has to be in the header once, or as often as
the third value says. model.sh says which property has to be red with it. Comments name rows of the table "WHO WRITES,
THEN READS WHAT THE OTHER WROTE" in gpusync.h.
"""

IN_MARK = "GPUSYNC__SWAP(&entry->done, &not_yet, ticket << 1 | (outcome ? outcome->failed : 0));"
AFTER_MARK = "while (GPUSYNC__GET(&gpusync__entry_of(q, done + 1)->done) >> 1 == done + 1) {"


MUTANTS = {
    # -- all at once: acquire and release, and no sequential consistency
    "weak-everywhere": [
        ("#define GPUSYNC__GET(p) __atomic_load_n(p, __ATOMIC_SEQ_CST)",
         "#define GPUSYNC__GET(p) __atomic_load_n(p, __ATOMIC_ACQUIRE)"),
        ("#define GPUSYNC__PUT(p, value) __atomic_store_n(p, value, __ATOMIC_SEQ_CST)",
         "#define GPUSYNC__PUT(p, value) __atomic_store_n(p, value, __ATOMIC_RELEASE)"),
        ("__atomic_fetch_add(p, n, __ATOMIC_SEQ_CST)", "__atomic_fetch_add(p, n, __ATOMIC_ACQ_REL)"),
        ("__atomic_fetch_sub(p, n, __ATOMIC_SEQ_CST)", "__atomic_fetch_sub(p, n, __ATOMIC_ACQ_REL)"),
        ("(p, expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)",
         "(p, expected, value, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)"),
    ],
    # -- a ticket ends
    "tell-looks-relaxed": [
        ("    if (!GPUSYNC__GET(&q->board.count)) return;\n    uint64_t done",
         "    if (!__atomic_load_n(&q->board.count, __ATOMIC_RELAXED)) return;\n    uint64_t done"),
    ],
    "listed-with-release": [
        ("    if (list->end[0] == node) GPUSYNC__PUT(&list->head, ~node->number);\n    "
         "GPUSYNC__ADD(&board->count, 1);",
         "    if (list->end[0] == node) __atomic_store_n(&list->head, ~node->number, __ATOMIC_RELEASE);\n"
         "    __atomic_fetch_add(&board->count, 1, __ATOMIC_RELEASE);"),
    ],
    "no-look-after-listing": [
        ("    while (!gpusync__wait_over(wait) && gpusync_now_ns() < deadline) {\n",
         "    while (gpusync_now_ns() < deadline) {\n"),
    ],
    "told-before-the-mark": [
        ("    if (gpusync__mark(q, slot->ticket, outcome) && slot->kind == GPUSYNC__TRACKED) "
         "GPUSYNC__SUB(&q->tracked, 1);\n"
         "    gpusync__tell(q, slot->ticket, agenda);",
         "    gpusync__tell(q, slot->ticket, agenda);\n"
         "    if (gpusync__mark(q, slot->ticket, outcome) && slot->kind == GPUSYNC__TRACKED) "
         "GPUSYNC__SUB(&q->tracked, 1);"),
    ],
    "note-not-looked-at": [
        ("    bool ended = note->queue ? gpusync__marked(note->queue, number) : note->timeline->value >= number;",
         "    bool ended = !note->queue && note->timeline->value >= number;"),
    ],
    # -- neighbours end
    "mark-with-release": [
        (IN_MARK, "__atomic_compare_exchange_n(&entry->done, &not_yet, ticket << 1 | (outcome ? "
         "outcome->failed : 0), "
                  "false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);"),
        (AFTER_MARK, AFTER_MARK.replace("GPUSYNC__GET(&gpusync__entry_of(q, done + 1)->done)",
                                        "__atomic_load_n(&gpusync__entry_of(q, done + 1)->done, __ATOMIC_ACQUIRE)")),
    ],
    "advance-by-one": [(AFTER_MARK, AFTER_MARK.replace("while", "if"))],
    # -- room comes, a handler begins
    "others-looked-for-relaxed": [
        ("    if (GPUSYNC__GET(&board->lists[GPUSYNC__OTHERS].head)) gpusync__wake_others_now",
         "    if (__atomic_load_n(&board->lists[GPUSYNC__OTHERS].head, __ATOMIC_RELAXED)) gpusync__wake_others_now"),
    ],
    "room-is-not-passed-on": [
        ("        if (result == GPUSYNC_OK) return GPUSYNC_OK;\n        gpusync__wake_others(q->device, "
         "&q->board, 0);\n",
         "        if (result == GPUSYNC_OK) return GPUSYNC_OK;\n"),
        ("        gpusync__wake_others(queue->device, &queue->board, 0);\n    }\n    "
         "gpusync__leave(queue);", "    }\n"
         "    gpusync__leave(queue);"),
    ],
    "state-read-relaxed": [
        ("    return GPUSYNC__GET(&slot->state) == GPUSYNC__ARMED && GPUSYNC__GET(&slot->ticket) == ticket;",
         "    return __atomic_load_n(&slot->state, __ATOMIC_RELAXED) == GPUSYNC__ARMED && "
         "GPUSYNC__GET(&slot->ticket) == ticket;"),
    ],
    "handler-looks-relaxed": [
        ("    if (!GPUSYNC__GET(&q->board.count)) return;\n    uint64_t done",
         "    if (!__atomic_load_n(&q->board.count, __ATOMIC_RELAXED)) return;\n    uint64_t done"),
        ("    if (GPUSYNC__GET(&board->lists[GPUSYNC__OTHERS].head)) gpusync__wake_others_now",
         "    if (__atomic_load_n(&board->lists[GPUSYNC__OTHERS].head, __ATOMIC_RELAXED)) gpusync__wake_others_now"),
    ],
    # -- a slot is reused
    "reference-counted-relaxed": [
        ("    while (!GPUSYNC__SWAP(&slot->refs, &refs, refs + 1));",
         "    while (!__atomic_compare_exchange_n(&slot->refs, &refs, refs + 1, false, __ATOMIC_RELAXED, "
         "__ATOMIC_RELAXED));"),
    ],
    "first-reference-relaxed": [
        ("    GPUSYNC__PUT(&slot->refs, 1); /* last:", "    GPUSYNC__SET(&slot->refs, 1); /* last:"),
    ],
    "last-reference-relaxed": [
        ("    if (GPUSYNC__SUB(&slot->refs, 1) == 1) gpusync__last_unref(slot);",
         "    if (__atomic_fetch_sub(&slot->refs, 1, __ATOMIC_RELAXED) == 1) gpusync__last_unref(slot);"),
    ],
    "slot-pushed-relaxed": [
        ("    while (!GPUSYNC__SWAP(list, &slot->next, slot)) {}",
         "    while (!__atomic_compare_exchange_n(list, &slot->next, slot, false, __ATOMIC_RELAXED, "
         "__ATOMIC_RELAXED)) {}"),
    ],
    "slot-counted-before-it-is-back": [
        ("    while (!GPUSYNC__SWAP(list, &slot->next, slot)) {}\n    if (q) GPUSYNC__SUB(&q->slots, 1);",
         "    if (q) GPUSYNC__SUB(&q->slots, 1);\n    while (!GPUSYNC__SWAP(list, &slot->next, slot)) {}"),
    ],
    "completed-not-looked-at": [
        ("    if (ticket <= GPUSYNC__GET(&q->head.completed)) return true;\n    return "
         "GPUSYNC__GET(&gpusync__entry_of",
         "    return GPUSYNC__GET(&gpusync__entry_of"),
    ],
    "plans-taken-one-by-one": [
        ("    gpusync__plan *plan = __atomic_exchange_n(&q->free_plans, (gpusync__plan *)NULL, "
         "__ATOMIC_SEQ_CST), *rest = NULL;",
         "    gpusync__plan *plan = GPUSYNC__GET(&q->free_plans), *rest = NULL;\n"
         "    while (plan && !GPUSYNC__SWAP(&q->free_plans, &plan, plan->next)) {}\n    if (plan) return plan;"),
    ],
    "plans-lost": [
        ("    if (rest) gpusync__plans_return(q->device, rest); /* others freed these meanwhile */", "    "
         "(void)rest;"),
    ],
    # -- an orphan's buffer
    "orphan-never-runs": [
        ("    } else {\n        GPUSYNC__PUT(&slot->state, (uint32_t)GPUSYNC__RUNNING);\n    }\n", "    }\n"),
    ],
    "state-before-count": [
        ("    uint32_t refs = GPUSYNC__SUB(&slot->refs, 1);\n    bool looks = true;\n",
         "    bool looks = gpusync__is_orphan(slot);\n    uint32_t refs = GPUSYNC__SUB(&slot->refs, 1);\n"),
    ],
    "orphan-not-looked-at-again": [
        ("looks = !gpusync__is_orphan(slot); /*", "looks = false; /*"),
    ],
    "orphan-without-a-reference": [
        ("gpusync__is_orphan(slot) && gpusync__swap32(&slot->refs, 1, 2)) {", "gpusync__is_orphan(slot)) {\n"
         "        GPUSYNC__ADD(&slot->refs, 1);"),
    ],
    # -- held work may go
    "wanted-is-only-read": [
        ("return GPUSYNC__ADD(&q->wanted, 0) != 0; }", "return GPUSYNC__GET(&q->wanted) != 0; }"),
    ],
    "wanted-not-looked-at": [
        ("    gpusync__unlock(&q->order);\n    if (gpusync__is_wanted(q)) gpusync__upper_of(q)->pump(q);",
         "    gpusync__unlock(&q->order);"),
    ],
    "ticket-stored-relaxed": [
        ("    __atomic_store_n(&slot->ticket, ticket, __ATOMIC_RELEASE);\n",
         "    __atomic_store_n(&slot->ticket, ticket, __ATOMIC_RELAXED);\n"),
    ],
    "doomed-read-before-missing": [
        ("    if (GPUSYNC__GET(&plan->doomed)) return GPUSYNC_NOT_READY;\n    if (goes) return GPUSYNC_OK;\n",
         "    if (GPUSYNC__GET(&plan->doomed)) return GPUSYNC_NOT_READY;\n"
         "    goes = !stays && GPUSYNC__GET(&plan->missing) == 1;\n    if (goes) return GPUSYNC_OK;\n"),
    ],
    "counted-before-doomed": [
        ("        if (why) gpusync__doom(plan, need->rank, why);\n"
         "        if ((need->blocks && GPUSYNC__SUB(&plan->missing, 1) == 1) || (why && !gpusync__is_issued(plan)))\n"
         "            gpusync__stir(plan, agenda);\n",
         "        bool last = need->blocks && GPUSYNC__SUB(&plan->missing, 1) == 1;\n"
         "        if (why) gpusync__doom(plan, need->rank, why);\n"
         "        if (last || (why && !gpusync__is_issued(plan))) gpusync__stir(plan, agenda);\n"),
    ],
    "lined-up-without-a-look": [
        ("    if (GPUSYNC__GET(&plan->missing) == 0 || GPUSYNC__GET(&plan->doomed)) {\n        "
         "gpusync__list_stirred(plan);",
         "    if (GPUSYNC__GET(&plan->doomed)) {\n        gpusync__list_stirred(plan);"),
    ],
    "device-has-it-relaxed": [
        ("    if (GPUSYNC__GET(&q->board.count)) gpusync__announce_ticket(",
         "    if (__atomic_load_n(&q->board.count, __ATOMIC_RELAXED)) gpusync__announce_ticket("),
    ],
    # -- a queue on an agenda
    "agenda-cleared-after-the-pump": [
        ("            GPUSYNC__PUT(&q->on_agenda, 0); /* before the pump: gpusync__want lists it again */\n"
         "            gpusync__pump(q, agenda);\n",
         "            gpusync__pump(q, agenda);\n            GPUSYNC__PUT(&q->on_agenda, 0);\n"),
    ],
    # -- a device is lost
    "loss-not-looked-at": [
        ("    if (GPUSYNC__GET(&q->flags) & GPUSYNC__LOST) gpusync__want(q, agenda); /* gpusync__lose "
         "came first */\n", ""),
    ],
    # -- an object goes
    "inside-counted-relaxed": [
        ("    GPUSYNC__ADD(inside, 1);\n    stop &= GPUSYNC__GET(flags);",
         "    __atomic_fetch_add(inside, 1, __ATOMIC_RELAXED);\n    stop &= __atomic_load_n(flags, "
         "__ATOMIC_RELAXED);"),
    ],
    "closing-read-first": [
        ("    GPUSYNC__ADD(inside, 1);\n    stop &= GPUSYNC__GET(flags);",
         "    stop &= GPUSYNC__GET(flags);\n    GPUSYNC__ADD(inside, 1);"),
    ],
    "left-relaxed": [
        ("static void gpusync__leave(gpusync_queue *q) { GPUSYNC__SUB(&q->inside, 1); }",
         "static void gpusync__leave(gpusync_queue *q) { __atomic_fetch_sub(&q->inside, 1, __ATOMIC_RELAXED); }"),
    ],
    "slots-not-waited-for": [
        ("    while (GPUSYNC__GET(&q->slots)) gpusync__linger(dev, &rounds);\n", ""),
    ],
    "running-handler-not-waited-for": [
        ("        while (!orphan && GPUSYNC__GET(&slot->state) == GPUSYNC__RUNNING && "
         "GPUSYNC__GET(&slot->queue) == q)\n"
         "            gpusync__linger(q->device, &rounds);\n", "        (void)rounds;\n"),
        ("    while (GPUSYNC__GET(&q->slots)) gpusync__linger(dev, &rounds);\n", ""),
    ],
    "turned-without-a-swap": [
        ("{ return gpusync__swap32(&s->state, from, to); }",
         "{ if (GPUSYNC__GET(&s->state) != from) return false; GPUSYNC__PUT(&s->state, to); return true; }"),
    ],
    "sleepers-not-woken": [
        ("    gpusync__wake_stopped(dev, &q->board);\n    gpusync__let_out(dev, &q->inside);",
         "    gpusync__let_out(dev, &q->inside);"),
    ],
    "sleepers-of-values-not-woken": [
        ("    gpusync__wake_stopped(dev, &t->board);\n", ""),
    ],
    "sleepers-looked-for-relaxed": [
        ("    if (GPUSYNC__GET(&board->count)) gpusync__wake_waits(dev, board, false);",
         "    if (__atomic_load_n(&board->count, __ATOMIC_RELAXED)) gpusync__wake_waits(dev, board, false);"),
    ],
    "listening-not-orphaned": [
        ("            (void)gpusync__swap32(&listening->state, GPUSYNC__ARMED, GPUSYNC__ORPHANED);\n", ""),
    ],
    "listening-not-waited-for": [
        ("            while (GPUSYNC__GET(&listening->state) == GPUSYNC__RUNNING) gpusync__linger(dev, &rounds);\n",
         "            (void)rounds;\n"),
    ],
    "listening-let-go-relaxed": [
        ("    if (GPUSYNC__SUB(&listening->refs, 1) != 1) return;",
         "    if (__atomic_fetch_sub(&listening->refs, 1, __ATOMIC_RELAXED) != 1) return;"),
    ],
    # -- a device goes
    "device-read-before-inside": [
        ("    GPUSYNC__PUT(&post->asked, 0);\n    GPUSYNC__ADD(&post->inside, 1);\n"
         "    gpusync_device *dev = GPUSYNC__GET(&post->device);\n",
         "    GPUSYNC__PUT(&post->asked, 0);\n    gpusync_device *dev = GPUSYNC__GET(&post->device);\n"
         "    GPUSYNC__ADD(&post->inside, 1);\n"),
    ],
    "post-closed-with-release": [
        ("    GPUSYNC__PUT(&dev->post->device, NULL);\n    while (GPUSYNC__GET(&dev->post->inside)) "
         "gpusync__linger(dev, &rounds);",
         "    __atomic_store_n(&dev->post->device, NULL, __ATOMIC_RELEASE);\n"
         "    while (__atomic_load_n(&dev->post->inside, __ATOMIC_ACQUIRE)) gpusync__linger(dev, &rounds);"),
    ],
    # -- a sweep begins
    "timer-looked-for-relaxed": [
        ("    if (GPUSYNC__GET(&post->pace_ns) != GPUSYNC__SWEEP_NS || !GPUSYNC__GET(&post->sweep_ns))",
         "    if (__atomic_load_n(&post->pace_ns, __ATOMIC_RELAXED) != GPUSYNC__SWEEP_NS ||\n"
         "        !__atomic_load_n(&post->sweep_ns, __ATOMIC_RELAXED))"),
    ],
    "timer-taken-back-late": [
        ("    GPUSYNC__PUT(&post->sweep_ns, 0);\n    bool last = ", "    bool last = "),
        ("    if (reason && last) {\n", "    GPUSYNC__PUT(&post->sweep_ns, 0);\n    if (reason && last) {\n"),
    ],
    "refused-relaxed": [
        ("    GPUSYNC__PUT(&q->refused, 1);\n", "    GPUSYNC__SET(&q->refused, 1);\n"),
    ],
    # -- callbacks are due
    "asked-cleared-after-the-look": [
        ("    GPUSYNC__PUT(&post->asked, 0);\n    GPUSYNC__ADD(&post->inside, 1);\n", "    "
         "GPUSYNC__ADD(&post->inside, 1);\n"),
        ("    if (dev) (void)gpusync__run_due(dev, SIZE_MAX);\n",
         "    if (dev) (void)gpusync__run_due(dev, SIZE_MAX);\n    GPUSYNC__PUT(&post->asked, 0);\n"),
    ],
    "due-not-asked-for": [
        ("    gpusync__append_due(dev, due, agenda);\n    gpusync__unlock(&dev->plan_lock);\n}",
         "    gpusync__append_due(dev, due, agenda);\n    agenda->calls = dev->due == due && !dev->calling;\n"
         "    gpusync__unlock(&dev->plan_lock);\n    if (dev->post->asked) agenda->calls = false;\n}"),
    ],
    "two-callbacks-at-once": [
        ("    if (dev->calling) {\n        dev->turned_away = true;\n        due = NULL;\n    }\n", ""),
        ("        else GPUSYNC__PUT(&dev->due, due->next);\n", "        else if (dev->due_count == 9) "
         "GPUSYNC__PUT(&dev->due, NULL);\n"),
    ],
    # -- failures are logged
    "logging-cleared-with-release": [
        ("    while (q->device->log && GPUSYNC__GET(&q->log_count) != GPUSYNC__GET(&q->logged)) {",
         "    while (q->device->log && __atomic_load_n(&q->log_count, __ATOMIC_ACQUIRE) != "
         "GPUSYNC__GET(&q->logged)) {"),
        ("        GPUSYNC__PUT(&q->logging, 0);", "        __atomic_store_n(&q->logging, 0, __ATOMIC_RELEASE);"),
    ],
    "logged-without-a-second-look": [
        ("    while (q->device->log && GPUSYNC__GET(&q->log_count) != GPUSYNC__GET(&q->logged)) {",
         "    if (q->device->log && GPUSYNC__GET(&q->log_count) != GPUSYNC__GET(&q->logged)) {"),
    ],
    # -- others may signal
    "hint-before-outside": [
        ("    if (!(gpusync__set_flag(&timeline->flags, GPUSYNC__OUTSIDE) & GPUSYNC__OUTSIDE))\n"
         "        gpusync__hint(timeline->device, &timeline->board);",
         "    gpusync__hint(timeline->device, &timeline->board);\n"
         "    (void)gpusync__set_flag(&timeline->flags, GPUSYNC__OUTSIDE);"),
    ],
    "outside-read-relaxed": [
        ("{ return GPUSYNC__GET(&t->flags) & GPUSYNC__OUTSIDE; }",
         "{ return __atomic_load_n(&t->flags, __ATOMIC_RELAXED) & GPUSYNC__OUTSIDE; }"),
    ],
    "outside-read-before-the-list": [
        ("    *listens = node->heard = note->timeline && flags & GPUSYNC__OUTSIDE;",
         "    *listens = node->heard = note->timeline && *listens;"),
        ("    if (note && gpusync__pin_note(note, &listens)) {",
         "    listens = abroad;\n    if (note && gpusync__pin_note(note, &listens)) {"),
    ],
    # -- the two loads of gpusync_is_idle, the fence behind a status
    "committed-read-first": [
        ("    completed = __atomic_load_n(&head->completed, __ATOMIC_ACQUIRE);\n"
         "    return completed == __atomic_load_n(&head->committed, __ATOMIC_RELAXED);",
         "    completed = __atomic_load_n(&head->committed, __ATOMIC_ACQUIRE);\n"
         "    return completed == __atomic_load_n(&head->completed, __ATOMIC_ACQUIRE);"),
    ],
    "idle-read-relaxed": [
        ("    completed = __atomic_load_n(&head->completed, __ATOMIC_ACQUIRE);\n    return",
         "    completed = __atomic_load_n(&head->completed, __ATOMIC_RELAXED);\n    return"),
    ],
    "no-fence-behind-a-status": [
        ("    if (status >= GPUSYNC__STATUS_COMPLETED) __atomic_thread_fence(__ATOMIC_ACQUIRE);\n", ""),
    ],
    # -- a failure comes before the end
    "recorded-after-the-mark": [
        ("        if (failed) gpusync__record(q, &error);\n        gpusync__learn", "        gpusync__learn"),
        ("        gpusync__end_ticket(q, slot, &outcome, agenda);\n    }\n    if (!failed) return;",
         "        gpusync__end_ticket(q, slot, &outcome, agenda);\n        if (failed) gpusync__record(q, "
         "&error);\n    }\n"
         "    if (!failed) return;"),
    ],
    "failed-flag-left-out": [
        ("    gpusync__set_flag(&q->flags, GPUSYNC__FAILED);\n", ""),
    ],
    "claimed-by-everybody": [
        ("    gpusync_error error;\n    if (!gpusync__swap32(&slot->claimed, 0, 1)) return;\n    if (status",
         "    gpusync_error error;\n    GPUSYNC__PUT(&slot->claimed, 1);\n    if (status"),
    ],
    "value-before-the-error": [
        ("        if (reason) gpusync__copy_error(&t->error, reason);\n", ""),
        ("        GPUSYNC__PUT(&t->value, GPUSYNC__FAILED_VALUE); /* after the error, which is not "
         "written any more */\n",
         "        GPUSYNC__PUT(&t->value, GPUSYNC__FAILED_VALUE);\n        gpusync__unlock(&t->board.lock);\n"
         "        gpusync__lock(&t->board.lock);\n        if (reason) gpusync__copy_error(&t->error, reason);\n"),
    ],
    "raised-without-telling": [
        ("        gpusync__take_numbers(&t->board, 0, value, NULL, &caught, agenda);\n        writes", "  "
         "      writes"),
    ],
    # -- a warm-up
    "asked-after-the-look": [
        ("        GPUSYNC__PUT(&c->asked, 1);\n        gpusync__compile(c->library);\n"
         "        if (GPUSYNC__GET(&c->library->done)) gpusync__compile(c);",
         "        gpusync__compile(c->library);\n        if (GPUSYNC__GET(&c->library->done)) gpusync__compile(c);\n"
         "        GPUSYNC__PUT(&c->asked, 1);"),
    ],
    "done-stored-with-release": [
        ("    GPUSYNC__PUT(&c->done, 1);\n    if (c->library)",
         "    __atomic_store_n(&c->done, 1, __ATOMIC_RELEASE);\n    if (c->library)"),
    ],
    "warm-up-inside-not-looked-at": [
        ("    while (GPUSYNC__GET(&w->inside) || GPUSYNC__GET(&w->pending)) gpusync__linger(w->device, &rounds);",
         "    while (GPUSYNC__GET(&w->pending)) gpusync__linger(w->device, &rounds);"),
    ],
    "warm-up-does-not-fail": [
        ("    (void)gpusync_timeline_fail(w->progress, &gone);\n", ""),
    ],
    "kept-counted-before-the-walk": [
        ("    uint32_t more = 1;\n", "    uint32_t more = 0;\n    GPUSYNC__ADD(&q->kept_count, 1);\n"),
    ],
    "kept-read-first": [
        ("        uint32_t left = GPUSYNC__GET(owing);",
         "        uint32_t settled = kept ? GPUSYNC__GET(kept) : 0, left = GPUSYNC__GET(owing);"),
        ("        if (left <= (kept ? GPUSYNC__GET(kept) : 0)) return;", "        if (left <= settled) return;"),
    ],
    "pending-falls-first": [
        ("    gpusync__pool_pop(pool);\n    gpusync__compiled(c);\n    GPUSYNC__SUB(&w->pending, 1);\n",
         "    gpusync__pool_pop(pool);\n    GPUSYNC__SUB(&w->pending, 1);\n    gpusync__compiled(c);\n"),
    ],
}
