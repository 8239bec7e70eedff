/* SPDX-License-Identifier: Apache-2.0 */
/* cost.h - what a collective operation costs over this network, from what `harpctl tune --nccl` measured. */
#ifndef HARP_TUNER_COST_H
#define HARP_TUNER_COST_H

#include "device/profile.h"
#include "tuner/tuner_abi.h"

struct cost_model {
	struct profile_tuner measured;
	size_t ranks, nodes; /* of the communicator; nodes > 1 */
};

/* In us; TUNER_COST_IGNORED: an algorithm or a function that the model does not know. */
float cost_us(const struct cost_model *model, enum tuner_function function,
	      enum tuner_algorithm algorithm, enum tuner_protocol protocol, size_t bytes,
	      int pipe_ops);
/* The fewest streams that reach 95 % of the best rate. */
int cost_channels(const struct profile_tuner *measured);
/* The smallest message that reaches 90 % of the best rate. */
size_t cost_chunk_bytes(const struct profile_tuner *measured);

#endif
