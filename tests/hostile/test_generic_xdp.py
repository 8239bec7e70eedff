# SPDX-License-Identifier: Apache-2.0
"""On a NIC with generic XDP only, HARP_PATH=auto attaches nothing and leaves the kernel's traffic
alone. A forced AF_XDP path attaches a program and logs its cost."""

import contextlib
from collections.abc import Iterator

import pytest
from actor import Actor
from hosts import Hosts
from programs import finished

DEFAULTS = {"NCCL_SOCKET_IFNAME": "", "HARP_DAEMON": "off", "HARP_XDP_BYTES_MAX": ""}


def has_xdp_program(hosts: Hosts) -> bool:
    """True if an interface of host 0 has an XDP program."""
    command = ["ip", "-n", hosts.netns[0], "-d", "link", "show"]
    output = finished(command, check=True).stdout
    return "prog/xdp" in output


def kernel_state(hosts: Hosts) -> dict[str, str]:
    """Everything that HARP could change: interfaces, offloads, programs, AF_XDP sockets."""
    output = {}
    for command in (
        ["ip", "-o", "link", "show"],
        ["ethtool", "-k", hosts.ifname[0]],
        ["tc", "filter", "show", "dev", hosts.ifname[0], "ingress"],
        ["grep", "^XDP", "/proc/net/protocols"],  # the number of AF_XDP sockets
    ):
        inside = ["ip", "netns", "exec", hosts.netns[0], *command]
        output[command[0]] = finished(inside, check=True).stdout
    return output


@contextlib.contextmanager
def listening(hosts: Hosts, path: str, **env: str) -> Iterator[Actor]:
    with hosts.ranks(path, receiver=DEFAULTS | env) as (actor,):
        actor.call("open_interfaces")
        yield actor


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"NCCL_SOCKET_IFNAME": "^lo,docker"},
        {"HARP_XDP_MODE": "generic"},
    ],
    ids=["no list", "exclusion list", "HARP_XDP_MODE"],
)
def test_auto_attaches_nothing_and_logs_the_reason(hosts: Hosts, env: dict[str, str]) -> None:
    before = kernel_state(hosts)
    with listening(hosts, "auto", **env) as actor:
        assert not has_xdp_program(hosts)
        assert kernel_state(hosts) == before
        (line,) = [line for line in actor.call("log") if "path kernel TCP" in line]
        assert line.endswith(
            f"{hosts.ifname[0]}: path kernel TCP: AF_XDP is available in generic copy mode only, "
            "which is slower here; HARP_PATH=xdp forces it"
        )
        assert actor.call("warnings") == []


@pytest.mark.parametrize(
    ("path", "env"),
    [("xdp", {}), ("auto", {"HARP_XDP_BYTES_MAX": "3000"})],
    ids=["HARP_PATH", "HARP_XDP_BYTES_MAX"],
)
def test_a_forced_path_attaches_a_program_and_logs_its_cost(
    hosts: Hosts, path: str, env: dict[str, str]
) -> None:
    before = kernel_state(hosts)
    with listening(hosts, path, **env) as actor:
        assert has_xdp_program(hosts)
        assert kernel_state(hosts) != before
        (line,) = [line for line in actor.call("log") if "generic XDP" in line]
        assert "the kernel copies all packets that it receives on this interface once more" in line
    assert not has_xdp_program(hosts)
