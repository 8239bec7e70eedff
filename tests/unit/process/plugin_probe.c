/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plugin_probe.c - runs the plugin's parsers for tests/python, one line for each argument.
 *
 *   plugin_probe config NAME=VALUE...   accepted as a variable, and as a setting of harpd: 0 or 1
 *   plugin_probe toml FILE...           toml_scan_encrypt(): the result, and the line or the reason
 *   plugin_probe profile HOST FILE...   profile_read(): the result, and the entries or the reason
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "device/path_policy.h"
#include "process/config.h"
#include "process/keyfile.h"
#include "process/log.h"

void plugin_log(enum plugin_log_level level, const char *func, int line, const char *fmt, ...)
{
	(void)level;
	(void)func;
	(void)line;
	(void)fmt;
}

static void probe_config(char *entry)
{
	char *environment[] = { entry, NULL }, *no_variables[] = { NULL };
	struct plugin_config config;
	int variable_rc = config_read(&config, environment, NULL);
	int setting_rc = config_read(&config, no_variables, entry);

	printf("%d %d\n", !variable_rc, !setting_rc);
}

static void probe_toml(const char *file)
{
	char why[256] = "";
	unsigned line = 0;
	int rc = toml_scan_encrypt(file, &line, why, sizeof(why));

	if (rc < 0)
		printf("%d %s\n", rc, why);
	else
		printf("%d %u\n", rc, rc ? line : 0);
}

static void probe_profile(const char *host, const char *file)
{
	static struct profile profile;
	const struct profile_tuner *tuner = &profile.tuner;
	char why[256] = "";

	printf("%d", profile_read(file, host, &profile, why, sizeof(why)));
	if (tuner->latency_ns)
		printf(" tuner,%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64,
		       tuner->latency_ns, tuner->rates.count, tuner->channels.count,
		       tuner->rates.points[tuner->rates.count - 1].at,
		       tuner->channels.points[0].mb_per_s);
	for (unsigned e = 0; e < profile.count; e++) {
		const struct profile_entry *entry = &profile.entries[e];
		char peers[HARP_ADDR_TEXT_MAX];

		printf(" %s,%d,%d,%s/%u", entry->ifname, entry->mode, entry->harp_up_to,
		       harp_addr_format(&entry->peers, peers), entry->peers_bits);
	}
	printf(" %s\n", why);
}

int main(int argc, char **argv)
{
	const char *parser = argc > 1 ? argv[1] : "";

	for (int i = 2; i < argc; i++) {
		if (!strcmp(parser, "config"))
			probe_config(argv[i]);
		else if (!strcmp(parser, "toml"))
			probe_toml(argv[i]);
		else if (i > 2)
			probe_profile(argv[2], argv[i]);
	}
	return 0;
}
