/* SPDX-License-Identifier: Apache-2.0 */
/*
 * neigh.c - the neighbor table: MAC addresses of next hops, and unreachability detection.
 *
 * Theory of operation. The states follow RFC 4861 section 7.3.2, also for IPv4:
 *
 *	INCOMPLETE	solicited by broadcast (IPv6: multicast) every 100 ms, NEIGHBOR_PROBES times
 *	FAILED		did not answer; solicited again on use, at most once per second (RFC 1122
 *			section 2.3.2.1)
 *	REACHABLE	confirmed within 30 s, by a reply or by TCP's progress
 *	STALE		usable, not confirmed. Use starts a timer (5 s, RFC 4861's DELAY), within
 *			which TCP may confirm it. Then it is probed by unicast, and if there is no
 *			reply, it becomes INCOMPLETE
 *
 * When TCP gets no ACKs (neighbor_suspect()), probing starts at once: a wrong MAC address, for
 * example from a corrupted ARP packet, costs half a second instead of half a minute.
 *
 * Trust. ARP and neighbor discovery have no authentication: any node of the segment can claim any
 * address.
 *	- Packets that are not for us create no entries, but can update one.
 *	- A request for our address creates a STALE entry, because its sender is about to send to
 *	  us.
 *	- A reply while we solicit is accepted.
 *	- An unsolicited claim that contradicts a REACHABLE entry (gratuitous ARP after a failover,
 *	  or poisoning) does not replace it: the old owner is probed by unicast at once. If it
 *	  replies, the claim was false. If not, the address is solicited by broadcast, and the new
 *	  owner replies. A real move costs 0.3 s; a false claim has no effect. (RFC 5227 section 2.4
 *	  defends a host's own address in this way; Linux accepts any claim one second after the
 *	  last.)
 *	- A claim about a STALE entry that is not being probed is accepted, as in RFC 826. The entry
 *	  stays STALE until its use confirms it.
 *	- An advertisement without the override flag (from a proxy, RFC 4861 section 7.2.8) replaces
 *	  no entry; it starts a probe of a REACHABLE entry that it contradicts (section 7.2.5).
 *
 * Eviction. Entries that were learned but never used have used_ns 0 and are evicted first, so
 * requests from forged addresses evict no entry in use. A sender that forges many addresses of an
 * IPv6 prefix makes us solicit them (RFC 6583). Unanswered entries are evicted, too, oldest first,
 * so live neighbors can be resolved even then.
 *
 * In external mode the kernel does all of this: there are no timers and no probes, and
 * neighbor_set() is authoritative.
 */
#include "link/eth.h"

#include <errno.h>
#include <string.h>

#include "base/util.h"

#define NEIGHBOR_PROBES 3u
#define NEIGHBOR_RETRY_NS UINT64_C(100000000)
#define NEIGHBOR_HOLD_NS UINT64_C(1000000000) /* until a FAILED entry is solicited again */
#define NEIGHBOR_DELAY_NS UINT64_C(5000000000)
#define NEIGHBOR_IDLE_NS UINT64_C(60000000000) /* an entry unused for this long may be evicted */
#define NEIGHBOR_CONFIRM_NS UINT64_C(1000000000)
#define NEIGHBOR_CONFLICT_LOG_NS UINT64_C(10000000000)

static struct neighbor **neighbor_bucket(const struct eth *eth, const struct harp_addr *addr)
{
	return &eth->hash[siphash24(&eth->hash_key, addr, sizeof(*addr)) & eth->hash_mask];
}

static struct neighbor *neighbor_find(const struct eth *eth, const struct harp_addr *addr)
{
	struct neighbor *n = *neighbor_bucket(eth, addr);

	while (n && !addr_equal(&n->addr, addr))
		n = n->hash_next;
	return n;
}

static void neighbor_forget(struct eth *eth, struct neighbor *n)
{
	struct neighbor **p = neighbor_bucket(eth, &n->addr);

	while (*p != n)
		p = &(*p)->hash_next;
	*p = n->hash_next;
	wheel_cancel(eth->wheel, &n->timer);
	*n = (struct neighbor){ .state = NEIGHBOR_FREE };
	eth->neighbor_count--;
}

/* Rank for eviction: the largest is evicted first; 0: never evicted. */
static uint64_t neighbor_evict_rank(const struct neighbor *n, uint64_t now_ns)
{
	if (n->state == NEIGHBOR_FREE)
		return UINT64_MAX;
	if (n->used_ns == 0)
		return UINT64_MAX - 1;
	if (n->state == NEIGHBOR_FAILED && now_ns - n->solicited_ns > NEIGHBOR_HOLD_NS)
		return UINT64_MAX - 2;
	/* The oldest first: a live neighbor replies before forged requests refill the table. */
	if (n->state == NEIGHBOR_INCOMPLETE)
		return now_ns > n->used_ns ? now_ns - n->used_ns : 0;
	return now_ns > n->used_ns + NEIGHBOR_IDLE_NS ? now_ns - n->used_ns : 0;
}

static struct neighbor *neighbor_create(struct eth *eth, const struct harp_addr *addr)
{
	struct neighbor *best = NULL;
	uint64_t best_rank = 0;

	for (uint32_t i = 0; i < eth->neighbor_max && best_rank != UINT64_MAX; i++) {
		uint64_t rank = neighbor_evict_rank(&eth->neighbors[i], eth->io->now_ns);

		if (rank > best_rank) {
			best = &eth->neighbors[i];
			best_rank = rank;
		}
	}
	if (!best) {
		eth->stats->neighbor_full++;
		return NULL;
	}
	if (best->state != NEIGHBOR_FREE)
		neighbor_forget(eth, best);

	struct neighbor **bucket = neighbor_bucket(eth, addr);

	best->addr = *addr;
	best->state = NEIGHBOR_INCOMPLETE;
	best->timer.kind = TIMER_KIND_NEIGHBOR;
	best->hash_next = *bucket;
	*bucket = best;
	eth->neighbor_count++;
	return best;
}

struct neighbor *neighbor_get(struct eth *eth, const struct harp_addr *addr)
{
	struct neighbor *n = neighbor_find(eth, addr);

	if (!n)
		n = neighbor_create(eth, addr);
	if (n)
		n->used_ns = eth->io->now_ns | 1; /* not 0, which means unused */
	return n;
}

/* Only this function makes an entry usable. */
static void neighbor_resolve(struct eth *eth, struct neighbor *n, const uint8_t *mac,
			     enum neighbor_state state)
{
	bool is_new = !neighbor_usable(n);

	memcpy(n->mac, mac, ETH_MAC_BYTES);
	n->state = (uint8_t)state;
	n->probes = 0;
	if (state == NEIGHBOR_REACHABLE)
		n->confirmed_ns = eth->io->now_ns;
	wheel_cancel(eth->wheel, &n->timer);
	if (is_new)
		eth->resolved_generation++;
}

int neighbor_set(struct eth *eth, const struct harp_addr *addr, const uint8_t *mac)
{
	struct neighbor *n = neighbor_find(eth, addr);

	if (!mac) {
		if (!n)
			return -ENOENT;
		/* The entry stays, because paths refer to it; its next use solicits again. */
		wheel_cancel(eth->wheel, &n->timer);
		memset(n->mac, 0, sizeof(n->mac));
		n->state = NEIGHBOR_INCOMPLETE;
		n->probes = 0;
		return 0;
	}
	if (mac[0] & 1)
		return -EINVAL;
	if (!n)
		n = neighbor_create(eth, addr);
	if (!n)
		return -ENOSPC;
	neighbor_resolve(eth, n, mac, NEIGHBOR_REACHABLE);
	return 0;
}

/* Sends another probe and sets the timer for its answer. */
static void neighbor_probe(struct eth *eth, struct neighbor *n, bool broadcast)
{
	const uint8_t *mac = broadcast ? NULL : n->mac;

	n->probes++;
	n->solicited_ns = eth->io->now_ns;
	if (harp_addr_is_v4(&n->addr))
		arp_request(eth, &n->solicited_from, &n->addr, mac);
	else if (eth->network.solicit)
		eth->network.solicit(eth->network.ip, &n->solicited_from, &n->addr, mac);
	wheel_set(eth->wheel, &n->timer, eth->io->now_ns + NEIGHBOR_RETRY_NS);
}

static void neighbor_request_owner(struct eth *eth, struct neighbor *n)
{
	if (n->solicited_ns && eth->io->now_ns - n->solicited_ns < NEIGHBOR_RETRY_NS)
		return;
	n->solicited_ns = eth->io->now_ns;
	if (eth->hooks->neighbor_requested)
		eth->hooks->neighbor_requested(eth->hooks->ctx, &n->addr);
}

void neighbor_solicit(struct eth *eth, struct neighbor *n, const struct harp_addr *src_addr)
{
	if (eth->neighbor_mode == HARP_NEIGHBOR_EXTERNAL) {
		if (!neighbor_usable(n))
			neighbor_request_owner(eth, n);
		return;
	}
	n->solicited_from = *src_addr;
	switch (n->state) {
	case NEIGHBOR_REACHABLE:
		if (eth->io->now_ns - n->confirmed_ns <= NEIGHBOR_REACHABLE_NS)
			return;
		n->state = NEIGHBOR_STALE;
		n->probes = 0;
		/* fall through */
	case NEIGHBOR_STALE:
		if (!timer_is_set(&n->timer))
			wheel_set(eth->wheel, &n->timer, eth->io->now_ns + NEIGHBOR_DELAY_NS);
		return;
	case NEIGHBOR_FAILED:
		if (eth->io->now_ns - n->solicited_ns < NEIGHBOR_HOLD_NS)
			return;
		n->state = NEIGHBOR_INCOMPLETE;
		n->probes = 0;
		/* fall through */
	default:
		if (!timer_is_set(&n->timer))
			neighbor_probe(eth, n, true);
	}
}

void neighbor_confirm(struct eth *eth, struct neighbor *n, uint64_t now_ns)
{
	if (!neighbor_usable(n))
		return;
	n->confirmed_ns = now_ns;
	n->used_ns = now_ns | 1;
	if (eth->neighbor_mode == HARP_NEIGHBOR_EXTERNAL) {
		if (eth->hooks->neighbor_confirmed &&
		    (!n->confirm_reported_ns ||
		     now_ns - n->confirm_reported_ns >= NEIGHBOR_CONFIRM_NS)) {
			n->confirm_reported_ns = now_ns;
			eth->hooks->neighbor_confirmed(eth->hooks->ctx, &n->addr);
		}
		return;
	}
	if (n->state == NEIGHBOR_STALE) {
		n->state = NEIGHBOR_REACHABLE;
		n->probes = 0;
		wheel_cancel(eth->wheel, &n->timer);
	}
}

void neighbor_suspect(struct eth *eth, struct neighbor *n, const struct harp_addr *src_addr)
{
	if (!neighbor_usable(n))
		return; /* already being solicited */
	if (eth->neighbor_mode == HARP_NEIGHBOR_EXTERNAL) {
		neighbor_request_owner(eth, n);
		return;
	}
	if (n->state == NEIGHBOR_STALE && n->probes > 0)
		return;
	n->state = NEIGHBOR_STALE;
	n->probes = 0;
	n->solicited_from = *src_addr;
	neighbor_probe(eth, n, false);
}

void neighbor_timer(struct eth *eth, struct timer *timer)
{
	struct neighbor *n = container_of(timer, struct neighbor, timer);

	if (n->probes < NEIGHBOR_PROBES) {
		neighbor_probe(eth, n, n->state != NEIGHBOR_STALE);
	} else if (n->state == NEIGHBOR_STALE) {
		/* The old address did not answer: the neighbor may have moved. */
		n->state = NEIGHBOR_INCOMPLETE;
		n->probes = 0;
		neighbor_probe(eth, n, true);
	} else {
		n->state = NEIGHBOR_FAILED;
	}
}

void neighbor_learn(struct eth *eth, const struct harp_addr *addr, const uint8_t *mac,
		    unsigned flags)
{
	if (eth->learned)
		eth->learned(eth->hooks->ctx, addr, mac, flags);
	neighbor_learn_forwarded(eth, addr, mac, flags);
}

/* Implements "Trust" above. */
void neighbor_learn_forwarded(struct eth *eth, const struct harp_addr *addr, const uint8_t *mac,
			      unsigned flags)
{
	struct neighbor *n = neighbor_find(eth, addr);
	bool is_reply = flags & NEIGHBOR_REPLY, same;

	if (!mac) {
		if (!n || !neighbor_usable(n))
			return;
		mac = n->mac;
	}
	same = n && memcmp(n->mac, mac, ETH_MAC_BYTES) == 0;
	if (!n) {
		if (!(flags & NEIGHBOR_ASKS_US))
			return;
		n = neighbor_create(eth, addr);
		if (n)
			neighbor_resolve(eth, n, mac, NEIGHBOR_STALE);
	} else if (n->state == NEIGHBOR_INCOMPLETE || n->state == NEIGHBOR_FAILED) {
		neighbor_resolve(eth, n, mac,
				 is_reply && n->probes > 0 ? NEIGHBOR_REACHABLE : NEIGHBOR_STALE);
	} else if (same) {
		if (is_reply && n->probes > 0)
			neighbor_resolve(eth, n, mac, NEIGHBOR_REACHABLE);
	} else if (n->state == NEIGHBOR_STALE && n->probes == 0 && (flags & NEIGHBOR_OVERRIDE)) {
		neighbor_resolve(eth, n, mac, NEIGHBOR_STALE);
	} else {
		eth->stats->drop_arp_claim++;
		if (n->state == NEIGHBOR_REACHABLE) {
			n->state = NEIGHBOR_STALE;
			n->probes = 0;
			neighbor_probe(eth, n, false);
		}
	}
}

void neighbor_conflict(struct eth *eth, const uint8_t *mac)
{
	uint64_t now_ns = eth->io->now_ns;

	/* Our own packet, returned by a switch or a loop, is no conflict (RFC 5227 section 2.4). */
	if (mac && eth_mac_same(mac, eth->io->nic->caps.mac))
		return;
	eth->stats->arp_conflicts++;
	if (!eth->hooks->log || (eth->conflict_reported_ns &&
				 now_ns - eth->conflict_reported_ns < NEIGHBOR_CONFLICT_LOG_NS))
		return;
	eth->conflict_reported_ns = now_ns;
	eth->hooks->log(eth->hooks->ctx, HARP_LOG_WARN,
			"another host claims an address of this stack (ARP, neighbor discovery); "
			"give each host its own address");
}
