/* SPDX-License-Identifier: Apache-2.0 */
/* message.h - the messages that `message` sends, and the receipts of `sink`. */
#ifndef HARP_TOOLS_TCP_MESSAGE_H
#define HARP_TOOLS_TCP_MESSAGE_H

#include "command.h"

#define MESSAGE_MAGIC 0x4850544du

/* The start of a message. The last eight bytes of the message repeat the serial number, which
 * detects lost, repeated or moved bytes without reading all of them: benches compare stacks, not
 * checksums. */
struct message_head {
	uint32_t magic, size; /* size of the whole message */
	uint64_t serial;
};
/* The pattern between head and tail (pattern.h) is the same in every message. It repeats, so that
 * the receiver's copy stays in the L1 cache. The period is prime, so that lost, repeated or moved
 * segments and pages are detected. */
#define MESSAGE_SEED 0x6d657373616765u
#define MESSAGE_PERIOD_BYTES 4093u
#define MESSAGE_SIZE_MIN (sizeof(struct message_head) + sizeof(uint64_t))

/* A receipt is the serial number of a message that arrived completely. */

/* Return exit statuses. */
int message_send(struct stream_host *host, const struct options *o);
int message_sink(struct stream_host *host, const struct options *o);

#endif
