/* SPDX-License-Identifier: Apache-2.0 */
/* candidates.c - candidate lanes to a peer, by its handle, our engines and the host's routes. */
#include "connect/candidates.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "connect/ctx.h"
#include "wire/queue_placement.h"
#include "process/log.h"
#include "process/config.h"
#include "device/device.h"
#include "wire/blake2s.h"

/* Adds a HARP lane from that instance to that port, unless it is listed from `first` on. */
static void candidates_add_way(struct candidates *c, unsigned first, const struct candidate *base,
			       struct engine *engine, struct handle_port to)
{
	struct candidate *candidate = &c->list[c->count];

	if (!to.port || c->count - first == CANDIDATE_WAYS_MAX)
		return;
	for (unsigned i = first; i < c->count; i++)
		if (c->list[i].engine == engine && c->list[i].remote.port == to.port)
			return;
	*candidate = *base;
	candidate->engine = engine;
	candidate->remote.port = to.port;
	candidate->peer_queue = to.queue;
	c->count++;
}

/*
 * HARP lanes to the peer's stack, or to its kernel if it has none. own: our address of the family.
 *
 * Pairs of own instances and the peer's ports, best first: the pair chosen for this comm; each
 * other port of the peer from the instance with the same queue number, because many NICs with an
 * unknown hash keep the queue; the other instances to the chosen port.
 */
static void candidates_add_harp(struct candidates *c, const struct device *device,
				const struct engine_set *engines, const struct handle *h,
				const struct harp_addr *own, const struct harp_addr *addr,
				uint16_t kernel_port)
{
	const struct handle_port chosen = { h->harp_port ? h->harp_port : kernel_port,
					    h->harp_queue };
	struct candidate base = {
		.harp = true,
		.remote = { .addr = *addr, .scope_id = device_scope_id(device, addr) },
		.peer_placement = h->harp_placement,
		.peer_queues = h->harp_queues,
		.harp_port = h->harp_port != 0,
	};
	unsigned first = c->count, engine_count = engine_set_count(engines);
	static const struct harp_addr zero;
	struct placement_end end;

	if (!engine_reaches(c->engine, addr, &base.local.addr, c->why_kernel,
			    sizeof(c->why_kernel)))
		return;
	/* The queue of packets back is computed from their destination address. */
	engine_placement(c->engine, &end);
	if (!memcmp(&base.local.addr, &zero, sizeof(zero)) && end.kind == PLACEMENT_TOEPLITZ)
		base.local.addr = *own;
	base.local.scope_id = device_scope_id(device, &base.local.addr);
	candidates_add_way(c, first, &base, c->engine, chosen);
	for (unsigned i = 0; h->harp_port && i < HANDLE_PORTS_MAX && h->ports[i].port; i++) {
		struct engine *from = c->engine;

		for (unsigned e = 0; e < engine_count; e++) {
			engine_placement(engine_set_at(engines, e), &end);
			if (end.queue == h->ports[i].queue)
				from = engine_set_at(engines, e);
		}
		candidates_add_way(c, first, &base, from, h->ports[i]);
	}
	for (unsigned e = 0; e < engine_count; e++)
		candidates_add_way(c, first, &base, engine_set_at(engines, e), chosen);
	if (c->count > first)
		c->ways = c->count - first;
}

int host_id_read(uint64_t netns_ino, uint8_t out[HANDLE_HOST_ID_BYTES])
{
	struct blake2s state;
	struct stat netns;
	char boot_id[64];
	ssize_t n;
	int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return -errno;
	n = read(fd, boot_id, sizeof(boot_id));
	close(fd);
	if (n <= 0)
		return -EIO;
	/* thread-self: /proc/self is the process's first thread. */
	if (stat("/proc/thread-self/ns/net", &netns))
		return -errno;
	if (netns_ino)
		netns.st_ino = netns_ino;
	blake2s_init(&state, HANDLE_HOST_ID_BYTES, NULL, 0);
	blake2s_update(&state, boot_id, (size_t)n);
	blake2s_update(&state, &netns.st_dev, sizeof(netns.st_dev));
	blake2s_update(&state, &netns.st_ino, sizeof(netns.st_ino));
	blake2s_final(&state, out);
	return 0;
}

static bool candidates_on_this_host(struct candidates *c, const struct device *device,
				    const struct handle *h)
{
	uint8_t host_id[HANDLE_HOST_ID_BYTES];

	c->same_host = !host_id_read(device->netns, host_id) &&
		       !memcmp(host_id, h->host_id, sizeof(host_id));
	if (c->same_host)
		snprintf(c->why_kernel, sizeof(c->why_kernel),
			 "the peer is on this host: its packets never reach a NIC");
	return c->same_host;
}

/* HARP lanes of an engine, which is chosen here. */
static void candidates_find_harp(struct candidates *c, const struct device *device,
				 struct engine_set *engines, const struct handle *h)
{
	c->engine = engine_set_choose(engines);
	if (candidates_on_this_host(c, device, h))
		return;
	if (h->has_v4 && device->has_v4)
		candidates_add_harp(c, device, engines, h, &device->addr_v4, &h->v4,
				    h->kernel_port_v4);
	if (h->has_v6 && device->has_v6)
		candidates_add_harp(c, device, engines, h, &device->addr_v6, &h->v6,
				    h->kernel_port_v6);
	if (c->count)
		c->why_kernel[0] = '\0';
}

static void candidates_add_kernel(struct candidates *c, const struct device *device,
				  const struct harp_addr *addr, uint16_t port)
{
	if (port)
		c->list[c->count++] = (struct candidate){
			.remote = { .addr = *addr,
				    .port = port,
				    .scope_id = device_scope_id(device, addr) },
		};
}

/* Kernel lanes to the peer's kernel, or to its stack if it offers nothing else and a NIC is
 * between. */
static void candidates_find_kernel(struct candidates *c, const struct device *device,
				   const struct handle *h)
{
	if (c->same_host && !h->kernel_port_v4 && !h->kernel_port_v6)
		return;
	if (h->has_v4 && device->has_v4)
		candidates_add_kernel(c, device, &h->v4,
				      h->kernel_port_v4 ? h->kernel_port_v4 : h->harp_port);
	if (h->has_v6 && device->has_v6)
		candidates_add_kernel(c, device, &h->v6,
				      h->kernel_port_v6 ? h->kernel_port_v6 : h->harp_port);
}

void candidates_list(struct candidates *out, int dev, struct engine_set *engines,
		     const struct handle *handle)
{
	memset(out, 0, sizeof(*out));
	if (engines) {
		candidates_find_harp(out, plugin_device(dev), engines, handle);
		return;
	}
	(void)candidates_on_this_host(out, plugin_device(dev), handle);
	candidates_find_kernel(out, plugin_device(dev), handle);
}

/* HARP lanes are the only possibility. */
static void candidates_warn_none(const struct candidates *c, const struct device *device,
				 enum plugin_path path)
{
	const char *why = c->why_kernel[0]
				  ? c->why_kernel
				  : "the peer has no address of a family that this one has";

	if (device->dpdk)
		WARN("%s: no way to the peer from this DPDK port, where the kernel's sockets have none: %s; "
		     "check the port's ip=, gw= and route=",
		     device->ifname, why);
	else
		WARN("%s: HARP_PATH=%s, but %s; use HARP_PATH=auto", device->ifname,
		     path == PATH_XDP ? "xdp" : "dpdk", why);
}

int candidates_find(struct candidates *out, int dev, const struct handle *handle)
{
	const struct device *device = plugin_device(dev);
	enum plugin_path path = plugin_config()->path;
	struct engine_set *engines;

	memset(out, 0, sizeof(*out));
	engines = interface_engines(dev, out->why_kernel, sizeof(out->why_kernel));
	if (engines)
		candidates_find_harp(out, device, engines, handle);
	if (!out->count && (plugin_path_is_harp(path) || device->dpdk)) {
		candidates_warn_none(out, device, path);
		return -EPROTONOSUPPORT;
	}
	if (!plugin_path_is_harp(path) && !device->netns)
		candidates_find_kernel(out, device, handle);
	if (!out->count && (device->netns || out->same_host)) {
		WARN("%s: no way to the peer: %s, and no kernel socket can be used: %s is a NIC of "
		     "another network namespace for %s; run ranks of one host in one namespace",
		     device->ifname, out->why_kernel, device->ifname, device->netns ? "us" : "it");
		return -EPROTONOSUPPORT;
	}
	if (!out->count) {
		WARN("%s: the peer and this interface have no address family in common; check "
		     "NCCL_SOCKET_IFNAME and NCCL_SOCKET_FAMILY on both hosts",
		     device->ifname);
		return -EPROTONOSUPPORT;
	}
	return 0;
}
