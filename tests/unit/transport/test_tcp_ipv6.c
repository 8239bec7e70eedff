/* SPDX-License-Identifier: Apache-2.0 */
/* test_tcp_ipv6.c - TCP between two stacks over IPv6: scopes, listeners of both families, VLANs. */
#include <errno.h>
#include <string.h>

#include "check.h"
#include "harp.h"

#define MS UINT64_C(1000000)
#define PORT 61000

struct pair {
	struct harp_wire *wire;
	struct harp_stack *stack[2];
	uint64_t now_ns;
};

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
static void pair_open(struct pair *p, uint16_t vlan_0, uint16_t vlan_1)
{
	static const char *const own[2][3] = { { "fe80::1", "fd00::1", "10.0.0.1" },
					       { "fe80::2", "fd00::2", "10.0.0.2" } };
	struct harp_wire_options wire = { .size = sizeof(wire), .frame_count = 1024, .strict = 1 };

	*p = (struct pair){ .now_ns = 1000 * MS };
	CHECK_EQ(harp_wire_create(&p->wire, &wire), 0);
	for (unsigned i = 0; i < 2; i++) {
		struct harp_stack_options opt = { .size = sizeof(opt),
						  .max_conns = 16,
						  .now_ns = p->now_ns,
						  .seed = i + 1,
						  .scope_id = i ? 8 : 3,
						  .vlan_id = i ? vlan_1 : vlan_0 };

		CHECK_EQ(harp_stack_create(&p->stack[i], harp_wire_port(p->wire, i), &opt), 0);
		for (unsigned k = 0; k < 3; k++) {
			struct harp_addr a = addr(own[i][k]);

			CHECK_EQ(harp_stack_address_add(p->stack[i], &a, k == 2 ? 24 : 64), 0);
		}
	}
}

static void pair_run(struct pair *p, unsigned polls)
{
	while (polls-- > 0) {
		p->now_ns += MS / 10;
		harp_stack_poll(p->stack[0], p->now_ns);
		harp_stack_poll(p->stack[1], p->now_ns);
	}
}

static uint64_t stat(const struct harp_stack *stack, const char *name)
{
	uint64_t value = 0;

	CHECK_EQ(harp_stack_stat(stack, name, &value), 0);
	return value;
}

static void pair_close(struct pair *p)
{
	struct harp_wire_stats wire;

	for (unsigned i = 0; i < 2; i++) {
		CHECK_EQ(harp_wire_stats(p->wire, i, &wire), 0);
		CHECK_EQ(wire.strict_violations, 0);
		harp_stack_destroy(p->stack[i]);
	}
	harp_wire_destroy(p->wire);
}

static int connect_to(struct pair *p, const char *local, uint32_t local_scope, const char *remote,
		      uint32_t remote_scope, struct harp_conn **conn)
{
	struct harp_endpoint to = endpoint(remote, PORT, remote_scope), from = { 0 };

	if (local)
		from = endpoint(local, 0, local_scope);
	return harp_tcp_connect(p->stack[0], local ? &from : NULL, &to, NULL, conn);
}

/* Connects, sends a line each way, and checks who both think they are. */
static void talk(struct pair *p, struct harp_listener *listener, const char *remote,
		 uint32_t remote_scope, const char *source, uint32_t source_scope)
{
	struct harp_conn *client, *server = NULL;
	struct harp_endpoint a, b;
	struct harp_tcp_info info;
	struct iovec iov = { .iov_base = (void *)"hello", .iov_len = 5 };
	char text[HARP_ADDR_TEXT_MAX], bytes[16];
	bool v6 = strchr(remote, ':') != NULL;

	CHECK_EQ(connect_to(p, NULL, 0, remote, remote_scope, &client), 0);
	pair_run(p, 20);
	CHECK_EQ(harp_tcp_accept(listener, &server), 0);
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
	pair_run(p, 20);
	CHECK_EQ(harp_conn_recv(server, bytes, sizeof(bytes)), 5);
	CHECK_EQ(harp_conn_recv(client, bytes, sizeof(bytes)), 5);
	CHECK_MEM(bytes, "hello", 5);
	harp_conn_abort(client);
	pair_run(p, 5);
	harp_conn_close(server);
}

TEST(one_listener_hears_both_families)
{
	struct harp_endpoint at = { .port = PORT };
	struct harp_listener *listener;
	struct pair p;

	pair_open(&p, 0, 0);
	CHECK_EQ(harp_tcp_listen(p.stack[1], &at, NULL, &listener), 0);
	talk(&p, listener, "fd00::2", 0, "fd00::1", 0);
	talk(&p, listener, "10.0.0.2", 0, "10.0.0.1", 0);
	talk(&p, listener, "fe80::2", 3, "fe80::1", 3);
	harp_listener_close(listener);
	pair_close(&p);
}

TEST(a_listener_of_one_address_hears_only_it)
{
	struct harp_endpoint at = endpoint("fd00::2", PORT, 0);
	struct harp_listener *listener;
	struct harp_conn *conn;
	struct pair p;

	pair_open(&p, 0, 0);
	CHECK_EQ(harp_tcp_listen(p.stack[1], &at, NULL, &listener), 0);
	talk(&p, listener, "fd00::2", 0, "fd00::1", 0);
	CHECK_EQ(connect_to(&p, NULL, 0, "10.0.0.2", 0, &conn), 0);
	pair_run(&p, 20);
	CHECK_EQ(harp_conn_error(conn), -ECONNREFUSED);
	harp_conn_close(conn);
	harp_listener_close(listener);
	pair_close(&p);
}

/* A link-local address is of one interface: the stack's, or it is none. */
TEST(scopes)
{
	struct harp_endpoint good = endpoint("fe80::2", PORT, 8),
			     bad = endpoint("fe80::2", PORT, 3);
	struct harp_listener *listener;
	struct harp_conn *conn;
	struct pair p;

	pair_open(&p, 0, 0);
	CHECK_EQ(harp_tcp_listen(p.stack[1], &bad, NULL, &listener), -EADDRNOTAVAIL);
	CHECK_EQ(harp_tcp_listen(p.stack[1], &good, NULL, &listener), 0);
	CHECK_EQ(connect_to(&p, NULL, 0, "fe80::2", 8, &conn), -EINVAL);
	CHECK_EQ(connect_to(&p, NULL, 0, "fe80::2", 0, &conn), -EINVAL);
	CHECK_EQ(connect_to(&p, "fe80::1", 8, "fe80::2", 3, &conn), -EADDRNOTAVAIL);
	CHECK_EQ(connect_to(&p, "fd00::9", 0, "fd00::2", 0, &conn), -EADDRNOTAVAIL);
	CHECK_EQ(connect_to(&p, "10.0.0.1", 0, "fd00::2", 0, &conn), -EADDRNOTAVAIL);
	CHECK_EQ(connect_to(&p, NULL, 0, "ff02::1", 0, &conn), -ENETUNREACH);
	CHECK_EQ(connect_to(&p, NULL, 0, "::", 0, &conn), -EINVAL);
	CHECK_EQ(stat(p.stack[0], "tcp_conns"), 0);
	talk(&p, listener, "fe80::2", 3, "fe80::1", 3);
	harp_listener_close(listener);
	pair_close(&p);
}

TEST(vlans)
{
	struct harp_endpoint at = { .port = PORT };
	struct harp_listener *listener;
	struct harp_conn *conn;
	struct pair p;

	pair_open(&p, 12, 12);
	CHECK_EQ(harp_tcp_listen(p.stack[1], &at, NULL, &listener), 0);
	talk(&p, listener, "fd00::2", 0, "fd00::1", 0);
	talk(&p, listener, "10.0.0.2", 0, "10.0.0.1", 0);
	harp_listener_close(listener);
	pair_close(&p);

	pair_open(&p, 12, 13); /* each hears the other's frames and none of their words */
	CHECK_EQ(harp_tcp_listen(p.stack[1], &at, NULL, &listener), 0);
	CHECK_EQ(connect_to(&p, NULL, 0, "fd00::2", 0, &conn), 0);
	pair_run(&p, 20);
	CHECK(stat(p.stack[1], "drop_vlan") > 0);
	CHECK_EQ(stat(p.stack[1], "nd_in"), 0);
	harp_conn_abort(conn);
	harp_listener_close(listener);
	pair_close(&p);
}
