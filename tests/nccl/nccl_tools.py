# SPDX-License-Identifier: Apache-2.0
"""The NCCL versions to test, and helpers that run ranks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from harp import _paths
from harp.lab import Host, Lab
from harp.nccl import wheels
from harp.nccl.ranks import HARP, SOCKETS, RankError, Ranks, environment

# NCCL version: ABI version of the plugin's table.
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
# NCCL issue 1978: these forget NCCL_NET_PLUGIN after the last communicator is destroyed.
FORGETS_PLUGIN = ("2.28.9", "2.29.7")
# These accept a name in NCCL_NET_PLUGIN, but no path.
NO_PATH = ("2.18.3", "2.19.3", "2.20.5", "2.27.3")

EXCHANGES = ("sendrecv", "alltoall")
COLLECTIVES = ("allreduce", "allgather", "reducescatter", "broadcast", "reduce")
SIZES_BYTES = (4, 1000, 40_000, 3_000_000)


def operations(version: str) -> tuple[str, ...]:
    """The operations that the emulated GPU supports with this version."""
    old = wheels.version_key(version) < (2, 22)
    return EXCHANGES if old else EXCHANGES + COLLECTIVES


@contextmanager
def ranks_of(
    lab: Lab,
    version: str,
    net: str = HARP,
    extra: Mapping[str, str] | None = None,
    *,
    plugin: Path | None = None,
    per_rank: Sequence[Mapping[str, str]] | None = None,
    commands: Sequence[Sequence[str | Path]] | None = None,
) -> Iterator[Ranks]:
    """A rank on each host; fetches the version if it is not in the cache."""
    wheels.fetch(version)

    def variables(host: Host) -> dict[str, str]:
        specific = per_rank[host.index] if per_rank else {}
        return environment(host, net, {**(extra or {}), **specific}, plugin)

    environments = [variables(host) for host in lab.hosts]
    with Ranks(lab.hosts, version, environments, commands=commands) as ranks:
        try:
            yield ranks
        except BaseException:
            # NCCL may hang after an error.
            for rank in ranks.ranks:
                rank.process.kill()
            raise


def aliased_plugin(folder: Path) -> Path:
    """Link the plugin's files into a folder, where the plugin also has NCCL's default name."""
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
    failures = [text for run in over_harp if (text := failure(run))]
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


def run_on_paths(
    lab: Lab,
    version: str,
    scenario: Callable[[Ranks], None],
    folder: Path,
    paths: Sequence[str] = ("kernel", "xdp"),
) -> None:
    """Run a scenario over NCCL's sockets, the control, and over each HARP_PATH."""
    plugin = aliased_plugin(folder) if version in FORGETS_PLUGIN else None

    def run(net: str, extra: Mapping[str, str]) -> None:
        with ranks_of(lab, version, net, extra, plugin=plugin) as ranks:
            ranks.init()
            check_once(ranks)
            scenario(ranks)

    def over_harp(path: str) -> Callable[[], None]:
        return lambda: run(HARP, {"HARP_PATH": path})

    against_control(lambda: run(SOCKETS, {}), *(over_harp(path) for path in paths))


def check_all(ranks: Ranks, version: str, comm: int = 0) -> None:
    """Run every operation at every size; every byte must be correct."""
    for operation in operations(version):
        wrong_bytes = {size: ranks.run(operation, size, comm) for size in SIZES_BYTES}
        assert not any(wrong_bytes.values()), (
            f"NCCL {version}: {operation}: wrong bytes by size: {wrong_bytes}"
        )


def check_once(ranks: Ranks, comm: int = 0) -> None:
    """Run one operation, which every version supports."""
    assert ranks.run("alltoall", 100_000, comm) == 0


def read_logs(ranks: Ranks) -> str:
    """Return the output of all ranks."""
    return "\n".join(line for rank in ranks.ranks for line in rank.log)
