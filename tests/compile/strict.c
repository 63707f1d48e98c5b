/* A user's file under every warning that there is: all that the public part of the header brings into it, macros and
   inline calls, and no cast and no private name of its own. tests/compile.sh compiles it as C and as C++. */
#include "gpusync.h"

#ifdef __cplusplus
extern "C" {
#endif
bool strict_is_over(gpusync_queue *queue, gpusync_ticket ticket);
gpusync_result strict_wait(gpusync_queue *queue, gpusync_timeline *timeline, gpusync_ticket ticket, size_t *which);
gpusync_result strict_skip(gpusync_queue *queue, uint64_t *cursor, gpusync_error *error);
const char *strict_name(gpusync_result result);
#ifdef __cplusplus
}
#endif

bool strict_is_over(gpusync_queue *queue, gpusync_ticket ticket)
{
    if (ticket == GPUSYNC_NO_TICKET || gpusync_in_flight(queue) == 0)
        return true;
    return gpusync_is_done(queue, ticket) || gpusync_is_done(queue, GPUSYNC_EVERYTHING);
}

gpusync_result strict_wait(gpusync_queue *queue, gpusync_timeline *timeline, gpusync_ticket ticket, size_t *which)
{
    gpusync_point points[2];
    points[0] = gpusync_at_ticket(queue, ticket);
    points[1] = gpusync_at_value(timeline, GPUSYNC_MAX_VALUE);
    return gpusync_wait_many(points, 2, GPUSYNC_WAIT_ANY, GPUSYNC_FOREVER, NULL, which);
}

gpusync_result strict_skip(gpusync_queue *queue, uint64_t *cursor, gpusync_error *error)
{
    *cursor = GPUSYNC_FROM_NOW;
    return gpusync_queue_next_error(queue, cursor, error);
}

const char *strict_name(gpusync_result result)
{
#define NAME(name, value, text)     \
    if (result == GPUSYNC_##name) \
        return text;
    GPUSYNC_RESULTS(NAME)
#undef NAME
    return "";
}
