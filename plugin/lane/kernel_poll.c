/* SPDX-License-Identifier: Apache-2.0 */
/* kernel_poll.c - see kernel_poll.h. */
#include "lane/kernel_poll.h"

#include <errno.h>
#include <stddef.h>
#include <sys/epoll.h>

#include "base/util.h"
#include "process/forkguard.h"

/*
 * Theory of operation
 *
 * NCCL polls thousands of times between two messages; with 16 sockets, each poll would be 16 recv()
 * calls that return EAGAIN. So the sockets of a comm with several are in an edge-triggered epoll.
 * After a short read or write, a socket is not called again until its next edge. `ended` records
 * the end of a stream, because reading the data before it consumes the edge.
 *
 * Small messages mostly arrive on the same socket. So most looks assume that the socket that was
 * read last is readable, and skip epoll: a message then costs one recv(). After SILENT_LOOKS looks
 * without an event, every eighth look calls epoll. Turns of the control thread are rare, so each
 * calls it.
 *
 * A single socket has no epoll: a look is a recv(). Every LOOKS_UNTIL_ALL looks, all sockets are
 * tried: if a send fails for lack of memory with nothing in flight, no acknowledgment makes an
 * edge.
 */

#define EVENTS_MAX 32
#define LOOKS_UNTIL_ALL 4096u
#define SILENT_LOOKS 64u
#define RARE_NS 10000000u /* between two turns */

void kernel_poll_init(struct kernel_poll *poll)
{
	*poll = (struct kernel_poll){ .epoll_fd = -1 };
}

void kernel_poll_close(struct kernel_poll *poll)
{
	if (poll->epoll_fd >= 0)
		forkguard_close(poll->epoll_fd);
	poll->epoll_fd = -1;
}

void kernel_poll_begin(struct kernel_poll *poll, uint64_t now_ns)
{
	poll->looked = false;
	poll->rare = now_ns - poll->turned_ns >= RARE_NS;
	poll->turned_ns = now_ns;
}

static bool kernel_poll_watch(struct kernel_poll *poll, struct kernel_member *member)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
				     .data.ptr = member };

	return !epoll_ctl(poll->epoll_fd, EPOLL_CTL_ADD, member->fd, &event);
}

/* On failure (no descriptor, no memory), every look tries every member. */
static void kernel_poll_watch_all(struct kernel_poll *poll)
{
	poll->epoll_fd = forkguard_epoll();
	for (struct kernel_member *m = poll->members; m && poll->epoll_fd >= 0; m = m->next)
		if (!kernel_poll_watch(poll, m))
			kernel_poll_close(poll);
}

void kernel_poll_add(struct kernel_poll *poll, struct kernel_member *member)
{
	if (member->home)
		kernel_poll_remove(member);
	member->home = poll;
	member->readable = true;
	member->writable = true;
	member->next = poll->members;
	poll->members = member;
	poll->count++;
	if (poll->count == 2)
		kernel_poll_watch_all(poll);
	else if (poll->epoll_fd >= 0 && !kernel_poll_watch(poll, member))
		kernel_poll_close(poll);
}

void kernel_poll_remove(struct kernel_member *member)
{
	struct kernel_poll *poll = member->home;

	if (!poll)
		return;
	LIST_UNLINK(poll->members, member, next);
	member->home = NULL;
	if (poll->hot == member)
		poll->hot = NULL;
	if (poll->epoll_fd >= 0)
		(void)epoll_ctl(poll->epoll_fd, EPOLL_CTL_DEL, member->fd, NULL);
	if (--poll->count == 1)
		kernel_poll_close(poll);
}

void kernel_poll_look(struct kernel_poll *poll)
{
	struct epoll_event events[EVENTS_MAX];
	int count;

	if (poll->looked)
		return;
	poll->looked = true;
	poll->looks++;
	if (poll->epoll_fd < 0 || poll->looks % LOOKS_UNTIL_ALL == 0) {
		for (struct kernel_member *m = poll->members; m; m = m->next)
			m->readable = m->writable = true;
		return;
	}
	if (!poll->rare && poll->looks % (poll->silent < SILENT_LOOKS ? 2 : 8)) {
		if (poll->hot)
			poll->hot->readable = true;
		if (poll->hot || poll->silent >= SILENT_LOOKS)
			return;
	}
	count = epoll_wait(poll->epoll_fd, events, EVENTS_MAX, 0);
	if (count > 0)
		poll->silent = 0;
	else if (poll->silent < SILENT_LOOKS)
		poll->silent++;
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
