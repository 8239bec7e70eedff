/* SPDX-License-Identifier: Apache-2.0 */
/* message.h - messages and their receipts: what `message` sends and `sink` answers. */
#ifndef HARP_TOOLS_TCP_MESSAGE_H
#define HARP_TOOLS_TCP_MESSAGE_H

#include "command.h"

#define MESSAGE_MAGIC 0x4850544du

/* Begins a message. Its last eight bytes repeat the serial number, so that lost, repeated or moved
 * bytes are found without reading each: the benches compare stacks, not checksums. */
struct message_head {
	uint32_t magic, size; /* head and tail included */
	uint64_t serial;
};
/* Of the pattern between them (pattern.h), which is the same in every message. It repeats, so that what the receiver compares
 * with lies in the nearest cache; after a prime number of bytes, so that segments and pages that are lost, doubled or moved show. */
#define MESSAGE_SEED 0x6d657373616765u
#define MESSAGE_PERIOD_BYTES 4093u
#define MESSAGE_SIZE_MIN (sizeof(struct message_head) + sizeof(uint64_t))

/* A receipt is the serial number of a message that has come whole. */

/* Exit statuses. */
int message_send(struct stream_host *host, const struct options *o);
int message_sink(struct stream_host *host, const struct options *o);

#endif
