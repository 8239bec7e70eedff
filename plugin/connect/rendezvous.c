/* SPDX-License-Identifier: Apache-2.0 */
/* rendezvous.c - where peers come in: the doors of a device, and the listen comms that they ask for. */
#include "connect/rendezvous.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "connect/door.h"
#include "connect/registry.h"

/*
 * Theory of operation
 *
 * A rendezvous has doors: a kernel socket per family and a listener on the stack of each engine.
 * Who comes in through a door is a *guest* until its preamble is through; then it becomes a comm on
 * the ready list of the listen comm that its HELLO named, and plugin_accept() takes it from there; or a
 * further lane of a comm that is there (registry.c). A listen comm has one of the HARP doors, on the engine
 * that served the fewest, and its handle says that door's port: so the comms of a process are spread over
 * its engines.
 *
 * Guests behind the kernel doors belong to the keeper, those behind a HARP door to its engine: nobody has to
 * call plugin_accept() for them to get in. It takes turns all the same, being quicker than a thread that must be
 * woken. What all touch, the list of listen comms and their ready lists, is under `lock`, which is held for a
 * few instructions.
 *
 * The HARP doors come with the device's engines, which may be after the kernel's: they are being
 * opened, or the device is a spare rail of another and no listen needs its engines. While they are
 * being opened the kernel doors are held: CHALLENGE must name the HARP doors.
 */

struct rendezvous {
	int dev;
	struct kernel_door v4, v6;
	struct guests kernel_guests; /* the keeper's */
	struct work let_in_work, close_work;
	unsigned door_count;
	struct harp_door *doors[ENGINES_MAX]; /* as the engines are numbered */
	pthread_mutex_t lock;
	/* Under lock. */
	struct engine_set *engines; /* NULL: none; once it is set the doors are there for good */
	struct listen_comm *listens;
	unsigned rail_count;
	struct rendezvous *rails[RAIL_PAIRS_MAX]; /* of our comms; the first is ourselves */
	atomic_bool held;                         /* the kernel sockets accept nobody */
};

/* ---- for guests ----------------------------------------------------------------------------- */

static struct listen_comm *rendezvous_find(struct rendezvous *rdv, uint64_t id)
{
	struct listen_comm *listen = rdv->listens;

	while (listen && listen->id != id)
		listen = listen->next;
	return listen;
}

bool rendezvous_secret(struct rendezvous *rdv, uint64_t listen_id,
		       uint8_t secret[HANDLE_SECRET_BYTES])
{
	struct listen_comm *listen;

	pthread_mutex_lock(&rdv->lock);
	listen = rendezvous_find(rdv, listen_id);
	if (listen)
		memcpy(secret, listen->secret, HANDLE_SECRET_BYTES);
	pthread_mutex_unlock(&rdv->lock);
	return listen != NULL;
}

/* A connector that did not hear READY tries again, with the id that it had: what it left here will never be used.
 * Who may close it is told by plugin_accept(): we hold a baton. Lock held. */
static void rendezvous_leave(struct listen_comm *listen, uint64_t comm_id)
{
	struct comm **at = &listen->waiting, *comm;

	while (*at && (*at)->comm_id != comm_id)
		at = &(*at)->next;
	comm = *at;
	if (!comm)
		return;
	*at = comm->next;
	comm->next = listen->left;
	listen->left = comm;
	registry_hide(comm);
}

bool rendezvous_has_room(struct rendezvous *rdv, uint64_t listen_id)
{
	const struct listen_comm *listen;
	bool room;

	pthread_mutex_lock(&rdv->lock);
	listen = rendezvous_find(rdv, listen_id);
	room = !listen || listen->count < LISTEN_PEERS_MAX;
	pthread_mutex_unlock(&rdv->lock);
	return room;
}

void rendezvous_say_full(struct rendezvous *rdv, uint64_t listen_id,
			 const struct harp_endpoint *peer)
{
	char text[HARP_ENDPOINT_TEXT_MAX];
	struct listen_comm *listen;
	bool say;

	pthread_mutex_lock(&rdv->lock);
	listen = rendezvous_find(rdv, listen_id);
	say = listen && !listen->full_said;
	if (say)
		listen->full_said = true;
	pthread_mutex_unlock(&rdv->lock);
	if (say)
		WARN("%s: turned away %s, which comes again: too many that know a handle wait already; "
		     "does this rank still call accept, and who else has its handles?",
		     plugin_device(rdv->dev)->ifname, harp_endpoint_format(peer, text));
}

void rendezvous_fail(struct rendezvous *rdv, uint64_t listen_id, const struct harp_endpoint *peer,
		     int error)
{
	char text[HARP_ENDPOINT_TEXT_MAX];
	struct listen_comm *listen;

	pthread_mutex_lock(&rdv->lock);
	listen = rendezvous_find(rdv, listen_id);
	if (listen)
		listen->error = error;
	pthread_mutex_unlock(&rdv->lock);
	WARN("%s: cannot accept %s, which finds a reset: %s%s; connect again when that has passed",
	     plugin_device(rdv->dev)->ifname, harp_endpoint_format(peer, text),
	     lane_error_text(error), lane_error_remedy(error) ? lane_error_remedy(error) : "");
}

bool rendezvous_ready(struct rendezvous *rdv, uint64_t listen_id, struct comm *comm,
		      uint64_t comm_id, const uint8_t *key)
{
	struct listen_comm *listen;
	struct comm **tail;
	int rc = 0;

	pthread_mutex_lock(&rdv->lock);
	listen = rendezvous_find(rdv, listen_id);
	if (listen)
		rendezvous_leave(listen, comm_id);
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
	pthread_mutex_unlock(&rdv->lock);
	if (rc == -ENOMEM)
		rendezvous_fail(rdv, listen_id, &comm->remote, rc);
	return listen != NULL;
}

/* ---- doors ------------------------------------------------------------------------------------ */

int rendezvous_dev(const struct rendezvous *rdv)
{
	return rdv->dev;
}

void rendezvous_hold(struct rendezvous *rdv)
{
	atomic_store(&rdv->held, true);
}

static void rendezvous_let_in_run(struct work *work, uint64_t now_ns)
{
	struct rendezvous *rdv =
		(struct rendezvous *)((char *)work - offsetof(struct rendezvous, let_in_work));

	(void)now_ns;
	kernel_door_let_in(&rdv->v4);
	kernel_door_let_in(&rdv->v6);
}

void rendezvous_let_in(struct rendezvous *rdv)
{
	atomic_store(&rdv->held, false);
	driver_post(keeper_driver(), &rdv->let_in_work);
}

static void rendezvous_close_run(struct work *work, uint64_t now_ns)
{
	struct rendezvous *rdv =
		(struct rendezvous *)((char *)work - offsetof(struct rendezvous, close_work));

	(void)now_ns;
	kernel_door_close(&rdv->v4);
	kernel_door_close(&rdv->v6);
	guests_turn_away(&rdv->kernel_guests);
}

static int rendezvous_open_kernel(struct rendezvous *rdv)
{
	const struct device *device = plugin_device(rdv->dev);
	const struct harp_addr *addr = &device->addr_v4;
	char text[HARP_ADDR_TEXT_MAX];
	int rc = 0;

	if (device->has_v4)
		rc = kernel_door_listen(&rdv->v4, addr, 0, &rdv->kernel_guests);
	if (!rc && device->has_v6) {
		addr = &device->addr_v6;
		rc = kernel_door_listen(&rdv->v6, addr, device->scope_id, &rdv->kernel_guests);
	}
	if (!rc)
		rc = kernel_door_open(&rdv->v4);
	if (!rc)
		rc = kernel_door_open(&rdv->v6);
	if (rc)
		WARN("%s: cannot listen on %s: %s%s", device->ifname, harp_addr_format(addr, text),
		     lane_error_text(rc),
		     lane_error_remedy(rc) ? lane_error_remedy(rc)
					   : "; is the address still the interface's?");
	return rc;
}

int rendezvous_open(struct rendezvous **out, int dev)
{
	struct rendezvous *rdv = calloc(1, sizeof(*rdv));
	int rc = 0;

	*out = NULL;
	if (!rdv) {
		WARN("%s: cannot listen: out of memory", plugin_device(dev)->ifname);
		return -ENOMEM;
	}
	pthread_mutex_init(&rdv->lock, NULL);
	rdv->dev = dev;
	rdv->v4.fd = rdv->v6.fd = -1;
	rdv->v4.held = rdv->v6.held = &rdv->held;
	rdv->let_in_work.run = rendezvous_let_in_run;
	rdv->close_work.run = rendezvous_close_run;
	guests_init(&rdv->kernel_guests, rdv, NULL);
	/* The addresses of a NIC in another namespace are not ours to bind. */
	if (!plugin_path_is_harp(plugin_config()->path) && !plugin_device(dev)->netns)
		rc = rendezvous_open_kernel(rdv);
	if (rc) {
		rendezvous_close(rdv);
		return rc;
	}
	*out = rdv;
	return 0;
}

int rendezvous_open_harp(struct rendezvous *rdv, struct engine_set *engines)
{
	int rc = 0;

	for (unsigned i = rdv->door_count; !rc && i < engine_set_count(engines); i++) {
		rc = harp_door_open(&rdv->doors[i], rdv, engine_set_at(engines, i));
		rdv->door_count += !rc;
	}
	if (rc)
		WARN("%s: HARP cannot listen: %s; are its ports (61000-65535) in use?",
		     plugin_device(rdv->dev)->ifname, lane_error_text(rc));
	if (rc)
		return rc;
	pthread_mutex_lock(&rdv->lock);
	rdv->engines = engines;
	pthread_mutex_unlock(&rdv->lock);
	return 0;
}

void rendezvous_close(struct rendezvous *rdv)
{
	uint64_t turned_away = 0;

	for (unsigned i = 0; i < rdv->door_count; i++)
		turned_away += harp_door_close(rdv->doors[i]);
	driver_call(keeper_driver(), &rdv->close_work);
	turned_away += rdv->kernel_guests.turned_away;
	if (turned_away)
		INFO("%s: %llu strangers were turned away", plugin_device(rdv->dev)->ifname,
		     (unsigned long long)turned_away);
	pthread_mutex_destroy(&rdv->lock);
	free(rdv);
}

/* ---- what peers are told ---------------------------------------------------------------------- */

/* Of the other doors as many as there is room for, the lowest queues first: on the first queue packets arrive
 * on most NICs. */
static void rendezvous_more_doors(const struct rendezvous *rdv, const struct harp_door *door,
				  struct handle *handle)
{
	unsigned count = 0;

	for (unsigned i = 0; i < rdv->door_count && count < HANDLE_DOORS_MAX; i++) {
		if (rdv->doors[i] == door)
			continue;
		handle->doors[count].port = rdv->doors[i]->port;
		handle->doors[count++].queue = rdv->doors[i]->placement.queue;
	}
}

void rendezvous_endpoints(const struct rendezvous *rdv, const struct listen_comm *listen,
			  struct handle *handle)
{
	const struct device *device = plugin_device(rdv->dev);

	handle->has_v4 = device->has_v4;
	handle->has_v6 = device->has_v6;
	handle->v4 = device->addr_v4;
	handle->v6 = device->addr_v6;
	handle->scope_id = device->scope_id;
	if (listen->door) {
		handle->harp_port = listen->door->port;
		handle->harp_placement = (uint8_t)listen->door->placement.kind;
		handle->harp_queues = listen->door->placement.queues;
		handle->harp_queue = listen->door->placement.queue;
		rendezvous_more_doors(rdv, listen->door, handle);
	}
	handle->kernel_port_v4 = rdv->v4.local.port;
	handle->kernel_port_v6 = rdv->v6.local.port;
}

static void rendezvous_entry(const struct rendezvous *rdv, uint8_t nic,
			     const struct harp_addr *addr, uint16_t kernel_port,
			     const struct harp_door *door, struct rails *rails)
{
	struct rail_entry *entry = &rails->entry[rails->count];

	if (rails->count == RAIL_ENTRIES_MAX || (!kernel_port && !door))
		return;
	*entry = (struct rail_entry){
		.addr = *addr,
		.nic = nic,
		.kernel_port = kernel_port,
		.speed_mbps = plugin_device(rdv->dev)->speed_mbps,
	};
	if (door) {
		entry->harp_port = door->port;
		entry->placement = (uint8_t)door->placement.kind;
		entry->queues = door->placement.queues;
		entry->queue = door->placement.queue;
	}
	rails->count++;
}

/* Where peers can come to by this device, on an instance that has little to do. */
static void rendezvous_entries(struct rendezvous *rdv, uint8_t nic, struct rails *rails)
{
	const struct device *device = plugin_device(rdv->dev);
	const struct harp_door *door = NULL;

	pthread_mutex_lock(&rdv->lock);
	if (rdv->engines)
		door = rdv->doors[engine_index(engine_set_choose(rdv->engines))];
	pthread_mutex_unlock(&rdv->lock);
	if (device->has_v4)
		rendezvous_entry(rdv, nic, &device->addr_v4, rdv->v4.local.port, door, rails);
	if (device->has_v6)
		rendezvous_entry(rdv, nic, &device->addr_v6, rdv->v6.local.port, door, rails);
}

size_t rendezvous_tell(struct rendezvous *rdv, uint8_t out[RAILS_BYTES_MAX])
{
	struct rendezvous *list[RAIL_PAIRS_MAX];
	struct rails rails = { 0 };
	unsigned count;

	pthread_mutex_lock(&rdv->lock);
	count = rdv->rail_count;
	memcpy(list, rdv->rails, sizeof(list));
	pthread_mutex_unlock(&rdv->lock);
	for (unsigned i = 0; i < count; i++)
		rendezvous_entries(list[i], (uint8_t)i, &rails);
	return rails_encode(&rails, out);
}

void rendezvous_set_rails(struct rendezvous *rdv, struct rendezvous *const *list, unsigned count)
{
	pthread_mutex_lock(&rdv->lock);
	rdv->rail_count = count;
	memcpy(rdv->rails, list, count * sizeof(list[0]));
	pthread_mutex_unlock(&rdv->lock);
}

/* ---- listen comms ----------------------------------------------------------------------------- */

void rendezvous_add(struct rendezvous *rdv, struct listen_comm *listen)
{
	pthread_mutex_lock(&rdv->lock);
	if (rdv->engines) {
		struct engine *engine = engine_set_choose(rdv->engines);

		listen->door = rdv->doors[engine_index(engine)];
		engine_load(engine, 1); /* a connection is to come */
	}
	listen->next = rdv->listens;
	rdv->listens = listen;
	pthread_mutex_unlock(&rdv->lock);
}

/* A list of comms that nobody will have. No baton held. */
static void rendezvous_drop(struct comm *comm)
{
	while (comm) {
		struct comm *next = comm->next;

		registry_remove(comm);
		comm_close(comm, true);
		comm = next;
	}
}

void rendezvous_remove(struct rendezvous *rdv, struct listen_comm *listen)
{
	struct listen_comm **at;
	struct comm *comm, *left;

	if (listen->door)
		engine_load(listen->door->engine, -1);
	pthread_mutex_lock(&rdv->lock);
	for (at = &rdv->listens; *at != listen; at = &(*at)->next)
		;
	*at = listen->next;
	comm = listen->waiting;
	left = listen->left;
	listen->waiting = listen->left = NULL;
	pthread_mutex_unlock(&rdv->lock);
	rendezvous_drop(comm);
	rendezvous_drop(left);
}

/* The error goes with no comm. */
static int rendezvous_pop(struct rendezvous *rdv, struct listen_comm *listen, struct comm **out)
{
	struct comm *comm, *left;
	int error = 0;

	pthread_mutex_lock(&rdv->lock);
	comm = listen->waiting;
	if (comm) {
		listen->waiting = comm->next;
		listen->count--;
	} else {
		error = listen->error;
		listen->error = 0;
	}
	left = listen->left;
	listen->left = NULL;
	for (const struct comm *each = left; each; each = each->next)
		listen->count--;
	pthread_mutex_unlock(&rdv->lock);
	rendezvous_drop(left);
	*out = comm;
	return error;
}

/* The listen comm's own, and one other: the handle named others, too. */
static void rendezvous_poll_doors(struct rendezvous *rdv, struct listen_comm *listen)
{
	const struct engine_set *engines;
	struct harp_door *other;

	pthread_mutex_lock(&rdv->lock);
	engines = rdv->engines;
	pthread_mutex_unlock(&rdv->lock);
	if (!engines)
		return;
	other = rdv->doors[listen->turn++ % rdv->door_count];
	if (listen->door)
		driver_poll(engine_driver(listen->door->engine));
	if (other != listen->door)
		driver_poll(engine_driver(other->engine));
}

int rendezvous_accept(struct rendezvous *rdv, struct listen_comm *listen, struct comm **out)
{
	int rc = rendezvous_pop(rdv, listen, out);

	if (rc || *out)
		return rc;
	driver_poll(keeper_driver());
	rendezvous_poll_doors(rdv, listen);
	return rendezvous_pop(rdv, listen, out);
}
