/* tools.c - clocks, checks, what a wake-up costs, the processor's name: for bench.c and gpu.c */
#include <fnmatch.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../examples/metal.h"
#include "../../gpusync.h"
#include "bench.h"
#include "device.h"

double now_us(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* Of a Mac's clocks, this is the one that Metal's times are said to be in. */
double wall_us(void)
{
    return (double)gpusync_now_ns() / 1e3;
}

double gpu_us(void *command_buffer, const char *which)
{
    return METAL__AS0(double)(command_buffer, metal__sel(which)) * 1e6;
}

void must(bool condition, const char *what)
{
    if (condition) return;
    fprintf(stderr, "bench: failed: %s\n", what);
    exit(1);
}

/* The stride is never a multiple of the count, a prime: so each has a turn, and after count - 1 rounds has come after each of
   the others once. */
unsigned in_order(unsigned k, unsigned round, unsigned count)
{
    unsigned stride = 1 + round % (count - 1);
    return (round + k * stride) % count;
}

bool is_wanted(const char *title)
{
    const char *list = getenv("BENCH_ONLY");
    while (list && *list) {
        char pattern[128];
        size_t length = strcspn(list, ",");
        snprintf(pattern, sizeof pattern, "%.*s", (int)length, list);
        if (fnmatch(pattern, title, 0) == 0) return true;
        list += length + (list[length] == ',');
        if (!*list) return false;
    }
    return true;
}

/* "model name : AMD EPYC": x86. Others have no such line. */
void processor_model(char *out, size_t size, const char *otherwise)
{
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[256];
    snprintf(out, size, "%s", otherwise);
    while (file && fgets(line, sizeof line, file)) {
        char *value = strstr(line, ": ");
        if (strncmp(line, "model name", 10) != 0 || !value) continue;
        value[strcspn(value, "\n")] = 0;
        snprintf(out, size, "%s", value + 2);
        break;
    }
    if (file) fclose(file);
}

/* -- what a wake-up costs on this machine ------------------------------------------------------------- */

typedef struct bell {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned turn;
    bool over;
    double rung_us, heard_us;
} bell;

static void *listen(void *argument)
{
    bell *b = (bell *)argument;
    unsigned seen = 0;
    if (the_device->as_completion_thread) the_device->as_completion_thread();
    pthread_mutex_lock(&b->lock);
    while (!b->over) {
        while (b->turn == seen && !b->over) pthread_cond_wait(&b->changed, &b->lock);
        b->heard_us = wall_us();
        seen = b->turn;
    }
    pthread_mutex_unlock(&b->lock);
    return NULL;
}

void measure_wake_up(void)
{
    bell b = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, false, 0, 0};
    double took[51];
    unsigned i;
    pthread_t thread;
    must(pthread_create(&thread, NULL, listen, &b) == 0, "pthread_create");
    for (i = 0; i < 51; i++) {
        struct timespec nap = {0, 1000000};
        nanosleep(&nap, NULL);
        pthread_mutex_lock(&b.lock);
        b.turn++;
        b.rung_us = wall_us();
        pthread_cond_signal(&b.changed);
        pthread_mutex_unlock(&b.lock);
        nanosleep(&nap, NULL);
        pthread_mutex_lock(&b.lock);
        took[i] = b.heard_us - b.rung_us;
        pthread_mutex_unlock(&b.lock);
    }
    pthread_mutex_lock(&b.lock);
    b.over = true;
    pthread_cond_signal(&b.changed);
    pthread_mutex_unlock(&b.lock);
    pthread_join(thread, NULL);
    the_bench.wake_up_us = quartiles_of(took, 51).median;
    printf("measured here: a condition variable's signal to the sleeper running: %.1f us (median of 51)\n",
           the_bench.wake_up_us);
}
