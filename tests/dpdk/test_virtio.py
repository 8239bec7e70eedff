# SPDX-License-Identifier: Apache-2.0
"""HARP's TCP on DPDK's virtio driver, the driver of virtual machines' NICs.

One process uses net_virtio_user, another its back end net_vhost. The offloads are on: packets have
no checksums, and GSO packets arrive whole, because no device on the path segments them.
"""

from pathlib import Path
from typing import Any

import pytest
from dpdk_tools import DpdkTools, finish
from test_streams import HEADERS

BYTES = 16 << 20


def vhost(folder: Path, mtu: int, tso: bool) -> str:
    """The port of the back end, which is the server of the socket."""
    device = f"net_vhost0,iface={folder}/vhost.sock,tso={int(tso)}"
    return f"{device};ip=10.9.0.1/24;ip=fd00:9::1/64;mtu={mtu};name=vhost"


def virtio(folder: Path, mtu: int, more: str = "") -> str:
    """The port of the virtual NIC."""
    device = f"net_virtio_user0,path={folder}/vhost.sock,queue_size=1024{more}"
    return f"{device};ip=10.9.0.2/24;ip=fd00:9::2/64;mtu={mtu};name=virtio"


def check_report(report: Any, mtu: int, address: str) -> None:
    """Segments are full, and no checksum is wrong."""
    assert report["snd_mss_bytes"] == mtu - HEADERS[address]
    assert report["stats"]["drop_tcp_checksum"] == 0
    assert report["stats"]["csum_partial_accepted"] == 0


@pytest.mark.sample(
    "9000--10.9.0.1-send",
    "1500--fd00:9::1-recv",
    "9000-tso-fd00:9::1-send",
    "1500-tso-10.9.0.1-recv",
)
@pytest.mark.parametrize("test", ["send", "recv"])
@pytest.mark.parametrize("address", list(HEADERS))
@pytest.mark.parametrize("tso", [False, True], ids=["", "tso"])
@pytest.mark.parametrize("mtu", [1500, 9000])
def test_bytes_arrive(
    tools: DpdkTools, tmp_path: Path, mtu: int, tso: bool, address: str, test: str
) -> None:
    server = tools.serve_port(address, vhost(tmp_path, mtu, tso))
    client = tools.run_client(test, address, virtio(tmp_path, mtu), "--bytes", str(BYTES))
    (server_conn,), _ = finish(server)
    client_conn = client["conn"]
    assert client["bytes"] == BYTES
    assert f"net_virtio_user on virtio queue 0, MTU {mtu}" in client_conn["path"]
    assert f"net_vhost on vhost queue 0, MTU {mtu}" in server_conn["path"]
    for report in (client_conn, server_conn):
        check_report(report, mtu, address)
    # Only the back end accepts GSO packets.
    ends = (client_conn, server_conn)
    sender, receiver = ends if test == "send" else ends[::-1]
    segments = BYTES // sender["snd_mss_bytes"]
    gso = tso and test == "send"
    assert (sender["stats"]["tx_packets"] < segments // 2) == gso
    assert (receiver["stats"]["rx_packets"] < segments // 2) == gso


def test_a_port_has_no_more_queues_than_its_device(tools: DpdkTools, tmp_path: Path) -> None:
    """If the back end has another number of queues, both sides use the smaller number."""
    server = tools.serve_port("10.9.0.1", vhost(tmp_path, 1500, True).replace(";", ",queues=2;", 1))
    error = tools.open_error(virtio(tmp_path, 1500) + ";queues=2")
    assert "2 queues; the device has 1" in error
    report = tools.run_client("send", "10.9.0.1", virtio(tmp_path, 1500), "--bytes", str(BYTES))
    assert report["bytes"] == BYTES
    finish(server)


@pytest.mark.sample("lost-indirect", "kept-", "-indirect")
@pytest.mark.parametrize("order", ["", ",in_order=0"], ids=["", "indirect"])
@pytest.mark.parametrize("few", ["", "lost", "kept"])
def test_every_message_arrives_intact(
    tools: DpdkTools, tmp_path: Path, few: str, order: str
) -> None:
    """GSO packets carry the application's memory, which is not copied on the way to the NIC.

    lost: the back end has few frames and drops GSO packets. HARP retransmits them while virtio's
    ring still holds them, and net_vhost's log lines are limited. kept: the NIC has few frames and
    sends while its ring holds some. indirect: the ring mode of virtual machines' NICs.
    """
    flows = 4
    back_end = vhost(tmp_path, 1500, True) + (";frames=256" if few == "lost" else "")
    nic = virtio(tmp_path, 1500, order) + (";frames=256" if few == "kept" else "")
    # The scheduler decides when the back end runs out of frames: increase the count until it does.
    for count in (100, 1000, 10000) if few == "lost" else (100,):
        server = tools.serve_port(
            "10.9.0.1", back_end, "--count", str(flows), "--verify", verb="sink"
        )
        args = ("--frames", "--flows", str(flows), "--count", str(count))
        report = tools.run_client("message", "10.9.0.1", nic, *args)
        flow_reports, err = finish(server)
        assert all(flow["verified"] and flow["messages"] == count for flow in flow_reports)
        stats = report["host"]["stats"]
        if stats["tcp_retransmits"] > 0:
            break
    assert stats["tcp_retransmits"] > 0 or few != "lost"
    assert stats["tx_copied_bytes"] == 0 or stats["tcp_retransmits"] > 0
    assert err.count("failed to allocate memory") <= 10
