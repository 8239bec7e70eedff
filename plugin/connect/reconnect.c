/* SPDX-License-Identifier: Apache-2.0 */
/* reconnect.c - the connector's further lanes of a comm; see reconnect.h. */
#include "connect/reconnect_impl.h"
#include "base/util.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "stats/lane_page.h"
#include "process/log.h"
#include "device/device.h"

/*
 * Theory of operation
 *
 * The plan (plan.c) is a list of lanes, by their index in the comm. A lane of the plan that is not up gets a connect
 * attempt: at once at first, and when it had lived for a while; else after RECONNECT_BACKOFF_NS_MIN, twice as long after
 * each failure. A slow one gets an attempt while it is up, under its index: the new lane, from another source port,
 * replaces it. The peer resets the old one when it lets the new one in, which may be seen here before the new one's READY:
 * that is no death.
 *
 * All of it belongs to the control thread. reconnect_lost(), called by any poller, leaves bits and posts work.
 */

#define BACKOFF_NS_MAX 5000000000ull
#define PROVEN_NS 1000000000ull /* a lane that lived so long is opened again at once */
#define REROLL_NS 5000000000ull /* a slow lane is replaced no more often */
#define LOG_NS 5000000000ull    /* no more often of one rail */

/* ---- what became of lanes --------------------------------------------------------------------- */

/* What was logged of rails lately, for all comms. */
struct rail_log {
	int dev;
	struct harp_addr addr;
	uint64_t down_ns, up_ns;
};

static struct rail_log *rail_log_entry(const struct reconnect_rail *rail)
{
	static struct rail_log table[64]; /* the control thread's */
	const struct harp_addr *addr = rail->handle.has_v4 ? &rail->handle.v4 : &rail->handle.v6;
	struct rail_log *oldest = &table[0];

	for (unsigned i = 0; i < ARRAY_SIZE(table); i++) {
		if (table[i].down_ns && table[i].dev == rail->dev &&
		    !memcmp(&table[i].addr, addr, sizeof(*addr)))
			return &table[i];
		if (table[i].down_ns < oldest->down_ns)
			oldest = &table[i];
	}
	*oldest = (struct rail_log){ .dev = rail->dev, .addr = *addr };
	return oldest;
}

static bool log_allowed(uint64_t *logged_ns, uint64_t now_ns)
{
	if (*logged_ns && now_ns < *logged_ns + LOG_NS)
		return false;
	*logged_ns = now_ns;
	return true;
}

static void rail_log(const struct reconnect_rail *rail, bool down, uint64_t now_ns)
{
	struct rail_log *entry = rail_log_entry(rail);
	char text[HARP_ADDR_TEXT_MAX];

	lane_page_rail(rail->dev, down);
	harp_addr_format(&entry->addr, text);
	if (down && log_allowed(&entry->down_ns, now_ns))
		WARN("%s: no lane to %s works over this NIC any more; messages go over others (is the "
		     "link, a switch or the peer's NIC down?)",
		     plugin_device(rail->dev)->ifname, text);
	else if (!down && log_allowed(&entry->up_ns, now_ns))
		INFO("%s: lanes to %s work over this NIC again", plugin_device(rail->dev)->ifname,
		     text);
}

/* All of them: the first lane that comes back makes those that don't worth a word. A comm without any lane says so itself. */
static void rails_look(struct reconnect *u, uint64_t now_ns)
{
	unsigned up = 0;

	for (unsigned i = 0; i < u->rail_count; i++)
		up += u->rails[i].up;
	for (unsigned i = 0; i < u->rail_count && up; i++) {
		struct reconnect_rail *rail = &u->rails[i];

		if (!rail->used || rail->down_logged == !rail->up)
			continue;
		rail->down_logged = !rail->up;
		rail_log(rail, rail->down_logged, now_ns);
	}
}

static void lane_is_up(struct reconnect *u, struct reconnect_lane *lane, uint64_t now_ns)
{
	struct reconnect_rail *rail = &u->rails[lane->rail];

	rail->up += !lane->up;
	rail->used = true;
	lane->up = true;
	lane->up_ns = now_ns;
	lane->failures = 0;
	lane->next_ns = UINT64_MAX;
	rails_look(u, now_ns);
}

static void lane_back_off(struct reconnect_lane *lane, uint64_t now_ns)
{
	lane->next_ns = now_ns + lane->backoff_ns;
	lane->backoff_ns *= 2;
	if (lane->backoff_ns > BACKOFF_NS_MAX)
		lane->backoff_ns = BACKOFF_NS_MAX;
}

static void lane_failed(struct reconnect *u, struct reconnect_lane *lane, int error,
			const char *text, uint64_t now_ns)
{
	static uint64_t shortage_ns; /* the control thread's */
	const char *ifname = plugin_device(u->rails[lane->rail].dev)->ifname;

	lane_page_count(HARP_JOB_connects_failed, 1);
	lane->failures++;
	lane->next_ns = UINT64_MAX;
	if (!lane->up) /* else it was to be replaced, and goes on */
		lane_back_off(lane, now_ns);
	if ((error == -EMFILE || error == -ENFILE) && log_allowed(&shortage_ns, now_ns))
		WARN("%s: %s: comms go on with fewer lanes than planned (raise the limit: ulimit -n)",
		     ifname, text);
	if (!lane->failure_logged)
		INFO("%s: a further lane (%s TCP) cannot be opened: %s; tried again", ifname,
		     lane->harp ? "HARP" : "kernel", text);
	lane->failure_logged = true;
}

static void lane_is_lost(struct reconnect *u, struct reconnect_lane *lane, uint64_t now_ns)
{
	if (!lane->up)
		return;
	lane->up = false;
	u->rails[lane->rail].up--;
	if (now_ns >= lane->up_ns + PROVEN_NS) {
		lane->backoff_ns = RECONNECT_BACKOFF_NS_MIN;
		lane->next_ns = now_ns;
	} else {
		lane_back_off(lane, now_ns);
	}
	rails_look(u, now_ns);
}

/* From another source port, under the same index. */
static void lane_is_slow(struct reconnect_lane *lane, uint64_t now_ns)
{
	if (!lane->up || lane->attempt ||
	    (lane->rerolled_ns && now_ns < lane->rerolled_ns + REROLL_NS))
		return;
	lane->rerolled_ns = now_ns;
	lane->next_ns = now_ns;
}

/* It is not being replaced any more. True: the peer has ended it meanwhile, or what took its place. */
static bool lane_rerolled(struct reconnect *u, const struct reconnect_lane *lane)
{
	unsigned bit = 1u << lane->index;

	atomic_fetch_and(&u->rerolling, ~bit);
	return (atomic_fetch_and(&u->ended, ~bit) & bit) != 0;
}

static void lane_is_unreplaced(struct reconnect *u, struct reconnect_lane *lane, uint64_t now_ns)
{
	if (lane->up)
		lane_page_lane_unreplaced(u->comm->stats, lane->index);
	lane_is_lost(u, lane, now_ns);
}

static void lane_attempt(struct reconnect *u, struct reconnect_lane *lane, uint64_t now_ns)
{
	int rc;

	if (lane->up) /* before the peer can know of it */
		atomic_fetch_or(&u->rerolling, 1u << lane->index);
	rc = reconnect_attempt(&lane->attempt, u, lane, now_ns);
	if (!rc)
		return;
	if (lane_rerolled(u, lane))
		lane_is_unreplaced(u, lane, now_ns);
	lane_failed(u, lane, rc, lane_error_text(rc), now_ns);
}

/* The lane's attempt, if it has ended. */
static void lane_look(struct reconnect *u, struct reconnect_lane *lane, uint64_t now_ns)
{
	struct attempt *a = lane->attempt;
	int result = a ? attempt_result(a) : ATTEMPT_RUNNING;
	bool ended;

	if (result == ATTEMPT_RUNNING)
		return;
	lane->attempt = NULL;
	ended = lane_rerolled(u, lane);
	if (!result)
		lane_is_up(u, lane, now_ns);
	else
		lane_failed(u, lane, result, a->text, now_ns);
	/* It was lost before its result was seen, when reconnect_run() took it for down. */
	if (!result && !ended && !comm_has_lane(u->comm, lane->index))
		lane_is_lost(u, lane, now_ns);
	/* The old one has ended when the new one came, as it should; or the new one has ended since. */
	if (ended && (result || !comm_has_lane(u->comm, lane->index)))
		lane_is_unreplaced(u, lane, now_ns);
	attempt_free(a);
}

static void reconnect_look(struct reconnect *u, uint64_t now_ns)
{
	unsigned lost = atomic_exchange(&u->lost, 0), slow = atomic_exchange(&u->slow, 0);
	uint64_t next_ns = UINT64_MAX;

	for (unsigned i = 0; i < u->lane_count; i++) {
		struct reconnect_lane *lane = &u->lanes[i];

		/* In this order: what was attached may have been lost since. */
		lane_look(u, lane, now_ns);
		if (lost >> lane->index & 1)
			lane_is_lost(u, lane, now_ns);
		if (slow >> lane->index & 1)
			lane_is_slow(lane, now_ns);
		if (!lane->attempt && now_ns >= lane->next_ns)
			lane_attempt(u, lane, now_ns);
		if (!lane->attempt && lane->next_ns < next_ns)
			next_ns = lane->next_ns;
	}
	control_timer_set(&u->timer, next_ns);
}

static void reconnect_plan_lanes(struct reconnect *u, uint64_t now_ns)
{
	reconnect_plan(u);
	u->lanes[0].up = true;
	u->lanes[0].up_ns = now_ns;
	u->lanes[0].next_ns = UINT64_MAX;
	u->rails[0].up = 1;
	u->rails[0].used = true;
}

/* The plan and the attempts ask the kernel for routes. */
static void reconnect_due(struct control_timer *timer, uint64_t now_ns)
{
	struct reconnect *u = container_of(timer, struct reconnect, timer);

	if (!u->rail_count)
		reconnect_plan_lanes(u, now_ns);
	reconnect_look(u, now_ns);
}

static void reconnect_run(struct work *work, uint64_t now_ns)
{
	struct reconnect *u = container_of(work, struct reconnect, work);

	if (u->ending || !atomic_load_explicit(&u->begun, memory_order_acquire))
		return;
	reconnect_due(&u->timer, now_ns);
}

bool reconnect_lost(struct comm *comm, unsigned index, enum comm_loss loss)
{
	struct reconnect *u = comm->reconnect;
	unsigned bit;

	if (!u || index >= COMM_LANES_MAX)
		return false;
	bit = 1u << index;
	if (loss == COMM_LOSS_BY_PEER) {
		/* In this order, and lane_rerolled() in the other: the control thread learns of it one way at least. */
		atomic_fetch_or(&u->ended, bit);
		if (atomic_load(&u->rerolling) & bit)
			return true;
		atomic_fetch_and(&u->ended, ~bit);
	}
	atomic_fetch_or(loss == COMM_LOSS_SLOW ? &u->slow : &u->lost, bit);
	control_post(&u->work);
	return false;
}

/* ---- its life --------------------------------------------------------------------------------- */

void reconnect_begin(struct reconnect *u)
{
	atomic_store_explicit(&u->begun, true, memory_order_release);
	control_post(&u->work);
}

static void reconnect_stop_run(struct work *work, uint64_t now_ns)
{
	struct reconnect *u = container_of(work, struct reconnect, stop_work);

	(void)now_ns;
	u->ending = true;
	control_timer_set(&u->timer, UINT64_MAX);
	for (unsigned i = 0; i < u->lane_count; i++) {
		attempt_free(u->lanes[i].attempt);
		u->lanes[i].attempt = NULL;
	}
	for (unsigned i = 0; i < u->rail_count; i++)
		if (u->rails[i].down_logged)
			lane_page_rail_left(u->rails[i].dev);
}

static void reconnect_free_run(struct work *work, uint64_t now_ns)
{
	struct reconnect *u = container_of(work, struct reconnect, free_work);

	(void)now_ns;
	explicit_bzero(u->key, sizeof(u->key));
	free(u);
}

struct reconnect *reconnect_new(int dev, uint8_t dscp, const struct handle *handle)
{
	struct reconnect *u = calloc(1, sizeof(*u));

	if (!u)
		return NULL;
	u->dev = dev;
	u->dscp = dscp;
	u->handle = *handle;
	u->work.run = reconnect_run;
	u->stop_work.run = reconnect_stop_run;
	u->free_work.run = reconnect_free_run;
	u->timer.run = reconnect_due;
	return u;
}

void reconnect_made(struct reconnect *u, struct comm *comm, const struct attempt *first)
{
	u->comm = comm;
	u->comm_id = first->comm_id;
	u->first_harp = first->candidate.harp;
	u->planned = first->preamble.own.lanes;
	u->taken = first->preamble.peer.lanes;
	preamble_comm_key(&first->preamble, u->key);
	u->peer_rails = first->preamble.rails;
	comm->reconnect = u;
	background_begin(&u->background, comm);
}

void reconnect_stop(struct reconnect *u)
{
	if (!u)
		return;
	background_end(&u->background);
	control_call(&u->stop_work);
}

void reconnect_free(struct reconnect *u)
{
	if (!u)
		return;
	/* Behind u->work, if that is still posted. */
	control_post(&u->free_work);
}
