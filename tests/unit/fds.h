/* SPDX-License-Identifier: Apache-2.0 */
/* fds.h - counts open descriptors, passes descriptors over a socket, waits for a child. */
#ifndef HARP_TESTS_FDS_H
#define HARP_TESTS_FDS_H

#include <dirent.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>

static inline unsigned fds_open(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned count = 0;

	while (dir && readdir(dir))
		count++;
	if (dir)
		closedir(dir);
	return count - 3; /* ".", ".." and the directory itself */
}

/* Waits for a child. *status: its exit status, or 1000 + the signal that killed it. */
static inline void waitpid_of(pid_t child, int *status)
{
	int wait_status = 0;

	if (waitpid(child, &wait_status, 0) == child)
		*status = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status)
						 : 1000 + WTERMSIG(wait_status);
}

#define PASS_FDS_MAX 80u /* more than a job accepts */

/* Sends a message with `times` copies of a descriptor. */
static inline ssize_t pass_fds(int to, const void *bytes, size_t len, int fd, unsigned times)
{
	char control[CMSG_SPACE(PASS_FDS_MAX * sizeof(int))] = { 0 };
	struct iovec piece = { .iov_base = (void *)(uintptr_t)bytes, .iov_len = len };
	struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1 };
	struct cmsghdr *rights;

	if (times) {
		message.msg_control = control;
		message.msg_controllen = CMSG_SPACE(times * sizeof(int));
		rights = CMSG_FIRSTHDR(&message);
		rights->cmsg_level = SOL_SOCKET;
		rights->cmsg_type = SCM_RIGHTS;
		rights->cmsg_len = CMSG_LEN(times * sizeof(int));
		for (unsigned i = 0; i < times; i++)
			memcpy(CMSG_DATA(rights) + i * sizeof(int), &fd, sizeof(int));
	}
	return sendmsg(to, &message, MSG_NOSIGNAL);
}

#endif
