/* SPDX-License-Identifier: Apache-2.0 */
/* test_page.c - what a stack publishes and when; a reader never sees a partial record; it refuses
 * invalid pages and other files, and reads pages of other versions. */
#include <fcntl.h>
#include <linux/memfd.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/histogram.h"
#include "harp_page.h"
#include "rig.h"

#define FLOWS 4u

static struct rig the_rig, *const rig = &the_rig;

struct page_rig {
	int fd;
	uint8_t *bytes;
	size_t size;
};

static struct harp_page_identity page_rig_identity(void)
{
	return (struct harp_page_identity){
		.size = sizeof(struct harp_page_identity),
		.pid = 4242,
		.queue = 3,
		.instance = 1,
		.ifname = "eth7",
		.label = "train.py rank 3",
		.describe = "a test",
	};
}

static void page_rig_create(struct page_rig *page, uint32_t flows)
{
	CHECK_EQ(harp_page_create_fd(flows, &page->fd), 0);
	page->size = harp_page_bytes(flows);
	page->bytes = mmap(NULL, page->size, PROT_READ | PROT_WRITE, MAP_SHARED, page->fd, 0);
	CHECK(page->bytes != MAP_FAILED);
}

static void page_rig_attach(struct page_rig *page)
{
	struct harp_page_identity identity = page_rig_identity();

	CHECK_EQ(harp_stack_publish_to(rig->stack, page->bytes, page->size, &identity), 0);
}

static void page_rig_free(struct page_rig *page)
{
	munmap(page->bytes, page->size);
	close(page->fd);
	page->bytes = NULL;
}

/* Advances the clock to the next publication and polls. */
static void page_rig_publish(void)
{
	rig->now_ns += HARP_PAGE_PERIOD_NS;
	rig_poll(rig);
}

/* Reads one item of a page. */
#define PAGE_ITEM(type, part, page, index)                                                         \
	({                                                                                         \
		struct type item = { 0 };                                                          \
                                                                                                   \
		CHECK(harp_page_read((page)->fd, part, index, &item, sizeof(item), 1) == 1);       \
		item;                                                                              \
	})
#define page_rig_status(page) PAGE_ITEM(harp_page_status, HARP_PAGE_STATUS, page, 0)
#define page_rig_flow(page, index) PAGE_ITEM(harp_page_flow, HARP_PAGE_FLOWS, page, index)
#define page_rig_histogram(page, index)                                                            \
	PAGE_ITEM(harp_page_histogram, HARP_PAGE_HISTOGRAMS, page, index)

static struct page_rig page;
static struct harp_page_header *header; /* of `page` */

static void page_open(uint32_t flows)
{
	page_rig_create(&page, flows);
	page_rig_attach(&page);
	header = (struct harp_page_header *)page.bytes;
}

static void page_close(void)
{
	if (!page.bytes)
		return;
	CHECK_EQ(harp_stack_publish_to(rig->stack, NULL, 0, NULL), 0);
	page_rig_free(&page);
}

static void open_both(void)
{
	rig_open(rig);
	page_open(FLOWS);
}

static void close_both(void)
{
	page_close();
	rig_close(rig);
}

BEFORE_EACH(open_both())
AFTER_EACH(close_both())

TEST(a_new_page_has_no_owner)
{
	struct harp_page_status status;
	char why[96] = "";

	page_close();
	page_rig_create(&page, 4);
	CHECK_EQ(harp_page_check(page.fd, why, sizeof(why)), -ENODATA);
	CHECK_STR(why, "its owner has not published yet");
	CHECK_EQ(harp_page_read(page.fd, HARP_PAGE_STATUS, 0, &status, sizeof(status), 1),
		 -ENODATA);
	page_rig_free(&page);
	CHECK_EQ(harp_page_create_fd(HARP_PAGE_FLOWS_MAX + 1, &page.fd), -EINVAL);
	CHECK(harp_page_bytes(0) == harp_page_bytes(HARP_PAGE_FLOWS_DEFAULT));
	CHECK(harp_page_bytes(HARP_PAGE_FLOWS_MAX) <= HARP_PAGE_BYTES_MAX);
}

TEST(the_owner_is_published_immediately)
{
	struct harp_page_identity identity, want = page_rig_identity();

	CHECK_EQ(harp_page_check(page.fd, NULL, 0), 0);
	CHECK_EQ(harp_page_read(page.fd, HARP_PAGE_IDENTITY, 0, &identity, sizeof(identity), 1), 1);
	CHECK_STR(identity.library, harp_version());
	memcpy(want.library, identity.library, sizeof(want.library));
	CHECK_MEM(&identity, &want, sizeof(identity));
	CHECK_EQ(harp_page_read(page.fd, HARP_PAGE_IDENTITY, 1, &identity, sizeof(identity), 1), 0);
}

TEST(an_invalid_page_is_refused)
{
	struct harp_page_identity identity = page_rig_identity();

	page_close();
	page_rig_create(&page, 1);
	CHECK_EQ(harp_stack_publish_to(rig->stack, page.bytes + 8, page.size - 8, &identity),
		 -EINVAL);
	CHECK_EQ(harp_stack_publish_to(rig->stack, page.bytes, 4096, &identity), -EINVAL);
	CHECK_EQ(harp_stack_publish_to(rig->stack, page.bytes, page.size, NULL), -EINVAL);
	identity.size--;
	CHECK_EQ(harp_stack_publish_to(rig->stack, page.bytes, page.size, &identity), -EINVAL);
	rig_poll(rig);
	CHECK_EQ(harp_page_check(page.fd, NULL, 0), -ENODATA);
	page_rig_free(&page);
}

TEST(all_counters_are_published)
{
	uint64_t published[256], current[256];

	rig_established(rig, NULL);
	rig_says(rig, rig_usual(rig, TCP_ACK, 100));
	rig->now_ns += HARP_PAGE_LATE_NS; /* the interval of NIC counters */
	page_rig_publish();
	CHECK_EQ(harp_page_read(page.fd, HARP_PAGE_COUNTERS, 0, published, 8, 256),
		 harp_stats_count());
	CHECK_EQ(harp_stack_stats(rig->stack, current, 256), harp_stats_count());
	CHECK_MEM(published, current, harp_stats_count() * sizeof(uint64_t));
	CHECK(published[0] > 0);
}

static uint64_t published_stat(const char *name)
{
	uint64_t value = 0;
	unsigned i = 0;

	while (i < harp_stats_count() && strcmp(harp_stats_name(i), name) != 0)
		i++;
	CHECK_EQ(harp_page_read(page.fd, HARP_PAGE_COUNTERS, i, &value, 8, 1), 1);
	return value;
}

/* The NIC's counters may cost a system call, so the stack reads them ten times a second. */
TEST(nic_counters_are_read_ten_times_a_second)
{
	uint64_t before;

	rig_established(rig, NULL);
	rig->now_ns += HARP_PAGE_LATE_NS;
	page_rig_publish();
	before = published_stat("nic_copied_bytes");
	CHECK(before > 0);
	CHECK_EQ(before, rig_stat(rig, "nic_copied_bytes"));
	rig_says(rig, rig_usual(rig, TCP_ACK, 100));
	page_rig_publish();
	CHECK_EQ(published_stat("rx_packets"), rig_stat(rig, "rx_packets"));
	CHECK_EQ(published_stat("nic_copied_bytes"), before);
	CHECK(rig_stat(rig, "nic_copied_bytes") > before);
	rig->now_ns += HARP_PAGE_LATE_NS;
	page_rig_publish();
	CHECK_EQ(published_stat("nic_copied_bytes"), rig_stat(rig, "nic_copied_bytes"));
}

TEST(counters_are_published_every_millisecond)
{
	uint64_t before;

	before = page_rig_status(&page).publications;
	for (unsigned i = 0; i < 1000; i++) {
		rig->now_ns += 10000;
		rig_poll(rig);
	}
	CHECK_EQ(page_rig_status(&page).publications - before, 10);
	CHECK_EQ(page_rig_status(&page).published_ns, rig->now_ns);
}

/* An engine sleeps until the next deadline, which must include a pending publication. */
TEST(a_pending_publication_has_a_deadline)
{
	uint64_t value;

	rig_wait(rig, RIG_S);
	CHECK_EQ(harp_stack_next_deadline_ns(rig->stack), UINT64_MAX);
	rig_established(rig, NULL);
	rig_says(rig, rig_usual(rig, TCP_ACK, 0));
	CHECK(harp_stack_next_deadline_ns(rig->stack) <= rig->now_ns + HARP_PAGE_LATE_NS);
	/* The SYN's timer is obsolete, but fires after 1 s. */
	rig_wait(rig, 2 * RIG_S);
	CHECK_EQ(harp_page_read(page.fd, HARP_PAGE_COUNTERS, 1, &value, 8, 1), 1);
	CHECK_EQ(value, rig_stat(rig, "rx_packets"));
	CHECK_EQ(page_rig_flow(&page, 0).state, HARP_TCP_ESTABLISHED);
	CHECK_EQ(harp_stack_next_deadline_ns(rig->stack), UINT64_MAX);
	harp_stack_publish_note(rig->stack, "the interface is down");
	CHECK(harp_stack_next_deadline_ns(rig->stack) <= rig->now_ns + HARP_PAGE_LATE_NS);
	rig_wait(rig, RIG_S);
	CHECK_STR(page_rig_status(&page).note, "the interface is down");
	CHECK_EQ(harp_stack_next_deadline_ns(rig->stack), UINT64_MAX);
}

/* ---- histograms ------------------------------------------------------------------------------ */

TEST(histogram_buckets_have_no_gaps)
{
	CHECK_EQ(histogram_bucket(0), 0);
	for (unsigned i = 0; i + 1 < HARP_HISTOGRAM_BUCKETS; i++) {
		uint64_t upper_ns = harp_histogram_upper_ns(i);

		CHECK_EQ(histogram_bucket(upper_ns), i);
		CHECK_EQ(histogram_bucket(upper_ns + 1), i + 1);
		/* Four buckets per octave: the width is at most a quarter of the lower end. */
		if (i > 0)
			CHECK(upper_ns - harp_histogram_upper_ns(i - 1) <=
			      harp_histogram_upper_ns(i - 1) / 4);
	}
	CHECK_EQ(harp_histogram_upper_ns(0), HARP_HISTOGRAM_FIRST_NS);
	CHECK_EQ(histogram_bucket(UINT64_MAX), HARP_HISTOGRAM_BUCKETS - 1);
	CHECK(harp_histogram_upper_ns(HARP_HISTOGRAM_BUCKETS - 1) == UINT64_MAX);
	CHECK(harp_histogram_upper_ns(UINT32_MAX) == UINT64_MAX);
}

TEST(histograms_count_their_events)
{
	struct harp_page_histogram h;
	struct rig_say ack;

	page_close();
	/* Without a page, the event is not recorded. */
	harp_stack_observe(rig->stack, HARP_HISTOGRAM_message_latency, 5);
	page_open(FLOWS);
	harp_stack_observe(rig->stack, HARP_HISTOGRAM_message_latency, 1000);
	harp_stack_observe(rig->stack, HARP_HISTOGRAM_message_latency, 9000);
	harp_stack_observe(rig->stack, (enum harp_histogram)HARP_HISTOGRAM_COUNT, 1);
	rig_established(rig, NULL);
	CHECK_EQ(rig_write(rig, 100), 100);
	rig_expect(rig, TCP_PSH | TCP_ACK);
	rig->now_ns += 3 * RIG_MS;
	ack = rig_usual(rig, TCP_ACK, 0);
	ack.ack = rig->ack += 100;
	rig->tsval += 3;
	rig_says(rig, ack);
	page_rig_publish();

	h = page_rig_histogram(&page, HARP_HISTOGRAM_message_latency);
	CHECK_EQ(h.count, 2);
	CHECK_EQ(h.sum_ns, 10000);
	CHECK_EQ(h.bucket[histogram_bucket(1000)], 1);
	CHECK_EQ(h.bucket[histogram_bucket(9000)], 1);
	h = page_rig_histogram(&page, HARP_HISTOGRAM_tcp_rtt);
	CHECK_EQ(h.count, 2); /* of the SYN, without delay, and of the data */
	CHECK_EQ(h.sum_ns, 1 + 3 * RIG_MS);
	h = page_rig_histogram(&page, HARP_HISTOGRAM_poll_gap);
	CHECK_EQ(h.sum_ns, 4 * RIG_MS);
	CHECK_EQ(h.bucket[histogram_bucket(3 * RIG_MS)], 1);
}

/* ---- flows ----------------------------------------------------------------------------------- */

TEST(a_connection_has_a_record)
{
	struct harp_addr peer = harp_addr_v4(10, 0, 0, 2);
	struct harp_page_flow flow;
	struct harp_tcp_info info;

	rig_established(rig, NULL);
	harp_conn_set_label(rig->conn, "a label of more than the sixty-three bytes that a record "
				       "has room for");
	rig_says(rig, rig_usual(rig, TCP_ACK, 100));
	CHECK_EQ(rig_write(rig, 500), 500);
	page_rig_publish();
	flow = page_rig_flow(&page, 0);
	harp_conn_info(rig->conn, &info);
	CHECK_EQ(flow.state, HARP_TCP_ESTABLISHED);
	CHECK_MEM(flow.remote_addr, peer.bytes, 16);
	CHECK_EQ(flow.remote_port, RIG_PEER_PORT);
	CHECK_EQ(flow.local_port, rig->port);
	CHECK_STR(flow.label, "a label of more than the sixty-three bytes that a record has ro");
	CHECK_EQ(flow.updated_ns, rig->now_ns);
	CHECK_EQ(flow.cwnd_bytes, info.snd_cwnd_bytes);
	CHECK_EQ(flow.in_flight_bytes, 500);
	CHECK_EQ(flow.unread_bytes, 100);
	CHECK_EQ(flow.received_bytes, 100);
	CHECK_EQ(flow.srtt_ns, info.srtt_ns);
	CHECK_EQ(page_rig_flow(&page, 1).state, 0);
	CHECK_EQ(page_rig_status(&page).flows_open, 1);

	harp_conn_abort(rig->conn);
	rig->conn = NULL;
	page_rig_publish();
	CHECK_EQ(page_rig_flow(&page, 0).state, 0);
	CHECK_EQ(page_rig_status(&page).flows_open, 0);
}

/* A reader must notice that the record belongs to another flow. */
TEST(a_reused_record_has_a_new_serial)
{
	uint64_t serial;

	rig_syn_sent(rig, NULL);
	page_rig_publish();
	serial = page_rig_flow(&page, 0).serial;
	harp_conn_abort(rig->conn);
	rig_syn_sent(rig, NULL);
	page_rig_publish();
	CHECK_EQ(page_rig_flow(&page, 0).state, HARP_TCP_SYN_SENT);
	CHECK_EQ(page_rig_flow(&page, 0).serial, serial + 1);
}

TEST(connections_beyond_the_records_are_counted)
{
	struct harp_endpoint remote = { .addr = harp_addr_v4(10, 0, 0, 2), .port = RIG_PEER_PORT };
	struct harp_conn *conns[6];
	struct harp_page_flow flows[8];

	page_close();
	page_open(2);
	for (unsigned i = 0; i < 6; i++)
		CHECK_EQ(harp_tcp_connect(rig->stack, NULL, &remote, NULL, &conns[i]), 0);
	for (unsigned i = 0; i < 5; i++)
		page_rig_publish();
	CHECK_EQ(harp_page_read(page.fd, HARP_PAGE_FLOWS, 0, flows, sizeof(flows[0]), 8), 2);
	CHECK_EQ(flows[0].state, HARP_TCP_SYN_SENT);
	CHECK_EQ(flows[1].state, HARP_TCP_SYN_SENT);
	CHECK_EQ(page_rig_status(&page).flows_open, 6);
	CHECK_EQ(page_rig_status(&page).flows_hidden, 4);
	for (unsigned i = 0; i < 6; i++)
		harp_conn_abort(conns[i]);
	rig_poll(rig);
}

/* ---- end, driver counters, change of page ---------------------------------------------------- */

TEST(the_end_is_published)
{
	struct harp_page_histogram h;

	rig_established(rig, NULL);
	harp_stack_publish_note(rig->stack, "eth7 is down");
	page_rig_publish();
	CHECK_STR(page_rig_status(&page).note, "eth7 is down");
	CHECK_EQ(page_rig_status(&page).ended, 0);
	harp_stack_observe(rig->stack, HARP_HISTOGRAM_message_latency, 77);
	CHECK_EQ(harp_stack_publish_to(rig->stack, NULL, 0, NULL), 0);
	CHECK_EQ(page_rig_status(&page).ended, 1);
	CHECK_EQ(page_rig_flow(&page, 0).state, 0);
	h = page_rig_histogram(&page, HARP_HISTOGRAM_message_latency);
	CHECK_EQ(h.sum_ns, 77);
	munmap(page.bytes, page.size); /* the stack must not touch it any more */
	page_rig_publish();
	page.bytes = NULL;
	close(page.fd);
}

static int xstats_read(struct harp_page_xstat *items)
{
	return harp_page_read(page.fd, HARP_PAGE_XSTATS, 0, items, sizeof(*items),
			      HARP_PAGE_XSTATS_MAX);
}

/* A new list of driver counters replaces the old one, is truncated to the page's capacity, and is
 * cleared for the next owner. */
TEST(driver_counters_are_replaced_as_a_whole)
{
	static struct harp_page_xstat many[HARP_PAGE_XSTATS_MAX + 100], items[HARP_PAGE_XSTATS_MAX];
	uint8_t *lock;

	for (unsigned i = 0; i < sizeof(many) / sizeof(*many); i++) {
		many[i].value = UINT64_MAX - i;
		snprintf(many[i].name, sizeof(many[i].name), "counter_%u", i);
	}
	page_close();
	harp_stack_publish_xstats(rig->stack, many, 3, 1); /* not recorded without a page */
	page_open(FLOWS);
	CHECK_EQ(xstats_read(items), HARP_PAGE_XSTATS_MAX);
	CHECK_STR(items[0].name, "");
	harp_stack_publish_xstats(rig->stack, many, HARP_PAGE_XSTATS_MAX + 100, 1);
	CHECK_EQ(xstats_read(items), HARP_PAGE_XSTATS_MAX);
	CHECK_STR(items[HARP_PAGE_XSTATS_MAX - 1].name, "counter_511");
	page_rig_publish();
	CHECK_EQ(page_rig_status(&page).ended, 0);
	harp_stack_publish_xstats(rig->stack, many + 7, 2, 1);
	CHECK_EQ(xstats_read(items), HARP_PAGE_XSTATS_MAX);
	CHECK_STR(items[1].name, "counter_8");
	CHECK_EQ(items[1].value, UINT64_MAX - 8);
	CHECK_STR(items[2].name, "");
	/* If the writer dies during the write, the rest of the page stays valid. */
	lock = page.bytes + ((struct harp_page_header *)page.bytes)->parts[HARP_PAGE_XSTATS].offset;
	lock[0] |= 1;
	CHECK_EQ(xstats_read(items), -EBUSY);
	CHECK_EQ(page_rig_status(&page).ended, 0);
	page_rig_attach(&page);
	CHECK_EQ(xstats_read(items), HARP_PAGE_XSTATS_MAX);
	CHECK_STR(items[0].name, "");
}

TEST(a_stack_may_change_its_page)
{
	struct page_rig old, new;

	page_rig_create(&old, 4);
	page_rig_create(&new, 8);
	page_rig_attach(&old);
	rig_established(rig, NULL);
	page_rig_publish();
	CHECK_EQ(page_rig_flow(&old, 0).state, HARP_TCP_ESTABLISHED);
	page_rig_attach(&new);
	CHECK_EQ(page_rig_status(&old).ended, 1);
	CHECK_EQ(page_rig_flow(&new, 0).state, HARP_TCP_ESTABLISHED);
	/* The stack returns to the old page, whose content is stale. */
	old.bytes[harp_page_bytes(4) - 320 + 200] = 1;
	page_rig_attach(&old);
	CHECK_EQ(page_rig_status(&old).ended, 0);
	CHECK_EQ(page_rig_flow(&old, 0).state, HARP_TCP_ESTABLISHED);
	for (unsigned i = 1; i < 4; i++)
		CHECK_EQ(page_rig_flow(&old, i).state, 0);
	CHECK_EQ(harp_stack_publish_to(rig->stack, NULL, 0, NULL), 0);
	page_rig_free(&old);
	page_rig_free(&new);
}

/* ---- a concurrent reader --------------------------------------------------------------------- */

struct reader {
	const struct page_rig *page;
	atomic_bool stop;
	atomic_uint rounds;
	unsigned torn, errors;
	uint64_t seen_count;
};

/* Each poll counts one gap of exactly a period, so the count implies the other numbers. The label
 * is the time of the write. */
static void reader_check(struct reader *reader)
{
	struct harp_page_histogram h;
	struct harp_page_flow flow;
	uint64_t in_buckets = 0;
	char want[32];
	int rc = harp_page_read(reader->page->fd, HARP_PAGE_HISTOGRAMS, HARP_HISTOGRAM_poll_gap, &h,
				sizeof(h), 1);

	if (rc == -EBUSY)
		return; /* this owner publishes much more often than a real one */
	reader->errors += rc != 1 || harp_page_read(reader->page->fd, HARP_PAGE_FLOWS, 0, &flow,
						    sizeof(flow), 1) != 1;
	atomic_fetch_add(&reader->rounds, 1);
	for (unsigned i = 0; i < HARP_HISTOGRAM_BUCKETS; i++)
		in_buckets += h.bucket[i];
	reader->torn += in_buckets != h.count || h.sum_ns != h.count * HARP_PAGE_PERIOD_NS;
	reader->torn += h.count < reader->seen_count;
	reader->seen_count = h.count;
	if (flow.state != 0) {
		snprintf(want, sizeof(want), "%" PRIu64, flow.updated_ns);
		reader->torn += strcmp(flow.label, want) != 0;
	}
}

static void *reader_main(void *arg)
{
	struct reader *reader = arg;

	while (!atomic_load(&reader->stop))
		reader_check(reader);
	return NULL;
}

TEST(a_reader_never_sees_a_partial_record)
{
	struct reader reader = { .page = &page };
	pthread_t thread;
	char label[32];

	page_close();
	page_rig_create(&page, FLOWS);
	rig_established(rig, NULL);
	snprintf(label, sizeof(label), "%" PRIu64, rig->now_ns);
	harp_conn_set_label(rig->conn, label);
	page_rig_attach(&page);
	CHECK_EQ(pthread_create(&thread, NULL, reader_main, &reader), 0);
	while (atomic_load(&reader.rounds) < 50000) {
		snprintf(label, sizeof(label), "%" PRIu64,
			 (uint64_t)(rig->now_ns + HARP_PAGE_PERIOD_NS));
		harp_conn_set_label(rig->conn, label);
		page_rig_publish();
	}
	atomic_store(&reader.stop, true);
	pthread_join(thread, NULL);
	CHECK_EQ(reader.torn, 0);
	CHECK_EQ(reader.errors, 0);
	CHECK(reader.seen_count > 0);
}

/* ---- invalid pages --------------------------------------------------------------------------- */

static void check_refused(int error, const char *text)
{
	uint64_t values[4];
	char why[128] = "";

	CHECK_EQ(harp_page_check(page.fd, why, sizeof(why)), error);
	CHECK_STR(why, text);
	CHECK_EQ(harp_page_read(page.fd, HARP_PAGE_COUNTERS, 0, values, 8, 4), error);
}

TEST(invalid_parts_are_refused)
{
	const struct harp_page_place invalid[] = {
		{ .offset = 1, .stride = 8, .count = 1 },              /* unaligned */
		{ .offset = 64, .stride = 8, .count = 1 },             /* within the header */
		{ .offset = 0xffffffc0u, .stride = 8, .count = 1 },    /* far beyond the page */
		{ .offset = 256, .stride = 8, .count = 0xffffffffu },  /* larger than the page */
		{ .offset = 256, .stride = 65536, .count = 65536 },    /* 2^32 bytes */
		{ .offset = 256, .stride = 0x10000008u, .count = 16 }, /* 2^32 + 128 bytes */
		{ .offset = 256, .stride = 0, .count = 1 },
		{ .offset = 256, .stride = 12, .count = 1 },
		{ .offset = (uint32_t)page.size / 64 * 64, .stride = 8, .count = 0 },
	};
	struct harp_page_place good = header->parts[HARP_PAGE_FLOWS];

	for (unsigned i = 0; i < sizeof(invalid) / sizeof(*invalid); i++) {
		header->parts[HARP_PAGE_FLOWS] = invalid[i];
		check_refused(-EPROTO, "the page's header is invalid: part 4 exceeds the page");
	}
	header->parts[HARP_PAGE_FLOWS] = good;
	CHECK_EQ(harp_page_check(page.fd, NULL, 0), 0);
}

static void check_header_refused(void)
{
	char text[96];

	snprintf(text, sizeof(text), "the page's header is invalid: %u parts, %llu bytes of %zu",
		 header->part_count, (unsigned long long)header->page_bytes, page.size);
	check_refused(-EPROTO, text);
}

TEST(invalid_headers_are_refused)
{
	header->page_bytes += 1u << 20;
	check_header_refused();
	header->page_bytes -= 1u << 20;
	header->part_count = 0;
	check_header_refused();
	header->part_count = 0xffffffffu;
	check_header_refused();
	header->part_count = HARP_PAGE_PARTS;
	header->magic++;
	check_refused(-EPROTO, "not a statistics page: wrong magic");
	header->magic--;
	header->version = 1;
	check_refused(-EPROTONOSUPPORT, "version 1 of the page's format; this reader knows 2");
	header->version = HARP_PAGE_VERSION;
	CHECK_EQ(harp_page_check(page.fd, NULL, 0), 0);
}

/* The owner died during a write, or pretends to write permanently. */
TEST(a_record_in_a_permanent_write_is_skipped)
{
	uint8_t *counters = page.bytes + header->parts[HARP_PAGE_COUNTERS].offset;
	uint8_t *flow = page.bytes + header->parts[HARP_PAGE_FLOWS].offset + 64;
	struct harp_page_flow flows[FLOWS];
	uint64_t value;

	rig_established(rig, NULL);
	page_rig_publish();
	counters[0] |= 1;
	CHECK_EQ(harp_page_read(page.fd, HARP_PAGE_COUNTERS, 0, &value, 8, 1), -EBUSY);
	flow[0] |= 1;
	memset(flows, 0xee, sizeof(flows));
	CHECK_EQ(harp_page_read(page.fd, HARP_PAGE_FLOWS, 0, flows, sizeof(flows[0]), FLOWS),
		 FLOWS);
	for (unsigned i = 0; i < FLOWS; i++)
		CHECK_EQ(flows[i].state, 0);
	/* The next publication repairs it. */
	page_rig_publish();
	CHECK_EQ(harp_page_read(page.fd, HARP_PAGE_COUNTERS, 0, &value, 8, 1), 1);
	CHECK_EQ(page_rig_flow(&page, 0).state, HARP_TCP_ESTABLISHED);
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
	struct harp_page_header *job_header;
	struct harp_page_lane lane;
	char why[128], text[128];

	job_begin(&job_page, FLOWS, &job);
	job_header = (struct harp_page_header *)job_page.bytes;
	CHECK_EQ(job_read(&job_page, HARP_PAGE_IDENTITY), 1);
	CHECK_EQ(job_read(&job_page, HARP_PAGE_COUNTERS), 0);
	CHECK_EQ(job_read(&job_page, HARP_PAGE_FLOWS), 0);
	CHECK_EQ(job_read(&job_page, HARP_PAGE_JOB), HARP_JOB_COUNT);
	CHECK_EQ(job_read(&job_page, HARP_PAGE_RAILS), HARP_PAGE_RAILS_MAX);
	CHECK_EQ(job_read(&job_page, HARP_PAGE_COMMS), FLOWS);
	CHECK_EQ(job_read(&job_page, HARP_PAGE_LANES), FLOWS);
	for (unsigned part = HARP_PAGE_JOB; part < HARP_PAGE_PARTS; part++) {
		uint32_t count = job_header->parts[part].count;

		job_header->parts[part].count = 65537;
		snprintf(text, sizeof(text),
			 "the page's header is invalid: part %u exceeds the page", part);
		CHECK_EQ(harp_page_check(job_page.fd, why, sizeof(why)), -EPROTO);
		CHECK_STR(why, text);
		CHECK_EQ(job_read(&job_page, (enum harp_page_part)part), -EPROTO);
		job_header->parts[part].count = count;
	}
	/* Each record has a sequence lock; one that stays locked does not affect the others. */
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
	/* Invalid sizes. */
	CHECK_EQ(harp_page_create_job_fd(HARP_PAGE_FLOWS_MAX + 1, &job_page.fd), -EINVAL);
	CHECK_EQ(harp_page_job_begin(page.bytes + 8, 1, &identity, &job), -EINVAL);
	identity.size--;
	CHECK_EQ(harp_page_job_begin(page.bytes, 1, &identity, &job), -EINVAL);
	job_begin(&job_page, HARP_PAGE_FLOWS_MAX, &job); /* readers accept the largest page */
	page_rig_free(&job_page);
	job_begin(&job_page, 0, &job);
	CHECK_EQ(job_read(&job_page, HARP_PAGE_LANES), 0);
	page_rig_free(&job_page);
}

/* ---- other versions -------------------------------------------------------------------------- */

/* A newer page has one more part, more counters and longer items. */
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

/* An older page has fewer fields; the reader sets missing ones to zero. */
TEST(an_older_page_is_read)
{
	struct harp_page_place *status = &header->parts[HARP_PAGE_STATUS];
	struct harp_page_status item;
	struct harp_page_flow flow;
	uint64_t values[256];

	harp_stack_publish_note(rig->stack, "not in that version");
	page_rig_publish();
	header->part_count = HARP_PAGE_FLOWS;
	header->parts[HARP_PAGE_FLOWS].offset = 3; /* not a part of that version */
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

/* ---- other files ----------------------------------------------------------------------------- */

static int check_error(int fd)
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

TEST(other_files_are_refused)
{
	const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
	int pipes[2], fd;
	uint64_t value;

	CHECK_EQ(pipe(pipes), 0);
	close(pipes[1]);
	CHECK_EQ(check_error(pipes[0]), -EPERM);
	CHECK_EQ(check_error(open("/dev/zero", O_RDONLY | O_CLOEXEC)), -EPERM);
	CHECK_EQ(check_error(open("/", O_RDONLY | O_CLOEXEC)), -EPERM);
	CHECK_EQ(harp_page_check(-1, NULL, 0), -EPERM);
	CHECK_EQ(check_error(memfd(65536, 0)), -EPERM);
	CHECK_EQ(check_error(memfd(65536, F_SEAL_GROW | F_SEAL_SEAL)), -EPERM);
	CHECK_EQ(check_error(memfd(16, seals)), -EMSGSIZE);
	CHECK_EQ(check_error(memfd((off_t)1 << 40, seals)), -EFBIG);
	CHECK_EQ(check_error(memfd(65536, seals)), -ENODATA);
	/* The file is truncated while it is read. A reader that mapped it would get SIGBUS. */
	fd = memfd((off_t)page.size, 0);
	CHECK_EQ(pwrite(fd, page.bytes, page.size, 0), page.size);
	CHECK_EQ(harp_page_read(fd, HARP_PAGE_COUNTERS, 0, &value, 8, 1), 1);
	CHECK_EQ(ftruncate(fd, 4096), 0);
	CHECK_EQ(harp_page_read(fd, HARP_PAGE_COUNTERS, 0, &value, 8, 1), -EPROTO);
	close(fd);
}
