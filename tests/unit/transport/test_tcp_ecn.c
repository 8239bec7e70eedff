/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tcp_ecn.c - explicit congestion notification: who agrees to it, what is ECT, CE to ECE to CWR
 * (RFC 3168 section 6.1), and DCTCP's receiver (RFC 8257 section 3.2).
 */
#include "tcp_rig.h"

#define MSS 1448u
#define ECT0 2u
#define CE 3u
#define ASK ((uint8_t)(TCP_SYN | TCP_ECE | TCP_CWR))

static struct rig rig;
AFTER_EACH(rig_close(&rig))

static struct harp_tcp_options options(uint32_t congestion, uint32_t ecn)
{
	return (struct harp_tcp_options){ .size = sizeof(struct harp_tcp_options),
					  .congestion = congestion,
					  .ecn = ecn };
}

/* ---- The handshake ---- */

/* We connect: our SYN has these flags, the peer answers with those; is ECN agreed on? */
static bool connects(struct harp_tcp_options opt, uint8_t syn, uint8_t synack)
{
	struct harp_endpoint remote = { .addr = harp_addr_v4(10, 0, 0, 2), .port = RIG_PEER_PORT };
	const struct rig_seg *s;
	bool agreed;

	rig_open(&rig);
	CHECK_EQ(harp_tcp_connect(rig.stack, NULL, &remote, &opt, &rig.conn), 0);
	rig_poll(&rig);
	s = rig_expect(&rig, syn);
	CHECK_EQ(s->tos, 0); /* a SYN is never ECT */
	rig.port = s->src_port;
	rig.ack = s->seq + 1;
	rig_says(&rig, rig_syn(&rig, synack));
	rig.seq++;
	CHECK_EQ(rig_expect(&rig, TCP_ACK)->tos, 0);
	agreed = rig.conn->options & HARP_TCPI_ECN;
	CHECK_EQ(rig_write(&rig, 100), 100);
	CHECK_EQ(rig_expect(&rig, TCP_ACK | TCP_PSH)->tos, agreed ? ECT0 : 0);
	return agreed;
}

/* The peer connects with such a SYN; the SYN-ACK has these flags. */
static void accepts(uint32_t ecn, uint8_t syn, uint8_t synack)
{
	struct harp_endpoint at = { .port = RIG_PORT };
	struct harp_tcp_options opt = options(0, ecn);
	const struct rig_seg *s;

	rig_open(&rig);
	rig.port = RIG_PORT;
	CHECK_EQ(harp_tcp_listen(rig.stack, &at, &opt, &rig.listener), 0);
	rig_says(&rig, rig_syn(&rig, syn));
	s = rig_expect(&rig, synack);
	CHECK_EQ(s->tos, 0);
	rig.seq++;
	rig.ack = s->seq + 1;
}

static bool accepted(void)
{
	rig_says(&rig, rig_usual(&rig, TCP_ACK, 0));
	CHECK_EQ(harp_tcp_accept(rig.listener, &rig.conn), 0);
	return rig.conn && (rig.conn->options & HARP_TCPI_ECN);
}

/* Section 6.1.1.1: the SYN that asked is lost, the next one doesn't ask; ECN is off, answer or not. */
TEST(fallback)
{
	struct harp_tcp_options opt = options(0, HARP_ECN_REQUEST);
	struct harp_endpoint remote = { .addr = harp_addr_v4(10, 0, 0, 2), .port = RIG_PEER_PORT };
	const struct rig_seg *s;

	rig_open(&rig);
	CHECK_EQ(harp_tcp_connect(rig.stack, NULL, &remote, &opt, &rig.conn), 0);
	rig_poll(&rig);
	s = rig_expect(&rig, ASK);
	rig.port = s->src_port;
	rig.ack = s->seq + 1;
	rig_wait(&rig, 1050 * RIG_MS);
	rig_expect(&rig, TCP_SYN);
	/* The answer to the first one, late: we must not set ECT, having sent a plain SYN. */
	rig_says(&rig, rig_syn(&rig, TCP_SYN | TCP_ACK | TCP_ECE));
	rig.seq++;
	rig_expect(&rig, TCP_ACK);
	CHECK(!(rig.conn->options & HARP_TCPI_ECN));
	CHECK_EQ(rig_write(&rig, 100), 100);
	CHECK_EQ(rig_expect(&rig, TCP_ACK | TCP_PSH)->tos, 0);
	/* Yet what the peer marks as agreed is told of. */
	{
		struct rig_say say = rig_usual(&rig, TCP_ACK | TCP_PSH, 10);

		say.tos = CE;
		say.ack += 100;
		rig_says(&rig, say);
		rig_expect(&rig, TCP_ACK | TCP_ECE);
	}
	rig_close(&rig);

	/* The peer falls back while we answer it. */
	accepts(HARP_ECN_DEFAULT, ASK, TCP_SYN | TCP_ACK | TCP_ECE);
	rig.seq--;
	rig_says(&rig, rig_syn(&rig, TCP_SYN));
	rig.seq++;
	rig_expect(&rig, TCP_SYN | TCP_ACK);
	CHECK(!accepted());
	rig_close(&rig);
}

/* ---- Established ---- */

static void established(uint32_t congestion)
{
	CHECK(connects(options(congestion, HARP_ECN_REQUEST), ASK, TCP_SYN | TCP_ACK | TCP_ECE));
	rig.ack += 100;
	rig_says(&rig, rig_usual(&rig, TCP_ACK, 0));
	rig.out_head = rig.out_tail;
}

/* The peer sends len bytes so marked, with these flags too. */
static void data_in(uint8_t tos, uint8_t flags, uint32_t len)
{
	struct rig_say say = rig_usual(&rig, TCP_ACK | flags, len);

	say.tos = tos;
	rig_says(&rig, say);
	rig.seq += len;
}

static void ack_in(uint8_t flags, uint32_t ack)
{
	struct rig_say say = rig_usual(&rig, TCP_ACK | flags, 0);

	say.ack = ack;
	rig_says(&rig, say);
}

/* RFC 8257 section 3.2: ECE says of each segment whether it was marked, however ACKs are held. */
TEST(dctcp_receiver)
{
	uint32_t before;

	established(HARP_CONGESTION_DCTCP);
	data_in(ECT0, 0, MSS); /* held: more is coming */
	data_in(ECT0, 0, MSS);
	rig_silent(&rig);
	before = rig.seq;
	data_in(CE, 0, MSS); /* the old state first, at once, then the new one */
	CHECK_EQ(rig_expect(&rig, TCP_ACK)->ack, before);
	CHECK_EQ(rig_expect(&rig, TCP_ACK | TCP_ECE)->ack, rig.seq);
	data_in(CE, 0, MSS);
	before = rig.seq;
	data_in(ECT0, 0, MSS);
	CHECK_EQ(rig_expect(&rig, TCP_ACK | TCP_ECE)->ack, before);
	CHECK_EQ(rig_expect(&rig, TCP_ACK)->ack, rig.seq);
	/* CWR doesn't enter into it. */
	data_in(CE, TCP_PSH, MSS);
	rig_expect(&rig, TCP_ACK | TCP_ECE);
	data_in(CE, TCP_PSH | TCP_CWR, MSS);
	rig_poll(&rig);
	rig_expect(&rig, TCP_ACK | TCP_ECE);
	rig_silent(&rig);
}

TEST(options)
{
	struct harp_endpoint remote = { .addr = harp_addr_v4(10, 0, 0, 2), .port = RIG_PEER_PORT };
	struct harp_tcp_options bad[] = {
		options(HARP_CONGESTION_FIXED + 1, 0),
		options(0, HARP_ECN_REQUEST + 1),
		options(HARP_CONGESTION_DCTCP, HARP_ECN_OFF),
		options(HARP_CONGESTION_FIXED, 0),
	};
	struct harp_tcp_options fixed = options(HARP_CONGESTION_FIXED, 0);
	struct harp_tcp_info info;

	rig_open(&rig);
	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		CHECK_EQ(harp_tcp_connect(rig.stack, NULL, &remote, &bad[i], &rig.conn), -EINVAL);
	fixed.congestion = HARP_CONGESTION_CUBIC;
	fixed.fixed_window_bytes = 1;
	CHECK_EQ(harp_tcp_connect(rig.stack, NULL, &remote, &fixed, &rig.conn), -EINVAL);
	rig.conn = NULL;
	for (int i = HARP_CONGESTION_DEFAULT; i <= HARP_CONGESTION_FIXED; i++)
		CHECK_EQ(harp_congestion_from_name(harp_congestion_name((enum harp_congestion)i)),
			 i);
	CHECK_EQ(harp_congestion_from_name("bbr"), -EINVAL);
	CHECK_STR(harp_congestion_name((enum harp_congestion)99), "?");
	/* A fixed window is that, whatever happens. */
	fixed.congestion = HARP_CONGESTION_FIXED;
	fixed.fixed_window_bytes = 5 * MSS;
	rig_established(&rig, &fixed);
	CHECK_EQ(rig_write(&rig, 20 * MSS), 20 * MSS);
	CHECK_EQ(rig_pending(&rig), 5);
	rig.out_head = rig.out_tail;
	ack_in(0, rig.conn->snd.nxt_seq);
	CHECK_EQ(rig_pending(&rig), 5);
	rig.out_head = rig.out_tail;
	CHECK_EQ(harp_conn_info(rig.conn, &info, sizeof(info)), 0);
	CHECK_EQ(info.congestion, HARP_CONGESTION_FIXED);
	CHECK_EQ(info.snd_cwnd_bytes, 5 * MSS);
	CHECK_EQ(info.pacing_bytes_per_s, 0);
	rig_close(&rig);
	rig_begin(&rig, NULL);
	CHECK_EQ(harp_conn_info(rig.conn, &info, sizeof(info)), 0);
	CHECK_EQ(info.congestion, HARP_CONGESTION_CUBIC);
	rig_close(&rig);
}
