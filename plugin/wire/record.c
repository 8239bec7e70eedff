/* SPDX-License-Identifier: Apache-2.0 */
/* record.c - encodes and validates record headers. */
#include "wire/record.h"

#include <errno.h>
#include <string.h>

#include "base/util.h"

void record_encode(uint8_t out[RECORD_HEADER_BYTES], const struct record *record)
{
	memcpy(out, record, RECORD_HEADER_BYTES);
}

static const char *record_check_data(const struct record *r)
{
	if (r->total > RECORD_TOTAL_MAX)
		return "a message of impossible size";
	if (r->length > RECORD_LENGTH_MAX)
		return "a DATA record of impossible length";
	if (r->offset > r->total || r->length > r->total - r->offset)
		return "a DATA record that ends behind its message";
	if (r->offset % RECORD_OFFSET_ALIGN)
		return "a DATA record at an unaligned offset";
	if (!r->length && r->total)
		return "an empty DATA record in a message that is not empty";
	if (r->offset + r->length < r->total && r->length % RECORD_OFFSET_ALIGN)
		return "a DATA record of unaligned length inside its message";
	return NULL;
}

static const char *record_check_credit(const struct record *r)
{
	uint64_t count = r->length / 8;

	if (r->length % 8 || count > RECORD_CREDITS_MAX)
		return "a CREDIT record of impossible length";
	if (r->message > UINT64_MAX - count || r->message + count != r->total)
		return "a CREDIT record whose counts disagree";
	return NULL;
}

int record_decode(const uint8_t in[RECORD_HEADER_BYTES], struct record *record, const char **what)
{
	const char *violation = NULL;

	memcpy(record, in, RECORD_HEADER_BYTES);
	if (record->flags || record->reserved16 || record->reserved32) {
		violation = "a record with reserved bits set";
	} else {
		switch (record->type) {
		case RECORD_DATA:
			violation = record_check_data(record);
			break;
		case RECORD_CREDIT:
			violation = record_check_credit(record);
			break;
		case RECORD_ACK:
		case RECORD_CLOSE:
			if (record->length)
				violation = "an ACK or CLOSE record with payload";
			break;
		default:
			violation = "a record of unknown type";
		}
	}
	*what = violation;
	return violation ? -EPROTO : 0;
}

const char *record_close_reason_text(uint32_t reason)
{
	static const char *const texts[] = {
		[CLOSE_ORDERLY] = "the peer closed the connection",
		[CLOSE_TRUNCATED] = "the peer posted a receive smaller than the message (message "
				    "truncated)",
		[CLOSE_PROTOCOL] = "the peer saw a protocol error",
		[CLOSE_ABORTED] = "the peer aborted",
		[CLOSE_LOCAL] = "the peer had a local error",
	};

	return reason < ARRAY_SIZE(texts) ? texts[reason]
					  : "the peer closed the connection for an unknown reason";
}
