/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scenario.h - what happens in a simulation, as data: generated from a seed, printed, parsed,
 * shrunk.
 *
 * The world, stacks, listeners, connections and events are elements (elements.h).
 */
#ifndef HARP_TESTS_SCENARIO_H
#define HARP_TESTS_SCENARIO_H

#include "elements.h"

#define SCN_STACK_KIND 1u /* of scn_layout */
#define SCN_LISTEN_KIND 2u
#define SCN_STACKS_MAX 8u
#define SCN_LISTENS_MAX 16u
#define SCN_CONNS_MAX 32u
#define SCN_EVENTS_MAX 32u

enum scn_conn_kind {
	SCN_STREAM = 0,   /* both send at once */
	SCN_RPC,          /* the client sends a request when the last answer is complete */
	SCN_HALF,         /* the server sends once the client has finished sending */
	SCN_SIMULTANEOUS, /* both connect, at the same time */
};
enum scn_send { SCN_SEND_COPY, SCN_SEND_FRAMES, SCN_SEND_MIXED, SCN_SEND_EXTERNAL };
enum scn_recv { SCN_RECV_COPY, SCN_RECV_PEEK, SCN_RECV_FRAMES };

enum scn_event_kind {
	SCN_DEGRADE = 0, /* the path from `stack` gets worse (or better) */
	SCN_STALL,       /* `stack` and its applications do not run */
	SCN_DOWN,        /* `stack`'s link is down */
	SCN_CUT,         /* no packet passes between `stack` and `peer`; one_way: to `peer` */
	SCN_RESTART,     /* `stack` is destroyed, and created when the event ends */
	SCN_RING,        /* the NIC of `stack` holds at most `count` frames to send */
	SCN_STARVE,      /* the NIC takes no receive frames */
	SCN_COMPLETE,    /* the NIC reports no completions */
	SCN_EVENT_KINDS,
};

#define SCN_WORLD(X)                                                                               \
	X(seed, SCN_KEEP)                                                                          \
	X(family, 4) /* 4 or 6 */                                                                  \
	X(vlan_id, 0)                                                                              \
	X(mtu_bytes, 1500)                                                                         \
	X(frame_bytes, 2048)                                                                       \
	X(frame_count, 2048)                                                                       \
	X(packets_max, 8192)                                                                       \
	X(complete_delay_ns, 0)                                                                    \
	X(offloads, 0)           /* of all NICs: HARP_NIC_TX_CSUM, HARP_NIC_TX_TSO */              \
	X(external_count, 0)     /* external frames of each NIC */                                 \
	X(tx_frags, 0)           /* descriptors of a packet; 0: 8 */                               \
	X(plant_bytes, SCN_KEEP) /* planted bug: 1 + the stream offset of a damaged byte */

#define SCN_STACK(X)                                                                               \
	X(ecn_mark_bytes, 0)                                                                       \
	X(inbound, 0)         /* rate, queue and marks apply to the path to the stack */           \
	X(poll_cost_ns, 1000) /* between two polls */                                              \
	X(poll_lag_ns, 0)     /* maximum delay of a due poll */                                    \
	X(eager, 0)           /* polled whenever another stack is */

#define SCN_LISTEN(X)                                                                              \
	X(stack, SCN_REF(SCN_STACK_KIND))                                                          \
	X(port, SCN_KEEP)                                                                          \
	X(rx_frames, 0)                                                                            \
	X(tx_frames, 0)                                                                            \
	X(backlog, 0)                                                                              \
	X(keepalive_ns, SCN_KEEP)                                                                  \
	X(congestion, 0)                                                                           \
	X(ecn, 0)

/* An application. p: the prefix of its fields, c_ or s_. */
#define SCN_SIDE(X, p)                                                                             \
	X(p##bytes, 1)                                                                             \
	X(p##piece_bytes, 9000)                                                                    \
	X(p##send, SCN_SEND_COPY)                                                                  \
	X(p##recv, SCN_RECV_COPY)                                                                  \
	X(p##stall_ppm, 0) /* chance per turn to stop reading */                                   \
	X(p##stall_ns, 0)  /* for at most this time */                                             \
	X(p##pause_at, 0)  /* after this many bytes were read, ... */                              \
	X(p##pause_ns, 0)  /* ... it reads nothing for this time */                                \
	X(p##abort_at, 0)  /* 1 + bytes sent; 0: never */                                          \
	X(p##hold_ns, 0)   /* idle between the last byte and FIN */                                \
	X(p##delayed_ack_ns, 0)

#define SCN_CONN(X)                                                                                \
	X(client, SCN_REF(SCN_STACK_KIND))                                                         \
	X(server, SCN_REF(SCN_STACK_KIND))                                                         \
	X(listen, SCN_REF(SCN_LISTEN_KIND))                                                        \
	X(kind, SCN_STREAM)                                                                        \
	X(start_ns, 0)                                                                             \
	X(local_port, 0)                                                                           \
	X(rounds, 1) /* SCN_RPC: instead of c_bytes and s_bytes */                                 \
	X(request_bytes, 1)                                                                        \
	X(answer_bytes, 1)                                                                         \
	X(rx_frames, 0)                                                                            \
	X(tx_frames, 0)                                                                            \
	X(unsent_bytes_max, 0)                                                                     \
	X(keepalive_ns, SCN_KEEP)                                                                  \
	X(user_timeout_ns, 0)                                                                      \
	X(congestion, 0)                                                                           \
	X(ecn, 0)

#define SCN_EVENT(X)                                                                               \
	X(kind, SCN_KEEP)                                                                          \
	X(stack, SCN_REF(SCN_STACK_KIND))                                                          \
	X(peer, SCN_REF(SCN_STACK_KIND))                                                           \
	X(start_ns, 0)                                                                             \
	X(duration_ns, 1000)                                                                       \
	X(one_way, 0)                                                                              \
	X(count, 0)

struct scn_world {
	SCN_WORLD(SCN_MEMBER)
};
struct scn_stack {
	struct scn_impair path; /* from the stack */
	SCN_STACK(SCN_MEMBER)
};
struct scn_listen {
	SCN_LISTEN(SCN_MEMBER)
};
struct scn_side {
	SCN_SIDE(SCN_MEMBER, )
};
struct scn_conn {
	SCN_CONN(SCN_MEMBER)
	struct scn_side side[2]; /* client, server */
};
struct scn_event {
	SCN_EVENT(SCN_MEMBER)
	struct scn_impair path; /* SCN_DEGRADE */
};

struct scenario {
	struct scn_world world;
	struct scn_stack stacks[SCN_STACKS_MAX];
	struct scn_listen listens[SCN_LISTENS_MAX];
	struct scn_conn conns[SCN_CONNS_MAX];
	struct scn_event events[SCN_EVENTS_MAX];
	unsigned stack_count, listen_count, conn_count, event_count;
};

extern const struct scn_layout scenario_layout;

/* The scenario of a seed. */
void scenario_make(struct scenario *s, uint64_t seed);

#endif
