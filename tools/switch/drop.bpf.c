// SPDX-License-Identifier: Apache-2.0
/*
 * drop.bpf.c - drops random TCP packets that enter a bridge, and counts them.
 *
 * The n-th TCP packet of a port is dropped if a hash of (seed, n) is below the threshold: losses
 * are independent, and the same seed repeats them. Only TCP is dropped: a lost ARP packet would
 * stop every stack for a second and say nothing about its TCP.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "drop.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct drop_settings);
} settings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct drop_counts);
} counts SEC(".maps");

/* SplitMix64's finalizer over the packet's number. */
static __always_inline __u32 drop_hash(__u64 seed, __u64 number)
{
	__u64 x = seed + (number + 1) * 0x9e3779b97f4a7c15ull;

	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	return (__u32)((x ^ (x >> 31)) >> 32);
}

struct headers {
	__u32 tcp; /* offset of the TCP header */
	__u32 end; /* end of the IP packet; short frames have padding after it */
};

/* Returns 0 for TCP. Packets with extension headers are not parsed and pass. */
static __always_inline int drop_parse(struct __sk_buff *skb, struct headers *at)
{
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr ip;

		if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)) ||
		    ip.protocol != IPPROTO_TCP)
			return -1;
		at->tcp = ETH_HLEN + ip.ihl * 4;
		at->end = ETH_HLEN + bpf_ntohs(ip.tot_len);
		return 0;
	}
	if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr ip;

		if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)) || ip.nexthdr != IPPROTO_TCP)
			return -1;
		at->tcp = ETH_HLEN + sizeof(ip);
		at->end = ETH_HLEN + sizeof(ip) + bpf_ntohs(ip.payload_len);
		return 0;
	}
	return -1;
}

SEC("tc")
int harp_drop(struct __sk_buff *skb)
{
	const __u32 zero = 0;
	struct drop_settings *set = bpf_map_lookup_elem(&settings, &zero);
	struct drop_counts *count = bpf_map_lookup_elem(&counts, &zero);
	struct headers at;
	struct tcphdr tcp;
	__u32 payload;
	__u64 number;

	if (!set || !count || drop_parse(skb, &at) ||
	    bpf_skb_load_bytes(skb, at.tcp, &tcp, sizeof(tcp)))
		return TC_ACT_OK;
	payload = at.tcp + tcp.doff * 4 < at.end ? at.end - at.tcp - tcp.doff * 4 : 0;
	number = __sync_fetch_and_add(&count->packets, 1);
	__sync_fetch_and_add(&count->super_packets, skb->gso_segs > 1);
	if (drop_hash(set->seed, number) >= set->threshold)
		return TC_ACT_OK;
	__sync_fetch_and_add(&count->dropped_payload_bytes, payload);
	return TC_ACT_SHOT;
}

char _license[] SEC("license") = "Apache-2.0";
