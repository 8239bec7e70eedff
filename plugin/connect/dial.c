/* SPDX-License-Identifier: Apache-2.0 */
/* dial.c - one lane to one candidate; see dial.h. */
#include "connect/dial.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "process/keyfile.h"
#include "connect/peers.h"

void dial_stop(struct dial *dial)
{
	dial->under_way = false;
	opening_stop(&dial->opening);
	if (dial->lane)
		dial->lane->ops->close(dial->lane, true);
	dial->lane = NULL;
}

static void dial_fail(struct dial *dial, int error, const char *text, uint64_t now_ns)
{
	dial_stop(dial);
	dial->ended(dial, error, text, now_ns);
}

/* No way was found from queue to queue: said once, and remembered. */
static void dial_no_way(struct dial *dial, const char *silence, uint64_t now_ns)
{
	const struct harp_endpoint *remote = &dial->candidate.remote;
	char text[HARP_ENDPOINT_TEXT_MAX];
	bool deaf = engine_not_heard(dial->candidate.engine, now_ns);

	peers_avoid(remote, engine_index(dial->candidate.engine), now_ns);
	peers_forget(remote);
	INFO("%s: %s: %s; not tried again for %llu s%s", plugin_device(dial->dev)->ifname,
	     harp_endpoint_format(remote, text), silence, PEERS_AVOID_NS / 1000000000u,
	     deaf ? ", and this instance, which has not heard from anyone yet, is used last" : "");
}

/* The way to an open lane. True: there is one; else it is still being opened, or the dial has ended. */
static bool dial_open(struct dial *dial, uint64_t now_ns)
{
	char silence[192] = "";
	int error = 0;

	if (dial->candidate.harp && !dial->lane) {
		error = opening_advance(&dial->opening, now_ns, &dial->lane);
		if (error == -ETIMEDOUT)
			opening_silence(&dial->opening, silence, sizeof(silence));
	}
	/* What came before its end is read first: READY may be there. */
	if (dial->lane && (dial->opened || dial->lane->ops->state(dial->lane) == LANE_OPEN))
		return true;
	if (dial->lane && dial->lane->ops->state(dial->lane) == LANE_DEAD)
		error = dial->lane->error;
	if (error >= 0 && now_ns >= dial->open_deadline_ns)
		error = -ETIMEDOUT;
	if (silence[0])
		dial_no_way(dial, silence, now_ns);
	if (error < 0)
		dial_fail(dial, error, silence[0] ? silence : lane_error_text(error), now_ns);
	return false;
}

static int dial_begin_preamble(struct dial *dial)
{
	struct preamble_terms *own = &dial->own;

	own->eager_bytes = plugin_config()->eager_bytes;
	own->psk = keyfile_key();
	/* A kernel lane's sends are done before they have arrived: nothing may come back that could
	 * turn our close into a reset (docs/lanes.md section 5.4). */
	own->features =
		FEATURE_KEPT | (dial->candidate.harp ? FEATURE_ACK_PROMPTLY : FEATURE_NO_CREDIT);
	if (getrandom(own->nonce, sizeof(own->nonce), 0) != sizeof(own->nonce))
		return -EIO;
	preamble_connect(&dial->preamble, dial->listen_id, dial->comm_id, dial->key, own);
	dial->opened = true;
	return 0;
}

/* Proved, both of us. */
static void dial_done(struct dial *dial, uint64_t now_ns)
{
	struct placement_end end;
	int rc;

	lane_kernel_ack_now(dial->lane); /* READY: the acceptor waits for that */
	rc = preamble_seal(&dial->preamble, &dial->lane);
	if (rc) {
		dial_fail(dial, rc, lane_error_text(rc), now_ns);
		return;
	}
	if (preamble_placement(&dial->preamble, &end))
		peers_learn(&dial->candidate.remote, &end);
	if (dial->preamble.peer.features & FEATURE_ACK_PROMPTLY)
		lane_kernel_ack_promptly(dial->lane);
	lane_harp_delay_acks(dial->lane);
	dial->under_way = false;
	dial->ended(dial, 0, "", now_ns);
}

/* The door answers HELLO or resets, and a reset may be lost. Later than that the acceptor may have made a comm. */
static bool dial_unanswered(const struct dial *dial, uint64_t now_ns)
{
	return dial->answer_ns && dial->preamble.step == PREAMBLE_READ_CHALLENGE &&
	       now_ns >= dial->asked_ns + dial->answer_ns;
}

void dial_advance(struct dial *dial, uint64_t now_ns)
{
	struct preamble *p = &dial->preamble;
	int rc;

	if (!dial->under_way || !dial_open(dial, now_ns))
		return;
	rc = dial->opened ? 0 : dial_begin_preamble(dial);
	if (!rc)
		rc = preamble_advance(p, dial->lane);
	if (p->step == PREAMBLE_READ_CHALLENGE && !dial->asked_ns)
		dial->asked_ns = now_ns;
	else if (p->step > PREAMBLE_READ_CHALLENGE && dial->asked_ns && !dial->rtt_ns)
		dial->rtt_ns = now_ns - dial->asked_ns;
	if (rc == 1)
		dial_done(dial, now_ns);
	else if (rc)
		dial_fail(dial, rc, p->what ? p->what : lane_error_text(rc), now_ns);
	else if (now_ns >= dial->deadline_ns || dial_unanswered(dial, now_ns))
		dial_fail(dial, -ETIMEDOUT, "the peer does not accept; is its rank alive?", now_ns);
}

static void dial_notify(struct lane *lane, uint64_t now_ns)
{
	dial_advance(lane->owner, now_ns);
}

/* A HARP lane to a peer's stack, or to a kernel: what is known of the queues there. */
static void dial_prepare_opening(struct dial *dial)
{
	const struct candidate *candidate = &dial->candidate;
	struct placement_end peer = { .kind = PLACEMENT_NOT_SAID };

	if (candidate->harp_port && !peers_recall(&candidate->remote, &peer)) {
		peer.queues = candidate->peer_queues;
		peer.queue = candidate->peer_queue;
		if (candidate->peer_placement && peer.queues != 1)
			peer.kind = candidate->peer_placement == PLACEMENT_ONE_QUEUE
					    ? PLACEMENT_ONE_QUEUE
					    : PLACEMENT_UNKNOWN;
	}
	opening_prepare(&dial->opening, candidate->engine, &peer, &candidate->local,
			&candidate->remote, dial->dscp);
	if (dial->ports_max)
		dial->opening.ports_max = dial->ports_max;
	dial->opening.owner = dial;
	dial->opening.notify = dial_notify;
}

void dial_start(struct dial *dial, uint64_t now_ns)
{
	const struct candidate *candidate = &dial->candidate;
	int rc;

	dial->opened = false;
	dial->preamble.what = NULL;
	dial->preamble.step = PREAMBLE_SEND_HELLO;
	dial->asked_ns = dial->rtt_ns = 0;
	dial->under_way = true;
	if (candidate->harp) {
		dial_prepare_opening(dial);
		dial_advance(dial, now_ns);
		return;
	}
	rc = lane_kernel_connect(dial->driver, &candidate->local, &candidate->remote, dial->dscp,
				 &dial->lane);
	if (rc)
		dial_fail(dial, rc, lane_error_text(rc), now_ns);
}
