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
 *   engine_capture.c     packets, written to a file
 */
#ifndef HARP_PLUGIN_ENGINE_H
#define HARP_PLUGIN_ENGINE_H

#include <pthread.h>
#include <sys/queue.h>

#include "poll/poller.h"
#include "device/device.h"
#include "harp_page.h"

#define ENGINES_MAX 64u /* of one device; HARP_INSTANCES' range */
#define ENGINES_TOTAL_MAX (PLUGIN_DEVICES_MAX * ENGINES_MAX)

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

struct engine {
	struct poller poller; /* first: cache-line aligned */
	/* Poller. */
	struct harp_instance *instance;
	struct harp_stack *stack;
	LIST_HEAD(, engine_lane) lanes;
	struct work *listener;    /* run in each turn; NULL: none */
	uint64_t listener_ns;     /* latest time of its next run; UINT64_MAX: none */
	unsigned closing_count;   /* lanes that wait for the end of their close */
	uint64_t tick_ns;         /* next tick */
	int link_reported;        /* the interface's last -errno; 0: none */
	uint64_t in_use_extra_ns; /* control thread: engine_background.c */
	struct work capture;      /* writes the captured packets */
	uint64_t captured_ns;     /* when they were last written for a failed lane; 0: never */
	/* Constant. */
	int dev;
	unsigned index; /* in its set */
	char name[32];  /* for the log: the interface, and the index if there are several */
	bool captures;  /* packets (HARP_CAPTURE) */
	/* Shared. */
	_Alignas(64) atomic_uint_fast64_t worked_ns; /* last turn with work. Writer: poller. Reader:
						      * control thread. Relaxed */
	/* Open lanes and listen comms: a hint for engine_set_choose(). */
	atomic_uint load;
	/* The control descriptor is readable: set by the control thread, cleared by a turn. */
	atomic_bool event;
	atomic_bool sleeping; /* Writer: control thread. Reader: threads that post work */
};

/* The engines of one device; constant once the set is published. */
struct engine_set {
	int dev;
	unsigned count; /* at least 1 */
	struct engine *engines[ENGINES_MAX];
	struct work background_work; /* engine_background.c */
	atomic_uint turn;            /* relaxed: where engine_set_choose() starts */
};

/* ---- engine.c -------------------------------------------------------------------------------- */

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
/* The engine with the lowest load; equal ones in turn. */
struct engine *engine_set_choose(struct engine_set *set);
/* How packets come to the engines of a set; HARP_MODE_NONE for NULL. */
enum harp_instance_mode engine_set_mode(const struct engine_set *set);
/* Properties of a set's DPDK port. -ENOTSUP: it is not a DPDK port. */
int engine_set_port(const struct engine_set *set, struct harp_instance_port *out);
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

/* ---- engine_turn.c --------------------------------------------------------------------------- */

/* How its NIC chooses queues, and the first and last local port of its stack. */
struct placement_end;
void engine_placement(const struct engine *engine, struct placement_end *out);
void engine_ports(const struct engine *engine, uint16_t *first, uint16_t *last);
/* The instance's requests hook. ctx: the engine. */
void engine_requests(void *ctx, uint64_t now_ns);
/* Takes a turn. Poller held. True if there was work. */
bool engine_turn(struct engine *engine, uint64_t now_ns);
/* The latest time of the next turn. Poller held. */
uint64_t engine_deadline_ns(const struct engine *engine);
/* Takes turns until the peers have acknowledged what the lanes have sent. Poller not held. */
void engine_deliver(struct engine *engine, uint64_t until_ns);
/* Takes a turn if lanes are closing. True: some still are. No other thread uses the engine. */
bool engine_is_closing(struct engine *engine);
/* Discards the lanes and logs the statistics. No other thread uses the engine. */
void engine_finish(struct engine *engine);

/* ---- engine_background.c --------------------------------------------------------------------- */

/* The control thread polls the set's engines while the application does not. Never waits. */
void background_add(struct engine_set *set);
/* When this returns, the control thread no longer polls them. Not called by the control thread. */
void background_remove(struct engine_set *set);
/* engine->poller.wake and advance. */
void engine_wake(struct poller *poller);
void engine_advance(struct poller *poller, uint64_t now_ns);

/* ---- engine_capture.c ------------------------------------------------------------------------ */

/* Starts to capture packets if HARP_CAPTURE is set. The engine is not polled yet. */
void engine_capture_start(struct engine *engine);
/* Writes the packets to a file; a failure is one WARN. Poller held. */
void engine_capture_write(struct engine *engine);
/* The same in the engine's next turn, at most once a second. Any thread. */
void engine_capture_post(struct engine *engine);

#endif
