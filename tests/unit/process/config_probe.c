/* SPDX-License-Identifier: Apache-2.0 */
/* config_probe.c - says of each argument NAME=VALUE whether the plugin takes it, as a variable and from harpd. */
#include "process/config.h"
#include "process/log.h"

#include <stdarg.h>
#include <stdio.h>

/* Stands in for log.c: what is wrong is told by the result. */
void plugin_log(enum plugin_log_level level, const char *func, int line, const char *fmt, ...)
{
	(void)level;
	(void)func;
	(void)line;
	(void)fmt;
}

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		char *environment[] = { argv[i], NULL }, *nothing[] = { NULL };
		struct plugin_config config;
		int as_variable = config_read(&config, environment, NULL);
		int as_setting = config_read(&config, nothing, argv[i]);

		printf("%d %d\n", !as_variable, !as_setting);
	}
	return 0;
}
