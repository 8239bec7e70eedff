/* SPDX-License-Identifier: Apache-2.0 */
/*
 * queue_placement.h - which source ports bring a connection's packets to the right queues, on both NICs.
 *
 * A stack hears only what its NIC puts on its own queue. What the connector can choose is its source port; a
 * port is right when the hash of the packets there leads to the listener's queue and that of the packets back
 * to the connector's. Where key and table are known that is computed, else it is tried.
 */
#ifndef HARP_PLUGIN_QUEUE_PLACEMENT_H
#define HARP_PLUGIN_QUEUE_PLACEMENT_H

#include "harp_host.h"

/* How the NIC of a HARP port chooses queues, as handle and CHALLENGE say it (docs/lanes.md 2 and 3.2). */
enum placement_kind {
	PLACEMENT_NOT_SAID = 0, /* an older peer, or a kernel's socket: any port does */
	PLACEMENT_ONE_QUEUE = 1,
	PLACEMENT_UNKNOWN = 2,
	PLACEMENT_TOEPLITZ = 3,
};

/* One end: a queue, and what its NIC does. */
struct placement_end {
	enum placement_kind kind;
	uint16_t queue, queues;
	/* TOEPLITZ, and key and table are here (a handle has room for neither): entries of rss.table that
	 * are `queue` lead there, others don't. */
	bool known;
	struct harp_rss rss;
};

/* What the extension says, its type and length left out; PLACEMENT_TOEPLITZ ends alone have one. */
#define PLACEMENT_EXTENSION_TYPE 1u
#define PLACEMENT_EXTENSION_BYTES_MAX (8u + HARP_RSS_KEY_MAX + HARP_RSS_TABLE_MAX / 8u)
/* Bytes written; 0: there is nothing to say. */
size_t placement_encode(const struct placement_end *end,
			uint8_t out[PLACEMENT_EXTENSION_BYTES_MAX]);
/* -EPROTO: not what placement_encode() writes. */
int placement_decode(struct placement_end *end, const uint8_t *in, size_t len);
/* An instance's own end. */
void placement_own(struct placement_end *end, const struct harp_rss *rss, uint32_t queue);

/* The walk over source ports, each at most once, from a random one on. */
struct placement {
	const struct placement_end *own, *peer; /* the caller's */
	struct harp_endpoint local, remote;     /* local.port: the last one given */
	uint16_t first;
	uint32_t count, start, at;
	bool distrust; /* what should have worked did not: try any port */
};
/* random: any number, never twice the same. The ports are first..last. */
void placement_begin(struct placement *p, const struct placement_end *own,
		     const struct placement_end *peer, const struct harp_endpoint *local,
		     const struct harp_endpoint *remote, uint16_t first, uint16_t last,
		     uint64_t random);
/* Any port does: both NICs have one queue, as far as anybody says. */
bool placement_is_free(const struct placement *p);
/* One port is enough: nothing has to be tried. */
bool placement_is_certain(const struct placement *p);
/* The next source port that may do; 0: there is none left. */
uint16_t placement_next(struct placement *p);

#endif
