/* gpu_ways.h - the ways of waiting that gpu.c compares: for one command buffer while others are in flight */
#ifndef GPU_WAYS_H
#define GPU_WAYS_H

#include <semaphore.h>
#include <stdint.h>

#include "../../gpusync.h"

typedef struct item { /* a command buffer, and who waits for it */
    void *buffer;     /* +1 */
    gpusync_ticket ticket;
    sem_t done; /* lives as long as the program: what has posted it may still be inside when the wait returns */
    double called_us, returned_us;
} item;

typedef struct line { /* of a contestant, for a round; objects +1 */
    void *metal_queue, *event, *listener;
    gpusync_queue *queue; /* NULL: not gpusync */
    uint64_t value;
} line;

typedef struct way {
    const char *name, *what;
    const gpusync_spin *spin;
    void (*open)(line *l, const struct way *w, gpusync_device *device);
    void (*commit)(line *l, item *i); /* a buffer of make_buffer */
    void (*wait)(line *l, item *i);
} way;

enum { WAYS = 7 /* a prime: see in_order */ };
extern const way ways[WAYS]; /* the first is gpusync as it is */

line open_line(const way *w, void *metal_queue, gpusync_device *device); /* takes over the queue */
void close_line(line *l);                                                /* its work has ended */
void *make_buffer(line *l);                                              /* +1 */

#endif
