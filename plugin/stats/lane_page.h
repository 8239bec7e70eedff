/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lane_page.h - what comms and lanes do, for harpctl and Prometheus: the job's statistics page.
 *
 * One page a process (harp_page.h), made by the first init and gone with the last finalize; without privileges,
 * harpd or instances too. Who moves bytes counts them in a row of this process's memory, by any thread and
 * without a lock; lane_page_publish() copies rows to the page now and then, and the keeper does when a comm has had
 * nothing outstanding for a moment: a copy costs more than a small message's bookkeeping does otherwise. Without a page (no memory, no descriptors) everything here works and nobody
 * sees it. NULL rows are accepted everywhere: a row that could not be had is not missed.
 */
#ifndef HARP_PLUGIN_LANE_PAGE_H
#define HARP_PLUGIN_LANE_PAGE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "harp_page.h"
#include "lane/lane.h"

struct comm_row;

#define LANE_PAGE_PERIOD_NS 10000000u /* from a comm's copy to its next */

/* A lane's place in its comm: lives as long as the comm's row, whoever has the place. */
struct lane_row {
	struct comm_row *comm;
	atomic_bool dirty; /* something isn't on the page */
	atomic_bool *comm_dirty;
	_Atomic(uint64_t) value[HARP_LANE_COUNT];
};

/* ---- the process; plugin.c ------------------------------------------------------------------- */

/* The page; a failure is told by INFO and costs sight only. Repeated calls are free. ctx_lock held. */
void lane_page_open(void);
void lane_page_close(void);
/* The keeper has nothing to do with the page from here on; no comm is left. */
void lane_page_rest(void);
/* In a forked child: lets go of the descriptor. Async-signal-safe. */
void lane_page_fork_child(void);
/* Any thread. Counts from the first init to the last finalize. */
void lane_page_count(enum harp_job_counter counter, uint64_t n);
/*
 * The keeper's baton. A comm has no working lane left over a NIC that it uses; or has one again; or ends before it has (_left). The NIC is
 * down as long as one comm says so.
 */
void lane_page_rail(int dev, bool down);
void lane_page_rail_left(int dev);

/* ---- comms ------------------------------------------------------------------------------------ */

struct comm_row_options {
	uint64_t comm_id; /* on the wire */
	enum harp_page_side side;
	int dev; /* that NCCL asked for */
	struct harp_endpoint remote;
};
/* NULL without memory. */
struct comm_row *lane_page_comm_add(const struct comm_row_options *opt);
/* A request is done; its message went out over these kinds, the bits of enum lane_kind; 0: it came. Any one
 * thread at a time. */
void lane_page_comm_done(struct comm_row *row, unsigned kinds, uint64_t bytes);
/* The comm has failed. */
void lane_page_comm_failed(struct comm_row *row);
/* The comm and its lanes are gone; nobody counts in their rows any more. */
void lane_page_comm_remove(struct comm_row *row);

/* ---- lanes ------------------------------------------------------------------------------------ */

struct lane_row_options {
	unsigned index; /* in the comm, below 32 */
	enum harp_page_kind kind;
	bool sealed, backup;
	int dev;
	struct harp_endpoint local, remote;
	const void *who; /* tells this lane from others that have or had its place */
};
/* A lane of the comm is open: the row of its index, which it takes over when another had it before, and one that
 * is open still has been given up for another source port. NULL without memory, or for an index that no comm has. */
struct lane_row *lane_page_lane_add(struct comm_row *comm, const struct lane_row_options *opt);
/* It was lost of this error (0, -EPIPE: closed by the peer) while its comm lived. */
void lane_page_lane_died(struct lane_row *row, const void *who, int error);
/* The peer has ended the comm's lane of that index as if for another, and none came: it died, which nobody has told. */
void lane_page_lane_unreplaced(struct comm_row *comm, unsigned index);
/* It has ended with its comm, or never was of it. */
void lane_page_lane_closed(struct lane_row *row, const void *who);
/* As it is now; told again: nothing. */
void lane_page_lane_stalled(struct lane_row *row, bool stalled);
/* A chunk that another lane had, unacknowledged, is sent again over this one. */
void lane_page_chunk_moved_here(struct lane_row *row);
/* A chunk that was there already came over it. */
void lane_page_chunk_duplicate(struct lane_row *row);

/* Release: who finds the flag finds the number too. */
static inline void lane_page_touch(struct lane_row *row)
{
	atomic_store_explicit(&row->dirty, true, memory_order_release);
	atomic_store_explicit(row->comm_dirty, true, memory_order_release);
}

/* Any thread: bytes, chunks_sent, chunks_moved_away; as many as happened together. */
static inline void lane_page_add(struct lane_row *row, enum harp_lane_value value, uint64_t n)
{
	if (!row || n == 0)
		return;
	atomic_fetch_add_explicit(&row->value[value], n, memory_order_relaxed);
	lane_page_touch(row);
}

/* May TCP be asked again? Some 100 times a second: it can cost a system call. */
bool lane_page_wants_tcp(const struct lane_row *row, uint64_t now_ns);
void lane_page_tcp(struct lane_row *row, const struct lane_info *tcp, uint64_t now_ns);

/* By whoever has advanced a lane of the comm, at the end of it. idle: no request is outstanding, and the keeper
 * sees to it that all is on the page at its next beat, if it isn't at once. */
void lane_page_publish(struct comm_row *row, uint64_t now_ns, bool idle);

#endif
