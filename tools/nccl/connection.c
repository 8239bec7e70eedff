/* SPDX-License-Identifier: Apache-2.0 */
/*
 * connection.c - the device's end of a connection to NCCL's proxy thread.
 *
 * Theory of operation. A connection is a ring of 8 slots. Steps count slots and never wrap. To
 * send, the device fills the slot of its step, stores the size and advances `tail`; the proxy sends
 * the slot and advances `head`. To receive, the proxy advances `tail` and the device `head`. If
 * connections share a buffer, the FIFO has the offset of each slot in the buffer, and `head` starts
 * at -8, so that the device cannot use a slot before the proxy assigns one.
 */
#include <string.h>

#include "device.h"

void channel_open(struct channel *channel, const void *comm, int id)
{
	*channel = (struct channel){
		.comm = comm,
		.id = id,
		.rank = field_int(comm, layout.comm_rank),
		.nranks = field_int(comm, layout.comm_nranks),
		.info = (char *)field_pointer(comm, layout.comm_channels) +
			(size_t)id * (size_t)layout.channel_bytes,
	};
}

static size_t connection_buffer_bytes(const struct channel *channel, enum protocol protocol)
{
	const int *bytes =
		(const int *)(const void *)field_at(channel->comm, layout.comm_buffer_bytes);

	return (size_t)bytes[protocol];
}

static void *connection_view(const struct connection *connection, struct field field)
{
	void *address = field_pointer(connection->info, field);

	return address ? memory_view(address) : NULL;
}

void connection_open(struct connection *connection, const struct channel *channel, int peer,
		     bool is_send, int index, enum protocol protocol, int round_steps)
{
	char *const *peers = memory_view(field_pointer(channel->info, layout.channel_peers));
	struct field direction = is_send ? layout.peer_send : layout.peer_recv;
	char *const *buffers;

	*connection = (struct connection){ .is_send = is_send, .protocol = protocol };
	connection->info =
		peers[peer] + direction.offset_bits / 8 + (size_t)index * (size_t)layout.conn_bytes;
	connection->head = connection_view(connection, layout.conn_head);
	connection->tail = connection_view(connection, layout.conn_tail);
	buffers = (char *const *)(const void *)field_at(connection->info, layout.conn_buffers);
	connection->buffer = buffers[protocol];
	if (field_exists(layout.conn_fifo)) {
		connection->fifo = connection_view(connection, layout.conn_fifo);
	} else {
		connection->sizes = connection_view(connection, layout.conn_sizes);
		connection->offsets = connection_view(connection, layout.conn_offsets);
	}
	if (field_exists(layout.conn_step_bytes))
		connection->step_bytes =
			(size_t)field_value(connection->info, layout.conn_step_bytes);
	else
		connection->step_bytes =
			connection_buffer_bytes(channel, PROTOCOL_SIMPLE) / CONNECTION_STEPS;
	connection->step_lines =
		connection_buffer_bytes(channel, PROTOCOL_LL) / CONNECTION_STEPS / 16;
	connection->step = field_value(connection->info, layout.conn_step);
	if (protocol == PROTOCOL_SIMPLE) {
		uint64_t round = (uint64_t)round_steps;

		connection->step = (connection->step + round - 1) / round * round;
		/* Return the slots that rounding skips. */
		if (!is_send)
			__atomic_store_n(connection->head, connection->step, __ATOMIC_RELEASE);
	}
	connection->limit =
		__atomic_load_n(is_send ? connection->head : connection->tail, __ATOMIC_ACQUIRE);
}

void connection_close(struct connection *connection)
{
	if (connection->info)
		field_set(connection->info, layout.conn_step, connection->step);
}

bool connection_is_ready(struct connection *connection, int steps)
{
	uint64_t *counter = connection->is_send ? connection->head : connection->tail;
	/* Unsigned: head starts at -8 if buffers are shared. */
	uint64_t slots = connection->is_send ? CONNECTION_STEPS : 0;
	uint64_t end = connection->step + (uint64_t)steps;

	if ((int64_t)(connection->limit + slots - end) >= 0)
		return true;
	connection->limit = __atomic_load_n(counter, __ATOMIC_ACQUIRE);
	return (int64_t)(connection->limit + slots - end) >= 0;
}

static const char *connection_fifo_entry(const struct connection *connection)
{
	return connection->fifo + connection->step % CONNECTION_STEPS * (size_t)layout.fifo_bytes;
}

char *connection_slot(const struct connection *connection)
{
	enum { MODE_NORMAL, MODE_OFFSET };
	size_t slot = connection->step % CONNECTION_STEPS;
	int offset;

	if (connection->fifo) {
		const char *entry = connection_fifo_entry(connection);
		int mode = field_int(entry, layout.fifo_mode);

		if (mode == MODE_OFFSET)
			return memory_view(connection->buffer +
					   field_int(entry, layout.fifo_offset));
		if (mode != MODE_NORMAL)
			emulation_fail("a connection's FIFO is in mode %d, which is not emulated",
				       mode);
	} else if (connection->offsets) {
		offset = __atomic_load_n(&connection->offsets[slot], __ATOMIC_ACQUIRE);
		return memory_view(connection->buffer + offset);
	}
	return memory_view(connection->buffer + slot * connection->step_bytes);
}

void connection_set_size(const struct connection *connection, size_t bytes)
{
	if (connection->fifo)
		field_set(connection_fifo_entry(connection), layout.fifo_size, bytes);
	else if (connection->sizes)
		__atomic_store_n(&connection->sizes[connection->step % CONNECTION_STEPS],
				 (int)bytes, __ATOMIC_RELEASE);
}

/* The release store makes the slots' contents visible to the proxy before the new counter. */
void connection_advance(struct connection *connection, int steps)
{
	uint64_t *counter = connection->is_send ? connection->tail : connection->head;

	connection->step += (uint64_t)steps;
	/* LL: the proxy of a sender reads sizes and flags, not the tail. */
	if (connection->is_send && connection->protocol == PROTOCOL_LL)
		return;
	__atomic_store_n(counter, connection->step, __ATOMIC_RELEASE);
}
