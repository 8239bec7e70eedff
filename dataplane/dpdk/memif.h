/* SPDX-License-Identifier: Apache-2.0 */
/* memif.h - one end of a memif: its arguments, and its socket's file. */
#ifndef HARP_DPDK_MEMIF_H
#define HARP_DPDK_MEMIF_H

#include <stdbool.h>
#include <sys/un.h>

#include "base/why.h"

#define MEMIF_TEXT_BYTES 1024

struct memif {
	bool is_server;
	struct sockaddr_un address;
	char text[MEMIF_TEXT_BYTES]; /* the device and its arguments, for DPDK to probe */
};

bool memif_is(const char *device);
/* -EINVAL: an argument is unknown, or its value is not valid. */
int memif_parse(struct memif *out, const char *device, const struct why *why);
/* Checks that only this user can reach the socket, and removes a stale one. Call before probing the
 * device. -EPERM; -EBUSY: it has a server; other -errno. */
int memif_prepare(const struct memif *memif, const struct why *why);
/* True if a server listens. A client cannot be started without one. */
bool memif_has_server(const struct memif *memif);
/* Call before closing a server: no client can connect afterwards. */
void memif_retire(const struct memif *memif);

#endif
