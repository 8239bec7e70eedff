/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tcp_mtu.c - packetization layer path MTU discovery (RFC 4821) between two stacks. The path
 * drops large packets silently: the stack detects black holes, the search finds the MTU, and no
 * byte is lost.
 */
#include "net_rig.h"

#define STEP_NS 100000u

static void set_path(uint32_t path_bytes)
{
	net.tap[0].path_bytes = net.tap[1].path_bytes = path_bytes;
}

static void set_up(bool v6, uint32_t nic_mtu_bytes, uint32_t loss_ppm)
{
	struct harp_wire_impair impair = { .delay_ns = 2 * STEP_NS, .loss_ppm = loss_ppm };

	net_open_connected((struct net_setup){ .v6 = v6,
					       .wire = { .frame_size = 16384, /* one per packet */
							 .seed = 8,
							 .mtu_bytes = nic_mtu_bytes,
							 .impair = { .delay_ns = 2 * STEP_NS } },
					       .stack = { .max_conns = 4 } });
	CHECK_EQ(harp_wire_set_impair(net.wire, 0, &impair), 0);
	CHECK_EQ(harp_wire_set_impair(net.wire, 1, &impair), 0);
}

static void tear_down(void)
{
	if (!net.wire)
		return;
	harp_conn_abort(net.sender);
	harp_conn_abort(net.receiver);
	net.sender = net.receiver = NULL;
	for (int i = 0; i < 3; i++)
		net_step(STEP_NS);
	for (unsigned i = 0; i < 2; i++) {
		CHECK_EQ(net_stat(i, "frames_tcp_tx"), 0);
		CHECK_EQ(net_stat(i, "frames_tcp_rx"), 0);
	}
	net_close();
}

/* Sends data for this time; returns the number of bytes received. */
static uint64_t send_for(uint64_t ns)
{
	uint64_t until_ns = net.now_ns + ns, before = net.received;

	while (net.now_ns < until_ns) {
		uint32_t offset = (uint32_t)(net.sent % BYTES);
		struct iovec iov = { net.bytes + offset,
				     BYTES - offset < 16384 ? BYTES - offset : 16384 };
		ssize_t n = harp_conn_send(net.sender, &iov, 1);

		net.sent += n > 0 ? (uint64_t)n : 0;
		net_step(STEP_NS);
		net_take();
	}
	return net.received - before;
}

static void idle_for(uint64_t ns)
{
	uint64_t until_ns = net.now_ns + ns;

	while (net.now_ns < until_ns) {
		net_step(net.received < net.sent ? STEP_NS : 100 * MS);
		net_take();
	}
	CHECK_EQ(net.received, net.sent);
}

static uint32_t headers(bool v6)
{
	return (v6 ? 40 : 20) + 20 + 12;
}

/* The path's MTU is reduced without an ICMP error. */
static void test_black_hole(bool v6, uint32_t nic_mtu_bytes, uint32_t path_mtu_bytes)
{
	uint32_t nic_mss = nic_mtu_bytes - headers(v6), path_mss = path_mtu_bytes - headers(v6);
	uint64_t before;

	set_up(v6, nic_mtu_bytes, 0);
	send_for(20 * MS);
	CHECK_EQ(net.sender->snd.mss_bytes, nic_mss);
	CHECK_EQ(net_stat(0, "tcp_retransmits"), 0);
	set_path(path_mtu_bytes);
	for (int i = 0; i < 1000 && net_stat(0, "tcp_mtu_black_holes") == 0; i++)
		send_for(1 * MS);
	CHECK_EQ(net_stat(0, "tcp_mtu_black_holes"), 1);
	/* The search begins after the recovery. */
	for (int i = 0; i < 1000 && net_stat(0, "tcp_mtu_probes") == 0; i++)
		send_for(STEP_NS);
	CHECK_EQ(net_stat(0, "tcp_mtu_probes"), 1);
	CHECK(net_stat(0, "tcp_resegmented") > 0);
	/* The search ends within 16 bytes of the MTU, and lost probes are no congestion signal. */
	before = net_stat(0, "tcp_fast_retransmits") + net_stat(0, "tcp_rto");
	send_for(500 * MS);
	CHECK(net.sender->snd.mss_bytes <= path_mss && net.sender->snd.mss_bytes + 16u > path_mss);
	CHECK(net_stat(0, "tcp_mtu_probes_lost") >= 3);
	CHECK_EQ(net_stat(0, "tcp_fast_retransmits") + net_stat(0, "tcp_rto"), before);
	/* The search is over: no probe for ten minutes. */
	before = net_stat(0, "tcp_mtu_probes");
	send_for(200 * MS);
	CHECK_EQ(net_stat(0, "tcp_mtu_probes"), before);
	idle_for(700 * S);
	set_path(nic_mtu_bytes);
	send_for(100 * MS);
	CHECK_EQ(net.sender->snd.mss_bytes, nic_mss);
	CHECK_EQ(net_stat(0, "tcp_mtu_black_holes"), 1);
	idle_for(1 * S);
	tear_down();
}

static void limit_segments(uint32_t mss_bytes)
{
	struct harp_tcp_options opt = { .size = sizeof(opt) };

	CHECK_EQ(harp_conn_options(net.sender, &opt), 0);
	opt.mss_bytes = mss_bytes;
	CHECK_EQ(harp_conn_set_options(net.sender, &opt), 0);
}

AFTER_EACH(tear_down())

/* The application limits the segment size while a path MTU probe is in flight. The probe's ACK does
 * not raise the size above the limit. Without the limit the search continues. */
TEST(an_application_limit_bounds_the_search)
{
	uint32_t nic_mss = 9000 - headers(false), path_mss = 4000 - headers(false);
	uint64_t probes;

	set_up(false, 9000, 0);
	set_path(4000);
	for (int i = 0; i < 10000 && (net.sender->mtu.state != MTU_PROBING ||
				      net.sender->mtu.probe_bytes > path_mss);
	     i++)
		send_for(STEP_NS);
	CHECK_EQ(net.sender->mtu.state, MTU_PROBING);
	CHECK(net.sender->snd.mss_bytes > 600);
	limit_segments(600);
	probes = net_stat(0, "tcp_mtu_probes");
	for (int i = 0; i < 100; i++) {
		send_for(MS);
		CHECK_EQ(net.sender->snd.mss_bytes, 588);
	}
	CHECK_EQ(net_stat(0, "tcp_mtu_probes"), probes);
	limit_segments(3000);
	send_for(500 * MS);
	CHECK_EQ(net.sender->snd.mss_bytes, 2988);
	/* As after the handshake, the size is the largest until the stack detects the black
	 * hole. */
	limit_segments(0);
	CHECK_EQ(net.sender->mtu.top_bytes, nic_mss);
	send_for(2000 * MS);
	CHECK(net.sender->snd.mss_bytes <= path_mss && net.sender->snd.mss_bytes + 16u > path_mss);
	idle_for(1 * S);
}

/* A small MTU from the beginning: the handshake passes, data does not. */
static void test_narrow_from_the_beginning(bool v6)
{
	uint32_t path_mss = 1380 - headers(v6);

	set_up(v6, 1500, 0);
	set_path(1380);
	send_for(1200 * MS);
	CHECK(net.sender->snd.mss_bytes <= path_mss && net.sender->snd.mss_bytes + 16u > path_mss);
	idle_for(1 * S);
	tear_down();
}

/* If the first base MTU is too large, IPv4 tries a smaller one. */
TEST(a_path_below_the_base_mtu_is_found)
{
	set_up(false, 1500, 0);
	set_path(600);
	send_for(4 * S);
	CHECK_EQ(net_stat(0, "tcp_mtu_black_holes"), 2);
	CHECK(net.sender->snd.mss_bytes <= 548 && net.sender->snd.mss_bytes >= 500);
	idle_for(1 * S);
}

/* An outage looks like a black hole; large segments return after it. */
static void test_outage(bool v6)
{
	set_up(v6, 1500, 0);
	send_for(20 * MS);
	set_path(1);
	send_for(2 * S);
	set_path(1500);
	send_for(1500 * MS);
	CHECK_EQ(net.sender->snd.mss_bytes, 1500 - headers(v6));
	idle_for(1 * S);
	tear_down();
}

/* Under random loss and MTU changes every byte arrives. */
static void test_random_losses(bool v6)
{
	set_up(v6, 1500, 10000);
	for (int i = 0; i < 4; i++) {
		set_path(i % 2 ? 1300 : 1500);
		CHECK(send_for(1 * S) > 0);
	}
	idle_for(3 * S);
	CHECK(net_stat(0, "tcp_mtu_probes") > 0);
	tear_down();
}

TEST(black_holes_are_detected_in_both_families)
{
	for (int v6 = 0; v6 < 2; v6++) {
		test_black_hole(v6, 1500, 1400);
		test_black_hole(v6, 9000, 1500);
		test_black_hole(v6, 9000, 4000);
		test_narrow_from_the_beginning(v6);
		test_outage(v6);
		test_random_losses(v6);
	}
}
