/* SPDX-License-Identifier: Apache-2.0 */
/* attempt_run.c - a connect attempt between its owner, the control thread, and the poller that its lane belongs to. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/util.h"
#include "connect/attempt.h"
#include "connect/peers.h"
#include "connect/reconnect_impl.h"
#include "device/device.h"

/*
 * Theory of operation
 *
 * A kernel lane is the control thread's until it is proved, so it answers although the application does not poll. A HARP
 * lane's attempt is started, advanced and stopped by work that is posted to its engine. A timer looks at deadlines and, for
 * HARP lanes, at rounds of SYNs. The poller that ends the attempt gives the lane to the comm
 * (proved()), stores the result, and posts the owner's work.
 */

#define OPEN_NS 3000000000ull /* of a further lane: until it is open, and until it is proved */
#define PROVED_NS 5000000000ull
#define LOOK_HARP_NS 10000000ull
#define LOOK_KERNEL_NS 100000000ull

static void attempt_ended(struct attempt *a, int error, const char *text, uint64_t now_ns)
{
	(void)now_ns;
	control_unwatch(&a->source);
	if (!error) {
		error = a->proved(a);
		text = error == -ENOTCONN ? "the comm does not take it" : lane_error_text(error);
		if (error)
			attempt_stop(a);
		a->lane = NULL;
	}
	snprintf(a->text, sizeof(a->text), "%s", text);
	atomic_store_explicit(&a->result, error, memory_order_release);
	control_post(a->result_work);
}

static void attempt_start_run(struct work *work, uint64_t now_ns)
{
	attempt_start(container_of(work, struct attempt, start_work), now_ns);
}

static void attempt_run(struct work *work, uint64_t now_ns)
{
	attempt_advance(container_of(work, struct attempt, work), now_ns);
}

static void attempt_stop_run(struct work *work, uint64_t now_ns)
{
	(void)now_ns;
	attempt_stop(container_of(work, struct attempt, stop_work));
}

static void attempt_ready(struct control_source *source, uint64_t now_ns)
{
	struct attempt *a = container_of(source, struct attempt, source);

	attempt_advance(a, now_ns);
	if (!a->source.watched || !a->waits_for_open || !a->opened)
		return;
	a->waits_for_open = false;
	control_rewatch(&a->source, EPOLLIN);
}

static void attempt_look(struct control_timer *timer, uint64_t now_ns)
{
	struct attempt *a = container_of(timer, struct attempt, timer);

	if (attempt_result(a) != ATTEMPT_RUNNING)
		return;
	control_timer_set(timer, now_ns + (a->candidate.harp ? LOOK_HARP_NS : LOOK_KERNEL_NS));
	if (a->candidate.harp)
		poller_post(a->poller, &a->work);
	else
		attempt_advance(a, now_ns);
}

struct attempt *attempt_new(void)
{
	struct attempt *a = calloc(1, sizeof(*a));

	if (!a)
		return NULL;
	a->start_work.run = attempt_start_run;
	a->work.run = attempt_run;
	a->stop_work.run = attempt_stop_run;
	a->source.ready = attempt_ready;
	a->timer.run = attempt_look;
	a->ended = attempt_ended;
	atomic_init(&a->result, ATTEMPT_RUNNING);
	return a;
}

void attempt_begin(struct attempt *a, uint64_t now_ns)
{
	uint64_t look_ns = now_ns + (a->candidate.harp ? LOOK_HARP_NS : LOOK_KERNEL_NS);

	a->poller = a->candidate.harp ? engine_poller(a->candidate.engine) : control_poller();
	if (a->candidate.harp) {
		poller_post(a->poller, &a->start_work);
	} else {
		a->waits_for_open = true;
		attempt_start(a, now_ns);
		/* A socket without events is given up at once. */
		if (a->lane &&
		    control_watch(&a->source, lane_kernel_fd(a->lane), EPOLLIN | EPOLLOUT))
			look_ns = a->open_deadline_ns = a->deadline_ns = now_ns;
	}
	control_timer_set(&a->timer, look_ns);
}

int attempt_result(const struct attempt *a)
{
	return atomic_load_explicit(&a->result, memory_order_acquire);
}

void attempt_free(struct attempt *a)
{
	if (!a)
		return;
	control_timer_set(&a->timer, UINT64_MAX);
	if (a->poller && a->candidate.harp) {
		poller_call(a->poller, &a->stop_work);
	} else if (a->poller) {
		control_unwatch(&a->source);
		attempt_stop(a);
	}
	explicit_bzero(a->key, sizeof(a->key));
	explicit_bzero(a->preamble.key, sizeof(a->preamble.key));
	free(a);
}

/* ---- further lanes ----------------------------------------------------------------------------------- */

static int further_lane_proved(struct attempt *a)
{
	struct reconnect *u = a->owner;
	struct comm_lane_options options = {
		.index = a->own.index,
		.dev = a->dev,
		.backup = u->rails[u->lanes[a->own.index].rail].backup,
		.sent_bytes = a->preamble.sent_bytes,
		.rtt_ns = a->rtt_ns,
	};

	return comm_attach(u->comm, a->lane, &options);
}

/* The next candidate after each failure, without those that could not be reached a moment ago. */
static int further_lane_choose(struct attempt *a, const struct reconnect_rail *rail,
			       const struct reconnect_lane *lane, uint64_t now_ns)
{
	struct candidates candidates;
	int rc = -EHOSTUNREACH;

	candidates_list(&candidates, rail->dev, lane->harp ? rail->engines : NULL, &rail->handle);
	for (unsigned i = 0; rc && i < candidates.count; i++) {
		const struct candidate *candidate =
			&candidates.list[(lane->failures + i) % candidates.count];

		if (candidate->harp &&
		    peers_avoided_s(&candidate->remote, engine_index(candidate->engine), now_ns))
			continue;
		a->candidate = *candidate;
		rc = 0;
	}
	candidates_forget(&candidates);
	return rc;
}

/* A kernel lane of a rail leaves by its NIC, or not at all. */
static int further_lane_bind(struct attempt *a, const struct reconnect_rail *rail)
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
		harp_addr_is_v4(&candidate->remote.addr) ? device->addr_v4 : device->addr_v6;
	candidate->local.scope_id = device_scope_id(device, &candidate->local.addr);
	return 0;
}

int reconnect_attempt(struct attempt **out, struct reconnect *u, const struct reconnect_lane *lane,
		      uint64_t now_ns)
{
	const struct reconnect_rail *rail = &u->rails[lane->rail];
	struct attempt *a = attempt_new();
	int rc = a ? further_lane_choose(a, rail, lane, now_ns) : -ENOMEM;

	*out = NULL;
	if (!rc)
		rc = further_lane_bind(a, rail);
	if (rc) {
		attempt_free(a);
		return rc;
	}
	a->dev = rail->dev;
	a->dscp = u->dscp;
	a->comm_id = u->comm_id;
	memcpy(a->key, u->key, PREAMBLE_KEY_BYTES);
	a->own.lanes = u->planned;
	a->own.index = lane->index;
	a->own.join = true;
	a->open_deadline_ns = now_ns + OPEN_NS;
	a->deadline_ns = now_ns + PROVED_NS;
	a->proved = further_lane_proved;
	a->owner = u;
	a->result_work = &u->work;
	*out = a;
	attempt_begin(a, now_ns);
	return 0;
}
