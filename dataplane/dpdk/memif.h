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
	bool is_default; /* the address is the default one: memif_folder() makes its folder */
	uint32_t id;
	struct memif_address address;
	char rest[512]; /* the device's name, and the arguments that only the driver reads */
};

bool memif_is(const char *device);
/* -EINVAL: an argument is unknown, or its value is not valid. */
int memif_parse(struct memif_text *out, const char *device, const struct why *why);
/* Makes the folder of the default socket, or checks that only this user can search it. */
int memif_folder(const struct why *why);

#endif
