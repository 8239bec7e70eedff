/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile.h - the path policy and the times for NCCL's tuner that `harpctl tune` measured: a file (docs/configuration.md).
 */
#ifndef HARP_PLUGIN_PROFILE_H
#define HARP_PLUGIN_PROFILE_H

#include <stdbool.h>
#include <stddef.h>

#include "harp_host.h"

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
/* [tuner]: of all hosts of a job the same. */
#define PROFILE_POINTS_MAX 16u
struct profile_point { /* of a curve; at rises */
	uint64_t at;
	uint32_t mb_per_s;
};
struct profile_curve {
	unsigned count;
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

#endif
