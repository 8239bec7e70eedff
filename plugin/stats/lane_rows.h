/* SPDX-License-Identifier: Apache-2.0 */
/* lane_rows.h - rows of comms and lanes: what lane_rows.c counts in and lane_publish.c copies to the page. */
#ifndef HARP_PLUGIN_LANE_ROWS_H
#define HARP_PLUGIN_LANE_ROWS_H

#include <sched.h>
#include <stdatomic.h>

#include "stats/lane_page_impl.h"

#define ROW_LANES_MAX 32u

/* A lane's row, and what is not its counters. */
struct lane_slot {
	struct lane_row row;
	uint32_t place;
	unsigned rail;                  /* of the lane that has the place */
	uint64_t retransmits_old;       /* of the lanes that had it before */
	uint64_t told[HARP_LANE_COUNT]; /* to the rail */
	struct harp_endpoint local, remote;
	const void *who; /* the lane that has the place */
	char ifname[16];
};

struct comm_row {
	atomic_flag busy;
	atomic_bool dirty;
	atomic_bool owed; /* lane_owed.c's */
	_Atomic(uint64_t) next_ns;
	_Atomic(uint64_t) value[HARP_COMM_COUNT];
	uint32_t place;
	struct comm_row *next, **pprev; /* lane_owed.c's, under its lock */
	/* Under busy. */
	uint64_t told[HARP_COMM_COUNT]; /* to the process's counters */
	unsigned lane_count;            /* the highest index in use, and one */
	struct lane_slot *lanes[ROW_LANES_MAX];
	struct harp_endpoint remote;
	char ifname[16];
};

static inline void row_lock(struct comm_row *row)
{
	while (atomic_flag_test_and_set_explicit(&row->busy, memory_order_acquire))
		sched_yield();
}

static inline void row_unlock(struct comm_row *row)
{
	atomic_flag_clear_explicit(&row->busy, memory_order_release);
}

static inline uint64_t lane_value(const struct lane_row *row, enum harp_lane_value value)
{
	return atomic_load_explicit(&row->value[value], memory_order_relaxed);
}

/* busy held: what the NIC's record doesn't know yet. */
void slot_tell_rail(struct lane_slot *slot);
/* busy held: everything that isn't on the page. idle: nothing is on its way. */
void row_publish(struct comm_row *row, uint64_t now_ns, bool idle);

/* lane_owed.c; busy not held */
void row_list(struct comm_row *row);
void row_unlist(struct comm_row *row);
/* The comm has fallen idle: what isn't on the page will be, at the keeper's next beat. False: there is no keeper. */
bool row_owe(struct comm_row *row);

#endif
