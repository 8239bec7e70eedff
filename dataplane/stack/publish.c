/* SPDX-License-Identifier: Apache-2.0 */
/*
 * publish.c - writes a stack's statistics to its page, at most once per millisecond of its clock. A
 * publication is a bounded amount of work, without system calls, locks or reads of the page. Ten
 * times a second it also queries the NIC's counters, which may need a system call (AF_XDP).
 *
 * A publication copies all counters and changed histograms. It updates flow records round robin:
 * slot i of the stack has record i. It checks some slots and writes a few records, and more of both
 * after a longer pause. Connections reuse freed slots before new ones, so used records are
 * adjacent.
 *
 * The numbers must not be stale while the thread sleeps, so publish_next_ns() limits the stack's
 * next deadline until all activity has been written.
 */
#include "base/histogram.h"
#include "stack/stack.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

/* Slots to check and records to write per HARP_PAGE_PERIOD_NS since the last publication; at most
 * PUBLISH_PERIODS_MAX periods count. */
#define PUBLISH_SLOTS 16u
#define PUBLISH_RECORDS 4u
#define PUBLISH_PERIODS_MAX 16u

static void *publish_item(const struct publish *p, enum harp_page_part part, uint32_t index)
{
	const struct harp_page_place *place = &p->places[part];

	return p->page + place->offset + sizeof(struct harp_page_lock) +
	       (size_t)index * place->stride;
}

/* Begins to write a part; harp_page_write_end() ends it. */
static struct harp_page_lock *publish_part_begin(struct harp_stack *stack, enum harp_page_part part)
{
	struct publish *p = &stack->publish;
	struct harp_page_lock *lock = (struct harp_page_lock *)(p->page + p->places[part].offset);

	harp_page_write_begin(&lock->sequence);
	lock->written_ns = stack->now_ns;
	return lock;
}

/* ---- flows ---------------------------------------------------------------------------------- */

static void publish_flow_values(struct harp_page_flow *flow, const struct harp_conn *conn)
{
	struct harp_tcp_info info;

	harp_conn_info(conn, &info);
	flow->state = info.state;
	flow->serial = conn->page.serial;
	flow->updated_ns = conn->tcp->now_ns;
	flow->congestion = info.congestion;
	flow->snd_mss_bytes = info.snd_mss_bytes;
	flow->srtt_ns = info.srtt_ns;
	flow->rttvar_ns = info.rttvar_ns;
	flow->rtt_ns_min = info.rtt_ns_min;
	flow->rto_ns = info.rto_ns;
	flow->cwnd_bytes = info.snd_cwnd_bytes;
	flow->ssthresh_bytes = info.snd_ssthresh_bytes;
	flow->snd_wnd_bytes = info.snd_wnd_bytes;
	flow->rcv_wnd_bytes = info.rcv_wnd_bytes;
	flow->in_flight_bytes = info.bytes_in_flight;
	flow->unsent_bytes = info.bytes_unsent;
	flow->unread_bytes = conn->rcv_queued_bytes;
	flow->sent_bytes = info.bytes_sent;
	flow->acked_bytes = info.bytes_acked;
	flow->received_bytes = info.bytes_received;
	flow->retransmits = info.retransmits;
	flow->lost_segs = info.lost_segs;
	flow->rto_count = info.rto_count;
	flow->pacing_bytes_per_s = info.pacing_bytes_per_s;
	flow->last_rcv_ns = info.last_rcv_ns;
}

/* Updates the record of a slot; true if it was written. */
static bool publish_flow(struct harp_stack *stack, uint32_t index)
{
	struct harp_conn *conn = &stack->tcp.conns[index];
	struct harp_page_flow *flow = publish_item(&stack->publish, HARP_PAGE_FLOWS, index);
	bool open = conn->state != HARP_TCP_CLOSED && !stack->publish.status.ended;
	struct harp_endpoint local, remote;

	if (!open && !conn->page.shown)
		return false;
	harp_page_write_begin(&flow->sequence);
	if (open) {
		harp_conn_endpoints(conn, &local, &remote);
		memcpy(flow->local_addr, &local.addr, sizeof(flow->local_addr));
		memcpy(flow->remote_addr, &remote.addr, sizeof(flow->remote_addr));
		flow->local_port = local.port;
		flow->remote_port = remote.port;
		flow->scope_id = remote.scope_id;
		memcpy(flow->label, conn->page.label, sizeof(flow->label));
		publish_flow_values(flow, conn);
	} else {
		flow->state = 0;
	}
	harp_page_write_end(&flow->sequence);
	conn->page.shown = open;
	return true;
}

static void publish_flows(struct harp_stack *stack, uint32_t slots, uint32_t records)
{
	struct publish *p = &stack->publish;
	uint32_t high = stack->tcp.conns_high;

	if (high > p->flow_room)
		high = p->flow_room;
	if (slots > high)
		slots = high;
	while (slots > 0 && records > 0) {
		if (p->flow_next >= high)
			p->flow_next = 0;
		if (publish_flow(stack, p->flow_next++))
			records--;
		slots--;
		if (p->flows_left > 0)
			p->flows_left--;
	}
	if (p->flows_left > high)
		p->flows_left = high;
}

static void publish_status(struct harp_stack *stack)
{
	struct publish *p = &stack->publish;
	struct harp_page_lock *lock = publish_part_begin(stack, HARP_PAGE_STATUS);

	p->status.published_ns = stack->now_ns;
	p->status.publications++;
	p->status.flows_open = stack->stats.tcp_conns;
	p->status.flows_hidden = 0;
	/* An upper bound, because an exact count would need a scan of all slots. */
	if (stack->tcp.conns_high > p->flow_room) {
		uint64_t slots = stack->tcp.conns_high - p->flow_room;

		p->status.flows_hidden =
			slots < p->status.flows_open ? slots : p->status.flows_open;
	}
	memcpy(publish_item(p, HARP_PAGE_STATUS, 0), &p->status, sizeof(p->status));
	harp_page_write_end(&lock->sequence);
}

static void publish_counters(struct harp_stack *stack)
{
	struct harp_page_lock *lock;

	if (stack->now_ns >= stack->publish.nic_next_ns) {
		info_query_nic(stack, &stack->stats);
		stack->publish.nic_next_ns = stack->now_ns + HARP_PAGE_LATE_NS;
	}
	lock = publish_part_begin(stack, HARP_PAGE_COUNTERS);
	info_values(stack, publish_item(&stack->publish, HARP_PAGE_COUNTERS, 0),
		    stack->publish.places[HARP_PAGE_COUNTERS].count);
	harp_page_write_end(&lock->sequence);
}

static void publish_histograms(struct harp_stack *stack)
{
	struct publish *p = &stack->publish;
	struct harp_page_lock *lock = publish_part_begin(stack, HARP_PAGE_HISTOGRAMS);

	for (unsigned i = 0; i < HARP_HISTOGRAM_COUNT; i++) {
		if (p->histogram_seen[i] == p->histograms[i].count)
			continue;
		memcpy(publish_item(p, HARP_PAGE_HISTOGRAMS, i), &p->histograms[i],
		       sizeof(p->histograms[i]));
		p->histogram_seen[i] = p->histograms[i].count;
	}
	harp_page_write_end(&lock->sequence);
}

static bool publish_has_changes(const struct harp_stack *stack)
{
	const struct publish *p = &stack->publish;

	return stack->stats.rx_packets + stack->stats.tx_packets != p->seen_packets ||
	       stack->stats.tcp_conns != p->seen_conns;
}

static void publish_now(struct harp_stack *stack)
{
	struct publish *p = &stack->publish;
	uint64_t periods = (stack->now_ns - p->status.published_ns) / HARP_PAGE_PERIOD_NS;

	if (periods > PUBLISH_PERIODS_MAX)
		periods = PUBLISH_PERIODS_MAX;
	if (periods == 0)
		periods = 1; /* first publication */
	if (publish_has_changes(stack))
		p->flows_left = stack->tcp.conns_high;
	p->seen_packets = stack->stats.rx_packets + stack->stats.tx_packets;
	p->seen_conns = stack->stats.tcp_conns;
	publish_counters(stack);
	publish_histograms(stack);
	publish_flows(stack, PUBLISH_SLOTS * (uint32_t)periods,
		      PUBLISH_RECORDS * (uint32_t)periods);
	publish_status(stack);
	p->next_ns = stack->now_ns + HARP_PAGE_PERIOD_NS;
}

void publish_poll(struct harp_stack *stack, uint64_t gap_ns)
{
	histogram_count(&stack->publish.histograms[HARP_HISTOGRAM_poll_gap], gap_ns);
	if (stack->now_ns >= stack->publish.next_ns)
		publish_now(stack);
}

uint64_t publish_next_ns(const struct harp_stack *stack)
{
	const struct publish *p = &stack->publish;

	if (!p->page || (p->flows_left == 0 && !publish_has_changes(stack)))
		return UINT64_MAX;
	return p->status.published_ns + HARP_PAGE_LATE_NS;
}

void publish_end(struct harp_stack *stack)
{
	struct publish *p = &stack->publish;

	if (!p->page)
		return;
	p->status.ended = 1;
	for (uint32_t i = 0; i < stack->tcp.conns_high && i < p->flow_room; i++)
		(void)publish_flow(stack, i);
	p->nic_next_ns = 0;
	publish_counters(stack);
	publish_histograms(stack);
	publish_status(stack);
	p->page = NULL;
	stack->tcp.rtt_histogram = NULL;
}

/* ---- functions of harp_page.h --------------------------------------------------------------- */

/* Clears the content of an earlier owner. */
static void publish_clear(const struct publish *p)
{
	struct harp_page_header *header = (struct harp_page_header *)p->page;
	_Atomic uint64_t *magic = (_Atomic uint64_t *)&header->magic;

	if (atomic_load_explicit(magic, memory_order_relaxed) == 0)
		return;
	atomic_store_explicit(magic, 0, memory_order_release);
	memset(p->page + sizeof(header->magic), 0,
	       p->places[HARP_PAGE_FLOWS].offset - sizeof(header->magic));
	memset(p->page + p->places[HARP_PAGE_FLOWS].offset, 0,
	       sizeof(struct harp_page_lock) + (size_t)p->flow_room * PAGE_FLOW_STRIDE_BYTES);
}

static void publish_identity(struct harp_stack *stack, const struct harp_page_identity *identity)
{
	struct harp_page_lock *lock = publish_part_begin(stack, HARP_PAGE_IDENTITY);
	struct harp_page_identity *item = publish_item(&stack->publish, HARP_PAGE_IDENTITY, 0);

	memcpy(item, identity, sizeof(*item));
	snprintf(item->library, sizeof(item->library), "%s", harp_version());
	harp_page_write_end(&lock->sequence);
}

int harp_stack_publish_to(struct harp_stack *stack, void *page, size_t bytes,
			  const struct harp_page_identity *identity)
{
	struct publish *p = &stack->publish;
	struct harp_page_place places[HARP_PAGE_PARTS];
	uint32_t fixed = page_layout(places, 0), flows, used;

	if (!page) {
		publish_end(stack);
		return 0;
	}
	if ((uintptr_t)page % PAGE_LINE_BYTES || bytes < fixed || !identity ||
	    identity->size != sizeof(*identity))
		return -EINVAL;
	publish_end(stack);
	if (bytes > HARP_PAGE_BYTES_MAX)
		bytes = HARP_PAGE_BYTES_MAX;
	flows = (uint32_t)((bytes - fixed) / PAGE_FLOW_STRIDE_BYTES);
	if (flows > HARP_PAGE_FLOWS_MAX)
		flows = HARP_PAGE_FLOWS_MAX;
	if (flows > stack->tcp.max_conns)
		flows = stack->tcp.max_conns;
	used = page_layout(p->places, flows);
	p->page = page;
	p->flow_room = flows;
	p->flow_next = 0;
	p->status.ended = 0;
	p->status.publications = 0;
	p->status.published_ns = 0;
	publish_clear(p);
	for (uint32_t i = 0; i < stack->tcp.conns_high; i++)
		stack->tcp.conns[i].page.shown = false;
	memset(p->histogram_seen, 0, sizeof(p->histogram_seen));
	p->seen_packets = UINT64_MAX; /* forces a full publication */
	publish_identity(stack, identity);
	publish_now(stack);
	page_header_write(p->page, p->places, used);
	stack->tcp.rtt_histogram = &p->histograms[HARP_HISTOGRAM_tcp_rtt];
	return 0;
}

void harp_stack_publish_note(struct harp_stack *stack, const char *text)
{
	struct publish *p = &stack->publish;

	snprintf(p->status.note, sizeof(p->status.note), "%s", text);
	/* Counts as activity, so that the next deadline includes its publication. */
	if (p->flows_left == 0)
		p->flows_left = 1;
}

void harp_stack_observe(struct harp_stack *stack, enum harp_histogram histogram, uint64_t value_ns)
{
	if (stack->publish.page && (unsigned)histogram < HARP_HISTOGRAM_COUNT)
		histogram_count(&stack->publish.histograms[histogram], value_ns);
}

/* Called by the thread that queries the driver. */
void harp_stack_publish_xstats(struct harp_stack *stack, const struct harp_page_xstat *xstats,
			       unsigned count, uint64_t now_ns)
{
	const struct publish *p = &stack->publish;
	struct harp_page_lock *lock;
	struct harp_page_xstat *items;

	if (!p->page)
		return;
	lock = (struct harp_page_lock *)(p->page + p->places[HARP_PAGE_XSTATS].offset);
	items = (struct harp_page_xstat *)(lock + 1);
	if (count > HARP_PAGE_XSTATS_MAX)
		count = HARP_PAGE_XSTATS_MAX;
	harp_page_write_begin(&lock->sequence);
	lock->written_ns = now_ns;
	memcpy(items, xstats, count * sizeof(*items));
	/* An empty item ends the list. */
	if (count < HARP_PAGE_XSTATS_MAX)
		items[count] = (struct harp_page_xstat){ 0 };
	harp_page_write_end(&lock->sequence);
}
