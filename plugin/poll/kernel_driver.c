/* SPDX-License-Identifier: Apache-2.0 */
/* kernel_driver.c - kernel lanes that share a driver; see kernel_driver.h. */
#include "poll/kernel_driver.h"

#include <errno.h>
#include <stddef.h>
#include <sys/epoll.h>

#include "process/forkguard.h"

/*
 * Theory of operation
 *
 * NCCL polls, thousands of times between two messages. With 16 lanes each poll would be 16 recv()s that say
 * EAGAIN; so the members of a driver that has several are in an epoll, edge-triggered, and a turn
 * that finds no member known to be ready asks it once. A member that gave less than it was asked for, or took
 * less, is drained until the next edge. The end of a stream has an edge as well, which a read of the
 * data before it would swallow: it is remembered (`ended`) until recv() itself has told it.
 *
 * Small messages come on the same lane again and again. So most looks believe that the lane which was read
 * last is readable, and leave epoll alone: a message then costs one recv(), as on a single lane. A driver
 * whose epoll has had nothing to say for a while is asked every eighth time only, by which the first bytes on a
 * lane long silent come a few microseconds later, and a comm of several drivers polls almost as fast as
 * one of one. Where turns are rare, as those of who looks after a receiver that does not poll (tender.c), each asks.
 *
 * A driver with one member has no epoll: to look is to try.
 *
 * Now and then all members are tried whatever epoll says: a send that failed for want of memory while
 * nothing is in flight has no acknowledgement to come that would make an edge.
 */

#define EVENTS_MAX 32
#define LOOKS_UNTIL_ALL 4096u
#define SILENT_LOOKS 64u
#define RARE_NS 10000000u /* from a turn to the next */

static void kernel_driver_advance(struct driver *driver, uint64_t now_ns)
{
	struct kernel_driver *kd = (struct kernel_driver *)driver;

	kd->looked = false;
	kd->rare = now_ns - kd->turned_ns >= RARE_NS;
	kd->turned_ns = now_ns;
	kd->turn(kd, now_ns);
}

void kernel_driver_open(struct kernel_driver *kd, int dev,
			void (*turn)(struct kernel_driver *kd, uint64_t now_ns))
{
	driver_init(&kd->driver, kernel_driver_advance);
	kd->turn = turn;
	kd->members = NULL;
	kd->hot = NULL;
	kd->count = 0;
	kd->looks = 0;
	kd->silent = 0;
	kd->epoll_fd = -1;
	kd->looked = false;
	kd->rare = false;
	kd->turned_ns = 0;
	kd->moved_bytes = 0;
	workers_enter(kd, dev);
}

void kernel_driver_close(struct kernel_driver *kd)
{
	workers_leave(kd);
	if (kd->epoll_fd >= 0)
		forkguard_close(kd->epoll_fd);
	kd->epoll_fd = -1;
}

void kernel_driver_run(struct kernel_driver *kd, uint64_t now_ns)
{
	struct driver *driver = &kd->driver;

	if (!driver_take(driver))
		return;
	kd->looked = true;
	(void)driver_run_ready(driver, driver_turn_clock(driver, now_ns));
	driver_give(driver);
}

static bool kernel_driver_watch(struct kernel_driver *kd, struct kernel_member *member)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
				     .data.ptr = member };

	return !epoll_ctl(kd->epoll_fd, EPOLL_CTL_ADD, member->fd, &event);
}

/* Without it (no descriptor or memory left) every look tries every member. */
static void kernel_driver_unwatch_all(struct kernel_driver *kd)
{
	if (kd->epoll_fd >= 0)
		forkguard_close(kd->epoll_fd);
	kd->epoll_fd = -1;
}

static void kernel_driver_watch_all(struct kernel_driver *kd)
{
	kd->epoll_fd = forkguard_epoll();
	for (struct kernel_member *m = kd->members; m && kd->epoll_fd >= 0; m = m->next)
		if (!kernel_driver_watch(kd, m))
			kernel_driver_unwatch_all(kd);
}

void kernel_driver_add(struct kernel_driver *kd, struct kernel_member *member)
{
	if (member->home)
		kernel_driver_remove(member);
	member->home = kd;
	member->readable = true;
	member->writable = true;
	member->next = kd->members;
	kd->members = member;
	kd->count++;
	if (kd->count == 2)
		kernel_driver_watch_all(kd);
	else if (kd->epoll_fd >= 0 && !kernel_driver_watch(kd, member))
		kernel_driver_unwatch_all(kd);
}

void kernel_driver_remove(struct kernel_member *member)
{
	struct kernel_driver *kd = member->home;
	struct kernel_member **at;

	if (!kd)
		return;
	for (at = &kd->members; *at != member; at = &(*at)->next)
		;
	*at = member->next;
	member->home = NULL;
	if (kd->hot == member)
		kd->hot = NULL;
	if (kd->epoll_fd >= 0)
		(void)epoll_ctl(kd->epoll_fd, EPOLL_CTL_DEL, member->fd, NULL);
	if (--kd->count == 1)
		kernel_driver_unwatch_all(kd);
}

static void kernel_driver_try_all(struct kernel_driver *kd)
{
	for (struct kernel_member *m = kd->members; m; m = m->next)
		m->readable = m->writable = true;
}

void kernel_driver_look(struct kernel_driver *kd)
{
	struct epoll_event events[EVENTS_MAX];
	int count;

	if (kd->looked)
		return;
	kd->looked = true;
	kd->looks++;
	if (kd->epoll_fd < 0 || kd->looks % LOOKS_UNTIL_ALL == 0) {
		kernel_driver_try_all(kd);
		return;
	}
	if (!kd->rare && kd->looks % (kd->silent < SILENT_LOOKS ? 2 : 8)) {
		if (kd->hot)
			kd->hot->readable = true;
		if (kd->hot || kd->silent >= SILENT_LOOKS)
			return;
	}
	count = epoll_wait(kd->epoll_fd, events, EVENTS_MAX, 0);
	if (count > 0)
		kd->silent = 0;
	else if (kd->silent < SILENT_LOOKS)
		kd->silent++;
	for (int i = 0; i < count; i++) {
		struct kernel_member *member = events[i].data.ptr;

		if (events[i].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))
			member->ended = true;
		if (events[i].events & EPOLLIN || member->ended)
			member->readable = true;
		if (events[i].events & (EPOLLOUT | EPOLLHUP | EPOLLERR))
			member->writable = true;
	}
}
