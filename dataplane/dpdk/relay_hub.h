/* SPDX-License-Identifier: Apache-2.0 */
/* relay_hub.h - the connections of all memif ports of the process, and the thread that hands on what comes. */
#ifndef HARP_DPDK_RELAY_HUB_H
#define HARP_DPDK_RELAY_HUB_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "dpdk/relay_socket.h"

struct listener {
	struct listener *next;
	int fd;
	unsigned users;
	bool serves; /* peers call, and the driver is put through to; or the driver calls */
	struct relay_address at, to;
};

struct relay {
	struct relay *next;
	struct listener *listener;
	uint32_t id, home_id; /* a server's: for its peers, and in relay_home() */
	unsigned pairs;
	bool held;
};

/* A peer's connection, and ours to the driver for it. */
struct pair {
	struct pair *next;
	struct listener *listener; /* who called comes from there */
	struct relay *relay;       /* NULL: a client that has not said whom it wants */
	int peer, driver;          /* -1: gone */
	bool dialling;             /* one of them, to listener->to */
	unsigned rounds;           /* of DPDK's interrupt thread since it was hung up */
	bool half;                 /* a client has sent memory, and not yet said that this is all */
};

struct hub {
	pthread_mutex_t lock;
	pthread_cond_t changed; /* pairs are fewer, or the thread has looked */
	bool runs;
	bool busy; /* callers wait who can't be taken */
	int wake;  /* eventfd */
	int round; /* eventfd: DPDK's interrupt thread is to say when it has been round */
	uint32_t next_home_id;
	uint32_t turns; /* of the thread */
	unsigned pair_count;
	struct listener *listeners;
	struct relay *relays;
	struct pair *pairs;
};
extern struct hub hub;

/* Once; later calls find it running. From DPDK's interrupt thread, whose blocked signals it inherits. */
int hub_start(void);
/* In a forked child: peers hear of its parent's end, and another server may have the socket then. Async-signal-safe. */
void hub_forked(void);
/* Something has changed that the thread is to look at. */
void hub_wake(void);
/* Without a peer. The driver finds the end of what we write. */
void pair_hang_up(struct pair *pair);
/* Takes the descriptor; NULL: no memory. */
struct listener *listener_add(int fd, bool serves);
/* Who called and was not taken yet. */
void listener_accept(struct listener *listener);
/* A user less. The last one takes the listener along, and who has called there and was not put through: returns when
 * they have gone, having let go of the lock meanwhile. Not in DPDK's interrupt thread. */
void listener_leave(struct listener *listener);

#endif
