/* SPDX-License-Identifier: Apache-2.0 */
/* engine_turn.c - one engine: its lanes, a turn of its poller, its end. */
#include "poll/engine.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "wire/queue_placement.h"
#include "process/log.h"
#include "process/config.h"
#include "device/device.h"

#define ENGINE_TICK_NS 50000000ull /* for closes, probes, silence, host events */

void engine_placement(const struct engine *engine, struct placement_end *out)
{
	placement_own(out, harp_instance_rss(engine->instance),
		      harp_instance_queue(engine->instance));
}

void engine_ports(const struct engine *engine, uint16_t *first, uint16_t *last)
{
	const struct harp_lease_leased *lease = harp_instance_lease(engine->instance);

	*first = lease ? lease->port_min : (uint16_t)plugin_config()->port_min;
	*last = lease ? lease->port_max : (uint16_t)plugin_config()->port_max;
}

/* ---- one turn ------------------------------------------------------------------------------- */

void engine_requests(void *ctx, uint64_t now_ns)
{
	struct engine *engine = ctx;
	struct harp_conn *conn;
	uint32_t events;

	while ((conn = harp_stack_next_event(engine->stack, &events))) {
		struct engine_lane *l = harp_conn_user(conn);

		if (l) /* NULL: not accepted by the plugin yet */
			l->ops->event(l, events, now_ns);
	}
	if (engine->listener)
		engine->listener->run(engine->listener, now_ns);
	poller_run_ready(&engine->poller, now_ns);
}

/* The interface was removed; a new one of the same name does not restore the queue. The owner of a
 * lane that ends may end other lanes, so the search restarts at the head. */
static void engine_gone(struct engine *engine, uint64_t now_ns)
{
	struct engine_lane *l = LIST_FIRST(&engine->lanes);

	while (l)
		l = l->ops->gone(l, now_ns) ? LIST_FIRST(&engine->lanes) : LIST_NEXT(l, link);
}

static void engine_control(struct engine *engine, uint64_t now_ns)
{
	bool is_new;
	int rc;

	/* Cleared before the call: a later event sets it again. */
	atomic_store_explicit(&engine->event, false, memory_order_relaxed);
	rc = harp_instance_control(engine->instance, now_ns);
	is_new = rc != engine->link_reported;
	engine->link_reported = rc;
	if (rc != -ENODEV && rc != -ENOLINK) /* the instance warns of a link that is down */
		return;
	if (is_new && !engine->index) /* only the first engine of an interface warns */
		WARN("%s: %s; its connections end with an error",
		     plugin_device(engine->dev)->ifname,
		     rc == -ENODEV ? "the interface was removed"
				   : "packets do not reach HARP there any more");
	engine_gone(engine, now_ns);
}

static void engine_tick(struct engine *engine, uint64_t now_ns)
{
	struct engine_lane *l, *next;

	engine->tick_ns = now_ns + ENGINE_TICK_NS;
	engine_control(engine, now_ns);
	for (l = LIST_FIRST(&engine->lanes); l; l = next) {
		next = LIST_NEXT(l, link);
		l->ops->tick(l, now_ns);
	}
}

bool engine_turn(struct engine *engine, uint64_t now_ns)
{
	bool worked = harp_stack_poll(engine->stack, now_ns) > 0;

	if (harp_instance_control_pending(engine->instance) ||
	    atomic_load_explicit(&engine->event, memory_order_relaxed))
		engine_control(engine, now_ns);
	if (now_ns >= engine->tick_ns)
		engine_tick(engine, now_ns);
	if (worked)
		atomic_store_explicit(&engine->worked_ns, now_ns, memory_order_relaxed);
	return worked;
}

uint64_t engine_deadline_ns(const struct engine *engine)
{
	uint64_t deadline_ns = harp_stack_next_deadline_ns(engine->stack);

	if (engine->listener && engine->listener_ns < deadline_ns)
		deadline_ns = engine->listener_ns;
	if (engine->closing_count && engine->tick_ns < deadline_ns)
		deadline_ns = engine->tick_ns;
	return deadline_ns;
}

/* ---- the end -------------------------------------------------------------------------------- */

static void engine_report(struct engine *engine)
{
	static const char *const names[] = { "rx_packets",      "tx_packets",      "rx_bytes",
					     "tx_bytes",        "tcp_retransmits", "tcp_rto",
					     "tx_copied_bytes", "tcp_cookies_sent" };
	char line[384];
	size_t len = 0;

	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		uint64_t value = 0;

		(void)harp_stack_stat(engine->stack, names[i], &value);
		len += (size_t)snprintf(line + len, sizeof(line) - len, " %s=%llu", names[i],
					(unsigned long long)value);
		if (len >= sizeof(line))
			break;
	}
	INFO("%s: HARP stats:%s", engine->name, line);
}

static bool engine_is_delivered(struct engine *engine)
{
	struct engine_lane *l;

	LIST_FOREACH(l, &engine->lanes, link)
	if (!l->ops->delivered(l))
		return false;
	return true;
}

void engine_deliver(struct engine *engine, uint64_t until_ns)
{
	struct pollfd fd = { .fd = harp_instance_fd(engine->instance), .events = POLLIN };
	bool delivered = false;

	for (uint64_t now_ns = clock_now_ns(); now_ns < until_ns; now_ns = clock_now_ns()) {
		if (poller_try(&engine->poller)) {
			(void)engine_turn(engine, now_ns);
			delivered = engine_is_delivered(engine);
			poller_release(&engine->poller);
		}
		if (delivered)
			break;
		(void)poll(&fd, 1, 1);
	}
	if (poller_try(&engine->poller)) { /* the process exits */
		engine_capture_write(engine);
		poller_release(&engine->poller);
	}
}

bool engine_is_closing(struct engine *engine)
{
	if (engine->closing_count)
		(void)engine_turn(engine, clock_now_ns());
	return engine->closing_count > 0;
}

void engine_finish(struct engine *engine)
{
	struct engine_lane *l;

	while ((l = LIST_FIRST(&engine->lanes)))
		l->ops->discard(l);
	(void)engine_turn(engine, clock_now_ns()); /* sends the last FIN or RST */
	engine_capture_write(engine);
	engine_report(engine);
}
