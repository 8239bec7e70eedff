/* SPDX-License-Identifier: Apache-2.0 */
/* memory.h - memory that NCCL registers (regMr), known to the stacks that can send from it in place. */
#ifndef HARP_PLUGIN_MEMORY_H
#define HARP_PLUGIN_MEMORY_H

#include "engine.h"

struct plugin_mr;

/* Any thread, no baton held. *out NULL: no open engine can send in place, and nothing is to be removed. -ENOMEM. */
int plugin_memory_add(const void *base, size_t bytes, struct plugin_mr **out);
/* Returns when nobody reads the memory any more, after a second at most: -EBUSY, said by WARN, when the NIC may
 * still. mr is gone. */
int plugin_memory_remove(struct plugin_mr *mr);
/* The engines are about to be closed: what is registered is known to none. */
void plugin_memory_forget(void);

#endif
