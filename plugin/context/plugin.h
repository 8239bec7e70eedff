/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plugin.h - the one interface between the ABI tables (abi.c, which alone knows NCCL's version numbers) and everything
 * else. Results are 0 or -errno, which abi_result() turns into ncclResult_t. The function that finds an error logs one WARN
 * line that names peer, cause and remedy; its callers don't log it again.
 */
#ifndef HARP_PLUGIN_H
#define HARP_PLUGIN_H

#include "comm/comm_event.h"
#include "device/device.h"
#include "process/config.h"
#include "process/log.h"

/* plugin.c: contexts; process-wide state comes with the first and goes with the last. */
struct plugin_ctx;
struct listen_comm;
struct comm; /* send or receive end of one connection */
struct request;

/*
 * The time of a small message, one way, that getProperties reports. NCCL adds it per hop when it chooses algorithms and
 * protocols, and truncates it to whole microseconds. Measured with 8-byte ping-pongs (docs/performance.md): HARP lanes
 * where the device may have them, else kernel TCP.
 */
float plugin_latency_us(int dev);

/* What NCCL says with setNetAttr of the operations to come: masks of its enumerations, 0: not said. */
struct plugin_net_attr {
	uint32_t operations, algorithms, protocols;
	int32_t send_peers, receive_peers; /* at most, at a time */
};
/* The first of a context is logged. Called before each operation that differs. */
void plugin_set_net_attr(struct plugin_ctx *ctx, const struct plugin_net_attr *attr);

/* Of this and the following functions *out is NULL after an error. */
int plugin_init(struct plugin_ctx **out, uint64_t comm_id, int traffic_class);
int plugin_finalize(struct plugin_ctx *ctx); /* NULL is accepted */
int plugin_listen(struct plugin_ctx *ctx, int dev, void *handle, struct listen_comm **out);
/* Pending: 0 with *out NULL. handle is private to this connection between calls; connect keeps its
 * progress in a table of the context keyed by the handle's address and secret. */
int plugin_connect(struct plugin_ctx *ctx, int dev, void *handle, int traffic_class,
		   struct comm **out);
/* Pending likewise. An error is of one peer that was let in and has no comm: the listen comm goes on. */
int plugin_accept(struct listen_comm *listen, struct comm **out);
int plugin_close_listen(struct listen_comm *listen);
/* memory: the registration that data lies in, from plugin_reg_mr(); NULL: not said. */
int plugin_isend(struct comm *comm, const void *data, size_t size, int tag, void *memory,
		 struct request **out);
int plugin_irecv(struct comm *comm, void *data, size_t size, int tag, void *memory,
		 struct request **out);
/* Host memory of a comm's: where a NIC can read what is sent, it is sent in place. plugin_dereg_mr(): memory.h. */
int plugin_reg_mr(struct comm *comm, const void *data, size_t size, void **out);
int plugin_dereg_mr(void *handle);
/* done: 0 or 1, always written. size: real size of the message, NULL accepted. */
int plugin_test(struct request *request, int *done, size_t *size);
/* Bounded, with requests in flight too; never touches the requests' buffers after it returns. */
int plugin_close(struct comm *comm);

#endif
