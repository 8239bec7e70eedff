/* SPDX-License-Identifier: Apache-2.0 */
/* candidates.c - candidate lanes to a peer, by its handle, our engines and the host's routes. */
#include "connect/candidates.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "connect/ctx.h"
#include "wire/queue_placement.h"
#include "process/log.h"
#include "process/config.h"
#include "device/daemon.h"
#include "device/device.h"
#include "wire/blake2s.h"

/* Adds a HARP lane from that instance to that port, unless it is listed from `first` on. */
static void candidates_add_pair(struct candidates *c, unsigned first, const struct candidate *base,
				struct engine *engine, uint16_t port, uint16_t queue)
{
	struct candidate *candidate = &c->list[c->count];

	if (!port || c->count - first == CANDIDATE_PAIRS_MAX)
		return;
	for (unsigned i = first; i < c->count; i++)
		if (c->list[i].engine == engine && c->list[i].remote.port == port)
			return;
	*candidate = *base;
	candidate->engine = engine;
	candidate->remote.port = port;
	candidate->queue = queue;
	c->count++;
}

/*
 * HARP lanes to the peer's stack, or to its kernel if it has none.
 *
 * Pairs of own instances and the peer's ports, best first: `chosen` and the peer's first port; each
 * other port of the peer from the instance with the same queue number, because many NICs with an
 * unknown hash keep the queue; the other instances to the first port.
 */
static void candidates_add_harp(struct candidates *c, const struct device *device,
				const struct engine_set *engines, struct engine *chosen,
				const struct nic_endpoints *nic, enum nic_family family)
{
	const struct harp_addr *addr = &nic->addr[family];
	uint16_t port = nic->harp[0].port ? nic->harp[0].port : nic->kernel_port[family];
	struct candidate base = {
		.harp = true,
		.remote = { .addr = *addr, .scope_id = device_scope_id(device, addr) },
		.placement = nic->placement,
		.queues = nic->queues,
	};
	unsigned first = c->count, engine_count = engines->count;
	struct placement_end end;

	if (!engine_reaches(chosen, addr, &base.local.addr, c->why_kernel, sizeof(c->why_kernel)))
		return;
	/* The queue of packets back is computed from their destination address. */
	engine_placement(chosen, &end);
	if (addr_is_zero(&base.local.addr) && end.kind == PLACEMENT_TOEPLITZ)
		base.local.addr = *device_address(device, family);
	base.local.scope_id = device_scope_id(device, &base.local.addr);
	candidates_add_pair(c, first, &base, chosen, port, nic->harp[0].queue);
	for (unsigned i = 1; i < NIC_PORTS_MAX && nic->harp[i].port; i++) {
		struct engine *from = chosen;

		for (unsigned e = 0; e < engine_count; e++) {
			engine_placement(engines->engines[e], &end);
			if (end.queue == nic->harp[i].queue)
				from = engines->engines[e];
		}
		candidates_add_pair(c, first, &base, from, nic->harp[i].port, nic->harp[i].queue);
	}
	for (unsigned e = 0; e < engine_count; e++)
		candidates_add_pair(c, first, &base, engines->engines[e], port, nic->harp[0].queue);
	if (c->count > first)
		c->pairs = c->count - first;
}

int host_id_read(uint64_t netns, uint8_t out[HANDLE_HOST_ID_BYTES])
{
	struct blake2s state;
	char boot_id[64];
	ssize_t n;
	int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return -errno;
	n = read(fd, boot_id, sizeof(boot_id));
	close(fd);
	if (!netns)
		netns = plugin_netns();
	if (n <= 0 || !netns)
		return -EIO;
	blake2s_init(&state, HANDLE_HOST_ID_BYTES, NULL, 0);
	blake2s_update(&state, boot_id, (size_t)n);
	blake2s_update(&state, &netns, sizeof(netns));
	blake2s_final(&state, out);
	return 0;
}

static bool candidates_on_this_host(const struct device *device,
				    const uint8_t peer_id[HANDLE_HOST_ID_BYTES])
{
	uint8_t host_id[HANDLE_HOST_ID_BYTES];

	return !host_id_read(device->netns, host_id) && !memcmp(host_id, peer_id, sizeof(host_id));
}

static bool candidates_have_family(const struct device *device, const struct nic_endpoints *nic,
				   enum nic_family family)
{
	return !addr_is_zero(&nic->addr[family]) && device_address(device, family);
}

/* HARP lanes to a peer on another host, from an engine that is chosen here. */
static void candidates_find_harp(struct candidates *c, const struct device *device,
				 struct engine_set *engines, const struct nic_endpoints *nic)
{
	struct engine *chosen = engine_set_choose(engines);

	for (unsigned family = 0; family < NIC_FAMILIES; family++)
		if (candidates_have_family(device, nic, family))
			candidates_add_harp(c, device, engines, chosen, nic, family);
	if (c->count)
		c->why_kernel[0] = '\0';
}

/* Kernel lanes to the peer's kernel, or to its stack if it offers nothing else and a NIC is
 * between. */
static void candidates_find_kernel(struct candidates *c, const struct device *device,
				   const struct nic_endpoints *nic)
{
	if (c->same_host && !nic->kernel_port[NIC_V4] && !nic->kernel_port[NIC_V6])
		return;
	for (unsigned family = 0; family < NIC_FAMILIES; family++) {
		const struct harp_addr *addr = &nic->addr[family];
		uint16_t port =
			nic->kernel_port[family] ? nic->kernel_port[family] : nic->harp[0].port;

		if (port && candidates_have_family(device, nic, family))
			c->list[c->count++] = (struct candidate){
				.remote = { .addr = *addr,
					    .port = port,
					    .scope_id = device_scope_id(device, addr) },
			};
	}
}

void candidates_list(struct candidates *out, int dev, struct engine_set *engines,
		     const struct nic_endpoints *nic, const uint8_t host_id[HANDLE_HOST_ID_BYTES])
{
	const struct device *device = plugin_device(dev);

	memset(out, 0, sizeof(*out));
	out->same_host = candidates_on_this_host(device, host_id);
	if (!engines)
		candidates_find_kernel(out, device, nic);
	else if (!out->same_host)
		candidates_find_harp(out, device, engines, nic);
}

static void candidates_warn_none(const struct candidates *c, const struct device *device)
{
	const char *remedy = "check NCCL_SOCKET_IFNAME and NCCL_SOCKET_FAMILY on both hosts";

	if (device->dpdk)
		remedy = "kernel sockets cannot use this DPDK port: check its ip=, gw= and route=";
	else if (plugin_path_is_harp(plugin_config()->path))
		remedy = "HARP_PATH allows HARP lanes only: use HARP_PATH=auto";
	else if (device->netns || c->same_host)
		remedy = "kernel sockets cannot use a NIC of another network namespace: run ranks "
			 "of one host in one namespace";
	WARN("%s: cannot reach the peer: %s; %s", device->ifname,
	     c->why_kernel[0] ? c->why_kernel
			      : "the peer and this interface have no address family in common",
	     remedy);
}

int candidates_find(struct candidates *out, int dev, const struct handle *handle)
{
	const struct device *device = plugin_device(dev);
	struct engine_set *engines;

	memset(out, 0, sizeof(*out));
	out->same_host = candidates_on_this_host(device, handle->host_id);
	engines = interface_engines(dev, out->why_kernel, sizeof(out->why_kernel));
	if (engines && out->same_host)
		snprintf(out->why_kernel, sizeof(out->why_kernel),
			 "the peer is on this host: its packets never reach a NIC");
	else if (engines)
		candidates_find_harp(out, device, engines, &handle->nic);
	if (!plugin_path_is_harp(plugin_config()->path) && !device->netns)
		candidates_find_kernel(out, device, &handle->nic);
	if (out->count)
		return 0;
	candidates_warn_none(out, device);
	return -EPROTONOSUPPORT;
}
