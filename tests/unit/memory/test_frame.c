/* SPDX-License-Identifier: Apache-2.0 */
/* test_frame.c - frame pools: a frame is free when both the stack and the NIC have released it;
 * invalid pools are refused. */
#include "memory/frame.h"

#include <errno.h>
#include <stdlib.h>

#include "check.h"

#define COUNT 8u

static struct harp_nic_caps caps = { .frame_size = 2048, .frame_count = COUNT, .rx_headroom = 256 };

TEST(invalid_pools_are_refused)
{
	struct frame_pool pool;
	struct harp_nic_caps bad = caps;

	bad.frame_base = NULL;
	CHECK_EQ(frame_pool_init(&pool, &bad), -EINVAL);
	bad = caps;
	bad.frame_size = 2000; /* not a power of two */
	CHECK_EQ(frame_pool_init(&pool, &bad), -EINVAL);
	bad.frame_size = 256; /* no room for a payload */
	CHECK_EQ(frame_pool_init(&pool, &bad), -EINVAL);
	bad = caps;
	bad.frame_count = 0;
	CHECK_EQ(frame_pool_init(&pool, &bad), -EINVAL);
	bad = caps;
	bad.rx_headroom = 2048;
	CHECK_EQ(frame_pool_init(&pool, &bad), -EINVAL);
}

static void test_alloc_and_floor(struct frame_pool *pool)
{
	struct frame *f[COUNT];
	unsigned n = 0;

	while (n < COUNT && (f[n] = frame_alloc(pool, 3)) != NULL) {
		CHECK_EQ(f[n]->pub.len, 0);
		CHECK_EQ(f[n]->pub.capacity, 2048 - FRAME_HEADROOM_BYTES);
		CHECK(f[n]->pub.data == frame_chunk(pool, f[n]) + FRAME_HEADROOM_BYTES);
		CHECK(frame_of_offset(pool, frame_offset(pool, f[n]->pub.data)) == f[n]);
		for (unsigned i = 0; i < n; i++)
			CHECK(f[i] != f[n]);
		n++;
	}
	CHECK_EQ(n, COUNT - 3);
	CHECK(frame_alloc(pool, 3) == NULL);
	CHECK((f[n] = frame_alloc(pool, 2)) != NULL); /* a lower floor allows one more */
	n++;
	while (n > 0)
		frame_release(pool, f[--n]);
	CHECK_EQ(pool->free_count, COUNT);
	/* The frame released last is allocated first, because it is in the CPU cache. */
	CHECK(frame_alloc(pool, 0) == f[0]);
	frame_release(pool, f[0]);
	CHECK(frame_of_offset(pool, (uint64_t)COUNT * 2048) == NULL);
	CHECK(frame_of_offset(pool, UINT64_MAX) == NULL);
	CHECK(frame_of_offset(pool, (uint64_t)COUNT * 2048 - 1) == &pool->frames[COUNT - 1]);
}

static void test_two_holders(struct frame_pool *pool)
{
	struct frame *f = frame_alloc(pool, 0);

	f->nic_refs = 2; /* a segment and its retransmission */
	frame_nic_done(pool, f);
	CHECK_EQ(pool->free_count, COUNT - 1);
	frame_release(pool, f); /* acknowledged before the NIC is done */
	CHECK_EQ(pool->free_count, COUNT - 1);
	frame_nic_done(pool, f);
	CHECK_EQ(pool->free_count, COUNT);

	f = frame_alloc(pool, 0);
	f->nic_refs = 1;
	frame_nic_done(pool, f); /* completed before it is acknowledged */
	CHECK_EQ(pool->free_count, COUNT - 1);
	frame_release(pool, f);
	CHECK_EQ(pool->free_count, COUNT);
}

static void test_packets(struct frame_pool *pool)
{
	struct frame *a = frame_alloc(pool, 0), *b = frame_alloc(pool, 0),
		     *c = frame_alloc(pool, 0);

	a->frag = b;
	b->frag = c;
	frame_release_packet(pool, a);
	CHECK_EQ(pool->free_count, COUNT);
	frame_release_packet(pool, NULL);
	a = frame_alloc(pool, 0);
	CHECK(a->frag == NULL && a->next == NULL && a->flags == 0);
	frame_release(pool, a);
}

int main(void)
{
	struct frame_pool pool;

	caps.frame_base = calloc(COUNT, 2048);
	check_run();
	CHECK_EQ(frame_pool_init(&pool, &caps), 0);
	test_alloc_and_floor(&pool);
	test_two_holders(&pool);
	test_packets(&pool);
	frame_pool_destroy(&pool);
	frame_pool_destroy(&pool); /* a second call is harmless */
	free(caps.frame_base);
	return check_done();
}
