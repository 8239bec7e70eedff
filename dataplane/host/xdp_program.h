/* SPDX-License-Identifier: Apache-2.0 */
/* xdp_program.h - reads the XDP program of an interface by rtnetlink, without libbpf or
 * privileges. */
#ifndef HARP_HOST_XDP_PROGRAM_H
#define HARP_HOST_XDP_PROGRAM_H

#include <stdint.h>

/* *id: 0 if none is attached. 0, or -errno of rtnetlink (-ENODEV: no such interface). */
int xdp_program_read(uint32_t ifindex, uint32_t *id);

#endif
