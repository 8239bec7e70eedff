/* SPDX-License-Identifier: Apache-2.0 */
/* lane_page.c - the job's statistics page: its memory, counters, NICs, and which record is whose. */
#include "stats/lane_page_impl.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "poll/driver.h"
#include "plugin.h"

/*
 * Theory of operation
 *
 * Counters of the process and of its NICs are added to on the page itself, by any thread. Records of comms and
 * lanes are copies of rows (lane_rows.c); which record is whose is decided here, under page_lock, on
 * opening and closing only. Who finds no room works without a record and is counted as hidden.
 */

/* A NIC of 100 Gbit/s has so many kernel lanes where there is one of HARP's. */
#define PAGE_LANES_PER_FLOW 16u

static_assert(PLUGIN_DEVICES_MAX * 2 <= HARP_PAGE_RAILS_MAX, "a rail for each device and kind");
static_assert(sizeof(_Atomic(uint64_t)) == sizeof(uint64_t), "counters on the page");

/* The records of a part. */
struct page_records {
	uint32_t *free; /* a stack */
	uint32_t free_count;
	uint64_t open, hidden, serial;
};

static pthread_mutex_t page_lock = PTHREAD_MUTEX_INITIALIZER;
/* Under page_lock; while rows exist the page stays. */
static struct harp_page_job page_job;
static void *page_map; /* NULL: there is no page */
static size_t page_bytes;
static int page_fd = -1;
static struct page_records page_records[PAGE_TABLES];
static uint64_t page_publications;
static atomic_uint page_rail_down[PLUGIN_DEVICES_MAX]; /* comms by whose word it is */
/* Writer: page_lock, release. Reader: page_get(), acquire. */
static _Atomic(const struct harp_page_job *) page_live;

const struct harp_page_job *page_get(void)
{
	return atomic_load_explicit(&page_live, memory_order_acquire);
}

/* A number on the page that any thread may write. */
static void page_number_add(uint64_t *number, uint64_t n)
{
	atomic_fetch_add_explicit((_Atomic(uint64_t) *)number, n, memory_order_relaxed);
}

static void page_number_set(uint64_t *number, uint64_t n)
{
	atomic_store_explicit((_Atomic(uint64_t) *)number, n, memory_order_relaxed);
}

/* ---- records --------------------------------------------------------------------------------- */

static int page_records_open(enum page_table table, uint32_t count)
{
	struct page_records *records = &page_records[table];

	*records = (struct page_records){ .free = malloc(((size_t)count + 1) * sizeof(uint32_t)) };
	if (!records->free)
		return -ENOMEM;
	for (uint32_t i = count; i > 0; i--) /* the lowest is taken first */
		records->free[records->free_count++] = i - 1;
	return 0;
}

/* page_lock held. */
static void page_status(bool ended)
{
	struct harp_page_status status = {
		.published_ns = driver_clock_ns(),
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

uint32_t page_take(enum page_table table, uint64_t *serial)
{
	struct page_records *records = &page_records[table];
	uint32_t place = PAGE_NOWHERE;

	pthread_mutex_lock(&page_lock);
	*serial = ++records->serial;
	if (records->free_count > 0)
		place = records->free[--records->free_count];
	else
		records->hidden++;
	page_status(false);
	pthread_mutex_unlock(&page_lock);
	return place;
}

static void page_record_clear(enum page_table table, uint32_t place)
{
	uint64_t *record = table == PAGE_COMMS ? &page_job.comms[place].sequence
					       : &page_job.lanes[place].sequence;
	size_t bytes =
		table == PAGE_COMMS ? sizeof(struct harp_page_comm) : sizeof(struct harp_page_lane);

	harp_page_write_begin(record);
	memset(record + 1, 0, bytes - sizeof(*record));
	harp_page_write_end(record);
}

void page_give(enum page_table table, uint32_t place)
{
	struct page_records *records = &page_records[table];

	pthread_mutex_lock(&page_lock);
	if (page_map && place != PAGE_NOWHERE) {
		page_record_clear(table, place);
		records->free[records->free_count++] = place;
	} else if (records->hidden > 0) {
		records->hidden--;
	}
	page_status(false);
	pthread_mutex_unlock(&page_lock);
}

void page_open_add(enum page_table table, int change)
{
	pthread_mutex_lock(&page_lock);
	page_records[table].open += (uint64_t)(int64_t)change;
	page_status(false);
	pthread_mutex_unlock(&page_lock);
}

/* ---- the page -------------------------------------------------------------------------------- */

static void page_identity(struct harp_page_identity *identity)
{
	const char *label = plugin_config()->label;
	struct timespec now;
	struct stat st;

	clock_gettime(CLOCK_REALTIME, &now);
	*identity = (struct harp_page_identity){
		.size = sizeof(*identity),
		.pid = (uint32_t)getpid(),
		.netns = stat("/proc/self/ns/net", &st) < 0 ? 0 : st.st_ino,
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
	/* A forked child is another process: it has no page. */
	if (!page_map || madvise(page_map, page_bytes, MADV_DONTFORK) < 0)
		return -errno;
	page_identity(&identity);
	rc = harp_page_job_begin(page_map, lanes, &identity, &page_job);
	if (!rc)
		rc = page_records_open(PAGE_COMMS, page_job.comm_room);
	return rc ? rc : page_records_open(PAGE_LANES, page_job.lane_room);
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
	for (unsigned table = 0; table < PAGE_TABLES; table++) {
		free(page_records[table].free);
		page_records[table] = (struct page_records){ 0 };
	}
	for (unsigned dev = 0; dev < PLUGIN_DEVICES_MAX; dev++)
		atomic_store_explicit(&page_rail_down[dev], 0, memory_order_relaxed);
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
	page_status(true); /* for who holds the memory still */
	page_unmake();
	pthread_mutex_unlock(&page_lock);
}

void lane_page_fork_child(void)
{
	atomic_store_explicit(&page_live, (const struct harp_page_job *)NULL, memory_order_relaxed);
	page_map = NULL; /* it was not inherited */
	if (page_fd >= 0)
		close(page_fd);
	page_fd = -1;
}

void lane_page_count(enum harp_job_counter counter, uint64_t n)
{
	const struct harp_page_job *job = page_get();

	if (job && n > 0)
		page_number_add(&job->counters[counter], n);
}

/* ---- NICs ------------------------------------------------------------------------------------ */

void page_ifname(char ifname[16], int dev)
{
	const struct device *device = plugin_device(dev);

	memset(ifname, 0, 16);
	snprintf(ifname, 16, "%s", device ? device->ifname : "?");
}

unsigned page_rail(int dev, enum harp_page_kind kind)
{
	unsigned number = dev >= 0 && dev < (int)PLUGIN_DEVICES_MAX ? (unsigned)dev : 0;
	unsigned rail = number * 2 + (kind == HARP_PAGE_KIND_KERNEL);
	const struct harp_page_job *job = page_get();
	struct harp_page_rail *record;
	bool down;

	if (!job)
		return rail;
	record = &job->rails[rail];
	pthread_mutex_lock(&page_lock);
	if (!record->value[HARP_RAIL_kind]) {
		page_ifname(record->ifname, (int)number);
		down = atomic_load_explicit(&page_rail_down[number], memory_order_relaxed) > 0;
		page_number_set(&record->value[HARP_RAIL_down], down);
		page_number_set(&record->value[HARP_RAIL_kind], kind);
	}
	pthread_mutex_unlock(&page_lock);
	return rail;
}

void page_rail_add(unsigned rail, enum harp_rail_value value, uint64_t n)
{
	const struct harp_page_job *job = page_get();

	if (job && n != 0)
		page_number_add(&job->rails[rail].value[value], n);
}

void page_rail_srtt(unsigned rail, uint64_t srtt_ns)
{
	const struct harp_page_job *job = page_get();
	struct harp_page_histogram *histogram;

	if (!job || srtt_ns == 0)
		return;
	histogram = &job->rails[rail].srtt;
	page_number_add(&histogram->bucket[harp_histogram_bucket(srtt_ns)], 1);
	page_number_add(&histogram->sum_ns, srtt_ns);
	page_number_add(&histogram->count, 1);
}

/* One comm more says so, or one less (change 1, -1). True: the NIC is down by this, or is not any more. */
static bool page_rail_says(int dev, int change)
{
	const struct harp_page_job *job = page_get();
	unsigned before, comms;

	if (dev < 0 || dev >= (int)PLUGIN_DEVICES_MAX)
		return false;
	before = atomic_load_explicit(&page_rail_down[dev], memory_order_relaxed);
	if (!before && change < 0) /* said before the page was there */
		return false;
	comms = before + (unsigned)change;
	atomic_store_explicit(&page_rail_down[dev], comms, memory_order_relaxed);
	if (!before == !comms)
		return false;
	for (unsigned kind = 0; kind < 2 && job; kind++)
		page_number_set(&job->rails[(unsigned)dev * 2 + kind].value[HARP_RAIL_down],
				comms > 0);
	return true;
}

void lane_page_rail(int dev, bool down)
{
	if (page_rail_says(dev, down ? 1 : -1))
		lane_page_count(down ? HARP_JOB_rails_down : HARP_JOB_rails_up, 1);
}

void lane_page_rail_left(int dev)
{
	(void)page_rail_says(dev, -1);
}
