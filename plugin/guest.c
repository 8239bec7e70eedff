/* SPDX-License-Identifier: Apache-2.0 */
/* guest.c - letting in who proves that it knows a handle, keeping out the rest. */
#include "guest.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

/*
 * Theory of operation
 *
 * A door has room for 64 guests; one more and the oldest goes. A guest has 5 s. Nothing a guest sends
 * reaches a comm, and none is waited for: each is looked at once a turn. A peer that was pushed out by a
 * crowd of strangers tries again (connect.c).
 */

#define GUEST_DEADLINE_NS 5000000000ull

static void guest_turn_away(struct guest *guest)
{
	struct lane *lane = guest->lane;

	guest->lane = NULL;
	/* Who has said nothing and reset: a peer that tried several source ports, and another was first. */
	if (guest->preamble.at || lane->error != -ECONNRESET)
		guest->all->turned_away++;
	lane->ops->close(lane, true);
}

static bool guest_lookup(void *ctx, uint64_t listen_id, uint8_t secret[HANDLE_SECRET_BYTES])
{
	return rendezvous_secret(((struct guest *)ctx)->all->rdv, listen_id, secret);
}

/* The preamble is through: the guest's lane becomes a comm. */
static int guest_admit(struct guest *guest)
{
	const struct preamble *p = &guest->preamble;
	struct comm_options opt = { .side = COMM_RECV };
	struct comm *comm;
	int rc;

	opt.eager_bytes =
		p->own.eager_bytes < p->peer.eager_bytes ? p->own.eager_bytes : p->peer.eager_bytes;
	opt.no_credit = (p->peer.features & FEATURE_NO_CREDIT) != 0;
	if (p->peer.features & FEATURE_ACK_PROMPTLY)
		lane_kernel_ack_promptly(guest->lane);
	rc = comm_create(&comm, guest->lane, &opt);
	if (rc)
		return rc;
	guest->lane = NULL;
	if (!rendezvous_ready(guest->all->rdv, p->listen_id, comm))
		comm_drop(comm);
	return 0;
}

static void guest_advance(struct guest *guest, uint64_t now_ns)
{
	int rc;

	if (guest->lane->ops->state(guest->lane) == LANE_DEAD || now_ns >= guest->deadline_ns) {
		guest_turn_away(guest);
		return;
	}
	rc = preamble_advance(&guest->preamble, guest->lane);
	if (rc == 1)
		rc = guest_admit(guest);
	if (rc < 0)
		guest_turn_away(guest);
}

static void guest_notify(struct lane *lane, uint64_t now_ns)
{
	guest_advance(lane->owner, now_ns);
}

void guests_advance(struct guests *guests, uint64_t now_ns)
{
	for (unsigned i = 0; i < GUESTS_MAX; i++) {
		if (guests->guest[i].lane)
			guest_advance(&guests->guest[i], now_ns);
	}
}

void guests_turn_away(struct guests *guests)
{
	for (unsigned i = 0; i < GUESTS_MAX; i++) {
		if (guests->guest[i].lane)
			guest_turn_away(&guests->guest[i]);
	}
}

static struct guest *guests_place(struct guests *guests)
{
	struct guest *oldest = &guests->guest[0];

	for (unsigned i = 0; i < GUESTS_MAX; i++) {
		struct guest *guest = &guests->guest[i];

		if (!guest->lane)
			return guest;
		if (guest->deadline_ns < oldest->deadline_ns)
			oldest = guest;
	}
	guest_turn_away(oldest);
	return oldest;
}

void guests_come(struct guests *guests, struct lane *lane, uint64_t now_ns)
{
	struct guest *guest = guests_place(guests);
	struct preamble_terms own = { .eager_bytes = plugin_config()->eager_bytes,
				      .placement = guests->placement };

	guest->all = guests;
	guest->lane = lane;
	guest->deadline_ns = now_ns + GUEST_DEADLINE_NS;
	if (guests->placement)
		own.features = FEATURE_ACK_PROMPTLY;
	if (getrandom(own.nonce, sizeof(own.nonce), GRND_NONBLOCK) != sizeof(own.nonce)) {
		guest_turn_away(guest); /* a known nonce would let a replay in */
		return;
	}
	preamble_accept(&guest->preamble, &own, guest_lookup, guest);
	lane->owner = guest;
	lane->notify = guest_notify;
}
