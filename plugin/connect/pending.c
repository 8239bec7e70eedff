/* SPDX-License-Identifier: Apache-2.0 */
/* pending.c - letting in who proves that it knows a handle or a comm, keeping out the rest. */
#include "connect/handshake.h"
#include "connect/admission.h"

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
 * Nothing a pending sends reaches a comm before it has proved itself, and none is waited for: a pending is looked at
 * when something has come for it (the stack's events, the keeper's epoll) or when its time is up.
 *
 * Strangers and known ones. A pending is a stranger until its HELLO has named a listen id or comm id that is ours:
 * 64 bits drawn at random, which are in handles and go by in the clear. So who names one is a peer, or reads along; who does
 * not take part in the job stays a stranger.
 *
 * Room. A door has room for 64 strangers. When one more comes, one goes: of the address that has the most strangers
 * here, the oldest. So who opens hundreds of connections pushes out its own, and a peer that is alone at
 * its address stays. Strangers at many addresses can still push it out before its HELLO; it tries again (connect.c,
 * upkeep.c). Strangers never push out a known one.
 *
 * Of known ones there is room for 192. One more, and of the address that has the most the newest goes: when
 * hundreds of peers come at once those that are here first are through first, and make room, while the oldest
 * would be pushed out by the next for ever. Of an address those go first whose TCP has not acknowledged READY for a second (see
 * below); who was given READY just now never does.
 *
 * Time. A pending has 5 s, a stranger 1 s while there are more than 32: slow ones are not worth more then.
 *
 * READY. A first lane that breaks with READY on its way is nothing: its connector tries again, and an application that had its
 * comm by then would never hear of the second. So the comm is made when the connector's TCP has acknowledged READY, which is
 * a round trip later: a HARP lane tells, a kernel lane is asked. Who waits for that has proved itself
 * and has as long as connectors try; but the handle that it knows might be anybody's who then keeps silent. So 64 of one listen comm
 * are in that state at a door, and no more than there is room left for others. So who knows some handles and keeps silent
 * leaves room for who knows another: two have 64 of the 192 places each, a third 32, and so on down to the ninth. One more, and
 * who has been silent for longest, a second at least, makes room; if nobody has, the newcomer is turned away before READY, as
 * he is while 64 comms wait to be accepted, and comes again.
 *
 * A further lane joins at once, its comm survives it; unless it was quicker than the
 * acknowledgement: then it waits, too, for as long as its comm is expected.
 */

#define PENDING_TIME_NS 5000000000ull
#define PENDING_TIME_CROWDED_NS 1000000000ull
#define READY_LOOK_NS                                                                              \
	100000ull /* at READY's acknowledgement; later ones a quarter of the time since */
#define WARN_AGAIN_NS 5000000000ull

static void pending_gone(struct pending *pending)
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

	pending_gone(pending);
	/* Who has said nothing and reset: a peer that tried several source ports, and another was first. */
	if (pending->preamble.at || lane->error != -ECONNRESET) {
		pending->all->turned_away++;
		lane_page_count(HARP_JOB_strangers_turned_away, 1);
	}
	lane->ops->close(lane, true);
}

static struct pending *pending_set_push_out(struct pending_set *pending_set, struct pending *out)
{
	pending_set->pushed_out++;
	pending_turn_away(out);
	return out;
}

/* It has proved that it knows the handle. */
static bool pending_may_enter(struct pending *pending)
{
	struct pending_set *pending_set = pending->all;
	uint64_t listen_id = pending->preamble.listen_id;
	struct pending *out = NULL;
	bool room = acceptor_has_room(pending_set->acceptor, listen_id) &&
		    admission_lets_in(pending_set, listen_id, &out);

	if (out)
		pending_set_push_out(pending_set, out);
	if (!room)
		acceptor_say_full(pending_set->acceptor, listen_id, &pending->lane->remote);
	return room;
}

/* It has named an id of ours, and heard nothing yet. False: it has to go. */
static bool pending_becomes_known(struct pending *pending)
{
	struct pending_set *pending_set = pending->all;
	struct pending *out;

	pending->known = true;
	pending->host->known++;
	if (++pending_set->known <= PENDING_IDENTIFIED_MAX)
		return true;
	out = admission_excess(pending_set, true);
	if (out != pending)
		pending_set_push_out(pending_set, out);
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
	p->full = !pending_becomes_known(pending);
	if (!p->peer.join && preamble_several(p)) {
		p->own.rails = pending->rails;
		p->own.rails_bytes = acceptor_tell(pending->all->acceptor, pending->rails);
	}
	return true;
}

/*
 * A peer that knows a listen id of ours and can't come in because of HARP_ENCRYPT or HARP_KEY_FILE: the
 * connector says it at its end, and so do we, now and then.
 */
static void pending_warn_sealed(struct pending *pending, int error, uint64_t now_ns)
{
	const struct preamble *p = &pending->preamble;
	char peer[HARP_ENDPOINT_TEXT_MAX];
	const char *text = NULL;

	if (error == -EPROTONOSUPPORT && (p->own.features ^ p->peer.features) & FEATURE_SEALED)
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
		pending_gone(old);
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
		pending_gone(pending);
	return rc;
}

/* The pending's lane becomes a comm. */
static int pending_begin_comm(struct pending *pending)
{
	const struct preamble *p = &pending->preamble;
	struct comm_options opt = {
		.side = COMM_RECV,
		.several = preamble_several(p),
		.kept = (p->peer.features & FEATURE_KEPT) != 0,
		.comm_id = p->comm_id,
		.revive_ns = COMM_REVIVE_NS,
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
	pending_gone(pending);
	if (!acceptor_ready(pending->all->acceptor, p->listen_id, comm, p->comm_id,
			    opt.several ? key : NULL))
		comm_drop(comm);
	if (expected)
		registry_forget(expected);
	explicit_bzero(key, sizeof(key));
	return 0;
}

/* A lane without events tells it only to who asks. */
static bool pending_is_cut(const struct pending *pending)
{
	struct pollfd at = { .fd = pending->source.fd };

	if (pending->source.watched)
		return poll(&at, 1, 0) > 0;
	return pending->lane->ops->state(pending->lane) == LANE_DEAD;
}

/* A kernel that does not say what has been acknowledged. */
static bool pending_cannot_tell(const struct pending *pending, const struct lane_info *info)
{
	return pending->lane->kind_bit == LANE_KERNEL && !info->rto_ns;
}

/* READY is about to leave. A connector that has it opens further lanes at once: another thread
 * may see them before this one has seen READY leave. */
static void pending_expect(void *ctx)
{
	struct pending *pending = ctx;
	uint8_t key[PREAMBLE_KEY_BYTES];

	if (pending->preamble.peer.join || !preamble_several(&pending->preamble))
		return;
	preamble_comm_key(&pending->preamble, key);
	pending->expected = registry_expect(pending->preamble.comm_id, key);
	explicit_bzero(key, sizeof(key));
}

/* What comes now is its comm's, and stays unread until there is one: told each time the keeper would turn round and round. */
static void pending_leaves_the_rest(struct pending *pending)
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
	if (info.acked_bytes < pending->preamble.sent_bytes && !pending_cannot_tell(pending, &info))
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
	uint64_t end_ns = pending->came_ns + plugin_config()->connect_timeout_ns;
	uint64_t wait_ns = (now_ns - pending->ready_ns) / 4;
	int rc = pending_enter(pending);

	if (!rc)
		return;
	if (rc != -EAGAIN || now_ns >= end_ns || pending_is_cut(pending)) {
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

static void pending_hears(struct pending *pending);

/* Who takes a turn read the clock before he had the baton: another may have been here since, with a later one. */
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
		pending_warn_sealed(pending, pending->lane->error, now_ns);
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
				pending_hears(pending);
		} else {
			pending_leaves_the_rest(pending);
		}
	}
	if (rc < 0) {
		pending_warn_sealed(pending, rc, now_ns);
		pending_turn_away(pending);
	} else if (pending->ready_ns) {
		pending_look_ready(pending, now_ns);
	}
}

static void pending_notify(struct lane *lane, uint64_t now_ns)
{
	pending_advance(lane->owner, now_ns);
}

static void pending_hears(struct pending *pending)
{
	pending->lane->owner = pending;
	pending->lane->notify = pending_notify;
}

static void pending_ready(struct control_source *source, uint64_t now_ns)
{
	pending_advance((struct pending *)((char *)source - offsetof(struct pending, source)),
			now_ns);
}

/* ---- coming, and time ------------------------------------------------------------------------- */

static unsigned pending_set_strangers(const struct pending_set *pending_set)
{
	return pending_set->count - pending_set->known;
}

void pending_set_look(struct pending_set *pending_set, uint64_t now_ns)
{
	bool crowd = pending_set_strangers(pending_set) > PENDING_UNAUTHENTICATED_MANY;
	uint64_t at_ns;

	pending_set->next_ns = UINT64_MAX;
	for (unsigned i = 0; pending_set->count && i < PENDING_MAX; i++) {
		struct pending *pending = &pending_set->pending[i];

		if (!pending->lane)
			continue;
		at_ns = pending->came_ns +
			(crowd && !pending->known ? PENDING_TIME_CROWDED_NS : PENDING_TIME_NS);
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
	pending_set_look((struct pending_set *)((char *)timer -
						offsetof(struct pending_set, timer)),
			 now_ns);
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

	if (pending_set_strangers(pending_set) == PENDING_UNAUTHENTICATED_MAX)
		return pending_set_push_out(pending_set, admission_excess(pending_set, false));
	while (pending_set->pending[i]
		       .lane) /* there is one: known ones are no more than PENDING_IDENTIFIED_MAX */
		i++;
	return &pending_set->pending[i];
}

void pending_set_come(struct pending_set *pending_set, struct lane *lane, int fd, uint64_t now_ns)
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
	pending->came_ns = now_ns;
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
	pending_hears(pending);
	/* HELLO may have come with it. */
	pending_advance(pending, now_ns);
	if (pending_set->count == 1 ||
	    pending_set_strangers(pending_set) == PENDING_UNAUTHENTICATED_MANY + 1)
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
