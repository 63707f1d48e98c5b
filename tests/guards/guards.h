/* guards.h - whether a thread may access a field of the library's, asked at each access while the tests run

   For the copy of gpusync.h that guards.py makes, behind locks.h, which knows what each thread holds. An access that the
   rule of guards.txt does not allow ends the program with a line that names it. With GUARDS_COLLECT=FILE it is
   written there instead, and the program goes on. */
#ifndef GUARDS_H
#define GUARDS_H

struct guards_exempt {
    const char *function, *fields; /* "": all of them; else " one another " */
    bool asked;
};
static struct guards_exempt guards_exempt[] = {GUARDS_EXEMPT{NULL, NULL, false}}; /* from guards.txt */

/* Functions of their own, as those of locks.h: a fiber may go on on another thread. */
static __attribute__((noinline, unused)) bool guards_hold(const void *lock)
{
    unsigned i;
    for (i = 0; i < locks_mine.count; i++)
        if (locks_mine.held[i].lock == lock) return true;
    return false;
}

/* Of structs that do not lead to their lock. */
static __attribute__((noinline, unused)) bool guards_hold_kind(int kind)
{
    unsigned i;
    for (i = 0; i < locks_mine.count; i++)
        if (locks_mine.held[i].kind == kind) return true;
    return false;
}

/* Writes to GUARDS_ASKED, if there is one, which fields were checked and which functions were let off: a rule that no test
   comes to proves nothing, and an exemption that none needs hides something. */
static __attribute__((noinline)) void guards_ask_first(const char *kind, const char *name)
{
    const char *path = getenv("GUARDS_ASKED");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (!file) return;
    fprintf(file, "%s %s\n", kind, name);
    fclose(file);
}

static inline void guards_ask(bool *asked, const char *kind, const char *name)
{
    if (!__atomic_load_n(asked, __ATOMIC_RELAXED) && !__atomic_exchange_n(asked, true, __ATOMIC_RELAXED))
        guards_ask_first(kind, name);
}

static __attribute__((noinline)) void guards_wrong(const char *type, const char *field, char how, const char *function)
{
    struct guards_exempt *exempt;
    const char *collect = getenv("GUARDS_COLLECT");
    char word[64];
    FILE *file = stderr;
    unsigned i;
    snprintf(word, sizeof word, " %s.%s ", type, field);
    for (exempt = guards_exempt; exempt->function; exempt++)
        if (strcmp(exempt->function, function) == 0 && (!*exempt->fields || strstr(exempt->fields, word))) {
            guards_ask(&exempt->asked, "but", function);
            return;
        }
    if (collect) file = fopen(collect, "a");
    if (!file) abort();
    fprintf(file, "guards: %s %s %s.%s (%c); held:", function,
            how == 'r' ? "reads" : how == 'l' ? "loads" : how == 'p' ? "points to" : "writes", type, field, how);
    for (i = 0; i < locks_mine.count; i++) fprintf(file, " %s", locks_mine.held[i].name);
    fprintf(file, "\n");
    if (!collect) abort();
    fclose(file);
}

static inline void guards_none(const void *at, char how, const char *function)
{
    (void)at;
    (void)how;
    (void)function;
}

#define GUARDS(p, field, how)                   \
    (*__extension__({                           \
        __auto_type guards_at_ = (p);           \
        guards_of_##field(guards_at_, how);     \
        &guards_at_->field;                     \
    }))

#endif
