/* SPDX-License-Identifier: Apache-2.0 */
/* test_route.c - longest-prefix match, own addresses, source address selection, and paths after
 * route changes. */
#include <errno.h>

#include "host.h"

static int add_route(struct ip *ip, const char *prefix, unsigned len, const char *gateway,
		     uint32_t mtu_bytes)
{
	struct harp_addr p = host_addr(prefix), g = host_addr(gateway ? gateway : "0.0.0.0");

	return ip_route_add(ip, &p, len, gateway ? &g : NULL, mtu_bytes);
}

static int add_address(struct ip *ip, const char *text, unsigned len)
{
	struct harp_addr a = host_addr(text);

	return ip_address_add(ip, &a, len);
}

/* Checks next hop, source and MTU of the path to dst. */
static void check_path(struct ip *ip, const char *dst, const char *next_hop, const char *src,
		       uint32_t mtu_bytes)
{
	struct ip_path path = { .dst = host_addr(dst) };
	char a[HARP_ADDR_TEXT_MAX], b[HARP_ADDR_TEXT_MAX];

	CHECK_EQ(ip_path_lookup(ip, &path), 0);
	CHECK_STR(harp_addr_format(&path.next_hop, a), next_hop);
	CHECK_STR(harp_addr_format(&path.src, b), src);
	CHECK_EQ(path.mtu_bytes, mtu_bytes);
	CHECK(path.neighbor != NULL);
}

static int lookup(struct ip *ip, const char *dst, const char *src)
{
	struct ip_path path = { .dst = host_addr(dst) };

	if (src)
		path.src = host_addr(src);
	return ip_path_lookup(ip, &path);
}

static void test_longest_prefix(struct ip *ip)
{
	CHECK_EQ(add_route(ip, "0.0.0.0", 0, "10.0.0.254", 0), 0);
	CHECK_EQ(add_route(ip, "172.16.0.0", 12, "10.0.0.253", 1400), 0);
	CHECK_EQ(add_route(ip, "172.16.5.77", 24, "10.0.0.252", 9000), 0); /* masked to .0 */
	CHECK_EQ(add_route(ip, "172.16.5.9", 32, NULL, 0), 0);
	CHECK_EQ(add_route(ip, "172.16.5.0", 24, "10.0.0.251", 0), -EEXIST);
	check_path(ip, "8.8.8.8", "10.0.0.254", "10.0.0.1", 1500);
	check_path(ip, "10.0.0.7", "10.0.0.7", "10.0.0.1", 1500);
	check_path(ip, "172.31.255.1", "10.0.0.253", "10.0.0.1", 1400);
	check_path(ip, "172.32.0.1", "10.0.0.254", "10.0.0.1", 1500);
	check_path(ip, "172.16.5.8", "10.0.0.252", "10.0.0.1", 1500); /* at most the NIC's MTU */
	check_path(ip, "172.16.5.9", "172.16.5.9", "10.0.0.1", 1500);
	struct harp_addr old = host_addr("172.16.5.200");

	CHECK_EQ(ip_route_remove(ip, &old, 24), 0);
	CHECK_EQ(ip_route_remove(ip, &old, 24), -ENOENT);
	check_path(ip, "172.16.5.8", "10.0.0.253", "10.0.0.1", 1400);
}

static void test_unreachable(struct ip *ip)
{
	static const char *const unreachable[] = { "224.0.0.1", "255.255.255.255", "0.0.0.0",
						   "127.0.0.1", "10.0.0.1", /* an own address */
						   "10.0.0.255" };

	for (unsigned i = 0; i < sizeof(unreachable) / sizeof(unreachable[0]); i++)
		CHECK_EQ(lookup(ip, unreachable[i], NULL), -ENETUNREACH);
	CHECK_EQ(lookup(ip, "fd00::2", NULL), -ENETUNREACH); /* no route of that family */
	CHECK_EQ(lookup(ip, "10.0.0.2", "10.0.0.9"), -EADDRNOTAVAIL);
	CHECK_EQ(lookup(ip, "10.0.0.2", "10.0.0.1"), 0);
}

static void test_addresses(struct ip *ip)
{
	struct harp_addr a = host_addr("10.0.0.1"), b = host_addr("10.0.0.5"),
			 c = host_addr("192.168.7.1");
	unsigned routes = ip->route_count;

	CHECK_EQ(add_address(ip, "10.0.0.1", 24), -EEXIST);
	CHECK_EQ(add_address(ip, "10.0.0.1", 33), -EINVAL);
	CHECK_EQ(add_address(ip, "224.0.0.1", 24), -EINVAL);
	CHECK_EQ(add_address(ip, "127.0.0.1", 8), -EINVAL);
	CHECK_EQ(add_address(ip, "0.0.0.0", 0), -EINVAL);
	CHECK_EQ(add_address(ip, "10.0.0.5", 24), 0); /* shares the subnet's route */
	CHECK_EQ(ip->route_count, routes);
	CHECK_EQ(add_address(ip, "192.168.7.1", 25), 0);
	CHECK(ip_is_own(ip, &b));
	check_path(ip, "192.168.7.9", "192.168.7.9", "192.168.7.1", 1500);
	check_path(ip, "192.168.7.200", "10.0.0.254", "10.0.0.1", 1500); /* outside the /25 */
	check_path(ip, "10.0.0.9", "10.0.0.9", "10.0.0.1", 1500);
	CHECK_EQ(ip_address_remove(ip, &a), 0);
	check_path(ip, "10.0.0.9", "10.0.0.9", "10.0.0.5", 1500); /* the route is still needed */
	CHECK_EQ(ip_address_remove(ip, &c), 0);
	check_path(ip, "192.168.7.9", "10.0.0.254", "10.0.0.5", 1500);
	CHECK_EQ(ip_address_remove(ip, &c), -ENOENT);
	CHECK_EQ(ip_address_remove(ip, &b), 0);
	CHECK_EQ(lookup(ip, "8.8.8.8", NULL), -EADDRNOTAVAIL);
	CHECK_EQ(add_address(ip, "10.0.0.1", 24), 0);
}

static void test_generation(struct ip *ip)
{
	struct ip_path path = { .dst = host_addr("9.9.9.9") };
	struct harp_addr any = host_addr("0.0.0.0");

	CHECK_EQ(ip_path_check(ip, &path), 0);
	CHECK_EQ(path.next_hop.bytes[15], 254);
	CHECK_EQ(ip_route_remove(ip, &any, 0), 0);
	CHECK_EQ(ip_path_check(ip, &path), -ENETUNREACH);
	CHECK_EQ(add_route(ip, "9.9.9.0", 24, "10.0.0.77", 0), 0);
	CHECK_EQ(ip_path_check(ip, &path), 0);
	CHECK_EQ(path.next_hop.bytes[15], 77);
}

/* RFC 6724: the source address is chosen by scope, label and prefix. */
static void test_source_selection(struct ip *ip)
{
	static const struct {
		const char *addr;
		unsigned prefix_len;
	} own[] = { { "fe80::1", 64 },         { "fd00:0:0:1::1", 64 }, { "2001:db8:1::1", 64 },
		    { "2001:db8:2:1::1", 64 }, { "2002:a00:1::1", 64 }, { "2001:db8:2:1::9", 128 },
		    { "169.254.0.1", 16 } };
	struct harp_addr a;

	CHECK_EQ(lookup(ip, "2001:db8:9::1", NULL), -ENETUNREACH); /* no route of that family */
	CHECK_EQ(add_address(ip, own[0].addr, own[0].prefix_len), 0);
	CHECK_EQ(add_route(ip, "::", 0, "fe80::ff", 0), 0);
	check_path(ip, "2001:db8:9::1", "fe80::ff", "fe80::1", 1500); /* the only IPv6 address */
	for (unsigned i = 1; i < sizeof(own) / sizeof(own[0]); i++)
		CHECK_EQ(add_address(ip, own[i].addr, own[i].prefix_len), 0);
	check_path(ip, "fe80::77", "fe80::77", "fe80::1", 1500); /* rule 2 */
	check_path(ip, "2001:db8:1::7", "2001:db8:1::7", "2001:db8:1::1", 1500);
	check_path(ip, "2001:db8:2:1::7", "2001:db8:2:1::7", "2001:db8:2:1::1", 1500);
	check_path(ip, "2001:db8:2:8::7", "fe80::ff", "2001:db8:2:1::1", 1500); /* rule 8 */
	check_path(ip, "fd00:0:0:2::7", "fe80::ff", "fd00:0:0:1::1", 1500);     /* rule 6 */
	check_path(ip, "2a00::1", "fe80::ff", "2001:db8:1::1", 1500); /* no 6to4, no unique local */
	check_path(ip, "2002:b00::1", "fe80::ff", "2002:a00:1::1", 1500); /* rule 6 */
	check_path(ip, "169.254.7.7", "169.254.7.7", "169.254.0.1", 1500);
	check_path(ip, "10.0.0.7", "10.0.0.7", "10.0.0.1", 1500);
	CHECK_EQ(lookup(ip, "::1", NULL), -ENETUNREACH);
	CHECK_EQ(lookup(ip, "ff02::1", NULL), -ENETUNREACH);
	for (unsigned i = 0; i < sizeof(own) / sizeof(own[0]); i++) {
		a = host_addr(own[i].addr);
		CHECK_EQ(ip_address_remove(ip, &a), 0);
	}
	a = host_addr("::");
	CHECK_EQ(ip_route_remove(ip, &a, 0), 0);
}

/* A link-local address is valid only on its own link. */
static void test_scope(struct ip *ip)
{
	struct harp_addr link = host_addr("fe80::1"), other = host_addr("fd00::1"),
			 v4 = host_addr("10.0.0.1");

	ip->scope_id = 3;
	CHECK(ip_scope_valid(ip, &link, 3) && !ip_scope_valid(ip, &link, 4));
	CHECK(!ip_scope_valid(ip, &link, 0));
	CHECK(ip_scope_valid(ip, &other, 0) && ip_scope_valid(ip, &v4, 0));
	CHECK_EQ(ip_scope_id(ip, &link), 3);
	CHECK_EQ(ip_scope_id(ip, &other), 0);
	CHECK_EQ(ip_scope_id(ip, &v4), 0);
	ip->scope_id = 0;
}

static void test_limits(struct ip *ip)
{
	char text[32];
	int err = 0;

	CHECK_EQ(add_route(ip, "1.0.0.0", 8, "fd00::1", 0), -EINVAL); /* different families */
	CHECK_EQ(add_route(ip, "1.0.0.0", 8, "224.0.0.1", 0), -EINVAL);
	CHECK_EQ(add_route(ip, "1.0.0.0", 8, NULL, 67), -EINVAL);
	CHECK_EQ(add_route(ip, "fd00::", 129, NULL, 0), -EINVAL);
	for (unsigned i = 0; i <= IP_ROUTES_MAX && !err; i++) {
		snprintf(text, sizeof(text), "20.%u.0.0", i);
		err = add_route(ip, text, 16, NULL, 0);
	}
	CHECK_EQ(err, -ENOSPC);
	CHECK_EQ(ip->route_count, IP_ROUTES_MAX);
	err = 0;
	for (unsigned i = 2; i <= IP_ADDRESSES_MAX + 2 && !err; i++) {
		snprintf(text, sizeof(text), "10.0.0.%u", 100 + i);
		err = add_address(ip, text, 24);
	}
	CHECK_EQ(err, -ENOSPC);
	CHECK_EQ(ip->address_count, IP_ADDRESSES_MAX);
}

int main(void)
{
	struct ip *ip;

	host_open(1500, HARP_NEIGHBOR_OWN);
	ip = &host->ip;
	CHECK_EQ(ip_address_remove(ip, &host_ip6), 0);
	test_longest_prefix(ip);
	test_unreachable(ip);
	test_addresses(ip);
	test_generation(ip);
	test_source_selection(ip);
	test_scope(ip);
	test_limits(ip);
	rig_close(&rig);
	return check_done();
}
