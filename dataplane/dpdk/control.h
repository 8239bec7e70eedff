/* SPDX-License-Identifier: Apache-2.0 */
/* control.h - the sockets that memif's two ends shake hands on. */
#ifndef HARP_DPDK_CONTROL_H
#define HARP_DPDK_CONTROL_H

#include <stddef.h>

/* A line of the driver's log. When it says that a socket has been made, no call on that waits for ever from then on, and
 * a greeting finds someone. */
void control_heard(const char *line, size_t bytes);

#endif
