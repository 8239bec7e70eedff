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
/* See harp_stack_memory_evict(). */
ssize_t external_evict(struct tcp *tcp, const void *base, size_t bytes);
int udp_open(struct udp *udp, const struct harp_endpoint *local, const struct harp_udp_options *opt,
	     struct harp_udp **out);

/* Copies and checks the caller's options (NULL: defaults) and replaces zeros by defaults. 0 or
 * -EINVAL. */
int socket_options(const struct tcp *tcp, const struct harp_tcp_options *in,
		   struct harp_tcp_options *out);
/* Result of a send call: 0 if the connection can send, else its error, -EPIPE or -ENOTCONN. */
int socket_send_state(const struct harp_conn *conn);
/* How many bytes harp_tcp_options.unsent_bytes_max permits for a send call of `bytes`. */
size_t socket_unsent_room(const struct harp_conn *conn, size_t bytes);
/* Call if a send call does not accept all bytes: schedules HARP_EVENT_WRITABLE. */
void socket_want_write(struct harp_conn *conn);

#endif
