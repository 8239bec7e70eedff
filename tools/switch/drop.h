/* SPDX-License-Identifier: Apache-2.0 */
/* drop.h - what harp-switch and its BPF program tell each other; one object, hence one map, a port. */
#ifndef HARP_TOOLS_DROP_H
#define HARP_TOOLS_DROP_H

#include <linux/types.h>

/* Written by harp-switch, read by the program. */
struct drop_settings {
	__u64 seed;
	__u64 threshold; /* of 2^32: a packet whose number hashes below it is lost */
};

/* Written by the program. */
struct drop_counts {
	__u64 packets; /* TCP packets that came */
	__u64 dropped_payload_bytes;
	__u64 super_packets; /* of more than one segment: an offload is on */
};

#endif
