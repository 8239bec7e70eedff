/* SPDX-License-Identifier: Apache-2.0 */
/* tcp_options.c - parses and writes TCP options. */
#include "transport/tcp_options.h"

#include "base/endian.h"

enum {
	KIND_END = 0,
	KIND_NOP = 1,
	KIND_MSS = 2,
	KIND_WSCALE = 3,
	KIND_SACK_PERMITTED = 4,
	KIND_SACK = 5,
	KIND_TIMESTAMP = 8,
};

static bool options_parse_sack(const uint8_t *body, uint32_t len, struct tcp_options *out)
{
	if (len == 0 || len % 8 != 0 || len / 8 > TCP_SACK_BLOCKS_MAX)
		return false;
	out->sack_count = len / 8;
	for (uint32_t i = 0; i < out->sack_count; i++) {
		out->sack[i].start_seq = be32_load(body + i * 8);
		out->sack[i].end_seq = be32_load(body + i * 8 + 4);
	}
	out->seen |= TCP_OPT_SACK;
	return true;
}

/* Parses one option with a body of len bytes; ignores unknown ones (RFC 9293 MUST-6). */
static bool options_parse_one(uint8_t kind, const uint8_t *body, uint32_t len,
			      struct tcp_options *out)
{
	switch (kind) {
	case KIND_MSS:
		if (len != 2)
			return false;
		out->mss_bytes = (uint16_t)(body[0] << 8 | body[1]);
		out->seen |= TCP_OPT_MSS;
		return true;
	case KIND_WSCALE:
		if (len != 1)
			return false;
		/* RFC 7323 section 2.3: "If a shift.cnt value larger than 14 is received ... the
		 * TCP SHOULD log the error but MUST use 14 instead". */
		out->wscale = body[0] > TCP_WSCALE_MAX ? TCP_WSCALE_MAX : body[0];
		out->seen |= TCP_OPT_WSCALE;
		return true;
	case KIND_SACK_PERMITTED:
		if (len != 0)
			return false;
		out->seen |= TCP_OPT_SACK_PERMITTED;
		return true;
	case KIND_SACK:
		return options_parse_sack(body, len, out);
	case KIND_TIMESTAMP:
		if (len != 8)
			return false;
		out->tsval = be32_load(body);
		out->tsecr = be32_load(body + 4);
		out->seen |= TCP_OPT_TIMESTAMP;
		return true;
	default:
		return true;
	}
}

bool tcp_options_parse(const uint8_t *bytes, uint32_t len, struct tcp_options *out)
{
	uint32_t i = 0;

	out->seen = 0;
	out->sack_count = 0;
	out->tsval = 0;
	out->tsecr = 0;
	while (i < len) {
		uint8_t kind = bytes[i], size;

		if (kind == KIND_END)
			return true;
		if (kind == KIND_NOP) {
			i++;
			continue;
		}
		if (i + 2 > len)
			return false;
		size = bytes[i + 1];
		if (size < 2 || i + size > len)
			return false;
		if (!options_parse_one(kind, bytes + i + 2, size - 2u, out))
			return false;
		i += size;
	}
	return true;
}

uint32_t tcp_options_write_sack(uint8_t *at, const struct tcp_options *opt)
{
	uint32_t body = 2 + 8 * opt->sack_count;

	be32_store(at, KIND_NOP << 24 | KIND_NOP << 16 | KIND_SACK << 8 | body);
	for (uint32_t i = 0; i < opt->sack_count; i++) {
		be32_store(at + 4 + 8 * i, opt->sack[i].start_seq);
		be32_store(at + 8 + 8 * i, opt->sack[i].end_seq);
	}
	return 2 + body;
}

uint32_t tcp_options_write_syn(uint8_t *at, const struct tcp_options *opt)
{
	uint8_t *p = at;

	if (opt->seen & TCP_OPT_MSS) {
		be32_store(p, (uint32_t)KIND_MSS << 24 | 4u << 16 | opt->mss_bytes);
		p += 4;
	}
	if (opt->seen & TCP_OPT_TIMESTAMP) {
		if (opt->seen & TCP_OPT_SACK_PERMITTED) {
			/* SACK-permitted replaces the two NOPs. */
			be32_store(p,
				   KIND_SACK_PERMITTED << 24 | 2u << 16 | KIND_TIMESTAMP << 8 | 10);
			be32_store(p + 4, opt->tsval);
			be32_store(p + 8, opt->tsecr);
		} else {
			tcp_options_write_timestamp(p, opt->tsval, opt->tsecr);
		}
		p += TCP_OPTIONS_TIMESTAMP_BYTES;
	} else if (opt->seen & TCP_OPT_SACK_PERMITTED) {
		be32_store(p, KIND_NOP << 24 | KIND_NOP << 16 | KIND_SACK_PERMITTED << 8 | 2);
		p += 4;
	}
	if (opt->seen & TCP_OPT_WSCALE) {
		be32_store(p, (uint32_t)KIND_NOP << 24 | KIND_WSCALE << 16 | 3u << 8 | opt->wscale);
		p += 4;
	}
	return (uint32_t)(p - at);
}
