/* SPDX-License-Identifier: Apache-2.0 */
/* lane_page.c - the job's statistics region: its memory, its totals, and the records of comms and
 * lanes. */
#include "stats/lane_page.h"
#include "base/util.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "device/daemon.h"
#include "device/device.h"
#include "process/config.h"
#include "process/log.h"

/*
 * Theory of operation
 *
 * Each message costs a few relaxed stores and atomic additions to the region. Opening and closing
 * comms and lanes is under page_lock: it assigns records, writes their addresses under the record's
 * seqlock, and counts open lanes. If the region is full or missing, a record is private memory of
 * the process, so counting needs no condition.
 */

/* A 100 Gbit/s NIC has this many kernel lanes per HARP lane. */
#define PAGE_LANES_PER_FLOW 16u
#define PAGE_HIDDEN UINT32_MAX
#define PAGE_COMM_LANES_MAX 32u

static_assert(PLUGIN_DEVICES_MAX * 2 <= HARP_PAGE_RAILS_MAX, "a rail for each device and kind");
static_assert(sizeof(_Atomic(uint64_t)) == sizeof(uint64_t), "words of the region");
/* Messages are counted by the kinds of their lanes: HARP, kernel, mixed. */
static_assert(LANE_HARP == 1 && LANE_KERNEL == 2, "bits of kinds");
static_assert(HARP_COMM_messages_mixed == HARP_COMM_messages_harp + 2, "by kinds");
static_assert(HARP_JOB_messages_mixed == HARP_JOB_messages_harp + 2, "by kinds");

enum page_table { PAGE_COMMS, PAGE_LANES, PAGE_TABLES };

/* The records of a table. */
struct page_records {
	uint32_t lowest; /* all records below are in use */
	uint64_t open, hidden, serial;
};

struct comm_stats {
	struct harp_page_comm *record;
	struct harp_page_comm own; /* the record if the region has no space */
	uint32_t slot;
	uint64_t retransmits, srtt_ns; /* Writer: poller */
	struct lane_stats *lanes[PAGE_COMM_LANES_MAX];
};

static pthread_mutex_t page_lock = PTHREAD_MUTEX_INITIALIZER;
/* Under page_lock. The region lives as long as comms exist. */
static struct harp_page_job page_job;
static void *page_map; /* NULL: there is no region */
static size_t page_bytes;
static int page_fd = -1;
static struct page_records page_records[PAGE_TABLES];
static uint64_t page_publications;
static unsigned page_rail_down[PLUGIN_DEVICES_MAX]; /* number of comms that report it down */
static struct harp_page_rail page_no_rails[HARP_PAGE_RAILS_MAX]; /* without a region */
/* Writer: page_lock, release. Reader: any thread, acquire. */
static _Atomic(const struct harp_page_job *) page_live;

static const struct harp_page_job *page_get(void)
{
	return atomic_load_explicit(&page_live, memory_order_acquire);
}

/* ---- records; page_lock held ---------------------------------------------------------------- */

static void page_status(bool ended)
{
	struct harp_page_status status = {
		.published_ns = clock_now_ns(),
		.publications = ++page_publications,
		.flows_open = page_records[PAGE_LANES].open,
		.flows_hidden = page_records[PAGE_LANES].hidden,
		.ended = ended,
		.comms_open = page_records[PAGE_COMMS].open,
		.comms_hidden = page_records[PAGE_COMMS].hidden,
	};

	if (!page_map)
		return;
	harp_page_write_begin(page_job.status_sequence);
	memcpy(page_job.status, &status, sizeof(status));
	harp_page_write_end(page_job.status_sequence);
}

/* The lowest empty record; the caller fills it before it releases page_lock. */
static uint32_t page_take(enum page_table table, uint64_t *serial)
{
	uint32_t room = table == PAGE_COMMS ? page_job.comm_room : page_job.lane_room;
	struct page_records *records = &page_records[table];

	*serial = ++records->serial;
	while (page_map && records->lowest < room) {
		uint32_t slot = records->lowest++;

		if (!stats_get(table == PAGE_COMMS ? &page_job.comms[slot].value[HARP_COMM_state]
						   : &page_job.lanes[slot].value[HARP_LANE_state]))
			return slot;
	}
	records->hidden++;
	return PAGE_HIDDEN;
}

/* Clears the record except for its sequence number, the first field. */
static void page_give(enum page_table table, uint32_t slot, uint64_t *sequence, size_t bytes)
{
	struct page_records *records = &page_records[table];

	if (slot == PAGE_HIDDEN || !page_map) {
		records->hidden -= records->hidden > 0;
		return;
	}
	harp_page_write_begin(sequence);
	memset(sequence + 1, 0, bytes - sizeof(*sequence));
	harp_page_write_end(sequence);
	if (slot < records->lowest)
		records->lowest = slot;
}

/* ---- the region ----------------------------------------------------------------------------- */

static void page_identity(struct harp_page_identity *identity)
{
	const char *label = plugin_config()->label;
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	*identity = (struct harp_page_identity){
		.size = sizeof(*identity),
		.pid = (uint32_t)getpid(),
		.netns = plugin_netns(),
		.start_wall_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec,
	};
	snprintf(identity->label, sizeof(identity->label), "%s",
		 label[0] ? label : program_invocation_short_name);
	snprintf(identity->describe, sizeof(identity->describe), "NCCL plugin");
}

static int page_make(uint32_t lanes)
{
	struct harp_page_identity identity;
	int rc = harp_page_create_job_fd(lanes, &page_fd);

	if (rc)
		return rc;
	page_bytes = harp_page_job_bytes(lanes);
	page_map = mmap(NULL, page_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, page_fd, 0);
	if (page_map == MAP_FAILED)
		page_map = NULL;
	/* A forked child has no region. */
	if (!page_map || madvise(page_map, page_bytes, MADV_DONTFORK) < 0)
		return -errno;
	page_identity(&identity);
	return harp_page_job_begin(page_map, lanes, &identity, &page_job);
}

static void page_unmake(void)
{
	if (page_map)
		munmap(page_map, page_bytes);
	if (page_fd >= 0)
		close(page_fd);
	page_map = NULL;
	page_fd = -1;
	page_publications = 0;
	memset(page_records, 0, sizeof(page_records));
	memset(page_rail_down, 0, sizeof(page_rail_down));
}

void lane_page_open(void)
{
	uint32_t lanes = plugin_config()->page_flows * PAGE_LANES_PER_FLOW;
	int rc = 0;

	pthread_mutex_lock(&page_lock);
	if (!page_map) {
		rc = page_make(lanes < HARP_PAGE_FLOWS_MAX ? lanes : HARP_PAGE_FLOWS_MAX);
		if (rc)
			page_unmake();
		else
			atomic_store_explicit(&page_live, &page_job, memory_order_release);
	}
	pthread_mutex_unlock(&page_lock);
	if (rc)
		INFO("no statistics page: %s; `harpctl flows` won't show this process",
		     strerror(-rc));
}

void lane_page_close(void)
{
	pthread_mutex_lock(&page_lock);
	atomic_store_explicit(&page_live, (const struct harp_page_job *)NULL, memory_order_release);
	page_status(true); /* for readers that still map the memory */
	page_unmake();
	pthread_mutex_unlock(&page_lock);
}

void lane_page_fork_child(void)
{
	atomic_store_explicit(&page_live, (const struct harp_page_job *)NULL, memory_order_relaxed);
	page_map = NULL; /* the mapping is not inherited */
	if (page_fd >= 0)
		close(page_fd);
	page_fd = -1;
}

void lane_page_count(enum harp_job_counter counter, uint64_t n)
{
	const struct harp_page_job *job = page_get();

	if (job && n > 0)
		stats_sum(&job->counters[counter], n);
}

/* ---- NICs ----------------------------------------------------------------------------------- */

static void page_ifname(char ifname[16], int dev)
{
	const struct device *device = plugin_device(dev);

	memset(ifname, 0, 16);
	snprintf(ifname, 16, "%s", device ? device->ifname : "?");
}

/* The totals of a device's lanes of one kind. page_lock held. */
static struct harp_page_rail *page_rail(int dev, enum harp_page_kind kind)
{
	unsigned index = (unsigned)dev * 2 + (kind == HARP_PAGE_KIND_KERNEL);
	struct harp_page_rail *rail = page_map ? &page_job.rails[index] : &page_no_rails[index];

	if (!rail->value[HARP_RAIL_kind]) {
		page_ifname(rail->ifname, dev);
		stats_set(&rail->value[HARP_RAIL_down], page_rail_down[dev] > 0);
		stats_set(&rail->value[HARP_RAIL_kind], kind);
	}
	return rail;
}

/* One more comm (change 1), or one fewer (-1), reports the NIC down. True: the NIC's state
 * changes. */
static bool page_rail_report(int dev, int change)
{
	unsigned before, after;

	pthread_mutex_lock(&page_lock);
	before = page_rail_down[dev];
	after = before + (unsigned)change;
	page_rail_down[dev] = after;
	for (unsigned kind = 0; kind < 2 && !before != !after && page_map; kind++)
		stats_set(&page_job.rails[(unsigned)dev * 2 + kind].value[HARP_RAIL_down],
			  after > 0);
	pthread_mutex_unlock(&page_lock);
	return !before != !after;
}

void lane_page_rail(int dev, bool down)
{
	if (page_rail_report(dev, down ? 1 : -1))
		lane_page_count(down ? HARP_JOB_rails_down : HARP_JOB_rails_up, 1);
}

void lane_page_rail_left(int dev)
{
	(void)page_rail_report(dev, -1);
}

/* ---- comms ---------------------------------------------------------------------------------- */

struct comm_stats *comm_stats_new(uint64_t comm_id, enum harp_page_side side, int dev,
				  enum harp_page_fallback fallback,
				  const struct harp_endpoint *remote)
{
	struct comm_stats *stats = calloc(1, sizeof(*stats));
	struct harp_page_comm *record;
	uint64_t serial;

	if (!stats)
		return NULL;
	pthread_mutex_lock(&page_lock);
	stats->slot = page_take(PAGE_COMMS, &serial);
	stats->record = record =
		stats->slot == PAGE_HIDDEN ? &stats->own : &page_job.comms[stats->slot];
	harp_page_write_begin(&record->sequence);
	memcpy(record->remote_addr, &remote->addr, sizeof(record->remote_addr));
	record->remote_port = remote->port;
	record->scope_id = remote->scope_id;
	page_ifname(record->ifname, dev);
	record->value[HARP_COMM_state] = HARP_PAGE_COMM_OPEN;
	record->value[HARP_COMM_opened_ns] = record->value[HARP_COMM_updated_ns] = clock_now_ns();
	record->value[HARP_COMM_comm_id] = comm_id;
	record->value[HARP_COMM_side] = side;
	record->value[HARP_COMM_fallback] = fallback;
	record->value[HARP_COMM_serial] = serial;
	harp_page_write_end(&record->sequence);
	page_records[PAGE_COMMS].open++;
	page_status(false);
	pthread_mutex_unlock(&page_lock);
	lane_page_count(HARP_JOB_comms_opened, 1);
	return stats;
}

void comm_stats_done(struct comm_stats *stats, unsigned kinds, uint64_t bytes, uint64_t now_ns)
{
	uint64_t *value = stats->record->value;

	stats_add(&value[HARP_COMM_requests], 1);
	stats_add(&value[HARP_COMM_bytes], bytes);
	stats_set(&value[HARP_COMM_updated_ns], now_ns);
	if (!kinds)
		return;
	stats_add(&value[HARP_COMM_messages_harp + kinds - LANE_HARP], 1);
	lane_page_count((enum harp_job_counter)(HARP_JOB_messages_harp + kinds - LANE_HARP), 1);
}

void comm_stats_tcp(const struct comm_stats *stats, uint64_t *retransmits, uint64_t *srtt_ns)
{
	*retransmits = stats_get(&stats->retransmits);
	*srtt_ns = stats_get(&stats->srtt_ns);
}

void comm_stats_failed(struct comm_stats *stats)
{
	lane_page_count(HARP_JOB_comms_failed, 1);
	stats_set(&stats->record->value[HARP_COMM_state], HARP_PAGE_COMM_FAILED);
}

const struct harp_page_comm *comm_stats_record(const struct comm_stats *stats)
{
	return stats->record;
}

const struct lane_stats *comm_stats_lane(const struct comm_stats *stats, unsigned index)
{
	const struct lane_stats *lane = stats->lanes[index];

	return lane && lane->comm ? lane : NULL;
}

static bool lane_is_open(const struct lane_stats *stats)
{
	uint64_t state = stats_get(&stats->record->value[HARP_LANE_state]);

	return state == HARP_PAGE_LANE_OPEN || state == HARP_PAGE_LANE_STALLED;
}

/* page_lock held. */
static void lanes_open_add(struct lane_stats *stats, int change)
{
	stats_add(&stats->comm->record->value[HARP_COMM_lanes_open], (uint64_t)(int64_t)change);
	stats_sum(&stats->rail->value[HARP_RAIL_lanes_open], (uint64_t)(int64_t)change);
	page_records[PAGE_LANES].open += (uint64_t)(int64_t)change;
	page_status(false);
}

void comm_stats_free(struct comm_stats *stats)
{
	if (!stats)
		return;
	pthread_mutex_lock(&page_lock);
	for (unsigned i = 0; i < PAGE_COMM_LANES_MAX; i++) {
		struct lane_stats *lane = stats->lanes[i];

		if (lane && lane->comm) {
			if (lane_is_open(lane))
				lanes_open_add(lane, -1);
			page_give(PAGE_LANES, lane->slot, &lane->record->sequence,
				  sizeof(*lane->record));
		}
		free(lane);
	}
	page_give(PAGE_COMMS, stats->slot, &stats->record->sequence, sizeof(*stats->record));
	page_records[PAGE_COMMS].open--;
	page_status(false);
	pthread_mutex_unlock(&page_lock);
	free(stats);
}

/* ---- lanes ---------------------------------------------------------------------------------- */

struct lane_stats *lane_stats_new(struct comm_stats *comm, unsigned index)
{
	struct lane_stats *stats;

	pthread_mutex_lock(&page_lock);
	stats = comm->lanes[index];
	if (!stats)
		stats = comm->lanes[index] = calloc(1, sizeof(*stats));
	pthread_mutex_unlock(&page_lock);
	return stats;
}

/* Takes a record for the first lane of the index. page_lock held. */
static void lane_stats_take(struct lane_stats *stats, struct comm_stats *comm, unsigned index)
{
	uint64_t serial, *value;

	stats->comm = comm;
	stats->slot = page_take(PAGE_LANES, &serial);
	stats->record = stats->slot == PAGE_HIDDEN ? &stats->own : &page_job.lanes[stats->slot];
	value = stats->record->value;
	stats_set(&value[HARP_LANE_serial], serial);
	stats_set(&value[HARP_LANE_comm], comm->record->value[HARP_COMM_serial]);
	stats_set(&value[HARP_LANE_index], index);
}

/* Writes the new lane's addresses and properties. */
static void lane_stats_begin(struct lane_stats *stats, const struct lane *lane,
			     enum harp_page_kind kind, int dev, bool backup)
{
	struct harp_page_lane *record = stats->record;

	harp_page_write_begin(&record->sequence);
	memcpy(record->local_addr, &lane->local.addr, sizeof(record->local_addr));
	memcpy(record->remote_addr, &lane->remote.addr, sizeof(record->remote_addr));
	record->local_port = lane->local.port;
	record->remote_port = lane->remote.port;
	record->scope_id = lane->remote.scope_id;
	page_ifname(record->ifname, dev);
	stats_set(&record->value[HARP_LANE_state], HARP_PAGE_LANE_OPEN);
	stats_set(&record->value[HARP_LANE_opened_ns], clock_now_ns());
	stats_set(&record->value[HARP_LANE_kind], kind);
	stats_set(&record->value[HARP_LANE_encrypted], lane->beneath != NULL);
	stats_set(&record->value[HARP_LANE_backup], backup);
	stats_set(&record->value[HARP_LANE_tcp_ns], 0);
	stats_add(&record->value[HARP_LANE_lanes], 1);
	harp_page_write_end(&record->sequence);
}

void lane_stats_open(struct comm_stats *comm, unsigned index, const struct lane *lane,
		     enum harp_page_kind kind, int dev, bool backup)
{
	struct lane_stats *stats = comm->lanes[index];

	pthread_mutex_lock(&page_lock);
	if (!stats->comm) {
		lane_stats_take(stats, comm, index);
	} else if (lane_is_open(stats)) {
		lanes_open_add(stats, -1);
		stats_add(&stats->record->value[HARP_LANE_rehashes], 1);
		stats_sum(&stats->rail->value[HARP_RAIL_lanes_rehashed], 1);
	} else {
		stats_add(&comm->record->value[HARP_COMM_lanes_replaced], 1);
		lane_page_count(HARP_JOB_lanes_replaced, 1);
	}
	stats->rail = page_rail(dev, kind);
	stats->retransmits_before = stats_get(&stats->record->value[HARP_LANE_retransmits]);
	lane_stats_begin(stats, lane, kind, dev, backup);
	stats_sum(&stats->rail->value[HARP_RAIL_lanes_opened], 1);
	lanes_open_add(stats, 1);
	pthread_mutex_unlock(&page_lock);
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

/* page_lock held. */
static void lane_stats_end(struct lane_stats *stats, enum harp_page_lane_end end)
{
	uint64_t *value = stats->record->value;

	if (!lane_is_open(stats))
		return;
	lanes_open_add(stats, -1);
	stats_set(&value[HARP_LANE_state], HARP_PAGE_LANE_DEAD);
	lane_stats_idle(stats);
	if (end)
		stats_set(&value[HARP_LANE_end], end);
}

void lane_stats_died(struct lane_stats *stats, int error)
{
	enum harp_page_lane_end end = lane_end(error);

	lane_page_count((enum harp_job_counter)(HARP_JOB_lanes_died_reset + end -
						HARP_PAGE_LANE_END_reset),
			1);
	pthread_mutex_lock(&page_lock);
	lane_stats_end(stats, end);
	stats_add(&stats->comm->record->value[HARP_COMM_lanes_died], 1);
	stats_sum(&stats->rail->value[HARP_RAIL_lanes_died], 1);
	pthread_mutex_unlock(&page_lock);
}

void lane_stats_closed(struct lane_stats *stats)
{
	pthread_mutex_lock(&page_lock);
	lane_stats_end(stats, HARP_PAGE_LANE_END_none);
	pthread_mutex_unlock(&page_lock);
}

void lane_stats_stalled(struct lane_stats *stats, bool stalled)
{
	uint64_t *value = stats->record->value;
	uint64_t state = stalled ? HARP_PAGE_LANE_STALLED : HARP_PAGE_LANE_OPEN;

	if (stats_get(&value[HARP_LANE_state]) == state || !lane_is_open(stats))
		return;
	stats_set(&value[HARP_LANE_state], state);
	if (stalled) {
		stats_add(&value[HARP_LANE_stalls], 1);
		lane_page_count(HARP_JOB_lanes_stalled, 1);
	}
}

bool lane_stats_want_tcp(const struct lane_stats *stats, uint64_t now_ns)
{
	return page_get() &&
	       now_ns - stats_get(&stats->record->value[HARP_LANE_tcp_ns]) >= LANE_PAGE_TCP_NS;
}

void lane_stats_idle(struct lane_stats *stats)
{
	uint64_t *value = stats->record->value;

	if (stats_get(&value[HARP_LANE_in_flight_bytes]))
		stats_set(&value[HARP_LANE_in_flight_bytes], 0);
	if (stats_get(&value[HARP_LANE_unsent_bytes]))
		stats_set(&value[HARP_LANE_unsent_bytes], 0);
}

void lane_stats_tcp(struct lane_stats *stats, const struct lane_info *tcp, uint64_t now_ns)
{
	uint64_t *value = stats->record->value;
	uint64_t retransmits = stats->retransmits_before + tcp->retransmits;
	struct harp_page_histogram *srtt = &stats->rail->srtt;

	stats_set(&value[HARP_LANE_tcp_ns], now_ns);
	stats_set(&value[HARP_LANE_srtt_ns], tcp->srtt_ns);
	stats_set(&value[HARP_LANE_in_flight_bytes], tcp->in_flight_bytes);
	stats_set(&value[HARP_LANE_unsent_bytes], tcp->unsent_bytes);
	stats_sum(&stats->rail->value[HARP_RAIL_retransmits],
		  retransmits - stats_get(&value[HARP_LANE_retransmits]));
	stats_add(&stats->comm->retransmits,
		  retransmits - stats_get(&value[HARP_LANE_retransmits]));
	stats_set(&value[HARP_LANE_retransmits], retransmits);
	if (!tcp->srtt_ns)
		return;
	stats_set(&stats->comm->srtt_ns, tcp->srtt_ns);
	stats_sum(&srtt->bucket[harp_histogram_bucket(tcp->srtt_ns)], 1);
	stats_sum(&srtt->sum_ns, tcp->srtt_ns);
	stats_sum(&srtt->count, 1);
}
