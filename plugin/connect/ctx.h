/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctx.h - contexts and the process-wide state, as context.c, interfaces.c, connect.c and acceptor.c share them.
 */
#ifndef HARP_PLUGIN_CTX_H
#define HARP_PLUGIN_CTX_H

#include <pthread.h>
#include <sys/queue.h>

#include "comm/comm.h"
#include "poll/engine.h"
#include "wire/handle.h"

struct connector;
struct acceptor;

struct plugin_ctx {
	struct plugin_ctx *next;
	uint64_t comm_id;
	int traffic_class;
	/* All three under ctx_lock. */
	LIST_HEAD(, comm) comms;
	struct connector *connects; /* whose plugin_connect() has not returned a comm or an error */
	struct listen_comm *listens;
	atomic_bool attr_logged; /* what NCCL announced with setNetAttr */
};

/* Protects the contexts, their lists, and the tables of engines and acceptors. Held for list work, and to open kernel
 * sockets and listeners. Never held while an interface is opened, except by the first init, nor while the control thread
 * is waited for (control_call()), which takes it.
 * Order: ctx_lock, then an engine's poller: a listener that cannot be opened is closed again by poller_call(). So a thread
 * that may hold a poller does not take ctx_lock. */
extern pthread_mutex_t ctx_lock;

/*
 * Opens the engines that lanes of the device's comms may use, unless that was tried before: they
 * stay open until the last finalize. It waits for the kernel and for harpd: by init or the opener
 * thread, without a lock. The first time logs the path.
 */
void interface_open(int dev);
/* Work that the control thread runs once the device's interface_open() has ended. Embedded; zeroed but for work.run. */
struct interface_waiter {
	struct interface_waiter *next;
	int dev;
	bool waits, cancelled;
	struct work work;
};
/* False: it has ended, or no thread can be had to open it; else the work is posted later. Never waits. */
bool interface_wait(int dev, struct interface_waiter *waiter);
/* No work is posted from here on, nor by a later wait. What was posted before runs. */
void interface_cancel(struct interface_waiter *waiter);
/* Returns when no interface is being opened, and the work of all that waited has run. No lock held. */
void interfaces_finish_opening(void);
/* The device's engines. NULL: it has none, and why (or NULL, 0) says the reason, or interface_open() has not
 * run. By any thread, with any lock or poller held. */
struct engine_set *interface_engines(int dev, char *why, size_t why_len);
/* device/path_policy.h: messages to peer over the device of up to this many bytes prefer HARP lanes. As
 * interface_engines(). */
uint64_t interface_harp_bytes_max(int dev, const struct harp_addr *peer);
/* The device's acceptor, without waiting. opening: its engines are being opened, and no peer
 * is let in until that has ended. */
int interface_acceptor(int dev, struct acceptor **out, bool *opening);
/* Of a DPDK port: nothing can come or go there. By any thread. */
bool interface_link_is_down(int dev);

/* For plugin_init() and plugin_finalize(). Opens what cannot be opened later: devices that HARP
 * alone can use. HARP_PATH=xdp: a device that has no engine is an error. ctx_lock not held. */
int interfaces_open_at_init(void);
/* ctx_lock held: plugin_devices_load()'s opener. */
int interface_open_port(int dev, struct harp_instance_port *out, char *why, size_t why_len);
/* The last context is gone, and no interface is being opened. ctx_lock not held. */
void interfaces_close(void);

/* connect.c: plugin_connect() of an existing device. */
int connect_step(struct plugin_ctx *ctx, int dev, const void *handle_bytes, int traffic_class,
		 struct comm **out);
/* connect.c: ends a connect. ctx_lock not held. */
void connect_abort(struct connector *c);

static inline uint8_t ctx_dscp(const struct plugin_ctx *ctx, int traffic_class)
{
	int tc = traffic_class >= 0 ? traffic_class : ctx->traffic_class;

	return tc < 0 ? 0 : (uint8_t)((tc >> 2) & 63); /* the DS field's upper six bits */
}

#endif
