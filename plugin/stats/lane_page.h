/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lane_page.h - what comms and lanes do, for harpctl and Prometheus: the job's statistics region.
 *
 * A process has one region (harp_page.h), made by the first init and gone with the last finalize; it needs no
 * privileges, harpd or instances. A comm and each of its lanes have a record in it, their *statistics block*. The
 * thread that holds the comm's poller counts there in place: each number is one 64-bit word, stored relaxed. The
 * totals of NICs and of the process have many writers, which add atomically. Without a region, or when it is full,
 * a comm counts in memory of its own and no reader sees it.
 */
#ifndef HARP_PLUGIN_LANE_PAGE_H
#define HARP_PLUGIN_LANE_PAGE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "harp_page.h"
#include "lane/lane.h"

#define LANE_PAGE_TCP_NS 10000000u /* TCP is asked no more often for the statistics alone */

/* ---- the process ------------------------------------------------------------------------------- */

/* Makes the region; a failure is logged by INFO. Repeated calls are free. ctx_lock held. */
void lane_page_open(void);
void lane_page_close(void);
/* In a forked child: closes the descriptor. Async-signal-safe. */
void lane_page_fork_child(void);
/* Any thread. Counts from the first init to the last finalize. */
void lane_page_count(enum harp_job_counter counter, uint64_t n);
/*
 * The control thread. A comm has no working lane left over a NIC that it uses; or has one again; or ends before it
 * has (_left). The NIC is down as long as one comm says so.
 */
void lane_page_rail(int dev, bool down);
void lane_page_rail_left(int dev);

/* ---- comms ------------------------------------------------------------------------------------- */

struct comm_stats;

struct comm_stats_options {
	uint64_t comm_id; /* on the wire */
	enum harp_page_side side;
	int dev;                          /* that NCCL asked for */
	enum harp_page_fallback fallback; /* why its first lane is a kernel lane, if it is */
	struct harp_endpoint remote;
};
/* NULL: out of memory. */
struct comm_stats *comm_stats_new(const struct comm_stats_options *opt);
/* The comm and its lanes are gone. */
void comm_stats_free(struct comm_stats *stats);
/* What TCP said last of the comm's lanes: retransmissions of all of them so far, the smoothed round trip of one. Any
 * thread. */
void comm_stats_tcp(const struct comm_stats *stats, uint64_t *retransmits, uint64_t *srtt_ns);
/* The comm has failed. */
void comm_stats_failed(struct comm_stats *stats);
/* A request is done. kinds: the kinds of lanes that its message left by, bits of enum lane_kind; 0: it was
 * received. Poller held. */
void comm_stats_done(struct comm_stats *stats, unsigned kinds, uint64_t bytes, uint64_t now_ns);

/* Its record, and the statistics of its lane of that index (NULL: there was none yet). */
const struct harp_page_comm *comm_stats_record(const struct comm_stats *stats);
const struct lane_stats *comm_stats_lane(const struct comm_stats *stats, unsigned index);

/* ---- lanes ------------------------------------------------------------------------------------- */

/* A place (index) in a comm. It outlives the lane: its successor counts on. */
struct lane_stats {
	struct harp_page_lane *record;
	struct harp_page_rail *rail;
	struct comm_stats *comm;
	uint64_t retransmits_before; /* of the lanes that had the place before */
	const void *owner;           /* the lane that has the place */
	uint32_t slot;               /* of the region */
	struct harp_page_lane own;   /* the record while it is hidden */
};

struct lane_stats_options {
	unsigned index; /* in the comm, below 32 */
	enum harp_page_kind kind;
	bool encrypted, backup;
	int dev;
	struct harp_endpoint local, remote;
	const void *owner; /* tells this lane from others that have or had its place */
};
/* A lane is open: it takes the place of its index, also from one that is open still and is replaced. NULL: out of
 * memory. Any thread. */
struct lane_stats *lane_stats_open(struct comm_stats *comm, const struct lane_stats_options *opt);
/* It was lost to this error (0, -EPIPE: closed by the peer) while its comm lived. */
void lane_stats_died(struct lane_stats *stats, const void *owner, int error);
/* It has ended with its comm, or was never part of it. */
void lane_stats_closed(struct lane_stats *stats, const void *owner);
/* Repeated calls with the same state are free. Poller held. */
void lane_stats_stalled(struct lane_stats *stats, bool stalled);
/* As TCP said now. Poller held. */
void lane_stats_tcp(struct lane_stats *stats, const struct lane_info *tcp, uint64_t now_ns);
/* Nothing is on its way. Poller held. */
void lane_stats_idle(struct lane_stats *stats);

/* A word that one thread at a time writes. */
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
/* A total that any thread adds to. */
static inline void stats_sum(uint64_t *word, uint64_t n)
{
	atomic_fetch_add_explicit((_Atomic(uint64_t) *)word, n, memory_order_relaxed);
}

/* Adds to a number of the lane and to the NIC's total of it. Poller held, as for the following. */
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
static inline void lane_stats_payload(struct lane_stats *stats, uint64_t bytes)
{
	LANE_STATS_ADD(stats, payload_bytes, bytes);
}
static inline void lane_stats_chunk_sent(struct lane_stats *stats, uint64_t bytes)
{
	LANE_STATS_ADD(stats, chunks_sent, 1);
	lane_stats_payload(stats, bytes);
}
/* Chunks that others send again. */
static inline void lane_stats_moved_away(struct lane_stats *stats, uint64_t chunks)
{
	LANE_STATS_ADD(stats, chunks_moved_away, chunks);
}
/* A chunk that another lane had, unacknowledged, is sent again over this one. */
static inline void lane_stats_moved_here(struct lane_stats *stats)
{
	LANE_STATS_ADD(stats, chunks_moved_here, 1);
}
/* A chunk that had arrived already came over it. */
static inline void lane_stats_duplicate(struct lane_stats *stats)
{
	LANE_STATS_ADD(stats, chunks_duplicate, 1);
}
/* May TCP be asked for the statistics? It can cost a system call. */
bool lane_stats_want_tcp(const struct lane_stats *stats, uint64_t now_ns);

#endif
