# SPDX-License-Identifier: Apache-2.0
"""HARP's TCP between two processes over memif, in both address families."""

import sys
from pathlib import Path

import pytest
from dpdk_tools import LOCAL_HOST, DpdkTools, finish, memif

BYTES = 16 << 20
HEADERS = {"10.9.0.1": 52, "fd00:9::1": 72}  # IP, TCP, timestamps


@pytest.mark.parametrize("test", ["send", "recv"])
@pytest.mark.parametrize("address", list(HEADERS))
@pytest.mark.sample(
    "1500-10.9.0.1-send", "1500-fd00:9::1-recv", "9000-10.9.0.1-recv", "9000-fd00:9::1-send"
)
@pytest.mark.parametrize("mtu", [1500, 9000])
def test_bytes_arrive(tools: DpdkTools, tmp_path: Path, mtu: int, address: str, test: str) -> None:
    server = tools.serve_port(address, memif("server", tmp_path, 1, mtu))
    client = tools.run_client(
        test, address, memif("client", tmp_path, 2, mtu), "--bytes", str(BYTES)
    )
    (server_conn,), _ = finish(server)
    assert client["bytes"] == BYTES
    for conn in (client["conn"], server_conn):
        assert conn["path"].startswith("DPDK 2")
        assert f"net_memif on net_memif0 queue 0, MTU {mtu}" in conn["path"]
        assert conn["snd_mss_bytes"] == mtu - HEADERS[address]
        assert conn["stats"]["drop_tcp_checksum"] == 0
        assert conn["nic"]["copied_bytes"] == 0
        assert conn["nic"]["driver_copied_bytes"] > BYTES


PYTHON = """
import sys
from harp import Instance
with Instance(sys.argv[1]) as instance:
    assert instance.fileno() == -1
    print(instance.describe, flush=True)
    if sys.argv[2] == "serve":
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


def test_the_python_bindings_transfer_bytes(tools: DpdkTools, tmp_path: Path) -> None:
    """Calls of harp.Instance can block although the NIC has no descriptor to wait on."""
    specs = [f"dpdk:{memif(role, tmp_path, n)}" for role, n in (("server", 1), ("client", 2))]
    server = LOCAL_HOST.popen([sys.executable, "-c", PYTHON, specs[0], "serve"])
    tools.started.append(server)
    assert server.stdout is not None
    assert server.stdout.readline().startswith("DPDK 2")
    client = LOCAL_HOST.popen([sys.executable, "-c", PYTHON, specs[1], "call"])
    tools.started.append(client)
    for process in (client, server):
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
