/* SPDX-License-Identifier: Apache-2.0 */
/* memory.h - memory that NCCL registers (regMr): whose it is, and which stacks can send from it in place. */
#ifndef HARP_PLUGIN_MEMORY_H
#define HARP_PLUGIN_MEMORY_H

#include "comm/comm.h"
#include "poll/engine.h"

/* Any thread, no poller held, as all of these. *out: what plugin_memory_remove() is told, never NULL. -ENOMEM. */
int plugin_memory_add(struct comm *comm, const void *base, size_t bytes, void **out);
/*
 * Returns when nothing reads or writes the memory on behalf of that registration any more: the comm's requests that lie
 * in it are given up, and no NIC can read it. -ENOENT: there is no such registration. Else -errno when a device could
 * not be stopped, logged by WARN: the memory must not be used again.
 */
int plugin_memory_remove(void *handle);
/* The comm is about to close: what it registered has no owner, and may still be removed. Returns what to say when it is
 * closed and gone (another may have its address then), and its memory no longer read. */
uint64_t plugin_memory_comm_closes(struct comm *comm);
void plugin_memory_comm_closed(uint64_t closing);

/* An engine is there: it learns what is registered, and what will be. It is about to go: it forgets all. */
void plugin_memory_engine_open(struct engine *engine);
void plugin_memory_engine_close(struct engine *engine);
/* The last context is gone. */
void plugin_memory_forget(void);

#endif
