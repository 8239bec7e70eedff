/* SPDX-License-Identifier: Apache-2.0 */
/* choice.c - learns from the times that messages take by which kinds of lane they go. */
#include "choice_impl.h"

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
 * two pipelines overlap, and a stream's first two messages after that are not typical. Of long messages not all
 * in flight are under way, so there what went ahead has to have gone the same way, as much as may be. In streams several
 * ends are often seen at once (an acknowledgement covers many): the head of such a burst has taken the time of them all,
 * and the rest none. So the mean of a batch is one cost there, and a batch is made of whole bursts: were it
 * of any two ends, most costs would be nothing, and a way that ends in bursts the best there can be. Once the answer is
 * known, one message or batch in four is looked at, of small single ones one in 16. The last 12 costs of each way are
 * kept, and their lower median is compared: a median because a scheduling hiccup of milliseconds says nothing about a way, the lower
 * one because then six fresh costs of a way that got better outvote six old ones.
 *
 * A stream's ends may all be seen at once and the next messages all be posted then: the first of them is one of the stream
 * too, though nothing was in flight, and takes the time of them all. So what a message is that begins alone is known when
 * others have come, or when it has ended; how it is to go is told by what became of the last such.
 *
 * Small ones are *kept* (comm_kept.c): by the kernel one is done when the socket has taken it, which tells nothing of when the
 * peer has it, nor whether it was alone (*blind*); by HARP it is done when its TCP has it acknowledged, which may be seen behind
 * the answer that the next one answers (*doubt*). So one that is to be seen exactly asks for an ACK, either way. So does a longer one:
 * who asks is told before the receiver's application answers by a kernel lane, which takes longer than to tell by HARP's.
 *
 * A cell without a verdict of its own goes the way of its nearest neighbour, of the other kind of traffic
 * if need be, else of the smaller round trip in the preamble. Then it measures: a few messages as they
 * go, a few by each other way, and it has a verdict. After that a *probe*, a run of consecutive messages by
 * a rival way, comes ever more rarely while the verdict stands, no sooner than keeps its cost near 2 % of
 * the time, and sooner when the way in use gets slower. During a probe other sizes that are in flight
 * together with it go its way too, or else nothing would ever be measured where sizes alternate. One whose size comes no
 * more is dropped, as there is one probe at a time, and the other sizes wait for it.
 *
 * What a machine does besides comes and goes by milliseconds to minutes, and for longer messages that is no longer than a trial: of
 * two runs one behind the other one may have had the good time. So in a trial of single messages of 8 KiB and more the
 * ways take turns, message by message, and what counts is what they took then, not before: the lower third of it, as what
 * disturbs only ever adds.
 *
 * Trials are bounded in time, too: a way that shows one cost of milliseconds, well above those of the way in use, is
 * not tried on, and where the way in use itself takes so long the first comparison comes after one cost, unless neighbours know.
 *
 * A rival must be better by a margin, smaller the more costs it has; between equals nothing changes.
 */

/* A stream's messages before the first probe, at least: NCCL posts eight at once, and one of them has to be done. */
#define CHOICE_BEGIN 9u
/* Single ones before the first probe in which the ways take turns. */
#define CHOICE_WARM 3u
/* So many more, where neighbours know. */
#define CHOICE_TRUST 32u
/* Messages that are seen to end before the next one comes, after which they are taken to come one at a time: one of a stream
 * does when who sends was not let run. */
#define CHOICE_LONE 2u
/* Small ones of which each was in flight when the next one came, none that was seen to end alone between, after which it is a
 * stream of two. Those next ones are not counted besides. */
#define CHOICE_DOUBTS 16u

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

bool choice_trusts(const struct choice *choice, unsigned index)
{
	const struct choice_cell *cells = &choice->cells[index - index % CHOICE_CLASSES];
	unsigned class = index % CHOICE_CLASSES, found = 0;
	unsigned low = class > 2 ? class - 2 : 0, high = class + 2;

	if (class >= CHOICE_BULK) {
		low = low < CHOICE_BULK ? low : CHOICE_BULK;
		high = CHOICE_CLASSES - 1;
	}
	for (unsigned i = low; i <= high && i < CHOICE_CLASSES; i++) {
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
	cell->wait = choice_want(index % CHOICE_CLASSES) * choice_batch(index) + 3;
	if (choice_takes_turns(index)) /* nothing has to be known before */
		cell->wait = index < CHOICE_LONG ? CHOICE_WARM : 1;
	if (index >= CHOICE_CLASSES && cell->wait < CHOICE_BEGIN)
		cell->wait = CHOICE_BEGIN;
	if (choice_trusts(choice, index))
		cell->wait += CHOICE_TRUST;
	cell->backoff = CHOICE_BACKOFF_MIN;
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
	if (!choice_is_probed(choice, index)) {
		if (probe->left)
			choice_probe_missed(choice);
		return cell->way;
	}
	probe->left--;
	probe->missed = 0;
	probe->last = message;
	if (probe->turns && index == probe->cell && probe->left % 2 == 0)
		return cell->way;
	probe->sent++;
	return probe->way;
}

/* What is in flight is of a stream. */
static void choice_joined(struct choice *choice, uint64_t next)
{
	for (unsigned i = 1; i <= choice->flying; i++) {
		struct choice_flight *flight = &choice->flights[(next - i) % PLUGIN_REQUESTS_MAX];

		flight->alone = flight->doubt = false;
		flight->cell = (uint8_t)(flight->class + CHOICE_CLASSES);
	}
	choice->lone = 0;
	choice->doubts = 0;
}

bool choice_would_join(const struct choice *choice, uint64_t message, bool kept)
{
	const struct choice_flight *before = &choice->flights[(message - 1) % PLUGIN_REQUESTS_MAX];

	return choice->flying == 1 && before->alone && !(kept && before->kept);
}

/* Is a new message one of a stream? With nothing in flight nobody knows yet, nor behind a small one: as the last time. */
static bool choice_is_streamed(struct choice *choice, uint64_t message, bool kept)
{
	struct choice_flight *before = &choice->flights[(message - 1) % PLUGIN_REQUESTS_MAX];

	if (!choice->flying) {
		choice->most_before = choice->most;
		choice->most = 0;
		return choice->lone < CHOICE_LONE;
	}
	if (choice->most < choice->flying)
		choice->most = choice->flying;
	if (choice->flying == 1 && kept && before->kept) {
		before->doubt = before->alone;
		return choice->lone < CHOICE_LONE;
	}
	if (choice->lone || choice->flights[(message - choice->flying) % PLUGIN_REQUESTS_MAX].alone)
		choice_joined(choice, message);
	return true;
}

/* Is there something to choose, and does the peer say when it has a kept message? */
static bool choice_asks(const struct choice *choice)
{
	return choice->kinds == (LANE_HARP | LANE_KERNEL) && !choice->mute;
}

/*
 * Is the end of a message that begins alone to be seen exactly? A kept one is asked for, which costs an ACK of its own. In a
 * stream by the kernel so many wait for none, as they are done sooner than the next one comes, and one has to be asked for
 * at times, or nobody would see that they have come one at a time since.
 */
static bool choice_looks(const struct choice *choice, unsigned class, unsigned way, bool streamed,
			 bool kept)
{
	if (kept && streamed)
		return way == WAY_KERNEL && (choice->lone || choice->unseen >= CHOICE_REST_ASKED);
	return choice->probe.active || !choice->cells[class].rest;
}

unsigned choice_take(struct choice *choice, uint64_t message, uint64_t size, bool kept)
{
	struct choice_flight *flight = &choice->flights[message % PLUGIN_REQUESTS_MAX];
	unsigned class = choice_class(size), way;
	bool streamed = choice_is_streamed(choice, message, kept);
	unsigned cell = class + (streamed ? CHOICE_CLASSES : 0);

	if (choice->kinds == (LANE_HARP | LANE_KERNEL))
		way = choice_way(choice, cell, message);
	else
		way = choice->kinds ? choice->kinds - 1u : CHOICE_NONE;
	choice->same = way == choice->last_way ? choice->same + 1 : 1;
	choice->last_way = (uint8_t)way;
	flight->cell = (uint8_t)cell;
	flight->class = (uint8_t) class;
	flight->way = (uint8_t)way;
	flight->kept = kept;
	flight->alone = choice->flying <= (streamed ? 0 : 1);
	flight->doubt = false;
	flight->exact = flight->alone && choice_looks(choice, class, way, streamed, kept);
	flight->blind = kept && way == WAY_KERNEL && !(flight->exact && choice_asks(choice));
	if (flight->alone)
		choice->unseen = flight->blind ? choice->unseen + 1 : 0;
	flight->counts = way != CHOICE_NONE &&
			 (flight->alone || choice->same > choice_settle(class, choice->flying));
	choice->flying++;
	return choice_mask(way);
}

bool choice_is_exact(const struct choice *choice, uint64_t message)
{
	const struct choice_flight *flight = &choice->flights[message % PLUGIN_REQUESTS_MAX];

	return choice_asks(choice) && flight->alone && flight->exact;
}

/*
 * Small, and the one behind it came while it was in flight, or so it seemed. That is no proof of a stream: an ACK may come behind the
 * answer that the next one answers, while in a stream there are soon two. Many in a row are.
 */
static void choice_doubted(struct choice *choice, struct choice_flight *flight, uint64_t message)
{
	struct choice_flight *next = &choice->flights[(message + 1) % PLUGIN_REQUESTS_MAX];

	if (choice->doubts < CHOICE_DOUBTS) {
		choice->doubts++;
		flight->counts &= flight->cell >= CHOICE_CLASSES;
		next->counts &= next->cell >= CHOICE_CLASSES;
		next->alone = false;
		return;
	}
	choice_joined(choice, message + 1 + choice->flying);
	flight->cell = (uint8_t)(flight->class + CHOICE_CLASSES);
}

/* It ended before another one came, if it can be told. */
static void choice_ended_alone(struct choice *choice, struct choice_flight *flight)
{
	if (flight->blind) {
		flight->counts &= flight->cell >= CHOICE_CLASSES;
		return;
	}
	flight->cell = flight->class;
	flight->counts &= flight->exact;
	choice->doubts = 0;
	if (choice->lone < CHOICE_LONE)
		choice->lone++;
}

void choice_done(struct choice *choice, uint64_t message, uint64_t size, unsigned kinds,
		 uint64_t service_ns, bool before)
{
	struct choice_flight *flight = &choice->flights[message % PLUGIN_REQUESTS_MAX];
	struct choice_probe *probe = &choice->probe;
	struct choice_cell *cell;

	choice->flying--;
	if (before) /* then the next one began alone */
		choice->flights[(message + 1) % PLUGIN_REQUESTS_MAX].alone = true;
	if (flight->doubt && !before)
		choice_doubted(choice, flight, message);
	else if (flight->alone)
		choice_ended_alone(choice, flight);
	cell = &choice->cells[flight->cell];
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
	choice_measured(choice, flight->cell, flight->way,
			choice_scaled(flight->class, size, service_ns),
			flight->counts && !(kinds & ~choice_mask(flight->way)));
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
	choice->lone = CHOICE_LONE;
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
