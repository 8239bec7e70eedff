/* SPDX-License-Identifier: Apache-2.0 */
/* config.h - reading an environment; plugin.h has the process's own. */
#ifndef HARP_PLUGIN_CONFIG_H
#define HARP_PLUGIN_CONFIG_H

#include "plugin.h"

/*
 * Fills out from environment (NAME=VALUE strings, then NULL). Every HARP_ variable with a bad value
 * or an unknown name gets one WARN. -EINVAL when a value is bad; out is then unusable.
 */
int config_read(struct plugin_config *out, char *const *environment);

#endif
