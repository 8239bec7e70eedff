/* SPDX-License-Identifier: Apache-2.0 */
/* trust.h - the users whose programs and files this process trusts. */
#ifndef HARP_BASE_TRUST_H
#define HARP_BASE_TRUST_H

#include <stdbool.h>
#include <sys/types.h>

/*
 * True for root and this process's own user. In a user namespace (a rootless container) also for
 * unmapped users: the host's root is one of them, and the kernel shows them all with the same
 * number.
 */
bool trust_user(uid_t uid);

#endif
