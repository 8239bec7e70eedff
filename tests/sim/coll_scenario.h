/* SPDX-License-Identifier: Apache-2.0 */
/*
 * coll_scenario.h - what the ranks of a group do in a simulation, as data: made from a seed, printed, read
 * again, reduced (elements.h).
 *
 * All ranks make the same calls in the same order, unless an event says otherwise.
 */
#ifndef HARP_TESTS_COLL_SCENARIO_H
#define HARP_TESTS_COLL_SCENARIO_H

#include "elements.h"

#define CLN_RANKS_MAX 8u
#define CLN_CALLS_MAX 16u
#define CLN_EVENTS_MAX 2u

enum cln_event_kind {
	CLN_LATE,     /* the rank pauses for duration_ns before the call */
	CLN_CUT,      /* nothing that the rank sends arrives: for duration_ns, 0: for ever */
	CLN_ABSENT,   /* the rank does not make the call, nor later ones */
	CLN_MISMATCH, /* the rank calls with another number of elements */
	CLN_EVENT_KINDS,
};

#define CLN_WORLD(X)                                                                               \
	X(seed, SCN_KEEP)                                                                          \
	X(ranks, SCN_KEEP)                                                                         \
	X(hosts, 0)  /* rank r is on host r modulo so many; 0: every rank has a host of its own */ \
	X(groups, 1) /* one after another */                                                       \
	X(timeout_ms, SCN_KEEP)                                                                    \
	X(store_ns, 0)     /* a request of the store takes up to this */                           \
	X(refuse_ppm, 0)   /* chance that the plugin takes no message now */                       \
	X(plant, SCN_KEEP) /* 1: an element of a message is changed; it must be found */

#define CLN_NIC(X)                                                                                 \
	X(delay_ns, 1000)                                                                          \
	X(jitter_ns, 0)                                                                            \
	X(rate_bps, 0)                                                                             \
	X(late_ppm, 0) /* chance that a message arrives later by late_ns, as one that was lost */  \
	X(late_ns, 0)

#define CLN_CALL(X)                                                                                \
	X(op, SCN_KEEP) /* enum harp_coll_op; SEND: each rank sends to rank + peer */              \
	X(count, 1)                                                                                \
	X(is_float, 0)                                                                             \
	X(reduce, 0)                                                                               \
	X(peer, 0)                                                                                 \
	X(in_place, 0)                                                                             \
	X(overlaps, 0) /* it is waited for after the calls that follow */

#define CLN_EVENT(X)                                                                               \
	X(kind, SCN_KEEP)                                                                          \
	X(call, 0)                                                                                 \
	X(rank, 0)                                                                                 \
	X(duration_ns, SCN_KEEP)

struct coll_scenario {
	struct cln_world {
		CLN_WORLD(SCN_MEMBER)
	} world;
	struct cln_nic {
		CLN_NIC(SCN_MEMBER)
	} nics[CLN_RANKS_MAX];
	struct cln_call {
		CLN_CALL(SCN_MEMBER)
	} calls[CLN_CALLS_MAX];
	struct cln_event {
		CLN_EVENT(SCN_MEMBER)
	} events[CLN_EVENTS_MAX];
	unsigned nic_count, call_count, event_count;
};

extern const struct scn_layout coll_scenario_layout;

void coll_scenario_make(struct coll_scenario *scenario, uint64_t seed);

#endif
