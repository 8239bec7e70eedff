/* SPDX-License-Identifier: Apache-2.0 */
/* endpoint.h - harp's addresses as text with a scope: "fe80::1%eth0". */
#ifndef HARP_TOOLS_ENDPOINT_H
#define HARP_TOOLS_ENDPOINT_H

#include "harp.h"

/* Address and scope of out; -EINVAL, -ENODEV when the scope is no interface. */
int endpoint_parse(const char *text, struct harp_endpoint *out);

#endif
