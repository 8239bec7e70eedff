/* SPDX-License-Identifier: Apache-2.0 */
/* util.h - array length, the struct that contains a member, lists. */
#ifndef HARP_BASE_UTIL_H
#define HARP_BASE_UTIL_H

#include <stddef.h>

#define ARRAY_SIZE(array) (sizeof(array) / sizeof((array)[0]))
#ifndef container_of /* rte_common.h defines it, too */
#define container_of(pointer, type, member)                                                        \
	((type *)(void *)((char *)(pointer)-offsetof(type, member)))
#endif

/* Takes an item that may be there off a list that goes through `next`. */
#define LIST_UNLINK(head, item, next)                                                              \
	do {                                                                                       \
		__typeof__(head) *list_at = &(head);                                               \
		while (*list_at && *list_at != (item))                                             \
			list_at = &(*list_at)->next;                                               \
		if (*list_at)                                                                      \
			*list_at = (*list_at)->next;                                               \
	} while (0)

/* Lists that go through `next` and `pprev`. */
#define CHAIN_ADD(head, item)                                                                      \
	do {                                                                                       \
		(item)->next = (head);                                                             \
		(item)->pprev = &(head);                                                           \
		if ((item)->next)                                                                  \
			(item)->next->pprev = &(item)->next;                                       \
		(head) = (item);                                                                   \
	} while (0)
#define CHAIN_REMOVE(item)                                                                         \
	do {                                                                                       \
		*(item)->pprev = (item)->next;                                                     \
		if ((item)->next)                                                                  \
			(item)->next->pprev = (item)->pprev;                                       \
	} while (0)

#endif
