#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs a command as root: directly, or through sudo. Afterwards, files of root in the checkout are
# given to the checkout's owner.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

if [ "$(id -u)" -ne 0 ]; then
	command -v sudo >/dev/null || {
		echo "harp: error: network namespaces need root: sudo is missing; run make as root" >&2
		exit 1
	}
	exec sudo -E "$0" "$@"
fi
"$@"
status=$?
if [ "$(stat -c %u .)" -ne 0 ]; then
	find . -xdev -path ./.git -prune -o -uid 0 -print0 | xargs -0r chown -h --reference=.
fi
exit $status
