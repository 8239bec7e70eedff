/* SPDX-License-Identifier: Apache-2.0 */
/*
 * guest.h - who has come through a door of a rendezvous and has not proved yet that it knows a handle, or a comm.
 *
 * The guests of a door belong to who has the baton of its driver.
 */
#ifndef HARP_PLUGIN_GUEST_H
#define HARP_PLUGIN_GUEST_H

#include "poll/keeper.h"
#include "wire/preamble.h"
#include "connect/rails.h"
#include "connect/rendezvous.h"

#define GUESTS_STRANGERS_MAX 64u
#define GUESTS_STRANGERS_MANY 32u /* if there are more each has less time */
#define GUESTS_KNOWN_MAX 192u
#define GUESTS_MAX (GUESTS_STRANGERS_MAX + GUESTS_KNOWN_MAX)

struct guest_host {
	struct harp_addr addr;
	uint16_t guests, known; /* known: of guests */
};

struct guest {
	struct guests *all;
	struct lane *lane;       /* NULL: the place is free */
	struct guest_host *host; /* where it is from */
	bool known; /* its HELLO named a listen id or comm id of ours; else it is a stranger */
	uint64_t came_ns;  /* at the door */
	uint64_t asked_ns; /* when CHALLENGE had left; 0: it has not */
	uint64_t rtt_ns;   /* until PROOF was here */
	uint64_t ready_ns; /* when READY had left; 0: it has not */
	uint64_t look_ns;  /* then: when it is looked for again whether it may come in */
	struct registry_entry *expected; /* then, of a first lane: others may call already */
	struct preamble preamble;
	uint8_t rails[RAILS_BYTES_MAX]; /* what CHALLENGE says of them */
	struct keeper_source source;    /* of a kernel lane */
};

/* Of one door. */
struct guests {
	struct rendezvous *rdv;
	const struct placement_end *placement; /* of a HARP door's engine; NULL: a kernel door */
	uint8_t lanes;                         /* that CHALLENGE says we take */
	struct keeper_timer timer;             /* of kernel doors: at next_ns */
	uint64_t next_ns;                 /* the earliest deadline; UINT64_MAX: there is none */
	uint64_t now_ns;                  /* of the present turn; it never goes back */
	unsigned count, known;            /* known: of count */
	uint64_t turned_away, pushed_out; /* pushed_out, of them: to make room for others */
	uint64_t warned_ns;               /* of a peer that differs about encryption; 0: never */
	unsigned host_count;              /* of `hosts`, some of them without guests */
	struct guest_host hosts[GUESTS_MAX];
	struct guest guest[GUESTS_MAX];
};

void guests_init(struct guests *guests, struct rendezvous *rdv,
		 const struct placement_end *placement);
/* lane has come. fd: of a kernel lane, else -1. */
void guests_come(struct guests *guests, struct lane *lane, int fd, uint64_t now_ns);
/* Looks at their deadlines. Kernel doors do it by themselves. */
void guests_look(struct guests *guests, uint64_t now_ns);
/* All of them. */
void guests_turn_away(struct guests *guests);

#endif
