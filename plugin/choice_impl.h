/* SPDX-License-Identifier: Apache-2.0 */
/* choice_impl.h - what the files of the choice have of each other. */
#ifndef HARP_PLUGIN_CHOICE_IMPL_H
#define HARP_PLUGIN_CHOICE_IMPL_H

#include "choice.h"

/* From a probe to the next, messages. */
#define CHOICE_BACKOFF_MIN 16u
/* Costs since the last probe before one because the way in use got worse, at first. */
#define CHOICE_ALARM_MIN 16u
/* Per cent: a verdict that clear needs fewer probes. */
#define CHOICE_CLEAR 130u
#define CHOICE_NONE CHOICE_WAYS
/* From this class on (8 MiB) a message is longer than what is acknowledged at once: each is a mean by itself. */
#define CHOICE_LONG 17u
/* From this class on (1 MiB) the length of a message no longer matters to which way is better. */
#define CHOICE_BULK 14u
/* From this class on (8 KiB) a message sent alone takes so long that the two ways of a trial can take turns: looking
 * at the lanes of both costs it little. */
#define CHOICE_TURNS 7u
/* Of single messages that are kept one in so many and one asks for an ACK. */
#define CHOICE_REST_ASKED 15u

static inline unsigned choice_mask(unsigned way)
{
	return way == CHOICE_NONE ? 0 : way + 1;
}

static inline bool choice_takes_turns(unsigned cell)
{
	return cell >= CHOICE_TURNS && cell < CHOICE_CLASSES;
}

/* choice.c: do all verdicts of sizes up to four times as long or short, and of all bulk, agree? Then there is no hurry to look. */
bool choice_trusts(const struct choice *choice, unsigned index);

/* choice_cost.c */
/* A message took so long: as a cost, on the scale of its class. */
uint32_t choice_scaled(unsigned class, uint64_t size, uint64_t service_ns);
/* Costs to measure in one go, and messages that make one cost: a long message is a mean by itself. */
unsigned choice_want(unsigned class);
unsigned choice_batch(unsigned cell);
/* Messages besides that may end at once, of those in flight. */
unsigned choice_burst(unsigned class, unsigned flying);
/* Messages of a stream after a change of way that do not count, so many being in flight. */
unsigned choice_settle(unsigned class, unsigned flying);

/* choice_probe.c; rare, so that the path of every message stays short */
void choice_probe_begin(struct choice *choice, unsigned index);
void choice_probe_end(struct choice *choice);
/* A message is none of the probe's, which has some to send. After many the probe is dropped: what it has measured is no verdict, its size
 * may come again. */
void choice_probe_missed(struct choice *choice);
/* A message took ns. */
void choice_measured(struct choice *choice, unsigned index, unsigned way, uint32_t ns, bool counts);
/* One of a trial that does not. */
void choice_settling(struct choice *choice, unsigned index, unsigned way, uint32_t ns);

#endif
