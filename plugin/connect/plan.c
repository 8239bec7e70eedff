/* SPDX-License-Identifier: Apache-2.0 */
/* plan.c - plans the lanes of a comm: pairs of NICs, and kinds. */
#include "connect/connector.h"
#include "device/device.h"
#include "process/config.h"

/*
 * Each rail gets the configured numbers of HARP lanes and kernel lanes, by their index in the comm;
 * the first lane is one of them. The plan is made once, after the first lane's CHALLENGE has
 * advertised the peer's NICs.
 */

/* Does a route lead from an own device to a NIC of the peer? */
static bool rail_reaches(int dev, const struct nic_endpoints *nic)
{
	const struct device *device = plugin_device(dev);
	struct engine_set *engines = interface_engines(dev, NULL, 0);
	struct harp_host_route route;
	struct harp_addr source;

	for (unsigned family = 0; family < NIC_FAMILIES; family++) {
		const struct harp_addr *addr = &nic->addr[family];

		if (addr_is_zero(addr) || !device_address(device, family))
			continue;
		if (engines && engine_reaches(engines->engines[0], addr, &source, NULL, 0))
			return true;
		if (!device->netns && !harp_host_route(addr, &route) && !route.is_local &&
		    route.ifindex == device->ifindex)
			return true;
	}
	return false;
}

static bool rails_use(const struct connector *c, int dev, const struct nic_endpoints *nic,
		      bool both)
{
	for (unsigned i = 0; i < c->rail_count; i++) {
		bool has_dev = c->rails[i].dev == dev, has_nic = c->rails[i].nic == nic;

		if (both ? has_dev && has_nic : has_dev || has_nic)
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
			for (unsigned i = 0; i < c->nic_count; i++) {
				const struct nic_endpoints *nic = &c->nics[i];

				if (rails_use(c, devs[d], nic, shared) ||
				    !rail_reaches(devs[d], nic))
					continue;
				c->rails[c->rail_count++] = (struct connector_rail){
					.dev = devs[d],
					.nic = nic,
					.backup = plugin_config()->rails == RAILS_BACKUP,
				};
				return true;
			}
		}
	}
	return false;
}

static void rail_lanes(struct connector *c, unsigned rail, bool harp, unsigned count)
{
	for (unsigned i = 0; i < count && c->lane_count < COMM_LANES_MAX; i++) {
		c->lanes[c->lane_count] = (struct connector_lane){
			.index = (uint8_t)c->lane_count,
			.rail = (uint8_t)rail,
			.harp = harp,
			.backoff_ns = CONNECTOR_BACKOFF_NS_MIN,
		};
		c->lane_count++;
	}
}

static bool rail_has_candidates(const struct connector *c, const struct connector_rail *rail,
				bool harp)
{
	struct candidates candidates;

	candidates_list(&candidates, rail->dev, harp ? rail->engines : NULL, rail->nic,
			c->handle.host_id);
	return candidates.count > 0;
}

static void rail_plan(struct connector *c, unsigned number)
{
	const struct connector_rail *rail = &c->rails[number];
	enum plugin_path path = plugin_config()->path;
	unsigned harp = 0, kernel = 0;

	if (rail->engines && rail_has_candidates(c, rail, true))
		harp = plugin_config()->lanes;
	if (!plugin_path_is_harp(path) && !plugin_device(rail->dev)->netns &&
	    rail_has_candidates(c, rail, false))
		kernel = device_kernel_lanes(plugin_device(rail->dev));
	if (!number) { /* the first lane has index 0 */
		rail_lanes(c, number, c->first_harp, 1);
		harp -= harp && c->first_harp;
		kernel -= kernel && !c->first_harp;
	}
	rail_lanes(c, number, true, harp);
	rail_lanes(c, number, false, kernel);
}

/* Do packets to the rail's peer leave by the rail's own NIC? */
static bool rail_is_routed(const struct connector_rail *rail)
{
	struct harp_host_route route;
	const struct harp_addr *addr = nic_addr(rail->nic);

	return !harp_addr_is_link_local(addr) && !harp_host_route(addr, &route) &&
	       route.ifindex == plugin_device(rail->dev)->ifindex;
}

void connector_plan(struct connector *c)
{
	int devs[RAILS_MAX];
	unsigned dev_count = rails_devices(c->dev, devs);

	c->rails[0] = (struct connector_rail){ .dev = c->dev, .nic = &c->nics[0] };
	c->rail_count = 1;
	while (c->rail_count < rails_allowed() && rails_add(c, devs, dev_count))
		;
	for (unsigned i = 0; i < c->rail_count; i++) {
		struct connector_rail *rail = &c->rails[i];

		rail->engines = interface_engines(rail->dev, NULL, 0);
		rail->bound = i || rail_is_routed(rail);
		rail_plan(c, i);
	}
}
