/* SPDX-License-Identifier: Apache-2.0 */
/* connect.c - plugin_connect(): connect attempts until a comm exists. */
#include "connect/connector.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/util.h"
#include "connect/handshake.h"
#include "connect/peers.h"
#include "device/device.h"
#include "device/path_policy.h"
#include "process/config.h"
#include "process/keyfile.h"
#include "process/log.h"

/*
 * Theory of operation
 *
 * The first plugin_connect() with a handle opens the device's engines, unless done, and makes a
 * connector; later calls find it by the handle's address and secret. The control thread lists the
 * candidates (HARP lanes first, then kernel lanes), and tries one after the other (attempt.h).
 * After the last one it pauses and begins another round. The attempt's poller makes the comm.
 * Meanwhile, the application polls the engine of the current attempt.
 *
 * Some failures are temporary: hundreds of concurrent connects, a peer that is attaching its XDP
 * program, a busy listener. A closed listener is not. So the number of rounds depends on how
 * attempts fail (connect_limits).
 */

#define HARP_OPEN_NS 3000000000ull /* for a family's HARP lanes if other candidates follow */
#define PAIR_PORTS_MAX 64u         /* source ports to try for each pair except the first */
#define PAUSE_NS 50000000ull       /* after the first round; doubled PAUSE_DOUBLES times */
#define PAUSE_DOUBLES 4u           /* so often */

/* When a connect gives up (docs/lanes.md, section 3): after this many rounds, or this part of the
 * connect timeout. */
static const struct {
	unsigned rounds, part; /* part 0: none */
} connect_limits[] = {
	[CONNECT_NOT_TRIED] = { 4, 10 },
	[CONNECT_NO_ANSWER] = { 4, 10 },
	[CONNECT_UNREACHABLE] = { 4, 10 },
	[CONNECT_PROTOCOL_ERROR] = { 4, 0 }, /* a packet may have been corrupted */
	[CONNECT_RESET_AT_HELLO] = { 0, 3 },
	[CONNECT_NOT_ACCEPTED] = { 0, 1 },
};

static void connect_set_stage(struct connector *c, enum connect_stage stage)
{
	atomic_store_explicit(&c->first.stage, (int)stage, memory_order_release);
}

/* ---- attempts that fail --------------------------------------------------------------------- */

/* attempt NULL: out of memory. */
static enum connect_failure connect_failure(const struct attempt *attempt, int error)
{
	if (!attempt)
		return CONNECT_NOT_TRIED;
	if (!attempt->opened)
		return error == -ETIMEDOUT ? CONNECT_NO_ANSWER : CONNECT_UNREACHABLE;
	if (attempt->preamble.step == PREAMBLE_DONE)
		return CONNECT_OUT_OF_MEMORY;
	if (error != -ECONNRESET && error != -ETIMEDOUT)
		return CONNECT_PROTOCOL_ERROR;
	if (error == -ECONNRESET && attempt->preamble.step <= PREAMBLE_READ_CHALLENGE)
		return CONNECT_RESET_AT_HELLO;
	return CONNECT_NOT_ACCEPTED;
}

/* The last candidate of a round has failed. Returns the time of the next round; UINT64_MAX: give
 * up. */
static uint64_t connect_next_round_ns(struct connector *c, uint64_t now_ns)
{
	enum connect_failure failure = c->first.failure;
	unsigned doubles = c->first.rounds < PAUSE_DOUBLES ? c->first.rounds : PAUSE_DOUBLES;
	unsigned part = connect_limits[failure].part;
	uint64_t pause_ns = PAUSE_NS << doubles;

	c->first.failure = CONNECT_NOT_TRIED;
	if (failure == CONNECT_NOT_ACCEPTED || !c->first.retry_since_ns)
		c->first.retry_since_ns = now_ns;
	if (++c->first.rounds >= connect_limits[failure].rounds &&
	    (!part ||
	     now_ns >= c->first.retry_since_ns + plugin_config()->connect_timeout_ns / part))
		return UINT64_MAX;
	/* Spread connects that were dropped together. */
	if (failure >= CONNECT_RESET_AT_HELLO)
		pause_ns += c->comm_id % pause_ns;
	return now_ns + pause_ns;
}

/* The round reports its most informative failure. */
static void connect_record_failure(struct connector *c, const struct attempt *attempt, int error,
				   const char *text)
{
	const struct candidate *candidate = &c->first.candidates.list[c->first.candidate];
	enum connect_failure failure = connect_failure(attempt, error);
	char remote[HARP_ENDPOINT_TEXT_MAX];

	if (failure < c->first.failure)
		return;
	c->first.failure = failure;
	c->first.error = error;
	c->first.reason = failure;
	snprintf(c->first.error_text, sizeof(c->first.error_text), "%s by %s: %s",
		 harp_endpoint_format(&candidate->remote, remote),
		 candidate->harp ? "HARP TCP" : "kernel TCP", text);
}

static void connect_attempt_failed(struct connector *c, const struct attempt *attempt, int error,
				   const char *text, uint64_t now_ns)
{
	/* The listener logs the same. */
	bool differs = c->handle.encrypted != (keyfile_key() != NULL);
	uint64_t next_ns = now_ns;

	if (differs) {
		error = -EPROTONOSUPPORT;
		text = preamble_encryption_differs(c->handle.encrypted);
	}
	connect_record_failure(c, attempt, error, text);
	/* The peer has a comm of this id, and would refuse a second one. */
	if (differs || c->first.failure == CONNECT_OUT_OF_MEMORY) {
		next_ns = UINT64_MAX;
	} else if (++c->first.candidate == c->first.candidates.count) {
		c->first.candidate = 0;
		next_ns = connect_next_round_ns(c, now_ns);
	}
	if (next_ns >= c->first.deadline_ns)
		connect_set_stage(c, CONNECT_FAILED);
	else
		control_timer_set(&c->timer, next_ns);
}

/* ---- attempts ------------------------------------------------------------------------------- */

/* Makes a comm of the authenticated lane. */
static int connect_authenticated(struct attempt *attempt)
{
	struct connector *c = attempt->owner;
	struct comm_options opt;
	int rc;

	handshake_comm_options(&attempt->preamble, COMM_SEND, &opt);
	opt.ctx = c->first.ctx;
	opt.lane.dev = c->dev;
	opt.lane.rtt_ns = attempt->rtt_ns;
	if (opt.multi_lane) {
		opt.lane_lost = connector_lane_lost;
		opt.harp_bytes_max =
			interface_harp_bytes_max(c->dev, &attempt->candidate.remote.addr);
	}
	rc = comm_create(&c->comm, attempt->lane, &opt);
	if (!rc && opt.multi_lane)
		connector_set_comm(c, c->comm, attempt);
	return rc;
}

static void connect_attempt_ended(struct connector *c, int result, uint64_t now_ns)
{
	struct attempt *attempt = c->first.attempt;

	if (result)
		connect_attempt_failed(c, attempt, result, attempt->text, now_ns);
	atomic_store_explicit(&c->first.engine, (struct poller *)NULL, memory_order_release);
	c->first.attempt = NULL;
	attempt_free(attempt);
	if (result)
		return;
	if (c->comm->connector)
		connector_start(c);
	connect_set_stage(c, CONNECT_DONE);
}

/* False: do not try this HARP lane now; text has the reason. */
static bool connect_can_try_harp(struct connector *c, struct attempt *attempt, uint64_t now_ns,
				 const char **text)
{
	const struct candidates *candidates = &c->first.candidates;
	const struct candidate *candidate = &attempt->candidate;
	bool last_resort = candidates->list[candidates->count - 1].harp;

	if (c->first.candidate % candidates->pairs == 0) /* first of its family */
		c->first.harp_deadline_ns = now_ns + HARP_OPEN_NS;
	/* Without kernel candidates, avoided pairs are tried again in later rounds. */
	if ((!last_resort || (!c->first.rounds && candidates->count > 1)) &&
	    peers_is_avoided(&candidate->remote, candidate->engine->index, now_ns)) {
		*text = "no packet arrived a moment ago";
		return false;
	}
	if (!last_resort && now_ns >= c->first.harp_deadline_ns) {
		*text = "no time was left for it";
		return false;
	}
	if (!last_resort && c->first.harp_deadline_ns < c->first.deadline_ns)
		attempt->open_deadline_ns = c->first.harp_deadline_ns;
	if (c->first.candidate % candidates->pairs)
		attempt->ports_max = PAIR_PORTS_MAX;
	return true;
}

static void connect_attempt(struct connector *c, uint64_t now_ns)
{
	struct attempt *attempt = attempt_new(c->attempt_ops);
	const char *text;

	if (!attempt) {
		connect_attempt_failed(c, NULL, -ENOMEM, lane_error_text(-ENOMEM), now_ns);
		return;
	}
	attempt->dev = c->dev;
	attempt->dscp = c->dscp;
	attempt->candidate = c->first.candidates.list[c->first.candidate];
	attempt->listen_id = c->handle.listen_id;
	attempt->comm_id = c->comm_id;
	memcpy(attempt->key, c->handle.secret, PREAMBLE_KEY_BYTES);
	attempt->own.features = c->first.multi_lane ? FEATURE_MULTI_LANE : 0;
	attempt->deadline_ns = attempt->open_deadline_ns = c->first.deadline_ns;
	attempt->authenticated = connect_authenticated;
	attempt->owner = c;
	attempt->result_work = &c->work;
	if (attempt->candidate.harp && !connect_can_try_harp(c, attempt, now_ns, &text)) {
		attempt_free(attempt);
		connect_attempt_failed(c, NULL, -ETIMEDOUT, text, now_ns);
		return;
	}
	c->first.attempt = attempt;
	attempt_begin(attempt, now_ns);
	if (attempt->candidate.harp)
		atomic_store_explicit(&c->first.engine, attempt->poller, memory_order_release);
}

/* Lists the candidates. False: the connect has failed. Queries the kernel's routes. */
static bool connect_find_candidates(struct connector *c)
{
	struct candidates *candidates = &c->first.candidates;

	if (candidates->count)
		return true;
	c->first.error = candidates_find(candidates, c->dev, &c->handle);
	if (c->first.error) {
		connect_set_stage(c, CONNECT_FAILED);
		return false;
	}
	c->first.multi_lane = rails_are_multi_lane(c->dev, candidates->list[0].harp);
	return true;
}

static void connect_advance(struct connector *c, uint64_t now_ns)
{
	int result = c->first.attempt ? attempt_result(c->first.attempt) : ATTEMPT_RUNNING;

	if (atomic_load(&c->first.stage) != CONNECT_RUNNING)
		return;
	if (result != ATTEMPT_RUNNING)
		connect_attempt_ended(c, result, now_ns);
	else if (!c->first.attempt && !c->timer.link.le_prev && connect_find_candidates(c))
		connect_attempt(c, now_ns);
}

/* ---- plugin_connect ------------------------------------------------------------------------- */

static int connect_new(struct plugin_ctx *ctx, int dev, const void *key,
		       const struct handle *handle, int traffic_class, struct connector **out)
{
	struct connector *c =
		connector_new(dev, ctx_dscp(ctx, traffic_class), handle, &attempt_ops);

	*out = NULL;
	if (!c) {
		WARN("%s: cannot connect: out of memory", plugin_device(dev)->ifname);
		return -ENOMEM;
	}
	if (getrandom(&c->comm_id, sizeof(c->comm_id), 0) != sizeof(c->comm_id)) {
		WARN("%s: cannot connect: getrandom() gives no id", plugin_device(dev)->ifname);
		connector_free(c);
		return -EIO;
	}
	atomic_store(&c->advance, connect_advance);
	c->first.ctx = ctx;
	c->first.key = key;
	c->first.deadline_ns = clock_now_ns() + plugin_config()->connect_timeout_ns;
	pthread_mutex_lock(&ctx_lock);
	c->first.next = ctx->connects;
	ctx->connects = c;
	pthread_mutex_unlock(&ctx_lock);
	control_post(&c->work);
	*out = c;
	return 0;
}

static struct connector *connect_find(struct plugin_ctx *ctx, const void *key,
				      const struct handle *handle)
{
	struct connector *c;

	pthread_mutex_lock(&ctx_lock);
	for (c = ctx->connects; c; c = c->first.next) {
		if (c->first.key == key &&
		    !memcmp(c->handle.secret, handle->secret, HANDLE_SECRET_BYTES))
			break;
	}
	pthread_mutex_unlock(&ctx_lock);
	return c;
}

static void connect_unlink(struct connector *c)
{
	pthread_mutex_lock(&ctx_lock);
	LIST_UNLINK(c->first.ctx->connects, c, first.next);
	pthread_mutex_unlock(&ctx_lock);
}

void connect_abort(struct connector *c)
{
	connect_unlink(c);
	connector_stop(c);
	if (c->comm)
		comm_close(c->comm, true);
	connector_free(c);
}

static void connect_report(struct connector *c)
{
	const char *ifname = plugin_device(c->dev)->ifname;
	char text[256];

	if (comm_describe(c->comm, text, sizeof(text)))
		INFO("%s: connected by %s (%s)", ifname, text,
		     c->first.candidates.why_kernel[0] ? c->first.candidates.why_kernel
						       : c->first.error_text);
	else
		INFO("%s: connected by %s", ifname, text);
}

/* The remedy for a failed connect. */
static const char *connect_remedy(const struct connector *c)
{
	int error = c->first.error;

	if (lane_error_remedy(error, NULL))
		return lane_error_remedy(error, NULL);
	if (interface_link_is_down(c->dev))
		return "; the link is down here: a cable, or a memif without its peer";
	if (error == -EPROTONOSUPPORT || error == -EKEYREJECTED) /* the peer answered */
		return "";
	if (c->first.reason == CONNECT_RESET_AT_HELLO)
		return " at HELLO each time: its rank has closed this listener (see the log there: it may have "
		       "failed or been restarted), or unauthenticated peers crowd the port";
	if (c->first.reason == CONNECT_NOT_ACCEPTED) /* the error text names the remedy */
		return error == -ETIMEDOUT ? "" : "; is the peer's rank alive?";
	return "; is the peer's rank alive, and does a firewall let TCP through?";
}

int connect_step(struct plugin_ctx *ctx, int dev, const void *handle_bytes, int traffic_class,
		 struct comm **out)
{
	struct handle handle;
	struct connector *c;
	struct poller *engine;
	char why[192];
	int rc;

	*out = NULL;
	rc = handle_decode(handle_bytes, &handle, why, sizeof(why));
	if (!rc && handle.tuner != path_policy_tuner()) {
		/* Ranks with different algorithms would deadlock. */
		snprintf(
			why, sizeof(why),
			"the peer's NCCL tuner uses other times (%08x, here %08x): give all hosts the "
			"same [tuner] in the profile, or set HARP_TUNER=off",
			handle.tuner, path_policy_tuner());
		rc = -EPROTONOSUPPORT;
	}
	if (rc) {
		WARN("%s: cannot connect: %s", plugin_device(dev)->ifname, why);
		return rc;
	}
	c = connect_find(ctx, handle_bytes, &handle);
	if (!c) {
		interface_open(dev);
		rc = connect_new(ctx, dev, handle_bytes, &handle, traffic_class, &c);
		if (rc)
			return rc;
	}
	engine = atomic_load_explicit(&c->first.engine, memory_order_acquire);
	if (engine)
		poller_poll(engine);
	switch (atomic_load_explicit(&c->first.stage, memory_order_acquire)) {
	case CONNECT_DONE:
		connect_report(c);
		connect_unlink(c);
		*out = c->comm;
		if (!c->comm->connector) /* a single-lane comm needs no connector */
			connector_free(c);
		return 0;
	case CONNECT_FAILED:
		rc = c->first.error;
		if (c->first.error_text[0])
			WARN("%s: cannot connect to %s%s", plugin_device(dev)->ifname,
			     c->first.error_text, connect_remedy(c));
		connect_unlink(c);
		connector_free(c);
		return rc;
	default:
		return 0;
	}
}
