/* device.h - the GPU of the benchmark: softmetal, which is told how long a kernel takes, or any Metal device

   device_softmetal.c  softmetal, and kernels on softmetal (BENCH_DEVICE=kernels)     make bench
   device_kernels.c    kernels that are calibrated, on whatever Metal device there is
   device_metal.c      the same on the real one                                      make bench-device

   The first and the last have device_choose: bench.c is linked with one of them. gpu.c takes the second as it is. */
#ifndef BENCH_DEVICE_H
#define BENCH_DEVICE_H

#include <stddef.h>
#include <stdint.h>

typedef struct setting {
    const char *name;
    size_t offset; /* of the range in softmetal_timing */
    uint64_t ns;
    const char *source;
} setting;

typedef struct bench_device { /* what may be NULL is not called then */
    const char *name, *heading;
    setting *settings;
    unsigned setting_count;
    void (*begin)(void);                                /* no Metal device yet; may be NULL */
    void (*open)(void);                                 /* the_bench.metal_device is there; prints what was set */
    void (*set_length)(void *command_buffer, uint64_t ns); /* before its commit: how long the GPU works on it */
    void (*settle)(void *metal_queue);                  /* nothing is left to do, and all handlers have returned */
    double (*engine_us)(void);                          /* processor time of what plays the GPU */
    void (*as_completion_thread)(void);                 /* the calling thread stands for one; may be NULL */
    void (*others)(void);                               /* more cases, with the_bench.device; may be NULL */
    void (*end)(void);                                  /* no device is left; may be NULL */
} bench_device;

extern const bench_device kernels_device;
void calibrate_kernels(const double *us, unsigned us_count); /* what its open does, for these lengths, the longest last */
extern const bench_device *the_device;

const bench_device *device_choose(void);
void measure_unknowns(void); /* unknown.c */

#endif
