/* SPDX-License-Identifier: Apache-2.0 */
/* guest.c - letting in who proves that it knows a handle or a comm, keeping out the rest. */
#include "connect/guest_room.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>

#include "process/keyfile.h"
#include "stats/lane_page.h"
#include "connect/registry.h"

/*
 * Theory of operation
 *
 * Nothing a guest sends reaches a comm before it has proved itself, and none is waited for: a guest is looked at
 * when something has come for it (the stack's events, the keeper's epoll) or when its time is up.
 *
 * Strangers and known ones. A guest is a stranger until its HELLO has named a listen id or comm id that is ours:
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
 * Time. A guest has 5 s, a stranger 1 s while there are more than 32: slow ones are not worth more then.
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

#define GUEST_TIME_NS 5000000000ull
#define GUEST_TIME_CROWDED_NS 1000000000ull
#define READY_LOOK_NS                                                                              \
	100000ull /* at READY's acknowledgement; later ones a quarter of the time since */
#define WARN_AGAIN_NS 5000000000ull

static void guest_gone(struct guest *guest)
{
	if (guest->expected)
		registry_forget(guest->expected);
	guest->expected = NULL;
	keeper_unwatch(&guest->source);
	explicit_bzero(guest->preamble.key, sizeof(guest->preamble.key));
	guest->lane = NULL;
	guest_room_leave(guest);
}

static void guest_turn_away(struct guest *guest)
{
	struct lane *lane = guest->lane;

	guest_gone(guest);
	/* Who has said nothing and reset: a peer that tried several source ports, and another was first. */
	if (guest->preamble.at || lane->error != -ECONNRESET) {
		guest->all->turned_away++;
		lane_page_count(HARP_JOB_strangers_turned_away, 1);
	}
	lane->ops->close(lane, true);
}

static struct guest *guests_push_out(struct guests *guests, struct guest *out)
{
	guests->pushed_out++;
	guest_turn_away(out);
	return out;
}

/* It has proved that it knows the handle. */
static bool guest_may_enter(struct guest *guest)
{
	struct guests *guests = guest->all;
	uint64_t listen_id = guest->preamble.listen_id;
	struct guest *out = NULL;
	bool room = rendezvous_has_room(guests->rdv, listen_id) &&
		    guest_room_lets_in(guests, listen_id, &out);

	if (out)
		guests_push_out(guests, out);
	if (!room)
		rendezvous_say_full(guests->rdv, listen_id, &guest->lane->remote);
	return room;
}

/* It has named an id of ours, and heard nothing yet. False: it has to go. */
static bool guest_becomes_known(struct guest *guest)
{
	struct guests *guests = guest->all;
	struct guest *out;

	guest->known = true;
	guest->host->known++;
	if (++guests->known <= GUESTS_KNOWN_MAX)
		return true;
	out = guest_room_excess(guests, true);
	if (out != guest)
		guests_push_out(guests, out);
	return out != guest;
}

static bool guest_lookup(void *ctx, struct preamble *p, uint8_t key[PREAMBLE_KEY_BYTES])
{
	struct guest *guest = ctx;

	if (p->peer.join ? !registry_key(p->comm_id, key)
			 : !rendezvous_secret(guest->all->rdv, p->listen_id, key))
		return false;
	if (p->step != PREAMBLE_READ_HELLO) {
		p->full = !p->peer.join && !guest_may_enter(guest);
		return true;
	}
	p->full = !guest_becomes_known(guest);
	if (!p->peer.join && preamble_several(p)) {
		p->own.rails = guest->rails;
		p->own.rails_bytes = rendezvous_tell(guest->all->rdv, guest->rails);
	}
	return true;
}

/*
 * A peer that knows a listen id of ours and can't come in because of HARP_ENCRYPT or HARP_KEY_FILE: the
 * connector says it at its end, and so do we, now and then.
 */
static void guest_warn_sealed(struct guest *guest, int error, uint64_t now_ns)
{
	const struct preamble *p = &guest->preamble;
	char peer[HARP_ENDPOINT_TEXT_MAX];
	const char *text = NULL;

	if (error == -EPROTONOSUPPORT && (p->own.features ^ p->peer.features) & FEATURE_SEALED)
		text = p->what;
	else if (error == -ECONNRESET && p->own.psk && p->step == PREAMBLE_READ_PROOF)
		text = "it left at our proof: do the pre-shared keys (HARP_KEY_FILE) differ?";
	if (!text || (guest->all->warned_ns && now_ns - guest->all->warned_ns < WARN_AGAIN_NS))
		return;
	guest->all->warned_ns = now_ns;
	WARN("turned away %s: %s", harp_endpoint_format(&guest->lane->remote, peer), text);
}

/* ---- admitting -------------------------------------------------------------------------------- */

static void guest_lane_options(const struct guest *guest, struct comm_lane_options *opt)
{
	const struct preamble *p = &guest->preamble;

	opt->index = p->peer.index;
	opt->dev = rendezvous_dev(guest->all->rdv);
	opt->sent_bytes = p->sent_bytes;
	opt->rtt_ns = guest->rtt_ns;
	if (p->peer.features & FEATURE_ACK_PROMPTLY)
		lane_kernel_ack_promptly(guest->lane);
}

/* Of those that wait for their comm: let in behind its successor it would take that one's place. */
static void guest_replaces(struct guest *guest)
{
	const struct preamble *p = &guest->preamble;

	for (unsigned i = 0; i < GUESTS_MAX; i++) {
		struct guest *old = &guest->all->guest[i];
		struct lane *lane = old->lane;

		if (old == guest || !lane || !old->ready_ns || !old->preamble.peer.join ||
		    old->preamble.comm_id != p->comm_id ||
		    old->preamble.peer.index != p->peer.index)
			continue;
		guest_gone(old);
		lane->ops->close(lane, true);
	}
}

/* A further lane of a comm that is there. */
static int guest_join(struct guest *guest)
{
	struct comm_lane_options opt = { 0 };
	int rc;

	guest_lane_options(guest, &opt);
	keeper_unwatch(&guest->source); /* the comm may close it at once */
	rc = registry_join(guest->preamble.comm_id, guest->preamble.key, guest->lane, &opt);
	if (!rc)
		guest_gone(guest);
	return rc;
}

/* The guest's lane becomes a comm. */
static int guest_begin_comm(struct guest *guest)
{
	const struct preamble *p = &guest->preamble;
	struct comm_options opt = {
		.side = COMM_RECV,
		.several = preamble_several(p),
		.kept = (p->peer.features & FEATURE_KEPT) != 0,
		.comm_id = p->comm_id,
		.revive_ns = COMM_REVIVE_NS,
	};
	struct registry_entry *expected = guest->expected;
	uint8_t key[PREAMBLE_KEY_BYTES];
	struct comm *comm;
	int rc;

	opt.eager_bytes =
		p->own.eager_bytes < p->peer.eager_bytes ? p->own.eager_bytes : p->peer.eager_bytes;
	opt.no_credit = (p->peer.features & FEATURE_NO_CREDIT) != 0;
	guest_lane_options(guest, &opt.lane);
	keeper_unwatch(&guest->source);
	rc = comm_create(&comm, guest->lane, &opt);
	if (rc)
		return rc;
	preamble_comm_key(p, key);
	guest->expected = NULL; /* until the comm is there */
	guest_gone(guest);
	if (!rendezvous_ready(guest->all->rdv, p->listen_id, comm, p->comm_id,
			      opt.several ? key : NULL))
		comm_drop(comm);
	if (expected)
		registry_forget(expected);
	explicit_bzero(key, sizeof(key));
	return 0;
}

/* A lane without events tells it only to who asks. */
static bool guest_is_cut(const struct guest *guest)
{
	struct pollfd at = { .fd = guest->source.fd };

	if (guest->source.watched)
		return poll(&at, 1, 0) > 0;
	return guest->lane->ops->state(guest->lane) == LANE_DEAD;
}

/* A kernel that does not say what has been acknowledged. */
static bool guest_cannot_tell(const struct guest *guest, const struct lane_info *info)
{
	return guest->lane->kind_bit == LANE_KERNEL && !info->rto_ns;
}

/* READY is about to leave. A connector that has it opens further lanes at once: another thread
 * may see them before this one has seen READY leave. */
static void guest_expect(void *ctx)
{
	struct guest *guest = ctx;
	uint8_t key[PREAMBLE_KEY_BYTES];

	if (guest->preamble.peer.join || !preamble_several(&guest->preamble))
		return;
	preamble_comm_key(&guest->preamble, key);
	guest->expected = registry_expect(guest->preamble.comm_id, key);
	explicit_bzero(key, sizeof(key));
}

/* What comes now is its comm's, and stays unread until there is one: told each time the keeper would turn round and round. */
static void guest_leaves_the_rest(struct guest *guest)
{
	if (guest->source.watched)
		keeper_rewatch(&guest->source, EPOLLIN | EPOLLET);
}

/* READY has left. -EAGAIN: it has to wait. */
static int guest_enter(struct guest *guest)
{
	struct lane_info info;
	int rc;

	if (guest->preamble.peer.join)
		return guest_join(guest);
	guest->lane->ops->info(guest->lane, &info);
	if (info.acked_bytes < guest->preamble.sent_bytes && !guest_cannot_tell(guest, &info))
		return -EAGAIN;
	rc = preamble_seal(&guest->preamble, &guest->lane);
	if (!rc)
		rc = guest_begin_comm(guest);
	if (rc)
		rendezvous_fail(guest->all->rdv, guest->preamble.listen_id, &guest->lane->remote,
				rc);
	return rc;
}

static void guest_look_ready(struct guest *guest, uint64_t now_ns)
{
	struct guests *guests = guest->all;
	uint64_t end_ns = guest->came_ns + plugin_config()->connect_timeout_ns;
	uint64_t wait_ns = (now_ns - guest->ready_ns) / 4;
	int rc = guest_enter(guest);

	if (!rc)
		return;
	if (rc != -EAGAIN || now_ns >= end_ns || guest_is_cut(guest)) {
		guest_turn_away(guest);
		return;
	}
	guest->look_ns = now_ns + (wait_ns > READY_LOOK_NS ? wait_ns : READY_LOOK_NS);
	if (guest->look_ns > end_ns)
		guest->look_ns = end_ns;
	if (guest->look_ns >= guests->next_ns)
		return;
	guests->next_ns = guest->look_ns;
	if (!guests->placement)
		keeper_timer_set(&guests->timer, guests->next_ns);
}

/* ---- going on --------------------------------------------------------------------------------- */

static void guest_hears(struct guest *guest);

/* Who takes a turn read the clock before he had the baton: another may have been here since, with a later one. */
static uint64_t guests_clock(struct guests *guests, uint64_t now_ns)
{
	if (now_ns > guests->now_ns)
		guests->now_ns = now_ns;
	return guests->now_ns;
}

static void guest_advance(struct guest *guest, uint64_t now_ns)
{
	struct preamble *p = &guest->preamble;
	int rc;

	now_ns = guests_clock(guest->all, now_ns);
	if (guest->ready_ns) {
		guest_look_ready(guest, now_ns);
		return;
	}
	if (guest->lane->ops->state(guest->lane) == LANE_DEAD) {
		guest_warn_sealed(guest, guest->lane->error, now_ns);
		guest_turn_away(guest);
		return;
	}
	rc = preamble_advance(p, guest->lane);
	if (p->step == PREAMBLE_READ_PROOF && !guest->asked_ns)
		guest->asked_ns = now_ns;
	if (rc == 1) {
		guest->rtt_ns = guest->asked_ns ? now_ns - guest->asked_ns : 0;
		guest->ready_ns = now_ns;
		if (p->peer.join) {
			guest_replaces(guest);
			rc = preamble_seal(p, &guest->lane);
			if (!rc)
				guest_hears(guest);
		} else {
			guest_leaves_the_rest(guest);
		}
	}
	if (rc < 0) {
		guest_warn_sealed(guest, rc, now_ns);
		guest_turn_away(guest);
	} else if (guest->ready_ns) {
		guest_look_ready(guest, now_ns);
	}
}

static void guest_notify(struct lane *lane, uint64_t now_ns)
{
	guest_advance(lane->owner, now_ns);
}

static void guest_hears(struct guest *guest)
{
	guest->lane->owner = guest;
	guest->lane->notify = guest_notify;
}

static void guest_ready(struct keeper_source *source, uint64_t now_ns)
{
	guest_advance((struct guest *)((char *)source - offsetof(struct guest, source)), now_ns);
}

/* ---- coming, and time ------------------------------------------------------------------------- */

static unsigned guests_strangers(const struct guests *guests)
{
	return guests->count - guests->known;
}

void guests_look(struct guests *guests, uint64_t now_ns)
{
	bool crowd = guests_strangers(guests) > GUESTS_STRANGERS_MANY;
	uint64_t at_ns;

	guests->next_ns = UINT64_MAX;
	for (unsigned i = 0; guests->count && i < GUESTS_MAX; i++) {
		struct guest *guest = &guests->guest[i];

		if (!guest->lane)
			continue;
		at_ns = guest->came_ns +
			(crowd && !guest->known ? GUEST_TIME_CROWDED_NS : GUEST_TIME_NS);
		if (guest->ready_ns && now_ns >= guest->look_ns)
			guest_look_ready(guest, now_ns);
		else if (!guest->ready_ns && now_ns >= at_ns)
			guest_turn_away(guest);
		if (guest->lane && guest->ready_ns)
			at_ns = guest->look_ns;
		if (guest->lane && at_ns < guests->next_ns)
			guests->next_ns = at_ns;
	}
	if (!guests->placement)
		keeper_timer_set(&guests->timer, guests->next_ns);
}

static void guests_due(struct keeper_timer *timer, uint64_t now_ns)
{
	guests_look((struct guests *)((char *)timer - offsetof(struct guests, timer)), now_ns);
}

void guests_turn_away(struct guests *guests)
{
	for (unsigned i = 0; i < GUESTS_MAX; i++) {
		if (guests->guest[i].lane)
			guest_turn_away(&guests->guest[i]);
	}
	if (!guests->placement)
		keeper_timer_set(&guests->timer, UINT64_MAX);
}

static struct guest *guests_place(struct guests *guests)
{
	unsigned i = 0;

	if (guests_strangers(guests) == GUESTS_STRANGERS_MAX)
		return guests_push_out(guests, guest_room_excess(guests, false));
	while (guests->guest[i]
		       .lane) /* there is one: known ones are no more than GUESTS_KNOWN_MAX */
		i++;
	return &guests->guest[i];
}

void guests_come(struct guests *guests, struct lane *lane, int fd, uint64_t now_ns)
{
	struct guest *guest;
	struct preamble_terms own = { .eager_bytes = plugin_config()->eager_bytes,
				      .placement = guests->placement,
				      .lanes = guests->lanes,
				      .psk = keyfile_key() };

	now_ns = guests_clock(guests, now_ns);
	guest = guests_place(guests);
	memset(guest, 0, offsetof(struct guest, preamble));
	guest->all = guests;
	guest->lane = lane;
	guest->host = guest_room_come(guests, &lane->remote.addr);
	guest->came_ns = now_ns;
	guest->source.ready = guest_ready;
	guests->count++;
	own.features = guests->placement ? FEATURE_ACK_PROMPTLY : 0;
	preamble_accept(&guest->preamble, &own, guest_lookup, guest);
	guest->preamble.before_ready = guest_expect;
	/* A known nonce would let a replay in; a socket that is not watched would never be looked at. */
	if (getrandom(guest->preamble.own.nonce, PREAMBLE_NONCE_BYTES, GRND_NONBLOCK) !=
		    PREAMBLE_NONCE_BYTES ||
	    (fd >= 0 && keeper_watch(&guest->source, fd, EPOLLIN))) {
		guest_turn_away(guest);
		return;
	}
	guest_hears(guest);
	/* HELLO may have come with it. */
	guest_advance(guest, now_ns);
	if (guests->count == 1 || guests_strangers(guests) == GUESTS_STRANGERS_MANY + 1)
		guests_look(guests, now_ns);
}

void guests_init(struct guests *guests, struct rendezvous *rdv,
		 const struct placement_end *placement)
{
	guests->rdv = rdv;
	guests->lanes = rails_lanes_taken(rendezvous_dev(rdv));
	guests->placement = placement;
	guests->timer.run = guests_due;
	guests->next_ns = UINT64_MAX;
}
