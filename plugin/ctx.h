/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctx.h - what plugin.c, ctx_devices.c, connect.c and rendezvous.c share: contexts and the process-wide state.
 */
#ifndef HARP_PLUGIN_CTX_H
#define HARP_PLUGIN_CTX_H

#include <pthread.h>

#include "comm.h"
#include "engine.h"
#include "handle.h"

struct connect;
struct rendezvous;

struct plugin_ctx {
	struct plugin_ctx *next;
	uint64_t comm_id;
	int traffic_class;
	/* All three under ctx_lock. */
	struct comm *comms;
	struct connect *connects;
	struct listen_comm *listens;
};

/* Protects the contexts, their lists, and the tables of engines and rendezvous. Held for list work
 * only, never while a lane or a stack is used; opening an engine or rendezvous is the exception. */
extern pthread_mutex_t ctx_lock;

/* The device's engines, open until the last finalize; NULL, and why, when it has none. The first call
 * for a device logs its path. ctx_lock not held. */
struct engine_set *ctx_engines(int dev, char *why, size_t why_len);
/* As far as the process may use them for lanes of another device's comms, too (HARP_RAILS); NULL: not. */
struct engine_set *ctx_rail_engines(int dev);
/* The keeper runs from now on. */
int ctx_keeper(void);
/* The device's rendezvous, likewise. */
int ctx_rendezvous(int dev, struct rendezvous **out);
/* Of a DPDK port: nothing can come or go there. By any thread. */
bool ctx_link_is_down(int dev);

/* For plugin_init() and plugin_finalize(). HARP_PATH=xdp: a device that we offer and can't drive is an error now, not a
 * hang later. ctx_lock not held. */
int ctx_require_engines(void);
/* ctx_lock held: plugin_devices_load()'s opener. */
int ctx_open_port(int dev, struct harp_instance_port *out, char *why, size_t why_len);
/* ctx_lock held: the last context is gone. */
void ctx_forget_devices(void);

/* Puts a comm on its context's list, where plugin_close and plugin_finalize find it. */
void ctx_add_comm(struct comm *comm);

/* connect.c: frees what is half open. ctx_lock not held. */
void connect_free(struct connect *c);
struct connect *connect_next(struct connect *c);

static inline uint8_t ctx_dscp(const struct plugin_ctx *ctx, int traffic_class)
{
	int tc = traffic_class >= 0 ? traffic_class : ctx->traffic_class;

	return tc < 0 ? 0 : (uint8_t)((tc >> 2) & 63); /* the DS field's upper six bits */
}

#endif
