/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_config.c - the meaning of values, the priority of their sources, and the warnings for bad
 * values. tests/python/test_config_values.py tests which values are accepted.
 */
#include "process/config.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <sys/socket.h>

#include "check.h"
#include "harp_config.h"
#include "process/log.h"

static unsigned warnings;
static char last_warning[2048];

void plugin_log(enum plugin_log_level level, const char *func, int line, const char *fmt, ...)
{
	va_list args;

	if (level != PLUGIN_WARN)
		return;
	warnings++;
	va_start(args, fmt);
	vsnprintf(last_warning, sizeof(last_warning), fmt, args);
	va_end(args);
}

/* Reads the configuration from variables, separated by spaces, and harpd's settings. */
static int read_both(struct plugin_config *config, const char *variables, const char *settings)
{
	static char text[1024];
	char *environment[8], *rest;
	unsigned count = 0;

	snprintf(text, sizeof(text), "PATH=/bin %s", variables);
	for (char *at = strtok_r(text, " ", &rest); at; at = strtok_r(NULL, " ", &rest))
		environment[count++] = at;
	environment[count] = NULL;
	warnings = 0;
	last_warning[0] = '\0';
	return config_read(config, environment, settings);
}

#define CHECK_CONFIG(variables, settings, condition)                                               \
	do {                                                                                       \
		struct plugin_config c;                                                            \
		CHECK_EQ(read_both(&c, variables, settings), 0);                                   \
		CHECK_EQ(warnings, 0);                                                             \
		CHECK(condition);                                                                  \
	} while (0)

#define CHECK_VAR(entry, condition) CHECK_CONFIG(entry, NULL, condition)

/* A value of each type, and every choice. */
TEST(a_value_has_its_meaning)
{
	CHECK_VAR("HARPSICHORD=1", c.path == PATH_AUTO && c.frames == 8192 && !c.ifname_set);
	CHECK_VAR("HARP_PATH=xdp", c.path == PATH_XDP);
	CHECK_VAR("HARP_PATH=kernel", c.path == PATH_KERNEL);
	CHECK_VAR("HARP_PATH=dpdk", c.path == PATH_DPDK);
	CHECK_VAR("HARP_PATH=", c.path == PATH_AUTO);
	CHECK_VAR("HARP_DPDK_HUGE_PAGES=never", c.dpdk_huge_pages == HUGE_PAGES_NEVER);
	CHECK_VAR("HARP_DPDK_HUGE_PAGES=require", c.dpdk_huge_pages == HUGE_PAGES_REQUIRE);
	CHECK_VAR("HARP_XDP_MODE=generic", c.xdp_mode == HARP_XDP_GENERIC);
	CHECK_VAR("HARP_XDP_MODE=native", c.xdp_mode == HARP_XDP_NATIVE);
	CHECK_VAR("HARP_CONGESTION=newreno", c.congestion == HARP_CONGESTION_NEWRENO);
	CHECK_VAR("HARP_CONGESTION=cubic", c.congestion == HARP_CONGESTION_CUBIC);
	CHECK_VAR("HARP_CONGESTION=dctcp", c.congestion == HARP_CONGESTION_DCTCP);
	CHECK_VAR("HARP_CONGESTION=delay", c.congestion == HARP_CONGESTION_DELAY);
	CHECK_VAR("HARP_ECN=off", c.ecn == HARP_ECN_OFF);
	CHECK_VAR("HARP_ECN=request", c.ecn == HARP_ECN_REQUEST);
	CHECK_VAR("HARP_DAEMON=off", c.daemon == DAEMON_OFF);
	CHECK_VAR("HARP_DAEMON=require", c.daemon == DAEMON_REQUIRE);
	CHECK_VAR("HARP_RAILS=own", c.rails == RAILS_OWN);
	CHECK_VAR("HARP_RAILS=backup", c.rails == RAILS_BACKUP);
	CHECK_VAR("HARP_RAILS=all", c.rails == RAILS_ALL);
	CHECK_VAR("HARP_TUNER=off", c.tuner == TUNER_OFF);
	CHECK_VAR("HARP_ENCRYPT=off", c.encrypt == ENCRYPT_OFF);
	CHECK_VAR("HARP_EAGER_BYTES=65536", c.eager_bytes == 65536);
	CHECK_VAR("HARP_BACKGROUND_IDLE_US=250", c.background_idle_ns == 250000);
	CHECK_VAR("HARP_CONNECT_TIMEOUT_MS=0050", c.connect_timeout_ns == 50000000);
	CHECK_VAR("HARP_LIBDIR=/opt/harp", !strcmp(c.lib_dir, "/opt/harp"));
	CHECK_VAR("HARP_RUN_DIR=anything", true); /* a key of harpd */
	CHECK_VAR("HARP_IFNAME==eth0,eth1", !strcmp(c.ifname, "=eth0,eth1") && c.ifname_set);
}

/* NCCL checks its own variables, so bad ones are no error here. */
TEST(variables_of_NCCL_are_read_as_NCCL_does)
{
	CHECK_VAR("NCCL_SOCKET_IFNAME=eth", !strcmp(c.ifname, "eth") && c.ifname_set);
	CHECK_VAR("NCCL_SOCKET_IFNAME=^lo,docker", !c.ifname_set && c.ifname[0]);
	CHECK_VAR("NCCL_SOCKET_IFNAME=eth0 HARP_IFNAME=ens1", !strcmp(c.ifname, "ens1"));
	CHECK_VAR("NCCL_SOCKET_IFNAME=eth0 HARP_IFNAME=", !strcmp(c.ifname, "eth0"));
	CHECK_VAR("NCCL_SOCKET_FAMILY=AF_INET6", c.family == AF_INET6);
	CHECK_VAR("NCCL_SOCKET_FAMILY=AF_INET", c.family == AF_INET);
	CHECK_VAR("NCCL_SOCKET_FAMILY=ipx", c.family == 0);
	CHECK_VAR("NCCL_SOCKET_NTHREADS=4", c.nccl_threads == 4 && c.nccl_sockets_per_thread == -1);
	CHECK_VAR("NCCL_NSOCKS_PERTHREAD=0x8",
		  c.nccl_sockets_per_thread == 8 && c.nccl_threads == -1);
	CHECK_VAR("NCCL_SOCKET_NTHREADS=0", c.nccl_threads == 0);
	CHECK_VAR("NCCL_SOCKET_NTHREADS=99999999999", c.nccl_threads == INT_MAX);
	CHECK_VAR("NCCL_SOCKET_NTHREADS=99999999999999999999", c.nccl_threads == -1);
	CHECK_VAR("NCCL_SOCKET_NTHREADS=2x", c.nccl_threads == -1);
	CHECK_VAR("NCCL_SOCKET_NTHREADS=-2", c.nccl_threads == -1);
	CHECK_VAR("NCCL_SOCKET_NTHREADS=", c.nccl_threads == -1);
}

/* The configuration is refused by one WARN that contains all of these texts. */
static void check_bad(const char *variables, const char *settings, const char *const texts[3])
{
	struct plugin_config config;

	CHECK_EQ(read_both(&config, variables, settings), -EINVAL);
	CHECK_EQ(warnings, 1);
	for (unsigned i = 0; i < 3 && texts[i]; i++) {
		if (!strstr(last_warning, texts[i]))
			fprintf(stderr, "\"%s\" does not contain \"%s\"\n", last_warning, texts[i]);
		CHECK(strstr(last_warning, texts[i]));
	}
}

TEST(a_bad_value_is_one_warning_with_the_valid_values)
{
	static const struct {
		const char *variables, *settings, *texts[3];
	} cases[] = {
		{ "HARP_PATH=XDP", NULL, { "HARP_PATH=\"XDP\"", "auto|xdp|kernel|dpdk" } },
		{ "HARP_FRAMES=2048k",
		  NULL,
		  { "HARP_FRAMES=\"2048k\"", "frames", "default 8192" } },
		{ "HARP_EAGER_BYTES=4095", NULL, { "4095", "bytes from 4096 to 16777216" } },
		{ "HARP_CONNECT_TIMEOUT_MS=9", NULL, { "9", "ms from 10 to 3600000" } },
		{ "HARP_BACKGROUND_IDLE_US=2000000", NULL, { "2000000", "us" } },
		{ "HARP_LABEL=a\nb", NULL, { "HARP_LABEL=\"a\nb", "control character" } },
		{ "HARP_RSS=topelitz", NULL, { "topelitz", "unknown, or toeplitz:KEY" } },
		{ "HARP_RSS=toeplitz:6d5a", NULL, { "toeplitz:6d5a", "KEY 40 to 64 bytes" } },
		{ "HARP_CONGESTION=dctcp HARP_ECN=off", NULL, { "HARP_ECN" } },
		{ "HARP_PORT_MAX=60999", NULL, { "HARP_PORT_MIN=61000 is above" } },
		/* Settings of harpd. A good variable does not hide a bad setting. */
		{ "", "HARP_FRAMES=12", { "harp.toml of harpd: HARP_FRAMES", "1024 to 1048576" } },
		{ "HARP_FRAMES=2048", "HARP_FRAMES=12", { "harp.toml of harpd: HARP_FRAMES" } },
		{ "", "HARP_ECN=off\nHARP_PATH=dpkd\nHARP_ECN=off", { "auto|xdp|kernel" } },
		{ "", "HARP_IFNAME=a\tb", { "harp.toml of harpd: HARP_IFNAME", "control" } },
		{ "HARP_ECN=off", "HARP_CONGESTION=dctcp", { "needs ECN" } },
	};
	static const char *const too_long[3] = { "255 characters", NULL },
				 *const nccl_too_long[3] = { "too long", NULL };
	char text[400];

	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		check_bad(cases[i].variables, cases[i].settings, cases[i].texts);
	memset(text, 'x', sizeof(text));
	text[sizeof(text) - 1] = '\0';
	memcpy(text, "HARP_LIBDIR=/", 13);
	check_bad(text, NULL, too_long);
	memcpy(text, "HARP_KEY_FILE=", 14);
	check_bad("", text, too_long);
	memcpy(text, "NCCL_SOCKET_IFNAME=", 19);
	check_bad(text, NULL, nccl_too_long);
}

TEST(an_unknown_variable_is_reported_once)
{
	static const char *const names[] = { "HARP_=1", "HARP_path=1", "HARP_ELSEWHERE=1" };
	struct plugin_config config;

	for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		CHECK_EQ(read_both(&config, names[i], NULL), 0);
		CHECK_EQ(warnings, 1);
		CHECK(strstr(last_warning, "unknown") && strstr(last_warning, "harpctl config"));
		CHECK_EQ(read_both(&config, names[i], ""), 0);
		CHECK_EQ(warnings, 0); /* the second reading, with harpd's settings, is silent */
	}
}

/* harpd's settings override the defaults, and the environment overrides harpd's settings. */
TEST(the_environment_overrides_harpd)
{
	CHECK_CONFIG("", "HARP_FRAMES=1024\nHARP_PATH=xdp\n",
		     c.frames == 1024 && c.path == PATH_XDP);
	CHECK_CONFIG("HARP_FRAMES=2048", "HARP_FRAMES=1024\nHARP_PATH=xdp",
		     c.frames == 2048 && c.path == PATH_XDP);
	/* An empty variable or setting counts as unset. */
	CHECK_CONFIG("HARP_FRAMES=", "HARP_FRAMES=1024", c.frames == 1024);
	CHECK_CONFIG("", "HARP_FRAMES=\nHARP_PATH=", c.frames == 8192);
	CHECK_CONFIG("NCCL_SOCKET_IFNAME=eth0", "HARP_IFNAME=ens1",
		     !strcmp(c.ifname, "ens1") && c.ifname_set);
}

/* harpd is already connected, so settings to find it are ignored. A compromised harpd must not
 * choose the code that a job loads, and a newer harpd may have other keys. */
TEST(harpd_sets_only_keys_of_harp_toml)
{
	static const char *const ignored[] = {
		"",
		"\n\n",
		"HARP_DAEMON=off\nHARP_SOCKET=/elsewhere",
		"HARP_LIBDIR=/tmp/evil\nHARP_DPDK_ARGS=-d /tmp/evil.so",
		"HARP_DPDK=net_null0\nHARP_LABEL=x\nHARP_CONFIG=/tmp/x",
		"HARP_TELEPATHY=on\nno equals sign\nHARP_RUN_DIR=/x",
	};
	struct plugin_config defaults;

	CHECK_EQ(read_both(&defaults, "", NULL), 0);
	for (unsigned i = 0; i < sizeof(ignored) / sizeof(ignored[0]); i++)
		CHECK_CONFIG("", ignored[i], !memcmp(&c, &defaults, sizeof(c)));
}

/* The stricter value of environment and harp.toml applies. */
TEST(required_encryption_stays_required)
{
	static const char *const warning[3] = { "harp.toml requires encryption", NULL };
	static const char required[] = "HARP_ENCRYPT=aes-256-gcm", off[] = "HARP_ENCRYPT=off";

	CHECK_CONFIG("", required, c.encrypt == ENCRYPT_AES_256_GCM);
	CHECK_CONFIG("HARP_ENCRYPT=", required, c.encrypt == ENCRYPT_AES_256_GCM);
	CHECK_CONFIG("HARP_ENCRYPT=auto", required, c.encrypt == ENCRYPT_AES_256_GCM);
	CHECK_CONFIG(required, off, c.encrypt == ENCRYPT_AES_256_GCM);
	CHECK_CONFIG("", off, c.encrypt == ENCRYPT_OFF);
	CHECK_CONFIG("HARP_ENCRYPT=auto", off, c.encrypt == ENCRYPT_AUTO);
	check_bad(off, required, warning);
}

TEST(the_default_of_each_key_is_a_valid_value)
{
	struct plugin_config defaults, config;
	const struct harp_config_key *key;
	char *environment[2] = { NULL }, entry[160];

	CHECK_EQ(read_both(&defaults, "", NULL), 0);
	for (unsigned i = 0; (key = harp_config_key(i)); i++) {
		CHECK(strlen(key->help) > 20 && key->readers && key->min <= key->max);
		if (strncmp(key->name, "HARP_", 5) != 0)
			continue;
		snprintf(entry, sizeof(entry), "%s=%s", key->name, key->preset);
		environment[0] = entry;
		CHECK_EQ(config_read(&config, environment, NULL), 0);
		CHECK_MEM(&config, &defaults, sizeof(config));
		CHECK_CONFIG("", entry, !memcmp(&c, &defaults, sizeof(c)));
	}
	CHECK(harp_config_count() > 40 && !harp_config_key(harp_config_count()));
}
