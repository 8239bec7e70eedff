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
 *
 * People are told the same way: of a host once, whichever comm found it, and of what all comms sent when the last has ended.
 */

#define MEMORY_HOSTS 64u /* the oldest goes */
#define MEMORY_FRESH_NS 1000000000u
#define MEMORY_WAIT 64u /* messages until what is older is measured again */

struct memory_host {
	int dev;
	unsigned comms; /* that are there */
	struct harp_addr remote;
	uint64_t saved; /* 0: free; else a number that grows */
	uint64_t saved_ns;
	struct choice known; /* cells, counts, and what was said of them */
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

/* Later than others: those to which there is a comm. */
static bool memory_goes_before(const struct memory_host *host, const struct memory_host *other)
{
	if (!host->comms != !other->comms)
		return !host->comms;
	return host->saved < other->saved;
}

static struct memory_host *memory_make(int dev, const struct harp_addr *remote)
{
	struct memory_host *host = memory_find(dev, remote);

	if (host)
		return host;
	host = memory_hosts;
	for (unsigned i = 1; i < MEMORY_HOSTS; i++)
		if (memory_goes_before(&memory_hosts[i], host))
			host = &memory_hosts[i];
	memset(host, 0, sizeof(*host));
	host->dev = dev;
	host->remote = *remote;
	return host;
}

static void memory_touch(struct memory_host *host)
{
	host->saved = atomic_fetch_add_explicit(&memory_saves, 1, memory_order_relaxed) + 1;
}

/* ---- what is known ------------------------------------------------------------------------------ */

static bool memory_is_worth(const struct choice_cell *cell)
{
	for (unsigned way = 0; way < CHOICE_WAYS; way++)
		if (cell->cost[way].count)
			return true;
	return false;
}

static struct memory_host *memory_save(struct choice *choice, int dev,
				       const struct harp_addr *remote, uint64_t now_ns)
{
	struct memory_host *host = memory_make(dev, remote);

	choice->learnt = false;
	for (unsigned i = 0; i < CHOICE_CELLS; i++) {
		const struct choice_cell *cell = &choice->cells[i];

		if (!cell->used || !memory_is_worth(cell))
			continue;
		if (cell->own || !host->known.cells[i].own)
			host->known.cells[i] = *cell;
	}
	memory_touch(host);
	host->saved_ns = now_ns;
	return host;
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

static void memory_seed(struct choice *choice, const struct memory_host *host, uint64_t now_ns)
{
	const struct choice_cell *cells = host->known.cells;

	for (unsigned i = 0; i < CHOICE_CELLS; i++)
		if (cells[i].used && !choice->cells[i].used)
			memory_recall(choice, i, &cells[i],
				      now_ns < host->saved_ns + MEMORY_FRESH_NS);
	choice->heard = atomic_load_explicit(&memory_saves, memory_order_relaxed);
}

/* ---- for comms ----------------------------------------------------------------------------------- */

void choice_join(struct choice *choice, int dev, const struct harp_addr *remote, uint64_t now_ns)
{
	struct memory_host *host;

	pthread_mutex_lock(&memory_lock);
	host = memory_make(dev, remote);
	memory_touch(host);
	host->comms++;
	memory_seed(choice, host, now_ns);
	pthread_mutex_unlock(&memory_lock);
}

void choice_hear(struct choice *choice, uint64_t size, int dev, const struct harp_addr *remote,
		 uint64_t now_ns)
{
	unsigned class = choice_class(size);
	const struct memory_host *host;

	if (choice->heard == atomic_load_explicit(&memory_saves, memory_order_relaxed) ||
	    (choice->cells[class].used && choice->cells[class + CHOICE_CLASSES].used))
		return;
	pthread_mutex_lock(&memory_lock);
	host = memory_find(dev, remote);
	if (host)
		memory_seed(choice, host, now_ns);
	else /* it was forgotten: not each message is to look for it */
		choice->heard = atomic_load_explicit(&memory_saves, memory_order_relaxed);
	pthread_mutex_unlock(&memory_lock);
}

void choice_save(struct choice *choice, int dev, const struct harp_addr *remote, uint64_t now_ns)
{
	pthread_mutex_lock(&memory_lock);
	(void)memory_save(choice, dev, remote, now_ns);
	pthread_mutex_unlock(&memory_lock);
}

bool choice_tell(struct choice *choice, int dev, const struct harp_addr *remote, uint64_t now_ns,
		 char *text, size_t len)
{
	struct choice *known;
	bool new = false;

	pthread_mutex_lock(&memory_lock);
	known = &memory_save(choice, dev, remote, now_ns)->known;
	choice->announce_ns = known->announce_ns;
	if (now_ns >= known->announce_ns) {
		known->kinds = choice->kinds;
		memcpy(known->rtt_ns, choice->rtt_ns, sizeof(known->rtt_ns));
		choice->news = false;
		new = choice_announce(known, now_ns, text, len);
	}
	pthread_mutex_unlock(&memory_lock);
	return new;
}

void choice_leave(struct choice *choice, int dev, const struct harp_addr *remote, uint64_t now_ns,
		  char *text, size_t len)
{
	struct memory_host *host;

	choice_end(choice);
	pthread_mutex_lock(&memory_lock);
	host = memory_save(choice, dev, remote, now_ns);
	for (unsigned class = 0; class < CHOICE_CLASSES; class ++)
		for (unsigned way = 0; way < CHOICE_WAYS; way++) {
			struct choice_count *sum = &host->known.counts[class];

			sum->messages[way] += choice->counts[class].messages[way];
			sum->bytes[way] += choice->counts[class].bytes[way];
		}
	*text = '\0';
	if (host->comms) /* else it was forgotten, and is new: more hosts than there is room for */
		host->comms--;
	if (!host->comms) {
		choice_report(&host->known, text, len);
		memset(host->known.counts, 0, sizeof(host->known.counts));
	}
	pthread_mutex_unlock(&memory_lock);
}
