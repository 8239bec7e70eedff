# SPDX-License-Identifier: Apache-2.0
"""NCCL's plugin on DPDK ports: messages over memif and virtio.

`conform` runs NCCL's contract over the two ends of a memif (tests/plugin). Which ports are devices:
tests/unit/device/test_device_port.c. A process can start DPDK only once, so each rank here is a
process.
"""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from driver_rig import bench

from harp import stats
from harp.lab import Lab, LabOptions, require_root
from harp.stats.instance import look
from harp.stats.job import document

SECONDS_MAX = 180
Environment = dict[str, str]


@pytest.fixture(scope="module")
def plugin(build_dir: Path) -> Path:
    path = build_dir / "plugin" / "libnccl-net-harp.so"
    if not (path.parent / "libharp-dpdk.so").exists():
        pytest.skip("built without DPDK")
    return path


def environment(**variables: str) -> Environment:
    """Variables of a process that uses neither harpd, nor huge pages, nor this machine's NICs."""
    ours = ("HARP", "NCCL")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    fixed = {
        "HARP_DAEMON": "off",
        "HARP_DPDK_ARGS": "--no-pci",
        "HARP_DPDK_HUGE_PAGES": "never",
        "HARP_DPDK_MEMORY_MIB": "128",
        "HARP_FRAMES": "2048",
    }
    return kept | fixed | variables


# --------------------------------------------------------------------------------------------------
# Two ranks, the two ends of a memif.
#
@contextmanager
def ranks(
    ports: Path | list[str], mode: str, *arguments: str, **variables: str
) -> Iterator[list[subprocess.Popen[str]]]:
    """Two of harp-bench, on these devices or on the ends of a memif in a folder. Either may
    start first."""
    if isinstance(ports, Path):
        ports = [f"net_memif0,role={role},socket={ports}/memif" for role in ("server", "client")]
    with ExitStack() as ends:
        started: list[subprocess.Popen[str]] = []
        for rank in (1, 0):
            port = f"{ports[rank]};name=port{rank};ip=10.78.0.{rank + 1}/24;ip=fd78::{rank + 1}/64"
            process = subprocess.Popen(
                bench(mode, rank, 2, "127.0.0.1:29781", *arguments),
                env=environment(HARP_PATH="dpdk", HARP_DPDK=port, **variables),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            ends.callback(process.wait)
            ends.callback(process.kill)
            started.insert(0, process)
        yield started


def test_each_queue_of_a_virtual_card_has_lanes(plugin: Path, tmp_path: Path) -> None:
    """virtio_user and net_vhost with two queues each: a stack on each, and exact sums by both."""
    run = ("allreduce", "--sizes", "4:20,1024:20,262144:20", "--channels", "4")
    # The card listens and the back-end connects: either may start first.
    devices = (
        f"net_vhost0,iface={tmp_path}/vhost,client=1,queues=2,tso=1",
        f"net_virtio_user0,path={tmp_path}/vhost,server=1,queues=2,queue_size=1024",
    )
    variables = {"HARP_INSTANCES": "2", "NCCL_DEBUG": "INFO"}
    ports = [f"{device};queues=2" for device in devices]
    with ranks(ports, *run, **variables) as (first, second):
        out, errors = first.communicate(timeout=SECONDS_MAX)
        _, other_errors = second.communicate(timeout=SECONDS_MAX)
    assert (first.returncode, second.returncode) == (0, 0), errors + other_errors
    assert json.loads(out)["ok"] is True
    received = re.findall(r"port0\[([01])\]: HARP stats: rx_packets=([0-9]+)", errors)
    assert {queue for queue, packets in received if int(packets) > 0} == {"0", "1"}, errors


def lanes_of(pid: int, other: subprocess.Popen[str]) -> set[tuple[str, str]]:
    """Wait for lanes of a process: kind and NIC of each."""
    while other.poll() is None:
        with stats.find() as found:
            for job in look(found).jobs:
                comms = document(job)["comms"] if job.pid == pid else []
                shown = {(lane["kind"], lane["ifname"]) for comm in comms for lane in comm["lanes"]}
                if shown:
                    return shown
    raise AssertionError(other.communicate()[1])


def test_registered_memory_is_not_copied(plugin: Path, tmp_path: Path) -> None:
    """HARP copies only record headers. What memif's driver copies is counted separately."""
    run = ("bw", "--sizes", "1M:1000000:0")
    with ranks(tmp_path, *run) as (first, second):
        assert lanes_of(first.pid, second) == {("dpdk", "port0")}
        least = 64 << 20
        counters = counters_of(
            first.pid, second, tx_external_bytes=least, nic_driver_copied_bytes=least
        )
    assert counters["tx_copied_bytes"] * 1000 < counters["tx_external_bytes"]
    assert counters["nic_copied_bytes"] == 0
    assert counters["tx_evicted_bytes"] == 0


def test_what_was_sent_in_place_moves_to_other_rails(plugin: Path) -> None:
    """The port's cable is cut while registered memory is on it. It arrives by the other NIC's
    lanes, HARP's and the kernel's, every byte right, and deregMr gets it back."""
    run = ("--sizes", "1M:4000:0")
    require_root("network namespaces")
    with Lab(LabOptions(rails=2)) as lab:
        root = lab.hosts[0].endpoint(29781)
        started = []
        for rank, host in enumerate(lab.hosts):
            cable = host.further[0].ifname
            host.run("ip", "address", "flush", "dev", cable)
            variables = environment(
                HARP_PATH="auto",
                HARP_RAILS="all",
                HARP_IFNAME=f"=port{rank},{host.ifname}",
                HARP_DPDK=f"net_af_packet0,iface={cable};name=port{rank};ip=10.78.0.{rank + 1}/24",
            )
            command = bench("bw", rank, 2, root, *run)
            started.append(host.popen(command, env=variables))
        first, second = started
        # Where auto finds the kernel faster the port has trials alone, 2 % of the bytes.
        counters_of(first.pid, second, tx_external_bytes=4 << 20)
        cable = lab.hosts[0].further[0].ifname
        lab.hosts[0].run("ip", "link", "set", cable, "down")
        out, errors = first.communicate(timeout=SECONDS_MAX)
        _, other_errors = second.communicate(timeout=SECONDS_MAX)
    assert (first.returncode, second.returncode) == (0, 0), errors + other_errors
    assert [size["wrong"] for size in json.loads(out)["results"]] == [0]


def counters_of(pid: int, other: subprocess.Popen[str], **least: int) -> dict[str, int]:
    """Wait until counters of a process's port reach these values; all counters."""
    while other.poll() is None:
        with stats.find() as found:
            for instance in look(found, flows=False).instances:
                counters = instance.snapshot.counters
                values = {name: int(counters[name]) for name in counters.dtype.names or ()}
                if instance.pid == pid and all(values[name] >= n for name, n in least.items()):
                    return values
    raise AssertionError(other.communicate()[1])
