/* SPDX-License-Identifier: Apache-2.0 */
/* version.c - the library's version, from meson.build. */
#include "harp.h"

const char *harp_version(void)
{
	return HARP_VERSION;
}
