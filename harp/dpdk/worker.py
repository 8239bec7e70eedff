# SPDX-License-Identifier: Apache-2.0
"""One end of a measurement on a DPDK port: `python -m harp.dpdk.worker ROLE SPEC [OPTIONS]`.

A process can start DPDK only once, and a driver may end the process. So `harpctl bench wire` and
`harpctl check` run this in other processes. OPTIONS is a JSON object of arguments: "start" for
harp.dpdk.start(), "pool" for Pool, "port" for Port, "run" for the role. `receive` and `pong` print
"ready" and the port's MAC address, and run until SIGTERM. Each role prints a line of JSON at its
end. An error is one line on stderr, with exit status REFUSED.
"""

import json
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from harp import dpdk
from harp.errors import HarpError

REFUSED = 100  # exit status, which no driver uses
_ETHERTYPE = (0x88B5).to_bytes(2, "big")  # IEEE Std 802: local experiments
_LOOK_S = 0.005
_LINK_S = 10.0
_LATE_S = 0.02
_DRAIN_S = 0.1


def _link(port: dpdk.Port) -> dpdk.Link:
    """Wait for the link for _LINK_S; it may stay down."""
    deadline = time.monotonic() + _LINK_S
    while not port.link.up and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    return port.link


def _packets(port: dpdk.Port, size: int, count: int, to: str) -> dpdk.Burst:
    """Wait for the link, and return packets to a peer."""
    if not _link(port).up:
        raise HarpError(f"{port.name}: no link; check the peer and the cable")
    head = bytes.fromhex((to + port.info.mac).replace(":", "")) + _ETHERTYPE
    return port.pool.build([head + bytes(size - len(head))] * count)


def _to_json(port: dpdk.Port, count: dpdk.Count) -> dict[str, Any]:
    rates = {"packets_per_s": count.packets_per_s, "gbit_per_s": count.gbit_per_s}
    return asdict(count) | rates | {"stats": port.stats()}


def _print_ready(port: dpdk.Port) -> threading.Event:
    """Print that the port is ready; return an event that SIGTERM sets."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    print("ready", port.info.mac, flush=True)
    return stop


def send(port: dpdk.Port, size: int, seconds: float, to: str) -> dict[str, Any]:
    """Send copies of one packet."""
    with _packets(port, size, 256, to) as burst:
        sent = _to_json(port, dpdk.generate(port, burst, seconds=seconds))
    # Closing a memif drops the packets in its ring, and no event reports that it is empty.
    time.sleep(_DRAIN_S)
    return sent


def receive(port: dpdk.Port) -> dict[str, Any]:
    """Receive until SIGTERM. late: packets that arrive after that; the rates exclude them."""
    count = _to_json(port, dpdk.sink(port, stop=_print_ready(port)))
    return count | {"late": dpdk.sink(port, seconds=_LATE_S).packets}


def ping(port: dpdk.Port, size: int, rounds: int, to: str) -> dict[str, Any]:
    """Measure round trips to `pong`."""
    with _packets(port, size, 1, to) as burst:
        return {"rtt_ns": sorted(dpdk.ping(port, burst, rounds=rounds)), "sent": rounds}


def pong(port: dpdk.Port) -> dict[str, Any]:
    """Send received packets back, until SIGTERM."""
    return _to_json(port, dpdk.sink(port, stop=_print_ready(port), echo=True))


def examine(port: dpdk.Port, buses: list[str]) -> dict[str, Any]:
    """Return the link for `harpctl check`. buses: those of ports that may be started; the link of
    another port is {}.
    """
    if port.info.bus not in buses:
        return {"link": {}}
    port.start()
    return {"link": asdict(_link(port))}


def main() -> int:
    """Run the role."""
    role, spec = sys.argv[1:3]
    options = json.loads(sys.argv[3]) if len(sys.argv) > 3 else {}
    roles: dict[str, Callable[..., dict[str, Any]]]
    roles = {"send": send, "receive": receive, "ping": ping, "pong": pong, "examine": examine}
    try:
        dpdk.start(**options.get("start", {}))
        pool = dpdk.Pool(**options["pool"]) if "pool" in options else None
        with dpdk.Port(spec, pool=pool, **options.get("port", {})) as port:
            info = asdict(port.info) | {"version": dpdk.version()}
            result = roles[role](port, **options.get("run", {}))
            print(json.dumps(result | {"info": info}), flush=True)
    except HarpError as error:
        print(error, file=sys.stderr)
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main())
