/* SPDX-License-Identifier: Apache-2.0 */
/* siphash.h - SipHash-2-4 (Aumasson, Bernstein 2012): keyed hash for ISNs, ports, flow table. */
#ifndef HARP_BASE_SIPHASH_H
#define HARP_BASE_SIPHASH_H

#include <stddef.h>
#include <stdint.h>

struct siphash_key {
	uint64_t k[2];
};
uint64_t siphash24(const struct siphash_key *key, const void *data, size_t len);

#endif
