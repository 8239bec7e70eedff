/* SPDX-License-Identifier: Apache-2.0 */
/* path_policy.h - which path carries a message: HARP lanes or kernel lanes. A table, not learned while a job runs. */
#ifndef HARP_PLUGIN_PATH_POLICY_H
#define HARP_PLUGIN_PATH_POLICY_H

#include <stdbool.h>
#include <stddef.h>

#include "device/device.h"
#include "process/config.h"

/* ---- what `harpctl tune` measured for the path policy and NCCL's tuner: a file (docs/configuration.md) ---- */

#define PROFILE_ENTRIES_MAX 64u

/* Size classes of messages, smallest first: HARP lanes carry the messages up to the end of a class. */
enum path_class { PATH_CLASS_NONE, PATH_CLASS_4K, PATH_CLASS_64K, PATH_CLASS_ALL };

/* One [[nic]]. */
struct profile_entry {
	char ifname[16];
	enum harp_instance_mode mode;
	enum path_class harp_up_to;
	struct harp_addr peers; /* the first peers_bits bits count */
	unsigned peers_bits;    /* 0: all peers */
	unsigned line;
};
/* [tuner]: of all hosts of a job the same, which is seen by a hash of its bytes. */
#define PROFILE_POINTS_MAX 16u
struct profile_point { /* of a curve; at rises */
	uint64_t at, mb_per_s;
};
struct profile_curve {
	uint64_t count;
	struct profile_point points[PROFILE_POINTS_MAX];
};
struct profile_tuner {
	uint64_t latency_ns;           /* of a small message, one way; 0: there is no [tuner] */
	struct profile_curve rates;    /* by bytes of a message, with the streams that pay */
	struct profile_curve channels; /* by streams at once, large messages */
};
struct profile {
	struct profile_tuner tuner;
	unsigned count;
	struct profile_entry entries[PROFILE_ENTRIES_MAX];
};

/* Tells whether two hosts have measured, or were given, the same; 0: there is no [tuner]. */
uint32_t profile_tuner_digest(const struct profile_tuner *tuner);
bool profile_has_peer(const struct profile_entry *entry, const struct harp_addr *peer);
/* 1: read; 0: there is no such file; -EINVAL: it cannot be used on the host of that name, and why (one line) says the
 * reason. out is empty unless 1 is returned. */
int profile_read(const char *path, const char *host, struct profile *out, char *why,
		 size_t why_len);

/* ---- the policy ---------------------------------------------------------------------------------- */

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
/* Digest of the times that NCCL's tuner uses; 0: it is off. */
uint32_t path_policy_tuner(void);

#endif
