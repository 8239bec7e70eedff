/* SPDX-License-Identifier: Apache-2.0 */
/*
 * route.c - own addresses and routes: where a packet goes and whose name it bears.
 *
 * The tables are short and looked at once per connection (struct ip_path keeps the answer), so they are
 * arrays that are searched. Prefix lengths count the bits of the 128-bit form: one rule for both
 * families.
 */
#include <errno.h>

#include "network/ip.h"
#include "network/ipv4.h"

static const struct harp_addr route_any;

static inline bool route_same(const struct harp_addr *a, const struct harp_addr *b)
{
	return memcmp(a, b, sizeof(*a)) == 0;
}

static bool route_match(const struct harp_addr *a, const struct harp_addr *b, unsigned bits)
{
	unsigned bytes = bits / 8, rest = bits % 8;

	if (memcmp(a->bytes, b->bytes, bytes) != 0)
		return false;
	return rest == 0 || (a->bytes[bytes] ^ b->bytes[bytes]) >> (8 - rest) == 0;
}

static struct harp_addr route_masked(const struct harp_addr *addr, unsigned bits)
{
	struct harp_addr out = *addr;

	for (unsigned i = 0; i < 16; i++) {
		unsigned keep = bits > 8 * i ? bits - 8 * i : 0;

		if (keep < 8)
			out.bytes[i] &= (uint8_t)(0xff00u >> keep);
	}
	return out;
}

/* The length in bits of the 128-bit form; -EINVAL when it is too long for the family. */
static int route_prefix_bits(const struct harp_addr *addr, unsigned prefix_len)
{
	bool v4 = harp_addr_is_v4(addr);

	if (prefix_len > (v4 ? 32u : 128u))
		return -EINVAL;
	return (int)(v4 ? IPV4_PREFIX_BITS + prefix_len : prefix_len);
}

/* Could a host have this address, or send to it? */
static bool route_is_unicast(const struct harp_addr *addr)
{
	if (!harp_addr_is_v4(addr))
		return !route_same(addr, &route_any) && addr->bytes[0] != 0xff;
	uint32_t v4 = ipv4_number(addr);

	return v4 >> 24 != 0 && v4 >> 24 != 127 && v4 >> 28 < 14;
}

/* ---- addresses --------------------------------------------------------------------------------- */

static int route_address_find(const struct ip *ip, const struct harp_addr *addr)
{
	for (unsigned i = 0; i < ip->address_count; i++)
		if (route_same(&ip->addresses[i].addr, addr))
			return (int)i;
	return -ENOENT;
}

bool ip_is_own(const struct ip *ip, const struct harp_addr *addr)
{
	return route_address_find(ip, addr) >= 0;
}

int ip_address_add(struct ip *ip, const struct harp_addr *addr, unsigned prefix_len)
{
	int bits = route_prefix_bits(addr, prefix_len), err;

	if (bits < 0 || !route_is_unicast(addr))
		return -EINVAL;
	if (ip_is_own(ip, addr))
		return -EEXIST;
	if (ip->address_count == IP_ADDRESSES_MAX)
		return -ENOSPC;
	err = ip_route_add(ip, addr, prefix_len, NULL, 0);
	if (err && err != -EEXIST) /* a second address of a subnet shares its route */
		return err;
	ip->addresses[ip->address_count++] = (struct ip_address){ *addr, (uint8_t)bits };
	ip->generation++;
	return 0;
}

int ip_address_remove(struct ip *ip, const struct harp_addr *addr)
{
	int at = route_address_find(ip, addr);
	bool shared = false;

	if (at < 0)
		return -ENOENT;
	struct ip_address gone = ip->addresses[at];

	ip->addresses[at] = ip->addresses[--ip->address_count];
	for (unsigned i = 0; i < ip->address_count; i++)
		shared |= ip->addresses[i].prefix_len == gone.prefix_len &&
			  route_match(&ip->addresses[i].addr, addr, gone.prefix_len);
	if (!shared)
		ip_route_remove(ip, addr,
				harp_addr_is_v4(addr) ? gone.prefix_len - IPV4_PREFIX_BITS
						      : gone.prefix_len);
	ip->generation++;
	return 0;
}

/* ---- routes ------------------------------------------------------------------------------------ */

static struct ip_route *route_find(struct ip *ip, const struct harp_addr *prefix, unsigned bits)
{
	for (unsigned i = 0; i < ip->route_count; i++)
		if (ip->routes[i].prefix_len == bits && route_same(&ip->routes[i].prefix, prefix))
			return &ip->routes[i];
	return NULL;
}

int ip_route_add(struct ip *ip, const struct harp_addr *prefix, unsigned prefix_len,
		 const struct harp_addr *gateway, uint32_t mtu_bytes)
{
	int bits = route_prefix_bits(prefix, prefix_len);

	if (bits < 0 || (mtu_bytes && mtu_bytes < 68)) /* RFC 791 section 3.2: every link has 68 */
		return -EINVAL;
	if (gateway &&
	    (!route_is_unicast(gateway) || harp_addr_is_v4(gateway) != harp_addr_is_v4(prefix)))
		return -EINVAL;
	struct harp_addr masked = route_masked(prefix, (unsigned)bits);

	if (route_find(ip, &masked, (unsigned)bits))
		return -EEXIST;
	if (ip->route_count == IP_ROUTES_MAX)
		return -ENOSPC;
	ip->routes[ip->route_count++] = (struct ip_route){
		.prefix = masked,
		.gateway = gateway ? *gateway : route_any,
		.mtu_bytes = mtu_bytes,
		.prefix_len = (uint8_t)bits,
		.on_link = !gateway,
	};
	ip->generation++;
	return 0;
}

int ip_route_remove(struct ip *ip, const struct harp_addr *prefix, unsigned prefix_len)
{
	int bits = route_prefix_bits(prefix, prefix_len);

	if (bits < 0)
		return -EINVAL;
	struct harp_addr masked = route_masked(prefix, (unsigned)bits);
	struct ip_route *route = route_find(ip, &masked, (unsigned)bits);

	if (!route)
		return -ENOENT;
	*route = ip->routes[--ip->route_count];
	ip->generation++;
	return 0;
}

/* ---- paths ------------------------------------------------------------------------------------- */

/* Longest prefix wins. */
static const struct ip_route *route_lookup(const struct ip *ip, const struct harp_addr *dst)
{
	const struct ip_route *best = NULL;

	for (unsigned i = 0; i < ip->route_count; i++) {
		const struct ip_route *r = &ip->routes[i];

		if (harp_addr_is_v4(&r->prefix) == harp_addr_is_v4(dst) &&
		    route_match(&r->prefix, dst, r->prefix_len) &&
		    (!best || r->prefix_len > best->prefix_len))
			best = r;
	}
	return best;
}

/* The own address nearest to the next hop: longest common prefix (as RFC 6724 rule 8). */
static const struct harp_addr *route_source(const struct ip *ip, const struct harp_addr *next_hop)
{
	const struct ip_address *best = NULL;

	for (unsigned i = 0; i < ip->address_count; i++) {
		const struct ip_address *a = &ip->addresses[i];

		if (harp_addr_is_v4(&a->addr) != harp_addr_is_v4(next_hop))
			continue;
		if (!best || (route_match(&a->addr, next_hop, a->prefix_len) &&
			      (!route_match(&best->addr, next_hop, best->prefix_len) ||
			       a->prefix_len > best->prefix_len)))
			best = a;
	}
	return best ? &best->addr : NULL;
}

int ip_path_lookup(struct ip *ip, struct ip_path *path)
{
	const struct ip_route *route = NULL;
	uint32_t nic_mtu_bytes = ip->eth->io->nic->caps.mtu_bytes;

	path->generation = 0;
	path->neighbour = NULL;
	/* To ourselves there is no way: nothing loops back in here. */
	if (route_is_unicast(&path->dst) && !ip_is_own(ip, &path->dst))
		route = route_lookup(ip, &path->dst);
	if (!route)
		return -ENETUNREACH;
	path->next_hop = route->on_link ? path->dst : route->gateway;
	if (route_same(&path->src, &route_any)) {
		const struct harp_addr *src = route_source(ip, &path->next_hop);

		if (!src)
			return -EADDRNOTAVAIL;
		path->src = *src;
	} else if (!ip_is_own(ip, &path->src)) {
		return -EADDRNOTAVAIL;
	}
	path->mtu_bytes = route->mtu_bytes && route->mtu_bytes < nic_mtu_bytes ? route->mtu_bytes
									       : nic_mtu_bytes;
	path->neighbour = neighbour_get(ip->eth, &path->next_hop);
	path->generation = ip->generation;
	return 0;
}
