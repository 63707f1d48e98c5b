/* A program and a library in it that has a gpusync of its own, maybe of another version. Each has work done, and asks
   which version does it. tests/compile.sh compiles this twice:
     LIBRARY 1  the library's side; it has the implementation where IMPLEMENTS is 1
     LIBRARY 0  the program's, which calls the library's */
#if IMPLEMENTS
#define GPUSYNC_IMPLEMENTATION
#endif
#include "gpusync.h"

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif
int library_round(void);
#ifdef __cplusplus
}
#endif

static int round_of(const char *part)
{
    gpusync_device *device = NULL;
    gpusync_queue *queue = NULL;
    gpusync_ticket ticket = 0;
    void *buffer = NULL;

    if (gpusync_device_create(NULL, &device) || gpusync_queue_create(device, NULL, &queue))
        return 1;
    if (gpusync_command_buffer_create(queue, NULL, GPUSYNC_FOREVER, &buffer) || gpusync_commit(queue, buffer, &ticket))
        return 2;
    if (gpusync_wait(queue, ticket, 10000000000, NULL))
        return 3;
    while (gpusync_in_flight(queue) > 0 || !gpusync_is_done(queue, ticket)) { /* inline, in files of two versions */
    }
    printf("%s: compiled with %d: runs on %u\n", part, GPUSYNC_VERSION, (unsigned)gpusync_version());
    if (gpusync_version() != GPUSYNC_VERSION)
        return 4;
    if (gpusync_queue_destroy(queue) || gpusync_device_destroy(device))
        return 5;
    return 0;
}

#if LIBRARY
int library_round(void)
{
    return round_of("library");
}
#else
int main(void)
{
    int ours = round_of("program");
    int theirs = library_round();
    int again = round_of("program");
    if (ours || theirs || again)
        printf("not so: %d, %d, %d\n", ours, theirs, again);
    return ours || theirs || again;
}
#endif
