/* SPDX-License-Identifier: Apache-2.0 */
/* impair.h - a wire's impairments as fields of a scenario's elements (elements.h). */
#ifndef HARP_TESTS_IMPAIR_H
#define HARP_TESTS_IMPAIR_H

#include "elements.h"
#include "nic/wire.h"

#define SCN_IMPAIR(X)                                                                              \
	X(delay_ns, 1000)                                                                          \
	X(jitter_ns, 0)                                                                            \
	X(rate_bps, 0)                                                                             \
	X(queue_bytes, 0)                                                                          \
	X(loss_ppm, 0)                                                                             \
	X(duplicate_ppm, 0)                                                                        \
	X(reorder_ppm, 0)                                                                          \
	X(reorder_ns, 0)                                                                           \
	X(corrupt_ppm, 0)

struct scn_impair {
	SCN_IMPAIR(SCN_MEMBER)
};

static inline struct harp_wire_impair scn_impair_wire(const struct scn_impair *i)
{
	return (struct harp_wire_impair){
		.delay_ns = i->delay_ns,
		.jitter_ns = i->jitter_ns,
		.rate_bps = i->rate_bps,
		.queue_bytes = i->queue_bytes,
		.loss_ppm = (uint32_t)i->loss_ppm,
		.duplicate_ppm = (uint32_t)i->duplicate_ppm,
		.reorder_ppm = (uint32_t)i->reorder_ppm,
		.reorder_ns = i->reorder_ns,
		.corrupt_ppm = (uint32_t)i->corrupt_ppm,
	};
}

#endif
