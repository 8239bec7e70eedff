/* SPDX-License-Identifier: Apache-2.0 */
/* guest_room.c - who has to go when a door is full; see guest_room.h. guest.c says why it is they. */
#include "guest_room.h"

#include <string.h>

/*
 * Theory of operation
 *
 * A door that is scanned loses a guest for each that comes, thousands in a second, on the thread that lets peers in. So
 * each guest's host is looked up once, when it comes, in a table without holes to speak of, and counts its guests: who goes is found by one look at
 * each guest.
 */

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

/* Of two of one kind. */
static bool guest_room_sooner(const struct guest *a, const struct guest *b)
{
	unsigned many = guest_room_shared(a), than = guest_room_shared(b);

	if (many != than)
		return many > than;
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
		if (guest->known == known && !guest->ready_ns &&
		    (!out || guest_room_sooner(guest, out)))
			out = guest;
	}
	return out;
}
