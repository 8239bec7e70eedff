/* SPDX-License-Identifier: Apache-2.0 */
/* endpoint.c - harp's addresses as text with a scope. */
#include "endpoint.h"

#include <errno.h>
#include <net/if.h>
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
