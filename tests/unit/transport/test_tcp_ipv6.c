/* SPDX-License-Identifier: Apache-2.0 */
/* test_tcp_ipv6.c - TCP between two stacks over IPv6: scopes, and listeners of both families. */
#include "net_rig.h"

static struct harp_addr addr(const char *text)
{
	struct harp_addr a;

	CHECK_EQ(harp_addr_parse(text, &a), 0);
	return a;
}

static struct harp_endpoint endpoint(const char *text, uint16_t port, uint32_t scope_id)
{
	return (struct harp_endpoint){ .addr = addr(text), .port = port, .scope_id = scope_id };
}

/* Adds fe80::1 on interface 3 and fe80::2 on interface 8. */
static void pair_open(void)
{
	struct harp_addr first = addr("fe80::1"), second = addr("fe80::2");

	net_open((struct net_setup){ .wire = { .frame_count = 1024, .strict = 1 },
				     .stack = { .max_conns = 16 } });
	net.stack[0]->ip.scope_id = 3;
	net.stack[1]->ip.scope_id = 8;
	CHECK_EQ(harp_stack_address_add(net.stack[0], &first, 64), 0);
	CHECK_EQ(harp_stack_address_add(net.stack[1], &second, 64), 0);
}

static void pair_run(unsigned polls)
{
	while (polls-- > 0)
		net_step(MS / 10);
}

static int connect_to(const char *local, uint32_t local_scope, const char *remote,
		      uint32_t remote_scope, struct harp_conn **conn)
{
	struct harp_endpoint target = endpoint(remote, NET_PORT, remote_scope), source = { 0 };

	if (local)
		source = endpoint(local, 0, local_scope);
	return harp_tcp_connect(net.stack[0], local ? &source : NULL, &target, NULL, conn);
}

/* Connects, sends bytes both ways, and checks the addresses that both ends report. */
static void exchange(const char *remote, uint32_t remote_scope, const char *source,
		     uint32_t source_scope)
{
	struct harp_conn *client, *server = NULL;
	struct harp_endpoint a, b;
	struct harp_tcp_info info;
	struct iovec iov = { .iov_base = (void *)"hello", .iov_len = 5 };
	char text[HARP_ADDR_TEXT_MAX], bytes[16];
	bool v6 = strchr(remote, ':') != NULL;

	CHECK_EQ(connect_to(NULL, 0, remote, remote_scope, &client), 0);
	pair_run(20);
	CHECK_EQ(harp_tcp_accept(net.listener, &server), 0);
	if (!server)
		return;
	harp_conn_endpoints(client, &a, &b);
	CHECK_STR(harp_addr_format(&a.addr, text), source);
	CHECK_EQ(a.scope_id, source_scope);
	CHECK_EQ(b.scope_id, remote_scope);
	harp_conn_endpoints(server, &a, &b);
	CHECK_STR(harp_addr_format(&a.addr, text), remote);
	CHECK_EQ(a.scope_id, remote_scope ? 8 : 0); /* the same link is interface 8 here */
	harp_conn_info(client, &info);
	CHECK_EQ(info.snd_mss_bytes, (v6 ? 1440 : 1460) - 12);
	CHECK_EQ(harp_conn_send(client, &iov, 1), 5);
	CHECK_EQ(harp_conn_send(server, &iov, 1), 5);
	pair_run(20);
	CHECK_EQ(harp_conn_recv(server, bytes, sizeof(bytes)), 5);
	CHECK_EQ(harp_conn_recv(client, bytes, sizeof(bytes)), 5);
	CHECK_MEM(bytes, "hello", 5);
	harp_conn_abort(client);
	pair_run(5);
	harp_conn_close(server);
}

BEFORE_EACH(pair_open())
AFTER_EACH(net_close())

static void listen_at(const char *text, uint32_t scope_id)
{
	struct harp_endpoint local = endpoint(text, NET_PORT, scope_id);

	CHECK_EQ(harp_tcp_listen(net.stack[1], &local, NULL, &net.listener), 0);
}

TEST(a_listener_without_an_address_accepts_both_families)
{
	listen_at("::", 0);
	exchange("fd00::2", 0, "fd00::1", 0);
	exchange("10.0.0.2", 0, "10.0.0.1", 0);
	exchange("fe80::2", 3, "fe80::1", 3);
}

TEST(a_listener_of_one_address_refuses_the_others)
{
	struct harp_conn *conn;

	listen_at("fd00::2", 0);
	exchange("fd00::2", 0, "fd00::1", 0);
	CHECK_EQ(connect_to(NULL, 0, "10.0.0.2", 0, &conn), 0);
	pair_run(20);
	CHECK_EQ(harp_conn_error(conn), -ECONNREFUSED);
	harp_conn_close(conn);
}

/* RFC 4007: a link-local address belongs to one interface, the stack's. */
TEST(a_link_local_address_needs_the_scope_of_the_interface)
{
	struct harp_endpoint bad = endpoint("fe80::2", NET_PORT, 3);
	struct harp_conn *conn;

	CHECK_EQ(harp_tcp_listen(net.stack[1], &bad, NULL, &net.listener), -EADDRNOTAVAIL);
	listen_at("fe80::2", 8);
	CHECK_EQ(connect_to(NULL, 0, "fe80::2", 8, &conn), -EINVAL);
	CHECK_EQ(connect_to(NULL, 0, "fe80::2", 0, &conn), -EINVAL);
	CHECK_EQ(connect_to("fe80::1", 8, "fe80::2", 3, &conn), -EADDRNOTAVAIL);
	CHECK_EQ(connect_to("fd00::9", 0, "fd00::2", 0, &conn), -EADDRNOTAVAIL);
	CHECK_EQ(connect_to("10.0.0.1", 0, "fd00::2", 0, &conn), -EADDRNOTAVAIL);
	CHECK_EQ(connect_to(NULL, 0, "ff02::1", 0, &conn), -ENETUNREACH);
	CHECK_EQ(connect_to(NULL, 0, "::", 0, &conn), -EINVAL);
	CHECK_EQ(net_stat(0, "tcp_conns"), 0);
	exchange("fe80::2", 3, "fe80::1", 3);
}
