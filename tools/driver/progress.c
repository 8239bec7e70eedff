/* SPDX-License-Identifier: Apache-2.0 */
/*
 * progress.c - NCCL's proxy progress thread: posts and tests while an operation is active;
 * otherwise, sleeps on a condition variable and calls nothing.
 *
 * It copies the behavior of NCCL that plugins depend on: a request slot is never cleared between
 * uses; only the oldest outstanding request of each connection is tested; a connection performs one
 * kind of action per pass; an idle pass yields the CPU; the tag is the sender's rank; a receive is
 * posted as soon as a slot is free, for the whole slot. A plugin's mistake that would mislead NCCL
 * (a request or done flag that is not written) is reported as an error.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "play.h"

static char conn_unwritten; /* its address is a request that no plugin returns */
#define UNWRITTEN ((void *)&conn_unwritten)
#define DONE_UNWRITTEN 0x5a5a5a5a

static char *conn_slot(const struct conn *conn, uint64_t message)
{
	return conn->buffer + (message % conn->depth) * conn->slot_stride;
}

void conn_shape(struct conn *conn, size_t bytes, unsigned depth)
{
	conn->post_bytes = bytes;
	conn->slot_stride = bytes;
	conn->depth = depth;
	/* Nothing is outstanding between operations. Count from zero, so that message 0 is at the
	 * start of the buffer. */
	conn->filled = conn->transmitted = conn->done = 0;
	conn->posted = conn->received = conn->consumed = conn->limit = 0;
}

bool conn_can_fill(const struct conn *conn)
{
	return conn->filled - conn->done < conn->depth;
}

char *conn_fill_slot(const struct conn *conn)
{
	return conn_slot(conn, conn->filled);
}

void conn_fill(struct conn *conn, size_t bytes)
{
	conn->sizes[conn->filled % conn->depth] = bytes;
	conn->filled++;
}

char *conn_take_slot(const struct conn *conn, size_t *bytes)
{
	if (conn->consumed == conn->received)
		return NULL;
	*bytes = conn->sizes[conn->consumed % conn->depth];
	return conn_slot(conn, conn->consumed);
}

int conn_consume(struct conn *conn, size_t expected)
{
	uint64_t message = conn->consumed++;
	size_t bytes = conn->sizes[message % conn->depth];

	if (bytes == expected)
		return 0;
	return play_fail(conn->play, PLAY_WRONG,
			 "message %llu from rank %d (channel %d) has %zu bytes, not "
			 "%zu: lost, repeated or truncated",
			 (unsigned long long)message, conn->peer, conn->channel, bytes, expected);
}

/* Tests a request. Returns 1 if it is done, 0 if not, -1 on failure. */
static int conn_test(struct conn *conn, void *request, int *size)
{
	struct play *play = conn->play;
	int done = DONE_UNWRITTEN;
	int rc;

	mark_enter(&play->progress_mark, "test");
	rc = (int)play->net.table->test(request, &done, size);
	mark_leave(&play->progress_mark);
	if (rc)
		return play_fail_call(play, conn->sends ? "test of a send" : "test of a receive",
				      rc, conn->channel, conn->peer);
	if (done != 0 && done != 1)
		return play_fail(play, PLAY_PLUGIN,
				 "test of a %s returned success and left *done %s",
				 conn->sends ? "send" : "receive",
				 done == DONE_UNWRITTEN ? "unwritten" : "other than 0 or 1");
	return done;
}

/* Checks the result of isend or irecv. Returns 1 if posted, 0 to retry, -1 on failure. */
static int conn_check_post(struct conn *conn, const char *call, int rc, void *request)
{
	struct play *play = conn->play;

	if (rc)
		return play_fail_call(play, call, rc, conn->channel, conn->peer);
	if (request == UNWRITTEN)
		return play_fail(play, PLAY_PLUGIN,
				 "%s returned success and left *request "
				 "unwritten: NCCL would use a previous request",
				 call);
	return request != NULL;
}

int conn_send_pass(struct conn *conn)
{
	struct play *play = conn->play;
	uint64_t done = conn->done;

	if (conn->transmitted < conn->filled) {
		unsigned slot = (unsigned)(conn->transmitted % conn->depth);
		void *request = UNWRITTEN;
		int rc;

		mark_enter(&play->progress_mark, "isend");
		rc = (int)play->net.table->isend(conn->comm, conn_slot(conn, conn->transmitted),
						 conn->sizes[slot], conn->tag, conn->mhandle, NULL,
						 &request);
		mark_leave(&play->progress_mark);
		rc = conn_check_post(conn, "isend", rc, request);
		if (rc > 0) {
			conn->requests[slot] = request;
			conn->transmitted++;
		}
		if (rc)
			return rc;
	}
	if (done < conn->transmitted) {
		unsigned slot = (unsigned)(done % conn->depth);
		int size = -1;
		int rc = conn_test(conn, conn->requests[slot], &size);

		if (rc <= 0)
			return rc;
		conn->done++;
		play_bump(&play->stats.sent_messages, 1);
		play_bump(&play->stats.sent_bytes, conn->sizes[slot]);
		play_bump(&play->moved, 1);
		return 1;
	}
	return 0;
}

static int conn_post(struct conn *conn)
{
	struct play *play = conn->play;
	uint64_t message = conn->posted;
	unsigned slot = (unsigned)(message % conn->depth);
	void *request = UNWRITTEN;
	int rc;

	mark_enter(&play->progress_mark, "irecv");
	rc = net_irecv(&play->net, conn->comm, conn_slot(conn, message), conn->post_bytes,
		       conn->tag, conn->mhandle, &request);
	mark_leave(&play->progress_mark);
	rc = conn_check_post(conn, "irecv", rc, request);
	if (rc > 0) {
		conn->requests[slot] = request;
		conn->posted++;
	}
	return rc;
}

int conn_recv_pass(struct conn *conn)
{
	struct play *play = conn->play;
	int size = -1, rc;
	unsigned slot;

	if (conn->posted < conn->limit && conn->posted - conn->consumed < conn->depth) {
		rc = conn_post(conn);
		if (rc)
			return rc;
	}
	if (conn->received == conn->posted)
		return 0;
	slot = (unsigned)(conn->received % conn->depth);
	rc = conn_test(conn, conn->requests[slot], &size);
	if (rc <= 0)
		return rc;
	if (size < 0 || (size_t)size > conn->post_bytes)
		return play_fail(
			play, PLAY_WRONG,
			"test of a receive from rank %d reported %d bytes; %zu were posted",
			conn->peer, size, conn->post_bytes);
	conn->sizes[slot] = (size_t)size;
	conn->received++;
	play_bump(&play->stats.received_messages, 1);
	play_bump(&play->stats.received_bytes, (uint64_t)size);
	play_bump(&play->moved, 1);
	return 1;
}

void conn_describe(const struct conn *conn, char *text, size_t len)
{
	if (conn->sends)
		snprintf(text, len,
			 "channel %d, sends to rank %d: %llu ready, %llu posted, %llu completed",
			 conn->channel, conn->peer, (unsigned long long)conn->filled,
			 (unsigned long long)conn->transmitted, (unsigned long long)conn->done);
	else
		snprintf(text, len,
			 "channel %d, receives from rank %d: %llu expected, %llu posted, "
			 "%llu completed",
			 conn->channel, conn->peer, (unsigned long long)conn->limit,
			 (unsigned long long)conn->posted, (unsigned long long)conn->received);
}

static uint64_t progress_cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static void progress_op(struct play *play, struct op *op)
{
	unsigned idle = 0;

	while (!op->finished) {
		int rc;

		if (atomic_load_explicit(&play->abort, memory_order_relaxed)) {
			char text[PLAY_ERROR_BYTES / 2] = "";

			op->describe(op, text, sizeof(text));
			/* This is ignored if the rank has failed already. */
			play_fail(play, PLAY_HANG, "%s: nothing moved for %.1f s: %s", op->name,
				  play->options.timeout_s, text);
			break;
		}
		rc = op->pass(op);
		if (rc < 0)
			break;
		if (rc == 0)
			play_pause(play, &idle);
		else
			idle = 0;
	}
	atomic_store_explicit(&play->stats.cpu_ns, progress_cpu_ns(), memory_order_relaxed);
}

void *progress_main(void *arg)
{
	struct play *play = arg;

	pthread_setname_np(pthread_self(), "play-progress");
	pthread_mutex_lock(&play->lock);
	for (;;) {
		struct op *op = play->op;

		if (!op) {
			if (play->exiting)
				break;
			pthread_cond_wait(&play->progress_cond, &play->lock);
			continue;
		}
		pthread_mutex_unlock(&play->lock);
		progress_op(play, op);
		pthread_mutex_lock(&play->lock);
		play->op = NULL;
		pthread_cond_broadcast(&play->main_cond);
	}
	pthread_mutex_unlock(&play->lock);
	return NULL;
}
