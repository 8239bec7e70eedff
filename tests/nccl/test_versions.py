# SPDX-License-Identifier: Apache-2.0
"""Every version of NCCL: data, and communicators one after the other."""

import re
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from nccl_tools import (
    FORGETFUL,
    NO_PATH,
    ONE_OF_EACH_TABLE,
    VERSIONS,
    aliased_plugin,
    check_all,
    check_once,
    log_of,
    ranks_of,
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
def test_every_byte_is_right(lab: Lab, version: str, protocol: str) -> None:
    """The emulated GPU does all of it over NCCL's own sockets, so that there is no excuse."""
    more = {"NCCL_PROTO": protocol}
    with ranks_of(lab, version, SOCKETS, more) as control:
        control.init()
        check_all(control, version)
        control.ask("destroy 0")
    for path in ("auto", "xdp", "kernel"):
        with ranks_of(lab, version, HARP, more | {"HARP_PATH": path}) as ranks:
            ranks.init()
            check_all(ranks, version)
            log = log_of(ranks)
            assert "via NET/HARP/0" in log, path
            ranks.ask("destroy 0")
            assert "WARN NET/HARP" not in log_of(ranks), path


@pytest.mark.parametrize("version", VERSIONS)
def test_the_table_of_the_version_is_used(lab: Lab, version: str) -> None:
    with ranks_of(lab, version) as ranks:
        ranks.init()
        log = log_of(ranks)
    # Older versions only say which table of CollNet they look for, which has the same number.
    found = re.search(r"Loaded net plugin HARP \(v(\d+)\)|ncclCollNetPlugin_v(\d+)", log)
    assert found is not None
    assert int(found[1] or found[2]) == VERSIONS[version]


def used(ranks: Ranks, key: str) -> int:
    """Return the larger number of threads or descriptors of the two ranks."""
    return max(answer[key] for answer in ranks.ask("status"))


def growth_in_turn(
    lab: Lab, version: str, net: str, more: Mapping[str, str], plugin: Path | None, spare: int = 0
) -> int:
    """Return how many descriptors more a rank has after COMMS communicators than after one.

    spare: growth for which it does not wait. Comms that have been closed keep their descriptors
    until the peer has acknowledged everything, so the first count is the lowest of three.
    """
    counts, threads = [], []
    with ranks_of(lab, version, net, more, plugin=plugin) as ranks:
        for _ in range(COMMS):
            ranks.init()
            check_once(ranks)
            ranks.ask("destroy 0")
            counts.append(used(ranks, "fds"))
            threads.append(used(ranks, "threads"))
        limit = min(counts[:3]) + spare
        deadline = time.monotonic() + SETTLE_S
        while (now := used(ranks, "fds")) > limit and time.monotonic() < deadline:
            time.sleep(0.05)
    # NCCL's own threads may still be ending when a rank answers.
    assert min(threads[-3:]) <= min(threads[:3]) + 2, threads
    return now - min(counts[:3])


@pytest.mark.parametrize("version", [*ONE_OF_EACH_TABLE, "2.22.3", "2.28.9"])
def test_communicators_one_after_the_other(lab: Lab, version: str, tmp_path: Path) -> None:
    """HARP leaves no more descriptors than NCCL's own sockets, and a stack those of TIME-WAIT."""
    plugin = aliased_plugin(tmp_path) if version in FORGETFUL else None
    control = growth_in_turn(lab, version, SOCKETS, {}, None)
    for path in ("kernel", "xdp"):
        spare = max(control, 0) + (TIME_WAIT_PORTS_MAX if path == "xdp" else 0)
        found = growth_in_turn(lab, version, HARP, {"HARP_PATH": path}, plugin, spare)
        assert found <= spare, f"{path}: {found} descriptors more, NCCL's sockets {control}"


@pytest.mark.parametrize("version", FORGETFUL)
def test_nccl_1978_without_the_default_name(lab: Lab, version: str) -> None:
    """What docs/nccl.md says of these versions: once it holds no more, so does the advice."""
    with ranks_of(lab, version) as ranks:
        ranks.init()
        ranks.ask("destroy 0")
        with pytest.raises(RankError, match="Failed to initialize any NET plugin"):
            ranks.init()


@pytest.mark.parametrize("version", [*VERSIONS, "2.27.3"])
def test_the_plugin_by_its_path(lab: Lab, version: str) -> None:
    """docs/nccl.md names the versions that take no path in NCCL_NET_PLUGIN."""
    more = {"NCCL_NET_PLUGIN": str(_paths.plugin()), "LD_LIBRARY_PATH": ""}
    with ranks_of(lab, version, more=more) as ranks:
        if version in NO_PATH:
            with pytest.raises(RankError):
                ranks.init()
        else:
            ranks.init()
            check_once(ranks)
            assert "via NET/HARP/0" in log_of(ranks)
