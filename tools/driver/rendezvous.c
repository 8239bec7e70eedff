/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rendezvous.c - the ranks connect to rank 0 over kernel TCP, like NCCL's bootstrap.
 *
 * In every exchange, each rank sends one message to rank 0 and receives one. Each message has the
 * sequence number and label of its exchange, which detects ranks that run different programs. A
 * rank that fails sends FAILED with the reason, and rank 0 forwards it.
 */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "play.h"
#include "rendezvous.h"

#define RDV_MAGIC 0x48504c59u /* "HPLY" */
#define RDV_POLL_MS 100
#define RDV_RETRY_NS 20000000ull

enum { RDV_HELLO = 1, RDV_WELCOME, RDV_BLOCK, RDV_FAILED };

struct rdv_header {
	uint32_t magic;
	uint32_t kind;
	int32_t rank;
	int32_t ranks;
	uint32_t sequence;
	uint32_t len;
	char label[16];
};

static int rdv_error(struct rendezvous *rdv, enum play_result result, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

static int rdv_error(struct rendezvous *rdv, enum play_result result, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vsnprintf(rdv->error, sizeof(rdv->error), fmt, args);
	va_end(args);
	return (int)result;
}

static int rdv_wait(struct rendezvous *rdv, int fd, short events, uint64_t deadline_ns,
		    const char *what)
{
	for (;;) {
		struct pollfd p = { .fd = fd, .events = events };
		int n = poll(&p, 1, RDV_POLL_MS);

		if (n > 0)
			return 0;
		if (n < 0 && errno != EINTR)
			return rdv_error(rdv, PLAY_PEER, "%s: poll: %s", what, strerror(errno));
		if (rdv->interrupted && atomic_load(rdv->interrupted))
			return rdv_error(rdv, PLAY_INTERRUPTED, "%s: interrupted", what);
		if (play_now_ns() > deadline_ns)
			return rdv_error(rdv, PLAY_HANG, "%s: nothing for %.1f s", what,
					 (double)rdv->timeout_ns / 1e9);
	}
}

/* Sends or receives len bytes. peer: "rank 3" or "the root". */
static int rdv_move(struct rendezvous *rdv, int fd, void *data, size_t len, bool out,
		    const char *peer, const char *what)
{
	uint64_t deadline_ns = play_now_ns() + rdv->timeout_ns;
	char action[128];
	char *at = data;

	snprintf(action, sizeof(action), "%s: %s %s", what, out ? "sending to" : "waiting for",
		 peer);
	while (len) {
		ssize_t n = out ? send(fd, at, len, MSG_NOSIGNAL | MSG_DONTWAIT)
				: recv(fd, at, len, MSG_DONTWAIT);
		int rc;

		if (n > 0) {
			at += n;
			len -= (size_t)n;
			continue;
		}
		if (n == 0 || (errno != EAGAIN && errno != EINTR))
			return rdv_error(rdv, PLAY_PEER, "%s: %s left (%s)", what, peer,
					 n == 0 ? "its connection is closed" : strerror(errno));
		rc = rdv_wait(rdv, fd, out ? POLLOUT : POLLIN, deadline_ns, action);
		if (rc)
			return rc;
	}
	return 0;
}

static int rdv_send(struct rendezvous *rdv, int fd, uint32_t kind, const char *label,
		    const void *data, size_t len, const char *peer)
{
	struct rdv_header h = { .magic = RDV_MAGIC,
				.kind = kind,
				.rank = rdv->rank,
				.ranks = rdv->ranks,
				.sequence = rdv->sequence,
				.len = (uint32_t)len };
	int rc;

	snprintf(h.label, sizeof(h.label), "%s", label);
	rc = rdv_move(rdv, fd, &h, sizeof(h), true, peer, label);
	if (!rc && len)
		rc = rdv_move(rdv, fd, (void *)(uintptr_t)data, len, true, peer, label);
	return rc;
}

static int rdv_receive(struct rendezvous *rdv, int fd, uint32_t kind, const char *label, void *data,
		       size_t len, const char *peer)
{
	struct rdv_header h;
	int rc = rdv_move(rdv, fd, &h, sizeof(h), false, peer, label);

	if (rc)
		return rc;
	h.label[sizeof(h.label) - 1] = 0;
	if (h.magic != RDV_MAGIC)
		return rdv_error(rdv, PLAY_PEER, "%s: %s uses another protocol", label, peer);
	if (h.kind == RDV_FAILED && h.len < PLAY_ERROR_BYTES / 2) {
		char why[PLAY_ERROR_BYTES / 2] = "";

		rc = rdv_move(rdv, fd, why, h.len, false, peer, label);
		return rc ? rc : rdv_error(rdv, PLAY_PEER, "%s", why);
	}
	if (h.kind != kind || h.sequence != rdv->sequence || strcmp(h.label, label))
		return rdv_error(rdv, PLAY_PEER,
				 "%s is in exchange %u \"%s\", this rank in %u \"%s\": all ranks "
				 "must be started with the same mode and sizes",
				 peer, h.sequence, h.label, rdv->sequence, label);
	if (h.len != len)
		return rdv_error(rdv, PLAY_PEER,
				 "%s: %s sent %u bytes, not %zu: all ranks must "
				 "have the same --ranks, --channels and mode",
				 label, peer, h.len, len);
	return rdv_move(rdv, fd, data, len, false, peer, label);
}

/* Returns NULL for bad usage, with the reason in rdv->error. */
static struct addrinfo *rdv_resolve(struct rendezvous *rdv, const char *root, bool passive)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM,
				  .ai_flags = passive ? AI_PASSIVE : 0 };
	char host[256];
	const char *colon = root ? strrchr(root, ':') : NULL;
	struct addrinfo *addresses;
	size_t n;
	int rc;

	if (!colon || colon == root || (size_t)(colon - root) >= sizeof(host) || !colon[1]) {
		rdv_error(rdv, PLAY_USAGE, "root \"%s\": not host:port or [ipv6]:port",
			  root ? root : "");
		return NULL;
	}
	n = (size_t)(colon - root);
	memcpy(host, root, n);
	host[n] = 0;
	if (host[0] == '[' && host[n - 1] == ']') {
		host[n - 1] = 0;
		memmove(host, host + 1, n - 1);
	}
	rc = getaddrinfo(host, colon + 1, &hints, &addresses);
	if (!rc)
		return addresses;
	rdv_error(rdv, PLAY_USAGE, "root \"%s\": %s", root, gai_strerror(rc));
	return NULL;
}

static void rdv_nodelay(int fd)
{
	int one = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

static int rdv_admit(struct rendezvous *rdv, int fd)
{
	struct rdv_header h;
	int rc;

	/* A short timeout: a peer that sends nothing must not delay the ranks. */
	uint64_t timeout_ns = rdv->timeout_ns;

	rdv->timeout_ns = timeout_ns < 2000000000ull ? timeout_ns : 2000000000ull;
	rc = rdv_move(rdv, fd, &h, sizeof(h), false, "a rank", "hello");
	rdv->timeout_ns = timeout_ns;
	if (rc || h.magic != RDV_MAGIC || h.kind != RDV_HELLO) {
		close(fd);
		return rc == PLAY_INTERRUPTED ? rc : 0;
	}
	if (h.ranks != rdv->ranks || h.rank <= 0 || h.rank >= rdv->ranks) {
		close(fd);
		return rdv_error(rdv, PLAY_USAGE, "unexpected rank %d of %d: the root has %d ranks",
				 h.rank, h.ranks, rdv->ranks);
	}
	if (rdv->fds[h.rank] >= 0) {
		close(fd);
		return rdv_error(rdv, PLAY_USAGE, "rank %d connected twice", h.rank);
	}
	rdv->fds[h.rank] = fd;
	return 0;
}

static int rdv_open_root(struct rendezvous *rdv, const char *root)
{
	uint64_t deadline_ns = play_now_ns() + rdv->timeout_ns;
	struct addrinfo *ai;
	int one = 1, arrived = 1, rc = 0;
	char missing[96];

	ai = rdv_resolve(rdv, root, true);
	if (!ai)
		return PLAY_USAGE;
	rdv->listen_fd = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (rdv->listen_fd >= 0)
		setsockopt(rdv->listen_fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (rdv->listen_fd < 0 || bind(rdv->listen_fd, ai->ai_addr, ai->ai_addrlen) ||
	    listen(rdv->listen_fd, PLAY_RANKS_MAX))
		rc = rdv_error(rdv, PLAY_PEER, "rank 0 can't listen at root %s: %s", root,
			       strerror(errno));
	freeaddrinfo(ai);
	while (!rc && arrived < rdv->ranks) {
		int fd;

		snprintf(missing, sizeof(missing), "root %s: %d of %d ranks arrived", root, arrived,
			 rdv->ranks);
		rc = rdv_wait(rdv, rdv->listen_fd, POLLIN, deadline_ns, missing);
		if (rc)
			break;
		fd = accept4(rdv->listen_fd, NULL, NULL, SOCK_CLOEXEC);
		if (fd < 0)
			continue;
		rdv_nodelay(fd);
		rc = rdv_admit(rdv, fd);
		arrived = 1;
		for (int r = 1; r < rdv->ranks; r++)
			arrived += rdv->fds[r] >= 0;
	}
	if (rdv->listen_fd >= 0)
		close(rdv->listen_fd);
	rdv->listen_fd = -1;
	return rc;
}

static int rdv_open_other(struct rendezvous *rdv, const char *root)
{
	uint64_t deadline_ns = play_now_ns() + rdv->timeout_ns;
	struct addrinfo *ai;
	int rc = 0;

	ai = rdv_resolve(rdv, root, false);
	if (!ai)
		return PLAY_USAGE;
	for (;;) {
		struct timespec pause = { .tv_nsec = (long)RDV_RETRY_NS };
		int fd = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

		if (fd >= 0 && !connect(fd, ai->ai_addr, ai->ai_addrlen)) {
			rdv_nodelay(fd);
			rdv->fds[0] = fd;
			break;
		}
		rc = errno;
		if (fd >= 0)
			close(fd);
		if (rdv->interrupted && atomic_load(rdv->interrupted)) {
			rc = rdv_error(rdv, PLAY_INTERRUPTED, "interrupted");
			break;
		}
		if (play_now_ns() > deadline_ns) {
			rc = rdv_error(rdv, PLAY_PEER,
				       "root %s can't be reached: %s (is rank 0 "
				       "running there?)",
				       root, strerror(rc));
			break;
		}
		rc = 0;
		nanosleep(&pause, NULL); /* rank 0 may not listen yet */
	}
	freeaddrinfo(ai);
	return rc ? rc : rdv_send(rdv, rdv->fds[0], RDV_HELLO, "hello", NULL, 0, "the root");
}

int rdv_open(struct rendezvous *rdv, const char *root, uint64_t *session)
{
	uint64_t sessions[PLAY_RANKS_MAX];
	int rc;

	rdv->listen_fd = -1;
	for (int r = 0; r < PLAY_RANKS_MAX; r++)
		rdv->fds[r] = -1;
	if (getrandom(session, sizeof(*session), 0) != sizeof(*session))
		*session = play_now_ns();
	rc = rdv->rank == 0 ? rdv_open_root(rdv, root) : rdv_open_other(rdv, root);
	if (!rc)
		rc = rdv_gather(rdv, "session", session, sizeof(*session), sessions);
	if (!rc)
		*session = sessions[0];
	return rc;
}

int rdv_gather(struct rendezvous *rdv, const char *label, const void *in, size_t len, void *out)
{
	char *blocks = out;
	char peer[24];
	int rc;

	rdv->sequence++;
	memcpy(blocks + (size_t)rdv->rank * len, in, len);
	if (rdv->rank != 0) {
		rc = rdv_send(rdv, rdv->fds[0], RDV_BLOCK, label, in, len, "the root (rank 0)");
		if (rc)
			return rc;
		return rdv_receive(rdv, rdv->fds[0], RDV_BLOCK, label, blocks,
				   (size_t)rdv->ranks * len, "the root (rank 0)");
	}
	for (int r = 1; r < rdv->ranks; r++) {
		snprintf(peer, sizeof(peer), "rank %d", r);
		rc = rdv_receive(rdv, rdv->fds[r], RDV_BLOCK, label, blocks + (size_t)r * len, len,
				 peer);
		if (rc)
			return rc;
	}
	for (int r = 1; r < rdv->ranks; r++) {
		snprintf(peer, sizeof(peer), "rank %d", r);
		rc = rdv_send(rdv, rdv->fds[r], RDV_BLOCK, label, blocks, (size_t)rdv->ranks * len,
			      peer);
		if (rc)
			return rc;
	}
	return 0;
}

void rdv_fail(struct rendezvous *rdv, const char *why)
{
	char text[PLAY_ERROR_BYTES / 2];
	char error[PLAY_ERROR_BYTES];

	/* A reason from another rank starts with that rank. */
	if (!strncmp(why, "rank ", 5))
		snprintf(text, sizeof(text), "%.480s", why);
	else
		snprintf(text, sizeof(text), "rank %d: %.480s", rdv->rank, why);
	memcpy(error, rdv->error, sizeof(error));
	rdv->timeout_ns = 100000000ull; /* best effort: do not wait for the other ranks */
	for (int r = 0; r < rdv->ranks; r++)
		if (rdv->fds[r] >= 0)
			rdv_send(rdv, rdv->fds[r], RDV_FAILED, "failed", text, strlen(text), "");
	memcpy(rdv->error, error, sizeof(error));
}

void rdv_close(struct rendezvous *rdv)
{
	for (int r = 0; r < PLAY_RANKS_MAX; r++) {
		if (rdv->fds[r] >= 0)
			close(rdv->fds[r]);
		rdv->fds[r] = -1;
	}
}
