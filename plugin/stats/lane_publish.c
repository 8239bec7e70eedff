/* SPDX-License-Identifier: Apache-2.0 */
/* lane_publish.c - rows of comms and lanes copied to the page, and to the counters of NICs and the process. */
#include <string.h>

#include "stats/lane_rows.h"

void slot_tell_rail(struct lane_slot *slot)
{
	static const struct {
		enum harp_lane_value lane;
		enum harp_rail_value rail;
	} told[] = {
		{ HARP_LANE_sent_bytes, HARP_RAIL_sent_bytes },
		{ HARP_LANE_received_bytes, HARP_RAIL_received_bytes },
		{ HARP_LANE_payload_bytes, HARP_RAIL_payload_bytes },
		{ HARP_LANE_chunks_sent, HARP_RAIL_chunks_sent },
		{ HARP_LANE_chunks_moved_away, HARP_RAIL_chunks_moved_away },
		{ HARP_LANE_chunks_moved_here, HARP_RAIL_chunks_moved_here },
		{ HARP_LANE_chunks_duplicate, HARP_RAIL_chunks_duplicate },
		{ HARP_LANE_retransmits, HARP_RAIL_retransmits },
		{ HARP_LANE_rerolls, HARP_RAIL_lanes_rerolled },
	};

	for (unsigned i = 0; i < sizeof(told) / sizeof(*told); i++) {
		uint64_t now = lane_value(&slot->row, told[i].lane);

		page_rail_add(slot->rail, told[i].rail, now - slot->told[told[i].lane]);
		slot->told[told[i].lane] = now;
	}
}

static void slot_publish(const struct harp_page_job *job, struct lane_slot *slot, uint64_t now_ns)
{
	uint64_t before = slot->told[HARP_LANE_chunks_sent];
	struct harp_page_lane *record;

	slot_tell_rail(slot);
	lane_page_count(HARP_JOB_chunks_sent, slot->told[HARP_LANE_chunks_sent] - before);
	if (slot->place == PAGE_NOWHERE)
		return;
	record = &job->lanes[slot->place];
	harp_page_write_begin(&record->sequence);
	memcpy(record->local_addr, &slot->local.addr, sizeof(record->local_addr));
	memcpy(record->remote_addr, &slot->remote.addr, sizeof(record->remote_addr));
	record->local_port = slot->local.port;
	record->remote_port = slot->remote.port;
	record->scope_id = slot->remote.scope_id;
	memcpy(record->ifname, slot->ifname, sizeof(record->ifname));
	for (unsigned i = 0; i < HARP_LANE_COUNT; i++)
		record->value[i] = lane_value(&slot->row, (enum harp_lane_value)i);
	record->value[HARP_LANE_updated_ns] = now_ns;
	harp_page_write_end(&record->sequence);
}

/* What the process's counters don't know yet. */
static void comm_tell_job(struct comm_row *row)
{
	static const struct {
		enum harp_comm_value comm;
		enum harp_job_counter job;
	} told[] = {
		{ HARP_COMM_messages_harp, HARP_JOB_messages_harp },
		{ HARP_COMM_messages_kernel, HARP_JOB_messages_kernel },
		{ HARP_COMM_messages_mixed, HARP_JOB_messages_mixed },
	};

	for (unsigned i = 0; i < sizeof(told) / sizeof(*told); i++) {
		uint64_t now =
			atomic_load_explicit(&row->value[told[i].comm], memory_order_relaxed);

		lane_page_count(told[i].job, now - row->told[told[i].comm]);
		row->told[told[i].comm] = now;
	}
}

static void comm_publish(const struct harp_page_job *job, struct comm_row *row, uint64_t now_ns)
{
	struct harp_page_comm *record;

	comm_tell_job(row);
	if (row->place == PAGE_NOWHERE)
		return;
	record = &job->comms[row->place];
	harp_page_write_begin(&record->sequence);
	memcpy(record->remote_addr, &row->remote.addr, sizeof(record->remote_addr));
	record->remote_port = row->remote.port;
	record->scope_id = row->remote.scope_id;
	memcpy(record->ifname, row->ifname, sizeof(record->ifname));
	for (unsigned i = 0; i < HARP_COMM_COUNT; i++)
		record->value[i] = atomic_load_explicit(&row->value[i], memory_order_relaxed);
	record->value[HARP_COMM_updated_ns] = now_ns;
	harp_page_write_end(&record->sequence);
}

/* Nothing is on its way. */
static void slot_settle(struct lane_slot *slot)
{
	static const enum harp_lane_value none[] = { HARP_LANE_in_flight_bytes,
						     HARP_LANE_unsent_bytes };

	for (unsigned i = 0; i < sizeof(none) / sizeof(*none); i++) {
		if (!lane_value(&slot->row, none[i]))
			continue;
		atomic_store_explicit(&slot->row.value[none[i]], 0, memory_order_relaxed);
		lane_page_touch(&slot->row);
	}
}

void row_publish(struct comm_row *row, uint64_t now_ns, bool idle)
{
	const struct harp_page_job *job = page_get();

	for (unsigned i = 0; idle && i < row->lane_count; i++)
		if (row->lanes[i])
			slot_settle(row->lanes[i]);
	atomic_store_explicit(&row->next_ns, now_ns + LANE_PAGE_PERIOD_NS, memory_order_relaxed);
	/* Each flag is cleared before what it tells of is read: who adds meanwhile sets it again. */
	if (!job || !atomic_exchange_explicit(&row->dirty, false, memory_order_acq_rel))
		return;
	for (unsigned i = 0; i < row->lane_count; i++) {
		struct lane_slot *slot = row->lanes[i];

		if (!slot ||
		    !atomic_exchange_explicit(&slot->row.dirty, false, memory_order_acq_rel))
			continue;
		slot_publish(job, slot, now_ns);
	}
	comm_publish(job, row, now_ns);
}

void lane_page_publish(struct comm_row *row, uint64_t now_ns, bool idle)
{
	if (!row || !atomic_load_explicit(&row->dirty, memory_order_relaxed))
		return;
	if (now_ns < atomic_load_explicit(&row->next_ns, memory_order_relaxed) ||
	    atomic_flag_test_and_set_explicit(&row->busy, memory_order_acquire)) {
		if (!idle || row_owe(row))
			return;
		row_lock(row);
	}
	row_publish(row, now_ns, idle);
	row_unlock(row);
}
