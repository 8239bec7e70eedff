/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tcp_reass.c - reassembly of segments that overlap, are tiny, or contradict a FIN. Received
 * bytes never change, and a peer can make the stack hold only a bounded number of frames.
 */
#include "base/rng.h"
#include "rig.h"

static struct rig rig;
AFTER_EACH(rig_close(&rig))

static void send_at(uint32_t offset, uint32_t len, uint8_t salt)
{
	struct rig_say say = rig_usual(&rig, TCP_ACK, len);

	say.seq += offset;
	say.salt = salt;
	rig_says(&rig, say);
	rig.out_head = rig.out_tail;
}

static uint32_t read_all(uint8_t *buf, uint32_t cap)
{
	ssize_t n = harp_conn_recv(rig.conn, buf, cap);

	return n > 0 ? (uint32_t)n : 0;
}

/* Allen's thirteen relations of a second segment to [200, 300): the bytes that arrive first win. */
TEST(overlaps_never_change_what_was_received)
{
	static const struct {
		const char *relation;
		uint32_t start, end;
	} rows[] = {
		{ "before", 50, 150 },         { "meets", 100, 200 },
		{ "overlaps", 150, 250 },      { "finished by", 150, 300 },
		{ "contains", 150, 350 },      { "starts", 200, 250 },
		{ "equals", 200, 300 },        { "started by", 200, 350 },
		{ "during", 220, 280 },        { "finishes", 250, 300 },
		{ "overlapped by", 250, 350 }, { "met by", 300, 400 },
		{ "after", 350, 450 },         { "starts in order", 0, 250 },
		{ "in order, all", 0, 400 },   { "finished by, in order", 0, 300 },
	};
	uint8_t buf[600];

	for (unsigned i = 0; i < ARRAY_SIZE(rows); i++) {
		uint32_t got;

		rig_begin(&rig, NULL);
		send_at(200, 100, 0);
		send_at(rows[i].start, rows[i].end - rows[i].start, 0x55);
		/* The peer sends and retransmits the rest. */
		for (unsigned turn = 0; turn < 4; turn++)
			send_at(rig.conn->rcv.nxt_seq - rig.seq,
				500 - (rig.conn->rcv.nxt_seq - rig.seq), 0xaa);
		got = read_all(buf, sizeof(buf));
		CHECK_EQ(got, 500);
		for (uint32_t pos = 0; pos < got; pos++) {
			uint8_t salt = buf[pos] ^ rig_byte(rig.seq + pos);
			bool is_second = pos >= rows[i].start && pos < rows[i].end;

			if (pos >= 200 && pos < 300)
				CHECK_EQ(salt, 0); /* the first bytes win */
			else
				CHECK_EQ(salt, is_second ? 0x55 : 0xaa);
			if (check_failures) {
				fprintf(stderr, "%s: byte %u\n", rows[i].relation, pos);
				break;
			}
		}
		rig_close(&rig);
	}
}

/* Checks that the reassembly list is sorted, has no overlaps, and its bytes never change. */
static void check_list(uint8_t *known_value, bool *is_known, uint32_t cap)
{
	const struct frame *previous = NULL;
	uint32_t frames = 0;

	for (const struct frame *f = rig.conn->reass.head; f; f = f->next, frames++) {
		CHECK(f->pub.len > 0 && seq_gt(f->seq, rig.conn->rcv.nxt_seq));
		CHECK(!previous || seq_leq(previous->seq + previous->pub.len, f->seq));
		for (uint32_t i = 0; i < f->pub.len; i++) {
			uint32_t pos = f->seq + i - rig.seq;

			CHECK(pos < cap && (!is_known[pos] || known_value[pos] == f->pub.data[i]));
			is_known[pos] = true;
			known_value[pos] = f->pub.data[i];
		}
		previous = f;
	}
	CHECK(rig.conn->reass.tail == previous);
	CHECK_EQ(frames, rig.conn->frames.reass_held);
}

TEST(random_overlaps_never_change_what_was_received)
{
	enum { SPAN = 60000 };
	static uint8_t value[SPAN], buf[SPAN];
	static bool is_known[SPAN];
	struct rng rng;
	uint32_t got = 0;

	rng_seed(&rng, 5961);
	memset(is_known, 0, sizeof(is_known));
	rig_begin(&rig, NULL);
	while (rig.conn->rcv.nxt_seq - rig.seq < SPAN - 4000 && !check_failures) {
		uint32_t next = rig.conn->rcv.nxt_seq - rig.seq, n;
		uint32_t start = next + rng_below(&rng, rng_below(&rng, 8) ? 3000 : 1);

		send_at(start, 1 + rng_below(&rng, rng_below(&rng, 2) ? 1400 : 60),
			(uint8_t)rng_u64(&rng));
		check_list(value, is_known, SPAN);
		n = read_all(buf, SPAN);
		for (uint32_t i = 0; i < n; i++)
			CHECK(!is_known[got + i] || value[got + i] == buf[i]);
		got += n;
	}
}

TEST(tiny_segments_out_of_order_are_bounded)
{
	struct rng rng;

	rng_seed(&rng, 1);
	rig_begin(&rig, NULL);
	/* One byte each, none adjacent to another, at random places of the window. */
	for (unsigned i = 0; i < 20000; i++) {
		uint32_t free_frames = rig.stack->pool.free_count;

		send_at(2 + 2 * rng_below(&rng, 20000), 1, 0);
		CHECK(rig.conn->frames.rx_held <= rig.conn->frames.rx_budget);
		CHECK(rig.conn->frames.reass_held <= rig.conn->frames.rx_budget);
		CHECK(free_frames > 16);
	}
	CHECK(rig_stat(&rig, "drop_tcp_rx_budget") > 10000);
	/* Bytes in order are still accepted: tiny segments are evicted. */
	send_at(0, 1000, 0);
	CHECK(rig.conn->rcv.nxt_seq - rig.seq >= 2);
}

TEST(tiny_segments_in_order_are_merged)
{
	uint8_t buf[4096];
	uint32_t sent = 0, got = 0, n;

	rig_begin(&rig, NULL);
	for (; sent < 20000; sent++) { /* the application does not read */
		send_at(sent, 1, 0);
		CHECK(rig.conn->frames.rx_held <= rig.conn->frames.rx_budget);
	}
	CHECK_EQ(rig.conn->rcv.nxt_seq - rig.seq, sent);
	CHECK(rig.conn->frames.rx_held <= rig.conn->frames.rx_budget / 2 + 16);
	while ((n = read_all(buf, sizeof(buf))) > 0) {
		rig_check_bytes(buf, n, rig.seq + got);
		got += n;
	}
	CHECK_EQ(got, sent);
}

TEST(frames_of_all_connections_are_bounded)
{
	struct harp_conn *conns[6];

	rig_open(&rig);
	for (unsigned c = 0; c < 6; c++) {
		rig_established(&rig, NULL);
		conns[c] = rig.conn;
		for (unsigned i = 0; i < 400; i++)
			send_at(2 + 2 * i, 1, 0);
	}
	/* Whatever the peers send, the NIC's receive ring stays filled and control packets have
	 * frames. */
	CHECK(rig.stack->pool.free_count >= 16);
	CHECK(rig.stack->io.fill_held >= rig.stack->io.fill_target);
	for (unsigned c = 0; c < 5; c++)
		harp_conn_abort(conns[c]);
}

/*
 * Out-of-order data and unacknowledged data of other connections use up the pool. A connection
 * without frames still receives bytes in order, as long as its application reads them.
 */
TEST(in_order_bytes_are_accepted_when_the_pool_is_used_up)
{
	struct harp_conn *conns[7];
	uint8_t buf[4096];
	uint32_t got = 0;

	rig_begin(&rig, NULL);
	conns[6] = rig.conn;
	for (unsigned c = 0; c < 6; c++) {
		rig_established(&rig, NULL);
		conns[c] = rig.conn;
		while (rig_write(&rig, 1400) > 0)
			rig.out_head = rig.out_tail;
		for (unsigned i = 0; i < 400; i++)
			send_at(2 + 2 * i, 1, 0);
	}
	CHECK(rig_stat(&rig, "drop_tcp_rx_budget") > 0);
	rig_established(&rig, NULL);
	for (unsigned i = 0; i < 200; i++) {
		send_at(got, 1000, 0);
		CHECK_EQ(rig.conn->rcv.nxt_seq - rig.seq, got + 1000);
		CHECK_EQ(read_all(buf, sizeof(buf)), 1000);
		got += 1000;
	}
	CHECK(rig.stack->io.fill_held >= rig.stack->io.fill_target);
	for (unsigned c = 0; c < 7; c++)
		harp_conn_abort(conns[c]);
	CHECK_EQ(rig_stat(&rig, "frames_tcp_rx"), 0);
}

TEST(a_fin_before_received_bytes_is_ignored)
{
	rig_begin(&rig, NULL);
	rig_says_at(&rig, TCP_ACK | TCP_FIN, 50, 0);
	send_at(0, 100, 0); /* bytes beyond the FIN */
	CHECK_EQ(rig.conn->rcv.nxt_seq, rig.seq + 100);
	CHECK_EQ(rig.conn->state, HARP_TCP_ESTABLISHED);
	CHECK_EQ(rig.conn->flags & CONN_FIN_OOO, 0);
}

/* Bytes beyond the FIN arrive before it, after a gap. The FIN discards them. Otherwise the stack
 * would hold them and report them in each ACK for the rest of the connection. */
TEST(bytes_after_the_fin_are_discarded)
{
	const struct rig_seg *s;

	rig_begin_sack(&rig, NULL);
	send_at(200, 100, 0);
	CHECK_EQ(rig.conn->frames.reass_held, 1);
	rig_says(&rig, rig_usual(&rig, TCP_ACK | TCP_FIN, 100));
	s = rig_expect(&rig, TCP_ACK);
	CHECK_EQ(s->ack, rig.seq + 101);
	CHECK_EQ(s->opt.sack_count, 0);
	CHECK_EQ(rig.conn->state, HARP_TCP_CLOSE_WAIT);
	CHECK_EQ(rig.conn->frames.rx_held, 1);
	rig_says_at(&rig, TCP_ACK, 101, 100);
	CHECK_EQ(rig.conn->rcv.nxt_seq, rig.seq + 101);
}

TEST(segments_into_a_closed_window_change_nothing)
{
	uint8_t buf[20000];
	uint32_t end_offset = 0;
	struct rng rng;

	rng_seed(&rng, 3);
	rig_begin(&rig, RIG_OPTIONS(.rx_frames = 4));
	while (conn_rcv_wnd_bytes(rig.conn) > 0) {
		uint32_t wnd = conn_rcv_wnd_bytes(rig.conn);

		send_at(end_offset, wnd < 1448 ? wnd : 1448, 0);
		end_offset = rig.conn->rcv.nxt_seq - rig.seq;
	}
	for (unsigned i = 0; i < 10000; i++) {
		struct rig_say say = rig_usual(&rig, TCP_ACK, rng_below(&rng, 1400));

		say.seq += end_offset + rng_below(&rng, 3000) - 1500;
		say.flags |= rng_below(&rng, 2) ? TCP_FIN : 0;
		say.salt = 0x77;
		rig_says(&rig, say);
		rig.out_head = rig.out_tail;
	}
	CHECK_EQ(rig.conn->rcv.nxt_seq - rig.seq, end_offset);
	CHECK_EQ(rig.conn->state, HARP_TCP_ESTABLISHED);
	CHECK(rig.conn->frames.rx_held <= 4);
	/* The ACK of a probe counts although its byte is refused. */
	CHECK_EQ(rig_write(&rig, 10), 10);
	rig.ack += 10;
	send_at(end_offset, 1, 0);
	CHECK_EQ(harp_conn_acked_bytes(rig.conn), 10);
	CHECK_EQ(read_all(buf, sizeof(buf)), end_offset);
	rig_check_bytes(buf, end_offset, rig.seq);
}

/* A segment covers pieces received before, out of order and then in order. All of its new bytes are
 * kept, and the pieces within it free their frames. */
TEST(bytes_around_received_pieces_are_kept)
{
	uint8_t buf[1400];

	for (uint32_t start = 0; start <= 50; start += 50) {
		rig_begin(&rig, NULL);
		for (uint32_t piece = 100; piece < 1300; piece += 100)
			send_at(piece, 50, 0);
		send_at(1300, 100, 0);
		CHECK_EQ(rig.conn->frames.reass_held, 13);
		send_at(start, 1350 - start, 0x55); /* ends within the last one */
		CHECK_EQ(rig.conn->frames.rx_held, 2);
		send_at(0, start, 0x55);
		CHECK_EQ(rig.conn->rcv.nxt_seq - rig.seq, 1400);
		CHECK_EQ(read_all(buf, sizeof(buf)), 1400);
		for (uint32_t pos = 0; pos < sizeof(buf); pos++) {
			bool is_first = pos >= 1300 || (pos >= 100 && pos % 100 < 50);

			CHECK_EQ(buf[pos] ^ rig_byte(rig.seq + pos), is_first ? 0 : 0x55);
		}
		rig_close(&rig);
	}
}

/* The same for a packet of several frames, such as a jumbo frame: the piece is its beginning, lies
 * within one frame, or in two. */
TEST(bytes_around_a_received_piece_are_kept_in_a_packet_of_frames)
{
	uint8_t buf[1400];

	rig_frame_bytes = 1024;
	for (uint32_t start = 0; start < 1400; start += 100) {
		for (uint32_t end = start + 1; end <= 1400; end += 97) {
			rig_begin(&rig, NULL);
			send_at(start, end - start, 0);
			send_at(0, 1400, 0x55);
			CHECK_EQ(rig.conn->rcv.nxt_seq - rig.seq, 1400);
			CHECK_EQ(read_all(buf, sizeof(buf)), 1400);
			for (uint32_t pos = 0; pos < sizeof(buf); pos++)
				CHECK_EQ(buf[pos] ^ rig_byte(rig.seq + pos),
					 pos >= start && pos < end ? 0 : 0x55);
			rig_close(&rig);
		}
	}
	rig_frame_bytes = 0;
}

/* RFC 2883 section 4 (3): one block reports a duplicate of several frames, and the next block is
 * the one that contains it. */
TEST(a_duplicate_of_several_frames_is_one_block)
{
	const struct rig_seg *s;

	rig_frame_bytes = 1024;
	rig_begin_sack(&rig, NULL);
	send_at(100, 1300, 0);
	send_at(1400, 100, 0);
	rig_says_at(&rig, TCP_ACK, 100, 1400);
	s = rig_expect(&rig, TCP_ACK);
	CHECK_EQ(s->opt.sack_count, 2);
	CHECK_EQ(s->opt.sack[0].start_seq - rig.seq, 100);
	CHECK_EQ(s->opt.sack[0].end_seq - rig.seq, 1500);
	CHECK_EQ(s->opt.sack[1].start_seq - rig.seq, 100);
	CHECK_EQ(s->opt.sack[1].end_seq - rig.seq, 1500);
	rig_close(&rig);
	rig_frame_bytes = 0;
}
