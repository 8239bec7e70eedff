/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tcp_pressure.c - applications that do not read hold all frames of the pool. A connection
 * without frames closes its window, stays established, and opens the window when frames return.
 */
#include "rig.h"

#define FULL 1448u

enum { HOLDERS = 6 };

static struct rig rig;
static struct harp_conn *holders[HOLDERS];

/* The peer sends a segment in order; returns the stack's last segment. */
static struct rig_seg send_segment(struct harp_conn *conn, uint32_t flags, uint32_t len)
{
	struct rig_say say = rig_usual(&rig, (uint8_t)flags, len);

	say.seq = conn->rcv.nxt_seq;
	say.ack = conn->snd.una_seq;
	rig.port = conn->local_port;
	rig_says(&rig, say);
	rig_poll(&rig);
	rig.out_head = rig.out_tail;
	return rig.out[(rig.out_tail - 1) % RIG_QUEUE];
}

/* Sends a full segment; returns whether the stack accepted it. */
static bool accepts_segment(struct harp_conn *conn)
{
	uint32_t before = conn->rcv.nxt_seq;

	(void)send_segment(conn, TCP_ACK, FULL);
	return conn->rcv.nxt_seq != before;
}

static void read_bytes(struct harp_conn *conn, uint32_t max_bytes)
{
	static uint8_t bytes[1u << 20];

	(void)harp_conn_recv(conn, bytes, max_bytes < sizeof(bytes) ? max_bytes : sizeof(bytes));
}

static struct harp_conn *open_conn(void)
{
	rig_established(&rig, NULL);
	return rig.conn;
}

/* Six connections hold all frames. The segments of another one are dropped although its budget is
 * not used up. */
static void exhaust_pool(void)
{
	rig_open(&rig);
	for (unsigned i = 0; i < HOLDERS; i++) {
		holders[i] = open_conn();
		while (accepts_segment(holders[i]))
			;
	}
	(void)open_conn();
	while (accepts_segment(rig.conn))
		;
	CHECK(rig.conn->frames.rx_held < rig.conn->frames.rx_budget);
	CHECK(conn_rcv_wnd_bytes(rig.conn) > 0); /* still open: frames may return soon */
	rig_wait(&rig, 50 * RIG_MS);
	CHECK(!accepts_segment(rig.conn));
	CHECK_EQ(conn_rcv_wnd_bytes(rig.conn), 0);
}

static void close_all(void)
{
	for (unsigned i = 0; i < HOLDERS; i++)
		harp_conn_abort(holders[i]);
	rig_poll(&rig);
	rig.out_head = rig.out_tail;
	rig_close(&rig);
}

static void release_frames(void)
{
	for (unsigned i = 0; i < HOLDERS; i++)
		read_bytes(holders[i], UINT32_MAX);
}

/* The stack answers retransmissions and window probes with a zero window for as long as no frame is
 * free. */
TEST(a_probe_of_the_closed_window_is_answered)
{
	exhaust_pool();
	for (unsigned minutes = 0; minutes < 10; minutes++) {
		struct rig_seg probe;
		struct rig_say say = rig_usual(&rig, TCP_ACK, 0);

		rig_wait(&rig, 60 * RIG_S);
		CHECK_EQ(send_segment(rig.conn, TCP_ACK, FULL).wnd, 0);
		say.seq = rig.conn->rcv.nxt_seq - 1;
		rig_says(&rig, say);
		probe = *rig_expect(&rig, TCP_ACK);
		CHECK_EQ(probe.wnd, 0);
		CHECK_EQ(probe.ack, rig.conn->rcv.nxt_seq);
	}
	close_all();
}

/* The stack sends a window update without a probe. */
TEST(the_window_opens_when_frames_return)
{
	uint32_t before;

	exhaust_pool();
	before = rig.conn->rcv.nxt_seq;
	release_frames();
	rig_poll(&rig);
	CHECK(conn_rcv_wnd_bytes(rig.conn) > 0);
	CHECK(rig.out[(rig.out_tail - 1) % RIG_QUEUE].wnd > 0);
	CHECK_EQ(rig.out[(rig.out_tail - 1) % RIG_QUEUE].dst_port, RIG_PEER_PORT);
	rig.out_head = rig.out_tail;
	for (unsigned i = 0; i < 100; i++) {
		CHECK(accepts_segment(rig.conn));
		read_bytes(rig.conn, UINT32_MAX);
	}
	CHECK_EQ(rig.conn->rcv.nxt_seq, before + 100 * FULL);
	close_all();
}

/* A caller that sleeps until the next deadline wakes when frames return. */
TEST(the_next_deadline_is_now_when_frames_return)
{
	uint32_t acks_pending;

	exhaust_pool();
	rig_wait(&rig, RIG_S);
	CHECK(harp_stack_next_deadline_ns(rig.stack) > rig.now_ns);
	for (unsigned i = 0; i < 100 && !tcp_pressure_may_serve(&rig.stack->tcp); i++)
		read_bytes(holders[i % HOLDERS], FULL);
	acks_pending = rig.stack->tcp.acks_pending;
	rig.stack->tcp.acks_pending = 0; /* those of other connections */
	CHECK(harp_stack_next_deadline_ns(rig.stack) <= rig.now_ns);
	rig.stack->tcp.acks_pending = acks_pending;
	close_all();
}

TEST(a_connection_under_pressure_can_be_aborted)
{
	exhaust_pool();
	harp_conn_abort(rig.conn);
	rig.conn = NULL;
	rig_poll(&rig);
	CHECK(TAILQ_EMPTY(&rig.stack->tcp.under_pressure));
	release_frames();
	close_all();
}
