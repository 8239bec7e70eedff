/* SPDX-License-Identifier: Apache-2.0 */
/*
 * forkguard.h - sockets that a forked child closes.
 *
 * A peer detects our death by the FIN or RST of our sockets. Copies in a forked child would keep
 * them open. So every socket is registered, and the child closes all of them.
 */
#ifndef HARP_PLUGIN_FORKGUARD_H
#define HARP_PLUGIN_FORKGUARD_H

#include <stdbool.h>
#include <sys/socket.h>

/* Handlers for pthread_atfork(). No descriptor is created or closed during a fork. */
void forkguard_fork_prepare(void);
void forkguard_fork_parent(void);
void forkguard_fork_child(void); /* async-signal-safe */
/* Creates or accepts a TCP socket: non-blocking, close-on-exec, registered before any fork().
 * Returns the descriptor, or -errno. */
int forkguard_socket(int family);
int forkguard_accept(int listener, struct sockaddr_storage *peer);
/* Forgets and closes fd. */
void forkguard_close(int fd);

#endif
