/* SPDX-License-Identifier: Apache-2.0 */
/* stripe.c - see stripe.h. */
#include "stripe.h"

#include <string.h>

#include "lane.h"

/*
 * Theory of operation
 *
 * Lanes have rates that nobody announces, and the slowest must not set the pace. So there is no fixed split:
 * each chunk is given, when a lane has room, to the lane for which
 *
 *     half a round trip + (bytes under way + this chunk) / rate
 *
 * is smallest, where bytes under way are those that were given and not yet acknowledged by the peer's TCP. A lane
 * that is full may still be the one: the chunk waits for it, as it would only come later by another.
 *
 * The rate is what was acknowledged while the lane was never idle, smoothed over samples; of a time in which it
 * was idle we learn only that it is not slower. As long as it is unknown the lane is taken to be as fast as the
 * fastest of its kind, so that it gets a share and shows. So is one that was given nothing for a while: a rate that
 * keeps a lane from being used would never be found to have become better.
 *
 * Stalled is who owes acknowledgements and gives none for longer than a retransmission should take. It is passed
 * over as long as another moves. Dead is who stays so for the lane timeout while a sibling is acknowledged: were
 * all silent, the host is, and TCP's patience is the right one.
 */

#define RATE_DEFAULT 1250000u /* 10 Gbit/s */
#define SAMPLE_NS_MIN 1000000u
#define STALL_NS_MIN 20000000u
#define STALL_ROUND_TRIPS 4u
#define SLOW_NS 200000000u
#define SLOW_SHARE 4u         /* slower than so-manieth of the median */
#define GUESS_NS_MAX 2000000u /* of progress since the last look */
#define FORGET_NS 1000000000u /* what a lane could do when it was last given something */

void stripe_add(struct stripe *stripe, unsigned index, unsigned kind, bool backup, uint64_t rtt_ns,
		uint64_t now_ns)
{
	struct stripe_lane *l = &stripe->lane[index];

	memset(l, 0, sizeof(*l));
	l->kind = (uint8_t)kind;
	l->backup = backup;
	l->idle = true;
	l->srtt_ns = rtt_ns;
	l->acked_ns = l->sample_ns = l->progress_ns = now_ns;
	stripe->live |= 1u << index;
}

void stripe_remove(struct stripe *stripe, unsigned index)
{
	stripe->live &= ~(1u << index);
}

void stripe_give(struct stripe *stripe, unsigned index, uint64_t bytes, uint64_t now_ns)
{
	struct stripe_lane *l = &stripe->lane[index];

	if (l->given_bytes == l->acked_bytes) { /* nothing was owed until now */
		l->progress_ns = l->acked_ns = now_ns;
		l->idle = true;
	}
	l->given_bytes += bytes;
	l->given_ns = now_ns;
}

void stripe_acked(struct stripe *stripe, unsigned index, uint64_t acked_bytes, uint64_t now_ns)
{
	struct stripe_lane *l = &stripe->lane[index];

	if (acked_bytes > l->given_bytes) /* the count of a lane is never ahead of ours */
		acked_bytes = l->given_bytes;
	if (acked_bytes > l->acked_bytes) {
		l->acked_bytes = acked_bytes;
		l->progress_ns = now_ns;
	}
	l->acked_ns = now_ns;
	if (l->acked_bytes == l->given_bytes) {
		l->idle = true;
		l->progress_ns = now_ns;
	}
}

/* Is a lane given something that another one of them was acknowledged for, since_ns? */
static bool stripe_sibling_moved(const struct stripe *stripe, unsigned index, uint64_t since_ns)
{
	for (uint32_t left = stripe->live & ~(1u << index); left; left &= left - 1) {
		const struct stripe_lane *l = &stripe->lane[__builtin_ctz(left)];

		if (l->acked_bytes && !l->stalled && l->progress_ns > since_ns)
			return true;
	}
	return false;
}

static uint64_t stripe_median_rate(const struct stripe *stripe, unsigned index)
{
	const struct stripe_lane *self = &stripe->lane[index];
	uint64_t rates[STRIPE_LANES_MAX];
	unsigned count = 0;

	for (uint32_t left = stripe->live & ~(1u << index); left; left &= left - 1) {
		const struct stripe_lane *l = &stripe->lane[__builtin_ctz(left)];
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

static void stripe_learn_rate(struct stripe_lane *l, uint64_t now_ns)
{
	uint64_t spent_ns = now_ns - l->sample_ns, rate;

	if (spent_ns < SAMPLE_NS_MIN)
		return;
	rate = (l->acked_bytes - l->sample_bytes) * 1000000u / spent_ns;
	if (!l->idle)
		l->rate = l->rate ? (3 * l->rate + rate) / 4 : rate;
	else if (l->rate && rate > l->rate)
		l->rate = rate;
	if (!l->rate && !l->idle)
		l->rate = 1;
	l->idle = l->acked_bytes == l->given_bytes;
	l->sample_bytes = l->acked_bytes;
	l->sample_ns = now_ns;
}

static unsigned stripe_judge_slow(struct stripe *stripe, unsigned index, bool was_idle,
				  uint64_t now_ns)
{
	struct stripe_lane *l = &stripe->lane[index];
	uint64_t median = stripe_median_rate(stripe, index);

	if (!median || !l->rate || was_idle || l->rate * SLOW_SHARE >= median) {
		l->slow_ns = 0;
		l->slow = false;
		return 0;
	}
	if (!l->slow_ns)
		l->slow_ns = now_ns;
	if (l->slow || now_ns - l->slow_ns < SLOW_NS)
		return 0;
	l->slow = true;
	return STRIPE_SLOW;
}

unsigned stripe_sample(struct stripe *stripe, unsigned index, bool owed, uint64_t srtt_ns,
		       uint64_t timeout_ns, uint64_t now_ns)
{
	struct stripe_lane *l = &stripe->lane[index];
	bool was_stalled = l->stalled, was_idle = l->idle;
	uint64_t limit_ns, still_ns;
	unsigned news;

	if (srtt_ns)
		l->srtt_ns = srtt_ns;
	if (!owed)
		l->progress_ns = now_ns;
	stripe_learn_rate(l, now_ns);
	limit_ns = l->srtt_ns * STALL_ROUND_TRIPS;
	if (limit_ns < STALL_NS_MIN)
		limit_ns = STALL_NS_MIN;
	still_ns = now_ns - l->progress_ns;
	l->stalled = still_ns >= limit_ns;
	news = stripe_judge_slow(stripe, index, was_idle, now_ns);
	if (l->stalled && !was_stalled)
		news |= STRIPE_STALLED;
	if (!l->stalled && was_stalled)
		news |= STRIPE_MOVES;
	if (l->stalled && still_ns >= timeout_ns &&
	    stripe_sibling_moved(stripe, index, l->progress_ns + limit_ns))
		news |= STRIPE_DEAD;
	return news;
}

/* Lower is better. */
static unsigned stripe_rank(const struct stripe_lane *l, unsigned kinds)
{
	return (l->stalled ? 4u : 0u) + (l->backup ? 2u : 0u) + (l->kind & kinds ? 0u : 1u);
}

static uint64_t stripe_rate_default(const struct stripe *stripe, unsigned kind)
{
	uint64_t rate = 0;

	for (uint32_t left = stripe->live; left; left &= left - 1) {
		const struct stripe_lane *l = &stripe->lane[__builtin_ctz(left)];

		if (l->kind == kind && l->rate > rate)
			rate = l->rate;
	}
	return rate ? rate : RATE_DEFAULT;
}

static uint64_t stripe_finish_ns(const struct stripe *stripe, const struct stripe_lane *l,
				 uint64_t bytes, uint64_t now_ns)
{
	uint64_t under_way = l->given_bytes - l->acked_bytes, guess_ns = now_ns - l->acked_ns;
	bool known = l->rate && (under_way || now_ns - l->given_ns < FORGET_NS);
	uint64_t rate = known ? l->rate : stripe_rate_default(stripe, l->kind);
	uint64_t guess;

	if (under_way && l->kind == LANE_KERNEL) { /* it is not asked each time */
		guess = (guess_ns < GUESS_NS_MAX ? guess_ns : GUESS_NS_MAX) * rate / 1000000u;
		under_way = under_way > guess ? under_way - guess : 0;
	}
	return l->srtt_ns / 2 + (under_way + bytes) * 1000000u / rate;
}

int stripe_best(const struct stripe *stripe, unsigned kinds, uint64_t bytes, uint64_t now_ns)
{
	unsigned best_rank = ~0u;
	uint64_t best_ns = 0;
	int best = -1;

	if (!(stripe->live & (stripe->live - 1))) /* one at most */
		return stripe->live ? __builtin_ctz(stripe->live) : -1;
	for (uint32_t left = stripe->live; left; left &= left - 1) {
		int index = __builtin_ctz(left);
		const struct stripe_lane *l = &stripe->lane[index];
		unsigned rank = stripe_rank(l, kinds);
		uint64_t finish_ns;

		if (rank > best_rank)
			continue;
		finish_ns = stripe_finish_ns(stripe, l, bytes, now_ns);
		if (rank < best_rank || finish_ns < best_ns) {
			best = index;
			best_rank = rank;
			best_ns = finish_ns;
		}
	}
	return best;
}

unsigned stripe_choices(const struct stripe *stripe, unsigned kinds)
{
	unsigned best_rank = ~0u, count = 0;

	for (uint32_t left = stripe->live; left; left &= left - 1) {
		unsigned rank = stripe_rank(&stripe->lane[__builtin_ctz(left)], kinds);

		if (rank < best_rank) {
			best_rank = rank;
			count = 0;
		}
		count += rank == best_rank;
	}
	return count;
}

int stripe_control(const struct stripe *stripe)
{
	unsigned best_rank = ~0u;
	int best = -1;

	for (uint32_t left = stripe->live; left; left &= left - 1) {
		int index = __builtin_ctz(left);
		unsigned rank = stripe_rank(&stripe->lane[index], LANE_HARP);

		if (rank < best_rank) {
			best = index;
			best_rank = rank;
		}
	}
	return best;
}
