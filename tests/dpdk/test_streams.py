# SPDX-License-Identifier: Apache-2.0
"""HARP's TCP between two processes over memif: every byte, both families, deaths, refusals."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from dpdk_tools import ENVIRONMENT, WAIT_S, Ends, finish, memif, start

BYTES = 16 << 20
HEADERS = {"10.9.0.1": 52, "fd00:9::1": 72}  # IP, TCP, timestamps


@pytest.mark.parametrize("test", ["send", "recv"])
@pytest.mark.parametrize("address", list(HEADERS))
@pytest.mark.parametrize("mtu", [1500, 9000])
def test_bytes_arrive(ends: Ends, tmp_path: Path, mtu: int, address: str, test: str) -> None:
    server = ends.serve(address, memif("server", tmp_path, 1, mtu))
    near, _ = ends.call(test, address, memif("client", tmp_path, 2, mtu), "--bytes", str(BYTES))
    (far,), _ = finish(server)
    assert near["bytes"] == BYTES
    for conn in (near["conn"], far):
        assert conn["path"].startswith("DPDK 2")
        assert f"net_memif on net_memif0 queue 0, MTU {mtu}" in conn["path"]
        assert conn["snd_mss_bytes"] == mtu - HEADERS[address]
        assert conn["stats"]["drop_tcp_checksum"] == 0
        assert conn["nic"]["copied_bytes"] == 0
        assert conn["nic"]["driver_copied_bytes"] > BYTES


@pytest.mark.parametrize("flows", [1, 16])
def test_messages_verified(ends: Ends, tmp_path: Path, flows: int) -> None:
    """Stack-provided buffers: nothing is copied by HARP, and every byte is looked at."""
    spec = memif("server", tmp_path, 1)
    server = ends.serve("10.9.0.1", spec, "--verify", "--count", str(flows), verb="sink")
    report, _ = ends.call(
        *("message", "10.9.0.1", memif("client", tmp_path, 2)),
        *("--frames", "--flows", str(flows), "--count", "100"),
    )
    sources, _ = finish(server)
    assert len(sources) == flows
    assert all(source["verified"] and source["messages"] == 100 for source in sources)
    assert report["host"]["stats"]["tx_copied_bytes"] == 0
    assert sources[-1]["conn"]["stats"]["rx_copied_bytes"] == 0


def heard(process: "subprocess.Popen[str]", words: str) -> None:
    """Waits until the process says a line with these words. One that never does is ended."""
    assert process.stderr is not None
    end = threading.Timer(WAIT_S, process.kill)
    end.start()
    try:
        for line in process.stderr:
            if words in line:
                return
    finally:
        end.cancel()
    pytest.fail(f"it ended without saying {words!r}")


def test_peer_comes_and_goes(ends: Ends, tmp_path: Path) -> None:
    """The link is down until the other process is there, and again when it has gone."""
    server = ends.serve("10.9.0.1", memif("server", tmp_path, 1), "--count", "2", verb="sink")
    heard(server, "the link of net_memif0 is down so far")
    for word in ("up", "up again"):
        spec = memif("client", tmp_path, 2)
        client = start([sys.executable, "-c", PYTHON, f"dpdk:{spec}", "hold"])
        ends.started.append(client)
        heard(server, f"net_memif0 is {word}")
        client.send_signal(signal.SIGUSR1)
        _, err = client.communicate(timeout=WAIT_S)
        assert client.returncode == 0, err
        if word == "up":
            heard(server, "net_memif0 is down")
    finish(server)


def test_killed_and_opened_again(ends: Ends, tmp_path: Path) -> None:
    """Nothing of a process that is killed under traffic is in the next one's way."""
    texts = [memif("server", tmp_path, 1), memif("client", tmp_path, 2)]
    first = start([sys.executable, "-c", PYTHON, f"dpdk:{texts[0]}", "listen"])
    ends.started.append(first)
    assert first.stdout is not None
    first.stdout.readline()
    client = start(ends.command("send", "10.9.0.1", texts[1], "--bytes", str(1 << 40)))
    ends.started.append(client)
    assert first.stdout.readline() == "bytes come\n"
    first.send_signal(signal.SIGKILL)
    first.communicate()
    again = ends.serve("10.9.0.1", texts[0])
    assert client.wait(60) == 1, "its connection died with the other end"
    report, _ = ends.call("send", "10.9.0.1", texts[1], "--bytes", str(BYTES))
    finish(again)
    assert report["bytes"] == BYTES


PYTHON = """
import signal, sys
from harp import Instance
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
with Instance(sys.argv[1]) as instance:
    assert instance.fileno() == -1
    print(instance.describe, flush=True)
    if sys.argv[2] == "listen":
        with instance.listen(7000) as acceptor, acceptor.accept(timeout=60) as endpoint:
            while endpoint.recv(65536, timeout=20):
                print("bytes come", flush=True)
    elif sys.argv[2] == "hold":
        with instance.connect("10.9.0.1", 7000, timeout=20):
            signal.sigwait({signal.SIGUSR1})
    elif sys.argv[2] == "serve":
        with instance.listen(7000) as acceptor, acceptor.accept(timeout=60) as endpoint:
            data = bytearray()
            while len(data) < 1000000:
                data += endpoint.recv(65536, timeout=20)
            endpoint.send_all(bytes(data[::-1]), timeout=20)
            assert endpoint.recv(1, timeout=20) == b""
    else:
        with instance.connect("10.9.0.1", 7000, timeout=20) as endpoint:
            sent = bytes(range(250)) * 4000
            endpoint.send_all(sent, timeout=20)
            data = bytearray()
            while len(data) < 1000000:
                data += endpoint.recv(65536, timeout=20)
            assert bytes(data) == sent[::-1]
"""


def test_the_python_binding_transfers_bytes(ends: Ends, tmp_path: Path) -> None:
    """harp.Instance drives a port: calls block, and a NIC without a descriptor is no hindrance."""
    texts = [f"dpdk:{memif(role, tmp_path, n)}" for role, n in (("server", 1), ("client", 2))]
    server = start([sys.executable, "-c", PYTHON, texts[0], "serve"])
    ends.started.append(server)
    assert server.stdout is not None
    assert server.stdout.readline().startswith("DPDK 2")
    client = start([sys.executable, "-c", PYTHON, texts[1], "call"])
    ends.started.append(client)
    for process in (client, server):
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("net_memif0;mtu=1", "DPDK port net_memif0: mtu=1: a number in 68..16000 is needed"),
        ("net_memif0;ip=10.0.0.1", "ip=10.0.0.1: ADDRESS/LEN is needed"),
        ("net_nothing0;ip=10.9.0.2/24", "net_nothing0"),
        ("0000:ff:1f.7;ip=10.9.0.2/24", "0000:ff:1f.7"),
        ("net_tap0,iface=lo,remote=nowhere;ip=10.9.0.2/24", "net_tap0"),
        ("net_null0;ip=10.9.0.2/24;queues=64;mtu=1500;route=10.9.0.0/24@10.9.0.9", "net_null0"),
    ],
)
def test_an_invalid_port_is_refused(ends: Ends, spec: str, words: str) -> None:
    said = ends.refused(spec)
    assert words in said
    assert said.startswith("harp-tcp: ")


def test_a_port_in_use_is_refused(ends: Ends, tmp_path: Path) -> None:
    """The server's end of a memif is one process's, which those who are refused don't disturb."""
    spec = memif("server", tmp_path, 1)
    server = ends.serve("10.9.0.1", spec)
    for _ in range(5):
        assert "net_memif0" in ends.refused(spec)
    report, _ = ends.call("send", "10.9.0.1", memif("client", tmp_path, 2), "--bytes", str(BYTES))
    finish(server)
    assert report["bytes"] == BYTES


def test_missing_huge_pages_are_reported(ends: Ends, tmp_path: Path) -> None:
    """Asked for and not there: one line that says how many are wanted."""
    said = ends.refused(
        memif("server", tmp_path, 1),
        {"HARP_DPDK_HUGE_PAGES": "require", "HARP_DPDK_MEMORY_MIB": "1000000"},
    )
    assert "1000000 MiB of huge pages" in said
    assert "nr_hugepages" in said


def test_a_missing_library_is_reported(ends: Ends, tmp_path: Path) -> None:
    command = ends.command("send", "10.9.0.1", memif("server", tmp_path, 1))
    command[command.index(ends.library)] = tmp_path
    process = start(command)
    ends.started.append(process)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "libharp-dpdk.so is not installed" in err
    assert "libdpdk" in err


def test_environment_is_named(ends: Ends, tmp_path: Path) -> None:
    """A wrong HARP_DPDK_* is bad usage, in its own name."""
    for name, value in (("HARP_DPDK_HUGE_PAGES", "some"), ("HARP_DPDK_MEMORY_MIB", "much")):
        process = start(
            ends.command("send", "10.9.0.1", memif("server", tmp_path, 1)),
            ENVIRONMENT | {name: value},
        )
        ends.started.append(process)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 2
        assert f"{name} {value}: " in err
