/* SPDX-License-Identifier: Apache-2.0 */
/* comm_upkeep.h - between keepers and dials (comm_dials.c), and who is judged by them (comm_upkeep.c). */
#ifndef HARP_TESTS_COMM_UPKEEP_H
#define HARP_TESTS_COMM_UPKEEP_H

#include "comm_sim.h"

void csim_keepers_begin(struct csim *sim);
/* Whose keeper is meant from here on: in the plugin there is one. */
void csim_keeper_at(struct csim *sim, unsigned host);
struct csim_host *csim_keeper_host(void);
/* The lane of that index that is being dialled; NULL: none is. */
struct csim_lane *csim_dialled(struct csim *sim, unsigned comm, unsigned index);
/* A dial begins: may it? */
void csim_ledger_dial(struct csim_comm *k, unsigned index, uint64_t now_ns);
/* It has ended. rerolls: there was a lane of that index. */
void csim_ledger_ended(struct csim_comm *k, unsigned index, bool rerolls, int error,
		       uint64_t now_ns);

#endif
