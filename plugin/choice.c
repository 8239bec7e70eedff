/* SPDX-License-Identifier: Apache-2.0 */
/* choice.c - learns from the times that messages take by which kinds of lane they go. */
#include "choice.h"

#include <string.h>

/*
 * Theory of operation
 *
 * There are three ways: HARP lanes, kernel lanes, and for long messages both at once. What each costs
 * depends on the size and on whether messages come one at a time (latency counts) or in streams
 * (throughput counts), so that there is a cell for each of 21 size classes in each of the two. The cost
 * of a message is the time from its being posted, or from its predecessor's end if that is later, to its
 * end: latency in the one, the inverse of throughput in the other.
 *
 * A cost counts if everything in flight when the message was begun went the same way: after a change
 * two pipelines overlap, and a stream's first two messages after that are not typical. In streams several
 * ends are often seen at once, so the mean of a batch is one cost there. Once the answer is known, one
 * message or batch in four is looked at. The last 12 costs of each way are kept, and their lower median
 * is compared: a median because a scheduling hiccup of milliseconds says nothing about a way, the lower
 * one because then six fresh costs of a way that got better outvote six old ones.
 *
 * A cell without a verdict of its own goes the way of its nearest neighbour, of the other kind of traffic
 * if need be, else of the smaller round trip in the preamble. Then it measures: a few messages as they
 * go, a few by each other way, and it has a verdict. After that a *probe*, a run of consecutive messages by
 * a rival way, comes ever more rarely while the verdict stands, no sooner than keeps its cost near 2 % of
 * the time, and sooner when the way in use gets slower. During a probe other sizes that are in flight
 * together with it go its way too, or else nothing would ever be measured where sizes alternate.
 *
 * Trials are bounded in time, too: a way that shows one cost of milliseconds, well above those of the way in use, is
 * not tried on, and where the way in use itself takes so long the first comparison comes after one cost.
 *
 * A rival must be better by a margin, smaller the more costs it has; between equals nothing changes.
 */

/* Messages of a stream after a change of way that do not count. */
#define CHOICE_SETTLE 2u
/* From a probe to the next, messages. */
#define CHOICE_BACKOFF_MIN 16u
#define CHOICE_BACKOFF_MAX 4096u
#define CHOICE_WAIT_MAX 8192u
/* So many more before the first, where neighbours know. */
#define CHOICE_TRUST 32u
/* A probe may cost one in so many messages' time. */
#define CHOICE_SHARE 50u
/* Per cent that the way in use may be above a rival; the smaller when that has so many costs. */
#define CHOICE_MARGIN 120u
#define CHOICE_MARGIN_SURE 108u
#define CHOICE_SURE 8u
/* Per cent: a verdict that clear needs fewer probes. */
#define CHOICE_CLEAR 130u
/* The way in use against when it was chosen, per cent: probe at once. Looked at every so many costs. */
#define CHOICE_WORSE 150u
#define CHOICE_LOOK 4u
/* Costs since the last probe before one because of that; doubled when it changed nothing. */
#define CHOICE_ALARM_MIN 16u
#define CHOICE_ALARM_MAX 4096u
/* Of the way in use, once settled, one cost in so many and one is taken. */
#define CHOICE_REST 3u
/* Three costs so many times above those of the way in use end a probe. */
#define CHOICE_SLOW 3u
/* So long a cost says enough of a way by itself: that it is to be compared, or, so many times above that of the
 * way in use, that it is not to be tried on. */
#define CHOICE_LONG_NS 5000000u
#define CHOICE_POOR 2u
#define CHOICE_NS_MAX (UINT32_MAX - 1) /* UINT32_MAX is above every cost */
#define CHOICE_NONE CHOICE_WAYS

static uint32_t choice_random(struct choice *choice, uint32_t below)
{
	uint64_t z = choice->random += 0x9e3779b97f4a7c15u; /* splitmix64 */

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return (uint32_t)(((z ^ (z >> 31)) >> 32) * below >> 32);
}

unsigned choice_class(uint64_t size)
{
	unsigned bits;

	if (size <= 64)
		return 0;
	bits = 64 - (unsigned)__builtin_clzll(size - 1); /* size <= 1 << bits */
	return bits - 6 < CHOICE_CLASSES ? bits - 6 : CHOICE_CLASSES - 1;
}

static unsigned choice_mask(unsigned way)
{
	return way == CHOICE_NONE ? 0 : way + 1;
}

/* ---- costs ---------------------------------------------------------------------------------- */

void choice_push(struct choice_cost *cost, uint32_t ns)
{
	cost->ns[cost->next] = ns;
	cost->next = (uint8_t)((cost->next + 1) % CHOICE_COSTS);
	if (cost->count < CHOICE_COSTS)
		cost->count++;
}

uint32_t choice_typical(const struct choice_cost *cost)
{
	uint32_t sorted[CHOICE_COSTS];

	if (!cost->count)
		return 0;
	for (unsigned i = 0; i < cost->count; i++) {
		unsigned at = i;

		for (; at && sorted[at - 1] > cost->ns[i]; at--)
			sorted[at] = sorted[at - 1];
		sorted[at] = cost->ns[i];
	}
	return sorted[(cost->count - 1) / 2];
}

/* From 32 KiB on time goes with size: as if the message were as long as its class's longest. */
static uint32_t choice_scaled(unsigned class, uint64_t size, uint64_t service_ns)
{
	uint64_t ns = service_ns;

	if (class > 9 && ns < UINT64_C(1) << 36)
		ns = (ns << (class + 6)) / size;
	return ns < CHOICE_NS_MAX ? (uint32_t)ns : CHOICE_NS_MAX;
}

/* Costs to measure in one go, and messages that make one cost: a long message is a mean by itself. */
static unsigned choice_want(unsigned class)
{
	return class < 15 ? 6 : 3;
}

static unsigned choice_batch(unsigned cell)
{
	if (cell < CHOICE_CLASSES)
		return 1;
	cell -= CHOICE_CLASSES;
	return cell < 8 ? 8 : cell < 13 ? 4 : 2;
}

/* ---- ways ----------------------------------------------------------------------------------- */

bool choice_allows(const struct choice *choice, unsigned cell, unsigned way)
{
	unsigned mask = choice_mask(way);

	if (mask & ~(unsigned)choice->kinds)
		return false;
	return way != WAY_BOTH || UINT64_C(64) << cell % CHOICE_CLASSES > CHOICE_BOTH_BYTES;
}

/* The best of what is alive, by what is known: this cell's costs, or the preambles'. */
static unsigned choice_guess(const struct choice *choice, unsigned cell)
{
	const uint64_t *rtt_ns = choice->rtt_ns;
	unsigned best = CHOICE_NONE;
	uint32_t best_ns = UINT32_MAX;

	for (unsigned way = 0; way < CHOICE_WAYS; way++) {
		uint32_t ns = choice_typical(&choice->cells[cell].cost[way]);

		if (ns && ns < best_ns && choice_allows(choice, cell, way)) {
			best = way;
			best_ns = ns;
		}
	}
	if (best != CHOICE_NONE)
		return best;
	if (choice->kinds == (LANE_HARP | LANE_KERNEL))
		return rtt_ns[WAY_KERNEL] &&
				       rtt_ns[WAY_KERNEL] * CHOICE_CLEAR / 100 < rtt_ns[WAY_HARP]
			       ? WAY_KERNEL
			       : WAY_HARP;
	return choice->kinds ? choice->kinds - 1u : CHOICE_NONE;
}

/* The nearest cell of the same traffic with a verdict whose way would do here; CHOICE_CELLS: none. */
static unsigned choice_neighbour(const struct choice *choice, unsigned cell, unsigned first)
{
	unsigned class = cell % CHOICE_CLASSES;

	for (unsigned d = 0; d < CHOICE_CLASSES; d++) {
		unsigned at[] = { class >= d ? class - d : CHOICE_CLASSES,
				  class + d < CHOICE_CLASSES ? class + d : CHOICE_CLASSES };

		for (unsigned i = 0; i < 2; i++)
			if (at[i] < CHOICE_CLASSES && choice->cells[first + at[i]].own &&
			    choice_allows(choice, cell, choice->cells[first + at[i]].way))
				return first + at[i];
	}
	return CHOICE_CELLS;
}

/* Do all verdicts of sizes up to four times as long or short agree? Then there is no hurry to look. */
static bool choice_trusts(const struct choice *choice, unsigned index, unsigned first)
{
	const struct choice_cell *cells = &choice->cells[first];
	unsigned class = index % CHOICE_CLASSES, found = 0;

	for (unsigned i = class > 2 ? class - 2 : 0; i <= class + 2 && i < CHOICE_CLASSES; i++) {
		if (!cells[i].own)
			continue;
		if (cells[i].way != choice->cells[index].way)
			return false;
		found++;
	}
	return found > 0;
}

/* The first message of this kind. */
static __attribute__((noinline)) void choice_meet(struct choice *choice, unsigned index)
{
	unsigned same = index < CHOICE_CLASSES ? 0 : CHOICE_CLASSES;
	unsigned near = choice_neighbour(choice, index, same);
	struct choice_cell *cell = &choice->cells[index];

	if (near == CHOICE_CELLS)
		near = choice_neighbour(choice, index, CHOICE_CLASSES - same);
	cell->way = (uint8_t)(near == CHOICE_CELLS ? choice_guess(choice, index)
						   : choice->cells[near].way);
	cell->home = cell->way;
	cell->used = true;
	cell->fresh = false;
	cell->alarm = CHOICE_ALARM_MIN;
	cell->wait = choice_want(index % CHOICE_CLASSES) * choice_batch(index) + CHOICE_SETTLE + 1;
	if (choice_trusts(choice, index, same))
		cell->wait += CHOICE_TRUST;
	cell->backoff = CHOICE_BACKOFF_MIN;
}

/* ---- probes --------------------------------------------------------------------------------- */

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
	if (!cell->fresh) /* nothing to compare it with: measure the way in use, nothing else */
		return cell->way;
	cell->rival = (uint8_t)next;
	return next;
}

static __attribute__((noinline)) void choice_probe_begin(struct choice *choice, unsigned index)
{
	struct choice_cell *cell = &choice->cells[index];
	struct choice_probe *probe = &choice->probe;
	unsigned way = choice_rival(cell, choice, index);

	if (way == CHOICE_NONE) {
		cell->wait = CHOICE_WAIT_MAX;
		return;
	}
	memset(probe, 0, sizeof(*probe));
	probe->active = true;
	probe->cell = (uint8_t)index;
	probe->way = (uint8_t)way;
	probe->left = (uint16_t)(choice_want(index % CHOICE_CLASSES) * choice_batch(index) +
				 choice->flying + CHOICE_SETTLE + 1);
	cell->batch_count = 0;
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

/* A rival has been measured. */
static void choice_judge(struct choice *choice, unsigned index, unsigned probed)
{
	struct choice_cell *cell = &choice->cells[index];
	uint32_t best_ns, second_ns, way_ns = choice_typical(&cell->cost[cell->way]);
	unsigned best = choice_best(choice, index, &best_ns, &second_ns);
	bool first = !cell->own, changed = best != cell->way;
	unsigned margin =
		cell->cost[best].count >= CHOICE_SURE ? CHOICE_MARGIN_SURE : CHOICE_MARGIN;

	if (changed && !first && (uint64_t)way_ns * 100 < (uint64_t)best_ns * margin)
		changed = false;
	if (changed) {
		cell->way = cell->home = (uint8_t)best;
		cell->backoff = CHOICE_BACKOFF_MIN;
		cell->alarm = CHOICE_ALARM_MIN;
		cell->fresh = true;
	} else if (cell->backoff < CHOICE_BACKOFF_MAX &&
		   ((uint64_t)second_ns * 100 > (uint64_t)best_ns * CHOICE_CLEAR ||
		    cell->backoff < CHOICE_BACKOFF_MAX / 4)) {
		cell->backoff *= 2;
	}
	cell->settled_ns = choice_typical(&cell->cost[cell->way]);
	if (choice_tried_all(choice, index)) {
		cell->own = true;
		cell->wait = choice_pause(choice, cell, cell->settled_ns,
					  choice_typical(&cell->cost[probed]));
	} else {
		cell->wait = CHOICE_SETTLE;
	}
	if (cell->own && (first || changed))
		choice->news = true;
}

static __attribute__((noinline)) void choice_probe_end(struct choice *choice)
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

/* Long, and so many times above the way in use? */
static bool choice_is_poor(const struct choice_cell *cell, uint32_t ns, unsigned times)
{
	return ns >= CHOICE_LONG_NS && cell->cost[cell->way].count &&
	       ns / times > choice_typical(&cell->cost[cell->way]);
}

/*
 * A message of a trial that does not count, as others were in flight when it was begun: they made its service
 * shorter, if anything. Where it is poor nevertheless, so is the way: no more go by it.
 */
static __attribute__((noinline)) void choice_settling(struct choice *choice, unsigned index,
						      unsigned way, uint32_t ns)
{
	struct choice_cell *cell = &choice->cells[index];
	struct choice_probe *probe = &choice->probe;

	if (!probe->left || probe->cell != index || probe->way != way || way == cell->way ||
	    !choice_is_poor(cell, ns, CHOICE_SLOW))
		return;
	choice_push(&cell->cost[way], ns);
	probe->costs++;
	probe->left = 0;
}

/* noinline, as what is rare else: the path of every message stays short. */
static __attribute__((noinline)) void choice_measured(struct choice *choice, unsigned index,
						      unsigned way, uint32_t ns)
{
	struct choice_cell *cell = &choice->cells[index];
	struct choice_probe *probe = &choice->probe;
	unsigned batch = choice_batch(index);

	if (cell->batch_way != way || !cell->batch_count) {
		cell->batch_way = (uint8_t)way;
		cell->batch_count = 0;
		cell->batch_ns = 0;
	}
	cell->batch_ns += ns;
	if (++cell->batch_count < batch)
		return;
	cell->batch_count = 0;
	ns = (uint32_t)(cell->batch_ns / batch);
	choice_push(&cell->cost[way], ns);
	if (way == cell->way) {
		cell->rest = cell->own ? (uint8_t)(CHOICE_REST * batch) : 0;
		cell->fresh = true;
		cell->tried |= (uint8_t)(1u << way);
		if (!cell->own && ns >= CHOICE_LONG_NS)
			cell->wait = 0; /* what else is there? */
		choice_look(cell);
	}
	if (!probe->active || probe->cell != index || probe->way != way)
		return;
	probe->costs++;
	if (way != cell->way && choice_is_poor(cell, ns, CHOICE_POOR))
		probe->left = 0;
	if (way != cell->way && ns / CHOICE_SLOW > choice_typical(&cell->cost[cell->way]) &&
	    ++probe->slow >= 3)
		probe->left = 0; /* enough seen */
}

/* ---- messages ------------------------------------------------------------------------------- */

static bool choice_is_probed(const struct choice *choice, unsigned cell)
{
	const struct choice_probe *probe = &choice->probe;

	if (!probe->left)
		return false;
	return cell % CHOICE_CLASSES == probe->cell % CHOICE_CLASSES ||
	       (choice->flying && choice_allows(choice, cell, probe->way));
}

/* The way of a message where there are several kinds. */
static unsigned choice_way(struct choice *choice, unsigned index, uint64_t message)
{
	struct choice_cell *cell = &choice->cells[index];
	struct choice_probe *probe = &choice->probe;

	if (!cell->used)
		choice_meet(choice, index);
	if (!probe->active) {
		if (cell->wait)
			cell->wait--;
		else
			choice_probe_begin(choice, index);
	}
	if (!choice_is_probed(choice, index))
		return cell->way;
	probe->left--;
	probe->sent++;
	probe->last = message;
	return probe->way;
}

unsigned choice_take(struct choice *choice, uint64_t message, uint64_t size)
{
	struct choice_flight *flight = &choice->flights[message % PLUGIN_REQUESTS_MAX];
	unsigned class = choice_class(size), cell = class + (choice->flying ? CHOICE_CLASSES : 0);
	unsigned way;

	if (choice->kinds == (LANE_HARP | LANE_KERNEL))
		way = choice_way(choice, cell, message);
	else
		way = choice->kinds ? choice->kinds - 1u : CHOICE_NONE;
	choice->same = way == choice->last_way ? choice->same + 1 : 1;
	choice->last_way = (uint8_t)way;
	flight->cell = (uint8_t)cell;
	flight->class = (uint8_t) class;
	flight->way = (uint8_t)way;
	flight->counts = way != CHOICE_NONE &&
			 (!choice->flying || choice->same > choice->flying + CHOICE_SETTLE);
	choice->flying++;
	return choice_mask(way);
}

void choice_done(struct choice *choice, uint64_t message, uint64_t size, unsigned kinds,
		 uint64_t service_ns)
{
	const struct choice_flight *flight = &choice->flights[message % PLUGIN_REQUESTS_MAX];
	struct choice_cell *cell = &choice->cells[flight->cell];
	struct choice_probe *probe = &choice->probe;

	choice->flying--;
	if (kinds) {
		struct choice_count *count = &choice->counts[flight->class];

		count->messages[kinds - 1]++;
		count->bytes[kinds - 1] += size;
	}
	if (cell->rest && !probe->active) {
		cell->rest--;
		return;
	}
	/* By other lanes than it was meant for: one has died. Both were allowed, one was enough: counts. */
	if (flight->counts && !(kinds & ~choice_mask(flight->way)))
		choice_measured(choice, flight->cell, flight->way,
				choice_scaled(flight->class, size, service_ns));
	else
		cell->batch_count = 0;
	if (probe->left && !flight->counts && kinds == choice_mask(flight->way))
		choice_settling(choice, flight->cell, flight->way,
				choice_scaled(flight->class, size, service_ns));
	if (probe->active && !probe->left && message >= probe->last)
		choice_probe_end(choice);
}

/* ---- what is alive -------------------------------------------------------------------------- */

void choice_init(struct choice *choice, enum plugin_path path, uint64_t seed)
{
	memset(choice, 0, sizeof(*choice));
	choice->allowed = plugin_path_is_harp(path) ? LANE_HARP
			  : path == PATH_KERNEL     ? LANE_KERNEL
						    : LANE_HARP | LANE_KERNEL;
	choice->random = seed;
	choice->last_way = CHOICE_NONE;
}

void choice_kinds_alive(struct choice *choice, unsigned kinds)
{
	bool back;

	kinds &= choice->allowed;
	if (kinds == choice->kinds)
		return;
	back = kinds & ~(unsigned)choice->kinds & choice->seen;
	choice->kinds = (uint8_t)kinds;
	choice->seen |= (uint8_t)kinds;
	choice->news = true;
	memset(&choice->probe, 0, sizeof(choice->probe));
	for (unsigned i = 0; i < CHOICE_CELLS; i++) {
		struct choice_cell *cell = &choice->cells[i];

		cell->batch_count = 0;
		if (!cell->used)
			continue;
		cell->way = cell->home;
		if (!choice_allows(choice, i, cell->way))
			cell->way = (uint8_t)choice_guess(choice, i);
		cell->fresh = false;
		if (!back)
			continue;
		/* It may have changed in the meantime: measure soon. */
		cell->tried = 0;
		cell->probes = 0;
		cell->backoff = CHOICE_BACKOFF_MIN;
		if (cell->wait > CHOICE_BACKOFF_MIN)
			cell->wait = CHOICE_BACKOFF_MIN;
	}
}

void choice_rtt(struct choice *choice, enum lane_kind kind, uint64_t rtt_ns)
{
	uint64_t *best_ns = &choice->rtt_ns[kind - 1];

	if (!*best_ns || rtt_ns < *best_ns)
		*best_ns = rtt_ns;
}
