/* SPDX-License-Identifier: Apache-2.0 */
/*
 * versions.h - one face over the seven tables, so that each test runs through every version's own.
 *
 * Arguments that a version does not have are dropped on the way down, those it narrows are
 * narrowed; nothing else is added or repaired here.
 */
#ifndef HARP_TESTS_PLUGIN_VERSIONS_H
#define HARP_TESTS_PLUGIN_VERSIONS_H

#include <stdbool.h>

#include "abi/nccl_abi.h"

struct net {
	int version;
	const void *table;
	void *ctx;              /* of v11 and later, after net_init() */
	int traffic_class;      /* given at init (v11) or connect (v10) */
	const char *port;       /* HARP_DPDK of its init; NULL: as it is */
	nccl_profiler profiler; /* given at init (v10 and later) */
	void *phandle;          /* given with each message (v10 and later) */
	int netns;              /* calls are made in this network namespace; 0: wherever we are */
	struct net *far; /* the receiving end is another host's; NULL: it is this one's too */
};

bool net_is_valid(int version);
enum nccl_result net_init(struct net *net, nccl_logger logger);
/* v11 and later; NCCL_SUCCESS and nothing before. Both this and init: of both ends. */
enum nccl_result net_finalize(struct net *net);
const char *net_name(const struct net *net);
enum nccl_result net_devices(struct net *net, int *count);
/* Fills the newest struct; fields that the version does not have are unchanged. */
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
/* n and the lists as they are. sizes NULL is passed on. */
enum nccl_result net_irecv_list(struct net *net, void *comm, int n, void **data, size_t *sizes,
				int *tags, void **mhandles, void **request);
enum nccl_result net_iflush(struct net *net, void *comm, void **request);
enum nccl_result net_test(struct net *net, void *request, int *done, int *sizes);
enum nccl_result net_close_send(struct net *net, void *comm);
enum nccl_result net_close_recv(struct net *net, void *comm);
enum nccl_result net_close_listen(struct net *net, void *comm);

#endif
