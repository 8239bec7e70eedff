/* SPDX-License-Identifier: Apache-2.0 */
/* test_config.c - the HARP_* variables: defaults, every key, bad values and misspelt names. */
#include "process/config.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "harp_config.h"
#include "process/log.h"

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
	return config_read(config, environment, NULL);
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
	CHECK(config.initial_rto_ns == 200000000ull);
	CHECK(config.probe_interval_ns == 250000000ull && config.close_linger_ns == 50000000ull);
	CHECK(config.background_idle_ns == 1000000ull && config.family == 0);
	CHECK(config.lanes == 1 && config.kernel_lanes == 0);
	CHECK(config.rails == RAILS_BACKUP && config.lane_timeout_ns == 500000000);
	CHECK(config.encrypt == ENCRYPT_AUTO && !config.key_file[0]);
	CHECK(!config.ifname[0] && !config.ifname_set && !config.lib_dir[0]);
	CHECK(config.daemon == DAEMON_AUTO && !config.socket[0] && config.instances == 1);
	CHECK(config.port_min == 61000 && config.port_max == 65535 && !config.rss[0]);
	CHECK(config.page_flows == 256 && !config.label[0]);
	CHECK(!config.dpdk[0] && !config.dpdk_args[0] && config.dpdk_memory_mib == 256);
	CHECK(config.dpdk_huge_pages == HUGE_PAGES_AUTO);
}

static void test_values(void)
{
	struct plugin_config c;

	CHECK(!read_one(&c, "HARP_PATH=xdp") && c.path == PATH_XDP);
	CHECK(!read_one(&c, "HARP_PATH=kernel") && c.path == PATH_KERNEL);
	CHECK(!read_one(&c, "HARP_PATH=dpdk") && c.path == PATH_DPDK);
	CHECK(!read_one(&c, "HARP_PATH=") && c.path == PATH_AUTO);
	CHECK(!read_one(&c, "HARP_DPDK=net_ring0;ip=10.0.0.1/24 0000:3b:00.0,x=1;gw=10.0.0.9"));
	CHECK(!strcmp(c.dpdk, "net_ring0;ip=10.0.0.1/24 0000:3b:00.0,x=1;gw=10.0.0.9"));
	CHECK(!read_one(&c, "HARP_DPDK_HUGE_PAGES=require"));
	CHECK(c.dpdk_huge_pages == HUGE_PAGES_REQUIRE);
	CHECK(!read_one(&c, "HARP_DPDK_MEMORY_MIB=512") && c.dpdk_memory_mib == 512);
	CHECK(!read_one(&c, "HARP_DPDK_ARGS=--no-pci -d x") &&
	      !strcmp(c.dpdk_args, "--no-pci -d x"));
	CHECK(!read_one(&c, "HARP_XDP_MODE=native") && c.xdp_mode == HARP_XDP_NATIVE);
	CHECK(!read_one(&c, "HARP_CONGESTION=dctcp") && c.congestion == HARP_CONGESTION_DCTCP);
	CHECK(!read_one(&c, "HARP_CONGESTION=delay") && c.congestion == HARP_CONGESTION_DELAY);
	CHECK(!read_one(&c, "HARP_ECN=request") && c.ecn == HARP_ECN_REQUEST);
	CHECK(!read_one(&c, "HARP_EAGER_BYTES=65536") && c.eager_bytes == 65536);
	CHECK(!read_one(&c, "HARP_FRAMES=1024") && c.frames == 1024);
	CHECK(!read_one(&c, "HARP_INITIAL_RTO_MS=1000") && c.initial_rto_ns == 1000000000ull);
	CHECK(!read_one(&c, "HARP_PROBE_INTERVAL_MS=0") && c.probe_interval_ns == 0);
	CHECK(!read_one(&c, "HARP_BACKGROUND_IDLE_US=250") && c.background_idle_ns == 250000);
	CHECK(!read_one(&c, "HARP_CONNECT_TIMEOUT_MS=0050") && c.connect_timeout_ns == 50000000);
	CHECK(!read_one(&c, "HARP_SPEED_MBPS=400000") && c.speed_mbps == 400000);
	CHECK(!read_one(&c, "HARP_LIBDIR=/opt/harp") && !strcmp(c.lib_dir, "/opt/harp"));
	CHECK(!read_one(&c, "HARP_DAEMON=require") && c.daemon == DAEMON_REQUIRE);
	CHECK(!read_one(&c, "HARP_SOCKET=/run/x/s") && !strcmp(c.socket, "/run/x/s"));
	CHECK(!read_one(&c, "HARP_INSTANCES=8") && c.instances == 8);
	CHECK(!read_one(&c, "HARP_RSS=unknown") && !strcmp(c.rss, "unknown"));
	CHECK(!read_one(&c, "HARP_LABEL=rank 3") && !strcmp(c.label, "rank 3"));
	CHECK(!read_one(&c, "HARP_PAGE_FLOWS=0") && c.page_flows == 0);
	CHECK(!read_one(&c, "HARP_PORT_MIN=65535") && c.port_min == 65535);
	CHECK(!read_one(&c, "HARP_RUN_DIR=anything at all")); /* harpd's: not ours to judge */
	CHECK(!read_one(&c, "HARP_IFNAME==eth0,eth1") && !strcmp(c.ifname, "=eth0,eth1"));
	CHECK(c.ifname_set);
	CHECK(!read_one(&c, "NCCL_SOCKET_IFNAME=eth") && !strcmp(c.ifname, "eth") && c.ifname_set);
	CHECK(!read_one(&c, "NCCL_SOCKET_IFNAME=^lo,docker") && !c.ifname_set && c.ifname[0]);
	CHECK(!read_one(&c, "NCCL_SOCKET_FAMILY=AF_INET6") && c.family == AF_INET6);
	CHECK(!read_one(&c, "NCCL_SOCKET_FAMILY=AF_INET") && c.family == AF_INET);
	CHECK(!read_one(&c, "NCCL_SOCKET_FAMILY=ipx") && c.family == 0);
	CHECK(!read_one(&c, "NCCL_SOCKET_NTHREADS=4") && c.nccl_threads == 4);
	CHECK(c.nccl_sockets_per_thread == -1);
	CHECK(!read_one(&c, "NCCL_NSOCKS_PERTHREAD=0x8") && c.nccl_sockets_per_thread == 8);
	CHECK(c.nccl_threads == -1);
	CHECK(!read_one(&c, "NCCL_SOCKET_NTHREADS=0") && c.nccl_threads == 0);
	CHECK(!read_one(&c, "NCCL_SOCKET_NTHREADS=99999999999") && c.nccl_threads == INT_MAX);
	CHECK(!read_one(&c, "NCCL_SOCKET_NTHREADS=99999999999999999999") && c.nccl_threads == -1);
	CHECK(!read_one(&c, "NCCL_SOCKET_NTHREADS=2x") && c.nccl_threads == -1 && !warnings);
	CHECK(!read_one(&c, "NCCL_SOCKET_NTHREADS=-2") && c.nccl_threads == -1 && !warnings);
	CHECK(!read_one(&c, "NCCL_SOCKET_NTHREADS=") && c.nccl_threads == -1);
	CHECK(warnings == 0);
}

/* What the interface has is asked when it is opened; here it is the shape alone. */
static void test_rss(void)
{
	struct plugin_config c;
	char entry[160] = "HARP_RSS=toeplitz:";

	memset(entry + strlen(entry), 'a', 2 * 40);
	CHECK(!read_one(&c, entry) && warnings == 0);
	strcat(entry, ":0,1,65535");
	CHECK(!read_one(&c, entry) && warnings == 0);
	CHECK(!strcmp(c.rss, entry + strlen("HARP_RSS=")));
	strcat(entry, ",x");
	CHECK(read_one(&c, entry) == -EINVAL && warnings == 1);
}

static void test_what_excludes_each_other(void)
{
	char *environment[] = { (char *)(uintptr_t) "HARP_CONGESTION=dctcp",
				(char *)(uintptr_t) "HARP_ECN=off", NULL };
	struct plugin_config config;

	warnings = 0;
	CHECK(config_read(&config, environment, NULL) == -EINVAL);
	CHECK(warnings == 1 && strstr(last_warning, "HARP_ECN"));
	CHECK(read_one(&config, "HARP_PORT_MAX=60999") == -EINVAL);
	CHECK(warnings == 1 && strstr(last_warning, "HARP_PORT_MIN=61000 is above"));
}

static void test_precedence(void)
{
	char *environment[] = { (char *)(uintptr_t) "NCCL_SOCKET_IFNAME=eth0",
				(char *)(uintptr_t) "HARP_IFNAME=ens1", NULL };
	struct plugin_config config;

	CHECK(!config_read(&config, environment, NULL) && !strcmp(config.ifname, "ens1"));
	environment[1] = (char *)(uintptr_t) "HARP_IFNAME=";
	CHECK(!config_read(&config, environment, NULL) && !strcmp(config.ifname, "eth0"));
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

	check_bad("HARP_RSS=topelitz", "topelitz", "unknown, or toeplitz:KEY");
	check_bad("HARP_RSS=toeplitz:6d5a", "toeplitz:6d5a", "KEY 40 to 64 bytes");
	check_bad("HARP_PATH=dpd", "dpd", "auto|xdp|kernel|dpdk");
	check_bad("HARP_DPDK_HUGE_PAGES=yes", "yes", "auto|never|require");
	check_bad("HARP_DPDK_MEMORY_MIB=31", "31", "MiB from 32 to 1048576");
	check_bad("HARP_DPDK=net_null0\nnet_null1", "net_null0\n", "control character");
	check_bad("HARP_DPDK_ARGS=--no-pci\t", "--no-pci", "control character");
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
	check_bad("HARP_BACKGROUND_IDLE_US=2000000", "2000000", "us");
	check_bad("HARP_DAEMON=yes", "yes", "auto|off|require");
	check_bad("HARP_INSTANCES=0", "0", "from 1 to 64");
	check_bad("HARP_LABEL=a\nb", "a\nb", "control character");
	check_bad("HARP_LABEL=\x7f", "\x7f", "control character");
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

	check_hint("HARP_=1", "HARP_ is");
	check_hint("HARP_path=1", "HARP_path");
	check_hint("HARP_COMPLETELY_ELSEWHERE=1", "harpctl config show");
	memset(entry + strlen(entry), 'Y', 300);
	strcat(entry, "=1");
	check_hint(entry, "harpctl config show");
}

static int read_settings(struct plugin_config *config, const char *entry, const char *settings)
{
	char *environment[] = { (char *)(uintptr_t)entry, NULL };

	warnings = 0;
	last_warning[0] = '\0';
	return config_read(config, environment, settings);
}

/* What harpd says lies beneath the environment and above the defaults. */
static void test_settings(void)
{
	struct plugin_config c, defaults;

	CHECK(!read_one(&defaults, "X=1"));
	CHECK(!read_settings(&c, "X=1", "") && !memcmp(&c, &defaults, sizeof(c)));
	CHECK(!read_settings(&c, "X=1", "\n\n") && !memcmp(&c, &defaults, sizeof(c)));
	CHECK(!read_settings(&c, "X=1", "HARP_FRAMES=1024\nHARP_PATH=xdp\nHARP_INSTANCES=2\n"));
	CHECK(c.frames == 1024 && c.path == PATH_XDP && c.instances == 2);
	CHECK(!read_settings(&c, "HARP_FRAMES=2048", "HARP_FRAMES=1024\nHARP_PATH=xdp"));
	CHECK(c.frames == 2048 && c.path == PATH_XDP);
	/* An empty variable is an unset one, and so is an empty setting. */
	CHECK(!read_settings(&c, "HARP_FRAMES=", "HARP_FRAMES=1024") && c.frames == 1024);
	CHECK(!read_settings(&c, "X=1", "HARP_FRAMES=\nHARP_PATH=") && c.frames == 8192);
	/* How harpd is found was settled before harpd spoke. */
	CHECK(!read_settings(&c, "X=1", "HARP_DAEMON=off\nHARP_SOCKET=/elsewhere"));
	CHECK(c.daemon == DAEMON_AUTO && !c.socket[0]);
	CHECK(!read_settings(&c, "NCCL_SOCKET_IFNAME=eth0", "HARP_IFNAME=ens1"));
	CHECK(!strcmp(c.ifname, "ens1") && c.ifname_set);
	/* A newer harpd may say more than we know; and of a misspelt variable we spoke before. */
	CHECK(!read_settings(&c, "HARP_PATHS=xdp",
			     "HARP_TELEPATHY=on\nno equals sign\nHARP_RUN_DIR=/x"));
	CHECK(!memcmp(&c, &defaults, sizeof(c)) && warnings == 0);
}

/* A harpd that was taken over must not choose what code a job loads. */
static void test_settings_that_are_not_harpds(void)
{
	struct plugin_config c, defaults;

	CHECK(!read_one(&defaults, "X=1"));
	CHECK(!read_settings(&c, "X=1",
			     "HARP_LIBDIR=/tmp/evil\nHARP_DPDK_ARGS=-d /tmp/evil.so\n"
			     "HARP_DPDK=net_null0\nHARP_LABEL=x\nHARP_CONFIG=/tmp/x"));
	CHECK(!memcmp(&c, &defaults, sizeof(c)) && warnings == 0);
}

/* Of environment and harp.toml the stronger holds. */
static void test_required_encryption(void)
{
	static const char required[] = "HARP_ENCRYPT=aes-256-gcm";
	struct plugin_config c;

	CHECK(!read_settings(&c, "X=1", required) && c.encrypt == ENCRYPT_AES_256_GCM);
	CHECK(!read_settings(&c, "HARP_ENCRYPT=", required) && c.encrypt == ENCRYPT_AES_256_GCM);
	CHECK(!read_settings(&c, "HARP_ENCRYPT=auto", required) &&
	      c.encrypt == ENCRYPT_AES_256_GCM);
	CHECK(read_settings(&c, "HARP_ENCRYPT=off", required) == -EINVAL && warnings == 1);
	CHECK(strstr(last_warning, "harp.toml requires encryption"));
	CHECK(!read_settings(&c, required, "HARP_ENCRYPT=off") && c.encrypt == ENCRYPT_AES_256_GCM);
	CHECK(!read_settings(&c, "X=1", "HARP_ENCRYPT=off") && c.encrypt == ENCRYPT_OFF);
	CHECK(!read_settings(&c, "HARP_ENCRYPT=auto", "HARP_ENCRYPT=off") &&
	      c.encrypt == ENCRYPT_AUTO);
}

static void check_bad_settings(const char *settings, const char *value)
{
	struct plugin_config c;

	CHECK(read_settings(&c, "X=1", settings) == -EINVAL && warnings == 1);
	CHECK(strstr(last_warning, "harp.toml of harpd: HARP_") && strstr(last_warning, value));
}

static void test_bad_settings(void)
{
	char settings[4096] = "HARP_KEY_FILE=";
	struct plugin_config c;

	check_bad_settings("HARP_FRAMES=12", "from 1024 to 1048576");
	check_bad_settings("HARP_ECN=off\nHARP_PATH=dpkd\nHARP_ECN=off", "auto|xdp|kernel");
	check_bad_settings("HARP_IFNAME=a\tb", "control character");
	/* The environment does not mend a file that is wrong. */
	CHECK(read_settings(&c, "HARP_FRAMES=2048", "HARP_FRAMES=12") == -EINVAL);
	CHECK(read_settings(&c, "HARP_ECN=off", "HARP_CONGESTION=dctcp") == -EINVAL);
	CHECK(strstr(last_warning, "needs ECN"));
	memset(settings + strlen(settings), 'x', 3000);
	check_bad_settings(settings, "255 characters");
	settings[14 + 255] = '\0';
	CHECK(!read_settings(&c, "X=1", settings) && strlen(c.key_file) == 255);
}

/* Every job key takes its own default, from both sources, and its help is a sentence worth printing. */
static void test_list(void)
{
	struct plugin_config defaults, config;
	const struct harp_config_key *key;
	char entry[160];

	CHECK(!read_one(&defaults, "X=1"));
	for (unsigned i = 0; (key = harp_config_key(i)); i++) {
		if (!strncmp(key->name, "HARP_", 5)) {
			snprintf(entry, sizeof(entry), "%s=%s", key->name, key->preset);
			CHECK(!read_one(&config, entry) && warnings == 0);
			CHECK(!memcmp(&config, &defaults, sizeof(config)));
			CHECK(!read_settings(&config, "X=1", entry) && warnings == 0);
			CHECK(!memcmp(&config, &defaults, sizeof(config)));
		}
		CHECK(strlen(key->help) > 20 && key->readers && key->min <= key->max);
	}
	CHECK(harp_config_count() > 40 && !harp_config_key(harp_config_count()));
}

int main(void)
{
	test_defaults();
	test_values();
	test_rss();
	test_what_excludes_each_other();
	test_precedence();
	test_bad_values();
	test_unknown();
	test_settings();
	test_settings_that_are_not_harpds();
	test_required_encryption();
	test_bad_settings();
	test_list();
	return failures != 0;
}
