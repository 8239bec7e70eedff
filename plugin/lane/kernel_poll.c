/* SPDX-License-Identifier: Apache-2.0 */
/* kernel_poll.c - see kernel_poll.h. */
#include "lane/kernel_poll.h"

#include <poll.h>
#include <stddef.h>

#include "base/util.h"

/*
 * Theory of operation
 *
 * NCCL polls thousands of times between two messages; with 16 sockets, each poll would be 16 recv()
 * calls that return EAGAIN. So a check of several sockets is one poll(). After a short read or
 * write, a socket is not called again until a check finds it ready.
 *
 * Small messages mostly arrive on the same socket. So most checks assume that the socket that was
 * read last is readable, and skip poll(), which takes 0.4 us for 4 sockets and 1 us for 16: a
 * message then costs one recv(). After SILENT_CHECKS calls that found nothing, poll() is called
 * less often. Turns of the control thread are rare, so each calls it. A check of a single socket is
 * a recv().
 */

#define MEMBERS_MAX 64u /* of one poll(); others are always tried */
#define CHECKS_PER_POLL(count) ((count) <= 4 ? 2u : 4u)
#define SILENT_CHECKS 64u
#define SILENT_TIMES 4u   /* as many checks per poll() */
#define RARE_NS 10000000u /* between two turns */

void kernel_poll_begin(struct kernel_poll *poll, uint64_t now_ns)
{
	poll->checked = false;
	poll->rare = now_ns - poll->turned_ns >= RARE_NS;
	poll->turned_ns = now_ns;
}

void kernel_poll_add(struct kernel_poll *poll, struct kernel_member *member)
{
	if (member->set)
		kernel_poll_remove(member);
	member->set = poll;
	member->readable = true;
	member->writable = true;
	member->next = poll->members;
	poll->members = member;
	poll->count++;
}

void kernel_poll_remove(struct kernel_member *member)
{
	struct kernel_poll *poll = member->set;

	if (!poll)
		return;
	LIST_UNLINK(poll->members, member, next);
	poll->count--;
	member->set = NULL;
	if (poll->hot == member)
		poll->hot = NULL;
}

/* Polls the members that are not known to be ready. Returns true if one became readable. */
static bool kernel_poll_update(struct kernel_poll *members)
{
	struct kernel_member *polled[MEMBERS_MAX];
	struct pollfd fds[MEMBERS_MAX];
	nfds_t count = 0;
	bool became_readable = false;

	for (struct kernel_member *m = members->members; m; m = m->next) {
		if (count == MEMBERS_MAX)
			m->readable = m->writable = true;
		if (m->readable && m->writable)
			continue;
		polled[count] = m;
		fds[count].fd = m->fd;
		fds[count++].events =
			(short)((m->readable ? 0 : POLLIN) | (m->writable ? 0 : POLLOUT));
	}
	if (!count || poll(fds, count, 0) <= 0)
		return false;
	for (nfds_t i = 0; i < count; i++) {
		bool ended = fds[i].revents & (POLLERR | POLLHUP);
		bool readable = fds[i].revents & POLLIN || ended;

		became_readable |= readable && !polled[i]->readable;
		polled[i]->readable |= readable;
		polled[i]->writable |= fds[i].revents & POLLOUT || ended;
	}
	return became_readable;
}

void kernel_poll_check(struct kernel_poll *poll)
{
	unsigned checks_per_poll = CHECKS_PER_POLL(poll->count);

	if (poll->checked)
		return;
	poll->checked = true;
	poll->checks++;
	if (poll->count == 1) {
		poll->members->readable = poll->members->writable = true;
		return;
	}
	if (poll->silent >= SILENT_CHECKS)
		checks_per_poll *= SILENT_TIMES;
	if (!poll->rare && poll->checks % checks_per_poll) {
		if (poll->hot)
			poll->hot->readable = true;
		if (poll->hot || poll->silent >= SILENT_CHECKS)
			return;
	}
	if (kernel_poll_update(poll))
		poll->silent = 0;
	else if (poll->silent < SILENT_CHECKS)
		poll->silent++;
}
