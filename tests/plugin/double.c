/* SPDX-License-Identifier: Apache-2.0 */
/* double.c - see double.h. */
#include "double.h"

#include <errno.h>

#include "device/daemon.h"

/* Doubles have the parameters of what they replace. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

struct double_script double_script;
struct double_seen double_seen;

/* Opaque to everyone: their addresses are all that counts. */
static char double_ctx, double_listen, double_comm, double_request, double_mr;

static void *double_out(void *good)
{
	return double_script.rc || double_script.pending ? NULL : good;
}

const struct harp_lease_device *plugin_daemon_devices(unsigned *count)
{
	*count = 0;
	return NULL;
}

uint64_t plugin_netns(void)
{
	return 0;
}

int plugin_init(struct plugin_ctx **out, uint64_t comm_id, int traffic_class)
{
	double_seen.inits++;
	double_seen.comm_id = comm_id;
	double_seen.init_traffic_class = traffic_class;
	*out = double_script.rc ? double_out(NULL) : (struct plugin_ctx *)(void *)&double_ctx;
	return double_script.rc;
}

int plugin_finalize(struct plugin_ctx *ctx)
{
	double_seen.finalizes++;
	double_seen.ctx = ctx;
	return double_script.rc;
}

int plugin_listen(struct plugin_ctx *ctx, int dev, void *handle, struct listen_comm **out)
{
	double_seen.ctx = ctx;
	double_seen.dev = dev;
	double_seen.handle = handle;
	*out = double_script.rc ? double_out(NULL) : (void *)&double_listen;
	return double_script.rc;
}

int plugin_connect(struct plugin_ctx *ctx, int dev, void *handle, int traffic_class,
		   struct comm **out)
{
	double_seen.ctx = ctx;
	double_seen.dev = dev;
	double_seen.handle = handle;
	double_seen.connect_traffic_class = traffic_class;
	*out = double_out(&double_comm);
	return double_script.rc;
}

int plugin_accept(struct listen_comm *listen, struct comm **out)
{
	*out = double_out(&double_comm);
	return double_script.rc;
}

float plugin_latency_us(int dev)
{
	return 3.5f + (float)dev;
}

void plugin_set_net_attr(struct plugin_ctx *ctx, const struct plugin_net_attr *attr)
{
	double_seen.ctx = ctx;
	double_seen.attr = *attr;
}

int plugin_close_listen(struct listen_comm *listen)
{
	double_seen.close_listens++;
	return double_script.rc;
}

int plugin_isend(struct comm *comm, const void *data, size_t size, int tag, void *memory,
		 struct request **out)
{
	double_seen.data = data;
	double_seen.size = size;
	double_seen.tag = tag;
	double_seen.memory = memory;
	*out = double_out(&double_request);
	return double_script.rc;
}

int plugin_irecv(struct comm *comm, void *data, size_t size, int tag, void *memory,
		 struct request **out)
{
	return plugin_isend(comm, data, size, tag, memory, out);
}

int plugin_test(struct request *request, int *done, size_t *size)
{
	*done = double_script.rc ? 77 : double_script.done;
	if (size)
		*size = double_script.size;
	return double_script.rc;
}

int plugin_reg_mr(struct comm *comm, const void *data, size_t size, void **out)
{
	*out = double_out(&double_mr);
	return double_script.rc;
}

int plugin_dereg_mr(void *handle)
{
	return double_script.rc;
}

int plugin_close(struct comm *comm)
{
	double_seen.closes++;
	return double_script.rc;
}

int harp_host_has_default_route(const char *ifname)
{
	return 0;
}

int harp_host_address_state(const char *ifname, const struct harp_addr *addr)
{
	return -1;
}

struct comm_event *plugin_event_begin(struct request *request)
{
	return NULL;
}

struct comm_event *plugin_event_end(struct request *request, int error)
{
	return NULL;
}
