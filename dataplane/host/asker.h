/* SPDX-License-Identifier: Apache-2.0 */
/*
 * asker.h - a thread that puts questions to the kernel, for those who may not wait for it.
 *
 * rtnetlink does what a message asks within its send(), behind the one lock that every change of every interface
 * of the machine takes: a container that starts, a link that goes down may hold it for a second.
 */
#ifndef HARP_HOST_ASKER_H
#define HARP_HOST_ASKER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

#include "host/mirror.h"

#define ASKER_MESSAGES_MAX 512u

struct asker {
	bool started;
	pthread_t id;
	int fd;
	struct netlink *questions;
	pthread_mutex_t *questions_lock;
	uint32_t ifindex;
	/* Called once a second and after asker_look(), with look_ctx; true: who polls is to be woken, over fd. NULL:
	 * nothing is looked after. Set before the start. */
	bool (*look)(void *ctx);
	void *look_ctx;
	atomic_bool answered; /* since asker_heard(): there is something to read */
	pthread_mutex_t lock; /* of all that follows; never held while the kernel is asked */
	pthread_cond_t wake;
	bool stop, read_wanted, read_done, look_wanted;
	struct timespec look_at;
	int read_rc;
	struct harp_lease_tables tables;
	unsigned head, count; /* of the ring */
	struct netlink_message ring[ASKER_MESSAGES_MAX];
};

/* fd: where messages are sent to, and their answers come as if they were events. 0 or -errno. */
int asker_start(struct asker *asker, int fd, uint32_t ifindex, struct netlink *questions,
		pthread_mutex_t *questions_lock);
/* Returns when the question under way has ended; the others are forgotten. Safe when it never started. */
void asker_stop(struct asker *asker);
/* Never waits. Of more than fit nothing is asked: who wants to know asks again. */
void asker_post(struct asker *asker, const struct netlink_message *message);
/* Addresses and routes, as they are from now on or later. */
void asker_read(struct asker *asker);
/* Have it looked at once. */
void asker_look(struct asker *asker);
/* True: they are in *tables, unless *rc is an error; false: not yet, or nobody wanted them. */
bool asker_tables(struct asker *asker, struct harp_lease_tables *tables, int *rc);
/* True when an answer came since the last asker_heard(). */
bool asker_answered(const struct asker *asker);
/* Before the answers are read. */
void asker_heard(struct asker *asker);

#endif
