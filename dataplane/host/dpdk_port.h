/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dpdk_port.h - the DPDK ports of this process. The first instance opens a port and the last one
 * closes it; each instance has one queue. Instances share link state and local ports.
 */
#ifndef HARP_HOST_DPDK_PORT_H
#define HARP_HOST_DPDK_PORT_H

#include <stdatomic.h>

#include "base/why.h"
#include "dpdk/harp_dpdk.h"
#include "harp_host.h"
#include "host/dpdk_lease.h"

struct dpdk_port {
	const struct harp_dpdk_api *api;
	struct harp_dpdk_port *port;
	struct harp_port_spec spec;     /* queues: as opened */
	struct harp_instance_port info; /* at the time of opening, without addresses */
	struct harp_rss rss;
	struct dpdk_lease *lease; /* NULL: opened by this process */
	/* Private to dpdk_port.c from here on. */
	struct dpdk_port *next;
	unsigned users;
	_Atomic uint64_t link_poll_ns; /* next link query */
	atomic_bool up;
	struct dpdk_events *events;
	/* The queue that holds a local port, plus 1, by protocol and port. Writers: the thread that
	 * changes an entry from 0, and then the holder. */
	_Atomic uint8_t *owners[2];
};

/* Opens a port, or returns the open one with a new reference. text: its specification, or for a
 * leased port its name. -EINVAL invalid, or open with another specification; -errno of the library
 * or device. */
int dpdk_port_get(struct dpdk_port **out, const char *text, const struct harp_instance_options *opt,
		  const struct why *why);
/* Drops a reference. NULL is accepted. For the last user, the result of dpdk_lease_return(). */
int dpdk_port_put(struct dpdk_port *port, struct why *why);

/* Link state. The first call after an interval queries the driver; *changed is true for the one
 * call that sees a change. Any thread. */
bool dpdk_port_up(struct dpdk_port *port, uint64_t now_ns, bool *changed);

/* Acquires a local port for the stack on this queue. -EADDRINUSE: another instance has it. */
int dpdk_port_acquire(struct dpdk_port *port, uint8_t protocol, uint16_t number, uint32_t queue);
void dpdk_port_release(struct dpdk_port *port, uint8_t protocol, uint16_t number, uint32_t queue);
/* True if another queue's stack holds the port. */
bool dpdk_port_on_other_queue(const struct dpdk_port *port, uint8_t protocol, uint16_t number,
			      uint32_t queue);

/* ---- DPDK's log messages, in any thread, to the oldest instance ---- */
struct dpdk_sink {
	struct dpdk_sink *next;
	harp_log_fn log;
	void *ctx;
};
void dpdk_sink_add(struct dpdk_sink *sink);
/* Removes the log function; it is not called after the return. */
void dpdk_sink_remove(struct dpdk_sink *sink);

#endif
