# SPDX-License-Identifier: Apache-2.0
"""The wheel: complete, independent of the tree, and enough for NCCL on a fresh Debian 12."""

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
ADDED_TO_THE_WHEEL = {
    "harp/lib/harp/libbpf.copyright",
    "harp/lib/harp/libelf.copyright",
    "harp/lib/harp/libelf.so.1",
    "share/man/man1/harpctl.1",
    "share/man/man5/harp.toml.5",
    "share/man/man8/harpd.8",
}

# Sources and build files.
NOT_INSTALLED = (".c", ".h", ".pxd", ".pyx", ".cdef", "meson.build", "native/dpdk/ffi.py")


def package_files(root: Path) -> set[str]:
    """Return all files of harp/, tracked or not, that belong to the package."""
    return {
        name
        for name in sources(root, "")
        if name.startswith("harp/") and not name.endswith(NOT_INSTALLED)
    }


def installed_at(places: dict[str, str], path: Path) -> str | None:
    """Return where meson installs a file, by itself or with its folder; None: nowhere."""
    folder = places.get(str(path.parent))
    return places.get(str(path)) or (f"{folder}/{path.name}" if folder else None)


def test_every_file_is_installed(root_dir: Path, build_dir: Path) -> None:
    """Meson's list is compared, because building the wheel takes minutes."""
    installed = json.loads((build_dir / "meson-info" / "intro-installed.json").read_text())
    files = package_files(root_dir)
    assert len(files) > 20
    for name in files:
        place = installed_at(installed, root_dir / name)
        assert place is not None, f"{name} is missing in harp/meson.build"
        assert place.endswith(f"/{name}"), f"{name} is installed as {place}"
    for stub in (root_dir / "harp").glob("_*.pyi"):
        assert any(f"/harp/{stub.stem}." in place for place in installed.values()), stub.stem
    places = " ".join(installed.values())
    assert not {name for name in IN_THE_WHEEL if name not in places}


def test_a_build_without_network(root_dir: Path, tmp_path: Path) -> None:
    """The archive of apt-get does not answer; the error is one line."""
    apt_get = shutil.which("apt-get")
    if apt_get is None:
        pytest.skip("no apt-get: tools/wheel.py is for Debian")
    fake = tmp_path / "bin/apt-get"
    fake.parent.mkdir()
    archive = "[ $1 = indextargets ] && echo http://127.0.0.1:9/debian"
    fake.write_text(f'#!/bin/sh\n{archive} || exec {apt_get} -o Acquire::Retries=0 "$@"\n')
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
    assert not (IN_THE_WHEEL | ADDED_TO_THE_WHEEL | package_files(root_dir)) - names
    assert re.search(rf"-manylinux_2_\d+_{platform.machine()}\.whl$", wheel.name)


@long
def test_wheel_does_not_depend_on_the_build_tree(wheel: Path, tmp_path: Path) -> None:
    """RPATHs lead only into the wheel, and the plugin needs only libc."""
    zipfile.ZipFile(wheel).extractall(tmp_path)
    needed, bundled = {}, {path.name for path in tmp_path.rglob("*.so*")}
    for path in (*tmp_path.glob("harp/**/*.so*"), *tmp_path.glob("harp/bin/*")):
        dynamic = output(["readelf", "--dynamic", "--wide", path])
        for paths in re.findall(r"\(R(?:UN)?PATH\).*\[(.*)\]", dynamic):
            assert all(re.match(r"\$ORIGIN(/|$)", path_entry) for path_entry in paths.split(":")), (
                path
            )
        needed[path.name] = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))
    assert needed["libnccl-net-harp.so"] == {"libc.so.6"}
    system = {"libc.so.6", "libm.so.6", "libz.so.1", "ld-linux-x86-64.so.2"}
    assert set().union(*needed.values()) <= system | bundled
    # libbpf is linked statically, and its symbols are not exported.
    symbols = output(["nm", "--dynamic", "--defined-only", tmp_path / "harp/lib/libharp-xdp.so"])
    assert [line.split()[-1] for line in symbols.splitlines()] == ["harp_xdp_api"]


@long
def test_wheel_works_in_a_virtual_environment(wheel: Path, tmp_path: Path, need_root: None) -> None:
    """Run the command, the plugin and a short demo over AF_XDP from another directory. Third-party
    packages are those of .venv, so that no network is needed."""
    output([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"])
    python = tmp_path / "venv/bin/python"
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    output([*pip, "install", "--no-deps", "--no-index", wheel])
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (site / "third-party.pth").write_text(sysconfig.get_path("purelib") + "\n")
    folder = tmp_path / "folder"
    folder.mkdir()
    harpctl = tmp_path / "venv/bin/harpctl"
    variables = {"PYTHONPATH": "", "HARP_BUILD": ""}

    version = output([harpctl, "--version"], cwd=folder, env=variables)
    plugin_version = output([python, "-I", "-c", LOAD_PLUGIN], cwd=folder, env=variables)
    assert plugin_version.strip() in version
    output([python, "-I", "-c", USE_API], cwd=folder, env=variables)
    for name in ("harp-bench", "harp-wire"):
        program = site / "harp/bin" / name
        assert os.access(program, os.X_OK)
        output([program, "--help"], cwd=folder)
    demo = [harpctl, "demo", "--epochs", "1", "--path", "xdp", "-o", "json"]
    report = json.loads(output(demo, cwd=folder, env=variables))
    assert report["verdict"]["agree"]
    assert all("AF_XDP" in rank["path"] for rank in report["ranks"])
    shutil.rmtree(tmp_path / "venv")


@long
def test_the_documented_commands_install_and_remove_the_wheel(
    wheel: Path, tmp_path: Path, need_root: None
) -> None:
    """The commands of docs/operating.md run with their own /opt and /usr/local/bin. Third-party
    packages are those of .venv."""
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
                location = f"{PAGE.name}:{step.number}: {step.command}"
                machine.type_in(step, location, step.command.startswith(LOOKS))
                for site in (machine.folder / "opt").glob("harp/lib/python*/site-packages"):
                    (site / "third-party.pth").write_text(sysconfig.get_path("purelib") + "\n")
            assert list((machine.folder / "opt").iterdir()) == []
        finally:
            machine.close()


# --------------------------------------------------------------------------------------------------
# A fresh Debian 12, without this tree: pip install, harpctl install, NCCL.


@pytest.fixture
def installed(debian: Debian, wheelhouse: Path, wheel: Path) -> Debian:
    """The Debian after `pip install` of the wheel into /opt/harp."""
    debian.copy(wheelhouse, "/")
    debian.run("python3", "-m", "venv", "/opt/harp")
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": f"/{wheelhouse.name}"}
    debian.run("/opt/harp/bin/pip", "install", "--quiet", wheel.stem.split("-")[0], env=offline)
    return debian


@long
@pytest.mark.parametrize("path", ["auto", "xdp"])
def test_nccl_loads_harp_without_any_variable(installed: Debian, path: str) -> None:
    """NVIDIA's NCCL on two hosts, each with the Debian, NCCL and a fake GPU."""
    versions = wheels.cached()
    if not versions:
        pytest.skip(f"no NCCL in {wheels.cache_dir()}: `make test-nccl` downloads it")
    assert "HARP 0.1.0 is installed in /usr/local" in installed.run(
        "/opt/harp/bin/harpctl", "install"
    )
    library = wheels.library(versions[-1])
    wheels.layout_file(library)
    installed.binds += [_paths.find("harp-nccl-rank").parent, library.parent]
    removed = {"NCCL_NET_PLUGIN", "NCCL_NET", "LD_LIBRARY_PATH", "HARP_BUILD"}
    with Lab() as lab:
        environments = [
            {
                name: value
                for name, value in environment(host, HARP, {"HARP_PATH": path}).items()
                if name not in removed and (name != "HARP_PATH" or path != "auto")
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
    report = installed.run("harpctl", "check", "--verbose", "-o", "json", status=None)
    assert "and by default /usr/local/lib/libnccl-net.so" in report


@long
def test_install_and_uninstall_on_debian_12(installed: Debian) -> None:
    """All options, with the loader's cache. uninstall leaves nothing behind."""

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
