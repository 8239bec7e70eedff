/* SPDX-License-Identifier: Apache-2.0 */
/* lane_harp.h - a lane over HARP's TCP. The poller of its engine is held throughout. */
#ifndef HARP_PLUGIN_LANE_HARP_H
#define HARP_PLUGIN_LANE_HARP_H

#include "poll/engine.h"
#include "lane/lane.h"

/* Unsent bytes at most: as much as one poll sends, while the copy is in the cache. */
#define LANE_HARP_UNSENT_BYTES 262144u
/* Delay of the ACKs of small messages and of control records, which no request waits for. Less than
 * the peer's earliest tail loss probe, 500 us. */
#define LANE_HARP_DELAYED_ACK_NS 200000u

struct lane_harp {
	struct lane lane; /* first */
	struct engine *engine;
	struct harp_conn *conn;
	struct engine_lane member;    /* in the engine's list */
	uint64_t closing_deadline_ns; /* 0: not closing */
	uint64_t sent_bytes;          /* given to send() */
	uint64_t external_end;        /* of them, the end of the last piece that is sent in place */
	bool connected;
	bool in_place; /* the NIC can read the application's memory */
	bool warned_silent;
	uint64_t watched_ns; /* a request is outstanding since then, and keepalive is on; 0: off */
	/* Seen by info(): time of the last received segment, and window probes sent before it. */
	uint64_t received_ns, probes_answered;
};

/* The options of every connection of a lane, for listeners too. */
void lane_harp_tcp_options(struct harp_tcp_options *opt, int dscp);

#endif
