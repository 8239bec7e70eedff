/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_coll_threads.c - ranks as threads of one process, which sanitizers can check, over the
 * plugin in $HARP_COLL_NET and over shared memory.
 */
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "harp_coll.h"

#define RANKS 3
#define KEYS 256
#define SIZES 4

static const size_t sizes[SIZES] = { 1, 3000, 40000, 700001 };

static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct {
		char key[200];
		void *value;
		size_t bytes;
	} entries[KEYS];
	int count;
} store = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

static void fail(const char *what, const char *error)
{
	fprintf(stderr, "%s: %s\n", what, error);
	exit(1);
}

static int store_find(const char *key)
{
	for (int i = 0; i < store.count; i++)
		if (!strcmp(store.entries[i].key, key))
			return i;
	return -1;
}

static int store_set(void *arg, const char *key, const void *value, size_t bytes)
{
	int i;

	(void)arg;
	pthread_mutex_lock(&store.lock);
	i = store_find(key);
	if (i < 0) {
		if (store.count == KEYS)
			fail("store", "full");
		i = store.count++;
		snprintf(store.entries[i].key, sizeof(store.entries[i].key), "%s", key);
	}
	free(store.entries[i].value);
	store.entries[i].value = malloc(bytes);
	memcpy(store.entries[i].value, value, bytes);
	store.entries[i].bytes = bytes;
	pthread_cond_broadcast(&store.changed);
	pthread_mutex_unlock(&store.lock);
	return 0;
}

static int store_get(void *arg, const char *key, void *value, size_t *bytes)
{
	int i, rc = 0;

	(void)arg;
	pthread_mutex_lock(&store.lock);
	i = store_find(key);
	if (i < 0) {
		rc = -ENOENT;
	} else if (store.entries[i].bytes > *bytes) {
		rc = -ENOSPC;
	} else {
		*bytes = store.entries[i].bytes;
		memcpy(value, store.entries[i].value, *bytes);
	}
	pthread_mutex_unlock(&store.lock);
	return rc;
}

static int store_wait(void *arg, const char *key, int64_t timeout_ms)
{
	struct timespec until;
	int rc = 0;

	(void)arg;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += timeout_ms / 1000 + 1;
	pthread_mutex_lock(&store.lock);
	while (store_find(key) < 0 && rc == 0)
		rc = -pthread_cond_timedwait(&store.changed, &store.lock, &until);
	pthread_mutex_unlock(&store.lock);
	return rc;
}

struct rank {
	pthread_t thread;
	int rank;
	const char *name, *host;
	atomic_int notified;
};

static void rank_notified(void *arg)
{
	struct rank *rank = arg;

	atomic_fetch_add(&rank->notified, 1);
}

static struct harp_coll_call rank_call(enum harp_coll_op op, const void *in, void *out,
				       size_t count)
{
	return (struct harp_coll_call){ .size = sizeof(struct harp_coll_call),
					.op = op,
					.dtype = HARP_COLL_FLOAT32,
					.in = in,
					.out = out,
					.count = count };
}

/* Starts all requests before the first wait; the background thread advances them. */
static void rank_requests(struct rank *rank, struct harp_coll *group)
{
	struct harp_coll_request *requests[SIZES];
	float *values[SIZES];
	char error[HARP_COLL_ERROR_BYTES];

	for (int i = 0; i < SIZES; i++) {
		struct harp_coll_call call;

		values[i] = malloc(sizes[i] * sizeof(float));
		for (size_t n = 0; n < sizes[i]; n++)
			values[i][n] = (float)(n % 100 + (size_t)rank->rank);
		call = rank_call(HARP_COLL_ALLREDUCE, values[i], values[i], sizes[i]);
		if (harp_coll_start(group, &call, &requests[i], error, sizeof(error)))
			fail("start", error);
		harp_coll_notify(requests[i], rank_notified, rank);
	}
	nanosleep(&(struct timespec){ .tv_nsec = 5000000 }, NULL);
	for (int i = 0; i < SIZES; i++) {
		if (harp_coll_wait(requests[i], -1))
			fail("wait", harp_coll_request_error(requests[i]));
		for (size_t n = 0; n < sizes[i]; n++)
			if (values[i][n] != (float)(RANKS * (n % 100) + 3))
				fail(rank->name, "a sum is wrong");
		harp_coll_request_free(requests[i]);
		free(values[i]);
	}
}

static void rank_messages(struct rank *rank, struct harp_coll *group, size_t count)
{
	struct harp_coll_request *request;
	float *out = calloc(count, sizeof(float)), *in = calloc(count, sizeof(float));
	struct harp_coll_call send, recv;
	char error[HARP_COLL_ERROR_BYTES];

	in[count - 1] = (float)rank->rank;
	recv = rank_call(HARP_COLL_RECV, NULL, out, count);
	recv.peer = HARP_COLL_ANY_RANK;
	if (harp_coll_start(group, &recv, &request, error, sizeof(error)))
		fail("recv", error);
	send = rank_call(HARP_COLL_SEND, in, NULL, count);
	send.peer = (rank->rank + 1) % RANKS;
	if (harp_coll_run(group, &send, error, sizeof(error)))
		fail("send", error);
	if (harp_coll_wait(request, -1))
		fail("wait", harp_coll_request_error(request));
	if (harp_coll_request_source(request) != (rank->rank + RANKS - 1) % RANKS ||
	    out[count - 1] != (float)((rank->rank + RANKS - 1) % RANKS))
		fail(rank->name, "a message is wrong");
	harp_coll_request_free(request);
	free(in);
	free(out);
}

static void *rank_main(void *arg)
{
	struct rank *rank = arg;
	struct harp_coll_options options = {
		.size = sizeof(options),
		.rank = rank->rank,
		.world = RANKS,
		.name = rank->name,
		.store = { .size = sizeof(options.store),
			   .set = store_set,
			   .get = store_get,
			   .wait = store_wait },
		.timeout_ms = 60000,
		.host = rank->host,
	};
	struct harp_coll_call barrier = rank_call(HARP_COLL_BARRIER, NULL, NULL, 0), bad;
	struct harp_coll *group;
	char error[HARP_COLL_ERROR_BYTES];
	float value = 0;

	if (harp_coll_open(&options, &group, error, sizeof(error)))
		fail("open", error);
	rank_requests(rank, group);
	rank_messages(rank, group, 10);
	rank_messages(rank, group, 300000);
	for (int i = 0; i < 50; i++)
		if (harp_coll_run(group, &barrier, error, sizeof(error)))
			fail("barrier", error);
	if (rank->rank == 0)
		harp_coll_abort(group, "the end");
	/* The others wait for rank 0 and get its reason as the error. */
	bad = rank_call(HARP_COLL_ALLREDUCE, &value, &value, 1);
	if (harp_coll_run(group, &bad, error, sizeof(error)) == 0 || !strstr(error, "the end"))
		fail("abort", error);
	harp_coll_close(group);
	while (atomic_load(&rank->notified) < SIZES)
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	return NULL;
}

static void world(const char *name, const char *host)
{
	struct rank ranks[RANKS];

	for (int r = 0; r < RANKS; r++) {
		ranks[r] = (struct rank){ .rank = r, .name = name, .host = host };
		if (pthread_create(&ranks[r].thread, NULL, rank_main, &ranks[r]))
			fail("thread", "can't start");
	}
	for (int r = 0; r < RANKS; r++)
		pthread_join(ranks[r].thread, NULL);
}

/* ---- fork ------------------------------------------------------------------------------------ */

static sem_t fork_log_called, fork_done;

/* The library calls this under its lock. It waits until fork() has returned, like a plugin call
 * that needs a lock which the plugin's fork handler holds. */
static void fork_log(void *arg, int level, const char *text)
{
	(void)arg;
	(void)level;
	(void)text;
	sem_post(&fork_log_called);
	sem_wait(&fork_done);
}

static void *fork_abort(void *group)
{
	harp_coll_abort(group, "the end");
	return NULL;
}

/* fork() returns while another thread holds the library's lock, and calls in the child fail. */
static void fork_under_the_lock(void)
{
	struct harp_coll_options options = { .size = sizeof(options),
					     .world = 1,
					     .name = "forked",
					     .store.size = sizeof(options.store),
					     .log = fork_log };
	struct harp_coll_call barrier = rank_call(HARP_COLL_BARRIER, NULL, NULL, 0);
	char error[HARP_COLL_ERROR_BYTES];
	struct harp_coll *group;
	pthread_t thread;
	int status = 1;
	pid_t child;

	sem_init(&fork_log_called, 0, 0);
	sem_init(&fork_done, 0, 0);
	if (harp_coll_open(&options, &group, error, sizeof(error)))
		fail("open", error);
	if (pthread_create(&thread, NULL, fork_abort, group))
		fail("thread", "can't start");
	sem_wait(&fork_log_called);
	child = fork();
	if (child == 0)
		_exit(harp_coll_run(group, &barrier, error, sizeof(error)) != -EOWNERDEAD);
	sem_post(&fork_done);
	pthread_join(thread, NULL);
	if (waitpid(child, &status, 0) != child || status)
		fail("fork", "the call in the child did not fail");
	harp_coll_close(group);
}

int main(void)
{
	fork_under_the_lock();
	world("shared-memory", "one");
	world("plugin", "");
	for (int i = 0; i < store.count; i++)
		free(store.entries[i].value);
	return 0;
}
