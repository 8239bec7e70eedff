/* SPDX-License-Identifier: Apache-2.0 */
/* comm_reconnect.h - control threads and connect attempts (comm_connect.c), and checks of them (comm_reconnect_check.c). */
#ifndef HARP_TESTS_COMM_RECONNECT_H
#define HARP_TESTS_COMM_RECONNECT_H

#include "comm_sim.h"
#include "connect/attempt.h"

#define CSIM_CANDIDATES 2u /* for a lane */

/* How the plugin's attempts run here: comm_connect.c. */
extern const struct attempt_ops csim_attempt_ops;
void csim_controls_begin(struct csim *sim);
/* Whose control thread is meant from here on: in the plugin there is one. */
void csim_control_at(struct csim *sim, unsigned host);
struct csim_host *csim_control_host(void);
/* The lane of that index that has an attempt; NULL: none has. */
struct csim_lane *csim_attempted(struct csim *sim, unsigned comm, unsigned index);

/* ---- comm_reconnect_check.c ---- */
void csim_expect_begin(struct csim *sim);
/* Further lanes are opened from now on. */
void csim_expect_go(struct csim_comm *k);
/* An attempt begins. */
void csim_expect_attempt(struct csim_comm *k, unsigned index, uint64_t now_ns);
/* It uses that candidate. */
void csim_expect_candidate(const struct csim_comm *k, unsigned index, unsigned candidate);
/* An attempt has ended, for a lane with that port (HARP). */
void csim_expect_ended(struct csim_comm *k, unsigned index, int error, uint16_t port,
		       uint64_t now_ns);
/* A lane has joined its comm. */
void csim_expect_joined(const struct csim_lane *lane);
/* An attempt that nothing disturbed must not fail. */
void csim_expect_no_failure(const struct csim_lane *lane, int error);
void csim_expect_lost(struct csim_comm *k, unsigned index, enum comm_loss loss);
/* Failed attempts that the control thread may not count before it stops. */
void csim_expect_closes(const struct connector *u);
bool csim_expect_check(struct csim_app *app);

#endif
