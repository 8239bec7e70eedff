/* SPDX-License-Identifier: Apache-2.0 */
/*
 * linger.h - comms that their application has closed, and that still have something of their own to see through.
 *
 * A message that is kept (comm_kept.c) is done when a kernel lane's socket has taken it. Should that lane be reset before the
 * network has delivered it, nobody but its comm can send it again. So the comm stays for a while, at no cost to who closes.
 */
#ifndef HARP_PLUGIN_LINGER_H
#define HARP_PLUGIN_LINGER_H

#include <stdbool.h>
#include <stdint.h>

struct comm;

/* Takes a comm that is on no list of its context's any more, whose end close() makes later, in a thread of its own.
 * False: nothing is owed, or there is no thread; it is the caller's to close. No baton, no lock held. */
bool linger_take(struct comm *comm, void (*close)(struct comm *comm));
/* Is there a thread, and perhaps a comm? */
bool linger_is_used(void);
/* When it returns neither is left, after so long at the latest. One at a time; as above. */
void linger_finish(uint64_t patience_ns);

#endif
