/* SPDX-License-Identifier: Apache-2.0 */
/*
 * primitive.c - moves a chunk between buffers and connections with NCCL's protocols Simple and LL.
 *
 * Theory of operation. One thread per kernel polls all channels, so a primitive never waits:
 * primitive_poll() moves what it can and returns.
 *
 * Simple: a chunk is divided into slices of whole steps. The receiver waits for `tail`, the sender
 * for `head`. Every slice of a chunk, even an empty one, advances the counters.
 *
 * LL: a line of 16 bytes carries 8 bytes of data. Each half of the line has a 32-bit flag, the
 * number of the step. A chunk is one step. The receiver waits for the flags, and so does the
 * sender's proxy before it sends. At certain steps the sender fills the whole slot, so that old
 * flags do not match after the step number wraps around.
 */
#include <string.h>

#include "device.h"

#define LL_CLEAN_MASK 0x7ffffff8u /* NCCL_LL_CLEAN_MASK */

enum { LL_DATA_BYTES = 8, LL_LINE_BYTES = 16 };

/* ---- arithmetic ------------------------------------------------------------------------------ */

#define SUM(type)                                                                                  \
	do {                                                                                       \
		const type *a = left, *b = right;                                                  \
		type *c = sum;                                                                     \
		for (size_t i = 0; i < count; i++)                                                 \
			c[i] = (type)(a[i] + b[i]);                                                \
	} while (0)

/* Addresses are aligned to the elements. Integers are added as unsigned, which wraps around. */
static void primitive_sum(enum element_type type, void *sum, const void *left, const void *right,
			  size_t count)
{
	switch (type) {
	case ELEMENT_INT8:
	case ELEMENT_UINT8:
		SUM(uint8_t);
		break;
	case ELEMENT_INT32:
	case ELEMENT_UINT32:
		SUM(uint32_t);
		break;
	case ELEMENT_INT64:
	case ELEMENT_UINT64:
		SUM(uint64_t);
		break;
	case ELEMENT_FLOAT32:
		SUM(float);
		break;
	case ELEMENT_FLOAT64:
		SUM(double);
		break;
	case ELEMENT_FLOAT16:
	default:
		emulation_fail("sums of data type %d are not emulated", (int)type);
	}
}

static void primitive_move(const struct transfer *transfer, const char *in, const char *source,
			   char *out, char *target, size_t count)
{
	char *first = out ? out : target;
	size_t bytes = count * transfer->element_bytes;

	if (in && source)
		primitive_sum(transfer->type, first, in, source, count);
	else if (first != (in ? in : source))
		memcpy(first, in ? in : source, bytes);
	if (out && target)
		memcpy(target, out, bytes);
}

/* ---- Simple ---------------------------------------------------------------------------------- */

static void simple_start(struct transfer *transfer, struct primitive *primitive)
{
	size_t grain = 16 * (size_t)transfer->slices;
	size_t even = (primitive->count + grain - 1) / grain * 16;
	size_t min = transfer->step_elements * (size_t)transfer->slice_steps / 32;

	primitive->slice_elements = even > min ? even : min;
}

static enum progress simple_poll(struct transfer *transfer, struct primitive *primitive)
{
	struct connection *recv = primitive->is_receiving ? &transfer->recv : NULL;
	struct connection *send = primitive->is_sending ? &transfer->send : NULL;
	enum progress progress = PROGRESS_NONE;

	while (primitive->slice < transfer->slices) {
		size_t at = primitive->done * transfer->element_bytes;
		size_t left = primitive->count - primitive->done;
		size_t count = left < primitive->slice_elements ? left : primitive->slice_elements;

		if ((recv && !connection_is_ready(recv, transfer->slice_steps)) ||
		    (send && !connection_is_ready(send, transfer->slice_steps)))
			return progress;
		if (count)
			primitive_move(transfer, recv ? connection_slot(recv) : NULL,
				       primitive->source ? primitive->source + at : NULL,
				       send ? connection_slot(send) : NULL,
				       primitive->target ? primitive->target + at : NULL, count);
		if (recv)
			connection_advance(recv, transfer->slice_steps);
		if (send) {
			connection_set_size(send, count * transfer->element_bytes);
			connection_advance(send, transfer->slice_steps);
		}
		primitive->done += count;
		primitive->slice++;
		progress = PROGRESS_SOME;
	}
	return PROGRESS_DONE;
}

/* ---- LL -------------------------------------------------------------------------------------- */

static uint64_t *ll_slot(const struct connection *connection)
{
	size_t line = connection->step % CONNECTION_STEPS * connection->step_lines;

	return (uint64_t *)memory_view(connection->buffer) + 2 * line;
}

static void ll_write(uint64_t *line, uint64_t data, uint32_t flag)
{
	uint64_t high = (uint64_t)flag << 32;

	__atomic_store_n(&line[0], (uint32_t)data | high, __ATOMIC_RELAXED);
	__atomic_store_n(&line[1], data >> 32 | high, __ATOMIC_RELEASE);
}

static bool ll_read(const uint64_t *line, uint64_t *data, uint32_t flag)
{
	uint64_t high = __atomic_load_n(&line[1], __ATOMIC_ACQUIRE);
	uint64_t low = __atomic_load_n(&line[0], __ATOMIC_ACQUIRE);

	if ((uint32_t)(low >> 32) != flag || (uint32_t)(high >> 32) != flag)
		return false;
	*data = (uint32_t)low | high << 32;
	return true;
}

static void ll_line(const struct transfer *transfer, struct primitive *primitive, uint64_t received,
		    uint64_t *out, uint32_t out_flag)
{
	size_t per_line = LL_DATA_BYTES / transfer->element_bytes;
	size_t left = primitive->count - primitive->done;
	size_t count = left < per_line ? left : per_line;
	size_t at = primitive->done * transfer->element_bytes,
	       bytes = count * transfer->element_bytes;
	uint64_t data = 0;

	if (primitive->source)
		memcpy(&data, primitive->source + at, bytes);
	if (primitive->is_receiving && primitive->source)
		primitive_sum(transfer->type, &data, &data, &received, count);
	else if (primitive->is_receiving)
		data = received;
	if (out)
		ll_write(out, data, out_flag);
	if (primitive->target)
		memcpy(primitive->target + at, &data, bytes);
	primitive->done += count;
}

static bool ll_is_cleaning(const struct connection *connection)
{
	return (connection->step & LL_CLEAN_MASK) == LL_CLEAN_MASK;
}

static void ll_finish(struct transfer *transfer, struct primitive *primitive, size_t lines)
{
	if (primitive->is_receiving)
		connection_advance(&transfer->recv, 1);
	if (!primitive->is_sending)
		return;
	if (ll_is_cleaning(&transfer->send))
		for (; lines < transfer->send.step_lines; lines++)
			ll_write(ll_slot(&transfer->send) + 2 * lines, 0,
				 (uint32_t)(transfer->send.step + 1));
	connection_advance(&transfer->send, 1);
}

static enum progress ll_poll(struct transfer *transfer, struct primitive *primitive)
{
	size_t per_line = LL_DATA_BYTES / transfer->element_bytes;
	size_t lines = (primitive->count + per_line - 1) / per_line;
	struct connection *recv = &transfer->recv, *send = &transfer->send;
	uint64_t *out = NULL, received = 0;
	enum progress progress = PROGRESS_NONE;
	size_t line;

	if (primitive->is_sending && !primitive->done) {
		if (!connection_is_ready(send, 1))
			return PROGRESS_NONE;
		connection_set_size(send, LL_LINE_BYTES * (ll_is_cleaning(send) ? send->step_lines
										: lines));
	}
	if (primitive->is_sending)
		out = ll_slot(send);
	for (line = primitive->done / per_line; line < lines; line++) {
		if (primitive->is_receiving &&
		    !ll_read(ll_slot(recv) + 2 * line, &received, (uint32_t)(recv->step + 1)))
			return progress;
		ll_line(transfer, primitive, received, out ? out + 2 * line : NULL,
			(uint32_t)(send->step + 1));
		progress = PROGRESS_SOME;
	}
	ll_finish(transfer, primitive, lines);
	return PROGRESS_DONE;
}

/* ---- both protocols -------------------------------------------------------------------------- */

enum progress primitive_poll(struct transfer *transfer, struct primitive *primitive)
{
	if (!primitive->is_started) {
		primitive->is_started = true;
		if (transfer->protocol == PROTOCOL_SIMPLE)
			simple_start(transfer, primitive);
	}
	return transfer->protocol == PROTOCOL_SIMPLE ? simple_poll(transfer, primitive)
						     : ll_poll(transfer, primitive);
}
