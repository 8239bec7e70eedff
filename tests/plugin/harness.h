/* SPDX-License-Identifier: Apache-2.0 */
/*
 * harness.h - calls the real library as NCCL does, for the cases of conform.c.
 *
 * Each case runs in its own process and network namespace, and exits at the first failed check.
 */
#ifndef HARP_TESTS_PLUGIN_HARNESS_H
#define HARP_TESTS_PLUGIN_HARNESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "versions.h"

/* Limit of each wait, so that a hang fails with a line number. */
#define WAIT_MS_MAX 20000u

__attribute__((format(printf, 3, 4), noreturn)) void fail(const char *file, int line,
							  const char *fmt, ...);
#define REQUIRE(condition)                                                                         \
	do {                                                                                       \
		if (!(condition))                                                                  \
			fail(__FILE__, __LINE__, "%s", #condition);                                \
	} while (0)
/* A call of the plugin must return this result. */
#define EXPECT(call, expected)                                                                     \
	do {                                                                                       \
		enum nccl_result expect_got = (call), expect_want = (expected);                    \
		if (expect_got != expect_want)                                                     \
			fail(__FILE__, __LINE__, "%s gave %d, not %d (last WARN: %s)", #call,      \
			     (int)expect_got, (int)expect_want, log_last_warning());               \
	} while (0)
#define OK(call) EXPECT(call, NCCL_SUCCESS)

uint64_t now_ms(void);
/* Yields and returns true; fails the case WAIT_MS_MAX after start_ms. */
bool yield_or_time_out(const char *file, int line, uint64_t start_ms);
#define WAIT_UNTIL(condition)                                                                      \
	for (uint64_t wait_start = now_ms();                                                       \
	     !(condition) && yield_or_time_out(__FILE__, __LINE__, wait_start);)

/* Stops CLOCK_MONOTONIC for this process, the plugin included: a wait with a timeout, or for a
 * timer, then hangs until the case's time limit. */
void clock_stop(void);
void clock_resume(void);

/* ---- the log --------------------------------------------------------------------------------- */
extern const nccl_logger log_collect;
const char *log_last_warning(void); /* "" when there was none */
unsigned log_warnings(void);
unsigned log_lines(void);

/* ---- the library ----------------------------------------------------------------------------- */
/*
 * With two hosts, the first has the send comms and the second the receive comms. Each loads its own
 * copy of the library. A process for one of the hosts sets this_host first.
 */
enum host { HOST_BOTH, HOST_SENDER, HOST_RECEIVER };
extern enum host this_host;

struct library {
	void *handle, *far_handle;
	struct net net, far;
};
void library_load(struct library *lib, const char *path, int version); /* dlopen and dlsym */
void library_open(struct library *lib, const char *path, int version); /* and init */
void library_unload(struct library *lib);                              /* dlclose */
void library_close(struct library *lib);                               /* finalize and dlclose */

/* ---- connections ----------------------------------------------------------------------------- */
struct pair {
	char handle[NCCL_HANDLE_BYTES];
	void *listen, *send, *recv;
};
/* Both ends are in this process, on device 0. */
void pair_open(struct net *net, struct pair *pair);
void pair_close(struct net *net, struct pair *pair);
/* One end, for tests with two processes. */
void *end_connect(struct net *net, const char *handle);
void *end_accept(struct net *net, void *listen);

/* ---- messages -------------------------------------------------------------------------------- */
/* Retries while the plugin returns no request. */
void *post_send(struct net *net, void *comm, void *data, size_t size, int tag);
void *post_recv(struct net *net, void *comm, void *data, size_t size, int tag);
/* Tests until done; returns the size. complete_both() polls both ends. */
int complete(struct net *net, void *request);
void complete_both(struct net *net, void *send, void *recv, int *sent, int *received);
/* A pattern that differs between messages and between offsets. */
void fill(uint8_t *data, size_t size, unsigned seed);
bool is_filled(const uint8_t *data, size_t size, unsigned seed);

/* ---- this process ---------------------------------------------------------------------------- */
unsigned count_threads(void);
unsigned count_fds(void);
/* Requires these counts, after a wait: the kernel lists a joined thread, and DPDK's thread keeps
 * its descriptors, for a moment longer. */
void require_no_leaks(unsigned threads, unsigned fds);
/* A network namespace with lo; without permission, the machine's own namespace. */
void make_one_host(void);
/* Two namespaces with a veth pair, "ha" and "hb". Returns false without permission. */
bool make_two_hosts(const char *plugin, bool ipv6);
/* Starts or ends the loss of all packets of the sender's host. Returns false with one host. */
bool hosts_cut(bool cut);
void remove_hosts(void);       /* removes their files */
const char *host_ifname(void); /* of this_host; the sender's for HOST_BOTH */
/* Two DPDK ports instead: the ends of a memif, "ha" and "hb". */
void make_two_ports(const char *plugin);
bool hosts_are_ports(void);
/* Starts what stays in the process after its first use: DPDK, and ThreadSanitizer's own thread.
 * Threads and descriptors that are counted later are the plugin's. */
void warm_up(const char *plugin, int version);

#endif
