/* peers.h - the ways of waiting that gpusync is raced against

   Each is written from a description of the algorithm, not from existing code. A contestant has one peer object for
   each Metal queue. It makes its command buffers and commits them in its own way, and waits until everything that it
   committed has ended.

   `today` says who waits in such a way, by the projects' sources and pull requests of August 2026, and what the tables
   tell them. One line each. A project that was not read is not named. */
#ifndef PEERS_H
#define PEERS_H

#include <stdbool.h>

typedef struct peer peer;

typedef struct contestant {
    const char *name;
    const char *what, *today;
    peer *(*open)(void *device, void *metal_queue); /* device: the gpusync_device, for gpusync alone */
    void (*close)(peer *p);
    void *(*make)(peer *p);                            /* a command buffer, for commit */
    void (*commit)(peer *p, void *buffer, bool last);  /* last: a wait comes next */
    void (*wait)(peer *p);
} contestant;

/* The rules of waiting.c name these. */
enum { GPUSYNC_OWN, GPUSYNC_COUNTS, GPUSYNC_PARKED, CONTESTANTS = 13 /* a prime: see in_order */ };

extern const contestant contestants[CONTESTANTS];

/* Several ways to do one thing, each timed as a whole: timelines.c. */
typedef struct way {
    const char *name;
    double (*run)(void *device, unsigned count); /* us for one of the things that are counted; device: gpusync's */
    const char *today; /* NULL: gpusync's own, and nothing to say of it */
} way;

typedef struct duel {
    const char *title;
    unsigned count;   /* for run */
    const way *ways;  /* what the ratios refer to first */
    unsigned way_count;
} duel;

extern const duel duels[];
extern const unsigned duel_count;

void run_duel(const duel *d); /* bench.c */

/* Warm-up: prints its own table. Resets softmetal, so that no device may live. warmup.c */
void run_first_uses(unsigned rounds);

#endif
