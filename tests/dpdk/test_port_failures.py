# SPDX-License-Identifier: Apache-2.0
"""The NCCL plugin when a DPDK port fails. With HARP_PATH=dpdk, init fails with the reason in one
line. With HARP_PATH=auto, the plugin logs the reason and uses another path."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from actor import Actor, ActorError, actors
from dpdk_tools import LOCAL_HOST, DpdkTools, create_empty_dpdk, memif
from driver_rig import bench
from test_plugin import environment, plugin

from harp.lab import Lab

__all__ = ["plugin"]
SECONDS_MAX = 60
PORT = "net_null0,no-rx=1;ip=10.78.1.1/24"  # drops what it sends, receives nothing

# Settings, and a part of the error. test_device_port.c tests invalid texts of HARP_DPDK;
# test_instance_dpdk.c and ports_open.c test the errors of the library.
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
    "in-use": ({"HARP_DPDK": "{port}"}, "Address already in use"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_forced_path_that_is_not_available_fails(
    plugin: Path, tools: DpdkTools, tmp_path: Path, name: str
) -> None:
    """init fails; one line gives the reason."""
    settings, text = CASES[name]
    port = memif("server", tmp_path, 1)
    if name == "in-use":
        tools.serve_port("10.9.0.1", port)
    if name == "another-dpdk":
        create_empty_dpdk(tools.library / "libharp-dpdk.so", tmp_path)
    values = {"folder": tmp_path, "port": port}
    variables = {key: value.format(**values) for key, value in settings.items()}
    env = environment(**{"HARP_PATH": "dpdk", "HARP_DPDK": PORT} | variables)
    with actors(Actor(None, env)) as (rank,), pytest.raises(ActorError) as caught:
        rank.call("load", path=str(plugin))
    result, line = str(caught.value).splitlines()
    assert result.endswith("init: ncclInvalidUsage")
    assert text in line
    assert "HARP_PATH=auto" in line


@pytest.fixture(scope="module")
def hosts(need_root: None) -> Iterator[Lab]:
    """Two hosts with kernel NICs."""
    with Lab() as lab:
        yield lab


def test_auto_continues_on_another_path(hosts: Lab, tools: DpdkTools, plugin: Path) -> None:
    """An all-reduce uses the kernel NICs, because the link of the fake port is down
    (tests/unit/fake_dpdk.c). The sums are right, and the log gives the reason."""
    args = ("--sizes", "4:5,1024:5,256K:5", "--ifname", "=eth0")
    root = hosts.hosts[0].endpoint(7000)
    variables = environment(
        HARP_PATH="auto",
        HARP_DPDK="fake0,down;ip=10.78.1.1/24",
        HARP_LIBDIR=str(tools.build / "tests/unit/fake_dpdk"),
        NCCL_DEBUG="INFO",
    )
    ranks = [
        host.popen(bench("allreduce", host.index, 2, root, *args), env=variables)
        for host in hosts.hosts
    ]
    tools.started += ranks
    outputs = [rank.communicate(timeout=SECONDS_MAX) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    report = json.loads(outputs[0][0])
    assert (report["ok"], report["wrong"], report["device"]) == (True, 0, "eth0")
    for _, err in outputs:
        (line,) = [line for line in err.splitlines() if "WARN" in line and "DPDK" in line]
        assert "is not used, and HARP uses the next best path: " in line
        assert "its link is down" in line
        assert "connected by" in err


def test_connecting_fails_while_the_link_stays_down(
    hosts: Lab, tools: DpdkTools, plugin: Path, tmp_path: Path
) -> None:
    """Each rank has a memif without a peer. Connecting fails after the timeout with the reason."""
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
    tools.started += ranks
    errors = [rank.communicate(timeout=SECONDS_MAX)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [4, 4], errors
    assert any("net_memif0: cannot connect to" in err for err in errors)
    for err in errors:
        for line in err.splitlines():
            if "WARN" in line and "cannot connect" in line:
                assert "the link is down here" in line


# Runs a command for which DPDK's folder of drivers contains only those that match PATTERN.
WITH_DRIVERS = """set -e
folder=$(echo /usr/lib*/dpdk/pmds-* /usr/lib/*/dpdk/pmds-* | tr ' ' '\\n' | grep -v '[*]')
mkdir "$DRIVERS"
find "$folder" -name "$PATTERN" -exec cp -a {} "$DRIVERS" ';'
mount -t tmpfs -o mode=755 none "$folder"
find "$DRIVERS" -type f -o -type l | xargs -r cp -a -t "$folder"
exec "$@"
"""


@pytest.mark.parametrize(
    ("pattern", "missing"),
    [("none", "librte_bus_pci"), ("librte_bus_[pv]*", "librte_mempool_ring")],
)
def test_missing_drivers_are_named(
    need_root: None, tools: DpdkTools, tmp_path: Path, pattern: str, missing: str
) -> None:
    """Without some of DPDK's drivers, the error names the driver and its folder."""

    class HostWithoutDrivers:
        def popen(self, command: list[str | Path]) -> "subprocess.Popen[str]":
            settings = (f"DRIVERS={tmp_path}/drivers", f"PATTERN={pattern}")
            prefix = ("env", *settings, "unshare", "--mount", "sh", "-c", WITH_DRIVERS, "sh")
            return LOCAL_HOST.popen([*prefix, *command])

    error = tools.open_error(memif("client", tmp_path, 2), host=HostWithoutDrivers())
    assert f"{missing} was not loaded from " in error
