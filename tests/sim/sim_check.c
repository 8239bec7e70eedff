/* SPDX-License-Identifier: Apache-2.0 */
/* sim_check.c - invariants at each step and at the end. */
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

/* ---- errors ---------------------------------------------------------------------------------- */

/* The connection has a short user timeout, and an event may have exceeded it. */
static bool check_has_short_timeout(const struct sim *sim, const struct sim_pair *pair)
{
	const struct scn_conn *c = pair->spec;

	if (c->user_timeout_ns == 0)
		return false;
	for (unsigned i = 0; i < sim->scenario->event_count; i++) {
		const struct scn_event *e = &sim->scenario->events[i];

		if (e->start_ns <= sim->now_ns && e->duration_ns > SIM_S / 4)
			return true;
	}
	/* The peer may have paused for that time. */
	return c->side[0].pause_ns || c->side[1].pause_ns;
}

/* With a small backlog, the ACK of a SYN cookie may be lost, and half-open connections may be
 * evicted. */
static bool check_has_small_backlog(const struct sim *sim, const struct sim_pair *pair)
{
	const struct scn_conn *c = pair->spec;

	return c->kind != SCN_SIMULTANEOUS && sim->scenario->listens[c->listen].backlog > 0;
}

bool sim_check_error(struct sim *sim, struct sim_app *app, int err)
{
	struct sim_pair *pair = &sim->pairs[app->pair];

	app->eof = app->shut = true;
	if (check_has_short_timeout(sim, pair) || check_has_small_backlog(sim, pair))
		pair->excused = true;
	if (pair->excused &&
	    (err == -ECONNRESET || err == -ETIMEDOUT || err == -ECONNREFUSED || err == -EPIPE))
		return true;
	return runner_fail("connection %u, stack %u: %s without a reason in the scenario",
			   app->pair, app->stack, strerror(-err));
}

/* ---- each step ------------------------------------------------------------------------------- */

static bool check_frames(struct sim *sim, unsigned index)
{
	const struct harp_stack *stack = sim->stacks[index].stack;
	uint64_t count = sim->stacks[index].card.nic->caps.frame_count;
	uint64_t free_frames = stack->pool.free_count + stack->io.fill_held, used_frames;
	uint64_t tcp_tx = stack->stats.frames_tcp_tx, nic = stack->io.tx_held;
	/* External frames, which the NIC may hold, too. */
	uint64_t external = stack->pool.external_count - stack->pool.external_free_count;

	if (free_frames + stack->stats.frames_tcp_rx > count)
		return runner_fail("stack %u: more frames than the pool has", index);
	used_frames = count - free_frames - stack->stats.frames_tcp_rx;
	/* A sent frame may be in the send queue and in the NIC at once. */
	if (used_frames < tcp_tx || used_frames + external < nic || used_frames > tcp_tx + nic ||
	    external < stack->stats.frames_tcp_external)
		return runner_fail("stack %u: %llu frames in use, %llu queued, %llu in the NIC",
				   index, (unsigned long long)used_frames,
				   (unsigned long long)tcp_tx, (unsigned long long)nic);
	return true;
}

/* The limit of the send budget. A FIN may exceed the budget, and so may the rest of a segment of
 * which the path carries only a part, and the frames of a path MTU probe. Evicting data that is
 * sent in place copies it, into at least half a frame each time. */
static uint64_t check_budget(const struct sim *sim, const struct sim_app *app, uint64_t budget)
{
	const struct harp_stats *s = &sim->stacks[app->stack].stack->stats;

	return budget + 1 + s->tcp_resegmented + s->tx_evicted_bytes / 1024 +
	       s->tcp_mtu_probes * sim->stacks[app->stack].stack->tcp.tx_frags_max;
}

/* Data sent in place is copied only when a segment is resegmented or joined for a probe and no
 * record describes its memory, or when the application evicts the memory. */
static bool check_can_copy(const struct sim *sim, const struct sim_app *app)
{
	const struct harp_stats *s = &sim->stacks[app->stack].stack->stats;

	return app->spec->send != SCN_SEND_EXTERNAL || s->tcp_resegmented > 0 ||
	       s->tcp_mtu_probes > 0 || s->tx_evicted_bytes > 0;
}

/* Retransmitted segments in flight, counted without the shortcut of tcp_sack_marks(). */
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
	const char *problem = NULL;

	harp_conn_info(conn, &info);
	if (seq_gt(conn->snd.una_seq, conn->snd.nxt_seq) || info.bytes_in_flight > CHECK_FLIGHT_MAX)
		problem = "SND.UNA is beyond SND.NXT";
	else if (info.state == HARP_TCP_ESTABLISHED && info.snd_cwnd_bytes == 0)
		problem = "the congestion window is empty";
	else if (info.state == HARP_TCP_ESTABLISHED && !tcp_sack_sums_valid(conn))
		problem = "the counts of segments in flight, lost and SACKed do not add up";
	else if (info.retrans_out_segs != check_retrans_segs(conn))
		problem = "the count of retransmitted segments is wrong";
	else if (info.ca_state == HARP_CA_OPEN && info.sacked_out_segs + info.lost_out_segs > 0)
		problem = "segments are marked in the open state";
	else if (info.tx_frames_held > check_budget(sim, app, info.tx_frames_budget))
		problem = "the send budget is overdrawn";
	else if (info.tx_copied_bytes > 0 && !check_can_copy(sim, app))
		problem = "data sent in place was copied";
	else if (info.bytes_acked > app->sent)
		problem = "more bytes acknowledged than sent";
	else if (info.bytes_retransmitted > info.bytes_sent)
		problem = "more bytes retransmitted than sent";
	else if (peer->conn && peer->connected &&
		 info.bytes_acked > peer->conn->acct.bytes_received)
		problem = "more bytes acknowledged than the peer's stack received";
	else if (info.rto_ns > 61 * SIM_S)
		problem = "the retransmission timeout exceeds its maximum";
	return problem ? runner_fail("connection %u, stack %u: %s", app->pair, app->stack, problem)
		       : true;
}

static bool check_packets(struct sim *sim, unsigned index)
{
	const struct harp_stats *s = &sim->stacks[index].stack->stats;
	uint64_t sum = packets_counted(s);

	if (sum != s->rx_packets)
		return runner_fail("stack %u: %llu packets received, %llu counted", index,
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

/* ---- the end --------------------------------------------------------------------------------- */

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

/* The scenario reuses no four-tuple. */
static bool check_has_unique_tuples(const struct sim *sim)
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
	uint64_t free_frames = stack->pool.free_count + stack->io.fill_held;
	struct sim_card *card = &sim->stacks[index].card;
	const char *leftover = NULL;
	struct harp_wire_stats wire;
	struct harp_nic_stats nic;

	if (stack->stats.tcp_conns || stack->tcp.flows.count)
		leftover = "connections";
	else if (stack->wheel.count)
		leftover = "timers";
	else if (stack->stats.frames_tcp_tx || stack->stats.frames_tcp_rx ||
		 stack->pool.external_free_count != stack->pool.external_count)
		leftover = "frames in queues without a connection";
	/* Even on an impaired wire, a peer echoes the timestamps that it received: see
	 * tcp_check.c. */
	else if (stack->stats.drop_tcp_echo && check_has_unique_tuples(sim))
		leftover = "rejected timestamp echoes that were valid";
	else if (free_frames != stack->pool.frame_count)
		leftover = "fewer frames than it began with";
	else if (stack->pool.memory_count)
		leftover = "memory that was not reclaimed";
	card->nic->ops->stats(card->nic, &nic);
	if (nic.tx_invalid)
		return runner_fail("stack %u: the NIC rejected %llu packets", index,
				   (unsigned long long)nic.tx_invalid);
	if (leftover)
		return runner_fail("stack %u ends with %s", index, leftover);
	harp_wire_stats(sim->wire, index, &wire);
	if (wire.strict_violations)
		return runner_fail("stack %u: %llu frames changed while the NIC read them", index,
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
		return runner_fail("%llu packets are still on the wire",
				   (unsigned long long)harp_wire_in_flight(sim->wire));
	return true;
}

/* ---- diagnostics ----------------------------------------------------------------------------- */

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
	       app->closed ? " closed" : "", app->wait_writable ? " waits for room" : "",
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

		printf("connection %u:%s%s\n", i, pair->started ? "" : " not started",
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
