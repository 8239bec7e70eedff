/* SPDX-License-Identifier: Apache-2.0 */
/* pass_fds.h - a message that carries one descriptor several times. */
#ifndef HARP_TESTS_PASS_FDS_H
#define HARP_TESTS_PASS_FDS_H

#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define PASS_FDS_MAX 80u /* more than a job has room for */

/* What sendmsg() says. */
static inline ssize_t pass_fds(int to, const void *bytes, size_t len, int passed, unsigned times)
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
			memcpy(CMSG_DATA(rights) + i * sizeof(int), &passed, sizeof(int));
	}
	return sendmsg(to, &message, MSG_NOSIGNAL);
}

#endif
