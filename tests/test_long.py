# SPDX-License-Identifier: Apache-2.0
"""What `make test-long` adds: warnings of two compilers, seeds, clang-tidy, the wheel (and
tests/test_sanitize.py).

Each build lies in a directory of its own under build-long/ and is brought up to date, not made
anew: a second run is quick. One part alone: pytest tests/test_long.py -k 'tidy or seeds'.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from build_trees import BUILD_S, built, compiled, each_once, output
from machine import Machine
from test_lint import sources
from test_operating import STEPS, type_in

from harp.lab import Lab

CPUS = len(os.sched_getaffinity(0))
long = pytest.mark.long


# --------------------------------------------------------------------------------------------------
# Warnings: none, with either compiler.
#
def is_without_warnings(build: Path) -> bool:
    """Is it gcc's, with warnings as errors, and all as the sources are now?"""
    about = build / "meson-info"
    options = {
        option["name"]: option["value"]
        for option in json.loads((about / "intro-buildoptions.json").read_text())
    }
    compilers = json.loads((about / "intro-compilers.json").read_text())
    if not options["werror"] or compilers["host"]["c"]["id"] != "gcc":
        return False
    return "no work to do" in output(["ninja", "-n", "-C", build])


def test_gcc_warns_of_nothing(root_dir: Path, build_dir: Path) -> None:
    """`make build` on a fresh checkout has proven it; else all is compiled again, without long
    optimisation, so that it can be part of `make test`."""
    if not is_without_warnings(build_dir):
        assert compiled(root_dir, "gcc", "-Dwerror=true", "-Doptimization=1") > 300


@long
@pytest.mark.parametrize("cc", ["gcc", "clang"])
def test_warns_of_nothing(root_dir: Path, cc: str) -> None:
    """As it is built for use."""
    built(root_dir, f"werror-{cc}", "-Dwerror=true", cc=cc)


# --------------------------------------------------------------------------------------------------
# Many seeds.
#
SEEDS = int(os.environ.get("HARP_SEEDS", "20000"))
# `make test` runs those below.
FIRST_SEED = {"sim_run": 4000, "sim_comm_run": 1400}
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
@pytest.mark.parametrize("program", ["sim_run", "sim_comm_run"])
def test_many_seeds(build_dir: Path, program: str) -> None:
    """HARP_SEEDS of them (20000), cut into pieces for all processors."""
    sim = build_dir / "tests/sim" / program
    piece = max(1, SEEDS // (8 * CPUS))
    first = FIRST_SEED[program]
    starts = range(first, first + SEEDS, piece)
    with ThreadPoolExecutor(CPUS) as pool:
        pieces = [
            pool.submit(failing_seeds, sim, at, min(piece, first + SEEDS - at)) for at in starts
        ]
        lines = [line for part in pieces for line in part.result()]
    if lines:
        pytest.fail("\n".join(lines[:FAILURES_MAX]), pytrace=False)


@long
def test_lanes_die_at_every_step(build_dir: Path) -> None:
    """The small scenarios of comms, each lane, each way to die."""
    output([build_dir / "tests/sim/sim_comm_run", "--exhaustive", "1"], timeout_s=BUILD_S)


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
def test_clang_tidy(root_dir: Path, build_dir: Path, tmp_path: Path) -> None:
    """Every C file that is built, each by a process of its own: in one process the analyzer takes
    what it has seen of one file into the next."""
    commands = each_once(build_dir)
    (tmp_path / "compile_commands.json").write_text(json.dumps(commands))
    files = {(build_dir / command["file"]).resolve() for command in commands}
    ours = sorted(p for p in files if p.suffix == ".c" and not p.is_relative_to(build_dir))
    assert len(ours) > 100

    def tidy(path: Path) -> str:
        command = ["clang-tidy", "-p", tmp_path, "--quiet", "--use-color=0", path]
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
    "harp/lib/libnccl-net-sock.so",
    "harp/lib/libharp-xdp.so",
    "harp/bin/harp-bench",
    "harp/bin/harp-drop",
    "harp/bin/harp-rss",
    "harp/bin/harp-tcp",
    "harp/bin/harp-udp",
    "harp/bin/harp-wire",
    "harp/py.typed",
}


def in_the_wheel(build: Path) -> set[str]:
    """With what a build has that found DPDK."""
    dpdk = (build / "dataplane/dpdk/libharp-dpdk.so").is_file()
    return IN_THE_WHEEL | ({"harp/lib/libharp-dpdk.so"} if dpdk else set())


# What is compiled, or needed to compile.
NOT_INSTALLED = (".c", ".h", ".pxd", ".pyx", "meson.build", "native/dpdk/ffi.py")


def of_the_package(root: Path) -> set[str]:
    """Every file of harp/ that git knows, or would: modules, stubs, data, of sub-packages too."""
    return {
        name
        for name in sources(root, "")
        if name.startswith("harp/") and not name.endswith(NOT_INSTALLED)
    }


def installed_at(known: dict[str, str], path: Path) -> str | None:
    """Where a file goes: by itself, or in its folder; None when meson does not know it."""
    folder = known.get(str(path.parent))
    return known.get(str(path)) or (f"{folder}/{path.name}" if folder else None)


def test_every_file_is_installed(root_dir: Path, build_dir: Path) -> None:
    """What meson knows of the package is what the package is; the wheel itself takes minutes."""
    known = json.loads((build_dir / "meson-info" / "intro-installed.json").read_text())
    files = of_the_package(root_dir)
    assert len(files) > 20
    for name in files:
        place = installed_at(known, root_dir / name)
        assert place is not None, f"{name} is missing in harp/meson.build"
        assert place.endswith(f"/{name}"), f"{name} is installed as {place}"
    for stub in (root_dir / "harp").glob("_*.pyi"):
        assert any(f"/harp/{stub.stem}." in place for place in known.values()), stub.stem
    places = " ".join(known.values())
    assert not {name for name in in_the_wheel(build_dir) if name not in places}


LOAD_PLUGIN = """
import ctypes, harp, sys
from pathlib import Path
from harp import _coll, _core, _paths
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

USE_API = """
import harp, harp.testing, numpy as np
from pathlib import Path
assert str(Path(harp._core.__file__).parent) == str(Path(harp.__file__).parent)
with harp.testing.pair() as (a, b), b.listen(7000) as acceptor:
    with a.connect(b.address, 7000) as here, acceptor.accept() as there:
        here.send(np.arange(1000, dtype="f8"))
        assert (there.recv_array(1000, "f8") == np.arange(1000)).all()
for name in harp.__all__:
    getattr(harp, name)
"""

USE_DPDK = """
from harp import dpdk
dpdk.start(memory_mib=64, huge_pages="never")
with dpdk.Port("net_ring0") as port:
    assert port.send(bytes(60)) == 1
    (packet,) = port.receive(timeout=10)
    assert bytes(packet) == bytes(60)
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
def test_wheel_is_complete(root_dir: Path, build_dir: Path, wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert not (in_the_wheel(build_dir) | of_the_package(root_dir)) - names


@long
def test_wheel_knows_nothing_of_where_it_was_built(wheel: Path, tmp_path: Path) -> None:
    """No library is looked for in a build directory, and the plugin needs libc alone."""
    zipfile.ZipFile(wheel).extractall(tmp_path)
    needed = {}
    for path in (*tmp_path.glob("harp/**/*.so"), *tmp_path.glob("harp/bin/*")):
        dynamic = output(["readelf", "--dynamic", "--wide", path])
        assert "PATH)" not in dynamic, path  # RPATH, RUNPATH
        needed[path.name] = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))
    assert needed["libnccl-net-harp.so"] == {"libc.so.6"}
    assert all("libc.so.6" in libraries for libraries in needed.values())


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
    output([python, "-I", "-c", USE_API], cwd=elsewhere, env=environment)
    if (site / "harp/lib/libharp-dpdk.so").is_file():
        output([python, "-I", "-c", USE_DPDK], cwd=elsewhere, env=environment)
    for name in ("harp-bench", "harp-wire"):
        program = site / "harp/bin" / name
        assert os.access(program, os.X_OK)
        output([program, "--help"], cwd=elsewhere)
    demo = [harpctl, "demo", "--epochs", "1", "--path", "xdp", "-o", "json"]
    report = json.loads(output(demo, cwd=elsewhere, env=environment))
    assert report["verdict"]["agree"]
    assert all("AF_XDP" in rank["path"] for rank in report["ranks"])
    shutil.rmtree(tmp_path / "venv")


@long
def test_the_wheel_is_installed_and_removed_as_the_page_says(
    wheel: Path, tmp_path: Path, need_root: None
) -> None:
    """docs/operating.md's commands, in a /opt and /usr/local/bin of their own. Third-party packages
    are .venv's, as above."""
    tmp_path.chmod(0o755)
    with Lab() as lab:
        machine = Machine(lab.hosts[0], tmp_path / "machine")
        machine.folder.mkdir()
        machine.extra = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "HARP_BUILD": ""}
        try:
            machine.start(installed=False)
            machine.program("python3", Path(sys.base_prefix) / "bin/python3")
            shutil.copy(wheel, machine.folder)
            for step in (step for step in STEPS if step.kind == "wheel"):
                type_in(machine, step)
                for site in (machine.folder / "opt").glob("harp/lib/python*/site-packages"):
                    (site / "third-party.pth").write_text(sysconfig.get_path("purelib") + "\n")
            assert list((machine.folder / "opt").iterdir()) == []
        finally:
            machine.close()
