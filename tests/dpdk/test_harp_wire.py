# SPDX-License-Identifier: Apache-2.0
"""harp-wire on DPDK ports: raw frames and round trips over memif, and refused options."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harp import _paths
from harp.lab import Lab, memif

pytestmark = pytest.mark.usefixtures("need_root", "ends")
Process = subprocess.Popen[str]


class Wire:
    """harp-wire on both hosts. They agree over the lab's veth; frames take their ports."""

    def __init__(self, lab: Lab, build: Path) -> None:
        self.here, self.there = lab.hosts
        self._library = build / "dataplane" / "dpdk"

    def command(self, verb: str, port: str, *more: str) -> list[str | Path]:
        words = [_paths.find("harp-wire"), verb, f"dpdk:{port}", self.there.address]
        return [*words, "--lib-dir", self._library, "--seconds", "1", *more]

    def serve(self, port: str = "net_null0") -> Process:
        server = self.there.popen(self.command("serve", port))
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n", server.communicate()[1]
        return server

    def run(self, verb: str, ports: tuple[str, str]) -> Any:
        """One test between the hosts; the client's report."""
        server = self.serve(ports[0])
        status, out, err = ended(self.here.popen(self.command(verb, ports[1], "-o", "json")))
        assert status == 0, err + server.communicate()[1]
        assert ended(server) == (0, "", "")
        return json.loads(out)


def ended(process: Process) -> tuple[int, str, str]:
    """Status and output."""
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@pytest.fixture(scope="module")
def wire(build_dir: Path) -> Iterator[Wire]:
    with Lab() as lab:
        yield Wire(lab, build_dir)


@pytest.mark.parametrize("mtu", [1500, 9000])
@pytest.mark.parametrize("verb", ["send", "recv"])
def test_frames_arrive_whole(wire: Wire, tmp_path: Path, verb: str, mtu: int) -> None:
    report = wire.run(verb, memif.port_texts(tmp_path, mtu_bytes=mtu))
    sent, received = report["sent"], report["received"]
    assert report["mode"] == "dpdk net_memif, the driver copies"
    assert report["frame_bytes"] == mtu + 14
    assert report["descriptors_per_frame"] == 1
    assert 0 < received["frames"] <= sent["frames"]
    assert received["bytes"] == received["frames"] * (mtu + 14)


def test_round_trips_are_measured(wire: Wire, tmp_path: Path) -> None:
    report = wire.run("pingpong", memif.port_texts(tmp_path, mtu_bytes=1500))
    assert report["round_trips"] > 50
    assert 0 < report["rtt_ns"]["p50"] <= report["rtt_ns"]["p99"]


# The texts that no port has: tests/unit/host/test_port_spec.c.
REFUSED: list[tuple[str, tuple[str, ...], str]] = [
    ("net_null0;mtu=x", (), "mtu=x"),
    ("net_null0", ("--queue", "3"), "the port has 1; say queues=4"),
    ("net_null0", ("--copy", "copy"), "--xdp and --copy are of AF_XDP"),
    ("net_null0", ("--lib-dir", "/nowhere"), "libharp-dpdk.so is not installed"),
]
# What a server finds out when its client has come.
CLIENT_REFUSED: list[tuple[str, tuple[str, ...], str]] = [
    ("net_null0;frames=1048576", (), "give DPDK more"),
    ("net_null0", ("--size", "1515"), "--size exceeds the interface's MTU"),
]


@pytest.mark.parametrize(
    ("verb", "refused"),
    [("serve", case) for case in REFUSED]
    + [("send", case) for case in [*REFUSED[:2], *CLIENT_REFUSED]],
)
def test_an_invalid_option_is_one_error_line(
    wire: Wire, verb: str, refused: tuple[str, tuple[str, ...], str]
) -> None:
    port, more, words = refused
    server = wire.serve() if verb == "send" else None
    host = wire.here if verb == "send" else wire.there
    status, out, err = ended(host.popen(wire.command(verb, port, *more)))
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("harp-wire: ")
    assert words in err
    assert server is None or ended(server)[0] == 1, "its client went away"


@pytest.mark.parametrize("verb", ["send", "pingpong"])
def test_a_port_that_never_runs_dry_ends_with_its_client(wire: Wire, verb: str) -> None:
    """net_null makes empty packets for as long as it is polled."""
    server = wire.serve()
    status, _, err = ended(wire.here.popen(wire.command(verb, "net_null0")))
    assert (status, err) == (0, "")
    assert ended(server) == (0, "", "")


@pytest.mark.long  # it waits 10 s for a link
def test_a_missing_peer_is_reported(wire: Wire, tmp_path: Path) -> None:
    """Two servers of memif: neither gets a link."""
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir(0o700)
    ports = [memif.port_texts(folder)[0] for folder in folders]
    server = wire.serve(ports[0])
    for process in (wire.here.popen(wire.command("send", ports[1])), server):
        status, _, err = ended(process)
        assert status == 1
        assert "the port has no link" in err
