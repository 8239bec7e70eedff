/* SPDX-License-Identifier: Apache-2.0 */
/*
 * coll_group.c - runs the operations of a group, and fails the group.
 *
 * Theory of operation. A group runs its collectives one after another; sends and receives run at
 * the same time, on separate links. The first error fails the group permanently:
 *
 *	GROUP_OPEN -> GROUP_FAILING   group_fail() writes the text. Operations stop.
 *	GROUP_FAILING -> GROUP_FAILED group_finish_failure(), when meet_settle() has exchanged the
 *	                              reason with the other ranks through the store. It closes the
 *	                              links, so that no code accesses the caller's memory, and then
 *	                              completes the requests.
 *
 * After DIAGNOSE_NS without progress, meet_diagnose() compares the operations of the ranks.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coll_impl.h"

#define DIAGNOSE_NS COLL_NSEC_PER_SEC
#define DIAGNOSE_NS_MAX (30 * COLL_NSEC_PER_SEC)
#define DEATH_NS (100 * COLL_NSEC_PER_MSEC) /* interval of checks for dead local ranks */
#define SPARE_OPS 64u

static struct op_queue spare_ops = TAILQ_HEAD_INITIALIZER(spare_ops);
static unsigned spare_ops_count;

struct harp_coll_request *op_take(void)
{
	struct harp_coll_request *op = TAILQ_FIRST(&spare_ops);

	if (op) {
		TAILQ_REMOVE(&spare_ops, op, link);
		spare_ops_count--;
		return op;
	}
	op = calloc(1, sizeof(*op));
	if (op)
		sched_clear(op);
	return op;
}

void op_put(struct harp_coll_request *op)
{
	free(op->arrays);
	free(op->error);
	op->arrays = NULL;
	op->error = NULL;
	op->notify = NULL;
	op->is_released = false;
	op->group = NULL;
	if (spare_ops_count < SPARE_OPS && op->acts_room <= 4096) {
		TAILQ_INSERT_HEAD(&spare_ops, op, link);
		spare_ops_count++;
		return;
	}
	free(op->acts);
	free(op->links);
	free(op);
}

void op_forget_spare(void)
{
	struct harp_coll_request *op;

	while ((op = TAILQ_FIRST(&spare_ops))) {
		TAILQ_REMOVE(&spare_ops, op, link);
		free(op->acts);
		free(op->links);
		free(op);
	}
	spare_ops_count = 0;
}

/* The operation must not be in a queue. */
void op_complete(struct harp_coll_request *op, int result, const char *error)
{
	if (error && !op->error)
		op->error = strdup(error);
	op->state = OP_DONE;
	if (op->notify)
		TAILQ_INSERT_TAIL(&runtime.notify, op, link);
	op->group = NULL;
	atomic_store_explicit(&op->result, result, memory_order_release);
	if (op->is_released && !op->notify)
		op_put(op);
}

void group_set_active(struct harp_coll *group)
{
	if (group->is_active)
		return;
	group->is_active = true;
	LIST_INSERT_HEAD(&runtime.active, group, active_link);
	atomic_store_explicit(&runtime.has_active, true, memory_order_relaxed);
}

bool group_is_active(const struct harp_coll *group)
{
	if (group->state == GROUP_FAILED)
		return false;
	return !TAILQ_EMPTY(&group->queue) || group->busy_count || message_is_waiting(group) ||
	       group->state == GROUP_FAILING;
}

void group_fail(struct harp_coll *group, bool is_cause, int error, const char *fmt, ...)
{
	va_list args;

	if (group->state != GROUP_OPEN)
		return;
	va_start(args, fmt);
	vsnprintf(group->error_text, sizeof(group->error_text), fmt, args);
	va_end(args);
	group->state = GROUP_FAILING;
	group->is_cause = is_cause;
	group->error = error;
	runtime.has_store_work = true;
	group_set_active(group);
}

static void group_fail_queue(struct harp_coll *group, struct op_queue *queue)
{
	struct harp_coll_request *op;

	while ((op = TAILQ_FIRST(queue))) {
		TAILQ_REMOVE(queue, op, link);
		if (op->state == OP_RUNNING)
			sched_clear(op);
		op_complete(op, group->error, group->error_text);
	}
}

void group_close_links(struct harp_coll *group)
{
	shm_set_closed(group);
	for (int i = 0; i < LINK_CLASSES * group->world; i++)
		if (group->links[i])
			link_close(group->links[i]);
	for (int i = 0; i < group->busy_count; i++)
		group->busy[i]->is_busy = false;
	group->busy_count = 0;
}

void group_finish_failure(struct harp_coll *group)
{
	group->state = GROUP_FAILED;
	group_close_links(group);
	message_forget(group);
	group_fail_queue(group, &group->queue);
	group_fail_queue(group, &group->sends);
	group_fail_queue(group, &group->recvs);
	runtime_log(2, "group %s: %s", group->name, group->error_text);
}

static void group_link_failed(struct harp_coll *group, const struct link *link, int rc)
{
	char peer[COLL_RANK_BYTES];

	meet_rank(group, link->peer, peer);
	if (link->is_connecting)
		group_fail(group, true, rc == -EPROTO ? -EPROTONOSUPPORT : -ECONNRESET,
			   "rank %d cannot connect to rank %s; the plugin's log has the reason",
			   group->rank, peer);
	else if (rc == -EPROTO)
		group_fail(group, true, -EPROTO,
			   "rank %d sent a message that is too long for rank %d: they called "
			   "operations of different sizes",
			   link->peer, group->rank);
	else
		group_fail(group, false, -ECONNRESET, "rank %d: lost the connection to rank %s: %s",
			   group->rank, peer, strerror(-rc));
}

static int group_links(struct harp_coll *group)
{
	int moved = 0;

	for (int i = 0; i < group->busy_count;) {
		struct link *link = group->busy[i];
		int rc = link_progress(link);

		if (rc < 0) {
			group_link_failed(group, link, rc);
			return 0;
		}
		moved |= rc;
		if (link_is_idle(link)) {
			link->is_busy = false;
			group->busy[i] = group->busy[--group->busy_count];
		} else {
			i++;
		}
	}
	return moved;
}

void op_start_clock(struct harp_coll_request *op, int64_t now_ns)
{
	int64_t timeout_ns = op->call.timeout_ms ? op->call.timeout_ms * COLL_NSEC_PER_MSEC
						 : op->group->timeout_ns;

	op->moved_ns = now_ns;
	op->deadline_ns = now_ns + timeout_ns;
	op->diagnose_ns = now_ns + DIAGNOSE_NS;
	op->death_ns = 0;
}

static void group_start_next(struct harp_coll *group, int64_t now_ns)
{
	struct harp_coll_request *op = TAILQ_FIRST(&group->queue);
	int rc;

	op->state = OP_RUNNING;
	op_start_clock(op, now_ns);
	op->header.seq = ++group->seq;
	rc = algo_build(op);
	if (rc == 0)
		rc = sched_finish(op);
	if (rc < 0)
		group_fail(group, true, rc, "rank %d: %s: out of memory", group->rank,
			   harp_coll_op_name(op->call.op));
}

static bool queue_begins_with(const struct op_queue *queue, uint64_t seq)
{
	const struct harp_coll_request *op = TAILQ_FIRST(queue);

	return op && op->header.seq == seq;
}

bool group_still_waits(const struct harp_coll *group)
{
	const struct call_header *call = &group->waits_call;

	if (call->kind == CALL_COLLECTIVE)
		return queue_begins_with(&group->queue, call->seq);
	return queue_begins_with(&group->recvs, call->seq) ||
	       queue_begins_with(&group->sends, call->seq);
}

/* Records the ranks that the operation waits for directly. */
static void group_note_waits(struct harp_coll *group, const struct harp_coll_request *op)
{
	free(group->waits);
	group->waits_count = 0;
	group->waits_call = op->header;
	group->waits = malloc(sizeof(int) * (size_t)(op->links_count + 1));
	if (!group->waits)
		return;
	for (int i = 0; i < op->links_count; i++) /* of a collective */
		if (op->links[i].in.oldest >= 0 || op->links[i].out.oldest >= 0)
			group->waits[group->waits_count++] = op->links[i].link->peer;
	if (op->header.kind != CALL_COLLECTIVE && op->call.peer >= 0)
		group->waits[group->waits_count++] = op->call.peer;
}

/* Shared memory does not show that a local rank was killed, so this checks its process. */
static void group_check_deaths(struct harp_coll *group)
{
	char rank[COLL_RANK_BYTES];

	for (int i = 0; i < group->busy_count; i++) {
		const struct link *link = group->busy[i];

		if (!link->shm_in || !meet_process_is_dead(group, link->peer))
			continue;
		group_fail(group, true, -ECONNRESET, "rank %s died, process %d",
			   meet_rank(group, link->peer, rank), (int)group->peers[link->peer].pid);
		return;
	}
}

/* Call after a turn without progress. */
static void group_check_time(struct harp_coll *group, const struct op_queue *queue, int64_t now_ns)
{
	struct harp_coll_request *op = TAILQ_FIRST(queue);

	if (!op || group->state != GROUP_OPEN)
		return;
	if (now_ns - op->moved_ns > DEATH_NS && now_ns >= op->death_ns) {
		op->death_ns = now_ns + DEATH_NS;
		group_check_deaths(group);
	}
	if (group->state != GROUP_OPEN || group->has_stalled || group->is_in_store)
		return;
	if (now_ns < op->deadline_ns && now_ns < op->diagnose_ns)
		return;
	if (now_ns < op->deadline_ns && now_ns - op->moved_ns < DIAGNOSE_NS) {
		op->diagnose_ns = op->moved_ns + DIAGNOSE_NS;
		return;
	}
	group->has_timed_out = now_ns >= op->deadline_ns;
	group->has_stalled = true;
	/* Next when the time without progress has doubled, but at most DIAGNOSE_NS_MAX later. */
	op->diagnose_ns = now_ns + (now_ns - op->moved_ns < DIAGNOSE_NS_MAX ? now_ns - op->moved_ns
									    : DIAGNOSE_NS_MAX);
	runtime.has_store_work = true;
	group_note_waits(group, op);
}

static int group_collectives(struct harp_coll *group, int64_t now_ns)
{
	struct harp_coll_request *op = TAILQ_FIRST(&group->queue);
	int rc;

	if (!op)
		return 0;
	if (op->state == OP_QUEUED) {
		group_start_next(group, now_ns);
		if (group->state != GROUP_OPEN)
			return 0;
	}
	rc = sched_progress(op);
	if (rc < 0) {
		group_fail(group, true, rc, "rank %d: %s: %s", group->rank,
			   harp_coll_op_name(op->call.op), strerror(-rc));
		return 0;
	}
	if (sched_is_done(op)) {
		TAILQ_REMOVE(&group->queue, op, link);
		sched_clear(op);
		group->stats.operations++;
		op_complete(op, 0, NULL);
		return 1;
	}
	return rc;
}

int group_progress(struct harp_coll *group, int64_t now_ns)
{
	int moved = 0;

	/* Bounded, so that one group does not delay the others. */
	for (int i = 0; i < 64 && group->state == GROUP_OPEN; i++) {
		struct harp_coll_request *op = TAILQ_FIRST(&group->queue);
		int more = group_collectives(group, now_ns);

		more |= group_links(group);
		if (message_is_waiting(group))
			more |= message_progress(group);
		if (!more)
			break;
		moved = 1;
		if (op && op == TAILQ_FIRST(&group->queue))
			op->moved_ns = now_ns;
	}
	if (group->state == GROUP_OPEN && !moved) {
		group_check_time(group, &group->queue, now_ns);
		group_check_time(group, &group->recvs, now_ns);
		group_check_time(group, &group->sends, now_ns);
	}
	return moved;
}
