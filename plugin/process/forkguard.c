/* SPDX-License-Identifier: Apache-2.0 */
/* forkguard.c - closes the plugin's sockets in forked children. */
#include "process/forkguard.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/util.h"

#define GUARD_FDS_MAX (1u << 20)

/* Held across fork(), so that the child's table is consistent. */
static pthread_mutex_t guard_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t guard_bits[GUARD_FDS_MAX / 64]; /* a bit for each descriptor; under guard_lock */

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
	for (int i = 0; i < (int)ARRAY_SIZE(guard_bits); i++)
		for (; guard_bits[i]; guard_bits[i] &= guard_bits[i] - 1)
			close(64 * i + __builtin_ctzll(guard_bits[i]));
	pthread_mutex_unlock(&guard_lock);
}

/* Registers fd, or closes it on failure. guard_lock held. */
static int forkguard_add(int fd)
{
	if (fd < 0)
		return -errno;
	if ((unsigned)fd >= GUARD_FDS_MAX) {
		close(fd);
		return -EMFILE;
	}
	guard_bits[fd / 64] |= UINT64_C(1) << fd % 64;
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
	guard_bits[fd / 64] &= ~(UINT64_C(1) << fd % 64);
	close(fd);
	pthread_mutex_unlock(&guard_lock);
}
