/* SPDX-License-Identifier: Apache-2.0 */
/* info.c - properties of a port, and its driver's counters. */
#include <errno.h>
#include <rte_version.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dpdk/port.h"

void port_info(const struct harp_dpdk_port *harp_port, struct harp_instance_port *out)
{
	const struct dpdk_port *port = port_of(harp_port);
	struct rte_eth_link link = { 0 };

	*out = (struct harp_instance_port){
		.huge_pages = eal_huge_pages(),
		.numa_node = rte_eth_dev_socket_id(port->id),
		.mtu_bytes = port->mtu_bytes,
		.queues = port->queues,
		.driver_copies = (port->traits & DRIVER_COPIES) != 0,
	};
	snprintf(out->device, sizeof(out->device), "%s", port->name);
	snprintf(out->driver, sizeof(out->driver), "%s", port->info.driver_name);
	snprintf(out->dpdk, sizeof(out->dpdk), "%s", rte_version());
	if (strchr(port->name, ':'))
		snprintf(out->pci, sizeof(out->pci), "%.31s", port->name);
	memcpy(out->mac, port->mac.addr_bytes, sizeof(out->mac));
	if (__atomic_load_n(&port->started, __ATOMIC_RELAXED) &&
	    rte_eth_link_get_nowait(port->id, &link) == 0) {
		out->up = link.link_status == RTE_ETH_LINK_UP;
		out->speed_mbps = link.link_speed == UINT32_MAX ? 0 : link.link_speed;
	}
}

static int port_xstats_get(const struct dpdk_port *port, char (*names)[64], uint64_t *values,
			   unsigned max)
{
	int count = rte_eth_xstats_get_names(port->id, NULL, 0), fill;
	struct rte_eth_xstat_name *all_names;
	struct rte_eth_xstat *all;

	if (count <= 0 || max == 0)
		return count;
	all_names = calloc((size_t)count, sizeof(*all_names));
	all = calloc((size_t)count, sizeof(*all));
	fill = -ENOMEM;
	if (all_names && all &&
	    rte_eth_xstats_get_names(port->id, all_names, (unsigned)count) == count)
		fill = rte_eth_xstats_get(port->id, all, (unsigned)count);
	for (int i = 0; i < fill && i < count && (unsigned)i < max; i++) {
		if (all[i].id >= (uint64_t)count)
			continue;
		snprintf(names[i], 64, "%s", all_names[all[i].id].name);
		values[i] = all[i].value;
	}
	free(all_names);
	free(all);
	return fill < 0 ? fill : count;
}

int port_xstats(const struct harp_dpdk_port *harp_port, char (*names)[64], uint64_t *values,
		unsigned max)
{
	int count;

	/* So that no thread stops or restarts the device meanwhile. */
	port_lock_all();
	count = port_xstats_get(port_of(harp_port), names, values, max);
	port_unlock_all();
	return count;
}
