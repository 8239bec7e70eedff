/* SPDX-License-Identifier: Apache-2.0 */
/* util.h - array length, and the struct that contains a member. */
#ifndef HARP_BASE_UTIL_H
#define HARP_BASE_UTIL_H

#include <stddef.h>

#define ARRAY_SIZE(array) (sizeof(array) / sizeof((array)[0]))
#ifndef container_of /* rte_common.h defines it, too */
#define container_of(pointer, type, member)                                                        \
	((type *)(void *)((char *)(pointer)-offsetof(type, member)))
#endif

#endif
