/* SPDX-License-Identifier: Apache-2.0 */
/* rails.h - the addresses and ports of an acceptor's NICs, as CHALLENGE carries them. */
#ifndef HARP_PLUGIN_WIRE_RAILS_H
#define HARP_PLUGIN_WIRE_RAILS_H

#include <stddef.h>

#include "harp.h"

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

#endif
