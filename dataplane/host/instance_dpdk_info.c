/* SPDX-License-Identifier: Apache-2.0 */
/* instance_dpdk_info.c - reports properties and routes of an instance on a DPDK port. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "host/instance.h"
#include "host/instance_dpdk.h"

static const struct harp_addr addr_none;

static bool addr_is(const struct harp_addr *a, const struct harp_addr *b)
{
	return memcmp(a, b, sizeof(*a)) == 0;
}

static bool dpdk_match(const struct harp_addr *a, const struct harp_addr *b, uint32_t prefix_len)
{
	uint32_t bits, bytes, rest;

	if (harp_addr_is_v4(a) != harp_addr_is_v4(b))
		return false;
	bits = prefix_len + (harp_addr_is_v4(a) ? 96 : 0);
	bytes = bits / 8;
	rest = bits % 8;
	if (memcmp(a->bytes, b->bytes, bytes) != 0)
		return false;
	return rest == 0 || (a->bytes[bytes] ^ b->bytes[bytes]) >> (8 - rest) == 0;
}

/* Longest prefix match, as in the stack: subnets, routes, gateways. False: no route. */
static bool dpdk_next_hop(const struct instance_dpdk *dpdk, const struct harp_addr *dst,
			  struct harp_host_route *out)
{
	const struct harp_port_spec *spec = &dpdk->port->spec;
	const struct harp_addr *gateway =
		harp_addr_is_v4(dst) ? &spec->gateway_v4 : &spec->gateway_v6;
	bool found = !addr_is(gateway, &addr_none);
	uint32_t longest = 0;

	out->has_gateway = found;
	out->next_hop = *gateway;
	for (uint32_t i = 0; i < spec->route_count; i++) {
		const struct harp_port_route *route = &spec->routes[i];

		if (!dpdk_match(&route->prefix, dst, route->prefix_len) ||
		    (found && route->prefix_len < longest))
			continue;
		found = true;
		longest = route->prefix_len;
		out->has_gateway = 1;
		out->next_hop = route->gateway;
	}
	for (uint32_t i = 0; i < spec->address_count; i++) {
		if (!dpdk_match(&spec->addresses[i], dst, spec->prefix_lens[i]) ||
		    (found && spec->prefix_lens[i] < longest))
			continue;
		found = true;
		longest = spec->prefix_lens[i];
		out->has_gateway = 0;
		out->next_hop = *dst;
	}
	if (harp_addr_is_link_local(dst) && !harp_addr_is_v4(dst) &&
	    !addr_is(&dpdk->link_local, &addr_none)) {
		found = true;
		out->has_gateway = 0;
		out->next_hop = *dst;
	}
	return found;
}

/* Source address: in the next hop's subnet, else the first of the family. */
static void dpdk_source(const struct instance_dpdk *dpdk, const struct harp_addr *dst,
			struct harp_host_route *out)
{
	const struct harp_port_spec *spec = &dpdk->port->spec;
	bool near = false;

	if (harp_addr_is_link_local(dst) && !harp_addr_is_v4(dst))
		out->source = dpdk->link_local;
	for (uint32_t i = 0; i < spec->address_count; i++) {
		const struct harp_addr *own = &spec->addresses[i];
		bool here = dpdk_match(own, &out->next_hop, spec->prefix_lens[i]);

		if (harp_addr_is_v4(own) != harp_addr_is_v4(dst) || near ||
		    (!here && !addr_is(&out->source, &addr_none)))
			continue;
		out->source = *own;
		near = here;
	}
}

int instance_dpdk_route(const struct harp_instance *instance, const struct harp_addr *dst,
			struct harp_host_route *out)
{
	const struct instance_dpdk *dpdk = instance->dpdk;
	const struct harp_port_spec *spec = &dpdk->port->spec;

	*out = (struct harp_host_route){ .mtu_bytes = instance->nic->caps.mtu_bytes };
	snprintf(out->ifname, sizeof(out->ifname), "%s", instance->ifname);
	out->is_local = addr_is(dst, &dpdk->link_local);
	for (uint32_t i = 0; i < spec->address_count; i++)
		out->is_local |= addr_is(dst, &spec->addresses[i]);
	if (out->is_local) {
		out->source = out->next_hop = *dst;
		return 0;
	}
	if (!dpdk_next_hop(dpdk, dst, out))
		return -ENETUNREACH;
	dpdk_source(dpdk, dst, out);
	return 0;
}

int harp_instance_dpdk(const struct harp_instance *instance, struct harp_instance_port *out)
{
	const struct dpdk_port *port = instance->dpdk ? instance->dpdk->port : NULL;

	if (!port)
		return -ENOTSUP;
	*out = port->info;
	out->up = atomic_load_explicit(&port->up, memory_order_relaxed);
	out->address_count = port->spec.address_count;
	memcpy(out->addresses, port->spec.addresses, sizeof(out->addresses));
	return 0;
}
