/* SPDX-License-Identifier: Apache-2.0 */
/* comm_lane.c - the lanes of a comm: they join, are sampled, die and close. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm_impl.h"
#include "device/device.h"
#include "process/config.h"
#include "process/log.h"

/*
 * Theory of operation
 *
 * comm_attach() makes a lane and pushes it onto the `joining` stack. The next turn puts it into the
 * lane table and replaces a lane of the same index. A lane ends by FIN or RST, by its TCP's
 * timeout, by the lane timeout (scheduler.c), or by replacement. It then leaves the table, its
 * chunks move to other lanes, and the next turn that reaches it closes and frees it.
 *
 * A lane's end is no error while other lanes live. When the last lane dies, another may join within
 * COMM_RECONNECT_WAIT_NS; otherwise the comm ends. A receiver's lane that accepts no more records
 * drains: it is read to its end, because its data may not come on another lane.
 */

#define SILENCE_CHECK_NS 1000000000ull
#define SAMPLE_HARP_NS 2000000u
#define SAMPLE_KERNEL_NS 1000000u /* also updates the bytes in flight */
#define SAMPLE_UNRATED_NS 20000u  /* until the samples have measured the lane's rate */
#define RTOS 2u                   /* a lane is not dead before its TCP's RTO has expired so often */
#define DRAIN_READS 256u

/* ---- joining -------------------------------------------------------------------------------- */

/* Finds or adds the comm's entry for that poller's engine; NULL: the table is full. Any thread. */
static struct comm_engine *comm_engine_of(struct comm *comm, struct poller *poller)
{
	for (unsigned i = 0; i < COMM_LANES_MAX; i++) {
		struct poller *engine_poller = NULL;

		if (atomic_compare_exchange_strong_explicit(&comm->engines[i].poller,
							    &engine_poller, poller,
							    memory_order_acq_rel,
							    memory_order_acquire) ||
		    engine_poller == poller)
			return &comm->engines[i];
	}
	return NULL;
}

/* The statistics distinguish HARP lanes on DPDK ports from those on AF_XDP. */
static enum harp_page_kind comm_lane_page_kind(const struct comm_lane *l)
{
	const struct device *device = plugin_device(l->dev);

	if (l->kind == LANE_HARP && device && device->dpdk)
		return HARP_PAGE_KIND_DPDK;
	return (enum harp_page_kind)l->kind;
}

struct comm_lane *comm_lane_new(struct comm *comm, struct lane *lane,
				const struct comm_lane_options *opt)
{
	struct comm_lane *l = aligned_alloc(64, (sizeof(*l) + 63) & ~(size_t)63);

	if (!l)
		return NULL;
	memset(l, 0, sizeof(*l));
	l->comm = comm;
	l->lane = lane;
	l->kind = lane->kind_bit;
	l->index = opt->index;
	l->backup = opt->backup;
	l->dev = opt->dev;
	l->sent_bytes = opt->sent_bytes;
	l->rtt_ns = opt->rtt_ns;
	TAILQ_INIT(&l->in_flight);
	l->out.buffer = -1;
	l->engine = l->kind == LANE_HARP ? comm_engine_of(comm, lane->poller) : NULL;
	if ((l->kind == LANE_HARP) != !!l->engine ||
	    (l->kind == LANE_KERNEL && !comm->has_kernel_lanes)) {
		free(l);
		return NULL;
	}
	l->stats = lane_stats_new(comm->stats, l->index);
	if (!l->stats) {
		free(l);
		return NULL;
	}
	for (struct lane *part = lane; part; part = part->beneath)
		part->awaited = &comm->awaited;
	lane->owner = l;
	lane->notify = comm_lane_notify;
	lane_harp_label(lane, comm->side == COMM_SEND ? "NCCL send" : "NCCL receive");
	return l;
}

static void comm_choose_control(struct comm *comm)
{
	int control = scheduler_control(&comm->scheduler);

	if (control == comm->control)
		return;
	comm->control = control;
	/* Records sent on the old control lane may be lost. */
	if (comm->side == COMM_RECV)
		ack_again(comm);
}

/* Takes the lane off the table. lost: its unacknowledged chunks may not arrive. Returns how many of
 * them other lanes will send. */
static unsigned comm_lane_detach(struct comm_lane *l, bool lost)
{
	struct comm *comm = l->comm;
	struct comm_lane **dead = l->engine ? &l->engine->dead : &comm->dead;
	unsigned moved = 0;

	l->dead = true;
	comm->lanes[l->index] = NULL;
	scheduler_remove(&comm->scheduler, l->index);
	if (comm->side == COMM_SEND && comm->multi_lane)
		moved = comm_send_release(l, lost);
	comm_choose_control(comm);
	if (comm->side == COMM_RECV) /* a CREDIT or an ACK may be lost with it */
		ack_again(comm);
	l->next = *dead;
	*dead = l;
	if (!comm_lane_is_reachable(l))
		comm_wake(l);
	return moved;
}

static void comm_join(struct comm *comm, struct comm_lane *l)
{
	if (l->kind == LANE_KERNEL)
		lane_kernel_join(l->lane, &comm->poller, &comm->kernel_poll);
	if (comm->lanes[l->index])
		(void)comm_lane_detach(comm->lanes[l->index], true);
	lane_stats_open(comm->stats, l->index, l->lane, comm_lane_page_kind(l), l->dev, l->backup);
	atomic_fetch_or_explicit(&comm->present, 1u << l->index, memory_order_relaxed);
	comm->lanes[l->index] = l;
	scheduler_add(&comm->scheduler, l->index, l->kind, l->backup, l->rtt_ns, comm->now_ns);
	comm->last_lane_died_ns = 0;
	comm_choose_control(comm);
	comm_wake(l); /* records may have arrived with the preamble */
}

void comm_adopt(struct comm *comm)
{
	struct comm_lane *newest, *oldest = NULL;

	if (!atomic_load_explicit(&comm->joining, memory_order_relaxed))
		return;
	newest = atomic_exchange_explicit(&comm->joining, NULL, memory_order_acquire);
	while (newest) {
		struct comm_lane *next = newest->next;

		newest->next = oldest;
		oldest = newest;
		newest = next;
	}
	while (oldest) {
		struct comm_lane *l = oldest;

		oldest = l->next;
		comm_join(comm, l);
	}
}

/* ---- dying ---------------------------------------------------------------------------------- */

void comm_end_without_lanes(struct comm *comm)
{
	comm->last_lane_died_ns = 0;
	if (comm->side == COMM_RECV && comm->rx.peer_closed)
		comm_end_by_record(comm, &comm->rx.peer_close);
	else
		comm_end_by_error(comm, NULL, comm->last_lane_error);
}

static void comm_lane_log_death(struct comm_lane *l, int error, bool stalled, unsigned moved)
{
	unsigned left = (unsigned)__builtin_popcount(l->comm->scheduler.live);
	char remote[HARP_ENDPOINT_TEXT_MAX], buf[COMM_END_TEXT_MAX];

	INFO("lane %u to %s over %s has ended (%s): %u lane%s left, %u chunk%s moved", l->index,
	     harp_endpoint_format(&l->lane->remote, remote), lane_kind_text(l->lane),
	     stalled ? "nothing acknowledged, while other lanes get on"
		     : comm_lane_end_text(error, false, buf, sizeof(buf)),
	     left, left == 1 ? "" : "s", moved, moved == 1 ? "" : "s");
}

void comm_lane_die(struct comm_lane *l, int error, bool stalled)
{
	struct comm *comm = l->comm;
	bool quiet = comm->closing || comm_has_failed(comm) || comm->end_error ||
		     (comm->side == COMM_RECV && comm->rx.peer_closed);
	unsigned moved;

	if (l->dead)
		return;
	if (!comm->multi_lane) {
		if (comm->side == COMM_SEND)
			comm_send_finish_lane(l);
		comm_end_by_error(comm, l, error);
		return;
	}
	if (stalled && comm->scheduler.live == 1u << l->index)
		return; /* the other lanes have died meanwhile */
	moved = comm_lane_detach(l, true);
	atomic_fetch_and_explicit(&comm->present, ~(1u << l->index), memory_order_relaxed);
	if (!comm->scheduler.live) {
		comm->last_lane_died_ns = comm->now_ns;
		comm->last_lane_error = error;
		if (comm->closing || comm_has_failed(comm))
			comm_end_without_lanes(comm);
	}
	comm_wake_all(comm);
	if (quiet) {
		lane_stats_closed(l->stats);
		return;
	}
	if (comm->lane_lost)
		comm->lane_lost(comm, l->index, COMM_LOSS);
	lane_stats_died(l->stats, error);
	comm_lane_log_death(l, error, stalled, moved);
}

void comm_lane_drain(struct comm_lane *l)
{
	struct comm *comm = l->comm;

	if (comm->scheduler.lane[l->index].draining)
		return;
	comm->scheduler.lane[l->index].draining = true;
	comm_choose_control(comm);
}

static void comm_lane_free(struct comm_lane *l, bool abort)
{
	l->lane->ops->close(l->lane, abort);
	free(l);
}

void comm_free_dead_lanes(struct comm *comm)
{
	struct comm_lane **dead = comm->engine ? &comm->engine->dead : &comm->dead;

	while (*dead) {
		struct comm_lane *l = *dead;

		*dead = l->next;
		comm_lane_free(l, true);
	}
}

/* ---- sampling ------------------------------------------------------------------------------- */

/* A lane is not dead before its TCP has retransmitted; Linux waits at least 200 ms for that. */
static uint64_t comm_lane_timeout_ns(const struct lane_info *info)
{
	uint64_t timeout_ns = plugin_config()->lane_timeout_ns;

	return timeout_ns > RTOS * info->rto_ns ? timeout_ns : RTOS * info->rto_ns;
}

/* Checks a kernel lane each second while a request is outstanding, and when the timeout expires.
 * HARP lanes have their own timers. */
static bool comm_lane_is_silent(struct comm_lane *l)
{
	uint64_t now_ns = l->comm->now_ns, timeout_ns, silence_ns, wait_ns;
	bool silent;

	if (l->kind != LANE_KERNEL || now_ns < l->silence_due_ns ||
	    l->comm->completed == comm_posted(l->comm))
		return false;
	timeout_ns = plugin_config()->user_timeout_ns;
	wait_ns = timeout_ns / 4 < SILENCE_CHECK_NS ? timeout_ns / 4 : SILENCE_CHECK_NS;
	silence_ns = lane_kernel_silence_ns(l->lane, now_ns);
	if (silence_ns < timeout_ns && timeout_ns - silence_ns < wait_ns)
		wait_ns = timeout_ns - silence_ns;
	l->silence_due_ns = now_ns + wait_ns;
	silent = silence_ns >= LANE_SILENCE_WARN_NS;
	if (silent && silence_ns < timeout_ns && !l->silence_warned)
		lane_warn_silent(l->lane, now_ns);
	l->silence_warned = silent;
	return silence_ns >= timeout_ns;
}

/* A kernel lane gets few bytes until samples have measured its rate, so they are frequent until
 * then. A lane of small messages never shows a rate. */
static uint64_t comm_lane_sample_ns(const struct comm_lane *l)
{
	if (l->kind == LANE_HARP)
		return SAMPLE_HARP_NS;
	return l->unrated ? SAMPLE_UNRATED_NS : SAMPLE_KERNEL_NS;
}

void comm_lane_sample(struct comm_lane *l)
{
	struct comm *comm = l->comm;
	struct scheduler_lane *state = &comm->scheduler.lane[l->index];
	uint64_t now_ns = comm->now_ns;
	struct lane_info info;
	unsigned events;

	if (comm_lane_is_silent(l)) {
		comm_lane_die(l, -ETIMEDOUT, false);
		return;
	}
	if (!comm->multi_lane) {
		if (comm->completed < comm_posted(comm) && lane_stats_want_tcp(l->stats, now_ns)) {
			l->lane->ops->info(l->lane, &info);
			lane_stats_tcp(l->stats, &info, now_ns);
		}
		return;
	}
	if (now_ns - l->sampled_ns < comm_lane_sample_ns(l))
		return;
	/* Skip idle lanes. A lane that sent something since the last sample has a new round-trip
	 * time; a stalled one, which gets no chunks, may have been acknowledged since. */
	if (state->given_bytes == state->acked_bytes && state->given_ns <= l->sampled_ns &&
	    !state->stalled) {
		l->sampled_ns = now_ns;
		return;
	}
	l->sampled_ns = now_ns;
	l->lane->ops->info(l->lane, &info);
	lane_stats_tcp(l->stats, &info, now_ns);
	scheduler_acked(&comm->scheduler, l->index, comm_lane_record_bytes(l, info.acked_bytes),
			now_ns);
	events = scheduler_sample(&comm->scheduler, l->index, info.in_flight_bytes > 0,
				  info.srtt_ns, comm_lane_timeout_ns(&info), now_ns);
	if (events & (SCHEDULER_STALLED | SCHEDULER_MOVES))
		comm_choose_control(comm);
	lane_stats_stalled(l->stats, state->stalled);
	l->unrated = scheduler_is_unrated(state);
	if ((events & SCHEDULER_SLOW) && comm->lane_lost)
		comm->lane_lost(comm, l->index, COMM_LOSS_SLOW);
	if (events & SCHEDULER_DEAD) {
		/* Records that TCP has acknowledged come on no other lane. */
		if (comm->side == COMM_SEND)
			(void)comm_send_read(l);
		comm_lane_die(l, -ETIMEDOUT, true);
	}
}

/* ---- closing -------------------------------------------------------------------------------- */

/* Reads and drops received data: with unread data, close() would send RST and CLOSE could be
 * lost. */
static void comm_lane_discard_input(struct comm_lane *l)
{
	uint8_t bytes[16384];

	for (unsigned i = 0; i < DRAIN_READS; i++)
		if (l->lane->ops->recv(l->lane, bytes, sizeof(bytes), 1) <= 0)
			break;
}

/*
 * An orderly close sends CLOSE and FIN. With requests in flight (NCCL aborts), a HARP lane is
 * reset: waiting for acknowledgments would make the abort slow. A kernel lane sends FIN, so what
 * the kernel has accepted still arrives. Before it a single lane sends CLOSE if no record is in the
 * way. In a multi-lane comm, CLOSE would end the comm before completed sends arrive on another
 * lane.
 */
void comm_close_lanes(struct comm *comm)
{
	bool failed = comm_has_failed(comm);
	bool in_flight = comm->abort || comm->completed < comm_posted(comm);
	struct record close = { .type = RECORD_CLOSE,
				.tag = in_flight ? CLOSE_ABORTED : CLOSE_ORDERLY,
				.message = comm->completed };
	struct comm_lane *l;

	if (!failed && !in_flight && comm->side == COMM_SEND && comm->multi_lane)
		comm_send_run(comm); /* chunks of lanes that died */
	COMM_FOR_EACH_LANE(comm, l)
	{
		bool lost = false;

		if (!comm_lane_is_reachable(l))
			continue;
		if (!failed && !in_flight) {
			/* All requests are done: their memory is the application's again. */
			if (comm->multi_lane && l->out.buffer < 0)
				l->out.payload = NULL;
			if (l->kind == LANE_KERNEL && comm->multi_lane)
				comm_lane_discard_input(l);
			lost = !comm_lane_send_close(l, &close);
		} else if (!failed && l->kind == LANE_KERNEL && !comm->multi_lane) {
			(void)comm_lane_send_close(l, &close);
		}
		(void)comm_lane_detach(l, lost);
	}
	for (struct comm_lane **dead = comm->engine ? &comm->engine->dead : &comm->dead; *dead;) {
		l = *dead;
		*dead = l->next;
		comm_lane_free(l, failed || l->send_error || (in_flight && l->kind != LANE_KERNEL));
	}
}
