/* SPDX-License-Identifier: Apache-2.0 */
/*
 * abi.c - NCCL's seven function tables. Version numbers and ncclResult_t are used only here.
 *
 * Theory of operation
 * -------------------
 * A shim is named after the oldest version that it fits, as its type in nccl_abi.h is. The newest
 * form does the work; older ones convert their arguments and call it. Every output is written even
 * on error: NCCL reads *request, *done and *comm before it checks the result, and *request may hold
 * an old pointer or the marker 0x1 on entry. Pointers to outputs are never NULL, except for sizes.
 *
 * lifetime.c handles contexts, fork(), and the end of the process and of the library.
 */
#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/types.h>

#include "abi/lifetime.h"
#include "abi/nccl_abi.h"
#include "comm/comm.h"
#include "comm/memory.h"
#include "context/plugin.h"
#include "device/device.h"
#include "process/log.h"

#define ABI_NAME "HARP"
#define ABI_COMMS_MAX 65536
/* About one way of a small message over kernel TCP. NCCL adds it for each hop when it chooses
 * algorithms and protocols, and ranks do not exchange it: with different values on two hosts they
 * could choose differently and deadlock. So it does not depend on this host. */
#define ABI_LATENCY_US 10.0f
#define ABI_MESSAGE_BYTES_MAX (1ull << 40) /* the most that NCCL takes for maxP2pBytes */
#define ABI_EXPORT __attribute__((visibility("default")))

/* A negative int of an older version, converted to size_t. */
#define ABI_IS_NEGATIVE(size) ((ssize_t)(size) < 0)
/* Logs an invalid argument by the caller. */
#define ABI_MISUSE(rc, ...) (WARN(__VA_ARGS__), abi_result(rc))

static enum nccl_result abi_result(int rc)
{
	switch (-rc) {
	case 0:
		return NCCL_SUCCESS;
	case ECONNRESET:
	case EPIPE:
	case ECONNREFUSED:
	case ETIMEDOUT:
	case EHOSTUNREACH:
	case ENETUNREACH:
	case EPROTO:
	case EBADMSG:
	case ECONNABORTED:
		return NCCL_REMOTE_ERROR;
	case EMSGSIZE:
	case EKEYREJECTED: /* an invalid proof: pre-shared keys differ */
	case EPROTONOSUPPORT:
		return NCCL_INVALID_USAGE;
	case EINVAL:
	case ENODEV:
	case EOPNOTSUPP:
		return NCCL_INVALID_ARGUMENT;
	case EBADF:
	case EFAULT:
		return NCCL_INTERNAL_ERROR;
	default:
		return NCCL_SYSTEM_ERROR;
	}
}

/* ---- profiler events: one for each isend and irecv that has a profiler handle ---------------- */

/* libnccl's callback, the same for all communicators. Writer: init. Reader: isend, irecv, test. */
static _Atomic(nccl_profiler) abi_profiler;

static void abi_set_profiler(nccl_profiler profiler)
{
	if (profiler)
		atomic_store_explicit(&abi_profiler, profiler, memory_order_release);
}

static void abi_event_start(struct request *request, void *phandle)
{
	nccl_profiler profiler = atomic_load_explicit(&abi_profiler, memory_order_acquire);
	struct comm_event *event = profiler ? plugin_event_begin(request) : NULL;

	/* Without memory, the profiler misses the event; the operation does not fail. */
	if (event && profiler(&event->handle, NCCL_PROFILER_START, phandle, HARP_PROFILER_PLUGIN_ID,
			      &event->data))
		event->handle = NULL;
}

static void abi_event_stop(struct request *request, int error)
{
	struct comm_event *event = plugin_event_end(request, error);

	if (event)
		atomic_load_explicit(&abi_profiler,
				     memory_order_acquire)(&event->handle,
							   NCCL_PROFILER_UPDATE_AND_STOP, NULL,
							   HARP_PROFILER_PLUGIN_ID, &event->data);
}

/* ---- contexts -------------------------------------------------------------------------------- */

static enum nccl_result abi_init_v6(nccl_logger logger)
{
	return abi_result(lifetime_implicit_open(logger));
}

static enum nccl_result abi_init_v10(nccl_logger logger, nccl_profiler profiler)
{
	enum nccl_result result = abi_init_v6(logger);

	/* NCCL 2.27 crashes if a net plugin starts an event whose parents the profiler has not
	 * started. HARP's own profiler starts them; others may not. */
	if (result == NCCL_SUCCESS && plugin_config()->trace[0])
		abi_set_profiler(profiler);
	return result;
}

static enum nccl_result abi_init_v11(void **out, uint64_t comm_id, struct nccl_comm_config *config,
				     nccl_logger logger, nccl_profiler profiler)
{
	int traffic_class = config ? config->traffic_class : NCCL_TRAFFIC_CLASS_UNSET;
	struct plugin_ctx *ctx = NULL;
	int rc;

	(void)comm_id;
	abi_set_profiler(profiler);
	*out = NULL;
	rc = lifetime_open(&ctx, traffic_class, logger);
	if (!rc)
		*out = ctx;
	return abi_result(rc);
}

static enum nccl_result abi_finalize_v11(void *ctx)
{
	/* NULL after a failed init: NCCL 2.28 to 2.29.2. */
	if (ctx && !lifetime_in_child())
		lifetime_close(ctx);
	return NCCL_SUCCESS;
}

/* ---- devices --------------------------------------------------------------------------------- */

static enum nccl_result abi_devices_v11(int *ndev)
{
	*ndev = plugin_device_count();
	return NCCL_SUCCESS;
}

static enum nccl_result abi_devices_v6(int *ndev)
{
	lifetime_implicit();
	return abi_devices_v11(ndev);
}

/* The strings are in the device list, which lives as long as this library. */
static enum nccl_result abi_get_properties_v12(int dev, struct nccl_props_v12 *props)
{
	const struct device *device = plugin_device(dev);

	memset(props, 0, sizeof(*props));
	if (!device)
		return ABI_MISUSE(-ENODEV, "getProperties(%d): there are %d devices", dev,
				  plugin_device_count());
	*props = (struct nccl_props_v12){
		.name = (char *)(uintptr_t)device->ifname,
		.pci_path = device->pci_path[0] ? (char *)(uintptr_t)device->pci_path : NULL,
		.guid = device->guid,
		.ptr_support = NCCL_PTR_HOST,
		.speed_mbps = (int)device->speed_mbps,
		.latency_us = ABI_LATENCY_US,
		.max_comms = ABI_COMMS_MAX,
		.max_recvs = 1,
		.device_type = NCCL_DEVICE_HOST,
		.vprops = { .ndevs = 1, .devs = { dev } },
		.max_p2p_bytes = ABI_MESSAGE_BYTES_MAX,
		.max_coll_bytes = ABI_MESSAGE_BYTES_MAX,
		.max_multi_request_size = 1,
		/* Unknown: an Ethernet port does not report the fabric's rail and plane. */
		.rail_id = -1,
		.plane_id = -1,
	};
	return NCCL_SUCCESS;
}

/* Older structs have a subset of the newest one's fields, under the same names. */
#define ABI_PROPS_V6(p)                                                                            \
	.name = (p).name, .pci_path = (p).pci_path, .guid = (p).guid,                              \
	.ptr_support = (p).ptr_support, .speed_mbps = (p).speed_mbps, .port = (p).port,            \
	.latency_us = (p).latency_us, .max_comms = (p).max_comms, .max_recvs = (p).max_recvs
#define ABI_PROPS_V7(p)                                                                            \
	ABI_PROPS_V6(p), .device_type = (p).device_type, .device_version = (p).device_version
#define ABI_PROPS_V8(p) ABI_PROPS_V7(p), .reg_is_global = (p).reg_is_global
#define ABI_PROPS_V9(p)                                                                            \
	ABI_PROPS_V8(p), .force_flush = (p).force_flush,                                           \
			 .vprops = { .ndevs = (p).vprops.ndevs, .devs = { (p).vprops.devs[0] } },  \
			 .max_p2p_bytes = (p).max_p2p_bytes, .max_coll_bytes = (p).max_coll_bytes
#define ABI_PROPS_V11(p) ABI_PROPS_V9(p), .max_multi_request_size = (p).max_multi_request_size

#define ABI_GET_PROPERTIES(version, FIELDS, before)                                                \
	static enum nccl_result abi_get_properties_##version(int dev,                              \
							     struct nccl_props_##version *props)   \
	{                                                                                          \
		struct nccl_props_v12 newest;                                                      \
		enum nccl_result result;                                                           \
                                                                                                   \
		before;                                                                            \
		result = abi_get_properties_v12(dev, &newest);                                     \
		*props = (struct nccl_props_##version){ FIELDS(newest) };                          \
		return result;                                                                     \
	}
ABI_GET_PROPERTIES(v6, ABI_PROPS_V6, lifetime_implicit())
ABI_GET_PROPERTIES(v7, ABI_PROPS_V7, lifetime_implicit())
ABI_GET_PROPERTIES(v8, ABI_PROPS_V8, lifetime_implicit())
ABI_GET_PROPERTIES(v9, ABI_PROPS_V9, lifetime_implicit())
ABI_GET_PROPERTIES(v11, ABI_PROPS_V11, (void)0)

/* ---- connections ----------------------------------------------------------------------------- */

static enum nccl_result abi_listen_v11(void *ctx, int dev, void *handle, void **listen_comm)
{
	int rc;

	*listen_comm = NULL;
	if (lifetime_in_child())
		return NCCL_INVALID_USAGE;
	if (!ctx)
		return ABI_MISUSE(-EBADF, "listen: no context, init has not succeeded");
	if (!handle)
		return ABI_MISUSE(-EFAULT, "listen: no handle");
	rc = plugin_listen(ctx, dev, handle, (struct listen_comm **)listen_comm);
	return abi_result(rc);
}

static enum nccl_result abi_listen_v6(int dev, void *handle, void **listen_comm)
{
	return abi_listen_v11(lifetime_implicit(), dev, handle, listen_comm);
}

static enum nccl_result abi_connect(struct plugin_ctx *ctx, int dev, int traffic_class,
				    void *handle, void **send_comm,
				    struct nccl_device_handle **dev_comm)
{
	int rc;

	if (dev_comm)
		*dev_comm = NULL;
	*send_comm = NULL;
	if (lifetime_in_child())
		return NCCL_INVALID_USAGE;
	if (!ctx)
		return ABI_MISUSE(-EBADF, "connect: no context, init has not succeeded");
	if (!handle)
		return ABI_MISUSE(-EFAULT, "connect: no handle");
	rc = plugin_connect(ctx, dev, handle, traffic_class, (struct comm **)send_comm);
	return abi_result(rc);
}

static enum nccl_result abi_connect_v11(void *ctx, int dev, void *handle, void **send_comm,
					struct nccl_device_handle **dev_comm)
{
	return abi_connect(ctx, dev, NCCL_TRAFFIC_CLASS_UNSET, handle, send_comm, dev_comm);
}

static enum nccl_result abi_connect_v10(int dev, struct nccl_comm_config *config, void *handle,
					void **send_comm, struct nccl_device_handle **dev_comm)
{
	return abi_connect(lifetime_implicit(), dev,
			   config ? config->traffic_class : NCCL_TRAFFIC_CLASS_UNSET, handle,
			   send_comm, dev_comm);
}

static enum nccl_result abi_connect_v7(int dev, void *handle, void **send_comm,
				       struct nccl_device_handle **dev_comm)
{
	return abi_connect_v10(dev, NULL, handle, send_comm, dev_comm);
}

static enum nccl_result abi_connect_v6(int dev, void *handle, void **send_comm)
{
	return abi_connect_v10(dev, NULL, handle, send_comm, NULL);
}

static enum nccl_result abi_accept_v7(void *listen_comm, void **recv_comm,
				      struct nccl_device_handle **dev_comm)
{
	int rc;

	if (dev_comm)
		*dev_comm = NULL;
	*recv_comm = NULL;
	if (lifetime_in_child())
		return NCCL_INVALID_USAGE;
	if (!listen_comm)
		return ABI_MISUSE(-EBADF, "accept: no listen comm");
	rc = plugin_accept(listen_comm, (struct comm **)recv_comm);
	return abi_result(rc);
}

static enum nccl_result abi_accept_v6(void *listen_comm, void **recv_comm)
{
	return abi_accept_v7(listen_comm, recv_comm, NULL);
}

/* An error from a close would make NCCL skip the rest of its clean-up. */
static enum nccl_result abi_close_v6(void *comm)
{
	if (!comm || lifetime_in_child())
		return NCCL_SUCCESS;
	plugin_close(comm);
	return NCCL_SUCCESS;
}

static enum nccl_result abi_close_listen_v6(void *listen_comm)
{
	if (!listen_comm || lifetime_in_child())
		return NCCL_SUCCESS;
	plugin_close_listen(listen_comm);
	return NCCL_SUCCESS;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static enum nccl_result abi_reg_mr_v8(void *comm, void *data, size_t size, int type, void **mhandle)
{
	*mhandle = NULL;
	if (lifetime_in_child())
		return NCCL_INVALID_USAGE;
	if (!comm)
		return ABI_MISUSE(-EBADF, "regMr: no comm");
	if (type != NCCL_PTR_HOST)
		return ABI_MISUSE(-EOPNOTSUPP,
				  "regMr: memory type %d is not host memory, the only one that "
				  "ptrSupport offers",
				  type);
	if (ABI_IS_NEGATIVE(size))
		return ABI_MISUSE(-EINVAL, "regMr: size %zd is negative", (ssize_t)size);
	return abi_result(plugin_memory_add(comm, data, size, mhandle));
}

static enum nccl_result abi_reg_mr_v6(void *comm, void *data, int size, int type, void **mhandle)
{
	return abi_reg_mr_v8(comm, data, (size_t)size, type, mhandle);
}

static enum nccl_result abi_dereg_mr_v6(void *comm, void *mhandle)
{
	int rc;

	(void)comm;
	if (!mhandle || lifetime_in_child())
		return NCCL_SUCCESS;
	rc = plugin_memory_remove(mhandle);
	if (rc == -ENOENT)
		return ABI_MISUSE(-EINVAL, "deregMr: no memory is registered as %p, or no more",
				  mhandle);
	return abi_result(rc);
}

/* ---- data ------------------------------------------------------------------------------------ */

static enum nccl_result abi_post(const char *call, enum comm_side side, struct comm *comm,
				 void *data, size_t size, int tag, void *mhandle, void **request)
{
	*request = NULL;
	if (lifetime_in_child())
		return NCCL_INVALID_USAGE;
	if (!comm)
		return ABI_MISUSE(-EBADF, "%s: no comm", call);
	if (comm->side != side)
		return ABI_MISUSE(-EINVAL, "%s: the comm has the other direction", call);
	if (ABI_IS_NEGATIVE(size))
		return ABI_MISUSE(-EINVAL, "%s: size %zd is negative", call, (ssize_t)size);
	if (!data && size > 0)
		return ABI_MISUSE(-EFAULT, "%s: %zu bytes at no address", call, size);
	/* A longer receive is not an error, as the message may be shorter. */
	if (side == COMM_SEND && size > RECORD_TOTAL_MAX)
		return ABI_MISUSE(-EINVAL, "%s: %zu bytes; a message has at most %llu", call, size,
				  RECORD_TOTAL_MAX);
	return abi_result(comm_post(comm, data, size, tag, mhandle, (struct request **)request));
}

static enum nccl_result abi_isend_v9(void *send_comm, void *data, size_t size, int tag,
				     void *mhandle, void **request)
{
	return abi_post("isend", COMM_SEND, send_comm, data, size, tag, mhandle, request);
}

static enum nccl_result abi_isend_v6(void *send_comm, void *data, int size, int tag, void *mhandle,
				     void **request)
{
	return abi_isend_v9(send_comm, data, (size_t)size, tag, mhandle, request);
}

static enum nccl_result abi_isend_v10(void *send_comm, void *data, size_t size, int tag,
				      void *mhandle, void *phandle, void **request)
{
	enum nccl_result result = abi_isend_v9(send_comm, data, size, tag, mhandle, request);

	if (phandle && result == NCCL_SUCCESS && *request)
		abi_event_start(*request, phandle);
	return result;
}

static enum nccl_result abi_irecv_v9(void *recv_comm, int n, void **data, size_t *sizes, int *tags,
				     void **mhandles, void **request)
{
	*request = NULL;
	if (n != 1)
		return ABI_MISUSE(-EINVAL, "irecv: %d buffers at once, maxRecvs is 1", n);
	return abi_post("irecv", COMM_RECV, recv_comm, data[0], sizes[0], tags ? tags[0] : 0,
			mhandles ? mhandles[0] : NULL, request);
}

static enum nccl_result abi_irecv_v6(void *recv_comm, int n, void **data, int *sizes, int *tags,
				     void **mhandles, void **request)
{
	size_t size = n == 1 ? (size_t)sizes[0] : 0;

	return abi_irecv_v9(recv_comm, n, data, &size, tags, mhandles, request);
}

static enum nccl_result abi_irecv_v10(void *recv_comm, int n, void **data, size_t *sizes, int *tags,
				      void **mhandles, void **phandles, void **request)
{
	enum nccl_result result = abi_irecv_v9(recv_comm, n, data, sizes, tags, mhandles, request);

	if (phandles && phandles[0] && result == NCCL_SUCCESS && *request)
		abi_event_start(*request, phandles[0]);
	return result;
}

/* Host memory has nothing to flush: no request means done. */
static enum nccl_result abi_iflush_v6(void *recv_comm, int n, void **data, int *sizes,
				      void **mhandles, void **request)
{
	(void)recv_comm;
	(void)n;
	(void)data;
	(void)sizes;
	(void)mhandles;
	if (request)
		*request = NULL;
	return NCCL_SUCCESS;
}

static enum nccl_result abi_test_v6(void *request, int *done, int *sizes)
{
	size_t size = 0;
	int rc;

	*done = 0;
	if (lifetime_in_child())
		return NCCL_INVALID_USAGE;
	if (!request || request == NCCL_REQUEST_OPTIONAL)
		return ABI_MISUSE(-EBADF, "test: %p is no request", request);
	rc = comm_test(request, done, &size);
	if (rc || *done)
		abi_event_stop(request, rc);
	if (rc) {
		*done = 0;
		return abi_result(rc);
	}
	/* sizes is an int in every version. */
	if (*done && sizes)
		*sizes = size > INT_MAX ? INT_MAX : (int)size;
	return NCCL_SUCCESS;
}

/* ---- tables --------------------------------------------------------------------------------- */

/* These stay NULL: regMrDmaBuf and getDeviceMr (host memory only), irecvConsumed (requests end at
 * test), makeVDevice (no devices to merge), setNetAttr (docs/nccl.md says why). */
#define ABI_MORE_v6
#define ABI_MORE_v7
#define ABI_MORE_v8
#define ABI_MORE_v9
#define ABI_MORE_v10
#define ABI_MORE_v11 .finalize = abi_finalize_v11
#define ABI_MORE_v12 ABI_MORE_v11

#define TABLE(version, init_form, props_form, listen_form, connect_form, accept_form, reg_form,    \
	      data_form)                                                                           \
	ABI_EXPORT extern const struct nccl_net_##version ncclNetPlugin_##version;                 \
	const struct nccl_net_##version ncclNetPlugin_##version = {                                \
		.name = ABI_NAME,                                                                  \
		.init = abi_init_##init_form,                                                      \
		.devices = abi_devices_##listen_form,                                              \
		.get_properties = abi_get_properties_##props_form,                                 \
		.listen = abi_listen_##listen_form,                                                \
		.connect = abi_connect_##connect_form,                                             \
		.accept = abi_accept_##accept_form,                                                \
		.reg_mr = abi_reg_mr_##reg_form,                                                   \
		.dereg_mr = abi_dereg_mr_v6,                                                       \
		.isend = abi_isend_##data_form,                                                    \
		.irecv = abi_irecv_##data_form,                                                    \
		.iflush = abi_iflush_v6,                                                           \
		.test = abi_test_v6,                                                               \
		.close_send = abi_close_v6,                                                        \
		.close_recv = abi_close_v6,                                                        \
		.close_listen = abi_close_listen_v6,                                               \
		ABI_MORE_##version                                                                 \
	};
NCCL_NET_TABLES(TABLE)
#undef TABLE
