/* SPDX-License-Identifier: Apache-2.0 */
/* door.c - where peers come in; see door.h. */
#include "connect/door.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/sockaddr.h"
#include "poll/engine.h"
#include "process/forkguard.h"
#include "lane/lane_harp.h"

#define ACCEPTS_A_TURN 16u
#define BACKLOG 128 /* of our stacks, which answer by cookies beyond it */
/* The kernel drops what is more, and who is dropped comes again after a second: strangers who come by thousands must not fill
 * it while the keeper waits for a processor. */
#define KERNEL_BACKLOG 1024
#define LOOK_NS 50000000ull        /* at the guests' deadlines */
#define REST_NS 100000000ull       /* of a door while descriptors are short */
#define REST_WARN_NS 5000000000ull /* said no more often */

/* ---- on our own stacks ------------------------------------------------------------------------ */

/* In each turn of the engine. */
static void harp_door_run(struct work *work, uint64_t now_ns)
{
	struct harp_door *door =
		(struct harp_door *)((char *)work - offsetof(struct harp_door, work));
	struct lane *lane;

	for (unsigned i = 0; i < ACCEPTS_A_TURN; i++) {
		if (lane_harp_accept(door->engine, door->listener, &lane))
			break;
		guests_come(&door->guests, lane, -1, now_ns);
	}
	if (door->guests.count && (now_ns >= door->look_ns || now_ns >= door->guests.next_ns)) {
		door->look_ns = now_ns + LOOK_NS;
		guests_look(&door->guests, now_ns);
	}
	engine_door_due(door->engine, door->guests.count ? door->guests.next_ns : UINT64_MAX);
}

static void harp_door_open_run(struct work *work, uint64_t now_ns)
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
	if (door->open_result)
		return;
	harp_listener_endpoint(door->listener, &any);
	door->port = any.port;
	engine_set_door(door->engine, &door->work);
}

static void harp_door_close_run(struct work *work, uint64_t now_ns)
{
	struct harp_door *door =
		(struct harp_door *)((char *)work - offsetof(struct harp_door, close_work));

	(void)now_ns;
	engine_set_door(door->engine, NULL);
	guests_turn_away(&door->guests);
	harp_listener_close(door->listener);
}

int harp_door_open(struct harp_door **out, struct rendezvous *rdv, struct engine *engine)
{
	struct harp_door *door = calloc(1, sizeof(*door));
	int rc;

	*out = NULL;
	if (!door)
		return -ENOMEM;
	door->engine = engine;
	engine_placement(engine, &door->placement);
	guests_init(&door->guests, rdv, &door->placement);
	door->work.run = harp_door_run;
	door->open_work.run = harp_door_open_run;
	door->close_work.run = harp_door_close_run;
	driver_call(engine_driver(engine), &door->open_work);
	rc = door->open_result;
	if (rc)
		free(door);
	else
		*out = door;
	return rc;
}

uint64_t harp_door_close(struct harp_door *door)
{
	uint64_t turned_away;

	driver_call(engine_driver(door->engine), &door->close_work);
	turned_away = door->guests.turned_away;
	free(door);
	return turned_away;
}

/* ---- the kernel's ----------------------------------------------------------------------------- */

/* No descriptor, or no memory for one: level-triggered epoll would only turn round and round. */
static void kernel_door_rest(struct kernel_door *door, int error, uint64_t now_ns)
{
	static uint64_t warned_ns; /* under the keeper's baton */

	keeper_rewatch(&door->source, 0);
	keeper_timer_set(&door->rest, now_ns + REST_NS);
	if (warned_ns && now_ns < warned_ns + REST_WARN_NS)
		return;
	warned_ns = now_ns;
	WARN("cannot let peers in: %s%s; they wait until that has passed", lane_error_text(error),
	     lane_error_remedy(error) ? lane_error_remedy(error) : "");
}

static void kernel_door_rested(struct keeper_timer *timer, uint64_t now_ns)
{
	struct kernel_door *door =
		(struct kernel_door *)((char *)timer - offsetof(struct kernel_door, rest));

	(void)now_ns;
	keeper_rewatch(&door->source, EPOLLIN);
}

static bool is_shortage(int error)
{
	return error == -EMFILE || error == -ENFILE || error == -ENOBUFS || error == -ENOMEM;
}

static void kernel_door_ready(struct keeper_source *source, uint64_t now_ns)
{
	struct kernel_door *door =
		(struct kernel_door *)((char *)source - offsetof(struct kernel_door, source));

	if (atomic_load(door->held)) {
		keeper_rewatch(&door->source, 0);
		return;
	}
	for (unsigned i = 0; i < ACCEPTS_A_TURN; i++) {
		struct sockaddr_storage peer;
		int fd = forkguard_accept(door->fd, &peer);
		struct harp_endpoint remote;
		struct lane *lane;

		if (is_shortage(fd))
			kernel_door_rest(door, fd, now_ns);
		if (fd < 0)
			return; /* EAGAIN; ECONNABORTED and such: the next turn tries again */
		sockaddr_to_endpoint(&peer, &remote);
		if (!lane_kernel_adopt(keeper_driver(), fd, &door->local, &remote, &lane))
			guests_come(door->guests, lane, fd, now_ns);
	}
}

int kernel_door_listen(struct kernel_door *door, const struct harp_addr *addr, uint32_t scope_id,
		       struct guests *guests)
{
	struct sockaddr_storage sa;
	socklen_t len;
	int fd, error;

	door->local = (struct harp_endpoint){ .addr = *addr, .scope_id = scope_id };
	len = sockaddr_from_endpoint(&sa, &door->local);
	fd = forkguard_socket(sa.ss_family);
	if (fd < 0)
		return fd;
	lane_kernel_options(fd);
	if (bind(fd, (struct sockaddr *)&sa, len) || listen(fd, KERNEL_BACKLOG) ||
	    getsockname(fd, (struct sockaddr *)&sa, &len)) {
		error = errno;
		forkguard_close(fd);
		return -error;
	}
	door->fd = fd;
	sockaddr_to_endpoint(&sa, &door->local);
	door->guests = guests;
	door->source.ready = kernel_door_ready;
	door->rest.run = kernel_door_rested;
	return 0;
}

int kernel_door_open(struct kernel_door *door)
{
	return door->fd < 0 ? 0 : keeper_watch(&door->source, door->fd, EPOLLIN);
}

void kernel_door_let_in(struct kernel_door *door)
{
	if (door->fd >= 0 && !door->rest.pprev)
		keeper_rewatch(&door->source, EPOLLIN);
}

void kernel_door_close(struct kernel_door *door)
{
	if (door->fd < 0)
		return;
	keeper_unwatch(&door->source);
	keeper_timer_set(&door->rest, UINT64_MAX);
	forkguard_close(door->fd);
	door->fd = -1;
}
