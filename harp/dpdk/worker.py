# SPDX-License-Identifier: Apache-2.0
"""A process with one port that runs commands: `python -m harp.dpdk.worker SPEC [OPTIONS]`.

OPTIONS is a JSON object: arguments of start() and Port. Each line of stdin is a JSON object, {"do":
"info"} and so on, and is answered by one line of JSON: the result, or {"error": text}. sink and
echo run until the next line, {"do": "stop"}. End of input ends the process. harp.bench.dpdk_wire
and `harpctl check` use it, because DPDK starts once in a process, and a driver may end one.
"""

import json
import queue
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from harp import dpdk
from harp.errors import HarpError

_ETHERTYPE = (0x88B5).to_bytes(2, "big")  # IEEE Std 802: local experiments
_LOOK_S = 0.005
_LINK_S = 10.0
_LATE_S = 0.02


class Worker:
    """The port, and the commands."""

    def __init__(self, port: dpdk.Port) -> None:
        self.port = port
        self.stop = threading.Event()
        self.lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read(self) -> None:
        """A thread's function: read lines of stdin until the end."""
        for line in sys.stdin:
            if json.loads(line).get("do") == "stop":
                self.stop.set()
            else:
                self.lines.put(line)
        self.stop.set()
        self.lines.put("")

    def info(self) -> dict[str, Any]:
        """Return the port's properties."""
        return asdict(self.port.info) | {"version": dpdk.version()}

    def link(self, seconds: float = _LINK_S) -> dict[str, Any]:
        """Wait for the link; up false: it did not come up."""
        deadline = time.monotonic() + seconds
        while not self.port.link.up and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        return asdict(self.port.link)

    def examine(self, buses: list[str]) -> dict[str, Any]:
        """Return the properties for `harpctl check`, with the link on these buses, where starting a
        port contacts no peer; {}: the link was not read.
        """
        link: dict[str, Any] = {}
        if self.port.info.bus in buses:
            self.port.start()
            link = self.link()
        counters = len(self.port.xstats())
        return {"link": link, "xstats": counters, "huge_pages": dpdk.huge_pages()}

    def _packets(self, size: int, count: int, to: str) -> dpdk.Burst:
        head = bytes.fromhex((to + self.port.mac).replace(":", "")) + _ETHERTYPE
        return self.port.pool.build([head + bytes(size - len(head))] * count)

    def generate(self, size: int, seconds: float, to: str, count: int = 256) -> dict[str, Any]:
        """Send copies of one packet."""
        with self._packets(size, count, to) as burst:
            return self._counted(dpdk.generate(self.port, burst, seconds=seconds))

    def sink(self) -> dict[str, Any]:
        """Receive until stop. late: packets still in flight then, which count in no rate."""
        count = self._counted(dpdk.sink(self.port, stop=self.stop))
        return count | {"late": dpdk.sink(self.port, seconds=_LATE_S).packets}

    def echo(self) -> dict[str, Any]:
        """Echo until stop."""
        return self._counted(dpdk.echo(self.port, stop=self.stop))

    def ping(self, size: int, rounds: int, to: str) -> dict[str, Any]:
        """Measure round trips to an echo."""
        with self._packets(size, 1, to) as burst:
            return {"rtt_ns": dpdk.ping(self.port, burst, rounds=rounds), "sent": rounds}

    def _counted(self, count: dpdk.Count) -> dict[str, Any]:
        rates = {"packets_per_s": count.packets_per_s, "gbit_per_s": count.gbit_per_s}
        return asdict(count) | rates | {"stats": self.port.stats()}

    def serve(self) -> None:
        """Run commands until the end of input."""
        commands: dict[str, Callable[..., dict[str, Any]]] = {
            "info": self.info,
            "link": self.link,
            "examine": self.examine,
            "generate": self.generate,
            "sink": self.sink,
            "echo": self.echo,
            "ping": self.ping,
        }
        threading.Thread(target=self.read, daemon=True).start()
        while line := self.lines.get():
            order = json.loads(line)
            try:
                answer(commands[order.pop("do")](**order))
            except HarpError as error:
                answer({"error": str(error)})
            self.stop.clear()


def answer(document: dict[str, Any]) -> None:
    """Print one line."""
    print(json.dumps(document), flush=True)


def main() -> int:
    """Return 0, or 1 if the port can't be opened; the only line has the reason."""
    options = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
    try:
        names = ("huge_pages", "memory_mib", "args")
        dpdk.start(**{name: options.pop(name) for name in names if name in options})
        pool = options.pop("pool", None)
        with dpdk.Port(sys.argv[1], pool=dpdk.Pool(**pool) if pool else None, **options) as port:
            worker = Worker(port)
            answer(worker.info())
            worker.serve()
    except HarpError as error:
        answer({"error": str(error), "errno": getattr(error, "errno", 0)})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
