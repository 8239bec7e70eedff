/* SPDX-License-Identifier: Apache-2.0 */
/* test_record.c - record headers (docs/lanes.md section 4) are decoded as encoded, and reserved
 * bits are refused. */
#include <errno.h>
#include <string.h>

#include "check.h"
#include "wire/record.h"

#define AT_FLAGS 1
#define AT_FLAGS_END 4
#define AT_LAST 36

static const struct record records[] = {
	{ .type = RECORD_DATA, .length = 64, .message = 7, .total = 192, .offset = 64, .tag = 9 },
	{ .type = RECORD_CREDIT, .length = 16, .message = 5, .total = 7 },
	{ .type = RECORD_ACK, .message = 5, .offset = 1048576 },
	{ .type = RECORD_CLOSE, .message = 5, .total = 8, .offset = 9, .tag = CLOSE_TRUNCATED },
};

#define RECORDS (sizeof(records) / sizeof(*records))

TEST(a_header_is_decoded_as_encoded)
{
	for (size_t i = 0; i < RECORDS; i++) {
		const struct record *in = &records[i];
		uint8_t bytes[RECORD_HEADER_BYTES];
		struct record out;
		const char *what;

		record_encode(bytes, in);
		CHECK_EQ(record_decode(bytes, &out, &what), 0);
		CHECK(!what);
		CHECK_EQ(out.type, in->type);
		CHECK_EQ(out.length, in->length);
		CHECK_EQ(out.message, in->message);
		CHECK_EQ(out.total, in->total);
		CHECK_EQ(out.offset, in->offset);
		CHECK_EQ(out.tag, in->tag);
	}
}

/* Each bit of the flags and of the reserved fields. */
TEST(reserved_bits_are_refused)
{
	for (size_t i = 0; i < RECORDS; i++) {
		for (unsigned bit = 0; bit < 8 * RECORD_HEADER_BYTES; bit++) {
			unsigned at = bit / 8;
			uint8_t bytes[RECORD_HEADER_BYTES];
			struct record out;
			const char *what;

			if (at < AT_FLAGS || (at >= AT_FLAGS_END && at < AT_LAST))
				continue;
			record_encode(bytes, &records[i]);
			bytes[at] ^= (uint8_t)(1u << bit % 8);
			CHECK_EQ(record_decode(bytes, &out, &what), -EPROTO);
			CHECK(strstr(what, "reserved bits") != NULL);
		}
	}
}
