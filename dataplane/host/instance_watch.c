/* SPDX-License-Identifier: Apache-2.0 */
/* instance_watch.c - see instance_watch.h. */
#include "host/instance_watch.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "host/instance.h"

void watch_init(struct watch *watch)
{
	pthread_mutex_init(&watch->lock, NULL);
	watch->fd = -1;
}

void watch_close(struct watch *watch)
{
	if (watch->fd >= 0)
		close(watch->fd);
	pthread_mutex_destroy(&watch->lock);
}

/* The socket for another device, in the steering map already: until it is taken up it has no frames. */
static int watch_receiver(struct harp_instance *instance, const struct xdp_shared_place *place)
{
	struct watch *watch = &instance->watch;
	int fd = harp_nic_af_xdp_receiver(instance->nic, place->ifindex, place->netns_fd), rc;

	if (fd < 0)
		return fd;
	rc = instance->api->xsk_set(instance->xdp, instance->queue, fd);
	if (rc) {
		close(fd);
		return rc;
	}
	if (watch->fd >= 0) /* nobody took up the last one */
		close(watch->fd);
	watch->fd = fd;
	watch->generation = place->generation;
	return 0;
}

/* What was attached is there again, and packets come from where they came: the socket is in no map any more. */
static int watch_again(struct harp_instance *instance)
{
	const struct watch *watch = &instance->watch;

	return instance->api->xsk_set(instance->xdp, instance->queue,
				      watch->fd >= 0 ? watch->fd
						     : harp_nic_af_xdp_fd(instance->nic));
}

bool watch_look(void *ctx)
{
	struct harp_instance *instance = ctx;
	struct watch *watch = &instance->watch;
	struct xdp_shared_place place;
	char text[sizeof(watch->text)];
	int rc = xdp_shared_look(instance->shared, &place, text, sizeof(text));
	bool there = !rc, moved, news;

	pthread_mutex_lock(&watch->lock);
	moved = there && place.generation != watch->generation;
	if (moved)
		rc = watch_receiver(instance, &place);
	else if (there && watch->error)
		rc = watch_again(instance);
	if (there && rc)
		snprintf(text, sizeof(text), "%s: a socket for its packets: %s", instance->ifname,
			 strerror(-rc));
	/* The kernel answers for us. */
	if (rc)
		instance->api->xsk_set(instance->xdp, instance->queue, -1);
	news = rc != watch->error || (!rc && (moved || text[0]));
	if (news) {
		watch->error = rc;
		snprintf(watch->text, sizeof(watch->text), "%s", text);
		watch->news = true;
	}
	pthread_mutex_unlock(&watch->lock);
	return news;
}

int watch_news(struct harp_instance *instance)
{
	struct watch *watch = &instance->watch;
	int rc;

	if (!instance->shared)
		return 0;
	pthread_mutex_lock(&watch->lock);
	if (watch->news && watch->text[0])
		instance_log(instance, HARP_LOG_WARN, "%s", watch->text);
	if (watch->fd >= 0) {
		rc = harp_nic_af_xdp_receive_by(instance->nic, watch->fd);
		watch->fd = -1;
		if (!rc)
			harp_stack_receive_anew(instance->stack);
		else
			watch->generation--; /* the next look makes another */
	}
	watch->news = false;
	rc = watch->error;
	pthread_mutex_unlock(&watch->lock);
	return rc && rc != -ENODEV ? -ENOLINK : rc;
}
