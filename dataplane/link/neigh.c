/* SPDX-License-Identifier: Apache-2.0 */
/*
 * neigh.c - the neighbour table: which MAC address a next hop has, and whether it still lives there.
 *
 * Theory of operation
 *
 * The states follow RFC 4861 section 7.3.2, for IPv4 too. INCOMPLETE: asked by broadcast, every 100 ms,
 * NEIGHBOUR_PROBES times, then FAILED; a FAILED one is asked again when wanted, once a second at most
 * (RFC 1122 section 2.3.2.1). REACHABLE: confirmed within 30 s, by an answer or by TCP's progress.
 * STALE: usable, not confirmed; when used, its timer (5 s, RFC 4861's DELAY) gives TCP the time to
 * confirm it, then it is probed by unicast, then by broadcast as if it were INCOMPLETE. TCP that gets no
 * answer says so (neighbour_suspect()) and is believed at once: a wrong MAC address, be it from an ARP
 * packet damaged on its way, costs half a second and not half a minute.
 *
 * Whom to believe. Neither ARP nor neighbour discovery has authentication: anyone on the segment may
 * claim any address.
 *  - Nothing is learned from packets that are not for us, except that a record we have may change.
 *  - A request for our address is from someone about to talk to us: a new record, STALE.
 *  - An answer while we ask counts as the truth.
 *  - A claim that contradicts a REACHABLE record, unasked (gratuitous ARP of a failover, or poison), does
 *    not replace it: the old owner is probed by unicast at once. If it answers, the claim was false.
 *    If not, the address is asked for by broadcast and the new owner answers. A true move costs
 *    0.3 s; a false one costs its author's packets. (RFC 5227 section 2.4 defends a host's own address
 *    so; Linux instead believes any claim one second after the last.)
 *  - A claim about a STALE record that nobody probes is believed, and stays STALE: that is what
 *    RFC 826 says, and use will confirm it or not.
 *  - An advertisement without the override flag (a proxy's, RFC 4861 section 7.2.8) replaces nothing; it
 *    casts doubt on a REACHABLE record as any other contradiction does (section 7.2.5).
 * Records that were only heard of have used_ns 0 and make room first, so that a storm of requests
 * from made-up addresses evicts nothing that we use. A prefix of IPv6 has addresses without end, and whoever
 * sends from made-up ones makes us ask for them (RFC 6583): those who have not answered yet make room too,
 * the oldest first, so that a flood finds no table full and a neighbour that lives is resolved within it.
 *
 * In external mode the owner's kernel does all of this: no timers, no probes, what neighbour_set()
 * says is true until it says otherwise.
 */
#include "link/eth.h"

#include <errno.h>
#include <string.h>

#include "base/util.h"

#define NEIGHBOUR_PROBES 3u
#define NEIGHBOUR_RETRY_NS UINT64_C(100000000)
#define NEIGHBOUR_HOLD_NS UINT64_C(1000000000) /* between rounds of asking in vain */
#define NEIGHBOUR_DELAY_NS UINT64_C(5000000000)
#define NEIGHBOUR_IDLE_NS UINT64_C(60000000000) /* unused for so long: may make room */
#define NEIGHBOUR_TELL_NS UINT64_C(1000000000)
#define NEIGHBOUR_CONFLICT_LOG_NS UINT64_C(10000000000)

static inline bool neighbour_is(const struct neighbour *n, const struct harp_addr *addr)
{
	return memcmp(&n->addr, addr, sizeof(*addr)) == 0;
}

static struct neighbour **neighbour_bucket(const struct eth *eth, const struct harp_addr *addr)
{
	return &eth->hash[siphash24(&eth->hash_key, addr, sizeof(*addr)) & eth->hash_mask];
}

static struct neighbour *neighbour_find(const struct eth *eth, const struct harp_addr *addr)
{
	struct neighbour *n = *neighbour_bucket(eth, addr);

	while (n && !neighbour_is(n, addr))
		n = n->hash_next;
	return n;
}

static void neighbour_forget(struct eth *eth, struct neighbour *n)
{
	struct neighbour **p = neighbour_bucket(eth, &n->addr);

	while (*p != n)
		p = &(*p)->hash_next;
	*p = n->hash_next;
	wheel_cancel(eth->wheel, &n->timer);
	*n = (struct neighbour){ .state = NEIGHBOUR_FREE };
	eth->neighbour_count--;
}

/* How ready a record is to make room: the larger the sooner, 0 never. */
static uint64_t neighbour_evictable(const struct neighbour *n, uint64_t now_ns)
{
	if (n->state == NEIGHBOUR_FREE)
		return UINT64_MAX;
	if (n->used_ns == 0)
		return UINT64_MAX - 1;
	if (n->state == NEIGHBOUR_FAILED && now_ns - n->asked_ns > NEIGHBOUR_HOLD_NS)
		return UINT64_MAX - 2;
	/* The longest unanswered first: answers take a fraction of what a flood needs to get here. */
	if (n->state == NEIGHBOUR_INCOMPLETE)
		return now_ns > n->used_ns ? now_ns - n->used_ns : 0;
	return now_ns > n->used_ns + NEIGHBOUR_IDLE_NS ? now_ns - n->used_ns : 0;
}

static struct neighbour *neighbour_make(struct eth *eth, const struct harp_addr *addr)
{
	struct neighbour *best = NULL;
	uint64_t best_rank = 0;

	for (uint32_t i = 0; i < eth->neighbour_max && best_rank != UINT64_MAX; i++) {
		uint64_t rank = neighbour_evictable(&eth->neighbours[i], eth->io->now_ns);

		if (rank > best_rank) {
			best = &eth->neighbours[i];
			best_rank = rank;
		}
	}
	if (!best) {
		eth->stats->neighbour_full++;
		return NULL;
	}
	if (best->state != NEIGHBOUR_FREE)
		neighbour_forget(eth, best);

	struct neighbour **bucket = neighbour_bucket(eth, addr);

	best->addr = *addr;
	best->state = NEIGHBOUR_INCOMPLETE;
	best->timer.kind = TIMER_KIND_NEIGHBOUR;
	best->hash_next = *bucket;
	*bucket = best;
	eth->neighbour_count++;
	return best;
}

struct neighbour *neighbour_get(struct eth *eth, const struct harp_addr *addr)
{
	struct neighbour *n = neighbour_find(eth, addr);

	if (!n)
		n = neighbour_make(eth, addr);
	if (n)
		n->used_ns = eth->io->now_ns | 1; /* never "only heard of" */
	return n;
}

/* The one place where a record becomes usable. */
static void neighbour_resolve(struct eth *eth, struct neighbour *n, const uint8_t *mac,
			      enum neighbour_state state)
{
	bool news = !neighbour_usable(n);

	memcpy(n->mac, mac, ETH_MAC_BYTES);
	n->state = (uint8_t)state;
	n->probes = 0;
	if (state == NEIGHBOUR_REACHABLE)
		n->confirmed_ns = eth->io->now_ns;
	wheel_cancel(eth->wheel, &n->timer);
	if (news)
		eth->resolved_generation++;
}

int neighbour_set(struct eth *eth, const struct harp_addr *addr, const uint8_t *mac)
{
	struct neighbour *n = neighbour_find(eth, addr);

	if (!mac) {
		if (!n)
			return -ENOENT;
		/* The record stays: paths point at it, and asking again is what they want. */
		wheel_cancel(eth->wheel, &n->timer);
		memset(n->mac, 0, sizeof(n->mac));
		n->state = NEIGHBOUR_INCOMPLETE;
		n->probes = 0;
		return 0;
	}
	if (mac[0] & 1)
		return -EINVAL;
	if (!n)
		n = neighbour_make(eth, addr);
	if (!n)
		return -ENOSPC;
	neighbour_resolve(eth, n, mac, NEIGHBOUR_REACHABLE);
	return 0;
}

/* One more question, and the timer that waits for its answer. */
static void neighbour_probe(struct eth *eth, struct neighbour *n, bool broadcast)
{
	const uint8_t *mac = broadcast ? NULL : n->mac;

	n->probes++;
	n->asked_ns = eth->io->now_ns;
	if (harp_addr_is_v4(&n->addr))
		arp_request(eth, &n->asked_from, &n->addr, mac);
	else if (eth->network.solicit)
		eth->network.solicit(eth->network.ctx, &n->asked_from, &n->addr, mac);
	wheel_set(eth->wheel, &n->timer, eth->io->now_ns + NEIGHBOUR_RETRY_NS);
}

static void neighbour_ask_owner(struct eth *eth, struct neighbour *n)
{
	if (n->asked_ns && eth->io->now_ns - n->asked_ns < NEIGHBOUR_RETRY_NS)
		return;
	n->asked_ns = eth->io->now_ns;
	if (eth->hooks->neighbour_wanted)
		eth->hooks->neighbour_wanted(eth->hooks->ctx, &n->addr);
}

/* Someone wants to send through n, which is not REACHABLE within its time. */
void neighbour_ask(struct eth *eth, struct neighbour *n, const struct harp_addr *src_addr)
{
	if (eth->neighbour_mode == HARP_NEIGHBOUR_EXTERNAL) {
		if (!neighbour_usable(n))
			neighbour_ask_owner(eth, n);
		return;
	}
	n->asked_from = *src_addr;
	switch (n->state) {
	case NEIGHBOUR_REACHABLE:
		if (eth->io->now_ns - n->confirmed_ns <= NEIGHBOUR_REACHABLE_NS)
			return;
		n->state = NEIGHBOUR_STALE;
		n->probes = 0;
		/* fall through */
	case NEIGHBOUR_STALE:
		if (!timer_is_set(&n->timer))
			wheel_set(eth->wheel, &n->timer, eth->io->now_ns + NEIGHBOUR_DELAY_NS);
		return;
	case NEIGHBOUR_FAILED:
		if (eth->io->now_ns - n->asked_ns < NEIGHBOUR_HOLD_NS)
			return;
		n->state = NEIGHBOUR_INCOMPLETE;
		n->probes = 0;
		/* fall through */
	default:
		if (!timer_is_set(&n->timer))
			neighbour_probe(eth, n, true);
	}
}

void neighbour_confirm(struct eth *eth, struct neighbour *n, uint64_t now_ns)
{
	if (!neighbour_usable(n))
		return;
	n->confirmed_ns = now_ns;
	n->used_ns = now_ns | 1;
	if (eth->neighbour_mode == HARP_NEIGHBOUR_EXTERNAL) {
		if (eth->hooks->neighbour_confirmed &&
		    (!n->told_ns || now_ns - n->told_ns >= NEIGHBOUR_TELL_NS)) {
			n->told_ns = now_ns;
			eth->hooks->neighbour_confirmed(eth->hooks->ctx, &n->addr);
		}
		return;
	}
	if (n->state == NEIGHBOUR_STALE) {
		n->state = NEIGHBOUR_REACHABLE;
		n->probes = 0;
		wheel_cancel(eth->wheel, &n->timer);
	}
}

void neighbour_suspect(struct eth *eth, struct neighbour *n, const struct harp_addr *src_addr)
{
	if (!neighbour_usable(n))
		return; /* being asked for already */
	if (eth->neighbour_mode == HARP_NEIGHBOUR_EXTERNAL) {
		neighbour_ask_owner(eth, n);
		return;
	}
	if (n->state == NEIGHBOUR_STALE && n->probes > 0)
		return;
	n->state = NEIGHBOUR_STALE;
	n->probes = 0;
	n->asked_from = *src_addr;
	neighbour_probe(eth, n, false);
}

void neighbour_timer(struct eth *eth, struct timer *timer, uint64_t now_ns)
{
	struct neighbour *n = container_of(timer, struct neighbour, timer);

	(void)now_ns; /* io->now_ns is the same clock */
	if (n->probes < NEIGHBOUR_PROBES) {
		neighbour_probe(eth, n, n->state != NEIGHBOUR_STALE);
	} else if (n->state == NEIGHBOUR_STALE) {
		/* Silent where it was: perhaps it moved. */
		n->state = NEIGHBOUR_INCOMPLETE;
		n->probes = 0;
		neighbour_probe(eth, n, true);
	} else {
		n->state = NEIGHBOUR_FAILED;
	}
}

void neighbour_heard(struct eth *eth, const struct harp_addr *addr, const uint8_t *mac,
		     unsigned news)
{
	if (eth->tell)
		eth->tell(eth->hooks->ctx, addr, mac, news);
	neighbour_told(eth, addr, mac, news);
}

/* "Whom to believe" above, line by line. */
void neighbour_told(struct eth *eth, const struct harp_addr *addr, const uint8_t *mac,
		    unsigned news)
{
	struct neighbour *n = neighbour_find(eth, addr);
	bool is_reply = news & NEIGHBOUR_REPLY, same;

	if (!mac) {
		if (!n || !neighbour_usable(n))
			return;
		mac = n->mac;
	}
	same = n && memcmp(n->mac, mac, ETH_MAC_BYTES) == 0;
	if (!n) {
		if (!(news & NEIGHBOUR_ASKS_US))
			return;
		n = neighbour_make(eth, addr);
		if (n)
			neighbour_resolve(eth, n, mac, NEIGHBOUR_STALE);
	} else if (n->state == NEIGHBOUR_INCOMPLETE || n->state == NEIGHBOUR_FAILED) {
		neighbour_resolve(eth, n, mac,
				  is_reply && n->probes > 0 ? NEIGHBOUR_REACHABLE
							    : NEIGHBOUR_STALE);
	} else if (same) {
		if (is_reply && n->probes > 0)
			neighbour_resolve(eth, n, mac, NEIGHBOUR_REACHABLE);
	} else if (n->state == NEIGHBOUR_STALE && n->probes == 0 && (news & NEIGHBOUR_OVERRIDE)) {
		neighbour_resolve(eth, n, mac, NEIGHBOUR_STALE);
	} else {
		eth->stats->drop_arp_claim++;
		if (n->state == NEIGHBOUR_REACHABLE) {
			n->state = NEIGHBOUR_STALE;
			n->probes = 0;
			neighbour_probe(eth, n, false);
		}
	}
}

void neighbour_conflict(struct eth *eth, const uint8_t *mac)
{
	uint64_t now_ns = eth->io->now_ns;

	/* What we said ourselves, and a switch or a loop sends back (RFC 5227 section 2.4: "does not match"). */
	if (mac && eth_mac_same(mac, eth->io->nic->caps.mac))
		return;
	eth->stats->arp_conflicts++;
	if (!eth->hooks->log ||
	    (eth->conflict_told_ns && now_ns - eth->conflict_told_ns < NEIGHBOUR_CONFLICT_LOG_NS))
		return;
	eth->conflict_told_ns = now_ns;
	eth->hooks->log(
		eth->hooks->ctx, HARP_LOG_WARN,
		"another machine claims an address of this stack (ARP, neighbour discovery): "
		"give each its own address");
}
