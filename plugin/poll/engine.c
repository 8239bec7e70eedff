/* SPDX-License-Identifier: Apache-2.0 */
/* engine.c - the process's HARP instances: a set for each device, opened, counted, closed, forked. */
#include "poll/engine.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "process/cores.h"
#include "poll/engine_impl.h"
#include "process/log.h"
#include "process/config.h"
#include "device/device.h"

#define ENGINE_FORK_WAIT_S 1

/* The engines of one device. Which there are is settled before anyone else sees the set. */
struct engine_set {
	int dev;
	unsigned refs; /* under engines_lock */
	unsigned count, thread_count;
	struct engine *engines[ENGINES_MAX];
	struct engine_thread *threads[ENGINES_MAX];
	atomic_uint turn; /* relaxed: where engine_set_choose() begins to look */
};

/* What became of a device's engines in this process; decided at the first use. */
struct engine_slot {
	struct engine_set *set;
	bool refused;
	char why[384];
};

static pthread_mutex_t engines_lock = PTHREAD_MUTEX_INITIALIZER;
static struct engine_slot engine_slots[PLUGIN_DEVICES_MAX];
/* Called for each engine when it has opened, and before it closes; under engines_lock. */
static void (*engine_opened)(struct engine *), (*engine_closes)(struct engine *);
static bool engines_fork_locked; /* of the fork under way; guard_lock in forkguard.c admits one */

/* ---- threads --------------------------------------------------------------------------------- */

/* The core for an engine's own thread; -1: none in particular. */
static int set_core(const struct engine_set *set, unsigned index)
{
	const struct engine *engine = set->engines[index];
	const struct plugin_cores *cores = &plugin_config()->cores;
	const struct harp_lease_leased *lease = harp_instance_lease(engine->instance);
	unsigned core;

	/* harpd's suggestion is none that must be followed: it does not know our cpuset. */
	if (!cores->count)
		return lease && cores_allowed(lease->core) ? (int)lease->core : -1;
	core = cores->core[index % cores->count];
	if (cores_allowed(core))
		return (int)core;
	WARN("%s: HARP_CORES has core %u, which this process may not use (see taskset and cpuset): its "
	     "thread is not pinned",
	     engine->name, core);
	return -1;
}

static int set_start_threads(struct engine_set *set, char *why, size_t why_len)
{
	const struct plugin_config *config = plugin_config();
	struct engine_thread_options opt = {
		.core = -1,
		.idle_ns = config->guardian_idle_ns,
		.spin_ns = config->spin_ns,
	};
	unsigned usable = cores_usable();
	int rc = 0;

	opt.dedicated = config->drive == DRIVE_DEDICATED ||
			(config->drive == DRIVE_AUTO && usable >= 2 * set->count + 1);
	opt.crowded = usable < set->count + 1 ||
		      (config->cores.count && config->cores.count < set->count);
	if (!opt.dedicated) {
		rc = engine_thread_start(&set->threads[0], set->engines, set->count, &opt, why,
					 why_len);
		set->thread_count = !rc;
	}
	for (unsigned i = 0; opt.dedicated && !rc && i < set->count; i++) {
		opt.core = set_core(set, i);
		rc = engine_thread_start(&set->threads[i], &set->engines[i], 1, &opt, why, why_len);
		set->thread_count += !rc;
	}
	if (!rc)
		INFO("%s: driven %s: %s%u core%s may be used, %u instance%s",
		     plugin_device(set->dev)->ifname,
		     !opt.dedicated ? "by NCCL's threads and a guardian"
		     : opt.crowded
			     ? "by NCCL's threads and dedicated ones, for which cores are too few"
			     : "by dedicated threads",
		     config->drive == DRIVE_AUTO ? "" : "as HARP_DRIVE says; ", usable,
		     usable == 1 ? "" : "s", set->count, set->count == 1 ? "" : "s");
	return rc;
}

/* ---- sets ------------------------------------------------------------------------------------ */

static void engine_observe(void (*observer)(struct engine *), struct engine *engine)
{
	if (observer)
		observer(engine);
}

void engine_set_observers(void (*opened)(struct engine *), void (*closes)(struct engine *))
{
	pthread_mutex_lock(&engines_lock);
	engine_opened = opened;
	engine_closes = closes;
	pthread_mutex_unlock(&engines_lock);
}

/* The last reference is gone; nobody else knows the set. */
static void set_free(struct engine_set *set)
{
	for (unsigned i = 0; i < set->count; i++)
		engine_observe(engine_closes, set->engines[i]);
	for (unsigned i = 0; i < set->thread_count; i++)
		engine_thread_stop(set->threads[i]);
	for (unsigned i = 0; i < set->count; i++) {
		engine_wind_up(set->engines[i]);
		engine_free(set->engines[i]);
	}
	free(set);
}

/* As many as are wanted and can be had; at least one, of a DPDK port all. */
static bool set_open_engines(struct engine_set *set, char *why, size_t why_len)
{
	const struct device *device = plugin_device(set->dev);
	unsigned wanted = device->dpdk ? device->queues : plugin_config()->instances;
	struct harp_instance_port port;

	while (set->count < wanted) {
		struct engine *engine = engine_new(set->dev, set->count, why, why_len);

		if (!engine)
			break;
		set->engines[set->count++] = engine;
		if (device->dpdk && !engine_set_port(set, &port))
			wanted = port.queues; /* harpd may lease fewer */
	}
	/* What a port puts on a queue without a stack is lost. */
	if (device->dpdk && set->count < wanted)
		return false;
	if (set->count && set->count < wanted)
		WARN("%s: %u of %u instances (HARP_INSTANCES): %s", device->ifname, set->count,
		     wanted, why);
	return set->count > 0;
}

static struct engine_set *set_new(int dev, char *why, size_t why_len)
{
	struct engine_set *set;

	if (engine_is_forbidden(plugin_device(dev), why, why_len))
		return NULL;
	set = calloc(1, sizeof(*set));
	if (!set) {
		snprintf(why, why_len, "out of memory");
		return NULL;
	}
	set->dev = dev;
	if (!set_open_engines(set, why, why_len)) {
		set_free(set);
		return NULL;
	}
	for (unsigned i = 0; i < set->count; i++)
		INFO("%s: path %s: %s", set->engines[i]->name,
		     plugin_device(dev)->dpdk ? "DPDK" : "HARP", engine_describe(set->engines[i]));
	if (set_start_threads(set, why, why_len)) {
		set_free(set);
		return NULL;
	}
	for (unsigned i = 0; i < set->count; i++)
		engine_observe(engine_opened, set->engines[i]);
	return set;
}

struct engine_set *engine_set_get(int dev, char *why, size_t why_len)
{
	struct engine_slot *slot;
	struct engine_set *set;

	if (dev < 0 || !plugin_device(dev)) {
		snprintf(why, why_len, "no such device");
		return NULL;
	}
	slot = &engine_slots[dev];
	pthread_mutex_lock(&engines_lock);
	if (!slot->set && !slot->refused) {
		slot->set = set_new(dev, slot->why, sizeof(slot->why));
		slot->refused = !slot->set;
	}
	set = slot->set;
	if (set)
		set->refs++;
	else
		snprintf(why, why_len, "%s", slot->why);
	pthread_mutex_unlock(&engines_lock);
	return set;
}

void engine_set_put(struct engine_set *set)
{
	if (!set)
		return;
	pthread_mutex_lock(&engines_lock);
	if (--set->refs == 0) {
		/* Freed under the lock: the next engine_set_get() must find queues and ports free. */
		engine_slots[set->dev].set = NULL;
		set_free(set);
	}
	pthread_mutex_unlock(&engines_lock);
}

unsigned engine_set_count(const struct engine_set *set)
{
	return set->count;
}

struct engine *engine_set_at(const struct engine_set *set, unsigned index)
{
	return index < set->count ? set->engines[index] : NULL;
}

enum harp_instance_mode engine_set_mode(const struct engine_set *set)
{
	return set ? harp_instance_mode(set->engines[0]->instance) : HARP_MODE_NONE;
}

int engine_set_port(const struct engine_set *set, struct harp_instance_port *out)
{
	return harp_instance_dpdk(set->engines[0]->instance, out);
}

struct engine *engine_set_choose(struct engine_set *set)
{
	unsigned first = atomic_fetch_add_explicit(&set->turn, 1, memory_order_relaxed);
	struct engine *best = NULL;
	unsigned least = 0;

	for (unsigned i = 0; i < set->count; i++) {
		struct engine *engine = set->engines[(first + i) % set->count];
		unsigned load = atomic_load_explicit(&engine->load, memory_order_relaxed);

		if (best && load >= least)
			continue;
		best = engine;
		least = load;
	}
	return best;
}

void engine_reset(void)
{
	pthread_mutex_lock(&engines_lock);
	for (unsigned i = 0; i < PLUGIN_DEVICES_MAX; i++)
		engine_slots[i].refused = false;
	pthread_mutex_unlock(&engines_lock);
}

/* ---- fork ------------------------------------------------------------------------------------ */

void engine_fork_prepare(void)
{
	struct timespec until;

	/* An engine half open or half closed is on no slot: the child would keep its queue. Yet whoever
	 * forks may hold what the opener needs (an interpreter's lock, for the logger): wait, not for
	 * ever. */
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += ENGINE_FORK_WAIT_S;
	engines_fork_locked = pthread_mutex_timedlock(&engines_lock, &until) == 0;
}

void engine_fork_parent(void)
{
	if (engines_fork_locked)
		pthread_mutex_unlock(&engines_lock);
}

void engine_fork_child(void)
{
	/* Only this thread lives on in the child. */
	for (unsigned i = 0; i < PLUGIN_DEVICES_MAX; i++) {
		struct engine_set *set = engine_slots[i].set;

		for (unsigned j = 0; set && j < set->count; j++)
			harp_instance_fork_child(set->engines[j]->instance);
		for (unsigned j = 0; set && j < set->thread_count; j++)
			engine_thread_fork_child(set->threads[j]);
	}
	if (engines_fork_locked)
		pthread_mutex_unlock(&engines_lock);
}

bool engine_reaches(struct engine *engine, const struct harp_addr *dst, struct harp_addr *source,
		    char *why, size_t why_len)
{
	const struct device *device = plugin_device(engine->dev);
	struct harp_host_route route;
	char text[HARP_ADDR_TEXT_MAX];
	int rc = harp_instance_route(engine->instance, dst, &route);

	memset(source, 0, sizeof(*source));
	if (rc) {
		snprintf(why, why_len, "no route to %s: %s", harp_addr_format(dst, text),
			 strerror(-rc));
		return false;
	}
	if (route.is_local) {
		snprintf(why, why_len, "%s is an address of this host",
			 harp_addr_format(dst, text));
		return false;
	}
	if (route.ifindex != device->ifindex) {
		snprintf(why, why_len, "%s is reached through %s, not %s",
			 harp_addr_format(dst, text),
			 route.ifname[0] ? route.ifname : "another interface", device->ifname);
		return false;
	}
	*source = route.source;
	return true;
}
