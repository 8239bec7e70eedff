/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine.h - HARP instances (AF_XDP queue or DPDK port, and stack) of this process, their pollers and their background poller.
 *
 * A device has one *set* of engines in a process, shared by all contexts and comms (connect/interfaces.c).
 *
 *   engine.c         engines by harpd or by the process itself, their sets, fork
 *   engine_turn.c    one engine: lanes, a turn of its poller, what it reports
 *   engine_thread.c  the background poller
 */
#ifndef HARP_PLUGIN_ENGINE_H
#define HARP_PLUGIN_ENGINE_H

#include <sys/queue.h>

#include "poll/poller.h"
#include "device/device.h"
#include "harp_page.h"

#define ENGINES_MAX 64u /* of one device; HARP_INSTANCES' range */

struct engine;
struct engine_set;

/* A lane on an engine's stack, as the engine knows it. Embedded in the lane; the user pointer of its connection. */
struct engine_lane {
	LIST_ENTRY(engine_lane) link;
	const struct engine_lane_ops *ops;
};
/* The engine's poller is held. The lane may be gone when a function returns. */
struct engine_lane_ops {
	/* The stack's events of the lane's connection. */
	void (*event)(struct engine_lane *l, uint32_t events, uint64_t now_ns);
	/* A few times a second. */
	void (*tick)(struct engine_lane *l, uint64_t now_ns);
	/* The interface was removed. False: the lane had ended already, and nothing was done. */
	bool (*gone)(struct engine_lane *l, uint64_t now_ns);
	/* The engine ends: the connection is aborted, the lane is freed. */
	void (*discard)(struct engine_lane *l);
};
/* The lane joins, or leaves, its engine. */
void engine_add_lane(struct engine *engine, struct engine_lane *l);
void engine_remove_lane(struct engine_lane *l);
/* All of them, through next. */
struct engine_lane *engine_lanes(struct engine *engine);
/* One more lane (+1), or one fewer (-1), lives only to finish its close. */
void engine_lanes_closing(struct engine *engine, int change);

/* A reason that needs no try, with one line in why; HARP_PAGE_FALLBACK_none: there is none. Never waits. */
enum harp_page_fallback engine_is_forbidden(const struct device *device, char *why, size_t why_len);
/* Why the device has no engines; _none: it has, or that is not decided. Never waits. */
enum harp_page_fallback engine_fallback(int dev);
/* Opens the device's engines; it waits for the kernel and for harpd. NULL when it can have none (config, privilege, queue
 * busy, ...): why (one line) says the reason. */
struct engine_set *engine_set_open(int dev, char *why, size_t why_len);
void engine_set_close(struct engine_set *set); /* NULL is accepted */
unsigned engine_set_count(const struct engine_set *set);
struct engine *engine_set_at(const struct engine_set *set, unsigned index);
/* The one that has the fewest lanes, ties in turn. */
struct engine *engine_set_choose(struct engine_set *set);
/* What engine_set_choose() compares: a lane comes, or goes. */
void engine_load(struct engine *engine, int change);

struct poller *engine_poller(struct engine *engine);
struct harp_stack *engine_stack(struct engine *engine);
/* How its NIC chooses queues, and the local ports of its stack, both included. */
struct placement_end;
void engine_placement(const struct engine *engine, struct placement_end *out);
void engine_ports(const struct engine *engine, uint16_t *first, uint16_t *last);
/* How packets come to the engines of a set; HARP_MODE_NONE for NULL. */
enum harp_instance_mode engine_set_mode(const struct engine_set *set);
/* What the DPDK port of a set says of itself. -ENOTSUP: it is none. */
int engine_set_port(const struct engine_set *set, struct harp_instance_port *out);
/* What is run in each turn, to look at a listener; NULL: nothing. Poller held. */
void engine_set_listener(struct engine *engine, struct work *listener);
/* When the listener must run next though nothing comes; UINT64_MAX: never. Poller held. */
void engine_listener_due(struct engine *engine, uint64_t at_ns);
/* Which it is of its set. */
unsigned engine_index(const struct engine *engine);
/* One line for people, from harp_instance_describe(). */
const char *engine_describe(struct engine *engine);
/* May this engine reach dst? Not when dst is an address of this host or leaves by another
 * interface: why says so. source: the address of the interface that the kernel would call from (RFC 6724:
 * neither deprecated nor temporary ones as the host is set to), zero when it has no wish. no poller needed. */
bool engine_reaches(struct engine *engine, const struct harp_addr *dst, struct harp_addr *source,
		    char *why, size_t why_len);
/* Around fork(): no engine is half open or half closed then. In the child their descriptors are
 * closed and nothing else is touched. */
void engine_fork_prepare(void);
void engine_fork_parent(void);
void engine_fork_child(void);

#endif
