/* SPDX-License-Identifier: Apache-2.0 */
/* options.h - what the command lines of the tools have in common; bad usage ends the program (2). */
#ifndef HARP_TOOLS_OPTIONS_H
#define HARP_TOOLS_OPTIONS_H

#include <stdint.h>

#include "harp_host.h"

/* NULL-terminated, in the order of enum harp_xdp_mode and of harp_af_xdp_options.copy_mode. */
extern const char *const option_xdp_modes[], *const option_copy_modes[];
extern const char *const option_outputs[]; /* text, json */

/* --help, and what is no option of the tool's: the end of the program. */
__attribute__((noreturn)) void option_help(const char *usage);
__attribute__((noreturn)) void option_misused(const char *usage);
/* A whole number within [min, max]. */
uint64_t option_number(const char *tool, const char *name, const char *text, uint64_t min,
		       uint64_t max);
/* How DPDK's environment is to start, as HARP_DPDK_HUGE_PAGES, HARP_DPDK_MEMORY_MIB and HARP_DPDK_ARGS say. */
void option_dpdk(const char *tool, struct harp_instance_options *opt);
/* The place of text in words. */
uint32_t option_choice(const char *tool, const char *name, const char *text,
		       const char *const *words);
/* Address and scope of out, from "fe80::1%eth0"; -EINVAL, -ENODEV when the scope is no interface. */
int option_endpoint(const char *text, struct harp_endpoint *out);

#endif
