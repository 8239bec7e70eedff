/* SPDX-License-Identifier: Apache-2.0 */
/* test_tcp_icmp.c - ICMP errors that quote a connection (RFC 5927, RFC 1191): accepted or
 * ignored. */
#include "rig.h"

#define UNREACHABLE 3u
#define PORT 3u
#define TOO_BIG 4u

static struct rig rig;
AFTER_EACH(rig_close(&rig))

/* Receives an error from the peer's host that quotes 8 bytes of a sent segment (RFC 792). */
static void icmp_says(uint8_t code, uint16_t mtu_bytes, uint32_t seq)
{
	struct rig_packet *p = &rig.in[rig.in_tail++ % RIG_QUEUE];
	const struct harp_addr own = harp_addr_v4(10, 0, 0, 1), peer = harp_addr_v4(10, 0, 0, 2);
	uint8_t *icmp = p->bytes + 34, *quote = icmp + 8;
	uint16_t sum;

	memset(p->bytes, 0, sizeof(p->bytes));
	packet_headers(p->bytes, rig_mac, rig_peer_mac, &peer, &own, IP_PROTO_ICMP, 36);
	icmp[0] = UNREACHABLE;
	icmp[1] = code;
	be16_store(icmp + 6, mtu_bytes);
	memcpy(quote, "\x45\0\x05\xdc\0\0\x40\0\x40\6\0\0\x0a\0\0\1\x0a\0\0\2", 20);
	be16_store(quote + 20, rig.port);
	be16_store(quote + 22, RIG_PEER_PORT);
	be32_store(quote + 24, seq);
	sum = csum_finish(csum_partial(icmp, 36, 0));
	memcpy(icmp + 2, &sum, 2);
	p->len = 14 + 56;
	rig_poll(&rig);
}

/* A SYN fits every path, so the error must be forged. */
TEST(too_big_is_ignored_for_a_syn)
{
	const struct rig_seg *syn;

	rig_open(&rig);
	syn = rig_syn_sent(&rig, NULL);
	icmp_says(TOO_BIG, 68, syn->seq);
	CHECK_EQ(rig.conn->recovery, TCP_RECOVERY_NONE);
	rig_syn_acked(&rig);
	CHECK_EQ(rig.conn->state, HARP_TCP_ESTABLISHED);
	CHECK_EQ(rig.conn->snd.mss_bytes, 1448);
	rig_writes(&rig, 1448);
}

/* Segments of that size were acknowledged, so the error takes effect only if the segment times
 * out. */
TEST(too_big_that_contradicts_acks_waits_for_a_timeout)
{
	uint32_t first;

	rig_begin(&rig, NULL);
	first = rig_writes(&rig, 1448)->seq;
	rig_acks(&rig, 1448);
	rig_writes(&rig, 1448);
	icmp_says(TOO_BIG, 1000, first + 1448);
	CHECK_EQ(rig.conn->snd.mss_bytes, 1448);
	/* The error was forged: the segment is acknowledged. */
	rig_acks(&rig, 1448);
	rig_wait(&rig, RIG_S);
	CHECK_EQ(rig.conn->snd.mss_bytes, 1448);
	rig_silent(&rig);
	/* The error is genuine: after the timeout, segments have the reported size. */
	rig_writes(&rig, 1448);
	icmp_says(TOO_BIG, 1000, rig.ack);
	rig_wait(&rig, RIG_S / 4);
	while (rig_pending(&rig) > 1)
		rig.out_head++;
	CHECK_EQ(rig.conn->snd.mss_bytes, 1000 - 52);
	CHECK_EQ(rig_expect(&rig, TCP_ACK)->len, 1000 - 52);
	CHECK_EQ(rig_stat(&rig, "tcp_mtu_icmp"), 1);
}

/* The error must quote the beginning of a segment that is larger than the reported MTU. */
TEST(too_big_must_fit_the_quoted_segment)
{
	uint32_t first;

	rig_begin(&rig, NULL);
	CHECK_EQ(rig_write(&rig, 1448 + 100), 1548);
	first = rig_expect(&rig, TCP_ACK)->seq;
	rig_expect(&rig, TCP_ACK | TCP_PSH);
	icmp_says(TOO_BIG, 1000, first + 1);
	icmp_says(TOO_BIG, 1000, first + 1448); /* a segment of 100 bytes */
	CHECK_EQ(rig.conn->snd.mss_bytes, 1448);
	CHECK_EQ(rig_stat(&rig, "tcp_mtu_icmp_ignored"), 2);
	rig_silent(&rig);
}

#define SMALL (1000u - 52)

/* A segment is too big and is retransmitted in two. All is acknowledged, and ten minutes pass. */
static void begin_small(void)
{
	rig_begin(&rig, NULL);
	icmp_says(TOO_BIG, 1000, rig_writes(&rig, 1448)->seq);
	CHECK_EQ(rig_expect(&rig, TCP_ACK)->len, SMALL);
	CHECK_EQ(rig_expect(&rig, TCP_ACK | TCP_PSH)->len, 1448 - SMALL);
	rig_acks(&rig, 1448);
	rig_wait(&rig, 601 * RIG_S);
	rig_silent(&rig);
}

/*
 * Ten minutes after the error the stack probes with a larger segment. Duplicate ACKs, without SACK,
 * report it lost: the stack splits and retransmits it and keeps the congestion window. The next
 * probe arrives.
 */
TEST(a_lost_probe_is_no_congestion)
{
	const struct rig_seg *s;
	uint32_t cwnd;

	begin_small();
	CHECK_EQ(rig_stat(&rig, "tcp_resegmented"), 1);
	CHECK_EQ(rig_stat(&rig, "tcp_rto"), 0);
	CHECK_EQ(rig_stat(&rig, "tcp_mtu_probes"), 0);
	for (int is_lost = 1; is_lost >= 0; is_lost--) {
		rig_silent(&rig);
		CHECK_EQ(rig_write(&rig, 1448 + 5 * SMALL), 1448 + 5 * SMALL);
		cwnd = rig.conn->cc.cwnd_bytes;
		s = rig_expect(&rig, TCP_ACK);
		CHECK_EQ(s->seq, rig.ack);
		CHECK_EQ(s->len, 1448);
		/* The segments after it are unchanged, but the probe took bytes of the first
		 * one. */
		CHECK_EQ(rig_expect(&rig, TCP_ACK)->len, 2 * SMALL - 1448);
		for (int i = 0; i < 4; i++)
			CHECK_EQ(rig_expect(&rig, TCP_ACK)->len, SMALL);
		CHECK_EQ(rig_expect(&rig, TCP_ACK | TCP_PSH)->len, 1448 - SMALL);
		rig_silent(&rig);
		for (int i = 0; is_lost && i < 5; i++)
			rig_says(&rig, rig_usual(&rig, TCP_ACK, 0));
		if (is_lost) {
			CHECK_EQ(rig_expect(&rig, TCP_ACK)->len, SMALL);
			CHECK_EQ(rig_expect(&rig, TCP_ACK)->len, 1448 - SMALL);
			rig_silent(&rig);
			CHECK_EQ(rig_stat(&rig, "tcp_mtu_probes_lost"), 1);
		}
		CHECK_EQ(rig.conn->recovery, TCP_RECOVERY_NONE);
		CHECK(rig.conn->cc.cwnd_bytes >= cwnd);
		rig_acks(&rig, 1448 + 5 * SMALL);
		rig_wait(&rig, RIG_S);
	}
	CHECK_EQ(rig_write(&rig, 10), 10); /* the stack evaluates the ACK before it sends data */
	CHECK_EQ(rig.conn->snd.mss_bytes, 1448);
	CHECK_EQ(rig_stat(&rig, "tcp_fast_retransmits"), 0);
	CHECK_EQ(rig_stat(&rig, "tcp_mtu_raised"), 1);
}

/* A partial ACK reports that the probe is lost; the ACK of its retransmission does not raise the
 * size. */
TEST(a_probe_behind_a_hole_is_lost_too)
{
	begin_small();
	rig_writes(&rig, 100);
	CHECK_EQ(rig_write(&rig, 1448 + 5 * SMALL), 1448 + 5 * SMALL);
	CHECK_EQ(rig_expect(&rig, TCP_ACK)->len, 1448);
	CHECK_EQ(rig_stat(&rig, "tcp_mtu_probes"), 1);
	for (int i = 0; i < 4; i++)
		rig_says(&rig, rig_usual(&rig, TCP_ACK, 0));
	CHECK_EQ(rig_stat(&rig, "tcp_fast_retransmits"), 1);
	rig_acks(&rig, 100);
	CHECK_EQ(rig_stat(&rig, "tcp_mtu_probes_lost"), 1);
	rig_acks(&rig, 1448 + 5 * SMALL);
	CHECK_EQ(rig_write(&rig, 10), 10);
	CHECK_EQ(rig.conn->snd.mss_bytes, SMALL);
	CHECK_EQ(rig_stat(&rig, "tcp_mtu_raised"), 0);
}
