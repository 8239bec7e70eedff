# SPDX-License-Identifier: Apache-2.0
"""Faults of a DPDK port seen through NCCL's plugin. With HARP_PATH=dpdk, init fails with one line
that gives the reason. With auto, the plugin logs it, uses another path, and all sums are right."""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from dpdk_tools import Ends, memif, other_dpdk, start
from driver_rig import bench
from test_plugin import Live, environment, live, plugin

from harp.lab import Lab

__all__ = ["live", "plugin"]
SECONDS_MAX = 60


@dataclass(frozen=True)
class Wrong:
    """What a rank is told of its port, and what it then says."""

    words: str
    dpdk: str = "net_null0,no-rx=1;ip=10.78.1.1/24"
    more: dict[str, str] = field(default_factory=dict)


CASES = {
    "no-library": Wrong("libharp-dpdk.so is not installed", more={"HARP_LIBDIR": "{folder}"}),
    "another-version": Wrong(
        "libharp-dpdk.so is of another version of HARP",
        more={"HARP_LIBDIR": "{build}/tests/unit/fake_dpdk", "FAKE_DPDK_OLD": "1"},
    ),
    "another-dpdk": Wrong(
        "DPDK's libraries are missing or of another version",
        more={"LD_LIBRARY_PATH": "{other}"},
    ),
    "no-huge-pages": Wrong(
        "1000000 MiB of huge pages are requested",
        more={"HARP_DPDK_HUGE_PAGES": "require", "HARP_DPDK_MEMORY_MIB": "1000000"},
    ),
    "no-such-device": Wrong("no_such_device0", "no_such_device0;ip=10.78.1.1/24"),
    "no-memory": Wrong(
        "(132 MiB); give DPDK more (HARP_DPDK_MEMORY_MIB), or use fewer frames",
        "net_null0,no-rx=1;ip=10.78.1.1/24;frames=65536",
        {"HARP_DPDK_MEMORY_MIB": "32"},
    ),
    "taken": Wrong("Address already in use", "{taken}"),
    "no-primary": Wrong(
        "HARP does not share a primary process's ports, which may die",
        more={"HARP_DPDK_ARGS": "--proc-type=secondary --file-prefix=gone"},
    ),
}


# A port in memory (tests/unit/fake_dpdk.c).
NO_LINK = Wrong(
    "its link is down",
    "fake0,down;ip=10.78.1.1/24",
    {"HARP_LIBDIR": "{build}/tests/unit/fake_dpdk"},
)


@pytest.fixture(params=CASES.values(), ids=CASES)
def wrong(request: pytest.FixtureRequest, ends: Ends, tmp_path: Path) -> Wrong:
    """With the places of this run."""
    case: Wrong = request.param
    taken = memif("server", tmp_path, 1)
    if case.dpdk == "{taken}":
        ends.serve("10.9.0.1", taken)
    empty, other = (tmp_path / name for name in ("empty", "other"))
    for folder in (empty, other):
        folder.mkdir()
    other_dpdk(ends.library / "libharp-dpdk.so", other)

    def here(text: str) -> str:
        return text.format(folder=empty, other=other, build=ends.build, taken=taken)

    more = {name: here(value) for name, value in case.more.items()}
    return Wrong(case.words, here(case.dpdk), environment() | more)


def test_a_forced_dpdk_path_fails_with_the_reason(live: Live, wrong: Wrong) -> None:
    (life,) = live(HARP_PATH="dpdk", HARP_DPDK=wrong.dpdk, **wrong.more)
    assert life["error"] == "ncclInvalidUsage"
    (line,) = life["warned"]
    assert wrong.words in line
    assert "(or use HARP_PATH=auto)" in line


@pytest.fixture(scope="module")
def hosts(need_root: None) -> Iterator[Lab]:
    """The next best path."""
    with Lab() as lab:
        yield lab


@pytest.mark.sample("taken", "no-link")
@pytest.mark.parametrize(
    "wrong", [*CASES.values(), NO_LINK], ids=[*CASES, "no-link"], indirect=True
)
def test_auto_continues_on_another_path(hosts: Lab, wrong: Wrong, ends: Ends, plugin: Path) -> None:
    """A ring all-reduce over the kernel's NICs; the log says why the port is not used."""
    run = ("--sizes", "4:5,1024:5,256K:5", "--ifname", "=eth0")
    root = hosts.hosts[0].endpoint(7000)
    variables = wrong.more | {"HARP_PATH": "auto", "HARP_DPDK": wrong.dpdk, "NCCL_DEBUG": "INFO"}
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
        assert wrong.words in line
        assert "connected by" in err


def test_connecting_fails_while_the_link_stays_down(
    hosts: Lab, ends: Ends, plugin: Path, tmp_path: Path
) -> None:
    """Each rank has a memif that nobody else comes to: connecting fails in time, and says why."""
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
    """DPDK's libraries without its drivers: which one every port needs, and from where."""

    def without(command: list[str | Path], _: object) -> "subprocess.Popen[str]":
        shell = ("unshare", "--mount", "sh", "-c", SOME_DRIVERS, "sh")
        return start([*shell, *command], {"KEPT": f"{tmp_path}/kept", "PATTERN": pattern})

    said = ends.refused(memif("client", tmp_path, 2), run=without)
    assert f"{missing} was not loaded from " in said
