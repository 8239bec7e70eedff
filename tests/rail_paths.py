# SPDX-License-Identifier: Apache-2.0
"""Paths of a rail (harp.lab.rails): as in a fabric with several spines, half of the source port
modulo the number of paths selects the path of a TCP connection.
"""

import re
from collections.abc import Sequence

from harp.lab import Lab
from harp.lab.rails import Rails

_CLASS = re.compile(r"class htb 1:(\d+) .*\n Sent (\d+) bytes")
_PATH_SHIFT = 1  # bit 0 is the same for all ports that Linux chooses for connect()


def shape_paths(lab: Lab, rail: int, mbit_per_s: Sequence[float], *, queue_ms: float = 20) -> None:
    """Make 2, 4 or 8 paths of the rail, towards each host, each with its own rate and queue.
    Another call changes the rates during traffic.
    """
    assert lab.switch is not None
    for port in lab.switch.rails[rail]:
        # Replacing an htb root is refused; the present one stays.
        if "htb 1:" not in lab.switch.run("tc", "qdisc", "show", "dev", port):
            words = ("replace", "dev", port, "root", "handle", "1:", "htb", "default", "1")
            lab.switch.run("tc", "qdisc", *words)
        for path, rate in enumerate(mbit_per_s):
            _shape(lab, rail, port, path, rate, queue_ms, len(mbit_per_s))


def _shape(
    lab: Lab, rail: int, port: str, path: int, mbit: float, queue_ms: float, count: int
) -> None:
    rails, minor = Rails(lab), path + 1
    burst, rate = str(rails.burst_bytes(rail, mbit)), f"{round(mbit * 1000)}kbit"

    def tc(*words: str) -> None:
        assert lab.switch is not None
        lab.switch.run("tc", *words[:2], "dev", port, *words[2:])

    leaf = ("parent", f"1:{minor}", "handle", f"{minor}0:", "bfifo")
    tc(
        *("class", "replace", "parent", "1:", "classid", f"1:{minor}", "htb"),
        *("rate", rate, "burst", burst, "cburst", burst, "quantum", "3000"),
    )
    tc("qdisc", "replace", *leaf, "limit", str(rails.queue_bytes(rail, mbit, queue_ms)))
    value, mask = str(path << _PATH_SHIFT), hex((count - 1) << _PATH_SHIFT)
    for table, (protocol, match) in enumerate((("ip", "ip"), ("ipv6", "ip6"))):
        tc(
            *("filter", "replace", "parent", "1:", "protocol", protocol),
            *("prio", str(table + 1), "handle", f"80{table}::{minor}", "u32"),
            *("match", match, "sport", value, mask, "flowid", f"1:{minor}"),
        )


def path_bytes(lab: Lab, rail: int, host: int) -> list[int]:
    """The bytes of frames that left the switch towards the host so far, on each path."""
    assert lab.switch is not None
    port = lab.switch.rails[rail][host]
    shown = lab.switch.run("tc", "-s", "class", "show", "dev", port)
    found = {int(path): int(count) for path, count in _CLASS.findall(shown)}
    return [found[path] for path in sorted(found)]
