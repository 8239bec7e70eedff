/* SPDX-License-Identifier: Apache-2.0 */
/* test_tcp_gro.c - GRO batches: segments of a burst that continue the previous one. */
#include <stddef.h>

#include "rig.h"

#define BYTES 1000u
#define HEADERS_BYTES 66u

enum repair { REPAIR_NONE, REPAIR_TCP, REPAIR_BOTH, REPAIRS };

static struct rig batched, separate;
BEFORE_EACH(rig_frame_count = 4096) /* enough that no frames are merged */

static struct rig_packet *newest(struct rig *rig)
{
	return &rig->in[(rig->in_tail - 1) % RIG_QUEUE];
}

static void put_two(struct rig *rig)
{
	struct rig_say say = rig_usual(rig, TCP_ACK, BYTES);

	rig_put(rig, say);
	say.seq += BYTES;
	rig_put(rig, say);
	be16_store(newest(rig)->bytes + 18, 1); /* the IPv4 identification */
}

/* A packet of an unknown protocol. */
static void put_unknown(struct rig *rig)
{
	rig_put(rig, rig_usual(rig, TCP_ACK, BYTES));
	be16_store(newest(rig)->bytes + 12, 0x88b5);
}

static void repair(struct rig_packet *p, enum repair kind)
{
	uint8_t *ip = p->bytes + 14, *th = ip + 20;
	struct harp_addr src = harp_addr_v4(ip[12], ip[13], ip[14], ip[15]);
	struct harp_addr dst = harp_addr_v4(ip[16], ip[17], ip[18], ip[19]);
	uint32_t len = p->len - 34;
	uint16_t sum;

	if (kind == REPAIR_BOTH) {
		memset(ip + 10, 0, 2);
		sum = csum_finish(csum_partial(ip, 20, 0));
		memcpy(ip + 10, &sum, 2);
	}
	if (kind != REPAIR_NONE) {
		memset(th + 16, 0, 2);
		sum = csum_finish(csum_partial(th, len, ip_pseudo_sum(&src, &dst, ip[9], len)));
		memcpy(th + 16, &sum, 2);
	}
}

TEST(equal_headers_form_a_batch)
{
	rig_begin(&batched, NULL);
	put_two(&batched);
	repair(newest(&batched), REPAIR_BOTH);
	rig_poll(&batched);
	CHECK(batched.stack->gro.conn == batched.conn);
	CHECK_EQ(rig_stat(&batched, "tcp_fast_path_in"), 2);
	rig_reads(&batched, batched.seq, 2 * BYTES);
	rig_close(&batched);
}

/* One byte of the second of two segments is changed, with or without corrected checksums. The
 * result must be the same as when another packet between them ends the batch. */
static void compare(uint32_t offset, uint8_t change, enum repair kind)
{
	struct rig *rigs[] = { &batched, &separate };
	uint8_t bytes[2][2 * BYTES + 1];
	ssize_t got[2];

	for (unsigned i = 0; i < 2; i++) {
		struct rig_packet unknown;

		rig_begin(rigs[i], NULL);
		put_unknown(rigs[i]);
		unknown = *newest(rigs[i]);
		rigs[i]->in_tail--;
		put_two(rigs[i]);
		newest(rigs[i])->bytes[offset] ^= change;
		repair(newest(rigs[i]), kind);
		rigs[i]->in[rigs[i]->in_tail++ % RIG_QUEUE] = unknown;
		if (i == 1) { /* the other packet between them */
			struct rig_packet *p = newest(rigs[i]);

			p[0] = p[-1];
			p[-1] = unknown;
		}
		rig_poll(rigs[i]);
		got[i] = harp_conn_recv(rigs[i]->conn, bytes[i], sizeof(bytes[i]));
	}
	CHECK_EQ(got[0], got[1]);
	CHECK(got[0] <= 0 || memcmp(bytes[0], bytes[1], (size_t)got[0]) == 0);
	CHECK(memcmp(&batched.stack->stats, &separate.stack->stats, sizeof(batched.stack->stats)) ==
	      0);
	CHECK_EQ(batched.out_tail, separate.out_tail);
	CHECK(memcmp(batched.out, separate.out, batched.out_tail * sizeof(batched.out[0])) == 0);
	CHECK_EQ(rig_events(&batched), rig_events(&separate));
	CHECK_EQ(harp_stack_next_deadline_ns(batched.stack),
		 harp_stack_next_deadline_ns(separate.stack));
	for (unsigned i = 0; i < 2; i++)
		rig_close(rigs[i]);
}

TEST(a_changed_header_is_handled_as_without_a_batch)
{
	for (uint32_t offset = 0; offset < HEADERS_BYTES; offset++)
		for (unsigned bit = 0; bit < 8; bit++)
			for (enum repair kind = REPAIR_NONE; kind < REPAIRS; kind++)
				compare(offset, (uint8_t)(1u << bit), kind);
}

TEST(a_changed_payload_is_handled_as_without_a_batch)
{
	compare(HEADERS_BYTES, 0x40, REPAIR_NONE);
	compare(HEADERS_BYTES + BYTES - 1, 0x40, REPAIR_NONE);
	compare(HEADERS_BYTES + BYTES - 1, 0x40, REPAIR_TCP);
}
