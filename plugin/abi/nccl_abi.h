/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_abi.h - NCCL's net-plugin ABI, versions 6 to 12, written from its specification.
 *
 * A plugin exports one data symbol per version, `ncclNetPlugin_vN`, of type struct nccl_net_vN;
 * NCCL uses the newest one that it knows. A type that several versions share is declared once,
 * under the oldest of them: nccl_isend_v9 is the isend of v9 only, nccl_isend_v10 that of v10, v11
 * and v12. All sizes, and the offsets that differ, are asserted at the end.
 *
 * Used by abi.c, which fills the tables, and by tools/driver and libharp-coll, which load plugins.
 */
#ifndef HARP_NCCL_ABI_H
#define HARP_NCCL_ABI_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NCCL_ABI_OLDEST 6
#define NCCL_ABI_NEWEST 12

#define NCCL_HANDLE_BYTES 128 /* of listen, connect */
#define NCCL_REQUESTS_MAX 32  /* outstanding per comm since 2.19; 8 before */
#define NCCL_TRAFFIC_CLASS_UNSET (-1)
/* irecv's *request on entry (v9 and later): "no completion is needed". irecv overwrites it. */
#define NCCL_REQUEST_OPTIONAL ((void *)0x1)

/* ncclResult_t. */
enum nccl_result {
	NCCL_SUCCESS = 0,
	NCCL_UNHANDLED_CUDA_ERROR = 1,
	NCCL_SYSTEM_ERROR = 2,
	NCCL_INTERNAL_ERROR = 3,
	NCCL_INVALID_ARGUMENT = 4,
	NCCL_INVALID_USAGE = 5,
	NCCL_REMOTE_ERROR = 6,
};

/* ncclDebugLogLevel, ncclDebugLogSubSys. */
enum nccl_log_level {
	NCCL_LOG_NONE = 0,
	NCCL_LOG_VERSION = 1,
	NCCL_LOG_WARN = 2,
	NCCL_LOG_INFO = 3,
	NCCL_LOG_ABORT = 4,
	NCCL_LOG_TRACE = 5,
};
#define NCCL_LOG_INIT 1ul
#define NCCL_LOG_NET 16ul

typedef void (*nccl_logger)(enum nccl_log_level level, unsigned long flags, const char *func,
			    int line, const char *fmt, ...);
/* `type` of the profiler's callback. START takes the parent, the profiler handle of isend or irecv,
 * and stores the event's handle if the profiler wants the event. */
enum nccl_profiler_call {
	NCCL_PROFILER_START = 0,
	NCCL_PROFILER_STOP = 1,
	NCCL_PROFILER_UPDATE = 2,          /* profiler v4 and later */
	NCCL_PROFILER_UPDATE_AND_STOP = 3, /* before v4: same as STOP */
};
typedef enum nccl_result (*nccl_profiler)(void **event, int type, void *parent, int64_t plugin_id,
					  void *data);

/* Memory types of regMr, and bits of ptrSupport. */
#define NCCL_PTR_HOST 1
#define NCCL_PTR_CUDA 2
#define NCCL_PTR_DMABUF 4

enum nccl_device_type {
	NCCL_DEVICE_HOST = 0,
	NCCL_DEVICE_UNPACK = 1,
};

struct nccl_device_handle {
	enum nccl_device_type type;
	int version;
	void *handle;
	size_t size_bytes;
	int needs_proxy_progress;
};

/* v10 and later: ncclNetCommConfig. */
struct nccl_comm_config {
	int traffic_class; /* NCCL_TRAFFIC_CLASS_UNSET: none */
};

/* Physical devices behind a virtual one. */
struct nccl_vprops_v9 {
	int ndevs;
	int devs[4];
};
struct nccl_vprops_v12 {
	int ndevs;
	int devs[8];
};

/* ---- properties of a device; NCCL doesn't clear the struct before getProperties -------------- */

#define NCCL_PROPS_HEAD                                                                            \
	char *name;                                                                                \
	char *pci_path; /* sysfs directory of the PCI function; NULL: none */                      \
	uint64_t guid;                                                                             \
	int ptr_support
#define NCCL_PROPS_LINK                                                                            \
	int speed_mbps;                                                                            \
	int port;                                                                                  \
	float latency_us;                                                                          \
	int max_comms;                                                                             \
	int max_recvs
#define NCCL_PROPS_V7                                                                              \
	NCCL_PROPS_LINK;                                                                           \
	enum nccl_device_type device_type;                                                         \
	int device_version
#define NCCL_PROPS_V9(vprops_form)                                                                 \
	NCCL_PROPS_HEAD;                                                                           \
	int reg_is_global;                                                                         \
	int force_flush;                                                                           \
	NCCL_PROPS_V7;                                                                             \
	struct nccl_vprops_##vprops_form vprops;                                                   \
	size_t max_p2p_bytes;                                                                      \
	size_t max_coll_bytes

struct nccl_props_v6 {
	NCCL_PROPS_HEAD;
	NCCL_PROPS_LINK;
};
struct nccl_props_v7 {
	NCCL_PROPS_HEAD;
	NCCL_PROPS_V7;
};
struct nccl_props_v8 {
	NCCL_PROPS_HEAD;
	int reg_is_global;
	NCCL_PROPS_V7;
};
struct nccl_props_v9 { /* and v10 */
	NCCL_PROPS_V9(v9);
};
struct nccl_props_v11 {
	NCCL_PROPS_V9(v9);
	int max_multi_request_size;
};
struct nccl_props_v12 {
	NCCL_PROPS_V9(v12);
	int max_multi_request_size;
	int16_t rail_id;
	int16_t plane_id;
};

/* ---- functions, each named after the oldest version that has this form ----------------------- */

typedef enum nccl_result nccl_init_v6(nccl_logger logger);
typedef enum nccl_result nccl_init_v10(nccl_logger logger, nccl_profiler profiler);
typedef enum nccl_result nccl_init_v11(void **ctx, uint64_t comm_id,
				       struct nccl_comm_config *config, nccl_logger logger,
				       nccl_profiler profiler);
typedef enum nccl_result nccl_finalize_v11(void *ctx);

typedef enum nccl_result nccl_devices_v6(int *ndev);
typedef enum nccl_result nccl_get_properties_v6(int dev, struct nccl_props_v6 *props);
typedef enum nccl_result nccl_get_properties_v7(int dev, struct nccl_props_v7 *props);
typedef enum nccl_result nccl_get_properties_v8(int dev, struct nccl_props_v8 *props);
typedef enum nccl_result nccl_get_properties_v9(int dev, struct nccl_props_v9 *props);
typedef enum nccl_result nccl_get_properties_v11(int dev, struct nccl_props_v11 *props);
typedef enum nccl_result nccl_get_properties_v12(int dev, struct nccl_props_v12 *props);

typedef enum nccl_result nccl_listen_v6(int dev, void *handle, void **listen_comm);
typedef enum nccl_result nccl_listen_v11(void *ctx, int dev, void *handle, void **listen_comm);

typedef enum nccl_result nccl_connect_v6(int dev, void *handle, void **send_comm);
typedef enum nccl_result nccl_connect_v7(int dev, void *handle, void **send_comm,
					 struct nccl_device_handle **dev_comm);
typedef enum nccl_result nccl_connect_v10(int dev, struct nccl_comm_config *config, void *handle,
					  void **send_comm, struct nccl_device_handle **dev_comm);
typedef enum nccl_result nccl_connect_v11(void *ctx, int dev, void *handle, void **send_comm,
					  struct nccl_device_handle **dev_comm);

typedef enum nccl_result nccl_accept_v6(void *listen_comm, void **recv_comm);
typedef enum nccl_result nccl_accept_v7(void *listen_comm, void **recv_comm,
					struct nccl_device_handle **dev_comm);

typedef enum nccl_result nccl_reg_mr_v6(void *comm, void *data, int size, int type, void **mhandle);
typedef enum nccl_result nccl_reg_mr_v8(void *comm, void *data, size_t size, int type,
					void **mhandle);
typedef enum nccl_result nccl_dereg_mr_v6(void *comm, void *mhandle);

typedef enum nccl_result nccl_isend_v6(void *send_comm, void *data, int size, int tag,
				       void *mhandle, void **request);
typedef enum nccl_result nccl_isend_v9(void *send_comm, void *data, size_t size, int tag,
				       void *mhandle, void **request);
typedef enum nccl_result nccl_isend_v10(void *send_comm, void *data, size_t size, int tag,
					void *mhandle, void *phandle, void **request);

typedef enum nccl_result nccl_irecv_v6(void *recv_comm, int n, void **data, int *sizes, int *tags,
				       void **mhandles, void **request);
typedef enum nccl_result nccl_irecv_v9(void *recv_comm, int n, void **data, size_t *sizes,
				       int *tags, void **mhandles, void **request);
typedef enum nccl_result nccl_irecv_v10(void *recv_comm, int n, void **data, size_t *sizes,
					int *tags, void **mhandles, void **phandles,
					void **request);

typedef enum nccl_result nccl_iflush_v6(void *recv_comm, int n, void **data, int *sizes,
					void **mhandles, void **request);
typedef enum nccl_result nccl_test_v6(void *request, int *done, int *sizes);
typedef enum nccl_result nccl_close_v6(void *comm);

/* ---- tables --------------------------------------------------------------------------------- */

/* Arguments: the version, and the versions of init, get_properties, listen, connect, accept,
 * reg_mr, isend and irecv. May be NULL: reg_mr_dmabuf, iflush, get_device_mr, irecv_consumed,
 * make_vdevice, set_net_attr. */
#define NCCL_NET_TABLES(TABLE)                                                                     \
	TABLE(v6, v6, v6, v6, v6, v6, v6, v6)                                                      \
	TABLE(v7, v6, v7, v6, v7, v7, v6, v6)                                                      \
	TABLE(v8, v6, v8, v6, v7, v7, v8, v6)                                                      \
	TABLE(v9, v6, v9, v6, v7, v7, v8, v9)                                                      \
	TABLE(v10, v10, v9, v6, v10, v7, v8, v10)                                                  \
	TABLE(v11, v11, v11, v11, v11, v7, v8, v10)                                                \
	TABLE(v12, v11, v12, v11, v11, v7, v8, v10)

/* An optional function that HARP does not have. */
typedef void nccl_unused(void);
/* Further fields of a table. */
#define NCCL_NET_MORE_v6
#define NCCL_NET_MORE_v7 nccl_unused *get_device_mr, *irecv_consumed;
#define NCCL_NET_MORE_v8 NCCL_NET_MORE_v7
#define NCCL_NET_MORE_v9 NCCL_NET_MORE_v7 nccl_unused *make_vdevice;
#define NCCL_NET_MORE_v10 NCCL_NET_MORE_v9
#define NCCL_NET_MORE_v11                                                                          \
	NCCL_NET_MORE_v9 nccl_finalize_v11 *finalize;                                              \
	nccl_unused *set_net_attr;
#define NCCL_NET_MORE_v12 NCCL_NET_MORE_v11

#define TABLE(version, init_form, props_form, listen_form, connect_form, accept_form, reg_form,    \
	      data_form)                                                                           \
	struct nccl_net_##version {                                                                \
		const char *name;                                                                  \
		nccl_init_##init_form *init;                                                       \
		nccl_devices_v6 *devices;                                                          \
		nccl_get_properties_##props_form *get_properties;                                  \
		nccl_listen_##listen_form *listen;                                                 \
		nccl_connect_##connect_form *connect;                                              \
		nccl_accept_##accept_form *accept;                                                 \
		nccl_reg_mr_##reg_form *reg_mr;                                                    \
		nccl_unused *reg_mr_dmabuf;                                                        \
		nccl_dereg_mr_v6 *dereg_mr;                                                        \
		nccl_isend_##data_form *isend;                                                     \
		nccl_irecv_##data_form *irecv;                                                     \
		nccl_iflush_v6 *iflush;                                                            \
		nccl_test_v6 *test;                                                                \
		nccl_close_v6 *close_send;                                                         \
		nccl_close_v6 *close_recv;                                                         \
		nccl_close_v6 *close_listen;                                                       \
		NCCL_NET_MORE_##version                                                            \
	};
NCCL_NET_TABLES(TABLE)
#undef TABLE

/* ---- layout, as measured on x86-64 (LP64) ---------------------------------------------------- */

#define NCCL_ABI_SIZE(type, bytes) static_assert(sizeof(struct type) == (bytes), "size of " #type)
#define NCCL_ABI_AT(type, member, bytes)                                                           \
	static_assert(offsetof(struct type, member) == (bytes), #type "." #member)

static_assert(sizeof(void *) == 8 && sizeof(size_t) == 8, "NCCL's ABI is described for LP64");
static_assert(sizeof(enum nccl_result) == 4 && sizeof(enum nccl_log_level) == 4, "enums are ints");
NCCL_ABI_SIZE(nccl_device_handle, 32);
NCCL_ABI_AT(nccl_device_handle, needs_proxy_progress, 24);
NCCL_ABI_SIZE(nccl_comm_config, 4);
NCCL_ABI_SIZE(nccl_vprops_v9, 20);
NCCL_ABI_SIZE(nccl_vprops_v12, 36);

#define NCCL_ABI_PROPS(version, bytes, speed_at, last_member, last_at)                             \
	NCCL_ABI_SIZE(nccl_props_##version, bytes);                                                \
	NCCL_ABI_AT(nccl_props_##version, ptr_support, 24);                                        \
	NCCL_ABI_AT(nccl_props_##version, speed_mbps, speed_at);                                   \
	NCCL_ABI_AT(nccl_props_##version, latency_us, (speed_at) + 8);                             \
	NCCL_ABI_AT(nccl_props_##version, max_recvs, (speed_at) + 16);                             \
	NCCL_ABI_AT(nccl_props_##version, last_member, last_at)
NCCL_ABI_PROPS(v6, 48, 28, max_recvs, 44);
NCCL_ABI_PROPS(v7, 56, 28, device_type, 48);
NCCL_ABI_PROPS(v8, 64, 32, device_type, 52);
NCCL_ABI_PROPS(v9, 104, 36, max_p2p_bytes, 88);
NCCL_ABI_PROPS(v11, 112, 36, max_multi_request_size, 104);
NCCL_ABI_PROPS(v12, 128, 36, plane_id, 126);
NCCL_ABI_AT(nccl_props_v8, reg_is_global, 28);
NCCL_ABI_AT(nccl_props_v11, vprops, 64);
NCCL_ABI_AT(nccl_props_v12, device_type, 56);
NCCL_ABI_AT(nccl_props_v12, vprops, 64);
NCCL_ABI_AT(nccl_props_v12, max_p2p_bytes, 104);
NCCL_ABI_AT(nccl_props_v12, max_coll_bytes, 112);
NCCL_ABI_AT(nccl_props_v12, max_multi_request_size, 120);
NCCL_ABI_AT(nccl_props_v12, rail_id, 124);

#define NCCL_ABI_NET(version, words, last_member)                                                  \
	NCCL_ABI_SIZE(nccl_net_##version, (words)*8);                                              \
	NCCL_ABI_AT(nccl_net_##version, listen, 32);                                               \
	NCCL_ABI_AT(nccl_net_##version, isend, 80);                                                \
	NCCL_ABI_AT(nccl_net_##version, close_listen, 128);                                        \
	NCCL_ABI_AT(nccl_net_##version, last_member, ((words)-1) * 8)
NCCL_ABI_NET(v6, 17, close_listen);
NCCL_ABI_NET(v7, 19, irecv_consumed);
NCCL_ABI_NET(v8, 19, irecv_consumed);
NCCL_ABI_NET(v9, 20, make_vdevice);
NCCL_ABI_NET(v10, 20, make_vdevice);
NCCL_ABI_NET(v11, 22, set_net_attr);
NCCL_ABI_NET(v12, 22, set_net_attr);
NCCL_ABI_AT(nccl_net_v12, reg_mr, 56);
NCCL_ABI_AT(nccl_net_v12, test, 104);
NCCL_ABI_AT(nccl_net_v12, get_device_mr, 136);
NCCL_ABI_AT(nccl_net_v12, make_vdevice, 152);

#undef NCCL_ABI_NET
#undef NCCL_ABI_PROPS
#undef NCCL_ABI_SIZE
#undef NCCL_ABI_AT

#ifdef __cplusplus
}
#endif

#endif
