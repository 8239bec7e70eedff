/* SPDX-License-Identifier: Apache-2.0 */
/*
 * service.c - NCCL's proxy service thread: opens and closes connections.
 *
 * It calls connect and accept of all channels in turn, without sleeping, until each has returned
 * its comm. None may block, because both ends of a connection may be in this thread. Each listen
 * comm accepts once and is closed. Then the thread registers the message buffer of each connection,
 * and a part of it again: NCCL also registers overlapping memory (the pool that all point-to-point
 * connections share).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "play.h"

#define CALL(play, name, expression)                                                               \
	({                                                                                         \
		mark_enter(&(play)->service_mark, name);                                           \
		int call_rc = (int)(expression);                                                   \
		mark_leave(&(play)->service_mark);                                                 \
		call_rc;                                                                           \
	})

/* Distributes channels over devices, as NCCL does. */
static int service_device(const struct play *play, int channel)
{
	return channel % play->options.devices;
}

static void service_listen(struct play *play)
{
	struct net *net = &play->net;

	for (int c = 0; c < play->options.channels; c++) {
		struct channel *ch = &play->channels[c];
		int dev = service_device(play, c);
		struct nccl_props_v12 properties;
		int rc;

		rc = CALL(play, "getProperties", net->table->get_properties(dev, &properties));
		if (rc) {
			play_fail_call(play, "getProperties", rc, c, -1);
			return;
		}
		rc = CALL(play, "listen",
			  net->table->listen(net->ctx, dev,
					     play->handles + (size_t)c * NCCL_HANDLE_BYTES,
					     &ch->listen_comm));
		if (rc) {
			play_fail_call(play, "listen", rc, c, -1);
			return;
		}
		if (!ch->listen_comm) {
			play_fail(play, PLAY_PLUGIN,
				  "listen returned success without a listen comm");
			return;
		}
		play_bump(&play->moved, 1);
	}
}

/* Advances a channel's set-up. Returns 1 if both directions are connected, 0 if not, or -1. */
static int service_advance(struct play *play, struct channel *ch)
{
	struct net *net = &play->net;
	int rc;

	if (!ch->send.comm) {
		rc = CALL(play, "connect",
			  net_connect(net, service_device(play, ch->send.channel), ch->handle,
				      &ch->send.comm));
		if (rc)
			return play_fail_call(play, "connect", rc, ch->send.channel, ch->send.peer);
		if (ch->send.comm)
			play_bump(&play->moved, 1);
	}
	if (!ch->recv.comm) {
		rc = CALL(play, "accept", net_accept(net, ch->listen_comm, &ch->recv.comm));
		if (rc)
			return play_fail_call(play, "accept", rc, ch->recv.channel, ch->recv.peer);
		if (ch->recv.comm) {
			void *listen_comm = ch->listen_comm;

			play_bump(&play->moved, 1);
			ch->listen_comm = NULL;
			rc = CALL(play, "closeListen", net->table->close_listen(listen_comm));
			if (rc)
				return play_fail_call(play, "closeListen", rc, ch->recv.channel,
						      ch->recv.peer);
		}
	}
	return ch->send.comm && ch->recv.comm;
}

static int service_register(struct play *play, struct conn *conn)
{
	const struct nccl_net_v12 *net = play->net.table;
	size_t bytes = PLAY_SLOTS * conn->slot_bytes;
	void *overlap = NULL;
	int rc;

	conn->buffer = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (conn->buffer == MAP_FAILED) {
		conn->buffer = NULL;
		return play_fail(play, PLAY_PEER, "no memory for %zu bytes of buffers", bytes);
	}
	rc = CALL(play, "regMr",
		  net->reg_mr(conn->comm, conn->buffer, bytes, NCCL_PTR_HOST, &conn->mhandle));
	if (!rc)
		rc = CALL(play, "regMr",
			  net->reg_mr(conn->comm, conn->buffer, bytes / 2, NCCL_PTR_HOST,
				      &overlap));
	if (rc)
		return play_fail_call(play, "regMr", rc, conn->channel, conn->peer);
	rc = CALL(play, "deregMr", net->dereg_mr(conn->comm, overlap));
	if (rc)
		return play_fail_call(play, "deregMr", rc, conn->channel, conn->peer);
	return 0;
}

static void service_describe_pending(struct play *play)
{
	for (int c = 0; c < play->options.channels; c++) {
		struct channel *ch = &play->channels[c];

		if (ch->send.comm && ch->recv.comm)
			continue;
		play_fail(play, PLAY_HANG,
			  "connection set-up: nothing moved for %.1f s: channel %d, %s rank %d is "
			  "pending",
			  play->options.timeout_s, c, ch->send.comm ? "accept from" : "connect to",
			  ch->send.comm ? ch->recv.peer : ch->send.peer);
		return;
	}
}

static void service_connect(struct play *play)
{
	uint64_t begin_ns = play_now_ns();
	unsigned idle = 0;
	int open = 0;

	while (open < play->options.channels) {
		open = 0;
		for (int c = 0; c < play->options.channels; c++) {
			struct channel *ch = &play->channels[c];
			int rc = ch->send.comm && ch->recv.comm ? 1 : service_advance(play, ch);

			if (rc < 0)
				return;
			open += rc;
		}
		if (atomic_load_explicit(&play->abort, memory_order_relaxed)) {
			service_describe_pending(play);
			return;
		}
		play_pause(play, &idle);
	}
	play->connect_ns = play_now_ns() - begin_ns;
	for (int c = 0; c < play->options.channels; c++) {
		if (service_register(play, &play->channels[c].send) ||
		    service_register(play, &play->channels[c].recv))
			return;
	}
}

/* An error of close is a fault of the plugin. NCCL would then leave the other connections open;
 * this function closes them. */
static void service_close_conn(struct play *play, struct conn *conn)
{
	const struct nccl_net_v12 *net = play->net.table;
	int rc;

	if (conn->comm && conn->mhandle) {
		rc = CALL(play, "deregMr", net->dereg_mr(conn->comm, conn->mhandle));
		if (rc)
			play_fail_call(play, "deregMr", rc, conn->channel, conn->peer);
	}
	if (conn->comm && conn->sends) {
		rc = CALL(play, "closeSend", net->close_send(conn->comm));
		if (rc)
			play_fail_call(play, "closeSend", rc, conn->channel, conn->peer);
	} else if (conn->comm) {
		rc = CALL(play, "closeRecv", net->close_recv(conn->comm));
		if (rc)
			play_fail_call(play, "closeRecv", rc, conn->channel, conn->peer);
	}
	conn->comm = NULL;
	conn->mhandle = NULL;
	/* Unmap at once: a plugin that still writes to the buffer gets SIGSEGV. */
	if (conn->buffer)
		munmap(conn->buffer, PLAY_SLOTS * conn->slot_bytes);
	conn->buffer = NULL;
	play_bump(&play->moved, 1);
}

static void service_close(struct play *play)
{
	for (int c = 0; c < play->options.channels; c++) {
		struct channel *ch = &play->channels[c];

		service_close_conn(play, &ch->send);
		service_close_conn(play, &ch->recv);
		if (ch->listen_comm) {
			int rc = CALL(play, "closeListen",
				      play->net.table->close_listen(ch->listen_comm));

			if (rc)
				play_fail_call(play, "closeListen", rc, c, -1);
			ch->listen_comm = NULL;
		}
	}
}

void *service_main(void *arg)
{
	struct play *play = arg;

	pthread_setname_np(pthread_self(), "play-service");
	pthread_mutex_lock(&play->lock);
	for (;;) {
		enum play_job job = play->job;

		if (job == JOB_NONE) {
			pthread_cond_wait(&play->service_cond, &play->lock);
			continue;
		}
		pthread_mutex_unlock(&play->lock);
		if (job == JOB_LISTEN)
			service_listen(play);
		else if (job == JOB_CONNECT)
			service_connect(play);
		else if (job == JOB_CLOSE)
			service_close(play);
		pthread_mutex_lock(&play->lock);
		play->job = JOB_NONE;
		pthread_cond_broadcast(&play->main_cond);
		if (job == JOB_EXIT)
			break;
	}
	pthread_mutex_unlock(&play->lock);
	return NULL;
}
