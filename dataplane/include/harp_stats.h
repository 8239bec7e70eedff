/* SPDX-License-Identifier: Apache-2.0 */
/*
 * harp_stats.h - the list of statistics, from which the C struct, the names, the help texts,
 * Prometheus metrics and the documentation are generated. X(name, kind, help): kind is counter or
 * gauge. Append only: the order is part of the contract.
 */
#ifndef HARP_STATS_H
#define HARP_STATS_H

#include <stdint.h>

#define HARP_STATS(X)                                                                              \
	X(polls, counter, "calls of harp_stack_poll")                                              \
	X(rx_packets, counter, "packets taken from the NIC")                                       \
	X(rx_bytes, counter, "bytes of those packets, including Ethernet headers")                 \
	X(tx_packets, counter, "packets passed to the NIC")                                        \
	X(tx_bytes, counter, "bytes of those packets, including Ethernet headers")                 \
	X(tx_copied_bytes, counter, "application bytes copied into frames")                        \
	X(rx_copied_bytes, counter, "received bytes copied out of frames")                         \
	X(rx_coalesced_bytes, counter, "received bytes copied to merge small segments")            \
	X(frames_free, gauge, "frames in the free pool")                                           \
	X(frames_rx_nic, gauge, "frames the NIC holds for receiving")                              \
	X(frames_tx_nic, gauge, "frames the NIC holds for sending")                                \
	X(frames_tcp_tx, gauge, "frames in send queues")                                           \
	X(frames_tcp_rx, gauge, "frames in receive queues, or lent to the application")            \
	X(tx_ring_full, counter, "transmissions delayed because the NIC's ring was full")          \
	X(neighbor_wait, counter, "transmissions delayed because the next hop was unresolved")     \
	X(arp_in, counter, "ARP packets received")                                                 \
	X(arp_out, counter, "ARP packets sent")                                                    \
	X(icmp_echo_in, counter, "ICMP echo requests within the rate limit")                       \
	X(icmp_error_in, counter, "ICMP errors received that quote a flow of ours")                \
	X(tcp_conns, gauge, "TCP connections in any state but CLOSED")                             \
	X(tcp_active_opens, counter, "connections opened by connect")                              \
	X(tcp_passive_opens, counter, "connections opened by a listener")                          \
	X(tcp_attempt_fails, counter, "connections that died before ESTABLISHED")                  \
	X(tcp_estab_resets, counter, "established connections that were reset")                    \
	X(tcp_segs_in, counter, "valid TCP segments received")                                     \
	X(tcp_segs_out, counter, "TCP segments sent")                                              \
	X(tcp_data_segs_in, counter, "segments received with payload")                             \
	X(tcp_data_segs_out, counter, "segments sent with payload, including retransmissions")     \
	X(tcp_fast_path_in, counter, "segments that took the fast path")                           \
	X(tcp_retransmits, counter, "segments retransmitted")                                      \
	X(tcp_rto, counter, "retransmission timeouts")                                             \
	X(tcp_fast_retransmits, counter, "fast retransmissions")                                   \
	X(tcp_out_of_order, counter, "segments received out of order and kept")                    \
	X(tcp_zero_window_probes, counter, "zero-window probes sent")                              \
	X(tcp_keepalive_probes, counter, "keepalive probes sent")                                  \
	X(tcp_rst_out, counter, "RST segments sent")                                               \
	X(tcp_rst_in, counter, "RST segments accepted")                                            \
	X(tcp_challenge_acks, counter, "challenge ACKs sent (RFC 5961)")                           \
	X(csum_partial_accepted, counter, "packets accepted with a pseudo-header checksum only")   \
	X(drop_eth_short, counter, "dropped: shorter than an Ethernet header")                     \
	X(drop_eth_not_ours, counter, "dropped: destination MAC address is not ours")              \
	X(drop_eth_type, counter, "dropped: EtherType not handled")                                \
	X(drop_arp_bad, counter, "dropped: malformed ARP")                                         \
	X(drop_ip_short, counter, "dropped: shorter than its IP header or total length")           \
	X(drop_ip_version, counter, "dropped: IP version or header length wrong")                  \
	X(drop_ip_checksum, counter, "dropped: IPv4 header checksum wrong")                        \
	X(drop_ip_not_ours, counter, "dropped: destination address is not ours")                   \
	X(drop_ip_source, counter, "dropped: source address is multicast, broadcast or ours")      \
	X(drop_ip_fragment, counter, "dropped: IP fragment")                                       \
	X(drop_ip_protocol, counter, "dropped: IP protocol not handled")                           \
	X(drop_icmp_bad, counter, "dropped: malformed or unhandled ICMP")                          \
	X(drop_tcp_short, counter, "dropped: shorter than its TCP header")                         \
	X(drop_tcp_checksum, counter, "dropped: TCP checksum wrong")                               \
	X(drop_tcp_flags, counter, "dropped: impossible TCP flags")                                \
	X(drop_tcp_options, counter, "dropped: malformed TCP options")                             \
	X(drop_tcp_no_flow, counter, "answered with RST or dropped: no such connection")           \
	X(drop_tcp_backlog, counter, "dropped: SYN while the backlog was full")                    \
	X(drop_tcp_window, counter, "dropped: outside the receive window")                         \
	X(drop_tcp_paws, counter, "dropped: old timestamp (RFC 7323 PAWS)")                        \
	X(drop_tcp_ack, counter, "dropped: acknowledges data never sent, or is too old")           \
	X(drop_tcp_duplicate, counter, "payload dropped: received before")                         \
	X(drop_tcp_rx_budget, counter,                                                             \
	  "payload dropped: receive budget of the connection used up")                             \
	X(drop_tcp_state, counter, "dropped: not acceptable in the connection's state")            \
	X(drop_no_frame, counter, "dropped: no free frame for a reply or a copy")                  \
	X(drop_gso_oversize, counter, "dropped: larger than the stack can hold")                   \
	X(drop_nic_desc, counter, "dropped: impossible descriptors from the NIC")                  \
	X(nic_completion_bad, counter, "completions of frames that the NIC did not hold")          \
	X(arp_conflicts, counter, "ARP or neighbor discovery from others that claims our address") \
	X(drop_arp_claim, counter, "dropped: claims that would replace a live neighbor")           \
	X(neighbor_full, counter, "neighbors not learned because the table was full")              \
	X(drop_icmp_rate, counter, "dropped: ICMP echo requests above the rate limit")             \
	X(drop_vlan, counter, "dropped: frame of another VLAN, or with more than one tag")         \
	X(nd_in, counter, "neighbor solicitations and advertisements received")                    \
	X(nd_out, counter, "neighbor solicitations and advertisements sent")                       \
	X(nd_ignored, counter, "router discovery and redirects ignored: the owner sets routes")    \
	X(drop_nd_bad, counter, "dropped: malformed neighbor discovery (RFC 4861 section 7.1)")    \
	X(drop_ip6_ext, counter, "dropped: IPv6 extension headers malformed or refused")           \
	X(tcp_ecn_ce_in, counter, "data segments received with a router's mark (ECN CE)")          \
	X(tcp_ecn_ece_in, counter, "segments received that report marks (ECE)")                    \
	X(tcp_ecn_reductions, counter, "congestion windows reduced because of marks")              \
	X(tcp_paced, counter, "times that a connection waited for pacing")                         \
	X(drop_tcp_echo, counter, "dropped: echoes a timestamp that this connection never sent")   \
	X(tcp_challenge_limited, counter,                                                          \
	  "challenge ACKs not sent: the connection's budget is used")                              \
	X(udp_sockets, gauge, "open UDP sockets")                                                  \
	X(udp_in, counter, "UDP datagrams received for a socket")                                  \
	X(udp_out, counter, "UDP datagrams sent")                                                  \
	X(frames_udp_tx, gauge, "frames in UDP send queues")                                       \
	X(frames_udp_rx, gauge, "frames in UDP receive queues")                                    \
	X(icmp_unreachable_out, counter, "ICMP port unreachable messages sent")                    \
	X(drop_udp_short, counter, "dropped: shorter than its UDP header or length field")         \
	X(drop_udp_checksum, counter, "dropped: UDP checksum wrong, or absent over IPv6")          \
	X(drop_udp_no_port, counter, "dropped: no socket for this UDP datagram")                   \
	X(drop_udp_rx_budget, counter, "dropped: receive budget of the UDP socket used up")        \
	X(drop_udp_unsent, counter,                                                                \
	  "UDP datagrams dropped: no route, or no answer from the next hop")                       \
	X(tcp_cookies_sent, counter,                                                               \
	  "SYNs answered with a SYN cookie: the backlog was under pressure")                       \
	X(tcp_cookies_accepted, counter, "connections opened by a returned SYN cookie")            \
	X(tcp_cookies_refused, counter, "ACKs to a listener without a valid SYN cookie")           \
	X(tcp_sack_in, counter, "segments received with SACK blocks")                              \
	X(tcp_sack_bad, counter, "SACK blocks ignored: outside of the data in flight")             \
	X(tcp_sack_walked, counter, "segments of send queues visited in loss recovery")            \
	X(tcp_dsack_in, counter, "duplicates that peers reported (RFC 2883)")                      \
	X(tcp_dsack_out, counter, "duplicates reported to peers")                                  \
	X(tcp_lost_segs, counter, "segments that counted as lost")                                 \
	X(tcp_tlp_probes, counter, "tail loss probes sent (RFC 8985)")                             \
	X(tcp_spurious_rto, counter, "timeouts undone: nothing was lost")                          \
	X(tcp_spurious_recovery, counter, "fast recoveries undone: nothing was lost")              \
	X(tcp_reneged, counter, "peers that dropped SACKed data")                                  \
	X(tcp_resegmented, counter, "segments split because the path MTU shrank")                  \
	X(tcp_mtu_icmp, counter, "ICMP messages accepted about a smaller path MTU")                \
	X(tcp_mtu_icmp_ignored, counter, "such messages that match no data in flight")             \
	X(tcp_mtu_black_holes, counter,                                                            \
	  "times that segments were made smaller because large ones were lost without ICMP")       \
	X(tcp_mtu_probes, counter, "path MTU probes sent (RFC 4821)")                              \
	X(tcp_mtu_probes_lost, counter, "path MTU probes that were lost or inconclusive")          \
	X(tcp_mtu_raised, counter, "path MTU probes that passed: segments became larger")          \
	X(frames_tcp_external, gauge,                                                              \
	  "pieces of the application's memory in send queues, sent in place")                      \
	X(tx_external_bytes, counter, "application bytes queued in place: not copied")             \
	X(tcp_tso_packets_out, counter, "packets of several segments, which the NIC splits (TSO)") \
	X(tcp_tso_segs_out, counter, "segments sent in them")                                      \
	X(drop_port_elsewhere, counter, "dropped: for a port of another stack on the same NIC")    \
	X(nic_rx_dropped, counter,                                                                 \
	  "packets lost by the NIC, its driver or the kernel before the stack received them "      \
	  "(DPDK: rx_missed_errors)")                                                              \
	X(nic_rx_ring_full, counter, "packets lost because the receive ring was full (AF_XDP)")    \
	X(nic_rx_fill_empty, counter,                                                              \
	  "times that the NIC had no empty frame to receive into (DPDK: "                          \
	  "rx_mbuf_allocation_errors)")                                                            \
	X(nic_rx_invalid, counter,                                                                 \
	  "packets that the NIC code could not accept (too long, incomplete)")                     \
	X(nic_tx_invalid, counter, "packets that the NIC rejected")                                \
	X(nic_copied_bytes, counter, "bytes copied by HARP's code for the NIC")                    \
	X(nic_driver_copied_bytes, counter,                                                        \
	  "bytes copied by the driver, if it is known to copy (memif, tap, af_packet)")            \
	X(icmp_error_elsewhere, counter,                                                           \
	  "ICMP errors passed to the stack on the same NIC that sent the quoted packet")           \
	X(drop_icmp_elsewhere, counter, "dropped: such errors above the rate limit")               \
	X(tx_evicted_bytes, counter,                                                               \
	  "bytes queued in place that were copied later, because the application removed its "     \
	  "memory (also in tx_copied_bytes)")                                                      \
	X(tx_forgotten, counter,                                                                   \
	  "packets dropped before the NIC took them, for the same reason (retransmitted later)")   \
	X(rx_discarded_bytes, counter, "received bytes discarded after shutdown(SHUT_RD)")

#define HARP_STATS_FIELD(name, kind, help) uint64_t name;
struct harp_stats {
	HARP_STATS(HARP_STATS_FIELD)
};
#undef HARP_STATS_FIELD

#endif
