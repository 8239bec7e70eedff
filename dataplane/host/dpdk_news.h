/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dpdk_news.h - what the stacks of a DPDK port tell each other: of neighbours, and of ICMP errors.
 *
 * ARP and neighbour discovery come to one queue, and all its stacks need what they say; an ICMP error comes to any,
 * and the stack needs it that sent what it quotes. Each tells the others what it hears, and each believes it or not
 * as if it had heard it itself. A reader is one instance, and so is a teller.
 */
#ifndef HARP_HOST_DPDK_NEWS_H
#define HARP_HOST_DPDK_NEWS_H

#include <stdatomic.h>

#include "harp.h"

struct dpdk_news;

struct dpdk_reader {
	struct dpdk_reader *next;
	int fd;        /* eventfd: readable when there is something to take; -1: none */
	uint64_t seen; /* words taken or missed so far */
	atomic_bool pending;
};
struct dpdk_word {
	const struct dpdk_reader *from;
	bool is_error;
	union {
		struct { /* the arguments of harp_stack_neighbour_heard() */
			struct harp_addr addr;
			uint32_t news;
			uint8_t mac[6];
			bool has_mac;
		};
		struct harp_icmp_error error; /* that of harp_stack_error_heard() */
	};
};

/* NULL: out of memory. */
struct dpdk_news *dpdk_news_create(void);
void dpdk_news_destroy(struct dpdk_news *news);
void dpdk_news_join(struct dpdk_news *news, struct dpdk_reader *reader);
void dpdk_news_leave(struct dpdk_news *news, struct dpdk_reader *reader);
void dpdk_news_tell(struct dpdk_news *news, const struct dpdk_word *word);
/* The next word of another's; false: none. What was not taken in time is lost: neighbours are asked again, and
 * what is too big a second time brings another error. */
bool dpdk_news_take(struct dpdk_news *news, struct dpdk_reader *reader, struct dpdk_word *out);

#endif
