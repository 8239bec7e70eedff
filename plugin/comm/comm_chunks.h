/* SPDX-License-Identifier: Apache-2.0 */
/* comm_chunks.h - lists of chunks, of a comm that sends over several lanes. Lock held. */
#ifndef HARP_PLUGIN_COMM_CHUNKS_H
#define HARP_PLUGIN_COMM_CHUNKS_H

#include "comm/comm_impl.h"

static inline void comm_list_append(struct comm_several *s, struct comm_list *list, int16_t chunk)
{
	s->chunks[chunk].next = -1;
	if (list->head < 0)
		list->head = chunk;
	else
		s->chunks[list->tail].next = chunk;
	list->tail = chunk;
}

static inline int16_t comm_list_pop(struct comm_several *s, struct comm_list *list)
{
	int16_t chunk = list->head;

	if (chunk >= 0)
		list->head = s->chunks[chunk].next;
	return chunk;
}

static inline bool comm_tx_is_acked(const struct comm_several *s, const struct comm_chunk *chunk)
{
	return chunk->message < s->acked_message ||
	       (chunk->message == s->acked_message && chunk->length &&
		chunk->offset + chunk->length <= s->acked_offset);
}

/* Takes off the head what is acknowledged. True: that was all, and what was given last came by no other lane. */
static inline bool comm_list_shed(struct comm_several *s, struct comm_list *list)
{
	bool alone = false;

	while (list->head >= 0 && comm_tx_is_acked(s, &s->chunks[list->head])) {
		alone = !s->chunks[list->head].resent && !s->chunks[list->head].again;
		comm_list_append(s, &s->unused, comm_list_pop(s, list));
	}
	return alone && list->head < 0;
}

#endif
