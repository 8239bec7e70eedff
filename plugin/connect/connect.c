/* SPDX-License-Identifier: Apache-2.0 */
/* connect.c - plugin_connect: one connect attempt after the other, until there is a comm. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/util.h"
#include "connect/attempt.h"
#include "connect/ctx.h"
#include "connect/peers.h"
#include "connect/rails.h"
#include "connect/reconnect.h"
#include "connect/rounds.h"
#include "device/device.h"
#include "device/path_policy.h"
#include "poll/control.h"
#include "process/config.h"
#include "process/keyfile.h"
#include "process/log.h"

/*
 * Theory of operation
 *
 * A struct connect lives from the first plugin_connect() with a handle to the one that returns a comm or an error. It is
 * found again by the handle's address and secret. The control thread advances it: it waits for the interface, lists the
 * candidate addresses (HARP lanes first, then kernel lanes), and tries one after the other (attempt.h). After the last
 * one it pauses and begins another round (rounds.h): the listener may be crowded, or gone.
 *
 * The comm is made by the attempt's poller. `stage` is left by the control thread with release and read by the
 * application with acquire; meanwhile the application polls the engine of the present attempt.
 */

#define HARP_OPEN_NS 3000000000ull /* HARP lanes of a family have so long if another kind is left */
#define ANSWER_NS                                                                                  \
	6000000000ull     /* for CHALLENGE: a listener has turned away after 5 s (pending.c) */
#define WAY_PORTS_MAX 64u /* source ports that are tried for each way but the first */

enum connect_stage { CONNECT_RUNNING, CONNECT_DONE, CONNECT_FAILED };

struct connect {
	struct connect *next; /* in ctx's list */
	struct plugin_ctx *ctx;
	const void *key; /* the handle's address */
	int dev;
	uint8_t dscp;
	struct handle handle;
	uint64_t comm_id, deadline_ns;
	atomic_int stage;
	_Atomic(struct poller *) engine; /* of the present attempt; NULL: it has a kernel lane */

	/* The control thread's. */
	struct work begin_work, result_work, end_work, free_work;
	struct interface_waiter waiter; /* for the interface to be opened */
	struct control_timer pause;
	struct candidates candidates; /* none before the first attempt */
	unsigned candidate;           /* of the present attempt */
	struct rounds rounds;
	uint64_t began_ns;         /* the present attempt */
	uint64_t harp_deadline_ns; /* of all HARP lanes of a family, in this round */
	struct attempt *attempt;
	uint8_t lanes;               /* that HELLO says */
	struct reconnect *reconnect; /* of further lanes; NULL: there will be none */
	struct comm *comm;           /* Writer: the attempt's poller */
	int error;
	enum rounds_kind failure; /* where error comes from */
	char error_text[256];     /* empty: the error has been logged */
};

/* ---- one attempt ------------------------------------------------------------------------------ */

static void connect_leave(struct connect *c, enum connect_stage stage)
{
	atomic_store_explicit(&c->stage, (int)stage, memory_order_release);
}

/* How the attempt that has just ended failed. */
static enum rounds_kind connect_failure(const struct attempt *attempt, int error)
{
	if (!attempt)
		return ROUNDS_REFUSED;
	if (error == -EKEYREJECTED)
		return ROUNDS_WRONG;
	if (!attempt->opened || (error != -ECONNRESET && error != -ETIMEDOUT))
		return ROUNDS_REFUSED;
	if (error == -ECONNRESET && attempt->preamble.step <= PREAMBLE_READ_CHALLENGE)
		return ROUNDS_UNKNOWN;
	return ROUNDS_TURNED_AWAY;
}

static enum rounds_detail connect_detail(const struct attempt *attempt, int error)
{
	if (!attempt)
		return ROUNDS_NOT_TRIED;
	if (attempt->opened)
		return ROUNDS_PEER;
	return error == -ETIMEDOUT ? ROUNDS_SILENCE : ROUNDS_NO_WAY;
}

/* attempt NULL: the candidate was not tried. */
static void connect_attempt_failed(struct connect *c, const struct attempt *attempt, int error,
				   const char *text, uint64_t now_ns)
{
	const struct candidate *candidate = &c->candidates.list[c->candidate];
	char remote[HARP_ENDPOINT_TEXT_MAX];
	enum rounds_kind failure = connect_failure(attempt, error);
	bool over = c->handle.encrypted != (keyfile_key() != NULL), cut_short;

	/* The listener knows it now too, and logs the same. */
	if (over) {
		error = -EPROTONOSUPPORT;
		text = preamble_encryption_differs(c->handle.encrypted);
	}
	cut_short = attempt && error == -ETIMEDOUT && now_ns >= c->deadline_ns &&
		    now_ns < c->began_ns + ANSWER_NS;
	if (rounds_reports(&c->rounds, connect_detail(attempt, error), cut_short)) {
		c->error = error;
		c->failure = failure;
		snprintf(c->error_text, sizeof(c->error_text), "%s by %s: %s",
			 harp_endpoint_format(&candidate->remote, remote),
			 candidate->harp ? "HARP TCP" : "kernel TCP", text);
	}
	rounds_note(&c->rounds, failure);
	if (++c->candidate == c->candidates.count) {
		c->candidate = 0;
		over |= !rounds_again(&c->rounds, now_ns);
	}
	if (over || now_ns >= c->deadline_ns || c->rounds.not_before_ns >= c->deadline_ns)
		connect_leave(c, CONNECT_FAILED);
	else
		control_timer_set(&c->pause, c->candidate ? now_ns : c->rounds.not_before_ns);
}

/* The lane is proved: it becomes a comm. */
static int connect_proved(struct attempt *attempt)
{
	struct connect *c = attempt->owner;
	const struct preamble *p = &attempt->preamble;
	struct comm_options opt = {
		.ctx = c->ctx,
		.side = COMM_SEND,
		.multi_lane = preamble_is_multi_lane(p),
		.buffered = (p->own.features & FEATURE_BUFFERED) != 0,
		.no_credit = (p->own.features & FEATURE_NO_CREDIT) != 0,
		.comm_id = c->comm_id,
		.reconnect_wait_ns = COMM_RECONNECT_WAIT_NS,
		.lane = { .dev = c->dev, .sent_bytes = p->sent_bytes, .rtt_ns = attempt->rtt_ns }
	};
	int rc;

	opt.eager_bytes =
		p->own.eager_bytes < p->peer.eager_bytes ? p->own.eager_bytes : p->peer.eager_bytes;
	if (opt.multi_lane) {
		opt.lane_lost = reconnect_lost;
		opt.harp_bytes_max =
			interface_harp_bytes_max(c->dev, &attempt->candidate.remote.addr);
	}
	rc = comm_create(&c->comm, attempt->lane, &opt);
	if (!rc && opt.multi_lane)
		reconnect_made(c->reconnect, c->comm, attempt);
	return rc;
}

static void connect_result_run(struct work *work, uint64_t now_ns)
{
	struct connect *c = container_of(work, struct connect, result_work);
	struct attempt *attempt = c->attempt;
	int result = attempt ? attempt_result(attempt) : ATTEMPT_RUNNING;

	if (result == ATTEMPT_RUNNING)
		return;
	if (result)
		connect_attempt_failed(c, attempt, result, attempt->text, now_ns);
	atomic_store_explicit(&c->engine, (struct poller *)NULL, memory_order_release);
	c->attempt = NULL;
	attempt_free(attempt);
	if (!result)
		connect_leave(c, CONNECT_DONE);
}

/* False: it is no use to try this HARP lane now; text says why. */
static bool connect_may_try(struct connect *c, struct attempt *attempt, uint64_t now_ns, char *text,
			    size_t len)
{
	const struct candidate *candidate = &attempt->candidate;
	bool last_resort = c->candidates.list[c->candidates.count - 1].harp;
	unsigned avoided_s;

	if (c->candidate % c->candidates.ways == 0) /* the first of its family */
		c->harp_deadline_ns = now_ns + HARP_OPEN_NS;
	avoided_s = peers_avoided_s(&candidate->remote, engine_index(candidate->engine), now_ns);
	/* Where HARP is all there is, what failed is tried again after all the rest. */
	if (avoided_s && (!last_resort || (!c->rounds.rounds && c->candidates.count > 1))) {
		snprintf(text, len, "no packet found the way %u s ago", avoided_s);
		return false;
	}
	if (!last_resort && now_ns >= c->harp_deadline_ns) {
		snprintf(text, len, "others took all the time");
		return false;
	}
	if (!last_resort && c->harp_deadline_ns < c->deadline_ns)
		attempt->open_deadline_ns = c->harp_deadline_ns;
	if (c->candidate % c->candidates.ways)
		attempt->ports_max = WAY_PORTS_MAX;
	return true;
}

static void connect_next_attempt(struct connect *c, uint64_t now_ns)
{
	struct attempt *attempt = attempt_new();
	char text[96];

	if (!attempt) {
		connect_attempt_failed(c, NULL, -ENOMEM, lane_error_text(-ENOMEM), now_ns);
		return;
	}
	attempt->dev = c->dev;
	attempt->dscp = c->dscp;
	attempt->candidate = c->candidates.list[c->candidate];
	attempt->listen_id = c->handle.listen_id;
	attempt->comm_id = c->comm_id;
	memcpy(attempt->key, c->handle.secret, PREAMBLE_KEY_BYTES);
	attempt->own.lanes = c->lanes;
	attempt->answer_ns = ANSWER_NS;
	attempt->deadline_ns = attempt->open_deadline_ns = c->deadline_ns;
	attempt->proved = connect_proved;
	attempt->owner = c;
	attempt->result_work = &c->result_work;
	if (attempt->candidate.harp && !connect_may_try(c, attempt, now_ns, text, sizeof(text))) {
		attempt_free(attempt);
		connect_attempt_failed(c, NULL, -ETIMEDOUT, text, now_ns);
		return;
	}
	c->began_ns = now_ns;
	c->attempt = attempt;
	attempt_begin(attempt, now_ns);
	if (attempt->candidate.harp)
		atomic_store_explicit(&c->engine, attempt->poller, memory_order_release);
}

static void connect_paused(struct control_timer *timer, uint64_t now_ns)
{
	connect_next_attempt(container_of(timer, struct connect, pause), now_ns);
}

/* ---- the first attempt ------------------------------------------------------------------------ */

/* Further lanes are reconnect.c's; without memory for it the comm has one lane. */
static uint8_t connect_plan(struct connect *c)
{
	bool harp = c->candidates.list[0].harp || (c->handle.opening && !c->candidates.same_host &&
						   interface_engines(c->dev, NULL, 0));
	unsigned lanes = rails_lanes(c->dev, harp);

	if (lanes > 1)
		c->reconnect = reconnect_new(c->dev, c->dscp, &c->handle);
	return c->reconnect ? (uint8_t)lanes : 1;
}

/* Also when the interface has been opened. Asks the kernel for routes. */
static void connect_begin(struct connect *c, uint64_t now_ns)
{
	if (interface_wait(c->dev, &c->waiter))
		return;
	c->error = candidates_find(&c->candidates, c->dev, &c->handle);
	if (c->error) {
		connect_leave(c, CONNECT_FAILED);
		return;
	}
	c->lanes = connect_plan(c);
	connect_next_attempt(c, now_ns);
}

static void connect_begin_run(struct work *work, uint64_t now_ns)
{
	connect_begin(container_of(work, struct connect, begin_work), now_ns);
}

static void connect_opened_run(struct work *work, uint64_t now_ns)
{
	connect_begin(container_of(work, struct connect, waiter.work), now_ns);
}

/* ---- plugin_connect --------------------------------------------------------------------------- */

static void connect_free_run(struct work *work, uint64_t now_ns)
{
	(void)now_ns;
	free(container_of(work, struct connect, free_work));
}

/* What was posted for the connect before has run. */
static void connect_end_run(struct work *work, uint64_t now_ns)
{
	struct connect *c = container_of(work, struct connect, end_work);

	(void)now_ns;
	control_timer_set(&c->pause, UINT64_MAX);
	attempt_free(c->attempt);
	c->attempt = NULL;
	if (c->comm) {
		reconnect_stop(c->comm->reconnect);
		comm_close(c->comm, true);
	}
	reconnect_free(c->reconnect);
	candidates_forget(&c->candidates);
	control_post(&c->free_work); /* after what the attempt may have posted */
}

static int connect_new(struct plugin_ctx *ctx, int dev, const void *key,
		       const struct handle *handle, int traffic_class, struct connect **out)
{
	struct connect *c = calloc(1, sizeof(*c));

	*out = NULL;
	if (!c) {
		WARN("%s: cannot connect: out of memory", plugin_device(dev)->ifname);
		return -ENOMEM;
	}
	c->begin_work.run = connect_begin_run;
	c->waiter.work.run = connect_opened_run;
	c->result_work.run = connect_result_run;
	c->end_work.run = connect_end_run;
	c->free_work.run = connect_free_run;
	c->pause.run = connect_paused;
	c->ctx = ctx;
	c->key = key;
	c->dev = dev;
	c->dscp = ctx_dscp(ctx, traffic_class);
	c->handle = *handle;
	c->deadline_ns = clock_now_ns() + plugin_config()->connect_timeout_ns;
	if (getrandom(&c->comm_id, sizeof(c->comm_id), 0) != sizeof(c->comm_id)) {
		WARN("%s: cannot connect: getrandom() gives no id", plugin_device(dev)->ifname);
		free(c);
		return -EIO;
	}
	rounds_init(&c->rounds, plugin_config()->connect_timeout_ns, c->comm_id);
	pthread_mutex_lock(&ctx_lock);
	c->next = ctx->connects;
	ctx->connects = c;
	pthread_mutex_unlock(&ctx_lock);
	control_post(&c->begin_work);
	*out = c;
	return 0;
}

static struct connect *connect_find(struct plugin_ctx *ctx, const void *key,
				    const struct handle *handle)
{
	struct connect *c;

	pthread_mutex_lock(&ctx_lock);
	for (c = ctx->connects; c; c = c->next) {
		if (c->key == key && !memcmp(c->handle.secret, handle->secret, HANDLE_SECRET_BYTES))
			break;
	}
	pthread_mutex_unlock(&ctx_lock);
	return c;
}

static void connect_unlink(struct connect *c)
{
	pthread_mutex_lock(&ctx_lock);
	LIST_UNLINK(c->ctx->connects, c, next);
	pthread_mutex_unlock(&ctx_lock);
}

void connect_free(struct connect *c)
{
	connect_unlink(c);
	interface_cancel(&c->waiter);
	control_call(&c->end_work);
}

/* Its pollers may be busy: the control thread waits for them. */
static void connect_end(struct connect *c)
{
	connect_unlink(c);
	control_post(&c->end_work);
}

static void connect_report(struct connect *c)
{
	char text[256];

	if (comm_describe(c->comm, text, sizeof(text)))
		INFO("%s: connected by %s (%s)", plugin_device(c->dev)->ifname, text,
		     c->candidates.why_kernel[0] ? c->candidates.why_kernel : c->error_text);
	else
		INFO("%s: connected by %s", plugin_device(c->dev)->ifname, text);
}

/* What to look at when a connect has failed. */
static const char *connect_remedy(const struct connect *c)
{
	int error = c->error;

	if (lane_error_remedy(error, NULL))
		return lane_error_remedy(error, NULL);
	if (interface_link_is_down(c->dev))
		return "; the link is down here: a cable, or a memif without its peer";
	if (error == -EPROTONOSUPPORT || error == -EKEYREJECTED) /* it answered */
		return "";
	if (c->failure == ROUNDS_UNKNOWN)
		return " at HELLO each time: its rank has closed this listener (see the log there: it may have "
		       "failed or been restarted), or unauthenticated peers crowd the port";
	if (c->failure == ROUNDS_TURNED_AWAY) /* silence has its question already */
		return error == -ETIMEDOUT ? "" : "; is the peer's rank alive?";
	return "; is the peer's rank alive, and does a firewall let TCP through?";
}

int connect_step(struct plugin_ctx *ctx, int dev, const void *handle_bytes, int traffic_class,
		 struct comm **out)
{
	struct handle handle;
	struct connect *c;
	struct poller *engine;
	char why[192];
	int rc;

	*out = NULL;
	rc = handle_decode(handle_bytes, &handle, why, sizeof(why));
	if (!rc && handle.tuner != path_policy_tuner()) {
		/* Ranks that choose different algorithms wait for each other for ever. */
		snprintf(
			why, sizeof(why),
			"the peer's NCCL tuner goes by other times (%08x, here %08x): give all hosts the "
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
		rc = connect_new(ctx, dev, handle_bytes, &handle, traffic_class, &c);
		if (rc)
			return rc;
	}
	engine = atomic_load_explicit(&c->engine, memory_order_acquire);
	if (engine)
		poller_poll(engine);
	switch (atomic_load_explicit(&c->stage, memory_order_acquire)) {
	case CONNECT_DONE:
		connect_report(c);
		if (c->comm->reconnect) {
			reconnect_begin(c->reconnect);
			c->reconnect = NULL; /* the comm's */
		}
		*out = c->comm;
		c->comm = NULL;
		connect_end(c);
		return 0;
	case CONNECT_FAILED:
		rc = c->error;
		if (c->error_text[0])
			WARN("%s: cannot connect to %s%s", plugin_device(dev)->ifname,
			     c->error_text, connect_remedy(c));
		connect_end(c);
		return rc;
	default:
		return 0;
	}
}
