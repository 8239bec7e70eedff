/* SPDX-License-Identifier: Apache-2.0 */
/* icmp.h - ICMP for IPv4 (RFC 792) and IPv6 (RFC 4443): echo answered, errors about our own packets handed
 * to the transport in one form. */
#ifndef HARP_NETWORK_ICMP_H
#define HARP_NETWORK_ICMP_H

#include "network/ip.h"

/* How often something may be sent: a token bucket, in time. */
struct icmp_bucket {
	uint64_t cost_ns, most_ns;
	uint64_t credit_ns, last_ns;
};

struct icmp {
	struct ip *ip;
	struct harp_stats *stats;
	struct icmp_bucket echo, error, elsewhere; /* both families together */
};

/* What an ICMP error means, independent of the family. */
enum icmp_error_kind {
	ICMP_ERROR_UNREACHABLE_NET = 1, /* soft for TCP: network, host, source route, TTL... */
	ICMP_ERROR_UNREACHABLE_HOST,
	ICMP_ERROR_UNREACHABLE_PORT, /* hard: protocol or port (RFC 1122 section 4.2.3.9) */
	ICMP_ERROR_PROHIBITED,       /* a filter on the way says no */
	ICMP_ERROR_TOO_BIG,          /* mtu_bytes is what fits */
	ICMP_ERROR_TTL,
	ICMP_ERROR_PARAMETER,
};

enum icmp_verdict {
	ICMP_DROPPED = 0, /* counted; release the packet */
	ICMP_CONSUMED,    /* an echo request: answered; release the packet */
	ICMP_ERROR,       /* *error is filled: find its flow; release the packet */
};

void icmp_init(struct icmp *icmp, struct ip *ip, struct harp_stats *stats);
/* Takes a packet for which ip_input() said IP_LOCAL_ICMP. */
enum icmp_verdict icmp_input(struct icmp *icmp, struct packet_in *in,
			     struct harp_icmp_error *error);
/* The same for IP_LOCAL_ICMP6. Neighbour discovery ends in here (nd.c). */
enum icmp_verdict icmp6_input(struct icmp *icmp, struct packet_in *in,
			      struct harp_icmp_error *error);
/* May an error be handed to another stack of the card, which sent what it quotes? Counts, either way. */
bool icmp_elsewhere_allowed(struct icmp *icmp);
/* icmp_out.c: tells the sender of a packet, whose data still begins at the transport header, that nobody
 * has its port. Rate-limited (RFC 1812 section 4.3.2.8, RFC 4443 section 2.4 (f)). */
void icmp_unreachable_port(struct icmp *icmp, const struct packet_in *in);

/* ---- shared by icmp.c, icmp6.c and icmp_out.c ---- */
/* One more message of this kind may be sent now; takes it off the bucket. */
bool icmp_allowed(struct icmp_bucket *bucket, uint64_t now_ns);
/* One more echo may be answered. Counts when not. */
bool icmp_echo_allowed(struct icmp *icmp);
/* The first 8 bytes of a quoted TCP or UDP header; false for other protocols and other people's packets. */
bool icmp_parse_ports(const struct icmp *icmp, const uint8_t *transport,
		      struct harp_icmp_error *error);

#endif
