/* SPDX-License-Identifier: Apache-2.0 */
/* comm_lane.c - one lane of a comm: it joins, is sampled, dies; its records out and in. */
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
 * Life. comm_attach() makes a lane and leaves it on a stack; the next turn puts it on the table, in the place of one of
 * the same index. A lane ends by FIN or RST, by its TCP's timeout, by ours (scheduler.c), or is replaced. It leaves the table,
 * its chunks go to others, and the next turn that reaches it closes and frees it. While other lanes live that is no
 * error. The last lane's death ends the comm, after revive_ns in which another may join. A receiver's lane that takes
 * no more records drains: it is read to its end, as what it brought may come by no other lane.
 *
 * Records. A record on its way out stays in l->out until its last byte is with the lane; the next one begins then. The
 * payload is read from the request's memory in comm_lane_push() only. So a request may end between two calls: the rest of
 * its record is zeros, and the receiver, which has the bytes from another lane, drops them.
 */

#define SILENCE_ASK_NS 1000000000ull
#define SILENCE_WARN_NS 5000000000ull
#define SAMPLE_HARP_NS 2000000u
#define SAMPLE_KERNEL_NS 1000000u /* it says how much is under way, too */
#define SAMPLE_UNRATED_NS 20000u  /* until its rate is known, which looks measure */
#define RTOS 2u                   /* of its TCP a lane has before it may be called dead */
#define DRAIN_READS 256u

static const uint8_t comm_zeros[4096];

/* ---- joining ----------------------------------------------------------------------------------- */

struct comm_engine *comm_engine_of(struct comm *comm, struct driver *driver)
{
	for (unsigned i = 0; i < COMM_LANES_MAX; i++) {
		struct driver *found = NULL;

		if (atomic_compare_exchange_strong_explicit(&comm->engines[i].driver, &found,
							    driver, memory_order_acq_rel,
							    memory_order_acquire) ||
		    found == driver)
			return &comm->engines[i];
	}
	return NULL;
}

/* The statistics tell HARP lanes over DPDK ports from those over AF_XDP. */
static enum harp_page_kind comm_lane_page_kind(const struct lane *lane, int dev)
{
	const struct device *device = plugin_device(dev);

	if (lane->kind_bit == LANE_HARP && device && device->dpdk)
		return HARP_PAGE_KIND_DPDK;
	return (enum harp_page_kind)lane->kind_bit;
}

struct comm_lane *comm_lane_new(struct comm *comm, struct lane *lane,
				const struct comm_lane_options *opt)
{
	struct comm_lane *l = aligned_alloc(64, (sizeof(*l) + 63) & ~(size_t)63);
	struct lane_stats_options stats = { .index = opt->index,
					    .backup = opt->backup,
					    .dev = opt->dev,
					    .kind = comm_lane_page_kind(lane, opt->dev),
					    .local = lane->local,
					    .remote = lane->remote,
					    .sealed = lane->beneath != NULL,
					    .owner = l };

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
	l->under_way = (struct comm_list){ -1, -1 };
	l->out.buffer = -1;
	l->engine = l->kind == LANE_HARP ? comm_engine_of(comm, lane->driver) : NULL;
	if ((l->kind == LANE_HARP) != !!l->engine ||
	    (l->kind == LANE_KERNEL && !comm->has_kernel_lanes)) {
		free(l);
		return NULL;
	}
	l->stats = lane_stats_open(comm->stats, &stats);
	if (!l->stats) {
		free(l);
		return NULL;
	}
	for (struct lane *each = lane; each; each = each->beneath)
		each->awaited = &comm->awaited;
	lane->owner = l;
	lane->notify = comm_lane_notify;
	if (lane->ops->label)
		lane->ops->label(lane, comm->side == COMM_SEND ? "NCCL send" : "NCCL receive");
	return l;
}

/* It leaves the table. lost: what it had may not arrive. Returns how many of its chunks others will send. */
static unsigned comm_lane_detach(struct comm_lane *l, bool lost)
{
	struct comm *comm = l->comm;
	struct comm_lane **dead = l->engine ? &l->engine->dead : &comm->dead;
	unsigned moved = 0;

	l->state = COMM_LANE_DEAD;
	comm->lanes[l->index] = NULL;
	scheduler_remove(&comm->scheduler, l->index);
	atomic_fetch_and_explicit(&comm->present, ~(1u << l->index), memory_order_relaxed);
	if (comm->side == COMM_SEND && comm->failover)
		moved = comm_send_orphan(l, lost);
	comm_choose_control(comm);
	if (comm->side == COMM_RECV) /* it may have taken a CREDIT or an ACK along */
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
	atomic_fetch_or_explicit(&comm->present, 1u << l->index, memory_order_relaxed);
	l->state = COMM_LANE_OPEN;
	comm->lanes[l->index] = l;
	scheduler_add(&comm->scheduler, l->index, l->kind, l->backup, l->rtt_ns, comm->now_ns);
	comm->orphaned_ns = 0;
	comm_choose_control(comm);
	comm_wake(l); /* something may have come with the preamble */
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

void comm_choose_control(struct comm *comm)
{
	int control = scheduler_control(&comm->scheduler);

	if (control == comm->control)
		return;
	comm->control = control;
	/* What the old one was told may be lost. */
	if (comm->side == COMM_RECV)
		ack_again(comm);
}

/* ---- dying ------------------------------------------------------------------------------------- */

const char *comm_lane_end_text(int error, bool in_message, char *buf, size_t len)
{
	if (error == -ENETDOWN) /* here, not there */
		return "this host's network interface is gone or down";
	if (error == -EBADMSG) /* the peer lives */
		return lane_error_text(error);
	if (error == -EPIPE)
		return in_message
			       ? "connection closed in the middle of a message: the peer's process "
				 "died (see its log)"
			       : "connection closed without notice: the peer's process died (see its log)";
	snprintf(buf, len, "%s: the peer's process or host died, or the path is cut",
		 lane_error_text(error));
	return buf;
}

void comm_end_orphaned(struct comm *comm)
{
	comm->orphaned_ns = 0;
	if (comm->side == COMM_RECV && comm->rx.peer_closed)
		comm_end_by_record(comm, &comm->rx.peer_close);
	else
		comm_end_by_error(comm, NULL, comm->orphan_error);
}

static bool comm_is_quiet(const struct comm *comm)
{
	return comm->closing || comm_has_failed(comm) || comm->end_error ||
	       (comm->side == COMM_RECV && comm->rx.peer_closed);
}

static void comm_lane_log_death(struct comm_lane *l, int error, bool stalled, unsigned moved)
{
	unsigned left = (unsigned)__builtin_popcount(l->comm->scheduler.live);
	char remote[HARP_ENDPOINT_TEXT_MAX], buf[96];

	INFO("lane %u to %s over %s has ended (%s): %u lane%s left, %u chunk%s moved", l->index,
	     harp_endpoint_format(&l->lane->remote, remote), l->lane->ops->kind,
	     stalled ? "nothing acknowledged, while other lanes get on"
		     : comm_lane_end_text(error, false, buf, sizeof(buf)),
	     left, left == 1 ? "" : "s", moved, moved == 1 ? "" : "s");
}

void comm_lane_die(struct comm_lane *l, int error, bool stalled)
{
	struct comm *comm = l->comm;
	bool quiet = comm_is_quiet(comm), replaced, left;
	unsigned moved;

	if (l->state == COMM_LANE_DEAD)
		return;
	if (!comm->failover) {
		if (comm->side == COMM_SEND)
			comm_send_finish_lane(l);
		comm_end_by_error(comm, l, error);
		return;
	}
	if (stalled && comm->scheduler.live == 1u << l->index)
		return; /* the others have gone meanwhile */
	moved = comm_lane_detach(l, true);
	left = comm->scheduler.live != 0;
	if (!left) {
		comm->orphaned_ns = comm->now_ns;
		comm->orphan_error = error;
		if (!comm->revive_ns || comm->closing || comm_has_failed(comm))
			comm_end_orphaned(comm);
	}
	comm_wake_all(comm);
	replaced = !quiet && comm->lane_lost &&
		   comm->lane_lost(comm, l->index,
				   error == -ECONNRESET || error == -EPIPE ? COMM_LOSS_BY_PEER
									   : COMM_LOSS);
	if (quiet)
		lane_stats_closed(l->stats, l);
	else if (!replaced) /* else its place is the new one's soon */
		lane_stats_died(l->stats, l, error);
	if (!quiet && !replaced && (left || comm->revive_ns))
		comm_lane_log_death(l, error, stalled, moved);
}

void comm_lane_drain(struct comm_lane *l)
{
	struct comm *comm = l->comm;

	if (l->state != COMM_LANE_OPEN)
		return;
	l->state = COMM_LANE_DRAINING;
	comm->scheduler.lane[l->index].mute = true;
	comm_choose_control(comm);
}

static void comm_lane_free(struct comm_lane *l, bool abort)
{
	l->lane->ops->close(l->lane, abort);
	free(l);
}

void comm_bury(struct comm *comm)
{
	struct comm_lane **dead = comm->engine ? &comm->engine->dead : &comm->dead;

	while (*dead) {
		struct comm_lane *l = *dead;

		*dead = l->next;
		comm_lane_free(l, true);
	}
}

/* ---- how it does ------------------------------------------------------------------------------- */

/* No lane is dead before its TCP has retransmitted, which Linux does after 200 ms at the soonest. */
static uint64_t comm_lane_timeout_ns(const struct lane_info *info)
{
	uint64_t timeout_ns = plugin_config()->lane_timeout_ns;

	return timeout_ns > RTOS * info->rto_ns ? timeout_ns : RTOS * info->rto_ns;
}

/* Each second while a request is outstanding, and when the timeout is over. HARP lanes have their own timers. */
static bool comm_lane_is_silent(struct comm_lane *l)
{
	uint64_t now_ns = l->comm->now_ns, timeout_ns, silence_ns, wait_ns;
	char peer[HARP_ENDPOINT_TEXT_MAX];
	bool silent;

	if (l->kind != LANE_KERNEL || now_ns < l->silence_due_ns ||
	    l->comm->completed == comm_posted(l->comm))
		return false;
	timeout_ns = plugin_config()->user_timeout_ns;
	wait_ns = timeout_ns / 4 < SILENCE_ASK_NS ? timeout_ns / 4 : SILENCE_ASK_NS;
	silence_ns = lane_kernel_silence_ns(l->lane, now_ns);
	if (silence_ns < timeout_ns && timeout_ns - silence_ns < wait_ns)
		wait_ns = timeout_ns - silence_ns;
	l->silence_due_ns = now_ns + wait_ns;
	silent = silence_ns >= SILENCE_WARN_NS;
	if (silent && silence_ns < timeout_ns && !l->silence_warned)
		WARN_IF(lane_is_news(LANE_NEWS_SILENT, &l->lane->remote.addr, now_ns),
			"peer %s silent for %llu s on a kernel lane: still waiting (gives up after "
			"%llu s; is the host or the path down?)",
			harp_endpoint_format(&l->lane->remote, peer),
			(unsigned long long)(SILENCE_WARN_NS / 1000000000u),
			(unsigned long long)(timeout_ns / 1000000000u));
	l->silence_warned = silent;
	return silence_ns >= timeout_ns;
}

/* A kernel lane is given little before its rate is known, and looks measure it: until then they are frequent. A lane of
 * small messages never shows a rate. */
static uint64_t comm_lane_sample_ns(const struct comm_lane *l)
{
	if (l->kind == LANE_HARP)
		return SAMPLE_HARP_NS;
	return l->unrated ? SAMPLE_UNRATED_NS : SAMPLE_KERNEL_NS;
}

bool comm_lane_sample(struct comm_lane *l)
{
	struct comm *comm = l->comm;
	struct scheduler_lane *mine = &comm->scheduler.lane[l->index];
	uint64_t now_ns = comm->now_ns;
	struct lane_info info;
	unsigned news;

	if (comm_lane_is_silent(l)) {
		comm_lane_die(l, -ETIMEDOUT, false);
		return l->state != COMM_LANE_DEAD;
	}
	if (!comm->failover) {
		if (l->lane->ops->info && comm->completed < comm_posted(comm) &&
		    lane_stats_want_tcp(l->stats, now_ns)) {
			l->lane->ops->info(l->lane, &info);
			lane_stats_tcp(l->stats, &info, now_ns);
		}
		return true;
	}
	if (now_ns - l->sampled_ns < comm_lane_sample_ns(l) || !l->lane->ops->info)
		return true;
	/* What was given and acknowledged between two looks has a round trip to tell of, too. And a stalled lane, which is
	 * given nothing, may have been acknowledged since. */
	if (mine->given_bytes == mine->acked_bytes && mine->given_ns <= l->sampled_ns &&
	    !mine->stalled) {
		l->sampled_ns = now_ns;
		return true;
	}
	l->sampled_ns = now_ns;
	l->lane->ops->info(l->lane, &info);
	lane_stats_tcp(l->stats, &info, now_ns);
	scheduler_acked(&comm->scheduler, l->index,
			info.acked_bytes > l->sent_bytes ? info.acked_bytes - l->sent_bytes : 0,
			now_ns);
	news = scheduler_sample(&comm->scheduler, l->index, info.in_flight_bytes > 0, info.srtt_ns,
				comm_lane_timeout_ns(&info), now_ns);
	if (news & (SCHEDULER_STALLED | SCHEDULER_MOVES))
		comm_choose_control(comm);
	lane_stats_stalled(l->stats, mine->stalled);
	l->unrated = scheduler_is_unrated(mine);
	if ((news & SCHEDULER_SLOW) && comm->lane_lost)
		(void)comm->lane_lost(comm, l->index, COMM_LOSS_SLOW);
	if (news & SCHEDULER_DEAD)
		comm_lane_die(l, -ETIMEDOUT, true);
	return l->state != COMM_LANE_DEAD;
}

/* ---- records out ------------------------------------------------------------------------------- */

void comm_out_begin(struct comm_lane *l, const struct record *record)
{
	record_encode(l->out.header, record);
	l->out.header_bytes = RECORD_HEADER_BYTES;
	l->out.header_sent = 0;
	l->out.payload = NULL;
	l->out.payload_left = 0;
}

static int comm_out_push(struct comm_lane *l)
{
	struct comm_out *out = &l->out;

	while (comm_lane_has_out(l)) {
		size_t head = out->header_bytes - out->header_sent;
		struct iovec iov[2];
		int count = 0;
		ssize_t n;

		if (head)
			iov[count++] = (struct iovec){ out->header + out->header_sent, head };
		if (out->payload_left && out->payload)
			iov[count++] = (struct iovec){ (void *)(uintptr_t)out->payload,
						       out->payload_left };
		else if (out->payload_left)
			iov[count++] = (struct iovec){ (void *)(uintptr_t)comm_zeros,
						       out->payload_left < sizeof(comm_zeros)
							       ? out->payload_left
							       : sizeof(comm_zeros) };
		n = l->lane->ops->send(l->lane, iov, count);
		if (n == -EAGAIN)
			return 0;
		if (n < 0)
			return (int)n;
		lane_stats_sent(l->stats, (uint64_t)n, l->comm->now_ns);
		if ((size_t)n < head) {
			out->header_sent += (size_t)n;
			continue;
		}
		out->header_sent += head;
		if (out->payload)
			out->payload += (size_t)n - head;
		out->payload_left -= (size_t)n - head;
	}
	out->header_bytes = out->header_sent = 0;
	return 1;
}

int comm_lane_push(struct comm_lane *l)
{
	int rc;

	if (l->broken)
		return l->send_error;
	rc = comm_out_push(l);
	l->full = rc == 0;
	if (rc < 0) {
		l->broken = true;
		l->send_error = rc;
		comm_wake(l); /* what it has to be read explains it */
	}
	return rc;
}

/* CLOSE, unless a record is stuck in the middle: the RST must do then. True: it and all before it is with the lane. */
static bool comm_lane_tell(struct comm_lane *l, const struct record *close)
{
	l->told_close = true;
	if (l->broken || comm_lane_push(l) != 1)
		return false;
	comm_out_begin(l, close);
	return comm_lane_push(l) == 1;
}

void comm_lane_tell_failed(struct comm_lane *l)
{
	/* The memory of a record that has begun to leave is the application's again. */
	if (!l->told_close && !(l->out.payload && l->out.payload_left))
		(void)comm_lane_tell(l, &l->comm->close);
	l->told_close = true;
}

/* ---- records in -------------------------------------------------------------------------------- */

/* Reads control bytes until in_head holds `want`. */
static int comm_read_head(struct comm_lane *l, size_t want)
{
	while (l->in_head_bytes < want) {
		ssize_t n = l->lane->ops->recv(l->lane, l->in_head + l->in_head_bytes,
					       want - l->in_head_bytes, 1);

		if (n == -EAGAIN)
			return 0;
		if (n <= 0)
			return n ? (int)n : -EPIPE;
		lane_stats_received(l->stats, (uint64_t)n, l->comm->now_ns);
		l->in_head_bytes += (size_t)n;
	}
	return 1;
}

int comm_read_record(struct comm_lane *l, struct record *record)
{
	const char *what;
	int rc = comm_read_head(l, RECORD_HEADER_BYTES);

	if (rc != 1)
		return rc;
	rc = record_decode(l->in_head, record, &what);
	if (rc) {
		comm_fail_protocol(l->comm, l, what);
		return rc;
	}
	if (record->type == RECORD_CREDIT) {
		rc = comm_read_head(l, RECORD_HEADER_BYTES + record->length);
		if (rc != 1)
			return rc;
	}
	l->in_head_bytes = 0;
	return 1;
}

/* ---- closing ----------------------------------------------------------------------------------- */

/* What the kernel still has for us would turn its close into a reset, and CLOSE be lost. */
static void comm_lane_read_off(struct comm_lane *l)
{
	uint8_t bytes[16384];

	for (unsigned i = 0; i < DRAIN_READS; i++)
		if (l->lane->ops->recv(l->lane, bytes, sizeof(bytes), 1) <= 0)
			break;
}

/*
 * Orderly: CLOSE and FIN. With requests in flight a HARP lane is reset; a kernel lane gets a FIN without CLOSE, which says
 * the same to the peer, because a reset would take with it what the kernel has accepted, and we have called done.
 */
void comm_close_lanes(struct comm *comm)
{
	bool failed = comm_has_failed(comm);
	bool in_flight = comm->abort || comm->completed < comm_posted(comm);
	struct record close = { .type = RECORD_CLOSE,
				.tag = CLOSE_ORDERLY,
				.message = comm->completed };
	struct comm_lane *l;

	if (!failed && !in_flight && comm->side == COMM_SEND && comm->failover)
		comm_send_run(comm); /* chunks of lanes that died */
	COMM_FOR_EACH_LANE(comm, l)
	{
		bool lost = false;

		if (!comm_lane_is_reachable(l))
			continue;
		if (!failed && !in_flight) {
			if (l->kind == LANE_KERNEL && comm->failover)
				comm_lane_read_off(l);
			lost = !comm_lane_tell(l, &close);
		}
		(void)comm_lane_detach(l, lost);
	}
	for (struct comm_lane **dead = comm->engine ? &comm->engine->dead : &comm->dead; *dead;) {
		l = *dead;
		*dead = l->next;
		comm_lane_free(l, failed || l->broken || (in_flight && l->kind != LANE_KERNEL));
	}
}
