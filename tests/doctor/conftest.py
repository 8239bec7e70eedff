# SPDX-License-Identifier: Apache-2.0
"""A simulated host without faults, to which each test adds one."""

from pathlib import Path

import pytest
from checked_host import CheckedHost
from fake_host import FakeHost

from harp.doctor.finding import Finding, Severity
from harp.doctor.view import Link


@pytest.fixture
def checked(tmp_path: Path) -> CheckedHost:
    fake = FakeHost(tmp_path)
    host = CheckedHost(fake)
    host.links["eth1"] = Link("eth1", 5, rx_queues=8, tx_queues=8, addresses=("10.0.0.1",))
    host.links["lo"] = Link("lo", 1, ethernet=False, loopback=True, addresses=("127.0.0.1",))
    host.stack = [
        Finding("kernel", Severity.GOOD, "Linux 6.18"),
        Finding("privilege", Severity.GOOD, "all"),
        Finding("link", Severity.GOOD, "up"),
    ]
    host.status()
    fake.write("sys/devices/system/cpu/online", "0-7")
    for cpu in range(8):
        fake.write(f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor", "performance")
    clock = "sys/devices/system/clocksource/clocksource0"
    fake.write(f"{clock}/current_clocksource", "tsc")
    fake.write(f"{clock}/available_clocksource", "tsc hpet acpi_pm")
    fake.write("proc/sys/net/core/bpf_jit_enable", 1)
    fake.write("proc/filesystems", "nodev\tsysfs\nnodev\tbpf\n\text4")
    fake.write("proc/self/mounts", "none /sys/fs/bpf bpf rw 0 0\ntmpfs /run tmpfs rw 0 0")
    fake.write("proc/self/cgroup", "0::/job")
    fake.write("sys/fs/cgroup/job/cpu.max", "max 100000")
    fake.write("sys/fs/cgroup/job/pids.max", "max")
    fake.write("proc/77/comm", "systemd")
    fake.nic.parts["channels"]["combined"] = 8
    fake.nic.parts["rings"] |= {"rx": 4096}
    fake.nic.parts["coalesce"] |= {"adaptive_rx": 0, "rx_usecs": 8}
    fake.nic.parts["features"]["rx-lro"] = False
    for irq in range(40, 48):
        fake.write(f"proc/irq/{irq}/smp_affinity_list", 4 + irq % 4)
    return host
