/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel_poll.h - the kernel sockets of a comm: which of them are worth a system call.
 *
 * Everything is called by the thread that holds the comm's poller.
 */
#ifndef HARP_PLUGIN_KERNEL_POLL_H
#define HARP_PLUGIN_KERNEL_POLL_H

#include <stdbool.h>
#include <stdint.h>

struct kernel_poll;

/* A socket's membership; embedded in its lane. */
struct kernel_member {
	struct kernel_poll *home; /* NULL: on its own, always worth a call */
	struct kernel_member *next;
	int fd;
	bool readable, writable; /* as far as known: a short read or write clears it */
	bool ended;              /* FIN, RST or an error has come: stays readable */
};

struct kernel_poll {
	struct kernel_member *members;
	struct kernel_member *hot; /* the one that was read last */
	unsigned count;
	unsigned looks, silent; /* all looks; those in a row for which epoll had no event */
	int epoll_fd;           /* -1: fewer than two members, or no descriptor left */
	bool looked;            /* in this turn */
	bool rare;              /* the previous turn was long ago */
	uint64_t turned_ns;     /* the last turn */
};

void kernel_poll_init(struct kernel_poll *poll);
/* Closes its epoll: every look tries every member then. */
void kernel_poll_close(struct kernel_poll *poll);
void kernel_poll_add(struct kernel_poll *poll, struct kernel_member *member);
void kernel_poll_remove(struct kernel_member *member);
/* A turn of the comm begins. */
void kernel_poll_begin(struct kernel_poll *poll, uint64_t now_ns);
/* Finds out which members are ready: one epoll_wait(), or a guess. At most once a turn. */
void kernel_poll_look(struct kernel_poll *poll);

/* Is a call worth it? flag: the member's readable or writable. */
static inline bool kernel_member_may(struct kernel_member *member, const bool *flag)
{
	if (!member->home || *flag)
		return true;
	if (!member->home->looked)
		kernel_poll_look(member->home);
	return *flag;
}

#endif
