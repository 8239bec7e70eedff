/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record.h - the records of a comm's lanes, wire format v1 (docs/lanes.md section 4).
 *
 * A record is a header of 40 bytes, little-endian, and `length` bytes of payload.
 */
#ifndef HARP_PLUGIN_RECORD_H
#define HARP_PLUGIN_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RECORD_HEADER_BYTES 40u
#define RECORD_LENGTH_MAX (1u << 30)  /* payload of one DATA record */
#define RECORD_OFFSET_ALIGN 64u       /* DATA offsets are multiples of it */
#define RECORD_CREDITS_MAX 64u        /* receives advertised by one CREDIT record */
#define RECORD_TOTAL_MAX (1ull << 48) /* no message is longer */

enum record_type {
	RECORD_DATA = 1,   /* message, tag, total, offset, length */
	RECORD_CREDIT = 2, /* message: messages received; total: receives posted; payload: a u64
			    * size for each receive between */
	RECORD_ACK = 3,    /* message, offset: everything before is received; several lanes only */
	RECORD_CLOSE =
		4, /* tag: enum close_reason; message: messages done; total, offset: detail */
};

enum close_reason {
	CLOSE_ORDERLY = 0,
	CLOSE_TRUNCATED = 1, /* message longer (offset) than its receive (total) */
	CLOSE_PROTOCOL = 2,  /* an invalid record */
	CLOSE_ABORTED = 3,   /* closed with requests in flight */
	CLOSE_LOCAL = 4,     /* out of memory, or another local cause */
};

/* The header in wire format: integers are little-endian, as on this host. */
struct record {
	uint8_t type, flags;
	uint16_t reserved16;
	uint32_t length;
	uint64_t message;
	uint64_t total;
	uint64_t offset;
	uint32_t tag, reserved32;
};
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers on the wire");
_Static_assert(sizeof(struct record) == RECORD_HEADER_BYTES, "header");

void record_encode(uint8_t out[RECORD_HEADER_BYTES], const struct record *record);
/*
 * Decodes a record and checks it by itself: type, reserved fields, lengths, alignment. 0, or
 * -EPROTO with a short text in *what.
 */
int record_decode(const uint8_t in[RECORD_HEADER_BYTES], struct record *record, const char **what);
const char *record_close_reason_text(uint32_t reason);

/* Little-endian fields in wire formats, any alignment. */
static inline void wire_put16(uint8_t *p, uint16_t v)
{
	p[0] = (uint8_t)v;
	p[1] = (uint8_t)(v >> 8);
}
static inline void wire_put32(uint8_t *p, uint32_t v)
{
	wire_put16(p, (uint16_t)v);
	wire_put16(p + 2, (uint16_t)(v >> 16));
}
static inline void wire_put64(uint8_t *p, uint64_t v)
{
	wire_put32(p, (uint32_t)v);
	wire_put32(p + 4, (uint32_t)(v >> 32));
}
static inline uint16_t wire_get16(const uint8_t *p)
{
	return (uint16_t)(p[0] | (p[1] << 8));
}
static inline uint32_t wire_get32(const uint8_t *p)
{
	return wire_get16(p) | ((uint32_t)wire_get16(p + 2) << 16);
}
static inline uint64_t wire_get64(const uint8_t *p)
{
	return wire_get32(p) | ((uint64_t)wire_get32(p + 4) << 32);
}

#endif
