/* SPDX-License-Identifier: Apache-2.0 */
/* drop.h - maps that harp-switch shares with drop.bpf.c. Each port has its own object and maps. */
#ifndef HARP_TOOLS_DROP_H
#define HARP_TOOLS_DROP_H

#include <linux/types.h>

/* Written by harp-switch, read by the program. */
struct drop_settings {
	__u64 seed;
	__u64 threshold; /* of 2^32: packets whose number hashes below it are dropped */
};

/* Written by the program. */
struct drop_counts {
	__u64 packets; /* TCP packets */
	__u64 dropped_payload_bytes;
	__u64 super_packets; /* GSO packets: an offload is on */
};

#endif
