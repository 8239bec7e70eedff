/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rails.h - the NICs of a comm. A rail is a NIC of this process and one of the peer between which
 * lanes of the comm run. Rail 0 is the NIC that NCCL chose, on both sides.
 */
#ifndef HARP_PLUGIN_RAILS_H
#define HARP_PLUGIN_RAILS_H

#include <stdbool.h>

#include "wire/preamble.h"

#define RAILS_MAX (1u + PREAMBLE_NICS_MAX) /* of a comm */

/* The devices that comms of dev may use: dev, then the others by speed, NUMA node and PCI distance,
 * as HARP_RAILS allows. Returns how many. */
unsigned rails_devices(int dev, int out[RAILS_MAX]);

/* May a comm of dev have more than one lane? harp: HARP lanes are possible. */
bool rails_are_multi_lane(int dev, bool harp);

#endif
