/* SPDX-License-Identifier: Apache-2.0 */
/* icmp.h - ICMP for IPv4 (RFC 792) and IPv6 (RFC 4443): echo answered, errors about our own packets handed
 * to the transport in one form. */
#ifndef HARP_NETWORK_ICMP_H
#define HARP_NETWORK_ICMP_H

#include "network/ip.h"

struct icmp {
	struct ip *ip;
	struct harp_stats *stats;
	uint64_t echo_credit_ns; /* token bucket, in time */
	uint64_t echo_last_ns;
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

/* An error about a packet that we, or someone who lies, sent from `local`. seq is the quoted TCP
 * header's: believe nothing that is not in flight (RFC 5927 section 4). */
struct icmp_error {
	enum icmp_error_kind kind;
	uint8_t type, code; /* as received */
	uint8_t proto;
	struct harp_endpoint local, remote;
	uint32_t seq;       /* TCP only */
	uint32_t mtu_bytes; /* ICMP_ERROR_TOO_BIG: at least what every path has to carry */
};

enum icmp_verdict {
	ICMP_DROPPED = 0, /* counted; release the packet */
	ICMP_CONSUMED,    /* an echo request: answered; release the packet */
	ICMP_ERROR,       /* *error is filled: find its flow; release the packet */
};

void icmp_init(struct icmp *icmp, struct ip *ip, struct harp_stats *stats);
/* Takes a packet for which ip_input() said IP_LOCAL_ICMP. */
enum icmp_verdict icmp_input(struct icmp *icmp, struct packet_in *in, struct icmp_error *error);
/* The same for IP_LOCAL_ICMP6. Neighbour discovery ends in here (nd.c). */
enum icmp_verdict icmp6_input(struct icmp *icmp, struct packet_in *in, struct icmp_error *error);

/* ---- shared by icmp.c and icmp6.c ---- */
/* One more echo may be answered (one rate for both families). Counts when not. */
bool icmp_echo_allowed(struct icmp *icmp);
/* Sum of a packet's bytes, all fragments. */
uint32_t icmp_sum(const struct frame *f);
/* The first 8 bytes of a quoted TCP or UDP header; false for other protocols and other people's packets. */
bool icmp_parse_ports(const struct icmp *icmp, const uint8_t *transport, struct icmp_error *error);

#endif
