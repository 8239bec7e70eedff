# SPDX-License-Identifier: Apache-2.0
"""libharp-coll: every type in every size and world, and many groups."""

from pathlib import Path

import pytest
from test_coll import alone

pytestmark = pytest.mark.usefixtures("need_root")


@pytest.mark.long
@pytest.mark.parametrize("world", [1, 2, 3, 4, 5, 6, 7, 8, 13])
@pytest.mark.parametrize("hosts", [0, 1, 2])
def test_every_type(
    tmp_path: Path, world: int, hosts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every operation with every type, reduction and size equals numpy's."""
    monkeypatch.setenv("HARP_TEST_TYPES", "all")
    # 13 ranks share few processors: minutes, where other work runs.
    assert len(alone(tmp_path, "types", world, hosts, timeout_s=600)) == world


@pytest.mark.sample("0-100", "1-100")
@pytest.mark.parametrize("groups", [100, 1000])
@pytest.mark.parametrize("hosts", [0, 1])
def test_groups_leave_nothing(
    tmp_path: Path, groups: int, hosts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither descriptors nor threads nor memory, over the plugin and through shared memory."""
    monkeypatch.setenv("HARP_TEST_GROUPS", str(groups))
    for count, descriptors, threads, kib in alone(
        tmp_path, "groups_come_and_go", 2, hosts
    ).values():
        assert count == groups
        # What every group leaves is one each; connections of the last ones may still be closing.
        assert descriptors < groups / 4
        assert threads < groups / 4
        # An object that every group forgets is larger: a group has half a MiB through memory.
        assert kib < 2048
