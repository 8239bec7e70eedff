/* SPDX-License-Identifier: Apache-2.0 */
/* log.h - opening and closing NCCL's logger; process/log.h has what everyone else calls. */
#ifndef HARP_PLUGIN_ABI_LOG_H
#define HARP_PLUGIN_ABI_LOG_H

#include "abi/nccl_abi.h"

/* Every context opens the log once, before anything it may want to say, and closes it last. A NULL
 * logger is accepted: silence. */
void log_open(nccl_logger logger);
void log_close(void);

#endif
