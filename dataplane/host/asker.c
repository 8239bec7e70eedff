/* SPDX-License-Identifier: Apache-2.0 */
/* asker.c - see asker.h. */
#include "host/asker.h"

#include <errno.h>
#include <sys/socket.h>

#include "base/thread.h"

#define ASKER_LOOK_S 1

/*
 * Theory of operation
 *
 * The poster leaves a message in a ring and wakes the thread, which sends it to the monitor's own socket: the
 * answer, which the kernel has put there when send() returns, is read by the poster with the events. So nothing
 * but bytes changes threads, and who polls the stack alone touches it. Errors come the same way and nobody wants
 * them: a neighbour that is not known will be heard of.
 *
 * Tables are dumps: answers of many messages that belong together. They are read over the questions' socket, under
 * its lock, into a copy; whoever polls applies it. Asked for while they are being read, they are read again.
 *
 * What no event tells of is looked after once a second (look), when there is nothing to ask.
 */

/* Who sleeps on fd wakes by the answer to a question. */
static void asker_tell(const struct asker *asker)
{
	struct netlink_message message;
	struct ifinfomsg *body;

	body = netlink_begin(&message, RTM_GETLINK, 0, sizeof(*body));
	body->ifi_index = (int)asker->ifindex;
	(void)!send(asker->fd, &message, message.head.nlmsg_len, MSG_NOSIGNAL);
}

static void asker_look_now(struct asker *asker)
{
	if (asker->look(asker->look_ctx))
		asker_tell(asker);
}

static void asker_read_now(struct asker *asker)
{
	struct harp_lease_tables tables;
	int rc;

	pthread_mutex_lock(asker->questions_lock);
	rc = mirror_read(asker->ifindex, asker->questions, &tables);
	pthread_mutex_unlock(asker->questions_lock);
	pthread_mutex_lock(&asker->lock);
	asker->tables = tables;
	asker->read_rc = rc;
	asker->read_done = true;
	pthread_mutex_unlock(&asker->lock);
	asker_tell(asker);
}

static bool asker_look_due(const struct asker *asker)
{
	struct timespec now;

	if (!asker->look || asker->look_wanted)
		return asker->look;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec > asker->look_at.tv_sec ||
	       (now.tv_sec == asker->look_at.tv_sec && now.tv_nsec >= asker->look_at.tv_nsec);
}

static void asker_look_later(struct asker *asker)
{
	clock_gettime(CLOCK_MONOTONIC, &asker->look_at);
	asker->look_at.tv_sec += ASKER_LOOK_S;
	asker->look_wanted = false;
}

static void asker_wait(struct asker *asker)
{
	if (asker->look)
		pthread_cond_timedwait(&asker->wake, &asker->lock, &asker->look_at);
	else
		pthread_cond_wait(&asker->wake, &asker->lock);
}

static void *asker_main(void *arg)
{
	struct asker *asker = arg;

	pthread_mutex_lock(&asker->lock);
	while (!asker->stop) {
		struct netlink_message message;
		bool send_it = asker->count > 0, read_it = !send_it && asker->read_wanted;
		bool look_it = !send_it && !read_it && asker_look_due(asker);

		if (!send_it && !read_it && !look_it) {
			asker_wait(asker);
			continue;
		}
		if (send_it) {
			message = asker->ring[asker->head];
			asker->head = (asker->head + 1) % ASKER_MESSAGES_MAX;
			asker->count--;
		} else if (read_it) {
			asker->read_wanted = false;
		} else {
			asker_look_later(asker);
		}
		pthread_mutex_unlock(&asker->lock);
		if (send_it)
			(void)!send(asker->fd, &message, message.head.nlmsg_len, MSG_NOSIGNAL);
		else if (read_it)
			asker_read_now(asker);
		else
			asker_look_now(asker);
		atomic_store_explicit(&asker->answered, true, memory_order_release);
		pthread_mutex_lock(&asker->lock);
	}
	pthread_mutex_unlock(&asker->lock);
	return NULL;
}

int asker_start(struct asker *asker, int fd, uint32_t ifindex, struct netlink *questions,
		pthread_mutex_t *questions_lock)
{
	pthread_condattr_t attributes;
	int rc;

	asker->fd = fd;
	asker->ifindex = ifindex;
	asker->questions = questions;
	asker->questions_lock = questions_lock;
	atomic_init(&asker->answered, false);
	pthread_mutex_init(&asker->lock, NULL);
	asker_look_later(asker);
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&asker->wake, &attributes);
	pthread_condattr_destroy(&attributes);
	rc = thread_start(&asker->id, asker_main, asker, "harp-asker");
	asker->started = !rc;
	return rc;
}

void asker_stop(struct asker *asker)
{
	if (!asker->started)
		return;
	pthread_mutex_lock(&asker->lock);
	asker->stop = true;
	pthread_cond_signal(&asker->wake);
	pthread_mutex_unlock(&asker->lock);
	pthread_join(asker->id, NULL);
	asker->started = false;
	pthread_cond_destroy(&asker->wake);
	pthread_mutex_destroy(&asker->lock);
}

void asker_post(struct asker *asker, const struct netlink_message *message)
{
	pthread_mutex_lock(&asker->lock);
	if (asker->count < ASKER_MESSAGES_MAX) {
		asker->ring[(asker->head + asker->count) % ASKER_MESSAGES_MAX] = *message;
		asker->count++;
	}
	pthread_cond_signal(&asker->wake);
	pthread_mutex_unlock(&asker->lock);
}

void asker_read(struct asker *asker)
{
	pthread_mutex_lock(&asker->lock);
	asker->read_wanted = true;
	pthread_cond_signal(&asker->wake);
	pthread_mutex_unlock(&asker->lock);
}

void asker_look(struct asker *asker)
{
	pthread_mutex_lock(&asker->lock);
	asker->look_wanted = true;
	pthread_cond_signal(&asker->wake);
	pthread_mutex_unlock(&asker->lock);
}

bool asker_tables(struct asker *asker, struct harp_lease_tables *tables, int *rc)
{
	bool done;

	pthread_mutex_lock(&asker->lock);
	done = asker->read_done;
	if (done) {
		*tables = asker->tables;
		*rc = asker->read_rc;
	}
	asker->read_done = false;
	pthread_mutex_unlock(&asker->lock);
	return done;
}

bool asker_answered(const struct asker *asker)
{
	return atomic_load_explicit(&asker->answered, memory_order_relaxed);
}

void asker_heard(struct asker *asker)
{
	/* Acquire: what was answered before is there to be read. */
	(void)atomic_exchange_explicit(&asker->answered, false, memory_order_acq_rel);
}
