/* SPDX-License-Identifier: Apache-2.0 */
/*
 * abi.c - NCCL's seven tables: it and abi_data.c alone know version numbers, and here alone -errno becomes
 * ncclResult_t.
 *
 * Theory of operation
 * -------------------
 * A shim is named after the oldest version that it fits (nccl_abi.h has its type under the same
 * name); a later form does the work and the earlier ones widen their arguments and call it.
 * Whatever the outcome, every output is written: NCCL reads *request, *done and *comm without
 * looking at the result first, and *request may hold an old pointer or the marker 0x1 on entry.
 *
 * Calls on memory and messages are in abi_data.c; contexts and the ends of the process, of the library and of a
 * fork are lifetime.c's.
 */
#include <errno.h>
#include <string.h>

#include "abi/abi_impl.h"
#include "device/device.h"

#define ABI_NAME "HARP"
#define ABI_COMMS_MAX 65536
#define ABI_MESSAGE_BYTES_MAX (1ull << 40) /* the most that NCCL takes for maxP2pBytes */
#define ABI_EXPORT __attribute__((visibility("default")))

/* ------------------------------------------------------------------------------------------------
 * Results.
 */
enum nccl_result abi_result(int rc)
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
	case EKEYREJECTED: /* a proof that does not hold: pre-shared keys that differ */
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

/* ------------------------------------------------------------------------------------------------
 * Contexts.
 */
static enum nccl_result abi_init_v6(nccl_logger logger)
{
	return abi_result(lifetime_implicit_open(logger));
}

static enum nccl_result abi_init_v10(nccl_logger logger, nccl_profiler profiler)
{
	enum nccl_result result = abi_init_v6(logger);

	/* NCCL 2.27 crashes when a net plugin starts an event and the profiler has not started those above it. HARP's own
	 * profiler does, others may not. */
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

	abi_set_profiler(profiler);
	if (!out)
		return NCCL_INTERNAL_ERROR;
	*out = NULL;
	rc = lifetime_open(&ctx, comm_id, traffic_class, logger);
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

static enum nccl_result abi_set_net_attr_v11(void *ctx, struct nccl_net_attr *attr)
{
	struct plugin_net_attr hints;

	if (!ctx || !attr || lifetime_in_child())
		return NCCL_SUCCESS;
	hints = (struct plugin_net_attr){
		.operations = attr->op,
		.algorithms = attr->algo,
		.protocols = attr->proto,
		.send_peers = attr->send.max_concurrent_peers,
		.receive_peers = attr->recv.max_concurrent_peers,
	};
	plugin_set_net_attr(ctx, &hints);
	return NCCL_SUCCESS;
}

/* ------------------------------------------------------------------------------------------------
 * Devices.
 */
static enum nccl_result abi_devices_v11(int *ndev)
{
	if (!ndev)
		return ABI_MISUSE(-EFAULT, "devices: no place for the count");
	*ndev = plugin_device_count();
	return NCCL_SUCCESS;
}

static enum nccl_result abi_devices_v6(int *ndev)
{
	lifetime_implicit();
	return abi_devices_v11(ndev);
}

/* The strings live in the list of devices, which lives as long as this library. */
static enum nccl_result abi_get_properties_v12(int dev, struct nccl_props_v12 *props)
{
	const struct device *device = plugin_device(dev);

	if (!props)
		return ABI_MISUSE(-EFAULT, "getProperties(%d): no place for the properties", dev);
	memset(props, 0, sizeof(*props));
	if (!device)
		return ABI_MISUSE(-ENODEV, "getProperties(%d): there are %d devices", dev,
				  plugin_device_count());
	*props = (struct nccl_props_v12){
		.name = (char *)(uintptr_t)device->ifname,
		.pci_path = device->pci_path[0] ? (char *)(uintptr_t)device->pci_path : NULL,
		.guid = device->guid,
		.ptr_support = NCCL_PTR_HOST,
		.reg_is_global = 0,
		.force_flush = 0,
		.speed_mbps = (int)device->speed_mbps,
		.port = 0,
		.latency_us = plugin_latency_us(dev),
		.max_comms = ABI_COMMS_MAX,
		.max_recvs = 1,
		.device_type = NCCL_DEVICE_HOST,
		.device_version = 0,
		.vprops = { .ndevs = 1, .devs = { dev } },
		.max_p2p_bytes = ABI_MESSAGE_BYTES_MAX,
		.max_coll_bytes = ABI_MESSAGE_BYTES_MAX,
		.max_multi_request_size = 1,
		/* Unknown: an Ethernet port does not tell which rail or plane of the fabric it is on. */
		.rail_id = -1,
		.plane_id = -1,
	};
	return NCCL_SUCCESS;
}

/* Older structs have a part of the newest one's fields, under the same names. */
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
		result = abi_get_properties_v12(dev, props ? &newest : NULL);                      \
		if (props && result)                                                               \
			memset(props, 0, sizeof(*props));                                          \
		else if (props)                                                                    \
			*props = (struct nccl_props_##version){ FIELDS(newest) };                  \
		return result;                                                                     \
	}
ABI_GET_PROPERTIES(v6, ABI_PROPS_V6, lifetime_implicit())
ABI_GET_PROPERTIES(v7, ABI_PROPS_V7, lifetime_implicit())
ABI_GET_PROPERTIES(v8, ABI_PROPS_V8, lifetime_implicit())
ABI_GET_PROPERTIES(v9, ABI_PROPS_V9, lifetime_implicit())
ABI_GET_PROPERTIES(v11, ABI_PROPS_V11, (void)0)

/* ------------------------------------------------------------------------------------------------
 * Connections.
 */
static enum nccl_result abi_listen_v11(void *ctx, int dev, void *handle, void **listen_comm)
{
	struct listen_comm *listen = NULL;
	int rc;

	if (!listen_comm)
		return ABI_MISUSE(-EFAULT, "listen: no place for the comm");
	*listen_comm = NULL;
	if (lifetime_in_child())
		return NCCL_INVALID_USAGE;
	if (!ctx)
		return ABI_MISUSE(-EBADF, "listen: no context, init has not succeeded");
	if (!handle)
		return ABI_MISUSE(-EFAULT, "listen: no handle");
	rc = plugin_listen(ctx, dev, handle, &listen);
	if (rc)
		return abi_result(rc);
	lifetime_comm_opened();
	*listen_comm = listen;
	return NCCL_SUCCESS;
}

static enum nccl_result abi_listen_v6(int dev, void *handle, void **listen_comm)
{
	return abi_listen_v11(lifetime_implicit(), dev, handle, listen_comm);
}

static enum nccl_result abi_connect(struct plugin_ctx *ctx, int dev, int traffic_class,
				    void *handle, void **send_comm,
				    struct nccl_device_handle **dev_comm)
{
	struct comm *comm = NULL;
	int rc;

	if (dev_comm)
		*dev_comm = NULL;
	if (!send_comm)
		return ABI_MISUSE(-EFAULT, "connect: no place for the comm");
	*send_comm = NULL;
	if (lifetime_in_child())
		return NCCL_INVALID_USAGE;
	if (!ctx)
		return ABI_MISUSE(-EBADF, "connect: no context, init has not succeeded");
	if (!handle)
		return ABI_MISUSE(-EFAULT, "connect: no handle");
	rc = plugin_connect(ctx, dev, handle, traffic_class, &comm);
	if (rc)
		return abi_result(rc);
	if (comm)
		lifetime_comm_opened();
	*send_comm = comm;
	return NCCL_SUCCESS;
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
	struct comm *comm = NULL;
	int rc;

	if (dev_comm)
		*dev_comm = NULL;
	if (!recv_comm)
		return ABI_MISUSE(-EFAULT, "accept: no place for the comm");
	*recv_comm = NULL;
	if (lifetime_in_child())
		return NCCL_INVALID_USAGE;
	if (!listen_comm)
		return ABI_MISUSE(-EBADF, "accept: no listen comm");
	rc = plugin_accept(listen_comm, &comm);
	if (rc)
		return abi_result(rc);
	if (comm)
		lifetime_comm_opened();
	*recv_comm = comm;
	return NCCL_SUCCESS;
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
	lifetime_comm_closed();
	return NCCL_SUCCESS;
}

static enum nccl_result abi_close_listen_v6(void *listen_comm)
{
	if (!listen_comm || lifetime_in_child())
		return NCCL_SUCCESS;
	plugin_close_listen(listen_comm);
	lifetime_comm_closed();
	return NCCL_SUCCESS;
}

/* ------------------------------------------------------------------------------------------------
 * The tables. What is not named is NULL on purpose: regMrDmaBuf and getDeviceMr (host memory
 * only), irecvConsumed (requests end at test), makeVDevice (nothing to merge).
 */
#define ABI_COMMON                                                                                 \
	.name = ABI_NAME, .dereg_mr = abi_dereg_mr_v6, .iflush = abi_iflush_v6,                    \
	.test = abi_test_v6, .close_send = abi_close_v6, .close_recv = abi_close_v6,               \
	.close_listen = abi_close_listen_v6

ABI_EXPORT extern const struct nccl_net_v6 ncclNetPlugin_v6;
const struct nccl_net_v6 ncclNetPlugin_v6 = {
	ABI_COMMON,
	.init = abi_init_v6,
	.devices = abi_devices_v6,
	.get_properties = abi_get_properties_v6,
	.listen = abi_listen_v6,
	.connect = abi_connect_v6,
	.accept = abi_accept_v6,
	.reg_mr = abi_reg_mr_v6,
	.isend = abi_isend_v6,
	.irecv = abi_irecv_v6,
};

ABI_EXPORT extern const struct nccl_net_v7 ncclNetPlugin_v7;
const struct nccl_net_v7 ncclNetPlugin_v7 = {
	ABI_COMMON,
	.init = abi_init_v6,
	.devices = abi_devices_v6,
	.get_properties = abi_get_properties_v7,
	.listen = abi_listen_v6,
	.connect = abi_connect_v7,
	.accept = abi_accept_v7,
	.reg_mr = abi_reg_mr_v6,
	.isend = abi_isend_v6,
	.irecv = abi_irecv_v6,
};

ABI_EXPORT extern const struct nccl_net_v8 ncclNetPlugin_v8;
const struct nccl_net_v8 ncclNetPlugin_v8 = {
	ABI_COMMON,
	.init = abi_init_v6,
	.devices = abi_devices_v6,
	.get_properties = abi_get_properties_v8,
	.listen = abi_listen_v6,
	.connect = abi_connect_v7,
	.accept = abi_accept_v7,
	.reg_mr = abi_reg_mr_v8,
	.isend = abi_isend_v6,
	.irecv = abi_irecv_v6,
};

ABI_EXPORT extern const struct nccl_net_v9 ncclNetPlugin_v9;
const struct nccl_net_v9 ncclNetPlugin_v9 = {
	ABI_COMMON,
	.init = abi_init_v6,
	.devices = abi_devices_v6,
	.get_properties = abi_get_properties_v9,
	.listen = abi_listen_v6,
	.connect = abi_connect_v7,
	.accept = abi_accept_v7,
	.reg_mr = abi_reg_mr_v8,
	.isend = abi_isend_v9,
	.irecv = abi_irecv_v9,
};

ABI_EXPORT extern const struct nccl_net_v10 ncclNetPlugin_v10;
const struct nccl_net_v10 ncclNetPlugin_v10 = {
	ABI_COMMON,
	.init = abi_init_v10,
	.devices = abi_devices_v6,
	.get_properties = abi_get_properties_v9,
	.listen = abi_listen_v6,
	.connect = abi_connect_v10,
	.accept = abi_accept_v7,
	.reg_mr = abi_reg_mr_v8,
	.isend = abi_isend_v10,
	.irecv = abi_irecv_v10,
};

ABI_EXPORT extern const struct nccl_net_v11 ncclNetPlugin_v11;
const struct nccl_net_v11 ncclNetPlugin_v11 = {
	ABI_COMMON,
	.init = abi_init_v11,
	.devices = abi_devices_v11,
	.get_properties = abi_get_properties_v11,
	.listen = abi_listen_v11,
	.connect = abi_connect_v11,
	.accept = abi_accept_v7,
	.reg_mr = abi_reg_mr_v8,
	.isend = abi_isend_v10,
	.irecv = abi_irecv_v10,
	.finalize = abi_finalize_v11,
	.set_net_attr = abi_set_net_attr_v11,
};

ABI_EXPORT extern const struct nccl_net_v12 ncclNetPlugin_v12;
const struct nccl_net_v12 ncclNetPlugin_v12 = {
	ABI_COMMON,
	.init = abi_init_v11,
	.devices = abi_devices_v11,
	.get_properties = abi_get_properties_v12,
	.listen = abi_listen_v11,
	.connect = abi_connect_v11,
	.accept = abi_accept_v7,
	.reg_mr = abi_reg_mr_v8,
	.isend = abi_isend_v10,
	.irecv = abi_irecv_v10,
	.finalize = abi_finalize_v11,
	.set_net_attr = abi_set_net_attr_v11,
};
