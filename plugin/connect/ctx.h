/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctx.h - contexts and process-wide state, shared by context.c, interfaces.c, connect.c and
 * acceptor.c.
 */
#ifndef HARP_PLUGIN_CTX_H
#define HARP_PLUGIN_CTX_H

#include <pthread.h>
#include <sys/queue.h>

#include "comm/comm.h"
#include "poll/engine.h"
#include "wire/preamble.h"

struct connector;

struct plugin_ctx {
	struct plugin_ctx *next;
	int traffic_class;
	/* All three under ctx_lock. */
	LIST_HEAD(, comm) comms;
	struct connector *connects; /* plugin_connect() has not returned a comm or an error yet */
	struct listen_comm *listens;
};

/* Protects the contexts, their lists, and the tables of engines and acceptors. Held for list
 * operations and to open kernel sockets and listeners. Not held while an interface is opened. The
 * control thread never acquires it.
 * Lock order: ctx_lock, then an engine's poller, because poller_call() closes a listener that could
 * not be opened. So a thread that may hold a poller does not acquire ctx_lock. */
extern pthread_mutex_t ctx_lock;

/*
 * Opens the engines for lanes of the device's comms, unless that was tried before; they stay open
 * until the last finalize. Waits for the kernel and harpd, or for another thread that opens an
 * interface. Called by init, listen and connect, with no lock and no poller held; never by the
 * control thread. Logs the path the first time.
 */
void interface_open(int dev);
/* The device's engines. NULL: none, with the reason in why (or NULL, 0), or interface_open() has
 * not run. Any thread, any lock or poller held. */
struct engine_set *interface_engines(int dev, char *why, size_t why_len);
/* Messages to peer over the device up to this size prefer HARP lanes (device/path_policy.h). Called
 * like interface_engines(). */
uint64_t interface_harp_bytes_max(int dev, const struct harp_addr *peer);
/* Opens the device's engines as interface_open(), and its acceptor, unless done. */
int interface_listen(int dev);
/* Is it a DPDK port whose link is down? Any thread. */
bool interface_link_is_down(int dev);

/* For plugin_init(): opens devices that only HARP can use, because handles need their ports. With
 * HARP_PATH=xdp, a device without engines is an error. ctx_lock not held. */
int interfaces_open_at_init(void);
/* The opener for plugin_devices_load(), which runs in the first init. */
int interface_open_port(int dev, struct harp_instance_port *out, char *why, size_t why_len);
/* Called after the last context has ended. ctx_lock not held. */
void interfaces_close(void);

/*
 * rails.c. A rail is a NIC of this process and one of the peer between which lanes of a comm run.
 * Rail 0 is the NIC that NCCL chose, on both sides.
 */
#define RAILS_MAX (1u + PREAMBLE_NICS_MAX) /* of a comm */
/* The number of rails that HARP_RAILS allows. */
unsigned rails_allowed(void);
/* The devices that comms of dev may use: dev, then the others by speed, NUMA node and PCI distance,
 * as HARP_RAILS allows. Returns how many. */
unsigned rails_devices(int dev, int out[RAILS_MAX]);
/* May a comm of dev have more than one lane? harp: HARP lanes are possible. */
bool rails_are_multi_lane(int dev, bool harp);

/* connect.c: plugin_connect() of an existing device. */
int connect_step(struct plugin_ctx *ctx, int dev, const void *handle_bytes, int traffic_class,
		 struct comm **out);
/* connect.c: cancels a connect. ctx_lock not held. */
void connect_abort(struct connector *c);

static inline uint8_t ctx_dscp(const struct plugin_ctx *ctx, int traffic_class)
{
	int tc = traffic_class >= 0 ? traffic_class : ctx->traffic_class;

	return tc < 0 ? 0 : (uint8_t)((tc >> 2) & 63); /* the DS field's upper six bits */
}

#endif
