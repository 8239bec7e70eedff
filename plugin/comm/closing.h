/* SPDX-License-Identifier: Apache-2.0 */
/*
 * closing.h - comms that their application has closed: the control thread ends them, so that closing
 * waits for nothing.
 *
 * Most are ended at once. A buffered send (comm_send.c) is done when a kernel lane's socket has
 * taken it. If that lane is reset before the network has delivered the message, only its comm can
 * send it again. So a comm that still owes one stays for a while.
 */
#ifndef HARP_PLUGIN_CLOSING_H
#define HARP_PLUGIN_CLOSING_H

#include <stdbool.h>
#include <stdint.h>

struct comm;

/* Takes a comm that is on no list of its context and has no request in flight. end() ends it, on
 * the control thread, in the order of closing unless something is owed. Never waits. */
void closing_take(struct comm *comm, void (*end)(struct comm *comm));
/* Is there a comm that has not been ended? */
bool closing_is_used(void);
/* Returns when all have been ended. Those that owe something get so much time. Not by the
 * control thread, one caller at a time. */
void closing_finish(uint64_t timeout_ns);

#endif
