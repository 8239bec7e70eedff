# SPDX-License-Identifier: Apache-2.0
"""Raw AF_XDP frames cross the wire whole at every MTU."""

import json
from typing import Any

from netns_tools import Tools, finish, run

from harp.lab import Host, Lab


def wire(tools: Tools, lab: Lab, test: str) -> Any:
    here, there = lab.hosts
    side = [*tools.lib_dir, "--seconds", "1"]
    server = tools.serve(there, [tools.wire, "serve", there.ifname, there.address, *side])
    client = [tools.wire, test, here.ifname, there.address, *side]
    report = json.loads(run(here, client))
    assert finish(server) == ("", "")
    return report


def descriptors(mtu_bytes: int) -> int:
    """Frames are cut as the stack cuts them: chunks of 2048 or 4096 less 128 of head room."""
    chunk = 2048 if mtu_bytes <= 1500 else 4096
    return -(-(mtu_bytes + 14) // (chunk - 128))


def test_frames_of_full_size_arrive_whole(tools: Tools, lab_of_mtu: Lab) -> None:
    mtu = lab_of_mtu.options.mtu_bytes
    report = wire(tools, lab_of_mtu, "send")
    sent, received = report["sent"], report["received"]
    assert report["mode"] == "af_xdp generic copy"
    assert report["frame_bytes"] == mtu + 14
    assert report["descriptors_per_frame"] == descriptors(mtu)
    assert 0 < received["frames"] <= sent["frames"]
    assert received["bytes"] == received["frames"] * (mtu + 14)
    # What did not arrive was dropped by the receiving socket, and counted there.
    lost = sent["frames"] - received["frames"]
    dropped = received["rx_dropped"] + received["rx_ring_full"] + received["rx_fill_empty"]
    assert lost <= dropped


def test_round_trips_are_measured(tools: Tools, lab_of_mtu: Lab) -> None:
    report = wire(tools, lab_of_mtu, "pingpong")
    assert report["round_trips"] > 50
    # Raw frames: nobody sends one again that a machine busy elsewhere has lost.
    assert report["lost"] <= report["round_trips"] // 20
    assert 0 < report["rtt_ns"]["p50"] <= report["rtt_ns"]["p99"]


def test_a_frame_above_the_mtu_is_refused(tools: Tools, lab: Lab) -> None:
    here, there = lab.hosts
    tools.serve(there, [tools.wire, "serve", there.ifname, there.address, *tools.lib_dir])
    process = here.popen(
        [tools.wire, "send", here.ifname, there.address, *tools.lib_dir, "--size", "1515"]
    )
    _, err = process.communicate(timeout=20)
    assert process.returncode == 1
    assert err == "harp-wire: --size exceeds the interface's MTU\n"


def test_hosts_are_left_as_they_were(tools: Tools, lab: Lab) -> None:
    def settings(host: Host) -> tuple[str, str]:
        return (
            host.run("ethtool", "-k", host.ifname),
            host.run("ip", "-o", "link", "show", "dev", host.ifname).split("qdisc")[0],
        )

    before = [settings(host) for host in lab.hosts]
    wire(tools, lab, "send")
    assert [settings(host) for host in lab.hosts] == before
