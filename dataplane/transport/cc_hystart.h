/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cc_hystart.h - HyStart++ (RFC 9406): leaves slow start when the round-trip time begins to grow,
 * before the queue overflows.
 */
#ifndef HARP_TRANSPORT_CC_HYSTART_H
#define HARP_TRANSPORT_CC_HYSTART_H

#include "transport/cc.h"

#define HYSTART_RTT_NONE UINT32_MAX
#define HYSTART_RTT_THRESH_NS_MIN 100000u   /* see cc_hystart.c */
#define HYSTART_RTT_THRESH_NS_MAX 16000000u /* RFC 9406 section 4.3 */
#define HYSTART_RTT_DIVISOR 8u
#define HYSTART_RTT_SAMPLES 8u
#define HYSTART_CSS_GROWTH_DIVISOR 4u
#define HYSTART_CSS_ROUNDS 5u

struct hystart {
	uint32_t round_end_seq;
	/* minimum round-trip time of the last round and of this one */
	uint32_t rtt_ns_last, rtt_ns_now;
	uint32_t css_rtt_ns_baseline;
	uint8_t samples; /* of this round, in ACKs of two segments; saturates */
	uint8_t css;     /* conservative slow start */
	uint8_t css_rounds;
	uint8_t off; /* the first slow start has ended, and HyStart++ with it */
};

void hystart_begin(struct hystart *h, const struct cc_event *ev);
/* Processes an ACK of the first slow start. Returns the growth in bytes; *leave: slow start ends
 * now. */
uint32_t hystart_acked(struct hystart *h, const struct cc_event *ev, bool *leave);

#endif
