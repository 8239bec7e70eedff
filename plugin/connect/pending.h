/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pending.h - pending connections: accepted by a listener, not authenticated yet.
 *
 * Owned by the holder of the listener's engine's poller, or by the control thread for kernel
 * listeners.
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
	struct harp_addr addr; /* of the peer; the comm may own the lane already */
	unsigned share;        /* connections of its kind from that address, including itself */
	uint64_t accepted_ns;
	uint64_t ready_ns; /* when READY was sent; 0: not yet */
	struct preamble preamble;
	struct control_source source; /* of a kernel lane */
};

/* The pending connections of one listener. */
struct pending_set {
	int dev;
	const struct placement_end *placement; /* of the engine; NULL: a kernel listener */
	struct control_timer timer;            /* of kernel listeners: at next_ns */
	uint64_t next_ns;           /* not after the earliest deadline; UINT64_MAX: none */
	uint64_t now_ns;            /* of the current turn; never decreases */
	unsigned count, identified; /* identified: of count */
	uint64_t warned_ns;         /* last warning about encryption; 0: never */
	struct pending pending[PENDING_MAX];
};

void pending_set_init(struct pending_set *set, int dev, const struct placement_end *placement);
/* Adds an accepted connection. fd: of a kernel lane, else -1. */
void pending_set_add(struct pending_set *set, struct lane *lane, int fd, uint64_t now_ns);
/* Drops expired connections. Due at next_ns; kernel listeners have a timer for it. */
void pending_set_expire(struct pending_set *set, uint64_t now_ns);
/* Drops all of them. */
void pending_set_close(struct pending_set *set);

#endif
