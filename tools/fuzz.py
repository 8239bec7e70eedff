#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the fuzz targets of tests/fuzz under libFuzzer with AddressSanitizer and UBSan.

    tools/fuzz.py                      every target for 60 s, one per CPU at a time
    tools/fuzz.py --seconds 3600       an hour, divided among the targets
    tools/fuzz.py --each 600 fuzz_tcp  one target, ten minutes

It only reads the seed corpus (tests/fuzz/corpus). New inputs stay in build-fuzz/corpus, where the
next run continues. Inputs that fail are saved in build-fuzz/found, and the command that replays
them is printed; the exit code is then 1.
"""

import argparse
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build-fuzz"
SEEDS = ROOT / "tests" / "fuzz" / "corpus"
CPUS = len(os.sched_getaffinity(0))
INPUT_BYTES_MAX = {"fuzz_options": 40, "fuzz_handle": 2048}
ENVIRONMENT = {
    "ASAN_OPTIONS": "detect_leaks=1:abort_on_error=0:symbolize=1",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
}


def build() -> None:
    """Builds the targets with clang into build-fuzz/."""
    bin_dir = ROOT / ".venv" / "bin"
    env = os.environ | {"CC": "clang", "PATH": f"{bin_dir}:{os.environ['PATH']}"}
    reconfigure = ["--reconfigure"] if (BUILD / "build.ninja").is_file() else []
    options = ["-Dpython=disabled", "-Dfuzz=true", "-Db_sanitize=address,undefined"]
    options += ["-Db_lundef=false", "-Doptimization=1", "-Dc_args=-fsanitize=fuzzer-no-link"]
    commands: list[list[str | Path]] = [
        ["meson", "setup", *reconfigure, BUILD, ROOT, *options],
        ["ninja", "-C", BUILD, "fuzz-targets"],
    ]
    for command in commands:
        done = subprocess.run(
            command,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            sys.exit(f"fuzz: {' '.join(map(str, command))} failed:\n{done.stdout[-6000:]}")


def targets() -> list[str]:
    """Names of the targets: each has a folder of seeds."""
    return sorted(path.name for path in SEEDS.iterdir() if path.is_dir())


def run(name: str, seconds: int) -> tuple[str, bool]:
    """Runs one target. Returns a line for the table, and whether no input failed."""
    corpus, failures = BUILD / "corpus" / name, BUILD / "found" / name
    corpus.mkdir(parents=True, exist_ok=True)
    failures.mkdir(parents=True, exist_ok=True)
    program = BUILD / "tests" / "fuzz" / name
    command: list[str | Path] = [
        program,
        f"-max_total_time={seconds}",
        f"-artifact_prefix={failures}/",
    ]
    command += [f"-max_len={INPUT_BYTES_MAX.get(name, 8192)}", "-timeout=25"]
    command += ["-print_final_stats=1"]
    # Entropic scheduling is slow for inputs with many features: fuzz_tcp, with thousands of
    # features per input, is nine times as fast without it.
    command += ["-entropic=0", "-rss_limit_mb=4096", corpus, SEEDS / name]
    done = subprocess.run(
        command,
        env=os.environ | ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    count = re.search(r"number_of_executed_units: *(\d+)", done.stdout)
    cover = re.findall(r"cov: (\d+)", done.stdout)
    line = f"{name:<16} {int(count[1]) if count else 0:>12,} inputs  {cover[-1] if cover else '?'}"
    if done.returncode == 0:
        return f"{line} edges  nothing found", True
    (failures / "log").write_text(done.stdout)
    artifact = re.search(r"Test unit written to (\S+)", done.stdout)
    replay = f"{program} {artifact[1]}" if artifact else f"see {failures}/log"
    tail = done.stdout[-3000:] if not artifact else ""
    return f"{line} edges  FAILED, replay it: {replay}{tail}", False


def main() -> int:
    """Parses the command line, builds the targets and runs them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, help="total time of all targets")
    parser.add_argument("--each", type=int, default=60, help="time of each target (60)")
    parser.add_argument("target", nargs="*", help="targets to run (all)")
    options = parser.parse_args()
    names = options.target or targets()
    if unknown := set(names) - set(targets()):
        parser.error(f"no such target: {', '.join(sorted(unknown))}; there are {targets()}")
    seconds = options.each
    if options.seconds:
        seconds = max(1, options.seconds * min(CPUS, len(names)) // len(names))
    print("fuzz: building with clang into build-fuzz/", flush=True)
    build()
    print(f"fuzz: {len(names)} targets, {seconds} s each, {CPUS} at a time", flush=True)
    has_failed = False
    with ThreadPoolExecutor(CPUS) as pool:
        for line, is_good in pool.map(lambda name: run(name, seconds), names):
            print(line, flush=True)
            has_failed |= not is_good
    return 1 if has_failed else 0


if __name__ == "__main__":
    sys.exit(main())
