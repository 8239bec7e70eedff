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
	struct kernel_listener v4, v6;
	struct pending_set kernel_pending; /* owned by the control thread */
	struct work watch_work, close_work;
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

static struct engine_set *acceptor_engines(const struct acceptor *acceptor)
{
	return atomic_load_explicit(&acceptor->engines, memory_order_acquire);
}

/* ---- listeners ------------------------------------------------------------------------------ */

static void acceptor_watch_run(struct work *work, uint64_t now_ns)
{
	struct acceptor *acceptor = container_of(work, struct acceptor, watch_work);
	int rc = kernel_listener_watch(&acceptor->v4);

	(void)now_ns;
	if (!rc)
		rc = kernel_listener_watch(&acceptor->v6);
	if (rc)
		WARN("%s: cannot accept connections: %s%s", plugin_device(acceptor->dev)->ifname,
		     lane_error_text(rc), lane_error_remedy(rc, ""));
}

static void acceptor_close_run(struct work *work, uint64_t now_ns)
{
	struct acceptor *acceptor = container_of(work, struct acceptor, close_work);

	(void)now_ns;
	kernel_listener_close(&acceptor->v4);
	kernel_listener_close(&acceptor->v6);
	pending_set_close(&acceptor->kernel_pending);
}

static int acceptor_open_kernel(struct acceptor *acceptor)
{
	const struct device *device = plugin_device(acceptor->dev);
	const struct harp_addr *addr = &device->addr_v4;
	char text[HARP_ADDR_TEXT_MAX];
	int rc = 0;

	if (device->has_v4)
		rc = kernel_listener_listen(&acceptor->v4, addr, 0, &acceptor->kernel_pending);
	if (!rc && device->has_v6) {
		addr = &device->addr_v6;
		rc = kernel_listener_listen(&acceptor->v6, addr, device->scope_id,
					    &acceptor->kernel_pending);
	}
	if (!rc)
		control_post(&acceptor->watch_work);
	else
		WARN("%s: cannot listen on %s: %s%s", device->ifname, harp_addr_format(addr, text),
		     lane_error_text(rc),
		     lane_error_remedy(rc, "; is the address still the interface's?"));
	return rc;
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
	acceptor->v4.fd = acceptor->v6.fd = -1;
	acceptor->watch_work.run = acceptor_watch_run;
	acceptor->close_work.run = acceptor_close_run;
	pending_set_init(&acceptor->kernel_pending, dev, NULL);
	/* The addresses of a NIC in another network namespace cannot be bound. */
	if (!plugin_path_is_harp(plugin_config()->path) && !plugin_device(dev)->netns)
		rc = acceptor_open_kernel(acceptor);
	if (rc) { /* nothing has been accepted */
		kernel_listener_close(&acceptor->v4);
		kernel_listener_close(&acceptor->v6);
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
	for (unsigned i = acceptor->listener_count; !rc && i < engine_set_count(engines); i++) {
		rc = stack_listener_open(&acceptor->listeners[i], dev, engine_set_at(engines, i));
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
			control_call(&acceptor->close_work);
	}
	for (unsigned dev = 0; dev < PLUGIN_DEVICES_MAX; dev++) {
		free(acceptors[dev]);
		acceptors[dev] = NULL;
	}
}

/* ---- what is sent to peers ------------------------------------------------------------------ */

/* As many of the other listeners as fit, lowest queues first: most NICs deliver packets to the
 * first queue. */
static void acceptor_more_ports(const struct acceptor *acceptor,
				const struct stack_listener *listener, struct handle *handle)
{
	unsigned count = 0;

	for (unsigned i = 0; i < acceptor->listener_count && count < HANDLE_PORTS_MAX; i++) {
		if (acceptor->listeners[i] == listener)
			continue;
		handle->ports[count].port = acceptor->listeners[i]->port;
		handle->ports[count++].queue = acceptor->listeners[i]->placement.queue;
	}
}

void acceptor_endpoints(const struct listen_comm *listen, struct handle *handle)
{
	const struct acceptor *acceptor = acceptor_of(listen->dev);
	const struct device *device = plugin_device(listen->dev);

	handle->has_v4 = device->has_v4;
	handle->has_v6 = device->has_v6;
	handle->v4 = device->addr_v4;
	handle->v6 = device->addr_v6;
	handle->scope_id = device->scope_id;
	if (listen->listener) {
		handle->harp_port = listen->listener->port;
		handle->harp_placement = (uint8_t)listen->listener->placement.kind;
		handle->harp_queues = listen->listener->placement.queues;
		handle->harp_queue = listen->listener->placement.queue;
		acceptor_more_ports(acceptor, listen->listener, handle);
	}
	handle->kernel_port_v4 = acceptor->v4.local.port;
	handle->kernel_port_v6 = acceptor->v6.local.port;
}

static void acceptor_entry(const struct acceptor *acceptor, uint8_t nic,
			   const struct harp_addr *addr, uint16_t kernel_port,
			   const struct stack_listener *listener, struct rails *rails)
{
	struct rail_entry *entry = &rails->entry[rails->count];

	if (rails->count == RAIL_ENTRIES_MAX || (!kernel_port && !listener))
		return;
	*entry = (struct rail_entry){
		.addr = *addr,
		.nic = nic,
		.kernel_port = kernel_port,
		.speed_mbps = plugin_device(acceptor->dev)->speed_mbps,
	};
	if (listener) {
		entry->harp_port = listener->port;
		entry->placement = (uint8_t)listener->placement.kind;
		entry->queues = listener->placement.queues;
		entry->queue = listener->placement.queue;
	}
	rails->count++;
}

/* The device's endpoint of a family, on a lightly loaded engine. */
static void acceptor_entries(const struct acceptor *acceptor, uint8_t nic, struct rails *rails)
{
	const struct device *device = plugin_device(acceptor->dev);
	const struct stack_listener *listener = NULL;
	struct engine_set *engines = acceptor_engines(acceptor);

	if (engines)
		listener = acceptor->listeners[engine_index(engine_set_choose(engines))];
	if (device->has_v4)
		acceptor_entry(acceptor, nic, &device->addr_v4, acceptor->v4.local.port, listener,
			       rails);
	if (device->has_v6)
		acceptor_entry(acceptor, nic, &device->addr_v6, acceptor->v6.local.port, listener,
			       rails);
}

size_t acceptor_rails(int dev, uint8_t out[RAILS_BYTES_MAX])
{
	int devs[RAIL_PAIRS_MAX];
	unsigned count = rails_devices(dev, devs);
	struct rails rails = { 0 };
	uint8_t nic = 0;

	for (unsigned i = 0; i < count; i++) {
		const struct acceptor *other = acceptor_of(devs[i]);

		if (other)
			acceptor_entries(other, nic++, &rails);
	}
	return rails_encode(&rails, out);
}

/* ---- listen comms --------------------------------------------------------------------------- */

void acceptor_add(struct listen_comm *listen)
{
	const struct acceptor *acceptor = acceptor_of(listen->dev);
	struct engine_set *engines = acceptor_engines(acceptor);

	if (engines) {
		struct engine *engine = engine_set_choose(engines);

		listen->listener = acceptor->listeners[engine_index(engine)];
		engine_load(engine, 1); /* of the comm to come */
	}
	registry_listen(listen);
}

void acceptor_remove(struct listen_comm *listen)
{
	if (listen->listener)
		engine_load(listen->listener->engine, -1);
	registry_unlisten(listen);
}

int acceptor_accept(struct listen_comm *listen, struct comm **out)
{
	int rc = registry_accept(listen, out);

	if (rc || *out)
		return rc;
	if (listen->listener)
		poller_poll(engine_poller(listen->listener->engine));
	return registry_accept(listen, out);
}
