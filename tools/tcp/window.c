/* SPDX-License-Identifier: Apache-2.0 */
/* window.c - the measured part of a run, and what it cost in processor time. */
#include "window.h"

#include <time.h>

#include "stream.h"

static uint64_t window_cpu_ns(void)
{
	struct timespec used;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
	return (uint64_t)used.tv_sec * 1000000000u + (uint64_t)used.tv_nsec;
}

void window_init(struct window *window, uint64_t skip_ns, uint64_t run_ns)
{
	uint64_t now_ns = stream_clock_ns();

	*window = (struct window){ .begin_ns = now_ns + skip_ns, .end_ns = now_ns + run_ns };
}

void window_look(struct window *window, uint64_t now_ns)
{
	if (!window->begun && now_ns >= window->begin_ns) {
		window->begun = true;
		window->cpu_begin_ns = window_cpu_ns();
	}
	if (!window->ended && now_ns >= window->end_ns) {
		window->ended = true;
		window->cpu_end_ns = window_cpu_ns();
	}
}

double window_cpu_share(const struct window *window)
{
	uint64_t used_ns = window->ended ? window->cpu_end_ns - window->cpu_begin_ns : 0;

	return (double)used_ns / (double)(window->end_ns - window->begin_ns);
}
