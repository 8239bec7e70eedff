/* SPDX-License-Identifier: Apache-2.0 */
/*
 * coll_network.c - the functions of coll_net.c over a network in memory.
 *
 * Theory of operation. Rank r has device r, and this process has all of them. A channel carries
 * messages in one direction, in order, between two comms. A message arrives after its transmission
 * time on the sender's NIC and the NIC's delay. A send completes when the receiver's host has the
 * message, a receive when the message is in the posted memory. Until one of them completes, the
 * message is read from the sender's memory, so that its early reuse corrupts the message. As the
 * plugin's contract allows, a call may refuse a message for now. sim_run simulates TCP's loss and
 * reordering; here messages are only late.
 */
#include "coll_sim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "coll_impl.h"

#define REQUESTS 8u       /* fewer than COLL_XFERS */
#define PLANT_BYTES 4096u /* longer than a header without data */
#define NSEC_PER_SEC UINT64_C(1000000000)

enum { SENDER, RECEIVER };

struct request {
	unsigned char *data;
	uint64_t bytes;          /* of the memory; after completion, of the message */
	uint64_t arrives_ns;     /* send */
	struct message *message; /* send: the message in data */
	bool is_used, is_received;
};

struct message {
	STAILQ_ENTRY(message) link;
	struct request *send; /* NULL: the send is complete, and copy has the bytes */
	unsigned char *copy;
	uint64_t bytes, arrives_ns;
};

struct comm {
	struct channel *channel;
	bool is_send, is_closed;
	uint64_t closed_ns; /* when the peer sees it */
	int error;
	struct request requests[REQUESTS];
	uint64_t posted, received; /* requests */
};

struct channel {
	STAILQ_ENTRY(channel) link;
	unsigned ranks[2];
	struct listen *listen; /* until accepted */
	struct comm ends[2];
	uint64_t opened_ns; /* arrival of the connect request */
	uint64_t last_ns;   /* arrival of the newest message */
	STAILQ_HEAD(, message) messages;
};

struct listen {
	LIST_ENTRY(listen) link;
	uint32_t port;
};

struct handle {
	uint32_t rank, port;
	struct channel *channel; /* of repeated connect calls */
};
static_assert(sizeof(struct handle) <= COLL_HANDLE_BYTES, "the library keeps handles of this size");

static struct {
	const struct coll_scenario *scenario;
	STAILQ_HEAD(, channel) channels;
	LIST_HEAD(, listen) listens;
	uint32_t ports;
	uint64_t busy_ns[CLN_RANKS_MAX]; /* the NIC transmits until then */
	bool is_cut[CLN_RANKS_MAX];
	struct harp_coll_net facts;
} net;

uint64_t network_bytes;

void network_set_cut(unsigned rank, bool is_cut)
{
	net.is_cut[rank] = is_cut;
}

void network_open(const struct coll_scenario *scenario)
{
	memset(&net, 0, sizeof(net));
	net.scenario = scenario;
	STAILQ_INIT(&net.channels);
	network_bytes = 0;
}

/* The arrival time of bytes that the rank sends now. */
static uint64_t arrival_ns(unsigned rank, uint64_t bytes)
{
	const struct cln_nic *nic = &net.scenario->nics[rank];
	uint64_t at_ns = sim_clock.now_ns;

	if (nic->rate_bps) {
		at_ns = at_ns > net.busy_ns[rank] ? at_ns : net.busy_ns[rank];
		at_ns += bytes * 8 * NSEC_PER_SEC / nic->rate_bps;
		net.busy_ns[rank] = at_ns;
	}
	at_ns += nic->delay_ns + rng_below(&sim_clock.rng, (uint32_t)nic->jitter_ns + 1);
	if (rng_below(&sim_clock.rng, 1000000) < nic->late_ppm)
		at_ns += nic->late_ns;
	return at_ns;
}

static uint64_t arrival_in_order_ns(struct channel *channel, uint64_t bytes)
{
	uint64_t at_ns = arrival_ns(channel->ranks[SENDER], bytes);

	if (at_ns > channel->last_ns)
		channel->last_ns = at_ns;
	return channel->last_ns;
}

/* Has a message from that rank with that arrival time arrived? */
static bool has_arrived(unsigned from_rank, uint64_t arrives_ns)
{
	return !net.is_cut[from_rank] && sim_clock.now_ns >= arrives_ns;
}

/* Has the reply of the receiver arrived, too? */
static bool is_answered(const struct channel *channel, uint64_t arrives_ns)
{
	unsigned peer = channel->ranks[RECEIVER];

	return has_arrived(channel->ranks[SENDER], arrives_ns) &&
	       has_arrived(peer, arrives_ns + net.scenario->nics[peer].delay_ns);
}

/* ---- the plugin ------------------------------------------------------------------------------ */

int net_load(const char *plugin, char *error, size_t error_bytes)
{
	(void)plugin;
	(void)error;
	(void)error_bytes;
	return 0;
}

static void channel_free(struct channel *channel)
{
	struct message *message;

	while ((message = STAILQ_FIRST(&channel->messages)) != NULL) {
		STAILQ_REMOVE_HEAD(&channel->messages, link);
		free(message->copy);
		free(message);
	}
	free(channel);
}

void net_unload(void)
{
	struct channel *channel;

	while ((channel = STAILQ_FIRST(&net.channels)) != NULL) {
		STAILQ_REMOVE_HEAD(&net.channels, link);
		channel_free(channel);
	}
}

const struct harp_coll_net *net_info(void)
{
	return &net.facts;
}

int net_devices(void)
{
	return (int)net.scenario->world.ranks;
}

int net_listen(int device, void *handle, void **listen_comm)
{
	struct handle own = { .rank = (uint32_t)device, .port = ++net.ports };
	struct listen *listen = calloc(1, sizeof(*listen));

	if (!listen)
		abort();
	listen->port = own.port;
	LIST_INSERT_HEAD(&net.listens, listen, link);
	memset(handle, 0, COLL_HANDLE_BYTES);
	memcpy(handle, &own, sizeof(own));
	*listen_comm = listen;
	return 0;
}

static struct listen *listen_find(uint32_t port)
{
	struct listen *listen = LIST_FIRST(&net.listens);

	while (listen && listen->port != port)
		listen = LIST_NEXT(listen, link);
	return listen;
}

static struct channel *channel_new(unsigned from_rank, const struct handle *to)
{
	struct channel *channel = calloc(1, sizeof(*channel));

	if (!channel)
		abort();
	channel->ranks[SENDER] = from_rank;
	channel->ranks[RECEIVER] = to->rank;
	channel->ends[SENDER] = (struct comm){ .channel = channel, .is_send = true };
	channel->ends[RECEIVER].channel = channel;
	channel->opened_ns = arrival_ns(from_rank, 0);
	STAILQ_INIT(&channel->messages);
	channel->listen = listen_find(to->port);
	channel->ends[RECEIVER].is_closed = !channel->listen;
	STAILQ_INSERT_TAIL(&net.channels, channel, link);
	return channel;
}

int net_connect(int device, void *handle, void **comm)
{
	struct handle peer;

	memcpy(&peer, handle, sizeof(peer));
	*comm = NULL;
	if (!peer.channel) {
		peer.channel = channel_new((unsigned)device, &peer);
		memcpy(handle, &peer, sizeof(peer));
		return 0;
	}
	if (!is_answered(peer.channel, peer.channel->opened_ns))
		return 0;
	if (peer.channel->ends[RECEIVER].is_closed)
		return -ECONNRESET;
	*comm = &peer.channel->ends[SENDER];
	return 0;
}

int net_accept(void *listen_comm, void **comm)
{
	struct channel *channel;

	*comm = NULL;
	STAILQ_FOREACH(channel, &net.channels, link)
	{
		if (channel->listen == listen_comm &&
		    has_arrived(channel->ranks[SENDER], channel->opened_ns)) {
			channel->listen = NULL;
			*comm = &channel->ends[RECEIVER];
			return 0;
		}
	}
	return 0;
}

/* True when the peer has closed and this end has noticed. */
static bool comm_is_reset(const struct comm *comm)
{
	const struct channel *channel = comm->channel;
	unsigned peer = comm->is_send ? RECEIVER : SENDER;

	return channel->ends[peer].is_closed &&
	       has_arrived(channel->ranks[peer], channel->ends[peer].closed_ns);
}

static void comm_receive(struct comm *comm, struct message *message)
{
	struct request *request = &comm->requests[comm->received % REQUESTS];

	if (message->bytes > request->bytes) {
		comm->error = -EPROTO;
		return;
	}
	STAILQ_REMOVE_HEAD(&comm->channel->messages, link);
	memcpy(request->data, message->send ? message->send->data : message->copy, message->bytes);
	request->bytes = message->bytes;
	request->is_received = true;
	comm->received++;
	network_bytes += message->bytes;
	if (net.scenario->world.plant && message->bytes > PLANT_BYTES)
		request->data[message->bytes - 4] ^= 1;
	if (message->send)
		message->send->message = NULL;
	free(message->copy);
	free(message);
}

static void comm_poll(struct comm *comm)
{
	struct channel *channel = comm->channel;
	struct message *message;

	while (!comm->is_send && !comm->error && comm->received < comm->posted) {
		message = STAILQ_FIRST(&channel->messages);
		if (!message || !has_arrived(channel->ranks[SENDER], message->arrives_ns))
			break;
		comm_receive(comm, message);
	}
	if (!comm->error && (comm->is_send || STAILQ_EMPTY(&channel->messages)) &&
	    comm_is_reset(comm))
		comm->error = -ECONNRESET;
}

static void comm_send(struct comm *comm, struct request *request)
{
	struct channel *channel = comm->channel;
	struct message *message = calloc(1, sizeof(*message));

	if (!message)
		abort();
	request->message = message;
	request->arrives_ns = arrival_in_order_ns(channel, request->bytes);
	*message = (struct message){ .send = request,
				     .bytes = request->bytes,
				     .arrives_ns = request->arrives_ns };
	STAILQ_INSERT_TAIL(&channel->messages, message, link);
}

static int comm_post(struct comm *comm, void *data, size_t bytes, void **request)
{
	struct request *slot = &comm->requests[comm->posted % REQUESTS];

	*request = NULL;
	comm_poll(comm);
	if (comm->error)
		return comm->error;
	if (slot->is_used || rng_below(&sim_clock.rng, 1000000) < net.scenario->world.refuse_ppm)
		return 0;
	*slot = (struct request){ .data = data, .bytes = bytes, .is_used = true };
	comm->posted++;
	*request = slot;
	if (comm->is_send)
		comm_send(comm, slot);
	return 0;
}

int net_isend(void *comm, void *data, size_t bytes, void **mhandle, void **request)
{
	*mhandle = NULL;
	return comm_post(comm, data, bytes, request);
}

int net_irecv(void *comm, void *data, size_t bytes, void **mhandle, void **request)
{
	*mhandle = NULL;
	return comm_post(comm, data, bytes, request);
}

/* Copies the message, because the sender may reuse its memory now. */
static void request_copy(struct request *request)
{
	struct message *message = request->message;

	message->copy = malloc(message->bytes + 1);
	if (!message->copy)
		abort();
	memcpy(message->copy, request->data, message->bytes);
	message->send = NULL;
	request->message = NULL;
}

int net_test(void *comm, void *request, void *mhandle, bool *done, size_t *bytes)
{
	struct comm *at = comm;
	struct request *slot = request;

	(void)mhandle;
	*bytes = 0;
	comm_poll(at);
	*done = at->is_send ? is_answered(at->channel, slot->arrives_ns) : slot->is_received;
	if (!*done)
		return at->error;
	*bytes = slot->bytes;
	slot->is_used = false;
	if (slot->message)
		request_copy(slot);
	return 0;
}

/* Posted messages still arrive after the close. */
void net_close_send(void *comm)
{
	struct comm *at = comm;

	for (unsigned i = 0; i < REQUESTS; i++)
		if (at->requests[i].message)
			request_copy(&at->requests[i]);
	at->is_closed = true;
	at->closed_ns = arrival_in_order_ns(at->channel, 0);
}

void net_close_recv(void *comm)
{
	struct comm *at = comm;

	at->is_closed = true;
	at->closed_ns = arrival_ns(at->channel->ranks[RECEIVER], 0);
}

void net_close_listen(void *listen_comm)
{
	struct listen *listen = listen_comm;
	struct channel *channel;

	STAILQ_FOREACH(channel, &net.channels, link)
	{
		if (channel->listen != listen)
			continue;
		channel->listen = NULL;
		channel->ends[RECEIVER].is_closed = true;
		channel->ends[RECEIVER].closed_ns = sim_clock.now_ns;
	}
	LIST_REMOVE(listen, link);
	free(listen);
}
