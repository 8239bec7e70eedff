/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_options.c - TCP options: both parsers agree, and written options are parsed again. */
#include "transport/tcp_options.h"

#include "fuzz.h"

static void check_options(const struct tcp_options *opt)
{
	CHECK(!(opt->seen & TCP_OPT_SACK) || opt->sack_count <= TCP_SACK_BLOCKS_MAX);
	CHECK(!(opt->seen & TCP_OPT_WSCALE) || opt->wscale <= TCP_WSCALE_MAX);
}

/* The options of a SYN survive being written and parsed. */
static void check_round_trip(const struct tcp_options *opt)
{
	uint8_t bytes[TCP_OPTIONS_BYTES_MAX];
	struct tcp_options syn = *opt, again;
	uint32_t len;

	syn.seen &= TCP_OPT_MSS | TCP_OPT_WSCALE | TCP_OPT_TIMESTAMP | TCP_OPT_SACK_PERMITTED;
	len = tcp_options_write_syn(bytes, &syn);
	CHECK(len <= sizeof(bytes) && len % 4 == 0);
	CHECK(tcp_options_parse(bytes, len, &again));
	CHECK(again.seen == syn.seen);
	if (syn.seen & TCP_OPT_MSS)
		CHECK(again.mss_bytes == syn.mss_bytes);
	if (syn.seen & TCP_OPT_WSCALE)
		CHECK(again.wscale == syn.wscale);
	if (syn.seen & TCP_OPT_TIMESTAMP)
		CHECK(again.tsval == syn.tsval && again.tsecr == syn.tsecr);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
	struct tcp_options fast, slow;
	bool fast_good, slow_good;

	if (len > TCP_OPTIONS_BYTES_MAX)
		len = TCP_OPTIONS_BYTES_MAX;
	memset(&fast, 0xa5, sizeof(fast));
	memset(&slow, 0x5a, sizeof(slow));
	fast_good = tcp_options_parse_fast(bytes, (uint32_t)len, &fast);
	slow_good = tcp_options_parse(bytes, (uint32_t)len, &slow);
	if (fast_good) {
		CHECK(slow_good && fast.seen == slow.seen);
		if (fast.seen & TCP_OPT_TIMESTAMP)
			CHECK(fast.tsval == slow.tsval && fast.tsecr == slow.tsecr);
	}
	if (slow_good) {
		check_options(&slow);
		check_round_trip(&slow);
	}
	return 0;
}
