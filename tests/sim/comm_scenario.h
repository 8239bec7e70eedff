/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm_scenario.h - what happens to comms and their lanes in a simulation, as data: made from a seed,
 * printed, read again, reduced (elements.h).
 *
 * Hosts have one NIC on each rail, and a rail is one wire. A comm sends from one host to another, over lanes:
 * HARP's (real stacks on the rail's wire) and simulated kernel lanes (comm_stream.c).
 */
#ifndef HARP_TESTS_COMM_SCENARIO_H
#define HARP_TESTS_COMM_SCENARIO_H

#include "elements.h"

#define CSN_COMM_KIND 2u /* of comm_scenario_layout */
#define CSN_LANE_KIND 3u
#define CSN_HOSTS_MAX 4u
#define CSN_RAILS_MAX 3u
#define CSN_NICS_MAX (CSN_HOSTS_MAX * CSN_RAILS_MAX)
#define CSN_COMMS_MAX 12u
#define CSN_LANES_MAX 64u
#define CSN_EVENTS_MAX 24u

enum csn_lane_kind { CSN_HARP = 1, CSN_KERNEL = 2 };

enum csn_sizes {
	CSN_SIZES_TINY = 0, /* up to 64 bytes, none too */
	CSN_SIZES_LL,       /* multiples of 8 up to size_max */
	CSN_SIZES_ODD,      /* anything up to size_max, around powers of two and multiples of 64 */
	CSN_SIZES_BULK,     /* size_max or a little less */
	CSN_SIZES_ALL,      /* size_max */
	CSN_SIZES_KINDS,
};

enum csn_event_kind {
	CSN_RESET = 0, /* the lane ends for both sides. HARP: a forged RST that fits */
	CSN_FIN,       /* kernel lane: both sides read its end. HARP: as CSN_RESET */
	CSN_SILENT,    /* nothing more of the lane arrives; one_way: of what the sender sends.
			* duration_ns 0: forever */
	CSN_SLOW,      /* kernel lane: a tenth of its rate */
	CSN_FORGE,     /* HARP lane: an RST that does not fit. Nothing must come of it */
	CSN_IMPAIR,    /* the path of what a NIC sends gets worse (or better) */
	CSN_CUT,       /* a NIC gets nothing; both ways unless one_way */
	CSN_GONE,      /* a NIC is removed for good */
	CSN_STALL,     /* the host's applications do not run, its background pollers do */
	CSN_FREEZE,    /* nothing of a host runs (SIGSTOP) */
	CSN_KILL,      /* the host's process dies */
	CSN_EVENT_KINDS,
};

#define CSN_WORLD(X)                                                                                     \
	X(seed, SCN_KEEP)                                                                                \
	X(hosts, SCN_KEEP)                                                                               \
	X(rails, SCN_KEEP)                                                                               \
	X(family, 4)                                                                                     \
	X(mtu_bytes, 1500)                                                                               \
	X(lane_timeout_ns, SCN_KEEP)                                                                     \
	X(user_timeout_ns, SCN_KEEP)                                                                     \
	X(probe_ns, SCN_KEEP)                                                                            \
	X(linger_ns, SCN_KEEP)                                                                           \
	X(poller_lag_ns, 1000) /* how late the background poller polls an engine, at most */             \
	X(interleave_ppm,                                                                                \
	  0) /* chance that other threads run in the middle of a send or receive */                      \
	X(hold_ppm,                                                                                      \
	  0) /* chance, per turn of an application, that another thread holds a poller */                \
	X(no_epoll_ppm,                                                                                  \
	  0) /* chance that kernel lanes get no epoll, or an attempt no place in the control thread's */ \
	X(no_ticks, 0)     /* only wake-ups cause turns of a lane */                                     \
	X(background, 0)   /* the control thread takes turns of comms */                                 \
	X(plant, SCN_KEEP) /* a bug to be found: enum csn_plant */

enum csn_plant {
	CSN_PLANT_NONE,
	CSN_PLANT_LATE,   /* kernel lanes write into a buffer again that was received */
	CSN_PLANT_TORN,   /* ... place half of an 8-byte unit, the later half */
	CSN_PLANT_BEYOND, /* ... write a byte behind the message */
	CSN_PLANT_KINDS,
};

#define CSN_COMM(X)                                                                                \
	X(stream, SCN_KEEP) /* names its bytes and sizes */                                        \
	X(from, SCN_KEEP)                                                                          \
	X(to, SCN_KEEP)                                                                            \
	X(multi_lane, SCN_KEEP) /* the plugin opens all but the first lane */                      \
	X(eager_bytes, 262144)                                                                     \
	X(no_credit, 0)                                                                            \
	X(messages, 1)                                                                             \
	X(sizes, CSN_SIZES_TINY)                                                                   \
	X(size_max, 64)                                                                            \
	X(slack_bytes, 0)    /* a receive is up to this much larger than its message */            \
	X(misalign_bytes, 0) /* of receive buffers */                                              \
	X(truncate_at, 0)    /* 1 + message whose receive is too small */                          \
	X(s_burst, 32)       /* outstanding at most */                                             \
	X(r_burst, 32)                                                                             \
	X(s_gap_ns, 0) /* between bursts, at most */                                               \
	X(r_gap_ns, 0)                                                                             \
	X(r_delay_ns, 0)   /* receives begin so late */                                            \
	X(s_poll_ns, 1000) /* between turns of an application with something to do, at most */     \
	X(r_poll_ns, 1000)                                                                         \
	X(s_close_at, 0) /* 1 + posted messages at which it closes, whatever is in flight */       \
	X(r_close_at, 0)                                                                           \
	X(s_close_ns, 0) /* between its last request and its close */                              \
	X(r_close_ns, 0)                                                                           \
	X(backoff_ns, SCN_KEEP) /* before a lost lane is opened again; it doubles */

#define CSN_LANE(X)                                                                                \
	X(comm, SCN_REF(CSN_COMM_KIND))                                                            \
	X(kind, SCN_KEEP)                                                                          \
	X(rail, 0)                                                                                 \
	X(backup, 0)                                                                               \
	X(delay_ns, 1000) /* from here on: kernel lanes */                                         \
	X(rate_bps, 0)                                                                             \
	X(buffer_bytes, 65536)                                                                     \
	X(short_ppm, 0) /* chance that a send or receive is cut short */

#define CSN_EVENT(X)                                                                               \
	X(kind, SCN_KEEP)                                                                          \
	X(lane, SCN_REF(CSN_LANE_KIND))                                                            \
	X(host, 0)                                                                                 \
	X(rail, 0)                                                                                 \
	X(start_ns, 0)                                                                             \
	X(step, 0) /* begins after this many steps; 0: at start_ns */                              \
	X(duration_ns, 1000)                                                                       \
	X(one_way, 0)                                                                              \
	X(keep, 0) /* kernel lane: what was sent before still arrives */

struct csn_world {
	CSN_WORLD(SCN_MEMBER)
};
struct csn_comm {
	CSN_COMM(SCN_MEMBER)
};
struct csn_lane {
	CSN_LANE(SCN_MEMBER)
};
struct csn_event {
	CSN_EVENT(SCN_MEMBER)
	struct scn_impair path; /* CSN_IMPAIR */
};

struct comm_scenario {
	struct csn_world world;
	struct scn_impair nics[CSN_NICS_MAX]; /* of what each sends: host * rails + rail */
	struct csn_comm comms[CSN_COMMS_MAX];
	struct csn_lane lanes[CSN_LANES_MAX]; /* of one comm in the order of their indices */
	struct csn_event events[CSN_EVENTS_MAX];
	unsigned nic_count, comm_count, lane_count, event_count;
};

extern const struct scn_layout comm_scenario_layout;

/* The scenario of a seed. */
void comm_scenario_make(struct comm_scenario *s, uint64_t seed);
/* A small one without trouble, for the exhaustive modes: which of COMM_SCENARIO_SMALL. */
#define COMM_SCENARIO_SMALL 8u
void comm_scenario_make_small(struct comm_scenario *s, unsigned which);

#endif
