# SPDX-License-Identifier: Apache-2.0
"""Generic netlink for two families, ethtool and netdev: pyroute2's messages over a plain socket.

pyroute2 (0.7 to 0.9) has only the ring sizes; the other messages are declared here with its
primitives, after include/uapi/linux/ethtool_netlink.h and netdev.h. Its sockets run an event loop
of their own, which a daemon with a loop can't use. So this module opens a socket for one request
and one answer, in the network namespace of the calling thread.
"""

import errno
import os
import socket
import struct
from typing import Any

from pyroute2.netlink import NLA_F_NESTED, ctrlmsg, genlmsg, nla
from pyroute2.netlink.generic import ethtool as pyroute2_ethtool

_NETLINK_GENERIC = 16
_GENL_ID_CTRL = 16
_CTRL_CMD_GETFAMILY = 3
_SOL_NETLINK = 270
_NETLINK_CAP_ACK, _NETLINK_EXT_ACK = 10, 11
_NLM_F_REQUEST, _NLM_F_ACK, _NLM_F_DUMP = 1, 4, 0x300
_NLM_F_ACK_TLVS = 0x200
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_NLMSGERR_ATTR_MSG = 1
_HEADER = struct.Struct("=IHHII")
_TIMEOUT_S = 5


def _names(*kinds: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    return (("UNSPEC", "none"), ("HEADER", "ethtoolheader"), *kinds)


class Channels(genlmsg):  # type: ignore[misc]
    """ETHTOOL_MSG_CHANNELS_*."""

    nla_map = _names(
        ("rx_max", "uint32"),
        ("tx_max", "uint32"),
        ("other_max", "uint32"),
        ("combined_max", "uint32"),
        ("rx", "uint32"),
        ("tx", "uint32"),
        ("other", "uint32"),
        ("combined", "uint32"),
    )
    ethtoolheader = pyroute2_ethtool.ethtoolheader


class Rings(genlmsg):  # type: ignore[misc]
    """ETHTOOL_MSG_RINGS_*: the part of it that is ours."""

    nla_map = _names(
        ("rx_max", "uint32"),
        ("rx_mini_max", "uint32"),
        ("rx_jumbo_max", "uint32"),
        ("tx_max", "uint32"),
        ("rx", "uint32"),
        ("rx_mini", "uint32"),
        ("rx_jumbo", "uint32"),
        ("tx", "uint32"),
    )
    ethtoolheader = pyroute2_ethtool.ethtoolheader


class Coalesce(genlmsg):  # type: ignore[misc]
    """ETHTOOL_MSG_COALESCE_*: up to the adaptive switches."""

    nla_map = _names(
        ("rx_usecs", "uint32"),
        ("rx_frames", "uint32"),
        ("rx_usecs_irq", "uint32"),
        ("rx_frames_irq", "uint32"),
        ("tx_usecs", "uint32"),
        ("tx_frames", "uint32"),
        ("tx_usecs_irq", "uint32"),
        ("tx_frames_irq", "uint32"),
        ("stats_block_usecs", "uint32"),
        ("adaptive_rx", "uint8"),
        ("adaptive_tx", "uint8"),
    )
    ethtoolheader = pyroute2_ethtool.ethtoolheader


class Features(genlmsg):  # type: ignore[misc]
    """ETHTOOL_MSG_FEATURES_*."""

    nla_map = _names(
        ("hw", "ethtoolbitset"),
        ("wanted", "ethtoolbitset"),
        ("active", "ethtoolbitset"),
        ("nochange", "ethtoolbitset"),
    )
    ethtoolheader = pyroute2_ethtool.ethtoolheader
    ethtoolbitset = pyroute2_ethtool.ethtoolbitset


class NetdevDevice(genlmsg):  # type: ignore[misc]
    """NETDEV_CMD_DEV_GET (Linux 6.3)."""

    nla_map = (
        ("UNSPEC", "none"),
        ("ifindex", "uint32"),
        ("PAD", "none"),
        ("xdp_features", "uint64"),
        ("zc_max_segs", "uint32"),
        ("rx_metadata", "uint64"),
        ("xsk_features", "uint64"),
    )


class NetdevQueue(genlmsg):  # type: ignore[misc]
    """NETDEV_CMD_QUEUE_GET (Linux 6.8; the socket's mark since 6.14)."""

    nla_map = (
        ("UNSPEC", "none"),
        ("id", "uint32"),
        ("ifindex", "uint32"),
        ("type", "uint32"),
        ("napi_id", "uint32"),
        ("dmabuf", "hex"),
        ("io_uring", "hex"),
        ("xsk", "presence"),
    )

    class presence(nla):  # type: ignore[misc] # noqa: N801 (pyroute2 looks it up by this name)
        nla_flags = NLA_F_NESTED
        nla_map = (("UNSPEC", "none"),)


def call(family: str, message: Any, command: int, *, dump: bool = False) -> list[Any]:
    """Send one request; return the answers as decoded messages of its class.

    OSError with the kernel's own message if there is one; ENOTSUP if there is no such family.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_GENERIC) as sock:
        sock.settimeout(_TIMEOUT_S)
        for option in (_NETLINK_CAP_ACK, _NETLINK_EXT_ACK):
            sock.setsockopt(_SOL_NETLINK, option, 1)
        sock.bind((0, 0))
        number = _family(sock, family)
        flags = _NLM_F_REQUEST | (_NLM_F_DUMP if dump else _NLM_F_ACK)
        return _exchange(sock, message, number, command, flags)


def _family(sock: socket.socket, name: str) -> int:
    message = ctrlmsg()
    message["attrs"].append(("CTRL_ATTR_FAMILY_NAME", name))
    flags = _NLM_F_REQUEST | _NLM_F_ACK
    try:
        (answer,) = _exchange(sock, message, _GENL_ID_CTRL, _CTRL_CMD_GETFAMILY, flags)
    except FileNotFoundError as error:
        text = f"this kernel has no {name} netlink"
        raise OSError(errno.EOPNOTSUPP, text) from error
    return int(answer.get_attr("CTRL_ATTR_FAMILY_ID"))


def _exchange(
    sock: socket.socket, message: Any, number: int, command: int, flags: int
) -> list[Any]:
    message["cmd"], message["version"] = command, 1
    message["header"]["type"], message["header"]["flags"] = number, flags
    message["header"]["sequence_number"], message["header"]["pid"] = 1, 0
    message.encode()
    sock.send(bytes(message.data))
    answers: list[Any] = []
    while True:
        try:
            data = sock.recv(1 << 20)
        except TimeoutError as error:
            raise OSError(errno.ETIMEDOUT, "the kernel did not answer") from error
        at = 0
        while at + _HEADER.size <= len(data):
            size, kind, got, _, _ = _HEADER.unpack_from(data, at)
            part = data[at : at + size]
            at += max(_HEADER.size, size + 3 & ~3)
            if kind == _NLMSG_DONE:
                return answers
            if kind == _NLMSG_ERROR:
                _raise(part, got)
                return answers
            answer = type(message)(part)
            answer.decode()
            answers.append(answer)


def _raise(part: bytes, flags: int) -> None:
    """Raise the error of an NLMSG_ERROR; return if it is only the acknowledgment."""
    (negative,) = struct.unpack_from("=i", part, _HEADER.size)
    if negative == 0:
        return
    words = ""
    at = _HEADER.size + 4 + _HEADER.size  # NETLINK_CAP_ACK: only the header is quoted
    while flags & _NLM_F_ACK_TLVS and at + 4 <= len(part):
        size, kind = struct.unpack_from("=HH", part, at)
        if kind & 0x3FFF == _NLMSGERR_ATTR_MSG:
            words = part[at + 4 : at + size].rstrip(b"\0").decode(errors="replace")
        at += max(4, size + 3 & ~3)
    raise OSError(-negative, words or os.strerror(-negative))
