/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_network.c - harpd's messages about the network and its neighbors: rejected, or applied to a
 * stack.
 *
 * Input: messages, each after a byte (1: the message has the length that its header states) and a
 * 16-bit length. Their addresses may be those of the stack.
 */
#include "fuzz_rig.h"

#include "host/route_cache.h"
#include "host/neighbors.h"

#define MESSAGE_BYTES_MAX 4096u

static struct neighbors neighbors;

static void apply(struct route_cache *cache, const void *message)
{
	const struct harp_lease_header *header = message;
	const struct harp_lease_network *network = message;
	const struct harp_lease_neighbors *list = message;

	if (header->type == HARP_LEASE_NETWORK) {
		route_cache_apply(cache, &network->tables);
		CHECK(cache->now.address_count <= HARP_LEASE_ADDRESSES_MAX);
		CHECK(cache->now.route_count <= HARP_LEASE_ROUTES_MAX);
		return;
	}
	for (unsigned i = 0; i < list->count; i += 2) /* only every second one was requested */
		neighbors_requested(&neighbors, &list->all[i].addr);
	neighbors_message(&neighbors, list);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
	struct fuzz_input in = { bytes, len };
	struct route_cache cache = { .ifindex = 1 };

	fuzz_open(false, FUZZ_FRAMES, HARP_NEIGHBOR_EXTERNAL);
	cache.stack = rig.stack;
	memset(&neighbors, 0, sizeof(neighbors));
	neighbors.stack = rig.stack;
	while (in.left > 0) {
		_Alignas(8) uint8_t message[MESSAGE_BYTES_MAX] = { 0 };
		bool is_padded = fuzz_u8(&in) & 1;
		size_t message_len = fuzz_u16(&in) % sizeof(message);
		size_t got = fuzz_bytes(&in, message, message_len);

		if (is_padded)
			got = message_len;
		if (got >= sizeof(struct harp_lease_header) && netwatch_message_valid(message, got))
			apply(&cache, message);
		fuzz_poll(1000);
	}
	fuzz_close();
	return 0;
}
