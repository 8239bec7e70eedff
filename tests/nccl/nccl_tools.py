# SPDX-License-Identifier: Apache-2.0
"""Versions of NCCL to test, and how to run ranks of one."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from harp import _paths
from harp.lab import Host, Lab
from harp.nccl import wheels
from harp.nccl.ranks import HARP, SOCKETS, RankError, Ranks, environment

# NCCL's version, the table of the plugin that it uses.
VERSIONS = {
    "2.18.3": 6,
    "2.19.3": 7,
    "2.20.5": 8,
    "2.21.5": 8,
    "2.22.3": 8,
    "2.23.4": 8,
    "2.24.3": 9,
    "2.25.1": 9,
    "2.26.5": 10,
    "2.27.7": 10,
    "2.28.9": 11,
    "2.29.7": 11,
    "2.30.7": 12,
    "2.31.2": 12,
    "2.32.3": 12,
}
OLDEST, NEWEST = "2.18.3", "2.32.3"
ONE_OF_EACH_TABLE = (OLDEST, "2.19.3", "2.23.4", "2.25.1", "2.27.7", "2.29.7", NEWEST)
# NCCL issue 1978: they forget NCCL_NET_PLUGIN when the last communicator has gone.
FORGETFUL = ("2.28.9", "2.29.7")
# They take a name in NCCL_NET_PLUGIN, no path.
NO_PATH = ("2.18.3", "2.19.3", "2.20.5", "2.27.3")

EXCHANGES = ("sendrecv", "alltoall")
COLLECTIVES = ("allreduce", "allgather", "reducescatter", "broadcast", "reduce")
SIZES_BYTES = (4, 1000, 40_000, 3_000_000)


def operations(version: str) -> tuple[str, ...]:
    """What the emulated GPU can do with this version."""
    old = wheels.version_key(version) < (2, 22)
    return EXCHANGES if old else EXCHANGES + COLLECTIVES


@contextmanager
def ranks_of(
    lab: Lab,
    version: str,
    net: str = HARP,
    more: Mapping[str, str] | None = None,
    *,
    plugin: Path | None = None,
    of_rank: Sequence[Mapping[str, str]] | None = None,
    commands: Sequence[Sequence[str | Path]] | None = None,
) -> Iterator[Ranks]:
    """A rank on each host; the version is fetched when it is not in the cache."""
    wheels.fetch(version)

    def variables(host: Host) -> dict[str, str]:
        own = of_rank[host.index] if of_rank else {}
        return environment(host, net, {**(more or {}), **own}, plugin)

    environments = [variables(host) for host in lab.hosts]
    with Ranks(lab.hosts, version, environments, commands=commands) as ranks:
        try:
            yield ranks
        except BaseException:
            # NCCL may hang after an error; there is nothing to wait for.
            for rank in ranks.ranks:
                rank.process.kill()
            raise


def aliased_plugin(folder: Path) -> Path:
    """The plugin's files in a folder where it also has the name that NCCL looks for by default."""
    plugin = _paths.plugin()
    for file in plugin.parent.glob("*.so"):
        (folder / file.name).symlink_to(file)
    (folder / "libnccl-net.so").symlink_to(plugin)
    return folder / plugin.name


def against_control(control: Callable[[], None], *over_harp: Callable[[], None]) -> None:
    """Run the same scenario over NCCL's own sockets, then over HARP.

    A failure over HARP fails the test only if the control passes. If both fail, the test is skipped
    with the control's reason. Only errors that NCCL reports count: an EmulationError always fails.
    """
    reason = failure(control)
    failures = [words for each in over_harp if (words := failure(each))]
    if failures and reason:
        pytest.skip(f"NCCL fails over its own sockets, too: {reason}")
    if failures:
        pytest.fail("NCCL's own sockets pass, HARP fails: " + "; ".join(failures))


def failure(scenario: Callable[[], None]) -> str:
    """Return why NCCL failed in a scenario, or an empty string."""
    try:
        scenario()
    except (RankError, AssertionError, pytest.fail.Exception) as error:
        return " ".join(str(error).split()) or type(error).__name__
    return ""


def on_paths(
    lab: Lab,
    version: str,
    scenario: Callable[[Ranks], None],
    folder: Path,
    paths: Sequence[str] = ("kernel", "xdp"),
) -> None:
    """Run a scenario over NCCL's sockets, the control, and over each HARP_PATH."""
    plugin = aliased_plugin(folder) if version in FORGETFUL else None

    def run(net: str, more: Mapping[str, str]) -> None:
        with ranks_of(lab, version, net, more, plugin=plugin) as ranks:
            ranks.init()
            check_once(ranks)
            scenario(ranks)

    def over_harp(path: str) -> Callable[[], None]:
        return lambda: run(HARP, {"HARP_PATH": path})

    against_control(lambda: run(SOCKETS, {}), *(over_harp(path) for path in paths))


def check_all(ranks: Ranks, version: str, comm: int = 0) -> None:
    """Every operation at every size is right to the byte."""
    for operation in operations(version):
        wrong = {size: ranks.run(operation, size, comm) for size in SIZES_BYTES}
        assert not any(wrong.values()), f"NCCL {version}: {operation}: wrong bytes by size: {wrong}"


def check_once(ranks: Ranks, comm: int = 0) -> None:
    """One operation, which every version can do."""
    assert ranks.run("alltoall", 100_000, comm) == 0


def log_of(ranks: Ranks) -> str:
    """What all ranks have printed."""
    return "\n".join(line for rank in ranks.ranks for line in rank.log)
