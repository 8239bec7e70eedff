/* SPDX-License-Identifier: Apache-2.0 */
/* memfd.h - memory that is shared by descriptor. */
#ifndef HARP_BASE_MEMFD_H
#define HARP_BASE_MEMFD_H

#include <stddef.h>

/* A memfd of that size with these seals (F_SEAL_*), closed on exec; or -errno. flags: MFD_*. */
int memfd_sealed(const char *name, unsigned flags, size_t bytes, int seals);

#endif
