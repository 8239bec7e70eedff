/* SPDX-License-Identifier: Apache-2.0 */
/* preamble_impl.h - what preamble.c (the messages) and preamble_proof.c (keys and proofs) share. */
#ifndef HARP_PLUGIN_PREAMBLE_IMPL_H
#define HARP_PLUGIN_PREAMBLE_IMPL_H

#include "wire/preamble.h"

#define PREAMBLE_LABEL_BYTES 16u

extern const char preamble_label_challenge[PREAMBLE_LABEL_BYTES + 1];
extern const char preamble_label_proof[PREAMBLE_LABEL_BYTES + 1];
extern const char preamble_label_ready[PREAMBLE_LABEL_BYTES + 1];

/* Appends the proof that ends an own message. */
void preamble_sign(struct preamble *p, const char *label);
/* Checks the proof that ends the peer's message. */
bool preamble_holds(const struct preamble *p, const char *label);

#endif
