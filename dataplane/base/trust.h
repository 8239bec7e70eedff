/* SPDX-License-Identifier: Apache-2.0 */
/* trust.h - whose programs and files this process believes. */
#ifndef HARP_BASE_TRUST_H
#define HARP_BASE_TRUST_H

#include <stdbool.h>
#include <sys/types.h>

/*
 * root and this process's own user. In a user namespace (a rootless container) also every user whom the
 * namespace does not map: the host's root is one of them, and the kernel shows them all as one number.
 */
bool trust_user(uid_t uid);

#endif
