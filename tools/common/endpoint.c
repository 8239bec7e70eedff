/* SPDX-License-Identifier: Apache-2.0 */
/* endpoint.c - harp's addresses as text with a scope and as the kernel's sockaddr. */
#include "endpoint.h"

#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <string.h>

int endpoint_parse(const char *text, struct harp_endpoint *out)
{
	const char *scope = strchr(text, '%');
	size_t len = scope ? (size_t)(scope - text) : strlen(text);
	char address[HARP_ADDR_TEXT_MAX];

	if (len >= sizeof(address))
		return -EINVAL;
	memcpy(address, text, len);
	address[len] = '\0';
	if (harp_addr_parse(address, &out->addr))
		return -EINVAL;
	out->scope_id = scope ? if_nametoindex(scope + 1) : 0;
	return scope && !out->scope_id ? -ENODEV : 0;
}

socklen_t endpoint_to_sockaddr(const struct harp_endpoint *ep, struct sockaddr_storage *out)
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

void endpoint_from_sockaddr(const struct sockaddr_storage *in, struct harp_endpoint *out)
{
	const struct sockaddr_in *v4 = (const struct sockaddr_in *)in;
	const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)in;
	const uint8_t *b = (const uint8_t *)&v4->sin_addr;

	memset(out, 0, sizeof(*out));
	if (in->ss_family == AF_INET) {
		out->addr = harp_addr_v4(b[0], b[1], b[2], b[3]);
		out->port = ntohs(v4->sin_port);
	} else {
		memcpy(out->addr.bytes, &v6->sin6_addr, 16);
		out->port = ntohs(v6->sin6_port);
		out->scope_id = v6->sin6_scope_id;
	}
}
