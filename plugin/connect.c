/* SPDX-License-Identifier: Apache-2.0 */
/* connect.c - plugin_connect: candidates, lanes, preamble, until there is a comm. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "ctx.h"
#include "forkguard.h"
#include "preamble.h"

/*
 * Theory of operation
 *
 * A struct connect lives from the first plugin_connect() with a handle to the one that returns a comm or
 * an error; it is found again by the handle's address and secret. It has a list of candidates, best
 * first: HARP lanes, then kernel lanes, each by the families that both sides have. An attempt takes the
 * next candidate, opens a lane and runs the preamble; when it fails the next one is tried, and after the
 * last a pause and another round: a peer may be about to bind, or strangers may have pushed us out.
 *
 * `stage` says whose turn it is. IDLE: the application's thread, which starts attempts (it alone
 * may choose another driver). RUNNING: the baton of the attempt's driver. DONE, FAILED: the
 * application's again. The baton's holder leaves RUNNING with release, the application looks with
 * acquire.
 */

#define CANDIDATES_MAX 6u
#define ROUNDS_MAX 4u
#define PAUSE_NS 50000000ull       /* after the first round; doubles */
#define HARP_OPEN_NS 3000000000ull /* a HARP lane must open so fast if another kind is left */

enum connect_stage { CONNECT_IDLE, CONNECT_RUNNING, CONNECT_DONE, CONNECT_FAILED };

struct candidate {
	struct harp_endpoint local; /* of HARP lanes; zero: chosen by the stack */
	struct harp_endpoint remote;
	bool harp;
};

struct connect {
	struct driver own_driver; /* of kernel lanes; first: aligned */
	struct connect *next;     /* in ctx's list */
	struct plugin_ctx *ctx;
	const void *key; /* the handle's address */
	int dev;
	uint8_t dscp;
	struct handle handle;
	struct engine *engine; /* of HARP lanes; NULL: none */
	struct candidate candidates[CANDIDATES_MAX];
	unsigned candidate_count, candidate, round;
	bool same_host;       /* the same NIC, too */
	char why_kernel[384]; /* why no HARP lane: said once, with the comm */
	atomic_int stage;
	struct driver *driver; /* of the present attempt */
	struct work start_work, work, stop_work;
	uint64_t comm_id;
	uint64_t deadline_ns, open_deadline_ns, not_before_ns;
	struct lane *lane;
	bool opened; /* the preamble has begun */
	struct preamble preamble;
	struct comm *comm;
	int error;
	char error_text[160];
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

static void connect_attempt_failed(struct connect *c, int error, const char *text, uint64_t now_ns)
{
	const struct candidate *candidate = &c->candidates[c->candidate];
	char remote[HARP_ENDPOINT_TEXT_MAX];

	if (c->lane)
		c->lane->ops->close(c->lane, true);
	c->lane = NULL;
	/* A lane that got through to the peer tells more than one that did not. */
	if (!c->error || c->opened || error != -ECONNREFUSED) {
		c->error = error;
		snprintf(c->error_text, sizeof(c->error_text), "%s by %s: %s",
			 harp_endpoint_format(&candidate->remote, remote),
			 candidate->harp ? "HARP TCP" : "kernel TCP", text);
	}
	if (++c->candidate == c->candidate_count) {
		c->candidate = 0;
		c->not_before_ns = now_ns + (PAUSE_NS << c->round);
		c->round++;
	}
	if (c->round == ROUNDS_MAX || now_ns >= c->deadline_ns)
		connect_leave(c, CONNECT_FAILED);
	else
		connect_leave(c, CONNECT_IDLE);
}

static int connect_begin_preamble(struct connect *c)
{
	struct preamble_terms own = { .eager_bytes = plugin_config()->eager_bytes };

	/* A kernel lane's sends are done before they have arrived: nothing may come back that could
	 * turn our close into a reset (docs/lanes.md section 5.4). */
	own.features = c->candidates[c->candidate].harp ? FEATURE_ACK_PROMPTLY : FEATURE_NO_CREDIT;
	if (getrandom(own.nonce, sizeof(own.nonce), 0) != sizeof(own.nonce))
		return -EIO;
	preamble_connect(&c->preamble, &c->handle, c->comm_id, &own);
	c->opened = true;
	return 0;
}

static int connect_finish(struct connect *c)
{
	const struct preamble *p = &c->preamble;
	struct comm_options opt = { .ctx = c->ctx, .side = COMM_SEND };

	opt.sent_bytes = PREAMBLE_HELLO_BYTES + PREAMBLE_PROOF_BYTES;
	opt.eager_bytes =
		p->own.eager_bytes < p->peer.eager_bytes ? p->own.eager_bytes : p->peer.eager_bytes;
	opt.lane_polled = !c->candidates[c->candidate].harp;
	opt.no_credit = (p->own.features & FEATURE_NO_CREDIT) != 0;
	if (p->peer.features & FEATURE_ACK_PROMPTLY)
		lane_kernel_ack_promptly(c->lane);
	return comm_create(&c->comm, c->lane, &opt);
}

static void connect_advance(struct connect *c, uint64_t now_ns)
{
	int rc;

	if (atomic_load_explicit(&c->stage, memory_order_relaxed) != CONNECT_RUNNING)
		return;
	switch (c->lane->ops->state(c->lane)) {
	case LANE_DEAD:
		connect_attempt_failed(c, c->lane->error, lane_error_text(c->lane->error), now_ns);
		return;
	case LANE_CONNECTING:
		if (now_ns >= c->open_deadline_ns)
			connect_attempt_failed(c, -ETIMEDOUT, lane_error_text(-ETIMEDOUT), now_ns);
		return;
	case LANE_OPEN:
		break;
	}
	rc = c->opened ? 0 : connect_begin_preamble(c);
	if (!rc)
		rc = preamble_advance(&c->preamble, c->lane);
	if (rc == 1)
		rc = connect_finish(c);
	else if (!rc && now_ns < c->deadline_ns)
		return;
	else if (!rc) {
		connect_attempt_failed(c, -ETIMEDOUT,
				       "the peer does not accept; is its rank alive?", now_ns);
		return;
	}
	if (rc) {
		connect_attempt_failed(c, rc,
				       c->preamble.what ? c->preamble.what : lane_error_text(rc),
				       now_ns);
		return;
	}
	c->lane = NULL;
	connect_leave(c, CONNECT_DONE);
}

static void connect_notify(struct lane *lane, uint64_t now_ns)
{
	connect_advance(lane->owner, now_ns);
}

static void connect_run(struct work *work, uint64_t now_ns)
{
	connect_advance((struct connect *)((char *)work - offsetof(struct connect, work)), now_ns);
}

static void connect_start_run(struct work *work, uint64_t now_ns)
{
	struct connect *c = (struct connect *)((char *)work - offsetof(struct connect, start_work));
	const struct candidate *candidate = &c->candidates[c->candidate];
	int rc;

	c->opened = false;
	c->preamble.what = NULL;
	c->open_deadline_ns = c->deadline_ns;
	if (candidate->harp && !c->candidates[c->candidate_count - 1].harp &&
	    now_ns + HARP_OPEN_NS < c->deadline_ns)
		c->open_deadline_ns = now_ns + HARP_OPEN_NS;
	if (candidate->harp)
		rc = lane_harp_connect(c->engine, &candidate->local, &candidate->remote, c->dscp,
				       &c->lane);
	else
		rc = lane_kernel_connect(c->driver, &candidate->remote, c->dscp, &c->lane);
	if (rc) {
		connect_attempt_failed(c, rc, lane_error_text(rc), now_ns);
		return;
	}
	c->lane->owner = c;
	c->lane->notify = connect_notify;
	connect_leave(c, CONNECT_RUNNING);
}

static void connect_stop_run(struct work *work, uint64_t now_ns)
{
	struct connect *c = (struct connect *)((char *)work - offsetof(struct connect, stop_work));

	(void)now_ns;
	if (c->lane)
		c->lane->ops->close(c->lane, true);
	c->lane = NULL;
}

static void connect_turn(struct driver *driver, uint64_t now_ns)
{
	driver_run_ready(driver, now_ns);
}

/* ---- candidates ------------------------------------------------------------------------------- */

/* source: where a HARP lane comes from; NULL for a kernel lane. */
static void connect_candidate(struct connect *c, const struct harp_addr *source,
			      const struct harp_addr *addr, uint16_t port)
{
	struct candidate *candidate = &c->candidates[c->candidate_count];
	const struct device *device = plugin_device(c->dev);

	if (!port || c->candidate_count == CANDIDATES_MAX)
		return;
	memset(candidate, 0, sizeof(*candidate));
	candidate->remote.addr = *addr;
	candidate->remote.port = port;
	/* The scope is a matter of our own host. */
	candidate->remote.scope_id = device_scope_id(device, addr);
	candidate->harp = source != NULL;
	if (source) {
		candidate->local.addr = *source;
		candidate->local.scope_id = device_scope_id(device, source);
	}
	c->candidate_count++;
}

/* HARP lanes go to the peer's stack, or to its kernel where it has none. */
static void connect_harp_candidates(struct connect *c, const struct device *device)
{
	const struct handle *h = &c->handle;
	uint8_t host_id[HANDLE_HOST_ID_BYTES];
	struct engine_set *engines;
	struct harp_addr source;
	char why[256] = "";

	engines = ctx_engines(c->dev, why, sizeof(why));
	if (!engines) {
		snprintf(c->why_kernel, sizeof(c->why_kernel), "%s", why);
		return;
	}
	c->engine = engine_set_choose(engines);
	if (!handle_host_id(device->netns, host_id) &&
	    !memcmp(host_id, h->host_id, sizeof(host_id))) {
		c->same_host = true;
		snprintf(c->why_kernel, sizeof(c->why_kernel),
			 "the peer is on this host: its packets never reach a NIC");
		return;
	}
	if (h->has_v4 && device->has_v4) {
		if (engine_reaches(c->engine, &h->v4, &source, why, sizeof(why)))
			connect_candidate(c, &source, &h->v4,
					  h->harp_port ? h->harp_port : h->kernel_port_v4);
	}
	if (h->has_v6 && device->has_v6) {
		if (engine_reaches(c->engine, &h->v6, &source, why, sizeof(why)))
			connect_candidate(c, &source, &h->v6,
					  h->harp_port ? h->harp_port : h->kernel_port_v6);
	}
	if (!c->candidate_count)
		snprintf(c->why_kernel, sizeof(c->why_kernel), "%s", why);
}

/* Kernel lanes go to the peer's kernel, and to its stack where that is all it offers and a NIC lies
 * between. */
static void connect_kernel_candidates(struct connect *c, const struct device *device)
{
	const struct handle *h = &c->handle;

	if (c->same_host && !h->kernel_port_v4 && !h->kernel_port_v6)
		return;
	if (h->has_v4 && device->has_v4)
		connect_candidate(c, NULL, &h->v4,
				  h->kernel_port_v4 ? h->kernel_port_v4 : h->harp_port);
	if (h->has_v6 && device->has_v6)
		connect_candidate(c, NULL, &h->v6,
				  h->kernel_port_v6 ? h->kernel_port_v6 : h->harp_port);
}

static int connect_candidates(struct connect *c)
{
	const struct device *device = plugin_device(c->dev);
	enum plugin_path path = plugin_config()->path;

	if (path != PATH_KERNEL)
		connect_harp_candidates(c, device);
	else
		snprintf(c->why_kernel, sizeof(c->why_kernel), "HARP_PATH=kernel");
	if (path == PATH_XDP && !c->candidate_count) {
		WARN("%s: HARP_PATH=xdp, but %s; use HARP_PATH=auto", device->ifname,
		     c->why_kernel[0]
			     ? c->why_kernel
			     : "the peer has no address of a family that this interface has");
		return -EPROTONOSUPPORT;
	}
	if (path != PATH_XDP && !device->netns)
		connect_kernel_candidates(c, device);
	if (!c->candidate_count && (device->netns || c->same_host)) {
		WARN("%s: no way to the peer: %s, and no kernel socket can be used: %s is a NIC of "
		     "another network namespace for %s; run ranks of one host in one namespace",
		     device->ifname, c->why_kernel, device->ifname, device->netns ? "us" : "it");
		return -EPROTONOSUPPORT;
	}
	if (!c->candidate_count) {
		WARN("%s: the peer and this interface have no address family in common; check "
		     "NCCL_SOCKET_IFNAME and NCCL_SOCKET_FAMILY on both hosts",
		     device->ifname);
		return -EPROTONOSUPPORT;
	}
	return 0;
}

/* ---- plugin_connect --------------------------------------------------------------------------- */

static int connect_new(struct plugin_ctx *ctx, int dev, const void *key,
		       const struct handle *handle, int traffic_class, struct connect **out)
{
	struct connect *c = aligned_alloc(64, (sizeof(*c) + 63) & ~(size_t)63);
	int rc;

	*out = NULL;
	if (!c)
		return -ENOMEM;
	memset(c, 0, sizeof(*c));
	driver_init(&c->own_driver, connect_turn);
	c->start_work.run = connect_start_run;
	c->work.run = connect_run;
	c->stop_work.run = connect_stop_run;
	c->ctx = ctx;
	c->key = key;
	c->dev = dev;
	c->dscp = ctx_dscp(ctx, traffic_class);
	c->handle = *handle;
	c->driver = &c->own_driver;
	c->deadline_ns = driver_clock_ns() + plugin_config()->connect_timeout_ns;
	rc = connect_candidates(c);
	if (!rc && getrandom(&c->comm_id, sizeof(c->comm_id), 0) != sizeof(c->comm_id))
		rc = -EIO;
	if (rc) {
		free(c);
		return rc;
	}
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
	/* c->work, if still queued, runs before: it was posted by this thread or an earlier one. */
	driver_call(c->driver, &c->stop_work);
	if (c->comm)
		comm_close(c->comm, true);
	free(c);
}

static void connect_report(struct connect *c)
{
	char text[256];

	c->comm->lane->ops->describe(c->comm->lane, text, sizeof(text));
	if (c->comm->lane_polled)
		INFO("%s: connected by %s (%s)", plugin_device(c->dev)->ifname, text,
		     c->why_kernel[0] ? c->why_kernel : c->error_text);
	else
		INFO("%s: connected by %s", plugin_device(c->dev)->ifname, text);
}

static void connect_start(struct connect *c)
{
	struct driver *driver =
		c->candidates[c->candidate].harp ? engine_driver(c->engine) : &c->own_driver;

	if (driver != c->driver) /* nothing of ours stays on the list of the old one */
		driver_call(c->driver, &c->stop_work);
	c->driver = driver;
	driver_call(driver, &c->start_work);
}

int plugin_connect(struct plugin_ctx *ctx, int dev, void *handle_bytes, int traffic_class,
		   struct comm **out)
{
	struct handle handle;
	struct connect *c;
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
		if (driver_clock_ns() < c->not_before_ns)
			return 0;
		connect_start(c);
		break;
	case CONNECT_RUNNING:
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
		*out = c->comm;
		c->comm = NULL;
		connect_free(c);
		return 0;
	case CONNECT_FAILED:
		rc = c->error;
		WARN("%s: cannot connect to %s; is the peer's rank alive, and does a firewall let "
		     "TCP through?",
		     plugin_device(dev)->ifname, c->error_text);
		connect_free(c);
		return rc;
	default:
		return 0;
	}
}
