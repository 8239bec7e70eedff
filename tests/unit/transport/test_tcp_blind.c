/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tcp_blind.c - an off-path attacker that knows the 4-tuple and more: RFC 5961, the check of
 * the timestamp echo, challenge ACKs that reveal nothing, and 2^20 guesses. The argument is the
 * seed of the guesses.
 */
#include <stdlib.h>

#include "base/rng.h"
#include "rig.h"

#define GUESSES (1u << 20)
#define GUESS_NS 1000u

static struct rig rig;
AFTER_EACH(rig_close(&rig))

/* A segment with this timestamp option. */
static struct rig_say with_echo(struct rig_say say, uint32_t tsval, uint32_t tsecr)
{
	say.raw_options = true;
	say.options_len = TCP_OPTIONS_TIMESTAMP_BYTES;
	tcp_options_write_timestamp(say.options, tsval, tsecr);
	return say;
}

/* Exchanges data, so that timestamps and windows have advanced. */
static void exchange_data(void)
{
	for (unsigned i = 0; i < 4; i++) {
		rig.tsval += 3;
		rig_wait(&rig, 3 * RIG_MS);
		rig_sends(&rig, TCP_ACK, 1000);
		rig_poll(&rig);
		CHECK_EQ(rig_write(&rig, 500), 500);
		rig_poll(&rig);
		while (rig_pending(&rig)) {
			const struct rig_seg *s = &rig.out[rig.out_head++ % RIG_QUEUE];

			rig.ack = seq_max(rig.ack, s->seq + s->len);
			rig.tsecr = s->opt.tsval;
		}
		rig_reads(&rig, rig.seq - 1000, 1000);
	}
	rig_says(&rig, rig_usual(&rig, TCP_ACK, 0));
	rig_poll(&rig);
	rig.out_head = rig.out_tail;
}

/* ---- The timestamp echo (TSecr) -------------------------------------------------------------- */

TEST(data_needs_an_echo_of_a_sent_timestamp)
{
	uint32_t newest, oldest;

	rig_begin(&rig, NULL);
	exchange_data();
	newest = rig.conn->ts.sent;
	oldest = rig.conn->ts.echo_min;
	CHECK(newest - oldest <= 20);
	rig_says(&rig, with_echo(rig_usual(&rig, TCP_ACK, 10), rig.tsval, newest + 1));
	rig_expect(&rig, TCP_ACK); /* the challenge ACK */
	rig_says(&rig, with_echo(rig_usual(&rig, TCP_ACK, 10), rig.tsval, oldest - 1));
	rig_expect(&rig, TCP_ACK);
	rig_says(&rig, with_echo(rig_usual(&rig, TCP_ACK | TCP_FIN, 0), rig.tsval, oldest - 1));
	rig_expect(&rig, TCP_ACK);
	CHECK_EQ(rig_stat(&rig, "drop_tcp_echo"), 3);
	CHECK_EQ(rig.conn->rcv.nxt_seq, rig.seq);
	CHECK_EQ(rig.conn->state, HARP_TCP_ESTABLISHED);
	/* A rejected segment does not move TS.Recent, which would lock out the peer. */
	CHECK_EQ(rig.conn->ts.recent, rig.tsval);
	rig_says(&rig, with_echo(rig_usual(&rig, TCP_ACK, 10), rig.tsval, oldest));
	CHECK_EQ(rig.conn->rcv.nxt_seq, rig.seq + 10);
}

/* A forged ACK of data that the peer has not received would stall the connection. */
TEST(an_ack_needs_an_echo_of_a_sent_timestamp)
{
	struct rig_say say;

	rig_begin(&rig, NULL);
	rig_writes(&rig, 1000);
	say = rig_usual(&rig, TCP_ACK, 0);
	say.ack += 1000;
	rig_says(&rig, with_echo(say, rig.tsval, rig.tsecr + 5));
	CHECK_EQ(harp_conn_acked_bytes(rig.conn), 0);
	rig_expect(&rig, TCP_ACK);
	rig_says(&rig, say);
	CHECK_EQ(harp_conn_acked_bytes(rig.conn), 1000);
}

TEST(an_echo_after_an_idle_month_is_accepted)
{
	rig_begin(&rig, NULL);
	exchange_data();
	rig_wait(&rig, 30ull * 86400 * RIG_S);
	/* The peer's timestamp has advanced by more than 2^31: PAWS does not apply (RFC 7323
	 * section 5.5). */
	rig.tsval += 30u * 86400u * 1000u;
	rig_says(&rig, rig_usual(&rig, TCP_ACK, 100));
	CHECK_EQ(rig.conn->rcv.nxt_seq, rig.seq + 100);
	rig.seq += 100;
	rig_poll(&rig);
	rig_expect(&rig, TCP_ACK);
	rig_reads(&rig, rig.seq - 100, 100);
	exchange_data();
	CHECK_EQ(rig_stat(&rig, "drop_tcp_echo"), 0);
	CHECK_EQ(rig_stat(&rig, "drop_tcp_paws"), 0);
}

TEST(segments_reordered_within_a_clock_tick_are_accepted)
{
	struct rig_say first, second;

	rig_begin(&rig, NULL);
	exchange_data();
	rig.tsval++;
	/* The peer sends two pure ACKs within one tick of its clock, and receives a segment in
	 * between. */
	first = with_echo(rig_usual(&rig, TCP_ACK, 0), rig.tsval, rig.conn->ts.echo_max);
	rig_writes(&rig, 10);
	rig_wait(&rig, 2 * RIG_MS);
	rig_writes(&rig, 10);
	second = rig_usual(&rig, TCP_ACK, 0);
	second.ack += 20;
	CHECK(rig.tsecr != rig.conn->ts.echo_max);
	rig_says(&rig, second);
	rig_says(&rig, first);
	CHECK_EQ(rig_stat(&rig, "drop_tcp_echo"), 0);
}

TEST(a_peer_that_echoes_zero_is_accepted)
{
	rig_open(&rig);
	rig_syn_sent(&rig, NULL);
	rig.tsecr = 0;
	rig_syn_acked(&rig);
	for (unsigned i = 0; i < 3; i++) {
		rig_says(&rig, with_echo(rig_usual(&rig, TCP_ACK, 10), ++rig.tsval, 0));
		rig.seq += 10;
	}
	CHECK_EQ(rig.conn->rcv.nxt_seq, rig.seq);
	CHECK_EQ(rig_stat(&rig, "drop_tcp_echo"), 0);
}

/* The peer echoes values that the stack never sent, from the ACK of the handshake on. That ACK
 * proves that it knows the ISN, so its echoes are not checked. */
TEST(echoes_are_not_checked_after_a_wrong_one_in_the_handshake)
{
	rig_open(&rig);
	rig_listen(&rig, 4);
	rig_syn_received(&rig);
	rig.tsecr += 0x40000000;
	rig_says(&rig, rig_usual(&rig, TCP_ACK, 0));
	CHECK_EQ(harp_tcp_accept(rig.listener, &rig.conn), 0);
	rig_says(&rig, rig_usual(&rig, TCP_ACK | TCP_PSH, 100));
	CHECK_EQ(rig_stat(&rig, "drop_tcp_echo"), 0);
	CHECK_EQ(rig.conn->rcv.nxt_seq, rig.seq + 100);
	rig.out_head = rig.out_tail;
}

/* ---- Challenge ACKs -------------------------------------------------------------------------- */

struct side_channel {
	uint16_t port[2];
	uint32_t seq, ack[2];
	uint32_t challenges[2]; /* challenge ACKs per connection */
	uint64_t trace;         /* hash of their times on connection 0 */
};

static void side_channel_provoke(struct side_channel *s, unsigned which)
{
	struct rig_say say;

	rig.port = s->port[which];
	rig.ack = s->ack[which];
	rig.seq = s->seq;
	say = rig_syn(&rig, TCP_SYN);
	say.seq += 10;
	rig_says(&rig, say);
	while (rig_pending(&rig)) {
		const struct rig_seg *seg = rig_expect(&rig, TCP_ACK);
		unsigned index = seg->src_port == s->port[1];

		s->challenges[index]++;
		if (!index)
			s->trace = (s->trace ^ rig.now_ns) * 0x100000001b3ull;
	}
}

/* Connection 0 is the attacker's, connection 1 the victim's. */
static struct side_channel side_channel_run(bool provoke_victim)
{
	struct side_channel s = { .trace = 1 };
	struct harp_conn *conns[2];

	rig_open(&rig);
	for (unsigned i = 0; i < 2; i++) {
		rig_established(&rig, NULL);
		conns[i] = rig.conn;
		s.port[i] = rig.port;
		s.ack[i] = rig.ack;
		s.seq = rig.seq;
	}
	for (unsigned i = 0; i < 2000; i++) {
		rig_wait(&rig, 5 * RIG_MS);
		if (provoke_victim)
			side_channel_provoke(&s, 1);
		side_channel_provoke(&s, 0);
	}
	harp_conn_abort(conns[0]);
	rig_close(&rig);
	return s;
}

TEST(challenge_acks_reveal_nothing_about_other_connections)
{
	struct side_channel quiet = side_channel_run(false), busy = side_channel_run(true);

	CHECK_EQ(quiet.challenges[1], 0);
	CHECK(busy.challenges[1] >= 40); /* at least half of the budget of ten seconds */
	CHECK(busy.challenges[1] <= 150 && busy.challenges[0] <= 150);
	CHECK_EQ(quiet.challenges[0], busy.challenges[0]);
	CHECK_EQ(quiet.trace, busy.trace); /* to the nanosecond */
}

TEST(a_rst_with_data_into_a_closed_window_is_challenged)
{
	rig_begin(&rig, RIG_OPTIONS(.rx_frames = 4));
	while (conn_rcv_wnd_bytes(rig.conn) > 0) {
		uint32_t wnd = conn_rcv_wnd_bytes(rig.conn);

		rig_says(&rig, rig_usual(&rig, TCP_ACK, wnd < 1448 ? wnd : 1448));
		rig.seq += wnd < 1448 ? wnd : 1448;
		rig_poll(&rig);
	}
	rig.out_head = rig.out_tail;
	rig_says_at(&rig, TCP_RST, 1 << 20, 20);
	rig_silent(&rig);
	/* The RST may have been sent before the peer received the closed window. */
	rig_says_at(&rig, TCP_RST, 1000, 20);
	CHECK_EQ(rig_expect(&rig, TCP_ACK)->ack, rig.seq);
	CHECK_EQ(rig.conn->state, HARP_TCP_ESTABLISHED);
	rig_says_at(&rig, TCP_RST, 0, 20);
	CHECK_EQ(harp_conn_error(rig.conn), -ECONNRESET);
}

/* ---- Initial sequence numbers and timestamp offsets: RFC 6528, RFC 7323 section 5.4 ---------- */

/* Chi-square test over the values of a byte. With 255 degrees of freedom, 1 in 1000 uniform samples
 * exceeds 330.5; the seed is fixed. */
static void check_bytes_even(const uint32_t counts[256], uint32_t draws)
{
	double want = draws / 256.0, chi_square = 0;

	for (unsigned i = 0; i < 256; i++)
		chi_square += (counts[i] - want) * (counts[i] - want) / want;
	CHECK(chi_square < 330.5);
}

TEST(isn_is_a_clock_and_a_secret_per_tuple)
{
	/* counts of byte values: 4 bytes of a value, 4 of its difference from the previous one */
	static uint32_t iss[8][256], offset[8][256];
	struct harp_conn conn;
	uint32_t last_iss = 0, last_offset = 0;

	rig_open(&rig);
	rig_syn_sent(&rig, NULL);
	conn = *rig.conn;
	/* The same 4-tuple a second later. A tick is 4 us (RFC 9293), here 4.096 us because of the
	 * shift. */
	conn.tcp->now_ns += RIG_S;
	tcp_conn_secrets(&conn);
	CHECK_EQ(conn.iss_seq - rig.conn->iss_seq,
		 ((rig.now_ns + RIG_S) >> 12) - (rig.now_ns >> 12));
	CHECK_EQ(conn.ts.offset, rig.conn->ts.offset);
	/* Consecutive remote ports at the same time. */
	for (uint32_t port = 0; port < 65536; port++) {
		conn.remote_port = (uint16_t)port;
		tcp_conn_secrets(&conn);
		for (unsigned i = 0; i < 4; i++) {
			iss[i][(uint8_t)(conn.iss_seq >> 8 * i)]++;
			iss[4 + i][(uint8_t)((conn.iss_seq - last_iss) >> 8 * i)]++;
			offset[i][(uint8_t)(conn.ts.offset >> 8 * i)]++;
			offset[4 + i][(uint8_t)((conn.ts.offset - last_offset) >> 8 * i)]++;
		}
		last_iss = conn.iss_seq;
		last_offset = conn.ts.offset;
	}
	for (unsigned i = 0; i < 8; i++) {
		check_bytes_even(iss[i], 65536);
		check_bytes_even(offset[i], 65536);
	}
}

/*
 * ---- 2^20 guesses ----
 *
 * The probability that one guess hits, for an attacker with all plausible knowledge. P(range) is
 * the probability that a 32-bit number falls into the range: range / 2^32. The number is uniform,
 * or the next of a stride as long as the range.
 *
 * 	RST		P(1): exactly RCV.NXT
 * 	SYN		0
 * 	data, FIN, ACK	P(window + length) for SEG.SEQ, times
 * 			P(MAX.SND.WND + flight + 1) for SEG.ACK, times
 * 			P(ts_sent - ts_echo_min + 1) for TSecr
 *
 * PAWS halves the last one again, which is not counted. An "insider" guess has the exact SEG.SEQ
 * and SEG.ACK and a valid TSval; only the echo is unknown. The bound is the sum over all guesses
 * (the union bound).
 */
struct odds {
	double rst, blind, insider;
};

static double p_range(double range)
{
	return range / 4294967296.0;
}

static struct odds odds_of(const struct harp_conn *conn)
{
	double echo = (conn->options & HARP_TCPI_TIMESTAMPS)
			      ? p_range((double)(conn->ts.sent - conn->ts.echo_min) + 1)
			      : 1;

	return (struct odds){
		.rst = p_range(1),
		.blind = p_range(conn_rcv_wnd_bytes(conn) + 100.0) * echo *
			 p_range((double)conn->snd_wnd_max_bytes + conn_flight_bytes(conn) + 1),
		.insider = echo,
	};
}

struct attacker {
	struct rng rng;
	uint32_t seq, ack, tsecr; /* of the next strided guess */
	double bound;
};

static void attacker_guess(struct attacker *a, const struct odds *odds)
{
	static const uint8_t kinds[] = { TCP_ACK, TCP_ACK | TCP_PSH, TCP_ACK | TCP_FIN, TCP_SYN,
					 TCP_RST };
	const struct harp_conn *conn = rig.conn;
	bool is_insider = odds->insider < 1 && rng_below(&a->rng, 4) == 0;
	bool is_strided = rng_below(&a->rng, 2);
	uint32_t echo_range = conn->ts.sent - conn->ts.echo_min + 1;
	struct rig_say say = { .peer_port = RIG_PEER_PORT,
			       .flags = kinds[rng_below(&a->rng, is_insider ? 3 : 5)],
			       .wnd = rng_below(&a->rng, 65536) };

	a->seq += (say.flags & TCP_RST) ? 1 : conn_rcv_wnd_bytes(conn);
	a->ack += conn->snd_wnd_max_bytes;
	a->tsecr += echo_range;
	say.seq = is_strided ? a->seq : (uint32_t)rng_u64(&a->rng);
	say.ack = is_strided ? a->ack : (uint32_t)rng_u64(&a->rng);
	if (is_insider) {
		say.seq = rig.seq;
		say.ack = rig.ack + rng_below(&a->rng, 1 + conn_flight_bytes(conn));
	}
	if (!(say.flags & TCP_SYN))
		say.len = rng_below(&a->rng, 2) ? rng_below(&a->rng, 100) : 0;
	if (conn->options & HARP_TCPI_TIMESTAMPS)
		say = with_echo(say, is_insider ? rig.tsval : (uint32_t)rng_u64(&a->rng),
				is_strided ? a->tsecr : (uint32_t)rng_u64(&a->rng));
	a->bound += say.flags == TCP_RST   ? odds->rst
		    : say.flags == TCP_SYN ? 0
		    : is_insider           ? odds->insider
					   : odds->blind;
	rig_put(&rig, say);
}

static void test_a_million_guesses(uint64_t seed, bool timestamps)
{
	struct attacker a = { .seq = 0 };
	struct harp_conn before;
	struct odds odds;
	unsigned replies = 0;

	rng_seed(&a.rng, seed);
	a.seq = (uint32_t)rng_u64(&a.rng);
	a.ack = (uint32_t)rng_u64(&a.rng);
	a.tsecr = (uint32_t)rng_u64(&a.rng);
	rig_open(&rig);
	rig.timestamps = timestamps;
	rig_established(&rig, NULL);
	exchange_data();
	CHECK_EQ(!!(rig.conn->options & HARP_TCPI_TIMESTAMPS), timestamps);
	rig_events(&rig);
	odds = odds_of(rig.conn);
	before = *rig.conn;
	for (unsigned i = 0; i < GUESSES; i++) {
		attacker_guess(&a, &odds);
		if (i % 32 != 31)
			continue;
		rig.now_ns += 32 * GUESS_NS;
		rig_poll(&rig);
		replies += rig_pending(&rig);
		rig.out_head = rig.out_tail;
	}
	printf("2^20 guesses %s timestamps: the probability of a hit is at most %.2g (per blind "
	       "guess %.2g, RST %.2g, insider %.2g); %u replies\n",
	       timestamps ? "with" : "without", a.bound, odds.blind, odds.rst,
	       timestamps ? odds.insider : 0.0, replies);
	CHECK(a.bound < 0.01);
	CHECK_EQ(rig.conn->state, HARP_TCP_ESTABLISHED);
	CHECK_EQ(rig.conn->rcv.nxt_seq, before.rcv.nxt_seq);
	CHECK_EQ(rig.conn->snd.una_seq, before.snd.una_seq);
	CHECK_EQ(rig.conn->ts.recent, before.ts.recent);
	CHECK_EQ(rig.conn->snd.wnd_bytes, before.snd.wnd_bytes);
	CHECK_EQ(rig.conn->frames.reass_held, 0);
	CHECK_EQ(rig_events(&rig) & ~HARP_EVENT_WRITABLE, 0);
	/* Almost all replies are challenge ACKs of one second. The others answer guesses that
	 * happen to look like old data. */
	CHECK(replies <= (timestamps ? 3 : 10) * TCP_CHALLENGE_ACKS_PER_S);
	/* The connection still accepts the peer's bytes. */
	rig.tsval += 2000;
	rig_says(&rig, rig_usual(&rig, TCP_ACK, 1000));
	rig_reads(&rig, rig.seq, 1000);
	rig_close(&rig);
}

int main(int argc, char **argv)
{
	uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 5961;

	check_run();
	test_a_million_guesses(seed, true);
	test_a_million_guesses(seed, false);
	return check_done();
}
