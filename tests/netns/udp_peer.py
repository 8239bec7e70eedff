# SPDX-License-Identifier: Apache-2.0
"""Datagrams over HARP: `udp_peer.py echo|call ADDRESS PORT --ifname IF --lib-dir DIR`.

`echo` prints "ready" and returns datagrams until SIGTERM. `call` sends datagrams, at most WINDOW of
them unanswered, and compares what comes back. Both print a JSON report.
"""

import argparse
import contextlib
import json
import select
import signal
import sys
import time

from harp import Instance
from harp._core import UdpSocket

PROGRAM = [sys.executable, __file__]
WINDOW = 16
QUIET_S = 1.0  # without a datagram: nothing more will come
SIZE_MAX = 9000


def turn(instance: Instance) -> None:
    """Poll once; sleep briefly if there was nothing to do."""
    if not instance.poll():
        select.select([instance.fileno(), instance.control_fileno()], [], [], 0.001)


def content(number: int, size: int) -> bytes:
    """Return a datagram that no other number has."""
    return number.to_bytes(4, "little") + bytes(
        (number * 131 + i * 7) & 255 for i in range(size - 4)
    )


def receive(sock: UdpSocket) -> tuple[bytes, int, tuple[str, int]] | None:
    """Return a datagram; None without one."""
    with contextlib.suppress(BlockingIOError):
        return sock.recv(SIZE_MAX)
    return None


def echo(instance: Instance, address: str, port: int, report: dict[str, int]) -> None:
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    with instance.stack.udp(port, address) as sock:
        print("ready", flush=True)
        while not stopped:
            turn(instance)
            while (found := receive(sock)) is not None:
                data, _, sender = found
                report["received"] += 1
                with contextlib.suppress(OSError):  # a crafted sender that has no route
                    sock.send(data, *sender)
                    report["sent"] += 1


def call(
    instance: Instance, address: str, port: int, count: int, size: int, report: dict[str, int]
) -> None:
    last_s = time.monotonic()
    with instance.stack.udp() as sock:
        sock.connect(address, port)
        report["port"] = sock.endpoints[0][1]
        while report["received"] < count and time.monotonic() < last_s + QUIET_S:
            try:
                while report["sent"] < min(count, report["received"] + WINDOW):
                    sock.send(content(report["sent"], size))
                    report["sent"] += 1
                turn(instance)
                while (found := receive(sock)) is not None:
                    data, last_s = found[0], time.monotonic()
                    report["received"] += 1
                    number = int.from_bytes(data[:4], "little")
                    report["wrong"] += data != content(number, size)
            except BlockingIOError:
                turn(instance)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=["echo", "call"])
    parser.add_argument("address")
    parser.add_argument("port", type=int)
    parser.add_argument("--ifname", required=True)
    parser.add_argument("--lib-dir", required=True)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--size", type=int, default=64)
    given = parser.parse_args()
    report = {"sent": 0, "received": 0, "wrong": 0}
    options = {"drive": False, "daemon": "off", "lib_dir": given.lib_dir}
    with Instance(given.ifname, **options) as instance:
        if given.mode == "echo":
            echo(instance, given.address, given.port, report)
        else:
            call(instance, given.address, given.port, given.count, given.size, report)
        stats, steering = instance.stats(), instance.steering()
    print(json.dumps({**report, "stats": stats, "steering": steering}))


if __name__ == "__main__":
    main()
