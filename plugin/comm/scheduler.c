/* SPDX-License-Identifier: Apache-2.0 */
/* scheduler.c - see scheduler.h. */
#include "comm/scheduler.h"

#include <string.h>

#include "lane/lane.h"

/*
 * Theory of operation
 *
 * The rates of lanes differ and are not known in advance, and the slowest lane must not determine
 * the throughput. So there is no fixed split: a chunk goes to the lane with the smallest
 *
 *     half a round trip + (bytes in flight + this chunk) / rate
 *
 * Bytes in flight were given to the lane and are not acknowledged by the peer's TCP. The chunk
 * waits for that lane even if it is full, because another lane would deliver it later.
 *
 * Rates are measured while bytes are in flight, in samples of at least a millisecond and
 * SAMPLE_BYTES_MIN. If a sample finds everything acknowledged, the lane became idle at an unknown
 * time since the last one. This gives an upper and a lower bound; if they are far apart, they set
 * no first rate. During a sample, the rate is at most what it would be if everything were
 * acknowledged now.
 *
 * A lane of unknown rate counts as fast as the fastest of its kind, so that it gets a share, but
 * only two chunks until the peer acknowledges. The same holds for a lane that was idle for a while:
 * its rate may have improved.
 *
 * A chunk is late if another lane would deliver it in less than half the time. It moves there when
 * nothing else is left to send: a lane that becomes slow has been given more than its share.
 *
 * A lane is stalled if an acknowledgment is overdue by more than a retransmission takes; it gets no
 * chunks while another lane makes progress. It is dead if that lasts for the lane timeout while a
 * sibling is acknowledged. If all lanes are silent, the host is down, and TCP's timeout applies.
 */

#define RATE_DEFAULT 1250000u /* 10 Gbit/s */
#define SAMPLE_NS_MIN 1000000u
#define SAMPLE_BYTES_MIN 32768u
#define SURE_SHARE 4u             /* the bounds of a first rate differ by at most this factor */
#define TAIL_NS 60000000u         /* Linux delays an ACK by 40 ms, plus its clock's granularity */
#define OVERDUE_NS_MIN 5000000u   /* an unfinished sample of this age limits the rate */
#define UNKNOWN_BYTES_MAX 262144u /* in flight while the rate is unknown */
#define LAG_SHARE 2u              /* lags: less than 1/LAG_SHARE of another lane's rate */
#define LATE_NS_MIN 3000000u
#define WAITS_NS (UINT64_C(1) << 63) /* longer than any delivery time */
#define STALL_NS_MIN 20000000u
#define STALL_ROUND_TRIPS 4u
#define SLOW_NS 200000000u
#define SLOW_SHARE 4u         /* slow: less than 1/SLOW_SHARE of the median rate */
#define GUESS_NS_MAX 2000000u /* assumed progress since the last sample, at most */
#define FORGET_NS 1000000000u /* an idle lane's rate is forgotten after this time */
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

/* Linux may delay the ACK of a message's end by 40 ms if nothing follows: the wait for it says
 * nothing about the lane. */
static bool scheduler_is_tail(const struct scheduler_lane *l)
{
	return l->kind == LANE_KERNEL && l->given_bytes - l->acked_bytes < SAMPLE_BYTES_MIN;
}

/* A turn's clock may be older than the last turn's, by another thread: time does not run
 * backwards. */
static uint64_t scheduler_clock(const struct scheduler_lane *l, uint64_t now_ns)
{
	uint64_t seen_ns = l->acked_ns > l->given_ns ? l->acked_ns : l->given_ns;

	return now_ns > seen_ns ? now_ns : seen_ns;
}

void scheduler_give(struct scheduler *scheduler, unsigned index, uint64_t bytes, uint64_t now_ns)
{
	struct scheduler_lane *l = &scheduler->lane[index];

	now_ns = scheduler_clock(l, now_ns);
	if (l->given_bytes == l->acked_bytes) { /* idle until now */
		l->progress_ns = l->acked_ns = now_ns;
		l->sample_ns += now_ns - l->busy_ns; /* the idle time */
		l->busy_ns = l->burst_begin_ns = now_ns;
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

/* Updates the rate. The first acknowledgment of a burst comes a round trip after its first byte. */
static void scheduler_learn_rate(struct scheduler_lane *l, bool was_unacked, uint64_t now_ns)
{
	uint64_t bytes = l->acked_bytes - l->sample_bytes, spent_ns, rtt_ns = l->rtt_min_ns;
	bool done = l->acked_bytes == l->given_bytes;
	bool idle = done || scheduler_is_tail(l); /* it may have been, for a while */
	uint64_t least, most;

	/* A sample that begins behind a tail has acked_bytes < sample_bytes at first. */
	if (!was_unacked || now_ns <= l->sample_ns || l->acked_bytes < l->sample_bytes)
		return;
	if (!idle)
		l->busy_ns = now_ns;
	spent_ns = now_ns - l->sample_ns;
	if (!done && (spent_ns < SAMPLE_NS_MIN + rtt_ns || bytes < SAMPLE_BYTES_MIN))
		return;
	least = scheduler_rate_of(bytes, l->sample_ns, now_ns);
	most = scheduler_rate_of(bytes, l->sample_ns + rtt_ns, l->busy_ns);
	if (bytes < SAMPLE_BYTES_MIN) /* too few for an upper bound */
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
	bool was_unacked = l->acked_bytes != l->given_bytes;

	now_ns = scheduler_clock(l, now_ns);
	if (acked_bytes > l->given_bytes) /* a lane can't deliver more than it was given */
		acked_bytes = l->given_bytes;
	if (acked_bytes > l->acked_bytes) {
		l->acked_bytes = acked_bytes;
		l->progress_ns = now_ns;
	}
	l->acked_ns = now_ns;
	if (l->acked_bytes == l->given_bytes)
		l->progress_ns = now_ns;
	if (was_unacked && l->acked_bytes == l->given_bytes && now_ns > l->burst_begin_ns) {
		l->burst_ns = now_ns - l->burst_begin_ns;
		l->burst_end_ns = now_ns;
	}
	scheduler_learn_rate(l, was_unacked, now_ns);
}

/* ---- predictions ---------------------------------------------------------------------------- */

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

/* 0: unknown. */
static uint64_t scheduler_rate_now(const struct scheduler_lane *l, uint64_t now_ns)
{
	uint64_t in_flight = l->given_bytes - l->acked_bytes, rate, most;

	if (!in_flight)
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

	if (self->burst_ns && self->burst_ns < srtt_ns && now_ns < self->burst_end_ns + FORGET_NS)
		srtt_ns = self->burst_ns;
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

static uint64_t scheduler_in_flight(const struct scheduler_lane *l, uint64_t rate, uint64_t now_ns)
{
	uint64_t in_flight = l->given_bytes - l->acked_bytes,
		 guess_ns = now_ns > l->acked_ns ? now_ns - l->acked_ns : 0;
	uint64_t guess;

	if (!in_flight || l->kind != LANE_KERNEL) /* acked_bytes of a kernel lane is not current */
		return in_flight;
	guess = (guess_ns < GUESS_NS_MAX ? guess_ns : GUESS_NS_MAX) * rate / 1000000u;
	return in_flight > guess ? in_flight - guess : 0;
}

static uint64_t scheduler_finish_ns(const struct scheduler *scheduler,
				    const struct scheduler_lane *l, uint64_t bytes, uint64_t now_ns)
{
	uint64_t rate = scheduler_rate_now(l, now_ns);

	if (!rate)
		rate = scheduler_rate_default(scheduler, l->kind);
	return scheduler_srtt_now(scheduler, l, now_ns) / 2 +
	       (scheduler_in_flight(l, rate, now_ns) + bytes) * 1000000u / rate;
}

/* Has another lane made progress after since_ns? */
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

static unsigned scheduler_check_slow(struct scheduler *scheduler, unsigned index, uint64_t now_ns)
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

unsigned scheduler_sample(struct scheduler *scheduler, unsigned index, bool unacked,
			  uint64_t srtt_ns, uint64_t timeout_ns, uint64_t now_ns)
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
	if (!unacked)
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
	events = scheduler_check_slow(scheduler, index, now_ns);
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

bool scheduler_is_unrated(const struct scheduler_lane *l)
{
	return !l->rate && l->given_bytes - l->acked_bytes >= SAMPLE_BYTES_MIN;
}

/* Is its rate unknown, with as many bytes in flight as such a lane may have? */
static bool scheduler_is_tried(const struct scheduler_lane *l, uint64_t now_ns)
{
	return l->given_bytes - l->acked_bytes >= UNKNOWN_BYTES_MAX &&
	       !scheduler_rate_now(l, now_ns);
}

int scheduler_best(const struct scheduler *scheduler, unsigned kinds, uint64_t bytes,
		   uint64_t now_ns)
{
	unsigned best_rank = ~0u, choices = 0;
	uint64_t best_ns = 0;
	int best = -1;

	if (!(scheduler->live & (scheduler->live - 1))) /* at most one lane */
		return scheduler->live ? __builtin_ctz(scheduler->live) : -1;
	for (uint32_t left = scheduler->live; left; left &= left - 1) {
		int index = __builtin_ctz(left);
		const struct scheduler_lane *l = &scheduler->lane[index];
		unsigned rank = scheduler_rank(l, kinds);
		uint64_t finish_ns;

		if (rank > best_rank)
			continue;
		finish_ns = scheduler_finish_ns(scheduler, l, bytes, now_ns);
		if (scheduler_is_tried(l, now_ns))
			finish_ns |= WAITS_NS; /* last of its rank */
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
	uint64_t rate = scheduler_rate_now(l, now_ns), in_flight, other_ns;

	if (best == index || !rate)
		return false;
	in_flight = scheduler_in_flight(l, rate, now_ns);
	if (in_flight <= behind)
		return false;
	other_ns = scheduler_finish_ns(scheduler, &scheduler->lane[best], bytes, now_ns);
	return (in_flight - behind) * 1000000u / rate > LAG_SHARE * other_ns + LATE_NS_MIN;
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

		if (!scheduler->lane[index].draining && rank < best_rank) {
			best = index;
			best_rank = rank;
		}
	}
	return best;
}
