/* SPDX-License-Identifier: Apache-2.0 */
/* pending.c - accepted connections until the peer has proved that it knows a handle or a comm; see pending.h. */
#include "connect/handshake.h"
#include "base/util.h"
#include "connect/pending.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>

#include "process/keyfile.h"
#include "stats/lane_page.h"
#include "connect/registry.h"
#include "process/log.h"
#include "process/config.h"

/*
 * Theory of operation
 *
 * Nothing that a pending connection sends reaches a comm before the peer has proved itself, and no thread waits for it. A
 * pending connection advances when something has come for it (the stack's events, the control thread's epoll) or when its
 * time is up, 5 s after it was accepted.
 *
 * A pending connection is unauthenticated until its HELLO has named a listen id or comm id of this process: 64 bits drawn
 * at random, which handles carry. From then on it is identified: a peer, or someone who reads the traffic.
 *
 * Admission limits. At most 64 unauthenticated connections of a listener are pending. When the limit is exceeded, the
 * oldest one of the address with the most is dropped: a scanner drops its own. At most 192 identified connections are
 * pending. When that limit is exceeded, the newest one of the address with the most is dropped: of hundreds of peers that
 * come at once the first get through and make room. A peer that is dropped connects again (connect.c, reconnect.c). An
 * unauthenticated peer never causes an identified connection to be dropped.
 *
 * READY. When a first lane breaks with READY on its way, its connector tries again, and an application that had its comm by
 * then would never learn of the second. So the comm is made when the connector's TCP has acknowledged READY, a round trip
 * later: a HARP lane tells, a kernel lane is asked. Until then a reset would end what the connector takes for a comm, so
 * the connection is not dropped to make room unless READY has gone unacknowledged for a second. It has as long as
 * connectors try. While 64 comms of a listen comm wait to be accepted, further peers are turned away before READY.
 *
 * A further lane joins at once, because its comm survives it. If it was quicker than the acknowledgment of the first
 * lane's READY, it waits for as long as its comm is expected.
 */

#define PENDING_TIME_NS 5000000000ull
#define READY_UNHEARD_NS 1000000000ull
#define READY_LOOK_NS 100000ull /* after READY has left; later looks a quarter of the time since */
#define WARN_AGAIN_NS 5000000000ull

/* ---- admission limits --------------------------------------------------------------------------- */

/* Each address counts its connections, so that a scan costs one look at each of them for every one that comes. */
static struct pending_host *admission_come(struct pending_set *set, const struct harp_addr *addr)
{
	struct pending_host *unused = NULL, *host;

	for (unsigned i = 0; i < set->host_count; i++) {
		host = &set->hosts[i];
		if (host->count && !memcmp(&host->addr, addr, sizeof(*addr))) {
			host->count++;
			return host;
		}
		if (!host->count && !unused)
			unused = host;
	}
	if (!unused) /* there is one: each of the others has a connection */
		unused = &set->hosts[set->host_count++];
	*unused = (struct pending_host){ .addr = *addr, .count = 1 };
	return unused;
}

static void admission_leave(struct pending *pending)
{
	struct pending_set *set = pending->all;

	pending->host->count--;
	pending->host->identified = (uint16_t)(pending->host->identified - pending->identified);
	set->identified -= pending->identified;
	if (!--set->count)
		set->host_count = 0;
}

/* READY of a first lane has left, and its acknowledgment may still come. */
static bool admission_must_stay(const struct pending *pending)
{
	return pending->ready_ns && !pending->preamble.peer.join &&
	       pending->all->now_ns - pending->ready_ns < READY_UNHEARD_NS;
}

static bool admission_before(const struct pending *a, const struct pending *b)
{
	unsigned a_share = a->host->identified, b_share = b->host->identified;

	if (!a->identified) {
		a_share = a->host->count - a_share;
		b_share = b->host->count - b_share;
	}
	if (a_share != b_share)
		return a_share > b_share;
	return a->identified ? a->accepted_ns >= b->accepted_ns : a->accepted_ns < b->accepted_ns;
}

/* The limit of identified connections, or of unauthenticated ones, is exceeded: the one to be dropped. */
static struct pending *admission_excess(struct pending_set *set, bool identified)
{
	struct pending *excess = NULL;

	for (unsigned i = 0; i < PENDING_MAX; i++) {
		struct pending *pending = &set->pending[i];

		if (!pending->lane || pending->identified != identified ||
		    admission_must_stay(pending))
			continue;
		if (!excess || admission_before(pending, excess))
			excess = pending;
	}
	return excess;
}

/* ---- leaving ------------------------------------------------------------------------------------ */

static void pending_release(struct pending *pending)
{
	if (pending->expected)
		registry_forget(pending->expected);
	pending->expected = NULL;
	control_unwatch(&pending->source);
	explicit_bzero(pending->preamble.key, sizeof(pending->preamble.key));
	pending->lane = NULL;
	admission_leave(pending);
}

static void pending_turn_away(struct pending *pending)
{
	struct lane *lane = pending->lane;

	pending_release(pending);
	/* A peer that tried several source ports resets all but the first that is open, and has sent nothing there. */
	if (pending->preamble.at || lane->error != -ECONNRESET) {
		pending->all->turned_away++;
		lane_page_count(HARP_JOB_unauthenticated_peers, 1);
	}
	lane->ops->close(lane, true);
}

static struct pending *pending_set_drop(struct pending_set *pending_set, struct pending *out)
{
	pending_set->dropped++;
	pending_turn_away(out);
	return out;
}

/* The peer has proved that it knows the handle. */
static bool pending_may_enter(struct pending *pending)
{
	struct acceptor *acceptor = pending->all->acceptor;
	uint64_t listen_id = pending->preamble.listen_id;

	if (acceptor_has_room(acceptor, listen_id))
		return true;
	acceptor_warn_full(acceptor, listen_id, &pending->lane->remote);
	return false;
}

/* HELLO has named an id of this process. False: the connection is dropped. */
static bool pending_identify(struct pending *pending)
{
	struct pending_set *pending_set = pending->all;
	struct pending *out;

	pending->identified = true;
	pending->host->identified++;
	if (++pending_set->identified <= PENDING_IDENTIFIED_MAX)
		return true;
	out = admission_excess(pending_set, true);
	if (out != pending)
		pending_set_drop(pending_set, out);
	return out != pending;
}

static bool pending_lookup(void *ctx, struct preamble *p, uint8_t key[PREAMBLE_KEY_BYTES])
{
	struct pending *pending = ctx;

	if (p->peer.join ? !registry_key(p->comm_id, key)
			 : !acceptor_secret(pending->all->acceptor, p->listen_id, key))
		return false;
	if (p->step != PREAMBLE_READ_HELLO) {
		p->full = !p->peer.join && !pending_may_enter(pending);
		return true;
	}
	p->full = !pending_identify(pending);
	if (!p->peer.join && preamble_is_multi_lane(p)) {
		p->own.rails = pending->rails;
		p->own.rails_bytes = acceptor_rails(pending->all->acceptor, pending->rails);
	}
	return true;
}

/*
 * A peer that knows a listen id of ours and can't come in because of HARP_ENCRYPT or HARP_KEY_FILE: the
 * connector says it at its end, and so do we, now and then.
 */
static void pending_warn_encryption(struct pending *pending, int error, uint64_t now_ns)
{
	const struct preamble *p = &pending->preamble;
	char peer[HARP_ENDPOINT_TEXT_MAX];
	const char *text = NULL;

	if (error == -EPROTONOSUPPORT && (p->own.features ^ p->peer.features) & FEATURE_ENCRYPTED)
		text = p->what;
	else if (error == -ECONNRESET && p->own.psk && p->step == PREAMBLE_READ_PROOF)
		text = "it left at our proof: do the pre-shared keys (HARP_KEY_FILE) differ?";
	if (!text || (pending->all->warned_ns && now_ns - pending->all->warned_ns < WARN_AGAIN_NS))
		return;
	pending->all->warned_ns = now_ns;
	WARN("turned away %s: %s", harp_endpoint_format(&pending->lane->remote, peer), text);
}

/* ---- admitting -------------------------------------------------------------------------------- */

static void pending_lane_options(const struct pending *pending, struct comm_lane_options *opt)
{
	const struct preamble *p = &pending->preamble;

	opt->index = p->peer.index;
	opt->dev = acceptor_dev(pending->all->acceptor);
	opt->sent_bytes = p->sent_bytes;
	opt->rtt_ns = pending->rtt_ns;
	if (p->peer.features & FEATURE_ACK_PROMPTLY)
		lane_kernel_ack_promptly(pending->lane);
}

/* Of those that wait for their comm: let in behind its successor it would take that one's place. */
static void pending_replaces(struct pending *pending)
{
	const struct preamble *p = &pending->preamble;

	for (unsigned i = 0; i < PENDING_MAX; i++) {
		struct pending *old = &pending->all->pending[i];
		struct lane *lane = old->lane;

		if (old == pending || !lane || !old->ready_ns || !old->preamble.peer.join ||
		    old->preamble.comm_id != p->comm_id ||
		    old->preamble.peer.index != p->peer.index)
			continue;
		pending_release(old);
		lane->ops->close(lane, true);
	}
}

/* A further lane of a comm that is there. */
static int pending_join(struct pending *pending)
{
	struct comm_lane_options opt = { 0 };
	int rc;

	pending_lane_options(pending, &opt);
	control_unwatch(&pending->source); /* the comm may close it at once */
	rc = registry_join(pending->preamble.comm_id, pending->preamble.key, pending->lane, &opt);
	if (!rc)
		pending_release(pending);
	return rc;
}

/* The connection becomes a comm. */
static int pending_begin_comm(struct pending *pending)
{
	const struct preamble *p = &pending->preamble;
	struct comm_options opt = {
		.side = COMM_RECV,
		.multi_lane = preamble_is_multi_lane(p),
		.buffered = (p->peer.features & FEATURE_BUFFERED) != 0,
		.comm_id = p->comm_id,
		.reconnect_wait_ns = COMM_RECONNECT_WAIT_NS,
	};
	struct registry_entry *expected = pending->expected;
	uint8_t key[PREAMBLE_KEY_BYTES];
	struct comm *comm;
	int rc;

	opt.eager_bytes =
		p->own.eager_bytes < p->peer.eager_bytes ? p->own.eager_bytes : p->peer.eager_bytes;
	opt.no_credit = (p->peer.features & FEATURE_NO_CREDIT) != 0;
	pending_lane_options(pending, &opt.lane);
	control_unwatch(&pending->source);
	rc = comm_create(&comm, pending->lane, &opt);
	if (rc)
		return rc;
	preamble_comm_key(p, key);
	pending->expected = NULL; /* until the comm is there */
	pending_release(pending);
	if (!acceptor_ready(pending->all->acceptor, p->listen_id, comm, p->comm_id,
			    opt.multi_lane ? key : NULL))
		comm_drop(comm);
	if (expected)
		registry_forget(expected);
	explicit_bzero(key, sizeof(key));
	return 0;
}

/* Lanes without events must be asked. */
static bool pending_is_broken(const struct pending *pending)
{
	struct pollfd at = { .fd = pending->source.fd };

	if (pending->source.watched)
		return poll(&at, 1, 0) > 0;
	return pending->lane->ops->state(pending->lane) == LANE_DEAD;
}

/* READY is about to leave. A connector that has it opens further lanes at once: another thread
 * may see them before this one has seen READY leave. */
static void pending_expect(void *ctx)
{
	struct pending *pending = ctx;
	uint8_t key[PREAMBLE_KEY_BYTES];

	if (pending->preamble.peer.join || !preamble_is_multi_lane(&pending->preamble))
		return;
	preamble_comm_key(&pending->preamble, key);
	pending->expected = registry_expect(pending->preamble.comm_id, key);
	explicit_bzero(key, sizeof(key));
}

/* What comes now belongs to the comm and stays unread until there is one: level-triggered events would repeat. */
static void pending_watch_changes(struct pending *pending)
{
	if (pending->source.watched)
		control_rewatch(&pending->source, EPOLLIN | EPOLLET);
}

/* READY has left. -EAGAIN: it has to wait. */
static int pending_enter(struct pending *pending)
{
	struct lane_info info;
	int rc;

	if (pending->preamble.peer.join)
		return pending_join(pending);
	pending->lane->ops->info(pending->lane, &info);
	/* A kernel without rto_ns does not say what has been acknowledged. */
	if (info.acked_bytes < pending->preamble.sent_bytes &&
	    (pending->lane->kind_bit != LANE_KERNEL || info.rto_ns))
		return -EAGAIN;
	rc = handshake_encrypt(&pending->preamble, &pending->lane);
	if (!rc)
		rc = pending_begin_comm(pending);
	if (rc)
		acceptor_fail(pending->all->acceptor, pending->preamble.listen_id,
			      &pending->lane->remote, rc);
	return rc;
}

static void pending_look_ready(struct pending *pending, uint64_t now_ns)
{
	struct pending_set *pending_set = pending->all;
	uint64_t end_ns = pending->accepted_ns + plugin_config()->connect_timeout_ns;
	uint64_t wait_ns = (now_ns - pending->ready_ns) / 4;
	int rc = pending_enter(pending);

	if (!rc)
		return;
	if (rc != -EAGAIN || now_ns >= end_ns || pending_is_broken(pending)) {
		pending_turn_away(pending);
		return;
	}
	pending->look_ns = now_ns + (wait_ns > READY_LOOK_NS ? wait_ns : READY_LOOK_NS);
	if (pending->look_ns > end_ns)
		pending->look_ns = end_ns;
	if (pending->look_ns >= pending_set->next_ns)
		return;
	pending_set->next_ns = pending->look_ns;
	if (!pending_set->placement)
		control_timer_set(&pending_set->timer, pending_set->next_ns);
}

/* ---- going on --------------------------------------------------------------------------------- */

static void pending_subscribe(struct pending *pending);

/* The caller read its clock before it acquired the poller. Another thread may have polled since with a later timestamp,
 * so the maximum is kept. */
static uint64_t pending_set_clock(struct pending_set *pending_set, uint64_t now_ns)
{
	if (now_ns > pending_set->now_ns)
		pending_set->now_ns = now_ns;
	return pending_set->now_ns;
}

static void pending_advance(struct pending *pending, uint64_t now_ns)
{
	struct preamble *p = &pending->preamble;
	int rc;

	now_ns = pending_set_clock(pending->all, now_ns);
	if (pending->ready_ns) {
		pending_look_ready(pending, now_ns);
		return;
	}
	if (pending->lane->ops->state(pending->lane) == LANE_DEAD) {
		pending_warn_encryption(pending, pending->lane->error, now_ns);
		pending_turn_away(pending);
		return;
	}
	rc = handshake_advance(p, pending->lane);
	if (p->step == PREAMBLE_READ_PROOF && !pending->asked_ns)
		pending->asked_ns = now_ns;
	if (rc == 1) {
		pending->rtt_ns = pending->asked_ns ? now_ns - pending->asked_ns : 0;
		pending->ready_ns = now_ns;
		if (p->peer.join) {
			pending_replaces(pending);
			rc = handshake_encrypt(p, &pending->lane);
			if (!rc)
				pending_subscribe(pending);
		} else {
			pending_watch_changes(pending);
		}
	}
	if (rc < 0) {
		pending_warn_encryption(pending, rc, now_ns);
		pending_turn_away(pending);
	} else if (pending->ready_ns) {
		pending_look_ready(pending, now_ns);
	}
}

static void pending_notify(struct lane *lane, uint64_t now_ns)
{
	pending_advance(lane->owner, now_ns);
}

static void pending_subscribe(struct pending *pending)
{
	pending->lane->owner = pending;
	pending->lane->notify = pending_notify;
}

static void pending_ready(struct control_source *source, uint64_t now_ns)
{
	pending_advance(container_of(source, struct pending, source), now_ns);
}

/* ---- coming, and time ------------------------------------------------------------------------- */

void pending_set_look(struct pending_set *pending_set, uint64_t now_ns)
{
	uint64_t at_ns;

	pending_set->next_ns = UINT64_MAX;
	for (unsigned i = 0; pending_set->count && i < PENDING_MAX; i++) {
		struct pending *pending = &pending_set->pending[i];

		if (!pending->lane)
			continue;
		at_ns = pending->accepted_ns + PENDING_TIME_NS;
		if (pending->ready_ns && now_ns >= pending->look_ns)
			pending_look_ready(pending, now_ns);
		else if (!pending->ready_ns && now_ns >= at_ns)
			pending_turn_away(pending);
		if (pending->lane && pending->ready_ns)
			at_ns = pending->look_ns;
		if (pending->lane && at_ns < pending_set->next_ns)
			pending_set->next_ns = at_ns;
	}
	if (!pending_set->placement)
		control_timer_set(&pending_set->timer, pending_set->next_ns);
}

static void pending_set_due(struct control_timer *timer, uint64_t now_ns)
{
	pending_set_look(container_of(timer, struct pending_set, timer), now_ns);
}

void pending_set_turn_away(struct pending_set *pending_set)
{
	for (unsigned i = 0; i < PENDING_MAX; i++) {
		if (pending_set->pending[i].lane)
			pending_turn_away(&pending_set->pending[i]);
	}
	if (!pending_set->placement)
		control_timer_set(&pending_set->timer, UINT64_MAX);
}

static struct pending *pending_set_place(struct pending_set *pending_set)
{
	unsigned i = 0;

	if (pending_set->count - pending_set->identified == PENDING_UNAUTHENTICATED_MAX)
		return pending_set_drop(pending_set, admission_excess(pending_set, false));
	while (pending_set->pending[i]
		       .lane) /* there is one: known ones are no more than PENDING_IDENTIFIED_MAX */
		i++;
	return &pending_set->pending[i];
}

void pending_set_add(struct pending_set *pending_set, struct lane *lane, int fd, uint64_t now_ns)
{
	struct pending *pending;
	struct preamble_terms own = { .eager_bytes = plugin_config()->eager_bytes,
				      .placement = pending_set->placement,
				      .lanes = pending_set->lanes,
				      .psk = keyfile_key() };

	now_ns = pending_set_clock(pending_set, now_ns);
	pending = pending_set_place(pending_set);
	memset(pending, 0, offsetof(struct pending, preamble));
	pending->all = pending_set;
	pending->lane = lane;
	pending->host = admission_come(pending_set, &lane->remote.addr);
	pending->accepted_ns = now_ns;
	pending->source.ready = pending_ready;
	pending_set->count++;
	own.features = pending_set->placement ? FEATURE_ACK_PROMPTLY : 0;
	preamble_accept(&pending->preamble, &own, pending_lookup, pending);
	pending->preamble.before_ready = pending_expect;
	/* A known nonce would let a replay in; a socket that is not watched would never be looked at. */
	if (getrandom(pending->preamble.own.nonce, PREAMBLE_NONCE_BYTES, GRND_NONBLOCK) !=
		    PREAMBLE_NONCE_BYTES ||
	    (fd >= 0 && control_watch(&pending->source, fd, EPOLLIN))) {
		pending_turn_away(pending);
		return;
	}
	pending_subscribe(pending);
	/* HELLO may have come with it. */
	pending_advance(pending, now_ns);
	if (pending_set->count == 1)
		pending_set_look(pending_set, now_ns);
}

void pending_set_init(struct pending_set *pending_set, struct acceptor *acceptor,
		      const struct placement_end *placement)
{
	pending_set->acceptor = acceptor;
	pending_set->lanes = rails_lanes_taken(acceptor_dev(acceptor));
	pending_set->placement = placement;
	pending_set->timer.run = pending_set_due;
	pending_set->next_ns = UINT64_MAX;
}
