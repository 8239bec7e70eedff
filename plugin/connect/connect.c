/* SPDX-License-Identifier: Apache-2.0 */
/* connect.c - plugin_connect: candidates, lanes, preamble, until there is a comm. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>

#include "device/path_policy.h"
#include "connect/ctx.h"
#include "connect/attempt.h"
#include "process/forkguard.h"
#include "poll/control.h"
#include "process/keyfile.h"
#include "connect/peers.h"
#include "connect/rails.h"
#include "connect/rounds.h"
#include "connect/reconnect.h"
#include "process/log.h"
#include "process/config.h"
#include "device/device.h"

/*
 * Theory of operation
 *
 * A struct connect lives from the first plugin_connect() with a handle to the one that returns a comm or
 * an error; it is found again by the handle's address and secret. It has a list of candidates, best
 * first: HARP lanes, then kernel lanes, each by the families that both sides have. An attempt takes the
 * next candidate, opens a lane and runs the preamble; when it fails the next one is tried, and after the
 * last a pause and another round (retry.c): others may have pushed us out (pending.c), or the listener may be gone.
 *
 * A lane is opened and proved by dial.c, a HARP lane from a source port that leads to both queues. Where none did, that
 * is remembered for some seconds (peers.c), and the next candidate is taken at once: HARP lanes between other
 * instances of ours and other ports of the peer's, which share ports and time, then kernel lanes.
 *
 * A kernel lane is the control thread's until it is proved: it answers when something comes, and
 * not when the application, which may have hundreds to poll, comes round to this one. The acceptor
 * does not wait for long.
 *
 * `stage` says who advances it. IDLE: the application's thread, until the pause is over. STARTING:
 * a task of the control thread. The first one opens the interface and asks for routes, which may
 * take long; each chooses the attempt's driver. RUNNING: the baton of that driver. DONE, FAILED:
 * the application's again. Each stage is left with release, the application looks with acquire. The
 * control thread frees a connect that has ended, since that waits for its drivers.
 */

#define HARP_OPEN_NS 3000000000ull /* HARP lanes of a family have so long if another kind is left */
#define ANSWER_NS 6000000000ull    /* for CHALLENGE: a door has turned away after 5 s (pending.c) */
#define LOOK_NS 1000000000ull      /* at the time, for a lane that is the control thread's */
#define WAY_PORTS_MAX 64u          /* tried for each way but the first */

enum connect_stage {
	CONNECT_IDLE,
	CONNECT_STARTING,
	CONNECT_RUNNING,
	CONNECT_DONE,
	CONNECT_FAILED,
};

struct connect {
	struct connect *next; /* in ctx's list */
	struct plugin_ctx *ctx;
	const void *key; /* the handle's address */
	int dev;
	uint8_t dscp;
	struct handle handle;
	struct candidates candidates; /* none before the first attempt */
	unsigned candidate;           /* of the present attempt */
	struct rounds rounds;
	atomic_int stage;
	struct driver *driver; /* of the present attempt */
	/* The control thread's: begins an attempt, ends this. */
	struct work begin_work, end_work;
	struct interface_waiter waiter; /* for the interface to be opened */
	struct work start_work, work, stop_work;
	uint64_t comm_id;
	uint64_t deadline_ns, look_ns;
	uint64_t began_ns;            /* the present attempt */
	uint64_t harp_deadline_ns;    /* of all HARP lanes of a family, in this round */
	struct attempt attempt;       /* the present attempt */
	struct control_source source; /* of a kernel lane; the control thread's */
	bool waits_for_open;
	struct reconnect *reconnect; /* of further lanes; NULL: there will be none */
	struct comm *comm;
	int error;
	enum rounds_kind failure; /* where error comes from */
	char error_text[256];     /* empty: the error has been logged */
};

struct connect *connect_next(struct connect *c)
{
	return c->next;
}

/* ---- one attempt; baton held ------------------------------------------------------------------ */

static void connect_leave(struct connect *c, enum connect_stage stage)
{
	atomic_store_explicit(&c->stage, (int)stage, memory_order_release);
}

/* How the dial that has just ended failed. */
static enum rounds_kind connect_failure(const struct attempt *attempt, int error)
{
	if (error == -EKEYREJECTED)
		return ROUNDS_WRONG;
	if (!attempt->opened || (error != -ECONNRESET && error != -ETIMEDOUT))
		return ROUNDS_REFUSED;
	if (error == -ECONNRESET && attempt->preamble.step <= PREAMBLE_READ_CHALLENGE)
		return ROUNDS_UNKNOWN;
	return ROUNDS_TURNED_AWAY;
}

static enum rounds_news connect_news(const struct connect *c, int error)
{
	if (!c->began_ns)
		return ROUNDS_NOT_TRIED;
	if (c->attempt.opened)
		return ROUNDS_PEER;
	return error == -ETIMEDOUT ? ROUNDS_SILENCE : ROUNDS_NO_WAY;
}

static void connect_attempt_failed(struct connect *c, int error, const char *text, uint64_t now_ns)
{
	const struct candidate *candidate = &c->candidates.list[c->candidate];
	char remote[HARP_ENDPOINT_TEXT_MAX];
	enum rounds_kind failure = connect_failure(&c->attempt, error);
	bool over = c->handle.sealed != (keyfile_key() != NULL), cut_short;

	/* The listener has heard it now too: it says the same there. */
	if (over) {
		error = -EPROTONOSUPPORT;
		text = preamble_sealed_differs(c->handle.sealed);
	}
	cut_short =
		error == -ETIMEDOUT && now_ns >= c->deadline_ns && now_ns < c->began_ns + ANSWER_NS;
	if (rounds_tells(&c->rounds, connect_news(c, error), cut_short)) {
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
	connect_leave(c,
		      over || now_ns >= c->deadline_ns || c->rounds.not_before_ns >= c->deadline_ns
			      ? CONNECT_FAILED
			      : CONNECT_IDLE);
}

static int connect_finish(struct connect *c)
{
	const struct preamble *p = &c->attempt.preamble;
	struct comm_options opt = { .ctx = c->ctx,
				    .side = COMM_SEND,
				    .several = preamble_several(p),
				    .kept = (p->own.features & FEATURE_KEPT) != 0,
				    .comm_id = c->comm_id,
				    .revive_ns = COMM_REVIVE_NS };
	int rc;

	opt.lane.dev = c->dev;
	opt.lane.sent_bytes = p->sent_bytes;
	opt.lane.rtt_ns = c->attempt.rtt_ns;
	opt.eager_bytes =
		p->own.eager_bytes < p->peer.eager_bytes ? p->own.eager_bytes : p->peer.eager_bytes;
	opt.no_credit = (p->own.features & FEATURE_NO_CREDIT) != 0;
	if (opt.several) {
		opt.lane_lost = reconnect_lost;
		opt.harp_bytes_max =
			interface_harp_bytes_max(c->dev, &c->attempt.candidate.remote.addr);
	}
	rc = comm_create(&c->comm, c->attempt.lane, &opt);
	if (!rc && opt.several)
		reconnect_made(c->reconnect, c->comm, &c->attempt);
	return rc;
}

static void connect_ended(struct attempt *attempt, int error, const char *text, uint64_t now_ns)
{
	struct connect *c = attempt->owner;

	control_unwatch(&c->source);
	if (!error)
		error = connect_finish(c);
	if (error && attempt->lane) {
		text = lane_error_text(error);
		attempt_stop(attempt);
	}
	attempt->lane = NULL;
	if (error)
		connect_attempt_failed(c, error, text, now_ns);
	else
		connect_leave(c, CONNECT_DONE);
}

static void connect_run(struct work *work, uint64_t now_ns)
{
	struct connect *c = (struct connect *)((char *)work - offsetof(struct connect, work));

	if (atomic_load_explicit(&c->stage, memory_order_relaxed) == CONNECT_RUNNING)
		attempt_advance(&c->attempt, now_ns);
}

static void connect_ready(struct control_source *source, uint64_t now_ns)
{
	struct connect *c = (struct connect *)((char *)source - offsetof(struct connect, source));

	attempt_advance(&c->attempt, now_ns);
	if (c->source.watched && c->waits_for_open && c->attempt.opened) {
		c->waits_for_open = false;
		control_rewatch(&c->source, EPOLLIN);
	}
}

/* A kernel lane has been begun. */
static void connect_watch(struct connect *c, uint64_t now_ns)
{
	struct attempt *attempt = &c->attempt;
	int rc = control_watch(&c->source, lane_kernel_fd(attempt->lane), EPOLLIN | EPOLLOUT);

	c->waits_for_open = true;
	if (!rc)
		return;
	attempt_stop(attempt);
	connect_attempt_failed(c, rc, lane_error_text(rc), now_ns);
}

/* False: it is no use to try this HARP lane now; text says why. */
static bool connect_may_try(struct connect *c, const struct candidate *candidate, uint64_t now_ns,
			    char *text, size_t len)
{
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
		c->attempt.open_deadline_ns = c->harp_deadline_ns;
	if (c->candidate % c->candidates.ways)
		c->attempt.ports_max = WAY_PORTS_MAX;
	return true;
}

static void connect_start_run(struct work *work, uint64_t now_ns)
{
	struct connect *c = (struct connect *)((char *)work - offsetof(struct connect, start_work));
	const struct candidate *candidate = &c->candidates.list[c->candidate];
	char text[96];

	c->attempt.candidate = *candidate;
	c->attempt.driver = c->driver;
	c->attempt.opened = false;
	c->attempt.ports_max = 0;
	c->began_ns = 0;
	c->attempt.deadline_ns = c->attempt.open_deadline_ns = c->deadline_ns;
	if (candidate->harp && !connect_may_try(c, candidate, now_ns, text, sizeof(text))) {
		connect_attempt_failed(c, -ETIMEDOUT, text, now_ns);
		return;
	}
	c->began_ns = now_ns;
	connect_leave(c, CONNECT_RUNNING);
	attempt_start(&c->attempt, now_ns);
	if (!candidate->harp && c->attempt.lane)
		connect_watch(c, now_ns);
}

static void connect_stop_run(struct work *work, uint64_t now_ns)
{
	struct connect *c = (struct connect *)((char *)work - offsetof(struct connect, stop_work));

	(void)now_ns;
	control_unwatch(&c->source);
	attempt_stop(&c->attempt);
}

/* ---- starting an attempt; the control thread, no lock and no baton held ----------------------- */

/* The lanes to come are upkeep.c's; without memory for it the comm has one. */
static uint8_t connect_plan(struct connect *c)
{
	char why[384];
	bool harp = c->candidates.list[0].harp || (c->handle.opening && !c->candidates.same_host &&
						   interface_engines(c->dev, why, sizeof(why)));
	unsigned lanes = rails_lanes(c->dev, harp);

	if (lanes > 1)
		c->reconnect = reconnect_new(c->dev, c->dscp, &c->handle);
	return c->reconnect ? (uint8_t)lanes : 1;
}

static void connect_prepare_dial(struct connect *c)
{
	struct attempt *attempt = &c->attempt;

	attempt->dev = c->dev;
	attempt->dscp = c->dscp;
	attempt->listen_id = c->handle.listen_id;
	attempt->comm_id = c->comm_id;
	memcpy(attempt->key, c->handle.secret, PREAMBLE_KEY_BYTES);
	attempt->own.lanes = connect_plan(c);
	attempt->answer_ns = ANSWER_NS;
	attempt->ended = connect_ended;
	attempt->owner = c;
}

/* Before the first attempt, when the interface is open: asks the kernel for routes. */
static int connect_prepare(struct connect *c)
{
	int rc = candidates_find(&c->candidates, c->dev, &c->handle);

	if (!rc)
		connect_prepare_dial(c);
	return rc;
}

/* Runs work under the poller of a driver, and returns when it has run; the control thread. */
static void connect_call(struct driver *driver, struct work *work)
{
	if (driver == control_driver())
		control_call(work);
	else
		driver_call(driver, work);
}

/* Of the next attempt. */
static struct driver *connect_driver(struct connect *c)
{
	const struct candidate *candidate = &c->candidates.list[c->candidate];

	return candidate->harp ? engine_driver(candidate->engine) : control_driver();
}

static void connect_begin(struct connect *c)
{
	struct driver *driver;

	if (!c->candidates.count) {
		if (interface_wait(c->dev, &c->waiter))
			return;
		c->error = connect_prepare(c);
		if (c->error) {
			connect_leave(c, CONNECT_FAILED);
			return;
		}
	}
	driver = connect_driver(c);
	if (driver != c->driver) /* nothing of this connect stays on the list of the old one */
		connect_call(c->driver, &c->stop_work);
	c->driver = driver;
	connect_call(driver, &c->start_work);
}

static void connect_begin_run(struct work *work, uint64_t now_ns)
{
	(void)now_ns;
	connect_begin((struct connect *)((char *)work - offsetof(struct connect, begin_work)));
}

/* The interface is open. */
static void connect_opened_run(struct work *work, uint64_t now_ns)
{
	(void)now_ns;
	connect_begin((struct connect *)((char *)work - offsetof(struct connect, waiter.work)));
}

/* ---- plugin_connect --------------------------------------------------------------------------- */

/* The control thread: what was posted for the connect before has run. */
static void connect_end_run(struct work *work, uint64_t now_ns)
{
	struct connect *c = (struct connect *)((char *)work - offsetof(struct connect, end_work));

	(void)now_ns;
	connect_call(c->driver,
		     &c->stop_work); /* c->work, if it is still queued there, runs before */
	if (c->comm) {
		reconnect_stop(c->comm->reconnect);
		comm_close(c->comm, true);
	}
	reconnect_free(c->reconnect);
	candidates_forget(&c->candidates);
	free(c);
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
	c->end_work.run = connect_end_run;
	c->start_work.run = connect_start_run;
	c->work.run = connect_run;
	c->stop_work.run = connect_stop_run;
	c->source.ready = connect_ready;
	c->ctx = ctx;
	c->key = key;
	c->dev = dev;
	c->dscp = ctx_dscp(ctx, traffic_class);
	c->handle = *handle;
	c->driver = control_driver();
	c->deadline_ns = driver_clock_ns() + plugin_config()->connect_timeout_ns;
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
	struct connect **at;

	pthread_mutex_lock(&ctx_lock);
	for (at = &c->ctx->connects; *at && *at != c; at = &(*at)->next)
		;
	if (*at)
		*at = c->next;
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

	comm_describe(c->comm, text, sizeof(text));
	if (comm_is_polled(c->comm))
		INFO("%s: connected by %s (%s)", plugin_device(c->dev)->ifname, text,
		     c->candidates.why_kernel[0] ? c->candidates.why_kernel : c->error_text);
	else
		INFO("%s: connected by %s", plugin_device(c->dev)->ifname, text);
}

/* What to look at when a connect has failed. */
static const char *connect_remedy(const struct connect *c)
{
	int error = c->error;

	if (lane_error_remedy(error))
		return lane_error_remedy(error);
	if (interface_link_is_down(c->dev))
		return "; the link is down here: a cable, or a memif without its peer";
	if (error == -EPROTONOSUPPORT || error == -EKEYREJECTED) /* it answered */
		return "";
	if (c->failure == ROUNDS_UNKNOWN)
		return " at HELLO each time: its rank has closed this listener (see the log there: it may have "
		       "failed or been restarted), or strangers crowd the port";
	if (c->failure == ROUNDS_TURNED_AWAY) /* silence has its question already */
		return error == -ETIMEDOUT ? "" : "; is the peer's rank alive?";
	return "; is the peer's rank alive, and does a firewall let TCP through?";
}

/* The control thread sees what comes; it does not look at the time. */
static bool connect_must_look(struct connect *c)
{
	uint64_t now_ns = driver_clock_ns();

	if (c->driver == control_driver() && now_ns < c->look_ns && now_ns < c->deadline_ns)
		return false;
	c->look_ns = now_ns + LOOK_NS;
	return true;
}

int connect_step(struct plugin_ctx *ctx, int dev, const void *handle_bytes, int traffic_class,
		 struct comm **out)
{
	struct handle handle;
	struct connect *c;
	uint64_t now_ns;
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
	switch (atomic_load_explicit(&c->stage, memory_order_acquire)) {
	case CONNECT_IDLE:
		now_ns = driver_clock_ns();
		if (now_ns < c->rounds.not_before_ns)
			return 0;
		c->look_ns = now_ns + LOOK_NS;
		connect_leave(c, CONNECT_STARTING);
		control_post(&c->begin_work);
		return 0;
	case CONNECT_RUNNING:
		if (connect_must_look(c))
			driver_post(c->driver, &c->work);
		if (c->driver != control_driver())
			driver_poll(c->driver);
		break;
	default:
		break;
	}
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
