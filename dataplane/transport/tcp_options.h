/* SPDX-License-Identifier: Apache-2.0 */
/* tcp_options.h - TCP options: RFC 9293 section 3.2, RFC 7323, RFC 2018. */
#ifndef HARP_TRANSPORT_TCP_OPTIONS_H
#define HARP_TRANSPORT_TCP_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/checksum.h"
#include "base/endian.h"

#define TCP_OPTIONS_BYTES_MAX 40u
#define TCP_OPTIONS_TIMESTAMP_BYTES 12u /* NOP NOP TSopt, the layout of RFC 7323 appendix A */
#define TCP_WSCALE_MAX 14u              /* RFC 7323 section 2.3 */
#define TCP_SACK_BLOCKS_MAX 4u

enum tcp_option_seen {
	TCP_OPT_MSS = 0x01,
	TCP_OPT_WSCALE = 0x02,
	TCP_OPT_SACK_PERMITTED = 0x04,
	TCP_OPT_SACK = 0x08,
	TCP_OPT_TIMESTAMP = 0x10,
};

struct tcp_sack_block {
	uint32_t start_seq, end_seq;
};

struct tcp_options {
	uint8_t seen; /* enum tcp_option_seen */
	uint8_t wscale;
	uint16_t mss_bytes;
	uint32_t tsval, tsecr;
	uint32_t sack_count;
	struct tcp_sack_block sack[TCP_SACK_BLOCKS_MAX];
};

/* Parses len bytes of options and skips unknown ones. False: an option's length is below 2, beyond
 * the end, or invalid for its kind. */
bool tcp_options_parse(const uint8_t *bytes, uint32_t len, struct tcp_options *out);

/* NOP, NOP, and the timestamp option's kind and length (RFC 7323 appendix A). */
#define TCP_OPTIONS_TIMESTAMP_WORD 0x0101080au

/* Parses the common cases: no options, or NOP NOP TSopt. False: use tcp_options_parse(). */
static inline bool tcp_options_parse_fast(const uint8_t *bytes, uint32_t len,
					  struct tcp_options *out)
{
	out->seen = 0;
	out->sack_count = 0;
	out->tsval = 0;
	out->tsecr = 0;
	if (len == 0)
		return true;
	if (len != TCP_OPTIONS_TIMESTAMP_BYTES || be32_load(bytes) != TCP_OPTIONS_TIMESTAMP_WORD)
		return false;
	out->seen = TCP_OPT_TIMESTAMP;
	out->tsval = be32_load(bytes + 4);
	out->tsecr = be32_load(bytes + 8);
	return true;
}

/* Writes NOP NOP TSopt, TCP_OPTIONS_TIMESTAMP_BYTES long; returns their checksum. */
static inline uint32_t tcp_options_write_timestamp(uint8_t *at, uint32_t tsval, uint32_t tsecr)
{
	be32_store(at, TCP_OPTIONS_TIMESTAMP_WORD);
	be32_store(at + 4, tsval);
	be32_store(at + 8, tsecr);
	return csum_add(htobe32(TCP_OPTIONS_TIMESTAMP_WORD),
			csum_add(htobe32(tsval), htobe32(tsecr)));
}

/* Writes NOP NOP SACK with opt->sack_count blocks and returns the length, a multiple of 4. */
uint32_t tcp_options_write_sack(uint8_t *at, const struct tcp_options *opt);

/* Writes the options of a SYN that `seen` selects and returns their length, a multiple of 4. */
uint32_t tcp_options_write_syn(uint8_t *at, const struct tcp_options *opt);

#endif
