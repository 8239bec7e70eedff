/* SPDX-License-Identifier: Apache-2.0 */
/* sockaddr.h - conversion between harp_endpoint and the kernel's sockaddr. */
#ifndef HARP_BASE_SOCKADDR_H
#define HARP_BASE_SOCKADDR_H

#include <sys/socket.h>

#include "harp.h"

/* Returns the length for bind(), connect() and sendto(). */
socklen_t sockaddr_from_endpoint(struct sockaddr_storage *out, const struct harp_endpoint *ep);
/* All zero if the family is unknown. */
void sockaddr_to_endpoint(const struct sockaddr_storage *in, struct harp_endpoint *out);

#endif
