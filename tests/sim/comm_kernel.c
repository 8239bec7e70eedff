/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm_kernel.c - what kernel_driver.c finds of a kernel and of threads: epolls over comm_stream.c's sockets, and workers
 * under the virtual clock (in the place of forkguard.c, workers.c and parallel.c).
 *
 * Theory of operation. An epoll is a list of sockets, edge-triggered: each is told once of what came since. Nobody
 * sleeps in one: the plugin asks when it looks, and who does not look does not hear.
 *
 * Workers have turns of a driver as workers.c gives them: from a kick on as long as bytes move and a little longer.
 */
#include "comm_stream.h"

#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "process/forkguard.h"
#include "process/parallel.h"

#define KERNEL_EPOLL_FD 2000000
#define KERNEL_EPOLLS_MAX 256u
#define KERNEL_EPOLL_SOCKETS_MAX COMM_LANES_MAX
#define KERNEL_WORKER_NS 20000u /* between two turns of a worker, at most */
#define KERNEL_SPIN_NS 50000u

struct kernel_epoll {
	bool open;
	unsigned count;
	int fds[KERNEL_EPOLL_SOCKETS_MAX];
};

static struct csim *kernel_sim; /* whose drivers are made: it is not said */
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
	return kernel_sim->worker_count;
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

int __wrap_epoll_ctl(int epoll_fd, int op, int fd, struct epoll_event *event);
int __wrap_epoll_ctl(int epoll_fd, int op, int fd, struct epoll_event *event)
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

int __wrap_epoll_wait(int epoll_fd, struct epoll_event *events, int max, int timeout_ms);
int __wrap_epoll_wait(int epoll_fd, struct epoll_event *events, int max, int timeout_ms)
{
	struct kernel_epoll *e = kernel_epoll(epoll_fd);
	int count = 0;

	if (timeout_ms)
		abort(); /* with a baton held */
	for (unsigned i = 0; i < e->count && count < max; i++) {
		uint32_t what = csim_stream_events(e->fds[i]);

		if (what)
			events[count++] = (struct epoll_event){
				.events = what, .data.ptr = csim_stream_watch(e->fds[i])->data
			};
	}
	return count;
}

/* ---- workers ----------------------------------------------------------------------------------- */

static struct csim_worker *kernel_worker(const struct kernel_driver *kd)
{
	for (unsigned i = 0; i < kernel_sim->worker_count; i++) {
		if (kernel_sim->workers[i].kd == kd)
			return &kernel_sim->workers[i];
	}
	return NULL;
}

void workers_enter(struct kernel_driver *kd, int dev)
{
	(void)dev;
	if (kernel_sim->worker_count == CSIM_WORKERS_MAX)
		abort();
	kernel_sim->workers[kernel_sim->worker_count++] = (struct csim_worker){
		.kd = kd, .host = kernel_sim->opening_host, .due_ns = CSIM_NEVER_NS
	};
}

void workers_leave(struct kernel_driver *kd)
{
	struct csim_worker *w = kernel_worker(kd);

	if (w)
		*w = kernel_sim->workers[--kernel_sim->worker_count];
	else
		(void)csim_fail(kernel_sim, "a kernel driver that is not open was closed");
}

static void worker_soon(struct csim_worker *w)
{
	uint64_t due_ns = kernel_sim->now_ns + 1 + rng_below(&kernel_sim->rng, KERNEL_WORKER_NS);

	if (due_ns < w->due_ns)
		w->due_ns = due_ns;
}

void workers_kick(struct kernel_driver *kd)
{
	struct csim_worker *w = kernel_worker(kd);

	if (!kernel_sim->scenario->world.kernel_threads || !w)
		return;
	w->busy_ns = kernel_sim->now_ns;
	worker_soon(w);
}

static void worker_turn(struct csim_worker *w)
{
	struct kernel_driver *kd = w->kd;
	uint64_t now_ns = kernel_sim->now_ns, moved_bytes = kd->moved_bytes;

	w->due_ns = CSIM_NEVER_NS;
	(void)driver_turn(&kd->driver, now_ns); /* which may be its last */
	w = kernel_worker(kd);
	if (!w)
		return;
	if (kd->moved_bytes != moved_bytes)
		w->busy_ns = now_ns;
	if (now_ns < w->busy_ns + KERNEL_SPIN_NS)
		worker_soon(w);
}

void csim_workers_run(struct csim *sim)
{
	for (unsigned i = 0; i < sim->worker_count; i++) {
		struct csim_worker *w = &sim->workers[i];

		if (w->due_ns <= sim->now_ns && !csim_frozen(sim, w->host))
			worker_turn(w);
	}
}

uint64_t csim_workers_next_ns(const struct csim *sim)
{
	uint64_t next_ns = CSIM_NEVER_NS;

	for (unsigned i = 0; i < sim->worker_count; i++) {
		const struct csim_worker *w = &sim->workers[i];
		uint64_t thaw_ns = sim->hosts[w->host].freeze_until_ns;
		uint64_t due_ns = w->due_ns > thaw_ns ? w->due_ns : thaw_ns;

		next_ns = w->due_ns != CSIM_NEVER_NS && due_ns < next_ns ? due_ns : next_ns;
	}
	return next_ns;
}

struct parallel parallel_of(int dev)
{
	(void)dev;
	return (struct parallel){ .lanes = 1,
				  .threads = (unsigned)kernel_sim->scenario->world.kernel_threads };
}
