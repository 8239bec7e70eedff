/* SPDX-License-Identifier: Apache-2.0 */
/* peer.h - the other end of a connection in a process of its own. */
#ifndef HARP_TESTS_PLUGIN_PEER_H
#define HARP_TESTS_PLUGIN_PEER_H

#include "harness.h"

struct peer {
	pid_t pid;
	int fd; /* one byte each way says "go on" */
};

/* Memory whose use hurts when it has been unmapped. */
uint8_t *map(size_t size);
/* Forks before any library is loaded. child is given the handle and its end of the socket. */
struct peer peer_start(void (*child)(const char *plugin, int version, int fd), enum host childs,
		       const char *plugin, int version);
void peer_say(int fd);
void peer_hear(int fd);
void peer_end(struct peer *peer, int signal);
/* Waits so long for the end of the child's process. */
bool peer_is_gone(const struct peer *peer, int wait_ms);
/* The parent listens and tells the child where, which connects; the other way round the child does the first. */
void *peer_accept(struct net *net, const struct peer *peer, void **listen);
void *child_connect(struct net *net, int fd);

#endif
