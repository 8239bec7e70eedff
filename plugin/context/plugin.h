/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plugin.h - the interface between the ABI tables (abi.c) and the rest of the plugin. Results are 0
 * or -errno, which abi_result() converts to ncclResult_t. The function that detects an error logs
 * one WARN with peer, cause and remedy; its callers don't log it again.
 */
#ifndef HARP_PLUGIN_H
#define HARP_PLUGIN_H

#include "comm/comm_event.h"
#include "device/device.h"
#include "process/config.h"
#include "process/log.h"

/* A context (context.c). */
struct plugin_ctx;
struct listen_comm;
struct comm; /* send or receive end of one connection */
struct request;

/*
 * The one-way latency of a small message, reported by getProperties. NCCL truncates it to whole
 * microseconds and adds it per hop when it chooses algorithms and protocols. Measured with 8-byte
 * ping-pongs (docs/performance.md): over HARP lanes if the device may have them, else kernel TCP.
 */
float plugin_latency_us(int dev);

/* NCCL's hints about the next operations, by setNetAttr: masks of its enumerations, 0: unknown. */
struct plugin_net_attr {
	uint32_t operations, algorithms, protocols;
	int32_t send_peers, receive_peers; /* concurrent, at most */
};
/* Called before each operation whose hints differ. The first call of a context is logged. */
void plugin_set_net_attr(struct plugin_ctx *ctx, const struct plugin_net_attr *attr);

/* This and the following functions set *out to NULL on error. */
int plugin_init(struct plugin_ctx **out, uint64_t comm_id, int traffic_class);
int plugin_finalize(struct plugin_ctx *ctx); /* NULL is accepted */
int plugin_listen(struct plugin_ctx *ctx, int dev, void *handle, struct listen_comm **out);
/* 0 with *out NULL: call again. The context keeps the progress in a table, by the handle's address
 * and secret. */
int plugin_connect(struct plugin_ctx *ctx, int dev, void *handle, int traffic_class,
		   struct comm **out);
/* 0 with *out NULL: call again. An error concerns one peer; the listen comm remains usable. */
int plugin_accept(struct listen_comm *listen, struct comm **out);
int plugin_close_listen(struct listen_comm *listen);
/* memory: the registration that contains the data, from plugin_reg_mr(); NULL: unknown. */
int plugin_isend(struct comm *comm, const void *data, size_t size, int tag, void *memory,
		 struct request **out);
int plugin_irecv(struct comm *comm, void *data, size_t size, int tag, void *memory,
		 struct request **out);
/* Registers host memory with a comm. If a NIC can read it, data is sent in place. See memory.h. */
int plugin_reg_mr(struct comm *comm, const void *data, size_t size, void **out);
int plugin_dereg_mr(void *handle);
/* *done: 0 or 1, always written. *size: the message's actual size; size may be NULL. */
int plugin_test(struct request *request, int *done, size_t *size);
/* Bounded time, even with requests in flight. The requests' buffers are not accessed afterwards. */
int plugin_close(struct comm *comm);

#endif
