/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel_poll.h - decides which kernel sockets of a comm are worth a system call.
 *
 * The comm's poller is held throughout.
 */
#ifndef HARP_PLUGIN_KERNEL_POLL_H
#define HARP_PLUGIN_KERNEL_POLL_H

#include <stdbool.h>
#include <stdint.h>

struct kernel_poll;

/* A socket's membership; embedded in its lane. */
struct kernel_member {
	struct kernel_poll *set; /* NULL: in no comm, always worth a call */
	struct kernel_member *next;
	int fd;
	bool readable, writable; /* may be; a short read or write clears it */
};

/* Zeroed at first. */
struct kernel_poll {
	struct kernel_member *members;
	struct kernel_member *hot; /* the last one that brought data */
	unsigned count;
	unsigned checks, silent; /* checks in all; calls of poll() in a row that found nothing */
	bool checked;            /* in this turn */
	bool rare;               /* the previous turn was RARE_NS ago or more */
	uint64_t turned_ns;      /* previous turn */
};

void kernel_poll_add(struct kernel_poll *poll, struct kernel_member *member);
void kernel_poll_remove(struct kernel_member *member);
/* Begins a turn of the comm. */
void kernel_poll_begin(struct kernel_poll *poll, uint64_t now_ns);
/* Finds out which members are ready: one poll(), or a guess. At most once a turn. */
void kernel_poll_check(struct kernel_poll *poll);

/* Is a system call worthwhile? flag: the member's readable or writable. */
static inline bool kernel_member_may(struct kernel_member *member, const bool *flag)
{
	if (!member->set || *flag)
		return true;
	if (!member->set->checked)
		kernel_poll_check(member->set);
	return *flag;
}

#endif
