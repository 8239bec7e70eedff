/* SPDX-License-Identifier: Apache-2.0 */
/* endpoint.h - harp's addresses as text with a scope ("fe80::1%eth0") and as the kernel's sockaddr. */
#ifndef HARP_TOOLS_ENDPOINT_H
#define HARP_TOOLS_ENDPOINT_H

#include <sys/socket.h>

#include "harp.h"

/* Address and scope of out; -EINVAL, -ENODEV when the scope is no interface. */
int endpoint_parse(const char *text, struct harp_endpoint *out);
/* Returns the length for bind() and connect(). */
socklen_t endpoint_to_sockaddr(const struct harp_endpoint *ep, struct sockaddr_storage *out);
void endpoint_from_sockaddr(const struct sockaddr_storage *in, struct harp_endpoint *out);

#endif
