/* SPDX-License-Identifier: Apache-2.0 */
/*
 * instance_watch.h - whether what brings an instance its packets is still there: the steering program and the
 * device beside the interface. Stand-alone instances on AF_XDP only; harpd looks after a lease's.
 *
 * The asker's thread looks, and makes what has to be made; who polls takes it up.
 */
#ifndef HARP_HOST_INSTANCE_WATCH_H
#define HARP_HOST_INSTANCE_WATCH_H

#include <pthread.h>
#include <stdbool.h>

struct harp_instance;

struct watch {
	pthread_mutex_t lock; /* of all that follows */
	bool news;
	unsigned generation; /* of the device that the socket receives from: xdp_shared_look() */
	int fd;              /* to receive by from now on; -1: as before */
	int error;           /* 0, or why nothing comes */
	char text[320];      /* for people; may be empty */
};

void watch_init(struct watch *watch);
/* Nobody looks any more. */
void watch_close(struct watch *watch);
/* Asker's thread. ctx: the instance. True: there is news to take up. */
bool watch_look(void *ctx);
/* Takes it up, by the thread that polls. 0; -ENODEV the interface is gone; -ENOLINK nothing comes, and that is
 * tried to be mended. */
int watch_news(struct harp_instance *instance);

#endif
