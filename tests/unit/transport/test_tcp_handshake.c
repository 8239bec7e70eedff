/* SPDX-License-Identifier: Apache-2.0 */
/* test_tcp_handshake.c - opening: options, window scale, refusals, simultaneous open, backlog. */
#include "tcp_rig.h"

static struct rig rig;
AFTER_EACH(rig_close(&rig))

TEST(established_agrees_on_options)
{
	struct harp_tcp_info info;

	rig_begin(&rig, NULL);
	CHECK_EQ(harp_conn_info(rig.conn, &info, sizeof(info)), 0);
	CHECK_EQ(info.options, HARP_TCPI_TIMESTAMPS | HARP_TCPI_WSCALE);
	CHECK_EQ(info.snd_mss_bytes, 1448);
	CHECK_EQ(info.snd_wscale, 2);
	CHECK_EQ(info.snd_wnd_bytes, RIG_PEER_WND); /* a SYN's window is never scaled */
	rig_says(&rig, rig_usual(&rig, TCP_ACK, 1));
	harp_conn_info(rig.conn, &info, sizeof(info));
	CHECK_EQ(info.snd_wnd_bytes, RIG_PEER_WND << 2);
}

static void syn_is_repeated_then_times_out(uint64_t initial_rto_ns)
{
	uint64_t rto_ns = initial_rto_ns ? initial_rto_ns : RIG_S;
	struct harp_tcp_options opt = { .size = sizeof(opt),
					.initial_rto_ns = initial_rto_ns,
					.connect_timeout_ns = 8 * rto_ns };
	uint32_t iss;

	rig_open(&rig);
	iss = rig_syn_sent(&rig, &opt)->seq;
	for (unsigned i = 0; i < 3; i++, rto_ns *= 2) {
		rig_wait(&rig, rto_ns - 2 * RIG_MS);
		rig_silent(&rig);
		rig_wait(&rig, 3 * RIG_MS);
		CHECK_EQ(rig_expect(&rig, TCP_SYN)->seq, iss);
	}
	rig_wait(&rig, rto_ns);
	rig_silent(&rig);
	CHECK_EQ(harp_conn_error(rig.conn), -ETIMEDOUT);
	CHECK(rig_events(&rig) & HARP_EVENT_CLOSED);
	rig_close(&rig);
}

TEST(syn_is_repeated_then_times_out)
{
	syn_is_repeated_then_times_out(0); /* RFC 6298 (2.1) */
	syn_is_repeated_then_times_out(200 * RIG_MS);
}

TEST(initial_rto_has_bounds)
{
	static const uint64_t bad[] = { 1, 5 * RIG_MS - 1, 60 * RIG_S + 1, UINT64_MAX };
	struct harp_endpoint to = { .addr = harp_addr_v4(10, 0, 0, 2), .port = RIG_PEER_PORT };
	struct harp_tcp_options opt = { .size = sizeof(opt) };
	struct harp_conn *conn;

	rig_open(&rig);
	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		opt.initial_rto_ns = bad[i];
		CHECK_EQ(harp_tcp_connect(rig.stack, NULL, &to, &opt, &conn), -EINVAL);
	}
}

/* RFC 7323 section 2.2: "The window field in a segment where the SYN bit is set (i.e., a <SYN> or <SYN,ACK>) MUST NOT be
 * scaled", to the byte; and its ECE agrees on ECN, it tells of no mark. */
TEST(the_syn_ack_of_a_simultaneous_open)
{
	struct harp_tcp_options opt = { .size = sizeof(opt), .ecn = HARP_ECN_REQUEST };
	struct harp_endpoint remote = { .addr = harp_addr_v4(10, 0, 0, 2), .port = RIG_PEER_PORT };
	struct rig_say syn;

	for (uint32_t wnd = 1; wnd <= 65535; wnd += 65534) {
		const struct rig_seg *s;

		rig_open(&rig);
		CHECK_EQ(harp_tcp_connect(rig.stack, NULL, &remote, &opt, &rig.conn), 0);
		rig_poll(&rig);
		s = rig_expect(&rig, TCP_SYN | TCP_ECE | TCP_CWR);
		rig.port = s->src_port;
		rig.ack = s->seq + 1;
		syn = rig_syn(&rig, TCP_SYN | TCP_ECE | TCP_CWR);
		syn.options[syn.options_len - 1] = 14; /* the window scale comes last */
		rig_says(&rig, syn);
		CHECK_EQ(rig.conn->snd.wscale, 14);
		rig.out_head = rig.out_tail;
		syn.flags = TCP_SYN | TCP_ACK | TCP_ECE;
		syn.wnd = wnd;
		rig.seq++;
		rig_says(&rig, syn);
		rig_poll(&rig);
		CHECK_EQ(rig.conn->state, HARP_TCP_ESTABLISHED);
		CHECK_EQ(rig.conn->snd.wnd_bytes, wnd);
		CHECK_EQ(rig.conn->acct.ecn_ece_in, 0);
		CHECK_EQ(rig_expect(&rig, TCP_ACK)->ack, rig.seq);
		/* From then on it is. */
		syn = rig_usual(&rig, TCP_ACK, 0);
		syn.wnd = 3;
		rig_says(&rig, syn);
		CHECK_EQ(rig.conn->snd.wnd_bytes, 3 << 14);
		rig_close(&rig);
	}
}

TEST(passive_open)
{
	const struct rig_seg *s;

	rig_open(&rig);
	rig_listen(&rig, 4);
	rig_says(&rig, rig_syn(&rig, TCP_SYN));
	s = rig_expect(&rig, TCP_SYN | TCP_ACK);
	CHECK_EQ(s->ack, RIG_PEER_ISS + 1);
	CHECK_EQ(s->opt.seen, TCP_OPT_MSS | TCP_OPT_WSCALE | TCP_OPT_TIMESTAMP);
	CHECK_EQ(s->opt.tsecr, rig.tsval);
	CHECK_EQ(harp_tcp_accept(rig.listener, &rig.conn), -EAGAIN);
	/* Our SYN-ACK was lost: their SYN again is answered again. */
	rig_says(&rig, rig_syn(&rig, TCP_SYN));
	s = rig_expect(&rig, TCP_SYN | TCP_ACK);
	rig.ack = s->seq + 1;
	rig.seq++;
	rig_says(&rig, rig_usual(&rig, TCP_ACK, 0));
	CHECK_EQ(harp_tcp_accept(rig.listener, &rig.conn), 0);
	CHECK_EQ(rig.conn->state, HARP_TCP_ESTABLISHED);
}

TEST(full_backlog_answers_with_cookies)
{
	rig_open(&rig);
	rig_listen(&rig, 2);
	for (uint32_t i = 0; i < 5; i++) {
		struct rig_say say = rig_syn(&rig, TCP_SYN);

		say.peer_port = (uint16_t)(7000 + i);
		rig_says(&rig, say);
		CHECK_EQ(rig_expect(&rig, TCP_SYN | TCP_ACK)->dst_port, 7000 + i);
	}
	CHECK_EQ(rig_stat(&rig, "tcp_conns"), 2);
	CHECK_EQ(rig_stat(&rig, "tcp_cookies_sent"), 3);
	CHECK_EQ(rig_stat(&rig, "drop_tcp_backlog"), 0);
}

TEST(rst_before_accept_vanishes)
{
	rig_open(&rig);
	rig_listen(&rig, 2);
	rig_says(&rig, rig_syn(&rig, TCP_SYN));
	rig.ack = rig_expect(&rig, TCP_SYN | TCP_ACK)->seq + 1;
	rig.seq++;
	rig_says(&rig, rig_usual(&rig, TCP_ACK, 0));
	rig_says(&rig, rig_usual(&rig, TCP_RST, 0));
	CHECK_EQ(harp_tcp_accept(rig.listener, &rig.conn), -EAGAIN);
	CHECK_EQ(rig_stat(&rig, "tcp_conns"), 0);
}

/*
 * A peer that echoes what we never sent: as it acknowledges our ISN, nobody's guess is taken for it, and
 * its echoes are not asked about again.
 */
TEST(a_peer_with_its_own_idea_of_echoes)
{
	struct harp_conn *conn = NULL;
	struct rig_say say;

	rig_open(&rig);
	rig_listen(&rig, 4);
	rig_says(&rig, rig_syn(&rig, TCP_SYN));
	rig.seq++;
	rig.ack = rig_expect(&rig, TCP_SYN | TCP_ACK)->seq + 1;
	rig.tsecr += 0x40000000;
	rig_says(&rig, rig_usual(&rig, TCP_ACK, 0));
	CHECK_EQ(harp_tcp_accept(rig.listener, &conn), 0);
	CHECK(conn != NULL);
	rig.conn = conn;
	say = rig_usual(&rig, TCP_ACK | TCP_PSH, 100);
	rig_says(&rig, say);
	CHECK_EQ(rig_stat(&rig, "drop_tcp_echo"), 0);
	CHECK_EQ(conn ? conn->rcv.nxt_seq : 0, rig.seq + 100);
	rig.out_head = rig.out_tail;
}
