/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_instance_siblings.c - instances on queues of one port of a libharp-dpdk.so that is a double (fake_dpdk.c): how
 * the port is shared, and what they tell each other.
 *
 * argv[1]: the folder of the double.
 */
#include "dpdk_rig.h"
#include "fds.h"

static struct harp_instance *all[3]; /* two queues of one port, and a peer */

static void open_siblings(const char *device)
{
	char text[128];

	snprintf(text, sizeof(text), "dpdk:%s;ip=10.0.0.1/24;ip=fd00::1/64;queues=2", device);
	all[0] = open_queue(text, 0);
	all[1] = open_queue(text, 1);
	all[2] = open_queue("dpdk:fake1;ip=10.0.0.2/24;ip=fd00::2/64", 0);
	CHECK_EQ(harp_instance_queue(all[1]), 1);
}

static void close_siblings(void)
{
	for (unsigned i = 0; i < 3; i++)
		harp_instance_close(all[i]);
}

/* Answers to the second queue's questions come to the first, which has not asked. */
TEST(siblings_share_neighbor_answers)
{
	static const char *const peers[] = { "10.0.0.2", "fd00::2" };
	struct harp_endpoint any = { .port = 7000 };
	struct harp_listener *listener;
	struct harp_conn *conn;

	open_siblings("fake0");
	CHECK_EQ(harp_instance_rss(all[0])->kind, HARP_RSS_UNKNOWN);
	CHECK_EQ(harp_tcp_listen(harp_instance_stack(all[2]), &any, NULL, &listener), 0);
	for (unsigned i = 0; i < 2; i++) {
		conn = dial(all[1], peers[i], 7000, 61001); /* an odd sum: queue 1 */
		CHECK_EQ(settle(conn, all, 3), 0);
		harp_conn_abort(conn);
		turn(all, 3);
	}
	close_siblings();
}

/* A port is one stack's, in each protocol; what comes for it on another's queue gets no answer. */
TEST(a_listening_port_belongs_to_one_sibling)
{
	struct harp_endpoint local = { .port = 7000 };
	struct harp_listener *listener, *other;
	struct harp_udp *sock, *second;
	struct harp_conn *conn;

	open_siblings("fake0");
	CHECK_EQ(harp_tcp_listen(harp_instance_stack(all[0]), &local, NULL, &listener), 0);
	CHECK_EQ(harp_tcp_listen(harp_instance_stack(all[1]), &local, NULL, &other), -EADDRINUSE);
	CHECK_EQ(harp_udp_open(harp_instance_stack(all[1]), &local, NULL, &sock), 0);
	CHECK_EQ(harp_udp_open(harp_instance_stack(all[0]), &local, NULL, &second), -EADDRINUSE);
	conn = dial(all[2], "10.0.0.1", 7000, 61001); /* comes to queue 1 */
	for (unsigned i = 0; i < TURNS_MAX && !stat_of(all[1], "drop_port_elsewhere"); i++)
		turn(all, 3);
	CHECK(stat_of(all[1], "drop_port_elsewhere") > 0);
	CHECK_EQ(harp_conn_error(conn), 0);
	harp_conn_abort(conn);
	CHECK_EQ(settle(dial(all[2], "10.0.0.1", 7000, 61002), all, 3), 0);
	harp_listener_close(listener);
	CHECK_EQ(harp_tcp_listen(harp_instance_stack(all[1]), &local, NULL, &other), 0);
	CHECK_EQ(settle(dial(all[2], "10.0.0.1", 7000, 61003), all, 3), 0);
	harp_udp_close(sock);
	close_siblings();
}

/* With rules every port's packets come to its stack, whatever the hash. */
TEST(flow_rules_bring_packets_to_their_stack)
{
	struct harp_endpoint local = { .port = 7001 };
	struct harp_listener *listener;

	open_siblings("fake0,rules");
	CHECK_EQ(harp_instance_rss(all[1])->kind, HARP_RSS_NONE);
	CHECK_EQ(harp_tcp_listen(harp_instance_stack(all[1]), &local, NULL, &listener), 0);
	for (uint16_t from = 61001; from < 61005; from++)
		CHECK_EQ(settle(dial(all[2], "10.0.0.1", 7001, from), all, 3), 0);
	close_siblings(); /* the double aborts where a rule is left */
	open_siblings("fake0,full");
	CHECK_EQ(harp_tcp_listen(harp_instance_stack(all[1]), &local, NULL, &listener), 0);
	local.port = 7002;
	CHECK_EQ(harp_tcp_listen(harp_instance_stack(all[1]), &local, NULL, &listener),
		 -EADDRINUSE);
	close_siblings();
}

/* Floods of one queue lose words, no more. */
TEST(a_flood_of_events_loses_events_only)
{
	struct harp_instance *first, *second;
	static const uint8_t mac[6] = { 2, 1, 1, 1, 1, 1 };

	first = open_queue("dpdk:fake0;ip=10.0.0.1/8;queues=2", 0);
	second = open_queue("dpdk:fake0;ip=10.0.0.1/8;queues=2", 1);
	for (unsigned i = 0; i < 5000; i++) {
		struct harp_addr addr = harp_addr_v4(10, 1, (uint8_t)(i >> 8), (uint8_t)i);

		harp_stack_neighbor_learned(harp_instance_stack(second), &addr, mac, 7);
	}
	turn((struct harp_instance *[]){ first, second }, 2);
	CHECK(!harp_instance_control_pending(first));
	CHECK(!harp_instance_control_pending(second));
	harp_instance_close(first);
	/* A closed instance gets no event; the other still works. */
	turn(&second, 1);
	harp_instance_close(second);
}

/* Bytes of the first one's, however far they come; true when all have arrived. */
static bool moved(struct harp_conn *from, struct harp_conn *to, size_t bytes)
{
	static uint8_t data[65536];
	size_t arrived = 0, sent = 0;

	for (unsigned i = 0; i < TURNS_MAX && arrived < bytes; i++) {
		struct iovec piece = { .iov_base = data, .iov_len = bytes - sent };
		ssize_t n = sent < bytes ? harp_conn_send(from, &piece, 1) : 0;

		sent += n > 0 ? (size_t)n : 0;
		turn(all, 3);
		n = harp_conn_recv(to, data, sizeof(data));
		arrived += n > 0 ? (size_t)n : 0;
	}
	return arrived == bytes;
}

/* "Too big" for the second queue's connection comes to the first, which knows no such connection. */
TEST(a_path_mtu_reaches_the_sibling_of_the_connection)
{
	static const char *const peers[] = { "10.0.0.2", "fd00::2" };
	struct harp_endpoint any = { .port = 7000 };
	struct harp_listener *listener;
	struct harp_conn *conn, *accepted;
	struct harp_tcp_info info;

	open_siblings("fake0,narrow");
	CHECK_EQ(harp_tcp_listen(harp_instance_stack(all[2]), &any, NULL, &listener), 0);
	for (unsigned i = 0; i < 2; i++) {
		conn = dial(all[1], peers[i], 7000, 61001);
		CHECK_EQ(settle(conn, all, 3), 0);
		turn(all, 3);
		CHECK_EQ(harp_tcp_accept(listener, &accepted), 0);
		CHECK(moved(conn, accepted, 50000));
		CHECK_EQ(stat_of(all[1], "tcp_mtu_icmp"), i + 1);
		CHECK_EQ(stat_of(all[1], "tcp_mtu_black_holes"), 0);
		CHECK(stat_of(all[0], "icmp_error_elsewhere") > i);
		CHECK_EQ(harp_conn_info(conn, &info, sizeof(info)), 0);
		CHECK(info.snd_mss_bytes < 1300);
		harp_conn_abort(conn);
		harp_conn_abort(accepted);
		turn(all, 3);
	}
	CHECK_EQ(stat_of(all[1], "icmp_error_elsewhere"), 0);
	close_siblings();
}

/* Each datagram of one stack's makes an error that comes to the other, which hands on no more than it may. */
TEST(forwarded_icmp_errors_are_rate_limited)
{
	struct harp_endpoint local = { .port = 6000 }, to = endpoint("10.0.0.2", 6000);
	static uint8_t payload[1400];
	const uint64_t at = now_ns() + 1000000000u;
	const struct iovec piece = { .iov_base = payload, .iov_len = sizeof(payload) };
	struct harp_udp *sock;
	uint64_t handed, dropped;
	struct harp_conn *conn;
	unsigned sent = 0;

	open_siblings("fake0,narrow");
	CHECK_EQ(harp_udp_open(harp_instance_stack(all[1]), &local, NULL, &sock), 0);
	conn = dial(all[1], "10.0.0.2", 7000, 61001); /* resolves the neighbor */
	CHECK_EQ(settle(conn, all, 3), -ECONNREFUSED);
	for (unsigned i = 0; i < 1000; i++) {
		sent += harp_udp_send(sock, &to, &piece, 1) == (ssize_t)sizeof(payload);
		(void)harp_stack_poll(harp_instance_stack(all[1]), at);
		(void)harp_stack_poll(harp_instance_stack(all[0]), at);
	}
	handed = stat_of(all[0], "icmp_error_elsewhere");
	dropped = stat_of(all[0], "drop_icmp_elsewhere");
	CHECK(sent > 100);
	CHECK_EQ(handed, 50);
	CHECK_EQ(handed + dropped, sent);
	CHECK(harp_instance_control_pending(all[1]));
	turn(all, 3);
	CHECK_EQ(harp_udp_error(sock, NULL), -EMSGSIZE);
	harp_udp_close(sock);
	close_siblings();
}

/* A sibling's report is checked as a packet is: a sequence number that is not in flight, a port without a socket. */
TEST(forged_icmp_errors_change_nothing)
{
	struct harp_icmp_error lie = { .kind = 5,
				       .proto = 6,
				       .local = endpoint("10.0.0.1", 61001),
				       .remote = endpoint("10.0.0.2", 7000),
				       .mtu_bytes = 600 };
	struct harp_endpoint any = { .port = 7000 };
	struct harp_listener *listener;
	struct harp_conn *conn;

	open_siblings("fake0");
	CHECK_EQ(harp_tcp_listen(harp_instance_stack(all[2]), &any, NULL, &listener), 0);
	conn = dial(all[1], "10.0.0.2", 7000, 61001);
	CHECK_EQ(settle(conn, all, 3), 0);
	for (lie.kind = 0; lie.kind < 10; lie.kind++) {
		for (lie.seq = 0; lie.seq < 0xf0000000u; lie.seq += 0x01000001u)
			harp_stack_icmp_error(harp_instance_stack(all[1]), &lie);
		harp_stack_icmp_error(harp_instance_stack(all[0]), &lie);
	}
	CHECK_EQ(harp_conn_error(conn), 0);
	CHECK_EQ(stat_of(all[1], "tcp_mtu_icmp"), 0);
	close_siblings();
}

int main(int argc, char **argv)
{
	unsigned before = fds_open();

	if (argc != 2)
		return 1;
	lib_dir = argv[1];
	setenv("FAKE_DPDK_UP", "1", 1);
	check_run();
	CHECK_EQ(fds_open(), before);
	return check_done();
}
