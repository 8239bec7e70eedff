/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sock.h - between the files of the reference plugin: sock_plugin.c (tables, init), sock_open.c (connections),
 * sock_move.c (requests), sock_tasks.c (helper threads).
 */
#ifndef HARP_DRIVER_SOCK_H
#define HARP_DRIVER_SOCK_H

#include <net/if.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "../../plugin/abi/nccl_abi.h"

#define SOCK_MAGIC 0x736f636bu
#define SOCK_INLINE 128u
#define SOCK_TASK_BYTES 65536u /* a task is not smaller, unless it is the last */
#define SOCK_REQUESTS 32u
#define SOCK_SOCKETS_MAX 64u
#define SOCK_THREADS_MAX 16u

struct sock_comm;

/* A part of a message on one socket, moved by that socket's thread. */
struct sock_task {
	char *data;
	uint32_t size, offset; /* the thread's */
	int fd;
	atomic_int
		state; /* enum sock_task_state: release by who wrote the rest, acquire by who reads */
};
enum sock_task_state { TASK_FREE, TASK_BEGUN, TASK_DONE, TASK_FAILED };

struct sock_request {
	struct sock_comm *comm;
	bool used;
	uint64_t number;
	char *data;
	uint32_t size; /* receive: posted, then real */
	uint32_t header;
	uint32_t moved; /* bytes of header and payload that went over the control socket */
	uint32_t task_count;
	struct sock_task *tasks[SOCK_SOCKETS_MAX];
};

struct sock_worker {
	struct sock_comm *comm;
	pthread_t id;
	bool started;
	struct sock_task *queue; /* a ring of comm->queue_len */
	unsigned next;           /* under lock */
	bool stop;               /* under lock */
	pthread_mutex_t lock;
	pthread_cond_t wake;
};

/* sockets + 1 TCP connections; without sockets everything goes over the control socket. */
struct sock_comm {
	int control;
	int fds[SOCK_SOCKETS_MAX];
	unsigned sockets, threads, next_socket, queue_len;
	bool sends;
	enum nccl_result failed;
	uint64_t posted, moved_messages; /* requests are moved in order */
	struct sock_request requests[SOCK_REQUESTS];
	struct sock_worker workers[SOCK_THREADS_MAX];
};

/* sock_plugin.c */
extern nccl_logger sock_log;
extern char sock_ifname[IF_NAMESIZE];
extern struct sockaddr_in sock_addr;
extern unsigned sock_threads, sock_sockets;
bool sock_faulty(const char *kind);
bool sock_faulty_at(const char *kind, uint64_t number);
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
enum nccl_result sock_fail(struct sock_comm *comm, int error);

/* sock_tasks.c: cuts the payload from `from` on; 1 when all of it has moved, 0, or -1 (comm->failed). */
bool sock_tasks_begin(struct sock_request *request, uint32_t from);
int sock_tasks_look(struct sock_request *request);
void sock_tasks_stop(struct sock_comm *comm);

#endif
