/* SPDX-License-Identifier: Apache-2.0 */
/* instance.h - an instance's parts, between its opening (instance_open.c) and its work (instance.c). */
#ifndef HARP_HOST_INSTANCE_H
#define HARP_HOST_INSTANCE_H

#include <net/if.h>
#include <pthread.h>

#include "harp_host.h"
#include "host/asker.h"
#include "host/instance_dpdk.h"
#include "host/instance_page.h"
#include "host/lease.h"
#include "host/mirror.h"
#include "host/neighbours.h"
#include "host/ports.h"
#include "host/xdp_shared.h"

/* What the asker's thread found of the XDP program, for the thread that polls. */
struct program_watch {
	pthread_mutex_t lock;
	int error;      /* 0, or why nothing is received */
	char text[320]; /* to be logged; empty: nothing */
};

struct harp_instance {
	struct harp_nic *nic;
	struct harp_stack *stack;
	struct xdp_shared *shared; /* the XDP program: of the instances on this interface */
	const struct harp_xdp_api *api;
	struct harp_xdp *xdp;
	struct netlink monitor, questions;
	pthread_mutex_t
		questions_lock; /* of `questions`, or netwatch's routes: one at a time, any thread's */
	struct instance_dpdk *dpdk; /* NULL: on a NIC that the kernel keeps using */
	/* NULL: the kernel of this network namespace is asked; else monitor, questions and asker are not used. */
	struct netwatch *netwatch;
	bool netwatch_lost;  /* the log says so */
	struct lease *lease; /* NULL: stand-alone; then library, api, xdp and ports are set */
	struct mirror mirror;
	struct ports ports, udp_ports;
	struct neighbours neighbours;
	struct instance_page page; /* stand-alone */
	uint32_t queue, mtu_bytes;
	enum harp_instance_mode mode;
	bool up, gone;
	bool waited; /* of a DPDK port: its link has never been up */
	bool tables_changed;
	struct asker asker;
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
/* asker.look. ctx: the instance. */
bool instance_check_program(void *ctx);
/* A netwatch_fn. ctx: the instance. */
void instance_hear(void *ctx, const struct harp_lease_header *message);

#endif
