/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rails.h - the NICs of a comm: what an acceptor tells of its own, and which of ours go with them.
 *
 * A rail is a NIC of ours and one of the peer's between which the lanes of a comm run. Rail 0 is the NIC that
 * NCCL chose, on both sides.
 */
#ifndef HARP_PLUGIN_RAILS_H
#define HARP_PLUGIN_RAILS_H

#include "harp.h"
#include "plugin.h"

/* The extension of CHALLENGE (docs/lanes.md section 3.2). */
#define RAILS_EXTENSION_TYPE 2u
#define RAIL_ENTRIES_MAX 16u
#define RAILS_BYTES_MAX (4u + 32u * RAIL_ENTRIES_MAX)

/* One address of a NIC of the acceptor's. */
struct rail_entry {
	struct harp_addr addr;
	uint8_t nic; /* entries of one NIC have the same; 0: the NIC of the handle */
	uint16_t harp_port, kernel_port; /* 0: none; one of them there is */
	uint8_t placement; /* of the HARP port: enum placement_kind, queues and its own queue */
	uint16_t queues, queue;
	uint32_t speed_mbps; /* 0: unknown */
};

struct rails {
	unsigned count;
	struct rail_entry entry[RAIL_ENTRIES_MAX];
};

/* Bytes written; 0: there is nothing to tell. */
size_t rails_encode(const struct rails *rails, uint8_t out[RAILS_BYTES_MAX]);
/* -EPROTO: not what rails_encode() writes. */
int rails_decode(struct rails *out, const uint8_t *in, size_t len);

/* ---- which go together ------------------------------------------------------------------------ */

#define RAIL_PAIRS_MAX 4u /* of a comm */

/* The devices that comms of dev may use, dev first, then the best: as fast, near the same processor, near on
 * PCI. As many as HARP_RAILS allows; returns how many. */
unsigned rails_devices(int dev, int out[RAIL_PAIRS_MAX]);

/* Lanes of a comm of dev as we are configured, 1 to COMM_LANES_MAX, if HARP lanes can be had (harp) or not. */
unsigned rails_lanes(int dev, bool harp);
/* Lanes of a comm that CHALLENGE says we take: 1 where we are told to have one, by a path that we are told,
 * too; else as many as the connector likes. */
uint8_t rails_lanes_taken(int dev);

struct rail_pair {
	int dev;     /* ours */
	uint8_t nic; /* the peer's */
	bool backup; /* carries nothing while another works */
};
/* Is there a way from a device of ours to an address of the peer's? */
typedef bool rails_reaches(void *ctx, int dev, const struct rail_entry *entry);
/* What HARP_RAILS allows of what the peer tells, (devs[0], 0) first whatever is told; returns how many. */
unsigned rails_pair(const int *devs, unsigned dev_count, const struct rails *peer,
		    rails_reaches *reaches, void *ctx, struct rail_pair out[RAIL_PAIRS_MAX]);

#endif
