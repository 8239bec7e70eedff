# SPDX-License-Identifier: Apache-2.0
"""Faults of a DPDK port seen through NCCL's plugin. With HARP_PATH=dpdk, init fails with one line
that gives the reason. With auto, the plugin logs it, uses another path, and all sums are right."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from dpdk_tools import HERE, Ends, memif, other_dpdk
from driver_rig import bench
from test_plugin import PORT, Live, environment, live, plugin

from harp.lab import Lab

__all__ = ["live", "plugin"]
SECONDS_MAX = 60


USAGE, ARGUMENT = "ncclInvalidUsage", "ncclInvalidArgument"
# Settings, the error of init, and words of its line.
CASES = {
    "no-address": ({"HARP_DPDK": "net_null0"}, USAGE, ";ip=ADDRESS/LENGTH"),
    "no-port": ({"HARP_DPDK": ""}, USAGE, "there is no DPDK port: name one in HARP_DPDK"),
    "other-interfaces": ({"HARP_IFNAME": "eth"}, USAGE, "HARP_IFNAME must let"),
    "arguments": ({"HARP_DPDK_ARGS": "--no-such-thing"}, USAGE, "net_null0"),
    "no-length": ({"HARP_DPDK": "net_null0;ip=10.78.1.1"}, ARGUMENT, "ip=10.78.1.1"),
    "twice": ({"HARP_DPDK": f"{PORT} {PORT}"}, ARGUMENT, "two ports net_null0"),
    "memory": ({"HARP_DPDK_MEMORY_MIB": "4"}, ARGUMENT, "from 32"),
    "no-library": ({"HARP_LIBDIR": "{folder}"}, USAGE, "libharp-dpdk.so is not installed"),
    "another-version": (
        {"HARP_LIBDIR": "{build}/tests/unit/fake_dpdk", "FAKE_DPDK_OLD": "1"},
        USAGE,
        "libharp-dpdk.so is of another version of HARP",
    ),
    "another-dpdk": (
        {"LD_LIBRARY_PATH": "{folder}"},
        USAGE,
        "DPDK's libraries are missing or of another version",
    ),
    "no-huge-pages": (
        {"HARP_DPDK_HUGE_PAGES": "require", "HARP_DPDK_MEMORY_MIB": "1000000"},
        USAGE,
        "1000000 MiB of huge pages are requested",
    ),
    "no-such-device": (
        {"HARP_DPDK": "no_such_device0;ip=10.78.1.1/24"},
        USAGE,
        "no_such_device0",
    ),
    "no-memory": (
        {"HARP_DPDK": f"{PORT};frames=65536", "HARP_DPDK_MEMORY_MIB": "32"},
        USAGE,
        "(132 MiB); give DPDK more (HARP_DPDK_MEMORY_MIB), or use fewer frames",
    ),
    "taken": ({"HARP_DPDK": "{taken}"}, USAGE, "Address already in use"),
    "no-primary": (
        {"HARP_DPDK_ARGS": "--proc-type=secondary --file-prefix=gone"},
        USAGE,
        "HARP does not share a primary process's ports, which may die",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_forced_path_that_is_not_available_fails(
    live: Live, ends: Ends, tmp_path: Path, name: str
) -> None:
    """init fails, and one line has the reason."""
    settings, error, words = CASES[name]
    taken = memif("server", tmp_path, 1)
    if name == "taken":
        ends.serve_port("10.9.0.1", taken)
    if name == "another-dpdk":
        other_dpdk(ends.library / "libharp-dpdk.so", tmp_path)
    places = {"folder": tmp_path, "build": ends.build, "taken": taken}
    variables = {key: value.format(**places) for key, value in settings.items()}
    (life,) = live(**{"HARP_PATH": "dpdk", "HARP_DPDK": PORT} | variables)
    assert life["error"] == error
    (line,) = life["warned"]
    assert words in line
    assert error != USAGE or "no DPDK port" in line or "HARP_PATH=auto" in line


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
        assert "is not used, and HARP goes on with the next best path: " in line
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
