/* SPDX-License-Identifier: Apache-2.0 */
/* sim_check.c - what must hold at each step, and in the end. */
#include "sim.h"

#include <errno.h>
#include <string.h>

#include "harp_stats.h"
#include "packet.h"
#include "stack/stack.h"

#define CHECK_FLIGHT_MAX (UINT64_C(1) << 30) /* RFC 7323 section 2.3: the largest window */

uint64_t sim_stat(const struct sim *sim, unsigned stack, const char *name)
{
	uint64_t value = 0;

	if (harp_stack_stat(sim->stacks[stack].stack, name, &value) != 0)
		fprintf(stderr, "sim: no statistic named %s\n", name);
	return value;
}

/* ---- errors ------------------------------------------------------------------------------------ */

/* A connection that gives up early, and something that it may have given up for. */
static bool check_was_hasty(const struct sim *sim, const struct sim_pair *pair)
{
	const struct scn_conn *c = pair->spec;

	if (c->user_timeout_ns == 0)
		return false;
	for (unsigned i = 0; i < sim->scenario->event_count; i++) {
		const struct scn_event *e = &sim->scenario->events[i];

		if (e->start_ns <= sim->now_ns && e->duration_ns > SIM_S / 4)
			return true;
	}
	/* Or its peer did not read for that time. */
	return c->side[0].pause_ns || c->side[1].pause_ns;
}

/* A small backlog: SYN cookies, whose ACK may be lost, and half-open connections that make room. */
static bool check_was_crowded(const struct sim *sim, const struct sim_pair *pair)
{
	const struct scn_conn *c = pair->spec;

	return c->kind != SCN_SIMULTANEOUS && sim->scenario->listens[c->listen].backlog > 0;
}

bool sim_check_error(struct sim *sim, struct sim_app *app, int err)
{
	struct sim_pair *pair = &sim->pairs[app->pair];

	app->eof = app->shut = true;
	if (check_was_hasty(sim, pair) || check_was_crowded(sim, pair))
		pair->excused = true;
	if (pair->excused &&
	    (err == -ECONNRESET || err == -ETIMEDOUT || err == -ECONNREFUSED || err == -EPIPE))
		return true;
	return runner_fail("connection %u, stack %u: %s, and nothing in the scenario explains it",
			   app->pair, app->stack, strerror(-err));
}

/* ---- each step --------------------------------------------------------------------------------- */

static bool check_frames(struct sim *sim, unsigned index)
{
	const struct harp_stack *stack = sim->stacks[index].stack;
	uint64_t count = sim->stacks[index].card.nic->caps.frame_count;
	uint64_t home = stack->pool.free_count + stack->io.fill_held, away;
	uint64_t tcp_tx = stack->stats.frames_tcp_tx, nic = stack->io.tx_held;
	/* External frames, which the card may hold, too. */
	uint64_t external = stack->pool.external_count - stack->pool.external_free_count;

	if (home + stack->stats.frames_tcp_rx > count)
		return runner_fail("stack %u: more frames than there are", index);
	away = count - home - stack->stats.frames_tcp_rx;
	/* A frame to be sent may be the queue's and the card's at once. */
	if (away < tcp_tx || away + external < nic || away > tcp_tx + nic ||
	    external < stack->stats.frames_tcp_external)
		return runner_fail(
			"stack %u: %llu frames are away, %llu queued, %llu with the card", index,
			(unsigned long long)away, (unsigned long long)tcp_tx,
			(unsigned long long)nic);
	return true;
}

/* The FIN may be one more than the budget; so are a segment's rest when the path carries only a part of
 * it, what a probe of the path needs, and what was sent in place and is copied, at least half a frame each time. */
static uint64_t check_budget(const struct sim *sim, const struct sim_app *app, uint64_t budget)
{
	const struct harp_stats *s = &sim->stacks[app->stack].stack->stats;

	return budget + 1 + s->tcp_resegmented + s->tx_evicted_bytes / 1024 +
	       s->tcp_mtu_probes * sim->stacks[app->stack].stack->tcp.tx_frags_max;
}

/* What is sent in place is copied only where a segment is cut again, or put together for a probe, and there is
 * no record left to say where its bytes lie; and where its application wants it back. */
static bool check_may_copy(const struct sim *sim, const struct sim_app *app)
{
	const struct harp_stats *s = &sim->stacks[app->stack].stack->stats;

	return app->spec->send != SCN_SEND_EXTERNAL || s->tcp_resegmented > 0 ||
	       s->tcp_mtu_probes > 0 || s->tx_evicted_bytes > 0;
}

/* Segments in flight that were sent again, counted without the shortcut of tcp_sack_marks(). */
static uint64_t check_retrans_segs(const struct harp_conn *conn)
{
	uint64_t segs = 0;

	for (const struct frame *seg = conn->sndq.head; seg && seg != conn->sndq.unsent;
	     seg = seg->next)
		segs += (seg->flags & FRAME_RETRANS) && !(seg->tcp_flags & (SEG_SACKED | SEG_LOST));
	return segs;
}

static bool check_conn(struct sim *sim, const struct sim_app *app, const struct sim_app *peer)
{
	const struct harp_conn *conn = app->conn;
	struct harp_tcp_info info;
	const char *wrong = NULL;

	harp_conn_info(conn, &info);
	if (seq_gt(conn->snd.una_seq, conn->snd.nxt_seq) || info.bytes_in_flight > CHECK_FLIGHT_MAX)
		wrong = "SND.UNA is beyond SND.NXT";
	else if (info.state == HARP_TCP_ESTABLISHED && info.snd_cwnd_bytes == 0)
		wrong = "the congestion window is empty";
	else if (info.state == HARP_TCP_ESTABLISHED && !tcp_sack_sums_valid(conn))
		wrong = "the counts of segments in flight, lost and SACKed do not add up";
	else if (info.retrans_out_segs != check_retrans_segs(conn))
		wrong = "the segments sent again are miscounted";
	else if (info.ca_state == HARP_CA_OPEN && info.sacked_out_segs + info.lost_out_segs > 0)
		wrong = "segments are marked, and the state is open";
	else if (info.tx_frames_held > check_budget(sim, app, info.tx_frames_budget))
		wrong = "the send budget is overdrawn";
	else if (info.tx_copied_bytes > 0 && !check_may_copy(sim, app))
		wrong = "data sent in place was copied";
	else if (info.bytes_acked > app->sent)
		wrong = "more was acknowledged than sent";
	else if (info.bytes_retransmitted > info.bytes_sent)
		wrong = "more was sent again than sent";
	else if (peer->conn && peer->connected &&
		 info.bytes_acked > peer->conn->acct.bytes_received)
		wrong = "more was acknowledged than the peer's stack received";
	else if (info.rto_ns > 61 * SIM_S)
		wrong = "the retransmission timeout is beyond its maximum";
	return wrong ? runner_fail("connection %u, stack %u: %s", app->pair, app->stack, wrong)
		     : true;
}

static bool check_packets(struct sim *sim, unsigned index)
{
	const struct harp_stats *s = &sim->stacks[index].stack->stats;
	uint64_t sum = packets_counted(s);

	if (sum != s->rx_packets)
		return runner_fail("stack %u: %llu packets came, %llu are accounted for", index,
				   (unsigned long long)s->rx_packets, (unsigned long long)sum);
	return true;
}

bool sim_check_step(struct sim *sim, unsigned index)
{
	if (runner_has_failed() || !check_frames(sim, index))
		return false;
	if (sim->stacks[index].stack->stats.polls % 8 != 0)
		return true;
	for (unsigned i = 0; i < sim->scenario->conn_count; i++) {
		struct sim_app *app = sim->pairs[i].app;

		for (unsigned role = 0; role < 2; role++) {
			if (app[role].conn && app[role].stack == index &&
			    !check_conn(sim, &app[role], &app[!role]))
				return false;
		}
	}
	return check_packets(sim, index);
}

/* ---- the end ----------------------------------------------------------------------------------- */

static bool check_pair(struct sim *sim, unsigned index)
{
	struct sim_pair *pair = &sim->pairs[index];

	for (unsigned role = 0; role < 2; role++) {
		const struct sim_app *app = &pair->app[role], *peer = &pair->app[!role];

		if (app->conn)
			return runner_fail("connection %u, stack %u: never closed", index,
					   app->stack);
		if (pair->excused)
			continue;
		if (!app->closed)
			return runner_fail("connection %u, stack %u: never opened", index,
					   app->stack);
		if (app->received != peer->send_total)
			return runner_fail("connection %u, stack %u: %llu of %llu bytes", index,
					   app->stack, (unsigned long long)app->received,
					   (unsigned long long)peer->send_total);
	}
	return true;
}

/* No four-tuple is ever used twice. */
static bool check_one_incarnation(const struct sim *sim)
{
	for (unsigned i = 0; i < sim->scenario->event_count; i++) {
		if (sim->scenario->events[i].kind == SCN_RESTART)
			return false;
	}
	for (unsigned i = 0; i < sim->scenario->conn_count; i++) {
		if (sim->scenario->conns[i].local_port)
			return false;
	}
	return true;
}

static bool check_stack(struct sim *sim, unsigned index)
{
	const struct harp_stack *stack = sim->stacks[index].stack;
	uint64_t home = stack->pool.free_count + stack->io.fill_held;
	struct sim_card *card = &sim->stacks[index].card;
	const char *left = NULL;
	struct harp_wire_stats wire;
	struct harp_nic_stats nic;

	if (stack->stats.tcp_conns || stack->tcp.flows.count)
		left = "connections";
	else if (stack->wheel.count)
		left = "timers";
	else if (stack->stats.frames_tcp_tx || stack->stats.frames_tcp_rx ||
		 stack->pool.external_free_count != stack->pool.external_count)
		left = "frames in queues without a connection";
	/* Whatever the wire does, a peer echoes what it received: see tcp_check.c. */
	else if (stack->stats.drop_tcp_echo && check_one_incarnation(sim))
		left = "valid timestamp echoes that it refused";
	else if (home != stack->pool.frame_count)
		left = "fewer frames than it began with";
	else if (stack->pool.memory_count)
		left = "memory that was not taken back";
	card->nic->ops->stats(card->nic, &nic);
	if (nic.tx_invalid)
		return runner_fail("stack %u: the card refused %llu packets", index,
				   (unsigned long long)nic.tx_invalid);
	if (left)
		return runner_fail("stack %u is left with %s", index, left);
	harp_wire_stats(sim->wire, index, &wire);
	if (wire.strict_violations)
		return runner_fail("stack %u: %llu frames changed under the card", index,
				   (unsigned long long)wire.strict_violations);
	return check_packets(sim, index) && check_frames(sim, index);
}

bool sim_check_end(struct sim *sim)
{
	for (unsigned i = 0; i < sim->scenario->conn_count; i++) {
		if (!check_pair(sim, i))
			return false;
	}
	for (unsigned i = 0; i < sim->scenario->stack_count; i++) {
		if (!check_stack(sim, i))
			return false;
	}
	if (harp_wire_in_flight(sim->wire))
		return runner_fail("%llu packets never arrive",
				   (unsigned long long)harp_wire_in_flight(sim->wire));
	return true;
}

/* ---- for people -------------------------------------------------------------------------------- */

static void check_dump_app(const struct sim_app *app, const char *role)
{
	struct harp_tcp_info i = { .state = HARP_TCP_CLOSED };

	if (app->conn)
		harp_conn_info(app->conn, &i);
	printf("  %s on stack %u: %s, sent %llu of %llu, received %llu%s%s%s%s, flight %llu, "
	       "unsent %llu, wnd %llu/%llu, cwnd %llu, frames %u/%u rx %u/%u tx, rto %llu ms, "
	       "%llu timeouts, wakes %lld ms\n",
	       role, app->stack, harp_tcp_state_name((enum harp_tcp_state)i.state),
	       (unsigned long long)app->sent, (unsigned long long)app->send_total,
	       (unsigned long long)app->received, app->shut ? " shut" : "", app->eof ? " eof" : "",
	       app->closed ? " closed" : "", app->wait_writable ? " wants to write" : "",
	       (unsigned long long)i.bytes_in_flight, (unsigned long long)i.bytes_unsent,
	       (unsigned long long)i.snd_wnd_bytes, (unsigned long long)i.rcv_wnd_bytes,
	       (unsigned long long)i.snd_cwnd_bytes, i.rx_frames_held, i.rx_frames_budget,
	       i.tx_frames_held, i.tx_frames_budget, (unsigned long long)(i.rto_ns / SIM_MS),
	       (unsigned long long)i.rto_count,
	       app->wake_ns == SIM_NEVER_NS ? -1ll : (long long)(app->wake_ns / SIM_MS));
}

void sim_dump(const struct sim *sim)
{
	printf("at %.6f s:\n", (double)sim->now_ns / 1e9);
	for (unsigned i = 0; i < sim->scenario->conn_count; i++) {
		const struct sim_pair *pair = &sim->pairs[i];

		printf("connection %u:%s%s\n", i, pair->started ? "" : " not begun",
		       pair->excused ? " may fail" : "");
		check_dump_app(&pair->app[SIM_CLIENT], "client");
		check_dump_app(&pair->app[SIM_SERVER], "server");
	}
	for (unsigned k = 0; k < sim->scenario->stack_count; k++) {
		printf("stack %u:", k);
		for (unsigned i = 0; sim->stacks[k].stack && i < harp_stats_count(); i++) {
			uint64_t value = sim_stat(sim, k, harp_stats_name(i));

			if (value)
				printf(" %s=%llu", harp_stats_name(i), (unsigned long long)value);
		}
		printf("\n");
	}
}
