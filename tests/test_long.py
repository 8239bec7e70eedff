# SPDX-License-Identifier: Apache-2.0
"""What `make test-long` adds: sanitizers, warnings of two compilers, seeds, clang-tidy, the wheel.

Each build lies in a directory of its own under build-long/ and is brought up to date, not made
anew: a second run is quick. One part alone: pytest tests/test_long.py -k 'address or seeds'.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from meson_tests import meson_tests, run_meson_test, suites

from harp import _paths
from harp.lab import Host, Lab

BIN = Path(sys.executable).parent
CPUS = len(os.sched_getaffinity(0))
BUILD_S = 1200
long = pytest.mark.long


def output(
    command: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 120,
) -> str:
    """What a command that must succeed printed."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"} | dict(env or {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=timeout_s,
        check=False,
    )
    if done.returncode != 0:
        words = " ".join(map(str, command))
        pytest.fail(f"{words}\nexit status {done.returncode}\n{done.stdout[-8000:]}", pytrace=False)
    return done.stdout


def built(root: Path, name: str, *options: str, cc: str = "gcc") -> Path:
    """The C tree (no Python modules) built with these options into build-long/<name>."""
    build = root / "build-long" / name
    again = ["--reconfigure"] if (build / "build.ninja").is_file() else []
    setup = ["meson", "setup", *again, build, root, "-Dpython=disabled", *options]
    output(setup, env={"CC": cc}, timeout_s=BUILD_S)
    output(["ninja", "-C", build], timeout_s=BUILD_S)
    return build


def entry(build: Path, name: str) -> dict[str, Any]:
    """One test of a build."""
    (found,) = (test for test in meson_tests(build) if test["name"] == name)
    return found


# --------------------------------------------------------------------------------------------------
# Warnings: none, with either compiler.
#
def test_gcc_warns_of_nothing(root_dir: Path) -> None:
    """Without long optimisation, so that it can be part of `make test`."""
    built(root_dir, "gcc", "-Dwerror=true", "-Doptimization=1")


@long
@pytest.mark.parametrize("cc", ["gcc", "clang"])
def test_warns_of_nothing(root_dir: Path, cc: str) -> None:
    """As it is built for use."""
    built(root_dir, f"werror-{cc}", "-Dwerror=true", cc=cc)


# --------------------------------------------------------------------------------------------------
# AddressSanitizer (with leaks) and UndefinedBehaviorSanitizer, by gcc: clang can't link them into
# a library with -z defs.
#
ADDRESS = {
    "ASAN_OPTIONS": "detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
}


def _address_cases() -> list[str]:
    build = _paths.build_dir()
    whole = {"unit", "sim", "example"}
    tests = meson_tests(build) if build else ()
    names = [test["name"] for test in tests if whole.intersection(suites(test))]
    # One version over kernel lanes and another over HARP's: the code beneath the shims is one.
    return [*names, "test_abi", "conform-v12", "conform-xdp-v9"]


@pytest.fixture(scope="session")
def address_build(root_dir: Path) -> Path:
    return built(root_dir, "address", "-Db_sanitize=address,undefined")


@long
@pytest.mark.parametrize("name", _address_cases())
def test_address_and_undefined(address_build: Path, name: str) -> None:
    """No access outside an object, no leak, no undefined arithmetic."""
    run_meson_test(entry(address_build, name), ADDRESS)


# --------------------------------------------------------------------------------------------------
# ThreadSanitizer. Exit status 66 when it has reported something; suppressed is only what LL means.
#
THREAD_OPTIONS = "exitcode=66:second_deadlock_stack=1"
THREAD = {"TSAN_OPTIONS": THREAD_OPTIONS}
LL_THREAD = {"TSAN_OPTIONS": f"{THREAD_OPTIONS}:suppressions={Path(__file__).parent}/thread.supp"}


@pytest.fixture(scope="session")
def thread_build(root_dir: Path) -> Path:
    return built(root_dir, "thread", "-Db_sanitize=thread")


def mapped(command: list[Any]) -> list[Any]:
    """gcc 12's ThreadSanitizer can't map its shadow beside more than 28 bits of randomness."""
    bits = Path("/proc/sys/vm/mmap_rnd_bits")
    return ["setarch", "-R", *command] if bits.exists() and int(bits.read_text()) > 28 else command


@long
@pytest.mark.parametrize("name", ["test_comm", "test_comm_kernel"])
def test_thread_unit(thread_build: Path, name: str) -> None:
    test = entry(thread_build, name)
    run_meson_test({**test, "cmd": mapped(test["cmd"])}, THREAD)


BENCHES = {
    "allreduce": ("allreduce", "-b", "4", "-e", "4M", "-f", "8", "-n", "20", "--channels", "2"),
    "ll": ("allreduce", "-b", "4", "-e", "100000", "-f", "16", "-n", "20", "--ll"),
    "bidir": ("bw", "-b", "100000", "-e", "100000", "-n", "300", "--bidir", "--channels", "2"),
    "lat": ("lat", "-b", "8", "-e", "40000", "-f", "70", "-n", "300"),
}


@long
@pytest.mark.parametrize("path", ["xdp", "kernel"])
@pytest.mark.parametrize("mode", BENCHES)
def test_thread_plugin(thread_build: Path, need_root: None, mode: str, path: str) -> None:
    """Service, progress and guardian threads of two ranks: no data race, and every byte right."""

    def command(host: Host, root: Host) -> list[Any]:
        words = [thread_build / "tools/driver/harp-bench", *BENCHES[mode], "-o", "json"]
        words += ["--rank", str(host.index), "--ranks", "2", "--root", f"{root.address}:7000"]
        words += ["--plugin", thread_build / "plugin/libnccl-net-harp.so"]
        return mapped([*words, "--ifname", f"={host.ifname}", "--timeout", "60"])

    options = LL_THREAD if mode == "ll" else THREAD
    env = os.environ | options | {"HARP_PATH": path, "NCCL_DEBUG": "WARN"}
    with Lab() as lab:
        ranks = [host.popen(command(host, lab.hosts[0]), env=env) for host in lab.hosts]
        ended = [rank.communicate(timeout=300) for rank in ranks]
    for rank, (_, err) in zip(ranks, ended, strict=True):
        assert "ThreadSanitizer" not in err, err[:8000]
        assert rank.returncode == 0, err[-4000:]
    document = json.loads(ended[0][0])
    assert document["results"]
    assert document["wrong"] == 0


# --------------------------------------------------------------------------------------------------
# Many seeds.
#
SEEDS = int(os.environ.get("HARP_SEEDS", "20000"))
FIRST_SEED = 10000  # `make test` has those below
FAILURES_MAX = 10


def failing_seeds(sim: Path, first: int, count: int) -> list[str]:
    """The lines that name the failing seeds of a range, at most FAILURES_MAX."""
    lines, end = [], first + count
    while first < end and len(lines) < FAILURES_MAX:
        done = subprocess.run(
            [sim, "--seeds", str(first), str(end - first)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            break
        failed = re.search(r"^seed (\d+) FAILED: .*$", done.stdout, re.MULTILINE)
        if failed is None:  # it crashed: it was somewhere in the range
            lines.append(f"exit status {done.returncode}, seeds {first} to {end}: {done.stderr}")
            break
        lines.append(f"{failed[0]}\n  replay it: {sim} --seed {failed[1]}")
        first = int(failed[1]) + 1
    return lines


@long
def test_many_seeds(build_dir: Path) -> None:
    """HARP_SEEDS of them (20000), cut into pieces for all processors."""
    sim = build_dir / "tests/sim/sim_run"
    piece = max(1, SEEDS // (8 * CPUS))
    starts = range(FIRST_SEED, FIRST_SEED + SEEDS, piece)
    with ThreadPoolExecutor(CPUS) as pool:
        pieces = [
            pool.submit(failing_seeds, sim, at, min(piece, FIRST_SEED + SEEDS - at))
            for at in starts
        ]
        lines = [line for part in pieces for line in part.result()]
    if lines:
        pytest.fail("\n".join(lines[:FAILURES_MAX]), pytrace=False)


# --------------------------------------------------------------------------------------------------
# clang-tidy.
#
def test_clang_tidy_gives_reasons(root_dir: Path) -> None:
    """Every check that is off has its reason in a comment."""
    for path in (root_dir / ".clang-tidy", root_dir / "tests" / ".clang-tidy"):
        text = path.read_text()
        off = re.findall(r"^  (-[^*,\s]+),?$", text, re.MULTILINE)
        assert off
        assert off == re.findall(r"^# (-\S+): \S", text, re.MULTILINE)


@long
def test_clang_tidy(root_dir: Path, build_dir: Path) -> None:
    """Every C file that is built, each by a process of its own: in one process the analyzer takes
    what it has seen of one file into the next."""
    commands = json.loads((build_dir / "compile_commands.json").read_text())
    files = {(build_dir / command["file"]).resolve() for command in commands}
    ours = sorted(p for p in files if p.suffix == ".c" and not p.is_relative_to(build_dir))
    assert len(ours) > 100

    def tidy(path: Path) -> str:
        command = ["clang-tidy", "-p", build_dir, "--quiet", "--use-color=0", path]
        done = subprocess.run(command, cwd=root_dir, capture_output=True, text=True, check=False)
        return "" if done.returncode == 0 else done.stdout or done.stderr

    with ThreadPoolExecutor(CPUS) as pool:
        findings = [text for text in pool.map(tidy, ours) if text]
    if findings:
        pytest.fail("\n".join(findings)[:20000], pytrace=False)


# --------------------------------------------------------------------------------------------------
# The wheel: complete, and good without the tree.
#
IN_THE_WHEEL = {
    "harp/lib/libnccl-net-harp.so",
    "harp/lib/libharp-xdp.so",
    "harp/bin/harp-bench",
    "harp/bin/harp-wire",
    "harp/py.typed",
}

LOAD_PLUGIN = """
import ctypes, harp, sys
from pathlib import Path
from harp import _core, _ncclplay, _paths
here = Path(harp.__file__).parent
assert here.is_relative_to(sys.prefix), here
assert _paths.build_dir() is None
plugin = _paths.plugin()
assert plugin == here / "lib" / "libnccl-net-harp.so", plugin
library = ctypes.CDLL(str(plugin))
for version in range(6, 13):
    ctypes.c_char.in_dll(library, f"ncclNetPlugin_v{version}")
print(_core.version())
"""


@pytest.fixture(scope="session")
def wheel(root_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built by meson-python with what .venv has."""
    into = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps"]
    command += ["--disable-pip-version-check", f"-Cbuild-dir={root_dir}/build-long/wheel"]
    output([*command, "-w", str(into), str(root_dir)], timeout_s=BUILD_S)
    (path,) = into.glob("*.whl")
    return path


@long
def test_wheel_is_complete(root_dir: Path, wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = {str(path.relative_to(root_dir)) for path in (root_dir / "harp").rglob("*.py")}
    assert len(sources) > 10
    assert not (IN_THE_WHEEL | sources) - names


@long
def test_wheel_works_elsewhere(wheel: Path, tmp_path: Path, need_root: None) -> None:
    """In a virtual environment of its own, from another directory: the command, the plugin, and a
    short demo over AF_XDP. Third-party packages are .venv's, so that no network is needed."""
    output([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"])
    python = tmp_path / "venv/bin/python"
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    output([*pip, "install", "--no-deps", "--no-index", wheel])
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (site / "third-party.pth").write_text(sysconfig.get_path("purelib") + "\n")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    harpctl = tmp_path / "venv/bin/harpctl"
    environment = {"PYTHONPATH": "", "HARP_BUILD": ""}

    version = output([harpctl, "--version"], cwd=elsewhere, env=environment)
    loaded = output([python, "-I", "-c", LOAD_PLUGIN], cwd=elsewhere, env=environment)
    assert loaded.strip() in version
    for name in ("harp-bench", "harp-wire"):
        program = site / "harp/bin" / name
        assert os.access(program, os.X_OK)
        output([program, "--help"], cwd=elsewhere)
    demo = [harpctl, "demo", "--epochs", "1", "--path", "xdp", "-o", "json"]
    report = json.loads(output(demo, cwd=elsewhere, env=environment))
    assert report["verdict"]["agree"]
    assert all("AF_XDP" in rank["path"] for rank in report["ranks"])
    shutil.rmtree(tmp_path / "venv")
