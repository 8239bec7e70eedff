/* SPDX-License-Identifier: Apache-2.0 */
/* peer.h - the other end of a connection, in a child process. */
#ifndef HARP_TESTS_PLUGIN_PEER_H
#define HARP_TESTS_PLUGIN_PEER_H

#include "harness.h"

struct peer {
	pid_t pid;
	int fd; /* carries a byte per peer_notify() */
};

/* Anonymous memory: an access after munmap() faults. */
uint8_t *map(size_t size);
/* Forks before any library is loaded. The child gets its end of the socket. */
struct peer peer_start(void (*child)(const char *plugin, int version, int fd), enum host child_host,
		       const char *plugin, int version);
void peer_notify(int fd);
void peer_wait(int fd);
void peer_end(struct peer *peer, int signal);
/* Waits up to wait_ms for the child to exit. */
bool peer_is_gone(const struct peer *peer, int wait_ms);
/* The parent listens and sends the handle; the child connects. */
void *peer_accept(struct net *net, const struct peer *peer, void **listen);
void *child_connect(struct net *net, int fd);

#endif
