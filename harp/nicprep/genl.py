# SPDX-License-Identifier: Apache-2.0
"""Generic netlink for two families, ethtool and netdev.

pyroute2 (0.7 to 0.9) has only the ring sizes; the other messages are declared here with its
primitives, after include/uapi/linux/ethtool_netlink.h and netdev.h.
"""

import errno
from typing import Any

from pyroute2.netlink import (
    GENL_ID_CTRL,
    NETLINK_GENERIC,
    NLA_F_NESTED,
    ctrlmsg,
    genlmsg,
    nla,
)
from pyroute2.netlink.generic import ethtool as pyroute2_ethtool

from harp import netlink

_CTRL_CMD_GETFAMILY = 3


class _Ethtool(genlmsg):  # type: ignore[misc]
    ethtoolheader = pyroute2_ethtool.ethtoolheader
    ethtoolbitset = pyroute2_ethtool.ethtoolbitset


def _names(kind: str, *names: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, kind) for name in names)


_HEAD = (("UNSPEC", "none"), ("HEADER", "ethtoolheader"))


class Channels(_Ethtool):
    """ETHTOOL_MSG_CHANNELS_*."""

    nla_map = _HEAD + _names(
        "uint32", "rx_max", "tx_max", "other_max", "combined_max", "rx", "tx", "other", "combined"
    )


class Rings(_Ethtool):
    """ETHTOOL_MSG_RINGS_*: the part of it that is ours."""

    nla_map = _HEAD + _names(
        "uint32",
        *("rx_max", "rx_mini_max", "rx_jumbo_max", "tx_max", "rx", "rx_mini", "rx_jumbo", "tx"),
    )


class Coalesce(_Ethtool):
    """ETHTOOL_MSG_COALESCE_*: up to the adaptive switches."""

    nla_map = (
        _HEAD
        + _names("uint32", "rx_usecs", "rx_frames", "rx_usecs_irq", "rx_frames_irq")
        + _names("uint32", "tx_usecs", "tx_frames", "tx_usecs_irq", "tx_frames_irq")
        + _names("uint32", "stats_block_usecs")
        + _names("uint8", "adaptive_rx", "adaptive_tx")
    )


class Features(_Ethtool):
    """ETHTOOL_MSG_FEATURES_*."""

    nla_map = _HEAD + _names("ethtoolbitset", "hw", "wanted", "active", "nochange")


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
    with netlink.connect(NETLINK_GENERIC) as sock:
        ask = ctrlmsg()
        ask["cmd"], ask["version"] = _CTRL_CMD_GETFAMILY, 1
        ask["attrs"].append(("CTRL_ATTR_FAMILY_NAME", family))
        try:
            (answer,) = netlink.exchange(sock, ask, GENL_ID_CTRL)
        except FileNotFoundError as error:
            text = f"this kernel has no {family} netlink"
            raise OSError(errno.EOPNOTSUPP, text) from error
        message["cmd"], message["version"] = command, 1
        number = int(answer.get_attr("CTRL_ATTR_FAMILY_ID"))
        return netlink.exchange(sock, message, number, dump=dump)
