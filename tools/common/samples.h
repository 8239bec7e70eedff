/* SPDX-License-Identifier: Apache-2.0 */
/* samples.h - exact percentiles of durations. */
#ifndef HARP_TOOLS_SAMPLES_H
#define HARP_TOOLS_SAMPLES_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct samples {
	uint32_t *ns; /* longer durations count as 4.29 s */
	size_t count, max;
};

int samples_init(struct samples *samples, size_t max);
void samples_destroy(struct samples *samples);
/* Ignores samples after the first `max`. */
void samples_add(struct samples *samples, uint64_t ns);
/* Sorts the samples. per_mille 500 is the median. Returns 0 without samples. */
uint32_t samples_percentile(struct samples *samples, unsigned per_mille);
/* {"min": ..., "p50": ..., "p90": ..., "p99": ..., "p999": ..., "max": ...} */
void samples_json(struct samples *samples, FILE *out);

#endif
