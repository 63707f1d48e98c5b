/* A second file that uses gpusync and leaves the implementation to another: its inline calls have to link, also
   where the compiler does not inline. */
#include "second.h"

bool second_is_idle(const gpusync_queue *queue)
{
    return gpusync_is_idle(queue);
}

bool second_is_done(const gpusync_queue *queue, gpusync_ticket ticket)
{
    bool (*done)(const gpusync_queue *, gpusync_ticket) = gpusync_is_done; /* needs the symbol at any -O */
    return done(queue, ticket) && gpusync_is_done(queue, ticket);
}

gpusync_result second_poll(gpusync_queue *queue, gpusync_ticket ticket)
{
    return gpusync_poll(queue, ticket);
}
