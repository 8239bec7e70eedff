/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rendezvous.h - the bootstrap: ranks meet at rank 0's kernel TCP socket and exchange small blocks.
 *
 * Main thread only. Results are enum play_result, the text of an error is in rdv->error.
 */
#ifndef HARP_DRIVER_RENDEZVOUS_H
#define HARP_DRIVER_RENDEZVOUS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PLAY_ERROR_BYTES 1024 /* a buffer that holds every error text */
#define PLAY_RANKS_MAX 64

/* Results of the driver's calls, and harp-bench's exit codes; a line of text names the cause. */
enum play_result {
	PLAY_OK = 0,
	PLAY_WRONG = 1, /* data or a message's size arrived wrong */
	PLAY_USAGE = 2, /* an option is out of range; the text says which */
	PLAY_HANG =
		3, /* nothing moved for timeout_s; the text names what waits, and for which rank */
	PLAY_PLUGIN = 4,      /* the plugin can't be loaded, or a call of it failed */
	PLAY_PEER = 5,        /* the root can't be reached, or another rank left or failed */
	PLAY_INTERRUPTED = 6, /* a signal */
};

struct rendezvous {
	int rank, ranks;
	uint64_t timeout_ns;
	const atomic_bool *interrupted;
	int listen_fd;           /* rank 0, while ranks arrive; else -1 */
	int fds[PLAY_RANKS_MAX]; /* rank 0: of each rank; others: [0] is the root; -1: none */
	uint32_t sequence;       /* number of the exchange: ranks in different ones is an error */
	char error[PLAY_ERROR_BYTES];
};

/* All ranks meet. session: the same number on every rank (rank 0's choice). */
int rdv_open(struct rendezvous *rdv, const char *root, uint64_t *session);
/* Every rank's block of len bytes, in rank order, to every rank. label must be equal on all. */
int rdv_gather(struct rendezvous *rdv, const char *label, const void *in, size_t len, void *out);
/* Sends the reason of a failure to the other ranks, without waiting for them. */
void rdv_fail(struct rendezvous *rdv, const char *why);
void rdv_close(struct rendezvous *rdv);

#endif
