# SPDX-License-Identifier: Apache-2.0
"""Two DPDK ports joined by memif: packets through shared memory, between two processes."""

from pathlib import Path

from harp.errors import Exit, HarpError
from harp.lab import LabOptions

NIC = "dpdk-memif"  # its name in commands
SERVER, CLIENT = 0, 1
_NETWORK = {False: ("10.77.0.{}", 24), True: ("fd77::7:{}", 64)}


def address(end: int, *, ipv6: bool = False) -> str:
    """Return the address of one end, SERVER or CLIENT."""
    return _NETWORK[ipv6][0].format(end + 1)


def port_texts(folder: Path, *, mtu_bytes: int = 1500, ipv6: bool = False) -> tuple[str, str]:
    """Return the specifications of the server's and the client's port. folder: for the socket."""
    prefix = _NETWORK[ipv6][1]
    device = f"net_memif0,socket={folder}/memif.sock,role="
    return tuple(  # type: ignore[return-value]
        f"{device}{role};ip={address(end, ipv6=ipv6)}/{prefix};mtu={mtu_bytes}"
        for end, role in enumerate(("server", "client"))
    )


def check(ranks: int, path: str) -> None:
    """Raise HarpError without DPDK, and for options that memif ports do not support."""
    if ranks != 2:
        raise HarpError(
            f"memif joins two processes: --nic {NIC} is for 2 hosts with one rank each", Exit.USAGE
        )
    if path in ("xdp", "kernel"):
        raise HarpError(f"path {path} does not use DPDK ports: omit --path or --nic", Exit.USAGE)
    import harp.dpdk  # noqa: F401 - its error names what is missing


def environment(lab: LabOptions, rank: int, folder: Path) -> dict[str, str]:
    """Return the environment of a rank whose only path is its end of the memif."""
    texts = port_texts(folder, mtu_bytes=lab.mtu_bytes, ipv6=lab.ipv6)
    return {"HARP_DPDK": texts[rank], "HARP_PATH": "dpdk", "HARP_IFNAME": "=net_memif0"}
