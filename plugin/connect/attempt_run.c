/* SPDX-License-Identifier: Apache-2.0 */
/* reconnect_attempt.c - one dial of a comm's further lane, and who may touch it when; upkeep.c has the theory. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "connect/peers.h"
#include "base/util.h"
#include "connect/reconnect_impl.h"
#include "device/device.h"

#define DIAL_OPEN_NS 3000000000ull
#define DIAL_NS 5000000000ull

/* One dial. */
struct attempt_run {
	struct reconnect *u;
	struct comm_lane_options options;
	struct candidates candidates;
	struct attempt attempt;
	struct control_source source; /* of a kernel lane */
	bool harp, waits_for_open;
	struct work start_work, work, stop_work, free_work;
	atomic_int
		result; /* ATTEMPT_RUNNING, 0, -errno. Writer: baton of the attempt, release. Reader: keeper */
	char text[96];
};

/* ---- one attempt; baton of the dial ----------------------------------------------------------- */

static void attempt_ended(struct attempt *attempt, int error, const char *text, uint64_t now_ns)
{
	struct attempt_run *a = attempt->owner;

	(void)now_ns;
	control_unwatch(&a->source);
	if (!error) {
		a->options.sent_bytes = attempt->preamble.sent_bytes;
		a->options.rtt_ns = attempt->rtt_ns;
		error = comm_attach(a->u->comm, attempt->lane, &a->options);
		text = "the comm does not take it";
		if (error)
			attempt_stop(attempt);
		attempt->lane = NULL;
	}
	snprintf(a->text, sizeof(a->text), "%s", text);
	atomic_store_explicit(&a->result, error, memory_order_release);
	control_post(&a->u->work);
}

static void attempt_start_run(struct work *work, uint64_t now_ns)
{
	struct attempt_run *a = container_of(work, struct attempt_run, start_work);

	attempt_start(&a->attempt, now_ns);
}

static void attempt_run(struct work *work, uint64_t now_ns)
{
	struct attempt_run *a = container_of(work, struct attempt_run, work);

	attempt_advance(&a->attempt, now_ns);
}

static void attempt_stop_run(struct work *work, uint64_t now_ns)
{
	struct attempt_run *a = container_of(work, struct attempt_run, stop_work);

	(void)now_ns;
	attempt_stop(&a->attempt);
}

static void attempt_run_delete(struct attempt_run *a)
{
	candidates_forget(&a->candidates);
	explicit_bzero(a->attempt.key, sizeof(a->attempt.key));
	explicit_bzero(a->attempt.preamble.key, sizeof(a->attempt.preamble.key));
	free(a);
}

static void attempt_free_run(struct work *work, uint64_t now_ns)
{
	(void)now_ns;
	attempt_run_delete(container_of(work, struct attempt_run, free_work));
}

static void attempt_ready(struct control_source *source, uint64_t now_ns)
{
	struct attempt_run *a = container_of(source, struct attempt_run, source);

	attempt_advance(&a->attempt, now_ns);
	if (a->source.watched && a->waits_for_open && a->attempt.opened) {
		a->waits_for_open = false;
		control_rewatch(&a->source, EPOLLIN);
	}
}

/* ---- beginning one; the keeper ---------------------------------------------------------------- */

/* The next candidate in turn that is worth a try. */
static int attempt_choose(struct attempt_run *a, unsigned turn, uint64_t now_ns)
{
	for (unsigned i = 0; i < a->candidates.count; i++) {
		const struct candidate *candidate =
			&a->candidates.list[(turn + i) % a->candidates.count];

		if (candidate->harp &&
		    peers_avoided_s(&candidate->remote, engine_index(candidate->engine), now_ns))
			continue;
		a->attempt.candidate = *candidate;
		return 0;
	}
	return -EHOSTUNREACH;
}

/* A kernel lane of a rail leaves by its NIC, or not at all. */
static int attempt_bind(struct attempt_run *a, const struct reconnect_rail *rail)
{
	const struct device *device = plugin_device(rail->dev);
	struct candidate *candidate = &a->attempt.candidate;
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

static void attempt_prepare(struct attempt_run *a, struct reconnect *u,
			    const struct reconnect_lane *lane, uint64_t now_ns)
{
	const struct reconnect_rail *rail = &u->rails[lane->rail];
	struct attempt *attempt = &a->attempt;

	a->u = u;
	a->harp = lane->harp;
	a->options = (struct comm_lane_options){
		.index = lane->index,
		.dev = rail->dev,
		.backup = rail->backup,
	};
	a->start_work.run = attempt_start_run;
	a->work.run = attempt_run;
	a->stop_work.run = attempt_stop_run;
	a->free_work.run = attempt_free_run;
	a->source.ready = attempt_ready;
	a->waits_for_open = true;
	atomic_init(&a->result, ATTEMPT_RUNNING);
	attempt->dev = rail->dev;
	attempt->driver = lane->harp ? engine_driver(attempt->candidate.engine) : control_driver();
	attempt->dscp = u->dscp;
	attempt->comm_id = u->comm_id;
	memcpy(attempt->key, u->key, PREAMBLE_KEY_BYTES);
	attempt->own.lanes = u->planned;
	attempt->own.index = lane->index;
	attempt->own.join = true;
	attempt->open_deadline_ns = now_ns + DIAL_OPEN_NS;
	attempt->deadline_ns = now_ns + DIAL_NS;
	attempt->ended = attempt_ended;
	attempt->owner = a;
}

int attempt_run_begin(struct attempt_run **out, struct reconnect *u,
		      const struct reconnect_lane *lane, uint64_t now_ns)
{
	struct reconnect_rail *rail = &u->rails[lane->rail];
	struct attempt_run *a = calloc(1, sizeof(*a));
	int rc;

	*out = NULL;
	if (!a)
		return -ENOMEM;
	candidates_list(&a->candidates, rail->dev, lane->harp ? rail->engines : NULL,
			&rail->handle);
	rc = attempt_choose(a, lane->failures, now_ns);
	if (!rc)
		rc = attempt_bind(a, rail);
	if (rc) {
		attempt_run_delete(a);
		return rc;
	}
	attempt_prepare(a, u, lane, now_ns);
	*out = a;
	if (lane->harp) {
		rail->harp_dialled = true;
		driver_post(a->attempt.driver, &a->start_work);
		return 0;
	}
	attempt_start(&a->attempt, now_ns);
	if (a->attempt.lane &&
	    control_watch(&a->source, lane_kernel_fd(a->attempt.lane), EPOLLIN | EPOLLOUT))
		a->attempt.open_deadline_ns = a->attempt.deadline_ns =
			now_ns; /* nobody would look */
	return 0;
}

/* ---- an attempt that runs --------------------------------------------------------------------- */

int attempt_run_result(const struct attempt_run *a)
{
	return atomic_load_explicit(&a->result, memory_order_acquire);
}

const char *attempt_run_text(const struct attempt_run *a)
{
	return a->text;
}

void attempt_run_advance(struct attempt_run *a, uint64_t now_ns)
{
	if (a->harp)
		driver_post(a->attempt.driver, &a->work);
	else if (now_ns >= a->attempt.open_deadline_ns || now_ns >= a->attempt.deadline_ns)
		attempt_advance(&a->attempt, now_ns);
}

void attempt_run_free(struct attempt_run *a)
{
	if (a->harp)
		driver_post(a->attempt.driver, &a->free_work);
	else
		attempt_run_delete(a);
}

void attempt_run_stop(struct attempt_run *a)
{
	if (a->harp) {
		driver_call(a->attempt.driver, &a->stop_work);
	} else {
		control_unwatch(&a->source);
		attempt_stop(&a->attempt);
	}
	attempt_run_delete(a);
}
