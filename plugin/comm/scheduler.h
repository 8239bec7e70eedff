/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scheduler.h - which lane of a comm takes the next chunk: the one that will have delivered it first.
 *
 * Arithmetic alone: no clock, no lock, no lane. The comm tells what it gives to each lane and what the peer's
 * TCP has acknowledged; both sides' counts include record headers.
 */
#ifndef HARP_PLUGIN_SCHEDULER_H
#define HARP_PLUGIN_SCHEDULER_H

#include <stdbool.h>
#include <stdint.h>

#define SCHEDULER_LANES_MAX 32u

struct scheduler_lane {
	uint8_t kind;  /* enum lane_kind: one bit */
	bool backup;   /* only while no other lane works */
	bool mute;     /* takes nothing more, and is read still */
	bool stalled;  /* bytes under way, and none acknowledged for longer than usual */
	bool slow;     /* for a while much slower than its siblings of that kind */
	uint64_t rate; /* bytes a millisecond; 0: not known yet */
	uint64_t srtt_ns;
	uint64_t given_bytes, acked_bytes;
	uint64_t given_ns; /* when given_bytes grew */
	uint64_t acked_ns; /* when acked_bytes was looked at */
	uint64_t sample_bytes,
		sample_ns;   /* acked_bytes where the present sample of the rate begins, and when,
					   * less the time in which nothing was under way since */
	uint64_t busy_ns;    /* until then something was under way, for all we know */
	uint64_t rtt_min_ns; /* 0: not known */
	uint64_t began_ns;   /* until then nothing was under way */
	uint64_t took_ns,
		took_at_ns;   /* from then on, until all was acknowledged, the last time; then */
	uint64_t progress_ns; /* when something was acknowledged, or nothing was owed, at last */
	uint64_t slow_ns;     /* slower than the others since; 0: it is not */
};

struct scheduler {
	uint32_t live;    /* bit i: lane[i] */
	uint32_t stalled; /* of them */
	struct scheduler_lane lane[SCHEDULER_LANES_MAX];
};

enum scheduler_event {
	SCHEDULER_STALLED = 1, /* is now */
	SCHEDULER_MOVES = 2,   /* was stalled, and is not now */
	SCHEDULER_DEAD = 4,    /* stalled for timeout_ns, while a sibling got on */
	SCHEDULER_SLOW = 8,    /* has become */
};

void scheduler_add(struct scheduler *scheduler, unsigned index, unsigned kind, bool backup,
		   uint64_t rtt_ns, uint64_t now_ns);
void scheduler_remove(struct scheduler *scheduler, unsigned index);
/* Bytes were handed to the lane, or are about to be. */
void scheduler_give(struct scheduler *scheduler, unsigned index, uint64_t bytes, uint64_t now_ns);
/* All that the peer's TCP has acknowledged so far. */
void scheduler_acked(struct scheduler *scheduler, unsigned index, uint64_t acked_bytes,
		     uint64_t now_ns);
/*
 * A look at the lane, a few times each 10 ms at most. owed: the peer's TCP owes an acknowledgement (bytes in
 * flight; not those that its closed window holds back). Returns enum scheduler_event.
 */
unsigned scheduler_sample(struct scheduler *scheduler, unsigned index, bool owed, uint64_t srtt_ns,
			  uint64_t timeout_ns, uint64_t now_ns);
/*
 * The lane that would have delivered bytes first, of the best there are: first those that move, of these
 * those that are no backup, of these those of a kind in `kinds` unless they crawl. -1: there is no lane, or of the
 * best nothing is known yet and they have enough under way to learn from: an acknowledgement will tell.
 */
int scheduler_best(const struct scheduler *scheduler, unsigned kinds, uint64_t bytes,
		   uint64_t now_ns);
/* Does the lane do with what it has under way in so much more time than another would that it is worth a look? */
bool scheduler_lags(const struct scheduler *scheduler, unsigned index, uint64_t now_ns);
/* Of what it has under way, all but the last `behind` bytes: would lane `best` deliver `bytes` of it much sooner? */
bool scheduler_late(const struct scheduler *scheduler, unsigned index, uint64_t behind,
		    unsigned best, uint64_t bytes, uint64_t now_ns);
/* Has it enough under way to learn its rate from, which is not known? Then a look is due soon. */
bool scheduler_is_unrated(const struct scheduler_lane *l);
/* How many lanes scheduler_best() chooses from. */
unsigned scheduler_choices(const struct scheduler *scheduler, unsigned kinds);
/* The lane for records that steer: HARP's rather than the kernel's, else the lowest index. -1: no lane. */
int scheduler_control(const struct scheduler *scheduler);

#endif
