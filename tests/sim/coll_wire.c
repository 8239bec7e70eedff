/* SPDX-License-Identifier: Apache-2.0 */
/*
 * coll_wire.c - coll_net.c's functions over stacks on a simulated wire.
 *
 * Theory of operation. Rank r's stack is device r, so a process with all ranks has them all. A comm is a TCP
 * connection in one direction: each message is its length in eight bytes and its bytes. A send is done when
 * the peer has acknowledged its last byte, a receive when its last byte is in the posted memory. The plugin's
 * contract leaves room for more, and takes it: a call may say "not now".
 */
#include "coll_sim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "coll_impl.h"
#include "harp.h"
#include "harp_nic.h"

#define REQUESTS 8u /* fewer than COLL_XFERS */
#define PORT_FIRST 2000u
#define FRAME_BYTES 8u
#define PLANT_BYTES 4096u       /* no header alone is as long */
#define INITIAL_RTO_NS 20000000 /* a lost SYN must not look like an absent rank */
#define USER_TIMEOUT_NS (20ull * 1000000000)

struct request {
	struct comm *comm;
	unsigned char *data;
	uint64_t bytes; /* of the memory; of the message, once it is known */
	uint64_t frame;
	uint64_t moved; /* of the frame and the message */
	uint64_t end;   /* send: of the connection's stream */
	bool is_used, is_received;
};

struct comm {
	struct comm *next;
	struct harp_conn *conn;
	bool is_send;
	int error;
	uint64_t queued; /* bytes given to the connection */
	struct request requests[REQUESTS];
	uint64_t posted, moved; /* requests */
};

struct listen {
	struct listen *next;
	struct harp_listener *listener;
};

struct handle {
	uint32_t device, port;
	struct comm *comm; /* of connect calls */
};
static_assert(sizeof(struct handle) <= COLL_HANDLE_BYTES, "the library keeps it");

static struct {
	const struct coll_scenario *scenario;
	struct harp_wire *wire;
	struct harp_stack *stacks[CLN_RANKS_MAX];
	struct harp_nic *nics[CLN_RANKS_MAX];
	struct comm *comms;
	struct listen *listens;
	uint32_t ports;
	struct harp_coll_net facts;
} net;

uint64_t wire_bytes, wire_lost, wire_retransmits;

/* ---- wire and stacks --------------------------------------------------------------------------- */

static unsigned wire_ranks(void)
{
	return (unsigned)net.scenario->world.ranks;
}

static struct harp_addr wire_address(unsigned rank)
{
	return harp_addr_v4(10, 0, 0, (uint8_t)(rank + 1));
}

static struct harp_wire_impair wire_impair(unsigned rank)
{
	const struct cln_nic *nic = &net.scenario->nics[rank];

	return (struct harp_wire_impair){ .delay_ns = nic->delay_ns,
					  .jitter_ns = nic->jitter_ns,
					  .rate_bps = nic->rate_bps,
					  .queue_bytes = nic->queue_bytes,
					  .loss_ppm = (uint32_t)nic->loss_ppm,
					  .duplicate_ppm = (uint32_t)nic->duplicate_ppm,
					  .reorder_ppm = (uint32_t)nic->reorder_ppm,
					  .reorder_ns = nic->reorder_ns };
}

void wire_set_cut(unsigned rank, bool is_cut)
{
	struct harp_wire_impair impair = wire_impair(rank);

	impair.down = is_cut;
	harp_wire_set_impair(net.wire, rank, &impair);
}

static uint64_t wire_due_ns(unsigned rank)
{
	uint64_t stack_ns = harp_stack_next_deadline_ns(net.stacks[rank]);
	uint64_t nic_ns = net.nics[rank]->ops->next_ns(net.nics[rank]);

	return stack_ns < nic_ns ? stack_ns : nic_ns;
}

static uint64_t wire_next_ns(void)
{
	uint64_t next_ns = UINT64_MAX;

	for (unsigned i = 0; i < wire_ranks(); i++) {
		uint64_t due_ns = wire_due_ns(i);

		next_ns = due_ns < next_ns ? due_ns : next_ns;
	}
	return next_ns;
}

static void wire_poll(uint64_t now_ns)
{
	for (unsigned i = 0; i < wire_ranks(); i++) {
		uint32_t events;

		if (wire_due_ns(i) > now_ns)
			continue;
		harp_stack_poll(net.stacks[i], now_ns);
		while (harp_stack_next_event(net.stacks[i], &events))
			;
	}
}

/* Neighbor discovery repeats a lost request after a second. */
static void wire_set_neighbor(unsigned rank, unsigned peer)
{
	struct harp_addr address = wire_address(peer);
	uint8_t mac[6] = { 0x02, 0x48, 0x41, 0x52, 0x50, (uint8_t)peer };

	if (peer != rank)
		harp_stack_neighbor_set(net.stacks[rank], &address, mac);
}

bool wire_open(const struct coll_scenario *scenario)
{
	struct harp_wire_options options = { .size = sizeof(options),
					     .ports = (uint32_t)scenario->world.ranks,
					     .frame_count = 8192,
					     .packets_max = 65536,
					     .seed = scenario->world.seed + 1 };

	memset(&net, 0, sizeof(net));
	net.scenario = scenario;
	wire_bytes = wire_lost = wire_retransmits = 0;
	if (harp_wire_create(&net.wire, &options))
		return false;
	for (unsigned i = 0; i < wire_ranks(); i++) {
		struct harp_stack_options stack = { .size = sizeof(stack),
						    .max_conns = 128,
						    .seed = scenario->world.seed * 16 + i + 1 };
		struct harp_addr address = wire_address(i);

		wire_set_cut(i, false);
		net.nics[i] = harp_wire_port(net.wire, i);
		if (harp_stack_create(&net.stacks[i], net.nics[i], &stack) ||
		    harp_stack_address_add(net.stacks[i], &address, 24))
			return false;
		for (unsigned peer = 0; peer < wire_ranks(); peer++)
			wire_set_neighbor(i, peer);
	}
	sim_clock.wire_next_ns = wire_next_ns;
	sim_clock.wire_poll = wire_poll;
	return true;
}

void wire_close(void)
{
	for (unsigned i = 0; i < wire_ranks(); i++) {
		struct harp_wire_stats stats;
		uint64_t value = 0;

		harp_wire_stats(net.wire, i, &stats);
		wire_lost += stats.lost + stats.queue_dropped;
		harp_stack_stat(net.stacks[i], "tcp_retransmits", &value);
		wire_retransmits += value;
		harp_stack_destroy(net.stacks[i]);
	}
	harp_wire_destroy(net.wire);
}

/* ---- the plugin -------------------------------------------------------------------------------- */

int net_load(const char *plugin, char *error, size_t error_bytes)
{
	(void)plugin;
	(void)error;
	(void)error_bytes;
	return 0;
}

static void comm_free(struct comm *comm)
{
	struct comm **at;

	for (at = &net.comms; *at != comm; at = &(*at)->next)
		;
	*at = comm->next;
	free(comm);
}

/* Connect attempts that were given up are left. */
void net_unload(void)
{
	while (net.comms) {
		harp_conn_abort(net.comms->conn);
		comm_free(net.comms);
	}
}

const struct harp_coll_net *net_facts(void)
{
	return &net.facts;
}

int net_devices(void)
{
	return (int)wire_ranks();
}

static struct harp_tcp_options wire_tcp(void)
{
	return (struct harp_tcp_options){ .size = sizeof(struct harp_tcp_options),
					  .user_timeout_ns = USER_TIMEOUT_NS,
					  .initial_rto_ns = INITIAL_RTO_NS,
					  .rx_frames = 512,
					  .tx_frames = 512 };
}

int net_listen(int device, void *handle, void **listen_comm)
{
	struct harp_tcp_options tcp = wire_tcp();
	struct harp_endpoint at = { .port = (uint16_t)(PORT_FIRST + net.ports++) };
	struct handle mine = { .device = (uint32_t)device, .port = at.port };
	struct listen *listen = calloc(1, sizeof(*listen));

	if (!listen)
		return -ENOMEM;
	if (harp_tcp_listen(net.stacks[device], &at, &tcp, &listen->listener)) {
		free(listen);
		return -EIO;
	}
	memset(handle, 0, COLL_HANDLE_BYTES);
	memcpy(handle, &mine, sizeof(mine));
	*listen_comm = listen;
	return 0;
}

static struct comm *comm_new(bool is_send)
{
	struct comm *comm = calloc(1, sizeof(*comm));

	if (!comm)
		return NULL;
	comm->is_send = is_send;
	comm->next = net.comms;
	net.comms = comm;
	return comm;
}

int net_connect(int device, void *handle, void **comm)
{
	struct harp_tcp_options tcp = wire_tcp();
	struct harp_tcp_info info;
	struct handle theirs;
	struct harp_endpoint to;

	memcpy(&theirs, handle, sizeof(theirs));
	*comm = NULL;
	if (!theirs.comm) {
		theirs.comm = comm_new(true);
		if (!theirs.comm)
			return -ENOMEM;
		to = (struct harp_endpoint){ .addr = wire_address(theirs.device),
					     .port = (uint16_t)theirs.port };
		if (harp_tcp_connect(net.stacks[device], NULL, &to, &tcp, &theirs.comm->conn)) {
			comm_free(theirs.comm);
			return -EIO;
		}
		memcpy(handle, &theirs, sizeof(theirs));
		return 0;
	}
	if (harp_conn_error(theirs.comm->conn))
		return -ECONNRESET;
	harp_conn_info(theirs.comm->conn, &info, sizeof(info));
	if (info.state >= HARP_TCP_ESTABLISHED)
		*comm = theirs.comm;
	return 0;
}

int net_accept(void *listen_comm, void **comm)
{
	struct listen *listen = listen_comm;
	struct harp_conn *conn;
	struct comm *accepted;

	*comm = NULL;
	if (harp_tcp_accept(listen->listener, &conn))
		return 0;
	accepted = comm_new(false);
	if (!accepted) {
		harp_conn_abort(conn);
		return -ENOMEM;
	}
	accepted->conn = conn;
	*comm = accepted;
	return 0;
}

/* Bytes that the connection took, 0: none now. Sets the comm's error. */
static size_t comm_push(struct comm *comm, const void *data, size_t bytes)
{
	struct iovec iov = { (void *)(uintptr_t)data, bytes };
	ssize_t sent = harp_conn_send(comm->conn, &iov, 1);

	if (sent < 0 && sent != -EAGAIN)
		comm->error = -ECONNRESET;
	return sent > 0 ? (size_t)sent : 0;
}

static size_t comm_pull(struct comm *comm, void *data, size_t bytes)
{
	ssize_t got = harp_conn_recv(comm->conn, data, bytes);

	if (got == 0 || (got < 0 && got != -EAGAIN))
		comm->error = -ECONNRESET;
	return got > 0 ? (size_t)got : 0;
}

/* True: the whole message is in the connection. */
static bool request_send(struct comm *comm, struct request *request)
{
	while (request->moved < FRAME_BYTES + request->bytes) {
		const unsigned char *from = request->data + request->moved - FRAME_BYTES;
		size_t left = FRAME_BYTES + request->bytes - request->moved, bytes;

		if (request->moved < FRAME_BYTES) {
			from = (unsigned char *)&request->frame + request->moved;
			left = FRAME_BYTES - request->moved;
		}
		bytes = comm_push(comm, from, left);
		if (!bytes)
			return false;
		request->moved += bytes;
		comm->queued += bytes;
	}
	request->end = comm->queued;
	return true;
}

/* True: the whole message is in memory. */
static bool request_receive(struct comm *comm, struct request *request)
{
	size_t bytes;

	while (request->moved < FRAME_BYTES) {
		bytes = comm_pull(comm, (unsigned char *)&request->frame + request->moved,
				  FRAME_BYTES - request->moved);
		if (!bytes)
			return false;
		request->moved += bytes;
	}
	if (request->frame > request->bytes) {
		comm->error = -EPROTO;
		return false;
	}
	while (request->moved < FRAME_BYTES + request->frame) {
		bytes = comm_pull(comm, request->data + request->moved - FRAME_BYTES,
				  FRAME_BYTES + request->frame - request->moved);
		if (!bytes)
			return false;
		request->moved += bytes;
	}
	request->is_received = true;
	wire_bytes += request->frame;
	if (net.scenario->world.plant && request->frame > PLANT_BYTES)
		request->data[request->frame - 4] ^= 1;
	return true;
}

static bool request_move(struct comm *comm, struct request *request)
{
	return comm->is_send ? request_send(comm, request) : request_receive(comm, request);
}

static void comm_pump(struct comm *comm)
{
	while (!comm->error && comm->moved < comm->posted &&
	       request_move(comm, &comm->requests[comm->moved % REQUESTS]))
		comm->moved++;
}

static int comm_post(struct comm *comm, void *data, size_t bytes, void **request)
{
	struct request *slot = &comm->requests[comm->posted % REQUESTS];

	*request = NULL;
	if (comm->error)
		return comm->error;
	if (slot->is_used || rng_below(&sim_clock.rng, 1000000) < net.scenario->world.refuse_ppm)
		return 0;
	*slot = (struct request){
		.comm = comm, .data = data, .bytes = bytes, .frame = bytes, .is_used = true
	};
	comm->posted++;
	*request = slot;
	comm_pump(comm);
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

int net_test(void *comm, void *request, void *mhandle, bool *done, size_t *bytes)
{
	struct comm *at = comm;
	struct request *slot = request;

	(void)mhandle;
	*done = false;
	*bytes = 0;
	comm_pump(at);
	if (at->is_send)
		*done = slot->end && harp_conn_acked_bytes(at->conn) >= slot->end;
	else
		*done = slot->is_received;
	if (*done) {
		*bytes = at->is_send ? slot->bytes : slot->frame;
		slot->is_used = false;
		return 0;
	}
	return at->error ? at->error : harp_conn_error(at->conn) ? -ECONNRESET : 0;
}

void net_close_send(void *comm)
{
	struct comm *at = comm;

	harp_conn_close(at->conn);
	comm_free(at);
}

void net_close_recv(void *comm)
{
	net_close_send(comm);
}

void net_close_listen(void *listen_comm)
{
	struct listen *listen = listen_comm;

	harp_listener_close(listen->listener);
	free(listen);
}
