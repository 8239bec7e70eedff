/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctx.h - what plugin.c, ctx_devices.c, connect.c and rendezvous.c share: contexts and the process-wide state.
 */
#ifndef HARP_PLUGIN_CTX_H
#define HARP_PLUGIN_CTX_H

#include <pthread.h>

#include "comm/comm.h"
#include "poll/engine.h"
#include "wire/handle.h"

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

/* Protects the contexts, their lists, and the tables of engines and rendezvous. Held for list
 * work, and to open kernel sockets and listeners. Never held while an interface is opened,
 * except by the first init.
 * Order: ctx_lock, then a driver's baton: a listener that cannot be opened is closed again by
 * driver_call(). So who may hold a baton does not take ctx_lock. */
extern pthread_mutex_t ctx_lock;

/*
 * Opens the engines that lanes of the device's comms may use, unless that was tried before: they
 * stay open until the last finalize. It waits for the kernel and for harpd: by init or the control
 * thread, without a lock. The first time logs the path.
 */
void ctx_open_device(int dev);
/* The device's engines. NULL: it has none, and why says the reason, or ctx_open_device() has not
 * run. By any thread, with any lock or baton held. */
struct engine_set *ctx_engines(int dev, char *why, size_t why_len);
/* path_policy.h: messages to peer over the device of up to this many bytes prefer HARP lanes. As ctx_engines(). */
uint64_t ctx_harp_bytes_max(int dev, const struct harp_addr *peer);
/* The device's rendezvous, without waiting. opening: its engines are being opened, and no peer
 * is let in until that has ended. */
int ctx_rendezvous(int dev, struct rendezvous **out, bool *opening);
/* Of a DPDK port: nothing can come or go there. By any thread. */
bool ctx_link_is_down(int dev);

/* For plugin_init() and plugin_finalize(). Opens what cannot be opened later: devices that HARP
 * alone can use. HARP_PATH=xdp: a device that has no engine is an error. ctx_lock not held. */
int ctx_open_at_init(void);
/* ctx_lock held: plugin_devices_load()'s opener. */
int ctx_open_port(int dev, struct harp_instance_port *out, char *why, size_t why_len);
/* ctx_lock held: the last context is gone, and no task is left. */
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
