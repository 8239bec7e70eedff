/* SPDX-License-Identifier: Apache-2.0 */
/* net.h - loads an ncclNet plugin as NCCL does, with the newest table of nccl_abi.h. */
#ifndef HARP_DRIVER_NET_H
#define HARP_DRIVER_NET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../../plugin/abi/nccl_abi.h"

struct net {
	void *lib;
	const struct nccl_net_v12 *table;
	void *ctx;
	bool initialized;
	int devices;
	char path[256];
};

/* Opens a plugin as NCCL does (NULL: $NCCL_NET_PLUGIN, else libnccl-net.so) and its table. Returns
 * 0, or -1 with one line in error. */
int net_open(struct net *net, const char *plugin, char *error, size_t error_len);
void net_close(struct net *net);

/* Calls init and devices; *call is the one that failed. Returns the ncclResult_t. */
int net_init(struct net *net, uint64_t comm_id, const char **call);
int net_finalize(struct net *net);
int net_connect(struct net *net, int dev, void *handle, void **send_comm);
int net_accept(struct net *net, void *listen_comm, void **recv_comm);
int net_irecv(struct net *net, void *comm, void *data, size_t bytes, int tag, void *mhandle,
	      void **request);
const char *net_result_name(int result);

#endif
