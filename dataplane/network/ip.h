/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ip.h - IPv4 and IPv6: own addresses, routes, input validation, output.
 *
 * Up is a return: ip_input() and ip6_input() give a verdict and fill struct packet_in; stack.c calls
 * the next layer. Down is a call: ip_output() writes its header and calls eth_output().
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

/* What a received packet is, once eth and ip have looked at it. */
struct packet_in {
	struct frame *frame; /* first frame; pub.data/len are moved to the payload of the layer */
	uint32_t len;        /* bytes from pub.data on, all fragments, padding trimmed */
	uint8_t proto;       /* IP_PROTO_* */
	uint8_t ttl;
	uint8_t tos;             /* DSCP and ECN */
	uint8_t csum_good;       /* the card verified the transport checksum */
	uint8_t group;           /* came in a frame for a multicast group (IPv6 only) */
	uint32_t l4_csum_pseudo; /* pseudo-header sum (unfolded) for this packet's proto and len */
	struct harp_addr src, dst;
	const uint8_t *ip_header; /* for ICMP errors that quote it */
};

enum ip_verdict {
	IP_DROPPED = 0, /* counted; the frame is still the caller's to release */
	IP_LOCAL_TCP,
	IP_LOCAL_UDP,
	IP_LOCAL_ICMP,
	IP_LOCAL_ICMP6,
};

/* The headers of the packet that a path had last, Ethernet's and IP's: the next one's but for the length. */
struct ip_sent {
	uint8_t len; /* 0: none, or no more */
	uint8_t proto, tos;
	uint8_t ip_bytes; /* of len, the IP header's */
	uint32_t sum;     /* IPv4: of its header as it is here */
	/* IPv4: without length, identification and checksum. */
	uint8_t bytes[ETH_HEADER_BYTES + ETH_VLAN_BYTES + 40];
};

/* A resolved way to a destination, cached by connections. Refreshed by ip_path_check(). */
struct ip_path {
	struct harp_addr src, dst, next_hop;
	uint32_t generation; /* of routes and addresses when it was looked up; 0: never */
	uint32_t mtu_bytes;
	uint32_t flow_label; /* IPv6, 20 bits: see ip_path_label(). Not touched by a lookup */
	uint16_t v4_id;      /* of the next packet; of this path alone: see ip_write_header() */
	uint32_t pseudo_sum; /* of src and dst, for ip_pseudo_add() */
	struct neighbour *neighbour;
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

/* The IPv4 addresses of the packet heard last, which passed every check of them. */
struct ip_heard {
	uint32_t generation; /* struct ip's then; 0: none yet */
	uint32_t pseudo_sum; /* of both, for ip_pseudo_sum() */
	uint8_t header[8];   /* as they stand there: source, destination */
	struct harp_addr src, dst;
};

struct ip {
	struct eth *eth;
	struct harp_stats *stats;
	uint32_t generation; /* grows with every change of addresses and routes; starts at 1 */
	uint32_t scope_id;   /* of link-local addresses: the interface */
	struct siphash_key label_key;
	struct ip_heard heard;
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
/* The broadcast address of a subnet of ours. */
bool ip_is_broadcast(const struct ip *ip, const struct harp_addr *addr);
int ip_route_add(struct ip *ip, const struct harp_addr *prefix, unsigned prefix_len,
		 const struct harp_addr *gateway, uint32_t mtu_bytes);
int ip_route_remove(struct ip *ip, const struct harp_addr *prefix, unsigned prefix_len);

/* Is this IPv6 address, which means something on one link only, of that link (RFC 4007)? Others: true. */
bool ip_scope_good(const struct ip *ip, const struct harp_addr *addr, uint32_t scope_id);
/* The scope_id that belongs to an own address or one that we talk to. */
uint32_t ip_scope_id(const struct ip *ip, const struct harp_addr *addr);
/* The source to send to dst with, by RFC 6724; NULL: no address of that family. */
const struct harp_addr *ip_source(const struct ip *ip, const struct harp_addr *dst,
				  const struct harp_addr *next_hop);

/*
 * Makes path fit to send to path->dst: chooses route, next hop, source (when path->src is zero) and
 * neighbour record. 0; -ENETUNREACH no route; -EADDRNOTAVAIL src is not ours.
 */
int ip_path_lookup(struct ip *ip, struct ip_path *path);
/* Cheap test before every send; looks up again when the generation moved. Same errors. */
static inline int ip_path_check(struct ip *ip, struct ip_path *path)
{
	return path->generation == ip->generation ? 0 : ip_path_lookup(ip, path);
}

/* Of the packets that ip_output() makes for this address. */
static inline uint32_t ip_header_bytes(const struct harp_addr *addr)
{
	return harp_addr_is_v4(addr) ? 20u : 40u;
}

/* The flow label of a connection (RFC 6437): a keyed hash, so that the network can tell flows apart and
 * nobody can tell anything else. Never 0. */
void ip_path_label(const struct ip *ip, struct ip_path *path, uint16_t local_port,
		   uint16_t remote_port);

/* The next hop's record, NULL when there is none or it has been given to another address since. */
static inline struct neighbour *ip_path_neighbour(const struct ip_path *path)
{
	struct neighbour *n = path->neighbour;

	return n && memcmp(&n->addr, &path->next_hop, sizeof(path->next_hop)) == 0 ? n : NULL;
}

/* Validates the IP header of a packet that eth_input() returned (data at the IP header): ETH_IPV4 and
 * ETH_IPV6. */
enum ip_verdict ip_input(struct ip *ip, struct packet_in *in);
enum ip_verdict ip6_input(struct ip *ip, struct packet_in *in);
/* The transport header's protocol, as a verdict; IP_DROPPED (counted) when we have none such. */
enum ip_verdict ip_protocol(const struct ip *ip, uint8_t proto);
/* Cuts a packet to total bytes: link padding goes, with the frames that hold nothing else. False when
 * there are fewer bytes than that. */
bool ip_trim(struct ip *ip, struct frame *f, uint32_t total);

/*
 * Sends: out->head is at the transport header. Writes the IP header and goes down.
 * 0 queued; -EAGAIN next hop unresolved or NIC full (nothing written that matters, try again later:
 * eth.h says when); other -errno from ip_path_check(). Nothing is ever fragmented: DF is set (RFC 1191),
 * IPv6 has no fragments on the way (RFC 8200 section 5).
 */
int ip_output(struct ip *ip, struct ip_path *path, uint8_t proto, uint8_t tos,
	      struct packet_out *out);
/* Do headers of this kind now repeat those of the packet before? */
bool ip_output_repeats(const struct ip *ip, const struct ip_path *path, uint8_t proto, uint8_t tos);
/* Sends a packet no longer than the one before, if they do and nicio_tx_ready(). */
void ip_output_next(struct ip *ip, struct ip_path *path, struct packet_out *out);

/* The sum of a packet's bytes, added to another. */
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

/* Does the transport's checksum hold? field: as it stands in the packet. A local kernel leaves the folded sum of the
 * pseudo-header for a card to complete: where `partial` says that one may be there it is taken, and counted. */
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

/* Pseudo-header sum (unfolded) for RFC 9293 section 3.1 / RFC 8200 section 8.1. */
uint32_t ip_pseudo_sum(const struct harp_addr *src, const struct harp_addr *dst, uint8_t proto,
		       uint32_t len);
/* The same, of the addresses' own: ip_pseudo_sum() with proto 0 and len 0. */
static inline uint32_t ip_pseudo_add(uint32_t addresses_sum, uint8_t proto, uint32_t len)
{
	/* Length and protocol as one 32-bit number each, RFC 8200's form; folded, RFC 9293's
	 * (8 and 16 bits) gives the same. */
	return csum_add(addresses_sum, csum_add(htobe32(len), htobe32(proto)));
}

#endif
