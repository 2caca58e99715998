// SPDX-License-Identifier: GPL-2.0
/*
 * Latencies, counted by their size.
 */

#include "krdma_smoke_c.h"

#include <linux/mm.h>

/* The index of the counter of HISTOGRAM_MAX, and one more. */
#define COUNTERS								\
	(((33 - HISTOGRAM_STEPS_SHIFT) << HISTOGRAM_STEPS_SHIFT) +	\
	 (HISTOGRAM_MAX >> (33 - HISTOGRAM_STEPS_SHIFT)) + 1)

static_assert(HISTOGRAM_MAX >> 33 == 1);

static void bounds(size_t index, u64 *lower, u64 *upper)
{
	unsigned int shift;

	if (index < HISTOGRAM_STEPS) {
		*lower = index;
		*upper = index;
		return;
	}

	shift = (index >> HISTOGRAM_STEPS_SHIFT) - 1;
	*lower = (u64)((index & (HISTOGRAM_STEPS - 1)) | HISTOGRAM_STEPS)
		 << shift;
	*upper = *lower | (BIT_ULL(shift) - 1);
}

int histogram_init(struct histogram *histogram)
{
	histogram->counters = kvcalloc(COUNTERS, sizeof(*histogram->counters),
				       GFP_KERNEL);
	if (!histogram->counters)
		return -ENOMEM;

	histogram->count = 0;
	histogram->min = U64_MAX;
	histogram->max = 0;
	return 0;
}

void histogram_destroy(struct histogram *histogram)
{
	kvfree(histogram->counters);
}

void histogram_clear(struct histogram *histogram)
{
	memset(histogram->counters, 0,
	       COUNTERS * sizeof(*histogram->counters));
	histogram->count = 0;
	histogram->min = U64_MAX;
	histogram->max = 0;
}

int histogram_summary(const struct histogram *histogram,
		      struct summary *summary)
{
	struct bucket *bucket;
	size_t used = 0;
	size_t i;

	for (i = 0; i < COUNTERS; i++)
		used += histogram->counters[i] > 0;

	bucket = kvmalloc_array(used, sizeof(*bucket), GFP_KERNEL);
	if (!bucket)
		return -ENOMEM;

	summary->min = min(histogram->min, histogram->max);
	summary->max = histogram->max;
	summary->count = histogram->count;
	summary->n_buckets = used;
	summary->buckets = bucket;

	for (i = 0; i < COUNTERS; i++) {
		if (!histogram->counters[i])
			continue;
		bounds(i, &bucket->lower, &bucket->upper);
		/* The last is also that of what is larger. */
		if (i + 1 == COUNTERS)
			bucket->upper = max(bucket->upper, histogram->max);
		bucket->count = histogram->counters[i];
		bucket++;
	}

	return 0;
}

/* Returns the value that so many thousandths are not larger than, to 1 %. */
u64 summary_percentile(const struct summary *summary, u64 permille)
{
	u64 rank = DIV_ROUND_UP_ULL(summary->count * permille, 1000);
	u64 seen = 0;
	size_t i;

	for (i = 0; i < summary->n_buckets; i++) {
		seen += summary->buckets[i].count;
		if (seen >= rank)
			return min(summary->buckets[i].upper, summary->max);
	}

	return summary->max;
}
