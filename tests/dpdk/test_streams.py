# SPDX-License-Identifier: Apache-2.0
"""HARP's TCP between two processes over memif: every byte, both families, the link."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from dpdk_tools import HERE, WAIT_S, Ends, finish, memif

BYTES = 16 << 20
HEADERS = {"10.9.0.1": 52, "fd00:9::1": 72}  # IP, TCP, timestamps


@pytest.mark.parametrize("test", ["send", "recv"])
@pytest.mark.parametrize("address", list(HEADERS))
@pytest.mark.sample(
    "1500-10.9.0.1-send", "1500-fd00:9::1-recv", "9000-10.9.0.1-recv", "9000-fd00:9::1-send"
)
@pytest.mark.parametrize("mtu", [1500, 9000])
def test_bytes_arrive(ends: Ends, tmp_path: Path, mtu: int, address: str, test: str) -> None:
    server = ends.serve_port(address, memif("server", tmp_path, 1, mtu))
    near = ends.call(test, address, memif("client", tmp_path, 2, mtu), "--bytes", str(BYTES))
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
def test_every_message_arrives_intact(ends: Ends, tmp_path: Path, flows: int) -> None:
    """With stack-provided buffers HARP copies nothing; every byte is compared."""
    spec = memif("server", tmp_path, 1)
    server = ends.serve_port("10.9.0.1", spec, "--verify", "--count", str(flows), verb="sink")
    report = ends.call(
        *("message", "10.9.0.1", memif("client", tmp_path, 2)),
        *("--frames", "--flows", str(flows), "--count", "100"),
    )
    sources, _ = finish(server)
    assert len(sources) == flows
    assert all(source["verified"] and source["messages"] == 100 for source in sources)
    assert report["host"]["stats"]["tx_copied_bytes"] == 0
    assert sources[-1]["conn"]["stats"]["rx_copied_bytes"] == 0


def expect_line(process: "subprocess.Popen[str]", words: str) -> None:
    """Wait for a line with these words; a process that does not write it is killed."""
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


def test_the_link_follows_the_peer(ends: Ends, tmp_path: Path) -> None:
    """The link is up while the other process has its end open."""
    server = ends.serve_port("10.9.0.1", memif("server", tmp_path, 1), "--count", "2", verb="sink")
    expect_line(server, "net_memif0: the link is still down")
    for word in ("up", "up again"):
        spec = memif("client", tmp_path, 2)
        client = HERE.popen([sys.executable, "-c", PYTHON, f"dpdk:{spec}", "hold"])
        ends.started.append(client)
        expect_line(server, f"net_memif0 is {word}")
        client.send_signal(signal.SIGUSR1)
        _, err = client.communicate(timeout=WAIT_S)
        assert client.returncode == 0, err
        if word == "up":
            expect_line(server, "net_memif0 is down")
    finish(server)


PYTHON = """
import signal, sys
from harp import Instance
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
with Instance(sys.argv[1]) as instance:
    assert instance.fileno() == -1
    print(instance.describe, flush=True)
    if sys.argv[2] == "hold":
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
    """Calls of harp.Instance block, although the NIC has no descriptor to wait on."""
    texts = [f"dpdk:{memif(role, tmp_path, n)}" for role, n in (("server", 1), ("client", 2))]
    server = HERE.popen([sys.executable, "-c", PYTHON, texts[0], "serve"])
    ends.started.append(server)
    assert server.stdout is not None
    assert server.stdout.readline().startswith("DPDK 2")
    client = HERE.popen([sys.executable, "-c", PYTHON, texts[1], "call"])
    ends.started.append(client)
    for process in (client, server):
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
