# SPDX-License-Identifier: Apache-2.0
"""Runs the commands of docs/dpdk.md on a simulated machine (tests/netns/machine.py) and compares
exit codes and output."""

import re
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from machine import Machine, steps
from netns_tools import wait_until

from harp.lab import Lab

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "dpdk.md"
STEPS = steps(PAGE, frozenset({"sh"}))


@pytest.fixture
def machine(need_root: None, build_dir: Path) -> Iterator[Machine]:
    if not (build_dir / "dataplane" / "dpdk" / "libharp-dpdk.so").is_file():
        pytest.skip("this build has no DPDK")
    folder = Path(tempfile.mkdtemp(prefix="harp-machine-"))
    folder.chmod(0o755)
    with Lab() as lab:
        extra = {"HARP_DPDK_HUGE_PAGES": "never", "COLUMNS": "200"}
        machine = Machine(lab.hosts[0], folder, extra=extra)
        try:
            machine.start()
            machine.program("harp-tcp", build_dir / "tools" / "tcp" / "harp-tcp")
            assert machine.run("rm -rf /etc/harp; ip link set lo up") == ("", 0)
            yield machine
        finally:
            machine.close()


def test_the_commands_of_the_document_work(machine: Machine, build_dir: Path) -> None:
    assert len(STEPS) > 15
    for step in STEPS:
        where = f"{PAGE.name}:{step.number}: {step.command}"
        # The document names the default build directory.
        command = step.command.replace("build/dataplane/", f"{build_dir}/dataplane/")
        if command != "wait":
            command = f"cd {ROOT}; {command}"
        machine.type_in(replace(step, command=command), where)
        if command.endswith("&"):
            _, output = machine.background[-1]
            wait_until(lambda out=output: "ready\n" in out.read_text(), where)


def test_the_document_lists_all_keys_of_a_port() -> None:
    """The document's table, the parser and harp.toml have the same keys."""
    from harp._core import port_spec
    from harp.config.keys import tables

    rows = re.findall(r"^\| `(\w+=[^`]+)` \| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)
    assert {name for _, name in rows} == set(tables()["dpdk"]) - {"device", "cores"}
    text = "net_null0;ip=192.0.2.1/32;" + ";".join(key for key, _ in rows)
    spec = port_spec(text)
    assert (spec.name, spec.queues, spec.vlan_id, spec.take_default_route) == ("rail0", 4, 7, True)
    for key, _ in rows:
        assert key in spec.text or key == "frames=8192"


def test_the_document_binds_as_harpctl_check_advises() -> None:
    from harp.nicprep import pci

    device = pci.PciDevice("0000:00:06.0", "ena", ("eth1",), True, None, -1, Path())
    assert f"\n{pci.binding(device)}\n" in PAGE.read_text()
