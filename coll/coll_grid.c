/* SPDX-License-Identifier: Apache-2.0 */
/*
 * coll_grid.c - 2D all-gather and reduce-scatter for several hosts with the same number of ranks.
 *
 * Theory of operation. The ranks form a grid: a row for each host, a column for each local index.
 * The ranks of a row share memory, and only ranks of a column exchange data over the network. So
 * each byte is sent once to each other host, and not once to each rank there.
 *
 * All-gather: each rank sends its block to its column, and forwards the blocks of its column to its
 * row.
 *
 * Reduce-scatter, in pieces: each rank of a row sums the row's inputs of all blocks of its column.
 * It sends each sum to the rank of the column that owns the block, which adds the sums of all
 * hosts. In each piece, a rank sums its own block first. So it can add the sums of other hosts as
 * soon as they arrive, and no slot waits for a later piece.
 */
#include <errno.h>
#include <stdlib.h>

#include "coll_ring.h"

#define SLOTS 2u    /* pieces in progress per rank and direction */
#define LANE_ROW 0u /* local acts: sums of the row, copies of the result, sums of the column */
#define LANE_RESULT 1u
#define LANE_COLUMN 2u

static int grid_rank(const struct harp_coll *group, int host, int local)
{
	return group
		->grid[host % group->hosts_count * group->local_count + local % group->local_count];
}

/* Writes the other ranks of this row, then those of this column. Returns how many the row has. */
static int grid_others(const struct harp_coll *group, int *ranks)
{
	int host = group->host_of[group->rank], local = group->local_index, count = 0;

	for (int d = 1; d < group->local_count; d++)
		ranks[count++] = grid_rank(group, host, local + d);
	for (int d = 1; d < group->hosts_count; d++)
		ranks[count++] = grid_rank(group, host + d, local);
	return group->local_count - 1;
}

static int grid_gather(struct harp_coll_request *op, const int *others, int row_count)
{
	const struct harp_coll *group = op->group;
	size_t element = harp_coll_dtype_bytes(op->call.dtype), count;
	int hosts = group->hosts_count, host = group->host_of[group->rank], rc;
	const char *in = algo_in_block(op, group->rank, &count);
	char *out = algo_out_block(op, group->rank, &count);

	rc = sched_local(op, 0, ACT_COPY, out, in, NULL, count * element, -1, -1);
	if (rc >= 0)
		rc = relay_block(op, -1, NULL, in, count * element, others, row_count + hosts - 1);
	for (int d = 1; d < hosts && rc >= 0; d++) {
		int rank = grid_rank(group, host + hosts - d, group->local_index);

		out = algo_out_block(op, rank, &count);
		rc = relay_block(op, rank, out, out, count * element, others, row_count);
	}
	for (int i = 0; i < row_count; i++) {
		for (int d = 0; d < hosts && rc >= 0; d++) {
			int rank = grid_rank(group, host + hosts - d, group->local_index + 1 + i);

			out = algo_out_block(op, rank, &count);
			rc = relay_block(op, others[i], out, out, count * element, NULL, 0);
		}
	}
	return rc < 0 ? rc : 0;
}

int grid_allgather(struct harp_coll_request *op)
{
	int *others = malloc((size_t)op->group->world * sizeof(int)), rc = -ENOMEM;

	if (others)
		rc = grid_gather(op, others, grid_others(op->group, others));
	free(others);
	return rc;
}

/* ---- reduce-scatter -------------------------------------------------------------------------- */

struct scatter {
	struct harp_coll_request *op;
	size_t element, piece; /* piece: elements */
	char *slots;
	int *users;     /* for each slot: the act after which it is free */
	unsigned sums;  /* number of scheduled sums of the row */
	bool is_copied; /* the output overlaps the input: copy the result at the end */
};

enum slot_kind { FROM_ROW, TO_COLUMN, FROM_COLUMN }; /* index: local index, host, host */

static char *scatter_slot(const struct scatter *s, enum slot_kind kind, int index, size_t number,
			  int **user)
{
	const struct harp_coll *group = s->op->group;
	int before = kind == FROM_ROW    ? 0
		     : kind == TO_COLUMN ? group->local_count
					 : group->local_count + group->hosts_count;
	size_t slot = (size_t)(before + index) * SLOTS + number % SLOTS;

	*user = &s->users[slot];
	return s->slots + slot * s->piece * s->element;
}

/* Piece p of a rank's block: returns its elements; *in: this rank's input of them. */
static size_t scatter_part(const struct scatter *s, int rank, size_t p, const char **in)
{
	size_t count, at = p * s->piece;
	const char *block = algo_in_block(s->op, rank, &count);

	if (at >= count)
		return 0;
	*in = block + at * s->element;
	return count - at < s->piece ? count - at : s->piece;
}

/* Sums the row's inputs of a block of this column into dst, which is free after act `before`.
 * Returns the act that completes the sum. */
static int scatter_sum(struct scatter *s, const char *in, size_t count, char *dst, int before)
{
	const struct harp_coll *group = s->op->group;
	int host = group->host_of[group->rank], rc = before;

	for (int d = 1; d < group->local_count && rc >= -1; d++) {
		int local = (group->local_index + d) % group->local_count, *user;
		char *slot = scatter_slot(s, FROM_ROW, local, s->sums, &user);
		const void *value;

		rc = sched_recv(s->op, grid_rank(group, host, local), slot, count * s->element,
				*user, &value);
		if (rc >= 0)
			rc = sched_local(s->op, LANE_ROW, ACT_REDUCE, dst, in, value, count, rc,
					 before);
		*user = rc;
		in = dst;
	}
	s->sums++;
	return rc;
}

/* Sends the row piece p of this rank's input of a host's blocks. Sets *more if there is any. */
static int scatter_send(const struct scatter *s, int host, size_t p, bool *more)
{
	const struct harp_coll *group = s->op->group;
	int own_host = group->host_of[group->rank], rc = 0;

	for (int d = 1; d < group->local_count && rc >= 0; d++) {
		int local = group->local_index + d;
		const char *in;
		size_t count = scatter_part(s, grid_rank(group, host, local), p, &in);

		if (!count)
			continue;
		*more = true;
		rc = sched_send(s->op, grid_rank(group, own_host, local), in, count * s->element,
				-1);
		if (rc >= 0 && s->is_copied)
			rc = sched_local(s->op, LANE_RESULT, ACT_NOTHING, NULL, NULL, NULL, 0, rc,
					 -1);
	}
	return rc;
}

/* Piece p of all blocks of this column. result: memory for this rank's block. */
static int scatter_piece(struct scatter *s, size_t p, char *result, bool *more)
{
	struct harp_coll_request *op = s->op;
	const struct harp_coll *group = op->group;
	int hosts = group->hosts_count, own_host = group->host_of[group->rank], *user, rc = 0;
	int ready = -1;
	size_t own = 0, count;
	const char *in;
	const void *value;

	for (int d = 0; d < hosts && rc >= 0; d++) {
		int host = (own_host + d) % hosts;
		int rank = grid_rank(group, host, group->local_index);
		char *slot;

		rc = scatter_send(s, host, p, more);
		count = scatter_part(s, rank, p, &in);
		if (!count || rc < 0)
			continue;
		*more = true;
		if (d == 0) {
			own = count;
			rc = ready = scatter_sum(s, in, count, result, -1);
			continue;
		}
		slot = scatter_slot(s, TO_COLUMN, host, p, &user);
		rc = scatter_sum(s, in, count, slot, *user);
		if (rc >= 0)
			rc = *user = sched_send(op, rank, slot, count * s->element, rc);
	}
	for (int d = 1; d < hosts && own && rc >= 0; d++) {
		int host = (own_host + hosts - d) % hosts;
		char *slot = scatter_slot(s, FROM_COLUMN, host, p, &user);

		rc = sched_recv(op, grid_rank(group, host, group->local_index), slot,
				own * s->element, *user, &value);
		if (rc >= 0)
			rc = sched_local(op, LANE_COLUMN, ACT_REDUCE, result, result, value, own,
					 rc, ready);
		*user = rc;
	}
	if (op->call.reduce == HARP_COLL_AVG && own && rc >= 0)
		rc = sched_local(op, LANE_COLUMN, ACT_DIVIDE, result, NULL, NULL, own, -1, -1);
	return rc;
}

int grid_reduce_scatter(struct harp_coll_request *op)
{
	struct harp_coll *group = op->group;
	size_t slots = SLOTS * (size_t)(group->local_count + 2 * group->hosts_count), count;
	struct scatter s = { .op = op, .element = harp_coll_dtype_bytes(op->call.dtype) };
	size_t largest = algo_largest(op->call.in_counts, op->call.count, group->world);
	char *out = algo_out_block(op, group->rank, &count), *result = out;
	bool more = true;
	int rc = 0;

	s.piece = algo_slot_bytes(slots) / s.element;
	if (s.piece > largest)
		s.piece = largest;
	s.is_copied = algo_overwrites_input(op, out, count * s.element);
	if (s.is_copied)
		result = sched_scratch(op, count * s.element);
	s.slots = sched_scratch(op, slots * s.piece * s.element);
	s.users = malloc(slots * sizeof(int));
	if (!result || !s.slots || !s.users)
		rc = -ENOMEM;
	for (size_t i = 0; i < slots && s.users; i++)
		s.users[i] = -1;
	for (size_t p = 0; more && rc >= 0; p++) {
		more = false;
		rc = scatter_piece(&s, p, result + p * s.piece * s.element, &more);
	}
	free(s.users);
	if (s.is_copied && count && rc >= 0)
		rc = sched_local(op, LANE_RESULT, ACT_COPY, out, result, NULL, count * s.element,
				 op->lanes[LANE_COLUMN].last, op->lanes[LANE_ROW].last);
	return rc < 0 ? rc : 0;
}
