/* SPDX-License-Identifier: Apache-2.0 */
/* plan.c - which lanes a comm should have: over which NICs, of which kinds. */
#include <string.h>

#include "connect/ctx.h"
#include "connect/reconnect_impl.h"
#include "process/config.h"
#include "device/device.h"

/*
 * Theory of operation
 *
 * For each rail (a NIC of ours and one of the peer's, rails.c) as many HARP lanes and as many kernel lanes as are
 * configured, the first lane among them, by their index in the comm. The plan is made once, when the first lane's
 * CHALLENGE has told of the peer's NICs.
 */

/* The peer's NIC as a handle would tell of it. */
static void rail_handle(struct reconnect_rail *rail, const struct reconnect *u, unsigned nic)
{
	struct handle *h = &rail->handle;

	*h = u->handle;
	if (!nic && !h->opening) /* the handle knows more listeners of it */
		return;
	h->has_v4 = h->has_v6 = false;
	h->harp_port = h->kernel_port_v4 = h->kernel_port_v6 = 0;
	memset(h->ports, 0, sizeof(h->ports));
	for (unsigned i = 0; i < u->peer_rails.count; i++) {
		const struct rail_entry *entry = &u->peer_rails.entry[i];

		if (entry->nic != nic)
			continue;
		h->harp_port = entry->harp_port;
		h->harp_placement = entry->placement;
		h->harp_queues = entry->queues;
		h->harp_queue = entry->queue;
		if (harp_addr_is_v4(&entry->addr)) {
			h->has_v4 = true;
			h->v4 = entry->addr;
			h->kernel_port_v4 = entry->kernel_port;
		} else {
			h->has_v6 = true;
			h->v6 = entry->addr;
			h->kernel_port_v6 = entry->kernel_port;
		}
	}
}

static bool rail_reaches(void *ctx, int dev, const struct rail_entry *entry)
{
	const struct device *device = plugin_device(dev);
	struct harp_host_route route;
	struct harp_addr source;
	struct engine_set *engines = interface_engines(dev, NULL, 0);

	(void)ctx;
	if (harp_addr_is_v4(&entry->addr) ? !device->has_v4 : !device->has_v6)
		return false;
	if (engines && engine_reaches(engine_set_at(engines, 0), &entry->addr, &source, NULL, 0))
		return true;
	return !device->netns && !harp_host_route(&entry->addr, &route) && !route.is_local &&
	       route.ifindex == device->ifindex;
}

static void rail_lanes(struct reconnect *u, unsigned rail, bool harp, unsigned count)
{
	unsigned most = u->planned < u->taken ? u->planned : u->taken;

	for (unsigned i = 0; i < count && u->lane_count < most; i++) {
		u->lanes[u->lane_count] = (struct reconnect_lane){
			.index = (uint8_t)u->lane_count,
			.rail = (uint8_t)rail,
			.harp = harp,
			.backoff_ns = RECONNECT_BACKOFF_NS_MIN,
		};
		u->lane_count++;
	}
}

static bool rail_has(const struct reconnect_rail *rail, bool harp)
{
	struct candidates candidates;
	bool some;

	candidates_list(&candidates, rail->dev, harp ? rail->engines : NULL, &rail->handle);
	some = candidates.count > 0;
	candidates_forget(&candidates);
	return some;
}

static void rail_plan(struct reconnect *u, unsigned number)
{
	const struct reconnect_rail *rail = &u->rails[number];
	enum plugin_path path = plugin_config()->path;
	unsigned harp = 0, kernel = 0;

	if (rail->engines && rail_has(rail, true))
		harp = plugin_config()->lanes;
	if (!plugin_path_is_harp(path) && !plugin_device(rail->dev)->netns && rail_has(rail, false))
		kernel = device_kernel_lanes(plugin_device(rail->dev));
	if (!number) { /* the first lane has index 0 */
		rail_lanes(u, number, u->first_harp, 1);
		harp -= harp && u->first_harp;
		kernel -= kernel && !u->first_harp;
	}
	rail_lanes(u, number, true, harp);
	rail_lanes(u, number, false, kernel);
}

static bool rail_is_ours(const struct reconnect_rail *rail)
{
	struct harp_host_route route;
	const struct harp_addr *addr = rail->handle.has_v4 ? &rail->handle.v4 : &rail->handle.v6;

	return !harp_addr_is_link_local(addr) && !harp_host_route(addr, &route) &&
	       route.ifindex == plugin_device(rail->dev)->ifindex;
}

void reconnect_plan(struct reconnect *u)
{
	struct rail_pair pairs[RAIL_PAIRS_MAX];
	int devs[RAIL_PAIRS_MAX];
	unsigned dev_count = rails_devices(u->dev, devs);

	u->rail_count = rails_pair(devs, dev_count, &u->peer_rails, rail_reaches, NULL, pairs);
	for (unsigned i = 0; i < u->rail_count; i++) {
		struct reconnect_rail *rail = &u->rails[i];

		rail->dev = pairs[i].dev;
		rail->backup = pairs[i].backup;
		rail->engines = interface_engines(rail->dev, NULL, 0);
		rail_handle(rail, u, pairs[i].nic);
		rail->bound = i || rail_is_ours(rail);
		rail_plan(u, i);
	}
}
