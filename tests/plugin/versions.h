/* SPDX-License-Identifier: Apache-2.0 */
/*
 * versions.h - one interface to the seven ABI tables, so that each test runs with every version.
 *
 * A call drops the arguments that its version lacks and narrows those that its version narrows. It
 * changes nothing else.
 */
#ifndef HARP_TESTS_PLUGIN_VERSIONS_H
#define HARP_TESTS_PLUGIN_VERSIONS_H

#include <stdbool.h>

#include "abi/nccl_abi.h"

struct net {
	int version;
	const void *table;
	void *ctx;              /* since v11, after net_init() */
	int traffic_class;      /* argument of init (v11) or connect (v10) */
	const char *port;       /* HARP_DPDK at init; NULL: not set */
	nccl_profiler profiler; /* argument of init (since v10) */
	void *phandle;          /* argument of isend and irecv (since v10) */
	int netns;              /* network namespace for calls; 0: the current one */
	struct net *far;        /* the host of the receiving end; NULL: this one */
};

bool net_is_valid(int version);
enum nccl_result net_init(struct net *net, nccl_logger logger);
/* Does nothing before v11. Like net_init(), calls the plugins of both ends. */
enum nccl_result net_finalize(struct net *net);
const char *net_name(const struct net *net);
enum nccl_result net_devices(struct net *net, int *count);
/* Fills the newest struct; fields that the version lacks are unchanged. */
enum nccl_result net_properties(struct net *net, int dev, struct nccl_props_v12 *props);
enum nccl_result net_listen(struct net *net, int dev, void *handle, void **comm);
enum nccl_result net_connect(struct net *net, int dev, void *handle, void **comm);
enum nccl_result net_accept(struct net *net, void *listen_comm, void **comm);
enum nccl_result net_reg_mr(struct net *net, void *comm, void *data, size_t size, int type,
			    void **mhandle);
enum nccl_result net_dereg_mr(struct net *net, void *comm, void *mhandle);
enum nccl_result net_isend(struct net *net, void *comm, void *data, size_t size, int tag,
			   void *mhandle, void **request);
/* One buffer. */
enum nccl_result net_irecv(struct net *net, void *comm, void *data, size_t size, int tag,
			   void *mhandle, void **request);
/* Passes n and the lists unchanged; sizes may be NULL. */
enum nccl_result net_irecv_list(struct net *net, void *comm, int n, void **data, size_t *sizes,
				int *tags, void **mhandles, void **request);
enum nccl_result net_iflush(struct net *net, void *comm, void **request);
enum nccl_result net_test(struct net *net, void *request, int *done, int *sizes);
enum nccl_result net_close_send(struct net *net, void *comm);
enum nccl_result net_close_recv(struct net *net, void *comm);
enum nccl_result net_close_listen(struct net *net, void *comm);

#endif
