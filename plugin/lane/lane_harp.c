/* SPDX-License-Identifier: Apache-2.0 */
/* lane_harp.c - a lane over a connection of HARP's TCP. */
#include "lane/lane_harp.h"
#include "base/util.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harp_page.h"
#include "lane/place.h"
#include "process/config.h"

/*
 * Theory of operation
 *
 * The poller of the engine is held throughout. The stack's events arrive at lane_harp_event().
 * While the lane has an owner, they become calls of notify(); afterwards they drive the close.
 *
 * Closing. An orderly close continues without an owner: the FIN follows queued data, received data
 * is dropped, and the connection stays until the peer closes, or until the linger time is over and
 * the peer has acknowledged everything (after 2 s in any case). So a receiver still acknowledges
 * retransmissions of data that it has received (contract section 3.8), the sender's last bytes are
 * not answered by a reset, and small messages, which complete before they are acknowledged, arrive.
 *
 * Watching. While a request is outstanding, TCP keepalive probes the connection every
 * probe_interval_ns: the host of a dead process answers with RST. Requests start and end millions
 * of times per second, so lane_harp_tick() polls for them and switches the timer.
 */

/* In one peek. A segment of MTU 9000 is in three frames. */
#define PEEK_PIECES 32
/* A closing lane waits for acknowledgments for at most this long. */
#define DELIVER_NS 2000000000u

static struct lane_harp *to_harp(struct lane *lane)
{
	return (struct lane_harp *)lane;
}

static enum lane_state lane_harp_state(struct lane *lane)
{
	if (lane->error)
		return LANE_DEAD;
	return to_harp(lane)->connected ? LANE_OPEN : LANE_CONNECTING;
}

static int lane_harp_fail(struct lane *lane, int error)
{
	if (!lane->error) {
		lane->error = error;
		engine_capture_post(to_harp(lane)->engine);
	}
	return lane->error;
}

/* Sends large pieces of registered memory (memory.c) in place, and copies others. */
static ssize_t lane_harp_send_pieces(struct lane_harp *h, const struct iovec *iov, int iov_count)
{
	ssize_t done = 0;

	for (int i = 0; i < iov_count; i++) {
		ssize_t n = -EFAULT;

		if (iov[i].iov_len > LANE_COPIED_BYTES_MAX)
			n = harp_conn_send_external(h->conn, iov[i].iov_base, iov[i].iov_len);
		if (n > 0)
			h->external_end = h->sent_bytes + (uint64_t)done + (uint64_t)n;
		if (n == -EFAULT)
			n = harp_conn_send(h->conn, &iov[i], 1); /* COPY into frames */
		if (n < 0)
			return done ? done : n;
		done += n;
		if ((size_t)n < iov[i].iov_len)
			break;
	}
	return done;
}

static ssize_t lane_harp_send(struct lane *lane, const struct iovec *iov, int iov_count)
{
	struct lane_harp *h = to_harp(lane);
	ssize_t n;

	if (lane->error)
		return lane->error;
	if (h->in_place)
		n = lane_harp_send_pieces(h, iov, iov_count);
	else
		n = harp_conn_send(h->conn, iov,
				   iov_count); /* COPY into frames, counted by the stack */
	if (n < 0)
		return n == -EAGAIN ? n : lane_harp_fail(lane, (int)n);
	h->sent_bytes += (uint64_t)n;
	return n;
}

/* Result of recv() when less than a unit is left: 0 at the end of the stream, where no more
 * follows, the error of a dead connection, else -EAGAIN. */
static ssize_t lane_harp_remainder(struct lane_harp *h)
{
	struct harp_tcp_info info;

	if (h->lane.error)
		return h->lane.error;
	harp_conn_info(h->conn, &info);
	switch (info.state) {
	case HARP_TCP_CLOSE_WAIT:
	case HARP_TCP_CLOSING:
	case HARP_TCP_LAST_ACK:
	case HARP_TCP_TIME_WAIT:
	case HARP_TCP_CLOSED:
		return 0;
	default:
		return -EAGAIN;
	}
}

static ssize_t lane_harp_recv(struct lane *lane, void *dst, size_t len, unsigned unit)
{
	struct lane_harp *h = to_harp(lane);
	struct iovec pieces[PEEK_PIECES];
	size_t placed = 0;

	while (placed < len) {
		size_t avail = 0, commit;
		int n = harp_conn_peek(h->conn, pieces, PEEK_PIECES);

		if (n <= 0) {
			if (placed)
				break;
			if (n < 0 && n != -EAGAIN)
				return lane_harp_fail(lane, n);
			/* All data that arrived before the error has been read. */
			return n && lane->error ? lane->error : n;
		}
		for (int i = 0; i < n; i++)
			avail += pieces[i].iov_len;
		commit = avail < len - placed ? avail : len - placed;
		if (unit > 1)
			commit = place_commit_bytes((uint8_t *)dst + placed, len - placed, avail);
		if (!commit)
			return placed ? (ssize_t)placed : lane_harp_remainder(h);
		place_gather((uint8_t *)dst + placed, commit, pieces, n);
		harp_conn_consume(h->conn, commit);
		placed += commit;
	}
	return (ssize_t)placed;
}

static uint64_t lane_harp_done_bytes(struct lane *lane)
{
	return harp_conn_acked_bytes(to_harp(lane)->conn);
}

static uint64_t lane_harp_copied_bytes(struct lane *lane)
{
	struct lane_harp *h = to_harp(lane);
	uint64_t acked_bytes = harp_conn_acked_bytes(h->conn);

	return acked_bytes >= h->external_end ? h->sent_bytes : acked_bytes;
}

static void lane_harp_acknowledge(struct lane *lane)
{
	harp_conn_acknowledge(to_harp(lane)->conn);
}

/* Is a window probe unanswered? Then the path may be cut: a live peer answers, even with a closed
 * window. */
static bool lane_harp_probe_waits(struct lane_harp *h, const struct harp_tcp_info *tcp)
{
	if (tcp->last_rcv_ns != h->received_ns) {
		h->received_ns = tcp->last_rcv_ns;
		h->probes_answered = tcp->zero_window_probes;
	}
	return tcp->zero_window_probes != h->probes_answered;
}

static void lane_harp_info(struct lane *lane, struct lane_info *info)
{
	struct lane_harp *h = to_harp(lane);
	struct harp_tcp_info tcp;
	bool waits;

	memset(info, 0, sizeof(*info));
	harp_conn_info(h->conn, &tcp);
	waits = lane_harp_probe_waits(h, &tcp);
	info->srtt_ns = tcp.srtt_ns;
	info->in_flight_bytes = tcp.bytes_in_flight;
	info->unsent_bytes = tcp.bytes_unsent;
	/* The window is open for a segment and nothing is sent: the interface is down. (A smaller
	 * window is not used at once.) */
	if (!info->in_flight_bytes && (waits || tcp.snd_wnd_bytes >= tcp.snd_mss_bytes))
		info->in_flight_bytes = tcp.bytes_unsent;
	info->acked_bytes = harp_conn_acked_bytes(h->conn);
	info->retransmits = tcp.retransmits;
}

/* Probes are to provoke a RST. Silence is handled by the user timeout. */
static void lane_harp_set_probes(struct lane_harp *h, bool on)
{
	uint64_t interval_ns = plugin_config()->probe_interval_ns;
	struct harp_tcp_options opt = { .size = sizeof(opt) };

	if (!interval_ns)
		return;
	(void)harp_conn_options(h->conn, &opt);
	opt.keepalive_idle_ns = opt.keepalive_interval_ns = on ? interval_ns : 0;
	opt.keepalive_count = (uint32_t)(plugin_config()->user_timeout_ns / interval_ns) + 1;
	(void)harp_conn_set_options(h->conn, &opt); /* fails on a dead connection only */
}

static struct lane_harp *member_lane(struct engine_lane *l)
{
	return container_of(l, struct lane_harp, member);
}

static void lane_harp_free(struct lane_harp *h, bool abort)
{
	if (abort)
		harp_conn_abort(h->conn);
	else
		harp_conn_close(h->conn);
	LIST_REMOVE(&h->member, link);
	if (h->closing_deadline_ns)
		h->engine->closing_count--;
	if (h->connected)
		h->engine->load--;
	free(h);
}

/* Events of a closing lane: drops received data, and ends when the peer has closed. */
static void lane_harp_drain(struct lane_harp *h, uint32_t events)
{
	struct iovec piece[PEEK_PIECES];
	int n;

	while ((n = harp_conn_peek(h->conn, piece, PEEK_PIECES)) > 0) {
		size_t len = 0;

		for (int i = 0; i < n; i++)
			len += piece[i].iov_len;
		harp_conn_consume(h->conn, len);
	}
	/* 0: the peer's FIN. The stack retransmits our data, if necessary, without the lane. */
	if (n == 0 || (n < 0 && n != -EAGAIN) || (events & HARP_EVENT_CLOSED))
		lane_harp_free(h, false);
}

static void lane_harp_close(struct lane *lane, bool abort)
{
	struct lane_harp *h = to_harp(lane);

	lane->owner = NULL;
	lane->notify = NULL;
	lane->awaited = NULL;
	if (abort || lane->error || !h->connected) {
		lane_harp_free(h, abort);
		return;
	}
	/* The stack must not read the owner's memory after this call. */
	if (h->in_place && harp_conn_evict(h->conn) < 0) {
		lane_harp_free(h, true);
		return;
	}
	(void)harp_conn_shutdown(h->conn, SHUT_WR);
	h->closing_deadline_ns =
		harp_stack_now_ns(h->engine->stack) + plugin_config()->close_linger_ns;
	h->engine->closing_count++;
	lane_harp_drain(h, HARP_EVENT_READABLE);
}

static void lane_harp_describe(struct lane *lane, char *buf, size_t len)
{
	char local[HARP_ENDPOINT_TEXT_MAX], remote[HARP_ENDPOINT_TEXT_MAX];

	snprintf(buf, len, "HARP TCP %s -> %s, %s", harp_endpoint_format(&lane->local, local),
		 harp_endpoint_format(&lane->remote, remote),
		 harp_instance_describe(to_harp(lane)->engine->instance));
}

static const struct lane_ops lane_harp_ops = {
	.state = lane_harp_state,
	.send = lane_harp_send,
	.recv = lane_harp_recv,
	.copied_bytes = lane_harp_copied_bytes,
	.done_bytes = lane_harp_done_bytes,
	.acknowledge = lane_harp_acknowledge,
	.info = lane_harp_info,
	.close = lane_harp_close,
	.describe = lane_harp_describe,
};

static void lane_harp_event(struct engine_lane *l, uint32_t events, uint64_t now_ns)
{
	struct lane_harp *h = member_lane(l);

	if (events & HARP_EVENT_CONNECTED) {
		h->connected = true;
		h->engine->load++;
		harp_conn_endpoints(h->conn, &h->lane.local, &h->lane.remote);
	}
	if (events & HARP_EVENT_CLOSED) {
		int error = harp_conn_error(h->conn);

		lane_harp_fail(&h->lane, error ? error : -ECONNRESET);
	}
	if (h->closing_deadline_ns)
		lane_harp_drain(h, events);
	else if (h->lane.notify)
		h->lane.notify(&h->lane, now_ns);
}

static bool lane_harp_gone(struct engine_lane *l, uint64_t now_ns)
{
	struct lane_harp *h = member_lane(l);

	if (h->closing_deadline_ns) {
		lane_harp_free(h, true);
		return true;
	}
	if (h->lane.error)
		return false;
	lane_harp_fail(&h->lane, -ENETDOWN);
	if (h->lane.notify)
		h->lane.notify(&h->lane, now_ns);
	return true;
}

static void lane_harp_discard(struct engine_lane *l)
{
	lane_harp_free(member_lane(l), true);
}

static bool lane_harp_delivered(const struct engine_lane *l)
{
	const struct lane_harp *h = container_of(l, const struct lane_harp, member);

	return h->lane.error || harp_conn_acked_bytes(h->conn) == h->sent_bytes;
}

static void lane_harp_tick(struct engine_lane *l, uint64_t now_ns)
{
	struct lane_harp *h = member_lane(l);
	struct harp_tcp_info info;
	uint64_t received_ns;
	bool silent;

	if (h->closing_deadline_ns) {
		if (now_ns >= h->closing_deadline_ns &&
		    (lane_harp_delivered(l) || now_ns >= h->closing_deadline_ns + DELIVER_NS))
			lane_harp_free(h, false);
		return;
	}
	if (h->lane.error)
		return;
	if (!h->lane.awaited || !atomic_load_explicit(h->lane.awaited, memory_order_relaxed)) {
		if (h->watched_ns)
			lane_harp_set_probes(h, false);
		h->watched_ns = 0;
		return;
	}
	if (!h->watched_ns) {
		h->watched_ns = now_ns;
		lane_harp_set_probes(h, true);
	}
	harp_conn_info(h->conn, &info);
	/* Before it was watched no answer of the peer was due. */
	received_ns = info.last_rcv_ns > h->watched_ns ? info.last_rcv_ns : h->watched_ns;
	silent = now_ns >= received_ns + LANE_SILENCE_WARN_NS;
	if (silent && !h->warned_silent)
		lane_warn_silent(&h->lane, now_ns);
	h->warned_silent = silent;
}

static const struct engine_lane_ops lane_harp_member_ops = {
	.event = lane_harp_event,
	.tick = lane_harp_tick,
	.gone = lane_harp_gone,
	.delivered = lane_harp_delivered,
	.discard = lane_harp_discard,
};

static struct lane_harp *lane_harp_new(struct engine *engine)
{
	struct lane_harp *h = calloc(1, sizeof(*h));

	if (!h)
		return NULL;
	h->lane.ops = &lane_harp_ops;
	h->lane.poller = &engine->poller;
	h->lane.kind_bit = LANE_HARP;
	h->engine = engine;
	h->member.ops = &lane_harp_member_ops;
	h->in_place = harp_stack_memory_supported(engine->stack);
	return h;
}

static void lane_harp_start(struct lane_harp *h, struct lane **out)
{
	harp_conn_set_user(h->conn, &h->member);
	harp_conn_endpoints(h->conn, &h->lane.local, &h->lane.remote);
	LIST_INSERT_HEAD(&h->engine->lanes, &h->member, link);
	*out = &h->lane;
}

void lane_harp_tcp_options(struct harp_tcp_options *opt, int dscp)
{
	const struct plugin_config *config = plugin_config();

	memset(opt, 0, sizeof(*opt));
	opt->size = sizeof(*opt);
	opt->connect_timeout_ns = config->connect_timeout_ns;
	opt->user_timeout_ns = config->user_timeout_ns;
	opt->initial_rto_ns = config->initial_rto_ns;
	opt->unsent_bytes_max = LANE_HARP_UNSENT_BYTES;
	opt->delayed_ack_ns = LANE_HARP_DELAYED_ACK_NS;
	opt->congestion = config->congestion;
	opt->ecn = config->ecn;
	opt->dscp = dscp > 0 ? (uint8_t)(dscp & 63) : 0;
}

int lane_harp_connect(struct engine *engine, const struct harp_endpoint *local,
		      const struct harp_endpoint *remote, int dscp, struct lane **out)
{
	struct lane_harp *h = lane_harp_new(engine);
	struct harp_tcp_options opt;
	int rc;

	*out = NULL;
	if (!h)
		return -ENOMEM;
	lane_harp_tcp_options(&opt, dscp);
	opt.user = &h->member;
	rc = harp_tcp_connect(engine->stack, local, remote, &opt, &h->conn);
	if (rc) {
		free(h);
		return rc;
	}
	lane_harp_start(h, out);
	return 0;
}

int lane_harp_accept(struct engine *engine, struct harp_listener *listener, struct lane **out)
{
	struct harp_conn *conn;
	struct lane_harp *h;
	int rc = harp_tcp_accept(listener, &conn);

	*out = NULL;
	if (rc)
		return rc;
	h = lane_harp_new(engine);
	if (!h) {
		harp_conn_abort(conn);
		return -ENOMEM;
	}
	h->conn = conn;
	h->connected = true;
	engine->load++;
	lane_harp_start(h, out);
	return 0;
}

/* NULL: another kind of lane. */
static struct lane_harp *lane_harp_of(struct lane *lane)
{
	lane = lane->beneath ? lane->beneath : lane;
	return lane->ops == &lane_harp_ops ? to_harp(lane) : NULL;
}

void lane_harp_observe(struct lane *lane, uint64_t latency_ns)
{
	struct lane_harp *h = lane_harp_of(lane);

	if (h)
		harp_stack_observe(h->engine->stack, HARP_HISTOGRAM_message_latency, latency_ns);
}

void lane_harp_label(struct lane *lane, const char *text)
{
	struct lane_harp *h = lane_harp_of(lane);

	if (h)
		harp_conn_set_label(h->conn, text);
}
