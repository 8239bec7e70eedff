# SPDX-License-Identifier: Apache-2.0
"""HARP's TCP interoperates with the kernel's: both directions, MTUs, offloads, both families, small
buffers, half close, a thousand connections.

The receiver compares every byte of the stream. test_interop_matrix.py varies TCP options and loss.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from netns_tools import Tools, finish, packets_add_up, run

from harp.lab import Host, Lab, LabOptions

BYTES = 8 << 20
PORT = {"harp": 61000, "kernel": 7000}
both_ways = pytest.mark.parametrize(
    ("client", "server"), [("harp", "kernel"), ("kernel", "harp")], ids="-".join
)

NETWORKS = [
    LabOptions(mtu_bytes=mtu, offload=offload, ipv6=ipv6)
    for mtu, offload, ipv6 in (
        (1500, True, False),
        (3498, False, False),
        (9000, True, False),
        (1280, True, True),
        (1500, False, True),
        (9000, False, True),
    )
]


@pytest.fixture(scope="module", params=NETWORKS, ids=lambda options: options.words)
def wired_lab(request: pytest.FixtureRequest, need_root: None) -> Iterator[Lab]:
    with Lab(request.param) as lab:
        yield lab


def segment_bytes(options: LabOptions) -> int:
    """Return the payload of a full-sized segment with timestamps."""
    return options.mtu_bytes - (40 if options.ipv6 else 20) - 20 - 12


def transfer(
    tools: Tools, lab: Lab, client: str, server: str, test: str, *more: str, **extra: list[str]
) -> tuple[Any, Any]:
    """Run one connection. Return the reports of client and server. extra: options by stack."""
    here, there = lab.hosts
    near, far = extra.get(client, []), extra.get(server, [])
    process = tools.serve_tcp(there, server, PORT[server], *far)
    report = tools.call_tcp(here, client, test, there.address, PORT[server], *near, *more)
    out, err = finish(process)
    assert "connection" not in err
    if "--bytes" in more:
        assert report["bytes"] == int(more[more.index("--bytes") + 1])
    return report["conn"], json.loads(out.splitlines()[-1])


@both_ways
@pytest.mark.parametrize("test", ["send", "recv"])
def test_bytes_arrive(tools: Tools, wired_lab: Lab, client: str, server: str, test: str) -> None:
    options = wired_lab.options
    ends = transfer(tools, wired_lab, client, server, test, "--bytes", str(BYTES))
    harp = ends[client != "harp"]
    stats = harp["stats"]
    assert harp["snd_mss_bytes"] == segment_bytes(options), "timestamps are in use"
    assert stats["drop_tcp_checksum"] == 0
    assert stats["drop_gso_oversize"] == 0
    assert stats["drop_tcp_echo"] == 0, "the kernel only echoes timestamps that HARP sent"
    # With checksum offload, packets on veth carry unfinished checksums, which have a counter.
    if options.offload:
        assert stats["csum_partial_accepted"] > 0
    else:  # one in 65536 checksums looks unfinished by chance
        assert stats["csum_partial_accepted"] <= 3
    assert packets_add_up(harp)
    assert harp["steering"]["absent"] == 0


@both_ways
@pytest.mark.parametrize("test", ["send", "recv"])
@pytest.mark.parametrize("rcvbuf", [1, 5000])  # the kernel's minimum, and three segments
def test_bytes_arrive_through_a_tiny_receive_buffer(
    tools: Tools, shared_lab: Lab, client: str, server: str, test: str, rcvbuf: int
) -> None:
    """The kernel closes its window and reopens it when the application has read."""
    arguments = ("--bytes", "400000", "--timeout", "60")
    tiny = ["--rcvbuf", str(rcvbuf)]
    ends = transfer(tools, shared_lab, client, server, test, *arguments, kernel=tiny)
    assert ends[client != "harp"]["stats"]["drop_tcp_window"] == 0


@both_ways
def test_a_client_that_sent_fin_still_receives(
    tools: Tools, shared_family_lab: Lab, client: str, server: str
) -> None:
    arguments = ("--half-close", "--bytes", "4000000")
    ends = transfer(tools, shared_family_lab, client, server, "recv", *arguments)
    assert ends[client != "harp"]["stats"]["tcp_estab_resets"] == 0


@both_ways
def test_a_thousand_connections_in_a_row(
    tools: Tools, shared_family_lab: Lab, client: str, server: str
) -> None:
    here, there = shared_family_lab.hosts
    port, count = str(PORT[server]), "1000"
    serve = [tools.tcp, "serve", there.address, port, *tools.options(there, server)]
    process = tools.serve(there, [*serve, "--count", count])
    send = [tools.tcp, "send", there.address, port, *tools.options(here, client)]
    # Check the client first: the server would wait forever for a client that failed.
    out = run(here, [*send, "--repeat", count, "--bytes", "100"], 120)
    assert len(out.splitlines()) == int(count)
    _, err = finish(process)
    assert "connection" not in err
    kernel = here if client == "kernel" else there
    assert tcp_counter(kernel, "EstabResets") == tcp_counter(kernel, "AttemptFails") == 0


def tcp_counter(host: Host, name: str) -> int:
    lines = host.run("cat", "/proc/net/snmp").splitlines()
    names, values = (line.split() for line in lines if line.startswith("Tcp:"))
    return int(values[names.index(name)])
