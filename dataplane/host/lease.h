/* SPDX-License-Identifier: Apache-2.0 */
/* lease.h - an instance's parts that harpd made: asked for, checked, used, given back. */
#ifndef HARP_HOST_LEASE_H
#define HARP_HOST_LEASE_H

#include <stdbool.h>
#include <sys/un.h>

#include "base/why.h"
#include "harp_host.h"

#define LEASE_DAEMON_BYTES 32u
#define LEASE_SOCKET_BYTES sizeof(((struct sockaddr_un *)0)->sun_path)

struct lease {
	struct harp_lease_leased told;
	char daemon[LEASE_DAEMON_BYTES]; /* who made it: "harpd 0.1.0" */
	char socket[LEASE_SOCKET_BYTES];
	int fds[HARP_LEASE_FDS]; /* -1: handed on, closed or not there */
	void *page;              /* statistics, told.page_bytes; NULL: not mapped */
};

/* Connects to the daemon of opt->daemon_socket; name: who it is. Errors as harp_daemon_connect(). */
int lease_connect(struct harp_daemon **out, const struct harp_instance_options *opt,
		  char name[LEASE_DAEMON_BYTES], const struct why *why);
/* What people read of a lease: opt's label, or the program's name. */
const char *lease_label(const struct harp_instance_options *opt);
/* Asks the daemon of opt->daemon_socket for one and checks every descriptor. On failure nothing is left,
 * and harpd has been told. */
int lease_take(struct lease **out, const struct harp_instance_options *opt, struct why *why);
/* Is the NIC in another network namespace than this thread? Before 5.14 the kernel does not tell: then it counts as
 * another. */
bool lease_is_elsewhere(const struct lease *lease);
/* The descriptor, from now on the caller's. */
int lease_hand_on(struct lease *lease, enum harp_lease_fd which);
/* What harp_nic_af_xdp_adopt() is told; its descriptors are handed on. */
void lease_queue(struct lease *lease, struct harp_queue *out);
/* Maps a statistics page of bytes that harpd made, for this process alone; NULL and -EPROTO when it is none. The
 * descriptor stays the caller's. */
int lease_page_map(int fd, size_t bytes, void **out, const struct why *why);
/* Tells the harpd of that socket that this process has no more use for a lease. 0 when there is no harpd: the next one
 * sees by itself. */
int lease_release(const char *socket, uint64_t lease_id, struct why *why);
/* Is this port one of the lease's? */
bool lease_has_port(const struct lease *lease, uint16_t port);
/* Frees it, and gives it back to harpd if there is one (why: when that fails, though harpd is there,
 * -errno). NULL is accepted. */
int lease_give_back(struct lease *lease, struct why *why);
/* In a forked child. Async-signal-safe. */
void lease_fork_child(const struct lease *lease);

#endif
