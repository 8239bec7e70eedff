# SPDX-License-Identifier: Apache-2.0
"""Run the commands of docs/operating.md, and compare exit codes and output.

A block of the page is ```console, with `other` for the second host, or `wheel` if it needs the
wheel (tests/test_long.py runs these). `# exit code 0 or 5` after a command gives the expected
codes.
"""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from machine import Machine, user_is_free
from walked import Step, missing, steps

from harp.lab import Lab

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operating.md"
LOOK_AGAIN_S = 60
LOOKS = ("harpctl instances", "harpctl stats", "harpctl flows", "curl")


STEPS = steps(PAGE)


def type_in(machine: Machine, step: Step) -> None:
    """What the page says happens; AssertionError names its line."""
    where = f"{PAGE.name}:{step.number}: {step.command}"
    if step.command.endswith("&"):
        machine.begin(step.command.removesuffix("&"), step.user)
        return
    if step.command == "wait":
        for out, code in machine.wait():
            ended = f"{where}: exit code {code}\n{out[-2000:]}"
            assert code == 0, ended
            assert missing(step.shown, out) is None, ended
        return
    deadline = time.monotonic() + LOOK_AGAIN_S
    while True:
        out, code = machine.run(step.command, step.user)
        lacking = missing(step.shown, out)
        # A job that has just been started is not yet where the page sees it.
        looks = step.command.startswith(LOOKS)
        if not (lacking and looks and machine.busy and time.monotonic() < deadline):
            break
    assert code in step.codes, f"{where}: exit code {code}\n{out}"
    assert lacking is None, f"{where}: no line {lacking!r} in\n{out}"


@pytest.fixture
def machines(lab: Lab) -> Iterator[list[Machine]]:
    """Both hosts as machines of their own."""
    assert user_is_free()
    made: list[Machine] = []
    try:
        for host in lab.hosts:
            folder = Path(tempfile.mkdtemp(prefix="harp-machine-"))
            folder.chmod(0o755)
            made.append(Machine(host, folder))
            made[-1].start()
        yield made
    finally:
        for machine in made:
            machine.close()


def test_the_commands_of_the_page_work(machines: list[Machine]) -> None:
    for step in STEPS:
        if step.kind != "wheel":
            type_in(machines[step.kind == "other"], step)
    here, _ = machines
    assert "xdp" not in here.run("ip link show dev eth1")[0]
    assert here.run("ls -A /run/harp")[0] == ""
