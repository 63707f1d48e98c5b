// cc -std=c99 ios_background.c -framework Metal -framework CoreGraphics -framework Foundation -lobjc
// clang -x objective-c -fobjc-arc ios_background.c -framework UIKit -framework Metal ...: an app for iOS
//
// iOS gives an app in the background no GPU: work that it commits there fails with MTLCommandBufferErrorNotPermitted,
// "Insufficient Permission (to submit GPU work from background)" (maplibre/maplibre-native#3172). Apple's documentation
// (metal/preparing-your-metal-app-to-run-in-the-background): stop committing, and let what was committed come to the
// GPU before the app is suspended. Two functions in plain C do it, for an app's delegate to call: enter_background,
// enter_foreground. Compiled as C, the program plays a way to the background and back. Neither has run on an Apple
// device; tests/compile.sh compiles the delegate against stand-ins for UIKit.

#define GPUSYNC_IMPLEMENTATION /* in exactly one file of a program */
#include "../gpusync.h"
#include "metal.h"
#include <pthread.h>
#include <stdio.h>

enum { JOBS = 4, TRIES = 3, SIZE = 1 << 16 };
#define BEFORE_SUSPENSION UINT64_C(2000000000) /* nanoseconds: about five seconds are given (see the delegate) */
#define AFTER_RETURN UINT64_C(3000000000) /* a lost device gives its work up at gpusync's second look, a second later */

typedef enum job_state { TO_DO, IN_FLIGHT, DONE, FAILED_FOR_GOOD } job_state;

typedef struct job {
    const char *name;
    uint64_t input; /* a value of the timeline that it waits for; 0: none */
    void *memory;   /* an id<MTLBuffer>: the GPU's as long as the job is in flight */
    job_state state;
    unsigned tries;
    gpusync_ticket ticket;
} job;

typedef struct worker {
    gpusync_device *device;
    gpusync_queue *queue;
    gpusync_timeline *inputs; /* of the host: a file or a download has arrived */
    uint64_t cursor;          /* of the failures */
    pthread_mutex_t lock;     /* of what follows, and of each commit: none slips past enter_background */
    bool background;
    job jobs[JOBS];
} worker;

static gpusync_result failed(const char *call, gpusync_result result)
{
    if (result != GPUSYNC_OK) fprintf(stderr, "%s: %s\n", call, gpusync_result_string(result));
    return result;
}
#define FAILED(call) failed(#call, call)

/* -- the core ------------------------------------------------------------------------------------------------------ */

/* With the lock. In the background the job is left to do, and enter_foreground commits it. */
static gpusync_result commit_job(worker *w, job *j)
{
    gpusync_command_buffer_desc desc = {0};
    uint64_t no_time = 0; /* a few jobs leave room in the queue */
    gpusync_result result;
    void *buffer, *blit;
    if (w->background || j->state != TO_DO) return GPUSYNC_OK;
    desc.label = j->name;
    desc.timeout_ns = &no_time;
    result = FAILED(gpusync_command_buffer(w->queue, &desc, &buffer));
    if (result != GPUSYNC_OK) return result;
    if (j->input) result = FAILED(gpusync_encode_wait(w->queue, buffer, gpusync_at_value(w->inputs, j->input)));
    blit = metal_blit_begin(buffer);
    metal_fill(blit, j->memory, 0, SIZE, (unsigned char)(j - w->jobs + 1));
    metal_end(blit);
    if (result == GPUSYNC_OK) result = FAILED(gpusync_commit(w->queue, buffer, &j->ticket));
    if (result != GPUSYNC_OK) gpusync_command_buffer_discard(w->queue, buffer);
    else j->state = IN_FLIGHT, j->tries++;
    return result;
}

/* From any thread. */
static gpusync_result submit(worker *w, unsigned number)
{
    gpusync_result result;
    pthread_mutex_lock(&w->lock);
    result = commit_job(w, &w->jobs[number]);
    pthread_mutex_unlock(&w->lock);
    return result;
}

/* Before the app is suspended. False: work is still in flight. It may fail, and enter_foreground finds out. */
static bool enter_background(worker *w, uint64_t limit_ns)
{
    gpusync_result result;
    pthread_mutex_lock(&w->lock); /* a commit that has begun comes first, and is waited for */
    w->background = true;
    pthread_mutex_unlock(&w->lock);
    gpusync_cancel_held(w->queue); /* else gpusync commits it when its input arrives, in the background */
    result = gpusync_queue_wait(w->queue, limit_ns);
    return result != GPUSYNC_TIMEOUT;
}

/* With the lock. The log names each job that did not end well; it keeps 64 failures. */
static void sort_out(worker *w)
{
    gpusync_error error;
    while (gpusync_next_error(w->queue, &w->cursor, &error) == GPUSYNC_OK) {
        fprintf(stderr, "%s: %s\n", error.label, error.message);
        for (job *j = w->jobs; j < w->jobs + JOBS; j++) {
            bool again = gpusync_failure_is_transient(error.failure) || error.failure == GPUSYNC_FAILURE_CANCELLED;
            if (j->state != IN_FLIGHT || j->ticket != error.ticket) continue;
            j->state = again && j->tries < TRIES ? TO_DO : FAILED_FOR_GOOD;
        }
    }
    for (job *j = w->jobs; j < w->jobs + JOBS; j++) {
        gpusync_result result = j->state == IN_FLIGHT ? gpusync_poll(w->queue, j->ticket) : GPUSYNC_NOT_READY;
        if (result != GPUSYNC_NOT_READY) j->state = result == GPUSYNC_OK ? DONE : FAILED_FOR_GOOD;
    }
}

/* When the app is active again. TIMEOUT: work is still in flight, and nothing was committed: call again later. A wait
   from before the suspension does not do: its clock went on. Timers were suspended, too, so what the GPU reported
   meanwhile may be found only now. */
static gpusync_result enter_foreground(worker *w, uint64_t limit_ns)
{
    gpusync_result result = gpusync_queue_wait(w->queue, limit_ns);
    if (result == GPUSYNC_TIMEOUT) return result;
    if (result != GPUSYNC_ERROR_DEVICE_LOST) result = GPUSYNC_OK; /* the log tells of failures, and keeps them */
    pthread_mutex_lock(&w->lock);
    sort_out(w);
    w->background = false;
    for (unsigned i = 0; result == GPUSYNC_OK && i < JOBS; i++) result = commit_job(w, &w->jobs[i]);
    pthread_mutex_unlock(&w->lock);
    return result;
}

static bool open_worker(worker *w, gpusync_device *device)
{
    static const char *const names[JOBS] = {"thumbnail", "filter", "caption", "export"};
    bool good;
    w->device = device;
    pthread_mutex_init(&w->lock, NULL);
    good = !FAILED(gpusync_queue_create(device, NULL, &w->queue)) &&
           !FAILED(gpusync_timeline_create(device, NULL, &w->inputs));
    for (unsigned i = 0; i < JOBS; i++) {
        w->jobs[i].name = names[i];
        w->jobs[i].memory = metal_buffer_new(gpusync_device_metal(device), SIZE);
        if (!w->jobs[i].memory) good = !failed("newBufferWithLength", GPUSYNC_ERROR_METAL_NIL);
    }
    w->jobs[2].input = 1;
    return good;
}

#ifdef __OBJC__ /* -- an app --------------------------------------------------------------------------------------- */
#import <UIKit/UIKit.h>

static worker the_worker;

@interface AppDelegate : UIResponder <UIApplicationDelegate>
@end

@implementation AppDelegate

/* UIKit posts these with scenes and without; applicationDidEnterBackground: is not called in an app with scenes. It has
   about five seconds (uikit/uiapplicationdelegate/applicationdidenterbackground(_:)). */
- (BOOL)application:(UIApplication *)application didFinishLaunchingWithOptions:(NSDictionary *)options
{
    NSNotificationCenter *center = NSNotificationCenter.defaultCenter;
    gpusync_device *device;
    (void)application;
    (void)options;
    if (FAILED(gpusync_device_create(NULL, &device)) || !open_worker(&the_worker, device)) return NO;
    [center addObserver:self selector:@selector(leave:) name:UIApplicationDidEnterBackgroundNotification object:nil];
    [center addObserver:self selector:@selector(come:) name:UIApplicationDidBecomeActiveNotification object:nil];
    for (unsigned i = 0; i < JOBS; i++) (void)submit(&the_worker, i);
    return YES;
}

- (void)leave:(NSNotification *)notification /* the app may be suspended when this returns */
{
    (void)notification;
    if (!enter_background(&the_worker, BEFORE_SUSPENSION)) fputs("the GPU still works\n", stderr);
}

- (void)come:(NSNotification *)notification /* also at the launch, and after a call or an alert */
{
    (void)notification;
    if (!the_worker.background) return;
    if (enter_foreground(&the_worker, 0) == GPUSYNC_TIMEOUT) /* the main thread does not wait: it looks again */
        [self performSelector:@selector(come:) withObject:nil afterDelay:0.25];
}

@end

int main(int argc, char **argv)
{
    @autoreleasepool {
        return UIApplicationMain(argc, argv, nil, NSStringFromClass(AppDelegate.class));
    }
}
#else /* -- the way of an app, played ------------------------------------------------------------------------------ */

static bool close_worker(worker *w)
{
    bool good = true;
    if (gpusync_queue_wait(w->queue, 0) == GPUSYNC_TIMEOUT) gpusync_queue_destroy_now(w->queue); /* the GPU hangs */
    else if (FAILED(gpusync_queue_destroy(w->queue))) good = false;
    if (FAILED(gpusync_timeline_destroy(w->inputs)) || FAILED(gpusync_device_destroy(w->device))) good = false;
    for (unsigned i = 0; i < JOBS; i++) metal_release(w->jobs[i].memory); /* what the GPU uses, Metal keeps */
    pthread_mutex_destroy(&w->lock);
    return good;
}

static bool is_in_flight(const worker *w)
{
    for (unsigned i = 0; i < JOBS; i++)
        if (w->jobs[i].state == IN_FLIGHT) return true;
    return false;
}

static gpusync_result play(worker *w)
{
    gpusync_result result = submit(w, 0);
    if (result == GPUSYNC_OK) result = submit(w, 1);
    if (result == GPUSYNC_OK) result = submit(w, 2); /* held until its input is there */
    if (result != GPUSYNC_OK) return result;
    printf("to the background: %s\n", enter_background(w, BEFORE_SUSPENSION) ? "all has ended" : "the GPU still works");
    result = FAILED(gpusync_timeline_signal(w->inputs, 1)); /* the input arrives */
    if (result == GPUSYNC_OK) result = submit(w, 3);
    printf("%s: %s\n", w->jobs[3].name, w->jobs[3].state == TO_DO ? "kept" : "committed");
    if (result == GPUSYNC_OK) printf("to the foreground\n");
    do
        if (result == GPUSYNC_OK) result = FAILED(enter_foreground(w, AFTER_RETURN)); /* an app is called back later */
    while (result == GPUSYNC_OK && is_in_flight(w));
    return result;
}

int main(void)
{
    static const char *const words[] = {"to do", "in flight", "done", "failed"};
    static const worker nothing;
    worker w = nothing;
    gpusync_device *device;
    gpusync_result result = gpusync_device_create(NULL, &device);
    bool good;
    if (result == GPUSYNC_ERROR_NO_DEVICE) {
        fprintf(stderr, "skipped: %s\n", gpusync_result_string(result));
        return 77;
    }
    if (failed("gpusync_device_create", result)) return 1;
    good = open_worker(&w, device) && play(&w) == GPUSYNC_OK;
    for (unsigned i = 0; i < JOBS; i++) {
        printf("%s: %s, tries: %u\n", w.jobs[i].name, words[w.jobs[i].state], w.jobs[i].tries);
        if (w.jobs[i].state != DONE) good = false;
    }
    return !close_worker(&w) || !good;
}
#endif
