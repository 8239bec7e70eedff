#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs the test suite with three tests in parallel, because most tests wait for a process or a
# timer. Passes its arguments to pytest. If at most FEW tests failed, runs these again, one after
# the other, because a busy machine may have delayed them. A test that fails twice fails the run. A
# test that passes now is reported as flaky: repair it.
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
echo "run_tests: running the failed tests again, one after the other:"
.venv/bin/python -m pytest --last-failed --last-failed-no-failures none "$@"
status=$?
if ((status == 0)); then
	echo "run_tests: flaky: failed in parallel, passed alone:"
	sed 's/^/  /' <<<"$tests"
fi
exit "$status"
