/* SPDX-License-Identifier: Apache-2.0 */
/* plugin.c - contexts and the process-wide state: it comes with the first and goes with the last. */
#include "plugin.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "ctx.h"
#include "daemon.h"
#include "driver.h"
#include "forkguard.h"
#include "keeper.h"
#include "keyfile.h"
#include "lane_page.h"
#include "linger.h"
#include "memory.h"
#include "peers.h"
#include "preamble.h"
#include "registry.h"
#include "rendezvous.h"
#include "upkeep.h"
#include "workers.h"

#define PORT_LINK_WAIT_NS 5000000000ull

pthread_mutex_t ctx_lock = PTHREAD_MUTEX_INITIALIZER;

/* A device's path in this process, decided at its first use. */
struct device_state {
	bool decided;
	struct engine_set *engines; /* NULL: why says the reason */
	char why[384];
	struct rendezvous *rdv;
};

static struct plugin_ctx *ctx_list; /* under ctx_lock, as the rest */
static struct device_state device_states[PLUGIN_DEVICES_MAX];

/* ---- engines and rendezvous ------------------------------------------------------------------- */

/* ctx_lock held. */
static struct device_state *ctx_device_state(int dev)
{
	struct device_state *state = &device_states[dev];

	if (state->decided)
		return state;
	state->decided = true;
	if (plugin_config()->path == PATH_KERNEL)
		snprintf(state->why, sizeof(state->why), "HARP_PATH=kernel");
	else
		state->engines = engine_set_get(dev, state->why, sizeof(state->why));
	/* An engine says itself what it is; HARP_PATH=xdp makes init fail with the reason, and a device of
	 * another namespace listen and connect. */
	if (!state->engines && !plugin_path_is_harp(plugin_config()->path) &&
	    !plugin_device(dev)->netns)
		INFO("%s: path kernel TCP: %s", plugin_device(dev)->ifname, state->why);
	return state;
}

struct engine_set *ctx_engines(int dev, char *why, size_t why_len)
{
	struct device_state *state;

	pthread_mutex_lock(&ctx_lock);
	state = ctx_device_state(dev);
	pthread_mutex_unlock(&ctx_lock);
	snprintf(why, why_len, "%s", state->why);
	return state->engines;
}

/* ctx_lock held. The device's rendezvous, as far as it can have one; *out NULL: it can't. */
static int ctx_open_rendezvous(int dev, struct device_state *state, struct rendezvous **out)
{
	int rc = 0;

	*out = NULL;
	if (plugin_device(dev)->netns && !state->engines)
		return 0;
	if (!state->rdv)
		rc = keeper_start();
	if (!rc && !state->rdv)
		rc = rendezvous_open(&state->rdv, dev);
	if (!rc && state->engines)
		rc = rendezvous_open_harp(state->rdv, state->engines);
	if (!rc)
		*out = state->rdv;
	return rc;
}

/* ctx_lock held. A spare NIC's queue is left to who needs it: HARP is on it only where this process uses it
 * for its own sake, or for all its lanes. */
static struct device_state *ctx_rail_state(int dev)
{
	return plugin_config()->rails == RAILS_ALL ? ctx_device_state(dev) : &device_states[dev];
}

struct engine_set *ctx_rail_engines(int dev)
{
	struct engine_set *engines;

	pthread_mutex_lock(&ctx_lock);
	engines = ctx_rail_state(dev)->engines;
	pthread_mutex_unlock(&ctx_lock);
	return engines;
}

int ctx_keeper(void)
{
	int rc;

	pthread_mutex_lock(&ctx_lock);
	rc = keeper_start();
	pthread_mutex_unlock(&ctx_lock);
	return rc;
}

/* ctx_lock held. Lanes of dev's comms may come by other NICs, too; one that can't be used is left out. */
static void ctx_open_rails(int dev, struct rendezvous *rdv)
{
	struct rendezvous *list[RAIL_PAIRS_MAX];
	int devs[RAIL_PAIRS_MAX];
	unsigned count = rails_devices(dev, devs), listed = 0;

	list[listed++] = rdv;
	for (unsigned i = 1; i < count; i++) {
		if (!ctx_open_rendezvous(devs[i], ctx_rail_state(devs[i]), &list[listed]) &&
		    list[listed])
			listed++;
	}
	rendezvous_set_rails(rdv, list, listed);
}

int ctx_rendezvous(int dev, struct rendezvous **out)
{
	struct device_state *state;
	int rc;

	pthread_mutex_lock(&ctx_lock);
	state = ctx_device_state(dev);
	rc = ctx_open_rendezvous(dev, state, out);
	if (!rc && !*out) {
		WARN("%s: cannot listen: %s; the NIC is of another network namespace, and HARP alone "
		     "can use it (name another interface in HARP_IFNAME)",
		     plugin_device(dev)->ifname, state->why);
		rc = -EPROTONOSUPPORT;
	}
	if (!rc)
		ctx_open_rails(dev, *out);
	pthread_mutex_unlock(&ctx_lock);
	return rc;
}

bool ctx_link_is_down(int dev)
{
	struct harp_instance_port port;
	struct engine_set *engines;
	bool down;

	pthread_mutex_lock(&ctx_lock);
	engines = device_states[dev].engines;
	down = engines && !engine_set_port(engines, &port) && !port.up;
	pthread_mutex_unlock(&ctx_lock);
	return down;
}

/* ctx_lock held: the last context is gone. */
static void ctx_forget_devices(void)
{
	plugin_memory_forget();
	for (unsigned dev = 0; dev < PLUGIN_DEVICES_MAX; dev++) {
		if (device_states[dev].rdv)
			rendezvous_close(device_states[dev].rdv);
		engine_set_put(device_states[dev].engines);
	}
	memset(device_states, 0, sizeof(device_states));
	keeper_stop();
	engine_reset();
	peers_reset();
	workers_stop();
	keyfile_forget();
}

/* HARP_PATH=auto has another way when a cable is out; a link may take seconds to come up. memif's is up when the
 * peer is there, which may be a rank that starts after us. The engine's thread looks at the link. */
static bool ctx_port_has_link(const struct engine_set *set, struct harp_instance_port *port)
{
	const struct timespec pause = { .tv_nsec = 20000000 };
	uint64_t until_ns = driver_clock_ns() + PORT_LINK_WAIT_NS;

	if (plugin_config()->path != PATH_AUTO || !strcmp(port->driver, "net_memif"))
		return true;
	while (!port->up && driver_clock_ns() < until_ns) {
		nanosleep(&pause, NULL);
		if (engine_set_port(set, port))
			return false;
	}
	return port->up;
}

/* ctx_lock held: plugin_devices_load()'s opener. */
static int ctx_open_port(int dev, struct harp_instance_port *out, char *why, size_t why_len)
{
	struct device_state *state = ctx_device_state(dev);

	snprintf(why, why_len, "%s", state->why);
	if (state->engines) {
		int rc = engine_set_port(state->engines, out);

		if (rc || ctx_port_has_link(state->engines, out))
			return rc;
		snprintf(why, why_len, "its link is down: a cable, or the other end");
		engine_set_put(state->engines);
	}
	/* The number may be another device's next. */
	memset(state, 0, sizeof(*state));
	engine_reset();
	return -ENODEV;
}

/* HARP_PATH=xdp: a device that we offer and can't drive is an error now, not a hang later. */
static int ctx_require_engines(void)
{
	for (int dev = 0; dev < plugin_device_count(); dev++) {
		char why[384];

		if (ctx_engines(dev, why, sizeof(why)))
			continue;
		WARN("HARP_PATH=xdp, but %s cannot: %s (or name another interface in "
		     "NCCL_SOCKET_IFNAME, or use HARP_PATH=auto)",
		     plugin_device(dev)->ifname, why);
		return -EPROTONOSUPPORT;
	}
	return 0;
}

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
	if (!ctx)
		return -ENOMEM;
	ctx->comm_id = comm_id;
	ctx->traffic_class = traffic_class;
	pthread_mutex_lock(&ctx_lock);
	first = !ctx_list;
	rc = forkguard_init();
	if (!rc && first)
		rc = plugin_daemon_load();
	if (!rc && first)
		rc = keyfile_load();
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
	if (plugin_config()->path == PATH_XDP) {
		rc = ctx_require_engines();
		if (rc) {
			plugin_finalize(ctx);
			return rc;
		}
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

	upkeep_stop(upkeep);
	comm_close(comm, abort);
	upkeep_free(upkeep);
}

static void ctx_end_lingering(struct comm *comm)
{
	ctx_end_comm(comm, false);
}

static void ctx_close_comm(struct comm *comm, bool abort)
{
	unsigned registered = comm->registered;

	ctx_remove_comm(comm);
	registry_remove(comm);
	if (!abort && comm_owes(comm)) { /* nothing of the application's */
		plugin_memory_comm_closed(comm, registered);
		registered = 0;
		if (linger_take(comm, ctx_end_lingering))
			return;
	}
	ctx_end_comm(comm, abort);
	plugin_memory_comm_closed(comm, registered);
}

/* ctx_lock held, and let go of meanwhile: the last context does not go before the comms that linger. */
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
	int rc;

	*out = NULL;
	if (forkguard_is_child)
		return -EBADF;
	if (!ctx || !handle_bytes || !plugin_device(dev))
		return -EINVAL;
	listen = calloc(1, sizeof(*listen));
	if (!listen)
		return -ENOMEM;
	listen->ctx = ctx;
	if (getrandom(&listen->id, sizeof(listen->id), 0) != sizeof(listen->id) ||
	    getrandom(listen->secret, sizeof(listen->secret), 0) != sizeof(listen->secret)) {
		free(listen);
		return -EIO;
	}
	rc = ctx_rendezvous(dev, &listen->rdv);
	if (rc) {
		free(listen);
		return rc;
	}
	rendezvous_add(listen->rdv, listen);
	memset(&handle, 0, sizeof(handle));
	handle.wire_min = handle.wire_max = WIRE_VERSION;
	handle.sealed = keyfile_key() != NULL;
	rendezvous_endpoints(listen->rdv, listen, &handle);
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

	*out = NULL;
	if (forkguard_is_child)
		return -EBADF;
	if (!listen)
		return -EINVAL;
	comm = rendezvous_accept(listen->rdv, listen);
	if (!comm)
		return 0;
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
