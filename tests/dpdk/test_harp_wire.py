# SPDX-License-Identifier: Apache-2.0
"""harp-wire on DPDK ports: raw frames and round trips over memif, and refused options."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dpdk_tools import Ends, other_dpdk
from dpdk_tools import memif as memif_text

from harp import _paths
from harp.lab import Lab, memif

pytestmark = pytest.mark.usefixtures("need_root", "ends")


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Both sides agree over its veth; frames go by memif."""
    with Lab() as made:
        yield made


def words(build_dir: Path, verb: str, port: str, address: str, *more: str) -> list[str]:
    """The command."""
    library = build_dir / "dataplane" / "dpdk"
    command = [_paths.find("harp-wire"), verb, f"dpdk:{port}", address, "--lib-dir", library]
    return [*map(str, command), "--seconds", "1", *more]


def ended(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    """Status and what it said."""
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def wire(lab: Lab, build_dir: Path, folder: Path, verb: str, mtu: int) -> Any:
    """One test between the hosts; the client's report."""
    here, there = lab.hosts
    texts = memif.port_texts(folder, mtu_bytes=mtu)
    server = there.popen(words(build_dir, "serve", texts[0], there.address))
    assert server.stdout is not None
    assert server.stdout.readline() == "ready\n", server.communicate()[1]
    client = here.popen(words(build_dir, verb, texts[1], there.address, "-o", "json"))
    status, out, err = ended(client)
    assert status == 0, err + server.communicate()[1]
    assert ended(server) == (0, "", "")
    return json.loads(out)


@pytest.mark.parametrize("mtu", [1500, 9000])
@pytest.mark.parametrize("verb", ["send", "recv"])
def test_frames_arrive_whole(
    lab: Lab, build_dir: Path, tmp_path: Path, verb: str, mtu: int
) -> None:
    report = wire(lab, build_dir, tmp_path, verb, mtu)
    sent, received = report["sent"], report["received"]
    assert report["mode"] == "dpdk net_memif, the driver copies"
    assert report["frame_bytes"] == mtu + 14
    assert report["descriptors_per_frame"] == 1
    assert 0 < received["frames"] <= sent["frames"]
    assert received["bytes"] == received["frames"] * (mtu + 14)


def test_round_trips_are_measured(lab: Lab, build_dir: Path, tmp_path: Path) -> None:
    report = wire(lab, build_dir, tmp_path, "pingpong", 1500)
    assert report["round_trips"] > 50
    assert 0 < report["rtt_ns"]["p50"] <= report["rtt_ns"]["p99"]


@pytest.mark.parametrize(
    ("port", "more", "complaint"),
    [
        ("frog0", (), "frog0"),
        ("net_null0;mtu=x", (), "mtu=x"),
        ("net_null0", ("--queue", "3"), "queue 3"),
        ("net_null0", ("--xdp", "native"), "--xdp and --copy are of AF_XDP"),
        ("net_null0", ("--size", "1515"), "--size exceeds the interface's MTU"),
        ("net_null0;frames=1048576", (), "give DPDK more"),
        (
            "net_null0",
            ("--lib-dir", "/nowhere"),
            "dpdk:net_null0: libharp-dpdk.so is not installed",
        ),
    ],
)
def test_an_impossible_port_is_one_error_line(
    lab: Lab, build_dir: Path, port: str, more: tuple[str, ...], complaint: str
) -> None:
    here, there = lab.hosts
    server = there.popen(words(build_dir, "serve", "net_null0", there.address))
    assert server.stdout is not None
    assert server.stdout.readline() == "ready\n"
    status, out, err = ended(here.popen(words(build_dir, "send", port, there.address, *more)))
    assert (status, out) == (1, "")
    assert err.startswith("harp-wire: ")
    assert complaint in err
    assert err.count("\n") == 1
    assert ended(server)[0] == 1  # its client went away


@pytest.mark.parametrize(
    ("port", "more", "complaint"),
    [
        ("", (), "a device of 1 to 511 bytes is needed first"),
        ("net_null0;mtu=x", (), "mtu=x"),
        ("net_null0", ("--queue", "3"), "the port has 1; say queues=4"),
        ("net_null0", ("--copy", "copy"), "--xdp and --copy are of AF_XDP"),
        ("net_null0", ("--lib-dir", "/nowhere"), "libharp-dpdk.so is not installed"),
    ],
)
def test_an_impossible_server_never_says_ready(
    lab: Lab, build_dir: Path, port: str, more: tuple[str, ...], complaint: str
) -> None:
    there = lab.hosts[1]
    status, out, err = ended(there.popen(words(build_dir, "serve", port, there.address, *more)))
    assert (status, out) == (1, "")
    assert err.startswith("harp-wire: ")
    assert complaint in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("verb", ["send", "pingpong"])
def test_a_port_that_never_runs_dry_ends_with_its_client(
    lab: Lab, build_dir: Path, verb: str
) -> None:
    """net_null makes packets of nothing for as long as somebody looks."""
    here, there = lab.hosts
    server = there.popen(words(build_dir, "serve", "net_null0", there.address))
    assert server.stdout is not None
    assert server.stdout.readline() == "ready\n"
    status, _, err = ended(here.popen(words(build_dir, verb, "net_null0", there.address)))
    assert (status, err) == (0, "")
    assert ended(server) == (0, "", "")


def test_a_port_that_another_process_has(
    lab: Lab, ends: Ends, build_dir: Path, tmp_path: Path
) -> None:
    """The server's end of a memif, which harp-tcp has."""
    here, there = lab.hosts
    taken = memif_text("server", tmp_path, 1)
    ends.serve("10.9.0.1", taken)
    server = there.popen(words(build_dir, "serve", "net_null0", there.address))
    assert server.stdout is not None
    assert server.stdout.readline() == "ready\n"
    status, _, err = ended(here.popen(words(build_dir, "send", taken, there.address)))
    assert status == 1
    assert "net_memif0: Address already in use: its socket has a server" in err
    assert err.count("\n") == 1
    assert ended(server)[0] == 1


def test_dpdk_of_another_version(lab: Lab, build_dir: Path, tmp_path: Path) -> None:
    """Where DPDK's libraries should be is one that lacks what is needed of it."""
    here, there = lab.hosts
    server = there.popen(words(build_dir, "serve", "net_null0", there.address))
    assert server.stdout is not None
    assert server.stdout.readline() == "ready\n"
    other = other_dpdk(build_dir / "dataplane" / "dpdk" / "libharp-dpdk.so", tmp_path)
    command = words(build_dir, "send", "net_null0", there.address)
    environment = os.environ | {"LD_LIBRARY_PATH": str(other)}
    status, _, err = ended(here.popen(command, env=environment))
    assert status == 1
    assert err.startswith("harp-wire: dpdk:net_null0: ")
    assert "DPDK's own libraries are missing or of another version" in err
    assert err.count("\n") == 1
    assert ended(server)[0] == 1


@pytest.mark.long  # it waits 10 s for a link
def test_a_missing_peer_is_reported(lab: Lab, build_dir: Path, tmp_path: Path) -> None:
    """Two servers of memif: neither gets a link."""
    here, there = lab.hosts
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir(0o700)
    ports = [memif.port_texts(folder)[0] for folder in folders]
    server = there.popen(words(build_dir, "serve", ports[0], there.address))
    assert server.stdout is not None
    assert server.stdout.readline() == "ready\n"
    client = here.popen(words(build_dir, "send", ports[1], there.address))
    for process in (client, server):
        status, _, err = ended(process)
        assert status == 1
        assert "the port has no link" in err
