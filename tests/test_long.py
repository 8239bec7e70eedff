# SPDX-License-Identifier: Apache-2.0
"""Additional tests of `make test-long`: warnings of two compilers, many seeds, clang-tidy.
tests/test_sanitize.py and tests/install (wheel, packages) have others.

Builds are in build-long/ and are updated, so a second run is fast. To run a part:
pytest tests/test_long.py -k 'tidy or seeds'.
"""

import json
import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from build_trees import BUILD_S, built, compiled, output, unique_commands
from programs import finished

CPUS = len(os.sched_getaffinity(0))
long = pytest.mark.long


# --------------------------------------------------------------------------------------------------
# Neither compiler warns.
#
def is_without_warnings(build: Path) -> bool:
    """Is it an up-to-date build by gcc with warnings as errors?"""
    about = build / "meson-info"
    options = {
        option["name"]: option["value"]
        for option in json.loads((about / "intro-buildoptions.json").read_text())
    }
    compilers = json.loads((about / "intro-compilers.json").read_text())
    if not options["werror"] or compilers["host"]["c"]["id"] != "gcc":
        return False
    return "no work to do" in output(["ninja", "-n", "-C", build])


def test_gcc_does_not_warn(root_dir: Path, build_dir: Path) -> None:
    """If `make build` has not proven it, compile all files again, with little optimization to save
    time."""
    if not is_without_warnings(build_dir):
        assert compiled(root_dir, "gcc", "-Dwerror=true", "-Doptimization=1") > 300


@long
@pytest.mark.parametrize("cc", ["gcc", "clang"])
def test_compilers_do_not_warn(root_dir: Path, cc: str) -> None:
    """With the default optimization."""
    built(root_dir, f"werror-{cc}", "-Dwerror=true", cc=cc)


# --------------------------------------------------------------------------------------------------
# Many seeds.
#
SEEDS = int(os.environ.get("HARP_SEEDS", "20000"))
# `make test` runs the seeds below these.
FIRST_SEED = {"sim_run": 4000, "sim_comm_run": 1400, "sim_coll_run": 150}
SLOWDOWN = {"sim_coll_run": 10}  # time per seed, compared with the other programs
FAILURES_MAX = 10


def failing_seeds(sim: Path, first: int, count: int) -> list[str]:
    """Return a line for each failing seed of a range, at most FAILURES_MAX."""
    lines, end = [], first + count
    while first < end and len(lines) < FAILURES_MAX:
        done = finished([sim, "--seeds", str(first), str(end - first)], stdin=subprocess.DEVNULL)
        if done.returncode == 0:
            break
        failed = re.search(r"^seed (\d+) FAILED: .*$", done.stdout, re.MULTILINE)
        if failed is None:  # a crash somewhere in the range
            lines.append(f"exit status {done.returncode}, seeds {first} to {end}: {done.stderr}")
            break
        lines.append(f"{failed[0]}\n  replay it: {sim} --seed {failed[1]}")
        first = int(failed[1]) + 1
    return lines


@long
@pytest.mark.parametrize("program", FIRST_SEED)
def test_many_seeds(build_dir: Path, program: str) -> None:
    """Run HARP_SEEDS seeds (default: 20000) on all processors."""
    sim = build_dir / "tests/sim" / program
    seeds = SEEDS // SLOWDOWN.get(program, 1)
    piece = max(1, seeds // (8 * CPUS))
    first = FIRST_SEED[program]
    starts = range(first, first + seeds, piece)
    with ThreadPoolExecutor(CPUS) as pool:
        pieces = [
            pool.submit(failing_seeds, sim, at, min(piece, first + seeds - at)) for at in starts
        ]
        lines = [line for part in pieces for line in part.result()]
    if lines:
        pytest.fail("\n".join(lines[:FAILURES_MAX]), pytrace=False)


@long
def test_lanes_die_at_every_step(build_dir: Path) -> None:
    """In small scenarios of comms, each lane dies in each way at each step."""
    output([build_dir / "tests/sim/sim_comm_run", "--exhaustive", "1"], timeout_s=BUILD_S)


# --------------------------------------------------------------------------------------------------
# clang-tidy.
#
def test_clang_tidy_gives_reasons(root_dir: Path) -> None:
    """Every disabled check has its reason in a comment."""
    for path in (root_dir / ".clang-tidy", root_dir / "tests" / ".clang-tidy"):
        text = path.read_text()
        disabled = re.findall(r"^  (-[^*,\s]+),?$", text, re.MULTILINE)
        assert disabled
        assert disabled == re.findall(r"^# (-\S+): \S", text, re.MULTILINE)


@long
def test_clang_tidy(root_dir: Path, build_dir: Path, tmp_path: Path) -> None:
    """Check every compiled C file in a separate process, because the analyzer carries state from
    one file to the next."""
    commands = unique_commands(build_dir)
    (tmp_path / "compile_commands.json").write_text(json.dumps(commands))
    files = {(build_dir / command["file"]).resolve() for command in commands}
    ours = sorted(p for p in files if p.suffix == ".c" and not p.is_relative_to(build_dir))
    assert len(ours) > 100

    def tidy(path: Path) -> str:
        command = ["clang-tidy", "-p", tmp_path, "--quiet", "--use-color=0", path]
        done = finished(command, cwd=root_dir)
        return "" if done.returncode == 0 else done.stdout or done.stderr

    with ThreadPoolExecutor(CPUS) as pool:
        findings = [text for text in pool.map(tidy, ours) if text]
    if findings:
        pytest.fail("\n".join(findings)[:20000], pytrace=False)
