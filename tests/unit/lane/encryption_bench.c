/* SPDX-License-Identifier: Apache-2.0 */
/*
 * encryption_bench.c - what an encrypted lane costs: encryption_bench send|receive SIZE COUNT
 *
 * Moves COUNT messages of SIZE bytes through a pair of encrypted lanes over memory, and prints the processor time
 * of one side for each message and byte. tools/instructions.py counts its instructions: all inside measured().
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "check.h"
#include "lane/lane_encrypted.h"

#define PIPE_BYTES (4u << 20)

/* What one lane has sent and the other reads; costs a memcpy(). */
static struct pipe_lane {
	struct lane lane;
	size_t begin, end;
	uint8_t bytes[PIPE_BYTES];
	struct pipe_lane *from;
} pipes[2];

static enum lane_state pipe_state(struct lane *lane)
{
	return LANE_OPEN;
}

static ssize_t pipe_send(struct lane *lane, const struct iovec *iov, int iov_count)
{
	struct pipe_lane *p = (struct pipe_lane *)lane;

	if (p->end + iov->iov_len > PIPE_BYTES)
		return -EAGAIN;
	memcpy(p->bytes + p->end, iov->iov_base, iov->iov_len);
	p->end += iov->iov_len;
	return (ssize_t)iov->iov_len;
}

static ssize_t pipe_recv(struct lane *lane, void *dst, size_t len, unsigned unit)
{
	struct pipe_lane *p = ((struct pipe_lane *)lane)->from;
	size_t left = p->end - p->begin;

	if (!left)
		return -EAGAIN;
	if (len > left)
		len = left;
	memcpy(dst, p->bytes + p->begin, len);
	p->begin += len;
	if (p->begin == p->end)
		p->begin = p->end = 0;
	return (ssize_t)len;
}

static uint64_t pipe_done_bytes(struct lane *lane)
{
	return ((struct pipe_lane *)lane)->end;
}

static void pipe_close(struct lane *lane, bool abort)
{
}

static const struct lane_ops pipe_ops = {
	.state = pipe_state,
	.send = pipe_send,
	.recv = pipe_recv,
	.copied_bytes = pipe_done_bytes,
	.done_bytes = pipe_done_bytes,
	.close = pipe_close,
};

static uint64_t clock_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static bool move(struct lane *lane, bool send, uint8_t *bytes, size_t len)
{
	struct iovec iov = { bytes, len };

	return (send ? lane->ops->send(lane, &iov, 1) : lane->ops->recv(lane, bytes, len, 8)) ==
	       (ssize_t)len;
}

__attribute__((noinline)) static bool measured(struct lane *lane, bool send, uint8_t *bytes,
					       size_t len)
{
	return move(lane, send, bytes, len);
}

static struct lane *seal_pipe(unsigned i)
{
	static const uint8_t keys[2][CRYPTO_KEY_BYTES] = { { 1 }, { 2 } };
	struct lane *lane = &pipes[i].lane;

	pipes[i].lane.ops = &pipe_ops;
	pipes[i].from = &pipes[1 - i];
	CHECK_EQ(lane_encrypt(&lane, 0, keys[i], keys[1 - i]), 0);
	return lane;
}

int main(int argc, char **argv)
{
	size_t size = argc == 4 ? strtoul(argv[2], NULL, 10) : 0;
	unsigned long count = argc == 4 ? strtoul(argv[3], NULL, 10) : 0;
	bool sending = argc == 4 && !strcmp(argv[1], "send");
	struct lane *lanes[2];
	uint64_t spent_ns = 0;
	uint8_t *from, *to;
	char why[256];

	if (!size || size > PIPE_BYTES / 2 || !count) {
		fprintf(stderr, "usage: encryption_bench send|receive SIZE COUNT\n");
		return 2;
	}
	if (crypto_load(why, sizeof(why)))
		return check_skip(why);
	from = malloc(size);
	to = malloc(size);
	for (size_t i = 0; i < size; i++)
		from[i] = (uint8_t)(i * 37);
	for (unsigned i = 0; i < 2; i++)
		lanes[i] = seal_pipe(i);
	for (unsigned long i = 0; i < count && !check_failures; i++) {
		uint64_t start = clock_ns();

		CHECK(sending ? measured(lanes[0], true, from, size)
			      : move(lanes[0], true, from, size));
		if (!sending)
			start = clock_ns();
		else
			spent_ns += clock_ns() - start;
		CHECK(sending ? move(lanes[1], false, to, size)
			      : measured(lanes[1], false, to, size));
		if (!sending)
			spent_ns += clock_ns() - start;
	}
	CHECK_MEM(to, from, size);
	printf("%s of %zu bytes: %.0f ns each, %.3f ns a byte\n", argv[1], size,
	       (double)spent_ns / (double)count, (double)spent_ns / (double)count / (double)size);
	for (unsigned i = 0; i < 2; i++)
		lanes[i]->ops->close(lanes[i], true);
	free(from);
	free(to);
	return check_done();
}
