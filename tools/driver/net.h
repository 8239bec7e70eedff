/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net.h - an ncclNet plugin of any version behind one set of functions.
 *
 * Every function returns the ncclResult_t as int. net.c is the only file of the driver that knows
 * what differs between v6 and v12.
 */
#ifndef HARP_DRIVER_NET_H
#define HARP_DRIVER_NET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NET_HANDLE_BYTES 128u
#define NET_ABI_OLDEST 6
#define NET_ABI_NEWEST 12

struct net {
	void *lib;
	int abi;
	const void *table; /* ncclNet_vN_t of abi */
	const char *name;
	void *ctx; /* v11 and newer */
	bool initialised;
	int devices;
	char path[256];
};

struct net_properties {
	char name[64];
	int ptr_support;
	int speed_mbps;
	int net_device_type; /* -1 before v7 */
};

/*
 * Opens `plugin` as NCCL does (NULL: $NCCL_NET_PLUGIN, else libnccl-net.so) and finds the table of
 * version abi, or of the newest for 0. Returns 0, or -1 with one line in error.
 */
int net_open(struct net *net, const char *plugin, int abi, char *error, size_t error_len);
void net_close(struct net *net);

/* init (once per process before v11, per context since) and devices. */
int net_init(struct net *net, uint64_t comm_id, const char **call);
/* finalize; nothing before v11. */
int net_finalize(struct net *net);
int net_properties(struct net *net, int dev, struct net_properties *out);
int net_listen(struct net *net, int dev, void *handle, void **listen_comm);
int net_connect(struct net *net, int dev, void *handle, void **send_comm);
int net_accept(struct net *net, void *listen_comm, void **recv_comm);
int net_reg_mr(struct net *net, void *comm, void *data, size_t bytes, void **mhandle);
int net_dereg_mr(struct net *net, void *comm, void *mhandle);
int net_isend(struct net *net, void *comm, void *data, size_t bytes, int tag, void *mhandle,
	      void **request);
int net_irecv(struct net *net, void *comm, void *data, size_t bytes, int tag, void *mhandle,
	      void **request);
/* size: may be NULL. */
int net_test(struct net *net, void *request, int *done, int *size);
int net_close_send(struct net *net, void *comm);
int net_close_recv(struct net *net, void *comm);
int net_close_listen(struct net *net, void *listen_comm);
const char *net_result_name(int result);

#endif
