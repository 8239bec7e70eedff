/* SPDX-License-Identifier: Apache-2.0 */
/* relay_socket.c - the sockets between memif's driver, the relay, and peers. */
#include "dpdk/relay_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <rte_dev.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dpdk/eal_log.h"

#define RELAY_BACKLOG 16
#define RELAY_HOME_FDS                                                                             \
	4u /* the driver's listener, our file, and two for DPDK's interrupt thread, which makes one anew */

int relay_socket(void)
{
	return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

/* ---- listeners --------------------------------------------------------------------------------- */

/* A server that was killed leaves its socket's file. We ask as a stream: a server that lives does not hear of it, and
 * the kernel says that it is no stream. */
static bool relay_has_died(const struct memif_text *text)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	bool died;

	if (fd < 0)
		return false;
	died = connect(fd, (const struct sockaddr *)&text->address, text->address_len) < 0 &&
	       errno == ECONNREFUSED;
	close(fd);
	return died;
}

static int relay_bind(int fd, const struct memif_text *text)
{
	const struct sockaddr *address = (const struct sockaddr *)&text->address;
	const char *path = text->address.sun_path;
	struct stat file;

	if (bind(fd, address, text->address_len) < 0) {
		if (errno != EADDRINUSE)
			return -errno;
		if (path[0] && lstat(path, &file) == 0 && !S_ISSOCK(file.st_mode))
			return -EEXIST; /* it refuses a call, too */
		if (!path[0] || !relay_has_died(text))
			return -EADDRINUSE;
		unlink(path);
		if (bind(fd, address, text->address_len) < 0)
			return -errno;
	}
	if (path[0] && (text->uid != (uid_t)-1 || text->gid != (gid_t)-1) &&
	    chown(path, text->uid, text->gid) < 0) {
		int err = -errno;

		unlink(path);
		return err;
	}
	return listen(fd, RELAY_BACKLOG) < 0 ? -errno : 0;
}

int relay_listen(const struct memif_text *text)
{
	int fd = relay_socket(), err;

	if (fd < 0)
		return -errno;
	err = relay_bind(fd, text);
	if (!err)
		return fd;
	close(fd);
	return err;
}

int relay_listen_anywhere(struct relay_address *at)
{
	int fd = relay_socket(), err;

	if (fd < 0)
		return -errno;
	*at = (struct relay_address){ .un.sun_family = AF_UNIX, .len = sizeof(at->un) };
	/* No more than a family: the kernel finds a name, abstract. */
	if (bind(fd, (struct sockaddr *)&at->un, sizeof(sa_family_t)) == 0 &&
	    getsockname(fd, (struct sockaddr *)&at->un, &at->len) == 0 &&
	    listen(fd, RELAY_BACKLOG) == 0)
		return fd;
	err = -errno;
	close(fd);
	return err;
}

bool relay_is_us(int fd)
{
	struct ucred who = { 0 };
	socklen_t len = sizeof(who);

	return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) == 0 && who.pid == getpid();
}

/* ---- the driver's own listener ----------------------------------------------------------------- */

static struct {
	char name[64];
	int fd; /* the socket's file, which no folder has any more */
} home;

/* A folder that is ours alone, for the moment in which the socket has a name. */
static int relay_folder(char *path, size_t len)
{
	static const char *const places[] = { "/tmp", "/dev/shm", "/run" };

	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		snprintf(path, len, "%s/harp-memif-XXXXXX", places[i]);
		if (mkdtemp(path))
			return 0;
	}
	return -errno;
}

/* Are so many descriptors to be had? */
static int relay_descriptors(unsigned count)
{
	int fds[RELAY_HOME_FDS], err = 0;
	unsigned made = 0;

	while (made < count && !err) {
		fds[made] = relay_socket();
		if (fds[made] < 0)
			err = -errno;
		else
			made++;
	}
	while (made > 0)
		close(fds[--made]);
	return err;
}

/*
 * The driver forgets to close a listener, and goes on to use what it has freed of it. So there is one, that of a device which
 * is never started and never closed. Nobody but us reaches it: its file is kept open, and has no name.
 *
 * When it gets no socket the driver leaves half a device behind, that can't be removed: we look before, and a try that has failed
 * all the same leaves its name to nobody.
 */
static int relay_home_make(const struct why *why)
{
	static unsigned tries;
	char folder[48], device[160], number[16] = "", words[EAL_WORDS_BYTES];
	int err = relay_descriptors(RELAY_HOME_FDS);

	if (err)
		return why_fail(why, err, "no descriptors for its driver's socket: %s",
				strerror(-err));
	err = relay_folder(folder, sizeof(folder));
	if (err)
		return why_fail(why, err, "no folder for its socket, in /tmp, /dev/shm or /run: %s",
				strerror(-err));
	snprintf(home.name, sizeof(home.name), "%s/driver", folder);
	if (tries++ > 0)
		snprintf(number, sizeof(number), "%u", tries);
	snprintf(device, sizeof(device),
		 "net_memif_home%s,role=server,id=%u,socket=%s,socket-abstract=no", number,
		 UINT32_MAX, home.name);
	eal_log_mark();
	err = rte_dev_probe(device);
	if (!err) {
		home.fd = open(home.name, O_PATH | O_CLOEXEC);
		err = home.fd < 0 ? -errno : 0;
	}
	unlink(home.name);
	rmdir(folder);
	if (!err)
		return 0;
	home.name[0] = '\0';
	eal_log_words(words);
	return why_fail(why, -EIO, "its driver can't be made to listen: %s",
			words[0] ? words : strerror(-err));
}

int relay_home(const char **name, struct relay_address *to, const struct why *why)
{
	int err = home.name[0] ? 0 : relay_home_make(why);

	*name = home.name;
	*to = (struct relay_address){ .un.sun_family = AF_UNIX };
	to->len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1) +
		  (socklen_t)snprintf(to->un.sun_path, sizeof(to->un.sun_path), "/proc/self/fd/%d",
				      home.fd);
	return err;
}

/* ---- messages ---------------------------------------------------------------------------------- */

uint16_t relay_message_type(const struct relay_message *message)
{
	uint16_t type;

	memcpy(&type, message->bytes, sizeof(type));
	return type;
}

/* The driver forgets to close descriptors that it does not expect. */
static bool relay_message_fits(const struct relay_message *message, const struct msghdr *header)
{
	const struct cmsghdr *first = CMSG_FIRSTHDR(header);
	uint16_t type = relay_message_type(message);

	return !first || ((type == MEMIF_ADD_REGION || type == MEMIF_ADD_RING) &&
			  first->cmsg_len == CMSG_LEN(sizeof(int)));
}

int relay_message_fd(const struct relay_message *message)
{
	const struct msghdr header = { .msg_control = (void *)(uintptr_t)message->control.bytes,
				       .msg_controllen = message->control_len };
	const struct cmsghdr *first = CMSG_FIRSTHDR(&header);
	int fd = -1;

	if (first && first->cmsg_level == SOL_SOCKET && first->cmsg_type == SCM_RIGHTS)
		memcpy(&fd, CMSG_DATA(first), sizeof(fd));
	return fd;
}

void relay_message_drop(struct relay_message *message)
{
	struct msghdr header = { .msg_control = message->control.bytes,
				 .msg_controllen = message->control_len };

	for (struct cmsghdr *at = CMSG_FIRSTHDR(&header); at; at = CMSG_NXTHDR(&header, at)) {
		int fds[RELAY_FDS_MAX];
		size_t bytes = at->cmsg_len - CMSG_LEN(0);

		if (at->cmsg_level != SOL_SOCKET || at->cmsg_type != SCM_RIGHTS)
			continue;
		memcpy(fds, CMSG_DATA(at), bytes);
		for (size_t i = 0; i < bytes / sizeof(int); i++)
			close(fds[i]);
	}
}

int relay_receive(int fd, struct relay_message *message)
{
	struct iovec bytes = { .iov_base = message->bytes, .iov_len = sizeof(message->bytes) };
	struct msghdr header = { .msg_iov = &bytes,
				 .msg_iovlen = 1,
				 .msg_control = message->control.bytes,
				 .msg_controllen = sizeof(message->control) };
	ssize_t len;

	memset(message->bytes, 0, sizeof(message->bytes));
	len = recvmsg(fd, &header, MSG_CMSG_CLOEXEC);
	if (len < 0)
		return errno == EAGAIN || errno == EINTR ? -1 : 0;
	message->len = (size_t)len;
	message->control_len = header.msg_controllen;
	if (len > 0 && !(header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) &&
	    relay_message_fits(message, &header))
		return 1;
	relay_message_drop(message); /* none of memif's: who sends such is as good as gone */
	return 0;
}

bool relay_send(int fd, struct relay_message *message)
{
	struct iovec bytes = { .iov_base = message->bytes, .iov_len = message->len };
	struct msghdr header = { .msg_iov = &bytes,
				 .msg_iovlen = 1,
				 .msg_control = message->control.bytes,
				 .msg_controllen = message->control_len };
	bool sent = sendmsg(fd, &header, MSG_NOSIGNAL) == (ssize_t)message->len;

	relay_message_drop(message);
	return sent;
}
