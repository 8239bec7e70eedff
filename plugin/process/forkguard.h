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

/*
 * Once per process image; repeated calls are free. Before and after fork(), prepare and parent run
 * in the parent, and child, which is async-signal-safe, in the child; one fork at a time. Each may
 * be NULL.
 */
int forkguard_init(void (*prepare)(void), void (*parent)(void), void (*child)(void));
/* Creates or accepts a TCP socket: non-blocking, close-on-exec, registered before any fork().
 * Returns the descriptor, or -errno. */
int forkguard_socket(int family);
int forkguard_accept(int listener, struct sockaddr_storage *peer);
/* Forgets and closes fd. */
void forkguard_close(int fd);

#endif
