/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_encrypted.c - arbitrary bytes to an encrypted lane, mixed with segments of its peer. The
 * received bytes are a prefix of the sent bytes, no memory behind them is written, and an error is
 * permanent.
 *
 * Input: a byte of options, then steps: a kind (one byte) and a number (two bytes). A step sends or
 * receives that number of bytes (in units or not), injects that number of bytes from the input,
 * alters a byte that far ahead, or ends the stream.
 */
#include <errno.h>

#include "double_env.h"
#include "fake_lane.h"
#include "fuzz.h"
#include "lane/lane.h"

#define PLAIN_BYTES 40000u

enum step { STEP_SEND, STEP_RECEIVE, STEP_RECEIVE_UNITS, STEP_INJECT, STEP_ALTER, STEP_END, STEPS };

struct encrypted_rig {
	struct fake_pair pair;
	struct lane *lanes[2];
	size_t sent, received;
	int error;
};

static uint8_t plain_byte(size_t at)
{
	return (uint8_t)(at * 7 + (at >> 8) * 31);
}

static void rig_send(struct encrypted_rig *rig, size_t len)
{
	static uint8_t data[PLAIN_BYTES];
	struct iovec iov = { data, len };
	ssize_t n;

	for (size_t i = 0; i < len; i++)
		data[i] = plain_byte(rig->sent + i);
	n = rig->lanes[0]->ops->send(rig->lanes[0], &iov, 1);
	CHECK(n == -EAGAIN || (n >= 0 && (size_t)n <= len));
	rig->sent += n > 0 ? (size_t)n : 0;
}

static void rig_receive(struct encrypted_rig *rig, size_t len, unsigned unit)
{
	uint8_t *memory = malloc(len + 1); /* exact size: ASan reports a write behind its end */
	ssize_t n;

	CHECK(memory);
	n = rig->lanes[1]->ops->recv(rig->lanes[1], memory, len + 1, unit);
	CHECK(n <= (ssize_t)len + 1);
	/* An error is permanent; the rest of a unit in front of it may still be read. */
	CHECK(!rig->error || n == rig->error || (n > 0 && n < 8));
	for (ssize_t i = 0; i < n; i++, rig->received++)
		CHECK(memory[i] == plain_byte(rig->received));
	CHECK(rig->received <= rig->sent);
	if (n < 0 && n != -EAGAIN)
		rig->error = (int)n;
	free(memory);
}

static void rig_step(struct encrypted_rig *rig, struct fuzz_input *in)
{
	uint32_t kind = fuzz_u8(in) % STEPS, number = fuzz_u16(in);
	struct fake_lane *receiver = &rig->pair.lanes[1];
	uint8_t bytes[4096];

	switch (kind) {
	case STEP_SEND:
		if (rig->sent + number < UINT32_MAX)
			rig_send(rig, number % PLAIN_BYTES);
		break;
	case STEP_RECEIVE:
		rig_receive(rig, number, 1);
		break;
	case STEP_RECEIVE_UNITS:
		rig_receive(rig, number, 8);
		break;
	case STEP_INJECT:
		(void)fake_inject(receiver, bytes, fuzz_bytes(in, bytes, number % sizeof(bytes)));
		break;
	case STEP_ALTER:
		receiver->in->flip_at = receiver->in->written + (number >> 8);
		receiver->in->flip = (uint8_t)number;
		break;
	default:
		receiver->in->closed = true;
	}
	for (unsigned i = 0; i < 4; i++)
		fake_pair_turn(&rig->pair);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
	static const uint8_t keys[2][CRYPTO_KEY_BYTES] = { { 1 }, { 2 } };
	static struct encrypted_rig rig;
	struct fuzz_input in = { bytes, len };
	uint32_t choices = fuzz_u8(&in);
	char why[256];

	if (crypto_load(why, sizeof(why)))
		return 0; /* no crypto library on this machine */
	memset(&rig, 0, sizeof(rig));
	fake_pair_init(&rig.pair, choices, choices & 1 ? 20000 : 300);
	for (unsigned i = 0; i < 2; i++) {
		rig.lanes[i] = &rig.pair.lanes[i].lane;
		CHECK(lane_encrypt(&rig.lanes[i], 0, keys[i], keys[1 - i]) == 0);
	}
	if (choices & 2) { /* the lane is about to change its key */
		lane_encrypted_renumber(rig.lanes[0], KEY_SEGMENTS - 2, 0);
		lane_encrypted_renumber(rig.lanes[1], 0, KEY_SEGMENTS - 2);
	}
	while (in.left > 0)
		rig_step(&rig, &in);
	for (unsigned i = 0; i < 2; i++)
		rig.lanes[i]->ops->close(rig.lanes[i], true);
	fake_pair_free(&rig.pair);
	return 0;
}
