/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tcp_set_options.c - the options of an open connection: read, changed, refused.
 *
 * harp_conn_options() reports what is in force, harp_conn_set_options() changes it, all or nothing.
 */
#include "tcp_sack_rig.h"

/* Sets the connection's options and reads them back. */
static void set(const struct harp_tcp_options *opt)
{
	CHECK_EQ(harp_conn_set_options(rig.conn, opt), 0);
}

static bool same_options(const struct harp_tcp_options *a, const struct harp_tcp_options *b)
{
	return memcmp(a, b, sizeof(*a)) == 0;
}

/* ---- Reading ---- */

TEST(defaults_are_reported)
{
	struct harp_tcp_options opt;

	rig_begin(&rig, NULL);
	opt = rig_options(&rig);
	CHECK_EQ(opt.size, sizeof(opt));
	CHECK_EQ(opt.rx_frames, rig.conn->frames.rx_budget);
	CHECK_EQ(opt.tx_frames, rig.conn->frames.tx_budget);
	CHECK_EQ(opt.backlog, 0);
	CHECK_EQ(opt.connect_timeout_ns, 10 * RIG_S);
	CHECK_EQ(opt.user_timeout_ns, 120 * RIG_S);
	CHECK_EQ(opt.initial_rto_ns, RIG_S);
	CHECK_EQ(opt.keepalive_idle_ns, 0);
	CHECK_EQ(opt.keepalive_interval_ns, 0);
	CHECK_EQ(opt.keepalive_count, 8);
	CHECK_EQ(opt.unsent_bytes_max, 0);
	CHECK_EQ(opt.congestion, HARP_CONGESTION_CUBIC);
	CHECK_EQ(opt.mss_bytes, 0);
	CHECK_EQ(opt.options_off, 0);
	CHECK_EQ(opt.delayed_ack_ns, 0);
	CHECK(!opt.user);
}

static struct harp_tcp_options full_options(void)
{
	struct harp_tcp_options opt;

	memset(&opt, 0, sizeof(opt)); /* padding, too: compared as bytes */
	opt.size = sizeof(opt);
	opt.rx_frames = 20;
	opt.tx_frames = 24;
	opt.connect_timeout_ns = 3 * RIG_S;
	opt.user_timeout_ns = 7 * RIG_S;
	opt.keepalive_idle_ns = 5 * RIG_S;
	opt.keepalive_interval_ns = 2 * RIG_S;
	opt.keepalive_count = 4;
	opt.dscp = 46;
	opt.user = &rig;
	opt.unsent_bytes_max = 30000;
	opt.congestion = HARP_CONGESTION_FIXED;
	opt.fixed_window_bytes = 50000;
	opt.ecn = HARP_ECN_OFF;
	opt.mss_bytes = 1000;
	opt.options_off = HARP_TCPI_WSCALE;
	opt.delayed_ack_ns = RIG_MS;
	opt.initial_rto_ns = 300 * RIG_MS;
	return opt;
}

TEST(every_option_is_read_back)
{
	struct harp_tcp_options opt = full_options(), got;

	rig_begin(&rig, &opt);
	got = rig_options(&rig);
	CHECK(same_options(&got, &opt));
	set(&got);
	got = rig_options(&rig);
	CHECK(same_options(&got, &opt));
}

TEST(an_accepted_connection_inherits_and_changes)
{
	struct harp_tcp_options opt = full_options(), got;

	rig_open(&rig);
	rig_listen_options(&rig, &opt);
	rig_accept(&rig);
	rig_events(&rig);
	got = rig_options(&rig);
	CHECK(same_options(&got, &opt));
	got.rx_frames = 40;
	got.tx_frames = 44;
	got.user_timeout_ns = RIG_S;
	got.mss_bytes = 500;
	got.congestion = HARP_CONGESTION_NEWRENO;
	got.fixed_window_bytes = 0;
	set(&got);
	opt = rig_options(&rig);
	CHECK(same_options(&got, &opt));
	CHECK_EQ(rig_write(&rig, 600), 600);
	CHECK_EQ(rig_expect(&rig, TCP_ACK)->len, 488);
	CHECK_EQ(rig_expect(&rig, TCP_ACK | TCP_PSH)->len, 112);
	rig_wait(&rig, 2 * RIG_S);
	CHECK_EQ(harp_conn_error(rig.conn), -ETIMEDOUT);
}

/* ---- Options that stay ---- */

TEST(the_same_options_restart_nothing)
{
	struct harp_tcp_options opt = { .size = sizeof(opt), .keepalive_idle_ns = 5 * RIG_S };
	struct cc before;

	rig_begin(&rig, &opt);
	CHECK_EQ(rig_write(&rig, 3 * 1448), 3 * 1448);
	for (unsigned i = 0; i < 3; i++)
		rig.ack = rig_expect(&rig, i == 2 ? TCP_ACK | TCP_PSH : TCP_ACK)->seq + 1448;
	rig_says(&rig, rig_usual(&rig, TCP_ACK, 0));
	before = rig.conn->cc;
	rig_wait(&rig, 4 * RIG_S);
	opt = rig_options(&rig);
	opt.dscp = 1;
	set(&opt);
	CHECK(memcmp(&before, &rig.conn->cc, sizeof(before)) == 0);
	rig_silent(&rig);
	rig_wait(&rig, RIG_S + RIG_MS);
	CHECK_EQ(rig_expect(&rig, TCP_ACK)->seq, rig.ack - 1); /* the probe, at its time */
}

/* An application that was compiled with a smaller struct changes only the fields it has. */
TEST(a_smaller_struct_leaves_the_rest)
{
	struct harp_tcp_options opt = full_options(), got;
	const size_t size = offsetof(struct harp_tcp_options, keepalive_count);

	rig_begin(&rig, &opt);
	memset(&got, 0xee, sizeof(got));
	got.size = (uint32_t)size;
	CHECK_EQ(harp_conn_options(rig.conn, &got), 0);
	CHECK_EQ(got.size, size);
	CHECK_EQ(got.user_timeout_ns, 7 * RIG_S);
	for (size_t i = size; i < sizeof(got); i++)
		CHECK_EQ(((const uint8_t *)&got)[i], 0xee);
	got.user_timeout_ns = RIG_S;
	set(&got);
	opt.user_timeout_ns = RIG_S;
	got = rig_options(&rig);
	CHECK(same_options(&got, &opt));
}

/* ---- Timers ---- */

/* Data has been retransmitted for two seconds. */
static void begin_unanswered(void)
{
	struct harp_tcp_options opt = { .size = sizeof(opt), .user_timeout_ns = 4 * RIG_S };

	rig_begin(&rig, &opt);
	CHECK_EQ(rig_write(&rig, 100), 100);
	rig_wait(&rig, 2 * RIG_S);
	CHECK(rig_pending(&rig) > 3);
	CHECK_EQ(rig.conn->state, HARP_TCP_ESTABLISHED);
}

TEST(a_shorter_user_timeout_ends_the_wait)
{
	begin_unanswered();
	CHECK_EQ(RIG_SET(&rig, user_timeout_ns, 3 * RIG_S), 0);
	rig_wait(&rig, RIG_S - 10 * RIG_MS);
	CHECK_EQ(rig.conn->state, HARP_TCP_ESTABLISHED);
	rig_wait(&rig, 20 * RIG_MS);
	CHECK_EQ(harp_conn_error(rig.conn), -ETIMEDOUT);
	rig_close(&rig);
	/* One that has already passed. */
	begin_unanswered();
	CHECK_EQ(RIG_SET(&rig, user_timeout_ns, 1), 0);
	CHECK_EQ(rig.conn->state, HARP_TCP_ESTABLISHED);
	rig_wait(&rig, RIG_MS);
	CHECK_EQ(harp_conn_error(rig.conn), -ETIMEDOUT);
	rig_close(&rig);
}

TEST(a_longer_user_timeout_extends_the_wait)
{
	begin_unanswered();
	CHECK_EQ(RIG_SET(&rig, user_timeout_ns, 20 * RIG_S), 0);
	rig_wait(&rig, 17 * RIG_S);
	CHECK_EQ(rig.conn->state, HARP_TCP_ESTABLISHED);
	rig_wait(&rig, 2 * RIG_S);
	CHECK_EQ(harp_conn_error(rig.conn), -ETIMEDOUT);
	rig_close(&rig);
	/* As good as never. */
	begin_unanswered();
	CHECK_EQ(RIG_SET(&rig, user_timeout_ns, UINT64_MAX), 0);
	rig_wait(&rig, 1000 * RIG_S);
	CHECK_EQ(rig.conn->state, HARP_TCP_ESTABLISHED);
	rig_close(&rig);
}

/* An idle connection has no data to wait for. */
TEST(a_user_timeout_leaves_an_idle_connection)
{
	rig_begin(&rig, NULL);
	CHECK_EQ(RIG_SET(&rig, user_timeout_ns, RIG_MS), 0);
	rig_wait(&rig, 100 * RIG_S);
	CHECK_EQ(rig.conn->state, HARP_TCP_ESTABLISHED);
	rig_silent(&rig);
}

TEST(a_connect_timeout_changes_until_established)
{
	rig_open(&rig);
	rig_syn_sent(&rig, NULL);
	rig_wait(&rig, RIG_S);
	CHECK_EQ(RIG_SET(&rig, connect_timeout_ns, RIG_S), 0);
	rig_wait(&rig, RIG_S - RIG_MS);
	CHECK_EQ(rig.conn->state, HARP_TCP_SYN_SENT);
	rig_wait(&rig, 2 * RIG_MS);
	CHECK_EQ(harp_conn_error(rig.conn), -ETIMEDOUT);
	rig_close(&rig);
	rig_begin(&rig, NULL);
	CHECK_EQ(RIG_SET(&rig, connect_timeout_ns, RIG_S), -EISCONN);
}

TEST(the_dscp_changes)
{
	rig_begin(&rig, NULL);
	CHECK_EQ(rig_write(&rig, 10), 10);
	CHECK_EQ(rig_expect(&rig, TCP_ACK | TCP_PSH)->tos, 0);
	CHECK_EQ(RIG_SET(&rig, dscp, 46), 0);
	CHECK_EQ(rig_write(&rig, 10), 10);
	CHECK_EQ(rig_expect(&rig, TCP_ACK | TCP_PSH)->tos, 46 << 2);
}

TEST(the_initial_rto_changes_until_established)
{
	rig_open(&rig);
	rig_syn_sent(&rig, NULL);
	CHECK_EQ(RIG_SET(&rig, initial_rto_ns, 100 * RIG_MS), 0);
	rig_wait(&rig, RIG_S + RIG_MS); /* the first SYN was sent with the old one */
	rig_expect(&rig, TCP_SYN);
	rig_silent(&rig);
	rig_wait(&rig, 200 * RIG_MS); /* backed off */
	rig_expect(&rig, TCP_SYN);
	rig_close(&rig);
	rig_begin(&rig, NULL);
	CHECK_EQ(RIG_SET(&rig, initial_rto_ns, 100 * RIG_MS), -EISCONN);
}

/* ---- Refused ---- */

static unsigned complaints;

static void count_complaint(void *ctx, enum harp_log_level level, const char *message)
{
	CHECK_EQ(level, HARP_LOG_ERROR);
	CHECK(strncmp(message, "harp_tcp_options: ", 18) == 0);
	complaints++;
}

/* Refused with this error for an open connection and for a connect, without an effect. */
static void refuses(struct harp_tcp_options opt, int set_error, int connect_error)
{
	const struct harp_tcp_options before = rig_options(&rig);
	struct harp_conn *conn = NULL;
	struct harp_tcp_options after;

	opt.user_timeout_ns = RIG_S; /* valid, and yet not set */
	CHECK_EQ(harp_conn_set_options(rig.conn, &opt), set_error);
	after = rig_options(&rig);
	CHECK(same_options(&before, &after));
	CHECK_EQ(rig_connect(&rig, &opt, &conn), connect_error);
	if (!connect_error)
		harp_conn_abort(conn);
}

TEST(values_out_of_range_are_refused)
{
	static const struct {
		size_t offset;
		uint64_t value;
		unsigned bytes;
	} bad[] = {
#define BAD(field, value)                                                                          \
	{ offsetof(struct harp_tcp_options, field), value,                                         \
	  sizeof(((struct harp_tcp_options *)0)->field) }
		BAD(dscp, 64),
		BAD(dscp, 255),
		BAD(congestion, HARP_CONGESTION_FIXED + 1),
		BAD(congestion, UINT32_MAX),
		BAD(congestion, HARP_CONGESTION_FIXED), /* without a window */
		BAD(fixed_window_bytes, 1),             /* of cubic */
		BAD(ecn, HARP_ECN_REQUEST + 1),
		BAD(mss_bytes, 87),
		BAD(mss_bytes, 1),
		BAD(mss_bytes, 65536),
		BAD(mss_bytes, UINT32_MAX),
		BAD(options_off, HARP_TCPI_ECN),
		BAD(options_off, UINT32_MAX),
		BAD(delayed_ack_ns, RIG_S / 2),
		BAD(delayed_ack_ns, 1ull << 32),
		BAD(delayed_ack_ns, UINT64_MAX),
		BAD(initial_rto_ns, 5 * RIG_MS - 1),
		BAD(initial_rto_ns, 60 * RIG_S + 1),
		BAD(initial_rto_ns, UINT64_MAX),
#undef BAD
	};
	const struct harp_stack_hooks hooks = { .log = count_complaint }, *before;

	rig_begin(&rig, NULL);
	before = rig.stack->tcp.hooks;
	rig.stack->tcp.hooks = &hooks;
	for (unsigned i = 0; i < ARRAY_SIZE(bad); i++) {
		struct harp_tcp_options opt = rig_options(&rig);

		memcpy((uint8_t *)&opt + bad[i].offset, &bad[i].value, bad[i].bytes);
		complaints = 0;
		refuses(opt, -EINVAL, -EINVAL);
		CHECK_EQ(complaints, 2); /* each names the field */
	}
	rig.stack->tcp.hooks = before;
}

TEST(struct_sizes_out_of_range_are_refused)
{
	struct {
		struct harp_tcp_options opt;
		uint8_t more[16];
	} large = { .opt = { .size = 0 } };
	static const uint32_t sizes[] = { 0, 1, 11, 4097, UINT32_MAX };

	rig_begin(&rig, NULL);
	for (unsigned i = 0; i < ARRAY_SIZE(sizes); i++) {
		struct harp_tcp_options opt = rig_options(&rig);

		opt.size = sizes[i];
		refuses(opt, -EINVAL, -EINVAL);
		CHECK_EQ(harp_conn_options(rig.conn, &opt), -EINVAL);
	}
	/* A caller of a later version must leave the fields that the library does not know zero. */
	memset(large.more, 0xee, sizeof(large.more));
	large.opt.size = sizeof(large);
	CHECK_EQ(harp_conn_options(rig.conn, &large.opt), 0);
	CHECK_EQ(large.opt.size, sizeof(large));
	for (unsigned i = 0; i < sizeof(large.more); i++)
		CHECK_EQ(large.more[i], 0);
	large.opt.user_timeout_ns = 9 * RIG_S;
	large.more[15] = 1;
	CHECK_EQ(harp_conn_set_options(rig.conn, &large.opt), -E2BIG);
	CHECK_EQ(rig_options(&rig).user_timeout_ns, 120 * RIG_S);
	large.more[15] = 0;
	CHECK_EQ(harp_conn_set_options(rig.conn, &large.opt), 0);
	CHECK_EQ(rig_options(&rig).user_timeout_ns, 9 * RIG_S);
	CHECK_EQ(harp_conn_set_options(rig.conn, NULL), -EINVAL);
}

TEST(options_of_the_handshake_are_refused_later)
{
	struct harp_tcp_options opt;

	for (unsigned established = 0; established < 2; established++) {
		rig_open(&rig);
		if (established)
			rig_established(&rig, NULL);
		else
			rig_syn_sent(&rig, NULL);
		opt = rig_options(&rig);
		opt.options_off = HARP_TCPI_SACK;
		refuses(opt, -EISCONN, 0);
		opt.options_off = 0;
		opt.ecn = HARP_ECN_REQUEST;
		refuses(opt, -EISCONN, 0);
		rig_poll(&rig);
		rig.out_head = rig.out_tail;
		rig_close(&rig);
	}
}

TEST(a_closed_connection_refuses)
{
	struct harp_tcp_options opt;

	rig_begin(&rig, NULL);
	rig_says(&rig, rig_usual(&rig, TCP_RST, 0));
	CHECK_EQ(rig.conn->state, HARP_TCP_CLOSED);
	opt = rig_options(&rig); /* can still be read */
	CHECK_EQ(opt.user_timeout_ns, 120 * RIG_S);
	opt.keepalive_idle_ns = RIG_S;
	CHECK_EQ(harp_conn_set_options(rig.conn, &opt), -ECONNRESET);
	CHECK_EQ(harp_conn_set_options(rig.conn, NULL), -ECONNRESET);
	rig_wait(&rig, 10 * RIG_S);
	rig_silent(&rig);
	rig_close(&rig);
	/* One that was closed in order has no error of its own. */
	rig_begin(&rig, NULL);
	rig_sends(&rig, TCP_ACK | TCP_FIN, 0);
	rig_poll(&rig);
	rig_expect(&rig, TCP_ACK);
	rig_app_shuts(&rig);
	rig_says(&rig, rig_usual(&rig, TCP_ACK, 0));
	CHECK_EQ(rig.conn->state, HARP_TCP_CLOSED);
	CHECK_EQ(RIG_SET(&rig, dscp, 1), -EPIPE);
}
