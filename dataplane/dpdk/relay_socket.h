/* SPDX-License-Identifier: Apache-2.0 */
/* relay_socket.h - the sockets between memif's driver, the relay, and peers. None of them blocks. */
#ifndef HARP_DPDK_RELAY_SOCKET_H
#define HARP_DPDK_RELAY_SOCKET_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "dpdk/memif.h"

#define RELAY_FDS_MAX 2 /* that a message has room for: memif's have one at most */

/* What memif's ends say. Those of memory and of a ring, for its events, have a descriptor. */
#define MEMIF_ACK 1
#define MEMIF_HELLO 2
#define MEMIF_INIT 3
#define MEMIF_ADD_REGION 4
#define MEMIF_ADD_RING 5
#define MEMIF_CONNECT 6
#define MEMIF_CONNECTED 7
#define MEMIF_DISCONNECT 8

/* Where a listener listens, and where who called it is put through to. */
struct relay_address {
	struct sockaddr_un un;
	socklen_t len;
};

/* A message of memif's, with the descriptors that came with it. */
struct relay_message {
	uint8_t bytes[128];
	size_t len;
	struct {
		_Alignas(struct cmsghdr) char bytes[CMSG_SPACE(RELAY_FDS_MAX * sizeof(int))];
	} control;
	size_t control_len;
};

int relay_socket(void);
/* A descriptor that listens at a server's address, in place of a server that died. -EADDRINUSE: one lives.
 * -EEXIST: a file that is no socket. */
int relay_listen(const struct memif_text *text);
/* One that listens where nobody else does. */
int relay_listen_anywhere(struct relay_address *at);
/* Who called is this process. */
bool relay_is_us(int fd);

/* The socket on which the driver accepts for all servers of this process: its name for the driver, and where it
 * answers. Made by the first call, and never closed. */
int relay_home(const char **name, struct relay_address *to, const struct why *why);

/* The first thing in each. */
uint16_t relay_message_type(const struct relay_message *message);
/* The descriptor that came with it; -1: none. It stays the message's. */
int relay_message_fd(const struct relay_message *message);
/* One that is not handed on: its descriptors are closed. */
void relay_message_drop(struct relay_message *message);
/* 1; 0: the other end has gone, or says what no memif says. -1: there is none yet. */
int relay_receive(int fd, struct relay_message *message);
/* False: the other end has gone, or reads nothing. Its descriptors are closed here in any case. */
bool relay_send(int fd, struct relay_message *message);

#endif
