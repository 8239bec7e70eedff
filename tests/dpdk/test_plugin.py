# SPDX-License-Identifier: Apache-2.0
"""The NCCL plugin on DPDK ports: messages over memif and virtio.

A process can start DPDK only once, so each rank is a process. Other tests: `conform` checks NCCL's
contract over a memif (tests/plugin), tests/unit/device/test_device_port.c which ports are devices.
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
    """The environment of a process that uses neither harpd, huge pages, nor PCI devices."""
    prefixes = ("HARP", "NCCL")
    others = {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
    defaults = {
        "HARP_DAEMON": "off",
        "HARP_DPDK_ARGS": "--no-pci",
        "HARP_DPDK_HUGE_PAGES": "never",
        "HARP_DPDK_MEMORY_MIB": "128",
        "HARP_FRAMES": "2048",
    }
    return others | defaults | variables


# --------------------------------------------------------------------------------------------------
# Two ranks on two ports.
#
@contextmanager
def ranks(
    ports: Path | list[str], mode: str, *arguments: str, **variables: str
) -> Iterator[list[subprocess.Popen[str]]]:
    """Two ranks of harp-bench on two devices; a folder: on a memif whose socket is there."""
    if isinstance(ports, Path):
        ports = [f"net_memif0,role={role},socket={ports}/memif" for role in ("server", "client")]
    with ExitStack() as stack:
        processes: list[subprocess.Popen[str]] = []
        for rank in (1, 0):
            port = f"{ports[rank]};name=port{rank};ip=10.78.0.{rank + 1}/24;ip=fd78::{rank + 1}/64"
            process = subprocess.Popen(
                bench(mode, rank, 2, "127.0.0.1:29781", *arguments),
                env=environment(HARP_PATH="dpdk", HARP_DPDK=port, **variables),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            processes.insert(0, process)
        yield processes


def test_each_queue_of_a_virtual_nic_has_lanes(plugin: Path, tmp_path: Path) -> None:
    """virtio_user and net_vhost with a stack on each of two queues: both stacks receive."""
    args = ("allreduce", "--sizes", "4:20,1024:20,262144:20", "--channels", "4")
    # Either process may start first, because virtio_user listens and net_vhost retries.
    devices = (
        f"net_vhost0,iface={tmp_path}/vhost,client=1,queues=2,tso=1",
        f"net_virtio_user0,path={tmp_path}/vhost,server=1,queues=2,queue_size=1024",
    )
    variables = {"HARP_INSTANCES": "2", "NCCL_DEBUG": "INFO"}
    ports = [f"{device};queues=2" for device in devices]
    with ranks(ports, *args, **variables) as (first, second):
        out, errors = first.communicate(timeout=SECONDS_MAX)
        _, other_errors = second.communicate(timeout=SECONDS_MAX)
    assert (first.returncode, second.returncode) == (0, 0), errors + other_errors
    assert json.loads(out)["ok"] is True
    received = re.findall(r"port0\[([01])\]: HARP stats: rx_packets=([0-9]+)", errors)
    assert {queue for queue, packets in received if int(packets) > 0} == {"0", "1"}, errors


def lanes_of(pid: int, other: subprocess.Popen[str]) -> set[tuple[str, str]]:
    """Wait until a process has lanes; return the kind and the NIC of each."""
    while other.poll() is None:
        with stats.find() as pages:
            for job in look(pages).jobs:
                comms = document(job)["comms"] if job.pid == pid else []
                lanes = {(lane["kind"], lane["ifname"]) for comm in comms for lane in comm["lanes"]}
                if lanes:
                    return lanes
    raise AssertionError(other.communicate()[1])


def test_registered_memory_is_not_copied(plugin: Path, tmp_path: Path) -> None:
    """HARP copies only record headers. The copies of memif's driver are counted separately."""
    args = ("bw", "--sizes", "1M:1000000:0")
    with ranks(tmp_path, *args) as (first, second):
        assert lanes_of(first.pid, second) == {("dpdk", "port0")}
        minimum = 64 << 20
        counters = counters_of(
            first.pid, second, tx_external_bytes=minimum, nic_driver_copied_bytes=minimum
        )
    assert counters["tx_copied_bytes"] * 1000 < counters["tx_external_bytes"]
    assert counters["nic_copied_bytes"] == 0
    assert counters["tx_evicted_bytes"] == 0


def test_external_frames_move_to_another_rail(plugin: Path) -> None:
    """The port's link goes down while it sends registered memory. The other NIC's lanes send it
    again, every byte arrives intact, and deregMr succeeds."""
    args = ("--sizes", "1M:4000:0")
    require_root("network namespaces")
    with Lab(LabOptions(rails=2)) as lab:
        root = lab.hosts[0].endpoint(29781)
        processes = []
        for rank, host in enumerate(lab.hosts):
            cable = host.other_nics[0].ifname
            host.run("ip", "address", "flush", "dev", cable)
            variables = environment(
                HARP_PATH="auto",
                HARP_RAILS="all",
                HARP_IFNAME=f"=port{rank},{host.ifname}",
                HARP_DPDK=f"net_af_packet0,iface={cable};name=port{rank};ip=10.78.0.{rank + 1}/24",
            )
            command = bench("bw", rank, 2, root, *args)
            processes.append(host.popen(command, env=variables))
        first, second = processes
        # If auto prefers kernel lanes, only the 2 % of the bytes that it probes with use the port.
        counters_of(first.pid, second, tx_external_bytes=4 << 20)
        cable = lab.hosts[0].other_nics[0].ifname
        lab.hosts[0].run("ip", "link", "set", cable, "down")
        out, errors = first.communicate(timeout=SECONDS_MAX)
        _, other_errors = second.communicate(timeout=SECONDS_MAX)
    assert (first.returncode, second.returncode) == (0, 0), errors + other_errors
    assert [size["wrong"] for size in json.loads(out)["results"]] == [0]


def counters_of(pid: int, other: subprocess.Popen[str], **minimums: int) -> dict[str, int]:
    """Wait until counters of a process's port reach these values; return all counters."""
    while other.poll() is None:
        with stats.find() as pages:
            for instance in look(pages, flows=False).instances:
                counters = instance.snapshot.counters
                values = {name: int(counters[name]) for name in counters.dtype.names or ()}
                if instance.pid == pid and all(values[name] >= n for name, n in minimums.items()):
                    return values
    raise AssertionError(other.communicate()[1])
