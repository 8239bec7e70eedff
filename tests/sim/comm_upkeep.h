/* SPDX-License-Identifier: Apache-2.0 */
/* comm_upkeep.h - between control threads and dials (comm_dials.c), and who is judged by them (comm_upkeep.c). */
#ifndef HARP_TESTS_COMM_UPKEEP_H
#define HARP_TESTS_COMM_UPKEEP_H

#include "comm_sim.h"
#include "connect/attempt.h"

#define CSIM_CANDIDATES 2u /* for a lane */

/* How the plugin's attempts run here: comm_dials.c. */
extern const struct attempt_ops csim_attempt_ops;
void csim_controls_begin(struct csim *sim);
/* Whose control thread is meant from here on: in the plugin there is one. */
void csim_control_at(struct csim *sim, unsigned host);
struct csim_host *csim_control_host(void);
/* The lane of that index that is being dialled; NULL: none is. */
struct csim_lane *csim_dialled(struct csim *sim, unsigned comm, unsigned index);

/* ---- comm_ledger.c ---- */
void csim_ledger_begin(struct csim *sim);
/* Further lanes are dialled from now on. */
void csim_ledger_go(struct csim_comm *k);
/* A dial is begun. */
void csim_ledger_begins(struct csim_comm *k, unsigned index, uint64_t now_ns);
/* It goes to that candidate. */
void csim_ledger_chooses(const struct csim_comm *k, unsigned index, unsigned candidate);
/* A dial has ended, of a lane that has that port (HARP). */
void csim_ledger_ended(struct csim_comm *k, unsigned index, int error, uint16_t port,
		       uint64_t now_ns);
/* A lane has joined its comm. */
void csim_ledger_joined(const struct csim_lane *lane);
/* It has, and failed: had it to? */
void csim_ledger_in_vain(const struct csim_lane *lane, int error);
void csim_ledger_lost(struct csim_comm *k, unsigned index, enum comm_loss loss);
/* What has ended badly, and perhaps nobody will look. */
void csim_ledger_closes(const struct connector *u);
bool csim_ledger_judge(struct csim_app *app);

#endif
