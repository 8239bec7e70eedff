# SPDX-License-Identifier: Apache-2.0
"""The kernel's own traffic is spared: HARP's generic program runs on a device beside the interface,
and where there can be none it is attached only to an interface that somebody named."""

from __future__ import annotations

import subprocess

import pytest
from actor import Actor, actors
from hosts import Hosts

# Without it there is no network namespace to be made.
NO_BESIDE = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", "--"]
UNNAMED = {"NCCL_SOCKET_IFNAME": "", "HARP_DAEMON": "off"}


def attached(hosts: Hosts) -> bool:
    """A program of HARP's, on the interface or beside it."""
    words = ["ip", "-n", hosts.netns[0], "-d", "link", "show"]
    shown = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return "prog/xdp" in shown


def listening(hosts: Hosts, path: str, beside: bool = True, **env: str) -> Actor:
    actor = Actor(hosts.netns[0], hosts.env(path, **UNNAMED | env), None if beside else NO_BESIDE)
    try:
        actor.call("load", path=str(hosts.plugin))
        actor.call("open_interfaces")
    except BaseException:
        actor.close()
        raise
    return actor


@pytest.mark.parametrize("names", ["", "^lo,docker"], ids=["no list", "all but some"])
def test_unnamed_has_it_beside(hosts: Hosts, names: str) -> None:
    with actors(listening(hosts, "auto", NCCL_SOCKET_IFNAME=names)) as (actor,):
        assert attached(hosts)
        said = "\n".join(actor.call("log"))
        assert "generic XDP, on a device beside it (harp" in said
        assert "once more" not in said
        assert actor.call("warnings") == []
    assert not attached(hosts)


@pytest.mark.parametrize("names", ["", "^lo,docker"], ids=["no list", "all but some"])
def test_unnamed_is_spared_in_one_line(hosts: Hosts, names: str) -> None:
    with actors(listening(hosts, "auto", False, NCCL_SOCKET_IFNAME=names)) as (actor,):
        assert not attached(hosts)
        (said,) = [line for line in actor.call("log") if "no XDP program attached" in line]
        ifname = hosts.ifname[0]
        assert f"{ifname}: path kernel TCP: {ifname}: no XDP program attached" in said
        assert "generic XDP (driver veth)" in said
        assert said.endswith(
            f"name {ifname} in HARP_IFNAME or NCCL_SOCKET_IFNAME, or as a [[nic]] of harpd's, to"
            " use it all the same"
        )
        assert actor.call("warnings") == []


@pytest.mark.parametrize(
    ("path", "env"),
    [
        ("auto", {"HARP_IFNAME": "eth"}),
        ("auto", {"NCCL_SOCKET_IFNAME": "=eth0"}),
        ("auto", {"HARP_XDP_MODE": "generic"}),
        ("xdp", {}),
    ],
    ids=["HARP_IFNAME", "NCCL_SOCKET_IFNAME", "HARP_XDP_MODE", "HARP_PATH"],
)
def test_named_or_forced_is_attached_and_says_what_it_costs(
    hosts: Hosts, path: str, env: dict[str, str]
) -> None:
    with actors(listening(hosts, path, False, **env)) as (actor,):
        assert attached(hosts)
        said = "\n".join(actor.call("log"))
        assert "generic XDP" in said
        if "HARP_XDP_MODE" not in env:
            assert "what the kernel receives for itself is copied once more" in said
    assert not attached(hosts)
