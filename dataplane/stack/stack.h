/* SPDX-License-Identifier: Apache-2.0 */
/* stack.h - the parts of a stack. Private to stack/. */
#ifndef HARP_STACK_STACK_H
#define HARP_STACK_STACK_H

#include "nic/capture.h"
#include "network/icmp.h"
#include "socket/socket.h"
#include "stack/page.h"
#include "transport/tcp_gro.h"

struct harp_stack {
	uint64_t now_ns;
	uint32_t timer_delays; /* consecutive polls that did not run timers */
	struct nicio io;
	struct wheel wheel;
	struct harp_stats stats;
	struct rng rng;
	struct frame_pool pool;
	struct eth eth;
	struct ip ip;
	struct icmp icmp;
	struct tcp tcp;
	struct tcp_gro gro;
	struct udp udp;
	struct harp_stack_options options;
	struct publish publish;
};

#endif
