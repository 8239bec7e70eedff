/* SPDX-License-Identifier: Apache-2.0 */
/* memfd.h - memory that processes share by passing a descriptor. */
#ifndef HARP_BASE_MEMFD_H
#define HARP_BASE_MEMFD_H

#include <fcntl.h>
#include <stddef.h>

/* Fixes the size: a process that maps the memory must not get SIGBUS because another truncates
 * it. */
#define MEMFD_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/* Creates a close-on-exec memfd with MEMFD_SEALS. flags: MFD_*. The descriptor, or -errno. */
int memfd_sealed(const char *name, unsigned flags, size_t bytes);

#endif
