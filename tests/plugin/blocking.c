/* SPDX-License-Identifier: Apache-2.0 */
/* blocking.c - see blocking.h. */
#include "blocking.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static _Thread_local bool is_watched;
static _Thread_local const char *first_blocking;

void blocking_begin(void)
{
	first_blocking = NULL;
	is_watched = true;
}

const char *blocking_end(void)
{
	is_watched = false;
	return first_blocking;
}

static void record(const char *function)
{
	if (is_watched && !first_blocking)
		first_blocking = function;
}

static void record_if(bool is_blocking, const char *function)
{
	if (is_blocking)
		record(function);
}

/* A netlink call may wait for the kernel's rtnl lock; other sockets block unless non-blocking. */
static bool socket_blocks(int fd, int flags)
{
	socklen_t len = sizeof(int);
	int domain = 0;

	if (!is_watched)
		return false;
	(void)getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len);
	return domain == AF_NETLINK ||
	       (!(flags & MSG_DONTWAIT) && !(fcntl(fd, F_GETFL) & O_NONBLOCK));
}

/*
 * The C library's definition, looked up when the program starts. dlsym() takes the loader's lock.
 * dlclose() holds it while the plugin's destructor waits for a thread that may call one of these.
 */
#define RESOLVE(name)                                                                              \
	static void *next_##name;                                                                  \
	__attribute__((constructor)) static void resolve_##name(void)                              \
	{                                                                                          \
		next_##name = dlsym(RTLD_NEXT, #name);                                             \
	}
#define NEXT(name, type) ((type)(next_##name ? next_##name : dlsym(RTLD_NEXT, #name)))

#define BLOCKING(when, result, name, parameters, arguments)                                        \
	RESOLVE(name)                                                                              \
	result name parameters                                                                     \
	{                                                                                          \
		record_if(when, __func__);                                                         \
		return NEXT(name, result(*) parameters) arguments;                                 \
	}

#pragma GCC visibility push(default) /* the loader must find these */

BLOCKING(domain == AF_XDP, int, socket, (int domain, int type, int protocol),
	 (domain, type, protocol))
BLOCKING(timeout_ms != 0, int, poll, (struct pollfd * fds, nfds_t count, int timeout_ms),
	 (fds, count, timeout_ms))
BLOCKING(true, int, ppoll,
	 (struct pollfd * fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask),
	 (fds, count, timeout, mask))
BLOCKING(true, int, select,
	 (int count, fd_set *restrict in, fd_set *restrict out, fd_set *restrict bad,
	  struct timeval *restrict timeout),
	 (count, in, out, bad, timeout))
BLOCKING(timeout_ms != 0, int, epoll_wait,
	 (int fd, struct epoll_event *events, int count, int timeout_ms),
	 (fd, events, count, timeout_ms))
BLOCKING(true, int, nanosleep, (const struct timespec *time, struct timespec *left), (time, left))
BLOCKING(true, int, clock_nanosleep,
	 (clockid_t id, int flags, const struct timespec *time, struct timespec *left),
	 (id, flags, time, left))
BLOCKING(true, int, usleep, (useconds_t us), (us))
BLOCKING(true, int, pthread_join, (pthread_t id, void **result), (id, result))
BLOCKING(true, int, sem_wait, (sem_t * sem), (sem))
BLOCKING(socket_blocks(fd, 0), int, connect, (int fd, const struct sockaddr *addr, socklen_t len),
	 (fd, addr, len))
BLOCKING(socket_blocks(fd, flags), ssize_t, recv, (int fd, void *to, size_t bytes, int flags),
	 (fd, to, bytes, flags))
BLOCKING(socket_blocks(fd, flags), ssize_t, recvmsg, (int fd, struct msghdr *message, int flags),
	 (fd, message, flags))
BLOCKING(socket_blocks(fd, flags), ssize_t, send,
	 (int fd, const void *from, size_t bytes, int flags), (fd, from, bytes, flags))
BLOCKING(socket_blocks(fd, flags), ssize_t, sendmsg,
	 (int fd, const struct msghdr *message, int flags), (fd, message, flags))

#pragma GCC visibility pop
