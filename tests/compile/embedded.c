/* gpusync.h behind what other headers define: the keywords of Qt, <tgmath.h>, attributes as kernels name them; and in
   the wrong order (CASE 2). tests/compile.sh compiles it. */
#if CASE == 1
#define signals public
#define slots
#define emit
#ifndef __cplusplus
#include <tgmath.h>
#endif
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#define unused __attribute__((__unused__))
#define noinline __attribute__((__noinline__))
#define cold __attribute__((__cold__))
#define warn_unused_result __attribute__((__warn_unused_result__))
#define min(a, b) ((a) < (b) ? (a) : (b))
#define max(a, b) ((a) > (b) ? (a) : (b))
#define check(x) (x)
#define verify(x) (x)
#define require(x, label) (x)
#define GPUSYNC_STATIC
#elif CASE == 2
#include <gpusync.h>
#define GPUSYNC_STATIC
#endif
#define GPUSYNC_IMPLEMENTATION
#include <gpusync.h>

int main(void)
{
    gpusync_submission submission;
    memset(&submission, 0, sizeof submission);
    submission.signal_points = submission.wait_points;
    return (int)submission.signal_count;
}
