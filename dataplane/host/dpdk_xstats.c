/* SPDX-License-Identifier: Apache-2.0 */
/* dpdk_xstats.c - see dpdk_xstats.h. */
#include "host/dpdk_xstats.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/thread.h"
#include "harp_page.h"

#define XSTATS_PERIOD_NS UINT64_C(1000000000)

struct dpdk_xstats {
	const struct dpdk_port *port;
	struct harp_stack *stack;
	pthread_t id;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	bool stop;
	char names[HARP_PAGE_XSTATS_MAX][64];
	uint64_t values[HARP_PAGE_XSTATS_MAX];
	struct harp_page_xstat items[HARP_PAGE_XSTATS_MAX];
};

/* If the driver cannot answer, the last values stay. */
static void xstats_copy(struct dpdk_xstats *xstats, uint64_t now_ns)
{
	unsigned item_count = 0;
	int count;

	memset(xstats->names, 0, sizeof(xstats->names));
	count = xstats->port->api->port_xstats(xstats->port->port, xstats->names, xstats->values,
					       HARP_PAGE_XSTATS_MAX);
	if (count < 0)
		return;
	for (unsigned i = 0; i < (unsigned)count && i < HARP_PAGE_XSTATS_MAX; i++) {
		struct harp_page_xstat *item = &xstats->items[item_count];

		if (!xstats->names[i][0])
			continue;
		memcpy(item->name, xstats->names[i], sizeof(item->name));
		item->value = xstats->values[i];
		item_count++;
	}
	harp_stack_publish_xstats(xstats->stack, xstats->items, item_count, now_ns);
}

uint64_t dpdk_xstats_next_ns(uint64_t queried_ns, uint64_t answered_ns)
{
	uint64_t took_ns = answered_ns - queried_ns;

	return took_ns < XSTATS_PERIOD_NS / 2 ? queried_ns + XSTATS_PERIOD_NS
					      : answered_ns + took_ns;
}

static void *xstats_main(void *arg)
{
	struct dpdk_xstats *xstats = arg;
	struct timespec at;

	pthread_mutex_lock(&xstats->lock);
	while (!xstats->stop) {
		uint64_t queried_ns = clock_ns(), next_ns;

		pthread_mutex_unlock(&xstats->lock);
		xstats_copy(xstats, queried_ns);
		next_ns = dpdk_xstats_next_ns(queried_ns, clock_ns());
		at = clock_timespec(next_ns);
		pthread_mutex_lock(&xstats->lock);
		while (!xstats->stop && !pthread_cond_timedwait(&xstats->wake, &xstats->lock, &at))
			;
	}
	pthread_mutex_unlock(&xstats->lock);
	return NULL;
}

static void xstats_free(struct dpdk_xstats *xstats)
{
	pthread_cond_destroy(&xstats->wake);
	pthread_mutex_destroy(&xstats->lock);
	free(xstats);
}

int dpdk_xstats_start(struct dpdk_xstats **out, const struct dpdk_port *port,
		      struct harp_stack *stack, unsigned *count)
{
	int total = port->api->port_xstats(port->port, NULL, NULL, 0), rc;
	struct dpdk_xstats *xstats;

	*out = NULL;
	*count = total > 0 ? (unsigned)total : 0;
	if (!*count)
		return 0;
	xstats = calloc(1, sizeof(*xstats));
	if (!xstats)
		return -ENOMEM;
	xstats->port = port;
	xstats->stack = stack;
	pthread_mutex_init(&xstats->lock, NULL);
	thread_cond_init(&xstats->wake);
	rc = thread_start(&xstats->id, xstats_main, xstats, "harp-xstats");
	if (rc)
		xstats_free(xstats);
	else
		*out = xstats;
	return rc;
}

void dpdk_xstats_stop(struct dpdk_xstats *xstats)
{
	if (!xstats)
		return;
	pthread_mutex_lock(&xstats->lock);
	xstats->stop = true;
	pthread_cond_signal(&xstats->wake);
	pthread_mutex_unlock(&xstats->lock);
	pthread_join(xstats->id, NULL);
	xstats_free(xstats);
}
