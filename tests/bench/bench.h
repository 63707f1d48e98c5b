/* bench.h - what the files of the benchmark share */
#ifndef BENCH_H
#define BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#define MAX_ROUNDS 200u

/* -- bench.c, or gpu.c */

typedef struct bench {
    unsigned rounds;
    void *device, *metal_device; /* the first is gpusync's */
    char device_name[80];        /* Metal's */
    int program_on, softmetal_on; /* processors; -1: not pinned */
    bool real_time;               /* SCHED_FIFO; only where pinned */
    bool gpu_clock;               /* the GPU's times are in the clock of wall_us */
    double wake_up_us;
    double seconds; /* all of it took */
} bench;

extern bench the_bench;

/* -- tools.c */

double now_us(clockid_t clock);
double wall_us(void);
double gpu_us(void *command_buffer, const char *which); /* GPUStartTime or GPUEndTime */
bool is_wanted(const char *title);  /* by BENCH_ONLY */
unsigned in_order(unsigned k, unsigned round, unsigned count); /* of a prime number of contestants, the one that has the k-th turn */
void must(bool condition, const char *what);
void processor_model(char *out, size_t size, const char *otherwise);
void measure_wake_up(void); /* prints it, and sets the_bench.wake_up_us */

/* -- players.c. Linux only */

#define DRIVER "Vulkan driver" /* what the thread is called that lets the driver start its own */

void call_this_thread(const char *name);
void find_players(void); /* the device is open, and has done work */
void print_players(void);
double players_us(void); /* processor time */

/* -- stats.c: of values of rounds */

typedef struct quartiles {
    double low, median, high;
} quartiles;

/* `sure`: there were rounds enough for 95 %. */
typedef struct interval {
    double median, low, high;
    bool sure;
} interval;

double quantile(const double *values, size_t count, double at);
quartiles quartiles_of(const double *values, size_t count);
interval median_interval(const double *values, unsigned count);

/* Own figures beside another's, round by round. A limit is a share of the other's figure, but at least `us`. */
typedef struct comparison {
    double share, us;
    interval ratio;     /* own / other's */
    interval excess_us; /* own - other's - what is allowed: the limit is held where it is not above 0 */
} comparison;

typedef enum verdict { HELD, OPEN, MISSED } verdict;

comparison compare(const double *own, const double *other, unsigned count, double share, double us);
verdict verdict_of(const interval *excess);

/* -- waiting.c: the contestants, kernel by kernel */

typedef struct row { /* a contestant in a case; times in us, all but latencies for a turn */
    const char *contestant;
    quartiles time, cpu, engine_cpu, voluntary, involuntary, latency, gpu;
    double latency_p95, latency_p99;
    comparison beside_gpusync; /* its time by gpusync's */
} row;

typedef struct rule {
    const char *name, *against;
    char title[24];          /* of the case */
    bool by_time, by_cpu;    /* both: missed when it is missed in both */
    comparison time, cpu;
    verdict verdict;
} rule;

typedef struct waiting_case {
    char title[24];
    double kernel_us; /* 0: the mix */
    unsigned commits, turns, warm_turns;
} waiting_case;

typedef void (*row_sink)(const waiting_case *c, const row *rows, unsigned count);
extern const rule *waiting_rules;
extern unsigned waiting_rule_count;

void run_waiting(row_sink sink);
void print_rules(void);

/* -- json.c. Without jansson they do nothing. */

void json_add_rows(const waiting_case *c, const row *rows, unsigned count);
void json_add_other(const char *title, const char *name, quartiles us);
void json_write(void); /* to $BENCH_JSON, if that is set */

#endif
