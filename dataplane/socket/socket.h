/* SPDX-License-Identifier: Apache-2.0 */
/* socket.h - the part of harp.h's sockets that begins at a stack: stack/api.c calls it with the layer. */
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
struct harp_udp *udp_next_event(struct udp *udp, uint32_t *events);

/* The caller's options (NULL: defaults) in this library's size, each default in place of its 0. -EINVAL,
 * -E2BIG. */
int socket_options(const struct tcp *tcp, const struct harp_tcp_options *in,
		   struct harp_tcp_options *out);
/* No address in particular, of either family. */
bool socket_addr_is_any(const struct harp_addr *addr);
/* What a call on a connection that is not open returns; 0 when it is. */
int socket_send_state(const struct harp_conn *conn);
/* What may still be queued by harp_tcp_options.unsent_bytes_max, when so many bytes want to be. */
size_t socket_unsent_room(const struct harp_conn *conn, size_t bytes);
/* The application got -EAGAIN: it hears when there is room. */
void socket_want_write(struct harp_conn *conn);

#endif
