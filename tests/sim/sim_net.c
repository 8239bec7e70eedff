/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_net.c - the wire and the NICs.
 *
 * One switched wire with a port for each stack. The port of the switch towards a stack may be the
 * slow one: several flows then share a bottleneck that is not a link of their senders.
 *
 * The NIC of a stack (struct sim_card) is its port with other operations. They pass every packet to
 * sim_segments.c and drop packets of a cut path. During an event they also withhold transmit slots,
 * receive frames, or completions.
 */
#include "sim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "nic/wire.h"
#include "stack/stack.h"

#define NET_PACKET_MAX 65535u
#define NET_FIXED_WINDOW 100000u

/* The stack whose NIC has this MAC address; SCN_STACKS_MAX: none (a corrupted address). */
static unsigned net_stack_of(const struct sim *sim, const uint8_t *mac)
{
	return mac[4] == 0x50 && mac[5] < sim->scenario->stack_count ? mac[5] : SCN_STACKS_MAX;
}

struct harp_addr sim_net_addr(const struct sim *sim, unsigned stack)
{
	struct harp_addr addr = { { 0xfd } };

	if (sim->scenario->world.family == 4)
		return harp_addr_v4(10, 0, 0, (uint8_t)(stack + 1));
	addr.bytes[15] = (uint8_t)(stack + 1);
	return addr;
}

/* ---- the NIC --------------------------------------------------------------------------------- */

static struct sim *net_sim;
static const struct harp_nic_ops *wire_ops;

static struct sim_card *net_card(const struct harp_nic *nic)
{
	struct sim_stack *stack = net_sim->stacks;

	while (stack->card.nic != nic)
		stack++;
	return &stack->card;
}

/* Number of descriptors of the first packet. */
static unsigned net_packet_descs(const struct harp_desc *descs, unsigned count)
{
	unsigned n = 1;

	while (n < count && (descs[n - 1].flags & HARP_DESC_MORE))
		n++;
	return n;
}

/* The packet as contiguous bytes: in place, or a copy. */
static uint8_t *net_gather(const struct sim_card *card, const struct harp_desc *descs, unsigned n,
			   uint32_t *len)
{
	static uint8_t packet[NET_PACKET_MAX];

	const struct wire_port *port = (const struct wire_port *)card->nic;

	if (n == 1 && !(descs[0].flags & HARP_DESC_TX_CSUM)) {
		*len = descs[0].len;
		return card->nic->caps.frame_base + descs[0].addr;
	}
	*len = 0;
	for (unsigned i = 0; i < n && *len + descs[i].len <= sizeof(packet); i++) {
		const uint8_t *bytes = wire_offload_bytes(port, &descs[i]);

		if (!bytes)
			break; /* the wire rejects it, which sim_check.c detects */
		memcpy(packet + *len, bytes, descs[i].len);
		*len += descs[i].len;
	}
	return packet;
}

static bool net_is_cut(const struct sim_card *card, const uint8_t *packet, uint32_t len)
{
	unsigned from = len >= 14 ? net_stack_of(card->sim, packet + 6) : SCN_STACKS_MAX;

	return from < SCN_STACKS_MAX && card->cut_until_ns[from] > card->sim->now_ns;
}

static unsigned net_rx(struct harp_nic *nic, struct harp_desc *descs, unsigned max, uint64_t now_ns)
{
	struct sim_card *card = net_card(nic);
	unsigned got, kept = 0, n;

	card->tx_refused = false;
	do {
		got = wire_ops->rx(nic, descs, max, now_ns);
		for (unsigned i = 0; i < got; i += n) {
			uint32_t len;
			uint8_t *packet;

			n = net_packet_descs(descs + i, got - i);
			packet = net_gather(card, descs + i, n, &len);
			if (net_is_cut(card, packet, len)) {
				for (unsigned d = i; d < i + n; d++)
					wire_ops->fill(nic, &descs[d].addr, 1);
				continue;
			}
			sim_segment_track_received(card->sim, card->index, packet, len);
			memmove(descs + kept, descs + i, n * sizeof(*descs));
			kept += n;
		}
	} while (got > 0 && kept == 0);
	return kept;
}

static void net_emit(void *ctx, uint8_t *packet, uint32_t len)
{
	const struct sim_card *card = ctx;

	sim_segment_track_sent(card->sim, card->index, packet, len);
}

static unsigned net_tx(struct harp_nic *nic, const struct harp_desc *descs, unsigned count,
		       uint64_t now_ns)
{
	struct sim_card *card = net_card(nic);
	bool limited = card->ring_until_ns > now_ns;
	unsigned taken = 0;

	while (taken < count) {
		unsigned n = net_packet_descs(descs + taken, count - taken);
		uint32_t len;
		uint8_t *packet = net_gather(card, descs + taken, n, &len);

		if ((limited && card->tx_held + n > card->ring_max) ||
		    wire_ops->tx(nic, descs + taken, n, now_ns) != n) {
			card->tx_refused = true;
			break;
		}
		/* Checks the packets that reach the wire. */
		(void)wire_offload_send(&nic->caps, packet, len, descs[taken].flags, NET_PACKET_MAX,
					net_emit, card);
		card->tx_held += n;
		taken += n;
	}
	return taken;
}

static unsigned net_complete(struct harp_nic *nic, uint64_t *addrs, unsigned max, uint64_t now_ns)
{
	struct sim_card *card = net_card(nic);
	unsigned n;

	if (card->complete_until_ns > now_ns)
		return 0;
	n = wire_ops->complete(nic, addrs, max, now_ns);
	card->tx_held -= n;
	return n;
}

static unsigned net_fill(struct harp_nic *nic, const uint64_t *addrs, unsigned count)
{
	if (net_card(nic)->starve_until_ns > net_sim->now_ns)
		return 0;
	return wire_ops->fill(nic, addrs, count);
}

uint64_t sim_net_card_next_ns(struct sim_card *card)
{
	const struct wire_port *port = (const struct wire_port *)card->nic;
	uint64_t next_ns = SIM_NEVER_NS, complete_ns = SIM_NEVER_NS;

	if (port->heap_count > 0)
		next_ns = port->wire->slots[port->heap[0]].arrive_ns;
	if (port->sent_count > 0) {
		complete_ns = port->sent[port->sent_head].ready_ns;
		if (complete_ns < card->complete_until_ns)
			complete_ns = card->complete_until_ns;
	}
	/* A full ring without sent frames waits for no completion. */
	if (card->tx_refused && card->tx_held == 0 && card->ring_until_ns < next_ns)
		next_ns = card->ring_until_ns;
	return complete_ns < next_ns ? complete_ns : next_ns;
}

static uint64_t net_next_ns(struct harp_nic *nic)
{
	return sim_net_card_next_ns(net_card(nic));
}

/* ---- setup ----------------------------------------------------------------------------------- */

/* Impairs the path from the stack. path: its own, or an event's. */
static void net_set_impair(struct sim *sim, unsigned stack, const struct scn_impair *path)
{
	const struct scn_stack *k = &sim->scenario->stacks[stack];
	struct harp_wire_impair impair = scn_impair_wire(path);

	impair.ecn_mark_bytes = (uint32_t)k->ecn_mark_bytes;
	impair.inbound = (uint32_t)k->inbound;
	if (harp_wire_set_impair(sim->wire, stack, &impair))
		(void)runner_fail("stack %u: harp_wire_set_impair failed", stack);
}

static int net_make_wire(struct sim *sim)
{
	const struct scn_world *world = &sim->scenario->world;
	struct harp_wire_options options = {
		.size = sizeof(options),
		.ports = sim->scenario->stack_count,
		.frame_size = (uint32_t)world->frame_bytes,
		.frame_count = (uint32_t)world->frame_count,
		.mtu_bytes = (uint32_t)world->mtu_bytes,
		.packets_max = (uint32_t)world->packets_max,
		.strict = 1,
		.seed = rng_u64(&sim->rng),
		.complete_delay_ns = world->complete_delay_ns,
		.offloads = (uint32_t)world->offloads,
		.external_count = (uint32_t)world->external_count,
		.tx_frags_max = (uint32_t)world->tx_frags,
	};

	return harp_wire_create(&sim->wire, &options);
}

struct harp_tcp_options sim_tcp_options(uint64_t rx_frames, uint64_t tx_frames,
					uint64_t keepalive_ns, uint64_t congestion, uint64_t ecn)
{
	return (struct harp_tcp_options){
		.size = sizeof(struct harp_tcp_options),
		.rx_frames = (uint32_t)rx_frames,
		.tx_frames = (uint32_t)tx_frames,
		.connect_timeout_ns = 300 * SIM_S,
		.user_timeout_ns = 1000 * SIM_S,
		.keepalive_idle_ns = keepalive_ns,
		.keepalive_count = 12,
		.congestion = (uint32_t)congestion,
		.fixed_window_bytes = congestion == HARP_CONGESTION_FIXED ? NET_FIXED_WINDOW : 0,
		.ecn = (uint32_t)ecn,
	};
}

bool sim_net_stack_make(struct sim *sim, unsigned stack)
{
	struct sim_stack *k = &sim->stacks[stack];
	struct harp_stack_options options = {
		.size = sizeof(options),
		.max_conns = 64,
		.vlan_id = (uint16_t)sim->scenario->world.vlan_id,
		.seed = rng_u64(&sim->rng),
		.now_ns = sim->now_ns,
	};
	struct harp_addr addr = sim_net_addr(sim, stack);
	int err = harp_stack_create(&k->stack, k->card.nic, &options);

	if (!err)
		err = harp_stack_address_add(k->stack, &addr,
					     sim->scenario->world.family == 4 ? 24 : 64);
	for (unsigned i = 0; i < sim->scenario->listen_count && !err; i++) {
		const struct scn_listen *l = &sim->scenario->listens[i];
		struct harp_endpoint at = { .port = (uint16_t)l->port };
		struct harp_tcp_options tcp =
			sim_tcp_options(l->rx_frames, l->tx_frames, l->keepalive_ns, l->congestion,
					l->ecn);

		tcp.backlog = (uint32_t)l->backlog;
		if (l->stack == stack)
			err = harp_tcp_listen(k->stack, &at, &tcp, &k->listeners[i]);
	}
	if (err)
		return runner_fail("cannot create stack %u: %s", stack, strerror(-err));
	return true;
}

void sim_net_stack_destroy(struct sim *sim, unsigned stack)
{
	struct sim_stack *k = &sim->stacks[stack];
	struct wire_port *port = (struct wire_port *)k->card.nic;

	memset(k->listeners, 0, sizeof(k->listeners));
	sim_memory_free(sim, stack);
	harp_stack_destroy(k->stack);
	k->stack = NULL;
	/* Its frames have no owner now: the next stack fills all of them again. */
	port->fill_count = 0;
	port->sent_count = 0;
	k->card.tx_held = 0;
	k->card.tx_refused = false;
	port->memory_count = 0;
}

bool sim_net_make(struct sim *sim)
{
	static struct harp_nic_ops card_ops;
	int err = net_make_wire(sim);

	net_sim = sim;
	if (err)
		return runner_fail("harp_wire_create: %s", strerror(-err));
	for (unsigned i = 0; i < sim->scenario->stack_count; i++) {
		struct sim_card *card = &sim->stacks[i].card;

		net_set_impair(sim, i, &sim->scenario->stacks[i].path);
		card->sim = sim;
		card->index = i;
		card->nic = harp_wire_port(sim->wire, i);
		wire_ops = card->nic->ops;
		card_ops = *wire_ops;
		card_ops.rx = net_rx;
		card_ops.tx = net_tx;
		card_ops.complete = net_complete;
		card_ops.fill = net_fill;
		card_ops.next_ns = net_next_ns;
		card->nic->ops = &card_ops;
		if (!sim_net_stack_make(sim, i))
			return false;
	}
	return true;
}

void sim_net_destroy(struct sim *sim)
{
	for (unsigned i = 0; i < sim->scenario->stack_count; i++)
		harp_stack_destroy(sim->stacks[i].stack);
	harp_wire_destroy(sim->wire);
}

/* ---- events ---------------------------------------------------------------------------------- */

static void net_cut(struct sim *sim, unsigned from, unsigned to, uint64_t until_ns)
{
	uint64_t *cut_ns = &sim->stacks[to].card.cut_until_ns[from];

	*cut_ns = until_ns > *cut_ns ? until_ns : *cut_ns;
}

/* Discards packets that arrived while the stack was destroyed. */
static void net_discard(struct sim *sim, unsigned stack)
{
	struct harp_nic *nic = sim->stacks[stack].card.nic;
	struct harp_desc descs[64];

	/* Without receive frames, rx() drops all packets that have arrived. */
	while (wire_ops->rx(nic, descs, 64, sim->now_ns) > 0)
		continue;
}

void sim_net_event_begin(struct sim *sim, const struct scn_event *e)
{
	struct sim_stack *k = &sim->stacks[e->stack];
	unsigned stack = (unsigned)e->stack, peer = (unsigned)e->peer;
	uint64_t until_ns = e->start_ns + e->duration_ns;

	switch ((enum scn_event_kind)e->kind) {
	case SCN_DEGRADE:
		net_set_impair(sim, stack, &e->path);
		break;
	case SCN_STALL:
		k->stall_until_ns = until_ns > k->stall_until_ns ? until_ns : k->stall_until_ns;
		break;
	case SCN_DOWN:
		for (unsigned i = 0; i < sim->scenario->stack_count; i++) {
			net_cut(sim, i, stack, until_ns);
			net_cut(sim, stack, i, until_ns);
		}
		break;
	case SCN_CUT:
		net_cut(sim, stack, peer, until_ns);
		if (!e->one_way)
			net_cut(sim, peer, stack, until_ns);
		break;
	case SCN_RING:
		k->card.ring_until_ns = until_ns;
		k->card.ring_max = (uint32_t)e->count;
		break;
	case SCN_STARVE:
		k->card.starve_until_ns = until_ns;
		break;
	case SCN_COMPLETE:
		k->card.complete_until_ns = until_ns;
		break;
	default: /* SCN_RESTART: sim.c */
		break;
	}
}

void sim_net_event_end(struct sim *sim, const struct scn_event *e)
{
	unsigned stack = (unsigned)e->stack;

	if (e->kind == SCN_DEGRADE)
		net_set_impair(sim, stack, &sim->scenario->stacks[stack].path);
	if (e->kind == SCN_RESTART)
		net_discard(sim, stack);
}
