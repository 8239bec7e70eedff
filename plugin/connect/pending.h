/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pending.h - pending connections: accepted by a listener, and not authenticated yet.
 *
 * Those of a listener belong to the thread that holds the poller of its engine, or to the control thread.
 */
#ifndef HARP_PLUGIN_PENDING_H
#define HARP_PLUGIN_PENDING_H

#include "connect/acceptor.h"
#include "poll/control.h"
#include "wire/preamble.h"

#define PENDING_UNAUTHENTICATED_MAX 64u
#define PENDING_IDENTIFIED_MAX 192u
#define PENDING_MAX (PENDING_UNAUTHENTICATED_MAX + PENDING_IDENTIFIED_MAX)

struct pending {
	struct pending_set *set;
	struct lane *lane;     /* NULL: the slot is free */
	bool identified;       /* its HELLO named a listen id or comm id of this process */
	bool admitted;         /* registry_admit() let it in, and it is no comm yet */
	struct harp_addr addr; /* of the peer; the lane may be its comm's already */
	unsigned share;        /* how many of its kind come from that address, itself included */
	uint64_t accepted_ns;
	uint64_t ready_ns; /* when READY had left; 0: it has not */
	struct preamble preamble;
	uint8_t rails[RAILS_BYTES_MAX]; /* the extension of CHALLENGE */
	struct control_source source;   /* of a kernel lane */
};

/* Of one listener. */
struct pending_set {
	struct acceptor *acceptor;
	const struct placement_end *placement; /* of the engine; NULL: a kernel listener */
	uint8_t lanes;                         /* that CHALLENGE allows */
	struct control_timer timer;            /* of kernel listeners: at next_ns */
	uint64_t next_ns; /* the earliest deadline, or before it; UINT64_MAX: there is none */
	uint64_t now_ns;  /* of the present turn; it never goes back */
	unsigned count, identified; /* identified: of count */
	uint64_t warned_ns;         /* of a peer that differs about encryption; 0: never */
	struct pending pending[PENDING_MAX];
};

void pending_set_init(struct pending_set *set, struct acceptor *acceptor,
		      const struct placement_end *placement);
/* A connection was accepted. fd: of a kernel lane, else -1. */
void pending_set_add(struct pending_set *set, struct lane *lane, int fd, uint64_t now_ns);
/* Drops those whose deadline has passed. Due at next_ns; kernel listeners do it by a timer. */
void pending_set_expire(struct pending_set *set, uint64_t now_ns);
/* Drops all of them. */
void pending_set_close(struct pending_set *set);

#endif
