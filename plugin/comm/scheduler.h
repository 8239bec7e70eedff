/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scheduler.h - picks the lane of a comm for the next chunk: the one that would deliver it first.
 *
 * Pure arithmetic: no clock, no locks, no calls of lanes. The comm reports the bytes that it gives
 * to each lane and the bytes that the peer's TCP has acknowledged. Both counts include record
 * headers.
 */
#ifndef HARP_PLUGIN_SCHEDULER_H
#define HARP_PLUGIN_SCHEDULER_H

#include <stdbool.h>
#include <stdint.h>

#define SCHEDULER_LANES_MAX 32u

struct scheduler_lane {
	uint8_t kind;  /* enum lane_kind: one bit */
	bool backup;   /* used only while no other lane works */
	bool draining; /* accepts no more bytes, and is still read */
	bool stalled;  /* an acknowledgment is overdue */
	bool slow;     /* much slower than its siblings of the same kind, for a while */
	uint64_t rate; /* bytes per millisecond; 0: unknown */
	uint64_t srtt_ns;
	uint64_t given_bytes, acked_bytes;
	uint64_t given_ns; /* last increase of given_bytes */
	uint64_t acked_ns; /* last update of acked_bytes */
	/* The current rate sample: acked_bytes at its begin, and the time of its begin plus the
	 * idle time since then. */
	uint64_t sample_bytes, sample_ns;
	uint64_t busy_ns;        /* bytes were in flight until this time, or longer */
	uint64_t rtt_min_ns;     /* 0: unknown */
	uint64_t burst_begin_ns; /* bytes have been in flight since */
	uint64_t burst_ns;       /* of the last burst, until everything was acknowledged */
	uint64_t burst_end_ns;   /* when that was */
	uint64_t progress_ns;    /* when bytes were last acknowledged, or none were in flight */
	uint64_t slow_ns;        /* slower than its siblings since; 0: it is not */
};

struct scheduler {
	uint32_t live;    /* bit i: lane[i] exists */
	uint32_t stalled; /* bit i: lane[i] is stalled */
	struct scheduler_lane lane[SCHEDULER_LANES_MAX];
};

enum scheduler_event {
	SCHEDULER_STALLED = 1, /* became stalled */
	SCHEDULER_MOVES = 2,   /* is no longer stalled */
	SCHEDULER_DEAD = 4,    /* stalled for timeout_ns while a sibling made progress */
	SCHEDULER_SLOW = 8,    /* became slow */
};

void scheduler_add(struct scheduler *scheduler, unsigned index, unsigned kind, bool backup,
		   uint64_t rtt_ns, uint64_t now_ns);
void scheduler_remove(struct scheduler *scheduler, unsigned index);
/* Counts bytes that are given to the lane. */
void scheduler_give(struct scheduler *scheduler, unsigned index, uint64_t bytes, uint64_t now_ns);
/* acked_bytes: all bytes that the peer's TCP has acknowledged so far. */
void scheduler_acked(struct scheduler *scheduler, unsigned index, uint64_t acked_bytes,
		     uint64_t now_ns);
/*
 * Samples the lane, at most a few times per 10 ms. unacked: bytes are in flight, and the peer's TCP
 * has not acknowledged them (bytes held back by a closed window do not count). Returns enum
 * scheduler_event bits.
 */
unsigned scheduler_sample(struct scheduler *scheduler, unsigned index, bool unacked,
			  uint64_t srtt_ns, uint64_t timeout_ns, uint64_t now_ns);
/*
 * The lane that would deliver `bytes` first, among the lanes of the best rank: not stalled before
 * stalled, then regular before backup, then kinds in `kinds` before others. -1: there is no lane,
 * or the best lanes have unknown rates and enough bytes in flight to measure them; an
 * acknowledgment will come.
 */
int scheduler_best(const struct scheduler *scheduler, unsigned kinds, uint64_t bytes,
		   uint64_t now_ns);
/* Is a lane with bytes in flight much slower than another? */
bool scheduler_lags(const struct scheduler *scheduler, unsigned index, uint64_t now_ns);
/* Would lane `best` deliver a chunk of `bytes` much earlier than the lane that has it in flight,
 * with `behind` bytes after it? */
bool scheduler_late(const struct scheduler *scheduler, unsigned index, uint64_t behind,
		    unsigned best, uint64_t bytes, uint64_t now_ns);
/* Is its rate unknown, with enough bytes in flight to measure it? Then sample it soon. */
bool scheduler_is_unrated(const struct scheduler_lane *l);
/* The number of lanes that scheduler_best() chooses from. */
unsigned scheduler_choices(const struct scheduler *scheduler, unsigned kinds);
/* The control lane: a HARP lane if one works, else the lowest index. -1: no lane. */
int scheduler_control(const struct scheduler *scheduler);

#endif
