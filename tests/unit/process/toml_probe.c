/* SPDX-License-Identifier: Apache-2.0 */
/* toml_probe.c - what the plugin reads in each harp.toml of its arguments: the result, then the line or the reason. */
#include "process/keyfile.h"

#include <stdio.h>

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		char why[256] = "";
		unsigned line = 0;
		int rc = toml_scan_encrypt(argv[i], &line, why, sizeof(why));

		if (rc < 0)
			printf("%d %s\n", rc, why);
		else
			printf("%d %u\n", rc, rc ? line : 0);
	}
	return 0;
}
