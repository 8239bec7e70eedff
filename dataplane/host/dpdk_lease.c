/* SPDX-License-Identifier: Apache-2.0 */
/* dpdk_lease.c - see dpdk_lease.h. */
#include "host/dpdk_lease.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host/daemon.h"

static int dpdk_lease_request(struct dpdk_lease *lease, const char *name,
			      const struct harp_instance_options *opt, struct daemon_port *port,
			      const struct why *why)
{
	struct why reason = { .text = why->text, .size = why->size };
	struct harp_daemon *daemon;
	int rc = lease_connect(&daemon, opt, lease->daemon, why);

	if (rc)
		return rc;
	why_about(&reason, "%s: DPDK port %.15s", opt->daemon_socket, name);
	rc = daemon_lease_port(daemon, name, opt->dpdk_queues, lease_label(opt), port, &reason);
	harp_daemon_close(daemon);
	return rc;
}

int dpdk_lease_take(struct dpdk_lease **out, const char *name,
		    const struct harp_instance_options *opt, struct harp_port_spec *spec,
		    const struct why *why)
{
	struct daemon_port *port = malloc(sizeof(*port));
	struct dpdk_lease *lease = calloc(1, sizeof(*lease));
	int rc = port && lease ? dpdk_lease_request(lease, name, opt, port, why)
			       : why_fail(why, -ENOMEM, "out of memory");

	*out = NULL;
	if (!rc) {
		snprintf(lease->socket, sizeof(lease->socket), "%s", opt->daemon_socket);
		lease->lease_id = port->lease_id;
		lease->page_count = port->page_count;
		lease->page_bytes = port->page_bytes;
		memcpy(lease->page_fds, port->page_fds, port->page_count * sizeof(int));
		*spec = port->port;
		*out = lease;
	} else {
		free(lease);
	}
	free(port);
	return rc;
}

int dpdk_lease_return(struct dpdk_lease *lease, struct why *why)
{
	int rc;

	if (!lease)
		return 0;
	dpdk_lease_fork_child(lease);
	rc = lease_release(lease->socket, lease->lease_id, why);
	free(lease);
	return rc;
}

void dpdk_lease_fork_child(struct dpdk_lease *lease)
{
	while (lease && lease->page_count)
		close(lease->page_fds[--lease->page_count]);
}
