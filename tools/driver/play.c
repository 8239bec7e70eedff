/* SPDX-License-Identifier: Apache-2.0 */
/*
 * play.c - one rank at work: connections, operations, failures, detection of hangs.
 *
 * Theory of operation. The caller's thread ("main") passes jobs (listen, connect, close) to the
 * service thread and operations to the progress thread, and waits in play_wait(). Only these
 * threads call the plugin, which may hang. If play->moved does not change for timeout_s, main sets
 * play->abort, which both threads check between calls of the plugin. A thread that does not stop
 * within PLAY_GRACE_NS is inside the plugin: the rank is stuck, and memory that this thread may use
 * is not freed. The first failure of a thread is that of the rank, and its text is printed.
 * play_open.c opens and closes ranks.
 */
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "play.h"

#define PLAY_GRACE_NS 3000000000ull /* for a thread to stop after abort is set */

void play_pause(const struct play *play, unsigned *passes)
{
	struct timespec pause = { .tv_nsec = play->options.pause_us * 1000l };

	if (play->options.pause_us && ++*passes > PLAY_SPINS)
		nanosleep(&pause, NULL);
	else
		sched_yield(); /* NCCL spins; here, ranks share few CPUs */
}

uint64_t play_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static int play_vfail(struct play *play, enum play_result result, int nccl, const char *fmt,
		      va_list args)
{
	pthread_mutex_lock(&play->lock);
	if (!atomic_load(&play->failed)) {
		play->failed_nccl = nccl;
		vsnprintf(play->error, sizeof(play->error), fmt, args);
		atomic_store(&play->failed, (int)result);
	}
	pthread_mutex_unlock(&play->lock);
	return -1;
}

int play_fail(struct play *play, enum play_result result, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	play_vfail(play, result, 0, fmt, args);
	va_end(args);
	return -1;
}

static void play_fail_nccl(struct play *play, int nccl, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

static void play_fail_nccl(struct play *play, int nccl, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	play_vfail(play, PLAY_PLUGIN, nccl, fmt, args);
	va_end(args);
}

int play_fail_call(struct play *play, const char *call, int nccl, int channel, int peer)
{
	char warn[PLAY_ERROR_BYTES / 2] = "", where[64] = "";

	log_last_warn(warn, sizeof(warn));
	if (peer >= 0)
		snprintf(where, sizeof(where), " (channel %d, rank %d)", channel, peer);
	play_fail_nccl(play, nccl, "%s: %s failed with %s (%d)%s%s%s", play->net.table->name, call,
		       net_result_name(nccl), nccl, where,
		       warn[0] ? "; its last warning: " : "; it gave no warning", warn);
	return -1;
}

/* Main, lock held. True if no operation or job is in progress. */
static bool play_idle(const struct play *play)
{
	return !play->op && play->job == JOB_NONE;
}

static void play_cond_wait(struct play *play, uint64_t ns)
{
	struct timespec deadline;
	uint64_t deadline_ns = play_now_ns() + ns;

	deadline.tv_sec = (time_t)(deadline_ns / 1000000000ull);
	deadline.tv_nsec = (long)(deadline_ns % 1000000000ull);
	pthread_cond_timedwait(&play->main_cond, &play->lock, &deadline);
}

/* The thread did not stop after abort: it is inside the plugin. Lock held. */
static void play_give_up(struct play *play, const char *what)
{
	const char *service = atomic_load(&play->service_mark.call);
	const char *progress = atomic_load(&play->progress_mark.call);
	const char *call = play->op ? progress : service;

	play->stuck = true;
	pthread_mutex_unlock(&play->lock);
	play_fail(play, PLAY_HANG, "%s: the plugin's %s has not returned for %.1f s", what,
		  call ? call : "call", play->options.timeout_s);
	pthread_mutex_lock(&play->lock);
}

static int play_wait(struct play *play, const char *what)
{
	uint64_t moved = atomic_load_explicit(&play->moved, memory_order_relaxed);
	uint64_t since_ns = play_now_ns();
	uint64_t timeout_ns = (uint64_t)(play->options.timeout_s * 1e9);
	bool aborting = false;

	pthread_mutex_lock(&play->lock);
	while (!play_idle(play)) {
		uint64_t now_ns, count;

		play_cond_wait(play, play->tick_ns ? play->tick_ns : PLAY_TICK_NS);
		if (play_idle(play))
			break;
		now_ns = play_now_ns();
		count = atomic_load_explicit(&play->moved, memory_order_relaxed);
		if (count != moved && !aborting) {
			moved = count;
			since_ns = now_ns;
		}
		if (atomic_load(&play->interrupted) && !aborting) {
			pthread_mutex_unlock(&play->lock);
			play_fail(play, PLAY_INTERRUPTED, "interrupted");
			pthread_mutex_lock(&play->lock);
			since_ns = now_ns - timeout_ns;
		}
		if (!aborting && now_ns - since_ns >= timeout_ns) {
			atomic_store(&play->abort, true);
			aborting = true;
			since_ns = now_ns;
		} else if (aborting && now_ns - since_ns >= PLAY_GRACE_NS) {
			play_give_up(play, what);
			break;
		}
		if (play->tick) {
			pthread_mutex_unlock(&play->lock);
			play->tick(play->tick_arg);
			pthread_mutex_lock(&play->lock);
		}
	}
	pthread_mutex_unlock(&play->lock);
	return atomic_load(&play->failed);
}

int play_run(struct play *play, struct op *op)
{
	if (atomic_load(&play->failed))
		return atomic_load(&play->failed);
	pthread_mutex_lock(&play->lock);
	op->finished = false;
	play->op = op;
	pthread_cond_signal(&play->progress_cond);
	pthread_mutex_unlock(&play->lock);
	return play_wait(play, op->name);
}

int play_job(struct play *play, enum play_job job)
{
	static const char *const names[] = { "", "listen", "connection set-up", "close", "exit" };

	pthread_mutex_lock(&play->lock);
	play->job = job;
	pthread_cond_signal(&play->service_cond);
	pthread_mutex_unlock(&play->lock);
	return play_wait(play, names[job]);
}

static int play_exchange(struct play *play, const char *label, const void *in, size_t len,
			 void *out)
{
	int rc = atomic_load(&play->failed);

	if (rc)
		return rc;
	rc = rdv_gather(&play->rdv, label, in, len, out);
	if (rc)
		play_fail(play, (enum play_result)rc, "%s", play->rdv.error);
	return atomic_load(&play->failed);
}

int play_gather(struct play *play, const void *in, size_t len, void *out)
{
	return play_exchange(play, "gather", in, len, out);
}

int play_barrier(struct play *play)
{
	char in = 0, out[PLAY_RANKS_MAX];

	return play_exchange(play, "barrier", &in, 1, out);
}

/* Distance in the ring from this rank to the channel's peer. */
static int play_distance(const struct play *play, int channel)
{
	return play->options.mesh ? 1 + channel % (play->options.ranks - 1) : 1;
}

static int play_create_channels(struct play *play)
{
	int ranks = play->options.ranks, rank = play->options.rank, n = play->options.channels;

	play->handles = calloc((size_t)n, NCCL_HANDLE_BYTES);
	play->channels = calloc((size_t)n, sizeof(*play->channels));
	if (!play->channels || !play->handles)
		return play_fail(play, PLAY_PEER, "out of memory");
	for (int c = 0; c < n; c++) {
		struct channel *ch = &play->channels[c];
		int distance = play_distance(play, c), prev = (rank + ranks - distance) % ranks;

		ch->send = (struct conn){ .play = play,
					  .channel = c,
					  .peer = (rank + distance) % ranks,
					  .tag = rank,
					  .sends = true,
					  .slot_bytes = play->slot_bytes };
		ch->recv = (struct conn){ .play = play,
					  .channel = c,
					  .peer = prev,
					  .tag = prev,
					  .slot_bytes = play->slot_bytes };
		ch->handle = calloc(1, NCCL_HANDLE_BYTES);
		if (!ch->handle)
			return play_fail(play, PLAY_PEER, "out of memory");
	}
	return 0;
}

int play_connect(struct play *play)
{
	size_t len = (size_t)play->options.channels * NCCL_HANDLE_BYTES;
	int ranks = play->options.ranks;
	char *all;
	int rc = atomic_load(&play->failed);

	if (rc)
		return rc;
	if (play_create_channels(play))
		return atomic_load(&play->failed);
	rc = play_job(play, JOB_LISTEN);
	if (rc)
		return rc;
	all = malloc(len * (size_t)ranks);
	if (!all) {
		play_fail(play, PLAY_PEER, "out of memory");
		return PLAY_PEER;
	}
	rc = play_exchange(play, "handles", play->handles, len, all);
	for (int c = 0; !rc && c < play->options.channels; c++)
		memcpy(play->channels[c].handle,
		       all + (size_t)play->channels[c].send.peer * len +
			       (size_t)c * NCCL_HANDLE_BYTES,
		       NCCL_HANDLE_BYTES);
	/* The handle buffer is temporary: a plugin that stored its address reads 0x5a. */
	memset(play->handles, 0x5a, len);
	free(all);
	if (!rc)
		rc = play_job(play, JOB_CONNECT);
	for (int c = 0; c < play->options.channels && !play->stuck; c++) {
		free(play->channels[c].handle);
		play->channels[c].handle = NULL;
	}
	return rc ? rc : play_barrier(play);
}
