/* SPDX-License-Identifier: Apache-2.0 */
/*
 * forkguard.h - sockets that a forked child must not keep alive.
 *
 * A peer learns of our death by the FIN or RST of our sockets; a child that sleeps with copies of them
 * would keep us alive for it. So every socket is registered, and the child closes them all.
 */
#ifndef HARP_PLUGIN_FORKGUARD_H
#define HARP_PLUGIN_FORKGUARD_H

#include <stdbool.h>
#include <sys/socket.h>

/*
 * Once per process image; repeated calls are free. Before and after fork(), prepare and parent run in the parent, and child,
 * which is async-signal-safe, in the child; one fork at a time. Each may be NULL.
 */
int forkguard_init(void (*prepare)(void), void (*parent)(void), void (*child)(void));
/* Makes a TCP socket, or accepts one: non-blocking, close-on-exec, registered before any fork() can
 * come in between. The descriptor, or -errno. */
int forkguard_socket(int family);
int forkguard_accept(int listener, struct sockaddr_storage *peer);
/* An epoll, likewise: the child's copy would speak of the parent's sockets. */
int forkguard_epoll(void);
/* Forgets and closes fd. */
void forkguard_close(int fd);

#endif
