/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_records.c - arbitrary bytes to a comm that expects records, on either side, with receives
 * posted or sends under way. Nothing outside of the posted memory is written, and the comm waits or
 * fails.
 *
 * Input: a byte of options; then pieces, each after a 16-bit length: raw bytes, or, with the top
 * bit of the length, a record header whose fields are read from the input (and may be valid). With
 * option 8, the comm has three lanes. Two bits of the length choose the lane of a piece; 3 breaks a
 * lane.
 */
#include "comm/comm.h"
#include "double_env.h"
#include "fake_lane.h"
#include "fuzz.h"

#define RECEIVES 4u
#define RECEIVE_BYTES 5000u
#define LANES 3u

static void records_piece(struct fuzz_input *in, struct fake_pair *pairs, bool multi_lane)
{
	uint8_t bytes[4096];
	uint32_t word = fuzz_u16(in), to_lane = multi_lane ? word >> 12 & 7 : 0;
	struct fake_lane *lane = &pairs[to_lane % 4 % LANES].lanes[1];
	size_t len;

	if (to_lane % 4 == LANES) {
		fake_break(&pairs[word % LANES]);
		return;
	}

	if (word & 0x8000) {
		struct record record = { .type = (uint8_t)fuzz_u8(in),
					 .length = fuzz_u16(in),
					 .message = fuzz_u8(in),
					 .total = fuzz_u16(in),
					 .offset = fuzz_u8(in) * (uint64_t)RECORD_OFFSET_ALIGN,
					 .tag = fuzz_u8(in) };

		record_encode(bytes, &record);
		(void)fake_inject(lane, bytes, RECORD_HEADER_BYTES);
		return;
	}
	len = fuzz_bytes(in, bytes, (word & 0x7fff) % sizeof(bytes));
	(void)fake_inject(lane, bytes, len);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
	static struct fake_pair pairs[LANES];
	struct fuzz_input in = { bytes, len };
	uint32_t choices = fuzz_u8(&in);
	struct comm_options opt = { .eager_bytes = 16384,
				    .no_credit = choices & 4,
				    .multi_lane = choices & 8 };
	unsigned lanes = opt.multi_lane ? LANES : 1;
	struct request *requests[RECEIVES];
	uint8_t *memory[RECEIVES] = { NULL };
	struct comm *comm;

	opt.side = choices & 1 ? COMM_SEND : COMM_RECV;
	for (unsigned i = 0; i < lanes; i++) {
		struct lane *lane = &pairs[i].lanes[1].lane;

		fake_pair_init(&pairs[i], choices, 20000);
		opt.lane.index = (uint8_t)i;
		if (i)
			CHECK(comm_attach(comm, lane, &opt.lane) == 0);
		else
			CHECK(comm_create(&comm, lane, &opt) == 0);
	}
	for (unsigned i = 0; i < RECEIVES; i++) {
		/* Exact size: ASan reports a write behind its end. */
		memory[i] = calloc(1, RECEIVE_BYTES);
		CHECK(memory[i]);
		CHECK(comm_post(comm, memory[i], RECEIVE_BYTES, 0, NULL, &requests[i]) == 0);
	}
	while (in.left > 0) {
		records_piece(&in, pairs, opt.multi_lane);
		for (unsigned i = 0; i < 8 * lanes; i++)
			fake_pair_turn(&pairs[i % lanes]);
	}
	for (unsigned i = 0; i < RECEIVES; i++) {
		size_t size = 0;
		int done = 0;

		if (comm_test(requests[i], &done, &size) == 0 && done)
			CHECK(size <= RECEIVE_BYTES);
	}
	comm_close(comm, true);
	for (unsigned i = 0; i < lanes; i++)
		fake_pair_free(&pairs[i]);
	for (unsigned i = 0; i < RECEIVES; i++)
		free(memory[i]);
	return 0;
}
