/* SPDX-License-Identifier: Apache-2.0 */
/* handle.c - the connection handle to bytes and back. */
#include "wire/handle.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "wire/blake2s.h"
#include "wire/preamble.h"
#include "wire/record.h"

/* docs/lanes.md section 2: offsets. */
#define AT_MAGIC 0
#define AT_VERSION 8
#define AT_WIRE_MIN 9
#define AT_WIRE_MAX 10
#define AT_FLAGS 11
#define AT_HARP_PORT 12
#define AT_KERNEL_PORT_V4 14
#define AT_KERNEL_PORT_V6 16
#define AT_RESERVED16 18
#define AT_SCOPE 20
#define AT_LISTEN_ID 24
#define AT_HOST_ID 32
#define AT_V4 48
#define AT_RESERVED32 52
#define AT_V6 56
#define AT_SECRET 72
#define AT_PLACEMENT 88
#define AT_QUEUES 90
#define AT_QUEUE 92
#define AT_PORTS 94     /* 4 bytes each */
#define AT_RESERVED 110 /* 2 bytes */
#define AT_CHECK 112
#define CHECK_BYTES 16u

#define FLAG_V4 1u
#define FLAG_V6 2u
#define FLAG_ENCRYPTED 4u
#define FLAG_OPENING 8u

static const uint8_t handle_magic[8] = { 'H', 'A', 'R', 'P', 'h', 'n', 'd', 'l' };
static const char handle_label[] = "HARP handle v1"; /* 14 bytes, no NUL */

_Static_assert(AT_CHECK + CHECK_BYTES == PLUGIN_HANDLE_BYTES, "the handle is full");

/* Keyed with the secret inside: finds damage, forgery is not its business. */
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
	out[AT_WIRE_MIN] = handle->wire_min;
	out[AT_WIRE_MAX] = handle->wire_max;
	out[AT_FLAGS] = (uint8_t)((handle->has_v4 ? FLAG_V4 : 0) | (handle->has_v6 ? FLAG_V6 : 0) |
				  (handle->encrypted ? FLAG_ENCRYPTED : 0) |
				  (handle->opening ? FLAG_OPENING : 0));
	wire_put16(out + AT_HARP_PORT, handle->harp_port);
	wire_put16(out + AT_KERNEL_PORT_V4, handle->kernel_port_v4);
	wire_put16(out + AT_KERNEL_PORT_V6, handle->kernel_port_v6);
	wire_put32(out + AT_SCOPE, handle->scope_id);
	wire_put64(out + AT_LISTEN_ID, handle->listen_id);
	memcpy(out + AT_HOST_ID, handle->host_id, HANDLE_HOST_ID_BYTES);
	if (handle->has_v4)
		memcpy(out + AT_V4, handle->v4.bytes + 12, 4);
	if (handle->has_v6)
		memcpy(out + AT_V6, handle->v6.bytes, 16);
	memcpy(out + AT_SECRET, handle->secret, HANDLE_SECRET_BYTES);
	out[AT_PLACEMENT] = handle->harp_placement;
	wire_put16(out + AT_QUEUES, handle->harp_queues);
	wire_put16(out + AT_QUEUE, handle->harp_queue);
	for (unsigned i = 0; i < HANDLE_PORTS_MAX; i++) {
		wire_put16(out + AT_PORTS + 4 * i, handle->ports[i].port);
		wire_put16(out + AT_PORTS + 4 * i + 2, handle->ports[i].queue);
	}
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
	handle->wire_min = in[AT_WIRE_MIN];
	handle->wire_max = in[AT_WIRE_MAX];
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
	handle->opening = (in[AT_FLAGS] & FLAG_OPENING) != 0;
	handle->harp_port = wire_get16(in + AT_HARP_PORT);
	handle->kernel_port_v4 = wire_get16(in + AT_KERNEL_PORT_V4);
	handle->kernel_port_v6 = wire_get16(in + AT_KERNEL_PORT_V6);
	handle->scope_id = wire_get32(in + AT_SCOPE);
	handle->listen_id = wire_get64(in + AT_LISTEN_ID);
	memcpy(handle->host_id, in + AT_HOST_ID, HANDLE_HOST_ID_BYTES);
	handle->v4 = harp_addr_v4(v4[0], v4[1], v4[2], v4[3]);
	memcpy(handle->v6.bytes, in + AT_V6, 16);
	memcpy(handle->secret, in + AT_SECRET, HANDLE_SECRET_BYTES);
	handle->harp_placement = in[AT_PLACEMENT];
	handle->harp_queues = wire_get16(in + AT_QUEUES);
	handle->harp_queue = wire_get16(in + AT_QUEUE);
	for (unsigned i = 0; i < HANDLE_PORTS_MAX; i++) {
		handle->ports[i].port = wire_get16(in + AT_PORTS + 4 * i);
		handle->ports[i].queue = wire_get16(in + AT_PORTS + 4 * i + 2);
	}
	return 0;
}
