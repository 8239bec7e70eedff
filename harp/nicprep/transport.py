# SPDX-License-Identifier: Apache-2.0
"""The kernel's ethtool interface: netlink, and ioctl for parts that supported kernels lack there
(the RSS table, the driver's name).

pyroute2 (0.7 to 0.9) has only the message of ring sizes. The others are declared here, after
include/uapi/linux/ethtool_netlink.h and netdev.h.
"""

import array
import ctypes
import errno
import fcntl
import socket
import struct
from collections.abc import Mapping
from typing import Any

from pyroute2.netlink import GENL_ID_CTRL, NETLINK_GENERIC, NLA_F_NESTED, ctrlmsg, genlmsg, nla
from pyroute2.netlink.generic import ethtool as pyroute2_ethtool

from harp import netlink

Values = dict[str, Any]

_CTRL_CMD_GETFAMILY = 3
_SIOCETHTOOL = 0x8946
_ETHTOOL_GDRVINFO = 0x03
_ETHTOOL_GRXFHINDIR = 0x38
_RSS_TABLE_MAX = 8192
_NETDEV_DEV_GET, _NETDEV_QUEUE_GET = 1, 10


class _Ethtool(genlmsg):  # type: ignore[misc]
    ethtoolheader = pyroute2_ethtool.ethtoolheader
    ethtoolbitset = pyroute2_ethtool.ethtoolbitset


def _names(kind: str, *names: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, kind) for name in names)


_HEAD = (("UNSPEC", "none"), ("HEADER", "ethtoolheader"))


class Channels(_Ethtool):
    nla_map = _HEAD + _names(
        "uint32", "rx_max", "tx_max", "other_max", "combined_max", "rx", "tx", "other", "combined"
    )


class Rings(_Ethtool):
    """ETHTOOL_MSG_RINGS_*: the attributes that HARP uses."""

    nla_map = _HEAD + _names(
        "uint32",
        *("rx_max", "rx_mini_max", "rx_jumbo_max", "tx_max", "rx", "rx_mini", "rx_jumbo", "tx"),
    )


class Coalesce(_Ethtool):
    """ETHTOOL_MSG_COALESCE_*: the attributes up to the adaptive switches."""

    nla_map = (
        _HEAD
        + _names("uint32", "rx_usecs", "rx_frames", "rx_usecs_irq", "rx_frames_irq")
        + _names("uint32", "tx_usecs", "tx_frames", "tx_usecs_irq", "tx_frames_irq")
        + _names("uint32", "stats_block_usecs")
        + _names("uint8", "adaptive_rx", "adaptive_tx")
    )


class Features(_Ethtool):
    nla_map = _HEAD + _names("ethtoolbitset", "hw", "wanted", "active", "nochange")


class NetdevDevice(genlmsg):  # type: ignore[misc]
    """NETDEV_CMD_DEV_GET: the attributes that HARP uses."""

    nla_map = (
        ("UNSPEC", "none"),
        ("ifindex", "uint32"),
        ("PAD", "none"),
        ("xdp_features", "uint64"),
    )


class NetdevQueue(genlmsg):  # type: ignore[misc]
    """NETDEV_CMD_QUEUE_GET (Linux 6.8; xsk since 6.14)."""

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


# Part: get, set, message, and the values that may be set.
_PARTS: dict[str, tuple[int, int, type[Any], tuple[str, ...]]] = {
    "channels": (17, 18, Channels, ("rx", "tx", "combined")),
    "rings": (15, 16, Rings, ("rx", "tx")),
    "coalesce": (19, 20, Coalesce, ("rx_usecs", "tx_usecs", "adaptive_rx", "adaptive_tx")),
    "features": (11, 12, Features, ()),
}


class Ethtool:
    """The NICs of the thread's network namespace. OSError: EOPNOTSUPP: the NIC lacks the part."""

    def get(self, part: str, ifname: str) -> Values:
        """Return a part. channels, rings, coalesce: numbers, with their "_max"; features: name to
        bool, of those that are on or can be changed; changeable: only those that can be changed;
        rss: {"table": [queue, ...]}.
        """
        if part == "rss":
            return {"table": _rss_get(ifname)}
        command, _, message, _ = _PARTS["features" if part == "changeable" else part]
        (answer,) = _call("ethtool", _request(message, ifname), command)
        if part in ("features", "changeable"):
            return _features(answer, fixed=part == "features")
        return {
            name: value
            for name, value in answer["attrs"]
            if name.islower() and isinstance(value, int)
        }

    def set(self, part: str, ifname: str, values: Mapping[str, Any]) -> None:
        """Set values of channels, rings, coalesce or features, as get() returns them."""
        _, command, message, settable = _PARTS[part]
        request = _request(message, ifname)
        if part == "features":
            request["attrs"].append(("wanted", _bits(values)))
        else:
            for name, value in values.items():
                if name not in settable:
                    raise OSError(errno.EINVAL, f"{part}: {name} can't be set")
                request["attrs"].append((name, int(value)))
        _call("ethtool", request, command)

    def driver(self, ifname: str) -> tuple[str, str]:
        """Return the driver's name and the NIC's bus address; empty without one."""
        # struct ethtool_drvinfo: cmd, driver[32], version[32], fw_version[32], bus_info[32] ...
        buffer = array.array("B", struct.pack("=I", _ETHTOOL_GDRVINFO) + bytes(196))
        _ioctl(ifname, buffer)
        data = buffer.tobytes()
        driver, bus = (
            data[offset : offset + 32].split(b"\0")[0].decode(errors="replace")
            for offset in (4, 100)
        )
        return driver, bus if bus not in ("N/A", "tap", "tun") else ""

    def xdp(self, ifname: str) -> Values:
        """Return xdp_features (Linux 6.3)."""
        request = NetdevDevice()
        request["attrs"].append(("ifindex", socket.if_nametoindex(ifname)))
        (answer,) = _call("netdev", request, _NETDEV_DEV_GET)
        return {name: value for name, value in answer["attrs"] if isinstance(value, int)}

    def xsk_queues(self, ifname: str) -> list[int]:
        """Return the receive queues to which an AF_XDP socket is bound."""
        request = NetdevQueue()
        request["attrs"].append(("ifindex", socket.if_nametoindex(ifname)))
        answers = _call("netdev", request, _NETDEV_QUEUE_GET, dump=True)
        queues = [dict(answer["attrs"]) for answer in answers]
        return sorted(int(q["id"]) for q in queues if q.get("type") == 0 and "xsk" in q)


def _call(family: str, message: Any, command: int, *, dump: bool = False) -> list[Any]:
    """Send one request; return the answers as decoded messages of its class.

    OSError, with the kernel's message if there is one; EOPNOTSUPP: there is no such family.
    """
    with netlink.connect(NETLINK_GENERIC) as sock:
        query = ctrlmsg()
        query["cmd"], query["version"] = _CTRL_CMD_GETFAMILY, 1
        query["attrs"].append(("CTRL_ATTR_FAMILY_NAME", family))
        try:
            (answer,) = netlink.exchange(sock, query, GENL_ID_CTRL)
        except FileNotFoundError as error:
            text = f"this kernel has no {family} netlink"
            raise OSError(errno.EOPNOTSUPP, text) from error
        message["cmd"], message["version"] = command, 1
        number = int(answer.get_attr("CTRL_ATTR_FAMILY_ID"))
        return netlink.exchange(sock, message, number, dump=dump)


def _request(message: type[Any], ifname: str) -> Any:
    request = message()
    request["attrs"].append(("HEADER", {"attrs": [("ETHTOOL_A_HEADER_DEV_NAME", ifname)]}))
    return request


def _bit_names(bitset: Any) -> dict[str, bool]:
    """Return a bitset's bits by name, and whether each is set; without a mask only those set."""
    listed = bitset.get_attr("ETHTOOL_A_BITSET_BITS") if bitset is not None else None
    if listed is None:
        return {}
    all_set = bitset.get_attr("ETHTOOL_A_BITSET_NOMASK") is not None
    result = {}
    for bit in listed.get_attrs("ETHTOOL_A_BITSET_BITS_BIT"):
        on = any(name == "ETHTOOL_A_BITSET_BIT_VALUE" for name, _ in bit["attrs"])
        result[str(bit.get_attr("ETHTOOL_A_BITSET_BIT_NAME"))] = all_set or on
    return result


def _features(answer: Any, *, fixed: bool) -> Values:
    may_change = {name for name, on in _bit_names(answer.get_attr("hw")).items() if on}
    active = {name for name, on in _bit_names(answer.get_attr("active")).items() if on}
    return {name: name in active for name in sorted(may_change | active if fixed else may_change)}


def _bits(values: Mapping[str, Any]) -> Values:
    bits = []
    for name, on in values.items():
        bit: list[tuple[str, Any]] = [("ETHTOOL_A_BITSET_BIT_NAME", name)]
        if on:
            bit.append(("ETHTOOL_A_BITSET_BIT_VALUE", None))
        bits.append(("ETHTOOL_A_BITSET_BITS_BIT", {"attrs": bit}))
    return {"attrs": [("ETHTOOL_A_BITSET_BITS", {"attrs": bits})]}


# ---- ioctl ---------------------------------------------------------------------------------------


def _ioctl(ifname: str, buffer: "array.array[int]") -> None:
    address, _ = buffer.buffer_info()
    name = ifname.encode()
    if len(name) > 15:
        raise OSError(errno.ENODEV, "no such interface")
    request = struct.pack("16sP", name, address) + bytes(40 - 16 - ctypes.sizeof(ctypes.c_void_p))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, _SIOCETHTOOL, request)


def _rss_get(ifname: str) -> list[int]:
    header = array.array("I", [_ETHTOOL_GRXFHINDIR, 0])
    _ioctl(ifname, header)
    size = header[1]
    if not 0 < size <= _RSS_TABLE_MAX:
        raise OSError(errno.EOPNOTSUPP, "this NIC shows no RSS table")
    table = array.array("I", [_ETHTOOL_GRXFHINDIR, size, *([0] * size)])
    _ioctl(ifname, table)
    return table.tolist()[2:]
