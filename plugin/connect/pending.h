/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pending.h - pending connections: accepted by a listener, and not authenticated yet.
 *
 * Those of a listener belong to the thread that holds the poller of its engine, or to the control thread.
 */
#ifndef HARP_PLUGIN_PENDING_H
#define HARP_PLUGIN_PENDING_H

#include "poll/control.h"
#include "wire/preamble.h"
#include "connect/rails.h"
#include "connect/acceptor.h"

#define PENDING_UNAUTHENTICATED_MAX 64u
#define PENDING_IDENTIFIED_MAX 192u
#define PENDING_MAX (PENDING_UNAUTHENTICATED_MAX + PENDING_IDENTIFIED_MAX)

struct pending_host {
	struct harp_addr addr;
	uint16_t count, identified; /* identified: of count */
};

struct pending {
	struct pending_set *all;
	struct lane *lane;         /* NULL: the place is free */
	struct pending_host *host; /* where it is from */
	bool identified;           /* its HELLO named a listen id or comm id of this process */
	uint64_t accepted_ns;
	uint64_t asked_ns; /* when CHALLENGE had left; 0: it has not */
	uint64_t rtt_ns;   /* until PROOF was here */
	uint64_t ready_ns; /* when READY had left; 0: it has not */
	uint64_t look_ns;  /* then: when it is looked for again whether it may come in */
	struct registry_entry *expected; /* then, of a first lane: others may call already */
	struct preamble preamble;
	uint8_t rails[RAILS_BYTES_MAX]; /* what CHALLENGE says of them */
	struct control_source source;   /* of a kernel lane */
};

/* Of one listener. */
struct pending_set {
	struct acceptor *acceptor;
	const struct placement_end *placement; /* of the engine; NULL: a kernel listener */
	uint8_t lanes;                         /* that CHALLENGE says we take */
	struct control_timer timer;            /* of kernel listeners: at next_ns */
	uint64_t next_ns;              /* the earliest deadline; UINT64_MAX: there is none */
	uint64_t now_ns;               /* of the present turn; it never goes back */
	unsigned count, identified;    /* identified: of count */
	uint64_t turned_away, dropped; /* dropped, of them: an admission limit was exceeded */
	uint64_t warned_ns;            /* of a peer that differs about encryption; 0: never */
	unsigned host_count;           /* of `hosts`, some of them without connections */
	struct pending_host hosts[PENDING_MAX];
	struct pending pending[PENDING_MAX];
};

void pending_set_init(struct pending_set *pending_set, struct acceptor *acceptor,
		      const struct placement_end *placement);
/* A connection was accepted. fd: of a kernel lane, else -1. */
void pending_set_add(struct pending_set *pending_set, struct lane *lane, int fd, uint64_t now_ns);
/* Looks at their deadlines. Kernel listeners do it by a timer. */
void pending_set_look(struct pending_set *pending_set, uint64_t now_ns);
/* All of them. */
void pending_set_turn_away(struct pending_set *pending_set);

#endif
