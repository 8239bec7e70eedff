/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm_scenario.h - what happens to comms and their lanes in a simulation, as data: generated from
 * a seed, printed, parsed, shrunk (elements.h).
 *
 * Hosts have one NIC on each rail, and a rail is one wire. A comm sends from one host to another,
 * over HARP lanes (real stacks on the rail's wire) and simulated kernel lanes (comm_stream.c).
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
	CSN_SIZES_TINY = 0, /* 0 to 64 bytes */
	CSN_SIZES_LL,       /* multiples of 8 up to size_max */
	CSN_SIZES_ODD,      /* up to size_max, often near powers of two and multiples of 64 */
	CSN_SIZES_BULK,     /* size_max, sometimes less */
	CSN_SIZES_ALL,      /* size_max */
	CSN_SIZES_KINDS,
};

enum csn_event_kind {
	CSN_RESET = 0, /* the lane is reset at both ends. HARP: by a valid forged RST */
	CSN_FIN,       /* kernel lane: both sides read FIN. HARP: as CSN_RESET */
	CSN_SILENT,    /* no data arrives; one_way: none from the sender; duration 0: forever */
	CSN_SLOW,      /* kernel lane: a tenth of its rate */
	CSN_FORGE,     /* HARP lane: an invalid RST, which must have no effect */
	CSN_IMPAIR,    /* the path from a NIC gets worse (or better) */
	CSN_CUT,       /* nothing arrives at a NIC; unless one_way, nothing from it */
	CSN_GONE,      /* a NIC is removed for good */
	CSN_STALL,     /* the host's applications stop, its background pollers run */
	CSN_FREEZE,    /* the host stops completely (SIGSTOP) */
	CSN_KILL,      /* the host's process dies */
	CSN_EVENT_KINDS,
};

#define CSN_WORLD(X)                                                                               \
	X(seed, SCN_KEEP)                                                                          \
	X(hosts, SCN_KEEP)                                                                         \
	X(rails, SCN_KEEP)                                                                         \
	X(family, 4)                                                                               \
	X(mtu_bytes, 1500)                                                                         \
	X(lane_timeout_ns, SCN_KEEP)                                                               \
	X(user_timeout_ns, SCN_KEEP)                                                               \
	X(probe_ns, SCN_KEEP)                                                                      \
	X(linger_ns, SCN_KEEP)                                                                     \
	X(poller_lag_ns, 1000) /* maximum delay of a turn of the background poller */              \
	X(interleave_ppm, 0)   /* chance that other threads run during a send or receive */        \
	X(hold_ppm, 0)         /* chance per application turn that a poller is held */             \
	X(no_epoll_ppm, 0)     /* chance that epoll_ctl() fails */                                 \
	X(no_ticks, 0)         /* only wake-ups cause turns of a lane */                           \
	X(background, 0)       /* the control thread runs turns of comms */                        \
	X(plant, SCN_KEEP)     /* planted bug: enum csn_plant */

enum csn_plant {
	CSN_PLANT_NONE,
	CSN_PLANT_LATE,   /* kernel lanes write to a completed buffer */
	CSN_PLANT_TORN,   /* ... deliver half of an 8-byte unit, the second half */
	CSN_PLANT_BEYOND, /* ... write a byte behind the message */
	CSN_PLANT_KINDS,
};

#define CSN_COMM(X)                                                                                \
	X(stream, SCN_KEEP) /* determines its bytes and sizes */                                   \
	X(from, SCN_KEEP)                                                                          \
	X(to, SCN_KEEP)                                                                            \
	X(multi_lane, SCN_KEEP) /* the plugin opens all lanes but the first */                     \
	X(eager_bytes, 262144)                                                                     \
	X(no_credit, 0)                                                                            \
	X(messages, 1)                                                                             \
	X(sizes, CSN_SIZES_TINY)                                                                   \
	X(size_max, 64)                                                                            \
	X(slack_bytes, 0)    /* maximum excess of a receive over its message */                    \
	X(misalign_bytes, 0) /* of receive buffers */                                              \
	X(truncate_at, 0)    /* 1 + message whose receive is too small */                          \
	X(s_burst, 32)       /* maximum of outstanding requests */                                 \
	X(r_burst, 32)                                                                             \
	X(s_gap_ns, 0) /* maximum time between bursts */                                           \
	X(r_gap_ns, 0)                                                                             \
	X(r_delay_ns, 0)   /* delay of the first receive */                                        \
	X(s_poll_ns, 1000) /* maximum time between turns of a busy application */                  \
	X(r_poll_ns, 1000)                                                                         \
	X(s_close_at, 0) /* 1 + posted messages at which it closes early */                        \
	X(r_close_at, 0)                                                                           \
	X(s_close_ns, 0) /* between its last request and its close */                              \
	X(r_close_ns, 0)                                                                           \
	X(backoff_ns, SCN_KEEP) /* before the first reconnect of a lane; it doubles */

#define CSN_LANE(X)                                                                                \
	X(comm, SCN_REF(CSN_COMM_KIND))                                                            \
	X(kind, SCN_KEEP)                                                                          \
	X(rail, 0)                                                                                 \
	X(backup, 0)                                                                               \
	X(delay_ns, 1000) /* kernel lanes only, like all below */                                  \
	X(rate_bps, 0)                                                                             \
	X(buffer_bytes, 65536)                                                                     \
	X(short_ppm, 0) /* chance of a short send or receive */

#define CSN_EVENT(X)                                                                               \
	X(kind, SCN_KEEP)                                                                          \
	X(lane, SCN_REF(CSN_LANE_KIND))                                                            \
	X(host, 0)                                                                                 \
	X(rail, 0)                                                                                 \
	X(start_ns, 0)                                                                             \
	X(step, 0) /* begins after this many steps; 0: at start_ns */                              \
	X(duration_ns, 1000)                                                                       \
	X(one_way, 0)                                                                              \
	X(keep, 0) /* kernel lane: data that was sent before still arrives */

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
	struct scn_impair nics[CSN_NICS_MAX]; /* path from each NIC: host * rails + rail */
	struct csn_comm comms[CSN_COMMS_MAX];
	struct csn_lane lanes[CSN_LANES_MAX]; /* ordered by index within a comm */
	struct csn_event events[CSN_EVENTS_MAX];
	unsigned nic_count, comm_count, lane_count, event_count;
};

extern const struct scn_layout comm_scenario_layout;

/* Generates the scenario of a seed. */
void comm_scenario_make(struct comm_scenario *s, uint64_t seed);
/* Generates a small scenario without disturbance, for the exhaustive modes; which: below
 * COMM_SCENARIO_SMALL. */
#define COMM_SCENARIO_SMALL 8u
void comm_scenario_make_small(struct comm_scenario *s, unsigned which);

#endif
