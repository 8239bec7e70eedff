# SPDX-License-Identifier: Apache-2.0
"""A job without privileges, in another network namespace than the NIC, has a lease of harpd's."""

import json
import os
import socket
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from little_harpd import LittleHarpd
from netns_tools import Tools, finish, wait_until

from harp.lab import Lab

# User nobody, no capability, little locked memory, a network namespace of its own.
NOBODY = (
    *("unshare", "--net", "--", "prlimit", "--memlock=65536:65536", "--"),
    *("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"),
    *("--bounding-set=-all", "--no-new-privs", "--"),
)


@pytest.fixture
def harpd(tools: Tools, each: Lab) -> Iterator[LittleHarpd]:
    """A harpd for the first host, on a socket that everybody may use."""
    with tempfile.TemporaryDirectory(prefix=f"harp-lease-{os.getpid()}-") as folder:
        Path(folder).chmod(0o755)
        with LittleHarpd(tools.build, each.hosts[0], Path(folder) / "harpd.sock") as daemon:
            yield daemon


def start(*args: str | Path) -> subprocess.Popen[str]:
    """A job. Not in the laboratory: its network namespace is nobody's."""
    words = [*NOBODY, *map(str, args)]
    return subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/"
    )


def job(tools: Tools, daemon: LittleHarpd, *args: str) -> tuple[str, str, int]:
    """A job to its end."""
    stack = ("--ifname", daemon.host.ifname, "--daemon", str(daemon.path))
    process = start(tools.tcp, *args, *stack, "-o", "json")
    try:
        out, err = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return out, err, process.returncode


def test_user_nobody_sends_and_receives(tools: Tools, each: Lab, harpd: LittleHarpd) -> None:
    peer = each.hosts[1]
    server = tools.serve_tcp(peer, "kernel", 7000, "--count", "2")
    for test in ("send", "recv"):
        out, err, status = job(tools, harpd, test, peer.address, "7000", "--bytes", "4000000")
        assert status == 0, err
        report = json.loads(out)["conn"]
        assert "leased from little" in report["path"]
        assert report["steering"] == {}
        assert report["stats"]["drop_tcp_checksum"] == 0
        assert err == ""
    assert finish(server)[1] == ""
    # The lease was given back each time.
    assert harpd.asked == [3, 6] * 2
    assert harpd.labels == ["harp-tcp"] * 2


def test_a_fork_or_a_kill_frees_the_queue_of_user_nobody(
    tools: Tools, each: Lab, harpd: LittleHarpd
) -> None:
    here, peer = each.hosts
    args = (tools.tcp, "serve", here.address, "61007", "--ifname", here.ifname)
    for _ in range(2):
        server = start(*args, "--daemon", harpd.path, "-o", "json")
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n", server.communicate()[1]
        report = tools.call_tcp(peer, "kernel", "echo", here.address, 61007, "--count", "200")
        assert report["rtt_ns"]["min"] > 0
        server.kill()
        server.communicate()
    # The second one had the queue: the first one's death had freed it.
    assert harpd.asked == [3, 3]


def test_ports_of_others_are_refused(tools: Tools, each: Lab, harpd: LittleHarpd) -> None:
    here = each.hosts[0]
    out, err, status = job(tools, harpd, "serve", here.address, "61256")
    assert status == 1
    assert out == ""
    assert "Address already in use" in err


def test_a_refusal_of_harpd_is_printed_unchanged(
    tools: Tools, each: Lab, harpd: LittleHarpd
) -> None:
    harpd.refuse = (122, "user nobody has 64 of 64 leases\x1b[31m; wait for one to end")
    _, err, status = job(tools, harpd, "send", each.hosts[1].address, "7000")
    assert status == 1
    line = f"{harpd.host.ifname} queue 0: harpd refuses: user nobody has 64 of 64 leases?[31m; "
    assert err == f"harp-tcp: {line}wait for one to end\n"


def test_a_missing_harpd_is_reported(tools: Tools, each: Lab, tmp_path: Path) -> None:
    host = each.hosts[0]
    args = ("send", "10.0.0.1", "7", "--ifname", host.ifname, "--daemon", "/nonexistent/sock")
    process = start(tools.tcp, *args)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (1, "")
    assert err == (
        "harp-tcp: /nonexistent/sock: no such socket; is harpd running (`harpctl start`)?\n"
    )


# --------------------------------------------------------------------------------------------------
# What harpd hands over is looked at.
#
def set_u32(at: int, value: int) -> Callable[[bytearray, list[int]], None]:
    """Another number in LEASED."""

    def change(message: bytearray, _: list[int]) -> None:
        struct.pack_into("=I", message, at, value)

    return change


def replace(which: int, make: Callable[[], int]) -> Callable[[bytearray, list[int]], None]:
    """Another descriptor."""

    def change(_: bytearray, fds: list[int]) -> None:
        os.close(fds[which])
        fds[which] = make()

    return change


def memfd(size: int) -> Callable[[], int]:
    def make() -> int:
        fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.truncate(fd, size)
        return fd

    return make


def one_more(_: bytearray, fds: list[int]) -> None:
    fds.append(os.dup(fds[0]))


def one_less(_: bytearray, fds: list[int]) -> None:
    os.close(fds.pop())


def swap(message: bytearray, fds: list[int]) -> None:
    fds[0], fds[1] = fds[1], fds[0]


def udp() -> int:
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM).detach()


XSK, FRAMES, PAGE = range(3)
LIES: dict[str, tuple[Any, str]] = {
    "a descriptor more": (one_more, "harpd's message has 4 descriptors, not 3"),
    "a descriptor less": (one_less, "harpd's message has 2 descriptors, not 3"),
    "XSK and memory swapped": (swap, "its socket is no AF_XDP socket"),
    "memory unsealed": (replace(FRAMES, memfd(1 << 30)), "its memory is not sealed"),
    "page no memfd": (replace(PAGE, udp), "statistics page is no sealed memfd"),
    "page unsealed": (replace(PAGE, memfd(1 << 20)), "statistics page is no sealed memfd"),
    "page of no bytes": (set_u32(96, 0), "statistics page has"),
    "page of too many bytes": (set_u32(96, 0xFFFFFFFF), "statistics page has"),
    "another MAC": (set_u32(92, 0x01020304), "harpd's interface has two MAC addresses"),
    "frames of 1000": (set_u32(60, 1000), "frames of 1000 bytes"),
    "too many frames": (set_u32(64, 1 << 20), "its memory has"),
    "rings of half": (set_u32(68, 1024), "its rings are larger than 1024"),
    "queue 7 of 1": (set_u32(52, 7), "harpd leases queue 7 instead"),
    "ports from 0": (set_u32(86, 0), "harpd leases the ports 0 to 0"),
    "RSS unheard of": (set_u32(104, 9), "RSS of kind 9"),
}


@pytest.mark.parametrize("lie", LIES)
def test_an_invalid_lease_is_refused_and_given_back(
    tools: Tools, shared_lab: Lab, lie: str
) -> None:
    change, words = LIES[lie]
    with tempfile.TemporaryDirectory(prefix=f"harp-lease-{os.getpid()}-") as folder:
        Path(folder).chmod(0o755)
        here, there = shared_lab.hosts
        with LittleHarpd(tools.build, here, Path(folder) / "harpd.sock") as daemon:
            daemon.spoil = change
            out, err, status = job(tools, daemon, "send", there.address, "7000")
            assert (status, out) == (1, "")
            assert len(err.splitlines()) == 1, err
            assert words in err
            # What was leased and looked wrong is given back.
            wait_until(lambda: daemon.asked == [3, 6], f"a lease and its end, not {daemon.asked}")
