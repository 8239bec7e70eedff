/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_driver.c - a device of DPDK's with its arguments: refused, or handed on whole with what HARP adds.
 *
 * Input: a byte that chooses the frames' size, a byte of how much room there is for the answer, and the text.
 */
#include "dpdk/memif.h"
#include "dpdk/port.h"
#include "fuzz.h"

#include <errno.h>

/* A memif's text: refused, or completed to the driver's arguments, which are then accepted unchanged. */
static void memif_text(const char *text)
{
	const struct why why = { 0 };
	struct memif parsed, again;
	int err;

	if (!memif_is(text))
		return;
	err = memif_parse(&parsed, text, &why);
	CHECK(err == 0 || err == -EINVAL);
	if (err)
		return;
	CHECK(strncmp(parsed.text, text, strlen(text)) == 0);
	CHECK(driver_argument(parsed.text, "socket="));
	CHECK(memif_parse(&again, parsed.text, &why) == 0);
	CHECK(strcmp(again.text, parsed.text) == 0);
	CHECK(strcmp(again.address.sun_path, parsed.address.sun_path) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
	struct fuzz_input in = { .at = bytes, .left = len };
	char out[512], again[sizeof(out)], *text = malloc(len + 1);
	uint32_t frame_size = 2048u << fuzz_u8(&in) % 3;
	size_t room = fuzz_u8(&in) + 1, text_len = fuzz_bytes(&in, text, len);
	int got;

	CHECK(text);
	text[text_len] = '\0';
	text_len = strlen(text);
	memif_text(text);
	got = driver_device(text, frame_size, out, room);
	if (got >= 0) {
		CHECK((size_t)got == strlen(out) && (size_t)got < room);
		CHECK(strncmp(out, text, text_len) == 0);
		CHECK(out[text_len] == '\0' || out[text_len] == ',');
		/* What was added is what was missing: nothing is, now. */
		CHECK(driver_device(out, frame_size, again, sizeof(again)) == got);
		CHECK(strcmp(again, out) == 0);
	} else {
		CHECK(got == -ENAMETOOLONG);
	}
	free(text);
	return 0;
}
