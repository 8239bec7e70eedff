/* SPDX-License-Identifier: Apache-2.0 */
/* engine.c - sets of engines: opening, choosing, closing, fork. */
#include "poll/engine.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/daemon.h"
#include "device/path_policy.h"
#include "process/log.h"
#include "process/config.h"
#include "device/device.h"

/* Connections of one stack, including those in TIME-WAIT: more than it has local ports. Each
 * takes 3.3 KB when first used; the flow table takes 128 KB. */
#define ENGINE_CONNS_MAX 8192u
#define ENGINE_PORT_TEXT_MAX (sizeof(HARP_PORT_PREFIX) + HARP_PORT_TEXT_MAX)

/* Held while a set is opened or closed. */
static pthread_mutex_t engines_lock = PTHREAD_MUTEX_INITIALIZER;
static struct engine_set *engine_sets[PLUGIN_DEVICES_MAX]; /* open ones, under engines_lock */
static atomic_uint engine_fallbacks[PLUGIN_DEVICES_MAX];   /* enum harp_page_fallback */

/* ---- one engine ----------------------------------------------------------------------------- */

static void engine_log(void *ctx, enum harp_log_level level, const char *message)
{
	const struct engine *engine = ctx;

	/* Messages name the interface. Only its first engine warns: all see the same trouble. */
	if (level <= HARP_LOG_WARN && !engine->index)
		WARN("%s", message);
	else
		INFO("%s", message);
}

enum harp_page_fallback engine_is_forbidden(const struct device *device, char *why, size_t why_len)
{
	const struct plugin_config *config = plugin_config();

	if (config->path == PATH_KERNEL) {
		snprintf(why, why_len, "HARP_PATH=kernel");
		return HARP_PAGE_FALLBACK_setting;
	}
	if (!device->dpdk && device->has_default_route && !config->ifname_set) {
		snprintf(why, why_len,
			 "%s carries the default route and is not named (set NCCL_SOCKET_IFNAME or "
			 "HARP_IFNAME to use it)",
			 device->ifname);
		return HARP_PAGE_FALLBACK_default_route;
	}
	if (!device->dpdk && !strcmp(device->ifname, "lo")) {
		snprintf(why, why_len, "lo is the loopback interface");
		return HARP_PAGE_FALLBACK_loopback;
	}
	return HARP_PAGE_FALLBACK_none;
}

/* Reads HARP_RSS, which overrides the NIC's settings. *out NULL: it is not set. */
static int engine_rss(const struct device *device, struct harp_rss *rss,
		      const struct harp_rss **out, char *why, size_t why_len)
{
	const char *text = plugin_config()->rss;
	int rc;

	*out = NULL;
	if (!text[0])
		return 0;
	rss->queues = device->queues;
	rc = device->dpdk ? 0 : harp_rss_read(device->ifname, rss);
	if (!rc)
		rc = harp_rss_parse(text, rss->queues, rss);
	if (rc)
		snprintf(why, why_len,
			 "HARP_RSS=\"%.64s\" does not fit %s, which has %u queues: %s", text,
			 device->ifname, rss->queues, strerror(-rc));
	*out = rss;
	return rc;
}

/* Would the path policy send any message over HARP lanes in that mode? */
static bool engine_is_wanted(const struct device *device, enum harp_instance_mode mode, char *why,
			     size_t why_len)
{
	struct path_policy policy = path_policy(device, mode, NULL);

	if (policy.harp_bytes_max)
		return true;
	if (mode == HARP_MODE_GENERIC_COPY)
		snprintf(why, why_len,
			 "AF_XDP is available in generic copy mode only, which is slower here; "
			 "HARP_PATH=xdp forces it");
	else
		snprintf(why, why_len, "all messages prefer kernel TCP (%s)", policy.source);
	return false;
}

/* A port is opened by its text, or leased by its name. */
static void engine_port_options(struct harp_instance_options *opt, const struct device *device,
				char text[ENGINE_PORT_TEXT_MAX])
{
	const struct plugin_config *config = plugin_config();

	snprintf(text, ENGINE_PORT_TEXT_MAX, "%s%s", HARP_PORT_PREFIX,
		 device->port ? device->port : device->ifname);
	opt->ifname = text;
	opt->huge_pages = config->dpdk_huge_pages;
	opt->dpdk_queues = device->queues;
	opt->dpdk_memory_mib = config->dpdk_memory_mib;
	opt->dpdk_args = config->dpdk_args[0] ? config->dpdk_args : NULL;
}

/* Leases the queue from harpd, or opens it directly if permitted. If both fail, why has both
 * reasons. */
static int engine_open(struct engine *engine, const struct device *device, char *why,
		       size_t why_len)
{
	const struct plugin_config *config = plugin_config();
	char no_daemon[384] = "", unwanted[384], text[ENGINE_PORT_TEXT_MAX];
	struct harp_instance_options opt = {
		.size = sizeof(opt),
		.ifname = device->ifname,
		.queue = engine->index,
		.daemon_socket = plugin_daemon_socket(device, no_daemon, sizeof(no_daemon)),
		.label = config->label[0] ? config->label : NULL,
		.xdp_mode = config->xdp_mode,
		.frame_count = config->frames,
		.max_conns = ENGINE_CONNS_MAX,
		.port_min = (uint16_t)config->port_min,
		.port_max = (uint16_t)config->port_max,
		.lib_dir = config->lib_dir[0] ? config->lib_dir : NULL,
		.ctx = engine,
		.log = engine_log,
		.requests = engine_requests,
	};
	struct harp_rss rss;
	size_t used;
	int rc = 0;

	if (device->dpdk)
		engine_port_options(&opt, device, text);
	if (!engine_is_wanted(device, HARP_MODE_GENERIC_COPY, unwanted, sizeof(unwanted))) {
		/* Do not attach or lease in generic mode. */
		if (opt.daemon_socket ? plugin_daemon_is_generic(device)
				      : config->xdp_mode == HARP_XDP_GENERIC) {
			snprintf(why, why_len, "%s", unwanted);
			return -ECANCELED;
		}
		if (opt.xdp_mode == HARP_XDP_AUTO)
			opt.xdp_mode = HARP_XDP_NATIVE_OR_NONE;
	}
	if (opt.daemon_socket) {
		opt.queue = device->dpdk ? engine->index : HARP_LEASE_QUEUE_ANY;
	} else if (device->netns && !device->port) {
		snprintf(why, why_len, "%s", no_daemon);
		rc = -ENODEV;
	} else {
		rc = engine_rss(device, &rss, &opt.rss, why, why_len);
	}
	if (rc)
		return rc;
	rc = harp_instance_open(&engine->instance, &opt, why, why_len);
	used = strlen(why);
	if (rc == -EPERM && !opt.daemon_socket && !device->dpdk)
		snprintf(why + used, why_len - used, "; and %s", no_daemon);
	else if ((rc == -EMFILE || rc == -ENFILE) && !strstr(why, "ulimit -n"))
		snprintf(why + used, why_len - used, "; raise the limit: ulimit -n");
	else if (rc == -ECANCELED && !opt.daemon_socket)
		snprintf(why, why_len, "%s", unwanted);
	else if (!rc &&
		 !engine_is_wanted(device, harp_instance_mode(engine->instance), why, why_len)) {
		harp_instance_close(engine->instance);
		rc = -ECANCELED;
	}
	return rc;
}

/* Classifies engine_open()'s error. */
static enum harp_page_fallback engine_error_fallback(const struct device *device, int error)
{
	switch (-error) {
	case ECANCELED: /* engine_is_wanted() */
		return path_policy(device, HARP_MODE_NATIVE_COPY, NULL).harp_bytes_max
			       ? HARP_PAGE_FALLBACK_generic_copy
			       : HARP_PAGE_FALLBACK_policy;
	case EPERM:
	case EACCES:
		return HARP_PAGE_FALLBACK_permission;
	case EBUSY:
	case EUSERS:
		return HARP_PAGE_FALLBACK_busy;
	default:
		return HARP_PAGE_FALLBACK_unavailable;
	}
}

/* Opens the device's queue of that index; harpd chooses the queue itself. NULL: why has the
 * reason. */
static struct engine *engine_new(int dev, unsigned index, char *why, size_t why_len)
{
	const struct device *device = plugin_device(dev);
	struct engine *engine;
	int rc;

	if (posix_memalign((void **)&engine, 64, sizeof(*engine))) {
		snprintf(why, why_len, "out of memory");
		return NULL;
	}
	memset(engine, 0, sizeof(*engine));
	engine->dev = dev;
	engine->index = index;
	if ((device->dpdk ? device->queues : plugin_config()->instances) > 1)
		snprintf(engine->name, sizeof(engine->name), "%s[%u]", device->ifname, index);
	else
		snprintf(engine->name, sizeof(engine->name), "%s", device->ifname);
	rc = engine_open(engine, device, why, why_len);
	if (rc) {
		atomic_store(&engine_fallbacks[dev], engine_error_fallback(device, rc));
		free(engine);
		return NULL;
	}
	engine->stack = harp_instance_stack(engine->instance);
	poller_init(&engine->poller, engine_advance);
	engine->poller.wake = engine_wake;
	engine_capture_start(engine);
	return engine;
}

/* ---- sets ------------------------------------------------------------------------------------ */

/* Peers may need our last ACK or CLOSE. Each lane limits the time. */
static void set_finish_lanes(struct engine_set *set)
{
	struct pollfd fds[ENGINES_MAX];
	bool closing;

	do {
		closing = false;
		for (unsigned i = 0; i < set->count; i++) {
			closing |= engine_is_closing(set->engines[i]);
			fds[i] = (struct pollfd){ .fd = harp_instance_fd(set->engines[i]->instance),
						  .events = POLLIN };
		}
		if (closing)
			(void)poll(fds, set->count, 1);
	} while (closing);
}

static void set_free(struct engine_set *set)
{
	set_finish_lanes(set);
	for (unsigned i = 0; i < set->count; i++) {
		engine_finish(set->engines[i]);
		harp_instance_close(set->engines[i]->instance);
		free(set->engines[i]);
	}
	free(set);
}

/* Opens up to the configured number of engines; at least one, or all of a DPDK port. */
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
	/* A DPDK port would lose packets on queues without a stack. */
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
		     plugin_device(dev)->dpdk ? "DPDK" : "HARP",
		     harp_instance_describe(set->engines[i]->instance));
	return set;
}

struct engine_set *engine_set_open(int dev, char *why, size_t why_len)
{
	struct engine_set *set;

	pthread_mutex_lock(&engines_lock);
	set = set_new(dev, why, why_len);
	if (set)
		atomic_store(&engine_fallbacks[dev], HARP_PAGE_FALLBACK_none);
	else if (!atomic_load(&engine_fallbacks[dev])) /* out of memory */
		atomic_store(&engine_fallbacks[dev], HARP_PAGE_FALLBACK_unavailable);
	engine_sets[dev] = set;
	pthread_mutex_unlock(&engines_lock);
	if (set)
		background_add(set);
	return set;
}

enum harp_page_fallback engine_fallback(int dev)
{
	const struct device *device = plugin_device(dev);
	enum harp_page_fallback fallback;

	if (!device)
		return HARP_PAGE_FALLBACK_none;
	fallback = engine_is_forbidden(device, NULL, 0);
	return fallback ? fallback : atomic_load(&engine_fallbacks[dev]);
}

void engine_set_close(struct engine_set *set)
{
	if (!set)
		return;
	/* Without the lock, for which a fork may wait while the control thread waits for the
	 * fork. */
	background_remove(set);
	pthread_mutex_lock(&engines_lock);
	engine_sets[set->dev] = NULL;
	set_free(set);
	pthread_mutex_unlock(&engines_lock);
}

void engines_deliver(void)
{
	uint64_t until_ns = clock_now_ns() + plugin_config()->close_linger_ns;

	/* A thread that has the lock may not run again. */
	if (pthread_mutex_trylock(&engines_lock))
		return;
	for (unsigned dev = 0; dev < PLUGIN_DEVICES_MAX; dev++)
		for (unsigned i = 0; engine_sets[dev] && i < engine_sets[dev]->count; i++)
			engine_deliver(engine_sets[dev]->engines[i], until_ns);
	pthread_mutex_unlock(&engines_lock);
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

/* ---- fork ------------------------------------------------------------------------------------ */

void engine_fork_prepare(void)
{
	/* An engine that is being opened or closed is in no set, so the child would keep its queue.
	 * The logger is called under this lock: it must not need a lock whose holder forks. NCCL's
	 * and libharp-coll's do not. */
	pthread_mutex_lock(&engines_lock);
}

void engine_fork_parent(void)
{
	pthread_mutex_unlock(&engines_lock);
}

void engine_fork_child(void)
{
	/* The child has only this thread. */
	for (unsigned i = 0; i < PLUGIN_DEVICES_MAX; i++) {
		struct engine_set *set = engine_sets[i];

		for (unsigned j = 0; set && j < set->count; j++)
			harp_instance_fork_child(set->engines[j]->instance);
	}
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
