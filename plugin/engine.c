/* SPDX-License-Identifier: Apache-2.0 */
/* engine.c - the process's HARP instances: opening, the turn of the baton, the guardian thread. */
#include "engine.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "lane_harp.h"

/*
 * Theory of operation
 *
 * A turn (engine_advance) is one harp_stack_poll(): packets, timers, then through the requests hook
 * the stack's events and the comms' new requests, then transmission. Who holds the baton does it:
 *
 *   - an application thread that calls isend, irecv or test (driver_poll); it spins anyway;
 *   - the guardian, when nobody has done so for guardian_idle_ns.
 *
 * The guardian has two kinds of sleep. While the application polls it sleeps on a timer alone, so
 * that it neither wakes for packets nor fights for the core. Once the application is away it takes
 * turns until there is nothing to do and then sleeps on the XSK, the control socket, an eventfd and
 * the stack's next timer. Before that second sleep: `sleeping` is set, a fence, one more turn; a
 * thread that posts work: work on the list, a fence, `sleeping` read, eventfd written. Whoever comes
 * second sees the other, so no wake-up is lost.
 */

#define ENGINE_TICK_NS 50000000ull /* closes, probes, silence, the host's news */
/* A turn that found nothing is followed by so many more before the guardian sleeps. */
#define GUARDIAN_TURNS_EMPTY 8u
#define GUARDIAN_SLEEP_MS_MAX 100
#define ENGINE_FORK_WAIT_S 1

struct engine {
	struct driver driver; /* first: cache-line aligned */
	int dev;
	unsigned refs; /* under engines_lock */
	struct harp_instance *instance;
	struct harp_stack *stack;
	struct lane_harp *lanes;
	unsigned closing_count;
	uint64_t tick_ns;   /* next */
	bool link_reported; /* the interface's trouble was logged */
	pthread_t guardian;
	int wake_fd;
	atomic_bool stop;
	atomic_bool sleeping; /* Writer: guardian. Reader: who posts work. See above. */
};

/* What became of a device's engine in this process; decided at the first use. */
struct engine_slot {
	struct engine *engine;
	bool refused;
	char why[384];
};

static pthread_mutex_t engines_lock = PTHREAD_MUTEX_INITIALIZER;
static struct engine_slot engine_slots[PLUGIN_DEVICES_MAX];
static bool engines_fork_locked; /* of the fork under way; guard_lock in forkguard.c admits one */

struct driver *engine_driver(struct engine *engine)
{
	return &engine->driver;
}

struct harp_stack *engine_stack(struct engine *engine)
{
	return engine->stack;
}

const char *engine_describe(struct engine *engine)
{
	return harp_instance_describe(engine->instance);
}

/* ---- lanes ---------------------------------------------------------------------------------- */

void engine_add_lane(struct engine *engine, struct lane_harp *h)
{
	h->next = engine->lanes;
	h->pprev = &engine->lanes;
	if (h->next)
		h->next->pprev = &h->next;
	engine->lanes = h;
}

void engine_forget_lane(struct engine *engine, struct lane_harp *h)
{
	*h->pprev = h->next;
	if (h->next)
		h->next->pprev = h->pprev;
	if (h->closing_deadline_ns)
		engine->closing_count--;
}

void engine_lane_closing(struct engine *engine, struct lane_harp *h)
{
	(void)h;
	engine->closing_count++;
}

void engine_probe_peer(struct engine *engine, const struct lane_harp *dead)
{
	for (struct lane_harp *h = engine->lanes; h; h = h->next) {
		if (h == dead || h->lane.error || !h->connected)
			continue;
		if (!memcmp(&h->lane.remote.addr, &dead->lane.remote.addr,
			    sizeof(struct harp_addr)))
			(void)harp_conn_probe(h->conn);
	}
}

/* ---- one turn ------------------------------------------------------------------------------- */

static void engine_requests(void *ctx, uint64_t now_ns)
{
	struct engine *engine = ctx;
	struct harp_conn *conn;
	uint32_t events;

	while ((conn = harp_stack_next_event(engine->stack, &events))) {
		struct lane_harp *h = harp_conn_user(conn);

		if (h) /* NULL: accepted by the listener, not yet by us */
			lane_harp_event(h, events, now_ns);
	}
	driver_run_ready(&engine->driver, now_ns);
}

static void engine_control(struct engine *engine, uint64_t now_ns)
{
	int rc = harp_instance_control(engine->instance, now_ns);

	if (rc && !engine->link_reported)
		WARN("%s: %s; connections wait until it is back or their timeout",
		     plugin_device(engine->dev)->ifname,
		     rc == -ENODEV ? "the interface is gone" : "the interface is down");
	engine->link_reported = rc != 0;
}

static void engine_tick(struct engine *engine, uint64_t now_ns)
{
	struct lane_harp *h, *next;

	engine->tick_ns = now_ns + ENGINE_TICK_NS;
	engine_control(engine, now_ns);
	for (h = engine->lanes; h; h = next) {
		next = h->next;
		lane_harp_tick(h, now_ns);
	}
}

static void engine_turn(struct engine *engine, uint64_t now_ns)
{
	(void)harp_stack_poll(engine->stack, now_ns);
	if (harp_instance_control_pending(engine->instance))
		engine_control(engine, now_ns);
	if (now_ns >= engine->tick_ns)
		engine_tick(engine, now_ns);
}

static void engine_rouse(struct engine *engine)
{
	uint64_t one = 1;

	/* One write ends a sleep, however many turns pass before the guardian has its core. */
	if (atomic_load_explicit(&engine->sleeping, memory_order_relaxed) &&
	    atomic_exchange_explicit(&engine->sleeping, false, memory_order_relaxed))
		(void)!write(engine->wake_fd, &one, sizeof(one));
}

static void engine_wake(struct driver *driver)
{
	/* Pairs with the fence in guardian_sleep(): work is on the list before `sleeping` is read. */
	atomic_thread_fence(memory_order_seq_cst);
	engine_rouse((struct engine *)driver);
}

/* The application's turn. It may take a packet that was to wake the guardian, and leave an ACK or a
 * timer behind that the guardian, asleep, does not know of. */
static void engine_advance(struct driver *driver, uint64_t now_ns)
{
	struct engine *engine = (struct engine *)driver;

	engine_turn(engine, now_ns);
	engine_rouse(engine);
}

/* ---- the guardian --------------------------------------------------------------------------- */

static int timeout_ms(uint64_t now_ns, uint64_t deadline_ns)
{
	uint64_t ms;

	if (deadline_ns <= now_ns)
		return 0;
	ms = (deadline_ns - now_ns + 999999u) / 1000000u;
	return ms > GUARDIAN_SLEEP_MS_MAX ? GUARDIAN_SLEEP_MS_MAX : (int)ms;
}

static void guardian_drain_wake(struct engine *engine)
{
	uint64_t count;

	(void)!read(engine->wake_fd, &count, sizeof(count));
}

/* The application polls: stay away from core and socket until its silence would be long enough. */
static void guardian_wait_turn(struct engine *engine, uint64_t wait_ns)
{
	struct pollfd fd = { .fd = engine->wake_fd, .events = POLLIN };
	struct timespec ts = { .tv_sec = (time_t)(wait_ns / 1000000000u),
			       .tv_nsec = (long)(wait_ns % 1000000000u) };

	if (ppoll(&fd, 1, &ts, NULL) > 0)
		guardian_drain_wake(engine);
}

/* A turn of the guardian's; false when another thread has the baton. */
static bool guardian_turn(struct engine *engine, uint64_t now_ns, uint64_t *deadline_ns)
{
	if (!driver_take(&engine->driver))
		return false;
	engine_turn(engine, now_ns);
	*deadline_ns = harp_stack_next_deadline_ns(engine->stack);
	if (engine->tick_ns < *deadline_ns && engine->closing_count)
		*deadline_ns = engine->tick_ns;
	driver_give(&engine->driver);
	return true;
}

/* Nobody polls and nothing is to be done: sleep until something is. False when another thread has the
 * baton after all. */
static bool guardian_sleep(struct engine *engine)
{
	struct pollfd fds[3] = {
		{ .fd = engine->wake_fd, .events = POLLIN },
		{ .fd = harp_instance_fd(engine->instance), .events = POLLIN },
		{ .fd = harp_instance_control_fd(engine->instance), .events = POLLIN },
	};
	uint64_t now_ns, deadline_ns = 0;
	bool had_turn;

	atomic_store_explicit(&engine->sleeping, true, memory_order_relaxed);
	/* Pairs with engine_wake(): `sleeping` is set before the last look. */
	atomic_thread_fence(memory_order_seq_cst);
	now_ns = driver_clock_ns();
	had_turn = guardian_turn(engine, now_ns, &deadline_ns);
	if (had_turn && poll(fds, 3, timeout_ms(now_ns, deadline_ns)) > 0 && fds[0].revents)
		guardian_drain_wake(engine);
	atomic_store_explicit(&engine->sleeping, false, memory_order_relaxed);
	return had_turn;
}

static void *guardian_main(void *arg)
{
	struct engine *engine = arg;
	uint64_t idle_ns = plugin_config()->guardian_idle_ns;
	unsigned empty = 0;

	(void)prctl(PR_SET_NAME, "harp-guardian");
	while (!atomic_load_explicit(&engine->stop, memory_order_acquire)) {
		uint64_t now_ns = driver_clock_ns(), deadline_ns;
		uint64_t polled_ns =
			atomic_load_explicit(&engine->driver.polled_ns, memory_order_relaxed);

		if (now_ns < polled_ns + idle_ns) {
			empty = 0;
			guardian_wait_turn(engine, polled_ns + idle_ns - now_ns);
			continue;
		}
		/* Whoever has the baton may have been preempted with it, on this very core: give way. */
		if (++empty <= GUARDIAN_TURNS_EMPTY) {
			if (!guardian_turn(engine, now_ns, &deadline_ns))
				guardian_wait_turn(engine, idle_ns);
			continue;
		}
		empty = 0;
		if (!guardian_sleep(engine))
			guardian_wait_turn(engine, idle_ns);
	}
	return NULL;
}

static int guardian_start(struct engine *engine)
{
	sigset_t all, old;
	int rc;

	/* The application's signals are not ours to take. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(&engine->guardian, NULL, guardian_main, engine);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return -rc;
}

/* ---- opening and closing -------------------------------------------------------------------- */

static void engine_log(void *ctx, enum harp_log_level level, const char *message)
{
	const struct engine *engine = ctx;
	const char *ifname = plugin_device(engine->dev)->ifname;

	if (level <= HARP_LOG_WARN)
		WARN("%s: %s", ifname, message);
	else
		INFO("%s: %s", ifname, message);
}

/* Reasons that need no try. */
static bool engine_forbidden(const struct device *device, char *why, size_t why_len)
{
	const struct plugin_config *config = plugin_config();

	if (config->path == PATH_KERNEL)
		snprintf(why, why_len, "HARP_PATH=kernel");
	else if (device->has_default_route && !config->ifname_set)
		snprintf(why, why_len,
			 "%s carries the default route and is not named (set NCCL_SOCKET_IFNAME or "
			 "HARP_IFNAME to use it)",
			 device->ifname);
	else if (!strcmp(device->ifname, "lo"))
		snprintf(why, why_len, "lo is the loopback interface");
	else
		return false;
	return true;
}

static int engine_open(struct engine *engine, const struct device *device, char *why,
		       size_t why_len)
{
	const struct plugin_config *config = plugin_config();
	struct harp_instance_options opt = {
		.size = sizeof(opt),
		.ifname = device->ifname,
		.xdp_mode = config->xdp_mode,
		.frame_count = config->frames,
		.lib_dir = config->lib_dir[0] ? config->lib_dir : NULL,
		.ctx = engine,
		.log = engine_log,
		.requests = engine_requests,
	};
	int rc = harp_instance_open(&engine->instance, &opt, why, why_len);

	if (rc)
		return rc;
	engine->stack = harp_instance_stack(engine->instance);
	engine->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (engine->wake_fd < 0) {
		rc = -errno;
		snprintf(why, why_len, "eventfd: %s", strerror(-rc));
		harp_instance_close(engine->instance);
		return rc;
	}
	rc = guardian_start(engine);
	if (rc) {
		snprintf(why, why_len, "cannot start the guardian thread: %s", strerror(-rc));
		close(engine->wake_fd);
		harp_instance_close(engine->instance);
	}
	return rc;
}

static struct engine *engine_new(int dev, char *why, size_t why_len)
{
	const struct device *device = plugin_device(dev);
	struct engine *engine;

	if (engine_forbidden(device, why, why_len))
		return NULL;
	if (posix_memalign((void **)&engine, 64, sizeof(*engine))) {
		snprintf(why, why_len, "out of memory");
		return NULL;
	}
	memset(engine, 0, sizeof(*engine));
	engine->dev = dev;
	driver_init(&engine->driver, engine_advance);
	engine->driver.wake = engine_wake;
	if (engine_open(engine, device, why, why_len)) {
		free(engine);
		return NULL;
	}
	INFO("%s: path HARP: %s", device->ifname, engine_describe(engine));
	return engine;
}

static void engine_report(struct engine *engine)
{
	static const char *const names[] = { "rx_packets",      "tx_packets",      "rx_bytes",
					     "tx_bytes",        "tcp_retransmits", "tcp_rto",
					     "tx_copied_bytes", "tcp_cookies_sent" };
	char line[384];
	size_t len = 0;

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		uint64_t value = 0;

		(void)harp_stack_stat(engine->stack, names[i], &value);
		len += (size_t)snprintf(line + len, sizeof(line) - len, " %s=%llu", names[i],
					(unsigned long long)value);
		if (len >= sizeof(line))
			break;
	}
	INFO("%s: HARP stats:%s", plugin_device(engine->dev)->ifname, line);
}

/* What was thrown away, each by its reason; nothing when there was none. */
static void engine_report_drops(struct engine *engine)
{
	char line[1024];
	size_t len = 0;

	for (unsigned i = 0; i < harp_stats_count() && len < sizeof(line); i++) {
		const char *name = harp_stats_name(i);
		uint64_t value = 0;

		if (strncmp(name, "drop_", 5) != 0 ||
		    harp_stack_stat(engine->stack, name, &value) || !value)
			continue;
		len += (size_t)snprintf(line + len, sizeof(line) - len, " %s=%llu", name,
					(unsigned long long)value);
	}
	if (len)
		INFO("%s: HARP drops:%s", plugin_device(engine->dev)->ifname, line);
}

/* The last reference is gone; nobody else knows the engine. */
static void engine_free(struct engine *engine)
{
	uint64_t deadline_ns = driver_clock_ns() + plugin_config()->close_linger_ns;
	uint64_t one = 1;

	atomic_store_explicit(&engine->stop, true, memory_order_release);
	(void)!write(engine->wake_fd, &one, sizeof(one));
	pthread_join(engine->guardian, NULL);
	/* Peers may still need our last ACK or CLOSE: finish what is closing, within the linger. */
	while (engine->closing_count) {
		uint64_t now_ns = driver_clock_ns();
		struct pollfd fd = { .fd = harp_instance_fd(engine->instance), .events = POLLIN };

		if (now_ns >= deadline_ns)
			break;
		(void)driver_turn(&engine->driver, now_ns);
		if (engine->closing_count)
			(void)poll(&fd, 1, 1);
	}
	while (engine->lanes) {
		struct lane_harp *h = engine->lanes;

		engine_forget_lane(engine, h);
		harp_conn_abort(h->conn);
		free(h);
	}
	(void)driver_turn(&engine->driver, driver_clock_ns()); /* the last FIN or RST leaves */
	engine_report(engine);
	engine_report_drops(engine);
	harp_instance_close(engine->instance);
	close(engine->wake_fd);
	free(engine);
}

struct engine *engine_get(int dev, char *why, size_t why_len)
{
	struct engine_slot *slot;
	struct engine *engine;

	if (dev < 0 || !plugin_device(dev)) {
		snprintf(why, why_len, "no such device");
		return NULL;
	}
	slot = &engine_slots[dev];
	pthread_mutex_lock(&engines_lock);
	if (!slot->engine && !slot->refused) {
		slot->engine = engine_new(dev, slot->why, sizeof(slot->why));
		slot->refused = !slot->engine;
	}
	engine = slot->engine;
	if (engine)
		engine->refs++;
	else
		snprintf(why, why_len, "%s", slot->why);
	pthread_mutex_unlock(&engines_lock);
	return engine;
}

void engine_put(struct engine *engine)
{
	bool last = false;

	if (!engine)
		return;
	pthread_mutex_lock(&engines_lock);
	if (--engine->refs == 0) {
		/* Freed under the lock: the next engine_get() must find queue and ports free. */
		engine_slots[engine->dev].engine = NULL;
		last = true;
	}
	if (last)
		engine_free(engine);
	pthread_mutex_unlock(&engines_lock);
}

void engine_reset(void)
{
	pthread_mutex_lock(&engines_lock);
	for (unsigned i = 0; i < PLUGIN_DEVICES_MAX; i++)
		engine_slots[i].refused = false;
	pthread_mutex_unlock(&engines_lock);
}

void engine_fork_prepare(void)
{
	struct timespec until;

	/* An engine half open or half closed is on no slot: the child would keep its queue. Yet whoever
	 * forks may hold what the opener needs (an interpreter's lock, for the logger): wait, not for
	 * ever. */
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += ENGINE_FORK_WAIT_S;
	engines_fork_locked = pthread_mutex_timedlock(&engines_lock, &until) == 0;
}

void engine_fork_parent(void)
{
	if (engines_fork_locked)
		pthread_mutex_unlock(&engines_lock);
}

void engine_fork_child(void)
{
	/* Only this thread lives on in the child. */
	for (unsigned i = 0; i < PLUGIN_DEVICES_MAX; i++) {
		struct engine *engine = engine_slots[i].engine;

		if (!engine)
			continue;
		harp_instance_fork_child(engine->instance);
		close(engine->wake_fd);
	}
	if (engines_fork_locked)
		pthread_mutex_unlock(&engines_lock);
}

bool engine_reaches(struct engine *engine, const struct harp_addr *dst, struct harp_addr *source,
		    char *why, size_t why_len)
{
	const struct device *device = plugin_device(engine->dev);
	struct harp_host_route route;
	char text[HARP_ADDR_TEXT_MAX];
	int rc = harp_host_route_on(dst, device_scope_id(device, dst), &route);

	memset(source, 0, sizeof(*source));
	if (rc) {
		snprintf(why, why_len, "no route to %s: %s", harp_addr_format(dst, text),
			 strerror(-rc));
		return false;
	}
	if (route.is_local) {
		snprintf(why, why_len, "%s is an address of this host",
			 harp_addr_format(dst, text));
		return false;
	}
	if (route.ifindex != device->ifindex) {
		snprintf(why, why_len, "%s is reached through %s, not %s",
			 harp_addr_format(dst, text), route.ifname, device->ifname);
		return false;
	}
	/* It may be another interface's (a loopback address that is routed here): the stack has no such. */
	if (harp_host_address_state(device->ifname, &route.source) >= 0)
		*source = route.source;
	return true;
}
