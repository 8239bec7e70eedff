/* SPDX-License-Identifier: Apache-2.0 */
/*
 * steer.h - what the steering program and its loader agree on. Included by both, so it includes
 * nothing. X(name, help): the verdicts, one counter each.
 */
#ifndef HARP_XDP_STEER_H
#define HARP_XDP_STEER_H

#define STEER_PORTS 65536
/* What the map of ports holds: whose port it is, as bits. */
#define STEER_PORT_TCP 1
#define STEER_PORT_UDP 2
#define STEER_ADDRESSES_MAX 64
#define STEER_QUEUES_MAX 256

#define STEER_VERDICTS(X)                                                                          \
	X(redirect_tcp, "to HARP: TCP to an own address and a port of ours")                       \
	X(redirect_icmp, "to HARP: ICMP error that quotes a flow of ours")                         \
	X(absent, "to the kernel: ours, but no AF_XDP socket is on its queue")                     \
	X(pass_short, "to the kernel: headers cut short or not in the first buffer")               \
	X(pass_vlan, "to the kernel: tagged with a VLAN")                                          \
	X(pass_type, "to the kernel: neither IPv4 nor IPv6")                                       \
	X(pass_header, "to the kernel: malformed IP header or IPv6 extension headers")             \
	X(pass_fragment, "to the kernel: IP fragment")                                             \
	X(pass_protocol, "to the kernel: neither TCP nor UDP nor an ICMP error")                   \
	X(pass_port, "to the kernel: not a port of ours")                                          \
	X(pass_address, "to the kernel: our port, but not an address of ours")                     \
	X(redirect_udp, "to HARP: UDP to an own address and a port of ours")

#define STEER_VERDICT_ENUM(name, help) STEER_##name,
enum steer_verdict { STEER_VERDICTS(STEER_VERDICT_ENUM) STEER_VERDICT_COUNT };
#undef STEER_VERDICT_ENUM

#endif
