/* SPDX-License-Identifier: Apache-2.0 */
/* choice_memory.c - what comms learn of a host, for other comms to it. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "choice_impl.h"

/*
 * Theory of operation
 *
 * NCCL makes tens of comms to a host, and some jobs make them again and again. So a verdict is told here when it is found, and all that a
 * comm knows when it ends, trials that it did not finish included: comms too short for a trial learn together. Who is
 * about to send the first message of a size looks here. A size that a comm has met itself it knows better: it may go by
 * other NICs and lanes, or at another time.
 *
 * What was learnt just now goes on as if it were the same comm, with as many messages until the next trial. What is
 * older is measured again soon.
 */

#define MEMORY_HOSTS 64u /* the oldest goes */
#define MEMORY_FRESH_NS 1000000000u
#define MEMORY_WAIT 64u /* messages until what is older is measured again */

struct memory_host {
	int dev;
	struct harp_addr remote;
	uint64_t saved; /* 0: free; else a number that grows */
	uint64_t saved_ns;
	struct choice_cell cells[CHOICE_CELLS];
};

static pthread_mutex_t memory_lock = PTHREAD_MUTEX_INITIALIZER;
static struct memory_host memory_hosts[MEMORY_HOSTS]; /* under memory_lock */
static atomic_uint_fast64_t memory_saves;             /* the same; relaxed where it is a hint */

static struct memory_host *memory_find(int dev, const struct harp_addr *remote)
{
	for (unsigned i = 0; i < MEMORY_HOSTS; i++)
		if (memory_hosts[i].saved && memory_hosts[i].dev == dev &&
		    !memcmp(&memory_hosts[i].remote, remote, sizeof(*remote)))
			return &memory_hosts[i];
	return NULL;
}

static struct memory_host *memory_make(int dev, const struct harp_addr *remote)
{
	struct memory_host *host = memory_find(dev, remote);

	if (host)
		return host;
	host = memory_hosts;
	for (unsigned i = 1; i < MEMORY_HOSTS; i++)
		if (memory_hosts[i].saved < host->saved)
			host = &memory_hosts[i];
	memset(host, 0, sizeof(*host));
	host->dev = dev;
	host->remote = *remote;
	return host;
}

static bool memory_is_worth(const struct choice_cell *cell)
{
	for (unsigned way = 0; way < CHOICE_WAYS; way++)
		if (cell->cost[way].count)
			return true;
	return false;
}

void choice_save(struct choice *choice, int dev, const struct harp_addr *remote, uint64_t now_ns)
{
	struct memory_host *host = NULL;

	choice->learnt = false;
	pthread_mutex_lock(&memory_lock);
	for (unsigned i = 0; i < CHOICE_CELLS; i++) {
		const struct choice_cell *cell = &choice->cells[i];

		if (!cell->used || !memory_is_worth(cell))
			continue;
		if (!host)
			host = memory_make(dev, remote);
		if (cell->own || !host->cells[i].own)
			host->cells[i] = *cell;
	}
	if (host) {
		host->saved = atomic_fetch_add_explicit(&memory_saves, 1, memory_order_relaxed) + 1;
		host->saved_ns = now_ns;
	}
	pthread_mutex_unlock(&memory_lock);
}

static void memory_recall(struct choice *choice, unsigned index, const struct choice_cell *from,
			  bool fresh)
{
	struct choice_cell *cell = &choice->cells[index];

	*cell = *from;
	cell->way = cell->home;
	/* Of trials that were cut short. */
	for (unsigned way = 0; way < CHOICE_WAYS; way++)
		if (cell->cost[way].count >= choice_want(index % CHOICE_CLASSES))
			cell->tried |= (uint8_t)(1u << way);
	cell->batch_count = 0;
	cell->head_ns = 0;
	cell->rest = 0;
	cell->dropped = 0;
	if (fresh)
		return;
	if (cell->wait > MEMORY_WAIT)
		cell->wait = MEMORY_WAIT;
	if (cell->backoff > MEMORY_WAIT)
		cell->backoff = MEMORY_WAIT;
	if (cell->alarm > MEMORY_WAIT)
		cell->alarm = MEMORY_WAIT;
}

void choice_seed(struct choice *choice, int dev, const struct harp_addr *remote, uint64_t now_ns)
{
	const struct memory_host *host;

	pthread_mutex_lock(&memory_lock);
	choice->heard = atomic_load_explicit(&memory_saves, memory_order_relaxed);
	host = memory_find(dev, remote);
	for (unsigned i = 0; host && i < CHOICE_CELLS; i++)
		if (host->cells[i].used && !choice->cells[i].used)
			memory_recall(choice, i, &host->cells[i],
				      now_ns < host->saved_ns + MEMORY_FRESH_NS);
	pthread_mutex_unlock(&memory_lock);
}

void choice_hear(struct choice *choice, uint64_t size, int dev, const struct harp_addr *remote,
		 uint64_t now_ns)
{
	unsigned class = choice_class(size);

	if (choice->heard == atomic_load_explicit(&memory_saves, memory_order_relaxed) ||
	    (choice->cells[class].used && choice->cells[class + CHOICE_CLASSES].used))
		return;
	choice_seed(choice, dev, remote, now_ns);
}
