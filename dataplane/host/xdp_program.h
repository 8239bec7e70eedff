/* SPDX-License-Identifier: Apache-2.0 */
/* xdp_program.h - the XDP program of an interface, by rtnetlink: needs neither libbpf nor
 * privileges. */
#ifndef HARP_HOST_XDP_PROGRAM_H
#define HARP_HOST_XDP_PROGRAM_H

#include <stdint.h>

/* *id: 0 where none is attached. 0, or -errno of rtnetlink (-ENODEV: no such interface). */
int xdp_program_read(uint32_t ifindex, uint32_t *id);

#endif
