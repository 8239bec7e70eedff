/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_handle.c - input of an unauthenticated peer: handles, preambles and queue placements.
 *
 * Input: a byte of options; then the 128 bytes of a handle, the peer's side of a preamble, or the
 * peer's description of its NIC queues.
 */
#include "connect/handshake.h"
#include "fake_lane.h"
#include "fuzz.h"
#include "wire/handle.h"
#include "context/plugin.h"
#include "wire/preamble.h"

static bool handle_lookup(void *ctx, struct preamble *p, uint8_t key[PREAMBLE_KEY_BYTES])
{
	(void)ctx;
	memset(key, 7, PREAMBLE_KEY_BYTES);
	return (p->peer.features & FEATURE_JOIN ? p->comm_id : p->listen_id) % 2 == 0;
}

static void check_handle(struct fuzz_input *in)
{
	uint8_t bytes[PLUGIN_HANDLE_BYTES] = { 0 }, encoded[PLUGIN_HANDLE_BYTES];
	struct handle handle;
	char why[200] = "";

	fuzz_bytes(in, bytes, sizeof(bytes));
	if (handle_decode(bytes, &handle, why, sizeof(why)) != 0) {
		CHECK(why[0] != '\0');
		return;
	}
	handle_encode(encoded, &handle);
	CHECK(memcmp(encoded, bytes, sizeof(bytes)) == 0);
}

static void check_preamble(struct fuzz_input *in, bool accept)
{
	static struct fake_pair pair;
	static const uint8_t secret[PREAMBLE_KEY_BYTES];
	struct preamble_terms own = { .eager_bytes = 65536 };
	struct preamble preamble;
	int err = 0;

	fake_pair_init(&pair, 1, 4000);
	if (accept)
		preamble_accept(&preamble, &own, handle_lookup, NULL);
	else
		preamble_connect(&preamble, 2, 1, secret, &own);
	while (in->left > 0 && err == 0) {
		uint8_t bytes[256];
		size_t len = fuzz_bytes(in, bytes, 1 + fuzz_u8(in));

		(void)fake_inject(&pair.lanes[0], bytes, len);
		err = handshake_advance(&preamble, &pair.lanes[0].lane);
		CHECK(err != 1); /* the peer cannot guess the secret */
	}
	fake_pair_free(&pair);
}

/* An accepted description can be used: each port that is chosen maps to the queue of the peer. */
static void check_placement(struct fuzz_input *in)
{
	uint8_t bytes[PLACEMENT_BYTES_MAX + 16], encoded[PLACEMENT_BYTES_MAX];
	size_t len = fuzz_bytes(in, bytes, 1 + fuzz_u8(in) % sizeof(bytes));
	struct harp_endpoint local = { .addr = harp_addr_v4(10, 0, 0, 1) }, remote = local;
	const struct placement_end own = { .kind = PLACEMENT_ONE_QUEUE, .queues = 1 };
	struct placement_end peer;
	struct placement ports;

	remote.port = 61000;
	if (placement_decode(&peer, bytes, len))
		return;
	CHECK(placement_encode(&peer, encoded) == len);
	placement_begin(&ports, &own, &peer, &local, &remote, 61000, 61063, len);
	while ((local.port = placement_next(&ports)) != 0)
		CHECK(harp_rss_queue(&peer.rss, &local, &remote) == peer.queue);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
	struct fuzz_input in = { bytes, len };
	uint32_t choices = fuzz_u8(&in);

	if (choices & 128)
		check_placement(&in);
	else if (choices % 3 == 0)
		check_handle(&in);
	else
		check_preamble(&in, choices % 3 == 1);
	return 0;
}
