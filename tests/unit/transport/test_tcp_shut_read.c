/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tcp_shut_read.c - shutdown(SHUT_RD): received bytes are acknowledged and discarded, and
 * reads return end of stream. The other direction and the end of the connection are unaffected.
 */
#include "rig.h"

static struct rig rig;
BEFORE_EACH(rig_frame_count = 4096)
AFTER_EACH(rig_close(&rig))
static uint8_t buf[4000];

static void begin(void)
{
	rig_begin(&rig, RIG_OPTIONS(.rx_frames = 16));
}

/* The peer sends the next len bytes; returns the ACK. */
static const struct rig_seg *peer_sends(uint32_t len)
{
	rig_sends(&rig, TCP_ACK | TCP_PSH, len);
	rig_poll(&rig);
	return rig_expect(&rig, TCP_ACK);
}

static void check_end_of_stream(void)
{
	struct harp_frame *frame = NULL;
	struct iovec iov;

	CHECK_EQ(harp_conn_readable_bytes(rig.conn), 0);
	CHECK_EQ(harp_conn_recv(rig.conn, buf, sizeof(buf)), 0);
	CHECK_EQ(harp_conn_peek(rig.conn, &iov, 1), 0);
	CHECK_EQ(harp_conn_recv_frame(rig.conn, &frame), 0);
}

TEST(later_bytes_are_acknowledged_and_discarded)
{
	const struct rig_seg *s;
	uint64_t fast;

	begin();
	CHECK_EQ(harp_conn_recv(rig.conn, buf, sizeof(buf)), -EAGAIN);
	/* There are enough frames that the fast path would accept data. */
	fast = rig_stat(&rig, "tcp_fast_path_in");
	peer_sends(100);
	CHECK_EQ(rig_stat(&rig, "tcp_fast_path_in"), fast + 1);
	CHECK_EQ(harp_conn_recv(rig.conn, buf, sizeof(buf)), 100);
	rig_events(&rig);
	CHECK_EQ(harp_conn_shutdown(rig.conn, SHUT_RD), 0);
	rig_poll(&rig);
	rig_silent(&rig); /* the call sends nothing */
	check_end_of_stream();
	/* The window stays open for many times the budget. */
	for (unsigned i = 0; i < 200; i++) {
		s = peer_sends(1448);
		CHECK_EQ(s->ack, rig.seq);
		CHECK(s->wnd << rig.conn->rcv.wscale >= 8 * 1448);
		rig.out_head = rig.out_tail;
	}
	CHECK(!(rig_events(&rig) & (HARP_EVENT_READABLE | HARP_EVENT_EOF)));
	check_end_of_stream();
	CHECK_EQ(rig_stat(&rig, "rx_discarded_bytes"), 200 * 1448);
	CHECK_EQ(rig_stat(&rig, "frames_tcp_rx"), 0);
	CHECK_EQ(rig.conn->state, HARP_TCP_ESTABLISHED);
	/* The other direction is open. */
	rig_writes(&rig, 100);
}

TEST(unread_bytes_are_discarded)
{
	begin();
	/* Fills the window. */
	while (rig.conn->rcv.edge_seq - rig.conn->rcv.nxt_seq >= 1448) {
		rig_sends(&rig, TCP_ACK, 1448);
		rig_poll(&rig);
	}
	rig.out_head = rig.out_tail;
	CHECK(harp_conn_readable_bytes(rig.conn) >= 10 * 1448);
	CHECK_EQ(harp_conn_shutdown(rig.conn, SHUT_RD), 0);
	check_end_of_stream();
	CHECK_EQ(rig_stat(&rig, "frames_tcp_rx"), 0);
	CHECK_EQ(rig_stat(&rig, "rx_discarded_bytes"), rig.seq - RIG_PEER_ISS - 1);
	/* The peer gets a window update. */
	rig_poll(&rig);
	CHECK(rig_expect(&rig, TCP_ACK)->wnd >= 8 * 1448);
}

TEST(a_frame_that_the_application_holds_stays)
{
	struct harp_frame *frame = NULL;
	uint32_t seq;

	begin();
	seq = rig.seq;
	peer_sends(100);
	peer_sends(100);
	CHECK_EQ(harp_conn_recv_frame(rig.conn, &frame), 1);
	CHECK_EQ(harp_conn_shutdown(rig.conn, SHUT_RD), 0);
	peer_sends(100);
	CHECK_EQ(frame->len, 100);
	rig_check_bytes(frame->data, 100, seq);
	CHECK_EQ(rig_stat(&rig, "rx_discarded_bytes"), 200);
	harp_frame_release(rig.conn, frame);
	check_end_of_stream();
}

/* Bytes behind a gap are not acknowledged, as usual. */
TEST(bytes_out_of_order_wait_for_the_hole)
{
	begin();
	rig_says_at(&rig, TCP_ACK, 100, 100); /* before and after the call */
	CHECK_EQ(rig_expect(&rig, TCP_ACK)->ack, rig.seq);
	CHECK_EQ(harp_conn_shutdown(rig.conn, SHUT_RD), 0);
	rig_says_at(&rig, TCP_ACK, 300, 100);
	CHECK_EQ(rig_expect(&rig, TCP_ACK)->ack, rig.seq);
	CHECK_EQ(rig_stat(&rig, "rx_discarded_bytes"), 0);
	CHECK_EQ(peer_sends(100)->ack, rig.seq + 100);
	rig.seq += 100;
	CHECK_EQ(peer_sends(100)->ack, rig.seq + 100);
	CHECK_EQ(rig_stat(&rig, "rx_discarded_bytes"), 400);
	CHECK_EQ(rig_stat(&rig, "frames_tcp_rx"), 0);
}

TEST(a_fin_ends_the_connection_as_usual)
{
	begin();
	CHECK_EQ(harp_conn_shutdown(rig.conn, SHUT_RD), 0);
	rig_says(&rig, rig_usual(&rig, TCP_ACK | TCP_FIN, 100));
	rig.seq += 101;
	rig_poll(&rig);
	CHECK_EQ(rig_expect(&rig, TCP_ACK)->ack, rig.seq);
	CHECK_EQ(rig_stat(&rig, "rx_discarded_bytes"), 100);
	CHECK(rig_events(&rig) & HARP_EVENT_EOF);
	CHECK_EQ(rig.conn->state, HARP_TCP_CLOSE_WAIT);
	check_end_of_stream();
	rig_app_closes(&rig);
	rig_expect_fin(&rig);
	rig_says(&rig, rig_usual(&rig, TCP_ACK, 0));
	CHECK_EQ(rig_stat(&rig, "tcp_conns"), 0);
}

/* Discarded bytes are not unread: close sends FIN instead of a RST (RFC 2525). Data after the close
 * is answered with a RST, as usual (RFC 1122 section 4.2.2.13). */
TEST(close_after_shut_rd_sends_fin)
{
	begin();
	peer_sends(100);
	CHECK_EQ(harp_conn_shutdown(rig.conn, SHUT_RD), 0);
	peer_sends(100);
	rig_app_closes(&rig);
	rig_expect_fin(&rig);
	rig_says(&rig, rig_usual(&rig, TCP_ACK | TCP_PSH, 100));
	rig_expect(&rig, TCP_RST | TCP_ACK);
	CHECK_EQ(rig_stat(&rig, "tcp_conns"), 0);
}

TEST(shut_rdwr_sends_fin_and_discards)
{
	begin();
	CHECK_EQ(harp_conn_shutdown(rig.conn, SHUT_RDWR), 0);
	rig_poll(&rig);
	rig_expect_fin(&rig);
	CHECK_EQ(rig_write(&rig, 1), -EPIPE);
	check_end_of_stream();
	for (unsigned i = 0; i < 100; i++) {
		CHECK_EQ(peer_sends(1448)->ack, rig.seq);
		rig.out_head = rig.out_tail;
	}
	CHECK_EQ(rig.conn->state, HARP_TCP_FIN_WAIT_2);
	rig_sends(&rig, TCP_ACK | TCP_FIN, 0);
	rig_poll(&rig);
	CHECK_EQ(rig.conn->state, HARP_TCP_TIME_WAIT);
	CHECK_EQ(rig_stat(&rig, "rx_discarded_bytes"), 100 * 1448);
}

TEST(shut_rd_before_established_discards)
{
	rig_open(&rig);
	rig_syn_sent(&rig, NULL);
	CHECK_EQ(harp_conn_shutdown(rig.conn, SHUT_RD), 0);
	check_end_of_stream();
	rig_syn_acked(&rig);
	CHECK_EQ(peer_sends(100)->ack, rig.seq);
	CHECK_EQ(rig_stat(&rig, "rx_discarded_bytes"), 100);
}

TEST(a_second_shut_rd_is_accepted_and_bad_values_are_refused)
{
	static const int bad[] = { -1, 3, INT32_MAX, INT32_MIN };

	begin();
	peer_sends(100);
	for (unsigned i = 0; i < ARRAY_SIZE(bad); i++)
		CHECK_EQ(harp_conn_shutdown(rig.conn, bad[i]), -EINVAL);
	CHECK_EQ(harp_conn_readable_bytes(rig.conn), 100);
	CHECK_EQ(rig_write(&rig, 1), 1); /* the sending direction is still open */
	rig_expect(&rig, TCP_ACK | TCP_PSH);
	rig.ack++;
	CHECK_EQ(harp_conn_shutdown(rig.conn, SHUT_RD), 0);
	CHECK_EQ(harp_conn_shutdown(rig.conn, SHUT_RD), 0);
	CHECK_EQ(rig_stat(&rig, "rx_discarded_bytes"), 100);
	/* A closed connection reports its error, and so does reading. */
	rig_says(&rig, rig_usual(&rig, TCP_RST, 0));
	CHECK_EQ(harp_conn_shutdown(rig.conn, SHUT_RD), -ECONNRESET);
	CHECK_EQ(harp_conn_shutdown(rig.conn, -1), -EINVAL);
	CHECK_EQ(harp_conn_recv(rig.conn, buf, sizeof(buf)), -ECONNRESET);
}
