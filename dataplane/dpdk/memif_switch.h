/* SPDX-License-Identifier: Apache-2.0 */
/* memif_switch.h - relays the handshake between memif's driver and its peers. */
#ifndef HARP_DPDK_MEMIF_SWITCH_H
#define HARP_DPDK_MEMIF_SWITCH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/why.h"

#define MEMIF_TEXT_BYTES 1024

struct memif; /* of one port. NULL below has no effect */

/* Creates the port's socket, and the text for DPDK to probe. In DPDK's interrupt thread. -EBUSY:
 * the socket has a server; other -errno. */
int memif_open(struct memif **out, const char *device, char text[MEMIF_TEXT_BYTES],
	       const struct why *why);
/* The maximum packet that the port sends, and its queues: clients that differ are refused. */
void memif_expect(struct memif *memif, uint32_t packet_bytes, uint32_t queues);
/* A client that has lost its server; the driver does not reconnect until it is restarted. */
bool memif_is_lost(struct memif *memif);
/* Ends the port's connection and waits until the driver has closed it; accepts no other before
 * memif_release(). Not in DPDK's interrupt thread. */
void memif_hold(struct memif *memif);
void memif_release(struct memif *memif);
/* The port has been removed. */
void memif_close(struct memif *memif);
/* In a forked child: closes its copies, so that peers see the parent close. Async-signal-safe. */
void memif_forked(void);

#endif
