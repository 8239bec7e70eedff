/* SPDX-License-Identifier: Apache-2.0 */
/*
 * coll_net.c - loads an ncclNet plugin and calls the table of its newest version.
 *
 * The first 17 members of the tables (name to close_listen) have the same offsets in v6 to v12, so
 * functions whose type never changed are called through v6's table.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coll_impl.h"
#include "../plugin/abi/nccl_abi.h"

#define NET_PLUGIN "libnccl-net-harp.so"

static struct {
	void *lib;
	const void *table;
	void *ctx; /* v11 and newer */
	struct harp_coll_net info;
} net;

#define TABLE(version) ((const struct nccl_net_v##version *)net.table)

static_assert(COLL_HANDLE_BYTES == NCCL_HANDLE_BYTES, "NCCL's handle");

static void net_logger(enum nccl_log_level level, unsigned long flags, const char *func, int line,
		       const char *fmt, ...)
{
	char text[HARP_COLL_ERROR_BYTES];
	va_list args;

	(void)flags;
	(void)func;
	(void)line;
	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	runtime_log((int)level, "%s", text);
}

/* A profiler callback for the plugin that does nothing. */
static enum nccl_result net_profiler(void **event, int type, void *parent, int64_t plugin_id,
				     void *data)
{
	(void)event;
	(void)type;
	(void)parent;
	(void)plugin_id;
	(void)data;
	return NCCL_SUCCESS;
}

static int net_errno(enum nccl_result result)
{
	switch (result) {
	case NCCL_SUCCESS:
		return 0;
	case NCCL_REMOTE_ERROR:
		return -ECONNRESET;
	case NCCL_INVALID_USAGE:
		return -EPROTO;
	case NCCL_INVALID_ARGUMENT:
		return -EINVAL;
	default:
		return -EIO;
	}
}

static void *net_dlopen(const char *plugin, char *error, size_t error_bytes)
{
	char path[sizeof(net.info.path)];
	Dl_info self;
	void *lib;

	if (!plugin || !*plugin)
		plugin = getenv("HARP_COLL_NET");
	if (plugin && *plugin) {
		snprintf(path, sizeof(path), "%s", plugin);
		lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
		if (!lib && !strchr(plugin, '/')) {
			snprintf(path, sizeof(path), "libnccl-net-%s.so", plugin);
			lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
		}
	} else {
		const char *slash;

		path[0] = '\0';
		if (dladdr((void *)&net, &self) && self.dli_fname &&
		    (slash = strrchr(self.dli_fname, '/')))
			snprintf(path, sizeof(path), "%.*s/" NET_PLUGIN,
				 (int)(slash - self.dli_fname), self.dli_fname);
		lib = path[0] ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
		if (!lib) {
			snprintf(path, sizeof(path), NET_PLUGIN);
			lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
		}
	}
	if (lib)
		snprintf(net.info.path, sizeof(net.info.path), "%s", path);
	else
		snprintf(error, error_bytes,
			 "the ncclNet plugin %s cannot be loaded: %s; set HARP_COLL_NET", path,
			 dlerror());
	return lib;
}

static enum nccl_result net_init(void)
{
	struct nccl_comm_config config = { .traffic_class = NCCL_TRAFFIC_CLASS_UNSET };

	if (net.info.abi >= 11)
		return TABLE(11)->init(&net.ctx, 0, &config, net_logger, net_profiler);
	if (net.info.abi == 10)
		return TABLE(10)->init(net_logger, net_profiler);
	return TABLE(6)->init(net_logger);
}

/* Only name and speed are used. */
static void net_read_properties(void)
{
	union {
		struct nccl_props_v6 v6;
		struct nccl_props_v7 v7;
		struct nccl_props_v8 v8;
		struct nccl_props_v9 v9;
		struct nccl_props_v11 v11;
		struct nccl_props_v12 v12;
	} props;
	const char *name = "";
	int speed_mbps = 0;
	enum nccl_result rc = NCCL_INTERNAL_ERROR;

	memset(&props, 0, sizeof(props));
#define READ(version, member)                                                                      \
	do {                                                                                       \
		rc = TABLE(version)->get_properties(0, &props.member);                             \
		name = props.member.name;                                                          \
		speed_mbps = props.member.speed_mbps;                                              \
	} while (0)
	switch (net.info.abi) {
	case 6:
		READ(6, v6);
		break;
	case 7:
		READ(7, v7);
		break;
	case 8:
		READ(8, v8);
		break;
	case 9:
	case 10:
		READ(9, v9); /* v10's table has the same type at the same position */
		break;
	case 11:
		READ(11, v11);
		break;
	default:
		READ(12, v12);
	}
#undef READ
	if (rc != NCCL_SUCCESS)
		return;
	snprintf(net.info.device, sizeof(net.info.device), "%s", name ? name : "");
	net.info.speed_mbps = speed_mbps;
}

int net_load(const char *plugin, char *error, size_t error_bytes)
{
	enum nccl_result rc;

	if (net.lib)
		return 0;
	net.lib = net_dlopen(plugin, error, error_bytes);
	if (!net.lib)
		return -ENOENT;
	for (int version = NCCL_ABI_NEWEST; version >= NCCL_ABI_OLDEST && !net.table; version--) {
		char symbol[32];

		snprintf(symbol, sizeof(symbol), "ncclNetPlugin_v%d", version);
		net.table = dlsym(net.lib, symbol);
		net.info.abi = version;
	}
	if (!net.table) {
		snprintf(error, error_bytes, "%s has no symbol ncclNetPlugin_v%d to _v%d",
			 net.info.path, NCCL_ABI_OLDEST, NCCL_ABI_NEWEST);
		goto unload;
	}
	snprintf(net.info.name, sizeof(net.info.name), "%s", TABLE(6)->name);
	rc = net_init();
	if (rc == NCCL_SUCCESS)
		rc = TABLE(6)->devices(&net.info.devices);
	if (rc != NCCL_SUCCESS || net.info.devices < 1) {
		snprintf(error, error_bytes,
			 "the ncclNet plugin %s %s; its log has the reason (options.log; Python: "
			 "harp.collectives.log_lines())",
			 net.info.path, rc != NCCL_SUCCESS ? "failed to start" : "has no device");
		goto unload;
	}
	net_read_properties();
	return 0;
unload:
	net_unload();
	return -ENODEV;
}

void net_unload(void)
{
	if (!net.lib)
		return;
	if (net.ctx)
		TABLE(11)->finalize(net.ctx);
	dlclose(net.lib);
	memset(&net, 0, sizeof(net));
}

const struct harp_coll_net *net_info(void)
{
	return &net.info;
}

int net_devices(void)
{
	return net.info.devices;
}

int net_listen(int device, void *handle, void **listen_comm)
{
	if (net.info.abi >= 11)
		return net_errno(TABLE(11)->listen(net.ctx, device, handle, listen_comm));
	return net_errno(TABLE(6)->listen(device, handle, listen_comm));
}

int net_connect(int device, void *handle, void **comm)
{
	struct nccl_comm_config config = { .traffic_class = NCCL_TRAFFIC_CLASS_UNSET };
	struct nccl_device_handle *device_handle = NULL;

	*comm = NULL;
	if (net.info.abi >= 11)
		return net_errno(TABLE(11)->connect(net.ctx, device, handle, comm, &device_handle));
	if (net.info.abi == 10)
		return net_errno(TABLE(10)->connect(device, &config, handle, comm, &device_handle));
	if (net.info.abi >= 7)
		return net_errno(TABLE(7)->connect(device, handle, comm, &device_handle));
	return net_errno(TABLE(6)->connect(device, handle, comm));
}

int net_accept(void *listen_comm, void **comm)
{
	struct nccl_device_handle *device_handle = NULL;

	*comm = NULL;
	if (net.info.abi >= 7)
		return net_errno(TABLE(7)->accept(listen_comm, comm, &device_handle));
	return net_errno(TABLE(6)->accept(listen_comm, comm));
}

static int net_register(void *comm, void *data, size_t bytes, void **mhandle)
{
	*mhandle = NULL;
	if (!bytes)
		return 0;
	if (net.info.abi >= 8)
		return net_errno(TABLE(8)->reg_mr(comm, data, bytes, NCCL_PTR_HOST, mhandle));
	return net_errno(TABLE(6)->reg_mr(comm, data, (int)bytes, NCCL_PTR_HOST, mhandle));
}

/* Registers the memory for each message, because the caller may free it and reuse the address. */
int net_isend(void *comm, void *data, size_t bytes, void **mhandle, void **request)
{
	enum nccl_result result;
	int rc = net_register(comm, data, bytes, mhandle);

	*request = NULL;
	if (rc)
		return rc;
	if (net.info.abi >= 10)
		result = TABLE(10)->isend(comm, data, bytes, 0, *mhandle, NULL, request);
	else if (net.info.abi == 9)
		result = TABLE(9)->isend(comm, data, bytes, 0, *mhandle, request);
	else
		result = TABLE(6)->isend(comm, data, (int)bytes, 0, *mhandle, request);
	if (!*request && *mhandle)
		TABLE(6)->dereg_mr(comm, *mhandle);
	return net_errno(result);
}

int net_irecv(void *comm, void *data, size_t bytes, void **mhandle, void **request)
{
	enum nccl_result result;
	void *phandle = NULL;
	int tag = 0, size = (int)bytes;
	int rc = net_register(comm, data, bytes, mhandle);

	*request = NULL;
	if (rc)
		return rc;
	if (net.info.abi >= 10)
		result = TABLE(10)->irecv(comm, 1, &data, &bytes, &tag, mhandle, &phandle, request);
	else if (net.info.abi == 9)
		result = TABLE(9)->irecv(comm, 1, &data, &bytes, &tag, mhandle, request);
	else
		result = TABLE(6)->irecv(comm, 1, &data, &size, &tag, mhandle, request);
	if (!*request && *mhandle)
		TABLE(6)->dereg_mr(comm, *mhandle);
	return net_errno(result);
}

int net_test(void *comm, void *request, void *mhandle, bool *done, size_t *bytes)
{
	int is_done = 0, size = 0;
	enum nccl_result result = TABLE(6)->test(request, &is_done, &size);

	*done = is_done;
	*bytes = (size_t)(unsigned)size;
	if (result == NCCL_SUCCESS && is_done && mhandle)
		TABLE(6)->dereg_mr(comm, mhandle);
	return net_errno(result);
}

void net_close_send(void *comm)
{
	TABLE(6)->close_send(comm);
}

void net_close_recv(void *comm)
{
	TABLE(6)->close_recv(comm);
}

void net_close_listen(void *listen_comm)
{
	TABLE(6)->close_listen(listen_comm);
}
