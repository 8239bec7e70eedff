/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu.c - the GPU, where it needs a thread of its own: it reads slots while they are being filled.
 *
 * It calls nothing of the plugin and shares with the progress thread what play.h says of struct
 * conn. It leaves its part undone when the rank fails.
 */
#include <sched.h>

#include "play.h"

static void gpu_op(struct ncclplay *play, struct op *op)
{
	int rc = 0;

	while (rc >= 0 && !atomic_load_explicit(&play->failed, memory_order_relaxed) &&
	       !atomic_load_explicit(&play->abort, memory_order_relaxed)) {
		rc = op->gpu(op);
		if (rc == 0)
			sched_yield();
	}
}

void *gpu_main(void *arg)
{
	struct ncclplay *play = arg;

	pthread_setname_np(pthread_self(), "play-gpu");
	pthread_mutex_lock(&play->lock);
	while (!play->exiting) {
		struct op *op = play->gpu_op;

		if (!op) {
			pthread_cond_wait(&play->gpu_cond, &play->lock);
			continue;
		}
		pthread_mutex_unlock(&play->lock);
		gpu_op(play, op);
		pthread_mutex_lock(&play->lock);
		play->gpu_op = NULL;
		pthread_cond_broadcast(&play->main_cond);
	}
	pthread_mutex_unlock(&play->lock);
	return NULL;
}
