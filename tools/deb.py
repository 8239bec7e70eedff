#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds the Debian packages of a build tree: libnccl-net-harp and harpd.

    .venv/bin/python tools/deb.py [--only libnccl-net-harp] [DIRECTORY]

libnccl-net-harp contains only the plugin and does not need Python. harpd contains harpctl, harpd
and the Python API, and the Python packages that they need in /usr/lib/harp, because those of
Debian 12 are too old. Both packages are without DPDK and for the Debian release that builds them.
"""

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

from harp import __version__, _paths
from harp import install as installation

ROOT = Path(__file__).resolve().parent.parent
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
ARCHITECTURE = ARCHITECTURES.get(platform.machine(), platform.machine())
LIBRARIES = f"usr/lib/{platform.machine()}-linux-gnu"
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
HOME = "usr/lib/harp"  # a virtual environment
SITE = f"{HOME}/lib/{PYTHON}/site-packages"
MAINTAINER = "HARP <harp@localhost>"

COPYRIGHT = """\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/

Files: *
Copyright: The HARP authors
License: Apache-2.0
 /usr/share/common-licenses/Apache-2.0 has the text.
"""

# dpkg would replace files that do not belong to a package.
PREINST = f"""\
#!/bin/sh
set -e
for name in libnccl-net.so libnccl-net-harp.so libnccl-profiler-harp.so libharp-xdp.so; do
	file=/{LIBRARIES}/$name
	if [ -e "$DPKG_ROOT$file" ] && ! dpkg-query --search "$file" >/dev/null 2>&1; then
		echo "libnccl-net-harp: $file is of no package; move it away, then install again" >&2
		exit 1
	fi
done
"""

POSTINST = """\
#!/bin/sh
set -e
[ "$1" = configure ] || exit 0
if [ -z "$DPKG_ROOT" ]; then
	getent group harp >/dev/null || groupadd --system harp
	if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
fi
"""

# An upgrade does not restart harpd. `systemctl restart harpd` starts the new one; jobs keep
# running.
PRERM = """\
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -z "$DPKG_ROOT" ]; then
	if [ -d /run/systemd/system ]; then systemctl disable --now harpd.service; fi
	find /usr/lib/harp -name __pycache__ -prune -exec rm -r {} +
fi
"""


class Package:
    """The files of a package, in a folder."""

    def __init__(self, folder: Path, name: str, **fields: str) -> None:
        self.folder, self.name, self.fields = folder / name, name, fields
        (self.folder / "DEBIAN").mkdir(parents=True)

    def write(self, path: str, content: str | bytes, mode: int = 0o644) -> None:
        """Write a file."""
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content if isinstance(content, bytes) else content.encode())
        target.chmod(mode)

    def link(self, path: str, target: str) -> None:
        """Create a symbolic link."""
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).symlink_to(target)

    def build(self, into: Path, quick: bool) -> Path:
        """Build the package and return its path."""
        size = sum(path.lstat().st_size for path in self.folder.rglob("*") if path.is_file())
        fields = {
            "Package": self.name,
            "Version": __version__,
            "Architecture": ARCHITECTURE,
            "Maintainer": MAINTAINER,
            "Installed-Size": str(size // 1024 + 1),
            "Section": "net",
            "Priority": "optional",
            **{name.replace("_", "-"): text for name, text in self.fields.items()},
        }
        self.write("DEBIAN/control", "".join(f"{key}: {text}\n" for key, text in fields.items()))
        self.write(f"usr/share/doc/{self.name}/copyright", COPYRIGHT)
        for folder in (self.folder, *self.folder.rglob("*")):
            if folder.is_dir() and not folder.is_symlink():
                folder.chmod(0o755)
        path = into / f"{self.name}_{__version__}_{ARCHITECTURE}.deb"
        compression = ["-Zgzip", "-z1"] if quick else ["-Zxz"]
        run("dpkg-deb", "--root-owner-group", *compression, "--build", self.folder, path)
        return path


def run(*command: str | Path) -> str:
    """Return a command's output; print it if the command fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{done.stdout}{done.stderr}{command[0]} failed")
    return done.stdout


def libc(*paths: Path) -> str:
    """Return the dependency on libc: the newest version whose symbols the files use."""
    texts = [run("readelf", "--version-info", "--wide", path) for path in paths]
    versions = re.findall(r"GLIBC_(\d+)\.(\d+)", " ".join(texts))
    newest = max((int(major), int(minor)) for major, minor in versions)
    return f"libc6 (>= {newest[0]}.{newest[1]})"


def stripped(path: Path, folder: Path) -> bytes:
    """Return the bytes of a program or library without debug information."""
    target = folder / "stripped"
    run("strip", "--strip-unneeded", "-o", target, path)
    return target.read_bytes()


def plugin(folder: Path) -> Package:
    """Return libnccl-net-harp."""
    names = (_paths.PLUGIN, _paths.PROFILER, _paths.XDP_LIBRARY)
    sources = [_paths.find(name) for name in names]
    package = Package(
        folder,
        "libnccl-net-harp",
        Depends=libc(*sources),
        Recommends="libbpf1",
        Suggests="harpd",
        Description="net plugin for NVIDIA NCCL: user-space TCP over ordinary Ethernet\n"
        " NCCL loads it as libnccl-net.so, or by NCCL_NET_PLUGIN=harp. AF_XDP needs libbpf;\n"
        " without it the plugin uses kernel TCP.",
    )
    for name, source in zip(names, sources, strict=True):
        package.write(f"{LIBRARIES}/{name}", stripped(source, folder))
    for name in installation.NAMES:
        package.link(f"{LIBRARIES}/{name}", _paths.PLUGIN)
    package.write("DEBIAN/preinst", PREINST, 0o755)
    package.write("DEBIAN/triggers", "activate-noawait ldconfig\n")
    return package


def dependencies() -> Iterator[Distribution]:
    """Yield the Python packages that harp-nccl depends on, directly or indirectly."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pending, names = list(project["dependencies"]), set()
    while pending:
        requirement = Requirement(pending.pop())
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if applies and requirement.name not in names:
            names.add(requirement.name)
            package = distribution(requirement.name)
            pending += package.requires or []
            yield package


def copy_python(package: Package, build: Path) -> None:
    """Copy the Python package as meson installs it, and its dependencies from .venv."""
    with tempfile.TemporaryDirectory() as name:
        run(f"{Path(sys.executable).parent}/meson", "install", "-C", build, "--no-rebuild",
            "--quiet", "--destdir", name)  # fmt: skip
        (harp,) = Path(name).rglob("site-packages/harp")
        shutil.copytree(
            harp,
            package.folder / SITE / "harp",
            ignore=shutil.ignore_patterns("__pycache__", "*dpdk*.so"),
        )
    for dependency in dependencies():
        for file in dependency.files or ():
            if ".." not in file.parts and "__pycache__" not in file.parts:
                content = Path(str(dependency.locate_file(file))).read_bytes()
                package.write(f"{SITE}/{file}", content)


def daemon(folder: Path) -> Package:
    """Return harpd."""
    build = _paths.build_dir()
    assert build is not None
    minor = sys.version_info.minor
    package = Package(
        folder,
        "harpd",
        Depends=f"libnccl-net-harp (= {__version__}), libbpf1, python3 (>= 3.{minor}), "
        f"python3 (<< 3.{minor + 1}), passwd",
        Description="daemon and tools of HARP, the user-space TCP stack for NCCL\n"
        " harpd leases NIC queues to jobs, which need no privileges. harpctl checks hosts, runs\n"
        " jobs and shows statistics. The package has its own Python environment with the API.",
    )
    copy_python(package, build)
    for path in (package.folder / SITE / "harp/lib").iterdir():
        if path.name in (_paths.PLUGIN, _paths.PROFILER, _paths.XDP_LIBRARY):
            path.unlink()
            path.symlink_to(f"/{LIBRARIES}/{path.name}")
    package.write(f"{HOME}/pyvenv.cfg", "home = /usr/bin\ninclude-system-site-packages = false\n")
    package.link(f"{HOME}/bin/python3", f"/usr/bin/{PYTHON}")
    for name, module in (("harpctl", "harp.cli"), ("harpd", "harp.daemon.__main__")):
        script = f"#!/{HOME}/bin/python3\nfrom {module} import main\n\nmain()\n"
        package.write(f"{HOME}/bin/{name}", script, 0o755)
        package.link(f"usr/bin/{name}", f"../lib/harp/bin/{name}")
    package.write(
        "lib/systemd/system/harpd.service", installation.shared("harpd.service").read_bytes()
    )
    for name in installation.SHARED:
        package.write(f"usr/share/harp/{name}", installation.shared(name).read_bytes())
    for part in installation.pages(Path("usr")):  # of the manual, and scripts for completion
        package.write(str(part.path), part.content)
    package.write("DEBIAN/postinst", POSTINST, 0o755)
    package.write("DEBIAN/prerm", PRERM, 0o755)
    return package


PACKAGES = {"libnccl-net-harp": plugin, "harpd": daemon}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path, nargs="?", default=ROOT / "dist")
    parser.add_argument("--only", choices=PACKAGES)
    parser.add_argument("--quick", action="store_true", help="compress less, to build faster")
    options = parser.parse_args()
    os.umask(0o022)
    options.directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        for package, make in PACKAGES.items():
            if options.only in (None, package):
                print(make(Path(name)).build(options.directory, options.quick))


if __name__ == "__main__":
    main()
