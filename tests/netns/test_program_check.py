# SPDX-License-Identifier: Apache-2.0
"""The XDP program is force-detached or replaced, or its interface moves: one warning."""

import errno
import os
import socket
from pathlib import Path

import bpf_calls
import pytest
from netns_tools import (
    GENERIC,
    NATIVE,
    Tools,
    adopt,
    attach,
    finish,
    inside,
    wait_until,
    xdp_attached,
)

from harp import _host
from harp.lab import Host, Lab


def ifindex_of(host: Host) -> int:
    return int(inside(host, lambda: socket.if_nametoindex(host.ifname)))


def detach_by_force(host: Host, pid: int) -> None:
    ifindex = ifindex_of(host)
    (link,) = [link for link in bpf_calls.links_of(pid) if link.ifindex == ifindex]
    bpf_calls.detach(link)


@pytest.mark.parametrize("mode", [GENERIC, NATIVE], ids=["generic", "native"])
def test_a_force_detached_program_is_attached_again(lab: Lab, mode: int) -> None:
    host = lab.hosts[0]
    steering = attach(host, mode)
    fds = steering.fds()
    assert inside(host, steering.check) == ""
    detach_by_force(host, os.getpid())
    assert not xdp_attached(host)
    assert inside(host, steering.check) == (
        f"{host.ifname}: the XDP program was detached by force; it is attached again"
    )
    assert xdp_attached(host)
    assert inside(host, steering.check) == ""
    assert steering.fds() == fds, "a forked child closes these descriptors by number"
    steering.close()
    assert not xdp_attached(host)


def test_a_pinned_link_is_pinned_again(lab: Lab, bpffs: Path) -> None:
    host, pins = lab.hosts[0], bpffs / "nic"
    steering = attach(host)
    steering.pin(str(pins))
    detach_by_force(host, os.getpid())
    assert "it is attached again" in inside(host, steering.check)
    steering.close()
    assert xdp_attached(host)
    adopt(host, pins).close()
    _host.unpin(str(pins))
    wait_until(lambda: not xdp_attached(host), "the program is detached when its pins are removed")


def test_another_attached_program_is_an_error_until_it_is_gone(lab: Lab) -> None:
    host = lab.hosts[0]
    steering = attach(host)
    detach_by_force(host, os.getpid())
    foreign = inside(host, lambda: bpf_calls.attach_pass_program(ifindex_of(host)))
    with pytest.raises(OSError, match="another XDP program is attached") as caught:
        inside(host, steering.check)
    assert caught.value.errno == errno.EBUSY
    os.close(foreign)
    assert "it is attached again" in inside(host, steering.check)
    steering.close()


def test_no_program_stays_on_an_interface_that_moves_to_another_namespace(lab: Lab) -> None:
    here, there = lab.hosts
    here.run("ip", "link", "add", "away0", "type", "veth", "peer", "name", "away1")
    steering = attach(Host(here.netns, 0, "", "away0"))
    here.run("ip", "link", "set", "away0", "netns", there.netns)
    with pytest.raises(OSError, match="away0") as caught:
        inside(here, steering.check)
    assert caught.value.errno == errno.ENODEV
    assert "xdp" not in there.run("ip", "link", "show", "dev", "away0")
    steering.close()


def test_a_process_warns_once_and_continues_to_serve(tools: Tools, lab: Lab) -> None:
    here, there = lab.hosts
    server = tools.serve_tcp(there, "harp", 61000)
    detach_by_force(there, server.pid)
    wait_until(lambda: xdp_attached(there), "the program is attached again")
    report = tools.call_tcp(here, "harp", "send", there.address, 61000, "--bytes", "100000")
    assert report["bytes"] == 100000
    _, err = finish(server)
    assert err.count("was detached by force; it is attached again") == 1
