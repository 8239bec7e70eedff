/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rails.h - the NICs of a comm. A rail is a NIC of this process and one of the peer between which
 * lanes of the comm run. Rail 0 is the NIC that NCCL chose, on both sides.
 */
#ifndef HARP_PLUGIN_RAILS_H
#define HARP_PLUGIN_RAILS_H

#include "wire/preamble.h"

#define RAIL_PAIRS_MAX 4u /* of a comm */

/* The number of rails that HARP_RAILS allows. */
unsigned rails_allowed(void);
/* The devices that comms of dev may use: dev, then the others by speed, NUMA node and PCI distance,
 * as HARP_RAILS allows. Returns how many. */
unsigned rails_devices(int dev, int out[RAIL_PAIRS_MAX]);

/* The configured lanes of a comm of dev, 1 to COMM_LANES_MAX. harp: HARP lanes are possible. */
unsigned rails_lanes(int dev, bool harp);
/* The limit of lanes in CHALLENGE: 1 if path and lanes are configured so; else COMM_LANES_MAX. */
uint8_t rails_lanes_taken(int dev);

#endif
