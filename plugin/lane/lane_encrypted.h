/* SPDX-License-Identifier: Apache-2.0 */
/* lane_encrypted.h - a lane whose bytes are encrypted and authenticated (docs/lanes.md, "Encrypted
 * lanes"). */
#ifndef HARP_PLUGIN_LANE_ENCRYPTED_H
#define HARP_PLUGIN_LANE_ENCRYPTED_H

#include "lane/lane.h"
#include "wire/crypto.h"

/*
 * Replaces *lane, which is open and past its preamble, by an encrypted lane that owns it. Byte
 * counts of the new lane are plaintext bytes. sent_bytes: sent on the lane before (the preamble).
 * Poller held. -ENOMEM leaves *lane as it was. The keys are copied; the caller wipes its own.
 */
int lane_encrypt(struct lane **lane, uint64_t sent_bytes, const uint8_t send_key[CRYPTO_KEY_BYTES],
		 const uint8_t recv_key[CRYPTO_KEY_BYTES]);

/* For tests, before the first segment: sets the numbers of the next segments. Keys stay the
 * same. */
void lane_encrypted_renumber(struct lane *lane, uint64_t send_segment, uint64_t recv_segment);

#endif
