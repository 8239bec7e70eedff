/* SPDX-License-Identifier: Apache-2.0 */
/* memif.h - the text of a memif port. */
#ifndef HARP_DPDK_MEMIF_H
#define HARP_DPDK_MEMIF_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#include "base/why.h"

struct memif_text {
	bool serves;
	uint32_t id;
	uid_t uid; /* the socket file's owner; -1: who makes it */
	gid_t gid;
	struct sockaddr_un address;
	socklen_t address_len;
	char rest[512]; /* the device's name, and the arguments that are the driver's alone */
};

bool memif_is(const char *device);
/* -EINVAL: an argument is unknown, or no good. */
int memif_parse(struct memif_text *out, const char *device, const struct why *why);

#endif
