/* SPDX-License-Identifier: Apache-2.0 */
/* test_base.c - addresses as text, random numbers, SipHash, and the library's threads. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>

#include "base/rng.h"
#include "base/siphash.h"
#include "base/thread.h"
#include "check.h"
#include "harp.h"

/* ---- addresses ------------------------------------------------------------------------------- */

TEST(addresses_round_trip)
{
	static const char *const texts[] = {
		"0.0.0.0", "10.0.0.1", "255.255.255.255", "::",
		"::1",     "fd00::1",  "fe80::1:2:3:4",   "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
	};
	char buf[HARP_ADDR_TEXT_MAX];
	struct harp_addr addr;

	for (unsigned i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		CHECK_EQ(harp_addr_parse(texts[i], &addr), 0);
		CHECK_STR(harp_addr_format(&addr, buf), texts[i]);
		CHECK_EQ(harp_addr_is_v4(&addr), strchr(texts[i], '.') != NULL);
	}
	/* An IPv4-mapped IPv6 address is IPv4. */
	CHECK_EQ(harp_addr_parse("::ffff:10.1.2.3", &addr), 0);
	CHECK(harp_addr_is_v4(&addr));
	CHECK_STR(harp_addr_format(&addr, buf), "10.1.2.3");
	struct harp_addr expected = harp_addr_v4(10, 1, 2, 3);

	CHECK_MEM(&expected, &addr, sizeof(addr));
}

/* fe80::/10. */
TEST(link_local_addresses_are_recognized)
{
	static const char *const link_local[] = { "fe80::", "fe80::1", "febf:ffff::1" };
	static const char *const others[] = { "fe7f::1", "fec0::1", "fd00::1", "169.254.1.1",
					      "::" };
	struct harp_addr addr;

	for (unsigned i = 0; i < sizeof(link_local) / sizeof(link_local[0]); i++) {
		CHECK_EQ(harp_addr_parse(link_local[i], &addr), 0);
		CHECK(harp_addr_is_link_local(&addr));
	}
	for (unsigned i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
		CHECK_EQ(harp_addr_parse(others[i], &addr), 0);
		CHECK(!harp_addr_is_link_local(&addr));
	}
}

TEST(invalid_addresses_are_refused)
{
	static const char *const texts[] = { "",          "10.0.0",    "10.0.0.256", "10.0.0.1 ",
					     "1.2.3.4:5", "fd00::1%3", "example",    ":::" };
	struct harp_addr addr = harp_addr_v4(9, 9, 9, 9), before = addr;

	for (unsigned i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		CHECK_EQ(harp_addr_parse(texts[i], &addr), -EINVAL);
	CHECK_EQ(harp_addr_parse(NULL, &addr), -EINVAL);
	CHECK_MEM(&addr, &before, sizeof(addr)); /* untouched on failure */
}

TEST(endpoints_are_formatted)
{
	char buf[HARP_ENDPOINT_TEXT_MAX];
	struct harp_endpoint ep = { .addr = harp_addr_v4(192, 168, 100, 200), .port = 65535 };

	CHECK_STR(harp_endpoint_format(&ep, buf), "192.168.100.200:65535");
	CHECK_EQ(harp_addr_parse("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", &ep.addr), 0);
	CHECK_STR(harp_endpoint_format(&ep, buf),
		  "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535");
	ep.scope_id = UINT32_MAX; /* omitted unless the address is link-local */
	CHECK_STR(harp_endpoint_format(&ep, buf),
		  "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535");
	CHECK_EQ(harp_addr_parse("fe80::ffff:ffff:ffff:ffff", &ep.addr), 0);
	CHECK_STR(harp_endpoint_format(&ep, buf), "[fe80::ffff:ffff:ffff:ffff%4294967295]:65535");
	ep.scope_id = 2;
	CHECK_STR(harp_endpoint_format(&ep, buf), "[fe80::ffff:ffff:ffff:ffff%2]:65535");
}

TEST(the_version_begins_with_a_digit)
{
	CHECK(harp_version()[0] >= '0' && harp_version()[0] <= '9');
}

/* ---- random numbers -------------------------------------------------------------------------- */

/* splitmix64 with seed 1234567 fills the state (test vector of Rosetta Code). */
TEST(a_seed_fills_the_state)
{
	struct rng rng;

	rng_seed(&rng, 1234567);
	CHECK_EQ(rng.s[0], 6457827717110365317u);
	CHECK_EQ(rng.s[1], 3203168211198807973u);
	CHECK_EQ(rng.s[2], 9817491932198370423u);
	CHECK_EQ(rng.s[3], 4593380528125082431u);
}

/* First outputs from the state 1, 2, 3, 4 (test vector of rand_xoshiro, from the C reference). */
TEST(the_sequence_matches_the_reference)
{
	static const uint64_t want[] = {
		11520u,
		0u,
		1509978240u,
		1215971899390074240u,
		1216172134540287360u,
		607988272756665600u,
		16172922978634559625u,
		8476171486693032832u,
		10595114339597558777u,
		2904607092377533576u,
	};
	struct rng rng = { .s = { 1, 2, 3, 4 } };

	for (unsigned i = 0; i < 10; i++)
		CHECK_EQ(rng_u64(&rng), want[i]);
}

TEST(bounded_numbers_are_uniform)
{
	struct rng rng;
	unsigned count[7] = { 0 };

	rng_seed(&rng, 5);
	for (unsigned i = 0; i < 70000; i++) {
		uint32_t x = rng_below(&rng, 7);

		CHECK(x < 7);
		count[x < 7 ? x : 0]++;
	}
	for (unsigned i = 0; i < 7; i++) /* 10 standard deviations */
		CHECK(count[i] > 9000 && count[i] < 11000);
	CHECK_EQ(rng_below(&rng, 1), 0);
}

/* ---- SipHash --------------------------------------------------------------------------------- */

/* From vectors.h of the reference implementation: key 00..0f, input 00 01 .. (i - 1). */
static const uint8_t vectors[16][8] = {
	{ 0x31, 0x0e, 0x0e, 0xdd, 0x47, 0xdb, 0x6f, 0x72 },
	{ 0xfd, 0x67, 0xdc, 0x93, 0xc5, 0x39, 0xf8, 0x74 },
	{ 0x5a, 0x4f, 0xa9, 0xd9, 0x09, 0x80, 0x6c, 0x0d },
	{ 0x2d, 0x7e, 0xfb, 0xd7, 0x96, 0x66, 0x67, 0x85 },
	{ 0xb7, 0x87, 0x71, 0x27, 0xe0, 0x94, 0x27, 0xcf },
	{ 0x8d, 0xa6, 0x99, 0xcd, 0x64, 0x55, 0x76, 0x18 },
	{ 0xce, 0xe3, 0xfe, 0x58, 0x6e, 0x46, 0xc9, 0xcb },
	{ 0x37, 0xd1, 0x01, 0x8b, 0xf5, 0x00, 0x02, 0xab },
	{ 0x62, 0x24, 0x93, 0x9a, 0x79, 0xf5, 0xf5, 0x93 },
	{ 0xb0, 0xe4, 0xa9, 0x0b, 0xdf, 0x82, 0x00, 0x9e },
	{ 0xf3, 0xb9, 0xdd, 0x94, 0xc5, 0xbb, 0x5d, 0x7a },
	{ 0xa7, 0xad, 0x6b, 0x22, 0x46, 0x2f, 0xb3, 0xf4 },
	{ 0xfb, 0xe5, 0x0e, 0x86, 0xbc, 0x8f, 0x1e, 0x75 },
	{ 0x90, 0x3d, 0x84, 0xc0, 0x27, 0x56, 0xea, 0x14 },
	{ 0xee, 0xf2, 0x7a, 0x8e, 0x90, 0xca, 0x23, 0xf7 },
	{ 0xe5, 0x45, 0xbe, 0x49, 0x61, 0xca, 0x29, 0xa1 },
};

TEST(hashes_match_the_reference)
{
	const struct siphash_key key = { { 0x0706050403020100u, 0x0f0e0d0c0b0a0908u } };
	uint8_t data[16];

	for (unsigned i = 0; i < 16; i++)
		data[i] = (uint8_t)i;
	for (unsigned len = 0; len < 16; len++) {
		uint64_t got = siphash24(&key, data, len), want = 0;

		for (unsigned i = 0; i < 8; i++)
			want |= (uint64_t)vectors[len][i] << (8 * i);
		CHECK_EQ(got, want);
	}
	/* Appendix A of the paper. */
	CHECK_EQ(siphash24(&key, data, 15), 0xa129ca6149be45e5u);
}

/* ---- threads --------------------------------------------------------------------------------- */

static pthread_barrier_t name_read; /* the thread ends when its name has been read */

static void *task(void *arg)
{
	pthread_sigmask(SIG_SETMASK, NULL, arg);
	pthread_barrier_wait(&name_read);
	return arg;
}

/* Ignores the signals that cannot be blocked and the two that glibc uses. */
static bool blocks_all(const sigset_t *mask)
{
	for (int signal = 1; signal <= SIGRTMAX; signal++)
		if (signal != SIGKILL && signal != SIGSTOP && (signal < 32 || signal >= SIGRTMIN) &&
		    sigismember(mask, signal) != 1)
			return false;
	return true;
}

TEST(a_thread_has_a_name_and_blocks_signals)
{
	sigset_t mask, before, after;
	char name[16];
	pthread_t id;
	void *result;

	sigemptyset(&before);
	sigaddset(&before, SIGUSR1);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_barrier_init(&name_read, NULL, 2);
	CHECK_EQ(thread_start(&id, task, &mask, "harp-test"), 0);
	pthread_sigmask(SIG_SETMASK, NULL, &after);
	CHECK_EQ(pthread_getname_np(id, name, sizeof(name)), 0);
	CHECK_STR(name, "harp-test");
	pthread_barrier_wait(&name_read);
	pthread_join(id, &result);
	pthread_barrier_destroy(&name_read);
	CHECK(result == &mask);
	CHECK(blocks_all(&mask));
	CHECK_EQ(sigismember(&after, SIGUSR1), 1);
	CHECK_EQ(sigismember(&after, SIGUSR2), 0);
}
