/* SPDX-License-Identifier: Apache-2.0 */
/* relay.h - stands between the memif driver's control sockets and its peers. */
#ifndef HARP_DPDK_RELAY_H
#define HARP_DPDK_RELAY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/why.h"

#define RELAY_TEXT_BYTES 1024

struct relay; /* of one port */

/* Makes the port's socket, or one that calls its server, and writes the text that DPDK is to probe instead. In DPDK's
 * interrupt thread. -EBUSY: the socket has a server; other -errno. */
int relay_open(struct relay **out, const char *device, char text[RELAY_TEXT_BYTES],
	       const struct why *why);
/* The longest packet that the port sends, and its queues: a client whose buffers are shorter, or that has fewer, is refused. */
void relay_wants(struct relay *relay, uint32_t packet_bytes, uint32_t queues);
/* A client whose driver has lost its server, and calls none before it is started anew: nothing is under way. */
bool relay_is_lost(struct relay *relay);
/* Ends the port's connection, and returns when the driver has taken it down; there is no other one before
 * relay_release(). Not in DPDK's interrupt thread, which does that. */
void relay_hold(struct relay *relay);
void relay_release(struct relay *relay);
/* Its port is gone. Here and above, NULL: nothing. */
void relay_close(struct relay *relay);

#endif
