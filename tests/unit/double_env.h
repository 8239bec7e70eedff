/* SPDX-License-Identifier: Apache-2.0 */
/* double_env.h - double of config.c, device.c, daemon.c and log.c: the test sets the configuration
 * and the device. */
#ifndef HARP_TESTS_DOUBLE_ENV_H
#define HARP_TESTS_DOUBLE_ENV_H

#include "context/plugin.h"

extern struct plugin_config env_config; /* the defaults; a test may change it */
extern char env_warn[1024];             /* the newest WARN line */
extern unsigned env_warns;              /* number of WARN lines */
extern struct device env_device;        /* the loopback interface; a test may rename it */
extern int env_device_count;            /* initially 1; each device is env_device */
/* Called with each logged line unless NULL. */
extern void (*env_log)(enum plugin_log_level level, const char *text);

#endif
