/* SPDX-License-Identifier: Apache-2.0 */
/* plan.c - plans the lanes of a comm: pairs of NICs, and kinds. */
#include <string.h>

#include "connect/connector.h"
#include "device/device.h"
#include "process/config.h"

/*
 * Each rail gets the configured numbers of HARP lanes and kernel lanes, by their index in the comm;
 * the first lane is one of them. The plan is made once, when the first lane's CHALLENGE has
 * advertised the peer's NICs.
 */

/* Does a route lead from an own device to an address of the peer? */
static bool rail_reaches(int dev, const struct rail_entry *entry)
{
	const struct device *device = plugin_device(dev);
	struct harp_host_route route;
	struct harp_addr source;
	struct engine_set *engines = interface_engines(dev, NULL, 0);

	if (harp_addr_is_v4(&entry->addr) ? !device->has_v4 : !device->has_v6)
		return false;
	if (engines && engine_reaches(engine_set_at(engines, 0), &entry->addr, &source, NULL, 0))
		return true;
	return !device->netns && !harp_host_route(&entry->addr, &route) && !route.is_local &&
	       route.ifindex == device->ifindex;
}

static bool rails_use(const struct connector *c, int dev, unsigned nic, bool both)
{
	for (unsigned i = 0; i < c->rail_count; i++) {
		bool own = c->rails[i].dev == dev, theirs = c->rails[i].nic == nic;

		if (both ? own && theirs : own || theirs)
			return true;
	}
	return false;
}

/* Adds a rail of NICs that no other rail uses, so that one failure does not affect both. The second
 * rail may reuse a NIC if one side has no other. */
static bool rails_add(struct connector *c, const int *devs, unsigned dev_count)
{
	for (int shared = 0; shared < (c->rail_count == 1 ? 2 : 1); shared++) {
		for (unsigned d = 0; d < dev_count; d++) {
			for (unsigned i = 0; i < c->peer_rails.count; i++) {
				const struct rail_entry *entry = &c->peer_rails.entry[i];

				if (rails_use(c, devs[d], entry->nic, shared) ||
				    !rail_reaches(devs[d], entry))
					continue;
				c->rails[c->rail_count++] = (struct connector_rail){
					.dev = devs[d],
					.nic = entry->nic,
					.backup = plugin_config()->rails == RAILS_BACKUP,
				};
				return true;
			}
		}
	}
	return false;
}

/* The handle of an advertised NIC of the peer. */
static void rail_handle(struct connector_rail *rail, const struct connector *c)
{
	struct handle *h = &rail->handle;

	*h = c->handle;
	if (!rail->nic) /* the handle has more of its HARP ports */
		return;
	h->has_v4 = h->has_v6 = false;
	h->harp_port = h->kernel_port_v4 = h->kernel_port_v6 = 0;
	memset(h->ports, 0, sizeof(h->ports));
	for (unsigned i = 0; i < c->peer_rails.count; i++) {
		const struct rail_entry *entry = &c->peer_rails.entry[i];

		if (entry->nic != rail->nic)
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

static void rail_lanes(struct connector *c, unsigned rail, bool harp, unsigned count)
{
	unsigned most = c->planned < c->taken ? c->planned : c->taken;

	for (unsigned i = 0; i < count && c->lane_count < most; i++) {
		c->lanes[c->lane_count] = (struct connector_lane){
			.index = (uint8_t)c->lane_count,
			.rail = (uint8_t)rail,
			.harp = harp,
			.backoff_ns = CONNECTOR_BACKOFF_NS_MIN,
		};
		c->lane_count++;
	}
}

static bool rail_has(const struct connector_rail *rail, bool harp)
{
	struct candidates candidates;

	candidates_list(&candidates, rail->dev, harp ? rail->engines : NULL, &rail->handle);
	return candidates.count > 0;
}

static void rail_plan(struct connector *c, unsigned number)
{
	const struct connector_rail *rail = &c->rails[number];
	enum plugin_path path = plugin_config()->path;
	unsigned harp = 0, kernel = 0;

	if (rail->engines && rail_has(rail, true))
		harp = plugin_config()->lanes;
	if (!plugin_path_is_harp(path) && !plugin_device(rail->dev)->netns && rail_has(rail, false))
		kernel = device_kernel_lanes(plugin_device(rail->dev));
	if (!number) { /* the first lane has index 0 */
		rail_lanes(c, number, c->first_harp, 1);
		harp -= harp && c->first_harp;
		kernel -= kernel && !c->first_harp;
	}
	rail_lanes(c, number, true, harp);
	rail_lanes(c, number, false, kernel);
}

static bool rail_is_ours(const struct connector_rail *rail)
{
	struct harp_host_route route;
	const struct harp_addr *addr = rail->handle.has_v4 ? &rail->handle.v4 : &rail->handle.v6;

	return !harp_addr_is_link_local(addr) && !harp_host_route(addr, &route) &&
	       route.ifindex == plugin_device(rail->dev)->ifindex;
}

void connector_plan(struct connector *c)
{
	int devs[RAIL_PAIRS_MAX];
	unsigned dev_count = rails_devices(c->dev, devs);

	c->rails[0].dev = c->dev;
	c->rail_count = 1;
	while (c->rail_count < rails_allowed() && rails_add(c, devs, dev_count))
		;
	for (unsigned i = 0; i < c->rail_count; i++) {
		struct connector_rail *rail = &c->rails[i];

		rail->engines = interface_engines(rail->dev, NULL, 0);
		rail_handle(rail, c);
		rail->bound = i || rail_is_ours(rail);
		rail_plan(c, i);
	}
}
