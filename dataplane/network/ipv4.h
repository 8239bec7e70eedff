/* SPDX-License-Identifier: Apache-2.0 */
/* ipv4.h - the IPv4 header (RFC 791 section 3.1), for the files of the network layer. */
#ifndef HARP_NETWORK_IPV4_H
#define HARP_NETWORK_IPV4_H

#include <string.h>

#include "base/endian.h"
#include "harp.h"

#define IPV4_HEADER_BYTES 20u
#define IPV4_FLAG_DF 0x4000u
#define IPV4_FLAG_MF 0x2000u
#define IPV4_OFFSET_MASK 0x1fffu
#define IPV4_OPTION_END 0u
#define IPV4_OPTION_NOP 1u
#define IPV4_OPTION_LSRR 131u /* loose source route */
#define IPV4_OPTION_SSRR 137u /* strict source route */

struct ipv4_header {
	uint8_t version_ihl; /* 4 bits each */
	uint8_t tos;
	be16_t total_len;
	be16_t id;
	be16_t flags_offset;
	uint8_t ttl;
	uint8_t proto;
	uint16_t csum; /* memory order, from csum_finish() */
	uint8_t src[4], dst[4];
} __attribute__((packed));
static_assert(sizeof(struct ipv4_header) == IPV4_HEADER_BYTES, "RFC 791");

static inline uint32_t ipv4_header_bytes(const struct ipv4_header *h)
{
	return (h->version_ihl & 0x0fu) * 4;
}

/* Source and destination, 4 bytes each. */
static inline const uint8_t *ipv4_addresses(const struct ipv4_header *h)
{
	return (const uint8_t *)h + offsetof(struct ipv4_header, src);
}

static inline struct harp_addr ipv4_mapped(const uint8_t *v4)
{
	struct harp_addr addr = { .bytes = { [10] = 0xff, [11] = 0xff } };

	memcpy(addr.bytes + 12, v4, 4);
	return addr;
}

static inline uint32_t ipv4_number(const struct harp_addr *addr)
{
	return be32_load(addr->bytes + 12);
}

#endif
