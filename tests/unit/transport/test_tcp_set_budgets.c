/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tcp_set_budgets.c - frames to receive and to send, and the limit of unsent bytes, changed on
 * an open connection.
 */
#include "tcp_rig.h"

static struct rig rig;
AFTER_EACH(rig_close(&rig))

static void set_frames(uint32_t rx_frames, uint32_t tx_frames)
{
	struct harp_tcp_options opt = rig_options(&rig);

	opt.rx_frames = rx_frames;
	opt.tx_frames = tx_frames;
	CHECK_EQ(harp_conn_set_options(rig.conn, &opt), 0);
}

TEST(more_receive_frames_open_the_window_at_once)
{
	struct harp_tcp_options opt = { .size = sizeof(opt), .rx_frames = 16 };
	uint64_t before;

	rig_begin(&rig, &opt);
	before = rig_info(&rig).rcv_wnd_bytes;
	CHECK(before <= 16 * 1460);
	set_frames(40, 16);
	rig_poll(&rig);
	/* The scale of the handshake is 0: 65535 at most. */
	CHECK_EQ(rig_expect(&rig, TCP_ACK)->wnd, 40 * 1460);
	CHECK_EQ(rig_info(&rig).rcv_wnd_bytes, 40 * 1460);
	set_frames(64, 16);
	rig_poll(&rig);
	CHECK(rig_info(&rig).rcv_wnd_bytes <= 65535);
}

/* The window that was advertised is not taken back (RFC 9293 section 3.8.6). */
TEST(fewer_receive_frames_are_refused)
{
	struct harp_tcp_options opt = { .size = sizeof(opt), .rx_frames = 40 };

	rig_begin(&rig, &opt);
	CHECK_EQ(RIG_SET(&rig, rx_frames, 39), -EISCONN);
	CHECK_EQ(rig.conn->frames.rx_budget, 40);
}

TEST(more_send_frames_wake_the_writer)
{
	struct harp_tcp_options opt = { .size = sizeof(opt), .tx_frames = 8 };

	rig_begin(&rig, &opt);
	CHECK(rig_write(&rig, 100 * 1448) < 100 * 1448);
	CHECK_EQ(rig_write(&rig, 1), -EAGAIN);
	CHECK(!(rig_events(&rig) & HARP_EVENT_WRITABLE));
	set_frames(rig.conn->frames.rx_budget, 32);
	CHECK(rig_events(&rig) & HARP_EVENT_WRITABLE);
	CHECK(rig_write(&rig, 1448) > 0);
}

TEST(fewer_send_frames_refuse_until_acknowledged)
{
	struct harp_tcp_options opt = { .size = sizeof(opt),
					.tx_frames = 32,
					.congestion = HARP_CONGESTION_FIXED,
					.fixed_window_bytes = 100000 };

	rig_begin(&rig, &opt);
	CHECK_EQ(rig_write(&rig, 20 * 1448), 20 * 1448);
	set_frames(rig.conn->frames.rx_budget, 8);
	CHECK_EQ(harp_conn_send_space(rig.conn), 0);
	CHECK_EQ(rig_write(&rig, 1), -EAGAIN);
	rig.out_head = rig.out_tail;
	rig.ack += 20 * 1448;
	rig_says(&rig, rig_usual(&rig, TCP_ACK, 0));
	CHECK(rig_events(&rig) & HARP_EVENT_WRITABLE);
	CHECK_EQ(harp_conn_send_space(rig.conn), 8 * 1448);
}

TEST(the_unsent_limit_changes)
{
	struct harp_tcp_options opt = { .size = sizeof(opt), .unsent_bytes_max = 1448 };

	rig_begin(&rig, &opt);
	CHECK_EQ(harp_conn_send_space(rig.conn), 1448);
	CHECK_EQ(RIG_SET(&rig, unsent_bytes_max, 2 * 1448), 0);
	CHECK_EQ(harp_conn_send_space(rig.conn), 2 * 1448);
	CHECK_EQ(RIG_SET(&rig, unsent_bytes_max, 0), 0);
	CHECK(harp_conn_send_space(rig.conn) > 10 * 1448);
}
