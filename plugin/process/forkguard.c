/* SPDX-License-Identifier: Apache-2.0 */
/* forkguard.c - closes the plugin's sockets in forked children. */
#include "process/forkguard.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

/* Held across fork(), so that the child's table is consistent. */
static pthread_mutex_t guard_lock = PTHREAD_MUTEX_INITIALIZER;
static int *guard_fds; /* unordered; under guard_lock */
static unsigned guard_count, guard_capacity;

void forkguard_fork_prepare(void)
{
	pthread_mutex_lock(&guard_lock);
}

void forkguard_fork_parent(void)
{
	pthread_mutex_unlock(&guard_lock);
}

void forkguard_fork_child(void)
{
	for (unsigned i = 0; i < guard_count; i++)
		close(guard_fds[i]);
	guard_count = 0;
	pthread_mutex_unlock(&guard_lock);
}

/* Registers fd, or closes it on failure. guard_lock held. */
static int forkguard_add(int fd)
{
	if (fd < 0)
		return -errno;
	if (guard_count == guard_capacity) {
		unsigned capacity = guard_capacity ? 2 * guard_capacity : 64;
		int *fds = realloc(guard_fds, capacity * sizeof(*fds));

		if (!fds) {
			close(fd);
			return -ENOMEM;
		}
		guard_fds = fds;
		guard_capacity = capacity;
	}
	guard_fds[guard_count++] = fd;
	return fd;
}

int forkguard_socket(int family)
{
	int fd;

	pthread_mutex_lock(&guard_lock);
	fd = forkguard_add(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
	pthread_mutex_unlock(&guard_lock);
	return fd;
}

int forkguard_accept(int listener, struct sockaddr_storage *peer)
{
	socklen_t len = sizeof(*peer);
	int fd;

	pthread_mutex_lock(&guard_lock);
	fd = forkguard_add(
		accept4(listener, (struct sockaddr *)peer, &len, SOCK_CLOEXEC | SOCK_NONBLOCK));
	pthread_mutex_unlock(&guard_lock);
	return fd;
}

void forkguard_close(int fd)
{
	pthread_mutex_lock(&guard_lock);
	for (unsigned i = 0; i < guard_count; i++) {
		if (guard_fds[i] == fd) {
			guard_fds[i] = guard_fds[--guard_count];
			break;
		}
	}
	if (!guard_count) { /* free everything, as the library may be unloaded */
		free(guard_fds);
		guard_fds = NULL;
		guard_capacity = 0;
	}
	close(fd);
	pthread_mutex_unlock(&guard_lock);
}
