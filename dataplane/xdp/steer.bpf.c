// SPDX-License-Identifier: Apache-2.0
/*
 * steer.bpf.c - the XDP program: redirects packets of HARP's connections to its AF_XDP socket and
 * passes all others to the kernel unchanged.
 *
 * A packet is ours if a HARP stack holds its destination address and port. So is an ICMP error that
 * quotes a packet from them. An address that the interface lost may stay in the map while a stack
 * still uses it (host/route_cache.c, harpd). IP fragments always pass, because only the first has
 * ports. IPv6 with extension headers and neighbor discovery pass, too. If no socket is on the
 * packet's queue (its owner died), the kernel gets the packet and answers with an RST.
 *
 * A port may have a queue: that of its stack. An AF_XDP socket receives only from its own queue, so
 * packets on another queue cannot reach the stack. The kernel must not get them either, since its
 * RST would end a live connection. The program drops them, and the peer tries another source port.
 * If no socket is on the port's queue, the kernel answers for the dead stack. An ICMP error comes
 * from a router, on any queue, so the program passes it. The kernel has no such connection: it can
 * only record the path MTU, which is correct and which a drop would lose.
 *
 * harpd can restrict the sources of a NIC (allow_sources in harp.toml). The program drops a packet
 * of ours from any other source, including an ICMP error. If it passed the packet, the kernel would
 * send an RST to each spoofed source. A process that binds one of HARP's ports would receive
 * excluded packets.
 *
 * VLANs are separate interfaces, so tagged frames pass to the kernel. VLAN 0 is only a priority
 * (IEEE 802.1Q clause 6.9.1); the header after such a tag decides. Tags that the NIC strips (rxvlan
 * offload) are not visible here, so only addresses distinguish VLANs there.
 *
 * The kernel requires a GPL-compatible license only for programs that call GPL-only helpers. This
 * program calls none.
 */
#include <linux/bpf.h>
#include <linux/icmpv6.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "steer.h"

/* RFC 792; linux/icmp.h includes libc headers. */
struct icmp4_start {
	__u8 type, code;
	__be16 checksum;
	__be32 rest;
};
enum { ICMP4_DEST_UNREACH = 3, ICMP4_TIME_EXCEEDED = 11, ICMP4_PARAMETER_PROBLEM = 12 };

struct vlan_tag {
	__be16 priority_and_id, type;
};

struct address {
	__u8 bytes[16]; /* IPv4 as ::ffff:a.b.c.d */
};

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, STEER_QUEUES_MAX);
	__type(key, __u32);
	__type(value, __u32);
} xsks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, STEER_PORTS);
	__type(key, __u32);
	__type(value, __u32);
} ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, STEER_ADDRESSES_MAX);
	__type(key, struct address);
	__type(value, __u32);
} addresses SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, STEER_VERDICTS_MAX);
	__type(key, __u32);
	__type(value, __u64);
} verdicts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, STEER_QUEUES_MAX);
	__type(key, __u32);
	__type(value, struct steer_arrivals);
} arrivals SEC(".maps");

/* One entry: nonzero if only the prefixes below may send to HARP. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} restricted SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC); /* required by the kernel */
	__uint(max_entries, STEER_SOURCES_MAX);
	__type(key, struct steer_source_v4);
	__type(value, __u32);
} sources_v4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, STEER_SOURCES_MAX);
	__type(key, struct steer_source_v6);
	__type(value, __u32);
} sources_v6 SEC(".maps");

/* STEER_LAYOUT, written by the loader and checked by xdp_adopt.c. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} layout SEC(".maps");

_Static_assert(STEER_VERDICT_COUNT <= STEER_VERDICTS_MAX, "the map is large enough");

#define QUEUE_ANY (~0u)

/* Destination of a packet. */
enum steer_target { STEER_KERNEL, STEER_SOCKET, STEER_DROP };

/* For a packet to HARP: the queue of its stack, a hash of its flow, and TCP's ACK bit. */
struct match {
	__u32 port_queue, flow, has_ack;
};

static __always_inline void address_from_v4(struct address *out, __be32 v4)
{
	__builtin_memset(out, 0, 10);
	out->bytes[10] = out->bytes[11] = 0xff;
	__builtin_memcpy(out->bytes + 12, &v4, 4);
}

/* Checks whether a HARP stack holds (address, port), and finds its queue. Looks up the port first,
 * because most packets to the kernel fail this check. */
static __always_inline enum steer_verdict find_owner(const struct address *address, __u8 protocol,
						     __be16 port, enum steer_verdict yes,
						     struct match *match)
{
	const int tcp = protocol == IPPROTO_TCP;
	__u32 key = bpf_ntohs(port);
	__u32 *value = bpf_map_lookup_elem(&ports, &key), held = value ? *value : 0;

	if (!(held & (tcp ? STEER_PORT_TCP : STEER_PORT_UDP)))
		return STEER_pass_port;
	if (!bpf_map_lookup_elem(&addresses, address))
		return STEER_pass_address;
	if (held & (tcp ? STEER_QUEUE_SET_TCP : STEER_QUEUE_SET_UDP))
		match->port_queue = held >> (tcp ? STEER_QUEUE_TCP_SHIFT : STEER_QUEUE_UDP_SHIFT) &
				    STEER_QUEUE_MASK;
	return yes;
}

/* Common start of the TCP and UDP headers. */
struct ports_start {
	__be16 source, dest;
};

static __always_inline int has_ports(__u8 protocol)
{
	return protocol == IPPROTO_TCP || protocol == IPPROTO_UDP;
}

/* Checks the port of a packet to `to`, if its transport header is complete. */
static __always_inline enum steer_verdict steer_transport(const struct address *to, __u8 protocol,
							  struct ports_start *start, void *end,
							  struct match *match)
{
	int tcp = protocol == IPPROTO_TCP;

	if ((void *)start + (tcp ? sizeof(struct tcphdr) : sizeof(struct udphdr)) > end)
		return STEER_pass_short;
	match->has_ack = tcp && ((struct tcphdr *)start)->ack;
	/* A hash of 6 bits. Adjacent ports differ in the last bits. */
	match->flow = (bpf_ntohs(start->source) + 7 * bpf_ntohs(start->dest)) & 63;
	return find_owner(to, protocol, start->dest, tcp ? STEER_redirect_tcp : STEER_redirect_udp,
			  match);
}

/* BIG TCP: a kernel coalesces segments into a packet whose length field is 0. HARP cannot read such
 * packets, and the kernel's RST would abort a live connection, so the program drops them.
 * Retransmissions are shorter. */
static __always_inline enum steer_verdict steer_length(enum steer_verdict verdict, __be16 len)
{
	return !len && (verdict == STEER_redirect_tcp || verdict == STEER_redirect_udp)
		       ? STEER_too_long
		       : verdict;
}

static __always_inline int is_ours(enum steer_verdict verdict)
{
	return verdict == STEER_redirect_tcp || verdict == STEER_redirect_udp ||
	       verdict == STEER_redirect_icmp;
}

static __always_inline int sources_are_restricted(void)
{
	__u32 zero = 0, *value = bpf_map_lookup_elem(&restricted, &zero);

	return !value || *value;
}

static __always_inline enum steer_verdict check_source_v4(enum steer_verdict verdict, __be32 source)
{
	struct steer_source_v4 key = { .prefix_bits = 32 };

	if (!is_ours(verdict) || !sources_are_restricted())
		return verdict;
	__builtin_memcpy(key.address, &source, sizeof(key.address));
	return bpf_map_lookup_elem(&sources_v4, &key) ? verdict : STEER_drop_source;
}

static __always_inline enum steer_verdict check_source_v6(enum steer_verdict verdict,
							  const struct in6_addr *source)
{
	struct steer_source_v6 key = { .prefix_bits = 128 };

	if (!is_ours(verdict) || !sources_are_restricted())
		return verdict;
	__builtin_memcpy(key.address, source, sizeof(key.address));
	return bpf_map_lookup_elem(&sources_v6, &key) ? verdict : STEER_drop_source;
}

static __always_inline enum steer_verdict steer_icmp4(struct icmp4_start *icmp, void *end,
						      struct match *match)
{
	struct iphdr *quoted = (void *)(icmp + 1);
	struct ports_start *start;
	struct address source;

	if ((void *)(icmp + 1) > end)
		return STEER_pass_short;
	if (icmp->type != ICMP4_DEST_UNREACH && icmp->type != ICMP4_TIME_EXCEEDED &&
	    icmp->type != ICMP4_PARAMETER_PROBLEM)
		return STEER_pass_protocol;
	if ((void *)(quoted + 1) > end)
		return STEER_pass_short;
	if (quoted->ihl < 5 || !has_ports(quoted->protocol))
		return STEER_pass_protocol;
	if (quoted->frag_off & bpf_htons(0x1fff))
		return STEER_pass_fragment;
	start = (void *)quoted + quoted->ihl * 4;
	if ((void *)start + 8 > end) /* RFC 792: at least 64 bits of the quoted datagram */
		return STEER_pass_short;
	address_from_v4(&source, quoted->saddr);
	return find_owner(&source, quoted->protocol, start->source, STEER_redirect_icmp, match);
}

static __always_inline enum steer_verdict steer_to_us_v4(struct iphdr *ip, void *end,
							 struct match *match)
{
	struct address to;
	void *start;

	if ((void *)(ip + 1) > end)
		return STEER_pass_short;
	if (ip->version != 4 || ip->ihl < 5)
		return STEER_pass_header;
	if (ip->frag_off & bpf_htons(0x3fff)) /* more fragments, or not the first */
		return STEER_pass_fragment;
	start = (void *)ip + ip->ihl * 4;
	if (ip->protocol == IPPROTO_ICMP)
		return steer_icmp4(start, end, match);
	if (!has_ports(ip->protocol))
		return STEER_pass_protocol;
	address_from_v4(&to, ip->daddr);
	return steer_length(steer_transport(&to, ip->protocol, start, end, match), ip->tot_len);
}

static __always_inline enum steer_verdict steer_v4(struct iphdr *ip, void *end, struct match *match)
{
	enum steer_verdict verdict = steer_to_us_v4(ip, end, match);

	/* The verifier needs this check again. */
	return (void *)(ip + 1) > end ? STEER_pass_short : check_source_v4(verdict, ip->saddr);
}

static __always_inline enum steer_verdict steer_icmp6(struct icmp6hdr *icmp, void *end,
						      struct match *match)
{
	struct ipv6hdr *quoted = (void *)(icmp + 1);
	struct ports_start *start = (void *)(quoted + 1);
	struct address source;

	if ((void *)(icmp + 1) > end)
		return STEER_pass_short;
	if (icmp->icmp6_type < ICMPV6_DEST_UNREACH || icmp->icmp6_type > ICMPV6_PARAMPROB)
		return STEER_pass_protocol;
	if ((void *)start + 8 > end)
		return STEER_pass_short;
	if (!has_ports(quoted->nexthdr))
		return STEER_pass_protocol;
	__builtin_memcpy(&source, &quoted->saddr, sizeof(source));
	return find_owner(&source, quoted->nexthdr, start->source, STEER_redirect_icmp, match);
}

/* RFC 2675: the length is in an option. */
struct jumbo_start {
	__u8 nexthdr, hdrlen;
	__u8 option[6];
};

static __always_inline enum steer_verdict steer_jumbo(struct ipv6hdr *ip, void *end,
						      struct match *match)
{
	struct jumbo_start *jumbo = (void *)(ip + 1);
	struct address to;

	if ((void *)(jumbo + 1) > end)
		return STEER_pass_short;
	if (ip->payload_len || jumbo->hdrlen || !has_ports(jumbo->nexthdr))
		return STEER_pass_header;
	__builtin_memcpy(&to, &ip->daddr, sizeof(to));
	return steer_length(steer_transport(&to, jumbo->nexthdr, (void *)(jumbo + 1), end, match),
			    0);
}

static __always_inline enum steer_verdict steer_to_us_v6(struct ipv6hdr *ip, void *end,
							 struct match *match)
{
	struct address to;

	if ((void *)(ip + 1) > end)
		return STEER_pass_short;
	if (ip->version != 6)
		return STEER_pass_header;
	switch (ip->nexthdr) {
	case IPPROTO_TCP:
	case IPPROTO_UDP:
		break;
	case IPPROTO_ICMPV6:
		return steer_icmp6((void *)(ip + 1), end, match);
	case IPPROTO_FRAGMENT:
		return STEER_pass_fragment;
	case IPPROTO_HOPOPTS:
		return steer_jumbo(ip, end, match);
	case IPPROTO_ROUTING:
	case IPPROTO_DSTOPTS:
		return STEER_pass_header;
	default:
		return STEER_pass_protocol;
	}
	__builtin_memcpy(&to, &ip->daddr, sizeof(to));
	return steer_length(steer_transport(&to, ip->nexthdr, (void *)(ip + 1), end, match),
			    ip->payload_len);
}

static __always_inline enum steer_verdict steer_v6(struct ipv6hdr *ip, void *end,
						   struct match *match)
{
	enum steer_verdict verdict = steer_to_us_v6(ip, end, match);

	return (void *)(ip + 1) > end ? STEER_pass_short : check_source_v6(verdict, &ip->saddr);
}

static __always_inline enum steer_verdict steer_packet(void *data, void *end, struct match *match)
{
	struct ethhdr *eth = data;
	struct vlan_tag *tag = (void *)(eth + 1);
	void *ip = tag;
	__be16 type;

	if ((void *)(eth + 1) > end)
		return STEER_pass_short;
	type = eth->h_proto;
	if (type == bpf_htons(ETH_P_8021Q)) {
		if ((void *)(tag + 1) > end)
			return STEER_pass_short;
		if (tag->priority_and_id & bpf_htons(0x0fff))
			return STEER_pass_vlan;
		type = tag->type;
		ip = tag + 1;
	}
	switch (bpf_ntohs(type)) {
	case ETH_P_IP:
		return steer_v4(ip, end, match);
	case ETH_P_IPV6:
		return steer_v6(ip, end, match);
	case ETH_P_8021Q: /* nested tags */
	case ETH_P_8021AD:
		return STEER_pass_vlan;
	default:
		return STEER_pass_type;
	}
}

/* A packet to HARP whose stack is on another queue. */
static __always_inline enum steer_target steer_other_queue(__u32 port_queue, __u32 *verdict)
{
	if (!bpf_map_lookup_elem(&xsks, &port_queue)) {
		*verdict = STEER_absent;
		return STEER_KERNEL;
	}
	if (*verdict == STEER_redirect_icmp) {
		*verdict = STEER_pass_icmp_queue;
		return STEER_KERNEL;
	}
	*verdict = STEER_rss_mismatch;
	return STEER_DROP;
}

/* Counts an arrival on its queue. The value is per CPU, and interrupts do not nest here. SYN and
 * UDP packets are not counted as mismatches: they do not show where the NIC puts existing flows. */
static __always_inline void steer_count_arrival(__u32 queue, __u32 verdict,
						const struct match *match)
{
	struct steer_arrivals *arrived = bpf_map_lookup_elem(&arrivals, &queue);

	if (!arrived)
		return;
	arrived->packets++;
	if (verdict != STEER_rss_mismatch || !match->has_ack)
		return;
	arrived->mismatches++;
	arrived->flows |= 1ull << (match->flow & 63);
}

/* Chooses the destination of a classified packet, and counts it. */
static __always_inline enum steer_target steer(__u32 verdict, const struct match *match,
					       __u32 queue)
{
	int transport = verdict == STEER_redirect_tcp || verdict == STEER_redirect_udp;
	enum steer_target target = STEER_KERNEL;
	__u64 *count;

	if (verdict == STEER_too_long || verdict == STEER_drop_source)
		target = STEER_DROP;
	if (is_ours(verdict)) {
		if (match->port_queue != QUEUE_ANY && match->port_queue != queue)
			target = steer_other_queue(match->port_queue, &verdict);
		else if (bpf_map_lookup_elem(&xsks, &queue))
			target = STEER_SOCKET;
		else
			verdict = STEER_absent;
	}
	if (transport)
		steer_count_arrival(queue, verdict, match);
	count = bpf_map_lookup_elem(&verdicts, &verdict);
	if (count)
		++*count;
	return target;
}

SEC("xdp.frags")
int harp_steer(struct xdp_md *ctx)
{
	struct match match = { .port_queue = QUEUE_ANY };
	__u32 verdict = steer_packet((void *)(long)ctx->data, (void *)(long)ctx->data_end, &match);
	__u32 queue = ctx->rx_queue_index;

	switch (steer(verdict, &match, queue)) {
	case STEER_SOCKET:
		return (int)bpf_redirect_map(&xsks, queue, XDP_PASS);
	case STEER_DROP:
		return XDP_DROP;
	default:
		return XDP_PASS;
	}
}

char steer_license[] SEC("license") = "Apache-2.0";
