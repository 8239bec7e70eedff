/* SPDX-License-Identifier: Apache-2.0 */
/* memory.h - memory that NCCL registers (regMr): its comm, and the stacks that send from it in
 * place. */
#ifndef HARP_PLUGIN_MEMORY_H
#define HARP_PLUGIN_MEMORY_H

#include "comm/comm.h"
#include "poll/engine.h"

/* All functions: any thread, no poller held. */
/* Registers memory. *out: the handle, never NULL. -ENOMEM. */
int plugin_memory_add(struct comm *comm, const void *base, size_t bytes, void **out);
/*
 * Removes a registration. When it returns, the comm's requests in that memory have been canceled,
 * and no NIC reads it. -ENOENT: no such registration. Other errors: a device could not be stopped
 * (logged by WARN), and the memory must not be used again.
 */
int plugin_memory_remove(void *handle);
/* Called before a comm closes: its NICs no longer send from its registrations, which lose their
 * owner and can still be removed. */
void plugin_memory_comm_closes(struct comm *comm);

/* Called after an engine was opened: announces present and future registrations to it. And before
 * it closes: takes them back. */
void plugin_memory_engine_open(struct engine *engine);
void plugin_memory_engine_close(struct engine *engine);
/* Called after the last context has ended. */
void plugin_memory_forget(void);

#endif
