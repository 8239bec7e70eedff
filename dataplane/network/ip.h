/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ip.h - IPv4 and IPv6: own addresses, routes, input validation, output.
 *
 * Input: ip_input() and ip6_input() return a verdict and fill in struct packet_in; stack.c calls
 * the next layer. Output: ip_output() writes its header and calls eth_output().
 */
#ifndef HARP_NETWORK_IP_H
#define HARP_NETWORK_IP_H

#include <endian.h>
#include <string.h>

#include "base/checksum.h"
#include "link/eth.h"

#define IP_PROTO_ICMP 1u
#define IP_PROTO_TCP 6u
#define IP_PROTO_UDP 17u
#define IP_PROTO_ICMP6 58u

/* A received packet, filled in by ip_input() or ip6_input(). */
struct packet_in {
	/* first frame; each layer advances pub.data and len to its payload */
	struct frame *frame;
	uint32_t len;  /* payload bytes in all frames, without padding */
	uint8_t proto; /* IP_PROTO_* */
	uint8_t ttl;
	uint8_t tos;             /* DSCP and ECN */
	uint8_t csum_valid;      /* the NIC verified the transport checksum */
	uint8_t group;           /* received in a multicast frame (IPv6 only) */
	uint32_t l4_csum_pseudo; /* pseudo-header sum (unfolded) for this packet's proto and len */
	struct harp_addr src, dst;
	const uint8_t *ip_header; /* quoted by ICMP errors */
};

enum ip_verdict {
	IP_DROPPED = 0, /* counted; the caller releases the frame */
	IP_LOCAL_TCP,
	IP_LOCAL_UDP,
	IP_LOCAL_ICMP,
	IP_LOCAL_ICMP6,
};

/* The Ethernet and IP headers of a path's last packet, for reuse by the next one. */
struct ip_sent {
	uint8_t len; /* 0: none, or invalidated */
	uint8_t proto, tos;
	uint8_t ip_bytes; /* length of the IP header, part of len */
	uint32_t sum;     /* IPv4: checksum of the header in `bytes` */
	/* IPv4: length, identification and checksum are 0 */
	uint8_t bytes[ETH_HEADER_BYTES + ETH_VLAN_BYTES + 40];
};

/* A path to a destination, cached by connections. ip_path_check() keeps it current. */
struct ip_path {
	struct harp_addr src, dst, next_hop;
	uint32_t generation; /* ip.generation at lookup; 0: none yet */
	uint32_t mtu_bytes;
	uint32_t flow_label; /* IPv6, 20 bits, from ip_path_label() */
	uint16_t v4_id;      /* of the next packet on this path: see ip_write_header() */
	uint32_t pseudo_sum; /* of src and dst, for ip_pseudo_add() */
	struct neighbor *neighbor;
	struct ip_sent sent;
};

struct ip_address {
	struct harp_addr addr;
	uint8_t prefix_len; /* in bits of the 128-bit form (IPv4: 96 + n) */
};
struct ip_route {
	struct harp_addr prefix, gateway;
	uint32_t mtu_bytes;
	uint8_t prefix_len; /* in bits of the 128-bit form */
	uint8_t on_link;
};
#define IP_ADDRESSES_MAX 16u
#define IP_ROUTES_MAX 64u

/* Cache: the last IPv4 addresses of a received packet that passed all checks. */
struct ip_last_addresses {
	uint32_t generation; /* ip.generation at that time; 0: empty */
	uint32_t pseudo_sum; /* of both, for ip_pseudo_sum() */
	uint8_t header[8];   /* source, destination in wire format */
	struct harp_addr src, dst;
};

struct ip {
	struct eth *eth;
	struct harp_stats *stats;
	/* incremented with every change of addresses and routes; starts at 1 */
	uint32_t generation;
	uint32_t scope_id; /* interface number, for link-local addresses */
	struct siphash_key label_key;
	struct ip_last_addresses last;
	unsigned address_count, route_count;
	struct ip_address addresses[IP_ADDRESSES_MAX];
	struct ip_route routes[IP_ROUTES_MAX];
};

/* opt may be NULL. */
void ip_init(struct ip *ip, struct eth *eth, struct harp_stats *stats,
	     const struct harp_stack_options *opt);
int ip_address_add(struct ip *ip, const struct harp_addr *addr, unsigned prefix_len);
int ip_address_remove(struct ip *ip, const struct harp_addr *addr);
bool ip_is_own(const struct ip *ip, const struct harp_addr *addr);
/* True for the broadcast address of one of our subnets. */
bool ip_is_broadcast(const struct ip *ip, const struct harp_addr *addr);
int ip_route_add(struct ip *ip, const struct harp_addr *prefix, unsigned prefix_len,
		 const struct harp_addr *gateway, uint32_t mtu_bytes);
int ip_route_remove(struct ip *ip, const struct harp_addr *prefix, unsigned prefix_len);

/* True unless addr is a link-local IPv6 address and scope_id names another link (RFC 4007 section
 * 6). */
bool ip_scope_valid(const struct ip *ip, const struct harp_addr *addr, uint32_t scope_id);
/* The scope_id of an own address or of a peer's address. */
uint32_t ip_scope_id(const struct ip *ip, const struct harp_addr *addr);
/* Selects a source address for dst (RFC 6724 section 5); NULL: none of that family. */
const struct harp_addr *ip_source(const struct ip *ip, const struct harp_addr *dst,
				  const struct harp_addr *next_hop);

/* Sets next hop, MTU, and source (if path->src is zero) for path->dst. -ENETUNREACH: no route;
 * -EADDRNOTAVAIL: src is not ours, or no own address has the family of dst. */
int ip_path_route(const struct ip *ip, struct ip_path *path);
/* As ip_path_route(); also gets the neighbor entry. */
int ip_path_lookup(struct ip *ip, struct ip_path *path);
/* Before every packet: repeats the lookup if the generation has changed. Same errors. */
static inline int ip_path_check(struct ip *ip, struct ip_path *path)
{
	return path->generation == ip->generation ? 0 : ip_path_lookup(ip, path);
}

/* IP header bytes that ip_output() writes for this address. */
static inline uint32_t ip_header_bytes(const struct harp_addr *addr)
{
	return harp_addr_is_v4(addr) ? 20u : 40u;
}

/* Sets the flow label (RFC 6437): a keyed hash, which identifies the flow to the network and
 * reveals nothing else. Never 0. */
void ip_path_label(const struct ip *ip, struct ip_path *path, uint16_t local_port,
		   uint16_t remote_port);

/* The next hop's neighbor entry; NULL: none, or it now has another address. */
static inline struct neighbor *ip_path_neighbor(const struct ip_path *path)
{
	struct neighbor *n = path->neighbor;

	return n && addr_equal(&n->addr, &path->next_hop) ? n : NULL;
}

/* Validates the IP header of a packet from eth_input() (data at the IP header): ETH_IPV4 and
 * ETH_IPV6. */
enum ip_verdict ip_input(struct ip *ip, struct packet_in *in);
enum ip_verdict ip6_input(struct ip *ip, struct packet_in *in);
/* Verdict for a transport protocol; IP_DROPPED (counted): not supported. */
enum ip_verdict ip_protocol(const struct ip *ip, uint8_t proto);
/* Trims a packet to total bytes, which removes link padding. False: it has fewer bytes. */
bool ip_trim(struct ip *ip, struct frame *f, uint32_t total);
static inline enum ip_verdict ip_drop(uint64_t *counter)
{
	(*counter)++;
	return IP_DROPPED;
}

/*
 * Sends a packet; out->head is at the transport header. Writes the IP header and calls
 * eth_output(). 0: queued; -EAGAIN: next hop unresolved or NIC full (retry when
 * eth.resolved_generation changes, or after a completion); -EMSGSIZE: exceeds path->mtu_bytes;
 * other -errno as ip_path_check(). Never fragments, and sets DF (RFC 1191 section 3).
 */
int ip_output(struct ip *ip, struct ip_path *path, uint8_t proto, uint8_t tos,
	      struct packet_out *out);
/* True if a packet with these parameters can reuse the previous one's headers. */
bool ip_output_repeats(const struct ip *ip, const struct ip_path *path, uint8_t proto, uint8_t tos);
/* Sends a packet, no longer than the previous one, with its headers. Requires ip_output_repeats()
 * and nicio_tx_ready(). */
void ip_output_next(struct ip *ip, struct ip_path *path, struct packet_out *out);

/* Adds the sum of a packet's bytes. */
static inline uint32_t ip_sum_add(uint32_t sum, const struct frame *f)
{
	size_t offset = f->pub.len;

	sum = csum_partial(f->pub.data, f->pub.len, sum);
	for (f = f->frag; f; f = f->frag) {
		sum = csum_append(sum, csum_partial(f->pub.data, f->pub.len, 0), offset);
		offset += f->pub.len;
	}
	return sum;
}

/* Verifies the transport checksum. field: its value in the packet. partial: accepts and counts a
 * folded pseudo-header sum, which a local kernel leaves for a NIC to complete. */
static inline bool ip_l4_csum_holds(const struct frame *packet, uint32_t pseudo_sum, uint16_t field,
				    bool partial, uint64_t *partial_accepted)
{
	if (partial) {
		const uint16_t pseudo = (uint16_t)~csum_finish(pseudo_sum);

		if (field == pseudo) {
			++*partial_accepted;
			return true;
		}
	}
	return csum_finish(ip_sum_add(pseudo_sum, packet)) == 0;
}

/* Pseudo-header sum (unfolded), RFC 9293 section 3.1 and RFC 8200 section 8.1. */
uint32_t ip_pseudo_sum(const struct harp_addr *src, const struct harp_addr *dst, uint8_t proto,
		       uint32_t len);
/* The same from a precomputed ip_pseudo_sum() with proto 0 and len 0. */
static inline uint32_t ip_pseudo_add(uint32_t addresses_sum, uint8_t proto, uint32_t len)
{
	/* Length and protocol as 32-bit numbers, the form of RFC 8200. The folded sum is that of
	 * RFC 9293's form (16 and 8 bits). */
	return csum_add(addresses_sum, csum_add(htobe32(len), htobe32(proto)));
}

#endif
