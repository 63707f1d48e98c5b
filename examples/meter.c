// cc -std=c99 meter.c -framework Metal -framework CoreGraphics -framework Foundation -lobjc -o meter
//
// A render loop that tells how it is doing, in a line for each 30 frames: how many frames were in flight, how long a frame
// took from its commit to the GPU's end, and how late the loop woke up after the frames that it slept for. All but the
// second comes from gpusync_get_stats: two readings, and what is between them. In the third line the scene is heavy.

#define GPUSYNC_IMPLEMENTATION /* in exactly one file of a program */
#include "../gpusync.h"
#include "example.h" /* check, name_of; softmetal_... where a software device stands in for the GPU */
#include "metal.h"

enum { DEPTH = 3, PERIOD = 30, FRAMES = 4 * PERIOD, HEAVY = 2 * PERIOD, SIZE = 1 << 20 };

static const uint64_t light_ns = MS, heavy_ns = 2 * MS; /* of a frame, on the software device */
static gpusync_device *device;
static gpusync_queue *queue;
static void *screen;

/* -- the meter: one call for each frame, a line for each PERIOD of them -------------------------------------------- */

typedef struct meter {
    gpusync_stats before;          /* as the last line was written */
    unsigned frames;               /* since then */
    uint64_t in_flight, most;      /* the sum of what each frame found, and the largest */
    double sum_s, longest_s;       /* from commit to the GPU's end */
    unsigned ended;                /* frames in that sum */
    uint64_t commits, lines, told; /* of all lines: for the checks at the end */
} meter;

/* #### for a part of the whole. */
static const char *bar(char *text, double part)
{
    const int width = 10;
    int n = part < 0 ? 0 : part > 1 ? width : (int)(part * width + 0.5);
    for (int i = 0; i < width; i++) text[i] = i < n ? '#' : '.';
    text[width] = 0;
    return text;
}

/* How late a sleep woke up, on average: from the GPU's end, where Metal has told it. */
static void average_wake(char *text, size_t size, const gpusync_stats *before, const gpusync_stats *now)
{
    uint64_t wakes = now->wakes - before->wakes;
    if (wakes) snprintf(text, size, "%.0f us", (double)(now->wake_ns - before->wake_ns) / 1e3 / (double)wakes);
    else snprintf(text, size, "not told");
}

static void meter_line(meter *m, const gpusync_stats *now)
{
    char frames[16], time[16], end[64] = "not told", late[32];
    double average = (double)m->in_flight / m->frames, ms = m->ended ? m->sum_s * 1e3 / m->ended : 0;
    if (m->ended)
        snprintf(end, sizeof end, "[%s] %4.1f ms, at most %4.1f", bar(time, ms / 16.7), ms, m->longest_s * 1e3);
    average_wake(late, sizeof late, &m->before, now);
    uint64_t slept = now->waits_sleep - m->before.waits_sleep, spun = now->waits_spin - m->before.waits_spin;
    printf("frame %3" PRIu64 "  in flight [%s] %.1f  GPU's end %s  slept %2" PRIu64 ", late %s  spun %2" PRIu64
           ", %.1f ms  failed %" PRIu64 "\n",
           now->commits, bar(frames, average / (double)DEPTH), average, end, slept, late, spun,
           (double)(now->spin_ns - m->before.spin_ns) / 1e6, now->failures - m->before.failures);
    m->commits += now->commits - m->before.commits;
    m->lines++;
}

/* After each commit. Reading the counts neither blocks nor takes a lock. */
static void meter_frame(meter *m)
{
    gpusync_stats now;
    check(!gpusync_get_stats(queue, &now), "gpusync_get_stats");
    uint64_t in_flight =
        now.commits > now.completions ? now.commits - now.completions : 0; /* not read at one instant */
    m->in_flight += in_flight;
    if (m->most < in_flight) m->most = in_flight;
    if (++m->frames < PERIOD) return;
    meter_line(m, &now);
    m->before = now;
    m->frames = m->ended = 0;
    m->in_flight = 0;
    m->sum_s = m->longest_s = 0;
}

/* A frame whose ticket has ended. It is left out where its times are not known: Metal's handler brings them, which may
   be later than a wait's end, and a virtual machine may tell none. */
static double meter_ended(meter *m, gpusync_ticket ticket, uint64_t committed_ns)
{
    gpusync_ticket_info info;
    if (gpusync_get_info(queue, ticket, &info) || info.gpu_end_s <= 0) return 0;
    double took_s = info.gpu_end_s - (double)committed_ns / 1e9; /* one clock: gpusync_now_ns */
    m->sum_s += took_s;
    if (m->longest_s < took_s) m->longest_s = took_s;
    m->ended++;
    m->told++;
    return took_s;
}

/* -- the loop ------------------------------------------------------------------------------------------------------ */

static uint64_t duration_of(unsigned frame) { return frame >= HEAVY && frame < HEAVY + PERIOD ? heavy_ns : light_ns; }

static gpusync_ticket draw(unsigned frame)
{
    gpusync_command_buffer_desc desc = {.label = "frame"};
    void *command_buffer;
    gpusync_ticket ticket;
    check(!gpusync_command_buffer(queue, &desc, &command_buffer), "gpusync_command_buffer");
    softmetal_set_duration(command_buffer, duration_of(frame));
    void *blit = metal_blit_begin(command_buffer);
    for (uint64_t i = 0; i < duration_of(frame); i += light_ns) metal_fill(blit, screen, 0, SIZE, (unsigned char)frame);
    metal_end(blit);
    check(!gpusync_commit(queue, command_buffer, &ticket), "gpusync_commit");
    return ticket;
}

int main(void)
{
    gpusync_queue_desc desc = {.label = "frames"};
    check_device(gpusync_device_create(NULL, &device));
    check(!gpusync_queue_create(device, &desc, &queue), "gpusync_queue_create");
    check((screen = metal_buffer_new(gpusync_device_metal(device), SIZE)) != NULL, "memory");

    meter m = {.frames = 0};
    gpusync_ticket tickets[DEPTH] = {GPUSYNC_NO_TICKET};
    uint64_t committed_ns[DEPTH];
    for (unsigned frame = 0; frame < FRAMES + DEPTH; frame++) {
        void *pool = metal_pool_push(); /* for what Metal autoreleases in a frame */
        unsigned slot = frame % DEPTH;
        if (frame >= DEPTH) { /* the frame that had this slot: after its end there is room for another */
            check(!gpusync_wait(queue, tickets[slot], 10000 * MS), "gpusync_wait");
            double took_s = meter_ended(&m, tickets[slot], committed_ns[slot]);
            check(real_device || took_s == 0 || took_s * 1e9 >= (double)duration_of(frame - DEPTH),
                  "a frame takes its time");
        }
        if (frame < FRAMES) {
            committed_ns[slot] = gpusync_now_ns();
            tickets[slot] = draw(frame);
            meter_frame(&m);
        }
        metal_pool_pop(pool);
    }
    check(((const unsigned char *)metal_contents(screen))[SIZE - 1] == FRAMES - 1, "the last frame is on the screen");

    gpusync_stats all;
    check(!gpusync_get_stats(queue, &all), "gpusync_get_stats");
    printf("%" PRIu64 " lines tell of %" PRIu64 " frames, %" PRIu64 " with the GPU's end; %" PRIu64
           " in flight at most\n", m.lines, m.commits, m.told, m.most);
    check(m.lines == FRAMES / PERIOD && m.commits == FRAMES, "each frame is in one line");
    check(real_device || m.told > 0, "the times of the GPU");
    check(m.most <= DEPTH, "never more than three in flight");
    check(all.commits == all.completions && !all.failures, "every frame has ended well");
    check(all.wakes <= all.waits_sleep, "only a wait that slept can be late");

    check(!gpusync_queue_destroy(queue) && !gpusync_device_destroy(device), "destroy");
    metal_release(screen);
    printf("meter: all %d checks passed\n", checks);
    return 0;
}
