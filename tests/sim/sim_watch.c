/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_watch.c - every segment that a stack sends or takes, judged from outside.
 *
 * For each direction of each connection (a *way*, from the stack that sends data to the one that takes
 * it) the watch remembers what the sender sent, which sequence numbers arrived undamaged at the
 * taker's card, and what the taker said about them. What it knows of a way begins anew with every SYN.
 * It holds that
 *	- nothing is acknowledged, selectively or not, that did not arrive;
 *	- acknowledgments do not go back, the window's right edge does not either (RFC 9293 3.8.6), unless to a
 *	  window of nothing: the frames ran out before it;
 *	- nothing is sent beyond the right edge that the sender has been told;
 *	- nothing new is sent beyond a FIN.
 */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "base/endian.h"

#define WATCH_WAYS 512u
#define WATCH_RANGES 64u

enum { FIN = 1, SYN = 2, RST = 4, ACK = 16 };

struct range {
	uint32_t from, to; /* relative to the initial sequence number; to is not part of it */
};

struct way {
	uint32_t key_ports;     /* 0: free; source port in the upper half */
	uint8_t from, to;       /* stacks */
	bool live;              /* the taker has answered this SYN */
	bool scales;            /* both sides scale windows */
	bool fin_sent, blurred; /* blurred: too many ranges, what arrived is not known */
	uint8_t wscale_offer;   /* 1 + the sender's own, 0: none */
	uint32_t isn;
	uint32_t sent_end;            /* all below are relative to isn */
	uint32_t ack, edge;           /* the taker's last words */
	uint32_t edge_most;           /* and the farthest: words may overtake each other */
	uint32_t told_ack, told_edge; /* what of them has reached the sender */
	unsigned range_count;
	struct range ranges[WATCH_RANGES]; /* what arrived, in order */
};

struct sim_watch {
	struct way ways[WATCH_WAYS];
};

struct seen {              /* a segment */
	unsigned from, to; /* stacks */
	uint16_t sport, dport;
	uint32_t seq, ack, len, wnd_field;
	uint8_t flags;
	const uint8_t *options;
	uint32_t options_len;
};

bool sim_watch_make(struct sim *sim)
{
	sim->watch = calloc(1, sizeof(*sim->watch));
	return sim->watch ? true : sim_fail(sim, "no memory for the watch");
}

/* ---- looking ----------------------------------------------------------------------------------- */

static unsigned watch_stack_of(const struct sim *sim, const uint8_t *addr, unsigned len)
{
	for (unsigned i = 0; i < sim->scenario->stack_count; i++) {
		struct harp_addr own = sim_net_addr(sim, i);

		if (memcmp(own.bytes + 16 - len, addr, len) == 0)
			return i;
	}
	return SCN_STACKS_MAX;
}

/* A whole TCP segment between two of our stacks, or false. sum: of the pseudo-header's addresses. */
static bool watch_parse(const struct sim *sim, uint8_t *packet, uint32_t len, bool check,
			struct seen *seg)
{
	uint32_t link = len >= 18 && be16_load(packet + 12) == 0x8100 ? 18 : 14;
	uint8_t *ip = packet + link, *th;
	bool v4 = len >= link + 20 && be16_load(ip - 2) == 0x0800 && ip[0] >> 4 == 4 && ip[9] == 6;
	uint32_t header, total, addr_len = v4 ? 4 : 16, sum;

	if (!v4 &&
	    !(len >= link + 40 && be16_load(ip - 2) == 0x86dd && ip[0] >> 4 == 6 && ip[6] == 6))
		return false;
	header = v4 ? (ip[0] & 15u) * 4 : 40;
	total = v4 ? be16_load(ip + 2) : 40u + be16_load(ip + 4);
	if (total > len - link || total < header + 20)
		return false;
	th = ip + header;
	seg->from = watch_stack_of(sim, ip + (v4 ? 12 : 8), addr_len);
	seg->to = watch_stack_of(sim, ip + (v4 ? 16 : 24), addr_len);
	if (seg->from == SCN_STACKS_MAX || seg->to == SCN_STACKS_MAX)
		return false;
	if (check) {
		uint8_t tail[4] = { 0, 6, (uint8_t)((total - header) >> 8),
				    (uint8_t)(total - header) };

		sum = csum_partial(ip + (v4 ? 12 : 8), 2 * addr_len, 0);
		sum = csum_partial(tail, 4, sum);
		if (csum_finish(csum_partial(th, total - header, sum)) != 0)
			return false;
	}
	seg->sport = be16_load(th);
	seg->dport = be16_load(th + 2);
	seg->seq = be32_load(th + 4);
	seg->ack = be32_load(th + 8);
	seg->flags = th[13];
	seg->wnd_field = be16_load(th + 14);
	seg->options = th + 20;
	seg->options_len = (uint32_t)(th[12] >> 4) * 4 - 20;
	if (total - header < 20 + seg->options_len)
		return false;
	seg->len = total - header - 20 - seg->options_len;
	return true;
}

/* The option's first byte, or NULL. */
static const uint8_t *watch_option(const struct seen *seg, uint8_t kind)
{
	const uint8_t *at = seg->options, *end = at + seg->options_len;

	while (at < end && *at != 0) {
		if (*at == 1) {
			at++;
			continue;
		}
		if (end - at < 2 || at[1] < 2 || at[1] > end - at)
			return NULL;
		if (*at == kind)
			return at;
		at += at[1];
	}
	return NULL;
}

static struct way *watch_way(struct sim *sim, unsigned from, unsigned to, uint16_t sport,
			     uint16_t dport)
{
	uint32_t ports = (uint32_t)sport << 16 | dport;
	uint32_t at = (ports * 0x9e3779b1u + from * 31 + to) % WATCH_WAYS;

	for (uint32_t i = 0; i < WATCH_WAYS; i++, at = (at + 1) % WATCH_WAYS) {
		struct way *way = &sim->watch->ways[at];

		if (way->key_ports == 0) {
			way->key_ports = ports;
			way->from = (uint8_t)from;
			way->to = (uint8_t)to;
			way->blurred = true; /* until a SYN is seen */
			return way;
		}
		if (way->key_ports == ports && way->from == from && way->to == to)
			return way;
	}
	return NULL;
}

/* ---- what arrived ------------------------------------------------------------------------------ */

static void watch_arrived(struct way *way, uint32_t from, uint32_t to)
{
	struct range *r = way->ranges;
	unsigned i = 0, n;

	if (way->blurred || to - from > 1u << 30 || from > 1u << 31)
		return; /* nothing known, or of another incarnation */
	while (i < way->range_count && r[i].to < from)
		i++;
	for (n = i; n < way->range_count && r[n].from <= to; n++) {
		from = r[n].from < from ? r[n].from : from;
		to = r[n].to > to ? r[n].to : to;
	}
	if (n == i && way->range_count == WATCH_RANGES) {
		way->blurred = true;
		return;
	}
	memmove(&r[i + 1], &r[n], (way->range_count - n) * sizeof(*r));
	way->range_count = way->range_count - (n - i) + 1;
	r[i] = (struct range){ from, to };
}

static bool watch_has(const struct way *way, uint32_t from, uint32_t to)
{
	for (unsigned i = 0; i < way->range_count; i++) {
		if (way->ranges[i].from <= from && to <= way->ranges[i].to)
			return true;
	}
	return false;
}

static void watch_syn(struct way *way, struct way *back, const struct seen *seg)
{
	const uint8_t *scale = watch_option(seg, 3);

	if (!way->blurred && way->isn == seg->seq)
		return; /* again */
	if (!(seg->flags & ACK) && back->live)
		back->blurred = true; /* what the other side says is of the last incarnation yet */
	if (seg->flags & ACK)
		back->live =
			false; /* an old SYN again, perhaps: the taker knows of nothing since */
	*way = (struct way){ .key_ports = way->key_ports,
			     .from = way->from,
			     .to = way->to,
			     .isn = seg->seq,
			     .sent_end = 1,
			     .wscale_offer = scale ? (uint8_t)(1 + scale[2]) : 0 };
}

/* ---- verdicts ---------------------------------------------------------------------------------- */

#define WATCH_FAIL(sim, way, what, a, b)                                                           \
	sim_fail(sim, "%u:%u -> %u:%u: " what, (way)->from, (way)->key_ports >> 16, (way)->to,     \
		 (way)->key_ports & 0xffff, (a), (b))

static uint32_t watch_window(struct way *way, const struct way *back, const struct seen *seg)
{
	/* The taker's offer is in its own SYN; that of a SYN itself is not scaled. */
	if (seg->flags & SYN || !way->wscale_offer || !back->wscale_offer)
		return seg->wnd_field;
	return seg->wnd_field << (back->wscale_offer - 1);
}

/* The taker of a way speaks about it. back: the way on which its own data goes. */
static void watch_ack(struct sim *sim, struct way *way, const struct way *back,
		      const struct seen *seg)
{
	uint32_t ack = seg->ack - way->isn, edge = ack + watch_window(way, back, seg);
	const uint8_t *sack = watch_option(seg, 5);

	if (way->blurred)
		return;
	if (!way->live) {
		/* A SYN-ACK answers this incarnation, and so does what follows one; anything else may
		 * be of the one before. */
		if (seg->flags & SYN ? ack != 1 : !back->live || back->blurred || ack > 1u << 17)
			return;
		way->live = true;
		way->ack = ack;
		way->edge = way->edge_most = edge;
	}
	if (ack > 0 && ack < 1u << 31 && !watch_has(way, 0, ack))
		WATCH_FAIL(sim, way, "acknowledged up to %u, contiguous only up to %u", ack,
			   way->range_count ? way->ranges[0].to : 0);
	if ((int32_t)(ack - way->ack) < 0)
		WATCH_FAIL(sim, way, "acknowledgment %u after %u", ack, way->ack);
	/* Less than one unit of the scaled field is rounding: RFC 7323 section 2.4. A SYN's window is
	 * not scaled and can't say all (a SYN-ACK after an ACK happens in simultaneous opens). */
	if (!(seg->flags & SYN) && edge != ack &&
	    (int32_t)(edge - way->edge) <=
		    -(1 << (back->wscale_offer ? back->wscale_offer - 1 : 0)))
		WATCH_FAIL(sim, way, "window's right edge %u after %u", edge, way->edge);
	way->ack = ack;
	if (edge == ack || (int32_t)(edge - way->edge) > 0)
		way->edge = edge;
	if ((int32_t)(edge - way->edge_most) > 0)
		way->edge_most = edge;
	for (unsigned at = 2; sack && at + 8 <= sack[1]; at += 8) {
		uint32_t from = be32_load(sack + at) - way->isn;
		uint32_t to = be32_load(sack + at + 4) - way->isn;

		if (from >= to || !watch_has(way, from, to))
			WATCH_FAIL(sim, way, "SACK of %u..%u, which did not arrive", from, to);
	}
}

/* For people: a line a segment. */
static void watch_print(const struct sim *sim, const char *what, const struct seen *seg,
			const struct way *way, const struct way *back)
{
	static const char letters[] = "FSRPAUEC";
	char flags[9] = "";
	unsigned n = 0;

	for (unsigned i = 0; i < 8; i++) {
		if (seg->flags >> i & 1)
			flags[n++] = letters[i];
	}
	printf("%.9f %s %u:%u -> %u:%u %s seq %u len %u ack %u wnd %u\n", (double)sim->now_ns / 1e9,
	       what, seg->from, seg->sport, seg->to, seg->dport, flags, seg->seq - way->isn,
	       seg->len, seg->ack - back->isn, seg->wnd_field);
}

void sim_watch_sent(struct sim *sim, unsigned stack, const uint8_t *packet, uint32_t len)
{
	struct seen seg;
	struct way *way, *back;
	uint32_t from, end;

	if (!watch_parse(sim, (uint8_t *)(uintptr_t)packet, len, false, &seg) || seg.from != stack)
		return;
	way = watch_way(sim, seg.from, seg.to, seg.sport, seg.dport);
	back = watch_way(sim, seg.to, seg.from, seg.dport, seg.sport);
	if (!way || !back)
		return;
	if (seg.flags & SYN)
		watch_syn(way, back, &seg);
	if (sim->verbose)
		watch_print(sim, "sends", &seg, way, back);
	if (seg.flags & RST)
		return;
	if (seg.flags & ACK)
		watch_ack(sim, back, way, &seg);
	if (seg.flags & SYN || way->blurred)
		return;
	from = seg.seq - way->isn;
	end = from + seg.len + ((seg.flags & FIN) != 0);
	if (end != from && way->told_edge && (int32_t)(end - way->told_edge) > 0)
		WATCH_FAIL(sim, way, "sent up to %u, allowed up to %u", end, way->told_edge);
	if ((int32_t)(end - way->sent_end) > 0) {
		if (way->fin_sent)
			WATCH_FAIL(sim, way, "sent up to %u after FIN at %u", end, way->sent_end);
		way->sent_end = end;
	}
	way->fin_sent |= (seg.flags & FIN) != 0;
}

void sim_watch_taken(struct sim *sim, unsigned stack, uint8_t *packet, uint32_t len)
{
	struct seen seg;
	struct way *way, *back;
	uint32_t from, edge;

	if (!watch_parse(sim, packet, len, true, &seg) || seg.to != stack)
		return;
	way = watch_way(sim, seg.from, seg.to, seg.sport, seg.dport);
	back = watch_way(sim, seg.to, seg.from, seg.dport, seg.sport);
	if (!way || !back)
		return;
	if (sim->verbose)
		watch_print(sim, "takes", &seg, way, back);
	if (seg.flags & RST)
		return;
	from = seg.seq - way->isn;
	watch_arrived(way, from, from + seg.len + ((seg.flags & (SYN | FIN)) != 0));
	if (!(seg.flags & ACK) || back->blurred || !back->live)
		return;
	edge = seg.ack - back->isn + watch_window(back, way, &seg);
	if ((int32_t)(edge - back->told_edge) > 0 && (int32_t)(edge - back->edge_most) <= 0)
		back->told_edge = edge;
}
