# SPDX-License-Identifier: Apache-2.0
"""A UDP echo server on HARP: `udp_peer.py ADDRESS PORT --ifname IF --lib-dir DIR`.

It prints "ready", echoes datagrams until SIGTERM, and prints a JSON report.
"""

import argparse
import contextlib
import json
import select
import signal
import sys

from harp import Instance
from harp._core import UdpSocket

PROGRAM = [sys.executable, __file__]
SIZE_MAX = 9000


def poll(instance: Instance) -> None:
    """Poll once; sleep briefly if nothing was due."""
    if not instance.poll():
        select.select([instance.fileno(), instance.control_fileno()], [], [], 0.001)


def receive(sock: UdpSocket) -> tuple[bytes, int, tuple[str, int]] | None:
    with contextlib.suppress(BlockingIOError):
        return sock.recv(SIZE_MAX)
    return None


def echo(instance: Instance, address: str, port: int, report: dict[str, int]) -> None:
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    with instance.stack.udp(port, address) as sock:
        print("ready", flush=True)
        while not stopped:
            poll(instance)
            while (datagram := receive(sock)) is not None:
                data, _, sender = datagram
                report["received"] += 1
                with contextlib.suppress(OSError):  # a crafted sender that has no route
                    sock.send(data, *sender)
                    report["sent"] += 1


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("port", type=int)
    parser.add_argument("--ifname", required=True)
    parser.add_argument("--lib-dir", required=True)
    args = parser.parse_args()
    report = {"sent": 0, "received": 0}
    options = {"drive": False, "daemon": "off", "lib_dir": args.lib_dir}
    with Instance(args.ifname, **options) as instance:
        echo(instance, args.address, args.port, report)
        stats, steering = instance.stats(), instance.steering()
    print(json.dumps({**report, "stats": stats, "steering": steering}))


if __name__ == "__main__":
    main()
