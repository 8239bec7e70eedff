/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_instance_dpdk.c - instances on DPDK ports: the text of the port configures the stack, and
 * instances on queues of one port share it and forward events to each other.
 *
 * argv[1]: the folder of the fake libharp-dpdk.so (fake_dpdk.c).
 */
#include <fcntl.h>
#include <unistd.h>

#include "dpdk_rig.h"
#include "fds.h"
#include "harp_page.h"
#include "host/dpdk_xstats.h"

static void check_refused(const char *ifname, uint32_t queue, int error, const char *text)
{
	struct harp_instance *instance;
	char why[320] = "";
	unsigned before = fds_open();

	CHECK_EQ(try_open(&instance, ifname, queue, why), error);
	CHECK(instance == NULL);
	if (!strstr(why, text))
		fprintf(stderr, "\"%s\" does not contain \"%s\"\n", why, text);
	CHECK(strstr(why, text) != NULL);
	CHECK_EQ(fds_open(), before);
}

/* ---- one queue ------------------------------------------------------------------------------- */

TEST(two_instances_connect)
{
	struct harp_instance *all[2] = {
		open_queue("dpdk:fake0;ip=10.0.0.1/24;ip=fd00::1/64;name=left", 0),
		open_queue("dpdk:fake1;ip=10.0.0.2/24;ip=fd00::2/64", 0),
	};
	static const char *const peers[] = { "10.0.0.2", "fd00::2", "fe80::ff:fe00:2" };
	struct harp_endpoint any = { .port = 7000 };
	struct harp_listener *listener;
	struct harp_conn *conn, *accepted;

	CHECK_STR(
		harp_instance_describe(all[0]),
		"DPDK 0.0 net_fake on left queue 0, MTU 1500, 8192 frames of 2048, no huge pages");
	CHECK(strstr(log_text, "2 EAL: started\n") != NULL);
	CHECK_EQ(harp_instance_fd(all[0]), -1);
	CHECK(fcntl(harp_instance_control_fd(all[0]), F_GETFD) >= 0);
	CHECK_EQ(harp_instance_steering(all[0], NULL, 0), -ENOTSUP);
	CHECK(harp_instance_lease(all[0]) == NULL);
	CHECK_EQ(harp_instance_rss(all[0])->kind, HARP_RSS_NONE);
	CHECK_EQ(harp_tcp_listen(harp_instance_stack(all[1]), &any, NULL, &listener), 0);
	for (unsigned i = 0; i < 3; i++) {
		conn = connect_to(all[0], peers[i], 7000, 0);
		CHECK_EQ(wait_established(conn, all, 2), 0);
		poll_all(all, 2);
		CHECK_EQ(harp_tcp_accept(listener, &accepted), 0);
		harp_conn_abort(accepted);
		harp_conn_abort(conn);
	}
	CHECK_EQ(wait_established(connect_to(all[0], "10.0.0.2", 7001, 0), all, 2), -ECONNREFUSED);
	CHECK_EQ(stat_of(all[1], "drop_port_elsewhere"), 0);
	harp_instance_close(all[0]);
	harp_instance_close(all[1]);
}

static void check_route(struct harp_instance *instance, const char *dst, const char *next_hop,
			const char *source)
{
	struct harp_endpoint ep = endpoint(dst, 0);
	struct harp_host_route route;
	char text[HARP_ADDR_TEXT_MAX];
	int rc = harp_instance_route(instance, &ep.addr, &route);

	if (!next_hop) {
		CHECK_EQ(rc, -ENETUNREACH);
		return;
	}
	CHECK_EQ(rc, 0);
	CHECK_STR(harp_addr_format(&route.next_hop, text), next_hop);
	CHECK_STR(harp_addr_format(&route.source, text), source);
	CHECK_EQ(route.is_local, !strcmp(dst, source));
	CHECK_EQ(route.ifindex, 0);
	CHECK_EQ(route.mtu_bytes, 1400);
	CHECK_EQ(route.has_gateway, strcmp(dst, next_hop) != 0);
	CHECK_STR(route.ifname, "fake0");
}

TEST(a_port_text_gives_the_routes)
{
	struct harp_instance *instance = open_queue(
		"dpdk:fake0;ip=10.0.0.1/24;ip=10.5.0.1/16;ip=fd00::1/64;gw=10.0.0.254;mtu=1400;"
		"route=10.1.0.0/16@10.5.0.9;route=10.1.2.0/24@10.0.0.8;route=fd01::/16@fe80::9",
		0);
	struct harp_instance_port port;
	char text[HARP_ADDR_TEXT_MAX];

	check_route(instance, "10.0.0.7", "10.0.0.7", "10.0.0.1");
	check_route(instance, "10.5.9.7", "10.5.9.7", "10.5.0.1");
	check_route(instance, "10.1.9.9", "10.5.0.9", "10.5.0.1");
	check_route(instance, "10.1.2.9", "10.0.0.8", "10.0.0.1");
	check_route(instance, "8.8.8.8", "10.0.0.254", "10.0.0.1");
	check_route(instance, "10.0.0.1", "10.0.0.1", "10.0.0.1");
	check_route(instance, "fd00::7", "fd00::7", "fd00::1");
	check_route(instance, "fd01::7", "fe80::9", "fd00::1");
	check_route(instance, "fe80::7", "fe80::7", "fe80::ff:fe00:1");
	check_route(instance, "fe80::ff:fe00:1", "fe80::ff:fe00:1", "fe80::ff:fe00:1");
	check_route(instance, "2001:db8::1", NULL, NULL);
	CHECK_EQ(harp_instance_dpdk(instance, &port), 0);
	CHECK_STR(port.device, "fake0");
	CHECK_STR(port.driver, "net_fake");
	CHECK_STR(port.dpdk, "DPDK 0.0");
	CHECK_EQ(port.up, 1);
	CHECK_EQ(port.mtu_bytes, 1400);
	CHECK_EQ(port.address_count, 3);
	CHECK_STR(harp_addr_format(&port.addresses[1], text), "10.5.0.1");
	harp_instance_close(instance);
}

/* Reads the driver counters from the page of the instance on this queue. */
static int page_xstats(struct harp_page_xstat *items, uint32_t queue)
{
	char path[32], link[64];
	int count = -ENOENT;

	for (int fd = 3; fd < 256; fd++) {
		struct harp_page_identity identity = { 0 };
		ssize_t len;

		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		len = readlink(path, link, sizeof(link) - 1);
		link[len > 0 ? len : 0] = '\0';
		if (strcmp(link, HARP_PAGE_LINK) != 0 ||
		    harp_page_read(fd, HARP_PAGE_IDENTITY, 0, &identity, sizeof(identity), 1) !=
			    1 ||
		    identity.queue != queue)
			continue;
		count = harp_page_read(fd, HARP_PAGE_XSTATS, 0, items, sizeof(*items),
				       HARP_PAGE_XSTATS_MAX);
	}
	return count;
}

/* Only the first queue's instance publishes the port's counters, under the driver's names. */
TEST(driver_counters_are_published)
{
	static struct harp_page_xstat items[HARP_PAGE_XSTATS_MAX];
	struct harp_instance *first, *second;

	first = open_queue("dpdk:fake0;ip=10.0.0.1/24;queues=2", 0);
	second = open_queue("dpdk:fake0;ip=10.0.0.1/24;queues=2", 1);
	while (page_xstats(items, 0) <= 0 || !items[0].name[0])
		usleep(1000); /* a thread publishes them */
	CHECK_STR(items[0].name, "counter_0");
	CHECK_EQ(items[0].value, 1);
	CHECK_STR(items[1].name, "odd \x1b[2J \"name\""); /* unnamed counters are omitted */
	CHECK_EQ(items[1].value, 3);
	CHECK_STR(items[2].name, "");
	CHECK(page_xstats(items, 1) > 0);
	CHECK_STR(items[0].name, "");
	harp_instance_close(first);
	harp_instance_close(second);

	setenv("FAKE_DPDK_XSTATS", "700", 1);
	log_text[0] = '\0';
	first = open_queue("dpdk:fake0;ip=10.0.0.1/24", 0);
	CHECK(strstr(log_text, "2 fake0: 512 of the driver's 700 counters are published\n"));
	while (page_xstats(items, 0) <= 0 || !items[0].name[0])
		usleep(1000);
	CHECK_STR(items[510].name, "counter_511");
	harp_instance_close(first);
	setenv("FAKE_DPDK_XSTATS", "-95", 1);
	first = open_queue("dpdk:fake0;ip=10.0.0.1/24", 0);
	CHECK_EQ(harp_instance_control(first, now_ns()), 0);
	harp_instance_close(first);
	unsetenv("FAKE_DPDK_XSTATS");
}

/* A port whose link is down opens, but control fails. Each change of the link is logged once. */
TEST(link_changes_are_logged_once)
{
	struct harp_instance *instance;
	uint64_t at = now_ns();

	unsetenv("FAKE_DPDK_UP");
	log_text[0] = '\0';
	instance = open_queue("dpdk:fake0,down;ip=10.0.0.1/24", 0);
	CHECK(strstr(log_text, "2 fake0: the link is still down\n") != NULL);
	for (unsigned i = 0; i < 5; i++)
		CHECK_EQ(harp_instance_control(instance, at += 200000000), -ENETDOWN);
	CHECK(!strstr(log_text, "\n1 ") && !strstr(log_text, "2 fake0 is"));
	setenv("FAKE_DPDK_UP", "1", 1);
	CHECK_EQ(harp_instance_control(instance, at), -ENETDOWN); /* within the query interval */
	for (unsigned i = 0; i < 5; i++)
		CHECK_EQ(harp_instance_control(instance, at += 200000000), 0);
	CHECK(strstr(log_text, "2 fake0 is up\n") != NULL);
	unsetenv("FAKE_DPDK_UP");
	log_text[0] = '\0';
	for (unsigned i = 0; i < 5; i++)
		CHECK_EQ(harp_instance_control(instance, at += 200000000), -ENETDOWN);
	CHECK_STR(log_text, "1 fake0 is down\n");
	setenv("FAKE_DPDK_UP", "1", 1);
	log_text[0] = '\0';
	CHECK_EQ(harp_instance_control(instance, at += 200000000), 0);
	CHECK_STR(log_text, "1 fake0 is up again\n");
	harp_instance_close(instance);
}

/* ---- refusals -------------------------------------------------------------------------------- */

TEST(invalid_ports_are_refused)
{
	struct harp_instance *open = open_queue("dpdk:fake0;ip=10.0.0.1/24;queues=2", 0);
	const char *fake_dir = lib_dir;

	check_refused("dpdk:", 0, -EINVAL, "a device of 1 to 511 bytes");
	check_refused("dpdk:fake0;mtu=1", 0, -EINVAL, "mtu=1: needs a number in 68..16000");
	check_refused("dpdk:fake9", 0, -ENODEV, "fake9: no such device");
	check_refused("dpdk:fake0;ip=10.0.0.1/24;queues=2", 2, -EINVAL,
		      "fake0 queue 2: no such queue; the port");
	check_refused("dpdk:fake0;ip=10.0.0.1/24;queues=2", 0, -EBUSY, "queue 0 is in use");
	check_refused("dpdk:fake0;ip=10.0.0.9/24;queues=2", 1, -EINVAL, "with another text");
	check_refused("dpdk:fake0,x;name=other", 0, -EBUSY, "fake0,x: in use");
	check_refused("dpdk:fake2;ip=10.0.0.1/24;route=10.0.0.0/24@10.0.0.2", 0, -EEXIST,
		      "fake2 queue 0: the route to 10.0.0.0/24: an address already implies it");
	harp_instance_close(open);
	lib_dir = "/nonexistent";
	check_refused("dpdk:fake0", 0, -ENOENT, "libharp-dpdk.so is not installed");
	lib_dir = fake_dir;
	open = open_queue("dpdk:fake0", 0); /* the failed opens released the port */
	harp_instance_close(open);
}

TEST(a_library_of_another_version_is_refused)
{
	setenv("FAKE_DPDK_OLD", "1", 1);
	check_refused("dpdk:fake0", 0, -ENOENT, "libharp-dpdk.so is of another version of HARP");
	unsetenv("FAKE_DPDK_OLD");
}

TEST(a_forked_child_closes_its_control_fd)
{
	struct harp_instance *instance = open_queue("dpdk:fake0;ip=10.0.0.1/24", 0);
	int status = -1;
	pid_t child = fork();

	if (!child) {
		int fd = harp_instance_control_fd(instance);

		harp_instance_fork_child(instance);
		_exit(fcntl(fd, F_GETFD) >= 0);
	}
	waitpid_of(child, &status);
	CHECK_EQ(status, 0);
	CHECK_EQ(harp_instance_control(instance, now_ns()), 0);
	harp_instance_close(instance);
}

/* Counters are read once a second. After a slow read, the pause is as long as the read. */
TEST(a_slow_driver_is_read_less_often)
{
	const uint64_t ms = 1000000, second = 1000 * ms;

	CHECK_EQ(dpdk_xstats_next_ns(second, second), 2 * second);
	CHECK_EQ(dpdk_xstats_next_ns(second, second + 400 * ms), 2 * second);
	CHECK_EQ(dpdk_xstats_next_ns(second, second + 500 * ms), 2 * second);
	CHECK_EQ(dpdk_xstats_next_ns(second, second + 800 * ms), second + 1600 * ms);
	CHECK_EQ(dpdk_xstats_next_ns(second, 4 * second), 7 * second);
}

/* ---- several queues of a port ---------------------------------------------------------------- */

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

/* Replies to the second queue's neighbor requests arrive at the first queue. */
TEST(siblings_share_neighbor_replies)
{
	static const char *const peers[] = { "10.0.0.2", "fd00::2" };
	struct harp_endpoint any = { .port = 7000 };
	struct harp_listener *listener;
	struct harp_conn *conn;

	open_siblings("fake0");
	CHECK_EQ(harp_instance_rss(all[0])->kind, HARP_RSS_UNKNOWN);
	CHECK_EQ(harp_tcp_listen(harp_instance_stack(all[2]), &any, NULL, &listener), 0);
	for (unsigned i = 0; i < 2; i++) {
		conn = connect_to(all[1], peers[i], 7000, 61001); /* an odd sum: queue 1 */
		CHECK_EQ(wait_established(conn, all, 3), 0);
		harp_conn_abort(conn);
		poll_all(all, 3);
	}
	close_siblings();
}

/* In each protocol, one stack owns a local port. Packets for it on another stack's queue get no
 * reply. */
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
	conn = connect_to(all[2], "10.0.0.1", 7000, 61001); /* arrives at queue 1 */
	for (unsigned i = 0; i < POLLS_MAX && !stat_of(all[1], "drop_port_elsewhere"); i++)
		poll_all(all, 3);
	CHECK(stat_of(all[1], "drop_port_elsewhere") > 0);
	CHECK_EQ(harp_conn_error(conn), 0);
	harp_conn_abort(conn);
	CHECK_EQ(wait_established(connect_to(all[2], "10.0.0.1", 7000, 61002), all, 3), 0);
	harp_listener_close(listener);
	CHECK_EQ(harp_tcp_listen(harp_instance_stack(all[1]), &local, NULL, &other), 0);
	CHECK_EQ(wait_established(connect_to(all[2], "10.0.0.1", 7000, 61003), all, 3), 0);
	harp_udp_close(sock);
	close_siblings();
}

TEST(excess_events_are_dropped)
{
	struct harp_instance *first, *second;
	static const uint8_t mac[6] = { 2, 1, 1, 1, 1, 1 };

	first = open_queue("dpdk:fake0;ip=10.0.0.1/8;queues=2", 0);
	second = open_queue("dpdk:fake0;ip=10.0.0.1/8;queues=2", 1);
	for (unsigned i = 0; i < 5000; i++) {
		struct harp_addr addr = harp_addr_v4(10, 1, (uint8_t)(i >> 8), (uint8_t)i);

		harp_stack_neighbor_learned(harp_instance_stack(second), &addr, mac, 7);
	}
	poll_all((struct harp_instance *[]){ first, second }, 2);
	CHECK(!harp_instance_control_pending(first));
	CHECK(!harp_instance_control_pending(second));
	harp_instance_close(first);
	/* A closed instance receives no events; the other still works. */
	poll_all(&second, 1);
	harp_instance_close(second);
}

/* Sends bytes. False: not all have arrived. */
static bool transfer(struct harp_conn *from, struct harp_conn *to, size_t bytes)
{
	static uint8_t data[65536];
	size_t arrived = 0, sent = 0;

	for (unsigned i = 0; i < POLLS_MAX && arrived < bytes; i++) {
		struct iovec iov = { .iov_base = data, .iov_len = bytes - sent };
		ssize_t n = sent < bytes ? harp_conn_send(from, &iov, 1) : 0;

		sent += n > 0 ? (size_t)n : 0;
		poll_all(all, 3);
		n = harp_conn_recv(to, data, sizeof(data));
		arrived += n > 0 ? (size_t)n : 0;
	}
	return arrived == bytes;
}

/* "Packet too big" for the second queue's connection arrives at the first queue, whose stack
 * forwards it. */
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
		conn = connect_to(all[1], peers[i], 7000, 61001);
		CHECK_EQ(wait_established(conn, all, 3), 0);
		poll_all(all, 3);
		CHECK_EQ(harp_tcp_accept(listener, &accepted), 0);
		CHECK(transfer(conn, accepted, 50000));
		CHECK_EQ(stat_of(all[1], "tcp_mtu_icmp"), i + 1);
		CHECK_EQ(stat_of(all[1], "tcp_mtu_black_holes"), 0);
		CHECK(stat_of(all[0], "icmp_error_elsewhere") > i);
		harp_conn_info(conn, &info);
		CHECK(info.snd_mss_bytes < 1300);
		harp_conn_abort(conn);
		harp_conn_abort(accepted);
		poll_all(all, 3);
	}
	CHECK_EQ(stat_of(all[1], "icmp_error_elsewhere"), 0);
	close_siblings();
}

/* Each datagram causes an ICMP error that arrives at the sibling's queue. The sibling forwards at
 * most 50. */
TEST(forwarded_icmp_errors_are_rate_limited)
{
	struct harp_endpoint local = { .port = 6000 }, to = endpoint("10.0.0.2", 6000);
	static uint8_t payload[1400];
	const uint64_t at = now_ns() + 1000000000u;
	const struct iovec iov = { .iov_base = payload, .iov_len = sizeof(payload) };
	struct harp_udp *sock;
	uint64_t forwarded, dropped;
	struct harp_conn *conn;
	unsigned sent = 0;

	open_siblings("fake0,narrow");
	CHECK_EQ(harp_udp_open(harp_instance_stack(all[1]), &local, NULL, &sock), 0);
	conn = connect_to(all[1], "10.0.0.2", 7000, 61001); /* resolves the neighbor */
	CHECK_EQ(wait_established(conn, all, 3), -ECONNREFUSED);
	for (unsigned i = 0; i < 1000; i++) {
		sent += harp_udp_send(sock, &to, &iov, 1) == (ssize_t)sizeof(payload);
		(void)harp_stack_poll(harp_instance_stack(all[1]), at);
		(void)harp_stack_poll(harp_instance_stack(all[0]), at);
	}
	forwarded = stat_of(all[0], "icmp_error_elsewhere");
	dropped = stat_of(all[0], "drop_icmp_elsewhere");
	CHECK(sent > 100);
	CHECK_EQ(forwarded, 50);
	CHECK_EQ(forwarded + dropped, sent);
	CHECK(harp_instance_control_pending(all[1]));
	poll_all(all, 3);
	CHECK_EQ(harp_udp_error(sock, NULL), -EMSGSIZE);
	harp_udp_close(sock);
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
