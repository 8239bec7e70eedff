/* SPDX-License-Identifier: Apache-2.0 */
/* icmp.h - ICMP for IPv4 (RFC 792) and IPv6 (RFC 4443): replies to echo requests, and parses errors
 * about our packets into one form for both families. */
#ifndef HARP_NETWORK_ICMP_H
#define HARP_NETWORK_ICMP_H

#include "network/ip.h"

/* A rate limit: a token bucket whose credit is measured in time. */
struct icmp_bucket {
	uint64_t cost_ns; /* of one message */
	uint64_t credit_max_ns;
	uint64_t credit_ns, last_ns; /* credit at the time last_ns */
};

struct icmp {
	struct ip *ip;
	struct harp_stats *stats;
	struct icmp_bucket echo, error, forward; /* for both families together */
};

/* The meaning of an ICMP error, for both families. */
enum icmp_error_kind {
	ICMP_ERROR_UNREACHABLE_NET = 1,
	ICMP_ERROR_UNREACHABLE_HOST,
	ICMP_ERROR_UNREACHABLE_PORT, /* hard error: protocol or port (RFC 1122 section 4.2.3.9) */
	ICMP_ERROR_PROHIBITED,       /* a filter on the path rejects the packet */
	ICMP_ERROR_TOO_BIG,          /* mtu_bytes is the path MTU */
	ICMP_ERROR_TTL,
	ICMP_ERROR_PARAMETER,
};

enum icmp_verdict {
	ICMP_DROPPED = 0, /* counted; release the packet */
	ICMP_CONSUMED,    /* processed; release the packet */
	ICMP_ERROR,       /* *error is filled in; release the packet */
};

void icmp_init(struct icmp *icmp, struct ip *ip, struct harp_stats *stats);
/* Processes a packet for which ip_input() returned IP_LOCAL_ICMP. */
enum icmp_verdict icmp_input(struct icmp *icmp, struct packet_in *in,
			     struct harp_icmp_error *error);
/* The same for IP_LOCAL_ICMP6. Handles neighbor discovery internally (nd.c). */
enum icmp_verdict icmp6_input(struct icmp *icmp, struct packet_in *in,
			      struct harp_icmp_error *error);
/* True if another error may be forwarded to the stack that sent the quoted packet. Counts both
 * results. */
bool icmp_forward_allowed(struct icmp *icmp);
/* Sends a port unreachable to the sender of a packet, whose data begins at the transport header.
 * Rate-limited (RFC 1812 section 4.3.2.8, RFC 4443 section 2.4 (f)). */
void icmp_unreachable_port(struct icmp *icmp, const struct packet_in *in);

/* ---- shared by icmp.c and icmp6.c ---- */
/* True if the rate limit allows another echo reply; else counts a drop. */
bool icmp_echo_allowed(struct icmp *icmp);
/* Parses the first 8 bytes of a quoted TCP or UDP header; false for other protocols and for packets
 * that we did not send. */
bool icmp_parse_ports(const struct icmp *icmp, const uint8_t *transport,
		      struct harp_icmp_error *error);

#endif
