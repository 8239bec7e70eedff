/* SPDX-License-Identifier: Apache-2.0 */
/* sockaddr.h - harp's addresses as the kernel's sockaddr. */
#ifndef HARP_BASE_SOCKADDR_H
#define HARP_BASE_SOCKADDR_H

#include <sys/socket.h>

#include "harp.h"

/* Returns the length for bind(), connect() and sendto(). */
socklen_t sockaddr_from_endpoint(struct sockaddr_storage *out, const struct harp_endpoint *ep);
/* All zero when it is of neither family. */
void sockaddr_to_endpoint(const struct sockaddr_storage *in, struct harp_endpoint *out);

#endif
