/* SPDX-License-Identifier: Apache-2.0 */
/* daemon_wire.h - messages to and from harpd, each within a bounded time; daemon.c interprets
 * them. */
#ifndef HARP_HOST_DAEMON_WIRE_H
#define HARP_HOST_DAEMON_WIRE_H

#include <stdbool.h>

#include "base/why.h"
#include "harp_lease.h"

/* More than any message has; the kernel drops excess descriptors. */
#define DAEMON_WIRE_FDS_MAX 72u

struct daemon_wire {
	int fd;
	bool ended; /* no more requests are possible */
	/* The last received message and its descriptors. */
	size_t answer_bytes;
	unsigned fd_count;
	int fds[DAEMON_WIRE_FDS_MAX];
	_Alignas(uint64_t) uint8_t answer[HARP_LEASE_MESSAGE_MAX];
};

/* Connects to harpd at path. -EINVAL no path; -ENOENT, -ECONNREFUSED no listener; -EACCES;
 * -ETIMEDOUT the listener does not accept; -EPROTO not harpd; -EPERM the listener's user is not
 * trusted (base/trust.h): one line in why. */
int daemon_wire_connect(struct daemon_wire *wire, const char *path, unsigned wait_ms,
			const struct why *why);
/*
 * Sends a message and receives one. -ETIMEDOUT; -ECONNRESET harpd closed; -EMSGSIZE the answer is
 * too long; -EMFILE this process has no free descriptors; other -errno. answer and fds hold the
 * received message, on failure, too: the caller closes fds.
 */
int daemon_wire_exchange(struct daemon_wire *wire, const void *message, size_t bytes,
			 unsigned wait_ms);
/* The same without waiting. -EAGAIN: the socket's buffer is full, or no message has arrived. */
int daemon_wire_send(struct daemon_wire *wire, const void *message, size_t bytes);
int daemon_wire_receive(struct daemon_wire *wire);
void daemon_wire_drop_fds(struct daemon_wire *wire);
void daemon_wire_close(struct daemon_wire *wire);

#endif
