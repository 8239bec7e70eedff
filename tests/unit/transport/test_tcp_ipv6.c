/* SPDX-License-Identifier: Apache-2.0 */
/* test_tcp_ipv6.c - TCP between two stacks over IPv6: scopes, listeners of both families, VLANs. */
#include <errno.h>
#include <string.h>

#include "check.h"
#include "harp.h"

#define MS UINT64_C(1000000)
#define PORT 61000

static struct pair {
	struct harp_wire *wire;
	struct harp_stack *stack[2];
	struct harp_listener *listener; /* of stack 1 */
	uint64_t now_ns;
} pair;

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

/* Stacks 0 and 1: fe80::1, fd00::1, 10.0.0.1 on interface 3; the same with 2 on interface 8. */
static void pair_open(void)
{
	static const char *const own[2][3] = { { "fe80::1", "fd00::1", "10.0.0.1" },
					       { "fe80::2", "fd00::2", "10.0.0.2" } };
	struct harp_wire_options wire = { .size = sizeof(wire), .frame_count = 1024, .strict = 1 };

	pair = (struct pair){ .now_ns = 1000 * MS };
	CHECK_EQ(harp_wire_create(&pair.wire, &wire), 0);
	for (unsigned i = 0; i < 2; i++) {
		struct harp_stack_options opt = { .size = sizeof(opt),
						  .max_conns = 16,
						  .now_ns = pair.now_ns,
						  .seed = i + 1,
						  .scope_id = i ? 8 : 3 };

		CHECK_EQ(harp_stack_create(&pair.stack[i], harp_wire_port(pair.wire, i), &opt), 0);
		for (unsigned k = 0; k < 3; k++) {
			struct harp_addr a = addr(own[i][k]);

			CHECK_EQ(harp_stack_address_add(pair.stack[i], &a, k == 2 ? 24 : 64), 0);
		}
	}
}

static void pair_run(unsigned polls)
{
	while (polls-- > 0) {
		pair.now_ns += MS / 10;
		harp_stack_poll(pair.stack[0], pair.now_ns);
		harp_stack_poll(pair.stack[1], pair.now_ns);
	}
}

static uint64_t stat(const struct harp_stack *stack, const char *name)
{
	uint64_t value = 0;

	CHECK_EQ(harp_stack_stat(stack, name, &value), 0);
	return value;
}

static void pair_close(void)
{
	struct harp_wire_stats wire;

	harp_listener_close(pair.listener);
	for (unsigned i = 0; i < 2; i++) {
		CHECK_EQ(harp_wire_stats(pair.wire, i, &wire), 0);
		CHECK_EQ(wire.strict_violations, 0);
		harp_stack_destroy(pair.stack[i]);
	}
	harp_wire_destroy(pair.wire);
}

static int connect_to(const char *local, uint32_t local_scope, const char *remote,
		      uint32_t remote_scope, struct harp_conn **conn)
{
	struct harp_endpoint to = endpoint(remote, PORT, remote_scope), from = { 0 };

	if (local)
		from = endpoint(local, 0, local_scope);
	return harp_tcp_connect(pair.stack[0], local ? &from : NULL, &to, NULL, conn);
}

/* Connects, sends bytes both ways, and checks the addresses that both ends report. */
static void talk(const char *remote, uint32_t remote_scope, const char *source,
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
	CHECK_EQ(harp_tcp_accept(pair.listener, &server), 0);
	if (!server)
		return;
	harp_conn_endpoints(client, &a, &b);
	CHECK_STR(harp_addr_format(&a.addr, text), source);
	CHECK_EQ(a.scope_id, source_scope);
	CHECK_EQ(b.scope_id, remote_scope);
	harp_conn_endpoints(server, &a, &b);
	CHECK_STR(harp_addr_format(&a.addr, text), remote);
	CHECK_EQ(a.scope_id, remote_scope ? 8 : 0); /* the same link, by the other's number */
	CHECK_EQ(harp_conn_info(client, &info, sizeof(info)), 0);
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

AFTER_EACH(pair_close())

static void listen_at(const char *text, uint32_t scope_id)
{
	struct harp_endpoint at = endpoint(text, PORT, scope_id);

	CHECK_EQ(harp_tcp_listen(pair.stack[1], &at, NULL, &pair.listener), 0);
}

TEST(a_listener_without_an_address_accepts_both_families)
{
	pair_open();
	listen_at("::", 0);
	talk("fd00::2", 0, "fd00::1", 0);
	talk("10.0.0.2", 0, "10.0.0.1", 0);
	talk("fe80::2", 3, "fe80::1", 3);
}

TEST(a_listener_of_one_address_refuses_the_others)
{
	struct harp_conn *conn;

	pair_open();
	listen_at("fd00::2", 0);
	talk("fd00::2", 0, "fd00::1", 0);
	CHECK_EQ(connect_to(NULL, 0, "10.0.0.2", 0, &conn), 0);
	pair_run(20);
	CHECK_EQ(harp_conn_error(conn), -ECONNREFUSED);
	harp_conn_close(conn);
}

/* RFC 4007: a link-local address belongs to one interface, the stack's. */
TEST(a_link_local_address_needs_the_scope_of_the_interface)
{
	struct harp_endpoint bad = endpoint("fe80::2", PORT, 3);
	struct harp_conn *conn;

	pair_open();
	CHECK_EQ(harp_tcp_listen(pair.stack[1], &bad, NULL, &pair.listener), -EADDRNOTAVAIL);
	listen_at("fe80::2", 8);
	CHECK_EQ(connect_to(NULL, 0, "fe80::2", 8, &conn), -EINVAL);
	CHECK_EQ(connect_to(NULL, 0, "fe80::2", 0, &conn), -EINVAL);
	CHECK_EQ(connect_to("fe80::1", 8, "fe80::2", 3, &conn), -EADDRNOTAVAIL);
	CHECK_EQ(connect_to("fd00::9", 0, "fd00::2", 0, &conn), -EADDRNOTAVAIL);
	CHECK_EQ(connect_to("10.0.0.1", 0, "fd00::2", 0, &conn), -EADDRNOTAVAIL);
	CHECK_EQ(connect_to(NULL, 0, "ff02::1", 0, &conn), -ENETUNREACH);
	CHECK_EQ(connect_to(NULL, 0, "::", 0, &conn), -EINVAL);
	CHECK_EQ(stat(pair.stack[0], "tcp_conns"), 0);
	talk("fe80::2", 3, "fe80::1", 3);
}
