/* spin.c - the spin of a wait against two simple rules, in virtual time

     make bench-spin                  a table, and one line "N passed, N failed"
     BUILD/bench/spin [WAITS [WAKE SLEEP STATUS HANDLER [SEED]]]      waits of each pattern; costs in nanoseconds

   The library is the one that ships, on softmetal's manual clock; only its clock is ours. One thread commits work, waits
   for it, thinks for 10 us, and goes on. A pattern says how long the GPU works each time. The world costs WAKE from unpark
   to the return of park, SLEEP of processor time for each park, STATUS from the GPU's end until a status shows it, and
   HANDLER from there on until the handler comes. So the figures compare the contestants; they do not say what a Mac does.

     default    a wait decides, see gpusync_spin
     near       gpusync_spin.until_near: sleeps until shortly before the expected end, then spins
     park       sleeps at once (a spin of zeros)
     spin 20    spins for 20 us, then sleeps

   The rule, for each pattern: the default's mean latency after the GPU's end, or its processor time, is at most 1.05 of the
   better of the two simple ones in that figure. Against an adversary, whose work is late whenever it is spun for, the
   processor time is at most 1.5 of that of parking. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* The library's clock: it moves by 20 ns with each look at it. */
static uint64_t virtual_ns = 1000000000;

static int look_at_the_clock(clockid_t id, struct timespec *time)
{
    uint64_t ns = __atomic_add_fetch(&virtual_ns, 20, __ATOMIC_SEQ_CST);
    (void)id;
    time->tv_sec = (time_t)(ns / 1000000000u);
    time->tv_nsec = (long)(ns % 1000000000u);
    return 0;
}
#define clock_gettime look_at_the_clock
#define GPUSYNC_IMPLEMENTATION
#include "../../gpusync.h"
#include "../softmetal/softmetal.h"
#undef clock_gettime
#undef pthread_cond_timedwait

#define US(n) ((uint64_t)(n) * 1000u)
#define THINK US(10)
#define SCHEDULE US(3) /* from the commit to the start on an idle GPU */

static uint64_t waits = 1000, wake_ns = 5000, sleep_ns = 4000, status_ns = 5000, handler_ns = 5000, seed = 1;

static void must(bool good, const char *what)
{
    if (good) return;
    fprintf(stderr, "spin: %s\n", what);
    exit(1);
}

/* -- patterns ----------------------------------------------------------------------------------------- */

typedef struct pattern pattern;
struct pattern {
    char name[40];
    uint64_t (*length)(const pattern *p, uint64_t i);
    uint64_t a, b, period;
};

static uint64_t random_state;

static uint64_t draw(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static double draw_unit(void) { return (double)(draw() >> 11) / 9007199254740992.0; }

static uint64_t steady(const pattern *p, uint64_t i) { return (void)i, p->a; }
static uint64_t periodic(const pattern *p, uint64_t i) { return i % p->period == p->period - 1 ? p->b : p->a; }
static uint64_t at_random(const pattern *p, uint64_t i) { return (void)i, draw() % p->period == 0 ? p->b : p->a; }
static uint64_t in_bursts(const pattern *p, uint64_t i) { return i / p->period % 2 ? p->b : p->a; }
static uint64_t jitter(const pattern *p, uint64_t i) { return (void)i, (uint64_t)((double)p->a * (0.5 + draw_unit())); }
static uint64_t exponential(const pattern *p, uint64_t i) { return (void)i, (uint64_t)((double)p->a * -log(1 - draw_unit())); }

static uint64_t mixed(const pattern *p, uint64_t i)
{
    static const uint64_t lengths[] = {US(5), US(20), US(50), US(150), US(300), US(1000), US(3000), US(14000)};
    (void)p, (void)i;
    return lengths[draw() % (sizeof lengths / sizeof lengths[0])];
}

static uint64_t drift(const pattern *p, uint64_t i) /* from 5 us to 1 ms and back */
{
    double at = (double)(i % p->period) / (double)p->period;
    return (uint64_t)(5000 * pow(200, at < 0.5 ? 2 * at : 2 - 2 * at));
}

static uint64_t adverse(const pattern *p, uint64_t i) { return (void)p, (void)i, GPUSYNC_FOREVER; } /* see park */

/* -- the GPU, and a processor that sleeps --------------------------------------------------------------- */

static struct {
    gpusync_device *device;
    gpusync_queue *queue;
    void *buffer;      /* in flight */
    uint64_t end;      /* of the GPU's work; GPUSYNC_FOREVER: decided by what the wait does */
    uint64_t began;    /* of the wait; 0: there is none */
    uint64_t last_end; /* of the work before */
    int shown;         /* 1: the status shows the end, 2: the handler has run */
    bool busy, permit;
    uint64_t slept;    /* in this wait */
    unsigned parks;
} world;

static uint64_t now(void) { return __atomic_load_n(&virtual_ns, __ATOMIC_SEQ_CST); }

static void move_to(uint64_t time)
{
    if (time > now()) __atomic_store_n(&virtual_ns, time, __ATOMIC_SEQ_CST);
}

static double gpu_seconds(void) { return (double)(world.end == GPUSYNC_FOREVER ? now() : world.end) / 1e9; }

/* What is due by now comes true. */
static void go_on(void)
{
    if (world.busy || !world.buffer || world.end == GPUSYNC_FOREVER) return;
    world.busy = true;
    if (world.shown == 0 && now() >= world.end + status_ns) {
        world.shown = 1;
        softmetal_complete(world.buffer);
    }
    if (world.shown == 1 && now() >= world.end + status_ns + handler_ns) {
        world.shown = 2;
        softmetal_finish(world.buffer);
    }
    world.busy = false;
}

static void look_hook(void *user, softmetal_phase phase, void *object, const char *selector)
{
    (void)user, (void)object;
    if (phase == SOFTMETAL_AFTER && world.began && strcmp(selector, "status") == 0) go_on();
}

/* The adversary's work ends 2 us after a spin has given up, and early where no wait spins. */
static void decide(void)
{
    if (world.end != GPUSYNC_FOREVER) return;
    world.end = now() - world.began > US(3) ? now() + US(2) : now() + US(60);
}

static void park(void *user, gpusync_waiter *waiter, uint64_t deadline_ns)
{
    uint64_t from = now(), handler;
    (void)user, (void)waiter;
    decide();
    world.parks++;
    handler = world.end + status_ns + handler_ns;
    if (world.shown == 2) handler = from;
    if (!world.permit && handler > deadline_ns) {
        move_to(deadline_ns);
        go_on();
        move_to(now() + wake_ns);
    } else {
        if (world.shown < 1) move_to(world.end + status_ns);
        go_on();
        move_to(handler);
        go_on();
        move_to(now() + wake_ns);
    }
    world.permit = false;
    world.slept += now() - from;
}

static void unpark(void *user, gpusync_waiter *waiter)
{
    (void)user, (void)waiter;
    world.permit = true;
}

/* -- contestants -------------------------------------------------------------------------------------- */

typedef struct figures {
    double latency_us, cpu_us, in_vain;
} figures;

enum { DEFAULT, NEAR, PARK, SPIN_20, CONTESTANTS };
enum { PROCESSES = 2, MAX_ROWS = 200 };
static const char *const names[CONTESTANTS] = {"default", "near", "park", "spin 20"};

static void set_options(int contestant, gpusync_wait_options *options)
{
    static const gpusync_spin spin_20 = {UINT32_MAX, 0, 20000, false}, near = {UINT32_MAX, 0, 100000, true},
                              none = {0, 0, 0, false};
    memset(options, 0, sizeof *options);
    if (contestant == NEAR) options->spin = &near;
    if (contestant == PARK) options->spin = &none;
    if (contestant == SPIN_20) options->spin = &spin_20;
}

static void one_wait(const pattern *p, uint64_t i, const gpusync_wait_options *options, figures *sum)
{
    gpusync_ticket ticket;
    uint64_t start, length = p->length(p, i);
    must(gpusync_command_buffer(world.queue, NULL, &world.buffer) == GPUSYNC_OK, "a command buffer");
    world.shown = 0;
    world.permit = false;
    world.slept = world.parks = 0;
    must(gpusync_commit(world.queue, world.buffer, &ticket) == GPUSYNC_OK, "a commit");
    start = now() + SCHEDULE;
    world.end = length == GPUSYNC_FOREVER ? length : start + length;
    world.began = now();
    must(gpusync_wait_ex(world.queue, ticket, GPUSYNC_FOREVER, options) == GPUSYNC_OK, "a wait");
    sum->cpu_us += (double)(now() - world.began - world.slept + world.parks * sleep_ns) / 1e3;
    sum->latency_us += (double)(now() - world.end) / 1e3;
    world.began = 0;
    move_to(now() + THINK);
    move_to(world.end + status_ns + handler_ns);
    go_on();
    if (world.shown == 1) go_on();
    must(world.shown == 2, "work that has not ended");
    world.buffer = NULL;
}

static figures run(const pattern *p, int contestant)
{
    gpusync_wait_options options;
    gpusync_stats stats;
    figures sum = {0, 0, 0};
    uint64_t i;
    random_state = 88172645463325252u + seed * 7919;
    set_options(contestant, &options);
    must(gpusync_queue_create(world.device, NULL, &world.queue) == GPUSYNC_OK, "a queue");
    for (i = 0; i < waits; i++) one_wait(p, i, &options, &sum);
    must(gpusync_get_stats(world.queue, &stats) == GPUSYNC_OK, "statistics");
    sum.latency_us /= (double)waits;
    sum.cpu_us /= (double)waits;
    sum.in_vain = (double)stats.spins_in_vain / (double)waits;
    must(gpusync_queue_destroy(world.queue) == GPUSYNC_OK, "the end of a queue");
    return sum;
}

/* -- the table ---------------------------------------------------------------------------------------- */

/* A row is a world of its own. So each second row is computed by a process of its own, on a second processor. */
typedef struct line {
    char text[200];
    bool good;
} line;

static line *lines; /* both processes write here */
static unsigned count, share;

static double less(double a, double b) { return a < b ? a : b; }

static void row(const pattern *p)
{
    figures f[CONTESTANTS];
    line *own = &lines[count++];
    size_t length;
    int k;
    must(count <= MAX_ROWS, "more rows than MAX_ROWS");
    if ((count - 1) % PROCESSES != share) return;
    length = (size_t)snprintf(own->text, sizeof own->text, "%-22s", p->name);
    for (k = 0; k < CONTESTANTS; k++) {
        f[k] = run(p, k);
        length += (size_t)snprintf(own->text + length, sizeof own->text - length, " | %6.1f %7.1f", f[k].latency_us, f[k].cpu_us);
        if (k <= NEAR)
            length += (size_t)snprintf(own->text + length, sizeof own->text - length, " %3.0f %%", f[k].in_vain * 100);
    }
    if (p->length == adverse)
        own->good = f[DEFAULT].cpu_us <= 1.5 * f[PARK].cpu_us;
    else
        own->good = f[DEFAULT].latency_us <= 1.05 * less(f[PARK].latency_us, f[SPIN_20].latency_us) ||
                    f[DEFAULT].cpu_us <= 1.05 * less(f[PARK].cpu_us, f[SPIN_20].cpu_us);
}

#define ROW(how, first, second, every, ...)                       \
    do {                                                          \
        pattern one = {"", how, first, second, every};            \
        snprintf(one.name, sizeof one.name, __VA_ARGS__);         \
        row(&one);                                                \
    } while (0)
#define EACH(i, list) for (i = 0; i < sizeof list / sizeof list[0]; i++)

static void rows(void)
{
    static const unsigned steadies[] = {5, 20, 50, 100, 150, 200, 240, 260, 300, 500, 1000, 3000, 14000};
    static const unsigned longs[] = {100, 150, 200, 250, 300, 350, 400, 500, 700, 1000, 2000, 3000};
    static const unsigned means[] = {20, 100, 200, 300};
    unsigned i, k;
    EACH(i, steadies) ROW(steady, US(steadies[i]), 0, 1, "steady, %u us", steadies[i]);
    ROW(mixed, 0, 0, 1, "mix, 5 us to 14 ms");
    ROW(periodic, US(20), US(2000), 2, "20 us, 2 ms");
    ROW(at_random, US(20), US(2000), 2, "20 us or 2 ms");
    ROW(drift, 0, 0, 1000, "drift, 5 us to 1 ms");
    EACH(i, means) {
        ROW(jitter, US(means[i]), 0, 1, "%u us, jitter 50 %%", means[i]);
        ROW(exponential, US(means[i]), 0, 1, "%u us, exponential", means[i]);
    }
    ROW(in_bursts, US(20), US(2000), 200, "200 x 20 us, 2 ms");
    ROW(in_bursts, US(100), US(3000), 50, "50 x 100 us, 3 ms");
    ROW(in_bursts, US(20), US(400), 10, "10 x 20 us, 400 us");
    ROW(periodic, US(60), US(230), 3, "2 x 60 us, 230 us");
    ROW(periodic, US(20), US(16000), 32, "31 x 20 us, 16 ms");
    for (k = 2; k <= 8; k++)
        EACH(i, longs) ROW(periodic, US(5), US(longs[i]), k, "%u x 5 us, %u us", k - 1, longs[i]);
    for (k = 2; k <= 8; k += 2)
        EACH(i, longs) ROW(at_random, US(5), US(longs[i]), k, "5 us, 1/%u %u us", k, longs[i]);
    ROW(adverse, 0, 0, 1, "adversary");
}

/* This process's share of the rows. The device is made here: a child of fork has none of its parent's threads. */
static void compute(void)
{
    static const gpusync_hooks hooks = {NULL, park, unpark, NULL};
    gpusync_device_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.hooks = &hooks;
    softmetal_reset();
    softmetal_set_clock(SOFTMETAL_MANUAL);
    must(gpusync_device_create(&desc, &world.device) == GPUSYNC_OK, "a device");
    softmetal_set_gpu_clock(gpu_seconds);
    softmetal_set_message_hook(look_hook, NULL);
    rows();
    softmetal_set_message_hook(NULL, NULL);
    must(gpusync_device_destroy(world.device) == GPUSYNC_OK, "the end of the device");
}

int main(int argc, char **argv)
{
    uint64_t *const numbers[] = {&waits, &wake_ns, &sleep_ns, &status_ns, &handler_ns, &seed};
    unsigned passed = 0;
    int i, status;
    pid_t child;
    for (i = 1; i < argc && i <= 6; i++) *numbers[i - 1] = strtoull(argv[i], NULL, 0);
    must(waits > 0, "no waits");
    printf("mean latency after the GPU's end, and processor time of a wait, in us; spins in vain. %llu waits a row.\n"
           "A status shows %.1f us after the end, the handler comes %.1f us later, a wake-up takes %.1f us\n\n%-22s",
           (unsigned long long)waits, (double)status_ns / 1e3, (double)handler_ns / 1e3, (double)wake_ns / 1e3, "");
    for (i = 0; i < CONTESTANTS; i++) printf(" | %-*s", i <= NEAR ? 20 : 14, names[i]);
    puts("");
    fflush(stdout);
    lines = (line *)mmap(NULL, MAX_ROWS * sizeof *lines, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must(lines != MAP_FAILED, "memory for the rows");
    child = fork();
    must(child >= 0, "a second process");
    share = child == 0;
    compute();
    if (child == 0) _exit(0);
    must(waitpid(child, &status, 0) == child && status == 0, "the second process has failed");
    for (i = 0; i < (int)count; i++) {
        must(lines[i].text[0] != '\0', "a row is missing");
        printf("%s%s\n", lines[i].text, lines[i].good ? "" : "  FAILED");
        passed += lines[i].good;
    }
    printf("%u passed, %u failed\n", passed, count - passed);
    return passed != count;
}
