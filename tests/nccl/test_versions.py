# SPDX-License-Identifier: Apache-2.0
"""Every version of NCCL: data, and a sequence of communicators."""

import re
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from nccl_tools import (
    FORGETS_PLUGIN,
    NO_PATH,
    ONE_OF_EACH_TABLE,
    VERSIONS,
    aliased_plugin,
    check_all,
    check_once,
    ranks_of,
    read_logs,
)

from harp import _paths
from harp.lab import Lab
from harp.nccl.ranks import HARP, SOCKETS, RankError, Ranks

pytestmark = pytest.mark.nccl

COMMS = 20
SETTLE_S = 30
TIME_WAIT_PORTS_MAX = 16  # dataplane/transport/tcp.h


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("protocol", ["Simple", "LL"])
def test_every_byte_is_correct(lab: Lab, version: str, protocol: str) -> None:
    """A control over NCCL's own sockets shows that the emulated GPU supports the operations."""
    extra = {"NCCL_PROTO": protocol}
    with ranks_of(lab, version, SOCKETS, extra) as control:
        control.init()
        check_all(control, version)
        control.ask("destroy 0")
    for path in ("auto", "xdp", "kernel"):
        with ranks_of(lab, version, HARP, extra | {"HARP_PATH": path}) as ranks:
            ranks.init()
            check_all(ranks, version)
            log = read_logs(ranks)
            assert "via NET/HARP/0" in log, path
            ranks.ask("destroy 0")
            assert "WARN NET/HARP" not in read_logs(ranks), path


@pytest.mark.parametrize("version", VERSIONS)
def test_the_table_of_the_version_is_used(lab: Lab, version: str) -> None:
    with ranks_of(lab, version) as ranks:
        ranks.init()
        log = read_logs(ranks)
    # Older versions log only the CollNet table that they look up, which has the same number.
    match = re.search(r"Loaded net plugin HARP \(v(\d+)\)|ncclCollNetPlugin_v(\d+)", log)
    assert match is not None
    assert int(match[1] or match[2]) == VERSIONS[version]


def count_used(ranks: Ranks, key: str) -> int:
    """Return the larger number of threads or descriptors of the two ranks."""
    return max(answer[key] for answer in ranks.ask("status"))


def measure_growth(
    lab: Lab, version: str, net: str, extra: Mapping[str, str], plugin: Path | None, spare: int = 0
) -> int:
    """Return how many more descriptors a rank has after COMMS communicators than after one.

    spare: growth that ends the wait. A closed comm keeps its descriptors until the peer has
    acknowledged everything, so the first count is the minimum of three.
    """
    counts, threads = [], []
    with ranks_of(lab, version, net, extra, plugin=plugin) as ranks:
        for _ in range(COMMS):
            ranks.init()
            check_once(ranks)
            ranks.ask("destroy 0")
            counts.append(count_used(ranks, "fds"))
            threads.append(count_used(ranks, "threads"))
        limit = min(counts[:3]) + spare
        deadline = time.monotonic() + SETTLE_S
        while (now := count_used(ranks, "fds")) > limit and time.monotonic() < deadline:
            time.sleep(0.05)
    # NCCL's own threads may still be ending when a rank answers.
    assert min(threads[-3:]) <= min(threads[:3]) + 2, threads
    return now - min(counts[:3])


@pytest.mark.parametrize("version", [*ONE_OF_EACH_TABLE, "2.22.3", "2.28.9"])
def test_communicators_one_after_the_other(lab: Lab, version: str, tmp_path: Path) -> None:
    """HARP leaks no more descriptors than NCCL's sockets, except the stack's TIME-WAIT ports."""
    plugin = aliased_plugin(tmp_path) if version in FORGETS_PLUGIN else None
    control = measure_growth(lab, version, SOCKETS, {}, None)
    for path in ("kernel", "xdp"):
        spare = max(control, 0) + (TIME_WAIT_PORTS_MAX if path == "xdp" else 0)
        growth = measure_growth(lab, version, HARP, {"HARP_PATH": path}, plugin, spare)
        assert growth <= spare, f"{path}: {growth} more descriptors, NCCL's sockets {control}"


@pytest.mark.parametrize("version", FORGETS_PLUGIN)
def test_nccl_1978_without_the_default_name(lab: Lab, version: str) -> None:
    """The bug of these versions for which docs/nccl.md gives a workaround."""
    with ranks_of(lab, version) as ranks:
        ranks.init()
        ranks.ask("destroy 0")
        with pytest.raises(RankError, match="Failed to initialize any NET plugin"):
            ranks.init()


@pytest.mark.parametrize("version", [*VERSIONS, "2.27.3"])
def test_the_plugin_is_loaded_by_its_path(lab: Lab, version: str) -> None:
    """docs/nccl.md names the versions that accept no path in NCCL_NET_PLUGIN."""
    extra = {"NCCL_NET_PLUGIN": str(_paths.plugin()), "LD_LIBRARY_PATH": ""}
    with ranks_of(lab, version, extra=extra) as ranks:
        if version in NO_PATH:
            with pytest.raises(RankError):
                ranks.init()
        else:
            ranks.init()
            check_once(ranks)
            assert "via NET/HARP/0" in read_logs(ranks)
