/* SPDX-License-Identifier: Apache-2.0 */
/* play_open.c - opens and closes a rank: threads, rendezvous, init and finalize of the plugin. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "play.h"

static int play_init_net(struct play *play, uint64_t session)
{
	struct nccl_props_v12 p;
	const char *call;
	int rc = net_init(&play->net, session, &call);

	if (rc) {
		play_fail_call(play, call, rc, 0, -1);
		return atomic_load(&play->failed);
	}
	if (play->net.devices <= 0)
		play_fail(play, PLAY_PLUGIN,
			  "%s has no device (devices returned %d): NCCL would not "
			  "use it",
			  play->net.table->name, play->net.devices);
	else if (play->options.devices > play->net.devices)
		play_fail(play, PLAY_USAGE, "--devices %d: %s has %d", play->options.devices,
			  play->net.table->name, play->net.devices);
	if (atomic_load(&play->failed))
		return atomic_load(&play->failed);
	/* NCCL does not clear the struct; members that the plugin does not set are 0x5a. */
	memset(&p, 0x5a, sizeof(p));
	p.name = NULL;
	rc = (int)play->net.table->get_properties(0, &p);
	if (rc)
		play_fail_call(play, "getProperties", rc, 0, -1);
	else if (p.device_type != NCCL_DEVICE_HOST)
		play_fail(play, PLAY_PLUGIN, "%s: netDeviceType %d: NCCL accepts only HOST (0)",
			  play->net.table->name, (int)p.device_type);
	else if (!(p.ptr_support & NCCL_PTR_HOST))
		play_fail(play, PLAY_PLUGIN, "%s: ptrSupport %d does not include host memory",
			  play->net.table->name, p.ptr_support);
	else
		snprintf(play->device, sizeof(play->device), "%s", p.name ? p.name : "?");
	return atomic_load(&play->failed);
}

static int play_start_threads(struct play *play)
{
	int rc = pthread_create(&play->service_thread, NULL, service_main, play);

	play->service_started = rc == 0;
	if (!rc) {
		rc = pthread_create(&play->progress_thread, NULL, progress_main, play);
		play->progress_started = rc == 0;
	}
	if (rc)
		play_fail(play, PLAY_PEER, "can't start a thread: %s", strerror(rc));
	return atomic_load(&play->failed);
}

static struct play *play_alloc(const struct play_options *options)
{
	struct play *play = calloc(1, sizeof(*play));
	pthread_condattr_t attr;

	if (!play)
		return NULL;
	play->options = *options;
	play->slot_bytes = PLAY_SLOT_BYTES;
	play->rdv.rank = options->rank;
	play->rdv.ranks = options->ranks;
	play->rdv.timeout_ns = (uint64_t)(play->options.timeout_s * 2e9);
	play->rdv.interrupted = &play->interrupted;
	play->rdv.listen_fd = -1;
	for (int r = 0; r < PLAY_RANKS_MAX; r++)
		play->rdv.fds[r] = -1;
	gethostname(play->host, sizeof(play->host) - 1);
	pthread_mutex_init(&play->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&play->main_cond, &attr);
	pthread_cond_init(&play->service_cond, &attr);
	pthread_cond_init(&play->progress_cond, &attr);
	pthread_condattr_destroy(&attr);
	return play;
}

int play_open(const struct play_options *options, struct play **out, char *error, size_t error_len)
{
	struct play *play;
	uint64_t session;
	int rc;

	*out = NULL;
	if (error_len)
		error[0] = 0;
	play = play_alloc(options);
	if (!play) {
		snprintf(error, error_len, "out of memory");
		return PLAY_PEER;
	}
	log_attach(play);
	/* The caller owns the strings. */
	play->options.plugin = NULL;
	play->options.root = NULL;
	if (net_open(&play->net, options->plugin, play->error, sizeof(play->error)))
		atomic_store(&play->failed, PLAY_PLUGIN);
	rc = atomic_load(&play->failed);
	if (!rc) {
		rc = rdv_open(&play->rdv, options->root, &session);
		if (rc)
			play_fail(play, (enum play_result)rc, "%s", play->rdv.error);
	}
	if (!rc)
		rc = play_init_net(play, session);
	if (!rc)
		rc = play_start_threads(play);
	if (rc) {
		snprintf(error, error_len, "%s", play->error);
		play_close(play);
		return rc;
	}
	*out = play;
	return PLAY_OK;
}

static void play_free(struct play *play)
{
	if (play->channels)
		for (int c = 0; c < play->options.channels; c++)
			free(play->channels[c].handle);
	free(play->channels);
	free(play->handles);
	pthread_cond_destroy(&play->main_cond);
	pthread_cond_destroy(&play->service_cond);
	pthread_cond_destroy(&play->progress_cond);
	pthread_mutex_destroy(&play->lock);
	free(play);
}

/* Stops the threads. False if one is stuck in the plugin. */
static bool play_stop_threads(struct play *play)
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
	pthread_mutex_unlock(&play->lock);
	if (play->stuck)
		return false;
	if (play->progress_started)
		pthread_join(play->progress_thread, NULL);
	if (play->service_started)
		pthread_join(play->service_thread, NULL);
	return true;
}

int play_close(struct play *play)
{
	int failed, rc;

	if (!play)
		return PLAY_OK;
	failed = atomic_load(&play->failed);
	if (failed)
		rdv_fail(&play->rdv, play->error);
	if (!play_stop_threads(play)) {
		rdv_close(&play->rdv);
		return PLAY_HANG;
	}
	rdv_close(&play->rdv);
	rc = net_finalize(&play->net);
	if (rc)
		play_fail_call(play, "finalize", rc, 0, -1);
	net_close(&play->net);
	rc = failed ? PLAY_OK : atomic_load(&play->failed);
	if (rc)
		log_line(NCCL_LOG_WARN, __func__, __LINE__, "while closing: %s", play->error);
	log_attach(NULL);
	play_free(play);
	return rc;
}
