/* SPDX-License-Identifier: Apache-2.0 */
/*
 * harness.h - calls the real library as NCCL does, for the cases of conform.c.
 *
 * A case runs in a process of its own, in a network namespace with a loopback interface, and
 * ends it at the first thing that is wrong.
 */
#ifndef HARP_TESTS_PLUGIN_HARNESS_H
#define HARP_TESTS_PLUGIN_HARNESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "versions.h"

/* Each wait ends after this time, so that a hang is a failure with a line number. */
#define PATIENCE_MS 20000u

__attribute__((format(printf, 3, 4), noreturn)) void fail(const char *file, int line,
							  const char *fmt, ...);
#define REQUIRE(condition)                                                                         \
	do {                                                                                       \
		if (!(condition))                                                                  \
			fail(__FILE__, __LINE__, "%s", #condition);                                \
	} while (0)
/* A call of the plugin, and the result it must have. */
#define EXPECT(call, expected)                                                                     \
	do {                                                                                       \
		enum nccl_result expect_got = (call), expect_want = (expected);                    \
		if (expect_got != expect_want)                                                     \
			fail(__FILE__, __LINE__, "%s gave %d, not %d (last WARN: %s)", #call,      \
			     (int)expect_got, (int)expect_want, log_last_warning());               \
	} while (0)
#define OK(call) EXPECT(call, NCCL_SUCCESS)

uint64_t now_ms(void);
/* True while the patience that began at start_ms lasts; yields. Fails when it is over. */
bool patient(const char *file, int line, uint64_t start_ms);
#define WAIT_UNTIL(condition)                                                                      \
	for (uint64_t wait_start = now_ms();                                                       \
	     !(condition) && patient(__FILE__, __LINE__, wait_start);)

/* From clock_stop() on no time passes in this process, for the plugin neither: what waits until some time, or for a timer
 * of a stack's, waits until the case's own end. */
void clock_stop(void);
void clock_go(void);

/* ---- the log --------------------------------------------------------------------------------- */
extern const nccl_logger log_collect;
const char *log_last_warning(void); /* "" when there was none */
unsigned log_warnings(void);
unsigned log_lines(void);

/* ---- the library ----------------------------------------------------------------------------- */
/*
 * On two hosts the sending end is the first one's and the receiving end the second one's, each with a
 * library of its own (a copy of the file). A process that is only one of them says so first.
 */
enum host { HOST_BOTH, HOST_SENDER, HOST_RECEIVER };
extern enum host this_host;

struct library {
	void *handle, *far_handle;
	struct net net, far;
};
/* dlopen and dlsym; then init, which must succeed. */
void library_load(struct library *lib, const char *path, int version);
void library_open(struct library *lib, const char *path, int version);
void library_unload(struct library *lib); /* dlclose */
/* finalize and dlclose. */
void library_close(struct library *lib);

/* ---- connections ----------------------------------------------------------------------------- */
struct pair {
	char handle[NCCL_HANDLE_BYTES];
	void *listen, *send, *recv;
};
/* Both ends in this process, over device 0. */
void pair_open(struct net *net, struct pair *pair);
void pair_close(struct net *net, struct pair *pair);
/* One end each, for tests of two processes. */
void *end_connect(struct net *net, const char *handle);
void *end_accept(struct net *net, void *listen);

/* ---- messages -------------------------------------------------------------------------------- */
/* Retries while the plugin has no request to give. */
void *post_send(struct net *net, void *comm, void *data, size_t size, int tag);
void *post_recv(struct net *net, void *comm, void *data, size_t size, int tag);
/* Tests until done; returns the size. Both ends need polling: both are polled. */
int complete(struct net *net, void *request);
void complete_both(struct net *net, void *send, void *recv, int *sent, int *received);
/* Bytes that tell messages and places apart. */
void fill(uint8_t *data, size_t size, unsigned seed);
bool filled(const uint8_t *data, size_t size, unsigned seed);

/* ---- this process ---------------------------------------------------------------------------- */
unsigned count_threads(void);
unsigned count_fds(void);
/* There are so many and no more. The kernel shows a joined thread for a moment yet, and DPDK's own closes descriptors
 * a moment later. */
void nothing_left(unsigned threads, unsigned fds);
/* One host: a network namespace with lo up; the machine's own when that isn't allowed. */
void make_one_host(void);
/* Two: namespaces with a veth pair between them, "ha" and "hb". False when that isn't allowed. */
bool make_two_hosts(const char *plugin, bool ipv6);
/* Packets of the sender's host are lost from now on, or no longer. False with one host. */
bool hosts_cut(bool cut);
void remove_hosts(void);       /* their files */
const char *host_ifname(void); /* of this_host; of the sender for both */
/* Two DPDK ports instead, net_memif's two ends, called "ha" and "hb". */
void make_two_ports(const char *plugin);
bool hosts_are_ports(void);
/* What DPDK keeps in a process once it was started is there, and what ThreadSanitizer does, which starts a thread of its
 * own with the first one of a process: threads and descriptors counted from now on are ours. */
void start_environment(const char *plugin, int version);

#endif
