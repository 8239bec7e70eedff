/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tcp_life.c - long stories: both ends open or close at once, half of a connection lives on, the
 * segments of an ending get lost, TIME-WAIT gives way, windows stay shut for minutes.
 */
#include "tcp_rig.h"

static struct rig rig;
AFTER_EACH(rig_close(&rig))

static void peer_says(uint8_t flags, uint32_t len)
{
	rig_says(&rig, rig_usual(&rig, flags, len));
	rig.seq += len + ((flags & TCP_FIN) ? 1 : 0);
	rig_poll(&rig);
}

static void our_fin(void)
{
	CHECK_EQ(harp_conn_shutdown(rig.conn, SHUT_WR), 0);
	rig_poll(&rig);
	rig.ack = rig_expect(&rig, TCP_ACK | TCP_FIN | TCP_PSH)->seq + 1;
}

static void to_time_wait(void)
{
	our_fin();
	peer_says(TCP_ACK, 0);
	peer_says(TCP_ACK | TCP_FIN, 0);
	rig_expect(&rig, TCP_ACK);
	CHECK_EQ(rig.conn->state, HARP_TCP_TIME_WAIT);
	harp_conn_close(rig.conn);
	rig.conn = NULL;
}

/* ---- Openings ---- */

TEST(simultaneous_open_with_lost_answers)
{
	struct rig_say say;

	rig_open(&rig);
	rig_syn_sent(&rig, NULL);
	rig_says(&rig, rig_syn(&rig, TCP_SYN));
	CHECK_EQ(rig_expect(&rig, TCP_SYN | TCP_ACK)->seq, rig.ack - 1);
	CHECK_EQ(rig.conn->state, HARP_TCP_SYN_RECEIVED);
	/* Ours was lost; theirs, a SYN-ACK, comes: RFC 9293 figure 7's last line. */
	say = rig_syn(&rig, TCP_SYN | TCP_ACK);
	rig.seq++;
	rig_says(&rig, say);
	rig_poll(&rig);
	CHECK_EQ(rig.conn->state, HARP_TCP_ESTABLISHED);
	CHECK(rig_events(&rig) & HARP_EVENT_CONNECTED);
	rig.out_head = rig.out_tail;
	peer_says(TCP_ACK, 10);
	CHECK_EQ(rig_expect(&rig, TCP_ACK)->ack, rig.seq);
	rig_close(&rig);

	/* An RST in that state refuses the active opener, who is told. */
	rig_open(&rig);
	rig_syn_sent(&rig, NULL);
	rig_says(&rig, rig_syn(&rig, TCP_SYN));
	rig.seq++;
	rig_says(&rig, rig_usual(&rig, TCP_RST | TCP_ACK, 0));
	CHECK_EQ(harp_conn_error(rig.conn), -ECONNREFUSED);
	rig_close(&rig);
}

TEST(half_open_peer_is_found_out)
{
	/* RFC 9293 section 3.5.1, figure 9: the peer has crashed and opens anew. */
	rig_begin(&rig, NULL);
	struct rig_say syn = rig_syn(&rig, TCP_SYN);

	syn.seq = rig.seq + 400000000u;
	rig_says(&rig, syn);
	CHECK_EQ(rig_expect(&rig, TCP_ACK)->ack, rig.seq);
	rig_says(&rig, rig_usual(&rig, TCP_RST, 0)); /* its answer to that ACK: SEQ = SEG.ACK */
	CHECK_EQ(harp_conn_error(rig.conn), -ECONNRESET);
}

/* ---- Endings ---- */

TEST(half_close_ours_theirs_goes_on_for_an_hour)
{
	uint8_t buf[2000];

	rig_begin(&rig, NULL);
	our_fin();
	peer_says(TCP_ACK, 0);
	CHECK_EQ(rig.conn->state, HARP_TCP_FIN_WAIT_2);
	for (unsigned minute = 0; minute < 60; minute++) {
		rig_wait(&rig, 60 * RIG_S);
		rig.tsval += 60000;
		peer_says(TCP_ACK, 1000);
		CHECK_EQ(rig_expect(&rig, TCP_ACK)->ack, rig.seq);
		CHECK_EQ(harp_conn_recv(rig.conn, buf, sizeof(buf)), 1000);
		rig_silent(&rig);
	}
	peer_says(TCP_ACK | TCP_FIN, 0);
	CHECK_EQ(rig.conn->state, HARP_TCP_TIME_WAIT);
	rig_expect(&rig, TCP_ACK);
}

TEST(half_close_theirs_ours_goes_on_for_an_hour)
{
	uint8_t buf[10];

	rig_begin(&rig, NULL);
	peer_says(TCP_ACK | TCP_FIN, 0);
	rig_expect(&rig, TCP_ACK);
	CHECK_EQ(harp_conn_recv(rig.conn, buf, sizeof(buf)), 0);
	for (unsigned minute = 0; minute < 60; minute++) {
		rig_wait(&rig, 60 * RIG_S);
		rig.tsval += 60000;
		CHECK_EQ(rig_write(&rig, 1000), 1000);
		rig.ack += rig_expect(&rig, TCP_ACK | TCP_PSH)->len;
		peer_says(TCP_ACK, 0);
	}
	CHECK_EQ(harp_conn_acked_bytes(rig.conn), 60000);
	our_fin();
	CHECK_EQ(rig.conn->state, HARP_TCP_LAST_ACK);
	peer_says(TCP_ACK, 0);
	CHECK_EQ(rig.conn->state, HARP_TCP_CLOSED);
	CHECK_EQ(harp_conn_error(rig.conn), 0);
}

TEST(their_fin_is_lost_and_comes_out_of_order)
{
	uint8_t buf[200];

	rig_begin(&rig, NULL);
	rig.seq += 100;
	rig_says(&rig, rig_usual(&rig, TCP_ACK | TCP_FIN, 50)); /* before the data it ends */
	CHECK_EQ(rig_expect(&rig, TCP_ACK)->ack, rig.seq - 100);
	CHECK_EQ(rig.conn->state, HARP_TCP_ESTABLISHED);
	rig.seq -= 100;
	rig_says(&rig, rig_usual(&rig, TCP_ACK, 100));
	rig.seq += 151;
	rig_poll(&rig);
	CHECK_EQ(rig_expect(&rig, TCP_ACK)->ack, rig.seq);
	CHECK_EQ(rig.conn->state, HARP_TCP_CLOSE_WAIT);
	CHECK_EQ(harp_conn_recv(rig.conn, buf, sizeof(buf)), 150);
	CHECK_EQ(harp_conn_recv(rig.conn, buf, sizeof(buf)), 0);
}

TEST(peer_never_ends_and_the_application_has_gone)
{
	rig_begin(&rig, NULL);
	rig_app_closes(&rig);
	rig.ack = rig_expect(&rig, TCP_ACK | TCP_FIN | TCP_PSH)->seq + 1;
	peer_says(TCP_ACK, 0); /* FIN-WAIT-2, and nobody to read what may come */
	rig_wait(&rig, 59 * RIG_S);
	CHECK_EQ(rig_stat(&rig, "tcp_conns"), 1);
	rig_wait(&rig, 2 * RIG_S);
	CHECK_EQ(rig_stat(&rig, "tcp_conns"), 0);
}

/* ---- TIME-WAIT ---- */

/* A connection that the peer opened. */
static void accept_one(void)
{
	rig_listen(&rig, 4);
	rig_says(&rig, rig_syn(&rig, TCP_SYN));
	rig.ack = rig_expect(&rig, TCP_SYN | TCP_ACK)->seq + 1;
	rig.seq++;
	peer_says(TCP_ACK, 0);
	CHECK_EQ(harp_tcp_accept(rig.listener, &rig.conn), 0);
}

/* We connect, from the port of a connection of ours that we closed first. */
static int connect_again(void)
{
	struct harp_endpoint local = { .port = rig.port };
	struct harp_endpoint remote = { .addr = harp_addr_v4(10, 0, 0, 2), .port = RIG_PEER_PORT };

	return harp_tcp_connect(rig.stack, &local, &remote, NULL, &rig.conn);
}

TEST(connect_takes_over_time_wait)
{
	uint32_t old_nxt, old_seq, old_tsval, ours;
	const struct rig_seg *s;
	struct rig_say say;

	rig_begin(&rig, NULL);
	/* So fast that its sequence numbers are ahead of the clock that begins them still. */
	for (unsigned i = 0; i < 1000; i++) {
		CHECK_EQ(rig_write(&rig, 1000), 1000);
		s = rig_expect(&rig, TCP_ACK | TCP_PSH);
		rig.ack += s->len;
		peer_says(TCP_ACK, 0);
	}
	ours = s->opt.tsval;
	to_time_wait();
	old_nxt = rig.ack;
	old_seq = rig.seq;
	old_tsval = rig.tsval;
	/* Not before each end's clock has ticked, slow as it may be. */
	rig_wait(&rig, RIG_S - 1);
	CHECK_EQ(connect_again(), -EADDRINUSE);
	rig_wait(&rig, 1);
	CHECK_EQ(connect_again(), 0);
	rig_poll(&rig);
	s = rig_expect(&rig, TCP_SYN);
	CHECK_EQ(s->src_port, rig.port);
	CHECK(seq_gt(s->seq, old_nxt));
	CHECK((int32_t)(s->opt.tsval - ours) > 0);
	CHECK_EQ(rig_stat(&rig, "tcp_conns"), 1);
	rig.ack = s->seq + 1;
	/* The peer never heard that we have its FIN: our answer resets it. */
	say = rig_usual(&rig, TCP_ACK | TCP_FIN, 0);
	say.seq = old_seq - 1;
	say.ack = old_nxt;
	rig_says(&rig, say);
	CHECK_EQ(rig_expect(&rig, TCP_RST)->seq, old_nxt);
	rig.tsval += 1000;
	rig.seq = old_seq - 100; /* a peer whose numbers begin where the old ones were */
	rig_syn_acked(&rig);
	CHECK_EQ(rig.conn->state, HARP_TCP_ESTABLISHED);
	/* What is left of the old connection lies in the window, and is not taken. */
	rig.tsval = old_tsval;
	rig_says(&rig, rig_usual(&rig, TCP_ACK, 50));
	CHECK_EQ(rig_stat(&rig, "drop_tcp_paws"), 1);
	CHECK_EQ(rig_expect(&rig, TCP_ACK)->ack, rig.seq);
}

/* Nothing tells old segments from new ones there, or somebody has it still. */
TEST(connect_leaves_time_wait_alone)
{
	rig_open(&rig);
	rig.timestamps = false;
	rig_established(&rig, NULL);
	to_time_wait();
	rig_wait(&rig, 59 * RIG_S);
	CHECK_EQ(connect_again(), -EADDRINUSE);
	rig_wait(&rig, 2 * RIG_S);
	CHECK_EQ(connect_again(), 0);
	rig_close(&rig);

	rig_begin(&rig, NULL);
	our_fin();
	peer_says(TCP_ACK, 0);
	peer_says(TCP_ACK | TCP_FIN, 0);
	rig_expect(&rig, TCP_ACK);
	rig_wait(&rig, 2 * RIG_S);
	struct harp_conn *held = rig.conn;

	CHECK_EQ(connect_again(), -EADDRINUSE);
	harp_conn_close(held);
	CHECK_EQ(connect_again(), 0);
	rig_close(&rig);

	/* One that was accepted; its listener is gone. */
	rig_open(&rig);
	accept_one();
	harp_listener_close(rig.listener);
	rig.listener = NULL;
	to_time_wait();
	rig_wait(&rig, 2 * RIG_S);
	CHECK_EQ(connect_again(), -EADDRINUSE);
	rig_close(&rig);
}

/* ---- Timers of minutes ---- */

TEST(zero_window_for_half_an_hour)
{
	struct harp_tcp_options opt = { .size = sizeof(opt), .user_timeout_ns = 20 * RIG_S };
	uint64_t until_ns, last_ns, gap_ns = 0;
	unsigned probes = 0;
	struct rig_say say;

	rig_begin(&rig, &opt);
	say = rig_usual(&rig, TCP_ACK, 0);
	say.wnd = 0;
	rig_says(&rig, say);
	CHECK_EQ(rig_write(&rig, 500), 500);
	until_ns = rig.now_ns + 1800 * RIG_S;
	last_ns = rig.now_ns;
	while (rig.now_ns < until_ns) {
		rig_wait(&rig, RIG_MS);
		if (rig_pending(&rig) == 0)
			continue;
		CHECK_EQ(rig_expect(&rig, TCP_ACK)->len, 0);
		if (check_failures)
			break;
		/* RFC 9293 3.8.6.1: "increase exponentially the interval between successive probes" */
		CHECK(rig.now_ns - last_ns + 5 * RIG_MS >= gap_ns || gap_ns > 4 * RIG_S);
		gap_ns = rig.now_ns - last_ns;
		last_ns = rig.now_ns;
		probes++;
		say.seq = rig.seq;
		say.ack = rig.ack;
		rig.tsval += (uint32_t)(gap_ns / RIG_MS);
		rig_says(&rig, say); /* MUST-37: a peer that answers keeps the connection */
	}
	CHECK(probes >= 30 && probes <= 420); /* a quarter of the user timeout apart at most */
	CHECK_EQ(rig.conn->state, HARP_TCP_ESTABLISHED);
	say.wnd = RIG_PEER_WND;
	rig_says(&rig, say);
	CHECK_EQ(rig_expect(&rig, TCP_ACK | TCP_PSH)->len, 500);
}

TEST(zero_window_and_then_silence)
{
	struct harp_tcp_options opt = { .size = sizeof(opt), .user_timeout_ns = 20 * RIG_S };
	struct rig_say say;

	rig_begin(&rig, &opt);
	say = rig_usual(&rig, TCP_ACK, 0);
	say.wnd = 0;
	rig_says(&rig, say);
	CHECK_EQ(rig_write(&rig, 500), 500);
	rig_wait(&rig, 19 * RIG_S);
	CHECK_EQ(rig.conn->state, HARP_TCP_ESTABLISHED);
	rig_wait(&rig, 15 * RIG_S);
	CHECK_EQ(harp_conn_error(rig.conn), -ETIMEDOUT);
}

/* RFC 5482 section 3: how long transmitted data may stay unacknowledged; an answer to something else
 * counts for nothing. */
TEST(user_timeout_is_about_data)
{
	struct harp_tcp_options opt = { .size = sizeof(opt), .user_timeout_ns = 20 * RIG_S };
	uint64_t began_ns;

	rig_begin(&rig, &opt);
	rig_wait(&rig, 100 * RIG_S); /* idle for longer: nothing is outstanding */
	CHECK_EQ(rig.conn->state, HARP_TCP_ESTABLISHED);
	CHECK_EQ(rig_write(&rig, 100), 100);
	began_ns = rig.now_ns;
	for (unsigned i = 0; i < 300 && rig.conn->state == HARP_TCP_ESTABLISHED; i++) {
		rig_wait(&rig, 100 * RIG_MS);
		rig.tsval += 100;
		peer_says(TCP_ACK, 10); /* it lives and talks, and does not take our bytes */
		rig.out_head = rig.out_tail;
	}
	CHECK_EQ(harp_conn_error(rig.conn), -ETIMEDOUT);
	CHECK(rig.now_ns - began_ns >= 20 * RIG_S && rig.now_ns - began_ns <= 21 * RIG_S);
}

TEST(keepalive_through_a_day)
{
	struct harp_tcp_options opt = { .size = sizeof(opt),
					.keepalive_idle_ns = 600 * RIG_S,
					.keepalive_interval_ns = 10 * RIG_S,
					.keepalive_count = 5 };
	unsigned probes = 0;

	rig_begin(&rig, &opt);
	for (unsigned s = 0; s < 86400; s++) {
		rig_wait(&rig, RIG_S);
		if (rig_pending(&rig) == 0)
			continue;
		CHECK_EQ(rig_expect(&rig, TCP_ACK)->seq, rig.ack - 1);
		rig.tsval += 600000;
		peer_says(TCP_ACK, 0);
		probes++;
	}
	CHECK(probes >= 142 && probes <= 144);
	CHECK_EQ(rig.conn->state, HARP_TCP_ESTABLISHED);
}

/* ---- Windows of next to nothing ---- */

TEST(a_window_of_one_byte_does_not_lead_us)
{
	uint64_t began_ns;
	unsigned sent = 0, polls;
	struct rig_say say;

	rig_open(&rig);
	rig.wscale = false;
	rig_syn_sent(&rig, NULL);
	say = rig_syn(&rig, TCP_SYN | TCP_ACK);
	say.wnd = 1; /* from the first: half of the largest window is nothing */
	rig_says(&rig, say);
	rig.seq++;
	rig_expect(&rig, TCP_ACK);
	CHECK_EQ(rig_write(&rig, 50000), 50000);
	began_ns = rig.now_ns;
	polls = (unsigned)rig_stat(&rig, "polls");
	while (rig.now_ns < began_ns + 60 * RIG_S) {
		const struct rig_seg *s;

		rig_wait(&rig, RIG_MS);
		polls++;
		if (rig_pending(&rig) == 0)
			continue;
		s = rig_expect(&rig, TCP_ACK);
		CHECK_EQ(s->len, 1);
		rig.ack += s->len;
		sent++;
		say = rig_usual(&rig, TCP_ACK, 0);
		say.wnd = 1;
		rig_says(&rig, say);
		polls++;
	}
	/* RFC 9293 3.8.6.2.1: one per override time-out, 0.1 s. */
	CHECK(sent >= 60 && sent <= 600);
	CHECK(rig_stat(&rig, "polls") - polls < 5000); /* and no timer that spins */
	/* A window worth having, and it all goes. */
	say = rig_usual(&rig, TCP_ACK, 0);
	say.wnd = 60000;
	rig_says(&rig, say);
	CHECK(rig_expect(&rig, TCP_ACK)->len > 500);
}

TEST(small_windows_are_filled)
{
	struct rig_say say;
	unsigned got = 0;

	/* A small device that has never offered more than 200 bytes gets them at once. */
	rig_open(&rig);
	rig.wscale = false;
	rig_syn_sent(&rig, NULL);
	say = rig_syn(&rig, TCP_SYN | TCP_ACK);
	say.wnd = 200;
	rig_says(&rig, say);
	rig.seq++;
	rig_expect(&rig, TCP_ACK);
	CHECK_EQ(rig_write(&rig, 2000), 2000);
	while (got < 2000 && rig_pending(&rig) > 0) {
		const struct rig_seg *s = &rig.out[rig.out_head++ % RIG_QUEUE];

		got += s->len;
		rig.ack = s->seq + s->len;
		say = rig_usual(&rig, TCP_ACK, 0);
		say.wnd = 200;
		rig_says(&rig, say);
	}
	CHECK_EQ(got, 2000);
}
