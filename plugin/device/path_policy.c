/* SPDX-License-Identifier: Apache-2.0 */
/* path_policy.c - see path_policy.h. */
#include "device/path_policy.h"

#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "harp_config.h"
#include "process/log.h"

/*
 * The largest class of messages that HARP lanes carry, by the mode of the NIC and by whether the kernel has
 * segmentation offload there (TSO, or GSO in software): with it a message costs the kernel one pass of its stack,
 * without it one for each packet.
 *
 *   generic copy   measured (docs/performance.md): HARP lanes are slower, or less than 1.3 times as fast
 *   DPDK           the kernel has no sockets on the port
 *   others         assumptions: no machine of this project has such a NIC. HARP lanes send small messages without a
 *                  pass of the kernel's stack; in copy mode the kernel copies each packet, so bulk pays for it
 */
static const enum path_class path_defaults[HARP_MODE_COUNT][2] = {
	/* offload off, on */
	[HARP_MODE_NONE] = { PATH_CLASS_NONE, PATH_CLASS_NONE },
	[HARP_MODE_GENERIC_COPY] = { PATH_CLASS_NONE, PATH_CLASS_NONE },
	[HARP_MODE_NATIVE_COPY] = { PATH_CLASS_64K, PATH_CLASS_4K },
	[HARP_MODE_ZERO_COPY] = { PATH_CLASS_ALL, PATH_CLASS_64K },
	[HARP_MODE_DPDK] = { PATH_CLASS_ALL, PATH_CLASS_ALL },
};

static uint64_t path_class_bytes(enum path_class class)
{
	static const uint64_t bytes[] = {
		[PATH_CLASS_NONE] = 0,
		[PATH_CLASS_4K] = 4096,
		[PATH_CLASS_64K] = 65536,
		[PATH_CLASS_ALL] = PATH_POLICY_ALL,
	};

	return bytes[class];
}

static bool path_profile_names(const struct profile_entry *entry, const struct device *device,
			       enum harp_instance_mode mode)
{
	return entry->mode == mode && !strcmp(entry->ifname, device->ifname);
}

/* The first entry that fits decides. */
static bool path_by_profile(const struct profile *profile, const struct device *device,
			    enum harp_instance_mode mode, const struct harp_addr *peer,
			    enum path_class *class)
{
	bool found = false;

	for (unsigned i = 0; i < profile->count; i++) {
		const struct profile_entry *entry = &profile->entries[i];

		if (!path_profile_names(entry, device, mode) ||
		    (peer && !profile_has_peer(entry, peer)))
			continue;
		if (!found || entry->harp_up_to > *class)
			*class = entry->harp_up_to;
		found = true;
		/* Without a peer the entries that follow an entry for all peers decide nothing. */
		if (peer || !entry->peers_bits)
			return true;
	}
	return found;
}

struct path_policy path_policy_of(const struct device *device, enum harp_instance_mode mode,
				  const struct harp_addr *peer, const struct plugin_config *config,
				  const struct profile *profile)
{
	enum path_class class;

	if (config->path == PATH_KERNEL)
		return (struct path_policy){ 0, "HARP_PATH" };
	if (plugin_path_is_harp(config->path))
		return (struct path_policy){ PATH_POLICY_ALL, "HARP_PATH" };
	/* The kernel has no sockets on a DPDK port, nor this process on a NIC of another network namespace. */
	if (device->dpdk || device->netns)
		return (struct path_policy){ PATH_POLICY_ALL, "no kernel path" };
	if (config->xdp_bytes_max)
		return (struct path_policy){ config->xdp_bytes_max, "HARP_XDP_BYTES_MAX" };
	if (path_by_profile(profile, device, mode, peer, &class))
		return (struct path_policy){ path_class_bytes(class), "profile" };
	class = path_defaults[mode][device->segments];
	return (struct path_policy){ path_class_bytes(class),
				     device->segments ? "defaults, segmentation offload on"
						      : "defaults, segmentation offload off" };
}

static struct profile path_profile; /* Writer: path_policy_load, at the first init */

struct path_policy path_policy(const struct device *device, enum harp_instance_mode mode,
			       const struct harp_addr *peer)
{
	return path_policy_of(device, mode, peer, plugin_config(), &path_profile);
}

uint32_t path_policy_tuner(void)
{
	return plugin_config()->tuner == TUNER_OFF ? 0 : profile_tuner_digest(&path_profile.tuner);
}

static const struct profile_entry *path_missing_nic(const struct profile *profile)
{
	for (unsigned i = 0; i < profile->count; i++)
		if (!if_nametoindex(profile->entries[i].ifname))
			return &profile->entries[i];
	return NULL;
}

void path_policy_load(void)
{
	const char *named = plugin_config()->profile,
		   *file = named[0] ? named : HARP_CONFIG_PROFILE;
	const struct profile_entry *missing;
	char host[65] = "", why[256];
	int rc;

	gethostname(host, sizeof(host) - 1);
	rc = profile_read(file, host, &path_profile, why, sizeof(why));
	if (!rc && !named[0])
		return; /* there is none */
	if (!rc)
		snprintf(why, sizeof(why), "no such file");
	missing = rc > 0 ? path_missing_nic(&path_profile) : NULL;
	if (missing)
		snprintf(why, sizeof(why), "line %u: this host has no interface %s", missing->line,
			 missing->ifname);
	if (rc > 0 && !missing) {
		INFO("profile %s: %u entries", file, path_profile.count);
		return;
	}
	memset(&path_profile, 0, sizeof(path_profile));
	WARN("profile %s is ignored, the default path policy holds: %s; run `harpctl tune` or remove it",
	     file, why);
}
