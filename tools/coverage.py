#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reports the line coverage of dataplane/ by the tests of `make test`.

    tools/coverage.py              build with gcov into build-coverage/, run the tests, report
    tools/coverage.py --report     report the last run again

For each function, prints the lines that no test ran, then the percentage. The exit code is 1 if the
coverage is below the mark.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build-coverage"
MARK_PERCENT = 90.0
SUITES = {"unit", "sim", "fuzz", "example", "dpdk"}
# One ABI version, for the background poller, its sleep, and fork().
CONFORMANCE_TESTS = ("conform-xdp-v12", "conform-dpdk-v12")
# Instrumented, a seed takes about five times as long. run_tests() runs fewer seeds instead.
SLOW_TESTS = ("sim seeds from", "goodput is as", "a slow lane costs")
SEEDS = 1000
PYTEST = ("tests/packet", "tests/netns", "tests/dpdk", "tests/daemon/test_dpdk_ports.py")
# The kernel runs the BPF program, so it has no data.
NOT_MEASURED = {"dataplane/xdp/steer.bpf.c"}
# It takes long, and other tests send the same traffic through the stack.
SLOW_PYTEST = "tests/netns/test_interop_matrix.py"


def call(*command: str | Path, check: bool = True, env: dict[str, str] | None = None) -> str:
    """Runs a command and returns its output."""
    bin_dir = ROOT / ".venv" / "bin"
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"PATH": f"{bin_dir}:{os.environ['PATH']}"} | (env or {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if check and done.returncode != 0:
        sys.exit(f"coverage: {' '.join(map(str, command))} failed:\n{done.stdout[-6000:]}")
    return done.stdout


def print_summary(output: str, *patterns: str) -> None:
    """Prints the lines of a test run that contain a pattern: failures and totals."""
    lines = [line for line in output.splitlines() if any(text in line for text in patterns)]
    print("\n".join(dict.fromkeys(lines)) or output[-2000:], flush=True)


def run_tests() -> None:
    """Builds and runs every test of the stack. Failed tests are printed and do not stop the run."""
    reconfigure = ["--reconfigure"] if (BUILD / "build.ninja").is_file() else []
    options = ["-Db_coverage=true", "-Doptimization=1", "-Dpython=enabled"]
    options += ["-Dc_args=-fprofile-update=atomic"]  # several threads update the counters
    print("coverage: building into build-coverage/", flush=True)
    call("meson", "setup", *reconfigure, BUILD, ROOT, *options)
    call("ninja", "-C", BUILD)
    for path in BUILD.rglob("*.gcda"):
        path.unlink()
    print("coverage: running the C tests", flush=True)
    tests = json.loads((BUILD / "meson-info" / "intro-tests.json").read_text())
    names = [
        test["name"]
        for test in tests
        if (
            SUITES & {suite.split(":")[-1] for suite in test["suite"]}
            or test["name"] in CONFORMANCE_TESTS
        )
        and not test["name"].startswith(SLOW_TESTS)
    ]
    # Ten times the usual timeout: the code is instrumented, and the machine may be busy.
    output = call("meson", "test", "-C", BUILD, "--no-rebuild", "-t", "10", *names, check=False)
    print_summary(output, " FAIL ", " TIMEOUT ", " ERROR ", "Ok:", "Fail:")
    output = call(BUILD / "tests/sim/sim_run", "--seeds", "0", str(SEEDS), check=False)
    print_summary(output, "seed")
    print("coverage: running the tests over packets and namespaces", flush=True)
    python = ROOT / ".venv/bin/python"
    options = ["-q", "-m", "not long", f"--ignore={SLOW_PYTEST}", *PYTEST]
    output = call(python, "-m", "pytest", *options, check=False, env={"HARP_BUILD": str(BUILD)})
    print_summary(output, "FAILED ", "ERROR ", " passed", " failed")


def function_name(file: str, name: str, number: int) -> str:
    """The function of a line. gcov has no name for some inline functions of headers."""
    if not name.startswith("<"):
        return name
    for line in reversed((ROOT / file).read_text().splitlines()[:number]):
        if match := re.match(r"\w[^(=;]*?(\w+)\(", line):
            return match[1]
    return "?"


def report() -> bool:
    """Prints the lines that did not run, by function, and the percentage. False below the mark."""
    gcovr: list[str | Path] = ["gcovr", "--root", ROOT, "--filter", f"{ROOT}/dataplane/", "--json"]
    gcovr += ["--merge-mode-functions=separate", "--gcov-ignore-errors=all"]
    gcovr += ["--gcov-ignore-parse-errors=negative_hits.warn", "--object-directory", BUILD, BUILD]
    text = call(*gcovr)
    document = json.loads(text[text.index("{") : text.rindex("}") + 1])
    # A file that gcov could not read is absent, not uncovered.
    sources = {str(path.relative_to(ROOT)) for path in ROOT.glob("dataplane/*/*.c")}
    if absent := sources - NOT_MEASURED - {file["file"] for file in document["files"]}:
        sys.exit(f"coverage: no data of {', '.join(sorted(absent))}: run it again without --report")
    total = covered = 0
    missing: dict[tuple[str, str], list[int]] = defaultdict(list)
    for file in document["files"]:
        for line in file["lines"]:
            if line.get("gcovr/noncode"):
                continue
            total += 1
            covered += line["count"] > 0
            if line["count"] == 0:
                number = line["line_number"]
                name = function_name(file["file"], line.get("function_name", "<none>"), number)
                missing[file["file"], name].append(number)
    for (path, function), numbers in sorted(missing.items()):
        print(f"{path} {function}(): {','.join(map(str, numbers))}")
    percent = 100.0 * covered / max(total, 1)
    print(f"coverage of dataplane/: {covered} of {total} lines, {percent:.1f} %")
    if percent < MARK_PERCENT:
        print(f"coverage: below {MARK_PERCENT} %")
    return percent >= MARK_PERCENT


def main() -> int:
    """Parses the command line, runs the tests and reports."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--report", action="store_true", help="report the last run; run no tests")
    options = parser.parse_args()
    if not options.report:
        run_tests()
    return 0 if report() else 1


if __name__ == "__main__":
    sys.exit(main())
