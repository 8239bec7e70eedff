# SPDX-License-Identifier: Apache-2.0
"""Run the commands of docs/dpdk.md, and compare exit codes and output. They run in a network
namespace with an /etc and a /run of its own."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from walked import Step, missing, steps

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "dpdk.md"
STEPS = steps(PAGE, frozenset({"sh"}))
WAIT_S = 120
# As root, in the namespaces to be: whatever is changed here, nobody else sees.
SCRIPT = """
set -e
mount --make-rprivate /
mkdir "$0/etc"
cp -a /etc/. "$0/etc"
mount --bind "$0/etc" /etc
rm -rf /etc/harp
mount -t tmpfs -o mode=0755 tmpfs /run
ip link set lo up
echo ready
exec cat
"""


class Room:
    """Where the page is typed: one process holds the namespaces open."""

    def __init__(self, folder: Path, build: Path) -> None:
        own = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        self._holder = subprocess.Popen(
            [*own, "sh", "-c", SCRIPT, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "ready\n"
        tasks = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children").read_text()
        inside = tasks.split()[0]
        self._enter = ["nsenter", f"--target={inside}", "--net", "--mount", "--pid"]
        places = (str(Path(sys.executable).parent), str(build / "tools" / "tcp"))
        path = os.pathsep.join((*places, os.environ["PATH"]))
        self._environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("HARP_")},
            "PATH": path,
            "HARP_BUILD": str(build),
            "HARP_DPDK_HUGE_PAGES": "never",
            "COLUMNS": "200",
        }
        self._build, self._begun = build, list[subprocess.Popen[str]]()

    def _start(self, command: str) -> subprocess.Popen[str]:
        # The page says where a source tree has it; this may be another build.
        text = command.replace("build/dataplane/", f"{self._build}/dataplane/")
        return subprocess.Popen(
            [*self._enter, "bash", "-c", text],
            cwd=ROOT,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def type_in(self, step: Step) -> None:
        """What the page says happens; AssertionError names its line."""
        where = f"{PAGE.name}:{step.number}: {step.command}"
        if step.command.endswith("&"):
            self._begun.append(self._start(step.command.removesuffix("&")))
            self._until_ready(self._begun[-1], where)
            return
        if step.command == "wait":
            for each in self._begun:
                out = each.communicate(timeout=WAIT_S)[0]
                assert each.returncode == 0, f"{where}\n{out}"
            self._begun.clear()
            return
        process = self._start(step.command)
        out = process.communicate(timeout=WAIT_S)[0]
        assert process.returncode in step.codes, f"{where}: exit code {process.returncode}\n{out}"
        lacking = missing(step.shown, out)
        assert lacking is None, f"{where}: no line {lacking!r} in\n{out}"

    @staticmethod
    def _until_ready(process: subprocess.Popen[str], where: str) -> None:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if line == "ready\n":
                return
        raise AssertionError(f"{where} ended: {''.join(said)}")

    def close(self) -> None:
        """Ends everything in it."""
        for each in self._begun:
            each.kill()
            each.wait()
        self._holder.kill()
        self._holder.wait()


@pytest.fixture
def room(tmp_path: Path, build_dir: Path) -> Iterator[Room]:
    if os.geteuid() != 0:
        pytest.skip("namespaces need root")
    if not (build_dir / "dataplane" / "dpdk" / "libharp-dpdk.so").is_file():
        pytest.skip("this build has no DPDK")
    made = Room(tmp_path, build_dir)
    yield made
    made.close()


def test_the_commands_of_the_page_work(room: Room) -> None:
    assert len(STEPS) > 15
    for step in STEPS:
        room.type_in(step)


def test_the_page_s_keys_are_those_of_a_port_s_text() -> None:
    """The table of keys, the parser and harp.toml agree."""
    from harp._core import port_spec
    from harp.config.keys import dpdk_keys

    rows = re.findall(r"^\| `(\w+=[^`]+)` \| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)
    assert {name for _, name in rows} == {key.key for key in dpdk_keys()} - {"device", "cores"}
    text = "net_null0;ip=192.0.2.1/32;" + ";".join(word for word, _ in rows)
    spec = port_spec(text)
    assert (spec.name, spec.queues, spec.vlan_id, spec.take_default_route) == ("rail0", 4, 7, True)
    for word, _ in rows:
        assert word in spec.text or word == "frames=8192"


def test_the_page_s_binding_is_what_check_advises() -> None:
    from harp.nicprep import pci

    device = pci.PciDevice("0000:00:06.0", "ena", ("eth1",), True, None, -1, Path())
    assert f"\n{pci.binding(device)}\n" in PAGE.read_text()
