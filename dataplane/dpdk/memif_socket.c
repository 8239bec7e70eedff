/* SPDX-License-Identifier: Apache-2.0 */
/* memif_socket.c - sockets and messages of the memif switch. */
#include "dpdk/memif_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <rte_dev.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/util.h"
#include "dpdk/eal_log.h"

#define MEMIF_BACKLOG 16
/* The driver's listener, our file of it, and two for DPDK's interrupt thread, which creates a new
 * epoll. */
#define MEMIF_HOME_FDS 4u

int memif_socket(void)
{
	return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

void memif_fd_close(int *fd)
{
	int old = *fd;

	*fd = -1; /* first, because memif_forked() closes what it finds */
	if (old >= 0) {
		shutdown(old, SHUT_RDWR);
		close(old);
	}
}

/* ---- listeners
 * --------------------------------------------------------------------------------- */

/* A killed server leaves its socket's file. A connect() of the wrong type is refused in either
 * case, and unnoticed by a running server. */
static bool memif_has_ended(const struct memif_address *at)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	bool ended;

	if (fd < 0)
		return false;
	ended = connect(fd, (const struct sockaddr *)&at->un, at->len) < 0 && errno == ECONNREFUSED;
	close(fd);
	return ended;
}

static int memif_bind(int fd, const struct memif_text *text)
{
	const struct sockaddr *address = (const struct sockaddr *)&text->address.un;
	const char *path = text->address.un.sun_path;
	struct stat file;

	if (fchmod(fd, 0600) < 0) /* the mode that bind() gives the file */
		return -errno;
	if (bind(fd, address, text->address.len) < 0) {
		if (errno != EADDRINUSE)
			return -errno;
		if (path[0] && lstat(path, &file) == 0 && !S_ISSOCK(file.st_mode))
			return -EEXIST;
		if (!path[0] || !memif_has_ended(&text->address))
			return -EADDRINUSE;
		unlink(path);
		if (bind(fd, address, text->address.len) < 0)
			return -errno;
	}
	return listen(fd, MEMIF_BACKLOG) < 0 ? -errno : 0;
}

int memif_listen(const struct memif_text *text, const struct why *why)
{
	int fd = memif_socket(), err = fd < 0 ? -errno : memif_bind(fd, text);

	if (!err)
		return fd;
	if (fd >= 0)
		close(fd);
	if (err == -EADDRINUSE)
		return why_fail(why, -EBUSY, "Address already in use: its socket has a server");
	if (err == -EEXIST)
		return why_fail(why, err,
				"its socket's path is a file of another kind; name another, or "
				"remove it");
	return why_fail(why, err, "can't make its socket: %s", strerror(-err));
}

int memif_listen_anywhere(struct memif_address *at)
{
	int fd = memif_socket(), err;

	if (fd < 0)
		return -errno;
	*at = (struct memif_address){ .un.sun_family = AF_UNIX, .len = sizeof(at->un) };
	/* Without a name the kernel chooses an abstract one. */
	if (bind(fd, (struct sockaddr *)&at->un, sizeof(sa_family_t)) == 0 &&
	    getsockname(fd, (struct sockaddr *)&at->un, &at->len) == 0 &&
	    listen(fd, MEMIF_BACKLOG) == 0)
		return fd;
	err = -errno;
	close(fd);
	return err;
}

static struct ucred memif_peer(int fd)
{
	struct ucred peer = { .pid = -1, .uid = (uid_t)-1 };
	socklen_t len = sizeof(peer);

	getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len);
	return peer;
}

bool memif_is_trusted(int fd, uid_t *uid)
{
	*uid = memif_peer(fd).uid;
	return *uid == geteuid() || *uid == 0;
}

bool memif_is_self(int fd)
{
	return memif_peer(fd).pid == getpid();
}

/* the driver's own listener */

static struct {
	char name[64];
	int fd; /* the socket's file, which has no name any more */
} home;

/* Creates a private folder for the short time in which the socket has a name. */
static int memif_home_folder(char *path, size_t len)
{
	static const char *const places[] = { "/tmp", "/dev/shm", "/run" };

	for (size_t i = 0; i < ARRAY_SIZE(places); i++) {
		snprintf(path, len, "%s/harp-memif-XXXXXX", places[i]);
		if (mkdtemp(path))
			return 0;
	}
	return -errno;
}

/* True if enough descriptors are free. */
static int memif_home_descriptors(void)
{
	int fds[MEMIF_HOME_FDS], err = 0;
	unsigned count = 0;

	while (count < MEMIF_HOME_FDS && !err) {
		fds[count] = memif_socket();
		if (fds[count] < 0)
			err = -errno;
		else
			count++;
	}
	while (count > 0)
		close(fds[--count]);
	return err;
}

/*
 * The driver of DPDK 22.11 never closes a listener, and uses it after freeing it. So there is one
 * listener, of a device that is never started and never closed. Its file is kept open and has no
 * name, so only this process can reach it.
 *
 * Without a free descriptor the driver leaves a device that cannot be removed, and the interrupt
 * thread aborts the process. So this checks first, and retries with another name.
 */
static int memif_home_make(const struct why *why)
{
	static unsigned tries;
	char folder[48], device[160], words[EAL_WORDS_BYTES];
	int err = memif_home_descriptors();

	if (err)
		return why_fail(why, err, "no descriptors for its driver's socket: %s",
				strerror(-err));
	err = memif_home_folder(folder, sizeof(folder));
	if (err)
		return why_fail(why, err, "no folder for its socket, in /tmp, /dev/shm or /run: %s",
				strerror(-err));
	snprintf(home.name, sizeof(home.name), "%s/driver", folder);
	snprintf(device, sizeof(device),
		 "net_memif_home%u,role=server,id=%u,socket=%s,socket-abstract=no", tries++,
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
	eal_log_message(words);
	return why_fail(why, -EIO, "its driver can't be made to listen: %s",
			words[0] ? words : strerror(-err));
}

int memif_home(const char **name, struct memif_address *at, const struct why *why)
{
	int err = home.name[0] ? 0 : memif_home_make(why);

	*name = home.name;
	*at = (struct memif_address){ .un.sun_family = AF_UNIX };
	at->len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1) +
		  (socklen_t)snprintf(at->un.sun_path, sizeof(at->un.sun_path), "/proc/self/fd/%d",
				      home.fd);
	return err;
}

/* ---- messages
 * ---------------------------------------------------------------------------------- */

uint16_t memif_u16(const struct memif_message *message, size_t at)
{
	uint16_t value;

	memcpy(&value, message->bytes + at, sizeof(value));
	return value;
}

uint32_t memif_u32(const struct memif_message *message, size_t at)
{
	uint32_t value;

	memcpy(&value, message->bytes + at, sizeof(value));
	return value;
}

union memif_control {
	char bytes[CMSG_SPACE(sizeof(int))];
	struct cmsghdr header;
};

int memif_receive(int fd, struct memif_message *message)
{
	struct iovec bytes = { .iov_base = message->bytes, .iov_len = sizeof(message->bytes) };
	union memif_control control;
	struct msghdr header = { .msg_iov = &bytes,
				 .msg_iovlen = 1,
				 .msg_control = control.bytes,
				 /* CMSG_SPACE would allow the kernel to install a second
				  * descriptor */
				 .msg_controllen = CMSG_LEN(sizeof(int)) };
	ssize_t len = recvmsg(fd, &header, MSG_CMSG_CLOEXEC);
	const struct cmsghdr *first;

	if (len < 0)
		return errno == EAGAIN || errno == EINTR ? -1 : 0;
	first = CMSG_FIRSTHDR(&header);
	message->fd = -1;
	if (first && first->cmsg_level == SOL_SOCKET && first->cmsg_type == SCM_RIGHTS)
		memcpy(&message->fd, CMSG_DATA(first), sizeof(message->fd));
	if (len == sizeof(message->bytes) && !(header.msg_flags & MSG_CTRUNC))
		return 1;
	if (message->fd >= 0)
		close(message->fd);
	return 0;
}

bool memif_send(int fd, struct memif_message *message)
{
	struct iovec bytes = { .iov_base = message->bytes, .iov_len = sizeof(message->bytes) };
	union memif_control control = { .header = { .cmsg_len = CMSG_LEN(sizeof(int)),
						    .cmsg_level = SOL_SOCKET,
						    .cmsg_type = SCM_RIGHTS } };
	struct msghdr header = { .msg_iov = &bytes, .msg_iovlen = 1 };
	bool sent;

	if (message->fd >= 0) {
		memcpy(CMSG_DATA(&control.header), &message->fd, sizeof(message->fd));
		header.msg_control = control.bytes;
		header.msg_controllen = sizeof(control);
	}
	sent = sendmsg(fd, &header, MSG_NOSIGNAL) == (ssize_t)sizeof(message->bytes);
	if (message->fd >= 0)
		close(message->fd);
	message->fd = -1;
	return sent;
}
