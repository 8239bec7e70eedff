/* SPDX-License-Identifier: Apache-2.0 */
/* acceptor.c - where peers come in: the listeners of a device, and the listen comms that they ask for. */
#include "connect/acceptor.h"
#include "base/util.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "connect/listener.h"
#include "connect/registry.h"
#include "process/log.h"
#include "process/config.h"
#include "device/device.h"

/*
 * Theory of operation
 *
 * An acceptor has a kernel socket of each family and a listener on the stack of each engine. What connects is a pending
 * connection (pending.c) until its preamble is through. Then it becomes a comm on the ready list of the listen comm that
 * its HELLO named, or a further lane of a comm (registry.c). Each listen comm has one of the HARP listeners, on the engine
 * that serves the fewest, so that the comms of a process are spread over its engines.
 *
 * Pending connections of kernel listeners belong to the control thread, those of a HARP listener to its engine. So peers
 * get in although no thread calls plugin_accept(), which polls all the same, as that is quicker than to wake a thread.
 * `lock` protects the list of listen comms and their ready lists.
 *
 * The engines may be opened later than the kernel's sockets. Until then the kernel listeners hold connections in their
 * backlog, because CHALLENGE must name the HARP ports.
 */

struct acceptor {
	int dev;
	struct kernel_listener v4, v6;
	struct pending_set kernel_pending; /* the control thread's */
	struct work admit_work, close_work;
	unsigned listener_count;
	struct stack_listener *listeners[ENGINES_MAX]; /* as the engines are numbered */
	pthread_mutex_t lock;
	/* Under lock. */
	struct engine_set
		*engines; /* NULL: none; once it is set the listeners are there for good */
	struct listen_comm *listens;
	unsigned rail_count;
	struct acceptor *rails[RAIL_PAIRS_MAX]; /* of our comms; the first is ourselves */
	atomic_bool held;                       /* the kernel sockets accept no connection */
};

/* ---- for pending_set ----------------------------------------------------------------------------- */

static struct listen_comm *acceptor_find(struct acceptor *acceptor, uint64_t id)
{
	struct listen_comm *listen = acceptor->listens;

	while (listen && listen->id != id)
		listen = listen->next;
	return listen;
}

bool acceptor_secret(struct acceptor *acceptor, uint64_t listen_id,
		     uint8_t secret[HANDLE_SECRET_BYTES])
{
	struct listen_comm *listen;

	pthread_mutex_lock(&acceptor->lock);
	listen = acceptor_find(acceptor, listen_id);
	if (listen)
		memcpy(secret, listen->secret, HANDLE_SECRET_BYTES);
	pthread_mutex_unlock(&acceptor->lock);
	return listen != NULL;
}

bool acceptor_has_room(struct acceptor *acceptor, uint64_t listen_id,
		       const struct harp_endpoint *peer)
{
	char text[HARP_ENDPOINT_TEXT_MAX];
	struct listen_comm *listen;
	bool room, logs = false;

	pthread_mutex_lock(&acceptor->lock);
	listen = acceptor_find(acceptor, listen_id);
	room = !listen || listen->count < LISTEN_PEERS_MAX;
	if (!room) {
		logs = !listen->full_logged;
		listen->full_logged = true;
	}
	pthread_mutex_unlock(&acceptor->lock);
	if (logs)
		WARN("%s: turned away %s, which comes again: too many that know a handle wait already; "
		     "does this rank still call accept, and who else has its handles?",
		     plugin_device(acceptor->dev)->ifname, harp_endpoint_format(peer, text));
	return room;
}

void acceptor_fail(struct acceptor *acceptor, uint64_t listen_id, const struct harp_endpoint *peer,
		   int error)
{
	char text[HARP_ENDPOINT_TEXT_MAX];
	struct listen_comm *listen;

	pthread_mutex_lock(&acceptor->lock);
	listen = acceptor_find(acceptor, listen_id);
	if (listen)
		listen->error = error;
	pthread_mutex_unlock(&acceptor->lock);
	WARN("%s: cannot accept %s, which finds a reset: %s%s; connect again when that has passed",
	     plugin_device(acceptor->dev)->ifname, harp_endpoint_format(peer, text),
	     lane_error_text(error), lane_error_remedy(error, ""));
}

bool acceptor_ready(struct acceptor *acceptor, uint64_t listen_id, struct comm *comm,
		    uint64_t comm_id, const uint8_t *key)
{
	struct listen_comm *listen;
	struct comm **tail;
	int rc = 0;

	pthread_mutex_lock(&acceptor->lock);
	listen = acceptor_find(acceptor, listen_id);
	if (listen && key)
		rc = registry_add(comm, comm_id, key);
	if (rc)
		listen = NULL;
	if (listen) {
		comm->ctx = listen->ctx;
		for (tail = &listen->waiting; *tail; tail = &(*tail)->next)
			;
		comm->next = NULL;
		*tail = comm;
		listen->count++;
	}
	pthread_mutex_unlock(&acceptor->lock);
	if (rc == -ENOMEM)
		acceptor_fail(acceptor, listen_id, &comm->remote, rc);
	return listen != NULL;
}

/* ---- listeners -------------------------------------------------------------------------------- */

int acceptor_dev(const struct acceptor *acceptor)
{
	return acceptor->dev;
}

static void acceptor_admit_run(struct work *work, uint64_t now_ns)
{
	struct acceptor *acceptor = container_of(work, struct acceptor, admit_work);
	bool admits = !atomic_load(&acceptor->held);
	int rc = kernel_listener_admit(&acceptor->v4, admits);

	(void)now_ns;
	if (!rc)
		rc = kernel_listener_admit(&acceptor->v6, admits);
	if (rc)
		WARN("%s: cannot accept connections: %s%s", plugin_device(acceptor->dev)->ifname,
		     lane_error_text(rc), lane_error_remedy(rc, ""));
}

void acceptor_admit(struct acceptor *acceptor, bool admits)
{
	atomic_store(&acceptor->held, !admits);
	control_post(&acceptor->admit_work);
}

static void acceptor_close_run(struct work *work, uint64_t now_ns)
{
	struct acceptor *acceptor = container_of(work, struct acceptor, close_work);

	(void)now_ns;
	kernel_listener_close(&acceptor->v4);
	kernel_listener_close(&acceptor->v6);
	pending_set_close(&acceptor->kernel_pending);
}

static int acceptor_open_kernel(struct acceptor *acceptor)
{
	const struct device *device = plugin_device(acceptor->dev);
	const struct harp_addr *addr = &device->addr_v4;
	char text[HARP_ADDR_TEXT_MAX];
	int rc = 0;

	if (device->has_v4)
		rc = kernel_listener_listen(&acceptor->v4, addr, 0, &acceptor->kernel_pending);
	if (!rc && device->has_v6) {
		addr = &device->addr_v6;
		rc = kernel_listener_listen(&acceptor->v6, addr, device->scope_id,
					    &acceptor->kernel_pending);
	}
	if (!rc)
		control_post(&acceptor->admit_work);
	else
		WARN("%s: cannot listen on %s: %s%s", device->ifname, harp_addr_format(addr, text),
		     lane_error_text(rc),
		     lane_error_remedy(rc, "; is the address still the interface's?"));
	return rc;
}

int acceptor_open(struct acceptor **out, int dev)
{
	struct acceptor *acceptor = calloc(1, sizeof(*acceptor));
	int rc = 0;

	*out = NULL;
	if (!acceptor) {
		WARN("%s: cannot listen: out of memory", plugin_device(dev)->ifname);
		return -ENOMEM;
	}
	pthread_mutex_init(&acceptor->lock, NULL);
	acceptor->dev = dev;
	acceptor->v4.fd = acceptor->v6.fd = -1;
	acceptor->admit_work.run = acceptor_admit_run;
	acceptor->close_work.run = acceptor_close_run;
	pending_set_init(&acceptor->kernel_pending, acceptor, NULL);
	/* The addresses of a NIC in another namespace are not ours to bind. */
	if (!plugin_path_is_harp(plugin_config()->path) && !plugin_device(dev)->netns)
		rc = acceptor_open_kernel(acceptor);
	if (rc) { /* nothing has been accepted */
		kernel_listener_close(&acceptor->v4);
		kernel_listener_close(&acceptor->v6);
		pthread_mutex_destroy(&acceptor->lock);
		free(acceptor);
		return rc;
	}
	*out = acceptor;
	return 0;
}

int acceptor_open_harp(struct acceptor *acceptor, struct engine_set *engines)
{
	int rc = 0;

	for (unsigned i = acceptor->listener_count; !rc && i < engine_set_count(engines); i++) {
		rc = stack_listener_open(&acceptor->listeners[i], acceptor,
					 engine_set_at(engines, i));
		acceptor->listener_count += !rc;
	}
	if (rc)
		WARN("%s: HARP cannot listen: %s; are its ports (61000-65535) in use?",
		     plugin_device(acceptor->dev)->ifname, lane_error_text(rc));
	if (rc)
		return rc;
	pthread_mutex_lock(&acceptor->lock);
	acceptor->engines = engines;
	pthread_mutex_unlock(&acceptor->lock);
	return 0;
}

void acceptor_close(struct acceptor *acceptor)
{
	for (unsigned i = 0; i < acceptor->listener_count; i++)
		stack_listener_close(acceptor->listeners[i]);
	control_call(&acceptor->close_work);
	pthread_mutex_destroy(&acceptor->lock);
	free(acceptor);
}

/* ---- what is sent to peers ---------------------------------------------------------------------- */

/* Of the other listeners as many as there is room for, the lowest queues first: on the first queue packets arrive
 * on most NICs. */
static void acceptor_more_ports(const struct acceptor *acceptor,
				const struct stack_listener *listener, struct handle *handle)
{
	unsigned count = 0;

	for (unsigned i = 0; i < acceptor->listener_count && count < HANDLE_PORTS_MAX; i++) {
		if (acceptor->listeners[i] == listener)
			continue;
		handle->ports[count].port = acceptor->listeners[i]->port;
		handle->ports[count++].queue = acceptor->listeners[i]->placement.queue;
	}
}

void acceptor_endpoints(const struct acceptor *acceptor, const struct listen_comm *listen,
			struct handle *handle)
{
	const struct device *device = plugin_device(acceptor->dev);

	handle->has_v4 = device->has_v4;
	handle->has_v6 = device->has_v6;
	handle->v4 = device->addr_v4;
	handle->v6 = device->addr_v6;
	handle->scope_id = device->scope_id;
	if (listen->listener) {
		handle->harp_port = listen->listener->port;
		handle->harp_placement = (uint8_t)listen->listener->placement.kind;
		handle->harp_queues = listen->listener->placement.queues;
		handle->harp_queue = listen->listener->placement.queue;
		acceptor_more_ports(acceptor, listen->listener, handle);
	}
	handle->kernel_port_v4 = acceptor->v4.local.port;
	handle->kernel_port_v6 = acceptor->v6.local.port;
}

static void acceptor_entry(const struct acceptor *acceptor, uint8_t nic,
			   const struct harp_addr *addr, uint16_t kernel_port,
			   const struct stack_listener *listener, struct rails *rails)
{
	struct rail_entry *entry = &rails->entry[rails->count];

	if (rails->count == RAIL_ENTRIES_MAX || (!kernel_port && !listener))
		return;
	*entry = (struct rail_entry){
		.addr = *addr,
		.nic = nic,
		.kernel_port = kernel_port,
		.speed_mbps = plugin_device(acceptor->dev)->speed_mbps,
	};
	if (listener) {
		entry->harp_port = listener->port;
		entry->placement = (uint8_t)listener->placement.kind;
		entry->queues = listener->placement.queues;
		entry->queue = listener->placement.queue;
	}
	rails->count++;
}

/* Where peers can come to by this device, on an instance that has little to do. */
static void acceptor_entries(struct acceptor *acceptor, uint8_t nic, struct rails *rails)
{
	const struct device *device = plugin_device(acceptor->dev);
	const struct stack_listener *listener = NULL;

	pthread_mutex_lock(&acceptor->lock);
	if (acceptor->engines)
		listener = acceptor->listeners[engine_index(engine_set_choose(acceptor->engines))];
	pthread_mutex_unlock(&acceptor->lock);
	if (device->has_v4)
		acceptor_entry(acceptor, nic, &device->addr_v4, acceptor->v4.local.port, listener,
			       rails);
	if (device->has_v6)
		acceptor_entry(acceptor, nic, &device->addr_v6, acceptor->v6.local.port, listener,
			       rails);
}

size_t acceptor_rails(struct acceptor *acceptor, uint8_t out[RAILS_BYTES_MAX])
{
	struct acceptor *list[RAIL_PAIRS_MAX];
	struct rails rails = { 0 };
	unsigned count;

	pthread_mutex_lock(&acceptor->lock);
	count = acceptor->rail_count;
	memcpy(list, acceptor->rails, sizeof(list));
	pthread_mutex_unlock(&acceptor->lock);
	for (unsigned i = 0; i < count; i++)
		acceptor_entries(list[i], (uint8_t)i, &rails);
	return rails_encode(&rails, out);
}

void acceptor_set_rails(struct acceptor *acceptor, struct acceptor *const *list, unsigned count)
{
	pthread_mutex_lock(&acceptor->lock);
	acceptor->rail_count = count;
	memcpy(acceptor->rails, list, count * sizeof(list[0]));
	pthread_mutex_unlock(&acceptor->lock);
}

/* ---- listen comms ----------------------------------------------------------------------------- */

void acceptor_add(struct acceptor *acceptor, struct listen_comm *listen)
{
	pthread_mutex_lock(&acceptor->lock);
	if (acceptor->engines) {
		struct engine *engine = engine_set_choose(acceptor->engines);

		listen->listener = acceptor->listeners[engine_index(engine)];
		engine_load(engine, 1); /* a connection is to come */
	}
	listen->next = acceptor->listens;
	acceptor->listens = listen;
	pthread_mutex_unlock(&acceptor->lock);
}

void acceptor_remove(struct acceptor *acceptor, struct listen_comm *listen)
{
	struct comm *comm, *next;

	if (listen->listener)
		engine_load(listen->listener->engine, -1);
	pthread_mutex_lock(&acceptor->lock);
	LIST_UNLINK(acceptor->listens, listen, next);
	pthread_mutex_unlock(&acceptor->lock);
	for (comm = listen->waiting; comm; comm = next) {
		next = comm->next;
		registry_remove(comm);
		comm_close(comm, true);
	}
	listen->waiting = NULL;
}

/* The error goes with no comm. */
static int acceptor_pop(struct acceptor *acceptor, struct listen_comm *listen, struct comm **out)
{
	struct comm *comm;
	int error = 0;

	pthread_mutex_lock(&acceptor->lock);
	comm = listen->waiting;
	if (comm) {
		listen->waiting = comm->next;
		listen->count--;
	} else {
		error = listen->error;
		listen->error = 0;
	}
	pthread_mutex_unlock(&acceptor->lock);
	*out = comm;
	return error;
}

/* The listen comm's own, and one other: the handle named others, too. */
static void acceptor_poll_listeners(struct acceptor *acceptor, struct listen_comm *listen)
{
	const struct engine_set *engines;
	struct stack_listener *other;

	pthread_mutex_lock(&acceptor->lock);
	engines = acceptor->engines;
	pthread_mutex_unlock(&acceptor->lock);
	if (!engines)
		return;
	other = acceptor->listeners[listen->turn++ % acceptor->listener_count];
	if (listen->listener)
		poller_poll(engine_poller(listen->listener->engine));
	if (other != listen->listener)
		poller_poll(engine_poller(other->engine));
}

int acceptor_accept(struct acceptor *acceptor, struct listen_comm *listen, struct comm **out)
{
	int rc = acceptor_pop(acceptor, listen, out);

	if (rc || *out)
		return rc;
	acceptor_poll_listeners(acceptor, listen);
	return acceptor_pop(acceptor, listen, out);
}
