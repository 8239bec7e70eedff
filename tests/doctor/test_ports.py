# SPDX-License-Identifier: Apache-2.0
"""Checks of fake DPDK ports with and without faults, and of real ones if DPDK is installed."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from checked_host import CheckedHost, device
from programs import finished

from harp import _host
from harp.doctor.examine import Examination, examine_port
from harp.doctor.finding import Finding, Severity
from harp.doctor.view import Harpd, PortProbe
from harp.errors import HarpError

GOOD, COSTS, NO = Severity.GOOD, Severity.COSTS, Severity.NO
SPEC = "0000:01:00.0;queues=2;mtu=9000"
HUGE = "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages"
INFO = {
    "version": "DPDK 22.11.11", "driver": "net_ice", "bus": "pci", "mac": "02:00:00:00:00:01",
    "numa_node": 1, "mtu_bytes": 1500, "mtu_bytes_max": 9710, "rx_queues_max": 64,
    "tx_queues_max": 64, "rss_table": 512, "tx_offloads": ["TCP_CKSUM", "TCP_TSO"],
    "driver_copies": False,
}  # fmt: skip


@pytest.fixture
def port(checked: CheckedHost) -> CheckedHost:
    checked.fake.write(HUGE, 512)
    checked.card("0000:01:00.0")
    checked.probe = PortProbe(info=dict(INFO), link={"up": True, "speed_mbps": 100_000})
    return checked


def findings(checked: CheckedHost, spec: str = SPEC) -> dict[str, Finding]:
    return {finding.name: finding for finding in examine_port(checked.view, spec).findings}


def change(**info: Any) -> Callable[[CheckedHost], None]:
    return lambda p: setattr(p, "probe", replace(p.probe, info={**p.probe.info, **info}))


def toml(text: str) -> Callable[[CheckedHost], None]:
    return lambda p: setattr(p, "toml", text)


def set_link(**link: Any) -> Callable[[CheckedHost], None]:
    return lambda p: setattr(p, "probe", replace(p.probe, link=link))


def refuse(why: str, missing: bool = False) -> Callable[[CheckedHost], None]:
    return lambda p: setattr(p, "probe", PortProbe(why, missing=missing))


def no_huge(text: str = "") -> Callable[[CheckedHost], None]:
    def cause(checked: CheckedHost) -> None:
        checked.fake.write(HUGE, 3)
        checked.toml = text

    return cause


FAULTS = [
    ("dpdk", refuse("built without DPDK", True), NO, "built without DPDK"),
    ("dpdk-memory", no_huge(), COSTS, "6 MiB of huge pages are free; a process's ports take 256"),
    ("dpdk-memory", no_huge('[job]\ndpdk_huge_pages = "require"\n'), NO, "requires them"),
    (
        "dpdk-memory",
        toml("[job]\nframes = 65536\n"),
        NO,
        "MiB of frames are needed (2",
    ),
    ("dpdk-device", refuse("0000:01:00.0: in use, by another process"), NO, "in use"),
    ("dpdk-link", set_link(up=False, speed_mbps=0), NO, "down"),
    (
        "dpdk-mtu",
        change(mtu_bytes_max=1500),
        NO,
        "9000 is requested, but the device's limit is 1500",
    ),
    ("dpdk-queues", change(rx_queues_max=1), NO, "2 are requested, but the device has 1"),
    ("dpdk-queues", change(rss_table=0), COSTS, "it has no hash: all packets may come to one"),
    ("dpdk-offloads", change(tx_offloads=["MULTI_SEGS"]), COSTS, "none"),
]
GOOD_PORTS = [
    (set_link(up=True, speed_mbps=0), "dpdk-link", "unknown speed"),
    (change(driver="net_memif", mtu_bytes_max=1500), "dpdk-mtu", "of several buffers"),
    (change(driver_copies=True, tx_offloads=[]), "dpdk-offloads", "the driver copies"),
    (no_huge('[job]\ndpdk_huge_pages = "never"\n'), "dpdk-memory", "by dpdk_huge_pages"),
]


def test_a_port_without_faults_has_no_finding(port: CheckedHost) -> None:
    examined = examine_port(port.view, SPEC + ";name=rail0")
    assert [finding for finding in examined.findings if finding.severity] == []
    assert examined.verdict == "HARP works on dpdk:rail0"
    assert port.opened == [SPEC + ";name=rail0"]


@pytest.mark.parametrize(
    ("name", "cause", "severity", "text"), FAULTS, ids=[f"{i[0]}: {i[3]}" for i in FAULTS]
)
def test_each_check_finds_its_fault(
    port: CheckedHost,
    name: str,
    cause: Callable[[CheckedHost], None],
    severity: Severity,
    text: str,
) -> None:
    cause(port)
    finding = findings(port)[name]
    assert finding.severity == severity
    assert text in finding.text
    assert finding.remedy


@pytest.mark.parametrize(
    ("alter", "name", "text"), GOOD_PORTS, ids=[f"{i[1]}: {i[2]}" for i in GOOD_PORTS]
)
def test_a_good_port_has_no_fault(
    port: CheckedHost, alter: Callable[[CheckedHost], None], name: str, text: str
) -> None:
    alter(port)
    finding = findings(port)[name]
    assert (finding.severity, finding.remedy) == (GOOD, "")
    assert text in finding.text


def test_a_port_that_cannot_be_opened_is_reported_once(port: CheckedHost) -> None:
    port.probe = PortProbe("0000:01:00.0: no such device")
    assert [
        finding.name for finding in examine_port(port.view, SPEC).findings if finding.severity
    ] == ["dpdk-device"]
    port.probe = PortProbe("built without DPDK", missing=True)
    assert [
        finding.name for finding in examine_port(port.view, SPEC).findings if finding.severity
    ] == ["dpdk"]


def test_ports_of_harp_toml_are_known_by_name(port: CheckedHost) -> None:
    port.toml = '[[dpdk]]\ndevice = "net_null0"\nname = "rail7"\nmtu = 1400\n'
    examined: Examination = port.examine("dpdk:rail7")
    assert examined.ifname == "dpdk:rail7"
    assert port.opened[-1].startswith("net_null0;name=rail7;")
    assert "processors" in {item.name for item in examined.findings}
    report = port.examine_all()
    assert [item.ifname for item in report.interfaces] == ["eth1", "dpdk:rail7"]


@pytest.mark.parametrize("spec", ["", "net_null0;mtu=1", "net_null0;frog=1", ",", "n" * 999])
def test_an_invalid_specification_is_an_error(port: CheckedHost, spec: str) -> None:
    with pytest.raises(HarpError):
        examine_port(port.view, spec)
    assert port.opened == []


# --------------------------------------------------------------------------------------------------
# Real ports.
#
@pytest.fixture(scope="module")
def dpdk() -> None:
    try:
        import harp.dpdk  # noqa: F401
    except HarpError as error:
        pytest.skip(str(error))


def check(spec: str) -> tuple[int, dict[str, Any]]:
    command = [Path(sys.executable).with_name("harpctl"), "check", f"dpdk:{spec}", "-o", "json"]
    done = finished(command, timeout=120)
    assert done.stdout, done.stderr
    findings = json.loads(done.stdout)["findings"]
    return done.returncode, {finding["name"]: finding for finding in findings}


def test_a_real_port_is_examined(dpdk: None) -> None:
    status, findings = check("net_null0;queues=2;mtu=4000")
    assert findings["dpdk-device"]["text"].startswith("net_null, a virtual device, ")
    assert findings["dpdk-mtu"]["text"].startswith("4000, of at most ")
    assert findings["dpdk-queues"]["text"].startswith("2 of ")
    assert findings["dpdk"]["text"].startswith("DPDK ")
    assert "dpdk-link" not in findings
    assert status in (0, 5)


def test_a_real_port_gets_the_arguments_of_the_job(
    dpdk: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check opens the port as the job would, and so finds arguments that fail."""
    monkeypatch.setenv("HARP_DPDK_ARGS", "--proc-type=secondary")
    status, findings = check("net_null0")
    assert status == 1
    assert "HARP does not share the ports of a primary process" in findings["dpdk-device"]["text"]


def test_a_real_port_in_use_by_another_process(dpdk: None, tmp_path: Path) -> None:
    from harp import dpdk as ports

    spec = f"net_memif0,role=server,socket={tmp_path}/m,socket-abstract=no"
    start = {"huge_pages": "never", "memory_mib": 64}
    options = json.dumps({"start": start, "pool": {"count": 255}})
    command = [sys.executable, "-m", ports.__name__ + ".worker", "receive", spec, options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline().startswith("ready ")
        status, findings = check(spec)
        holder.terminate()
    assert status == 1
    assert "Address already in use" in findings["dpdk-device"]["text"]


def lease_rail0(checked: CheckedHost, free: int = 0) -> None:
    """harp.toml and harpd have rail0, with `free` free queues."""
    checked.toml = '[[dpdk]]\ndevice = "0000:01:00.0"\nname = "rail0"\n'
    devices = {"rail0": device("rail0", 0, 1, free, _host.DEVICE_DPDK)}
    checked.harpd = Harpd(Path("/run/harp/harpd.sock"), version="0.1.0", devices=devices)


def test_a_leased_port_is_left_to_its_holder(port: CheckedHost) -> None:
    lease_rail0(port)
    finding = findings(port, "rail0")["dpdk-lease"]
    assert finding.severity == GOOD
    assert "`harpctl instances` names the job" in finding.text
    assert port.opened == []


@pytest.mark.parametrize("text", ["rail0", "0000:01:00.0;name=rail0;queues=2"])
def test_a_port_that_is_not_leased_is_opened(port: CheckedHost, text: str) -> None:
    """A specification with the name of a leased port is another port."""
    lease_rail0(port, free=1 if text == "rail0" else 0)
    assert "dpdk-lease" not in findings(port, text)
    assert len(port.opened) == 1
