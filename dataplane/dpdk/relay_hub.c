/* SPDX-License-Identifier: Apache-2.0 */
/* relay_hub.c - the connections of all memif ports of the process, and the thread that hands on what comes: see relay.c. */
#include "dpdk/relay_hub.h"

#include <errno.h>
#include <poll.h>
#include <rte_errno.h>
#include <rte_interrupts.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/thread.h"

#define RELAY_DIAL_MS 20 /* between calls of who is not there, or takes none just now */
#define RELAY_ROUNDS 8   /* of DPDK's interrupt thread: each takes all that is ready */

#define MEMIF_INIT_ID_AT 4     /* where a client's first message has the number of its server */
#define MEMIF_REASON_AT 6      /* and a goodbye its words */
#define MEMIF_NO_ID UINT32_MAX /* relay_home()'s: never to be had */

struct hub hub = { .lock = PTHREAD_MUTEX_INITIALIZER,
		   .changed = PTHREAD_COND_INITIALIZER,
		   .wake = -1,
		   .round = -1 };

static uint64_t hub_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void hub_wake(void)
{
	/* It can't fail but for a count that nobody reads, and then the thread wakes anyway. */
	(void)eventfd_write(hub.wake, 1);
}

/* ---- pairs. Under the lock --------------------------------------------------------------------- */

/* The other end hears of it though a child of ours may have inherited the socket. */
static void fd_close(int *fd)
{
	int was = *fd;

	*fd = -1; /* before: a child that is forked meanwhile closes what is here */
	if (was >= 0) {
		shutdown(was, SHUT_RDWR);
		close(was);
	}
}

/* The driver forgets to close memory that it has been given and has not mapped; it maps when it hears that this was
 * all, and then finds its client gone. */
static void pair_complete(struct pair *pair)
{
	struct relay_message message = { .bytes = { MEMIF_CONNECT }, .len = sizeof(message.bytes) };

	if (pair->half && pair->driver >= 0)
		relay_send(pair->driver, &message);
	pair->half = false;
}

void pair_hang_up(struct pair *pair)
{
	pair_complete(pair);
	fd_close(&pair->peer);
	if (pair->dialling && pair->listener->serves)
		fd_close(&pair->driver);
	else if (pair->driver >= 0)
		shutdown(pair->driver, SHUT_WR);
	pair->dialling = false;
	if (pair->driver >= 0)
		(void)eventfd_write(hub.round, 1);
}

static void pair_dial(struct pair *pair)
{
	const struct relay_address *to = &pair->listener->to;
	int *fd = pair->listener->serves ? &pair->driver : &pair->peer;
	struct pollfd caller = { .fd = pair->peer };

	if (pair->listener->serves && poll(&caller, 1, 0) == 1) {
		pair_hang_up(pair); /* the driver has not heard of it */
		return;
	}
	if (*fd < 0)
		*fd = relay_socket();
	if (*fd >= 0 && connect(*fd, (const struct sockaddr *)&to->un, to->len) == 0)
		pair->dialling = false;
}

/* A client says which server it wants; one that is held is not there. */
static void pair_address(struct pair *pair, struct relay_message *message)
{
	uint32_t id, home_id = MEMIF_NO_ID;

	memcpy(&id, message->bytes + MEMIF_INIT_ID_AT, sizeof(id));
	for (struct relay *relay = hub.relays; relay && !pair->relay; relay = relay->next)
		if (relay->listener == pair->listener && relay->id == id && !relay->held) {
			pair->relay = relay;
			relay->pairs++;
		}
	if (pair->relay && pair->relay->id == id)
		home_id = pair->relay->home_id;
	memcpy(message->bytes + MEMIF_INIT_ID_AT, &home_id, sizeof(home_id));
}

static void pair_heard(struct pair *pair, struct relay_message *message)
{
	uint16_t type = relay_message_type(message);

	if (!pair->listener->serves)
		return;
	if (type == MEMIF_INIT)
		pair_address(pair, message);
	else if (type == MEMIF_ADD_REGION)
		pair->half = true;
	else if (type == MEMIF_CONNECT)
		pair->half = false;
	else if (type == MEMIF_DISCONNECT)
		pair_complete(pair);
}

/* Whoever says goodbye, the driver has done with the connection when it has been said. */
static bool pair_hand_on(int to, struct relay_message *message)
{
	return relay_send(to, message) && relay_message_type(message) != MEMIF_DISCONNECT;
}

/* The driver does not hear what the peer must not say; the peer hears why. */
static bool pair_may_say(struct pair *pair, struct relay_message *message)
{
	static const struct handshake_wish anything;
	const struct handshake_wish *wish = pair->relay ? &pair->relay->wish : &anything;
	const char *wrong = pair->listener->serves ? handshake_client(&pair->said, message, wish)
						   : handshake_server(&pair->said, message);

	if (!wrong)
		return true;
	relay_message_drop(message);
	*message = (struct relay_message){ .bytes = { MEMIF_DISCONNECT },
					   .len = sizeof(message->bytes) };
	snprintf((char *)message->bytes + MEMIF_REASON_AT, sizeof(message->bytes) - MEMIF_REASON_AT,
		 "%s", wrong);
	(void)relay_send(pair->peer, message);
	return false;
}

static void pair_from_peer(struct pair *pair)
{
	struct relay_message message;
	int got = -1;

	while (pair->peer >= 0 && (got = relay_receive(pair->peer, &message)) == 1) {
		if (!pair_may_say(pair, &message)) {
			pair_hang_up(pair);
			continue;
		}
		pair_heard(pair, &message);
		if (!pair_hand_on(pair->driver, &message))
			pair_hang_up(pair);
	}
	if (got == 0)
		pair_hang_up(pair);
}

static void pair_from_driver(struct pair *pair)
{
	struct relay_message message;
	int got = -1;

	while (pair->driver >= 0 && (got = relay_receive(pair->driver, &message)) == 1) {
		pair->known |= relay_message_type(&message) == MEMIF_CONNECTED;
		if (!pair_hand_on(pair->peer, &message) && pair->peer >= 0)
			pair_hang_up(pair);
	}
	if (got == 0) {
		fd_close(&pair->driver);
		fd_close(&pair->peer);
		pair->dialling = false;
	}
}

static void pair_turn(struct pair *pair)
{
	if (pair->dialling)
		pair_dial(pair);
	if (!pair->dialling && pair->peer >= 0)
		pair_from_peer(pair);
	if (pair->driver >= 0 && !(pair->dialling && pair->listener->serves))
		pair_from_driver(pair);
}

/*
 * In DPDK's interrupt thread, once in each of its rounds as long as a pair waits for the driver's end. The driver closes
 * that when it finds the end of what we write, which is ready to be read; but a child of this process may have inherited it,
 * and then we are not told. A few rounds later it has happened.
 */
static void hub_round(void *arg)
{
	eventfd_t asked;

	(void)arg;
	pthread_mutex_lock(&hub.lock);
	(void)eventfd_read(hub.round, &asked);
	for (struct pair *pair = hub.pairs; pair; pair = pair->next) {
		if (pair->peer >= 0 || pair->driver < 0 || pair->dialling)
			continue;
		if (++pair->rounds == RELAY_ROUNDS)
			fd_close(&pair->driver);
		else
			(void)eventfd_write(hub.round, 1);
	}
	hub_wake();
	pthread_mutex_unlock(&hub.lock);
}

/* Those that are gone on both sides. By the thread, which tells who waits for that. */
static void pairs_reap(void)
{
	for (struct pair **at = &hub.pairs; *at;) {
		struct pair *pair = *at;

		if (pair->peer >= 0 || pair->driver >= 0) {
			at = &pair->next;
			continue;
		}
		*at = pair->next;
		hub.pair_count--;
		if (pair->relay)
			pair->relay->pairs--;
		handshake_end(&pair->said);
		free(pair);
	}
}

/* ---- listeners. Under the lock ----------------------------------------------------------------- */

static struct relay *listener_caller(const struct listener *listener)
{
	struct relay *relay = hub.relays;

	while (relay && relay->listener != listener)
		relay = relay->next;
	return relay;
}

static int listener_next(struct listener *listener, uint64_t now_ns)
{
	struct pollfd caller = { .fd = listener->fd, .events = POLLIN };
	int fd = -1;

	listener->busy = false;
	if (poll(&caller, 1, 0) != 1)
		return -1;
	if (strangers_room(listener, now_ns))
		fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	listener->busy = fd < 0;
	return fd;
}

void listener_accept(struct listener *listener)
{
	const uint64_t now_ns = hub_now_ns();
	int fd;

	while ((fd = listener_next(listener, now_ns)) >= 0) {
		struct pair *pair = calloc(1, sizeof(*pair));

		if (!pair || (!listener->serves && !relay_is_us(fd))) {
			free(pair);
			close(fd);
			continue;
		}
		*pair = (struct pair){ .next = hub.pairs,
				       .listener = listener,
				       .peer = listener->serves ? fd : -1,
				       .driver = listener->serves ? -1 : fd,
				       .dialling = true,
				       .since_ns = now_ns,
				       .said = HANDSHAKE_BEGIN };
		if (!listener->serves) {
			pair->relay = listener_caller(listener);
			pair->relay->pairs++;
		}
		hub.pairs = pair;
		hub.pair_count++;
		hub_wake(); /* it waits on the listener, and may not have seen this one */
	}
}

/* Connections that came from there, and have an end yet. */
static bool listener_has_pairs(const struct listener *listener)
{
	const struct pair *pair = hub.pairs;

	while (pair && pair->listener != listener)
		pair = pair->next;
	return pair != NULL;
}

void listener_leave(struct listener *listener)
{
	struct listener **at = &hub.listeners;
	uint32_t turns = hub.turns;

	if (--listener->users > 0)
		return;
	while (*at != listener)
		at = &(*at)->next;
	*at = listener->next;
	if (listener->serves && listener->at.un.sun_path[0])
		unlink(listener->at.un.sun_path);
	close(listener->fd);
	for (struct pair *pair = hub.pairs; pair; pair = pair->next)
		if (pair->listener == listener)
			pair_hang_up(pair);
	hub_wake();
	/* As long as the thread waits on it, the kernel keeps it, and its name. */
	while (hub.turns == turns || listener_has_pairs(listener))
		pthread_cond_wait(&hub.changed, &hub.lock);
	free(listener);
}

struct listener *listener_add(int fd, bool serves)
{
	struct listener *listener = calloc(1, sizeof(*listener));

	if (!listener) {
		close(fd);
		return NULL;
	}
	listener->fd = fd;
	listener->serves = serves;
	listener->next = hub.listeners;
	hub.listeners = listener;
	return listener;
}

/* ---- the thread -------------------------------------------------------------------------------- */

/* What to wait for: the fds, and for how long, which is at most until the next stranger's time is over. */
static int hub_wait_for(struct pollfd *fds, nfds_t *count, uint64_t late_ns)
{
	int timeout = late_ns == UINT64_MAX ? -1 : (int)(late_ns / 1000000) + 1;

	*count = 0;
	fds[(*count)++] = (struct pollfd){ .fd = hub.wake, .events = POLLIN };
	for (struct listener *at = hub.listeners; at; at = at->next)
		if (!at->busy)
			fds[(*count)++] = (struct pollfd){ .fd = at->fd, .events = POLLIN };
		else
			timeout = RELAY_DIAL_MS;
	for (struct pair *pair = hub.pairs; pair; pair = pair->next) {
		if (!pair->dialling)
			fds[(*count)++] = (struct pollfd){ .fd = pair->peer, .events = POLLIN };
		if (!pair->dialling || !pair->listener->serves)
			fds[(*count)++] = (struct pollfd){ .fd = pair->driver, .events = POLLIN };
		if (pair->dialling)
			timeout = RELAY_DIAL_MS;
	}
	return timeout;
}

/* Looks at all that there is, whatever woke it: it is little. */
static void *hub_main(void *arg)
{
	static struct pollfd fds[1 + RELAY_PORTS_MAX + 2 * RELAY_PAIRS_MAX];

	for (;;) {
		eventfd_t woken;
		uint64_t late_ns;
		nfds_t count;
		int timeout;

		pthread_mutex_lock(&hub.lock);
		for (struct listener *at = hub.listeners; at; at = at->next)
			listener_accept(at);
		for (struct pair *pair = hub.pairs; pair; pair = pair->next)
			pair_turn(pair);
		late_ns = strangers_late(hub_now_ns());
		pairs_reap();
		hub.turns++;
		pthread_cond_broadcast(&hub.changed);
		timeout = hub_wait_for(fds, &count, late_ns);
		pthread_mutex_unlock(&hub.lock);
		poll(fds, count, timeout);
		(void)eventfd_read(hub.wake, &woken);
	}
	return arg;
}

void hub_forked(void)
{
	for (const struct listener *at = hub.listeners; at; at = at->next)
		close(at->fd);
	for (struct pair *pair = hub.pairs; pair; pair = pair->next) {
		if (pair->peer >= 0)
			close(pair->peer);
		handshake_end(&pair->said);
	}
	/* A child of the child's has other files of these numbers. They stay in reach of who looks for leaks. */
	if (hub.listeners)
		hub.parents_listeners = hub.listeners;
	if (hub.pairs)
		hub.parents_pairs = hub.pairs;
	hub.listeners = NULL;
	hub.pairs = NULL;
}

static int hub_rounds_start(void)
{
	static struct rte_intr_handle *handle; /* stays, as the thread does */
	int err = 0;

	if (!handle)
		handle = rte_intr_instance_alloc(RTE_INTR_INSTANCE_F_PRIVATE);
	if (hub.round < 0)
		hub.round = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (hub.round < 0)
		return -errno;
	if (!handle)
		return -ENOMEM;
	if (rte_intr_fd_set(handle, hub.round) || rte_intr_type_set(handle, RTE_INTR_HANDLE_EXT))
		return -rte_errno;
	if (!hub.rounds)
		err = rte_intr_callback_register(handle, hub_round, NULL);
	hub.rounds = !err;
	return err;
}

int hub_start(void)
{
	pthread_t thread;
	int err;

	if (hub.runs)
		return 0;
	if (hub.wake < 0)
		hub.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (hub.wake < 0)
		return -errno;
	err = hub_rounds_start();
	if (!err)
		err = thread_start(&thread, hub_main, NULL, "harp-memif");
	if (err)
		return err;
	pthread_detach(thread);
	hub.runs = true;
	return 0;
}
