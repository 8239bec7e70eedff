# SPDX-License-Identifier: Apache-2.0
"""Every version of NCCL: data, and communicators one after the other.

Where NCCL's own sockets fail, too, the fault is not HARP's: the control comes first.
"""

import re
from pathlib import Path

import pytest
from nccl_tools import (
    FORGETFUL,
    ONE_OF_EACH_TABLE,
    VERSIONS,
    check_all,
    check_once,
    log_of,
    ranks_of,
)

from harp import _paths
from harp.lab import Lab
from harp.nccl.ranks import HARP, SOCKETS, RankError

pytestmark = pytest.mark.nccl

COMMS = 20


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("protocol", ["Simple", "LL"])
def test_every_byte_is_right(lab: Lab, version: str, protocol: str) -> None:
    more = {"NCCL_PROTO": protocol}
    with ranks_of(lab, version, SOCKETS, more) as control:
        control.init()
        check_all(control, version)
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


def aliased_plugin(folder: Path) -> Path:
    """The plugin's files in a folder where it also has the name that NCCL looks for by default."""
    plugin = _paths.plugin()
    for file in plugin.parent.glob("*.so"):
        (folder / file.name).symlink_to(file)
    (folder / "libnccl-net.so").symlink_to(plugin)
    return folder / plugin.name


@pytest.mark.parametrize("version", [*ONE_OF_EACH_TABLE, "2.22.3", "2.28.9"])
def test_communicators_one_after_the_other(lab: Lab, version: str, tmp_path: Path) -> None:
    plugin = aliased_plugin(tmp_path) if version in FORGETFUL else None
    with ranks_of(lab, version, plugin=plugin) as ranks:
        seen = []
        for _ in range(COMMS):
            ranks.init()
            check_once(ranks)
            ranks.ask("destroy 0")
            seen.append(ranks.ask("status"))
        threads = [max(each["threads"] for each in both) for both in seen]
        descriptors = [max(each["fds"] for each in both) for both in seen]
    assert max(threads[1:]) <= threads[0] + 2, threads
    # Closed comms leave at most 16 descriptors a stack, for a minute; ranks have four comms each.
    assert max(descriptors[1:]) <= descriptors[0] + 32, descriptors


@pytest.mark.parametrize("version", FORGETFUL)
def test_nccl_1978_without_the_default_name(lab: Lab, version: str) -> None:
    """What docs/nccl.md says of these versions: once it holds no more, so does the advice."""
    with ranks_of(lab, version) as ranks:
        ranks.init()
        ranks.ask("destroy 0")
        with pytest.raises(RankError, match="Failed to initialize any NET plugin"):
            ranks.init()
