/* SPDX-License-Identifier: Apache-2.0 */
/* path_policy.h - which path carries a message: HARP lanes or kernel lanes. A table, not learned while a job runs. */
#ifndef HARP_PLUGIN_PATH_POLICY_H
#define HARP_PLUGIN_PATH_POLICY_H

#include "device/device.h"
#include "process/config.h"
#include "device/profile.h"

#define PATH_POLICY_ALL UINT64_MAX

/*
 * Messages of up to harp_bytes_max prefer HARP lanes, longer ones kernel lanes. 0: all prefer kernel lanes;
 * PATH_POLICY_ALL: all prefer HARP lanes. A lane of the other kind takes a message when none of the preferred kind
 * works.
 */
struct path_policy {
	uint64_t harp_bytes_max;
	const char *source; /* what decided it: a setting, a profile, or the defaults */
};

/* Of messages to peer over that device in that mode. peer NULL: to the peer that HARP lanes carry most to. */
struct path_policy path_policy_of(const struct device *device, enum harp_instance_mode mode,
				  const struct harp_addr *peer, const struct plugin_config *config,
				  const struct profile *profile);
/* The same with this process's settings and profile. */
struct path_policy path_policy(const struct device *device, enum harp_instance_mode mode,
			       const struct harp_addr *peer);
/* Reads the profile, at the first init, when the devices are known. One that cannot be used is named by one WARN, and
 * the defaults hold. */
void path_policy_load(void);
/* Digest of the times that NCCL's tuner goes by (profile.h); 0: it is off. */
uint32_t path_policy_tuner(void);

#endif
