/* SPDX-License-Identifier: Apache-2.0 */
/* cases_timeout.c - the user timeout: a slow receiver does not cause it, a silent host does. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cases.h"

#define MIB (1024u * 1024u)
enum { FLOOD = 32 }; /* messages of 1 MiB: more than a kernel lane buffers */

struct flood {
	struct library lib;
	struct pair pair;
	uint8_t *out, *in;
	void *sends[FLOOD];
	unsigned sent;
};

static void flood_open(struct flood *flood, const char *plugin, int version)
{
	memset(flood, 0, sizeof(*flood));
	flood->out = malloc(FLOOD * MIB);
	flood->in = malloc(FLOOD * MIB);
	REQUIRE(flood->out && flood->in);
	/* Short, because the cases wait for it. */
	setenv("HARP_USER_TIMEOUT_MS", "2000", 1);
	library_open(&flood->lib, plugin, version);
	pair_open(&flood->lib.net, &flood->pair);
	fill(flood->out, FLOOD * MIB, 1);
	for (unsigned i = 0; i < FLOOD; i++)
		flood->sends[i] = post_send(&flood->lib.net, flood->pair.send,
					    flood->out + (size_t)i * MIB, MIB, 0);
}

static void flood_close(struct flood *flood)
{
	pair_close(&flood->lib.net, &flood->pair);
	library_close(&flood->lib);
	free(flood->out);
	free(flood->in);
}

/* Tests the next send once; sleeps for 1 ms if it is pending. */
static enum nccl_result flood_step(struct flood *flood)
{
	const struct timespec pause = { .tv_nsec = 1000000 };
	enum nccl_result result = NCCL_SUCCESS;
	int done = 0;

	if (flood->sent < FLOOD)
		result = net_test(&flood->lib.net, flood->sends[flood->sent], &done, NULL);
	flood->sent += done != 0;
	if (!done)
		nanosleep(&pause, NULL);
	return result;
}

static bool uses_kernel_lanes(void)
{
	const char *path = getenv("HARP_PATH");

	return path && !strcmp(path, "kernel");
}

/* The kernel probes a closed window with backoff: after 12 s its interval exceeds 5 s. */
void case_slow_receiver(const char *plugin, int version)
{
	uint64_t idle_ms = uses_kernel_lanes() && version == NCCL_ABI_NEWEST ? 14000 : 3000;
	struct flood flood;
	uint64_t start;

	flood_open(&flood, plugin, version);
	for (start = now_ms(); now_ms() - start < idle_ms;)
		OK(flood_step(&flood));
	REQUIRE(flood.sent < FLOOD);
	for (unsigned i = 0; i < FLOOD; i++) {
		uint8_t *in = flood.in + (size_t)i * MIB;
		void *recv = post_recv(&flood.lib.net, flood.pair.recv, in, MIB, 0);
		int done = 0;

		WAIT_UNTIL(done)
		{
			OK(net_test(&flood.lib.net, recv, &done, NULL));
			if (!done)
				OK(flood_step(&flood));
		}
	}
	REQUIRE(is_filled(flood.in, FLOOD * MIB, 1));
	WAIT_UNTIL(flood.sent == FLOOD)
	OK(flood_step(&flood));
	REQUIRE(log_warnings() == 0);
	flood_close(&flood);
}

/* The sender's window is closed, the receiver's open. HARP's TCP has its own timeout tests. */
void case_silent_host(const char *plugin, int version)
{
	struct flood flood;
	uint64_t start;
	void *recv;
	int done = 0;

	if (!uses_kernel_lanes() || !hosts_cut(true))
		return;
	hosts_cut(false);
	flood_open(&flood, plugin, version);
	/* Continue until the window has been closed for a second. */
	for (start = now_ms(); now_ms() - start < 1000;) {
		unsigned sent = flood.sent;

		OK(flood_step(&flood));
		if (flood.sent != sent)
			start = now_ms();
	}
	start = now_ms(); /* hosts_cut() may return long after the cut on a busy machine */
	hosts_cut(true);
	WAIT_UNTIL(flood_step(&flood) == NCCL_REMOTE_ERROR);
	REQUIRE(flood.sent < FLOOD && now_ms() - start >= 2000);
	fprintf(stderr, "sender, after %llu ms: %s\n", (unsigned long long)(now_ms() - start),
		log_last_warning());
	for (enum nccl_result result = NCCL_SUCCESS; result == NCCL_SUCCESS;) {
		recv = post_recv(&flood.lib.net, flood.pair.recv, flood.in, MIB, 0);
		start = now_ms();
		WAIT_UNTIL(done || result != NCCL_SUCCESS)
		result = net_test(&flood.lib.net, recv, &done, NULL);
		done = 0;
		REQUIRE(result == NCCL_SUCCESS || result == NCCL_REMOTE_ERROR);
	}
	REQUIRE(now_ms() - start >= 1000);
	fprintf(stderr, "receiver, after %llu ms: %s\n", (unsigned long long)(now_ms() - start),
		log_last_warning());
	hosts_cut(false);
	flood_close(&flood);
}
