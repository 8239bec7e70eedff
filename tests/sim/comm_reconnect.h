/* SPDX-License-Identifier: Apache-2.0 */
/* comm_reconnect.h - control threads, listeners and attempts (comm_connect.c), and checks of connector.c (comm_reconnect.c). */
#ifndef HARP_TESTS_COMM_RECONNECT_H
#define HARP_TESTS_COMM_RECONNECT_H

#include "comm_sim.h"
#include "connect/attempt.h"

/* ---- comm_connect.c ---- */
/* Operations of the plugin's attempts. */
extern struct attempt_ops csim_attempt_ops;
void csim_connect_begin(struct csim *sim);
/* control_post() and the like refer to that host's control thread from now on: the plugin has one. */
void csim_control_at(struct csim *sim, unsigned host);
struct csim_host *csim_control_host(void);

/* ---- comm_reconnect.c ---- */
void csim_expect_attempt(struct csim_comm *k, unsigned index);
/* port: of the new HARP lane. */
void csim_expect_ended(struct csim_comm *k, struct csim_planned *planned, int error, uint16_t port);
/* An attempt that nothing disturbed must not fail. */
void csim_expect_no_failure(const struct csim_lane *lane, int error);

/* ---- comm_lanes.c ---- */
/* A HARP lane of the simulation: its operations go through comm_lanes.c from now on. */
void csim_lane_adopt(struct lane *lane);
/* The lane that came to a NIC from there; NULL: unknown. */
struct csim_lane *csim_lane_from(struct csim_nic *nic, const struct lane *lane);

#endif
