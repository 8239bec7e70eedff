/* SPDX-License-Identifier: Apache-2.0 */
/* choice_cost.c - costs of messages, by size class: kept, compared, and how many it takes. */
#include "choice_impl.h"

#define CHOICE_NS_MAX (UINT32_MAX - 1) /* UINT32_MAX is above every cost */

unsigned choice_class(uint64_t size)
{
	unsigned bits;

	if (size <= 64)
		return 0;
	bits = 64 - (unsigned)__builtin_clzll(size - 1); /* size <= 1 << bits */
	return bits - 6 < CHOICE_CLASSES ? bits - 6 : CHOICE_CLASSES - 1;
}

void choice_push(struct choice_cost *cost, uint32_t ns)
{
	cost->ns[cost->next] = ns;
	cost->next = (uint8_t)((cost->next + 1) % CHOICE_COSTS);
	if (cost->count < CHOICE_COSTS)
		cost->count++;
}

/* So that one in `share` is below it; 0: there is none. */
static uint32_t choice_quantile(const struct choice_cost *cost, unsigned share)
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
	return sorted[(cost->count - 1u) / share];
}

uint32_t choice_typical(const struct choice_cost *cost)
{
	return choice_quantile(cost, 2);
}

uint32_t choice_low(const struct choice_cost *cost)
{
	return choice_quantile(cost, 3);
}

/* From 32 KiB on time goes with size: as if the message were as long as its class's longest. */
uint32_t choice_scaled(unsigned class, uint64_t size, uint64_t service_ns)
{
	uint64_t ns = service_ns;

	if (class > 9 && ns < UINT64_C(1) << 36)
		ns = (ns << (class + 6)) / size;
	return ns < CHOICE_NS_MAX ? (uint32_t)ns : CHOICE_NS_MAX;
}

unsigned choice_want(unsigned class)
{
	return class < 15 ? 6 : class < CHOICE_LONG ? 3 : 2;
}

unsigned choice_batch(unsigned cell)
{
	if (cell < CHOICE_CLASSES)
		return 1;
	cell -= CHOICE_CLASSES;
	return cell < 8 ? 8 : cell < 13 ? 4 : cell < CHOICE_LONG ? 2 : 1;
}

unsigned choice_burst(unsigned class, unsigned flying)
{
	unsigned most = class < CHOICE_LONG ? 1u << (CHOICE_LONG - class) : 0;

	return flying < most ? flying : most;
}

unsigned choice_settle(unsigned class, unsigned flying)
{
	return choice_burst(class, flying) + (class < CHOICE_LONG ? 2 : 1);
}
