/* SPDX-License-Identifier: Apache-2.0 */
/* net.c - loads an ncclNet plugin as NCCL does. */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net.h"
#include "play.h"

#define SYMBOL "ncclNetPlugin_v12"

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

int net_open(struct net *net, const char *plugin, char *error, size_t error_len)
{
	memset(net, 0, sizeof(*net));
	if (!plugin || !*plugin)
		plugin = getenv("NCCL_NET_PLUGIN");
	if (!plugin || !*plugin)
		plugin = "libnccl-net.so";
	net->lib = net_dlopen(plugin, net->path, sizeof(net->path), error, error_len);
	if (!net->lib)
		return -1;
	net->table = dlsym(net->lib, SYMBOL);
	if (net->table)
		return 0;
	snprintf(error, error_len, "%s has no symbol " SYMBOL, net->path);
	net_close(net);
	return -1;
}

void net_close(struct net *net)
{
	if (net->lib)
		dlclose(net->lib);
	net->lib = NULL;
	net->table = NULL;
}

static void net_logger(enum nccl_log_level level, unsigned long flags, const char *file, int line,
		       const char *fmt, ...)
{
	char text[PLAY_ERROR_BYTES];
	va_list args;

	(void)flags;
	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	log_line((int)level, file, line, "%s", text);
}

/* NCCL's profiler callback without a profiler. */
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
	int rc;

	*call = "init";
	rc = (int)net->table->init(&net->ctx, comm_id, &config, net_logger, net_profiler);
	if (rc)
		return rc;
	net->initialized = true;
	*call = "devices";
	return (int)net->table->devices(&net->devices);
}

int net_finalize(struct net *net)
{
	if (!net->initialized)
		return 0;
	net->initialized = false;
	return (int)net->table->finalize(net->ctx);
}

int net_connect(struct net *net, int dev, void *handle, void **send_comm)
{
	struct nccl_device_handle *device_handle = NULL;

	return (int)net->table->connect(net->ctx, dev, handle, send_comm, &device_handle);
}

int net_accept(struct net *net, void *listen_comm, void **recv_comm)
{
	struct nccl_device_handle *device_handle = NULL;

	return (int)net->table->accept(listen_comm, recv_comm, &device_handle);
}

int net_irecv(struct net *net, void *comm, void *data, size_t bytes, int tag, void *mhandle,
	      void **request)
{
	void *phandle = NULL;

	return (int)net->table->irecv(comm, 1, &data, &bytes, &tag, &mhandle, &phandle, request);
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
