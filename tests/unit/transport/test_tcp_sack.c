/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tcp_sack.c - RFC 2018, 2883, 6675: SACK blocks sent, received, and hostile ones.
 * harp_conn_info(): readable bytes, congestion state, backoff, and the numbers of segments SACKed,
 * lost and retransmitted.
 */

#include "tcp_sack_rig.h"

/* ---- As a receiver --------------------------------------------------------------------------- */

/* The peer sends len bytes at an offset from RCV.NXT; returns the stack's answer. */
static const struct rig_seg *send_at(uint32_t offset, uint32_t len)
{
	struct rig_say say = rig_usual(&rig, TCP_ACK, len);

	say.seq += offset;
	rig_says(&rig, say);
	rig_poll(&rig);
	return rig_expect(&rig, TCP_ACK);
}

#define BLOCKS(...) ((const uint32_t[][2]){ __VA_ARGS__ })

/* RFC 6691: a segment with blocks is not longer than one without. */
TEST(sack_blocks_do_not_lengthen_data_segments)
{
	const struct rig_seg *s;

	put_in_flight(0, true);
	send_at(500, 500);
	s = rig_writes(&rig, 1000);
	CHECK_EQ(s->opt.sack_count, 1);
	s = rig_writes(&rig, 1440);
	CHECK_EQ(s->opt.sack_count, 0);
}

/* ---- As a sender ----------------------------------------------------------------------------- */

/* A duplicate ACK that the full NIC refuses is sent later: perhaps no other segment follows. */
TEST(a_full_nic_delays_the_last_duplicate_ack)
{
	const struct rig_seg *last;

	rig_begin_sack(&rig, NULL);
	rig.stack->io.tx_ring = 32;
	rig.nic_full = true;
	for (uint32_t i = 1; i <= 40; i++)
		rig_says_at(&rig, TCP_ACK, i * 100, 50);
	rig.nic_full = false;
	rig_poll(&rig); /* passes the waiting packets to the NIC */
	rig_poll(&rig);
	CHECK(rig_pending(&rig) > 0);
	last = &rig.out[(rig.out_tail - 1) % RIG_QUEUE];
	CHECK_EQ(last->opt.sack[0].start_seq, rig.seq + 40 * 100);
	rig.out_head = rig.out_tail;
}

TEST(a_timeout_keeps_the_scoreboard)
{
	put_in_flight(10, true);
	advance(RTT_NS);
	sack(0, 9, 10); /* the segments before it are lost, and so are their retransmissions */
	rig.out_head = rig.out_tail;
	sack(0, 4, 6);
	rig.out_head = rig.out_tail;
	rig_wait(&rig, 8 * RIG_MS);
	CHECK(rig_stat(&rig, "tcp_rto") > 0);
	rig.out_head = rig.out_tail;
	for (uint32_t i = 0; i < 12 && rig.conn->recovery; i++) {
		uint32_t una = (rig.conn->snd.una_seq - first_seq) / MSS;

		advance(RTT_NS);
		ack(una == 3 ? 6 : una == 8 ? 10 : una + 1);
		while (rig_pending(&rig)) {
			uint32_t seg = (rig.out[rig.out_head % RIG_QUEUE].seq - first_seq) / MSS;

			CHECK(seg != 4 && seg != 5 && seg != 9);
			expect_segment(seg);
		}
	}
	CHECK_EQ(rig.conn->snd.una_seq, seq_of(10));
}

/* A segment counts as SACKed only as a whole. */
TEST(a_block_within_a_segment_marks_nothing)
{
	put_in_flight(10, true);
	advance(RTT_NS);
	for (uint32_t i = 0; i < 1447; i++) {
		struct rig_say say = ack_say(0, 1, BLOCKS({ 0, 0 }));

		say.sack[0] = (struct tcp_sack_block){ seq_of(3) + i, seq_of(3) + i + 1 };
		rig_says(&rig, say);
	}
	CHECK_EQ(rig.conn->loss.sacked_bytes, 0);
	sack(0, 3, 4);
	CHECK_EQ(rig.conn->loss.sacked_bytes, MSS);
}

/* CVE-2019-11477 to 11479: for any blocks, an ACK costs a few dozen steps. */
TEST(any_sack_costs_bounded_work)
{
	struct harp_tcp_options opt = { .size = sizeof(opt),
					.congestion = HARP_CONGESTION_FIXED,
					.fixed_window_bytes = 130 * 1448,
					.tx_frames = 200 };
	uint64_t before, acks = 0;
	uint32_t flight;

	rig_begin_sack(&rig, &opt);
	first_seq = rig.ack;
	rig_says(&rig, rig_usual(&rig, TCP_ACK, 0));
	for (uint32_t i = 0; i < 8; i++)
		rig_write(&rig, 30 * 1448);
	rig_poll(&rig);
	rig.out_head = rig.out_tail;
	flight = conn_flight_bytes(rig.conn) / MSS;
	CHECK(flight >= 60);
	advance(RTT_NS);
	before = rig_stat(&rig, "tcp_sack_walked");
	/* Every other segment from both ends of the window, three blocks per ACK, in many
	 * rounds. */
	for (uint32_t round = 0; round < 20; round++) {
		for (uint32_t i = 1; i + 8 < flight; i += 2) {
			uint32_t far = flight - i - 1;
			const uint32_t blocks[3][2] = { { far | 1, (far | 1) + 1 },
							{ i, i + 1 },
							{ (i * 7 % flight) | 1,
							  ((i * 7 % flight) | 1) + 1 } };
			struct rig_say say = ack_say(0, 3, blocks);

			for (uint32_t k = 0; k < 3; k++)
				if (seq_gt(say.sack[k].end_seq, rig.conn->snd.nxt_seq))
					say.sack[k] = say.sack[1];
			rig_says(&rig, say);
			acks++;
			rig.out_head = rig.out_tail;
		}
	}
	CHECK(tcp_sack_sums_valid(rig.conn));
	CHECK((rig_stat(&rig, "tcp_sack_walked") - before) / acks < 64);
}

/*
 * In a window of any size, a segment is found from a nearby entry of the skip index, which covers
 * all data in flight. Throughout, `segments` segments of 1000 bytes are in flight.
 */
static void check_skip_index(uint32_t segments, uint32_t walk_max)
{
	static struct harp_conn conn;
	static struct harp_stats stats;
	struct frame_pool pool = { .frame_count = segments + 1 };
	struct tcp tcp = { .pool = &pool, .stats = &stats };
	struct frame *frames = calloc(pool.frame_count, sizeof(*frames));
	uint64_t walked_max = 0;

	CHECK(frames != NULL);
	memset(&conn, 0, sizeof(conn));
	pool.frames = frames;
	conn.tcp = &tcp;
	conn.snd.una_seq = conn.snd.nxt_seq = 0xfff00000; /* wraps soon */
	for (uint32_t i = 0; i < 20 * segments; i++) {
		struct frame *f = &frames[i % pool.frame_count];

		*f = (struct frame){ .index = i % pool.frame_count, .seq = conn.snd.nxt_seq };
		seg_set(f, 1000, 1);
		if (i > 0)
			conn.sndq.tail->next = f;
		conn.sndq.tail = f;
		conn.snd.nxt_seq += 1000;
		if (i < segments) {
			conn.sndq.head = frames;
		} else { /* the oldest was acknowledged */
			conn.sndq.head = &frames[(i + 2) % pool.frame_count];
			conn.snd.una_seq = conn.sndq.head->seq;
		}
		if (conn.skip_left-- == 0)
			tcp_sack_index(&conn, f);
		if (i % 13 == 0 && i > segments) {
			uint32_t seq = conn.snd.una_seq +
				       (uint32_t)((uint64_t)i * 7919 % (segments - 2)) * 1000;
			uint64_t before = stats.tcp_sack_walked;

			f = tcp_sack_find(&conn, seq + 1);
			CHECK(f && f->seq == seq);
			if (stats.tcp_sack_walked - before > walked_max)
				walked_max = stats.tcp_sack_walked - before;
		}
	}
	CHECK(walked_max <= walk_max);
	if (walked_max > walk_max)
		fprintf(stderr, "%llu of %u segments walked\n", (unsigned long long)walked_max,
			segments);
	free(frames);
}

TEST(the_skip_index_covers_any_window)
{
	check_skip_index(100, 32);
	check_skip_index(1000, 64);
	check_skip_index(5000, 320);
	check_skip_index(50000, 3200);
}

/* ---- harp_conn_info() ------------------------------------------------------------------------ */

static struct harp_tcp_info info(void)
{
	return rig_info(&rig);
}

static void check_state(enum harp_ca_state state, uint64_t sacked, uint64_t lost, uint64_t retrans)
{
	struct harp_tcp_info got = info();

	CHECK_STR(harp_ca_state_name((enum harp_ca_state)got.ca_state), harp_ca_state_name(state));
	CHECK_EQ(got.sacked_out_segs, sacked);
	CHECK_EQ(got.lost_out_segs, lost);
	CHECK_EQ(got.retrans_out_segs, retrans);
}

/* ---- Readable bytes -------------------------------------------------------------------------- */

TEST(readable_bytes_follow_every_kind_of_read)
{
	struct harp_frame *frame = NULL;
	struct iovec iov;
	uint8_t buf[1000];

	put_in_flight(0, true);
	CHECK_EQ(harp_conn_readable_bytes(rig.conn), 0);
	rig_sends(&rig, TCP_ACK, 1000);
	rig_sends(&rig, TCP_ACK, 500);
	CHECK_EQ(harp_conn_readable_bytes(rig.conn), 1500);
	/* Bytes behind a gap are not readable. */
	rig_says_at(&rig, TCP_ACK, 100, 100);
	CHECK_EQ(harp_conn_readable_bytes(rig.conn), 1500);
	rig_says(&rig, rig_usual(&rig, TCP_ACK, 100));
	rig.seq += 200;
	CHECK_EQ(harp_conn_readable_bytes(rig.conn), 1700);
	/* Peeking consumes nothing, every kind of read does. */
	CHECK_EQ(harp_conn_peek(rig.conn, &iov, 1), 1);
	CHECK_EQ(harp_conn_readable_bytes(rig.conn), 1700);
	CHECK_EQ(harp_conn_recv(rig.conn, buf, 400), 400);
	CHECK_EQ(harp_conn_readable_bytes(rig.conn), 1300);
	harp_conn_consume(rig.conn, 600);
	CHECK_EQ(harp_conn_readable_bytes(rig.conn), 700);
	CHECK_EQ(harp_conn_recv_frame(rig.conn, &frame), 1);
	CHECK_EQ(harp_conn_readable_bytes(rig.conn), 700 - frame->len);
	harp_frame_release(rig.conn, frame);
	/* A FIN is not readable. After a RST the remaining bytes are. */
	rig_sends(&rig, TCP_ACK | TCP_FIN, 0);
	CHECK_EQ(harp_conn_readable_bytes(rig.conn), 200);
	rig_says(&rig, rig_usual(&rig, TCP_RST, 0));
	CHECK_EQ(rig.conn->state, HARP_TCP_CLOSED);
	CHECK_EQ(harp_conn_readable_bytes(rig.conn), 200);
	CHECK_EQ(harp_conn_recv(rig.conn, buf, 50), 50);
	CHECK_EQ(harp_conn_readable_bytes(rig.conn), 150);
}

/* ---- Losses ---------------------------------------------------------------------------------- */

TEST(info_follows_a_fast_recovery)
{
	put_in_flight(10, true);
	check_state(HARP_CA_OPEN, 0, 0, 0);
	CHECK_EQ(info().snd_ssthresh_bytes, HARP_SSTHRESH_NONE);
	advance(RTT_NS);
	sack(0, 1, 2);
	check_state(HARP_CA_DISORDER, 1, 0, 0);
	CHECK_EQ(info().snd_ssthresh_bytes, HARP_SSTHRESH_NONE);
	/* 0 is lost and retransmitted; 1 to 3 have arrived. */
	sack(0, 1, 4);
	check_state(HARP_CA_RECOVERY, 3, 0, 1);
	CHECK(info().snd_ssthresh_bytes < HARP_SSTHRESH_NONE);
	CHECK_EQ(info().retransmits, 1);
	CHECK_EQ(info().lost_segs, 1);
	/* The other segments arrive before the retransmission. */
	sack(0, 1, 10);
	check_state(HARP_CA_RECOVERY, 9, 0, 1);
	advance(RTT_NS);
	ack(10);
	check_state(HARP_CA_OPEN, 0, 0, 0);
	CHECK_EQ(info().retransmits, 1);
	CHECK_EQ(info().lost_segs, 1);
	CHECK(info().snd_ssthresh_bytes < HARP_SSTHRESH_NONE);
}

TEST(a_timeout_backs_off)
{
	uint64_t rto_ns;

	put_in_flight(4, true);
	CHECK_EQ(info().backoff, 0);
	rto_ns = info().rto_ns;
	while (info().backoff == 0)
		rig_wait(&rig, RIG_MS);
	CHECK_EQ(info().ca_state, HARP_CA_LOSS);
	CHECK_EQ(info().lost_out_segs + info().retrans_out_segs, 4);
	CHECK(info().retrans_out_segs >= 1);
	CHECK_EQ(info().rto_ns, 2 * rto_ns);
	while (info().backoff == 1)
		rig_wait(&rig, RIG_MS);
	CHECK_EQ(info().backoff, 2);
	CHECK_EQ(info().rto_ns, 4 * rto_ns);
	CHECK_EQ(info().rto_count, 2);
	/* An ACK of new data ends the backoff, and an ACK of all data ends the loss state. */
	ack(2);
	CHECK_EQ(info().backoff, 0);
	ack(4);
	check_state(HARP_CA_OPEN, 0, 0, 0);
}

TEST(ecn_reduces_the_window)
{
	put_in_flight(10, true);
	rig.conn->options |= HARP_TCPI_ECN;
	rig_says(&rig, rig_usual(&rig, TCP_ACK | TCP_ECE, 0));
	check_state(HARP_CA_CWR, 0, 0, 0);
	CHECK(info().snd_ssthresh_bytes < HARP_SSTHRESH_NONE);
}

/* Sequence number 0 is no former reduction, even if it is outstanding. */
TEST(ecn_reduces_the_window_when_the_sequence_wraps)
{
	rig_open(&rig);
	CHECK_EQ(rig_connect(&rig, RIG_OPTIONS(.ecn = HARP_ECN_REQUEST), &rig.conn), 0);
	tcp_conn_iss(rig.conn, (uint32_t)-5000);
	rig_poll(&rig);
	rig.port = rig.out[rig.out_head % RIG_QUEUE].src_port;
	rig.ack = rig_expect(&rig, TCP_SYN | TCP_ECE | TCP_CWR)->seq + 1;
	CHECK_EQ(rig.ack, (uint32_t)-4999);
	rig_syn_acked_as(&rig, TCP_ECE, RIG_PEER_WND);
	CHECK_EQ(rig_write(&rig, 10 * 1448), 10 * 1448);
	rig_drain(&rig);
	rig.ack += 1448;
	rig_says(&rig, rig_usual(&rig, TCP_ACK | TCP_ECE, 0));
	CHECK_EQ(info().ecn_reductions, 1);
	rig.out_head = rig.out_tail;
}

TEST(states_and_controllers_have_names)
{
	CHECK_STR(harp_ca_state_name(HARP_CA_OPEN), "open");
	CHECK_STR(harp_ca_state_name(HARP_CA_LOSS), "loss");
	CHECK_STR(harp_ca_state_name((enum harp_ca_state)(HARP_CA_LOSS + 1)), "?");
	CHECK_STR(harp_ca_state_name((enum harp_ca_state) - 1), "?");
	for (int i = HARP_CONGESTION_DEFAULT; i <= HARP_CONGESTION_FIXED; i++)
		CHECK_EQ(harp_congestion_from_name(harp_congestion_name((enum harp_congestion)i)),
			 i);
	CHECK_EQ(harp_congestion_from_name("bbr"), -EINVAL);
	CHECK_STR(harp_congestion_name((enum harp_congestion)99), "?");
}
