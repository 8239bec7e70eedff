/* SPDX-License-Identifier: Apache-2.0 */
/* lifetime.h - contexts with and without NCCL's help, and what may still be done after a fork. */
#ifndef HARP_PLUGIN_LIFETIME_H
#define HARP_PLUGIN_LIFETIME_H

#include "abi/nccl_abi.h"
#include "context/plugin.h"

/* A context that NCCL carries for us and ends. Results of plugin_init(); -EPROTONOSUPPORT in a
 * forked child. */
int lifetime_open(struct plugin_ctx **out, uint64_t comm_id, int traffic_class, nccl_logger logger);
void lifetime_close(struct plugin_ctx *ctx);

/* The one context of versions that carry none: the first call opens it, later ones find it. */
int lifetime_implicit_open(nccl_logger logger);
/* Opens it, without a logger, where init was not called. NULL when it cannot be opened. */
struct plugin_ctx *lifetime_implicit(void);

/* True in a child forked while a context lived: nothing of ours may be touched. */
bool lifetime_in_child(void);

/* Comms and listeners between their opening and their close. */
void lifetime_comm_opened(void);
void lifetime_comm_closed(void);

#endif
