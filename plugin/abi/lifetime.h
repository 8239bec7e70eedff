/* SPDX-License-Identifier: Apache-2.0 */
/* lifetime.h - explicit and implicit contexts, and calls after fork(). */
#ifndef HARP_PLUGIN_LIFETIME_H
#define HARP_PLUGIN_LIFETIME_H

#include "abi/nccl_abi.h"
#include "context/plugin.h"

/* Opens a context that NCCL passes to each call and ends. Results of plugin_init();
 * -EPROTONOSUPPORT in a forked child. */
int lifetime_open(struct plugin_ctx **out, int traffic_class, nccl_logger logger);
void lifetime_close(struct plugin_ctx *ctx);

/* The implicit context of older versions: the first call opens it, later ones return it. */
int lifetime_implicit_open(nccl_logger logger);
/* Same, without init: opens it without a logger if necessary. NULL: it cannot be opened. */
struct plugin_ctx *lifetime_implicit(void);

/* Is this a child that was forked while a context existed? Then it must not use any state. */
bool lifetime_in_child(void);

#endif
