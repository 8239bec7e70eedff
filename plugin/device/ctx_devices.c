/* SPDX-License-Identifier: Apache-2.0 */
/* ctx_devices.c - what each device is in this process: its engines, its rendezvous, the NICs that stand in for it. */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "device/ctx.h"
#include "poll/keeper.h"
#include "process/keyfile.h"
#include "process/path_policy.h"
#include "stats/lane_page.h"
#include "comm/memory.h"
#include "connect/peers.h"
#include "connect/rails.h"
#include "connect/rendezvous.h"
#include "poll/workers.h"

#define PORT_LINK_WAIT_NS 5000000000ull

/*
 * Theory of operation
 *
 * To open an interface takes tens of milliseconds, and harpd may take seconds to answer. So a call
 * of NCCL's never opens one. Init opens the devices that HARP alone can use: a handle must carry
 * their ports. The control thread opens the others, at their first listen or connect. A listen
 * meanwhile gives out its kernel ports and says in the handle that instances are being opened;
 * peers wait in the backlog of its kernel sockets until CHALLENGE can name the instances' ports. A
 * connect meanwhile is pending.
 */

/* A device's path in this process, decided at its first use. */
struct device_state {
	/* Written under ctx_lock and engines_lock, read under either. */
	bool decided;
	struct engine_set *engines; /* NULL: why says the reason */
	char why[384];
	/* Under ctx_lock. */
	struct rendezvous *rdv;
	struct keeper_task open_task; /* of a listen */
};

static struct device_state device_states[PLUGIN_DEVICES_MAX];
/* The last in the order of locks: none is taken, nor any baton, while it is held. */
static pthread_mutex_t engines_lock = PTHREAD_MUTEX_INITIALIZER;

/* Which messages take which path, where both are open. */
static void ctx_report_policy(const struct device *device, const struct engine_set *engines)
{
	struct path_policy policy = path_policy(device, engine_set_mode(engines), NULL);

	if (policy.harp_bytes_max != PATH_POLICY_ALL)
		INFO("%s: messages of up to %llu bytes go over HARP lanes, longer ones over kernel TCP (%s)",
		     device->ifname, (unsigned long long)policy.harp_bytes_max, policy.source);
	else
		INFO("%s: all messages go over HARP lanes (%s)", device->ifname, policy.source);
}

static void ctx_log_path(int dev, const struct device_state *state)
{
	/* An engine logs itself what it is; HARP_PATH=xdp makes init fail with the reason, and a
	 * device of another namespace listen and connect. */
	if (!state->engines && !plugin_path_is_harp(plugin_config()->path) &&
	    !plugin_device(dev)->netns)
		INFO("%s: path kernel TCP: %s", plugin_device(dev)->ifname, state->why);
	else if (state->engines)
		ctx_report_policy(plugin_device(dev), state->engines);
}

/* ctx_lock held. */
static void ctx_set_engines(struct device_state *state, bool decided, struct engine_set *engines,
			    const char *why)
{
	pthread_mutex_lock(&engines_lock);
	state->decided = decided;
	state->engines = engines;
	snprintf(state->why, sizeof(state->why), "%s", why);
	pthread_mutex_unlock(&engines_lock);
}

/* ctx_lock held. True when that needs no try. */
static bool ctx_is_decided(int dev)
{
	struct device_state *state = &device_states[dev];
	char why[sizeof(state->why)] = "";

	if (!state->decided && engine_is_forbidden(plugin_device(dev), why, sizeof(why))) {
		ctx_set_engines(state, true, NULL, why);
		ctx_log_path(dev, state);
	}
	return state->decided;
}

static void ctx_decide(int dev)
{
	struct device_state *state = &device_states[dev];
	struct engine_set *engines;
	char why[sizeof(state->why)] = "";
	bool decided;

	pthread_mutex_lock(&ctx_lock);
	decided = ctx_is_decided(dev);
	pthread_mutex_unlock(&ctx_lock);
	if (decided)
		return;
	engines = engine_set_get(dev, why, sizeof(why));
	pthread_mutex_lock(&ctx_lock);
	if (!state->decided) {
		ctx_set_engines(state, true, engines, why);
		ctx_log_path(dev, state);
		engines = NULL;
	}
	pthread_mutex_unlock(&ctx_lock);
	engine_set_put(engines); /* another init was faster */
}

/* The devices whose engines a comm of dev's may use. A spare NIC's queue is left to the process
 * that needs it: HARP is on it only where this process uses it for its own sake, or for all its
 * lanes. */
static unsigned ctx_engine_devices(int dev, int devs[RAIL_PAIRS_MAX])
{
	unsigned count = rails_devices(dev, devs);

	return plugin_config()->rails == RAILS_ALL ? count : 1;
}

void ctx_open_device(int dev)
{
	int devs[RAIL_PAIRS_MAX];
	unsigned count = ctx_engine_devices(dev, devs);

	for (unsigned i = 0; i < count; i++)
		ctx_decide(devs[i]);
}

/* ctx_lock held. */
static bool ctx_device_is_open(int dev)
{
	int devs[RAIL_PAIRS_MAX];
	unsigned count = ctx_engine_devices(dev, devs);

	for (unsigned i = 0; i < count; i++)
		if (!ctx_is_decided(devs[i]))
			return false;
	return true;
}

struct engine_set *ctx_engines(int dev, char *why, size_t why_len)
{
	struct device_state *state = &device_states[dev];
	struct engine_set *engines;

	pthread_mutex_lock(&engines_lock);
	engines = state->engines;
	snprintf(why, why_len, "%s", state->why);
	pthread_mutex_unlock(&engines_lock);
	return engines;
}

uint64_t ctx_harp_bytes_max(int dev, const struct harp_addr *peer)
{
	enum harp_instance_mode mode;

	pthread_mutex_lock(&engines_lock);
	mode = engine_set_mode(device_states[dev].engines);
	pthread_mutex_unlock(&engines_lock);
	return path_policy(plugin_device(dev), mode, peer).harp_bytes_max;
}

/* ---- rendezvous -------------------------------------------------------------------------------- */

/* ctx_lock held. The device's rendezvous, as far as it can have one; *out NULL: it can't. */
static int ctx_open_rendezvous(int dev, struct rendezvous **out)
{
	struct device_state *state = &device_states[dev];
	int rc = 0;

	*out = NULL;
	if (plugin_device(dev)->netns && !state->engines)
		return 0;
	if (!state->rdv)
		rc = rendezvous_open(&state->rdv, dev);
	if (!rc && state->engines)
		rc = rendezvous_open_harp(state->rdv, state->engines);
	if (!rc)
		*out = state->rdv;
	return rc;
}

/* ctx_lock held. Lanes of dev's comms may come by other NICs, too; one that can't be used is left out. */
static void ctx_open_rails(int dev, struct rendezvous *rdv)
{
	struct rendezvous *list[RAIL_PAIRS_MAX];
	int devs[RAIL_PAIRS_MAX];
	unsigned count = rails_devices(dev, devs), listed = 0;

	list[listed++] = rdv;
	for (unsigned i = 1; i < count; i++) {
		if (!ctx_open_rendezvous(devs[i], &list[listed]) && list[listed])
			listed++;
	}
	rendezvous_set_rails(rdv, list, listed);
}

/* Peers are let in even when a listener of HARP's cannot be opened, which has been logged: they
 * get kernel lanes. */
static void ctx_open_run(struct keeper_task *task)
{
	struct device_state *state =
		(struct device_state *)((char *)task - offsetof(struct device_state, open_task));
	int dev = (int)(state - device_states);
	struct rendezvous *rdv;

	ctx_open_device(dev);
	pthread_mutex_lock(&ctx_lock);
	(void)ctx_open_rendezvous(dev, &rdv);
	ctx_open_rails(dev, state->rdv);
	pthread_mutex_unlock(&ctx_lock);
	rendezvous_let_in(state->rdv);
}

int ctx_rendezvous(int dev, struct rendezvous **out, bool *opening)
{
	struct device_state *state = &device_states[dev];
	int rc;

	pthread_mutex_lock(&ctx_lock);
	*opening = !ctx_device_is_open(dev);
	rc = ctx_open_rendezvous(dev, out);
	if (!rc && !*out) {
		WARN("%s: cannot listen: %s; the NIC is of another network namespace, and HARP alone "
		     "can use it (name another interface in HARP_IFNAME)",
		     plugin_device(dev)->ifname, state->why);
		rc = -EPROTONOSUPPORT;
	}
	if (!rc && *opening) {
		rendezvous_hold(*out);
		if (!state->open_task.run) /* it may be running */
			state->open_task.run = ctx_open_run;
		keeper_task_post(&state->open_task, 0);
	} else if (!rc) {
		ctx_open_rails(dev, *out);
	}
	pthread_mutex_unlock(&ctx_lock);
	return rc;
}

bool ctx_link_is_down(int dev)
{
	struct harp_instance_port port;
	struct engine_set *engines;
	bool down;

	pthread_mutex_lock(&ctx_lock);
	engines = device_states[dev].engines;
	down = engines && !engine_set_port(engines, &port) && !port.up;
	pthread_mutex_unlock(&ctx_lock);
	return down;
}

/* ---- the first init and the last finalize ------------------------------------------------------ */

void ctx_forget_devices(void)
{
	plugin_memory_forget();
	for (unsigned dev = 0; dev < PLUGIN_DEVICES_MAX; dev++) {
		if (device_states[dev].rdv)
			rendezvous_close(device_states[dev].rdv);
		engine_set_put(device_states[dev].engines);
	}
	memset(device_states, 0, sizeof(device_states));
	lane_page_rest();
	keeper_stop();
	engine_reset();
	peers_reset();
	workers_stop();
	keyfile_forget();
}

/* HARP_PATH=auto has another way when a cable is out; a link may take seconds to come up. memif's is up when the
 * peer is there, which may be a rank that starts after us. The engine's thread looks at the link. */
static bool ctx_port_has_link(const struct engine_set *set, struct harp_instance_port *port)
{
	const struct timespec pause = { .tv_nsec = 20000000 };
	uint64_t until_ns = driver_clock_ns() + PORT_LINK_WAIT_NS;

	if (plugin_config()->path != PATH_AUTO || !strcmp(port->driver, "net_memif"))
		return true;
	while (!port->up && driver_clock_ns() < until_ns) {
		nanosleep(&pause, NULL);
		if (engine_set_port(set, port))
			return false;
	}
	return port->up;
}

int ctx_open_port(int dev, struct harp_instance_port *out, char *why, size_t why_len)
{
	struct device_state *state = &device_states[dev];

	ctx_set_engines(state, true, engine_set_get(dev, why, why_len), "");
	if (state->engines) {
		int rc = engine_set_port(state->engines, out);

		if (rc || ctx_port_has_link(state->engines, out))
			return rc;
		snprintf(why, why_len, "its link is down: a cable, or the other end");
		engine_set_put(state->engines);
	}
	/* The number may be another device's next. */
	ctx_set_engines(state, false, NULL, "");
	engine_reset();
	return -ENODEV;
}

int ctx_open_at_init(void)
{
	bool forced = plugin_config()->path == PATH_XDP;

	for (int dev = 0; dev < plugin_device_count(); dev++) {
		char why[384];

		if (!forced && !plugin_device(dev)->netns)
			continue;
		ctx_open_device(dev);
		if (!forced || ctx_engines(dev, why, sizeof(why)))
			continue;
		WARN("HARP_PATH=xdp, but %s cannot: %s (or name another interface in "
		     "NCCL_SOCKET_IFNAME, or use HARP_PATH=auto)",
		     plugin_device(dev)->ifname, why);
		return -EPROTONOSUPPORT;
	}
	return 0;
}
