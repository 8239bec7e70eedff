/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memif_switch.c - relays the handshake between memif's driver and its peers.
 *
 * Theory of operation
 *
 * The two ends of a memif shake hands on a UNIX socket, in DPDK's interrupt thread; packets do not
 * pass there. The driver of DPDK 22.11 does not survive a peer that is killed at the wrong moment:
 *
 * - A client that ends before the server's driver has greeted it aborts the server (rte_panic()).
 * - A server does not start on the socket file of a killed server.
 * - A client's connect() blocks if the server is stopped, and is not repeated.
 * - A listener is never closed, and is used after it was freed.
 * - The interrupt thread knows sockets by number. An event handled after its socket was closed
 *   reaches the next socket with that number, which then blocks in recvmsg().
 *
 * So the driver never communicates with a peer directly. A thread owns the sockets that peers
 * connect to. For each peer it has a connection of its own to the driver; the two are a *pair*. It
 * forwards messages and their descriptors. The driver's half of a pair stays until the driver has
 * greeted it. memif_hold() ends a port's pairs before the port is stopped, so that the driver
 * closes their sockets in separate events.
 *
 * All servers of a process share the driver's one listener (memif_home()), each with its own id
 * there, which replaces the id that a client requests. A client's driver connects to a listener of
 * ours, and this thread connects to the server, repeatedly until it answers.
 *
 * Peers trust each other: the other end must run as the same user, or as root (SO_PEERCRED).
 * Messages are only checked for mistakes: regions that could shrink, shorter buffers, fewer queues.
 */
#include "dpdk/memif_switch.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/thread.h"
#include "dpdk/eal_log.h"
#include "dpdk/memif_socket.h"
#include "dpdk/port.h"

#define MEMIF_CALL_MS 20 /* interval of connection attempts */
#define MEMIF_PAIRS_MAX 64u
#define MEMIF_NO_ID UINT32_MAX /* an id that no server has in memif_home() */
#define MEMIF_ROUNDS 8 /* iterations of the interrupt thread, which reads one message in each */

/* Offsets of fields in messages and rings. */
#define INIT_ID_AT 4
#define REGION_SIZE_AT 4
#define RING_FLAGS_AT 2
#define RING_FLAG_TO_SERVER 1
#define RING_REGION_AT 6
#define RING_OFFSET_AT 8
#define RING_HEADER_BYTES 128
#define DESC_LENGTH_AT 4
#define DISCONNECT_REASON_AT 6

struct memif {
	struct memif *next;
	char name[32]; /* of the device */
	bool is_server;
	bool is_held;
	int listen_fd;               /* a server's for its peers, a client's for the driver */
	struct memif_address at, to; /* address of that listener, and of a pair's other half */
	uint32_t id, home_id;        /* a server's id for its peers, and in memif_home() */
	uint32_t packet_bytes, queues;
	unsigned pairs;
};

/* A peer's connection and the driver's. */
struct pair {
	struct pair *next;
	struct memif *memif;
	int peer, driver;  /* -1: closed */
	bool is_calling;   /* one of the two is still connecting */
	bool is_greeted;   /* by a server's driver; a client's does not greet */
	bool is_draining;  /* the driver reads the rest and closes its end */
	bool is_connected; /* the client has sent CONNECT */
	unsigned regions;  /* sent by the client */
	unsigned rings[2]; /* the same, for each direction */
	int region_fd;     /* the first region, until CONNECT; -1: none */
};

static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed; /* the thread has completed an iteration */
	bool is_running;
	int wake; /* eventfd; -1: not created */
	uint32_t next_home_id, turns;
	struct memif *memifs;
	struct pair *pairs;
	unsigned pair_count;
	/* log line of the thread, written after it releases the lock */
	char note[160];
	struct memif *parent_memifs; /* set in a forked child, which does not use them */
	struct pair *parent_pairs;
} sw = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .wake = -1 };

static void switch_wake(void)
{
	(void)eventfd_write(sw.wake, 1);
}

/* ---- pairs. Under the lock
 * --------------------------------------------------------------------- */

/* The peer has closed or is refused. The driver sees the end of the connection. */
static void pair_end(struct pair *pair)
{
	struct memif_message complete = { .bytes = { MEMIF_CONNECT }, .fd = -1 };
	bool was_calling = pair->is_calling;

	pair->is_calling = false;
	memif_fd_close(&pair->peer);
	if (pair->driver < 0 || pair->is_draining)
		return;
	/* The driver closes a region's descriptor only if it has mapped the region, on CONNECT. */
	pair->is_draining = pair->regions > 0 && !pair->is_connected;
	if (pair->is_draining)
		memif_send(pair->driver, &complete);
	if (was_calling || (pair->is_greeted && !pair->is_draining))
		memif_fd_close(&pair->driver);
	else
		shutdown(pair->driver, SHUT_WR);
}

static void pair_call(struct pair *pair)
{
	const struct memif *memif = pair->memif;
	int *fd = memif->is_server ? &pair->driver : &pair->peer;
	struct pollfd caller = { .fd = pair->peer };
	uid_t uid;

	/* The peer has closed already: do not involve the driver. */
	if (memif->is_server && poll(&caller, 1, 0) == 1) {
		pair_end(pair);
		return;
	}
	if (*fd < 0)
		*fd = memif_socket();
	if (*fd < 0 || connect(*fd, (const struct sockaddr *)&memif->to.un, memif->to.len) < 0)
		return;
	pair->is_calling = false;
	if (!memif->is_server && !memif_is_trusted(*fd, &uid)) {
		snprintf(sw.note, sizeof(sw.note),
			 "%s: its server is refused: it runs as user %u, and this process as user "
			 "%u; memif's ends run as one user",
			 memif->name, uid, geteuid());
		pair_end(pair);
	}
}

/* The driver maps and uses a whole region: pages lost by truncation would crash the process. */
static const char *pair_region(struct pair *pair, const struct memif_message *message)
{
	int seals = fcntl(message->fd, F_GET_SEALS);
	struct stat file;
	uint64_t bytes;

	memcpy(&bytes, message->bytes + REGION_SIZE_AT, sizeof(bytes));
	if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(message->fd, &file) < 0 ||
	    bytes > (uint64_t)file.st_size)
		return "a region is a memory file that is sealed against shrinking, and as long as "
		       "it says";
	if (pair->regions++ == 0)
		pair->region_fd = fcntl(message->fd, F_DUPFD_CLOEXEC, 0);
	return NULL;
}

/* The driver does not clear the chain flag, which it sets if a packet needs two buffers. */
static const char *pair_ring(struct pair *pair, const struct memif_message *message)
{
	bool to_server = memif_u16(message, RING_FLAGS_AT) & RING_FLAG_TO_SERVER;
	off_t at = (off_t)memif_u32(message, RING_OFFSET_AT) + RING_HEADER_BYTES + DESC_LENGTH_AT;
	uint32_t bytes = 0;

	pair->rings[to_server]++;
	if (to_server || memif_u16(message, RING_REGION_AT) != 0 ||
	    pread(pair->region_fd, &bytes, sizeof(bytes), at) != sizeof(bytes))
		return NULL;
	return bytes == 0 || bytes >= pair->memif->packet_bytes
		       ? NULL
		       : "its buffers are shorter than this end's packets: say bsize=, or the same "
			 "MTU";
}

/* A queue without a ring would use another queue's, from a second thread. */
static const char *pair_connect(struct pair *pair)
{
	uint32_t queues = pair->memif->queues;

	if (pair->rings[0] < queues || pair->rings[1] < queues)
		return "it has fewer queues than this end: say queues= alike at both";
	pair->is_connected = true;
	if (pair->region_fd >= 0)
		close(pair->region_fd);
	pair->region_fd = -1;
	return NULL;
}

/* The error text for an invalid client message; NULL: valid. */
static const char *pair_check(struct pair *pair, struct memif_message *message)
{
	const struct memif *memif = pair->memif;
	uint32_t id;

	switch (memif_u16(message, 0)) {
	case MEMIF_INIT:
		id = memif_u32(message, INIT_ID_AT) == memif->id ? memif->home_id : MEMIF_NO_ID;
		memcpy(message->bytes + INIT_ID_AT, &id, sizeof(id));
		return NULL;
	case MEMIF_ADD_REGION:
		return pair_region(pair, message);
	case MEMIF_ADD_RING:
		return pair_ring(pair, message);
	case MEMIF_CONNECT:
		return pair_connect(pair);
	default:
		return NULL;
	}
}

static void pair_refuse(struct pair *pair, struct memif_message *message, const char *wrong)
{
	snprintf(sw.note, sizeof(sw.note), "%s: its client is refused: %s", pair->memif->name,
		 wrong);
	if (message->fd >= 0)
		close(message->fd);
	*message = (struct memif_message){ .bytes = { MEMIF_DISCONNECT }, .fd = -1 };
	snprintf((char *)message->bytes + DISCONNECT_REASON_AT,
		 sizeof(message->bytes) - DISCONNECT_REASON_AT, "%s", wrong);
	(void)memif_send(pair->peer, message);
	pair_end(pair);
}

static void pair_from_peer(struct pair *pair)
{
	struct memif_message message;
	int got = -1;

	while (pair->peer >= 0 && (got = memif_receive(pair->peer, &message)) == 1) {
		const char *wrong = pair->memif->is_server ? pair_check(pair, &message) : NULL;

		if (wrong)
			pair_refuse(pair, &message, wrong);
		else if (!memif_send(pair->driver, &message))
			pair_end(pair);
	}
	if (got == 0)
		pair_end(pair);
}

static void pair_from_driver(struct pair *pair)
{
	struct memif_message message;
	int got = -1;

	while (pair->driver >= 0 && (got = memif_receive(pair->driver, &message)) == 1) {
		pair->is_greeted |= memif_u16(&message, 0) == MEMIF_HELLO;
		if (!memif_send(pair->peer, &message))
			pair_end(pair);
	}
	if (got == 0) {
		memif_fd_close(&pair->driver);
		pair_end(pair);
	}
}

static void pair_turn(struct pair *pair)
{
	if (pair->is_calling)
		pair_call(pair);
	if (!pair->is_calling && pair->peer >= 0)
		pair_from_peer(pair);
	if (pair->driver >= 0 && !(pair->is_calling && pair->memif->is_server))
		pair_from_driver(pair);
}

/* Frees pairs whose connections have both closed. */
static void pairs_reap(void)
{
	for (struct pair **at = &sw.pairs; *at;) {
		struct pair *pair = *at;

		if (pair->peer >= 0 || pair->driver >= 0) {
			at = &pair->next;
			continue;
		}
		*at = pair->next;
		sw.pair_count--;
		pair->memif->pairs--;
		if (pair->region_fd >= 0)
			close(pair->region_fd);
		free(pair);
	}
}

/* ---- listeners. Under the lock
 * ----------------------------------------------------------------- */

/* True for a connection of a peer or of the driver. */
static bool memif_wants(const struct memif *memif, int fd)
{
	uid_t uid;

	if (!memif->is_server)
		return memif_is_self(fd); /* anyone can connect to an abstract name */
	if (memif->is_held)
		return false;
	if (memif_is_trusted(fd, &uid))
		return true;
	snprintf(
		sw.note, sizeof(sw.note),
		"%s: a client is refused: it runs as user %u, and this process as user %u; memif's "
		"ends run as one user",
		memif->name, uid, geteuid());
	return false;
}

static void memif_accept(struct memif *memif)
{
	while (sw.pair_count < MEMIF_PAIRS_MAX) {
		int fd = accept4(memif->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		struct pair *pair;

		if (fd < 0)
			return;
		pair = memif_wants(memif, fd) ? calloc(1, sizeof(*pair)) : NULL;
		if (!pair) {
			close(fd);
			continue;
		}
		*pair = (struct pair){ .next = sw.pairs,
				       .memif = memif,
				       .peer = memif->is_server ? fd : -1,
				       .driver = memif->is_server ? -1 : fd,
				       .is_calling = true,
				       .is_greeted = !memif->is_server,
				       .region_fd = -1 };
		memif->pairs++;
		sw.pairs = pair;
		sw.pair_count++;
		switch_wake(); /* the thread may not have seen this one */
	}
}

/* ---- the thread
 * -------------------------------------------------------------------------------- */

static int switch_wait_for(struct pollfd *fds, nfds_t *count)
{
	int timeout_ms = -1;

	*count = 0;
	fds[(*count)++] = (struct pollfd){ .fd = sw.wake, .events = POLLIN };
	for (struct memif *at = sw.memifs; at && sw.pair_count < MEMIF_PAIRS_MAX; at = at->next)
		fds[(*count)++] = (struct pollfd){ .fd = at->listen_fd, .events = POLLIN };
	for (struct pair *pair = sw.pairs; pair; pair = pair->next) {
		bool is_server = pair->memif->is_server;

		if (!pair->is_calling || is_server)
			fds[(*count)++] = (struct pollfd){ .fd = pair->peer, .events = POLLIN };
		if (!pair->is_calling || !is_server)
			fds[(*count)++] = (struct pollfd){ .fd = pair->driver, .events = POLLIN };
		if (pair->is_calling)
			timeout_ms = MEMIF_CALL_MS;
	}
	return timeout_ms;
}

/* Handles all ports and peers on every wakeup: there are only a few. */
static void *switch_main(void *arg)
{
	static struct pollfd fds[1 + 2 * RTE_MAX_ETHPORTS + 2 * MEMIF_PAIRS_MAX];

	for (;;) {
		char note[sizeof(sw.note)];
		eventfd_t woken;
		nfds_t count;
		int timeout_ms;

		pthread_mutex_lock(&sw.lock);
		for (struct memif *at = sw.memifs; at; at = at->next)
			memif_accept(at);
		for (struct pair *pair = sw.pairs; pair; pair = pair->next)
			pair_turn(pair);
		pairs_reap();
		sw.turns++;
		pthread_cond_broadcast(&sw.changed);
		timeout_ms = switch_wait_for(fds, &count);
		memcpy(note, sw.note, sizeof(note));
		sw.note[0] = '\0';
		pthread_mutex_unlock(&sw.lock);
		if (note[0])
			eal_log_forward(note);
		poll(fds, count, timeout_ms);
		(void)eventfd_read(sw.wake, &woken);
	}
	return arg;
}

static int switch_start(void)
{
	pthread_t thread;
	int err;

	if (sw.is_running)
		return 0;
	if (sw.wake < 0)
		sw.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (sw.wake < 0)
		return -errno;
	err = thread_start(&thread, switch_main, NULL, "harp-memif");
	if (err)
		return err;
	pthread_detach(thread);
	sw.is_running = true;
	return 0;
}

void memif_forked(void)
{
	for (const struct memif *at = sw.memifs; at; at = at->next)
		close(at->listen_fd);
	for (const struct pair *pair = sw.pairs; pair; pair = pair->next)
		if (pair->peer >= 0)
			close(pair->peer);
	/* In a grandchild the numbers are other files. A leak checker still finds the memory. */
	if (sw.memifs)
		sw.parent_memifs = sw.memifs;
	if (sw.pairs)
		sw.parent_pairs = sw.pairs;
	sw.memifs = NULL;
	sw.pairs = NULL;
}

/* ---- ports
 * ------------------------------------------------------------------------------------- */

static int memif_serve(struct memif *memif, const struct memif_text *text, const char **name,
		       const struct why *why)
{
	int err = memif_home(name, &memif->to, why);

	if (err)
		return err;
	memif->at = text->address;
	memif->home_id = sw.next_home_id++;
	memif->listen_fd = memif_listen(text, why);
	return memif->listen_fd < 0 ? memif->listen_fd : 0;
}

static int memif_call(struct memif *memif, const struct memif_text *text, const char **name,
		      const struct why *why)
{
	memif->to = text->address;
	memif->home_id = text->id;
	memif->listen_fd = memif_listen_anywhere(&memif->at);
	*name = memif->at.un.sun_path + 1;
	return memif->listen_fd < 0
		       ? why_fail(why, memif->listen_fd, "no socket for its driver: %s",
				  strerror(-memif->listen_fd))
		       : 0;
}

static int memif_add(struct memif *memif, const struct memif_text *text,
		     char driver_text[MEMIF_TEXT_BYTES], const struct why *why)
{
	const char *name;
	int err = switch_start();

	if (err)
		return why_fail(why, err, "no thread for its sockets: %s", strerror(-err));
	err = text->is_server ? memif_serve(memif, text, &name, why)
			      : memif_call(memif, text, &name, why);
	if (err)
		return err;
	snprintf(memif->name, sizeof(memif->name), "%.*s", (int)strcspn(text->rest, ","),
		 text->rest);
	snprintf(driver_text, MEMIF_TEXT_BYTES, "%s,id=%u,socket=%s,socket-abstract=yes",
		 text->rest, memif->home_id, name);
	memif->is_server = text->is_server;
	memif->id = text->id;
	memif->next = sw.memifs;
	sw.memifs = memif;
	return 0;
}

int memif_open(struct memif **out, const char *device, char text[MEMIF_TEXT_BYTES],
	       const struct why *why)
{
	struct memif_text parsed;
	int err = memif_parse(&parsed, device, why);

	if (!err && parsed.is_default)
		err = memif_folder(why);
	if (err)
		return err;
	*out = calloc(1, sizeof(**out));
	if (!*out)
		return why_fail(why, -ENOMEM, "out of memory");
	pthread_mutex_lock(&sw.lock);
	err = memif_add(*out, &parsed, text, why);
	if (err) {
		free(*out);
		*out = NULL;
	}
	pthread_mutex_unlock(&sw.lock);
	switch_wake();
	return err;
}

void memif_expect(struct memif *memif, uint32_t packet_bytes, uint32_t queues)
{
	if (!memif)
		return;
	pthread_mutex_lock(&sw.lock);
	memif->packet_bytes = packet_bytes;
	memif->queues = queues;
	pthread_mutex_unlock(&sw.lock);
}

bool memif_is_lost(struct memif *memif)
{
	bool is_lost;

	pthread_mutex_lock(&sw.lock);
	memif_accept(memif); /* the driver may have connected just now */
	is_lost = !memif->is_server && memif->pairs == 0;
	pthread_mutex_unlock(&sw.lock);
	return is_lost;
}

static void memif_round(void *arg)
{
	(void)arg;
}

void memif_hold(struct memif *memif)
{
	if (!memif)
		return;
	pthread_mutex_lock(&sw.lock);
	memif->is_held = true;
	memif_accept(memif);
	for (struct pair *pair = sw.pairs; pair; pair = pair->next)
		if (pair->memif == memif)
			pair_end(pair);
	pthread_mutex_unlock(&sw.lock);
	/* The driver accepts, greets, reads to the end and closes the connection. A child of this
	 * process may have a copy of its socket, so ours does not show when. */
	for (unsigned i = 0; i < MEMIF_ROUNDS; i++)
		link_run_there(memif_round, NULL);
	pthread_mutex_lock(&sw.lock);
	for (struct pair *pair = sw.pairs; pair; pair = pair->next)
		if (pair->memif == memif) {
			pair_end(pair);
			memif_fd_close(&pair->driver);
		}
	switch_wake();
	while (memif->pairs > 0)
		pthread_cond_wait(&sw.changed, &sw.lock);
	pthread_mutex_unlock(&sw.lock);
}

void memif_release(struct memif *memif)
{
	if (!memif)
		return;
	pthread_mutex_lock(&sw.lock);
	memif->is_held = false;
	pthread_mutex_unlock(&sw.lock);
}

void memif_close(struct memif *memif)
{
	struct memif **at = &sw.memifs;
	uint32_t turns;

	if (!memif)
		return;
	memif_hold(memif);
	pthread_mutex_lock(&sw.lock);
	while (*at != memif)
		at = &(*at)->next;
	*at = memif->next;
	if (memif->is_server && memif->at.un.sun_path[0])
		unlink(memif->at.un.sun_path);
	close(memif->listen_fd);
	/* The kernel keeps the listener and its name while the thread polls it. */
	turns = sw.turns;
	switch_wake();
	while (sw.turns == turns)
		pthread_cond_wait(&sw.changed, &sw.lock);
	pthread_mutex_unlock(&sw.lock);
	free(memif);
}
