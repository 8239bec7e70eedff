/* SPDX-License-Identifier: Apache-2.0 */
/*
 * queue_placement.h - source ports that map a connection's packets to the right queues of both
 * NICs.
 *
 * A stack receives only packets of its own NIC queue. The connector can choose its source port. A
 * port is right if the peer's NIC maps the connection's packets to the listener's queue, and our
 * NIC maps the packets back to the connector's queue. This is computed if the hash keys and tables
 * are known; otherwise ports are tried.
 */
#ifndef HARP_PLUGIN_QUEUE_PLACEMENT_H
#define HARP_PLUGIN_QUEUE_PLACEMENT_H

#include "harp_host.h"

/* How the NIC of a HARP port chooses queues, in handle and CHALLENGE (docs/lanes.md 2 and 3.2). */
enum placement_kind {
	PLACEMENT_NONE = 0, /* a kernel socket: any port works */
	PLACEMENT_ONE_QUEUE = 1,
	PLACEMENT_UNKNOWN = 2,
	PLACEMENT_TOEPLITZ = 3,
};

/* One end: a queue, and how its NIC chooses queues. */
struct placement_end {
	enum placement_kind kind;
	uint16_t queue, queues;
	/* TOEPLITZ with known key and table (a handle has neither): an entry of rss.table that
	 * equals `queue` maps to this queue. */
	bool known;
	struct harp_rss rss;
};

/* In CHALLENGE; only PLACEMENT_TOEPLITZ ends are described. */
#define PLACEMENT_BYTES_MAX (8u + HARP_RSS_KEY_MAX + HARP_RSS_TABLE_MAX / 8u)
/* Returns bytes written; 0: none. */
size_t placement_encode(const struct placement_end *end, uint8_t out[PLACEMENT_BYTES_MAX]);
/* -EPROTO: invalid. */
int placement_decode(struct placement_end *end, const uint8_t *in, size_t len);
/* The end of an own instance. */
void placement_own(struct placement_end *end, const struct harp_rss *rss, uint32_t queue);

/* Iterates over source ports, each at most once, from a random start. */
struct placement {
	const struct placement_end *own, *peer; /* the caller's */
	struct harp_endpoint local, remote;     /* local.port: the last one given */
	uint16_t first;
	uint32_t count, start, at;
	bool try_all; /* a computed port did not work: try any port */
};
/* random: a new random number. The ports are first..last. */
void placement_begin(struct placement *p, const struct placement_end *own,
		     const struct placement_end *peer, const struct harp_endpoint *local,
		     const struct harp_endpoint *remote, uint16_t first, uint16_t last,
		     uint64_t random);
/* Does any port work? Both NICs have one queue, as far as known. */
bool placement_takes_any_port(const struct placement *p);
/* Is the first port known to work, so that nothing has to be tried? */
bool placement_is_computed(const struct placement *p);
/* The next source port that may work; 0: none is left. */
uint16_t placement_next(struct placement *p);

#endif
