/* SPDX-License-Identifier: Apache-2.0 */
/* window.h - the measured part of a run, and what it cost in processor time. */
#ifndef HARP_TOOLS_TCP_WINDOW_H
#define HARP_TOOLS_TCP_WINDOW_H

#include <stdbool.h>
#include <stdint.h>

struct window {
	uint64_t begin_ns, end_ns;         /* what is counted */
	uint64_t cpu_begin_ns, cpu_end_ns; /* processor time of this process by then */
	bool begun, ended;
};

/* It begins skip_ns from now, and ends run_ns from now. */
void window_init(struct window *window, uint64_t skip_ns, uint64_t run_ns);
/* To be called in every turn. */
void window_look(struct window *window, uint64_t now_ns);
/* Processor time used within it, as a share of it: 1 is a whole core. */
double window_cpu_share(const struct window *window);

#endif
