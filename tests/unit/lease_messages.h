/* SPDX-License-Identifier: Apache-2.0 */
/* lease_messages.h - harpd's side of the lease protocol, for tests of the job's side. */
#ifndef HARP_TESTS_LEASE_MESSAGES_H
#define HARP_TESTS_LEASE_MESSAGES_H

#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "check.h"
#include "harp_lease.h"

static inline struct harp_lease_header lease_header(uint16_t type, size_t bytes, uint32_t serial)
{
	return (struct harp_lease_header){
		.magic = HARP_LEASE_MAGIC,
		.version = HARP_LEASE_VERSION,
		.type = type,
		.size = (uint32_t)bytes,
		.serial = serial,
	};
}

static inline int lease_listen(const char *path, int type)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);

	strcpy(address.sun_path, path);
	CHECK_EQ(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	CHECK_EQ(listen(fd, 4), 0);
	return fd;
}

#endif
