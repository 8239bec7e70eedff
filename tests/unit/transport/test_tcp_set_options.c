/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tcp_set_options.c - harp_tcp_options of a connection: read, changed, refused, and their
 * effects.
 *
 * harp_conn_options() reports the options in force; harp_conn_set_options() changes all of them or
 * none. options_off turns off options of the TCP header: both ends neither offer nor accept them,
 * also with SYN cookies.
 */

#include "tcp_sack_rig.h"

static void set(const struct harp_tcp_options *opt)
{
	CHECK_EQ(harp_conn_set_options(rig.conn, opt), 0);
}

static bool same_options(const struct harp_tcp_options *a, const struct harp_tcp_options *b)
{
	return memcmp(a, b, sizeof(*a)) == 0;
}

/* ---- Reading --------------------------------------------------------------------------------- */

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

	memset(&opt, 0, sizeof(opt)); /* padding, too: same_options() compares bytes */
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

/* ---- Unchanged options ----------------------------------------------------------------------- */

TEST(unchanged_options_restart_nothing)
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
	CHECK_EQ(rig_expect(&rig, TCP_ACK)->seq, rig.ack - 1); /* the keepalive probe is on time */
}

/* ---- Timers ---------------------------------------------------------------------------------- */

/* Data has been retransmitted for two seconds. */
static void begin_unanswered(void)
{
	rig_begin(&rig, RIG_OPTIONS(.user_timeout_ns = 4 * RIG_S));
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
	/* A timeout that has already passed. */
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
	/* Effectively no timeout. */
	begin_unanswered();
	CHECK_EQ(RIG_SET(&rig, user_timeout_ns, UINT64_MAX), 0);
	rig_wait(&rig, 1000 * RIG_S);
	CHECK_EQ(rig.conn->state, HARP_TCP_ESTABLISHED);
	rig_close(&rig);
}

/* An idle connection does not wait for an ACK. */
TEST(a_user_timeout_does_not_end_an_idle_connection)
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
	CHECK_EQ(rig_writes(&rig, 10)->tos, 0);
	CHECK_EQ(RIG_SET(&rig, dscp, 46), 0);
	CHECK_EQ(rig_writes(&rig, 10)->tos, 46 << 2);
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

/* ---- Refused options ------------------------------------------------------------------------- */

static unsigned error_count;

static void count_error(void *ctx, enum harp_log_level level, const char *message)
{
	CHECK_EQ(level, HARP_LOG_ERROR);
	CHECK(strncmp(message, "harp_tcp_options: ", 18) == 0);
	error_count++;
}

/* Checks that these options are refused with these errors, and change nothing. */
static void check_refused(struct harp_tcp_options opt, int set_error, int connect_error)
{
	const struct harp_tcp_options before = rig_options(&rig);
	struct harp_conn *conn = NULL;
	struct harp_tcp_options after;

	opt.user_timeout_ns = RIG_S; /* valid, but not set either */
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
		BAD(congestion, HARP_CONGESTION_FIXED), /* without fixed_window_bytes */
		BAD(fixed_window_bytes, 1),             /* with CUBIC */
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
	const struct harp_stack_hooks hooks = { .log = count_error }, *before;

	rig_begin(&rig, NULL);
	before = rig.stack->tcp.hooks;
	rig.stack->tcp.hooks = &hooks;
	for (unsigned i = 0; i < ARRAY_SIZE(bad); i++) {
		struct harp_tcp_options opt = rig_options(&rig);

		memcpy((uint8_t *)&opt + bad[i].offset, &bad[i].value, bad[i].bytes);
		error_count = 0;
		check_refused(opt, -EINVAL, -EINVAL);
		CHECK_EQ(error_count, 2); /* each message names the field */
	}
	rig.stack->tcp.hooks = before;
}

TEST(other_struct_sizes_are_refused)
{
	static const uint32_t sizes[] = { 0, sizeof(struct harp_tcp_options) - 1,
					  sizeof(struct harp_tcp_options) + 1 };

	rig_begin(&rig, NULL);
	for (unsigned i = 0; i < ARRAY_SIZE(sizes); i++) {
		struct harp_tcp_options opt = rig_options(&rig);

		opt.size = sizes[i];
		check_refused(opt, -EINVAL, -EINVAL);
		CHECK_EQ(harp_conn_options(rig.conn, &opt), -EINVAL);
	}
	CHECK_EQ(harp_conn_set_options(rig.conn, NULL), -EINVAL);
}

TEST(options_of_the_handshake_are_refused_later)
{
	struct harp_tcp_options opt;

	for (unsigned is_established = 0; is_established < 2; is_established++) {
		rig_open(&rig);
		if (is_established)
			rig_established(&rig, NULL);
		else
			rig_syn_sent(&rig, NULL);
		opt = rig_options(&rig);
		opt.options_off = HARP_TCPI_SACK;
		check_refused(opt, -EISCONN, 0);
		opt.options_off = 0;
		opt.ecn = HARP_ECN_REQUEST;
		check_refused(opt, -EISCONN, 0);
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
	CHECK_EQ(harp_conn_probe(rig.conn), -ECONNRESET);
	CHECK_EQ(harp_conn_send_space(rig.conn), 0);
	opt.keepalive_idle_ns = RIG_S;
	CHECK_EQ(harp_conn_set_options(rig.conn, &opt), -ECONNRESET);
	CHECK_EQ(harp_conn_set_options(rig.conn, NULL), -ECONNRESET);
	rig_wait(&rig, 10 * RIG_S);
	rig_silent(&rig);
	rig_close(&rig);
	/* A connection that was closed in order has no error. */
	rig_begin(&rig, NULL);
	rig_sends(&rig, TCP_ACK | TCP_FIN, 0);
	rig_poll(&rig);
	rig_expect(&rig, TCP_ACK);
	rig_app_shuts(&rig);
	rig_says(&rig, rig_usual(&rig, TCP_ACK, 0));
	CHECK_EQ(rig.conn->state, HARP_TCP_CLOSED);
	CHECK_EQ(RIG_SET(&rig, dscp, 1), -EPIPE);
}

/* ---- budgets --------------------------------------------------------------------------------- */

TEST(more_receive_frames_open_the_window_at_once)
{
	uint64_t before;

	rig_begin(&rig, RIG_OPTIONS(.rx_frames = 16));
	before = rig_info(&rig).rcv_wnd_bytes;
	CHECK(before <= 16 * 1460);
	CHECK_EQ(RIG_SET(&rig, rx_frames, 40), 0);
	rig_poll(&rig);
	/* The scale of the handshake is 0: 65535 at most. */
	CHECK_EQ(rig_expect(&rig, TCP_ACK)->wnd, 40 * 1460);
	CHECK_EQ(rig_info(&rig).rcv_wnd_bytes, 40 * 1460);
	CHECK_EQ(RIG_SET(&rig, rx_frames, 64), 0);
	rig_poll(&rig);
	CHECK(rig_info(&rig).rcv_wnd_bytes <= 65535);
}

/* The window that was advertised is not taken back (RFC 9293 section 3.8.6). */
TEST(fewer_receive_frames_are_refused)
{
	rig_begin(&rig, RIG_OPTIONS(.rx_frames = 40));
	CHECK_EQ(RIG_SET(&rig, rx_frames, 39), -EISCONN);
	CHECK_EQ(rig.conn->frames.rx_budget, 40);
}

TEST(more_send_frames_wake_the_writer)
{
	rig_begin(&rig, RIG_OPTIONS(.tx_frames = 8));
	CHECK(rig_write(&rig, 100 * 1448) < 100 * 1448);
	CHECK_EQ(rig_write(&rig, 1), -EAGAIN);
	CHECK(!(rig_events(&rig) & HARP_EVENT_WRITABLE));
	CHECK_EQ(RIG_SET(&rig, tx_frames, 32), 0);
	CHECK(rig_events(&rig) & HARP_EVENT_WRITABLE);
	CHECK(rig_write(&rig, 1448) > 0);
}

TEST(fewer_send_frames_block_writes_until_data_is_acknowledged)
{
	struct harp_tcp_options opt = { .size = sizeof(opt),
					.tx_frames = 32,
					.congestion = HARP_CONGESTION_FIXED,
					.fixed_window_bytes = 100000 };

	rig_begin(&rig, &opt);
	CHECK_EQ(rig_write(&rig, 20 * 1448), 20 * 1448);
	CHECK_EQ(RIG_SET(&rig, tx_frames, 8), 0);
	CHECK_EQ(harp_conn_send_space(rig.conn), 0);
	CHECK_EQ(rig_write(&rig, 1), -EAGAIN);
	rig.out_head = rig.out_tail;
	rig_acks(&rig, 20 * 1448);
	CHECK(rig_events(&rig) & HARP_EVENT_WRITABLE);
	CHECK_EQ(harp_conn_send_space(rig.conn), 8 * 1448);
}

TEST(the_unsent_limit_changes)
{
	rig_begin(&rig, RIG_OPTIONS(.unsent_bytes_max = 1448));
	CHECK_EQ(harp_conn_send_space(rig.conn), 1448);
	CHECK_EQ(RIG_SET(&rig, unsent_bytes_max, 2 * 1448), 0);
	CHECK_EQ(harp_conn_send_space(rig.conn), 2 * 1448);
	CHECK_EQ(RIG_SET(&rig, unsent_bytes_max, 0), 0);
	CHECK(harp_conn_send_space(rig.conn) > 10 * 1448);
}

/* ---- MSS ------------------------------------------------------------------------------------- */

/* Writes bytes, which the peer acknowledges; returns the length of the first segment. */
static uint32_t first_segment_bytes(uint32_t bytes)
{
	uint32_t len;

	CHECK_EQ(rig_write(&rig, bytes), bytes);
	CHECK(rig_pending(&rig) > 0);
	len = rig.out[rig.out_head % RIG_QUEUE].len;
	rig_drain(&rig);
	rig_acks(&rig, bytes);
	return len;
}

TEST(the_mss_is_announced_and_kept)
{
	struct harp_tcp_options opt = { .size = sizeof(opt), .mss_bytes = 700 };

	rig_open(&rig);
	CHECK_EQ(rig_syn_sent(&rig, &opt)->opt.mss_bytes, 700);
	rig_syn_acked(&rig);                    /* the peer's MSS is 1460 */
	CHECK_EQ(rig.conn->snd.mss_bytes, 688); /* less the timestamps */
	CHECK_EQ(first_segment_bytes(2000), 688);
	rig_close(&rig);
	/* The MTU limits it. */
	opt.mss_bytes = 65535;
	rig_open(&rig);
	CHECK_EQ(rig_syn_sent(&rig, &opt)->opt.mss_bytes, 1460);
	rig_close(&rig);
}

TEST(the_mss_can_be_lowered_and_raised_later)
{
	rig_begin(&rig, NULL);
	CHECK_EQ(first_segment_bytes(3000), 1448);
	CHECK_EQ(RIG_SET(&rig, mss_bytes, 600), 0);
	CHECK_EQ(first_segment_bytes(3000), 588);
	CHECK_EQ(RIG_SET(&rig, mss_bytes, 88), 0);
	CHECK_EQ(first_segment_bytes(3000), 76);
	CHECK_EQ(RIG_SET(&rig, mss_bytes, 1000), 0);
	CHECK_EQ(first_segment_bytes(3000), 988);
	CHECK_EQ(RIG_SET(&rig, mss_bytes, 0), 0);
	CHECK_EQ(first_segment_bytes(3000), 1448);
}

/* Unsent and retransmitted segments are split; no byte is lost or sent twice. */
TEST(a_smaller_mss_splits_queued_segments)
{
	struct harp_tcp_options opt = { .size = sizeof(opt),
					.congestion = HARP_CONGESTION_FIXED,
					.fixed_window_bytes = 2 * 1448 };
	uint32_t first, seq;

	rig_begin(&rig, &opt);
	CHECK_EQ(rig_write(&rig, 4 * 1448), 4 * 1448);
	first = rig_expect(&rig, TCP_ACK)->seq;
	CHECK_EQ(rig_expect(&rig, TCP_ACK | TCP_PSH)->len, 1448);
	rig_silent(&rig);
	CHECK_EQ(RIG_SET(&rig, mss_bytes, 500), 0);
	rig_wait(&rig, 100 * RIG_MS); /* the retransmission */
	CHECK(rig_pending(&rig) > 0);
	while (rig_pending(&rig)) {
		const struct rig_seg *s = &rig.out[rig.out_head++ % RIG_QUEUE];

		CHECK_EQ(s->seq, first);
		CHECK_EQ(s->len, 488);
	}
	rig.ack = seq = first + 2 * 1448;
	rig_says(&rig, rig_usual(&rig, TCP_ACK, 0));
	while (seq != first + 4 * 1448) {
		const struct rig_seg *s = &rig.out[rig.out_head % RIG_QUEUE];

		CHECK(rig_pending(&rig) > 0);
		if (!rig_pending(&rig))
			break;
		rig.out_head++;
		CHECK_EQ(s->seq, seq);
		CHECK(s->len <= 488);
		rig.ack = seq += s->len;
		rig_says(&rig, rig_usual(&rig, TCP_ACK, 0));
	}
	CHECK_EQ(harp_conn_acked_bytes(rig.conn), 4 * 1448);
}

/* ---- congestion control ---------------------------------------------------------------------- */

static int set_congestion(uint32_t congestion, uint32_t fixed_window_bytes)
{
	struct harp_tcp_options opt = rig_options(&rig);

	opt.congestion = congestion;
	opt.fixed_window_bytes = fixed_window_bytes;
	return harp_conn_set_options(rig.conn, &opt);
}

TEST(a_new_controller_keeps_the_window)
{
	static const uint32_t controllers[] = { HARP_CONGESTION_CUBIC, HARP_CONGESTION_DELAY,
						HARP_CONGESTION_NEWRENO, HARP_CONGESTION_DEFAULT };
	uint32_t cwnd;

	put_in_flight(12, true); /* the initial window and more */
	ack(10);
	cwnd = rig.conn->cc.cwnd_bytes;
	CHECK(cwnd > 10 * MSS);
	for (unsigned i = 0; i < 4; i++) {
		struct harp_tcp_info info;

		CHECK_EQ(set_congestion(controllers[i], 0), 0);
		info = rig_info(&rig);
		CHECK_EQ(info.congestion, controllers[i] ? controllers[i] : HARP_CONGESTION_CUBIC);
		CHECK_EQ(info.snd_cwnd_bytes, cwnd);
		CHECK_EQ(info.snd_ssthresh_bytes, HARP_SSTHRESH_NONE);
	}
}

TEST(a_fixed_window_replaces_the_congestion_window)
{
	put_in_flight(2, true);
	ack(2);
	CHECK_EQ(set_congestion(HARP_CONGESTION_FIXED, 3 * MSS), 0);
	CHECK_EQ(rig.conn->cc.cwnd_bytes, 3 * MSS);
	CHECK_EQ(rig_write(&rig, 8 * MSS), 8 * MSS);
	CHECK_EQ(rig_pending(&rig), 3);
	/* A larger window sends more, at once. */
	CHECK_EQ(set_congestion(HARP_CONGESTION_FIXED, 5 * MSS), 0);
	rig_poll(&rig);
	CHECK_EQ(rig_pending(&rig), 5);
	CHECK_EQ(set_congestion(HARP_CONGESTION_CUBIC, 0), 0);
	CHECK_EQ(rig.conn->cc.cwnd_bytes, cc_initial_window_bytes(MSS));
	CHECK_EQ(rig.conn->cc.ssthresh_bytes, HARP_SSTHRESH_NONE);
}

/* The recovery was spurious: the window is restored, the old controller is not. */
TEST(an_undone_recovery_keeps_the_new_controller)
{
	struct rig_say say;
	uint32_t cwnd;

	put_in_flight(10, true);
	cwnd = rig.conn->cc.cwnd_bytes;
	say = ack_say(0, 1, (const uint32_t[1][2]){ { 4, 10 } });
	rig.tsval++;
	advance(RTT_NS);
	rig_says(&rig, say);
	CHECK_EQ(rig.conn->recovery, TCP_RECOVERY_FAST);
	CHECK(rig.conn->cc.ssthresh_bytes < cwnd);
	CHECK_EQ(set_congestion(HARP_CONGESTION_CUBIC, 0), 0);
	CHECK(rig.conn->undo.open);
	/* The originals arrive: the echo is older than the retransmissions. */
	rig.conn->undo.tsval = rig.tsecr + 1;
	rig_says(&rig, ack_say(10, 0, NULL));
	CHECK_EQ(rig_stat(&rig, "tcp_spurious_recovery"), 1);
	CHECK_EQ(tcp_cc_congestion(rig.conn), HARP_CONGESTION_CUBIC);
	CHECK(rig.conn->cc.cwnd_bytes >= cwnd);
	CHECK_EQ(rig.conn->cc.ssthresh_bytes, HARP_SSTHRESH_NONE);
}

TEST(dctcp_needs_ecn)
{
	struct harp_tcp_options opt = { .size = sizeof(opt) };
	struct harp_conn *conn;

	opt.congestion = HARP_CONGESTION_DCTCP;
	opt.ecn = HARP_ECN_OFF;
	rig_begin(&rig, NULL);
	CHECK_EQ(rig_connect(&rig, &opt, &conn), -EINVAL);
	CHECK_EQ(set_congestion(HARP_CONGESTION_DCTCP, 0), -EOPNOTSUPP);
	CHECK_EQ(rig_options(&rig).congestion, HARP_CONGESTION_CUBIC);
	rig_close(&rig);
	opt = (struct harp_tcp_options){ .size = sizeof(opt), .ecn = HARP_ECN_REQUEST };
	rig_open(&rig);
	rig_syn_sent_flags(&rig, &opt, TCP_SYN | TCP_ECE | TCP_CWR);
	/* Before the handshake is complete, ECN may still be negotiated: DCTCP is accepted, as by
	 * connect. */
	CHECK_EQ(set_congestion(HARP_CONGESTION_DCTCP, 0), 0);
	CHECK_EQ(set_congestion(HARP_CONGESTION_CUBIC, 0), 0);
	rig_syn_acked_as(&rig, TCP_ECE, RIG_PEER_WND);
	CHECK_EQ(set_congestion(HARP_CONGESTION_DCTCP, 0), 0);
	CHECK_EQ(tcp_cc_congestion(rig.conn), HARP_CONGESTION_DCTCP);
	rig_close(&rig);
}

/* ---- options_off ----------------------------------------------------------------------------- */

#define ALL (HARP_TCPI_TIMESTAMPS | HARP_TCPI_SACK | HARP_TCPI_WSCALE)

/* The TCP_OPT_* flags of a SYN with these options. */
static uint8_t syn_flags(uint32_t options)
{
	return (uint8_t)((options & HARP_TCPI_TIMESTAMPS ? TCP_OPT_TIMESTAMP : 0) |
			 (options & HARP_TCPI_SACK ? TCP_OPT_SACK_PERMITTED : 0) |
			 (options & HARP_TCPI_WSCALE ? TCP_OPT_WSCALE : 0) | TCP_OPT_MSS);
}

static struct harp_tcp_options options(uint32_t off)
{
	return (struct harp_tcp_options){ .size = sizeof(struct harp_tcp_options),
					  .rx_frames = 128,
					  .options_off = off };
}

/* Checks that data flows both ways, in segments with the negotiated options. */
static void check_open(uint32_t off)
{
	bool timestamps = !(off & HARP_TCPI_TIMESTAMPS);
	const struct rig_seg *s;
	struct harp_tcp_info info = rig_info(&rig);

	CHECK_EQ(info.options, ALL & ~off);
	CHECK_EQ(info.snd_mss_bytes, timestamps ? 1448 : 1460);
	CHECK_EQ(info.snd_wscale, off & HARP_TCPI_WSCALE ? 0 : 2);
	if (off & HARP_TCPI_WSCALE) {
		CHECK_EQ(info.rcv_wscale, 0);
		CHECK(info.rcv_wnd_bytes <= 65535);
	} else {
		CHECK(info.rcv_wscale > 0);
	}
	rig.timestamps = timestamps; /* the peer now uses the negotiated options */
	rig_sends(&rig, TCP_ACK | TCP_PSH, 100);
	rig_reads(&rig, rig.seq - 100, 100);
	s = rig_writes(&rig, 50);
	CHECK_EQ(s->opt.seen, timestamps ? TCP_OPT_TIMESTAMP : 0);
	CHECK_EQ(s->ack, rig.seq);
	CHECK_EQ(s->len, 50);
	rig_acks(&rig, 50);
	CHECK_EQ(harp_conn_acked_bytes(rig.conn), 50);
	CHECK_EQ(rig_info(&rig).snd_wnd_bytes, RIG_PEER_WND << info.snd_wscale);
	/* Out-of-order data gets a SACK block only if SACK was negotiated. */
	rig_says_at(&rig, TCP_ACK, 10, 10);
	s = rig_expect(&rig, TCP_ACK);
	CHECK_EQ(s->opt.seen & TCP_OPT_SACK, off & HARP_TCPI_SACK ? 0 : TCP_OPT_SACK);
}

/* The peer's SYN-ACK has all options, even those that the SYN did not offer. */
static void check_connect(uint32_t off)
{
	struct harp_tcp_options opt = options(off);

	rig_open(&rig);
	rig.sack = true;
	CHECK_EQ(rig_syn_sent(&rig, &opt)->opt.seen, syn_flags(ALL & ~off));
	rig_syn_acked(&rig);
	CHECK_EQ(rig.conn->state, HARP_TCP_ESTABLISHED);
	check_open(off);
	rig_close(&rig);
}

static void check_listen(uint32_t off, uint32_t backlog, bool cookie)
{
	struct harp_tcp_options opt = options(off);
	const struct rig_seg *s;

	rig_open(&rig);
	rig.sack = true;
	opt.backlog = backlog;
	rig_listen_options(&rig, &opt);
	if (cookie) { /* one half-open connection fills a backlog of 1 */
		rig.peer_port = 6666;
		rig_says(&rig, rig_syn(&rig, TCP_SYN));
		rig_expect(&rig, TCP_SYN | TCP_ACK);
		rig.peer_port = RIG_PEER_PORT;
	}
	s = rig_syn_received(&rig);
	/* A cookie keeps the other options in the timestamp. */
	if (cookie && (off & HARP_TCPI_TIMESTAMPS))
		off = ALL;
	CHECK_EQ(s->opt.seen, syn_flags(ALL & ~off));
	CHECK_EQ(rig_stat(&rig, "tcp_cookies_sent"), cookie);
	/* The ACK always has a timestamp, which must not change the negotiated options. */
	rig_says(&rig, rig_usual(&rig, TCP_ACK, 0));
	CHECK_EQ(harp_tcp_accept(rig.listener, &rig.conn), 0);
	CHECK_EQ(rig_stat(&rig, "tcp_cookies_accepted"), cookie);
	rig.out_head = rig.out_tail;
	check_open(off);
	rig_close(&rig);
}

TEST(connect_offers_the_enabled_options)
{
	for (uint32_t off = 0; off <= ALL; off++)
		check_connect(off);
}

TEST(listeners_accept_the_enabled_options)
{
	for (uint32_t off = 0; off <= ALL; off++)
		check_listen(off, 8, false);
}

TEST(cookies_preserve_the_enabled_options)
{
	for (uint32_t off = 0; off <= ALL; off++)
		check_listen(off, 1, true);
}
