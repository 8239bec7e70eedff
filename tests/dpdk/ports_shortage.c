/* SPDX-License-Identifier: Apache-2.0 */
/* ports_shortage.c - memif ports where descriptors are short. */
#include <sys/resource.h>
#include <unistd.h>

#include "ports.h"

#define FILES_MAX 512
#define SPARES_MAX 24u

static int fillers[FILES_MAX];
static unsigned filler_count;

/* So many descriptors can still be had. */
static void leave(unsigned spare)
{
	while (filler_count < FILES_MAX && (fillers[filler_count] = dup(0)) >= 0)
		filler_count++;
	CHECK(filler_count < FILES_MAX && filler_count >= spare);
	while (spare-- > 0)
		close(fillers[--filler_count]);
}

static void leave_all(void)
{
	while (filler_count > 0)
		close(fillers[--filler_count]);
}

/* A port without descriptors gives the reason and leaves nothing behind. Each server leaves its
 * listener, which the driver does not close. */
TEST(memif_without_descriptors_is_refused)
{
	struct harp_dpdk_port *port;
	unsigned fds = 0, refusals = 0, servers = 0;
	struct rlimit few;
	struct end a, b;

	peers_begin();
	end_open(&a, "net_ring0", 0); /* DPDK itself */
	end_close(&a);
	CHECK_EQ(getrlimit(RLIMIT_NOFILE, &few), 0);
	few.rlim_cur = FILES_MAX / 2;
	CHECK_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
	for (unsigned round = 0; round < 3; round++) {
		for (unsigned spare = 0; spare < SPARES_MAX; spare++) {
			leave(spare);
			if (port_try(&port, peers_server, 0)) {
				CHECK(strstr(why, "Too many open files"));
				refusals++;
			} else {
				api->port_close(port);
				servers++;
			}
			leave_all();
		}
		if (round == 0)
			fds = descriptors() - servers;
		CHECK_EQ(descriptors(), fds + servers);
	}
	CHECK(refusals >= 3);
	end_open(&a, peers_server, 0);
	end_open(&b, peers_client, 0);
	CHECK(end_until(&a, &b, 100, 1514, 1));
	end_close(&b);
	end_close(&a);
	peers_end();
}
