/* SPDX-License-Identifier: Apache-2.0 */
/* tcp_icmp.c - ICMP errors (RFC 5927): accepted only if they quote outstanding data. */
#include "transport/tcp.h"

#include <errno.h>

void tcp_icmp_error(struct tcp *tcp, const struct flow_key *key, uint32_t quoted_seq, int kind,
		    uint32_t mtu_bytes)
{
	uint32_t index = flow_find(&tcp->flows, key);
	struct harp_conn *conn;

	if (index == FLOW_NONE)
		return;
	conn = &tcp->conns[index];
	if (seq_lt(quoted_seq, conn->snd.una_seq) || seq_geq(quoted_seq, conn->snd.nxt_seq))
		return;
	if (kind == -EMSGSIZE) {
		if (conn_synchronized(conn)) /* a SYN fits every path */
			tcp_mtu_icmp(conn, quoted_seq, mtu_bytes);
		return;
	}
	/* Hard errors count as soft once synchronized: section 5.2. */
	if (conn->state == HARP_TCP_SYN_SENT)
		tcp_conn_die(conn, kind);
}
