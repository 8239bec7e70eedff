/* SPDX-License-Identifier: Apache-2.0 */
/* test_comm_kernel.c - plugin_*() end to end over kernel lanes on the loopback interface. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "double_env.h"
#include "driver.h"
#include "handle.h"
#include "base/rng.h"

#define TURNS_MAX 20000000

struct pair {
	struct plugin_ctx *ctx;
	struct listen_comm *listen;
	struct comm *send, *recv;
	uint8_t handle[PLUGIN_HANDLE_BYTES];
};

static void pair_open(struct pair *pair)
{
	memset(pair, 0, sizeof(*pair));
	CHECK_EQ(plugin_init(&pair->ctx, 1, -1), 0);
	CHECK_EQ(plugin_listen(pair->ctx, 0, pair->handle, &pair->listen), 0);
	for (int i = 0; i < TURNS_MAX && (!pair->send || !pair->recv); i++) {
		if (!pair->send)
			CHECK_EQ(plugin_connect(pair->ctx, 0, pair->handle, -1, &pair->send), 0);
		if (!pair->recv)
			CHECK_EQ(plugin_accept(pair->listen, &pair->recv), 0);
	}
	CHECK(pair->send && pair->recv);
	CHECK_EQ(plugin_close_listen(pair->listen), 0);
}

static void pair_close(struct pair *pair)
{
	CHECK_EQ(plugin_close(pair->send), 0);
	CHECK_EQ(plugin_close(pair->recv), 0);
	CHECK_EQ(plugin_finalize(pair->ctx), 0);
}

static uint8_t pattern(uint64_t message, size_t i)
{
	return (uint8_t)(message * 31 + i * 7 + (i >> 8));
}

static size_t message_size(uint64_t message)
{
	static const size_t sizes[] = { 0, 1, 7, 8, 9, 63, 4096, 32768, 32769, 100000, 1048576, 3 };

	return sizes[message % (sizeof(sizes) / sizeof(sizes[0]))] + message % 3;
}

static void test_messages(void)
{
	enum { DEPTH = 8, COUNT = 600 };
	struct pair pair;
	struct request *sends[DEPTH] = { 0 }, *recvs[DEPTH] = { 0 };
	uint8_t *tx[DEPTH], *rx[DEPTH];
	uint64_t sent = 0, send_done = 0, posted = 0, received = 0;
	size_t room = 1048576 + 64;

	pair_open(&pair);
	for (int i = 0; i < DEPTH; i++) {
		tx[i] = malloc(room);
		rx[i] = malloc(room);
	}
	for (long turn = 0; turn < TURNS_MAX && received < COUNT; turn++) {
		int done;
		size_t size = 12345;

		if (sent < COUNT && sent - send_done < DEPTH) {
			uint8_t *data = tx[sent % DEPTH];

			if (!sends[sent % DEPTH])
				for (size_t i = 0; i < message_size(sent); i++)
					data[i] = pattern(sent, i);
			CHECK_EQ(plugin_isend(pair.send, data, message_size(sent), 5,
					      &sends[sent % DEPTH]), 0);
			sent += sends[sent % DEPTH] != NULL;
		}
		if (posted < COUNT && posted - received < DEPTH) {
			CHECK_EQ(plugin_irecv(pair.recv, rx[posted % DEPTH], room, 5,
					      &recvs[posted % DEPTH]), 0);
			posted += recvs[posted % DEPTH] != NULL;
		}
		if (send_done < sent) {
			CHECK_EQ(plugin_test(sends[send_done % DEPTH], &done, NULL), 0);
			if (done)
				sends[send_done++ % DEPTH] = NULL;
		}
		if (received < posted) {
			CHECK_EQ(plugin_test(recvs[received % DEPTH], &done, &size), 0);
			if (done) {
				const uint8_t *data = rx[received % DEPTH];
				size_t wrong = 0;

				CHECK_EQ(size, message_size(received));
				for (size_t i = 0; i < size; i++)
					wrong += data[i] != pattern(received, i);
				CHECK_EQ(wrong, 0);
				received++;
			}
		}
		if (check_failures)
			break;
	}
	CHECK_EQ(received, COUNT);
	for (int i = 0; i < DEPTH; i++) {
		free(tx[i]);
		free(rx[i]);
	}
	pair_close(&pair);
}

int main(void)
{
	test_messages();
	return check_done();
}
