/* SPDX-License-Identifier: Apache-2.0 */
/* addr.h - comparison and classification of addresses. */
#ifndef HARP_BASE_ADDR_H
#define HARP_BASE_ADDR_H

#include <string.h>

#include "harp.h"

#define ADDR_V4_BITS 96u /* of the mapped form's prefix, ::ffff:0:0/96 */

static inline bool addr_equal(const struct harp_addr *a, const struct harp_addr *b)
{
	return memcmp(a, b, sizeof(*a)) == 0;
}
/* IPv6's unspecified address, which also stands for "none". */
static inline bool addr_is_zero(const struct harp_addr *addr)
{
	static const struct harp_addr zero;

	return addr_equal(addr, &zero);
}
/* The unspecified address of either family, which stands for all local addresses. */
static inline bool addr_is_any(const struct harp_addr *addr)
{
	static const struct harp_addr any_v4 = { .bytes = { [10] = 0xff, [11] = 0xff } };

	return addr_is_zero(addr) || addr_equal(addr, &any_v4);
}
/* True if the address can belong to a host and is not loopback. */
bool addr_is_unicast(const struct harp_addr *addr);
/* Number of equal leading bits, at most max_bits. */
unsigned addr_common_bits(const struct harp_addr *a, const struct harp_addr *b, unsigned max_bits);
/* The address with all but its first bits set to zero. */
struct harp_addr addr_masked(const struct harp_addr *addr, unsigned bits);

#endif
