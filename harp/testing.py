# SPDX-License-Identifier: Apache-2.0
"""Stacks for tests: on a wire in memory, or with scapy as their peer. No privilege, no NIC.

with harp.testing.pair() as (a, b): ...          two stacks on a wire, in real time
with harp.testing.PacketBench() as bench: ...    one stack under your clock; you send each packet
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from harp._core import Stack
from harp._drive import Driver, Source
from harp._nic import CallbackNic, Wire
from harp.closing import Closing

if TYPE_CHECKING:
    from scapy.packet import Packet

MS_NS = 1_000_000


# ---- Two stacks on a wire, in real time ----
class MemoryHost(Source):
    """One end of a wire. To impair its packets, call wire.impair(port, ...) inside driver.hold().

    Parameters
    ----------
    driver
        The driver of both hosts.
    stack, address
        The host's stack, and its address.
    wire, port
        The wire, and the host's end of it.
    """

    def __init__(self, driver: Driver, stack: Stack, address: str, wire: Wire, port: int) -> None:
        super().__init__(driver, stack)
        self.stack, self.address, self.wire, self.port = stack, address, wire, port


@contextmanager
def pair(
    *, ipv6: bool = False, seed: int = 1, **wire: Any
) -> Iterator[tuple[MemoryHost, MemoryHost]]:
    """Create stacks 10.0.0.1 and 10.0.0.2 (fd00::1 and fd00::2) on a wire, with one driver.

    Parameters
    ----------
    ipv6
        Whether their addresses are IPv6.
    seed
        Seed of the random numbers of the wire and the stacks.
    **wire
        Options of Wire.

    Returns
    -------
    AbstractContextManager
        Yields two MemoryHost.
    """
    with ExitStack() as opened:
        cable = opened.enter_context(Wire(seed=seed, **wire))
        stacks = []
        for index in range(2):
            stack = opened.enter_context(
                Stack(cable.port(index), seed=seed + index, now_ns=time.monotonic_ns())
            )
            stack.address_add(_address(index, ipv6), 64 if ipv6 else 24)
            stacks.append(stack)
        driver = opened.enter_context(Driver(*stacks))
        first, second = (
            MemoryHost(driver, stack, _address(i, ipv6), cable, i) for i, stack in enumerate(stacks)
        )
        yield first, second


def _address(index: int, ipv6: bool) -> str:
    return f"fd00::{index + 1:x}" if ipv6 else f"10.0.0.{index + 1}"


# ---- One stack, and scapy ----
class PacketBench(Closing):
    """A stack whose peer is scapy: exchange() sends it packets and returns its answers.

    The stack is `stack`, at `address` and `mac`; it knows the peer's MAC address. Only calls
    advance the time, `now_ns`. Packets are scapy's or bytes, with their Ethernet header.

    Parameters
    ----------
    ipv6
        Whether the addresses are IPv6.
    mtu_bytes
        The NIC's largest IP packet.
    now_ns
        The clock at the start, in nanoseconds.
    **stack
        Options of Stack.
    """

    mac = "02:00:00:00:00:01"
    peer_mac = "02:00:00:00:00:02"

    def __init__(
        self, *, ipv6: bool = False, mtu_bytes: int = 1500, now_ns: int = 10**9, **stack: Any
    ) -> None:
        self.address, self.peer = _address(0, ipv6), _address(1, ipv6)
        self.now_ns = now_ns
        self.nic = CallbackNic(mac=self.mac, mtu_bytes=mtu_bytes)
        try:
            defaults = {"own_neighbors": False, "seed": 1} | stack
            self.stack = Stack(self.nic, now_ns=now_ns, **defaults)
        except BaseException:
            self.nic.close()
            raise
        self.stack.address_add(self.address, 64 if ipv6 else 24)
        self.stack.neighbor_set(self.peer, self.peer_mac)
        self.stack.poll(now_ns)
        self.nic.collect()

    def exchange(self, *packets: "Packet | bytes", after_ns: int = MS_NS) -> "list[Packet]":
        """Deliver packets together, advance the time, poll once.

        Parameters
        ----------
        *packets
            scapy's packets, or bytes.
        after_ns
            Nanoseconds by which the time advances.

        Returns
        -------
        list of scapy.packet.Packet
            Packets that the stack sent.
        """
        for packet in packets:
            self.nic.inject(bytes(packet))
        self.now_ns += after_ns
        self.stack.poll(self.now_ns)
        return self.sent()

    def sent(self) -> "list[Packet]":
        """Return what the stack has sent since the last call."""
        from scapy.layers.l2 import Ether

        return [Ether(frame) for frame in self.nic.collect()]

    def wait(self, duration_ns: int) -> "list[Packet]":
        """Advance the time, with a poll whenever the stack requests one.

        Parameters
        ----------
        duration_ns
            Nanoseconds by which the time advances.

        Returns
        -------
        list of scapy.packet.Packet
            Packets that the stack sent.
        """
        end_ns, sent = self.now_ns + duration_ns, []
        while self.now_ns < end_ns:
            deadline_ns = self.stack.next_deadline_ns
            self.now_ns = min(end_ns, max(self.now_ns + 1, deadline_ns or end_ns))
            sent += self.exchange(after_ns=0)
        return sent

    def wait_for(self, condition: Callable[[], object], limit_ns: int = 10**10) -> None:
        """Advance the time until a condition holds.

        Parameters
        ----------
        condition
            Called before each poll.
        limit_ns
            Maximum nanoseconds of the stack's time.

        Raises
        ------
        AssertionError
            The condition did not hold within the limit.
        """
        end_ns = self.now_ns + limit_ns
        while not condition():
            if self.now_ns >= end_ns:
                raise AssertionError(f"not within {limit_ns} ns of the stack's time")
            deadline_ns = self.stack.next_deadline_ns
            self.now_ns = min(end_ns, max(self.now_ns + 1, deadline_ns or end_ns))
            self.stack.poll(self.now_ns)

    def close(self) -> None:
        """Free the stack and its NIC. May be called twice."""
        self.stack.close()
        self.nic.close()
