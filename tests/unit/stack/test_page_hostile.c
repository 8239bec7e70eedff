/* SPDX-License-Identifier: Apache-2.0 */
/* test_page_hostile.c - a reader against pages that lie, other versions' pages, and what is no page. */
#include <fcntl.h>
#include <linux/memfd.h>

#include "page_rig.h"

#define FLOWS 4u

static struct page_rig page;
static struct harp_page_header *header;

static void refused(int error, const char *text)
{
	uint64_t values[4];
	char why[128] = "";

	CHECK_EQ(harp_page_check(page.fd, why, sizeof(why)), error);
	CHECK_STR(why, text);
	CHECK_EQ(harp_page_read(page.fd, HARP_PAGE_COUNTERS, 0, values, 8, 4), error);
}

static struct rig the_rig, *const rig = &the_rig;

static void open_both(void)
{
	rig_open(rig);
	page_rig_make(&page, FLOWS);
	page_rig_attach(&page, rig);
	header = (struct harp_page_header *)page.bytes;
}

static void close_both(void)
{
	CHECK_EQ(harp_stack_publish_to(rig->stack, NULL, 0, NULL), 0);
	page_rig_free(&page);
	rig_close(rig);
}

BEFORE_EACH(open_both())
AFTER_EACH(close_both())

TEST(invalid_parts_are_refused)
{
	const struct harp_page_place lies[] = {
		{ .offset = 1, .stride = 8, .count = 1 },             /* unaligned */
		{ .offset = 64, .stride = 8, .count = 1 },            /* within the header */
		{ .offset = 0xffffffc0u, .stride = 8, .count = 1 },   /* far away */
		{ .offset = 256, .stride = 8, .count = 0xffffffffu }, /* larger than the page */
		{ .offset = 256, .stride = 65536, .count = 65536 },   /* 2^32 bytes */
		{ .offset = 256,
		  .stride = 0x10000008u,
		  .count = 16 }, /* a multiple of 2^32 and some */
		{ .offset = 256, .stride = 0, .count = 1 },
		{ .offset = 256, .stride = 12, .count = 1 },
		{ .offset = (uint32_t)page.size / 64 * 64, .stride = 8, .count = 0 },
	};
	struct harp_page_place good = header->parts[HARP_PAGE_FLOWS];

	for (unsigned i = 0; i < sizeof(lies) / sizeof(*lies); i++) {
		header->parts[HARP_PAGE_FLOWS] = lies[i];
		refused(-EPROTO, "the page's header is invalid: part 4 exceeds the page");
	}
	header->parts[HARP_PAGE_FLOWS] = good;
	CHECK_EQ(harp_page_check(page.fd, NULL, 0), 0);
}

static void refused_header(void)
{
	char text[96];

	snprintf(text, sizeof(text), "the page's header is invalid: %u parts, %llu bytes of %zu",
		 header->part_count, (unsigned long long)header->page_bytes, page.size);
	refused(-EPROTO, text);
}

TEST(invalid_headers_are_refused)
{
	header->page_bytes += 1u << 20;
	refused_header();
	header->page_bytes -= 1u << 20;
	header->part_count = 0;
	refused_header();
	header->part_count = 0xffffffffu;
	refused_header();
	header->part_count = HARP_PAGE_PARTS;
	header->magic++;
	refused(-EPROTO, "not a statistics page: wrong magic");
	header->magic--;
	header->version = 1;
	refused(-EPROTONOSUPPORT, "version 1 of the page's format; this reader knows 2");
	header->version = HARP_PAGE_VERSION;
	CHECK_EQ(harp_page_check(page.fd, NULL, 0), 0);
}

/* The owner died while it wrote, or pretends to write all the time. */
TEST(a_record_that_never_settles_costs_itself_only)
{
	uint8_t *counters = page.bytes + header->parts[HARP_PAGE_COUNTERS].offset;
	uint8_t *flow = page.bytes + header->parts[HARP_PAGE_FLOWS].offset + 64;
	struct harp_page_flow flows[FLOWS];
	uint64_t value;

	rig_established(rig, NULL);
	page_rig_publish(rig);
	counters[0] |= 1;
	CHECK_EQ(harp_page_read(page.fd, HARP_PAGE_COUNTERS, 0, &value, 8, 1), -EBUSY);
	flow[0] |= 1;
	memset(flows, 0xee, sizeof(flows));
	CHECK_EQ(harp_page_read(page.fd, HARP_PAGE_FLOWS, 0, flows, sizeof(flows[0]), FLOWS),
		 FLOWS);
	for (unsigned i = 0; i < FLOWS; i++)
		CHECK_EQ(flows[i].state, 0);
	/* The next owner goes on from there. */
	page_rig_publish(rig);
	CHECK_EQ(harp_page_read(page.fd, HARP_PAGE_COUNTERS, 0, &value, 8, 1), 1);
	CHECK_EQ(page_rig_flow(&page, 0).state, HARP_TCP_ESTABLISHED);
}

/* All records are being written for ever: a reader's patience is for all of them together. */
TEST(a_page_of_unsettled_records_is_read_in_time)
{
	size_t size = harp_page_bytes(HARP_PAGE_FLOWS_MAX);
	struct harp_page_flow *flows = calloc(HARP_PAGE_FLOWS_MAX, sizeof(*flows));
	struct page_rig large;
	uint8_t *at;

	page_rig_make(&large, HARP_PAGE_FLOWS_MAX);
	memcpy(large.bytes, page.bytes, page.size);
	((struct harp_page_header *)large.bytes)->page_bytes = size;
	((struct harp_page_header *)large.bytes)->parts[HARP_PAGE_FLOWS].count =
		HARP_PAGE_FLOWS_MAX;
	at = large.bytes + header->parts[HARP_PAGE_FLOWS].offset + 64;
	for (uint32_t i = 0; i < HARP_PAGE_FLOWS_MAX; i++) {
		at[(size_t)i * 320] = 1;
		at[(size_t)i * 320 + 128] = 4;
	}
	CHECK(flows);
	CHECK_EQ(harp_page_read(large.fd, HARP_PAGE_FLOWS, 0, flows, sizeof(*flows),
				HARP_PAGE_FLOWS_MAX),
		 HARP_PAGE_FLOWS_MAX);
	for (uint32_t i = 0; i < HARP_PAGE_FLOWS_MAX; i++)
		CHECK(flows[i].state == 0 && flows[i].remote_port == 0);
	free(flows);
	page_rig_free(&large);
}

/* ---- a job's page ---------------------------------------------------------------------------- */

static void job_begin(struct page_rig *job_page, uint32_t lanes, struct harp_page_job *job)
{
	struct harp_page_identity identity = page_rig_identity();

	CHECK_EQ(harp_page_create_job_fd(lanes, &job_page->fd), 0);
	job_page->size = harp_page_job_bytes(lanes);
	job_page->bytes =
		mmap(NULL, job_page->size, PROT_READ | PROT_WRITE, MAP_SHARED, job_page->fd, 0);
	CHECK(job_page->bytes != MAP_FAILED);
	CHECK_EQ(harp_page_check(job_page->fd, NULL, 0), -ENODATA);
	CHECK_EQ(harp_page_job_begin(job_page->bytes, lanes, &identity, job), 0);
	CHECK_EQ(harp_page_check(job_page->fd, NULL, 0), 0);
}

static int job_read(const struct page_rig *job_page, enum harp_page_part part)
{
	static uint8_t items[HARP_PAGE_RAILS_MAX][2048];

	return harp_page_read(job_page->fd, part, 0, items, sizeof(items[0]), HARP_PAGE_RAILS_MAX);
}

TEST(a_job_s_page_is_checked)
{
	struct harp_page_identity identity = page_rig_identity();
	struct page_rig job_page;
	struct harp_page_job job;
	struct harp_page_header *lie;
	struct harp_page_lane lane;
	char why[128], text[128];

	job_begin(&job_page, FLOWS, &job);
	lie = (struct harp_page_header *)job_page.bytes;
	CHECK_EQ(job_read(&job_page, HARP_PAGE_IDENTITY), 1);
	CHECK_EQ(job_read(&job_page, HARP_PAGE_COUNTERS), 0);
	CHECK_EQ(job_read(&job_page, HARP_PAGE_FLOWS), 0);
	CHECK_EQ(job_read(&job_page, HARP_PAGE_JOB), HARP_JOB_COUNT);
	CHECK_EQ(job_read(&job_page, HARP_PAGE_RAILS), HARP_PAGE_RAILS_MAX);
	CHECK_EQ(job_read(&job_page, HARP_PAGE_COMMS), FLOWS);
	CHECK_EQ(job_read(&job_page, HARP_PAGE_LANES), FLOWS);
	for (unsigned part = HARP_PAGE_JOB; part < HARP_PAGE_PARTS; part++) {
		uint32_t count = lie->parts[part].count;

		lie->parts[part].count = 65537;
		snprintf(text, sizeof(text),
			 "the page's header is invalid: part %u exceeds the page", part);
		CHECK_EQ(harp_page_check(job_page.fd, why, sizeof(why)), -EPROTO);
		CHECK_STR(why, text);
		CHECK_EQ(job_read(&job_page, (enum harp_page_part)part), -EPROTO);
		lie->parts[part].count = count;
	}
	/* Records have locks of their own; one that never settles costs itself only. */
	job.lanes[1].sequence = 1;
	job.lanes[1].value[HARP_LANE_state] = HARP_PAGE_LANE_OPEN;
	job.lanes[2].value[HARP_LANE_state] = HARP_PAGE_LANE_OPEN;
	CHECK_EQ(harp_page_read(job_page.fd, HARP_PAGE_LANES, 1, &lane, sizeof(lane), 1), 1);
	CHECK_EQ(lane.value[HARP_LANE_state], 0);
	CHECK_EQ(harp_page_read(job_page.fd, HARP_PAGE_LANES, 2, &lane, sizeof(lane), 1), 1);
	CHECK_EQ(lane.value[HARP_LANE_state], HARP_PAGE_LANE_OPEN);
	job.comms[0].sequence = 3;
	job.comms[0].value[HARP_COMM_state] = HARP_PAGE_COMM_OPEN;
	CHECK_EQ(job_read(&job_page, HARP_PAGE_COMMS), FLOWS);
	page_rig_free(&job_page);
	/* And what no page can be. */
	CHECK_EQ(harp_page_create_job_fd(HARP_PAGE_FLOWS_MAX + 1, &job_page.fd), -EINVAL);
	CHECK_EQ(harp_page_job_begin(page.bytes + 8, 1, &identity, &job), -EINVAL);
	identity.size--;
	CHECK_EQ(harp_page_job_begin(page.bytes, 1, &identity, &job), -EINVAL);
	job_begin(&job_page, HARP_PAGE_FLOWS_MAX, &job); /* the largest there is has readers */
	page_rig_free(&job_page);
	job_begin(&job_page, 0, &job);
	CHECK_EQ(job_read(&job_page, HARP_PAGE_LANES), 0);
	page_rig_free(&job_page);
}

/* ---- other versions ------------------------------------------------------------------------- */

/* A newer owner has one part, some counters and longer items more. */
TEST(a_newer_page_is_read)
{
	uint32_t count = harp_stats_count();
	struct harp_page_place *status = &header->parts[HARP_PAGE_STATUS];
	struct harp_page_status item = { 0 };
	uint64_t values[256];

	header->part_count = HARP_PAGE_PARTS + 1;
	header->parts[HARP_PAGE_COUNTERS].count = count + 3;
	CHECK_EQ(harp_page_check(page.fd, NULL, 0), 0);
	CHECK_EQ(harp_page_read(page.fd, HARP_PAGE_COUNTERS, 0, values, 8, 256), count + 3);
	CHECK_EQ(harp_page_read(page.fd, HARP_PAGE_COUNTERS, count, values, 8, 256), 3);
	status->stride += 8;
	CHECK_EQ(harp_page_read(page.fd, HARP_PAGE_STATUS, 0, &item, sizeof(item), 1), 1);
	CHECK_EQ(item.published_ns, rig->now_ns);
	status->stride -= 8;
	header->parts[HARP_PAGE_COUNTERS].count = count;
	header->part_count = HARP_PAGE_PARTS;
}

/* An older one has fewer: what is missing reads as nothing. */
TEST(an_older_page_is_read)
{
	struct harp_page_place *status = &header->parts[HARP_PAGE_STATUS];
	struct harp_page_status item;
	struct harp_page_flow flow;
	uint64_t values[256];

	harp_stack_publish_note(rig->stack, "later than that version");
	page_rig_publish(rig);
	header->part_count = HARP_PAGE_FLOWS;
	header->parts[HARP_PAGE_FLOWS].offset = 3; /* not a part of it: bytes of something else */
	header->parts[HARP_PAGE_COUNTERS].count = 5;
	status->stride = 16;
	CHECK_EQ(harp_page_check(page.fd, NULL, 0), 0);
	CHECK_EQ(harp_page_read(page.fd, HARP_PAGE_FLOWS, 0, &flow, sizeof(flow), 1), 0);
	CHECK_EQ(harp_page_read(page.fd, HARP_PAGE_COUNTERS, 0, values, 8, 256), 5);
	memset(&item, 0xee, sizeof(item));
	CHECK_EQ(harp_page_read(page.fd, HARP_PAGE_STATUS, 0, &item, sizeof(item), 1), 1);
	CHECK_EQ(item.published_ns, rig->now_ns);
	CHECK_EQ(item.flows_open, 0);
	CHECK_STR(item.note, "");
}

/* ---- what is no page ------------------------------------------------------------------------ */

static int no_page_error(int fd)
{
	int rc = harp_page_check(fd, NULL, 0);

	close(fd);
	return rc;
}

static int memfd(off_t bytes, int seals)
{
	int fd = memfd_create(HARP_PAGE_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);

	CHECK(fd >= 0 && ftruncate(fd, bytes) == 0);
	if (seals)
		CHECK_EQ(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

TEST(other_files_are_no_page)
{
	const int all = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
	int pipes[2], fd;
	uint64_t value;

	CHECK_EQ(pipe(pipes), 0);
	close(pipes[1]);
	CHECK_EQ(no_page_error(pipes[0]), -EPERM);
	CHECK_EQ(no_page_error(open("/dev/zero", O_RDONLY | O_CLOEXEC)), -EPERM);
	CHECK_EQ(no_page_error(open("/", O_RDONLY | O_CLOEXEC)), -EPERM);
	CHECK_EQ(harp_page_check(-1, NULL, 0), -EPERM);
	CHECK_EQ(no_page_error(memfd(65536, 0)), -EPERM);
	CHECK_EQ(no_page_error(memfd(65536, F_SEAL_GROW | F_SEAL_SEAL)), -EPERM);
	CHECK_EQ(no_page_error(memfd(16, all)), -EMSGSIZE);
	CHECK_EQ(no_page_error(memfd((off_t)1 << 40, all)), -EFBIG);
	CHECK_EQ(no_page_error(memfd(65536, all)), -ENODATA);
	/* Cut off while it is read: a reader that trusts the table would die of it, had it mapped the page. */
	fd = memfd((off_t)page.size, 0);
	CHECK_EQ(pwrite(fd, page.bytes, page.size, 0), page.size);
	CHECK_EQ(harp_page_read(fd, HARP_PAGE_COUNTERS, 0, &value, 8, 1), 1);
	CHECK_EQ(ftruncate(fd, 4096), 0);
	CHECK_EQ(harp_page_read(fd, HARP_PAGE_COUNTERS, 0, &value, 8, 1), -EPROTO);
	close(fd);
}
