/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine.h - a HARP instance (AF_XDP queue and stack) of this process, its baton and its guardian.
 *
 * One engine per device, made at its first use, shared by all contexts and comms of the process,
 * gone (guardian joined) with the last reference. Whether a device can have one is decided once, with
 * a reason.
 */
#ifndef HARP_PLUGIN_ENGINE_H
#define HARP_PLUGIN_ENGINE_H

#include "driver.h"
#include "plugin.h"

struct engine;

/* The device's engine, +1 reference; NULL when it has none (config, privilege, queue busy, ...):
 * why (one line) says the reason, the same each time. */
struct engine *engine_get(int dev, char *why, size_t why_len);
void engine_put(struct engine *engine);
struct driver *engine_driver(struct engine *engine);
struct harp_stack *engine_stack(struct engine *engine);
/* One line for people, from harp_instance_describe(). */
const char *engine_describe(struct engine *engine);
/* May this engine reach dst? Not when dst is an address of this host or leaves by another
 * interface: why says so. source: the address of the interface that the kernel would call from (RFC 6724:
 * neither deprecated nor temporary ones as the host is set to), zero when it has no wish. No baton needed. */
bool engine_reaches(struct engine *engine, const struct harp_addr *dst, struct harp_addr *source,
		    char *why, size_t why_len);
/* The last context is gone: refusals are forgotten, so that a later init may try again. */
void engine_reset(void);
/* Around fork(): no engine is half open or half closed then. In the child their descriptors are
 * closed and nothing else is touched. */
void engine_fork_prepare(void);
void engine_fork_parent(void);
void engine_fork_child(void);

#endif
