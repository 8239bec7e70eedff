# SPDX-License-Identifier: Apache-2.0
"""An interface that HARP cannot open is one error line: interface, queue, cause and remedy."""

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


def refusal(tools: Tools, host: Host, *options: str, prefix: tuple[str, ...] = ()) -> str:
    """Return the only error line of a server that cannot start; ignore the XDP mode line."""
    args = [*prefix, tools.tcp, "serve", host.address, "61001", *options]
    process = host.popen(args)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert out == ""
    lines = [line for line in err.splitlines() if "generic XDP (driver veth)" not in line]
    assert len(lines) == 1, err
    return lines[0].removeprefix("harp-tcp: ")


IMPOSSIBLE = {
    "zero-copy": (("--copy", "zero-copy"), "driver veth has no zero-copy AF_XDP; use copy mode"),
    "library": (("--lib-dir", "/nonexistent"), "libharp-xdp.so: cannot open shared object file"),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_an_impossible_option_is_refused(tools: Tools, shared_lab: Lab, name: str) -> None:
    host = shared_lab.hosts[0]
    options, message = IMPOSSIBLE[name]
    assert message in refusal(tools, host, *tools.options(host, "harp"), *options)
    assert not xdp_attached(host)


def test_an_interface_that_is_down_is_refused(tools: Tools, lab: Lab) -> None:
    host = lab.hosts[0]
    host.run("ip", "link", "set", host.ifname, "down")
    line = refusal(tools, host, "--ifname", host.ifname, *tools.lib_dir)
    assert line.startswith(f"{host.ifname} queue 0: the interface is down; ")


def test_harp_waits_for_a_busy_queue_without_a_program(tools: Tools, lab: Lab) -> None:
    """After its owner's death the kernel keeps a queue bound for a while, without a program.
    On a busy machine this exceeds the time for which HARP retries a queue that has an owner."""
    host = lab.hosts[0]
    queue_fds = make_queue(host)
    args = (tools.tcp, "serve", host.address, "61000", *tools.options(host, "harp"))
    process = host.popen(args)
    tools.started.append(process)
    assert process.stderr is not None
    assert process.stdout is not None
    try:
        assert "generic XDP (driver veth)" in process.stderr.readline()
        line = process.stderr.readline()
        assert f"{host.ifname} queue 0 is busy without a user" in line
    finally:
        for fd in queue_fds:
            os.close(fd)
    assert process.stdout.readline() == "ready\n"


@pytest.mark.parametrize("queue", ["0", "1"], ids=["same queue", "another queue"])
def test_a_second_process_needs_harpd(tools: Tools, need_root: None, queue: str) -> None:
    """The first process has attached its XDP program to the interface."""
    with Lab(LabOptions(queues=2)) as lab:
        host = lab.hosts[0]
        tools.serve_tcp(host, "harp", 61000)
        line = refusal(tools, host, "--ifname", host.ifname, *tools.lib_dir, "--queue", queue)
        assert line.startswith(f"{host.ifname}: HARP's XDP program is attached already (program ")
        assert "through harpd" in line
        assert xdp_attached(host)


def test_an_interface_with_another_xdp_program_is_refused(tools: Tools, lab: Lab) -> None:
    host = lab.hosts[0]
    foreign_link = inside(
        host, lambda: bpf_calls.attach_pass_program(socket.if_nametoindex(host.ifname))
    )
    line = refusal(tools, host, "--ifname", host.ifname, *tools.lib_dir)
    os.close(foreign_link)
    assert line.startswith(f"{host.ifname}: XDP program ")
    assert "is attached already; detach it" in line


@pytest.mark.parametrize("capability", ["net_raw", "net_admin", "bpf,-sys_admin"])
def test_a_missing_privilege_is_named(tools: Tools, lab: Lab, capability: str) -> None:
    host = lab.hosts[0]
    drop = ("setpriv", f"--bounding-set=-{capability}", f"--inh-caps=-{capability}", "--")
    line = refusal(tools, host, "--ifname", host.ifname, *tools.lib_dir, prefix=drop)
    name = f"CAP_{capability.split(',')[0].upper()}"
    assert line == f"{host.ifname} queue 0: {name} missing; run as root or add it"
    assert not xdp_attached(host)


def test_the_kernel_refuses_large_chunks_and_a_budget_without_a_ring() -> None:
    """The reason why nic/af_xdp_make.c uses multi-buffer for jumbo frames and sets the budget after
    the rings. The numbers are from linux/if_xdp.h."""
    sol_xdp, tx_ring, umem_reg, max_tx_skb_budget = 283, 3, 4, 9
    region = mmap.mmap(-1, 1 << 20)
    address = ctypes.addressof(ctypes.c_char.from_buffer(region))
    with socket.socket(44, socket.SOCK_RAW) as xsk:  # AF_XDP

        def set_option(option: int, *value: int, layout: str = "I") -> int | None:
            """Return the errno, or None on success."""
            try:
                xsk.setsockopt(sol_xdp, option, struct.pack(layout, *value))
            except OSError as error:
                return error.errno
            return None

        for chunk, error in ((8192, errno.EINVAL), (4096, None)):
            memory = (address, len(region), chunk, 0, 0, 0)
            assert set_option(umem_reg, *memory, layout="QQ4I") == error
        before_ring = set_option(max_tx_skb_budget, 128)
        assert set_option(tx_ring, 256) is None
        if before_ring != errno.ENOPROTOOPT:  # before Linux 6.17
            assert (before_ring, set_option(max_tx_skb_budget, 128)) == (errno.EACCES, None)
