#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Line coverage of dataplane/ by the tests of `make test`, and what is not covered.

    tools/coverage.py              build with gcov into build-coverage/, run the tests, report
    tools/coverage.py --report     the report again, of the last run
    tools/coverage.py --update     write docs/uncovered.txt again, with the reasons that it has

docs/uncovered.txt names every function of dataplane/ that has lines no test runs, and why. Exit 1
when coverage is below the mark, or when a function stands there without a reason or not at all.
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
REASONS = ROOT / "docs" / "uncovered.txt"
MARK_PERCENT = 90.0
NO_REASON = "?"
SUITES = {"unit", "sim", "fuzz", "example", "dpdk"}
# One version of the ABI: the engine's thread, its sleep, a fork.
ALSO = ("conform-xdp-v12", "conform-dpdk-v12")
# Instrumented, a seed takes some five times as long: a tenth of them, here.
NOT_THESE = ("sim seeds from", "goodput is as", "a slow lane costs")
SEEDS = 1000
PYTEST = ("tests/packet", "tests/netns", "tests/dpdk", "tests/daemon/test_dpdk_ports.py")
# A BPF program: the kernel runs it.
NOT_MEASURED = {"dataplane/xdp/steer.bpf.c"}
# It is long, and other tests send the same traffic through the stack.
NOT_THIS = "tests/netns/test_interop_matrix.py"


def call(*command: str | Path, check: bool = True, env: dict[str, str] | None = None) -> str:
    """What a command printed."""
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


def said(out: str, *words: str) -> None:
    """Of a test run's output the lines that name failures, and the sum."""
    lines = [line for line in out.splitlines() if any(word in line for word in words)]
    print("\n".join(dict.fromkeys(lines)) or out[-2000:], flush=True)


def run_tests() -> None:
    """Everything that runs the stack. A test that fails is said, and does not end it."""
    again = ["--reconfigure"] if (BUILD / "build.ninja").is_file() else []
    options = ["-Db_coverage=true", "-Doptimization=1", "-Dpython=enabled"]
    options += ["-Dc_args=-fprofile-update=atomic"]  # threads count too
    print("coverage: building into build-coverage/", flush=True)
    call("meson", "setup", *again, BUILD, ROOT, *options)
    call("ninja", "-C", BUILD)
    for path in BUILD.rglob("*.gcda"):
        path.unlink()
    print("coverage: running the C tests", flush=True)
    tests = json.loads((BUILD / "meson-info" / "intro-tests.json").read_text())
    names = [
        test["name"]
        for test in tests
        if (SUITES & {suite.split(":")[-1] for suite in test["suite"]} or test["name"] in ALSO)
        and not test["name"].startswith(NOT_THESE)
    ]
    # Ten times the time that it has otherwise: instrumented, and on a machine with other work.
    out = call("meson", "test", "-C", BUILD, "--no-rebuild", "-t", "10", *names, check=False)
    said(out, " FAIL ", " TIMEOUT ", " ERROR ", "Ok:", "Fail:")
    said(call(BUILD / "tests/sim/sim_run", "--seeds", "0", str(SEEDS), check=False), "seed")
    print("coverage: running the tests over packets and namespaces", flush=True)
    python = ROOT / ".venv/bin/python"
    options = ["-q", "-m", "not long", f"--ignore={NOT_THIS}", *PYTEST]
    out = call(python, "-m", "pytest", *options, check=False, env={"HARP_BUILD": str(BUILD)})
    said(out, "FAILED ", "ERROR ", " passed", " failed")


def function_name(file: str, name: str, number: int) -> str:
    """The function of a line; gcov has no name for some inline functions of headers."""
    if not name.startswith("<"):
        return name
    for line in reversed((ROOT / file).read_text().splitlines()[:number]):
        if found := re.match(r"\w[^(=;]*?(\w+)\(", line):
            return found[1]
    return "?"


def uncovered() -> tuple[int, int, dict[str, dict[str, list[int]]]]:
    """Lines, lines covered, and per file and function the lines that did not run."""
    gcovr: list[str | Path] = ["gcovr", "--root", ROOT, "--filter", f"{ROOT}/dataplane/", "--json"]
    gcovr += ["--merge-mode-functions=separate", "--gcov-ignore-errors=all"]
    gcovr += ["--gcov-ignore-parse-errors=negative_hits.warn", "--object-directory", BUILD, BUILD]
    text = call(*gcovr)
    document = json.loads(text[text.index("{") : text.rindex("}") + 1])
    total = covered = 0
    missing: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    # What gcov could not read is not there, rather than uncovered.
    sources = {str(path.relative_to(ROOT)) for path in ROOT.glob("dataplane/*/*.c")}
    if absent := sources - NOT_MEASURED - {file["file"] for file in document["files"]}:
        sys.exit(f"coverage: no data of {', '.join(sorted(absent))}: run it all again")
    for file in document["files"]:
        for line in file["lines"]:
            if line.get("gcovr/noncode"):
                continue
            total += 1
            covered += line["count"] > 0
            if line["count"] == 0:
                number = line["line_number"]
                name = function_name(file["file"], line.get("function_name", "<none>"), number)
                missing[file["file"]][name].append(number)
    return total, covered, missing


def reasons() -> dict[tuple[str, str], str]:
    """What docs/uncovered.txt says: file, function and reason on each line."""
    found = {}
    if REASONS.is_file():
        for line in REASONS.read_text().splitlines():
            if line and not line.startswith("#"):
                file, function, reason = line.split(None, 2)
                found[file, function] = reason
    return found


def update(missing: dict[str, dict[str, list[int]]]) -> None:
    """Rewrites the list; reasons that are there stay."""
    known = reasons()
    lines = [
        "# Functions of dataplane/ with lines that no test of `make coverage` runs, and why.",
        "# `tools/coverage.py --update` brings it up to date; new ones get the reason ?.",
    ]
    for file in sorted(missing):
        for function in sorted(missing[file]):
            lines.append(f"{file} {function} {known.get((file, function), NO_REASON)}")
    REASONS.write_text("\n".join(lines) + "\n")


def report(total: int, covered: int, missing: dict[str, dict[str, list[int]]]) -> bool:
    """Prints it; false when something is wrong."""
    known, good = reasons(), True
    for file in sorted(missing):
        for function, numbers in sorted(missing[file].items()):
            reason = known.get((file, function), NO_REASON)
            where = ",".join(map(str, numbers[:12])) + ("..." if len(numbers) > 12 else "")
            print(f"{file}:{where} {function}: {reason}")
            good &= reason != NO_REASON
    percent = 100.0 * covered / max(total, 1)
    print(f"coverage of dataplane/: {covered} of {total} lines, {percent:.1f} %")
    if not good:
        print(f"coverage: functions without a reason: explain them in {REASONS.relative_to(ROOT)}")
    if percent < MARK_PERCENT:
        print(f"coverage: below {MARK_PERCENT} %")
    return good and percent >= MARK_PERCENT


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--report", action="store_true", help="of the last run; runs nothing")
    parser.add_argument("--update", action="store_true", help="write docs/uncovered.txt again")
    options = parser.parse_args()
    if not options.report and not options.update:
        run_tests()
    total, covered, missing = uncovered()
    if options.update:
        update(missing)
    return 0 if report(total, covered, missing) or options.update else 1


if __name__ == "__main__":
    sys.exit(main())
