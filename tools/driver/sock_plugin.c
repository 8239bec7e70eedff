/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sock_plugin.c - libnccl-net-sock.so: a reference ncclNet plugin over kernel TCP sockets. Like
 * NCCL's socket transport on most NICs, it uses one socket per connection and no helper threads.
 *
 * Each message starts with a 4-byte length and up to 128 payload bytes (NCCL_SOCKET_INLINE). The
 * other bytes follow. test() calls non-blocking send and recv. The plugin has only the newest
 * version of NCCL's table. HARP is compared with it. It also tests the driver: SOCK_FAULT selects a
 * fault, on the message with the number SOCK_FAULT_AT (default 5, per connection):
 *
 *	corrupt     one bit in the middle of the received payload is flipped
 *	size        test() of the receive reports one byte less
 *	drop        the send is reported as done but is never sent
 *	stuck       test() does not return
 *	error       test() fails with ncclSystemError
 *	norequest   isend leaves *request unwritten
 *	init        init fails
 *	close       closeSend fails
 */
#include <ifaddrs.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sock.h"

#define SOCK_EXPORT __attribute__((visibility("default")))

nccl_logger sock_log;
char sock_ifname[IF_NAMESIZE];
struct sockaddr_in sock_addr;
static const char *sock_fault = "";
static uint64_t sock_fault_at = 5;

bool sock_has_fault(const char *kind)
{
	return !strcmp(sock_fault, kind);
}

bool sock_has_fault_at(const char *kind, uint64_t number)
{
	return number == sock_fault_at && sock_has_fault(kind);
}

/* Whether an interface matches NCCL_SOCKET_IFNAME: prefixes, '=' exact names, '^' all others. */
static bool sock_is_selected(const char *name)
{
	const char *list = getenv("NCCL_SOCKET_IFNAME");
	bool exclude, exact;
	char entry[64];

	if (!list || !*list)
		return strcmp(name, "lo") != 0;
	exclude = *list == '^';
	list += exclude;
	exact = *list == '=';
	list += exact;
	while (*list) {
		size_t n = strcspn(list, ",");

		if (n && n < sizeof(entry)) {
			memcpy(entry, list, n);
			entry[n] = 0;
			if (exact ? !strcmp(name, entry) : !strncmp(name, entry, n))
				return !exclude;
		}
		list += n + (list[n] == ',');
	}
	return exclude;
}

static enum nccl_result sock_init(void **ctx, uint64_t comm_id, struct nccl_comm_config *config,
				  nccl_logger logger, nccl_profiler profiler)
{
	struct ifaddrs *all, *i;
	const char *fault = getenv("SOCK_FAULT"), *at = getenv("SOCK_FAULT_AT");

	(void)comm_id;
	(void)config;
	(void)profiler;
	*ctx = NULL;
	sock_log = logger;
	sock_fault = fault ? fault : "";
	sock_fault_at = at ? strtoull(at, NULL, 10) : 5;
	sock_ifname[0] = 0;
	if (sock_has_fault("init")) {
		SOCK_WARN("SOCK: init fails because of SOCK_FAULT");
		return NCCL_SYSTEM_ERROR;
	}
	if (getifaddrs(&all))
		return NCCL_SYSTEM_ERROR;
	for (i = all; i; i = i->ifa_next) {
		if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET || !(i->ifa_flags & IFF_UP) ||
		    !sock_is_selected(i->ifa_name))
			continue;
		snprintf(sock_ifname, sizeof(sock_ifname), "%s", i->ifa_name);
		memcpy(&sock_addr, i->ifa_addr, sizeof(struct sockaddr_in));
		break;
	}
	freeifaddrs(all);
	if (!sock_ifname[0]) {
		SOCK_WARN("SOCK: no interface with an IPv4 address matches NCCL_SOCKET_IFNAME");
		return NCCL_SYSTEM_ERROR;
	}
	SOCK_INFO("NET/SOCK : using %s, one kernel TCP socket per connection", sock_ifname);
	return NCCL_SUCCESS;
}

static enum nccl_result sock_devices(int *ndev)
{
	*ndev = 1;
	return NCCL_SUCCESS;
}

static enum nccl_result sock_properties(int dev, struct nccl_props_v12 *p)
{
	if (dev != 0)
		return NCCL_INVALID_ARGUMENT;
	*p = (struct nccl_props_v12){
		.name = sock_ifname,
		.guid = 1,
		.ptr_support = NCCL_PTR_HOST,
		.speed_mbps = 10000,
		.max_comms = 65536,
		.max_recvs = 1,
		.vprops.ndevs = 1,
		.max_p2p_bytes = 1u << 30,
		.max_coll_bytes = 1u << 30,
		.max_multi_request_size = 1,
		.rail_id = -1,
		.plane_id = -1,
	};
	return NCCL_SUCCESS;
}

static enum nccl_result sock_listen_dev(void *ctx, int dev, void *handle, void **listen_comm)
{
	(void)ctx;
	(void)dev;
	return sock_listen(handle, listen_comm);
}

static enum nccl_result sock_connect_dev(void *ctx, int dev, void *handle, void **send_comm,
					 struct nccl_device_handle **dev_comm)
{
	(void)ctx;
	(void)dev;
	(void)dev_comm;
	return sock_connect(handle, send_comm);
}

static enum nccl_result sock_accept_dev(void *listen_comm, void **recv_comm,
					struct nccl_device_handle **dev_comm)
{
	(void)dev_comm;
	return sock_accept(listen_comm, recv_comm);
}

static enum nccl_result sock_reg_mr(void *comm, void *data, size_t size, int type, void **mhandle)
{
	(void)data;
	(void)size;
	*mhandle = comm;
	return type == NCCL_PTR_HOST ? NCCL_SUCCESS : NCCL_INTERNAL_ERROR;
}

static enum nccl_result sock_dereg_mr(void *comm, void *mhandle)
{
	(void)comm;
	(void)mhandle;
	return NCCL_SUCCESS;
}

static enum nccl_result sock_isend(void *comm, void *data, size_t size, int tag, void *mhandle,
				   void *phandle, void **request)
{
	(void)tag;
	(void)mhandle;
	(void)phandle;
	return sock_post(comm, data, size, request);
}

static enum nccl_result sock_irecv(void *comm, int n, void **data, size_t *sizes, int *tags,
				   void **mhandles, void **phandles, void **request)
{
	(void)tags;
	(void)mhandles;
	(void)phandles;
	return n == 1 ? sock_post(comm, data[0], sizes[0], request) : NCCL_INTERNAL_ERROR;
}

static enum nccl_result sock_iflush(void *comm, int n, void **data, int *sizes, void **mhandles,
				    void **request)
{
	(void)comm;
	(void)n;
	(void)data;
	(void)sizes;
	(void)mhandles;
	*request = NULL;
	return NCCL_SUCCESS;
}

static enum nccl_result sock_finalize(void *ctx)
{
	(void)ctx;
	return NCCL_SUCCESS;
}

SOCK_EXPORT extern const struct nccl_net_v12 ncclNetPlugin_v12;
const struct nccl_net_v12 ncclNetPlugin_v12 = {
	.name = "SOCK",
	.init = sock_init,
	.devices = sock_devices,
	.get_properties = sock_properties,
	.listen = sock_listen_dev,
	.connect = sock_connect_dev,
	.accept = sock_accept_dev,
	.reg_mr = sock_reg_mr,
	.dereg_mr = sock_dereg_mr,
	.isend = sock_isend,
	.irecv = sock_irecv,
	.iflush = sock_iflush,
	.test = sock_test,
	.close_send = sock_close,
	.close_recv = sock_close,
	.close_listen = sock_close_listen,
	.finalize = sock_finalize,
};
