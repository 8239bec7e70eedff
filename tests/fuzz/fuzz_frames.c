/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_frames.c - any frames at all to a stack with a listener and a connection: Ethernet, ARP, neighbor
 * discovery, IP, ICMP, UDP, TCP.
 *
 * Input: a byte of choices; then frames, each after its length (two bytes, the top bits of the first say
 * whether checksums are repaired and whether time passes).
 */
#include "fuzz_host.h"

static struct fuzz_host host;

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
	struct fuzz_input in = { bytes, len };
	uint32_t choices = fuzz_u8(&in);
	struct fuzz_host_options opt = { .own_neighbors = choices & 1, .v6 = choices & 2 };

	fuzz_host_open(&host, &opt);
	fuzz_host_listen(&host);
	if (choices & 4)
		fuzz_host_connect(&host, true);
	while (in.left > 0) {
		uint8_t frame[FUZZ_HOST_FRAME_MAX];
		uint32_t word = fuzz_u16(&in);
		size_t got = fuzz_bytes(&in, frame, (word & 0x7ff) % (FUZZ_HOST_FRAME_MAX + 1));

		if (word & 0x8000)
			fuzz_repair(frame, got);
		if (fuzz_host_put(&host, frame, got))
			fuzz_host_poll(&host, word & 0x4000 ? 37 * FUZZ_NS_PER_MS : 1000);
	}
	fuzz_host_close(&host);
	return 0;
}
