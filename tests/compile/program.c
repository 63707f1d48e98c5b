/* A program that calls gpusync: on Metal it has work done and waits for it, without Metal it is told so.
   tests/compile.sh compiles it in many ways; HOW says where the implementation is.
     0  in another file
     1  here, after the declarations were included
     2  here, private to this file
     3  here, with an assert of our own
   Also the two includes and the two languages: it is compiled as C, C++, Objective-C and Objective-C++. */

#ifndef HOW
#define HOW 0
#endif

#include <stdlib.h>

#if HOW == 2
#define GPUSYNC_STATIC
#define GPUSYNC_IMPLEMENTATION
#endif
#if HOW == 3
static int asserts_seen;
#define GPUSYNC_ASSERT(condition) ((condition) ? (void)(asserts_seen = 1) : abort())
#define GPUSYNC_IMPLEMENTATION
#endif

#include "gpusync.h"
#include "gpusync.h"

#if HOW == 1
#define GPUSYNC_IMPLEMENTATION
#include "gpusync.h"
#endif

#include <stdio.h>

#include "second.h"

#define EXPECT(condition)                                                                       \
    do {                                                                                        \
        if (!(condition)) {                                                                     \
            fprintf(stderr, "program.c:%d: not so: %s\n", __LINE__, #condition);                \
            return 1;                                                                           \
        }                                                                                       \
    } while (0)

int main(void)
{
    gpusync_device *device = NULL;
    gpusync_queue *queue = NULL;
    gpusync_ticket ticket = 0;
    void *buffer = NULL;
    uint64_t limit;
    int i;

    EXPECT(gpusync_result_string(GPUSYNC_OK) != NULL);
    EXPECT(!gpusync_is_idle(NULL));
    EXPECT(!gpusync_is_done(NULL, 1));

    if (!GPUSYNC_OBJC) {
        EXPECT(gpusync_device_create(NULL, &device) == GPUSYNC_ERROR_UNSUPPORTED);
        EXPECT(device == NULL);
        EXPECT(gpusync_queue_wait(NULL, GPUSYNC_FOREVER) == GPUSYNC_ERROR_UNSUPPORTED);
        puts("no Metal, and says so");
        return 0;
    }

    EXPECT(gpusync_device_create(NULL, &device) == GPUSYNC_OK);
    EXPECT(gpusync_queue_create(device, NULL, &queue) == GPUSYNC_OK);
    EXPECT(gpusync_is_idle(queue));
    for (i = 1; i <= 3; i++) {
        EXPECT(gpusync_command_buffer(queue, NULL, &buffer) == GPUSYNC_OK);
        EXPECT(gpusync_commit(queue, buffer, &ticket) == GPUSYNC_OK);
        EXPECT(ticket == (gpusync_ticket)i);
    }
    EXPECT(gpusync_wait(queue, ticket, 10000000000) == GPUSYNC_OK);
    EXPECT(!gpusync_is_done(queue, ticket + 1));
    EXPECT(gpusync_queue_wait(queue, GPUSYNC_FOREVER) == GPUSYNC_OK);
    limit = gpusync_now_ns() + 10000000000;
    while (!gpusync_is_idle(queue) || !gpusync_is_done(queue, ticket)) /* may be a moment behind */
        EXPECT(gpusync_now_ns() < limit);
#if HOW != 2
    EXPECT(second_is_idle(queue));
    EXPECT(second_is_done(queue, ticket));
    EXPECT(second_poll(queue, ticket) == GPUSYNC_OK);
#endif
#if HOW == 3
    EXPECT(asserts_seen);
#endif
    EXPECT(gpusync_queue_destroy(queue) == GPUSYNC_OK);
    EXPECT(gpusync_device_destroy(device) == GPUSYNC_OK);
    puts("three commits, all of them done");
    return 0;
}
