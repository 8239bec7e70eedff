/* SPDX-License-Identifier: Apache-2.0 */
/* handle.c - encodes and decodes the connection handle. */
#include "wire/handle.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"
#include "wire/blake2s.h"
#include "wire/preamble.h"

/* docs/lanes.md section 2. Integers are little-endian, as on this host. */
#define AT_MAGIC 0
#define AT_VERSION 8
#define AT_FLAGS 11
#define AT_V4 48
#define AT_V6 56
#define AT_SECRET 72
#define AT_CHECK 112
#define CHECK_BYTES 16u
#define FIELD(at, member)                                                                          \
	{                                                                                          \
		at, sizeof(((struct handle *)0)->member), offsetof(struct handle, member)          \
	}

static const struct {
	uint8_t at, bytes;
	uint16_t member; /* of struct handle */
} handle_fields[] = {
	FIELD(9, wire_min),        FIELD(10, wire_max),       FIELD(12, harp_port),
	FIELD(14, kernel_port_v4), FIELD(16, kernel_port_v6), FIELD(20, scope_id),
	FIELD(24, listen_id),      FIELD(32, host_id),        FIELD(52, tuner),
	FIELD(AT_SECRET, secret),  FIELD(88, harp_placement), FIELD(90, harp_queues),
	FIELD(92, harp_queue),     FIELD(94, ports),
};
_Static_assert(sizeof(((struct handle *)0)->ports) == 16, "port, queue, port, queue ...");

#define FLAG_V4 1u
#define FLAG_V6 2u
#define FLAG_ENCRYPTED 4u

static const uint8_t handle_magic[8] = { 'H', 'A', 'R', 'P', 'h', 'n', 'd', 'l' };
static const char handle_label[] = "HARP handle v1"; /* 14 bytes, no NUL */

_Static_assert(AT_CHECK + CHECK_BYTES == PLUGIN_HANDLE_BYTES, "the handle is full");

/* Keyed with the handle's own secret: detects damage, not forgery. */
static void handle_check(const uint8_t in[PLUGIN_HANDLE_BYTES], uint8_t out[CHECK_BYTES])
{
	struct blake2s state;

	blake2s_init(&state, CHECK_BYTES, in + AT_SECRET, HANDLE_SECRET_BYTES);
	blake2s_update(&state, handle_label, sizeof(handle_label) - 1);
	blake2s_update(&state, in, AT_CHECK);
	blake2s_final(&state, out);
}

void handle_encode(uint8_t out[PLUGIN_HANDLE_BYTES], const struct handle *handle)
{
	memset(out, 0, PLUGIN_HANDLE_BYTES);
	memcpy(out + AT_MAGIC, handle_magic, sizeof(handle_magic));
	out[AT_VERSION] = 1;
	out[AT_FLAGS] = (uint8_t)((handle->has_v4 ? FLAG_V4 : 0) | (handle->has_v6 ? FLAG_V6 : 0) |
				  (handle->encrypted ? FLAG_ENCRYPTED : 0));
	for (size_t i = 0; i < ARRAY_SIZE(handle_fields); i++)
		memcpy(out + handle_fields[i].at, (const char *)handle + handle_fields[i].member,
		       handle_fields[i].bytes);
	if (handle->has_v4)
		memcpy(out + AT_V4, handle->v4.bytes + 12, 4);
	if (handle->has_v6)
		memcpy(out + AT_V6, handle->v6.bytes, 16);
	handle_check(out, out + AT_CHECK);
}

int handle_decode(const uint8_t in[PLUGIN_HANDLE_BYTES], struct handle *handle, char *why,
		  size_t why_len)
{
	uint8_t check[CHECK_BYTES];
	const uint8_t *v4 = in + AT_V4;

	memset(handle, 0, sizeof(*handle));
	if (memcmp(in + AT_MAGIC, handle_magic, sizeof(handle_magic))) {
		snprintf(why, why_len,
			 "the peer's connection handle is not HARP's: the peer runs another "
			 "net plugin, or none (set NCCL_NET=HARP on every rank)");
		return -EPROTONOSUPPORT;
	}
	if (in[AT_VERSION] != 1) {
		snprintf(why, why_len,
			 "the peer's connection handle has version %u, this HARP knows version 1: "
			 "install the same HARP on every host",
			 in[AT_VERSION]);
		return -EPROTONOSUPPORT;
	}
	handle_check(in, check);
	if (!blake2s_equal(check, in + AT_CHECK, CHECK_BYTES)) {
		snprintf(why, why_len,
			 "the peer's connection handle is damaged (its check does not match): "
			 "NCCL's bootstrap altered it on the way, or the caller overwrote it");
		return -EPROTONOSUPPORT;
	}
	for (size_t i = 0; i < ARRAY_SIZE(handle_fields); i++)
		memcpy((char *)handle + handle_fields[i].member, in + handle_fields[i].at,
		       handle_fields[i].bytes);
	if (handle->wire_min > WIRE_VERSION || handle->wire_max < WIRE_VERSION) {
		snprintf(
			why, why_len,
			"the peer speaks HARP wire versions %u to %u, this HARP speaks %u: install "
			"the same HARP on every host",
			handle->wire_min, handle->wire_max, WIRE_VERSION);
		return -EPROTONOSUPPORT;
	}
	handle->has_v4 = (in[AT_FLAGS] & FLAG_V4) != 0;
	handle->has_v6 = (in[AT_FLAGS] & FLAG_V6) != 0;
	handle->encrypted = (in[AT_FLAGS] & FLAG_ENCRYPTED) != 0;
	handle->v4 = harp_addr_v4(v4[0], v4[1], v4[2], v4[3]);
	memcpy(handle->v6.bytes, in + AT_V6, 16);
	return 0;
}
