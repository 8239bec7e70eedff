/* SPDX-License-Identifier: Apache-2.0 */
/* relay_hub.h - the connections of all memif ports of the process, and the thread that hands on what comes. */
#ifndef HARP_DPDK_RELAY_HUB_H
#define HARP_DPDK_RELAY_HUB_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "dpdk/relay_handshake.h"
#include "dpdk/relay_socket.h"

#define RELAY_PORTS_MAX 64u      /* and servers' sockets, of which a port has one at most */
#define RELAY_STRANGERS_MAX 128u /* relay_strangers.c */
#define RELAY_PAIRS_MAX (4 * RELAY_STRANGERS_MAX)
#define RELAY_GREET_NS 5000000000u /* for shaking hands, which takes milliseconds */
#define RELAY_MOMENT_NS 100000000u

struct listener {
	struct listener *next;
	int fd;
	unsigned users;
	bool serves; /* peers call, and the driver is put through to; or the driver calls */
	bool busy;   /* callers wait who can't be taken now */
	struct relay_address at, to;
};

struct relay {
	struct relay *next;
	struct listener *listener;
	uint32_t id, home_id; /* a server's: for its peers, and in relay_home() */
	unsigned pairs;
	struct handshake_wish wish; /* of its clients */
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
	bool known;                /* a client that has shaken hands */
	uint64_t since_ns;         /* when it called */
	struct handshake said;     /* by the peer */
};

struct hub {
	pthread_mutex_t lock;
	pthread_cond_t changed; /* pairs are fewer, or the thread has looked */
	bool runs;
	/* -1: not made. What a start that failed has made the next one has. */
	int wake;  /* eventfd */
	int round; /* eventfd: DPDK's interrupt thread is to say when it has been round */
	bool rounds;
	uint32_t next_home_id;
	uint32_t turns; /* of the thread */
	unsigned pair_count, relay_count;
	struct listener *listeners;
	struct relay *relays;
	struct pair *pairs;
	/* In a forked child, which doesn't use them. */
	struct listener *parents_listeners;
	struct pair *parents_pairs;
};
extern struct hub hub;

/* Once; later calls find it running. */
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
/* relay_strangers.c: room for one more caller of a server, if need be another's. False: not now. */
bool strangers_room(const struct listener *listener, uint64_t now_ns);
/* Sends away those whose time is over; how long the next one has. UINT64_MAX: there is none. */
uint64_t strangers_late(uint64_t now_ns);
/* A user less. The last one takes the listener along, and who has called there and was not put through: returns when
 * they have gone, having let go of the lock meanwhile. Not in DPDK's interrupt thread. */
void listener_leave(struct listener *listener);

#endif
