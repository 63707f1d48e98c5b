/* What a binding in another language builds on: it finds each call by its name in the library, at run time. Three calls
   have a second symbol, with the version in it; some calls are inline in C. All of them do what they do in C. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "gpusync.h"

#define EXPECT(condition)                                                         \
    do {                                                                          \
        if (!(condition)) {                                                       \
            fprintf(stderr, "bindings.c:%d: not so: %s\n", __LINE__, #condition); \
            return 1;                                                             \
        }                                                                         \
    } while (0)

/* What dlsym finds is not a function to ISO C. */
#define FIND(function, name)                       \
    do {                                           \
        void *found = dlsym(RTLD_DEFAULT, name);   \
        if (!found)                                \
            fprintf(stderr, "no symbol %s\n", name); \
        EXPECT(found != NULL);                     \
        memcpy(&(function), &found, sizeof found); \
    } while (0)

static struct {
    gpusync_result (*device_create)(const gpusync_device_desc *desc, gpusync_device **out);
    gpusync_result (*queue_create)(gpusync_device *device, const gpusync_queue_desc *desc, gpusync_queue **out);
    gpusync_result (*buffer_create)(gpusync_queue *queue, const gpusync_command_buffer_desc *desc, uint64_t timeout_ns,
                                    void **out);
    bool (*is_done)(const gpusync_queue *queue, gpusync_ticket ticket);
    uint64_t (*in_flight)(const gpusync_queue *queue);
    gpusync_point (*at_ticket)(gpusync_queue *queue, gpusync_ticket ticket);
    gpusync_point (*at_value)(gpusync_timeline *timeline, uint64_t value);
    uint32_t (*version)(void);
} calls;

/* A queue with room for one command buffer: each argument has arrived. */
static int check_all(void)
{
    gpusync_queue_desc desc;
    gpusync_device *device = NULL;
    gpusync_queue *queue = NULL;
    gpusync_ticket ticket = 0;
    gpusync_point point;
    void *buffer = NULL;
    void *more = &desc;
    memset(&desc, 0, sizeof desc);
    desc.max_command_buffer_count = 1;
    EXPECT(calls.version() == GPUSYNC_VERSION);
    EXPECT(calls.device_create(NULL, &device) == GPUSYNC_OK);
    EXPECT(calls.queue_create(device, &desc, &queue) == GPUSYNC_OK);
    EXPECT(calls.in_flight(queue) == 0);
    EXPECT(calls.in_flight(NULL) == 0);
    EXPECT(!calls.is_done(NULL, 0));
    EXPECT(calls.is_done(queue, GPUSYNC_NO_TICKET));
    EXPECT(!calls.is_done(queue, 1));
    EXPECT(calls.buffer_create(queue, NULL, GPUSYNC_FOREVER, &buffer) == GPUSYNC_OK);
    EXPECT(calls.buffer_create(queue, NULL, 0, &more) == GPUSYNC_TIMEOUT);
    EXPECT(more == NULL);
    EXPECT(gpusync_commit(queue, buffer, &ticket) == GPUSYNC_OK);
    point = calls.at_ticket(queue, ticket);
    EXPECT(point.queue == queue && point.ticket == ticket && point.timeline == NULL && point.value == 0);
    EXPECT(gpusync_wait_many(&point, 1, GPUSYNC_WAIT_ALL, GPUSYNC_FOREVER, NULL, NULL) == GPUSYNC_OK);
    point = calls.at_value(NULL, UINT64_MAX); /* nothing is checked */
    EXPECT(point.queue == NULL && point.ticket == 0 && point.timeline == NULL && point.value == UINT64_MAX);
    EXPECT(gpusync_queue_destroy(queue) == GPUSYNC_OK);
    EXPECT(gpusync_device_destroy(device) == GPUSYNC_OK);
    EXPECT(calls.device_create(NULL, NULL) == GPUSYNC_ERROR_INVALID_ARGUMENT);
    EXPECT(calls.queue_create(NULL, NULL, &queue) == GPUSYNC_ERROR_INVALID_ARGUMENT && queue == NULL);
    EXPECT(calls.buffer_create(NULL, NULL, 0, &buffer) == GPUSYNC_ERROR_INVALID_ARGUMENT && buffer == NULL);
    return 0;
}

int main(void)
{
    FIND(calls.version, "gpusync_version");
    FIND(calls.is_done, "gpusync_is_done");
    FIND(calls.in_flight, "gpusync_in_flight");
    FIND(calls.at_ticket, "gpusync_at_ticket");
    FIND(calls.at_value, "gpusync_at_value");
    FIND(calls.device_create, "gpusync_device_create");
    FIND(calls.queue_create, "gpusync_queue_create");
    FIND(calls.buffer_create, "gpusync_command_buffer_create");
    EXPECT(check_all() == 0);
    FIND(calls.device_create, "gpusync_device_create_" VERSION);
    FIND(calls.queue_create, "gpusync_queue_create_" VERSION);
    FIND(calls.buffer_create, "gpusync_command_buffer_create_" VERSION);
    EXPECT(check_all() == 0);
    puts("the symbols are there, and are the calls");
    return 0;
}
