/* SPDX-License-Identifier: Apache-2.0 */
/* choice_memory.c - what comms have learnt of a host, for the next comm to it. */
#include <pthread.h>
#include <string.h>

#include "choice.h"

#define MEMORY_HOSTS 64u /* the oldest goes */
#define MEMORY_WAIT 64u  /* messages until what is remembered is measured again */

struct memory_cell {
	bool own;
	uint8_t way;
	uint32_t ns[CHOICE_WAYS]; /* 0: never measured */
};

struct memory_host {
	int dev;
	struct harp_addr remote;
	uint64_t saved; /* 0: free; else a number that grows */
	struct memory_cell cells[CHOICE_CELLS];
};

static pthread_mutex_t memory_lock = PTHREAD_MUTEX_INITIALIZER;
static struct memory_host memory_hosts[MEMORY_HOSTS]; /* under memory_lock, and so is: */
static uint64_t memory_saves;

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

void choice_save(const struct choice *choice, int dev, const struct harp_addr *remote)
{
	struct memory_host *host = NULL;

	pthread_mutex_lock(&memory_lock);
	for (unsigned i = 0; i < CHOICE_CELLS; i++) {
		const struct choice_cell *cell = &choice->cells[i];

		if (!cell->own)
			continue;
		if (!host)
			host = memory_make(dev, remote);
		host->cells[i].own = true;
		host->cells[i].way = cell->home;
		for (unsigned way = 0; way < CHOICE_WAYS; way++)
			host->cells[i].ns[way] = choice_typical(&cell->cost[way]);
	}
	if (host)
		host->saved = ++memory_saves;
	pthread_mutex_unlock(&memory_lock);
}

static void memory_recall(struct choice_cell *cell, const struct memory_cell *from)
{
	cell->used = cell->own = true;
	cell->alarm = MEMORY_WAIT;
	cell->way = cell->home = from->way;
	cell->wait = cell->backoff = MEMORY_WAIT;
	cell->settled_ns = from->ns[from->way];
	for (unsigned way = 0; way < CHOICE_WAYS; way++) {
		if (!from->ns[way])
			continue;
		choice_push(&cell->cost[way], from->ns[way]);
		cell->tried |= (uint8_t)(1u << way);
	}
}

void choice_seed(struct choice *choice, int dev, const struct harp_addr *remote)
{
	const struct memory_host *host;

	pthread_mutex_lock(&memory_lock);
	host = memory_find(dev, remote);
	for (unsigned i = 0; host && i < CHOICE_CELLS; i++)
		if (host->cells[i].own)
			memory_recall(&choice->cells[i], &host->cells[i]);
	pthread_mutex_unlock(&memory_lock);
}
