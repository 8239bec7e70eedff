/* SPDX-License-Identifier: Apache-2.0 */
/* options.c - parsing of the tools' command lines. */
#include "options.h"

#include <errno.h>
#include <inttypes.h>
#include <net/if.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const option_xdp_modes[] = { "auto", "generic", "native", "native-or-none", NULL };
const char *const option_copy_modes[] = { "auto", "copy", "zero-copy", NULL };
const char *const option_outputs[] = { "text", "json", NULL };

void option_help(const char *usage)
{
	fputs(usage, stdout);
	exit(0);
}

void option_misused(const char *usage)
{
	fputs(usage, stderr);
	exit(2);
}

uint64_t option_number(const char *tool, const char *name, const char *text, uint64_t min,
		       uint64_t max)
{
	char *end;
	unsigned long long value;

	errno = 0;
	value = strtoull(text, &end, 10);
	if (errno || end == text || *end || text[0] == '-' || value < min || value > max) {
		fprintf(stderr, "%s: %s %s: not a number in %" PRIu64 "..%" PRIu64 "\n", tool, name,
			text, min, max);
		exit(2);
	}
	return value;
}

void option_dpdk(const char *tool, struct harp_instance_options *opt)
{
	static const char *const huge_pages[] = { "auto", "never", "require", NULL };
	const char *pages = getenv("HARP_DPDK_HUGE_PAGES");
	const char *memory = getenv("HARP_DPDK_MEMORY_MIB");

	if (pages)
		opt->huge_pages = option_choice(tool, "HARP_DPDK_HUGE_PAGES", pages, huge_pages);
	if (memory)
		opt->dpdk_memory_mib =
			(uint32_t)option_number(tool, "HARP_DPDK_MEMORY_MIB", memory, 16, 1u << 20);
	opt->dpdk_args = getenv("HARP_DPDK_ARGS");
}

uint32_t option_choice(const char *tool, const char *name, const char *text,
		       const char *const *choices)
{
	for (uint32_t i = 0; choices[i]; i++)
		if (!strcmp(text, choices[i]))
			return i;
	fprintf(stderr, "%s: %s %s: unknown; use one of:", tool, name, text);
	for (uint32_t i = 0; choices[i]; i++)
		fprintf(stderr, " %s", choices[i]);
	fprintf(stderr, "\n");
	exit(2);
}

int option_endpoint(const char *text, struct harp_endpoint *out)
{
	const char *scope = strchr(text, '%');
	size_t len = scope ? (size_t)(scope - text) : strlen(text);
	char address[HARP_ADDR_TEXT_MAX];

	if (len >= sizeof(address))
		return -EINVAL;
	memcpy(address, text, len);
	address[len] = '\0';
	if (harp_addr_parse(address, &out->addr))
		return -EINVAL;
	out->scope_id = scope ? if_nametoindex(scope + 1) : 0;
	return scope && !out->scope_id ? -ENODEV : 0;
}
