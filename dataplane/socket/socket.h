/* SPDX-License-Identifier: Apache-2.0 */
/* socket.h - functions of the socket layer on a stack's transport, called by stack/api.c. */
#ifndef HARP_SOCKET_SOCKET_H
#define HARP_SOCKET_SOCKET_H

#include "transport/tcp.h"
#include "transport/udp.h"

int conn_connect(struct tcp *tcp, const struct harp_endpoint *local,
		 const struct harp_endpoint *remote, const struct harp_tcp_options *opt,
		 struct harp_conn **out);
struct harp_conn *conn_next_event(struct tcp *tcp, uint32_t *events);
int listener_open(struct tcp *tcp, const struct harp_endpoint *local,
		  const struct harp_tcp_options *opt, struct harp_listener **out);
/* harp_stack_memory_evict() */
ssize_t external_evict(struct tcp *tcp, const void *base, size_t bytes);
int udp_open(struct udp *udp, const struct harp_endpoint *local, const struct harp_udp_options *opt,
	     struct harp_udp **out);

/* Copies the caller's options (NULL: defaults) to this library's struct and replaces zeros by
 * defaults. -EINVAL, -E2BIG. */
int socket_options(const struct tcp *tcp, const struct harp_tcp_options *in,
		   struct harp_tcp_options *out);
/* True for the wildcard address of either family. */
/* The error of send calls on a connection that is not open; 0 if it is. */
int socket_send_state(const struct harp_conn *conn);
/* Bytes that harp_tcp_options.unsent_bytes_max permits to queue, at most `bytes`. */
size_t socket_unsent_room(const struct harp_conn *conn, size_t bytes);
/* Call when the application gets -EAGAIN: schedules HARP_EVENT_WRITABLE. */
void socket_want_write(struct harp_conn *conn);

#endif
