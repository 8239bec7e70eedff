/* SPDX-License-Identifier: Apache-2.0 */
/* comm_lane.c - one lane of a comm: records out and in, being watched, being polled. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm_impl.h"
#include "process/parallel.h"

/*
 * Theory of operation
 *
 * Everything here runs with the baton of the lane's driver held and touches nothing that lanes share.
 *
 * A record on its way out stays in l->out until its last byte is with the lane; the next one is begun then. The
 * payload is read from the request's memory while comm_out_push() runs and not before or after, which is what
 * lets a request end, and its memory go, between two calls: the rest of such a record is zeros, and the receiver,
 * which has the bytes from another lane, throws them away.
 */

#define SILENCE_ASK_NS 1000000000ull
#define SILENCE_WARN_NS 5000000000ull

static const uint8_t comm_zeros[4096];

/* ---- being ------------------------------------------------------------------------------------ */

static void comm_only_run(struct work *work, uint64_t now_ns);
static void comm_only_notify(struct lane *lane, uint64_t now_ns);

/* For the page, which tells HARP's lanes over DPDK ports from those over AF_XDP. */
static enum harp_page_kind comm_lane_kind(const struct lane *lane, int dev)
{
	const struct device *device = plugin_device(dev);

	if (lane->kind_bit == LANE_HARP && device && device->dpdk)
		return HARP_PAGE_KIND_DPDK;
	return (enum harp_page_kind)lane->kind_bit;
}

struct comm_lane *comm_lane_new(struct comm *comm, struct lane *lane,
				const struct comm_lane_options *opt)
{
	struct comm_lane *l = NULL;
	struct lane_row_options row = { .index = opt->index,
					.backup = opt->backup,
					.dev = opt->dev,
					.kind = comm_lane_kind(lane, opt->dev) };

	if (lane->kind_bit != LANE_KERNEL || comm->kernel_count)
		l = aligned_alloc(64, (sizeof(*l) + 63) & ~(size_t)63);
	if (!l)
		return NULL;
	memset(l, 0, sizeof(*l));
	l->comm = comm;
	l->index = opt->index;
	l->backup = opt->backup;
	l->dev = opt->dev;
	l->kind = lane->kind_bit;
	l->sent_bytes = opt->sent_bytes;
	l->under_way = (struct comm_list){ -1, -1 };
	l->out_kept = -1;
	l->work.run = comm->several ? comm_lane_run : comm_only_run;
	l->lane = lane;
	lane->owner = l;
	lane->notify = comm->several ? comm_lane_notify : comm_only_notify;
	if (l->kind == LANE_KERNEL)
		lane->driver = &comm->kernels[l->index % comm->kernel_count].kd.driver;
	if (lane->ops->label)
		lane->ops->label(lane, comm->side == COMM_SEND ? "NCCL send" : "NCCL receive");
	row.local = lane->local;
	row.remote = lane->remote;
	row.sealed = lane->beneath != NULL;
	row.who = l;
	l->row = lane_page_lane_add(comm->row, &row);
	return l;
}

void comm_lane_poll(struct comm_lane *l)
{
	struct comm_kernel *kernel;

	if (l->kind != LANE_KERNEL || l->pprev_polled)
		return;
	kernel = (struct comm_kernel *)l->lane->driver;
	l->next_polled = kernel->polled;
	l->pprev_polled = &kernel->polled;
	if (l->next_polled)
		l->next_polled->pprev_polled = &l->next_polled;
	kernel->polled = l;
	lane_kernel_join(l->lane, &kernel->kd);
}

void comm_lane_shut(struct comm_lane *l, bool abort)
{
	if (l->pprev_polled) {
		*l->pprev_polled = l->next_polled;
		if (l->next_polled)
			l->next_polled->pprev_polled = l->pprev_polled;
	}
	l->pprev_polled = NULL;
	if (l->lane)
		l->lane->ops->close(l->lane, abort);
	l->lane = NULL;
}

void comm_lane_free(struct comm_lane *l, bool abort)
{
	comm_lane_shut(l, abort);
	free(l);
}

void comm_lane_watch(struct comm_lane *l, bool wanted)
{
	if (wanted == l->watching)
		return;
	l->watching = wanted;
	l->lane->ops->watch(l->lane, wanted);
}

/* ---- a comm's only lane ------------------------------------------------------------------------ */

static void comm_lane_ask_tcp(struct comm_lane *l, uint64_t now_ns)
{
	struct lane_info info;

	if (!l->lane->ops->info)
		return;
	l->lane->ops->info(l->lane, &info);
	lane_page_tcp(l->row, &info, now_ns);
}

static void comm_only_advance(struct comm_lane *l, uint64_t now_ns)
{
	struct comm *comm = l->comm;
	bool waits;

	if (comm->error)
		return;
	comm->now_ns = now_ns;
	l->turned_ns = now_ns;
	if (comm->side == COMM_SEND)
		comm_send_advance(l, now_ns);
	else
		comm_recv_advance(l, now_ns);
	if (comm->end_error && !comm->error)
		comm_settle(comm, l);
	waits = comm->completed < atomic_load_explicit(&comm->posted, memory_order_relaxed);
	if (waits && lane_page_wants_tcp(l->row, now_ns))
		comm_lane_ask_tcp(l, now_ns);
	lane_page_publish(comm->row, now_ns, !waits);
	comm_lane_watch(l, waits && !comm->error);
}

static void comm_only_run(struct work *work, uint64_t now_ns)
{
	comm_only_advance((struct comm_lane *)((char *)work - offsetof(struct comm_lane, work)),
			  now_ns);
}

static void comm_only_notify(struct lane *lane, uint64_t now_ns)
{
	comm_only_advance(lane->owner, now_ns);
}

/* ---- the kernel's lanes ------------------------------------------------------------------------ */

/* Each second while a request is outstanding, and when the timeout is over. HARP lanes do it by themselves. */
void comm_lane_ask_silence(struct comm_lane *l, uint64_t now_ns)
{
	uint64_t timeout_ns, silence_ns, wait_ns;
	char peer[HARP_ENDPOINT_TEXT_MAX];
	bool silent;

	/* Another thread may have asked with a newer clock. */
	if (now_ns < l->silence_due_ns)
		return;
	timeout_ns = plugin_config()->user_timeout_ns;
	wait_ns = timeout_ns / 4 < SILENCE_ASK_NS ? timeout_ns / 4 : SILENCE_ASK_NS;
	silence_ns = lane_kernel_silence_ns(l->lane, now_ns);
	if (silence_ns < timeout_ns && timeout_ns - silence_ns < wait_ns)
		wait_ns = timeout_ns - silence_ns;
	l->silence_due_ns = now_ns + wait_ns;
	if (silence_ns >= timeout_ns) {
		if (l->comm->several)
			(void)comm_lane_die(l, -ETIMEDOUT, COMM_DEATH_SILENT);
		else
			comm_end_by_error(l->comm, -ETIMEDOUT);
		return;
	}
	silent = silence_ns >= SILENCE_WARN_NS;
	if (silent && !l->silence_warned)
		WARN("peer %s silent for %llu s on a kernel lane: still waiting (gives up after "
		     "%llu s; is the host or the path down?)",
		     harp_endpoint_format(&l->lane->remote, peer),
		     (unsigned long long)(SILENCE_WARN_NS / 1000000000u),
		     (unsigned long long)(plugin_config()->user_timeout_ns / 1000000000u));
	l->silence_warned = silent;
}

/* Is there anything for it to do? Most have nothing: only what wakes them, their driver, and the time at which they
 * are looked at anyway say so. */
static bool comm_lane_is_due(const struct comm_lane *l, uint64_t now_ns)
{
	bool writes = l->out.header_sent < l->out.header_bytes || l->out.payload_left;

	return l->lane->notify &&        /* it has not died in this turn */
	       l->turned_ns != now_ns && /* nor has its work run just now */
	       (lane_kernel_is_due(l->lane, writes) ||
		now_ns - l->turned_ns >= comm_lane_ask_ns(l));
}

/* True: some had something to do. */
static bool comm_kernel_pass(struct comm_kernel *kernel, uint64_t now_ns)
{
	struct comm_lane *l, *next;
	bool due = false;

	for (l = kernel->polled; l; l = next) {
		next = l->next_polled;
		if (comm_lane_is_due(l, now_ns)) {
			due = true;
			l->lane->notify(l->lane, now_ns);
		}
		if (l->watching) /* also one whose work runs in every turn: who polls seldom wakes all */
			comm_lane_ask_silence(l, now_ns);
	}
	return due;
}

/* There is no event: the driver is asked which lane has something to do. */
static void comm_kernel_turn(struct kernel_driver *kd, uint64_t now_ns)
{
	struct comm_kernel *kernel = (struct comm_kernel *)kd;

	/* A turn in which the comm is closed leaves no lane on the list, and the comm stays until the
	 * closing thread had a turn of its own. */
	(void)driver_run_ready(&kd->driver, now_ns);
	/* Some that had something to do may have asked nothing: a sender leaves most lanes unread. */
	if ((!comm_kernel_pass(kernel, now_ns) || !kd->looked) && kernel->polled) {
		kernel_driver_look(kd);
		(void)comm_kernel_pass(kernel, now_ns);
	}
	/* An ACK for what one brought goes by another, and nobody may poll any more. */
	if (atomic_load_explicit(&kd->driver.ready, memory_order_relaxed))
		(void)driver_run_ready(&kd->driver, now_ns);
}

/* Of a comm of one lane, which every turn advances. It is tried once in a turn: to find it empty again behind a small message
 * is a call in vain. In the middle of a large one more is on its way. */
static void comm_only_turn(struct kernel_driver *kd, uint64_t now_ns)
{
	struct comm_kernel *kernel = (struct comm_kernel *)kd;
	struct comm_lane *l = kernel->polled;

	if (l && !(l->comm->side == COMM_RECV ? l->comm->rx.bulk : l->out.payload_left > 0))
		kernel_driver_look(kd);
	if (!driver_run_ready(&kd->driver, now_ns) && l)
		comm_only_advance(l, now_ns);
	l = kernel->polled; /* the comm may be closed */
	if (!l || !l->watching)
		return;
	comm_lane_ask_silence(l, now_ns);
	if (l->comm->end_error) /* said now: nobody is woken for it */
		comm_only_advance(l, now_ns);
}

int comm_kernels_open(struct comm *comm, int dev)
{
	/* NCCL's thread and each worker can be at one of them. */
	unsigned count = comm->several ? parallel_of(dev).threads + 1 : 1;

	comm->kernels = aligned_alloc(64, count * sizeof(*comm->kernels));
	if (!comm->kernels)
		return -ENOMEM;
	comm->kernel_count = count;
	for (unsigned i = 0; i < count; i++) {
		comm->kernels[i].polled = NULL;
		kernel_driver_open(&comm->kernels[i].kd, dev,
				   comm->several ? comm_kernel_turn : comm_only_turn);
	}
	return 0;
}

void comm_kernels_close(struct comm *comm)
{
	for (unsigned i = 0; i < comm->kernel_count; i++)
		kernel_driver_close(&comm->kernels[i].kd);
}

/* ---- records out ------------------------------------------------------------------------------ */

void comm_out_begin(struct comm_lane *l, const struct record *record)
{
	struct comm_out *out = &l->out;

	record_encode(out->header, record);
	out->header_bytes = RECORD_HEADER_BYTES;
	out->header_sent = 0;
	out->payload = NULL;
	out->payload_left = 0;
}

int comm_out_push(struct comm_lane *l)
{
	struct comm_out *out = &l->out;

	while (out->header_sent < out->header_bytes || out->payload_left) {
		struct iovec iov[2];
		int count = 0;
		size_t head = out->header_bytes - out->header_sent;
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
		if (n < 0) {
			l->send_broken = true;
			return (int)n;
		}
		lane_page_add(l->row, HARP_LANE_sent_bytes, (uint64_t)n);
		if ((size_t)n < head) {
			out->header_sent += (size_t)n;
			continue;
		}
		out->header_sent += head;
		if (out->payload_left == 0)
			continue;
		if (out->payload)
			out->payload += (size_t)n - head;
		out->payload_left -= (size_t)n - head;
	}
	return 1;
}

bool comm_lane_tell(struct comm_lane *l, const struct record *close)
{
	l->told_close = true;
	if (l->send_broken || comm_out_push(l) != 1)
		return false; /* in the middle of a record: the RST must do */
	comm_out_begin(l, close);
	return comm_out_push(l) == 1;
}

bool comm_lane_tell_failed(struct comm_lane *l, const struct record *close)
{
	l->send_broken |= l->comm->several && l->out.payload && l->out.payload_left;
	return comm_lane_tell(l, close);
}

/* ---- records in ------------------------------------------------------------------------------- */

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
		lane_page_add(l->row, HARP_LANE_received_bytes, (uint64_t)n);
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
