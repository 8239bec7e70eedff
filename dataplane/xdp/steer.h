/* SPDX-License-Identifier: Apache-2.0 */
/*
 * steer.h - interface between the XDP program and its loader. Includes nothing, because the program
 * cannot include libc headers.
 */
#ifndef HARP_XDP_STEER_H
#define HARP_XDP_STEER_H

/* Version of the maps' layout. A program never uses or adopts maps of another version. Appending
 * verdicts does not change it. */
#define STEER_LAYOUT 3
#define STEER_PORTS 65536
#define STEER_ADDRESSES_MAX 64
#define STEER_SOURCES_MAX 256 /* prefixes of each family */
#define STEER_QUEUES_MAX 256
#define STEER_VERDICTS_MAX 64
/*
 * Values of the port map: the protocols in use (flags), the protocols whose queue is known (flags),
 * and per protocol the queue of the stack that has the port.
 */
#define STEER_PORT_TCP 0x1
#define STEER_PORT_UDP 0x2
#define STEER_QUEUE_SET_TCP 0x4
#define STEER_QUEUE_SET_UDP 0x8
#define STEER_QUEUE_TCP_SHIFT 8
#define STEER_QUEUE_UDP_SHIFT 16
#define STEER_QUEUE_MASK 0xff

/*
 * Per-CPU values of the arrivals map for each receive queue. Readers add them up (flows: OR).
 * packets: TCP and UDP packets to an address and port of ours on this queue, with any verdict.
 * mismatches: TCP segments with the ACK bit that were dropped because their stack is on another
 * queue. flows: a bit per flow of these segments, by a hash of its ports. The number of bits is a
 * lower bound of the number of flows.
 */
struct steer_arrivals {
	unsigned long long packets, mismatches, flows;
};

/* Keys of the maps of allowed sources. The kernel compares prefix_bits of the address
 * (BPF_MAP_TYPE_LPM_TRIE). */
struct steer_source_v4 {
	unsigned int prefix_bits;
	unsigned char address[4];
};
struct steer_source_v6 {
	unsigned int prefix_bits;
	unsigned char address[16];
};

/* X(name, help): the verdicts. Each has a counter. */
#define STEER_VERDICTS(X)                                                                          \
	X(redirect_tcp, "to HARP: TCP to an address and a port of ours")                           \
	X(redirect_icmp, "to HARP: ICMP error that quotes a flow of ours")                         \
	X(absent, "to the kernel: ours, but no AF_XDP socket is on its queue")                     \
	X(pass_short, "to the kernel: headers truncated or not in the first buffer")               \
	X(pass_vlan, "to the kernel: tagged with a VLAN")                                          \
	X(pass_type, "to the kernel: neither IPv4 nor IPv6")                                       \
	X(pass_header, "to the kernel: malformed IP header or IPv6 extension headers")             \
	X(pass_fragment, "to the kernel: IP fragment")                                             \
	X(pass_protocol, "to the kernel: neither TCP nor UDP nor an ICMP error")                   \
	X(pass_port, "to the kernel: not a port of ours")                                          \
	X(pass_address, "to the kernel: our port, but not an address of ours")                     \
	X(redirect_udp, "to HARP: UDP to an address and a port of ours")                           \
	X(rss_mismatch, "dropped: the NIC put it on another queue than its stack's")               \
	X(pass_icmp_queue, "to the kernel: ICMP error about a flow of another queue")              \
	X(too_long, "dropped: ours, too long for IP's length field (BIG TCP)")                     \
	X(drop_source, "dropped: ours, from a source that the NIC's allow_sources does not list")

#define STEER_VERDICT_ENUM(name, help) STEER_##name,
enum steer_verdict { STEER_VERDICTS(STEER_VERDICT_ENUM) STEER_VERDICT_COUNT };
#undef STEER_VERDICT_ENUM

#endif
