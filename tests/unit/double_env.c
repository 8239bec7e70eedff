/* SPDX-License-Identifier: Apache-2.0 */
/* double_env.c - see double_env.h. */
#include "double_env.h"
#include "device/daemon.h"
#include "process/log.h"
#include "process/config.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct plugin_config env_config = {
	.path = PATH_AUTO,
	.eager_bytes = 262144,
	.lanes = 1,
	.kernel_lanes = 1,
	.nccl_threads = -1,
	.nccl_sockets_per_thread = -1,
	.lane_timeout_ns = 500000000,
	.connect_timeout_ns = 5000000000ull,
	.user_timeout_ns = 120000000000ull,
	.initial_rto_ns = 200000000,
	.probe_interval_ns = 250000000,
	.close_linger_ns = 50000000,
	.background_idle_ns = 1000000,
};
char env_warn[1024];
unsigned env_warns;
static pthread_mutex_t env_lock = PTHREAD_MUTEX_INITIALIZER;
int env_device_count = 1;
void (*env_log)(enum plugin_log_level level, const char *text);
struct device env_device = { .ifname = "lo", .ifindex = 1, .has_v4 = true };

const struct plugin_config *plugin_config(void)
{
	return &env_config;
}

int plugin_config_load(const char *settings)
{
	(void)settings;
	return 0;
}

int plugin_daemon_load(void)
{
	return 0;
}

const char *plugin_daemon_socket(const struct device *device, char *why, size_t why_len)
{
	(void)device;
	snprintf(why, why_len, "the tests have no harpd");
	return NULL;
}

uint64_t plugin_netns(void)
{
	return 1;
}

bool plugin_daemon_is_generic(const struct device *device)
{
	(void)device;
	return false;
}

unsigned plugin_ports_refused(void)
{
	return 0;
}

int plugin_devices_load(plugin_port_open *open)
{
	(void)open;
	env_device.addr_v4 = harp_addr_v4(127, 0, 0, 1);
	return 0;
}

int plugin_device_count(void)
{
	return env_device_count;
}

const struct device *plugin_device(int dev)
{
	return dev >= 0 && dev < env_device_count ? &env_device : NULL;
}

void plugin_log(enum plugin_log_level level, const char *func, int line, const char *fmt, ...)
{
	va_list args;

	(void)func;
	(void)line;
	if (level != PLUGIN_WARN && !env_log && !getenv("TEST_VERBOSE"))
		return;
	pthread_mutex_lock(&env_lock);
	va_start(args, fmt);
	vsnprintf(env_warn, sizeof(env_warn), fmt, args);
	va_end(args);
	env_warns += level == PLUGIN_WARN;
	if (env_log)
		env_log(level, env_warn);
	if (getenv("TEST_VERBOSE"))
		fprintf(stderr, "%s\n", env_warn);
	pthread_mutex_unlock(&env_lock);
}
