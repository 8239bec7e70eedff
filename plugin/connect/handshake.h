/* SPDX-License-Identifier: Apache-2.0 */
/* handshake.h - the preamble (wire/preamble.h) over a lane. The poller of lane->poller is held. */
#ifndef HARP_PLUGIN_HANDSHAKE_H
#define HARP_PLUGIN_HANDSHAKE_H

#include "lane/lane.h"
#include "wire/preamble.h"

/* Sends and receives as much of the preamble as the open lane allows. 1: done. 0: more is to come. Or the error of
 * preamble_moved() or of the lane: p->what says it in words. */
int handshake_advance(struct preamble *p, struct lane *lane);
/* After that: puts *lane into an encrypted one where both sides want that. 0 or -ENOMEM. */
int handshake_encrypt(const struct preamble *p, struct lane **lane);

#endif
