/* SPDX-License-Identifier: Apache-2.0 */
/*
 * background.h - the control thread's work for comms: those that are not polled, and closed ones.
 *
 * The control thread advances each multi-lane comm even if its application does not poll: 50 times
 * a second while data is under way, so that a lane's death is noticed and other lanes take over,
 * and 10 times a second otherwise. It also reads the kernel lanes of a receiver whose application
 * has stopped polling, because no event wakes a thread for them.
 *
 * It also ends closed comms, so that the application's close call does not wait. Most end at once.
 * A buffered send (comm_send.c) is done when a kernel lane's socket has accepted it. If that lane is
 * reset before the message is delivered, only the comm can resend it. So a comm with undelivered
 * messages lives on for a while.
 */
#ifndef HARP_PLUGIN_BACKGROUND_H
#define HARP_PLUGIN_BACKGROUND_H

#include "poll/control.h"

struct comm;

/* Embedded in a comm; owned by the control thread. */
struct comm_background {
	struct control_timer timer;
	struct work begin_work, close_work;
	uint64_t deadline_ns; /* of the end of a closed comm; 0: it is open */
	void (*end)(struct comm *comm);
};

/* Any thread. */
void background_begin(struct comm *comm);
/* When this returns, the control thread no longer uses the comm. No poller held. */
void background_end(struct comm *comm);

/* Takes a comm that is off its context's list and has no outstanding requests. The control thread
 * calls end() for it, in the order of closing except for comms with undelivered messages. Never
 * waits. */
void closing_take(struct comm *comm, void (*end)(struct comm *comm));
/* Returns when all closed comms have ended: at once, or up to 2 s after the close of a comm with
 * undelivered messages. Not called by the control thread; one caller at a time. */
void closing_finish(void);

#endif
