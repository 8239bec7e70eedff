/* SPDX-License-Identifier: Apache-2.0 */
/* check_main.c - main() of test programs that define none: runs all tests, or those named on the
 * command line. */
#include "check.h"

int main(int argc, char **argv)
{
	if (argc == 1)
		check_run();
	for (int i = 1; i < argc; i++)
		check_run_named(argv[i]);
	return check_done();
}
