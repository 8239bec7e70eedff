/* SPDX-License-Identifier: Apache-2.0 */
/* util.h - array length, the struct that contains a member, removal from a singly linked list.
 * <sys/queue.h> has doubly linked lists. */
#ifndef HARP_BASE_UTIL_H
#define HARP_BASE_UTIL_H

#include <stddef.h>

#define ARRAY_SIZE(array) (sizeof(array) / sizeof((array)[0]))
#ifndef container_of /* rte_common.h defines it, too */
#define container_of(pointer, type, member)                                                        \
	((type *)(void *)((char *)(pointer)-offsetof(type, member)))
#endif

/* Removes an item that may be in a list linked by the member `next`. */
#define LIST_UNLINK(head, item, next)                                                              \
	do {                                                                                       \
		__typeof__(head) *list_at = &(head);                                               \
		while (*list_at && *list_at != (item))                                             \
			list_at = &(*list_at)->next;                                               \
		if (*list_at)                                                                      \
			*list_at = (*list_at)->next;                                               \
	} while (0)

#endif
