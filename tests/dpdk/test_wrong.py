# SPDX-License-Identifier: Apache-2.0
"""Faults of a DPDK port seen through NCCL's plugin. With HARP_PATH=dpdk, init fails with one line
that gives the reason. With auto, the plugin logs it, uses another path, and all sums are right."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from actor import Actor, ActorError, actors
from dpdk_tools import HERE, Ends, memif, other_dpdk
from driver_rig import bench
from test_plugin import environment, plugin

from harp.lab import Lab

__all__ = ["plugin"]
SECONDS_MAX = 60
PORT = "net_null0,no-rx=1;ip=10.78.1.1/24"  # swallows what it is given

# Settings, and words of the line. test_device_port.c has what is wrong in the text of HARP_DPDK,
# test_instance_dpdk.c and ports_open.c what the library refuses.
CASES = {
    "arguments": ({"HARP_DPDK_ARGS": "--no-such-thing"}, "net_null0"),
    "another-dpdk": (
        {"LD_LIBRARY_PATH": "{folder}"},
        "DPDK's libraries are missing or of another version",
    ),
    "no-memory": (
        {"HARP_DPDK": f"{PORT};frames=65536", "HARP_DPDK_MEMORY_MIB": "32"},
        "(132 MiB); give DPDK more (HARP_DPDK_MEMORY_MIB), or use fewer frames",
    ),
    "taken": ({"HARP_DPDK": "{taken}"}, "Address already in use"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_forced_path_that_is_not_available_fails(
    plugin: Path, ends: Ends, tmp_path: Path, name: str
) -> None:
    """init fails, and one line has the reason."""
    settings, words = CASES[name]
    taken = memif("server", tmp_path, 1)
    if name == "taken":
        ends.serve_port("10.9.0.1", taken)
    if name == "another-dpdk":
        other_dpdk(ends.library / "libharp-dpdk.so", tmp_path)
    places = {"folder": tmp_path, "taken": taken}
    variables = {key: value.format(**places) for key, value in settings.items()}
    env = environment(**{"HARP_PATH": "dpdk", "HARP_DPDK": PORT} | variables)
    with actors(Actor(None, env)) as (rank,), pytest.raises(ActorError) as failed:
        rank.call("load", path=str(plugin))
    result, line = str(failed.value).splitlines()
    assert result.endswith("init: ncclInvalidUsage")
    assert words in line
    assert "HARP_PATH=auto" in line


@pytest.fixture(scope="module")
def hosts(need_root: None) -> Iterator[Lab]:
    """Two hosts with NICs of the kernel."""
    with Lab() as lab:
        yield lab


def test_auto_continues_on_another_path(hosts: Lab, ends: Ends, plugin: Path) -> None:
    """A ring all-reduce over the kernel's NICs; the log says why the port is not used: its link is
    down, in memory (tests/unit/fake_dpdk.c)."""
    run = ("--sizes", "4:5,1024:5,256K:5", "--ifname", "=eth0")
    root = hosts.hosts[0].endpoint(7000)
    variables = environment(
        HARP_PATH="auto",
        HARP_DPDK="fake0,down;ip=10.78.1.1/24",
        HARP_LIBDIR=str(ends.build / "tests/unit/fake_dpdk"),
        NCCL_DEBUG="INFO",
    )
    ranks = [
        host.popen(bench("allreduce", host.index, 2, root, *run), env=variables)
        for host in hosts.hosts
    ]
    ends.started += ranks
    said = [rank.communicate(timeout=SECONDS_MAX) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    report = json.loads(said[0][0])
    assert (report["ok"], report["wrong"], report["device"]) == (True, 0, "eth0")
    for _, err in said:
        (line,) = [line for line in err.splitlines() if "WARN" in line and "DPDK" in line]
        assert "is not used, and HARP uses the next best path: " in line
        assert "its link is down" in line
        assert "connected by" in err


def test_connecting_fails_while_the_link_stays_down(
    hosts: Lab, ends: Ends, plugin: Path, tmp_path: Path
) -> None:
    """Each rank has a memif without a peer: connecting fails in time, with the reason."""
    root = hosts.hosts[0].endpoint(7001)
    ranks = []
    for host in hosts.hosts:
        folder = tmp_path / str(host.index)
        folder.mkdir(0o700)
        variables = environment(
            HARP_PATH="dpdk",
            HARP_DPDK=memif("server", folder, host.index + 1),
            HARP_CONNECT_TIMEOUT_MS="1000",
            NCCL_DEBUG="INFO",
        )
        command = bench("allreduce", host.index, 2, root, "--sizes", "8:1")
        ranks.append(host.popen(command, env=variables))
    ends.started += ranks
    said = [rank.communicate(timeout=SECONDS_MAX)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [4, 4], said
    assert any("net_memif0: cannot connect to" in err for err in said)
    for err in said:
        for line in err.splitlines():
            if "WARN" in line and "cannot connect" in line:
                assert "the link is down here" in line


# DPDK's folder of drivers, of which there is but what PATTERN matches.
SOME_DRIVERS = """set -e
folder=$(echo /usr/lib*/dpdk/pmds-* /usr/lib/*/dpdk/pmds-* | tr ' ' '\\n' | grep -v '[*]')
mkdir "$KEPT"
find "$folder" -name "$PATTERN" -exec cp -a {} "$KEPT" ';'
mount -t tmpfs -o mode=755 none "$folder"
find "$KEPT" -type f -o -type l | xargs -r cp -a -t "$folder"
exec "$@"
"""


@pytest.mark.parametrize(
    ("pattern", "missing"),
    [("none", "librte_bus_pci"), ("librte_bus_[pv]*", "librte_mempool_ring")],
)
def test_missing_drivers_are_named(
    need_root: None, ends: Ends, tmp_path: Path, pattern: str, missing: str
) -> None:
    """DPDK's libraries without its drivers: the error names the driver and its folder."""

    class Without:
        def popen(self, command: list[str | Path]) -> "subprocess.Popen[str]":
            settings = (f"KEPT={tmp_path}/kept", f"PATTERN={pattern}")
            shell = ("env", *settings, "unshare", "--mount", "sh", "-c", SOME_DRIVERS, "sh")
            return HERE.popen([*shell, *command])

    said = ends.refused(memif("client", tmp_path, 2), host=Without())
    assert f"{missing} was not loaded from " in said
