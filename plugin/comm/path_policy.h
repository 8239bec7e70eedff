/* SPDX-License-Identifier: Apache-2.0 */
/* path_policy.h - which path carries a message: HARP lanes or kernel lanes. A rule, not learned while a job runs. */
#ifndef HARP_PLUGIN_PATH_POLICY_H
#define HARP_PLUGIN_PATH_POLICY_H

#include "plugin.h"

#define PATH_POLICY_ALL UINT64_MAX
/*
 * AF_XDP is faster than kernel TCP for messages of up to this many segments of the MTU. The kernel's cost is by the
 * packet that passes its stack, and with segmentation offload that is one GSO packet for a whole message. Measured
 * on veth in generic copy mode (docs/performance.md).
 */
#define PATH_POLICY_SEGMENTS_OFFLOAD 2u
#define PATH_POLICY_SEGMENTS 16u

/*
 * Messages of up to this many bytes prefer HARP lanes, longer ones kernel lanes. 0: all prefer kernel lanes;
 * PATH_POLICY_ALL: all prefer HARP lanes. A lane of the other kind takes a message when none of the preferred kind
 * works.
 */
static inline uint64_t path_policy_harp_bytes_max(const struct device *device,
						  const struct plugin_config *config)
{
	if (config->path == PATH_KERNEL)
		return 0;
	/* The kernel has no sockets on a DPDK port, nor this process on a NIC of another network namespace. */
	if (plugin_path_is_harp(config->path) || device->dpdk || device->netns)
		return PATH_POLICY_ALL;
	if (config->xdp_bytes_max)
		return config->xdp_bytes_max;
	return (uint64_t)device->mtu_bytes *
	       (device->segments ? PATH_POLICY_SEGMENTS_OFFLOAD : PATH_POLICY_SEGMENTS);
}

#endif
