/* SPDX-License-Identifier: Apache-2.0 */
/* path_policy.h - chooses the path of a message: HARP lanes or kernel lanes, by a static table. */
#ifndef HARP_PLUGIN_PATH_POLICY_H
#define HARP_PLUGIN_PATH_POLICY_H

#include <stdbool.h>
#include <stddef.h>

#include "device/device.h"
#include "process/config.h"

/* ---- what `harpctl tune` measured for the path policy and NCCL's tuner: a file
 * (docs/configuration.md) ---- */

#define PROFILE_ENTRIES_MAX 64u

/* Size classes of messages, smallest first. */
enum path_class { PATH_CLASS_NONE, PATH_CLASS_4K, PATH_CLASS_64K, PATH_CLASS_ALL };

/* One [[nic]]. */
struct profile_entry {
	char ifname[16];
	enum harp_instance_mode mode;
	enum path_class harp_up_to;
	struct harp_addr peers; /* a prefix of peers_bits bits */
	unsigned peers_bits;    /* 0: all peers */
	unsigned line;
};
/* [tuner]: equal on all hosts of a job, which is checked by a hash. */
#define PROFILE_POINTS_MAX 16u
struct profile_point { /* of a curve; `at` increases */
	uint64_t at, mb_per_s;
};
struct profile_curve {
	uint64_t count;
	struct profile_point points[PROFILE_POINTS_MAX];
};
struct profile_tuner {
	uint64_t latency_ns;           /* one way, of a small message; 0: no [tuner] */
	struct profile_curve rates;    /* by message size, with the best number of streams */
	struct profile_curve channels; /* by number of streams, large messages */
};
struct profile {
	struct profile_tuner tuner;
	unsigned count;
	struct profile_entry entries[PROFILE_ENTRIES_MAX];
};

/* A digest, to compare two hosts; 0: no [tuner]. */
uint32_t profile_tuner_digest(const struct profile_tuner *tuner);
bool profile_has_peer(const struct profile_entry *entry, const struct harp_addr *peer);
/* 1: read; 0: no such file; -EINVAL: it cannot be used on the host of that name, with one line in
 * why. *out is empty unless 1 is returned. */
int profile_read(const char *path, const char *host, struct profile *out, char *why,
		 size_t why_len);

/* ---- the policy ----------------------------------------------------------------------------- */

#define PATH_POLICY_ALL UINT64_MAX

/*
 * Messages of up to harp_bytes_max bytes prefer HARP lanes, longer ones kernel lanes. 0: all prefer
 * kernel lanes; PATH_POLICY_ALL: all prefer HARP lanes. If no lane of the preferred kind works, the
 * other kind carries the message.
 */
struct path_policy {
	uint64_t harp_bytes_max;
	const char *source; /* a setting, a profile, or the defaults */
};

/* The policy for messages to peer over the device in that mode. peer NULL: the peer with the
 * largest harp_bytes_max. */
struct path_policy path_policy_of(const struct device *device, enum harp_instance_mode mode,
				  const struct harp_addr *peer, const struct plugin_config *config,
				  const struct profile *profile);
/* Same, with this process's settings and profile. */
struct path_policy path_policy(const struct device *device, enum harp_instance_mode mode,
			       const struct harp_addr *peer);
/* Reads the profile; called by the first init, before the devices are loaded. An unusable profile
 * is one WARN, and the defaults apply. */
void path_policy_load(void);
/* The profile's times for the tuner. False: the profile has not been loaded. */
bool path_policy_tuner_times(struct profile_tuner *out);
/* Digest of the tuner's times; 0: the tuner is off. */
uint32_t path_policy_tuner(void);

#endif
