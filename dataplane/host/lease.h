/* SPDX-License-Identifier: Apache-2.0 */
/* lease.h - requests, verifies, uses and returns the parts of an instance that harpd creates. */
#ifndef HARP_HOST_LEASE_H
#define HARP_HOST_LEASE_H

#include <stdbool.h>
#include <sys/un.h>

#include "base/why.h"
#include "harp_host.h"

#define LEASE_DAEMON_BYTES 32u
#define LEASE_SOCKET_BYTES sizeof(((struct sockaddr_un *)0)->sun_path)

struct lease {
	struct harp_lease_leased grant;
	char daemon[LEASE_DAEMON_BYTES]; /* the lessor, such as "harpd 0.1.0" */
	char socket[LEASE_SOCKET_BYTES];
	int fds[HARP_LEASE_FDS]; /* -1: moved to the caller, closed or absent */
	void *page;              /* statistics, grant.page_bytes; NULL: not mapped */
};

/* Connects to the daemon at opt->daemon_socket; name: receives its identity. Errors as
 * harp_daemon_connect(). */
int lease_connect(struct harp_daemon **out, const struct harp_instance_options *opt,
		  char name[LEASE_DAEMON_BYTES], const struct why *why);
/* Display label of a lease: opt's, or the program's name. */
const char *lease_label(const struct harp_instance_options *opt);
/* Requests a lease from the daemon at opt->daemon_socket and verifies every descriptor. On failure
 * returns the lease to harpd. */
int lease_take(struct lease **out, const struct harp_instance_options *opt, struct why *why);
/* True if the NIC is in another network namespace than this thread. Before Linux 5.14 always
 * true. */
bool lease_in_other_netns(const struct lease *lease);
/* Arguments for harp_nic_af_xdp_adopt(), including descriptors. */
void lease_queue(struct lease *lease, struct harp_queue *out);
/* Maps a statistics page created by harpd; forked children do not inherit the mapping. *out is NULL
 * on failure. -EPROTO: invalid. The caller keeps the descriptor. */
int lease_page_map(int fd, size_t bytes, void **out, const struct why *why);
/* Returns a lease to the harpd at that socket. 0 if no harpd runs: the next one detects that the
 * lease has ended. */
int lease_release(const char *socket, uint64_t lease_id, struct why *why);
/* True if this port is part of the lease. */
bool lease_has_port(const struct lease *lease, uint16_t port);
/* Frees the lease and returns it to harpd. -errno and why if harpd runs and fails. NULL is
 * accepted. */
int lease_return(struct lease *lease, struct why *why);
/* In a forked child. Async-signal-safe. */
void lease_fork_child(const struct lease *lease);

#endif
