/* SPDX-License-Identifier: Apache-2.0 */
/* samples.c - order statistics of measured times, from all samples. */
#include <stdlib.h>
#include <string.h>

#include "samples.h"

static int samples_compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

/* permille of 1000: nearest rank. */
static double samples_at_us(const uint64_t *ns, size_t count, size_t permille)
{
	size_t rank = (count * permille + 999) / 1000;

	return (double)ns[rank ? rank - 1 : 0] / 1e3;
}

void samples_summarise(uint64_t *ns, size_t count, struct samples_summary *out)
{
	double sum = 0;

	memset(out, 0, sizeof(*out));
	if (!count)
		return;
	qsort(ns, count, sizeof(*ns), samples_compare);
	for (size_t i = 0; i < count; i++)
		sum += (double)ns[i];
	out->count = count;
	out->min_us = (double)ns[0] / 1e3;
	out->p50_us = samples_at_us(ns, count, 500);
	out->p90_us = samples_at_us(ns, count, 900);
	out->p99_us = samples_at_us(ns, count, 990);
	out->p999_us = samples_at_us(ns, count, 999);
	out->max_us = (double)ns[count - 1] / 1e3;
	out->mean_us = sum / (double)count / 1e3;
}
