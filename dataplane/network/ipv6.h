/* SPDX-License-Identifier: Apache-2.0 */
/* ipv6.h - the IPv6 header (RFC 8200) and address types (RFC 4291), internal to the network
 * layer. */
#ifndef HARP_NETWORK_IPV6_H
#define HARP_NETWORK_IPV6_H

#include <string.h>

#include "network/ip.h"

#define IPV6_HEADER_BYTES 40u
#define IPV6_MTU_MIN 1280u /* RFC 8200 section 5: the minimum of every link */

/* Extension headers, RFC 8200 section 4. */
#define IPV6_EXT_HOP_BY_HOP 0u
#define IPV6_EXT_ROUTING 43u
#define IPV6_EXT_FRAGMENT 44u
#define IPV6_EXT_DESTINATION 60u

struct ipv6_header {
	be32_t version_class_label; /* 4, 8 and 20 bits */
	be16_t payload_len;
	uint8_t next, hop_limit;
	struct harp_addr src, dst;
} __attribute__((packed));
static_assert(sizeof(struct ipv6_header) == IPV6_HEADER_BYTES, "RFC 8200 section 3");

/* RFC 4291 section 2.7: scopes are numbers, also for unicast addresses (RFC 6724 section 3.1). */
#define IPV6_SCOPE_LINK 2u
#define IPV6_SCOPE_SITE 5u
#define IPV6_SCOPE_GLOBAL 14u

static inline bool ipv6_is_multicast(const struct harp_addr *addr)
{
	return addr->bytes[0] == 0xff;
}

static inline bool ipv6_is_loopback(const struct harp_addr *addr)
{
	static const struct harp_addr loopback = { .bytes = { [15] = 1 } };

	return addr_equal(addr, &loopback);
}

/* Solicited-node multicast address (RFC 4291 section 2.7.1) of addr. */
static inline struct harp_addr ipv6_solicited_node(const struct harp_addr *addr)
{
	struct harp_addr group = { .bytes = { 0xff, 2, [11] = 1, [12] = 0xff } };

	memcpy(group.bytes + 13, addr->bytes + 13, 3);
	return group;
}

/* RFC 2464 section 7: the Ethernet address of a group. */
static inline void ipv6_group_mac(const struct harp_addr *group, uint8_t *mac)
{
	mac[0] = mac[1] = 0x33;
	memcpy(mac + 2, group->bytes + 12, 4);
}

/* Length of an extension header of type proto at p, of which len bytes are available; sets *next to
 * the type of the following header. 0: it exceeds len, or proto is another header. */
static inline uint32_t ipv6_ext_bytes(uint8_t proto, const uint8_t *p, uint32_t len, uint8_t *next)
{
	uint32_t bytes;

	if (len < 8 || (proto != IPV6_EXT_HOP_BY_HOP && proto != IPV6_EXT_ROUTING &&
			proto != IPV6_EXT_DESTINATION))
		return 0;
	bytes = (p[1] + 1u) * 8;
	if (bytes > len)
		return 0;
	*next = p[0];
	return bytes;
}

/* ipv6.c */
/* False for a source that is :: or an own address. Only neighbor discovery permits these. */
bool ip6_source_is_other(const struct ip *ip, const struct harp_addr *src);
void ip6_write_header(struct packet_out *out, const struct ip_path *path, uint8_t proto,
		      uint8_t tclass, uint8_t hop_limit);

/* nd.c: neighbor discovery messages (RFC 4861). */
#define ND_ROUTER_SOLICITATION 133u
#define ND_ROUTER_ADVERTISEMENT 134u
#define ND_SOLICITATION 135u
#define ND_ADVERTISEMENT 136u
#define ND_REDIRECT 137u

/* Processes and counts an ICMPv6 message of the types above with a valid checksum. */
void nd_input(struct ip *ip, const struct packet_in *in);
void nd_solicit(struct ip *ip, const struct harp_addr *src_addr, const struct harp_addr *target,
		const uint8_t *mac);

#endif
