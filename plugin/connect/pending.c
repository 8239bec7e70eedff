/* SPDX-License-Identifier: Apache-2.0 */
/* pending.c - see pending.h. */
#include "connect/pending.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>

#include "base/addr.h"
#include "base/util.h"
#include "connect/handshake.h"
#include "connect/registry.h"
#include "process/config.h"
#include "process/keyfile.h"
#include "process/log.h"
#include "stats/lane_page.h"

/*
 * Theory of operation
 *
 * A pending connection's bytes reach no comm before the peer is authenticated, and no thread waits
 * for it. It advances when data has arrived (the stack's events, the control thread's epoll), and
 * is dropped at its deadline, 5 s after it was accepted.
 *
 * A pending connection becomes identified when its HELLO names a listen id or comm id of this
 * process. Ids are 64 random bits from a handle, so the sender is a peer, or has read the traffic.
 *
 * Admission limits, per listener. At most 64 unidentified connections are pending. When the limit
 * is exceeded, the oldest one of the address with the most is dropped, so a scanner's own
 * connections go first. At most 192 identified connections are pending. When that limit is
 * exceeded, the newest one of the address with the most is dropped, so the first of hundreds of
 * concurrent peers complete and make space. A dropped peer connects again (connector.c). An
 * unidentified connection never displaces an identified one.
 *
 * CONFIRM makes the connection a comm, or a lane of one. READY alone must not: a connector that
 * misses READY connects again, and the application would already have a dead comm. A connector that
 * has received READY considers itself connected. So after READY the connector's deadline applies,
 * and the connection is not dropped over a limit unless CONFIRM is overdue by a second.
 */

#define PENDING_TIME_NS 5000000000ull
#define CONFIRM_TIME_NS 1000000000ull
#define WARN_AGAIN_NS 5000000000ull

/* ---- dropping ------------------------------------------------------------------------------- */

static uint64_t pending_deadline_ns(const struct pending *pending)
{
	return pending->accepted_ns +
	       (pending->ready_ns ? plugin_config()->connect_timeout_ns : PENDING_TIME_NS);
}

/* Counts one more (change 1) or one fewer (-1) connection of its kind from its address. */
static void admission_count(struct pending *pending, int change)
{
	struct pending_set *set = pending->set;

	pending->share = 0;
	for (unsigned i = 0; i < PENDING_MAX; i++) {
		struct pending *other = &set->pending[i];

		if (!other->lane || other->identified != pending->identified ||
		    !addr_equal(&other->addr, &pending->addr))
			continue;
		pending->share++;
		if (other != pending)
			other->share += (unsigned)change;
	}
}

static void pending_release(struct pending *pending)
{
	admission_count(pending, -1);
	control_unwatch(&pending->source);
	explicit_bzero(pending->preamble.key, sizeof(pending->preamble.key));
	pending->lane = NULL;
	pending->set->identified -= pending->identified;
	pending->set->count--;
}

static void pending_drop(struct pending *pending)
{
	struct lane *lane = pending->lane;

	pending_release(pending);
	/* A peer that tries several source ports resets all but the first open connection, before
	 * HELLO. */
	if (pending->preamble.at || lane->error != -ECONNRESET)
		lane_page_count(HARP_JOB_unauthenticated_peers, 1);
	lane->ops->close(lane, true);
}

/* The connection to drop over the limit of identified or of unidentified ones. */
static struct pending *admission_excess(struct pending_set *set, bool identified)
{
	struct pending *excess = NULL;

	for (unsigned i = 0; i < PENDING_MAX; i++) {
		struct pending *pending = &set->pending[i];
		bool is_newer;

		if (!pending->lane || pending->identified != identified ||
		    (pending->ready_ns && set->now_ns - pending->ready_ns < CONFIRM_TIME_NS))
			continue;
		is_newer = excess && pending->accepted_ns >= excess->accepted_ns;
		if (!excess || pending->share > excess->share ||
		    (pending->share == excess->share && is_newer == identified))
			excess = pending;
	}
	return excess;
}

static void pending_advance(struct pending *pending, uint64_t now_ns);

/* Drops one over the limit. A first lane whose CONFIRM has just arrived stays: its peer has the
 * comm. */
static void pending_displace(struct pending *pending)
{
	if (pending->ready_ns)
		pending_advance(pending, pending->set->now_ns);
	if (pending->lane)
		pending_drop(pending);
}

/* ---- lookups for the preamble ---------------------------------------------------------------- */

/* HELLO has named an id of this process. False: this connection is over the limit and is
 * dropped. */
static bool pending_identify(struct pending *pending)
{
	struct pending *excess;

	admission_count(pending, -1);
	pending->identified = true;
	admission_count(pending, 1);
	if (++pending->set->identified <= PENDING_IDENTIFIED_MAX)
		return true;
	excess = admission_excess(pending->set, true);
	if (excess != pending)
		pending_displace(excess);
	return excess != pending;
}

static bool pending_lookup(void *ctx, struct preamble *p, uint8_t key[PREAMBLE_KEY_BYTES])
{
	struct pending *pending = ctx;
	bool joins = p->peer.features & FEATURE_JOIN;

	if (!registry_key(joins ? p->comm_id : p->listen_id, joins, key))
		return false;
	if (p->step != PREAMBLE_READ_HELLO) {
		p->full = !joins && !registry_admits(p->listen_id, &pending->lane->remote);
		return true;
	}
	p->full = !pending_identify(pending);
	if (!joins && p->peer.features & FEATURE_MULTI_LANE)
		p->own.nic_count = acceptor_nics(pending->set->dev, p->own.nics);
	return true;
}

/* Warns of an identified peer that fails because of HARP_ENCRYPT or HARP_KEY_FILE. The connector
 * logs the same. */
static void pending_warn_encryption(struct pending *pending, int error, uint64_t now_ns)
{
	const struct preamble *p = &pending->preamble;
	struct pending_set *set = pending->set;
	char peer[HARP_ENDPOINT_TEXT_MAX];
	const char *text = NULL;

	if (error == -EPROTONOSUPPORT && (p->own.features ^ p->peer.features) & FEATURE_ENCRYPTED)
		text = p->what;
	else if (error == -ECONNRESET && p->own.psk && p->step == PREAMBLE_READ_PROOF)
		text = "it left at our proof: do the pre-shared keys (HARP_KEY_FILE) differ?";
	if (!text || (set->warned_ns && now_ns - set->warned_ns < WARN_AGAIN_NS))
		return;
	set->warned_ns = now_ns;
	WARN("refused %s: %s", harp_endpoint_format(&pending->lane->remote, peer), text);
}

/* ---- admission ------------------------------------------------------------------------------ */

static void pending_lane_options(const struct pending *pending, uint64_t now_ns,
				 struct comm_lane_options *opt)
{
	const struct preamble *p = &pending->preamble;

	*opt = (struct comm_lane_options){
		.index = p->peer.index,
		.dev = pending->set->dev,
		.sent_bytes = p->sent_bytes,
		.rtt_ns = now_ns - pending->ready_ns,
	};
	if (p->peer.features & FEATURE_ACK_PROMPTLY)
		lane_kernel_ack_promptly(pending->lane);
}

/* The lane joins its comm. */
static int pending_join(struct pending *pending, uint64_t now_ns)
{
	struct comm_lane_options opt;
	int rc;

	pending_lane_options(pending, now_ns, &opt);
	rc = registry_join(pending->preamble.comm_id, pending->preamble.key, pending->lane, &opt);
	if (!rc)
		pending_release(pending);
	return rc;
}

/* The first lane becomes a comm. */
static int pending_begin_comm(struct pending *pending, uint64_t now_ns)
{
	const struct preamble *p = &pending->preamble;
	uint8_t key[PREAMBLE_KEY_BYTES];
	struct comm_options opt;
	int rc;

	handshake_comm_options(p, COMM_RECV, &opt);
	pending_lane_options(pending, now_ns, &opt.lane);
	preamble_comm_key(p, key);
	rc = registry_add(p->listen_id, pending->lane, &opt, key);
	explicit_bzero(key, sizeof(key));
	if (!rc)
		pending_release(pending);
	return rc;
}

/* CONFIRM has arrived. */
static int pending_admit(struct pending *pending, uint64_t now_ns)
{
	bool joins = pending->preamble.peer.features & FEATURE_JOIN;
	int rc;

	control_unwatch(&pending->source); /* the comm may close it at once */
	rc = handshake_encrypt(&pending->preamble, &pending->lane);
	if (!rc)
		rc = joins ? pending_join(pending, now_ns) : pending_begin_comm(pending, now_ns);
	if (rc == -ENOMEM && !joins)
		registry_fail(pending->preamble.listen_id, &pending->lane->remote, rc);
	return rc;
}

/* ---- advancing ------------------------------------------------------------------------------- */

/* The caller read its clock before it acquired the poller. Another thread may have polled since
 * with a later timestamp, so the maximum is kept. */
static uint64_t pending_set_clock(struct pending_set *set, uint64_t now_ns)
{
	if (now_ns > set->now_ns)
		set->now_ns = now_ns;
	return set->now_ns;
}

static void pending_advance(struct pending *pending, uint64_t now_ns)
{
	int rc = 0;

	now_ns = pending_set_clock(pending->set, now_ns);
	/* CONFIRM may have arrived before the end of the stream. */
	if (pending->ready_ns || pending->lane->ops->state(pending->lane) != LANE_DEAD)
		rc = handshake_advance(&pending->preamble, pending->lane);
	if (!rc && pending->lane->ops->state(pending->lane) == LANE_DEAD)
		rc = pending->lane->error;
	if (pending->preamble.step == PREAMBLE_READ_CONFIRM && !pending->ready_ns)
		pending->ready_ns = now_ns;
	if (rc == 1)
		rc = pending_admit(pending, now_ns);
	if (!rc)
		return;
	pending_warn_encryption(pending, rc, now_ns);
	pending_drop(pending);
}

static void pending_notify(struct lane *lane, uint64_t now_ns)
{
	pending_advance(lane->owner, now_ns);
}

static void pending_ready(struct control_source *source, uint64_t now_ns)
{
	pending_advance(container_of(source, struct pending, source), now_ns);
}

/* ---- coming, and time ----------------------------------------------------------------------- */

static void pending_set_next(struct pending_set *set, uint64_t next_ns)
{
	set->next_ns = next_ns;
	if (!set->placement)
		control_timer_set(&set->timer, next_ns);
}

void pending_set_expire(struct pending_set *set, uint64_t now_ns)
{
	uint64_t next_ns = UINT64_MAX;

	for (unsigned i = 0; set->count && i < PENDING_MAX; i++) {
		struct pending *pending = &set->pending[i];

		if (pending->lane && now_ns >= pending_deadline_ns(pending))
			pending_drop(pending);
		else if (pending->lane && pending_deadline_ns(pending) < next_ns)
			next_ns = pending_deadline_ns(pending);
	}
	pending_set_next(set, next_ns);
}

static void pending_set_due(struct control_timer *timer, uint64_t now_ns)
{
	pending_set_expire(container_of(timer, struct pending_set, timer), now_ns);
}

void pending_set_close(struct pending_set *set)
{
	for (unsigned i = 0; i < PENDING_MAX; i++)
		if (set->pending[i].lane)
			pending_drop(&set->pending[i]);
	pending_set_next(set, UINT64_MAX);
}

static struct pending *pending_set_slot(struct pending_set *set)
{
	unsigned i = 0;

	if (set->count - set->identified == PENDING_UNAUTHENTICATED_MAX)
		pending_drop(admission_excess(set, false));
	while (set->pending[i].lane) /* a free one exists: at most PENDING_IDENTIFIED_MAX others are
					in use */
		i++;
	return &set->pending[i];
}

void pending_set_add(struct pending_set *set, struct lane *lane, int fd, uint64_t now_ns)
{
	struct preamble_terms own = { .eager_bytes = plugin_config()->eager_bytes,
				      .features = set->placement ? FEATURE_ACK_PROMPTLY : 0,
				      .placement = set->placement,
				      .psk = keyfile_key() };
	struct pending *pending;

	now_ns = pending_set_clock(set, now_ns);
	pending = pending_set_slot(set);
	memset(pending, 0, sizeof(*pending));
	pending->set = set;
	pending->lane = lane;
	pending->addr = lane->remote.addr;
	pending->accepted_ns = now_ns;
	pending->source.ready = pending_ready;
	lane->owner = pending;
	lane->notify = pending_notify;
	admission_count(pending, 1);
	set->count++;
	/* A predictable nonce would admit a replay; an unwatched socket would never be read. */
	if (getrandom(own.nonce, PREAMBLE_NONCE_BYTES, GRND_NONBLOCK) != PREAMBLE_NONCE_BYTES ||
	    (fd >= 0 && control_watch(&pending->source, fd, EPOLLIN))) {
		pending_drop(pending);
		return;
	}
	preamble_accept(&pending->preamble, &own, pending_lookup, pending);
	if (pending_deadline_ns(pending) < set->next_ns)
		pending_set_next(set, pending_deadline_ns(pending));
	/* HELLO may have arrived with it. */
	pending_advance(pending, now_ns);
}

void pending_set_init(struct pending_set *set, int dev, const struct placement_end *placement)
{
	set->dev = dev;
	set->placement = placement;
	set->timer.run = pending_set_due;
	set->next_ns = UINT64_MAX;
}
