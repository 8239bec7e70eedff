/* SPDX-License-Identifier: Apache-2.0 */
/* comm_words.h - further HARP lanes that are dialled and proved (comm_words.c), for those who know lanes. */
#ifndef HARP_TESTS_COMM_WORDS_H
#define HARP_TESTS_COMM_WORDS_H

#include "comm_sim.h"
#include "connect/attempt.h"

/* Doors where such lanes come. */
void csim_words_begin(struct csim *sim);
void csim_words_drop(struct csim_nic *nic);
/* When pending_set are to be looked at. */
uint64_t csim_words_next_ns(const struct csim_nic *nic);
/* The dial of that lane has succeeded. */
void csim_words_proved(const struct attempt *dial, struct csim_lane *lane);
/* After a turn of the NIC's host: which lanes have come, and joined. */
void csim_words_settle(struct csim_nic *nic);
/* Is it that lane's, at its connector? */
bool csim_words_port(const struct csim_lane *lane, uint16_t port);
/* What there is of an end, whoever has it; NULL: nothing. */
struct lane *csim_words_end(const struct csim_lane *lane, enum csim_side side);

/* ---- comm_dials.c ---- */
struct csim_lane *csim_dial_lane(const struct attempt *dial);
/* The dial has ended: for the ledger, and for who began it. */
void csim_dial_report(struct attempt *dial, struct csim_lane *lane, int error, const char *text,
		      uint64_t now_ns);

/* ---- comm_lanes.c ---- */
/* The end of a HARP lane that became a comm's: its operations are watched from now on. */
void csim_lane_adopt(struct lane *lane);
/* The lane that came to a NIC from there; NULL: none that is known. */
struct csim_lane *csim_lane_from(struct csim_nic *nic, const struct lane *lane);

#endif
