/* SPDX-License-Identifier: Apache-2.0 */
/* test_tcp_set_mss.c - the largest segment as the application limits it (TCP_MAXSEG), before and
 * later. */
#include "tcp_rig.h"

static struct rig rig;
AFTER_EACH(rig_close(&rig))

/* Writes and takes what leaves off the list; the length of the first segment. */
static uint32_t first_segment_bytes(uint32_t bytes)
{
	uint32_t len;

	CHECK_EQ(rig_write(&rig, bytes), bytes);
	CHECK(rig_pending(&rig) > 0);
	len = rig.out[rig.out_head % RIG_QUEUE].len;
	rig_drain(&rig);
	rig.ack += bytes;
	rig_says(&rig, rig_usual(&rig, TCP_ACK, 0));
	return len;
}

TEST(the_mss_is_announced_and_kept)
{
	struct harp_tcp_options opt = { .size = sizeof(opt), .mss_bytes = 700 };

	rig_open(&rig);
	CHECK_EQ(rig_syn_sent(&rig, &opt)->opt.mss_bytes, 700);
	rig_syn_acked(&rig);                    /* the peer would take 1460 */
	CHECK_EQ(rig.conn->snd.mss_bytes, 688); /* less the timestamps */
	CHECK_EQ(first_segment_bytes(2000), 688);
	rig_close(&rig);
	/* More than the MTU allows is what the MTU allows. */
	opt.mss_bytes = 65535;
	rig_open(&rig);
	CHECK_EQ(rig_syn_sent(&rig, &opt)->opt.mss_bytes, 1460);
	rig_close(&rig);
}

TEST(the_mss_goes_down_and_up_later)
{
	rig_begin(&rig, NULL);
	CHECK_EQ(first_segment_bytes(3000), 1448);
	CHECK_EQ(RIG_SET(&rig, mss_bytes, 600), 0);
	CHECK_EQ(first_segment_bytes(3000), 588);
	CHECK_EQ(RIG_SET(&rig, mss_bytes, 88), 0);
	CHECK_EQ(first_segment_bytes(3000), 76);
	CHECK_EQ(RIG_SET(&rig, mss_bytes, 1000), 0);
	CHECK_EQ(first_segment_bytes(3000), 988);
	CHECK_EQ(RIG_SET(&rig, mss_bytes, 0), 0);
	CHECK_EQ(first_segment_bytes(3000), 1448);
}

/* What waits unsent and what is sent again is cut; no byte is lost or sent twice. */
TEST(a_smaller_mss_cuts_what_is_queued)
{
	struct harp_tcp_options opt = { .size = sizeof(opt),
					.congestion = HARP_CONGESTION_FIXED,
					.fixed_window_bytes = 2 * 1448 };
	uint32_t first, seq;

	rig_begin(&rig, &opt);
	CHECK_EQ(rig_write(&rig, 4 * 1448), 4 * 1448);
	first = rig_expect(&rig, TCP_ACK)->seq;
	CHECK_EQ(rig_expect(&rig, TCP_ACK | TCP_PSH)->len, 1448);
	rig_silent(&rig);
	CHECK_EQ(RIG_SET(&rig, mss_bytes, 500), 0);
	rig_wait(&rig, 100 * RIG_MS); /* the retransmission */
	CHECK(rig_pending(&rig) > 0);
	while (rig_pending(&rig)) {
		const struct rig_seg *s = &rig.out[rig.out_head++ % RIG_QUEUE];

		CHECK_EQ(s->seq, first);
		CHECK_EQ(s->len, 488);
	}
	rig.ack = seq = first + 2 * 1448;
	rig_says(&rig, rig_usual(&rig, TCP_ACK, 0));
	while (seq != first + 4 * 1448) {
		const struct rig_seg *s = &rig.out[rig.out_head % RIG_QUEUE];

		CHECK(rig_pending(&rig) > 0);
		if (!rig_pending(&rig))
			break;
		rig.out_head++;
		CHECK_EQ(s->seq, seq);
		CHECK(s->len <= 488);
		rig.ack = seq += s->len;
		rig_says(&rig, rig_usual(&rig, TCP_ACK, 0));
	}
	CHECK_EQ(harp_conn_acked_bytes(rig.conn), 4 * 1448);
}
