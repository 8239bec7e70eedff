# SPDX-License-Identifier: Apache-2.0
"""The wheel: complete, good without the tree, and enough for NCCL on a fresh Debian 12."""

import json
import os
import platform
import re
import shutil
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from build_trees import output
from debian import Debian
from machine import Machine
from programs import finished
from test_lint import sources
from test_operating import LOOKS, PAGE, STEPS

from harp import _paths
from harp import install as installation
from harp.lab import Lab
from harp.nccl import wheels
from harp.nccl.ranks import HARP, Ranks, environment

long = pytest.mark.long

IN_THE_WHEEL = {
    "harp/lib/libnccl-net-harp.so",
    "harp/lib/libnccl-profiler-harp.so",
    "harp/lib/libnccl-net-sock.so",
    "harp/lib/libharp-xdp.so",
    "harp/lib/libharp-coll.so",
    *(f"harp/share/{name}" for name in (*installation.SHARED, installation.UNIT)),
    "harp/bin/harp-bench",
    "harp/bin/harp-switch",
    "harp/bin/harp-tcp",
    "harp/bin/harp-wire",
    "harp/py.typed",
}


# What tools/wheel.py adds: a library, licenses, and pages.
MADE_FOR_THE_WHEEL = {
    "harp/lib/harp/libbpf.copyright",
    "harp/lib/harp/libelf.copyright",
    "harp/lib/harp/libelf.so.1",
    "share/man/man1/harpctl.1",
    "share/man/man5/harp.toml.5",
    "share/man/man8/harpd.8",
}

# What is compiled, or needed to compile.
NOT_INSTALLED = (".c", ".h", ".pxd", ".pyx", ".cdef", "meson.build", "native/dpdk/ffi.py")


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
    assert not {name for name in IN_THE_WHEEL if name not in places}


def test_a_build_without_network(root_dir: Path, tmp_path: Path) -> None:
    """The archive that apt-get names is not there. One line says so."""
    real = shutil.which("apt-get")
    if real is None:
        pytest.skip("no apt-get: tools/wheel.py is for Debian")
    fake = tmp_path / "bin/apt-get"
    fake.parent.mkdir()
    archive = "[ $1 = indextargets ] && echo http://127.0.0.1:9/debian"
    fake.write_text(f'#!/bin/sh\n{archive} || exec {real} -o Acquire::Retries=0 "$@"\n')
    fake.chmod(0o755)
    code = "import wheel; from pathlib import Path; wheel.Apt(Path('{}'), 'arm64')"
    done = finished(
        [sys.executable, "-c", code.format(tmp_path / "apt")],
        cwd=root_dir / "tools",
        env=os.environ | {"PATH": f"{fake.parent}:{os.environ['PATH']}"},
    )
    assert done.returncode == 1
    assert done.stderr.startswith(
        "tools/wheel.py: apt-get update: Failed to fetch http://127.0.0.1"
    )
    assert done.stderr.endswith("is there a network?\n")
    assert done.stderr.count("\n") == 1


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
        here.send_all(np.arange(1000, dtype="f8"))
        assert (there.recv_array(1000, "f8") == np.arange(1000)).all()
for name in harp.__all__:
    getattr(harp, name)
"""


@long
def test_wheel_is_complete(root_dir: Path, wheel: Path) -> None:
    names = {
        re.sub(r"^harp_nccl-[\d.]+\.data/data/", "", name)
        for name in zipfile.ZipFile(wheel).namelist()
    }
    assert not (IN_THE_WHEEL | MADE_FOR_THE_WHEEL | of_the_package(root_dir)) - names
    assert re.search(rf"-manylinux_2_\d+_{platform.machine()}\.whl$", wheel.name)


@long
def test_wheel_knows_nothing_of_where_it_was_built(wheel: Path, tmp_path: Path) -> None:
    """Libraries are looked for in the wheel alone, and the plugin needs libc alone."""
    zipfile.ZipFile(wheel).extractall(tmp_path)
    needed, inside = {}, {path.name for path in tmp_path.rglob("*.so*")}
    for path in (*tmp_path.glob("harp/**/*.so*"), *tmp_path.glob("harp/bin/*")):
        dynamic = output(["readelf", "--dynamic", "--wide", path])
        for places in re.findall(r"\(R(?:UN)?PATH\).*\[(.*)\]", dynamic):
            assert all(re.match(r"\$ORIGIN(/|$)", place) for place in places.split(":")), path
        needed[path.name] = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))
    assert needed["libnccl-net-harp.so"] == {"libc.so.6"}
    system = {"libc.so.6", "libm.so.6", "libz.so.1", "ld-linux-x86-64.so.2"}
    assert set().union(*needed.values()) <= system | inside
    # libbpf is linked statically, and no other library of the process sees it.
    symbols = output(["nm", "--dynamic", "--defined-only", tmp_path / "harp/lib/libharp-xdp.so"])
    assert [line.split()[-1] for line in symbols.splitlines()] == ["harp_xdp_api"]


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
    variables = {"PYTHONPATH": "", "HARP_BUILD": ""}

    version = output([harpctl, "--version"], cwd=elsewhere, env=variables)
    loaded = output([python, "-I", "-c", LOAD_PLUGIN], cwd=elsewhere, env=variables)
    assert loaded.strip() in version
    output([python, "-I", "-c", USE_API], cwd=elsewhere, env=variables)
    for name in ("harp-bench", "harp-wire"):
        program = site / "harp/bin" / name
        assert os.access(program, os.X_OK)
        output([program, "--help"], cwd=elsewhere)
    demo = [harpctl, "demo", "--epochs", "1", "--path", "xdp", "-o", "json"]
    report = json.loads(output(demo, cwd=elsewhere, env=variables))
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
                where = f"{PAGE.name}:{step.number}: {step.command}"
                machine.type_in(step, where, step.command.startswith(LOOKS))
                for site in (machine.folder / "opt").glob("harp/lib/python*/site-packages"):
                    (site / "third-party.pth").write_text(sysconfig.get_path("purelib") + "\n")
            assert list((machine.folder / "opt").iterdir()) == []
        finally:
            machine.close()


# --------------------------------------------------------------------------------------------------
# A fresh Debian 12, without this tree: pip install, harpctl install, NCCL.


@pytest.fixture
def installed(debian: Debian, wheelhouse: Path, wheel: Path) -> Debian:
    """`pip install` of the wheel into /opt/harp, and nothing else."""
    debian.copy(wheelhouse, "/")
    debian.run("python3", "-m", "venv", "/opt/harp")
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": f"/{wheelhouse.name}"}
    debian.run("/opt/harp/bin/pip", "install", "--quiet", wheel.stem.split("-")[0], env=offline)
    return debian


@long
@pytest.mark.parametrize("path", ["auto", "xdp"])
def test_nccl_loads_harp_by_name_with_nothing_else_set(installed: Debian, path: str) -> None:
    """NVIDIA's NCCL on two hosts; each sees the Debian, NCCL and the stand-in of its GPU."""
    versions = wheels.cached()
    if not versions:
        pytest.skip(f"no NCCL in {wheels.cache_dir()}: `make test-nccl` downloads it")
    assert "HARP 0.1.0 is installed in /usr/local" in installed.run(
        "/opt/harp/bin/harpctl", "install"
    )
    library = wheels.library(versions[-1])
    wheels.layout_file(library)
    installed.binds += [_paths.find("harp-nccl-rank").parent, library.parent]
    named = {"NCCL_NET_PLUGIN", "NCCL_NET", "LD_LIBRARY_PATH", "HARP_BUILD"}
    with Lab() as lab:
        environments = [
            {
                name: value
                for name, value in environment(host, HARP, {"HARP_PATH": path}).items()
                if name not in named and (name != "HARP_PATH" or path != "auto")
            }
            for host in lab.hosts
        ]
        commands = [installed.command() for _ in lab.hosts]
        with Ranks(lab.hosts, versions[-1], environments, commands=commands) as ranks:
            ranks.init()
            assert ranks.run("allreduce", 1_000_000) == 0
            assert ranks.run("alltoall", 100_000) == 0
            log = "\n".join(line for rank in ranks.ranks for line in rank.log)
            assert "via NET/HARP/0" in log
            maps = Path(f"/proc/{ranks[0].process.pid}/maps").read_text()
            assert "/usr/local/lib/libnccl-net-harp.so" in maps
            assert ("/usr/local/lib/harp/libelf.so.1" in maps) == (path == "xdp")
            ranks.ask("destroy 0")
    assert re.search(r"^libbpf +1\.", installed.run("harpctl", "version"), re.MULTILINE)
    found = installed.run("harpctl", "check", "--verbose", "-o", "json", status=None)
    assert "and by default /usr/local/lib/libnccl-net.so" in found


@long
def test_install_and_uninstall_on_debian_12(installed: Debian) -> None:
    """All options, as root: the loader's cache; and everything is gone again."""

    def names() -> set[str]:
        paths = (path for path in installed.root.rglob("*"))
        return {str(path) for path in paths if "__pycache__" not in str(path)}

    before = names()
    installed.run("/opt/harp/bin/harpctl", "install", "--systemd", "--nccl-conf")
    assert "=> /usr/local/lib/libnccl-net.so" in installed.run("/sbin/ldconfig", "-p")
    assert installed.run("cat", "/etc/nccl.conf") == "NCCL_NET_PLUGIN=harp\n"
    assert "ExecStart=/opt/harp/bin/harpd" in installed.run(
        "cat", "/etc/systemd/system/harpd.service"
    )
    assert "nothing to do" in installed.run("harpctl", "install")
    installed.run("/opt/harp/bin/harpctl", "uninstall")
    assert "nccl-net" not in installed.run("/sbin/ldconfig", "-p")
    assert names() == before
