/* SPDX-License-Identifier: Apache-2.0 */
/* lane_harp.h - between lane_harp.c and engine.c: the lanes of one engine. Baton held throughout. */
#ifndef HARP_PLUGIN_LANE_HARP_H
#define HARP_PLUGIN_LANE_HARP_H

#include "poll/engine.h"
#include "lane/lane.h"

/* Frames that one connection may hold for each direction: 256 of 1448 bytes are 371 KB of window, enough
 * for 30 Gbit/s at a round trip of 100 us; and half of what the NIC holds for receiving at first
 * (NICIO_FILL_MIN), so that one sender can't overrun a receiver that was away for a while. */
#define LANE_HARP_FRAMES 256u
/* One poll's worth of what may wait unsent: copied and sent while it is in the cache. */
#define LANE_HARP_UNSENT_BYTES 262144u
/* Pieces from this size on are sent in place: a smaller one costs more in records and descriptors than the copy. */
#define LANE_HARP_IN_PLACE_BYTES 2048u
/* Nobody waits for TCP's ACKs of a receiver's records. Less than the soonest loss probe of a TCP like ours, 500 us. */
#define LANE_HARP_DELAYED_ACK_NS 200000u
/* A watched peer that says nothing for so long is reported once (design.md section 8). */
#define LANE_HARP_SILENCE_NS 5000000000ull

struct lane_harp {
	struct lane lane; /* first */
	struct engine *engine;
	struct harp_conn *conn;
	struct lane_harp *next, **pprev; /* the engine's list */
	uint64_t closing_deadline_ns;    /* 0: not closing */
	bool connected;
	bool in_place; /* the NIC can read the application's memory */
	bool watched;  /* a request is outstanding */
	bool probing;  /* keepalive is on */
	bool warned_silent;
	uint64_t watched_ns; /* since when */
	/* Of the connection when info() was asked: the last segment heard, and the window probes sent before. */
	uint64_t heard_ns, probes_answered;
};

/* The options of every connection of a lane, for listeners too. */
void lane_harp_tcp_options(struct harp_tcp_options *opt, int dscp);
/* The stack's events of h; h may be gone afterwards. */
void lane_harp_event(struct lane_harp *h, uint32_t events, uint64_t now_ns);
/* The interface was removed: the lane is dead, one that closes ends. h may be gone afterwards. */
void lane_harp_gone(struct lane_harp *h, uint64_t now_ns);
/* A few times a second: ends lingering closes, stops needless probes, reports silence. h may be gone
 * afterwards. */
void lane_harp_tick(struct lane_harp *h, uint64_t now_ns);

/* engine.c's side. */
void engine_add_lane(struct engine *engine, struct lane_harp *h);
void engine_forget_lane(struct engine *engine, struct lane_harp *h);
/* h now lives only to finish its close. */
void engine_lane_closing(struct engine *engine, struct lane_harp *h);
/* h was reset: its siblings to the same host ask at once whether they are still wanted. */
void engine_probe_peer(struct engine *engine, const struct lane_harp *h);

#endif
