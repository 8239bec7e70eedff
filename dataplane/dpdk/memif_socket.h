/* SPDX-License-Identifier: Apache-2.0 */
/* memif_socket.h - sockets and messages of the memif switch. All are non-blocking. */
#ifndef HARP_DPDK_MEMIF_SOCKET_H
#define HARP_DPDK_MEMIF_SOCKET_H

#include "dpdk/memif.h"

/* Types of messages, which libmemif defines. ADD_REGION and ADD_RING carry a descriptor. */
#define MEMIF_HELLO 2
#define MEMIF_INIT 3
#define MEMIF_ADD_REGION 4
#define MEMIF_ADD_RING 5
#define MEMIF_CONNECT 6
#define MEMIF_DISCONNECT 8

struct memif_message {
	uint8_t bytes[128];
	int fd; /* -1: none */
};

int memif_socket(void);
/* Closes *fd and sets it to -1. The other end notices even if a forked child has a copy. */
void memif_fd_close(int *fd);
/* A server's listener. Replaces the socket of a server that has exited. -EBUSY: its server runs. */
int memif_listen(const struct memif_text *text, const struct why *why);
/* A listener with a unique name. */
int memif_listen_anywhere(struct memif_address *at);
/* True if the other end runs as this user, or as root. *uid: its user. */
bool memif_is_trusted(int fd, uid_t *uid);
/* True if the other end is this process. */
bool memif_is_self(int fd);
/* The socket on which the driver accepts connections for all servers of this process: its name
 * for the driver, and its address. Created by the first call, never closed. In DPDK's interrupt
 * thread. */
int memif_home(const char **name, struct memif_address *at, const struct why *why);

uint16_t memif_u16(const struct memif_message *message, size_t at);
uint32_t memif_u32(const struct memif_message *message, size_t at);
/* 1: received. 0: the other end has closed, or sent an invalid message. -1: no message yet. */
int memif_receive(int fd, struct memif_message *message);
/* Sends the message and closes its descriptor. False: the other end has closed, or does not
 * read. */
bool memif_send(int fd, struct memif_message *message);

#endif
