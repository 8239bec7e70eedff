# SPDX-License-Identifier: Apache-2.0
"""Run the commands of docs/operating.md, and compare exit codes and output.

A block of the page is ```console, with `other` for the second host, or `wheel` if it needs the
wheel (tests/install/test_wheel.py runs these). `# exit code 0 or 5` after a command gives the
expected codes.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from machine import Machine, steps, user_is_free

from harp.lab import Lab

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operating.md"
# Commands that may have to wait until a background job is ready.
LOOKS = ("harpctl instances", "harpctl stats", "harpctl flows", "curl")


STEPS = steps(PAGE)


@pytest.fixture
def machines(lab: Lab) -> Iterator[list[Machine]]:
    assert user_is_free()
    result: list[Machine] = []
    try:
        for host in lab.hosts:
            folder = Path(tempfile.mkdtemp(prefix="harp-machine-"))
            folder.chmod(0o755)
            result.append(Machine(host, folder))
            result[-1].start()
        yield result
    finally:
        for machine in result:
            machine.close()


def test_the_commands_of_the_page_work(machines: list[Machine]) -> None:
    for step in STEPS:
        if step.kind != "wheel":
            machine = machines[step.kind == "other"]
            where = f"{PAGE.name}:{step.number}: {step.command}"
            machine.type_in(step, where, step.command.startswith(LOOKS))
    here, _ = machines
    assert "xdp" not in here.run("ip link show dev eth1")[0]
    assert here.run("ls -A /run/harp")[0] == ""
