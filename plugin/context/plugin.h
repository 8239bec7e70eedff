/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plugin.h - the interface between the ABI tables (abi.c) and the rest of the plugin. Results are 0
 * or -errno, which abi_result() converts to ncclResult_t. The function that detects an error logs
 * one WARN with peer, cause and remedy; its callers don't log it again.
 */
#ifndef HARP_PLUGIN_H
#define HARP_PLUGIN_H

#include "device/device.h"
#include "process/config.h"
#include "process/log.h"

/* A context (context.c). */
struct plugin_ctx;
struct listen_comm;
struct comm; /* send or receive end of one connection */

/* This and the following functions set *out to NULL on error. */
int plugin_init(struct plugin_ctx **out, int traffic_class);
void plugin_finalize(struct plugin_ctx *ctx); /* NULL is accepted */
/* Before the library is unloaded; no other thread is in a call. */
void plugin_finalize_all(void);
/* Has the context no comm, listen comm or connect? False if another thread is changing that. */
bool plugin_is_idle(const struct plugin_ctx *ctx);
int plugin_listen(struct plugin_ctx *ctx, int dev, void *handle, struct listen_comm **out);
/* 0 with *out NULL: call again. The context keeps the progress in a table, by the handle's address
 * and secret. */
int plugin_connect(struct plugin_ctx *ctx, int dev, void *handle, int traffic_class,
		   struct comm **out);
/* 0 with *out NULL: call again. An error concerns one peer; the listen comm remains usable. */
int plugin_accept(struct listen_comm *listen, struct comm **out);
void plugin_close_listen(struct listen_comm *listen);
/* Bounded time, even with requests in flight. The requests' buffers are not accessed afterwards. */
void plugin_close(struct comm *comm);

#endif
