/* SPDX-License-Identifier: Apache-2.0 */
/* samples.h - order statistics of measured times, from all samples. */
#ifndef HARP_DRIVER_SAMPLES_H
#define HARP_DRIVER_SAMPLES_H

#include <stddef.h>
#include <stdint.h>

struct samples_summary {
	uint64_t count;
	double min_us, p50_us, p90_us, p99_us, p999_us, max_us, mean_us;
};

/* Sorts ns in place. Percentile q: the smallest sample that at least q of all do not exceed. */
void samples_summarise(uint64_t *ns, size_t count, struct samples_summary *out);

#endif
