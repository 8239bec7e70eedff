/* SPDX-License-Identifier: Apache-2.0 */
/* attempt.c - one lane to one candidate; see attempt.h. */
#include "connect/handshake.h"
#include "connect/attempt.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "process/keyfile.h"
#include "connect/peers.h"
#include "process/log.h"
#include "process/config.h"
#include "device/device.h"

void attempt_stop(struct attempt *attempt)
{
	attempt->under_way = false;
	port_search_stop(&attempt->search);
	if (attempt->lane)
		attempt->lane->ops->close(attempt->lane, true);
	attempt->lane = NULL;
}

static void attempt_fail(struct attempt *attempt, int error, const char *text, uint64_t now_ns)
{
	attempt_stop(attempt);
	attempt->ended(attempt, error, text, now_ns);
}

/* No way was found from queue to queue: said once, and remembered. */
static void attempt_no_way(struct attempt *attempt, const char *silence, uint64_t now_ns)
{
	const struct harp_endpoint *remote = &attempt->candidate.remote;
	char text[HARP_ENDPOINT_TEXT_MAX];

	peers_avoid(remote, engine_index(attempt->candidate.engine), now_ns);
	peers_forget(remote);
	INFO("%s: %s: %s; not tried again for %llu s", plugin_device(attempt->dev)->ifname,
	     harp_endpoint_format(remote, text), silence, PEERS_AVOID_NS / 1000000000u);
}

/* The way to an open lane. True: there is one; else it is still being opened, or the attempt has ended. */
static bool attempt_open(struct attempt *attempt, uint64_t now_ns)
{
	char silence[192] = "";
	int error = 0;

	if (attempt->candidate.harp && !attempt->lane) {
		error = port_search_advance(&attempt->search, now_ns, &attempt->lane);
		if (error == -ETIMEDOUT)
			port_search_silence(&attempt->search, silence, sizeof(silence));
	}
	/* What came before its end is read first: READY may be there. */
	if (attempt->lane &&
	    (attempt->opened || attempt->lane->ops->state(attempt->lane) == LANE_OPEN))
		return true;
	if (attempt->lane && attempt->lane->ops->state(attempt->lane) == LANE_DEAD)
		error = attempt->lane->error;
	if (error >= 0 && now_ns >= attempt->open_deadline_ns)
		error = -ETIMEDOUT;
	if (silence[0])
		attempt_no_way(attempt, silence, now_ns);
	if (error < 0)
		attempt_fail(attempt, error, silence[0] ? silence : lane_error_text(error), now_ns);
	return false;
}

static int attempt_begin_preamble(struct attempt *attempt)
{
	struct preamble_terms *own = &attempt->own;

	own->eager_bytes = plugin_config()->eager_bytes;
	own->psk = keyfile_key();
	/* A kernel lane's sends are done before they have arrived: nothing may come back that could
	 * turn our close into a reset (docs/lanes.md section 5.4). */
	own->features = FEATURE_BUFFERED |
			(attempt->candidate.harp ? FEATURE_ACK_PROMPTLY : FEATURE_NO_CREDIT);
	if (getrandom(own->nonce, sizeof(own->nonce), 0) != sizeof(own->nonce))
		return -EIO;
	preamble_connect(&attempt->preamble, attempt->listen_id, attempt->comm_id, attempt->key,
			 own);
	attempt->opened = true;
	return 0;
}

/* Proved, both of us. */
static void attempt_done(struct attempt *attempt, uint64_t now_ns)
{
	int rc;

	lane_kernel_ack_now(attempt->lane); /* READY: the acceptor waits for that */
	rc = handshake_encrypt(&attempt->preamble, &attempt->lane);
	if (rc) {
		attempt_fail(attempt, rc, lane_error_text(rc), now_ns);
		return;
	}
	if (attempt->preamble.placement.kind != PLACEMENT_NOT_SAID)
		peers_learn(&attempt->candidate.remote, &attempt->preamble.placement);
	if (attempt->preamble.peer.features & FEATURE_ACK_PROMPTLY)
		lane_kernel_ack_promptly(attempt->lane);
	lane_harp_delay_acks(attempt->lane);
	attempt->under_way = false;
	attempt->ended(attempt, 0, "", now_ns);
}

/* The listener answers HELLO or resets, and a reset may be lost. Later than that the acceptor may have made a comm. */
static bool attempt_unanswered(const struct attempt *attempt, uint64_t now_ns)
{
	return attempt->answer_ns && attempt->preamble.step == PREAMBLE_READ_CHALLENGE &&
	       now_ns >= attempt->asked_ns + attempt->answer_ns;
}

void attempt_advance(struct attempt *attempt, uint64_t now_ns)
{
	struct preamble *p = &attempt->preamble;
	int rc;

	if (!attempt->under_way || !attempt_open(attempt, now_ns))
		return;
	rc = attempt->opened ? 0 : attempt_begin_preamble(attempt);
	if (!rc)
		rc = handshake_advance(p, attempt->lane);
	if (p->step == PREAMBLE_READ_CHALLENGE && !attempt->asked_ns)
		attempt->asked_ns = now_ns;
	else if (p->step > PREAMBLE_READ_CHALLENGE && attempt->asked_ns && !attempt->rtt_ns)
		attempt->rtt_ns = now_ns - attempt->asked_ns;
	if (rc == 1)
		attempt_done(attempt, now_ns);
	else if (rc)
		attempt_fail(attempt, rc, p->what ? p->what : lane_error_text(rc), now_ns);
	else if (now_ns >= attempt->deadline_ns || attempt_unanswered(attempt, now_ns))
		attempt_fail(attempt, -ETIMEDOUT, "the peer does not accept; is its rank alive?",
			     now_ns);
}

static void attempt_notify(struct lane *lane, uint64_t now_ns)
{
	attempt_advance(lane->owner, now_ns);
}

/* A HARP lane to a peer's stack, or to a kernel: what is known of the queues there. */
static void attempt_prepare_opening(struct attempt *attempt)
{
	const struct candidate *candidate = &attempt->candidate;
	struct placement_end peer = { .kind = PLACEMENT_NOT_SAID };

	if (candidate->harp_port && !peers_recall(&candidate->remote, &peer)) {
		peer.queues = candidate->peer_queues;
		peer.queue = candidate->peer_queue;
		if (candidate->peer_placement && peer.queues != 1)
			peer.kind = candidate->peer_placement == PLACEMENT_ONE_QUEUE
					    ? PLACEMENT_ONE_QUEUE
					    : PLACEMENT_UNKNOWN;
	}
	port_search_prepare(&attempt->search, candidate->engine, &peer, &candidate->local,
			    &candidate->remote, attempt->dscp);
	if (attempt->ports_max)
		attempt->search.ports_max = attempt->ports_max;
	attempt->search.owner = attempt;
	attempt->search.notify = attempt_notify;
}

void attempt_start(struct attempt *attempt, uint64_t now_ns)
{
	const struct candidate *candidate = &attempt->candidate;
	int rc;

	attempt->opened = false;
	attempt->preamble.what = NULL;
	attempt->preamble.step = PREAMBLE_SEND_HELLO;
	attempt->asked_ns = attempt->rtt_ns = 0;
	attempt->under_way = true;
	if (candidate->harp) {
		attempt_prepare_opening(attempt);
		attempt_advance(attempt, now_ns);
		return;
	}
	rc = lane_kernel_connect(attempt->poller, &candidate->local, &candidate->remote,
				 attempt->dscp, &attempt->lane);
	if (rc)
		attempt_fail(attempt, rc, lane_error_text(rc), now_ns);
}
