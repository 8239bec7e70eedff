/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm_stream.c - the simulated kernel's connections: two byte streams through memory, under the virtual clock, each
 * end a descriptor that lane_kernel.c calls; replaces forkguard.c.
 *
 * Theory of operation. A pipe for each direction is a ring: bytes that were written lie in it until they are
 * read, so its capacity stands for both sockets' buffers. Each write leaves a mark: these bytes have arrived
 * by then (rate, then delay). While the lane is silent nothing arrives; afterwards all of it does.
 *
 * As Linux does it: what was accepted counts as done; close() with bytes unread, and bytes that come for a
 * socket that was closed, reset the connection, and with that what was under way the other way is lost.
 * After a reset, bytes that had arrived are still read; the first call behind them reports the error once, and then
 * nothing more is sent or read. Payload is delivered as recv() does: in address order, without regard to units of
 * eight.
 *
 * Calls that are cut short (short_ppm): a send as if memory were short, with an event for room when the peer has read;
 * a receive as if the rest came right behind it.
 */
#include "comm_sim.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "process/forkguard.h"
#include "lane/kernel_info.h"

#define STREAM_MARKS_MAX 2048u
#define STREAM_PIECE_BYTES_MIN 2896u /* two segments */
#define STREAM_PIECE_BYTES_MAX 32768u
#define STREAM_FD 1000000 /* of lane 0's sending end */

struct stream_mark {
	uint64_t end_bytes, at_ns;
};

struct stream_pipe {
	uint8_t *ring;
	uint64_t capacity, written, arrived, taken;
	uint64_t rate_bps, delay_ns, line_free_ns;
	struct stream_mark marks[STREAM_MARKS_MAX];
	unsigned mark_first, mark_count;
	bool fin;    /* behind what was written */
	bool broken; /* the connection is gone behind what arrived: the reader's */
	bool full;   /* a write was refused, or cut, since the writer last had event */
	bool event;  /* of room, or of the end, for the writer */
};

/* A socket. Its pipe to write is pipes[side]. */
struct stream_end {
	bool exists;
	bool lingers_not; /* close() resets */
	bool event;       /* the end, or an error, or the rest of what was cut short */
	int error;        /* that no call has reported yet */
};

struct csim_stream {
	struct csim *sim;
	struct csim_lane *owner;
	struct stream_pipe pipes[2]; /* by writing side */
	struct stream_end ends[2];
};

static struct csim *stream_sim; /* for calls, which have a descriptor only */

/* The socket behind a descriptor of ours. */
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

/* ---- the pipe ---------------------------------------------------------------------------------- */

static struct stream_mark *pipe_mark(struct stream_pipe *p, unsigned i)
{
	return &p->marks[(p->mark_first + i) % STREAM_MARKS_MAX];
}

static void pipe_advance(struct csim_stream *s, enum csim_side writer)
{
	struct stream_pipe *p = &s->pipes[writer];

	if (csim_lane_silent(s->owner, writer))
		return;
	while (p->mark_count && pipe_mark(p, 0)->at_ns <= s->sim->now_ns) {
		p->arrived = pipe_mark(p, 0)->end_bytes;
		p->mark_first = (p->mark_first + 1) % STREAM_MARKS_MAX;
		p->mark_count--;
	}
}

/* So much at most arrives at once: what the line carries in a millisecond. */
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
		p->mark_count--; /* the last one grows, and comes later */
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

/* Enough room for an event, as in Linux: half as much as is taken. */
static bool pipe_has_room(const struct stream_pipe *p)
{
	uint64_t used = p->written - p->taken;

	return p->capacity - used >= (used + 1) / 2;
}

static bool pipe_at_fin(const struct csim_stream *s, enum csim_side writer)
{
	const struct stream_pipe *p = &s->pipes[writer];

	return p->fin && p->arrived == p->written && !csim_lane_silent(s->owner, writer);
}

/* The connection is gone for the reader of this pipe (0: closed in order); keep: bytes under way still arrive. */
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

/* Bytes met a closed socket, or a socket was closed over bytes: RST. */
static void stream_collapse(struct csim_stream *s, enum csim_side reader)
{
	pipe_break(s, reader, ECONNRESET, true);
	pipe_break(s, !reader, ECONNRESET, rng_below(&s->sim->rng, 2));
}

/* ---- calls of the system; the linker leads lane_kernel.c's to them -------------------------------- */

static size_t stream_cut(struct csim_stream *s, size_t len)
{
	if (len < 2 || !csim_chance(&s->sim->rng, s->owner->spec->short_ppm))
		return len;
	return 1 +
	       rng_below(&s->sim->rng, len > 64 && rng_below(&s->sim->rng, 2) ? 64 : (uint32_t)len);
}

static ssize_t stream_refuse(int error)
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
		return stream_refuse(error ? error : EPIPE);
	for (size_t i = 0; i < msg->msg_iovlen; i++) {
		const struct iovec *iov = &msg->msg_iov[i];
		uint64_t room = p->capacity - (p->written - p->taken);
		size_t len = iov->iov_len < room ? iov->iov_len : (size_t)room;

		len = stream_cut(s, len);
		pipe_write(s, side, iov->iov_base, len);
		sent += len;
		if (len < iov->iov_len) {
			p->full = true;
			break;
		}
	}
	return sent ? (ssize_t)sent : stream_refuse(EAGAIN);
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
		stream_collapse(s, !side);
	return sent;
}

/* A bug that the simulation must find: enum csn_plant. */
static void stream_plant(struct csim_stream *s, uint8_t *dst, size_t n, size_t len)
{
	struct csim_buffer *retired = csim_buffer_retired(s->sim, (unsigned)s->owner->spec->comm);

	switch ((enum csn_plant)s->sim->scenario->world.plant) {
	case CSN_PLANT_LATE:
		if (retired && retired->total)
			retired->data[0] ^= 1;
		break;
	case CSN_PLANT_TORN:
		if (n >= 16 && n < len) /* the later half of the next unit, whatever it holds */
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

/* Out of the ring. */
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
	size_t wanted = 0, n, done = 0;
	int error;

	for (size_t i = 0; i < msg->msg_iovlen; i++)
		wanted += msg->msg_iov[i].iov_len;
	pipe_advance(s, !side);
	if (p->taken == p->arrived) {
		error = end->error;
		end->error = 0;
		if (error)
			return stream_refuse(error);
		return p->broken || pipe_at_fin(s, !side) ? 0 : stream_refuse(EAGAIN);
	}
	n = p->arrived - p->taken < wanted ? (size_t)(p->arrived - p->taken) : wanted;
	wanted = stream_cut(s, n);
	if (wanted < n) /* the rest comes behind it */
		end->event = true;
	for (size_t i = 0; i < msg->msg_iovlen && done < wanted; i++) {
		size_t len = msg->msg_iov[i].iov_len;

		done += pipe_take(p, msg->msg_iov[i].iov_base,
				  len < wanted - done ? len : wanted - done);
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

/* Payload, and what comes behind it. */
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
	(void)csim_placed(s->sim, dst, (size_t)n < len ? (size_t)n : len);
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
		s->ends[side].lingers_not = linger.l_onoff && !linger.l_linger;
	}
	return 0;
}

int forkguard_socket(int family)
{
	(void)family;
	abort(); /* connections are comm_lanes.c's */
}

void forkguard_close(int fd)
{
	enum csim_side side;
	struct csim_stream *s = stream_at(fd, &side);
	struct csim_end *end = &s->owner->end[side];
	bool abort = s->ends[side].lingers_not;

	csim_note(s->sim, "lane %u: %s end %s", s->owner->number, side ? "receiving" : "sending",
		  abort ? "aborted" : "closed");
	pipe_advance(s, !side);
	if (abort || s->pipes[!side].arrived > s->pipes[!side].taken)
		stream_collapse(s, side);
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

/* ---- in the place of kernel_info.c ---------------------------------------------------------------- */

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

/* As its keepalive, or the probes of what is not acknowledged, would tell. */
uint64_t kernel_silence_ns(int fd, struct kernel_silence *silence, uint64_t now_ns)
{
	enum csim_side side;
	const struct csim_lane *owner = stream_at(fd, &side)->owner;

	(void)silence;
	if (!csim_lane_silent(owner, CSIM_SEND) && !csim_lane_silent(owner, CSIM_RECV))
		return 0;
	return now_ns - owner->silent_since_ns;
}

int poll(struct pollfd *fds, nfds_t count, int timeout_ms)
{
	int ready = 0;

	if (timeout_ms)
		abort(); /* with a poller held */
	for (nfds_t i = 0; i < count; i++) {
		enum csim_side side;
		struct csim_stream *s = stream_at(fds[i].fd, &side);
		const struct stream_pipe *in = &s->pipes[!side];
		int events = 0;

		pipe_advance(s, !side);
		if (in->arrived > in->taken || in->broken || pipe_at_fin(s, !side))
			events |= POLLIN;
		if (pipe_has_room(&s->pipes[side]) || in->broken)
			events |= POLLOUT;
		events &= fds[i].events;
		events |= (in->broken ? POLLHUP : 0) | (s->ends[side].error ? POLLERR : 0);
		fds[i].revents = (short)events;
		ready += events != 0;
	}
	return ready;
}

/* ---- for the simulator --------------------------------------------------------------- */

void csim_streams_begin(struct csim *sim)
{
	stream_sim = sim;
}

static void stream_open(struct csim_lane *owner, enum csim_side side)
{
	struct csim *sim = owner->sim;
	unsigned host = csim_lane_host(owner, side), peer = csim_lane_host(owner, !side);
	unsigned rail = (unsigned)owner->spec->rail;
	int fd = STREAM_FD + (int)(2 * owner->number + side);
	struct harp_endpoint local = { 0 }, remote = { 0 };
	struct lane *lane;

	local.addr = csim_addr(sim, host, rail);
	remote.addr = csim_addr(sim, peer, rail);
	local.port = (uint16_t)(40000 + 2 * owner->number + side);
	remote.port = (uint16_t)(40000 + 2 * owner->number + !side);
	if (lane_kernel_adopt(&sim->hosts[host].connect_poller, fd, &local, &remote, &lane))
		abort();
	owner->end[side].lane = lane;
}

void csim_stream_make(struct csim_lane *lane)
{
	struct csim_stream *s = calloc(1, sizeof(*s));
	struct csim *sim = lane->sim;

	if (!s)
		abort();
	s->sim = sim;
	s->owner = lane;
	sim->streams++;
	lane->stream = s;
	for (unsigned side = 0; side < 2; side++) {
		struct stream_pipe *p = &s->pipes[side];

		p->capacity = lane->spec->buffer_bytes;
		p->ring = malloc(p->capacity);
		p->rate_bps = lane->spec->rate_bps;
		p->delay_ns = lane->spec->delay_ns;
		s->ends[side].exists = true;
		if (!p->ring)
			abort();
		stream_open(lane, side);
	}
}

void csim_stream_reset(struct csim_stream *s, bool keep, bool fin)
{
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
	uint64_t silent_ns, at_ns;

	if (!s->ends[side].exists)
		return CSIM_NEVER_NS;
	if (s->ends[side].event || s->pipes[side].event)
		return s->sim->now_ns;
	if (!in->mark_count)
		return CSIM_NEVER_NS;
	silent_ns = csim_lane_silent_until_ns(lane, !side);
	at_ns = in->marks[in->mark_first].at_ns;
	return at_ns > silent_ns ? at_ns : silent_ns;
}

void csim_stream_seen(struct csim_stream *s, enum csim_side side)
{
	pipe_advance(s, !side);
	s->ends[side].event = false;
	s->pipes[side].event = false;
}

/* ---- in the place of device_sysfs.c ---------------------------------------------------------- */

unsigned device_kernel_lanes(const struct device *device)
{
	(void)device;
	return 1;
}
