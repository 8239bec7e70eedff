/* SPDX-License-Identifier: Apache-2.0 */
/* describe.h - a HARP connection and its instance, as JSON. */
#ifndef HARP_TOOLS_TCP_DESCRIBE_H
#define HARP_TOOLS_TCP_DESCRIBE_H

#include <stdio.h>

#include "harp_host.h"

/* One object of both; either may be NULL. */
void describe_harp(struct harp_instance *instance, const struct harp_conn *conn, FILE *out);

#endif
