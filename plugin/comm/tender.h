/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tender.h - a comm of several lanes is looked after though its application is away.
 *
 * What is on its way over lanes that nobody polls, acknowledgements among it, is seen through by the keeper: a lane
 * that died under it is noticed, and others take over. While nothing is on its way it rests, and the comm rouses it when a
 * lane is given something or woken; a receiver's kernel lanes, which nobody tells of, are read once a second then, and
 * ten times a second before.
 */
#ifndef HARP_PLUGIN_TENDER_H
#define HARP_PLUGIN_TENDER_H

#include "poll/keeper.h"

struct comm;

struct tender { /* embedded */
	struct comm *comm;
	struct keeper_timer timer;
	struct work begin_work, end_work;
	/* Keeper's baton. */
	unsigned beats, quiet_beats; /* all; the last ones, without anything to see through */
	bool rests;
};

/* Any baton. */
void tender_begin(struct tender *tender, struct comm *comm);
/* No baton: when it returns the comm is not looked at any more. */
void tender_end(struct tender *tender);

#endif
