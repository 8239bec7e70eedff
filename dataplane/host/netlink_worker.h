/* SPDX-License-Identifier: Apache-2.0 */
/*
 * netlink_worker.h - a thread that sends netlink requests for threads that must not block.
 *
 * rtnetlink processes a message inside send(), under one lock for all changes of all interfaces
 * (RTNL). The start of a container, or a link that goes down, may hold it for a second.
 */
#ifndef HARP_HOST_NETLINK_WORKER_H
#define HARP_HOST_NETLINK_WORKER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "host/route_cache.h"

#define NETLINK_WORKER_MESSAGES_MAX 512u

struct netlink_worker {
	bool started;
	pthread_t id;
	int fd;
	struct netlink *queries;
	pthread_mutex_t *queries_lock;
	uint32_t ifindex;
	/* Called with task_ctx once a second and after netlink_worker_run_task(). True: wakes the
	 * poller, over fd. NULL: no task. Set before the start. */
	bool (*task)(void *ctx);
	void *task_ctx;
	atomic_bool answered; /* an answer has arrived since netlink_worker_clear() */
	pthread_mutex_t lock; /* protects the following fields; not held during a request */
	pthread_cond_t wake;
	bool stop, read_requested, read_done, task_requested;
	uint64_t task_ns; /* time of the next periodic run */
	int read_rc;
	struct harp_lease_tables tables;
	unsigned head, count; /* of the ring */
	struct netlink_message ring[NETLINK_WORKER_MESSAGES_MAX];
};

/* fd: the socket for messages; their answers arrive there like events. 0 or -errno. */
int netlink_worker_start(struct netlink_worker *worker, int fd, uint32_t ifindex,
			 struct netlink *queries, pthread_mutex_t *queries_lock);
/* Returns after the current request and drops the others. Safe if never started. */
void netlink_worker_stop(struct netlink_worker *worker);
/* Never blocks. Drops the message if the ring is full; the caller repeats it. */
void netlink_worker_post(struct netlink_worker *worker, const struct netlink_message *message);
/* Requests a read of addresses and routes. */
void netlink_worker_request_tables(struct netlink_worker *worker);
/* Runs the task at once. */
void netlink_worker_run_task(struct netlink_worker *worker);
/* True: the tables are in *tables, unless *rc is an error. False: not read yet, or not
 * requested. */
bool netlink_worker_tables(struct netlink_worker *worker, struct harp_lease_tables *tables,
			   int *rc);
/* True if an answer has arrived since the last netlink_worker_clear(). */
bool netlink_worker_answered(const struct netlink_worker *worker);
/* Call before reading the answers. */
void netlink_worker_clear(struct netlink_worker *worker);

#endif
