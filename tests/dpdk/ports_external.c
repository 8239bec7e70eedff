/* SPDX-License-Identifier: Apache-2.0 */
/* ports_external.c - sends the application's memory in place on DPDK devices. */
#include <errno.h>
#include <rte_ethdev.h>
#include <rte_mempool.h>

#include "ports.h"

/* Sends a header, followed by bytes of the application's memory as external frame `number`. */
static unsigned external_send(struct end *end, uint32_t number, const uint8_t *bytes)
{
	const uint64_t header = end->free[--end->free_count];
	const struct harp_nic_caps *caps = &end->nic->caps;
	const struct harp_desc descs[] = {
		{ .addr = header + END_DATA_AT, .len = 54, .flags = HARP_DESC_MORE },
		{ .addr = ((uint64_t)caps->frame_count + number) * caps->frame_size, .len = 1000 },
	};

	caps->external[number] = bytes;
	return end->nic->ops->tx(end->nic, descs, 2, 1);
}

/* The next user of a queue has none of the previous user's memory. It gets no completions of that
 * user's packets, whether they are still in the ring or already received. */
TEST(external_memory_ends_with_its_queue)
{
	static uint8_t memory[1000];
	struct harp_nic_stats stats;
	uint64_t addrs[8];
	struct end end;

	end_open(&end, "net_ring0", 0);
	for (unsigned round = 0; round < 4; round++) {
		CHECK_EQ(end.nic->ops->memory_remove(end.nic, memory, sizeof(memory)), -ENOENT);
		CHECK_EQ(end.nic->ops->complete(end.nic, addrs, 8, 1), 0);
		CHECK_EQ(end.nic->ops->memory_add(end.nic, memory, sizeof(memory)), 0);
		CHECK_EQ(external_send(&end, 3, memory), 2);
		end.nic->ops->stats(end.nic, &stats);
		CHECK_EQ(stats.tx_invalid, 0);
		CHECK_EQ(end.nic->ops->memory_remove(end.nic, memory, sizeof(memory)), -EBUSY);
		if (round & 1) { /* received, so its frame is free */
			struct harp_desc desc;

			end_fill(&end, 64);
			CHECK_EQ(end.nic->ops->rx(end.nic, &desc, 1, 1), 1);
			CHECK_EQ(desc.len, 1054);
		}
		harp_nic_destroy(end.nic);
		end_open_queue(&end);
	}
	CHECK(end_transfer(&end, &end, 1000, 1514, 1));
	CHECK_EQ(end.errors, 0);
	end_close(&end);
}

/* Sends a piece that is not read, and removes its memory; returns the number of tries. */
static unsigned external_ask(struct end *end, uint8_t memory[1000], uint64_t *now_ns,
			     uint64_t step_ns)
{
	unsigned asked = 0, completed = 0;
	uint64_t addrs[8];

	CHECK_EQ(external_send(end, 3, memory), 2);
	while (end->nic->ops->memory_remove(end->nic, memory, 1000) == -EBUSY && asked++ < 1000) {
		end->nic->ops->memory_flush(end->nic, memory, 1000);
		*now_ns += step_ns;
		completed += end->nic->ops->complete(end->nic, addrs + completed, 8 - completed,
						     *now_ns);
	}
	CHECK_EQ(end->nic->ops->memory_remove(end->nic, memory, 1000), -ENOENT);
	CHECK_EQ(completed, 2);
	end->free[end->free_count++] = addrs[0] < addrs[1] ? addrs[0] : addrs[1]; /* the header's */
	return asked;
}

/* The ring is not read, so the device keeps the sent packets. After repeated tries, the library
 * empties the ring and releases the memory, and the queue works. */
TEST(memory_in_a_full_ring_is_recovered)
{
	static uint8_t memory[3][1000];
	uint64_t now_ns = 1;
	unsigned tries;
	struct end end;

	end_open(&end, "net_ring0", 0);
	for (unsigned i = 0; i < 3; i++)
		CHECK_EQ(end.nic->ops->memory_add(end.nic, memory[i], sizeof(memory[i])), 0);
	CHECK_EQ(end.nic->ops->memory_remove(end.nic, memory[1], sizeof(memory[1])), 0);
	tries = external_ask(&end, memory[0], &now_ns, 10000000);
	CHECK(tries > 50 && tries < 150); /* a second, in steps of 10 ms */
	/* With two seconds between tries, each escalation is due immediately. */
	CHECK_EQ(external_ask(&end, memory[2], &now_ns, 2000000000), 3);
	CHECK(end_transfer(&end, &end, 1000, 1514, 1));
	CHECK_EQ(end.errors, 0);
	end_close(&end);
}

static void mempool_count(struct rte_mempool *mempool, void *count)
{
	*(unsigned *)count += strncmp(mempool->name, "harp_", 5) == 0;
}

static unsigned count_mempools(void)
{
	unsigned count = 0;

	rte_mempool_walk(mempool_count, &count);
	return count;
}

/* Another owner holds sent packets with the application's memory when their port is closed. The
 * last packet frees the pools. */
TEST(held_mbufs_outlive_their_port)
{
	static uint8_t memory[1000];
	struct rte_mbuf *held[2];
	struct end end;
	uint16_t id;

	for (unsigned i = 0; i < 2; i++) {
		end_open(&end, "net_ring0", 0);
		CHECK_EQ(count_mempools(), 2 + 2 * i);
		CHECK_EQ(end.nic->ops->memory_add(end.nic, memory, sizeof(memory)), 0);
		CHECK_EQ(external_send(&end, 3, memory), 2);
		CHECK_EQ(rte_eth_dev_get_port_by_name("net_ring0", &id), 0);
		CHECK_EQ(rte_eth_rx_burst(id, 0, &held[i], 1), 1);
		end_close(&end);
	}
	CHECK_EQ(count_mempools(), 4);
	rte_pktmbuf_free(held[0]);
	end_open(&end, "net_ring1", 0);
	CHECK_EQ(count_mempools(), 4);
	rte_pktmbuf_free(held[1]);
	end_close(&end);
	CHECK_EQ(count_mempools(), 0);
}

/* A device behind a virtual one may read memory that is not mapped for it, so the NIC copies. */
TEST(a_nested_device_sends_nothing_in_place)
{
	struct end end;

	end_open(&end, "net_failsafe0,dev(net_ring0)", 0);
	CHECK_EQ(end.nic->caps.external_count, 0);
	CHECK_EQ(end.nic->ops->memory_add(end.nic, why, sizeof(why)), -ENOTSUP);
	CHECK_EQ(end.nic->ops->memory_remove(end.nic, why, sizeof(why)), -ENOENT);
	CHECK(end_transfer(&end, &end, 1000, 1514, 1));
	end_close(&end);
	end_open(&end, "net_ring1", 0);
	CHECK(end.nic->caps.external_count > 0);
	end_close(&end);
}
