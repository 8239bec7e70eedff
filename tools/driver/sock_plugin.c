/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sock_plugin.c - libnccl-net-sock.so: a reference ncclNet plugin over one kernel TCP socket per
 * connection, which behaves like NCCL's built-in socket transport in its default (1 socket, no
 * helper threads).
 *
 * Per message: a 4-byte length, small payloads in the same write (NCCL_SOCKET_INLINE, 128 bytes),
 * the rest moved by non-blocking send and recv from test(). It is what HARP is compared with, and
 * the test double with which the driver itself is tested: SOCK_FAULT makes it misbehave in one
 * chosen way, on the message whose number is SOCK_FAULT_AT (default 5, counted per connection):
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
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "../../plugin/nccl_abi.h"

#define SOCK_EXPORT __attribute__((visibility("default")))
#define SOCK_MAGIC 0x736f636bu
#define SOCK_INLINE 128u
#define SOCK_REQUESTS 32u
#define SOCK_EARLY 4096u

struct sock_handle {
	uint32_t magic;
	int fd_plus_one; /* connector's stage, as NCCL keeps it in the handle */
	struct sockaddr_in addr;
};
_Static_assert(sizeof(struct sock_handle) <= NCCL_HANDLE_BYTES, "fits");

struct sock_comm;
struct sock_request {
	struct sock_comm *comm;
	bool used;
	uint64_t number;
	char *data;
	uint32_t size; /* receive: posted, then real */
	uint32_t header;
	uint32_t moved; /* bytes of header and payload that went */
};

struct sock_comm {
	int fd;
	bool sends;
	enum nccl_result failed;
	uint64_t posted, moved_messages; /* requests are moved in order */
	struct sock_request requests[SOCK_REQUESTS];
};

static nccl_logger sock_log;
static char sock_ifname[IF_NAMESIZE];
static struct sockaddr_in sock_addr;
static const char *sock_fault = "";
static uint64_t sock_fault_at = 5;

#define WARN(...) sock_log(NCCL_LOG_WARN, NCCL_LOG_NET, __func__, __LINE__, __VA_ARGS__)
#define INFO(...) sock_log(NCCL_LOG_INFO, NCCL_LOG_NET, __func__, __LINE__, __VA_ARGS__)

static bool sock_faulty(const char *kind)
{
	return !strcmp(sock_fault, kind);
}

static bool sock_faulty_at(const char *kind, uint64_t number)
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
		WARN("SOCK: init fails because SOCK_FAULT says so");
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
		WARN("SOCK: no interface with an IPv4 address; NCCL_SOCKET_IFNAME names one");
		return NCCL_SYSTEM_ERROR;
	}
	INFO("NET/SOCK : using %s, one kernel TCP socket per connection", sock_ifname);
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
	struct sock_handle h = { .magic = SOCK_MAGIC };
	socklen_t len = sizeof(struct sockaddr_in);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	int *lc = malloc(sizeof(*lc));

	(void)dev;
	if (fd < 0 || !lc || bind(fd, (struct sockaddr *)&sock_addr, sizeof(struct sockaddr_in)) ||
	    listen(fd, 16) || getsockname(fd, (struct sockaddr *)&h.addr, &len)) {
		WARN("SOCK: can't listen on %s: %s", sock_ifname, strerror(errno));
		if (fd >= 0)
			close(fd);
		free(lc);
		return NCCL_SYSTEM_ERROR;
	}
	memcpy(handle, &h, sizeof(h));
	*lc = fd;
	*listen_comm = lc;
	return NCCL_SUCCESS;
}

static enum nccl_result sock_listen_v11(void *ctx, int dev, void *handle, void **listen_comm)
{
	(void)ctx;
	return sock_listen_v6(dev, handle, listen_comm);
}

static struct sock_comm *sock_comm_new(int fd, bool sends)
{
	struct sock_comm *comm = calloc(1, sizeof(*comm));
	int one = 1;

	if (!comm) {
		close(fd);
		return NULL;
	}
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	comm->fd = fd;
	comm->sends = sends;
	return comm;
}

static enum nccl_result sock_connect_v6(int dev, void *handle, void **send_comm)
{
	struct sock_handle h;
	int fd, rc;

	(void)dev;
	*send_comm = NULL;
	if (sock_faulty("noconnect"))
		return NCCL_SUCCESS;
	memcpy(&h, handle, sizeof(h));
	if (h.magic != SOCK_MAGIC) {
		WARN("SOCK: the peer's handle is not one of this plugin's: is it the same on all "
		     "ranks?");
		return NCCL_INVALID_USAGE;
	}
	fd = h.fd_plus_one - 1;
	if (fd < 0)
		fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return NCCL_SYSTEM_ERROR;
	rc = connect(fd, (struct sockaddr *)&h.addr, sizeof(struct sockaddr_in));
	if (rc && (errno == EINPROGRESS || errno == EALREADY)) {
		h.fd_plus_one = fd + 1;
		memcpy(handle, &h, sizeof(h));
		return NCCL_SUCCESS;
	}
	if (rc && errno != EISCONN) {
		WARN("SOCK: can't connect to the peer: %s", strerror(errno));
		close(fd);
		return NCCL_REMOTE_ERROR;
	}
	*send_comm = sock_comm_new(fd, true);
	return *send_comm ? NCCL_SUCCESS : NCCL_SYSTEM_ERROR;
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

static enum nccl_result sock_accept_v6(void *listen_comm, void **recv_comm)
{
	int fd = accept4(*(int *)listen_comm, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

	*recv_comm = NULL;
	if (fd < 0) {
		if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED)
			return NCCL_SUCCESS;
		WARN("SOCK: accept: %s", strerror(errno));
		return NCCL_SYSTEM_ERROR;
	}
	*recv_comm = sock_comm_new(fd, false);
	return *recv_comm ? NCCL_SUCCESS : NCCL_SYSTEM_ERROR;
}

static enum nccl_result sock_accept_v7(void *listen_comm, void **recv_comm,
				       struct nccl_device_handle **dev_comm)
{
	(void)dev_comm;
	return sock_accept_v6(listen_comm, recv_comm);
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

static enum nccl_result sock_fail(struct sock_comm *comm, int error)
{
	comm->failed = NCCL_REMOTE_ERROR;
	WARN("SOCK: the connection to the peer %s", error ? strerror(error) : "was closed");
	return comm->failed;
}

/* The fault "early": in each block the odd words, then the rest. */
static ssize_t sock_recv_early(struct sock_comm *comm, char *data, size_t len)
{
	char *whole = malloc(len);
	ssize_t n = whole ? recv(comm->fd, whole, len, MSG_DONTWAIT) : -1;
	size_t at = n > 0 ? (size_t)n : 0;

	for (size_t block = 0; block < at; block += SOCK_EARLY) {
		size_t end = block + SOCK_EARLY < at ? block + SOCK_EARLY : at;

		for (size_t i = block + 4; i + 4 <= end; i += 8)
			memcpy(data + i, whole + i, 4);
		usleep(20);
		memcpy(data + block, whole + block, end - block);
	}
	free(whole);
	return n;
}

/* Moves r until it is complete (1), would block (0) or fails (-1, comm->failed). */
static int sock_move(struct sock_comm *comm, struct sock_request *r)
{
	for (;;) {
		uint32_t header = sizeof(r->header);
		uint32_t left_header = r->moved < header ? header - r->moved : 0;
		uint32_t paid = r->moved < header ? 0 : r->moved - header;
		struct iovec iov[2] = {
			{ (char *)&r->header + r->moved, left_header },
			{ r->data + paid, r->size - paid },
		};
		struct msghdr msg = { .msg_iov = left_header ? iov : iov + 1,
				      .msg_iovlen = left_header ? 2 : 1 };
		ssize_t n;

		if (r->moved >= header && paid == r->size)
			return 1;
		if (comm->sends) {
			if (left_header && r->size > SOCK_INLINE)
				msg.msg_iovlen = 1;
			n = sendmsg(comm->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
		} else if (left_header) {
			n = recv(comm->fd, iov[0].iov_base, left_header, MSG_DONTWAIT);
		} else if (sock_faulty("early")) {
			n = sock_recv_early(comm, r->data + paid, r->size - paid);
		} else {
			n = recv(comm->fd, r->data + paid, r->size - paid, MSG_DONTWAIT);
		}
		if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
			sock_fail(comm, n ? errno : 0);
			return -1;
		}
		if (n < 0)
			return 0;
		r->moved += (uint32_t)n;
		if (!comm->sends && left_header && r->moved == header) {
			if (r->header > r->size) {
				WARN("SOCK: message truncated: %u bytes sent, %u posted (do all "
				     "ranks have the same NCCL_PROTO and NCCL_ALGO?)",
				     r->header, r->size);
				comm->failed = NCCL_INVALID_USAGE;
				return -1;
			}
			r->size = r->header;
		}
	}
}

static enum nccl_result sock_post(struct sock_comm *comm, void *data, size_t size, void **request)
{
	struct sock_request *r = &comm->requests[comm->posted % SOCK_REQUESTS];

	if (sock_faulty_at("norequest", comm->posted) && comm->sends)
		return NCCL_SUCCESS;
	*request = NULL;
	if (comm->failed)
		return comm->failed;
	if (r->used)
		return NCCL_SUCCESS;
	*r = (struct sock_request){ .comm = comm,
				    .used = true,
				    .number = comm->posted++,
				    .data = data,
				    .size = (uint32_t)size,
				    .header = comm->sends ? (uint32_t)size : 0 };
	if (comm->sends && sock_faulty_at("drop", r->number))
		r->moved = r->size + (uint32_t)sizeof(r->header);
	*request = r;
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

/* The faults that show at a completion; true: *done must stay as it is. */
static bool sock_complete(struct sock_request *r, int *size)
{
	if (r->comm->sends)
		return false;
	if (sock_faulty_at("lose", r->number))
		return true;
	if (sock_faulty_at("corrupt", r->number) && r->size)
		r->data[r->size / 2] ^= 0x10;
	if (sock_faulty_at("size", r->number) && r->size && size)
		*size -= 1;
	return false;
}

static enum nccl_result sock_test(void *request, int *done, int *sizes)
{
	struct sock_request *r = request;
	struct sock_comm *comm = r->comm;
	int moved;

	if (sock_faulty_at("nodone", r->number))
		return NCCL_SUCCESS;
	*done = 0;
	while (sock_faulty_at("stuck", r->number))
		sleep(1);
	if (sock_faulty_at("error", r->number)) {
		WARN("SOCK: test fails because SOCK_FAULT says so");
		comm->failed = NCCL_SYSTEM_ERROR;
	}
	if (comm->failed)
		return comm->failed;
	/* In order, up to the one asked for. */
	for (; comm->moved_messages <= r->number; comm->moved_messages++) {
		moved = sock_move(comm, &comm->requests[comm->moved_messages % SOCK_REQUESTS]);
		if (moved < 0)
			return comm->failed;
		if (!moved)
			return NCCL_SUCCESS;
	}
	if (sizes)
		*sizes = (int)r->size;
	if (sock_complete(r, sizes))
		return NCCL_SUCCESS;
	*done = 1;
	r->used = false;
	return NCCL_SUCCESS;
}

static enum nccl_result sock_close(void *comm)
{
	struct sock_comm *c = comm;
	bool fail;

	if (!c)
		return NCCL_SUCCESS;
	fail = c->sends && sock_faulty("close");
	close(c->fd);
	free(c);
	return fail ? NCCL_INTERNAL_ERROR : NCCL_SUCCESS;
}

static enum nccl_result sock_close_listen(void *listen_comm)
{
	int *lc = listen_comm;

	if (lc)
		close(*lc);
	free(lc);
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
		  .accept = sock_accept_v6,
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
