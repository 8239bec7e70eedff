/* SPDX-License-Identifier: Apache-2.0 */
/* versions.c - see versions.h. */
#include "versions.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

/* The table, cast to version n: members up to close_listen have the same offsets in all versions,
 * and the signatures that NCCL_NET_TABLES lists. */
#define V(n) ((const struct nccl_net_v##n *)net->table)

bool net_is_valid(int version)
{
	return version >= NCCL_ABI_OLDEST && version <= NCCL_ABI_NEWEST;
}

static struct net *enter(struct net *net)
{
	static _Thread_local int current;

	if (net->netns != current && setns(net->netns, CLONE_NEWNET))
		abort();
	current = net->netns;
	return net;
}

static struct net *enter_receiver(struct net *net)
{
	return enter(net->far ? net->far : net);
}

/* Requests of the receiving end, by which net_test() selects the host. Protected by far_lock. */
static pthread_mutex_t far_lock = PTHREAD_MUTEX_INITIALIZER;
static void *far_requests[1024];

static void request_record(const struct net *net, void *request, bool is_far)
{
	void **slot = NULL;

	if (!net->far || !request)
		return;
	pthread_mutex_lock(&far_lock);
	for (size_t i = 0; i < 1024 && (!slot || *slot != request); i++)
		if (far_requests[i] == request || (!far_requests[i] && !slot))
			slot = &far_requests[i];
	if (!slot)
		abort();
	if (is_far || *slot)
		*slot = is_far ? request : NULL;
	pthread_mutex_unlock(&far_lock);
}

static struct net *request_owner(struct net *net, const void *request)
{
	bool is_far = false;

	if (!net->far || !request)
		return enter(net);
	pthread_mutex_lock(&far_lock);
	for (size_t i = 0; i < 1024; i++)
		is_far |= far_requests[i] == request;
	pthread_mutex_unlock(&far_lock);
	return is_far ? enter_receiver(net) : enter(net);
}

static enum nccl_result init_one(struct net *net, nccl_logger logger)
{
	struct nccl_comm_config config = { .traffic_class = net->traffic_class };

	enter(net);
	if (net->port)
		setenv("HARP_DPDK", net->port, 1);
	net->ctx = (void *)(uintptr_t)0x5eed;
	if (net->version >= 11)
		return V(11)->init(&net->ctx, 0x1234, &config, logger, net->profiler);
	return net->version == 10 ? V(10)->init(logger, net->profiler) : V(6)->init(logger);
}

enum nccl_result net_init(struct net *net, nccl_logger logger)
{
	enum nccl_result result = init_one(net, logger);

	return result || !net->far ? result : init_one(net->far, logger);
}

static enum nccl_result finalize_one(struct net *net)
{
	enter(net);
	return net->version >= 11 ? V(11)->finalize(net->ctx) : NCCL_SUCCESS;
}

enum nccl_result net_finalize(struct net *net)
{
	enum nccl_result result = finalize_one(net);

	return result || !net->far ? result : finalize_one(net->far);
}

const char *net_name(const struct net *net)
{
	return V(6)->name;
}

enum nccl_result net_devices(struct net *net, int *count)
{
	return V(6)->devices(count);
}

#define COPY_V6                                                                                    \
	props->name = p.name, props->pci_path = p.pci_path, props->guid = p.guid,                  \
	props->ptr_support = p.ptr_support, props->speed_mbps = p.speed_mbps,                      \
	props->port = p.port, props->latency_us = p.latency_us, props->max_comms = p.max_comms,    \
	props->max_recvs = p.max_recvs
#define COPY_V7                                                                                    \
	COPY_V6, props->device_type = p.device_type, props->device_version = p.device_version
#define COPY_V8 COPY_V7, props->reg_is_global = p.reg_is_global
#define COPY_V9                                                                                    \
	COPY_V8, props->force_flush = p.force_flush, props->vprops.ndevs = p.vprops.ndevs,         \
		 props->vprops.devs[0] = p.vprops.devs[0], props->max_p2p_bytes = p.max_p2p_bytes, \
		 props->max_coll_bytes = p.max_coll_bytes
#define COPY_V11 COPY_V9, props->max_multi_request_size = p.max_multi_request_size
/* The guard bytes must not change: the plugin's struct has the size of this one. */
#define PROPERTIES(n, copy)                                                                        \
	do {                                                                                       \
		struct {                                                                           \
			unsigned char before[64];                                                  \
			struct nccl_props_v##n value;                                              \
			unsigned char after[64];                                                   \
		} guarded;                                                                         \
		struct nccl_props_v##n p;                                                          \
		enum nccl_result result;                                                           \
                                                                                                   \
		memset(&guarded, 0xa5, sizeof(guarded));                                           \
		result = V(n)->get_properties(dev, &guarded.value);                                \
		for (size_t i = 0; i < 64; i++)                                                    \
			if (guarded.before[i] != 0xa5 || guarded.after[i] != 0xa5)                 \
				abort();                                                           \
		p = guarded.value;                                                                 \
		copy;                                                                              \
		return result;                                                                     \
	} while (0)

enum nccl_result net_properties(struct net *net, int dev, struct nccl_props_v12 *props)
{
	switch (net->version) {
	case 6:
		PROPERTIES(6, COPY_V6);
	case 7:
		PROPERTIES(7, COPY_V7);
	case 8:
		PROPERTIES(8, COPY_V8);
	case 9:
	case 10:
		PROPERTIES(9, COPY_V9);
	case 11:
		PROPERTIES(11, COPY_V11);
	default:
		PROPERTIES(12, *props = p);
	}
}

enum nccl_result net_listen(struct net *net, int dev, void *handle, void **comm)
{
	net = enter_receiver(net);
	return net->version >= 11 ? V(11)->listen(net->ctx, dev, handle, comm)
				  : V(6)->listen(dev, handle, comm);
}

enum nccl_result net_connect(struct net *net, int dev, void *handle, void **comm)
{
	struct nccl_comm_config config = { .traffic_class = net->traffic_class };
	struct nccl_device_handle *device = NULL;

	enter(net);
	if (net->version >= 11)
		return V(11)->connect(net->ctx, dev, handle, comm, &device);
	if (net->version == 10)
		return V(10)->connect(dev, &config, handle, comm, &device);
	return net->version >= 7 ? V(7)->connect(dev, handle, comm, &device)
				 : V(6)->connect(dev, handle, comm);
}

enum nccl_result net_accept(struct net *net, void *listen_comm, void **comm)
{
	struct nccl_device_handle *device = NULL;

	net = enter_receiver(net);
	return net->version >= 7 ? V(7)->accept(listen_comm, comm, &device)
				 : V(6)->accept(listen_comm, comm);
}

enum nccl_result net_reg_mr(struct net *net, void *comm, void *data, size_t size, int type,
			    void **mhandle)
{
	return net->version >= 8 ? V(8)->reg_mr(comm, data, size, type, mhandle)
				 : V(6)->reg_mr(comm, data, (int)size, type, mhandle);
}

enum nccl_result net_dereg_mr(struct net *net, void *comm, void *mhandle)
{
	return V(6)->dereg_mr(comm, mhandle);
}

static enum nccl_result isend_one(struct net *net, void *comm, void *data, size_t size, int tag,
				  void *mhandle, void **request)
{
	if (net->version >= 10)
		return V(10)->isend(comm, data, size, tag, mhandle, net->phandle, request);
	return net->version == 9 ? V(9)->isend(comm, data, size, tag, mhandle, request)
				 : V(6)->isend(comm, data, (int)size, tag, mhandle, request);
}

enum nccl_result net_isend(struct net *net, void *comm, void *data, size_t size, int tag,
			   void *mhandle, void **request)
{
	enum nccl_result result = isend_one(enter(net), comm, data, size, tag, mhandle, request);

	request_record(net, request ? *request : NULL, false);
	return result;
}

static enum nccl_result irecv_one(struct net *net, void *comm, int n, void **data, size_t *sizes,
				  int *tags, void **mhandles, void **request)
{
	int narrow[8] = { 0 }, *list = sizes ? narrow : NULL;
	void *phandles[8] = { net->phandle };

	for (int i = 0; sizes && i < n && i < 8; i++)
		narrow[i] = (int)sizes[i];
	if (net->version >= 10)
		return V(10)->irecv(comm, n, data, sizes, tags, mhandles, phandles, request);
	return net->version == 9 ? V(9)->irecv(comm, n, data, sizes, tags, mhandles, request)
				 : V(6)->irecv(comm, n, data, list, tags, mhandles, request);
}

enum nccl_result net_irecv_list(struct net *net, void *comm, int n, void **data, size_t *sizes,
				int *tags, void **mhandles, void **request)
{
	enum nccl_result result =
		irecv_one(enter_receiver(net), comm, n, data, sizes, tags, mhandles, request);

	request_record(net, request ? *request : NULL, true);
	return result;
}

enum nccl_result net_irecv(struct net *net, void *comm, void *data, size_t size, int tag,
			   void *mhandle, void **request)
{
	return net_irecv_list(net, comm, 1, &data, &size, &tag, &mhandle, request);
}

enum nccl_result net_iflush(struct net *net, void *comm, void **request)
{
	void *data = NULL, *mhandle = NULL;
	int size = 0;

	return V(6)->iflush(comm, 1, &data, &size, &mhandle, request);
}

enum nccl_result net_test(struct net *net, void *request, int *done, int *sizes)
{
	net = request_owner(net, request);
	return V(6)->test(request, done, sizes);
}

enum nccl_result net_close_send(struct net *net, void *comm)
{
	enter(net);
	return V(6)->close_send(comm);
}

enum nccl_result net_close_recv(struct net *net, void *comm)
{
	net = enter_receiver(net);
	return V(6)->close_recv(comm);
}

enum nccl_result net_close_listen(struct net *net, void *listen_comm)
{
	net = enter_receiver(net);
	return V(6)->close_listen(listen_comm);
}
