/* SPDX-License-Identifier: Apache-2.0 */
/* test_external.c - the application's memory, sent in place: it is let go of when neither stack nor card refers to it. */
#include "offload_rig.h"

AFTER_EACH(net_close())

TEST(memory_is_registered_before_it_is_sent_in_place)
{
	struct harp_stack *stack;
	uint8_t *p;

	net_open(&(struct how){ .external_count = 64, .complete_delay_ns = 5 * MS });
	stack = net.stack[0];
	p = net.bytes;
	CHECK_EQ(harp_stack_memory_add(stack, NULL, 10), -EINVAL);
	CHECK_EQ(harp_stack_memory_add(stack, p, 0), -EINVAL);
	CHECK_EQ(harp_stack_memory_add(stack, p, SIZE_MAX), -EINVAL);
	CHECK_EQ(harp_stack_memory_remove(stack, p, 1000), -ENOENT);
	CHECK_EQ(harp_conn_send_external(net.from, p, 10), -EFAULT);
	CHECK_EQ(harp_stack_memory_add(stack, p, 1000), 0);
	CHECK_EQ(harp_stack_memory_add(stack, p + 500, 1000), 0); /* overlaps */
	CHECK_EQ(harp_stack_memory_add(stack, p, 1000), 0);       /* twice */
	CHECK_EQ(harp_stack_memory_remove(stack, p, 999), -ENOENT);
	CHECK_EQ(harp_conn_send_external(net.from, p + 600, 901), -EFAULT); /* its last byte */
	CHECK_EQ(harp_conn_send_external(net.from, p - 1, 10), -EFAULT);
	CHECK_EQ(harp_conn_send_external(net.from, p + 400, SIZE_MAX - 300), -EFAULT);
	CHECK_EQ(harp_conn_send_external(net.from, p, 0), 0);
	CHECK_EQ(harp_conn_send_external(net.from, p, 1000), 1000);
	CHECK_EQ(harp_stack_memory_remove(stack, p, 1000), 0); /* once was one too many */
	CHECK_EQ(harp_stack_memory_remove(stack, p, 1000), -EBUSY);
	for (int k = 0; k < 40; k++)
		net_step(MS / 10);
	CHECK_EQ(harp_stack_memory_remove(stack, p, 1000),
		 -EBUSY); /* acknowledged, not completed */
	CHECK_EQ(harp_conn_acked_bytes(net.from), 1000);
	for (int i = 0; i < 10; i++)
		net_step(MS);
	CHECK_EQ(harp_stack_memory_remove(stack, p, 1000), 0);
	CHECK_EQ(harp_stack_memory_remove(stack, p, 1000), -ENOENT);
	CHECK_EQ(harp_stack_memory_remove(stack, p + 500, 1000), 0);
	CHECK_EQ(harp_conn_send_external(net.from, p + 600, 1), -EFAULT);
}

/* An aborted connection lets go as soon as the card has. */
TEST(an_abort_releases_memory_after_completion)
{
	struct harp_stack *stack;

	net_open(&(struct how){ .external_count = 64, .complete_delay_ns = 5 * MS });
	stack = net.stack[0];
	CHECK_EQ(harp_stack_memory_add(stack, net.bytes, BYTES), 0);
	CHECK(harp_conn_send_external(net.from, net.bytes, BYTES) > 20000);
	net_step(MS); /* some of it is with the card, most waits for the window */
	CHECK_EQ(harp_stack_memory_remove(stack, net.bytes, BYTES), -EBUSY);
	harp_conn_abort(net.from);
	CHECK_EQ(harp_stack_memory_remove(stack, net.bytes, BYTES), -EBUSY);
	net_step(6 * MS);
	CHECK_EQ(harp_stack_memory_remove(stack, net.bytes, BYTES), 0);
	CHECK_EQ(net_stat(0, "frames_tcp_external"), 0);
	net.from = NULL;
}

/* The application wants its memory back before the peer has what lies in it: scribbles over it, and all arrives. */
static void evict(bool of_stack)
{
	uint8_t *apart = malloc(BYTES);
	ssize_t n;

	net_open(&(struct how){ .external_count = 64, .complete_delay_ns = 5 * MS });
	memcpy(apart, net.bytes, BYTES);
	CHECK_EQ(harp_stack_memory_add(net.stack[0], apart, BYTES), 0);
	CHECK_EQ(harp_conn_send(net.from, &(struct iovec){ apart, 10 }, 1), 10);
	n = harp_conn_send_external(net.from, apart + 10, 40000);
	CHECK(n > 30000);
	net.sent = 10 + (uint64_t)n;
	net_step(MS); /* some has left */
	CHECK_EQ(harp_stack_memory_evict(net.stack[0], apart, 1), -ENOENT);
	n = of_stack ? harp_stack_memory_evict(net.stack[0], apart, BYTES)
		     : harp_conn_evict(net.from);
	CHECK(n > 20000);
	CHECK_EQ(net_stat(0, "frames_tcp_external"), 0);
	CHECK_EQ(net_stat(0, "tx_copied_bytes"), 10 + (uint64_t)n);
	CHECK_EQ(harp_stack_memory_remove(net.stack[0], apart, BYTES), -EBUSY); /* the card's */
	for (int i = 0; i < 60; i++)
		net_step(MS / 10);
	CHECK_EQ(harp_stack_memory_remove(net.stack[0], apart, BYTES), 0);
	memset(apart, 0xee, BYTES);
	free(apart);
	net_arrives(100, MS);
	net_settles();
	CHECK_EQ(net_stat(0, "frames_tcp_tx"), 0);
}

/* All that was sent arrives, and nothing of it is left behind. */
static void arrives(void)
{
	net_arrives(3000, MS);
	net_settles();
	CHECK_EQ(net_stat(0, "frames_tcp_tx") + net_stat(0, "frames_tcp_external"), 0);
	CHECK_EQ(net_stat(0, "frames_tx_nic"), 0);
}

/* As much as goes, from a copy of the bytes that the stack knows, offset by ten. */
static uint8_t *send_apart(size_t len)
{
	uint8_t *apart = malloc(BYTES);
	ssize_t n;

	memcpy(apart, net.bytes, BYTES);
	CHECK_EQ(harp_stack_memory_add(net.stack[0], apart, BYTES), 0);
	CHECK_EQ(harp_conn_send(net.from, &(struct iovec){ apart, 10 }, 1), 10);
	n = harp_conn_send_external(net.from, apart + 10, len);
	CHECK(n > 8000);
	net.sent = 10 + (uint64_t)n;
	return apart;
}

static void scribble(uint8_t *apart)
{
	memset(apart, 0xee, BYTES);
	free(apart);
}

/* A card that takes nothing, as a memif's whose peer has stopped, and what waits for it. */
static uint8_t *send_to_a_full_card(void)
{
	uint8_t *apart;

	net_open(&(struct how){ .external_count = 64 });
	net.recorder[0].full = true;
	apart = send_apart(40000);
	net_step(MS);
	return apart;
}

/* It is given up, and the memory is its owner's at once. */
TEST(eviction_from_a_full_card_is_immediate)
{
	uint8_t *apart = send_to_a_full_card();

	CHECK(net_stat(0, "frames_tx_nic") > 0);
	CHECK_EQ(harp_stack_memory_remove(net.stack[0], apart, BYTES), -EBUSY);
	CHECK_EQ(harp_stack_memory_evict(net.stack[0], apart, BYTES), (ssize_t)net.sent - 10);
	CHECK(net_stat(0, "tx_forgotten") > 0);
	CHECK_EQ(net_stat(0, "tx_evicted_bytes"), net.sent - 10);
	CHECK_EQ(harp_stack_memory_remove(net.stack[0], apart, BYTES), 0);
	scribble(apart);
	net_step(MS);
	net.recorder[0].full = false;
	arrives();
}

/* What is made behind that is due at once. */
TEST(work_behind_an_eviction_is_due_at_once)
{
	uint8_t *apart = send_to_a_full_card();

	CHECK_EQ(harp_stack_memory_evict(net.stack[0], apart, BYTES), (ssize_t)net.sent - 10);
	harp_conn_abort(net.from);
	CHECK_EQ(harp_stack_next_deadline_ns(net.stack[0]), net.now_ns);
	net.from = NULL;
	scribble(apart);
	net.recorder[0].full = false;
	net_step(MS);
}

/* What waits for the card and lies elsewhere goes on. */
TEST(an_eviction_leaves_other_memory_alone)
{
	static uint8_t other[1000];

	net_open(&(struct how){ .external_count = 64 });
	CHECK_EQ(harp_stack_memory_add(net.stack[0], other, sizeof(other)), 0);
	CHECK_EQ(harp_stack_memory_add(net.stack[0], net.bytes, BYTES), 0);
	net.recorder[0].full = true;
	CHECK_EQ(harp_conn_send_external(net.from, net.bytes, 3000), 3000);
	net.sent = 3000;
	net_step(MS);
	CHECK_EQ(harp_stack_memory_evict(net.stack[0], other, sizeof(other)), 0);
	CHECK_EQ(net_stat(0, "tx_forgotten") + net_stat(0, "tx_evicted_bytes"), 0);
	/* Nor does the card have more room for it than it had. */
	CHECK(harp_stack_next_deadline_ns(net.stack[0]) > net.now_ns);
	net.recorder[0].full = false;
	arrives();
	CHECK_EQ(net_stat(0, "tcp_retransmits") + net_stat(0, "tx_copied_bytes"), 0);
}

/* There is not one frame: the frames of the headers have the room. */
TEST(an_eviction_needs_no_free_frame)
{
	struct frame_pool *pool;
	uint32_t free_count;
	uint8_t *apart;

	net_open(&(struct how){ .external_count = 64 });
	pool = &net.stack[0]->pool;
	apart = send_apart(40000);
	free_count = pool->free_count;
	pool->free_count = 0;
	CHECK_EQ(harp_stack_memory_evict(net.stack[0], apart, BYTES), (ssize_t)net.sent - 10);
	pool->free_count = free_count;
	CHECK_EQ(harp_stack_memory_remove(net.stack[0], apart, BYTES), 0);
	scribble(apart);
	arrives();
}

/* Packets larger than a frame, and no frame: the connection ends, and says of what. */
TEST(an_eviction_without_room_ends_the_connection)
{
	struct frame_pool *pool;
	uint32_t free_count;
	uint8_t *apart;

	net_open(&(struct how){ .external_count = 64, .mtu_bytes = 9000 });
	pool = &net.stack[0]->pool;
	apart = send_apart(40000);
	free_count = pool->free_count;
	pool->free_count = 0;
	CHECK_EQ(harp_stack_memory_evict(net.stack[0], apart, BYTES), 0);
	pool->free_count += free_count; /* some have come home */
	CHECK_EQ(harp_conn_error(net.from), -ENOBUFS);
	CHECK_EQ(harp_stack_memory_remove(net.stack[0], apart, BYTES), 0);
	scribble(apart);
}

/* A sender from evicted memory is told to copy until the memory is added again. */
TEST(evicted_memory_is_refused_until_it_is_added_again)
{
	struct harp_stack *stack;
	uint8_t *p;

	net_open(&(struct how){ .external_count = 64, .complete_delay_ns = 5 * MS });
	stack = net.stack[0];
	p = net.bytes;
	CHECK_EQ(harp_stack_memory_add(stack, p, BYTES), 0);
	CHECK_EQ(harp_stack_memory_add(stack, p, BYTES / 2), 0);
	CHECK_EQ(harp_stack_memory_add(stack, p, BYTES / 2), 0);
	CHECK_EQ(harp_stack_memory_evict(stack, p, BYTES / 2), 0); /* one wants it back, one not */
	CHECK_EQ(harp_stack_memory_remove(stack, p, BYTES), 0);
	CHECK_EQ(harp_conn_send_external(net.from, p, 1000), 1000);
	net_step(MS); /* with the card */
	CHECK_EQ(harp_stack_memory_remove(stack, p, BYTES / 2), 0);
	CHECK_EQ(harp_stack_memory_evict(stack, p, BYTES / 2), 1000);
	CHECK_EQ(harp_stack_memory_remove(stack, p, BYTES / 2), -EBUSY);
	CHECK_EQ(harp_conn_send_external(net.from, p + 1000, 1000), -EFAULT);
	CHECK_EQ(harp_stack_memory_add(stack, p, BYTES / 2), 0);
	CHECK_EQ(harp_conn_send_external(net.from, p + 1000, 1000), 1000);
	net.sent = 2000;
	CHECK_EQ(harp_stack_memory_remove(stack, p, BYTES / 2), 0);
	arrives();
	CHECK_EQ(harp_stack_memory_remove(stack, p, BYTES / 2), 0);
	CHECK_EQ(harp_stack_memory_remove(stack, p, BYTES / 2), -ENOENT);
}

/* Of two pieces that overlap one is asked for back: the other serves. */
TEST(overlapping_memory_still_serves)
{
	struct harp_stack *stack;
	uint8_t *p;

	net_open(&(struct how){ .external_count = 64 });
	stack = net.stack[0];
	p = net.bytes;
	CHECK_EQ(harp_stack_memory_add(stack, p, 5000), 0);
	CHECK_EQ(harp_stack_memory_add(stack, p, 9000), 0);
	CHECK_EQ(harp_conn_send_external(net.from, p, 1000), 1000);
	CHECK_EQ(harp_conn_send_external(net.from, p + 1000, 8000), 8000);
	net.sent = 9000;
	CHECK(harp_stack_memory_evict(stack, p, 5000) > 0);
	CHECK_EQ(harp_stack_memory_remove(stack, p, 5000), 0);
	CHECK_EQ(harp_stack_memory_remove(stack, p, 9000), -EBUSY);
	arrives();
	CHECK_EQ(harp_stack_memory_remove(stack, p, 9000), 0);
}

/* Records run out: a connection waits for its own ACKs, and everything arrives. */
TEST(a_shortage_of_records_only_delays)
{
	net_open(&(struct how){ .external_count = 12, .offloads = ALL_OFFLOADS });
	CHECK_EQ(harp_stack_memory_add(net.stack[0], net.bytes, BYTES), 0);
	net_move(IN_PLACE, 100);
	CHECK_EQ(net.stack[0]->pool.external_free_count, 12);
}

TEST(a_stack_s_memory_is_evicted)
{
	evict(true);
}

TEST(a_connection_s_memory_is_evicted)
{
	evict(false);
}
