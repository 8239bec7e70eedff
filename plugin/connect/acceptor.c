/* SPDX-License-Identifier: Apache-2.0 */
/* acceptor.c - the listeners of a device, and its listen comms. */
#include "connect/acceptor.h"
#include "base/util.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "connect/listener.h"
#include "process/log.h"
#include "process/config.h"
#include "device/device.h"

/*
 * Theory of operation
 *
 * An acceptor has a kernel socket of each family and a listener on each engine's stack. An accepted
 * connection is pending (pending.c) until its preamble is complete. Then it becomes a comm on the
 * ready list of the listen comm that its HELLO named, or a further lane of a comm (registry.c).
 * Each listen comm uses the HARP listener of the engine with the lowest load, which spreads the
 * comms of a process over its engines.
 *
 * Pending connections of kernel listeners belong to the control thread, those of a HARP listener to
 * its engine. So connections are accepted even if no thread calls plugin_accept(). It polls
 * nevertheless, because that is faster than waking a thread.
 */

struct acceptor {
	int dev;
	struct kernel_listener kernel[NIC_FAMILIES];
	struct pending_set kernel_pending; /* owned by the control thread */
	unsigned listener_count;
	struct stack_listener *listeners[ENGINES_MAX]; /* by engine index */
	/* NULL: no HARP listeners yet; never changes again. Writer: under ctx_lock, release.
	 * Reader: acquire */
	_Atomic(struct engine_set *) engines;
};

/* By device. Writer: under ctx_lock, or the last finalize; release. Reader: any thread, acquire */
static _Atomic(struct acceptor *) acceptors[PLUGIN_DEVICES_MAX];

static struct acceptor *acceptor_of(int dev)
{
	return atomic_load_explicit(&acceptors[dev], memory_order_acquire);
}

/* ---- listeners ------------------------------------------------------------------------------ */

static void acceptor_close_run(void *arg)
{
	struct acceptor *acceptor = arg;

	for (unsigned family = 0; family < NIC_FAMILIES; family++)
		kernel_listener_close(&acceptor->kernel[family]);
	pending_set_close(&acceptor->kernel_pending);
}

static int acceptor_open_kernel(struct acceptor *acceptor)
{
	const struct device *device = plugin_device(acceptor->dev);
	char text[HARP_ADDR_TEXT_MAX];

	for (unsigned family = 0; family < NIC_FAMILIES; family++) {
		const struct harp_addr *addr = device_address(device, family);
		int rc = addr ? kernel_listener_listen(&acceptor->kernel[family], addr,
						       device_scope_id(device, addr),
						       &acceptor->kernel_pending)
			      : 0;

		if (!rc)
			continue;
		WARN("%s: cannot listen on %s: %s%s", device->ifname, harp_addr_format(addr, text),
		     lane_error_text(rc),
		     lane_error_remedy(rc, "; is the address still the interface's?"));
		return rc;
	}
	return 0;
}

static int acceptor_new(int dev)
{
	struct acceptor *acceptor = calloc(1, sizeof(*acceptor));
	int rc = 0;

	if (!acceptor) {
		WARN("%s: cannot listen: out of memory", plugin_device(dev)->ifname);
		return -ENOMEM;
	}
	acceptor->dev = dev;
	acceptor->kernel[NIC_V4].fd = acceptor->kernel[NIC_V6].fd = -1;
	pending_set_init(&acceptor->kernel_pending, dev, NULL);
	/* The addresses of a NIC in another network namespace cannot be bound. */
	if (!plugin_path_is_harp(plugin_config()->path) && !plugin_device(dev)->netns)
		rc = acceptor_open_kernel(acceptor);
	if (rc) {
		control_call(acceptor_close_run, acceptor);
		free(acceptor);
		return rc;
	}
	atomic_store_explicit(&acceptors[dev], acceptor, memory_order_release);
	return 0;
}

int acceptor_open(int dev, struct engine_set *engines)
{
	int rc = acceptor_of(dev) ? 0 : acceptor_new(dev);
	struct acceptor *acceptor = acceptor_of(dev);

	if (rc || !engines)
		return rc;
	for (unsigned i = acceptor->listener_count; !rc && i < engines->count; i++) {
		rc = stack_listener_open(&acceptor->listeners[i], dev, engines->engines[i]);
		acceptor->listener_count += !rc;
	}
	if (rc)
		WARN("%s: HARP cannot listen: %s; are its ports (61000-65535) in use?",
		     plugin_device(dev)->ifname, lane_error_text(rc));
	else
		atomic_store_explicit(&acceptor->engines, engines, memory_order_release);
	return rc;
}

void acceptors_close(void)
{
	/* Nothing is freed before all listeners are closed: a pending connection of one reads the
	 * ports of the others. */
	for (unsigned dev = 0; dev < PLUGIN_DEVICES_MAX; dev++) {
		struct acceptor *acceptor = acceptors[dev];

		for (unsigned i = 0; acceptor && i < acceptor->listener_count; i++)
			stack_listener_close(acceptor->listeners[i]);
		if (acceptor)
			control_call(acceptor_close_run, acceptor);
	}
	for (unsigned dev = 0; dev < PLUGIN_DEVICES_MAX; dev++) {
		free(acceptors[dev]);
		acceptors[dev] = NULL;
	}
}

/* ---- what is sent to peers ------------------------------------------------------------------ */

/* Its addresses and kernel ports, and as many listeners as fit: `first`, then lowest queues first,
 * as most NICs deliver packets to the first queue. first NULL: kernel ports only. */
static void acceptor_describe(const struct acceptor *acceptor, const struct stack_listener *first,
			      struct nic_endpoints *out)
{
	const struct device *device = plugin_device(acceptor->dev);
	unsigned count = 0;

	*out = (struct nic_endpoints){ 0 };
	for (unsigned family = 0; family < NIC_FAMILIES; family++) {
		const struct harp_addr *addr = device_address(device, family);

		if (addr)
			out->addr[family] = *addr;
		out->kernel_port[family] = acceptor->kernel[family].local.port;
	}
	if (!first)
		return;
	out->placement = (uint8_t)first->placement.kind;
	out->queues = first->placement.queues;
	out->harp[count].port = first->port;
	out->harp[count++].queue = first->placement.queue;
	for (unsigned i = 0; i < acceptor->listener_count && count < NIC_PORTS_MAX; i++) {
		const struct stack_listener *listener = acceptor->listeners[i];

		if (listener == first)
			continue;
		out->harp[count].port = listener->port;
		out->harp[count++].queue = listener->placement.queue;
	}
}

void acceptor_endpoints(const struct listen_comm *listen, struct nic_endpoints *out)
{
	acceptor_describe(acceptor_of(listen->dev), listen->listener, out);
}

/* The listener on a lightly loaded engine; NULL: there is none. */
static struct stack_listener *acceptor_choose(const struct acceptor *acceptor)
{
	struct engine_set *engines = atomic_load_explicit(&acceptor->engines, memory_order_acquire);

	return engines ? acceptor->listeners[engine_set_choose(engines)->index] : NULL;
}

uint8_t acceptor_nics(int dev, struct nic_endpoints out[PREAMBLE_NICS_MAX])
{
	int devs[RAILS_MAX];
	unsigned dev_count = rails_devices(dev, devs);
	uint8_t count = 0;

	for (unsigned i = 1; i < dev_count; i++) {
		const struct acceptor *acceptor = acceptor_of(devs[i]);

		if (acceptor)
			acceptor_describe(acceptor, acceptor_choose(acceptor), &out[count++]);
	}
	return count;
}

/* ---- listen comms --------------------------------------------------------------------------- */

void acceptor_add(struct listen_comm *listen)
{
	listen->listener = acceptor_choose(acceptor_of(listen->dev));
	if (listen->listener)
		listen->listener->engine->load++; /* of the comm to come */
	registry_listen(listen);
}

void acceptor_remove(struct listen_comm *listen)
{
	if (listen->listener)
		listen->listener->engine->load--;
	registry_unlisten(listen);
}

int acceptor_accept(struct listen_comm *listen, struct comm **out)
{
	int rc = registry_accept(listen, out);

	if (rc || *out)
		return rc;
	if (listen->listener)
		poller_poll(&listen->listener->engine->poller);
	return registry_accept(listen, out);
}
