/* SPDX-License-Identifier: Apache-2.0 */
/*
 * route.c - own addresses and routes: selection of next hop and source address.
 *
 * Theory of operation. The tables are short and searched once per connection (struct ip_path caches
 * the result until the generation changes), so they are arrays. Prefix lengths are those of the
 * 128-bit form for both families; IPv4's mapped form adds 96 bits. A route's gateway and a packet's
 * source have the family of the destination. RFC 6724 selects among own addresses (route_rank()),
 * first by scope, so a link-local address is the last resort for other destinations. Own addresses,
 * multicast, broadcast and loopback have no route.
 */
#include <errno.h>

#include "network/ip.h"
#include "network/ipv4.h"
#include "network/ipv6.h"

static bool route_match(const struct harp_addr *a, const struct harp_addr *b, unsigned bits)
{
	return addr_common_bits(a, b, bits) == bits;
}

/* Prefix length in the 128-bit form; -EINVAL: too long for the family. */
static int route_prefix_bits(const struct harp_addr *addr, unsigned prefix_len)
{
	bool v4 = harp_addr_is_v4(addr);

	if (prefix_len > (v4 ? 32u : 128u))
		return -EINVAL;
	return (int)(v4 ? ADDR_V4_BITS + prefix_len : prefix_len);
}

bool ip_is_broadcast(const struct ip *ip, const struct harp_addr *addr)
{
	for (unsigned i = 0; i < ip->address_count && harp_addr_is_v4(addr); i++) {
		const struct ip_address *a = &ip->addresses[i];
		unsigned host_bits = 128u - a->prefix_len;

		/* /31 and /32 have no broadcast address (RFC 3021). */
		if (harp_addr_is_v4(&a->addr) && host_bits >= 2 && host_bits < 32 &&
		    ipv4_number(addr) == (ipv4_number(&a->addr) | ((UINT32_C(1) << host_bits) - 1)))
			return true;
	}
	return false;
}

static uint32_t ip_nic_mtu_bytes(const struct ip *ip)
{
	return ip->eth->io->nic->caps.mtu_bytes;
}

/* RFC 791 section 3.2, RFC 8200 section 5: the minimum MTU of every link. */
static bool route_mtu_valid(const struct harp_addr *addr, uint32_t mtu_bytes)
{
	return mtu_bytes >= (harp_addr_is_v4(addr) ? 68u : IPV6_MTU_MIN);
}

/* ---- addresses ---- */

static int route_address_find(const struct ip *ip, const struct harp_addr *addr)
{
	for (unsigned i = 0; i < ip->address_count; i++)
		if (addr_equal(&ip->addresses[i].addr, addr))
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

	if (bits < 0 || !addr_is_unicast(addr) || !route_mtu_valid(addr, ip_nic_mtu_bytes(ip)))
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
	int index = route_address_find(ip, addr);
	bool shared = false;

	if (index < 0)
		return -ENOENT;
	unsigned bits = ip->addresses[index].prefix_len;

	ip->addresses[index] = ip->addresses[--ip->address_count];
	for (unsigned i = 0; i < ip->address_count; i++)
		shared |= ip->addresses[i].prefix_len == bits &&
			  route_match(&ip->addresses[i].addr, addr, bits);
	if (!shared)
		ip_route_remove(ip, addr, harp_addr_is_v4(addr) ? bits - ADDR_V4_BITS : bits);
	ip->generation++;
	return 0;
}

/* ---- routes ---- */

static struct ip_route *route_find(struct ip *ip, const struct harp_addr *prefix, unsigned bits)
{
	for (unsigned i = 0; i < ip->route_count; i++)
		if (ip->routes[i].prefix_len == bits && addr_equal(&ip->routes[i].prefix, prefix))
			return &ip->routes[i];
	return NULL;
}

int ip_route_add(struct ip *ip, const struct harp_addr *prefix, unsigned prefix_len,
		 const struct harp_addr *gateway, uint32_t mtu_bytes)
{
	int bits = route_prefix_bits(prefix, prefix_len);

	if (bits < 0 || (mtu_bytes && !route_mtu_valid(prefix, mtu_bytes)))
		return -EINVAL;
	if (gateway &&
	    (!addr_is_unicast(gateway) || harp_addr_is_v4(gateway) != harp_addr_is_v4(prefix)))
		return -EINVAL;
	struct harp_addr masked = addr_masked(prefix, (unsigned)bits);

	if (route_find(ip, &masked, (unsigned)bits))
		return -EEXIST;
	if (ip->route_count == IP_ROUTES_MAX)
		return -ENOSPC;
	ip->routes[ip->route_count++] = (struct ip_route){
		.prefix = masked,
		.gateway = gateway ? *gateway : (struct harp_addr){ { 0 } },
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
	struct harp_addr masked = addr_masked(prefix, (unsigned)bits);
	struct ip_route *route = route_find(ip, &masked, (unsigned)bits);

	if (!route)
		return -ENOENT;
	*route = ip->routes[--ip->route_count];
	ip->generation++;
	return 0;
}

/* ---- paths ---- */

/* Longest prefix match. */
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

/* The scope of an address: RFC 6724 sections 3.1 and 3.2. */
static unsigned route_scope(const struct harp_addr *addr)
{
	if (harp_addr_is_v4(addr)) /* 169.254.0.0/16 */
		return ipv4_number(addr) >> 16 == 0xa9fe ? IPV6_SCOPE_LINK : IPV6_SCOPE_GLOBAL;
	if (ipv6_is_multicast(addr))
		return addr->bytes[1] & 0x0fu;
	if (harp_addr_is_link_local(addr))
		return IPV6_SCOPE_LINK;
	/* fec0::/10, deprecated by RFC 3879 */
	return addr->bytes[0] == 0xfe ? IPV6_SCOPE_SITE : IPV6_SCOPE_GLOBAL;
}

/* The label of an address: those rows of the policy table (RFC 6724 section 2.1) that distinguish
 * addresses of one scope. They are unique local (RFC 4193), 6to4, Teredo, and others. */
static unsigned route_label(const struct harp_addr *addr)
{
	const uint8_t *b = addr->bytes;

	if ((b[0] & 0xfe) == 0xfc)
		return 13;
	if (b[0] == 0x20 && b[1] == 0x02)
		return 2;
	if (b[0] == 0x20 && b[1] == 0x01 && b[2] == 0 && b[3] == 0)
		return 5;
	return 1;
}

/*
 * Rank of an own address as a source for dst; higher is better. Implements the rules of RFC 6724
 * section 5 that can prefer one own address. With one interface and without temporary or deprecated
 * addresses these are 2 (scope), 6 (label), 5.5 (here: in the next hop's subnet), and 8 (longest
 * prefix).
 */
static uint32_t route_rank(const struct ip_address *a, const struct harp_addr *dst,
			   const struct harp_addr *next_hop)
{
	unsigned scope = route_scope(&a->addr), needed = route_scope(dst);
	uint32_t rank;

	/* Rule 2: the smallest sufficient scope, else the largest. */
	rank = scope >= needed ? 31 - scope : scope;
	rank = rank << 1 | (route_label(&a->addr) == route_label(dst));
	rank = rank << 8 | (route_match(&a->addr, next_hop, a->prefix_len) ? a->prefix_len : 0u);
	return rank << 8 | addr_common_bits(&a->addr, dst, a->prefix_len);
}

const struct harp_addr *ip_source(const struct ip *ip, const struct harp_addr *dst,
				  const struct harp_addr *next_hop)
{
	const struct ip_address *best = NULL;
	uint32_t best_rank = 0;

	for (unsigned i = 0; i < ip->address_count; i++) {
		const struct ip_address *a = &ip->addresses[i];
		uint32_t rank;

		if (harp_addr_is_v4(&a->addr) != harp_addr_is_v4(dst))
			continue;
		rank = route_rank(a, dst, next_hop);
		if (!best || rank > best_rank) {
			best = a;
			best_rank = rank;
		}
	}
	return best ? &best->addr : NULL;
}

bool ip_scope_valid(const struct ip *ip, const struct harp_addr *addr, uint32_t scope_id)
{
	return harp_addr_is_v4(addr) || !harp_addr_is_link_local(addr) || scope_id == ip->scope_id;
}

uint32_t ip_scope_id(const struct ip *ip, const struct harp_addr *addr)
{
	return !harp_addr_is_v4(addr) && harp_addr_is_link_local(addr) ? ip->scope_id : 0;
}

int ip_path_route(const struct ip *ip, struct ip_path *path)
{
	const struct ip_route *route = NULL;
	uint32_t nic_mtu_bytes = ip_nic_mtu_bytes(ip);

	/* Own addresses have no route, because the stack has no loopback. */
	if (addr_is_unicast(&path->dst) && !ip_is_own(ip, &path->dst) &&
	    !ip_is_broadcast(ip, &path->dst))
		route = route_lookup(ip, &path->dst);
	if (!route)
		return -ENETUNREACH;
	path->next_hop = route->on_link ? path->dst : route->gateway;
	if (addr_is_zero(&path->src)) {
		const struct harp_addr *src = ip_source(ip, &path->dst, &path->next_hop);

		if (!src)
			return -EADDRNOTAVAIL;
		path->src = *src;
	} else if (!ip_is_own(ip, &path->src) ||
		   harp_addr_is_v4(&path->src) != harp_addr_is_v4(&path->dst)) {
		return -EADDRNOTAVAIL;
	}
	path->mtu_bytes = route->mtu_bytes && route->mtu_bytes < nic_mtu_bytes ? route->mtu_bytes
									       : nic_mtu_bytes;
	return 0;
}

int ip_path_lookup(struct ip *ip, struct ip_path *path)
{
	int err;

	path->generation = 0;
	path->neighbor = NULL;
	path->sent.len = 0;
	err = ip_path_route(ip, path);
	if (err)
		return err;
	path->neighbor = neighbor_get(ip->eth, &path->next_hop);
	path->pseudo_sum = ip_pseudo_sum(&path->src, &path->dst, 0, 0);
	path->generation = ip->generation;
	return 0;
}
