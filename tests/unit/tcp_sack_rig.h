/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_sack_rig.h - a rig whose peer supports SACK. Tests number segments from 0, the first one in
 * flight.
 *
 * The round-trip time is 100 us. The congestion control is NewReno, whose windows are easy to
 * predict.
 */
#ifndef HARP_TESTS_TCP_SACK_RIG_H
#define HARP_TESTS_TCP_SACK_RIG_H

#include "rig.h"

#define MSS (rig.timestamps ? 1448u : 1460u)
#define US 1000ull
#define RTT_NS (100 * US)

static struct rig rig;
AFTER_EACH(rig_close(&rig))
static uint32_t first_seq; /* of segment 0 */

static inline uint32_t seq_of(uint32_t segment)
{
	return first_seq + segment * MSS;
}

/* Connects and writes `segments`; takes those that the window allows from the queue. */
static inline void put_in_flight(uint32_t segments, bool timestamps)
{
	struct harp_tcp_options opt = { .size = sizeof(opt),
					.congestion = HARP_CONGESTION_NEWRENO };
	rig_open(&rig);
	rig.sack = true;
	rig.timestamps = timestamps;
	rig_syn_sent(&rig, &opt);
	rig.now_ns += RTT_NS;
	rig_syn_acked(&rig);
	CHECK(rig.conn->options & HARP_TCPI_SACK);
	/* The SYN-ACK's window was not scaled; this one is. */
	rig_window(&rig, RIG_PEER_WND);
	first_seq = rig.ack;
	CHECK_EQ(rig_write(&rig, segments * MSS), (ssize_t)(segments * MSS));
	rig_drain(&rig);
}

/* An ACK of the segments before `ack`, with blocks [first, end) of segments. */
static inline struct rig_say ack_say(uint32_t ack, uint32_t count, const uint32_t (*blocks)[2])
{
	struct rig_say say = rig_usual(&rig, TCP_ACK, 0);

	say.ack = seq_of(ack);
	say.sack_count = count;
	for (uint32_t i = 0; i < count; i++)
		say.sack[i] = (struct tcp_sack_block){ seq_of(blocks[i][0]), seq_of(blocks[i][1]) };
	return say;
}

static inline void ack(uint32_t ack)
{
	rig_says(&rig, ack_say(ack, 0, NULL));
	CHECK(tcp_sack_sums_valid(rig.conn));
}

static inline void sack(uint32_t ack, uint32_t start, uint32_t end)
{
	const uint32_t block[1][2] = { { start, end } };

	rig_says(&rig, ack_say(ack, 1, block));
	CHECK(tcp_sack_sums_valid(rig.conn));
}

/* Checks that this is the stack's next segment. */
static inline void expect_segment(uint32_t segment)
{
	const struct rig_seg *s = &rig.out[rig.out_head % RIG_QUEUE];

	CHECK(rig_pending(&rig) > 0);
	if (rig_pending(&rig) == 0)
		return;
	CHECK_EQ((s->seq - first_seq) / MSS, segment);
	CHECK_EQ(s->seq, seq_of(segment));
	rig.tsecr = s->opt.tsval;
	rig.out_head++;
}

static inline void advance(uint64_t ns)
{
	rig.now_ns += ns;
}

#endif
