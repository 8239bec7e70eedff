/* SPDX-License-Identifier: Apache-2.0 */
/* context.c - contexts and their operations. The first one creates the process-wide state, the last
 * one removes it. */
#include "context/plugin.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/util.h"
#include "connect/ctx.h"
#include "device/daemon.h"
#include "process/forkguard.h"
#include "harp_config.h"
#include "poll/control.h"
#include "process/keyfile.h"
#include "device/path_policy.h"
#include "stats/lane_page.h"
#include "comm/comm.h"
#include "comm/memory.h"
#include "wire/preamble.h"
#include "connect/registry.h"
#include "connect/acceptor.h"
#include "connect/connector.h"
#include "process/log.h"
#include "process/config.h"
#include "device/device.h"

pthread_mutex_t ctx_lock = PTHREAD_MUTEX_INITIALIZER;

static struct plugin_ctx *ctx_list; /* under ctx_lock */
/* Held by init and finalize while they create or remove process-wide state. Acquired before all
 * other locks except those of abi/lifetime.c; the control thread never acquires it. */
static pthread_mutex_t ctx_process_lock = PTHREAD_MUTEX_INITIALIZER;

/* In this order: a thread that opens or closes engines may need the forkguard's lock. */
static void ctx_fork_prepare(void)
{
	engine_fork_prepare();
	forkguard_fork_prepare();
}

static void ctx_fork_parent(void)
{
	forkguard_fork_parent();
	engine_fork_parent();
}

/* Only async-signal-safe calls: the parent may have other threads. */
static void ctx_fork_child(void)
{
	forkguard_fork_child();
	engine_fork_child();
	lane_page_fork_child();
	control_fork_child();
}

/* Once per process image; glibc removes the handlers when the library is unloaded.
 * ctx_process_lock held. */
static int ctx_handle_forks(void)
{
	static bool installed;
	int rc = installed ? 0 : -pthread_atfork(ctx_fork_prepare, ctx_fork_parent, ctx_fork_child);

	installed = !rc;
	return rc;
}

/* ---- contexts ------------------------------------------------------------------------------- */

/* The first context: ctx_process_lock held. */
static int ctx_begin_process(void)
{
	int rc = plugin_daemon_load();

	if (!rc)
		rc = keyfile_load(HARP_CONFIG_KEY_FILE);
	if (!rc) {
		path_policy_load();
		rc = control_start();
	}
	if (!rc)
		rc = plugin_devices_load(interface_open_port);
	if (rc) {
		interfaces_close();
		return rc;
	}
	lane_page_open();
	lane_page_count(HARP_JOB_ports_refused, plugin_ports_refused());
	return 0;
}

int plugin_init(struct plugin_ctx **out, int traffic_class)
{
	struct plugin_ctx *ctx;
	int rc;

	*out = NULL;
	ctx = calloc(1, sizeof(*ctx));
	if (!ctx) {
		WARN("cannot begin: out of memory");
		return -ENOMEM;
	}
	ctx->traffic_class = traffic_class;
	pthread_mutex_lock(&ctx_process_lock);
	rc = ctx_handle_forks();
	if (!rc && !ctx_list)
		rc = ctx_begin_process();
	if (!rc) {
		pthread_mutex_lock(&ctx_lock);
		ctx->next = ctx_list;
		ctx_list = ctx;
		pthread_mutex_unlock(&ctx_lock);
	}
	pthread_mutex_unlock(&ctx_process_lock);
	if (rc) {
		free(ctx);
		return rc;
	}
	rc = interfaces_open_at_init();
	if (rc) {
		plugin_finalize(ctx);
		return rc;
	}
	*out = ctx;
	return 0;
}

/* Adds a comm to its context's list, for plugin_close() and plugin_finalize(). */
static void ctx_add_comm(struct comm *comm)
{
	struct plugin_ctx *ctx = comm->ctx;

	pthread_mutex_lock(&ctx_lock);
	LIST_INSERT_HEAD(&ctx->comms, comm, ctx_link);
	pthread_mutex_unlock(&ctx_lock);
}

static void ctx_end_comm(struct comm *comm, bool abort)
{
	struct connector *connector = comm->connector;

	registry_remove(comm);
	connector_stop(connector);
	comm_close(comm, abort);
	connector_free(connector);
}

static void ctx_end_closed(struct comm *comm)
{
	ctx_end_comm(comm, false);
}

/* With requests in flight, lanes may access the application's memory, so this waits until the comm
 * has ended. */
static void ctx_close_comm(struct comm *comm, bool abort)
{
	plugin_memory_comm_closes(comm);
	pthread_mutex_lock(&ctx_lock);
	LIST_REMOVE(comm, ctx_link);
	pthread_mutex_unlock(&ctx_lock);
	registry_hide(comm);
	if (abort || comm_has_requests(comm))
		ctx_end_comm(comm, abort);
	else
		closing_take(comm, ctx_end_closed);
}

void plugin_finalize(struct plugin_ctx *ctx)
{
	bool last;

	if (!ctx)
		return;
	/* After an abort, NCCL may leave connects, listen comms and comms open. */
	while (ctx->connects)
		connect_abort(ctx->connects);
	while (ctx->listens)
		plugin_close_listen(ctx->listens);
	while (!LIST_EMPTY(&ctx->comms))
		ctx_close_comm(LIST_FIRST(&ctx->comms), true);
	pthread_mutex_lock(&ctx_process_lock);
	last = ctx_list == ctx && !ctx->next;
	if (last)
		closing_finish();
	pthread_mutex_lock(&ctx_lock);
	LIST_UNLINK(ctx_list, ctx, next);
	pthread_mutex_unlock(&ctx_lock);
	if (last) {
		interfaces_close();
		lane_page_close();
		lane_notices_forget();
	}
	pthread_mutex_unlock(&ctx_process_lock);
	free(ctx);
}

bool plugin_is_idle(const struct plugin_ctx *ctx)
{
	bool idle;

	if (pthread_mutex_trylock(&ctx_lock))
		return false;
	idle = !ctx->connects && !ctx->listens && LIST_EMPTY(&ctx->comms);
	pthread_mutex_unlock(&ctx_lock);
	return idle;
}

void plugin_finalize_all(void)
{
	while (ctx_list)
		plugin_finalize(ctx_list);
}

/* ---- listening ------------------------------------------------------------------------------ */

int plugin_listen(struct plugin_ctx *ctx, int dev, void *handle_bytes, struct listen_comm **out)
{
	struct listen_comm *listen;
	struct handle handle;
	int rc;

	*out = NULL;
	if (!plugin_device(dev))
		return -EINVAL;
	listen = calloc(1, sizeof(*listen));
	if (!listen) {
		WARN("%s: cannot listen: out of memory", plugin_device(dev)->ifname);
		return -ENOMEM;
	}
	listen->ctx = ctx;
	listen->dev = dev;
	if (getrandom(&listen->id, sizeof(listen->id), 0) != sizeof(listen->id) ||
	    getrandom(listen->secret, sizeof(listen->secret), 0) != sizeof(listen->secret)) {
		WARN("%s: cannot listen: getrandom() gives no secret", plugin_device(dev)->ifname);
		free(listen);
		return -EIO;
	}
	rc = interface_listen(dev);
	if (rc) {
		free(listen);
		return rc;
	}
	acceptor_add(listen);
	memset(&handle, 0, sizeof(handle));
	handle.encrypted = keyfile_key() != NULL;
	acceptor_endpoints(listen, &handle.nic);
	handle.tuner = path_policy_tuner();
	handle.listen_id = listen->id;
	memcpy(handle.secret, listen->secret, HANDLE_SECRET_BYTES);
	(void)host_id_read(plugin_device(dev)->netns, handle.host_id); /* zeros: no peer is local */
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
	rc = acceptor_accept(listen, &comm);
	if (rc || !comm)
		return rc;
	(void)comm_describe(comm, text, sizeof(text));
	INFO("accepted by %s", text);
	ctx_add_comm(comm);
	*out = comm;
	return 0;
}

void plugin_close_listen(struct listen_comm *listen)
{
	pthread_mutex_lock(&ctx_lock);
	LIST_UNLINK(listen->ctx->listens, listen, next_of_ctx);
	pthread_mutex_unlock(&ctx_lock);
	acceptor_remove(listen);
	free(listen);
}

int plugin_connect(struct plugin_ctx *ctx, int dev, void *handle, int traffic_class,
		   struct comm **out)
{
	int rc;

	*out = NULL;
	if (!plugin_device(dev))
		return -EINVAL;
	rc = connect_step(ctx, dev, handle, traffic_class, out);
	if (*out)
		ctx_add_comm(*out);
	return rc;
}

void plugin_close(struct comm *comm)
{
	ctx_close_comm(comm, false);
}
