/* SPDX-License-Identifier: Apache-2.0 */
/* rendezvous.c - where peers come in: doors, and the listen comms that they ask for. */
#include "rendezvous.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "forkguard.h"
#include "guest.h"
#include "lane_harp.h"
#include "placement.h"

/*
 * Theory of operation
 *
 * A rendezvous has doors: a kernel socket per family and a listener on the stack of each engine.
 * Who comes in through a door is a *guest* until its preamble is through; then it becomes a comm on
 * the ready list of the listen comm that its HELLO named, and plugin_accept() takes it from there. A listen
 * comm has one of the HARP doors, on the engine that served the fewest, and its handle says that
 * door's port: so the comms of a process are spread over its engines.
 *
 * Guests behind the kernel doors belong to the rendezvous' own driver, those behind a HARP door to
 * its engine's. What all touch, the list of listen comms and their ready lists, is under `lock`,
 * which is held for a few instructions. plugin_accept() takes turns of the kernel doors' driver and of its
 * own HARP door's; in between the HARP guests are advanced by the stack's events.
 */

#define ACCEPTS_A_TURN 16u
#define BACKLOG 128

/* A listener on one engine's stack; all but rdv, engine and port under that engine's baton. */
struct harp_door {
	struct rendezvous *rdv;
	struct engine *engine;
	struct placement_end placement; /* of the engine; never changes */
	uint16_t port;
	struct harp_listener *listener;
	struct work work, open_work, close_work;
	int open_result;
	struct guests guests;
};

struct rendezvous {
	struct driver driver; /* of the kernel doors; first: aligned */
	int dev;
	int fd_v4, fd_v6; /* -1: none */
	uint16_t port_v4, port_v6;
	struct engine_set *engines; /* NULL: none */
	unsigned door_count;
	struct harp_door *doors[ENGINES_MAX]; /* as the engines are numbered */
	struct guests kernel_guests;          /* baton of driver */
	pthread_mutex_t lock;
	struct listen_comm *listens; /* under lock */
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

bool rendezvous_ready(struct rendezvous *rdv, uint64_t listen_id, struct comm *comm)
{
	struct listen_comm *listen;
	struct comm **tail;

	pthread_mutex_lock(&rdv->lock);
	listen = rendezvous_find(rdv, listen_id);
	if (listen) {
		comm->ctx = listen->ctx;
		for (tail = &listen->waiting; *tail; tail = &(*tail)->next)
			;
		comm->next = NULL;
		*tail = comm;
	}
	pthread_mutex_unlock(&rdv->lock);
	return listen != NULL;
}

/* ---- doors ------------------------------------------------------------------------------------ */

static void rendezvous_kernel_door(struct rendezvous *rdv, int door, uint64_t now_ns)
{
	for (unsigned i = 0; door >= 0 && i < ACCEPTS_A_TURN; i++) {
		int fd = forkguard_accept(door);
		struct lane *lane;

		if (fd < 0)
			return; /* EAGAIN; ECONNABORTED, EMFILE: the next turn tries again */
		if (!lane_kernel_adopt(&rdv->driver, fd, &lane))
			guests_come(&rdv->kernel_guests, lane, now_ns);
	}
}

static void rendezvous_turn(struct driver *driver, uint64_t now_ns)
{
	struct rendezvous *rdv = (struct rendezvous *)driver;

	driver_run_ready(driver, now_ns);
	rendezvous_kernel_door(rdv, rdv->fd_v4, now_ns);
	rendezvous_kernel_door(rdv, rdv->fd_v6, now_ns);
	guests_advance(&rdv->kernel_guests, now_ns);
}

static void door_run(struct work *work, uint64_t now_ns)
{
	struct harp_door *door =
		(struct harp_door *)((char *)work - offsetof(struct harp_door, work));
	struct lane *lane;

	for (unsigned i = 0; i < ACCEPTS_A_TURN; i++) {
		if (lane_harp_accept(door->engine, door->listener, &lane))
			break;
		guests_come(&door->guests, lane, now_ns);
	}
	guests_advance(&door->guests, now_ns);
}

static void door_open_run(struct work *work, uint64_t now_ns)
{
	struct harp_door *door =
		(struct harp_door *)((char *)work - offsetof(struct harp_door, open_work));
	struct harp_endpoint any;
	struct harp_tcp_options opt;

	(void)now_ns;
	memset(&any, 0, sizeof(any));
	lane_harp_tcp_options(&opt, 0);
	opt.backlog = BACKLOG;
	door->open_result =
		harp_tcp_listen(engine_stack(door->engine), &any, &opt, &door->listener);
	if (!door->open_result) {
		harp_listener_endpoint(door->listener, &any);
		door->port = any.port;
	}
}

static void door_close_run(struct work *work, uint64_t now_ns)
{
	struct harp_door *door =
		(struct harp_door *)((char *)work - offsetof(struct harp_door, close_work));

	(void)now_ns;
	guests_turn_away(&door->guests);
	harp_listener_close(door->listener);
}

static int door_open(struct rendezvous *rdv, struct engine *engine)
{
	struct harp_door *door = calloc(1, sizeof(*door));

	if (!door)
		return -ENOMEM;
	door->rdv = rdv;
	door->engine = engine;
	engine_placement(engine, &door->placement);
	door->guests.rdv = rdv;
	door->guests.placement = &door->placement;
	door->work.run = door_run;
	door->open_work.run = door_open_run;
	door->close_work.run = door_close_run;
	driver_call(engine_driver(engine), &door->open_work);
	if (door->open_result) {
		int rc = door->open_result;

		free(door);
		return rc;
	}
	rdv->doors[rdv->door_count++] = door;
	return 0;
}

/* Returns how many strangers came to it. */
static uint64_t door_close(struct harp_door *door)
{
	uint64_t turned_away;

	driver_call(engine_driver(door->engine), &door->close_work);
	turned_away = door->guests.turned_away;
	free(door);
	return turned_away;
}

/* A listening socket on the device's own address; its port, chosen by the kernel, to *port. */
static int rendezvous_listen(const struct harp_addr *addr, uint32_t scope_id, int *out,
			     uint16_t *port)
{
	struct sockaddr_storage sa;
	struct sockaddr_in *v4 = (struct sockaddr_in *)&sa;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&sa;
	socklen_t len;
	int fd, error;

	memset(&sa, 0, sizeof(sa));
	if (harp_addr_is_v4(addr)) {
		v4->sin_family = AF_INET;
		memcpy(&v4->sin_addr, addr->bytes + 12, 4);
		len = sizeof(*v4);
	} else {
		v6->sin6_family = AF_INET6;
		v6->sin6_scope_id = scope_id;
		memcpy(&v6->sin6_addr, addr->bytes, 16);
		len = sizeof(*v6);
	}
	fd = forkguard_socket(sa.ss_family);
	if (fd < 0)
		return fd;
	if (bind(fd, (struct sockaddr *)&sa, len) || listen(fd, BACKLOG) ||
	    getsockname(fd, (struct sockaddr *)&sa, &len)) {
		error = errno;
		forkguard_close(fd);
		return -error;
	}
	*port = ntohs(sa.ss_family == AF_INET ? v4->sin_port : v6->sin6_port);
	*out = fd;
	return 0;
}

static int rendezvous_open_kernel(struct rendezvous *rdv)
{
	const struct device *device = plugin_device(rdv->dev);
	const struct harp_addr *addr = &device->addr_v4;
	char text[HARP_ADDR_TEXT_MAX];
	int rc = 0;

	if (device->has_v4)
		rc = rendezvous_listen(addr, 0, &rdv->fd_v4, &rdv->port_v4);
	if (!rc && device->has_v6) {
		addr = &device->addr_v6;
		rc = rendezvous_listen(addr, device->scope_id, &rdv->fd_v6, &rdv->port_v6);
	}
	if (rc)
		WARN("%s: cannot listen on %s: %s; is the address still the interface's?",
		     device->ifname, harp_addr_format(addr, text), lane_error_text(rc));
	return rc;
}

int rendezvous_open(struct rendezvous **out, int dev, struct engine_set *engines)
{
	struct rendezvous *rdv = aligned_alloc(64, (sizeof(*rdv) + 63) & ~(size_t)63);
	int rc = 0;

	*out = NULL;
	if (!rdv)
		return -ENOMEM;
	memset(rdv, 0, sizeof(*rdv));
	driver_init(&rdv->driver, rendezvous_turn);
	pthread_mutex_init(&rdv->lock, NULL);
	rdv->dev = dev;
	rdv->fd_v4 = rdv->fd_v6 = -1;
	rdv->engines = engines;
	rdv->kernel_guests.rdv = rdv;
	/* The addresses of a NIC in another namespace are not ours to bind. */
	if (plugin_config()->path != PATH_XDP && !plugin_device(dev)->netns)
		rc = rendezvous_open_kernel(rdv);
	for (unsigned i = 0; !rc && engines && i < engine_set_count(engines); i++) {
		rc = door_open(rdv, engine_set_at(engines, i));
		if (rc)
			WARN("%s: HARP cannot listen: %s; are its ports (61000-65535) in use?",
			     plugin_device(dev)->ifname, lane_error_text(rc));
	}
	if (rc) {
		rendezvous_close(rdv);
		return rc;
	}
	*out = rdv;
	return 0;
}

void rendezvous_close(struct rendezvous *rdv)
{
	uint64_t turned_away;

	turned_away = rdv->kernel_guests.turned_away;
	for (unsigned i = 0; i < rdv->door_count; i++)
		turned_away += door_close(rdv->doors[i]);
	guests_turn_away(&rdv->kernel_guests);
	if (rdv->fd_v4 >= 0)
		forkguard_close(rdv->fd_v4);
	if (rdv->fd_v6 >= 0)
		forkguard_close(rdv->fd_v6);
	if (turned_away)
		INFO("%s: %llu strangers were turned away", plugin_device(rdv->dev)->ifname,
		     (unsigned long long)turned_away);
	pthread_mutex_destroy(&rdv->lock);
	free(rdv);
}

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
	handle->kernel_port_v4 = rdv->port_v4;
	handle->kernel_port_v6 = rdv->port_v6;
}

/* ---- listen comms ----------------------------------------------------------------------------- */

void rendezvous_add(struct rendezvous *rdv, struct listen_comm *listen)
{
	if (rdv->engines) {
		struct engine *engine = engine_set_choose(rdv->engines);

		listen->door = rdv->doors[engine_index(engine)];
		engine_load(engine, 1); /* a connection is to come */
	}
	pthread_mutex_lock(&rdv->lock);
	listen->next = rdv->listens;
	rdv->listens = listen;
	pthread_mutex_unlock(&rdv->lock);
}

void rendezvous_remove(struct rendezvous *rdv, struct listen_comm *listen)
{
	struct listen_comm **at;
	struct comm *comm;

	if (listen->door)
		engine_load(listen->door->engine, -1);
	pthread_mutex_lock(&rdv->lock);
	for (at = &rdv->listens; *at != listen; at = &(*at)->next)
		;
	*at = listen->next;
	comm = listen->waiting;
	listen->waiting = NULL;
	pthread_mutex_unlock(&rdv->lock);
	while (comm) {
		struct comm *next = comm->next;

		comm_close(comm, true);
		comm = next;
	}
}

static struct comm *rendezvous_pop(struct rendezvous *rdv, struct listen_comm *listen)
{
	struct comm *comm;

	pthread_mutex_lock(&rdv->lock);
	comm = listen->waiting;
	if (comm)
		listen->waiting = comm->next;
	pthread_mutex_unlock(&rdv->lock);
	return comm;
}

static void rendezvous_turn_door(struct harp_door *door)
{
	driver_post(engine_driver(door->engine), &door->work);
	driver_poll(engine_driver(door->engine));
}

struct comm *rendezvous_accept(struct rendezvous *rdv, struct listen_comm *listen)
{
	struct comm *comm = rendezvous_pop(rdv, listen);

	if (comm)
		return comm;
	driver_poll(&rdv->driver);
	if (listen->door) {
		/* The handle named others, too: one at a time. */
		struct harp_door *other = rdv->doors[listen->turn++ % rdv->door_count];

		rendezvous_turn_door(listen->door);
		if (other != listen->door)
			rendezvous_turn_door(other);
	}
	return rendezvous_pop(rdv, listen);
}
