/* SPDX-License-Identifier: Apache-2.0 */
/* comm_stream.h - between the simulated kernel's connections (comm_stream.c) and its epoll and threads (comm_kernel.c). */
#ifndef HARP_TESTS_COMM_STREAM_H
#define HARP_TESTS_COMM_STREAM_H

#include "comm_sim.h"

/* A socket's place in an epoll. */
struct stream_watch {
	int epoll_fd; /* -1: in none */
	uint32_t events;
	void *data;
	bool edge; /* beside what has come, which is seen by itself */
};

void csim_kernel_begin(struct csim *sim);
struct stream_watch *csim_stream_watch(int fd);
/* EPOLL* since the last time that there was an edge; 0: there has been none. */
uint32_t csim_stream_events(int fd);
/* What has come to the socket, or room for more, that neither its owner knows (readable, writable) nor the epoll has to tell;
 * NULL: nothing. */
const char *csim_stream_unreported(int fd, bool readable, bool writable);
void csim_stream_close(int fd);

#endif
