/* SPDX-License-Identifier: Apache-2.0 */
/* handshake.h - the preamble (wire/preamble.h) over a lane, and the comm that it agrees on. The
 * poller of lane->poller is held. */
#ifndef HARP_PLUGIN_HANDSHAKE_H
#define HARP_PLUGIN_HANDSHAKE_H

#include "comm/comm.h"
#include "lane/lane.h"
#include "wire/preamble.h"

/* Sends and receives as much of the preamble as the open lane allows. 1: done. 0: incomplete. Or
 * the error of preamble_moved() or of the lane, with a text in p->what. */
int handshake_advance(struct preamble *p, struct lane *lane);
/* When done: replaces *lane by an encrypted lane if both sides agreed on encryption. 0 or
 * -ENOMEM. */
int handshake_encrypt(const struct preamble *p, struct lane **lane);
/* When done: the options of the comm, without its context and the lane's device. */
void handshake_comm_options(const struct preamble *p, enum comm_side side,
			    struct comm_options *out);

#endif
