/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_driver.c - a device of DPDK's with its arguments: refused, or handed on whole with what HARP adds.
 *
 * Input: a byte that chooses the frames' size, a byte of how much room there is for the answer, and the text.
 */
#include "dpdk/port.h"
#include "fuzz.h"

#include <errno.h>
#include <sys/socket.h>

/* Stands in for libc's: no socket's file of this machine is asked whether it has a server, or removed. */
int socket(int domain, int type, int protocol)
{
	(void)domain;
	(void)type;
	(void)protocol;
	errno = EMFILE;
	return -1;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
	struct fuzz_input in = { .at = bytes, .left = len };
	char out[512], again[sizeof(out)], *text = malloc(len + 1);
	uint32_t frame_size = 2048u << fuzz_u8(&in) % 3;
	size_t room = fuzz_u8(&in) + 1, text_len = fuzz_bytes(&in, text, len);
	int got;

	FUZZ_CLAIM(text);
	text[text_len] = '\0';
	text_len = strlen(text);
	got = driver_device(text, frame_size, out, room);
	if (got >= 0) {
		FUZZ_CLAIM((size_t)got == strlen(out) && (size_t)got < room);
		FUZZ_CLAIM(strncmp(out, text, text_len) == 0);
		FUZZ_CLAIM(out[text_len] == '\0' || out[text_len] == ',');
		FUZZ_CLAIM(driver_dials(out) == driver_dials(text));
		/* What was added is what was missing: nothing is, now. */
		FUZZ_CLAIM(driver_device(out, frame_size, again, sizeof(again)) == got);
		FUZZ_CLAIM(strcmp(again, out) == 0);
	} else {
		FUZZ_CLAIM(got == -EINVAL || got == -ENAMETOOLONG);
	}
	free(text);
	return 0;
}
