/* SPDX-License-Identifier: Apache-2.0 */
/*
 * background.h - the control thread advances a multi-lane comm that its application does not poll.
 *
 * It sees through what is on its way over lanes that no thread polls, acknowledgments among it: a lane that dies is
 * noticed, and others take over. While nothing is on its way the comm sleeps, and wakes the control thread when a lane is
 * given something. A receiver's kernel lanes, which wake no thread, are read once a second then, and ten times a second before.
 */
#ifndef HARP_PLUGIN_BACKGROUND_H
#define HARP_PLUGIN_BACKGROUND_H

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

#endif
