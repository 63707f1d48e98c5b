/* What program.c calls of second.c. */
#include "gpusync.h"

#ifdef __cplusplus
extern "C" {
#endif
bool second_is_done(const gpusync_queue *queue, gpusync_ticket ticket);
uint64_t second_in_flight(const gpusync_queue *queue);
gpusync_result second_poll(gpusync_queue *queue, gpusync_ticket ticket);
#ifdef __cplusplus
}
#endif
