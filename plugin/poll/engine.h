/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine.h - engines: this process's HARP instances (an AF_XDP or DPDK queue and a stack) with a
 * poller each.
 *
 * A device has one set of engines in a process, shared by all contexts and comms
 * (connect/interfaces.c).
 *
 *   engine.c             engines by harpd or by the process itself, their sets, fork
 *   engine_turn.c        one engine: lanes, turns of its poller, its end
 *   engine_background.c  turns by the control thread
 */
#ifndef HARP_PLUGIN_ENGINE_H
#define HARP_PLUGIN_ENGINE_H

#include <sys/queue.h>

#include "poll/poller.h"
#include "device/device.h"
#include "harp_page.h"

#define ENGINES_MAX 64u /* of one device; HARP_INSTANCES' range */
#define ENGINES_TOTAL_MAX (PLUGIN_DEVICES_MAX * ENGINES_MAX)

struct engine;
struct engine_set;

/* A lane in its engine's list. Embedded in the lane; the user pointer of its connection. */
struct engine_lane {
	LIST_ENTRY(engine_lane) link;
	const struct engine_lane_ops *ops;
};
/* The engine's poller is held. The lane may be gone when a function returns. */
struct engine_lane_ops {
	/* An event of the lane's connection. */
	void (*event)(struct engine_lane *l, uint32_t events, uint64_t now_ns);
	/* Called every ENGINE_TICK_NS. */
	void (*tick)(struct engine_lane *l, uint64_t now_ns);
	/* The interface was removed. False: the lane had ended already. */
	bool (*gone)(struct engine_lane *l, uint64_t now_ns);
	/* Has the peer acknowledged everything? */
	bool (*delivered)(const struct engine_lane *l);
	/* The engine ends: abort the connection and free the lane. */
	void (*discard)(struct engine_lane *l);
};
/* Adds a lane to its engine, or removes it. */
void engine_add_lane(struct engine *engine, struct engine_lane *l);
void engine_remove_lane(struct engine_lane *l);
/* Counts lanes that wait for the end of their close: +1 or -1. */
void engine_lanes_closing(struct engine *engine, int change);

/* Does a setting forbid engines on the device? Writes one line to why. HARP_PAGE_FALLBACK_none: no.
 * Never waits. */
enum harp_page_fallback engine_is_forbidden(const struct device *device, char *why, size_t why_len);
/* Why the device has no engines; _none: it has some, or that is not decided yet. Never waits. */
enum harp_page_fallback engine_fallback(int dev);
/* Opens the device's engines; waits for the kernel and harpd. NULL: none can be opened
 * (configuration, privilege, queue busy, ...), with one line in why. */
struct engine_set *engine_set_open(int dev, char *why, size_t why_len);
void engine_set_close(struct engine_set *set); /* NULL is accepted */
/* Waits until all lanes' data is acknowledged, for the linger time at most. */
void engines_deliver(void);
unsigned engine_set_count(const struct engine_set *set);
struct engine *engine_set_at(const struct engine_set *set, unsigned index);
/* The engine with the lowest load; equal ones in turn. */
struct engine *engine_set_choose(struct engine_set *set);
/* Changes an engine's load: +1 or -1 for each lane and listen comm. */
void engine_load(struct engine *engine, int change);

struct poller *engine_poller(struct engine *engine);
struct harp_stack *engine_stack(struct engine *engine);
/* How its NIC chooses queues, and the first and last local port of its stack. */
struct placement_end;
void engine_placement(const struct engine *engine, struct placement_end *out);
void engine_ports(const struct engine *engine, uint16_t *first, uint16_t *last);
/* How packets come to the engines of a set; HARP_MODE_NONE for NULL. */
enum harp_instance_mode engine_set_mode(const struct engine_set *set);
/* Properties of a set's DPDK port. -ENOTSUP: it is not a DPDK port. */
int engine_set_port(const struct engine_set *set, struct harp_instance_port *out);
/* Sets work that each turn runs, to serve a listener; NULL: none. Poller held. */
void engine_set_listener(struct engine *engine, struct work *listener);
/* The latest time of the listener's next run; UINT64_MAX: none. Poller held. */
void engine_listener_due(struct engine *engine, uint64_t at_ns);
/* Its index in the set. */
unsigned engine_index(const struct engine *engine);
/* One line of text, from harp_instance_describe(). */
const char *engine_describe(struct engine *engine);
/* Can this engine reach dst? No if dst is an address of this host or the route uses another
 * interface; why has the reason. source: the source address that the kernel would select (RFC
 * 6724), zero: none in particular. Any thread. */
bool engine_reaches(struct engine *engine, const struct harp_addr *dst, struct harp_addr *source,
		    char *why, size_t why_len);
/* Handlers for pthread_atfork(). fork() waits until no engine is being opened or closed. The child
 * closes the engines' descriptors and touches nothing else. */
void engine_fork_prepare(void);
void engine_fork_parent(void);
void engine_fork_child(void);

#endif
