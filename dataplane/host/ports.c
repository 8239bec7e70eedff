/* SPDX-License-Identifier: Apache-2.0 */
/* ports.c - reserves ports in the kernel by bound sockets that send nothing. After this process
 * exits, the kernel answers packets with RST. */
#include "host/ports.h"

#include <errno.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PORTS_ALL 65536u

static void ports_free(struct ports *ports)
{
	free(ports->held);
	free(ports->fds);
	free(ports->slot_of);
	*ports = (struct ports){ 0 };
}

int ports_init(struct ports *ports, const struct harp_xdp_api *api, struct harp_xdp *xdp,
	       uint32_t protocol, uint32_t rx_queue)
{
	*ports = (struct ports){
		.api = api,
		.xdp = xdp,
		.protocol = protocol,
		.rx_queue = rx_queue,
	};
	/* Pages that are never touched cost nothing. */
	ports->held = calloc(PORTS_ALL, sizeof(*ports->held));
	ports->fds = calloc(PORTS_ALL, sizeof(*ports->fds));
	ports->slot_of = calloc(PORTS_ALL, sizeof(*ports->slot_of));
	if (ports->held && ports->fds && ports->slot_of)
		return 0;
	ports_free(ports);
	return -ENOMEM;
}

void ports_destroy(struct ports *ports)
{
	while (ports->count)
		ports_release(ports, ports->held[ports->count - 1]);
	ports_free(ports);
}

/* Binds one socket to the port in both families, or only IPv4 if the host has no IPv6. */
static int ports_bind(int type, uint16_t port)
{
	const struct sockaddr_in6 any6 = { .sin6_family = AF_INET6, .sin6_port = htons(port) };
	const struct sockaddr_in any4 = { .sin_family = AF_INET, .sin_port = htons(port) };
	const int off = 0;
	int fd = socket(AF_INET6, type | SOCK_CLOEXEC, 0), rc;

	if (fd >= 0) {
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
		if (bind(fd, (const struct sockaddr *)&any6, sizeof(any6)) == 0)
			return fd;
		rc = -errno;
		close(fd);
		if (rc != -EADDRNOTAVAIL)
			return rc;
	} else if (errno != EAFNOSUPPORT) {
		return -errno;
	}
	fd = socket(AF_INET, type | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	if (bind(fd, (const struct sockaddr *)&any4, sizeof(any4)) == 0)
		return fd;
	rc = -errno;
	close(fd);
	return rc;
}

/* Attaches a filter that drops everything to a UDP socket. The XDP program passes IP fragments,
 * which a socket that is never read would accumulate. */
static int ports_discard_input(const struct ports *ports, int fd)
{
	struct sock_filter nothing[] = { BPF_STMT(BPF_RET | BPF_K, 0) };
	const struct sock_fprog filter = { .len = 1, .filter = nothing };

	if (ports->protocol != STEER_PORT_UDP)
		return 0;
	return setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof(filter)) ? -errno : 0;
}

int ports_acquire(struct ports *ports, uint16_t port)
{
	int fd, rc;

	if (!port)
		return -EINVAL;
	if (ports->slot_of[port])
		return -EADDRINUSE;
	fd = ports_bind(ports->protocol == STEER_PORT_UDP ? SOCK_DGRAM : SOCK_STREAM, port);
	if (fd < 0)
		return fd;
	/* Only after binding: until then another process may use the port. */
	rc = ports_discard_input(ports, fd);
	if (!rc)
		rc = ports->api->ports_set(ports->xdp, ports->protocol, port, port, ports->rx_queue,
					   true);
	if (rc) {
		close(fd);
		return rc;
	}
	ports->held[ports->count] = port;
	ports->fds[ports->count] = fd;
	ports->slot_of[port] = (uint16_t)++ports->count;
	return 0;
}

void ports_release(struct ports *ports, uint16_t port)
{
	unsigned slot = ports->slot_of ? ports->slot_of[port] : 0, last;

	if (!slot--)
		return;
	ports->api->ports_set(ports->xdp, ports->protocol, port, port, HARP_XDP_QUEUE_ANY, false);
	close(ports->fds[slot]);
	last = --ports->count;
	ports->held[slot] = ports->held[last];
	ports->fds[slot] = ports->fds[last];
	ports->slot_of[ports->held[slot]] = (uint16_t)(slot + 1);
	ports->slot_of[port] = 0;
}
