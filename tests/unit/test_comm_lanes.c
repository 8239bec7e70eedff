/* SPDX-License-Identifier: Apache-2.0 */
/* test_comm_lanes.c - comms of several lanes over joined fake ones: random conversations while lanes die, stall
 * and join; then the rules one by one. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "double_env.h"
#include "talk.h"

/* ---- conversations ------------------------------------------------------------------------------ */

static void test_conversations(uint64_t seeds)
{
	for (uint64_t i = 0; i < seeds && !check_failures; i++) {
		struct talk t;

		talk_seed = i;
		talk_open(&t, 120, 2 + (unsigned)(i % 5));
		talk_run(&t);
		talk_close(&t);
		for (unsigned n = 0; n < t.lanes; n++) {
			CHECK(t.pairs[n].lanes[0].closed && t.pairs[n].lanes[1].closed);
			CHECK(!t.pairs[n].lanes[0].aborted);
		}
		talk_free(&t);
		if (check_failures)
			fprintf(stderr, "seed %" PRIu64 "\n", talk_seed);
	}
	CHECK_EQ(env_warns, 0);
}

int main(int argc, char **argv)
{
	uint64_t seeds = argc > 1 ? strtoull(argv[1], NULL, 0) : 200;

	test_conversations(seeds);
	return check_done();
}
