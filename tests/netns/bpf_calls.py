# SPDX-License-Identifier: Apache-2.0
"""BPF link operations for root: list a process's links, force-detach one, attach one."""

import ctypes
import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path

SYSTEM_CALL = {"x86_64": 321, "aarch64": 280}[os.uname().machine]
_PROG_LOAD, _LINK_CREATE, _LINK_GET_FD_BY_ID, _LINK_DETACH = 5, 28, 30, 34
_TYPE_XDP, _ATTACH_XDP = 6, 37  # BPF_PROG_TYPE_XDP, BPF_XDP
_GENERIC = 2  # XDP_FLAGS_SKB_MODE
_PASS = 2  # XDP_PASS

_libc = ctypes.CDLL(None, use_errno=True)


def _bpf(command: int, attributes: bytes) -> int:
    buffer = ctypes.create_string_buffer(attributes.ljust(128, b"\0"), 128)
    result: int = _libc.syscall(SYSTEM_CALL, command, buffer, 128)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


@dataclass(frozen=True)
class Link:
    """A BPF link of which a process holds a descriptor."""

    number: int
    kind: str  # "tcx", "xdp"
    ifindex: int


def links_of(pid: int) -> list[Link]:
    links = []
    for entry in Path(f"/proc/{pid}/fdinfo").iterdir():
        try:
            text = entry.read_text()
        except FileNotFoundError:
            continue  # the descriptor was closed meanwhile
        fields = dict(re.findall(r"^(\w+):\s*(\S+)", text, re.M))
        if "link_id" in fields:
            number, ifindex = int(fields["link_id"]), int(fields.get("ifindex", "0"))
            links.append(Link(number, fields["link_type"], ifindex))
    return links


def detach(link: Link) -> None:
    """Force-detach a link, although a process holds it."""
    fd = _bpf(_LINK_GET_FD_BY_ID, struct.pack("I", link.number))
    try:
        _bpf(_LINK_DETACH, struct.pack("I", fd))
    finally:
        os.close(fd)


def attach_pass_program(ifindex: int) -> int:
    """Attach a generic XDP program that passes every packet. Return its link's descriptor."""
    code = struct.pack("<BBhi", 0xB7, 0, 0, _PASS) + struct.pack("<BBhi", 0x95, 0, 0, 0)
    instructions = ctypes.create_string_buffer(code, len(code))
    license_ = ctypes.create_string_buffer(b"GPL")
    pointers = (ctypes.addressof(instructions), ctypes.addressof(license_))
    program = _bpf(_PROG_LOAD, struct.pack("IIQQ", _TYPE_XDP, 2, *pointers))
    try:
        return _bpf(_LINK_CREATE, struct.pack("IIII", program, ifindex, _ATTACH_XDP, _GENERIC))
    finally:
        os.close(program)
