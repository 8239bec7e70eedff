/* SPDX-License-Identifier: Apache-2.0 */
/* trust.h - the users whose programs and files this process trusts. */
#ifndef HARP_BASE_TRUST_H
#define HARP_BASE_TRUST_H

#include <stdbool.h>
#include <sys/types.h>

/*
 * True for root and this process's user. In a user namespace (a rootless container) also true for
 * unmapped users. The kernel reports all of them, including the host's root, as one number.
 */
bool trust_user(uid_t uid);

#endif
