/* SPDX-License-Identifier: Apache-2.0 */
/* choice_probe.c - tries the ways that are not in use, and judges by what they cost; see choice.c. */
#include "choice_impl.h"

#include <string.h>

/* Messages of other sizes, none of a probe's between, after which the probe is not waited for; twice as many each time that its
 * size has come again, so often. */
#define CHOICE_MISSED 32u
#define CHOICE_MISSED_DOUBLED 5u
/* From a probe to the next, messages. */
#define CHOICE_BACKOFF_MAX 4096u
#define CHOICE_WAIT_MAX 8192u
/* From one rival to the next, while not all have been tried. */
#define CHOICE_BREATH 2u
/* A probe may cost one in so many messages' time. */
#define CHOICE_SHARE 50u
/* Per cent that the way in use may be above a rival; the smaller when that has so many costs. */
#define CHOICE_MARGIN 120u
#define CHOICE_MARGIN_SURE 108u
#define CHOICE_SURE 8u
/* The way in use against when it was chosen, per cent: probe at once. Looked at every so many costs. */
#define CHOICE_WORSE 150u
#define CHOICE_LOOK 4u
/* Costs since the last probe before one because of that: doubled when it changed nothing. */
#define CHOICE_ALARM_MAX 4096u
/* Of the way in use, once settled, one cost in so many and one is taken. */
#define CHOICE_REST 3u
/* Three costs so many times above those of the way in use end a probe. */
#define CHOICE_SLOW 3u
/* So long a cost says enough of a way by itself: that it is to be compared, or, so many times above that of the
 * way in use, that it is not to be tried on. */
#define CHOICE_LONG_NS 5000000u
#define CHOICE_POOR 2u
/* So many times shorter than the head of its burst an end belongs to it. Each one behind the head takes so much of its
 * weight, or a scheduling hiccup would take whatever comes after it for its burst. */
#define CHOICE_BURST_SHARE 8u
#define CHOICE_HEAD_FADE 4u
/* Bursts that a trial is to see. */
#define CHOICE_BURSTS 2u

static uint32_t choice_random(struct choice *choice, uint32_t below)
{
	uint64_t z = choice->random += 0x9e3779b97f4a7c15u; /* splitmix64 */

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return (uint32_t)(((z ^ (z >> 31)) >> 32) * below >> 32);
}

/* What to try next; CHOICE_NONE: there is no other way. */
static unsigned choice_rival(struct choice_cell *cell, const struct choice *choice, unsigned index)
{
	unsigned next = CHOICE_NONE;

	for (unsigned i = 1; i <= CHOICE_WAYS; i++) {
		unsigned way = (cell->rival + i) % CHOICE_WAYS;

		if (way == cell->way || !choice_allows(choice, index, way))
			continue;
		if (!(cell->tried & 1u << way)) {
			next = way;
			break;
		}
		if (next == CHOICE_NONE)
			next = way;
	}
	if (next == CHOICE_NONE)
		return next;
	/* Nothing to compare it with: measure the way in use, nothing else. */
	if (!cell->fresh && !choice_takes_turns(index))
		return cell->way;
	cell->rival = (uint8_t)next;
	return next;
}

/* Messages of a trial: enough costs, or a burst that is cut off at either end and some between; and what does not count. */
static uint16_t choice_trial(unsigned index, unsigned flying)
{
	unsigned class = index % CHOICE_CLASSES, batch = choice_batch(index);
	unsigned count = choice_want(class) * batch, burst = choice_burst(class, flying);

	if (choice_takes_turns(index))
		return (uint16_t)(2 * (class < CHOICE_LONG ? count | 1 : count));
	if (count < CHOICE_BURSTS * burst)
		count = CHOICE_BURSTS * burst;
	/* What comes behind a batch ends it. */
	return (uint16_t)(choice_settle(class, flying) + count + (batch > 1));
}

/* The two best ways that have been measured; their costs. */
static unsigned choice_best(const struct choice *choice, unsigned index, uint32_t *best_ns,
			    uint32_t *second_ns)
{
	const struct choice_cell *cell = &choice->cells[index];
	unsigned best = CHOICE_NONE;

	*best_ns = *second_ns = UINT32_MAX;
	for (unsigned way = 0; way < CHOICE_WAYS; way++) {
		uint32_t ns = choice_typical(&cell->cost[way]);

		if (!cell->cost[way].count || !choice_allows(choice, index, way))
			continue;
		if (ns < *best_ns) {
			*second_ns = *best_ns;
			*best_ns = ns;
			best = way;
		} else if (ns < *second_ns) {
			*second_ns = ns;
		}
	}
	return best;
}

static bool choice_tried_all(const struct choice *choice, unsigned index)
{
	for (unsigned way = 0; way < CHOICE_WAYS; way++)
		if (choice_allows(choice, index, way) && !(choice->cells[index].tried & 1u << way))
			return false;
	return true;
}

/* Messages until the next probe: what the last one cost is not to be more than 2 % of the time. */
static uint32_t choice_pause(struct choice *choice, const struct choice_cell *cell,
			     uint32_t best_ns, uint32_t probed_ns)
{
	uint64_t wait = cell->backoff;

	/* A first verdict by a wide margin may be of a bad moment: one that confirms it comes soon. */
	if (cell->probes > 2 && best_ns && probed_ns > best_ns) {
		uint64_t paid = (uint64_t)CHOICE_SHARE * choice->probe.sent *
				(probed_ns - best_ns) / best_ns;

		if (wait < paid)
			wait = paid;
	}
	if (wait > CHOICE_WAIT_MAX)
		wait = CHOICE_WAIT_MAX;
	return (uint32_t)wait + choice_random(choice, (uint32_t)wait / 4 + 1);
}

/* What a trial says. */
struct choice_verdict {
	unsigned best; /* way */
	bool sure;     /* by many costs, or not for the first time */
	uint32_t way_ns, probed_ns, best_ns, second_ns;
};

/* All that is known of each way. */
static struct choice_verdict choice_by_all(const struct choice *choice, unsigned index,
					   unsigned probed)
{
	const struct choice_cell *cell = &choice->cells[index];
	struct choice_verdict v = { .way_ns = choice_typical(&cell->cost[cell->way]),
				    .probed_ns = choice_typical(&cell->cost[probed]) };

	v.best = choice_best(choice, index, &v.best_ns, &v.second_ns);
	v.sure = cell->cost[v.best].count >= CHOICE_SURE;
	return v;
}

/* The two that took turns, as they did then. */
static struct choice_verdict choice_by_turns(const struct choice_probe *probe,
					     struct choice_cell *cell)
{
	struct choice_verdict v = { .way_ns = choice_low(&probe->used),
				    .probed_ns = choice_low(&probe->rivals) };
	bool better = v.probed_ns < v.way_ns;

	v.best = better ? probe->way : cell->way;
	v.best_ns = better ? v.probed_ns : v.way_ns;
	v.second_ns = better ? v.way_ns : v.probed_ns;
	v.sure = cell->leans == probe->way + 1;
	cell->leans = (uint64_t)v.way_ns * 100 >= (uint64_t)v.probed_ns * CHOICE_MARGIN_SURE
			      ? (uint8_t)(probe->way + 1)
			      : 0;
	return v;
}

/* A rival has been measured. */
static void choice_judge(struct choice *choice, unsigned index, unsigned probed)
{
	const struct choice_probe *probe = &choice->probe;
	struct choice_cell *cell = &choice->cells[index];
	const struct choice_verdict v = probe->turns && probe->used.count
						? choice_by_turns(probe, cell)
						: choice_by_all(choice, index, probed);
	unsigned margin = v.sure ? CHOICE_MARGIN_SURE : CHOICE_MARGIN;
	bool first = !cell->own, changed = v.best != cell->way;

	if (changed && !first && (uint64_t)v.way_ns * 100 < (uint64_t)v.best_ns * margin)
		changed = false;
	if (changed) {
		cell->way = cell->home = (uint8_t)v.best;
		cell->backoff = CHOICE_BACKOFF_MIN;
		cell->alarm = CHOICE_ALARM_MIN;
		cell->fresh = true;
	} else if (cell->backoff < CHOICE_BACKOFF_MAX &&
		   ((uint64_t)v.second_ns * 100 > (uint64_t)v.best_ns * CHOICE_CLEAR ||
		    cell->backoff < CHOICE_BACKOFF_MAX / 4)) {
		cell->backoff *= 2;
	}
	cell->settled_ns = choice_typical(&cell->cost[cell->way]);
	if (choice_tried_all(choice, index)) {
		cell->own = true;
		cell->wait = choice_pause(choice, cell, cell->settled_ns, v.probed_ns);
	} else {
		cell->wait = CHOICE_BREATH;
	}
	if (cell->own && (first || changed))
		choice->news = choice->learnt = true;
}

void choice_probe_begin(struct choice *choice, unsigned index)
{
	struct choice_cell *cell = &choice->cells[index];
	struct choice_probe *probe = &choice->probe;
	unsigned way = choice_rival(cell, choice, index);

	if (way == CHOICE_NONE) {
		cell->wait = CHOICE_WAIT_MAX;
		return;
	}
	memset(probe, 0, sizeof(*probe));
	/* Other comms have tried them all, each a little. */
	if (!cell->own && choice_tried_all(choice, index)) {
		choice_judge(choice, index, way);
		return;
	}
	probe->active = true;
	probe->cell = (uint8_t)index;
	probe->way = (uint8_t)way;
	probe->turns = choice_takes_turns(index);
	probe->left = choice_trial(index, choice->flying ? choice->flying : choice->most_before);
	cell->batch_count = 0;
}

void choice_probe_end(struct choice *choice)
{
	struct choice_probe *probe = &choice->probe;
	struct choice_cell *cell = &choice->cells[probe->cell];

	probe->active = false;
	if (probe->costs)
		cell->tried |= (uint8_t)(1u << probe->way);
	if (!probe->costs) { /* sizes alternate in a way that leaves nothing to measure */
		if (cell->backoff < CHOICE_BACKOFF_MAX)
			cell->backoff *= 2;
		cell->wait = cell->backoff;
	} else if (probe->way == cell->way) {
		cell->wait = 0; /* it has been measured for the sake of a rival */
	} else {
		if (cell->probes < UINT8_MAX)
			cell->probes++;
		cell->fresh = false;
		cell->since_probe = 0;
		choice_judge(choice, probe->cell, probe->way);
	}
}

void choice_end(struct choice *choice)
{
	struct choice_probe *probe = &choice->probe;

	probe->left = 0;
	if (probe->active && probe->costs)
		choice_probe_end(choice);
	else if (
		probe->active) /* soon, in another comm; yet not all messages of short ones go a way that is tried */
		choice->cells[probe->cell].wait = CHOICE_BACKOFF_MIN;
	probe->active = false;
}

void choice_probe_missed(struct choice *choice)
{
	struct choice_probe *probe = &choice->probe;
	struct choice_cell *cell = &choice->cells[probe->cell];

	if (++probe->missed < CHOICE_MISSED << cell->dropped)
		return;
	if (cell->dropped < CHOICE_MISSED_DOUBLED)
		cell->dropped++;
	probe->left = 0;
	probe->costs = 0;
	choice_probe_end(choice);
}

/* The way in use has one more cost: has it become worse? */
static void choice_look(struct choice_cell *cell)
{
	uint32_t ns;

	if (++cell->since_look < CHOICE_LOOK)
		return;
	cell->since_look = 0;
	if (cell->since_probe < CHOICE_ALARM_MAX)
		cell->since_probe += CHOICE_LOOK;
	ns = choice_typical(&cell->cost[cell->way]);
	if (!cell->own || cell->since_probe < cell->alarm ||
	    (uint64_t)ns * 100 < (uint64_t)cell->settled_ns * CHOICE_WORSE)
		return;
	cell->settled_ns = ns;
	if (cell->alarm < CHOICE_ALARM_MAX)
		cell->alarm *= 2;
	cell->wait = 0;
}

/* Does it say enough by itself? Of long messages a longer time is none out of the ordinary. */
static bool choice_takes_long(unsigned index, uint32_t ns)
{
	unsigned class = index % CHOICE_CLASSES;

	return (class > CHOICE_LONG ? ns >> (class - CHOICE_LONG) : ns) >= CHOICE_LONG_NS;
}

/* So, and so many times above the way in use? */
static bool choice_is_poor(const struct choice *choice, unsigned index, uint32_t ns, unsigned times)
{
	const struct choice_cell *cell = &choice->cells[index];

	return choice_takes_long(index, ns) && cell->cost[cell->way].count &&
	       ns / times > choice_typical(&cell->cost[cell->way]);
}

/*
 * A message of a trial that does not count, as others were in flight when it was begun: they made its service
 * shorter, if anything. Where it is poor nevertheless, so is the way: no more go by it.
 */
void choice_settling(struct choice *choice, unsigned index, unsigned way, uint32_t ns)
{
	struct choice_cell *cell = &choice->cells[index];
	struct choice_probe *probe = &choice->probe;

	if (!probe->left || probe->cell != index || probe->way != way || way == cell->way ||
	    !choice_is_poor(choice, index, ns, CHOICE_SLOW))
		return;
	choice_push(&cell->cost[way], ns);
	probe->costs++;
	probe->left = 0;
}

/* Messages of the way in use that are not looked at, behind one that was. */
static uint8_t choice_rest(const struct choice_cell *cell, unsigned index)
{
	if (!cell->own)
		return 0;
	if (index < CHOICE_TURNS)
		return CHOICE_REST_ASKED;
	return (uint8_t)(CHOICE_REST * choice_batch(index));
}

/* The way in use or a rival has one more cost. */
static void choice_cost(struct choice *choice, unsigned index, unsigned way, uint32_t ns)
{
	struct choice_cell *cell = &choice->cells[index];
	struct choice_probe *probe = &choice->probe;

	choice_push(&cell->cost[way], ns);
	if (way == cell->way) {
		cell->rest = choice_rest(cell, index);
		cell->fresh = true;
		cell->tried |= (uint8_t)(1u << way);
		if (!cell->own && choice_takes_long(index, ns) && !choice_trusts(choice, index))
			cell->wait = 0; /* what else is there? */
		choice_look(cell);
	}
	if (!probe->active || probe->cell != index)
		return;
	if (probe->turns)
		choice_push(probe->way == way ? &probe->rivals : &probe->used, ns);
	if (probe->way != way)
		return;
	probe->costs++;
	if (way != cell->way && choice_is_poor(choice, index, ns, CHOICE_POOR))
		probe->left = 0;
	if (way != cell->way && ns / CHOICE_SLOW > choice_typical(&cell->cost[cell->way]) &&
	    ++probe->slow >= 3)
		probe->left = 0; /* enough seen */
}

/* Was it seen to end together with those ahead of it? No more do than can be in flight. */
static bool choice_is_tail(struct choice_cell *cell, uint32_t ns)
{
	if (ns < cell->head_ns / CHOICE_BURST_SHARE && cell->batch_count < PLUGIN_REQUESTS_MAX) {
		cell->head_ns -= cell->head_ns / CHOICE_HEAD_FADE;
		return true;
	}
	cell->head_ns = ns;
	return false;
}

void choice_measured(struct choice *choice, unsigned index, unsigned way, uint32_t ns, bool counts)
{
	struct choice_cell *cell = &choice->cells[index];
	unsigned batch = choice_batch(index);
	bool tail;

	if (batch < 2) {
		if (counts)
			choice_cost(choice, index, way, ns);
		return;
	}
	if (cell->batch_way != way) {
		cell->batch_way = (uint8_t)way;
		cell->batch_count = 0;
		cell->head_ns = 0;
	}
	tail = choice_is_tail(cell, ns);
	if (!tail && cell->batch_count >= batch) {
		uint32_t mean_ns = (uint32_t)(cell->batch_ns / cell->batch_count);

		cell->batch_count = 0;
		choice_cost(choice, index, way, mean_ns);
	}
	if (!counts || (cell->rest && !choice->probe.active)) /* whose tail is not looked at */
		cell->batch_count = 0;
	else if (!tail || cell->batch_count) { /* else its head did not count */
		cell->batch_ns = cell->batch_count ? cell->batch_ns + ns : ns;
		cell->batch_count++;
	}
}
