/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_segments.c - checks every segment that a stack sends or receives.
 *
 * For each direction of each connection, from the sender of data to its receiver, this file records
 * what the sender sent, which sequence numbers arrived intact at the receiver's NIC, and what the
 * receiver acknowledged. Each SYN resets this state. It checks that
 *	- ACKs and SACKs cover only data that arrived;
 *	- acknowledgments do not move back, nor does the window's right edge (RFC 9293 3.8.6),
 *	  unless the window closes because the receiver ran out of frames;
 *	- nothing is sent beyond the right edge that the sender knows;
 *	- no new data is sent beyond a FIN.
 */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "base/endian.h"
#include "transport/tcp_options.h"

#define SEGMENT_DIRS 512u
#define SEGMENT_RANGES 64u

enum { FIN = 1, SYN = 2, RST = 4, ACK = 16 };

struct range {
	uint32_t from, to; /* relative to the initial sequence number; `to` is exclusive */
};

struct direction {
	uint32_t key_ports;     /* 0: free; source port in the upper half */
	uint8_t from, to;       /* stacks */
	bool live;              /* the receiver has answered this SYN */
	bool scales;            /* both sides scale windows */
	bool fin_sent, unknown; /* unknown: too many ranges to know what arrived */
	uint8_t wscale_offer;   /* 1 + the sender's scale, 0: none */
	uint32_t isn;
	uint32_t sent_end;    /* this and all below: relative to isn */
	uint32_t ack, edge;   /* the last ones from the receiver */
	uint32_t edge_max;    /* the farthest edge: ACKs may be reordered */
	uint32_t sender_edge; /* the edge that has reached the sender */
	unsigned range_count;
	struct range ranges[SEGMENT_RANGES]; /* ranges that arrived, in order */
};

struct sim_segments {
	struct direction dirs[SEGMENT_DIRS];
};

struct segment {
	unsigned from, to; /* stacks */
	uint16_t sport, dport;
	uint32_t seq, ack, len, wnd_field;
	uint8_t flags;
	struct tcp_options opt;
};

bool sim_segments_make(struct sim *sim)
{
	sim->segments = calloc(1, sizeof(*sim->segments));
	return sim->segments ? true : runner_fail("no memory for segments");
}

/* ---- parsing --------------------------------------------------------------------------------- */

static unsigned segment_stack_of(const struct sim *sim, const uint8_t *addr, unsigned len)
{
	for (unsigned i = 0; i < sim->scenario->stack_count; i++) {
		struct harp_addr own = sim_net_addr(sim, i);

		if (memcmp(own.bytes + 16 - len, addr, len) == 0)
			return i;
	}
	return SCN_STACKS_MAX;
}

/* Parses a whole TCP segment between two stacks. check: verify the checksum. */
static bool segment_parse(const struct sim *sim, uint8_t *packet, uint32_t len, bool check,
			  struct segment *seg)
{
	uint32_t link = len >= 18 && be16_load(packet + 12) == 0x8100 ? 18 : 14;
	uint8_t *ip = packet + link, *th;
	bool v4 = len >= link + 20 && be16_load(ip - 2) == 0x0800 && ip[0] >> 4 == 4 && ip[9] == 6;
	uint32_t header, total, tcp_header, addr_len = v4 ? 4 : 16, sum;

	if (!v4 &&
	    !(len >= link + 40 && be16_load(ip - 2) == 0x86dd && ip[0] >> 4 == 6 && ip[6] == 6))
		return false;
	header = v4 ? (ip[0] & 15u) * 4 : 40;
	total = v4 ? be16_load(ip + 2) : 40u + be16_load(ip + 4);
	if (total > len - link || total < header + 20)
		return false;
	th = ip + header;
	seg->from = segment_stack_of(sim, ip + (v4 ? 12 : 8), addr_len);
	seg->to = segment_stack_of(sim, ip + (v4 ? 16 : 24), addr_len);
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
	tcp_header = (uint32_t)(th[12] >> 4) * 4;
	if (tcp_header < 20 || total - header < tcp_header)
		return false;
	seg->len = total - header - tcp_header;
	return tcp_options_parse(th + 20, tcp_header - 20, &seg->opt);
}

static struct direction *segment_dir(struct sim *sim, unsigned from, unsigned to, uint16_t sport,
				     uint16_t dport)
{
	uint32_t ports = (uint32_t)sport << 16 | dport;
	uint32_t at = (ports * 0x9e3779b1u + from * 31 + to) % SEGMENT_DIRS;

	for (uint32_t i = 0; i < SEGMENT_DIRS; i++, at = (at + 1) % SEGMENT_DIRS) {
		struct direction *dir = &sim->segments->dirs[at];

		if (dir->key_ports == 0) {
			dir->key_ports = ports;
			dir->from = (uint8_t)from;
			dir->to = (uint8_t)to;
			dir->unknown = true; /* until a SYN is seen */
			return dir;
		}
		if (dir->key_ports == ports && dir->from == from && dir->to == to)
			return dir;
	}
	return NULL;
}

/* ---- data that arrived ----------------------------------------------------------------------- */

static void segment_record(struct direction *dir, uint32_t from, uint32_t to)
{
	struct range *r = dir->ranges;
	unsigned i = 0, n;

	if (dir->unknown || to - from > 1u << 30 || from > 1u << 31)
		return; /* unknown state, or another incarnation */
	while (i < dir->range_count && r[i].to < from)
		i++;
	for (n = i; n < dir->range_count && r[n].from <= to; n++) {
		from = r[n].from < from ? r[n].from : from;
		to = r[n].to > to ? r[n].to : to;
	}
	if (n == i && dir->range_count == SEGMENT_RANGES) {
		dir->unknown = true;
		return;
	}
	memmove(&r[i + 1], &r[n], (dir->range_count - n) * sizeof(*r));
	dir->range_count = dir->range_count - (n - i) + 1;
	r[i] = (struct range){ from, to };
}

static bool segment_has_range(const struct direction *dir, uint32_t from, uint32_t to)
{
	for (unsigned i = 0; i < dir->range_count; i++) {
		if (dir->ranges[i].from <= from && to <= dir->ranges[i].to)
			return true;
	}
	return false;
}

static void segment_syn(struct direction *dir, struct direction *back, const struct segment *seg)
{
	if (!dir->unknown && dir->isn == seg->seq)
		return; /* a retransmitted SYN */
	if (!(seg->flags & ACK) && back->live)
		back->unknown = true; /* the peer still refers to the last incarnation */
	/* This may answer an old SYN; the receiver has not confirmed it. */
	if (seg->flags & ACK)
		back->live = false;
	*dir = (struct direction){ .key_ports = dir->key_ports,
				   .from = dir->from,
				   .to = dir->to,
				   .isn = seg->seq,
				   .sent_end = 1,
				   .wscale_offer = seg->opt.seen & TCP_OPT_WSCALE
							   ? (uint8_t)(1 + seg->opt.wscale)
							   : 0 };
}

/* ---- checks ---------------------------------------------------------------------------------- */

#define SEGMENT_FAIL(dir, what, a, b)                                                              \
	runner_fail("%u:%u -> %u:%u: " what, (dir)->from, (dir)->key_ports >> 16, (dir)->to,       \
		    (dir)->key_ports & 0xffff, (a), (b))

static uint32_t segment_window(struct direction *dir, const struct direction *back,
			       const struct segment *seg)
{
	/* The scale is in the SYN of the receiver; the window of a SYN is not scaled. */
	if (seg->flags & SYN || !dir->wscale_offer || !back->wscale_offer)
		return seg->wnd_field;
	return seg->wnd_field << (back->wscale_offer - 1);
}

/* Checks an acknowledgment from the receiver of a direction. back: the reverse direction. */
static void segment_ack(struct direction *dir, const struct direction *back,
			const struct segment *seg)
{
	uint32_t ack = seg->ack - dir->isn, edge = ack + segment_window(dir, back, seg);

	if (dir->unknown)
		return;
	if (!dir->live) {
		/* A SYN-ACK belongs to this incarnation, and so do segments that follow it. Others
		 * may belong to the previous incarnation. */
		if (seg->flags & SYN ? ack != 1 : !back->live || back->unknown || ack > 1u << 17)
			return;
		dir->live = true;
		dir->ack = ack;
		dir->edge = dir->edge_max = edge;
	}
	if (ack > 0 && ack < 1u << 31 && !segment_has_range(dir, 0, ack))
		SEGMENT_FAIL(dir, "acknowledged up to %u, contiguous only up to %u", ack,
			     dir->range_count ? dir->ranges[0].to : 0);
	if ((int32_t)(ack - dir->ack) < 0)
		SEGMENT_FAIL(dir, "acknowledgment %u after %u", ack, dir->ack);
	/* Less than one unit of the scaled field is rounding: RFC 7323 section 2.4. The window of a
	 * SYN is not scaled, so it can be smaller (a SYN-ACK follows an ACK in simultaneous
	 * opens). */
	if (!(seg->flags & SYN) && edge != ack &&
	    (int32_t)(edge - dir->edge) <=
		    -(1 << (back->wscale_offer ? back->wscale_offer - 1 : 0)))
		SEGMENT_FAIL(dir, "window's right edge %u after %u", edge, dir->edge);
	dir->ack = ack;
	if (edge == ack || (int32_t)(edge - dir->edge) > 0)
		dir->edge = edge;
	if ((int32_t)(edge - dir->edge_max) > 0)
		dir->edge_max = edge;
	for (unsigned i = 0; seg->opt.seen & TCP_OPT_SACK && i < seg->opt.sack_count; i++) {
		uint32_t from = seg->opt.sack[i].start_seq - dir->isn;
		uint32_t to = seg->opt.sack[i].end_seq - dir->isn;

		if (from >= to || !segment_has_range(dir, from, to))
			SEGMENT_FAIL(dir, "SACK of %u..%u, which did not arrive", from, to);
	}
}

/* Prints one line per segment. */
static void segment_print(const struct sim *sim, const char *what, const struct segment *seg,
			  const struct direction *dir, const struct direction *back)
{
	static const char letters[] = "FSRPAUEC";
	char flags[9] = "";
	unsigned n = 0;

	for (unsigned i = 0; i < 8; i++) {
		if (seg->flags >> i & 1)
			flags[n++] = letters[i];
	}
	printf("%.9f %s %u:%u -> %u:%u %s seq %u len %u ack %u wnd %u\n", (double)sim->now_ns / 1e9,
	       what, seg->from, seg->sport, seg->to, seg->dport, flags, seg->seq - dir->isn,
	       seg->len, seg->ack - back->isn, seg->wnd_field);
}

void sim_segment_track_sent(struct sim *sim, unsigned stack, const uint8_t *packet, uint32_t len)
{
	struct segment seg;
	struct direction *dir, *back;
	uint32_t from, end;

	if (!segment_parse(sim, (uint8_t *)(uintptr_t)packet, len, false, &seg) ||
	    seg.from != stack)
		return;
	dir = segment_dir(sim, seg.from, seg.to, seg.sport, seg.dport);
	back = segment_dir(sim, seg.to, seg.from, seg.dport, seg.sport);
	if (!dir || !back)
		return;
	if (seg.flags & SYN)
		segment_syn(dir, back, &seg);
	if (sim->verbose)
		segment_print(sim, "sends", &seg, dir, back);
	if (seg.flags & RST)
		return;
	if (seg.flags & ACK)
		segment_ack(back, dir, &seg);
	if (seg.flags & SYN || dir->unknown)
		return;
	from = seg.seq - dir->isn;
	end = from + seg.len + ((seg.flags & FIN) != 0);
	if (end != from && dir->sender_edge && (int32_t)(end - dir->sender_edge) > 0)
		SEGMENT_FAIL(dir, "sent up to %u, allowed up to %u", end, dir->sender_edge);
	if ((int32_t)(end - dir->sent_end) > 0) {
		if (dir->fin_sent)
			SEGMENT_FAIL(dir, "sent up to %u after FIN at %u", end, dir->sent_end);
		dir->sent_end = end;
	}
	dir->fin_sent |= (seg.flags & FIN) != 0;
}

void sim_segment_track_received(struct sim *sim, unsigned stack, uint8_t *packet, uint32_t len)
{
	struct segment seg;
	struct direction *dir, *back;
	uint32_t from, edge;

	if (!segment_parse(sim, packet, len, true, &seg) || seg.to != stack)
		return;
	dir = segment_dir(sim, seg.from, seg.to, seg.sport, seg.dport);
	back = segment_dir(sim, seg.to, seg.from, seg.dport, seg.sport);
	if (!dir || !back)
		return;
	if (sim->verbose)
		segment_print(sim, "receives", &seg, dir, back);
	if (seg.flags & RST)
		return;
	from = seg.seq - dir->isn;
	segment_record(dir, from, from + seg.len + ((seg.flags & (SYN | FIN)) != 0));
	if (!(seg.flags & ACK) || back->unknown || !back->live)
		return;
	edge = seg.ack - back->isn + segment_window(back, dir, &seg);
	if ((int32_t)(edge - back->sender_edge) > 0 && (int32_t)(edge - back->edge_max) <= 0)
		back->sender_edge = edge;
}
