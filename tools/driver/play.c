/* SPDX-License-Identifier: Apache-2.0 */
/*
 * play.c - one rank at work: connections, operations, failures, hang watch.
 *
 * Theory of operation. The caller's thread ("main") hands jobs to the service thread (listen, connect,
 * close) and operations to the progress thread, and waits in play_wait(). Nothing else waits for
 * a plugin that may hang: while play->moved stands still for timeout_s main sets play->abort, which both
 * threads look at between calls of the plugin. A thread that does not come back within
 * PLAY_GRACE_NS is inside the plugin: the rank is stuck, and nothing that this thread may still
 * touch is freed. The first failure of any thread stays the rank's; its text is what users see.
 * play_open.c has the beginning and the end.
 */
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "play.h"
#include "ring.h"

#define PLAY_GRACE_NS 3000000000ull /* for a thread to come back once abort is set */

void play_rest(const struct ncclplay *play, unsigned *passes)
{
	struct timespec rest = { .tv_nsec = play->options.rest_us * 1000l };

	if (play->options.rest_us && ++*passes > PLAY_SPINS)
		nanosleep(&rest, NULL);
	else
		sched_yield(); /* NCCL spins here; two processors must be shared */
}

uint64_t play_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

uint64_t play_process_cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

uint64_t play_process_wakes(void)
{
	struct rusage used;

	getrusage(RUSAGE_SELF, &used);
	return (uint64_t)used.ru_nvcsw;
}

static int play_vfail(struct ncclplay *play, enum ncclplay_result result, int nccl, const char *fmt,
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

int play_fail(struct ncclplay *play, enum ncclplay_result result, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	play_vfail(play, result, 0, fmt, args);
	va_end(args);
	return -1;
}

static void play_fail_nccl(struct ncclplay *play, int nccl, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

static void play_fail_nccl(struct ncclplay *play, int nccl, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	play_vfail(play, NCCLPLAY_PLUGIN, nccl, fmt, args);
	va_end(args);
}

int play_fail_call(struct ncclplay *play, const char *call, int nccl, int channel, int peer)
{
	char warn[NCCLPLAY_ERROR_BYTES / 2] = "", where[64] = "";

	log_last_warn(warn, sizeof(warn));
	if (peer >= 0)
		snprintf(where, sizeof(where), " (channel %d, rank %d)", channel, peer);
	play_fail_nccl(play, nccl, "%s: %s failed with %s (%d)%s%s%s",
		       play->net.name ? play->net.name : "plugin", call, net_result_name(nccl),
		       nccl, where, warn[0] ? "; its last warning: " : "; it gave no warning",
		       warn);
	return -1;
}

/* Main, lock held. True when what it waits for is over. */
static bool play_idle(const struct ncclplay *play)
{
	return !play->op && !play->gpu_op && play->job == JOB_NONE;
}

static void play_cond_wait(struct ncclplay *play, uint64_t ns)
{
	struct timespec until;
	uint64_t at = play_now_ns() + ns;

	until.tv_sec = (time_t)(at / 1000000000ull);
	until.tv_nsec = (long)(at % 1000000000ull);
	pthread_cond_timedwait(&play->main_cond, &play->lock, &until);
}

/* The thread did not come back after abort: it is inside the plugin. Lock held. */
static void play_give_up(struct ncclplay *play, const char *what)
{
	const char *service = atomic_load(&play->service_mark.call);
	const char *progress = atomic_load(&play->progress_mark.call);
	const char *call = play->op ? progress : service;

	play->stuck = true;
	pthread_mutex_unlock(&play->lock);
	play_fail(play, NCCLPLAY_HANG, "%s: the plugin's %s has not returned for %.1f s", what,
		  call ? call : "call", play->options.timeout_s);
	pthread_mutex_lock(&play->lock);
}

int play_wait(struct ncclplay *play, const char *what)
{
	uint64_t moved = atomic_load_explicit(&play->moved, memory_order_relaxed);
	uint64_t since_ns = play_now_ns();
	uint64_t timeout_ns = (uint64_t)(play->options.timeout_s * 1e9);
	bool aborting = false;

	pthread_mutex_lock(&play->lock);
	while (!play_idle(play)) {
		uint64_t now_ns, seen;

		play_cond_wait(play, play->tick_ns ? play->tick_ns : PLAY_TICK_NS);
		if (play_idle(play))
			break;
		now_ns = play_now_ns();
		seen = atomic_load_explicit(&play->moved, memory_order_relaxed);
		if (seen != moved && !aborting) {
			moved = seen;
			since_ns = now_ns;
		}
		if (atomic_load(&play->interrupted) && !aborting) {
			pthread_mutex_unlock(&play->lock);
			play_fail(play, NCCLPLAY_INTERRUPTED, "interrupted");
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
			play->tick(play->tick_arg, seen);
			pthread_mutex_lock(&play->lock);
		}
	}
	pthread_mutex_unlock(&play->lock);
	return atomic_load(&play->failed);
}

int play_run(struct ncclplay *play, struct op *op)
{
	if (atomic_load(&play->failed))
		return atomic_load(&play->failed);
	if (!play->connected) {
		play_fail(play, NCCLPLAY_USAGE, "%s before ncclplay_connect", op->name);
		return NCCLPLAY_USAGE;
	}
	pthread_mutex_lock(&play->lock);
	op->finished = false;
	play->op = op;
	if (op->gpu) {
		play->gpu_op = op;
		pthread_cond_signal(&play->gpu_cond);
	}
	pthread_cond_signal(&play->progress_cond);
	pthread_mutex_unlock(&play->lock);
	return play_wait(play, op->name);
}

int play_job(struct ncclplay *play, enum play_job job)
{
	static const char *const names[] = { "", "listen", "connection set-up", "close", "exit" };

	pthread_mutex_lock(&play->lock);
	play->job = job;
	pthread_cond_signal(&play->service_cond);
	pthread_mutex_unlock(&play->lock);
	return play_wait(play, names[job]);
}

static int play_gather(struct ncclplay *play, const char *label, const void *in, size_t len,
		       void *out)
{
	int rc = atomic_load(&play->failed);

	if (rc)
		return rc;
	rc = rdv_gather(&play->rdv, label, in, len, out);
	if (rc)
		play_fail(play, (enum ncclplay_result)rc, "%s", play->rdv.error);
	return atomic_load(&play->failed);
}

int ncclplay_gather(struct ncclplay *play, const void *in, size_t len, void *out)
{
	if (len > NCCLPLAY_GATHER_BYTES_MAX)
		play_fail(play, NCCLPLAY_USAGE, "gather of %zu bytes: at most %d", len,
			  NCCLPLAY_GATHER_BYTES_MAX);
	return play_gather(play, "gather", in, len, out);
}

int ncclplay_barrier(struct ncclplay *play)
{
	char in = 0, out[NCCLPLAY_RANKS_MAX];

	return play_gather(play, "barrier", &in, 1, out);
}

/* How many places on in the ring the channel's peer is. */
static int play_distance(const struct ncclplay *play, int channel)
{
	return play->options.mesh ? 1 + channel % (play->options.ranks - 1) : 1;
}

static int play_make_channels(struct ncclplay *play)
{
	int ranks = play->options.ranks, rank = play->options.rank, n = play->options.channels;
	size_t ll_bytes = PLAY_LL_SLOT_BYTES / 2;

	play->handles = calloc((size_t)n, NET_HANDLE_BYTES);
	play->channels = calloc((size_t)n, sizeof(*play->channels));
	if (!play->channels || !play->handles)
		return play_fail(play, NCCLPLAY_PEER, "out of memory");
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
		ch->handle = calloc(1, NET_HANDLE_BYTES);
		if (play->options.ll) {
			ch->ll_in = aligned_alloc(64, ll_bytes);
			ch->ll_out = aligned_alloc(64, ll_bytes);
		}
		if (!ch->handle || (play->options.ll && (!ch->ll_in || !ch->ll_out)))
			return play_fail(play, NCCLPLAY_PEER, "out of memory");
	}
	return 0;
}

int ncclplay_connect(struct ncclplay *play)
{
	size_t len = (size_t)play->options.channels * NET_HANDLE_BYTES;
	int ranks = play->options.ranks;
	char *all;
	int rc = atomic_load(&play->failed);

	if (rc)
		return rc;
	if (play->channels) {
		play_fail(play, NCCLPLAY_USAGE, "ncclplay_connect was called twice");
		return NCCLPLAY_USAGE;
	}
	if (play_make_channels(play))
		return atomic_load(&play->failed);
	rc = play_job(play, JOB_LISTEN);
	if (rc)
		return rc;
	all = malloc(len * (size_t)ranks);
	if (!all) {
		play_fail(play, NCCLPLAY_PEER, "out of memory");
		return NCCLPLAY_PEER;
	}
	rc = play_gather(play, "handles", play->handles, len, all);
	for (int c = 0; !rc && c < play->options.channels; c++)
		memcpy(play->channels[c].handle,
		       all + (size_t)play->channels[c].send.peer * len +
			       (size_t)c * NET_HANDLE_BYTES,
		       NET_HANDLE_BYTES);
	/* The reply buffer was a temporary one: a plugin that kept its address finds 0x5a. */
	memset(play->handles, 0x5a, len);
	free(all);
	if (!rc)
		rc = play_job(play, JOB_CONNECT);
	for (int c = 0; c < play->options.channels && !play->stuck; c++) {
		free(play->channels[c].handle);
		play->channels[c].handle = NULL;
	}
	play->connected = rc == 0;
	return rc ? rc : ncclplay_barrier(play);
}

int ncclplay_allreduce_f32(struct ncclplay *play, const float *src, float *dst, size_t count)
{
	struct ring_op *ring;
	int rc = atomic_load(&play->failed);

	if (rc)
		return rc;
	if (!play->connected) {
		play_fail(play, NCCLPLAY_USAGE, "all-reduce before ncclplay_connect");
		return NCCLPLAY_USAGE;
	}
	ring = malloc(sizeof(*ring));
	if (!ring) {
		play_fail(play, NCCLPLAY_PEER, "out of memory");
		return NCCLPLAY_PEER;
	}
	ring_prepare(ring, play, src, dst, count, 1, NULL);
	rc = play_run(play, &ring->op);
	if (!play->stuck)
		free(ring);
	return rc;
}

void ncclplay_interrupt(struct ncclplay *play)
{
	atomic_store(&play->interrupted, true);
}

int ncclplay_properties(struct ncclplay *play, struct ncclplay_properties *out)
{
	struct net_properties p;
	int rc;

	memset(out, 0, sizeof(*out));
	memset(&p, 0, sizeof(p));
	rc = net_properties(&play->net, play->options.dev, &p);
	if (rc) {
		play_fail_call(play, "getProperties", rc, 0, -1);
		return NCCLPLAY_PLUGIN;
	}
	snprintf(out->net, sizeof(out->net), "%s", play->net.name);
	snprintf(out->path, sizeof(out->path), "%s", play->net.path);
	snprintf(out->dev, sizeof(out->dev), "%s", p.name);
	out->abi = play->net.abi;
	out->speed_mbps = p.speed_mbps;
	return NCCLPLAY_OK;
}

void ncclplay_stats(struct ncclplay *play, struct ncclplay_stats *out)
{
	out->sent_bytes = atomic_load(&play->stats.sent_bytes);
	out->sent_messages = atomic_load(&play->stats.sent_messages);
	out->received_bytes = atomic_load(&play->stats.received_bytes);
	out->received_messages = atomic_load(&play->stats.received_messages);
	out->progress_cpu_ns = atomic_load(&play->stats.cpu_ns);
}

const char *ncclplay_error(struct ncclplay *play)
{
	return atomic_load(&play->failed) ? play->error : "";
}

int ncclplay_error_nccl(struct ncclplay *play)
{
	return atomic_load(&play->failed) ? play->failed_nccl : 0;
}
