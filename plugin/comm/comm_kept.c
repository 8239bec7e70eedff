/* SPDX-License-Identifier: Apache-2.0 */
/* comm_kept.c - the sending end of several lanes: copies of small messages, until they are acknowledged. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm_impl.h"

/*
 * Theory of operation
 *
 * An ACK for each small message would be a packet for each; and without one its memory could not be given back,
 * as it may have to be sent again when its lane dies. So a message of up to kept_bytes is copied to memory of the
 * comm's when it is cut, in one chunk; what the lanes send, and send again, is the copy. The request is then done
 * by the rule of one lane: when the lane has delivered it (done_bytes). The copy stays until an ACK covers it.
 * The receiver, which was told so by FEATURE_KEPT, sends one when COMM_KEPT_MESSAGES have come.
 *
 * There are COMM_KEPT_MAX places; with none free no small message is cut. docs/lanes.md section 5.3 shows why one
 * becomes free. The lowest place is taken, so that little memory is ever touched: a comm that sends small
 * messages one at a time uses 16 places, and of each the pages that its longest message needs.
 *
 * The copying, of kept_bytes at most, is done under the lock: whoever sees the chunk finds its bytes.
 */

int comm_kept_new(struct comm *comm)
{
	struct comm_several *s = comm->several;

	s->kept = calloc(COMM_KEPT_MAX, sizeof(*s->kept));
	s->kept_data = malloc((size_t)COMM_KEPT_MAX * COMM_KEPT_BYTES_MAX); /* touched as used */
	if (!s->kept || !s->kept_data)
		return -ENOMEM;
	s->kept_free = ~0ull;
	return 0;
}

void comm_kept_free(struct comm *comm)
{
	free(comm->several->kept);
	free(comm->several->kept_data);
}

int comm_kept_place(const struct comm *comm)
{
	return comm->several->kept_free ? __builtin_ctzll(comm->several->kept_free) : -1;
}

uint8_t *comm_kept_data(const struct comm *comm, int place)
{
	return comm->several->kept_data + (size_t)place * COMM_KEPT_BYTES_MAX;
}

void comm_kept_take(struct comm *comm, int place, struct request *request, uint64_t message)
{
	struct comm_several *s = comm->several;

	s->kept[place] = (struct comm_kept){ .message = message,
					     .size = (uint32_t)request->size,
					     .tag = (uint32_t)request->tag,
					     .kinds = request->kinds };
	s->kept_free &= ~(1ull << place);
	request->kept = (uint8_t)(place + 1);
	if (request->size)
		memcpy(comm_kept_data(comm, place), request->data, request->size);
}

void comm_kept_shed(struct comm *comm)
{
	struct comm_several *s = comm->several;

	if (!s->kept)
		return;
	for (uint64_t left = ~s->kept_free; left; left &= left - 1) {
		const struct comm_kept *kept = &s->kept[__builtin_ctzll(left)];

		if (kept->message < s->acked_message && !kept->users)
			s->kept_free |= left & -left;
	}
}

bool comm_kept_owes(const struct comm *comm)
{
	const struct comm_several *s = comm->several;

	for (uint64_t left = s->kept ? ~s->kept_free : 0; left; left &= left - 1) {
		const struct comm_kept *kept = &s->kept[__builtin_ctzll(left)];

		if (kept->message >= s->acked_message &&
		    (!kept->lane ||
		     s->stripe.lane[kept->lane->index].acked_bytes < kept->end_bytes))
			return true;
	}
	return false;
}

bool comm_kept_is_done(const struct comm *comm, const struct request *request)
{
	const struct comm_kept *kept;

	if (!request->kept)
		return false;
	kept = &comm->several->kept[request->kept - 1];
	return kept->lane && kept->lane->done_bytes >= kept->end_bytes;
}
