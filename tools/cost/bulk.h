/* SPDX-License-Identifier: Apache-2.0 */
/* bulk.h - sim_bulk's two sides, and their turns. */
#ifndef HARP_TESTS_BULK_H
#define HARP_TESTS_BULK_H

#include <stdatomic.h>
#include <stdbool.h>

#include "harp.h"
#include "pair_nic.h"

#define BURST_MAX 256u
#define PATTERN_BYTES 65521u /* a prime: no two segments near each other are alike */
#define PIECE_BYTES 65536u

enum { MTU, CONNS, PACKETS, COPY, BURST, CSUM, THREADS, BUDGET, SLOTS, OPTIONS };

struct bench;
typedef void (*step_fn)(struct bench *b);

struct flow {
	struct harp_conn *conn;
	uint64_t at; /* bytes of the stream */
};

struct side {
	struct harp_stack *stack;
	struct harp_nic *nic;
	struct flow *flows;
	uint64_t now_ns;
	/* The frames of a turn, and whose. */
	struct harp_frame *frames[BURST_MAX];
	struct flow *owners[BURST_MAX];
	unsigned frame_count;
	unsigned next;  /* the flow whose turn it is */
	uint64_t bytes; /* taken or given, of all flows */
	step_fn step;
	/* Since the measuring began. */
	uint64_t cycles, nic_cycles_before, bytes_before, polls, steps, began_ns, ended_ns;
	/* The best slice of it: what a busy machine disturbed least. */
	uint64_t slice_bytes, slice_cycles, slice_nic_cycles;
	double best, best_nic; /* cycles a byte; 0: none yet */
	bool measuring;
};

struct bench {
	unsigned option[OPTIONS];
	uint32_t mss_bytes;
	struct pair *pair;
	struct side tx, rx;
	_Atomic bool stop;
	uint8_t pattern[PATTERN_BYTES + PIECE_BYTES];
	uint8_t piece[PIECE_BYTES];
};

uint64_t bulk_clock_ns(void);
__attribute__((noreturn)) void bulk_die(const char *what, long long value);
/* The clock of a side moves; it is to be polled. */
void bulk_tick(struct bench *b, struct side *side);
void bulk_forget_events(struct side *side);
void bulk_poll_tx(struct bench *b);
void bulk_poll_rx(struct bench *b);
/* One poll of a side, with what its application does before or after. */
void bulk_turn_tx(struct bench *b);
void bulk_turn_rx(struct bench *b);

#endif
