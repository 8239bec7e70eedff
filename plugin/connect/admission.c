/* SPDX-License-Identifier: Apache-2.0 */
/* pending_room.c - who has to go when a door is full; see pending_room.h. pending.c says why it is they. */
#include "connect/admission.h"

#include <string.h>

/*
 * Theory of operation
 *
 * A door that is scanned loses a pending for each that comes, thousands in a second, on the thread that lets peers in. So each
 * pending's host is looked up once, when it comes, and counts its pending_set: who goes is found by one look at each pending.
 */

/* A connector's TCP acknowledges READY at once; should it be lost twice, within this. */
#define READY_HEARD_NS 1000000000ull

struct pending_host *admission_come(struct pending_set *pending_set, const struct harp_addr *addr)
{
	struct pending_host *place = NULL, *host;

	for (unsigned i = 0; i < pending_set->host_count; i++) {
		host = &pending_set->hosts[i];
		if (host->pending_set && !memcmp(&host->addr, addr, sizeof(*addr))) {
			host->pending_set++;
			return host;
		}
		if (!host->pending_set && !place)
			place = host;
	}
	if (!place) /* there is one: each of the others has a pending */
		place = &pending_set->hosts[pending_set->host_count++];
	*place = (struct pending_host){ .addr = *addr, .pending_set = 1 };
	return place;
}

void admission_leave(struct pending *pending)
{
	struct pending_set *pending_set = pending->all;

	pending->host->pending_set--;
	pending->host->known = (uint16_t)(pending->host->known - pending->known);
	pending_set->known -= pending->known;
	if (!--pending_set->count)
		pending_set->host_count = 0;
}

static unsigned admission_shared(const struct pending *pending)
{
	return pending->known ? pending->host->known
			      : pending->host->pending_set - pending->host->known;
}

/* It has READY, or will; a reset would end what its connector takes for a comm. */
static bool admission_enters(const struct pending *pending)
{
	return pending->ready_ns && !pending->preamble.peer.join;
}

static bool admission_is_silent(const struct pending *pending)
{
	return admission_enters(pending) &&
	       pending->all->now_ns - pending->ready_ns >= READY_HEARD_NS;
}

bool admission_lets_in(struct pending_set *pending_set, uint64_t listen_id, struct pending **out)
{
	struct pending *silent[2] = { NULL, NULL }; /* for longest: of all, of that listen id */
	unsigned all = 0, same = 0;

	for (unsigned i = 0, seen = 0; seen < pending_set->count; i++) {
		struct pending *pending = &pending_set->pending[i];
		bool is_same = pending->preamble.listen_id == listen_id;

		if (!pending->lane)
			continue;
		seen++;
		if (!admission_enters(pending))
			continue;
		all++;
		same += is_same;
		for (unsigned k = 0; k <= is_same && admission_is_silent(pending); k++) {
			if (!silent[k] || pending->ready_ns < silent[k]->ready_ns)
				silent[k] = pending;
		}
	}
	*out = NULL;
	if (same < LISTEN_PEERS_MAX && same < PENDING_IDENTIFIED_MAX - all)
		return true;
	*out = silent[same >= LISTEN_PEERS_MAX];
	return *out != NULL;
}

/* Of two of one kind: whose host has more here, who is silent, the older stranger, the newer of known ones. */
static bool admission_sooner(const struct pending *a, const struct pending *b)
{
	unsigned many = admission_shared(a), than = admission_shared(b);
	bool silent = admission_is_silent(a);

	if (many != than)
		return many > than;
	if (silent != admission_is_silent(b))
		return silent;
	if (silent)
		return a->ready_ns < b->ready_ns;
	return a->known ? a->came_ns >= b->came_ns : a->came_ns < b->came_ns;
}

struct pending *admission_excess(struct pending_set *pending_set, bool known)
{
	struct pending *out = NULL;

	for (unsigned i = 0, seen = 0; seen < pending_set->count; i++) {
		struct pending *pending = &pending_set->pending[i];

		if (!pending->lane)
			continue;
		seen++;
		if (pending->known != known ||
		    (admission_enters(pending) && !admission_is_silent(pending)))
			continue;
		if (!out || admission_sooner(pending, out))
			out = pending;
	}
	return out;
}
