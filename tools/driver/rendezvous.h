/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rendezvous.h - the bootstrap: ranks meet at rank 0's kernel TCP socket and exchange small blocks.
 *
 * Main thread only. Results are enum ncclplay_result, the text of an error is in rdv->error.
 */
#ifndef HARP_DRIVER_RENDEZVOUS_H
#define HARP_DRIVER_RENDEZVOUS_H

#include <stdatomic.h>
#include <stdint.h>

#include "ncclplay.h"

struct rendezvous {
	int rank, ranks;
	uint64_t timeout_ns;
	const atomic_bool *interrupted;
	int listen_fd;               /* rank 0, while ranks arrive; else -1 */
	int fds[NCCLPLAY_RANKS_MAX]; /* rank 0: of each rank; others: [0] is the root; -1: none */
	uint32_t sequence; /* number of the exchange: ranks in different ones is an error */
	char error[NCCLPLAY_ERROR_BYTES];
};

/* All ranks meet. session: the same number on every rank (rank 0's choice). */
int rdv_open(struct rendezvous *rdv, const char *root, uint64_t *session);
/* Every rank's block of len bytes, in rank order, to every rank. label must be equal on all. */
int rdv_gather(struct rendezvous *rdv, const char *label, const void *in, size_t len, void *out);
/* Sends the reason of a failure to the other ranks, without waiting for them. */
void rdv_fail(struct rendezvous *rdv, const char *why);
void rdv_close(struct rendezvous *rdv);

#endif
