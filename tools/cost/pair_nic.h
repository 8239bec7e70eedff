/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pair_nic.h - two cards joined by memory, as DPDK's memif joins two processes: tx() copies a packet into
 * a slot of a ring, rx() of the other side copies it out. Nothing is lost, delayed or checked: what is
 * measured over it is the stack. Each card has one thread; the two may be different ones.
 */
#ifndef HARP_TESTS_PAIR_NIC_H
#define HARP_TESTS_PAIR_NIC_H

#include <stdbool.h>

#include "harp_nic.h"

struct pair_options {
	uint32_t mtu_bytes;
	uint32_t frame_size;  /* a power of two */
	uint32_t frame_count; /* of each card */
	uint32_t slots;       /* packets each way, a power of two */
	bool csum_good;       /* received packets are said to have been checked */
};

struct pair;

/* -ENOMEM. */
int pair_create(struct pair **out, const struct pair_options *options);
/* side: 0 or 1. MAC 02:00:00:00:00:<side>. */
struct harp_nic *pair_nic(struct pair *pair, unsigned side);
/* Processor cycles that a card's functions have taken. */
uint64_t pair_cycles(const struct harp_nic *nic);
void pair_destroy(struct pair *pair);

static inline uint64_t pair_clock_cycles(void)
{
#ifdef __x86_64__
	return __builtin_ia32_rdtsc();
#else
	uint64_t count;

	__asm__ volatile("mrs %0, cntvct_el0" : "=r"(count));
	return count;
#endif
}

#endif
