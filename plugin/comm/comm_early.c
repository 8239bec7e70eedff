/* SPDX-License-Identifier: Apache-2.0 */
/* comm_early.c - chunks that came before their receive was posted, and held up others that are wanted. */
#include <stdlib.h>

#include "comm/comm_impl.h"

/*
 * Theory of operation
 *
 * On one lane a message that nobody has asked for waits in the lane. On several it may stand before a chunk of a
 * message that was asked for, and then it is taken into memory of ours. The eager limit bounds it: a sender
 * does not begin more than that beyond the credits it has been told, and what is posted has been told at the
 * earliest then. Their number is bounded, too, as a list is searched for each: no sender has so many under way. A chunk has one
 * such memory, whichever lanes bring it: what a lane that died has left unfinished is finished by who brings it again, and counts once. What is cut otherwise the second time, as no honest sender does, may leave it unfinished
 * for good; it goes when its message is done.
 */

struct comm_early *comm_early_new(const struct comm_in *in)
{
	struct comm_early *early =
		aligned_alloc(64, (sizeof(*early) + in->length + 63) & ~(size_t)63);

	if (!early)
		return NULL;
	early->next = NULL;
	early->message = in->message;
	early->offset = in->offset;
	early->total = in->total;
	early->length = in->length;
	early->tag = in->tag;
	early->complete = early->moving = false;
	return early;
}

void comm_early_free(struct comm_early *early)
{
	free(early);
}

struct comm_early *comm_early_find(struct comm *comm, uint64_t message, uint64_t offset)
{
	struct comm_early *early = comm->several->early;

	while (early && (early->message != message || early->offset != offset))
		early = early->next;
	return early;
}

bool comm_early_fits(struct comm *comm, uint32_t length)
{
	uint64_t posted = atomic_load_explicit(&comm->posted, memory_order_relaxed);
	uint64_t bytes = RECORD_HEADER_BYTES + (uint64_t)length;
	unsigned count = 1;

	for (const struct comm_early *e = comm->several->early; e; e = e->next) {
		count++;
		if (e->message >= posted)
			bytes += RECORD_HEADER_BYTES + (uint64_t)e->length;
	}
	return bytes <= comm->eager_bytes && count <= COMM_EARLY_MAX;
}

void comm_early_add(struct comm *comm, struct comm_early *early)
{
	early->next = comm->several->early;
	comm->several->early = early;
}

void comm_early_remove(struct comm *comm, struct comm_early *early)
{
	struct comm_early **at = &comm->several->early;

	while (*at != early)
		at = &(*at)->next;
	*at = early->next;
}

struct comm_early *comm_early_take(struct comm *comm)
{
	uint64_t posted = atomic_load_explicit(&comm->posted, memory_order_relaxed);

	for (struct comm_early *e = comm->several->early; e; e = e->next) {
		/* A lane that writes there keeps others from bringing the same bytes, and so the message from being done. */
		bool over = e->message < comm->completed;

		if ((e->complete || over) && !e->moving && e->message < posted) {
			e->moving = true;
			return e;
		}
	}
	return NULL;
}
