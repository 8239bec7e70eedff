/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sock.h - declarations shared by the files of the reference plugin: sock_plugin.c (table, init),
 * sock_open.c (connections), sock_move.c (requests).
 */
#ifndef HARP_DRIVER_SOCK_H
#define HARP_DRIVER_SOCK_H

#include <net/if.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>

#include "../../plugin/abi/nccl_abi.h"

#define SOCK_MAGIC 0x736f636bu
#define SOCK_INLINE 128u
#define SOCK_REQUESTS 32u

struct sock_comm;

struct sock_request {
	struct sock_comm *comm;
	bool used;
	uint64_t number;
	char *data;
	uint32_t size; /* receive: the posted size until the header arrives */
	uint32_t header;
	uint32_t moved; /* bytes of header and payload */
};

struct sock_comm {
	int fd;
	bool sends;
	enum nccl_result failed;
	uint64_t posted, moved_messages; /* requests complete in order */
	struct sock_request requests[SOCK_REQUESTS];
};

/* sock_plugin.c */
extern nccl_logger sock_log;
extern char sock_ifname[IF_NAMESIZE];
extern struct sockaddr_in sock_addr;
bool sock_has_fault(const char *kind);
bool sock_has_fault_at(const char *kind, uint64_t number);
#define SOCK_WARN(...) sock_log(NCCL_LOG_WARN, NCCL_LOG_NET, __func__, __LINE__, __VA_ARGS__)
#define SOCK_INFO(...) sock_log(NCCL_LOG_INFO, NCCL_LOG_NET, __func__, __LINE__, __VA_ARGS__)

/* sock_open.c */
enum nccl_result sock_listen(void *handle, void **listen_comm);
enum nccl_result sock_connect(void *handle, void **send_comm);
enum nccl_result sock_accept(void *listen_comm, void **recv_comm);
enum nccl_result sock_close(void *comm);
enum nccl_result sock_close_listen(void *listen_comm);

/* sock_move.c */
enum nccl_result sock_post(struct sock_comm *comm, void *data, size_t size, void **request);
enum nccl_result sock_test(void *request, int *done, int *sizes);

#endif
