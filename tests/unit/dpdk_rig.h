/* SPDX-License-Identifier: Apache-2.0 */
/* dpdk_rig.h - opens, polls and connects instances on the ports of fake_dpdk.c. */
#ifndef HARP_TESTS_DPDK_RIG_H
#define HARP_TESTS_DPDK_RIG_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "check.h"
#include "harp_host.h"

#define POLLS_MAX 2000000u

static const char *lib_dir;
static char log_text[8192];

static inline uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline void append_log(void *ctx, enum harp_log_level level, const char *message)
{
	size_t used = strlen(log_text);

	snprintf(log_text + used, sizeof(log_text) - used, "%u %s\n", (unsigned)level, message);
}

static inline int try_open(struct harp_instance **out, const char *ifname, uint32_t queue,
			   char *why)
{
	const struct harp_instance_options opt = {
		.size = sizeof(opt),
		.ifname = ifname,
		.queue = queue,
		.lib_dir = lib_dir,
		.log = append_log,
		.seed = 7 + queue,
	};

	return harp_instance_open(out, &opt, why, 320);
}

static inline struct harp_instance *open_queue(const char *ifname, uint32_t queue)
{
	struct harp_instance *instance;
	char why[320];
	int rc = try_open(&instance, ifname, queue, why);

	if (rc) {
		fprintf(stderr, "%s: %s\n", ifname, why);
		exit(1);
	}
	return instance;
}

static inline struct harp_endpoint endpoint(const char *addr, uint16_t port)
{
	struct harp_endpoint ep = { .port = port };

	CHECK_EQ(harp_addr_parse(addr, &ep.addr), 0);
	return ep;
}

static inline void poll_all(struct harp_instance **all, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		(void)harp_stack_poll(harp_instance_stack(all[i]), now_ns());
		(void)harp_instance_control(all[i], now_ns());
	}
}

/* Polls until the connection is established or fails; returns its error. */
static inline int wait_established(struct harp_conn *conn, struct harp_instance **all,
				   unsigned count)
{
	struct harp_tcp_info info = { 0 };

	for (unsigned i = 0; i < POLLS_MAX; i++) {
		poll_all(all, count);
		if (harp_conn_error(conn))
			return harp_conn_error(conn);
		harp_conn_info(conn, &info);
		if (info.state == HARP_TCP_ESTABLISHED)
			return 0;
	}
	return -ETIMEDOUT;
}

static inline struct harp_conn *connect_to(struct harp_instance *from, const char *addr,
					   uint16_t port, uint16_t local_port)
{
	struct harp_endpoint to = endpoint(addr, port), local = { .port = local_port };
	struct harp_conn *conn = NULL;

	CHECK_EQ(harp_tcp_connect(harp_instance_stack(from), &local, &to, NULL, &conn), 0);
	return conn;
}

static inline uint64_t stat_of(struct harp_instance *instance, const char *name)
{
	uint64_t value = 0;

	CHECK_EQ(harp_stack_stat(harp_instance_stack(instance), name, &value), 0);
	return value;
}

#endif
