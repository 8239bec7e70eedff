/* SPDX-License-Identifier: Apache-2.0 */
/* cc_rig.h - a congestion controller, and a connection made of numbers that it is told of. */
#ifndef HARP_TESTS_CC_RIG_H
#define HARP_TESTS_CC_RIG_H

#include "check.h"
#include "transport/cc.h"

#define MSS 1000u
#define US 1000ull
#define MS 1000000ull
#define S 1000000000ull

static struct cc cc;
static uint64_t now_ns;
static uint32_t una;

/* An ACK of a full window's flight. */
static struct cc_event event(uint32_t acked, uint64_t rtt_ns)
{
	una += acked;
	return (struct cc_event){ .now_ns = now_ns,
				  .mss_bytes = MSS,
				  .flight_bytes = cc.cwnd_bytes,
				  .acked_bytes = acked,
				  .rtt_ns = rtt_ns,
				  .srtt_ns = rtt_ns,
				  .snd_una_seq = una,
				  .snd_nxt_seq = una + cc.cwnd_bytes,
				  .limited = 1 };
}

#endif
