/* SPDX-License-Identifier: Apache-2.0 */
/* play_open.c - how a rank begins and ends: options, threads, the ranks' meeting, the plugin's init. */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "play.h"

#define PLAY_TIMEOUT_S 60.0

static int play_check_options(const struct ncclplay_options *o, char *error, size_t len)
{
	if (o->ranks < 1 || o->ranks > NCCLPLAY_RANKS_MAX)
		snprintf(error, len, "ranks is %d: want 1 to %d", o->ranks, NCCLPLAY_RANKS_MAX);
	else if (o->rank < 0 || o->rank >= o->ranks)
		snprintf(error, len, "rank is %d: want 0 to %d", o->rank, o->ranks - 1);
	else if (o->channels < 0 || o->channels > NCCLPLAY_CHANNELS_MAX)
		snprintf(error, len, "channels is %d: want 1 to %d", o->channels,
			 NCCLPLAY_CHANNELS_MAX);
	else if (o->abi && (o->abi < NET_ABI_OLDEST || o->abi > NET_ABI_NEWEST))
		snprintf(error, len, "abi is %d: want %d to %d, or 0 for the newest", o->abi,
			 NET_ABI_OLDEST, NET_ABI_NEWEST);
	else if (!(o->timeout_s >= 0) || o->timeout_s > 86400)
		snprintf(error, len, "timeout is %g s: want up to 86400", o->timeout_s);
	else if (o->ranks > 1 && (!o->root || !*o->root))
		snprintf(error, len, "root is missing: host:port where rank 0 listens");
	else if (o->rest_us >= 1000000)
		snprintf(error, len, "rest is %u us: want less than a second", o->rest_us);
	else if (o->pin && (o->cpu < 0 || o->cpu >= CPU_SETSIZE))
		snprintf(error, len, "cpu is %d: want 0 to %d", o->cpu, CPU_SETSIZE - 1);
	else
		return 0;
	return NCCLPLAY_USAGE;
}

static int play_init_net(struct ncclplay *play, uint64_t session)
{
	int last = play->options.dev + (play->options.devices > 1 ? play->options.devices - 1 : 0);
	struct net_properties p;
	const char *call;
	int rc = net_init(&play->net, session, &call);

	if (rc) {
		play_fail_call(play, call, rc, 0, -1);
		return atomic_load(&play->failed);
	}
	if (play->net.devices <= 0)
		play_fail(play, NCCLPLAY_PLUGIN,
			  "%s has no device (devices says %d): NCCL would "
			  "go on without it",
			  play->net.name, play->net.devices);
	else if (play->options.dev < 0 || last >= play->net.devices)
		play_fail(play, NCCLPLAY_USAGE, "device %d: %s has devices 0 to %d", last,
			  play->net.name, play->net.devices - 1);
	else if ((rc = net_properties(&play->net, play->options.dev, &p)) != 0)
		play_fail_call(play, "getProperties", rc, 0, -1);
	else if (p.net_device_type > 0)
		play_fail(play, NCCLPLAY_PLUGIN, "%s: netDeviceType %d: NCCL takes HOST (0) only",
			  play->net.name, p.net_device_type);
	else if (!(p.ptr_support & 1))
		play_fail(play, NCCLPLAY_PLUGIN, "%s: ptrSupport %d has no host memory",
			  play->net.name, p.ptr_support);
	return atomic_load(&play->failed);
}

static int play_start_threads(struct ncclplay *play)
{
	pthread_attr_t attr;
	int rc;

	pthread_attr_init(&attr);
	if (play->options.pin) {
		cpu_set_t set;

		CPU_ZERO(&set);
		CPU_SET((size_t)play->options.cpu, &set);
		pthread_attr_setaffinity_np(&attr, sizeof(set), &set);
	}
	rc = pthread_create(&play->service_thread, &attr, service_main, play);
	play->service_started = rc == 0;
	if (!rc) {
		rc = pthread_create(&play->progress_thread, &attr, progress_main, play);
		play->progress_started = rc == 0;
	}
	pthread_attr_destroy(&attr);
	if (!rc && play->options.ll) { /* not pinned: it would only take turns with progress */
		rc = pthread_create(&play->gpu_thread, NULL, gpu_main, play);
		play->gpu_started = rc == 0;
	}
	if (rc)
		play_fail(play, rc == EINVAL ? NCCLPLAY_USAGE : NCCLPLAY_PEER,
			  "can't start a thread%s: %s",
			  play->options.pin ? " on the processor asked for" : "", strerror(rc));
	return atomic_load(&play->failed);
}

static struct ncclplay *play_alloc(const struct ncclplay_options *options)
{
	struct ncclplay *play = calloc(1, sizeof(*play));
	pthread_condattr_t attr;

	if (!play)
		return NULL;
	play->options = *options;
	if (!play->options.channels)
		play->options.channels = 1;
	if (play->options.timeout_s <= 0)
		play->options.timeout_s = PLAY_TIMEOUT_S;
	play->slot_bytes = PLAY_SLOT_BYTES;
	play->rdv.rank = options->rank;
	play->rdv.ranks = options->ranks;
	play->rdv.timeout_ns = (uint64_t)(play->options.timeout_s * 2e9);
	play->rdv.interrupted = &play->interrupted;
	play->rdv.listen_fd = -1;
	for (int r = 0; r < NCCLPLAY_RANKS_MAX; r++)
		play->rdv.fds[r] = -1;
	gethostname(play->host, sizeof(play->host) - 1);
	pthread_mutex_init(&play->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&play->main_cond, &attr);
	pthread_cond_init(&play->service_cond, &attr);
	pthread_cond_init(&play->progress_cond, &attr);
	pthread_cond_init(&play->gpu_cond, &attr);
	pthread_condattr_destroy(&attr);
	return play;
}

int ncclplay_open(const struct ncclplay_options *options, struct ncclplay **out, char *error,
		  size_t error_len)
{
	struct ncclplay *play;
	uint64_t session;
	int rc;

	*out = NULL;
	if (error_len)
		error[0] = 0;
	rc = play_check_options(options, error, error_len);
	if (rc)
		return rc;
	play = play_alloc(options);
	if (!play) {
		snprintf(error, error_len, "out of memory");
		return NCCLPLAY_PEER;
	}
	log_attach(play);
	/* The strings belong to the caller. */
	play->options.plugin = NULL;
	play->options.root = NULL;
	if (net_open(&play->net, options->plugin, options->abi, play->error, sizeof(play->error)))
		atomic_store(&play->failed, NCCLPLAY_PLUGIN);
	rc = atomic_load(&play->failed);
	if (!rc) {
		rc = rdv_open(&play->rdv, options->root, &session);
		if (rc)
			play_fail(play, (enum ncclplay_result)rc, "%s", play->rdv.error);
	}
	if (!rc)
		rc = play_init_net(play, session);
	if (!rc)
		rc = play_start_threads(play);
	if (rc) {
		snprintf(error, error_len, "%s", play->error);
		ncclplay_close(play);
		return rc;
	}
	*out = play;
	return NCCLPLAY_OK;
}

static void play_free(struct ncclplay *play)
{
	if (play->channels) {
		for (int c = 0; c < play->options.channels; c++) {
			free(play->channels[c].handle);
			free(play->channels[c].ll_in);
			free(play->channels[c].ll_out);
		}
	}
	free(play->channels);
	free(play->handles);
	pthread_cond_destroy(&play->main_cond);
	pthread_cond_destroy(&play->service_cond);
	pthread_cond_destroy(&play->progress_cond);
	pthread_cond_destroy(&play->gpu_cond);
	pthread_mutex_destroy(&play->lock);
	free(play);
}

/* Threads gone, or given up: true when all came back. */
static bool play_stop_threads(struct ncclplay *play)
{
	if (play->service_started && !play->stuck) {
		if (play->channels)
			play_job(play, JOB_CLOSE);
		if (!play->stuck)
			play_job(play, JOB_EXIT);
	}
	pthread_mutex_lock(&play->lock);
	play->exiting = true;
	pthread_cond_broadcast(&play->progress_cond);
	pthread_cond_broadcast(&play->gpu_cond);
	pthread_mutex_unlock(&play->lock);
	if (play->stuck)
		return false;
	if (play->progress_started)
		pthread_join(play->progress_thread, NULL);
	if (play->gpu_started)
		pthread_join(play->gpu_thread, NULL);
	if (play->service_started)
		pthread_join(play->service_thread, NULL);
	return true;
}

int ncclplay_close(struct ncclplay *play)
{
	int before, rc;

	if (!play)
		return NCCLPLAY_OK;
	before = atomic_load(&play->failed);
	if (before)
		rdv_fail(&play->rdv, play->error);
	if (!play_stop_threads(play)) {
		rdv_close(&play->rdv);
		return NCCLPLAY_HANG;
	}
	rdv_close(&play->rdv);
	rc = net_finalize(&play->net);
	if (rc)
		play_fail_call(play, "finalize", rc, 0, -1);
	net_close(&play->net);
	rc = before ? NCCLPLAY_OK : atomic_load(&play->failed);
	if (rc)
		log_line(2, ~0ul, __func__, __LINE__, "while closing: %s", play->error);
	log_attach(NULL);
	play_free(play);
	return rc;
}
