# SPDX-License-Identifier: Apache-2.0
"""A process that loads NCCL's plugin, initializes and finalizes it, and reports the results.

`python plugin_lives.py PLUGIN LIVES` runs LIVES cycles of init and finalize. It prints one JSON
document with the devices or the error of each cycle, the lines logged at WARN and INFO, and the
number of threads and descriptors that remain.
"""

import ctypes as ct
import json
import os
import sys
from pathlib import Path
from typing import Any

from ncclnet import WARN, NcclError, Net

from harp.stats import find


class _Properties(ct.Structure):
    """The first fields of ncclNetProperties_v11, and room for the rest."""

    _fields_ = (
        ("name", ct.c_char_p),
        ("pci_path", ct.c_char_p),
        ("guid", ct.c_uint64),
        ("rest", ct.c_char * 256),
    )


def _devices(net: Net) -> list[dict[str, Any]]:
    count = ct.c_int()
    net._call("devices", ct.byref(count))
    result = []
    for dev in range(count.value):
        properties = _Properties()
        net._call("getProperties", dev, ct.byref(properties))
        result.append({"name": properties.name.decode(), "guid": properties.guid})
    return result


def _refused() -> int:
    """harp_job's ports_refused, as the page of this process has it."""
    with find() as found:
        (mine,) = [page for page in found.jobs if page.pid == os.getpid()]
        return int(mine.read_job(lanes=False).counters["ports_refused"])


def _life(plugin: str) -> dict[str, Any]:
    said: list[tuple[int, str]] = []
    life: dict[str, Any] = {"error": None, "devices": [], "refused": 0}
    try:
        net = Net(plugin, log=lambda level, text: said.append((level, text)))
    except NcclError as error:
        life["error"] = error.result
    else:
        life["devices"] = _devices(net)
        life["refused"] = _refused()
        net.finalize()
    life["warned"] = [text for level, text in said if level == WARN]
    life["told"] = [text for level, text in said if level != WARN]
    life["threads"] = len(list(Path("/proc/self/task").iterdir()))
    life["descriptors"] = len(list(Path("/proc/self/fd").iterdir()))
    return life


if __name__ == "__main__":
    json.dump([_life(sys.argv[1]) for _ in range(int(sys.argv[2]))], sys.stdout)
