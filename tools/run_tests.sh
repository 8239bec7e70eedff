#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs the test suite, three tests at a time, because most tests wait for another process or a timer.
# Arguments go to pytest. If at most FEW tests failed, these run once more, alone, because a busy
# machine may have delayed them. A test that fails again fails the run. One that passes is reported
# as flaky; repair it.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

FEW=8
failed() {
	.venv/bin/python -c 'import json; print("\n".join(json.load(open(".pytest_cache/v/cache/lastfailed"))))'
}

rm -f .pytest_cache/v/cache/lastfailed
.venv/bin/python -m pytest -n 3 --dist worksteal "$@"
status=$?
if ((status != 1)) || ! tests=$(failed) || (($(wc -l <<<"$tests") > FEW)); then
	exit "$status"
fi
echo "run_tests: the tests that failed run again, alone:"
.venv/bin/python -m pytest --last-failed --last-failed-no-failures none "$@"
status=$?
if ((status == 0)); then
	echo "run_tests: flaky, failed in parallel and passed alone:"
	sed 's/^/  /' <<<"$tests"
fi
exit "$status"
