/* SPDX-License-Identifier: Apache-2.0 */
/* interfaces.c - the devices of this process: their engines, acceptors, and further NICs of
 * comms. */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "connect/ctx.h"
#include "base/util.h"
#include "poll/control.h"
#include "process/keyfile.h"
#include "comm/memory.h"
#include "device/path_policy.h"
#include "connect/peers.h"
#include "connect/acceptor.h"
#include "process/log.h"
#include "process/config.h"
#include "device/device.h"

#define PORT_LINK_WAIT_NS 5000000000ull

/*
 * Theory of operation
 *
 * Opening an interface takes tens of milliseconds, and harpd may take seconds to answer. The first
 * listen or connect of a device opens its engines in the calling thread, so that every handle names
 * the final ports and every connect knows its candidates. Init opens the devices that only HARP can
 * use. The control thread never opens an interface, and continues meanwhile.
 */

/* A device in this process; its path is decided at the first use. */
struct device_state {
	atomic_bool decided; /* engines and why are set. Writer: under ctx_lock, release. Reader:
				acquire */
	struct engine_set *engines; /* NULL: why has the reason */
	char why[384];
};

static struct device_state device_states[PLUGIN_DEVICES_MAX];

/* Logs which messages take which path. Engines log their own properties. With HARP_PATH=xdp, init
 * fails with the reason; for a device of another namespace, listen and connect do. */
static void interface_log_path(int dev, const struct device_state *state)
{
	const struct device *device = plugin_device(dev);
	struct path_policy policy;

	if (!state->engines) {
		if (!plugin_path_is_harp(plugin_config()->path) && !device->netns)
			INFO("%s: path kernel TCP: %s", device->ifname, state->why);
		return;
	}
	policy = path_policy(device, engine_set_mode(state->engines), NULL);
	if (policy.harp_bytes_max != PATH_POLICY_ALL)
		INFO("%s: messages of up to %llu bytes go over HARP lanes, longer ones over kernel TCP (%s)",
		     device->ifname, (unsigned long long)policy.harp_bytes_max, policy.source);
	else
		INFO("%s: all messages go over HARP lanes (%s)", device->ifname, policy.source);
}

/* Announces registered memory to engines whose NIC can read it (memory.h). */
static struct engine_set *engines_open(int dev, char *why, size_t why_len)
{
	struct engine_set *set = engine_set_open(dev, why, why_len);

	for (unsigned i = 0; set && i < set->count; i++)
		plugin_memory_engine_open(set->engines[i]);
	return set;
}

static void engines_close(struct engine_set *set)
{
	for (unsigned i = 0; set && i < set->count; i++)
		plugin_memory_engine_close(set->engines[i]);
	engine_set_close(set);
}

/* ctx_lock held, or by the first init. */
static void interface_set_engines(struct device_state *state, struct engine_set *engines,
				  const char *why)
{
	state->engines = engines;
	snprintf(state->why, sizeof(state->why), "%s", why);
	atomic_store_explicit(&state->decided, true, memory_order_release);
}

static void interface_decide(int dev)
{
	static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER; /* one interface at a time */
	struct device_state *state = &device_states[dev];
	struct engine_set *engines = NULL;
	char why[sizeof(state->why)] = "";

	if (atomic_load_explicit(&state->decided, memory_order_acquire))
		return;
	pthread_mutex_lock(&opening);
	if (!atomic_load_explicit(&state->decided, memory_order_acquire)) {
		if (!engine_is_forbidden(plugin_device(dev), why, sizeof(why)))
			engines = engines_open(dev, why, sizeof(why));
		pthread_mutex_lock(&ctx_lock);
		interface_set_engines(state, engines, why);
		interface_log_path(dev, state);
		pthread_mutex_unlock(&ctx_lock);
	}
	pthread_mutex_unlock(&opening);
}

void interface_open(int dev)
{
	int devs[RAILS_MAX];
	unsigned count = rails_devices(dev, devs);

	/* A backup NIC's queue is left to processes that need it: it is opened only if this process
	 * uses the NIC as a device, or with HARP_RAILS=all. */
	if (plugin_config()->rails != RAILS_ALL)
		count = 1;
	for (unsigned i = 0; i < count; i++)
		interface_decide(devs[i]);
}

/* ---- engines -------------------------------------------------------------------------------- */

struct engine_set *interface_engines(int dev, char *why, size_t why_len)
{
	const struct device_state *state = &device_states[dev];
	bool decided = atomic_load_explicit(&state->decided, memory_order_acquire);

	snprintf(why, why_len, "%s", decided ? state->why : "");
	return decided ? state->engines : NULL;
}

uint64_t interface_harp_bytes_max(int dev, const struct harp_addr *peer)
{
	const struct engine_set *engines = interface_engines(dev, NULL, 0);

	return path_policy(plugin_device(dev), engine_set_mode(engines), peer).harp_bytes_max;
}

/* ---- acceptors ------------------------------------------------------------------------------- */

/* A NIC of another network namespace needs engines. */
static bool interface_may_listen(int dev)
{
	return !plugin_device(dev)->netns || device_states[dev].engines;
}

/* Opens the acceptors of the other NICs for lanes of dev's comms, except unusable ones. ctx_lock
 * held. */
static void interface_open_rails(int dev)
{
	int devs[RAILS_MAX];
	unsigned count = rails_devices(dev, devs);

	for (unsigned i = 1; i < count; i++)
		if (interface_may_listen(devs[i]))
			(void)acceptor_open(devs[i], device_states[devs[i]].engines);
}

int interface_listen(int dev)
{
	struct device_state *state = &device_states[dev];
	int rc = -EPROTONOSUPPORT;

	interface_open(dev);
	pthread_mutex_lock(&ctx_lock);
	if (interface_may_listen(dev))
		rc = acceptor_open(dev, state->engines);
	else
		WARN("%s: cannot listen: %s; the NIC is of another network namespace, and HARP alone "
		     "can use it (name another interface in HARP_IFNAME)",
		     plugin_device(dev)->ifname, state->why);
	if (!rc)
		interface_open_rails(dev);
	pthread_mutex_unlock(&ctx_lock);
	return rc;
}

bool interface_link_is_down(int dev)
{
	struct harp_instance_port port;
	struct engine_set *engines = interface_engines(dev, NULL, 0);

	return engines && !engine_set_port(engines, &port) && !port.up;
}

/* ---- the first init and the last finalize --------------------------------------------------- */

void interfaces_close(void)
{
	plugin_memory_forget();
	acceptors_close();
	for (unsigned dev = 0; dev < PLUGIN_DEVICES_MAX; dev++)
		engines_close(device_states[dev].engines);
	memset(device_states, 0, sizeof(device_states));
	control_stop();
	peers_reset();
	keyfile_forget();
}

/* HARP_PATH=auto uses another device if a link is down; a link may take seconds to come up. A memif
 * link is up once the peer, perhaps a later rank, has started. The engine's thread polls the
 * link. */
static bool interface_port_has_link(const struct engine_set *set, struct harp_instance_port *port)
{
	const struct timespec pause = { .tv_nsec = 20000000 };
	uint64_t until_ns = clock_now_ns() + PORT_LINK_WAIT_NS;

	if (plugin_config()->path != PATH_AUTO || !strcmp(port->driver, "net_memif"))
		return true;
	while (!port->up && clock_now_ns() < until_ns) {
		nanosleep(&pause, NULL);
		if (engine_set_port(set, port))
			return false;
	}
	return port->up;
}

int interface_open_port(int dev, struct harp_instance_port *out, char *why, size_t why_len)
{
	struct engine_set *engines = engines_open(dev, why, why_len);
	int rc = engines ? engine_set_port(engines, out) : -ENODEV;

	if (!rc && !interface_port_has_link(engines, out)) {
		snprintf(why, why_len, "its link is down: a cable, or the other end");
		rc = -ENODEV;
	}
	if (rc)
		engines_close(engines);
	else
		interface_set_engines(&device_states[dev], engines, "");
	return rc;
}

int interfaces_open_at_init(void)
{
	bool forced = plugin_config()->path == PATH_XDP;

	for (int dev = 0; dev < plugin_device_count(); dev++) {
		char why[384];

		if (!forced && !plugin_device(dev)->netns)
			continue;
		interface_open(dev);
		if (!forced || interface_engines(dev, why, sizeof(why)))
			continue;
		WARN("HARP_PATH=xdp, but %s cannot: %s (or name another interface in "
		     "NCCL_SOCKET_IFNAME, or use HARP_PATH=auto)",
		     plugin_device(dev)->ifname, why);
		return -EPROTONOSUPPORT;
	}
	return 0;
}
