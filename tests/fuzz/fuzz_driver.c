/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_driver.c - the text of a DPDK device with its arguments: rejected, or kept whole and
 * completed with HARP's arguments.
 *
 * Input: a byte that chooses the frame size, a byte for the size of the output buffer, and the
 * text.
 */
#include "dpdk/memif.h"
#include "dpdk/port.h"
#include "fuzz.h"

#include <errno.h>

/* The text of a memif is rejected, or completed with driver arguments. The result parses
 * unchanged. */
static void check_memif(const char *text)
{
	const struct why why = { 0 };
	struct memif parsed, reparsed;
	int err;

	if (!memif_is(text))
		return;
	err = memif_parse(&parsed, text, &why);
	CHECK(err == 0 || err == -EINVAL);
	if (err)
		return;
	CHECK(strncmp(parsed.text, text, strlen(text)) == 0);
	CHECK(driver_argument(parsed.text, "socket="));
	CHECK(memif_parse(&reparsed, parsed.text, &why) == 0);
	CHECK(strcmp(reparsed.text, parsed.text) == 0);
	CHECK(strcmp(reparsed.address.sun_path, parsed.address.sun_path) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
	struct fuzz_input in = { .at = bytes, .left = len };
	char out[512], repeated[sizeof(out)], *text = malloc(len + 1);
	uint32_t frame_size = 2048u << fuzz_u8(&in) % 3;
	size_t out_size = fuzz_u8(&in) + 1, text_len = fuzz_bytes(&in, text, len);
	int result;

	CHECK(text);
	text[text_len] = '\0';
	text_len = strlen(text);
	check_memif(text);
	result = driver_device(text, frame_size, out, out_size);
	if (result >= 0) {
		CHECK((size_t)result == strlen(out) && (size_t)result < out_size);
		CHECK(strncmp(out, text, text_len) == 0);
		CHECK(out[text_len] == '\0' || out[text_len] == ',');
		/* The first call added what was missing, so the second call adds nothing. */
		CHECK(driver_device(out, frame_size, repeated, sizeof(repeated)) == result);
		CHECK(strcmp(repeated, out) == 0);
	} else {
		CHECK(result == -ENAMETOOLONG);
	}
	free(text);
	return 0;
}
