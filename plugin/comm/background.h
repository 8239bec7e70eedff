/* SPDX-License-Identifier: Apache-2.0 */
/*
 * background.h - what the control thread does for comms: those that are not polled, and those that are closed.
 *
 * It advances a multi-lane comm that its application does not poll.
 *
 * It sees through what is on its way over lanes that no thread polls, acknowledgments among it: a lane that dies is
 * noticed, and others take over. While nothing is on its way the comm sleeps, and wakes the control thread when a lane is
 * given something. A receiver's kernel lanes, which wake no thread, are read once a second then, and ten times a second before.
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
	unsigned ticks, quiet_ticks; /* all; the last ones, which found nothing to see through */
	bool sleeps;
};

/* Any thread. */
void background_begin(struct comm_background *b, struct comm *comm);
/* The comm is not touched any more when this returns. Work may still be posted: free b by work that is posted to the
 * control thread afterwards. No poller held. */
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
/* Is there a comm that has not been ended? */
bool closing_is_used(void);
/* Returns when all have been ended. Those that owe something get so much time. Not by the
 * control thread, one caller at a time. */
void closing_finish(uint64_t timeout_ns);

#endif
