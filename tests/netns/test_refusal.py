# SPDX-License-Identifier: Apache-2.0
"""If HARP cannot open an interface, one line names the interface, the queue, the cause and the
remedy."""

import ctypes
import errno
import mmap
import os
import socket
import struct

import bpf_calls
import pytest
from netns_tools import Tools, inside, make_queue, xdp_attached

from harp.lab import Host, Lab, LabOptions


def refused(tools: Tools, host: Host, *options: str, before: tuple[str, ...] = ()) -> str:
    """The one line of a server that cannot begin, after the one that says how it attached."""
    args = [*before, tools.tcp, "serve", host.address, "61001", *options]
    process = host.popen(args)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert out == ""
    lines = [line for line in err.splitlines() if "generic XDP (driver veth)" not in line]
    assert len(lines) == 1, err
    return lines[0].removeprefix("harp-tcp: ")


IMPOSSIBLE = {
    "zero-copy": (
        ("--copy", "zero-copy"),
        "driver veth has no zero-copy AF_XDP; use copy mode",
    ),
    "library": (
        ("--lib-dir", "/nonexistent"),
        "libharp-xdp.so: cannot open shared object file",
    ),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_an_impossible_option_is_refused(tools: Tools, shared_lab: Lab, name: str) -> None:
    host = shared_lab.hosts[0]
    options, words = IMPOSSIBLE[name]
    assert words in refused(tools, host, *tools.side(host, "harp"), *options)
    assert not xdp_attached(host)


def test_an_interface_that_is_down_is_refused(tools: Tools, lab: Lab) -> None:
    host = lab.hosts[0]
    host.run("ip", "link", "set", host.ifname, "down")
    line = refused(tools, host, "--ifname", host.ifname, *tools.lib_dir)
    assert line.startswith(f"{host.ifname} queue 0: the interface is down; ")


def test_a_queue_that_becomes_free_is_waited_for(tools: Tools, lab: Lab) -> None:
    """As the kernel holds it for a while after its owner's death: bound, and no program attached.
    On a busy machine that takes longer than a queue with an owner is asked for."""
    host = lab.hosts[0]
    held = make_queue(host)
    args = (tools.tcp, "serve", host.address, "61000", *tools.side(host, "harp"))
    process = host.popen(args)
    tools.started.append(process)
    assert process.stderr is not None
    assert process.stdout is not None
    try:
        assert "generic XDP (driver veth)" in process.stderr.readline()
        line = process.stderr.readline()
        assert f"{host.ifname} queue 0 is busy without a user" in line
    finally:
        for fd in held:
            os.close(fd)
    assert process.stdout.readline() == "ready\n"


@pytest.mark.parametrize("queue", ["0", "1"], ids=["same queue", "another queue"])
def test_a_second_process_needs_harpd(tools: Tools, need_root: None, queue: str) -> None:
    """The first process has its program on the interface."""
    with Lab(LabOptions(queues=2)) as lab:
        host = lab.hosts[0]
        tools.serve_tcp(host, "harp", 61000)
        line = refused(tools, host, "--ifname", host.ifname, *tools.lib_dir, "--queue", queue)
        assert line.startswith(f"{host.ifname}: HARP's XDP program is attached already (program ")
        assert "through harpd" in line
        assert xdp_attached(host)


def test_an_interface_with_another_xdp_program_is_refused(tools: Tools, lab: Lab) -> None:
    host = lab.hosts[0]
    foreign = inside(host, lambda: bpf_calls.put_on(socket.if_nametoindex(host.ifname)))
    line = refused(tools, host, "--ifname", host.ifname, *tools.lib_dir)
    os.close(foreign)
    assert line.startswith(f"{host.ifname}: XDP program ")
    assert "is attached already; detach it" in line


@pytest.mark.parametrize("capability", ["net_raw", "net_admin", "bpf,-sys_admin"])
def test_a_missing_privilege_is_named(tools: Tools, lab: Lab, capability: str) -> None:
    host = lab.hosts[0]
    drop = ("setpriv", f"--bounding-set=-{capability}", f"--inh-caps=-{capability}", "--")
    line = refused(tools, host, "--ifname", host.ifname, *tools.lib_dir, before=drop)
    name = f"CAP_{capability.split(',')[0].upper()}"
    assert line == f"{host.ifname} queue 0: {name} missing; run as root or add it"
    assert not xdp_attached(host)


def test_the_kernel_refuses_large_chunks_and_a_budget_without_a_ring() -> None:
    """So nic/af_xdp_make.c uses multi-buffer for jumbo frames, and sets the budget after the rings.
    The numbers are those of linux/if_xdp.h."""
    sol_xdp, tx_ring, umem_reg, max_tx_skb_budget = 283, 3, 4, 9
    region = mmap.mmap(-1, 1 << 20)
    address = ctypes.addressof(ctypes.c_char.from_buffer(region))
    with socket.socket(44, socket.SOCK_RAW) as xsk:  # AF_XDP

        def refusal(option: int, *value: int, layout: str = "I") -> int | None:
            try:
                xsk.setsockopt(sol_xdp, option, struct.pack(layout, *value))
            except OSError as error:
                return error.errno
            return None

        for chunk, error in ((8192, errno.EINVAL), (4096, None)):
            memory = (address, len(region), chunk, 0, 0, 0)
            assert refusal(umem_reg, *memory, layout="QQ4I") == error
        early = refusal(max_tx_skb_budget, 128)
        assert refusal(tx_ring, 256) is None
        if early != errno.ENOPROTOOPT:  # before Linux 6.17
            assert (early, refusal(max_tx_skb_budget, 128)) == (errno.EACCES, None)
