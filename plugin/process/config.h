/* SPDX-License-Identifier: Apache-2.0 */
/* config.h - reading an environment; plugin.h has the process's own. */
#ifndef HARP_PLUGIN_CONFIG_H
#define HARP_PLUGIN_CONFIG_H

#include "plugin.h"

/*
 * Fills out: the defaults, over them settings (what harp.toml says to jobs, of WELCOME: one NAME=VALUE a
 * line; NULL: none), over them environment (NAME=VALUE strings, then NULL). Every value that is not understood
 * gets one WARN. An unknown HARP_ variable gets one without settings; with them it was said before.
 * -EINVAL when a value is bad; out is then unusable.
 */
int config_read(struct plugin_config *out, char *const *environment, const char *settings);

#endif
