/* SPDX-License-Identifier: Apache-2.0 */
/* check.h - how the parts of harp_host_check() report findings. */
#ifndef HARP_HOST_CHECK_H
#define HARP_HOST_CHECK_H

#include "harp_host.h"
#include "nic/af_xdp_link.h"

enum severity { GOOD, SLOWER, REFUSED };

struct report {
	struct harp_check_item *items;
	unsigned max, count;
};

/* Adds a finding; text and remedy are one format, separated by '|'. */
void __attribute__((format(printf, 4, 5)))
report_add(struct report *report, const char *name, enum severity severity, const char *format,
	   ...);

/* check_address.c: addresses that peers may use. */
void check_addresses(struct report *report, const char *ifname, const struct af_xdp_link *link);

#endif
