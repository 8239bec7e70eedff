/* SPDX-License-Identifier: Apache-2.0 */
/* engine_open.c - one engine: from a queue of a NIC, or of a DPDK port, to a stack. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/daemon.h"
#include "device/path_policy.h"
#include "poll/engine_impl.h"
#include "process/log.h"
#include "process/config.h"
#include "device/device.h"

/* Of one stack, those in TIME-WAIT too: more than it has ports to call from. One takes 3.3 KB once it is used; the table of
 * flows 128 KB at once. */
#define ENGINE_CONNS_MAX 8192u
#define ENGINE_PORT_TEXT_MAX (sizeof(HARP_PORT_PREFIX) + HARP_PORT_TEXT_MAX)

static void engine_log(void *ctx, enum harp_log_level level, const char *message)
{
	const struct engine *engine = ctx;

	/* What all engines of an interface see of it, the first one says. */
	if (level <= HARP_LOG_WARN && !engine->index)
		WARN("%s: %s", engine->name, message);
	else
		INFO("%s: %s", engine->name, message);
}

/* Reasons that need no try. */
bool engine_is_forbidden(const struct device *device, char *why, size_t why_len)
{
	const struct plugin_config *config = plugin_config();

	if (config->path == PATH_KERNEL)
		snprintf(why, why_len, "HARP_PATH=kernel");
	else if (!device->dpdk && device->has_default_route && !config->ifname_set)
		snprintf(why, why_len,
			 "%s carries the default route and is not named (set NCCL_SOCKET_IFNAME or "
			 "HARP_IFNAME to use it)",
			 device->ifname);
	else if (!device->dpdk && !strcmp(device->ifname, "lo"))
		snprintf(why, why_len, "lo is the loopback interface");
	else
		return false;
	return true;
}

/* HARP_RSS, the operator's word; NULL: the NIC is asked. */
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

/* Does the path policy send any message over HARP lanes in that mode? */
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

/* By harpd if it leases the device, else by ourselves if we may; neither: why has both reasons. */
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
		/* Nothing generic is attached or leased. */
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
	else if (rc == -ECANCELED && !opt.daemon_socket)
		snprintf(why, why_len, "%s", unwanted);
	else if (!rc &&
		 !engine_is_wanted(device, harp_instance_mode(engine->instance), why, why_len)) {
		harp_instance_close(engine->instance);
		rc = -ECANCELED;
	}
	return rc;
}

struct engine *engine_new(int dev, unsigned index, char *why, size_t why_len)
{
	const struct device *device = plugin_device(dev);
	struct engine *engine;

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
	if (engine_open(engine, device, why, why_len)) {
		free(engine);
		return NULL;
	}
	engine->stack = harp_instance_stack(engine->instance);
	engine_turn_init(engine);
	return engine;
}

void engine_free(struct engine *engine)
{
	harp_instance_close(engine->instance);
	free(engine);
}
