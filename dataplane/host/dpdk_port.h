/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dpdk_port.h - the DPDK ports of this process. A port is opened with its first instance and closed with its
 * last; each instance has a queue of it. What the instances of a port share is here: its link, its local ports.
 */
#ifndef HARP_HOST_DPDK_PORT_H
#define HARP_HOST_DPDK_PORT_H

#include <stdatomic.h>

#include "base/why.h"
#include "dpdk/harp_dpdk.h"
#include "harp_host.h"
#include "host/dpdk_lease.h"

/* What an instance wants of a port. */
struct dpdk_wish {
	const char *text; /* the port's text; the name alone where it is leased */
	const struct harp_instance_options *opt;
};

struct dpdk_port {
	const struct harp_dpdk_api *api;
	struct harp_dpdk_port *port;
	struct harp_port_spec spec; /* queues: as it was opened */
	struct harp_dpdk_info info; /* as of the opening */
	struct harp_rss rss;
	struct dpdk_lease *lease; /* NULL: opened by ourselves */
	/* The rest is dpdk_port.c's. */
	struct dpdk_port *next;
	unsigned users;
	_Atomic uint64_t look_ns; /* when the link is asked for again */
	atomic_bool up;
	struct dpdk_news *news; /* what its stacks tell each other */
	/* By protocol and port: the queue that holds it, plus 1. Writer: whoever has put 0 there in its stead. */
	_Atomic uint8_t *owners[2];
};

/* Two protocols have local ports. */
enum dpdk_protocol { DPDK_TCP = 0, DPDK_UDP = 1 };

/* -EINVAL the text, or it is open with another one; -errno of opening library and device. */
int dpdk_port_get(struct dpdk_port **out, const struct dpdk_wish *wish, const struct why *why);
/* NULL is accepted. As dpdk_lease_give_back() of the last user's. */
int dpdk_port_put(struct dpdk_port *port, struct why *why);

/* Is the link up? Asks the driver a few times a second, whoever of the instances calls first: *changed is true for
 * the one that saw it change. By any thread. */
bool dpdk_port_up(struct dpdk_port *port, uint64_t now_ns, bool *changed);

/* A local port for a stack on this queue. -EADDRINUSE: a sibling has it, or the device has no room for its flow rule. */
int dpdk_port_acquire(struct dpdk_port *port, enum dpdk_protocol protocol, uint16_t number,
		      uint32_t queue);
void dpdk_port_release(struct dpdk_port *port, enum dpdk_protocol protocol, uint16_t number,
		       uint32_t queue);
/* Does another queue's stack hold it? */
bool dpdk_port_elsewhere(const struct dpdk_port *port, enum dpdk_protocol protocol, uint16_t number,
			 uint32_t queue);

/* ---- DPDK's own messages, by any thread of its: to the instance that has been open longest. ---------------------- */
struct dpdk_sink {
	struct dpdk_sink *next;
	harp_log_fn log;
	void *ctx;
};
void dpdk_sink_add(struct dpdk_sink *sink);
/* When it returns, log is not being called and never will be. */
void dpdk_sink_remove(struct dpdk_sink *sink);

#endif
