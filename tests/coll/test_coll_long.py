# SPDX-License-Identifier: Apache-2.0
"""libharp-coll: every type in every size and world, many groups, and a NIC that is cut."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from test_coll import ENV, TIMEOUT_S, alone, command, results

from harp.lab import Lab, LabOptions, RailOptions
from harp.lab.rails import Rails

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


@pytest.mark.sample("silent-kernel")
@pytest.mark.parametrize("path", ["kernel", "xdp"])
@pytest.mark.parametrize("how", ["silent", "unplug", "down"])
def test_a_nic_is_cut(tmp_path: Path, how: str, path: str) -> None:
    """Two NICs, one fails in the middle of an all-reduce: the same weights, and no error."""
    with Lab(LabOptions(switch=True, rails=(RailOptions(),))) as lab:
        rails = Rails(lab)
        env = os.environ | ENV
        env |= {"HARP_PATH": path, "HARP_RAILS": "all", "NCCL_SOCKET_IFNAME": "=eth0,eth1"}
        processes = [
            host.popen(
                command("cut", 2, [host.index], "real", tmp_path),
                env=env,
                stderr=subprocess.PIPE,
            )
            for host in lab.hosts
        ]
        first = processes[0].stdout
        assert first is not None
        line = first.readline()
        if line.strip() == '"ready"':
            before = rails.bytes_to(1)
            if how == "silent":
                rails.silence(0)
            elif how == "unplug":
                rails.unplug(0, 0)
            else:
                rails.down(0, 0)
            (tmp_path / "cut").touch()
            assert min(before) > 100_000, "both NICs carry it"
        outcomes = [
            (process.communicate(timeout=TIMEOUT_S), process.returncode) for process in processes
        ]
    said = results([(status, out, err) for (out, err), status in outcomes])
    assert said[0][0] == said[1][0] >= 35
    print(json.dumps({"cut": how, "path": path, "longest_step_ms": said[0][1]}))
