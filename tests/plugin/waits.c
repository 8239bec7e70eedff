/* SPDX-License-Identifier: Apache-2.0 */
/* waits.c - see waits.h. */
#include "waits.h"

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

static _Thread_local bool watched;
static _Thread_local const char *first;

void waits_begin(void)
{
	first = NULL;
	watched = true;
}

const char *waits_end(void)
{
	watched = false;
	return first;
}

static void note(const char *function)
{
	if (watched && !first)
		first = function;
}

static void note_if(bool waits, const char *function)
{
	if (waits)
		note(function);
}

/* rtnetlink answers within the call, behind the lock of all interfaces; any other socket waits
 * unless it was told not to. */
static bool socket_waits(int fd, int flags)
{
	socklen_t len = sizeof(int);
	int domain = 0;

	if (!watched)
		return false;
	(void)getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len);
	return domain == AF_NETLINK ||
	       (!(flags & MSG_DONTWAIT) && !(fcntl(fd, F_GETFL) & O_NONBLOCK));
}

/* ---- the C library's --------------------------------------------------------------------------- */

/*
 * The next definition of a function, looked up when the program starts. dlsym() takes the loader's lock, which
 * dlclose() holds while the plugin's destructor waits for a thread that may call one of these.
 */
#define RESOLVE(name)                                                                              \
	static void *next_##name;                                                                  \
	__attribute__((constructor)) static void resolve_##name(void)                              \
	{                                                                                          \
		next_##name = dlsym(RTLD_NEXT, #name);                                             \
	}
#define NEXT(name, type) ((type)(next_##name ? next_##name : dlsym(RTLD_NEXT, #name)))

#define WAITS(when, result, name, parameters, arguments)                                           \
	RESOLVE(name)                                                                              \
	result name parameters                                                                     \
	{                                                                                          \
		note_if(when, __func__);                                                           \
		return NEXT(name, result(*) parameters) arguments;                                 \
	}

#pragma GCC visibility push(default) /* the loader is to find them */

WAITS(domain == AF_XDP, int, socket, (int domain, int type, int protocol), (domain, type, protocol))
WAITS(timeout_ms != 0, int, poll, (struct pollfd * fds, nfds_t count, int timeout_ms),
      (fds, count, timeout_ms))
WAITS(true, int, ppoll,
      (struct pollfd * fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask),
      (fds, count, timeout, mask))
WAITS(true, int, select,
      (int count, fd_set *restrict in, fd_set *restrict out, fd_set *restrict bad,
       struct timeval *restrict timeout),
      (count, in, out, bad, timeout))
WAITS(timeout_ms != 0, int, epoll_wait,
      (int fd, struct epoll_event *events, int count, int timeout_ms),
      (fd, events, count, timeout_ms))
WAITS(true, int, nanosleep, (const struct timespec *time, struct timespec *left), (time, left))
WAITS(true, int, clock_nanosleep,
      (clockid_t id, int flags, const struct timespec *time, struct timespec *left),
      (id, flags, time, left))
WAITS(true, int, usleep, (useconds_t us), (us))
WAITS(true, int, pthread_join, (pthread_t id, void **result), (id, result))
WAITS(true, int, sem_wait, (sem_t * sem), (sem))
WAITS(socket_waits(fd, 0), int, connect, (int fd, const struct sockaddr *addr, socklen_t len),
      (fd, addr, len))
WAITS(socket_waits(fd, flags), ssize_t, recv, (int fd, void *to, size_t bytes, int flags),
      (fd, to, bytes, flags))
WAITS(socket_waits(fd, flags), ssize_t, recvmsg, (int fd, struct msghdr *message, int flags),
      (fd, message, flags))
WAITS(socket_waits(fd, flags), ssize_t, send, (int fd, const void *from, size_t bytes, int flags),
      (fd, from, bytes, flags))
WAITS(socket_waits(fd, flags), ssize_t, sendmsg, (int fd, const struct msghdr *message, int flags),
      (fd, message, flags))

#pragma GCC visibility pop
