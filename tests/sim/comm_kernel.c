/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm_kernel.c - the simulated kernel's epoll over comm_stream.c's sockets; replaces forkguard.c.
 *
 * Theory of operation. An epoll is a list of sockets, edge-triggered: each new event is reported once. No thread sleeps in
 * one; the plugin asks in its turns.
 */
#include "device/device.h"
#include "process/config.h"
#include "comm_stream.h"

#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "process/forkguard.h"

#define KERNEL_EPOLL_FD 2000000
#define KERNEL_EPOLLS_MAX 256u
#define KERNEL_EPOLL_SOCKETS_MAX COMM_LANES_MAX

struct kernel_epoll {
	bool open;
	unsigned count;
	int fds[KERNEL_EPOLL_SOCKETS_MAX];
};

static struct csim *kernel_sim; /* the running one */
static struct kernel_epoll kernel_epolls[KERNEL_EPOLLS_MAX];

void csim_kernel_begin(struct csim *sim)
{
	kernel_sim = sim;
	memset(kernel_epolls, 0, sizeof(kernel_epolls));
}

bool csim_kernel_is_left(void)
{
	for (unsigned i = 0; i < KERNEL_EPOLLS_MAX; i++) {
		if (kernel_epolls[i].open)
			return true;
	}
	return false;
}

/* ---- epoll ------------------------------------------------------------------------------------- */

static struct kernel_epoll *kernel_epoll(int fd)
{
	struct kernel_epoll *e = &kernel_epolls[fd - KERNEL_EPOLL_FD];

	if (fd < KERNEL_EPOLL_FD || fd >= KERNEL_EPOLL_FD + (int)KERNEL_EPOLLS_MAX || !e->open)
		abort();
	return e;
}

/* Sometimes there is no descriptor left. */
int forkguard_epoll(void)
{
	if (csim_chance(&kernel_sim->rng, kernel_sim->scenario->world.no_epoll_ppm))
		return -1;
	for (int i = 0; i < (int)KERNEL_EPOLLS_MAX; i++) {
		if (!kernel_epolls[i].open) {
			kernel_epolls[i] = (struct kernel_epoll){ .open = true };
			return KERNEL_EPOLL_FD + i;
		}
	}
	abort();
}

int forkguard_socket(int family)
{
	(void)family;
	abort(); /* connections are comm_lanes.c's */
}

static void kernel_epoll_remove(struct kernel_epoll *e, int fd)
{
	for (unsigned i = 0; i < e->count; i++) {
		if (e->fds[i] == fd) {
			memmove(e->fds + i, e->fds + i + 1, (--e->count - i) * sizeof(e->fds[0]));
			csim_stream_watch(fd)->epoll_fd = -1;
			return;
		}
	}
	abort();
}

/* A socket that is closed leaves its epoll, and sockets stay when that is. */
void forkguard_close(int fd)
{
	struct kernel_epoll *e;
	int epoll_fd;

	if (fd < KERNEL_EPOLL_FD) {
		epoll_fd = csim_stream_watch(fd)->epoll_fd;
		if (epoll_fd >= 0)
			kernel_epoll_remove(kernel_epoll(epoll_fd), fd);
		csim_stream_close(fd);
		return;
	}
	e = kernel_epoll(fd);
	while (e->count)
		kernel_epoll_remove(e, e->fds[0]);
	e->open = false;
}

int epoll_ctl(int epoll_fd, int op, int fd, struct epoll_event *event)
{
	struct kernel_epoll *e = kernel_epoll(epoll_fd);

	if (op == EPOLL_CTL_DEL) {
		kernel_epoll_remove(e, fd);
		return 0;
	}
	if (op != EPOLL_CTL_ADD || e->count == KERNEL_EPOLL_SOCKETS_MAX ||
	    csim_stream_watch(fd)->epoll_fd >= 0 || !(event->events & EPOLLET))
		abort();
	e->fds[e->count++] = fd;
	*csim_stream_watch(fd) =
		(struct stream_watch){ epoll_fd, event->events, event->data.ptr, true };
	return 0;
}

int epoll_wait(int epoll_fd, struct epoll_event *events, int max, int timeout_ms)
{
	struct kernel_epoll *e = kernel_epoll(epoll_fd);
	int count = 0;

	if (timeout_ms)
		abort(); /* with a poller held */
	for (unsigned i = 0; i < e->count && count < max; i++) {
		uint32_t what = csim_stream_events(e->fds[i]);

		if (what)
			events[count++] = (struct epoll_event){
				.events = what, .data.ptr = csim_stream_watch(e->fds[i])->data
			};
	}
	return count;
}

/* ---- in the place of parallel.c ------------------------------------------------------------------ */

unsigned device_kernel_lanes(const struct device *device)
{
	(void)device;
	return 1;
}
