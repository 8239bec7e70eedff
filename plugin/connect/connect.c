/* SPDX-License-Identifier: Apache-2.0 */
/* connect.c - plugin_connect: candidates, lanes, preamble, until there is a comm. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>

#include "device/ctx.h"
#include "connect/dial.h"
#include "process/forkguard.h"
#include "poll/keeper.h"
#include "process/keyfile.h"
#include "connect/peers.h"
#include "connect/rails.h"
#include "connect/retry.h"
#include "connect/upkeep.h"

/*
 * Theory of operation
 *
 * A struct connect lives from the first plugin_connect() with a handle to the one that returns a comm or
 * an error; it is found again by the handle's address and secret. It has a list of candidates, best
 * first: HARP lanes, then kernel lanes, each by the families that both sides have. An attempt takes the
 * next candidate, opens a lane and runs the preamble; when it fails the next one is tried, and after the
 * last a pause and another round (retry.c): others may have pushed us out (guest.c), or the listener may be gone.
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
#define ANSWER_NS 6000000000ull    /* for CHALLENGE: a door has turned away after 5 s (guest.c) */
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
	struct retry retry;
	atomic_int stage;
	struct driver *driver;   /* of the present attempt */
	struct keeper_task task; /* that starts an attempt, or frees this */
	struct work start_work, work, stop_work;
	uint64_t comm_id;
	uint64_t deadline_ns, look_ns;
	uint64_t began_ns;           /* the present attempt */
	uint64_t harp_deadline_ns;   /* of all HARP lanes of a family, in this round */
	struct dial dial;            /* the present attempt */
	struct keeper_source source; /* of a kernel lane; the keeper's baton */
	bool waits_for_open;
	struct upkeep *upkeep; /* of further lanes; NULL: there will be none */
	struct comm *comm;
	int error;
	enum retry_kind failure; /* where error comes from */
	char error_text[256];    /* empty: the error has been logged */
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
static enum retry_kind connect_failure(const struct dial *dial, int error)
{
	if (error == -EKEYREJECTED)
		return RETRY_WRONG;
	if (!dial->opened || (error != -ECONNRESET && error != -ETIMEDOUT))
		return RETRY_REFUSED;
	if (error == -ECONNRESET && dial->preamble.step <= PREAMBLE_READ_CHALLENGE)
		return RETRY_UNKNOWN;
	return RETRY_TURNED_AWAY;
}

static enum retry_news connect_news(const struct connect *c, int error)
{
	if (!c->began_ns)
		return RETRY_NOT_TRIED;
	if (c->dial.opened)
		return RETRY_PEER;
	return error == -ETIMEDOUT ? RETRY_SILENCE : RETRY_NO_WAY;
}

static void connect_attempt_failed(struct connect *c, int error, const char *text, uint64_t now_ns)
{
	const struct candidate *candidate = &c->candidates.list[c->candidate];
	char remote[HARP_ENDPOINT_TEXT_MAX];
	enum retry_kind failure = connect_failure(&c->dial, error);
	bool over = c->handle.sealed != (keyfile_key() != NULL), cut_short;

	/* The listener has heard it now too: it says the same there. */
	if (over) {
		error = -EPROTONOSUPPORT;
		text = preamble_sealed_differs(c->handle.sealed);
	}
	cut_short =
		error == -ETIMEDOUT && now_ns >= c->deadline_ns && now_ns < c->began_ns + ANSWER_NS;
	if (retry_tells(&c->retry, connect_news(c, error), cut_short)) {
		c->error = error;
		c->failure = failure;
		snprintf(c->error_text, sizeof(c->error_text), "%s by %s: %s",
			 harp_endpoint_format(&candidate->remote, remote),
			 candidate->harp ? "HARP TCP" : "kernel TCP", text);
	}
	retry_note(&c->retry, failure);
	if (++c->candidate == c->candidates.count) {
		c->candidate = 0;
		over |= !retry_again(&c->retry, now_ns);
	}
	connect_leave(c,
		      over || now_ns >= c->deadline_ns || c->retry.not_before_ns >= c->deadline_ns
			      ? CONNECT_FAILED
			      : CONNECT_IDLE);
}

static int connect_finish(struct connect *c)
{
	const struct preamble *p = &c->dial.preamble;
	struct comm_options opt = { .ctx = c->ctx,
				    .side = COMM_SEND,
				    .several = preamble_several(p),
				    .kept = (p->own.features & FEATURE_KEPT) != 0,
				    .comm_id = c->comm_id,
				    .revive_ns = COMM_REVIVE_NS };
	int rc;

	opt.lane.dev = c->dev;
	opt.lane.sent_bytes = p->sent_bytes;
	opt.lane.rtt_ns = c->dial.rtt_ns;
	opt.eager_bytes =
		p->own.eager_bytes < p->peer.eager_bytes ? p->own.eager_bytes : p->peer.eager_bytes;
	opt.no_credit = (p->own.features & FEATURE_NO_CREDIT) != 0;
	if (opt.several) {
		opt.lane_lost = upkeep_lost;
		opt.harp_bytes_max = ctx_harp_bytes_max(c->dev, &c->dial.candidate.remote.addr);
	}
	rc = comm_create(&c->comm, c->dial.lane, &opt);
	if (!rc && opt.several)
		upkeep_made(c->upkeep, c->comm, &c->dial);
	return rc;
}

static void connect_ended(struct dial *dial, int error, const char *text, uint64_t now_ns)
{
	struct connect *c = dial->owner;

	keeper_unwatch(&c->source);
	if (!error)
		error = connect_finish(c);
	if (error && dial->lane) {
		text = lane_error_text(error);
		dial_stop(dial);
	}
	dial->lane = NULL;
	if (error)
		connect_attempt_failed(c, error, text, now_ns);
	else
		connect_leave(c, CONNECT_DONE);
}

static void connect_run(struct work *work, uint64_t now_ns)
{
	struct connect *c = (struct connect *)((char *)work - offsetof(struct connect, work));

	if (atomic_load_explicit(&c->stage, memory_order_relaxed) == CONNECT_RUNNING)
		dial_advance(&c->dial, now_ns);
}

static void connect_ready(struct keeper_source *source, uint64_t now_ns)
{
	struct connect *c = (struct connect *)((char *)source - offsetof(struct connect, source));

	dial_advance(&c->dial, now_ns);
	if (c->source.watched && c->waits_for_open && c->dial.opened) {
		c->waits_for_open = false;
		keeper_rewatch(&c->source, EPOLLIN);
	}
}

/* A kernel lane of the keeper's has been begun. */
static void connect_watch(struct connect *c, uint64_t now_ns)
{
	struct dial *dial = &c->dial;
	int rc = keeper_watch(&c->source, lane_kernel_fd(dial->lane), EPOLLIN | EPOLLOUT);

	c->waits_for_open = true;
	if (!rc)
		return;
	dial_stop(dial);
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
	if (avoided_s && (!last_resort || (!c->retry.rounds && c->candidates.count > 1))) {
		snprintf(text, len, "no packet found the way %u s ago", avoided_s);
		return false;
	}
	if (!last_resort && now_ns >= c->harp_deadline_ns) {
		snprintf(text, len, "others took all the time");
		return false;
	}
	if (!last_resort && c->harp_deadline_ns < c->deadline_ns)
		c->dial.open_deadline_ns = c->harp_deadline_ns;
	if (c->candidate % c->candidates.ways)
		c->dial.ports_max = WAY_PORTS_MAX;
	return true;
}

static void connect_start_run(struct work *work, uint64_t now_ns)
{
	struct connect *c = (struct connect *)((char *)work - offsetof(struct connect, start_work));
	const struct candidate *candidate = &c->candidates.list[c->candidate];
	char text[96];

	c->dial.candidate = *candidate;
	c->dial.driver = c->driver;
	c->dial.opened = false;
	c->dial.ports_max = 0;
	c->began_ns = 0;
	c->dial.deadline_ns = c->dial.open_deadline_ns = c->deadline_ns;
	if (candidate->harp && !connect_may_try(c, candidate, now_ns, text, sizeof(text))) {
		connect_attempt_failed(c, -ETIMEDOUT, text, now_ns);
		return;
	}
	c->began_ns = now_ns;
	connect_leave(c, CONNECT_RUNNING);
	dial_start(&c->dial, now_ns);
	if (!candidate->harp && c->dial.lane)
		connect_watch(c, now_ns);
}

static void connect_stop_run(struct work *work, uint64_t now_ns)
{
	struct connect *c = (struct connect *)((char *)work - offsetof(struct connect, stop_work));

	(void)now_ns;
	keeper_unwatch(&c->source);
	dial_stop(&c->dial);
}

/* ---- starting an attempt; the control thread, no lock and no baton held ----------------------- */

/* The lanes to come are upkeep.c's; without memory for it the comm has one. */
static uint8_t connect_plan(struct connect *c)
{
	char why[384];
	bool harp = c->candidates.list[0].harp || (c->handle.opening && !c->candidates.same_host &&
						   ctx_engines(c->dev, why, sizeof(why)));
	unsigned lanes = rails_lanes(c->dev, harp);

	if (lanes > 1)
		c->upkeep = upkeep_new(c->dev, c->dscp, &c->handle);
	return c->upkeep ? (uint8_t)lanes : 1;
}

static void connect_prepare_dial(struct connect *c)
{
	struct dial *dial = &c->dial;

	dial->dev = c->dev;
	dial->dscp = c->dscp;
	dial->listen_id = c->handle.listen_id;
	dial->comm_id = c->comm_id;
	memcpy(dial->key, c->handle.secret, PREAMBLE_KEY_BYTES);
	dial->own.lanes = connect_plan(c);
	dial->answer_ns = ANSWER_NS;
	dial->ended = connect_ended;
	dial->owner = c;
}

/* Before the first attempt: opens the interface, and asks the kernel for routes. */
static int connect_prepare(struct connect *c)
{
	int rc;

	ctx_open_device(c->dev);
	rc = candidates_find(&c->candidates, c->dev, &c->handle);
	if (!rc)
		connect_prepare_dial(c);
	return rc;
}

/* Of the next attempt. */
static struct driver *connect_driver(struct connect *c)
{
	const struct candidate *candidate = &c->candidates.list[c->candidate];

	return candidate->harp ? engine_driver(candidate->engine) : keeper_driver();
}

static void connect_start(struct keeper_task *task)
{
	struct connect *c = (struct connect *)((char *)task - offsetof(struct connect, task));
	struct driver *driver;

	if (!c->candidates.count) {
		c->error = connect_prepare(c);
		if (c->error) {
			connect_leave(c, CONNECT_FAILED);
			return;
		}
	}
	driver = connect_driver(c);
	if (driver != c->driver) /* nothing of ours stays on the list of the old one */
		driver_call(c->driver, &c->stop_work);
	c->driver = driver;
	driver_call(driver, &c->start_work);
}

/* ---- plugin_connect --------------------------------------------------------------------------- */

static int connect_new(struct plugin_ctx *ctx, int dev, const void *key,
		       const struct handle *handle, int traffic_class, struct connect **out)
{
	struct connect *c = calloc(1, sizeof(*c));

	*out = NULL;
	if (!c) {
		WARN("%s: cannot connect: out of memory", plugin_device(dev)->ifname);
		return -ENOMEM;
	}
	c->task.run = connect_start;
	c->start_work.run = connect_start_run;
	c->work.run = connect_run;
	c->stop_work.run = connect_stop_run;
	c->source.ready = connect_ready;
	c->ctx = ctx;
	c->key = key;
	c->dev = dev;
	c->dscp = ctx_dscp(ctx, traffic_class);
	c->handle = *handle;
	c->driver = keeper_driver();
	c->deadline_ns = driver_clock_ns() + plugin_config()->connect_timeout_ns;
	if (getrandom(&c->comm_id, sizeof(c->comm_id), 0) != sizeof(c->comm_id)) {
		WARN("%s: cannot connect: getrandom() gives no id", plugin_device(dev)->ifname);
		free(c);
		return -EIO;
	}
	retry_init(&c->retry, plugin_config()->connect_timeout_ns, c->comm_id);
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

/* Off the list, and without a task that is queued. */
static void connect_destroy(struct connect *c)
{
	/* c->work, if it is still queued, runs before: it was posted earlier. */
	driver_call(c->driver, &c->stop_work);
	if (c->comm) {
		upkeep_stop(c->comm->upkeep);
		comm_close(c->comm, true);
	}
	upkeep_free(c->upkeep);
	candidates_forget(&c->candidates);
	free(c);
}

void connect_free(struct connect *c)
{
	connect_unlink(c);
	connect_destroy(c);
}

static void connect_destroy_run(struct keeper_task *task)
{
	connect_destroy((struct connect *)((char *)task - offsetof(struct connect, task)));
}

/* Its drivers may be busy: the control thread waits for them. */
static void connect_end(struct connect *c)
{
	connect_unlink(c);
	c->task.run = connect_destroy_run;
	keeper_task_post(&c->task, 0);
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
	if (ctx_link_is_down(c->dev))
		return "; the link is down here: a cable, or a memif without its peer";
	if (error == -EPROTONOSUPPORT || error == -EKEYREJECTED) /* it answered */
		return "";
	if (c->failure == RETRY_UNKNOWN)
		return " at HELLO each time: its rank has closed this listener (see the log there: it may have "
		       "failed or been restarted), or strangers crowd the port";
	if (c->failure == RETRY_TURNED_AWAY) /* silence has its question already */
		return error == -ETIMEDOUT ? "" : "; is the peer's rank alive?";
	return "; is the peer's rank alive, and does a firewall let TCP through?";
}

/* The control thread sees what comes; it does not look at the time. */
static bool connect_must_look(struct connect *c)
{
	uint64_t now_ns = driver_clock_ns();

	if (c->driver == keeper_driver() && now_ns < c->look_ns && now_ns < c->deadline_ns)
		return false;
	c->look_ns = now_ns + LOOK_NS;
	return true;
}

int plugin_connect(struct plugin_ctx *ctx, int dev, void *handle_bytes, int traffic_class,
		   struct comm **out)
{
	struct handle handle;
	struct connect *c;
	uint64_t now_ns;
	char why[192];
	int rc;

	*out = NULL;
	if (forkguard_is_child)
		return -EBADF;
	if (!ctx || !handle_bytes || !plugin_device(dev))
		return -EINVAL;
	rc = handle_decode(handle_bytes, &handle, why, sizeof(why));
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
		if (now_ns < c->retry.not_before_ns)
			return 0;
		c->look_ns = now_ns + LOOK_NS;
		connect_leave(c, CONNECT_STARTING);
		keeper_task_post(&c->task, 0);
		return 0;
	case CONNECT_RUNNING:
		if (connect_must_look(c))
			driver_post(c->driver, &c->work);
		driver_poll(c->driver);
		break;
	default:
		break;
	}
	switch (atomic_load_explicit(&c->stage, memory_order_acquire)) {
	case CONNECT_DONE:
		connect_report(c);
		ctx_add_comm(c->comm);
		if (c->comm->upkeep) {
			upkeep_begin(c->upkeep);
			c->upkeep = NULL; /* the comm's */
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
