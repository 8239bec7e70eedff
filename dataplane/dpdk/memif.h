/* SPDX-License-Identifier: Apache-2.0 */
/* memif.h - the text of a memif port. */
#ifndef HARP_DPDK_MEMIF_H
#define HARP_DPDK_MEMIF_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/why.h"

/* A UNIX socket's name: a path, or an abstract name. */
struct memif_address {
	struct sockaddr_un un;
	socklen_t len;
};

struct memif_text {
	bool is_server;
	bool is_default; /* the default address: memif_folder() creates its folder */
	uint32_t id;
	struct memif_address address;
	char rest[512]; /* device name and arguments for the driver */
};

bool memif_is(const char *device);
/* -EINVAL: an argument is unknown, or its value is not valid. */
int memif_parse(struct memif_text *out, const char *device, const struct why *why);
/* Creates the folder of the default socket, or checks that only this user can search it. */
int memif_folder(const struct why *why);

#endif
