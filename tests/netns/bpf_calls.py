# SPDX-License-Identifier: Apache-2.0
"""Operations on BPF links that root may do: list a process's links, detach one by force, attach
one."""

import ctypes
import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path

SYSTEM_CALL = {"x86_64": 321, "aarch64": 280}[os.uname().machine]
_PROG_LOAD, _LINK_CREATE, _LINK_GET_FD_BY_ID, _LINK_DETACH = 5, 28, 30, 34
_SCHED_CLS, _XDP = 3, 6
_TCX_INGRESS, _ON_INTERFACE = 46, 37
_GENERIC = 2  # XDP_FLAGS_SKB_MODE
_BEFORE = 8  # BPF_F_BEFORE: all that are there

NEXT, PASS, DROP = -1, 0, 2  # what a program at the hook may return
PASS_XDP = 2  # what one on the interface

_libc = ctypes.CDLL(None, use_errno=True)


def _bpf(command: int, attributes: bytes) -> int:
    buffer = ctypes.create_string_buffer(attributes.ljust(128, b"\0"), 128)
    result: int = _libc.syscall(SYSTEM_CALL, command, buffer, 128)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


@dataclass(frozen=True)
class Link:
    """One that a process holds."""

    number: int
    kind: str  # "tcx", "xdp"
    ifindex: int


def links_of(pid: int) -> list[Link]:
    found = []
    for entry in Path(f"/proc/{pid}/fdinfo").iterdir():
        try:
            text = entry.read_text()
        except FileNotFoundError:
            continue  # closed since
        words = dict(re.findall(r"^(\w+):\s*(\S+)", text, re.M))
        if "link_id" in words:
            number, ifindex = int(words["link_id"]), int(words.get("ifindex", "0"))
            found.append(Link(number, words["link_type"], ifindex))
    return found


def detach(link: Link) -> None:
    """By force, also from its holder."""
    fd = _bpf(_LINK_GET_FD_BY_ID, struct.pack("I", link.number))
    try:
        _bpf(_LINK_DETACH, struct.pack("I", fd))
    finally:
        os.close(fd)


def _put(kind: int, verdict: int, ifindex: int, where: int, flags: int) -> int:
    """A program that always says the same; the descriptor of its link."""
    code = struct.pack("<BBhi", 0xB7, 0, 0, verdict) + struct.pack("<BBhi", 0x95, 0, 0, 0)
    instructions = ctypes.create_string_buffer(code, len(code))
    license_ = ctypes.create_string_buffer(b"GPL")
    program = _bpf(
        _PROG_LOAD,
        struct.pack("IIQQ", kind, 2, ctypes.addressof(instructions), ctypes.addressof(license_)),
    )
    try:
        return _bpf(_LINK_CREATE, struct.pack("IIII", program, ifindex, where, flags))
    finally:
        os.close(program)


def put_on(ifindex: int) -> int:
    """One on the interface, which has none, that passes everything; as put_first()."""
    return _put(_XDP, PASS_XDP, ifindex, _ON_INTERFACE, _GENERIC)
