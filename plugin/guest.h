/* SPDX-License-Identifier: Apache-2.0 */
/*
 * guest.h - who has come through a door of a rendezvous and has not proved yet that it knows a handle.
 *
 * The guests of a door belong to who has the baton of its driver.
 */
#ifndef HARP_PLUGIN_GUEST_H
#define HARP_PLUGIN_GUEST_H

#include "preamble.h"
#include "rendezvous.h"

#define GUESTS_MAX 64u

struct guest {
	struct guests *all;
	struct lane *lane; /* NULL: the place is free */
	uint64_t deadline_ns;
	struct preamble preamble;
};

/* Of one door. */
struct guests {
	struct rendezvous *rdv;
	const struct placement_end *placement; /* of a HARP door's engine; NULL: a kernel door */
	uint64_t turned_away;
	struct guest guest[GUESTS_MAX];
};

/* lane has come. */
void guests_come(struct guests *guests, struct lane *lane, uint64_t now_ns);
/* Looks at each: their deadlines, and what lanes without events have got. */
void guests_advance(struct guests *guests, uint64_t now_ns);
/* All of them. */
void guests_turn_away(struct guests *guests);

#endif
