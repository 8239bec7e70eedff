/* SPDX-License-Identifier: Apache-2.0 */
/* dpdk_lease.h - takes a DPDK port from harpd, with a statistics page per queue, and returns it. */
#ifndef HARP_HOST_DPDK_LEASE_H
#define HARP_HOST_DPDK_LEASE_H

#include "base/why.h"
#include "harp_host.h"
#include "host/lease.h"

struct dpdk_lease {
	uint64_t lease_id;
	uint32_t page_count, page_bytes;
	char daemon[LEASE_DAEMON_BYTES]; /* the lessor, such as "harpd 0.1.0" */
	char socket[LEASE_SOCKET_BYTES];
	int page_fds[HARP_LEASE_PORT_PAGES_MAX]; /* kept open: readers find the pages there */
};

/* Requests the port called name from the harpd of opt->daemon_socket. Errors as
 * harp_instance_open(). */
int dpdk_lease_take(struct dpdk_lease **out, const char *name,
		    const struct harp_instance_options *opt, struct harp_port_spec *spec,
		    const struct why *why);
/* NULL is accepted. If harpd refuses, returns -errno and the reason; the lease then ends with the
 * process. */
int dpdk_lease_return(struct dpdk_lease *lease, struct why *why);
/* In a forked child: closes the lease's descriptors, once. Async-signal-safe. */
void dpdk_lease_fork_child(struct dpdk_lease *lease);

#endif
