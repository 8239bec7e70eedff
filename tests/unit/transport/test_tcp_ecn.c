/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tcp_ecn.c - explicit congestion notification: the agreement, what is ECT, CE to ECE to
 * CWR (RFC 3168 section 6.1), and DCTCP's receiver (RFC 8257 section 3.2).
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

/* Section 6.1.1.1: the SYN that requested ECN is lost, and the next one does not request it: ECN is
 * off, whatever the answer. */
TEST(a_syn_that_is_sent_again_does_not_request_ecn)
{
	struct harp_tcp_options opt = options(0, HARP_ECN_REQUEST);

	rig_open(&rig);
	rig_syn_sent_flags(&rig, &opt, ASK);
	rig_wait(&rig, 1050 * RIG_MS);
	rig_expect(&rig, TCP_SYN);
	/* The answer to the first one, late: we must not set ECT, having sent a plain SYN. */
	rig_says(&rig, rig_syn(&rig, TCP_SYN | TCP_ACK | TCP_ECE));
	rig.seq++;
	rig_expect(&rig, TCP_ACK);
	CHECK(!(rig.conn->options & HARP_TCPI_ECN));
	CHECK_EQ(rig_write(&rig, 100), 100);
	CHECK_EQ(rig_expect(&rig, TCP_ACK | TCP_PSH)->tos, 0);
	/* The peer took it as agreed: its marks are echoed. */
	{
		struct rig_say say = rig_usual(&rig, TCP_ACK | TCP_PSH, 10);

		say.tos = CE;
		say.ack += 100;
		rig_says(&rig, say);
		rig_expect(&rig, TCP_ACK | TCP_ECE);
	}
	rig_close(&rig);

	/* The peer falls back while we answer it. */
	rig_open(&rig);
	rig_listen(&rig, 4);
	rig_says(&rig, rig_syn(&rig, ASK));
	rig_expect(&rig, TCP_SYN | TCP_ACK | TCP_ECE);
	rig_accept(&rig);
	CHECK(!(rig.conn->options & HARP_TCPI_ECN));
}

/* ---- Established ---- */

static void established(uint32_t congestion)
{
	struct harp_tcp_options opt = options(congestion, HARP_ECN_REQUEST);

	rig_open(&rig);
	rig_syn_sent_flags(&rig, &opt, ASK);
	rig_says(&rig, rig_syn(&rig, TCP_SYN | TCP_ACK | TCP_ECE));
	rig.seq++;
	rig_expect(&rig, TCP_ACK);
	CHECK(rig.conn->options & HARP_TCPI_ECN);
}

/* The peer sends len bytes so marked, with these flags too. */
static void data_in(uint8_t tos, uint8_t flags, uint32_t len)
{
	struct rig_say say = rig_usual(&rig, TCP_ACK | flags, len);

	say.tos = tos;
	rig_says(&rig, say);
	rig.seq += len;
}

/* RFC 8257 section 3.2: ECE says of each segment whether it was marked, however ACKs are held. */
TEST(a_dctcp_receiver_echoes_every_change_of_ce)
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
