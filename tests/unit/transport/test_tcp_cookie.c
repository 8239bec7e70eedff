/* SPDX-License-Identifier: Apache-2.0 */
/* test_tcp_cookie.c - SYN cookies: clients can connect during a SYN flood, and only an ACK with a
 * valid cookie opens a connection. */
#include "base/rng.h"
#include "rig.h"

#define FLOOD 100000u
#define BACKLOG 3u
#define CLIENT_PORT 7777u

static struct rig rig;
AFTER_EACH(rig_close(&rig))

static void open_with_routes(uint32_t backlog)
{
	struct harp_addr any = { { [10] = 0xff, [11] = 0xff } },
			 gateway = harp_addr_v4(10, 0, 0, 2);

	rig_open(&rig);
	CHECK_EQ(harp_stack_route_add(rig.stack, &any, 0, &gateway, 0), 0);
	rig_listen(&rig, backlog);
	rig.peer_port = CLIENT_PORT;
}

/* Sends SYNs of peers that never answer. */
static void flood(struct rng *rng, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		struct rig_say say = rig_syn(&rig, TCP_SYN);

		say.peer_v4 = 0x0b000000u | rng_below(rng, 1u << 24);
		say.peer_port = (uint16_t)(1 + rng_below(rng, 65535));
		say.seq = (uint32_t)rng_u64(rng);
		rig.now_ns += 10000;
		rig_says(&rig, say);
	}
	rig.out_head = rig.out_tail;
}

/* One half-open connection fills a backlog of 1, so the listener sends cookies. */
static void fill_backlog(void)
{
	rig.peer_port = 6666;
	rig_says(&rig, rig_syn(&rig, TCP_SYN));
	rig_expect(&rig, TCP_SYN | TCP_ACK);
	rig_silent(&rig);
	rig.peer_port = CLIENT_PORT;
}

static void client_says(uint8_t flags, uint32_t len)
{
	rig_says(&rig, rig_usual(&rig, flags, len));
}

TEST(a_flood_of_100000_syns_keeps_out_no_client)
{
	struct harp_tcp_info info;
	struct rng rng;
	uint64_t start_ns;

	rng_seed(&rng, 4987);
	open_with_routes(BACKLOG);
	flood(&rng, FLOOD / 2);
	start_ns = rig.now_ns;
	rig_syn_received(&rig);
	client_says(TCP_ACK, 0);
	CHECK_EQ(harp_tcp_accept(rig.listener, &rig.conn), 0);
	CHECK(rig.now_ns - start_ns < RIG_MS);
	CHECK_EQ(rig.conn->state, HARP_TCP_ESTABLISHED);
	harp_conn_info(rig.conn, &info);
	CHECK_EQ(info.options, HARP_TCPI_TIMESTAMPS | HARP_TCPI_WSCALE);
	CHECK_EQ(info.snd_wscale, 2);
	CHECK_EQ(info.snd_mss_bytes, 1448);
	CHECK_EQ(info.snd_wnd_bytes, RIG_PEER_WND << 2);
	flood(&rng, FLOOD / 2);
	/* Slots and timers: those of one backlog, and the client's. */
	CHECK(rig_stat(&rig, "tcp_conns") <= BACKLOG + 1);
	CHECK(rig.stack->wheel.count <= BACKLOG + 2);
	CHECK(rig_stat(&rig, "tcp_cookies_sent") > FLOOD - 2000);
	client_says(TCP_ACK, 1000);
	rig_reads(&rig, rig.seq, 1000);
	rig.seq += 1000;
	CHECK_EQ(rig_write(&rig, 500), 500);
	while (rig_pending(&rig)) {
		const struct rig_seg *s = &rig.out[rig.out_head++ % RIG_QUEUE];

		if (s->dst_port == CLIENT_PORT && s->len > 0)
			rig.ack = s->seq + s->len;
	}
	client_says(TCP_ACK, 0);
	CHECK_EQ(harp_conn_acked_bytes(rig.conn), 500);
}

/* A cookie preserves all options; it rounds down the MSS. */
TEST(a_cookie_restores_the_options_of_the_syn)
{
	static const struct {
		uint16_t mss;
		uint8_t wscale;
		bool timestamps, has_wscale;
		uint32_t snd_mss;
	} rows[] = {
		{ 1460, 7, true, true, 1448 },  { 1460, 14, true, true, 1448 },
		{ 1460, 0, true, true, 1448 },  { 1460, 7, true, false, 1448 },
		{ 9000, 7, true, true, 1448 },  { 1400, 3, true, true, 1348 },
		{ 536, 3, true, true, 524 },    { 100, 3, true, true, 76 },
		{ 1460, 7, false, true, 1460 }, { 1300, 7, false, false, 1220 },
	};

	for (unsigned i = 0; i < ARRAY_SIZE(rows); i++) {
		struct tcp_options opt = { .seen = TCP_OPT_MSS,
					   .mss_bytes = rows[i].mss,
					   .wscale = rows[i].wscale,
					   .tsval = 1000 };
		const struct rig_seg *s;
		struct harp_tcp_info info;
		struct rig_say say;
		uint32_t want = 0;

		open_with_routes(1);
		fill_backlog();
		rig.timestamps = rows[i].timestamps;
		if (rows[i].timestamps) {
			opt.seen |= TCP_OPT_TIMESTAMP;
			want |= HARP_TCPI_TIMESTAMPS;
		}
		if (rows[i].has_wscale)
			opt.seen |= TCP_OPT_WSCALE;
		say = rig_usual(&rig, TCP_SYN, 0);
		say.options_len = tcp_options_write_syn(say.options, &opt);
		rig_says(&rig, say);
		s = rig_expect(&rig, TCP_SYN | TCP_ACK);
		/* Without timestamps the cookie cannot carry the window scale, so it is not
		 * negotiated. */
		CHECK_EQ(!!(s->opt.seen & TCP_OPT_WSCALE),
			 rows[i].has_wscale && rows[i].timestamps);
		if (rows[i].has_wscale && rows[i].timestamps)
			want |= HARP_TCPI_WSCALE;
		rig.ack = s->seq + 1;
		rig.seq++;
		harp_listener_close(rig.listener);
		rig.listener = NULL;
		rig_poll(&rig);
		rig.out_head = rig.out_tail;
		rig_listen(&rig, 1);
		rig.listener->cookie_until_ns = UINT64_MAX; /* it still accepts cookies */
		client_says(TCP_ACK, 0);
		CHECK_EQ(harp_tcp_accept(rig.listener, &rig.conn), 0);
		if (!rig.conn)
			return;
		harp_conn_info(rig.conn, &info);
		CHECK_EQ(info.options, want);
		CHECK_EQ(info.snd_wscale, (want & HARP_TCPI_WSCALE) ? rows[i].wscale : 0);
		CHECK_EQ(info.snd_mss_bytes, rows[i].snd_mss);
		rig_close(&rig);
	}
}

TEST(first_data_brings_the_cookie_when_the_ack_is_lost)
{
	open_with_routes(1);
	fill_backlog();
	rig_syn_received(&rig);
	/* The second segment arrives first: no RST, because the client retransmits the first. */
	rig.seq += 100;
	client_says(TCP_ACK, 100);
	rig_silent(&rig);
	rig.seq -= 100;
	client_says(TCP_ACK | TCP_FIN, 100);
	CHECK_EQ(harp_tcp_accept(rig.listener, &rig.conn), 0);
	rig_reads(&rig, rig.seq, 100);
	rig_reads(&rig, 0, 0);
	CHECK_EQ(rig.conn->state, HARP_TCP_CLOSE_WAIT);
}

TEST(a_cookie_is_valid_once)
{
	struct harp_conn *conn;

	open_with_routes(1);
	fill_backlog();
	rig_syn_received(&rig);
	client_says(TCP_ACK, 100);
	CHECK_EQ(harp_tcp_accept(rig.listener, &conn), 0);
	harp_conn_abort(conn);
	rig_poll(&rig);
	rig.out_head = rig.out_tail;
	client_says(TCP_ACK, 100); /* a delayed copy */
	CHECK_EQ(harp_tcp_accept(rig.listener, &conn), -EAGAIN);
	rig_silent(&rig);
}

/* Is a cookie of this age still valid? */
static bool is_valid_after(uint64_t ns)
{
	bool is_valid;

	open_with_routes(1);
	fill_backlog();
	rig_syn_received(&rig);
	rig_wait(&rig, ns);
	rig.out_head = rig.out_tail;
	client_says(TCP_ACK, 0);
	is_valid = harp_tcp_accept(rig.listener, &rig.conn) == 0;
	rig_close(&rig);
	return is_valid;
}

TEST(a_cookie_is_valid_for_two_periods)
{
	CHECK(is_valid_after(12 * RIG_S));
	CHECK(is_valid_after(68 * RIG_S)); /* the secret has changed once */
	CHECK(!is_valid_after(138 * RIG_S));
}

TEST(an_ack_without_a_valid_cookie_opens_nothing)
{
	struct harp_conn *conn;
	struct rig_say say;
	struct rng rng;
	uint32_t cookie, seq;

	rng_seed(&rng, 3);
	open_with_routes(1);
	fill_backlog();
	rig_syn_received(&rig);
	rig_wait(&rig, 11 * RIG_S);
	rig.out_head = rig.out_tail;
	cookie = rig.ack;
	seq = rig.seq;
	for (unsigned bit = 0; bit < 32;
	     bit++) { /* every bit of the cookie and of SEG.SEQ matters */
		rig.ack = cookie ^ 1u << bit;
		client_says(TCP_ACK, 0);
		rig.ack = cookie;
		rig.seq = seq ^ 1u << bit;
		client_says(TCP_ACK, 0);
		rig.seq = seq;
	}
	say = rig_usual(&rig, TCP_ACK, 0); /* a cookie of another port */
	say.peer_port = CLIENT_PORT + 1;
	rig_says(&rig, say);
	rig.tsecr += 1; /* an echo from the future */
	rig.tsecr += 20000;
	client_says(TCP_ACK, 0);
	rig.tsecr -= 20001;
	rig.tsecr -= 200000; /* or from long ago */
	client_says(TCP_ACK, 0);
	rig.tsecr += 200000;
	CHECK_EQ(rig_stat(&rig, "tcp_cookies_refused"), 67);
	rig_silent(&rig);
	for (unsigned i = 0; i < 1u << 18; i++) { /* probability of a hit: 2^18 x 2^-43 */
		say = rig_usual(&rig, TCP_ACK, 0);
		say.seq = (uint32_t)rng_u64(&rng);
		say.ack = (uint32_t)rng_u64(&rng);
		rig.tsecr = (uint32_t)rng_u64(&rng);
		rig_put(&rig, say);
		if (i % 32 == 31)
			rig_poll(&rig);
	}
	CHECK_EQ(harp_tcp_accept(rig.listener, &conn), -EAGAIN);
	CHECK_EQ(rig_stat(&rig, "tcp_conns"), 0);
	rig_silent(&rig);
	/* The flood is over: a segment without a connection gets a RST again. */
	rig_wait(&rig, 140 * RIG_S);
	client_says(TCP_ACK, 0);
	rig_expect(&rig, TCP_RST);
}

TEST(a_full_accept_queue_drops_a_syn)
{
	open_with_routes(1);
	rig_syn_received(&rig);
	client_says(TCP_ACK, 0); /* fills the backlog */
	rig.out_head = rig.out_tail;
	rig.peer_port = 6666;
	rig_says(&rig, rig_syn(&rig, TCP_SYN));
	rig_silent(&rig); /* the peer retransmits its SYN */
	CHECK_EQ(rig_stat(&rig, "drop_tcp_backlog"), 1);
}

TEST(all_listeners_share_half_of_the_slots)
{
	struct harp_endpoint local = { .port = RIG_PORT + 1 };
	struct harp_listener *other;

	open_with_routes(100);
	CHECK_EQ(harp_tcp_listen(rig.stack, &local, NULL, &other), 0);
	for (unsigned i = 0; i < 20; i++) {
		rig.port = (uint16_t)(RIG_PORT + i % 2);
		rig.peer_port = (uint16_t)(1000 + i);
		rig_says(&rig, rig_syn(&rig, TCP_SYN));
		rig_expect(&rig, TCP_SYN | TCP_ACK);
	}
	CHECK_EQ(rig_stat(&rig, "tcp_conns"), 4); /* of 8 */
	CHECK_EQ(rig_stat(&rig, "tcp_cookies_sent"), 16);
	harp_listener_close(other);
	CHECK(rig.stack->tcp.embryonic_count <= 4);
	harp_listener_close(rig.listener);
	rig.listener = NULL;
	CHECK_EQ(rig.stack->tcp.embryonic_count, 0);
}
