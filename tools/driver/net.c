/* SPDX-License-Identifier: Apache-2.0 */
/* net.c - loads an ncclNet plugin as NCCL does and calls the table of its version. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../plugin/abi/nccl_abi.h"
#include "net.h"
#include "play.h"

_Static_assert(NET_HANDLE_BYTES == NCCL_HANDLE_BYTES, "NCCL's handle");
_Static_assert(NET_ABI_OLDEST == NCCL_ABI_OLDEST && NET_ABI_NEWEST == NCCL_ABI_NEWEST,
	       "the versions in nccl_abi.h");

/* Words 0 to 16 of a table (name to close_listen) keep their places from v6 to v12. */
#define TABLE(net, version) ((const struct nccl_net_v##version *)(net)->table)

/* Before v11 init belongs to the process: count of the contexts that use each library. */
static struct {
	void *lib;
	unsigned users;
} shared[16];
static pthread_mutex_t shared_lock = PTHREAD_MUTEX_INITIALIZER;

static const char *const required[] = { "name",       "init",    "devices",   "getProperties",
					"listen",     "connect", "accept",    "regMr",
					NULL,         "deregMr", "isend",     "irecv",
					NULL,         "test",    "closeSend", "closeRecv",
					"closeListen" };
#define WORD_FINALIZE 20

static void *net_dlopen(const char *value, char *path, size_t path_len, char *error, size_t len)
{
	size_t n = strlen(value);
	char verbatim[512];
	void *lib;

	snprintf(path, path_len, "%s", value);
	lib = dlopen(value, RTLD_NOW | RTLD_LOCAL);
	if (lib)
		return lib;
	snprintf(verbatim, sizeof(verbatim), "%s", dlerror());
	if (!strchr(value, '/') &&
	    !(n > 6 && !strncmp(value, "lib", 3) && !strcmp(value + n - 3, ".so"))) {
		snprintf(path, path_len, "libnccl-net-%s.so", value);
		lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
		if (lib)
			return lib;
		snprintf(error, len, "plugin \"%s\" can't be loaded: %s", value, dlerror());
	} else {
		snprintf(error, len, "plugin \"%s\" can't be loaded: %s", value, verbatim);
	}
	return NULL;
}

static int net_check_table(const struct net *net, char *error, size_t len)
{
	void *const *words = net->table;

	for (size_t i = 0; i < sizeof(required) / sizeof(required[0]); i++) {
		if (required[i] && !words[i]) {
			snprintf(error, len, "%s: ncclNetPlugin_v%d: %s is NULL, and NCCL needs it",
				 net->path, net->abi, required[i]);
			return -1;
		}
	}
	if (net->abi >= 11 && !words[WORD_FINALIZE]) {
		snprintf(error, len, "%s: ncclNetPlugin_v%d: finalize is NULL, and NCCL needs it",
			 net->path, net->abi);
		return -1;
	}
	return 0;
}

int net_open(struct net *net, const char *plugin, int abi, char *error, size_t error_len)
{
	char symbol[32];

	memset(net, 0, sizeof(*net));
	if (!plugin || !*plugin)
		plugin = getenv("NCCL_NET_PLUGIN");
	if (!plugin || !*plugin)
		plugin = "libnccl-net.so";
	net->lib = net_dlopen(plugin, net->path, sizeof(net->path), error, error_len);
	if (!net->lib)
		return -1;
	for (int v = abi ? abi : NET_ABI_NEWEST; v >= (abi ? abi : NET_ABI_OLDEST); v--) {
		snprintf(symbol, sizeof(symbol), "ncclNetPlugin_v%d", v);
		net->table = dlsym(net->lib, symbol);
		if (net->table) {
			net->abi = v;
			break;
		}
	}
	if (!net->table) {
		if (abi)
			snprintf(error, error_len, "%s has no symbol ncclNetPlugin_v%d", net->path,
				 abi);
		else
			snprintf(error, error_len,
				 "%s has none of the symbols ncclNetPlugin_v%d "
				 "to _v%d",
				 net->path, NET_ABI_OLDEST, NET_ABI_NEWEST);
		net_close(net);
		return -1;
	}
	if (net_check_table(net, error, error_len)) {
		net_close(net);
		return -1;
	}
	net->name = TABLE(net, 6)->name;
	return 0;
}

void net_close(struct net *net)
{
	if (net->lib)
		dlclose(net->lib);
	net->lib = NULL;
	net->table = NULL;
}

/* Is this the first (delta 1) or the last (delta -1) user of the library in the process? */
static bool net_shared_edge(void *lib, int delta)
{
	size_t free_slot = SIZE_MAX;
	bool edge = true; /* a full table (more than 16 plugins): each user is its own */

	pthread_mutex_lock(&shared_lock);
	for (size_t i = 0; i < sizeof(shared) / sizeof(shared[0]); i++) {
		if (shared[i].lib == lib) {
			edge = delta > 0 ? shared[i].users++ == 0 : --shared[i].users == 0;
			if (shared[i].users == 0)
				shared[i].lib = NULL;
			free_slot = SIZE_MAX;
			break;
		}
		if (!shared[i].lib && free_slot == SIZE_MAX)
			free_slot = i;
	}
	if (free_slot != SIZE_MAX && delta > 0) {
		shared[free_slot].lib = lib;
		shared[free_slot].users = 1;
	}
	pthread_mutex_unlock(&shared_lock);
	return edge;
}

static void net_logger(enum nccl_log_level level, unsigned long flags, const char *file, int line,
		       const char *fmt, ...)
{
	char text[NCCLPLAY_ERROR_BYTES];
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	log_line((int)level, flags, file, line, "%s", text);
}

/* NCCL's profiler callback, with no profiler loaded. */
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

int net_init(struct net *net, uint64_t comm_id, const char **call)
{
	struct nccl_comm_config config = { .traffic_class = NCCL_TRAFFIC_CLASS_UNSET };
	int rc = 0;

	*call = "init";
	if (net->abi >= 11)
		rc = (int)TABLE(net, 11)->init(&net->ctx, comm_id, &config, net_logger,
					       net_profiler);
	else if (!net_shared_edge(net->lib, 1))
		rc = 0;
	else if (net->abi == 10)
		rc = (int)TABLE(net, 10)->init(net_logger, net_profiler);
	else
		rc = (int)TABLE(net, 6)->init(net_logger);
	if (rc) {
		if (net->abi < 11)
			net_shared_edge(net->lib, -1);
		return rc;
	}
	net->initialised = true;
	*call = "devices";
	return (int)TABLE(net, 6)->devices(&net->devices);
}

int net_finalize(struct net *net)
{
	if (!net->initialised)
		return 0;
	net->initialised = false;
	if (net->abi >= 11)
		return (int)TABLE(net, 11)->finalize(net->ctx);
	net_shared_edge(net->lib, -1);
	return 0;
}

#define COPY_PROPERTIES(p)                                                                         \
	do {                                                                                       \
		snprintf(out->name, sizeof(out->name), "%s", (p).name ? (p).name : "?");           \
		out->ptr_support = (p).ptr_support;                                                \
		out->speed_mbps = (p).speed_mbps;                                                  \
	} while (0)

/* NCCL does not clear the struct: what the plugin forgets shows as 0x5a. */
#define CALL_PROPERTIES(version)                                                                   \
	struct nccl_props_v##version p;                                                            \
	memset(&p, 0x5a, sizeof(p));                                                               \
	p.name = NULL;                                                                             \
	rc = (int)TABLE(net, version)->get_properties(dev, &p);                                    \
	if (rc)                                                                                    \
		return rc;                                                                         \
	COPY_PROPERTIES(p)

int net_properties(struct net *net, int dev, struct net_properties *out)
{
	int rc;

	out->net_device_type = -1;
	if (net->abi == 12) {
		CALL_PROPERTIES(12);
		out->net_device_type = (int)p.device_type;
	} else if (net->abi == 11) {
		CALL_PROPERTIES(11);
		out->net_device_type = (int)p.device_type;
	} else if (net->abi >= 9) {
		struct nccl_props_v9 p;

		memset(&p, 0x5a, sizeof(p));
		p.name = NULL;
		/* v10's table has the same type at the same place. */
		rc = (int)TABLE(net, 9)->get_properties(dev, &p);
		if (rc)
			return rc;
		COPY_PROPERTIES(p);
		out->net_device_type = (int)p.device_type;
	} else if (net->abi == 8) {
		CALL_PROPERTIES(8);
		out->net_device_type = (int)p.device_type;
	} else if (net->abi == 7) {
		CALL_PROPERTIES(7);
		out->net_device_type = (int)p.device_type;
	} else {
		CALL_PROPERTIES(6);
	}
	return 0;
}

int net_listen(struct net *net, int dev, void *handle, void **listen_comm)
{
	if (net->abi >= 11)
		return (int)TABLE(net, 11)->listen(net->ctx, dev, handle, listen_comm);
	return (int)TABLE(net, 6)->listen(dev, handle, listen_comm);
}

int net_connect(struct net *net, int dev, void *handle, void **send_comm)
{
	struct nccl_comm_config config = { .traffic_class = NCCL_TRAFFIC_CLASS_UNSET };
	struct nccl_device_handle *device_handle = NULL;

	if (net->abi >= 11)
		return (int)TABLE(net, 11)->connect(net->ctx, dev, handle, send_comm,
						    &device_handle);
	if (net->abi == 10)
		return (int)TABLE(net, 10)->connect(dev, &config, handle, send_comm,
						    &device_handle);
	if (net->abi >= 7)
		return (int)TABLE(net, 7)->connect(dev, handle, send_comm, &device_handle);
	return (int)TABLE(net, 6)->connect(dev, handle, send_comm);
}

int net_accept(struct net *net, void *listen_comm, void **recv_comm)
{
	struct nccl_device_handle *device_handle = NULL;

	if (net->abi >= 7)
		return (int)TABLE(net, 7)->accept(listen_comm, recv_comm, &device_handle);
	return (int)TABLE(net, 6)->accept(listen_comm, recv_comm);
}

int net_reg_mr(struct net *net, void *comm, void *data, size_t bytes, void **mhandle)
{
	if (net->abi >= 8)
		return (int)TABLE(net, 8)->reg_mr(comm, data, bytes, NCCL_PTR_HOST, mhandle);
	if (bytes > INT32_MAX)
		return NCCL_INTERNAL_ERROR; /* NCCL's shim refuses it so */
	return (int)TABLE(net, 6)->reg_mr(comm, data, (int)bytes, NCCL_PTR_HOST, mhandle);
}

int net_dereg_mr(struct net *net, void *comm, void *mhandle)
{
	return (int)TABLE(net, 6)->dereg_mr(comm, mhandle);
}

int net_isend(struct net *net, void *comm, void *data, size_t bytes, int tag, void *mhandle,
	      void **request)
{
	if (net->abi >= 10)
		return (int)TABLE(net, 10)->isend(comm, data, bytes, tag, mhandle, NULL, request);
	if (net->abi == 9)
		return (int)TABLE(net, 9)->isend(comm, data, bytes, tag, mhandle, request);
	return (int)TABLE(net, 6)->isend(comm, data, (int)bytes, tag, mhandle, request);
}

int net_irecv(struct net *net, void *comm, void *data, size_t bytes, int tag, void *mhandle,
	      void **request)
{
	void *phandle = NULL;
	int size = (int)bytes;

	if (net->abi >= 10)
		return (int)TABLE(net, 10)->irecv(comm, 1, &data, &bytes, &tag, &mhandle, &phandle,
						  request);
	if (net->abi == 9)
		return (int)TABLE(net, 9)->irecv(comm, 1, &data, &bytes, &tag, &mhandle, request);
	return (int)TABLE(net, 6)->irecv(comm, 1, &data, &size, &tag, &mhandle, request);
}

int net_test(struct net *net, void *request, int *done, int *size)
{
	return (int)TABLE(net, 6)->test(request, done, size);
}

int net_close_send(struct net *net, void *comm)
{
	return (int)TABLE(net, 6)->close_send(comm);
}

int net_close_recv(struct net *net, void *comm)
{
	return (int)TABLE(net, 6)->close_recv(comm);
}

int net_close_listen(struct net *net, void *listen_comm)
{
	return (int)TABLE(net, 6)->close_listen(listen_comm);
}

const char *net_result_name(int result)
{
	static const char *const names[] = {
		"ncclSuccess",       "ncclUnhandledCudaError", "ncclSystemError",
		"ncclInternalError", "ncclInvalidArgument",    "ncclInvalidUsage",
		"ncclRemoteError",   "ncclInProgress",         "ncclTimeout",
	};

	if (result < 0 || (size_t)result >= sizeof(names) / sizeof(names[0]))
		return "an unknown ncclResult";
	return names[result];
}
