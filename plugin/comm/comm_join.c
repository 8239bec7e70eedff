/* SPDX-License-Identifier: Apache-2.0 */
/* comm_join.c - lanes join a comm, die, are replaced, and are closed with it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm_impl.h"

/*
 * Theory of operation
 *
 * Death. A lane ends by its FIN or RST, by its TCP's patience, or by ours (stripe.h), or is replaced by a new one
 * of the same index. Under the lock it leaves the table, its chunks are others' and its work is posted; from there on
 * nobody else knows it, and the run of that work, under its baton, closes and frees it. A run that finds the work
 * posted again leaves that to the next. While other lanes live this is nobody's error. The last lane's death ends the
 * comm, after waiting revive_ns for another to join; also when the peer has closed in order and what it counted is not
 * all here: it may have used a lane, and closed it, that is just being let in.
 *
 * Closing. What its sender owes has been seen through before, if there was time (linger.c). `closing` keeps lanes from
 * joining. A sender that keeps messages looks at every lane once more: what one had that has died meanwhile goes by
 * others. Then, driver by driver, its lanes say CLOSE, leave the table and are closed; what one could not say CLOSE
 * behind, the next take. When that is done nobody posts the work of any lane any more, and another call to each
 * driver returns behind the last of it.
 */

#define DRAIN_READS 256u

/* ---- joining ----------------------------------------------------------------------------------- */

static void comm_driver_look_run(struct work *work, uint64_t now_ns);
static void comm_driver_close_run(struct work *work, uint64_t now_ns);
static void comm_driver_flush_run(struct work *work, uint64_t now_ns);

static bool comm_driver_is_kernel(const struct comm *comm, const struct driver *driver)
{
	const struct comm_kernel *kernel = (const struct comm_kernel *)driver;

	return kernel >= comm->kernels && kernel < comm->kernels + comm->kernel_count;
}

/* Lock held: it is one of the comm's, if there is room for it. */
static bool comm_lanes_driver(struct comm *comm, struct driver *driver)
{
	struct comm_several *s = comm->several;
	unsigned count = atomic_load_explicit(&s->driver_count, memory_order_relaxed);
	struct comm_driver *d;

	for (unsigned i = 0; i < count; i++) {
		if (s->drivers[i].driver == driver)
			return true;
	}
	if (count == COMM_LANES_MAX)
		return false;
	d = &s->drivers[count];
	d->comm = comm;
	d->driver = driver;
	d->look_work.run = comm_driver_look_run;
	d->close_work.run = comm_driver_close_run;
	d->flush_work.run = comm_driver_flush_run;
	if (!comm_driver_is_kernel(comm, driver))
		atomic_fetch_add_explicit(&s->harp_drivers, 1, memory_order_relaxed);
	/* The application polls as many as it sees. */
	atomic_store_explicit(&s->driver_count, count + 1, memory_order_release);
	return true;
}

/* It leaves the table. lost: what it had may not arrive. Any thread. */
static unsigned comm_lane_detach(struct comm_lane *l, bool lost)
{
	struct comm *comm = l->comm;
	struct comm_several *s = comm->several;
	unsigned moved = 0;

	l->dead = true;
	s->lanes[l->index] = NULL;
	stripe_remove(&s->stripe, l->index);
	s->watched &= ~(1u << l->index);
	if (comm->side == COMM_SEND)
		moved = comm_tx_orphan(l, lost);
	comm_lanes_control(comm);
	if (comm->side == COMM_RECV) { /* it may have taken a CREDIT or an ACK along */
		s->credit_due = s->ack_due = true;
		comm_wake(comm, s->control);
	}
	driver_post(l->lane->driver, &l->work);
	comm_rouse(comm);
	return moved;
}

bool comm_lanes_join(struct comm *comm, struct comm_lane *l, uint64_t rtt_ns, uint64_t now_ns)
{
	struct comm_several *s = comm->several;

	if (!comm_lanes_driver(comm, l->lane->driver))
		return false;
	if (s->lanes[l->index])
		(void)comm_lane_detach(s->lanes[l->index], true);
	s->lanes[l->index] = l;
	l->next_all = s->all;
	s->all = l;
	l->waits = true; /* something may have come with the preamble */
	stripe_add(&s->stripe, l->index, l->kind, l->backup, rtt_ns, now_ns);
	s->orphaned_ns = 0;
	comm_lanes_control(comm);
	return true;
}

int comm_attach(struct comm *comm, struct lane *lane, const struct comm_lane_options *opt)
{
	struct comm_several *s = comm->several;
	struct lane before = *lane;
	struct comm_lane *l;
	int rc = 0;

	if (!s || opt->index >= COMM_LANES_MAX)
		return -EINVAL;
	l = comm_lane_new(comm, lane, opt);
	if (!l)
		return -ENOMEM;
	comm_lock(comm);
	if (s->closing || s->failing || comm->end_error)
		rc = -ENOTCONN;
	else if (!comm_lanes_join(comm, l, opt->rtt_ns, driver_clock_ns()))
		rc = -ENOMEM;
	else
		comm_wake_all(comm); /* there may be work for it, or from the old one */
	comm_unlock(comm);
	if (rc) {
		lane->driver = before.driver;
		lane->owner = before.owner;
		lane->notify = before.notify;
		lane_page_lane_closed(l->row, l);
		free(l);
	}
	return rc;
}

bool comm_has_lane(struct comm *comm, unsigned index)
{
	bool has;

	comm_lock(comm);
	has = comm->several->lanes[index] != NULL;
	comm_unlock(comm);
	return has;
}

int comm_several_new(struct comm *comm, const struct comm_options *opt)
{
	struct comm_several *s = aligned_alloc(64, (sizeof(*s) + 63) & ~(size_t)63);
	size_t size = comm->side == COMM_SEND ? COMM_CHUNKS_MAX * sizeof(*s->chunks)
					      : COMM_RANGES_MAX * sizeof(*s->ranges.table);
	void *table = malloc(size);

	if (!s || !table) {
		free(s);
		free(table);
		return -ENOMEM;
	}
	memset(s, 0, sizeof(*s));
	s->control = -1;
	s->told = -1;
	s->revive_ns = opt->revive_ns;
	s->harp_bytes_max = opt->harp_bytes_max;
	s->lane_lost = opt->lane_lost;
	s->unused = s->moved = (struct comm_list){ -1, -1 };
	comm->several = s;
	/* A quarter of what may go unasked, so that one chunk always fits (docs/lanes.md section 5.3). */
	if (opt->kept)
		s->kept_bytes = comm->eager_bytes / 4 < COMM_KEPT_BYTES_MAX ? comm->eager_bytes / 4
									    : COMM_KEPT_BYTES_MAX;
	if (comm->side == COMM_RECV) {
		s->ranges = (struct ranges){ .table = table, .max = COMM_RANGES_MAX };
		return 0;
	}
	s->chunks = table;
	if (s->kept_bytes && comm_kept_new(comm)) {
		comm_several_free(comm);
		return -ENOMEM;
	}
	for (int16_t i = 0; i < (int16_t)COMM_CHUNKS_MAX; i++)
		s->chunks[i].next = (int16_t)(i + 1 < (int16_t)COMM_CHUNKS_MAX ? i + 1 : -1);
	s->unused = (struct comm_list){ 0, (int16_t)(COMM_CHUNKS_MAX - 1) };
	return 0;
}

void comm_several_free(struct comm *comm)
{
	struct comm_several *s = comm->several;

	if (!s)
		return;
	while (s->early) {
		struct comm_early *early = s->early;

		s->early = early->next;
		comm_early_free(early);
	}
	comm_kept_free(comm);
	free(s->chunks);
	free(s->ranges.table);
	free(s);
}

/* ---- dying ------------------------------------------------------------------------------------- */

void comm_end_by_lanes(struct comm *comm, int error)
{
	if (comm->several->peer_closed)
		comm_end_by_record(comm, &comm->several->peer_close);
	else
		comm_end_by_error(comm, error);
}

static const char *comm_death_text(int error, enum comm_death how, char *buf, size_t len)
{
	if (how == COMM_DEATH_STALLED)
		return "nothing acknowledged, while other lanes get on";
	return comm_lane_end_text(error, false, buf, len);
}

/* Lock held. */
static void comm_lane_muted(struct comm_lane *l)
{
	l->comm->several->stripe.lane[l->index].mute = true;
	comm_lanes_control(l->comm);
}

/* Lock held. The others may have gone since it was found to have ended: of the last one more is to be asked, in the hold in which
 * it would go. */
static bool comm_lane_stays(struct comm_lane *l, enum comm_death how)
{
	if (l->comm->several->stripe.live != 1u << l->index)
		return false;
	if (how == COMM_DEATH_STALLED)
		return true;
	if (how != COMM_DEATH_ENDED || l->comm->side != COMM_RECV || !comm_rx_rests(l))
		return false;
	comm_lane_muted(l);
	return true;
}

bool comm_lane_die(struct comm_lane *l, int error, enum comm_death how)
{
	struct comm *comm = l->comm;
	struct comm_several *s = comm->several;
	char remote[HARP_ENDPOINT_TEXT_MAX], buf[96];
	unsigned moved, left;
	bool over, quiet, replaced, stays;

	comm_lock(comm);
	stays = !l->dead && comm_lane_stays(l, how);
	if (l->dead || stays) {
		comm_unlock(comm);
		return !stays;
	}
	over = s->closing || s->failing || comm->end_error;
	quiet = over || s->peer_closed;
	moved = comm_lane_detach(l, true);
	left = (unsigned)__builtin_popcount(s->stripe.live);
	if (!left && s->revive_ns && !over) {
		s->orphaned_ns = comm->now_ns;
		s->orphan_error = error;
	} else if (!left) {
		comm_end_by_lanes(comm, error);
	}
	comm_wake_all(comm);
	comm_unlock(comm);
	l->lane->notify = NULL;
	replaced = !quiet && s->lane_lost &&
		   s->lane_lost(comm, l->index,
				error == -ECONNRESET || error == -EPIPE ? COMM_LOSS_BY_PEER
									: COMM_LOSS);
	if (!quiet && !replaced && (left || s->revive_ns))
		INFO("lane %u to %s over %s has ended (%s): %u lane%s left, %u chunk%s moved",
		     l->index, harp_endpoint_format(&l->lane->remote, remote), l->lane->ops->kind,
		     comm_death_text(error, how, buf, sizeof(buf)), left, left == 1 ? "" : "s",
		     moved, moved == 1 ? "" : "s");
	if (quiet)
		lane_page_lane_closed(l->row, l);
	else if (!replaced) /* else its row is the new one's soon */
		lane_page_lane_died(l->row, l, error);
	if (!left)
		comm_settle(comm, l);
	return true;
}

bool comm_lane_mute(struct comm_lane *l)
{
	struct comm *comm = l->comm;
	bool unread;

	comm_lock(comm);
	unread = !l->dead && l->unread;
	if (unread)
		comm_lane_muted(l);
	comm_unlock(comm);
	return unread;
}

void comm_lane_bury(struct comm_lane *l)
{
	struct comm *comm = l->comm;
	struct comm_lane **at;

	/* Who detached it posted the work then, under the lock: a run that finds it posted again was another. */
	if (atomic_load_explicit(&l->work.queued, memory_order_acquire))
		return;
	comm_lock(comm);
	for (at = &comm->several->all; *at != l; at = &(*at)->next_all)
		;
	*at = l->next_all;
	comm_unlock(comm);
	comm_lane_free(l, true);
}

/* ---- closing ------------------------------------------------------------------------------------ */

/* What the kernel still has for us would turn its close into a reset, and CLOSE be lost. */
static void comm_lane_drain(struct comm_lane *l)
{
	uint8_t bytes[16384];

	for (unsigned i = 0; i < DRAIN_READS; i++) {
		if (l->lane->ops->recv(l->lane, bytes, sizeof(bytes), 1) <= 0)
			break;
	}
}

/* The first of them, from that index on. Lock held. */
static struct comm_lane *comm_driver_lane(struct comm_several *s, const struct driver *driver,
					  unsigned index)
{
	for (uint32_t left = s->stripe.live & (~0u << index); left; left &= left - 1) {
		struct comm_lane *l = s->lanes[__builtin_ctz(left)];

		if (l->lane->driver == driver)
			return l;
	}
	return NULL;
}

/* Which of that driver's lanes have died, and what others had goes by those that live. Baton of that driver held. */
static void comm_driver_look_run(struct work *work, uint64_t now_ns)
{
	struct comm_driver *d =
		(struct comm_driver *)((char *)work - offsetof(struct comm_driver, look_work));
	struct comm *comm = d->comm;
	struct comm_lane *l;

	for (unsigned index = 0; index < COMM_LANES_MAX; index++) {
		comm_lock(comm);
		l = comm_driver_lane(comm->several, d->driver, index);
		comm_unlock(comm);
		if (!l)
			return;
		index = l->index;
		l->turned_ns = now_ns; /* comm_kernel_turn() leaves it alone */
		l->looked_ns = 0;      /* a kernel lane is read, too */
		comm_tx_advance(l, now_ns);
	}
}

/* Baton of that driver held. */
static void comm_driver_close_run(struct work *work, uint64_t now_ns)
{
	struct comm_driver *d =
		(struct comm_driver *)((char *)work - offsetof(struct comm_driver, close_work));
	struct comm *comm = d->comm;
	struct comm_several *s = comm->several;
	struct record close = { .type = RECORD_CLOSE, .tag = CLOSE_ORDERLY };
	struct comm_lane *l;

	for (;;) {
		bool failed, in_flight, lost = false;

		comm_lock(comm);
		l = comm_driver_lane(s, d->driver, 0);
		failed = s->failing;
		in_flight =
			comm->abort ||
			comm->completed < atomic_load_explicit(&comm->posted, memory_order_acquire);
		close.message = comm->completed;
		comm_unlock(comm);
		if (!l)
			return;
		/* Kept ones of lanes that died, though they were done. */
		if (!failed && !in_flight && comm->side == COMM_SEND)
			(void)comm_tx_push(l, now_ns);
		if (!failed && !in_flight) {
			if (l->kind == LANE_KERNEL)
				comm_lane_drain(l);
			lost = !comm_lane_tell(l, &close);
		}
		comm_lock(comm);
		(void)comm_lane_detach(l, lost);
		comm_unlock(comm);
		comm_lane_shut(l,
			       failed || l->send_broken || (in_flight && l->kind != LANE_KERNEL));
	}
}

static void comm_driver_flush_run(struct work *work, uint64_t now_ns)
{
	(void)work;
	(void)now_ns;
}

void comm_several_close(struct comm *comm)
{
	struct comm_several *s = comm->several;
	unsigned count;
	bool looks;

	comm_lock(comm);
	s->closing = true;
	looks = s->kept && ~s->kept_free && !s->failing && !comm->abort &&
		comm->completed == atomic_load_explicit(&comm->posted, memory_order_acquire);
	comm_unlock(comm);
	count = atomic_load_explicit(&s->driver_count, memory_order_acquire);
	for (unsigned i = 0; looks && i < count; i++)
		driver_call(s->drivers[i].driver, &s->drivers[i].look_work);
	for (unsigned i = 0; i < count; i++)
		driver_call(s->drivers[i].driver, &s->drivers[i].close_work);
	for (unsigned i = 0; i < count; i++)
		driver_call(s->drivers[i].driver, &s->drivers[i].flush_work);
}
