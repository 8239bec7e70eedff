# SPDX-License-Identifier: Apache-2.0
"""Installs HARP on a host and removes it: `harpctl install` and `harpctl uninstall`.

Theory of operation. A Part is one file or symbolic link. The manifest lists the parts that this
module wrote, with a digest of each. An existing path is replaced or removed only while its digest
is in the manifest. All paths are examined before the first change, so a refusal changes nothing.

The manifest is written before the parts, with old and new digests, and again after them. Each part
is replaced by a rename. Therefore the next `install` completes an interrupted installation, and
`uninstall` removes it. A process that has the old plugin open keeps it.
"""

import contextlib
import hashlib
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from harp import __version__, _paths, files, loader
from harp.errors import Exit, HarpError

FORMAT = 1  # of the manifest
HOST_PREFIX = Path("/usr/local")
NAMES = ("libnccl-net.so", "librccl-net-harp.so")  # links to the plugin
DEFAULT_NAME = NAMES[0]
LIBRARIES = (
    _paths.PLUGIN,
    _paths.PROFILER,
    _paths.XDP_LIBRARY,
    _paths.COLL_LIBRARY,
    _paths.DPDK_LIBRARY,
)
NCCL_LINE = "NCCL_NET_PLUGIN=harp"
SHARED = (
    "harp.toml",
    "alerts.yml",
    "dashboard.html",
    "grafana-dashboard.json",
    "99-harp-vfio.rules",
)
UNIT = "harpd.service"

_MANIFEST_BYTES_MAX = 1 << 20
_ABSENT = "absent"
_SHELLS = {
    "bash": "share/bash-completion/completions/harpctl",
    "zsh": "share/zsh/site-functions/_harpctl",
    "fish": "share/fish/vendor_completions.d/harpctl.fish",
}
# Directories that ProtectHome= and PrivateTmp= of harpd.service hide from harpd.
_HIDDEN_BY_UNIT = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")


@dataclass(frozen=True)
class Part:
    """A file, or a symbolic link to `target`."""

    path: Path
    content: bytes = b""
    target: str | None = None
    mode: int = 0o644

    @cached_property
    def digest(self) -> str:
        """The result of digest_of() once the part is written."""
        if self.target is not None:
            return f"link:{self.target}"
        return f"sha256:{hashlib.sha256(self.content).hexdigest()}"

    def write(self) -> None:
        """Write the part completely or not at all; replace an existing file."""
        with files.writing(self.path):
            if self.target is None:
                files.write_whole(self.path, self.content, mode=self.mode)
                return
            temporary = self.path.with_name(f".{self.path.name}.harp-install")
            temporary.unlink(missing_ok=True)
            temporary.symlink_to(self.target)
            temporary.replace(self.path)


def digest_of(path: Path) -> str:
    """Return the digest of the file or link at a path, "absent", or "other"."""
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return _ABSENT
    if stat.S_ISLNK(mode):
        return f"link:{path.readlink()}"
    if not stat.S_ISREG(mode):
        return "other"
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


@dataclass(frozen=True)
class Place:
    """The directories of an installation.

    Without a prefix it serves the host: it is in /usr/local and where the loader, NCCL and systemd
    search. With a prefix everything is below the prefix, and the user configures these programs.
    """

    prefix: Path | None = None
    root: Path = Path("/")  # of the host's file system; tests use another one

    @property
    def base(self) -> Path:
        """The directory that has lib/, bin/ and share/."""
        if self.prefix is not None:
            return self.prefix
        return self.root / HOST_PREFIX.relative_to("/")

    @property
    def etc(self) -> Path:
        return self.root / "etc" if self.prefix is None else self.prefix / "etc"

    @property
    def nccl_conf(self) -> Path:
        return self.etc / "nccl.conf"

    @property
    def loader_conf(self) -> Path:
        return self.etc / "ld.so.conf.d" / "harp.conf"

    @property
    def unit(self) -> Path:
        if self.prefix is None:
            return self.etc / "systemd/system" / UNIT
        return self.prefix / "lib/systemd/system" / UNIT

    @property
    def manifest(self) -> Path:
        return self.base / "share/harp/install.json"

    @property
    def is_live(self) -> bool:
        """Whether the running system's loader and systemd use this installation."""
        return self.prefix is None and self.root == Path("/")

    def check_writable(self, command: str) -> None:
        base = self.base
        while not os.access(base, os.F_OK) and base != base.parent:
            base = base.parent
        if not base.is_dir():
            raise HarpError(f"{command}: {base} is not a directory; choose another --prefix")
        is_root = os.geteuid() == 0
        remedy = "make it writable" if is_root else "run as root"
        for folder in [base, *([self.etc] if self.prefix is None else [])]:
            if not os.access(folder, os.W_OK | os.X_OK):
                raise HarpError(
                    f"{command}: {folder} cannot be written; {remedy}, or choose another --prefix",
                    Exit.FAILURE if is_root else Exit.PRIVILEGE,
                )


# Optional parts, with the command's defaults. default_name: libnccl-net.so.
OPTIONS = {"systemd": False, "nccl_conf": False, "default_name": True}
Options = Mapping[str, bool]


@dataclass
class Manifest:
    version: str = ""
    options: dict[str, bool] = field(default_factory=OPTIONS.copy)
    parts: dict[Path, list[str]] = field(default_factory=dict)  # digests
    directories: list[Path] = field(default_factory=list)  # outer ones first
    nccl_line: bool = False  # HARP added NCCL_LINE to nccl.conf

    @staticmethod
    def read(place: Place) -> "Manifest | None":
        """Return the manifest of a place; None if nothing is installed there."""
        path = place.manifest
        try:
            document = json.loads(files.read(path, _MANIFEST_BYTES_MAX))
            if document["format"] != FORMAT:
                raise HarpError(
                    f"{path}: written by HARP {document['version']} in another format; run "
                    "`harpctl uninstall` of that version first"
                )
            return Manifest(
                str(document["version"]),
                OPTIONS | {str(name): bool(on) for name, on in document["options"].items()},
                {Path(name): list(map(str, known)) for name, known in document["parts"].items()},
                [Path(name) for name in document["directories"]],
                bool(document["nccl_line"]),
            )
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise HarpError(
                f"{path}: not a list of installed files ({error}); restore it, or remove it and "
                "the files of HARP by hand"
            ) from error

    def write(self, place: Place) -> None:
        document: dict[str, Any] = {
            "format": FORMAT,
            "version": self.version,
            "options": self.options,
            "parts": {str(path): digests for path, digests in sorted(self.parts.items())},
            "directories": [str(path) for path in self.directories],
            "nccl_line": self.nccl_line,
        }
        Part(place.manifest, (json.dumps(document, indent=1) + "\n").encode()).write()


def shared(name: str) -> Path:
    """Return the path of a file of conf/: in the source tree, or in the installed package."""
    package = Path(__file__).resolve().parent
    for path in (package / "share" / name, package.parent / "conf" / name):
        if path.is_file():
            return path
    raise HarpError(f"{name} not found in {package / 'share'}: reinstall harp-nccl", Exit.MISSING)


def _libraries(folder: Path, options: Options) -> Iterator[Part]:
    bundled = _paths.find(_paths.XDP_LIBRARY).parent / "harp"  # a wheel's libelf
    for source in sorted(bundled.iterdir()) if bundled.is_dir() else ():
        yield Part(folder / "harp" / source.name, source.read_bytes())
    for name in LIBRARIES:
        try:
            source = _paths.find(name)
        except HarpError:
            if name == _paths.DPDK_LIBRARY:
                continue  # built without DPDK
            raise
        yield Part(folder / name, source.read_bytes(), mode=0o755)
    for name in NAMES:
        if options["default_name"] or name != DEFAULT_NAME:
            yield Part(folder / name, target=_paths.PLUGIN)


def program(name: str) -> Path:
    """Return the path of harpctl or harpd of this Python environment."""
    listed: list[Path] = []
    with contextlib.suppress(PackageNotFoundError):  # a source tree
        own = distribution("harp-nccl")
        listed = [Path(str(own.locate_file(file))) for file in own.files or () if file.name == name]
    folder = Path(sys.executable).parent
    for path in (*listed, folder / name):
        if path.is_file():
            return Path(os.path.normpath(path))
    raise HarpError(f"{name} not found in {folder}: reinstall harp-nccl", Exit.MISSING)


def _commands(folder: Path) -> Iterator[Part]:
    for name in ("harpctl", "harpd"):
        source, path = program(name), folder / name
        if source != path:  # else pip put it there
            yield Part(path, target=str(source))


def _unit(place: Place) -> Part:
    daemon = program("harpd")
    for path in (daemon, daemon.resolve(), Path(sys.base_prefix).resolve()):
        for hidden in _HIDDEN_BY_UNIT:
            if path.is_relative_to(hidden):
                raise HarpError(
                    f"--systemd: {path} is in {hidden}, which {UNIT} hides from harpd; install "
                    "harp-nccl elsewhere, for example with `python3 -m venv /opt/harp`"
                )
    lines = []
    for line in shared(UNIT).read_text().splitlines():
        key, _, value = line.partition("=")
        if key in ("ExecStart", "ExecStartPre"):
            line = f"{key}={value.replace('harpd', str(daemon), 1)}"
        lines.append(line)
    return Part(place.unit, "\n".join([*lines, ""]).encode())


def pages(base: Path) -> Iterator[Part]:
    """Return the manual pages, and the scripts that complete harpctl in shells, below base."""
    from harp.cli import cli, manual

    for name, section in manual.PAGES.items():
        page = manual.page(name).encode()
        yield Part(base / f"share/man/man{section}/{name}.{section}", page)
    for shell, path in _SHELLS.items():
        yield Part(base / path, manual.completion_script(cli, shell).encode())


def parts(place: Place, options: Options) -> list[Part]:
    """Return all parts of an installation. The line of nccl.conf is not one of them."""
    library = place.base / "lib"
    listed = [*_libraries(library, options), *_commands(place.base / "bin"), *pages(place.base)]
    listed += [Part(place.base / "share/harp" / name, shared(name).read_bytes()) for name in SHARED]
    if options["systemd"]:
        listed.append(_unit(place))
    if place.prefix is None:
        listed.append(Part(place.loader_conf, f"{HOST_PREFIX / 'lib'}\n".encode()))
    return listed


# ---- nccl.conf: one line of a file that may have other owners ----


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="surrogateescape").splitlines()
    except FileNotFoundError:
        return []


def _other_plugin(lines: list[str]) -> str | None:
    """Return the line that names another plugin."""
    named = [line for line in lines if line.split("=")[0] == "NCCL_NET_PLUGIN"]
    return next((line for line in named if line != NCCL_LINE), None)


def _replace_lines(path: Path, lines: list[str]) -> None:
    text = "".join(f"{line}\n" for line in lines)
    real = path.resolve()
    mode = stat.S_IMODE(real.stat().st_mode) if real.exists() else 0o644
    Part(real, text.encode(errors="surrogateescape"), mode=mode).write()


def _remove_line(place: Place, manifest: Manifest) -> bool:
    """Remove HARP's line from nccl.conf; return whether the file changed."""
    lines = _lines(place.nccl_conf)
    if not manifest.nccl_line or NCCL_LINE not in lines:
        return False
    lines.remove(NCCL_LINE)
    if lines:
        _replace_lines(place.nccl_conf, lines)
    else:
        place.nccl_conf.unlink()
    return True


@dataclass
class Changes:
    written: list[Path] = field(default_factory=list)
    removed: list[Path] = field(default_factory=list)
    kept: list[Path] = field(default_factory=list)  # others changed them
    old_version: str = ""

    def __bool__(self) -> bool:
        return bool(self.written or self.removed)


def _conflict(part: Part) -> str:
    if part.path.name == DEFAULT_NAME:
        return (
            f"{part.path} exists and is not HARP's: another plugin, which NCCL loads by default; "
            "remove it, or add --no-default-name"
        )
    return f"{part.path} exists and is not as `harpctl install` wrote it; move it away"


def _other_default_plugin(place: Place) -> Path | None:
    """Return another plugin with NCCL's default name, which the loader finds already."""
    for path in loader.cached().get(DEFAULT_NAME, []) if place.is_live else []:
        if path.exists() and path.resolve().name != _paths.PLUGIN:
            return path
    return None


def _check_conflicts(place: Place, listed: list[Part], old: Manifest, options: Options) -> None:
    problems = []
    for part in listed:
        if digest_of(part.path) not in (_ABSENT, part.digest, *old.parts.get(part.path, ())):
            problems.append(_conflict(part))
    other = _other_default_plugin(place) if options["default_name"] else None
    if other is not None and not problems:
        problems.append(_conflict(Part(other)))
    line = _other_plugin(_lines(place.nccl_conf)) if options["nccl_conf"] else None
    if line is not None:
        problems.append(f"{place.nccl_conf} has {line}: another plugin; remove that line")
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise HarpError(f"nothing was changed: {problems[0]}{more}")


def _new_directories(paths: list[Path]) -> list[Path]:
    """Return the directories that do not exist yet, outer ones first."""
    missing = {folder for path in paths for folder in path.parents if not folder.is_dir()}
    return sorted(missing, key=lambda folder: len(folder.parts))


def install(
    place: Place,
    systemd: bool | None = None,
    nccl_conf: bool | None = None,
    default_name: bool | None = None,
) -> Changes:
    """Install, upgrade or downgrade to this HARP. None: as in the last installation. HarpError,
    before any change, if a file is in the way or this user may not write there.
    """
    place.check_writable("install")
    old = Manifest.read(place) or Manifest()
    arguments = {"systemd": systemd, "nccl_conf": nccl_conf, "default_name": default_name}
    options = {**old.options, **{name: on for name, on in arguments.items() if on is not None}}
    listed = parts(place, options)
    _check_conflicts(place, listed, old, options)
    # A file of another owner with the same contents is not ours.
    ours = [part for part in listed if part.path in old.parts or digest_of(part.path) == _ABSENT]
    changes = Changes(old_version=old.version)

    add_line = options["nccl_conf"] and (old.nccl_line or NCCL_LINE not in _lines(place.nccl_conf))
    paths = [part.path for part in ours] + [place.manifest]
    paths += [place.nccl_conf] if add_line else []
    directories = _new_directories(paths)
    intended = Manifest(
        version=__version__,
        options=options,
        parts={path: list(digests) for path, digests in old.parts.items()},
        directories=list(dict.fromkeys([*old.directories, *directories])),
        nccl_line=old.nccl_line or add_line,
    )
    for part in ours:
        known = intended.parts.setdefault(part.path, [])
        known += [part.digest] if part.digest not in known else []
    for folder in directories:
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)  # independent of the umask
    intended.write(place)

    for part in ours:
        if digest_of(part.path) != part.digest:
            part.write()
            changes.written.append(part.path)
    stale = old.parts.keys() - {part.path for part in listed}
    for path in sorted(stale):
        _remove_part(path, old.parts[path], changes)
    if add_line and NCCL_LINE not in _lines(place.nccl_conf):
        _replace_lines(place.nccl_conf, [*_lines(place.nccl_conf), NCCL_LINE])
        changes.written.append(place.nccl_conf)
    if old.nccl_line and not options["nccl_conf"]:
        if _remove_line(place, old):
            changes.removed.append(place.nccl_conf)
        intended.nccl_line = False

    intended.parts = {part.path: [part.digest] for part in ours}
    intended.write(place)
    if changes:
        _update_system(place, changes)
    return changes


def uninstall(place: Place) -> Changes:
    """Remove the parts that install() wrote and that are unchanged since. HarpError."""
    old = Manifest.read(place)
    if old is None:
        raise HarpError(f"HARP is not installed in {place.base}", Exit.MISSING)
    place.check_writable("uninstall")
    if place.unit in old.parts:
        _disable_unit(place)
    changes = Changes(old_version=old.version)
    for path, digests in old.parts.items():
        _remove_part(path, digests, changes)
    if _remove_line(place, old):
        changes.removed.append(place.nccl_conf)
    place.manifest.unlink()
    changes.removed.append(place.manifest)
    for folder in reversed(old.directories):
        with contextlib.suppress(OSError):  # not empty: others use it
            folder.rmdir()
    _update_system(place, changes)
    return changes


def _remove_part(path: Path, digests: list[str], changes: Changes) -> None:
    digest = digest_of(path)
    if digest in digests:
        path.unlink()
        changes.removed.append(path)
    elif digest != _ABSENT:
        changes.kept.append(path)


def is_found_by_name(place: Place) -> bool:
    """Whether the loader finds this installation's plugin for every job of the host."""
    path = place.base / "lib" / _paths.PLUGIN
    return place.is_live and path in loader.cached().get(_paths.PLUGIN, ())[:1]


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _has_systemd() -> bool:
    return Path("/run/systemd/system").is_dir()


def _update_system(place: Place, changes: Changes) -> None:
    if not place.is_live:
        return
    ldconfig = loader.ldconfig()
    if ldconfig is not None:
        done = _run([ldconfig])
        if done.returncode != 0:
            raise HarpError(f"ldconfig failed: {done.stderr.strip()}; run it by hand")
    if place.unit in {*changes.written, *changes.removed} and _has_systemd():
        _run(["systemctl", "daemon-reload"])


def _disable_unit(place: Place) -> None:
    if not place.is_live or not _has_systemd():
        return
    if _run(["systemctl", "is-active", "--quiet", UNIT]).returncode == 0:
        raise HarpError(f"{UNIT} runs: systemctl disable --now {UNIT}", Exit.RUNNING)
    _run(["systemctl", "disable", "--quiet", UNIT])
