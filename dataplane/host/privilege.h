/* SPDX-License-Identifier: Apache-2.0 */
/* privilege.h - the capabilities that an instance needs and this process lacks. */
#ifndef HARP_HOST_PRIVILEGE_H
#define HARP_HOST_PRIVILEGE_H

#include <stdbool.h>
#include <stddef.h>

/* Writes the missing capabilities ("CAP_BPF, CAP_NET_RAW"), and returns their number. */
unsigned privilege_missing(char *buf, size_t len);
/* True if this process may lock this many bytes. */
bool privilege_memlock(size_t bytes);

#endif
