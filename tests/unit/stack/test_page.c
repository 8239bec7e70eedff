/* SPDX-License-Identifier: Apache-2.0 */
/* test_page.c - what a stack publishes, when, and that a reader never sees half of it. */
#include <pthread.h>
#include <stdatomic.h>

#include "base/histogram.h"
#include "page_rig.h"

static struct rig the_rig, *const rig = &the_rig;
static struct page_rig page;

static void page_open(uint32_t flows)
{
	page_rig_make(&page, flows);
	page_rig_attach(&page, rig);
}

static void close_both(void)
{
	if (page.bytes) {
		CHECK_EQ(harp_stack_publish_to(rig->stack, NULL, 0, NULL), 0);
		page_rig_free(&page);
	}
	rig_close(rig);
}

BEFORE_EACH(rig_open(rig))
AFTER_EACH(close_both())

TEST(a_new_page_has_no_owner)
{
	struct harp_page_status status;
	char why[96] = "";

	page_rig_make(&page, 4);
	CHECK_EQ(harp_page_check(page.fd, why, sizeof(why)), -ENODATA);
	CHECK_STR(why, "its owner has not published yet");
	CHECK_EQ(harp_page_read(page.fd, HARP_PAGE_STATUS, 0, &status, sizeof(status), 1),
		 -ENODATA);
	page_rig_free(&page);
	CHECK_EQ(harp_page_create_fd(HARP_PAGE_FLOWS_MAX + 1, &page.fd), -EINVAL);
	CHECK(harp_page_bytes(0) == harp_page_bytes(HARP_PAGE_FLOWS_DEFAULT));
	CHECK(harp_page_bytes(HARP_PAGE_FLOWS_MAX) <= HARP_PAGE_BYTES_MAX);
}

TEST(the_owner_is_published_at_once)
{
	struct harp_page_identity got, want = page_rig_identity();

	page_open(4);
	CHECK_EQ(harp_page_check(page.fd, NULL, 0), 0);
	CHECK_EQ(harp_page_read(page.fd, HARP_PAGE_IDENTITY, 0, &got, sizeof(got), 1), 1);
	CHECK_STR(got.library, harp_version());
	memcpy(want.library, got.library, sizeof(want.library));
	CHECK_MEM(&got, &want, sizeof(got));
	CHECK_EQ(harp_page_read(page.fd, HARP_PAGE_IDENTITY, 1, &got, sizeof(got), 1), 0);
}

TEST(an_invalid_page_is_refused)
{
	struct harp_page_identity identity = page_rig_identity();

	page_rig_make(&page, 1);
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

TEST(counters_are_the_stack_s_own)
{
	uint64_t published[256], own[256];

	page_open(4);
	rig_established(rig, NULL);
	rig_says(rig, rig_usual(rig, TCP_ACK, 100));
	rig->now_ns += HARP_PAGE_LATE_NS; /* the NIC's own are older than the others by so much */
	page_rig_publish(rig);
	CHECK_EQ(harp_page_read(page.fd, HARP_PAGE_COUNTERS, 0, published, 8, 256),
		 harp_stats_count());
	CHECK_EQ(harp_stack_stats(rig->stack, own, 256), harp_stats_count());
	CHECK_MEM(published, own, harp_stats_count() * sizeof(uint64_t));
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

/* What only the card knows may cost a system call: it is read ten times a second. */
TEST(nic_counters_are_read_ten_times_a_second)
{
	uint64_t before;

	page_open(4);
	rig_established(rig, NULL);
	rig->now_ns += HARP_PAGE_LATE_NS;
	page_rig_publish(rig);
	before = published_stat("nic_copied_bytes");
	CHECK(before > 0);
	CHECK_EQ(before, rig_stat(rig, "nic_copied_bytes"));
	rig_says(rig, rig_usual(rig, TCP_ACK, 100));
	page_rig_publish(rig);
	CHECK_EQ(published_stat("rx_packets"), rig_stat(rig, "rx_packets"));
	CHECK_EQ(published_stat("nic_copied_bytes"), before);
	CHECK(rig_stat(rig, "nic_copied_bytes") > before);
	rig->now_ns += HARP_PAGE_LATE_NS;
	page_rig_publish(rig);
	CHECK_EQ(published_stat("nic_copied_bytes"), rig_stat(rig, "nic_copied_bytes"));
}

TEST(counters_are_published_every_millisecond)
{
	uint64_t before;

	page_open(4);
	before = page_rig_status(&page).publications;
	for (unsigned i = 0; i < 1000; i++) {
		rig->now_ns += 10000;
		rig_poll(rig);
	}
	CHECK_EQ(page_rig_status(&page).publications - before, 10);
	CHECK_EQ(page_rig_status(&page).published_ns, rig->now_ns);
}

/* An engine sleeps until the next deadline: what happened last must not wait for what comes next. */
TEST(the_last_event_is_published_before_a_sleep)
{
	uint64_t value;

	page_open(8);
	rig_wait(rig, RIG_S);
	CHECK_EQ(harp_stack_next_deadline_ns(rig->stack), UINT64_MAX);
	rig_established(rig, NULL);
	rig_says(rig, rig_usual(rig, TCP_ACK, 0));
	CHECK(harp_stack_next_deadline_ns(rig->stack) <= rig->now_ns + HARP_PAGE_LATE_NS);
	rig_wait(rig,
		 2 * RIG_S); /* the SYN's timer, which is not needed any more, fires after 1 s */
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

/* ---- histograms ----------------------------------------------------------------------------- */

TEST(histogram_buckets_have_no_gaps)
{
	CHECK_EQ(histogram_bucket(0), 0);
	for (unsigned i = 0; i + 1 < HARP_HISTOGRAM_BUCKETS; i++) {
		uint64_t upper_ns = harp_histogram_upper_ns(i);

		CHECK_EQ(histogram_bucket(upper_ns), i);
		CHECK_EQ(histogram_bucket(upper_ns + 1), i + 1);
		/* Four to an octave: a bucket is at most a quarter wider than where it begins. */
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

	harp_stack_observe(rig->stack, HARP_HISTOGRAM_message_latency,
			   5); /* without a page: nothing */
	page_open(4);
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
	page_rig_publish(rig);

	h = page_rig_histogram(&page, HARP_HISTOGRAM_message_latency);
	CHECK_EQ(h.count, 2);
	CHECK_EQ(h.sum_ns, 10000);
	CHECK_EQ(h.bucket[histogram_bucket(1000)], 1);
	CHECK_EQ(h.bucket[histogram_bucket(9000)], 1);
	h = page_rig_histogram(&page, HARP_HISTOGRAM_tcp_rtt);
	CHECK_EQ(h.count, 2); /* of the SYN, at once, and of the data */
	CHECK_EQ(h.sum_ns, 1 + 3 * RIG_MS);
	h = page_rig_histogram(&page, HARP_HISTOGRAM_poll_gap);
	CHECK_EQ(h.sum_ns, 4 * RIG_MS);
	CHECK_EQ(h.bucket[histogram_bucket(3 * RIG_MS)], 1);
}

/* ---- flows ---------------------------------------------------------------------------------- */

TEST(a_connection_s_record)
{
	struct harp_addr peer = harp_addr_v4(10, 0, 0, 2);
	struct harp_page_flow flow;
	struct harp_tcp_info info;

	page_open(4);
	rig_established(rig, NULL);
	harp_conn_set_label(rig->conn, "a label of more than the sixty-three bytes that a record "
				       "has room for");
	rig_says(rig, rig_usual(rig, TCP_ACK, 100));
	CHECK_EQ(rig_write(rig, 500), 500);
	page_rig_publish(rig);
	flow = page_rig_flow(&page, 0);
	CHECK_EQ(harp_conn_info(rig->conn, &info, sizeof(info)), 0);
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
	page_rig_publish(rig);
	CHECK_EQ(page_rig_flow(&page, 0).state, 0);
	CHECK_EQ(page_rig_status(&page).flows_open, 0);
}

/* The slot is the same, the flow is another: a reader must be able to tell. */
TEST(a_reused_record_has_another_serial)
{
	uint64_t serial;

	page_open(4);
	rig_syn_sent(rig, NULL);
	page_rig_publish(rig);
	serial = page_rig_flow(&page, 0).serial;
	harp_conn_abort(rig->conn);
	rig_syn_sent(rig, NULL);
	page_rig_publish(rig);
	CHECK_EQ(page_rig_flow(&page, 0).state, HARP_TCP_SYN_SENT);
	CHECK_EQ(page_rig_flow(&page, 0).serial, serial + 1);
}

/* Of more connections than records the first have one, and the others are counted. */
TEST(more_connections_than_records)
{
	struct harp_endpoint remote = { .addr = harp_addr_v4(10, 0, 0, 2), .port = RIG_PEER_PORT };
	struct harp_conn *conns[6];
	struct harp_page_flow flows[8];

	page_open(2);
	for (unsigned i = 0; i < 6; i++)
		CHECK_EQ(harp_tcp_connect(rig->stack, NULL, &remote, NULL, &conns[i]), 0);
	for (unsigned i = 0; i < 5; i++)
		page_rig_publish(rig);
	CHECK_EQ(harp_page_read(page.fd, HARP_PAGE_FLOWS, 0, flows, sizeof(flows[0]), 8), 2);
	CHECK_EQ(flows[0].state, HARP_TCP_SYN_SENT);
	CHECK_EQ(flows[1].state, HARP_TCP_SYN_SENT);
	CHECK_EQ(page_rig_status(&page).flows_open, 6);
	CHECK_EQ(page_rig_status(&page).flows_hidden, 4);
	for (unsigned i = 0; i < 6; i++)
		harp_conn_abort(conns[i]);
	rig_poll(rig);
}

/* ---- the end, and a new beginning ----------------------------------------------------------- */

TEST(the_end_is_published)
{
	struct harp_page_histogram h;

	page_open(4);
	rig_established(rig, NULL);
	harp_stack_publish_note(rig->stack, "eth7 is down");
	page_rig_publish(rig);
	CHECK_STR(page_rig_status(&page).note, "eth7 is down");
	CHECK_EQ(page_rig_status(&page).ended, 0);
	harp_stack_observe(rig->stack, HARP_HISTOGRAM_message_latency, 77);
	CHECK_EQ(harp_stack_publish_to(rig->stack, NULL, 0, NULL), 0);
	CHECK_EQ(page_rig_status(&page).ended, 1);
	CHECK_EQ(page_rig_flow(&page, 0).state, 0);
	h = page_rig_histogram(&page, HARP_HISTOGRAM_message_latency);
	CHECK_EQ(h.sum_ns, 77);
	munmap(page.bytes, page.size); /* the stack must not touch it any more */
	page_rig_publish(rig);
	page.bytes = NULL;
	close(page.fd);
}

static int xstats_read(struct harp_page_xstat *items)
{
	return harp_page_read(page.fd, HARP_PAGE_XSTATS, 0, items, sizeof(*items),
			      HARP_PAGE_XSTATS_MAX);
}

/* What a card's driver counts: replaced whole, cut to the room that there is, and no next owner's. */
TEST(a_driver_s_counters)
{
	static struct harp_page_xstat many[HARP_PAGE_XSTATS_MAX + 100], seen[HARP_PAGE_XSTATS_MAX];
	uint8_t *lock;

	for (unsigned i = 0; i < sizeof(many) / sizeof(*many); i++) {
		many[i].value = UINT64_MAX - i;
		snprintf(many[i].name, sizeof(many[i].name), "counter_%u", i);
	}
	harp_stack_publish_xstats(rig->stack, many, 3, 1); /* without a page: nothing */
	page_open(4);
	CHECK_EQ(xstats_read(seen), HARP_PAGE_XSTATS_MAX);
	CHECK_STR(seen[0].name, "");
	harp_stack_publish_xstats(rig->stack, many, HARP_PAGE_XSTATS_MAX + 100, 1);
	CHECK_EQ(xstats_read(seen), HARP_PAGE_XSTATS_MAX);
	CHECK_STR(seen[HARP_PAGE_XSTATS_MAX - 1].name, "counter_511");
	page_rig_publish(rig);
	CHECK_EQ(page_rig_status(&page).ended, 0);
	harp_stack_publish_xstats(rig->stack, many + 7, 2, 1);
	CHECK_EQ(xstats_read(seen), HARP_PAGE_XSTATS_MAX);
	CHECK_STR(seen[1].name, "counter_8");
	CHECK_EQ(seen[1].value, UINT64_MAX - 8);
	CHECK_STR(seen[2].name, "");
	/* Its writer died in the middle: the rest of the page is as good as before. */
	lock = page.bytes + ((struct harp_page_header *)page.bytes)->parts[HARP_PAGE_XSTATS].offset;
	lock[0] |= 1;
	CHECK_EQ(xstats_read(seen), -EBUSY);
	CHECK_EQ(page_rig_status(&page).ended, 0);
	page_rig_attach(&page, rig);
	CHECK_EQ(xstats_read(seen), HARP_PAGE_XSTATS_MAX);
	CHECK_STR(seen[0].name, "");
}

TEST(a_stack_may_change_its_page)
{
	struct page_rig old, new;

	page_rig_make(&old, 4);
	page_rig_make(&new, 8);
	page_rig_attach(&old, rig);
	rig_established(rig, NULL);
	page_rig_publish(rig);
	CHECK_EQ(page_rig_flow(&old, 0).state, HARP_TCP_ESTABLISHED);
	page_rig_attach(&new, rig);
	CHECK_EQ(page_rig_status(&old).ended, 1);
	CHECK_EQ(page_rig_flow(&new, 0).state, HARP_TCP_ESTABLISHED);
	/* And back, onto what was left there. */
	old.bytes[harp_page_bytes(4) - 320 + 200] = 1;
	page_rig_attach(&old, rig);
	CHECK_EQ(page_rig_status(&old).ended, 0);
	CHECK_EQ(page_rig_flow(&old, 0).state, HARP_TCP_ESTABLISHED);
	for (unsigned i = 1; i < 4; i++)
		CHECK_EQ(page_rig_flow(&old, i).state, 0);
	CHECK_EQ(harp_stack_publish_to(rig->stack, NULL, 0, NULL), 0);
	page_rig_free(&old);
	page_rig_free(&new);
}

/* ---- a reader at the same time --------------------------------------------------------------- */

struct reader {
	const struct page_rig *page;
	atomic_bool stop;
	atomic_uint rounds;
	unsigned torn, errors;
	uint64_t seen_count;
};

/* Every poll counts one gap of exactly a period, so that one number implies the others; the label says when
 * the record was written. */
static void reader_look(struct reader *reader)
{
	struct harp_page_histogram h;
	struct harp_page_flow flow;
	uint64_t in_buckets = 0;
	char want[32];
	int rc = harp_page_read(reader->page->fd, HARP_PAGE_HISTOGRAMS, HARP_HISTOGRAM_poll_gap, &h,
				sizeof(h), 1);

	if (rc == -EBUSY)
		return; /* this owner writes a thousand times as often as it may */
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
		reader_look(reader);
	return NULL;
}

TEST(a_reader_never_sees_a_partial_record)
{
	struct reader reader = { .page = &page };
	pthread_t thread;
	char label[32];

	page_rig_make(&page, 4);
	rig_established(rig, NULL);
	snprintf(label, sizeof(label), "%" PRIu64, rig->now_ns);
	harp_conn_set_label(rig->conn, label);
	page_rig_attach(&page, rig);
	CHECK_EQ(pthread_create(&thread, NULL, reader_main, &reader), 0);
	while (atomic_load(&reader.rounds) < 50000) {
		snprintf(label, sizeof(label), "%" PRIu64,
			 (uint64_t)(rig->now_ns + HARP_PAGE_PERIOD_NS));
		harp_conn_set_label(rig->conn, label);
		page_rig_publish(rig);
	}
	atomic_store(&reader.stop, true);
	pthread_join(thread, NULL);
	CHECK_EQ(reader.torn, 0);
	CHECK_EQ(reader.errors, 0);
	CHECK(reader.seen_count > 0);
}
