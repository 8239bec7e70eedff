/* SPDX-License-Identifier: Apache-2.0 */
/* scheduler.c - see scheduler.h. */
#include "comm/scheduler.h"

#include <string.h>

#include "lane/lane.h"

/*
 * Theory of operation
 *
 * Lanes have rates that nothing announces, and the slowest must not set the pace. So there is no fixed split: a chunk goes
 * to the lane for which
 *
 *     half a round trip + (bytes under way + this chunk) / rate
 *
 * is smallest. Bytes under way were given to the lane and are not acknowledged by the peer's TCP. The chunk waits for that
 * lane even if it is full, because another lane would deliver it later.
 *
 * The rate is what was acknowledged while something was under way, in samples of at least a millisecond and
 * SAMPLE_BYTES_MIN. If all is acknowledged at a look, the lane became idle at an unknown time since the last look. That
 * gives two bounds; bounds that are far apart are no first rate. While a sample goes on, the rate is at most what it would
 * be if all were acknowledged now.
 *
 * A lane of unknown rate counts as fast as the fastest of its kind, so that it gets a share, but only two chunks until the
 * peer acknowledges. The same holds for a lane that was given nothing for a while: its rate may have become better.
 *
 * What a lane has under way is late if another lane would deliver it in less than half the time; it is sent again there
 * when nothing else is to be sent. The preferred kinds decide among equals only: a lane that crawls compared with the other
 * kind takes its part by time alone.
 *
 * A lane is stalled if it owes acknowledgments for longer than a retransmission takes; it is passed over while another one
 * moves. It is dead if that lasts for the lane timeout while a sibling is acknowledged. If all are silent, the host is, and
 * TCP's timeout holds.
 */

#define RATE_DEFAULT 1250000u /* 10 Gbit/s */
#define SAMPLE_NS_MIN 1000000u
#define SAMPLE_BYTES_MIN 32768u
#define SURE_SHARE 4u             /* a first rate is one when its bounds are no further apart */
#define TAIL_NS 60000000u         /* Linux delays an ACK by 40 ms, and some for its clock */
#define OVERDUE_NS_MIN 5000000u   /* a sample that lasts so long says something unfinished */
#define UNKNOWN_BYTES_MAX 262144u /* under way while the rate is not known */
#define LAG_SHARE 2u              /* less than so-manieth of another's rate */
#define CRAWL_SHARE 4u            /* the same, of the other kind */
#define CRAWL_NS 10000000u        /* so long a queue is worth a try of the other kind */
#define CRAWL_QUEUE_NS 4000000u /* so short a queue is none: its rate may be what was asked of it */
#define LATE_NS_MIN 3000000u
#define WAITS_NS (UINT64_C(1) << 63) /* longer than anything */
#define STALL_NS_MIN 20000000u
#define STALL_ROUND_TRIPS 4u
#define SLOW_NS 200000000u
#define SLOW_SHARE 4u         /* slower than so-manieth of the median */
#define GUESS_NS_MAX 2000000u /* of progress since the last look */
#define FORGET_NS 1000000000u /* what a lane could do when it was last given something */
#define FORGET_ROUND_TRIPS 16u
#define FORGET_NS_MAX 10000000000u

void scheduler_add(struct scheduler *scheduler, unsigned index, unsigned kind, bool backup,
		   uint64_t rtt_ns, uint64_t now_ns)
{
	struct scheduler_lane *l = &scheduler->lane[index];

	memset(l, 0, sizeof(*l));
	l->kind = (uint8_t)kind;
	l->backup = backup;
	l->srtt_ns = l->rtt_min_ns = rtt_ns;
	l->acked_ns = l->sample_ns = l->busy_ns = l->progress_ns = now_ns;
	scheduler->live |= 1u << index;
	scheduler->stalled &= ~(1u << index);
}

void scheduler_remove(struct scheduler *scheduler, unsigned index)
{
	scheduler->live &= ~(1u << index);
	scheduler->stalled &= ~(1u << index);
}

/* Of a message's end the kernel's ACK comes up to 40 ms later (Linux's delayed ACK) when nothing follows: what is waited for then says
 * nothing of the lane. */
static bool scheduler_is_tail(const struct scheduler_lane *l)
{
	return l->kind == LANE_KERNEL && l->given_bytes - l->acked_bytes < SAMPLE_BYTES_MIN;
}

/* A turn may have lasted since before another thread's: what has been seen of a lane does not become older. */
static uint64_t scheduler_clock(const struct scheduler_lane *l, uint64_t now_ns)
{
	uint64_t seen_ns = l->acked_ns > l->given_ns ? l->acked_ns : l->given_ns;

	return now_ns > seen_ns ? now_ns : seen_ns;
}

void scheduler_give(struct scheduler *scheduler, unsigned index, uint64_t bytes, uint64_t now_ns)
{
	struct scheduler_lane *l = &scheduler->lane[index];

	now_ns = scheduler_clock(l, now_ns);
	if (l->given_bytes == l->acked_bytes) { /* nothing was owed until now */
		l->progress_ns = l->acked_ns = now_ns;
		l->sample_ns += now_ns - l->busy_ns; /* the idle time */
		l->busy_ns = l->began_ns = now_ns;
	} else if (scheduler_is_tail(l) && now_ns > l->given_ns + SAMPLE_NS_MIN) {
		l->sample_bytes = l->given_bytes;
		l->sample_ns = l->busy_ns = now_ns;
	}
	l->given_bytes += bytes;
	l->given_ns = now_ns;
}

static uint64_t scheduler_rate_of(uint64_t bytes, uint64_t from_ns, uint64_t to_ns)
{
	uint64_t rate = to_ns > from_ns ? bytes * 1000000u / (to_ns - from_ns) : UINT64_MAX;

	return rate ? rate : 1;
}

/* Now, or with nothing under way any more. The first acknowledgement comes a round trip after the first byte. */
static void scheduler_learn_rate(struct scheduler_lane *l, bool was_owed, uint64_t now_ns)
{
	uint64_t bytes = l->acked_bytes - l->sample_bytes, spent_ns, rtt_ns = l->rtt_min_ns;
	bool done = l->acked_bytes == l->given_bytes;
	bool idle = done || scheduler_is_tail(l); /* it may have been, for a while */
	uint64_t least, most;

	/* A sample may begin behind a tail. */
	if (!was_owed || now_ns <= l->sample_ns || l->acked_bytes < l->sample_bytes)
		return;
	if (!idle)
		l->busy_ns = now_ns;
	spent_ns = now_ns - l->sample_ns;
	if (!done && (spent_ns < SAMPLE_NS_MIN + rtt_ns || bytes < SAMPLE_BYTES_MIN))
		return;
	least = scheduler_rate_of(bytes, l->sample_ns, now_ns);
	most = scheduler_rate_of(bytes, l->sample_ns + rtt_ns, l->busy_ns);
	if (bytes < SAMPLE_BYTES_MIN) /* a time, but no rate */
		most = UINT64_MAX;
	if (!idle)
		l->rate = l->rate ? (l->rate + least) / 2 : least;
	else if (l->rate ? l->rate < least : most / SURE_SHARE <= least)
		l->rate = least;
	else if (l->rate > most)
		l->rate = (l->rate + most) / 2;
	l->sample_bytes = l->acked_bytes;
	l->sample_ns = l->busy_ns = now_ns;
}

void scheduler_acked(struct scheduler *scheduler, unsigned index, uint64_t acked_bytes,
		     uint64_t now_ns)
{
	struct scheduler_lane *l = &scheduler->lane[index];
	bool was_owed = l->acked_bytes != l->given_bytes;

	now_ns = scheduler_clock(l, now_ns);
	if (acked_bytes > l->given_bytes) /* the count of a lane is never ahead of ours */
		acked_bytes = l->given_bytes;
	if (acked_bytes > l->acked_bytes) {
		l->acked_bytes = acked_bytes;
		l->progress_ns = now_ns;
	}
	l->acked_ns = now_ns;
	if (l->acked_bytes == l->given_bytes)
		l->progress_ns = now_ns;
	if (was_owed && l->acked_bytes == l->given_bytes && now_ns > l->began_ns) {
		l->took_ns = now_ns - l->began_ns;
		l->took_at_ns = now_ns;
	}
	scheduler_learn_rate(l, was_owed, now_ns);
}

/* ---- what a lane is expected to do ------------------------------------------------------------- */

static uint64_t scheduler_rate_default(const struct scheduler *scheduler, unsigned kind)
{
	uint64_t rate = 0;

	for (uint32_t left = scheduler->live; left; left &= left - 1) {
		const struct scheduler_lane *l = &scheduler->lane[__builtin_ctz(left)];

		if (l->kind == kind && l->rate > rate)
			rate = l->rate;
	}
	return rate ? rate : RATE_DEFAULT;
}

/* 0: nothing is known. */
static uint64_t scheduler_rate_now(const struct scheduler_lane *l, uint64_t now_ns)
{
	uint64_t under_way = l->given_bytes - l->acked_bytes, rate, most;

	if (!under_way)
		return now_ns < l->given_ns + FORGET_NS ? l->rate : 0;
	rate = l->rate;
	if (scheduler_is_tail(l))
		return rate;
	if (now_ns >= l->sample_ns + OVERDUE_NS_MIN + 2 * l->srtt_ns) {
		most = scheduler_rate_of(l->given_bytes - l->sample_bytes, l->sample_ns, now_ns);
		if (!rate || rate > most)
			rate = most;
	}
	return rate;
}

static uint64_t scheduler_srtt_now(const struct scheduler *scheduler,
				   const struct scheduler_lane *self, uint64_t now_ns)
{
	uint64_t srtt_ns = self->srtt_ns, forget_ns;

	if (self->took_ns && self->took_ns < srtt_ns && now_ns < self->took_at_ns + FORGET_NS)
		srtt_ns = self->took_ns;
	forget_ns = srtt_ns * FORGET_ROUND_TRIPS;
	if (forget_ns < FORGET_NS)
		forget_ns = FORGET_NS;
	if (forget_ns > FORGET_NS_MAX)
		forget_ns = FORGET_NS_MAX;
	if (self->given_bytes != self->acked_bytes ||
	    (self->given_bytes && now_ns < self->given_ns + forget_ns))
		return srtt_ns;
	for (uint32_t left = scheduler->live; left; left &= left - 1) {
		const struct scheduler_lane *l = &scheduler->lane[__builtin_ctz(left)];

		if (l->kind == self->kind && l->srtt_ns < srtt_ns)
			srtt_ns = l->srtt_ns;
	}
	return srtt_ns;
}

static uint64_t scheduler_under_way(const struct scheduler_lane *l, uint64_t rate, uint64_t now_ns)
{
	uint64_t under_way = l->given_bytes - l->acked_bytes,
		 guess_ns = now_ns > l->acked_ns ? now_ns - l->acked_ns : 0;
	uint64_t guess;

	if (!under_way || l->kind != LANE_KERNEL) /* which is not asked each time */
		return under_way;
	guess = (guess_ns < GUESS_NS_MAX ? guess_ns : GUESS_NS_MAX) * rate / 1000000u;
	return under_way > guess ? under_way - guess : 0;
}

static uint64_t scheduler_finish_ns(const struct scheduler *scheduler,
				    const struct scheduler_lane *l, uint64_t bytes, uint64_t now_ns)
{
	uint64_t rate = scheduler_rate_now(l, now_ns);

	if (!rate)
		rate = scheduler_rate_default(scheduler, l->kind);
	return scheduler_srtt_now(scheduler, l, now_ns) / 2 +
	       (scheduler_under_way(l, rate, now_ns) + bytes) * 1000000u / rate;
}

/* Is a lane given something that another one of them was acknowledged for, since_ns? */
static bool scheduler_sibling_moved(const struct scheduler *scheduler, unsigned index,
				    uint64_t since_ns)
{
	for (uint32_t left = scheduler->live & ~(1u << index); left; left &= left - 1) {
		const struct scheduler_lane *l = &scheduler->lane[__builtin_ctz(left)];

		if (l->acked_bytes && !l->stalled && l->progress_ns > since_ns)
			return true;
	}
	return false;
}

static uint64_t scheduler_median_rate(const struct scheduler *scheduler, unsigned index)
{
	const struct scheduler_lane *self = &scheduler->lane[index];
	uint64_t rates[SCHEDULER_LANES_MAX];
	unsigned count = 0;

	for (uint32_t left = scheduler->live & ~(1u << index); left; left &= left - 1) {
		const struct scheduler_lane *l = &scheduler->lane[__builtin_ctz(left)];
		unsigned at = count;

		if (l->kind != self->kind || !l->rate || l->stalled)
			continue;
		for (; at && rates[at - 1] > l->rate; at--)
			rates[at] = rates[at - 1];
		rates[at] = l->rate;
		count++;
	}
	return count ? rates[count / 2] : 0;
}

static unsigned scheduler_judge_slow(struct scheduler *scheduler, unsigned index, uint64_t now_ns)
{
	struct scheduler_lane *l = &scheduler->lane[index];
	uint64_t median = scheduler_median_rate(scheduler, index);

	if (!median || !l->rate || l->rate * SLOW_SHARE >= median) {
		l->slow_ns = 0;
		l->slow = false;
		return 0;
	}
	if (!l->slow_ns)
		l->slow_ns = now_ns;
	if (l->slow || now_ns - l->slow_ns < SLOW_NS)
		return 0;
	l->slow = true;
	return SCHEDULER_SLOW;
}

unsigned scheduler_sample(struct scheduler *scheduler, unsigned index, bool owed, uint64_t srtt_ns,
			  uint64_t timeout_ns, uint64_t now_ns)
{
	struct scheduler_lane *l = &scheduler->lane[index];
	bool was_stalled = l->stalled;
	uint64_t limit_ns, still_ns;
	unsigned events;

	now_ns = scheduler_clock(l, now_ns);
	if (srtt_ns) {
		l->srtt_ns = srtt_ns;
		if (!l->rtt_min_ns || srtt_ns < l->rtt_min_ns)
			l->rtt_min_ns = srtt_ns;
	}
	if (!owed)
		l->progress_ns = now_ns;
	limit_ns = l->srtt_ns * STALL_ROUND_TRIPS;
	if (limit_ns < STALL_NS_MIN)
		limit_ns = STALL_NS_MIN;
	if (limit_ns < TAIL_NS && scheduler_is_tail(l))
		limit_ns = TAIL_NS;
	still_ns = now_ns - l->progress_ns;
	l->stalled = still_ns >= limit_ns;
	scheduler->stalled &= ~(1u << index);
	scheduler->stalled |= (uint32_t)l->stalled << index;
	events = scheduler_judge_slow(scheduler, index, now_ns);
	if (l->stalled && !was_stalled)
		events |= SCHEDULER_STALLED;
	if (!l->stalled && was_stalled)
		events |= SCHEDULER_MOVES;
	if (l->stalled && still_ns >= timeout_ns &&
	    scheduler_sibling_moved(scheduler, index, l->progress_ns + limit_ns))
		events |= SCHEDULER_DEAD;
	return events;
}

/* Lower is better. */
static unsigned scheduler_rank(const struct scheduler_lane *l, unsigned kinds)
{
	return (l->stalled ? 4u : 0u) + (l->backup ? 2u : 0u) + (l->kind & kinds ? 0u : 1u);
}

/* The best rate of other kinds' lanes; 0: there are none, UINT64_MAX: one of which nothing is known. */
static uint64_t scheduler_rate_others(const struct scheduler *scheduler, unsigned kinds,
				      uint64_t now_ns)
{
	uint64_t best = 0;

	for (uint32_t left = scheduler->live; left; left &= left - 1) {
		const struct scheduler_lane *l = &scheduler->lane[__builtin_ctz(left)];
		uint64_t rate;

		if (l->kind & kinds || l->stalled || l->backup)
			continue;
		rate = scheduler_rate_now(l, now_ns);
		if (!rate)
			return UINT64_MAX;
		if (rate > best)
			best = rate;
	}
	return best;
}

static bool scheduler_crawls(const struct scheduler_lane *l, uint64_t others, uint64_t finish_ns,
			     uint64_t now_ns)
{
	uint64_t rate = scheduler_rate_now(l, now_ns);

	if (!rate || !others || finish_ns < CRAWL_QUEUE_NS)
		return false;
	return others == UINT64_MAX ? finish_ns >= CRAWL_NS : rate * CRAWL_SHARE < others;
}

bool scheduler_is_unrated(const struct scheduler_lane *l)
{
	return !l->rate && l->given_bytes - l->acked_bytes >= SAMPLE_BYTES_MIN;
}

/* Has it been given enough to learn its rate from? */
static bool scheduler_is_tried(const struct scheduler_lane *l, uint64_t now_ns)
{
	return l->given_bytes - l->acked_bytes >= UNKNOWN_BYTES_MAX &&
	       !scheduler_rate_now(l, now_ns);
}

int scheduler_best(const struct scheduler *scheduler, unsigned kinds, uint64_t bytes,
		   uint64_t now_ns)
{
	unsigned best_rank = ~0u, choices = 0;
	uint64_t best_ns = 0, others;
	int best = -1;

	if (!(scheduler->live & (scheduler->live - 1))) /* one at most */
		return scheduler->live ? __builtin_ctz(scheduler->live) : -1;
	others = scheduler_rate_others(scheduler, kinds, now_ns);
	for (uint32_t left = scheduler->live; left; left &= left - 1) {
		int index = __builtin_ctz(left);
		const struct scheduler_lane *l = &scheduler->lane[index];
		unsigned rank = scheduler_rank(l, kinds);
		uint64_t finish_ns;

		if (rank > best_rank)
			continue;
		finish_ns = scheduler_finish_ns(scheduler, l, bytes, now_ns);
		if (l->kind & kinds && scheduler_crawls(l, others, finish_ns, now_ns))
			rank |= 1;
		if (rank > best_rank)
			continue;
		if (scheduler_is_tried(l, now_ns))
			finish_ns |= WAITS_NS; /* after all others of its rank */
		choices = rank < best_rank ? 1 : choices + 1;
		if (rank < best_rank || finish_ns < best_ns) {
			best = index;
			best_rank = rank;
			best_ns = finish_ns;
		}
	}
	return choices > 1 && best_ns & WAITS_NS ? -1 : best;
}

bool scheduler_lags(const struct scheduler *scheduler, unsigned index, uint64_t now_ns)
{
	const struct scheduler_lane *self = &scheduler->lane[index];
	uint64_t rate;

	if (self->given_bytes == self->acked_bytes)
		return false;
	rate = scheduler_rate_now(self, now_ns);
	for (uint32_t left = rate ? scheduler->live & ~(1u << index) : 0; left; left &= left - 1) {
		const struct scheduler_lane *l = &scheduler->lane[__builtin_ctz(left)];

		if (!l->stalled && (self->backup || !l->backup) &&
		    rate * LAG_SHARE < scheduler_rate_now(l, now_ns))
			return true;
	}
	return false;
}

bool scheduler_late(const struct scheduler *scheduler, unsigned index, uint64_t behind,
		    unsigned best, uint64_t bytes, uint64_t now_ns)
{
	const struct scheduler_lane *l = &scheduler->lane[index];
	uint64_t rate = scheduler_rate_now(l, now_ns), under_way, sooner_ns;

	if (best == index || !rate)
		return false;
	under_way = scheduler_under_way(l, rate, now_ns);
	if (under_way <= behind)
		return false;
	sooner_ns = scheduler_finish_ns(scheduler, &scheduler->lane[best], bytes, now_ns);
	return (under_way - behind) * 1000000u / rate > LAG_SHARE * sooner_ns + LATE_NS_MIN;
}

unsigned scheduler_choices(const struct scheduler *scheduler, unsigned kinds)
{
	unsigned best_rank = ~0u, count = 0;

	for (uint32_t left = scheduler->live; left; left &= left - 1) {
		unsigned rank = scheduler_rank(&scheduler->lane[__builtin_ctz(left)], kinds);

		if (rank < best_rank) {
			best_rank = rank;
			count = 0;
		}
		count += rank == best_rank;
	}
	return count;
}

int scheduler_control(const struct scheduler *scheduler)
{
	unsigned best_rank = ~0u;
	int best = -1;

	for (uint32_t left = scheduler->live; left; left &= left - 1) {
		int index = __builtin_ctz(left);
		unsigned rank = scheduler_rank(&scheduler->lane[index], LANE_HARP);

		if (!scheduler->lane[index].mute && rank < best_rank) {
			best = index;
			best_rank = rank;
		}
	}
	return best;
}
