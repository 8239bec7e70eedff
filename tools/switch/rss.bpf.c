// SPDX-License-Identifier: Apache-2.0
/*
 * rss.bpf.c - chooses the receive queue of the host behind a bridge port, as that host's NIC would.
 *
 * It runs at the port's tc egress. veth uses the packet's recorded receive queue, which is
 * queue_mapping minus 1, as its transmit queue. For the peer's XDP program in generic mode, a
 * packet of transmit queue n + 1 is on receive queue n. (In native mode it is on n + 1, and that
 * mode needs as many receive queues as the port has transmit queues.) So the port has one transmit
 * queue more than the host has receive queues.
 *
 * The hash covers addresses and ports of TCP and UDP, and the addresses of fragments and other IP
 * packets. All other packets go to queue 0.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "rss.h"

#define INPUT_MAX 36

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct rss_settings);
} settings SEC(".maps");

/* Number of packets sent to each queue. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, RSS_QUEUES_MAX);
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");

struct input {
	__u8 bytes[40];
	__u32 len; /* 0: not IP */
};

static __always_inline int has_ports(__u8 protocol)
{
	return protocol == IPPROTO_TCP || protocol == IPPROTO_UDP;
}

static __always_inline void input_v4(struct __sk_buff *skb, struct input *in)
{
	struct iphdr ip;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)))
		return;
	__builtin_memcpy(in->bytes, &ip.saddr, 8);
	in->len = 8;
	if (has_ports(ip.protocol) && !(ip.frag_off & bpf_htons(0x3fff)) &&
	    !bpf_skb_load_bytes(skb, ETH_HLEN + ip.ihl * 4, in->bytes + 8, 4))
		in->len = 12;
}

static __always_inline void input_v6(struct __sk_buff *skb, struct input *in)
{
	struct ipv6hdr ip;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)))
		return;
	__builtin_memcpy(in->bytes, &ip.saddr, 32);
	in->len = 32;
	if (has_ports(ip.nexthdr) &&
	    !bpf_skb_load_bytes(skb, ETH_HLEN + sizeof(ip), in->bytes + 32, 4))
		in->len = 36;
}

/* Each set bit of the input adds the upper half of a 64-bit window of the key to the hash. */
static __always_inline __u32 toeplitz(const struct rss_settings *set, const struct input *in)
{
	__u64 window = 0;
	__u32 hash = 0;

	for (int i = 0; i < 8; i++)
		window = window << 8 | set->key[i];
	for (__u32 i = 0; i < INPUT_MAX && i < in->len; i++) {
		for (int bit = 7; bit >= 0; bit--) {
			if (in->bytes[i] >> bit & 1)
				hash ^= (__u32)(window >> 32);
			window <<= 1;
		}
		window |= set->key[i + 8];
	}
	return hash;
}

/* SplitMix64's finalizer over a secret and the input. */
static __always_inline __u32 other_hash(const struct rss_settings *set, const struct input *in)
{
	__u64 x = set->secret;

	for (__u32 i = 0; i < INPUT_MAX && i < in->len; i++) {
		x = (x ^ in->bytes[i]) + 0x9e3779b97f4a7c15ull;
		x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
		x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
		x ^= x >> 31;
	}
	return (__u32)(x >> 32);
}

static __always_inline __u32 choose(struct __sk_buff *skb, const struct rss_settings *set)
{
	struct input in = { .len = 0 };
	__u32 entry;

	if (set->mode == RSS_ZERO || !set->queues || !set->table_count)
		return 0;
	if (skb->protocol == bpf_htons(ETH_P_IP))
		input_v4(skb, &in);
	else if (skb->protocol == bpf_htons(ETH_P_IPV6))
		input_v6(skb, &in);
	if (!in.len)
		return 0;
	if (set->mode == RSS_HASH)
		return other_hash(set, &in) % set->queues;
	entry = toeplitz(set, &in) % set->table_count;
	return entry < RSS_TABLE_MAX ? set->table[entry] : 0;
}

SEC("tc")
int harp_rss(struct __sk_buff *skb)
{
	const __u32 zero = 0;
	const struct rss_settings *set = bpf_map_lookup_elem(&settings, &zero);
	__u32 queue;
	__u64 *count;

	if (!set || set->mode == RSS_KEEP)
		return TC_ACT_OK;
	queue = choose(skb, set);
	count = bpf_map_lookup_elem(&counts, &queue);
	if (count)
		__sync_fetch_and_add(count, 1);
	skb->queue_mapping = queue + 2;
	return TC_ACT_OK;
}

char _license[] SEC("license") = "Apache-2.0";
