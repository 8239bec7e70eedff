/* SPDX-License-Identifier: Apache-2.0 */
/*
 * relay.c - stands between the memif driver's control sockets and its peers.
 *
 * Theory of operation
 *
 * memif's ends shake hands on a UNIX socket, in DPDK's interrupt thread. The driver of 22.11 is good at that as long as
 * nothing goes wrong. A client that dies before it has been greeted ends the server's process (rte_panic). connect()
 * waits for ever for a server that is stopped. A listener is never closed, and used when it has been freed. And the
 * interrupt thread knows sockets by number: when one with an event under way is closed by another event, the next socket gets its
 * number, and is read though nothing has come.
 *
 * So the driver never meets a peer. A thread of ours owns the sockets that peers see, and has a connection of its own to
 * the driver for each of theirs; messages are handed on as they are, the descriptors with them, and packets don't pass here at all. Our side of
 * a connection is there when the driver greets it, reads what the driver says, and goes only when the driver has closed
 * its own: when a peer dies we end what we write, the driver reads to the end, and takes the connection down by
 * itself, where it reads it. relay_hold() does that to a port which is to be stopped, so that stopping finds
 * nothing under way.
 *
 * The driver believes what a peer says; relay_handshake.c doesn't. Callers that say nothing are relay_strangers.c's.
 *
 * All servers of a process accept in one place (relay_home()), each with a number of its own there: the number that a
 * client asks for is looked up, and replaced. A client's driver calls us, and we its server, as often as it
 * takes.
 */
#include "dpdk/relay.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dpdk/relay_hub.h"

static struct listener *listener_find(const struct memif_text *text)
{
	struct listener *at = hub.listeners;

	while (at && !(at->serves && at->at.len == text->address_len &&
		       memcmp(&at->at.un, &text->address, at->at.len) == 0))
		at = at->next;
	return at;
}

static int relay_serve(struct relay *relay, const struct memif_text *text, const char **name,
		       const struct why *why)
{
	struct listener *listener = listener_find(text);
	struct relay_address to;
	int err = relay_home(name, &to, why), fd;

	if (err)
		return err;
	for (struct relay *at = hub.relays; at; at = at->next)
		if (listener && at->listener == listener && at->id == text->id)
			return why_fail(
				why, -EBUSY,
				"Address already in use: this process has a server with id=%u "
				"on its socket; give it another id",
				text->id);
	if (!listener) {
		fd = relay_listen(text);
		if (fd == -EADDRINUSE)
			return why_fail(why, -EBUSY,
					"Address already in use: its socket has a server");
		if (fd == -EEXIST)
			return why_fail(why, fd,
					"its socket's path is a file of another kind; "
					"name another, or remove it");
		if (fd < 0)
			return why_fail(why, fd, "can't make its socket: %s", strerror(-fd));
		listener = listener_add(fd, true);
		if (!listener)
			return why_fail(why, -ENOMEM, "out of memory");
		listener->at = (struct relay_address){ text->address, text->address_len };
		listener->to = to;
	}
	relay->listener = listener;
	relay->home_id = hub.next_home_id++;
	return 0;
}

static int relay_call(struct relay *relay, const struct memif_text *text, const char **name,
		      const struct why *why)
{
	struct relay_address at;
	int fd = relay_listen_anywhere(&at);

	if (fd < 0)
		return why_fail(why, fd, "no socket for its driver: %s", strerror(-fd));
	relay->listener = listener_add(fd, false);
	if (!relay->listener)
		return why_fail(why, -ENOMEM, "out of memory");
	relay->listener->at = at;
	relay->listener->to = (struct relay_address){ text->address, text->address_len };
	relay->home_id = text->id;
	*name = relay->listener->at.un.sun_path + 1;
	return 0;
}

static int relay_add(struct relay *relay, const struct memif_text *text, const char **name,
		     const struct why *why)
{
	int err = hub_start();

	if (err)
		return why_fail(why, err, "no thread for its sockets: %s", strerror(-err));
	if (hub.relay_count == RELAY_PORTS_MAX)
		return why_fail(why, -ENOSPC,
				"this process has %u memif ports, and can't have more",
				RELAY_PORTS_MAX);
	err = text->serves ? relay_serve(relay, text, name, why)
			   : relay_call(relay, text, name, why);
	if (err)
		return err;
	relay->id = text->id;
	relay->listener->users++;
	relay->next = hub.relays;
	hub.relays = relay;
	hub.relay_count++;
	return 0;
}

int relay_open(struct relay **out, const char *device, char driver_text[RELAY_TEXT_BYTES],
	       const struct why *why)
{
	struct memif_text text;
	const char *name;
	int err = memif_parse(&text, device, why);

	if (err)
		return err;
	*out = calloc(1, sizeof(**out));
	if (!*out)
		return why_fail(why, -ENOMEM, "out of memory");
	pthread_mutex_lock(&hub.lock);
	err = relay_add(*out, &text, &name, why);
	if (err) {
		free(*out);
		*out = NULL;
	} else {
		snprintf(driver_text, RELAY_TEXT_BYTES, "%s,id=%u,socket=%s,socket-abstract=yes",
			 text.rest, (*out)->home_id, name);
	}
	pthread_mutex_unlock(&hub.lock);
	hub_wake();
	return err;
}

void relay_wants(struct relay *relay, uint32_t packet_bytes, uint32_t queues)
{
	if (!relay)
		return;
	pthread_mutex_lock(&hub.lock);
	relay->wish = (struct handshake_wish){ packet_bytes, queues };
	pthread_mutex_unlock(&hub.lock);
}

bool relay_is_lost(struct relay *relay)
{
	bool lost;

	pthread_mutex_lock(&hub.lock);
	listener_accept(relay->listener); /* the driver may have called just now */
	lost = !relay->listener->serves && relay->pairs == 0;
	pthread_mutex_unlock(&hub.lock);
	return lost;
}

void relay_hold(struct relay *relay)
{
	if (!relay)
		return;
	pthread_mutex_lock(&hub.lock);
	relay->held = true;
	listener_accept(relay->listener);
	for (struct pair *pair = hub.pairs; pair; pair = pair->next)
		if (pair->relay == relay)
			pair_hang_up(pair);
	hub_wake();
	while (relay->pairs > 0)
		pthread_cond_wait(&hub.changed, &hub.lock);
	pthread_mutex_unlock(&hub.lock);
}

void relay_release(struct relay *relay)
{
	if (!relay)
		return;
	pthread_mutex_lock(&hub.lock);
	relay->held = false;
	pthread_mutex_unlock(&hub.lock);
}

void relay_close(struct relay *relay)
{
	if (!relay)
		return;
	relay_hold(relay);
	pthread_mutex_lock(&hub.lock);
	for (struct relay **at = &hub.relays; *at; at = &(*at)->next)
		if (*at == relay) {
			*at = relay->next;
			hub.relay_count--;
			break;
		}
	listener_leave(relay->listener);
	pthread_mutex_unlock(&hub.lock);
	free(relay);
}
