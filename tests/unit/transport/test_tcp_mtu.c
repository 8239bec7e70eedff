/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tcp_mtu.c - packetization layer path MTU discovery (RFC 4821) between two stacks, over a
 * path that drops large packets silently: black holes are detected, the search finds the MTU, and
 * no byte is lost.
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

	net_open_connected((struct how){ .v6 = v6,
					 .wire = { .frame_size = 16384, /* a packet fits in one */
						   .seed = 7,
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
	harp_conn_abort(net.from);
	harp_conn_abort(net.to);
	net.from = net.to = NULL;
	for (int i = 0; i < 3; i++)
		net_step(STEP_NS);
	for (unsigned i = 0; i < 2; i++) {
		CHECK_EQ(net_stat(i, "frames_tcp_tx"), 0);
		CHECK_EQ(net_stat(i, "frames_tcp_rx"), 0);
	}
	net_close();
}

/* Bytes flow for so long; how many arrived. */
static uint64_t flow(uint64_t ns)
{
	uint64_t until_ns = net.now_ns + ns, before = net.received;

	while (net.now_ns < until_ns) {
		uint32_t from = (uint32_t)(net.sent % BYTES);
		struct iovec iov = { net.bytes + from,
				     BYTES - from < 16384 ? BYTES - from : 16384 };
		ssize_t n = harp_conn_send(net.from, &iov, 1);

		net.sent += n > 0 ? (uint64_t)n : 0;
		net_step(STEP_NS);
		net_take();
	}
	return net.received - before;
}

/* Time passes; nothing is sent. */
static void idle(uint64_t ns)
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
	uint32_t top = nic_mtu_bytes - headers(v6), fits = path_mtu_bytes - headers(v6);
	uint64_t repairs;

	set_up(v6, nic_mtu_bytes, 0);
	flow(20 * MS);
	CHECK_EQ(net.from->snd.mss_bytes, top);
	CHECK_EQ(net_stat(0, "tcp_retransmits"), 0);
	set_path(path_mtu_bytes);
	for (int i = 0; i < 1000 && net_stat(0, "tcp_mtu_black_holes") == 0; i++)
		flow(1 * MS);
	CHECK_EQ(net_stat(0, "tcp_mtu_black_holes"), 1);
	/* The search begins after the recovery. */
	for (int i = 0; i < 1000 && net_stat(0, "tcp_mtu_probes") == 0; i++)
		flow(STEP_NS);
	CHECK_EQ(net_stat(0, "tcp_mtu_probes"), 1);
	CHECK(net_stat(0, "tcp_resegmented") > 0);
	/* The size found is within 16 bytes, and lost probes were no congestion signal. */
	repairs = net_stat(0, "tcp_fast_retransmits") + net_stat(0, "tcp_rto");
	flow(500 * MS);
	CHECK(net.from->snd.mss_bytes <= fits && net.from->snd.mss_bytes + 16u > fits);
	CHECK(net_stat(0, "tcp_mtu_probes_lost") >= 3);
	CHECK_EQ(net_stat(0, "tcp_fast_retransmits") + net_stat(0, "tcp_rto"), repairs);
	/* The search is over: no probe for ten minutes. */
	repairs = net_stat(0, "tcp_mtu_probes");
	flow(200 * MS);
	CHECK_EQ(net_stat(0, "tcp_mtu_probes"), repairs);
	idle(700 * S);
	set_path(nic_mtu_bytes);
	flow(100 * MS);
	CHECK_EQ(net.from->snd.mss_bytes, top);
	CHECK_EQ(net_stat(0, "tcp_mtu_black_holes"), 1);
	idle(1 * S);
	tear_down();
}

static void limit_segments(uint32_t mss_bytes)
{
	struct harp_tcp_options opt = { .size = sizeof(opt) };

	CHECK_EQ(harp_conn_options(net.from, &opt), 0);
	opt.mss_bytes = mss_bytes;
	CHECK_EQ(harp_conn_set_options(net.from, &opt), 0);
}

AFTER_EACH(tear_down())

/* The application limits segments while a probe of the path is on its way: the probe that arrives
 * raises nothing above the limit, and without the limit the search continues. */
TEST(an_application_limit_bounds_the_search)
{
	uint32_t top = 9000 - headers(false), fits = 4000 - headers(false);
	uint64_t probes;

	set_up(false, 9000, 0);
	set_path(4000);
	for (int i = 0;
	     i < 10000 && (net.from->mtu.state != MTU_PROBING || net.from->mtu.probe_bytes > fits);
	     i++)
		flow(STEP_NS);
	CHECK_EQ(net.from->mtu.state, MTU_PROBING);
	CHECK(net.from->snd.mss_bytes > 600);
	limit_segments(600);
	probes = net_stat(0, "tcp_mtu_probes");
	for (int i = 0; i < 100; i++) {
		flow(MS);
		CHECK_EQ(net.from->snd.mss_bytes, 588);
	}
	CHECK_EQ(net_stat(0, "tcp_mtu_probes"), probes);
	limit_segments(3000);
	flow(500 * MS);
	CHECK_EQ(net.from->snd.mss_bytes, 2988);
	/* As after the handshake: the largest size, until the black hole is detected. */
	limit_segments(0);
	CHECK_EQ(net.from->mtu.top_bytes, top);
	flow(2000 * MS);
	CHECK(net.from->snd.mss_bytes <= fits && net.from->snd.mss_bytes + 16u > fits);
	idle(1 * S);
}

/* A small MTU from the beginning: the handshake passes, data does not. */
static void test_narrow_from_the_beginning(bool v6)
{
	uint32_t fits = 1380 - headers(v6);

	set_up(v6, 1500, 0);
	set_path(1380);
	flow(1200 * MS);
	CHECK(net.from->snd.mss_bytes <= fits && net.from->snd.mss_bytes + 16u > fits);
	idle(1 * S);
	tear_down();
}

/* IPv4 has a second base below the first. */
TEST(a_path_below_the_base_mtu_is_found)
{
	set_up(false, 1500, 0);
	set_path(600);
	flow(4 * S);
	CHECK_EQ(net_stat(0, "tcp_mtu_black_holes"), 2);
	CHECK(net.from->snd.mss_bytes <= 548 && net.from->snd.mss_bytes >= 500);
	idle(1 * S);
}

/* An outage looks like a black hole: large segments return after it. */
static void test_dead_for_a_while(bool v6)
{
	set_up(v6, 1500, 0);
	flow(20 * MS);
	set_path(1);
	flow(2 * S);
	set_path(1500);
	flow(1500 * MS);
	CHECK_EQ(net.from->snd.mss_bytes, 1500 - headers(v6));
	idle(1 * S);
	tear_down();
}

/* With random loss in addition, every byte arrives. */
static void test_losses_besides(bool v6)
{
	set_up(v6, 1500, 10000);
	for (int i = 0; i < 4; i++) {
		set_path(i % 2 ? 1300 : 1500);
		CHECK(flow(1 * S) > 0);
	}
	idle(3 * S);
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
		test_dead_for_a_while(v6);
		test_losses_besides(v6);
	}
}
