/* SPDX-License-Identifier: Apache-2.0 */
/* rails.c - the NICs of this process that a comm may use, and the plan of its lanes. */
#include "connect/ctx.h"

#include <string.h>

#include "connect/connector.h"
#include "device/device.h"
#include "process/config.h"

/* The number of rails that HARP_RAILS allows. */
static unsigned rails_allowed(void)
{
	switch (plugin_config()->rails) {
	case RAILS_OWN:
		return 1;
	case RAILS_BACKUP:
		return 2;
	case RAILS_ALL:
		break;
	}
	return RAILS_MAX;
}

/* The number of common leading components of two PCI paths: shared bridges. */
static unsigned pci_shared(const char *a, const char *b)
{
	unsigned shared = 0;

	for (size_t i = 0; a[i] && a[i] == b[i]; i++)
		shared += a[i] == '/';
	return shared;
}

/* How well a device fits dev; larger is better. */
static unsigned rails_score(const struct device *own, const struct device *device)
{
	unsigned score = pci_shared(own->pci_path, device->pci_path);

	if (score > 15)
		score = 15;
	if (own->numa_node == device->numa_node)
		score += 16;
	if (device->speed_mbps >= own->speed_mbps)
		score += 32;
	/* Prefer NICs without the default route. */
	if (!device->has_default_route)
		score += 64;
	return score;
}

unsigned rails_devices(int dev, int out[RAILS_MAX])
{
	const struct device *own = plugin_device(dev);
	unsigned count = 0, allowed = rails_allowed();
	bool taken[PLUGIN_DEVICES_MAX] = { false };

	out[count++] = dev;
	taken[dev] = true;
	while (count < allowed) {
		unsigned best_score = 0;
		int best = -1;

		for (int i = 0; i < plugin_device_count(); i++) {
			const struct device *device = plugin_device(i);
			unsigned score = rails_score(own, device);

			if (taken[i] || !strcmp(device->ifname, "lo") ||
			    (best >= 0 && score <= best_score))
				continue;
			best = i;
			best_score = score;
		}
		if (best < 0)
			break;
		taken[best] = true;
		out[count++] = best;
	}
	return count;
}

bool rails_are_multi_lane(int dev, bool harp)
{
	enum plugin_path path = plugin_config()->path;
	int devs[RAILS_MAX];
	unsigned count = rails_devices(dev, devs), lanes = 0;

	for (unsigned i = 0; i < count; i++) {
		if (harp && path != PATH_KERNEL)
			lanes += plugin_config()->lanes;
		if (!plugin_path_is_harp(path) && !plugin_device(devs[i])->netns)
			lanes += device_kernel_lanes(plugin_device(devs[i]));
	}
	return lanes > 1;
}

/* ---- the plan -------------------------------------------------------------------------------- */

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

		if (!addr_is_set(addr) || !device_address(device, family))
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
