/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_config.c - environment variables and harpd's settings: config_read() accepts or rejects
 * them, and accepted values are in range. Port specs: fuzz_port.c.
 *
 * Input: the settings text of WELCOME up to a null byte, then variables, each up to a null byte. A
 * null byte at the start means no settings.
 */
#include "process/config.h"
#include "fuzz.h"
#include "harp_config.h"
#include "process/log.h"

#include <errno.h>
#include <stdarg.h>

#define VARIABLES_MAX 16u

/* Replaces log.c. Formats each line, so that the sanitizers check its arguments. */
void plugin_log(enum plugin_log_level level, const char *func, int line, const char *fmt, ...)
{
	char text[2048];
	va_list args;

	(void)level;
	(void)func;
	(void)line;
	va_start(args, fmt);
	CHECK(vsnprintf(text, sizeof(text), fmt, args) < (int)sizeof(text));
	va_end(args);
}

/* Checks that each value is within the range of the list of keys. */
static void check_config(const struct plugin_config *config)
{
#define IS_U32(field, min, max)                                                                    \
	CHECK((uint64_t)config->field + 1 > (uint64_t)(min) && (uint64_t)config->field <= (max))
	IS_U32(instances, 1, 64);
	IS_U32(frames, 1024, 1048576);
	IS_U32(port_min, 1024, config->port_max);
	IS_U32(port_max, 1024, 65535);
	IS_U32(page_flows, 0, 4096);
	IS_U32(eager_bytes, 4096, 16777216);
	IS_U32(path, 0, PATH_DPDK);
	IS_U32(dpdk_huge_pages, 0, HUGE_PAGES_REQUIRE);
	IS_U32(dpdk_memory_mib, 32, 1048576);
	IS_U32(daemon, 0, DAEMON_REQUIRE);
	IS_U32(lanes, 1, 8);
	IS_U32(kernel_lanes, 0, 16);
	IS_U32(rails, 0, RAILS_ALL);
	IS_U32(lane_timeout_ns, 20000000u, 60000000000ull);
	IS_U32(encrypt, 0, ENCRYPT_AES_256_GCM);
#undef IS_U32
	CHECK(memchr(config->ifname, '\0', sizeof(config->ifname)));
	CHECK(memchr(config->socket, '\0', sizeof(config->socket)));
	CHECK(memchr(config->label, '\0', sizeof(config->label)));
	CHECK(memchr(config->rss, '\0', sizeof(config->rss)));
	CHECK(memchr(config->key_file, '\0', sizeof(config->key_file)));
	CHECK(memchr(config->lib_dir, '\0', sizeof(config->lib_dir)));
	CHECK(memchr(config->dpdk, '\0', sizeof(config->dpdk)));
	CHECK(memchr(config->dpdk_args, '\0', sizeof(config->dpdk_args)));
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
	char *text = malloc(len + 1), *at = text;
	char *environment[VARIABLES_MAX + 1] = { NULL };
	struct plugin_config config;
	int result;

	CHECK(text);
	memcpy(text, bytes, len);
	text[len] = '\0';
	for (unsigned i = 0; i < VARIABLES_MAX; i++) {
		at += strlen(at) + 1;
		if (at >= text + len)
			break;
		environment[i] = at;
	}
	result = config_read(&config, environment, *text ? text : NULL);
	CHECK(result == 0 || result == -EINVAL);
	if (result == 0)
		check_config(&config);
	free(text);
	return 0;
}
