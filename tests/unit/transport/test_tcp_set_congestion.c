/* SPDX-License-Identifier: Apache-2.0 */
/* test_tcp_set_congestion.c - another congestion control on an open connection (TCP_CONGESTION). */
#include "tcp_sack_rig.h"

static int set_congestion(uint32_t congestion, uint32_t fixed_window_bytes)
{
	struct harp_tcp_options opt = rig_options(&rig);

	opt.congestion = congestion;
	opt.fixed_window_bytes = fixed_window_bytes;
	return harp_conn_set_options(rig.conn, &opt);
}

TEST(a_new_controller_goes_on_with_the_window)
{
	static const uint32_t others[] = { HARP_CONGESTION_CUBIC, HARP_CONGESTION_DELAY,
					   HARP_CONGESTION_NEWRENO, HARP_CONGESTION_DEFAULT };
	uint32_t cwnd;

	in_flight(12, true); /* the initial window and more */
	ack(10);
	cwnd = rig.conn->cc.cwnd_bytes;
	CHECK(cwnd > 10 * MSS);
	for (unsigned i = 0; i < 4; i++) {
		struct harp_tcp_info info;

		CHECK_EQ(set_congestion(others[i], 0), 0);
		info = rig_info(&rig);
		CHECK_EQ(info.congestion, others[i] ? others[i] : HARP_CONGESTION_CUBIC);
		CHECK_EQ(info.snd_cwnd_bytes, cwnd);
		CHECK_EQ(info.snd_ssthresh_bytes, HARP_SSTHRESH_NONE);
	}
}

TEST(a_fixed_window_is_a_window_of_its_own)
{
	in_flight(2, true);
	ack(2);
	CHECK_EQ(set_congestion(HARP_CONGESTION_FIXED, 3 * MSS), 0);
	CHECK_EQ(rig.conn->cc.cwnd_bytes, 3 * MSS);
	CHECK_EQ(rig_write(&rig, 8 * MSS), 8 * MSS);
	CHECK_EQ(rig_pending(&rig), 3);
	/* A larger one lets out more, at once. */
	CHECK_EQ(set_congestion(HARP_CONGESTION_FIXED, 5 * MSS), 0);
	rig_poll(&rig);
	CHECK_EQ(rig_pending(&rig), 5);
	CHECK_EQ(set_congestion(HARP_CONGESTION_CUBIC, 0), 0);
	CHECK_EQ(rig.conn->cc.cwnd_bytes, cc_initial_window_bytes(MSS));
	CHECK_EQ(rig.conn->cc.ssthresh_bytes, HARP_SSTHRESH_NONE);
}

/* The repair turns out to have been in vain: the window comes back, the old controller does not. */
TEST(an_undone_recovery_keeps_the_new_controller)
{
	struct rig_say say;
	uint32_t cwnd;

	in_flight(10, true);
	cwnd = rig.conn->cc.cwnd_bytes;
	say = ack_say(0, 1, (const uint32_t[1][2]){ { 4, 10 } });
	rig.tsval++;
	later(RTT_NS);
	rig_says(&rig, say);
	CHECK_EQ(rig.conn->recovery, TCP_RECOVERY_FAST);
	CHECK(rig.conn->cc.ssthresh_bytes < cwnd);
	CHECK_EQ(set_congestion(HARP_CONGESTION_CUBIC, 0), 0);
	CHECK(rig.conn->undo.open);
	/* The originals arrive: the echo is older than what was sent again. */
	rig.conn->undo.tsval = rig.tsecr + 1;
	rig_says(&rig, ack_say(10, 0, NULL));
	CHECK_EQ(rig_stat(&rig, "tcp_spurious_recovery"), 1);
	CHECK_EQ(tcp_cc_congestion(rig.conn), HARP_CONGESTION_CUBIC);
	CHECK(rig.conn->cc.cwnd_bytes >= cwnd);
	CHECK_EQ(rig.conn->cc.ssthresh_bytes, HARP_SSTHRESH_NONE);
}

TEST(dctcp_needs_ecn)
{
	struct harp_tcp_options opt = { .size = sizeof(opt) };
	struct harp_conn *conn;

	opt.congestion = HARP_CONGESTION_DCTCP;
	opt.ecn = HARP_ECN_OFF;
	rig_begin(&rig, NULL);
	CHECK_EQ(rig_connect(&rig, &opt, &conn), -EINVAL);
	CHECK_EQ(set_congestion(HARP_CONGESTION_DCTCP, 0), -EOPNOTSUPP);
	CHECK_EQ(rig_options(&rig).congestion, HARP_CONGESTION_CUBIC);
	rig_close(&rig);
	opt = (struct harp_tcp_options){ .size = sizeof(opt), .ecn = HARP_ECN_REQUEST };
	rig_open(&rig);
	rig_syn_sent_flags(&rig, &opt, TCP_SYN | TCP_ECE | TCP_CWR);
	/* Before the handshake is complete it is unknown whether ECN will be in use: as with
	 * connect. */
	CHECK_EQ(set_congestion(HARP_CONGESTION_DCTCP, 0), 0);
	CHECK_EQ(set_congestion(HARP_CONGESTION_CUBIC, 0), 0);
	rig_says(&rig, rig_syn(&rig, TCP_SYN | TCP_ACK | TCP_ECE));
	rig.seq++;
	rig_expect(&rig, TCP_ACK);
	CHECK_EQ(set_congestion(HARP_CONGESTION_DCTCP, 0), 0);
	CHECK_EQ(tcp_cc_congestion(rig.conn), HARP_CONGESTION_DCTCP);
	rig_close(&rig);
}
