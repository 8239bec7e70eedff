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
