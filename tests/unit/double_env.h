/* SPDX-License-Identifier: Apache-2.0 */
/* double_env.h - replaces config.c, device.c and log.c: the test sets the settings and the
 * device. */
#ifndef HARP_TESTS_DOUBLE_ENV_H
#define HARP_TESTS_DOUBLE_ENV_H

#include "context/plugin.h"

extern struct plugin_config env_config; /* the defaults; a test may change it */
extern char env_warn[1024];             /* the newest WARN line */
extern unsigned env_warns;              /* how many there were */
extern struct device env_device;        /* the loopback interface; a test may rename it */
extern int env_device_count;            /* it is all of them; 1 */
/* Called with each logged line; NULL: none. */
extern void (*env_log)(enum plugin_log_level level, const char *text);

#endif
