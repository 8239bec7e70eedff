/* SPDX-License-Identifier: Apache-2.0 */
/*
 * background.h - what the control thread does for comms: those that are not polled, and those that are closed.
 *
 * It advances each multi-lane comm whether or not its application polls: 50 times a second while something is on
 * its way, so that a lane that dies is noticed and others take over, and 10 times a second otherwise. Then it also
 * reads the kernel lanes of a receiver whose application has stopped polling, as nothing wakes a thread for them.
 */
#ifndef HARP_PLUGIN_BACKGROUND_H
#define HARP_PLUGIN_BACKGROUND_H

#include <stdbool.h>
#include <stdint.h>

#include "poll/control.h"

struct comm;

/* Embedded; the control thread's. */
struct comm_background {
	struct comm *comm; /* NULL: it has ended */
	struct control_timer timer;
	struct work begin_work, end_work;
};

/* Any thread. */
void background_begin(struct comm_background *b, struct comm *comm);
/* The comm is not touched any more when this returns. begin_work may still be posted: free b by work that is posted to
 * the control thread afterwards. No poller held. */
void background_end(struct comm_background *b);

/*
 * Comms that their application has closed: the control thread ends them, so that closing waits for nothing.
 *
 * Most are ended at once. A buffered send (comm_send.c) is done when a kernel lane's socket has
 * taken it. If that lane is reset before the network has delivered the message, only its comm can
 * send it again. So a comm that still owes one stays for a while.
 */

/* Takes a comm that is on no list of its context and has no request in flight. end() ends it, on
 * the control thread, in the order of closing unless something is owed. Never waits. */
void closing_take(struct comm *comm, void (*end)(struct comm *comm));
/* Returns when all have been ended: at once, or up to 2 s after the close of one that owes something. Not by the
 * control thread, one caller at a time. */
void closing_finish(void);

#endif
