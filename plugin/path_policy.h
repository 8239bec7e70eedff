/* SPDX-License-Identifier: Apache-2.0 */
/* path_policy.h - which path carries a message: HARP lanes or kernel lanes. Decided by settings and device, never learned. */
#ifndef HARP_PLUGIN_PATH_POLICY_H
#define HARP_PLUGIN_PATH_POLICY_H

#include "plugin.h"

#define PATH_POLICY_ALL UINT64_MAX

/*
 * Messages of up to this many bytes prefer HARP lanes, longer ones kernel lanes. 0: the device gets no HARP lanes, and
 * nothing is attached to it. PATH_POLICY_ALL: every message prefers HARP lanes. A lane of the other kind takes a message
 * when none of the preferred kind works.
 */
static inline uint64_t path_policy_harp_bytes_max(const struct device *device,
						  const struct plugin_config *config)
{
	if (config->path == PATH_KERNEL)
		return 0;
	/* The kernel has no sockets on a DPDK port, nor we on a NIC of another network namespace. */
	if (plugin_path_is_harp(config->path) || device->dpdk || device->netns)
		return PATH_POLICY_ALL;
	return config->xdp_bytes_max;
}

#endif
