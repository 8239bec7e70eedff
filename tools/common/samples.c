/* SPDX-License-Identifier: Apache-2.0 */
/* samples.c - exact percentiles of durations. */
#include "samples.h"

#include <errno.h>
#include <stdlib.h>

int samples_init(struct samples *samples, size_t max)
{
	*samples = (struct samples){ .max = max };
	samples->ns = malloc(max * sizeof(*samples->ns));
	return samples->ns ? 0 : -ENOMEM;
}

void samples_destroy(struct samples *samples)
{
	free(samples->ns);
	*samples = (struct samples){ 0 };
}

void samples_add(struct samples *samples, uint64_t ns)
{
	if (samples->count < samples->max)
		samples->ns[samples->count++] = ns < UINT32_MAX ? (uint32_t)ns : UINT32_MAX;
}

static int samples_compare(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

static uint32_t samples_at(const struct samples *samples, unsigned per_mille)
{
	size_t at = samples->count * per_mille / 1000;

	return samples->ns[at < samples->count ? at : samples->count - 1];
}

uint32_t samples_percentile(struct samples *samples, unsigned per_mille)
{
	if (!samples->count)
		return 0;
	qsort(samples->ns, samples->count, sizeof(*samples->ns), samples_compare);
	return samples_at(samples, per_mille);
}

void samples_json(struct samples *samples, FILE *out)
{
	uint32_t min = samples_percentile(samples, 0);

	if (!samples->count) {
		fprintf(out, "null");
		return;
	}
	fprintf(out,
		"{\"min\": %u, \"p50\": %u, \"p90\": %u, \"p99\": %u, \"p999\": %u, \"max\": %u}",
		min, samples_at(samples, 500), samples_at(samples, 900), samples_at(samples, 990),
		samples_at(samples, 999), samples_at(samples, 1000));
}
