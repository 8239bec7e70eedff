/* SPDX-License-Identifier: Apache-2.0 */
/* netlink_worker.c - see netlink_worker.h. */
#include "host/netlink_worker.h"

#include <sys/socket.h>

#include "base/clock.h"
#include "base/thread.h"

#define NETLINK_WORKER_POLL_NS UINT64_C(1000000000)

/*
 * Theory of operation
 *
 * The caller leaves a message in a ring and wakes the thread, which sends it on the monitor's
 * socket. The answer is in that socket when send() returns, and the caller reads it together with
 * events. So threads exchange only bytes, and only the poller touches the stack. Errors arrive in
 * the same way and are ignored: a neighbor that is unknown now causes an event later.
 *
 * Tables are dumps: answers of many messages. The thread reads them over the request socket, under
 * its lock, into a copy, which the poller applies. A request during a read causes another read.
 *
 * When there is nothing to send, the thread runs the task once a second, which checks for changes
 * that cause no event.
 */

/* Wakes a thread that waits on fd, by a request whose answer arrives there. */
static void netlink_worker_notify(const struct netlink_worker *worker)
{
	struct netlink_message message;
	struct ifinfomsg *body;

	body = netlink_begin(&message, RTM_GETLINK, 0, sizeof(*body));
	body->ifi_index = (int)worker->ifindex;
	(void)!send(worker->fd, &message, message.head.nlmsg_len, MSG_NOSIGNAL);
}

static void netlink_worker_read_tables(struct netlink_worker *worker)
{
	struct harp_lease_tables tables;
	int rc;

	pthread_mutex_lock(worker->queries_lock);
	rc = route_cache_read(worker->ifindex, worker->queries, &tables);
	pthread_mutex_unlock(worker->queries_lock);
	pthread_mutex_lock(&worker->lock);
	worker->tables = tables;
	worker->read_rc = rc;
	worker->read_done = true;
	pthread_mutex_unlock(&worker->lock);
	netlink_worker_notify(worker);
}

static bool netlink_worker_task_due(const struct netlink_worker *worker)
{
	return worker->task && (worker->task_requested || clock_ns() >= worker->task_ns);
}

static void netlink_worker_task_later(struct netlink_worker *worker)
{
	worker->task_ns = clock_ns() + NETLINK_WORKER_POLL_NS;
	worker->task_requested = false;
}

static void netlink_worker_wait(struct netlink_worker *worker)
{
	const struct timespec at = clock_timespec(worker->task_ns);

	if (worker->task)
		pthread_cond_timedwait(&worker->wake, &worker->lock, &at);
	else
		pthread_cond_wait(&worker->wake, &worker->lock);
}

static void *netlink_worker_main(void *arg)
{
	struct netlink_worker *worker = arg;

	pthread_mutex_lock(&worker->lock);
	while (!worker->stop) {
		struct netlink_message message;
		bool send_it = worker->count > 0, read_it = !send_it && worker->read_requested;
		bool poll_it = !send_it && !read_it && netlink_worker_task_due(worker);

		if (!send_it && !read_it && !poll_it) {
			netlink_worker_wait(worker);
			continue;
		}
		if (send_it) {
			message = worker->ring[worker->head];
			worker->head = (worker->head + 1) % NETLINK_WORKER_MESSAGES_MAX;
			worker->count--;
		} else if (read_it) {
			worker->read_requested = false;
		} else {
			netlink_worker_task_later(worker);
		}
		pthread_mutex_unlock(&worker->lock);
		if (send_it)
			(void)!send(worker->fd, &message, message.head.nlmsg_len, MSG_NOSIGNAL);
		else if (read_it)
			netlink_worker_read_tables(worker);
		else if (worker->task(worker->task_ctx))
			netlink_worker_notify(worker);
		atomic_store_explicit(&worker->answered, true, memory_order_release);
		pthread_mutex_lock(&worker->lock);
	}
	pthread_mutex_unlock(&worker->lock);
	return NULL;
}

int netlink_worker_start(struct netlink_worker *worker, int fd, uint32_t ifindex,
			 struct netlink *queries, pthread_mutex_t *queries_lock)
{
	int rc;

	worker->fd = fd;
	worker->ifindex = ifindex;
	worker->queries = queries;
	worker->queries_lock = queries_lock;
	atomic_init(&worker->answered, false);
	pthread_mutex_init(&worker->lock, NULL);
	netlink_worker_task_later(worker);
	thread_cond_init(&worker->wake);
	rc = thread_start(&worker->id, netlink_worker_main, worker, "harp-netlink");
	worker->started = !rc;
	return rc;
}

void netlink_worker_stop(struct netlink_worker *worker)
{
	if (!worker->started)
		return;
	pthread_mutex_lock(&worker->lock);
	worker->stop = true;
	pthread_cond_signal(&worker->wake);
	pthread_mutex_unlock(&worker->lock);
	pthread_join(worker->id, NULL);
	worker->started = false;
	pthread_cond_destroy(&worker->wake);
	pthread_mutex_destroy(&worker->lock);
}

void netlink_worker_post(struct netlink_worker *worker, const struct netlink_message *message)
{
	pthread_mutex_lock(&worker->lock);
	if (worker->count < NETLINK_WORKER_MESSAGES_MAX) {
		worker->ring[(worker->head + worker->count) % NETLINK_WORKER_MESSAGES_MAX] =
			*message;
		worker->count++;
	}
	pthread_cond_signal(&worker->wake);
	pthread_mutex_unlock(&worker->lock);
}

void netlink_worker_request_tables(struct netlink_worker *worker)
{
	pthread_mutex_lock(&worker->lock);
	worker->read_requested = true;
	pthread_cond_signal(&worker->wake);
	pthread_mutex_unlock(&worker->lock);
}

void netlink_worker_run_task(struct netlink_worker *worker)
{
	pthread_mutex_lock(&worker->lock);
	worker->task_requested = true;
	pthread_cond_signal(&worker->wake);
	pthread_mutex_unlock(&worker->lock);
}

bool netlink_worker_tables(struct netlink_worker *worker, struct harp_lease_tables *tables, int *rc)
{
	bool done;

	pthread_mutex_lock(&worker->lock);
	done = worker->read_done;
	if (done) {
		*tables = worker->tables;
		*rc = worker->read_rc;
	}
	worker->read_done = false;
	pthread_mutex_unlock(&worker->lock);
	return done;
}

bool netlink_worker_answered(const struct netlink_worker *worker)
{
	return atomic_load_explicit(&worker->answered, memory_order_relaxed);
}

void netlink_worker_clear(struct netlink_worker *worker)
{
	/* Acquire: answers that arrived before are readable now. */
	(void)atomic_exchange_explicit(&worker->answered, false, memory_order_acq_rel);
}
