/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz.h - what every fuzz target uses: a reader of the input, and checks that end the process.
 *
 * A target is LLVMFuzzerTestOneInput(). With -Dfuzz=true (clang) libFuzzer drives it; otherwise
 * replay.c runs it over the seed corpus, so that `make test` runs the same code and checks. A seed
 * is a file in corpus/TARGET; the comment of the target explains its bytes.
 */
#ifndef HARP_TESTS_FUZZ_H
#define HARP_TESTS_FUZZ_H

#include <stddef.h>

/* The first failed check ends the process, so that libFuzzer keeps the input. */
#define CHECK_FAILURES_MAX 1u
#include "check.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

struct fuzz_input {
	const uint8_t *at;
	size_t left;
};

/* Reads the next number, big-endian; 0 when the input is used up. */
static inline uint32_t fuzz_u8(struct fuzz_input *in)
{
	if (in->left == 0)
		return 0;
	in->left--;
	return *in->at++;
}
static inline uint32_t fuzz_u16(struct fuzz_input *in)
{
	uint32_t high = fuzz_u8(in);

	return high << 8 | fuzz_u8(in);
}
static inline uint32_t fuzz_u32(struct fuzz_input *in)
{
	uint32_t high = fuzz_u16(in);

	return high << 16 | fuzz_u16(in);
}
/* Reads at most len bytes into out. Returns their count. */
static inline size_t fuzz_bytes(struct fuzz_input *in, void *out, size_t len)
{
	if (len > in->left)
		len = in->left;
	memcpy(out, in->at, len);
	in->at += len;
	in->left -= len;
	return len;
}

#endif
