/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control.c - the sockets that memif's two ends shake hands on: no call on one waits for ever.
 *
 * The driver reads and accepts in DPDK's interrupt thread, on blocking sockets, whenever that finds an event of the
 * socket's descriptor. The thread takes several events at once and knows their sockets by number alone. When one
 * event closes a socket and makes another (our alarms do, and so does accepting), the new one has the old one's number, and what
 * is left of the events is taken for its own: it is read though nothing has come. If what would come is this
 * thread's to send, nothing ever does, and every port of the process stands still.
 *
 * A limit on each wait ends that: the driver then takes the connection down, and link.c has it made again. The driver says in
 * its log that it has made a socket before it lets the interrupt thread know, which is when the limit is set.
 *
 * A server says hello at once to whom it accepts. When that fails, for the client has gone, 22.11's driver closes a socket that the
 * interrupt thread still has in its list, and that ends the process (rte_panic). So a client that has gone already is
 * replaced by one that listens, and goes when the hello has been sent.
 */
#include "dpdk/control.h"

#include <dirent.h>
#include <poll.h>
#include <rte_alarm.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#define CONTROL_WAIT_US 100000 /* longer than a living peer takes to answer */

/* The name lies in the text: a path, or without its leading NUL an abstract name. */
static bool control_named(const struct sockaddr_un *address, socklen_t len, const char *text,
			  size_t bytes)
{
	const char *name = address->sun_path;
	size_t at = offsetof(struct sockaddr_un, sun_path), most;

	if (len <= at + 1 || address->sun_family != AF_UNIX)
		return false;
	most = len - at;
	if (name[0] == '\0') {
		name++;
		most--;
	}
	most = strnlen(name, most);
	return most > 0 && memmem(text, bytes, name, most) != NULL;
}

/* One of memif's: of its type, and one of its ends has the name that the line has. */
static bool control_is(int fd, const char *line, size_t bytes)
{
	struct sockaddr_un address = { 0 };
	socklen_t len = sizeof(int);
	int type = 0;

	if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) < 0 || type != SOCK_SEQPACKET)
		return false;
	len = sizeof(address);
	if (getsockname(fd, (struct sockaddr *)&address, &len) == 0 &&
	    control_named(&address, len, line, bytes))
		return true;
	len = sizeof(address);
	return getpeername(fd, (struct sockaddr *)&address, &len) == 0 &&
	       control_named(&address, len, line, bytes);
}

static void control_close(void *fd)
{
	close((int)(intptr_t)fd);
}

/* Someone who listens, instead of a client that has gone. */
static void control_replace(int fd)
{
	int ends[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0)
		return;
	/* The alarm comes when the driver has done with this event. */
	if (dup2(ends[0], fd) < 0 ||
	    rte_eal_alarm_set(1, control_close, (void *)(intptr_t)ends[1]) != 0)
		close(ends[1]);
	close(ends[0]);
}

static void control_limit(int fd)
{
	const struct timeval wait = { .tv_usec = CONTROL_WAIT_US };

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait));
}

static bool control_is_limited(int fd)
{
	struct timeval wait = { 0 };
	socklen_t len = sizeof(wait);

	getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, &len);
	return wait.tv_usec != 0;
}

/* The other end has gone. A listener has none. */
static bool control_is_left(int fd)
{
	struct pollfd at = { .fd = fd };
	socklen_t len = sizeof(int);
	int listens = 0;

	getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &len);
	return !listens && poll(&at, 1, 0) == 1 && (at.revents & POLLHUP);
}

void control_heard(const char *line, size_t bytes)
{
	bool accepted = memmem(line, bytes, "Connection request accepted", 27) != NULL;
	struct dirent *entry;
	DIR *dir;

	if (!accepted && !memmem(line, bytes, "Memif listener socket", 21) &&
	    !memmem(line, bytes, "Memif socket: ", 14))
		return;
	dir = opendir("/proc/self/fd");
	while (dir && (entry = readdir(dir)) != NULL) {
		int fd = atoi(entry->d_name);

		if (fd <= 2 || !control_is(fd, line, bytes) || control_is_limited(fd))
			continue;
		if (accepted && control_is_left(fd))
			control_replace(fd);
		control_limit(fd);
	}
	if (dir)
		closedir(dir);
}
