/* SPDX-License-Identifier: Apache-2.0 */
/* lane_rows.c - rows of comms and lanes: counted in by who moves bytes, copied to the page now and then (lane_publish.c). */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "poll/driver.h"
#include "stats/lane_rows.h"

/*
 * Theory of operation
 *
 * A row is memory of this process: numbers that many threads add to. The page has records; a comm's and each
 * of its lanes' is a copy of the row, made by lane_page_publish() under the comm's own lock (`busy`), which
 * is tried when LANE_PAGE_PERIOD_NS are over. When the comm falls idle before, no later call may come: the keeper
 * copies what is the last word (lane_owed.c). A dirty flag, cleared before the copy, tells what is new.
 *
 * A lane's row is a place (index) in its comm. It outlives the lane: what was lost and what took over add to
 * the same numbers, so that the lanes' bytes always add up to what the comm has moved. Numbers of the
 * NICs grow by what a lane's row grew since it was last published.
 *
 * Order of locks: lane_owed.c's, busy, lane_page.c's.
 */

#define ROW_TCP_PERIOD_NS 10000000u

static struct lane_slot *slot_of(struct lane_row *row)
{
	return (struct lane_slot *)((char *)row - offsetof(struct lane_slot, row));
}

static void lane_set(struct lane_row *row, enum harp_lane_value value, uint64_t n)
{
	atomic_store_explicit(&row->value[value], n, memory_order_relaxed);
	lane_page_touch(row);
}

static void comm_add(struct comm_row *row, enum harp_comm_value value, uint64_t n)
{
	atomic_fetch_add_explicit(&row->value[value], n, memory_order_relaxed);
	atomic_store_explicit(&row->dirty, true, memory_order_release);
}

static void comm_set(struct comm_row *row, enum harp_comm_value value, uint64_t n)
{
	atomic_store_explicit(&row->value[value], n, memory_order_relaxed);
	atomic_store_explicit(&row->dirty, true, memory_order_release);
}

/* Something has changed that must not wait. */
static void row_publish_now(struct comm_row *row)
{
	row_publish(row, driver_clock_ns(), false);
}

/* ---- comms ----------------------------------------------------------------------------------- */

struct comm_row *lane_page_comm_add(const struct comm_row_options *opt)
{
	struct comm_row *row = calloc(1, sizeof(*row));
	uint64_t serial;

	if (!row)
		return NULL;
	atomic_flag_clear(&row->busy);
	row->remote = opt->remote;
	page_ifname(row->ifname, opt->dev);
	comm_set(row, HARP_COMM_state, HARP_PAGE_COMM_OPEN);
	comm_set(row, HARP_COMM_opened_ns, driver_clock_ns());
	comm_set(row, HARP_COMM_comm_id, opt->comm_id);
	comm_set(row, HARP_COMM_side, opt->side);
	row->place = page_take(PAGE_COMMS, &serial);
	comm_set(row, HARP_COMM_serial, serial);
	page_open_add(PAGE_COMMS, 1);
	lane_page_count(HARP_JOB_comms_opened, 1);
	row_publish_now(row);
	row_list(row);
	return row;
}

/* Numbers that one thread at a time adds to. */
static void comm_own_add(struct comm_row *row, enum harp_comm_value value, uint64_t n)
{
	uint64_t now = atomic_load_explicit(&row->value[value], memory_order_relaxed);

	atomic_store_explicit(&row->value[value], now + n, memory_order_relaxed);
}

void lane_page_comm_done(struct comm_row *row, unsigned kinds, uint64_t bytes)
{
	static const struct {
		enum harp_comm_value messages, bytes;
	} of[] = {
		[HARP_PAGE_KIND_HARP] = { HARP_COMM_messages_harp, HARP_COMM_bytes_harp },
		[HARP_PAGE_KIND_KERNEL] = { HARP_COMM_messages_kernel, HARP_COMM_bytes_kernel },
		[HARP_PAGE_KIND_HARP | HARP_PAGE_KIND_KERNEL] = { HARP_COMM_messages_mixed,
								  HARP_COMM_bytes_mixed },
	};

	if (!row)
		return;
	comm_own_add(row, HARP_COMM_requests, 1);
	comm_own_add(row, HARP_COMM_bytes, bytes);
	if (kinds > 0 && kinds < sizeof(of) / sizeof(*of)) {
		comm_own_add(row, of[kinds].messages, 1);
		comm_own_add(row, of[kinds].bytes, bytes);
	}
	atomic_store_explicit(&row->dirty, true, memory_order_release);
}

void lane_page_comm_failed(struct comm_row *row)
{
	lane_page_count(HARP_JOB_comms_failed, 1);
	if (!row)
		return;
	row_lock(row);
	comm_set(row, HARP_COMM_state, HARP_PAGE_COMM_FAILED);
	row_publish_now(row);
	row_unlock(row);
}

/* busy held. */
static void lanes_open_add(struct comm_row *row, struct lane_slot *slot, int change)
{
	comm_add(row, HARP_COMM_lanes_open, (uint64_t)(int64_t)change);
	page_rail_add(slot->rail, HARP_RAIL_lanes_open, (uint64_t)(int64_t)change);
	page_open_add(PAGE_LANES, change);
}

static bool slot_open(const struct lane_slot *slot)
{
	uint64_t state = lane_value(&slot->row, HARP_LANE_state);

	return state == HARP_PAGE_LANE_OPEN || state == HARP_PAGE_LANE_STALLED;
}

void lane_page_comm_remove(struct comm_row *row)
{
	if (!row)
		return;
	row_unlist(row);
	row_lock(row);
	row_publish(row, driver_clock_ns(), true); /* the NICs' records keep it */
	for (unsigned i = 0; i < row->lane_count; i++)
		if (row->lanes[i] && slot_open(row->lanes[i]))
			lanes_open_add(row, row->lanes[i], -1);
	for (unsigned i = 0; i < row->lane_count; i++) {
		if (!row->lanes[i])
			continue;
		page_give(PAGE_LANES, row->lanes[i]->place);
		free(row->lanes[i]);
	}
	page_open_add(PAGE_COMMS, -1);
	page_give(PAGE_COMMS, row->place);
	free(row);
}

/* ---- lanes ----------------------------------------------------------------------------------- */

static struct lane_slot *slot_make(struct comm_row *comm, unsigned index)
{
	struct lane_slot *slot = calloc(1, sizeof(*slot));
	uint64_t serial;

	if (!slot)
		return NULL;
	slot->row.comm = comm;
	slot->row.comm_dirty = &comm->dirty;
	slot->place = page_take(PAGE_LANES, &serial);
	lane_set(&slot->row, HARP_LANE_serial, serial);
	lane_set(&slot->row, HARP_LANE_comm,
		 atomic_load_explicit(&comm->value[HARP_COMM_serial], memory_order_relaxed));
	lane_set(&slot->row, HARP_LANE_index, index);
	comm->lanes[index] = slot;
	if (comm->lane_count <= index)
		comm->lane_count = index + 1;
	return slot;
}

struct lane_row *lane_page_lane_add(struct comm_row *comm, const struct lane_row_options *opt)
{
	struct lane_slot *slot;

	if (!comm || opt->index >= ROW_LANES_MAX)
		return NULL;
	row_lock(comm);
	slot = comm->lanes[opt->index];
	if (slot) {
		slot_tell_rail(slot); /* which may be another from now on */
		if (slot_open(slot)) {
			lanes_open_add(comm, slot, -1);
			lane_page_add(&slot->row, HARP_LANE_rerolls, 1);
			lane_page_count(HARP_JOB_lanes_rerolled, 1);
		} else {
			comm_add(comm, HARP_COMM_lanes_replaced, 1);
			lane_page_count(HARP_JOB_lanes_replaced, 1);
		}
	} else {
		slot = slot_make(comm, opt->index);
	}
	if (slot) {
		slot->rail = page_rail(opt->dev, opt->kind);
		slot->who = opt->who;
		slot->local = opt->local;
		slot->remote = opt->remote;
		page_ifname(slot->ifname, opt->dev);
		slot->retransmits_old = lane_value(&slot->row, HARP_LANE_retransmits);
		lane_set(&slot->row, HARP_LANE_state, HARP_PAGE_LANE_OPEN);
		lane_set(&slot->row, HARP_LANE_opened_ns, driver_clock_ns());
		lane_set(&slot->row, HARP_LANE_kind, opt->kind);
		lane_set(&slot->row, HARP_LANE_sealed, opt->sealed);
		lane_set(&slot->row, HARP_LANE_backup, opt->backup);
		lane_set(&slot->row, HARP_LANE_tcp_ns, 0);
		lane_page_add(&slot->row, HARP_LANE_lanes, 1);
		lane_page_count(HARP_JOB_lanes_opened, 1);
		page_rail_add(slot->rail, HARP_RAIL_lanes_opened, 1);
		lanes_open_add(comm, slot, 1);
		row_publish_now(comm);
	}
	row_unlock(comm);
	return slot ? &slot->row : NULL;
}

static enum harp_page_lane_end lane_end(int error)
{
	switch (-error) {
	case 0:
	case EPIPE:
		return HARP_PAGE_LANE_END_closed;
	case ECONNRESET:
	case ECONNREFUSED:
	case ECONNABORTED:
		return HARP_PAGE_LANE_END_reset;
	case ETIMEDOUT:
		return HARP_PAGE_LANE_END_timeout;
	case EHOSTUNREACH:
	case ENETUNREACH:
		return HARP_PAGE_LANE_END_unreachable;
	case ENETDOWN:
	case ENODEV:
	case EADDRNOTAVAIL:
		return HARP_PAGE_LANE_END_interface;
	case EPROTO:
	case EBADMSG:
		return HARP_PAGE_LANE_END_protocol;
	default:
		return HARP_PAGE_LANE_END_other;
	}
}

/* The lane has ended; its row may be another's already. busy held. */
static void slot_close(struct lane_slot *slot, const void *who, enum harp_page_lane_end end)
{
	struct lane_row *row = &slot->row;

	if (slot->who != who || !slot_open(slot))
		return;
	lanes_open_add(row->comm, slot, -1);
	lane_set(row, HARP_LANE_state, HARP_PAGE_LANE_DEAD);
	lane_set(row, HARP_LANE_in_flight_bytes, 0);
	lane_set(row, HARP_LANE_unsent_bytes, 0);
	if (end)
		lane_set(row, HARP_LANE_end, end);
}

static void slot_died(struct lane_slot *slot, const void *who, enum harp_page_lane_end end)
{
	struct comm_row *comm = slot->row.comm;

	slot_close(slot, who, end);
	comm_add(comm, HARP_COMM_lanes_died, 1);
	page_rail_add(slot->rail, HARP_RAIL_lanes_died, 1);
	row_publish_now(comm);
}

void lane_page_lane_died(struct lane_row *row, const void *who, int error)
{
	enum harp_page_lane_end end = lane_end(error);

	lane_page_count((enum harp_job_counter)(HARP_JOB_lanes_died_reset + end -
						HARP_PAGE_LANE_END_reset),
			1);
	if (!row)
		return;
	row_lock(row->comm);
	slot_died(slot_of(row), who, end);
	row_unlock(row->comm);
}

void lane_page_lane_unreplaced(struct comm_row *comm, unsigned index)
{
	struct lane_slot *slot;
	bool died = true;

	if (comm && index < ROW_LANES_MAX) {
		row_lock(comm);
		slot = comm->lanes[index];
		died = !slot || slot_open(slot); /* else it came, and of its end was told */
		if (slot && died)
			slot_died(slot, slot->who, HARP_PAGE_LANE_END_reset);
		row_unlock(comm);
	}
	if (died)
		lane_page_count(HARP_JOB_lanes_died_reset, 1);
}

void lane_page_lane_closed(struct lane_row *row, const void *who)
{
	if (!row)
		return;
	row_lock(row->comm);
	slot_close(slot_of(row), who, HARP_PAGE_LANE_END_none);
	row_unlock(row->comm);
}

void lane_page_lane_stalled(struct lane_row *row, bool stalled)
{
	uint64_t state = stalled ? HARP_PAGE_LANE_STALLED : HARP_PAGE_LANE_OPEN;

	if (!row || lane_value(row, HARP_LANE_state) == state)
		return;
	row_lock(row->comm);
	if (slot_open(slot_of(row)) && lane_value(row, HARP_LANE_state) != state) {
		lane_set(row, HARP_LANE_state, state);
		if (stalled) {
			lane_page_add(row, HARP_LANE_stalls, 1);
			lane_page_count(HARP_JOB_lanes_stalled, 1);
		}
	}
	row_unlock(row->comm);
}

void lane_page_chunk_moved_here(struct lane_row *row)
{
	lane_page_count(HARP_JOB_chunks_moved, 1);
	lane_page_add(row, HARP_LANE_chunks_moved_here, 1);
	if (row)
		comm_add(row->comm, HARP_COMM_chunks_moved, 1);
}

void lane_page_chunk_duplicate(struct lane_row *row)
{
	lane_page_count(HARP_JOB_chunks_duplicate, 1);
	lane_page_add(row, HARP_LANE_chunks_duplicate, 1);
	if (row)
		comm_add(row->comm, HARP_COMM_chunks_duplicate, 1);
}

bool lane_page_wants_tcp(const struct lane_row *row, uint64_t now_ns)
{
	return row && page_get() && now_ns - lane_value(row, HARP_LANE_tcp_ns) >= ROW_TCP_PERIOD_NS;
}

void lane_page_tcp(struct lane_row *row, const struct lane_info *tcp, uint64_t now_ns)
{
	if (!row)
		return;
	lane_set(row, HARP_LANE_tcp_ns, now_ns);
	lane_set(row, HARP_LANE_srtt_ns, tcp->srtt_ns);
	lane_set(row, HARP_LANE_in_flight_bytes, tcp->in_flight_bytes);
	lane_set(row, HARP_LANE_unsent_bytes, tcp->unsent_bytes);
	lane_set(row, HARP_LANE_retransmits, slot_of(row)->retransmits_old + tcp->retransmits);
	page_rail_srtt(slot_of(row)->rail, tcp->srtt_ns);
}
