/* SPDX-License-Identifier: Apache-2.0 */
/* listener.c - see listener.h. */
#include "connect/listener.h"
#include "base/util.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/sockaddr.h"
#include "poll/engine.h"
#include "process/forkguard.h"
#include "lane/lane_harp.h"
#include "process/log.h"

#define ACCEPTS_A_TURN 16u
#define BACKLOG 128 /* of our stacks, which use SYN cookies beyond it */
/* Beyond it the kernel drops SYNs, which are retransmitted after a second. Thousands of
 * unauthenticated peers must not fill the backlog while the control thread waits for a CPU. */
#define KERNEL_BACKLOG 1024
#define ACCEPT_PAUSE_NS 100000000ull /* pause of a listener without descriptors */
#define ACCEPT_WARN_NS 5000000000ull /* between warnings */

/* ---- on our own stacks ---------------------------------------------------------------------- */

/* Runs in each turn of the engine. */
static void stack_listener_run(struct work *work, uint64_t now_ns)
{
	struct stack_listener *listener = container_of(work, struct stack_listener, work);
	struct lane *lane;

	for (unsigned i = 0; i < ACCEPTS_A_TURN; i++) {
		if (lane_harp_accept(listener->engine, listener->listener, &lane))
			break;
		pending_set_add(&listener->pending_set, lane, -1, now_ns);
	}
	if (now_ns >= listener->pending_set.next_ns)
		pending_set_expire(&listener->pending_set, now_ns);
	listener->engine->listener_ns = listener->pending_set.next_ns;
}

static void stack_listener_open_run(void *arg)
{
	struct stack_listener *listener = arg;
	struct harp_endpoint any;
	struct harp_tcp_options opt;

	memset(&any, 0, sizeof(any));
	lane_harp_tcp_options(&opt, 0);
	opt.backlog = BACKLOG;
	listener->open_result =
		harp_tcp_listen(listener->engine->stack, &any, &opt, &listener->listener);
	if (listener->open_result)
		return;
	harp_listener_endpoint(listener->listener, &any);
	listener->port = any.port;
	listener->engine->listener_ns = UINT64_MAX;
	listener->engine->listener = &listener->work;
}

static void stack_listener_close_run(void *arg)
{
	struct stack_listener *listener = arg;

	listener->engine->listener = NULL;
	pending_set_close(&listener->pending_set);
	harp_listener_close(listener->listener);
}

int stack_listener_open(struct stack_listener **out, int dev, struct engine *engine)
{
	struct stack_listener *listener = calloc(1, sizeof(*listener));
	int rc;

	*out = NULL;
	if (!listener)
		return -ENOMEM;
	listener->engine = engine;
	engine_placement(engine, &listener->placement);
	pending_set_init(&listener->pending_set, dev, &listener->placement);
	listener->work.run = stack_listener_run;
	poller_call(&engine->poller, stack_listener_open_run, listener);
	rc = listener->open_result;
	if (rc)
		free(listener);
	else
		*out = listener;
	return rc;
}

void stack_listener_close(struct stack_listener *listener)
{
	poller_call(&listener->engine->poller, stack_listener_close_run, listener);
	free(listener);
}

/* ---- the kernel's --------------------------------------------------------------------------- */

/* Out of descriptors or memory: pauses, because level-triggered epoll would loop. */
static void kernel_listener_pause(struct kernel_listener *listener, int error, uint64_t now_ns)
{
	static uint64_t warned_ns; /* used by the control thread only */

	control_rewatch(&listener->source, 0);
	control_timer_set(&listener->pause_timer, now_ns + ACCEPT_PAUSE_NS);
	if (warned_ns && now_ns < warned_ns + ACCEPT_WARN_NS)
		return;
	warned_ns = now_ns;
	WARN("cannot accept connections: %s%s; peers wait meanwhile", lane_error_text(error),
	     lane_error_remedy(error, ""));
}

static void kernel_listener_resume(struct control_timer *timer, uint64_t now_ns)
{
	struct kernel_listener *listener = container_of(timer, struct kernel_listener, pause_timer);

	(void)now_ns;
	control_rewatch(&listener->source, EPOLLIN);
}

static bool is_shortage(int error)
{
	return error == -EMFILE || error == -ENFILE || error == -ENOBUFS || error == -ENOMEM;
}

static void kernel_listener_ready(struct control_source *source, uint64_t now_ns)
{
	struct kernel_listener *listener = container_of(source, struct kernel_listener, source);

	for (unsigned i = 0; i < ACCEPTS_A_TURN; i++) {
		struct sockaddr_storage peer;
		int fd = forkguard_accept(listener->fd, &peer);
		struct harp_endpoint remote;
		struct lane *lane;

		if (is_shortage(fd))
			kernel_listener_pause(listener, fd, now_ns);
		if (fd < 0)
			return; /* EAGAIN, or ECONNABORTED: the next turn tries again */
		sockaddr_to_endpoint(&peer, &remote);
		if (!lane_kernel_adopt(control_poller(), fd, &listener->local, &remote, &lane))
			pending_set_add(listener->pending_set, lane, fd, now_ns);
	}
}

static void kernel_listener_watch(void *arg)
{
	struct kernel_listener *listener = arg;

	listener->watch_result = control_watch(&listener->source, listener->fd, EPOLLIN);
}

int kernel_listener_listen(struct kernel_listener *listener, const struct harp_addr *addr,
			   uint32_t scope_id, struct pending_set *pending_set)
{
	struct sockaddr_storage sa;
	socklen_t len;
	int fd, error;

	listener->local = (struct harp_endpoint){ .addr = *addr, .scope_id = scope_id };
	len = sockaddr_from_endpoint(&sa, &listener->local);
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
	listener->fd = fd;
	sockaddr_to_endpoint(&sa, &listener->local);
	listener->pending_set = pending_set;
	listener->source.ready = kernel_listener_ready;
	listener->pause_timer.run = kernel_listener_resume;
	control_call(kernel_listener_watch, listener);
	return listener->watch_result;
}

void kernel_listener_close(struct kernel_listener *listener)
{
	if (listener->fd < 0)
		return;
	control_unwatch(&listener->source);
	control_timer_set(&listener->pause_timer, UINT64_MAX);
	forkguard_close(listener->fd);
	listener->fd = -1;
}
