/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tcp_options_off.c - harp_tcp_options.options_off: what is off is neither offered nor agreed
 * to, whatever the peer offers, on both ends and with SYN cookies.
 */
#include "tcp_rig.h"

#define ALL (HARP_TCPI_TIMESTAMPS | HARP_TCPI_SACK | HARP_TCPI_WSCALE)

static struct rig rig;

/* As the options of a SYN are parsed. */
static uint8_t seen(uint32_t options)
{
	return (uint8_t)((options & HARP_TCPI_TIMESTAMPS ? TCP_OPT_TIMESTAMP : 0) |
			 (options & HARP_TCPI_SACK ? TCP_OPT_SACK_PERMITTED : 0) |
			 (options & HARP_TCPI_WSCALE ? TCP_OPT_WSCALE : 0) | TCP_OPT_MSS);
}

static struct harp_tcp_options options(uint32_t off)
{
	return (struct harp_tcp_options){ .size = sizeof(struct harp_tcp_options),
					  .rx_frames = 128,
					  .options_off = off };
}

/* Bytes go both ways, in segments with the options that were agreed on. */
static void check_open(uint32_t off)
{
	bool timestamps = !(off & HARP_TCPI_TIMESTAMPS);
	const struct rig_seg *s;
	struct harp_tcp_info info = rig_info(&rig);
	struct rig_say say;
	uint8_t buf[100];

	CHECK_EQ(info.options, ALL & ~off);
	CHECK_EQ(info.snd_mss_bytes, timestamps ? 1448 : 1460);
	CHECK_EQ(info.snd_wscale, off & HARP_TCPI_WSCALE ? 0 : 2);
	if (off & HARP_TCPI_WSCALE) {
		CHECK_EQ(info.rcv_wscale, 0);
		CHECK(info.rcv_wnd_bytes <= 65535);
	} else {
		CHECK(info.rcv_wscale > 0);
	}
	rig.timestamps = timestamps; /* from here the peer uses what was agreed */
	rig_sends(&rig, TCP_ACK | TCP_PSH, 100);
	CHECK_EQ(harp_conn_recv(rig.conn, buf, sizeof(buf)), 100);
	CHECK_EQ(rig_write(&rig, 50), 50);
	s = rig_expect(&rig, TCP_ACK | TCP_PSH);
	CHECK_EQ(s->opt.seen, timestamps ? TCP_OPT_TIMESTAMP : 0);
	CHECK_EQ(s->ack, rig.seq);
	CHECK_EQ(s->len, 50);
	rig.ack += 50;
	rig_says(&rig, rig_usual(&rig, TCP_ACK, 0));
	CHECK_EQ(harp_conn_acked_bytes(rig.conn), 50);
	CHECK_EQ(rig_info(&rig).snd_wnd_bytes, RIG_PEER_WND << info.snd_wscale);
	/* Out of order: a SACK block only where SACK was agreed on. */
	say = rig_usual(&rig, TCP_ACK, 10);
	say.seq += 10;
	rig_says(&rig, say);
	s = rig_expect(&rig, TCP_ACK);
	CHECK_EQ(s->opt.seen & TCP_OPT_SACK, off & HARP_TCPI_SACK ? 0 : TCP_OPT_SACK);
}

/* The peer's SYN-ACK has all options, offered or not. */
static void connects(uint32_t off)
{
	struct harp_tcp_options opt = options(off);

	rig_open(&rig);
	rig.sack = true;
	CHECK_EQ(rig_syn_sent(&rig, &opt)->opt.seen, seen(ALL & ~off));
	rig_syn_acked(&rig);
	CHECK_EQ(rig.conn->state, HARP_TCP_ESTABLISHED);
	check_open(off);
	rig_close(&rig);
}

static void listens(uint32_t off, uint32_t backlog, bool cookie)
{
	struct harp_tcp_options opt = options(off);
	const struct rig_seg *s;

	rig_open(&rig);
	rig.sack = true;
	opt.backlog = backlog;
	rig_listen_options(&rig, &opt);
	if (cookie) { /* one half-open connection uses up a backlog of 1 */
		struct rig_say say = rig_syn(&rig, TCP_SYN);

		say.peer_port = 6666;
		rig_says(&rig, say);
		rig_expect(&rig, TCP_SYN | TCP_ACK);
	}
	s = rig_syn_received(&rig);
	/* A cookie keeps the other options in the timestamp. */
	if (cookie && (off & HARP_TCPI_TIMESTAMPS))
		off = ALL;
	CHECK_EQ(s->opt.seen, seen(ALL & ~off));
	CHECK_EQ(rig_stat(&rig, "tcp_cookies_sent"), cookie);
	/* The ACK has a timestamp in any case: it must not change what the SYN-ACK agreed to. */
	rig_says(&rig, rig_usual(&rig, TCP_ACK, 0));
	CHECK_EQ(harp_tcp_accept(rig.listener, &rig.conn), 0);
	CHECK_EQ(rig_stat(&rig, "tcp_cookies_accepted"), cookie);
	rig.out_head = rig.out_tail;
	check_open(off);
	rig_close(&rig);
}

TEST(connect_offers_what_is_on)
{
	for (uint32_t off = 0; off <= ALL; off++)
		connects(off);
}

TEST(listeners_agree_to_what_is_on)
{
	for (uint32_t off = 0; off <= ALL; off++)
		listens(off, 8, false);
}

TEST(cookies_agree_to_what_is_on)
{
	for (uint32_t off = 0; off <= ALL; off++)
		listens(off, 1, true);
}
