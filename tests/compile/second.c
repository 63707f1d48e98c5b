/* A second file that uses gpusync and leaves the implementation to another: its inline calls have to link, also where
   the compiler does not inline. */
#include "second.h"

bool second_is_done(const gpusync_queue *queue, gpusync_ticket ticket)
{
    bool (*done)(const gpusync_queue *, gpusync_ticket) = gpusync_is_done; /* needs the symbol at any -O */
    return done(queue, ticket) && gpusync_is_done(queue, ticket);
}

uint64_t second_in_flight(const gpusync_queue *queue)
{
    return gpusync_in_flight(queue);
}

gpusync_result second_poll(gpusync_queue *queue, gpusync_ticket ticket)
{
    gpusync_point point = gpusync_at_ticket(queue, ticket);
    return gpusync_poll(point.queue, point.ticket, NULL);
}
