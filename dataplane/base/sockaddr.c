/* SPDX-License-Identifier: Apache-2.0 */
/* sockaddr.c - see sockaddr.h. */
#include "base/sockaddr.h"

#include <netinet/in.h>
#include <string.h>

socklen_t sockaddr_from_endpoint(struct sockaddr_storage *out, const struct harp_endpoint *ep)
{
	struct sockaddr_in *v4 = (struct sockaddr_in *)out;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)out;

	memset(out, 0, sizeof(*out));
	if (harp_addr_is_v4(&ep->addr)) {
		v4->sin_family = AF_INET;
		v4->sin_port = htons(ep->port);
		memcpy(&v4->sin_addr, ep->addr.bytes + 12, 4);
		return sizeof(*v4);
	}
	v6->sin6_family = AF_INET6;
	v6->sin6_port = htons(ep->port);
	v6->sin6_scope_id = ep->scope_id;
	memcpy(&v6->sin6_addr, ep->addr.bytes, 16);
	return sizeof(*v6);
}

void sockaddr_to_endpoint(const struct sockaddr_storage *in, struct harp_endpoint *out)
{
	const struct sockaddr_in *v4 = (const struct sockaddr_in *)in;
	const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)in;
	const uint8_t *b = (const uint8_t *)&v4->sin_addr;

	memset(out, 0, sizeof(*out));
	if (in->ss_family == AF_INET) {
		out->addr = harp_addr_v4(b[0], b[1], b[2], b[3]);
		out->port = ntohs(v4->sin_port);
	} else if (in->ss_family == AF_INET6) {
		memcpy(out->addr.bytes, &v6->sin6_addr, 16);
		out->port = ntohs(v6->sin6_port);
		out->scope_id = v6->sin6_scope_id;
	}
}
