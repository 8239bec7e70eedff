/* SPDX-License-Identifier: Apache-2.0 */
/* plugin.c - contexts, and what they do for NCCL; process-wide state comes with the first and goes with the last. */
#include "plugin.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "device/ctx.h"
#include "process/daemon.h"
#include "process/forkguard.h"
#include "harp_config.h"
#include "poll/keeper.h"
#include "process/keyfile.h"
#include "process/path_policy.h"
#include "stats/lane_page.h"
#include "comm/linger.h"
#include "comm/memory.h"
#include "wire/preamble.h"
#include "connect/registry.h"
#include "connect/rendezvous.h"
#include "connect/upkeep.h"

pthread_mutex_t ctx_lock = PTHREAD_MUTEX_INITIALIZER;

static struct plugin_ctx *ctx_list; /* under ctx_lock */

/* ---- contexts --------------------------------------------------------------------------------- */

int plugin_init(struct plugin_ctx **out, uint64_t comm_id, int traffic_class)
{
	struct plugin_ctx *ctx;
	bool first;
	int rc;

	*out = NULL;
	if (forkguard_is_child)
		return -EBADF;
	ctx = calloc(1, sizeof(*ctx));
	if (!ctx) {
		WARN("cannot begin: out of memory");
		return -ENOMEM;
	}
	ctx->comm_id = comm_id;
	ctx->traffic_class = traffic_class;
	pthread_mutex_lock(&ctx_lock);
	first = !ctx_list;
	rc = forkguard_init();
	if (!rc && first)
		rc = plugin_daemon_load();
	if (!rc && first)
		rc = keyfile_load(HARP_CONFIG_KEY_FILE);
	if (!rc && first)
		path_policy_load();
	if (!rc && first)
		rc = keeper_start();
	if (!rc && first)
		rc = plugin_devices_load(ctx_open_port);
	if (rc && first)
		ctx_forget_devices();
	if (!rc) {
		lane_page_open();
		if (first)
			lane_page_count(HARP_JOB_ports_refused, plugin_ports_refused());
		ctx->next = ctx_list;
		ctx_list = ctx;
		forkguard_set_active(true);
	}
	pthread_mutex_unlock(&ctx_lock);
	if (rc) {
		free(ctx);
		return rc;
	}
	rc = ctx_open_at_init();
	if (rc) {
		plugin_finalize(ctx);
		return rc;
	}
	*out = ctx;
	return 0;
}

void ctx_add_comm(struct comm *comm)
{
	struct plugin_ctx *ctx = comm->ctx;

	pthread_mutex_lock(&ctx_lock);
	comm->next = ctx->comms;
	comm->pprev = &ctx->comms;
	if (comm->next)
		comm->next->pprev = &comm->next;
	ctx->comms = comm;
	pthread_mutex_unlock(&ctx_lock);
}

static void ctx_remove_comm(struct comm *comm)
{
	pthread_mutex_lock(&ctx_lock);
	*comm->pprev = comm->next;
	if (comm->next)
		comm->next->pprev = comm->pprev;
	pthread_mutex_unlock(&ctx_lock);
}

static void ctx_end_comm(struct comm *comm, bool abort)
{
	struct upkeep *upkeep = comm->upkeep;

	registry_remove(comm);
	upkeep_stop(upkeep);
	comm_close(comm, abort);
	upkeep_free(upkeep);
}

static void ctx_end_closed(struct comm *comm)
{
	ctx_end_comm(comm, false);
}

/* With requests in flight lanes may touch the application's memory: the comm has ended when this
 * returns. */
static void ctx_close_comm(struct comm *comm, bool abort)
{
	uint64_t closing = plugin_memory_comm_closes(comm);

	ctx_remove_comm(comm);
	registry_hide(comm);
	if (abort || comm_has_requests(comm)) {
		ctx_end_comm(comm, abort);
		plugin_memory_comm_closed(closing);
		return;
	}
	plugin_memory_comm_closed(closing);
	linger_take(comm, ctx_end_closed);
}

/* ctx_lock held, and let go of meanwhile: the last context does not go before the comms that are
 * being ended. */
static void ctx_finish_lingering(const struct plugin_ctx *ctx)
{
	while (ctx_list == ctx && !ctx->next && linger_is_used()) {
		pthread_mutex_unlock(&ctx_lock);
		linger_finish(plugin_config()->close_linger_ns);
		pthread_mutex_lock(&ctx_lock);
	}
}

int plugin_finalize(struct plugin_ctx *ctx)
{
	struct plugin_ctx **at;

	if (!ctx)
		return 0;
	if (forkguard_is_child)
		return -EBADF;
	/* Connects that have a task, or tasks to free them. */
	keeper_tasks_wait();
	/* After an abort NCCL leaves half-open connects, listens and sometimes comms behind. */
	while (ctx->connects)
		connect_free(ctx->connects);
	while (ctx->listens)
		plugin_close_listen(ctx->listens);
	while (ctx->comms)
		ctx_close_comm(ctx->comms, true);
	pthread_mutex_lock(&ctx_lock);
	ctx_finish_lingering(ctx);
	for (at = &ctx_list; *at && *at != ctx; at = &(*at)->next)
		;
	if (*at)
		*at = ctx->next;
	if (!ctx_list) {
		ctx_forget_devices();
		lane_page_close();
		forkguard_set_active(false);
	}
	pthread_mutex_unlock(&ctx_lock);
	free(ctx);
	return 0;
}

/* ---- listening -------------------------------------------------------------------------------- */

int plugin_listen(struct plugin_ctx *ctx, int dev, void *handle_bytes, struct listen_comm **out)
{
	struct listen_comm *listen;
	struct handle handle;
	bool opening;
	int rc;

	*out = NULL;
	if (forkguard_is_child)
		return -EBADF;
	if (!ctx || !handle_bytes || !plugin_device(dev))
		return -EINVAL;
	listen = calloc(1, sizeof(*listen));
	if (!listen) {
		WARN("%s: cannot listen: out of memory", plugin_device(dev)->ifname);
		return -ENOMEM;
	}
	listen->ctx = ctx;
	if (getrandom(&listen->id, sizeof(listen->id), 0) != sizeof(listen->id) ||
	    getrandom(listen->secret, sizeof(listen->secret), 0) != sizeof(listen->secret)) {
		WARN("%s: cannot listen: getrandom() gives no secret", plugin_device(dev)->ifname);
		free(listen);
		return -EIO;
	}
	rc = ctx_rendezvous(dev, &listen->rdv, &opening);
	if (rc) {
		free(listen);
		return rc;
	}
	rendezvous_add(listen->rdv, listen);
	memset(&handle, 0, sizeof(handle));
	handle.wire_min = handle.wire_max = WIRE_VERSION;
	handle.sealed = keyfile_key() != NULL;
	rendezvous_endpoints(listen->rdv, listen, &handle);
	handle.opening = opening;
	handle.listen_id = listen->id;
	memcpy(handle.secret, listen->secret, HANDLE_SECRET_BYTES);
	(void)handle_host_id(plugin_device(dev)->netns,
			     handle.host_id); /* zeroes: nobody is local */
	handle_encode(handle_bytes, &handle);
	pthread_mutex_lock(&ctx_lock);
	listen->next_of_ctx = ctx->listens;
	ctx->listens = listen;
	pthread_mutex_unlock(&ctx_lock);
	*out = listen;
	return 0;
}

int plugin_accept(struct listen_comm *listen, struct comm **out)
{
	struct comm *comm;
	char text[256];
	int rc;

	*out = NULL;
	if (forkguard_is_child)
		return -EBADF;
	if (!listen)
		return -EINVAL;
	rc = rendezvous_accept(listen->rdv, listen, &comm);
	if (rc || !comm)
		return rc;
	comm_describe(comm, text, sizeof(text));
	INFO("accepted by %s", text);
	ctx_add_comm(comm);
	*out = comm;
	return 0;
}

int plugin_close_listen(struct listen_comm *listen)
{
	struct listen_comm **at;

	if (!listen)
		return 0;
	if (forkguard_is_child)
		return -EBADF;
	pthread_mutex_lock(&ctx_lock);
	for (at = &listen->ctx->listens; *at && *at != listen; at = &(*at)->next_of_ctx)
		;
	if (*at)
		*at = listen->next_of_ctx;
	pthread_mutex_unlock(&ctx_lock);
	rendezvous_remove(listen->rdv, listen);
	free(listen);
	return 0;
}

/* ---- messages --------------------------------------------------------------------------------- */

int plugin_isend(struct comm *comm, const void *data, size_t size, int tag, void *memory,
		 struct request **out)
{
	*out = NULL;
	if (forkguard_is_child)
		return -EBADF;
	if (!comm || comm->side != COMM_SEND || (!data && size) || size > RECORD_TOTAL_MAX)
		return -EINVAL;
	return comm_post(comm, (void *)(uintptr_t)data, size, tag, memory, out);
}

int plugin_irecv(struct comm *comm, void *data, size_t size, int tag, void *memory,
		 struct request **out)
{
	*out = NULL;
	if (forkguard_is_child)
		return -EBADF;
	if (!comm || comm->side != COMM_RECV || (!data && size))
		return -EINVAL;
	return comm_post(comm, data, size, tag, memory, out);
}

int plugin_test(struct request *request, int *done, size_t *size)
{
	*done = 0;
	if (forkguard_is_child)
		return -EBADF;
	if (!request)
		return -EINVAL;
	return comm_test(request, done, size);
}

int plugin_reg_mr(struct comm *comm, const void *data, size_t size, void **out)
{
	return forkguard_is_child ? -EBADF : plugin_memory_add(comm, data, size, out);
}

int plugin_dereg_mr(void *handle)
{
	return forkguard_is_child ? -EBADF : plugin_memory_remove(handle);
}

int plugin_close(struct comm *comm)
{
	if (!comm)
		return 0;
	if (forkguard_is_child)
		return -EBADF;
	ctx_close_comm(comm, false);
	return 0;
}
