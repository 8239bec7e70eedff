/* SPDX-License-Identifier: Apache-2.0 */
/* histogram.h - adds a duration to a struct harp_page_histogram. */
#ifndef HARP_BASE_HISTOGRAM_H
#define HARP_BASE_HISTOGRAM_H

#include "harp_page.h"

/* Four buckets per octave: the exponent and the two bits after the leading one. */
static inline unsigned histogram_bucket(uint64_t value_ns)
{
	unsigned exponent, bucket;

	if (value_ns <= HARP_HISTOGRAM_FIRST_NS)
		return 0;
	value_ns--; /* a bucket includes its upper bound */
	exponent = 63u - (unsigned)__builtin_clzll(value_ns);
	bucket = 1 + (exponent - 7) * 4 + (unsigned)(value_ns >> (exponent - 2) & 3);
	return bucket < HARP_HISTOGRAM_BUCKETS - 1 ? bucket : HARP_HISTOGRAM_BUCKETS - 1;
}

static inline void histogram_count(struct harp_page_histogram *histogram, uint64_t value_ns)
{
	histogram->count++;
	histogram->sum_ns += value_ns;
	histogram->bucket[histogram_bucket(value_ns)]++;
}

#endif
