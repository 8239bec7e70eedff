/* SPDX-License-Identifier: Apache-2.0 */
/* test_tcp_window.c - the peer's window: its scale, sizes of a few bytes, and the FIN that must
 * fit. */
#include "tcp_rig.h"

static struct rig rig;
AFTER_EACH(rig_close(&rig))

/* RFC 7323 section 2.2: the window of a SYN-ACK is never scaled, that of a simultaneous open
 * included; and the ECE that agrees on ECN reports no mark. */
TEST(the_window_of_a_simultaneous_syn_ack_is_not_scaled)
{
	struct harp_tcp_options opt = { .size = sizeof(opt), .ecn = HARP_ECN_REQUEST };
	struct rig_say syn;

	for (uint32_t wnd = 1; wnd <= 65535; wnd += 65534) {
		rig_open(&rig);
		rig_syn_sent_flags(&rig, &opt, TCP_SYN | TCP_ECE | TCP_CWR);
		syn = rig_syn(&rig, TCP_SYN | TCP_ECE | TCP_CWR);
		syn.options[syn.options_len - 1] = 14; /* the window scale comes last */
		rig_says(&rig, syn);
		CHECK_EQ(rig.conn->snd.wscale, 14);
		rig_drain(&rig);
		syn.flags = TCP_SYN | TCP_ACK | TCP_ECE;
		syn.wnd = wnd;
		rig.seq++;
		rig_says(&rig, syn);
		rig_poll(&rig);
		CHECK_EQ(rig.conn->state, HARP_TCP_ESTABLISHED);
		CHECK_EQ(rig.conn->snd.wnd_bytes, wnd);
		CHECK_EQ(rig.conn->acct.ecn_ece_in, 0);
		CHECK_EQ(rig_expect(&rig, TCP_ACK)->ack, rig.seq);
		/* Later windows are. */
		rig_window(&rig, 3);
		CHECK_EQ(rig.conn->snd.wnd_bytes, 3 << 14);
		rig_close(&rig);
	}
}

/* A peer without window scaling, which offers this window from the first. */
static void connect_to_window(uint32_t wnd)
{
	rig_open(&rig);
	rig.wscale = false;
	rig_syn_sent(&rig, NULL);
	rig_syn_acked_window(&rig, wnd);
}

/* RFC 9293 section 3.8.6.2.1: half of the largest window is nothing, so the override timeout of 0.1
 * s lets out a byte at a time. */
TEST(a_window_of_one_byte_is_filled_at_the_override_timeout)
{
	uint64_t began_ns;
	unsigned sent = 0, polls;

	connect_to_window(1);
	CHECK_EQ(rig_write(&rig, 50000), 50000);
	began_ns = rig.now_ns;
	polls = (unsigned)rig_stat(&rig, "polls");
	while (rig.now_ns < began_ns + 60 * RIG_S) {
		rig_wait(&rig, RIG_MS);
		polls++;
		if (rig_pending(&rig) == 0)
			continue;
		CHECK_EQ(rig_expect(&rig, TCP_ACK)->len, 1);
		rig.ack++;
		sent++;
		rig_window(&rig, 1);
		polls++;
	}
	CHECK(sent >= 60 && sent <= 600);
	CHECK(rig_stat(&rig, "polls") - polls < 5000); /* no timer fires in a loop */
	rig_window(&rig, 60000);
	CHECK(rig_expect(&rig, TCP_ACK)->len > 500);
}

/* A small device that has never offered more than 200 bytes gets them at once. */
TEST(a_small_window_is_filled_at_once)
{
	unsigned got = 0;

	connect_to_window(200);
	CHECK_EQ(rig_write(&rig, 2000), 2000);
	while (got < 2000 && rig_pending(&rig) > 0) {
		const struct rig_seg *s = &rig.out[rig.out_head++ % RIG_QUEUE];

		got += s->len;
		rig.ack = s->seq + s->len;
		rig_window(&rig, 200);
	}
	CHECK_EQ(got, 2000);
}

/* RFC 9293 section 3.4: a FIN takes a sequence number. Behind a closed window it would be dropped,
 * and then wait for a timeout that has backed off. */
static void fin_waits(uint32_t bytes)
{
	static uint8_t data[400];
	struct iovec iov = { data, bytes };

	rig_begin(&rig, NULL);
	rig_window(&rig, bytes >> 2); /* its scale */
	if (bytes > 0)                /* they fill it, and the FIN would leave with them */
		CHECK_EQ(harp_conn_send(rig.conn, &iov, 1), bytes);
	rig_app_closes(&rig);
	if (bytes > 0) {
		rig.ack = rig_expect(&rig, TCP_ACK)->seq + bytes;
		rig_window(&rig, 0);
	}
	CHECK_EQ(rig_pending(&rig), 0);
	for (unsigned i = 0; i < 100; i++) { /* 10 s; probes are answered */
		rig_wait(&rig, 100 * RIG_MS);
		while (rig_pending(&rig) > 0) {
			CHECK(!(rig.out[rig.out_head++ % RIG_QUEUE].flags & TCP_FIN));
			rig_window(&rig, 0);
		}
	}
	rig_says(&rig, rig_usual(&rig, TCP_ACK, 0));
	rig_poll(&rig);
	rig_expect_fin(&rig);
	rig_says(&rig, rig_usual(&rig, TCP_ACK | TCP_FIN, 0));
	rig_poll(&rig);
	rig_wait(&rig, 61 * RIG_S);
	CHECK_EQ(rig_stat(&rig, "tcp_conns"), 0);
	rig_drain(&rig);
	rig_close(&rig);
}

TEST(a_fin_waits_for_the_window)
{
	fin_waits(0);
	fin_waits(400);
}
