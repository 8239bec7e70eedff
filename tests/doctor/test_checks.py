# SPDX-License-Identifier: Apache-2.0
"""Each check finds nothing on a host without faults, and finds its fault on a host that has it."""

import errno
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from checked_host import NOT_RUNNING, CheckedHost, device

from harp import _host, _paths
from harp.doctor.finding import CHECKS, Finding, Severity
from harp.doctor.view import Harpd, Link

COSTS, NO = Severity.COSTS, Severity.NO
CPU = "sys/devices/system/cpu"
UNPRIVILEGED = "0000000000000000"


def link(checked: CheckedHost, **values: object) -> None:
    checked.links["eth1"] = replace(checked.links["eth1"], **values)  # type: ignore[arg-type]


def virtual(checked: CheckedHost, kind: str, **values: object) -> None:
    checked.fake.nic.bus = ""
    link(checked, kind=kind, **values)


def leases(checked: CheckedHost, free: int, flags: int = 0) -> None:
    """harpd leases eth1, which has `free` of 8 queues free."""
    devices = {"eth1": device("eth1", 5, 8, free, flags)}
    checked.harpd = Harpd(NOT_RUNNING.path, version="harpd 0.1.0", devices=devices)


def few_threads(checked: CheckedHost) -> None:
    checked.fake.write("sys/fs/cgroup/pids.max", 300)
    checked.fake.write("sys/fs/cgroup/pids.current", 200)


def old_quota(checked: CheckedHost) -> None:
    checked.fake.write("proc/self/cgroup", "4:cpu,cpuacct:/docker/abc\n2:pids:/\n0::/")
    folder = "sys/fs/cgroup/cpu,cpuacct/docker/abc"
    checked.fake.write(f"{folder}/cpu.cfs_quota_us", 150000)
    checked.fake.write(f"{folder}/cpu.cfs_period_us", 100000)


def deep_sleep(checked: CheckedHost) -> None:
    for state, (name, latency, disabled) in enumerate(
        (("POLL", 0, 0), ("C1", 2, 0), ("C6", 133, 0), ("C7", 400, 1))
    ):
        folder = f"{CPU}/cpu2/cpuidle/state{state}"
        checked.fake.write(f"{folder}/name", name)
        checked.fake.write(f"{folder}/latency", latency)
        checked.fake.write(f"{folder}/disable", disabled)


def light_sleep(checked: CheckedHost) -> None:
    deep_sleep(checked)
    checked.fake.write(f"{CPU}/cpu2/cpuidle/state2/disable", 1)


def no_zero_copy(checked: CheckedHost) -> None:
    checked.fake.nic.xdp["xdp_features"] = 0x63


def jumbo_in_one_buffer(checked: CheckedHost) -> None:
    checked.fake.nic.xdp["xdp_features"] = 0x0B
    link(checked, mtu_bytes=9000)


def ena_with_all_queues(checked: CheckedHost) -> None:
    checked.fake.nic.driver = "ena"
    checked.fake.nic.parts["channels"] |= {"combined": 16}


def fixed_merging(checked: CheckedHost) -> None:
    checked.fake.nic.parts["features"]["rx-gro-hw"] = True
    checked.fake.ethtool.fixed.add("rx-gro-hw")


def tagged(checked: CheckedHost, offload: bool = True, lower: str = "eth1") -> None:
    """VLAN 5 is on the NIC, or on another device."""
    checked.fake.nic.parts["features"]["rx-vlan-hw-parse"] = offload
    checked.links["vlan5"] = Link("vlan5", 50, "vlan", up=False, lower=lower)


def tagged_bond(checked: CheckedHost) -> None:
    """The members of a bond receive the packets of its VLANs."""
    tagged(checked, lower="bond0")
    checked.links["vlan6"] = replace(checked.links["vlan5"], name="vlan6", index=51)
    link(checked, master="bond0", master_kind="bond")


def all_on_one(checked: CheckedHost) -> None:
    for irq in range(40, 48):
        checked.fake.write(f"proc/irq/{irq}/smp_affinity_list", 4)


def denied(checked: CheckedHost) -> None:
    checked.harpd = replace(NOT_RUNNING, error=errno.EACCES, why="uid 65534 is not allowed")


def seccomp(checked: CheckedHost) -> None:
    checked.xdp_socket = errno.EPERM
    checked.status(seccomp=2)


def set_part(part: str, **values: int) -> Callable[[CheckedHost], None]:
    return lambda checked: checked.fake.nic.parts[part].update(values)


def write(path: str, text: object) -> Callable[[CheckedHost], None]:
    return lambda checked: checked.fake.write(path, text) and None


def toml(text: str) -> Callable[[CheckedHost], None]:
    return lambda checked: setattr(checked, "toml", text)


def another_harp(checked: CheckedHost) -> None:
    checked.python_site = checked.fake.host.sys / "site-packages"
    (checked.python_site / "harp-1.2.dist-info").mkdir(parents=True)
    (checked.python_site / "harp_nccl-0.1.0.dist-info").mkdir()


def stale_plugin(checked: CheckedHost) -> None:
    path = checked.fake.host.sys / "libnccl-net-harp.so"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"an older build")
    checked.libraries["libnccl-net-harp.so"] = path


Fault = tuple[str, Callable[[CheckedHost], object], Severity, str]
FAULTS: list[Fault] = [
    ("processors", lambda p: p.fake.allowed.__ixor__(set(range(1, 8))), COSTS, "one only (0 of"),
    (
        "processors",
        lambda p: p.fake.allowed.__iand__({1, 3}),
        COSTS,
        "the threads of one core (1,3",
    ),
    ("cpu-idle", deep_sleep, COSTS, "133 us from C6"),
    ("cpu-quota", write("sys/fs/cgroup/job/cpu.max", "150000 100000"), COSTS, "1.5 processors"),
    ("cpu-quota", write("sys/fs/cgroup/cpu.max", "200000 100000"), COSTS, "2 processors"),
    ("cpu-quota", old_quota, COSTS, "1.5 processors of time on 8"),
    ("cpu-governor", write(f"{CPU}/cpu3/cpufreq/scaling_governor", "powersave"), COSTS, "on 3"),
    (
        "clocksource",
        write("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet"),
        COSTS,
        "hpet: each reading is a system call",
    ),
    ("nccl-name", stale_plugin, COSTS, "is not the plugin of this HARP"),
    ("python-package", another_harp, NO, "the unrelated PyPI package harp 1.2 is installed"),
    ("bpf-jit", write("proc/sys/net/core/bpf_jit_enable", 0), COSTS, "interpreted"),
    ("bpffs", write("proc/filesystems", "nodev\tsysfs"), COSTS, "the kernel has none"),
    ("af-xdp", lambda p: setattr(p, "xdp_socket", errno.EAFNOSUPPORT), NO, "no AF_XDP"),
    ("af-xdp", lambda p: setattr(p, "xdp_socket", errno.EPERM), NO, "not allowed"),
    ("af-xdp", lambda p: setattr(p, "xdp_socket", errno.EMFILE), NO, "EMFILE"),
    ("af-xdp", seccomp, NO, "a seccomp filter forbids it"),
    ("shm", lambda p: p.space.clear(), COSTS, "there is none"),
    ("shm", lambda p: p.space.update({"/dev/shm": 64 << 20}), COSTS, "64 MiB: too little"),
    ("pids", few_threads, COSTS, "200 of 300 threads"),
    ("irqbalance", write("proc/77/comm", "irqbalance"), COSTS, "runs (process 77)"),
    ("harpd", lambda p: p.status(UNPRIVILEGED), COSTS, "unprivileged jobs get kernel lanes"),
    ("config", toml("[daemon]\nnonsense = 1\nhuge_pages = -1\n"), COSTS, "harp.toml:2"),
    ("config", toml('[[nic]]\nifname = "eth7"\n'), COSTS, "harp.toml names eth7"),
    ("harpd", denied, COSTS, "uid 65534 is not allowed"),
    (
        "harpd",
        lambda p: setattr(p, "harpd", replace(NOT_RUNNING, error=errno.ECONNREFUSED)),
        COSTS,
        "no process listens",
    ),
    (
        "harpd",
        lambda p: setattr(p, "harpd", replace(NOT_RUNNING, error=errno.EPROTO, why="gibberish")),
        COSTS,
        "gibberish",
    ),
    ("device", lambda p: virtual(p, "bond", members=("eth2", "eth3")), NO, "members: eth2, eth3"),
    ("device", lambda p: virtual(p, "vlan", lower="eth2"), NO, "a VLAN on eth2"),
    ("device", lambda p: virtual(p, "macvlan", lower="eth2"), COSTS, "a macvlan on eth2"),
    ("device", lambda p: virtual(p, "ipvlan"), COSTS, "on a device of the host"),
    ("device", lambda p: virtual(p, "bridge", members=("eth2",)), COSTS, "a bridge"),
    ("device", lambda p: virtual(p, "wireguard", ethernet=False), NO, "no Ethernet frames"),
    ("zero-copy", no_zero_copy, COSTS, "fakenic has none in this kernel"),
    ("native-xdp", lambda p: p.fake.nic.xdp.update(xdp_features=0x62), COSTS, "has none"),
    ("native-xdp", jumbo_in_one_buffer, COSTS, "the MTU is 9000: generic XDP"),
    ("channels", ena_with_all_queues, COSTS, "16 of 16: ena has native XDP with half"),
    ("rss", lambda p: p.fake.nic.parts.pop("rss"), COSTS, "by trying"),
    ("merging", lambda p: p.fake.nic.parts["features"].update({"rx-lro": True}), COSTS, "lro on"),
    ("merging", fixed_merging, COSTS, "rx-gro-hw on, and fixed"),
    ("coalescing", set_part("coalesce", adaptive_rx=1), COSTS, "adaptive"),
    ("coalescing", set_part("coalesce", rx_usecs=200), COSTS, "up to 200 us"),
    ("rings", set_part("rings", rx=256), COSTS, "256 received packets of 4096"),
    ("numa", lambda p: p.fake.allowed.__isub__({4, 5, 6, 7}), COSTS, "the NIC is at node 1"),
    ("irq-affinity", write("proc/irq/41/smp_affinity_list", "0-3"), COSTS, "1 of 8 run far"),
    ("irq-affinity", all_on_one, COSTS, "all 8 on processor 4"),
    ("queue-busy", lambda p: p.fake.nic.xsk_queues.append(0), NO, "of another process"),
    ("queue-busy", lambda p: leases(p, 0), COSTS, "all 8 queues are leased"),
    (
        "queue-busy",
        lambda p: leases(p, 1, _host.DEVICE_ONE_QUEUE),
        COSTS,
        "came on one of 8 queues",
    ),
    ("vlan-tags", tagged, COSTS, "rxvlan is on and there is vlan5: HARP can receive"),
    ("vlan-tags", lambda p: tagged(p) or leases(p, 3), COSTS, "rxvlan is on"),
    ("vlan-tags", tagged_bond, COSTS, "there is vlan5, vlan6"),
    ("harpd-program", lambda p: leases(p, 3, _host.DEVICE_GENERIC), COSTS, "is copied once more"),
]


def test_a_host_without_faults_has_no_finding(checked: CheckedHost) -> None:
    examined = checked.examine()
    assert [finding for finding in examined.findings if finding.severity] == []
    assert examined.verdict == "HARP works on eth1"
    assert checked.examine_all().verdict == "HARP works on eth1"


@pytest.mark.parametrize(
    ("name", "cause", "severity", "text"), FAULTS, ids=[f"{i[0]}: {i[3]}" for i in FAULTS]
)
def test_each_check_finds_its_fault(
    checked: CheckedHost,
    name: str,
    cause: Callable[[CheckedHost], object],
    severity: Severity,
    text: str,
) -> None:
    cause(checked)
    finding = checked.finding(name)
    assert finding.severity == severity
    assert text in finding.text
    assert finding.remedy


def test_the_names_by_which_nccl_finds_the_plugin(checked: CheckedHost, tmp_path: Path) -> None:
    virtual(checked, "veth")
    assert "not by name" in checked.finding("nccl-name").text
    names = ("libnccl-net-harp.so", "libnccl-net.so")
    checked.libraries[names[0]] = _paths.plugin()
    assert "there is no libnccl-net.so" in checked.finding("nccl-name").text
    checked.libraries[names[1]] = _paths.plugin()
    assert "and by default" in checked.finding("nccl-name").text
    checked.libraries[names[1]] = tmp_path / "other"
    (tmp_path / "other").write_bytes(b"")
    finding = checked.finding("nccl-name")
    assert "is another plugin" in finding.text
    assert not finding.severity


@pytest.mark.parametrize(
    ("change", "name", "text"),
    [
        (lambda p: p.fake.nic.xdp.clear(), "zero-copy", "not known before Linux 6.3"),
        (lambda p: p.fake.nic.xdp.clear(), "native-xdp", "not known before Linux 6.3"),
        (lambda p: no_zero_copy(p) or virtual(p, "veth"), "zero-copy", "a virtual device"),
        (lambda p: p.fake.nic.parts.pop("channels"), "channels", "8 receive, 8 transmit; fixed"),
        (
            lambda p: p.fake.nic.parts.update(
                channels={"rx": 1, "rx_max": 2, "tx": 1, "tx_max": 2}
            ),
            "rss",
            "one queue",
        ),
        (toml('[[nic]]\nifname = "eth1"\n'), "config", "harp.toml, for eth1"),
        (light_sleep, "cpu-idle", "2 us from C1"),
        (lambda p: p.fake.nic.xsk_queues.append(3), "queue-busy", "queue 0 is free; taken: 3"),
        (lambda p: leases(p, 3), "queue-busy", "harpd has 3 of 8 queues to lease"),
        (lambda p: tagged(p, offload=False), "vlan-tags", "rxvlan is off"),
        (lambda p: tagged(p, lower="eth2"), "vlan-tags", "no VLAN interface here"),
        (lambda p: leases(p, 3), "harpd", "harpd 0.1.0 at /run/harp/harpd.sock leases eth1"),
        (lambda p: p.fake.remove("proc/interrupts"), "irq-affinity", "none of its own"),
        (lambda p: p.fake.allowed.__isub__({4, 5, 6}), "numa", "node 1, processors 7"),
        (lambda p: link(p, master="bond0", master_kind="bond"), "device", "member of bond bond0"),
        (write("proc/self/mounts", ""), "bpffs", "not mounted"),
        (write("sys/fs/cgroup/job/cpu.max", "800000 100000"), "cpu-quota", "8 processors"),
        (
            lambda p: [p.fake.remove(f"{CPU}/cpu{n}/cpufreq/scaling_governor") for n in range(8)],
            "cpu-governor",
            "the machine offers no choice",
        ),
        (lambda p: p.status(seccomp=2), "af-xdp", "through the seccomp filter"),
        (
            lambda p: leases(p, 1) or setattr(p, "xdp_socket", errno.EPERM),
            "af-xdp",
            "harpd leases them",
        ),
    ],
)
def test_findings_without_a_fault(
    checked: CheckedHost, change: Callable[[CheckedHost], object], name: str, text: str
) -> None:
    change(checked)
    finding = checked.finding(name)
    assert finding.severity == Severity.GOOD, finding
    assert text.replace("none of its own", "no interrupts of their own") in finding.text


def test_missing_files_cause_no_fault_and_no_crash(checked: CheckedHost, tmp_path: Path) -> None:
    """Every check has a finding on an old kernel and in a container without /sys."""
    for folder in ("sys", "proc"):
        (tmp_path / folder).rename(tmp_path / f"no-{folder}")
    checked.harpd = replace(NOT_RUNNING)
    findings = checked.examine().findings
    assert {finding.name for finding in findings} >= {"cpu-quota", "clocksource", "pids", "harpd"}
    assert not [finding for finding in findings if finding.severity == NO]


def test_invalid_files_cause_no_crash(checked: CheckedHost) -> None:
    for path in (
        "proc/self/status",
        "proc/self/cgroup",
        "proc/self/mounts",
        "proc/interrupts",
        "sys/fs/cgroup/job/cpu.max",
        f"{CPU}/online",
        "sys/devices/system/node/has_memory",
        "sys/devices/system/node/node1/distance",
    ):
        checked.fake.write(path, "\0\xff:::9-1 99999999 -- \n 7: \n")
    assert len(checked.examine().findings) > 15


def test_a_check_that_fails_is_reported_and_the_others_run(checked: CheckedHost) -> None:
    def broken(_path: str) -> int:
        raise OSError(errno.EIO, "Input/output error")

    checked.space = type("Broken", (), {"get": staticmethod(broken)})()  # type: ignore[assignment]
    findings = {finding.name: finding for finding in checked.examine().findings}
    assert findings["shm"].severity == COSTS
    assert findings["shm"].text == "could not be examined: Input/output error"
    assert findings["harpd"].severity == Severity.GOOD


def test_a_user_with_leases_needs_no_privilege(checked: CheckedHost) -> None:
    checked.stack += [
        Finding("memlock", NO, "too little", "more"),
        Finding("xdp-program", NO, "XDP program 7 is attached", "stop it"),
        Finding("queue", NO, "no queue 9", "choose"),
    ]
    checked.stack[1] = Finding("privilege", NO, "CAP_BPF missing", "add")
    leases(checked, 2)
    findings = {finding.name: finding for finding in checked.examine().findings}
    for name in ("privilege", "memlock", "xdp-program"):
        assert findings[name].severity == Severity.GOOD
        assert "harpd" in findings[name].text
        assert not findings[name].remedy
    assert findings["queue"].severity == NO, "harpd does not change that"
    checked.stack[-1] = Finding("queue", COSTS, "8 receive queues: connections ...", "one")
    assert checked.finding("queue").severity == Severity.GOOD
    checked.links["eth1"] = replace(checked.links["eth1"], index=6)
    findings = {finding.name: finding for finding in checked.examine().findings}
    assert findings["privilege"].severity == NO, "harpd's eth1 is in another namespace"


def test_harpd_is_queried_at_its_configured_socket(checked: CheckedHost) -> None:
    checked.toml = '[daemon]\nrun_dir = "/run/other"\n'
    checked.finding("harpd")
    checked.toml = "[daemon]\nrun_dir = 7\n"
    checked.finding("harpd")
    assert checked.asked == [Path("/run/other/harpd.sock"), Path("/run/harp/harpd.sock")]


def test_the_whole_host_is_as_good_as_its_best_interface(checked: CheckedHost) -> None:
    bond = replace(checked.links["eth1"], name="bond0", index=9, kind="bond")
    checked.links["bond0"] = bond
    checked.fake.ethtool.nics["bond0"] = checked.fake.ethtool.nics["eth1"]
    report = checked.examine_all()
    assert [interface.ifname for interface in report.interfaces] == ["eth1", "bond0"]
    assert [interface.severity for interface in report.interfaces] == [Severity.GOOD, NO]
    assert (report.severity, report.verdict) == (Severity.GOOD, "HARP works on eth1")
    checked.xdp_socket = errno.EAFNOSUPPORT
    assert checked.examine_all().severity == NO
    assert "on this host" in checked.examine_all().verdict


def test_candidate_interfaces_are_listed(checked: CheckedHost) -> None:
    eth1 = checked.links["eth1"]
    checked.links |= {
        "down": replace(eth1, name="down", index=6, up=False),
        "bare": replace(eth1, name="bare", index=7, addresses=("fe80::1",)),
        "slave": replace(eth1, name="slave", index=8, addresses=(), master_kind="bond"),
        "port": replace(eth1, name="port", index=9, addresses=(), master_kind="bridge"),
    }
    nic = checked.fake.ethtool.nics["eth1"]
    checked.fake.ethtool.nics |= {"slave": nic, "port": nic}
    assert [interface.ifname for interface in checked.examine_all().interfaces] == ["eth1", "slave"]


def test_a_host_without_interfaces(checked: CheckedHost) -> None:
    del checked.links["eth1"]
    report = checked.examine_all()
    assert (report.interfaces, report.severity) == ([], NO)
    assert report.verdict.startswith("no interface is up")
    assert {"kernel", "privilege", "processors"} <= {finding.name for finding in report.host}


def test_the_c_checks_are_listed(root_dir: Path) -> None:
    """CHECKS has exactly the names that the C stack reports."""
    text = (root_dir / "dataplane/host/check.c").read_text()
    reported = set(re.findall(r'report_add\(\s*&?report, "([a-z0-9-]+)"', text))
    assert reported == {check.name for check in CHECKS if check.function is None}
