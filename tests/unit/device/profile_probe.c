/* SPDX-License-Identifier: Apache-2.0 */
/* profile_probe.c - profile_probe HOST FILE...: a line for each profile, the entries that the plugin reads or why not. */
#include <inttypes.h>
#include <stdio.h>

#include "device/path_policy.h"

int main(int argc, char **argv)
{
	for (int i = 2; i < argc; i++) {
		static struct profile profile;
		char why[256] = "";
		int rc = profile_read(argv[i], argv[1], &profile, why, sizeof(why));

		printf("%d", rc);
		if (profile.tuner.latency_ns)
			printf(" tuner,%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64,
			       profile.tuner.latency_ns, profile.tuner.rates.count,
			       profile.tuner.channels.count,
			       profile.tuner.rates.points[profile.tuner.rates.count - 1].at,
			       profile.tuner.channels.points[0].mb_per_s);
		for (unsigned e = 0; e < profile.count; e++) {
			const struct profile_entry *entry = &profile.entries[e];
			char peers[HARP_ADDR_TEXT_MAX];

			printf(" %s,%d,%d,%s/%u", entry->ifname, entry->mode, entry->harp_up_to,
			       harp_addr_format(&entry->peers, peers), entry->peers_bits);
		}
		printf(" %s\n", why);
	}
	return 0;
}
