/* A program that calls gpusync: on Metal it has work done and waits for it, without Metal it is told so.
   tests/compile.sh compiles it in many ways; HOW says where the implementation is.
     0  in another file
     1  here, after the declarations were included
     2  here, private to this file
     3  here, with memory of our own
   Also the two includes and the two languages: it is compiled as C, C++, Objective-C and Objective-C++. */

#ifndef HOW
#define HOW 0
#endif

#if HOW == 2
#define GPUSYNC_STATIC
#define GPUSYNC_IMPLEMENTATION
#endif
#if HOW == 3
#include <stddef.h>
static void *our_malloc(size_t size);
static void our_free(void *memory);
#define GPUSYNC_MALLOC(size) our_malloc(size)
#define GPUSYNC_FREE(memory) our_free(memory)
#define GPUSYNC_IMPLEMENTATION
#endif

#include "gpusync.h"
#include "gpusync.h"

#if HOW == 1
#define GPUSYNC_IMPLEMENTATION
#include "gpusync.h"
#endif

#include <stdio.h>
#include <stdlib.h>

#include "second.h"

#if HOW == 3
static long blocks, most;

static void *our_malloc(size_t size)
{
    long now = __atomic_add_fetch(&blocks, 1, __ATOMIC_SEQ_CST);
    if (now > most)
        most = now;
    return malloc(size);
}

static void our_free(void *memory)
{
    if (memory)
        __atomic_sub_fetch(&blocks, 1, __ATOMIC_SEQ_CST);
    free(memory);
}
#endif

#define EXPECT(condition)                                                        \
    do {                                                                         \
        if (!(condition)) {                                                      \
            fprintf(stderr, "program.c:%d: not so: %s\n", __LINE__, #condition); \
            return 1;                                                            \
        }                                                                        \
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
    EXPECT(gpusync_in_flight(NULL) == 0);
    EXPECT(!gpusync_is_done(NULL, 1));

    if (!GPUSYNC_OBJC) {
        EXPECT(gpusync_device_create(NULL, &device) == GPUSYNC_ERROR_UNSUPPORTED);
        EXPECT(device == NULL);
        EXPECT(gpusync_device_wait(device, GPUSYNC_FOREVER, NULL) == GPUSYNC_ERROR_UNSUPPORTED);
        puts("no Metal, and says so");
        return 0;
    }

    EXPECT(gpusync_device_create(NULL, &device) == GPUSYNC_OK);
    EXPECT(gpusync_queue_create(device, NULL, &queue) == GPUSYNC_OK);
    EXPECT(gpusync_in_flight(queue) == 0);
    for (i = 1; i <= 3; i++) {
        EXPECT(gpusync_command_buffer_create(queue, NULL, GPUSYNC_FOREVER, &buffer) == GPUSYNC_OK);
        EXPECT(gpusync_commit(queue, buffer, &ticket) == GPUSYNC_OK);
        EXPECT(ticket == (gpusync_ticket)i);
    }
    EXPECT(gpusync_wait(queue, ticket, 10000000000, NULL) == GPUSYNC_OK);
    EXPECT(!gpusync_is_done(queue, ticket + 1));
    EXPECT(gpusync_wait(queue, GPUSYNC_EVERYTHING, GPUSYNC_FOREVER, NULL) == GPUSYNC_OK);
    limit = gpusync_now_ns() + 10000000000;
    while (gpusync_in_flight(queue) > 0 || !gpusync_is_done(queue, ticket)) /* may be a moment behind */
        EXPECT(gpusync_now_ns() < limit);
#if HOW != 2
    EXPECT(second_in_flight(queue) == 0);
    EXPECT(second_is_done(queue, ticket));
    EXPECT(second_poll(queue, ticket) == GPUSYNC_OK);
#endif
    EXPECT(gpusync_queue_destroy(queue) == GPUSYNC_OK);
    EXPECT(gpusync_device_destroy(device) == GPUSYNC_OK);
#if HOW == 3
    EXPECT(most > 0);
    EXPECT(blocks == 0);
#endif
    puts("three commits, all of them done");
    return 0;
}
