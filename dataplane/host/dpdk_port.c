/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dpdk_port.c - the DPDK ports of this process, by name, with the queues of its instances.
 *
 * Processes cannot share DPDK devices, and within a process DPDK's ports are global. So the first
 * instance opens the port with all queues, and the last one closes it.
 */
#include "host/dpdk_port.h"

#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/dpdk_events.h"
#include "host/dpdk_take.h"
#include "host/library.h"
#include "host/registry.h"

#define PORT_NUMBERS 65536u
#define PORT_FRAMES_DEFAULT 8192u
#define PORT_LINK_POLL_NS UINT64_C(100000000) /* interval of link queries */

static struct registry ports; /* of struct dpdk_port */

/* DPDK's log */

/* Log functions are called without the registry's lock: they may wait for a lock (Python's GIL)
 * whose holder is about to log. */
static struct registry sinks; /* of struct dpdk_sink */
static unsigned sink_calls;   /* log calls in progress; under the lock */

void dpdk_sink_add(struct dpdk_sink *sink)
{
	registry_enter(&sinks);
	sink->next = sinks.first;
	sinks.first = sink;
	registry_leave(&sinks);
}

void dpdk_sink_remove(struct dpdk_sink *sink)
{
	registry_enter(&sinks);
	REGISTRY_UNLINK(&sinks, sink);
	while (sink_calls) {
		registry_leave(&sinks);
		sched_yield();
		registry_enter(&sinks);
	}
	registry_leave(&sinks);
}

/* Any thread of DPDK. */
static void sink_log(void *ctx, enum harp_log_level level, const char *message)
{
	struct dpdk_sink *sink;
	harp_log_fn log;
	void *log_ctx;

	(void)ctx;
	registry_enter(&sinks);
	sink = sinks.first;
	while (sink && sink->next)
		sink = sink->next;
	if (!sink || !sink->log) {
		registry_leave(&sinks);
		return;
	}
	log = sink->log;
	log_ctx = sink->ctx;
	sink_calls++;
	registry_leave(&sinks);
	log(log_ctx, level, message);
	registry_enter(&sinks);
	sink_calls--;
	registry_leave(&sinks);
}

/* ---- opening -------------------------------------------------------------------------------- */

static struct dpdk_port *port_find(const char *name)
{
	struct dpdk_port *port = ports.first;

	while (port && strcmp(port->spec.name, name) != 0)
		port = port->next;
	return port;
}

/* Loads libharp-dpdk.so and never unloads it: DPDK's environment cannot be ended or restarted, and
 * its threads keep running. -ENOENT: a file of HARP or of DPDK is missing or invalid. */
static int port_library(struct dpdk_port *port, const char *lib_dir, const struct why *why)
{
	const void *api = NULL;
	const char *text;
	void *handle;
	int rc = library_open("dpdk", lib_dir, HARP_DPDK_VERSION, &handle, &api);

	port->api = api;
	if (!rc)
		return 0;
	if (rc != -ENOENT)
		return why_fail(why, -ENOENT,
				"libharp-dpdk.so is of another version of HARP; reinstall both");
	/* For example "librte_eal.so.23: cannot open ..." or "undefined symbol: rte_eth_fp_ops,
	 * version DPDK_23". */
	text = dlerror();
	if (strstr(text, "librte_") || strstr(text, "version DPDK_"))
		return why_fail(why, rc,
				"%s: DPDK's libraries are missing or of another version; install "
				"them (Debian: apt-get install libdpdk-dev dpdk)",
				text);
	if (!strstr(text, "No such file"))
		return why_fail(why, rc, "%s; reinstall HARP", text);
	return why_fail(why, rc,
			"libharp-dpdk.so is not installed: HARP was built without DPDK; install "
			"libdpdk and rebuild HARP (Debian: apt-get install libdpdk-dev), or set "
			"the library's folder");
}

static void port_free(struct dpdk_port *port)
{
	if (port->port)
		port->api->port_close(port->port);
	free(port->owners[0]);
	free(port->owners[1]);
	dpdk_events_destroy(port->events);
	free(port);
}

static int port_start(const struct dpdk_port *port, const struct harp_instance_options *opt,
		      const struct why *why)
{
	const struct harp_dpdk_eal_options eal = {
		.size = sizeof(eal),
		.huge_pages = opt->huge_pages,
		.memory_mib = opt->dpdk_memory_mib,
		.args = opt->dpdk_args,
		.log = sink_log,
	};

	return port->api->start(&eal, why->text, why->size);
}

static int port_rss(struct dpdk_port *port, const struct why *why)
{
	int rc;

	if (port->spec.queues == 1) {
		port->rss = (struct harp_rss){ .kind = HARP_RSS_NONE, .queues = 1 };
		return 0;
	}
	rc = port->api->port_rss(port->port, &port->rss);
	return rc ? why_fail(why, rc, "its receive queues: %s", strerror(-rc)) : 0;
}

static int port_device(struct dpdk_port *port, const struct harp_instance_options *opt,
		       const struct why *why)
{
	const struct harp_dpdk_port_options options = {
		.size = sizeof(options),
		.device = port->spec.device,
		.mtu_bytes = port->spec.mtu_bytes,
		.queues = port->spec.queues,
		.frame_count = port->spec.frame_count ? port->spec.frame_count
			       : opt->frame_count     ? opt->frame_count
						      : PORT_FRAMES_DEFAULT,
	};
	int rc = dpdk_take_check(&port->spec, why->text, why->size);

	if (!rc)
		rc = port->api->port_open(&port->port, &options, why->text, why->size);
	if (rc)
		return rc;
	port->api->port_info(port->port, &port->info);
	atomic_init(&port->up, port->info.up);
	return port_rss(port, why);
}

static int port_make(struct dpdk_port **out, const struct harp_port_spec *spec,
		     const struct harp_instance_options *opt, const struct why *why)
{
	struct dpdk_port *port = calloc(1, sizeof(*port));
	int rc = -ENOMEM;

	if (!port)
		return why_fail(why, rc, "out of memory");
	port->spec = *spec;
	for (unsigned i = 0; i < 2; i++)
		port->owners[i] = calloc(PORT_NUMBERS, sizeof(*port->owners[i]));
	port->events = dpdk_events_create();
	if (!port->owners[0] || !port->owners[1] || !port->events)
		why_fail(why, rc, "out of memory");
	else
		rc = port_library(port, opt->lib_dir, why);
	if (!rc)
		rc = port_start(port, opt, why);
	if (!rc)
		rc = port_device(port, opt, why);
	if (rc) {
		port_free(port);
		return rc;
	}
	port->next = ports.first;
	ports.first = port;
	*out = port;
	return 0;
}

/* True if both specifications are equal, except for the number of queues. */
static bool port_same(const struct harp_port_spec *open, const struct harp_port_spec *requested)
{
	struct harp_port_spec copy = *requested;

	copy.queues = open->queues;
	return memcmp(open, &copy, sizeof(copy)) == 0;
}

/* The first instance leases the port with all its queues. */
static int port_enter_leased(struct dpdk_port **out, const char *name,
			     const struct harp_instance_options *opt, const struct why *why)
{
	struct harp_port_spec spec;
	struct dpdk_lease *lease;
	struct why quiet = { 0 };
	int rc;

	*out = port_find(name);
	if (*out && !(*out)->lease)
		return why_fail(why, -EBUSY,
				"this process has opened a port of this name without harpd");
	if (*out)
		return 0;
	rc = dpdk_lease_take(&lease, name, opt, &spec, why);
	if (rc)
		return rc;
	rc = port_make(out, &spec, opt, why);
	if (rc)
		(void)dpdk_lease_return(lease, &quiet);
	else
		(*out)->lease = lease;
	return rc;
}

static int port_enter_alone(struct dpdk_port **out, const char *text,
			    const struct harp_instance_options *opt, const struct why *why)
{
	struct harp_port_spec spec;
	int rc = harp_port_spec_parse(text, &spec, why->text, why->size);

	if (rc)
		return rc;
	if (opt->dpdk_queues)
		spec.queues = opt->dpdk_queues;
	*out = port_find(spec.name);
	if (!*out)
		return port_make(out, &spec, opt, why);
	if (!port_same(&(*out)->spec, &spec))
		return why_fail(why, -EINVAL,
				"this process has opened a port of this name with another text; "
				"distinguish them with name=");
	return 0;
}

int dpdk_port_get(struct dpdk_port **out, const char *text, const struct harp_instance_options *opt,
		  const struct why *why)
{
	int rc;

	*out = NULL;
	registry_enter(&ports);
	rc = opt->daemon_socket ? port_enter_leased(out, text, opt, why)
				: port_enter_alone(out, text, opt, why);
	if (!rc)
		(*out)->users++;
	else
		*out = NULL;
	registry_leave(&ports);
	return rc;
}

int dpdk_port_put(struct dpdk_port *port, struct why *why)
{
	const struct harp_dpdk_eal_options silent = { .size = sizeof(silent) };
	const struct harp_dpdk_api *api;
	struct dpdk_lease *lease;
	int rc = 0;

	if (!port)
		return 0;
	registry_enter(&ports);
	if (!--port->users) {
		api = port->api;
		lease = port->lease;
		REGISTRY_UNLINK(&ports, port);
		/* Under the lock: the next open must find the device free. */
		port_free(port);
		/* Removes the log function: the application may unload this code, but DPDK's
		 * threads keep running. */
		if (!ports.first)
			(void)api->start(&silent, NULL, 0);
		rc = dpdk_lease_return(lease, why);
	}
	registry_leave(&ports);
	return rc;
}

/* shared by instances */

bool dpdk_port_up(struct dpdk_port *port, uint64_t now_ns, bool *changed)
{
	uint64_t due_ns = atomic_load_explicit(&port->link_poll_ns, memory_order_relaxed);
	struct harp_instance_port info;

	*changed = false;
	if (now_ns >= due_ns && atomic_compare_exchange_strong(&port->link_poll_ns, &due_ns,
							       now_ns + PORT_LINK_POLL_NS)) {
		port->api->port_info(port->port, &info);
		*changed = atomic_exchange_explicit(&port->up, info.up, memory_order_relaxed) !=
			   (bool)info.up;
	}
	return atomic_load_explicit(&port->up, memory_order_relaxed);
}

static _Atomic uint8_t *port_owner(const struct dpdk_port *port, uint8_t protocol, uint16_t number)
{
	return &port->owners[protocol == IPPROTO_UDP][number];
}

int dpdk_port_acquire(struct dpdk_port *port, uint8_t protocol, uint16_t number, uint32_t queue)
{
	uint8_t unowned = 0;

	return atomic_compare_exchange_strong(port_owner(port, protocol, number), &unowned,
					      (uint8_t)(queue + 1))
		       ? 0
		       : -EADDRINUSE;
}

void dpdk_port_release(struct dpdk_port *port, uint8_t protocol, uint16_t number, uint32_t queue)
{
	_Atomic uint8_t *owner = port_owner(port, protocol, number);

	if (atomic_load(owner) == queue + 1)
		atomic_store(owner, 0);
}

bool dpdk_port_on_other_queue(const struct dpdk_port *port, uint8_t protocol, uint16_t number,
			      uint32_t queue)
{
	uint8_t owner =
		atomic_load_explicit(port_owner(port, protocol, number), memory_order_relaxed);

	return owner && owner != queue + 1;
}
