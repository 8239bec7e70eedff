/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rails.h - the NICs of a comm. A rail is a NIC of this process and one of the peer between which lanes of the comm run.
 * Rail 0 is the NIC that NCCL chose, on both sides.
 */
#ifndef HARP_PLUGIN_RAILS_H
#define HARP_PLUGIN_RAILS_H

#include "wire/preamble.h"

#define RAIL_PAIRS_MAX 4u /* of a comm */

/* The devices that comms of dev may use, dev first, then the best: as fast, near the same processor, near on
 * PCI. As many as HARP_RAILS allows; returns how many. */
unsigned rails_devices(int dev, int out[RAIL_PAIRS_MAX]);

/* Lanes of a comm of dev as we are configured, 1 to COMM_LANES_MAX, if HARP lanes can be had (harp) or not. */
unsigned rails_lanes(int dev, bool harp);
/* Lanes of a comm that CHALLENGE allows: 1 if path and lanes are set so that there is one; else as many as the connector
 * likes. */
uint8_t rails_lanes_taken(int dev);

struct rail_pair {
	int dev;     /* ours */
	uint8_t nic; /* the peer's */
	bool backup; /* carries nothing while another works */
};
/* Is there a way from a device of ours to an address of the peer's? */
typedef bool rails_reaches(int dev, const struct rail_entry *entry);
/* What HARP_RAILS allows of what the peer advertises, (devs[0], 0) first in any case; returns how many. */
unsigned rails_pair(const int *devs, unsigned dev_count, const struct rails *peer,
		    rails_reaches *reaches, struct rail_pair out[RAIL_PAIRS_MAX]);

#endif
