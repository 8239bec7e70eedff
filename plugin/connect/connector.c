/* SPDX-License-Identifier: Apache-2.0 */
/* connector.c - further lanes of a comm, and reconnects; see connector.h. */
#include "connect/connector.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "connect/peers.h"
#include "device/device.h"
#include "process/log.h"
#include "stats/lane_page.h"

/*
 * Theory of operation
 *
 * The plan (plan.c) is a list of lanes, by their index in the comm. A lane of the plan that is not
 * up gets a connect attempt: immediately the first time, and if it had been up for STABLE_NS;
 * otherwise after CONNECTOR_BACKOFF_NS_MIN, doubled after each failure. A slow lane gets an attempt
 * while it is up: a new lane from another source port replaces it under the same index. The peer
 * resets the old lane when CONFIRM admits the new one; this comm has the new lane by then. (A
 * kernel lane sends CONFIRM microseconds before that. A reset in between counts as a lane's death.)
 *
 * Everything belongs to the control thread. connector_lane_lost(), called with any poller held,
 * sets bits and posts work. The control thread then queries the comm for dead lanes.
 */

#define OPEN_NS 3000000000ull /* to open a lane, and to authenticate it */
#define AUTHENTICATE_NS 5000000000ull
#define BACKOFF_NS_MAX 5000000000ull
#define STABLE_NS 1000000000ull  /* a lane that was up this long is reopened at once */
#define REPLACE_NS 5000000000ull /* between replacements of a slow lane */

/* ---- what is logged of rails ---------------------------------------------------------------- */

static void rail_log(const struct connector_rail *rail, uint64_t now_ns)
{
	const struct harp_addr *addr = nic_addr(rail->nic);
	const char *ifname = plugin_device(rail->dev)->ifname;
	char text[HARP_ADDR_TEXT_MAX];

	lane_page_rail(rail->dev, rail->down_logged);
	if (!lane_notice_due(rail->down_logged ? LANE_NOTICE_RAIL_DOWN : LANE_NOTICE_RAIL_UP, addr,
			     now_ns))
		return;
	harp_addr_format(addr, text);
	if (rail->down_logged)
		WARN("%s: no lane to %s works over this NIC any more; messages go over others (is the "
		     "link, a switch or the peer's NIC down?)",
		     ifname, text);
	else
		INFO("%s: lanes to %s work over this NIC again", ifname, text);
}

/* If all rails have lost their lanes, they are reported when the first lane returns. A comm without
 * lanes reports that itself. */
static void rails_update(struct connector *c, uint64_t now_ns)
{
	unsigned up = 0;

	for (unsigned i = 0; i < c->rail_count; i++)
		up += c->rails[i].up;
	for (unsigned i = 0; i < c->rail_count && up; i++) {
		struct connector_rail *rail = &c->rails[i];

		if (!rail->used || rail->down_logged == !rail->up)
			continue;
		rail->down_logged = !rail->up;
		rail_log(rail, now_ns);
	}
}

/* ---- lanes ---------------------------------------------------------------------------------- */

static void lane_set_up(struct connector *c, struct connector_lane *lane, uint64_t now_ns)
{
	struct connector_rail *rail = &c->rails[lane->rail];

	rail->up += !lane->up;
	rail->used = true;
	lane->up = true;
	lane->up_ns = now_ns;
	lane->failures = 0;
	lane->next_ns = UINT64_MAX;
	rails_update(c, now_ns);
}

static void lane_back_off(struct connector_lane *lane, uint64_t now_ns)
{
	lane->next_ns = now_ns + lane->backoff_ns;
	lane->backoff_ns *= 2;
	if (lane->backoff_ns > BACKOFF_NS_MAX)
		lane->backoff_ns = BACKOFF_NS_MAX;
}

static void lane_failed(struct connector *c, struct connector_lane *lane, int error,
			const char *text, uint64_t now_ns)
{
	const char *ifname = plugin_device(c->rails[lane->rail].dev)->ifname;

	lane_page_count(HARP_JOB_connects_failed, 1);
	lane->failures++;
	lane->next_ns = UINT64_MAX;
	if (!lane->up) /* else it was a replacement, and the old lane stays */
		lane_back_off(lane, now_ns);
	/* The first failure may come from a peer that has not made the comm yet: the second attempt
	 * succeeds. */
	if (lane->failures > 1 && !lane->failure_logged)
		INFO("%s: a further lane (%s TCP) cannot be opened: %s%s; tried again", ifname,
		     lane->harp ? "HARP" : "kernel", text, lane_error_remedy(error, ""));
	lane->failure_logged |= lane->failures > 1;
}

static void lane_set_down(struct connector *c, struct connector_lane *lane, uint64_t now_ns)
{
	lane->up = false;
	c->rails[lane->rail].up--;
	if (now_ns >= lane->up_ns + STABLE_NS) {
		lane->backoff_ns = CONNECTOR_BACKOFF_NS_MIN;
		lane->next_ns = now_ns;
	} else {
		lane_back_off(lane, now_ns);
	}
	rails_update(c, now_ns);
}

/* Replaces the lane by one from another source port. */
static void lane_replace(struct connector_lane *lane, uint64_t now_ns)
{
	if (!lane->up || lane->attempt ||
	    (lane->replaced_ns && now_ns < lane->replaced_ns + REPLACE_NS))
		return;
	lane->replaced_ns = now_ns;
	lane->next_ns = now_ns;
}

/* ---- attempts ------------------------------------------------------------------------------- */

static int lane_authenticated(struct attempt *a)
{
	struct connector *c = a->owner;
	struct comm_lane_options options = {
		.index = a->own.index,
		.dev = a->dev,
		.backup = c->rails[c->lanes[a->own.index].rail].backup,
		.sent_bytes = a->preamble.sent_bytes,
		.rtt_ns = a->rtt_ns,
	};

	return comm_attach(c->comm, a->lane, &options);
}

/* A kernel lane of a rail is bound to the rail's NIC. */
static int lane_bind(struct attempt *a, const struct connector_rail *rail)
{
	const struct device *device = plugin_device(rail->dev);
	struct candidate *candidate = &a->candidate;
	struct harp_host_route route;
	int rc;

	if (candidate->harp || !rail->bound)
		return 0;
	rc = harp_host_route(&candidate->remote.addr, &route);
	if (rc)
		return rc;
	if (route.ifindex != device->ifindex)
		return -ENETUNREACH;
	candidate->local.addr =
		*device_address(device, harp_addr_is_v4(&candidate->remote.addr) ? NIC_V4 : NIC_V6);
	candidate->local.scope_id = device_scope_id(device, &candidate->local.addr);
	return 0;
}

/* The next candidate after each failure, except those that were unreachable recently. -errno: none
 * can be used. */
static int lane_choose(const struct connector *c, struct attempt *a,
		       const struct connector_lane *lane, uint64_t now_ns)
{
	const struct connector_rail *rail = &c->rails[lane->rail];
	struct candidates candidates;

	candidates_list(&candidates, rail->dev, lane->harp ? rail->engines : NULL, rail->nic,
			c->handle.host_id);
	for (unsigned i = 0; i < candidates.count; i++) {
		const struct candidate *candidate =
			&candidates.list[(lane->failures + i) % candidates.count];

		if (candidate->harp &&
		    peers_is_avoided(&candidate->remote, candidate->engine->index, now_ns))
			continue;
		a->candidate = *candidate;
		a->dev = rail->dev;
		return lane_bind(a, rail);
	}
	return -EHOSTUNREACH;
}

static void lane_attempt(struct connector *c, struct connector_lane *lane, uint64_t now_ns)
{
	struct attempt *a = attempt_new(c->attempt_ops);
	int rc = a ? lane_choose(c, a, lane, now_ns) : -ENOMEM;

	if (rc) {
		attempt_free(a);
		lane_failed(c, lane, rc, lane_error_text(rc), now_ns);
		return;
	}
	lane->attempt = a;
	a->dscp = c->dscp;
	a->comm_id = c->comm_id;
	memcpy(a->key, c->key, PREAMBLE_KEY_BYTES);
	a->own.index = lane->index;
	a->own.features = FEATURE_JOIN;
	a->open_deadline_ns = now_ns + OPEN_NS;
	a->deadline_ns = now_ns + AUTHENTICATE_NS;
	a->authenticated = lane_authenticated;
	a->owner = c;
	a->result_work = &c->work;
	attempt_begin(a, now_ns);
}

static void lane_attempt_ended(struct connector *c, struct connector_lane *lane, int result,
			       uint64_t now_ns)
{
	struct attempt *a = lane->attempt;

	if (!result)
		lane_set_up(c, lane, now_ns);
	else
		lane_failed(c, lane, result, a->text, now_ns);
	lane->attempt = NULL;
	attempt_free(a);
}

/* ---- turns ---------------------------------------------------------------------------------- */

static void connector_check_lanes(struct connector *c, uint64_t now_ns)
{
	unsigned slow = atomic_exchange(&c->slow, 0);
	uint64_t next_ns = UINT64_MAX;

	for (unsigned i = 0; i < c->lane_count; i++) {
		struct connector_lane *lane = &c->lanes[i];
		int result = lane->attempt ? attempt_result(lane->attempt) : ATTEMPT_RUNNING;

		if (result != ATTEMPT_RUNNING)
			lane_attempt_ended(c, lane, result, now_ns);
		if (lane->up && !comm_has_lane(c->comm, lane->index))
			lane_set_down(c, lane, now_ns);
		if (slow >> lane->index & 1)
			lane_replace(lane, now_ns);
		if (!lane->attempt && now_ns >= lane->next_ns)
			lane_attempt(c, lane, now_ns);
		if (!lane->attempt && lane->next_ns < next_ns)
			next_ns = lane->next_ns;
	}
	control_timer_set(&c->timer, next_ns);
}

/* The plan and the attempts query the kernel's routes. */
static void connector_advance(struct connector *c, uint64_t now_ns)
{
	if (!c->rail_count) {
		connector_plan(c);
		lane_set_up(c, &c->lanes[0], now_ns);
	}
	connector_check_lanes(c, now_ns);
}

static void connector_run(struct connector *c, uint64_t now_ns)
{
	void (*advance)(struct connector * c, uint64_t now_ns) = atomic_load(&c->advance);

	if (advance)
		advance(c, now_ns);
}

static void connector_work_run(struct work *work, uint64_t now_ns)
{
	connector_run(container_of(work, struct connector, work), now_ns);
}

static void connector_timer_run(struct control_timer *timer, uint64_t now_ns)
{
	connector_run(container_of(timer, struct connector, timer), now_ns);
}

void connector_lane_lost(struct comm *comm, unsigned index, enum comm_loss loss)
{
	struct connector *c = comm->connector;

	if (!c)
		return;
	if (loss == COMM_LOSS_SLOW)
		atomic_fetch_or(&c->slow, 1u << index);
	control_post(&c->work);
}

/* ---- its life ------------------------------------------------------------------------------- */

void connector_start(struct connector *c)
{
	atomic_store(&c->advance, connector_advance);
	control_post(&c->work);
}

static void connector_stop_run(void *arg)
{
	struct connector *c = arg;

	atomic_store(&c->advance, NULL);
	control_timer_set(&c->timer, UINT64_MAX);
	attempt_free(c->first.attempt);
	c->first.attempt = NULL;
	for (unsigned i = 0; i < c->lane_count; i++) {
		attempt_free(c->lanes[i].attempt);
		c->lanes[i].attempt = NULL;
	}
	for (unsigned i = 0; i < c->rail_count; i++)
		if (c->rails[i].down_logged)
			lane_page_rail_left(c->rails[i].dev);
}

static void connector_free_run(struct work *work, uint64_t now_ns)
{
	struct connector *c = container_of(work, struct connector, free_work);

	(void)now_ns;
	explicit_bzero(c->key, sizeof(c->key));
	free(c);
}

struct connector *connector_new(int dev, uint8_t dscp, const struct handle *handle,
				const struct attempt_ops *ops)
{
	struct connector *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	c->dev = dev;
	c->dscp = dscp;
	c->handle = *handle;
	c->attempt_ops = ops;
	c->work.run = connector_work_run;
	c->free_work.run = connector_free_run;
	c->timer.run = connector_timer_run;
	return c;
}

void connector_set_comm(struct connector *c, struct comm *comm, const struct attempt *first)
{
	c->comm = comm;
	c->comm_id = first->comm_id;
	c->first_harp = first->candidate.harp;
	preamble_comm_key(&first->preamble, c->key);
	c->nics[0] = c->handle.nic;
	c->nic_count = 1u + first->preamble.peer.nic_count;
	memcpy(&c->nics[1], first->preamble.peer.nics, sizeof(first->preamble.peer.nics));
	comm->connector = c;
	background_begin(comm);
}

void connector_stop(struct connector *c)
{
	if (!c)
		return;
	/* First, as the attempt's engine may be making the comm. */
	control_call(connector_stop_run, c);
	if (c->comm && c->comm->connector)
		background_end(c->comm);
}

void connector_free(struct connector *c)
{
	/* After c->work, which may still be posted. */
	if (c)
		control_post(&c->free_work);
}
