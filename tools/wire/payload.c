/* SPDX-License-Identifier: Apache-2.0 */
/* payload.c - what a stack has to do with a frame's bytes whatever its protocol: copied once a side, and summed. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "wire.h"

/* As much as eight messages of 512 KiB, which harp-bench has in flight: more than fits near a core. */
#define PAYLOAD_BYTES (UINT32_C(4) << 20)

int payload_open(struct payload *payload)
{
	*payload = (struct payload){ .memory = malloc(PAYLOAD_BYTES) };
	if (!payload->memory)
		return -ENOMEM;
	memset(payload->memory, 0x5a, PAYLOAD_BYTES);
	return 0;
}

void payload_close(struct payload *payload)
{
	free(payload->memory);
	*payload = (struct payload){ 0 };
}

static uint8_t *payload_next(struct payload *payload, uint32_t bytes)
{
	uint8_t *at;

	if (payload->at + bytes > PAYLOAD_BYTES)
		payload->at = 0;
	at = payload->memory + payload->at;
	payload->at += bytes;
	return at;
}

void payload_put(struct payload *payload, uint8_t *piece, uint32_t bytes)
{
	payload->sum = csum_copy(piece, payload_next(payload, bytes), bytes, payload->sum);
}

void payload_take(struct payload *payload, const uint8_t *piece, uint32_t bytes)
{
	payload->sum = csum_partial(piece, bytes, payload->sum);
	memcpy(payload_next(payload, bytes), piece, bytes);
}
