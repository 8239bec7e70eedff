#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds a wheel that other hosts can install: dist/harp_nccl-*-manylinux_*.whl.

    .venv/bin/python tools/wheel.py [--machine aarch64] [DIRECTORY]

The wheel is without DPDK, whose libraries differ between hosts: hosts that need DPDK build HARP
from source. libbpf is compiled from Debian's source package and linked statically, because
Debian's libbpf.a is not position independent. libelf is a shared library in the wheel, so that
users can replace it, as its license (LGPL) requires. auditwheel chooses the oldest manylinux tag
that the libraries' symbols allow, and fails if the wheel needs libraries that are not part of it.

With --machine, the wheel is cross-compiled against Debian's packages for that machine, which are
unpacked below build-wheel/ and not installed on this host.
"""

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build-wheel"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}  # Debian's names
# Packages to compile against; and the interpreter that tests use, with the library that numpy
# needs.
PACKAGES = (
    *("libc6-dev", "libelf-dev", "zlib1g-dev", "libpython3.11-dev"),
    *("python3.11", "libstdc++6"),
)
LIBBPF_CFLAGS = "-g -O2 -fPIC -fvisibility=hidden -D_FORTIFY_SOURCE=2 -fstack-protector-strong"

CROSS_FILE = """\
[binaries]
c = ['{triplet}-gcc', '--sysroot={sysroot}']
ar = '{triplet}-ar'
strip = '{triplet}-strip'
pkg-config = 'pkg-config'
cython = 'cython'
python = '{python}'
[properties]
sys_root = '{sysroot}'
pkg_config_libdir = ['{sysroot}/usr/lib/{triplet}/pkgconfig', '{sysroot}/usr/share/pkgconfig']
[host_machine]
system = 'linux'
cpu_family = '{machine}'
cpu = '{machine}'
endian = 'little'
"""


def run(*command: str | Path, **more: str) -> str:
    """Run a command with .venv in its PATH. Return its output, or print it and exit if it fails."""
    folder = Path(sys.executable).parent
    env = {**os.environ, "PATH": f"{folder}:{os.environ.get('PATH', '')}", **more}
    done = subprocess.run(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"{done.stdout}\n{command[0]} failed")
    return done.stdout


def need(program: str, package: str) -> None:
    """Exit if a program is missing."""
    if shutil.which(program) is None:
        sys.exit(f"tools/wheel.py: no {program}; apt-get install {package}")


class Apt:
    """The host's Debian archive, with private package lists: the host's lists do not change."""

    def __init__(self, folder: Path, architecture: str) -> None:
        need("apt-get", "apt, on a Debian")
        self.folder = folder
        suite = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
        sites = run("apt-get", "indextargets", "--format", "$(SITE)", f"Codename: {suite}")
        site = next((line for line in sites.splitlines() if line.startswith("http")), None)
        if site is None:
            sys.exit(f"tools/wheel.py: apt-get has no archive of {suite!r}; run apt-get update")
        for name in ("lists/partial", "archives/partial"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / "sources.list").write_text(
            f"deb [arch={architecture}] {site} {suite} main\ndeb-src {site} {suite} main\n"
        )
        settings = {
            "Dir::Etc::SourceList": folder / "sources.list",
            "Dir::Etc::SourceParts": "/dev/null",
            "Dir::State::Lists": folder / "lists",
            "Dir::State::status": "/dev/null",
            "Dir::Cache": folder,
            "APT::Architecture": architecture,
            "APT::Architectures": architecture,
            "APT::Install-Recommends": "false",
            "APT::Sandbox::User": "",
            "Acquire::Retries": "3",
            "Debug::NoLocking": "true",  # nothing is installed: root is not needed
        }
        conf = folder / "apt.conf"
        conf.write_text("".join(f'{name} "{value}";\n' for name, value in settings.items()))
        self._get("update", "--error-on=any")

    def _get(self, *arguments: str, cwd: Path | None = None) -> None:
        done = subprocess.run(
            ["apt-get", "--quiet=2", "--yes", *arguments],
            cwd=cwd,
            env=os.environ | {"APT_CONFIG": str(self.folder / "apt.conf"), "LC_ALL": "C"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            errors = [line for line in done.stdout.splitlines() if line.startswith("E: ")]
            why = errors[0].removeprefix("E: ") if errors else f"status {done.returncode}"
            sys.exit(f"tools/wheel.py: apt-get {arguments[0]}: {why}; is there a network?")

    def source(self, package: str) -> Path:
        """Download a source package and return its directory."""
        folder = self.folder / "source"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        self._get("source", package, cwd=folder)
        (tree,) = (path for path in folder.iterdir() if path.is_dir())
        return tree

    def unpack(self, into: Path, *packages: str) -> None:
        """Unpack packages and all their dependencies into a directory."""
        self._get("install", "--download-only", *packages)
        partial = into.with_name(f"{into.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        for path in sorted((self.folder / "archives").glob("*.deb")):
            run("dpkg-deb", "--extract", path, partial)
        for path in partial.rglob("*"):
            if path.is_symlink() and path.readlink().is_absolute():
                target = partial / path.readlink().relative_to("/")
                path.unlink()
                path.symlink_to(os.path.relpath(target, path.parent))
        partial.rename(into)


class Target:
    """The machine that the wheel is for. `sysroot` contains its headers and libraries."""

    def __init__(self, machine: str) -> None:
        self.machine = machine
        self.triplet = f"{machine}-linux-gnu"
        self.folder = BUILD / machine
        self.is_cross = machine != platform.machine()
        self.sysroot = self.folder / "sysroot" if self.is_cross else Path("/")
        self.env: dict[str, str] = {}
        self.options: list[str] = []  # for meson

    def prepare(self) -> None:
        """Download and compile what is missing."""
        prefix = f"{self.triplet}-" if self.is_cross else ""
        need(f"{prefix}gcc", f"gcc-{self.triplet}".replace("_", "-"))
        need("dpkg-source", "dpkg-dev")
        need("make", "make")
        libbpf = self.folder / "libbpf"
        if not (self.sysroot.is_dir() and libbpf.is_dir()):
            apt = Apt(self.folder / "apt", ARCHITECTURES[self.machine])
            if not self.sysroot.is_dir():
                apt.unpack(self.sysroot, *PACKAGES)
            if not libbpf.is_dir():
                self._make_libbpf(apt.source("libbpf"), f"{prefix}gcc --sysroot={self.sysroot}")
            shutil.rmtree(apt.folder)
        self.options.append(f"-Dlibbpf={libbpf}")
        if self.is_cross:
            self._prepare_cross()

    def _make_libbpf(self, source: Path, cc: str) -> None:
        folder = self.folder / "libbpf.partial"
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "objects").mkdir(parents=True)
        run("make", "-C", source / "src", "install", "BUILD_STATIC_ONLY=y", "NO_PKG_CONFIG=y",
            f"CC={cc}", f"CFLAGS={LIBBPF_CFLAGS}", f"OBJDIR={folder / 'objects'}",
            f"PREFIX={folder}", f"LIBDIR={folder / 'lib'}")  # fmt: skip
        shutil.rmtree(folder / "objects")
        bundle = folder / "bundle"
        bundle.mkdir()
        shutil.copy(source / "LICENSE.BSD-2-Clause", bundle / "libbpf.copyright")
        libelf = self.sysroot / f"usr/lib/{self.triplet}/libelf.so.1"
        shutil.copy(libelf, bundle / libelf.name)
        shutil.copy(self.sysroot / "usr/share/doc/libelf1/copyright", bundle / "libelf.copyright")
        folder.rename(folder.with_suffix(""))

    def _prepare_cross(self) -> None:
        """Prepare cross-compilation: a file for meson, and variables for Python's sysconfig."""
        values = {"triplet": self.triplet, "sysroot": self.sysroot, "machine": self.machine}
        file = self.folder / "cross.ini"
        file.write_text(CROSS_FILE.format(python=sys.executable, **values))
        self.options.append(f"--cross-file={file}")
        data = f"_sysconfigdata__{self.triplet}"
        folder = self.folder / "sysconfig"
        folder.mkdir(exist_ok=True)
        shutil.copy(self.sysroot / f"usr/lib/python3.11/{data}.py", folder)
        self.env = {
            "_PYTHON_HOST_PLATFORM": f"linux-{self.machine}",
            "_PYTHON_SYSCONFIGDATA_NAME": data,
            "PYTHONPATH": str(folder),
        }


def build(machine: str, into: Path) -> Path:
    """Build the wheel and return its path."""
    target = Target(machine)
    target.prepare()
    tree, man = target.folder / "tree", target.folder / "man"
    shutil.rmtree(man, ignore_errors=True)
    configured = tree / "meson-private/coredata.dat"
    options = ROOT / "meson.options"
    if configured.is_file() and options.stat().st_mtime > configured.stat().st_mtime:
        shutil.rmtree(tree)  # meson would reject a new option
    run(sys.executable, "-c", f"from harp.cli import manual; from pathlib import Path\n"
        f"list(manual.write_all(Path({str(man)!r})))")  # fmt: skip
    with tempfile.TemporaryDirectory(dir=target.folder) as name:
        command = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps"]
        command += ["--disable-pip-version-check", f"-Cbuild-dir={tree}"]
        settings = ["-Ddpdk=disabled", f"-Dman={man}", *target.options]
        command += [f"-Csetup-args={setting}" for setting in settings]
        run(*command, "-w", name, ROOT, **target.env)
        (plain,) = Path(name).glob("*.whl")
        repaired = Path(name) / "repaired"
        run(sys.executable, "-m", "auditwheel", "repair", "-w", repaired, plain)
        (wheel,) = repaired.glob("*.whl")
        into.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(wheel, into / wheel.name))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path, nargs="?", default=ROOT / "dist")
    parser.add_argument("--machine", choices=ARCHITECTURES, default=platform.machine())
    options = parser.parse_args()
    print(build(options.machine, options.directory))
