#!/usr/bin/env python3
"""header.py - gpusync.h as a model checker can take it

    header.py GPUSYNC_H OUT            the header as it is shipped
    header.py GPUSYNC_H OUT MUTANT     with one fault of mutants.py
    header.py GPUSYNC_H --check        every edit and every mutant against the header; writes nothing

Only what a model checker cannot run is exchanged: messages to Metal, the clock, copies of whole structures, and counts
that no answer depends on (statistics, times for the spin). No other atomic access, and no fence, is touched.

Each text that is to be exchanged has to be in the header exactly as often as it says here. If it is not, this says
which one and fails: then the header has changed, and the author of the change decides what the model has instead.
"""

import sys

from mutants import MUTANTS

# What is there, what the model has instead, and how often it is there (1 where nothing is said).
EDITS = [
    # Messages. rig.h answers them, by the type of the result and the selector.
    ("#define GPUSYNC__AS(result) ((result(*)(void *, void *))gpusync__send)",
     "#define GPUSYNC__AS(result) MODEL_SEND(result)"),
    ("#define GPUSYNC__AS1(result, argument) ((result(*)(void *, void *, argument))gpusync__send)",
     "#define GPUSYNC__AS1(result, argument) MODEL_SEND1(result, argument)"),
    ("((void (*)(void *, void *, void *, uint64_t))gpusync__send)(", "model_encode("),
    ("((notify)gpusync__send)(", "model_notify("),
    ("((commit4)gpusync__send)(", "model_commit4("),
    ("((new_pipeline)gpusync__send)(", "model_pipeline("),
    ("((new_library)gpusync__send)(", "model_library("),
    # The selectors are constants of the model, so that comparing them costs no events.
    ("static struct gpusync__selectors {", "static const struct gpusync__selectors {"),
    ("#define GPUSYNC__REGISTER(name, text) gpusync__sel.name = gpusync__sel_register(text);",
     "#define GPUSYNC__REGISTER(name, text) gpusync__sel_register(text);"),
    # The clock is the harness's.
    ("    return clock_gettime_nsec_np(CLOCK_UPTIME_RAW);\n"
     "#else\n"
     "    struct timespec now;\n"
     "    clock_gettime(CLOCK_MONOTONIC, &now);\n"
     "    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;\n",
     "#error\n"
     "#else\n"
     "    return model_now();\n"),
    # A pause in a spin.
    ("#define GPUSYNC__PAUSE() __builtin_ia32_pause()", "#define GPUSYNC__PAUSE() ((void)0)"),
    ("#define GPUSYNC__PAUSE() __asm__ __volatile__(\"isb\")", "#define GPUSYNC__PAUSE() ((void)0)"),
    # Copies of structures: field by field, without the texts.
    ("    record->error = *error;", "    copy_error(&record->error, error);"),
    ("        q->stuck = *error;", "        copy_error(&q->stuck, error);"),
    ("            *record = q->last_failure;", "            copy_failed(record, &q->last_failure);"),
    ("        *error = *record;", "        copy_error(error, record);", 3),
    ("    *error = q->stuck;", "    copy_error(error, &q->stuck);"),
    ("        callback->error = *error;", "        copy_error(&callback->error, error);"),
    ("    s->error = *error;", "    copy_error(&s->error, error);"),
    ("    t->error = *reason;", "    copy_error(&t->error, reason);"),
    ("        s->error = link->timeline->error;", "        copy_error(&s->error, &link->timeline->error);"),
    ("    *to = *from;\n    gpusync__read_text", "    copy_error(to, from);\n    gpusync__read_text"),
    ("    memcpy(ended, from, size);\n", ""),
    ("    *error = q->log[at % q->log_size].error;", "    copy_error(error, &q->log[at % q->log_size].error);"),
    ("    if (error)\n"
     "        *error = t->error;", "    if (error) copy_error(error, &t->error);"),
    ("*error = c->error;", "copy_error(error, &c->error);"),
    ("        c->error = l->error;", "        copy_error(&c->error, &l->error);"),
    ("    entry.goal = *goal;", "    copy_goal(&entry.goal, goal);"),
    ("    callback->goal = *goal;", "    copy_goal(&callback->goal, goal);"),
    ("    set = *options;", "    copy_options(&set, options);"),
    ("    gpusync_spin spin = set ? *set : gpusync__worth(wait, deadline);",
     "    gpusync_spin spin = {0, 0, 0, false}; copy_spin(&spin, set);"), # no wait decides by itself
    ("        const gpusync__goal value = {NULL, point->timeline, GPUSYNC__VALUE, GPUSYNC__CLOSING, false, point->value, 0};\n"
     "        *goal = value;\n",
     "        memset(goal, 0, sizeof *goal);\n"
     "        goal->timeline = point->timeline; goal->kind = GPUSYNC__VALUE; goal->stops = GPUSYNC__CLOSING;\n"
     "        goal->ticket = point->value;\n"),
    # Initialisers of structures, likewise.
    ("    const gpusync__outcome outcome = {0, 0, error, error->result != GPUSYNC_ERROR_CANCELLED};",
     "    gpusync__outcome outcome; outcome.gpu_start = outcome.gpu_end = 0; outcome.error = error;\n"
     "    outcome.left = error->result != GPUSYNC_ERROR_CANCELLED;"),
    ("    gpusync__outcome outcome = {0, 0, NULL, false};",
     "    gpusync__outcome outcome; outcome.gpu_start = outcome.gpu_end = 0; outcome.error = NULL; outcome.left = false;"),
    ("    const gpusync__outcome outcome = {s->gpu_start, s->gpu_end, error, s->left};",
     "    gpusync__outcome outcome; outcome.gpu_start = s->gpu_start; outcome.gpu_end = s->gpu_end;\n"
     "    outcome.error = error; outcome.left = s->left;"),
    # No text is ever looked at.
    ("    while (text && *text) {", "    while (false) {"),
    # Text for the log.
    ("    va_start(arguments, format);\n"
     "    vsnprintf(text, sizeof text, format, arguments);\n"
     "    va_end(arguments);\n"
     "    gpusync__make_plain(text, strlen(text));\n",
     "    (void)arguments;\n    (void)format;\n    text[0] = 0;\n"),
    # Counts that no answer depends on. They order nothing.
    ("#define GPUSYNC__COUNT_RELAXED(p) ((void)__atomic_fetch_add(p, 1, __ATOMIC_RELAXED))",
     "#define GPUSYNC__COUNT_RELAXED(p) ((void)(p))"),
    ("    double seconds = outcome->gpu_end;\n",
     "    double seconds = 0;\n    return;\n"),
    ("    if (outcome->error || slot->kind != GPUSYNC__WORK)\n"
     "        q->took_ns[slot->ticket % GPUSYNC__TAKEN] = 0;\n", ""),
    ("    if (error || s->work.traits & GPUSYNC__IS_DELAYED)\n"
     "        q->took_ns[ticket % GPUSYNC__TAKEN] = 0;\n", ""),
    # Smaller, so that loops end soon.
    ("#define GPUSYNC__SLAB_SLOTS 63", "#define GPUSYNC__SLAB_SLOTS MODEL_SLOTS"),
]


def exchange(text, what, edits):
    """The text with all edits, and what is wrong with them."""
    wrong = []
    for old, new, *often in edits:
        count, there = often[0] if often else 1, text.count(old)
        if there != count:
            wrong.append(f"{what}: this is there {there} times, not {count}:\n{old}")
        elif old == new:
            wrong.append(f"{what}: changes nothing:\n{old}")
        text = text.replace(old, new)
    return text, wrong


def main():
    if len(sys.argv) not in (3, 4) or (len(sys.argv) == 4 and sys.argv[3] not in MUTANTS):
        sys.exit(f"usage: header.py GPUSYNC_H OUT|--check [MUTANT]\nmutants: {' '.join(MUTANTS)}")
    with open(sys.argv[1], encoding="utf-8") as file:
        shipped = file.read()
    _, wrong = exchange(shipped, "edit", EDITS)
    names = list(MUTANTS) if sys.argv[2] == "--check" else sys.argv[3:]
    for name in names:
        mutant, more = exchange(shipped, f"mutant {name}", MUTANTS[name])
        wrong += more
    if wrong:
        sys.exit("header.py: gpusync.h has changed\n" + "\n".join(wrong))
    if sys.argv[2] != "--check":
        made, wrong = exchange(mutant if names else shipped, "edit, after the mutant", EDITS)
        if wrong:
            sys.exit("header.py: the mutant is in the way of an edit\n" + "\n".join(wrong))
        with open(sys.argv[2], "w", encoding="utf-8") as file:
            file.write(made)


main()
