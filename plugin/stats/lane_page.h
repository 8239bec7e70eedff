/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lane_page.h - statistics of comms and lanes, for harpctl and Prometheus: the job's statistics
 * region.
 *
 * A process has one region (harp_page.h), from the first init to the last finalize; it needs
 * neither privileges nor harpd. Each comm and each lane has a record in it, its *statistics block*.
 * The thread that holds the comm's poller counts in place: each number is a 64-bit word, stored
 * relaxed. Totals of NICs and of the process have many writers, which add atomically. Without a
 * region, or if it is full, a comm counts in private memory.
 */
#ifndef HARP_PLUGIN_LANE_PAGE_H
#define HARP_PLUGIN_LANE_PAGE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "harp_page.h"
#include "lane/lane.h"

#define LANE_PAGE_TCP_NS 10000000u /* between queries of TCP for the statistics alone */

/* ---- the process ---------------------------------------------------------------------------- */

/* Creates the region unless it exists; a failure is logged by INFO. One init at a time. */
void lane_page_open(void);
void lane_page_close(void);
/* In a forked child: closes the descriptor. Async-signal-safe. */
void lane_page_fork_child(void);
/* Any thread. Counts from the first init to the last finalize. */
void lane_page_count(enum harp_job_counter counter, uint64_t n);
/*
 * A comm has lost its last lane over a NIC that it uses; has one again; or ends without one
 * (_left). The NIC counts as down as long as one comm reports so. Control thread.
 */
void lane_page_rail(int dev, bool down);
void lane_page_rail_left(int dev);

/* ---- comms ---------------------------------------------------------------------------------- */

struct comm_stats;

/* comm_id: on the wire. dev: requested by NCCL. fallback: why its first lane is a kernel lane, if
 * it is. NULL: out of memory. */
struct comm_stats *comm_stats_new(uint64_t comm_id, enum harp_page_side side, int dev,
				  enum harp_page_fallback fallback,
				  const struct harp_endpoint *remote);
/* The comm and its lanes are gone. */
void comm_stats_free(struct comm_stats *stats);
/* The last known retransmissions of all lanes of the comm, and the smoothed round-trip time of one.
 * Any thread. */
void comm_stats_tcp(const struct comm_stats *stats, uint64_t *retransmits, uint64_t *srtt_ns);
/* The comm has failed. */
void comm_stats_failed(struct comm_stats *stats);
/* A request is done. kinds: bits of enum lane_kind that carried the message; 0: it was received.
 * Poller held. */
void comm_stats_done(struct comm_stats *stats, unsigned kinds, uint64_t bytes, uint64_t now_ns);

/* For tests: the comm's record; and the statistics of its lane of that index, NULL: none yet. */
const struct harp_page_comm *comm_stats_record(const struct comm_stats *stats);
const struct lane_stats *comm_stats_lane(const struct comm_stats *stats, unsigned index);

/* ---- lanes ---------------------------------------------------------------------------------- */

/* Statistics of a lane index in a comm. A replacement of the lane continues them. */
struct lane_stats {
	struct harp_page_lane *record;
	struct harp_page_rail *rail;
	struct comm_stats *comm;     /* NULL: no lane has opened */
	uint64_t retransmits_before; /* of previous lanes of this index */
	uint32_t slot;               /* of the region */
	struct harp_page_lane own;   /* the record if the region has no space */
};

/* Finds or makes the statistics of that index. NULL: out of memory. Any thread. */
struct lane_stats *lane_stats_new(struct comm_stats *comm, unsigned index);
/* A lane has joined, after lane_stats_new(). If the previous one is open, it replaces it. Poller
 * held. */
void lane_stats_open(struct comm_stats *comm, unsigned index, const struct lane *lane,
		     enum harp_page_kind kind, int dev, bool backup);
/* The lane died by this error (0, -EPIPE: closed by the peer); its comm lives. Poller held. */
void lane_stats_died(struct lane_stats *stats, int error);
/* The lane ended with its comm. Poller held. */
void lane_stats_closed(struct lane_stats *stats);
/* Sets the lane's stalled state. Poller held. */
void lane_stats_stalled(struct lane_stats *stats, bool stalled);
/* Stores TCP's present values. Poller held. */
void lane_stats_tcp(struct lane_stats *stats, const struct lane_info *tcp, uint64_t now_ns);
/* No data is in flight. Poller held. */
void lane_stats_idle(struct lane_stats *stats);

/* Adds to a word that one thread at a time writes. */
static inline uint64_t stats_get(const uint64_t *word)
{
	return atomic_load_explicit((const _Atomic(uint64_t) *)word, memory_order_relaxed);
}
static inline void stats_set(uint64_t *word, uint64_t n)
{
	atomic_store_explicit((_Atomic(uint64_t) *)word, n, memory_order_relaxed);
}
static inline void stats_add(uint64_t *word, uint64_t n)
{
	stats_set(word, stats_get(word) + n);
}
/* Adds to a total that any thread writes. */
static inline void stats_sum(uint64_t *word, uint64_t n)
{
	atomic_fetch_add_explicit((_Atomic(uint64_t) *)word, n, memory_order_relaxed);
}

/* Adds to a number of the lane and to the NIC's total. Poller held, here and below. */
#define LANE_STATS_ADD(stats, name, n)                                                             \
	do {                                                                                       \
		stats_add(&(stats)->record->value[HARP_LANE_##name], n);                           \
		stats_sum(&(stats)->rail->value[HARP_RAIL_##name], n);                             \
	} while (0)

/* Bytes, headers included. */
static inline void lane_stats_sent(struct lane_stats *stats, uint64_t bytes, uint64_t now_ns)
{
	LANE_STATS_ADD(stats, sent_bytes, bytes);
	stats_set(&stats->record->value[HARP_LANE_updated_ns], now_ns);
}
static inline void lane_stats_received(struct lane_stats *stats, uint64_t bytes, uint64_t now_ns)
{
	LANE_STATS_ADD(stats, received_bytes, bytes);
	stats_set(&stats->record->value[HARP_LANE_updated_ns], now_ns);
}
/* Is a query of TCP due for the statistics? It can cost a system call. */
bool lane_stats_want_tcp(const struct lane_stats *stats, uint64_t now_ns);

#endif
