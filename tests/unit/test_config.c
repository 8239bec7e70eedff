/* SPDX-License-Identifier: Apache-2.0 */
/* test_config.c - the HARP_* variables: defaults, every key, bad values and misspelt names. */
#include "config.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "config_keys.h"

static unsigned failures, warnings;
static char last_warning[2048];

#define CHECK(condition)                                                                           \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "%s:%d: %s\n  last WARN: %s\n", __FILE__, __LINE__,        \
				#condition, last_warning);                                         \
			failures++;                                                                \
		}                                                                                  \
	} while (0)

/* Stands in for log.c. */
void plugin_log(enum plugin_log_level level, const char *func, int line, const char *fmt, ...)
{
	va_list args;

	(void)func;
	(void)line;
	if (level != PLUGIN_WARN)
		return;
	warnings++;
	va_start(args, fmt);
	vsnprintf(last_warning, sizeof(last_warning), fmt, args);
	va_end(args);
}

static int read_one(struct plugin_config *config, const char *entry)
{
	char *environment[] = { (char *)(uintptr_t) "PATH=/bin", (char *)(uintptr_t)entry, NULL };

	warnings = 0;
	last_warning[0] = '\0';
	return config_read(config, environment);
}

static void test_defaults(void)
{
	struct plugin_config config;

	CHECK(read_one(&config, "HARPSICHORD=1") == 0 && warnings == 0);
	CHECK(config.path == PATH_AUTO && config.xdp_mode == HARP_XDP_AUTO);
	CHECK(config.congestion == HARP_CONGESTION_DEFAULT && config.ecn == HARP_ECN_DEFAULT);
	CHECK(config.eager_bytes == 262144 && config.frames == 8192 && config.speed_mbps == 0);
	CHECK(config.connect_timeout_ns == 30000000000ull);
	CHECK(config.user_timeout_ns == 120000000000ull);
	CHECK(config.probe_interval_ns == 250000000ull && config.close_linger_ns == 50000000ull);
	CHECK(config.guardian_idle_ns == 1000000ull && config.family == 0);
	CHECK(!config.ifname[0] && !config.ifname_set && !config.lib_dir[0]);
}

static void test_values(void)
{
	struct plugin_config c;

	CHECK(!read_one(&c, "HARP_PATH=xdp") && c.path == PATH_XDP);
	CHECK(!read_one(&c, "HARP_PATH=kernel") && c.path == PATH_KERNEL);
	CHECK(!read_one(&c, "HARP_PATH=") && c.path == PATH_AUTO);
	CHECK(!read_one(&c, "HARP_XDP_MODE=native") && c.xdp_mode == HARP_XDP_NATIVE);
	CHECK(!read_one(&c, "HARP_CONGESTION=dctcp") && c.congestion == HARP_CONGESTION_DCTCP);
	CHECK(!read_one(&c, "HARP_CONGESTION=delay") && c.congestion == HARP_CONGESTION_DELAY);
	CHECK(!read_one(&c, "HARP_ECN=request") && c.ecn == HARP_ECN_REQUEST);
	CHECK(!read_one(&c, "HARP_EAGER_BYTES=65536") && c.eager_bytes == 65536);
	CHECK(!read_one(&c, "HARP_FRAMES=1024") && c.frames == 1024);
	CHECK(!read_one(&c, "HARP_PROBE_INTERVAL_MS=0") && c.probe_interval_ns == 0);
	CHECK(!read_one(&c, "HARP_GUARDIAN_IDLE_US=250") && c.guardian_idle_ns == 250000);
	CHECK(!read_one(&c, "HARP_CONNECT_TIMEOUT_MS=0050") && c.connect_timeout_ns == 50000000);
	CHECK(!read_one(&c, "HARP_SPEED_MBPS=400000") && c.speed_mbps == 400000);
	CHECK(!read_one(&c, "HARP_LIBDIR=/opt/harp") && !strcmp(c.lib_dir, "/opt/harp"));
	CHECK(!read_one(&c, "HARP_IFNAME==eth0,eth1") && !strcmp(c.ifname, "=eth0,eth1"));
	CHECK(c.ifname_set);
	CHECK(!read_one(&c, "NCCL_SOCKET_IFNAME=eth") && !strcmp(c.ifname, "eth") && c.ifname_set);
	CHECK(!read_one(&c, "NCCL_SOCKET_IFNAME=^lo,docker") && !c.ifname_set && c.ifname[0]);
	CHECK(!read_one(&c, "NCCL_SOCKET_FAMILY=AF_INET6") && c.family == AF_INET6);
	CHECK(!read_one(&c, "NCCL_SOCKET_FAMILY=AF_INET") && c.family == AF_INET);
	CHECK(!read_one(&c, "NCCL_SOCKET_FAMILY=ipx") && c.family == 0);
	CHECK(warnings == 0);
}

static void test_what_excludes_each_other(void)
{
	char *environment[] = { (char *)(uintptr_t) "HARP_CONGESTION=dctcp",
				(char *)(uintptr_t) "HARP_ECN=off", NULL };
	struct plugin_config config;

	warnings = 0;
	CHECK(config_read(&config, environment) == -EINVAL);
	CHECK(warnings == 1 && strstr(last_warning, "HARP_ECN"));
}

static void test_precedence(void)
{
	char *environment[] = { (char *)(uintptr_t) "NCCL_SOCKET_IFNAME=eth0",
				(char *)(uintptr_t) "HARP_IFNAME=ens1", NULL };
	struct plugin_config config;

	CHECK(!config_read(&config, environment) && !strcmp(config.ifname, "ens1"));
	environment[1] = (char *)(uintptr_t) "HARP_IFNAME=";
	CHECK(!config_read(&config, environment) && !strcmp(config.ifname, "eth0"));
}

/* The line names the variable, what was found, and what would do. */
static void check_bad(const char *entry, const char *value, const char *accepted)
{
	struct plugin_config config;
	char name[64];

	snprintf(name, sizeof(name), "%.*s", (int)strcspn(entry, "="), entry);
	CHECK(read_one(&config, entry) == -EINVAL);
	CHECK(warnings == 1 && strstr(last_warning, name));
	CHECK(strstr(last_warning, value) && strstr(last_warning, accepted));
}

static void test_bad_values(void)
{
	char entry[600] = "HARP_LIBDIR=/", ifname[600] = "NCCL_SOCKET_IFNAME=e";
	struct plugin_config config;

	check_bad("HARP_PATH=dpdk", "dpdk", "auto|xdp|kernel");
	check_bad("HARP_PATH=xd", "xd", "auto|xdp|kernel");
	check_bad("HARP_PATH=xdp|kernel", "xdp|kernel", "auto|xdp|kernel");
	check_bad("HARP_PATH=XDP", "XDP", "auto|xdp|kernel");
	check_bad("HARP_XDP_MODE=driver", "driver", "auto|generic|native");
	check_bad("HARP_CONGESTION=bbr", "bbr", "default|newreno|cubic|dctcp|delay");
	check_bad("HARP_CONGESTION=fixed", "fixed", "default|newreno|cubic|dctcp|delay");
	check_bad("HARP_ECN=on", "on", "default|off|request");
	check_bad("HARP_EAGER_BYTES=4095", "4095", "from 4096 to 16777216");
	check_bad("HARP_EAGER_BYTES=16777217", "16777217", "bytes");
	check_bad("HARP_FRAMES=-1", "-1", "frames");
	check_bad("HARP_FRAMES=+2048", "+2048", "default 8192");
	check_bad("HARP_FRAMES= 2048", " 2048", "frames");
	check_bad("HARP_FRAMES=2048k", "2048k", "frames");
	check_bad("HARP_FRAMES=0x800", "0x800", "frames");
	check_bad("HARP_FRAMES=99999999999999999999999999", "999", "frames");
	check_bad("HARP_FRAMES=18446744073709559808", "1844", "frames");
	check_bad("HARP_CONNECT_TIMEOUT_MS=9", "9", "ms from 10 to 3600000");
	check_bad("HARP_GUARDIAN_IDLE_US=2000000", "2000000", "us");
	memset(entry + strlen(entry), 'x', 300);
	check_bad(entry, "/xxx", "255");
	memset(ifname + strlen(ifname), 'x', 300);
	CHECK(read_one(&config, ifname) == -EINVAL && warnings == 1);
}

static void check_hint(const char *entry, const char *hint)
{
	struct plugin_config config;

	CHECK(read_one(&config, entry) == 0 && warnings == 1);
	CHECK(strstr(last_warning, hint) && strstr(last_warning, "unknown"));
}

static void test_unknown(void)
{
	char entry[400] = "HARP_";

	check_hint("HARP_PATHS=xdp", "did you mean HARP_PATH?");
	check_hint("HARP_EAGER_BYTE=1", "did you mean HARP_EAGER_BYTES?");
	check_hint("HARP_IFNAEM=eth0", "did you mean HARP_IFNAME?");
	check_hint("HARP_CONNECT_TIMEOUT=1", "did you mean HARP_CONNECT_TIMEOUT_MS?");
	check_hint("HARP_path=1", "did you mean HARP_PATH?");
	check_hint("HARP_=1", "did you mean HARP_ECN?");
	check_hint("HARP_COMPLETELY_ELSEWHERE=1", "there are: HARP_PATH");
	memset(entry + strlen(entry), 'Y', 300);
	strcat(entry, "=1");
	check_hint(entry, "there are: HARP_PATH");
}

/* Every key of the list takes its own default, and its help is a sentence worth printing. */
static void test_list(void)
{
#define KEY(name, type, field, unit, min, max, preset, help) { #name, preset, help },
	static const struct {
		const char *name, *preset, *help;
	} keys[] = { CONFIG_KEYS(KEY) };
#undef KEY
	struct plugin_config defaults, config;
	char entry[128];

	CHECK(!read_one(&defaults, "X=1"));
	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
		snprintf(entry, sizeof(entry), "%s=%s", keys[i].name, keys[i].preset);
		CHECK(!read_one(&config, entry) && warnings == 0);
		CHECK(!memcmp(&config, &defaults, sizeof(config)));
		CHECK(!strncmp(keys[i].name, "HARP_", 5) && strlen(keys[i].help) > 20);
	}
}

int main(void)
{
	test_defaults();
	test_values();
	test_what_excludes_each_other();
	test_precedence();
	test_bad_values();
	test_unknown();
	test_list();
	return failures != 0;
}
