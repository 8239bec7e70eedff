# SPDX-License-Identifier: Apache-2.0
"""The Debian packages are installed, upgraded and removed. The plugin alone needs no Python."""

import subprocess
import sys
from pathlib import Path

import pytest
from debian import Debian
from programs import Done, finished

from harp import _paths

LIBRARIES = f"usr/lib/{sys.implementation._multiarch}"
PACKAGE = "libnccl-net-harp"


def build(root_dir: Path, folder: Path, *options: str) -> list[Path]:
    command = [sys.executable, root_dir / "tools/deb.py", "--quick", *options, folder]
    done = finished(command)
    assert done.returncode == 0, done.stdout + done.stderr
    return [Path(line) for line in done.stdout.split()]


def dpkg(root: Path, *arguments: str | Path) -> Done:
    """Run dpkg on another root, without the packages of this host."""
    command = ["dpkg", f"--root={root}", "--force-depends,script-chrootless,not-root"]
    return finished([*command, *arguments])


@pytest.fixture(scope="module")
def package(root_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    (path,) = build(root_dir, tmp_path_factory.mktemp("deb"), "--only", PACKAGE)
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    for name in ("info", "updates", "triggers"):
        (folder / "var/lib/dpkg" / name).mkdir(parents=True)
    (folder / "var/lib/dpkg/status").touch()
    return folder


def files(root: Path) -> set[str]:
    """Return all files except those of dpkg."""
    paths = (path for path in root.rglob("*") if not path.is_dir() or path.is_symlink())
    return {str(path.relative_to(root)) for path in paths if "var/lib/dpkg" not in str(path)}


def test_the_plugin_is_installed_and_purged(package: Path, root: Path) -> None:
    fields = finished(["dpkg-deb", "--field", package, "Depends"], check=True)
    assert fields.stdout.startswith("libc6 (>= 2.")
    assert "," not in fields.stdout
    for _ in range(2):
        done = dpkg(root, "--install", package)
        assert done.returncode == 0, done.stderr
    names = ("libnccl-net-harp.so", "libnccl-net.so", "librccl-net-harp.so")
    names += ("libnccl-profiler-harp.so", "libharp-xdp.so")
    assert files(root) == {f"{LIBRARIES}/{name}" for name in names} | {
        f"usr/share/doc/{PACKAGE}/copyright"
    }
    code = f"import ctypes; ctypes.CDLL('{root}/{LIBRARIES}/libnccl-net.so').ncclNetPlugin_v12"
    subprocess.run([sys.executable, "-I", "-c", code], check=True)
    assert dpkg(root, "--purge", PACKAGE).returncode == 0
    assert not files(root)


def test_a_foreign_plugin_stays(package: Path, root: Path) -> None:
    other = root / LIBRARIES / "libnccl-net.so"
    other.parent.mkdir(parents=True)
    other.write_bytes(b"another plugin")
    done = dpkg(root, "--install", package)
    assert done.returncode != 0
    assert f"/{LIBRARIES}/libnccl-net.so is of no package; move it away" in done.stderr
    assert files(root) == {f"{LIBRARIES}/libnccl-net.so"}
    assert other.read_bytes() == b"another plugin"


@pytest.mark.long
def test_both_packages_on_debian_12(root_dir: Path, debian: Debian, tmp_path: Path) -> None:
    """The plugin is installed, then harpd, whose harpctl finds it. Both are purged."""
    packages = build(root_dir, tmp_path)
    before = files(debian.root)
    for package in packages:
        debian.copy(package, "/packages")
    debian.run("dpkg", "--install", f"/packages/{packages[0].name}")
    assert _paths.PLUGIN in debian.run("/sbin/ldconfig", "-p")
    assert "/libnccl-net.so" in debian.run("/sbin/ldconfig", "-p")
    # All dependencies are installed but libbpf1, which these steps do not need.
    debian.run("dpkg", "--force-depends", "--install", f"/packages/{packages[1].name}")
    versions = debian.run("harpctl", "version")
    assert "v12" in versions
    assert "/usr/lib/harp" in versions
    assert "harpd" in debian.run("harpd", "--help")
    assert "harp:" in debian.run("getent", "group", "harp")
    debian.run("dpkg", "--purge", "harpd", PACKAGE)
    changed = {"etc/ld.so.cache", "etc/group", "etc/group-", "etc/gshadow", "etc/gshadow-"}
    remaining = files(debian.root) - before - changed
    assert not [name for name in remaining if not name.startswith(("packages/", "var/", "tmp/"))]
