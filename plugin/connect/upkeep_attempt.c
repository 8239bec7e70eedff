/* SPDX-License-Identifier: Apache-2.0 */
/* upkeep_attempt.c - one dial of a comm's further lane, and who may touch it when; upkeep.c has the theory. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "connect/peers.h"
#include "connect/upkeep_impl.h"

#define DIAL_OPEN_NS 3000000000ull
#define DIAL_NS 5000000000ull

/* One dial. */
struct attempt {
	struct upkeep *u;
	struct comm_lane_options options;
	struct candidates candidates;
	struct dial dial;
	struct keeper_source source; /* of a kernel lane */
	bool harp, waits_for_open;
	struct work start_work, work, stop_work, free_work;
	atomic_int
		result; /* ATTEMPT_RUNS, 0, -errno. Writer: baton of the dial, release. Reader: keeper */
	char text[96];
};

/* ---- one attempt; baton of the dial ----------------------------------------------------------- */

static void attempt_ended(struct dial *dial, int error, const char *text, uint64_t now_ns)
{
	struct attempt *a = dial->owner;

	(void)now_ns;
	keeper_unwatch(&a->source);
	if (!error) {
		a->options.sent_bytes = dial->preamble.sent_bytes;
		a->options.rtt_ns = dial->rtt_ns;
		error = comm_attach(a->u->comm, dial->lane, &a->options);
		text = "the comm does not take it";
		if (error)
			dial_stop(dial);
		dial->lane = NULL;
	}
	snprintf(a->text, sizeof(a->text), "%s", text);
	atomic_store_explicit(&a->result, error, memory_order_release);
	driver_post(keeper_driver(), &a->u->work);
}

static void attempt_start_run(struct work *work, uint64_t now_ns)
{
	struct attempt *a = (struct attempt *)((char *)work - offsetof(struct attempt, start_work));

	dial_start(&a->dial, now_ns);
}

static void attempt_run(struct work *work, uint64_t now_ns)
{
	struct attempt *a = (struct attempt *)((char *)work - offsetof(struct attempt, work));

	dial_advance(&a->dial, now_ns);
}

static void attempt_stop_run(struct work *work, uint64_t now_ns)
{
	struct attempt *a = (struct attempt *)((char *)work - offsetof(struct attempt, stop_work));

	(void)now_ns;
	dial_stop(&a->dial);
}

static void attempt_free(struct attempt *a)
{
	candidates_forget(&a->candidates);
	explicit_bzero(a->dial.key, sizeof(a->dial.key));
	explicit_bzero(a->dial.preamble.key, sizeof(a->dial.preamble.key));
	free(a);
}

static void attempt_free_run(struct work *work, uint64_t now_ns)
{
	(void)now_ns;
	attempt_free((struct attempt *)((char *)work - offsetof(struct attempt, free_work)));
}

static void attempt_ready(struct keeper_source *source, uint64_t now_ns)
{
	struct attempt *a = (struct attempt *)((char *)source - offsetof(struct attempt, source));

	dial_advance(&a->dial, now_ns);
	if (a->source.watched && a->waits_for_open && a->dial.opened) {
		a->waits_for_open = false;
		keeper_rewatch(&a->source, EPOLLIN);
	}
}

/* ---- beginning one; the keeper ---------------------------------------------------------------- */

/* The next candidate in turn that is worth a try. */
static int attempt_choose(struct attempt *a, unsigned turn, uint64_t now_ns)
{
	for (unsigned i = 0; i < a->candidates.count; i++) {
		const struct candidate *candidate =
			&a->candidates.list[(turn + i) % a->candidates.count];

		if (candidate->harp &&
		    peers_avoided_s(&candidate->remote, engine_index(candidate->engine), now_ns))
			continue;
		a->dial.candidate = *candidate;
		return 0;
	}
	return -EHOSTUNREACH;
}

/* A kernel lane of a rail leaves by its NIC, or not at all. */
static int attempt_bind(struct attempt *a, const struct upkeep_rail *rail)
{
	const struct device *device = plugin_device(rail->dev);
	struct candidate *candidate = &a->dial.candidate;
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

static void attempt_prepare(struct attempt *a, struct upkeep *u, const struct upkeep_lane *lane,
			    uint64_t now_ns)
{
	const struct upkeep_rail *rail = &u->rails[lane->rail];
	struct dial *dial = &a->dial;

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
	atomic_init(&a->result, ATTEMPT_RUNS);
	dial->dev = rail->dev;
	dial->driver = lane->harp ? engine_driver(dial->candidate.engine) : keeper_driver();
	dial->dscp = u->dscp;
	dial->comm_id = u->comm_id;
	memcpy(dial->key, u->key, PREAMBLE_KEY_BYTES);
	dial->own.lanes = u->planned;
	dial->own.index = lane->index;
	dial->own.join = true;
	dial->open_deadline_ns = now_ns + DIAL_OPEN_NS;
	dial->deadline_ns = now_ns + DIAL_NS;
	dial->ended = attempt_ended;
	dial->owner = a;
}

int attempt_begin(struct attempt **out, struct upkeep *u, const struct upkeep_lane *lane,
		  uint64_t now_ns)
{
	struct upkeep_rail *rail = &u->rails[lane->rail];
	struct attempt *a = calloc(1, sizeof(*a));
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
		attempt_free(a);
		return rc;
	}
	attempt_prepare(a, u, lane, now_ns);
	*out = a;
	if (lane->harp) {
		rail->harp_dialled = true;
		driver_post(a->dial.driver, &a->start_work);
		return 0;
	}
	dial_start(&a->dial, now_ns);
	if (a->dial.lane &&
	    keeper_watch(&a->source, lane_kernel_fd(a->dial.lane), EPOLLIN | EPOLLOUT))
		a->dial.open_deadline_ns = a->dial.deadline_ns = now_ns; /* nobody would look */
	return 0;
}

/* ---- an attempt that runs --------------------------------------------------------------------- */

int attempt_result(const struct attempt *a)
{
	return atomic_load_explicit(&a->result, memory_order_acquire);
}

const char *attempt_text(const struct attempt *a)
{
	return a->text;
}

void attempt_advance(struct attempt *a, uint64_t now_ns)
{
	if (a->harp)
		driver_post(a->dial.driver, &a->work);
	else if (now_ns >= a->dial.open_deadline_ns || now_ns >= a->dial.deadline_ns)
		dial_advance(&a->dial, now_ns);
}

void attempt_forget(struct attempt *a)
{
	if (a->harp)
		driver_post(a->dial.driver, &a->free_work);
	else
		attempt_free(a);
}

void attempt_end_kernel(struct attempt *a)
{
	keeper_unwatch(&a->source);
	dial_stop(&a->dial);
	attempt_free(a);
}

void attempt_end_harp(struct attempt *a)
{
	driver_call(a->dial.driver, &a->stop_work);
	attempt_free(a);
}
