/* SPDX-License-Identifier: Apache-2.0 */
/* dpdk_lease.c - a DPDK port that harpd leases: its text, a statistics page for each queue, and the giving back. */
#include "host/dpdk_lease.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host/daemon.h"
#include "host/lease.h"

static int lease_ask(struct dpdk_lease *lease, const char *name,
		     const struct harp_instance_options *opt, struct daemon_port *found,
		     const struct why *why)
{
	const char *label =
		opt->label && opt->label[0] ? opt->label : program_invocation_short_name;
	struct why reason = { .text = why->text, .size = why->size };
	struct harp_daemon *daemon;
	char client[32];
	int rc;

	snprintf(client, sizeof(client), "libharp %s", harp_version());
	rc = harp_daemon_connect(&daemon, opt->daemon_socket, client, why->text, why->size);
	if (rc)
		return rc;
	snprintf(lease->daemon, sizeof(lease->daemon), "%s", harp_daemon_name(daemon));
	why_about(&reason, "%s: DPDK port %.15s", opt->daemon_socket, name);
	rc = daemon_lease_port(daemon, name, opt->dpdk_queues, label, found, &reason);
	harp_daemon_close(daemon);
	return rc;
}

static struct dpdk_lease *lease_new(const char *socket)
{
	struct dpdk_lease *lease = calloc(1, sizeof(*lease));

	if (!lease)
		return NULL;
	lease->socket = strdup(socket);
	if (lease->socket)
		return lease;
	free(lease);
	return NULL;
}

int dpdk_lease_take(struct dpdk_lease **out, const char *name,
		    const struct harp_instance_options *opt, struct harp_port_spec *spec,
		    const struct why *why)
{
	struct daemon_port *found = malloc(sizeof(*found));
	struct dpdk_lease *lease = lease_new(opt->daemon_socket);
	int rc = found && lease ? lease_ask(lease, name, opt, found, why)
				: why_fail(why, -ENOMEM, "out of memory");

	*out = NULL;
	if (!rc) {
		lease->lease_id = found->lease_id;
		lease->page_count = found->page_count;
		lease->page_bytes = found->page_bytes;
		lease->core = found->core;
		memcpy(lease->page_fds, found->page_fds, found->page_count * sizeof(int));
		*spec = found->port;
		*out = lease;
	} else if (lease) {
		free(lease->socket);
		free(lease);
	}
	free(found);
	return rc;
}

int dpdk_lease_give_back(struct dpdk_lease *lease, struct why *why)
{
	int rc;

	if (!lease)
		return 0;
	dpdk_lease_fork_child(lease);
	rc = lease_release(lease->socket, lease->lease_id, why);
	free(lease->socket);
	free(lease);
	return rc;
}

void dpdk_lease_fork_child(struct dpdk_lease *lease)
{
	while (lease && lease->page_count)
		close(lease->page_fds[--lease->page_count]);
}
