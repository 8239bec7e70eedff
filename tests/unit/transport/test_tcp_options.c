/* SPDX-License-Identifier: Apache-2.0 */
/* test_tcp_options.c - options parsed; every malformed length is refused. tests/fuzz/fuzz_options.c
 * writes options, parses them again, and compares the fast parser with the full one. */
#include "transport/tcp_options.h"

#include "base/util.h"
#include "check.h"

TEST(malformed_options_are_refused)
{
	static const struct {
		uint8_t len, bytes[12];
	} bad[] = {
		{ 1, { 2 } },    /* no length */
		{ 2, { 2, 0 } }, /* a length that never ends */
		{ 2, { 2, 1 } },
		{ 4, { 2, 5, 1, 2 } },       /* beyond the end */
		{ 3, { 2, 3, 5 } },          /* an MSS of one byte */
		{ 4, { 3, 4, 1, 1 } },       /* a window scale of two */
		{ 4, { 4, 3, 0, 0 } },       /* SACK-permitted with a body */
		{ 6, { 5, 6, 0, 0, 0, 0 } }, /* half a SACK block */
		{ 10, { 8, 9, 0 } },         /* a short timestamp */
	};
	struct tcp_options out;

	for (unsigned i = 0; i < ARRAY_SIZE(bad); i++)
		CHECK(!tcp_options_parse(bad[i].bytes, bad[i].len, &out));
}

TEST(unknown_and_padded_options_are_accepted)
{
	static const uint8_t unknown[] = { 254, 4, 1, 2, 1, 2, 4, 5, 180 };
	static const uint8_t ended[] = { 1, 0, 2, 99 }; /* rubbish behind the end */
	static const uint8_t scale[] = { 3, 3, 200 };   /* RFC 7323 section 2.3 */
	static const uint8_t sack[] = { 5, 18, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 5, 0, 0, 0, 9 };
	struct tcp_options out;

	CHECK(tcp_options_parse(unknown, sizeof(unknown), &out));
	CHECK_EQ(out.seen, TCP_OPT_MSS);
	CHECK_EQ(out.mss_bytes, 1460);
	CHECK(tcp_options_parse(ended, sizeof(ended), &out));
	CHECK_EQ(out.seen, 0);
	CHECK(tcp_options_parse(scale, sizeof(scale), &out));
	CHECK_EQ(out.wscale, 14);
	CHECK(tcp_options_parse(sack, sizeof(sack), &out));
	CHECK_EQ(out.sack_count, 2);
	CHECK_EQ(out.sack[1].end_seq, 9);
}

/* Every kind with every length, behind a timestamp and first: the parser stays within the options
 * and ends. */
TEST(every_option_of_every_length_is_parsed)
{
	struct tcp_options out;

	for (unsigned kind = 0; kind < 256; kind++) {
		for (unsigned size = 0; size <= TCP_OPTIONS_BYTES_MAX; size++) {
			for (unsigned at = 0; at <= TCP_OPTIONS_TIMESTAMP_BYTES; at += 12) {
				uint8_t *bytes = malloc(TCP_OPTIONS_BYTES_MAX); /* for ASan */

				CHECK(bytes != NULL);
				memset(bytes, (int)(kind * 41 + size), TCP_OPTIONS_BYTES_MAX);
				if (at)
					tcp_options_write_timestamp(bytes, 5, 6);
				bytes[at] = (uint8_t)kind;
				bytes[at + 1] = (uint8_t)size;
				(void)tcp_options_parse(bytes, TCP_OPTIONS_BYTES_MAX, &out);
				CHECK(out.sack_count <= TCP_SACK_BLOCKS_MAX);
				free(bytes);
			}
		}
	}
}
