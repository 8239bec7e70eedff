/* SPDX-License-Identifier: Apache-2.0 */
/* options.h - parsing of the tools' command lines. On bad usage the program exits with status 2. */
#ifndef HARP_TOOLS_OPTIONS_H
#define HARP_TOOLS_OPTIONS_H

#include <stdint.h>

#include "harp_host.h"

/* NULL-terminated, in the order of enum harp_xdp_mode and of harp_af_xdp_options.copy_mode. */
extern const char *const option_xdp_modes[], *const option_copy_modes[];
extern const char *const option_outputs[]; /* text, json */

/* Print the usage, for --help and for bad usage, and exit. */
__attribute__((noreturn)) void option_help(const char *usage);
__attribute__((noreturn)) void option_misused(const char *usage);
/* Parses an integer in [min, max]. */
uint64_t option_number(const char *tool, const char *name, const char *text, uint64_t min,
		       uint64_t max);
/* Reads DPDK's options from HARP_DPDK_HUGE_PAGES, HARP_DPDK_MEMORY_MIB and HARP_DPDK_ARGS. */
void option_dpdk(const char *tool, struct harp_instance_options *opt);
/* Returns the index of text in choices. */
uint32_t option_choice(const char *tool, const char *name, const char *text,
		       const char *const *choices);
/* Parses an address ("fe80::1%eth0"). Returns -EINVAL, or -ENODEV for an unknown scope. */
int option_endpoint(const char *text, struct harp_endpoint *out);

#endif
