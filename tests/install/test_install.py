# SPDX-License-Identifier: Apache-2.0
"""harpctl install and uninstall: idempotent and complete; they never overwrite foreign files."""

import configparser
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from harpctl import harpctl, harpctl_without_root
from programs import finished

from harp import _paths, install, loader
from harp.errors import Exit, HarpError
from harp.install import NCCL_LINE, Place

Tree = dict[str, str]


def tree(folder: Path) -> Tree:
    """Return the digests of all files and directories below a directory, by path."""
    return {
        str(path.relative_to(folder)): "dir"
        if path.is_dir() and not path.is_symlink()
        else install.digest_of(path)
        for path in folder.rglob("*")
    }


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """The root of an empty host."""
    root = tmp_path / "root"
    (root / "usr/local/lib").mkdir(parents=True)
    (root / "etc/ld.so.conf.d").mkdir(parents=True)
    return Place(root=root)


@pytest.fixture
def unit_sees_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python of the tests may be in a home directory."""
    monkeypatch.setattr(install, "_HIDDEN_BY_UNIT", ())


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of libraries, from which harpctl installs and in which a test may change them."""
    folder = tmp_path / "package"
    folder.mkdir()
    for name in install.LIBRARIES:
        if name != _paths.DPDK_LIBRARY:  # a build may lack it
            shutil.copy(_paths.find(name), folder)

    def find(name: str) -> Path:
        if (folder / name).is_file():
            return folder / name
        raise HarpError(f"{name} not found in {folder}", Exit.MISSING)

    monkeypatch.setattr(_paths, "find", find)
    return folder


def test_everything_is_installed_and_removed(place: Place, unit_sees_all: None) -> None:
    before = tree(place.root)
    changes = install.install(place, systemd=True, nccl_conf=True)
    base = place.base
    plugin = base / "lib/libnccl-net-harp.so"
    assert plugin.read_bytes() == _paths.plugin().read_bytes()
    assert plugin.stat().st_mode & 0o777 == 0o755
    for name in ("libnccl-net.so", "librccl-net-harp.so"):
        assert (base / "lib" / name).resolve() == plugin
    for name in ("libharp-xdp.so", "libnccl-profiler-harp.so"):
        assert (base / "lib" / name).is_file()
    for name in ("harpctl", "harpd"):
        done = subprocess.run([base / "bin" / name, "--help"], capture_output=True, check=False)
        assert done.returncode == 0
    assert (base / "share/man/man1/harpctl.1").read_text().startswith(".\\")
    assert "_HARPCTL_COMPLETE" in (base / "share/bash-completion/completions/harpctl").read_text()
    assert (place.root / "etc/nccl.conf").read_text() == f"{NCCL_LINE}\n"
    assert place.loader_conf.read_text() == "/usr/local/lib\n"
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(place.root / "etc/systemd/system/harpd.service")
    assert unit["Service"]["ExecStart"] == str(install.program("harpd"))
    assert unit["Service"]["ExecStartPre"] == f"+{install.program('harpd')} --mount"
    parts = {Path(path) for path in json.loads(place.manifest.read_text())["parts"]}
    assert set(changes.written) == parts | {place.nccl_conf}

    installed = tree(place.root)
    assert not install.install(place)
    assert tree(place.root) == installed
    assert not install.uninstall(place).kept
    assert tree(place.root) == before


def test_everything_is_installed_below_a_prefix(tmp_path: Path, unit_sees_all: None) -> None:
    place = Place(prefix=tmp_path / "new/prefix")
    changes = install.install(place, systemd=True, nccl_conf=True)
    assert all(path.is_relative_to(tmp_path / "new/prefix") for path in changes.written)
    assert (tmp_path / "new/prefix/lib/systemd/system/harpd.service").is_file()
    install.uninstall(place)
    assert not list(tmp_path.iterdir())


def test_the_loader_finds_an_installation_by_its_name(tmp_path: Path) -> None:
    install.install(Place(prefix=tmp_path))
    code = (
        "import ctypes; ctypes.c_char.in_dll(ctypes.CDLL('{}'), 'ncclNetPlugin_v12')\n"
        "print(open('/proc/self/maps').read())"
    )
    for name in ("libnccl-net-harp.so", "libnccl-net.so", "librccl-net-harp.so"):
        done = finished(
            [sys.executable, "-I", "-c", code.format(name)],
            env={"LD_LIBRARY_PATH": str(tmp_path / "lib")},
            check=True,
        )
        assert str(tmp_path / "lib/libnccl-net-harp.so") in done.stdout


def test_upgrade_and_downgrade(
    place: Place, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newer version has one more library."""
    new = Path(shutil.copy(package / _paths.XDP_LIBRARY, package / _paths.DPDK_LIBRARY))
    before = tree(place.root)
    install.install(place)
    plugin = place.base / "lib/libnccl-net-harp.so"
    old_inode = plugin.stat().st_ino

    new.unlink()
    with (package / _paths.PLUGIN).open("ab") as file:
        file.write(b"another version")
    monkeypatch.setattr(install, "__version__", "0.0.9")
    changes = install.install(place)
    assert changes.old_version == "0.1.0"
    assert plugin.read_bytes().endswith(b"another version")
    assert plugin.stat().st_ino != old_inode  # a process that has it open keeps the old one
    assert not (place.base / "lib" / _paths.DPDK_LIBRARY).exists()
    assert install.Manifest.read(place).version == "0.0.9"  # type: ignore[union-attr]

    shutil.copy(package / _paths.XDP_LIBRARY, package / _paths.DPDK_LIBRARY)
    monkeypatch.setattr(install, "__version__", "0.2.0")
    install.install(place)
    assert (place.base / "lib" / _paths.DPDK_LIBRARY).exists()
    install.uninstall(place)
    assert tree(place.root) == before


def test_options_stay_until_they_are_changed(place: Place, unit_sees_all: None) -> None:
    install.install(place, systemd=True, nccl_conf=True)
    install.install(place, default_name=False)
    assert place.unit.exists()
    assert place.nccl_conf.exists()
    assert not (place.base / "lib/libnccl-net.so").is_symlink()
    install.install(place, systemd=False, nccl_conf=False, default_name=True)
    assert not place.unit.exists()
    assert not place.nccl_conf.exists()
    assert (place.base / "lib/libnccl-net.so").is_symlink()


def other_default(place: Place) -> Path:
    path = place.base / "lib/libnccl-net.so"
    path.write_bytes(b"another plugin")
    return path


def other_link(place: Place) -> Path:
    path = place.base / "lib/libnccl-net.so"
    path.symlink_to("libnccl-net-ofi.so")
    return path


def other_directory(place: Place) -> Path:
    path = place.base / "lib/libnccl-net-harp.so"
    path.mkdir()
    return path


def other_line(place: Place) -> Path:
    place.nccl_conf.write_text("NCCL_NET_PLUGIN=ofi\n")
    return place.nccl_conf


@pytest.mark.parametrize("obstacle", [other_default, other_link, other_directory, other_line])
def test_nothing_changes_if_a_foreign_file_exists(
    place: Place, obstacle: Callable[[Place], Path]
) -> None:
    path = obstacle(place)
    before = tree(place.root)
    with pytest.raises(HarpError, match=r"^nothing was changed: ") as failure:
        install.install(place, nccl_conf=True)
    assert str(path) in str(failure.value)
    assert "\n" not in str(failure.value)
    assert tree(place.root) == before


def test_another_default_plugin_in_another_folder_of_the_loader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loader would find HARP's in /usr/local/lib first."""
    other = tmp_path / "libnccl-net.so"
    other.write_bytes(b"another plugin")
    monkeypatch.setattr(loader, "cached", lambda: {"libnccl-net.so": [other]})
    with pytest.raises(HarpError, match=f"nothing was changed: {other} exists and is not HARP's"):
        install._check_conflicts(Place(), [], install.Manifest(), install.OPTIONS)
    install._check_conflicts(
        Place(), [], install.Manifest(), install.OPTIONS | {"default_name": False}
    )
    other.unlink()
    (tmp_path / _paths.PLUGIN).write_bytes(b"")
    other.symlink_to(_paths.PLUGIN)
    install._check_conflicts(Place(), [], install.Manifest(), install.OPTIONS)


def test_without_the_default_name_the_other_plugin_stays(place: Place) -> None:
    path = other_default(place)
    install.install(place, default_name=False)
    install.uninstall(place)
    assert path.read_bytes() == b"another plugin"


def test_foreign_and_changed_files_are_kept(place: Place) -> None:
    """An older identical file, a changed file, and lines of nccl.conf."""
    alerts = place.base / "share/harp/alerts.yml"
    alerts.parent.mkdir(parents=True)
    shutil.copy(install.shared("alerts.yml"), alerts)
    place.nccl_conf.write_text("NCCL_DEBUG=WARN\n")
    install.install(place, nccl_conf=True)
    page = place.base / "share/man/man1/harpctl.1"
    page.write_text("mine")
    with pytest.raises(HarpError, match=r"harpctl\.1 exists and is not as .* wrote it"):
        install.install(place)
    changes = install.uninstall(place)
    assert changes.kept == [page]
    assert page.read_text() == "mine"
    assert alerts.is_file()
    assert place.nccl_conf.read_text() == "NCCL_DEBUG=WARN\n"


def test_an_existing_line_of_nccl_conf_stays(place: Place) -> None:
    place.nccl_conf.write_text(f"{NCCL_LINE}\n")
    install.install(place, nccl_conf=True)
    install.uninstall(place)
    assert place.nccl_conf.read_text() == f"{NCCL_LINE}\n"


@pytest.mark.parametrize("writes", range(1, 20, 3))
def test_an_interrupted_installation(
    place: Place, writes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next installation completes it, or uninstall removes it."""
    before = tree(place.root)
    real, count = install.Part.write, 0

    def write(part: install.Part) -> None:
        nonlocal count
        count += 1
        if count > writes:
            raise OSError(28, "No space left on device", str(part.path))
        real(part)

    with monkeypatch.context() as patch:
        patch.setattr(install.Part, "write", write)
        with pytest.raises(OSError, match="No space left"):
            install.install(place)
    if writes % 2:
        install.install(place)
    install.uninstall(place)
    assert tree(place.root) == before


def test_an_incomplete_wheel(place: Place, package: Path) -> None:
    (package / _paths.XDP_LIBRARY).unlink()
    before = tree(place.root)
    with pytest.raises(HarpError, match=r"libharp-xdp\.so not found"):
        install.install(place)
    assert tree(place.root) == before


@pytest.mark.parametrize(
    "manifest",
    ["", "{", "[]", '{"format": 1}', '{"format": 1, "version": "0", "options": 3, "parts": []}'],
)
def test_a_damaged_manifest(place: Place, manifest: str) -> None:
    place.manifest.parent.mkdir(parents=True)
    place.manifest.write_text(manifest)
    before = tree(place.root)
    for act in (install.install, install.uninstall):
        with pytest.raises(HarpError, match=r"install\.json: not a list of installed files"):
            act(place)
    assert tree(place.root) == before


def test_a_manifest_of_a_later_version(place: Place) -> None:
    place.manifest.parent.mkdir(parents=True)
    place.manifest.write_text('{"format": 2, "version": "9.1"}')
    with pytest.raises(HarpError, match=r"HARP 9\.1 in another format; run `harpctl uninstall`"):
        install.install(place)


def test_a_manifest_that_others_can_write(place: Place) -> None:
    """Root would remove its paths."""
    install.install(place)
    place.manifest.chmod(0o666)
    with pytest.raises(OSError, match="can be changed by other users"):
        install.uninstall(place)


def test_a_unit_that_would_hide_its_harpd(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "_HIDDEN_BY_UNIT", (str(Path(sys.base_prefix).resolve()),))
    before = tree(place.root)
    with pytest.raises(HarpError, match=r"--systemd: .* which harpd\.service hides from harpd"):
        install.install(place, systemd=True)
    assert tree(place.root) == before


def test_commands(tmp_path: Path) -> None:
    prefix = ["--prefix", str(tmp_path / "harp")]
    done = harpctl("install", *prefix, "--nccl-conf")
    assert done.returncode == 0, done.stderr
    assert f"export LD_LIBRARY_PATH={tmp_path}/harp/lib" in done.stdout
    assert "NCCL_CONF_FILE=" in done.stdout
    assert "HARP 0.1.0 is removed" in harpctl("uninstall", *prefix).stdout
    second = harpctl("uninstall", *prefix)
    assert second.returncode == Exit.MISSING
    assert "HARP is not installed" in second.stderr
    assert not list(tmp_path.iterdir())


def test_the_variables_of_a_prefix_with_blanks(tmp_path: Path) -> None:
    prefix = tmp_path / "a b's $HOME"
    done = harpctl("install", "--prefix", str(prefix), "--nccl-conf")
    lines = [line for line in done.stdout.splitlines() if line.startswith("export ")]
    script = "\n".join([*lines, 'printf "%s\\n" "$LD_LIBRARY_PATH" "$NCCL_CONF_FILE"'])
    values = finished(["sh", "-euc", script], env={"PATH": "/usr/bin:/bin"}, check=True).stdout
    assert values.splitlines() == [f"{prefix}/lib", f"{prefix}/etc/nccl.conf"]


def test_root_with_a_read_only_prefix_gets_another_remedy(
    need_root: None, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda _path, mode: mode == os.F_OK)
    with pytest.raises(HarpError, match=r"cannot be written; make it writable, .*--prefix"):
        install.install(place)
    assert not list(place.base.glob("**/*harp*"))


def test_without_root(need_root: None, tmp_path: Path) -> None:
    for arguments in ([], ["--prefix", str(tmp_path)]):
        done = harpctl_without_root("install", *arguments)
        assert done.returncode == Exit.PRIVILEGE
        assert "run as root" in done.stderr
        assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())
