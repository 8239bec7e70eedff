/* SPDX-License-Identifier: Apache-2.0 */
/* relay_handshake.h - what a memif's peer may say, and when. */
#ifndef HARP_DPDK_RELAY_HANDSHAKE_H
#define HARP_DPDK_RELAY_HANDSHAKE_H

#include <stdbool.h>
#include <stdint.h>

#include "dpdk/relay_socket.h"

#define HANDSHAKE_REGIONS_MAX 256u /* the driver has room for no more */

/* What a peer has said so far: nothing. */
#define HANDSHAKE_BEGIN                                                                            \
	{                                                                                          \
		.memory = -1                                                                       \
	}
struct handshake {
	bool greeted, connected; /* INIT and CONNECT, or a server's HELLO and CONNECTED */
	uint16_t regions, rings[2];
	int memory; /* region 0's descriptor, our own, until CONNECT; -1: none */
	uint64_t region_bytes[HANDSHAKE_REGIONS_MAX];
};

/* What a server expects of a client. */
struct handshake_wish {
	uint32_t packet_bytes; /* of the longest packet that it has to have room for */
	uint32_t queues;       /* rings for each direction, at least */
};

/* May the client, or the server, say that now? NULL: yes; else why not, and the driver is not to hear of it. */
const char *handshake_client(struct handshake *said, const struct relay_message *message,
			     const struct handshake_wish *wish);
const char *handshake_server(struct handshake *said, const struct relay_message *message);
void handshake_end(struct handshake *said);

#endif
