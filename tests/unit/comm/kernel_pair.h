/* SPDX-License-Identifier: Apache-2.0 */
/* kernel_pair.h - a context with two connected comms, made by plugin_*() over kernel lanes on the
 * loopback interface. */
#ifndef HARP_TESTS_KERNEL_PAIR_H
#define HARP_TESTS_KERNEL_PAIR_H

#include "check.h"
#include "comm/comm_impl.h"
#include "wire/handle.h"

#define TURNS_MAX 20000000

struct pair {
	struct plugin_ctx *ctx;
	struct listen_comm *listen;
	struct comm *send, *recv;
	uint8_t handle[PLUGIN_HANDLE_BYTES];
};

static inline void pair_open(struct pair *pair)
{
	memset(pair, 0, sizeof(*pair));
	CHECK_EQ(plugin_init(&pair->ctx, -1), 0);
	CHECK_EQ(plugin_listen(pair->ctx, 0, pair->handle, &pair->listen), 0);
	for (int i = 0; i < TURNS_MAX && (!pair->send || !pair->recv); i++) {
		if (!pair->send)
			CHECK_EQ(plugin_connect(pair->ctx, 0, pair->handle, -1, &pair->send), 0);
		if (!pair->recv)
			CHECK_EQ(plugin_accept(pair->listen, &pair->recv), 0);
	}
	CHECK(pair->send && pair->recv);
	plugin_close_listen(pair->listen);
}

static inline void pair_close(struct pair *pair)
{
	plugin_close(pair->send);
	plugin_close(pair->recv);
	plugin_finalize(pair->ctx);
}

#endif
