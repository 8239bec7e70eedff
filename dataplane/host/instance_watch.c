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
	int fd = harp_nic_af_xdp_receiver(instance->nic, place->ifindex, place->netns_fd), rc;

	if (fd < 0)
		return fd;
	rc = instance->api->xsk_set(instance->xdp, instance->queue, fd);
	if (!rc)
		return fd;
	close(fd);
	return rc;
}

bool watch_look(void *ctx)
{
	struct harp_instance *instance = ctx;
	struct watch *watch = &instance->watch;
	struct xdp_shared_place place;
	char text[sizeof(watch->text)];
	int rc = xdp_shared_look(instance->shared, &place, text, sizeof(text)), fd = -1;
	bool news;

	pthread_mutex_lock(&watch->lock);
	if (!rc && place.generation != watch->generation) {
		fd = watch_receiver(instance, &place);
		rc = fd < 0 ? fd : 0;
		if (rc)
			snprintf(text, sizeof(text), "%s: a socket for its packets: %s",
				 instance->ifname, strerror(-rc));
		else
			watch->generation = place.generation;
	}
	/* The kernel answers for us. */
	if (rc)
		instance->api->xsk_set(instance->xdp, instance->queue, -1);
	news = fd >= 0 || rc != watch->error || (text[0] && !rc);
	if (news) {
		if (watch->fd >= 0)
			close(watch->fd);
		watch->fd = fd;
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
