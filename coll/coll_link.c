/* SPDX-License-Identifier: Apache-2.0 */
/*
 * coll_link.c - FIFO messages between two ranks, over comms of the plugin or shared memory.
 *
 * Theory of operation. A link has two halves, one for each direction. A half is a queue of messages
 * that start and complete in order. Over the plugin, a half has a comm, which is created on first
 * use: the sender connects to the listener of the peer's process, whose handle all ranks know from
 * harp_coll_open(). A process has one listener for each device, which all groups share. So a comm's
 * first message (struct link_hello) names group, rank and class, and the receiver assigns the comm
 * to that link. If the group is not open here yet, the comm waits for INBOUND_NS.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "coll_impl.h"

#define HELLO_MAGIC 0x4b4e4c48u /* "HLNK" */
#define BOUNCES_KEPT 64u
#define INBOUND_MAX 1024u
#define INBOUND_NS (120 * COLL_NSEC_PER_SEC)
#define LISTENERS 32

/* ---- bounce buffers -------------------------------------------------------------------------- */

static struct bounce *bounces;
static unsigned bounces_count;

struct bounce *bounce_get(void)
{
	struct bounce *bounce = bounces;

	if (!bounce)
		return aligned_alloc(64, sizeof(*bounce));
	bounces = bounce->next;
	bounces_count--;
	return bounce;
}

void bounce_put(struct bounce *bounce)
{
	if (bounces_count == BOUNCES_KEPT) {
		free(bounce);
		return;
	}
	bounce->next = bounces;
	bounces = bounce;
	bounces_count++;
}

/* ---- comms from other ranks ------------------------------------------------------------------ */

/* Accepted, but not assigned to a link yet. */
struct inbound {
	struct inbound *next;
	void *comm;
	void *request, *mhandle;
	bool has_hello;
	int64_t deadline_ns;
	struct link_hello hello;
};

static struct inbound *inbounds;
static unsigned inbounds_count;
static struct {
	void *comm;
	unsigned char handle[COLL_HANDLE_BYTES];
} listeners[LISTENERS];

int link_listener(int device, void *handle)
{
	device %= net_devices() < LISTENERS ? net_devices() : LISTENERS;
	if (!listeners[device].comm) {
		int rc = net_listen(device, listeners[device].handle, &listeners[device].comm);

		if (rc)
			return rc;
	}
	memcpy(handle, listeners[device].handle, COLL_HANDLE_BYTES);
	return 0;
}

static struct link *inbound_link(const struct link_hello *hello)
{
	struct harp_coll *group;

	LIST_FOREACH(group, &runtime.groups, link)
	{
		if (memcmp(group->id, hello->group, sizeof(group->id)) ||
		    hello->to != (uint32_t)group->rank)
			continue;
		if (group->state != GROUP_OPEN || hello->rank >= (uint32_t)group->world ||
		    hello->link_class >= LINK_CLASSES)
			return NULL;
		return link_get(group, (int)hello->rank, (enum link_class)hello->link_class);
	}
	return NULL;
}

static void link_uncount(struct link *link)
{
	if (link->is_counted)
		runtime.inbound_expected--;
	link->is_counted = false;
}

/* True: the inbound comm was assigned to its link, or closed. */
static bool inbound_progress(struct inbound *inbound, int64_t now_ns)
{
	struct link *link;
	size_t bytes;

	if (!inbound->has_hello && !inbound->request &&
	    net_irecv(inbound->comm, &inbound->hello, sizeof(inbound->hello), &inbound->mhandle,
		      &inbound->request))
		goto close;
	if (!inbound->has_hello && inbound->request) {
		bool done;

		if (net_test(inbound->comm, inbound->request, inbound->mhandle, &done, &bytes))
			goto close;
		if (done &&
		    (bytes != sizeof(inbound->hello) || inbound->hello.magic != HELLO_MAGIC ||
		     inbound->hello.protocol != CALL_PROTOCOL))
			goto close;
		inbound->has_hello = done;
	}
	if (inbound->has_hello) {
		link = inbound_link(&inbound->hello);
		if (link && !link->in.comm && !link->shm_in) {
			link->in.comm = inbound->comm;
			link_uncount(link);
			group_set_active(link->group);
			return true;
		}
		if (link)
			goto close; /* the link is already connected */
	}
	if (now_ns < inbound->deadline_ns)
		return false;
close:
	net_close_recv(inbound->comm);
	return true;
}

int link_accept_progress(int64_t now_ns)
{
	int moved = 0;

	for (int i = 0; i < LISTENERS; i++) {
		void *comm;

		if (!listeners[i].comm || inbounds_count == INBOUND_MAX)
			continue;
		/* An error is of one connection: the plugin has logged it, and the peer retries. */
		if (net_accept(listeners[i].comm, &comm) == 0 && comm) {
			struct inbound *inbound = calloc(1, sizeof(*inbound));

			if (!inbound) {
				net_close_recv(comm);
				continue;
			}
			inbound->comm = comm;
			inbound->deadline_ns = now_ns + INBOUND_NS;
			inbound->next = inbounds;
			inbounds = inbound;
			inbounds_count++;
			moved = 1;
		}
	}
	for (struct inbound **at = &inbounds; *at;) {
		struct inbound *inbound = *at;

		if (inbound_progress(inbound, now_ns)) {
			*at = inbound->next;
			free(inbound);
			inbounds_count--;
			moved = 1;
		} else {
			at = &inbound->next;
		}
	}
	return moved;
}

/* Called with the last group. */
void link_accept_forget(void)
{
	for (int i = 0; i < LISTENERS; i++) {
		if (listeners[i].comm)
			net_close_listen(listeners[i].comm);
		listeners[i].comm = NULL;
	}
	while (inbounds) {
		struct inbound *inbound = inbounds;

		inbounds = inbound->next;
		net_close_recv(inbound->comm);
		free(inbound);
	}
	inbounds_count = 0;
	while (bounces) {
		struct bounce *bounce = bounces;

		bounces = bounce->next;
		free(bounce);
	}
	bounces_count = 0;
}

/* ---- links ----------------------------------------------------------------------------------- */

struct link *link_get(struct harp_coll *group, int peer, enum link_class class)
{
	struct link **at = &group->links[(int)class * group->world + peer];
	struct link *link = *at;

	if (link)
		return link;
	link = calloc(1, sizeof(*link));
	if (!link)
		return NULL;
	link->group = group;
	link->peer = peer;
	link->class = class;
	if (shm_bind(link)) {
		free(link);
		return NULL;
	}
	*at = link;
	return link;
}

void link_wake(struct link *link)
{
	struct harp_coll *group = link->group;

	if (link->is_busy)
		return;
	link->is_busy = true;
	group->busy[group->busy_count++] = link;
	group_set_active(group);
}

uint64_t link_send(struct link *link, void *data, size_t bytes, struct bounce *owned)
{
	struct half *half = &link->out;
	struct harp_coll_stats *stats = &link->group->stats;

	half->xfers[half->posted % COLL_XFERS] =
		(struct xfer){ .data = data, .bytes = bytes, .owned = owned };
	if (link->shm_out) {
		stats->shm_sent_bytes += bytes;
		stats->shm_sent_messages++;
	} else {
		stats->net_sent_bytes += bytes;
		stats->net_sent_messages++;
		if (!half->comm && !link->is_connecting) {
			const struct harp_coll *group = link->group;

			link->is_connecting = true;
			memcpy(link->handle, group->peers[link->peer].handle, sizeof(link->handle));
			link->hello = (struct link_hello){ .magic = HELLO_MAGIC,
							   .protocol = CALL_PROTOCOL,
							   .rank = (uint32_t)group->rank,
							   .to = (uint32_t)link->peer,
							   .link_class = link->class };
			memcpy(link->hello.group, group->id, sizeof(link->hello.group));
		}
	}
	link_wake(link);
	return half->posted++;
}

void link_expect_inbound(struct link *link)
{
	if (link->shm_in || link->in.comm || link->is_counted)
		return;
	link->is_counted = true;
	runtime.inbound_expected++;
}

bool link_has_inbound(const struct link *link)
{
	return link->shm_in || link->in.comm;
}

uint64_t link_recv(struct link *link, void *data, size_t bytes)
{
	struct half *half = &link->in;

	half->xfers[half->posted % COLL_XFERS] = (struct xfer){ .data = data, .bytes = bytes };
	link_expect_inbound(link);
	link_wake(link);
	return half->posted++;
}

/* Creates the comm and posts its first message. 1: done; 0: in progress; -errno. */
static int link_connect(struct link *link)
{
	int rc;

	if (!link->out.comm) {
		rc = net_connect(link->group->device, link->handle, &link->out.comm);
		if (rc || !link->out.comm)
			return rc;
	}
	rc = net_isend(link->out.comm, &link->hello, sizeof(link->hello), &link->hello_mhandle,
		       &link->hello_request);
	if (rc || !link->hello_request)
		return rc;
	link->is_connecting = false;
	return 1;
}

static int link_send_progress(struct link *link)
{
	struct half *half = &link->out;
	size_t bytes;
	int moved = 0, rc;
	bool done;

	if (link->is_connecting) {
		rc = link_connect(link);
		if (rc <= 0)
			return rc;
		moved = 1;
	}
	if (link->hello_request) {
		rc = net_test(half->comm, link->hello_request, link->hello_mhandle, &done, &bytes);
		if (rc)
			return rc;
		if (done)
			link->hello_request = NULL;
	}
	while (half->started < half->posted) {
		struct xfer *xfer = &half->xfers[half->started % COLL_XFERS];

		rc = net_isend(half->comm, xfer->data, xfer->bytes, &xfer->mhandle, &xfer->request);
		if (rc)
			return rc;
		if (!xfer->request)
			break;
		half->started++;
		moved = 1;
	}
	while (half->done < half->started) {
		struct xfer *xfer = &half->xfers[half->done % COLL_XFERS];

		rc = net_test(half->comm, xfer->request, xfer->mhandle, &done, &bytes);
		if (rc)
			return rc;
		if (!done)
			break;
		if (xfer->owned)
			bounce_put(xfer->owned);
		half->done++;
		moved = 1;
	}
	return moved;
}

static int link_recv_progress(struct link *link)
{
	struct half *half = &link->in;
	int moved = 0, rc;

	if (!half->comm)
		return 0;
	while (half->started < half->posted) {
		struct xfer *xfer = &half->xfers[half->started % COLL_XFERS];

		rc = net_irecv(half->comm, xfer->data, xfer->bytes, &xfer->mhandle, &xfer->request);
		if (rc)
			return rc;
		if (!xfer->request)
			break;
		half->started++;
		moved = 1;
	}
	while (half->done < half->started) {
		struct xfer *xfer = &half->xfers[half->done % COLL_XFERS];
		bool done;

		rc = net_test(half->comm, xfer->request, xfer->mhandle, &done, &xfer->received);
		if (rc)
			return rc;
		if (!done)
			break;
		link->group->stats.net_received_bytes += xfer->received;
		link->group->stats.net_received_messages++;
		half->done++;
		moved = 1;
	}
	return moved;
}

int link_progress(struct link *link)
{
	int out, in;

	if (link->shm_out)
		return shm_progress(link);
	out = link->is_connecting || link->hello_request || link->out.done < link->out.posted
		      ? link_send_progress(link)
		      : 0;
	if (out < 0)
		return out;
	in = link->in.done < link->in.posted ? link_recv_progress(link) : 0;
	return in < 0 ? in : out | in;
}

/* A posted receive of the next message's header does not count if no operation waits for it. */
bool link_is_idle(const struct link *link)
{
	bool ignores_in = link->class == LINK_MESSAGE && !message_is_waiting(link->group);

	return link->out.done == link->out.posted &&
	       (ignores_in || link->in.done == link->in.posted) && !link->hello_request &&
	       !link->is_connecting;
}

void link_close(struct link *link)
{
	link_uncount(link);
	if (link->out.comm)
		net_close_send(link->out.comm);
	if (link->in.comm)
		net_close_recv(link->in.comm);
	link->out.comm = link->in.comm = NULL;
	for (; link->out.done < link->out.posted; link->out.done++) {
		struct xfer *xfer = &link->out.xfers[link->out.done % COLL_XFERS];

		if (xfer->owned)
			bounce_put(xfer->owned);
	}
	link->out.started = link->out.done;
	link->in.done = link->in.started = link->in.posted;
	link->is_connecting = false;
	link->hello_request = NULL;
	link->shm_out = link->shm_in = NULL;
}
