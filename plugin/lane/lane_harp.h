/* SPDX-License-Identifier: Apache-2.0 */
/* lane_harp.h - what lane_harp.c keeps of a lane. The poller of its engine is held throughout. */
#ifndef HARP_PLUGIN_LANE_HARP_H
#define HARP_PLUGIN_LANE_HARP_H

#include "poll/engine.h"
#include "lane/lane.h"

/* One poll's worth of what may wait unsent: copied and sent while it is in the cache. */
#define LANE_HARP_UNSENT_BYTES 262144u
/* Pieces from this size on are sent in place: a smaller one costs more in records and descriptors than the copy. */
#define LANE_HARP_IN_PLACE_BYTES 2048u
/* No request depends on TCP's ACKs of a receiver's records. Less than the soonest loss probe of a TCP like ours, 500 us. */
#define LANE_HARP_DELAYED_ACK_NS 200000u
/* A watched peer that says nothing for so long is reported once. */
#define LANE_HARP_SILENCE_NS 5000000000ull

struct lane_harp {
	struct lane lane; /* first */
	struct engine *engine;
	struct harp_conn *conn;
	struct engine_lane member;    /* of the engine */
	uint64_t closing_deadline_ns; /* 0: not closing */
	bool connected;
	bool in_place; /* the NIC can read the application's memory */
	bool warned_silent;
	uint64_t watched_ns; /* a request is outstanding since, and keepalive is on; 0: none is */
	/* Of the connection when info() was asked: the last segment heard, and the window probes sent before. */
	uint64_t received_ns, probes_answered;
};

/* The options of every connection of a lane, for listeners too. */
void lane_harp_tcp_options(struct harp_tcp_options *opt, int dscp);

#endif
