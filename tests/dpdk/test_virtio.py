# SPDX-License-Identifier: Apache-2.0
"""HARP's TCP on DPDK's virtio driver: net_virtio_user, with its back end net_vhost in another
process.

This is the driver of a virtual machine's card. It uses its offloads: checksums that are never
written, and GSO packets, which arrive whole because no device segments them on the way.
"""

from pathlib import Path
from typing import Any

import pytest
from dpdk_tools import Ends, finish
from test_streams import HEADERS

BYTES = 16 << 20


def vhost(folder: Path, mtu: int, cuts: bool) -> str:
    """The back end, which is the server of the socket."""
    device = f"net_vhost0,iface={folder}/vhost.sock,tso={int(cuts)}"
    return f"{device};ip=10.9.0.1/24;ip=fd00:9::1/64;mtu={mtu};name=vhost"


def virtio(folder: Path, mtu: int, more: str = "") -> str:
    """The card."""
    device = f"net_virtio_user0,path={folder}/vhost.sock,queue_size=1024{more}"
    return f"{device};ip=10.9.0.2/24;ip=fd00:9::2/64;mtu={mtu};name=virtio"


def checked(report: Any, mtu: int, address: str) -> None:
    """Full segments, and no checksum error."""
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
@pytest.mark.parametrize("cuts", [False, True], ids=["", "tso"])
@pytest.mark.parametrize("mtu", [1500, 9000])
def test_bytes_arrive(
    ends: Ends, tmp_path: Path, mtu: int, cuts: bool, address: str, test: str
) -> None:
    server = ends.serve_port(address, vhost(tmp_path, mtu, cuts))
    near = ends.call(test, address, virtio(tmp_path, mtu), "--bytes", str(BYTES))
    (far,), _ = finish(server)
    assert near["bytes"] == BYTES
    assert f"net_virtio_user on virtio queue 0, MTU {mtu}" in near["conn"]["path"]
    assert f"net_vhost on vhost queue 0, MTU {mtu}" in far["path"]
    for report in (near["conn"], far):
        checked(report, mtu, address)
    # Only virtio's back end accepts GSO packets.
    sender, receiver = (near["conn"], far) if test == "send" else (far, near["conn"])
    segments = BYTES // sender["snd_mss_bytes"]
    gso = cuts and test == "send"
    assert (sender["stats"]["tx_packets"] < segments // 2) == gso
    assert (receiver["stats"]["rx_packets"] < segments // 2) == gso


def test_a_port_has_no_more_queues_than_its_device(ends: Ends, tmp_path: Path) -> None:
    """If the back end has another number of queues, both use the smaller number."""
    server = ends.serve_port("10.9.0.1", vhost(tmp_path, 1500, True).replace(";", ",queues=2;", 1))
    said = ends.refused(virtio(tmp_path, 1500) + ";queues=2")
    assert "2 queues; the device has 1" in said
    near = ends.call("send", "10.9.0.1", virtio(tmp_path, 1500), "--bytes", str(BYTES))
    assert near["bytes"] == BYTES
    finish(server)


@pytest.mark.sample("lost-indirect", "kept-", "-indirect")
@pytest.mark.parametrize("order", ["", ",in_order=0"], ids=["", "indirect"])
@pytest.mark.parametrize("few", ["", "lost", "kept"])
def test_every_message_arrives_intact(ends: Ends, tmp_path: Path, few: str, order: str) -> None:
    """The application's frames in GSO packets: nothing is copied on the way into the card.

    lost: a back end without free frames drops GSO packets. They are sent again while virtio's ring
    still holds them, and net_vhost's log lines are limited. kept: a card with few frames can send
    while its ring keeps some. indirect: the mode of virtual machines' cards.
    """
    flows = 4
    back_end = vhost(tmp_path, 1500, True) + (";frames=256" if few == "lost" else "")
    card = virtio(tmp_path, 1500, order) + (";frames=256" if few == "kept" else "")
    # It depends on the scheduler when more GSO packets wait than the back end has frames for.
    for count in (100, 1000, 10000) if few == "lost" else (100,):
        server = ends.serve_port(
            "10.9.0.1", back_end, "--count", str(flows), "--verify", verb="sink"
        )
        run = ("--frames", "--flows", str(flows), "--count", str(count))
        report = ends.call("message", "10.9.0.1", card, *run)
        sources, said = finish(server)
        assert all(each["verified"] and each["messages"] == count for each in sources)
        stats = report["host"]["stats"]
        if stats["tcp_retransmits"] > 0:
            break
    assert stats["tcp_retransmits"] > 0 or few != "lost"
    assert stats["tx_copied_bytes"] == 0 or stats["tcp_retransmits"] > 0
    assert said.count("failed to allocate memory") <= 10
