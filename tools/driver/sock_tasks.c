/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sock_tasks.c - the helper threads of the reference plugin: as NCCL's, each connection and direction has its
 * own, started when first needed. A thread owns a part of the sockets; it sleeps while its queue is
 * empty and spins over its tasks, a socket each, until they have moved.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "sock.h"

/* What the socket takes or has now. False: the connection is broken. */
static bool sock_task_move(struct sock_task *task, bool sends)
{
	ssize_t n;

	do {
		char *at = task->data + task->offset;
		size_t left = task->size - task->offset;

		n = sends ? send(task->fd, at, left, MSG_DONTWAIT | MSG_NOSIGNAL)
			  : recv(task->fd, at, left, MSG_DONTWAIT);
		if (n > 0)
			task->offset += (uint32_t)n;
	} while (n > 0 && task->offset < task->size);
	return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

/* One pass over count tasks. True: some have more to move. */
static bool sock_tasks_pass(struct sock_task *tasks, unsigned count, bool sends)
{
	bool more = false;

	for (unsigned i = 0; i < count; i++) {
		struct sock_task *task = &tasks[i];

		if (atomic_load_explicit(&task->state, memory_order_acquire) != TASK_BEGUN)
			continue;
		if (!sock_task_move(task, sends))
			atomic_store_explicit(&task->state, TASK_FAILED, memory_order_release);
		else if (task->offset == task->size)
			atomic_store_explicit(&task->state, TASK_DONE, memory_order_release);
		else
			more = true;
	}
	return more;
}

static bool sock_worker_stopped(struct sock_worker *worker, unsigned *seen)
{
	bool stop;

	pthread_mutex_lock(&worker->lock);
	while (*seen == worker->next && !worker->stop)
		pthread_cond_wait(&worker->wake, &worker->lock);
	*seen = worker->next;
	stop = worker->stop;
	pthread_mutex_unlock(&worker->lock);
	return stop;
}

static bool sock_worker_stop_seen(struct sock_worker *worker)
{
	bool stop;

	pthread_mutex_lock(&worker->lock);
	stop = worker->stop;
	pthread_mutex_unlock(&worker->lock);
	return stop;
}

static void *sock_worker_main(void *arg)
{
	struct sock_worker *worker = arg;
	struct sock_comm *comm = worker->comm;
	unsigned group = comm->sockets / comm->threads, seen = 0;

	while (!sock_worker_stopped(worker, &seen)) {
		/* Tasks that follow each other are on different sockets: one of each at a time. */
		for (unsigned at = 0; at < comm->queue_len; at += group)
			while (sock_tasks_pass(worker->queue + at, group, comm->sends))
				if (sock_worker_stop_seen(worker))
					return NULL;
	}
	return NULL;
}

static bool sock_worker_start(struct sock_comm *comm, struct sock_worker *worker)
{
	if (worker->started)
		return true;
	worker->comm = comm;
	worker->queue = calloc(comm->queue_len, sizeof(*worker->queue));
	if (!worker->queue)
		return false;
	pthread_mutex_init(&worker->lock, NULL);
	pthread_cond_init(&worker->wake, NULL);
	worker->started = !pthread_create(&worker->id, NULL, sock_worker_main, worker);
	if (!worker->started)
		free(worker->queue);
	return worker->started;
}

static struct sock_task *sock_task_add(struct sock_comm *comm, char *data, uint32_t size)
{
	struct sock_worker *worker = &comm->workers[comm->next_socket % comm->threads];
	struct sock_task *task;

	if (!sock_worker_start(comm, worker))
		return NULL;
	task = &worker->queue[worker->next % comm->queue_len];
	task->data = data;
	task->size = size;
	task->offset = 0;
	task->fd = comm->fds[comm->next_socket];
	comm->next_socket = (comm->next_socket + 1) % comm->sockets;
	atomic_store_explicit(&task->state, TASK_BEGUN, memory_order_release);
	pthread_mutex_lock(&worker->lock);
	worker->next++;
	pthread_cond_signal(&worker->wake);
	pthread_mutex_unlock(&worker->lock);
	return task;
}

bool sock_tasks_begin(struct sock_request *request, uint32_t from)
{
	struct sock_comm *comm = request->comm;
	uint32_t share = (request->size - from + comm->sockets - 1) / comm->sockets;

	if (share < SOCK_TASK_BYTES)
		share = SOCK_TASK_BYTES;
	for (request->task_count = 0; from < request->size; request->task_count++) {
		uint32_t size = request->size - from < share ? request->size - from : share;
		struct sock_task *task = sock_task_add(comm, request->data + from, size);

		if (!task)
			return false;
		request->tasks[request->task_count] = task;
		from += size;
	}
	return true;
}

int sock_tasks_look(struct sock_request *request)
{
	for (uint32_t i = 0; i < request->task_count; i++) {
		int state = atomic_load_explicit(&request->tasks[i]->state, memory_order_acquire);

		if (state == TASK_FAILED) {
			sock_fail(request->comm, ECONNRESET);
			return -1;
		}
		if (state != TASK_DONE)
			return 0;
	}
	return 1;
}

void sock_tasks_stop(struct sock_comm *comm)
{
	for (unsigned i = 0; i < comm->threads; i++) {
		struct sock_worker *worker = &comm->workers[i];

		if (!worker->started)
			continue;
		pthread_mutex_lock(&worker->lock);
		worker->stop = true;
		pthread_cond_signal(&worker->wake);
		pthread_mutex_unlock(&worker->lock);
		pthread_join(worker->id, NULL);
		pthread_cond_destroy(&worker->wake);
		pthread_mutex_destroy(&worker->lock);
		free(worker->queue);
	}
}
