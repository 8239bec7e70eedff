# SPDX-License-Identifier: Apache-2.0
"""On a NIC with generic XDP only, HARP_PATH=auto attaches nothing and leaves the kernel's traffic
alone. A forced AF_XDP path attaches a program and logs its cost."""

import contextlib
from collections.abc import Iterator

import pytest
from actor import Actor
from hosts import Hosts
from programs import finished

UNNAMED = {"NCCL_SOCKET_IFNAME": "", "HARP_DAEMON": "off", "HARP_XDP_BYTES_MAX": ""}


def attached(hosts: Hosts) -> bool:
    """Has host 0 an XDP program anywhere?"""
    words = ["ip", "-n", hosts.netns[0], "-d", "link", "show"]
    shown = finished(words, check=True).stdout
    return "prog/xdp" in shown


def untouched(hosts: Hosts) -> dict[str, str]:
    """What HARP could change for the kernel: interfaces, offloads, programs, AF_XDP sockets."""
    shown = {}
    for words in (
        ["ip", "-o", "link", "show"],
        ["ethtool", "-k", hosts.ifname[0]],
        ["tc", "filter", "show", "dev", hosts.ifname[0], "ingress"],
        ["grep", "^XDP", "/proc/net/protocols"],  # how many AF_XDP sockets
    ):
        inside = ["ip", "netns", "exec", hosts.netns[0], *words]
        shown[words[0]] = finished(inside, check=True).stdout
    return shown


@contextlib.contextmanager
def listening(hosts: Hosts, path: str, **env: str) -> Iterator[Actor]:
    with hosts.ranks(path, receiver=UNNAMED | env) as (actor,):
        actor.call("open_interfaces")
        yield actor


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"NCCL_SOCKET_IFNAME": "^lo,docker"},
        {"HARP_XDP_MODE": "generic"},
    ],
    ids=["no list", "all but some", "HARP_XDP_MODE"],
)
def test_auto_attaches_nothing_and_says_why_in_one_line(hosts: Hosts, env: dict[str, str]) -> None:
    before = untouched(hosts)
    with listening(hosts, "auto", **env) as actor:
        assert not attached(hosts)
        assert untouched(hosts) == before
        (said,) = [line for line in actor.call("log") if "path kernel TCP" in line]
        assert said.endswith(
            f"{hosts.ifname[0]}: path kernel TCP: AF_XDP is available in generic copy mode only, "
            "which is slower here; HARP_PATH=xdp forces it"
        )
        assert actor.call("warnings") == []


@pytest.mark.parametrize(
    ("path", "env"),
    [("xdp", {}), ("auto", {"HARP_XDP_BYTES_MAX": "3000"})],
    ids=["HARP_PATH", "HARP_XDP_BYTES_MAX"],
)
def test_a_forced_path_is_attached_and_its_cost_logged(
    hosts: Hosts, path: str, env: dict[str, str]
) -> None:
    before = untouched(hosts)
    with listening(hosts, path, **env) as actor:
        assert attached(hosts)
        assert untouched(hosts) != before
        (said,) = [line for line in actor.call("log") if "generic XDP" in line]
        assert "the kernel copies all packets that it receives on this interface once more" in said
    assert not attached(hosts)
