# SPDX-License-Identifier: Apache-2.0
"""Raw frames between two DPDK ports, one process each, with harp.dpdk: `bench wire --nic dpdk:`.

A net_memif port without a given peer gets one, over a socket of this run. Any other port without a
peer only sends, and the packets that its driver accepted count.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from harp.errors import Exit, HarpError
from harp.lab import cpus, unwinding
from harp.lab.piped import Piped

PREFIX = "dpdk:"
PING_BYTES = 64
_ETHERNET_BYTES = 14
_BUFFER_BYTES = 2048
_BUFFERS = {False: 8191, True: 4095}  # bytes: small and large
_MEMIF_LARGE_BYTES = 16384
_ROUNDS = 2000


class Worker(Piped):
    """A process of harp.dpdk.worker and its port. `info`: the port's properties."""

    limit_s = 3600  # a command takes as long as the caller wants
    end_s = 10

    def __init__(self, spec: str, options: dict[str, Any], core: int) -> None:
        words = [sys.executable, "-m", "harp.dpdk.worker", spec.removeprefix(PREFIX)]
        root = Path(__file__).resolve().parent.parent.parent
        paths = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
        process = subprocess.Popen(
            [*words, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        )
        os.sched_setaffinity(process.pid, {core})
        super().__init__(f"{spec}: its process", process)
        self.spec = spec
        try:
            self.info = self.answer()
        except BaseException:
            self.close()
            raise

    def tell(self, do: str, **order: Any) -> None:
        """Send a command to the process."""
        self.send(json.dumps({"do": do, **order}))

    def answer(self) -> dict[str, Any]:
        """Return the reply to the oldest pending command. HarpError quotes the process's error."""
        result: dict[str, Any] = json.loads(self.line())
        if "error" in result:
            raise HarpError(str(result["error"]))
        return result

    def ask(self, do: str, **order: Any) -> dict[str, Any]:
        """Send a command and return its reply."""
        self.tell(do, **order)
        return self.answer()


@dataclass(frozen=True)
class WireOptions:
    """Frames to send. frame_bytes 0: the largest that the MTU allows."""

    nic: str
    peer: str = ""
    seconds: int = 3
    mtu_bytes: int = 1500
    frame_bytes: int = 0

    @property
    def size(self) -> int:
        """Return the length of a frame."""
        return self.frame_bytes or self.mtu_bytes + _ETHERNET_BYTES


def _specs(options: WireOptions, folder: str) -> tuple[str, str]:
    """Return the specifications of the two ports, the generator's first. Empty second: no peer."""
    device, semicolon, rest = options.nic.removeprefix(PREFIX).partition(";")
    if options.peer or not device.startswith("net_memif") or "role=" in device:
        return options.nic, options.peer
    shared = f"{device},socket={folder}/memif.sock"
    # The server starts first, because it makes the socket.
    return f"{shared},role=client{semicolon}{rest}", f"{shared},role=server{semicolon}{rest}"


@contextlib.contextmanager
def _workers(specs: Sequence[str], options: WireOptions) -> Iterator[list[Worker]]:
    large = options.size > _BUFFER_BYTES
    pool = {
        "count": _BUFFERS[large],
        "buffer_bytes": _MEMIF_LARGE_BYTES if large else _BUFFER_BYTES,
    }
    port = {"mtu": max(options.mtu_bytes, options.size - _ETHERNET_BYTES), "pool": pool}
    usable = cpus()
    with contextlib.ExitStack() as stack:
        workers: list[Worker] = []
        for index, spec in reversed(list(enumerate(specs))):
            worker = Worker(spec, port, usable[index % len(usable)])
            workers.insert(0, stack.enter_context(worker))
        for worker in workers:
            if not worker.ask("link")["up"]:
                raise HarpError(f"{worker.spec}: no link: is its peer there, the cable in?")
        yield workers


def _percentile(ordered: list[int], permille: int) -> int:
    return ordered[min(len(ordered) * permille // 1000, len(ordered) - 1)] if ordered else 0


def _stream(workers: list[Worker], options: WireOptions) -> dict[str, Any]:
    order = {"size": options.size, "seconds": options.seconds, "to": workers[-1].info["mac"]}
    if len(workers) == 1:
        sent = received = workers[0].ask("generate", **order)
    else:
        workers[1].tell("sink")
        sent = workers[0].ask("generate", **order)
        workers[1].tell("stop")
        received = workers[1].answer()
    copies = ", the driver copies" if workers[0].info["driver_copies"] else ""
    return {
        "mode": f"dpdk {workers[0].info['driver']}{copies}",
        "frame_bytes": options.size,
        "frames_per_s": received["packets_per_s"],
        "gbit_per_s": received["gbit_per_s"],
        "sent": sent,
        "received": received if len(workers) > 1 else None,
    }


def _ping(workers: list[Worker]) -> dict[str, Any]:
    workers[1].tell("echo")
    answered = workers[0].ask("ping", size=PING_BYTES, rounds=_ROUNDS, to=workers[1].info["mac"])
    workers[1].tell("stop")
    workers[1].answer()
    ordered = sorted(answered["rtt_ns"])
    rtt = {"count": len(ordered), "min": _percentile(ordered, 0), "max": _percentile(ordered, 1000)}
    rtt |= {f"p{each / 10:g}": _percentile(ordered, each) for each in (500, 900, 990)}
    return {"round_trips": len(ordered), "lost": answered["sent"] - len(ordered), "rtt_ns": rtt}


def run(options: WireOptions) -> dict[str, Any]:
    """Measure a stream and, with a peer, round trips: {"stream": ..., "pingpong": ... or None}."""
    for spec in filter(None, (options.nic, options.peer)):
        if not spec.startswith(PREFIX):
            raise HarpError(f"{spec}: want dpdk:DEVICE, such as dpdk:net_memif0", Exit.USAGE)
    import_module("harp.dpdk")  # or its error, which names what is missing
    with unwinding(), tempfile.TemporaryDirectory(prefix="harp-wire-") as folder:
        specs = [each for each in _specs(options, folder) if each]
        with _workers(specs, options) as workers:
            stream = _stream(workers, options)
            return {"stream": stream, "pingpong": _ping(workers) if len(workers) > 1 else None}
