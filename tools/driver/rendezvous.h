/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rendezvous.h - the bootstrap: ranks connect to a kernel TCP socket of rank 0 and exchange small
 * blocks.
 *
 * Main thread only. The functions return enum play_result, and rdv->error has the text of an error.
 */
#ifndef HARP_DRIVER_RENDEZVOUS_H
#define HARP_DRIVER_RENDEZVOUS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PLAY_ERROR_BYTES 1024 /* size of the longest error text */
#define PLAY_RANKS_MAX 64

/* Results of the driver's calls, and exit codes of harp-bench. A line of text has the reason. */
enum play_result {
	PLAY_OK = 0,
	PLAY_WRONG = 1,       /* received data or a message's size is wrong */
	PLAY_USAGE = 2,       /* an option is invalid */
	PLAY_HANG = 3,        /* no progress for timeout_s */
	PLAY_PLUGIN = 4,      /* the plugin can't be loaded, or one of its calls failed */
	PLAY_PEER = 5,        /* the root is unreachable, or another rank left or failed */
	PLAY_INTERRUPTED = 6, /* interrupted by a signal */
};

struct rendezvous {
	int rank, ranks;
	uint64_t timeout_ns;
	const atomic_bool *interrupted;
	int listen_fd;           /* rank 0, while ranks connect; else -1 */
	int fds[PLAY_RANKS_MAX]; /* rank 0: one per rank; others: [0] is the root; -1: none */
	uint32_t sequence;       /* number of the exchange; must be equal on all ranks */
	char error[PLAY_ERROR_BYTES];
};

/* Connects all ranks. session: a random number of rank 0, equal on all ranks. */
int rdv_open(struct rendezvous *rdv, const char *root, uint64_t *session);
/* Sends every rank's block of len bytes to all ranks, in rank order. All use the same label. */
int rdv_gather(struct rendezvous *rdv, const char *label, const void *in, size_t len, void *out);
/* Sends the reason of a failure to the other ranks without waiting for them. */
void rdv_fail(struct rendezvous *rdv, const char *why);
void rdv_close(struct rendezvous *rdv);

#endif
