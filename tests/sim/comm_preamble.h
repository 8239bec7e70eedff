/* SPDX-License-Identifier: Apache-2.0 */
/* comm_preamble.h - further HARP lanes, opened by the plugin with its preamble (comm_preamble.c). */
#ifndef HARP_TESTS_COMM_PREAMBLE_H
#define HARP_TESTS_COMM_PREAMBLE_H

#include "comm_sim.h"
#include "connect/attempt.h"

/* Opens listeners for such lanes. */
void csim_preamble_begin(struct csim *sim);
void csim_preamble_drop(struct csim_nic *nic);
/* When pending_set are to be looked at. */
uint64_t csim_preamble_next_ns(const struct csim_nic *nic);
/* The attempt for that lane has succeeded. */
void csim_preamble_proved(const struct attempt *attempt, struct csim_lane *lane);
/* After a turn of the NIC's host: which lanes have come, and joined. */
void csim_preamble_settle(struct csim_nic *nic);
/* Is it that lane's, at its connector? */
bool csim_preamble_port(const struct csim_lane *lane, uint16_t port);
/* The lane at an end, joined or not; NULL: none. */
struct lane *csim_preamble_end(const struct csim_lane *lane, enum csim_side side);

/* ---- comm_connect.c ---- */
struct csim_lane *csim_attempt_lane(const struct attempt *attempt);
/* The attempt has ended: for comm_reconnect_check.c, and for connector.c. */
void csim_attempt_report(struct attempt *attempt, struct csim_lane *lane, int error,
			 const char *text, uint64_t now_ns);

/* ---- comm_lanes.c ---- */
/* A HARP lane of ours: its operations go through comm_lanes.c from now on. */
void csim_lane_adopt(struct lane *lane);
/* The lane that came to a NIC from there; NULL: none that is known. */
struct csim_lane *csim_lane_from(struct csim_nic *nic, const struct lane *lane);

#endif
