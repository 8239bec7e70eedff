/* SPDX-License-Identifier: Apache-2.0 */
/* host_id.h - the id of this host in a handle. */
#ifndef HARP_PLUGIN_HOST_ID_H
#define HARP_PLUGIN_HOST_ID_H

#include "wire/handle.h"

#define HOST_ID_BYTES HANDLE_HOST_ID_BYTES

/* Writes the id of this host and a network namespace (its inode number; 0: this process's). It is
 * equal for two ends whose packets to each other never reach a NIC. 0 or -errno. */
int host_id_read(uint64_t netns, uint8_t out[HOST_ID_BYTES]);

#endif
