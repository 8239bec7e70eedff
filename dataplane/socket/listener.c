/* SPDX-License-Identifier: Apache-2.0 */
/* listener.c - the application's interface to listeners. */
#include "socket/socket.h"

#include <errno.h>
#include <string.h>

/* True if another listener on this port has the same address, or one of them is a wildcard. */
static bool listener_conflicts(const struct tcp *tcp, const struct harp_addr *addr, uint16_t port)
{
	for (uint32_t i = 0; i < tcp->max_listeners; i++) {
		const struct harp_listener *l = &tcp->listeners[i];

		if (l->tcp && l->local.port == port &&
		    (addr_is_any(addr) || addr_is_any(&l->local.addr) ||
		     addr_equal(&l->local.addr, addr)))
			return true;
	}
	return false;
}

int listener_open(struct tcp *tcp, const struct harp_endpoint *local,
		  const struct harp_tcp_options *opt, struct harp_listener **out)
{
	struct harp_endpoint endpoint = local ? *local : (struct harp_endpoint){ .port = 0 };
	struct harp_listener *l = NULL;
	struct harp_tcp_options options;
	int err = socket_options(tcp, opt, &options);

	if (err)
		return err;
	if (addr_is_any(&endpoint.addr))
		endpoint.addr = (struct harp_addr){ { 0 } };
	else if (!ip_is_own(tcp->ip, &endpoint.addr) ||
		 !ip_scope_valid(tcp->ip, &endpoint.addr, endpoint.scope_id))
		return -EADDRNOTAVAIL;
	for (uint32_t i = 0; i < tcp->max_listeners && !l; i++) {
		if (!tcp->listeners[i].tcp)
			l = &tcp->listeners[i];
	}
	if (!l)
		return -ENOSPC;
	if (endpoint.port != 0) {
		if (listener_conflicts(tcp, &endpoint.addr, endpoint.port))
			return -EADDRINUSE;
		err = port_get(&tcp->ports, endpoint.port);
	} else {
		err = port_choose(&tcp->ports, NULL, NULL, NULL);
		endpoint.port = (uint16_t)err;
	}
	if (err < 0)
		return err;
	*l = (struct harp_listener){ .tcp = tcp, .local = endpoint, .options = options };
	TAILQ_INIT(&l->embryonic);
	TAILQ_INIT(&l->accept_queue);
	*out = l;
	return 0;
}

int harp_tcp_accept(struct harp_listener *l, struct harp_conn **out)
{
	struct harp_conn *conn = TAILQ_FIRST(&l->accept_queue);

	if (!conn)
		return -EAGAIN;
	tcp_listener_forget(conn);
	/* Delivers earlier events, except CONNECTED, which is for connect(). */
	conn->events &= ~(uint32_t)HARP_EVENT_CONNECTED;
	tcp_conn_event(conn, HARP_EVENT_WRITABLE);
	*out = conn;
	return 0;
}

void harp_listener_endpoint(const struct harp_listener *l, struct harp_endpoint *local)
{
	*local = l->local;
}

void harp_listener_close(struct harp_listener *l)
{
	struct tcp *tcp;
	struct harp_conn *conn;

	if (!l)
		return;
	tcp = l->tcp;
	while ((conn = TAILQ_FIRST(&l->embryonic)) != NULL)
		tcp_conn_reset(conn, -ECONNABORTED);
	while ((conn = TAILQ_FIRST(&l->accept_queue)) != NULL)
		tcp_conn_reset(conn, -ECONNABORTED);
	port_put(&tcp->ports, l->local.port);
	l->tcp = NULL;
}
