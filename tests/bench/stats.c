/* stats.c - quantiles, the interval of a median, comparisons round by round */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double *sorted_copy(const double *values, size_t count)
{
    double *sorted = (double *)malloc((count ? count : 1) * sizeof *sorted);
    must(sorted && count, "values to sort");
    memcpy(sorted, values, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, by_size);
    return sorted;
}

/* Between two values, in proportion. */
static double at_of_sorted(const double *sorted, size_t count, double at)
{
    double place = at * (double)(count - 1);
    size_t below = (size_t)place;
    if (below + 1 >= count) return sorted[count - 1];
    return sorted[below] + (place - (double)below) * (sorted[below + 1] - sorted[below]);
}

double quantile(const double *values, size_t count, double at)
{
    double *sorted = sorted_copy(values, count), result = at_of_sorted(sorted, count, at);
    free(sorted);
    return result;
}

quartiles quartiles_of(const double *values, size_t count)
{
    double *sorted = sorted_copy(values, count);
    quartiles q;
    q.low = at_of_sorted(sorted, count, 0.25);
    q.median = at_of_sorted(sorted, count, 0.5);
    q.high = at_of_sorted(sorted, count, 0.75);
    free(sorted);
    return q;
}

/* The interval of the sign test: from the k-th smallest to the k-th largest value. Each value lies below the true median
   with probability 1/2, whatever the distribution. So the median is outside with twice the probability that fewer than k
   of `count` coins show heads; k is the largest with at most 5 %. There is none for fewer than six values. */
interval median_interval(const double *values, unsigned count)
{
    double *sorted = sorted_copy(values, count);
    double probability = pow(0.5, count), outside = 0; /* of i heads; of fewer than k, or more than count - k */
    unsigned k = 0, i;
    interval result;
    for (i = 0; i < count; i++) {
        outside += 2 * probability;
        if (outside > 0.05) break;
        k = i + 1;
        probability *= (double)(count - i) / (i + 1);
    }
    result.sure = k > 0;
    result.median = at_of_sorted(sorted, count, 0.5);
    result.low = sorted[k ? k - 1 : 0];
    result.high = sorted[k ? count - k : count - 1];
    free(sorted);
    return result;
}

/* A limit of "5 %, or 2 us where that is more" is no ratio. So what counts is how far own figures lie beyond what the
   other's allow in the same round, in us, and the interval is that of its median. The ratio is for the reader. */
comparison compare(const double *own, const double *other, unsigned count, double share, double us)
{
    double ratio[MAX_ROUNDS], excess[MAX_ROUNDS];
    comparison c;
    unsigned i;
    for (i = 0; i < count; i++) {
        double allowed = share * other[i];
        if (us > 0 && allowed < us) allowed = us;
        ratio[i] = own[i] / other[i];
        excess[i] = own[i] - other[i] - allowed;
    }
    c.share = share;
    c.us = us;
    c.ratio = median_interval(ratio, count);
    c.excess_us = median_interval(excess, count);
    return c;
}

verdict verdict_of(const interval *excess)
{
    if (!excess->sure) return OPEN;
    return excess->low > 0 ? MISSED : excess->high <= 0 ? HELD : OPEN;
}
