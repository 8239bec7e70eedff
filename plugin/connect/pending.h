/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pending.h - who has come through a door of a rendezvous and has not proved yet that it knows a handle, or a comm.
 *
 * The pending_set of a door belong to who has the baton of its driver.
 */
#ifndef HARP_PLUGIN_GUEST_H
#define HARP_PLUGIN_GUEST_H

#include "poll/control.h"
#include "wire/preamble.h"
#include "connect/rails.h"
#include "connect/acceptor.h"

#define PENDING_UNAUTHENTICATED_MAX 64u
#define PENDING_UNAUTHENTICATED_MANY 32u /* if there are more each has less time */
#define PENDING_IDENTIFIED_MAX 192u
#define PENDING_MAX (PENDING_UNAUTHENTICATED_MAX + PENDING_IDENTIFIED_MAX)

struct pending_host {
	struct harp_addr addr;
	uint16_t pending_set, known; /* known: of pending_set */
};

struct pending {
	struct pending_set *all;
	struct lane *lane;         /* NULL: the place is free */
	struct pending_host *host; /* where it is from */
	bool known; /* its HELLO named a listen id or comm id of ours; else it is a stranger */
	uint64_t came_ns;  /* at the door */
	uint64_t asked_ns; /* when CHALLENGE had left; 0: it has not */
	uint64_t rtt_ns;   /* until PROOF was here */
	uint64_t ready_ns; /* when READY had left; 0: it has not */
	uint64_t look_ns;  /* then: when it is looked for again whether it may come in */
	struct registry_entry *expected; /* then, of a first lane: others may call already */
	struct preamble preamble;
	uint8_t rails[RAILS_BYTES_MAX]; /* what CHALLENGE says of them */
	struct control_source source;   /* of a kernel lane */
};

/* Of one door. */
struct pending_set {
	struct acceptor *acceptor;
	const struct placement_end *placement; /* of a HARP door's engine; NULL: a kernel door */
	uint8_t lanes;                         /* that CHALLENGE says we take */
	struct control_timer timer;            /* of kernel doors: at next_ns */
	uint64_t next_ns;                 /* the earliest deadline; UINT64_MAX: there is none */
	uint64_t now_ns;                  /* of the present turn; it never goes back */
	unsigned count, known;            /* known: of count */
	uint64_t turned_away, pushed_out; /* pushed_out, of them: to make room for others */
	uint64_t warned_ns;               /* of a peer that differs about encryption; 0: never */
	unsigned host_count;              /* of `hosts`, some of them without pending_set */
	struct pending_host hosts[PENDING_MAX];
	struct pending pending[PENDING_MAX];
};

void pending_set_init(struct pending_set *pending_set, struct acceptor *acceptor,
		      const struct placement_end *placement);
/* lane has come. fd: of a kernel lane, else -1. */
void pending_set_come(struct pending_set *pending_set, struct lane *lane, int fd, uint64_t now_ns);
/* Looks at their deadlines. Kernel doors do it by themselves. */
void pending_set_look(struct pending_set *pending_set, uint64_t now_ns);
/* All of them. */
void pending_set_turn_away(struct pending_set *pending_set);

#endif
