# SPDX-License-Identifier: Apache-2.0
"""A DPDK port as scapy's socket: sniff(), srp(), sendp() and automata on any Ethernet device.

from harp import dpdk
from harp.dpdk.supersocket import DpdkSocket

with dpdk.Port("net_tap0") as port, DpdkSocket(port) as sock:
    answer = sock.sr1(Ether() / IP(dst="10.0.0.2") / ICMP(), timeout=1)
"""

import time
from typing import Any

from harp.dpdk.port import Port
from harp.errors import Exit, HarpError

try:
    from scapy.config import conf
    from scapy.layers.l2 import Ether
    from scapy.supersocket import SuperSocket
except ImportError as _error:
    raise HarpError("scapy is not installed: pip install scapy", Exit.MISSING) from _error

_NAP_S = 50e-6
_BURST = 32


class DpdkSocket(SuperSocket):  # type: ignore[misc,unused-ignore]
    """Packets of one queue of a port. The caller owns the port: close() leaves it open."""

    desc = "a queue of a DPDK port"
    nonblocking_socket = True

    def __init__(self, port: Port, *, queue: int = 0, **_: Any) -> None:
        self.port, self.queue = port, queue
        self.iface = port.name
        self._waiting: list[tuple[float, bytes]] = []
        self.ins = self.outs = self  # type: ignore[assignment,unused-ignore]
        self.closed = False

    def send(self, x: Any) -> int:
        """Send one packet; return its bytes, 0 if the device does not accept it."""
        data = bytes(x)
        if self.port.send(data, queue=self.queue) == 0:
            return 0
        x.sent_time = time.time()
        return len(data)

    def _fill(self) -> bool:
        if not self._waiting:
            with self.port.receive(_BURST, queue=self.queue) as burst:
                now = time.time()
                self._waiting = [(now, bytes(packet)) for packet in burst]
        return bool(self._waiting)

    def recv_raw(self, x: int = 65535) -> tuple[Any, bytes | None, float | None]:
        """Return the next packet's class, bytes and time; each is None without a packet."""
        if not self._fill():
            return None, None, None
        received_s, data = self._waiting.pop(0)
        return Ether, data[:x], received_s

    def fileno(self) -> int:
        """Return -1: a port has no descriptor."""
        return -1

    def close(self) -> None:
        """Close this socket, but not the port."""
        self.closed = True

    @staticmethod
    def select(sockets: list[Any], remain: float | None = None) -> list[Any]:
        """Return the sockets with packets; waits as long as scapy requests."""
        interval = conf.recv_poll_rate if remain is None else min(remain, conf.recv_poll_rate)
        deadline = time.monotonic() + interval
        while True:
            ready = [sock for sock in sockets if sock.closed or sock._fill()]
            if ready or time.monotonic() >= deadline:
                return ready
            time.sleep(_NAP_S)
