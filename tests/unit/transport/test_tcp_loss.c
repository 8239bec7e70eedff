/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tcp_loss.c - congestion signals: duplicate ACKs with limited transmit, fast retransmit and
 * NewReno's partial ACKs; ECN, from negotiation to CWR (RFC 3168 section 6.1), and DCTCP's receiver
 * (RFC 8257 section 3.2).
 */

#include "rig.h"

static struct rig rig;
AFTER_EACH(rig_close(&rig))

/* Sends ten segments; returns the first one's sequence number. */
static uint32_t send_ten_segments(void)
{
	uint32_t first;

	rig_begin(&rig, RIG_OPTIONS(.congestion = HARP_CONGESTION_NEWRENO));
	CHECK_EQ(rig_write(&rig, 20 * 1448), 20 * 1448);
	CHECK_EQ(rig_pending(&rig), 10); /* RFC 6928 */
	first = rig_expect(&rig, TCP_ACK)->seq;
	rig.out_head = rig.out_tail;
	return first;
}

static struct rig_say ack_of(uint32_t ack)
{
	struct rig_say say = rig_usual(&rig, TCP_ACK, 0);

	say.ack = ack;
	return say;
}

static void send_acks(unsigned count, uint32_t ack)
{
	while (count-- > 0)
		rig_says(&rig, ack_of(ack));
}

/* RFC 6582 section 3.2 step 2: all data up to recover was only late. The peer answers the spurious
 * retransmissions with duplicate ACKs, which must not start a recovery. */
TEST(duplicate_acks_of_retransmissions_start_no_recovery)
{
	uint32_t first = send_ten_segments(), recover;

	send_acks(4, first);
	CHECK_EQ(rig.conn->recovery, TCP_RECOVERY_FAST);
	recover = rig.conn->loss.recover_seq;
	for (uint32_t ack = first + 1448; ack != recover; ack += 1448)
		rig_says(&rig, ack_of(ack)); /* they were late: each ACK causes a retransmission */
	rig_says(&rig, ack_of(recover));
	CHECK_EQ(rig.conn->recovery, TCP_RECOVERY_NONE);
	CHECK(conn_flight_bytes(rig.conn) > 0);
	send_acks(8, recover);
	CHECK_EQ(rig_stat(&rig, "tcp_fast_retransmits"), 1);
	CHECK_EQ(rig.conn->recovery, TCP_RECOVERY_NONE);
	/* A loss beyond recover starts one. */
	rig_says(&rig, ack_of(recover + 1448));
	CHECK(conn_flight_bytes(rig.conn) > 0);
	send_acks(3, recover + 1448);
	CHECK_EQ(rig_stat(&rig, "tcp_fast_retransmits"), 2);
}

/* The segment sent right after the retransmission is lost as well. Its recovery takes one more
 * duplicate ACK than usual, because the retransmission itself may cause one. */
TEST(a_loss_after_the_last_retransmission_is_recovered)
{
	uint32_t first = send_ten_segments(), recover;

	send_acks(5, first);
	CHECK_EQ(rig.conn->recovery, TCP_RECOVERY_FAST);
	CHECK_EQ(rig.conn->acct.retransmits, 1);
	recover = rig.conn->loss.recover_seq;
	rig_says(&rig, ack_of(recover));
	CHECK_EQ(rig.conn->recovery, TCP_RECOVERY_NONE);
	CHECK(conn_flight_bytes(rig.conn) > 0);
	send_acks(3, recover);
	CHECK_EQ(rig_stat(&rig, "tcp_fast_retransmits"), 1);
	rig.out_head = rig.out_tail;
	rig_says(&rig, ack_of(recover));
	CHECK_EQ(rig_stat(&rig, "tcp_fast_retransmits"), 2);
	CHECK_EQ(rig_expect(&rig, TCP_ACK)->seq, recover);
}

/* ECN reduced the window without a retransmission, so no duplicate ACK is discounted. */
TEST(a_loss_after_an_ecn_mark_is_recovered)
{
	uint32_t first = send_ten_segments(), recover;

	tcp_loss_ecn(rig.conn);
	recover = rig.conn->loss.recover_seq;
	rig_says(&rig, ack_of(recover));
	CHECK_EQ(rig.conn->recovery, TCP_RECOVERY_NONE);
	CHECK_EQ(recover, first + 10 * 1448);
	send_acks(4, recover); /* the first one is a window update */
	CHECK_EQ(rig_stat(&rig, "tcp_fast_retransmits"), 1);
}

/* After 2.25 GiB without a loss, recover_seq appears to be ahead of the data in flight. */
TEST(duplicate_acks_long_after_the_last_recovery_start_one)
{
	uint32_t first = send_ten_segments();

	rig.conn->loss.recover_seq = first - 0x90000000u;
	send_acks(4, first);
	CHECK_EQ(rig_stat(&rig, "tcp_fast_retransmits"), 1);
	CHECK_EQ(rig.conn->recovery, TCP_RECOVERY_FAST);
}

/* More duplicate ACKs than segments in flight, then an ACK of one byte: FlightSize must not
 * underflow, because the next ssthresh follows from it. */
TEST(more_duplicate_acks_than_segments_in_flight_are_bounded)
{
	uint32_t first;

	rig_begin(&rig, RIG_OPTIONS(.congestion = HARP_CONGESTION_NEWRENO));
	CHECK_EQ(rig_write(&rig, 10 * 1448), 10 * 1448);
	first = rig.out[rig.out_head % RIG_QUEUE].seq;
	send_acks(40, first);
	CHECK_EQ(rig.conn->recovery, TCP_RECOVERY_FAST);
	rig_says(&rig, ack_of(first + 1));
	CHECK(rig.conn->loss.dup_acked_bytes <= 10 * 1448 - 1);
	rig_wait(&rig, RIG_S);
	CHECK(rig_stat(&rig, "tcp_rto") > 0);
	CHECK(rig.conn->cc.ssthresh_bytes <= 5 * 1448);
}

TEST(not_every_repeated_ack_is_a_duplicate)
{
	uint32_t first = send_ten_segments();
	struct rig_say say;

	for (uint32_t i = 0; i < 5; i++) { /* window updates */
		say = ack_of(first);
		say.wnd -= 10 * (i + 1);
		rig_says(&rig, say);
	}
	for (uint32_t i = 0; i < 5; i++) { /* data segments */
		say = rig_usual(&rig, TCP_ACK, 10);
		say.ack = first;
		say.wnd -= 50;
		rig_says(&rig, say);
		rig.seq += 10;
	}
	CHECK_EQ(rig_stat(&rig, "tcp_fast_retransmits"), 0);
	CHECK_EQ(rig_stat(&rig, "tcp_retransmits"), 0);
}

TEST(a_timeout_after_real_losses_is_not_undone)
{
	uint32_t first = send_ten_segments();

	rig_wait(&rig, 10 * RIG_MS);
	rig_expect(&rig, TCP_ACK); /* the next ACK echoes its timestamp */
	rig_says(&rig, ack_of(first + 2 * 1448));
	CHECK_EQ(rig.conn->recovery, TCP_RECOVERY_RTO);
	CHECK(rig.conn->cc.cwnd_bytes < 10 * 1448);
}

/*
 * RFC 6582 section 3.2 step 2: after a timeout, duplicate ACKs up to recover come from
 * retransmissions and start no recovery. Those beyond recover do.
 */
TEST(duplicate_acks_after_a_timeout_start_no_recovery)
{
	uint32_t first = send_ten_segments(), recover;

	rig_says(&rig, ack_of(first));
	while (rig.conn->recovery != TCP_RECOVERY_RTO) {
		rig_wait(&rig, 100 * RIG_MS);
		rig_drain(&rig);
	}
	recover = rig.conn->loss.recover_seq;
	CHECK_EQ(recover, first + 10 * 1448);
	rig_says(&rig, ack_of(recover));
	rig_drain(&rig);
	CHECK_EQ(rig.conn->recovery, TCP_RECOVERY_NONE);
	send_acks(4, recover);
	CHECK_EQ(rig_stat(&rig, "tcp_fast_retransmits"), 0);
	CHECK_EQ(rig.conn->recovery, TCP_RECOVERY_NONE);
	rig_drain(&rig);
	rig_says(&rig, ack_of(recover + 1448));
	rig_drain(&rig);
	send_acks(4, recover + 1448);
	CHECK_EQ(rig_stat(&rig, "tcp_fast_retransmits"), 1);
}

/* ---- ECN ------------------------------------------------------------------------------------- */

#define ECT0 2u
#define CE 3u
#define ECN_SETUP_SYN ((uint8_t)(TCP_SYN | TCP_ECE | TCP_CWR))

static struct harp_tcp_options ecn_options(uint32_t congestion, uint32_t ecn)
{
	return (struct harp_tcp_options){ .size = sizeof(struct harp_tcp_options),
					  .congestion = congestion,
					  .ecn = ecn };
}

/* ---- The handshake --------------------------------------------------------------------------- */

/* RFC 3168 section 6.1.1.1: the SYN that requests ECN is lost, and its retransmission does not
 * request it. ECN is off for any answer. */
TEST(a_retransmitted_syn_does_not_request_ecn)
{
	struct harp_tcp_options opt = ecn_options(0, HARP_ECN_REQUEST);

	rig_open(&rig);
	rig_syn_sent_flags(&rig, &opt, ECN_SETUP_SYN);
	rig_wait(&rig, 1050 * RIG_MS);
	rig_expect(&rig, TCP_SYN);
	/* A late answer to the first SYN: the stack must not set ECT after it has sent a plain
	 * SYN. */
	rig_syn_acked_as(&rig, TCP_ECE, RIG_PEER_WND);
	CHECK(!(rig.conn->options & HARP_TCPI_ECN));
	CHECK_EQ(rig_writes(&rig, 100)->tos, 0);
	/* For the peer ECN is negotiated, so the stack echoes its marks. */
	{
		struct rig_say say = rig_usual(&rig, TCP_ACK | TCP_PSH, 10);

		say.tos = CE;
		say.ack += 100;
		rig_says(&rig, say);
		rig_expect(&rig, TCP_ACK | TCP_ECE);
	}
	rig_close(&rig);

	/* The peer falls back to a plain SYN after the SYN-ACK agreed to ECN. */
	rig_open(&rig);
	rig_listen(&rig, 4);
	rig_says(&rig, rig_syn(&rig, ECN_SETUP_SYN));
	rig_expect(&rig, TCP_SYN | TCP_ACK | TCP_ECE);
	rig_accept(&rig);
	CHECK(!(rig.conn->options & HARP_TCPI_ECN));
}

/* ---- Established ----------------------------------------------------------------------------- */

static void ecn_established(uint32_t congestion)
{
	struct harp_tcp_options opt = ecn_options(congestion, HARP_ECN_REQUEST);

	rig_open(&rig);
	rig_syn_sent_flags(&rig, &opt, ECN_SETUP_SYN);
	rig_syn_acked_as(&rig, TCP_ECE, RIG_PEER_WND);
	CHECK(rig.conn->options & HARP_TCPI_ECN);
}

/* The peer sends len bytes with this ECN codepoint and these additional flags. */
static void peer_sends(uint8_t tos, uint8_t flags, uint32_t len)
{
	struct rig_say say = rig_usual(&rig, TCP_ACK | flags, len);

	say.tos = tos;
	rig_says(&rig, say);
	rig.seq += len;
}

/* RFC 8257 section 3.2: ECE reports for each segment whether it was marked, even if ACKs are
 * held. */
TEST(a_dctcp_receiver_echoes_every_change_of_ce)
{
	uint32_t before;

	ecn_established(HARP_CONGESTION_DCTCP);
	peer_sends(ECT0, 0, 1448); /* the ACK is held */
	peer_sends(ECT0, 0, 1448);
	rig_silent(&rig);
	before = rig.seq;
	peer_sends(CE, 0, 1448); /* ACKs the old state at once, then the new one */
	CHECK_EQ(rig_expect(&rig, TCP_ACK)->ack, before);
	CHECK_EQ(rig_expect(&rig, TCP_ACK | TCP_ECE)->ack, rig.seq);
	peer_sends(CE, 0, 1448);
	before = rig.seq;
	peer_sends(ECT0, 0, 1448);
	CHECK_EQ(rig_expect(&rig, TCP_ACK | TCP_ECE)->ack, before);
	CHECK_EQ(rig_expect(&rig, TCP_ACK)->ack, rig.seq);
	/* CWR has no effect. */
	peer_sends(CE, TCP_PSH, 1448);
	rig_expect(&rig, TCP_ACK | TCP_ECE);
	peer_sends(CE, TCP_PSH | TCP_CWR, 1448);
	rig_poll(&rig);
	rig_expect(&rig, TCP_ACK | TCP_ECE);
	rig_silent(&rig);
}
