/* SPDX-License-Identifier: Apache-2.0 */
/* attempt.c - see attempt.h. */
#include "connect/attempt.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>

#include "base/util.h"
#include "connect/handshake.h"
#include "connect/peers.h"
#include "device/device.h"
#include "process/config.h"
#include "process/keyfile.h"
#include "process/log.h"

/*
 * Theory of operation
 *
 * The control thread advances a kernel lane until it is authenticated, so this needs no poll by the
 * application. A HARP lane's attempt is started, advanced and stopped by work posted to its engine.
 * A timer handles deadlines, and rounds of SYNs of HARP lanes. The poller that ends the attempt
 * gives the lane to the comm (authenticated()), stores the result, and posts the owner's work.
 */

#define CHECK_HARP_NS 10000000ull
#define CHECK_KERNEL_NS 100000000ull
/* For CHALLENGE, and for READY: the listener drops a connection after 5 s (pending.c). */
#define ANSWER_NS 6000000000ull

/* ---- the poller's --------------------------------------------------------------------------- */

static void attempt_stop(struct attempt *a)
{
	a->running = false;
	port_search_stop(&a->search);
	/* Before the socket is closed: while a forked child has a copy, closing does not remove it
	 * from epoll. */
	control_unwatch(&a->source);
	if (a->lane)
		a->lane->ops->close(a->lane, true);
	a->lane = NULL;
}

static void attempt_ended(struct attempt *a, int error, const char *text, uint64_t now_ns)
{
	(void)now_ns;
	control_unwatch(&a->source);
	if (!error) {
		error = a->authenticated(a);
		text = error == -ENOTCONN ? "the comm does not accept it" : lane_error_text(error);
		if (error)
			attempt_stop(a);
		a->lane = NULL;
	}
	snprintf(a->text, sizeof(a->text), "%s", text);
	atomic_store_explicit(&a->result, error, memory_order_release);
	control_post(a->result_work);
}

static void attempt_fail(struct attempt *a, int error, const char *text, uint64_t now_ns)
{
	attempt_stop(a);
	a->ops->ended(a, error, text, now_ns);
}

/* No packet got through between the two queues: logs it once, and avoids the pair for a while. */
static void attempt_avoid(struct attempt *a, const char *silence, uint64_t now_ns)
{
	const struct harp_endpoint *remote = &a->candidate.remote;
	char text[HARP_ENDPOINT_TEXT_MAX];

	peers_avoid(remote, a->candidate.engine->index, now_ns);
	INFO("%s: %s: %s; not tried again for %llu s", plugin_device(a->dev)->ifname,
	     harp_endpoint_format(remote, text), silence, PEERS_AVOID_NS / 1000000000u);
}

/* True: the lane is open. False: it is still connecting, or the attempt has ended. */
static bool attempt_open(struct attempt *a, uint64_t now_ns)
{
	char silence[192] = "";
	int error = 0;

	if (a->candidate.harp && !a->lane) {
		error = port_search_advance(&a->search, now_ns, &a->lane);
		if (error == -ETIMEDOUT)
			port_search_describe_failure(&a->search, silence, sizeof(silence));
	}
	/* Read data that arrived before the end: it may be READY. */
	if (a->lane && (a->opened || a->lane->ops->state(a->lane) == LANE_OPEN))
		return true;
	if (a->lane && a->lane->ops->state(a->lane) == LANE_DEAD)
		error = a->lane->error;
	if (error >= 0 && now_ns >= a->open_deadline_ns)
		error = -ETIMEDOUT;
	if (silence[0])
		attempt_avoid(a, silence, now_ns);
	if (error < 0)
		attempt_fail(a, error, silence[0] ? silence : lane_error_text(error), now_ns);
	return false;
}

static int attempt_begin_preamble(struct attempt *a)
{
	struct preamble_terms *own = &a->own;

	own->eager_bytes = plugin_config()->eager_bytes;
	own->psk = keyfile_key();
	/* A kernel lane's sends are done before they are delivered: the peer must send nothing that
	 * could turn our close into a reset (docs/lanes.md section 5.4). */
	own->features |= a->candidate.harp ? FEATURE_ACK_PROMPTLY : FEATURE_NO_CREDIT;
	if (getrandom(own->nonce, sizeof(own->nonce), 0) != sizeof(own->nonce))
		return -EIO;
	preamble_connect(&a->preamble, a->listen_id, a->comm_id, a->key, own);
	a->opened = true;
	return 0;
}

static void attempt_done(struct attempt *a, uint64_t now_ns)
{
	int rc = handshake_encrypt(&a->preamble, &a->lane);

	if (rc) {
		attempt_fail(a, rc, lane_error_text(rc), now_ns);
		return;
	}
	if (a->preamble.placement.kind != PLACEMENT_NONE)
		peers_learn(&a->candidate.remote, &a->preamble.placement);
	if (a->preamble.peer.features & FEATURE_ACK_PROMPTLY)
		lane_kernel_ack_promptly(a->lane);
	a->running = false;
	a->ops->ended(a, 0, "", now_ns);
}

/* The listener answers HELLO and PROOF or resets; a reset may be lost. */
static bool attempt_is_unanswered(const struct attempt *a, uint64_t now_ns)
{
	return (a->preamble.step == PREAMBLE_READ_CHALLENGE ||
		a->preamble.step == PREAMBLE_READ_READY) &&
	       now_ns >= a->hello_ns + a->rtt_ns + ANSWER_NS;
}

static void attempt_advance(struct attempt *a, uint64_t now_ns)
{
	struct preamble *p = &a->preamble;
	int rc;

	if (!a->running || !attempt_open(a, now_ns))
		return;
	rc = a->opened ? 0 : attempt_begin_preamble(a);
	if (!rc)
		rc = handshake_advance(p, a->lane);
	if (p->step >= PREAMBLE_READ_CHALLENGE && !a->hello_ns)
		a->hello_ns = now_ns;
	else if (p->step > PREAMBLE_READ_CHALLENGE && !a->rtt_ns)
		a->rtt_ns = now_ns - a->hello_ns;
	if (rc == 1)
		attempt_done(a, now_ns);
	else if (rc)
		attempt_fail(a, rc, p->what ? p->what : lane_error_text(rc), now_ns);
	else if (now_ns >= a->deadline_ns || attempt_is_unanswered(a, now_ns))
		attempt_fail(a, -ETIMEDOUT, "the peer does not accept; is its rank alive?", now_ns);
}

static void attempt_notify(struct lane *lane, uint64_t now_ns)
{
	attempt_advance(lane->owner, now_ns);
}

/* The peer's queue placement, for a HARP lane to its stack or its kernel. */
static void attempt_prepare_search(struct attempt *a)
{
	const struct candidate *candidate = &a->candidate;
	struct placement_end peer = { .queue = candidate->queue, .queues = candidate->queues };

	/* Without key and table, a Toeplitz hash is as good as unknown. */
	if (candidate->placement > PLACEMENT_ONE_QUEUE && candidate->queues != 1)
		peer.kind = PLACEMENT_UNKNOWN;
	(void)peers_recall(&candidate->remote, &peer);
	port_search_prepare(&a->search, candidate->engine, &peer, &candidate->local,
			    &candidate->remote, a->dscp);
	if (a->ports_max)
		a->search.ports_max = a->ports_max;
	a->search.owner = a;
	a->search.notify = attempt_notify;
}

static void attempt_start(struct attempt *a, uint64_t now_ns)
{
	const struct candidate *candidate = &a->candidate;
	int rc;

	a->running = true;
	if (candidate->harp) {
		attempt_prepare_search(a);
		attempt_advance(a, now_ns);
		return;
	}
	rc = lane_kernel_connect(a->poller, &candidate->local, &candidate->remote, a->dscp,
				 &a->lane);
	if (rc)
		attempt_fail(a, rc, lane_error_text(rc), now_ns);
}

const struct attempt_ops attempt_ops = {
	.start = attempt_start,
	.advance = attempt_advance,
	.stop = attempt_stop,
	.ended = attempt_ended,
};

/* ---- the control thread's ------------------------------------------------------------------- */

/* Poller. */
static void attempt_run(struct work *work, uint64_t now_ns)
{
	struct attempt *a = container_of(work, struct attempt, work);

	if (a->started)
		a->ops->advance(a, now_ns);
	else
		a->ops->start(a, now_ns);
	a->started = true;
}

static void attempt_stop_run(void *arg)
{
	struct attempt *a = arg;

	a->ops->stop(a);
}

static void attempt_ready(struct control_source *source, uint64_t now_ns)
{
	struct attempt *a = container_of(source, struct attempt, source);

	a->ops->advance(a, now_ns);
	if (!a->source.watched || !a->waits_for_open || !a->opened)
		return;
	a->waits_for_open = false;
	control_rewatch(&a->source, EPOLLIN);
}

static void attempt_timer_run(struct control_timer *timer, uint64_t now_ns)
{
	struct attempt *a = container_of(timer, struct attempt, timer);

	if (attempt_result(a) != ATTEMPT_RUNNING)
		return;
	control_timer_set(timer, now_ns + (a->candidate.harp ? CHECK_HARP_NS : CHECK_KERNEL_NS));
	if (a->candidate.harp)
		poller_post(a->poller, &a->work);
	else
		attempt_run(&a->work, now_ns);
}

struct attempt *attempt_new(const struct attempt_ops *ops)
{
	struct attempt *a = calloc(1, sizeof(*a));

	if (!a)
		return NULL;
	a->ops = ops;
	a->work.run = attempt_run;
	a->source.ready = attempt_ready;
	a->timer.run = attempt_timer_run;
	atomic_init(&a->result, ATTEMPT_RUNNING);
	return a;
}

void attempt_begin(struct attempt *a, uint64_t now_ns)
{
	uint64_t check_ns = now_ns + (a->candidate.harp ? CHECK_HARP_NS : CHECK_KERNEL_NS);

	a->poller = a->candidate.harp ? &a->candidate.engine->poller : control_poller();
	if (a->candidate.harp) {
		poller_post(a->poller, &a->work);
	} else {
		a->waits_for_open = true;
		attempt_run(&a->work, now_ns);
		/* Without epoll the attempt fails. */
		if (a->lane &&
		    control_watch(&a->source, lane_kernel_fd(a->lane), EPOLLIN | EPOLLOUT))
			check_ns = a->open_deadline_ns = a->deadline_ns = now_ns;
	}
	control_timer_set(&a->timer, check_ns);
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
	if (a->poller && a->candidate.harp)
		poller_call(a->poller, attempt_stop_run, a);
	else if (a->poller)
		a->ops->stop(a);
	explicit_bzero(a->key, sizeof(a->key));
	explicit_bzero(a->preamble.key, sizeof(a->preamble.key));
	free(a);
}
