/* SPDX-License-Identifier: Apache-2.0 */
/* guest_room.c - who has to go when a door is full; see guest_room.h. guest.c says why it is they. */
#include "connect/guest_room.h"

#include <string.h>

/*
 * Theory of operation
 *
 * A door that is scanned loses a guest for each that comes, thousands in a second, on the thread that lets peers in. So each
 * guest's host is looked up once, when it comes, and counts its guests: who goes is found by one look at each guest.
 */

/* A connector's TCP acknowledges READY at once; should it be lost twice, within this. */
#define READY_HEARD_NS 1000000000ull

struct guest_host *guest_room_come(struct guests *guests, const struct harp_addr *addr)
{
	struct guest_host *place = NULL, *host;

	for (unsigned i = 0; i < guests->host_count; i++) {
		host = &guests->hosts[i];
		if (host->guests && !memcmp(&host->addr, addr, sizeof(*addr))) {
			host->guests++;
			return host;
		}
		if (!host->guests && !place)
			place = host;
	}
	if (!place) /* there is one: each of the others has a guest */
		place = &guests->hosts[guests->host_count++];
	*place = (struct guest_host){ .addr = *addr, .guests = 1 };
	return place;
}

void guest_room_leave(struct guest *guest)
{
	struct guests *guests = guest->all;

	guest->host->guests--;
	guest->host->known = (uint16_t)(guest->host->known - guest->known);
	guests->known -= guest->known;
	if (!--guests->count)
		guests->host_count = 0;
}

static unsigned guest_room_shared(const struct guest *guest)
{
	return guest->known ? guest->host->known : guest->host->guests - guest->host->known;
}

/* It has READY, or will; a reset would end what its connector takes for a comm. */
static bool guest_room_enters(const struct guest *guest)
{
	return guest->ready_ns && !guest->preamble.peer.join;
}

static bool guest_room_is_silent(const struct guest *guest)
{
	return guest_room_enters(guest) && guest->all->now_ns - guest->ready_ns >= READY_HEARD_NS;
}

bool guest_room_lets_in(struct guests *guests, uint64_t listen_id, struct guest **out)
{
	struct guest *silent[2] = { NULL, NULL }; /* for longest: of all, of that listen id */
	unsigned all = 0, same = 0;

	for (unsigned i = 0, seen = 0; seen < guests->count; i++) {
		struct guest *guest = &guests->guest[i];
		bool is_same = guest->preamble.listen_id == listen_id;

		if (!guest->lane)
			continue;
		seen++;
		if (!guest_room_enters(guest))
			continue;
		all++;
		same += is_same;
		for (unsigned k = 0; k <= is_same && guest_room_is_silent(guest); k++) {
			if (!silent[k] || guest->ready_ns < silent[k]->ready_ns)
				silent[k] = guest;
		}
	}
	*out = NULL;
	if (same < LISTEN_PEERS_MAX && same < GUESTS_KNOWN_MAX - all)
		return true;
	*out = silent[same >= LISTEN_PEERS_MAX];
	return *out != NULL;
}

/* Of two of one kind: whose host has more here, who is silent, the older stranger, the newer of known ones. */
static bool guest_room_sooner(const struct guest *a, const struct guest *b)
{
	unsigned many = guest_room_shared(a), than = guest_room_shared(b);
	bool silent = guest_room_is_silent(a);

	if (many != than)
		return many > than;
	if (silent != guest_room_is_silent(b))
		return silent;
	if (silent)
		return a->ready_ns < b->ready_ns;
	return a->known ? a->came_ns >= b->came_ns : a->came_ns < b->came_ns;
}

struct guest *guest_room_excess(struct guests *guests, bool known)
{
	struct guest *out = NULL;

	for (unsigned i = 0, seen = 0; seen < guests->count; i++) {
		struct guest *guest = &guests->guest[i];

		if (!guest->lane)
			continue;
		seen++;
		if (guest->known != known ||
		    (guest_room_enters(guest) && !guest_room_is_silent(guest)))
			continue;
		if (!out || guest_room_sooner(guest, out))
			out = guest;
	}
	return out;
}
