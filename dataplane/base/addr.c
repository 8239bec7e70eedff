/* SPDX-License-Identifier: Apache-2.0 */
/* addr.c - converts addresses to and from text; IPv4 uses the mapped form (RFC 4291 section
 * 2.5.5.2). */
#include "base/addr.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

static const uint8_t addr_v4_prefix[12] = { [10] = 0xff, [11] = 0xff };

struct harp_addr harp_addr_v4(uint8_t a, uint8_t b, uint8_t c, uint8_t d)
{
	struct harp_addr addr = { .bytes = { [10] = 0xff, [11] = 0xff, a, b, c, d } };

	return addr;
}

bool harp_addr_is_v4(const struct harp_addr *addr)
{
	return memcmp(addr->bytes, addr_v4_prefix, sizeof(addr_v4_prefix)) == 0;
}

bool addr_is_unicast(const struct harp_addr *addr)
{
	static const struct harp_addr loopback = { .bytes = { [15] = 1 } };
	const uint8_t *b = addr->bytes;

	if (harp_addr_is_v4(addr))
		return b[12] != 0 && b[12] != 127 && b[12] < 224;
	return b[0] != 0xff && !addr_is_zero(addr) && !addr_equal(addr, &loopback);
}

unsigned addr_common_bits(const struct harp_addr *a, const struct harp_addr *b, unsigned max_bits)
{
	unsigned bits = 0;

	while (bits < max_bits && a->bytes[bits / 8] == b->bytes[bits / 8])
		bits += 8;
	if (bits < max_bits)
		bits += (unsigned)__builtin_clz((unsigned)(a->bytes[bits / 8] ^ b->bytes[bits / 8])
						<< 24);
	return bits < max_bits ? bits : max_bits;
}

struct harp_addr addr_masked(const struct harp_addr *addr, unsigned bits)
{
	struct harp_addr out = *addr;

	for (unsigned i = 0; i < 16; i++) {
		unsigned keep = bits > 8 * i ? bits - 8 * i : 0;

		if (keep < 8)
			out.bytes[i] &= (uint8_t)(0xff00u >> keep);
	}
	return out;
}

bool harp_addr_is_link_local(const struct harp_addr *addr)
{
	return addr->bytes[0] == 0xfe && (addr->bytes[1] & 0xc0) == 0x80;
}

int harp_addr_parse(const char *text, struct harp_addr *out)
{
	struct harp_addr addr;

	if (!text || !out)
		return -EINVAL;
	memcpy(addr.bytes, addr_v4_prefix, sizeof(addr_v4_prefix));
	if (inet_pton(AF_INET, text, addr.bytes + 12) != 1 &&
	    inet_pton(AF_INET6, text, addr.bytes) != 1)
		return -EINVAL;
	*out = addr;
	return 0;
}

char *harp_addr_format(const struct harp_addr *addr, char *buf)
{
	bool v4 = harp_addr_is_v4(addr);

	inet_ntop(v4 ? AF_INET : AF_INET6, addr->bytes + (v4 ? 12 : 0), buf, HARP_ADDR_TEXT_MAX);
	return buf;
}

char *harp_endpoint_format(const struct harp_endpoint *ep, char *buf)
{
	char text[HARP_ADDR_TEXT_MAX];

	harp_addr_format(&ep->addr, text);
	if (harp_addr_is_v4(&ep->addr))
		snprintf(buf, HARP_ENDPOINT_TEXT_MAX, "%s:%u", text, (unsigned)ep->port);
	/* RFC 4007 section 11. Omits a scope that does not fit. That cannot happen for fe80::/64,
	 * the only link-local prefix in use (RFC 4291 section 2.5.6). */
	else if (!ep->scope_id ||
		 snprintf(buf, HARP_ENDPOINT_TEXT_MAX, "[%s%%%u]:%u", text, ep->scope_id,
			  (unsigned)ep->port) >= HARP_ENDPOINT_TEXT_MAX)
		snprintf(buf, HARP_ENDPOINT_TEXT_MAX, "[%s]:%u", text, (unsigned)ep->port);
	return buf;
}
