/* SPDX-License-Identifier: Apache-2.0 */
/* lane_encrypted.h - a lane whose bytes are encrypted and authenticated (docs/lanes.md, "Encrypted lanes"). */
#ifndef HARP_PLUGIN_LANE_ENCRYPTED_H
#define HARP_PLUGIN_LANE_ENCRYPTED_H

#include "lane/lane.h"
#include "wire/crypto.h"

/*
 * Puts *lane, which is open and whose preamble is through, into an encrypted lane that takes its place: same ops,
 * counts in plaintext bytes; the old one belongs to it. sent_bytes: what was put into the lane before, the
 * preamble. Poller held. -ENOMEM leaves *lane as it was. The keys are copied: wipe them.
 */
int lane_encrypt(struct lane **lane, uint64_t sent_bytes, const uint8_t send_key[CRYPTO_KEY_BYTES],
		 const uint8_t recv_key[CRYPTO_KEY_BYTES]);

/* For tests, on a lane that has carried nothing: the numbers of the next segments, keys as they are. */
void lane_encrypted_renumber(struct lane *lane, uint64_t send_segment, uint64_t recv_segment);

#endif
