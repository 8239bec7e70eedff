/* SPDX-License-Identifier: Apache-2.0 */
/* test_retry.c - for how long a connect goes on, by what it hears; by a clock that the test turns. */
#include "connect/rounds.h"

#include "check.h"

#define MS UINT64_C(1000000)
#define BEGIN_NS (7000 * MS)
#define TIMEOUT_NS (30000 * MS)

/* Rounds of this kind until it gives up, or `most`; the time that took. */
static uint64_t goes_on(struct rounds *r, enum rounds_kind kind, unsigned most, unsigned *rounds)
{
	uint64_t now_ns = BEGIN_NS;

	for (*rounds = 1; *rounds < most; (*rounds)++) {
		rounds_note(r, kind);
		if (!rounds_again(r, now_ns))
			break;
		CHECK(r->not_before_ns > now_ns);
		now_ns = r->not_before_ns;
	}
	return now_ns - BEGIN_NS;
}

TEST(patience)
{
	unsigned rounds;

	for (uint64_t spread = 0; spread < 100; spread++) {
		struct rounds r;
		uint64_t took_ns;

		rounds_init(&r, TIMEOUT_NS, spread * 0x9e3779b97f4a7c15ull);
		CHECK_EQ(goes_on(&r, ROUNDS_WRONG, 1000, &rounds), 350 * MS);
		CHECK_EQ(rounds, 4);
		rounds_init(&r, TIMEOUT_NS, spread * 0x9e3779b97f4a7c15ull);
		took_ns = goes_on(&r, ROUNDS_REFUSED, 1000, &rounds);
		CHECK(took_ns >= TIMEOUT_NS / 10 && took_ns < TIMEOUT_NS / 10 + 800 * MS);
		rounds_init(&r, TIMEOUT_NS, spread * 0x9e3779b97f4a7c15ull);
		took_ns = goes_on(&r, ROUNDS_UNKNOWN, 1000, &rounds);
		CHECK(took_ns >= TIMEOUT_NS / 3 && took_ns < TIMEOUT_NS / 3 + 1600 * MS);
		rounds_init(&r, TIMEOUT_NS, spread * 0x9e3779b97f4a7c15ull);
		took_ns = goes_on(&r, ROUNDS_TURNED_AWAY, 1000, &rounds);
		CHECK_EQ(rounds, 1000);
		CHECK(took_ns > 700000 * MS); /* the deadline is the caller's */
	}
}

/* However short the time: what is refused is tried four times. */
TEST(little_time)
{
	struct rounds r;
	unsigned rounds;

	rounds_init(&r, 100 * MS, 1);
	CHECK_EQ(goes_on(&r, ROUNDS_REFUSED, 1000, &rounds), 350 * MS);
	CHECK_EQ(rounds, 4);
}

/* A round's attempts have several drivers, each with a clock of its own: what is older takes no patience away. */
TEST(an_older_clock)
{
	struct rounds r;

	rounds_init(&r, TIMEOUT_NS, 0);
	rounds_note(&r, ROUNDS_UNKNOWN);
	CHECK(rounds_again(&r, BEGIN_NS));
	rounds_note(&r, ROUNDS_UNKNOWN);
	CHECK(rounds_again(&r, BEGIN_NS - 1));
}

/* The best answer of a round counts, and somebody who knows us gives all the time back. */
TEST(mixed)
{
	struct rounds r;

	rounds_init(&r, TIMEOUT_NS, 0);
	rounds_note(&r, ROUNDS_UNKNOWN);
	rounds_note(&r, ROUNDS_REFUSED); /* the other door */
	CHECK(rounds_again(&r, BEGIN_NS));
	rounds_note(&r, ROUNDS_UNKNOWN);
	CHECK(rounds_again(&r, BEGIN_NS + TIMEOUT_NS / 3 - 1));
	rounds_note(&r, ROUNDS_TURNED_AWAY);
	rounds_note(&r, ROUNDS_WRONG);
	CHECK(rounds_again(&r, BEGIN_NS + TIMEOUT_NS / 3));
	rounds_note(&r, ROUNDS_UNKNOWN);
	CHECK(rounds_again(&r, BEGIN_NS + TIMEOUT_NS / 2));
	rounds_note(&r, ROUNDS_UNKNOWN);
	CHECK(rounds_again(&r, BEGIN_NS + TIMEOUT_NS / 2 + TIMEOUT_NS / 3 - 1));
	rounds_note(&r, ROUNDS_REFUSED);
	CHECK(!rounds_again(&r, BEGIN_NS + TIMEOUT_NS / 2 + TIMEOUT_NS / 3));
}

/* Hundreds that were pushed out together don't come back together. */
TEST(spread)
{
	uint64_t first_ns = UINT64_MAX, last_ns = 0;

	for (uint64_t spread = 0; spread < 1000; spread++) {
		struct rounds r;

		rounds_init(&r, TIMEOUT_NS, spread * 0x9e3779b97f4a7c15ull);
		rounds_note(&r, ROUNDS_TURNED_AWAY);
		CHECK(rounds_again(&r, BEGIN_NS));
		CHECK(r.not_before_ns >= BEGIN_NS + 50 * MS &&
		      r.not_before_ns < BEGIN_NS + 100 * MS);
		first_ns = r.not_before_ns < first_ns ? r.not_before_ns : first_ns;
		last_ns = r.not_before_ns > last_ns ? r.not_before_ns : last_ns;
	}
	CHECK(last_ns - first_ns > 45 * MS);
}

/* Of a round what tells most is said, of several rounds the last; an attempt that had no time says nothing new. */
TEST(what_is_said)
{
	struct rounds r;

	rounds_init(&r, TIMEOUT_NS, 0);
	CHECK(rounds_reports(&r, ROUNDS_NOT_TRIED, false)); /* better than nothing */
	CHECK(rounds_reports(&r, ROUNDS_SILENCE, true)); /* so is this: there was none before it */
	CHECK(rounds_reports(&r, ROUNDS_PEER, false));
	CHECK(!rounds_reports(&r, ROUNDS_NO_WAY, false));
	CHECK(!rounds_reports(&r, ROUNDS_NOT_TRIED, false));
	CHECK(rounds_reports(&r, ROUNDS_PEER, false));
	CHECK(rounds_again(&r, BEGIN_NS));
	CHECK(rounds_reports(&r, ROUNDS_NO_WAY, false)); /* the peer has gone since */
	CHECK(!rounds_reports(&r, ROUNDS_SILENCE, false));
	CHECK(rounds_again(&r, BEGIN_NS));
	CHECK(!rounds_reports(&r, ROUNDS_SILENCE, true));
	CHECK(!rounds_reports(&r, ROUNDS_PEER, true));
}
