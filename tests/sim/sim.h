/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim.h - the simulator: two stacks on a bad wire under a virtual clock, everything from one seed.
 *
 * A seed decides the wire (delay, rate, loss, reordering, duplication, corruption, completion delay,
 * frame size, MTU, IPv4 or IPv6, tagged or not), the connections, and how their applications behave: how much they send and in what
 * pieces, with which of the API's calls, when they stop reading, who closes first. What must hold in
 * the end is always the same; sim_check_end() has the list.
 */
#ifndef HARP_TESTS_SIM_H
#define HARP_TESTS_SIM_H

#include <stdbool.h>

#include "base/rng.h"
#include "harp.h"
#include "harp_stats.h"

#define SIM_CONNS_MAX 6
#define SIM_REASON_MAX 200

enum sim_side { SIM_CLIENT = 0, SIM_SERVER = 1 };

/* How one application uses one direction of one connection. */
enum sim_send { SIM_SEND_COPY, SIM_SEND_FRAMES, SIM_SEND_MIXED };
enum sim_recv { SIM_RECV_COPY, SIM_RECV_PEEK, SIM_RECV_FRAMES };

struct sim_app {
	struct harp_conn *conn; /* NULL: not yet, or closed */
	uint64_t stream;        /* names the bytes it sends */
	uint64_t send_total, sent, received;
	uint64_t stall_until_ns; /* does not read before */
	uint32_t piece_max;      /* bytes of one call, at most */
	uint32_t stall_ppm;      /* chance of stopping to read, per turn */
	uint64_t stall_ns_max;
	enum sim_send send;
	enum sim_recv recv;
	bool connected, shut, eof, closed, wait_writable;
	bool more;                  /* stopped reading before it was told that nothing waits */
	bool aborts;                /* ends with an abort once half is sent */
	struct harp_frame *held[4]; /* received frames it keeps for a while */
	unsigned held_count;
};

struct sim_pair {
	struct sim_app app[2];
};

struct sim {
	uint64_t seed;
	bool v6;          /* every other seed */
	uint16_t vlan_id; /* a quarter of them */
	struct rng rng;
	uint64_t now_ns;
	struct harp_wire *wire;
	struct harp_nic *nic[2];
	struct harp_stack *stack[2];
	struct harp_listener *listener;
	unsigned conns;
	struct sim_pair pairs[SIM_CONNS_MAX];
	bool may_fail;  /* an application aborts: its peer may see an error */
	uint64_t trace; /* hash of everything that happened, with its time */
	uint64_t steps;
	uint64_t bytes;              /* delivered */
	char reason[SIM_REASON_MAX]; /* of a failure */
};

/* What a scenario may contain; the sweep over seeds leaves it all on. */
struct sim_limits {
	uint32_t loss_ppm_max;
	bool dump; /* on failure, where everyone stands */
};

/* Runs a seed from creation to the last frame's return. False: sim->reason says what broke. */
bool sim_run(struct sim *sim, uint64_t seed, const struct sim_limits *limits);

/* The byte at a position of a stream. */
uint8_t sim_byte(uint64_t stream, uint64_t at);
void sim_bytes(uint64_t stream, uint64_t at, uint8_t *out, size_t len);

/* sim_app.c: one turn of an application; false when it found something wrong. */
bool sim_app_turn(struct sim *sim, struct sim_pair *pair, enum sim_side side);
/* The earliest time at which it will do something unasked; 0: as soon as it has a turn. */
uint64_t sim_app_next_ns(const struct sim_app *app);
bool sim_fail(struct sim *sim, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
