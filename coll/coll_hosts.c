/* SPDX-License-Identifier: Apache-2.0 */
/*
 * coll_hosts.c - 2D all-reduce for several hosts with the same number of ranks.
 *
 * Theory of operation. The array is divided into segments, and each segment into one chunk for each
 * local rank.
 *
 *	Phase A  Reduce-scatter within each host, through shared memory: each rank sums its chunk.
 *	Phase B  The ranks with the same local index on all hosts run a ring all-reduce of that
 *	         chunk. So a rank sends only its chunk over the network.
 *	Phase C  All-gather within each host, piece by piece.
 *
 * Phase A of segment s + 1 is scheduled before phase C of segment s, so that the ranks of a host
 * sum while the ring transfers.
 */
#include <errno.h>
#include <stdlib.h>

#include "coll_ring.h"

#define SEGMENT_CHUNK_BYTES (2u << 20)
#define HOSTS_SLOTS 2u
#define LANE_A 0u
#define LANE_B 2u

struct hosts {
	struct harp_coll_request *op;
	size_t element, total;
	size_t chunk;    /* elements */
	char *slots;     /* [local index * HOSTS_SLOTS + segment % HOSTS_SLOTS] */
	int *slot_users; /* same index: the last act that uses the slot */
	int *sends;      /* [local index * 2 + segment % 2]: phase A's send of that rank's chunk */
	size_t segments;
};

/* The chunk of local index j in a segment: returns its elements; *offset: its start. */
static size_t hosts_chunk(const struct hosts *hosts, size_t segment, int j, size_t *offset)
{
	size_t local = (size_t)hosts->op->group->local_count;
	size_t start = (segment * local + (size_t)j) * hosts->chunk;

	*offset = start;
	if (start >= hosts->total)
		return 0;
	return hosts->total - start < hosts->chunk ? hosts->total - start : hosts->chunk;
}

/* Phase A. *ready: the act that completes the host's sum of this rank's chunk. */
static int hosts_scatter(struct hosts *hosts, size_t segment, int *ready)
{
	struct harp_coll_request *op = hosts->op;
	struct harp_coll *group = op->group;
	int local = group->local_count, me = group->local_index, rc = 0;
	const char *in = op->call.in, *a;
	char *out = op->call.out;
	size_t own_offset, own = hosts_chunk(hosts, segment, me, &own_offset);

	for (int d = 1; d < local && rc >= 0; d++) {
		int j = (me + d) % local;
		size_t offset, count = hosts_chunk(hosts, segment, j, &offset);

		if (!count)
			continue;
		rc = sched_send(op, group->local_ranks[j], in + offset * hosts->element,
				count * hosts->element, -1);
		hosts->sends[(size_t)j * 2 + segment % 2] = rc;
	}
	*ready = -1;
	a = in + own_offset * hosts->element;
	for (int d = 1; d < local && own && rc >= 0; d++) {
		int j = (me + d) % local;
		size_t slot = (size_t)j * HOSTS_SLOTS + segment % HOSTS_SLOTS;
		const void *value;

		rc = sched_recv(op, group->local_ranks[j],
				hosts->slots + slot * hosts->chunk * hosts->element,
				own * hosts->element, hosts->slot_users[slot], &value);
		if (rc >= 0)
			rc = sched_local(op, LANE_A, ACT_REDUCE, out + own_offset * hosts->element,
					 a, value, own, rc, -1);
		hosts->slot_users[slot] = *ready = rc;
		a = out + own_offset * hosts->element;
	}
	return rc;
}

/* Phases B and C. */
static int hosts_gather(struct hosts *hosts, size_t segment, int ready)
{
	struct harp_coll_request *op = hosts->op;
	struct harp_coll *group = op->group;
	int local = group->local_count, me = group->local_index, rc = 0;
	char *out = op->call.out;
	size_t offset, own = hosts_chunk(hosts, segment, me, &offset);
	struct ring ring = { .op = op,
			     .ranks = group->grid + me,
			     .stride = local,
			     .count = group->hosts_count,
			     .me = group->host_of[group->rank],
			     .in = out + offset * hosts->element,
			     .out = out + offset * hosts->element,
			     .elements = own,
			     .lane = LANE_B,
			     .ready = ready };

	if (own)
		rc = ring_build(&ring);
	for (size_t i = 0; i < ring.pieces_count && rc >= 0; i++)
		for (int d = 1; d < local && rc >= 0; d++)
			rc = sched_send(op, group->local_ranks[(me + d) % local],
					ring.out + ring.pieces[i].offset * hosts->element,
					ring.pieces[i].count * hosts->element, ring.pieces[i].act);
	free(ring.pieces);
	for (int d = 1; d < local && rc >= 0; d++) {
		int j = (me + d) % local;
		struct ring theirs = ring;

		theirs.elements = hosts_chunk(hosts, segment, j, &offset);
		theirs.pieces = NULL;
		theirs.pieces_count = 0;
		if (theirs.elements)
			rc = ring_layout(&theirs);
		for (size_t i = 0; i < theirs.pieces_count && rc >= 0; i++)
			rc = sched_recv(op, group->local_ranks[j],
					out + (offset + theirs.pieces[i].offset) * hosts->element,
					theirs.pieces[i].count * hosts->element,
					hosts->sends[(size_t)j * 2 + segment % 2], NULL);
		free(theirs.pieces);
	}
	return rc;
}

int hosts_allreduce(struct harp_coll_request *op)
{
	size_t local = (size_t)op->group->local_count, slots = local * HOSTS_SLOTS, chunk;
	struct hosts hosts = { .op = op,
			       .element = harp_coll_dtype_bytes(op->call.dtype),
			       .total = op->call.count };
	int ready[2] = { -1, -1 }, rc = 0;

	chunk = (op->call.count + local - 1) / local;
	chunk = (chunk + 63) / 64 * 64;
	hosts.chunk = SEGMENT_CHUNK_BYTES / hosts.element;
	if (chunk < hosts.chunk)
		hosts.chunk = chunk;
	hosts.segments = (hosts.total + hosts.chunk * local - 1) / (hosts.chunk * local);
	hosts.slots = sched_scratch(op, slots * hosts.chunk * hosts.element);
	hosts.slot_users = malloc(slots * sizeof(int));
	hosts.sends = malloc(local * 2 * sizeof(int));
	if (!hosts.slots || !hosts.slot_users || !hosts.sends) {
		rc = -ENOMEM;
		goto out;
	}
	for (size_t i = 0; i < slots; i++)
		hosts.slot_users[i] = -1;
	rc = hosts_scatter(&hosts, 0, &ready[0]);
	for (size_t s = 0; s < hosts.segments && rc >= 0; s++) {
		if (s + 1 < hosts.segments)
			rc = hosts_scatter(&hosts, s + 1, &ready[(s + 1) % 2]);
		if (rc >= 0)
			rc = hosts_gather(&hosts, s, ready[s % 2]);
	}
out:
	free(hosts.slot_users);
	free(hosts.sends);
	return rc < 0 ? rc : 0;
}
