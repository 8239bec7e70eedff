/* SPDX-License-Identifier: Apache-2.0 */
/* handle.c - encodes and decodes the connection handle. */
#include "wire/handle.h"

#include <errno.h>
#include <stdio.h>

#include "wire/blake2s.h"

static const char handle_magic[] = { 'H', 'A', 'R', 'P' };
static const char handle_label[] = "HARP handle v1"; /* 14 bytes, no NUL */

/* Keyed with the handle's own secret: detects damage, not forgery. */
static void handle_check(const struct handle *handle, uint8_t out[sizeof(handle->check)])
{
	struct blake2s state;

	blake2s_init(&state, sizeof(handle->check), handle->secret, HANDLE_SECRET_BYTES);
	blake2s_update(&state, handle_label, sizeof(handle_label) - 1);
	blake2s_update(&state, handle, offsetof(struct handle, check));
	blake2s_final(&state, out);
}

void handle_encode(uint8_t out[PLUGIN_HANDLE_BYTES], struct handle *handle)
{
	memcpy(handle->magic, handle_magic, sizeof(handle_magic));
	handle->version = WIRE_VERSION;
	handle_check(handle, handle->check);
	memcpy(out, handle, PLUGIN_HANDLE_BYTES);
}

int handle_decode(const uint8_t in[PLUGIN_HANDLE_BYTES], struct handle *handle, char *why,
		  size_t why_len)
{
	uint8_t check[sizeof(handle->check)];

	memcpy(handle, in, PLUGIN_HANDLE_BYTES);
	handle_check(handle, check);
	if (memcmp(handle->magic, handle_magic, sizeof(handle_magic)) != 0)
		snprintf(why, why_len,
			 "the peer's connection handle is not HARP's: the peer runs another "
			 "net plugin, or none (set NCCL_NET=HARP on every rank)");
	else if (handle->version != WIRE_VERSION)
		snprintf(why, why_len,
			 "the peer speaks HARP wire version %u, this HARP speaks %u: install the "
			 "same HARP on every host",
			 handle->version, WIRE_VERSION);
	else if (!blake2s_equal(check, handle->check, sizeof(check)))
		snprintf(why, why_len,
			 "the peer's connection handle is damaged (its check does not match): "
			 "NCCL's bootstrap altered it on the way, or the caller overwrote it");
	else
		return 0;
	return -EPROTONOSUPPORT;
}
