/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm_stream.c - the simulated kernel: TCP connections under the virtual clock. The functions
 * replace forkguard.c, kernel_info.c and the system calls of lane_kernel.c.
 *
 * Theory of operation. A connection is two pipes. A pipe is a ring: written bytes stay in it until
 * they are read, so its capacity is that of both sockets' buffers. Each write leaves a mark with
 * the arrival time of its bytes (rate, then delay). While the lane is silent, nothing arrives;
 * afterwards everything does.
 *
 * As in Linux, bytes that send() accepted count as sent. close() with unread bytes, and bytes that
 * arrive for a closed socket, reset the connection; bytes in flight in the other direction are then
 * lost. After a reset, bytes that had arrived can still be read; the next call reports the error
 * once. recv() copies in address order, ignoring units of eight bytes.
 *
 * short_ppm shortens calls: a send as if memory were short, with a writable event when the peer has
 * read; a receive as if the rest arrived immediately afterwards.
 */
#include "comm_sim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/sockaddr.h"
#include "device/device.h"
#include "lane/kernel_info.h"
#include "process/forkguard.h"

#define STREAM_MARKS_MAX 2048u
#define STREAM_PIECE_BYTES_MIN 2896u /* two segments */
#define STREAM_PIECE_BYTES_MAX 32768u
#define STREAM_FD 1000000 /* descriptor of lane 0's sending end */
#define STREAM_PORT 40000

struct stream_mark {
	uint64_t end_bytes, at_ns;
};

struct stream_pipe {
	uint8_t *ring;
	uint64_t capacity, written, arrived, taken;
	uint64_t rate_bps, delay_ns, line_free_ns;
	struct stream_mark marks[STREAM_MARKS_MAX];
	unsigned mark_first, mark_count;
	bool fin;    /* behind the written bytes */
	bool broken; /* the connection is reset behind the bytes that arrived */
	bool full;   /* a write was short since the last event of the writer */
	bool event;  /* writable or closed, for the writer */
};

/* A socket. It writes to pipes[side]. */
struct stream_end {
	bool exists;
	bool aborts_on_close; /* close() resets (SO_LINGER 0) */
	bool event;           /* readable: closed, an error, or the rest of a short receive */
	int error;            /* not reported by a call yet */
	uint64_t reported_arrived;
	bool reported_fin;
};

struct csim_stream {
	struct csim *sim;
	struct csim_lane *owner;
	struct stream_pipe pipes[2]; /* by writing side */
	struct stream_end ends[2];
	uint64_t syn_ns;  /* when the SYN arrives; CSIM_NEVER_NS: accepted, or never */
	uint64_t open_ns; /* when the sender is connected; CSIM_NEVER_NS: not accepted */
};

static struct csim *stream_sim; /* for system calls, which only get a descriptor */

/* Finds the socket of a descriptor. */
static struct csim_stream *stream_at(int fd, enum csim_side *side)
{
	unsigned number = (unsigned)(fd - STREAM_FD) / 2;

	*side = (enum csim_side)((fd - STREAM_FD) & 1);
	if (fd < STREAM_FD || number >= stream_sim->lane_count ||
	    !stream_sim->lanes[number].stream ||
	    !stream_sim->lanes[number].stream->ends[*side].exists)
		abort();
	return stream_sim->lanes[number].stream;
}

static void stream_free_if_done(struct csim_stream *s)
{
	if (s->ends[0].exists || s->ends[1].exists)
		return;
	s->owner->stream = NULL;
	s->sim->streams--;
	free(s->pipes[0].ring);
	free(s->pipes[1].ring);
	free(s);
}

/* ---- the pipe -------------------------------------------------------------------------------- */

static struct stream_mark *pipe_mark(struct stream_pipe *p, unsigned i)
{
	return &p->marks[(p->mark_first + i) % STREAM_MARKS_MAX];
}

static void pipe_advance(struct csim_stream *s, enum csim_side writer)
{
	struct stream_pipe *p = &s->pipes[writer];

	if (csim_lane_is_silent(s->owner, writer))
		return;
	while (p->mark_count && pipe_mark(p, 0)->at_ns <= s->sim->now_ns) {
		p->arrived = pipe_mark(p, 0)->end_bytes;
		p->mark_first = (p->mark_first + 1) % STREAM_MARKS_MAX;
		p->mark_count--;
	}
}

/* Bytes that arrive at once, at most: those of a millisecond on the line. */
static size_t pipe_piece_bytes(const struct stream_pipe *p)
{
	uint64_t bytes = p->rate_bps ? p->rate_bps / 8000 : STREAM_PIECE_BYTES_MAX;

	if (bytes < STREAM_PIECE_BYTES_MIN)
		bytes = STREAM_PIECE_BYTES_MIN;
	return bytes < STREAM_PIECE_BYTES_MAX ? bytes : STREAM_PIECE_BYTES_MAX;
}

static void pipe_mark_piece(struct csim_stream *s, struct stream_pipe *p, size_t len)
{
	uint64_t now_ns = s->sim->now_ns;

	p->written += len;
	p->line_free_ns = (p->line_free_ns > now_ns ? p->line_free_ns : now_ns) +
			  (p->rate_bps ? len * 8000000000u / p->rate_bps : 0);
	if (p->mark_count == STREAM_MARKS_MAX)
		p->mark_count--; /* the last mark grows, and arrives later */
	*pipe_mark(p, p->mark_count++) =
		(struct stream_mark){ p->written, p->line_free_ns + p->delay_ns };
}

static void pipe_write(struct csim_stream *s, enum csim_side writer, const uint8_t *bytes,
		       size_t len)
{
	struct stream_pipe *p = &s->pipes[writer];
	uint64_t at = p->written % p->capacity;
	size_t first = len < p->capacity - at ? len : (size_t)(p->capacity - at), n;
	size_t piece = pipe_piece_bytes(p);

	memcpy(p->ring + at, bytes, first);
	memcpy(p->ring, bytes + first, len - first);
	for (; len; len -= n) {
		n = len < piece ? len : piece;
		pipe_mark_piece(s, p, n);
	}
}

/* Enough free space for a writable event, as in Linux: half of the used space. */
static bool pipe_has_room(const struct stream_pipe *p)
{
	uint64_t used = p->written - p->taken;

	return p->capacity - used >= (used + 1) / 2;
}

static bool pipe_is_at_fin(const struct csim_stream *s, enum csim_side writer)
{
	const struct stream_pipe *p = &s->pipes[writer];

	return p->fin && p->arrived == p->written && !csim_lane_is_silent(s->owner, writer);
}

/* Closes a pipe for its reader (error 0: FIN). keep: bytes in flight still arrive. */
static void pipe_break(struct csim_stream *s, enum csim_side writer, int error, bool keep)
{
	struct stream_pipe *p = &s->pipes[writer];

	if (p->broken)
		return;
	pipe_advance(s, writer);
	if (keep)
		p->arrived = p->written;
	p->mark_count = 0;
	p->written = p->arrived;
	p->broken = error;
	s->ends[!writer].error = error;
	s->ends[!writer].event = true;
}

/* Resets the connection, because bytes reached a closed socket or were unread at close(). */
static void stream_abort(struct csim_stream *s, enum csim_side reader)
{
	pipe_break(s, reader, ECONNRESET, true);
	pipe_break(s, !reader, ECONNRESET, rng_below(&s->sim->rng, 2));
}

/* ---- system calls: the linker binds those of lane_kernel.c here ------------------------------ */

static size_t stream_shorten(struct csim_stream *s, size_t len)
{
	if (len < 2 || !csim_chance(&s->sim->rng, s->owner->spec->short_ppm))
		return len;
	return 1 +
	       rng_below(&s->sim->rng, len > 64 && rng_below(&s->sim->rng, 2) ? 64 : (uint32_t)len);
}

static ssize_t stream_fail(int error)
{
	errno = error;
	return -1;
}

static ssize_t stream_send(struct csim_stream *s, enum csim_side side, const struct msghdr *msg)
{
	struct stream_pipe *p = &s->pipes[side];
	struct stream_end *end = &s->ends[side];
	int error = end->error;
	size_t sent = 0;

	end->error = 0;
	if (error || s->pipes[!side].broken || p->fin)
		return stream_fail(error ? error : EPIPE);
	for (size_t i = 0; i < msg->msg_iovlen; i++) {
		const struct iovec *iov = &msg->msg_iov[i];
		uint64_t room = p->capacity - (p->written - p->taken);
		size_t len = iov->iov_len < room ? iov->iov_len : (size_t)room;

		len = stream_shorten(s, len);
		pipe_write(s, side, iov->iov_base, len);
		sent += len;
		if (len < iov->iov_len) {
			p->full = true;
			break;
		}
	}
	return sent ? (ssize_t)sent : stream_fail(EAGAIN);
}

ssize_t sendmsg(int fd, const struct msghdr *msg, int flags)
{
	enum csim_side side;
	struct csim_stream *s = stream_at(fd, &side);
	unsigned host = csim_lane_host(s->owner, side);
	ssize_t sent;

	(void)flags;
	csim_interleave(s->sim, host);
	sent = stream_send(s, side, msg);
	if (sent > 0)
		csim_interleave(s->sim, host);
	if (sent > 0 && !s->ends[!side].exists)
		stream_abort(s, !side);
	return sent;
}

ssize_t send(int fd, const void *from, size_t bytes, int flags)
{
	struct iovec iov = { (void *)(uintptr_t)from, bytes };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };

	return sendmsg(fd, &msg, flags);
}

/* Plants a bug that the simulation must find: enum csn_plant. */
static void stream_plant(struct csim_stream *s, uint8_t *dst, size_t n, size_t len)
{
	struct csim_buffer *retired = csim_retired_buffer(s->sim, (unsigned)s->owner->spec->comm);

	switch ((enum csn_plant)s->sim->scenario->world.plant) {
	case CSN_PLANT_LATE:
		if (retired && retired->total)
			retired->data[0] ^= 1;
		break;
	case CSN_PLANT_TORN:
		if (n >= 16 && n < len) /* the second half of the next unit */
			dst[((n + (uintptr_t)dst) | 7) - (uintptr_t)dst] ^= 0x55;
		break;
	case CSN_PLANT_BEYOND:
		if (n == len)
			dst[n] ^= 1;
		break;
	default:
		break;
	}
}

/* Reads from the ring. */
static size_t pipe_take(struct stream_pipe *p, uint8_t *dst, size_t len)
{
	uint64_t at = p->taken % p->capacity;
	size_t first = len < p->capacity - at ? len : (size_t)(p->capacity - at);

	memcpy(dst, p->ring + at, first);
	memcpy(dst + first, p->ring, len - first);
	p->taken += len;
	return len;
}

static ssize_t stream_recv(struct csim_stream *s, enum csim_side side, struct msghdr *msg)
{
	struct stream_pipe *p = &s->pipes[!side];
	struct stream_end *end = &s->ends[side];
	size_t len_max = 0, n, done = 0;
	int error;

	for (size_t i = 0; i < msg->msg_iovlen; i++)
		len_max += msg->msg_iov[i].iov_len;
	pipe_advance(s, !side);
	if (p->taken == p->arrived) {
		error = end->error;
		end->error = 0;
		if (error)
			return stream_fail(error);
		return p->broken || pipe_is_at_fin(s, !side) ? 0 : stream_fail(EAGAIN);
	}
	n = p->arrived - p->taken < len_max ? (size_t)(p->arrived - p->taken) : len_max;
	len_max = stream_shorten(s, n);
	if (len_max < n) { /* the rest arrives afterwards */
		end->event = true;
	}
	for (size_t i = 0; i < msg->msg_iovlen && done < len_max; i++) {
		size_t len = msg->msg_iov[i].iov_len;

		done += pipe_take(p, msg->msg_iov[i].iov_base,
				  len < len_max - done ? len : len_max - done);
	}
	if (p->full && pipe_has_room(p)) {
		p->full = false;
		p->event = true;
	}
	return (ssize_t)done;
}

ssize_t recv(int fd, void *dst, size_t len, int flags)
{
	enum csim_side side;
	struct csim_stream *s = stream_at(fd, &side);
	struct iovec iov = { dst, len };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };

	(void)flags;
	csim_interleave(s->sim, csim_lane_host(s->owner, side));
	return stream_recv(s, side, &msg);
}

/* Receives payload and the bytes behind it. */
ssize_t recvmsg(int fd, struct msghdr *msg, int flags)
{
	enum csim_side side;
	struct csim_stream *s = stream_at(fd, &side);
	uint8_t *dst = msg->msg_iov[0].iov_base;
	size_t len = msg->msg_iov[0].iov_len;
	ssize_t n;

	(void)flags;
	csim_interleave(s->sim, csim_lane_host(s->owner, side));
	n = stream_recv(s, side, msg);
	if (n <= 0)
		return n;
	if (s->sim->scenario->world.plant)
		stream_plant(s, dst, (size_t)n < len ? (size_t)n : len, len);
	(void)csim_check_delivered(s->sim, dst, (size_t)n < len ? (size_t)n : len);
	csim_interleave(s->sim, csim_lane_host(s->owner, side));
	return n;
}

int setsockopt(int fd, int level, int name, const void *value, socklen_t len)
{
	enum csim_side side;
	struct csim_stream *s = stream_at(fd, &side);
	struct linger linger;

	if (level == SOL_SOCKET && name == SO_LINGER && len == sizeof(linger)) {
		memcpy(&linger, value, sizeof(linger));
		s->ends[side].aborts_on_close = linger.l_onoff && !linger.l_linger;
	}
	return 0;
}

/* The listener cannot accept the connection any more. */
static void stream_end_syn(struct csim_stream *s)
{
	s->sim->syns -= s->syn_ns != CSIM_NEVER_NS;
	s->syn_ns = CSIM_NEVER_NS;
}

void forkguard_close(int fd)
{
	enum csim_side side;
	struct csim_stream *s = stream_at(fd, &side);
	struct csim_end *end = &s->owner->end[side];
	bool abort = s->ends[side].aborts_on_close;

	csim_note(s->sim, "lane %u: %s end %s", s->owner->number, side ? "receiving" : "sending",
		  abort ? "aborted" : "closed");
	pipe_advance(s, !side);
	stream_end_syn(s);
	if (abort || s->pipes[!side].arrived > s->pipes[!side].taken)
		stream_abort(s, side);
	else
		s->pipes[side].fin = true;
	s->ends[!side].event = true;
	csim_wake_apps(s->sim, csim_lane_host(s->owner, !side));
	s->ends[side].exists = false;
	end->lane = NULL;
	end->closed = true;
	(void)csim_check_lost_lane(s->owner, side);
	stream_free_if_done(s);
}

/* ---- double of kernel_info.c ----------------------------------------------------------------- */

void kernel_info(int fd, uint64_t sent_bytes, struct lane_info *info)
{
	enum csim_side side;
	struct csim_stream *s = stream_at(fd, &side);
	const struct stream_pipe *p = &s->pipes[side];

	pipe_advance(s, side);
	*info = (struct lane_info){
		.srtt_ns = 2 * p->delay_ns + 1000,
		.acked_bytes = sent_bytes - (p->written - p->arrived),
		.in_flight_bytes = p->written - p->arrived,
	};
}

/* The silence that keepalive or probes of unacknowledged data measure. */
uint64_t kernel_silence_ns(int fd, struct kernel_silence *silence, uint64_t now_ns)
{
	enum csim_side side;
	const struct csim_lane *owner = stream_at(fd, &side)->owner;

	(void)silence;
	if (!csim_lane_is_silent(owner, CSIM_SEND) && !csim_lane_is_silent(owner, CSIM_RECV))
		return 0;
	return now_ns - owner->silent_since_ns;
}

/* ---- connecting ------------------------------------------------------------------------------ */

/* The connection was reset before it was accepted. */
static bool stream_is_refused(const struct csim_stream *s)
{
	return s->syn_ns == CSIM_NEVER_NS && s->open_ns == CSIM_NEVER_NS;
}

static bool stream_is_open(const struct csim_stream *s)
{
	return s->open_ns <= s->sim->now_ns;
}

static struct harp_endpoint stream_endpoint(const struct csim_stream *s, enum csim_side side)
{
	unsigned host = csim_lane_host(s->owner, side);

	return (struct harp_endpoint){
		.addr = csim_addr(s->sim, host, (unsigned)s->owner->spec->rail),
		.port = (uint16_t)(STREAM_PORT + 2 * s->owner->number + side),
	};
}

static int stream_fd(const struct csim_stream *s, enum csim_side side)
{
	return STREAM_FD + (int)(2 * s->owner->number + side);
}

/* No effect: the address is that of the rail's NIC, and the kernel chooses the port. */
int bind(int fd, __CONST_SOCKADDR_ARG addr, socklen_t len)
{
	(void)fd;
	(void)addr;
	(void)len;
	return 0;
}

int connect(int fd, __CONST_SOCKADDR_ARG addr, socklen_t len)
{
	enum csim_side side;
	struct csim_stream *s = stream_at(fd, &side);

	(void)addr;
	(void)len;
	if (s->sim->hosts[csim_lane_host(s->owner, !side)].dead)
		return (int)stream_fail(ECONNREFUSED);
	s->syn_ns = s->sim->now_ns + s->owner->spec->delay_ns;
	s->sim->syns++;
	return (int)stream_fail(EINPROGRESS);
}

int getsockopt(int fd, int level, int name, void *restrict value, socklen_t *restrict len)
{
	enum csim_side side;
	struct csim_stream *s = stream_at(fd, &side);

	(void)len;
	if (level == SOL_SOCKET && name == SO_ERROR) {
		memcpy(value, &s->ends[side].error, sizeof(int));
		s->ends[side].error = 0;
	} else if (level == IPPROTO_TCP && name == TCP_INFO) {
		((struct tcp_info *)value)->tcpi_state = stream_is_refused(s) ? TCP_CLOSE
							 : stream_is_open(s)  ? TCP_ESTABLISHED
									      : TCP_SYN_SENT;
	}
	return 0;
}

static int stream_name(int fd, bool peer, struct sockaddr *addr, socklen_t *len)
{
	enum csim_side side;
	const struct csim_stream *s = stream_at(fd, &side);
	const struct harp_endpoint end = stream_endpoint(s, peer ? !side : side);

	*len = sockaddr_from_endpoint((struct sockaddr_storage *)(void *)addr, &end);
	return 0;
}

int getsockname(int fd, __SOCKADDR_ARG addr, socklen_t *restrict len)
{
	return stream_name(fd, false, addr.__sockaddr__, len);
}

int getpeername(int fd, __SOCKADDR_ARG addr, socklen_t *restrict len)
{
	return stream_name(fd, true, addr.__sockaddr__, len);
}

/* ---- polling --------------------------------------------------------------------------------- */

/* The state of a socket as epoll events. */
static uint32_t stream_level(const struct csim_stream *s, enum csim_side side)
{
	const struct stream_pipe *in = &s->pipes[!side], *out = &s->pipes[side];
	bool fin = in->broken || pipe_is_at_fin(s, !side);

	return (in->arrived > in->taken || fin ? EPOLLIN : 0) | (fin ? EPOLLRDHUP : 0) |
	       (in->broken ? EPOLLHUP : 0) | (s->ends[side].error ? EPOLLERR : 0) |
	       (pipe_has_room(out) || in->broken ? EPOLLOUT : 0);
}

/* poll() events have the values of epoll events. */
int poll(struct pollfd *fds, nfds_t count, int timeout_ms)
{
	int ready = 0;

	if (timeout_ms)
		abort(); /* the caller holds a poller */
	for (nfds_t i = 0; i < count; i++) {
		enum csim_side side;
		struct csim_stream *s = stream_at(fds[i].fd, &side);

		pipe_advance(s, !side);
		fds[i].revents =
			(short)((int)stream_level(s, side) & (fds[i].events | POLLHUP | POLLERR));
		ready += fds[i].revents != 0;
	}
	return ready;
}

uint64_t csim_stream_level_ns(int fd, unsigned host, uint32_t events)
{
	enum csim_side side;
	struct csim_stream *s = stream_at(fd, &side);

	if (csim_lane_host(s->owner, side) != host)
		return CSIM_NEVER_NS;
	pipe_advance(s, !side);
	if (stream_is_refused(s) ||
	    (stream_is_open(s) && stream_level(s, side) & (events | EPOLLHUP | EPOLLERR)))
		return s->sim->now_ns;
	return csim_stream_next_ns(s, side);
}

/* ---- for the simulator ----------------------------------------------------------------------- */

unsigned device_kernel_lanes(const struct device *device)
{
	(void)device;
	return 1;
}

void csim_streams_begin(struct csim *sim)
{
	stream_sim = sim;
}

bool csim_streams_check_end(struct csim *sim)
{
	if (sim->streams)
		return runner_fail("%llu kernel lanes remain", (unsigned long long)sim->streams);
	return true;
}

static struct csim_stream *stream_new(struct csim_lane *lane)
{
	struct csim_stream *s = calloc(1, sizeof(*s));

	if (!s)
		abort();
	s->sim = lane->sim;
	s->owner = lane;
	s->sim->streams++;
	lane->stream = s;
	for (unsigned side = 0; side < 2; side++) {
		struct stream_pipe *p = &s->pipes[side];

		p->capacity = lane->spec->buffer_bytes;
		p->ring = malloc(p->capacity);
		p->rate_bps = lane->spec->rate_bps;
		p->delay_ns = lane->spec->delay_ns;
		if (!p->ring)
			abort();
	}
	return s;
}

/* Creates a lane over this end of a connection. The lane uses the poller until it joins a comm. */
static void stream_adopt(struct csim_stream *s, enum csim_side side, struct poller *poller)
{
	struct harp_endpoint local = stream_endpoint(s, side), remote = stream_endpoint(s, !side);

	s->ends[side].exists = true;
	if (lane_kernel_adopt(poller, stream_fd(s, side), &local, &remote,
			      &s->owner->end[side].lane))
		abort();
}

void csim_stream_make(struct csim_lane *lane)
{
	struct csim_stream *s = stream_new(lane);

	s->syn_ns = CSIM_NEVER_NS;
	for (unsigned side = 0; side < 2; side++)
		stream_adopt(s, side, &s->sim->hosts[csim_lane_host(lane, side)].connect_poller);
}

/* Creates the socket of the lane that connects. */
int forkguard_socket(int family)
{
	struct csim_stream *s = stream_new(csim_starting_lane());

	(void)family;
	s->syn_ns = s->open_ns = CSIM_NEVER_NS;
	s->ends[CSIM_SEND].exists = true;
	return stream_fd(s, CSIM_SEND);
}

uint64_t csim_stream_syn_ns(const struct csim_stream *s)
{
	uint64_t at_ns = s->syn_ns;

	for (unsigned side = 0; side < 2; side++)
		at_ns = later(at_ns, csim_lane_silent_until_ns(s->owner, side));
	return at_ns;
}

int csim_stream_accept(struct csim_stream *s, struct poller *poller)
{
	stream_end_syn(s);
	s->open_ns = s->sim->now_ns + s->owner->spec->delay_ns;
	stream_adopt(s, CSIM_RECV, poller);
	return stream_fd(s, CSIM_RECV);
}

void csim_stream_reset(struct csim_stream *s, bool keep, bool fin)
{
	stream_end_syn(s);
	for (unsigned side = 0; side < 2; side++) {
		s->pipes[side].fin |= fin;
		pipe_break(s, side, fin ? 0 : ECONNRESET, keep);
		s->pipes[side].event = true;
	}
}

void csim_stream_slow(struct csim_stream *s, bool slow)
{
	for (unsigned side = 0; side < 2; side++) {
		uint64_t rate_bps = s->owner->spec->rate_bps;

		if (!rate_bps)
			rate_bps = 10000000000;
		s->pipes[side].rate_bps = slow ? rate_bps / 10 : s->owner->spec->rate_bps;
	}
}

uint64_t csim_stream_next_ns(const struct csim_stream *s, enum csim_side side)
{
	const struct stream_pipe *in = &s->pipes[!side];
	const struct csim_lane *lane = s->owner;

	if (!s->ends[side].exists)
		return CSIM_NEVER_NS;
	if (s->ends[side].event || s->pipes[side].event)
		return s->sim->now_ns;
	if (side == CSIM_SEND && !stream_is_open(s))
		return s->open_ns;
	if (!in->mark_count)
		return CSIM_NEVER_NS;
	return later(in->marks[in->mark_first].at_ns, csim_lane_silent_until_ns(lane, !side));
}

void csim_stream_clear_events(struct csim_stream *s, enum csim_side side)
{
	pipe_advance(s, !side);
	s->ends[side].event = false;
	s->pipes[side].event = false;
}
