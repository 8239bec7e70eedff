/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sock_plugin.c - libnccl-net-sock.so: a reference ncclNet plugin over kernel TCP sockets, which does what
 * NCCL's socket transport does on most NICs: one socket per connection and no helper threads.
 *
 * Per message: a 4-byte length and with it the first payload bytes (at most 128: NCCL_SOCKET_INLINE),
 * then the rest, by non-blocking send and recv from test(). It is what HARP is compared with, and
 * the test double with which the driver itself is tested: SOCK_FAULT selects one fault, on the
 * message whose number is SOCK_FAULT_AT (default 5, counted per connection):
 *
 *	corrupt     one bit of the received payload is flipped (in the middle of the message)
 *	size        test() of the receive reports one byte less
 *	drop        the send is reported done, and never sent
 *	lose        the receive's completion is never reported
 *	stuck       test() does not return
 *	error       test() fails with ncclSystemError
 *	norequest   isend leaves *request unwritten
 *	nodone      test() leaves *done unwritten
 *	noconnect   connect stays pending for ever
 *	init        init fails
 *	nodevice    devices says 0
 *	early       every message's odd 4-byte words are written before the even ones (LL's flags
 *	            before their data)
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

bool sock_faulty(const char *kind)
{
	return !strcmp(sock_fault, kind);
}

bool sock_faulty_at(const char *kind, uint64_t number)
{
	return number == sock_fault_at && sock_faulty(kind);
}

/* NCCL_SOCKET_IFNAME: prefixes, '=' exact, '^' all but these. */
static bool sock_wanted(const char *name)
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

static enum nccl_result sock_init_common(nccl_logger logger)
{
	struct ifaddrs *all, *i;
	const char *fault = getenv("SOCK_FAULT"), *at = getenv("SOCK_FAULT_AT");

	sock_log = logger;
	sock_fault = fault ? fault : "";
	sock_fault_at = at ? strtoull(at, NULL, 10) : 5;
	sock_ifname[0] = 0;
	if (sock_faulty("init")) {
		SOCK_WARN("SOCK: init fails because SOCK_FAULT says so");
		return NCCL_SYSTEM_ERROR;
	}
	if (getifaddrs(&all))
		return NCCL_SYSTEM_ERROR;
	for (i = all; i; i = i->ifa_next) {
		if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET || !(i->ifa_flags & IFF_UP) ||
		    !sock_wanted(i->ifa_name))
			continue;
		snprintf(sock_ifname, sizeof(sock_ifname), "%s", i->ifa_name);
		memcpy(&sock_addr, i->ifa_addr, sizeof(struct sockaddr_in));
		break;
	}
	freeifaddrs(all);
	if (!sock_ifname[0]) {
		SOCK_WARN("SOCK: no interface with an IPv4 address; NCCL_SOCKET_IFNAME names one");
		return NCCL_SYSTEM_ERROR;
	}
	SOCK_INFO("NET/SOCK : using %s, one kernel TCP socket per connection", sock_ifname);
	return NCCL_SUCCESS;
}

static enum nccl_result sock_init_v6(nccl_logger logger)
{
	return sock_init_common(logger);
}

static enum nccl_result sock_init_v10(nccl_logger logger, nccl_profiler profiler)
{
	(void)profiler;
	return sock_init_common(logger);
}

static enum nccl_result sock_init_v11(void **ctx, uint64_t comm_id, struct nccl_comm_config *config,
				      nccl_logger logger, nccl_profiler profiler)
{
	(void)comm_id;
	(void)config;
	(void)profiler;
	*ctx = NULL;
	return sock_init_common(logger);
}

static enum nccl_result sock_devices(int *ndev)
{
	*ndev = sock_faulty("nodevice") ? 0 : 1;
	return NCCL_SUCCESS;
}

#define SOCK_PROPERTIES(p)                                                                         \
	do {                                                                                       \
		if (dev != 0)                                                                      \
			return NCCL_INVALID_ARGUMENT;                                              \
		memset(p, 0, sizeof(*(p)));                                                        \
		(p)->name = sock_ifname;                                                           \
		(p)->guid = 1;                                                                     \
		(p)->ptr_support = NCCL_PTR_HOST;                                                  \
		(p)->speed_mbps = 10000;                                                           \
		(p)->max_comms = 65536;                                                            \
		(p)->max_recvs = 1;                                                                \
	} while (0)

static enum nccl_result sock_properties_v6(int dev, struct nccl_props_v6 *p)
{
	SOCK_PROPERTIES(p);
	return NCCL_SUCCESS;
}

static enum nccl_result sock_properties_v7(int dev, struct nccl_props_v7 *p)
{
	SOCK_PROPERTIES(p);
	return NCCL_SUCCESS;
}

static enum nccl_result sock_properties_v8(int dev, struct nccl_props_v8 *p)
{
	SOCK_PROPERTIES(p);
	return NCCL_SUCCESS;
}

static enum nccl_result sock_properties_v9(int dev, struct nccl_props_v9 *p)
{
	SOCK_PROPERTIES(p);
	p->vprops.ndevs = 1;
	p->max_p2p_bytes = p->max_coll_bytes = 1u << 30;
	return NCCL_SUCCESS;
}

static enum nccl_result sock_properties_v11(int dev, struct nccl_props_v11 *p)
{
	SOCK_PROPERTIES(p);
	p->vprops.ndevs = 1;
	p->max_p2p_bytes = p->max_coll_bytes = 1u << 30;
	p->max_multi_request_size = 1;
	return NCCL_SUCCESS;
}

static enum nccl_result sock_properties_v12(int dev, struct nccl_props_v12 *p)
{
	SOCK_PROPERTIES(p);
	p->vprops.ndevs = 1;
	p->max_p2p_bytes = p->max_coll_bytes = 1u << 30;
	p->max_multi_request_size = 1;
	p->rail_id = p->plane_id = -1;
	return NCCL_SUCCESS;
}

static enum nccl_result sock_listen_v6(int dev, void *handle, void **listen_comm)
{
	(void)dev;
	return sock_listen(handle, listen_comm);
}

static enum nccl_result sock_listen_v11(void *ctx, int dev, void *handle, void **listen_comm)
{
	(void)ctx;
	(void)dev;
	return sock_listen(handle, listen_comm);
}

static enum nccl_result sock_connect_v6(int dev, void *handle, void **send_comm)
{
	(void)dev;
	return sock_connect(handle, send_comm);
}

static enum nccl_result sock_connect_v7(int dev, void *handle, void **send_comm,
					struct nccl_device_handle **dev_comm)
{
	(void)dev_comm;
	return sock_connect_v6(dev, handle, send_comm);
}

static enum nccl_result sock_connect_v10(int dev, struct nccl_comm_config *config, void *handle,
					 void **send_comm, struct nccl_device_handle **dev_comm)
{
	(void)config;
	(void)dev_comm;
	return sock_connect_v6(dev, handle, send_comm);
}

static enum nccl_result sock_connect_v11(void *ctx, int dev, void *handle, void **send_comm,
					 struct nccl_device_handle **dev_comm)
{
	(void)ctx;
	(void)dev_comm;
	return sock_connect_v6(dev, handle, send_comm);
}

static enum nccl_result sock_accept_v7(void *listen_comm, void **recv_comm,
				       struct nccl_device_handle **dev_comm)
{
	(void)dev_comm;
	return sock_accept(listen_comm, recv_comm);
}

static enum nccl_result sock_reg_mr_v6(void *comm, void *data, int size, int type, void **mhandle)
{
	(void)data;
	(void)size;
	*mhandle = comm;
	return type == NCCL_PTR_HOST ? NCCL_SUCCESS : NCCL_INTERNAL_ERROR;
}

static enum nccl_result sock_reg_mr_v8(void *comm, void *data, size_t size, int type,
				       void **mhandle)
{
	(void)size;
	return sock_reg_mr_v6(comm, data, 0, type, mhandle);
}

static enum nccl_result sock_dereg_mr(void *comm, void *mhandle)
{
	(void)comm;
	(void)mhandle;
	return NCCL_SUCCESS;
}

static enum nccl_result sock_isend_v6(void *comm, void *data, int size, int tag, void *mhandle,
				      void **request)
{
	(void)tag;
	(void)mhandle;
	return sock_post(comm, data, (size_t)size, request);
}

static enum nccl_result sock_isend_v9(void *comm, void *data, size_t size, int tag, void *mhandle,
				      void **request)
{
	(void)tag;
	(void)mhandle;
	return sock_post(comm, data, size, request);
}

static enum nccl_result sock_isend_v10(void *comm, void *data, size_t size, int tag, void *mhandle,
				       void *phandle, void **request)
{
	(void)phandle;
	return sock_isend_v9(comm, data, size, tag, mhandle, request);
}

static enum nccl_result sock_irecv_v6(void *comm, int n, void **data, int *sizes, int *tags,
				      void **mhandles, void **request)
{
	(void)tags;
	(void)mhandles;
	return n == 1 ? sock_post(comm, data[0], (size_t)sizes[0], request) : NCCL_INTERNAL_ERROR;
}

static enum nccl_result sock_irecv_v9(void *comm, int n, void **data, size_t *sizes, int *tags,
				      void **mhandles, void **request)
{
	(void)tags;
	(void)mhandles;
	return n == 1 ? sock_post(comm, data[0], sizes[0], request) : NCCL_INTERNAL_ERROR;
}

static enum nccl_result sock_irecv_v10(void *comm, int n, void **data, size_t *sizes, int *tags,
				       void **mhandles, void **phandles, void **request)
{
	(void)phandles;
	return sock_irecv_v9(comm, n, data, sizes, tags, mhandles, request);
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

#define SOCK_COMMON                                                                                \
	.name = "SOCK", .devices = sock_devices, .dereg_mr = sock_dereg_mr, .iflush = sock_iflush, \
	.test = sock_test, .close_send = sock_close, .close_recv = sock_close,                     \
	.close_listen = sock_close_listen

#define SOCK_TABLE(version)                                                                        \
	SOCK_EXPORT extern const struct nccl_net_v##version ncclNetPlugin_v##version;              \
	const struct nccl_net_v##version ncclNetPlugin_v##version

SOCK_TABLE(6) = { SOCK_COMMON,
		  .init = sock_init_v6,
		  .get_properties = sock_properties_v6,
		  .listen = sock_listen_v6,
		  .connect = sock_connect_v6,
		  .accept = sock_accept,
		  .reg_mr = sock_reg_mr_v6,
		  .isend = sock_isend_v6,
		  .irecv = sock_irecv_v6 };
SOCK_TABLE(7) = { SOCK_COMMON,
		  .init = sock_init_v6,
		  .get_properties = sock_properties_v7,
		  .listen = sock_listen_v6,
		  .connect = sock_connect_v7,
		  .accept = sock_accept_v7,
		  .reg_mr = sock_reg_mr_v6,
		  .isend = sock_isend_v6,
		  .irecv = sock_irecv_v6 };
SOCK_TABLE(8) = { SOCK_COMMON,
		  .init = sock_init_v6,
		  .get_properties = sock_properties_v8,
		  .listen = sock_listen_v6,
		  .connect = sock_connect_v7,
		  .accept = sock_accept_v7,
		  .reg_mr = sock_reg_mr_v8,
		  .isend = sock_isend_v6,
		  .irecv = sock_irecv_v6 };
SOCK_TABLE(9) = { SOCK_COMMON,
		  .init = sock_init_v6,
		  .get_properties = sock_properties_v9,
		  .listen = sock_listen_v6,
		  .connect = sock_connect_v7,
		  .accept = sock_accept_v7,
		  .reg_mr = sock_reg_mr_v8,
		  .isend = sock_isend_v9,
		  .irecv = sock_irecv_v9 };
SOCK_TABLE(10) = { SOCK_COMMON,
		   .init = sock_init_v10,
		   .get_properties = sock_properties_v9,
		   .listen = sock_listen_v6,
		   .connect = sock_connect_v10,
		   .accept = sock_accept_v7,
		   .reg_mr = sock_reg_mr_v8,
		   .isend = sock_isend_v10,
		   .irecv = sock_irecv_v10 };
SOCK_TABLE(11) = { SOCK_COMMON,
		   .init = sock_init_v11,
		   .get_properties = sock_properties_v11,
		   .listen = sock_listen_v11,
		   .connect = sock_connect_v11,
		   .accept = sock_accept_v7,
		   .reg_mr = sock_reg_mr_v8,
		   .isend = sock_isend_v10,
		   .irecv = sock_irecv_v10,
		   .finalize = sock_finalize };
SOCK_TABLE(12) = { SOCK_COMMON,
		   .init = sock_init_v11,
		   .get_properties = sock_properties_v12,
		   .listen = sock_listen_v11,
		   .connect = sock_connect_v11,
		   .accept = sock_accept_v7,
		   .reg_mr = sock_reg_mr_v8,
		   .isend = sock_isend_v10,
		   .irecv = sock_irecv_v10,
		   .finalize = sock_finalize };
