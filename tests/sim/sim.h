/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim.h - the simulator: runs a scenario under a virtual clock and checks every step.
 *
 *	sim.c           the schedule: polls a stack only at its deadline or when a packet arrives
 *	sim_net.c       the wire and the NICs, which stall and lose packets
 *	sim_segments.c  checks every segment that a stack sends or receives
 *	sim_app.c       applications, which send a known stream and check the received one
 *	sim_memory.c    application memory that is sent in place
 *	sim_check.c     invariants at each step and at the end
 */
#ifndef HARP_TESTS_SIM_H
#define HARP_TESTS_SIM_H

#include "base/rng.h"
#include "harp.h"
#include "runner.h"
#include "scenario.h"

#define SIM_NEVER_NS UINT64_MAX
#define SIM_MS UINT64_C(1000000)
#define SIM_S UINT64_C(1000000000)

struct sim;

enum sim_role { SIM_CLIENT = 0, SIM_SERVER = 1 };

/* One end of a connection. */
struct sim_app {
	struct harp_conn *conn; /* NULL: not open yet, or closed */
	unsigned stack, pair;
	uint64_t stream; /* determines the bytes that it sends */
	uint64_t send_total, sent, received;
	uint64_t wake_ns; /* when it next has something to do without an event */
	uint64_t stall_until_ns, hold_until_ns;
	uint64_t progress_ns; /* when it last made progress */
	const struct scn_side *spec;
	bool connected, shut, eof, closed, wait_writable, paused, ready;
	struct harp_frame *held[4]; /* received frames that it keeps for a while */
	unsigned held_count;
	uint8_t *memory[2]; /* two copies of its stream, sent in place; NULL: none */
	enum { MEMORY_OF_STACK, MEMORY_REVOKED, MEMORY_OF_APP } memory_owner[2];
};

struct sim_pair {
	const struct scn_conn *spec;
	struct sim_app app[2];
	uint32_t iss_seq; /* of the client; identifies the accepted connection */
	uint16_t client_port;
	uint64_t start_ns; /* earliest time of the first attempt */
	bool started, accepted;
	bool excused; /* the scenario explains an error */
};

/* The NIC of a stack: a port of the wire that stalls and loses packets as the scenario says. */
struct sim_card {
	struct harp_nic *nic;
	struct sim *sim;
	unsigned index;
	bool tx_refused;
	uint32_t tx_held;
	uint64_t ring_until_ns, starve_until_ns, complete_until_ns;
	uint32_t ring_max;
	uint64_t cut_until_ns[SCN_STACKS_MAX]; /* by sending stack: its packets are lost */
};

struct sim_stack {
	struct harp_stack *stack; /* NULL: destroyed, until its restart ends */
	struct sim_card card;
	struct harp_listener *listeners[SCN_LISTENS_MAX]; /* by index in the scenario */
	uint64_t polled_ns, stall_until_ns;
};

struct sim_segments; /* sim_segments.c */

struct sim {
	const struct scenario *scenario;
	struct rng rng;
	uint64_t now_ns, heal_ns; /* the last event ends */
	struct harp_wire *wire;
	struct sim_stack stacks[SCN_STACKS_MAX];
	struct sim_pair pairs[SCN_CONNS_MAX];
	uint8_t event_state[SCN_EVENTS_MAX]; /* 0: pending, 1: active, 2: over */
	struct sim_segments *segments;
	bool verbose;          /* prints every segment */
	uint64_t polls, bytes; /* bytes delivered */
};

/* Runs a scenario from the creation of the stacks to the return of the last frame. False:
 * runner_reason() has the failure; with dump, stdout has the state of all parts. */
bool sim_run(struct sim *sim, const struct scenario *scenario, bool dump);

/* ---- sim_net.c ---- */
bool sim_net_make(struct sim *sim);
void sim_net_destroy(struct sim *sim);
struct harp_addr sim_net_addr(const struct sim *sim, unsigned stack);
bool sim_net_stack_make(struct sim *sim, unsigned stack);
void sim_net_stack_destroy(struct sim *sim, unsigned stack);
/* When the NIC next has a packet or completion. */
uint64_t sim_net_card_next_ns(struct sim_card *card);
void sim_net_event_begin(struct sim *sim, const struct scn_event *event);
void sim_net_event_end(struct sim *sim, const struct scn_event *event);
struct harp_tcp_options sim_tcp_options(uint64_t rx_frames, uint64_t tx_frames,
					uint64_t keepalive_ns, uint64_t congestion, uint64_t ecn);

/* ---- sim_segments.c ---- */
bool sim_segments_make(struct sim *sim);
void sim_segment_track_sent(struct sim *sim, unsigned stack, const uint8_t *packet, uint32_t len);
void sim_segment_track_received(struct sim *sim, unsigned stack, uint8_t *packet, uint32_t len);

/* ---- sim_app.c ---- */
/* Runs one turn of an application. False: a check failed. */
bool sim_app_turn(struct sim *sim, struct sim_app *app);
/* Records that the connection was destroyed with its stack. */
void sim_app_lose_stack(struct sim_app *app);
void sim_bytes(uint64_t stream, uint64_t at, uint8_t *out, size_t len);

/* ---- sim_memory.c ---- */
ssize_t sim_memory_send(struct sim *sim, struct sim_app *app, size_t len);
/* After a poll: applications reclaim memory that the stack no longer needs. */
bool sim_memory_step(struct sim *sim, unsigned stack);
/* Frees the memory of all applications of the stack, before the stack is destroyed. */
void sim_memory_free(struct sim *sim, unsigned stack);

/* ---- sim_check.c ---- */
uint64_t sim_stat(const struct sim *sim, unsigned stack, const char *name);
bool sim_check_step(struct sim *sim, unsigned stack);
bool sim_check_end(struct sim *sim);
void sim_dump(const struct sim *sim);
/* Checks whether the scenario explains this failure of a connection. If so, marks it as excused. */
bool sim_check_error(struct sim *sim, struct sim_app *app, int err);

#endif
