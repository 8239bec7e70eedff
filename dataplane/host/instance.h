/* SPDX-License-Identifier: Apache-2.0 */
/* instance.h - an instance's parts, for its setup (instance_open.c) and its operation
 * (instance.c). */
#ifndef HARP_HOST_INSTANCE_H
#define HARP_HOST_INSTANCE_H

#include <net/if.h>
#include <pthread.h>

#include "harp_host.h"
#include "host/netlink_worker.h"
#include "host/instance_dpdk.h"
#include "host/lease.h"
#include "host/route_cache.h"
#include "host/neighbors.h"
#include "host/ports.h"
#include "host/xdp_shared.h"

/* State of the XDP program, passed from the netlink worker's thread to the poller. */
struct program_watch {
	pthread_mutex_t lock;
	int error;      /* 0, or why nothing is received */
	char text[320]; /* log line; empty: none */
};

/* The statistics page of a stand-alone instance. */
struct instance_page {
	void *map; /* NULL: none */
	size_t bytes;
	int fd; /* kept open: readers find it in /proc/PID/fd */
};

struct harp_instance {
	struct harp_nic *nic;
	struct harp_stack *stack;
	struct xdp_shared *shared; /* XDP program shared by the instances on this interface */
	const struct harp_xdp_api *api;
	struct harp_xdp *xdp;
	struct netlink monitor, queries;
	pthread_mutex_t queries_lock; /* protects `queries` or netwatch's routes; any thread */
	struct instance_dpdk *dpdk;   /* NULL: on a NIC shared with the kernel */
	/* NULL: uses the kernel of this network namespace. Otherwise monitor, queries and worker
	 * are unused. */
	struct netwatch *netwatch;
	bool netwatch_lost;  /* loss of the connection has been logged */
	struct lease *lease; /* NULL: stand-alone; then library, api, xdp and ports are set */
	struct route_cache cache;
	struct ports ports, udp_ports;
	struct neighbors neighbors;
	struct instance_page page; /* stand-alone */
	uint32_t queue, mtu_bytes;
	enum harp_instance_mode mode;
	bool up, gone;
	bool never_up; /* DPDK port: the link has been down since the open */
	bool tables_changed;
	struct netlink_worker worker;
	struct program_watch watch; /* stand-alone */
	void *ctx;
	harp_log_fn log;
	void (*requests)(void *ctx, uint64_t now_ns);
	struct harp_rss rss;
	char ifname[IFNAMSIZ];
	char describe[256];
};

void __attribute__((format(printf, 3, 4)))
instance_log(const struct harp_instance *instance, enum harp_log_level level, const char *format,
	     ...);
/* A worker.task; ctx: the instance. */
bool instance_check_program(void *ctx);

/* ---- instance_page.c ---- */
/* Publishes to a page from now on, with this process as owner. lease_id: 0 if stand-alone. netns:
 * the NIC's network namespace; 0: this process's. label NULL: the program's name. 0, or the error
 * of harp_stack_publish_to(). */
int instance_publish(struct harp_instance *instance, void *page, size_t bytes, uint64_t lease_id,
		     uint64_t netns, const char *label);
/* Creates a page and publishes to it. A failure is only logged. */
void instance_page_open(struct harp_instance *instance, const char *label);
/* Call after the stack, which writes final values, is destroyed. */
void instance_page_close(struct instance_page *page);

#endif
