# SPDX-License-Identifier: Apache-2.0
"""Two DPDK ports joined by memif: packets through shared memory, between two processes."""

from pathlib import Path

SERVER, CLIENT = 0, 1
_NETWORK = {False: ("10.77.0.{}", 24), True: ("fd77::7:{}", 64)}


def address(end: int, *, ipv6: bool = False) -> str:
    """Of the port at that end, SERVER or CLIENT."""
    return _NETWORK[ipv6][0].format(end + 1)


def port_texts(folder: Path, *, mtu_bytes: int = 1500, ipv6: bool = False) -> tuple[str, str]:
    """The texts of both ports, the server's first: it makes the socket, in this folder."""
    prefix = _NETWORK[ipv6][1]
    device = f"net_memif0,id=0,socket-abstract=no,socket={folder}/memif.sock,role="
    return tuple(  # type: ignore[return-value]
        f"{device}{role};ip={address(end, ipv6=ipv6)}/{prefix};mtu={mtu_bytes}"
        for end, role in enumerate(("server", "client"))
    )
